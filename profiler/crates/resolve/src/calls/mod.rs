//! Calls of traced functions: records of probes -> events.
//!
//! In: [`RawBody::Call`](profiler_model::raw::RawBody::Call) and its kin, ordered by time. Out:
//! [`Call`]s, each exit paired with its entry, and [`Throw`]s. Times are nanoseconds of
//! CLOCK_MONOTONIC.
//!
//! Calls whose exit does not come end as [`ExitKind::Inferred`] when it is clear that they have;
//! exits whose entry did not come are counted ([`LostReason::Unmatched`]). A call that is told only
//! when it is over ([`RawEdge::Whole`]) has the depth of the open calls around it, which is 0 unless
//! others are told at their entry: it says itself when it began.
//!
//! What does not belong here: what to trace (`trace`), how records come (`probe`).

mod probe;
mod shadow;
mod stack;
#[cfg(test)]
mod tests;
mod thread;

use std::sync::Arc;

use profiler_common::call::{ITEM_BAD_MEMORY, ItemHead};
use rustc_hash::FxHashMap;

pub use probe::{ExceptionName, Role, TracedProbe};

use super::Resolver;
use probe::Probes;
use profiler_model::raw::{Comm, RawCall, RawCallCount, RawEdge, RawGap};
use profiler_model::{
    Call, CallCount, CallEdge, Cpu, Event, Exit, ExitKind, FrameId, Gap, GapReason, Lost,
    LostReason, Pid, ProcessId, ThreadId, Throw, Tid, Timestamp, Value,
};
use shadow::{Hit, Shadows};
use stack::{How, Left};

/// What a call takes in a capture, roughly.
const CALL_BYTES: u64 = 8;
/// Name of what is thrown, if nothing says it.
const SOMETHING: &str = "exception";

/// What the resolver knows of traced functions.
#[derive(Debug, Default)]
pub(super) struct Calls {
    probes: Probes,
    shadows: Shadows,
    /// Kept for its memory.
    left: Vec<Left>,
    unmatched: Missing,
    unknown: Missing,
    /// Since when processes that were met late have all their probes: what has no entry before that is in the
    /// gap that was told.
    whole_from: FxHashMap<Pid, Timestamp>,
}

/// Most processes of which that is known.
const MAX_LATE: usize = 1 << 14;

/// Records that are counted and not shown.
#[derive(Debug, Default)]
struct Missing {
    count: u64,
    from: Timestamp,
}

impl Missing {
    fn add(&mut self, at: Timestamp) {
        if self.count == 0 {
            self.from = at;
        }
        self.count += 1;
    }
}

impl Calls {
    /// Records of calls were lost.
    pub(super) fn lost(&mut self) {
        self.shadows.lost();
    }

    /// Whether anything is traced.
    pub(super) fn is_used(&self) -> bool {
        !self.probes.is_empty()
    }

    /// The return addresses that the kernel has replaced on a thread's stack, innermost first; 0
    /// where one is not known.
    pub(super) fn pending_returns(&self, tid: Tid) -> Vec<u64> {
        self.shadows.pending_returns(tid)
    }

    /// Forgets threads that have ended unseen.
    pub(super) fn retain(&mut self, lives: impl Fn(Pid, Tid) -> bool) {
        self.shadows.retain(lives);
    }
}

impl Resolver {
    /// Says that the threads of a process switch between stacks on their own: it uses coroutines,
    /// or fibers. Otherwise this is found out, at the price of some calls that end too early.
    pub fn switches_stacks(&mut self, pid: Pid) {
        self.calls.shadows.switches(pid);
    }

    /// Says that a process which was met late has all its probes from then on. They are attached one after
    /// the other, those of returns first: an exit before that may have no entry, and a gap tells of both.
    pub fn has_probes_from(&mut self, pid: Pid, at: Timestamp) {
        let late = &mut self.calls.whole_from;
        if late.len() >= MAX_LATE {
            late.clear();
        }
        late.insert(pid, at);
    }

    /// A probe was hit.
    pub(super) fn call(&mut self, at: Timestamp, cpu: Cpu, call: &RawCall) {
        if call.after_loss {
            self.calls.shadows.lost();
        }
        let Some(probe) = self.calls.probes.get(call.probe) else {
            self.calls.unknown.add(at);
            return;
        };
        let traced = &probe.traced;
        let hit = Hit {
            at: at.0,
            pid: call.pid,
            tid: call.tid,
            goroutine: call.stack,
            probe: call.probe,
            sp: call.sp,
            caller: call.caller,
            uretprobe: traced.returns == profiler_model::ReturnMode::Uretprobe,
            unwatched: probe.unwatched,
        };
        let (values, exception) = (traced.values.clone(), traced.exception);
        let (resumes, role) = (probe.resumes, traced.role);
        let line = traced.exit_line(call.site);
        let decode = |at_exit| Some(values.as_ref()?.decode(call.items(), at_exit));
        let Some(thread) = self.thread_of_call(call.pid, call.tid, at) else {
            self.calls.unknown.add(at);
            return;
        };
        let place = Place { at, cpu, thread };
        let mut left = std::mem::take(&mut self.calls.left);
        match call.edge {
            RawEdge::Enter => {
                let depth = self.calls.shadows.enter(&hit, &mut left);
                self.left(&place, &mut left, None);
                match depth {
                    Some(depth) => {
                        let arguments = decode(false).map(Vec::into_boxed_slice);
                        self.push_call(&place, hit.probe, depth, CallEdge::Enter(arguments));
                    }
                    None => self.counters.calls_too_deep += 1,
                }
            }
            RawEdge::Exit => {
                let matched = self.calls.shadows.exit(&hit, &mut left);
                if matched {
                    let result = decode(true).and_then(|values| values.into_iter().next());
                    self.left(&place, &mut left, Some(Returned { line, result }));
                } else {
                    self.left(&place, &mut left, None);
                    let whole_from = self.calls.whole_from.get(&call.pid);
                    if whole_from.is_none_or(|&from| at >= from) {
                        self.calls.unmatched.add(at);
                    }
                }
            }
            RawEdge::Hit => {
                let (depth, _) = self.calls.shadows.pass(&hit, None, &mut left);
                self.left(&place, &mut left, None);
                let arguments = decode(false).map(Vec::into_boxed_slice);
                self.push_call(&place, hit.probe, depth, CallEdge::Hit(arguments));
            }
            RawEdge::Whole => {
                let began = call.detail.as_ref().and_then(|detail| detail.began);
                let began = began.unwrap_or(at).min(at);
                let (depth, self_ns) = self.calls.shadows.pass(&hit, Some(began.0), &mut left);
                self.left(&place, &mut left, None);
                // Values are fetched when the record is made, which is at the exit.
                let exit = Exit {
                    began,
                    self_ns,
                    how: ExitKind::Return,
                    line,
                    result: decode(true).and_then(|values| values.into_iter().next()),
                    whole: Some(Box::default()),
                };
                self.push_call(&place, hit.probe, depth, CallEdge::Exit(Box::new(exit)));
            }
            RawEdge::Throw if role == Role::Unwind => {
                self.calls.shadows.unwind(&hit, &mut left);
                self.left(&place, &mut left, None);
            }
            RawEdge::Throw => {
                let (thrower, thrown) = thrower(call);
                let name = exception.zip(thrown).map(|(name, bytes)| name(bytes));
                let name = name.filter(|name| !name.is_empty()).map(Arc::from);
                let (new, kind) = self.calls.shadows.throw(&hit, name, &mut left);
                self.left(&place, &mut left, None);
                if new {
                    let throw = Throw {
                        at,
                        thread,
                        cpu,
                        kind: self.epoch.string(kind.as_deref().unwrap_or(SOMETHING)),
                        thrower: self.frame_of_thrower(call.pid, thrower),
                    };
                    self.push(Event::Throw(throw));
                }
            }
            RawEdge::Land => {
                self.calls.shadows.land(&hit, resumes, &mut left);
                self.left(&place, &mut left, None);
            }
            RawEdge::Jump => {
                self.calls.shadows.jump(&hit, &mut left);
                self.left(&place, &mut left, None);
            }
        }
        self.calls.left = left;
    }

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
        if gap.reason == GapReason::Suspended {
            self.suspend_calls(at);
            if gap.from >= at {
                // It begins.
                return;
            }
        }
        let function = gap.probe.and_then(|probe| self.traced_function(probe));
        let process = gap.pid.and_then(|pid| {
            // It may have ended before it could be told to be one of those that are recorded.
            self.show_or_adopt(pid, at);
            self.process_of(pid, at)
        });
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

    /// A thread ends, and with the last one its process.
    pub(super) fn end_calls(&mut self, at: Timestamp, cpu: Cpu, pid: Pid, tid: Tid) {
        if !self.calls.is_used() {
            return;
        }
        let mut left = std::mem::take(&mut self.calls.left);
        self.calls.shadows.end_thread(pid, tid, at.0, &mut left);
        self.left_by(at, cpu, tid, &mut left);
        self.calls.left = left;
        let runs = self
            .processes
            .thread(tid)
            .is_some_and(|thread| !thread.exited);
        if runs
            && self
                .processes
                .get(pid)
                .is_some_and(|process| process.threads <= 1)
        {
            self.end_all_calls(at, cpu, pid);
        }
    }

    /// A process runs another program. What was said of its stacks may have been said of that one
    /// already, before its first instruction.
    pub(super) fn exec_calls(&mut self, at: Timestamp, cpu: Cpu, pid: Pid) {
        let switches = self.calls.shadows.is_switching(pid);
        self.end_all_calls(at, cpu, pid);
        if switches {
            self.calls.shadows.switches(pid);
        }
    }

    /// A process ends, or runs another program.
    pub(super) fn end_all_calls(&mut self, at: Timestamp, cpu: Cpu, pid: Pid) {
        for (tid, mut left) in self.calls.shadows.end_process(pid, at.0) {
            self.left_by(at, cpu, tid, &mut left);
        }
    }

    /// Tells of the records that could not be paired since this was called last.
    pub(super) fn tell_unmatched(&mut self, to: Timestamp) {
        let calls = &mut self.calls;
        let missing = [
            (&mut calls.unmatched, LostReason::Unmatched),
            (&mut calls.unknown, LostReason::BadRecord),
        ];
        let missing = missing.map(|(missing, reason)| (std::mem::take(missing), reason));
        for (missing, reason) in missing {
            if missing.count > 0 {
                self.push(Event::Lost(Lost {
                    cpu: None,
                    from: missing.from,
                    to,
                    count: missing.count,
                    reason,
                }));
            }
        }
    }

    /// Nothing is seen from now on, or nothing was until now: what is open may end in between and be
    /// entered again at the same place, so no exit to come is known to be its own.
    fn suspend_calls(&mut self, at: Timestamp) {
        for (tid, mut left) in self.calls.shadows.suspend(at.0) {
            self.left_by(at, Cpu(0), tid, &mut left);
        }
    }

    fn left_by(&mut self, at: Timestamp, cpu: Cpu, tid: Tid, left: &mut Vec<Left>) {
        if left.is_empty() {
            return;
        }
        match self.processes.announce_thread(tid, None, &mut self.epoch) {
            Some(thread) => self.left(&Place { at, cpu, thread }, left, None),
            None => left.clear(),
        }
    }

    /// Tells of calls that were left, at most one of them by returning.
    #[inline]
    fn left(&mut self, place: &Place, left: &mut Vec<Left>, mut returned: Option<Returned>) {
        for call in left.drain(..) {
            let mut how_returned = None;
            let how = match call.how {
                How::Return => {
                    how_returned = returned.take();
                    ExitKind::Return
                }
                How::Exception(kind) => {
                    ExitKind::Exception(kind.map(|kind| self.epoch.string(&kind)))
                }
                How::Terminated => ExitKind::Terminated,
                How::Inferred => ExitKind::Inferred,
            };
            let Returned { line, result } = how_returned.unwrap_or_default();
            let exit = Exit {
                began: Timestamp(call.began),
                self_ns: call.self_ns,
                how,
                line,
                result,
                whole: None,
            };
            let edge = CallEdge::Exit(Box::new(exit));
            self.push_call(place, call.probe, call.depth, edge);
        }
    }

    #[inline]
    fn push_call(&mut self, place: &Place, probe: u32, depth: u32, edge: CallEdge) {
        if let Some(function) = self.traced_function(probe) {
            self.event_bytes += CALL_BYTES;
            self.events.push(Event::Call(Call {
                at: place.at,
                thread: place.thread,
                cpu: place.cpu,
                function,
                depth,
                edge,
                later: None,
            }));
        }
    }

    #[inline]
    fn thread_of_call(&mut self, pid: Pid, tid: Tid, at: Timestamp) -> Option<ThreadId> {
        let known = self.processes.thread(tid);
        if known.is_none_or(|thread| thread.pid != pid || thread.exited) {
            let comm = self.processes.get(pid).map(|process| process.comm);
            self.meet(pid, tid, comm.unwrap_or_default(), at, 0);
        }
        self.processes.announce_thread(tid, None, &mut self.epoch)
    }

    fn process_of(&mut self, pid: Pid, at: Timestamp) -> Option<ProcessId> {
        self.meet(pid, Tid(pid.0), Comm::default(), at, 0);
        self.processes.announce(pid, &mut self.epoch)
    }

    fn frame_of_thrower(&mut self, pid: Pid, address: u64) -> Option<FrameId> {
        let inside = address.checked_sub(1)?;
        let mappings = self.processes.get(pid)?.mappings.clone();
        let range = mappings.find(inside)?;
        Some(self.user_frame(pid, range, inside, false))
    }
}

/// What is known of a return.
#[derive(Default)]
struct Returned {
    line: u32,
    result: Option<Value>,
}

/// Where and when a call is told.
struct Place {
    at: Timestamp,
    cpu: Cpu,
    thread: ThreadId,
}

/// The return address of what throws, and the bytes that name what is thrown. The address is the
/// first item of the record, unless it was taken off already.
fn thrower(call: &RawCall) -> (u64, Option<&[u8]>) {
    let first = item(call.items());
    if call.caller != 0 {
        return (call.caller, first.map(|(bytes, _)| bytes));
    }
    match first.map(|(bytes, rest)| (bytes, item(rest))) {
        Some((&[a, b, c, d, e, f, g, h], Some((bytes, _)))) => {
            let address = u64::from_ne_bytes([a, b, c, d, e, f, g, h]);
            (address, Some(bytes))
        }
        only => (0, only.map(|(bytes, _)| bytes)),
    }
}

/// The payload of the first item, if it could be fetched, and what follows.
fn item(items: &[u8]) -> Option<(&[u8], &[u8])> {
    let (head, rest) = items.split_at_checked(size_of::<ItemHead>())?;
    let [low, high, len_low, len_high, ..] = *head else {
        return None;
    };
    let status = u16::from_ne_bytes([low, high]);
    let len = usize::from(u16::from_ne_bytes([len_low, len_high]));
    let payload = rest.get(..len)?;
    let behind = rest.get(len.next_multiple_of(8)..).unwrap_or_default();
    (status != ITEM_BAD_MEMORY).then_some((payload, behind))
}
