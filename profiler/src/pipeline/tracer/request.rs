//! What is asked of tracing, and what is said of it at the end.
//!
//! What does not belong here: how it is asked on a command line (`cli`).

use std::time::Duration;

use super::PathFilter;
use profiler_model::raw::RawEvent;
use profiler_model::{GapReason, Pid, Spans, Timestamp};
use profiler_trace::pattern::Selection;
use profiler_trace::place::{ProbeAt, Returns};

/// What to trace, and how.
#[derive(Clone, Debug)]
pub struct TraceRequest {
    /// Which functions.
    pub selection: Selection,
    /// Which of these are traced all the same; none: all.
    pub filter: Option<PathFilter>,
    /// Where entries are seen.
    pub at: ProbeAt,
    /// How exits are seen.
    pub returns: Returns,
    /// Longest string kept of an argument; none: arguments are not wanted.
    pub arguments: Option<usize>,
    /// Share of the target's time that tracing may take; none: no limit.
    pub budget: Option<f64>,
    /// Shorter calls are left out.
    pub min_duration: Duration,
    /// Calls nested deeper are left out; 0: no limit.
    pub max_depth: u32,
    /// More calls of a function per second and processor are left out; 0: no limit.
    pub max_rate: u32,
    /// Children are traced from their first instruction, for which all others that run the same files
    /// pay.
    pub follow_exact: bool,
    /// Don't ask.
    pub yes: bool,
}

/// What became of the tracing.
#[derive(Clone, Debug, Default)]
pub struct TraceSummary {
    /// Functions and markers that were traced.
    pub functions: usize,
    /// Calls by the kernel's count.
    pub calls: u64,
    /// There may have been more: for a time nobody counted them.
    pub at_least: bool,
    /// Records lost for want of room.
    pub lost: u64,
    /// Calls left out because of a limit.
    pub left_out: u64,
    /// Calls that were not watched to their end.
    pub without_end: u64,
    /// Exits without an entry.
    pub without_entry: u64,
    /// Functions that stepped down to stay within the budget.
    pub stepped_down: usize,
    /// What ran before probes were attached to it.
    pub unwatched: Unwatched,
    /// What the kernel has not let go of yet.
    pub leaving: Option<Leaving>,
}

impl TraceSummary {
    /// Whether calls were lost, left out or not watched, or may have been: how many is not always known.
    pub fn misses_calls(&self) -> bool {
        self.lost > 0 || self.left_out > 0 || self.stepped_down > 0 || self.unwatched.gaps > 0
    }
}

/// Times in which programs ran before probes were attached to what they had loaded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unwatched {
    /// How many.
    pub gaps: u64,
    /// When there was any: several programs have theirs at the same time.
    pub spans: Spans,
    /// The longest of them.
    pub longest_ns: u64,
}

impl Unwatched {
    /// One of them, that ends at `at`.
    pub(super) fn gap(&mut self, at: Timestamp, since: Timestamp, pid: Pid) -> RawEvent {
        let ns = at.since(since);
        self.gaps += 1;
        self.spans.add(since, at);
        self.longest_ns = self.longest_ns.max(ns);
        super::gap(at, since, None, Some(pid), GapReason::NotYetAttached)
    }
}

/// Functions whose probes the kernel has not let go of when everything else is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leaving {
    /// How many.
    pub functions: usize,
    /// It waits until calls return that are open under return probes; else each place takes it a while.
    pub waits_for_calls: bool,
    /// The process that ends when all is gone; none: this one does not end before.
    pub process: Option<u32>,
}
