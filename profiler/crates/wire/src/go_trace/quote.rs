//! Go's `strconv.Quote`.
//!
//! Input: a string; output: it in double quotes, with Go's escapes for what can't be printed. What
//! counts as printable are Unicode's letters, marks, numbers, punctuation and symbols, in both
//! languages; their tables may differ by a version of Unicode, which only changes how a character
//! is written, not what it reads as.

/// Quotes a string.
pub fn quote(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
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
    out.push('"');
    out
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
        }
    }
}
