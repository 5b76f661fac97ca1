//! Processes that were met late: which exits are of calls that had begun before all probes were there.
//!
//! When a process has all its probes, and its hits in order of time -> whether the call that a hit ends can have been
//! entered unseen. Probes are attached one after the other, those of returns first, and a gap tells of the time until
//! the last one: an exit in it may have no entry, nor may the exit behind it of a call that was open then. Such a call
//! lies further out on its stack than all that was hit since, for what is open within a call leaves its own place.
//!
//! What does not belong here: what becomes of an exit without an entry (the parent module).

use std::collections::hash_map::Entry;

use profiler_model::{Pid, Timestamp};
use rustc_hash::FxHashMap;

use super::shadow::Hit;

/// Most processes of which that is known, and most stacks.
const MAX_LATE: usize = 1 << 14;

/// What is known of them.
#[derive(Debug, Default)]
pub(super) struct Late {
    /// Since when each has all its probes.
    whole_from: FxHashMap<Pid, Timestamp>,
    /// By process, and by thread or goroutine: the outermost place that was hit since.
    outermost: FxHashMap<(Pid, bool, u32), u64>,
}

impl Late {
    pub(super) fn has_probes_from(&mut self, pid: Pid, at: Timestamp) {
        if self.whole_from.len() >= MAX_LATE {
            self.whole_from.clear();
        }
        if self.whole_from.insert(pid, at).is_some() {
            // Another process of this number, or the same one with more files.
            self.outermost.retain(|(of, ..), _| *of != pid);
        }
    }

    /// Whether the call of which a hit tells can have been entered before all probes were there. Asked of each hit.
    #[inline]
    pub(super) fn began_before(&mut self, hit: &Hit) -> bool {
        if self.whole_from.is_empty() {
            return false;
        }
        self.is_further_out(hit)
    }

    fn is_further_out(&mut self, hit: &Hit) -> bool {
        let Some(from) = self.whole_from.get(&hit.pid) else {
            return false;
        };
        if hit.at < from.0 {
            return true;
        }
        // Of a goroutine it is the distance to the upper end of its stack.
        let (stack, place) = match hit.goroutine {
            0 => ((hit.pid, false, hit.tid.0), hit.sp),
            goroutine => ((hit.pid, true, goroutine), u64::MAX - hit.sp),
        };
        if self.outermost.len() >= MAX_LATE {
            self.outermost.clear();
        }
        match self.outermost.entry(stack) {
            Entry::Occupied(mut known) => {
                let is_further_out = place > *known.get();
                if is_further_out {
                    known.insert(place);
                }
                is_further_out
            }
            Entry::Vacant(unknown) => {
                unknown.insert(place);
                true
            }
        }
    }
}
