//! Waits at the borders between parts of a recording that are to stand alone: files of a rotation, parts of a ring,
//! what is written out while the recording goes on.
//!
//! At a cut, all is told that was waited until then; the kernel side tells it again, whole, in its time. In: the events of
//! a session, in order. Out: the same, each wait and each total with the part that was not told before the last cut; where a
//! wait was over before it could be told, the part before the cut besides. So a part has the times that lie in it, and all parts
//! together have those of one recording. Times are nanoseconds of CLOCK_MONOTONIC.
//!
//! What does not belong here: when parts end (`capture`), and how the parts of a wait are read as one (there too).

use std::time::{Duration, Instant};

use profiler_model::order::SLACK_NS;
use profiler_model::raw::{RawBody, RawEvent, RawWait, RawWaits};
use profiler_model::{Pid, Tid, Timestamp};
use rustc_hash::FxHashMap;

/// What happened around a cut is held back so long for the names of what goes on: they are in the part that ends, or nowhere in it.
const PATIENCE: Duration = Duration::from_secs(2);

/// A thread by the ids that the kernel side names it by.
type Ids = (Pid, Tid);

/// The last cut, and the one that is being made.
#[derive(Default)]
pub(super) struct Cuts {
    at: Timestamp,
    /// Totals that were told at the last cut, and that the kernel side has not told since.
    ahead: FxHashMap<Ids, RawWaits>,
    pending: Option<Pending>,
}

/// A cut whose time has not come to be passed on.
struct Pending {
    cut: Cut,
    /// When it had been read what goes on: what was not told had ended by then.
    read: Timestamp,
    /// Until when names are waited for that it needs.
    names_until: Instant,
    /// The waits that were told, by when they began.
    told: FxHashMap<Ids, u64>,
}

/// A cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cut {
    /// What happened at this time is before it.
    pub(super) at: Timestamp,
    /// What it is between.
    pub(super) border: Border,
}

/// What a cut is between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Border {
    /// The time in which all was made ready, of which no wait is wanted, and what is recorded.
    Beginning,
    /// What stands alone, and what follows in the same epoch.
    Part,
    /// Two epochs.
    Epoch,
}

impl Cuts {
    /// Whether a cut is being made.
    pub(super) fn is_pending(&self) -> bool {
        self.pending.is_some()
    }

    /// Begins one: what was told of waits up to then, and when all of it had been read.
    pub(super) fn begin(&mut self, cut: Cut, told: &[RawEvent], read: Timestamp) {
        let waits = told.iter().filter_map(|event| match &event.body {
            RawBody::Wait(wait) => Some((ids_of(wait), wait.record.from_ns)),
            _ => None,
        });
        self.pending = Some(Pending {
            cut,
            read,
            names_until: match cut.border {
                Border::Beginning => Instant::now(),
                Border::Part | Border::Epoch => Instant::now() + PATIENCE,
            },
            told: waits.collect(),
        });
    }

    /// Whether events up to that time are not to be released yet, because not all is there that a cut needs: that names are missing
    /// `awaits_names` says. When it is does not depend on that.
    pub(super) fn holds(&self, until: Timestamp, awaits_names: impl FnOnce() -> bool) -> bool {
        self.pending.as_ref().is_some_and(|pending| {
            let is_read = until.0.saturating_sub(SLACK_NS) > pending.read.0;
            !is_read || Instant::now() < pending.names_until && awaits_names()
        })
    }

    /// Takes what was released. If the cut that was being made is among it: that cut, and how many events are before it.
    pub(super) fn apply(&mut self, released: &mut Vec<RawEvent>) -> Option<(Cut, usize)> {
        let Some(Pending { cut, told, .. }) = self.pending.take() else {
            released.retain_mut(|event| self.rest(event));
            return None;
        };
        let mut behind = released.split_off(released.partition_point(|event| event.at <= cut.at));
        let mut ahead = FxHashMap::default();
        released.retain_mut(|event| {
            if let RawBody::Waits(totals) = &event.body
                && event.at == cut.at
            {
                ahead.insert((totals.pid, totals.tid), **totals);
            }
            self.rest(event)
        });
        for wait in behind
            .iter()
            .filter_map(|event| untold(event, cut.at, &told))
        {
            let totals = totals_of(&wait, cut.at);
            add(ahead.entry(ids_of(&wait)), &totals);
            for body in [
                RawBody::Wait(Box::new(wait)),
                RawBody::Waits(Box::new(totals)),
            ] {
                let mut event = RawEvent {
                    at: cut.at,
                    cpu: profiler_model::Cpu(0),
                    body,
                };
                if cut.border != Border::Beginning && self.rest(&mut event) {
                    released.push(event);
                }
            }
        }
        if cut.border == Border::Beginning {
            let is_wait = |body: &RawBody| matches!(body, RawBody::Wait(_) | RawBody::Waits(_));
            released.retain(|event| !is_wait(&event.body));
        }
        (self.at, self.ahead) = (cut.at, ahead);
        behind.retain_mut(|event| self.rest(event));
        let before = released.len();
        released.append(&mut behind);
        Some((cut, before))
    }

    /// Leaves of an event what was not told before the last cut; false: nothing.
    fn rest(&mut self, event: &mut RawEvent) -> bool {
        match &mut event.body {
            RawBody::Wait(wait) if event.at > self.at => {
                let record = &mut wait.record;
                record.from_ns = record.from_ns.max(self.at.0);
                if record.woken_ns != 0 {
                    record.woken_ns = record.woken_ns.max(self.at.0);
                }
                true
            }
            RawBody::Waits(totals) => {
                totals.from = totals.from.max(self.at);
                self.ahead
                    .get_mut(&(totals.pid, totals.tid))
                    .is_none_or(|ahead| take_off(totals, ahead))
            }
            _ => true,
        }
    }
}

fn ids_of(wait: &RawWait) -> Ids {
    (Pid(wait.record.tgid), Tid(wait.record.tid))
}

/// The part before a cut of a wait that had ended when it was read what goes on.
fn untold(event: &RawEvent, cut: Timestamp, told: &FxHashMap<Ids, u64>) -> Option<RawWait> {
    let RawBody::Wait(wait) = &event.body else {
        return None;
    };
    let from_ns = wait.record.from_ns;
    if from_ns >= cut.0 || told.get(&ids_of(wait)) == Some(&from_ns) {
        return None;
    }
    let mut wait = (**wait).clone();
    let record = &mut wait.record;
    record.at_ns = cut.0;
    if record.woken_ns > cut.0 {
        (record.woken_ns, record.waker_tgid, record.waker_tid) = (0, 0, 0);
    }
    wait.open = true;
    Some(wait)
}

/// What such a part adds to the totals.
fn totals_of(wait: &RawWait, cut: Timestamp) -> RawWaits {
    let record = &wait.record;
    let ns = cut.0.saturating_sub(record.from_ns);
    let is_preempted = record.state == profiler_common::sched::STATE_PREEMPTED;
    let mut totals = RawWaits {
        pid: Pid(record.tgid),
        tid: Tid(record.tid),
        cgroup: record.cgroup,
        undecided: wait.undecided,
        from: Timestamp(record.from_ns),
        count: [0; 4],
        ns: [0; 4],
        runnable_ns: match record.woken_ns {
            _ if is_preempted => ns,
            0 => 0,
            woken_ns => cut.0.saturating_sub(woken_ns),
        },
    };
    if let Some(of_state) = totals.ns.get_mut(record.state as usize) {
        *of_state = ns;
    }
    totals
}

type Entry<'a> = std::collections::hash_map::Entry<'a, Ids, RawWaits>;

fn add(ahead: Entry<'_>, more: &RawWaits) {
    ahead
        .and_modify(|known| {
            let sums = known.ns.iter_mut().zip(more.ns);
            sums.for_each(|(sum, more)| *sum = sum.saturating_add(more));
            known.runnable_ns = known.runnable_ns.saturating_add(more.runnable_ns);
        })
        .or_insert(*more);
}

/// Takes off what was told ahead; what is more than there is stays to be taken off. False: nothing is left to tell.
fn take_off(totals: &mut RawWaits, ahead: &mut RawWaits) -> bool {
    let here = totals.count.iter_mut().chain(&mut totals.ns);
    let here = here.chain([&mut totals.runnable_ns]);
    let told = ahead.count.iter_mut().chain(&mut ahead.ns);
    let told = told.chain([&mut ahead.runnable_ns]);
    let mut is_left = false;
    for (here, told) in here.zip(told) {
        let both = (*here).min(*told);
        (*here, *told) = (*here - both, *told - both);
        is_left |= *here > 0;
    }
    is_left
}

#[cfg(test)]
mod tests {
    use super::*;
    use profiler_common::sched::{STATE_SLEEPING, WaitRecord};
    use profiler_common::{COMM_LEN, KIND_WAIT, RECORD_VERSION, RecordHead};
    use profiler_model::Cpu;

    const BEGINNING: u64 = 500;
    const CUT: u64 = 1_000;

    fn event(at: u64, body: RawBody) -> RawEvent {
        let (at, cpu) = (Timestamp(at), Cpu(0));
        RawEvent { at, cpu, body }
    }

    fn wait(tid: u32, from_ns: u64, at_ns: u64, woken_ns: u64) -> RawEvent {
        let record = WaitRecord {
            head: RecordHead {
                len: size_of::<WaitRecord>() as u32,
                kind: KIND_WAIT,
                version: RECORD_VERSION,
            },
            at_ns,
            from_ns,
            woken_ns,
            key: 7,
            cgroup: 0,
            tgid: 1,
            tid,
            waker_tgid: 1,
            waker_tid: 2,
            cpu: 0,
            weight: 1,
            state: STATE_SLEEPING,
            flags: 0,
            comm: [0; COMM_LEN],
        };
        let wait = RawWait {
            record,
            undecided: false,
            open: woken_ns == 0,
        };
        event(at_ns, RawBody::Wait(Box::new(wait)))
    }

    fn totals(tid: u32, from: u64, at: u64, count: u64, ns: u64) -> RawEvent {
        let mut totals = RawWaits {
            pid: Pid(1),
            tid: Tid(tid),
            cgroup: 0,
            undecided: false,
            from: Timestamp(from),
            count: [0; 4],
            ns: [0; 4],
            runnable_ns: 0,
        };
        totals.count[STATE_SLEEPING as usize] = count;
        totals.ns[STATE_SLEEPING as usize] = ns;
        event(at, RawBody::Waits(Box::new(totals)))
    }

    /// Of each wait its thread, when it began and ended, when it was made runnable; of totals their thread, number and time.
    fn seen(events: &[RawEvent]) -> Vec<(&'static str, u32, u64, u64, u64)> {
        let seen = events.iter().map(|event| match &event.body {
            RawBody::Wait(wait) => {
                let record = &wait.record;
                (
                    "wait",
                    record.tid,
                    record.from_ns,
                    event.at.0,
                    record.woken_ns,
                )
            }
            RawBody::Waits(totals) => {
                let (count, ns) = (totals.count[1], totals.ns[1]);
                ("totals", totals.tid.0, totals.from.0, count, ns)
            }
            other => panic!("{other:?}"),
        });
        seen.collect()
    }

    fn cut_at(
        cuts: &mut Cuts,
        at: u64,
        told: Vec<RawEvent>,
        later: Vec<RawEvent>,
    ) -> [Vec<RawEvent>; 2] {
        let border = match at {
            BEGINNING => Border::Beginning,
            _ => Border::Epoch,
        };
        let cut = Cut {
            at: Timestamp(at),
            border,
        };
        cuts.begin(cut, &told, Timestamp(at + 10));
        let holds = |until, names| cuts.holds(Timestamp(until + SLACK_NS), || names);
        assert!(cuts.is_pending() && holds(at + 10, false));
        // Before the beginning nothing is wanted that has names.
        assert_eq!(holds(at + 11, true), at != BEGINNING);
        assert!(!holds(at + 11, false));
        let mut events = told;
        events.extend(later);
        let (applied, before) = cuts.apply(&mut events).unwrap();
        assert_eq!(applied, cut);
        let behind = events.split_off(before);
        [events, behind]
    }

    #[test]
    fn a_wait_is_told_up_to_a_cut_and_from_then_on() {
        let mut cuts = Cuts::default();
        let told = vec![wait(5, 100, CUT, 0), totals(5, 50, CUT, 2, 920)];
        let [before, behind] = cut_at(&mut cuts, CUT, told, vec![]);
        assert_eq!(
            seen(&before),
            [("wait", 5, 100, CUT, 0), ("totals", 5, 50, 2, 920)]
        );
        assert!(behind.is_empty());
        // It goes on beyond the next one, and ends: the kernel side tells all of it.
        let told = vec![wait(5, 100, 2_000, 0), totals(5, 50, 2_000, 2, 1_920)];
        let [before, _] = cut_at(&mut cuts, 2_000, told, vec![]);
        assert_eq!(
            seen(&before),
            [("wait", 5, CUT, 2_000, 0), ("totals", 5, CUT, 0, 1_000)]
        );
        let mut rest = vec![
            wait(5, 100, 2_500, 2_400),
            totals(5, 50, 2_500, 3, 2_420),
            totals(5, 2_500, 2_600, 1, 30),
        ];
        assert_eq!(cuts.apply(&mut rest), None);
        assert_eq!(
            seen(&rest),
            [
                ("wait", 5, 2_000, 2_500, 2_400),
                ("totals", 5, 2_000, 1, 500),
                ("totals", 5, 2_500, 1, 30)
            ]
        );
    }

    #[test]
    fn before_the_beginning_there_are_no_waits() {
        let mut cuts = Cuts::default();
        let told = vec![
            wait(5, 100, BEGINNING, 0),
            totals(5, 50, BEGINNING, 2, 420),
            wait(6, 300, BEGINNING, 0),
        ];
        // One that had ended when it was read what goes on.
        let later = vec![wait(7, 200, BEGINNING + 5, BEGINNING + 2)];
        let [before, behind] = cut_at(&mut cuts, BEGINNING, told, later);
        assert_eq!(seen(&before), []);
        assert_eq!(
            seen(&behind),
            [("wait", 7, BEGINNING, BEGINNING + 5, BEGINNING + 2)]
        );
        let mut rest = vec![
            wait(5, 100, CUT, 900),
            wait(6, 300, CUT, 0),
            totals(5, 50, CUT, 3, 920),
            totals(7, 0, CUT, 1, 305),
        ];
        assert_eq!(cuts.apply(&mut rest), None);
        assert_eq!(
            seen(&rest),
            [
                ("wait", 5, BEGINNING, CUT, 900),
                ("wait", 6, BEGINNING, CUT, 0),
                ("totals", 5, BEGINNING, 1, 500),
                ("totals", 7, BEGINNING, 1, 5)
            ]
        );
    }

    #[test]
    fn what_ended_before_it_could_be_told_is_told_in_parts() {
        let mut cuts = Cuts::default();
        // One that was runnable at the cut, and one that was not; one that began behind it.
        let later = vec![
            wait(5, 100, CUT + 5, CUT - 20),
            wait(6, 200, CUT + 7, CUT + 3),
            wait(7, CUT + 1, CUT + 8, CUT + 2),
            totals(6, 0, CUT + 7, 1, 807),
        ];
        let [before, behind] = cut_at(&mut cuts, CUT, vec![], later);
        assert_eq!(
            seen(&before),
            [
                ("wait", 5, 100, CUT, CUT - 20),
                ("totals", 5, 100, 0, 900),
                ("wait", 6, 200, CUT, 0),
                ("totals", 6, 200, 0, 800)
            ]
        );
        assert_eq!(
            seen(&behind),
            [
                ("wait", 5, CUT, CUT + 5, CUT),
                ("wait", 6, CUT, CUT + 7, CUT + 3),
                ("wait", 7, CUT + 1, CUT + 8, CUT + 2),
                ("totals", 6, CUT, 1, 7)
            ]
        );
    }

    #[test]
    fn what_was_told_too_much_is_taken_off_later() {
        let mut cuts = Cuts::default();
        // It ended while it was read, and was counted twice.
        cut_at(&mut cuts, CUT, vec![totals(5, 0, CUT, 1, 1_800)], vec![]);
        let mut rest = vec![
            totals(5, 0, CUT + 5, 1, 900),
            totals(5, CUT, 2_500, 4, 1_000),
        ];
        cuts.apply(&mut rest);
        assert_eq!(seen(&rest), [("totals", 5, CUT, 4, 100)]);
    }
}
