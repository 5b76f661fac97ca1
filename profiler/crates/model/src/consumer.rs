//! Who takes the batches of a session, whatever becomes of them: a capture, a screen, an agent, a hub.
//!
//! What does not belong here: what a replay feeds ([`super::Sink`]), who drives a session (`pipeline`).

use super::Timestamp;
use super::event::{Batch, Event};

/// Takes the batches of a session that runs.
pub trait Consumer {
    /// Whether ids should start anew with the next batch.
    fn wants_new_epoch(&self) -> bool;
    /// The list of a batch that is done with, to be used again.
    fn spare(&self) -> Option<Vec<Event>>;
    /// Whether the waits that go on are to come with the next batches, as if they ended at `at`, which is now or was a
    /// moment ago. Whoever is told so tells them, so it is true once.
    fn wants_waits(&mut self, at: Timestamp) -> bool {
        let _ = at;
        false
    }
    /// Whether epochs are to stand alone: a wait that goes on when one ends is told up to then, and in the next one from
    /// then on.
    fn has_parts(&self) -> bool {
        false
    }
    /// Whether waits that go on are to be told now, up to now, though no epoch ends: what was sent is to stand alone.
    fn wants_cut(&self) -> bool {
        false
    }
    /// That was done: all that happened before was sent.
    fn has_cut(&mut self) {}
    /// All that happened until then has been sent.
    fn has_all(&mut self, until: Timestamp) {
        let _ = until;
    }
    /// Takes a batch; returns how many of its events were dropped.
    fn send(&mut self, batch: Batch) -> u64;
}
