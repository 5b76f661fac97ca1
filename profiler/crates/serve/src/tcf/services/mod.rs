//! The services: a command and its arguments -> an answer; what happened -> events for all clients.
//!
//! One file each. A service sees the [`State`] and the channel that asks; it knows no sockets.
//!
//! An answer begins with a field for an error, empty if there is none. Of an id that nobody knows the
//! error is "invalid context" (16), of a context that has ended "already exited" (11), but not before clients
//! were told of its end: until then it is answered as if it lived. What does not belong here: tokens, framing
//! (`agent`).

pub(super) mod arity;
mod control;
mod diagnostics;
mod farewell;
mod formatted;
mod line_numbers;
pub(super) mod locator;
mod memory_map;
mod processes;
mod profiler;
mod run_control;
mod symbols;
mod sys_monitor;

use std::time::Instant;

use super::agent::ChannelId;
use super::arguments::{Arguments, Malformed};
use super::options::{Peer, TcfOptions};
use super::profile::Profiles;
use super::reply::{Answer, Outcome, Reply};
use super::world::{Context, ContextKey, World};
use crate::machine::{Machine, MachineError};
use profiler_wire::tcf::{Code, ErrorReport};

use control::Stops;
use farewell::Farewells;

/// The services that are offered, as Hello names them.
pub(super) const SERVICES: &[&str] = &[
    "Locator",
    "Profiler",
    "RunControl",
    "Processes",
    "SysMonitor",
    "MemoryMap",
    "Symbols",
    "LineNumbers",
    "Diagnostics",
];

/// Characters of an id or a name that are repeated in an error's text.
const SHOWN_CHARS: usize = 80;

/// What all services share.
pub(super) struct State {
    pub(super) options: TcfOptions,
    pub(super) world: World,
    pub(super) profiles: Profiles,
    pub(super) machine: Box<dyn Machine>,
    /// Processes that clients have stopped.
    pub(super) stops: Stops,
    /// What has ended and clients are not told of yet.
    pub(super) farewells: Farewells,
}

/// A command.
pub(super) struct Request<'a> {
    /// Who asks.
    pub(super) channel: ChannelId,
    /// Where that is.
    pub(super) peer: Peer,
    /// What for.
    pub(super) command: &'a str,
    /// With what.
    pub(super) arguments: Arguments<'a>,
    /// There is no later: patience is over.
    pub(super) last_try: bool,
    /// When that is.
    pub(super) now: Instant,
}

/// Something that all clients are told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TcfEvent {
    /// To which service it belongs.
    pub(super) service: &'static str,
    /// What happened.
    pub(super) event: &'static str,
    /// More of it, each in JSON.
    pub(super) arguments: Vec<Vec<u8>>,
}

/// Carries out a command.
pub(super) fn call(service: &str, request: Request<'_>, state: &mut State) -> Answer {
    match service {
        "Diagnostics" => diagnostics::call(request),
        "LineNumbers" => line_numbers::call(request, state),
        "MemoryMap" => memory_map::call(request, state),
        "Processes" => processes::call(request, state),
        "Profiler" => profiler::call(request, state),
        "RunControl" => run_control::call(request, state),
        "Symbols" => symbols::call(request, state),
        "SysMonitor" => sys_monitor::call(request, state),
        _ => Ok(Outcome::Unknown),
    }
}

/// What has happened since the last call.
pub(super) fn events(state: &mut State, now: Instant) -> Vec<TcfEvent> {
    let State {
        world,
        profiles,
        farewells,
        ..
    } = state;
    let mut changes = world.changes();
    let added = changes.added.iter().filter_map(|&key| world.context(key));
    changes.removed = farewells.due(
        std::mem::take(&mut changes.removed),
        added.map(|context| &*context.id),
        &profiles.unread(),
        now,
    );
    for id in &changes.removed {
        world.told(id);
    }
    let mut events = run_control::changed(&changes, state);
    events.extend(memory_map::changed(&changes, state));
    control::watch(state);
    events.extend(run_control::stopped(state));
    events
}

/// A channel has closed: what it has stopped goes on.
pub(super) fn closed(channel: ChannelId, state: &mut State) {
    control::release(channel, state);
}

impl State {
    /// With nothing in it yet.
    pub(super) fn new(options: TcfOptions, machine: Box<dyn Machine>) -> State {
        State {
            world: World::new(options.replay, options.limits.afterlife),
            profiles: Profiles::new(options.limits.clone(), options.replay),
            machine,
            stops: Stops::default(),
            farewells: Farewells::default(),
            options,
        }
    }

    /// The context of an id, whether it has ended or not.
    fn known(&self, id: &str) -> Result<(ContextKey, &Context), ErrorReport> {
        let key = self.world.find(id);
        let found = key.and_then(|key| Some((key, self.world.context(key)?)));
        let found = found.ok_or_else(|| {
            ErrorReport::new(
                Code::InvalidContext,
                format!("Invalid context {}", shown(id)),
            )
        })?;
        found.1.seen.set(true);
        Ok(found)
    }

    /// The context of an id, unless clients know that it has ended.
    fn living(&self, id: &str) -> Result<(ContextKey, &Context), ErrorReport> {
        let (key, context) = self.known(id)?;
        match context.gone {
            true => Err(exited(id)),
            false => Ok((key, context)),
        }
    }

    /// Names are asked for in a process: until that is over, clients are not told of its end.
    fn asks_names(&mut self, process: ContextKey, now: Instant) {
        if let Some(process) = self.world.context(process) {
            self.farewells.asked(&process.id, now);
        }
    }

    /// The process that a context belongs to or is.
    fn process_of<'a>(&'a self, context: &'a Context) -> &'a Context {
        self.world.context(context.process).unwrap_or(context)
    }

    /// Whether anything can be controlled here, by whomsoever.
    fn offers_control(&self) -> bool {
        self.options.control && self.options.replay.is_none()
    }

    /// A text of the definitions.
    fn text(&self, id: Option<profiler_model::StringId>) -> Option<&str> {
        let text = self.world.tables().string(id?);
        (!text.is_empty()).then_some(text)
    }
}

impl Request<'_> {
    /// The next argument: a context's id. Null is an id that nothing has.
    fn id(&mut self) -> Result<String, Malformed> {
        Ok(self.arguments.maybe_text()?.unwrap_or_default())
    }
}

/// An answer, or an error and as many nulls as there would have been fields behind it.
fn answer(result: Result<Reply, ErrorReport>, nulls: usize) -> Answer {
    match result {
        Ok(reply) => reply.done(),
        Err(report) => (0..nulls)
            .fold(Reply::report(report), |reply, _| reply.null())
            .done(),
    }
}

/// What comes of something that the machine was asked.
fn machine_error(error: MachineError, id: &str) -> ErrorReport {
    match error {
        MachineError::Ended => exited(id),
        MachineError::Recording => unsupported(error.to_string()),
        MachineError::System(text) => {
            ErrorReport::new(Code::Other, format!("{}: {text}", shown(id)))
        }
    }
}

/// This is not done here, for that reason.
fn unsupported(text: impl Into<String>) -> ErrorReport {
    ErrorReport::new(Code::Unsupported, text)
}

fn exited(id: &str) -> ErrorReport {
    ErrorReport::new(Code::AlreadyExited, format!("{} has ended", shown(id)))
}

/// The beginning of what a client has sent, for an error's text.
fn shown(text: &str) -> String {
    let mut shown: String = text.chars().take(SHOWN_CHARS).collect();
    if shown.len() < text.len() {
        shown.push('…');
    }
    shown
}

#[cfg(test)]
mod tests;
