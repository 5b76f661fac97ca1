//! Where the frames of a TraceActor come from: calls that are traced for it, samples, or a capture.
//!
//! A [`Stream`] is what comes of one demand for calls: batches of its own ids -> events in terms of its tables. What
//! does not belong here: how frames are told (`agent`), probes (`pipeline`).

use profiler_model::*;

/// Where frames come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// Functions that are traced for it.
    Calls(Tracing),
    /// Samples, at this frequency: frames are inferred.
    Samples(u64),
    /// Calls that a capture holds.
    Captured,
}

/// What comes of one demand for calls.
#[derive(Debug, Default)]
pub(super) struct Stream {
    pub(super) tables: Tables,
    epoch: Option<(u32, Epoch)>,
    /// Why nothing comes, or nothing more.
    pub(super) failed: Option<String>,
    /// It was acknowledged that it runs.
    pub(super) runs: bool,
    /// Events that could not be understood.
    pub(super) undefined: u64,
    /// It was said that what a program wants is wrong.
    pub(super) complained: bool,
}

impl Stream {
    pub(super) fn define(&mut self, epoch: u32, definitions: Vec<Definition>) {
        let is_new = self.epoch.as_ref().is_none_or(|(known, _)| *known != epoch);
        if is_new {
            self.epoch = Some((epoch, Epoch::default()));
            self.tables = Tables::default();
        }
        if let Some((_, ids)) = &mut self.epoch {
            for definition in definitions {
                let defined = ids.define(&mut self.tables, definition);
                self.undefined += u64::from(defined.is_err());
            }
        }
    }

    /// An event in terms of the tables.
    pub(super) fn event(&mut self, event: Event) -> Option<Event> {
        let (_, ids) = self.epoch.as_mut()?;
        let event = ids.event(event);
        self.undefined += u64::from(event.is_err());
        event.ok()
    }
}
