//! Waits of threads: the stacks that their records name, and what a record says.
//!
//! The kernel side sends the stacks of a key once, so they are kept, as they came: mappings and epochs
//! change. What was not used for longest is forgotten first; then the kernel side has to send its
//! stacks again ([`WaitStacks::have_forgotten`]), but for those of waits that go on, which are kept.
//! Times are nanoseconds of CLOCK_MONOTONIC.
//!
//! What does not belong here: what the kernel side counts (`probe`).

use bytes::Bytes;
use rustc_hash::{FxHashMap, FxHashSet};

use super::kernel_names::KernelNames;
use profiler_common::sched::{KEY_NOT_WALKED, WaitRecord};
use profiler_model::raw::{RawInterpreted, RawStack, RawWait, RawWaitStack};
use profiler_model::{StackEnd, ThreadId, Timestamp, Wait, WaitState};

/// Most stacks, and most of their bytes, that are kept in one generation, of which there are four. While
/// the kernel side can't be told, the first may have twice as much.
const MAX_KEYS: usize = 16_384;
const MAX_BYTES: usize = 10 << 20;
/// What a stack takes besides its addresses, roughly.
const OVERHEAD_BYTES: usize = 256;

/// Stacks of waits by their keys, in generations: one that is full makes the next one older.
#[derive(Debug, Default)]
pub(super) struct WaitStacks {
    /// Those that came or were used since the others were.
    young: Generation,
    old: Generation,
    /// The kernel side sends them again, but records that name them may be on their way, and some belong
    /// to waits that go on. They stay until the next ones come here.
    leaving: Generation,
    /// Of those that were here before, the ones of waits that went on.
    left: Generation,
    /// Keys of the waits that went on when the last ones began to leave.
    going_on: FxHashSet<u64>,
    /// Some have begun to leave, and it is not known which waits go on.
    aged: bool,
    /// All are to be sent again, and the kernel side does not know.
    forgotten: bool,
}

#[derive(Debug, Default)]
struct Generation {
    stacks: FxHashMap<u64, RawWaitStack>,
    bytes: usize,
}

impl Generation {
    fn insert(&mut self, stack: RawWaitStack) {
        self.bytes += bytes_of(&stack);
        if let Some(before) = self.stacks.insert(stack.key, stack) {
            self.bytes -= bytes_of(&before);
        }
    }

    fn remove(&mut self, key: u64) -> Option<RawWaitStack> {
        let stack = self.stacks.remove(&key)?;
        self.bytes -= bytes_of(&stack);
        Some(stack)
    }

    /// Whether there is more than so many times what fits.
    fn exceeds(&self, times: usize) -> bool {
        self.stacks.len() > times * MAX_KEYS || self.bytes > times * MAX_BYTES
    }
}

fn bytes_of(stack: &RawWaitStack) -> usize {
    OVERHEAD_BYTES
        + stack.kernel.bytes.len()
        + stack.user.bytes.len()
        + stack.interpreted.frames.len()
        + stack.copy.as_ref().map_or(0, |copy| copy.bytes.len())
}

impl WaitStacks {
    fn keep(&mut self, stack: RawWaitStack) {
        self.young.insert(stack);
        // While it is not known which waits go on, none is dropped, if there are not far too many.
        if self.young.exceeds(1) && (!self.forgotten || self.young.exceeds(2)) {
            self.age();
        }
    }

    fn age(&mut self) {
        let going_on = std::mem::take(&mut self.going_on);
        let mut left = Generation::default();
        for of in [&mut self.left, &mut self.leaving] {
            for (key, stack) in of.stacks.drain() {
                if going_on.contains(&key) && !left.exceeds(1) {
                    left.insert(stack);
                }
            }
        }
        self.left = left;
        self.leaving = std::mem::replace(&mut self.old, std::mem::take(&mut self.young));
        self.aged |= !self.leaving.stacks.is_empty();
        self.forgotten |= self.aged;
    }

    /// Frames of an interpreter have lost their names, which are read when a stack comes.
    pub(super) fn lack_names(&mut self) {
        self.forgotten |= !(self.young.stacks.is_empty() && self.old.stacks.is_empty());
    }

    /// The kernel side sends all again, but for those of the waits that go on, which have these keys.
    pub(super) fn told(&mut self, going_on: Vec<u64>) {
        self.forgotten = false;
        if std::mem::take(&mut self.aged) {
            self.going_on = going_on.into_iter().collect();
        }
    }

    /// The stacks of a key.
    pub(super) fn find(&mut self, key: u64) -> Option<RawWaitStack> {
        if let Some(stack) = self.young.stacks.get(&key) {
            return Some(stack.clone());
        }
        let others = [&mut self.old, &mut self.leaving, &mut self.left];
        let stack = others.into_iter().find_map(|of| of.remove(key))?;
        self.keep(stack.clone());
        Some(stack)
    }

    /// Whether stacks are being forgotten: the kernel side is to send all again, and [`Self::told`] to be
    /// called.
    pub(super) fn have_forgotten(&self) -> bool {
        self.forgotten
    }

    /// Keeps the stacks of waits to come, without the frames of those that walked them.
    pub(super) fn take(&mut self, stack: &RawWaitStack, names: &mut KernelNames) {
        // Else each would keep alive all of what it was drained with.
        let own = |bytes: &Bytes| Bytes::copy_from_slice(bytes);
        let walkers = names.walkers(&stack.kernel);
        let kernel = stack.kernel.bytes.slice(walkers * 8..);
        let mut copy = stack.copy.clone();
        if let Some(copy) = &mut copy {
            copy.bytes = own(&copy.bytes);
        }
        self.keep(RawWaitStack {
            key: stack.key,
            pid: stack.pid,
            tid: stack.tid,
            kernel: RawStack {
                bytes: own(&kernel),
                end: stack.kernel.end,
            },
            user: RawStack {
                bytes: own(&stack.user.bytes),
                end: stack.user.end,
            },
            copy,
            interpreted: RawInterpreted {
                interpreter: stack.interpreted.interpreter,
                frames: own(&stack.interpreted.frames),
            },
        });
    }
}

/// What a record says of a wait that has ended.
pub(super) fn wait_of(wait: &RawWait, at: Timestamp, waker: Option<ThreadId>) -> Wait {
    let record = &wait.record;
    let state = WaitState::from_code(record.state).unwrap_or(WaitState::Sleeping);
    let ns = at.since(Timestamp(record.from_ns));
    Wait {
        ns,
        runnable_ns: match (state, record.woken_ns) {
            (WaitState::Preempted, _) => ns,
            (_, 0) => 0,
            (_, woken_ns) => at.since(Timestamp(woken_ns)).min(ns),
        },
        state,
        waker,
        count: record.weight,
        open: wait.open,
    }
}

/// Why there is no stack of a record whose stacks are not here.
pub(super) fn end_without(record: &WaitRecord) -> StackEnd {
    match record.key {
        0 => StackEnd::NoStack,
        KEY_NOT_WALKED => StackEnd::LeafOnly,
        // Until stacks that were forgotten are sent again.
        _ => StackEnd::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use profiler_model::{Pid, Tid};

    fn stack(key: u64, frames: usize) -> RawWaitStack {
        RawWaitStack {
            key,
            pid: Pid(1),
            tid: Tid(1),
            kernel: RawStack::NONE,
            user: RawStack {
                bytes: vec![0; frames * 8].into(),
                end: StackEnd::Complete,
            },
            copy: None,
            interpreted: RawInterpreted::default(),
        }
    }

    /// So many keys that no other one had.
    fn fill(stacks: &mut WaitStacks, from: &mut u64, count: usize) {
        for _ in 0..count {
            *from += 1;
            stacks.keep(stack(*from, 1));
        }
    }

    /// As the session does.
    fn tell(stacks: &mut WaitStacks, going_on: &[u64]) -> bool {
        let is_due = stacks.forgotten;
        if is_due {
            stacks.told(going_on.to_vec());
        }
        is_due
    }

    #[test]
    fn what_is_used_outlives_what_is_not() {
        let mut stacks = WaitStacks::default();
        let mut next = 100;
        stacks.keep(stack(7, 1));
        stacks.keep(stack(8, 1));
        for _ in 0..8 * MAX_KEYS {
            fill(&mut stacks, &mut next, 1);
            tell(&mut stacks, &[]);
            assert!(stacks.find(7).is_some());
        }
        assert!(stacks.find(8).is_none());
        let generations = [&stacks.young, &stacks.old, &stacks.leaving];
        assert!(generations.iter().all(|of| of.stacks.len() <= MAX_KEYS + 1));
        assert!(stacks.left.stacks.is_empty());
    }

    #[test]
    fn the_kernel_side_is_told_before_anything_is_lost() {
        let mut stacks = WaitStacks::default();
        let mut next = 100;
        stacks.keep(stack(7, 1));
        fill(&mut stacks, &mut next, 2 * MAX_KEYS);
        assert!(!tell(&mut stacks, &[]), "two generations fit");
        fill(&mut stacks, &mut next, 2);
        assert!(stacks.forgotten);
        // A record of a wait that was over before is still on its way.
        assert!(tell(&mut stacks, &[]) && stacks.find(7).is_some());
    }

    #[test]
    fn a_wait_that_goes_on_keeps_its_stack() {
        let mut stacks = WaitStacks::default();
        let mut next = 100;
        stacks.keep(stack(7, 1));
        stacks.keep(stack(8, 1));
        for _ in 0..10 * MAX_KEYS {
            fill(&mut stacks, &mut next, 1);
            tell(&mut stacks, &[7]);
        }
        assert!(stacks.left.stacks.len() == 1 && stacks.find(8).is_none());
        assert!(stacks.find(7).is_some());
    }

    #[test]
    fn stacks_that_lack_names_are_sent_again_and_none_is_lost() {
        let mut stacks = WaitStacks::default();
        stacks.lack_names();
        assert!(!stacks.forgotten, "there are none");
        let mut next = 100;
        stacks.keep(stack(7, 1));
        for _ in 0..10 * MAX_KEYS {
            fill(&mut stacks, &mut next, 1);
            tell(&mut stacks, &[7]);
            stacks.lack_names();
            // No stack has begun to leave: who goes on now does not matter to those that have.
            assert!(tell(&mut stacks, &[]));
        }
        assert!(stacks.find(7).is_some());
    }

    #[test]
    fn what_nobody_asks_for_is_bounded() {
        let mut stacks = WaitStacks::default();
        fill(&mut stacks, &mut 0, 20 * MAX_KEYS);
        let all = [&stacks.young, &stacks.old, &stacks.leaving, &stacks.left];
        let most = all.iter().map(|of| of.stacks.len()).max();
        assert!(stacks.forgotten && most.unwrap() <= 2 * MAX_KEYS + 1);
    }

    #[test]
    fn a_stack_that_comes_again_counts_once() {
        let mut stacks = WaitStacks::default();
        for _ in 0..4 * MAX_KEYS {
            stacks.keep(stack(7, 127));
        }
        assert_eq!(stacks.young.bytes, OVERHEAD_BYTES + 127 * 8);
        assert!(!stacks.forgotten && stacks.old.stacks.is_empty());
    }

    #[test]
    fn long_stacks_are_bounded_by_their_bytes() {
        let mut stacks = WaitStacks::default();
        let one = 127 * 8 + OVERHEAD_BYTES;
        let everyone: Vec<u64> = (1..=6 * MAX_KEYS as u64).collect();
        for &key in &everyone {
            stacks.keep(stack(key, 127));
            tell(&mut stacks, &everyone);
            let all = [&stacks.young, &stacks.old, &stacks.leaving, &stacks.left];
            for of in all {
                assert!(of.bytes <= MAX_BYTES + one);
                assert!(key % 1000 > 0 || of.bytes == of.stacks.len() * one);
            }
        }
        assert!(stacks.left.bytes > MAX_BYTES / 2);
    }
}
