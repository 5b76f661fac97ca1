//! One step of a walk: from a frame to its caller, by a rule or by the frame pointer.
//!
//! What does not belong here: which rule holds (`lookup`), what leaves the stack (`switch`), what the
//! kernel has put in the place of return addresses (`returns`).

use core::{
    arch::asm,
    ptr::{addr_of, addr_of_mut},
};

use aya_ebpf::helpers::bpf_probe_read_user;
use profiler_common::{
    INNERMOST_FRAMES,
    sample::{END_BAD_MEMORY, END_COMPLETE, END_NO_RULE},
    unwind::{
        BX_SAME, BX_UNKNOWN, CFA_GO_SWITCH, CFA_MEMORY, CFA_OTHER_STACK, CFA_PLT, CFA_REGISTER,
        CFA_RETURN_REGISTER, CFA_SIGNAL, CFA_UNLESS_NEW, FP_AT_CFA, FP_AT_FP, FP_SAME, REGISTER_BX,
        REGISTER_FP, REGISTER_SP,
    },
};

use super::{
    BX_LOST, FP, GO_ON, PAGE_BYTES, SP, returns,
    switch::{leave_go_stack, leave_signal},
};
use crate::{
    maps::{RING_FRAMES, RULES, WALK_FRAMES, WALKS, Walk},
    user_memory::read_word,
};

/// Addresses of user space are below 2 to the power of this.
const ADDRESS_BITS: u32 = 47;

/// Goes to the caller by a rule. As [`unwind_step`].
#[unsafe(no_mangle)]
pub extern "C" fn unwind_apply(level: u32, number: u32) -> u32 {
    let (Some(walk), Some(rule)) = (WALKS.get_ptr_mut(level), RULES.get_ptr(number)) else {
        return u32::from(END_NO_RULE);
    };
    // SAFETY: what lookups returned. Rules do not change while a program may use them.
    unsafe {
        let rule = &*rule;
        let sp = get!(walk, registers[SP]);
        let offset = i64::from(rule.cfa_offset) as u64;
        match rule.cfa {
            CFA_SIGNAL => return leave_signal(walk, sp.wrapping_add(offset)),
            CFA_GO_SWITCH => return leave_go_stack(walk, rule),
            _ => {}
        }
        let Some(base) = register(walk, rule.register) else {
            return u32::from(END_NO_RULE);
        };
        let mut cfa = match rule.cfa {
            CFA_REGISTER | CFA_MEMORY | CFA_OTHER_STACK => base.wrapping_add(offset),
            CFA_PLT => {
                let behind = (get!(walk, pc) & 15) as i64 >= i64::from(rule.cfa_addend);
                sp.wrapping_add(offset).wrapping_add(u64::from(behind) * 8)
            }
            CFA_UNLESS_NEW if base == 0 => return u32::from(END_COMPLETE),
            CFA_RETURN_REGISTER | CFA_UNLESS_NEW => sp.wrapping_add(offset),
            _ => return u32::from(END_NO_RULE),
        };
        if rule.cfa == CFA_MEMORY {
            match read_word(cfa) {
                Some(base) => cfa = base.wrapping_add(i64::from(rule.cfa_addend) as u64),
                None => return u32::from(END_BAD_MEMORY),
            }
        }
        // Stacks grow downwards; a frame that does not is bogus.
        let is_below = cfa <= sp && rule.cfa < CFA_OTHER_STACK;
        if is_below || cfa >> ADDRESS_BITS != 0 {
            return u32::from(END_BAD_MEMORY);
        }
        // Only the place is noted; it is read if a frame is found by it.
        match rule.bx {
            BX_SAME => {}
            BX_UNKNOWN => set!(walk, BX_LOST, bx),
            below => set!(walk, cfa.wrapping_sub(u64::from(below) * 8), bx),
        }
        let slot = cfa.wrapping_add((i64::from(rule.ra_offset) * 8) as u64);
        if rule.fp == FP_AT_CFA && rule.fp_offset == rule.ra_offset - 1 {
            // As a function with a frame pointer has them: one read for both.
            let pair = slot.wrapping_sub(8) as *const [u64; 2];
            let Ok([fp, pc]) = bpf_probe_read_user(pair) else {
                return u32::from(END_BAD_MEMORY);
            };
            set!(walk, fp, registers[FP]);
            set!(walk, 1, fp_known);
            set!(walk, cfa, registers[SP]);
            return arrive(walk, level, pc, slot);
        }
        let mut pc = base;
        if rule.cfa != CFA_RETURN_REGISTER {
            let Some(address) = read_word(slot) else {
                return u32::from(END_BAD_MEMORY);
            };
            pc = address;
        }
        let saved = (i64::from(rule.fp_offset) * 8) as u64;
        let at = match rule.fp {
            FP_SAME => 0,
            FP_AT_CFA => cfa.wrapping_add(saved),
            FP_AT_FP if get!(walk, fp_known) != 0 => get!(walk, registers[FP]).wrapping_add(saved),
            _ => {
                set!(walk, 0, fp_known);
                0
            }
        };
        if at != 0 {
            let Some(fp) = read_word(at) else {
                return u32::from(END_BAD_MEMORY);
            };
            set!(walk, fp, registers[FP]);
            set!(walk, 1, fp_known);
        }
        set!(walk, cfa, registers[SP]);
        arrive(walk, level, pc, slot)
    }
}

/// A register by DWARF's number, if it is known.
#[inline(always)]
unsafe fn register(walk: *mut Walk, number: u8) -> Option<u64> {
    // SAFETY: the caller's.
    unsafe {
        match number {
            REGISTER_SP => Some(get!(walk, registers[SP])),
            REGISTER_FP if get!(walk, fp_known) != 0 => Some(get!(walk, registers[FP])),
            REGISTER_FP => None,
            number if get!(walk, all_known) != 0 => {
                let mut index = u64::from(number);
                // A plain AND of a register, which the compiler must not remove.
                asm!("{0} &= 15", inout(reg) index);
                let registers = addr_of!((*walk).registers).cast::<u64>();
                Some(registers.add(index as usize).read_volatile())
            }
            REGISTER_BX => match get!(walk, bx) {
                0 => Some(get!(walk, registers[REGISTER_BX as usize])),
                place => read_word(place),
            },
            _ => None,
        }
    }
}

/// Goes to the caller by the frame pointer; `without` is why the walk ends if there is none.
#[inline(always)]
pub(super) unsafe fn by_frame_pointer(walk: *mut Walk, level: u32, without: u16) -> u32 {
    // SAFETY: the caller's.
    unsafe {
        let fp = get!(walk, registers[FP]);
        if get!(walk, fp_known) == 0 {
            return u32::from(without);
        }
        if fp == 0 && get!(walk, is_return) != 0 {
            return u32::from(END_COMPLETE);
        }
        if fp < get!(walk, registers[SP]) || fp & 7 != 0 || fp >> ADDRESS_BITS != 0 {
            return u32::from(without);
        }
        let (Some(next), Some(pc)) = (read_word(fp), read_word(fp + 8)) else {
            return u32::from(without);
        };
        set!(walk, next, registers[FP]);
        set!(walk, BX_LOST, bx);
        set!(walk, fp + 16, registers[SP]);
        let arrived = arrive(walk, level, pc, fp + 8);
        set!(walk, u64::from(without) + 1, guessed);
        arrived
    }
}

/// Adds a caller whose return address was read at `slot`.
#[inline(always)]
unsafe fn arrive(walk: *mut Walk, level: u32, pc: u64, slot: u64) -> u32 {
    if pc == 0 {
        return u32::from(END_COMPLETE);
    }
    // SAFETY: the caller's.
    unsafe {
        set!(walk, pc, pc);
        set!(walk, 1, is_return);
        set!(walk, 0, all_known);
        if pc & (PAGE_BYTES - 1) == 0 {
            let real = returns::unwind_real_return(level, slot);
            if real != 0 {
                set!(walk, real, pc);
            }
        }
        push(walk, get!(walk, pc))
    }
}

/// Adds a frame. Beyond the innermost ones it takes the place of the oldest in the ring behind them.
#[inline(always)]
pub(super) unsafe fn push(walk: *mut Walk, frame: u64) -> u32 {
    // SAFETY: the caller's; the index is masked.
    unsafe {
        let count = get!(walk, count);
        let mut slot = count;
        if count >= WALK_FRAMES as u64 {
            slot = count & (RING_FRAMES as u64 - 1) | INNERMOST_FRAMES as u64;
        }
        // A plain AND of a register, which the compiler must not remove.
        asm!("{0} &= {most}", inout(reg) slot, most = const WALK_FRAMES - 1);
        let frames = addr_of_mut!((*walk).frames).cast::<u64>();
        frames.add(slot as usize).write_volatile(frame);
        set!(walk, count + 1, count);
        GO_ON
    }
}
