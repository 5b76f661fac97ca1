//! What a session has counted: what was taken in, and what did not come through.
//!
//! What does not belong here: the kernel's and the resolver's own counters.

use crate::pipeline::tracer::TraceSummary;
use profiler_model::{Batch, CallEdge, Event, ExitKind, LostReason, StackEnds};
use profiler_report::derive::Losses;

/// Counts of one session.
#[derive(Clone, Debug, Default)]
pub(in crate::pipeline) struct Counts {
    /// Samples taken in.
    pub(in crate::pipeline) samples: u64,
    /// Samples of this process among them.
    pub(in crate::pipeline) own_samples: u64,
    /// Samples of what ran, handed over: no waits.
    pub(in crate::pipeline) ticked: u64,
    /// Calls taken in: entries and exits.
    pub(in crate::pipeline) calls: u64,
    /// Calls handed over that were not watched to their end.
    pub(in crate::pipeline) unwatched: u64,
    /// What batches said was lost.
    pub(in crate::pipeline) lost: Losses,
    /// Events that the consumer dropped.
    pub(in crate::pipeline) dropped: u64,
    /// Why user stacks ended.
    pub(in crate::pipeline) stacks: StackEnds,
}

impl Counts {
    /// Counts what is in a batch before it is handed over.
    pub(super) fn batch(&mut self, batch: &Batch) {
        for event in &batch.events {
            match event {
                Event::Lost(lost) => self.lost.add(lost),
                Event::Sample(sample) => {
                    self.ticked += u64::from(sample.wait.is_none());
                    self.stacks.count(sample.user_end);
                }
                Event::Call(call) => {
                    let exit = match &call.edge {
                        CallEdge::Exit(exit) => Some(exit),
                        CallEdge::Enter(_) | CallEdge::Hit(_) => None,
                    };
                    self.unwatched +=
                        u64::from(exit.is_some_and(|exit| exit.how == ExitKind::Unwatched));
                }
                _ => {}
            }
        }
    }

    /// Adds to what became of the tracing what batches said of calls.
    pub(in crate::pipeline) fn add_to(&self, trace: &mut TraceSummary) {
        trace.without_end = self.unwatched;
        trace.without_entry = self.lost.of(LostReason::Unmatched);
    }
}
