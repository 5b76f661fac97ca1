//! Stacks -> sections of a sample.
//!
//! Each function writes one [`SectionHead`] and u64 addresses, leaf first, and returns the bytes
//! written. The kernel's own walkers are used here: exact for kernel code, frame pointers for user
//! code. Walks of user stacks by tables are in `unwind`.

use core::{arch::asm, ffi::c_void};

use aya_ebpf::{bindings::BPF_F_USER_STACK, helpers::bpf_get_stack};
use profiler_common::{
    MAX_FRAMES,
    sample::{
        END_BAD_MEMORY, END_COMPLETE, END_FRAME_POINTER, END_TRUNCATED, SECTION_KERNEL_STACK,
        SECTION_USER_STACK, SectionHead,
    },
};

/// Most bytes of addresses in a section.
pub const STACK_BYTES: u32 = (MAX_FRAMES * 8) as u32;

use crate::maps::KERNEL_WALK_FRAMES;

const HEAD_BYTES: u64 = size_of::<SectionHead>() as u64;

/// Writes the kernel stack. Nothing is written if there is none.
///
/// # Safety
/// `ctx` is the program's context; `section` has room for a section head and [`STACK_BYTES`], and is
/// at a multiple of 8.
#[inline(always)]
pub unsafe fn kernel(ctx: *mut c_void, section: *mut u8) -> u64 {
    // SAFETY: the caller's.
    unsafe { walk(ctx, section, 0, SECTION_KERNEL_STACK, END_COMPLETE) }
}

/// Writes the user stack. Nothing is written if there is none.
///
/// # Safety
/// As for [`kernel`].
#[inline(always)]
pub unsafe fn user(ctx: *mut c_void, section: *mut u8) -> u64 {
    let flags = u64::from(BPF_F_USER_STACK);
    // The kernel does not say whether the chain of frame pointers ended at the outermost frame.
    // SAFETY: the caller's.
    unsafe { walk(ctx, section, flags, SECTION_USER_STACK, END_FRAME_POINTER) }
}

#[inline(always)]
unsafe fn walk(ctx: *mut c_void, section: *mut u8, flags: u64, kind: u16, end: u16) -> u64 {
    // SAFETY: the caller leaves room for the head and the addresses.
    let bytes = unsafe {
        let addresses = section.add(size_of::<SectionHead>());
        bpf_get_stack(ctx, addresses.cast(), STACK_BYTES, flags)
    };
    if bytes == 0 {
        return 0;
    }
    let (len, end) = if bytes < 0 {
        (0, END_BAD_MEMORY)
    } else {
        let len = bound(bytes as u64);
        // The kernel does not say that there were more.
        let most = u64::from(KERNEL_WALK_FRAMES.load()) * 8;
        (len, if len >= most { END_TRUNCATED } else { end })
    };
    let head = SectionHead {
        kind,
        end,
        len: len as u32,
    };
    // SAFETY: as above.
    unsafe { section.cast::<SectionHead>().write(head) };
    HEAD_BYTES + len
}

/// `bytes`, in a form from which the verifier sees that it is at most [`STACK_BYTES`]. The compiler
/// would remove a mask that it finds redundant.
#[inline(always)]
pub fn bound(bytes: u64) -> u64 {
    let mut bounded = bytes;
    // SAFETY: a plain AND of a register.
    unsafe { asm!("{0} &= 0x3f8", inout(reg) bounded) };
    bounded
}

const _: () = assert!(STACK_BYTES == 0x3f8);
