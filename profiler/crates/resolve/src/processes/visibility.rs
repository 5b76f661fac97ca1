//! Telling of some processes only: those of the cgroups that are recorded.
//!
//! All that is noticed is kept, because a process that begins outside may move in (a runtime makes a
//! container's first process outside of it); what is outside is hidden: neither announced nor told of.
//! A child is where its parent is, an exec where `pipeline` says, a sample or call is always inside.
//!
//! What does not belong here: which cgroups are recorded (`pipeline`).

use super::Processes;
use crate::mapped::Mapped;
use profiler_model::raw::Comm;
use profiler_model::{Pid, Timestamp};

impl Processes {
    /// From now on processes are hidden until something shows that they are inside.
    pub(crate) fn limit(&mut self) {
        self.limited = true;
    }

    /// Says where the exec of this time happened, which was noticed.
    pub(crate) fn notice_place(&mut self, pid: Pid, at: Timestamp, inside: bool) {
        let execs = self.execs.get_mut(&pid).into_iter().flatten();
        if let Some(exec) = execs.rev().find(|exec| exec.at == at) {
            exec.inside = Some(inside);
        }
    }

    /// A process is inside.
    pub(crate) fn show(&mut self, pid: Pid) {
        if let Some(process) = self.table.get_mut(pid)
            && std::mem::replace(&mut process.hidden, false)
        {
            self.seen += 1;
        }
    }

    /// The same of one that may not be known yet.
    pub(crate) fn show_or_adopt(&mut self, pid: Pid, at: Timestamp, mapped: &mut Mapped) {
        if self.limited {
            if self.table.get(pid).is_none() {
                self.adopt(pid, at, Some(Comm::default()), mapped);
            }
            self.show(pid);
        }
    }

    /// A process runs a new program, inside or not.
    pub(super) fn place_exec(&mut self, pid: Pid, inside: Option<bool>) {
        match inside.filter(|_| self.limited) {
            Some(true) => self.show(pid),
            Some(false) => {
                if let Some(process) = self.table.get_mut(pid) {
                    process.hidden = true;
                }
            }
            None => {}
        }
    }
}
