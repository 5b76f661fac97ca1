//! In which cgroups processes are, by what samples say.
//!
//! Samples with the id of their thread's cgroup -> the places of processes, announced anew when they
//! change. Times are those of events.
//!
//! What does not belong here: which container a cgroup belongs to (`containers`).

use std::sync::Arc;

use crate::containers::Place;
use crate::intern::EpochTables;
use crate::proc_fs;
use crate::process::ProcessTable;
use profiler_model::{Pid, Tid, Timestamp};

impl ProcessTable {
    /// A process is in another cgroup than was thought, or one of its threads is.
    pub(crate) fn settle(
        &mut self,
        (pid, tid): (Pid, Tid),
        cgroup_id: u64,
        at: Timestamp,
        epoch: &mut EpochTables,
    ) {
        let Some(process) = self.get_mut(pid) else {
            return;
        };
        if std::mem::take(&mut process.unread_pids)
            && let Some(pids) = proc_fs::namespace_pids(pid)
        {
            Arc::make_mut(&mut process.facts).namespace_pids = pids;
            process.changed();
        }
        let is_main = tid.0 == pid.0;
        let elsewhere = !is_main && process.is_elsewhere(cgroup_id, at);
        let known = process.place.clone();
        let containers = &mut self.containers;
        let place = match containers.hierarchy() {
            Some(_) if !elsewhere => containers.place_of(cgroup_id),
            Some(_) => return,
            None => known.clone(),
        };
        if containers.hierarchy().is_none() || place.is_some() && (is_main || place == known) {
            if let Some(process) = self.get_mut(pid) {
                process.move_to(place, cgroup_id);
            }
        } else {
            self.settle_by_proc(pid, is_main, (cgroup_id, place), at);
        }
        self.announce(pid, epoch);
    }

    /// The same, where a sample alone does not tell: threads can be in cgroups of their own, and that of
    /// the process is its main thread's; and of a cgroup that is gone or out of reach, /proc may still
    /// know the path.
    fn settle_by_proc(
        &mut self,
        pid: Pid,
        is_main: bool,
        met: (u64, Option<Arc<Place>>),
        at: Timestamp,
    ) {
        let (id, place) = met;
        let containers = &mut self.containers;
        let own = proc_fs::cgroup(pid, containers.hierarchy());
        let own = own.and_then(|path| containers.place(&path));
        let Some(process) = self.get_mut(pid) else {
            return;
        };
        match own {
            Some(own) if is_main || place.as_ref() == Some(&own) => {
                process.move_to(Some(own), id);
            }
            Some(own) => {
                process.note_elsewhere(id, at);
                let same = process.place.as_ref() == Some(&own);
                let id = if same { process.cgroup_id } else { 0 };
                process.move_to(Some(own), id);
            }
            // It has ended. Each cgroup of its other threads counts once, the last one holds.
            None if !is_main && !process.note_elsewhere(id, at) => {}
            None => {
                let told_by_proc = process.cgroup_id == 0;
                let before = process.place.clone().filter(|_| told_by_proc);
                process.move_to(place.or(before), id);
            }
        }
    }
}
