//! The record of one sample: a fixed head, then sections of variable length.
//!
//! ```text
//! SampleHead (64 bytes) | SectionHead, payload | SectionHead, payload | ...
//! ```
//! A section that the reader doesn't know is skipped by its length. Payloads are padded to 8 bytes.
//! What the kernel side has no table for yet comes as a copied piece of the stack behind the frames found so far.

use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::{COMM_LEN, RecordHead};

/// What is known of a sample but its stacks.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, Immutable, IntoBytes)]
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, Immutable, IntoBytes)]
pub struct SectionHead {
    /// A `SECTION_*` constant.
    pub kind: u16,
    /// Why the stack ended: an `END_*` constant; of frames of an interpreter, its number above that.
    pub end: u16,
    /// Length of the payload in bytes, without this head, before padding to 8.
    pub len: u32,
}

/// Kernel stack: u64 addresses, leaf first.
pub const SECTION_KERNEL_STACK: u16 = 1;
/// User stack: u64 addresses, leaf first; [`LEFT_OUT`] among them stands for the middle of a deep one.
pub const SECTION_USER_STACK: u16 = 2;
/// A [`crate::unwind::CopyHead`] and up to [`crate::unwind::COPY_BYTES`] bytes of the user stack: where
/// the walk of the user stack is to go on.
pub const SECTION_STACK_COPY: u16 = 3;
/// Frames of an interpreter, leaf first; which one says the head ([`crate::interpreter::interpreter_of`]).
pub const SECTION_INTERPRETED: u16 = 4;
/// Nothing: what is left of a record whose length is fixed.
pub const SECTION_PADDING: u16 = 5;

/// Set in an address of a user stack behind the leaf that is no return address: a signal came there, or
/// a switch of stacks.
pub const EXACT_ADDRESS: u64 = 1 << 63;

/// What stands at [`crate::INNERMOST_FRAMES`] of a user stack whose middle is left out. No address of code.
pub const LEFT_OUT: u64 = u64::MAX;

/// The walk reached the outermost frame.
pub const END_COMPLETE: u16 = 0;
/// The walk stopped at [`crate::MAX_FRAMES`], or, of a user stack, at [`crate::MAX_USER_DEPTH`]. Then there are
/// [`crate::INNERMOST_FRAMES`].
pub const END_TRUNCATED: u16 = 1;
/// Memory that the walk needed could not be read.
pub const END_BAD_MEMORY: u16 = 2;
/// The chain of frame pointers ended; callers built without frame pointers may be missing.
pub const END_FRAME_POINTER: u16 = 3;
/// The thread has no such stack (a kernel thread has no user stack).
pub const END_NO_STACK: u16 = 4;
/// Nothing says where the caller of the last frame is.
pub const END_NO_RULE: u16 = 5;
/// The last frame is code made at run time that has no frame pointer.
pub const END_JIT: u16 = 6;
/// The last frame's table was not loaded yet. If a copy of the stack follows, it goes on there.
pub const END_NO_TABLE: u16 = 7;
/// The last address is in no known mapping. If a copy of the stack follows, it goes on there: it may be
/// one that the kernel side was not told of yet.
pub const END_NO_MAPPING: u16 = 8;
/// There is no memory any more that the stack was in: the process is ending (its last frame may be
/// given), or `execve` has replaced its memory while the registers are those of before (no frame is).
pub const END_GONE: u16 = 9;
/// The walk reached the outermost frame, and what is kept lacks the middle ([`LEFT_OUT`]).
pub const END_LEFT_OUT: u16 = 12;

const _: () = assert!(size_of::<SampleHead>() == 64);
const _: () = assert!(size_of::<SectionHead>() == 8);
