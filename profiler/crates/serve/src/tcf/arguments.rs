//! Arguments of a command: JSON -> what a service expects.
//!
//! An argument that is no JSON or is of another type is [`Malformed`]: the channel ends with that report,
//! as the specification wants it. One that is right, and of no use here, is an error of its command. Texts are read as clients write them, which is not always JSON: see
//! [`lenient`]. How many arguments a command takes is not said here (`services::arity`).

use std::borrow::Cow;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::error::Category;
use serde_json::{Map, Number, Value};

use profiler_wire::tcf::{Code, ErrorReport};

use super::lenient;

/// The first number that is no address.
const BEYOND: u128 = 1 << 64;

/// Bytes that are no arguments of this command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Malformed {
    pub(super) report: ErrorReport,
    /// The channel ends. If not, it is the command's answer.
    pub(super) ends: bool,
}

impl Malformed {
    /// Because of this.
    pub(super) fn new(text: impl Into<String>) -> Malformed {
        Malformed {
            report: ErrorReport::new(Code::JsonSyntax, text),
            ends: true,
        }
    }

    /// It is what it should be, and can't be used.
    fn useless(code: Code, text: String) -> Malformed {
        Malformed {
            report: ErrorReport::new(code, text),
            ends: false,
        }
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
    fn raw(&mut self) -> Option<&'a [u8]> {
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
        let text = lenient::json(bytes);
        serde_json::from_str(&text).map_err(|error| {
            let number = self.next.max(1);
            // Passing over it needs no memory for each level. What is no JSON is of no type, either.
            if let Err(error) = serde_json::from_str::<IgnoredAny>(&text) {
                return Malformed::new(format!("argument {number} is no JSON: {error}"));
            }
            match error.classify() {
                Category::Syntax if error.to_string().starts_with("recursion limit") => {
                    let text = format!("argument {number} is nested too deep");
                    Malformed::useless(Code::Other, text)
                }
                Category::Syntax => {
                    let text = format!("argument {number} can't be read: {error}");
                    Malformed::useless(Code::InvalidNumber, text)
                }
                _ => Malformed::new(format!("argument {number} is not {what}: {error}")),
            }
        })
    }

    /// A context's id, or another text.
    pub(super) fn text(&mut self) -> Result<String, Malformed> {
        self.take("a string")
    }

    /// Several texts.
    pub(super) fn texts(&mut self) -> Result<Vec<String>, Malformed> {
        self.take("an array of strings")
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
        Ok(match integer(&number) {
            Some(negative @ ..0) => i64::try_from(negative).map_or(BEYOND, |it| (it as u64).into()),
            Some(address) => address.cast_unsigned(),
            None => BEYOND,
        })
    }

    /// A number with a sign.
    pub(super) fn signed(&mut self) -> Result<i64, Malformed> {
        let number: Number = self.take("a number")?;
        let signed = integer(&number).and_then(|number| i64::try_from(number).ok());
        signed.ok_or_else(|| {
            let text = format!("argument {} is no integer of 64 bits: {number}", self.next);
            Malformed::useless(Code::InvalidNumber, text)
        })
    }

    /// A text as it is written, bytes that are no UTF-8 too; control characters as JSON wants them.
    pub(super) fn written_text(&mut self) -> Result<Vec<u8>, Malformed> {
        let written = self.fields.get(self.next);
        self.text()?;
        Ok(lenient::bytes(written.map_or(&[], |it| it.trim_ascii())))
    }

    /// A text or a number, the first argument of some.
    pub(super) fn is_number(&self) -> bool {
        let field = self.fields.get(self.next);
        field.is_some_and(|field| matches!(field.first(), Some(b'-' | b'0'..=b'9')))
    }

    /// Any number as it is written, however many digits it has.
    pub(super) fn written_number(&mut self) -> Result<&'a [u8], Malformed> {
        let written = self.fields.get(self.next).map_or(&b""[..], |it| it);
        let written = written.trim_ascii();
        let IgnoredAny = self.take("a number")?;
        match written.first() {
            Some(b'-' | b'0'..=b'9') => Ok(written),
            _ => Err(Malformed::new(format!(
                "argument {} is not a number",
                self.next
            ))),
        }
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

/// A number that is whole, in whatever way it is written: JSON knows no others than numbers.
fn integer(number: &Number) -> Option<i128> {
    let unsigned = number.as_u64().map(i128::from);
    let signed = number.as_i64().map(i128::from);
    let float = || {
        let float = number.as_f64().filter(|it| it.fract() == 0.0)?;
        // What is larger is no number of 64 bits, with or without a sign.
        (float.abs() <= BEYOND as f64).then_some(float as i128)
    };
    unsigned.or(signed).or_else(float)
}
