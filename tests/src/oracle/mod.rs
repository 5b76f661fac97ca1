//! Whether stacks are right, by a judge that shares no code with us: elfutils' libdwfl walks the same
//! registers and the same piece of stack (`tests/oracle/walk.c`).
//!
//! [`live`]: samples of running programs, each with the chain that was found in the kernel, the
//! registers, and up to 64 KiB of stack -> [`judge`]: the other walker's chains -> [`verdict`]: where
//! the two agree, and why not elsewhere. [`programs`]: what is sampled. Addresses are of the process.

pub mod files;
pub mod golden;
pub mod judge;
pub mod known;
pub mod live;
pub mod programs;
pub mod stopped;
pub mod verdict;

/// A sample with what it takes to walk its stack again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proof {
    /// The process.
    pub pid: u32,
    /// What the kernel side found, leaf first, as it wrote it.
    pub chain: Vec<u64>,
    /// Why it found no more.
    pub end: profiler_model::StackEnd,
    /// The program counter.
    pub pc: u64,
    /// By DWARF's number.
    pub registers: [u64; profiler_common::unwind::REGISTERS],
    /// Memory from `PROOF_BELOW` bytes below the stack pointer upwards.
    pub stack: Vec<u8>,
}

/// Executable memory of a process that a file is mapped to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Mapped {
    /// First address.
    pub start: u64,
    /// First address behind it.
    pub end: u64,
    /// Offset in the file.
    pub offset: u64,
    /// The file, as this process can open it. Empty: memory without a file.
    pub path: String,
}
