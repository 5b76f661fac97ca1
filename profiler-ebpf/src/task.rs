//! Follows the children of watched tasks, in the kernel, so that a child's first sample counts.
//!
//! Attached only if a filter names tasks. Of those that are watched, some are followed: what is added
//! for them says so, and from whom it descends, so that user space can take it out again. A task is
//! forgotten when the kernel frees it: a process's main task outlives all its other threads, so its
//! id stays watched while any of them runs. Its id may have been given out again by then, to a task that is
//! watched as well: what is forgotten is the life that has ended.
//!
//! Raw tracepoints hand over the kernel's own structure of a task, whose members user space finds in
//! the description of its types. A kernel that has none gets the programs for tracepoints' records
//! (`*_in_record`), whose layout tracefs describes.

use aya_ebpf::{
    EbpfContext,
    bindings::{BPF_ANY, BPF_EXIST},
    helpers::{bpf_get_current_pid_tgid, bpf_probe_read_kernel},
    programs::{RawTracePointContext, TracePointContext},
};
use aya_log_ebpf::{debug, warn};
use profiler_common::control::{
    WATCH_BY_KERNEL, WATCH_FOLLOW, WATCH_INHERITED, WATCH_PROCESS, WATCH_ROOT, WATCH_THREAD,
    WATCH_TICK_NS, Watched, watch_life, watch_task,
};

use crate::{
    filter::watched,
    maps::{
        COUNTERS, FREE_PID_OFFSET, NEWTASK_FLAGS_OFFSET, NEWTASK_PID_OFFSET, TASK_PID_OFFSET,
        TASK_START_OFFSET, WATCHED,
    },
};

/// From <linux/sched.h>: the new task is a thread of its creator's process.
const CLONE_THREAD: u64 = 0x10000;

/// A task was created by the current one and has not run yet: `task_newtask(task, clone_flags)`.
#[inline(always)]
pub fn watch_child(ctx: &RawTracePointContext) {
    if let Some(parent) = Parent::current()
        && let Some(child) = id_of(ctx.arg(0))
    {
        parent.gets(ctx, child, ctx.arg(1), watch_task(ctx.arg(0)));
    }
}

/// As [`watch_child`], by the record of the tracepoint.
#[inline(always)]
pub fn watch_child_in_record(ctx: &TracePointContext) {
    let Some(parent) = Parent::current() else {
        return;
    };
    // SAFETY: offsets of fields of this tracepoint's record, from its format.
    let (child, flags) = unsafe {
        (
            ctx.read_at::<u32>(NEWTASK_PID_OFFSET.load() as usize),
            ctx.read_at::<u64>(NEWTASK_FLAGS_OFFSET.load() as usize),
        )
    };
    if let (Ok(child), Ok(flags)) = (child, flags) {
        // There is no task to be told by. Of the lives that are still to be freed it is the last one.
        // SAFETY: a value that is read at once.
        let before = unsafe { WATCHED.get(child) }.map_or(0, |watched| match watched.life {
            life if life & WATCH_BY_KERNEL == 0 => 1,
            life => (life & !WATCH_BY_KERNEL) + 1,
        });
        parent.gets(ctx, child, flags, WATCH_BY_KERNEL | before);
    }
}

/// A task is gone for good; its id may be given out again: `sched_process_free(task)`.
#[inline(always)]
pub fn forget(ctx: &RawTracePointContext) {
    let task = ctx.arg(0);
    let Some(id) = id_of(task) else {
        return;
    };
    // SAFETY: a word that is read at once. Most freed tasks are not watched.
    let Some(life) = unsafe { WATCHED.get(id) }.map(|watched| watched.life) else {
        return;
    };
    let is_another = if life & WATCH_BY_KERNEL != 0 {
        life != watch_task(task)
    } else {
        life != 0 && start_of(task).is_some_and(|start| life != start)
    };
    if !is_another {
        let _ = WATCHED.remove(id);
    }
}

/// The life of a task, as user space says it; none if that is not known.
#[inline(always)]
fn start_of(task: u64) -> Option<u32> {
    let offset = TASK_START_OFFSET.load();
    if offset == 0 {
        return None;
    }
    // SAFETY: the helper reads kernel memory and fails where there is none.
    let start = unsafe { bpf_probe_read_kernel((task + u64::from(offset)) as *const u64) };
    Some(watch_life(start.ok()? / WATCH_TICK_NS))
}

/// As [`forget`], by the record of the tracepoint.
#[inline(always)]
pub fn forget_in_record(ctx: &TracePointContext) {
    // SAFETY: offset of a field of this tracepoint's record, from its format.
    let Ok(id) = (unsafe { ctx.read_at::<u32>(FREE_PID_OFFSET.load() as usize) }) else {
        return;
    };
    // SAFETY: a value that is copied at once.
    let Some(watched) = (unsafe { WATCHED.get(id) }).copied() else {
        return;
    };
    if watched.life > WATCH_BY_KERNEL {
        // A former one of that id.
        let later = Watched {
            life: watched.life - 1,
            ..watched
        };
        let _ = WATCHED.insert(id, later, u64::from(BPF_EXIST));
    } else {
        let _ = WATCHED.remove(id);
    }
}

/// The id of the task whose structure is there, in the initial namespace.
#[inline(always)]
fn id_of(task: u64) -> Option<u32> {
    let at = task + u64::from(TASK_PID_OFFSET.load());
    // SAFETY: the helper reads kernel memory and fails where there is none.
    unsafe { bpf_probe_read_kernel(at as *const u32) }.ok()
}

/// The current task, if what it creates is to be watched.
struct Parent {
    process: u32,
    thread: u32,
}

impl Parent {
    #[inline(always)]
    fn current() -> Option<Parent> {
        let ids = bpf_get_current_pid_tgid();
        let parent = Parent {
            process: watched((ids >> 32) as u32),
            thread: watched(ids as u32),
        };
        (parent.by_process() || parent.by_thread()).then_some(parent)
    }

    #[inline(always)]
    fn by_process(&self) -> bool {
        follows(self.process, WATCH_PROCESS)
    }

    #[inline(always)]
    fn by_thread(&self) -> bool {
        follows(self.thread, WATCH_THREAD)
    }

    /// It has created `child`, in this life of it.
    #[inline(always)]
    fn gets(&self, ctx: &impl EbpfContext, child: u32, flags: u64, life: u32) {
        let kind = if flags & CLONE_THREAD == 0 {
            WATCH_PROCESS
        } else if self.by_thread() {
            WATCH_THREAD
        } else {
            // A thread of a watched process is watched by its process id.
            return;
        };
        let of = if self.by_process() {
            self.process
        } else {
            self.thread
        };
        let bits = kind | WATCH_FOLLOW | WATCH_INHERITED | WATCH_ROOT & of;
        let watched = Watched { bits, life };
        if WATCHED.insert(child, watched, u64::from(BPF_ANY)).is_err() {
            if let Some(counters) = COUNTERS.get_ptr_mut(0) {
                // SAFETY: this processor's own slot, which the lookup returned.
                unsafe { (*counters).unfollowed += 1 };
            }
            warn!(ctx, "no room to follow task {}", child);
        } else {
            debug!(ctx, "following task {}, created by {}", child, ctx.pid());
        }
    }
}

/// Whether a value of `WATCHED` is of `kind`, and followed.
#[inline(always)]
fn follows(bits: u32, kind: u32) -> bool {
    bits & (kind | WATCH_FOLLOW) == kind | WATCH_FOLLOW
}
