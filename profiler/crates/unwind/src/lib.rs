//! How to find the callers of frames: what object files say about it, as tables that the kernel side
//! and user space walk stacks by.
//!
//! Sections of an object file -> [`Table`]. Addresses are the file's own (ELF virtual addresses). What
//! does not belong here: loading tables into the kernel (`probe`), which process maps what
//! (`resolve`), names.
//!
//! An example, which `cargo xtask check` compiles:
#![doc = "```no_run"]
#![doc = include_str!("../examples/rule_at.rs")]
#![doc = "```"]

mod build;
pub mod cache;
mod expression;
pub mod go;
pub mod kernel;
mod outermost;
mod program;
mod raw;
pub mod snapshot;
mod startup;
mod state;
mod stubs;
mod table;
pub mod walk;

pub use build::{BuildError, BuildReport, build_file, build_vdso};
pub use raw::{Raw, build_raw};
pub use table::{Builder, Entry, Page, Table, TooLarge};
