//! What an HQ wants traced: the regular expressions of a configuration -> yes or no for a path.
//!
//! Input: names with slashes, of what is about to be traced; a pattern has to match at their start,
//! not to their end. Patterns come from outside: their number and size are bounded, and those that
//! can't be used are named. What does not belong here: what a native function's path is.

mod pattern;

use regex::{Regex, RegexBuilder};

use super::Configuration;

/// Most patterns of a list.
const MAX_PATTERNS: usize = 256;
/// Most bytes of a pattern.
const MAX_PATTERN_BYTES: usize = 4096;
/// Most bytes of a compiled pattern, and of what a search with it may keep.
const MAX_COMPILED_BYTES: usize = 128 << 10;
/// Deepest groups of a pattern.
const MAX_NESTING: u32 = 50;
/// Characters of a pattern that a warning shows.
const SHOWN_CHARACTERS: usize = 100;

/// Inclusions and exclusions, ready to be asked. Without any, everything is admitted.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    inclusions: Vec<Regex>,
    exclusions: Vec<Regex>,
}

impl Filter {
    /// The filter of a configuration, and a warning for each pattern that it has to do without.
    pub fn new(configuration: &Configuration) -> (Filter, Vec<String>) {
        let mut warnings = Vec::new();
        let mut all = |kind, patterns: &[String]| {
            if patterns.len() > MAX_PATTERNS {
                warnings.push(format!(
                    "only the first {MAX_PATTERNS} of {} {kind}s are used",
                    patterns.len()
                ));
            }
            let mut compiled = Vec::new();
            for pattern in patterns.iter().take(MAX_PATTERNS) {
                match compile(pattern) {
                    Ok(regex) => compiled.push(regex),
                    Err(why) => {
                        warnings.push(format!("{kind} '{}' is ignored: {why}", shown(pattern)))
                    }
                }
            }
            compiled
        };
        let filter = Filter {
            inclusions: all("inclusion", &configuration.inclusions),
            exclusions: all("exclusion", &configuration.exclusions),
        };
        (filter, warnings)
    }

    /// Whether what has this path is to be traced: if an inclusion matches at its start, or no
    /// exclusion does.
    pub fn admits(&self, path: &str) -> bool {
        // If there is a match at the start, the leftmost one is there.
        let begins = |regex: &Regex| regex.find(path).is_some_and(|found| found.start() == 0);
        self.is_trivial()
            || self.inclusions.iter().any(begins)
            || !self.exclusions.iter().any(begins)
    }

    /// Whether it admits everything, so that paths need not be made to ask it.
    pub fn is_trivial(&self) -> bool {
        self.exclusions.is_empty()
    }
}

fn compile(java: &str) -> Result<Regex, String> {
    if java.len() > MAX_PATTERN_BYTES {
        return Err(format!("it has more than {MAX_PATTERN_BYTES} bytes"));
    }
    let pattern = pattern::translate(java)?;
    RegexBuilder::new(&pattern)
        .size_limit(MAX_COMPILED_BYTES)
        .dfa_size_limit(MAX_COMPILED_BYTES)
        .nest_limit(MAX_NESTING)
        .build()
        .map_err(|error| {
            // The lines before repeat the pattern.
            let error = error.to_string();
            let last = error.lines().last().unwrap_or_default();
            last.trim_start_matches("error: ").to_owned()
        })
}

fn shown(pattern: &str) -> String {
    let mut shown: String = pattern
        .chars()
        .take(SHOWN_CHARACTERS)
        .flat_map(char::escape_debug)
        .collect();
    if pattern.chars().nth(SHOWN_CHARACTERS).is_some() {
        shown.push('…');
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(inclusions: &[&str], exclusions: &[&str]) -> (Filter, Vec<String>) {
        let owned = |patterns: &[&str]| patterns.iter().map(|&p| p.to_owned()).collect();
        Filter::new(&Configuration {
            inclusions: owned(inclusions),
            exclusions: owned(exclusions),
            ..Configuration::default()
        })
    }

    #[test]
    fn patterns_match_at_the_start_and_inclusions_win() {
        let (filter, warnings) = filter(&["libshop.so/cart/.*"], &["libshop.so/", "libc.*/mem"]);
        assert_eq!(warnings, [""; 0]);
        assert!(!filter.is_trivial());
        for (path, admitted) in [
            ("libshop.so/cart/Cart/add", true),
            ("libshop.so/cart", false),
            ("libshop.so/main", false),
            ("bin/libshop.so/main", true),
            ("libc.so.6/memcpy", false),
            ("libc.so.6/strlen", true),
            ("", true),
        ] {
            assert_eq!(filter.admits(path), admitted, "{path}");
        }
    }

    #[test]
    fn without_exclusions_everything_is_admitted() {
        for (filter, _) in [
            filter(&[], &[]),
            filter(&["a"], &[]),
            filter(&["a"], &["(?=b)"]),
        ] {
            assert!(filter.is_trivial());
            assert!(filter.admits("b"));
        }
    }

    #[test]
    fn an_alternative_is_tried_at_the_start_only() {
        let (filter, _) = filter(&[], &["x|b$", "(?:)q|aa"]);
        assert!(filter.admits("ab") && filter.admits("aq"));
        assert!(!filter.admits("b") && !filter.admits("aab") && !filter.admits("xy"));
    }

    #[test]
    fn what_cannot_be_used_is_named() {
        let long = "a".repeat(MAX_PATTERN_BYTES + 1);
        let bad = [
            "ok",
            "a(?=b)",
            "(",
            "(.{1000}){1000}",
            "a*+b",
            "\\1\u{1b}",
            &long,
        ];
        let (filter, warnings) = filter(&["\\"], &bad);
        assert_eq!(warnings.len(), 7, "{warnings:#?}");
        assert_eq!(
            warnings[0],
            "inclusion '\\\\' is ignored: incomplete escape sequence, reached end of pattern \
             prematurely"
        );
        assert!(warnings[1].starts_with("exclusion 'a(?=b)' is ignored: look-around"));
        assert!(
            warnings[3].contains("exceeds size limit"),
            "{}",
            warnings[3]
        );
        assert!(warnings[4].contains("possessive"), "{}", warnings[4]);
        assert!(warnings[5].contains("\\\\1\\u{1b}"), "{}", warnings[5]);
        assert!(warnings[6].contains("a…' is ignored: it has more than"));
        assert!(!filter.admits("ok") && filter.admits("ab"));
        assert!(warnings.iter().all(|warning| !warning.contains('\n')));
        let many = vec!["a"; MAX_PATTERNS + 1];
        assert_eq!(
            super::tests::filter(&[], &many).1,
            ["only the first 256 of 257 exclusions are used"]
        );
    }
}
