//! Events that wait for names, in their order.
//!
//! Names come after the samples and throws that need them (docs/adr/0003). From the first event on whose
//! frames have no answer yet all wait, until it has one, a second has passed, or there are too many.
//!
//! What does not belong here: which frames an event needs.

use std::collections::VecDeque;

use profiler_model::{Event, Timestamp};

/// How long an event waits for names.
const MAX_WAIT_NS: u64 = 1_000_000_000;

/// Most events that wait.
const MAX_WAITING: usize = 1 << 16;

/// Events that wait.
#[derive(Default)]
pub(super) struct Waiting {
    events: VecDeque<Event>,
    now: Timestamp,
}

impl Waiting {
    pub(super) fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// Keeps an event until [`Waiting::next`] gives it back.
    pub(super) fn push(&mut self, event: Event) {
        self.now = self.now.max(event.at());
        self.events.push_back(event);
    }

    /// The time is at least this.
    pub(super) fn advance(&mut self, now: Timestamp) {
        self.now = self.now.max(now);
    }

    /// The time of the first event that waits.
    pub(super) fn since(&self) -> Option<Timestamp> {
        self.events.front().map(Event::at)
    }

    /// The next event, if it is ready or need not be any more.
    pub(super) fn next(&mut self, is_ready: impl FnOnce(&Event) -> bool) -> Option<Event> {
        match self.is_overdue() || is_ready(self.events.front()?) {
            true => self.events.pop_front(),
            false => None,
        }
    }

    /// Whether the first event has waited long enough: a cheap look without names.
    pub(super) fn is_overdue(&self) -> bool {
        self.events.len() > MAX_WAITING
            || (self.since()).is_some_and(|first| self.now.since(first) >= MAX_WAIT_NS)
    }

    /// Forgets all events; how many there were.
    pub(super) fn clear(&mut self) -> u64 {
        let lost = self.events.len() as u64;
        self.events.clear();
        lost
    }
}
