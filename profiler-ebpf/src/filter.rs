//! Whether the current thread is wanted; decided before any stack is walked.
//!
//! Conditions of different kinds must all hold, within one kind any may. Kinds that are not set
//! cost nothing: the verifier removes them.

use aya_ebpf::helpers::{bpf_get_current_comm, bpf_get_current_uid_gid};
use profiler_common::control::{
    FILTER_COMMS, FILTER_TASKS, FILTER_UIDS, WATCH_PROCESS, WATCH_THREAD,
};

use crate::maps::{COMMS, UIDS, WATCHED};

/// Whether the conditions of the kinds in `filter` (`FILTER_*` bits) want the current thread, whose
/// ids are given. Cgroups are looked at apart (`cgroup`): they may be undecided.
#[inline(always)]
pub fn admits(filter: u32, tgid: u32, tid: u32) -> bool {
    (filter & FILTER_TASKS == 0 || watches(tgid, WATCH_PROCESS) || watches(tid, WATCH_THREAD))
        && (filter & FILTER_COMMS == 0 || has_comm())
        && (filter & FILTER_UIDS == 0 || has_uid())
}

/// Whether `id` is watched as `kind`, a `WATCH_*` bit.
#[inline(always)]
fn watches(id: u32, kind: u32) -> bool {
    watched(id) & kind != 0
}

/// What `WATCHED` has of `id`; 0: nothing.
#[inline(always)]
pub fn watched(id: u32) -> u32 {
    // SAFETY: a value of one word; a slot that is reused meanwhile holds another id's bits, for an
    // instant in which that id was watched as well.
    unsafe { WATCHED.get(id) }.copied().unwrap_or(0)
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
