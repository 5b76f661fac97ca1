//! What is known of threads that wait or have waited: `WAIT_THREADS`, and `WAITING` for those whose
//! place there is another one's.
//!
//! A thread begins, leaves its processor for the first time, runs another program, or is gone -> its
//! entry. Times are nanoseconds of CLOCK_MONOTONIC.
//!
//! What does not belong here: what a switch does with an entry (`mod`).

use core::{arch::asm, mem::offset_of};

use aya_ebpf::{
    bindings::BPF_NOEXIST,
    helpers::{bpf_get_current_pid_tgid, bpf_ktime_get_ns},
    programs::RawTracePointContext,
};
use profiler_common::{
    cgroup::{CGROUP_UNDECIDED, CGROUP_WANTED},
    control::FILTER_CGROUPS,
    sample::FLAG_UNDECIDED,
    sched::{STATE_NEW, ThreadWaits, WaitTotals},
};

use super::{argument, ids_of, key::salt, record::tell};
use crate::{
    call, cgroup, filter,
    maps::{FILTER, WAIT_APART, WAIT_CPU, WAIT_PLACES, WAIT_THREADS, WAITING, WaitCpu},
};

/// What is known of a thread.
#[inline(always)]
pub(super) fn find(tid: u32) -> Option<*mut ThreadWaits> {
    if let Some(place) = own_place(tid) {
        return Some(place);
    }
    // SAFETY: a word that the lookup returned.
    if unsafe { WAIT_APART.get_ptr(0)?.read_volatile() } == 0 {
        return None;
    }
    WAITING.get_ptr_mut(tid)
}

/// The thread's place in `WAIT_THREADS`, if it has that.
#[inline(always)]
fn own_place(tid: u32) -> Option<*mut ThreadWaits> {
    let place = WAIT_THREADS.get_ptr_mut(tid & WAIT_PLACES.load())?;
    // SAFETY: a value that the lookup returned; its owner is written as a whole, and after the rest.
    let owner = unsafe { (&raw const (*place).ids).read_volatile() };
    (owner as u32 == tid).then_some(place)
}

/// What is known of a thread; it is made known if it is not.
#[inline(always)]
pub(super) fn find_or_add(cpu: &mut WaitCpu, ids: u64, now: u64) -> Option<*mut ThreadWaits> {
    let tid = ids as u32;
    if let Some(thread) = find(tid)
        // SAFETY: a value that the lookup returned.
        && unsafe { (*thread).ids } == ids
    {
        return Some(thread);
    }
    cpu.thread = ThreadWaits {
        salt: salt(ids, now),
        told_ns: now,
        ids,
        ..BLANK
    };
    put(cpu, now);
    find(tid)
}

/// Makes `cpu.thread` known, which is not.
#[inline(always)]
fn add(cpu: &mut WaitCpu) {
    let ids = cpu.thread.ids;
    let tid = ids as u32;
    if let Some(place) = WAIT_THREADS.get_ptr_mut(tid & WAIT_PLACES.load()) {
        // SAFETY: a value that the lookup returned. It is written by its owner only: if two come at
        // once, one of them or both go elsewhere.
        unsafe {
            claim(place, 1);
            if (&raw const (*place).claims).read_volatile() == 1 {
                fill(place, &cpu.thread);
                return;
            }
            claim(place, -1);
        }
    }
    let added = WAITING.insert(tid, &cpu.thread, u64::from(BPF_NOEXIST));
    match added {
        Ok(()) => count_apart(1),
        Err(_) => cpu.counters.table_full += 1,
    }
}

/// Makes a thread known that waits since `thread.from_ns`, unless it is known; whether it is known by that now.
/// It may come to a processor meanwhile, and what it does there makes it known as well.
#[inline(always)]
pub(super) fn add_waiting(thread: &ThreadWaits) -> bool {
    let tid = thread.ids as u32;
    if find(tid).is_some() {
        return false;
    }
    if let Some(place) = WAIT_THREADS.get_ptr_mut(tid & WAIT_PLACES.load()) {
        // SAFETY: as in `add`.
        unsafe {
            claim(place, 1);
            if (&raw const (*place).claims).read_volatile() == 1 {
                fill(place, thread);
                return true;
            }
            claim(place, -1);
        }
    }
    match WAITING.insert(tid, thread, u64::from(BPF_NOEXIST)) {
        Ok(()) => {
            count_apart(1);
            true
        }
        Err(_) => {
            if let Some(cpu) = WAIT_CPU.get_ptr_mut(0) {
                // SAFETY: a word that the lookup returned, changed atomically: programs that interrupt count
                // there as well.
                unsafe { call::add(&raw mut (*cpu).counters.table_full) };
            }
            false
        }
    }
}

/// Whether a thread is known to wait since then.
#[inline(always)]
pub(super) fn is_still(tid: u32, from_ns: u64) -> bool {
    // SAFETY: a word that the lookup returned.
    find(tid)
        .is_some_and(|thread| unsafe { (&raw const (*thread).from_ns).read_volatile() } == from_ns)
}

/// A thread that was said to wait runs.
#[inline(always)]
pub(super) fn withdraw(tid: u32) {
    if let Some(thread) = find(tid) {
        // SAFETY: a word that the lookup returned.
        unsafe { (&raw mut (*thread).from_ns).write_volatile(0) };
    }
}

/// Adds to the claims of a place.
///
/// # Safety
/// `place` is a value that a lookup returned.
#[inline(always)]
unsafe fn claim(place: *mut ThreadWaits, more: i64) {
    // SAFETY: the caller's.
    unsafe {
        asm!(
            "lock *(u32 *)({place} + {at}) += {more}",
            place = in(reg) place,
            at = const offset_of!(ThreadWaits, claims),
            more = in(reg) more,
        );
    }
}

/// Writes all but the claims; whose it is comes last, since others look for that.
///
/// # Safety
/// `place` is a value that a lookup returned, and the caller's.
#[inline(always)]
unsafe fn fill(place: *mut ThreadWaits, thread: &ThreadWaits) {
    // SAFETY: the caller's.
    unsafe {
        (*place).from_ns = thread.from_ns;
        (*place).woken_ns = thread.woken_ns;
        (*place).waker = thread.waker;
        (*place).key = thread.key;
        (*place).cgroup = thread.cgroup;
        (*place).salt = thread.salt;
        (*place).placed_ns = thread.placed_ns;
        (*place).told_ns = thread.told_ns;
        (*place).state = thread.state;
        (*place).flags = thread.flags;
        (*place).share = thread.share;
        (*place).interpreter = thread.interpreter;
        (*place).totals = thread.totals;
        (&raw mut (*place).ids).write_volatile(thread.ids);
    }
}

/// Forgets a thread.
#[inline(always)]
fn remove(tid: u32) {
    if let Some(place) = own_place(tid) {
        // SAFETY: a value that the lookup returned, of a thread that is gone.
        unsafe {
            (&raw mut (*place).ids).write_volatile(0);
            claim(place, -1);
        }
    } else if WAITING.remove(tid).is_ok() {
        count_apart(-1);
    }
}

#[inline(always)]
fn count_apart(more: i64) {
    if let Some(apart) = WAIT_APART.get_ptr_mut(0) {
        // SAFETY: a word that the lookup returned.
        unsafe {
            asm!("lock *(u64 *)({apart} + 0) += {more}", apart = in(reg) apart, more = in(reg) more);
        }
    }
}

pub(super) const BLANK: ThreadWaits = ThreadWaits {
    from_ns: 0,
    woken_ns: 0,
    waker: 0,
    key: 0,
    cgroup: 0,
    salt: 0,
    placed_ns: 0,
    told_ns: 0,
    ids: 0,
    state: 0,
    flags: 0,
    share: 0,
    claims: 0,
    interpreter: 0,
    totals: NO_TOTALS,
};

pub(super) const NO_TOTALS: WaitTotals = WaitTotals {
    count: [0; 4],
    ns: [0; 4],
    runnable_ns: 0,
};

/// A thread is gone. What could not be told stays until the end, or until its id is used again.
#[inline(always)]
pub(super) fn forget(cpu: &mut WaitCpu, tid: u32, now: u64) {
    let Some(thread) = find(tid) else {
        return;
    };
    // SAFETY: as in `leave`.
    if tell(cpu, unsafe { &mut *thread }, now) {
        remove(tid);
    }
}

/// A new thread can run: it has no processor until it does.
#[inline(always)]
pub fn on_new(ctx: &RawTracePointContext) -> u32 {
    let ids = ids_of(argument::<0>(ctx));
    let (tgid, tid) = ((ids >> 32) as u32, ids as u32);
    // Its name, user and cgroup are those of its creator, which runs.
    if tid == 0 || !filter::admits(FILTER.load(), tgid, tid) {
        return 0;
    }
    let place = cgroup::place();
    let mut flags = 0;
    if FILTER.load() & FILTER_CGROUPS != 0 {
        match cgroup::verdict(place) {
            CGROUP_WANTED => {}
            CGROUP_UNDECIDED => flags = u32::from(FLAG_UNDECIDED),
            _ => return 0,
        }
    }
    let Some(cpu) = WAIT_CPU.get_ptr_mut(0) else {
        return 0;
    };
    // SAFETY: this processor's own slot; see `WaitCpu`.
    let cpu = unsafe { &mut *cpu };
    // SAFETY: the helper takes no pointers.
    let now = unsafe { bpf_ktime_get_ns() };
    cpu.thread = ThreadWaits {
        from_ns: now,
        cgroup: cgroup::id_at(place),
        salt: salt(ids, now),
        told_ns: now,
        ids,
        state: STATE_NEW,
        flags,
        ..BLANK
    };
    put(cpu, now);
    0
}

/// The current thread runs another program. If it was not the main thread of its process, it is now,
/// and has its id.
#[inline(always)]
pub fn on_exec(ctx: &RawTracePointContext) -> u32 {
    let ids = bpf_get_current_pid_tgid();
    let tid = ids as u32;
    let before = argument::<8>(ctx) as u32;
    if before != tid
        && let Some(thread) = find(before)
        && let Some(cpu) = WAIT_CPU.get_ptr_mut(0)
    {
        // SAFETY: as in `leave`; this processor's own slot; the helper takes no pointers.
        unsafe {
            fill(&raw mut (*cpu).thread, &*thread);
            (*cpu).thread.ids = ids;
            put(&mut *cpu, bpf_ktime_get_ns());
        }
        remove(before);
    }
    if let Some(thread) = find(tid) {
        // SAFETY: as in `leave`; the helper takes no pointers.
        unsafe {
            (*thread).salt = salt(ids, bpf_ktime_get_ns());
            (*thread).placed_ns = 0;
            (*thread).interpreter = 0;
        }
    }
    0
}

/// Makes `cpu.thread` known, in the place of what could not be told of a former thread with its id.
#[inline(always)]
fn put(cpu: &mut WaitCpu, now: u64) {
    let Some(thread) = find(cpu.thread.ids as u32) else {
        add(cpu);
        return;
    };
    // SAFETY: a value that the lookup returned, of a thread that is gone.
    unsafe {
        // One that was told, and whose id the main thread has by now, has none.
        let has_totals = (*thread).totals.ns != NO_TOTALS.ns || (*thread).totals.runnable_ns != 0;
        if has_totals && !tell(cpu, &mut *thread, now) {
            cpu.counters.ring_full += 1;
        }
        fill(thread, &cpu.thread);
    }
}
