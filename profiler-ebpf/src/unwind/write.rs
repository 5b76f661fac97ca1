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
    sample::{SECTION_STACK_COPY, SECTION_USER_STACK, SectionHead},
    unwind::{COPY_BYTES, CopyHead, REGISTERS},
};

use super::{FP, PAGE_BYTES, SP};
use crate::{
    maps::{WALKS, Walk},
    stack,
};

/// Bytes of a section with a copied stack.
pub const COPY_SECTION_BYTES: usize = size_of::<SectionHead>() + size_of::<CopyHead>() + COPY_BYTES;

/// Writes the section of the user stack, and returns its length.
///
/// # Safety
/// `to` has room for a section head and [`stack::STACK_BYTES`], and is at a multiple of 8.
#[inline(always)]
pub unsafe fn section(to: *mut u8, level: u32) -> u64 {
    let Some(walk) = WALKS.get_ptr_mut(level) else {
        return 0;
    };
    // SAFETY: the caller's; the length is masked to what there is room for on both sides.
    unsafe {
        let len = stack::bound(get!(walk, count) * 8);
        let addresses = to.add(size_of::<SectionHead>());
        let frames = addr_of!((*walk).frames);
        read_kernel(addresses.cast(), len as u32, frames.cast());
        let head = SectionHead {
            kind: SECTION_USER_STACK,
            end: get!(walk, why) as u16,
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
        let copied = copy_stack::<COPY_BYTES>(bytes, get!(walk, registers[SP]));
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

/// Copies the stack from `sp` on, page by page, up to one that can't be read.
///
/// # Safety
/// `to` has room for `BYTES`.
#[inline(always)]
pub unsafe fn copy_stack<const BYTES: usize>(to: *mut u8, sp: u64) -> u64 {
    // To the end of the page: 1 to 4096 bytes, in a form that the verifier can follow.
    let mut rest = !sp;
    // SAFETY: a plain AND of a register.
    unsafe { asm!("{0} &= 0xfff", inout(reg) rest) };
    let first = rest + 1;
    // SAFETY: the caller's; the last piece ends at BYTES.
    unsafe {
        if read_user(to.cast(), first as u32, sp as *const _) != 0 {
            return 0;
        }
        let mut copied = first;
        for _ in 0..BYTES as u64 / PAGE_BYTES - 1 {
            let from = sp.wrapping_add(copied);
            let piece = to.add(copied as usize).cast();
            if read_user(piece, PAGE_BYTES as u32, from as *const _) != 0 {
                return copied;
            }
            copied += PAGE_BYTES;
        }
        let last = PAGE_BYTES - 1 - rest;
        let from = sp.wrapping_add(copied);
        if last > 0
            && read_user(
                to.add(copied as usize).cast(),
                last as u32,
                from as *const _,
            ) == 0
        {
            copied += last;
        }
        copied
    }
}
