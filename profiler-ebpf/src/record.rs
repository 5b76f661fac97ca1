//! A record that is made in a workspace: a head, behind it the stacks of the current thread, a section each.
//!
//! Lengths are bytes, all multiples of 8, so that what is written is aligned.
//!
//! What does not belong here: the heads (`sample`, `sched::stacks`), how a stack is found (`stack`, `unwind`,
//! `interpreter`), and how a record is sent (`emit`).

use core::{arch::asm, ffi::c_void, ptr::addr_of_mut};

use profiler_common::sample::SampleHead;

use crate::{
    interpreter,
    maps::{NESTING_LEVELS, RECORD_BYTES, SCRATCH, Scratch, USER_STACKS},
    stack, unwind,
};

/// A workspace that no interrupted program uses; to be given back by [`release`].
#[inline(always)]
pub fn claim() -> Option<*mut Scratch> {
    for level in 0..NESTING_LEVELS {
        let scratch = SCRATCH.get_ptr_mut(level)?;
        // SAFETY: this processor's own slot, which the lookup returned. A program that interrupts
        // between the two accesses has released the slot when this one goes on.
        unsafe {
            let busy = addr_of_mut!((*scratch).busy);
            if busy.read_volatile() == 0 {
                busy.write_volatile(1);
                addr_of_mut!((*scratch).level).write_volatile(level.into());
                return Some(scratch);
            }
        }
    }
    None
}

/// Gives back a workspace.
///
/// # Safety
/// `scratch` is claimed, and not used after this.
#[inline(always)]
pub unsafe fn release(scratch: *mut Scratch) {
    // SAFETY: the caller's.
    unsafe { addr_of_mut!((*scratch).busy).write_volatile(0) };
}

/// Whose stacks they are, and what is known of them.
pub struct Wanted {
    pub tgid: u32,
    pub at_ns: u64,
    /// Whether there is a kernel stack, and it is wanted.
    pub kernel: bool,
    /// The walk by tables whose first registers have been taken; without one the kernel's own walk by
    /// frame pointers is used.
    pub walk: Option<u32>,
}

/// Writes the stacks of the current thread behind a head of `HEAD` bytes. Returns the length of the
/// record, within its bounds.
///
/// # Safety
/// `ctx` is the program's context; `scratch` is claimed by it; if there is a walk, it is this program's.
#[inline(always)]
pub unsafe fn sections<const HEAD: usize>(
    ctx: *mut c_void,
    scratch: *mut Scratch,
    wanted: Wanted,
) -> u64 {
    const { assert!(HEAD <= MOST_HEAD_BYTES) };
    // SAFETY: the record has room for the head and all sections at their longest: see the bounds of
    // their offsets below.
    unsafe {
        let record = addr_of_mut!((*scratch).record).cast::<u8>();
        let len = addr_of_mut!((*scratch).len);
        len.write_volatile(HEAD as u64);
        if wanted.kernel {
            let bytes = stack::kernel(ctx, record.add(HEAD));
            len.write_volatile(HEAD as u64 + bytes);
        }
        if USER_STACKS.load() != 0 {
            let at = at_most::<USER_AT>(len.read_volatile());
            let section = record.add(at as usize);
            let mut copies = 0;
            let bytes = if let Some(walk) = wanted.walk {
                copies = unwind::unwind_walk(walk, wanted.tgid, wanted.at_ns);
                unwind::section(section, walk)
            } else {
                stack::user(ctx, section)
            };
            len.write_volatile(at + bytes);
            let at = at_most::<FRAMES_AT>(len.read_volatile());
            let bytes = interpreter::frames(record.add(at as usize));
            len.write_volatile(at + bytes);
            if let Some(walk) = wanted.walk
                && copies != 0
            {
                let at = at_most::<COPY_AT>(len.read_volatile());
                let bytes = unwind::copy(record.add(at as usize), walk);
                len.write_volatile(at + bytes);
            }
        }
        at_most::<{ RECORD_BYTES as u64 }>(len.read_volatile())
    }
}

/// Most bytes in front of the sections that follow the first.
const USER_AT: u64 = (MOST_HEAD_BYTES + STACK_SECTION_BYTES) as u64;
const FRAMES_AT: u64 = USER_AT + unwind::USER_SECTION_BYTES as u64;
const COPY_AT: u64 = FRAMES_AT + interpreter::SECTION_BYTES as u64;

const MOST_HEAD_BYTES: usize = size_of::<SampleHead>();
const STACK_SECTION_BYTES: usize = 8 + stack::STACK_BYTES as usize;

const _: () = {
    assert!(STACK_SECTION_BYTES <= unwind::USER_SECTION_BYTES);
    assert!(USER_AT as usize + unwind::SECTION_ROOM <= RECORD_BYTES);
    assert!(COPY_AT as usize + unwind::COPY_SECTION_BYTES <= RECORD_BYTES);
    assert!(core::mem::offset_of!(Scratch, record).is_multiple_of(8));
};

/// `offset`, in a form from which the verifier sees that it is at most `MOST`, a mask.
#[inline(always)]
pub fn bound<const MOST: u64>(offset: u64) -> u64 {
    let mut bounded = offset;
    // SAFETY: a plain AND of a register.
    unsafe { asm!("{0} &= {most}", inout(reg) bounded, most = const MOST) };
    bounded
}

/// `len`, in a form from which the verifier sees that it is at most `MOST`. Jumps are such that it follows
/// lengths in general before the greatest, which it then takes for one of them.
#[inline(always)]
fn at_most<const MOST: u64>(len: u64) -> u64 {
    let mut bounded = len;
    // SAFETY: comparisons and a move of a register; the jumps lead behind them.
    unsafe {
        asm!(
            "if {0} > {most} goto +1",
            "goto +1",
            "{0} = {most}",
            inout(reg) bounded,
            most = const MOST,
        )
    };
    bounded
}
