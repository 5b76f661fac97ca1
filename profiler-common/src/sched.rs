//! Records and settings of threads that wait: off-CPU time.
//!
//! A wait begins when a thread leaves its processor and ends when it is on one again. Its stacks are
//! sent once ([`crate::KIND_WAIT_STACK`]: a [`WaitStackHead`], then sections as those of a sample) and
//! then known by their key; each recorded wait is a [`WaitRecord`]. Totals of all waits of a thread
//! are counted besides, whatever is recorded ([`WaitTotalsRecord`]). Times are nanoseconds of CLOCK_MONOTONIC.

use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::{COMM_LEN, MAX_FRAMES, RecordHead};

/// The stacks that waits with this key have.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, Immutable, IntoBytes)]
pub struct WaitStackHead {
    /// Kind [`crate::KIND_WAIT_STACK`].
    pub head: RecordHead,
    /// When the wait began.
    pub at_ns: u64,
    /// Tells them from others, while the session's generation is the same.
    pub key: u64,
    /// Process id.
    pub tgid: u32,
    /// Thread id.
    pub tid: u32,
}

/// A wait that has ended.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, Immutable, IntoBytes)]
pub struct WaitRecord {
    /// Kind [`crate::KIND_WAIT`].
    pub head: RecordHead,
    /// When it ended.
    pub at_ns: u64,
    /// When it began.
    pub from_ns: u64,
    /// When the thread was made runnable; 0: it was so all the time, or that was not seen.
    pub woken_ns: u64,
    /// See [`WaitStackHead::key`]; 0: no stack.
    pub key: u64,
    /// Id of the thread's cgroup in the session's hierarchy; 0: not known.
    pub cgroup: u64,
    /// Process id.
    pub tgid: u32,
    /// Thread id.
    pub tid: u32,
    /// Who made it runnable: process id; 0: not known, or an interrupt.
    pub waker_tgid: u32,
    /// Who made it runnable: thread id.
    pub waker_tid: u32,
    /// Processor that it went on on.
    pub cpu: u32,
    /// How many waits this one stands for.
    pub weight: u32,
    /// A `STATE_*` constant.
    pub state: u32,
    /// `FLAG_*` bits, as those of a sample.
    pub flags: u32,
    /// The thread's name.
    pub comm: [u8; COMM_LEN],
}

/// A wait of this length stands for itself alone, however few stacks are walked.
pub const LONG_WAIT_NS: u64 = 1 << 23;

/// It could have run: another thread was put in its place.
pub const STATE_PREEMPTED: u32 = 0;
/// It waited for something, and could be interrupted.
pub const STATE_SLEEPING: u32 = 1;
/// It waited for something and could not be interrupted: a disk, as a rule.
pub const STATE_DISK: u32 = 2;
/// It was stopped, or is traced.
pub const STATE_STOPPED: u32 = 3;

/// How often and how long a thread waited. Exact, whatever becomes of the single waits.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, Immutable, IntoBytes)]
pub struct WaitTotals {
    /// How many waits have ended, by `STATE_*`.
    pub count: [u64; 4],
    /// How long they were, by `STATE_*`.
    pub ns: [u64; 4],
    /// Of all that: runnable, but without a processor; and the time that a new thread was so before
    /// it ran first.
    pub runnable_ns: u64,
}

/// Totals of a thread since the last such record. There is one a second at most, when a wait ends, and
/// one when the thread does.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, Immutable, IntoBytes)]
pub struct WaitTotalsRecord {
    /// Kind [`crate::KIND_WAIT_TOTALS`].
    pub head: RecordHead,
    /// Until when.
    pub at_ns: u64,
    /// Since when.
    pub from_ns: u64,
    /// See [`WaitRecord::cgroup`].
    pub cgroup: u64,
    /// Process id.
    pub tgid: u32,
    /// Thread id.
    pub tid: u32,
    /// Processor that told.
    pub cpu: u32,
    /// `FLAG_*` bits, as those of a sample.
    pub flags: u32,
    /// The totals.
    pub totals: WaitTotals,
}

/// What the kernel side knows of a thread.
///
/// It is in `WAIT_THREADS`, at the lower bits of the thread's id, if no other thread had that place
/// first; else in `WAITING`, by its id. Nearly all are found without hashing.
///
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, Immutable, IntoBytes)]
pub struct ThreadWaits {
    /// When its present wait began; 0: it runs.
    pub from_ns: u64,
    /// When it was made runnable; 0: that was not seen.
    pub woken_ns: u64,
    /// Who did that, as [`ThreadWaits::ids`]; 0: not a thread.
    pub waker: u64,
    /// See [`WaitRecord::key`].
    pub key: u64,
    /// See [`WaitRecord::cgroup`].
    pub cgroup: u64,
    /// Tells the keys of this thread from those of others, and from those of its former program.
    pub salt: u64,
    /// When it was looked whether it is wanted, which cgroup it is in, and what runs there.
    pub placed_ns: u64,
    /// Since when the totals are.
    pub told_ns: u64,
    /// Process id in the upper half, thread id in the lower one; 0: nobody's.
    pub ids: u64,
    /// A `STATE_*` constant, or [`STATE_NEW`].
    pub state: u32,
    /// `FLAG_*` bits, as those of a sample.
    pub flags: u32,
    /// How many waits with stacks not seen before this one stands for; 0: it is not to be recorded.
    pub share: u32,
    /// How many have claimed this place of `WAIT_THREADS`: it belongs to who finds 1 after adding itself.
    pub claims: u32,
    /// Number of the interpreter that its process runs; 0: none.
    pub interpreter: u64,
    /// Totals that have not been told.
    pub totals: WaitTotals,
}

/// The thread has never run: no wait, but runnable.
pub const STATE_NEW: u32 = 4;

/// A thread that waited already when the recording began, as an iterator over all tasks finds it.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaiterRecord {
    /// Since when its wait counts.
    pub at_ns: u64,
    /// See [`WaitRecord::key`].
    pub key: u64,
    /// See [`ThreadWaits::ids`].
    pub ids: u64,
    /// What it came into the kernel with (`struct pt_regs`); zeros if that is not known, nonsense if it is a
    /// thread of the kernel.
    pub registers: [u64; WAITER_REGISTERS],
    /// Not 0: the kernel stack may go on.
    pub is_cut: u64,
    /// Length of the kernel stack.
    pub kernel_bytes: u64,
    /// The kernel stack, leaf first.
    pub kernel: [u64; MAX_FRAMES],
}

/// Words of the kernel's `struct pt_regs`.
pub const WAITER_REGISTERS: usize = 21;

/// What one processor has seen of waits.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, Immutable, IntoBytes)]
pub struct WaitCounters {
    /// Waits that ended.
    pub ended: u64,
    /// Of these: recorded.
    pub recorded: u64,
    /// Stacks walked and sent.
    pub walked: u64,
    /// Threads that found no room in `WAITING`: one of their waits is lost.
    pub table_full: u64,
    /// Waits whose end was not seen: the thread has left its processor again meanwhile.
    pub unseen: u64,
    /// Waits, stacks and totals that found no room in the ring buffer.
    pub ring_full: u64,
    /// Stacks that were not walked, because all scratch memory was in use.
    pub nested: u64,
}

/// In place of a key: the stack was not walked, so that walks keep their budget.
pub const KEY_NOT_WALKED: u64 = 1;

/// Most waits of all processors together that are recorded one by one, in a second, on average. Of
/// more, those that are short are recorded by chance, and weigh so much more.
pub const WAITS_PER_SECOND: u64 = 5_000;
/// The same for stacks that are walked.
pub const WALKS_PER_SECOND: u64 = 4_000;
/// What is recorded is adapted at least so seldom: the logarithm of nanoseconds.
pub const LEAST_WAIT_WINDOW_LOG: u32 = 23;

/// Index of `WAIT_OFFSETS`: `task_struct::pid`; `tgid` is behind it.
pub const TASK_PID: usize = 0;
/// Index of `WAIT_OFFSETS`: `task_struct::comm`.
pub const TASK_COMM: usize = 1;
/// Index of `WAIT_OFFSETS`: `task_struct::__state`, or `state` before 5.14.
pub const TASK_STATE: usize = 2;
/// Index of `WAIT_OFFSETS`: `task_struct::stack`.
pub const TASK_STACK: usize = 3;
/// Index of `WAIT_OFFSETS`: `task_struct::on_cpu`.
pub const TASK_ON_CPU: usize = 4;
/// Index of `WAIT_OFFSETS`: `task_struct::cred`.
pub const TASK_CRED: usize = 5;
/// Index of `WAIT_OFFSETS`: `cred::uid`.
pub const CRED_UID: usize = 6;
/// How many values `WAIT_OFFSETS` has.
pub const WAIT_OFFSETS: usize = 7;

/// The arguments of `sched_switch` are (preempt, prev, next): before 5.18.
pub const SWITCH_PLAIN: u32 = 0;
/// They are (preempt, state, prev, next): the first versions of 5.18.
pub const SWITCH_STATE_SECOND: u32 = 1;
/// They are (preempt, prev, next, state): since then.
pub const SWITCH_STATE_LAST: u32 = 2;

const _: () = assert!(size_of::<WaitStackHead>() == 32);
const _: () = assert!(size_of::<WaitRecord>() == 96);
const _: () = assert!(size_of::<WaitTotals>() == 72);
const _: () = assert!(size_of::<WaitTotalsRecord>() == 120);
const _: () = assert!(size_of::<ThreadWaits>() == 168);
const _: () = assert!(size_of::<WaiterRecord>() == 8 * (5 + WAITER_REGISTERS + MAX_FRAMES));
