//! Symbols: functions at addresses, in processes and in the kernel.
//!
//! An address of a process -> the id of the function there; an id -> its properties. An id says
//! all: `@SP100.401136` is the function at 0x401136 of `P100`; no table of ids is kept. The address is
//! where the function begins; of one that is not known to begin anywhere it is the one that was asked
//! for, and the symbol has no address then. Where functions are inlined it is the one that they are
//! inlined into. There are no types, variables or scopes. Source: the service's specification "TCF
//! Symbols", and what its clients do with the answers: they look up where a symbol begins again, and
//! take symbols that begin at one address for one. What does not belong here: lines
//! (`line_numbers`), how names are found (`world`).

use std::time::Instant;

use serde::Serialize;

use super::{Request, State, answer, shown};
use crate::tcf::reply::{Answer, Outcome, Reply};
use crate::tcf::world::{ContextKey, Found, Lookup, Mapped};
use profiler_model::{ModuleKind, Tables};
use profiler_wire::tcf::{Code, ErrorReport};

/// What all ids begin with.
const PREFIX: &str = "@S";
/// A symbol's class: a function.
const FUNCTION: u32 = 3;
/// A symbol stays the same until what is mapped changes.
const ON_MEMORY_MAP_CHANGES: u32 = 0;
/// Functions of one name that are given.
const MAX_FOUND: usize = 16;

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Properties<'a> {
    #[serde(rename = "ID")]
    id: &'a str,
    #[serde(rename = "OwnerID")]
    owner: &'a str,
    update_policy: u32,
    name: &'a str,
    class: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    address: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    size: Option<u64>,
}

/// See [`super::call`].
pub(super) fn call(mut request: Request<'_>, state: &mut State) -> Answer {
    let last_try = request.last_try;
    let arguments = &mut request.arguments;
    match request.command {
        "findByAddr" => {
            let id = arguments.maybe_text()?.unwrap_or_default();
            let address = arguments.address()?;
            later(find_by_address(
                &id,
                address,
                (request.now, last_try),
                state,
            ))
        }
        "getContext" => {
            let id = request.id()?;
            later(get_context(&id, (request.now, last_try), state))
        }
        "getChildren" => {
            let id = request.id()?;
            let children = parse(&id, state).map(|_| Reply::ok().raw(b"[]"));
            answer(children, 1)
        }
        "list" => {
            let id = request.id()?;
            let list = state.known(&id).map(|_| Reply::ok().raw(b"[]"));
            answer(list, 1)
        }
        "find" | "findByName" => {
            let id = arguments.maybe_text()?.unwrap_or_default();
            // An instruction's address, which clients may leave out, does not matter: there are
            // no scopes.
            if arguments.count() > 2 || arguments.is_number() {
                arguments.address()?;
            }
            let name = arguments.text()?;
            let one = request.command == "find";
            answer(find_by_name(&id, &name, one, state), 1)
        }
        _ => Ok(Outcome::Unknown),
    }
}

/// An answer, an error, or none of them yet.
pub(super) fn later(result: Result<Option<Reply>, ErrorReport>) -> Answer {
    match result.transpose() {
        None => Ok(Outcome::Later),
        Some(result) => answer(result, 1),
    }
}

fn find_by_address(
    id: &str,
    address: u128,
    (now, last_try): (Instant, bool),
    state: &mut State,
) -> Result<Option<Reply>, ErrorReport> {
    let process = state.known(id)?.1.process;
    state.asks_names(process, now);
    let Ok(address) = u64::try_from(address) else {
        let text = "no function is there: it is no address of 64 bits";
        return Err(ErrorReport::new(Code::SymbolNotFound, text.to_owned()));
    };
    let found = look_up(process, address, last_try, state)?;
    let (_, context) = state.known(id)?;
    let owner = &state.process_of(context).id;
    Ok(found.map(|found| {
        let address = found.start.unwrap_or(address);
        Reply::ok().json(&format(owner, address))
    }))
}

fn get_context(
    id: &str,
    (now, last_try): (Instant, bool),
    state: &mut State,
) -> Result<Option<Reply>, ErrorReport> {
    let (process, owner, address) = parse(id, state)?;
    state.asks_names(process, now);
    let found = look_up(process, address, last_try, state)?;
    Ok(found.map(|found| {
        Reply::ok().json(&Properties {
            id,
            owner: &owner,
            update_policy: ON_MEMORY_MAP_CHANGES,
            name: &found.name,
            class: FUNCTION,
            address: found.start,
            size: found.start.and(found.size),
        })
    }))
}

/// What is at an address; none if that is being looked for.
fn look_up(
    process: ContextKey,
    address: u64,
    last_try: bool,
    state: &mut State,
) -> Result<Option<Found>, ErrorReport> {
    match state.world.symbol(process, address) {
        Lookup::Found(found) => Ok(Some(found)),
        Lookup::Waiting if !last_try => Ok(None),
        Lookup::Waiting | Lookup::Missing => {
            let text = format!("no function is known at {address:#x}");
            Err(ErrorReport::new(Code::SymbolNotFound, text))
        }
    }
}

fn find_by_name(id: &str, name: &str, one: bool, state: &mut State) -> Result<Reply, ErrorReport> {
    let (_, context) = state.known(id)?;
    let process = context.process;
    let owner = state.process_of(context).id.clone();
    let mappings = state.world.mappings(process);
    let mut ids = Vec::new();
    for address in addresses(name, &mappings, state.world.tables()) {
        let found = state.world.symbol(process, address);
        if matches!(found, Lookup::Found(found) if found.name == name) {
            ids.push(format(&owner, address));
        }
    }
    match &ids[..] {
        [] => Err(ErrorReport::new(
            Code::SymbolNotFound,
            format!("no function {} is known", shown(name)),
        )),
        // As agents do: one is no array.
        [id] => Ok(Reply::ok().json(id)),
        [id, ..] if one => Ok(Reply::ok().json(id)),
        ids => Ok(Reply::ok().json(&ids)),
    }
}

/// Where functions of this name begin, as far as any are known, in a process with these mappings.
fn addresses(name: &str, mappings: &[Mapped], tables: &Tables) -> Vec<u64> {
    let Some(name) = tables.find_string(name) else {
        return Vec::new();
    };
    let functions = tables.functions.iter().map(|(_, function)| function);
    let named = functions.filter(|function| function.name == name);
    let mut addresses: Vec<u64> = named
        .filter_map(|function| {
            let module = tables.modules.get(function.module?)?;
            let (start, path) = (function.start?, tables.string(module.path));
            let mapped = mappings.iter().find(|mapped| {
                let from = start.checked_sub(mapped.offset);
                mapped.path == path
                    && from.is_some_and(|from| from < mapped.end.saturating_sub(mapped.start))
            })?;
            (module.kind == ModuleKind::File)
                .then(|| mapped.start.wrapping_add(start - mapped.offset))
        })
        .take(MAX_FOUND)
        .collect();
    addresses.sort_unstable();
    addresses.dedup();
    addresses
}

fn format(process: &str, address: u64) -> String {
    format!("{PREFIX}{process}.{address:x}")
}

/// The process, its id and the address that an id is made of.
fn parse(id: &str, state: &State) -> Result<(ContextKey, String, u64), ErrorReport> {
    let parts = split(id).and_then(|(process, address)| {
        let (key, context) = state.known(process).ok()?;
        context
            .thread
            .is_none()
            .then(|| (key, process.to_owned(), address))
    });
    parts.ok_or_else(|| {
        ErrorReport::new(
            Code::InvalidContext,
            format!("Invalid context {}: it is no symbol", shown(id)),
        )
    })
}

fn split(id: &str) -> Option<(&str, u64)> {
    let (process, digits) = id.strip_prefix(PREFIX)?.rsplit_once('.')?;
    let address = u64::from_str_radix(digits, 16).ok()?;
    // Only what `format` makes: no sign, no zeros before, no capitals.
    (format!("{address:x}") == digits).then_some((process, address))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_say_what_they_mean() {
        for (process, address) in [("P1", 0), ("P100", 0x40_1136), ("P7@2", u64::MAX)] {
            let id = format(process, address);
            assert_eq!(split(&id), Some((process, address)), "{id}");
        }
        assert_eq!(format("P100", 0x40_1136), "@SP100.401136");
        for id in [
            "",
            "@S",
            "@SP1",
            "@SP1.",
            "P1.1",
            "@SP1.01",
            "@SP1.+1",
            "@SP1.A",
            "@SP1.10000000000000000",
            "@SP1.x",
        ] {
            assert_eq!(split(id), None, "{id}");
        }
    }
}
