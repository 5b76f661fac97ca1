//! Waits of threads: records and the stacks that they name -> samples of the source `off-cpu`, and
//! totals per thread.
//!
//! The kernel side sends the stacks of a key once, so they are kept, as they came: mappings and epochs
//! change. What was not used for longest is forgotten first; then the kernel side has to send its
//! stacks again ([`Resolver::take_forgotten_stacks`]). Times are nanoseconds of CLOCK_MONOTONIC.
//!
//! What does not belong here: what the kernel side counts (`probe`).

use bytes::Bytes;
use rustc_hash::FxHashMap;

use super::Resolver;
use super::end_of;
use crate::model::raw::{Comm, RawStack, RawWait, RawWaitStack, RawWaits};
use crate::model::{
    Cpu, Event, Lost, LostReason, OFF_CPU, Pid, Sample, SourceId, StackEnd, ThreadId, Tid,
    Timestamp, Wait, WaitState, Waits,
};

/// Most stacks, and most of their bytes, that are kept in one of two generations.
const MAX_KEYS: usize = 16_384;
const MAX_BYTES: usize = 16 << 20;
/// What a stack takes besides its addresses, roughly.
const OVERHEAD_BYTES: usize = 256;

/// How the names of functions begin that are above the scheduler only because its tracepoint is watched.
const WALKERS: [&str; 4] = ["bpf_prog_", "bpf_trace_run", "__bpf_trace_", "__traceiter_"];
/// Most of these in a stack.
const MAX_WALKERS: usize = 6;

/// Stacks of waits by their keys.
#[derive(Debug, Default)]
pub(super) struct WaitStacks {
    /// Those that came or were used since the others were, and their bytes.
    young: FxHashMap<u64, RawWaitStack>,
    young_bytes: usize,
    old: FxHashMap<u64, RawWaitStack>,
    /// Some were dropped, and the kernel side does not know.
    forgotten: bool,
}

impl WaitStacks {
    fn keep(&mut self, stack: RawWaitStack) {
        let bytes = OVERHEAD_BYTES
            + stack.kernel.bytes.len()
            + stack.user.bytes.len()
            + stack.interpreted.len()
            + stack.copy.as_ref().map_or(0, |copy| copy.bytes.len());
        if self.young.len() >= MAX_KEYS || self.young_bytes + bytes > MAX_BYTES {
            let dropped = std::mem::replace(&mut self.old, std::mem::take(&mut self.young));
            self.young_bytes = 0;
            self.forgotten |= !dropped.is_empty();
        }
        self.young_bytes += bytes;
        self.young.insert(stack.key, stack);
    }

    fn find(&mut self, key: u64) -> Option<RawWaitStack> {
        if let Some(stack) = self.young.get(&key) {
            return Some(stack.clone());
        }
        let stack = self.old.remove(&key)?;
        self.keep(stack.clone());
        Some(stack)
    }
}

impl Resolver {
    /// Whether stacks of waits were forgotten since the last call: the kernel side is to send all again.
    pub fn take_forgotten_stacks(&mut self) -> bool {
        std::mem::take(&mut self.wait_stacks.forgotten)
    }

    /// Keeps the stacks of waits to come.
    pub(super) fn wait_stack(&mut self, stack: &RawWaitStack) {
        // Else each would keep alive all of what it was drained with.
        let own = |bytes: &Bytes| Bytes::copy_from_slice(bytes);
        let kernel = stack
            .kernel
            .bytes
            .slice(self.own_frames(&stack.kernel) * 8..);
        let mut copy = stack.copy.clone();
        if let Some(copy) = &mut copy {
            copy.bytes = own(&copy.bytes);
        }
        self.wait_stacks.keep(RawWaitStack {
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
            interpreted: own(&stack.interpreted),
        });
    }

    /// How many frames of a kernel stack, from its leaf on, are those that walked it: the kernel side's
    /// program and what runs it.
    fn own_frames(&mut self, stack: &RawStack) -> usize {
        if !self.kernel_known {
            self.await_kernel();
        }
        let is_own = |address: &u64| {
            let symbol = self.kernel.symbol(address.saturating_sub(1));
            symbol.is_some_and(|symbol| {
                let mut beginnings = WALKERS.iter();
                beginnings.any(|beginning| symbol.name.starts_with(beginning))
            })
        };
        let own = stack.addresses().take(MAX_WALKERS).take_while(is_own);
        own.count()
    }

    /// A wait has ended.
    pub(super) fn wait(&mut self, at: Timestamp, cpu: Cpu, wait: &RawWait) {
        self.counters.samples += 1;
        let record = &wait.record;
        let (pid, tid) = (Pid(record.tgid), Tid(record.tid));
        let Some(thread) = self.waiting_thread(at, (pid, tid), record.cgroup, Comm(record.comm))
        else {
            // `meet` has just made it known; should it ever not, that is told.
            self.push(Event::Lost(Lost {
                cpu: Some(cpu),
                from: at,
                to: at,
                count: 1,
                reason: LostReason::BadRecord,
            }));
            return;
        };
        let waker = self.waker(at, Pid(record.waker_tgid), Tid(record.waker_tid));
        let (mut kernel, mut user) = (None, None);
        let (mut kernel_end, mut user_end) = match record.key {
            0 => (StackEnd::NoStack, StackEnd::NoStack),
            // Until stacks that were forgotten are sent again.
            _ => (StackEnd::Unknown, StackEnd::Unknown),
        };
        if let Some(stack) = self.wait_stacks.find(record.key) {
            kernel = self.kernel_stack(&stack.kernel.bytes);
            kernel_end = end_of(kernel, stack.kernel.end);
            let bytes = self.with_real_returns(pid, tid, stack.user.bytes);
            (user, user_end) = if stack.interpreted.is_empty() {
                self.user_stack(pid, &bytes, stack.user.end)
            } else {
                let who = (pid, at);
                self.stack_with_interpreted(who, &bytes, stack.user.end, &stack.interpreted)
            };
            user_end = end_of(user, user_end);
        }
        let state = WaitState::from_code(record.state).unwrap_or(WaitState::Sleeping);
        let ns = at.since(Timestamp(record.from_ns));
        let runnable_ns = match (state, record.woken_ns) {
            (WaitState::Preempted, _) => ns,
            (_, 0) => 0,
            (_, woken_ns) => at.since(Timestamp(woken_ns)).min(ns),
        };
        let source = self.off_cpu_source();
        self.push(Event::Sample(Sample {
            at,
            thread,
            cpu,
            kernel,
            user,
            kernel_end,
            user_end,
            weight: ns.saturating_mul(record.weight.into()),
            source,
            wait: Some(Wait {
                ns,
                runnable_ns,
                state,
                waker,
                count: record.weight,
            }),
        }));
    }

    /// Totals of a thread.
    pub(super) fn waits(&mut self, at: Timestamp, waits: &RawWaits) {
        let place = (waits.pid, waits.tid);
        let Some(thread) = self.waiting_thread(at, place, waits.cgroup, Comm::default()) else {
            return;
        };
        self.push(Event::Waits(Waits {
            thread,
            from: waits.from,
            to: at,
            count: waits.count,
            ns: waits.ns,
            runnable_ns: waits.runnable_ns,
        }));
    }

    /// The thread of a wait, known and announced; an empty name is none.
    fn waiting_thread(
        &mut self,
        at: Timestamp,
        (pid, tid): (Pid, Tid),
        cgroup: u64,
        comm: Comm,
    ) -> Option<ThreadId> {
        let known = self.processes.thread(tid);
        let comm = match known.is_some_and(|thread| thread.pid == pid) {
            false if comm == Comm::default() => {
                super::proc_fs::thread_comm(pid, tid).unwrap_or_default()
            }
            _ => comm,
        };
        let settled = self.meet(pid, tid, comm, at, cgroup);
        self.show_or_adopt(pid, at);
        if !settled && cgroup != 0 {
            self.settle(pid, tid, cgroup, at);
        }
        let named = comm != Comm::default();
        self.processes
            .announce_thread(tid, named.then_some(comm), &mut self.epoch)
    }

    /// The thread that ended a wait. One that is not recorded is only known if it is for other reasons.
    fn waker(&mut self, at: Timestamp, pid: Pid, tid: Tid) -> Option<ThreadId> {
        if tid.0 == 0 {
            return None;
        }
        let known = self.processes.thread(tid);
        if known.is_none_or(|thread| thread.pid != pid) {
            if self.scoped || self.limited {
                return None;
            }
            let comm = super::proc_fs::thread_comm(pid, tid).unwrap_or_default();
            self.meet(pid, tid, comm, at, 0);
        }
        self.processes.announce_thread(tid, None, &mut self.epoch)
    }

    fn off_cpu_source(&mut self) -> SourceId {
        let index = self
            .sources
            .iter()
            .position(|source| source.name == OFF_CPU);
        self.source(index.map_or(u16::MAX, |index| index as u16))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            interpreted: Bytes::new(),
        }
    }

    #[test]
    fn what_is_used_outlives_what_is_not() {
        let mut stacks = WaitStacks::default();
        for key in 1..2 * MAX_KEYS as u64 {
            stacks.keep(stack(key, 1));
            assert!(stacks.find(7).is_some() || key < 7, "{key}");
        }
        assert!(!stacks.forgotten, "two generations fit");
        for key in 1..=MAX_KEYS as u64 {
            stacks.keep(stack(u64::MAX - key, 1));
            assert!(stacks.find(7).is_some());
        }
        assert!(stacks.forgotten && stacks.find(8).is_none());
        assert!(stacks.young.len() <= MAX_KEYS && stacks.old.len() <= MAX_KEYS);
    }

    #[test]
    fn long_stacks_are_bounded_by_their_bytes() {
        let mut stacks = WaitStacks::default();
        for key in 1..=3 * MAX_KEYS as u64 {
            stacks.keep(stack(key, 127));
            assert!(stacks.young_bytes <= MAX_BYTES);
        }
        let most = 2 * MAX_BYTES / (127 * 8 + OVERHEAD_BYTES);
        assert!(stacks.forgotten && stacks.young.len() + stacks.old.len() <= most);
    }
}
