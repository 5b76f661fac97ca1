//! What is thrown, in words.
//!
//! The name in a C++ `type_info`, or the class of an exception of the unwinder -> text. Source: the
//! Itanium C++ ABI, chapter 2.9 and its Base ABI for exceptions, chapter 1.2.
//!
//! What does not belong here: reading either from the target (the kernel side).

use std::fmt::Write;

use cpp_demangle::{DemangleOptions, Symbol};

/// Longest mangled name that is demangled.
const MAX_NAME_BYTES: usize = 256;
/// Longest name that results, in bytes; a short mangled name may stand for a very long one.
const MAX_SHOWN_BYTES: usize = 512;

/// The name of a C++ type as people write it, of the mangled one in its `type_info`:
/// `std::runtime_error` of `St13runtime_error`. What can't be demangled stays as it is.
pub fn exception_name(mangled: &[u8]) -> String {
    let end = mangled
        .iter()
        .position(|&byte| byte == 0)
        .unwrap_or(mangled.len());
    // GCC marks types that only one file knows.
    let mangled = mangled[..end].strip_prefix(b"*").unwrap_or(&mangled[..end]);
    demangled(mangled).unwrap_or_else(|| {
        let shown = &mangled[..mangled.len().min(MAX_NAME_BYTES)];
        String::from_utf8_lossy(shown).into_owned()
    })
}

fn demangled(mangled: &[u8]) -> Option<String> {
    if mangled.is_empty() || mangled.len() > MAX_NAME_BYTES {
        return None;
    }
    // A bare type is no symbol; the name of a type's name is one.
    let symbol = Symbol::new([b"_ZTS", mangled].concat()).ok()?;
    let mut text = Bounded(String::new());
    symbol
        .structured_demangle(&mut text, &DemangleOptions::new())
        .ok()?;
    Some(text.0.strip_prefix("typeinfo name for ")?.to_owned())
}

/// Text that gets no longer than is allowed.
struct Bounded(String);

impl Write for Bounded {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        if self.0.len() + text.len() > MAX_SHOWN_BYTES {
            return Err(std::fmt::Error);
        }
        self.0.push_str(text);
        Ok(())
    }
}

/// What the class of an exception of the unwinder stands for: eight bytes, the vendor's and the
/// language's name in the upper and lower half of the number.
pub fn exception_class(class: u64) -> String {
    match &class.to_be_bytes() {
        // Newer versions write the letters in order, whatever the order of bytes is.
        b"MOZ\0RUST" | b"TSUR\0ZOM" => "Rust panic".to_owned(),
        b"GNUCC++\0" | b"GNUCC++\x01" | b"CLNGC++\0" | b"CLNGC++\x01" => "C++ exception".to_owned(),
        b"GNUCJAVA" => "Java exception".to_owned(),
        b"GNUCOBJC" => "Objective-C exception".to_owned(),
        b"GNUU-Ada" | b"GNU-Ada\0" => "Ada exception".to_owned(),
        b"GNUCD\0\0\0" => "D exception".to_owned(),
        b"GNUCGO\0\0" => "Go panic".to_owned(),
        _ => format!("{class:#018x}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_types() {
        for (mangled, name) in [
            ("St13runtime_error", "std::runtime_error"),
            ("i", "int"),
            ("PKc", "char const*"),
            (
                "N5boost10wrapexceptISt9bad_allocEE",
                "boost::wrapexcept<std::bad_alloc>",
            ),
            ("*N12_GLOBAL__N_15LocalE", "(anonymous namespace)::Local"),
            ("9Exception", "Exception"),
            ("not mangled", "not mangled"),
            ("", ""),
        ] {
            assert_eq!(exception_name(mangled.as_bytes()), name, "{mangled}");
        }
        assert_eq!(exception_name(b"St9exception\0rest"), "std::exception");
        assert_eq!(exception_name(&[0xff, b'x']), "\u{fffd}x");
    }

    #[test]
    fn names_that_blow_up_stay_short() {
        // Each level has the one before twice.
        let mut mangled = b"1AIiE".to_vec();
        for level in 0..30 {
            let number = if level < 2 { "S_" } else { "S0_" };
            mangled = [b"1BI", &mangled[..], number.as_bytes(), b"E"].concat();
        }
        assert!(exception_name(&mangled).len() <= MAX_SHOWN_BYTES);
        assert!(exception_name(&vec![b'P'; 100_000]).len() <= MAX_SHOWN_BYTES);
    }

    #[test]
    fn classes() {
        assert_eq!(
            exception_class(u64::from_be_bytes(*b"MOZ\0RUST")),
            "Rust panic"
        );
        assert_eq!(exception_class(0x474e_5543_432b_2b00), "C++ exception");
        assert_eq!(exception_class(7), "0x0000000000000007");
    }
}
