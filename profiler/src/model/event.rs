//! Events: what happened, when, on which thread.

use super::definition::Definition;
use super::id::*;

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A sample of a running thread.
    Sample(Sample),
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
    /// When it happened (for [`Lost`]: the end of the time it speaks of).
    pub fn at(&self) -> Timestamp {
        match self {
            Event::Sample(sample) => sample.at,
            Event::Process(event) => event.at,
            Event::Mark(mark) => mark.at,
            Event::Clock(clock) => clock.monotonic,
            Event::Lost(lost) => lost.to,
        }
    }
}

/// A thread was found running.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    /// When.
    pub at: Timestamp,
    /// Which thread.
    pub thread: ThreadId,
    /// Where.
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
    /// The record gave a reason that this version does not know.
    Unknown = 255,
}

impl StackEnd {
    /// From its number in records and captures.
    pub fn from_code(code: u16) -> StackEnd {
        match code {
            0 => StackEnd::Complete,
            1 => StackEnd::Truncated,
            2 => StackEnd::BadMemory,
            3 => StackEnd::FramePointer,
            4 => StackEnd::NoStack,
            _ => StackEnd::Unknown,
        }
    }
}

/// A process or thread changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessEvent {
    /// When.
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
    /// When.
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
    /// Where.
    pub cpu: Option<Cpu>,
    /// Not before.
    pub from: Timestamp,
    /// Not after.
    pub to: Timestamp,
    /// How many.
    pub count: u64,
    /// Why.
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
}

/// What one step of the walk hands to the next: definitions, then the events that use them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// Ids start anew when this changes; the first epoch is 0.
    pub epoch: u32,
    /// In the order in which they were made.
    pub definitions: Vec<Definition>,
    /// Ordered by time.
    pub events: Vec<Event>,
}
