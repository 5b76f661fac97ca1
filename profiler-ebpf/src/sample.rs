//! The sampler: an event on this processor -> a `SampleHead` with its stacks in the ring buffer.
//!
//! Every event is counted, whatever becomes of it (`Counters`). Weights are in the unit of the
//! event source. Times are nanoseconds of CLOCK_MONOTONIC.

use core::{ffi::c_void, ptr::addr_of_mut};

use aya_ebpf::{
    helpers::{
        bpf_get_current_comm, bpf_get_current_pid_tgid, bpf_get_current_task,
        bpf_get_smp_processor_id, bpf_ktime_get_ns, bpf_probe_read_kernel,
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
        ADJUSTED, COUNTERS, FILTER, KERNEL_STACKS, PERIODS, Scratch, TASK_SWITCHES_OFFSET, UNWIND,
        UNWIND_PROOF, USER_STACKS,
    },
    proof,
    record::{self, Wanted},
    registers, unwind,
};

const HEAD_BYTES: usize = size_of::<SampleHead>();

/// Ticks missing in a row that are still taken for skipped ones. Other BPF programs are short, so a
/// longer gap has another cause (the processor was taken away, went offline, slept).
const MOST_SKIPPED: u64 = 16;

/// What `Counters::last_turn` is of a processor that has nothing to run.
const TURN_IDLE: u64 = 0;
/// Something runs; how often it has been switched is not known.
const TURN_UNKNOWN: u64 = 1;

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
pub fn on_tracepoint<const SOURCE: u32>(ctx: *mut c_void) {
    let period = PERIODS[SOURCE as usize].load();
    if period > 1 {
        let Some(counters) = COUNTERS.get_ptr_mut(SOURCE) else {
            return;
        };
        // SAFETY: this processor's own slot, which the lookup returned.
        let counters = unsafe { &mut *counters };
        // Of each period's hits, all but the last are passed over.
        if counters.since_sample < period - 1 {
            counters.ticks += 1;
            counters.passed_over += 1;
            counters.since_sample += 1;
            return;
        }
        counters.since_sample = 0;
    }
    take(ctx, SOURCE, period, u32::from(FLAG_IN_KERNEL), 0);
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
    let skipped_surely = match tick_ns {
        0 => 0,
        _ => note_tick(counters, now, tick_ns, tid),
    };
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
    counters.skipped_surely += skipped_surely;
    let Some(scratch) = record::claim() else {
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
    unsafe { record::release(scratch) };
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
    // SAFETY: the caller's; the record begins with room for the head.
    unsafe {
        let level = addr_of_mut!((*scratch).level).read_volatile() as u32;
        let by_tables =
            USER_STACKS.load() != 0 && UNWIND.load() != 0 && take_registers(ctx, head.flags, level);
        let wanted = Wanted {
            tgid: head.tgid,
            at_ns: head.at_ns,
            kernel: head.flags & FLAG_IN_KERNEL != 0 && wants_kernel_stacks(),
            walk: by_tables.then_some(level),
        };
        let len = record::sections::<HEAD_BYTES>(ctx, scratch, wanted);
        head.head.len = len as u32;
        let record = addr_of_mut!((*scratch).record).cast::<u8>();
        record.cast::<SampleHead>().write(head);
        if UNWIND_PROOF.load() != 0 && take_registers(ctx, head.flags, level) {
            unwind::restart(level);
            return proof::emit(record, len, level);
        }
        emit::emit(record.cast(), len)
    }
}

/// Takes the registers that the walk of the user stack begins with; whether there are any.
///
/// # Safety
/// `ctx` is the program's context.
#[inline(always)]
unsafe fn take_registers(ctx: *mut c_void, flags: u16, level: u32) -> bool {
    if flags & FLAG_IN_KERNEL == 0 {
        // SAFETY: the caller's; only perf events come in user space.
        unsafe { registers::of_event(ctx, level) }
    } else {
        registers::of_task(level)
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

/// Finds the clock ticks that are missing between the last one and `now`. Returns how many of those that were
/// skipped were so, surely, while the current thread ran.
///
/// The timer keeps its phase: ticks are due on a grid of whole periods. If ticks in between were
/// skipped because a BPF program was running, the timer itself was on time, and so is this tick. If
/// the processor took no interrupts, this tick is late, by any fraction of a period. A processor
/// that was idle before or is idle now was so, for all one knows, in between (a hypervisor may let
/// the clock of an idle processor wait): nothing that ran was missed. Nor is a processor that was not
/// idle at either one known to have had something to run in between, but where one thread ran all along.
#[inline(always)]
fn note_tick(counters: &mut Counters, now: u64, tick_ns: u64, tid: u32) -> u64 {
    // How far from its due time a tick may be and still count as on time.
    let slack = tick_ns / 16;
    let gap = now.saturating_sub(counters.last_due_ns);
    let (last_turn, turn) = (counters.last_turn, turn(tid));
    counters.last_turn = turn;
    // The usual case, and the first tick ever, without a division.
    if counters.last_due_ns == 0 || gap <= tick_ns + slack {
        counters.last_due_ns = now;
        return 0;
    }
    let periods = (gap + slack) / tick_ns;
    let on_time = gap + slack - periods * tick_ns <= 2 * slack;
    if on_time && turn != TURN_IDLE && last_turn != TURN_IDLE && periods <= MOST_SKIPPED + 1 {
        counters.last_due_ns = now;
        counters.skipped += periods - 1;
        if turn != TURN_UNKNOWN && turn == last_turn {
            return periods - 1;
        }
    } else {
        counters.last_due_ns += periods * tick_ns;
        counters.late += periods - 1;
    }
    0
}

/// The current thread, and how often it has been switched; or a `TURN_*`, which is less.
#[inline(always)]
fn turn(tid: u32) -> u64 {
    if tid == 0 {
        return TURN_IDLE;
    }
    let offset = TASK_SWITCHES_OFFSET.load();
    if offset == 0 {
        return TURN_UNKNOWN;
    }
    // SAFETY: reading kernel memory fails where there is none.
    let switches = unsafe {
        let at = bpf_get_current_task() + u64::from(offset);
        bpf_probe_read_kernel(at as *const [u64; 2])
    };
    match switches {
        Ok([by_itself, by_others]) => {
            u64::from(tid) << 32 | u64::from(by_itself.wrapping_add(by_others) as u32)
        }
        Err(_) => TURN_UNKNOWN,
    }
}
