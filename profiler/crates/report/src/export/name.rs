//! Names as text formats can carry them.
//!
//! Input: names from symbol tables and processes, which may hold anything; output: names without
//! the characters that folded stacks, XML and terminals take for structure. Every change is listed
//! in docs/formats/folded.md.

use std::borrow::Cow;

use profiler_model::text::reorders;

/// What stands for an empty name.
pub(super) const UNNAMED: &str = "[unnamed]";

/// A name that can be a frame of a folded stack.
pub(super) fn frame(name: &str) -> Cow<'_, str> {
    let name = text(name);
    if !name.contains(';') && !reads_as_count(&name) && !begins_comment(&name) {
        return name;
    }
    let mut name = name.replace(';', ":");
    // `a 12` at the end of a stack would read as the first count of two.
    if reads_as_count(&name)
        && let Some(space) = name.rfind(' ')
    {
        name.replace_range(space..=space, "_");
    }
    if begins_comment(&name) {
        name.replace_range(1..name.len().min(2), "_");
    }
    Cow::Owned(name)
}

/// Text on one line: no control characters (they are not valid in XML, and move cursors), none that reorder what is shown, no
/// space at the ends, never empty.
pub(super) fn text(text: &str) -> Cow<'_, str> {
    let text = text.trim();
    if text.is_empty() {
        return Cow::Borrowed(UNNAMED);
    }
    if text.chars().all(|c| plain(c) == c) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(text.chars().map(plain).collect())
}

fn plain(c: char) -> char {
    match c {
        c if c.is_whitespace() => ' ',
        '\u{fffe}' | '\u{ffff}' => char::REPLACEMENT_CHARACTER,
        c if c.is_control() || reorders(c) => char::REPLACEMENT_CHARACTER,
        c => c,
    }
}

fn reads_as_count(name: &str) -> bool {
    name.rsplit_once(' ')
        .is_some_and(|(_, last)| last.bytes().all(|b| b.is_ascii_digit() || b == b'.'))
}

/// Whether a line that starts with this name is a comment: `# ` begins one, and behind a name of the whole
/// line comes a space.
fn begins_comment(name: &str) -> bool {
    name == "#" || name.starts_with("# ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structure_is_taken_out_of_names() {
        for (name, expect) in [
            ("operator new(unsigned long)", "operator new(unsigned long)"),
            ("Ljava/util/Map;.get", "Ljava/util/Map:.get"),
            ("a\nb\tc\u{2028}d", "a b c d"),
            ("\u{1b}[31m\u{0}\u{ffff}", "\u{fffd}[31m\u{fffd}\u{fffd}"),
            ("\u{202e}cod.exe", "\u{fffd}cod.exe"),
            ("worker 12", "worker_12"),
            ("worker 1 2.5", "worker 1_2.5"),
            ("12", "12"),
            ("# pool", "#_pool"),
            ("#private", "#private"),
            ("#", "#_"),
            (" # ", "#_"),
            ("#;", "#:"),
            (" \n", UNNAMED),
            ("", UNNAMED),
            (";", ":"),
        ] {
            assert_eq!(frame(name), expect, "{name:?}");
        }
    }
}
