//! LineNumbers: lines of source at addresses.
//!
//! Addresses of a process -> files and lines of the innermost functions there, inlined or not; where
//! a function begins they are its own, since clients ask there for where the function is. Where the code of
//! a line ends is not kept: each address of a range is looked at, and neighbours of one line are one area.
//! Addresses of a line are not looked for. Source: the service's specification "TCF Line Numbers", and what its
//! clients do with the answers. What does not belong here: names of functions (`symbols`).

use std::time::Instant;

use serde::Serialize;

use super::symbols::later;
use super::{Request, State, answer, unsupported};
use crate::tcf::reply::{Answer, Outcome, Reply};
use crate::tcf::world::Lookup;
use profiler_wire::tcf::{Code, ErrorReport};

/// Most addresses of a range.
const MAX_ADDRESSES: u128 = 4096;

#[derive(Serialize)]
struct Area<'a> {
    #[serde(rename = "SAddr")]
    start: u64,
    /// It may be 2^64.
    #[serde(rename = "EAddr")]
    end: u128,
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
            let start = request.arguments.address()?;
            let end = request.arguments.address()?;
            later(map_to_source(
                &id,
                (start, end),
                (request.now, last_try),
                state,
            ))
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

/// The lines of a range: up to the address behind its last one, which may be 2^64, since clients add 1 to an address.
fn map_to_source(
    id: &str,
    (start, end): (u128, u128),
    (now, last_try): (Instant, bool),
    state: &mut State,
) -> Result<Option<Reply>, ErrorReport> {
    let process = state.known(id)?.1.process;
    state.asks_names(process, now);
    if end.saturating_sub(start) > MAX_ADDRESSES {
        return Err(ErrorReport::new(
            Code::InvalidDataSize,
            format!(
                "{} addresses are asked for at a time: at most {MAX_ADDRESSES} can be",
                end - start
            ),
        ));
    }
    let mut lines: Vec<(u128, u128, (String, u32))> = Vec::new();
    let mut waits = false;
    // What is no address has no line.
    let addresses = (start..end).map_while(|address| u64::try_from(address).ok());
    for address in addresses {
        let source = match state.world.source(process, address) {
            Lookup::Found(source) if !source.0.is_empty() && source.1 > 0 => source,
            Lookup::Found(_) | Lookup::Missing => continue,
            Lookup::Waiting => {
                // All that has to be asked for is asked for at once.
                waits = true;
                continue;
            }
        };
        let address = u128::from(address);
        match lines.last_mut() {
            Some((_, end, last)) if *end == address && *last == source => *end += 1,
            _ => lines.push((address, address + 1, source)),
        }
    }
    if waits && !last_try {
        return Ok(None);
    }
    if lines.is_empty() {
        return Ok(Some(Reply::ok().null()));
    }
    let areas = lines.iter().map(|(start, end, (path, line))| {
        let (directory, file) = split(path);
        Area {
            start: *start as u64,
            end: *end,
            first_line: *line,
            last_line: *line,
            file,
            directory,
        }
    });
    Ok(Some(Reply::ok().json(&areas.collect::<Vec<_>>())))
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
}
