//! Events: what happened, when, on which thread.

use super::definition::Definition;
use super::id::*;

/// Something that happened.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A sample of a running thread.
    Sample(Sample),
    /// A traced function was entered or left.
    Call(Call),
    /// An exception was thrown, a panic began.
    Throw(Throw),
    /// How often a traced function was called, by the kernel's own count.
    CallCount(CallCount),
    /// Calls in this time are not in the recording.
    Gap(Gap),
    /// How long a thread waited.
    Waits(Waits),
    /// A process or thread changed.
    Process(ProcessEvent),
    /// A marker set by a person or by the profiler.
    Mark(Mark),
    /// Ties CLOCK_MONOTONIC to wall time.
    Clock(Clock),
    /// Something that is not in the recording although it should be.
    Lost(Lost),
}

impl Event {
    /// When it happened (for [`Lost`], [`Gap`], [`Waits`] and [`CallCount`]: the end of the time they speak
    /// of).
    pub fn at(&self) -> Timestamp {
        match self {
            Event::Sample(sample) => sample.at,
            Event::Call(call) => call.at,
            Event::Throw(throw) => throw.at,
            Event::CallCount(count) => count.to,
            Event::Gap(gap) => gap.to,
            Event::Waits(waits) => waits.to,
            Event::Process(event) => event.at,
            Event::Mark(mark) => mark.at,
            Event::Clock(clock) => clock.monotonic,
            Event::Lost(lost) => lost.to,
        }
    }

    /// Whether it tells what was done in the time that was recorded. Of what was there, and of the clock, a recording
    /// tells from before that as well.
    pub fn is_recorded(&self) -> bool {
        matches!(
            self,
            Event::Sample(_) | Event::Call(_) | Event::Throw(_) | Event::Waits(_)
        )
    }
}

/// A thread was found running.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    /// When it was taken; of a wait, when that ended.
    pub at: Timestamp,
    /// Which thread.
    pub thread: ThreadId,
    /// The processor that it was taken on.
    pub cpu: Cpu,
    /// Kernel stack; none if the thread was in user mode or none was asked for.
    pub kernel: Option<StackId>,
    /// User stack.
    pub user: Option<StackId>,
    /// Why the kernel stack ended.
    pub kernel_end: StackEnd,
    /// Why the user stack ended.
    pub user_end: StackEnd,
    /// How much this sample stands for, in the unit of its source.
    pub weight: u64,
    /// What made it.
    pub source: SourceId,
    /// It stands for a time that the thread waited, which ended at `at`; none: it was running.
    pub wait: Option<Wait>,
    /// What a later version says of it besides.
    pub later: Option<Box<Sections>>,
}

impl Sample {
    /// A sample of a running thread without stacks.
    pub fn new(at: Timestamp, thread: ThreadId, cpu: Cpu, source: SourceId, weight: u64) -> Sample {
        Sample {
            at,
            thread,
            cpu,
            kernel: None,
            user: None,
            kernel_end: StackEnd::NoStack,
            user_end: StackEnd::NoStack,
            weight,
            source,
            wait: None,
            later: None,
        }
    }

    /// With how these end, if they are there.
    pub fn with_ends(self, end: StackEnd) -> Sample {
        let of = |stack: Option<StackId>| stack.map_or(StackEnd::NoStack, |_| end);
        Sample {
            kernel_end: of(self.kernel),
            user_end: of(self.user),
            ..self
        }
    }

    /// With these stacks; whole, where there is one.
    pub fn with_stacks(self, kernel: Option<StackId>, user: Option<StackId>) -> Sample {
        Sample {
            kernel,
            user,
            kernel_end: StackEnd::usual(kernel),
            user_end: StackEnd::usual(user),
            ..self
        }
    }
}

/// Parts of an event in a capture that a later version wrote, and this one does not know. They refer to nothing, and
/// are as they came, so that a copy of the capture has them too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sections(pub Box<[u8]>);

/// The name of the source whose samples are waits.
pub const OFF_CPU: &str = "off-cpu";

/// A time in which a thread was not running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// How long it was.
    pub ns: u64,
    /// How long of that the thread could have run, but had no processor.
    pub runnable_ns: u64,
    /// What the thread did meanwhile.
    pub state: WaitState,
    /// Who ended it, if that was a thread.
    pub waker: Option<ThreadId>,
    /// How many waits this one stands for: more than 1 where there were too many to record each.
    pub count: u32,
    /// It was told while it went on: when the recording ended, or a part of it that stands alone. What came of it
    /// then, if anything, is told by another one of the thread, which begins where this ends.
    pub open: bool,
}

impl Wait {
    /// Whether it had not ended when the recording did: nobody has made the thread runnable.
    pub fn goes_on(&self) -> bool {
        self.state != WaitState::Preempted && self.waker.is_none() && self.runnable_ns == 0
    }

    /// The part of the wait that lies within a span of time, if it ended at `at`; none if nothing
    /// does. What is runnable is its end.
    pub fn within(&self, at: Timestamp, from: Timestamp, to: Timestamp) -> Option<Wait> {
        let part = |ns: u64| {
            let began = at.0.saturating_sub(ns).max(from.0);
            at.0.min(to.0).saturating_sub(began)
        };
        let ns = part(self.ns);
        (ns > 0 || (self.ns == 0 && from <= at && at < to)).then_some(Wait {
            ns,
            runnable_ns: part(self.runnable_ns.min(self.ns)),
            ..*self
        })
    }
}

/// Why a thread was not running.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum WaitState {
    /// It could have run: another one was put in its place.
    Preempted = 0,
    /// It waited for something, and could be interrupted.
    Sleeping = 1,
    /// It waited for something and could not be interrupted: a disk, as a rule.
    Disk = 2,
    /// It was stopped, or is traced.
    Stopped = 3,
}

impl WaitState {
    /// From its number in records and captures.
    pub fn from_code(code: u32) -> Option<WaitState> {
        Some(match code {
            0 => WaitState::Preempted,
            1 => WaitState::Sleeping,
            2 => WaitState::Disk,
            3 => WaitState::Stopped,
            _ => return None,
        })
    }
}

/// How long a thread waited since the last such event, by the kernel's own count. Exact, whatever
/// became of the single waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waits {
    /// Which thread.
    pub thread: ThreadId,
    /// Since when.
    pub from: Timestamp,
    /// Until when.
    pub to: Timestamp,
    /// How many waits ended, by [`WaitState`].
    pub count: [u64; 4],
    /// How long they were, by [`WaitState`].
    pub ns: [u64; 4],
    /// Of all that: runnable, but without a processor.
    pub runnable_ns: u64,
}

/// A traced function was entered or left.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    /// When it was entered or left.
    pub at: Timestamp,
    /// On which thread; of a goroutine: the one on which the outermost of its open calls was entered.
    pub thread: ThreadId,
    /// The processor that it was seen on.
    pub cpu: Cpu,
    /// Which function.
    pub function: FunctionId,
    /// Which of the process's stacks it is on: 0 for the thread's own, else a goroutine's number, whatever thread runs
    /// that.
    pub stack: u32,
    /// How many traced calls enclose it on its stack; 0 for the outermost.
    pub depth: u32,
    /// Entered or left.
    pub edge: CallEdge,
    /// What a later version says of it besides.
    pub later: Option<Box<Sections>>,
}

/// Which end of a call it is.
#[derive(Clone, Debug, PartialEq)]
pub enum CallEdge {
    /// Entered; an [`CallEdge::Exit`] of the same function at the same depth of this stack follows,
    /// unless the recording ends first. With its arguments, if they were asked for.
    Enter(Option<Box<[Value]>>),
    /// Left. The calls of a stack are strictly nested: the exits of enclosed calls come before.
    Exit(Box<Exit>),
    /// Passed; no exit is watched (a function traced at its entry only, a USDT marker).
    Hit(Option<Box<[Value]>>),
}

/// How a call ended. Says all about the call, so that a consumer needs no stacks of its own.
#[derive(Clone, Debug, PartialEq)]
pub struct Exit {
    /// When it was entered.
    pub began: Timestamp,
    /// Its duration less that of the traced calls directly in it.
    pub self_ns: u64,
    /// How it was left.
    pub how: ExitKind,
    /// Line of source that it was left from; 0: not known.
    pub line: u32,
    /// What it returned, if that was asked for and it returned.
    pub result: Option<Value>,
    /// Without an [`CallEdge::Enter`] of its own, because only calls of a least duration are recorded:
    /// its arguments, as far as they are known.
    pub whole: Option<Box<[Value]>>,
}

/// How a function was left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ExitKind {
    /// By returning, or by a tail call.
    Return,
    /// By an exception that passed through; its type, if it is known.
    Exception(Option<StringId>),
    /// The thread or process ended, or runs another program.
    Terminated,
    /// The exit itself was not seen (longjmp, a lost record): it had been left at this time at the
    /// latest.
    Inferred,
    /// It was not watched any more from this time on, or is not known to have been: how long it took is not known.
    Unwatched,
}

/// A value in a program, as its type says.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A signed integer.
    Signed(i64),
    /// An unsigned integer.
    Unsigned(u64),
    /// A floating-point number.
    Float(f64),
    /// A truth value.
    Bool(bool),
    /// A character.
    Char(char),
    /// One of an enumeration's names, with its number.
    Named(Box<str>, i64),
    /// An address.
    Pointer(u64),
    /// Text, and whether that is only its beginning.
    Text(Box<str>, bool),
    /// Named parts.
    Struct(Box<[(Box<str>, Value)]>),
    /// An address that could not be read.
    Unreadable(u64),
    /// A value that can't be had where the probe is (floating-point registers).
    Unavailable,
}

/// An exception was thrown, a panic began.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Throw {
    /// When it was thrown.
    pub at: Timestamp,
    /// On which thread.
    pub thread: ThreadId,
    /// The processor that it was seen on.
    pub cpu: Cpu,
    /// Its type: `std::runtime_error`, `Rust panic`.
    pub kind: StringId,
    /// The code that threw.
    pub thrower: Option<FrameId>,
}

/// The kernel's own count of a function's calls since the last such event. Exact whatever became of
/// the records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallCount {
    /// Which function.
    pub function: FunctionId,
    /// Since when.
    pub from: Timestamp,
    /// Until when.
    pub to: Timestamp,
    /// Entries (for a function traced at its entry only: hits).
    pub entries: u64,
    /// Exits.
    pub exits: u64,
    /// Records lost for want of room.
    pub lost: u64,
    /// Calls left out because of a limit on depth, duration or rate.
    pub left_out: u64,
}

/// Calls in this time are not in the recording, or not whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gap {
    /// Not before.
    pub from: Timestamp,
    /// Not after.
    pub to: Timestamp,
    /// Of which function; none: of all that are traced in the process.
    pub function: Option<FunctionId>,
    /// In which process; none: in all.
    pub process: Option<ProcessId>,
    /// Why calls are missing.
    pub reason: GapReason,
}

/// Why calls are missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum GapReason {
    /// The code was mapped, or the process began, before the probes could be attached.
    NotYetAttached = 1,
    /// Over budget: exits are not watched any more, entries are.
    NoReturns = 2,
    /// Over budget: watched only a part of the time; this is one of the other parts.
    DutyCycle = 3,
    /// Over budget: not watched any more.
    Detached = 4,
    /// Tracing was suspended by whoever asked for it.
    Suspended = 5,
    /// Of another program's agent: events did not come, or it had no room for them.
    MissingData = 6,
    /// Of another program's agent: the run was cut off before its end; what followed is not known.
    CutOff = 7,
}

impl GapReason {
    /// Nothing is seen, to stay within the budget: what is seen else is a sample of it.
    pub fn is_sampled(self) -> bool {
        matches!(self, GapReason::DutyCycle | GapReason::Detached)
    }
}

/// Why a stack has no more frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum StackEnd {
    /// The outermost frame was reached.
    Complete = 0,
    /// The limit of frames was reached.
    Truncated = 1,
    /// Memory could not be read.
    BadMemory = 2,
    /// The chain of frame pointers ended; frames may be missing.
    FramePointer = 3,
    /// There is no such stack (user mode has no kernel stack, a kernel thread no user stack).
    NoStack = 4,
    /// Nothing says where the caller of the last frame is.
    NoRule = 5,
    /// The last frame is code made at run time without a frame pointer.
    Jit = 6,
    /// The unwind table of the last frame's file was not there in time.
    NoTable = 7,
    /// The last address is in no known mapping.
    NoMapping = 8,
    /// There was no memory any more that the stack had been in: the process was ending, or replacing
    /// its program. Nothing is missing that could be there.
    Gone = 9,
    /// What was imported does not say whether the stack is whole.
    NotSaid = 10,
    /// Only the leaf was recorded.
    LeafOnly = 11,
    /// The outermost frame was reached, and the middle of the stack is left out.
    LeftOut = 12,
    /// The record gave a reason that this version does not know.
    Unknown = 255,
}

impl GapReason {
    /// Whether calls were not recorded to stay within the budget.
    pub fn is_for_budget(self) -> bool {
        matches!(
            self,
            GapReason::NoReturns | GapReason::DutyCycle | GapReason::Detached
        )
    }

    /// Whether there may have been calls that nobody counted: without returns, entries are counted on.
    pub fn hides_calls(self) -> bool {
        self != GapReason::NoReturns
    }

    /// What is missing in it.
    pub fn hides(self) -> &'static str {
        match self.hides_calls() {
            true => "calls",
            false => "returns",
        }
    }
}

impl StackEnd {
    /// How a stack ended if nothing more is known: it is whole, if there is one.
    pub fn usual(stack: Option<StackId>) -> StackEnd {
        match stack {
            Some(_) => StackEnd::Complete,
            None => StackEnd::NoStack,
        }
    }

    /// Whether frames are known to be missing that could have been there.
    pub fn is_cut(self) -> bool {
        !matches!(
            self,
            StackEnd::Complete | StackEnd::NoStack | StackEnd::Gone | StackEnd::NotSaid
        )
    }

    /// Whether there was such a stack, whatever is known of it: also one of which nothing was found. Who counts stacks by
    /// how they ended counts these.
    pub fn is_of_a_stack(self) -> bool {
        !matches!(self, StackEnd::NoStack | StackEnd::Gone)
    }

    /// Whether there were more frames than are kept.
    pub fn is_too_deep(self) -> bool {
        matches!(self, StackEnd::Truncated | StackEnd::LeftOut)
    }

    /// From its number in records and captures.
    pub fn from_code(code: u16) -> StackEnd {
        match code {
            0 => StackEnd::Complete,
            1 => StackEnd::Truncated,
            2 => StackEnd::BadMemory,
            3 => StackEnd::FramePointer,
            4 => StackEnd::NoStack,
            5 => StackEnd::NoRule,
            6 => StackEnd::Jit,
            7 => StackEnd::NoTable,
            8 => StackEnd::NoMapping,
            9 => StackEnd::Gone,
            10 => StackEnd::NotSaid,
            11 => StackEnd::LeafOnly,
            12 => StackEnd::LeftOut,
            _ => StackEnd::Unknown,
        }
    }
}

/// A process or thread changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessEvent {
    /// When it changed.
    pub at: Timestamp,
    /// Which thread (the main thread, if the change is the process's).
    pub thread: ThreadId,
    /// What changed.
    pub change: ProcessChange,
}

/// What changed about a process or thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessChange {
    /// The thread (or process, for its main thread) was created.
    Started,
    /// The process replaced its program; the name is the new one's.
    Executed(StringId),
    /// The thread changed its name.
    Renamed(StringId),
    /// The thread ended.
    Exited,
}

/// A marker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    /// The time that it marks.
    pub at: Timestamp,
    /// What it says.
    pub text: StringId,
}

/// The same instant on two clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clock {
    /// CLOCK_MONOTONIC.
    pub monotonic: Timestamp,
    /// Nanoseconds since 1970 (CLOCK_REALTIME).
    pub realtime_ns: u64,
}

/// A known gap in the recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lost {
    /// The processor whose events are missing; none: any.
    pub cpu: Option<Cpu>,
    /// Not before.
    pub from: Timestamp,
    /// Not after.
    pub to: Timestamp,
    /// How many.
    pub count: u64,
    /// Why they are missing.
    pub reason: LostReason,
}

/// Why something was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum LostReason {
    /// A sample found no room in its ring buffer.
    RingFull = 1,
    /// A sample interrupted another one's program, and no scratch memory was left.
    Nested = 2,
    /// The kernel skipped ticks because a BPF program was running (an estimate).
    Skipped = 3,
    /// Process events of the kernel were lost; /proc was read again.
    SideBand = 4,
    /// The event came after later ones had been passed on.
    Late = 5,
    /// The output was slower than the events.
    SlowOutput = 6,
    /// The kernel side sent a record that could not be decoded.
    BadRecord = 7,
    /// A record of a traced call found no room in its ring buffer.
    CallRingFull = 8,
    /// An exit without an entry: the call began before its probe was attached, or its entry was lost.
    Unmatched = 9,
    /// A sample of a container of which nobody could say in time whether it is one of those asked for.
    Undecided = 10,
    /// A wait began and there was no room to remember it.
    WaitTable = 11,
    /// A thread left its processor once more, but that it had come there was not seen: so the end of a
    /// wait is not known. Some kernels tell no tracepoint in the context of some tasks.
    WaitUnseen = 12,
    /// A wait found no room in its ring buffer.
    WaitRingFull = 13,
    /// A wait ended while another one was told on the same processor, and no scratch memory was left.
    WaitNested = 14,
    /// Calls that there was no room to remember: too many were open, or too many threads were there.
    TooMany = 15,
    /// An event of another kind than those below, when the capture could not be written: the disk was full, most often.
    Unwritten = 16,
    /// A sample of what ran, then.
    UnwrittenSamples = 17,
    /// A wait.
    UnwrittenWaits = 18,
    /// A record of a call.
    UnwrittenCalls = 19,
    /// The kernel's count of the waits of a thread.
    UnwrittenCounts = 20,
}

/// What was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LostKind {
    /// Samples of what ran, one of each tick.
    Samples,
    /// Waits.
    Waits,
    /// Any of these: what it was is not known any more.
    Events,
    /// Records of traced calls.
    Calls,
    /// Process events of the kernel, which /proc made up for.
    ProcessEvents,
    /// Nothing: calls that had begun before they were watched.
    Begun,
}

impl LostReason {
    /// Whether the capture could not be written.
    pub const fn is_unwritten(self) -> bool {
        matches!(
            self,
            LostReason::Unwritten
                | LostReason::UnwrittenSamples
                | LostReason::UnwrittenWaits
                | LostReason::UnwrittenCalls
                | LostReason::UnwrittenCounts
        )
    }

    /// What is missing for this reason.
    pub const fn kind(self) -> LostKind {
        match self {
            LostReason::RingFull
            | LostReason::Nested
            | LostReason::Skipped
            | LostReason::Undecided
            | LostReason::UnwrittenSamples => LostKind::Samples,
            LostReason::WaitTable
            | LostReason::WaitUnseen
            | LostReason::WaitRingFull
            | LostReason::WaitNested
            | LostReason::UnwrittenWaits => LostKind::Waits,
            LostReason::Late
            | LostReason::SlowOutput
            | LostReason::BadRecord
            | LostReason::Unwritten
            | LostReason::UnwrittenCounts => LostKind::Events,
            LostReason::CallRingFull | LostReason::TooMany | LostReason::UnwrittenCalls => {
                LostKind::Calls
            }
            LostReason::SideBand => LostKind::ProcessEvents,
            LostReason::Unmatched => LostKind::Begun,
        }
    }
}

/// What one step of the walk hands to the next: definitions, then the events that use them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Batch {
    /// Ids start anew when this changes; the first epoch is 0.
    pub epoch: u32,
    /// In the order in which they were made.
    pub definitions: Vec<Definition>,
    /// Ordered by time.
    pub events: Vec<Event>,
}
