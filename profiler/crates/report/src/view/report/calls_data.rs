//! Traced calls as data: what the text shows and what JSON holds, under stable names.
//!
//! Durations are nanoseconds, times nanoseconds since the start of the recording; percentages say
//! of what. A number that is not known is null, never 0.

use profiler_model::{GapReason, ReturnMode, TracedKind};
use serde::Serialize;

use super::data::{CodeModule, is_zero};
use crate::view::losses;

/// Traced calls of a recording.
#[derive(Clone, Debug, Serialize)]
pub struct Calls {
    /// How much there is, and what is missing.
    pub summary: CallSummary,
    /// Traced functions and markers.
    pub functions: Vec<CallRow>,
    /// The tree of calls in depth-first order.
    pub tree: Vec<CallTreeRow>,
    /// The slowest calls.
    pub slowest: Vec<SlowRow>,
    /// Exceptions by type and thrower.
    pub exceptions: Vec<ExceptionRow>,
    /// Processes.
    pub processes: Vec<CallOwnerRow>,
    /// Threads.
    pub threads: Vec<CallOwnerRow>,
}

/// How much there is, and what is missing.
#[derive(Clone, Debug, Default, Serialize)]
pub struct CallSummary {
    /// Functions and markers that were traced.
    pub functions: u64,
    /// Calls, as exact as can be had: see `calls` of a function.
    pub calls: u64,
    /// See `calls_at_least` of a function.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub calls_at_least: bool,
    /// Calls in the recording.
    pub seen: u64,
    /// Records that were lost for want of room in a ring buffer.
    pub lost_records: u64,
    /// Records that could not be written.
    #[serde(skip_serializing_if = "is_zero")]
    pub unwritten_records: u64,
    /// Exits without an entry.
    pub unmatched: u64,
    /// Calls that were not watched to their end.
    pub unwatched: u64,
    /// Calls whose end was not recorded.
    #[serde(skip_serializing_if = "is_zero")]
    pub unrecorded: u64,
    /// Calls that were left out because of a limit on depth, duration or rate.
    pub left_out: u64,
    /// Whether the kernel's counts are left out, because they are not of the threads or the span
    /// looked at.
    pub counts_left_out: bool,
    /// Times in which calls were not recorded, per reason.
    pub gaps: Vec<GapRow>,
    /// Calls that are too deep or in too many contexts for the tree.
    pub folded: u64,
    /// Exceptions of too many kinds for the list.
    pub exceptions_folded: u64,
    /// Calls whose arguments were not kept, for want of room.
    pub arguments_dropped: u64,
}

impl CallSummary {
    /// Why calls were not watched to their end, in words that stand behind their number.
    pub(super) fn why_unwatched(&self) -> &'static str {
        let budget = self.gaps.iter().any(|gap| gap.reason.is_for_budget());
        losses::without_end(self.lost_records > 0, budget)
    }

    /// Whether calls are known to be missing. Those that had begun before they were watched are not.
    pub(super) fn misses_any(&self) -> bool {
        let missing = [self.lost_records, self.unwritten_records, self.left_out];
        missing != [0; 3] || !self.gaps.is_empty()
    }
}

/// Times in which calls were not recorded.
#[derive(Clone, Debug, Serialize)]
pub struct GapRow {
    /// Why they were not recorded.
    pub reason: GapReason,
    /// Gaps, if they are counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// Their length; of several, which may be at the same time, how long there was any.
    pub ns: u64,
    /// Their part of the span looked at, if they are of one function.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub percent: Option<f64>,
}

/// A traced function.
#[derive(Clone, Debug, Default, Serialize)]
pub struct CallRow {
    /// Name, told apart from others of its module.
    pub name: String,
    /// Its own name.
    #[serde(skip)]
    pub short: String,
    /// Where it lives.
    #[serde(flatten)]
    pub module: CodeModule,
    /// What it is.
    pub kind: TracedKind,
    /// How its exits are seen; null if not known.
    pub returns: Option<ReturnMode>,
    /// Calls: counted by the kernel, or else those in the recording.
    pub calls: u64,
    /// There may have been more: for a time nobody counted them.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub calls_at_least: bool,
    /// Calls in the recording: times are of these.
    pub calls_seen: u64,
    /// Calls counted by the kernel.
    pub calls_counted: Option<u64>,
    /// Calls with those that gaps of the budget hid; null if there are none, or what was watched does not say so.
    pub calls_estimated: Option<u64>,
    /// Gaps of the budget hid calls, and what was watched does not say how many.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub not_estimable: bool,
    /// Records lost.
    pub lost_records: u64,
    /// Calls left out because of a limit.
    pub left_out: u64,
    /// Time in it, counted once where it calls itself.
    pub total_ns: u64,
    /// Time in it without the traced calls in it.
    pub self_ns: u64,
    /// Mean duration.
    pub mean_ns: Option<u64>,
    /// Shortest.
    pub min_ns: Option<u64>,
    /// Half of the calls took at most this.
    pub p50_ns: Option<u64>,
    /// 95 % took at most this.
    pub p95_ns: Option<u64>,
    /// 99 % took at most this.
    pub p99_ns: Option<u64>,
    /// Longest.
    pub max_ns: Option<u64>,
    /// Calls left by an exception.
    pub exceptions: u64,
    /// By type.
    pub exception_types: Vec<ExceptionType>,
    /// Calls that ended with their thread or program.
    pub terminated: u64,
    /// Calls whose end was inferred: in the times as upper bounds, not in mean and percentiles.
    pub inferred: u64,
    /// Calls that were not watched to their end: in no time.
    #[serde(skip_serializing_if = "is_zero")]
    pub unwatched: u64,
    /// Calls whose end was not recorded, because records could not be written: in no time.
    #[serde(skip_serializing_if = "is_zero")]
    pub unrecorded: u64,
    /// Calls that had not ended when the recording did.
    pub open: u64,
    /// Passes without exits that are watched.
    pub hits: u64,
    /// Times in which it was not watched, or not fully.
    pub gaps: Vec<GapRow>,
    /// What the probes of one call cost, as predicted.
    pub cost_ns: Option<u32>,
    /// What the probes of this function and of those in it cost, as predicted: a part of `total_ns`.
    pub tracing_ns: Option<u64>,
    /// In percent of `total_ns`; null if there are calls that are in no time, but had probes.
    pub tracing_percent: Option<f64>,
    /// Distribution of durations.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub histogram: Vec<BucketRow>,
}

/// Calls left by one type of exception.
#[derive(Clone, Debug, Serialize)]
pub struct ExceptionType {
    /// Its type; null if not known.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// How many.
    pub calls: u64,
}

/// Durations from `from_ns` to before `to_ns`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct BucketRow {
    /// Shortest.
    pub from_ns: u64,
    /// First beyond it.
    pub to_ns: u64,
    /// How many calls.
    pub calls: u64,
}

/// A node of the tree of calls.
#[derive(Clone, Debug, Serialize)]
pub struct CallTreeRow {
    /// Its index in the list.
    pub id: usize,
    /// The caller's index; null for outermost calls.
    pub parent: Option<usize>,
    /// Distance from the outermost call.
    pub depth: usize,
    /// `function` or `unknown_callers`.
    pub kind: &'static str,
    /// Name.
    pub name: String,
    /// Where it lives.
    #[serde(flatten)]
    pub module: CodeModule,
    /// Calls that ended.
    pub calls: u64,
    /// Their time.
    pub total_ns: u64,
    /// Their time without the traced calls in them.
    pub self_ns: u64,
    /// Calls below that are too deep or in too many contexts to have rows of their own.
    pub folded: u64,
    /// Callees that are not listed because their share is below the limit.
    pub omitted: u64,
    /// Their time.
    pub omitted_ns: u64,
}

/// One call.
#[derive(Clone, Debug, Serialize)]
pub struct SlowRow {
    /// Function.
    pub name: String,
    /// Where it lives.
    #[serde(flatten)]
    pub module: CodeModule,
    /// When it was entered.
    pub at_ns: u64,
    /// How long it took.
    pub total_ns: u64,
    /// Without the traced calls in it.
    pub self_ns: u64,
    /// Process id.
    pub pid: u32,
    /// Name of the process.
    pub process: String,
    /// What it runs in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    /// Thread id.
    pub tid: u32,
    /// Name of the thread.
    pub thread: String,
    /// `return`, `exception` or `terminated`.
    pub end: &'static str,
    /// Line of source that it returned from; null if it is not known.
    pub line: Option<u32>,
    /// Type of the exception.
    pub exception: Option<String>,
    /// Arguments; null if they were not asked for.
    pub arguments: Option<Vec<ValueRow>>,
    /// Result; null if that was not asked for.
    pub result: Option<ValueRow>,
}

/// A value.
#[derive(Clone, Debug, Serialize)]
pub struct ValueRow {
    /// Name of the parameter.
    pub name: Option<String>,
    /// Its type.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// The value as text.
    pub value: String,
}

/// Exceptions of one type from one place.
#[derive(Clone, Debug, Serialize)]
pub struct ExceptionRow {
    /// Its type; null if not known.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// The code that threw.
    pub thrower: Option<String>,
    /// Times thrown.
    pub thrown: u64,
    /// Traced calls that were left by it.
    pub calls_left: u64,
}

/// Calls of a process or thread.
#[derive(Clone, Debug, Serialize)]
pub struct CallOwnerRow {
    /// Process id.
    pub pid: u32,
    /// Name of the process.
    pub process: String,
    /// What it runs in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    /// Thread id, of a thread.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tid: Option<u32>,
    /// Name of the thread.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thread: Option<String>,
    /// Calls that ended.
    pub calls: u64,
    /// Time in traced calls.
    pub total_ns: u64,
    /// Calls left by an exception.
    pub exceptions: u64,
}
