//! What live consumers want of a session, all of them together.
//!
//! A server forms one [`Demand`] of what its clients ask for, a hub one of those of all servers, whoever runs
//! the session carries it out; each new one replaces the one before. Frequencies are samples per second and processor. What does
//! not belong here: which client wants what (`serve`), how the kernel is told (`probe`).

use std::collections::BTreeSet;

use super::id::{Pid, Tid};

/// What all live clients together want a session to do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Demand {
    /// Somebody follows what becomes of processes. Without, nothing need be attached at all.
    pub attached: bool,
    /// What to sample; none: nothing.
    pub sampling: Option<Sampling>,
    /// Whose calls to trace, each by probes of its own, which sit only as long as somebody wants it.
    pub tracing: BTreeSet<Tracing>,
    /// Differs from that of the demand before when who has one of the ids may have changed: what is
    /// wanted is to be told the kernel then, though the ids are the same.
    pub lives: u64,
}

impl Sampling {
    /// Besides, what another wants.
    pub fn join(&mut self, other: &Sampling) {
        let Sampling {
            frequency_hz,
            regular_hz,
            kernel_stacks,
            processes,
            threads,
            followed,
        } = other;
        self.frequency_hz = self.frequency_hz.max(*frequency_hz);
        self.regular_hz = match (self.regular_hz, *regular_hz) {
            (Some(one), Some(two)) => Some(one / divisor(one, two) * two),
            (one, two) => one.or(two),
        };
        if let Some(regular_hz) = self.regular_hz {
            self.frequency_hz = self.frequency_hz.next_multiple_of(regular_hz.max(1));
        }
        self.kernel_stacks |= kernel_stacks;
        self.processes.extend(processes);
        self.threads.extend(threads);
        self.followed.extend(followed);
    }
}

/// The greatest number that divides both.
fn divisor(a: u64, b: u64) -> u64 {
    match b {
        0 => a.max(1),
        b => divisor(b, a % b),
    }
}

/// What to sample.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sampling {
    /// The highest frequency that anybody wants.
    pub frequency_hz: u64,
    /// Somebody wants samples at regular times, at this frequency, and gets all that are taken to choose from: the
    /// frequency is a multiple of it.
    pub regular_hz: Option<u64>,
    /// Whether anybody wants kernel stacks.
    pub kernel_stacks: bool,
    /// Processes of which all threads are sampled.
    pub processes: BTreeSet<Pid>,
    /// Threads that are sampled by themselves.
    pub threads: BTreeSet<Tid>,
    /// Those of `processes` whose descendants are sampled too, from their first instruction on, named
    /// in `processes` or not. Of one that lives already when its ancestor is first followed that
    /// holds only if it is named itself. One that has ended may stay here for the sake of its descendants.
    pub followed: BTreeSet<Pid>,
}

/// Calls of one process that somebody wants.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tracing {
    /// Tells apart demands for the same calls: what comes of each begins with its own definitions.
    pub id: u64,
    /// The process, with what it starts.
    pub process: Pid,
    /// Which functions: patterns, as `record --trace` takes them.
    pub functions: BTreeSet<String>,
    /// With arguments and results.
    pub values: bool,
    /// They need not be there: what the process loads later, or runs, may have them.
    pub awaited: bool,
}
