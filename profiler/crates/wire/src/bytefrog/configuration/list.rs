//! Texts of a list, whatever class of lists it is: a value of an object stream -> strings.
//!
//! Java's lists write their elements behind their fields (`ArrayList`, `LinkedList`, lists of
//! `List.of`), have them in an array (`Arrays.asList`, `Vector`), in a field (`singletonList`), or
//! have a list in a field (unmodifiable ones, Scala's wrappers). A list is read by that shape instead of
//! by its name. What does not belong here: what the texts mean.

use std::collections::HashSet;

use super::super::text;
use super::ConfigurationError;
use super::stream::{Handled, Stream, Value};

/// Deepest lists in fields of lists.
const MAX_WRAPPERS: usize = 8;
/// Most texts of a list, and bytes of them all: references make much of few bytes.
const MAX_TEXTS: usize = 1 << 16;
const MAX_BYTES: usize = 4 << 20;

/// The texts of the list `value`, the field of the name; none of a null.
pub(super) fn texts(
    stream: &Stream<'_>,
    field: &'static str,
    value: Value,
) -> Result<Vec<String>, ConfigurationError> {
    let mut list = List {
        stream,
        field,
        seen: HashSet::new(),
        bytes: 0,
        texts: Vec::new(),
    };
    match value {
        Value::Null => {}
        Value::Handle(handle) if matches!(stream.get(handle), Handled::Object(_)) => {
            list.object(handle, 0)?;
        }
        _ => return Err(ConfigurationError::Field(field)),
    }
    Ok(list.texts)
}

struct List<'s, 'a> {
    stream: &'s Stream<'a>,
    field: &'static str,
    /// A wrapper may know its list by two fields.
    seen: HashSet<usize>,
    bytes: usize,
    texts: Vec<String>,
}

impl List<'_, '_> {
    fn object(&mut self, handle: usize, depth: usize) -> Result<(), ConfigurationError> {
        let Handled::Object(object) = self.stream.get(handle) else {
            return Ok(());
        };
        if !self.seen.insert(handle) {
            return Ok(());
        }
        if depth > MAX_WRAPPERS {
            return Err(ConfigurationError::TooLarge);
        }
        for &(_, value) in &object.fields {
            if let Value::Handle(handle) = value {
                match self.stream.get(handle) {
                    Handled::Text(bytes) => self.text(bytes)?,
                    _ => self.object(handle, depth + 1)?,
                }
            }
        }
        for &value in &object.contents {
            self.element(value)?;
        }
        Ok(())
    }

    fn element(&mut self, value: Value) -> Result<(), ConfigurationError> {
        match value {
            Value::Null => return Ok(()),
            Value::Handle(handle) => match self.stream.get(handle) {
                Handled::Text(bytes) => return self.text(bytes),
                // Scala's lists have such a mark at their end.
                Handled::Object(mark) if mark.fields.is_empty() && mark.contents.is_empty() => {
                    return Ok(());
                }
                _ => {}
            },
            _ => {}
        }
        Err(ConfigurationError::Field(self.field))
    }

    fn text(&mut self, bytes: &[u8]) -> Result<(), ConfigurationError> {
        self.bytes += bytes.len();
        if self.texts.len() == MAX_TEXTS || self.bytes > MAX_BYTES {
            return Err(ConfigurationError::TooLarge);
        }
        let text = text::read(bytes).map_err(|_| ConfigurationError::Field(self.field))?;
        self.texts.push(text.into_owned());
        Ok(())
    }
}
