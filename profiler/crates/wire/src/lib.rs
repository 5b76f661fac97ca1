//! Sans-I/O codecs: byte and text layouts of other tools' formats and protocols.
//!
//! Input: values of a format's own terms; output: its bytes. What does not belong here: sockets,
//! files, and the event model (the mapping onto it is in [`export`](profiler_report::export)).
//!
//! An example, which `cargo xtask check` compiles:
#![doc = "```no_run"]
#![doc = include_str!("../examples/read_packets.rs")]
#![doc = "```"]

pub mod bytefrog;
pub mod go_trace;
pub mod otlp;
pub mod perfetto;
pub mod pprof;
pub mod rdp;
pub mod self_profiling;
pub mod tcf;

/// How messages of protobuf are encoded and decoded.
pub use prost::{self, Message};
