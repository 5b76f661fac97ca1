//! User stacks that end too early: why, and in which module the last frame is that was found.
//!
//! Input: samples, in any order; output: [`EarlyEnd`]s of those that a consumer chose. Counts, and
//! weights in the source's unit. What does not belong here: words for reasons (`view`).

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use super::aggregate::{Key, Merge};
use profiler_model::sorting::InOrder;
use profiler_model::*;

/// Samples by how their user stacks end.
#[derive(Clone, Debug, Default)]
pub struct EndTable(FxHashMap<(Key, StackEnd), Sum>);

/// How many samples, and what they stand for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sum {
    samples: u64,
    weight: u64,
}

impl Sum {
    fn add(&mut self, other: Sum) {
        self.samples = self.samples.saturating_add(other.samples);
        self.weight = self.weight.saturating_add(other.weight);
    }
}

/// Stacks that end for one reason in one module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EarlyEnd {
    /// Why they end there.
    pub end: StackEnd,
    /// Where the outermost frame that was found is; none: in no known mapping.
    pub module: Option<ModuleId>,
    /// Which frame is the outermost one of most of these samples.
    pub frame: Option<FrameId>,
    /// How many samples.
    pub samples: u64,
    /// What they stand for.
    pub weight: u64,
}

/// How user stacks end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UserEnds {
    /// All of them.
    pub all: StackEnds,
    /// Those that are not complete, those that stand for most first.
    pub early: Vec<EarlyEnd>,
}

impl EndTable {
    /// Counts a sample, if there was a user stack. Threads stay apart.
    pub fn add(&mut self, sample: &Sample, tables: &Tables) {
        if sample.user_end.is_of_a_stack() {
            let key = Key::of(sample, Merge::Thread, tables);
            let sum = Sum {
                samples: 1,
                weight: sample.weight,
            };
            (self.0.entry((key, sample.user_end)).or_default()).add(sum);
        }
    }

    /// What is known of samples that `admits` lets through.
    pub fn ends(&self, tables: &Tables, admits: impl Fn(&Key) -> bool) -> UserEnds {
        let mut ends = UserEnds::default();
        let mut outermost = FxHashMap::default();
        let mut groups: BTreeMap<_, BTreeMap<Option<FrameId>, Sum>> = BTreeMap::new();
        for ((key, end), sum) in self.0.iter().filter(|((key, _), _)| admits(key)) {
            ends.all.add(*end, sum.samples);
            if !end.is_cut() {
                continue;
            }
            let frame = *outermost
                .entry(key.user)
                .or_insert_with(|| tables.frames_of(key.user).last());
            let module = frame.and_then(|frame| tables.frames.get(frame)?.module);
            let group = groups.entry((*end, module)).or_default();
            group.entry(frame).or_default().add(*sum);
        }
        ends.early = (groups.into_iter())
            .map(|((end, module), frames)| early_end(end, module, &frames))
            .collect();
        (ends.early).order_by_key(|row| std::cmp::Reverse((row.weight, row.samples)));
        ends
    }
}

fn early_end(
    end: StackEnd,
    module: Option<ModuleId>,
    frames: &BTreeMap<Option<FrameId>, Sum>,
) -> EarlyEnd {
    let mut all = Sum::default();
    frames.values().for_each(|sum| all.add(*sum));
    let most = frames.iter().max_by_key(|(_, sum)| sum.weight);
    EarlyEnd {
        end,
        module,
        frame: most.and_then(|(frame, _)| *frame),
        samples: all.samples,
        weight: all.weight,
    }
}
