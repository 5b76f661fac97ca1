//! Names to look for: a part of the name, or a glob with `*` and `?` for the whole of it.
//!
//! Input: text of a flag; output: whether a name matches. No regular expressions: names in C++ and
//! Rust are full of their metacharacters.

/// What a name must look like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pattern {
    text: String,
    glob: bool,
}

impl Pattern {
    /// From the text of a flag.
    pub(crate) fn new(text: &str) -> Pattern {
        Pattern {
            text: text.to_owned(),
            glob: text.contains(['*', '?']),
        }
    }

    /// Whether a name is the text itself (a C++ name may have a `*` in it).
    pub(crate) fn is_exactly(&self, name: &str) -> bool {
        self.text == name
    }

    /// Whether a name matches.
    pub(crate) fn matches(&self, name: &str) -> bool {
        match self.glob {
            true => self.is_exactly(name) || glob(&self.text, name),
            false => name.contains(&self.text),
        }
    }
}

/// Matches bytes; on a mismatch only the last `*` is tried again, so it is quadratic at worst.
fn glob(pattern: &str, name: &str) -> bool {
    let (pattern, name) = (pattern.as_bytes(), name.as_bytes());
    let (mut p, mut n) = (0, 0);
    let mut star = None;
    while n < name.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, n));
                p += 1;
            }
            Some(&c) if c == b'?' || c == name[n] => {
                p += 1;
                n += 1;
            }
            _ => match star {
                Some((star_p, star_n)) => {
                    star = Some((star_p, star_n + 1));
                    p = star_p + 1;
                    n = star_n + 1;
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|&c| c == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_and_globs() {
        for (pattern, name, expected) in [
            ("read", "ksys_read", true),
            ("read", "ksys_write", false),
            ("ksys_*", "ksys_read", true),
            ("*_read", "ksys_read", true),
            ("*s*a*", "ksys_read", true),
            ("ksys", "ksys", true),
            ("sys_*", "ksys_read", false),
            ("k?ys_read", "ksys_read", true),
            ("operator*", "operator*", true),
            ("f(char*)", "f(char*)", true),
            ("*", "", true),
            ("?", "", false),
        ] {
            assert_eq!(
                Pattern::new(pattern).matches(name),
                expected,
                "{pattern} {name}"
            );
        }
    }
}
