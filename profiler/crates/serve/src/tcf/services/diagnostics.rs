//! Diagnostics: gives back what it is given, so that clients can try a channel.
//!
//! What is given back is what came, digit by digit and byte by byte: texts need not be UTF-8. Only control characters
//! come back as escapes, since they are no JSON. Of an error report it gives the text for
//! people as well, as clients make it: parameters take their places in the format (`formatted`). What does not belong
//! here: the tests of a debugger, of which there are none.

use serde_json::{Map, Value};

use super::Request;
use super::formatted::formatted;
use crate::tcf::reply::{Answer, Outcome, Reply};

/// Carries out a command.
pub(super) fn call(request: Request<'_>) -> Answer {
    let mut arguments = request.arguments;
    match request.command {
        "echo" => Reply::bare().raw(&arguments.written_text()?).done(),
        // The size of the number in bytes, the number.
        "echoINT" => {
            arguments.signed()?;
            Reply::bare().raw(arguments.written_number()?).done()
        }
        "echoFP" => Reply::bare().raw(arguments.written_number()?).done(),
        "echoERR" => match arguments.maybe_object()? {
            Some(report) => Reply::bare().json(&report).json(&text(&report)).done(),
            // No error, and no text.
            None => Reply::ok().null().done(),
        },
        "getTestList" => Reply::ok().raw(b"[]").done(),
        _ => Ok(Outcome::Unknown),
    }
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
