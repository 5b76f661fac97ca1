//! Values as packets carry them: grips, and the pool of the objects that they refer to.
//!
//! A number, text or object of a program -> JSON. Integers that a double does not hold exactly are text; an object is
//! `{type: "object", objectId}`, its descriptor is in the pool at that index. What does not belong here: what types a
//! program's values have.

use serde_json::{Map, Value as Json, json};

/// Text of so many characters is a long string.
pub const LONG_STRING: usize = 10_000;
/// What of a long string is there at once.
const INITIAL: usize = 1_000;
/// The largest integer up to which a double holds all.
const EXACT: u128 = 1 << 53;

/// Grips, and descriptors of the objects among them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Values {
    values: Vec<Json>,
    pool: Vec<Json>,
}

impl Values {
    /// Appends a grip that was made by one of the others here.
    pub fn push(&mut self, grip: Json) {
        self.values.push(grip);
    }

    /// Nothing: what a function without a result returns.
    pub fn undefined() -> Json {
        json!({ "type": "undefined" })
    }

    /// The address of nothing.
    pub fn null() -> Json {
        json!({ "type": "null" })
    }

    /// An integer.
    pub fn integer(number: i128) -> Json {
        match (number.unsigned_abs() <= EXACT, i64::try_from(number)) {
            (true, Ok(number)) => number.into(),
            _ => number.to_string().into(),
        }
    }

    /// A floating-point number.
    pub fn float(number: f64) -> Json {
        let kind = match number {
            number if number.is_nan() => "NaN",
            f64::INFINITY => "Infinity",
            f64::NEG_INFINITY => "-Infinity",
            0.0 if number.is_sign_negative() => "-0",
            number => return json!(number),
        };
        json!({ "type": kind })
    }

    /// Text.
    pub fn text(text: &str) -> Json {
        // As many bytes at least as characters.
        if text.len() < LONG_STRING {
            return text.into();
        }
        match text.chars().count() {
            length @ LONG_STRING.. => {
                let initial: String = text.chars().take(INITIAL).collect();
                json!({ "type": "longString", "initial": initial, "length": length })
            }
            _ => text.into(),
        }
    }

    /// The beginning of a text of which nobody knows how long it is.
    pub fn cut_text(initial: &str) -> Json {
        json!({ "type": "longString", "initial": initial, "length": null })
    }

    /// An object with these properties, which goes into the pool.
    pub fn object(&mut self, class: &str, properties: Vec<(String, Json)>) -> Json {
        let own: Map<String, Json> = properties
            .into_iter()
            .map(|(name, value)| {
                let property = json!({
                    "enumerable": true, "configurable": false, "writable": false, "value": value,
                });
                (name, property)
            })
            .collect();
        let index = self.pool.len();
        self.pool.push(json!({
            "class": class,
            "extensible": false,
            "frozen": true,
            "sealed": true,
            "prototype": Values::null(),
            "ownProperties": own,
            "safeGetterValues": {},
        }));
        json!({ "type": "object", "objectId": index })
    }

    /// As the arguments of a function.
    pub(super) fn arguments(&self) -> Json {
        json!({ "values": self.values, "objectPool": self.pool })
    }

    /// As what a function has returned, thrown or yielded: the first value.
    pub(super) fn completion(&self) -> Json {
        let value = self.values.first().cloned();
        let value = value.unwrap_or_else(Values::undefined);
        json!({ "value": value, "objectPool": self.pool })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_exact_or_text() {
        let edge = 1_i128 << 53;
        for (number, expected) in [
            (0, json!(0)),
            (-1, json!(-1)),
            (edge, json!(9_007_199_254_740_992_i64)),
            (-edge, json!(-9_007_199_254_740_992_i64)),
            (edge + 1, json!("9007199254740993")),
            (-edge - 1, json!("-9007199254740993")),
            (i128::from(u64::MAX), json!("18446744073709551615")),
        ] {
            assert_eq!(Values::integer(number), expected);
        }
    }

    #[test]
    fn what_json_has_no_number_for_is_a_grip() {
        for (number, expected) in [
            (1.5, json!(1.5)),
            (0.0, json!(0.0)),
            (-0.0, json!({"type": "-0"})),
            (f64::NAN, json!({"type": "NaN"})),
            (f64::INFINITY, json!({"type": "Infinity"})),
            (f64::NEG_INFINITY, json!({"type": "-Infinity"})),
        ] {
            assert_eq!(Values::float(number), expected);
        }
        assert_eq!(Values::null(), json!({"type": "null"}));
        assert_eq!(Values::undefined(), json!({"type": "undefined"}));
    }

    #[test]
    fn long_text_is_there_in_part() {
        assert_eq!(Values::text("größe"), json!("größe"));
        let short = "ä".repeat(9_999);
        assert_eq!(Values::text(&short), json!(short));
        let long = "ä".repeat(10_000);
        let expected =
            json!({"type": "longString", "initial": "ä".repeat(1_000), "length": 10_000});
        assert_eq!(Values::text(&long), expected);
    }

    #[test]
    fn objects_are_in_the_pool() {
        let mut values = Values::default();
        let inner = values.object("Inner", vec![("x".into(), json!(1))]);
        let outer = values.object("Outer", vec![("inner".into(), inner)]);
        values.push(json!(true));
        values.push(outer);
        let said = values.arguments();
        assert_eq!(
            said["values"],
            json!([true, {"type": "object", "objectId": 1}])
        );
        assert_eq!(
            said["objectPool"][1]["ownProperties"]["inner"]["value"],
            json!({"type": "object", "objectId": 0})
        );
        assert_eq!(
            said["objectPool"][0],
            json!({
                "class": "Inner", "extensible": false, "frozen": true, "sealed": true,
                "prototype": {"type": "null"}, "safeGetterValues": {},
                "ownProperties": {"x": {"enumerable": true, "configurable": false, "writable": false, "value": 1}},
            })
        );
    }
}
