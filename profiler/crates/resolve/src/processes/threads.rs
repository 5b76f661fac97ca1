//! Threads that something happens to: known, shown, in their cgroup, and announced.
//!
//! Ids of the kernel -> ids of the epoch. Times are those of events.
//!
//! What does not belong here: what becomes of threads (`super`).

use super::Processes;
use crate::epoch::Epoch;
use crate::mapped::Mapped;
use crate::proc_fs;
use profiler_model::raw::Comm;
use profiler_model::{Pid, ProcessId, ThreadId, Tid, Timestamp};

impl Processes {
    /// The thread of a sample. One that had no name was not told of before.
    pub(crate) fn sampled(
        &mut self,
        at: Timestamp,
        (pid, tid): (Pid, Tid),
        (cgroup, comm): (u64, Comm),
        mapped: &mut Mapped,
        epoch: &mut Epoch,
    ) -> Option<ThreadId> {
        self.place(at, (pid, tid), (cgroup, comm), mapped, epoch);
        self.table
            .announce_thread(tid, Some((at, comm)), &mut epoch.tables)
    }

    /// The thread of a wait; an empty name is none.
    pub(crate) fn waiting(
        &mut self,
        at: Timestamp,
        (pid, tid): (Pid, Tid),
        (cgroup, comm): (u64, Comm),
        mapped: &mut Mapped,
        epoch: &mut Epoch,
    ) -> Option<ThreadId> {
        let known = self.table.thread(tid);
        let comm = match known.is_some_and(|thread| thread.pid == pid) {
            false if comm == Comm::default() => proc_fs::thread_comm(pid, tid).unwrap_or_default(),
            _ => comm,
        };
        self.place(at, (pid, tid), (cgroup, comm), mapped, epoch);
        let named = comm != Comm::default();
        let comm = named.then_some((at, comm));
        self.table.announce_thread(tid, comm, &mut epoch.tables)
    }

    /// The thread that ended a wait. One that is not recorded is only known if it is for other reasons.
    pub(crate) fn waker(
        &mut self,
        at: Timestamp,
        (pid, tid): (Pid, Tid),
        mapped: &mut Mapped,
        epoch: &mut Epoch,
    ) -> Option<ThreadId> {
        if tid.0 == 0 {
            return None;
        }
        let known = self.table.thread(tid);
        if known.is_none_or(|thread| thread.pid != pid) {
            if self.are_some() {
                return None;
            }
            let comm = proc_fs::thread_comm(pid, tid).unwrap_or_default();
            self.meet((pid, tid), comm, at, 0, mapped);
        }
        self.table.announce_thread(tid, None, &mut epoch.tables)
    }

    /// The thread of a call.
    #[inline]
    pub(crate) fn calling(
        &mut self,
        at: Timestamp,
        (pid, tid): (Pid, Tid),
        mapped: &mut Mapped,
        epoch: &mut Epoch,
    ) -> Option<ThreadId> {
        let known = self.table.thread(tid);
        if known.is_none_or(|thread| thread.pid != pid || thread.exited) {
            let comm = self.table.get(pid).map(|process| process.comm);
            self.meet((pid, tid), comm.unwrap_or_default(), at, 0, mapped);
        }
        self.table.announce_thread(tid, None, &mut epoch.tables)
    }

    /// A process in which calls are missing. It may have ended before it could be told to be one of those
    /// that are recorded.
    pub(crate) fn with_gap(
        &mut self,
        at: Timestamp,
        pid: Pid,
        mapped: &mut Mapped,
        epoch: &mut Epoch,
    ) -> Option<ProcessId> {
        self.show_or_adopt(pid, at, mapped);
        self.meet((pid, Tid(pid.0)), Comm::default(), at, 0, mapped);
        self.table.announce(pid, &mut epoch.tables)
    }

    /// Makes sure that a process whose stack goes on in a copy is known, without a name if need be.
    pub(crate) fn meet_unnamed(
        &mut self,
        at: Timestamp,
        (pid, tid): (Pid, Tid),
        mapped: &mut Mapped,
    ) {
        if self.table.get(pid).is_none() {
            let comm = proc_fs::thread_comm(pid, tid).unwrap_or_default();
            self.meet((pid, tid), comm, at, 0, mapped);
        }
    }

    /// Makes sure that a thread is known, and that its process is shown and in the right cgroup.
    fn place(
        &mut self,
        at: Timestamp,
        (pid, tid): (Pid, Tid),
        (cgroup, comm): (u64, Comm),
        mapped: &mut Mapped,
        epoch: &mut Epoch,
    ) {
        let settled = self.meet((pid, tid), comm, at, cgroup, mapped);
        self.show_or_adopt(pid, at, mapped);
        if !settled && cgroup != 0 {
            let tables = &mut epoch.tables;
            self.table.settle((pid, tid), cgroup, at, tables);
        }
    }
}
