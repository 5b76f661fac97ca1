//! Whether the current thread is wanted; decided before any stack is walked.
//!
//! Conditions of different kinds must all hold, within one kind any may. Kinds that are not set
//! cost nothing: the verifier removes them.

use aya_ebpf::helpers::{bpf_get_current_comm, bpf_get_current_uid_gid, bpf_probe_read_kernel};
use profiler_common::{
    COMM_LEN,
    control::{FILTER_COMMS, FILTER_TASKS, FILTER_UIDS, WATCH_PROCESS, WATCH_THREAD},
    sched::{CRED_UID, TASK_COMM, TASK_CRED},
};

use crate::maps::{COMMS, UIDS, WAIT_OFFSETS, WATCHED};

/// Whether the conditions of the kinds in `filter` (`FILTER_*` bits) want the current thread, whose
/// ids are given. Cgroups are looked at apart (`cgroup`): they may be undecided.
#[inline(always)]
pub fn admits(filter: u32, tgid: u32, tid: u32) -> bool {
    (filter & FILTER_TASKS == 0 || watches(tgid, WATCH_PROCESS) || watches(tid, WATCH_THREAD))
        && (filter & FILTER_COMMS == 0 || has_comm())
        && (filter & FILTER_UIDS == 0 || has_uid())
}

/// The same of a task by its address; who asks has set `WAIT_OFFSETS`.
#[inline(always)]
pub fn admits_task(filter: u32, (tgid, tid): (u32, u32), task: u64) -> bool {
    (filter & FILTER_TASKS == 0 || watches(tgid, WATCH_PROCESS) || watches(tid, WATCH_THREAD))
        && (filter & FILTER_COMMS == 0 || task_has_comm(task))
        && (filter & FILTER_UIDS == 0 || task_has_uid(task))
}

#[inline(always)]
fn task_has_comm(task: u64) -> bool {
    let at = task + u64::from(WAIT_OFFSETS[TASK_COMM].load());
    // SAFETY: the helper reads kernel memory and fails where there is none.
    let comm = unsafe { bpf_probe_read_kernel(at as *const [u8; COMM_LEN]) };
    comm.is_ok_and(|comm| COMMS.get_ptr(comm).is_some())
}

#[inline(always)]
fn task_has_uid(task: u64) -> bool {
    let at = task + u64::from(WAIT_OFFSETS[TASK_CRED].load());
    // SAFETY: the helper reads kernel memory and fails where there is none.
    let uid = unsafe {
        bpf_probe_read_kernel(at as *const u64).and_then(|cred| {
            let at = cred + u64::from(WAIT_OFFSETS[CRED_UID].load());
            bpf_probe_read_kernel(at as *const u32)
        })
    };
    uid.is_ok_and(|uid| UIDS.get_ptr(uid).is_some())
}

/// Whether `id` is watched as `kind`, a `WATCH_*` bit.
#[inline(always)]
fn watches(id: u32, kind: u32) -> bool {
    watched(id) & kind != 0
}

/// What `WATCHED` has of `id`; 0: nothing.
#[inline(always)]
pub fn watched(id: u32) -> u32 {
    // SAFETY: one word of the value; a slot that is reused meanwhile holds another id's bits, for an
    // instant in which that id was watched as well.
    unsafe { WATCHED.get(id) }.map_or(0, |watched| watched.bits)
}

#[inline(always)]
fn has_comm() -> bool {
    let Ok(comm) = bpf_get_current_comm() else {
        return false;
    };
    COMMS.get_ptr(comm).is_some()
}

#[inline(always)]
fn has_uid() -> bool {
    UIDS.get_ptr(bpf_get_current_uid_gid() as u32).is_some()
}
