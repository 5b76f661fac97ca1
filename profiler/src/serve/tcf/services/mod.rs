//! The services: a command and its arguments -> an answer.
//!
//! One file each. A service sees the [`State`] and the channel that asks; it knows no sockets. What
//! does not belong here: tokens, framing (`agent`).

mod diagnostics;
pub(super) mod locator;

use super::agent::ChannelId;
use super::arguments::Arguments;
use super::options::{Peer, TcfOptions};
use super::profile::Profiles;
use super::reply::{Answer, Outcome};
use super::world::World;
use crate::serve::machine::Machine;

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

/// What all services share.
pub(super) struct State {
    pub(super) options: TcfOptions,
    pub(super) world: World,
    pub(super) profiles: Profiles,
    pub(super) machine: Box<dyn Machine>,
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
}

/// Carries out a command.
pub(super) fn call(service: &str, request: Request<'_>, state: &mut State) -> Answer {
    let _ = state;
    match service {
        "Diagnostics" => diagnostics::call(request),
        _ => Ok(Outcome::Unknown),
    }
}

/// Something that happened, told to all clients.
pub(super) struct TcfEvent {
    /// To which service.
    pub(super) service: &'static str,
    /// What.
    pub(super) event: &'static str,
    /// More of it, each in JSON.
    pub(super) arguments: Vec<Vec<u8>>,
}

/// What has happened since the last call.
pub(super) fn events(_state: &mut State) -> Vec<TcfEvent> {
    Vec::new()
}
