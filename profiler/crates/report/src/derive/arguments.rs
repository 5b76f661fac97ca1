//! Arguments with the names of their parameters.
//!
//! Input: values in the order of a traced function's parameters; output: `n=3, name="abc"`. How a
//! value is written belongs to the model.

use profiler_model::*;

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
        text += &value.to_string();
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

#[cfg(test)]
mod tests {
    use super::*;

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
                line: 0,
                parameters: [Parameter { name, kind: None }].into(),
                result: None,
            },
        );
        let values = [Value::Signed(1), Value::Signed(2)];
        assert_eq!(arguments_text(&values, function, &tables), "n=1, 2");
    }
}
