//! What formats of sums gather: samples by stack and owner, traced calls, and what is to be said of the recording.
//!
//! Input: events; output: the sums, the sources that are shown, and how many samples a sum has. Memory is bounded by the
//! number of distinct stacks. What does not belong here: how any of it is written (the formats).

use std::io;

use rustc_hash::FxHashMap;

use super::about::About;
use super::calls::CallSums;
use super::collect::{SOURCE, choose};
use super::settings::Settings;
use crate::derive::{Aggregate, Aggregator, Key, Merge, Sources, by_interest, first_same};
use profiler_model::sorting::InOrder;
use profiler_model::*;

pub(super) struct Summed {
    wanted: Option<String>,
    /// Each once, at whatever rates.
    sources: Vec<SourceId>,
    pub(super) samples: Aggregator,
    pub(super) calls: CallSums,
    pub(super) about: About,
}

impl Summed {
    /// `merge`: what is summed up together.
    pub(super) fn new(settings: &Settings, merge: Merge) -> Summed {
        Summed {
            wanted: settings.get(&SOURCE),
            sources: Vec::new(),
            samples: Aggregator::new(merge),
            calls: CallSums::default(),
            about: About::default(),
        }
    }

    pub(super) fn event(&mut self, event: &Event, tables: &Tables) {
        self.about.event(event);
        if let Event::Sample(sample) = event {
            if first_same(sample.source, &self.sources, tables).is_none() {
                self.sources.push(sample.source);
            }
            self.samples.add(sample, tables);
        }
        self.calls.event(event, tables);
    }

    /// What is missing of samples and calls, in lines.
    pub(super) fn notes(&self, tables: &Tables, unnamed: u64) -> Vec<String> {
        let mut notes = self.about.notes(tables, unnamed);
        for (number, what) in [
            (self.calls.open(), "still open at the end, left out"),
            (self.calls.folded(), "too deep to be told apart, left out"),
        ] {
            match number {
                0 => {}
                1 => notes.push(format!("1 call {what}")),
                more => notes.push(format!("{more} calls {what}")),
            }
        }
        notes
    }

    /// The sources that were asked for, or all: what a report shows comes first, then those of most samples.
    pub(super) fn sources(&self, tables: &Tables) -> io::Result<Vec<SourceId>> {
        let mut counts: FxHashMap<SourceId, u64> = FxHashMap::default();
        for (key, sum) in self.samples.iter() {
            if let Some(source) = first_same(key.source, &self.sources, tables) {
                *counts.entry(source).or_default() += sum.count;
            }
        }
        let mut sources = by_interest(counts.into_iter());
        if let Some(wanted) = self.wanted.as_deref() {
            let chosen = choose(&sources, Some(wanted), tables)?;
            sources.retain(|&source| chosen.has(source, tables));
        }
        let shown = Sources::choose(&sources, None, tables).unwrap_or_default();
        sources.order_by_key(|&id| match Some(id) {
            main if main == shown.main => 0,
            waits if waits == shown.waits => 1,
            _ => 2,
        });
        Ok(sources)
    }
}

/// How many samples there are of a sum: of waits also those that others stand for.
pub(super) fn count(key: &Key, sum: &Aggregate) -> u64 {
    match key.wait {
        Some(_) => sum.waits().count,
        None => sum.count,
    }
}
