//! Keys of waits: what tells the current thread's stacks from others without a walk, and which of them
//! user space knows.
//!
//! The thread, its user registers, how deep its kernel stack is -> a key; `WAIT_KEYS` has those whose
//! stacks were sent.
//!
//! What does not belong here: the walk (`stacks`).

use core::{arch::asm, ffi::c_void, ptr::addr_of_mut};

use aya_ebpf::{
    EbpfContext,
    helpers::{
        bpf_get_current_task, bpf_probe_read_kernel,
        generated::{bpf_get_current_task_btf, bpf_task_pt_regs},
    },
    programs::RawTracePointContext,
};
use profiler_common::sched::{TASK_STACK, ThreadWaits};

use crate::interpreter;
use crate::maps::{WAIT_KEY_SLOTS, WAIT_KEYS, WAIT_OFFSETS, WAIT_REGISTERS, WAIT_SEED, WaitCpu};

/// Size of a kernel stack, and of the user registers at its end, on x86-64.
pub(super) const STACK_BYTES: u64 = 16_384;
pub(super) const REGISTER_BYTES: u64 = 168;
/// Where the number of the system call is among these, and the others that are needed.
pub(super) const REGISTER_SYSCALL: i32 = 120;
pub(super) const REGISTER_IP: i32 = 128;
pub(super) const REGISTER_SEGMENT: i32 = 136;
pub(super) const REGISTER_SP: i32 = 152;

/// What tells the current thread's stacks from others, without a walk.
#[inline(always)]
pub(super) fn key_of(ctx: &RawTracePointContext, cpu: &mut WaitCpu, thread: &ThreadWaits) -> u64 {
    // The context of a raw tracepoint lies on the kernel stack, as deep as the thread is in.
    let depth = address_of(ctx.as_ptr(), cpu) & (STACK_BYTES - 1);
    // Addresses of user space leave their upper 16 bits to other words.
    let [syscall, ip, sp] = user_registers().unwrap_or([0; 3]);
    let mut key = mix(thread.salt, ip ^ syscall << 48);
    key = mix(key, sp ^ depth << 48);
    if thread.interpreter != 0 {
        key = mix(key, interpreter::fingerprint());
    }
    key | 1
}

/// What a thread's keys begin with.
#[inline(always)]
pub(super) fn salt(ids: u64, now: u64) -> u64 {
    mix(WAIT_SEED.load() ^ ids, now)
}

/// An address as a number, for which the verifier wants a detour.
#[inline(always)]
pub(super) fn address_of(pointer: *mut c_void, cpu: &mut WaitCpu) -> u64 {
    // SAFETY: a word of this processor's own slot.
    unsafe {
        let place = addr_of_mut!(cpu.address);
        place.write_volatile(pointer as u64);
        place.read_volatile()
    }
}

#[inline(always)]
pub(super) fn mix(hash: u64, value: u64) -> u64 {
    let hash = (hash ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    hash ^ hash >> 29
}

/// Number of the system call, instruction pointer and stack pointer with which the current thread came
/// into the kernel; none for a kernel thread.
#[inline(always)]
fn user_registers() -> Option<[u64; 3]> {
    if WAIT_REGISTERS.load() != 0 {
        let at = registers();
        // SAFETY: registers of the current task. From user mode?
        return unsafe {
            (segment(at) & 3 == 3).then(|| {
                [
                    word::<REGISTER_SYSCALL>(at),
                    word::<REGISTER_IP>(at),
                    word::<REGISTER_SP>(at),
                ]
            })
        };
    }
    let at = registers_by_stack()? + REGISTER_SYSCALL as u64;
    // SAFETY: the helper reads kernel memory and fails where there is none.
    let [syscall, ip, segment, _, sp]: [u64; 5] =
        unsafe { bpf_probe_read_kernel(at as *const [u64; 5]) }.ok()?;
    (segment & 3 == 3).then_some([syscall, ip, sp])
}

/// Where the registers are that the current thread came into the kernel with.
#[inline(always)]
pub(super) fn registers() -> *const c_void {
    // SAFETY: the helpers take the current task.
    unsafe { bpf_task_pt_regs(bpf_get_current_task_btf()) as *const c_void }
}

/// The same for kernels without a helper for that.
#[inline(always)]
pub(super) fn registers_by_stack() -> Option<u64> {
    // SAFETY: the helper takes no pointers, the other one reads kernel memory.
    let stack = unsafe {
        let task = bpf_get_current_task() + u64::from(WAIT_OFFSETS[TASK_STACK].load());
        bpf_probe_read_kernel(task as *const u64).ok()?
    };
    Some(stack + STACK_BYTES - REGISTER_BYTES)
}

/// The word at an offset of what [`registers`] gave: a plain load, which the verifier lets pass because
/// it knows the type.
///
/// # Safety
/// `at` is that.
#[inline(always)]
pub(super) unsafe fn word<const AT: i32>(at: *const c_void) -> u64 {
    let word: u64;
    // SAFETY: the caller's.
    unsafe { asm!("{0} = *(u64 *)({1} + {at})", out(reg) word, in(reg) at, at = const AT) };
    word
}

/// The code segment: of 16 bits, however long its place is said to be.
///
/// # Safety
/// As for [`word`].
#[inline(always)]
unsafe fn segment(at: *const c_void) -> u64 {
    let word: u64;
    // SAFETY: the caller's.
    unsafe {
        asm!("{0} = *(u16 *)({1} + {at})", out(reg) word, in(reg) at, at = const REGISTER_SEGMENT);
    }
    word
}

/// Whether user space has the stacks of this key.
#[inline(always)]
pub(super) fn is_known(key: u64) -> bool {
    let slot = slot_of(key);
    holds(slot, key) || holds(slot ^ 1, key)
}

/// By its upper bits, which are the best mixed. Depths of the kernel's stack, of which there are many
/// to each place where it is randomised for each system call, make a difference nowhere else.
#[inline(always)]
fn slot_of(key: u64) -> u32 {
    (key >> 50) as u32 & (WAIT_KEY_SLOTS as u32 - 1)
}

#[inline(always)]
fn holds(slot: u32, key: u64) -> bool {
    let Some(known) = WAIT_KEYS.get_ptr(slot) else {
        return false;
    };
    // SAFETY: a word that the lookup returned; others write it as a whole.
    unsafe { known.read_volatile() == key }
}

/// User space has the stacks of this key from now on; another one makes room.
#[inline(always)]
pub(super) fn know(key: u64, now: u64) {
    let slot = slot_of(key);
    let slot = if holds(slot, 0) {
        slot
    } else if holds(slot ^ 1, 0) {
        slot ^ 1
    } else {
        slot ^ (now as u32 >> 6 & 1)
    };
    if let Some(place) = WAIT_KEYS.get_ptr_mut(slot) {
        // SAFETY: a word that the lookup returned.
        unsafe { place.write_volatile(key) };
    }
}
