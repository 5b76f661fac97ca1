//! Traced calls: per function, per chain of callers, per thread; the slowest; the exceptions.
//!
//! Input: events ordered by time; output: sums and distributions in nanoseconds. Whatever is not
//! known for sure is kept apart: calls seen and calls counted by the kernel, ends that were inferred
//! (they are in `total_ns` as upper bounds, not in the distribution), calls still open, gaps.
//!
//! Bounded by [`CallLimits`], except for one entry per traced function, thread, and function of a
//! process. What does not belong here: names, percentages, layout.

mod contexts;
mod gaps;
mod open;
mod slowest;
mod throws;

use std::borrow::Cow;
use std::collections::{BTreeMap, VecDeque};

use rustc_hash::FxHashMap;

pub use contexts::{Context, ROOT, UNKNOWN_CALLERS};
pub use gaps::GapSum;
pub use slowest::SlowCall;
pub use throws::{ThrowKind, ThrowSum};

use super::latency::Latency;
use contexts::{Contexts, Position};
use gaps::Gaps;
use open::{Ended, Open, OpenCalls};
use profiler_model::*;
use slowest::{ArgumentBytes, Slowest};
use throws::Throws;

/// Most exception types that are told apart for one function.
const MAX_TYPES: usize = 64;

/// Threads that are remembered after their end.
const MAX_ENDED: usize = 1024;

/// What an event is to a fold that looks at a part of the recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// It counts.
    Counted,
    /// At another time: it tells what encloses later calls, and what is still open.
    OtherTime,
    /// Of another function: it tells what encloses later calls.
    OtherFunction,
}

/// How much is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallLimits {
    /// Nodes of the tree of contexts; what is beyond is folded into its callers.
    pub contexts: usize,
    /// Depth of that tree.
    pub depth: usize,
    /// Slowest calls.
    pub slowest: usize,
    /// Bytes of arguments of open calls.
    pub argument_bytes: usize,
}

impl Default for CallLimits {
    fn default() -> Self {
        CallLimits {
            contexts: 1 << 16,
            depth: 128,
            slowest: 10,
            argument_bytes: 64 << 20,
        }
    }
}

/// Calls by the kernel's own count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// Entries.
    pub entries: u64,
    /// Exits.
    pub exits: u64,
    /// Records lost for want of room.
    pub lost: u64,
    /// Left out because of a limit on depth, duration or rate.
    pub left_out: u64,
}

/// All about the calls of one function.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FunctionCalls {
    /// Calls whose end is in the recording.
    pub ended: u64,
    /// Passes of a place whose exits are not watched.
    pub hits: u64,
    /// Time in it, counted once where it calls itself.
    pub total_ns: u64,
    /// Time in it but not in the traced calls directly in it.
    pub self_ns: u64,
    /// Durations of the calls whose end was seen.
    pub latency: Latency,
    /// Calls left by an exception, by its type.
    pub exceptions: BTreeMap<Option<StringId>, u64>,
    /// Calls left by exceptions of still other types.
    pub other_exceptions: u64,
    /// Calls that ended with their thread or program: their durations are upper bounds.
    pub terminated: u64,
    /// Calls whose end was inferred: their durations are upper bounds.
    pub inferred: u64,
    /// Calls that were not watched to their end: in no time.
    pub unwatched: u64,
    counted: Option<Counted>,
    /// Calls in each process.
    pub processes: BTreeMap<ProcessId, u64>,
    entered: u64,
    left: u64,
    /// Calls since the kernel's count was told: a recording that was cut off has some.
    since: u64,
}

impl FunctionCalls {
    /// Calls whose entry is in the recording but not their exit.
    pub fn open(&self) -> u64 {
        self.entered.saturating_sub(self.left)
    }

    /// Calls in the recording.
    pub fn seen(&self) -> u64 {
        self.ended + self.hits + self.open()
    }

    /// Calls: as the kernel counted them, if it did.
    pub fn calls(&self) -> u64 {
        let counted = self.counted().map_or(0, |counted| counted.entries);
        counted.max(self.seen())
    }

    /// The kernel's count, if the recording has it, and what was recorded after it was told.
    pub fn counted(&self) -> Option<Counted> {
        let counted = self.counted?;
        Some(Counted {
            entries: counted.entries.saturating_add(self.since),
            ..counted
        })
    }

    /// Calls left by an exception.
    pub fn thrown(&self) -> u64 {
        self.exceptions.values().sum::<u64>() + self.other_exceptions
    }

    /// Adds the calls of another span of time.
    pub fn merge(&mut self, other: &FunctionCalls) {
        self.ended += other.ended;
        self.hits += other.hits;
        self.total_ns = self.total_ns.saturating_add(other.total_ns);
        self.self_ns = self.self_ns.saturating_add(other.self_ns);
        self.latency.merge(&other.latency);
        for (&kind, &count) in &other.exceptions {
            self.add_exceptions(kind, count);
        }
        self.other_exceptions += other.other_exceptions;
        self.terminated += other.terminated;
        self.inferred += other.inferred;
        self.unwatched += other.unwatched;
        if let Some(more) = &other.counted {
            self.counted.get_or_insert_default().add(more);
        }
        for (&process, &calls) in &other.processes {
            *self.processes.entry(process).or_default() += calls;
        }
        self.entered += other.entered;
        self.left += other.left;
        // Spans follow each other: a count is of what was recorded since the one before.
        self.since = match other.counted {
            Some(_) => other.since,
            None => self.since + other.since,
        };
    }

    fn end(&mut self, total_ns: u64, exit: &Exit) {
        self.ended += 1;
        if exit.how != ExitKind::Unwatched {
            self.self_ns = self.self_ns.saturating_add(exit.self_ns);
        }
        if is_timed(exit) {
            self.latency.record(total_ns);
        }
        match exit.how {
            ExitKind::Return => {}
            ExitKind::Exception(kind) => self.add_exceptions(kind, 1),
            ExitKind::Terminated => self.terminated += 1,
            ExitKind::Inferred => self.inferred += 1,
            ExitKind::Unwatched => self.unwatched += 1,
        }
    }

    fn add_exceptions(&mut self, kind: Option<StringId>, count: u64) {
        match self.exceptions.len() < MAX_TYPES || self.exceptions.contains_key(&kind) {
            true => *self.exceptions.entry(kind).or_default() += count,
            false => self.other_exceptions += count,
        }
    }
}

/// Whether exits of calls may be what was lost, of calls that are not known by that to have lost them.
fn may_be_exits(reason: LostReason) -> bool {
    matches!(
        reason,
        LostReason::UnwrittenCalls | LostReason::Unwritten | LostReason::SlowOutput
    )
}

/// Whether it is known how long a call took. One that ended with its thread may have been left long before, by longjmp:
/// nothing was seen of it since.
fn is_timed(exit: &Exit) -> bool {
    matches!(exit.how, ExitKind::Return | ExitKind::Exception(_))
}

impl Counted {
    fn add(&mut self, more: &Counted) {
        for (sum, more) in [
            (&mut self.entries, more.entries),
            (&mut self.exits, more.exits),
            (&mut self.lost, more.lost),
            (&mut self.left_out, more.left_out),
        ] {
            *sum = sum.saturating_add(more);
        }
    }
}

/// Calls of one thread, of all functions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThreadCalls {
    /// Calls that ended, and hits.
    pub calls: u64,
    /// Time in calls that no other traced call encloses.
    pub total_ns: u64,
    /// Calls left by an exception.
    pub thrown: u64,
}

/// The fold over calls.
#[derive(Clone, Debug)]
pub struct CallTable {
    functions: FxHashMap<FunctionId, FunctionCalls>,
    threads: FxHashMap<ThreadId, ThreadCalls>,
    open: FxHashMap<StackOwner, OpenCalls>,
    /// Threads that ended: the ends of their calls may come a little later.
    ended: VecDeque<ThreadId>,
    contexts: Contexts,
    slowest: Slowest,
    arguments: ArgumentBytes,
    throws: Throws,
    gaps: Gaps,
    /// Up to when records of calls, once made, did not get into the recording.
    unwritten_until: Timestamp,
    any: bool,
}

impl Default for CallTable {
    fn default() -> Self {
        CallTable::new(CallLimits::default())
    }
}

impl CallTable {
    /// An empty table.
    pub fn new(limits: CallLimits) -> CallTable {
        CallTable {
            functions: FxHashMap::default(),
            threads: FxHashMap::default(),
            open: FxHashMap::default(),
            ended: VecDeque::new(),
            contexts: Contexts::new(limits.contexts.max(2), limits.depth),
            slowest: Slowest::new(limits.slowest),
            arguments: ArgumentBytes::new(limits.argument_bytes),
            throws: Throws::default(),
            gaps: Gaps::default(),
            unwritten_until: Timestamp(0),
            any: false,
        }
    }

    /// Takes one event.
    pub fn add(&mut self, event: &Event, tables: &Tables, part: Part) {
        let counted = part == Part::Counted;
        match event {
            Event::Call(call) => self.call(call, tables, part),
            Event::Throw(throw) => {
                self.any |= counted;
                self.throws.thrown(throw, counted);
            }
            Event::CallCount(count) => {
                self.gaps.lost(count);
                if !counted {
                    return;
                }
                self.any = true;
                let calls = self.functions.entry(count.function).or_default();
                calls.since = 0;
                calls.counted.get_or_insert_default().add(&Counted {
                    entries: count.entries,
                    exits: count.exits,
                    lost: count.lost,
                    left_out: count.left_out,
                });
            }
            Event::Gap(gap) if counted => {
                self.any = true;
                self.gaps.add(gap);
            }
            Event::Process(ProcessEvent {
                thread,
                change: ProcessChange::Exited,
                ..
            }) => self.exited(*thread),
            Event::Lost(lost) if may_be_exits(lost.reason) => {
                self.unwritten_until = self.unwritten_until.max(lost.to);
            }
            _ => {}
        }
    }

    fn call(&mut self, call: &Call, tables: &Tables, part: Part) {
        let counted = part == Part::Counted;
        self.any |= counted;
        let begins = match &call.edge {
            CallEdge::Enter(_) | CallEdge::Hit(_) => true,
            CallEdge::Exit(exit) => exit.whole.is_some(),
        };
        if begins && counted {
            self.gaps.called(call.function, call.thread, call.at);
        }
        match &call.edge {
            CallEdge::Enter(values) => {
                let arguments = match self.slowest.is_wanted() && counted {
                    true => self.arguments.keep(values),
                    false => None,
                };
                let owner = StackOwner::of(call, tables);
                let open = self.open.entry(owner).or_default();
                if let Some(forgotten) = open.enter(&mut self.contexts, call, arguments) {
                    self.arguments.free(&forgotten.arguments);
                }
                if part != Part::OtherFunction {
                    let calls = self.functions.entry(call.function).or_default();
                    calls.entered += 1;
                    calls.since += 1;
                }
            }
            CallEdge::Hit(_) if counted => {
                let depth = call.depth;
                let calls = self.functions.entry(call.function).or_default();
                calls.hits += 1;
                calls.since += 1;
                count_process(calls, call.thread, tables);
                self.threads.entry(call.thread).or_default().calls += 1;
                let ended = Ended {
                    depth,
                    function: call.function,
                    began: call.at,
                    total_ns: 0,
                    self_ns: 0,
                    counted,
                };
                self.place_whole(StackOwner::of(call, tables), ended);
            }
            CallEdge::Hit(_) => {}
            CallEdge::Exit(exit) => self.exit(call, exit, tables, counted),
        }
    }

    fn exit(&mut self, call: &Call, exit: &Exit, tables: &Tables, counted: bool) {
        // Of how long it took nothing is known but that it was longer.
        let (total_ns, self_ns) = match exit.how {
            ExitKind::Unwatched => (0, 0),
            _ => (call.at.since(exit.began), exit.self_ns),
        };
        let ended = Ended {
            depth: call.depth,
            function: call.function,
            began: exit.began,
            total_ns,
            self_ns,
            counted,
        };
        let owner = StackOwner::of(call, tables);
        let arguments = match &exit.whole {
            Some(_) => {
                self.place_whole(owner, ended);
                None
            }
            None => self.leave(owner, &ended),
        };
        if !counted {
            self.arguments.free(&arguments);
            return;
        }
        let calls = self.functions.entry(call.function).or_default();
        calls.end(ended.total_ns, exit);
        calls.since += u64::from(exit.whole.is_some());
        count_process(calls, call.thread, tables);
        let thread = self.threads.entry(call.thread).or_default();
        thread.calls += 1;
        if call.depth == 0 {
            thread.total_ns = thread.total_ns.saturating_add(ended.total_ns);
        }
        if let ExitKind::Exception(kind) = exit.how {
            thread.thrown += 1;
            self.throws.left(call.thread, kind);
        }
        self.arguments.free(&arguments);
        if is_timed(exit) || exit.how == ExitKind::Terminated {
            self.slowest.offer(ended.total_ns, || SlowCall {
                function: call.function,
                thread: call.thread,
                began: exit.began,
                total_ns: ended.total_ns,
                self_ns: exit.self_ns,
                how: exit.how,
                line: exit.line,
                arguments: exit.whole.clone().filter(|w| !w.is_empty()).or(arguments),
                result: exit.result.clone(),
            });
        }
    }

    /// A call with an entry of its own ends; gives back its arguments.
    fn leave(&mut self, owner: StackOwner, ended: &Ended) -> Option<Box<[Value]>> {
        let calls = self.open.entry(owner).or_default();
        let open = calls.leave(ended);
        // Goroutines come and go, and nobody says that one has ended.
        if calls.is_empty() && matches!(owner, StackOwner::Goroutine(..)) {
            self.open.remove(&owner);
        }
        let (position, within_ns, arguments) = match open {
            Some(open) => {
                if let Some(calls) = self.functions.get_mut(&ended.function) {
                    calls.left += 1;
                }
                (open.position, open.within_ns, open.arguments)
            }
            // Entered before the recording.
            None if ended.depth == 0 => (
                self.contexts.position(Position::ROOT, ended.function),
                0,
                None,
            ),
            None => (
                self.contexts.position(Position::UNKNOWN, ended.function),
                0,
                None,
            ),
        };
        settle(
            &mut self.functions,
            &mut self.contexts,
            ended,
            position,
            ended.total_ns.saturating_sub(within_ns),
        );
        arguments
    }

    fn place_whole(&mut self, owner: StackOwner, ended: Ended) {
        let CallTable {
            open,
            contexts,
            functions,
            ..
        } = self;
        let open = open.entry(owner).or_default();
        open.ended(contexts, ended, |contexts, ended, position, new_ns| {
            settle(functions, contexts, ended, position, new_ns);
        });
    }

    fn exited(&mut self, thread: ThreadId) {
        self.ended.push_back(thread);
        if self.ended.len() <= MAX_ENDED {
            return;
        }
        let Some(thread) = self.ended.pop_front() else {
            return;
        };
        self.throws.forget(thread);
        if let Some(open) = self.settle_stack(StackOwner::Thread(thread)) {
            for Open { arguments, .. } in open.into_open() {
                self.arguments.free(&arguments);
            }
        }
    }

    fn settle_stack(&mut self, owner: StackOwner) -> Option<OpenCalls> {
        let mut open = self.open.remove(&owner)?;
        let functions = &mut self.functions;
        open.settle(&mut self.contexts, |contexts, ended, position, new_ns| {
            settle(functions, contexts, ended, position, new_ns);
        });
        Some(open)
    }

    /// The table with all calls in their places, also those that still waited for their callers.
    pub fn settled(&self) -> Cow<'_, CallTable> {
        if !self.open.values().any(OpenCalls::is_waiting) {
            return Cow::Borrowed(self);
        }
        let mut settled = self.clone();
        let mut owners: Vec<StackOwner> = self.open.keys().copied().collect();
        // Ids of contexts are given in this order.
        owners.sort_unstable();
        for owner in owners {
            if let Some(open) = settled.settle_stack(owner) {
                settled.open.insert(owner, open);
            }
        }
        Cow::Owned(settled)
    }

    /// Whether there was anything about calls.
    pub fn is_empty(&self) -> bool {
        !self.any
    }

    /// All functions that were called, counted, or open, in no order.
    pub fn functions(&self) -> impl Iterator<Item = (FunctionId, &FunctionCalls)> {
        self.functions.iter().map(|(&id, calls)| (id, calls))
    }

    /// The calls since the last time, leaving what is open: for a window that slides. Sums of
    /// threads begin anew.
    pub fn take_functions(&mut self) -> FxHashMap<FunctionId, FunctionCalls> {
        self.threads.clear();
        std::mem::take(&mut self.functions)
    }

    /// Of the calls that are open, those whose ends may be among what did not get into the recording.
    pub fn without_written_end(&self) -> FxHashMap<FunctionId, u64> {
        let until = self.unwritten_until;
        if until == Timestamp(0) {
            return FxHashMap::default();
        }
        let open = self.functions.iter();
        let mut all: FxHashMap<FunctionId, u64> =
            open.map(|(&id, calls)| (id, calls.open())).collect();
        let later = self.open.values().flat_map(OpenCalls::open);
        for call in later.filter(|call| call.began > until) {
            if let Some(count) = all.get_mut(&call.function) {
                *count = count.saturating_sub(1);
            }
        }
        all
    }

    /// All threads with calls, in no order.
    pub fn threads(&self) -> impl Iterator<Item = (ThreadId, ThreadCalls)> + '_ {
        self.threads.iter().map(|(&id, &calls)| (id, calls))
    }

    /// The tree of contexts: [`ROOT`] first, callers before what they call.
    pub fn contexts(&self) -> &[Context] {
        self.contexts.nodes()
    }

    /// Calls that were too deep or in too many contexts to have nodes of their own.
    pub fn folded(&self) -> u64 {
        self.contexts.folded()
    }

    /// The slowest calls, the slowest first.
    pub fn slowest(&self) -> Vec<&SlowCall> {
        self.slowest.sorted()
    }

    /// Calls whose arguments found no room until they ended.
    pub fn arguments_dropped(&self) -> u64 {
        self.arguments.dropped
    }

    /// Exceptions by type and thrower, in no order.
    pub fn throws(&self) -> impl Iterator<Item = (ThrowKind, ThrowSum)> + '_ {
        self.throws.iter()
    }

    /// Exceptions that were only counted.
    pub fn throws_folded(&self) -> u64 {
        self.throws.folded
    }

    /// All gaps of one reason.
    pub fn gaps(&self, reason: GapReason) -> GapSum {
        self.gaps.of_reason(reason)
    }

    /// How long a function was affected by gaps of a reason, in the process where that was longest.
    pub fn gap_ns(&self, function: FunctionId, reason: GapReason) -> u64 {
        match self.gaps.is_empty() {
            true => 0,
            false => self.gaps.longest_ns(function, reason),
        }
    }

    /// How many calls of a function the gaps of the budget hid, if watching one costs so much; none if what was
    /// watched does not say so.
    pub fn hidden(&self, function: FunctionId, cost_ns: Option<u32>) -> Option<u64> {
        self.gaps.hidden(function, cost_ns)
    }
}

fn count_process(calls: &mut FunctionCalls, thread: ThreadId, tables: &Tables) {
    if let Some(thread) = tables.thread(thread) {
        *calls.processes.entry(thread.process).or_default() += 1;
    }
}

/// Counts a call that ended in its context, and into its function's total what is in no other call of
/// the function.
fn settle(
    functions: &mut FxHashMap<FunctionId, FunctionCalls>,
    contexts: &mut Contexts,
    ended: &Ended,
    position: Position,
    new_ns: u64,
) {
    if !ended.counted {
        return;
    }
    contexts.add(position, ended.total_ns, ended.self_ns);
    if new_ns > 0 {
        let calls = functions.entry(ended.function).or_default();
        calls.total_ns = calls.total_ns.saturating_add(new_ns);
    }
}
