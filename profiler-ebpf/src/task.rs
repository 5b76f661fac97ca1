//! Follows the children of watched tasks, in the kernel, so that a child's first sample counts.
//!
//! Attached only if a filter names tasks. Of those that are watched, some are followed: what is added
//! for them says so, and from whom it descends, so that user space can take it out again. A task is
//! forgotten when the kernel frees it: a process's main task outlives all its other threads, so its
//! id stays watched while any of them runs.

use aya_ebpf::{
    EbpfContext, bindings::BPF_ANY, helpers::bpf_get_current_pid_tgid, programs::TracePointContext,
};
use aya_log_ebpf::{debug, warn};
use profiler_common::control::{
    WATCH_FOLLOW, WATCH_INHERITED, WATCH_PROCESS, WATCH_ROOT, WATCH_THREAD,
};

use crate::{
    filter::watched,
    maps::{COUNTERS, FREE_PID_OFFSET, NEWTASK_FLAGS_OFFSET, NEWTASK_PID_OFFSET, WATCHED},
};

/// From <linux/sched.h>: the new task is a thread of its creator's process.
const CLONE_THREAD: u64 = 0x10000;

/// A task was created by the current one and has not run yet.
#[inline(always)]
pub fn watch_child(ctx: &TracePointContext) -> u32 {
    let ids = bpf_get_current_pid_tgid();
    let (process, thread) = (watched((ids >> 32) as u32), watched(ids as u32));
    let by_process = follows(process, WATCH_PROCESS);
    let by_thread = follows(thread, WATCH_THREAD);
    if !by_process && !by_thread {
        return 0;
    }
    let root = WATCH_ROOT & if by_process { process } else { thread };
    // SAFETY: offsets of fields of this tracepoint's record, from its format.
    let (child, flags) = unsafe {
        (
            ctx.read_at::<u32>(NEWTASK_PID_OFFSET.load() as usize),
            ctx.read_at::<u64>(NEWTASK_FLAGS_OFFSET.load() as usize),
        )
    };
    let (Ok(child), Ok(flags)) = (child, flags) else {
        return 0;
    };
    let kind = if flags & CLONE_THREAD == 0 {
        WATCH_PROCESS
    } else if by_thread {
        WATCH_THREAD
    } else {
        // A thread of a watched process is watched by its process id.
        return 0;
    };
    let bits = kind | WATCH_FOLLOW | WATCH_INHERITED | root;
    if WATCHED.insert(child, bits, u64::from(BPF_ANY)).is_err() {
        if let Some(counters) = COUNTERS.get_ptr_mut(0) {
            // SAFETY: this processor's own slot, which the lookup returned.
            unsafe { (*counters).unfollowed += 1 };
        }
        warn!(ctx, "no room to follow task {}", child);
    } else {
        debug!(ctx, "following task {}, created by {}", child, ctx.pid());
    }
    0
}

/// Whether a value of `WATCHED` is of `kind`, and followed.
#[inline(always)]
fn follows(bits: u32, kind: u32) -> bool {
    bits & (kind | WATCH_FOLLOW) == kind | WATCH_FOLLOW
}

/// A task is gone for good; its id may be given out again.
#[inline(always)]
pub fn forget(ctx: &TracePointContext) -> u32 {
    // SAFETY: offset of a field of this tracepoint's record, from its format.
    if let Ok(id) = unsafe { ctx.read_at::<u32>(FREE_PID_OFFSET.load() as usize) } {
        // Most freed tasks were not watched; that is no error.
        let _ = WATCHED.remove(id);
    }
    0
}
