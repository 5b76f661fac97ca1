//! Whether the memory is there that a thread's registers speak of.
//!
//! A process that ends gives its memory back (`exit_mm`) long before its last instruction in the kernel; from
//! then on user addresses lead to the memory of whoever ran there before. `execve` puts the new
//! program's memory in place of the old one's (`exec_mmap`) before it sets the registers. Neither is a
//! failure to walk: there is no stack.

use core::ptr::addr_of;

use aya_ebpf::helpers::{bpf_get_current_task, bpf_probe_read_kernel, bpf_probe_read_user};
use profiler_common::{sample::END_GONE, unwind::TASK_MM};

use super::GO_ON;
use crate::{
    maps::{UNWIND_OFFSETS, Walk},
    registers::{ENTERED_BY, IP, RESULT},
};

/// Numbers of system calls (x86-64).
const EXECVE: u64 = 59;
const EXECVEAT: u64 = 322;
/// The result of a system call that has none yet: -ENOSYS. `execve` sets it to 0 with the new registers.
const NO_RESULT: u64 = -38_i64 as u64;
/// The instruction `syscall`.
const SYSCALL: u16 = 0x050f;

/// `END_GONE` if the memory is gone, else `GO_ON`; and how many frames there are at the beginning: none if
/// the registers are of another program than what is mapped now.
#[inline(always)]
pub(super) unsafe fn look(walk: *mut Walk) -> (u32, u64) {
    // SAFETY: the caller's.
    if unsafe { get!(walk, in_kernel) } == 0 {
        return (GO_ON, 1);
    }
    // SAFETY: as above.
    let is_exec = unsafe { is_exec(walk) };
    if has_no_memory() {
        return (END_GONE.into(), u64::from(!is_exec));
    }
    if is_exec {
        // The instruction that the thread has just executed: in memory, if that is still the same.
        // SAFETY: the caller's; the helper checks the address.
        let code = unsafe {
            let at = get!(walk, saved[IP]).wrapping_sub(2);
            bpf_probe_read_user(at as *const u16)
        };
        if code != Ok(SYSCALL) {
            return (END_GONE.into(), 0);
        }
    }
    (GO_ON, 1)
}

/// Whether the thread is in `execve` with the registers that it came with.
#[inline(always)]
unsafe fn is_exec(walk: *mut Walk) -> bool {
    // SAFETY: the caller's.
    unsafe {
        let call = get!(walk, saved[ENTERED_BY]);
        (call == EXECVE || call == EXECVEAT) && get!(walk, saved[RESULT]) == NO_RESULT
    }
}

/// Whether the thread has given its memory back; false where that can't be told.
#[inline(always)]
pub fn has_no_memory() -> bool {
    let offset = UNWIND_OFFSETS[TASK_MM].load();
    if offset == 0 {
        return false;
    }
    // SAFETY: the helpers take no pointers but addresses, and reading fails where there is none.
    unsafe {
        let memory = bpf_get_current_task() + u64::from(offset);
        bpf_probe_read_kernel(memory as *const u64) == Ok(0)
    }
}
