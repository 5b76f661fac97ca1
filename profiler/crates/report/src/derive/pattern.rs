//! Names to look for: a part of the name, or a glob for the whole of it.
//!
//! Text of a flag -> whether a name matches. With `*` or `?` in it, it is a glob. Names in Rust and Go are full of
//! brackets (`<impl [T]>::iter`): those of a glob are tried as classes of characters and as they are. No regular
//! expressions: names are full of their metacharacters too.

use profiler_model::text::Glob;

/// What a name must look like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pattern {
    text: String,
    /// Any of these; none: the text is a part of the name.
    globs: Vec<Glob>,
}

impl Pattern {
    /// From the text of a flag.
    pub(crate) fn new(text: &str) -> Pattern {
        let mut globs = Vec::new();
        if text.contains(['*', '?']) {
            globs.push(Glob::plain(text));
            if text.contains(['[', '\\']) {
                globs.extend(Glob::new(text));
            }
        }
        Pattern {
            text: text.to_owned(),
            globs,
        }
    }

    /// Whether a name is the text itself (a C++ name may have a `*` in it).
    pub(crate) fn is_exactly(&self, name: &str) -> bool {
        self.text == name
    }

    /// Whether a name matches.
    pub(crate) fn matches(&self, name: &str) -> bool {
        match self.globs.as_slice() {
            [] => name.contains(&self.text),
            globs => globs.iter().any(|glob| glob.matches(name)),
        }
    }
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
            ("ksys_[rw]*", "ksys_read", true),
            ("ksys_[rw]*", "ksys_open", false),
            ("<impl [T]>::*", "<impl [T]>::iter", true),
            ("f(char\\*)*", "f(char*)", true),
            ("[z-a]*", "[z-a]b", true),
            ("[rw]", "ksys_read", false),
            ("[T]", "<impl [T]>::iter", true),
        ] {
            assert_eq!(
                Pattern::new(pattern).matches(name),
                expected,
                "{pattern} {name}"
            );
        }
    }
}
