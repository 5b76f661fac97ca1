//! Object files of other people's programs: headers, symbols, names, debug information, unwind entries.
//!
//! Open files -> [`Object`] with its [`Function`]s, and what is below it ([`elf`], [`cfi`]). Addresses are ELF
//! virtual addresses, offsets file offsets. Every file is untrusted: bounded in bytes and work, no panic. Source:
//! the System V ABI, the DWARF standard.
//!
//! What does not belong here: finding and opening files (`profiler-resolve`), processes, the kernel.
//!
//! An example, which `cargo xtask check` compiles:
#![doc = "```no_run"]
#![doc = include_str!("../examples/list_functions.rs")]
#![doc = "```"]

pub mod cfi;
pub mod cursor;
pub mod demangle;
pub mod dynamic;
pub mod elf;
mod functions;
mod markers;
mod object;
mod symbols;

pub use functions::start_code_len;
pub use object::{
    Aliases, Bounds, Declaration, DeclaredLines, DescribedFunction, Object, ObjectError,
    dialect_of, has_markers, may_name,
};

use serde::{Deserialize, Serialize};

/// A function or marker of an object file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Function {
    /// Demangled name; of a marker `provider:name`.
    pub name: Box<str>,
    /// Name as in the symbol table, where that differs.
    pub linkage_name: Option<Box<str>>,
    /// Other names of the same code.
    pub aliases: Vec<Box<str>>,
    /// File offset of its first instruction.
    pub offset: u64,
    /// ELF virtual address of its first instruction.
    pub address: u64,
    /// Length in bytes; 0: not known.
    pub size: u64,
    /// Source file, where debug information says it.
    pub source: Option<Box<str>>,
    /// The line that its name stands on there; 0: not known.
    pub line: u32,
    /// What it is.
    pub kind: FunctionKind,
    /// What it was written in, as far as names and sections tell.
    pub language: Language,
}

/// What can be traced.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FunctionKind {
    /// A function.
    Function,
    /// A statically defined marker (USDT).
    Marker {
        /// Its arguments in the notation of systemtap: `-4@%edi 8@16(%rsp)`.
        arguments: Box<str>,
        /// File offset of the counter that switches it on, if it has one.
        semaphore: Option<u64>,
    },
}

/// What a function was written in. Decides on names, calling convention and stacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Language {
    /// C, assembly, or not known.
    C,
    /// C++.
    Cxx,
    /// Rust.
    Rust,
    /// Go.
    Go,
}
