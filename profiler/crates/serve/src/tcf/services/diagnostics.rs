//! Diagnostics: gives back what it is given, so that clients can try a channel.
//!
//! What is given back has the bytes that came: they are not read as text. Of an error report it gives the text for
//! people as well, as clients make it: parameters take their places in the format (`formatted`). What does not belong
//! here: the tests of a debugger, of which there are none.

use serde_json::{Map, Number, Value};

use super::Request;
use super::formatted::formatted;
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
        "echoERR" => match arguments.maybe_object()? {
            Some(report) => Reply::bare().json(&report).json(&text(&report)).done(),
            // No error, and no text.
            None => Reply::ok().null().done(),
        },
        "getTestList" => Reply::ok().raw(b"[]").done(),
        _ => Ok(Outcome::Unknown),
    }
}

fn same(number: Number) -> Answer {
    Reply::bare().json(&number).done()
}

/// What a report says to people.
fn text(report: &Map<String, Value>) -> String {
    if let Some(format) = report.get("Format").and_then(Value::as_str) {
        return match report.get("Params").and_then(Value::as_array) {
            Some(parameters) => formatted(format, parameters),
            None => format.to_owned(),
        };
    }
    let alternative = report.get("AltOrg").and_then(Value::as_str);
    match (alternative, report.get("AltCode"), report.get("Code")) {
        (Some(whose), Some(code), _) => format!("{whose} Error {code}"),
        (_, _, Some(code)) => format!("TCF Error {code}"),
        _ => String::new(),
    }
}
