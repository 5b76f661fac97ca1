//! Limits on depth, duration and rate: which calls make records. Only there if one is asked for.
//!
//! For each thread or goroutine there is a stack of the calls that are open and recorded. An entry
//! that is let through goes onto it; an exit makes a record only if its entry is found there, by
//! probe and by where the return address lies. So no record of an exit is without that of its entry,
//! whatever the limits leave out. Calls that were left without an exit (exceptions, longjmp) are
//! recognised by what is below them on the stack, and dropped.
//!
//! With a least duration there is one record for each call, made at its exit; values at its entry are
//! not kept. Times are nanoseconds of CLOCK_MONOTONIC.

use aya_ebpf::bindings::BPF_NOEXIST;
use profiler_common::call::{EDGE_ENTER, EDGE_EXIT, EDGE_HIT, EDGE_WHOLE};

use crate::{
    call::{Hit, Verdict},
    maps::{
        CALL_CALLERS, CALL_MAX_DEPTH, CALL_MAX_RATE, CALL_MIN_DURATION_NS, CALL_RATES, NO_CALLS,
        OPEN_CALLS, OpenCall, OpenCalls, RateWindow, STACK_CALLS,
    },
    user_memory::read_word,
};

const NS_PER_SECOND: u64 = 1_000_000_000;

/// What becomes of a hit; it may become that of a whole call.
#[inline(always)]
pub fn apply(hit: &mut Hit) -> Verdict {
    match hit.edge {
        EDGE_ENTER => enter(hit),
        EDGE_EXIT => leave(hit),
        EDGE_HIT if is_over_rate(hit) => Verdict::LeaveOut,
        _ => Verdict::Send,
    }
}

#[inline(always)]
fn enter(hit: &Hit) -> Verdict {
    let Some(open) = open_calls(hit, true) else {
        return Verdict::LeaveOut;
    };
    let position = position(hit);
    // SAFETY: a value that the lookup returned; only this thread uses it (a goroutine is on one
    // thread at a time).
    unsafe {
        for _ in 0..STACK_CALLS {
            let Some(top) = top(open) else { break };
            let below = (*top).position < position;
            let again = (*top).position == position && (*top).probe == u64::from(hit.probe);
            if !below && !again {
                break;
            }
            (*open).depth -= 1;
        }
        let depth = (*open).depth;
        let max_depth = u64::from(CALL_MAX_DEPTH.load());
        if depth >= STACK_CALLS as u64 || max_depth != 0 && depth >= max_depth {
            return Verdict::LeaveOut;
        }
        let whole = CALL_MIN_DURATION_NS.load() != 0;
        if !whole && is_over_rate(hit) {
            return Verdict::LeaveOut;
        }
        (*open).depth = depth + 1;
        let Some(top) = top(open) else {
            return Verdict::LeaveOut;
        };
        (*top).position = position;
        (*top).entered_at_ns = hit.head.at_ns;
        (*top).probe = hit.probe.into();
        (*top).caller = 0;
        if whole {
            if CALL_CALLERS.load() != 0 {
                (*top).caller = read_word(hit.sp).unwrap_or(0);
            }
            return Verdict::Nothing;
        }
    }
    Verdict::Send
}

#[inline(always)]
fn leave(hit: &mut Hit) -> Verdict {
    let Some(open) = open_calls(hit, false) else {
        return Verdict::Nothing;
    };
    let position = position(hit);
    let mut found = false;
    let mut entered_at_ns = 0;
    let mut caller = 0;
    // SAFETY: as for an entry.
    unsafe {
        for _ in 0..STACK_CALLS {
            let Some(top) = top(open) else { break };
            if (*top).position > position {
                break;
            }
            (*open).depth -= 1;
            if (*top).position == position && (*top).probe == u64::from(hit.probe) {
                entered_at_ns = (*top).entered_at_ns;
                caller = (*top).caller;
                found = true;
                break;
            }
        }
    }
    if !found {
        return Verdict::Nothing;
    }
    let least_ns = CALL_MIN_DURATION_NS.load();
    if least_ns == 0 {
        return Verdict::Send;
    }
    if hit.head.at_ns.saturating_sub(entered_at_ns) < least_ns || is_over_rate(hit) {
        return Verdict::LeaveOut;
    }
    hit.edge = EDGE_WHOLE;
    hit.head.what = hit.head.what & !(0xf << 24) | EDGE_WHOLE << 24;
    hit.began_ns = entered_at_ns;
    hit.caller = caller;
    hit.callers = u32::from(caller != 0);
    Verdict::Send
}

/// Where the call's return address lies: less for calls that are deeper.
#[inline(always)]
fn position(hit: &Hit) -> u64 {
    if hit.head.stack == 0 {
        hit.head.sp
    } else {
        // The distance from the upper end.
        !hit.head.sp
    }
}

/// The innermost open call.
///
/// # Safety
/// `open` is a value that a lookup returned.
#[inline(always)]
unsafe fn top(open: *mut OpenCalls) -> Option<*mut OpenCall> {
    // SAFETY: the caller's; the index is below the number of calls.
    unsafe {
        let depth = (&raw const (*open).depth).read_volatile();
        let index = depth.wrapping_sub(1);
        if index >= STACK_CALLS as u64 {
            return None;
        }
        let mut bounded = index;
        core::arch::asm!("{0} &= 0x3f", inout(reg) bounded);
        Some(
            (&raw mut (*open).calls)
                .cast::<OpenCall>()
                .add(bounded as usize),
        )
    }
}

const _: () = assert!(STACK_CALLS == 0x3f + 1);

/// The open calls of the hit's stack.
#[inline(always)]
fn open_calls(hit: &Hit, make: bool) -> Option<*mut OpenCalls> {
    let head = &hit.head;
    let whose = if head.stack == 0 { head.tid } else { head.tgid };
    let key = u64::from(head.stack) << 32 | u64::from(whose);
    if let Some(open) = OPEN_CALLS.get_ptr_mut(key) {
        return Some(open);
    }
    if !make {
        return None;
    }
    let none = NO_CALLS.get(0)?;
    // If this fails, so does the lookup.
    let _ = OPEN_CALLS.insert(key, none, u64::from(BPF_NOEXIST));
    OPEN_CALLS.get_ptr_mut(key)
}

/// Whether this processor has let enough calls of the probe through in this second. Threads that
/// preempt each other here may let one more through.
#[inline(always)]
fn is_over_rate(hit: &Hit) -> bool {
    let most = u64::from(CALL_MAX_RATE.load());
    if most == 0 {
        return false;
    }
    let Some(window) = CALL_RATES.get_ptr_mut(hit.probe) else {
        return false;
    };
    let second = hit.head.at_ns / NS_PER_SECOND;
    // SAFETY: this processor's own slot, which the lookup returned.
    unsafe {
        RateWindow::turn(window, second);
        if (*window).calls >= most {
            return true;
        }
        (*window).calls += 1;
    }
    false
}
