//! Which processes are the profiler: this one, and those that it runs for itself.
//!
//! Starts of processes, as `profiler_target::background` tells and as the kernel records them -> whether a process id is one
//! of ours. What does not belong here: what is done with their samples (`collector`), how a report finds them
//! (`profiler_report::derive::recorder`).

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use profiler_model::Pid;
use profiler_model::raw::{RawBody, RawEvent};
use profiler_target::background::{self, Told};

/// The processes. Those that have ended stay until others get their ids: what they did is recorded later than it was.
pub(super) struct OwnProcesses {
    this: Pid,
    /// In a namespace of ids others have these numbers: nobody is ours then, rather than somebody else.
    are_known: bool,
    /// Started by this one, and what is recorded.
    command: Option<Pid>,
    helpers: Arc<Mutex<BTreeSet<Pid>>>,
    /// Told of helpers while it lives.
    _told: Arc<Told>,
}

impl OwnProcesses {
    pub(super) fn watch(command: Option<Pid>) -> OwnProcesses {
        let helpers = Arc::new(Mutex::new(BTreeSet::new()));
        let known = Arc::clone(&helpers);
        let told: Arc<Told> = Arc::new(move |pid, is_there| {
            if is_there {
                lock(&known).insert(Pid(pid));
            }
        });
        background::tell(&told);
        OwnProcesses {
            this: Pid(std::process::id()),
            are_known: profiler_probe::features::has_machine_ids(),
            command,
            helpers,
            _told: told,
        }
    }

    /// As it is now, with what these events tell of processes.
    pub(super) fn now(&self, events: &[RawEvent]) -> Own {
        let mut helpers = lock(&self.helpers);
        for event in events {
            let RawBody::Fork {
                pid, parent_pid, ..
            } = event.body
            else {
                continue;
            };
            let is_thread = pid == parent_pid;
            if is_thread || Some(pid) == self.command {
                continue;
            }
            // Who is started works before we are told of it.
            match parent_pid == self.this || helpers.contains(&parent_pid) {
                true => helpers.insert(pid),
                false => helpers.remove(&pid),
            };
        }
        match self.are_known {
            true => Own {
                this: Some(self.this),
                helpers: helpers.clone(),
            },
            false => Own::default(),
        }
    }
}

fn lock(helpers: &Mutex<BTreeSet<Pid>>) -> MutexGuard<'_, BTreeSet<Pid>> {
    helpers.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The processes at one time.
#[derive(Default)]
pub(super) struct Own {
    this: Option<Pid>,
    helpers: BTreeSet<Pid>,
}

impl Own {
    pub(super) fn has(&self, pid: Pid) -> bool {
        Some(pid) == self.this || self.helpers.contains(&pid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use profiler_model::{Cpu, Tid, Timestamp};

    fn fork(parent: u32, pid: u32) -> RawEvent {
        RawEvent {
            at: Timestamp(1),
            cpu: Cpu(0),
            body: RawBody::Fork {
                pid: Pid(pid),
                tid: Tid(pid),
                parent_pid: Pid(parent),
                parent_tid: Tid(parent),
            },
        }
    }

    #[test]
    fn what_helpers_start_is_ours_until_others_have_their_ids() {
        let [early, late, command, child, other] = [0, 1, 2, 3, 4].map(|n| 4_000_000 + n);
        let own = OwnProcesses {
            are_known: true,
            ..OwnProcesses::watch(Some(Pid(command)))
        };
        let this = own.this.0;
        own.helpers.lock().unwrap().insert(Pid(early));
        let now = own.now(&[fork(this, late), fork(this, command), fork(early, child)]);
        let of = |now: &Own| [this, early, late, command, child].map(|pid| now.has(Pid(pid)));
        assert_eq!(of(&now), [true, true, true, false, true]);
        // It has ended, and its id is another's.
        let now = own.now(&[fork(other, early), fork(command, other)]);
        assert_eq!(of(&now), [true, false, true, false, true]);
    }
}
