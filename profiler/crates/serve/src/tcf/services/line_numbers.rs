//! LineNumbers: lines of source at addresses.
//!
//! An address of a process -> the file and line of the innermost function there, inlined or not; where
//! a function begins they are its own, since clients ask there for where the function is. An
//! area is one byte long: where the next line's code begins is not kept. Addresses of a line are not
//! looked for. Source: the service's specification "TCF Line Numbers", and what its clients do with
//! the answers. What does not belong here: names of functions (`symbols`).

use serde::Serialize;

use super::symbols::later;
use super::{Request, State, answer, unsupported};
use crate::tcf::arguments::Malformed;
use crate::tcf::reply::{Answer, Outcome, Reply};
use crate::tcf::world::Lookup;
use profiler_wire::tcf::{Code, ErrorReport};

#[derive(Serialize)]
struct Area<'a> {
    #[serde(rename = "SAddr")]
    start: u64,
    #[serde(rename = "EAddr")]
    end: u64,
    #[serde(rename = "SLine")]
    first_line: u32,
    #[serde(rename = "ELine")]
    last_line: u32,
    #[serde(rename = "File")]
    file: &'a str,
    #[serde(rename = "Dir")]
    directory: &'a str,
}

/// See [`super::call`].
pub(super) fn call(mut request: Request<'_>, state: &mut State) -> Answer {
    let last_try = request.last_try;
    match request.command {
        "mapToSource" => {
            let id = request.id()?;
            let address = request.arguments.number()?;
            let end = end_address(request.arguments.raw())?;
            later(map_to_source(&id, address, end, last_try, state))
        }
        "mapToMemory" => {
            let id = request.id()?;
            let mapped = state
                .known(&id)
                .and(Err(unsupported("addresses of lines are not looked for")));
            answer(mapped, 1)
        }
        _ => Ok(Outcome::Unknown),
    }
}

/// The address behind the last one, which may be 2^64: clients add 1 to an address.
fn end_address(field: Option<&[u8]>) -> Result<u128, Malformed> {
    serde_json::from_slice(field.unwrap_or_default()).map_err(|error| {
        Malformed(ErrorReport::new(
            Code::JsonSyntax,
            format!("argument 3 is not an unsigned number: {error}"),
        ))
    })
}

/// Of a range the line at its first address, which is the one that profiles have.
fn map_to_source(
    id: &str,
    address: u64,
    end: u128,
    last_try: bool,
    state: &mut State,
) -> Result<Option<Reply>, ErrorReport> {
    let process = state.known(id)?.1.process;
    if end <= u128::from(address) {
        return Ok(Some(Reply::ok().null()));
    }
    let found = match state.world.source(process, address) {
        Lookup::Found(source) => Some(source),
        Lookup::Waiting if !last_try => return Ok(None),
        Lookup::Waiting | Lookup::Missing => None,
    };
    let known = found.filter(|(file, line)| !file.is_empty() && *line > 0);
    let Some((path, line)) = known else {
        return Ok(Some(Reply::ok().null()));
    };
    let (directory, file) = split(&path);
    Ok(Some(Reply::ok().json(&[Area {
        start: address,
        end: address.saturating_add(1),
        first_line: line,
        last_line: line,
        file,
        directory,
    }])))
}

/// Directory and file. Clients put them together, whether they look for a `/` at the front of the
/// file first or not.
fn split(path: &str) -> (&str, &str) {
    match path.rsplit_once('/') {
        None => (".", path),
        Some(("", file)) => ("/", file),
        Some(parts) => parts,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_have_a_directory() {
        for (path, directory, file) in [
            ("main.c", ".", "main.c"),
            ("/main.c", "/", "main.c"),
            ("/src/app/main.c", "/src/app", "main.c"),
            ("src/../main.rs", "src/..", "main.rs"),
            ("/rustc/1/library/", "/rustc/1/library", ""),
        ] {
            assert_eq!(split(path), (directory, file), "{path}");
        }
    }

    #[test]
    fn the_end_may_be_that_of_the_address_space() {
        assert_eq!(end_address(Some(b"1")), Ok(1));
        let end = end_address(Some(b"18446744073709551616"));
        assert_eq!(end, Ok(1 << 64));
        for field in [
            None,
            Some(&b""[..]),
            Some(b"-1"),
            Some(b"\"1\""),
            Some(b"1.5"),
        ] {
            assert!(end_address(field).is_err(), "{field:?}");
        }
    }
}
