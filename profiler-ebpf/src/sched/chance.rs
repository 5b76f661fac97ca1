//! What is recorded and walked when there is more than the budgets allow: by chance, so that sums are
//! without bias.
//!
//! A wait's length, what the processor recorded lately -> how many waits it stands for. Times are
//! nanoseconds of CLOCK_MONOTONIC.

use aya_ebpf::helpers::bpf_get_prandom_u32;

use super::key::mix;
use crate::maps::{WAIT_BUDGET, WAIT_SEED, WAIT_WALK_BUDGET, WAIT_WINDOW_LOG, WaitCpu};

/// Bounds of what is recorded by chance: waits shorter than this much.
/// Powers of two, as all between.
const LEAST_SURE_NS: u64 = 1 << 10;
const MOST_SURE_NS: u64 = 1 << 27;
/// Largest exponent of the share of stacks that are walked, and of how many waits any one stands for: sums
/// would be without bias with more, too, but most of them far too low, and a few far too high.
const MOST_SHARE_LOG: u64 = 10;
/// The budget of so many windows may be walked at once: a program that begins its threads has that many new stacks, and
/// none soon after.
const BURST: u64 = 16;

/// Whether stacks are to be walked although those of their key are known. Two places of a program
/// that call the same function from frames of the same size have the same key: each has its own
/// stack while there is time for that, and has a chance to be seen when there is not.
#[inline(always)]
pub(super) fn can_walk_again(cpu: &mut WaitCpu) -> bool {
    if cpu.sure_ns == 0 {
        2 * cpu.walked < WAIT_WALK_BUDGET.load()
    } else {
        random(cpu) & 0xff == 0
    }
}

/// For how many waits with stacks not seen before the present one stands; 0: it is left out.
#[inline(always)]
pub(super) fn share(cpu: &mut WaitCpu) -> u32 {
    let exponent = cpu.share_log & 0xf;
    let chance = random(cpu) & ((1 << exponent) - 1);
    if chance == 0 { 1 << exponent } else { 0 }
}

/// 64 bits by chance. Asking the kernel for 32 takes 25 ns, so it is asked once.
#[inline(always)]
fn random(cpu: &mut WaitCpu) -> u64 {
    let mut state = cpu.random;
    if state == 0 {
        // SAFETY: the helper takes no pointers.
        let seed = unsafe { bpf_get_prandom_u32() };
        state = mix(WAIT_SEED.load(), u64::from(seed)) | 1;
    }
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    cpu.random = state;
    // The lower bits of the state itself are a little regular.
    mix(state, 0)
}

/// Adapts what is recorded to what there was lately: what is decided of a wait does not depend on it,
/// so that nothing is preferred.
#[inline(always)]
pub(super) fn turn_window(cpu: &mut WaitCpu, now: u64) {
    let windows = now.saturating_sub(cpu.window_ns) >> (WAIT_WINDOW_LOG.load() & 63);
    let (most, most_walks) = (WAIT_BUDGET.load(), WAIT_WALK_BUDGET.load());
    let room = BURST * most_walks;
    let spent = cpu.debt + cpu.walked;
    if windows == 0 && cpu.recorded < 2 * most && spent < room + 2 * most_walks {
        return;
    }
    if cpu.recorded > most {
        cpu.sure_ns = (2 * cpu.sure_ns).clamp(LEAST_SURE_NS, MOST_SURE_NS);
    } else if windows > 0 && 2 * cpu.recorded < most {
        cpu.sure_ns >>= if windows < 32 { windows } else { 32 };
        if cpu.sure_ns < LEAST_SURE_NS {
            cpu.sure_ns = 0;
        }
    }
    cpu.debt = spent
        .saturating_sub(windows.min(2 * BURST) * most_walks)
        .min(room);
    if cpu.debt == room {
        cpu.share_log = (cpu.share_log + 1).min(MOST_SHARE_LOG);
    } else if windows > 0 && 2 * cpu.walked < most_walks {
        cpu.share_log = cpu.share_log.saturating_sub(windows);
    }
    cpu.window_ns = now;
    cpu.recorded = 0;
    cpu.walked = 0;
}

/// How many waits one of this length stands for, beside those that `share` says; 0: it is not recorded. Its
/// chance is its length in `sure_ns`, but never so small that it would stand for more than all may; the
/// reverse of that is rounded by chance, so that the mean is exact.
#[inline(always)]
pub(super) fn weight(cpu: &mut WaitCpu, ns: u64, share: u32) -> u32 {
    let sure_ns = cpu.sure_ns;
    let least = (sure_ns >> MOST_SHARE_LOG) * u64::from(share);
    let ns = ns.max(least).max(1);
    if ns >= sure_ns {
        return 1;
    }
    let chance = random(cpu);
    if chance & (sure_ns - 1) >= ns {
        return 0;
    }
    // Below `ns`, and independent of what decided: at most MOST_SURE_NS, so that the product fits.
    let part = ((chance >> 32) * ns) >> 32;
    ((sure_ns + part) / ns) as u32
}
