//! Formats of error reports: a format and parameters -> text for people.
//!
//! `{0}` is the first parameter, `{0,number,percent}` the same in another form, which matters of numbers only. Between
//! apostrophes everything is as it is, two of them are one. A place without a parameter stays. Source: "TCF Services:
//! Error Report Format", which has the formats of Java's `MessageFormat`; grouped digits, which those depend on a
//! language for, are not written. What does not belong here: what a report is (`wire::tcf`).

use serde_json::Value;

/// The text.
pub(super) fn formatted(format: &str, parameters: &[Value]) -> String {
    let mut text = String::new();
    let mut rest = format;
    let mut is_quoted = false;
    while let Some(first) = rest.chars().next() {
        let behind = &rest[first.len_utf8()..];
        match first {
            '\'' => match behind.strip_prefix('\'') {
                Some(behind) => {
                    text.push('\'');
                    rest = behind;
                    continue;
                }
                None => is_quoted = !is_quoted,
            },
            '{' if !is_quoted => {
                if let Some((place, behind)) = behind.split_once('}') {
                    match put(place, parameters) {
                        Some(parameter) => text += &parameter,
                        None => text += &rest[..place.len() + 2],
                    }
                    rest = behind;
                    continue;
                }
                text.push('{');
            }
            first => text.push(first),
        }
        rest = behind;
    }
    text
}

/// What stands in a place: `0`, `0,number,integer`.
fn put(place: &str, parameters: &[Value]) -> Option<String> {
    let mut parts = place.split(',').map(str::trim);
    let index: usize = parts.next()?.parse().ok()?;
    let (kind, style) = (parts.next(), parts.next());
    Some(match parameters.get(index)? {
        Value::String(text) => text.clone(),
        Value::Number(number) => match (kind, style, number.as_f64()) {
            (Some("number"), Some("percent"), Some(number)) => {
                format!("{}%", (number * 100.0).round_ties_even())
            }
            (Some("number"), Some("integer"), Some(whole)) if number.is_f64() => {
                whole.round_ties_even().to_string()
            }
            _ => number.to_string(),
        },
        // True, false, null; others have no form of their own.
        other => other.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn parameters_take_their_places() {
        let parameters = [json!(0.5), json!("a\u{3}c")];
        for (format, expected) in [
            ("", ""),
            ("{0}", "0.5"),
            ("{0,number}", "0.5"),
            ("{0,number,integer}", "0"),
            ("{0,number,percent}", "50%"),
            ("{1}", "a\u{3}c"),
            ("{0} abcde {1}", "0.5 abcde a\u{3}c"),
            ("{1} '' {0}", "a\u{3}c ' 0.5"),
            ("{1} 'abcde{}' {1}", "a\u{3}c abcde{} a\u{3}c"),
            ("'{0}' it''s {2} {x} {", "{0} it's {2} {x} {"),
        ] {
            assert_eq!(formatted(format, &parameters), expected, "{format}");
        }
        let others = [json!(4), json!(null), json!(u64::MAX)];
        assert_eq!(
            formatted("{0,number,percent} {1} {2}", &others),
            "400% null 18446744073709551615"
        );
        assert_eq!(formatted("{0,number,integer}", &others), "4");
    }
}
