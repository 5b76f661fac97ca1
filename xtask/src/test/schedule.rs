//! Tests and what may run beside each -> which one is to start next.
//!
//! A test that runs alone starts when nothing else runs, and nothing starts before it has ended. Others start
//! as long as the machine has room ([`room`]): each takes so many eighths of a processor; of those that take
//! turns one at a time. Classes say what tests take at most; most wait for a part of their time: where processors have
//! been idle, there is room for one more. What takes longest comes first, for the end of a run to be short. What calculates
//! is kept for the time when others want it quiet: these come when nothing else is left, and what runs alone last.
//!
//! What does not belong here: processes, clocks, what is idle (`idle`); a test is a number.

use std::collections::HashMap;
use std::time::Duration;

use super::classes::Class;

/// Eighths of processors that may be taken: a fourth more than there are, for tests take some less than their classes say,
/// and a processor that waits makes a run longer.
fn room(processors: u32) -> u32 {
    processors.max(1) * 10
}

/// A test to be run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Job {
    pub(super) test: usize,
    pub(super) class: Class,
    /// How long it is expected to take.
    pub(super) expected: Duration,
}

/// Which tests wait, and which run.
pub(super) struct Schedule {
    /// Those that run beside others; what is to start first is at the end of each.
    beside: Vec<Job>,
    alone: Vec<Job>,
    /// Eighths of processors that may be taken whatever is idle, and those that the running tests take.
    room: u32,
    taken: u32,
    running: HashMap<usize, Class>,
}

impl Schedule {
    /// A schedule for a machine with so many processors.
    pub(super) fn new(jobs: impl IntoIterator<Item = Job>, processors: usize) -> Schedule {
        let room = room(u32::try_from(processors).unwrap_or(1));
        let (mut alone, mut beside): (Vec<Job>, Vec<Job>) =
            jobs.into_iter().partition(|job| job.class.is_alone());
        // Stable, so that tests of which nothing is known keep their order.
        beside.reverse();
        alone.reverse();
        beside.sort_by_key(|job| job.expected);
        Schedule {
            beside,
            alone,
            room,
            taken: 0,
            running: HashMap::new(),
        }
    }

    /// A test that is to start now, if there is one, where so many eighths of processors have been idle lately. It runs
    /// until [`Schedule::ended`].
    pub(super) fn start(&mut self, idle: u32) -> Option<usize> {
        let are_last = self.beside.iter().all(|job| job.class.is_last());
        let may_start = |job: &Job| self.may_start(job.class, idle, are_last);
        let job = if let Some(at) = self.beside.iter().rposition(may_start) {
            self.beside.remove(at)
        } else if self.beside.is_empty() && self.running.is_empty() {
            self.alone.pop()?
        } else {
            return None;
        };
        self.taken += self.takes(job.class);
        self.running.insert(job.test, job.class);
        Some(job.test)
    }

    /// A test has ended.
    pub(super) fn ended(&mut self, test: usize) {
        if let Some(class) = self.running.remove(&test) {
            self.taken -= self.takes(class);
        }
    }

    /// Whether there is room for a test that runs beside others, and it is its turn; all that are left may be those that
    /// are last.
    fn may_start(&self, class: Class, idle: u32, are_last: bool) -> bool {
        let takes = self.takes(class);
        let room = match takes <= idle {
            true => self.room * 2,
            false => self.room,
        };
        let mut running = self.running.values();
        self.taken + takes <= room
            && match class {
                Class::Quiet => are_last && running.all(|it| *it == Class::Calculates),
                Class::Calculates => are_last,
                Class::InTurn(_) => running.all(|it| *it != class),
                Class::Beside(_) | Class::Alone | Class::Long => true,
            }
    }

    fn takes(&self, class: Class) -> u32 {
        match class {
            Class::Beside(eighths) => eighths.min(self.room),
            Class::InTurn(_) | Class::Quiet => 4,
            Class::Calculates => 8,
            Class::Alone | Class::Long => self.room,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;

    fn job(test: usize, class: Class, seconds: u64) -> Job {
        Job {
            test,
            class,
            expected: Duration::from_secs(seconds),
        }
    }

    /// Runs a schedule on a made-up clock, where nothing is idle: (test, its start, its end), in the order of starts.
    fn simulate(jobs: &[Job], processors: usize) -> Vec<(usize, u64, u64)> {
        let lengths: BTreeMap<usize, u64> = jobs
            .iter()
            .map(|job| (job.test, job.expected.as_secs()))
            .collect();
        let mut schedule = Schedule::new(jobs.iter().copied(), processors);
        let (mut now, mut running, mut all) = (0, BTreeSet::new(), Vec::new());
        loop {
            while let Some(test) = schedule.start(0) {
                let end = now + lengths[&test];
                running.insert((end, test));
                all.push((test, now, end));
            }
            let Some((end, test)) = running.pop_first() else {
                return all;
            };
            now = end;
            schedule.ended(test);
        }
    }

    /// Jobs of all classes, the same in every run.
    fn crowd() -> Vec<Job> {
        let mut state = 1u64;
        let mut random = move |below: u64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33) % below
        };
        (0..500)
            .map(|test| {
                let class = match random(10) {
                    0 => Class::Alone,
                    1 => Class::Long,
                    2 => Class::Beside(1),
                    3 => Class::Beside(2),
                    4 => Class::Beside(8),
                    7 => Class::Calculates,
                    8 => Class::Quiet,
                    5 | 6 => Class::InTurn(random(2) as usize),
                    _ => Class::Beside(1000),
                };
                job(test, class, 1 + random(20))
            })
            .collect()
    }

    #[test]
    fn every_test_runs_once() {
        let jobs = crowd();
        for processors in [1, 2, 5, 64] {
            let mut run: Vec<usize> = simulate(&jobs, processors)
                .into_iter()
                .map(|(test, _, _)| test)
                .collect();
            run.sort_unstable();
            assert_eq!(run, (0..jobs.len()).collect::<Vec<_>>(), "{processors}");
        }
    }

    #[test]
    fn what_runs_beside_another_is_what_may() {
        let jobs = crowd();
        for processors in [1, 2, 5, 64] {
            let all = simulate(&jobs, processors);
            for &(test, start, end) in &all {
                let class = jobs[test].class;
                for &(other, other_start, other_end) in &all {
                    let beside = jobs[other].class;
                    let may = match class {
                        Class::Quiet => beside == Class::Calculates,
                        Class::InTurn(_) => beside != class,
                        _ => !class.is_alone(),
                    };
                    if may {
                        continue;
                    }
                    let apart = other == test || other_end <= start || end <= other_start;
                    assert!(apart, "{test} and {other} on {processors}");
                }
            }
        }
    }

    #[test]
    fn no_more_is_taken_than_there_is() {
        let jobs = crowd();
        for processors in [1u32, 2, 5] {
            let all = simulate(&jobs, processors as usize);
            for &(_, at, _) in &all {
                let running = all
                    .iter()
                    .filter(|(_, start, end)| (*start..*end).contains(&at));
                let taken: u32 = running
                    .map(|(test, _, _)| match jobs[*test].class {
                        Class::Beside(eighths) => eighths.min(room(processors)),
                        Class::InTurn(_) | Class::Quiet => 4,
                        Class::Calculates => 8,
                        Class::Alone | Class::Long => room(processors),
                    })
                    .sum();
                assert!(taken <= room(processors), "{taken} at {at}");
            }
        }
    }

    #[test]
    fn room_is_used_and_the_longest_comes_first() {
        let beside = |test, seconds| job(test, Class::Beside(8), seconds);
        let jobs = [beside(0, 1), beside(1, 10), beside(2, 5), beside(3, 4)];
        let all = simulate(&jobs, 2);
        let expected = [(1, 0, 10), (2, 0, 5), (3, 5, 9), (0, 9, 10)];
        assert_eq!(all, expected);
        // What is small goes where what is large has no room.
        let jobs = [
            beside(0, 9),
            job(1, Class::Beside(20), 8),
            job(2, Class::Beside(1), 1),
        ];
        let all = simulate(&jobs, 2);
        assert_eq!(all, [(0, 0, 9), (2, 0, 1), (1, 9, 17)]);
        // Of the same length: in the order in which they are listed.
        let all = simulate(&[beside(0, 1), beside(1, 1), beside(2, 1)], 1);
        assert_eq!(all, [(0, 0, 1), (1, 1, 2), (2, 2, 3)]);
    }

    #[test]
    fn what_calculates_is_kept_for_those_that_want_it_quiet() {
        let jobs = [
            job(0, Class::Calculates, 9),
            job(1, Class::Quiet, 5),
            job(2, Class::Beside(6), 7),
            job(3, Class::Beside(8), 4),
        ];
        let all = simulate(&jobs, 2);
        // What fits beside the last of the others begins, and goes on beside what wants it quiet.
        assert_eq!(all, [(2, 0, 7), (3, 0, 4), (0, 4, 13), (1, 7, 12)]);
        let jobs = [
            job(0, Class::Calculates, 9),
            job(1, Class::InTurn(1), 5),
            job(2, Class::InTurn(1), 4),
        ];
        assert_eq!(simulate(&jobs, 8), [(1, 0, 5), (2, 5, 9), (0, 5, 14)]);
    }

    #[test]
    fn what_is_idle_is_room_for_one_more() {
        let jobs = (0..9).map(|test| job(test, Class::Beside(6), 1));
        let mut schedule = Schedule::new(jobs, 1);
        assert_eq!(schedule.start(0), Some(0));
        assert_eq!(schedule.start(0), None);
        assert_eq!(schedule.start(5), None);
        assert_eq!(schedule.start(6), Some(1));
        assert_eq!(schedule.start(6), Some(2));
        // Never more than twice of what there is.
        assert_eq!(schedule.start(8), None);
        schedule.ended(0);
        assert_eq!(schedule.start(0), None);
        assert_eq!(schedule.start(8), Some(3));
    }
}
