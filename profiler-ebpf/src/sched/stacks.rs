//! The stacks of a wait whose key is not known -> a `WaitStackHead` and sections as those of a sample.
//!
//! What does not belong here: which waits are walked (`mod`, `chance`).

use core::{ffi::c_void, mem::size_of, ptr::addr_of_mut};

use aya_ebpf::{EbpfContext, programs::RawTracePointContext};
use profiler_common::{KIND_WAIT_STACK, RECORD_VERSION, RecordHead, sched::WaitStackHead};

use super::key::know;
use crate::{
    emit,
    maps::{KERNEL_STACKS, Scratch, UNWIND, USER_STACKS, WAIT_WALK, WaitCpu},
    record::{self, Wanted},
    registers, unwind,
};

const STACK_HEAD: usize = size_of::<WaitStackHead>();

/// Walks the current thread's stacks and sends them; whether that was possible.
#[inline(always)]
pub(super) fn walk(
    ctx: &RawTracePointContext,
    cpu: &mut WaitCpu,
    (key, known): (u64, bool),
    ids: u64,
    now: u64,
) -> bool {
    let Some(scratch) = record::claim() else {
        cpu.counters.nested += 1;
        return false;
    };
    let head = WaitStackHead {
        head: RecordHead {
            len: 0,
            kind: KIND_WAIT_STACK,
            version: RECORD_VERSION,
        },
        at_ns: now,
        key,
        tgid: (ids >> 32) as u32,
        tid: ids as u32,
    };
    // SAFETY: `scratch` was claimed by this run of the program and is released below.
    let sent = unsafe { walk_and_send(ctx.as_ptr(), scratch, head, known) };
    // SAFETY: as above.
    unsafe { record::release(scratch) };
    cpu.walked += 1;
    match sent {
        Ok(Sent::Whole) => {
            cpu.counters.walked += 1;
            know(key, now);
        }
        Ok(Sent::Cut) => cpu.counters.walked += 1,
        Ok(Sent::Nothing) => {}
        Err(emit::Full) => cpu.counters.ring_full += 1,
    }
    sent.is_ok()
}

/// What was sent of a stack.
enum Sent {
    Whole,
    /// Its table is not there yet, nor was there room for a copy: it is to be walked again.
    Cut,
    /// It is cut, and a whole one was sent before.
    Nothing,
}

/// # Safety
/// `ctx` is the program's context; `scratch` is claimed by it.
#[inline(always)]
unsafe fn walk_and_send(
    ctx: *mut c_void,
    scratch: *mut Scratch,
    mut head: WaitStackHead,
    known: bool,
) -> Result<Sent, emit::Full> {
    let by_tables = USER_STACKS.load() != 0 && UNWIND.load() != 0 && registers::of_task(WAIT_WALK);
    let wanted = Wanted {
        tgid: head.tgid,
        at_ns: head.at_ns,
        kernel: KERNEL_STACKS.load() != 0,
        walk: by_tables.then_some(WAIT_WALK),
    };
    // SAFETY: the caller's; the record begins with room for the head.
    unsafe {
        let len = record::sections::<STACK_HEAD>(ctx, scratch, wanted);
        head.head.len = len as u32;
        let record = addr_of_mut!((*scratch).record);
        record.cast::<WaitStackHead>().write(head);
        let is_cut = by_tables && unwind::is_cut(WAIT_WALK);
        if is_cut && known {
            return Ok(Sent::Nothing);
        }
        emit::emit(record.cast(), len)?;
        Ok(if is_cut { Sent::Cut } else { Sent::Whole })
    }
}
