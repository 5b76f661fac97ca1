//! Names of symbol tables made readable, and the shorter forms that people write.
//!
//! A name as in a symbol table -> the readable name (the very text that samples show, so that both
//! are one function) and its language. Names come from untrusted files: length and depth are bounded.
//! Sources: the Itanium C++ ABI, the Rust name mangling (RFC 2603 and the scheme before it), both
//! through the libraries that the symbolizer uses.
//!
//! What does not belong here: which names a pattern matches (`pattern`).

use std::fmt::{self, Write};

use cpp_demangle::{DemangleOptions, Symbol};

use super::Language;

/// Longest name that is made readable or kept.
pub(crate) const MAX_NAME_BYTES: usize = 4096;

/// The readable form of a name, if it has one, and the language that mangles names so.
pub(crate) fn demangle(name: &str) -> Option<(String, Language)> {
    if !is_mangled(name) || name.len() > MAX_NAME_BYTES {
        return None;
    }
    if let Ok(rust) = rustc_demangle::try_demangle(name) {
        let mut text = Bounded::default();
        // Without the hash.
        write!(text, "{rust:#}").ok()?;
        return Some((text.0, Language::Rust));
    }
    let mut text = Bounded::default();
    let symbol = Symbol::new(name).ok()?;
    symbol
        .structured_demangle(&mut text, &DemangleOptions::default())
        .ok()?;
    Some((text.0, Language::Cxx))
}

/// Whether a name looks as if a compiler had encoded types in it.
pub(crate) fn is_mangled(name: &str) -> bool {
    name.starts_with("_Z") || name.starts_with("_R")
}

/// A text that refuses to become long: names can be made to unfold without end.
#[derive(Default)]
struct Bounded(String);

impl Write for Bounded {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.0.len() + text.len() > MAX_NAME_BYTES {
            return Err(fmt::Error);
        }
        self.0.push_str(text);
        Ok(())
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
