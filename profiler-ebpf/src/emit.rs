//! Records -> the ring buffer of this processor, without a wake-up per record.
//!
//! The reader polls on a timer; it is woken early only when much may lie in a ring, and then once,
//! because a wake-up costs more than the record itself. Of samples, the ring is asked how full it
//! is; of calls, that would cost a tenth of the record: what was sent since the last wake-up is
//! counted instead, which is never less than what lies there. Lengths are bytes.

use core::ffi::c_void;

use aya_ebpf::{
    bindings::{BPF_RB_AVAIL_DATA, BPF_RB_FORCE_WAKEUP, BPF_RB_NO_WAKEUP},
    helpers::{bpf_get_smp_processor_id, bpf_ringbuf_output, bpf_ringbuf_query},
};

use profiler_common::call::CallCpu;

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
    let before = unsafe { bpf_ringbuf_query(ring, u64::from(BPF_RB_AVAIL_DATA)) };
    let wake = WAKE_BYTES.load();
    let reached = before < wake && before + len + HEAD_BYTES >= wake;
    // SAFETY: as above.
    unsafe { output(ring, record, len, reached) }
}

/// As [`emit`], and wakes the reader.
///
/// # Safety
/// As for [`emit`].
#[inline(always)]
pub unsafe fn emit_at_once(record: *mut c_void, len: u64) -> Result<(), Full> {
    // SAFETY: the helper takes no pointers.
    let cpu = unsafe { bpf_get_smp_processor_id() };
    let ring = RINGS.get(cpu).ok_or(Full)?;
    let ring = core::ptr::from_ref(ring).cast_mut().cast::<c_void>();
    // SAFETY: `ring` is an inner map that the lookup returned; the caller vouches for the rest.
    unsafe { output(ring, record, len, true) }
}

/// Whether so much lies in the ring buffer of this processor that what is large and can be done without
/// is left out: twice what the reader is woken by, so that it has time to come.
#[inline(always)]
pub fn is_filling() -> bool {
    // SAFETY: the helper takes no pointers.
    let cpu = unsafe { bpf_get_smp_processor_id() };
    let Some(ring) = RINGS.get(cpu) else {
        return true;
    };
    let ring = core::ptr::from_ref(ring).cast_mut().cast::<c_void>();
    // SAFETY: `ring` is an inner map that the lookup returned.
    let lies = unsafe { bpf_ringbuf_query(ring, u64::from(BPF_RB_AVAIL_DATA)) };
    lies >= 2 * WAKE_BYTES.load()
}

/// What the ring buffer adds to a record.
const HEAD_BYTES: u64 = 8;

/// Copies `len` bytes at `record`, a record of a call, into this processor's ring buffer for those.
///
/// # Safety
/// As for [`emit`]; `state` is this processor's own, which the lookup returned.
#[inline(always)]
pub unsafe fn emit_call(state: *mut CallCpu, record: *mut c_void, len: u64) -> Result<(), Full> {
    // SAFETY: the helper takes no pointers.
    let cpu = unsafe { bpf_get_smp_processor_id() };
    let ring = CALL_RINGS.get(cpu).ok_or(Full)?;
    let ring = core::ptr::from_ref(ring).cast_mut().cast::<c_void>();
    // SAFETY: `ring` is an inner map that the lookup returned; the caller vouches for the rest.
    // Another thread that preempts this one between reading and writing is not counted; then the
    // reader is woken a little later.
    unsafe {
        let unwoken = &raw mut (*state).unwoken_bytes;
        let sent = unwoken.read_volatile() + len + HEAD_BYTES;
        let wake = sent >= CALL_WAKE_BYTES.load();
        unwoken.write_volatile(if wake { 0 } else { sent });
        output(ring, record, len, wake)
    }
}

/// # Safety
/// `ring` is a ring buffer; the rest as for [`emit`].
#[inline(always)]
unsafe fn output(ring: *mut c_void, record: *mut c_void, len: u64, wake: bool) -> Result<(), Full> {
    let flags = if wake {
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
