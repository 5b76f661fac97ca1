//! Functions that jump back to their own beginning: which hits of their entry come from such a jump.
//!
//! Such a jump has a probe of its own. If it is taken, the next hit of the entry on this thread with
//! the same stack pointer is where it leads. That its probe is hit does not mean that it is taken:
//! the flags of the processor say so.

use aya_ebpf::bindings::BPF_ANY;
use profiler_common::call::{EDGE_SELF_JUMP, EDGE_SELF_JUMP_IF};

use crate::maps::{SELF_JUMPS, SelfJump};

/// No probe.
const NONE: u64 = u64::MAX;

/// A thread is about to jump, maybe.
#[inline(always)]
pub fn pass(edge: u32, flags: u64, tid: u32, probe: u32, sp: u64) {
    if edge < EDGE_SELF_JUMP && !holds(edge - EDGE_SELF_JUMP_IF, flags) {
        return;
    }
    let jump = SelfJump {
        sp,
        probe: probe.into(),
    };
    match SELF_JUMPS.get_ptr_mut(tid) {
        // SAFETY: a value that the lookup returned; only this thread uses it.
        Some(last) => unsafe { *last = jump },
        // Without room the jump counts as a call.
        None => drop(SELF_JUMPS.insert(tid, jump, u64::from(BPF_ANY))),
    }
}

/// Whether the hit of an entry is where the thread has jumped to.
#[inline(always)]
pub fn is_destination(tid: u32, probe: u32, sp: u64) -> bool {
    let Some(last) = SELF_JUMPS.get_ptr_mut(tid) else {
        return false;
    };
    // SAFETY: as above.
    unsafe {
        if (*last).probe != u64::from(probe) || (*last).sp != sp {
            return false;
        }
        (*last).probe = NONE;
    }
    true
}

/// Whether a condition of the processor holds, by its number in a jump's code: three bits choose the
/// flags, the lowest one turns the answer over.
#[inline(always)]
fn holds(condition: u32, flags: u64) -> bool {
    let flag = |bit: u32| flags >> bit & 1 != 0;
    let (carry, parity, zero) = (flag(0), flag(2), flag(6));
    let (sign, overflow) = (flag(7), flag(11));
    let holds = match condition >> 1 {
        0 => overflow,
        1 => carry,
        2 => zero,
        3 => carry | zero,
        4 => sign,
        5 => parity,
        6 => sign != overflow,
        _ => zero | (sign != overflow),
    };
    holds != (condition & 1 != 0)
}
