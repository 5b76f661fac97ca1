//! Calls of traced functions: records of probes -> events.
//!
//! In: [`RawBody::Call`](crate::model::raw::RawBody::Call) and its kin, ordered by time. Out:
//! [`Call`](crate::model::Call)s, each exit paired with its entry. Times are nanoseconds of
//! CLOCK_MONOTONIC.
//!
//! What does not belong here: what to trace (`trace`), how records come (`probe`).

mod probe;

pub use probe::{ExceptionName, Role, TracedProbe};

use super::Resolver;
use crate::model::raw::{Comm, RawCallCount, RawGap};
use crate::model::{CallCount, Event, Gap, Pid, ProcessId, Tid, Timestamp};
use probe::Probes;

/// What the resolver knows of traced functions.
#[derive(Debug, Default)]
pub(super) struct Calls {
    probes: Probes,
}

impl Resolver {
    /// What the kernel counted of a probe.
    pub(super) fn call_count(&mut self, at: Timestamp, count: RawCallCount) {
        if let Some(function) = self.traced_function(count.probe) {
            self.push(Event::CallCount(CallCount {
                function,
                from: count.from,
                to: at,
                entries: count.entries,
                exits: count.exits,
                lost: count.lost,
                left_out: count.left_out,
            }));
        }
    }

    /// A time in which calls are missing.
    pub(super) fn gap(&mut self, at: Timestamp, gap: RawGap) {
        let function = gap.probe.and_then(|probe| self.traced_function(probe));
        let process = gap.pid.and_then(|pid| self.process_of(pid, at));
        // Should either not be known, a gap of all would say too much.
        if function.is_some() == gap.probe.is_some() && process.is_some() == gap.pid.is_some() {
            self.push(Event::Gap(Gap {
                from: gap.from,
                to: at,
                function,
                process,
                reason: gap.reason,
            }));
        }
    }

    fn process_of(&mut self, pid: Pid, at: Timestamp) -> Option<ProcessId> {
        self.meet(pid, Tid(pid.0), Comm::default(), at);
        self.processes.announce(pid, &mut self.epoch)
    }
}
