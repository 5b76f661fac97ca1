//! Interpreters: which processes run one, and sections of their frames.
//!
//! ```text
//! INTERPRETER_PROCESSES  process id    -> which interpreter, which layout, where its state is  (InterpreterProcess)
//! INTERPRETER_LAYOUTS    layout number -> offsets                                              (Layout)
//! ```
//! Each interpreter has a number, which no other ever has, and a module for its frames and for what the
//! words of its layouts are. Layouts differ between versions; user space fills in a [`Layout`] for each
//! that it meets. A section of kind [`crate::sample::SECTION_INTERPRETED`] says in its head whose frames it
//! has ([`end_of`]).

use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Most layouts (versions of interpreters) at a time.
pub const MAX_LAYOUTS: u32 = 16;
/// Most processes that run an interpreter at a time.
pub const MAX_INTERPRETER_PROCESSES: u32 = 8192;

/// Value of `INTERPRETER_PROCESSES`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, Immutable, IntoBytes)]
pub struct InterpreterProcess {
    /// Where its state is: an address in the process.
    pub state: u64,
    /// Index of its layout.
    pub layout: u32,
    /// The interpreter's number.
    pub interpreter: u32,
}

/// Where a version of an interpreter keeps what a walk needs. User space and `profiler-ebpf` agree on the
/// meaning of the words.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, Immutable, IntoBytes)]
pub struct Layout {
    /// By the constants of the interpreter's module.
    pub words: [u32; 32],
}

/// [`crate::sample::SectionHead::end`] of a section of frames: why the walk ended, and above that whose
/// frames they are.
#[inline(always)]
pub const fn end_of(end: u16, interpreter: u8) -> u16 {
    (end & 0xff) | (interpreter as u16) << 8
}

/// Whose frames a section has.
#[inline(always)]
pub const fn interpreter_of(end: u16) -> u8 {
    (end >> 8) as u8
}

const _: () = assert!(size_of::<InterpreterProcess>() == 16);
