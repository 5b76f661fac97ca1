//! Merges the events of all buffers into one sequence by time.
//!
//! Each per-processor buffer is (nearly) sorted by itself; a thread that migrates, a wake-up and its
//! switch-in, or a sample and the mapping that explains it come through different ones. The caller
//! takes a time t0, drains *all* buffers, and releases what is older than t0: whatever happened
//! before t0 is in by then, except for records that a program was still writing. [`SLACK_NS`] covers
//! those.
//!
//! In: raw events in any order. Out: raw events with ascending times. Clock: CLOCK_MONOTONIC.
//! Nothing here looks into events beyond their time and kind.

use crate::raw::{RawBody, RawEvent};
use crate::{Cpu, Lost, LostReason, Timestamp};

/// A record's time is taken when its program starts and the record is visible when it ends. A
/// virtual processor can be descheduled in between, so this is far above a program's run time; all
/// it costs is that events are passed on that much later.
pub const SLACK_NS: u64 = 20_000_000;

/// The merge. Memory is bounded by `capacity` pending events.
#[derive(Debug)]
pub struct Order {
    pending: Vec<RawEvent>,
    capacity: usize,
    released: Timestamp,
    late: Vec<Late>,
}

#[derive(Debug)]
struct Late {
    cpu: Cpu,
    from: Timestamp,
    to: Timestamp,
    count: u64,
}

impl Order {
    /// An empty merge that holds at most `capacity` events back.
    pub fn new(capacity: usize) -> Order {
        Order {
            pending: Vec::new(),
            capacity,
            released: Timestamp(0),
            late: Vec::new(),
        }
    }

    /// Takes what was drained; empties `events`.
    ///
    /// A sample or call older than what was already released is dropped and counted. Process events
    /// are never dropped, since later names depend on them: a late one is moved to the present, as
    /// are counts.
    pub fn push(&mut self, events: &mut Vec<RawEvent>) {
        self.pending.reserve(events.len());
        for mut event in events.drain(..) {
            if event.at < self.released {
                if matches!(event.body, RawBody::Sample(_) | RawBody::Call(_)) {
                    self.count_late(&event);
                    continue;
                }
                event.at = self.released;
            }
            self.pending.push(event);
        }
        // Stable: what one buffer gave with equal times stays in its order, as the entry and the exit
        // of a short call.
        self.pending
            .sort_by_key(|event| (event.at, rank(&event.body)));
    }

    /// Appends to `out` all events before `until` less [`SLACK_NS`], in order. `until` is a time
    /// taken before the last drain.
    pub fn release(&mut self, until: Timestamp, out: &mut Vec<RawEvent>) {
        self.release_before(Timestamp(until.0.saturating_sub(SLACK_NS)), out);
    }

    /// Appends all that is left, in order: the sources have been closed.
    pub fn finish(&mut self, out: &mut Vec<RawEvent>) {
        self.release_before(Timestamp(u64::MAX), out);
    }

    /// Events held back.
    pub fn pending(&self) -> usize {
        self.pending.len()
    }

    fn release_before(&mut self, limit: Timestamp, out: &mut Vec<RawEvent>) {
        let due = self.pending.partition_point(|event| event.at < limit);
        let excess = self.pending.len().saturating_sub(self.capacity);
        let first = out.len();
        out.extend(self.pending.drain(..due.max(excess)));
        if let Some(last) = out[first..].last() {
            self.released = self.released.max(last.at);
        }
        // What is due is final even where nothing was: an older event would be late.
        if limit.0 != u64::MAX {
            self.released = self.released.max(limit);
        }
        let released = self.released;
        out.extend(self.late.drain(..).map(|late| RawEvent {
            at: released,
            cpu: late.cpu,
            body: RawBody::Lost(Lost {
                cpu: Some(late.cpu),
                from: late.from,
                to: late.to,
                count: late.count,
                reason: LostReason::Late,
            }),
        }));
    }

    fn count_late(&mut self, event: &RawEvent) {
        match self.late.iter_mut().find(|late| late.cpu == event.cpu) {
            Some(late) => {
                late.from = late.from.min(event.at);
                late.to = late.to.max(event.at);
                late.count += 1;
            }
            None => self.late.push(Late {
                cpu: event.cpu,
                from: event.at,
                to: event.at,
                count: 1,
            }),
        }
    }
}

/// Of events with the same time, causes come first: the making of a cgroup before a process is made
/// in it, a mapping before the sample in it, a sample before the exit of its thread.
fn rank(body: &RawBody) -> u8 {
    match body {
        RawBody::Cgroup(cgroup) if !cgroup.removed => 0,
        RawBody::Fork { .. } => 1,
        RawBody::Comm { .. } => 2,
        RawBody::Mmap(_) => 3,
        RawBody::WaitStack(_) => 3,
        RawBody::Sample(_) | RawBody::Call(_) | RawBody::Wait(_) => 4,
        RawBody::Mark(_) | RawBody::Clock { .. } => 5,
        RawBody::Lost(_) | RawBody::CallCount(_) | RawBody::Gap(_) | RawBody::Waits(_) => 6,
        RawBody::Exit { .. } => 7,
        // Nobody is in it any more.
        RawBody::Cgroup(_) => 8,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::raw::{CgroupVerdict, RawCall, RawCgroup, RawEdge, RawSample};
    use crate::{Pid, Tid};

    fn sample(at: u64, cpu: u32) -> RawEvent {
        let body = RawBody::Sample(Box::new(RawSample::new(Pid(1), Tid(1))));
        RawEvent {
            at: Timestamp(at),
            cpu: Cpu(cpu),
            body,
        }
    }

    fn exit(at: u64, cpu: u32) -> RawEvent {
        let body = RawBody::Exit {
            pid: Pid(1),
            tid: Tid(1),
        };
        RawEvent {
            at: Timestamp(at),
            cpu: Cpu(cpu),
            body,
        }
    }

    fn fork(at: u64, cpu: u32) -> RawEvent {
        let (pid, tid) = (Pid(2), Tid(2));
        let body = RawBody::Fork {
            pid,
            tid,
            parent_pid: Pid(1),
            parent_tid: Tid(1),
        };
        RawEvent {
            at: Timestamp(at),
            cpu: Cpu(cpu),
            body,
        }
    }

    fn lost_late(events: &[RawEvent]) -> u64 {
        let count = |event: &RawEvent| match &event.body {
            RawBody::Lost(lost) if lost.reason == LostReason::Late => lost.count,
            _ => 0,
        };
        events.iter().map(count).sum()
    }

    #[test]
    fn equal_times_come_out_in_causal_order() {
        let mut order = Order::new(100);
        order.push(&mut vec![exit(5, 0), sample(5, 1), fork(5, 2)]);
        let mut out = Vec::new();
        order.finish(&mut out);
        assert_eq!(out, [fork(5, 2), sample(5, 1), exit(5, 0)]);
    }

    #[test]
    fn nothing_younger_than_the_slack_is_released() {
        let mut order = Order::new(100);
        order.push(&mut vec![sample(SLACK_NS, 0), sample(SLACK_NS * 2, 0)]);
        let mut out = Vec::new();
        order.release(Timestamp(SLACK_NS * 2 + 1), &mut out);
        assert_eq!(out, [sample(SLACK_NS, 0)]);
        assert_eq!(order.pending(), 1);
    }

    #[test]
    fn late_samples_are_counted_and_late_process_events_kept() {
        let mut order = Order::new(100);
        let mut out = Vec::new();
        order.release(Timestamp(SLACK_NS + 1000), &mut out);
        order.push(&mut vec![sample(10, 3), sample(20, 3), fork(30, 1)]);
        order.finish(&mut out);
        assert_eq!(lost_late(&out), 2);
        let fork = out
            .iter()
            .find(|event| matches!(event.body, RawBody::Fork { .. }))
            .unwrap();
        assert_eq!(fork.at, Timestamp(1000));
    }

    #[test]
    fn memory_is_bounded() {
        let mut order = Order::new(10);
        let mut out = Vec::new();
        order.push(&mut (0..100).map(|at| sample(SLACK_NS + at, 0)).collect());
        order.release(Timestamp(1), &mut out);
        assert_eq!((order.pending(), out.len()), (10, 90));
    }

    fn call(at: u64, cpu: u32, edge: RawEdge, sp: u64) -> RawEvent {
        let body = RawBody::Call(RawCall {
            pid: Pid(1),
            tid: Tid(1),
            probe: 0,
            site: 0,
            edge,
            after_loss: false,
            stack: 0,
            sp,
            caller: 0,
            began: Timestamp(0),
            values: None,
        });
        RawEvent {
            at: Timestamp(at),
            cpu: Cpu(cpu),
            body,
        }
    }

    #[test]
    fn calls_of_one_instant_stay_as_their_buffer_gave_them() {
        let mut order = Order::new(100);
        let calls = [
            call(5, 0, RawEdge::Enter, 100),
            call(5, 0, RawEdge::Enter, 90),
            call(5, 0, RawEdge::Exit, 90),
            call(5, 0, RawEdge::Exit, 100),
        ];
        order.push(&mut vec![exit(5, 0), call(4, 1, RawEdge::Hit, 1)]);
        order.push(&mut calls.to_vec());
        let mut out = Vec::new();
        order.finish(&mut out);
        assert_eq!(out[1..5], calls);
        assert_eq!(out[5], exit(5, 0));
    }

    #[test]
    fn late_calls_are_counted() {
        let mut order = Order::new(100);
        let mut out = Vec::new();
        order.release(Timestamp(SLACK_NS + 1000), &mut out);
        order.push(&mut vec![call(10, 0, RawEdge::Enter, 1), sample(11, 0)]);
        order.finish(&mut out);
        assert_eq!((lost_late(&out), out.len()), (2, 1));
    }

    #[test]
    fn a_cgroup_is_made_before_and_removed_after_what_happens_in_it() {
        let cgroup = |removed| RawEvent {
            at: Timestamp(5),
            cpu: Cpu(1),
            body: RawBody::Cgroup(Box::new(RawCgroup {
                id: 7,
                path: "/a".into(),
                removed,
                verdict: CgroupVerdict::Wanted,
            })),
        };
        let mut order = Order::new(100);
        let (made, removed) = (cgroup(false), cgroup(true));
        order.push(&mut vec![removed.clone(), exit(5, 0), sample(5, 0)]);
        order.push(&mut vec![fork(5, 0), made.clone()]);
        let mut out = Vec::new();
        order.finish(&mut out);
        assert_eq!(out, [made, fork(5, 0), sample(5, 0), exit(5, 0), removed]);
    }

    proptest! {
        /// Events of several buffers, cut into drains at random, shuffled within each drain: all
        /// come out, sorted, once. No drain misses an event older than its t0 by the slack.
        #[test]
        fn any_interleaving_comes_out_sorted(
            mut times in proptest::collection::vec((0u64..1_000_000_000, 0u32..4), 0..300),
            drains in 1usize..20,
            seed in any::<u64>(),
        ) {
            let mut order = Order::new(10_000);
            let mut out = Vec::new();
            let step = 1_000_000_000 / drains as u64 + 1;
            for drain in 1..=drains as u64 {
                let t0 = drain * step;
                // A record may become visible up to the slack after its time.
                let (due, rest): (Vec<_>, Vec<_>) = times.iter().partition(|(at, cpu)| {
                    let delay = (at ^ seed).wrapping_mul(u64::from(*cpu) + 7) % SLACK_NS;
                    at + delay < t0
                });
                times = rest;
                let mut events: Vec<_> = due.iter().map(|&(at, cpu)| sample(at, cpu)).collect();
                let len = events.len().max(1);
                events.rotate_left(seed as usize % len);
                order.push(&mut events);
                order.release(Timestamp(t0), &mut out);
            }
            let left = times.len();
            order.push(&mut times.iter().map(|&(at, cpu)| sample(at, cpu)).collect());
            order.finish(&mut out);
            prop_assert!(out.windows(2).all(|pair| pair[0].at <= pair[1].at));
            prop_assert_eq!(lost_late(&out), 0, "{} were left", left);
        }
    }
}
