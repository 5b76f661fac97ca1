//! The registers that a thread has in user space, where the walk of its stack begins.
//!
//! The context of a program, or the current task -> `Walk::saved`, as the kernel saves registers
//! (`struct pt_regs`). Only those of 64-bit code are taken.
//!
//! What does not belong here: what they mean (`unwind`).

use core::{ffi::c_void, ptr::addr_of_mut};

use aya_ebpf::{
    bindings::bpf_perf_event_data,
    helpers::{
        bpf_get_current_task, bpf_get_current_task_btf, bpf_probe_read_kernel, bpf_probe_read_user,
        generated::{bpf_probe_read_kernel as read_kernel, bpf_task_pt_regs},
    },
};
use profiler_common::unwind::{REGISTERS_HELPER, REGISTERS_STACK, TASK_STACK, TASK_UTASK};

use crate::maps::{SAVED_REGISTERS, UNWIND_OFFSETS, USER_REGISTERS, WALKS, Walk};

/// The code segment of 64-bit programs.
const USER_CS: u64 = 0x33;
/// Where the instruction pointer is.
pub const IP: usize = 16;
/// Where a system call returns its result: rax.
pub const RESULT: usize = 10;
/// Where `cs` is.
const CS: usize = 17;
/// Where the stack pointer is.
const SP: usize = 19;
/// Where it is said what the kernel was entered by: the number of a system call; -1 for a breakpoint,
/// among others.
pub const ENTERED_BY: usize = 15;
/// The breakpoint that a uprobe puts in the place of an instruction.
const BREAKPOINT: u8 = 0xcc;
/// Bytes of a kernel stack (without KASAN, whose kernels have the helper as well).
const KERNEL_STACK_BYTES: u64 = 16 << 10;
const SAVED_BYTES: u64 = SAVED_REGISTERS as u64 * 8;

/// Takes those of a perf event that has interrupted user space; whether they are such.
///
/// # Safety
/// `ctx` is the context of the running program, and that is one of the perf_event type whose event
/// came in user space.
#[inline(always)]
pub unsafe fn of_event(ctx: *mut c_void, level: u32) -> bool {
    let Some(walk) = WALKS.get_ptr_mut(level) else {
        return false;
    };
    // SAFETY: this processor's own slot, which the lookup returned.
    unsafe { addr_of_mut!((*walk).in_kernel).write_volatile(0) };
    #[cfg(bpf_target_arch = "x86_64")]
    {
        let ctx = ctx.cast::<bpf_perf_event_data>();
        macro_rules! take {
            ($($index:literal $field:ident)*) => {$(
                // SAFETY: the caller's. Each is read by itself: the verifier knows fields of this
                // context, not memory.
                unsafe {
                    let value = (&raw const (*ctx).regs.$field).read_volatile();
                    addr_of_mut!((*walk).saved[$index]).write_volatile(value);
                }
            )*};
        }
        take!(0 r15 1 r14 2 r13 3 r12 4 rbp 5 rbx 6 r11 7 r10 8 r9 9 r8 10 rax 11 rcx 12 rdx 13 rsi);
        take!(14 rdi 16 rip 17 cs 19 rsp);
        // SAFETY: as above.
        unsafe { (&raw const (*walk).saved[CS]).read_volatile() == USER_CS }
    }
    #[cfg(not(bpf_target_arch = "x86_64"))]
    {
        let _ = (ctx, walk);
        false
    }
}

/// Takes those that the current thread entered the kernel with; whether it has such. In programs of
/// any type.
#[inline(always)]
pub fn of_task(level: u32) -> bool {
    let Some(walk) = WALKS.get_ptr_mut(level) else {
        return false;
    };
    // SAFETY: this processor's own slot, which the lookup returned.
    unsafe { addr_of_mut!((*walk).in_kernel).write_volatile(1) };
    let at = match USER_REGISTERS.load() {
        // SAFETY: the helpers take no pointers but what they give.
        REGISTERS_HELPER => unsafe { bpf_task_pt_regs(bpf_get_current_task_btf()) as u64 },
        REGISTERS_STACK => {
            // SAFETY: reading kernel memory fails where there is none.
            let stack = unsafe {
                let task = bpf_get_current_task();
                let at = task + u64::from(UNWIND_OFFSETS[TASK_STACK].load());
                bpf_probe_read_kernel(at as *const u64)
            };
            match stack {
                Ok(stack) => stack + KERNEL_STACK_BYTES - SAVED_BYTES,
                Err(_) => return false,
            }
        }
        _ => return false,
    };
    // SAFETY: `saved` has room for so many bytes; reading kernel memory fails where there is none.
    unsafe {
        let to = addr_of_mut!((*walk).saved);
        let read = read_kernel(to.cast(), SAVED_BYTES as u32, at as *const c_void);
        if read != 0 || (&raw const (*walk).saved[CS]).read_volatile() != USER_CS {
            return false;
        }
        if (&raw const (*walk).saved[ENTERED_BY]).read_volatile() == u64::MAX {
            leave_breakpoint(walk);
        }
    }
    true
}

/// When a uprobe was hit, the instruction pointer is behind the breakpoint, and the instruction that it
/// is in the place of is still to come; unless that is a push of one byte, which the kernel may have
/// carried out already: then a register's value is the last word of the stack.
///
/// # Safety
/// `walk` is this program's own.
#[inline(always)]
unsafe fn leave_breakpoint(walk: *mut Walk) {
    let offset = UNWIND_OFFSETS[TASK_UTASK].load();
    if offset == 0 {
        return;
    }
    // SAFETY: the helpers check addresses; the rest is the caller's.
    unsafe {
        let saved = |index: usize| addr_of_mut!((*walk).saved[index]).read_volatile();
        let probes = (bpf_get_current_task() + u64::from(offset)) as *const u64;
        if bpf_probe_read_kernel(probes).unwrap_or(0) == 0 {
            return;
        }
        let before = saved(IP).wrapping_sub(1);
        if bpf_probe_read_user(before as *const u8) != Ok(BREAKPOINT) {
            return;
        }
        let Ok(last) = bpf_probe_read_user(saved(SP) as *const u64) else {
            return;
        };
        // Of the eight registers that one byte can push.
        let mut is_pushed = false;
        macro_rules! compare {
            ($($index:literal)*) => { $(is_pushed |= saved($index) == last;)* };
        }
        compare!(4 5 10 11 12 13 14);
        if !is_pushed {
            addr_of_mut!((*walk).saved[IP]).write_volatile(before);
        }
    }
}
