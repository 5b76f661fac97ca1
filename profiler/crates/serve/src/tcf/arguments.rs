//! Arguments of a command: JSON -> what a service expects.
//!
//! An argument that is missing, is no JSON or is of another type is [`Malformed`]: the channel ends
//! with that report, as the specification wants it. Missing trailing arguments are null.

use serde::Deserialize;
use serde_json::{Map, Number, Value};

use profiler_wire::tcf::{Code, ErrorReport};

/// Bytes that are no arguments of this command. The channel ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Malformed(pub(super) ErrorReport);

impl Malformed {
    fn new(text: impl Into<String>) -> Malformed {
        Malformed(ErrorReport::new(Code::JsonSyntax, text))
    }

    /// There is no such argument.
    pub(super) fn missing(what: &str) -> Malformed {
        Malformed::new(format!("an argument is missing: {what}"))
    }
}

/// Arguments, taken one after the other.
#[derive(Clone, Debug)]
pub(super) struct Arguments<'a> {
    fields: &'a [std::borrow::Cow<'a, [u8]>],
    next: usize,
}

impl<'a> Arguments<'a> {
    /// Of these fields.
    pub(super) fn new(fields: &'a [std::borrow::Cow<'a, [u8]>]) -> Arguments<'a> {
        Arguments { fields, next: 0 }
    }

    /// The bytes of the next one, as they came.
    pub(super) fn raw(&mut self) -> Option<&'a [u8]> {
        let field = self.fields.get(self.next)?;
        self.next += 1;
        Some(field)
    }

    /// The next one; one that is missing or empty is null.
    fn take<T: for<'de> Deserialize<'de>>(&mut self, what: &str) -> Result<T, Malformed> {
        let bytes = match self.raw() {
            None | Some([]) => b"null",
            Some(bytes) => bytes,
        };
        serde_json::from_slice(bytes).map_err(|error| {
            Malformed::new(format!(
                "argument {} is not {what}: {error}",
                self.next.max(1)
            ))
        })
    }

    /// A context's id, or another text.
    pub(super) fn text(&mut self) -> Result<String, Malformed> {
        self.take("a string")
    }

    /// A text or null. The empty text is null.
    pub(super) fn maybe_text(&mut self) -> Result<Option<String>, Malformed> {
        let text: Option<String> = self.take("a string or null")?;
        Ok(text.filter(|text| !text.is_empty()))
    }

    /// An address or another number up to 2^64 - 1.
    pub(super) fn number(&mut self) -> Result<u64, Malformed> {
        self.take("an unsigned number")
    }

    /// A number with a sign.
    pub(super) fn signed(&mut self) -> Result<i64, Malformed> {
        self.take("a number")
    }

    /// Any number, as it is.
    pub(super) fn any_number(&mut self) -> Result<Number, Malformed> {
        self.take("a number")
    }

    /// A truth value; null is false.
    pub(super) fn flag(&mut self) -> Result<bool, Malformed> {
        let flag: Option<bool> = self.take("true or false")?;
        Ok(flag.unwrap_or(false))
    }

    /// An object; null is an empty one.
    pub(super) fn object(&mut self) -> Result<Map<String, Value>, Malformed> {
        let object: Option<Map<String, Value>> = self.take("an object")?;
        Ok(object.unwrap_or_default())
    }
}
