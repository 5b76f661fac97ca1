//! What tells waits of CPython's functions apart where the machine code is the same.
//!
//! The current thread's innermost frames of the interpreter -> a number. The interpreter calls a function
//! of Python without a frame of machine code, so that callers of one native function have the same
//! registers and depth.
//!
//! What does not belong here: which frames those are (`crate::python`), which only a walk says.

use core::ptr::addr_of_mut;

use profiler_common::{
    interpreter::InterpreterProcess,
    python::{FRAME_INSTRUCTION, FRAME_PREVIOUS},
};

use super::key::mix;
use crate::{
    python::{claim, python_thread, release, workspace},
    user_memory::read_word_or_0,
};

/// How many frames, innermost first, tell.
const FRAMES: u32 = 16;

/// What tells the current thread's frames from others; 0: it has none.
#[inline(always)]
pub fn fingerprint(process: InterpreterProcess) -> u64 {
    let Some((level, scratch)) = claim(process) else {
        return 0;
    };
    // SAFETY: the workspace was claimed just now.
    unsafe {
        addr_of_mut!((*scratch).fingerprint).write_volatile(0);
        if python_thread(level) != 0 {
            for _ in 0..FRAMES {
                if wait_python_step(level) == 0 {
                    break;
                }
            }
        }
        let fingerprint = addr_of_mut!((*scratch).fingerprint).read_volatile();
        release(scratch);
        fingerprint
    }
}

/// Takes one frame in; 0: there are no more.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn wait_python_step(level: u32) -> u32 {
    // SAFETY: the caller has claimed it.
    let Some((scratch, layout)) = (unsafe { workspace(level) }) else {
        return 0;
    };
    let frame = scratch.frame;
    if frame == 0 {
        return 0;
    }
    let at = |word: usize| frame.wrapping_add(u64::from(layout.words[word]));
    // An instruction is in the code object of its function.
    scratch.fingerprint = mix(scratch.fingerprint, read_word_or_0(at(FRAME_INSTRUCTION)));
    scratch.frame = read_word_or_0(at(FRAME_PREVIOUS));
    1
}
