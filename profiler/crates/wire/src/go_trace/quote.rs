//! Go's `strconv.Quote` and `strconv.Unquote`.
//!
//! Input: bytes, UTF-8 as a rule; output: them in double quotes, with Go's escapes for what can't be printed. What
//! counts as printable are Unicode's letters, marks, numbers, punctuation and symbols, in both
//! languages; their tables may differ by a version of Unicode, which only changes how a character
//! is written, not what it reads as.

/// Quotes text; bytes that are no UTF-8 one by one.
pub fn quote(bytes: impl AsRef<[u8]>) -> String {
    let bytes = bytes.as_ref();
    let mut out = String::with_capacity(bytes.len() + 2);
    out.push('"');
    for chunk in bytes.utf8_chunks() {
        quote_into(chunk.valid(), &mut out);
        for byte in chunk.invalid() {
            out.push_str(&format!("\\x{byte:02x}"));
        }
    }
    out.push('"');
    out
}

fn quote_into(text: &str, out: &mut String) {
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\x07' => out.push_str("\\a"),
            '\x08' => out.push_str("\\b"),
            '\x0c' => out.push_str("\\f"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\x0b' => out.push_str("\\v"),
            c if is_printable(c) => out.push(c),
            c => out.push_str(&escaped(u32::from(c))),
        }
    }
}

/// Reads text in double quotes, or in back quotes; none if it is not quoted as Go does it.
pub(super) fn unquote(quoted: &str) -> Option<Vec<u8>> {
    let inner = |quote: char| quoted.strip_prefix(quote)?.strip_suffix(quote);
    if let Some(raw) = inner('`') {
        return match raw.contains('`') {
            true => None,
            // Go leaves out carriage returns there.
            false => Some(raw.replace('\r', "").into_bytes()),
        };
    }
    inner('"').filter(|_| quoted.len() > 1).and_then(unescape)
}

fn unescape(text: &str) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.chars();
    while let Some(c) = rest.next() {
        match c {
            '"' | '\n' => return None,
            '\\' => {
                let c = rest.next()?;
                let simple = match c {
                    'a' => 0x07,
                    'b' => 0x08,
                    'f' => 0x0c,
                    'n' => b'\n',
                    'r' => b'\r',
                    't' => b'\t',
                    'v' => 0x0b,
                    '\\' | '"' => c as u8,
                    _ => 0,
                };
                let digits = match c {
                    'x' => (2, 16),
                    'u' => (4, 16),
                    'U' => (8, 16),
                    '0'..='7' => (3, 8),
                    _ if simple != 0 => {
                        out.push(simple);
                        continue;
                    }
                    _ => return None,
                };
                let mut number = if digits.1 == 8 { c.to_digit(8)? } else { 0 };
                for _ in 0..digits.0 - usize::from(digits.1 == 8) {
                    number = number.checked_mul(digits.1)? + rest.next()?.to_digit(digits.1)?;
                }
                match c {
                    'u' | 'U' => push(char::from_u32(number)?, &mut out),
                    _ => out.push(u8::try_from(number).ok()?),
                }
            }
            c => push(c, &mut out),
        }
    }
    Some(out)
}

fn push(c: char, out: &mut Vec<u8>) {
    out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
}

fn escaped(code: u32) -> String {
    match code {
        0..0x20 | 0x7f => format!("\\x{code:02x}"),
        0..=0xffff => format!("\\u{code:04x}"),
        _ => format!("\\U{code:08x}"),
    }
}

fn is_printable(c: char) -> bool {
    // The standard library shows its table only through debug escapes; it escapes a mark that
    // starts a string, hence the letter before it.
    c == '\'' || {
        let mut text = ['a'; 2].iter().collect::<String>();
        text.pop();
        text.push(c);
        text.escape_debug().count() == 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_like_go() {
        for (text, expect) in [
            ("main.main", "\"main.main\""),
            ("a\"b\\c", r#""a\"b\\c""#),
            ("\x07\x08\x0c\n\r\t\x0b", r#""\a\b\f\n\r\t\v""#),
            ("\0\x1b\x7f", r#""\x00\x1b\x7f""#),
            ("é 日本 😀 it's", "\"é 日本 😀 it's\""),
            ("\u{85}\u{a0}\u{ad}", r#""\u0085\u00a0\u00ad""#),
            ("\u{2028}\u{feff}\u{e000}", r#""\u2028\ufeff\ue000""#),
            ("\u{e0001}\u{10ffff}", r#""\U000e0001\U0010ffff""#),
            ("e\u{301}", "\"e\u{301}\""),
            ("\u{301}", "\"\u{301}\""),
            ("\u{fffd}", "\"\u{fffd}\""),
        ] {
            assert_eq!(quote(text), expect, "{text:?}");
            let read = Some(text.as_bytes().to_vec());
            assert_eq!(unquote(expect), read, "{text:?}");
        }
        assert_eq!(quote(b"a\xff\xe9"), r#""a\xff\xe9""#);
        for bad in [
            "",
            "\"",
            "a",
            "\"a",
            r#""\x1""#,
            r#""\ud800""#,
            r#""\400""#,
            r#""\'""#,
            "\"a\"b\"",
        ] {
            assert_eq!(unquote(bad), None, "{bad}");
        }
    }
}
