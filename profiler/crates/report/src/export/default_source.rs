//! Which source a format shows where none is chosen: that of a report, so that both have the same numbers.
//!
//! Input: all samples of what is exported; output: the option `source` of a format that shows one. It is asked for only where there are
//! several that do not add up, since it takes a pass over the recording. What does not belong here: what a chosen source is
//! (`derive::sources`).

use std::io;

use rustc_hash::FxHashMap;

use super::collect::SOURCE;
use super::settings::Settings;
use super::{Selection, ShownSources};
use crate::derive::{Sources, by_interest, is_same};
use profiler_model::sorting::InOrder;
use profiler_model::*;

/// Counts samples of each source, as a sink.
#[derive(Debug, Default)]
pub struct SourceCounts {
    counts: FxHashMap<SourceId, u64>,
}

impl SourceCounts {
    /// Whether it must be known for a format: it shows one source, none is chosen, and there are several besides waits.
    pub fn are_needed(settings: &Settings, selection: &Selection, tables: &Tables) -> bool {
        let is_chosen = selection.source.is_some() || settings.get(&SOURCE).is_some();
        let is_waits = |source: &Source| tables.string(source.name) == OFF_CPU;
        let mut running = (tables.sources.iter()).filter(|(_, source)| !is_waits(source));
        let first = running.next();
        let several = first.is_some_and(|(first, _)| {
            let mut others = running;
            others.any(|(other, _)| !is_same(first, other, tables))
        });
        !is_chosen && several && settings.format.sources != ShownSources::All
    }

    /// Chooses for a format. What is left out then: how many samples, and of which sources.
    pub fn choose(&self, settings: &mut Settings, tables: &Tables) -> Option<(u64, String)> {
        let counts = || self.counts.iter().map(|(&id, &count)| (id, count));
        let mut present = by_interest(counts());
        let unit = |id: &SourceId| tables.sources.get(*id).map(|source| source.unit);
        let is_time = |id: &SourceId| matches!(unit(id), Some(Unit::Nanoseconds | Unit::Cycles));
        if settings.format.sources == ShownSources::Time {
            // Waits count in nanoseconds, too, and are no source of running threads.
            present.order_by_key(|id| !is_time(id));
        }
        let chosen = Sources::choose(&present, None, tables)?;
        settings.set(SOURCE.help.name, chosen.name(tables)?).ok()?;
        let left_out = present.iter().filter(|id| !chosen.has(**id, tables));
        let (mut samples, mut names) = (0_u64, Vec::new());
        for id in left_out {
            samples += self.counts.get(id).copied().unwrap_or(0);
            let name = tables.sources.get(*id).map(|it| tables.string(it.name));
            names.extend(name.filter(|name| !names.contains(name)));
        }
        (samples > 0).then(|| (samples, names.join(", ")))
    }
}

impl Sink for SourceCounts {
    fn event(&mut self, event: &Event, _: &Tables) -> io::Result<()> {
        if let Event::Sample(sample) = event {
            *self.counts.entry(sample.source).or_default() += 1;
        }
        Ok(())
    }

    fn finish(&mut self, _: &Tables) -> io::Result<()> {
        Ok(())
    }
}
