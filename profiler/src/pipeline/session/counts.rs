//! What a session has counted: what was taken in, and what did not come through.
//!
//! What does not belong here: the kernel's and the resolver's own counters.

use profiler_model::{Batch, Event, LostReason, StackEnds};

/// Counts of one session.
#[derive(Clone, Debug, Default)]
pub(in crate::pipeline) struct Counts {
    /// Samples taken in.
    pub(in crate::pipeline) samples: u64,
    /// Samples of this process among them.
    pub(in crate::pipeline) own_samples: u64,
    /// Calls taken in: entries and exits.
    pub(in crate::pipeline) calls: u64,
    /// Events that batches said were lost.
    pub(in crate::pipeline) lost: u64,
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
                // Calls that had begun before they were traced are no loss.
                Event::Lost(lost) if lost.reason != LostReason::Unmatched => {
                    self.lost += lost.count;
                }
                Event::Sample(sample) => self.stacks.count_user(sample),
                _ => {}
            }
        }
    }
}
