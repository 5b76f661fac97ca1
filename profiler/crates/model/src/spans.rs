//! Times that overlap -> how long they are together, each moment counted once.
//!
//! Times are CLOCK_MONOTONIC. What does not belong here: whose times they are.

use super::id::Timestamp;

/// Disjoint spans that are told apart; of more, those that are close to each other count as one.
const MOST: usize = 1 << 14;

/// A set of times.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spans {
    /// Disjoint, in order.
    spans: Vec<(Timestamp, Timestamp)>,
    ns: u64,
}

impl Spans {
    /// Adds a span.
    pub fn add(&mut self, from: Timestamp, to: Timestamp) {
        let to = to.max(from);
        let first = self.spans.partition_point(|(_, end)| *end < from);
        let last = self.spans.partition_point(|(start, _)| *start <= to);
        let mut whole = (from, to);
        for (start, end) in self.spans.drain(first..last.max(first)) {
            self.ns -= end.since(start);
            whole = (whole.0.min(start), whole.1.max(end));
        }
        if self.spans.len() >= MOST
            && let Some(before) = first.checked_sub(1)
        {
            let (start, end) = self.spans.remove(before);
            self.ns -= end.since(start);
            self.insert(before, (start, whole.1));
            return;
        }
        self.insert(first, whole);
    }

    /// How long they are together.
    pub fn ns(&self) -> u64 {
        self.ns
    }

    fn insert(&mut self, at: usize, (from, to): (Timestamp, Timestamp)) {
        self.spans.insert(at, (from, to));
        self.ns += to.since(from);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(spans: &[(u64, u64)]) -> u64 {
        let mut all = Spans::default();
        for &(from, to) in spans {
            all.add(Timestamp(from), Timestamp(to));
        }
        all.ns()
    }

    #[test]
    fn each_moment_counts_once() {
        assert_eq!(of(&[]), 0);
        assert_eq!(of(&[(10, 20), (30, 40)]), 20);
        assert_eq!(of(&[(30, 40), (10, 20), (15, 35)]), 30);
        assert_eq!(of(&[(10, 20), (10, 20), (12, 14), (20, 25)]), 15);
        // One that ends before it begins is none.
        assert_eq!(of(&[(20, 10)]), 0);
        // All of a recording, as an imported one may say it.
        assert_eq!(of(&[(0, u64::MAX), (5, 7), (0, u64::MAX)]), u64::MAX);
    }

    #[test]
    fn very_many_are_bounded() {
        let mut all = Spans::default();
        for n in 0..2 * MOST as u64 {
            all.add(Timestamp(n * 10), Timestamp(n * 10 + 1));
        }
        assert!(all.spans.len() <= MOST);
        assert!(all.ns() >= 2 * MOST as u64);
    }
}
