//! The services: a command and its arguments -> an answer.
//!
//! One file each. A service sees the [`State`] and the channel that asks; it knows no sockets. What
//! does not belong here: tokens, framing (`agent`).

use super::agent::ChannelId;
use super::arguments::Arguments;
use super::options::{Peer, TcfOptions};
use super::profile::Profiles;
use super::reply::{Answer, Outcome};
use super::world::World;
use crate::serve::machine::Machine;

/// The services that are offered, as Hello names them.
pub(super) const SERVICES: &[&str] = &["Locator"];

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
    let _ = (service, request, state);
    Ok(Outcome::Unknown)
}
