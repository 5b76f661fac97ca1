//! Maps and settings: all state that the programs share with user space.
//!
//! Sizes given here are placeholders where user space sets the real ones at load time (rings by
//! processors and memory budget, filters by what is asked for). Settings are read-only globals, so
//! the verifier removes the branches that a session does not need.

use aya_ebpf::{
    Global,
    btf_maps::{Array, ArrayOfMaps, HashMap, LruHashMap, PerCpuArray, RingBuf},
    macros::btf_map,
};
use profiler_common::{
    COMM_LEN,
    call::{CallCounters, CallCpu, Fetch, MAX_FETCHES, ProbeControl},
    cgroup::{CgroupLosses, NAME_BYTES, OFFSETS, SUBSYS_NONE, VERDICT_SLOTS, Verdict},
    control::{Adjusted, Counters, MAX_SOURCES},
};

/// Bytes of a record under construction. The longest (both stacks full) takes 2,112; a power of two
/// lets a length be masked to what the verifier can follow.
pub const RECORD_BYTES: usize = 4096;

/// How many samplers may be at work at a time on one processor: one, and one that interrupts it.
pub const NESTING_LEVELS: u32 = 2;

/// One sampler's workspace.
#[repr(C)]
pub struct Scratch {
    /// Not 0 while a program uses it.
    pub busy: u64,
    /// The record.
    pub record: [u8; RECORD_BYTES],
}

/// One ring buffer per processor, indexed by its number.
#[btf_map]
pub static RINGS: ArrayOfMaps<RingBuf<[u8; 0], 4096>, 1> = ArrayOfMaps::new();

/// Workspaces of the sampler, indexed by nesting level. Programs that can be preempted (uprobes)
/// must not use these: slots are claimed without atomics, which is safe only if whoever interrupts
/// also finishes first.
#[btf_map]
pub static SCRATCH: PerCpuArray<Scratch, { NESTING_LEVELS as usize }> = PerCpuArray::new();

/// What was seen and lost, indexed by event source.
#[btf_map]
pub static COUNTERS: PerCpuArray<Counters, MAX_SOURCES> = PerCpuArray::new();

/// What changes while the sampler is attached; only read if a setting refers to it.
#[btf_map]
pub static ADJUSTED: Array<Adjusted, 1> = Array::new();

/// Tasks of the filter and their descendants: id -> `WATCH_*` bits and the root. Preallocated:
/// kernels before 6.1 allow nothing else in perf_event programs.
#[btf_map]
pub static WATCHED: HashMap<u32, u32, 1> = HashMap::new();

/// Thread names of the filter, padded with zeros.
#[btf_map]
pub static COMMS: HashMap<[u8; COMM_LEN], u8, 1> = HashMap::new();

/// User ids of the filter.
#[btf_map]
pub static UIDS: HashMap<u32, u8, 1> = HashMap::new();

/// Cgroups of which something is said, and what: id -> a `CGROUP_*` constant. Samplers only look into
/// it: before 5.11, writing to a hash map in an NMI could wait for the lock of what it interrupted.
#[btf_map]
pub static CGROUPS: HashMap<u64, u32, 1> = HashMap::new();

/// Names of cgroups that are wanted once they are made, padded with zeros.
#[btf_map]
pub static CGROUP_NAMES: HashMap<[u8; NAME_BYTES], u8, 1> = HashMap::new();

/// What `CGROUPS` means for the cgroups that were met last.
#[btf_map]
pub static VERDICTS: Array<Verdict, VERDICT_SLOTS> = Array::new();

/// The generation, which tells verdicts that are still true from others: the sum of `DECIDED`, which
/// user space writes, and `MADE`, which the kernel side does.
#[btf_map]
pub static CGROUP_STATE: Array<u32, 2> = Array::new();

/// What is missing of new cgroups.
#[btf_map]
pub static CGROUP_LOSSES: Array<CgroupLosses, 1> = Array::new();

/// `FILTER_*` bits: kinds of conditions that are set.
#[unsafe(no_mangle)]
pub static FILTER: Global<u32> = Global::new(0);

/// The hierarchy that cgroups are those of: `SUBSYS_UNIFIED`, `SUBSYS_NONE`, or any other value for
/// one of version 1.
#[unsafe(no_mangle)]
pub static CGROUP_SUBSYS: Global<u32> = Global::new(SUBSYS_NONE);

/// The number of that hierarchy.
#[unsafe(no_mangle)]
pub static CGROUP_ROOT: Global<u32> = Global::new(0);

/// Where the kernel's structures of cgroups have their members, in bytes.
#[unsafe(no_mangle)]
pub static CGROUP_OFFSETS: [Global<u32>; OFFSETS] = [const { Global::new(0) }; OFFSETS];

/// Not 0: whether new cgroups are wanted is decided by user space, but for those in `CGROUP_NAMES`
/// or below a wanted one.
#[unsafe(no_mangle)]
pub static CGROUPS_UNDECIDED: Global<u8> = Global::new(0);

/// Not 0: kernel stacks are wanted; `KERNEL_STACKS_ADJUSTED`: `ADJUSTED` says whether.
#[unsafe(no_mangle)]
pub static KERNEL_STACKS: Global<u8> = Global::new(1);

/// Not 0: user stacks are wanted.
#[unsafe(no_mangle)]
pub static USER_STACKS: Global<u8> = Global::new(1);

/// The reader is woken when a ring buffer comes to hold this many bytes.
#[unsafe(no_mangle)]
pub static WAKE_BYTES: Global<u64> = Global::new(2048);

/// Per source: for clocks, nanoseconds between two ticks (0 for others, whose ticks can't be
/// foretold), `PERIOD_ADJUSTED` if `ADJUSTED` says how many; for tracepoints, the number of hits per
/// sample.
#[unsafe(no_mangle)]
pub static PERIODS: [Global<u64>; MAX_SOURCES] = [const { Global::new(0) }; MAX_SOURCES];

/// Where `pid` is in the record of `task:task_newtask`.
#[unsafe(no_mangle)]
pub static NEWTASK_PID_OFFSET: Global<u32> = Global::new(8);

/// Where `clone_flags` is in the record of `task:task_newtask`.
#[unsafe(no_mangle)]
pub static NEWTASK_FLAGS_OFFSET: Global<u32> = Global::new(32);

/// Where `pid` is in the record of `sched:sched_process_free`.
#[unsafe(no_mangle)]
pub static FREE_PID_OFFSET: Global<u32> = Global::new(24);

/// One ring buffer per processor for records of calls, apart from samples: calls that come in a
/// flood must not crowd samples out.
#[btf_map]
pub static CALL_RINGS: ArrayOfMaps<RingBuf<[u8; 0], 4096>, 1> = ArrayOfMaps::new();

/// What is to be done at the hits of each probe.
#[btf_map]
pub static PROBES: Array<ProbeControl, 1> = Array::new();

/// What became of the hits of each probe.
#[btf_map]
pub static CALL_COUNTS: PerCpuArray<CallCounters, 1> = PerCpuArray::new();

/// What became of the records of calls of each processor.
#[btf_map]
pub static CALL_CPU: PerCpuArray<CallCpu, 1> = PerCpuArray::new();

/// What each probe fetches.
#[btf_map]
pub static FETCHES: Array<[Fetch; MAX_FETCHES], 1> = Array::new();

/// How many threads may be at work on records with items at a time, on one processor.
pub const ITEM_SLOTS: u32 = 4;

/// Bytes in which an item can begin, a power of two. The longest record takes 2,256.
pub const ITEM_BYTES: usize = 4096;

/// Where a record with items is put together.
#[repr(C)]
pub struct ItemScratch {
    /// How many threads claim it; it belongs to the one that finds 1 after adding itself.
    pub users: u64,
    /// Where the next item begins.
    pub at: u64,
    /// The previous item's word.
    pub word: u64,
    /// Registers by `REGISTER_*`.
    pub registers: [u64; 16],
    /// The record; behind its mask there is room for the longest item.
    pub record: [u8; ITEM_BYTES + 1024],
}

/// Workspaces for records with items. Unlike the sampler, uprobes can be preempted, so these are
/// claimed atomically.
#[btf_map]
pub static ITEM_SCRATCH: PerCpuArray<ItemScratch, { ITEM_SLOTS as usize }> = PerCpuArray::new();

/// Most calls of a thread that limits can follow at a time.
pub const STACK_CALLS: usize = 64;

/// A call that has been entered and not left.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct OpenCall {
    /// Where its return address lies; the call it is in has a greater one.
    pub position: u64,
    /// When it was entered.
    pub entered_at_ns: u64,
    /// Its return address; 0 if not wanted.
    pub caller: u64,
    /// Index of its probe.
    pub probe: u64,
}

/// The calls of a thread or goroutine, outermost first.
#[repr(C)]
pub struct OpenCalls {
    /// How many there are.
    pub depth: u64,
    /// The calls.
    pub calls: [OpenCall; STACK_CALLS],
}

/// Open calls of threads and goroutines, for limits on depth, duration and rate. The key is the
/// thread id, or the process id and which of its stacks it is. What was not used for longest makes
/// room: its exits are then not recorded.
#[btf_map]
pub static OPEN_CALLS: LruHashMap<u64, OpenCalls, 1> = LruHashMap::new();

/// An empty value of `OPEN_CALLS`, which is too large for a program's stack.
#[btf_map]
pub static NO_CALLS: Array<OpenCalls, 1> = Array::new();

/// A jump of a function to its own beginning.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Turn {
    /// The stack pointer there, so that of the entry.
    pub sp: u64,
    /// Index of the probe; above all of them if the turn has come to the entry.
    pub probe: u64,
}

/// The last turn of each thread. There is one for the moment between a jump and where it leads, so
/// few are needed at a time; what was not used for longest makes room.
#[btf_map]
pub static TURNS: LruHashMap<u32, Turn, 4096> = LruHashMap::new();

/// How many calls of a probe have been let through in a second.
#[repr(C)]
pub struct RateWindow {
    /// Which second.
    pub second: u64,
    /// How many.
    pub calls: u64,
}

/// For a limit on the rate: each probe's current second.
#[btf_map]
pub static CALL_RATES: PerCpuArray<RateWindow, 1> = PerCpuArray::new();

/// Not 0: probes may fetch values.
#[unsafe(no_mangle)]
pub static CALL_FETCHES: Global<u8> = Global::new(0);

/// Not 0: there is a limit on depth, duration or rate.
#[unsafe(no_mangle)]
pub static CALL_LIMITS: Global<u8> = Global::new(0);

/// Shorter calls are left out; 0: none.
#[unsafe(no_mangle)]
pub static CALL_MIN_DURATION_NS: Global<u64> = Global::new(0);

/// Calls in more traced calls than this are left out; 0: none.
#[unsafe(no_mangle)]
pub static CALL_MAX_DEPTH: Global<u32> = Global::new(0);

/// Most calls of a probe per second and processor; 0: all.
#[unsafe(no_mangle)]
pub static CALL_MAX_RATE: Global<u32> = Global::new(0);

/// `FILTER_*` bits that hits are checked for: fewer than `FILTER` where links name the process.
#[unsafe(no_mangle)]
pub static CALL_FILTER: Global<u32> = Global::new(0);

/// Not 0: the kernel hands cookies over (from 5.15 on). Else each program has its own written into
/// it.
#[unsafe(no_mangle)]
pub static CALL_COOKIES: Global<u8> = Global::new(1);

/// Not 0: records of entries begin with the return address.
#[unsafe(no_mangle)]
pub static CALL_CALLERS: Global<u8> = Global::new(0);

/// The reader is woken when a ring buffer of calls comes to hold this many bytes.
#[unsafe(no_mangle)]
pub static CALL_WAKE_BYTES: Global<u64> = Global::new(2048);
