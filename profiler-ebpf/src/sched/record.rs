//! Waits and totals -> records.

use core::{mem::size_of, ptr::addr_of_mut};

use aya_ebpf::helpers::{bpf_get_smp_processor_id, bpf_probe_read_kernel};
use profiler_common::{
    COMM_LEN, KIND_WAIT, KIND_WAIT_TOTALS, RECORD_VERSION, RecordHead,
    sched::{STATE_PREEMPTED, TASK_COMM, ThreadWaits, WaitRecord, WaitTotalsRecord},
};

use super::threads::NO_TOTALS;
use crate::{
    emit,
    maps::{WAIT_OFFSETS, WaitCpu},
};

/// Sends the record of a wait that has ended.
#[inline(always)]
pub(super) fn record(
    task: u64,
    cpu: &mut WaitCpu,
    thread: &ThreadWaits,
    (from_ns, woken_ns, at_ns): (u64, u64, u64),
    weight: u32,
) {
    let weight = u64::from(weight) * u64::from(thread.share);
    let comm_at = task + u64::from(WAIT_OFFSETS[TASK_COMM].load());
    let has_waker = thread.state != STATE_PREEMPTED && woken_ns != 0;
    let waker = if has_waker { thread.waker } else { 0 };
    cpu.record = WaitRecord {
        head: RecordHead {
            len: size_of::<WaitRecord>() as u32,
            kind: KIND_WAIT,
            version: RECORD_VERSION,
        },
        at_ns,
        from_ns,
        woken_ns: if thread.state == STATE_PREEMPTED {
            0
        } else {
            woken_ns
        },
        key: thread.key,
        cgroup: thread.cgroup,
        tgid: (thread.ids >> 32) as u32,
        tid: thread.ids as u32,
        waker_tgid: (waker >> 32) as u32,
        waker_tid: waker as u32,
        // SAFETY: the helper takes no pointers.
        cpu: unsafe { bpf_get_smp_processor_id() },
        weight: weight.min(u64::from(u32::MAX)) as u32,
        state: thread.state,
        flags: thread.flags,
        // SAFETY: the helper reads kernel memory and fails where there is none.
        comm: unsafe { bpf_probe_read_kernel(comm_at as *const [u8; COMM_LEN]) }
            .unwrap_or([0; COMM_LEN]),
    };
    cpu.recorded += 1;
    // SAFETY: a record in this processor's own slot.
    match unsafe {
        emit::emit(
            addr_of_mut!(cpu.record).cast(),
            size_of::<WaitRecord>() as u64,
        )
    } {
        Ok(()) => cpu.counters.recorded += 1,
        Err(emit::Full) => cpu.counters.ring_full += 1,
    }
}

/// Tells a thread's totals. If there is no room, they are told later.
#[inline(always)]
pub(super) fn tell(cpu: &mut WaitCpu, thread: &mut ThreadWaits, now: u64) -> bool {
    cpu.totals = WaitTotalsRecord {
        head: RecordHead {
            len: size_of::<WaitTotalsRecord>() as u32,
            kind: KIND_WAIT_TOTALS,
            version: RECORD_VERSION,
        },
        at_ns: now,
        from_ns: thread.told_ns,
        cgroup: thread.cgroup,
        tgid: (thread.ids >> 32) as u32,
        tid: thread.ids as u32,
        // SAFETY: the helper takes no pointers.
        cpu: unsafe { bpf_get_smp_processor_id() },
        flags: thread.flags,
        totals: thread.totals,
    };
    const BYTES: u64 = size_of::<WaitTotalsRecord>() as u64;
    // SAFETY: a record in this processor's own slot.
    let told = unsafe { emit::emit(addr_of_mut!(cpu.totals).cast(), BYTES) }.is_ok();
    if told {
        thread.told_ns = now;
        thread.totals = NO_TOTALS;
    }
    told
}
