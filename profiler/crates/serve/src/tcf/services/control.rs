//! Control of processes: who may do what to which, and what clients have stopped.
//!
//! Nothing can be controlled without `--allow-control`, and then only processes that the peer's user
//! owns; root's are all. A peer whose user nobody knows owns none. A process is stopped by its kernel
//! (SIGSTOP), whole; when the channel that stopped it closes, it goes on. What does not belong here:
//! which commands there are.

use std::collections::BTreeMap;

use super::{State, exited, machine_error, unsupported};
use crate::machine::{Control, MachineError};
use crate::tcf::agent::ChannelId;
use crate::tcf::options::Peer;
use crate::tcf::world::ContextKey;
use profiler_wire::tcf::{Code, ErrorReport};

/// "Operation not permitted".
const EPERM: i32 = 1;
/// "No such process".
const ESRCH: i32 = 3;
const ROOT: u32 = 0;
/// Stopped processes that are looked at each time.
const WATCHED: usize = 64;

/// Processes that clients have stopped.
#[derive(Debug, Default)]
pub(in crate::tcf) struct Stops {
    stopped: BTreeMap<ContextKey, Stop>,
    /// What clients have not been told yet.
    news: Vec<News>,
    /// The one that was looked at last.
    looked: Option<ContextKey>,
}

#[derive(Debug)]
struct Stop {
    by: ChannelId,
    /// The kernel says so too.
    seen: bool,
}

/// What has become of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum News {
    /// Clients have stopped it.
    Stopped(ContextKey),
    /// It goes on.
    Continued(ContextKey),
}

impl Stops {
    /// Whether clients have stopped this process.
    pub(super) fn contains(&self, process: ContextKey) -> bool {
        self.stopped.contains_key(&process)
    }

    /// What is new.
    pub(super) fn news(&mut self) -> Vec<News> {
        std::mem::take(&mut self.news)
    }

    fn add(&mut self, process: ContextKey, by: ChannelId) {
        self.stopped.insert(process, Stop { by, seen: false });
        self.news.push(News::Stopped(process));
    }

    fn remove(&mut self, process: ContextKey) {
        if self.stopped.remove(&process).is_some() {
            self.news.push(News::Continued(process));
        }
    }
}

/// Does something to the process of a context, if the peer may.
pub(super) fn control(
    state: &State,
    peer: Peer,
    id: &str,
    control: Control,
) -> Result<ContextKey, ErrorReport> {
    let (_, context) = state.living(id)?;
    let (key, process) = (context.process, state.process_of(context));
    if process.gone {
        return Err(exited(id));
    }
    if state.options.replay.is_some() {
        return Err(machine_error(MachineError::Recording, id));
    }
    if !state.options.control {
        return Err(unsupported(
            "processes are not controlled here: start the agent with --allow-control",
        ));
    }
    if process.life.pid.0 == std::process::id() {
        return Err(unsupported(
            "this is the agent itself, which nobody controls",
        ));
    }
    let failed = |error| match error {
        // Clients have not been told yet.
        MachineError::Ended => ErrorReport::system(ESRCH, format!("{id}: no such process")),
        error => machine_error(error, id),
    };
    let owner = state.machine.owner(process.life).map_err(failed)?;
    if !may(peer.uid, owner) {
        let user = peer.uid.map_or_else(
            || "a user that is not known".to_owned(),
            |uid| format!("user {uid}"),
        );
        return Err(ErrorReport::system(
            EPERM,
            format!("{id} belongs to user {owner}, not to {user}"),
        ));
    }
    state
        .machine
        .control(process.life, control)
        .map_err(failed)?;
    log::info!(
        "{control:?}: process {} ({}), for {} of user {}",
        process.life.pid,
        process.name.escape_debug(),
        peer.address,
        peer.uid.unwrap_or_default(),
    );
    Ok(key)
}

fn may(peer: Option<u32>, owner: u32) -> bool {
    peer.is_some_and(|uid| uid == ROOT || uid == owner)
}

/// Stops a process until [`resume`] or the end of the channel.
pub(super) fn suspend(
    state: &mut State,
    channel: ChannelId,
    peer: Peer,
    id: &str,
) -> Result<(), ErrorReport> {
    let process = state.living(id)?.1.process;
    if state.stops.contains(process) {
        return Err(ErrorReport::new(
            Code::AlreadyStopped,
            format!("{id} is stopped already"),
        ));
    }
    control(state, peer, id, Control::Stop)?;
    state.stops.add(process, channel);
    Ok(())
}

/// Ends a process in the way that it can handle, for which it has to run.
pub(super) fn terminate(state: &mut State, peer: Peer, id: &str) -> Result<(), ErrorReport> {
    let process = control(state, peer, id, Control::Terminate)?;
    wake(state, process);
    Ok(())
}

/// Lets a process go on that a client has stopped, whichever.
pub(super) fn resume(state: &mut State, peer: Peer, id: &str) -> Result<(), ErrorReport> {
    let process = state.living(id)?.1.process;
    if state.offers_control() && !state.stops.contains(process) {
        return Err(ErrorReport::new(
            Code::AlreadyRunning,
            format!("{id} was not stopped here"),
        ));
    }
    control(state, peer, id, Control::Continue)?;
    state.stops.remove(process);
    Ok(())
}

/// A process that is stopped here goes on: a channel has closed, or it was sent what it could not
/// handle otherwise.
pub(super) fn wake(state: &mut State, process: ContextKey) {
    if !state.stops.contains(process) {
        return;
    }
    if let Some(context) = state.world.context(process) {
        let pid = context.life.pid;
        match state.machine.control(context.life, Control::Continue) {
            Ok(()) | Err(MachineError::Ended) => {}
            Err(error) => log::warn!("process {pid} stays stopped: {error}"),
        }
    }
    state.stops.remove(process);
}

/// Lets go on what a channel has stopped.
pub(super) fn release(channel: ChannelId, state: &mut State) {
    let stopped = state.stops.stopped.iter();
    let own: Vec<ContextKey> = stopped
        .filter(|(_, stop)| stop.by == channel)
        .map(|(&process, _)| process)
        .collect();
    for process in own {
        wake(state, process);
    }
}

/// Looks whether what clients have stopped has ended or been continued by others.
pub(super) fn watch(state: &mut State) {
    let stops = &mut state.stops;
    let from = stops.looked.map_or(0, |key| key.0.saturating_add(1));
    let next = stops.stopped.range_mut(ContextKey(from)..).take(WATCHED);
    let (mut gone, mut continued) = (Vec::new(), Vec::new());
    stops.looked = None;
    for (&process, stop) in next {
        stops.looked = Some(process);
        let context = state.world.context(process);
        let Some(context) = context.filter(|context| !context.ended) else {
            gone.push(process);
            continue;
        };
        match state.machine.status(context.life) {
            Ok(status) if matches!(status.state, 'T' | 't') => stop.seen = true,
            Ok(_) if stop.seen => continued.push(process),
            Err(MachineError::Ended) => gone.push(process),
            Ok(_) | Err(_) => {}
        }
    }
    for process in gone {
        stops.stopped.remove(&process);
    }
    for process in continued {
        stops.remove(process);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whose_processes_may_be_controlled() {
        for (peer, owner, expected) in [
            (Some(0), 0, true),
            (Some(0), 1000, true),
            (Some(1000), 1000, true),
            (Some(1000), 1001, false),
            (Some(1000), 0, false),
            (None, 0, false),
            (None, 1000, false),
        ] {
            assert_eq!(may(peer, owner), expected, "{peer:?} {owner}");
        }
    }
}
