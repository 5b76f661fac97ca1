//! What is known of the code at an address: its mapping, its table, the row that holds there.
//!
//! A frame's address -> the number of a rule (`profiler_common::unwind`). Searches take a bounded number
//! of turns, and never branch on what they compare: the verifier would follow both ways of each turn.
//!
//! What does not belong here: what a rule says (`rules`).

use core::{
    arch::asm,
    ptr::{addr_of, addr_of_mut},
};

use profiler_common::{
    sample::{END_NO_MAPPING, END_NO_TABLE},
    unwind::{
        MAPPING_WORDS, MAX_MAPPINGS, PAGE_BITS, RULE_NONE, Span, TABLE_ABSENT, TABLE_NONE,
        row_place, row_rule,
    },
};

use super::GO_ON;
use crate::maps::{PROCESSES, SEGMENTS, TABLES, UNWIND_COUNTERS, Walk};

/// A table's use is noted again after so long.
const USE_NS: u64 = 1 << 30;

/// Turns of a search among the rows of a page or the mappings of a process.
const SEARCH_TURNS: u32 = 14;

const _: () = assert!(MAX_MAPPINGS <= 1 << SEARCH_TURNS && PAGE_BITS <= SEARCH_TURNS);

/// The list of mappings of a process; 0: none is known.
#[inline(always)]
pub(super) fn mappings_of(tgid: u32) -> u64 {
    let Some(process) = PROCESSES.get_ptr(tgid) else {
        return 0;
    };
    // SAFETY: words of what the lookup returned. The id is read last: see its description.
    unsafe {
        let mappings = addr_of!((*process).mappings).read_volatile();
        if addr_of!((*process).pid).read_volatile() != u64::from(tgid) {
            return 0;
        }
        mappings
    }
}

/// Finds the mapping of the frame.
#[inline(always)]
pub(super) unsafe fn find_mapping(walk: *mut Walk) -> u32 {
    // SAFETY: the caller's.
    unsafe {
        let at = get!(walk, pc).wrapping_sub(get!(walk, is_return));
        if at >= get!(walk, start) && at < get!(walk, end) {
            return GO_ON;
        }
        let list = get!(walk, mappings);
        if list == 0 {
            return u32::from(END_NO_TABLE);
        }
        let span = Span::of(list);
        let index = unwind_find_mapping(list, at);
        let first = span.first + index * MAPPING_WORDS;
        let word = |place: u32| word(span.segment, first + place);
        let (Some(start), Some(end)) = (word(0), word(1)) else {
            return u32::from(END_NO_MAPPING);
        };
        if at < start || at >= end {
            return u32::from(END_NO_MAPPING);
        }
        let (Some(address), Some(table)) = (word(2), word(3)) else {
            return u32::from(END_NO_MAPPING);
        };
        set!(walk, start, start);
        set!(walk, end, end);
        set!(walk, address, address);
        set!(walk, table, table);
        GO_ON
    }
}

/// What a table says about a frame.
pub(super) enum Found {
    Rule(u32),
    Absent,
}

/// Finds the rule of the frame in a table.
#[inline(always)]
pub(super) unsafe fn find_rule(walk: *mut Walk, table: u32) -> Found {
    let Some(table) = TABLES.get_ptr_mut(table) else {
        return Found::Absent;
    };
    // SAFETY: the caller's, and words of what the lookup returned, which user space changes.
    unsafe {
        let generation = addr_of!((*table).generation).read_volatile();
        let directory = addr_of!((*table).directory).read_volatile();
        let base = addr_of!((*table).base).read_volatile();
        if directory == TABLE_ABSENT {
            return Found::Absent;
        }
        let now = get!(walk, now_ns);
        if now.wrapping_sub(addr_of!((*table).used_ns).read_volatile()) > USE_NS {
            addr_of_mut!((*table).used_ns).write_volatile(now);
        }
        if directory == TABLE_NONE {
            return Found::Rule(RULE_NONE);
        }
        let at = get!(walk, pc).wrapping_sub(get!(walk, is_return));
        let address = at - get!(walk, start) + get!(walk, address);
        let offset = address.wrapping_sub(base);
        let span = Span::of(directory);
        let page = offset >> PAGE_BITS;
        let rows = match page < u64::from(span.len) {
            true => word(span.segment, span.first + page as u32).unwrap_or(0),
            false => 0,
        };
        let rule = match rows {
            0 => RULE_NONE,
            rows => row_rule(unwind_find_row(
                rows,
                offset as u32 & ((1 << PAGE_BITS) - 1),
            )),
        };
        // That there is none is believed of the same table only, too.
        if addr_of!((*table).generation).read_volatile() != generation {
            if let Some(counters) = UNWIND_COUNTERS.get_ptr_mut(0) {
                (*counters).changed += 1;
            }
            return Found::Absent;
        }
        Found::Rule(rule)
    }
}

/// A word of a segment.
#[inline(always)]
fn word(segment: u32, index: u32) -> Option<u64> {
    let segment = SEGMENTS.get(segment)?;
    // SAFETY: a word of what the lookup returned, which user space may change.
    segment
        .get_ptr(index)
        .map(|word| unsafe { word.read_volatile() })
}

/// The row of a page that holds at `place`. `rows` is its span.
#[unsafe(no_mangle)]
pub extern "C" fn unwind_find_row(rows: u64, place: u32) -> u32 {
    let span = Span::of(rows);
    let Some(segment) = SEGMENTS.get(span.segment) else {
        return 0;
    };
    let row = |index: u32| {
        let word = segment.get_ptr(span.first + (index >> 1))?;
        // SAFETY: as in `word`.
        let word = unsafe { word.read_volatile() };
        Some((word >> ((index & 1) * 32)) as u32)
    };
    let (mut first, mut len) = (0_u32, span.len);
    for _ in 0..SEARCH_TURNS {
        if len <= 1 {
            break;
        }
        let half = len >> 1;
        let Some(middle) = row(first + half) else {
            return 0;
        };
        first += half & not_above(row_place(middle).into(), place.into()) as u32;
        len -= half;
    }
    row(first).unwrap_or(0)
}

/// The index of the last mapping that begins at `address` or before; 0 if there is none. `list` is the
/// span of the mappings.
#[unsafe(no_mangle)]
pub extern "C" fn unwind_find_mapping(list: u64, address: u64) -> u32 {
    let span = Span::of(list);
    let Some(segment) = SEGMENTS.get(span.segment) else {
        return 0;
    };
    let (mut first, mut len) = (0_u32, span.len);
    for _ in 0..SEARCH_TURNS {
        if len <= 1 {
            break;
        }
        let half = len >> 1;
        let Some(middle) = segment.get_ptr(span.first + (first + half) * MAPPING_WORDS) else {
            return 0;
        };
        // SAFETY: as in `word`.
        let middle = unsafe { middle.read_volatile() };
        first += half & not_above(middle, address) as u32;
        len -= half;
    }
    first
}

/// All ones if `value` is at most `limit`, else 0; both are below 2^63. Not a branch, which would
/// double what the verifier has to follow, in each turn.
#[inline(always)]
fn not_above(value: u64, limit: u64) -> u64 {
    let mut mask = value.wrapping_sub(limit).wrapping_sub(1);
    // SAFETY: a plain shift of a register.
    unsafe { asm!("{0} s>>= 63", inout(reg) mask) };
    mask
}
