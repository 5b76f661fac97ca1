//! Regular expressions of Java -> those of the `regex` crate.
//!
//! Only what both understand in different ways is rewritten: `\Q...\E`, escaped punctuation, the
//! classes `\d`, `\s`, `\w` (ASCII in Java), the end `\Z`, and `~` in classes. What `regex` refuses
//! (look-around, references back to groups) is left for it to refuse. Possessive quantifiers, which
//! it would read as something else, are refused here.

/// The expression for `regex`.
pub(super) fn translate(java: &str) -> Result<String, String> {
    let mut out = String::with_capacity(java.len() + 16);
    let mut rest = java;
    // Classes that are open, and braces of a quantifier.
    let (mut classes, mut braces) = (0_usize, false);
    let mut quantified = false;
    while let Some(next) = rest.chars().next() {
        let (this, behind) = rest.split_at(next.len_utf8());
        rest = behind;
        let was_quantified = std::mem::take(&mut quantified);
        match next {
            '\\' => rest = escape(rest, &mut out),
            '[' => {
                classes += 1;
                // A bracket in first place is closed by the next one.
                let negated = rest.starts_with('^');
                out.push_str(if negated { "[^" } else { "[" });
                rest = &rest[usize::from(negated)..];
                if let Some(behind) = rest.strip_prefix(']') {
                    out.push_str("\\]");
                    rest = behind;
                }
            }
            ']' if classes > 0 => {
                classes -= 1;
                out.push(']');
            }
            '~' if classes > 0 => out.push_str("\\~"),
            _ if classes > 0 => out.push_str(this),
            '+' if was_quantified => {
                return Err("possessive quantifiers are not supported".to_owned());
            }
            _ => {
                quantified = match next {
                    '*' | '+' => true,
                    '?' => !was_quantified,
                    '}' => braces,
                    _ => false,
                };
                braces = next == '{' || braces && next != '}';
                out.push_str(this);
            }
        }
    }
    Ok(out)
}

/// Writes what a backslash before `rest` makes of it, and gives what is behind.
fn escape<'a>(rest: &'a str, out: &mut String) -> &'a str {
    if let Some(quoted) = rest.strip_prefix('Q') {
        let (literal, behind) = quoted.split_once("\\E").unwrap_or((quoted, ""));
        out.push_str(&regex::escape(literal));
        return behind;
    }
    let Some(next) = rest.chars().next() else {
        out.push('\\');
        return rest;
    };
    let (this, behind) = rest.split_at(next.len_utf8());
    match next {
        'd' => out.push_str("[0-9]"),
        'D' => out.push_str("[^0-9]"),
        's' => out.push_str("[ \\t\\n\\x0b\\f\\r]"),
        'S' => out.push_str("[^ \\t\\n\\x0b\\f\\r]"),
        'w' => out.push_str("[0-9A-Z_a-z]"),
        'W' => out.push_str("[^0-9A-Z_a-z]"),
        'Z' => out.push_str("\\z"),
        _ if next.is_ascii_alphanumeric() => {
            out.push('\\');
            out.push_str(this);
        }
        _ => out.push_str(&regex::escape(this)),
    }
    behind
}

#[cfg(test)]
mod tests {
    use super::*;
    use regex::Regex;

    #[test]
    fn means_the_same_as_in_java() {
        // Pattern; a text that it matches as a whole in Java, and one that it does not match.
        for (java, yes, no) in [
            ("com/a\\.b/.*", "com/a.b/C", "com/axb/C"),
            ("\\Qa.b*[\\E.+", "a.b*[x", "axb*[x"),
            ("\\Qa.b", "a.b", "axb"),
            ("Vec\\<T\\>::push", "Vec<T>::push", "VecT::push"),
            ("\\w+\\d", "ab1", "é1"),
            ("[\\w.]+", "a.b", "é"),
            ("[\\W&&[^!]]", "é", "!"),
            ("[^\\d]", "x", "5"),
            ("[]a]+", "]a", "b"),
            ("[^]a]", "b", "]"),
            ("[+*~}]+}", "*+~}}", "a}"),
            ("a{2}b+?c*?\\}+", "aabb}}", "aab"),
            ("x}+", "x}}", "x"),
            ("\\S+\\s\\S", "é b", "éb"),
            ("(?<name>a|b)+\\Z", "abab", "abc"),
            ("\\u0041\\-\\/\\#", "A-/#", "A"),
            ("(?i)foo", "FOO", "bar"),
            ("[a-c&&[^b]]", "c", "b"),
        ] {
            let rust = translate(java).unwrap();
            let regex = Regex::new(&format!("^(?:{rust})$")).unwrap();
            assert!(regex.is_match(yes), "{java} as {rust}: {yes}");
            assert!(!regex.is_match(no), "{java} as {rust}: {no}");
        }
    }

    #[test]
    fn possessive_quantifiers_are_refused() {
        for java in ["a*+", "a++", "a?+", "a{2}+", "(a|b){1,3}+c"] {
            assert!(translate(java).is_err(), "{java}");
        }
        for java in ["[*+]+", "\\*+", "\\}+", "a+?b+", "(?:a)+", "a}+"] {
            assert!(translate(java).is_ok(), "{java}");
        }
    }
}
