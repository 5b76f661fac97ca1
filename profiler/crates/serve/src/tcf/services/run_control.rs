//! RunControl: processes as containers, their threads as what runs.
//!
//! A context -> its properties; changes among contexts -> events. A process is a run control group:
//! its threads stop and go on together. There are no stepping, breakpoints or program counters, so
//! that a thread that is stopped says why it has none. Source: the service's specification "TCF
//! Run Control" (version 1), and what its clients do with the answers. What does not belong here: who
//! may stop what (`control`).

use serde::Serialize;
use serde_json::json;

use super::control::{self, News};
use super::{Request, State, TcfEvent, answer, shown, unsupported};
use crate::tcf::reply::{Answer, Outcome, Reply};
use crate::tcf::world::{Changes, Context, ContextKey};
use profiler_report::derive::inner_pid;
use profiler_wire::tcf::{Code, ErrorReport};

/// The way of going on that is offered: without stepping.
const RESUME: i64 = 0;
/// Bytes of an address.
const WORD_BYTES: u32 = 8;
/// Length of an event's array from which on another event is begun.
const EVENT_BYTES: usize = 512 << 10;
/// Characters of a cgroup's name that are shown.
const CGROUP_CHARS: usize = 24;
/// The same of a container's: that of a pod has three parts.
const CONTAINER_CHARS: usize = 64;
/// Why something is stopped: a client wanted it so.
const REASON: &str = "Suspended";

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Properties<'a> {
    #[serde(rename = "ID")]
    id: &'a str,
    #[serde(rename = "ParentID", skip_serializing_if = "Option::is_none")]
    parent: Option<&'a str>,
    #[serde(rename = "CreatorID", skip_serializing_if = "Option::is_none")]
    creator: Option<&'a str>,
    #[serde(rename = "ProcessID")]
    process: &'a str,
    name: &'a str,
    #[serde(skip_serializing_if = "is_false")]
    is_container: bool,
    #[serde(skip_serializing_if = "is_false")]
    has_state: bool,
    word_size: u32,
    symbols_group: &'a str,
    #[serde(rename = "RCGroup")]
    group: &'a str,
    #[serde(skip_serializing_if = "is_false")]
    can_suspend: bool,
    /// A bit for each way of going on.
    #[serde(skip_serializing_if = "Option::is_none")]
    can_resume: Option<u32>,
    #[serde(skip_serializing_if = "is_false")]
    can_terminate: bool,
    /// What views write behind the name.
    #[serde(skip_serializing_if = "Option::is_none")]
    additional_info: Option<String>,
}

fn is_false(value: &bool) -> bool {
    !value
}

/// See [`super::call`].
pub(super) fn call(mut request: Request<'_>, state: &mut State) -> Answer {
    let arguments = &mut request.arguments;
    match request.command {
        "getContext" => answer(get_context(&request.id()?, state), 1),
        "getChildren" => {
            let parent = arguments.maybe_text()?;
            answer(get_children(parent.as_deref(), state), 1)
        }
        "getState" => get_state(&request.id()?, state),
        "suspend" => {
            let id = request.id()?;
            let done = control::suspend(state, request.channel, request.peer, &id);
            answer(done.map(|()| Reply::ok()), 0)
        }
        "resume" => {
            let id = arguments.maybe_text()?.unwrap_or_default();
            let (mode, count) = (arguments.signed()?, arguments.signed()?);
            arguments.object()?;
            let done = match (mode, count) {
                (RESUME, 1) => control::resume(state, request.peer, &id),
                _ => Err(unsupported(
                    "a process goes on as a whole: no steps, no counts",
                )),
            };
            answer(done.map(|()| Reply::ok()), 0)
        }
        "terminate" => {
            let id = request.id()?;
            let done = control::terminate(state, request.peer, &id);
            answer(done.map(|()| Reply::ok()), 0)
        }
        "detach" => {
            let id = request.id()?;
            let done = state.living(&id).and(Err(unsupported(
                "observing attaches to nothing that could be detached",
            )));
            answer(done, 0)
        }
        _ => Ok(Outcome::Unknown),
    }
}

fn get_context(id: &str, state: &State) -> Result<Reply, ErrorReport> {
    let (_, context) = state.living(id)?;
    Ok(Reply::ok().json(&properties(context, state)))
}

fn get_children(parent: Option<&str>, state: &State) -> Result<Reply, ErrorReport> {
    let children = match parent {
        None => state.world.known_processes(),
        // Of what is gone there are none: a client may have asked before it was told of the end.
        Some(id) => match state.known(id)? {
            (_, context) if context.gone || context.thread.is_some() => Vec::new(),
            (process, _) => state.world.known_threads(process),
        },
    };
    Ok(Reply::ok().json(&living_ids(&children, state)))
}

/// Ids of those that have not ended, as far as clients know.
pub(super) fn living_ids<'s>(keys: &[ContextKey], state: &'s State) -> Vec<&'s str> {
    let contexts = keys.iter().filter_map(|&key| state.world.context(key));
    let living = contexts.filter(|context| !context.gone);
    living
        .map(|context| {
            context.seen.set(true);
            &*context.id
        })
        .collect()
}

fn get_state(id: &str, state: &State) -> Answer {
    let failed = |report| Reply::report(report).json(&false).json(&0).null().null();
    let reply = match state.living(id) {
        Err(report) => failed(report),
        Ok((_, context)) if context.thread.is_none() => failed(ErrorReport::new(
            Code::InvalidContext,
            format!("{} is a process: only its threads have a state", shown(id)),
        )),
        Ok((_, context)) if state.stops.contains(context.process) => Reply::ok()
            .json(&true)
            .json(&0)
            .json(&REASON)
            .json(&no_address()),
        Ok(_) => Reply::ok().json(&false).json(&0).null().json(&json!({})),
    };
    reply.done()
}

/// More of a thread that is stopped: where it stands is not known.
fn no_address() -> serde_json::Value {
    json!({"PCError": {
        "Code": Code::Unsupported as i32,
        "Format": "registers are not read: threads are observed, not debugged",
    }})
}

fn properties<'s>(context: &'s Context, state: &'s State) -> Properties<'s> {
    let process = state.process_of(context);
    let is_process = context.thread.is_none();
    let creator = context.parent.filter(|_| is_process);
    let creator = creator.and_then(|key| state.world.context(key));
    let can = state.offers_control();
    Properties {
        id: &context.id,
        parent: (!is_process).then_some(&*process.id),
        creator: creator.map(|creator| &*creator.id),
        process: &process.id,
        name: &context.name,
        is_container: is_process,
        has_state: !is_process,
        word_size: WORD_BYTES,
        symbols_group: &process.id,
        group: &process.id,
        can_suspend: can,
        can_resume: can.then_some(1 << RESUME),
        can_terminate: can,
        additional_info: is_process.then(|| additional_info(context, state)),
    }
}

/// What tells processes of one name apart: ` (100, user 1000, nginx.service)`, ` (100, user 0, 1 in web)`.
fn additional_info(process: &Context, state: &State) -> String {
    let mut info = format!(" ({}", process.life.pid);
    if let Some(definition) = state.world.process(process.process) {
        if let Some(uid) = definition.uid {
            info += &format!(", user {uid}");
        }
        let container = state.world.container(process.process);
        match container.map(|container| state.world.tables().container_label(container)) {
            Some(label) => {
                let label = shortened(&label, CONTAINER_CHARS);
                match inner_pid(definition) {
                    Some(pid) => info += &format!(", {pid} in {label}"),
                    None => info += &format!(", {label}"),
                }
            }
            None => {
                if let Some(name) = state.text(definition.cgroup).and_then(cgroup_name) {
                    info += &format!(", {name}");
                }
            }
        }
    }
    info + ")"
}

/// The last part of a cgroup's path; a container's id in it is cut.
fn cgroup_name(path: &str) -> Option<String> {
    let name = path.rsplit('/').find(|part| !part.is_empty())?;
    Some(shortened(name, CGROUP_CHARS))
}

fn shortened(name: &str, chars: usize) -> String {
    let mut shown: String = name.chars().take(chars).collect();
    if shown.len() < name.len() {
        shown.push('…');
    }
    shown
}

/// Events of contexts that have come, changed and gone.
pub(super) fn changed(changes: &Changes, state: &State) -> Vec<TcfEvent> {
    let contexts = |keys: &[ContextKey]| {
        let contexts = keys.iter().filter_map(|&key| state.world.context(key));
        arrays(contexts.map(|context| properties(context, state)))
    };
    let event = |event| {
        move |array| TcfEvent {
            service: "RunControl",
            event,
            arguments: vec![array],
        }
    };
    let added = contexts(&changes.added);
    let changed = contexts(&changes.changed);
    let removed = arrays(changes.removed.iter());
    let added = added.into_iter().map(event("contextAdded"));
    let changed = changed.into_iter().map(event("contextChanged"));
    let removed = removed.into_iter().map(event("contextRemoved"));
    // What has come may have the id of what has gone.
    removed.chain(added).chain(changed).collect()
}

/// Events of processes that were stopped or go on, one for each thread.
pub(super) fn stopped(state: &mut State) -> Vec<TcfEvent> {
    let mut events = Vec::new();
    for news in state.stops.news() {
        let (News::Stopped(process) | News::Continued(process)) = news;
        for id in living_ids(&state.world.threads(process), state) {
            let (event, fields) = match news {
                News::Stopped(_) => (
                    "contextSuspended",
                    Reply::bare()
                        .json(&id)
                        .json(&0)
                        .json(&REASON)
                        .json(&no_address()),
                ),
                News::Continued(_) => ("contextResumed", Reply::bare().json(&id)),
            };
            events.push(TcfEvent {
                service: "RunControl",
                event,
                arguments: fields.fields,
            });
        }
    }
    events
}

/// Arrays of a bounded length, of these in their order; none of none.
fn arrays(items: impl Iterator<Item = impl Serialize>) -> Vec<Vec<u8>> {
    let mut arrays: Vec<Vec<u8>> = Vec::new();
    for item in items {
        // Maps with text for keys: that can't fail.
        let item = serde_json::to_vec(&item).unwrap_or_else(|_| b"null".to_vec());
        match arrays.last_mut() {
            Some(array) if array.len() + item.len() < EVENT_BYTES => array.push(b','),
            _ => arrays.push(b"[".to_vec()),
        }
        if let Some(array) = arrays.last_mut() {
            array.extend_from_slice(&item);
        }
    }
    for array in &mut arrays {
        array.push(b']');
    }
    arrays
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_arrays_are_split() {
        assert!(arrays(std::iter::empty::<u32>()).is_empty());
        assert_eq!(arrays([1, 2].iter()), [b"[1,2]"]);
        let text = "x".repeat(1000);
        let all = arrays(std::iter::repeat_n(&text, 2000));
        assert!(all.iter().all(|array| array.len() <= EVENT_BYTES));
        let count = |array: &Vec<u8>| {
            let texts: Vec<String> = serde_json::from_slice(array).unwrap();
            texts.len()
        };
        assert_eq!(all.iter().map(count).sum::<usize>(), 2000);
        assert_eq!(all.len(), 4);
        let huge = "x".repeat(2 * EVENT_BYTES);
        assert_eq!(arrays([&huge, &huge].into_iter()).len(), 2);
    }

    #[test]
    fn names_of_cgroups_are_short() {
        let docker = format!(
            "/system.slice/docker-{}.scope",
            "0123456789abcdef".repeat(4)
        );
        for (path, expected) in [
            ("", None),
            ("/", None),
            ("/init.scope", Some("init.scope")),
            ("/system.slice/nginx.service/", Some("nginx.service")),
            (&docker, Some("docker-0123456789abcdef0…")),
        ] {
            assert_eq!(cgroup_name(path).as_deref(), expected, "{path}");
        }
    }
}
