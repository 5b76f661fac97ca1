//! Mappings whose files are not open yet, because a server has them that takes its time.
//!
//! Raw events that were noticed -> the same again when their files are open, or will not be. Their turn comes no sooner, so
//! that what is mapped is known by then; who takes events is not held up meanwhile. How many wait is bounded.
//!
//! What does not belong here: who asks servers, and for how long (`helper::opener`).

use profiler_model::raw::{RawBody, RawEvent};

/// Most that wait.
const MAX_LATE: usize = 256;

/// Mappings that wait for their files.
#[derive(Debug, Default)]
pub(super) struct LateFiles(Vec<RawEvent>);

impl LateFiles {
    /// Whether none waits.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds one; whether there is room for it.
    pub(super) fn push(&mut self, event: RawEvent) -> bool {
        let has_room = self.0.len() < MAX_LATE;
        if has_room {
            self.0.push(event);
        }
        has_room
    }

    /// Whether an event is one of them.
    pub(super) fn has(&self, event: &RawEvent) -> bool {
        matches!(event.body, RawBody::Mmap(_)) && self.0.contains(event)
    }

    /// All of them.
    pub(super) fn take(&mut self) -> Vec<RawEvent> {
        std::mem::take(&mut self.0)
    }
}
