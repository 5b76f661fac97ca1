//! Tables in the kernel, as those see them who say which ones are to be there.
//!
//! Files have slots for their tables; processes have lists of what they have mapped, by slots. What is
//! replaced or taken out is used again only some time later, when no walk can read it any more. Addresses
//! of lists are those of processes, times of CLOCK_MONOTONIC.
//!
//! What does not belong here: how tables lie in the kernel (`probe`), which are wanted (`resolve`).

use profiler_common::unwind::UnwindCounters;
use profiler_model::{Pid, Timestamp};

use crate::Table;

/// Number of a table in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slot(pub u32);

/// There is no room for it. Some may come free with [`KernelTables::evict`], and then some 10 ms and a
/// [`KernelTables::collect`] later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no room left for unwind tables in the kernel")]
pub struct NoRoom;

/// Executable memory of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MappedCode {
    /// First address.
    pub start: u64,
    /// First address behind it.
    pub end: u64,
    /// The file's own address of what is at `start`.
    pub address: u64,
    /// The file's table; none for memory that is not from a file: frame pointers are followed.
    pub slot: Option<Slot>,
}

/// The tables and lists of mappings in the kernel.
pub trait KernelTables {
    /// A slot for a file whose table is not loaded: walks end in its code, and the stack is copied.
    /// None if all are taken.
    fn reserve(&mut self) -> Option<Slot>;

    /// Loads a file's table, in place of what is there.
    fn load(&mut self, slot: Slot, table: &Table) -> Result<(), NoRoom>;

    /// Says that a file has nothing about its frames: frame pointers are followed.
    fn load_none(&mut self, slot: Slot);

    /// Takes a table out; the slot is as it was when it was reserved.
    fn evict(&mut self, slot: Slot);

    /// Gives a slot back. No list of mappings may name it any more.
    fn release(&mut self, slot: Slot);

    /// When a walk used the table last, to about a second; 0: not since the slot was reserved.
    fn used(&self, slot: Slot) -> Timestamp;

    /// Says what a process has mapped, ordered by address and without overlaps, in place of what was
    /// said before.
    fn set_process(&mut self, pid: Pid, mappings: &[MappedCode]) -> Result<(), NoRoom>;

    /// Forgets a process.
    fn forget_process(&mut self, pid: Pid);

    /// Makes room of what was taken out that no program can read any more, and begins to wait for
    /// what was taken out since. Never waits itself; call it now and then.
    fn collect(&mut self);

    /// Memory of all tables and lists in the kernel, used or not, in bytes.
    fn memory_bytes(&self) -> u64;

    /// What became of walks since attaching, on all processors.
    fn counters(&self) -> UnwindCounters;

    /// The present time.
    fn now(&self) -> Timestamp;
}
