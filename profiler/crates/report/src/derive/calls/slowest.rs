//! The slowest calls, each with all that is known of it.
//!
//! Input: calls that ended; output: the N longest, longest first. Bounded by N and by the bytes of
//! the arguments of calls that are still open ([`ArgumentBytes`]).

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use profiler_model::sorting::InOrder;
use profiler_model::*;

/// One call.
#[derive(Clone, Debug, PartialEq)]
pub struct SlowCall {
    /// Which function.
    pub function: FunctionId,
    /// On which thread.
    pub thread: ThreadId,
    /// When it was entered.
    pub began: Timestamp,
    /// How long it took.
    pub total_ns: u64,
    /// Without the traced calls directly in it.
    pub self_ns: u64,
    /// How it ended.
    pub how: ExitKind,
    /// Line of source that it was left from; 0: not known.
    pub line: u32,
    /// Its arguments, if they were asked for and kept.
    pub arguments: Option<Box<[Value]>>,
    /// Its result, if that was asked for.
    pub result: Option<Value>,
}

#[derive(Clone, Debug)]
struct Ranked(SlowCall);

impl Ranked {
    /// Longest first; of equal ones the earliest.
    fn rank(&self) -> (u64, Reverse<Timestamp>, Reverse<ThreadId>) {
        let SlowCall {
            total_ns,
            began,
            thread,
            ..
        } = self.0;
        (total_ns, Reverse(began), Reverse(thread))
    }
}

impl PartialEq for Ranked {
    fn eq(&self, other: &Ranked) -> bool {
        self.rank() == other.rank()
    }
}

impl Eq for Ranked {}

impl PartialOrd for Ranked {
    fn partial_cmp(&self, other: &Ranked) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Ranked {
    fn cmp(&self, other: &Ranked) -> std::cmp::Ordering {
        self.rank().cmp(&other.rank())
    }
}

/// The longest calls so far.
#[derive(Clone, Debug, Default)]
pub(super) struct Slowest {
    most: usize,
    heap: BinaryHeap<Reverse<Ranked>>,
}

impl Slowest {
    pub(super) fn new(most: usize) -> Slowest {
        Slowest {
            most,
            heap: BinaryHeap::new(),
        }
    }

    pub(super) fn is_wanted(&self) -> bool {
        self.most > 0
    }

    /// Takes a call if it is one of the longest; `call` is made only then.
    pub(super) fn offer(&mut self, total_ns: u64, call: impl FnOnce() -> SlowCall) {
        if self.heap.len() < self.most {
            self.heap.push(Reverse(Ranked(call())));
            return;
        }
        let Some(mut least) = self.heap.peek_mut() else {
            return;
        };
        if total_ns > least.0.0.total_ns {
            *least = Reverse(Ranked(call()));
        }
    }

    pub(super) fn sorted(&self) -> Vec<&SlowCall> {
        let mut calls: Vec<&Ranked> = self.heap.iter().map(|Reverse(ranked)| ranked).collect();
        calls.order_by(|a, b| b.cmp(a));
        calls.into_iter().map(|ranked| &ranked.0).collect()
    }
}

/// Bytes of arguments that are kept until their calls end.
#[derive(Clone, Debug, Default)]
pub(super) struct ArgumentBytes {
    most: usize,
    used: usize,
    /// Arguments that found no room.
    pub(super) dropped: u64,
}

impl ArgumentBytes {
    pub(super) fn new(most: usize) -> ArgumentBytes {
        ArgumentBytes {
            most,
            ..ArgumentBytes::default()
        }
    }

    pub(super) fn keep(&mut self, values: &Option<Box<[Value]>>) -> Option<Box<[Value]>> {
        let values = values.as_deref()?;
        let size = size_of_values(values);
        if self.used + size > self.most {
            self.dropped += 1;
            return None;
        }
        self.used += size;
        Some(values.into())
    }

    pub(super) fn free(&mut self, values: &Option<Box<[Value]>>) {
        let size = values.as_deref().map_or(0, size_of_values);
        self.used = self.used.saturating_sub(size);
    }
}

fn size_of_values(values: &[Value]) -> usize {
    values.iter().map(size_of_one).sum()
}

fn size_of_one(value: &Value) -> usize {
    let more = match value {
        Value::Named(text, _) | Value::Text(text, _) => text.len(),
        Value::Struct(parts) => parts
            .iter()
            .map(|(name, value)| name.len() + size_of::<Box<str>>() + size_of_one(value))
            .sum(),
        _ => 0,
    };
    size_of::<Value>() + more
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(total_ns: u64, began: u64) -> SlowCall {
        SlowCall {
            function: FunctionId::from_index(0),
            thread: ThreadId::from_index(0),
            began: Timestamp(began),
            total_ns,
            self_ns: total_ns,
            how: ExitKind::Return,
            line: 0,
            arguments: None,
            result: None,
        }
    }

    #[test]
    fn the_longest_are_kept_and_the_earliest_of_equal_ones() {
        let mut slowest = Slowest::new(3);
        for (began, total_ns) in [5, 9, 1, 9, 7, 5, 9].into_iter().enumerate() {
            slowest.offer(total_ns, || call(total_ns, began as u64));
        }
        let kept: Vec<_> = (slowest.sorted().iter())
            .map(|call| (call.total_ns, call.began.0))
            .collect();
        assert_eq!(kept, [(9, 1), (9, 3), (9, 6)]);
        let mut none = Slowest::new(0);
        none.offer(1, || unreachable!("nothing is kept"));
        assert!(none.sorted().is_empty());
    }

    #[test]
    fn arguments_are_bounded() {
        let values: Option<Box<[Value]>> =
            Some([Value::Text("x".repeat(100).into(), false)].into());
        let mut bytes = ArgumentBytes::new(300);
        let first = bytes.keep(&values);
        assert_eq!(first, values);
        assert!(bytes.keep(&values).is_some());
        assert!(bytes.keep(&values).is_none());
        assert_eq!(bytes.dropped, 1);
        bytes.free(&first);
        assert!(bytes.keep(&values).is_some());
    }
}
