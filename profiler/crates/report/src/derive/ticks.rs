//! Regular samples of one thread, of what a sampler saw and when: samples of the kernel, waits -> one sample for each
//! tick of a session.
//!
//! A sampler ticks by itself, on every processor, and sees only threads that run. A session wants a sample at each of
//! its own ticks, whatever the thread does. Its interval is a multiple of the sampler's period; of the sampler's ticks it
//! takes the one that is nearest to where its own is due, and counts on from there, so that samples of a thread that
//! runs are exactly as regular as the sampler. A tick at which nothing was seen is one at which the thread did not run:
//! it has the stack of the wait that it lies in, if that was recorded, else none. Times are nanoseconds of one clock;
//! what comes must be in order. Who takes a sample says whether more are wanted. What does not belong here: what stacks are, buffers and their limits.

use std::collections::VecDeque;

use profiler_model::{Sample, Source, Unit};

/// Ticks that wait to know of waits.
const MOST_OPEN: usize = 1 << 20;

/// How often the source of a sample samples: each sample of a timer says it; none if that is not by time.
pub fn sampling_period_ns(sample: &Sample, source: &Source) -> Option<u64> {
    let is_regular = source.frequency_hz.is_some() || source.period.is_some();
    match (source.unit, source.frequency_hz) {
        (Unit::Nanoseconds, _) if is_regular && sample.weight > 0 => Some(sample.weight),
        (_, Some(hz)) if hz > 0 => Some(1_000_000_000 / hz),
        _ => None,
    }
}

/// A sample of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tick<S> {
    /// When.
    pub at: u64,
    /// What the thread was in, if that is known.
    pub stack: Option<S>,
}

/// The ticks of a session on a thread.
#[derive(Clone, Debug)]
pub struct Ticks<S> {
    interval: u64,
    /// The period of the sampler, as far as it is known.
    period: u64,
    /// When the next one is due.
    due: u64,
    /// What was seen nearest to that.
    nearest: Option<(u64, S)>,
    /// Waits are recorded: what a tick found that found nothing is known only when the thread runs again.
    waits: bool,
    wait: Option<(u64, u64, S)>,
    /// Decided or not, in order.
    open: VecDeque<Open<S>>,
}

#[derive(Clone, Copy, Debug)]
struct Open<S> {
    tick: Tick<S>,
    is_decided: bool,
}

impl<S: Copy> Ticks<S> {
    /// Every so many nanoseconds from `origin` on, the first one an interval later. `waits`: waits of the thread are
    /// recorded.
    pub fn new(origin: u64, interval: u64, waits: bool) -> Ticks<S> {
        let interval = interval.max(1);
        Ticks {
            interval,
            period: interval,
            due: origin.saturating_add(interval),
            nearest: None,
            waits,
            wait: None,
            open: VecDeque::new(),
        }
    }

    /// How far from where it is due a tick is looked for.
    fn reach(&self) -> u64 {
        self.period.min(self.interval).div_ceil(2)
    }

    /// The thread was seen running, by a sampler of this period.
    pub fn run(&mut self, at: u64, period: u64, stack: S, mut emit: impl FnMut(Tick<S>) -> bool) {
        self.period = period.max(1);
        self.close_until(at, &mut emit);
        // It runs: what it waited for before is known.
        self.open.iter_mut().for_each(|open| open.is_decided = true);
        if at.saturating_add(self.reach()) >= self.due {
            let distance = |at: u64| at.abs_diff(self.due);
            if self
                .nearest
                .is_none_or(|(known, _)| distance(at) < distance(known))
            {
                self.nearest = Some((at, stack));
            }
        }
        self.give(&mut emit);
    }

    /// The thread has waited for so long, until then.
    pub fn waited(&mut self, until: u64, ns: u64, stack: S, mut emit: impl FnMut(Tick<S>) -> bool) {
        self.close_until(until, &mut emit);
        let from = until.saturating_sub(ns);
        for open in self.open.iter_mut().filter(|open| !open.is_decided) {
            if (from..until).contains(&open.tick.at) {
                open.tick.stack = Some(stack);
            }
            open.is_decided = true;
        }
        self.wait = Some((from, until, stack));
        self.give(&mut emit);
    }

    /// All that happened before this time has come.
    pub fn advance(&mut self, to: u64, mut emit: impl FnMut(Tick<S>) -> bool) {
        self.close_until(to, &mut emit);
        self.give(&mut emit);
    }

    /// Nothing more comes; ticks up to and with this time are given.
    pub fn finish(&mut self, to: u64, mut emit: impl FnMut(Tick<S>) -> bool) {
        self.close_until(to, &mut emit);
        match self.nearest.filter(|_| self.due < u64::MAX) {
            Some((at, _)) if at <= to => self.close(),
            None if self.due <= to && self.due < u64::MAX => self.close(),
            _ => {}
        }
        self.open.iter_mut().for_each(|open| open.is_decided = true);
        self.give(&mut emit);
    }

    /// Closes what is so long past that nothing at this time, or after it, can be nearer.
    fn close_until(&mut self, to: u64, emit: &mut impl FnMut(Tick<S>) -> bool) {
        while to > self.due.saturating_add(self.reach()) {
            self.close();
            self.give(emit);
        }
    }

    fn close(&mut self) {
        let tick = match self.nearest.take() {
            Some((at, stack)) => Tick {
                at,
                stack: Some(stack),
            },
            None => {
                let at = self.due;
                let within = |(from, until, _): &(u64, u64, S)| (*from..*until).contains(&at);
                let wait = self.wait.filter(within);
                Tick {
                    at,
                    stack: wait.map(|(_, _, stack)| stack),
                }
            }
        };
        // What comes behind one that is not decided waits with it.
        let is_decided = !self.waits || tick.stack.is_some();
        self.open.push_back(Open { tick, is_decided });
        if self.open.len() > MOST_OPEN
            && let Some(first) = self.open.front_mut()
        {
            first.is_decided = true;
        }
        self.due = tick.at.saturating_add(self.interval);
    }

    fn give(&mut self, emit: &mut impl FnMut(Tick<S>) -> bool) {
        while let Some(open) = self.open.front()
            && open.is_decided
        {
            if !emit(open.tick) {
                // None is due any more.
                self.due = u64::MAX;
                self.open.clear();
                return;
            }
            self.open.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What comes to a session, in the order of time.
    #[derive(Clone, Copy, Debug)]
    enum Seen {
        Run(u64, u64),
        Waited(u64, u64),
        Nothing(u64),
    }
    use Seen::*;

    /// Ticks of every 10, as `at` with a letter: running, waiting, nothing known.
    fn ticks(waits: bool, seen: &[Seen], end: u64) -> Vec<(u64, char)> {
        let mut ticks = Ticks::new(0, 10, waits);
        let mut given = Vec::new();
        let mut emit = |tick: Tick<char>| {
            given.push((tick.at, tick.stack.unwrap_or('-')));
            true
        };
        for seen in seen {
            match *seen {
                Run(at, period) => ticks.run(at, period, 'r', &mut emit),
                Waited(until, ns) => ticks.waited(until, ns, 'w', &mut emit),
                Nothing(until) => ticks.advance(until, &mut emit),
            }
        }
        ticks.finish(end, &mut emit);
        given
    }

    #[test]
    fn a_thread_that_runs_is_sampled_as_regularly_as_the_sampler_ticks() {
        let same: Vec<Seen> = (1..=5).map(|n| Run(n * 10 + 3, 10)).collect();
        let expected: Vec<_> = (1..=5).map(|n| (n * 10 + 3, 'r')).collect();
        assert_eq!(ticks(false, &same, 55), expected);
        // Of a sampler that ticks five times as often, each fifth.
        let often: Vec<Seen> = (1..=26).map(|n| Run(n * 2 + 1, 2)).collect();
        let given = ticks(false, &often, 53);
        let gaps: Vec<u64> = given.windows(2).map(|two| two[1].0 - two[0].0).collect();
        assert_eq!(gaps, [10; 4], "{given:?}");
    }

    #[test]
    fn ticks_without_anything_seen_are_of_a_thread_that_did_not_run() {
        let seen = [Run(12, 10), Run(22, 10), Nothing(45), Run(52, 10)];
        let expected = [(12, 'r'), (22, 'r'), (32, '-'), (42, '-'), (52, 'r')];
        assert_eq!(ticks(false, &seen, 55), expected);
        assert_eq!(ticks(false, &[], 30), [(10, '-'), (20, '-'), (30, '-')]);
        assert_eq!(ticks(false, &[], 9), []);
    }

    #[test]
    fn waits_that_are_recorded_have_their_stacks() {
        let seen = [Run(12, 10), Waited(49, 36), Run(52, 10), Run(62, 10)];
        let expected = [
            (12, 'r'),
            (22, 'w'),
            (32, 'w'),
            (42, 'w'),
            (52, 'r'),
            (62, 'r'),
        ];
        assert_eq!(ticks(true, &seen, 65), expected);
        // It stood still before anything of it was seen; it waits on at the end.
        let seen = [Waited(25, 9), Run(40, 10)];
        let expected = [
            (10, '-'),
            (20, 'w'),
            (30, '-'),
            (40, 'r'),
            (50, '-'),
            (60, '-'),
        ];
        assert_eq!(ticks(true, &seen, 60), expected);
        // A tick that is looked at only after its wait was told.
        let seen = [Waited(11, 11), Run(30, 10)];
        assert_eq!(ticks(true, &seen, 30), [(10, 'w'), (20, '-'), (30, 'r')]);
    }

    #[test]
    fn one_tick_has_one_sample_however_many_processors_saw_the_thread() {
        let seen = [
            Run(8, 10),
            Run(11, 10),
            Run(13, 10),
            Run(19, 10),
            Run(21, 10),
        ];
        assert_eq!(ticks(false, &seen, 25), [(11, 'r'), (21, 'r')]);
    }

    #[test]
    fn a_late_tick_of_the_sampler_does_not_throw_it_out_of_step() {
        let times = [10, 26, 30, 40, 50, 60, 70];
        let seen: Vec<Seen> = times.iter().map(|&at| Run(at, 10)).collect();
        let given = ticks(false, &seen, 70);
        let rest: Vec<u64> = given
            .iter()
            .map(|(at, _)| *at)
            .filter(|at| *at >= 40)
            .collect();
        assert_eq!(rest, [40, 50, 60, 70], "{given:?}");
    }

    #[test]
    fn who_wants_no_more_gets_no_more() {
        let mut ticks = Ticks::new(0, 10, false);
        let mut given = Vec::new();
        let mut emit = |tick: Tick<char>| {
            given.push(tick.at);
            given.len() < 3
        };
        ticks.run(10, 10, 'r', &mut emit);
        ticks.advance(20, &mut emit);
        ticks.advance(u64::MAX, &mut emit);
        ticks.run(u64::MAX, 10, 'r', &mut emit);
        ticks.finish(u64::MAX, &mut emit);
        assert_eq!(given, [10, 20, 30]);
    }

    proptest! {
        #[test]
        fn times_ascend_and_no_tick_is_missing(
            steps in prop::collection::vec((1..40u64, 0..3u8, 1..15u64), 0..200),
            waits in any::<bool>(),
            end in 0..200u64,
        ) {
            let mut at = 0;
            let mut seen = Vec::new();
            for (step, kind, number) in steps {
                at += step;
                seen.push(match kind {
                    0 => Run(at, number),
                    1 => Waited(at, number.min(step)),
                    _ => Nothing(at),
                });
            }
            let end = at + end;
            let given = ticks(waits, &seen, end);
            prop_assert!(given.iter().all(|(at, _)| *at <= end));
            let mut before = 0;
            for (at, _) in &given {
                prop_assert!((5..=15).contains(&(at - before)), "{:?}", given);
                before = *at;
            }
            prop_assert!(end - before <= 15, "{} {:?}", end, given);
        }
    }
}
