//! How long who takes events has waited for the file systems that may be a server's -> how long it waits for the next
//! file of one.
//!
//! A file that lies in memory is there at once; a server's may take as long as it likes, while all events wait. So each
//! is given a moment, those that took their time lately none, and all of them together not much more than one has: a
//! burst of slow ones, which nothing is known of, else holds up as long as it has servers. Times are of this machine's
//! monotonic clock.
//!
//! What does not belong here: who opens files (`helper::opener`), those that are waited for (`files`).

use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;

/// How long a server may take before it is asked beside all others: that is more than a file takes that lies in memory.
const MOMENT: Duration = Duration::from_millis(20);
/// The same when as much was waited for others just before.
const BRIEF: Duration = Duration::from_millis(2);
/// How long "just before" is.
const LATELY: Duration = Duration::from_millis(500);
/// How much of that counts as nothing.
const AT_ONCE: Duration = Duration::from_millis(2);
/// How long the same server is waited for within [`REMEMBERED`].
const MOST_WAITED: Duration = Duration::from_millis(60);
/// How long it is remembered that a server takes its time.
const REMEMBERED: Duration = Duration::from_secs(10);
/// Most servers that this is remembered of.
const MAX_SERVERS: usize = 1024;

/// The number of a file system: major and minor.
pub(super) type Device = (u32, u32);

/// Since when, and how long, was waited for something.
#[derive(Clone, Copy, Debug)]
struct Waited {
    since: Instant,
    all: Duration,
}

impl Waited {
    /// Counts from now on, unless it began so long ago at the most.
    fn within(self, period: Duration, now: Instant) -> Waited {
        match now.duration_since(self.since) < period {
            true => self,
            false => Waited {
                since: now,
                all: Duration::ZERO,
            },
        }
    }
}

/// What was waited for servers.
#[derive(Debug, Default)]
pub(super) struct Servers {
    known: FxHashMap<Device, Waited>,
    /// All of them together.
    lately: Option<Waited>,
}

impl Servers {
    /// How long one is waited for.
    pub(super) fn moment_for(&self, device: Device, now: Instant) -> Duration {
        let waited = |waited: Option<Waited>, period| {
            waited.map_or(Duration::ZERO, |it| it.within(period, now).all)
        };
        if waited(self.known.get(&device).copied(), REMEMBERED) >= MOST_WAITED {
            return Duration::ZERO;
        }
        let left = MOMENT.saturating_sub(waited(self.lately, LATELY));
        left.max(BRIEF)
    }

    /// Notes that it was waited for.
    pub(super) fn waited_for(&mut self, device: Device, begun: Instant, now: Instant) {
        let took = now.duration_since(begun);
        if took < AT_ONCE {
            return;
        }
        if self.known.len() >= MAX_SERVERS {
            self.known.clear();
        }
        let none = Waited {
            since: begun,
            all: Duration::ZERO,
        };
        let known = self.known.entry(device).or_insert(none);
        *known = known.within(REMEMBERED, now);
        known.all += took;
        let lately = self.lately.get_or_insert(none);
        *lately = lately.within(LATELY, now);
        lately.all += took;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_together_are_waited_for_not_much_longer_than_one() {
        let mut servers = Servers::default();
        let (mut now, mut all) = (Instant::now(), Duration::ZERO);
        for minor in 0..8 {
            let begun = now;
            let moment = servers.moment_for((0, minor), begun);
            now += moment;
            all += moment;
            servers.waited_for((0, minor), begun, now);
        }
        assert_eq!(all, MOMENT + 7 * BRIEF);
        assert_eq!(servers.moment_for((0, 9), now + LATELY), MOMENT);
    }

    #[test]
    fn one_that_takes_its_time_is_not_waited_for_again() {
        let mut servers = Servers::default();
        let mut now = Instant::now();
        let mut waits = 0;
        while servers.moment_for((0, 7), now) > Duration::ZERO {
            let begun = now;
            now += servers.moment_for((0, 7), begun);
            servers.waited_for((0, 7), begun, now);
            now += LATELY;
            waits += 1;
        }
        assert_eq!(waits, 3);
        assert_eq!(servers.moment_for((0, 8), now), MOMENT);
        assert_eq!(servers.moment_for((0, 7), now + REMEMBERED), MOMENT);
    }
}
