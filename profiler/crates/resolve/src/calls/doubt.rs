//! Times in which records of calls are known to be missing: what was open then may have been left unseen, and what is
//! entered then may be.
//!
//! Records as they are drained, those of each processor in their order, and losses -> spans between two records of one
//! processor. A thread may run on any, so a span is one of all threads. Times are nanoseconds of CLOCK_MONOTONIC.
//!
//! What does not belong here: what becomes of the calls (the parent module).

use profiler_model::raw::{RawBody, RawEvent};
use profiler_model::{Cpu, Lost, LostReason};
use rustc_hash::FxHashMap;

/// Most spans that are kept; of more, the last two are taken for one.
const MAX_SPANS: usize = 4096;

/// What is known of them.
#[derive(Debug, Default)]
pub(super) struct Doubts {
    /// When a record of each processor was seen last.
    last: FxHashMap<Cpu, u64>,
    /// Spans whose end was not reached yet, neither end included; and whether its begin was.
    spans: Vec<(u64, u64, bool)>,
}

impl Doubts {
    /// Looks at what was drained, before any of it is resolved.
    pub(super) fn notice(&mut self, drained: &[RawEvent]) {
        for event in drained {
            let RawBody::Call(call) = &event.body else {
                continue;
            };
            let last = self.last.insert(event.cpu, event.at.0);
            if call.after_loss {
                self.add(last.unwrap_or(0), event.at.0);
            }
        }
        for event in drained {
            match &event.body {
                RawBody::Lost(lost) if lost.reason == LostReason::CallRingFull => {
                    self.lost(lost, drained);
                }
                _ => {}
            }
        }
    }

    /// Some were lost, at a time that only the records around it tell.
    fn lost(&mut self, lost: &Lost, drained: &[RawEvent]) {
        let last = lost.cpu.and_then(|cpu| {
            let calls = drained.iter().rev().filter(|event| {
                event.cpu == cpu && event.at <= lost.to && matches!(event.body, RawBody::Call(_))
            });
            let here = calls.map(|event| event.at.0).next();
            here.or_else(|| self.last.get(&cpu).copied())
        });
        let from = last.map_or(lost.from.0, |last| last.max(lost.from.0));
        self.add(from, lost.to.0);
    }

    fn add(&mut self, from: u64, to: u64) {
        if from >= to {
            return;
        }
        let is_full = self.spans.len() >= MAX_SPANS;
        match self.spans.last_mut() {
            Some(last) if is_full => {
                *last = (last.0.min(from), last.1.max(to), false);
            }
            _ => self.spans.push((from, to, false)),
        }
    }

    /// Time has come to `at`. Whether records may have been lost since the last call: nobody knows what became of what
    /// is open; and whether some may be lost at this very time.
    #[inline]
    pub(super) fn come_to(&mut self, at: u64) -> (bool, bool) {
        if self.spans.is_empty() {
            return (false, false);
        }
        let (mut begun, mut within) = (false, false);
        self.spans.retain_mut(|(from, to, reached)| {
            if *from < at {
                begun |= !std::mem::replace(reached, true);
            }
            within |= *from < at && at < *to;
            at < *to
        });
        (begun, within)
    }
}
