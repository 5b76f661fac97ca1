//! What all actors but the TraceActor answer.
//!
//! A request, and what there is -> the answer without `from`, or an error. What does not belong here: when they are asked
//! (`agent`), what processes and threads are told as (`forms`).

use profiler_wire::rdp::{ErrorName, ErrorReply, Packet, PacketSink};
use serde::Serialize;
use serde_json::{Value as Json, json};

use crate::machine::Life;
use crate::rdp::forms::{Actor, Names};
use crate::world::{ThreadKey, World};
use profiler_model::Pid;

/// Requests that ask who is there.
pub(super) const LOOKS: [&str; 5] = [
    "listTabs",
    "listProcesses",
    "getProcess",
    "getTab",
    "listThreads",
];

/// Requests after which it is told when there are others, and how.
pub(super) const LISTS: [(&str, &str); 2] = [
    ("listTabs", "tabListChanged"),
    ("listProcesses", "processListChanged"),
];

pub(super) const ROOT: [&str; 14] = [
    "connect",
    "getRoot",
    "listTabs",
    "getTab",
    "listProcesses",
    "getProcess",
    "listAddons",
    "listWorkers",
    "listServiceWorkerRegistrations",
    "watchResources",
    "unwatchResources",
    "protocolDescription",
    "requestTypes",
    "echo",
];

pub(super) const PROCESS: [&str; 3] = ["getTarget", "requestTypes", "listThreads"];

pub(super) const TARGET: [&str; 6] = [
    "attach",
    "detach",
    "getTarget",
    "listThreads",
    "listWorkers",
    "requestTypes",
];

pub(super) const THREAD: [&str; 2] = ["getTraceActor", "requestTypes"];

/// An answer without `from`; an error, or none if the request is not known.
pub(super) type Answer = Result<Json, Option<ErrorReply>>;

pub(super) fn root(world: &World, names: &Names, kind: &str, packet: &Packet) -> Answer {
    Ok(match kind {
        "connect" | "watchResources" | "unwatchResources" => json!({}),
        "getRoot" => json!({ "traits": {} }),
        "listTabs" => {
            let processes = world.processes();
            let tabs = processes.map(|(life, process)| names.tab(world, life, process));
            let mut tabs: Vec<Json> = tabs.collect();
            if let Some(first) = tabs.first_mut() {
                first["selected"] = true.into();
            }
            json!({ "tabs": tabs, "selected": 0 })
        }
        "listProcesses" => {
            let processes = world.processes();
            let forms = processes.map(|(life, process)| names.process(world, life, process));
            json!({ "processes": forms.collect::<Vec<_>>() })
        }
        "getProcess" | "getTab" => {
            let property = ["id", "outerWindowID", "browserId"]
                .into_iter()
                .find_map(|name| Some((name, packet.get(name)?)));
            let (name, value) = property.ok_or_else(|| ErrorReply::missing("id"))?;
            let pid = value.as_u64().and_then(|pid| u32::try_from(pid).ok());
            let pid = pid.ok_or_else(|| ErrorReply::bad_type(name, "a process id"))?;
            // Nobody is 0: it means the parent of all, whom clients look at first.
            let pid = Pid(pid.max(1));
            let gone = || {
                let text = format!("there is no process {pid}");
                ErrorReply::new(ErrorName::NoSuchProcess, text)
            };
            let life = world.life(pid).ok_or_else(gone)?;
            let process = world.process(life).ok_or_else(gone)?;
            let target = names.target(world, life, process);
            match kind {
                "getTab" => json!({ "tab": target }),
                _ => json!({
                    "processDescriptor": names.process(world, life, process),
                    "form": target,
                }),
            }
        }
        "listAddons" => json!({ "addons": [] }),
        "listWorkers" => json!({ "workers": [] }),
        "listServiceWorkerRegistrations" => json!({ "registrations": [] }),
        "protocolDescription" => json!({ "types": {} }),
        "requestTypes" => json!({ "requestTypes": ROOT }),
        "echo" => {
            let mut packet = packet.clone();
            packet.remove("to");
            Json::Object(packet)
        }
        _ => return Err(None),
    })
}

pub(super) fn process(world: &World, names: &Names, life: Life, kind: &str) -> Answer {
    let name = || names.of(Actor::Process(life));
    let process = world.process(life).ok_or_else(|| no_such_actor(&name()))?;
    Ok(match kind {
        "getTarget" => json!({ "process": names.target(world, life, process) }),
        "listThreads" => json!({ "threads": names.threads(world, life) }),
        "requestTypes" => json!({ "requestTypes": PROCESS }),
        _ => return Err(None),
    })
}

pub(super) fn target(world: &World, names: &Names, life: Life, kind: &str) -> Answer {
    let name = || names.of(Actor::Target(life));
    let process = world.process(life).ok_or_else(|| no_such_actor(&name()))?;
    let form = || names.target(world, life, process);
    Ok(match kind {
        "attach" => {
            let mut answer = json!({ "type": "tabAttached" });
            let form = form();
            for property in ["threadActor", "traceActor", "threads", "traits"] {
                answer[property] = form[property].clone();
            }
            answer
        }
        "detach" => json!({ "type": "detached" }),
        "getTarget" => json!({ "frame": form(), "process": form() }),
        "listThreads" => json!({ "threads": names.threads(world, life) }),
        "listWorkers" => json!({ "workers": [] }),
        "requestTypes" => json!({ "requestTypes": TARGET }),
        _ => return Err(None),
    })
}

pub(super) fn thread(world: &World, names: &Names, key: ThreadKey, kind: &str) -> Answer {
    let name = || names.of(Actor::Thread(key));
    let thread = world.thread(key).ok_or_else(|| no_such_actor(&name()))?;
    Ok(match kind {
        "getTraceActor" => names.thread(world, key, thread),
        "requestTypes" => json!({ "requestTypes": THREAD }),
        _ => return Err(None),
    })
}

/// What was just started is not known yet.
pub(super) fn is_early(error: &ErrorReply) -> bool {
    error.name == ErrorName::NoSuchProcess
}

pub(super) fn no_such_actor(name: &str) -> ErrorReply {
    ErrorReply::new(
        ErrorName::NoSuchActor,
        format!("there is no actor '{name}'"),
    )
}

pub(super) fn fail(out: &mut impl PacketSink, from: &str, error: &ErrorReply) {
    out.put(&Failed { from, error });
}

#[derive(Serialize)]
pub(super) struct Failed<'a> {
    from: &'a str,
    #[serde(flatten)]
    error: &'a ErrorReply,
}
