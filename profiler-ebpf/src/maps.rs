//! Maps and settings: all state that the programs share with user space.
//!
//! Sizes given here are placeholders where user space sets the real ones at load time (rings by
//! processors and memory budget, filters by what is asked for). Settings are read-only globals, so
//! the verifier removes the branches that a session does not need.

use aya_ebpf::{
    Global,
    bindings::BPF_F_MMAPABLE,
    btf_maps::{Array, ArrayOfMaps, HashMap, LruHashMap, PerCpuArray, RingBuf},
    macros::btf_map,
};
use profiler_common::{
    COMM_LEN, INNERMOST_FRAMES, MAX_FRAMES, OUTERMOST_FRAMES,
    call::{CallCounters, CallCpu, Fetch, MAX_FETCHES, ProbeControl},
    cgroup::{CgroupLosses, NAME_BYTES, OFFSETS, SUBSYS_NONE, VERDICT_SLOTS, Verdict},
    control::{Adjusted, Counters, MAX_SOURCES, Watched},
    interpreter::{InterpreterProcess, Layout, MAX_LAYOUTS},
    python::{BLOCK_BYTES, MAX_PYTHON_FRAMES, PythonFrame},
    sched::{
        LEAST_WAIT_WINDOW_LOG, SWITCH_PLAIN, ThreadWaits, WAIT_OFFSETS as WAIT_OFFSET_COUNT,
        WaitCounters, WaitRecord, WaitTotalsRecord, WaiterRecord,
    },
    unwind::{self, Process, REGISTERS, Rule, SEGMENT_WORDS, Table, UnwindCounters},
};

/// Bytes of a record under construction. With all stacks full and a copied stack it takes 24,792; the
/// kernel allows values of 32 KiB per processor.
pub const RECORD_BYTES: usize = 0x7f00;

/// How many samplers may be at work at a time on one processor: one, and one that interrupts it.
pub const NESTING_LEVELS: u32 = 2;

/// One sampler's workspace.
#[repr(C)]
pub struct Scratch {
    /// Not 0 while a program uses it.
    pub busy: u64,
    /// Which of them it is.
    pub level: u64,
    /// Bytes of the record so far. Here and not in a register: the verifier would follow the programs
    /// behind each section with each length that the section may have.
    pub len: u64,
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

/// Tasks of the filter and their descendants, by id. Preallocated: kernels before 6.1 allow nothing else
/// in perf_event programs.
#[btf_map]
pub static WATCHED: HashMap<u32, Watched, 1> = HashMap::new();

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

/// For clocks: where the kernel's structure of a task has how often it gave up its processor, and behind that how often it was
/// taken off; 0: not known.
#[unsafe(no_mangle)]
pub static TASK_SWITCHES_OFFSET: Global<u32> = Global::new(0);

/// Where the kernel's structure of a task has its id.
#[unsafe(no_mangle)]
pub static TASK_PID_OFFSET: Global<u32> = Global::new(0);

/// Where it has the time of its start since boot; 0: not known.
#[unsafe(no_mangle)]
pub static TASK_START_OFFSET: Global<u32> = Global::new(0);

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
pub struct SelfJump {
    /// The stack pointer there, so that of the entry.
    pub sp: u64,
    /// Index of the probe; above all of them if the jump has come to the entry.
    pub probe: u64,
}

/// The last self jump of each thread. There is one for the moment between a jump and where it leads, so
/// few are needed at a time; what was not used for longest makes room.
#[btf_map]
pub static SELF_JUMPS: LruHashMap<u32, SelfJump, 4096> = LruHashMap::new();

/// How many calls of a probe have been let through in a second.
#[repr(C)]
pub struct RateWindow {
    /// Which second.
    pub second: u64,
    /// How many.
    pub calls: u64,
}

impl RateWindow {
    /// Begins anew if this is another second.
    ///
    /// # Safety
    /// `window` is a value of a map of this processor's own, which a lookup returned.
    #[inline(always)]
    pub unsafe fn turn(window: *mut RateWindow, second: u64) {
        // SAFETY: the caller's.
        unsafe {
            if (*window).second != second {
                (*window).second = second;
                (*window).calls = 0;
            }
        }
    }
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

/// Processes that run an interpreter. Preallocated, as `WATCHED`.
#[btf_map]
pub static INTERPRETER_PROCESSES: HashMap<u32, InterpreterProcess, 1> = HashMap::new();

/// Where versions of interpreters have what a walk needs.
#[btf_map]
pub static INTERPRETER_LAYOUTS: Array<Layout, { MAX_LAYOUTS as usize }> = Array::new();

/// Where frames of CPython are put together.
#[repr(C)]
pub struct PythonScratch {
    /// Not 0 while a program uses it.
    pub busy: u64,
    /// Where `_PyRuntime` is.
    pub runtime: u64,
    /// Index of the layout.
    pub layout: u64,
    /// The thread pointer of the current thread.
    pub pointer: u64,
    /// For waits: what tells the frames from others.
    pub fingerprint: u64,
    /// The next interpreter to look through.
    pub interpreter: u64,
    /// The next thread state.
    pub thread: u64,
    /// The next frame.
    pub frame: u64,
    /// Frames found.
    pub count: u64,
    /// Not 0: it is not known yet if the last frame was called from machine code.
    pub open: u64,
    /// The structure that was read last.
    pub block: [u8; BLOCK_BYTES],
    /// Frames found.
    pub frames: [PythonFrame; MAX_PYTHON_FRAMES as usize + 1],
}

/// Workspaces, claimed as those of the sampler are.
#[btf_map]
pub static PYTHON_SCRATCH: PerCpuArray<PythonScratch, WALKS_AT_A_TIME> = PerCpuArray::new();

/// Where a task has its thread pointer; 0: not known, and there are no frames of interpreters.
#[unsafe(no_mangle)]
pub static TASK_FSBASE: Global<u32> = Global::new(0);

/// Flags of maps that user space writes by mapping them.
const MAPPED: usize = BPF_F_MMAPABLE as usize;

/// Lists of mappings, directories and rows: see `profiler_common::unwind`. All segments have the same
/// size, so that the kernel replaces look-ups in them by a few instructions.
#[btf_map]
pub static SEGMENTS: ArrayOfMaps<Array<u64, SEGMENT_WORDS, MAPPED>, 1> = ArrayOfMaps::new();

/// What is known of processes. Preallocated, as `WATCHED`.
#[btf_map]
pub static PROCESSES: HashMap<u32, Process, 1> = HashMap::new();

/// The tables of object files, by number.
#[btf_map]
pub static TABLES: Array<Table, 1, MAPPED> = Array::new();

/// How to find callers, by number.
#[btf_map]
pub static RULES: Array<Rule, 1, MAPPED> = Array::new();

/// What became of walks.
#[btf_map]
pub static UNWIND_COUNTERS: PerCpuArray<UnwindCounters, 1> = PerCpuArray::new();

/// A user stack on its way.
#[repr(C)]
pub struct Walk {
    /// When it began.
    pub now_ns: u64,
    /// The list of mappings of the process; 0: none is known.
    pub mappings: u64,
    /// The mapping that was found last, word by word as in the list; `end` is 0 if none was.
    pub start: u64,
    /// See `start`.
    pub end: u64,
    /// See `start`.
    pub address: u64,
    /// See `start`.
    pub table: u64,
    /// Where the frame is whose caller is looked for.
    pub pc: u64,
    /// 1 if `pc` is a return address.
    pub is_return: u64,
    /// Not 0: all `registers` are known.
    pub all_known: u64,
    /// Not 0: the frame pointer is known.
    pub fp_known: u64,
    /// Where the frame's rbx is: 0 if it is among the `registers`, else its address; one that is not
    /// readable if it is lost.
    pub bx: u64,
    /// Not 0: the thread is in the kernel.
    pub in_kernel: u64,
    /// Not 0: `pc` was found by a frame pointer, and is only believed if there is code; 1 more than the
    /// `END_*` that is to be said if there is none.
    pub guessed: u64,
    /// How many `frames` there are.
    pub count: u64,
    /// Why it ended: an `END_*`.
    pub why: u64,
    /// Not 0: the rest is to be copied, from the stack pointer on.
    pub copies: u64,
    /// Address of the kernel's page that probed calls return to; 0: not looked up, 1: there is none.
    pub trampoline: u64,
    /// The next pending return of a probed call, in the kernel.
    pub pending: u64,
    /// Where on the stack the last one that was found had its return address.
    pub pending_slot: u64,
    /// By DWARF's number, as far as they are known.
    pub registers: [u64; REGISTERS],
    /// Registers as the kernel saves them.
    pub saved: [u64; SAVED_REGISTERS],
    /// Addresses, leaf first. Those behind the [`INNERMOST_FRAMES`] go round in a ring of [`RING_FRAMES`].
    pub frames: [u64; WALK_FRAMES],
}

/// Words of the kernel's `pt_regs`, and at least those of `gregset_t` up to the instruction pointer.
pub const SAVED_REGISTERS: usize = 21;

/// Room for frames: a power of two, so that an index can be masked.
pub const WALK_FRAMES: usize = 512;

/// What is behind the innermost frames: a power of two, and one more than is kept of a stack that fills it,
/// so that a frame can be taken back.
pub const RING_FRAMES: usize = OUTERMOST_FRAMES + 1;

const _: () = {
    assert!(WALK_FRAMES.is_power_of_two() && RING_FRAMES.is_power_of_two());
    assert!(INNERMOST_FRAMES + RING_FRAMES == WALK_FRAMES);
    assert!(INNERMOST_FRAMES.is_multiple_of(RING_FRAMES));
};

/// How many walks there may be at a time on one processor: those of the sampler by its nesting level, and
/// one for waits.
pub const WALKS_AT_A_TIME: usize = NESTING_LEVELS as usize + 1;

/// The walk of a program that is called when a thread leaves its processor, which a sampler may
/// interrupt.
pub const WAIT_WALK: u32 = NESTING_LEVELS;

/// Walks under way.
#[btf_map]
pub static WALKS: PerCpuArray<Walk, WALKS_AT_A_TIME> = PerCpuArray::new();

/// For the limit on copies of stacks: the current second of each processor.
#[btf_map]
pub static COPY_RATE: PerCpuArray<RateWindow, 1> = PerCpuArray::new();

/// For the limit on steps of deep walks: the current second of each processor.
#[btf_map]
pub static STEP_RATE: PerCpuArray<RateWindow, 1> = PerCpuArray::new();

/// Not 0: user stacks are walked by tables; else by frame pointers alone.
#[unsafe(no_mangle)]
pub static UNWIND: Global<u8> = Global::new(0);

/// Not 0: samples are sent with what it takes to walk their stacks again; see `proof`.
#[unsafe(no_mangle)]
pub static UNWIND_PROOF: Global<u8> = Global::new(0);

/// Most frames that the kernel's own walkers give, at most `MAX_FRAMES`.
#[unsafe(no_mangle)]
pub static KERNEL_WALK_FRAMES: Global<u32> = Global::new(MAX_FRAMES as u32);

/// Most stacks copied per second and processor.
#[unsafe(no_mangle)]
pub static UNWIND_COPIES: Global<u32> = Global::new(0);

/// Most steps of walks beyond `MAX_FRAMES` per second and processor.
#[unsafe(no_mangle)]
pub static UNWIND_STEPS: Global<u32> = Global::new(0);

/// How registers of user space are found in the kernel: a `REGISTERS_*`.
#[unsafe(no_mangle)]
pub static USER_REGISTERS: Global<u8> = Global::new(unwind::REGISTERS_NONE);

/// Where the kernel's structures have what walks read; see `profiler_common::unwind`.
#[unsafe(no_mangle)]
pub static UNWIND_OFFSETS: [Global<u32>; unwind::OFFSETS] =
    [const { Global::new(0) }; unwind::OFFSETS];
/// What a processor's programs of waits keep. They run with interrupts disabled, and none of them in
/// an NMI: nothing else uses this meanwhile.
#[repr(C)]
pub struct WaitCpu {
    /// What was seen and lost.
    pub counters: WaitCounters,
    /// When the present window began.
    pub window_ns: u64,
    /// Waits recorded in it.
    pub recorded: u64,
    /// Shorter waits are recorded by chance.
    pub sure_ns: u64,
    /// Stacks walked in it.
    pub walked: u64,
    /// Stacks walked lately beyond the budget, which bursts may exceed for a while.
    pub debt: u64,
    /// Of so many stacks that were not seen before one is walked: the exponent of a power of two.
    pub share_log: u64,
    /// A place to look at an address as a number.
    pub address: u64,
    /// Where chance goes on; 0: it has not begun.
    pub random: u64,
    /// A thread's first value.
    pub thread: ThreadWaits,
    /// Records under construction.
    pub record: WaitRecord,
    /// See `record`.
    pub totals: WaitTotalsRecord,
}

/// See [`WaitCpu`].
#[btf_map]
pub static WAIT_CPU: PerCpuArray<WaitCpu, 1> = PerCpuArray::new();

/// Threads that wait or have waited, by the lower bits of their ids: see [`ThreadWaits`].
#[btf_map]
pub static WAIT_THREADS: Array<ThreadWaits, 1> = Array::new();

/// Those whose place another one has, by their ids. Preallocated: it is changed where memory can't be
/// had.
#[btf_map]
pub static WAITING: HashMap<u32, ThreadWaits, 1> = HashMap::new();

/// How many there are in `WAITING`: as a rule none, and nobody is looked for there.
#[btf_map]
pub static WAIT_APART: Array<u64, 1> = Array::new();

/// Where the program that looks at all tasks puts together what it found of one.
#[repr(C)]
pub struct Waiter {
    /// A place to look at its address as a number.
    pub task: u64,
    /// Its entry.
    pub thread: ThreadWaits,
    /// What user space is told.
    pub record: WaiterRecord,
}

/// See [`Waiter`].
#[btf_map]
pub static WAITER: Array<Waiter, 1> = Array::new();

/// A process that waits for us, which is none of its waits; 0: none.
#[btf_map]
pub static WAIT_PASSED_OVER: Array<u32, 1> = Array::new();

/// Which bits of a thread's id are its place in `WAIT_THREADS`.
#[unsafe(no_mangle)]
pub static WAIT_PLACES: Global<u32> = Global::new(0);

/// Slots of `WAIT_KEYS`.
pub const WAIT_KEY_SLOTS: usize = 16_384;

/// Keys of stacks that user space has; 0: none. Each has two slots that it can be in.
#[btf_map]
pub static WAIT_KEYS: Array<u64, WAIT_KEY_SLOTS> = Array::new();

/// Where the kernel's structure of a task has its members, in bytes.
#[unsafe(no_mangle)]
pub static WAIT_OFFSETS: [Global<u32>; WAIT_OFFSET_COUNT] =
    [const { Global::new(0) }; WAIT_OFFSET_COUNT];

/// What the arguments of `sched_switch` are: `SWITCH_*`.
#[unsafe(no_mangle)]
pub static WAIT_SWITCH: Global<u32> = Global::new(SWITCH_PLAIN);

/// Not 0: the kernel says where a task's user registers are (from 5.15 on).
#[unsafe(no_mangle)]
pub static WAIT_REGISTERS: Global<u8> = Global::new(0);

/// Nobody can foretell it, so that nobody can make stacks whose keys are the same.
#[unsafe(no_mangle)]
pub static WAIT_SEED: Global<u64> = Global::new(0);

/// What is recorded and walked is adapted so often: the logarithm of nanoseconds.
#[unsafe(no_mangle)]
pub static WAIT_WINDOW_LOG: Global<u32> = Global::new(LEAST_WAIT_WINDOW_LOG);

/// Waits to be recorded in a window of one processor.
#[unsafe(no_mangle)]
pub static WAIT_BUDGET: Global<u64> = Global::new(50);

/// Stacks to be walked in a window of one processor.
#[unsafe(no_mangle)]
pub static WAIT_WALK_BUDGET: Global<u64> = Global::new(20);
