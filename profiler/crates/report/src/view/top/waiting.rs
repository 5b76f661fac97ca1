//! Threads that wait: which part of a thread's waits is not counted yet, and who waits now.
//!
//! Waits, whether they have ended or are told while they go on -> times that nothing was counted of before; a moment ->
//! the waits that go on at it. A wait may be told any number of times, and each time what is new of it is given:
//! nothing counts twice, whichever of its tellings are missing. Of short waits, where there are many, few
//! are told when they end, and stand for others. That those that go on are told all does not change what sums come
//! to: on average, what is told of the rest of a wait stands for as much as the rests of all those.
//! Times are nanoseconds of CLOCK_MONOTONIC. What does not belong here: sums (`window`).

use rustc_hash::FxHashMap;

use super::place::Place;
use profiler_model::{ThreadId, Wait};

const S: u64 = 1_000_000_000;
/// Threads whose waits are remembered; about 64 bytes each.
const MAX_THREADS: usize = 1 << 17;
/// Waits that go on are told every second. One that was not told for so long has ended, and nobody saw it.
const STALE_NS: u64 = 2 * S + S / 2;

/// The last wait of each thread.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    threads: FxHashMap<ThreadId, Waiter>,
    /// When there was no room for one more, and none that could be forgotten.
    full_at: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
struct Waiter {
    place: Place,
    /// Until when it is counted.
    until: u64,
    /// It had not ended then.
    goes_on: bool,
    /// How many waits it stands for.
    count: u64,
}

/// What is new of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct News {
    /// A time in which it was waited; it may be empty.
    pub(super) time: (u64, u64),
    /// How many threads waited in it.
    pub(super) threads: u64,
    /// Another wait, which ended then and stood for so many: more is not to come of it.
    pub(super) ended: Option<(u64, u64)>,
}

/// A wait that goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Present {
    pub(super) place: Place,
    /// Until when it is counted.
    pub(super) until: u64,
    /// How many it stands for.
    pub(super) threads: u64,
}

impl Waiting {
    /// A thread had waited at a place for so long at this time. What it was before `oldest` does not matter any more.
    pub(super) fn told(
        &mut self,
        (at, thread): (u64, ThreadId),
        wait: &Wait,
        place: Place,
        oldest: u64,
    ) -> News {
        let from = at.saturating_sub(wait.ns);
        let count = u64::from(wait.count);
        let known = self.threads.get(&thread).copied();
        let mut news = News {
            time: (known.map_or(from, |known| from.max(known.until)), at),
            threads: count,
            ended: None,
        };
        let told = Waiter {
            place,
            until: at,
            goes_on: wait.goes_on(),
            count,
        };
        match known {
            Some(known) if at < known.until => {}
            // A thread does not wait twice at a time: it is the same wait.
            Some(known) if from < known.until => {
                let told = Waiter {
                    // Which waits are told does not depend on their lengths, until they end: those stand for others.
                    count: known.count,
                    ..told
                };
                self.threads.insert(thread, told);
            }
            Some(known) => {
                news.ended = Some((known.until, known.count));
                self.threads.insert(thread, told);
            }
            None if self.has_room(at, oldest) => {
                self.threads.insert(thread, told);
            }
            // It will be told again, and can't be known then.
            None if told.goes_on => news.threads = 0,
            None => news.ended = Some((at, count)),
        }
        news
    }

    fn has_room(&mut self, now: u64, oldest: u64) -> bool {
        let is_full = |full_at: u64| now < full_at.saturating_add(S);
        if self.threads.len() >= MAX_THREADS && !self.full_at.is_some_and(is_full) {
            self.forget(oldest);
            self.full_at = Some(now);
        }
        self.threads.len() < MAX_THREADS
    }

    /// Forgets what ended before: what is told of a thread later is of a later time.
    pub(super) fn forget(&mut self, oldest: u64) {
        self.threads.retain(|_, thread| thread.until > oldest);
    }

    /// How many waits there are that were told, and did not make room for another one of their thread.
    pub(super) fn count(&self) -> u64 {
        let counts = self.threads.values().map(|thread| thread.count);
        counts.fold(0, u64::saturating_add)
    }

    /// Those that go on.
    pub(super) fn present(&self, now: u64) -> impl Iterator<Item = Present> {
        let threads = self.threads.values();
        let present =
            move |thread: &&Waiter| thread.goes_on && now < thread.until.saturating_add(STALE_NS);
        threads.filter(present).map(|thread| Present {
            place: thread.place,
            until: thread.until,
            threads: thread.count,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use profiler_model::{EpochId, WaitState};

    const HERE: Place = Place::NoStack;

    fn wait(ns: u64) -> Wait {
        Wait {
            ns,
            runnable_ns: 0,
            state: WaitState::Sleeping,
            waker: None,
            count: 1,
        }
    }

    fn ended(ns: u64) -> Wait {
        Wait {
            runnable_ns: 1,
            ..wait(ns)
        }
    }

    fn thread(index: usize) -> ThreadId {
        ThreadId::from_index(index)
    }

    #[test]
    fn no_time_counts_twice() {
        let mut waiting = Waiting::default();
        let mut told = |at, wait| waiting.told((at, thread(0)), &wait, HERE, 0);
        let news = |time, ended| News {
            time,
            threads: 1,
            ended,
        };
        assert_eq!(told(1_000, wait(900)), news((100, 1_000), None));
        assert_eq!(told(2_000, wait(1_900)), news((1_000, 2_000), None));
        assert_eq!(told(2_500, ended(2_400)), news((2_000, 2_500), None));
        // Another one, which began at once.
        assert_eq!(
            told(3_000, wait(500)),
            news((2_500, 3_000), Some((2_500, 1)))
        );
        // What comes too late has been counted.
        let late = told(2_800, ended(300));
        assert!(late.time.0 >= late.time.1 && late.ended.is_none());
        assert_eq!(told(4_000, wait(1_500)).time, (3_000, 4_000));
        assert_eq!(waiting.count(), 1);
    }

    #[test]
    fn a_wait_that_stands_for_others_counts_them_for_what_is_new() {
        let mut waiting = Waiting::default();
        waiting.told((1_000, thread(0)), &wait(10), HERE, 0);
        let short = Wait {
            count: 50,
            ..ended(15)
        };
        let news = waiting.told((1_005, thread(0)), &short, HERE, 0);
        assert_eq!((news.time, news.threads), ((1_000, 1_005), 50));
        assert_eq!(waiting.count(), 1);
    }

    #[test]
    fn who_waits_now_was_told_lately_and_not_woken() {
        let mut waiting = Waiting::default();
        waiting.told((S, thread(0)), &wait(10), HERE, 0);
        waiting.told((S, thread(1)), &wait(10), HERE, 0);
        waiting.told((S + 5, thread(1)), &ended(15), HERE, 0);
        let preempted = Wait {
            state: WaitState::Preempted,
            ..wait(10)
        };
        waiting.told((S, thread(2)), &preempted, HERE, 0);
        let present = |waiting: &Waiting, now| waiting.present(now).collect::<Vec<_>>();
        let first = Present {
            place: HERE,
            until: S,
            threads: 1,
        };
        assert_eq!(present(&waiting, S + 100), [first]);
        assert_eq!(present(&waiting, S + STALE_NS), []);
        assert_eq!(waiting.count(), 3);
        waiting.forget(S);
        assert_eq!(waiting.count(), 1);
    }

    #[test]
    fn what_there_is_no_room_for_counts_when_it_ends() {
        let mut waiting = Waiting::default();
        for index in 0..MAX_THREADS {
            waiting.told((S, thread(index)), &wait(10), HERE, 0);
        }
        let more = thread(MAX_THREADS);
        assert_eq!(waiting.told((S, more), &wait(10), HERE, 0).threads, 0);
        let news = waiting.told((S + 10, more), &ended(20), HERE, 0);
        assert_eq!((news.time, news.threads), ((S - 10, S + 10), 1));
        assert_eq!(news.ended, Some((S + 10, 1)));
        // What is too old makes room.
        let news = waiting.told((3 * S, more), &wait(10), HERE, S);
        assert_eq!((news.threads, news.ended), (1, None));
        assert_eq!(waiting.threads.len(), 1);
    }
}
