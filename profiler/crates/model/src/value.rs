//! How a value of a program is written.
//!
//! A [`Value`] -> one line of text of bounded length: `42`, `"text"`, `'c'`, `RED (2)`,
//! `0x7f0012345678`, `{x: 1, y: 2}`. Text of the target is escaped: it can't act on a terminal.
//!
//! What does not belong here: how values are read (`trace`).

use std::fmt::{self, Display, Formatter, Write};

use super::Value;

/// Longest text, in bytes, up to the part that crosses the limit.
const MAX_BYTES: usize = 512;
/// How deep parts of parts are written.
const MAX_DEPTH: u32 = 8;

impl Display for Value {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let mut out = Bounded { f, left: MAX_BYTES };
        match write(self, &mut out, 0) {
            Err(Stop::Full) => f.write_char('…'),
            Err(Stop::Failed) => Err(fmt::Error),
            Ok(()) => Ok(()),
        }
    }
}

/// Why writing ended early.
enum Stop {
    Full,
    Failed,
}

struct Bounded<'f, 'o> {
    f: &'f mut Formatter<'o>,
    left: usize,
}

impl Bounded<'_, '_> {
    fn put(&mut self, text: impl Display) -> Result<(), Stop> {
        let full = write!(self, "{text}").is_err();
        match full {
            true if self.left == 0 => Err(Stop::Full),
            true => Err(Stop::Failed),
            false => Ok(()),
        }
    }

    fn characters(&mut self, text: &str, quote: char) -> Result<(), Stop> {
        for character in text.chars() {
            match character {
                // The other quote needs no escape.
                '\'' | '"' if character != quote => self.put(character)?,
                _ if is_invisible(character) => self.put(character.escape_unicode())?,
                _ => self.put(character.escape_debug())?,
            }
        }
        Ok(())
    }
}

impl Write for Bounded<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if text.len() > self.left {
            self.left = 0;
            return Err(fmt::Error);
        }
        self.left -= text.len();
        self.f
            .write_str(text)
            .inspect_err(|_| self.left = self.left.max(1))
    }
}

/// What would change the order of the characters around it.
fn is_invisible(character: char) -> bool {
    matches!(character, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{2069}')
}

fn write(value: &Value, out: &mut Bounded<'_, '_>, depth: u32) -> Result<(), Stop> {
    match value {
        Value::Signed(number) => out.put(number),
        Value::Unsigned(number) => out.put(number),
        Value::Float(number) => out.put(format_args!("{number:?}")),
        Value::Bool(truth) => out.put(truth),
        Value::Char(character) => {
            out.put('\'')?;
            out.characters(character.encode_utf8(&mut [0; 4]), '\'')?;
            out.put('\'')
        }
        Value::Named(name, number) => {
            out.characters(name, '"')?;
            out.put(format_args!(" ({number})"))
        }
        Value::Pointer(address) => out.put(format_args!("{address:#x}")),
        Value::Text(text, cut) => {
            out.put('"')?;
            out.characters(text, '"')?;
            out.put(if *cut { "\"…" } else { "\"" })
        }
        Value::Struct(_) if depth >= MAX_DEPTH => out.put("{…}"),
        Value::Struct(parts) => {
            out.put('{')?;
            for (index, (name, part)) in parts.iter().enumerate() {
                if index > 0 {
                    out.put(", ")?;
                }
                if !name.is_empty() {
                    out.characters(name, '"')?;
                    out.put(": ")?;
                }
                write(part, out, depth + 1)?;
            }
            out.put('}')
        }
        Value::Unreadable(address) => out.put(format_args!("<unreadable {address:#x}>")),
        Value::Unavailable => out.put("<unavailable>"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(value: Value, text: &str) {
        assert_eq!(value.to_string(), text);
    }

    fn text(text: &str, cut: bool) -> Value {
        Value::Text(text.into(), cut)
    }

    #[test]
    fn values_as_people_write_them() {
        check(Value::Unsigned(42), "42");
        check(Value::Signed(-1), "-1");
        check(Value::Float(1.0), "1.0");
        check(Value::Float(f64::NAN), "NaN");
        check(Value::Bool(true), "true");
        check(Value::Char('c'), "'c'");
        check(Value::Named("RED".into(), 2), "RED (2)");
        check(Value::Pointer(0x7f00_1234), "0x7f001234");
        check(Value::Pointer(0), "0x0");
        check(text("text", false), "\"text\"");
        check(text("tex", true), "\"tex\"…");
        check(Value::Unreadable(0), "<unreadable 0x0>");
        check(Value::Unavailable, "<unavailable>");
        let point = [
            ("x".into(), Value::Signed(1)),
            ("y".into(), Value::Signed(2)),
        ];
        check(Value::Struct(point.into()), "{x: 1, y: 2}");
        check(Value::Struct([].into()), "{}");
    }

    #[test]
    fn text_of_a_target_can_do_nothing() {
        check(
            text("a\"b\\c\n\0\u{1b}[31m'", false),
            r#""a\"b\\c\n\0\u{1b}[31m'""#,
        );
        check(Value::Char('\''), r"'\''");
        check(Value::Char('"'), "'\"'");
        check(text("\u{202e}evil", false), r#""\u{202e}evil""#);
        check(text("größe", false), "\"größe\"");
        check(Value::Named("\u{7}".into(), 1), r"\u{7} (1)");
    }

    #[test]
    fn long_values_end() {
        let long = text(&"x".repeat(100_000), false).to_string();
        assert!(
            long.len() < MAX_BYTES + 8 && long.ends_with('…'),
            "{}",
            long.len()
        );
        let part = || ("f".into(), Value::Unsigned(7));
        let wide = Value::Struct((0..10_000).map(|_| part()).collect()).to_string();
        assert!(
            wide.len() < MAX_BYTES + 8 && wide.ends_with('…'),
            "{}",
            wide.len()
        );
        let mut deep = Value::Bool(true);
        for _ in 0..1000 {
            deep = Value::Struct([("f".into(), deep)].into());
        }
        assert_eq!(
            deep.to_string().matches('{').count(),
            MAX_DEPTH as usize + 1
        );
        assert!(deep.to_string().contains("{…}"));
    }
}
