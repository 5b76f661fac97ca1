//! Tables of a session that goes on: ids begin anew with each epoch, and so do the tables, when they are full.
//!
//! Definitions and events of a session's batches -> [`Tables`], and events with their ids. What does not belong
//! here: when tables are full, which consumers decide for themselves.

use std::ops::Deref;

use super::definition::Definition;
use super::event::Event;
use super::tables::{Epoch, Tables, Undefined};

/// Tables of the present epochs of a session. Reads as its [`Tables`].
#[derive(Clone, Debug, Default)]
pub struct LiveTables {
    tables: Tables,
    epoch: Epoch,
    number: u32,
}

impl LiveTables {
    /// To be called with the epoch of each batch, before all that is in it. Whether it has begun new tables, as
    /// a new epoch does if those of the last one `are_full`: no id that was seen before means anything then.
    pub fn turn(&mut self, epoch: u32, are_full: bool) -> bool {
        if epoch == self.number {
            return false;
        }
        self.number = epoch;
        self.epoch = Epoch::default();
        if are_full {
            self.tables = Tables::default();
        }
        are_full
    }

    /// Whether this is another epoch than the one that is being read.
    pub fn is_another(&self, epoch: u32) -> bool {
        epoch != self.number
    }

    /// Folds a definition.
    pub fn define(&mut self, definition: Definition) -> Result<(), Undefined> {
        self.epoch.define(&mut self.tables, definition)
    }

    /// An event with ids of the tables.
    pub fn event(&mut self, event: Event) -> Result<Event, Undefined> {
        self.epoch.event(event)
    }
}

impl Deref for LiveTables {
    type Target = Tables;

    fn deref(&self) -> &Tables {
        &self.tables
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{EpochId, Mark, StringId, Timestamp};

    #[test]
    fn ids_turn_with_epochs_and_tables_when_they_are_full() {
        let (one, two) = (StringId::from_index(0), StringId::from_index(1));
        let mark = |text| {
            let at = Timestamp(1);
            Event::Mark(Mark { at, text })
        };
        let mut live = LiveTables::default();
        live.turn(0, true);
        live.define(Definition::String(one, "one".into())).unwrap();
        assert_eq!(live.event(mark(one)), Ok(mark(one)));
        // The same id means something else, and the tables go on.
        assert!(!live.turn(1, false));
        assert!(live.event(mark(one)).is_err());
        live.define(Definition::String(one, "two".into())).unwrap();
        assert_eq!(live.event(mark(one)), Ok(mark(two)));
        assert_eq!((live.string(one), live.string(two)), ("one", "two"));
        // Within an epoch they stay, however full they are.
        assert!(!live.turn(1, true));
        assert!(live.turn(2, true));
        assert!(live.event(mark(one)).is_err());
        assert_eq!(live.find_string("one"), None);
    }
}
