//! What tests check the walk of user stacks with: a sample, and in the same record the registers that
//! its walk began with and a large piece of the stack.
//!
//! Only if `UNWIND_PROOF` is set, which nothing but tests do; else the verifier removes all of this. The
//! record is made in the ring itself, because nothing else has room for it: it always takes
//! [`PROOF_RECORD_BYTES`], of which the end is a section of padding.

use core::{
    arch::asm,
    ffi::c_void,
    ptr::{addr_of, addr_of_mut},
};

use aya_ebpf::{
    bindings::BPF_RB_NO_WAKEUP,
    helpers::{
        bpf_get_smp_processor_id, bpf_ringbuf_reserve, bpf_ringbuf_submit,
        generated::bpf_probe_read_kernel as read_kernel,
    },
};
use profiler_common::{
    sample::{SECTION_PADDING, SECTION_STACK_COPY, SectionHead},
    unwind::{CopyHead, PROOF_BELOW, PROOF_BYTES},
};

use crate::{emit::Full, maps::RINGS, maps::WALKS, unwind};

/// Most bytes of the sample itself; a length is masked by it.
const SAMPLE_BYTES: u64 = 0x3ff8;
const HEAD_BYTES: u64 = size_of::<SectionHead>() as u64;
const COPY_HEAD_BYTES: u64 = size_of::<CopyHead>() as u64;
/// The verifier does not see that the last piece of a stack ends where it does: a page more.
const SLACK_BYTES: u64 = 4096;
const PROOF_RECORD_BYTES: u64 =
    SAMPLE_BYTES + HEAD_BYTES + COPY_HEAD_BYTES + PROOF_BYTES as u64 + HEAD_BYTES + SLACK_BYTES;

/// Sends the `len` bytes of a sample at `record` with where its walk began, which was taken again
/// (`unwind::begin`).
///
/// # Safety
/// `record` points to as many bytes, of a map; `len` is a multiple of 8.
#[inline(always)]
pub unsafe fn emit(record: *const u8, len: u64, level: u32) -> Result<(), Full> {
    // SAFETY: the helper takes no pointers.
    let cpu = unsafe { bpf_get_smp_processor_id() };
    let ring = RINGS.get(cpu).ok_or(Full)?;
    let ring = core::ptr::from_ref(ring).cast_mut().cast::<c_void>();
    let walk = WALKS.get_ptr_mut(level).ok_or(Full)?;
    let mut len = len;
    // SAFETY: a plain AND of a register.
    unsafe { asm!("{0} &= {most}", inout(reg) len, most = const SAMPLE_BYTES) };
    // SAFETY: `ring` is an inner map that the lookup returned.
    let to = unsafe { bpf_ringbuf_reserve(ring, PROOF_RECORD_BYTES, 0) }.cast::<u8>();
    if to.is_null() {
        return Err(Full);
    }
    // SAFETY: there is room for the sample, a copied stack and the padding at their longest.
    unsafe {
        read_kernel(to.cast(), len as u32, record.cast());
        let section = to.add(len as usize);
        let copy = section.add(HEAD_BYTES as usize).cast::<CopyHead>();
        unwind::write_head(copy, walk);
        let sp = addr_of!((*copy).registers[profiler_common::unwind::REGISTER_SP as usize]);
        let first = sp.read_volatile().wrapping_sub(PROOF_BELOW);
        let absent = addr_of_mut!((*copy).absent);
        let bytes = section.add((HEAD_BYTES + COPY_HEAD_BYTES) as usize);
        // Words, so that the padding behind them lies at a multiple of 8.
        let mut copied = unwind::copy_stack::<PROOF_BYTES, false>(bytes, first, absent) & !7;
        asm!(
            "if {0} <= {most} goto +1",
            "{0} = {most}",
            inout(reg) copied,
            most = const PROOF_BYTES,
        );
        let head = SectionHead {
            kind: SECTION_STACK_COPY,
            end: 0,
            len: (COPY_HEAD_BYTES + copied) as u32,
        };
        section.cast::<SectionHead>().write_unaligned(head);
        let behind = len + HEAD_BYTES + COPY_HEAD_BYTES + copied;
        let padding = SectionHead {
            kind: SECTION_PADDING,
            end: 0,
            len: (PROOF_RECORD_BYTES - behind - HEAD_BYTES) as u32,
        };
        let after = bytes.add(copied as usize).cast::<SectionHead>();
        after.write_unaligned(padding);
        // The record's length comes first.
        addr_of_mut!(*to.cast::<u32>()).write_volatile(PROOF_RECORD_BYTES as u32);
        bpf_ringbuf_submit(to.cast(), u64::from(BPF_RB_NO_WAKEUP));
    }
    Ok(())
}

const _: () = assert!(PROOF_RECORD_BYTES.is_multiple_of(8));
