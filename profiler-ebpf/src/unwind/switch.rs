//! Where a walk takes its registers from: the kernel's copy of them at its beginning, later what a signal
//! or a switch of stacks has left in user memory.
//!
//! What does not belong here: which frames these are (rules say that).

use core::ptr::{addr_of, addr_of_mut};

use aya_ebpf::helpers::{
    bpf_get_current_task, bpf_probe_read_kernel, generated::bpf_probe_read_user as read_user,
};
use profiler_common::{
    sample::{END_BAD_MEMORY, END_COMPLETE, EXACT_ADDRESS},
    unwind::{REGISTERS, Rule, TASK_FSBASE},
};

use super::{BX_LOST, FP, SP, rules::push};
use crate::{
    maps::{UNWIND_OFFSETS, Walk},
    user_memory::read_word,
};

/// Where [`Walk::saved`] has registers, by DWARF's number.
pub(super) const SAVED: [usize; REGISTERS] = [10, 12, 11, 5, 13, 14, 4, 19, 9, 8, 7, 6, 3, 2, 1, 0];
pub(super) const SAVED_PC: usize = 16;
/// Where a `gregset_t` has them, by DWARF's number.
const SIGNAL: [usize; REGISTERS] = [13, 12, 14, 11, 9, 8, 10, 15, 0, 1, 2, 3, 4, 5, 6, 7];
const SIGNAL_PC: usize = 16;
/// Where `uc_mcontext.gregs` is in a `ucontext_t`.
const SIGNAL_REGISTERS: u64 = 40;
const SIGNAL_BYTES: u32 = 17 * 8;

/// Takes all registers from where they were saved.
#[inline(always)]
pub(super) unsafe fn take_registers<const PC: usize>(walk: *mut Walk, from: &[usize; REGISTERS]) {
    // SAFETY: the caller's; indices are constants.
    unsafe {
        let mut number = 0;
        while number < REGISTERS {
            let value = get!(walk, saved[from[number]]);
            set!(walk, value, registers[number]);
            number += 1;
        }
        set!(walk, get!(walk, saved[PC]), pc);
        set!(walk, 0, is_return);
        set!(walk, 1, all_known);
        set!(walk, 1, fp_known);
        set!(walk, 0, bx);
    }
}

/// Goes to what a signal has interrupted; `context` is the address of its `ucontext_t`.
#[inline(always)]
pub(super) unsafe fn leave_signal(walk: *mut Walk, context: u64) -> u32 {
    // SAFETY: the caller's; `saved` has room for so many bytes.
    unsafe {
        let to = addr_of_mut!((*walk).saved).cast();
        let from = context.wrapping_add(SIGNAL_REGISTERS);
        if read_user(to, SIGNAL_BYTES, from as *const _) != 0 {
            return u32::from(END_BAD_MEMORY);
        }
        take_registers::<SIGNAL_PC>(walk, &SIGNAL);
        push(walk, get!(walk, pc) | EXACT_ADDRESS)
    }
}

/// Goes from a thread's own stack to that of the goroutine that has left it.
#[inline(always)]
pub(super) unsafe fn leave_go_stack(walk: *mut Walk, rule: &Rule) -> u32 {
    let bad = u32::from(END_BAD_MEMORY);
    if UNWIND_OFFSETS[TASK_FSBASE].load() == 0 {
        return bad;
    }
    // SAFETY: reading kernel memory fails where there is none.
    let base = unsafe {
        let task = bpf_get_current_task();
        let at = task + u64::from(UNWIND_OFFSETS[TASK_FSBASE].load());
        bpf_probe_read_kernel(at as *const u64)
    };
    let Ok(base) = base else { return bad };
    let Some(g) = read_word(base.wrapping_sub(8)) else {
        return bad;
    };
    let at = |base: u64, offset: i64| base.wrapping_add(offset as u64);
    let Some(m) = read_word(at(g, rule.cfa_offset.into())) else {
        return bad;
    };
    let Some(current) = read_word(at(m, rule.cfa_addend.into())) else {
        return bad;
    };
    if current == 0 || current == g {
        // No goroutine: the runtime itself.
        return u32::from(END_COMPLETE);
    }
    let left = at(current, i64::from(rule.fp_offset) * 8);
    let (Some(sp), Some(pc), Some(fp)) = (
        read_word(left),
        read_word(left + 8),
        read_word(at(left, i64::from(rule.ra_offset) * 8)),
    ) else {
        return bad;
    };
    if pc == 0 {
        return u32::from(END_COMPLETE);
    }
    // SAFETY: the caller's.
    unsafe {
        set!(walk, sp, registers[SP]);
        set!(walk, fp, registers[FP]);
        set!(walk, 1, fp_known);
        set!(walk, 0, all_known);
        set!(walk, BX_LOST, bx);
        set!(walk, pc, pc);
        set!(walk, 0, is_return);
        push(walk, pc | EXACT_ADDRESS)
    }
}
