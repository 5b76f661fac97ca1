//! Threads that wait already when a recording begins: an iterator over all tasks -> an entry for each of
//! them, as if it had left its processor now, and a `WaiterRecord` with what its stacks are found by.
//!
//! This is the only program of waits that can be preempted: it has a workspace of its own, of which there is
//! one, since a session runs it once, on one thread. Times are nanoseconds of CLOCK_MONOTONIC.
//!
//! What does not belong here: user stacks, whose memory is another process's (`probe::waiting`).

use core::{arch::asm, ffi::c_void, mem::size_of, ptr::addr_of_mut};

use aya_ebpf::helpers::{
    bpf_ktime_get_ns, bpf_probe_read_kernel,
    generated::{
        bpf_get_task_stack, bpf_probe_read_kernel as read_kernel, bpf_seq_write, bpf_task_pt_regs,
    },
};
use profiler_common::{
    MAX_FRAMES,
    cgroup::{CGROUP_UNDECIDED, CGROUP_WANTED},
    control::FILTER_CGROUPS,
    sample::FLAG_UNDECIDED,
    sched::{TASK_ON_CPU, TASK_STACK, TASK_STATE, ThreadWaits, WAITER_REGISTERS, WaiterRecord},
};

use super::{
    TASK_DEAD, TASK_INTERRUPTIBLE, TASK_STOPPED, TASK_TRACED, TASK_UNINTERRUPTIBLE, ids_of,
    key::{STACK_BYTES, mix, salt},
    reason,
    threads::{BLANK, add_waiting, is_still, withdraw},
};
use crate::{
    cgroup, filter, interpreter,
    maps::{
        FILTER, KERNEL_STACKS, KERNEL_WALK_FRAMES, WAIT_OFFSETS, WAIT_PASSED_OVER, WAIT_REGISTERS,
        WAITER, Waiter,
    },
};

/// From <linux/sched.h>: it is on its way to a processor.
const TASK_WAKING: u32 = 0x200;
const REGISTER_BYTES: u32 = (WAITER_REGISTERS * 8) as u32;
const FRAME_BYTES: u32 = (MAX_FRAMES * 8) as u32;

/// A task comes by; `ctx` is a `struct bpf_iter__task`.
#[inline(always)]
pub fn on_task(ctx: *mut c_void) -> u32 {
    let task = word::<8>(ctx);
    if task.is_null() {
        return 0;
    }
    let Some(scratch) = WAITER.get_ptr_mut(0) else {
        return 0;
    };
    // SAFETY: the map's only value, which this program alone uses.
    unsafe { look(ctx, task, scratch) };
    0
}

/// A pointer among a structure's members: a plain load, by which the verifier knows its type.
#[inline(always)]
fn word<const AT: i32>(of: *mut c_void) -> *mut c_void {
    let word: *mut c_void;
    // SAFETY: the verifier checks the offset.
    unsafe { asm!("{0} = *(u64 *)({1} + {at})", out(reg) word, in(reg) of, at = const AT) };
    word
}

/// # Safety
/// `ctx` is the program's, `task` its task, `scratch` what the lookup returned.
#[inline(always)]
unsafe fn look(ctx: *mut c_void, task: *mut c_void, scratch: *mut Waiter) {
    // SAFETY: the caller's.
    let at = unsafe {
        // As a number, which is added to.
        let place = addr_of_mut!((*scratch).task);
        place.write_volatile(task as u64);
        place.read_volatile()
    };
    let Some(state) = waits_in(at) else {
        return;
    };
    let ids = ids_of(at);
    let (tgid, tid) = ((ids >> 32) as u32, ids as u32);
    // SAFETY: a word of the map's only value.
    let passed_over = WAIT_PASSED_OVER
        .get_ptr(0)
        .map_or(0, |tgid| unsafe { tgid.read_volatile() });
    if tid == 0 || tgid == passed_over || !filter::admits_task(FILTER.load(), (tgid, tid), at) {
        return;
    }
    let (cgroup, verdict) = cgroup::of_task(at);
    let mut flags = 0;
    if FILTER.load() & FILTER_CGROUPS != 0 {
        match verdict {
            CGROUP_WANTED => {}
            CGROUP_UNDECIDED => flags = u32::from(FLAG_UNDECIDED),
            _ => return,
        }
    }
    // SAFETY: the helper takes no pointers.
    let now = unsafe { bpf_ktime_get_ns() };
    let salt = salt(ids, now);
    // SAFETY: the caller's; buffers have room for what is written to them.
    unsafe {
        (*scratch).thread = ThreadWaits {
            from_ns: now,
            key: mix(salt, 0) | 1,
            cgroup,
            salt,
            told_ns: now,
            ids,
            state: reason(state, false),
            flags,
            share: 1,
            interpreter: interpreter::run_by(tgid),
            ..BLANK
        };
        let record = addr_of_mut!((*scratch).record);
        (*record).at_ns = now;
        (*record).key = mix(salt, 0) | 1;
        (*record).ids = ids;
        take_registers(task, at, record);
        (*record).kernel_bytes = 0;
        if KERNEL_STACKS.load() != 0 {
            let to = addr_of_mut!((*record).kernel);
            let bytes = bpf_get_task_stack(task.cast(), to.cast(), FRAME_BYTES, 0);
            let most = i64::from(KERNEL_WALK_FRAMES.load()) * 8;
            (*record).is_cut = u64::from(bytes >= most);
            (*record).kernel_bytes = bytes.max(0) as u64;
        }
        let file = word::<0>(word::<0>(ctx));
        // Without room there the task comes by once more.
        let len = size_of::<WaiterRecord>() as u32;
        if bpf_seq_write(file.cast(), record.cast(), len) != 0 {
            return;
        }
        // It may go on at any time: what was added after that is taken back.
        if add_waiting(&(*scratch).thread) && waits_in(at) != Some(state) && is_still(tid, now) {
            withdraw(tid);
        }
    }
}

/// What the task waits in, which is 0 if it is for a processor; none if it does not wait, or not yet.
#[inline(always)]
fn waits_in(task: u64) -> Option<u32> {
    let member = |index: usize| {
        let at = task + u64::from(WAIT_OFFSETS[index].load());
        // SAFETY: the helper reads kernel memory and fails where there is none.
        unsafe { bpf_probe_read_kernel(at as *const u32) }.ok()
    };
    let state = member(TASK_STATE)?;
    const WAITS: u32 = TASK_INTERRUPTIBLE | TASK_UNINTERRUPTIBLE | TASK_STOPPED | TASK_TRACED;
    let sleeps = state & WAITS != 0 && state & (TASK_DEAD | TASK_WAKING) == 0;
    let is_runnable = state == 0;
    ((sleeps || is_runnable) && member(TASK_ON_CPU)? == 0).then_some(state)
}

/// Takes the registers that the task came into the kernel with.
///
/// # Safety
/// `task` is the program's task, `at` its address; `record` is this program's.
#[inline(always)]
unsafe fn take_registers(task: *mut c_void, at: u64, record: *mut WaiterRecord) {
    // SAFETY: the helper takes the task; reading kernel memory fails where there is none.
    unsafe {
        let to = addr_of_mut!((*record).registers);
        let from = if WAIT_REGISTERS.load() != 0 {
            bpf_task_pt_regs(task.cast()) as u64
        } else {
            let stack = at + u64::from(WAIT_OFFSETS[TASK_STACK].load());
            let stack = bpf_probe_read_kernel(stack as *const u64).unwrap_or(0);
            stack + STACK_BYTES - u64::from(REGISTER_BYTES)
        };
        if read_kernel(to.cast(), REGISTER_BYTES, from as *const c_void) != 0 {
            (*record).registers = [0; WAITER_REGISTERS];
        }
    }
}
