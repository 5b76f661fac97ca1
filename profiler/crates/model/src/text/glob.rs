//! Globs over names: `*`, `?`, `[a-z]`, `[!a-z]`, and `\` before what is meant as it is.
//!
//! Text of a flag -> whether a name matches, the whole of it. A `[` that no `]` closes, and `[]`,
//! stand for themselves: names in C++ and Go have them. `*` matches `/` and `::` as well. [`Glob::plain`] knows `*`
//! and `?` alone. What does not belong here: parts of names, regular expressions.

use std::fmt;

/// A glob, compiled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Glob {
    text: Box<str>,
    tokens: Vec<Token>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    Char(char),
    Any,
    Many,
    Class {
        inverted: bool,
        ranges: Vec<(char, char)>,
    },
}

impl Glob {
    /// Compiles a glob; `Err` is a range that ends before it begins.
    pub fn new(text: &str) -> Result<Glob, String> {
        let mut tokens = Vec::new();
        let mut rest = text.chars();
        while let Some(char) = rest.next() {
            tokens.push(match char {
                '*' => Token::Many,
                '?' => Token::Any,
                '\\' => Token::Char(rest.next().unwrap_or('\\')),
                '[' => match class(rest.as_str())? {
                    Some((class, len)) => {
                        rest = rest.as_str()[len..].chars();
                        class
                    }
                    None => Token::Char('['),
                },
                other => Token::Char(other),
            });
        }
        Ok(Glob {
            text: text.into(),
            tokens,
        })
    }

    /// Compiles a glob in which only `*` and `?` stand for something else.
    pub fn plain(text: &str) -> Glob {
        let token = |char| match char {
            '*' => Token::Many,
            '?' => Token::Any,
            other => Token::Char(other),
        };
        Glob {
            text: text.into(),
            tokens: text.chars().map(token).collect(),
        }
    }

    /// Whether all of `name` matches, or is the very text.
    pub fn matches(&self, name: &str) -> bool {
        *self.text == *name || self.fits(name)
    }

    /// On a mismatch only the last `*` is tried again, so it is quadratic at worst.
    fn fits(&self, name: &str) -> bool {
        let mut tokens = 0;
        let mut rest = name.chars();
        let mut star: Option<(usize, std::str::Chars<'_>)> = None;
        loop {
            let token = self.tokens.get(tokens);
            if token == Some(&Token::Many) {
                tokens += 1;
                star = Some((tokens, rest.clone()));
                continue;
            }
            match (token, rest.next()) {
                (None, None) => return true,
                (Some(token), Some(char)) if token.matches(char) => tokens += 1,
                _ => {
                    let Some((after, from)) = &mut star else {
                        return false;
                    };
                    if from.next().is_none() {
                        return false;
                    }
                    tokens = *after;
                    rest = from.clone();
                }
            }
        }
    }

    /// The text without what stands for others, to look for similar names.
    pub fn literal(&self) -> String {
        let chars = self.tokens.iter().filter_map(|token| match token {
            Token::Char(char) => Some(*char),
            _ => None,
        });
        chars.collect()
    }

    /// The only name that matches, if there is but one.
    pub fn exact(&self) -> Option<String> {
        let is_char = |token: &Token| matches!(token, Token::Char(_));
        self.tokens.iter().all(is_char).then(|| self.literal())
    }

    /// The longest run of letters and digits that each name must have which matches.
    pub fn needle(&self) -> String {
        let runs = self.tokens.split(
            |token| !matches!(token, Token::Char(char) if char.is_alphanumeric() || *char == '_'),
        );
        let longest = runs.max_by_key(|run| run.len()).unwrap_or_default();
        let chars = longest.iter().filter_map(|token| match token {
            Token::Char(char) => Some(*char),
            _ => None,
        });
        chars.collect()
    }

    /// Whether it is the same for all names.
    pub fn is_everything(&self) -> bool {
        !self.tokens.is_empty() && self.tokens.iter().all(|token| *token == Token::Many)
    }
}

impl fmt::Display for Glob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.text.fmt(f)
    }
}

impl Token {
    fn matches(&self, char: char) -> bool {
        match self {
            Token::Char(own) => *own == char,
            Token::Any => true,
            Token::Many => false,
            Token::Class { inverted, ranges } => {
                let inside = ranges
                    .iter()
                    .any(|&(low, high)| (low..=high).contains(&char));
                inside != *inverted
            }
        }
    }
}

/// The class that `text` begins with (behind the bracket) and its length; none if it is no class.
fn class(text: &str) -> Result<Option<(Token, usize)>, String> {
    let inverted = text.starts_with(['!', '^']);
    let body = &text[usize::from(inverted)..];
    let Some(end) = body.find(']').filter(|&end| end > 0) else {
        return Ok(None);
    };
    let chars: Vec<char> = body[..end].chars().collect();
    let mut ranges = Vec::new();
    let mut at = 0;
    while let Some(&low) = chars.get(at) {
        let high = match chars.get(at + 1..at + 3) {
            Some(&['-', high]) => {
                at += 2;
                high
            }
            _ => low,
        };
        if low > high {
            return Err(format!("the range {low}-{high} ends before it begins"));
        }
        ranges.push((low, high));
        at += 1;
    }
    let len = usize::from(inverted) + end + 1;
    Ok(Some((Token::Class { inverted, ranges }, len)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn globs() {
        for (glob, name, expected) in [
            ("malloc", "malloc", true),
            ("malloc", "mallocs", false),
            ("mal*", "malloc", true),
            ("*", "", true),
            ("?", "", false),
            ("?", "ö", true),
            ("a*b*c", "aXbYbZc", true),
            ("a*b*c", "aXbYbZ", false),
            ("[a-c]x", "bx", true),
            ("[!a-c]x", "bx", false),
            ("[^a-c]x", "dx", true),
            ("[ab-]", "-", true),
            ("operator[]", "operator[]", true),
            ("operator[]", "operator", false),
            ("operator*", "operator*", true),
            ("operator\\*", "operator*", true),
            ("operator\\*", "operator+", false),
            ("main.Map[go.shape.int]", "main.Map[go.shape.int]", true),
            ("a[", "a[", true),
            ("ns::*", "ns::a::b(int)", true),
            ("**", "abc", true),
        ] {
            assert_eq!(
                Glob::new(glob).unwrap().matches(name),
                expected,
                "{glob} {name}"
            );
        }
        assert!(Glob::new("[z-a]").is_err());
    }

    #[test]
    fn a_plain_glob_has_no_classes() {
        for (glob, name, expected) in [
            ("<impl [T]>::*", "<impl [T]>::iter", true),
            ("<impl [T]>::*", "<impl T>::iter", false),
            ("a\\?", "a\\b", true),
        ] {
            let plain = Glob::plain(glob);
            assert_eq!(plain.matches(name), expected, "{glob} {name}");
        }
    }

    #[test]
    fn what_a_match_must_have() {
        for (glob, needle) in [
            ("ns::handle_*", "handle_"),
            ("*", ""),
            ("a?bcd[e]f", "bcd"),
            ("", ""),
        ] {
            assert_eq!(Glob::new(glob).unwrap().needle(), needle);
        }
    }

    proptest! {
        #[test]
        fn a_name_with_holes_matches(name in "[a-z:<>]{0,20}", hole in 0usize..20, len in 0usize..20) {
            let from = hole.min(name.len());
            let to = (from + len).min(name.len());
            let glob = format!("{}*{}", &name[..from], &name[to..]);
            prop_assert!(Glob::new(&glob).unwrap().matches(&name));
        }

        #[test]
        fn nothing_panics_and_escapes_are_exact(text in "\\PC{0,30}", name in "\\PC{0,30}") {
            if let Ok(glob) = Glob::new(&text) {
                let _ = glob.matches(&name);
                prop_assert!(glob.matches(&text));
                if glob.matches(&name) {
                    prop_assert!(name.contains(&glob.needle()));
                }
            }
            let escaped: String = text.chars().flat_map(|char| ['\\', char]).collect();
            let glob = Glob::new(&escaped).unwrap();
            prop_assert!(glob.matches(&text));
            prop_assert_eq!(glob.matches(&name), name == text || name == escaped);
        }
    }
}
