//! Waits: a thread leaves its processor, is made runnable, and goes on -> `WaitRecord`s, the stacks
//! that they name, and exact totals per thread.
//!
//! At a switch out only time, reason and a key of the stack are kept; the stack is walked if the key
//! is not known. The key is made of what can be had without a walk: the thread, its user registers,
//! how deep its kernel stack is. At the switch in the wait's length is known: long waits are recorded
//! always, if need be without a stack; short ones, when there are many, with a chance in proportion to their length,
//! and then stand for others. Times are nanoseconds of CLOCK_MONOTONIC.
//!
//! These programs run with interrupts disabled.

mod chance;
mod key;
pub mod python;
mod record;
mod stacks;
mod threads;
mod waiting;
mod waking;

use core::arch::asm;

use aya_ebpf::{
    EbpfContext,
    helpers::{bpf_get_current_pid_tgid, bpf_ktime_get_ns, bpf_probe_read_kernel},
    programs::RawTracePointContext,
};
use profiler_common::{
    cgroup::{CGROUP_UNDECIDED, CGROUP_WANTED},
    control::{FILTER_ASKED, FILTER_CGROUPS},
    sample::FLAG_UNDECIDED,
    sched::{
        KEY_NOT_WALKED, LONG_WAIT_NS, STATE_DISK, STATE_NEW, STATE_PREEMPTED, STATE_SLEEPING,
        STATE_STOPPED, SWITCH_STATE_LAST, SWITCH_STATE_SECOND, TASK_PID, TASK_STATE, ThreadWaits,
    },
};

use self::{
    chance::{can_walk_again, share, turn_window, weight},
    key::{is_known, key_of},
    record::{record, tell},
    stacks::walk,
    threads::{find, find_or_add, forget},
};
pub use self::{
    threads::{on_exec, on_new},
    waiting::on_task,
    waking::on_waking,
};
use crate::{
    cgroup, filter, interpreter,
    maps::{FILTER, KERNEL_STACKS, USER_STACKS, WAIT_CPU, WAIT_OFFSETS, WAIT_SWITCH, WaitCpu},
};

/// From <linux/sched.h>: what a task waits in.
const TASK_INTERRUPTIBLE: u32 = 1;
const TASK_UNINTERRUPTIBLE: u32 = 2;
const TASK_STOPPED: u32 = 4;
const TASK_TRACED: u32 = 8;
const TASK_DEAD: u32 = 0x80;
const TASK_NOLOAD: u32 = 0x400;

/// Whether a thread that was wanted still is, which cgroup it is in, if nothing is decided by that, and
/// which interpreter its process runs is looked at again after this time.
const PLACE_NS: u64 = 100_000_000;
/// Totals are told when they are this old.
const TELL_NS: u64 = 1_000_000_000;
/// A thread is made runnable while it is still on its way to sleep, at most this long before it has
/// left its processor.
const MOST_EARLY_NS: u64 = 1_000_000;

/// A thread leaves this processor, another one goes on.
#[inline(always)]
pub fn on_switch(ctx: &RawTracePointContext) -> u32 {
    let Some(cpu) = WAIT_CPU.get_ptr_mut(0) else {
        return 0;
    };
    // SAFETY: this processor's own slot, which the lookup returned; see `WaitCpu`.
    let cpu = unsafe { &mut *cpu };
    // SAFETY: the helper takes no pointers.
    let now = unsafe { bpf_ktime_get_ns() };
    let ids = bpf_get_current_pid_tgid();
    if ids as u32 != 0 {
        leave(ctx, cpu, ids, now);
    }
    go_on(next_task(ctx), cpu, now);
    0
}

/// The argument of the tracepoint at an offset. The compiler would merge places of different
/// kernels into a pointer that the verifier does not follow.
#[inline(always)]
fn argument<const AT: i32>(ctx: &RawTracePointContext) -> u64 {
    let argument: u64;
    // SAFETY: loads from the program's context; the verifier checks the offset.
    unsafe {
        asm!("{0} = *(u64 *)({1} + {at})", out(reg) argument, in(reg) ctx.as_ptr(), at = const AT);
    }
    argument
}

#[inline(always)]
fn previous_task(ctx: &RawTracePointContext) -> u64 {
    match WAIT_SWITCH.load() {
        SWITCH_STATE_SECOND => argument::<16>(ctx),
        _ => argument::<8>(ctx),
    }
}

#[inline(always)]
fn next_task(ctx: &RawTracePointContext) -> u64 {
    match WAIT_SWITCH.load() {
        SWITCH_STATE_SECOND => argument::<24>(ctx),
        _ => argument::<16>(ctx),
    }
}

/// The state that the thread leaves its processor in. It is an argument where the task's own may
/// change meanwhile.
#[inline(always)]
fn task_state(ctx: &RawTracePointContext) -> u32 {
    match WAIT_SWITCH.load() {
        SWITCH_STATE_LAST => argument::<24>(ctx) as u32,
        SWITCH_STATE_SECOND => argument::<8>(ctx) as u32,
        _ => {
            let at = previous_task(ctx) + u64::from(WAIT_OFFSETS[TASK_STATE].load());
            // SAFETY: the helper reads kernel memory and fails where there is none.
            unsafe { bpf_probe_read_kernel(at as *const u32) }.unwrap_or(0)
        }
    }
}

/// Why a thread waits.
#[inline(always)]
fn reason(state: u32, preempted: bool) -> u32 {
    if preempted || state == 0 {
        STATE_PREEMPTED
    } else if state & (TASK_STOPPED | TASK_TRACED) != 0 {
        STATE_STOPPED
    } else if state & (TASK_UNINTERRUPTIBLE | TASK_NOLOAD | TASK_INTERRUPTIBLE)
        == TASK_UNINTERRUPTIBLE
    {
        STATE_DISK
    } else {
        STATE_SLEEPING
    }
}

/// The current thread leaves this processor.
#[inline(always)]
fn leave(ctx: &RawTracePointContext, cpu: &mut WaitCpu, ids: u64, now: u64) {
    let (tgid, tid) = ((ids >> 32) as u32, ids as u32);
    let state = task_state(ctx);
    if state & TASK_DEAD != 0 {
        forget(cpu, tid, now);
        return;
    }
    // A thread that is known was wanted. Asking again costs a tenth of a switch.
    let is_wanted = FILTER.load() & FILTER_ASKED == 0
        || find(tid).is_some_and(|thread| {
            // SAFETY: a value that the lookup returned, of this thread or a former one with its id.
            let (of, placed) = unsafe { ((*thread).ids, (*thread).placed_ns) };
            of == ids && now.saturating_sub(placed) <= PLACE_NS
        });
    if !is_wanted && !filter::admits(FILTER.load(), tgid, tid) {
        return;
    }
    let mut place = 0;
    let mut flags = 0;
    if FILTER.load() & FILTER_CGROUPS != 0 {
        place = cgroup::place();
        match cgroup::verdict(place) {
            CGROUP_WANTED => {}
            CGROUP_UNDECIDED => flags = u32::from(FLAG_UNDECIDED),
            _ => return,
        }
    }
    let Some(thread) = find_or_add(cpu, ids, now) else {
        return;
    };
    // SAFETY: a value that the lookup returned. Only the processor that the thread leaves or comes to
    // writes these members, one after the other.
    let thread = unsafe { &mut *thread };
    if thread.from_ns != 0 && thread.state != STATE_NEW {
        cpu.counters.unseen += 1;
    }
    thread.state = reason(state, argument::<0>(ctx) as u8 != 0);
    thread.flags = flags;
    if FILTER.load() & FILTER_CGROUPS != 0 {
        thread.cgroup = cgroup::id_at(place);
    }
    if now.saturating_sub(thread.placed_ns) > PLACE_NS {
        thread.placed_ns = now;
        thread.interpreter = interpreter::run_by(tgid);
        if FILTER.load() & FILTER_CGROUPS == 0 {
            thread.cgroup = cgroup::id_at(cgroup::place());
        }
    }
    thread.share = 1;
    thread.key = 0;
    thread.from_ns = now;
    if wants_stacks() {
        let key = key_of(ctx, cpu, thread);
        thread.key = key;
        let known = is_known(key);
        if !known {
            thread.share = share(cpu);
        }
        if thread.share == 0 {
            thread.key = KEY_NOT_WALKED;
        }
        if thread.share != 0 && (!known || can_walk_again(cpu)) {
            if !walk(ctx, cpu, (key, known), ids, now) && !known {
                thread.key = 0;
            }
            // The walk is no part of the wait: those that are walked would be longer than those that
            // they stand for.
            // SAFETY: the helper takes no pointers.
            thread.from_ns = unsafe { bpf_ktime_get_ns() };
        }
    }
}

#[inline(always)]
fn wants_stacks() -> bool {
    KERNEL_STACKS.load() != 0 || USER_STACKS.load() != 0
}

/// Process id in the upper half, thread id in the lower one.
#[inline(always)]
fn ids_of(task: u64) -> u64 {
    let at = task + u64::from(WAIT_OFFSETS[TASK_PID].load());
    // SAFETY: the helper reads kernel memory and fails where there is none.
    unsafe { bpf_probe_read_kernel(at as *const u64) }.unwrap_or(0)
}

/// A thread comes to this processor; its wait, if it was one, is over.
#[inline(always)]
fn go_on(task: u64, cpu: &mut WaitCpu, now: u64) {
    let tid = ids_of(task) as u32;
    if tid == 0 {
        return;
    }
    let Some(thread) = find(tid) else {
        return;
    };
    // SAFETY: as in `leave`.
    let thread = unsafe { &mut *thread };
    let from = thread.from_ns;
    if from == 0 {
        return;
    }
    thread.from_ns = 0;
    let ns = now.saturating_sub(from);
    let woken = woken_at(thread, from);
    thread.woken_ns = 0;
    let runnable_ns = match woken {
        0 => 0,
        woken => now.saturating_sub(woken),
    };
    thread.totals.runnable_ns += runnable_ns;
    let state = thread.state;
    if state != STATE_NEW {
        let index = (state & 3) as usize;
        thread.totals.count[index] += 1;
        thread.totals.ns[index] += ns;
        cpu.counters.ended += 1;
        turn_window(cpu, now);
        if ns >= LONG_WAIT_NS {
            thread.share = 1;
        }
        if thread.share != 0 {
            let weight = weight(cpu, ns, thread.share);
            if weight != 0 {
                record(task, cpu, thread, (from, woken, now), weight);
            }
        }
    }
    if now.saturating_sub(thread.told_ns) >= TELL_NS {
        tell(cpu, thread, now);
    }
}

/// Since when a thread that waits since `from` was runnable; 0: that was not seen.
#[inline(always)]
fn woken_at(thread: &ThreadWaits, from: u64) -> u64 {
    if thread.state == STATE_PREEMPTED || thread.state == STATE_NEW {
        return from;
    }
    let woken = thread.woken_ns;
    if woken == 0 || woken + MOST_EARLY_NS < from {
        return 0;
    }
    if woken < from { from } else { woken }
}
