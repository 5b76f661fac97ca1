//! Aggregated samples: equal samples merged before anything is expanded or named.
//!
//! Input: samples, in any order; output: one [`Aggregate`] per [`Key`], with counts, weights in the
//! source's unit and the times of the first and last sample (CLOCK_MONOTONIC). A sample costs one
//! hash look-up of five integers; stacks are walked by consumers, once per distinct key.

use std::hash::{Hash, Hasher};

use rustc_hash::FxHashMap;

use profiler_model::*;

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
    /// What the process and the thread are called; `then`: what they were called then.
    pub fn names(self, then: NamesThen, tables: &Tables) -> (Option<StringId>, Option<StringId>) {
        let process = self.process(tables).and_then(|id| tables.process(id));
        let process = process.map(|process| then.process.unwrap_or(process.name));
        let thread = match self {
            Owner::Thread(id) => tables.thread(id),
            Owner::Process(_) => None,
        };
        (
            process,
            thread.map(|thread| then.thread.unwrap_or(thread.name)),
        )
    }

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
    /// Why the thread waited; none: it ran.
    pub wait: Option<WaitState>,
    /// What the thread and its process were called then, if that has changed.
    pub names: NamesThen,
}

impl Key {
    /// What a sample is merged by.
    pub(crate) fn of(sample: &Sample, merge: Merge, tables: &Tables) -> Key {
        let mut names = tables.names_at(sample.thread, sample.at);
        let owner = match (merge, tables.thread(sample.thread)) {
            (Merge::Process, Some(thread)) => {
                names.thread = None;
                Owner::Process(thread.process)
            }
            _ => Owner::Thread(sample.thread),
        };
        Key {
            owner,
            kernel: sample.kernel,
            user: sample.user,
            source: sample.source,
            wait: sample.wait.map(|wait| wait.state),
            names,
        }
    }
}

/// Two words, not one per field and variant: this is what a sample costs. Names follow from owner and time: few are equal
/// but for these.
impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let stack = |id: Option<StackId>| id.map_or(0, EpochId::get);
        let owner = match self.owner {
            Owner::Thread(thread) => thread.get(),
            Owner::Process(process) => !process.get(),
        };
        let pair = |high: u32, low: u32| u64::from(high) << 32 | u64::from(low);
        let wait = self.wait.map_or(0, |wait| wait as u32 + 1);
        // There are a handful of sources.
        state.write_u64(pair(owner, self.source.get() << 3 | wait));
        state.write_u64(pair(stack(self.kernel), stack(self.user)));
    }
}

/// What waits stand for together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WaitSums {
    /// How many waits: samples stand for several where not each was recorded.
    pub count: u64,
    /// How long the threads could have run, but had no processor.
    pub runnable_ns: u64,
    /// The longest one.
    pub longest_ns: u64,
    /// How long those were that were recorded, each by itself.
    pub recorded_ns: u64,
}

impl WaitSums {
    fn count(&mut self, wait: &Wait) {
        let count = u64::from(wait.count);
        self.count = self.count.saturating_add(count);
        let runnable_ns = wait.runnable_ns.saturating_mul(count);
        self.runnable_ns = self.runnable_ns.saturating_add(runnable_ns);
        self.longest_ns = self.longest_ns.max(wait.ns);
        self.recorded_ns = self.recorded_ns.saturating_add(wait.ns);
    }

    /// Adds those of other samples.
    pub fn add(&mut self, other: &WaitSums) {
        self.count = self.count.saturating_add(other.count);
        self.runnable_ns = self.runnable_ns.saturating_add(other.runnable_ns);
        self.longest_ns = self.longest_ns.max(other.longest_ns);
        self.recorded_ns = self.recorded_ns.saturating_add(other.recorded_ns);
    }
}

/// Why stacks of equal samples ended early. There is hardly ever a second reason, and there are as many of these as there are
/// distinct stacks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum EarlyEnds {
    /// None did.
    #[default]
    None,
    /// So many, all for this reason.
    One(StackEnd, u64),
    /// For several.
    Several(Box<StackEnds>),
}

impl EarlyEnds {
    fn count(&mut self, end: StackEnd) {
        match self {
            EarlyEnds::None => *self = EarlyEnds::One(end, 1),
            EarlyEnds::One(known, count) if *known == end => *count = count.saturating_add(1),
            EarlyEnds::One(known, count) => {
                let all = [(*known, *count), (end, 1)].into_iter().collect();
                *self = EarlyEnds::Several(Box::new(all));
            }
            EarlyEnds::Several(all) => all.count(end),
        }
    }

    /// How many.
    pub fn total(&self) -> u64 {
        match self {
            EarlyEnds::None => 0,
            EarlyEnds::One(_, count) => *count,
            EarlyEnds::Several(all) => {
                (all.iter()).fold(0, |sum, (_, count)| sum.saturating_add(count))
            }
        }
    }

    /// Adds them to a tally.
    pub fn add_to(&self, tally: &mut StackEnds) {
        match self {
            EarlyEnds::None => {}
            EarlyEnds::One(end, count) => tally.add_all(&[(*end, *count)].into_iter().collect()),
            EarlyEnds::Several(all) => tally.add_all(all),
        }
    }
}

/// Equal samples.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Aggregate {
    /// How many.
    pub count: u64,
    /// What they stand for together, in the unit of the source.
    pub weight: u64,
    /// When the first was taken.
    pub first: Timestamp,
    /// When the last was taken.
    pub last: Timestamp,
    /// Why stacks of theirs ended early: of each sample one reason, if there is any.
    pub ends: EarlyEnds,
    /// How they waited; none of samples of running threads.
    pub waits: Option<Box<WaitSums>>,
}

impl Aggregate {
    /// How they waited; nothing of samples of running threads.
    pub fn waits(&self) -> WaitSums {
        self.waits.as_deref().copied().unwrap_or_default()
    }
}

/// Merges samples.
#[derive(Clone, Debug, Default)]
pub struct Aggregator {
    merge: Merge,
    /// Where in `samples` each one is: what is looked up lies close together.
    places: FxHashMap<Key, u32>,
    samples: Vec<Aggregate>,
}

impl Aggregator {
    /// An empty one.
    pub fn new(merge: Merge) -> Aggregator {
        Aggregator {
            merge,
            places: FxHashMap::default(),
            samples: Vec::new(),
        }
    }

    /// Takes a sample.
    pub fn add(&mut self, sample: &Sample, tables: &Tables) {
        let key = Key::of(sample, self.merge, tables);
        let next = self.samples.len();
        let place = *self.places.entry(key).or_insert(next as u32) as usize;
        if place == next {
            self.samples.push(Aggregate {
                count: 0,
                weight: 0,
                first: sample.at,
                last: sample.at,
                ends: EarlyEnds::None,
                waits: None,
            });
        }
        let Some(aggregate) = self.samples.get_mut(place) else {
            return;
        };
        aggregate.count += 1;
        aggregate.weight = aggregate.weight.saturating_add(sample.weight);
        aggregate.first = aggregate.first.min(sample.at);
        aggregate.last = aggregate.last.max(sample.at);
        if let Some(end) = early_end(sample) {
            aggregate.ends.count(end);
        }
        if let Some(wait) = &sample.wait {
            aggregate.waits.get_or_insert_default().count(wait);
        }
    }

    /// All aggregates, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = (&Key, &Aggregate)> {
        let places = self.places.iter();
        places.filter_map(|(key, &place)| Some((key, self.samples.get(place as usize)?)))
    }

    /// All aggregates in order of key: the same for the same recording.
    pub fn sorted(&self) -> Vec<(Key, &Aggregate)> {
        let mut all = Vec::with_capacity(self.len());
        all.extend(self.iter().map(|(key, aggregate)| (*key, aggregate)));
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

/// Why a sample's stacks ended early, if one did: the first of these reasons that holds for either.
pub(crate) fn early_end(sample: &Sample) -> Option<StackEnd> {
    const REASONS: [StackEnd; 11] = [
        StackEnd::Truncated,
        StackEnd::LeftOut,
        StackEnd::BadMemory,
        StackEnd::Unknown,
        StackEnd::NoTable,
        StackEnd::NoRule,
        StackEnd::Jit,
        StackEnd::NoMapping,
        StackEnd::FramePointer,
        StackEnd::LeafOnly,
        StackEnd::NotSaid,
    ];
    let ends = [sample.kernel_end, sample.user_end];
    REASONS.into_iter().find(|reason| ends.contains(reason))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(at: u64, thread: usize, user_end: StackEnd) -> Sample {
        Sample {
            user_end,
            ..Sample::new(
                Timestamp(at),
                ThreadId::from_index(thread),
                Cpu(0),
                SourceId::from_index(0),
                10,
            )
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
        let mut first_ends = StackEnds::default();
        first.ends.add_to(&mut first_ends);
        assert_eq!((first.count, first.weight), (3, 30));
        assert_eq!((first.first, first.last), (Timestamp(3), Timestamp(9)));
        let ends = first_ends.iter().collect::<Vec<_>>();
        assert_eq!(
            ends,
            [(StackEnd::Truncated, 1), (StackEnd::FramePointer, 1)]
        );
    }

    #[test]
    fn waits_stay_apart_by_state_and_count_as_often_as_they_say() {
        let mut aggregator = Aggregator::new(Merge::Thread);
        let tables = Tables::default();
        aggregator.add(&sample(1, 0, StackEnd::NoRule), &tables);
        for (state, ns, runnable_ns, count) in [
            (WaitState::Sleeping, 50, 2, 4),
            (WaitState::Sleeping, 70, 3, 1),
            (WaitState::Disk, 9, 0, 1),
        ] {
            let wait = Wait {
                ns,
                runnable_ns,
                state,
                waker: None,
                count,
                open: false,
            };
            let sample = Sample {
                wait: Some(wait),
                weight: ns * u64::from(count),
                ..sample(2, 0, StackEnd::Complete)
            };
            aggregator.add(&sample, &tables);
        }
        let all = aggregator.sorted();
        let states: Vec<_> = all.iter().map(|(key, _)| key.wait).collect();
        let (sleeping, disk) = (Some(WaitState::Sleeping), Some(WaitState::Disk));
        assert_eq!(states, [None, sleeping, disk]);
        assert_eq!(
            (&all[0].1.ends, all[0].1.waits()),
            (&EarlyEnds::One(StackEnd::NoRule, 1), WaitSums::default())
        );
        let sums = WaitSums {
            count: 5,
            runnable_ns: 11,
            longest_ns: 70,
            recorded_ns: 120,
        };
        assert_eq!((all[1].1.waits(), all[1].1.weight), (sums, 270));
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
