//! Arguments of a command: JSON -> what a service expects.
//!
//! An argument that is no JSON or is of another type is [`Malformed`]: the channel ends with that report,
//! as the specification wants it. Texts are read as clients write them, which is not always JSON: see
//! [`lenient`]. How many arguments a command takes is not said here (`services::arity`).

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::{Map, Number, Value};

use profiler_wire::tcf::{Code, ErrorReport};

use super::lenient;

/// The first number that is no address.
const BEYOND: u128 = 1 << 64;

/// Bytes that are no arguments of this command. The channel ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Malformed(pub(super) ErrorReport);

impl Malformed {
    /// Because of this.
    pub(super) fn new(text: impl Into<String>) -> Malformed {
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
    fields: &'a [Cow<'a, [u8]>],
    next: usize,
}

impl<'a> Arguments<'a> {
    /// Of these fields.
    pub(super) fn new(fields: &'a [Cow<'a, [u8]>]) -> Arguments<'a> {
        Arguments { fields, next: 0 }
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.fields.len()
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
        serde_json::from_str(&lenient::json(bytes)).map_err(|error| {
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

    /// An address, or one behind the last one: any number. A negative one is an address as a signed number has it;
    /// what is no address at all is beyond all of them.
    pub(super) fn address(&mut self) -> Result<u128, Malformed> {
        let number: Number = self.take("a number")?;
        let signed = || number.as_i64().map(|signed| signed as u64);
        let address = number.as_u64().or_else(signed);
        Ok(address.map_or(BEYOND, u128::from))
    }

    /// A number with a sign.
    pub(super) fn signed(&mut self) -> Result<i64, Malformed> {
        self.take("a number")
    }

    /// A text or a number, the first argument of some.
    pub(super) fn is_number(&self) -> bool {
        let field = self.fields.get(self.next);
        field.is_some_and(|field| matches!(field.first(), Some(b'-' | b'0'..=b'9')))
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
        Ok(self.maybe_object()?.unwrap_or_default())
    }

    /// An object or null.
    pub(super) fn maybe_object(&mut self) -> Result<Option<Map<String, Value>>, Malformed> {
        self.take("an object")
    }
}
