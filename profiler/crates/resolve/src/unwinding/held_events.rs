//! Events that wait for the unwind table of one among them.
//!
//! Raw events in order of time -> the same, one after the other. Behind the first sample that waits
//! all others wait, so that the order stays, and so that the mappings of processes are those of the
//! sample's time when it goes on. How many wait, and how much memory they take, is bounded.
//!
//! What does not belong here: how long one waits (`store`).

use std::collections::VecDeque;

use profiler_model::Timestamp;
use profiler_model::raw::{RawBody, RawCopy, RawEvent};

/// Most events that wait.
const MAX_EVENTS: usize = 1 << 16;
/// Most memory of copied stacks that wait.
const MAX_COPIES_BYTES: usize = 64 << 20;

/// Events behind a sample that waits for its unwind table.
#[derive(Debug, Default)]
pub(crate) struct HeldEvents {
    events: VecDeque<RawEvent>,
    copies_bytes: usize,
}

impl HeldEvents {
    /// Whether nothing waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// The time of the first one.
    pub(crate) fn first(&self) -> Option<Timestamp> {
        self.events.front().map(|event| event.at)
    }

    /// Whether there is too much for the first one to wait on.
    pub(crate) fn is_full(&self) -> bool {
        self.events.len() > MAX_EVENTS || self.copies_bytes > MAX_COPIES_BYTES
    }

    /// Adds an event behind the others.
    pub(crate) fn push(&mut self, event: RawEvent) {
        self.copies_bytes += bytes_of(&event);
        self.events.push_back(event);
    }

    /// Puts one back that waits on.
    pub(crate) fn put_back(&mut self, event: RawEvent) {
        self.copies_bytes += bytes_of(&event);
        self.events.push_front(event);
    }

    /// The first one.
    pub(crate) fn pop(&mut self) -> Option<RawEvent> {
        let event = self.events.pop_front()?;
        self.copies_bytes -= bytes_of(&event);
        Some(event)
    }
}

/// The copied stack of an event.
pub(super) fn copy_of(event: &RawEvent) -> Option<&RawCopy> {
    match &event.body {
        RawBody::Sample(sample) => sample.copy.as_deref(),
        RawBody::WaitStack(stack) => stack.copy.as_deref(),
        _ => None,
    }
}

fn bytes_of(event: &RawEvent) -> usize {
    copy_of(event).map_or(0, |copy| copy.bytes.len())
}
