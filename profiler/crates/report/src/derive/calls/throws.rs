//! Exceptions: what was thrown, by which code, and how many calls were left by it.
//!
//! Input: throws, and calls that ended by an exception; output: counts per type and thrower. A call
//! left by an exception is counted with the last throw of its thread, if that had the same type.

use rustc_hash::FxHashMap;

use profiler_model::*;

/// Most pairs of type and thrower; more are only counted.
const MAX_KINDS: usize = 4096;

/// Exceptions of one type from one place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThrowSum {
    /// Times thrown.
    pub thrown: u64,
    /// Traced calls that were left by it.
    pub calls_left: u64,
}

/// What was thrown, and by what code; none where that is not known.
pub type ThrowKind = (Option<StringId>, Option<FrameId>);

#[derive(Clone, Debug, Default)]
pub(super) struct Throws {
    sums: FxHashMap<ThrowKind, ThrowSum>,
    last: FxHashMap<ThreadId, ThrowKind>,
    /// Throws and calls left that are in none of the sums.
    pub(super) folded: u64,
}

impl Throws {
    pub(super) fn thrown(&mut self, throw: &Throw, counted: bool) {
        let kind = (Some(throw.kind), throw.thrower);
        self.last.insert(throw.thread, kind);
        if counted && let Some(sum) = self.sum(kind) {
            sum.thrown += 1;
        }
    }

    pub(super) fn left(&mut self, thread: ThreadId, kind: Option<StringId>) {
        let last = self.last.get(&thread).copied();
        let same = last.filter(|(last, _)| kind.is_none() || *last == kind);
        if let Some(sum) = self.sum(same.unwrap_or((kind, None))) {
            sum.calls_left += 1;
        }
    }

    fn sum(&mut self, kind: ThrowKind) -> Option<&mut ThrowSum> {
        if self.sums.len() >= MAX_KINDS && !self.sums.contains_key(&kind) {
            self.folded += 1;
            return None;
        }
        Some(self.sums.entry(kind).or_default())
    }

    pub(super) fn forget(&mut self, thread: ThreadId) {
        self.last.remove(&thread);
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (ThrowKind, ThrowSum)> + '_ {
        self.sums.iter().map(|(&kind, &sum)| (kind, sum))
    }
}
