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

mod doubt;
mod late;
mod probe;
mod returns;
mod shadow;
mod stack;
#[cfg(test)]
mod tests;
mod thread;

use std::sync::Arc;

use profiler_common::call::{ITEM_BAD_MEMORY, split_item};

pub use probe::{ExceptionName, Role, TracedProbe};

use crate::epoch::Epoch;
use crate::frames::Frames;
use crate::process::{ProcessState, ProcessTable};
use doubt::Doubts;
use late::Late;
use probe::Probes;
use profiler_model::raw::{RawCall, RawCallCount, RawEdge, RawEvent, RawGap};
use profiler_model::{
    Call, CallCount, CallEdge, Cpu, Event, Exit, ExitKind, FrameId, Gap, Lost, LostReason, Pid,
    ProcessId, ThreadId, Throw, Tid, Timestamp, Value,
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
    /// Entries that are not shown, because too many calls were open.
    pub(super) too_deep: u64,
    probes: Probes,
    shadows: Shadows,
    /// Kept for its memory.
    left: Vec<Left>,
    unmatched: Missing,
    unknown: Missing,
    late: Late,
    doubts: Doubts,
}

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
    /// A record of a call came too late to be told in its place.
    pub(super) fn lost(&mut self) {
        self.shadows.lost();
    }

    /// Looks at what was drained, before it is resolved: when records are missing.
    pub(super) fn notice(&mut self, drained: &[RawEvent]) {
        self.doubts.notice(drained);
    }

    /// Records were lost until now: what is open may have been left, and been entered again at the same place. No
    /// exit to come is known to be its own.
    pub(super) fn doubt(&mut self, at: Timestamp, table: &mut ProcessTable, epoch: &mut Epoch) {
        for (tid, mut left) in self.shadows.suspend(at.0, &How::Unwatched) {
            self.left_by((at, Cpu(0), tid), &mut left, table, epoch);
        }
    }

    /// Before a call is told: gives up what is open if records were lost since the last one. Whether some may be
    /// lost at this very time.
    #[inline]
    pub(super) fn come_to(
        &mut self,
        at: Timestamp,
        after_loss: bool,
        table: &mut ProcessTable,
        epoch: &mut Epoch,
    ) -> bool {
        let (begun, within) = self.doubts.come_to(at.0);
        if begun || after_loss {
            self.doubt(at, table, epoch);
        }
        within
    }

    /// Whether anything is traced.
    pub(super) fn is_used(&self) -> bool {
        !self.probes.is_empty()
    }

    /// Forgets threads that have ended unseen.
    pub(super) fn retain(&mut self, lives: impl Fn(Pid, Tid) -> bool) {
        self.shadows.retain(lives);
    }

    /// Says that the threads of a process switch between stacks on their own: it uses coroutines,
    /// or fibers. Otherwise this is found out, at the price of some calls that end too early.
    pub(super) fn switches_stacks(&mut self, pid: Pid) {
        self.shadows.switches(pid);
    }

    /// Says that a process which was met late has all its probes from then on.
    pub(super) fn has_probes_from(&mut self, pid: Pid, at: Timestamp) {
        self.late.has_probes_from(pid, at);
    }

    /// Whether a hit is one of a probe that is known. Else it is counted.
    pub(super) fn knows(&mut self, at: Timestamp, call: &RawCall) -> bool {
        let known = self.probes.get(call.probe).is_some();
        if !known {
            self.unknown.add(at);
        }
        known
    }

    /// Of which thread a hit on another one is told: see [`Shadows::home`].
    pub(super) fn home(&self, call: &RawCall) -> Option<Tid> {
        let home = match call.stack {
            0 => None,
            goroutine => self.shadows.home(call.pid, goroutine),
        };
        home.filter(|home| *home != call.tid)
    }

    /// A hit can't be told, because its thread is not known.
    pub(super) fn miss(&mut self, at: Timestamp) {
        self.unknown.add(at);
    }

    /// A probe was hit that is known, by a thread of this process.
    pub(super) fn call(
        &mut self,
        place: &Place,
        call: &RawCall,
        process: Option<&ProcessState>,
        in_doubt: bool,
        frames: &mut Frames<'_>,
    ) {
        let at = place.at;
        let Some(probe) = self.probes.get(call.probe) else {
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
            over: probe.over,
        };
        let (values, exception) = (traced.values.clone(), traced.exception);
        let (resumes, role) = (probe.resumes, traced.role);
        let line = traced.exit_line(call.site);
        let decode = |at_exit| Some(values.as_ref()?.decode(call.items(), at_exit));
        let began_before = self.late.began_before(&hit);
        let mut left = std::mem::take(&mut self.left);
        match call.edge {
            RawEdge::Enter => {
                let depth = self.shadows.enter(&hit, &mut left);
                self.left(place, &mut left, None, frames.epoch);
                match depth {
                    Some(depth) => {
                        let arguments = decode(false).map(Vec::into_boxed_slice);
                        self.push_call(
                            place,
                            (hit.probe, hit.goroutine, depth),
                            CallEdge::Enter(arguments),
                            frames.epoch,
                        );
                    }
                    None => self.too_deep += 1,
                }
            }
            RawEdge::Exit => {
                let matched = self.shadows.exit(&hit, &mut left);
                if matched {
                    let result = decode(true).and_then(|values| values.into_iter().next());
                    let returned = Some(Returned { line, result });
                    self.left(place, &mut left, returned, frames.epoch);
                } else {
                    self.left(place, &mut left, None, frames.epoch);
                    // Of a call that was taken off when its function ceased to be watched there may be one.
                    if !hit.over && !began_before && !in_doubt {
                        self.unmatched.add(at);
                    }
                }
            }
            RawEdge::Hit => {
                let (depth, _) = self.shadows.pass(&hit, None, &mut left);
                self.left(place, &mut left, None, frames.epoch);
                let arguments = decode(false).map(Vec::into_boxed_slice);
                self.push_call(
                    place,
                    (hit.probe, hit.goroutine, depth),
                    CallEdge::Hit(arguments),
                    frames.epoch,
                );
            }
            RawEdge::Whole => {
                let began = call.began.min(at);
                let (depth, self_ns) = self.shadows.pass(&hit, Some(began.0), &mut left);
                self.left(place, &mut left, None, frames.epoch);
                // Values are fetched when the record is made, which is at the exit.
                let exit = Exit {
                    began,
                    self_ns,
                    how: ExitKind::Return,
                    line,
                    result: decode(true).and_then(|values| values.into_iter().next()),
                    whole: Some(Box::default()),
                };
                self.push_call(
                    place,
                    (hit.probe, hit.goroutine, depth),
                    CallEdge::Exit(Box::new(exit)),
                    frames.epoch,
                );
            }
            RawEdge::Throw if role == Role::Unwind => {
                self.shadows.unwind(&hit, &mut left);
                self.left(place, &mut left, None, frames.epoch);
            }
            RawEdge::Throw => {
                let (thrower, thrown) = thrower(call);
                let name = exception.zip(thrown).map(|(name, bytes)| name(bytes));
                let name = name.filter(|name| !name.is_empty()).map(Arc::from);
                let (new, kind) = self.shadows.throw(&hit, name, &mut left);
                self.left(place, &mut left, None, frames.epoch);
                if new {
                    let throw = Throw {
                        at,
                        thread: place.thread,
                        cpu: place.cpu,
                        kind: frames
                            .epoch
                            .tables
                            .string(kind.as_deref().unwrap_or(SOMETHING)),
                        thrower: frame_of_thrower(process, thrower, frames),
                    };
                    frames.epoch.push(Event::Throw(throw));
                }
            }
            RawEdge::Land => {
                self.shadows.land(&hit, resumes, &mut left);
                self.left(place, &mut left, None, frames.epoch);
            }
            RawEdge::Jump => {
                self.shadows.jump(&hit, &mut left);
                self.left(place, &mut left, None, frames.epoch);
            }
        }
        self.left = left;
    }

    /// What the kernel counted of a probe.
    pub(super) fn call_count(&mut self, at: Timestamp, count: RawCallCount, epoch: &mut Epoch) {
        if let Some(function) = self.traced_function(count.probe, epoch) {
            epoch.push(Event::CallCount(CallCount {
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

    /// A time in which calls are missing: of a process, if that is said; should it not be known, a gap of
    /// all would say too much.
    pub(super) fn gap(
        &mut self,
        at: Timestamp,
        gap: RawGap,
        process: Option<ProcessId>,
        epoch: &mut Epoch,
    ) {
        if let Some(probe) = gap.probe {
            self.probes.set_over(probe, false);
        }
        let function = gap
            .probe
            .and_then(|probe| self.traced_function(probe, epoch));
        if function.is_some() == gap.probe.is_some() && process.is_some() == gap.pid.is_some() {
            epoch.push(Event::Gap(Gap {
                from: gap.from,
                to: at,
                function,
                process,
                reason: gap.reason,
            }));
        }
    }

    /// A thread ends, and with the last one its process.
    pub(super) fn end_thread(
        &mut self,
        (at, cpu): (Timestamp, Cpu),
        (pid, tid): (Pid, Tid),
        table: &mut ProcessTable,
        epoch: &mut Epoch,
    ) {
        if !self.is_used() {
            return;
        }
        let mut left = std::mem::take(&mut self.left);
        self.shadows.end_thread(pid, tid, at.0, &mut left);
        self.left_by((at, cpu, tid), &mut left, table, epoch);
        self.left = left;
        let runs = table.thread(tid).is_some_and(|thread| !thread.exited);
        let process = table.get(pid);
        if runs && process.is_some_and(|process| process.threads <= 1) {
            self.end_process((at, cpu), pid, table, epoch);
        }
    }

    /// A process runs another program. What was said of its stacks may have been said of that one
    /// already, before its first instruction.
    pub(super) fn exec(
        &mut self,
        (at, cpu): (Timestamp, Cpu),
        pid: Pid,
        table: &mut ProcessTable,
        epoch: &mut Epoch,
    ) {
        let switches = self.shadows.is_switching(pid);
        self.end_process((at, cpu), pid, table, epoch);
        if switches {
            self.shadows.switches(pid);
        }
    }

    /// A process ends, or runs another program.
    fn end_process(
        &mut self,
        (at, cpu): (Timestamp, Cpu),
        pid: Pid,
        table: &mut ProcessTable,
        epoch: &mut Epoch,
    ) {
        for (tid, mut left) in self.shadows.end_process(pid, at.0) {
            self.left_by((at, cpu, tid), &mut left, table, epoch);
        }
    }

    /// Tells of the records that could not be paired since this was called last.
    pub(super) fn tell_unmatched(&mut self, to: Timestamp, epoch: &mut Epoch) {
        let missing = [
            (&mut self.unmatched, LostReason::Unmatched),
            (&mut self.unknown, LostReason::BadRecord),
        ];
        let missing = missing.map(|(missing, reason)| (std::mem::take(missing), reason));
        for (missing, reason) in missing {
            if missing.count > 0 {
                epoch.push(Event::Lost(Lost {
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
    pub(super) fn suspend(&mut self, at: Timestamp, table: &mut ProcessTable, epoch: &mut Epoch) {
        for (tid, mut left) in self.shadows.suspend(at.0, &How::Inferred) {
            self.left_by((at, Cpu(0), tid), &mut left, table, epoch);
        }
    }

    /// A probe is not watched from now on, or not to the end of calls: nobody will tell of the ends of those that
    /// are open.
    pub(super) fn give_up(
        &mut self,
        at: Timestamp,
        probe: u32,
        table: &mut ProcessTable,
        epoch: &mut Epoch,
    ) {
        self.probes.set_over(probe, true);
        for (tid, mut left) in self.shadows.give_up(probe, at.0) {
            self.left_by((at, Cpu(0), tid), &mut left, table, epoch);
        }
    }

    fn left_by(
        &mut self,
        (at, cpu, tid): (Timestamp, Cpu, Tid),
        left: &mut Vec<Left>,
        table: &mut ProcessTable,
        epoch: &mut Epoch,
    ) {
        if left.is_empty() {
            return;
        }
        match table.announce_thread(tid, None, &mut epoch.tables) {
            Some(thread) => self.left(&Place { at, cpu, thread }, left, None, epoch),
            None => left.clear(),
        }
    }

    /// Tells of calls that were left, at most one of them by returning.
    #[inline]
    fn left(
        &mut self,
        place: &Place,
        left: &mut Vec<Left>,
        mut returned: Option<Returned>,
        epoch: &mut Epoch,
    ) {
        for call in left.drain(..) {
            let mut how_returned = None;
            let how = match call.how {
                How::Return => {
                    how_returned = returned.take();
                    ExitKind::Return
                }
                How::Exception(kind) => {
                    ExitKind::Exception(kind.map(|kind| epoch.tables.string(&kind)))
                }
                How::Terminated => ExitKind::Terminated,
                How::Inferred => ExitKind::Inferred,
                How::Unwatched => ExitKind::Unwatched,
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
            self.push_call(place, (call.probe, call.goroutine, call.depth), edge, epoch);
        }
    }

    #[inline]
    fn push_call(
        &mut self,
        place: &Place,
        (probe, stack, depth): (u32, u32, u32),
        edge: CallEdge,
        epoch: &mut Epoch,
    ) {
        if let Some(function) = self.traced_function(probe, epoch) {
            let call = Call {
                at: place.at,
                thread: place.thread,
                cpu: place.cpu,
                function,
                stack,
                depth,
                edge,
                later: None,
            };
            epoch.push_of(CALL_BYTES, Event::Call(call));
        }
    }
}

fn frame_of_thrower(
    process: Option<&ProcessState>,
    address: u64,
    frames: &mut Frames<'_>,
) -> Option<FrameId> {
    let (process, inside) = (process?, address.checked_sub(1)?);
    process.mappings.find(inside)?;
    Some(frames.frame(process, inside, false))
}

/// What is known of a return.
#[derive(Default)]
struct Returned {
    line: u32,
    result: Option<Value>,
}

/// Where and when a call is told.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    /// When.
    pub(super) at: Timestamp,
    /// On which processor.
    pub(super) cpu: Cpu,
    /// By which thread.
    pub(super) thread: ThreadId,
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
    let (status, payload, behind) = split_item(items)?;
    (status != ITEM_BAD_MEMORY).then_some((payload, behind))
}
