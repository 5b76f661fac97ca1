//! Aggregated samples: equal samples merged before anything is expanded or named.
//!
//! Input: samples, in any order; output: one [`Aggregate`] per [`Key`], with counts, weights in the
//! source's unit and the times of the first and last sample (CLOCK_MONOTONIC). A sample costs one
//! hash look-up of five integers; stacks are walked by consumers, once per distinct key.

use std::hash::{Hash, Hasher};

use rustc_hash::FxHashMap;

use crate::model::*;

/// What samples are merged over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Merge {
    /// Threads stay apart.
    #[default]
    Thread,
    /// The threads of a process are one.
    Process,
}

/// Whose samples they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Owner {
    /// A thread's.
    Thread(ThreadId),
    /// A process's.
    Process(ProcessId),
}

impl Owner {
    /// The process, if it is defined.
    pub fn process(self, tables: &Tables) -> Option<ProcessId> {
        match self {
            Owner::Thread(thread) => tables.thread(thread).map(|thread| thread.process),
            Owner::Process(process) => Some(process),
        }
    }
}

/// What makes samples equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// Whose.
    pub owner: Owner,
    /// Kernel stack.
    pub kernel: Option<StackId>,
    /// User stack.
    pub user: Option<StackId>,
    /// What made them.
    pub source: SourceId,
}

/// Two words, not one per field and variant: this is what a sample costs.
impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let stack = |id: Option<StackId>| id.map_or(0, EpochId::get);
        let owner = match self.owner {
            Owner::Thread(thread) => thread.get(),
            Owner::Process(process) => !process.get(),
        };
        let pair = |high: u32, low: u32| u64::from(high) << 32 | u64::from(low);
        state.write_u64(pair(owner, self.source.get()));
        state.write_u64(pair(stack(self.kernel), stack(self.user)));
    }
}

/// How many samples have a stack that ended early; the first reason that holds counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ends {
    /// The limit of frames was reached.
    pub truncated: u64,
    /// Memory could not be read, or the reason is not known.
    pub unreadable: u64,
    /// The chain of frame pointers ended; frames may be missing.
    pub frame_pointer: u64,
}

/// Equal samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aggregate {
    /// How many.
    pub count: u64,
    /// What they stand for together, in the unit of the source.
    pub weight: u64,
    /// When the first was taken.
    pub first: Timestamp,
    /// When the last was taken.
    pub last: Timestamp,
    /// How their stacks ended.
    pub ends: Ends,
}

/// Merges samples.
#[derive(Clone, Debug, Default)]
pub struct Aggregator {
    merge: Merge,
    samples: FxHashMap<Key, Aggregate>,
}

impl Aggregator {
    /// An empty one.
    pub fn new(merge: Merge) -> Aggregator {
        Aggregator {
            merge,
            samples: FxHashMap::default(),
        }
    }

    /// Takes a sample.
    pub fn add(&mut self, sample: &Sample, tables: &Tables) {
        let owner = match (self.merge, tables.thread(sample.thread)) {
            (Merge::Process, Some(thread)) => Owner::Process(thread.process),
            _ => Owner::Thread(sample.thread),
        };
        let key = Key {
            owner,
            kernel: sample.kernel,
            user: sample.user,
            source: sample.source,
        };
        let aggregate = self.samples.entry(key).or_insert(Aggregate {
            count: 0,
            weight: 0,
            first: sample.at,
            last: sample.at,
            ends: Ends::default(),
        });
        aggregate.count += 1;
        aggregate.weight = aggregate.weight.saturating_add(sample.weight);
        aggregate.first = aggregate.first.min(sample.at);
        aggregate.last = aggregate.last.max(sample.at);
        aggregate.ends.count(sample);
    }

    /// All aggregates, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = (&Key, &Aggregate)> {
        self.samples.iter()
    }

    /// All aggregates in order of key: the same for the same recording.
    pub fn sorted(&self) -> Vec<(Key, Aggregate)> {
        let mut all: Vec<_> = self.samples.iter().map(|(k, a)| (*k, *a)).collect();
        all.sort_unstable_by_key(|(key, _)| *key);
        all
    }

    /// How many distinct keys there are.
    pub fn len(&self) -> usize {
        self.samples.len()
    }

    /// Whether no sample came.
    pub fn is_empty(&self) -> bool {
        self.samples.is_empty()
    }
}

impl Ends {
    fn count(&mut self, sample: &Sample) {
        let ends = [sample.kernel_end, sample.user_end];
        let any = |end| ends.contains(&end);
        if any(StackEnd::Truncated) {
            self.truncated += 1;
        } else if any(StackEnd::BadMemory) || any(StackEnd::Unknown) {
            self.unreadable += 1;
        } else if any(StackEnd::FramePointer) {
            self.frame_pointer += 1;
        }
    }

    /// Adds those of other samples.
    pub fn add(&mut self, other: &Ends) {
        self.truncated += other.truncated;
        self.unreadable += other.unreadable;
        self.frame_pointer += other.frame_pointer;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(at: u64, thread: usize, user_end: StackEnd) -> Sample {
        Sample {
            at: Timestamp(at),
            thread: ThreadId::from_index(thread),
            cpu: Cpu(0),
            kernel: None,
            user: None,
            kernel_end: StackEnd::NoStack,
            user_end,
            weight: 10,
            source: SourceId::from_index(0),
        }
    }

    #[test]
    fn equal_samples_merge() {
        let tables = Tables::default();
        let mut aggregator = Aggregator::new(Merge::Thread);
        for (at, thread, end) in [
            (5, 0, StackEnd::Truncated),
            (3, 0, StackEnd::FramePointer),
            (9, 0, StackEnd::Complete),
            (4, 1, StackEnd::Complete),
        ] {
            aggregator.add(&sample(at, thread, end), &tables);
        }
        let all = aggregator.sorted();
        assert_eq!(all.len(), 2);
        let first = all[0].1;
        assert_eq!((first.count, first.weight), (3, 30));
        assert_eq!((first.first, first.last), (Timestamp(3), Timestamp(9)));
        assert_eq!((first.ends.truncated, first.ends.frame_pointer), (1, 1));
    }

    #[test]
    fn threads_of_a_process_merge_when_told() {
        let mut tables = Tables::default();
        let name = tables.intern_string("a").0;
        for tid in [1, 2] {
            tables.intern_thread(Thread {
                process: ProcessId::from_index(0),
                tid: Tid(tid),
                started: Timestamp(0),
                name,
            });
        }
        let mut aggregator = Aggregator::new(Merge::Process);
        aggregator.add(&sample(1, 0, StackEnd::Complete), &tables);
        aggregator.add(&sample(2, 1, StackEnd::Complete), &tables);
        assert_eq!(aggregator.len(), 1);
        let (key, aggregate) = aggregator.sorted()[0];
        assert_eq!(key.owner, Owner::Process(ProcessId::from_index(0)));
        assert_eq!(aggregate.count, 2);
    }
}
