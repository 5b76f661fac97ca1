//! What a function is called, of the names that debug information and symbol tables give.
//!
//! Raw names -> the name that people read, and the symbol that it was made of. Nothing is made readable but what was
//! mangled: `i`, `d` and `St` are functions of C as often as they would be types of C++ in a mangled name.
//!
//! What does not belong here: which symbol of several people use (`profiler_object::Aliases`), looking names up (`loaded`).

use profiler_object::demangle::{Dialect, demangle, is_mangled};

/// A function's name.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Called {
    /// As people read it.
    pub(super) name: String,
    /// As it is in the symbol table, where that differs.
    pub(super) symbol: Option<String>,
}

/// The name that says most: that of debug information, or that of the symbol table. `told` is either of them, `symbol`
/// that of the table if there is one at the function's start.
pub(super) fn called(
    told: &str,
    symbol: Option<&str>,
    dialect: impl Fn() -> Dialect + Copy,
) -> Called {
    let symbol = symbol.filter(|symbol| *symbol != told);
    // What the C library calls its own function by need not be among the symbols.
    let told = match told.strip_prefix("__GI_") {
        Some(usual) if !usual.is_empty() => symbol.unwrap_or(usual),
        _ => told,
    };
    let (raw, written) = match symbol {
        // Debug information of lines alone has no more than the last part of a name, and that of C++ has no more of what
        // is local to a function: `operator()` of its lambdas.
        Some(symbol) if !is_mangled(told) || !is_mangled(symbol) => {
            (symbol, readable(symbol, dialect))
        }
        _ => (told, None),
    };
    if let Some(name) = written {
        return Called {
            name,
            symbol: Some(raw.into()),
        };
    }
    if let Some(name) = readable(told, dialect) {
        return Called {
            name,
            symbol: Some(symbol.unwrap_or(told).into()),
        };
    }
    let whole = symbol.filter(|symbol| !is_mangled(symbol) && is_whole_of(symbol, told));
    Called {
        name: whole.unwrap_or(told).into(),
        symbol: symbol
            .filter(|symbol| is_suffixed(symbol, told))
            .map(Into::into),
    }
}

/// Whether a symbol is a name with what compilers append for one of several pieces of code: a part that was moved away, a
/// clone, one of several functions of that name.
fn is_suffixed(symbol: &str, name: &str) -> bool {
    let rest = symbol.strip_prefix(name);
    rest.is_some_and(|rest| rest.starts_with('.'))
}

/// A symbol as users of its language write it; none if it is written as it is. `dialect` is asked where the symbol alone
/// does not say what it is.
fn readable(symbol: &str, dialect: impl FnOnce() -> Dialect) -> Option<String> {
    if let Some((name, _)) = demangle(symbol) {
        return Some(name);
    }
    if is_mangled(symbol) || !Dialect::may_concern(symbol) {
        return None;
    }
    dialect().readable(symbol)
}

/// Whether a symbol says in which class a function is: `*A::work<UInt32>:UInt32` for `work`. Their compilers write them
/// as they are.
fn is_whole_of(symbol: &str, told: &str) -> bool {
    let last = told.split('<').next().unwrap_or(told);
    if last.is_empty() || last.contains("::") || last.contains('(') {
        return false;
    }
    let Some(at) = symbol.find(told) else {
        return false;
    };
    symbol[..at].ends_with("::") || symbol[..at].ends_with('#')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(told: &str, symbol: &str) -> String {
        called(told, Some(symbol), Dialect::default).name
    }

    #[test]
    fn the_name_that_says_most() {
        // Debug information with lines alone.
        assert_eq!(of("work", "_ZN1A4workEj"), "A::work(unsigned int)");
        assert_eq!(
            of(
                "{closure#0}",
                "_ZN1m1b3run28_$u7b$$u7b$closure$u7d$$u7d$17h0123456789abcdefE"
            ),
            "m::b::run::{{closure}}"
        );
        assert_eq!(of("short<fn(), ()>", "_ZN1m5shortE"), "m::short");
        assert_eq!(
            of("work", "*A::work<UInt32>:UInt32"),
            "*A::work<UInt32>:UInt32"
        );
        // A part of a function says that it is one.
        assert_eq!(
            of("work", "_ZN1A4workEj.cold"),
            "A::work(unsigned int) [clone .cold]"
        );
        // Whole already.
        assert_eq!(
            of("_ZN1A4workEj", "_ZN1A4workEj.part.0"),
            "A::work(unsigned int)"
        );
        // Another language says how it is mangled.
        assert_eq!(of("work", "__ma_MOD_work"), "ma::work");
        assert_eq!(of("work", "other_work"), "work");
        let alone = called("work", None, Dialect::default);
        assert_eq!((&*alone.name, alone.symbol), ("work", None));
    }

    #[test]
    fn an_operator_has_the_class_that_it_is_of() {
        assert_eq!(
            of("operator()", "_ZZ4mainENKUlmE2_clEm"),
            "main::{lambda(unsigned long)#4}::operator()(unsigned long) const"
        );
        assert_eq!(of("operator()", "_ZN1LclEi"), "L::operator()(int)");
    }

    #[test]
    fn short_names_of_functions_are_no_types() {
        for name in ["a", "d", "f", "i", "w", "St", "PKc", "v"] {
            assert_eq!(of(name, name), name);
            assert_eq!(called(name, None, Dialect::default).name, name);
            assert_eq!(of(name, &format!("{name}.constprop.0")), name);
            assert_eq!(readable(name, Dialect::default), None);
        }
    }

    #[test]
    fn what_a_library_calls_itself_is_not_told() {
        assert_eq!(of("__GI___printf_fp_l", "__printf_fp_l"), "__printf_fp_l");
        assert_eq!(of("__GI_raise", "raise"), "raise");
        assert_eq!(called("__GI_raise", None, Dialect::default).name, "raise");
    }

    #[test]
    fn the_symbol_that_a_name_was_made_of() {
        let symbol = |told, symbol| called(told, symbol, Dialect::default).symbol;
        let mangled = "_ZN1A4workEj";
        assert_eq!(symbol(mangled, None).as_deref(), Some(mangled));
        assert_eq!(symbol("work", Some(mangled)).as_deref(), Some(mangled));
        let version = "_ZN1A4workEj.isra.0";
        assert_eq!(symbol(mangled, Some(version)).as_deref(), Some(version));
        assert_eq!(symbol("work", Some("other_work")), None);
        // That it is a part, or one of several.
        for version in ["work.isra.0", "work.0", "work.cold"] {
            assert_eq!(symbol("work", Some(version)).as_deref(), Some(version));
        }
        assert_eq!(symbol("work", Some("workers.0")), None);
    }

    #[test]
    fn names_of_a_dialect() {
        let nim = called("run__n_36", Some("run__n_36"), || Dialect::Nim);
        assert_eq!(nim.name, "n.run");
        assert_eq!(
            readable("run__n_36", || Dialect::Nim).as_deref(),
            Some("n.run")
        );
    }
}
