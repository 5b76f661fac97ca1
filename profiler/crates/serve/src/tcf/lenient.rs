//! JSON as clients write it -> JSON.
//!
//! The framework's writer in Java escapes a few control characters and leaves the others as they are, inside of
//! texts too; agents and clients in C write any bytes. Here a text's control characters become escapes, bytes that are
//! no UTF-8 and halves of a surrogate pair the replacement character. What is JSON already is left alone.
//! Source: RFC 8259, section 7. What does not belong here: what arguments mean (`arguments`).

use std::borrow::Cow;
use std::fmt::Write;

/// What stands for what is no character.
const REPLACEMENT: &str = "\\ufffd";

/// JSON of what should be some. What is none in other ways stays so.
pub(super) fn json(bytes: &[u8]) -> Cow<'_, str> {
    let text = String::from_utf8_lossy(bytes);
    let is_odd = |byte: &u8| *byte < b' ' || *byte == b'\\';
    match text.as_bytes().iter().any(is_odd) {
        true => Cow::Owned(escaped(&text)),
        false => text,
    }
}

fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 16);
    let mut in_text = false;
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let mut len = first.len_utf8();
        match first {
            '"' => {
                in_text = !in_text;
                out.push('"');
            }
            '\\' if in_text => {
                len = escape(rest, &mut out);
            }
            '\0'..='\u{1f}' if in_text => {
                // Writing to a string does not fail.
                let _ = write!(out, "\\u{:04x}", u32::from(first));
            }
            _ => out.push(first),
        }
        rest = &rest[len..];
    }
    out
}

/// A text as it is written: its control characters become escapes, all else stays, bytes that are no UTF-8 too.
pub(super) fn bytes(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    for &byte in text {
        match byte {
            0..b' ' => out.extend_from_slice(format!("\\u{byte:04x}").as_bytes()),
            _ => out.push(byte),
        }
    }
    out
}

/// Copies the escape at the front of `rest`, unless it is half of a pair; how long it is.
fn escape(rest: &str, out: &mut String) -> usize {
    let unit = |at: usize| {
        let digits = rest.get(at..)?.strip_prefix("\\u")?.get(..4)?;
        let is_hex = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_hex.then(|| u16::from_str_radix(digits, 16).ok())?
    };
    let pair = 12;
    match (unit(0), unit(6)) {
        (Some(0xd800..=0xdbff), Some(0xdc00..=0xdfff)) => {
            out.push_str(&rest[..pair]);
            pair
        }
        (Some(0xd800..=0xdfff), _) => {
            out.push_str(REPLACEMENT);
            pair / 2
        }
        _ => {
            // What is behind may be a quote, which ends no text then.
            let len = 1 + rest[1..].chars().next().map_or(0, char::len_utf8);
            out.push_str(&rest[..len]);
            len
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_read_as_they_are_written() {
        for (bytes, expected) in [
            (&b"\"a\x01b\x1f\n\""[..], "a\u{1}b\u{1f}\n"),
            (b"\"a\\\"\x02\"", "a\"\u{2}"),
            (b"\"\\\\\"", "\\"),
            (b"\"\\u0041\\n\"", "A\n"),
            (b"\"\\ud800x\\udc00\"", "\u{fffd}x\u{fffd}"),
            (b"\"\\ud83d\\ude00\"", "\u{1f600}"),
            (b"\"\\ud800\\\"\"", "\u{fffd}\""),
            (b"\"\xff\xe1\x84\xb4\"", "\u{fffd}\u{1134}"),
        ] {
            let text: String = serde_json::from_str(&json(bytes)).unwrap();
            assert_eq!(text, expected, "{}", String::from_utf8_lossy(bytes));
        }
    }

    #[test]
    fn what_is_none_stays_so() {
        for bytes in [
            &b"\"a"[..],
            b"{\x01}",
            b"\"\\x\"",
            b"\"\\",
            b"\"\\u12\"",
            b"\"\\u+123\"",
            b"",
        ] {
            let text = json(bytes);
            let value = serde_json::from_str::<serde_json::Value>(&text);
            assert!(value.is_err(), "{text}");
        }
        assert!(matches!(json(b"{\"a\":[1]}"), Cow::Borrowed(_)));
        assert_eq!(json(b"{ \n\t}"), "{ \n\t}", "white space is none of a text");
    }
}
