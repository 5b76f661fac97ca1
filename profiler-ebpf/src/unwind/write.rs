//! What a walk has found -> sections of a record: the addresses, and a copy of the stack where user space is
//! to go on.

use core::{
    arch::asm,
    ptr::{addr_of, addr_of_mut},
};

use aya_ebpf::helpers::generated::{
    bpf_probe_read_kernel as read_kernel, bpf_probe_read_user as read_user,
};
use profiler_common::{
    INNERMOST_FRAMES, MAX_USER_FRAMES, OUTERMOST_FRAMES,
    sample::{
        END_COMPLETE, END_LEFT_OUT, LEFT_OUT, SECTION_STACK_COPY, SECTION_USER_STACK, SectionHead,
    },
    unwind::{COPY_BYTES, CopyHead, REGISTERS},
};

use super::{FP, PAGE_BYTES, SP};
use crate::{
    maps::{WALKS, Walk},
    record::bound,
};

/// Most bytes of a section with a user stack: all that are kept, and what stands for the middle.
pub const USER_SECTION_BYTES: usize = size_of::<SectionHead>() + 8 * (MAX_USER_FRAMES + 1);
/// The verifier does not see that what is behind a place and before it make up no more than all.
pub const SECTION_ROOM: usize = USER_SECTION_BYTES + RING_MASK as usize;

const INNERMOST_BYTES: u32 = 8 * INNERMOST_FRAMES as u32;
/// What an offset into the ring of outer frames has.
const RING_MASK: u64 = 8 * OUTERMOST_FRAMES as u64;

/// Bytes of a section with a copied stack.
pub const COPY_SECTION_BYTES: usize = size_of::<SectionHead>() + size_of::<CopyHead>() + COPY_BYTES;

/// Writes the section of the user stack, and returns its length.
///
/// # Safety
/// `to` has room for [`SECTION_ROOM`], and is at a multiple of 8.
#[inline(always)]
pub unsafe fn section(to: *mut u8, level: u32) -> u64 {
    let Some(walk) = WALKS.get_ptr_mut(level) else {
        return 0;
    };
    // SAFETY: the caller's; the length is masked to what there is room for on both sides.
    unsafe {
        let count = get!(walk, count);
        let mut end = get!(walk, why) as u16;
        let addresses = to.add(size_of::<SectionHead>());
        let frames = addr_of!((*walk).frames).cast::<u64>();
        let mut len = count * 8;
        if count <= MAX_USER_FRAMES as u64 {
            len = bound::<{ MAX_USER_FRAMES as u64 * 8 }>(len);
            read_kernel(addresses.cast(), len as u32, frames.cast());
        } else {
            read_kernel(addresses.cast(), INNERMOST_BYTES, frames.cast());
            // The oldest place of the ring is what was left out last, or a frame that was taken back: the
            // others follow it, round to the ring's beginning.
            let before = bound::<RING_MASK>(len);
            let behind = bound::<RING_MASK>(!len);
            let ring = frames.add(INNERMOST_FRAMES);
            let left_out = addresses.add(INNERMOST_BYTES as usize);
            left_out.cast::<u64>().write(LEFT_OUT);
            let outer = left_out.add(8);
            let oldest = ring.cast::<u8>().add(before as usize);
            read_kernel(outer.cast(), behind as u32, oldest.add(8).cast());
            let newest = outer.add(behind as usize);
            read_kernel(newest.cast(), before as u32, ring.cast());
            len = 8 * (MAX_USER_FRAMES as u64 + 1);
            if end == END_COMPLETE {
                end = END_LEFT_OUT;
            }
        }
        let head = SectionHead {
            kind: SECTION_USER_STACK,
            end,
            len: len as u32,
        };
        to.cast::<SectionHead>().write(head);
        size_of::<SectionHead>() as u64 + len
    }
}

/// Writes the section of a copied stack, and returns its length.
///
/// # Safety
/// `to` has room for [`COPY_SECTION_BYTES`], and is at a multiple of 8.
#[inline(always)]
pub unsafe fn copy(to: *mut u8, level: u32) -> u64 {
    let Some(walk) = WALKS.get_ptr_mut(level) else {
        return 0;
    };
    // SAFETY: the caller's.
    unsafe {
        let copy = to.add(size_of::<SectionHead>()).cast::<CopyHead>();
        write_head(copy, walk);
        let bytes = to.add(size_of::<SectionHead>() + size_of::<CopyHead>());
        let absent = addr_of_mut!((*copy).absent);
        let copied = copy_stack::<COPY_BYTES, true>(bytes, get!(walk, registers[SP]), absent);
        let len = size_of::<CopyHead>() as u64 + copied;
        let head = SectionHead {
            kind: SECTION_STACK_COPY,
            end: 0,
            len: len as u32,
        };
        to.cast::<SectionHead>().write(head);
        size_of::<SectionHead>() as u64 + len.next_multiple_of(8)
    }
}

/// Says where a walk has come to.
///
/// # Safety
/// `copy` can be written to, `walk` is one of `WALKS`.
#[inline(always)]
pub unsafe fn write_head(copy: *mut CopyHead, walk: *mut Walk) {
    // SAFETY: the caller's.
    unsafe {
        addr_of_mut!((*copy).pc).write_volatile(get!(walk, pc));
        addr_of_mut!((*copy).is_return).write_volatile(get!(walk, is_return));
        addr_of_mut!((*copy).all_known).write_volatile(get!(walk, all_known));
        let mut number = 0;
        while number < REGISTERS {
            let value = get!(walk, registers[number]);
            addr_of_mut!((*copy).registers[number]).write_volatile(value);
            number += 1;
        }
        if get!(walk, fp_known) == 0 {
            // What no frame pointer is, nor the end of their chain.
            addr_of_mut!((*copy).registers[FP]).write_volatile(1);
        }
    }
}

/// Copies the stack from `sp` on, page by page, up to the last one that can be read, and notes those before it that can't: a
/// function makes room in pages that it has not come to yet, and what called it lies behind. Without `HOLES` it ends at the first one.
///
/// # Safety
/// `to` has room for `BYTES`, `absent` can be written to.
#[inline(always)]
pub unsafe fn copy_stack<const BYTES: usize, const HOLES: bool>(
    to: *mut u8,
    sp: u64,
    absent: *mut u64,
) -> u64 {
    // To the end of the page: 1 to 4096 bytes, in a form that the verifier can follow.
    let mut rest = !sp;
    // SAFETY: a plain AND of a register.
    unsafe { asm!("{0} &= 0xfff", inout(reg) rest) };
    let first = rest + 1;
    let pages = BYTES as u64 / PAGE_BYTES;
    // SAFETY: the caller's; the last piece ends at BYTES. What can't be read leaves zeros.
    unsafe {
        absent.write_volatile(0);
        let note = |page: u64| absent.write_volatile(absent.read_volatile() | 1 << page);
        let (mut end, mut copied) = (0, first);
        if read_user(to.cast(), first as u32, sp as *const _) == 0 {
            end = first;
        } else if HOLES {
            note(0);
        } else {
            return end;
        }
        for page in 1..pages {
            let from = sp.wrapping_add(copied);
            let piece = to.add(copied as usize).cast();
            copied += PAGE_BYTES;
            if read_user(piece, PAGE_BYTES as u32, from as *const _) == 0 {
                end = copied;
            } else if HOLES {
                note(page);
            } else {
                return end;
            }
        }
        let last = PAGE_BYTES - 1 - rest;
        let from = sp.wrapping_add(copied);
        let piece = to.add(copied as usize).cast();
        if last > 0 && read_user(piece, last as u32, from as *const _) == 0 {
            end = copied + last;
        }
        end
    }
}
