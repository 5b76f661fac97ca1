//! The record of one sample: a fixed head, then sections of variable length.
//!
//! ```text
//! SampleHead (64 bytes) | SectionHead, payload | SectionHead, payload | ...
//! ```
//! A section that the reader doesn't know is skipped by its length. Payloads are padded to 8 bytes.
//! Sections for a copied piece of stack and for interpreter frames come with their unwinders; they
//! take the next free kinds, and readers of today step over them.

use crate::{COMM_LEN, RecordHead};

/// What is known of a sample but its stacks.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampleHead {
    /// Kind [`crate::KIND_SAMPLE`].
    pub head: RecordHead,
    /// Nanoseconds of CLOCK_MONOTONIC.
    pub at_ns: u64,
    /// Id of the thread's cgroup in the session's hierarchy; 0: not known.
    pub cgroup: u64,
    /// The period that this sample stands for, in the unit of its source.
    pub weight: u64,
    /// Process id (the kernel's tgid), in the initial namespace.
    pub tgid: u32,
    /// Thread id (the kernel's pid), in the initial namespace.
    pub tid: u32,
    /// Processor that the sample was taken on.
    pub cpu: u32,
    /// Which of the session's event sources fired; an index given at attach time.
    pub source: u16,
    /// `FLAG_*` bits.
    pub flags: u16,
    /// The thread's name, padded with zeros.
    pub comm: [u8; COMM_LEN],
}

/// The thread was in the kernel when the sample was taken.
pub const FLAG_IN_KERNEL: u16 = 1;
/// User space has yet to say whether the thread's cgroup is wanted.
pub const FLAG_UNDECIDED: u16 = 2;

/// Starts a section of a sample.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SectionHead {
    /// A `SECTION_*` constant.
    pub kind: u16,
    /// Why the stack ended: an `END_*` constant.
    pub end: u16,
    /// Length of the payload in bytes, without this head, before padding to 8.
    pub len: u32,
}

/// Kernel stack: u64 addresses, leaf first.
pub const SECTION_KERNEL_STACK: u16 = 1;
/// User stack: u64 addresses, leaf first.
pub const SECTION_USER_STACK: u16 = 2;

/// The walk reached the outermost frame.
pub const END_COMPLETE: u16 = 0;
/// The walk stopped at [`crate::MAX_FRAMES`].
pub const END_TRUNCATED: u16 = 1;
/// Memory that the walk needed could not be read.
pub const END_BAD_MEMORY: u16 = 2;
/// The chain of frame pointers ended; callers built without frame pointers may be missing.
pub const END_FRAME_POINTER: u16 = 3;
/// The thread has no such stack (a kernel thread has no user stack).
pub const END_NO_STACK: u16 = 4;

const _: () = assert!(size_of::<SampleHead>() == 64);
const _: () = assert!(size_of::<SectionHead>() == 8);
