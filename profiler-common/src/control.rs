//! What user space and the kernel-side programs agree on besides records: limits, filter bits and
//! per-CPU counters.
//!
//! Settings are read-only globals of the kernel object, set before it is loaded; [`Counters`] is
//! the value of the per-CPU map `COUNTERS`, indexed by event source. Times are nanoseconds of
//! CLOCK_MONOTONIC.

/// Most event sources of one session; there is one entry point of the kernel object for each.
pub const MAX_SOURCES: usize = 8;

/// Most cgroups of one filter.
pub const MAX_CGROUPS: usize = 64;

/// Filter bit: only tasks in the map `WATCHED`.
pub const FILTER_TASKS: u32 = 1;
/// Filter bit: only threads named in the map `COMMS`.
pub const FILTER_COMMS: u32 = 2;
/// Filter bit: only threads of users in the map `UIDS`.
pub const FILTER_UIDS: u32 = 4;
/// Filter bit: only threads below a cgroup of the map `CGROUPS`.
pub const FILTER_CGROUPS: u32 = 8;

/// Value bit of `WATCHED`: the key is a process id, all its threads are meant.
pub const WATCH_PROCESS: u32 = 1;
/// Value bit of `WATCHED`: the key is the id of a single thread.
pub const WATCH_THREAD: u32 = 2;

/// What one processor saw of one event source. Each event is counted in `ticks` and in exactly one
/// of `idle`, `filtered`, `passed_over`, `nested`, `ring_full` and `sent`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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
    /// Clock ticks that were due while the processor took no timer interrupt (interrupts off, or
    /// a hypervisor ran something else): no thread could be sampled then.
    pub late: u64,
    /// Children of watched tasks that found no room in `WATCHED` (counted for source 0).
    pub unfollowed: u64,
    /// Clocks only: when the last tick was due.
    pub last_due_ns: u64,
    /// Clocks only: 1 if the last tick found the processor idle.
    pub last_idle: u64,
    /// Tracepoints only: hits since the last sample.
    pub since_sample: u64,
}

const _: () = assert!(size_of::<Counters>() == 104);
