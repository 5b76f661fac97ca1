//! User stacks by tables: registers -> the addresses of all callers, leaf first.
//!
//! How tables lie in memory: `profiler_common::unwind`. A program of any type that has a walk of its own
//! (`WALKS`) calls, in this order, [`crate::registers`] to say where the walk begins, [`unwind_walk`],
//! [`section`] for the section of the user stack, and [`copy`] if the walk says that the rest is to be
//! copied. Addresses are those of the process, times nanoseconds of CLOCK_MONOTONIC.
//!
//! What is not inlined is a global function of numbers: the verifier checks such a function once, on
//! its own, and not again in each turn of a loop. State is in a map for the same reason.
//!
//! This file has the loop; a step's parts are in the modules below it. What does not belong here: how
//! tables are made and loaded, what the addresses mean.
use core::ptr::{addr_of, addr_of_mut};

use profiler_common::{
    INNERMOST_FRAMES, MAX_FRAMES, MAX_USER_DEPTH,
    sample::{
        END_BAD_MEMORY, END_COMPLETE, END_JIT, END_NO_MAPPING, END_NO_RULE, END_NO_TABLE,
        END_TRUNCATED,
    },
    unwind::{FIRST_RULE, MAPPING_JIT, PAGE_BYTES, REGISTER_FP, REGISTER_SP, RULE_END},
};

use crate::{
    emit,
    maps::{
        COPY_RATE, RateWindow, STEP_RATE, UNWIND_COPIES, UNWIND_COUNTERS, UNWIND_STEPS, WALKS, Walk,
    },
};

/// What a step returns if there may be another one; all else are `END_*`.
const GO_ON: u32 = 0xffff;

const SP: usize = REGISTER_SP as usize;
const FP: usize = REGISTER_FP as usize;

/// A value of [`Walk::bx`]: no address of user space, so that reading there fails.
const BX_LOST: u64 = u64::MAX;

/// A word of the walk.
macro_rules! get {
    ($walk:expr, $($field:tt)+) => {
        addr_of!((*$walk).$($field)+).read_volatile()
    };
}

macro_rules! set {
    ($walk:expr, $value:expr, $($field:tt)+) => {
        addr_of_mut!((*$walk).$($field)+).write_volatile($value)
    };
}

mod gone;
mod lookup;
mod returns;
mod rules;
mod switch;
mod write;

pub use gone::has_no_memory;
use lookup::{Found, find_mapping, find_rule, mappings_of};
use returns::unwind_leave_trampoline;
use rules::{by_frame_pointer, unwind_apply};
use switch::{SAVED, SAVED_PC, take_registers};
pub use write::{
    COPY_SECTION_BYTES, SECTION_ROOM, USER_SECTION_BYTES, copy, copy_stack, section, write_head,
};

/// Walks the user stack of the current thread, of process `tgid`, from the saved registers on. Not 0
/// if the rest is to be copied.
#[unsafe(no_mangle)]
pub extern "C" fn unwind_walk(level: u32, tgid: u32, now_ns: u64) -> u32 {
    let Some(walk) = WALKS.get_ptr_mut(level) else {
        return 0;
    };
    // SAFETY: this processor's own slot, which the lookup returned; `level` is the caller's.
    unsafe {
        set!(walk, now_ns, now_ns);
        set!(walk, mappings_of(tgid), mappings);
        set!(walk, 0, end);
        set!(walk, 0, start);
        set!(walk, 0, trampoline);
        set!(walk, 0, guessed);
        set!(walk, 0, copies);
        take_registers::<SAVED_PC>(walk, &SAVED);
        set!(walk, get!(walk, pc), frames[0]);
        let (mut why, count) = gone::look(walk);
        set!(walk, count, count);
        if why == GO_ON {
            why = unwind_steps(level);
        }
        if why == GO_ON {
            why = go_deeper(walk, level);
        }
        finish(walk, why)
    }
}

/// Walks on beyond [`MAX_FRAMES`], as long as this processor may, and up to [`MAX_USER_DEPTH`]. Why it ended.
#[inline(always)]
unsafe fn go_deeper(walk: *mut Walk, level: u32) -> u32 {
    // SAFETY: the caller's; this processor's own slots, which lookups returned. A program that interrupts may
    // change the count of steps between two accesses, which may then lack those of one walk.
    unsafe {
        let (Some(rate), Some(counters)) =
            (STEP_RATE.get_ptr_mut(0), UNWIND_COUNTERS.get_ptr_mut(0))
        else {
            return u32::from(END_TRUNCATED);
        };
        RateWindow::turn(rate, get!(walk, now_ns) >> 30);
        if (*rate).calls >= u64::from(UNWIND_STEPS.load()) {
            (*counters).refused += 1;
            set!(walk, MAX_FRAMES as u64, count);
            return u32::from(END_TRUNCATED);
        }
        let mut why = GO_ON;
        for _ in 1..MAX_USER_DEPTH / MAX_FRAMES {
            why = unwind_steps(level);
            if why != GO_ON {
                break;
            }
        }
        (*rate).calls += get!(walk, count).saturating_sub(MAX_FRAMES as u64);
        if why == GO_ON {
            // What the ring has is neither end of the stack.
            set!(walk, INNERMOST_FRAMES as u64, count);
            why = u32::from(END_TRUNCATED);
        }
        why
    }
}

/// Finds [`MAX_FRAMES`] callers. `GO_ON`, or why there are fewer.
#[unsafe(no_mangle)]
pub extern "C" fn unwind_steps(level: u32) -> u32 {
    for _ in 0..MAX_FRAMES {
        let why = unwind_step(level);
        if why != GO_ON {
            return why;
        }
    }
    GO_ON
}

/// Notes why a walk ended, and whether the rest is to be copied.
#[inline(always)]
unsafe fn finish(walk: *mut Walk, why: u32) -> u32 {
    let Some(counters) = UNWIND_COUNTERS.get_ptr_mut(0) else {
        return 0;
    };
    // SAFETY: this processor's own slots, which lookups returned. A program that interrupts may change
    // a counter between two accesses, which may then be off by one.
    unsafe {
        set!(walk, u64::from(why), why);
        (*counters).walks += 1;
        (*counters).frames += get!(walk, count);
        if why == u32::from(END_BAD_MEMORY) {
            (*counters).unreadable += 1;
        }
        let wants = why == u32::from(END_NO_TABLE) || why == u32::from(END_NO_MAPPING);
        if !wants || UNWIND_COPIES.load() == 0 {
            return 0;
        }
        let Some(rate) = COPY_RATE.get_ptr_mut(0) else {
            return 0;
        };
        RateWindow::turn(rate, get!(walk, now_ns) >> 30);
        if (*rate).calls >= u64::from(UNWIND_COPIES.load()) || emit::is_filling() {
            (*counters).copies_refused += 1;
            return 0;
        }
        (*rate).calls += 1;
        (*counters).copies += 1;
        // The copy has the last address.
        set!(walk, get!(walk, count) - 1, count);
        set!(walk, 1, copies);
        1
    }
}

/// Whether a walk that has ended lacks what a table or a copy of the stack would have given.
#[inline(always)]
pub fn is_cut(level: u32) -> bool {
    let Some(walk) = WALKS.get_ptr(level) else {
        return true;
    };
    // SAFETY: this processor's own slot, which the lookup returned.
    unsafe {
        let why = get!(walk, why);
        let lacks = why == u64::from(END_NO_TABLE) || why == u64::from(END_NO_MAPPING);
        lacks && get!(walk, copies) == 0
    }
}

/// Goes back to where the walk began, whose registers were taken again: for `proof`.
#[inline(always)]
pub fn restart(level: u32) {
    let Some(walk) = WALKS.get_ptr_mut(level) else {
        return;
    };
    // SAFETY: this processor's own slot, which the lookup returned.
    unsafe { take_registers::<SAVED_PC>(walk, &SAVED) };
}

/// Finds the caller of the last frame, and adds it. `GO_ON`, or why the walk is over.
#[unsafe(no_mangle)]
pub extern "C" fn unwind_step(level: u32) -> u32 {
    let Some(walk) = WALKS.get_ptr_mut(level) else {
        return u32::from(END_BAD_MEMORY);
    };
    // SAFETY: this processor's own slot, which the lookup returned.
    unsafe {
        let found = find_mapping(walk);
        if found != GO_ON {
            return no_mapping(walk, level, found);
        }
        set!(walk, 0, guessed);
        let table = get!(walk, table);
        if table == MAPPING_JIT {
            return by_frame_pointer(walk, level, END_JIT);
        }
        match find_rule(walk, table as u32) {
            Found::Rule(number) if number >= FIRST_RULE => unwind_apply(level, number),
            Found::Rule(RULE_END) => u32::from(END_COMPLETE),
            Found::Rule(_) => by_frame_pointer(walk, level, END_NO_RULE),
            Found::Absent => u32::from(END_NO_TABLE),
        }
    }
}

/// What a frame in no mapping means.
#[inline(always)]
unsafe fn no_mapping(walk: *mut Walk, level: u32, found: u32) -> u32 {
    // SAFETY: the caller's.
    unsafe {
        let guessed = get!(walk, guessed);
        if guessed != 0 {
            // A frame pointer that is something else: it leads nowhere.
            set!(walk, get!(walk, count) - 1, count);
            return (guessed - 1) as u32;
        }
        if get!(walk, count) == 1 && unwind_leave_trampoline(level) != 0 {
            // It is elsewhere now: the next step looks again.
            return GO_ON;
        }
        found
    }
}
