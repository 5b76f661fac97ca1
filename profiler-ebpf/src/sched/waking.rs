//! A thread is made runnable -> when, and by whom.

use core::ptr::addr_of_mut;

use aya_ebpf::{
    EbpfContext,
    helpers::{bpf_get_current_pid_tgid, bpf_ktime_get_ns, bpf_probe_read_kernel},
    programs::RawTracePointContext,
};

use super::{
    argument, ids_of,
    key::{REGISTER_SYSCALL, STACK_BYTES, address_of, registers, registers_by_stack, word},
    threads::find,
};
use crate::maps::{WAIT_CPU, WAIT_REGISTERS, WaitCpu};

/// A thread is made runnable by what runs on this processor.
#[inline(always)]
pub fn on_waking(ctx: &RawTracePointContext) -> u32 {
    let tid = ids_of(argument::<0>(ctx)) as u32;
    let Some(thread) = find(tid) else {
        return 0;
    };
    let Some(cpu) = WAIT_CPU.get_ptr_mut(0) else {
        return 0;
    };
    // SAFETY: this processor's own slot; see `WaitCpu`.
    let by = waker(ctx, unsafe { &mut *cpu });
    // SAFETY: a value that the lookup returned. Nobody else makes it runnable until it has run.
    unsafe {
        addr_of_mut!((*thread).waker).write_volatile(by);
        addr_of_mut!((*thread).woken_ns).write_volatile(bpf_ktime_get_ns());
    }
    0
}

/// The current thread, if it is what runs here, and no interrupt.
///
/// One that comes while a thread is in the kernel has a stack of its own. One that comes from user
/// mode may use the thread's; then the registers there are those of no system call.
#[inline(always)]
fn waker(ctx: &RawTracePointContext, cpu: &mut WaitCpu) -> u64 {
    let ids = bpf_get_current_pid_tgid();
    if ids as u32 == 0 {
        return 0;
    }
    let (registers, syscall) = if WAIT_REGISTERS.load() != 0 {
        let at = registers();
        // SAFETY: registers of the current task.
        let syscall = unsafe { word::<REGISTER_SYSCALL>(at) };
        (address_of(at.cast_mut(), cpu), syscall)
    } else {
        let Some(at) = registers_by_stack() else {
            return 0;
        };
        // SAFETY: the helper reads kernel memory and fails where there is none.
        let syscall =
            unsafe { bpf_probe_read_kernel((at + REGISTER_SYSCALL as u64) as *const u64) };
        (at, syscall.unwrap_or(0))
    };
    let depth = registers.wrapping_sub(address_of(ctx.as_ptr(), cpu));
    if depth >= STACK_BYTES || (syscall as i64) < 0 {
        return 0;
    }
    ids
}
