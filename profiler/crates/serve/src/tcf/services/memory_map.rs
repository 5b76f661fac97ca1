//! MemoryMap: what is mapped into processes.
//!
//! A process -> its regions, ordered by address. Of one that runs the machine tells all of them, of
//! one that has ended or was recorded those with code that were told of. The kernel's image and
//! the reserved addresses of frames without one are not listed: no client looks there before it asks
//! Symbols. Source: the service's specification "TCF Memory Map". What does not belong here: what
//! addresses mean (`symbols`).

use serde::Serialize;

use super::{Request, State, TcfEvent, answer, machine_error, unsupported};
use crate::machine::{MachineError, Region};
use crate::tcf::reply::{Answer, Outcome, Reply};
use crate::tcf::world::{Changes, Mapped};
use profiler_wire::tcf::{Code, ErrorReport};

const READ: u32 = 1;
const WRITE: u32 = 2;
const EXECUTE: u32 = 4;
/// Most regions of an answer; the kernel's own limit is about the same unless it was raised.
const MAX_REGIONS: usize = 1 << 16;

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Properties<'a> {
    addr: u64,
    size: u64,
    flags: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    file_name: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    offs: Option<u64>,
}

/// See [`super::call`].
pub(super) fn call(mut request: Request<'_>, state: &mut State) -> Answer {
    match request.command {
        "get" => answer(get(&request.id()?, state), 1),
        "set" => {
            let id = request.id()?;
            let set = state.known(&id).and(Err(unsupported(
                "memory maps are the kernel's: they can't be set",
            )));
            answer(set, 0)
        }
        _ => Ok(Outcome::Unknown),
    }
}

fn get(id: &str, state: &State) -> Result<Reply, ErrorReport> {
    let (_, context) = state.known(id)?;
    let regions = match context.ended {
        true => Err(MachineError::Ended),
        false => state.machine.memory_map(context.life),
    };
    match regions {
        Ok(regions) => list(id, regions.len(), regions.iter().map(from_region)),
        Err(MachineError::Ended | MachineError::Recording) => {
            let mappings = state.world.mappings(context.process);
            list(id, mappings.len(), mappings.iter().map(from_mapping))
        }
        Err(error) => Err(machine_error(error, id)),
    }
}

fn list<'a>(
    id: &str,
    count: usize,
    regions: impl Iterator<Item = Properties<'a>>,
) -> Result<Reply, ErrorReport> {
    if count > MAX_REGIONS {
        return Err(ErrorReport::new(
            Code::BufferOverflow,
            format!("{id} has {count} regions of memory: at most {MAX_REGIONS} are shown"),
        ));
    }
    Ok(Reply::ok().json(&regions.collect::<Vec<_>>()))
}

fn from_region(region: &Region) -> Properties<'_> {
    let flag = |is: bool, flag| if is { flag } else { 0 };
    properties(
        region.start,
        region.end,
        flag(region.readable, READ)
            | flag(region.writable, WRITE)
            | flag(region.executable, EXECUTE),
        &region.path,
        region.offset,
    )
}

/// Only code is told of.
fn from_mapping(mapped: &Mapped) -> Properties<'_> {
    properties(
        mapped.start,
        mapped.end,
        READ | EXECUTE,
        &mapped.path,
        mapped.offset,
    )
}

fn properties(start: u64, end: u64, flags: u32, path: &str, offset: u64) -> Properties<'_> {
    // What the kernel calls `[heap]` is no file that a client could open.
    let is_file = path.starts_with('/');
    Properties {
        addr: start,
        size: end.saturating_sub(start),
        flags,
        file_name: is_file.then_some(path),
        offs: is_file.then_some(offset),
    }
}

/// Events of processes that run another program now.
pub(super) fn changed(changes: &Changes, state: &State) -> Vec<TcfEvent> {
    let contexts = changes
        .changed
        .iter()
        .filter_map(|&key| state.world.context(key));
    contexts
        .filter(|context| context.thread.is_none())
        .map(|context| TcfEvent {
            service: "MemoryMap",
            event: "changed",
            arguments: Reply::bare().json(&context.id).fields,
        })
        .collect()
}
