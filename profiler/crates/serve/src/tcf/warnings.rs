//! Says the same kind of thing once a second at most.

use std::time::{Duration, Instant};

/// Time between two lines.
const INTERVAL: Duration = Duration::from_secs(1);

/// When something was said last, and what was not said since.
#[derive(Debug, Default)]
pub(super) struct Warnings {
    last: Option<Instant>,
    unsaid: u64,
}

impl Warnings {
    /// Lines that were not logged since the last one that was.
    #[cfg(test)]
    pub(super) fn unsaid(&self) -> u64 {
        self.unsaid
    }

    /// Logs a line as a warning, unless one was just logged.
    pub(super) fn warn(&mut self, now: Instant, line: impl FnOnce() -> String) {
        let is_soon = |last: Instant| now.saturating_duration_since(last) < INTERVAL;
        if self.last.is_some_and(is_soon) {
            self.unsaid += 1;
            return;
        }
        self.last = Some(now);
        match std::mem::take(&mut self.unsaid) {
            0 => log::warn!("{}", line()),
            more => log::warn!("{} (and {more} like it before)", line()),
        }
    }
}
