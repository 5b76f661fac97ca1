//! What the kernel counted of calls, told of the time that it is told for.
//!
//! The kernel counts a hit before it records it, and its counts are read while calls go on: of what was counted until then some
//! is recorded later. In: the events of a session, in order, with counts as they were read. Out: the same, where each count is of
//! the calls that were recorded until its time, and of those that are known to be missing. So a part of a recording lacks
//! no call that is in the next one, and what a recording that was cut off has told is of what it has. Sums over all parts are those of
//! the kernel. Times are nanoseconds of CLOCK_MONOTONIC.
//!
//! What does not belong here: when counts are read (`tracer`), and when parts end (`cuts`).

use profiler_model::raw::{RawBody, RawCall, RawCallCount, RawEdge, RawEvent};
use profiler_model::{Cpu, Timestamp};
use rustc_hash::FxHashMap;

/// What was counted and recorded of each probe, by its number.
#[derive(Default)]
pub(super) struct CallCounts {
    probes: Vec<Of>,
    /// The last cut: what is told later is of the time since then.
    cut: Timestamp,
}

/// Of one probe.
#[derive(Clone, Copy, Default)]
struct Of {
    entries: Sums,
    exits: Sums,
    /// Records that were lost, and calls left out by a limit: as many may be missing.
    lacks: u64,
}

/// Sums since the beginning.
#[derive(Clone, Copy, Default)]
struct Sums {
    counted: u64,
    recorded: u64,
    told: u64,
    /// Counted and not recorded, as far as that is known.
    missing: u64,
}

/// Entries and exits that were recorded.
type Recorded = [u64; 2];

impl CallCounts {
    /// Has the counts among these events tell what is in them and was before; `all` says that nothing counts any more, so that what
    /// is not recorded by then is not going to be.
    pub(super) fn tell(&mut self, events: &mut Vec<RawEvent>, all: bool) {
        events.retain_mut(|event| match &mut event.body {
            RawBody::Call(call) => {
                let recorded = recorded(call);
                if recorded != [0, 0] {
                    let of = self.of(call.probe);
                    of.entries.recorded += recorded[0];
                    of.exits.recorded += recorded[1];
                }
                true
            }
            RawBody::CallCount(count) => {
                count.from = count.from.max(self.cut);
                *count = self.of(count.probe).told(count, [0, 0], all);
                tells(count)
            }
            _ => true,
        });
    }

    /// The same where a part ends at that time. What was read for the cut is among the events behind it.
    pub(super) fn cut(
        &mut self,
        at: Timestamp,
        before: &mut Vec<RawEvent>,
        behind: &mut Vec<RawEvent>,
    ) {
        self.tell(before, false);
        let read = behind.iter().find_map(|event| match &event.body {
            RawBody::CallCount(_) => Some(event.at),
            _ => None,
        });
        let mut since: FxHashMap<u32, Recorded> = FxHashMap::default();
        let until = behind.iter_mut().take_while(|event| Some(event.at) <= read);
        for event in until {
            match &mut event.body {
                RawBody::Call(call) => {
                    let sums = since.entry(call.probe).or_default();
                    let recorded = recorded(call);
                    sums.iter_mut()
                        .zip(recorded)
                        .for_each(|(sum, more)| *sum += more);
                }
                RawBody::CallCount(count) => {
                    let later = since.get(&count.probe).copied().unwrap_or_default();
                    let from = count.from.max(self.cut);
                    let told = self.of(count.probe).told(count, later, false);
                    before.extend(event_of(RawCallCount { from, ..told }, at));
                    // What came since the cut is told with the next part.
                    *count = nothing_of(count.probe, count.from);
                }
                _ => {}
            }
        }
        let from = self.cut;
        for (probe, of) in (0..).zip(&mut self.probes) {
            // A hit may be recorded a little after it was counted.
            let told = of.told(&nothing_of(probe, from), [0, 0], false);
            before.extend(event_of(told, at));
        }
        self.cut = at;
        self.tell(behind, false);
    }

    fn of(&mut self, probe: u32) -> &mut Of {
        let index = probe as usize;
        if index >= self.probes.len() {
            self.probes.resize(index + 1, Of::default());
        }
        &mut self.probes[index]
    }
}

impl Of {
    /// What is to be told with these counts; so much is recorded later, of what had been counted when they were read.
    fn told(&mut self, count: &RawCallCount, later: Recorded, all: bool) -> RawCallCount {
        let RawCallCount {
            entries,
            exits,
            lost,
            left_out,
            ..
        } = *count;
        self.lacks = self.lacks.saturating_add(lost).saturating_add(left_out);
        let lacks = (!all).then_some(self.lacks);
        RawCallCount {
            entries: self.entries.tell(entries, later[0], lacks),
            exits: self.exits.tell(exits, later[1], lacks),
            ..*count
        }
    }
}

impl Sums {
    /// At most so much is known to be missing; none: all that is not recorded is.
    fn tell(&mut self, counted: u64, later: u64, lacks: Option<u64>) -> u64 {
        self.counted = self.counted.saturating_add(counted);
        let missing = self.counted.saturating_sub(self.recorded + later);
        self.missing = self.missing.max(missing.min(lacks.unwrap_or(missing)));
        let all = match lacks {
            None => self.counted.max(self.recorded),
            Some(_) => self.recorded.saturating_add(self.missing),
        };
        let told = all.saturating_sub(self.told);
        self.told += told;
        told
    }
}

/// Entries and exits that such a record stands for.
fn recorded(call: &RawCall) -> Recorded {
    match call.edge {
        RawEdge::Enter | RawEdge::Hit => [1, 0],
        RawEdge::Exit => [0, 1],
        RawEdge::Whole => [1, 1],
        RawEdge::Throw | RawEdge::Land | RawEdge::Jump => [0, 0],
    }
}

fn nothing_of(probe: u32, from: Timestamp) -> RawCallCount {
    RawCallCount {
        probe,
        from,
        entries: 0,
        exits: 0,
        lost: 0,
        left_out: 0,
    }
}

fn tells(count: &RawCallCount) -> bool {
    [count.entries, count.exits, count.lost, count.left_out] != [0; 4]
}

fn event_of(count: RawCallCount, at: Timestamp) -> Option<RawEvent> {
    tells(&count).then_some(RawEvent {
        at,
        cpu: Cpu(0),
        body: RawBody::CallCount(count),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use profiler_model::{Pid, Tid};

    const CUT: u64 = 1_000;

    fn event(at: u64, body: RawBody) -> RawEvent {
        let (at, cpu) = (Timestamp(at), Cpu(0));
        RawEvent { at, cpu, body }
    }

    fn call(at: u64, edge: RawEdge) -> RawEvent {
        let call = RawCall {
            pid: Pid(1),
            tid: Tid(1),
            probe: 3,
            site: 0,
            edge,
            after_loss: false,
            stack: 0,
            sp: 0,
            caller: 0,
            began: Timestamp(0),
            values: None,
        };
        event(at, RawBody::Call(call))
    }

    /// Passes, one in each nanosecond.
    fn passes(times: std::ops::Range<u64>) -> Vec<RawEvent> {
        times.map(|at| call(at, RawEdge::Hit)).collect()
    }

    fn counted(at: u64, from: u64, entries: u64, lost: u64) -> RawEvent {
        let count = RawCallCount {
            probe: 3,
            from: Timestamp(from),
            entries,
            exits: 0,
            lost,
            left_out: 0,
        };
        event(at, RawBody::CallCount(count))
    }

    /// How many calls were recorded, and of each count since when and until when it is, and how many entries and losses it has.
    fn told(events: &[RawEvent]) -> (usize, Vec<[u64; 4]>) {
        let counts = events.iter().filter_map(|event| match &event.body {
            RawBody::CallCount(it) => Some([it.from.0, event.at.0, it.entries, it.lost]),
            _ => None,
        });
        let is_call = |event: &&RawEvent| matches!(event.body, RawBody::Call(_));
        (events.iter().filter(is_call).count(), counts.collect())
    }

    #[test]
    fn a_part_lacks_no_call_that_is_in_the_next_one() {
        let mut counts = CallCounts::default();
        // What was read has 40 that are recorded later.
        let mut before = passes(0..100);
        before.push(counted(99, 0, 140, 0));
        let more = passes(100..CUT);
        before.extend(more);
        let mut behind = passes(CUT + 1..CUT + 31);
        behind.push(counted(CUT + 30, 99, 890, 0));
        behind.extend(passes(CUT + 31..CUT + 61));
        counts.cut(Timestamp(CUT), &mut before, &mut behind);
        assert_eq!(
            told(&before),
            (1_000, vec![[0, 99, 100, 0], [99, CUT, 900, 0]])
        );
        assert_eq!(told(&behind), (60, vec![[CUT, CUT + 30, 30, 0]]));
        // Nothing came since then: the rest is told at the end.
        let mut rest = vec![counted(CUT + 100, CUT + 30, 30, 0)];
        counts.tell(&mut rest, true);
        assert_eq!(told(&rest).1, [[CUT + 30, CUT + 100, 30, 0]]);
    }

    #[test]
    fn what_was_recorded_and_not_read_is_told_at_a_cut() {
        let mut counts = CallCounts::default();
        let mut events = passes(0..10);
        events.insert(6, counted(5, 0, 6, 0));
        counts.tell(&mut events, false);
        let (mut before, mut behind) = (vec![], vec![]);
        counts.cut(Timestamp(CUT), &mut before, &mut behind);
        assert_eq!(told(&before).1, [[0, CUT, 4, 0]]);
        counts.tell(&mut behind, true);
        assert_eq!(told(&behind).1, Vec::<[u64; 4]>::new());
    }

    #[test]
    fn what_is_missing_is_told_once_and_no_more_than_that() {
        let mut counts = CallCounts::default();
        // 200 were counted before the cut, of which 100 are recorded; 40 behind it, and 20 of these.
        let mut before = passes(0..100);
        let mut behind = passes(CUT + 1..CUT + 21);
        behind.push(counted(CUT + 20, 0, 240, 120));
        counts.cut(Timestamp(CUT), &mut before, &mut behind);
        // When it was missing that was counted until it was read is not known.
        assert_eq!(told(&before), (100, vec![[0, CUT, 220, 120]]));
        assert_eq!(told(&behind), (20, vec![[CUT, CUT + 20, 20, 0]]));
        let mut rest = passes(CUT + 21..CUT + 31);
        rest.push(counted(CUT + 40, CUT + 20, 15, 5));
        counts.tell(&mut rest, true);
        assert_eq!(told(&rest), (10, vec![[CUT + 20, CUT + 40, 15, 5]]));
    }

    #[test]
    fn calls_that_go_on_are_counted_when_all_is_over() {
        let mut counts = CallCounts::default();
        // Records of whole calls come when they end.
        let mut events = vec![call(1, RawEdge::Whole), counted(2, 0, 3, 0)];
        counts.tell(&mut events, false);
        assert_eq!(told(&events).1, [[0, 2, 1, 0]]);
        let mut rest = vec![counted(9, 2, 0, 0)];
        counts.tell(&mut rest, true);
        assert_eq!(told(&rest).1, [[2, 9, 2, 0]]);
    }
}
