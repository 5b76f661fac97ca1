//! Values of a program as one line of text.
//!
//! Input: values of arguments and results, with the names of the parameters; output: `n=3,
//! name="abc"`. Text is quoted and escaped, so that no value can be taken for another; addresses
//! that could not be read say so.

use std::fmt::Write;

use crate::model::*;

/// A value as text.
pub fn value_text(value: &Value) -> String {
    let mut text = String::new();
    write_value(&mut text, value);
    text
}

/// Values with the names of the function's parameters.
pub fn arguments_text(values: &[Value], function: FunctionId, tables: &Tables) -> String {
    let mut text = String::new();
    for (index, value) in values.iter().enumerate() {
        if index > 0 {
            text.push_str(", ");
        }
        if let Some((name, _)) = parameter(index, function, tables) {
            text.push_str(name);
            text.push('=');
        }
        write_value(&mut text, value);
    }
    text
}

/// Name of a parameter, and its type if that is known.
pub fn parameter(
    index: usize,
    function: FunctionId,
    tables: &Tables,
) -> Option<(&str, Option<&str>)> {
    let parameter = tables.traced(function)?.parameters.get(index)?;
    let kind = parameter.kind.map(|kind| tables.string(kind));
    Some((tables.string(parameter.name), kind))
}

fn write_value(text: &mut String, value: &Value) {
    // Writing to a string does not fail.
    let _ = match value {
        Value::Signed(value) => write!(text, "{value}"),
        Value::Unsigned(value) => write!(text, "{value}"),
        Value::Float(value) => write!(text, "{value}"),
        Value::Bool(value) => write!(text, "{value}"),
        Value::Char(value) => write!(text, "{value:?}"),
        Value::Named(name, value) if name.is_empty() => write!(text, "{value}"),
        Value::Named(name, _) => write!(text, "{name}"),
        Value::Pointer(0) => write!(text, "null"),
        Value::Pointer(value) => write!(text, "{value:#x}"),
        Value::Text(value, false) => write!(text, "{value:?}"),
        Value::Text(value, true) => write!(text, "{value:?}…"),
        Value::Unreadable(value) => write!(text, "[unreadable {value:#x}]"),
        Value::Unavailable => write!(text, "[not available]"),
        Value::Struct(parts) => {
            text.push('{');
            for (index, (name, value)) in parts.iter().enumerate() {
                if index > 0 {
                    text.push_str(", ");
                }
                text.push_str(name);
                text.push('=');
                write_value(text, value);
            }
            text.push('}');
            Ok(())
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_can_be_told_apart() {
        for (value, text) in [
            (Value::Signed(-1), "-1"),
            (Value::Pointer(0), "null"),
            (Value::Pointer(0x7f00), "0x7f00"),
            (Value::Unreadable(16), "[unreadable 0x10]"),
            (Value::Text("a\"\n".into(), true), "\"a\\\"\\n\"…"),
            (Value::Char('\''), "'\\''"),
            (Value::Named("BLUE".into(), 3), "BLUE"),
            (Value::Named("".into(), 3), "3"),
            (Value::Float(0.5), "0.5"),
            (
                Value::Struct(
                    [
                        ("x".into(), Value::Bool(true)),
                        ("y".into(), Value::Unavailable),
                    ]
                    .into(),
                ),
                "{x=true, y=[not available]}",
            ),
        ] {
            assert_eq!(value_text(&value), text);
        }
    }

    #[test]
    fn arguments_have_names_where_they_are_known() {
        let mut tables = Tables::default();
        let function = FunctionId::from_index(0);
        let name = tables.intern_string("n").0;
        tables.set_traced(
            function,
            Traced {
                kind: TracedKind::Function,
                entry_offset: 0,
                returns: ReturnMode::None,
                cost_ns: 0,
                parameters: [Parameter { name, kind: None }].into(),
                result: None,
            },
        );
        let values = [Value::Signed(1), Value::Signed(2)];
        assert_eq!(arguments_text(&values, function, &tables), "n=1, 2");
    }
}
