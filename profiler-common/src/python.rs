//! Frames of CPython: where its structures have their members, and what a sample says of them.
//!
//! Offsets of a [`crate::interpreter::Layout`] are bytes. A thread is known by its thread pointer, which is
//! what `pthread_self` returns: so a process may be in any pid namespace.

use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Its number: see [`crate::interpreter`].
pub const PYTHON: u8 = 1;
/// Most frames of a stack.
pub const MAX_PYTHON_FRAMES: u32 = 127;
/// Most thread states and interpreters of a process that are looked through for one thread.
pub const MAX_PYTHON_THREADS: u32 = 128;

/// One frame of the interpreter, leaf first, in a section of kind
/// [`crate::sample::SECTION_INTERPRETED`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, Immutable, IntoBytes)]
pub struct PythonFrame {
    /// Address of its code object. 0: no frame; there is nothing but its flags.
    pub code: u64,
    /// Address of its instruction.
    pub instruction: u64,
    /// `PYTHON_*` bits; above [`FINGERPRINT_SHIFT`] what tells the code object from others that may take its
    /// place ([`fingerprint_of`]), 0 if it could not be read.
    pub flags: u64,
}

/// The frame was called from machine code: the interpreter's own function was entered for it.
pub const PYTHON_ENTRY: u64 = 1;
/// Its callers are missing: there was no room, or memory could not be read.
pub const PYTHON_CUT: u64 = 2;

/// Where in the flags the fingerprint of a code object begins.
pub const FINGERPRINT_SHIFT: u32 = 8;

/// What tells a code object from another one at the same address: of the addresses of its path, name
/// and location table.
#[inline(always)]
pub const fn fingerprint_of(filename: u64, qualname: u64, linetable: u64) -> u64 {
    (filename ^ qualname.rotate_left(17) ^ linetable.rotate_left(31)) << FINGERPRINT_SHIFT
        >> FINGERPRINT_SHIFT
}

/// Word of a layout: of the first interpreter, in the runtime.
pub const INTERPRETERS: usize = 0;
/// Word of a layout: of the next interpreter, in an interpreter.
pub const INTERPRETER_NEXT: usize = 1;
/// Word of a layout: of the first thread state, in an interpreter.
pub const INTERPRETER_THREADS: usize = 2;
/// Word of a layout: bytes of a thread state that have all that is asked for here; at most
/// [`BLOCK_BYTES`].
pub const THREAD_BYTES: usize = 3;
/// Word of a layout: of the next thread state, in a thread state. Less than [`BLOCK_BYTES`], a
/// multiple of 8, as all that is in thread states and frames.
pub const THREAD_NEXT: usize = 4;
/// Word of a layout: of the thread pointer, in a thread state.
pub const THREAD_ID: usize = 5;
/// Word of a layout: of the innermost frame, in a thread state; or of what refers to that.
pub const THREAD_FRAME: usize = 6;
/// Word of a layout: one more than the offset of the innermost frame in what the thread state
/// refers to; 0: the thread state has it itself.
pub const HOLDER_FRAME: usize = 7;
/// Word of a layout: bytes of a frame that have all that is asked for here; at most
/// [`BLOCK_BYTES`].
pub const FRAME_BYTES: usize = 8;
/// Word of a layout: of the code object, in a frame.
pub const FRAME_CODE: usize = 9;
/// Word of a layout: of the caller's frame, in a frame.
pub const FRAME_PREVIOUS: usize = 10;
/// Word of a layout: of the instruction, in a frame.
pub const FRAME_INSTRUCTION: usize = 11;
/// Word of a layout: of the word of a frame that tells whether the frame was called from machine
/// code.
pub const FRAME_ENTRY: usize = 12;
/// Word of a layout: which bits of that are looked at: a shift to the right, then a mask of 8 bits.
pub const ENTRY_SHIFT: usize = 13;
/// Word of a layout: 0: bits other than 0 say that the frame itself was; else what the bits are in
/// a frame that stands for the machine code, and is none itself.
pub const ENTRY_SHIM: usize = 14;
/// Word of a layout: of `co_filename` in a code object; `co_name`, `co_qualname` and `co_linetable`
/// follow.
pub const CODE_TEXTS: usize = 15;

/// Most bytes of a structure that are read at a time, a power of two.
pub const BLOCK_BYTES: usize = 256;

const _: () = assert!(size_of::<PythonFrame>() == 24);
