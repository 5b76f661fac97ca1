//! Threads that wait: which part of a thread's waits is not counted yet, and who waits now.
//!
//! Waits, whether they have ended or are told while they go on -> times that nothing was counted of before; a moment ->
//! the waits that go on at it, whether that is told of them or that they ended later. A wait may be told any number of times, and each time what is new of it is given:
//! nothing counts twice, whichever of its tellings are missing. Of short waits, where there are many, few
//! are told when they end, and stand for others. That those that go on are told all does not change what sums come
//! to: on average, what is told of the rest of a wait stands for as much as the rests of all those.
//! Times are nanoseconds of CLOCK_MONOTONIC. What does not belong here: sums (`window`).

use rustc_hash::FxHashMap;

use super::place::Place;
use profiler_model::{ThreadId, Wait, WaitState};

const S: u64 = 1_000_000_000;
/// Threads whose waits are remembered; about 64 bytes each.
const MAX_THREADS: usize = 1 << 17;

/// The last wait of each thread.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    threads: FxHashMap<ThreadId, Waiter>,
    /// When there was no room for one more, and none that could be forgotten.
    full_at: Option<u64>,
    moment: Option<Moment>,
}

/// A moment, and the waits that were not over then.
#[derive(Debug, Default)]
struct Moment {
    at: u64,
    /// Those whose threads nobody had made runnable.
    present: FxHashMap<ThreadId, Present>,
    /// Waits that made room for another one of their thread meanwhile, which came later.
    replaced: u64,
}

#[derive(Clone, Copy, Debug)]
struct Waiter {
    place: Place,
    from: u64,
    /// Until when it is counted.
    until: u64,
    /// How many waits it stands for.
    count: u64,
}

/// What is new of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct News {
    /// Where it was waited.
    pub(super) place: Place,
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
        // A thread does not wait twice at a time: it is the same wait, and where it is does not change.
        let same = known.filter(|known| from < known.until);
        let place = match (place, same) {
            (Place::NoStack, Some(same)) => same.place,
            (place, _) => place,
        };
        let mut news = News {
            place,
            time: (known.map_or(from, |known| from.max(known.until)), at),
            threads: count,
            ended: None,
        };
        let told = Waiter {
            place,
            from,
            until: at,
            count,
        };
        match known {
            Some(known) if at < known.until => {}
            Some(known) if from < known.until => {
                let told = Waiter {
                    from: known.from,
                    // Which waits are told does not depend on their lengths, until they end: those stand for others.
                    count: known.count,
                    ..told
                };
                self.threads.insert(thread, told);
            }
            Some(known) => {
                news.ended = Some((known.until, known.count));
                if let Some(moment) = &mut self.moment
                    && known.from < moment.at
                    && moment.at <= known.until
                {
                    moment.replaced = moment.replaced.saturating_add(known.count);
                }
                self.threads.insert(thread, told);
            }
            None if self.has_room(at, oldest) => {
                self.threads.insert(thread, told);
            }
            // It will be told again, and can't be known then.
            None if wait.goes_on() => news.threads = 0,
            None => news.ended = Some((at, count)),
        }
        if let Some(moment) = &mut self.moment
            && from < moment.at
            && moment.at <= at
            && news.threads > 0
            && wait.state != WaitState::Preempted
            && (wait.goes_on() || moment.at < at.saturating_sub(wait.runnable_ns))
        {
            let present = Present {
                place,
                threads: count,
            };
            moment.present.entry(thread).or_insert(present);
        }
        news
    }

    /// It is looked who waits at this moment, up to which waits are told, until [`Waiting::after`].
    pub(super) fn at(&mut self, at: u64) {
        self.moment = Some(Moment {
            at,
            ..Moment::default()
        });
    }

    /// That is over: all that came was told.
    pub(super) fn after(&mut self) {
        self.moment = None;
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

    /// How many waits there are that began before the moment, and did not make room for another one of their thread
    /// before.
    pub(super) fn count(&self) -> u64 {
        let moment = self.moment.as_ref();
        let (at, replaced) = moment.map_or((u64::MAX, 0), |moment| (moment.at, moment.replaced));
        let threads = self.threads.values().filter(|thread| thread.from < at);
        let counts = threads.map(|thread| thread.count);
        counts.fold(replaced, u64::saturating_add)
    }

    /// Those that go on at the moment.
    pub(super) fn present(&self) -> impl Iterator<Item = Present> {
        let moment = self.moment.iter();
        moment.flat_map(|moment| moment.present.values().copied())
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
            open: false,
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
            place: HERE,
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
    fn who_waits_at_a_moment_is_told_then_or_ends_later() {
        let mut waiting = Waiting::default();
        // Before it is asked.
        waiting.told((S - 100, thread(9)), &wait(10), HERE, 0);
        waiting.at(S);
        waiting.told((S, thread(0)), &wait(10), HERE, 0);
        // It ended before what goes on was read; another one has begun.
        waiting.told((S + 5, thread(1)), &ended(15), HERE, 0);
        waiting.told((S + 9, thread(1)), &ended(3), HERE, 0);
        // It was runnable; it began later.
        let woken = Wait {
            runnable_ns: 5,
            ..wait(15)
        };
        waiting.told((S + 5, thread(3)), &woken, HERE, 0);
        waiting.told((S + 5, thread(4)), &ended(3), HERE, 0);
        let preempted = Wait {
            state: WaitState::Preempted,
            ..wait(10)
        };
        waiting.told((S, thread(2)), &preempted, HERE, 0);
        let one = Present {
            place: HERE,
            threads: 1,
        };
        assert_eq!(waiting.present().collect::<Vec<_>>(), [one, one]);
        // Of five threads, one of which ended before.
        assert_eq!(waiting.count(), 5);
        waiting.after();
        assert_eq!(waiting.present().count(), 0);
        waiting.forget(S);
        assert_eq!(waiting.count(), 3);
    }

    #[test]
    fn a_wait_whose_stack_is_told_once_has_it() {
        let mut waiting = Waiting::default();
        let there = Place::Others;
        waiting.told((1_000, thread(0)), &wait(900), there, 0);
        let mut told = |at, wait| waiting.told((at, thread(0)), &wait, Place::NoStack, 0);
        assert_eq!(told(2_000, ended(1_900)).place, there);
        // That is another one.
        assert_eq!(told(3_000, wait(500)).place, Place::NoStack);
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
