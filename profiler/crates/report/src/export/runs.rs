//! Samples in the order of time, for formats that show them so: equal neighbours are one.
//!
//! Samples -> [`Run`]s of 16 bytes, whose keys are numbers. Which source is wanted is known at the end: until then
//! all are kept. What does not belong here: stacks (`functions`).

use rustc_hash::FxHashMap;

use super::timed::{Moment, Timed};
use crate::derive::{Key, Merge};
use profiler_model::*;

/// Samples that are equal, and follow each other.
#[derive(Clone, Copy)]
pub(super) struct Run {
    /// See [`Keys`].
    pub(super) key: u32,
    pub(super) count: u32,
    /// In the unit of the source.
    pub(super) weight: u64,
}

/// What samples are, as numbers.
#[derive(Default)]
pub(super) struct Keys {
    numbers: FxHashMap<Key, u32>,
    all: Vec<Key>,
    /// In the order of their first samples.
    pub(super) sources: Vec<SourceId>,
}

impl Keys {
    /// The number of what a sample is.
    pub(super) fn number(&mut self, sample: &Sample, tables: &Tables) -> u32 {
        let key = Key::of(sample, Merge::Thread, tables);
        let next = self.all.len() as u32;
        let number = *self.numbers.entry(key).or_insert(next);
        if number == next {
            self.all.push(key);
            if !self.sources.contains(&key.source) {
                self.sources.push(key.source);
            }
        }
        number
    }

    /// Adds a sample of a thread to its samples.
    pub(super) fn time(&mut self, sample: &Sample, tables: &Tables, timed: &mut Timed) {
        timed.push(Moment {
            at: sample.at,
            key: self.number(sample, tables),
            count: sample.wait.map_or(1, |wait| wait.count),
            weight: sample.weight,
        });
    }

    /// Adds a sample of a thread to the runs that it belongs to.
    pub(super) fn add(&mut self, sample: &Sample, tables: &Tables, runs: &mut Vec<Run>) {
        let number = self.number(sample, tables);
        let count = sample.wait.map_or(1, |wait| wait.count);
        if let Some(last) = runs.last_mut().filter(|last| last.key == number)
            && let (Some(count), Some(weight)) = (
                last.count.checked_add(count),
                last.weight.checked_add(sample.weight),
            )
        {
            (last.count, last.weight) = (count, weight);
            return;
        }
        runs.push(Run {
            key: number,
            count,
            weight: sample.weight,
        });
    }

    /// What the numbers stand for, from 0 on.
    pub(super) fn all(&self) -> &[Key] {
        &self.all
    }
}
