//! Records and limits shared by the kernel-side programs and user space.
//!
//! The kernel side writes these structures into BPF ring buffers, `profiler::decode` casts them
//! back. All integers are in the byte order of the machine, all times are nanoseconds of
//! CLOCK_MONOTONIC (`bpf_ktime_get_ns`). Sizes are asserted at compile time, because the two sides
//! are built by different compilers.
//!
//! What does not belong here: anything that allocates, anything that only one side needs.

#![cfg_attr(not(test), no_std)]

pub mod call;
pub mod cgroup;
pub mod control;
pub mod interpreter;
pub mod python;
pub mod sample;
pub mod sched;
pub mod unwind;

use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Most frames of a stack that the kernel's own walkers find, and of a user stack that are found by tables
/// whatever that takes.
pub const MAX_FRAMES: usize = 127;

/// Most frames of a user stack that are looked for, each by a step of a walk: what is deeper has no
/// outermost frame.
pub const MAX_USER_DEPTH: usize = 16 * MAX_FRAMES;

/// Frames kept of a user stack: of one that has more, [`INNERMOST_FRAMES`], in place of the middle
/// [`sample::LEFT_OUT`], and [`OUTERMOST_FRAMES`].
pub const MAX_USER_FRAMES: usize = INNERMOST_FRAMES + OUTERMOST_FRAMES;
/// See [`MAX_USER_FRAMES`].
pub const INNERMOST_FRAMES: usize = 384;
/// See [`MAX_USER_FRAMES`].
pub const OUTERMOST_FRAMES: usize = 127;

/// Length of a thread's name in the kernel, its terminating zero included.
pub const COMM_LEN: usize = 16;

/// Version of the record layout; user space refuses an object that speaks another.
pub const RECORD_VERSION: u16 = 1;

/// What a ring buffer record is; the first field of each.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, Immutable, IntoBytes)]
pub struct RecordHead {
    /// Length of the whole record in bytes, this head and all sections included.
    pub len: u32,
    /// A `KIND_*` constant.
    pub kind: u16,
    /// [`RECORD_VERSION`].
    pub version: u16,
}

/// A [`sample::SampleHead`] followed by its sections.
pub const KIND_SAMPLE: u16 = 1;

/// A [`cgroup::CgroupHead`] followed by a path.
pub const KIND_CGROUP: u16 = 3;

/// A [`sched::WaitStackHead`] followed by sections.
pub const KIND_WAIT_STACK: u16 = 4;

/// A [`sched::WaitRecord`].
pub const KIND_WAIT: u16 = 5;

/// A [`sched::WaitTotalsRecord`].
pub const KIND_WAIT_TOTALS: u16 = 6;

const _: () = assert!(size_of::<RecordHead>() == 8);
