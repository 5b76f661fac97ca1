//! Text from outside: what is shown of it, and the durations and globs that people write.
//!
//! A name of a target -> the same without what a terminal would act upon; `1.5s` -> a [`Duration`]; `std::*` -> a
//! [`Glob`]; an error and its causes -> a line. What does not belong here: how numbers are shown.

mod glob;

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::error::Error;
use std::hash::RandomState;
use std::time::Duration;

pub use glob::Glob;

/// By texts that others choose: hashed with a key, so that they can't choose such that meet in one place. Its order is
/// another one each time.
pub type TextMap<K, V> = HashMap<K, V, RandomState>;
/// See [`TextMap`].
pub type TextSet<K> = HashSet<K, RandomState>;

/// Arguments, each with a zero behind it, as one line for people.
pub fn command_line(arguments: &str) -> String {
    arguments.trim_end_matches('\0').replace('\0', " ")
}

/// The number of a port, in digits alone.
pub fn parse_port(text: &str) -> Option<u16> {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| is_number)
}

/// Longer than anybody records. Times are counted in 64 bits of nanoseconds, from the start of the machine.
const MAX_DURATION: Duration = Duration::from_secs(366 * 24 * 3600);

/// Whether a character could reorder the line that it is shown in.
pub fn reorders(c: char) -> bool {
    matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// An error and its causes, joined by colons, in one line; a cause that the text already tells is left out.
pub fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = error.to_string();
        if !text.contains(&next) {
            text.push_str(": ");
            text.push_str(&next);
        }
        cause = error.source();
    }
    // Some libraries put line breaks into their errors.
    text.split(['\n', '\r'])
        .map(str::trim)
        .filter(|l| !l.is_empty())
        .collect::<Vec<_>>()
        .join(" ")
}

/// `text` without what could steer a terminal or reorder a line: such characters are written as escapes.
pub fn printable(text: &str) -> Cow<'_, str> {
    let bad = |c: char| c.is_control() || reorders(c);
    if !text.contains(bad) {
        return Cow::Borrowed(text);
    }
    let mut clean = String::with_capacity(text.len());
    for c in text.chars() {
        match bad(c) {
            true => clean.extend(c.escape_default()),
            false => clean.push(c),
        }
    }
    Cow::Owned(clean)
}

/// `10`, `2.5s`, `150ms`, `10m`, `1h`, `2d`: seconds if there is no unit.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("'{text}' is no duration; write 10, 2.5s, 150ms, 10m or 1h");
    let split = text
        .find(|c: char| c.is_ascii_alphabetic())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let number: f64 = number.parse().map_err(|_| wrong())?;
    let seconds = match unit {
        "ns" => number / 1e9,
        "us" => number / 1e6,
        "ms" => number / 1e3,
        "" | "s" => number,
        "m" | "min" => number * 60.0,
        "h" => number * 3600.0,
        "d" => number * 86_400.0,
        _ => return Err(wrong()),
    };
    let duration = Duration::try_from_secs_f64(seconds).map_err(|_| wrong())?;
    match duration > MAX_DURATION {
        true => Err(format!("'{text}' is too long; a year is the most")),
        false => Ok(duration),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_steers_a_terminal() {
        assert_eq!(printable("a\u{1b}[2Jb\n"), "a\\u{1b}[2Jb\\n");
        assert_eq!(printable("a\u{202e}b"), "a\\u{202e}b");
        assert!(matches!(printable("größe<T>"), Cow::Borrowed(_)));
    }

    #[test]
    fn durations() {
        for (text, ns) in [
            ("10", 10_000_000_000),
            ("2.5s", 2_500_000_000),
            ("150ms", 150_000_000),
            ("20us", 20_000),
            ("10m", 600_000_000_000),
            ("1h", 3_600_000_000_000),
            ("2d", 172_800_000_000_000),
        ] {
            assert_eq!(parse_duration(text), Ok(Duration::from_nanos(ns)), "{text}");
        }
        for wrong in ["", "s", "-1s", "1x", "nan", "inf", "1e30", "400d", "1 s"] {
            assert!(parse_duration(wrong).is_err(), "{wrong}");
        }
    }
}
