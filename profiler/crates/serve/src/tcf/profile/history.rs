//! All samples of a recording that is there at once, so that each new configuration sees all of them.
//!
//! Samples -> counts by process, thread and stacks, with ids of the world's tables. Those begin anew
//! only if the definitions of such a recording take very much memory; what was before is counted as
//! dropped then. Bounded: samples with stacks that find no room are counted so too, by process. What
//! does not belong here: addresses, whose samples are wanted.

use rustc_hash::FxHashMap;

use crate::pace::Pace;
use crate::tcf::world::ContextKey;
use profiler_model::StackId;
use profiler_model::sorting::InOrder;

/// What equal samples of a process have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Moment {
    pub(super) thread: ContextKey,
    pub(super) kernel: Option<StackId>,
    pub(super) user: Option<StackId>,
    pub(super) pace: Pace,
    /// There were more frames of the kernel, of the program, than are recorded.
    pub(super) truncated: (bool, bool),
}

/// Samples of a process.
#[derive(Debug, Default)]
struct Past {
    counts: FxHashMap<Moment, u64>,
    dropped: u64,
}

/// All samples of a recording that is served whole.
#[derive(Debug)]
pub(super) struct History {
    processes: FxHashMap<ContextKey, Past>,
    left: usize,
    turns: u64,
}

impl History {
    /// Of so many bytes at most.
    pub(super) fn new(max_bytes: usize) -> History {
        History {
            processes: FxHashMap::default(),
            // Tables of this kind are 7/16 to 7/8 full.
            left: max_bytes / (2 * std::mem::size_of::<(Moment, u64)>()),
            turns: 0,
        }
    }

    /// Tables have begun anew so often: if that is new, ids from before mean nothing any more.
    pub(super) fn follow(&mut self, turns: u64) {
        if std::mem::replace(&mut self.turns, turns) == turns {
            return;
        }
        for past in self.processes.values_mut() {
            let counts = std::mem::take(&mut past.counts);
            self.left += counts.len();
            past.dropped += counts.into_values().sum::<u64>();
        }
    }

    /// One more sample.
    pub(super) fn add(&mut self, process: ContextKey, moment: Moment) {
        let past = self.processes.entry(process).or_default();
        if let Some(count) = past.counts.get_mut(&moment) {
            *count += 1;
        } else if self.left > 0 {
            self.left -= 1;
            past.counts.insert(moment, 1);
        } else {
            past.dropped += 1;
        }
    }

    /// Samples of a process, the most frequent first, and how many found no room.
    pub(super) fn of(&self, process: ContextKey) -> (Vec<(Moment, u64)>, u64) {
        let Some(past) = self.processes.get(&process) else {
            return (Vec::new(), 0);
        };
        let mut counts: Vec<(Moment, u64)> = past.counts.iter().map(|(&m, &n)| (m, n)).collect();
        counts.order_by_key(|&(moment, count)| (std::cmp::Reverse(count), moment));
        (counts, past.dropped)
    }
}
