//! The time of a session: from when it counts, whether it is off for now, when it is over.
//!
//! How long something lasts is by [`Instant`], what happened when by CLOCK_MONOTONIC. What does not belong here:
//! what else ends a session.

use std::time::{Duration, Instant};

use profiler_model::Timestamp;
use profiler_probe::now;

/// When a session counts and when it is over.
pub(super) struct Window {
    /// Samples and calls so long after the beginning are left out.
    delay: Duration,
    started: Instant,
    /// Samples and calls before this are not wanted.
    from: Timestamp,
    /// This is when all was ready, and not when it was attached.
    is_exact: bool,
    /// How long it lasts, if that is known: from then on no call is wanted, even if there is no time to end it.
    lasts: Option<Duration>,
    /// What is left out at the beginning is over.
    is_open: bool,
    /// When that is over, where it is known.
    opens_at: Option<Instant>,
    suspended: bool,
    /// What is to be recorded does not exist yet.
    awaiting: bool,
}

impl Window {
    /// Of a session that is attached since then.
    pub(super) fn new(delay: Duration, at: Timestamp, awaiting: bool) -> Window {
        Window {
            delay,
            started: Instant::now(),
            from: at,
            is_exact: false,
            lasts: None,
            is_open: delay.is_zero(),
            opens_at: None,
            suspended: false,
            awaiting,
        }
    }

    /// Nothing before now is wanted, if the beginning is and what is recorded is there: since when.
    pub(super) fn begin(&mut self) -> Option<Timestamp> {
        self.is_exact = self.delay.is_zero() && !self.awaiting;
        self.is_exact.then(|| {
            self.from = now();
            self.from
        })
    }

    /// Time counts from now on, unless what is recorded does not exist yet.
    pub(super) fn count(&mut self) {
        self.started = Instant::now();
        // What came while we got ready counts, unless the beginning is not wanted at all.
        if !self.delay.is_zero() {
            self.from = match self.awaiting {
                true => Timestamp(u64::MAX),
                false => Timestamp(now().0 + self.delay.as_nanos() as u64),
            };
            self.opens_at = (!self.awaiting).then(|| self.started + self.delay);
        }
    }

    /// What was waited for may be there: time counts from then on. Whether it was waited for until now.
    pub(super) fn see_arrival(&mut self, is_awaited: bool) -> bool {
        let arrives = self.awaiting && !is_awaited;
        if arrives {
            self.awaiting = false;
            self.count();
        }
        arrives
    }

    /// From when samples and calls count, if those before are left out and it is known.
    pub(super) fn counts_from(&self) -> Option<Timestamp> {
        let leaves_out = self.is_exact || !self.delay.is_zero();
        (leaves_out && !self.awaiting).then_some(self.from)
    }

    /// Whether samples and calls of this time are wanted.
    pub(super) fn is_open_at(&self, at: Timestamp) -> bool {
        !self.suspended && !self.is_before(at)
    }

    /// When what is left out at the beginning will be over, if that is known.
    pub(super) fn opens_at(&self) -> Option<Instant> {
        self.opens_at
    }

    /// It is over, and nothing before now is wanted: since when that is, which may be later than it was to be.
    pub(super) fn open(&mut self) -> Timestamp {
        self.opens_at = None;
        self.is_open = true;
        self.from = now();
        self.from
    }

    /// Whether this time is left out because it is before all that is wanted.
    pub(super) fn is_before(&self, at: Timestamp) -> bool {
        !self.is_open || at < self.from
    }

    /// From now on they are wanted, or not.
    pub(super) fn suspend(&mut self, suspended: bool) {
        self.suspended = suspended;
    }

    /// It lasts so long, since time counts; none: as long as nothing else ends it.
    pub(super) fn last(&mut self, time: Option<Duration>) {
        self.lasts = time;
    }

    /// Whether that time is over, however much there is to be resolved by then.
    pub(super) fn is_over(&self) -> bool {
        self.ends_at().is_some_and(|end| end <= Instant::now())
    }

    /// When that time will be over, if it is known.
    pub(super) fn ends_at(&self) -> Option<Instant> {
        let lasts = self.lasts.filter(|_| !self.awaiting)?;
        self.started.checked_add(lasts)
    }

    /// How long it has gone on since it began.
    pub(super) fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// Since when samples and calls count.
    pub(super) fn from(&self) -> Timestamp {
        self.from
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_ends_when_its_time_is_over_and_not_at_a_tick() {
        let lasts = Duration::from_millis(250);
        let mut window = Window::new(Duration::ZERO, now(), false);
        assert_eq!(window.ends_at(), None);
        window.last(Some(lasts));
        assert_eq!(window.ends_at(), Some(window.started + lasts));
        assert!(!window.is_over());
        window.last(Some(Duration::ZERO));
        assert!(window.is_over());
        // Time does not count while what is recorded does not exist.
        let mut awaiting = Window::new(Duration::ZERO, now(), true);
        awaiting.last(Some(Duration::ZERO));
        assert_eq!(awaiting.ends_at(), None);
        assert!(!awaiting.is_over());
    }
}
