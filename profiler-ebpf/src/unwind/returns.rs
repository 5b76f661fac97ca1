//! Return addresses that the kernel has put its own in place of, because a probe is to see the call end.
//!
//! An address of the kernel's page for that -> the real one, which the kernel keeps in a list of its own
//! (`task_struct.utask`). Members of its structures are found by `UNWIND_OFFSETS`.

use core::ptr::{addr_of, addr_of_mut};

use aya_ebpf::helpers::{bpf_get_current_task, bpf_probe_read_kernel, bpf_probe_read_user};
use profiler_common::unwind::{
    MM_XOL_AREA, RETURN_ADDRESS, RETURN_NEXT, RETURN_STACK, TASK_MM, TASK_UTASK, UTASK_RETURNS,
    UTASK_VADDR, XOL_VADDR,
};

use super::{BX_LOST, PAGE_BYTES, SP};
use crate::{
    maps::{UNWIND_OFFSETS, WALKS, Walk},
    user_memory::read_word,
};

/// Most pending returns of probed calls that are looked at for one frame.
const MAX_PENDING: u32 = 64;
/// The part of the kernel's page that probed calls return to; behind it are instructions that are
/// executed out of line.
const TRAMPOLINE_BYTES: u64 = 128;
/// Each of these begins at a multiple of this.
const SLOT_BYTES: u64 = 128;
/// Instructions at its end: `pop %r11`, `pop %rcx`, `ret`.
const POP_R11: u32 = 0x5b41;
const POP_RCX: u32 = 0x59;
const RET: u32 = 0xc3;

/// A word of kernel memory that is not 0.
#[inline(always)]
fn kernel_word(address: u64) -> Option<u64> {
    // SAFETY: the helper reads kernel memory and fails where there is none.
    match unsafe { bpf_probe_read_kernel(address as *const u64) } {
        Ok(0) | Err(_) => None,
        Ok(word) => Some(word),
    }
}

/// The member of a structure of the kernel, if it is not 0 and its place is known.
#[inline(always)]
fn member(structure: u64, offset: usize) -> Option<u64> {
    match UNWIND_OFFSETS[offset].load() {
        0 => None,
        offset => kernel_word(structure + u64::from(offset)),
    }
}

/// The kernel's structure of the current thread's probes.
#[inline(always)]
fn probes_of_task() -> Option<u64> {
    // SAFETY: the helper takes no pointers.
    member(unsafe { bpf_get_current_task() }, TASK_UTASK)
}

/// The address of the page that probed calls of this process return to; 1: there is none.
#[inline(always)]
unsafe fn trampoline(walk: *mut Walk) -> u64 {
    // SAFETY: the caller's.
    unsafe {
        let known = get!(walk, trampoline);
        if known != 0 {
            return known;
        }
        // SAFETY: the helper takes no pointers.
        let task = bpf_get_current_task();
        let page = member(task, TASK_MM)
            .and_then(|mm| member(mm, MM_XOL_AREA))
            .and_then(|area| member(area, XOL_VADDR))
            .unwrap_or(1);
        set!(walk, page, trampoline);
        let pending = probes_of_task().and_then(|task| member(task, UTASK_RETURNS));
        set!(walk, pending.unwrap_or(0), pending);
        page
    }
}

/// What the kernel has put its trampoline in place of, at the address `slot` of the stack; 0: that
/// is not so.
#[unsafe(no_mangle)]
pub extern "C" fn unwind_real_return(level: u32, slot: u64) -> u64 {
    let Some(walk) = WALKS.get_ptr_mut(level) else {
        return 0;
    };
    // SAFETY: this processor's own slot, which the lookup returned.
    unsafe {
        let page = trampoline(walk);
        if get!(walk, pc) & !(PAGE_BYTES - 1) != page {
            return 0;
        }
        for _ in 0..MAX_PENDING {
            let address = unwind_next_pending(level, slot, page);
            if address != PASSED_OVER {
                return address;
            }
        }
        0
    }
}

/// The next pending return was not the one that is looked for. No return address is that.
const PASSED_OVER: u64 = 1;

/// The return address of the next pending return, if it is that of the call whose return address lay at
/// `slot`; 0 if there is none any more, else [`PASSED_OVER`]. A function of its own, and not inlined, so
/// that the verifier checks it once and not in each turn.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn unwind_next_pending(level: u32, slot: u64, page: u64) -> u64 {
    let Some(walk) = WALKS.get_ptr_mut(level) else {
        return 0;
    };
    // SAFETY: this processor's own slot, which the lookup returned.
    unsafe {
        let pending = get!(walk, pending);
        if pending == 0 {
            return 0;
        }
        let stack = member(pending, RETURN_STACK).unwrap_or(0);
        let address = member(pending, RETURN_ADDRESS).unwrap_or(0);
        set!(walk, member(pending, RETURN_NEXT).unwrap_or(0), pending);
        // Calls that were left by a jump are still there. Of several probes at one call, all
        // but one return to the trampoline.
        if stack < slot || address == page {
            return PASSED_OVER;
        }
        set!(walk, stack, pending_slot);
        address
    }
}

/// If the leaf is in the kernel's page of probed calls: puts what it stands for in its place. Not 0
/// if that was so.
#[unsafe(no_mangle)]
pub extern "C" fn unwind_leave_trampoline(level: u32) -> u32 {
    let Some(walk) = WALKS.get_ptr_mut(level) else {
        return 0;
    };
    // SAFETY: this processor's own slot, which the lookup returned.
    unsafe {
        let pc = get!(walk, pc);
        let page = trampoline(walk);
        if pc & !(PAGE_BYTES - 1) != page || get!(walk, is_return) != 0 {
            return 0;
        }
        if pc - page >= TRAMPOLINE_BYTES {
            // An instruction that is executed out of line: of the function that it is from. If it has been executed,
            // which most often is seen where the kernel has just done so, it is what is behind it that holds.
            let Some(real) = probes_of_task().and_then(|task| member(task, UTASK_VADDR)) else {
                return 0;
            };
            let real = real.wrapping_add(pc & (SLOT_BYTES - 1));
            set!(walk, real, pc);
            set!(walk, real, frames[0]);
            return 1;
        }
        // The call has just returned: its return address was below the stack pointer. Where the
        // trampoline has saved registers (Linux 6.11), it is there that the kernel puts the real one
        // before it forgets about the call, and what follows takes the registers back and returns.
        let sp = get!(walk, registers[SP]);
        let code = bpf_probe_read_user(pc as *const u32).unwrap_or(0);
        let (mut slot, mut is_done) = if code & 0xffff == POP_R11 {
            (sp + 16, true)
        } else if code & 0xff == POP_RCX {
            (sp + 8, true)
        } else if code & 0xff == RET {
            (sp, true)
        } else {
            (sp.wrapping_sub(8), false)
        };
        if code & 0xffff == POP_R11 {
            // While the kernel is at it, the stack pointer is as if nothing had been saved.
            let pending = get!(walk, pending);
            let stack = member(pending, RETURN_STACK).unwrap_or(0);
            if stack == slot || stack == sp.wrapping_sub(8) {
                slot = stack;
                is_done = false;
            }
        }
        let real = if is_done {
            set!(walk, slot, pending_slot);
            read_word(slot).unwrap_or(0)
        } else {
            unwind_real_return(level, slot)
        };
        if real == 0 {
            return 0;
        }
        set!(walk, real, pc);
        set!(walk, get!(walk, pending_slot) + 8, registers[SP]);
        set!(walk, 1, is_return);
        set!(walk, 0, all_known);
        set!(walk, BX_LOST, bx);
        // A leaf is looked up where it is: inside of the call.
        set!(walk, real - 1, frames[0]);
        1
    }
}
