//! Samples in the order of time, for formats that show them so.
//!
//! Samples -> [`Timed`], with numbers for what they are. Which source is wanted is known at the end: until then
//! all are kept. What does not belong here: stacks (`functions`).

use rustc_hash::FxHashMap;

use super::aside::Aside;
use super::timed::{Moment, Timed};
use crate::derive::{Key, Merge};
use profiler_model::*;

/// What samples are, as numbers.
#[derive(Default)]
pub(super) struct Keys {
    numbers: FxHashMap<Key, u32>,
    all: Vec<Key>,
    /// In the order of their first samples.
    pub(super) sources: Vec<SourceId>,
    /// Where the samples are.
    pub(super) aside: Aside,
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
        let moment = Moment {
            at: sample.at,
            key: self.number(sample, tables),
            count: sample.wait.map_or(1, |wait| wait.count),
            weight: sample.weight,
        };
        timed.push(moment, &mut self.aside);
    }

    /// What the numbers stand for, from 0 on.
    pub(super) fn all(&self) -> &[Key] {
        &self.all
    }
}
