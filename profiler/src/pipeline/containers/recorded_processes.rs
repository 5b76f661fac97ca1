//! The processes that are in cgroups that are recorded, as the kernel tells of them.
//!
//! Process events as drained, /proc/PID/cgroup at an exec -> whether an event concerns the recording. A
//! child is where its parent is. What does not belong here: which cgroups are wanted (`decisions`).

use rustc_hash::FxHashSet;

use profiler_model::Pid;
use profiler_model::raw::{RawBody, RawEvent};

/// The processes in recorded cgroups.
#[derive(Debug, Default)]
pub(super) struct RecordedProcesses(FxHashSet<Pid>);

impl RecordedProcesses {
    /// Adds processes.
    pub(super) fn add(&mut self, pids: impl IntoIterator<Item = Pid>) {
        self.0.extend(pids);
    }

    /// Those that are in.
    pub(super) fn pids(&self) -> Vec<Pid> {
        self.0.iter().copied().collect()
    }

    /// Whether an event is of a process that is in. `wants` says it of the cgroup that a process is in
    /// when it runs a new program; none: that is not known yet.
    pub(super) fn has(
        &mut self,
        event: &RawEvent,
        wants: &mut dyn FnMut(Pid) -> Option<Option<bool>>,
    ) -> Option<bool> {
        match &event.body {
            RawBody::Fork {
                pid, parent_pid, ..
            } => {
                let inside = self.0.contains(parent_pid);
                if inside {
                    self.0.insert(*pid);
                } else if pid != parent_pid {
                    // Its id may have been that of a process of ours before.
                    self.0.remove(pid);
                }
                Some(inside)
            }
            RawBody::Comm {
                pid, exec: true, ..
            } => match wants(*pid) {
                Some(Some(true)) => {
                    self.0.insert(*pid);
                    Some(true)
                }
                Some(Some(false)) => {
                    self.0.remove(pid);
                    Some(false)
                }
                Some(None) => None,
                // It has ended: it was where it came from.
                None => Some(self.0.contains(pid)),
            },
            RawBody::Comm { pid, .. } | RawBody::Exit { pid, .. } => Some(self.0.contains(pid)),
            RawBody::Mmap(mmap) => Some(self.0.contains(&mmap.pid)),
            _ => Some(true),
        }
    }
}
