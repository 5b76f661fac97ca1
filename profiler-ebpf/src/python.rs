//! Frames of CPython -> a section of a sample.
//!
//! A process of which user space says that it runs CPython: its list of thread states is searched
//! for the current thread, by the thread pointer, and the thread's list of frames is followed. All
//! that is read is the target's: lists may be cyclic and pointers may lead anywhere, so each loop has
//! a bound. State is in a workspace and a turn of a loop is a global function: the verifier checks
//! such a function once, and would follow the turns of a loop one by one.
//!
//! What does not belong here: what code objects mean, which only user space reads.

use core::{arch::asm, ffi::c_void, mem::MaybeUninit, ptr::addr_of_mut};

use aya_ebpf::helpers::{
    bpf_get_current_task,
    generated::{bpf_probe_read_kernel, bpf_probe_read_user},
};
use profiler_common::{
    interpreter::{InterpreterProcess, Layout, end_of},
    python::{
        BLOCK_BYTES, CODE_TEXTS, ENTRY_SHIFT, ENTRY_SHIM, FINGERPRINT_SHIFT, FRAME_BYTES,
        FRAME_CODE, FRAME_ENTRY, FRAME_INSTRUCTION, FRAME_PREVIOUS, HOLDER_FRAME, INTERPRETER_NEXT,
        INTERPRETER_THREADS, INTERPRETERS, MAX_PYTHON_FRAMES, MAX_PYTHON_THREADS, PYTHON,
        PYTHON_CUT, PYTHON_ENTRY, PythonFrame, THREAD_BYTES, THREAD_FRAME, THREAD_ID, THREAD_NEXT,
        fingerprint_of,
    },
    sample::{END_BAD_MEMORY, END_COMPLETE, END_TRUNCATED, SECTION_INTERPRETED, SectionHead},
};

use crate::{
    maps::{INTERPRETER_LAYOUTS, PYTHON_SCRATCH, PythonScratch, TASK_FSBASE, WALKS_AT_A_TIME},
    unwind::has_no_memory,
    user_memory::read_word_or_0,
};

/// Most bytes that [`frames`] writes.
pub const PYTHON_BYTES: usize = HEAD_BYTES + FRAMES_BYTES;

const HEAD_BYTES: usize = size_of::<SectionHead>();
const FRAMES_BYTES: usize = MAX_PYTHON_FRAMES as usize * size_of::<PythonFrame>();

/// Writes the section, and returns how many bytes it has: a multiple of 8. None if the current
/// thread, of a process that runs CPython, runs no code of it.
///
/// # Safety
/// `section` has room for [`PYTHON_BYTES`], and is at a multiple of 8.
#[inline(always)]
pub unsafe fn frames(process: InterpreterProcess, section: *mut u8) -> u64 {
    let Some((level, scratch)) = claim(process) else {
        return 0;
    };
    // SAFETY: the workspace was claimed just now; the rest is the caller's.
    unsafe {
        let mut bytes = 0;
        if python_thread(level) != 0 {
            bytes = copy(scratch, section, python_walk(level));
        }
        release(scratch);
        bytes
    }
}

/// Begins to look at the frames of the current thread, for [`python_thread`]: a workspace, to be given
/// back by [`release`]. None if the process has given its memory back.
#[inline(always)]
pub fn claim(process: InterpreterProcess) -> Option<(u32, *mut PythonScratch)> {
    if has_no_memory() {
        return None;
    }
    for level in 0..WALKS_AT_A_TIME as u32 {
        let scratch = PYTHON_SCRATCH.get_ptr_mut(level)?;
        // SAFETY: this processor's own slot, which the lookup returned. As for the sampler's
        // workspaces, who interrupts between the two accesses is done when this one goes on.
        unsafe {
            if addr_of_mut!((*scratch).busy).read_volatile() != 0 {
                continue;
            }
            addr_of_mut!((*scratch).busy).write_volatile(1);
            (*scratch).runtime = process.state;
            (*scratch).layout = u64::from(process.layout);
        }
        return Some((level, scratch));
    }
    None
}

/// Gives back a workspace.
///
/// # Safety
/// `scratch` is claimed.
#[inline(always)]
pub unsafe fn release(scratch: *mut PythonScratch) {
    // SAFETY: the caller's.
    unsafe { addr_of_mut!((*scratch).busy).write_volatile(0) };
}

/// A claimed workspace, and how the structures of its process are laid out.
///
/// # Safety
/// It is claimed by the caller, who has no other reference to it that is used while this one is.
#[inline(always)]
pub unsafe fn workspace(level: u32) -> Option<(&'static mut PythonScratch, &'static Layout)> {
    // SAFETY: this processor's own slot, which the lookup returned; the rest is the caller's.
    let scratch = unsafe { &mut *PYTHON_SCRATCH.get_ptr_mut(level)? };
    let layout = INTERPRETER_LAYOUTS.get(scratch.layout as u32)?;
    Some((scratch, layout))
}

/// Puts the frames that were found into the section.
///
/// # Safety
/// `scratch` is claimed; for `section` see [`frames`].
#[inline(always)]
unsafe fn copy(scratch: *mut PythonScratch, section: *mut u8, end: u32) -> u64 {
    // SAFETY: the caller's; the length is bounded by what there is room for.
    unsafe {
        let mut len = (*scratch).count * size_of::<PythonFrame>() as u64;
        asm!("{0} &= 0xfff", inout(reg) len);
        if len == 0 || len > FRAMES_BYTES as u64 {
            return 0;
        }
        let from = addr_of_mut!((*scratch).frames).cast::<c_void>();
        if bpf_probe_read_kernel(section.add(HEAD_BYTES).cast(), len as u32, from) != 0 {
            return 0;
        }
        section.cast::<SectionHead>().write(SectionHead {
            kind: SECTION_INTERPRETED,
            end: end_of(end as u16, PYTHON),
            len: len as u32,
        });
        HEAD_BYTES as u64 + len
    }
}

/// Finds the innermost frame of the current thread, and says whether there is one.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn python_thread(level: u32) -> u32 {
    // SAFETY: the caller has claimed it.
    let Some((scratch, layout)) = (unsafe { workspace(level) }) else {
        return 0;
    };
    let mut pointer = 0_u64;
    // SAFETY: the task is the kernel's own; a fault makes the helper fail.
    let read = unsafe {
        bpf_probe_read_kernel(
            addr_of_mut!(pointer).cast(),
            8,
            (bpf_get_current_task() + u64::from(TASK_FSBASE.load())) as *const c_void,
        )
    };
    if read != 0 || pointer == 0 {
        return 0;
    }
    scratch.interpreter =
        read_word_or_0(scratch.runtime.wrapping_add(offset(layout, INTERPRETERS)));
    scratch.pointer = pointer;
    scratch.thread = 0;
    for _ in 0..MAX_PYTHON_THREADS {
        let found = python_next_thread(level);
        if found != GO_ON {
            return found;
        }
    }
    0
}

/// What a turn returns if there may be another one.
const GO_ON: u32 = 0xffff;

/// Looks at one thread state, or for the first one of the next interpreter: [`GO_ON`], or what
/// [`python_thread`] is to say.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn python_next_thread(level: u32) -> u32 {
    // SAFETY: the caller has claimed it.
    let Some((scratch, layout)) = (unsafe { workspace(level) }) else {
        return 0;
    };
    if scratch.thread == 0 {
        let interpreter = scratch.interpreter;
        if interpreter == 0 {
            return 0;
        }
        let threads = offset(layout, INTERPRETER_THREADS);
        scratch.thread = read_word_or_0(interpreter.wrapping_add(threads));
        let next = offset(layout, INTERPRETER_NEXT);
        scratch.interpreter = read_word_or_0(interpreter.wrapping_add(next));
        return GO_ON;
    }
    if !read_block(scratch, scratch.thread, layout.words[THREAD_BYTES]) {
        return 0;
    }
    if field(scratch, layout, THREAD_ID) == scratch.pointer {
        let mut frame = field(scratch, layout, THREAD_FRAME);
        let holder = offset(layout, HOLDER_FRAME);
        if frame != 0 && holder != 0 {
            frame = read_word_or_0(frame.wrapping_add(holder - 1));
        }
        if frame != 0 {
            scratch.frame = frame;
            return 1;
        }
        // A thread may have a state in each interpreter; this one runs nothing.
    }
    scratch.thread = field(scratch, layout, THREAD_NEXT);
    GO_ON
}

/// Follows the frames, and says why it ended: an `END_*` constant.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn python_walk(level: u32) -> u32 {
    let Some(scratch) = PYTHON_SCRATCH.get_ptr_mut(level) else {
        return 0;
    };
    // SAFETY: the caller has claimed it.
    let scratch = unsafe { &mut *scratch };
    scratch.count = 0;
    // Whether the last frame may still turn out to have been called from machine code.
    scratch.open = 0;
    // Each frame may have one before it that stands for machine code.
    for _ in 0..2 * MAX_PYTHON_FRAMES {
        let end = python_step(level);
        if end != GO_ON {
            return end;
        }
    }
    mark_last(scratch, PYTHON_CUT);
    u32::from(END_TRUNCATED)
}

/// Takes one frame: [`GO_ON`], or why the walk is over.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn python_step(level: u32) -> u32 {
    // SAFETY: the caller has claimed it.
    let Some((scratch, layout)) = (unsafe { workspace(level) }) else {
        return 0;
    };
    if scratch.frame == 0 {
        return u32::from(END_COMPLETE);
    }
    if !read_block(scratch, scratch.frame, layout.words[FRAME_BYTES]) {
        mark_last(scratch, PYTHON_CUT);
        return u32::from(END_BAD_MEMORY);
    }
    scratch.frame = field(scratch, layout, FRAME_PREVIOUS);
    let shift = layout.words[ENTRY_SHIFT] & 63;
    let entry = (field(scratch, layout, FRAME_ENTRY) >> shift) & 0xff;
    let shim = offset(layout, ENTRY_SHIM);
    let frame = if shim != 0 && entry == shim {
        if scratch.open != 0 {
            mark_last(scratch, PYTHON_ENTRY);
            scratch.open = 0;
            return GO_ON;
        }
        PythonFrame {
            code: 0,
            instruction: 0,
            flags: PYTHON_ENTRY,
        }
    } else {
        scratch.open = 1;
        let code = field(scratch, layout, FRAME_CODE);
        let fingerprint = fingerprint_at(code.wrapping_add(offset(layout, CODE_TEXTS)));
        let called = shim == 0 && entry != 0;
        PythonFrame {
            code,
            instruction: field(scratch, layout, FRAME_INSTRUCTION),
            flags: fingerprint << FINGERPRINT_SHIFT | if called { PYTHON_ENTRY } else { 0 },
        }
    };
    if !put(scratch, frame) {
        mark_last(scratch, PYTHON_CUT);
        return u32::from(END_TRUNCATED);
    }
    GO_ON
}

/// Adds a frame; false if there is no room.
#[inline(always)]
fn put(scratch: &mut PythonScratch, frame: PythonFrame) -> bool {
    let mut index = scratch.count;
    // SAFETY: a plain AND of a register, from which the verifier sees the bound.
    unsafe { asm!("{0} &= 127", inout(reg) index) };
    if index >= u64::from(MAX_PYTHON_FRAMES) {
        return false;
    }
    // SAFETY: below the number of frames that there is room for.
    unsafe {
        addr_of_mut!(scratch.frames)
            .cast::<PythonFrame>()
            .add(index as usize)
            .write(frame)
    };
    scratch.count = index + 1;
    true
}

/// Adds flags to the frame that was added last.
#[inline(always)]
fn mark_last(scratch: &mut PythonScratch, flags: u64) {
    if scratch.count == 0 {
        return;
    }
    let mut index = scratch.count - 1;
    // SAFETY: a plain AND of a register, from which the verifier sees the bound; there is room for
    // 128 frames.
    unsafe {
        asm!("{0} &= 127", inout(reg) index);
        let frame = addr_of_mut!(scratch.frames)
            .cast::<PythonFrame>()
            .add(index as usize);
        (*frame).flags |= flags;
    }
}

#[inline(always)]
fn offset(layout: &Layout, word: usize) -> u64 {
    u64::from(layout.words[word])
}

/// What tells a code object from others, by its four texts at `address`.
#[inline(always)]
fn fingerprint_at(address: u64) -> u64 {
    // Not zeroed first, which the compiler would do byte by byte.
    let mut texts = MaybeUninit::<[u64; 4]>::uninit();
    // SAFETY: the helper checks the address; on a fault it leaves zeros.
    let [filename, _, qualname, linetable] = unsafe {
        bpf_probe_read_user(texts.as_mut_ptr().cast(), 32, address as *const c_void);
        texts.assume_init()
    };
    fingerprint_of(filename, qualname, linetable)
}

/// Reads the beginning of a structure.
#[inline(always)]
fn read_block(scratch: &mut PythonScratch, address: u64, bytes: u32) -> bool {
    let mut len = u64::from(bytes);
    // SAFETY: a plain AND of a register; the block has room for a few bytes more than that.
    unsafe {
        asm!("{0} &= 0x1ff", inout(reg) len);
        if len > BLOCK_BYTES as u64 {
            return false;
        }
        let block = addr_of_mut!(scratch.block).cast();
        bpf_probe_read_user(block, len as u32, address as *const c_void) == 0
    }
}

/// A word of the structure that was read last.
#[inline(always)]
fn field(scratch: &PythonScratch, layout: &Layout, word: usize) -> u64 {
    let mut index = u64::from(layout.words[word]);
    // SAFETY: a plain AND of a register, from which the verifier sees that a word fits behind it.
    unsafe {
        asm!("{0} &= 0xf8", inout(reg) index);
        (&raw const scratch.block)
            .cast::<u8>()
            .add(index as usize)
            .cast::<u64>()
            .read()
    }
}

const _: () = assert!(BLOCK_BYTES == 0xff + 1 && MAX_PYTHON_FRAMES == 127);
