//! Diagnostics: gives back what it is given, so that clients can try a channel.
//!
//! What is given back has the bytes that came: they are not read as text. What does not belong here:
//! the tests of a debugger, of which there are none.

use serde_json::{Number, Value};

use super::Request;
use crate::tcf::arguments::Malformed;
use crate::tcf::reply::{Answer, Outcome, Reply};

/// Carries out a command.
pub(super) fn call(request: Request<'_>) -> Answer {
    let mut arguments = request.arguments;
    match request.command {
        "echo" => match arguments.raw() {
            Some(bytes) => Reply::bare().raw(bytes).done(),
            None => Err(Malformed::missing("a text to give back")),
        },
        // The size of the number in bytes, the number.
        "echoINT" => {
            arguments.signed()?;
            arguments.any_number().and_then(same)
        }
        "echoFP" => arguments.any_number().and_then(same),
        "echoERR" => {
            let report = arguments.object()?;
            let text = report.get("Format").and_then(Value::as_str);
            let text = text.unwrap_or_default();
            Reply::bare().json(&report).json(&text).done()
        }
        "getTestList" => Reply::ok().raw(b"[]").done(),
        _ => Ok(Outcome::Unknown),
    }
}

fn same(number: Number) -> Answer {
    Reply::bare().json(&number).done()
}
