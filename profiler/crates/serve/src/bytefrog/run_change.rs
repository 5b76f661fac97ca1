//! What is said to the thread that translates between batches.
//!
//! Times are CLOCK_MONOTONIC. What does not belong here: what comes of it (`feed`).

use crate::queue::{Joined, Note};
use profiler_model::Timestamp;

/// A turn of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RunChange {
    /// Tracing begins.
    Begin(Timestamp),
    /// Recording is off from here on.
    Suspend(Timestamp),
    /// It is on again.
    Resume(Timestamp),
    /// The run ends.
    End(Timestamp),
}

impl Note for RunChange {
    fn join(&self, next: &RunChange) -> Joined {
        match (self, next) {
            // Suspended again before anything was sent.
            (RunChange::Resume(_), RunChange::Suspend(_)) => Joined::Neither,
            (RunChange::Suspend(_), RunChange::Suspend(_)) => Joined::First,
            _ => Joined::Both,
        }
    }
}
