//! What user space and the kernel-side programs agree on besides records: limits, filter bits,
//! settings that change and per-CPU counters.
//!
//! Settings are read-only globals of the kernel object, set before it is loaded, but for
//! [`Adjusted`], the value of the map `ADJUSTED`; [`Counters`] is the value of the per-CPU map
//! `COUNTERS`, indexed by event source. Times are nanoseconds of CLOCK_MONOTONIC.

use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Most event sources of one session; there is one entry point of the kernel object for each.
pub const MAX_SOURCES: usize = 8;

/// Filter bit: only tasks in the map `WATCHED`.
pub const FILTER_TASKS: u32 = 1;
/// Filter bit: only threads named in the map `COMMS`.
pub const FILTER_COMMS: u32 = 2;
/// Filter bit: only threads of users in the map `UIDS`.
pub const FILTER_UIDS: u32 = 4;
/// Filter bit: only threads in or below a cgroup of the map `CGROUPS`.
pub const FILTER_CGROUPS: u32 = 8;
/// Filter bits of conditions on the current thread, whatever there are: all but cgroups, which are decided
/// apart and kept by cgroup. Asking costs a tenth of a switch, so waits do it rarely.
pub const FILTER_ASKED: u32 = !FILTER_CGROUPS;

/// Value bit of `WATCHED`: the key is a process id, all its threads are meant.
pub const WATCH_PROCESS: u32 = 1;
/// Value bit of `WATCHED`: the key is the id of a single thread.
pub const WATCH_THREAD: u32 = 2;
/// Value bit of `WATCHED`: the processes that it starts are watched too, and its threads if it is
/// watched as a single one.
pub const WATCH_FOLLOW: u32 = 4;
/// Value bit of `WATCHED`: added by the kernel side, for whom it descends from.
pub const WATCH_INHERITED: u32 = 8;

/// Where the value of `WATCHED` has the id of the task that named its root, see [`watch_root`].
const WATCH_ROOT_SHIFT: u32 = 10;
/// The bits of the root.
pub const WATCH_ROOT: u32 = !0 << WATCH_ROOT_SHIFT;

/// The root `id` as bits of a value of `WATCHED`: the task named by user space that all inherited
/// entries below it stem from. Ids have at most 22 bits (`PID_MAX_LIMIT` of the kernel).
pub const fn watch_root(id: u32) -> u32 {
    id << WATCH_ROOT_SHIFT
}

/// The root in a value of `WATCHED`; 0: none.
pub const fn watched_root(value: u32) -> u32 {
    value >> WATCH_ROOT_SHIFT
}

/// A value of `KERNEL_STACKS` besides 0 and 1: [`Adjusted`] says whether they are wanted.
pub const KERNEL_STACKS_ADJUSTED: u8 = 2;

/// A value of `PERIODS` that no event has: [`Adjusted`] says what it is at present.
pub const PERIOD_ADJUSTED: u64 = u64::MAX;

/// Value of `WATCHED`: a task, by its id, and whose life is meant by that.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, Immutable, IntoBytes)]
pub struct Watched {
    /// `WATCH_*` bits and the root; 0: nothing.
    pub bits: u32,
    /// Which task of that id it is: the kernel frees a task some time after its id was given out again. 0: not
    /// known; [`watch_life`] of a start, [`watch_task`] of an address.
    pub life: u32,
}

/// Set in [`Watched::life`] if the kernel side has added the task.
pub const WATCH_BY_KERNEL: u32 = 1 << 31;

/// The life of a task that user space names: when it began, since boot, in ticks of [`WATCH_TICK_NS`].
pub const fn watch_life(start_ticks: u64) -> u32 {
    start_ticks as u32 & !WATCH_BY_KERNEL
}

/// The life of a task that the kernel side has met: the address of its structure, which no other one has
/// before the task is freed.
pub const fn watch_task(address: u64) -> u32 {
    (address >> 6) as u32 | WATCH_BY_KERNEL
}

/// The unit of a task's start in /proc.
pub const WATCH_TICK_NS: u64 = 10_000_000;

const _: () = assert!(size_of::<Watched>() == 8);

/// What may change while the sampler is attached. Changed while its events are stopped; only the
/// wish for kernel stacks may change at any time.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, Immutable, IntoBytes)]
pub struct Adjusted {
    /// Another one for each start of the events, never 0: no tick before it says when the next one
    /// is due.
    pub generation: u64,
    /// Clocks: nanoseconds between two ticks, which is also what a sample stands for. Else 0.
    pub period_ns: u64,
    /// Not 0: kernel stacks are wanted.
    pub kernel_stacks: u64,
}

const _: () = assert!(size_of::<Adjusted>() == 24);

/// What one processor saw of one event source. Each event is counted in `ticks` and in exactly one
/// of `idle`, `filtered`, `passed_over`, `nested`, `ring_full` and `sent`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, Immutable, IntoBytes)]
pub struct Counters {
    /// Events that reached the program.
    pub ticks: u64,
    /// The processor was idle; nothing to sample.
    pub idle: u64,
    /// The filter did not want the thread.
    pub filtered: u64,
    /// Tracepoints only: hits between two samples of a period above 1.
    pub passed_over: u64,
    /// All scratch memory was in use by interrupted programs; the sample is lost.
    pub nested: u64,
    /// The ring buffer had no room; the sample is lost.
    pub ring_full: u64,
    /// Samples written to the ring buffer.
    pub sent: u64,
    /// Clock ticks that never reached the program although the timer ran on time: the kernel
    /// skipped the program because another BPF program was running on this processor.
    pub skipped: u64,
    /// Of these, the ones while a thread that the filter wants was not switched at all.
    pub skipped_surely: u64,
    /// Clock ticks that were due while the processor took no timer interrupt (interrupts off, or
    /// a hypervisor ran something else): no thread could be sampled then.
    pub late: u64,
    /// Children of watched tasks that found no room in `WATCHED` (counted for source 0).
    pub unfollowed: u64,
    /// Clocks only: when the last tick was due.
    pub last_due_ns: u64,
    /// Clocks only: what ran at the last tick, and how often it had been switched; 0: nothing did, 1: that is not known.
    pub last_turn: u64,
    /// Tracepoints only: hits since the last sample.
    pub since_sample: u64,
    /// Adjustable sources only: [`Adjusted::generation`] at the last tick.
    pub generation: u64,
}

const _: () = assert!(size_of::<Counters>() == 120);
