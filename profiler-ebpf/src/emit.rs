//! Records -> the ring buffer of this processor, without a wake-up per record.
//!
//! The reader polls on a timer; it is woken early only when a ring comes to be half full, and then
//! once, because a wake-up costs more than the record itself. Lengths are bytes.

use core::ffi::c_void;

use aya_ebpf::{
    bindings::{BPF_RB_AVAIL_DATA, BPF_RB_FORCE_WAKEUP, BPF_RB_NO_WAKEUP},
    helpers::{bpf_get_smp_processor_id, bpf_ringbuf_output, bpf_ringbuf_query},
};

use crate::maps::{CALL_RINGS, CALL_WAKE_BYTES, RINGS, WAKE_BYTES};

/// There is no room, or no ring buffer for this processor yet.
pub struct Full;

/// Copies `len` bytes at `record` into the ring buffer of this processor.
///
/// # Safety
/// `record` must point to memory of at least `len` bytes that the verifier knows.
#[inline(always)]
pub unsafe fn emit(record: *mut c_void, len: u64) -> Result<(), Full> {
    // SAFETY: the helper takes no pointers.
    let cpu = unsafe { bpf_get_smp_processor_id() };
    let ring = RINGS.get(cpu).ok_or(Full)?;
    let ring = core::ptr::from_ref(ring).cast_mut().cast::<c_void>();
    // SAFETY: `ring` is an inner map that the lookup returned; the caller vouches for the rest.
    unsafe { output(ring, record, len, WAKE_BYTES.load()) }
}

/// Copies `len` bytes at `record`, a record of a call, into this processor's ring buffer for those.
///
/// # Safety
/// As for [`emit`].
#[inline(always)]
pub unsafe fn emit_call(record: *mut c_void, len: u64) -> Result<(), Full> {
    // SAFETY: the helper takes no pointers.
    let cpu = unsafe { bpf_get_smp_processor_id() };
    let ring = CALL_RINGS.get(cpu).ok_or(Full)?;
    let ring = core::ptr::from_ref(ring).cast_mut().cast::<c_void>();
    // SAFETY: `ring` is an inner map that the lookup returned; the caller vouches for the rest.
    unsafe { output(ring, record, len, CALL_WAKE_BYTES.load()) }
}

/// # Safety
/// `ring` is a ring buffer; the rest as for [`emit`].
#[inline(always)]
unsafe fn output(ring: *mut c_void, record: *mut c_void, len: u64, wake: u64) -> Result<(), Full> {
    // SAFETY: the caller's.
    let before = unsafe { bpf_ringbuf_query(ring, u64::from(BPF_RB_AVAIL_DATA)) };
    let flags = if before < wake && before + len >= wake {
        BPF_RB_FORCE_WAKEUP
    } else {
        BPF_RB_NO_WAKEUP
    };
    // SAFETY: the caller's.
    match unsafe { bpf_ringbuf_output(ring, record, len, u64::from(flags)) } {
        0 => Ok(()),
        _ => Err(Full),
    }
}
