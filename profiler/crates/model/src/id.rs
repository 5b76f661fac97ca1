//! Identifiers: newtypes that can't be mixed up.
//!
//! Kernel ids ([`Pid`], [`Tid`], [`Cpu`]) come from the kernel; epoch ids ([`StackId`], ...) are
//! dense, start at 1 and are valid within one epoch of one capture or live stream.

use std::fmt;
use std::num::NonZeroU32;

/// A process: the kernel's tgid, in the initial pid namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Pid(pub u32);

/// A thread: the kernel's pid, in the initial pid namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Tid(pub u32);

/// A processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Cpu(pub u32);

/// A point in time: nanoseconds of CLOCK_MONOTONIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Timestamp(pub u64);

/// A GNU build id (or another digest that identifies an object file), 1 to 32 bytes.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BuildId(pub Box<[u8]>);

impl fmt::Display for BuildId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for BuildId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BuildId({self})")
    }
}

impl fmt::Display for Pid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for Tid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Starts of one task that are told by the kernel and by /proc, which counts in ticks of 10 ms, differ
/// by no more, in nanoseconds.
pub const START_SLACK_NS: u64 = 25_000_000;
/// Making a task takes no longer than this, also where its parent is put off.
const FORK_SLACK_NS: u64 = 1_000_000_000;

impl Timestamp {
    /// Whether a task that began at one of both times, whoever tells that, may be one that began at the
    /// other.
    pub fn is_same_start(self, other: Timestamp) -> bool {
        self.0.abs_diff(other.0) <= START_SLACK_NS
    }

    /// Whether a task of which the kernel told at this time that it was forked may be one that began then. The kernel
    /// tells it when the task is made whole: longer after its beginning where its parent waited for a processor
    /// meanwhile.
    pub fn tells_of_start(self, began: Timestamp) -> bool {
        self.is_same_start(began) || (began <= self && self.since(began) <= FORK_SLACK_NS)
    }

    /// Nanoseconds since `earlier`, 0 if that is later.
    pub fn since(self, earlier: Timestamp) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// A dense id of one kind of definition.
pub trait EpochId: Copy {
    /// The id of the definition at `index` of its table.
    fn from_index(index: usize) -> Self;
    /// Index into the table of this kind.
    fn index(self) -> usize;
    /// The id as written in captures: 1 and up.
    fn get(self) -> u32;
    /// The id from its written form; 0 is none.
    fn new(value: u32) -> Option<Self>;
}

macro_rules! epoch_ids {
    ($($(#[$doc:meta])* $name:ident)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(NonZeroU32);

        impl EpochId for $name {
            fn from_index(index: usize) -> Self {
                // Tables are bounded far below 2^32 entries; saturating keeps this total.
                let value = u32::try_from(index).unwrap_or(u32::MAX).saturating_add(1);
                $name(NonZeroU32::new(value).unwrap_or(NonZeroU32::MAX))
            }
            fn index(self) -> usize {
                self.0.get() as usize - 1
            }
            fn get(self) -> u32 {
                self.0.get()
            }
            fn new(value: u32) -> Option<Self> {
                NonZeroU32::new(value).map($name)
            }
        }
    )*};
}

epoch_ids! {
    /// An interned string.
    StringId
    /// An event source: what made samples, and their unit.
    SourceId
    /// What processes run in: a container or a unit.
    ContainerId
    /// One life of a process: pid and start time.
    ProcessId
    /// One life of a thread: tid and start time.
    ThreadId
    /// An object file, the kernel, or another thing that code lives in.
    ModuleId
    /// A module in the memory of a process.
    MappingId
    /// A function of a module.
    FunctionId
    /// One place in code.
    FrameId
    /// A frame and its callers.
    StackId
}
