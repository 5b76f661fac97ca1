//! Frames of interpreters -> a section of a sample, by the program of the interpreter that the current
//! process runs.
//!
//! User space says which process runs which one. An interpreter is a module, and a line of each function
//! here.
//!
//! What does not belong here: how frames are found (`python`), what they mean, which only user space knows.

use aya_ebpf::helpers::bpf_get_current_pid_tgid;
use profiler_common::{interpreter::InterpreterProcess, python::PYTHON};

use crate::{
    maps::{INTERPRETER_PROCESSES, TASK_FSBASE},
    python, sched,
};

/// Most bytes that [`frames`] writes.
pub const SECTION_BYTES: usize = python::PYTHON_BYTES;

/// Writes the section, and returns how many bytes it has: a multiple of 8. None if the current
/// process runs no interpreter, or its thread no code of it.
///
/// # Safety
/// `section` has room for [`SECTION_BYTES`], and is at a multiple of 8.
#[inline(always)]
pub unsafe fn frames(section: *mut u8) -> u64 {
    let Some(process) = current() else {
        return 0;
    };
    match process.interpreter as u8 {
        // SAFETY: the caller's.
        PYTHON => unsafe { python::frames(process, section) },
        _ => 0,
    }
}

/// What tells the current thread's innermost frames from others where the machine code is the same; 0: it
/// has none.
#[inline(always)]
pub fn fingerprint() -> u64 {
    let Some(process) = current() else {
        return 0;
    };
    match process.interpreter as u8 {
        PYTHON => sched::python::fingerprint(process),
        _ => 0,
    }
}

/// The number of the interpreter that a process runs, as far as user space knows; 0: none.
#[inline(always)]
pub fn run_by(tgid: u32) -> u64 {
    if TASK_FSBASE.load() == 0 {
        return 0;
    }
    // SAFETY: a word that is read at once.
    let process = unsafe { INTERPRETER_PROCESSES.get(tgid) };
    process.map_or(0, |process| process.interpreter.into())
}

/// What the current process runs.
#[inline(always)]
fn current() -> Option<InterpreterProcess> {
    if TASK_FSBASE.load() == 0 {
        return None;
    }
    let tgid = (bpf_get_current_pid_tgid() >> 32) as u32;
    // SAFETY: its words are copied at once; should they be of two processes, nothing is found.
    unsafe { INTERPRETER_PROCESSES.get(tgid) }.copied()
}
