//! Names of symbol tables made readable, and the shorter forms that people write.
//!
//! A name as in a symbol table -> the readable name (the very text that samples show, so that both
//! are one function) and its language; with [`short`] also what is left without return type,
//! parameters and template arguments. Names come from untrusted files: length and depth are bounded.
//! Sources: the Itanium C++ ABI, the Rust name mangling (RFC 2603 and the scheme before it), both
//! through the libraries that the symbolizer uses; of other languages see `dlang` and `plain`.
//!
//! What does not belong here: which names a pattern matches (`pattern`).

mod dlang;
mod plain;

use std::fmt::{self, Write};

use cpp_demangle::{BorrowedSymbol, DemangleNodeType, DemangleOptions, DemangleWrite, Symbol};

use super::Language;
use dlang::Form;
pub use plain::Dialect;

/// Longest name that is kept.
pub const MAX_NAME_BYTES: usize = 4096;
/// Longest name that is made readable.
const MAX_MANGLED_BYTES: usize = 64 << 10;

/// The readable form of a name, if it has one, and the language that mangles names so. It is cut where it would be too
/// long.
pub fn demangle(name: &str) -> Option<(String, Language)> {
    if name.len() > MAX_MANGLED_BYTES {
        return None;
    }
    if !is_mangled(name) {
        return Some((unmangled(name, Form::Whole)?, Language::C));
    }
    if let Ok(rust) = rustc_demangle::try_demangle(name) {
        let mut text = Bounded::default();
        // Without the hash.
        let written = write!(text, "{rust:#}").is_ok();
        return text.finish(written).map(|text| (text, Language::Rust));
    }
    let mut text = Bounded::default();
    let options = DemangleOptions::default();
    let written = match Symbol::new(name) {
        Ok(symbol) => symbol.structured_demangle(&mut text, &options),
        Err(_) => without_signature(name)?.structured_demangle(&mut text, &options),
    };
    let text = text.finish(written.is_ok())?;
    Some((text, Language::Cxx))
}

/// A function template whose return type names a member of another template in namespace std
/// (`enable_if<and_<A, B>::value>`) in GCC's way, which the library can't read: its name can be, and that is all
/// that is told of it.
fn without_signature(name: &str) -> Option<BorrowedSymbol<'_>> {
    let (symbol, signature) = BorrowedSymbol::with_tail(name.as_bytes()).ok()?;
    let is_word = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
    let is_known = signature.windows(4).any(|part| part == b"srSt");
    (is_known && signature.iter().all(is_word)).then_some(symbol)
}

/// The readable forms of a name that people write: of C++ without return type and parameters,
/// with and without template arguments; of Rust without generic arguments.
pub fn short(name: &str) -> Vec<String> {
    if name.len() > MAX_NAME_BYTES {
        return Vec::new();
    }
    if !is_mangled(name) {
        return unmangled(name, Form::Short).into_iter().collect();
    }
    if let Ok(rust) = rustc_demangle::try_demangle(name) {
        let mut text = Bounded::default();
        if write!(text, "{rust:#}").is_err() {
            return Vec::new();
        }
        return rust_short(&text.text).into_iter().collect();
    }
    // A part of a function (`.part.0`) would lose that with its parameters.
    if name.contains('.') {
        return Vec::new();
    }
    let symbol = BorrowedSymbol::new(name.as_bytes()).ok();
    let Some(symbol) = symbol.or_else(|| without_signature(name)) else {
        return Vec::new();
    };
    let options = DemangleOptions::new().no_params().no_return_type();
    let mut forms = Vec::new();
    let mut whole = Bounded::default();
    if symbol.structured_demangle(&mut whole, &options).is_ok() {
        forms.push(whole.text);
    }
    let mut plain = WithoutArguments::default();
    if symbol.structured_demangle(&mut plain, &options).is_ok() && !forms.contains(&plain.text.text)
    {
        forms.push(plain.text.text);
    }
    forms
}

/// The readable form of a name of D, Fortran, OCaml or Pascal.
fn unmangled(name: &str, form: Form) -> Option<String> {
    dlang::readable(name, form).or_else(|| {
        let readable = plain::readable(name)?;
        Some(match form {
            Form::Whole => readable,
            Form::Short => plain::without_parameters(&readable).to_owned(),
        })
    })
}

/// Whether a name looks as if a compiler had encoded types in it.
pub fn is_mangled(name: &str) -> bool {
    name.starts_with("_Z") || name.starts_with("_R")
}

/// `alloc::vec::Vec<T,A>::push` and `<alloc::vec::Vec<T>>::push` -> `alloc::vec::Vec::push`. Of
/// `<A as B>::c` the qualified part is kept as it is: it is no argument.
fn rust_short(name: &str) -> Option<String> {
    let name = match name.strip_prefix('<').and_then(|rest| {
        let end = closing(rest)?;
        let inner = &rest[..end];
        (!inner.contains(" as ")).then(|| format!("{inner}{}", &rest[end + 1..]))
    }) {
        Some(inherent) => inherent,
        None if name.starts_with('<') => return None,
        None => name.to_owned(),
    };
    let mut text = String::with_capacity(name.len());
    let mut rest = &*name;
    while let Some(open) = rest.find('<') {
        let Some(end) = closing(&rest[open + 1..]) else {
            break;
        };
        let (before, inner) = (&rest[..open], &rest[open + 1..open + 1 + end]);
        if inner.starts_with("impl ") || inner.contains(" as ") {
            text.push_str(&rest[..open + 1 + end + 1]);
        } else {
            text.push_str(before.strip_suffix("::").unwrap_or(before));
        }
        rest = &rest[open + 1 + end + 1..];
    }
    text.push_str(rest);
    Some(text)
}

/// Where the bracket that was open at the start of `text` is closed.
fn closing(text: &str) -> Option<usize> {
    let mut depth = 1;
    let mut previous = b' ';
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'<' => depth += 1,
            // Not of an arrow.
            b'>' if previous != b'-' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some(at);
        }
        previous = byte;
    }
    None
}

/// A text that refuses to become long: names can be made to unfold without end.
#[derive(Default)]
struct Bounded {
    text: String,
    /// Whether there would be more.
    full: bool,
}

impl Bounded {
    /// The text, if all of it was written, or as much as there was room for.
    fn finish(self, written: bool) -> Option<String> {
        (written || self.full).then_some(self.text)
    }
}

impl Write for Bounded {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = MAX_NAME_BYTES - self.text.len();
        if self.full || text.len() > room {
            let rest = text.floor_char_boundary(room);
            self.text
                .push_str(if self.full { "" } else { &text[..rest] });
            self.full = true;
            return Err(fmt::Error);
        }
        self.text.push_str(text);
        Ok(())
    }
}

/// Leaves out what stands between the brackets of templates, and the brackets.
#[derive(Default)]
struct WithoutArguments {
    text: Bounded,
    depth: usize,
    /// Whether the bracket that closes arguments has yet to come.
    closing: bool,
}

impl DemangleWrite for WithoutArguments {
    fn push_demangle_node(&mut self, node: DemangleNodeType) {
        // Within arguments all nodes are counted, to find the end of the outermost.
        if self.depth > 0 {
            self.depth += 1;
        } else if node == DemangleNodeType::TemplateArgs {
            self.depth = 1;
            // Brackets stand outside of the node.
            let text = &mut self.text.text;
            if text.ends_with('<') {
                text.pop();
                text.truncate(text.trim_end().len());
                self.closing = true;
            }
        }
    }

    fn write_string(&mut self, text: &str) -> fmt::Result {
        if self.depth > 0 {
            return Ok(());
        }
        let mut text = text;
        if self.closing {
            text = text.trim_start();
            if let Some(rest) = text.strip_prefix('>') {
                self.closing = false;
                text = rest;
            }
        }
        self.text.write_str(text)
    }

    fn pop_demangle_node(&mut self) {
        self.depth = self.depth.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readable_names() {
        for (raw, readable, language) in [
            ("_Z3foov", "foo()", Language::Cxx),
            ("_ZN2ns1f17hE", "", Language::C),
            (
                "_ZN4core9panicking9panic_fmt17h5f1a6fd39197ad62E",
                "core::panicking::panic_fmt",
                Language::Rust,
            ),
            ("_RNvC6_123foo3bar", "123foo::bar", Language::Rust),
        ] {
            match demangle(raw) {
                Some(found) => assert_eq!(found, (readable.to_owned(), language), "{raw}"),
                None => assert_eq!(readable, "", "{raw}"),
            }
        }
        for plain in ["main", "", "_start", "_Z", "_R", "main.(*T).Method"] {
            assert_eq!(demangle(plain), None, "{plain}");
        }
    }

    #[test]
    fn a_return_type_that_can_not_be_read_is_left_out() {
        let swap = "_ZSt4swapIN4USDT8LocationEENSt9enable_ifIXsrSt6__and_IJSt6__not_ISt15__is_tuple_likeIT_EE\
                    St21is_move_constructibleIS6_ESt18is_move_assignableIS6_EEE5valueEvE4typeERS6_SG_";
        let readable = "std::swap<USDT::Location>";
        assert_eq!(demangle(swap), Some((readable.to_owned(), Language::Cxx)));
        assert_eq!(short(swap), [readable, "std::swap"]);
        for other in [
            "_ZSt4swapIiEvERT_S1_!",
            "_ZSt4swapIiE!srSt",
            "_ZSt4swapIiEXX",
        ] {
            assert_eq!(demangle(other), None, "{other}");
            assert!(short(other).is_empty(), "{other}");
        }
    }

    #[test]
    fn short_names_of_cxx() {
        let stream = "_ZStlsISt11char_traitsIcEERSt13basic_ostreamIcT_ES5_PKc";
        let expected = [
            "std::operator<< <std::char_traits<char> >",
            "std::operator<<",
        ];
        assert_eq!(short(stream), expected);
        assert_eq!(short("_ZN2ns3addEii"), ["ns::add"]);
        assert_eq!(
            short("_ZNSt6vectorIiSaIiEE9push_backERKi"),
            [
                "std::vector<int, std::allocator<int> >::push_back",
                "std::vector::push_back"
            ]
        );
        assert!(short("main").is_empty());
    }

    #[test]
    fn short_names_of_rust() {
        for (name, expected) in [
            ("alloc::vec::Vec<T,A>::push", Some("alloc::vec::Vec::push")),
            ("<alloc::vec::Vec<u8>>::push", Some("alloc::vec::Vec::push")),
            ("<A as core::fmt::Debug>::fmt", None),
            ("core::mem::drop::<u8>", Some("core::mem::drop")),
            ("a::b::<fn() -> u8>::c", Some("a::b::c")),
            ("a<b", Some("a<b")),
        ] {
            assert_eq!(rust_short(name).as_deref(), expected, "{name}");
        }
    }

    #[test]
    fn long_names_are_cut() {
        let long = "n".repeat(5000);
        let (name, language) = demangle(&format!("_Z5000{long}v")).unwrap();
        assert_eq!((name.len(), language), (MAX_NAME_BYTES, Language::Cxx));
        assert!(long.starts_with(&name));
        let argument = format!("_Z1fI4000{}3endEvv", "a".repeat(4000));
        assert!(demangle(&argument).unwrap().0.starts_with("void f<aaa"));
        let unfolds = format!("_Z1f{}", "1a".repeat(4000));
        assert!(demangle(&unfolds).is_some_and(|(text, _)| text.len() <= MAX_NAME_BYTES));
        // There is no shorter form of what is too long itself.
        assert!(short(&format!("_Z5000{long}v")).is_empty());
    }

    #[test]
    fn names_that_unfold_without_end_are_refused() {
        // Each argument refers to the one before twice.
        let mut name = String::from("_Z1fIiE");
        for i in 0..60 {
            let digit = std::char::from_digit(i % 36, 36)
                .unwrap()
                .to_ascii_uppercase();
            name.push_str(&format!("1TIS{digit}_S{digit}_E"));
        }
        if let Some((text, _)) = demangle(&name) {
            assert!(text.len() <= MAX_NAME_BYTES);
        }
        assert_eq!(demangle(&format!("_Z{}", "N".repeat(100_000))), None);
        let _ = demangle(&format!("_Z1f{}i", "P".repeat(4000)));
        let _ = demangle(&format!("_RNvC1a{}", "B".repeat(4000)));
    }
}
