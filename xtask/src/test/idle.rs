//! `/proc/stat` -> how much of the processors nobody has used lately, in eighths of one.
//!
//! What a test that has just begun will take is not seen yet: after each start a new span is looked at, and until it is
//! [`SPAN`] long nothing counts as idle. Where the kernel does not tell, nothing is idle.
//!
//! What does not belong here: what is done with it (`schedule`).

use std::fs;
use std::time::{Duration, Instant};

/// How long it is looked. Times are counted in steps of 10 ms for each processor.
const SPAN: Duration = Duration::from_millis(250);

/// Since when it is looked, and what was found last.
pub(super) struct Idle {
    since: Instant,
    /// At that time.
    then: Option<Ticks>,
    eighths: u32,
}

/// Times of all processors together since the machine began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ticks {
    idle: u64,
    all: u64,
    processors: u64,
}

impl Idle {
    pub(super) fn new() -> Idle {
        Idle {
            since: Instant::now(),
            then: Ticks::now(),
            eighths: 0,
        }
    }

    /// Something begins that takes of what is idle.
    pub(super) fn changed(&mut self) {
        *self = Idle::new();
    }

    /// What was idle in the last whole span since something has changed.
    pub(super) fn eighths(&mut self) -> u32 {
        if self.since.elapsed() >= SPAN {
            let now = Ticks::now();
            let eighths = self.then.zip(now).map(|(then, now)| now.idle_since(then));
            *self = Idle {
                since: Instant::now(),
                then: now,
                eighths: eighths.unwrap_or(0),
            };
        }
        self.eighths
    }
}

impl Ticks {
    fn now() -> Option<Ticks> {
        Ticks::parse(&fs::read_to_string("/proc/stat").ok()?)
    }

    fn parse(text: &str) -> Option<Ticks> {
        let processors = |line: &&str| line.starts_with("cpu") && !line.starts_with("cpu ");
        let times = text.lines().next()?.strip_prefix("cpu ")?;
        // user nice system idle iowait irq softirq steal; guests' are part of the first two.
        let times = times.split_ascii_whitespace().take(8);
        let times: Vec<u64> = times
            .map(str::parse)
            .collect::<Result<_, _>>()
            .ok()
            .filter(|times: &Vec<u64>| times.len() == 8)?;
        Some(Ticks {
            idle: times[3] + times[4],
            all: times.iter().sum(),
            processors: text.lines().filter(processors).count().try_into().ok()?,
        })
    }

    /// Waiting for a disk counts as idle, and is known to go back at times.
    fn idle_since(self, then: Ticks) -> u32 {
        let idle = self.idle.saturating_sub(then.idle);
        let all = self.all.saturating_sub(then.all).max(1);
        u32::try_from(idle * 8 * self.processors / all).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_time_is_a_share_of_all_processors() {
        let text = "cpu  100 0 50 800 40 5 5 0 7 0\ncpu0 50 0 25 400 20 3 2 0 7 0\n\
                    cpu1 50 0 25 400 20 2 3 0 0 0\nintr 1 2\n";
        let then = Ticks::parse(text).unwrap();
        let expected = Ticks {
            idle: 840,
            all: 1000,
            processors: 2,
        };
        assert_eq!(then, expected);
        let later = |idle, all| Ticks { idle, all, ..then };
        assert_eq!(later(865, 1100).idle_since(then), 4);
        assert_eq!(later(940, 1100).idle_since(then), 16);
        assert_eq!(later(839, 1100).idle_since(then), 0);
        assert_eq!(then.idle_since(then), 0);
        for wrong in [
            "",
            "cpu  1 2 3 4\n",
            "cpu  a 2 3 4 5 6 7 8\n",
            "cpu0 1 2 3 4 5 6 7 8\n",
        ] {
            assert_eq!(Ticks::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn nothing_is_idle_before_it_was_looked_for() {
        let mut idle = Idle::new();
        assert_eq!(idle.eighths(), 0);
        idle.changed();
        assert_eq!(idle.eighths(), 0);
    }
}
