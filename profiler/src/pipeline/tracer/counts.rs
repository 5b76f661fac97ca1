//! What the kernel counted of each probe -> raw events.
//!
//! Counts are sums over all processors since the probe was attached; events say what was added. Some of it may be recorded later:
//! a session (`session::call_counts`) tells of it what is.
//!
//! What does not belong here: what the budget makes of them (`keep`).

use super::probes::Probes;
use profiler_model::raw::{RawBody, RawCallCount, RawEvent};
use profiler_model::{Cpu, Timestamp};
use profiler_probe::Probe;
use profiler_resolve::Role;

/// How often counts are put into the recording.
const COUNTS_NS: u64 = 1_000_000_000;

/// Reads the kernel's counts.
pub(super) fn read(probes: &mut Probes, probe: &mut Probe) {
    let mut changed = Vec::new();
    probe.call_counts(&mut changed);
    for (number, counters) in changed {
        if let Some(state) = probes.get_mut(number) {
            state.counted = counters;
        }
    }
}

/// What has been put into the recording.
#[derive(Debug)]
pub(super) struct Counts {
    /// When that was.
    pub(super) told_at: Timestamp,
}

impl Counts {
    /// What was counted until now is not wanted.
    pub(super) fn begin(&mut self, probes: &mut Probes, at: Timestamp) {
        for (_, state) in probes.iter_mut() {
            (state.told, state.before) = (state.counted, state.counted);
        }
        self.told_at = at;
    }

    /// Whether it is time to tell.
    pub(super) fn are_due(&self, at: Timestamp) -> bool {
        at.since(self.told_at) >= COUNTS_NS
    }

    /// Puts what was counted since the last time into the recording; at the `end`, that nothing was as well.
    pub(super) fn tell(
        &mut self,
        probes: &mut Probes,
        at: Timestamp,
        end: bool,
        out: &mut Vec<RawEvent>,
    ) {
        for (number, state) in probes.iter_mut() {
            let counted = state.counted;
            let is_new = counted != state.told || end && counted != state.before;
            if !is_new || state.role != Role::Call {
                continue;
            }
            let told = std::mem::replace(&mut state.told, counted);
            out.push(RawEvent {
                at,
                cpu: Cpu(0),
                body: RawBody::CallCount(RawCallCount {
                    probe: number,
                    from: self.told_at,
                    entries: counted.entries.saturating_sub(told.entries),
                    exits: counted.exits.saturating_sub(told.exits),
                    lost: counted.lost.saturating_sub(told.lost),
                    left_out: counted.left_out.saturating_sub(told.left_out),
                }),
            });
        }
        self.told_at = at;
    }
}
