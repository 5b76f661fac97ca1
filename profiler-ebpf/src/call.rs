//! A hit of a probe on a traced function -> a `CallHead` in this processor's ring buffer for calls.
//!
//! One program serves all places of all functions: the cookie says which probe it is, what the hit
//! means, and where the return address lies. Every hit that the filter wants is counted, whatever
//! becomes of its record. Times are nanoseconds of CLOCK_MONOTONIC.
//!
//! This program can be preempted by another thread that hits a probe on the same processor, but does
//! not migrate: what is per processor is changed atomically, and records are built on the stack.

use core::{arch::asm, ffi::c_void};

use aya_ebpf::{
    bindings::pt_regs,
    helpers::{bpf_get_attach_cookie, bpf_get_current_pid_tgid, bpf_ktime_get_ns},
};
use profiler_common::{
    call::{
        CALL_AFTER_LOSS, CALL_HAS_CALLER, COOKIE_PLACE, CallCpu, CallHead, Cookie, EDGE_ENTER,
        EDGE_EXIT, EDGE_HIT, EDGE_SELF_JUMP_IF, EDGE_TAIL, EDGE_THROW, EDGE_WHOLE, ITEM_BAD_MEMORY,
        ITEM_OK, ItemHead, PROBE_FETCHES, PROBE_GO, PROBE_OFF, PROBE_SELF_JUMPS, ProbeControl,
    },
    cgroup::{CGROUP_UNDECIDED, CGROUP_WANTED},
    control::FILTER_CGROUPS,
};

use crate::{
    call_limits, cgroup, emit, fetch, filter,
    maps::{
        CALL_CALLERS, CALL_COOKIES, CALL_COUNTS, CALL_CPU, CALL_FETCHES, CALL_FILTER, CALL_LIMITS,
        PROBES,
    },
    self_jump,
    user_memory::read_word,
};

/// Where `stack.hi` is in Go's `runtime.g`, in all its versions.
const GO_STACK_HI: u64 = 8;

/// A hit on its way to a record.
#[repr(C)]
pub struct Hit {
    /// The record's head.
    pub head: CallHead,
    /// Index of the probe.
    pub probe: u32,
    /// An `EDGE_*`.
    pub edge: u32,
    /// `PROBE_*`.
    pub flags: u32,
    /// Not 0: `caller` is known.
    pub callers: u32,
    /// For a whole call: when it was entered.
    pub began_ns: u64,
    /// For a whole call: its return address.
    pub caller: u64,
    /// Address of the return address.
    pub sp: u64,
}

impl Hit {
    /// Whether the record begins with the return address, which is on the stack.
    #[inline(always)]
    pub fn wants_caller(&self) -> bool {
        CALL_CALLERS.load() != 0 && (self.edge == EDGE_ENTER || self.edge == EDGE_HIT)
    }
}

/// What limits say of a hit.
pub enum Verdict {
    /// It is to be recorded.
    Send,
    /// Its call is left out of the recording, and counted as such.
    LeaveOut,
    /// It makes no record, and is not to be counted either: its call was or will be.
    Nothing,
}

/// A record with one item that is a word.
#[repr(C)]
struct WordRecord {
    head: CallHead,
    item: ItemHead,
    word: u64,
}

/// A probe was hit.
#[inline(always)]
pub fn on_hit(ctx: *mut c_void) -> u32 {
    let bits = cookie(ctx);
    let cookie = Cookie::from_bits(bits);
    let Cookie {
        probe, mut edge, ..
    } = cookie;
    let Some(control) = PROBES.get_ptr(probe) else {
        return 0;
    };
    // SAFETY: a value of 8 bytes that the lookup returned; read at once, so that its generation and
    // its flags belong together.
    let control: ProbeControl =
        unsafe { core::mem::transmute(control.cast::<u64>().read_volatile()) };
    if control.generation != cookie.generation || control.flags & PROBE_OFF != 0 {
        return 0;
    }
    let mut flags = u32::from(control.flags);
    if edge == EDGE_TAIL {
        edge = EDGE_EXIT;
        flags &= !u32::from(PROBE_FETCHES);
    }
    let ids = bpf_get_current_pid_tgid();
    let (tgid, tid) = ((ids >> 32) as u32, ids as u32);
    if cookie.tgid != 0 && cookie.tgid != tgid || !filter::admits(CALL_FILTER.load(), tgid, tid) {
        return 0;
    }
    // There is nowhere to put a record until it is decided: such a hit counts as lost.
    let mut undecided = false;
    if CALL_FILTER.load() & FILTER_CGROUPS != 0 {
        match cgroup::verdict(cgroup::place()) {
            CGROUP_WANTED => {}
            CGROUP_UNDECIDED => undecided = true,
            _ => return 0,
        }
    }
    let Some(counts) = CALL_COUNTS.get_ptr_mut(probe) else {
        return 0;
    };
    let regs = ctx.cast::<pt_regs>();
    // SAFETY: the context of a program of the kprobe type; the verifier checks the field.
    let mut sp = unsafe { (*regs).rsp };
    if control.flags & PROBE_SELF_JUMPS != 0 {
        if edge >= EDGE_SELF_JUMP_IF {
            // SAFETY: as above.
            self_jump::pass(edge, unsafe { (*regs).eflags }, tid, probe, sp);
            return 0;
        }
        if edge != EDGE_EXIT && self_jump::is_destination(tid, probe, sp) {
            // SAFETY: this processor's own slot, which the lookup returned, changed atomically.
            unsafe { add(&raw mut (*counts).self_jumps) };
            return 0;
        }
    }
    // SAFETY: as above.
    unsafe {
        add(if edge == EDGE_EXIT {
            &raw mut (*counts).exits
        } else {
            &raw mut (*counts).entries
        });
    }
    if cookie.behind_return {
        sp = sp.wrapping_sub(8);
    }
    let mut hit = Hit {
        head: CallHead {
            at_ns: 0,
            sp,
            tgid,
            tid,
            what: Cookie::place(bits) | edge << 24,
            stack: 0,
        },
        probe,
        edge,
        flags,
        callers: 0,
        began_ns: 0,
        caller: 0,
        sp,
    };
    if control.flags & PROBE_GO != 0 {
        // SAFETY: as above.
        place_on_goroutine(&mut hit.head, unsafe { (*regs).r14 });
    }
    // SAFETY: the helper takes no pointers. Before anything is fetched, which takes time.
    hit.head.at_ns = unsafe { bpf_ktime_get_ns() };
    if CALL_LIMITS.load() != 0 {
        match call_limits::apply(&mut hit) {
            Verdict::Send => {}
            Verdict::LeaveOut => {
                // SAFETY: as above.
                unsafe { add(&raw mut (*counts).left_out) };
                return 0;
            }
            Verdict::Nothing => return 0,
        }
    }
    if undecided || send(ctx, &mut hit).is_err() {
        // SAFETY: as above.
        unsafe { add(&raw mut (*counts).lost) };
    }
    0
}

#[inline(always)]
fn cookie(ctx: *mut c_void) -> u64 {
    if CALL_COOKIES.load() != 0 {
        // SAFETY: the context of this program.
        return unsafe { bpf_get_attach_cookie(ctx) };
    }
    let cookie: u64;
    // SAFETY: loads a constant.
    unsafe { asm!("{0} = {place} ll", out(reg) cookie, place = const COOKIE_PLACE) };
    cookie
}

/// Says where on the stack of goroutine `g` the return address lies. Stacks of goroutines move, but
/// the distance to their upper end stays.
#[inline(always)]
fn place_on_goroutine(head: &mut CallHead, g: u64) {
    if let Some(upper_end) = read_word(g.wrapping_add(GO_STACK_HI))
        && upper_end > head.sp
    {
        head.sp = upper_end - head.sp;
        // The lowest bits say nothing, because all are aligned; never 0.
        head.stack = ((g >> 4) as u32).max(1);
    }
}

/// Sends the record of a hit, which tells as well if others were lost before.
#[inline(always)]
fn send(ctx: *mut c_void, hit: &mut Hit) -> Result<(), emit::Full> {
    let cpu = CALL_CPU.get_ptr_mut(0).ok_or(emit::Full)?;
    // SAFETY: this processor's own slot, which the lookup returned.
    let (lost, told) = unsafe { load_losses(cpu) };
    if lost != told {
        hit.head.what |= CALL_AFTER_LOSS << 28;
    }
    let wants_items = hit.edge == EDGE_THROW
        || hit.edge == EDGE_WHOLE
        || CALL_FETCHES.load() != 0 && hit.flags & u32::from(PROBE_FETCHES) != 0;
    let sent = if wants_items {
        fetch::send(ctx, hit, cpu)
    } else {
        send_head(hit, cpu)
    };
    // SAFETY: this processor's own slot, which the lookup returned.
    unsafe {
        match sent {
            // Not simply cleared: another thread may have lost a record meanwhile.
            Ok(()) if lost != told => (&raw mut (*cpu).told).write_volatile(lost),
            Ok(()) => {}
            Err(emit::Full) => add(&raw mut (*cpu).lost),
        }
    }
    sent
}

/// Sends a hit without items, but for the caller if that is wanted. `cpu` is what the lookup of it
/// returned.
#[inline(always)]
pub fn send_head(hit: &mut Hit, cpu: *mut CallCpu) -> Result<(), emit::Full> {
    if hit.wants_caller() {
        hit.head.what |= CALL_HAS_CALLER << 28;
        let mut record = with_word(hit.head, hit.sp);
        const BYTES: u64 = size_of::<WordRecord>() as u64;
        // SAFETY: a record on this program's stack, and what the lookup returned.
        return unsafe { emit::emit_call(cpu, (&raw mut record).cast(), BYTES) };
    }
    const BYTES: u64 = size_of::<CallHead>() as u64;
    // SAFETY: as above.
    unsafe { emit::emit_call(cpu, (&raw mut hit.head).cast(), BYTES) }
}

/// Sends a whole call with nothing but when it was entered. `cpu` is as above.
#[inline(always)]
pub fn send_whole(hit: &Hit, cpu: *mut CallCpu) -> Result<(), emit::Full> {
    let mut record = WordRecord {
        head: hit.head,
        item: ItemHead {
            status: ITEM_OK,
            len: 8,
            reserved: 0,
        },
        word: hit.began_ns,
    };
    const BYTES: u64 = size_of::<WordRecord>() as u64;
    // SAFETY: a record on this program's stack, and what the lookup returned.
    unsafe { emit::emit_call(cpu, (&raw mut record).cast(), BYTES) }
}

/// A record with the word of user memory at `address`.
#[inline(always)]
fn with_word(head: CallHead, address: u64) -> WordRecord {
    let (status, word) = match read_word(address) {
        Some(word) => (ITEM_OK, word),
        None => (ITEM_BAD_MEMORY, address),
    };
    WordRecord {
        head,
        item: ItemHead {
            status,
            len: 8,
            reserved: 0,
        },
        word,
    }
}

/// How many records were lost, and how many of these have been told of.
///
/// # Safety
/// `cpu` is a value that a lookup returned.
#[inline(always)]
unsafe fn load_losses(cpu: *mut CallCpu) -> (u64, u64) {
    // SAFETY: the caller's.
    unsafe {
        (
            (&raw const (*cpu).lost).read_volatile(),
            (&raw const (*cpu).told).read_volatile(),
        )
    }
}

/// Adds 1, although other threads may do so on this processor as well.
///
/// # Safety
/// `counter` lies in a value that a lookup returned.
#[inline(always)]
pub unsafe fn add(counter: *mut u64) {
    // SAFETY: the caller's. The target has no such operation in its library: as an instruction.
    unsafe {
        asm!("lock *(u64 *)({counter} + 0) += {one}", counter = in(reg) counter, one = in(reg) 1_u64);
    }
}
