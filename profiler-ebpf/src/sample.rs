//! The sampler: an event on this processor -> a `SampleHead` with its stacks in the ring buffer.
//!
//! Every event is counted, whatever becomes of it (`Counters`). Weights are in the unit of the
//! event source. Times are nanoseconds of CLOCK_MONOTONIC.

use core::{arch::asm, ffi::c_void, ptr::addr_of_mut};

use aya_ebpf::{
    helpers::{
        bpf_get_current_comm, bpf_get_current_pid_tgid, bpf_get_smp_processor_id, bpf_ktime_get_ns,
    },
    programs::PerfEventContext,
};
use aya_log_ebpf::debug;
use profiler_common::{
    COMM_LEN, KIND_SAMPLE, RECORD_VERSION, RecordHead,
    cgroup::{CGROUP_UNDECIDED, CGROUP_WANTED},
    control::{Counters, FILTER_CGROUPS, KERNEL_STACKS_ADJUSTED, PERIOD_ADJUSTED},
    sample::{FLAG_IN_KERNEL, FLAG_UNDECIDED, SampleHead},
};

use crate::{
    cgroup, emit, filter,
    maps::{
        ADJUSTED, COUNTERS, FILTER, KERNEL_STACKS, NESTING_LEVELS, PERIODS, RECORD_BYTES, SCRATCH,
        Scratch, USER_STACKS,
    },
    stack,
};

const HEAD_BYTES: usize = size_of::<SampleHead>();

/// Ticks missing in a row that are still taken for skipped ones. Other BPF programs are short, so a
/// longer gap has another cause (the processor was taken away, went offline, slept).
const MOST_SKIPPED: u64 = 16;

/// A perf event has overflowed.
#[inline(always)]
pub fn on_perf_event<const SOURCE: u32>(ctx: &PerfEventContext) -> u32 {
    // SAFETY: the context of a perf_event program; the verifier checks the fields.
    let (weight, flags) = unsafe {
        let flags = if in_kernel(ctx) { FLAG_IN_KERNEL } else { 0 };
        ((*ctx.ctx).sample_period, flags)
    };
    let tick_ns = PERIODS[SOURCE as usize].load();
    take(ctx.ctx.cast(), SOURCE, weight, u32::from(flags), tick_ns)
}

/// A tracepoint was hit.
#[inline(always)]
pub fn on_tracepoint<const SOURCE: u32>(ctx: *mut c_void) -> u32 {
    let period = PERIODS[SOURCE as usize].load();
    if period > 1 {
        let Some(counters) = COUNTERS.get_ptr_mut(SOURCE) else {
            return 0;
        };
        // SAFETY: this processor's own slot, which the lookup returned.
        let counters = unsafe { &mut *counters };
        // Of each period's hits, all but the last are passed over.
        if counters.since_sample < period - 1 {
            counters.ticks += 1;
            counters.passed_over += 1;
            counters.since_sample += 1;
            return 0;
        }
        counters.since_sample = 0;
    }
    take(ctx, SOURCE, period, u32::from(FLAG_IN_KERNEL), 0)
}

/// Whether kernel code was interrupted.
///
/// # Safety
/// `ctx` is the context of a perf_event program.
#[inline(always)]
unsafe fn in_kernel(ctx: &PerfEventContext) -> bool {
    // SAFETY: the caller's.
    unsafe {
        #[cfg(bpf_target_arch = "x86_64")]
        return (*ctx.ctx).regs.cs & 3 == 0;
        #[cfg(bpf_target_arch = "aarch64")]
        return (*ctx.ctx).regs.pstate & 0xf != 0;
    }
}

/// Counts the event; sends a sample of the current thread if it is wanted. Not inlined: the entry
/// points share it.
#[inline(never)]
fn take(ctx: *mut c_void, source: u32, mut weight: u64, mut flags: u32, mut tick_ns: u64) -> u32 {
    let Some(counters) = COUNTERS.get_ptr_mut(source) else {
        return 0;
    };
    // SAFETY: this processor's own slot, which the lookup returned. A nested sampler may change
    // it between two accesses, so a count may be off by one; no reference to a field is kept.
    let counters = unsafe { &mut *counters };
    counters.ticks += 1;
    // SAFETY: the helper takes no pointers.
    let now = unsafe { bpf_ktime_get_ns() };
    let ids = bpf_get_current_pid_tgid();
    let (tgid, tid) = ((ids >> 32) as u32, ids as u32);
    if tick_ns == PERIOD_ADJUSTED {
        tick_ns = adjusted_period(counters);
        if tick_ns != 0 {
            // What the kernel hands over is the period that the clock was opened with.
            weight = tick_ns;
        }
    }
    if tick_ns != 0 {
        note_tick(counters, now, tick_ns, tid == 0);
    }
    if tid == 0 {
        counters.idle += 1;
        return 0;
    }
    if !filter::admits(FILTER.load(), tgid, tid) {
        counters.filtered += 1;
        return 0;
    }
    let place = cgroup::place();
    if FILTER.load() & FILTER_CGROUPS != 0 {
        match cgroup::verdict(place) {
            CGROUP_WANTED => {}
            CGROUP_UNDECIDED => flags |= u32::from(FLAG_UNDECIDED),
            _ => {
                counters.filtered += 1;
                return 0;
            }
        }
    }
    let Some(scratch) = claim_scratch() else {
        counters.nested += 1;
        return 0;
    };
    let head = SampleHead {
        head: RecordHead {
            len: 0,
            kind: KIND_SAMPLE,
            version: RECORD_VERSION,
        },
        at_ns: now,
        cgroup: cgroup::id_at(place),
        weight,
        tgid,
        tid,
        // SAFETY: the helper takes no pointers.
        cpu: unsafe { bpf_get_smp_processor_id() },
        source: source as u16,
        flags: flags as u16,
        comm: bpf_get_current_comm().unwrap_or([0; COMM_LEN]),
    };
    // SAFETY: `scratch` was claimed by this run of the program and is released below.
    let sent = unsafe { write_and_send(ctx, scratch, head) };
    // SAFETY: as above.
    unsafe { addr_of_mut!((*scratch).busy).write_volatile(0) };
    match sent {
        Ok(()) => counters.sent += 1,
        Err(emit::Full) => {
            counters.ring_full += 1;
            debug!(
                &PerfEventContext::new(ctx.cast()),
                "no room for a sample of thread {}", tid
            );
        }
    }
    0
}

/// Adds the stacks to `head`, and sends all.
///
/// # Safety
/// `ctx` is the program's context; `scratch` is claimed by it.
#[inline(always)]
unsafe fn write_and_send(
    ctx: *mut c_void,
    scratch: *mut Scratch,
    mut head: SampleHead,
) -> Result<(), emit::Full> {
    // SAFETY: the record has room for the head and both sections at their longest: the offset of
    // the second is at most HEAD_BYTES + 8 + STACK_BYTES.
    unsafe {
        let record = addr_of_mut!((*scratch).record).cast::<u8>();
        let mut kernel_bytes = 0;
        if head.flags & FLAG_IN_KERNEL != 0 && wants_kernel_stacks() {
            kernel_bytes = stack::kernel(ctx, record.add(HEAD_BYTES));
        }
        let mut user_bytes = 0;
        if USER_STACKS.load() != 0 {
            let offset = bound_offset(HEAD_BYTES as u64 + kernel_bytes);
            user_bytes = stack::user(ctx, record.add(offset as usize));
        }
        let len = bound_len(HEAD_BYTES as u64 + kernel_bytes + user_bytes);
        head.head.len = len as u32;
        record.cast::<SampleHead>().write_unaligned(head);
        emit::emit(record.cast(), len)
    }
}

/// The present period of an adjustable clock, 0 for other sources. The first tick since a change has
/// none before it.
#[inline(always)]
fn adjusted_period(counters: &mut Counters) -> u64 {
    let Some(adjusted) = ADJUSTED.get(0) else {
        return 0;
    };
    if counters.generation != adjusted.generation {
        counters.generation = adjusted.generation;
        counters.last_due_ns = 0;
    }
    adjusted.period_ns
}

#[inline(always)]
fn wants_kernel_stacks() -> bool {
    match KERNEL_STACKS.load() {
        KERNEL_STACKS_ADJUSTED => ADJUSTED
            .get(0)
            .is_some_and(|adjusted| adjusted.kernel_stacks != 0),
        wanted => wanted != 0,
    }
}

/// `offset`, in a form from which the verifier sees that a section fits behind it.
#[inline(always)]
fn bound_offset(offset: u64) -> u64 {
    let mut bounded = offset;
    // SAFETY: a plain AND of a register.
    unsafe { asm!("{0} &= 0x7f8", inout(reg) bounded) };
    bounded
}

/// `len`, in a form from which the verifier sees that it is within the record.
#[inline(always)]
fn bound_len(len: u64) -> u64 {
    let mut bounded = len;
    // SAFETY: a plain AND of a register.
    unsafe { asm!("{0} &= 0xfff", inout(reg) bounded) };
    bounded
}

const _: () = {
    let section = 8 + stack::STACK_BYTES as usize;
    assert!(HEAD_BYTES + section <= 0x7f8);
    assert!(0x7f8 + section <= RECORD_BYTES);
    assert!(RECORD_BYTES == 0xfff + 1);
};

/// A workspace that no interrupted program uses.
#[inline(always)]
pub fn claim_scratch() -> Option<*mut Scratch> {
    for level in 0..NESTING_LEVELS {
        let scratch = SCRATCH.get_ptr_mut(level)?;
        // SAFETY: this processor's own slot, which the lookup returned. A program that interrupts
        // between the two accesses has released the slot when this one goes on.
        unsafe {
            let busy = addr_of_mut!((*scratch).busy);
            if busy.read_volatile() == 0 {
                busy.write_volatile(1);
                return Some(scratch);
            }
        }
    }
    None
}

/// Finds the clock ticks that are missing between the last one and `now`.
///
/// The timer keeps its phase: ticks are due on a grid of whole periods. If ticks in between were
/// skipped because a BPF program was running, the timer itself was on time, and so is this tick. If
/// the processor took no interrupts, this tick is late, by any fraction of a period. A processor
/// that was idle before or is idle now was so, for all one knows, in between (a hypervisor may let
/// the clock of an idle processor wait): nothing that ran was missed.
#[inline(always)]
fn note_tick(counters: &mut Counters, now: u64, tick_ns: u64, idle: bool) {
    // How far from its due time a tick may be and still count as on time.
    let slack = tick_ns / 16;
    let gap = now.saturating_sub(counters.last_due_ns);
    let was_idle = counters.last_idle != 0;
    counters.last_idle = u64::from(idle);
    // The usual case, and the first tick ever, without a division.
    if counters.last_due_ns == 0 || gap <= tick_ns + slack {
        counters.last_due_ns = now;
        return;
    }
    let periods = (gap + slack) / tick_ns;
    let on_time = gap + slack - periods * tick_ns <= 2 * slack;
    if on_time && !idle && !was_idle && periods <= MOST_SKIPPED + 1 {
        counters.last_due_ns = now;
        counters.skipped += periods - 1;
    } else {
        counters.last_due_ns += periods * tick_ns;
        counters.late += periods - 1;
    }
}
