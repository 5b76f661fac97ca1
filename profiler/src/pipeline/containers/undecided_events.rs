//! Events that wait until it is known whether a sample among them is wanted.
//!
//! Raw events in order of time -> the same, without the samples that are not wanted. Behind the first
//! sample that nothing is known of all wait, so that the order stays. How many wait is bounded; samples
//! that can't wait any longer are dropped, and counted as lost. Times are nanoseconds of
//! CLOCK_MONOTONIC.
//!
//! What does not belong here: which samples are wanted (`decisions`).

use std::collections::VecDeque;

use profiler_model::raw::{RawBody, RawEvent};
use profiler_model::{Cpu, Lost, LostReason, Timestamp};

/// Most events that wait.
pub(super) const MAX_WAITING: usize = 1 << 16;

/// What becomes of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// It is wanted.
    Keep,
    /// It is not.
    Drop,
    /// Nobody will know.
    Lose,
    /// It is not known yet.
    Wait,
}

/// Where the thread was that an event speaks of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// The id of its cgroup.
    pub(super) cgroup: u64,
    /// The kernel side did not know whether it is wanted.
    pub(super) undecided: bool,
}

impl Place {
    /// That of an event; none if it is to be passed on wherever it was.
    fn of(event: &RawEvent) -> Option<Place> {
        let (cgroup, undecided) = match &event.body {
            RawBody::Sample(sample) => (sample.cgroup, sample.undecided),
            RawBody::Wait(wait) => (wait.record.cgroup, wait.undecided),
            RawBody::Waits(waits) => (waits.cgroup, waits.undecided),
            _ => return None,
        };
        Some(Place { cgroup, undecided })
    }
}

/// Raw events behind a sample of which it is not known yet whether it is wanted.
#[derive(Debug, Default)]
pub(super) struct UndecidedEvents {
    waiting: VecDeque<RawEvent>,
    lost: Vec<Lost>,
}

impl UndecidedEvents {
    /// Whether anything waits.
    pub(super) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Takes events, and leaves in their place those that can go on. The `last` time nothing waits any
    /// longer. Returns how many samples were taken out for good.
    pub(super) fn pass(
        &mut self,
        events: &mut Vec<RawEvent>,
        last: bool,
        fate: &mut dyn FnMut(Timestamp, Place) -> Fate,
    ) -> u64 {
        let mut fate = |event: &RawEvent| match Place::of(event) {
            Some(place) => fate(event.at, place),
            None => Fate::Keep,
        };
        let first = match self.waiting.is_empty() {
            true => events.iter().position(|event| fate(event) != Fate::Keep),
            false => Some(0),
        };
        let Some(first) = first else { return 0 };
        self.waiting.extend(events.drain(first..));
        let mut taken_out = 0;
        let mut passed = Timestamp(0);
        while let Some(event) = self.waiting.front() {
            let (at, cpu) = (event.at, event.cpu);
            let fate = match fate(event) {
                Fate::Wait if last || self.waiting.len() > MAX_WAITING => Fate::Lose,
                fate => fate,
            };
            match fate {
                Fate::Wait => break,
                Fate::Keep => events.extend(self.waiting.pop_front()),
                Fate::Drop | Fate::Lose => {
                    let event = self.waiting.pop_front();
                    // Totals are about what was counted with the waits themselves.
                    if event.is_some_and(|event| matches!(event.body, RawBody::Waits(_))) {
                        continue;
                    }
                    taken_out += 1;
                    if fate == Fate::Lose {
                        self.lose(at, cpu);
                    }
                }
            }
            passed = at;
        }
        events.extend(self.lost.drain(..).map(|lost| RawEvent {
            at: passed,
            cpu: lost.cpu.unwrap_or(Cpu(0)),
            body: RawBody::Lost(lost),
        }));
        taken_out
    }

    fn lose(&mut self, at: Timestamp, cpu: Cpu) {
        match self.lost.iter_mut().find(|lost| lost.cpu == Some(cpu)) {
            Some(lost) => {
                lost.to = at;
                lost.count += 1;
            }
            None => self.lost.push(Lost {
                cpu: Some(cpu),
                from: at,
                to: at,
                count: 1,
                reason: LostReason::Undecided,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use proptest::prelude::*;
    use rustc_hash::FxHashMap;

    use super::*;
    use profiler_model::raw::RawSample;
    use profiler_model::{Pid, Tid};

    fn sample(at: u64, cgroup: u64) -> RawEvent {
        let body = RawBody::Sample(Box::new(RawSample {
            cgroup,
            undecided: cgroup != 0,
            ..RawSample::new(Pid(1), Tid(1))
        }));
        RawEvent {
            at: Timestamp(at),
            cpu: Cpu((at % 2) as u32),
            body,
        }
    }

    fn exit(at: u64) -> RawEvent {
        RawEvent {
            at: Timestamp(at),
            cpu: Cpu(0),
            body: RawBody::Exit {
                pid: Pid(1),
                tid: Tid(1),
            },
        }
    }

    fn by_cgroup(_: Timestamp, place: Place) -> Fate {
        match place.cgroup {
            0 => Fate::Keep,
            1 => Fate::Drop,
            2 => Fate::Lose,
            _ => Fate::Wait,
        }
    }

    fn lost(events: &[RawEvent]) -> u64 {
        let count = |event: &RawEvent| match &event.body {
            RawBody::Lost(lost) if lost.reason == LostReason::Undecided => lost.count,
            _ => 0,
        };
        events.iter().map(count).sum()
    }

    #[test]
    fn what_is_not_wanted_is_no_loss_and_what_nobody_knows_is_one() {
        let mut undecided = UndecidedEvents::default();
        let mut events = vec![sample(1, 0), sample(2, 1), sample(3, 2), exit(4)];
        assert_eq!(undecided.pass(&mut events, false, &mut by_cgroup), 2);
        assert_eq!(events[..2], [sample(1, 0), exit(4)]);
        assert_eq!((events.len(), lost(&events)), (3, 1));
        assert!(!undecided.is_waiting());
    }

    #[test]
    fn what_is_behind_an_undecided_sample_waits_with_it() {
        let mut undecided = UndecidedEvents::default();
        let mut events = vec![exit(1), sample(2, 9), exit(3), sample(4, 1)];
        undecided.pass(&mut events, false, &mut by_cgroup);
        assert_eq!(events, [exit(1)]);
        let mut events = vec![sample(5, 0)];
        undecided.pass(&mut events, false, &mut by_cgroup);
        assert_eq!(events, []);
        let mut decided = |at, place: Place| match place.cgroup {
            9 => Fate::Keep,
            _ => by_cgroup(at, place),
        };
        assert_eq!(undecided.pass(&mut events, false, &mut decided), 1);
        assert_eq!(events, [sample(2, 9), exit(3), sample(5, 0)]);
    }

    #[test]
    fn at_the_end_nothing_waits() {
        let mut undecided = UndecidedEvents::default();
        let mut events = vec![sample(1, 9), exit(2)];
        assert_eq!(undecided.pass(&mut events, true, &mut by_cgroup), 1);
        assert_eq!((events.len(), lost(&events)), (2, 1));
        assert!(!undecided.is_waiting());
    }

    #[test]
    fn too_many_do_not_wait() {
        let mut undecided = UndecidedEvents::default();
        let mut events = vec![sample(1, 9)];
        events.extend((2..=MAX_WAITING as u64).map(exit));
        events.push(sample(MAX_WAITING as u64 + 1, 9));
        events.push(exit(MAX_WAITING as u64 + 2));
        undecided.pass(&mut events, false, &mut by_cgroup);
        // The first one had to go, and what was behind it goes on as far as the next one.
        assert_eq!((events.len(), lost(&events)), (MAX_WAITING, 1));
        assert_eq!(undecided.waiting.len(), 2);
    }

    proptest! {
        /// Whatever is decided when: all events come out once, in order, but for samples that are
        /// not wanted; what is lost is counted; nothing waits while nothing is undecided.
        #[test]
        fn order_and_number_are_kept(
            batches in prop::collection::vec(prop::collection::vec(0u64..8, 0..20), 1..20),
            verdicts in prop::collection::vec((0usize..20, 0u8..3), 8),
        ) {
            let decided: Rc<RefCell<FxHashMap<u64, Fate>>> = Rc::default();
            let known = decided.clone();
            let mut fate = move |_: Timestamp, place: Place| match place.cgroup {
                0 => Fate::Keep,
                cgroup => known.borrow().get(&cgroup).copied().unwrap_or(Fate::Wait),
            };
            let (mut undecided, mut out, mut all) = (UndecidedEvents::default(), Vec::new(), Vec::new());
            let mut taken_out = 0;
            let count = batches.len();
            for (turn, batch) in batches.into_iter().enumerate() {
                let at = |index: usize| (turn * 100 + index) as u64;
                let mut events: Vec<_> = batch
                    .into_iter()
                    .enumerate()
                    .map(|(index, kind)| match kind {
                        7 => exit(at(index)),
                        cgroup => sample(at(index), cgroup),
                    })
                    .collect();
                all.extend(events.iter().cloned());
                for (cgroup, &(when, fate)) in verdicts.iter().enumerate() {
                    if when == turn {
                        let fate = [Fate::Keep, Fate::Drop, Fate::Lose][usize::from(fate)];
                        decided.borrow_mut().insert(cgroup as u64, fate);
                    }
                }
                let last = turn + 1 == count;
                taken_out += undecided.pass(&mut events, last, &mut fate);
                let waits = undecided.waiting.front().is_some_and(|event| match &event.body {
                    RawBody::Sample(_) => Place::of(event)
                        .is_some_and(|place| fate(event.at, place) == Fate::Wait),
                    _ => false,
                });
                prop_assert_eq!(waits, undecided.is_waiting());
                out.append(&mut events);
            }
            prop_assert!(!undecided.is_waiting());
            prop_assert!(out.is_sorted_by_key(|event| event.at));
            let lost = lost(&out);
            out.retain(|event| !matches!(event.body, RawBody::Lost(_)));
            let mut dropped = 0;
            all.retain(|event| match &event.body {
                RawBody::Sample(sample) => match fate(event.at, Place {
                    cgroup: sample.cgroup,
                    undecided: sample.undecided,
                }) {
                    Fate::Keep => true,
                    Fate::Drop => {
                        dropped += 1;
                        false
                    }
                    Fate::Lose | Fate::Wait => false,
                },
                _ => true,
            });
            prop_assert_eq!(out, all);
            prop_assert_eq!(taken_out, dropped + lost);
        }
    }
}
