//! What people and other tools read of a recording, and what is read of theirs.
//!
//! Batches or a capture -> aggregates and call trees ([`derive`]), text, pages and JSON ([`view`]), files of
//! other tools ([`export`]); theirs -> events ([`import`]). Times are nanoseconds of CLOCK_MONOTONIC.
//!
//! What does not belong here: live peers (`profiler-serve`), the capture file itself (`profiler-capture`).
//!
//! An example, which `cargo xtask check` compiles:
#![doc = "```no_run"]
#![doc = include_str!("../examples/export_folded.rs")]
#![doc = "```"]

pub mod derive;
pub mod export;
pub mod import;
pub mod view;
