//! The event model: what every part of the profiler speaks of.
//!
//! `decode` makes [`raw`] events of bytes; `resolve` makes [`Event`]s and [`Definition`]s of them,
//! in [`Batch`]es; the capture, the views and the exporters consume these. [`Tables`] is the fold
//! over definitions that they all share. Times are nanoseconds of CLOCK_MONOTONIC.
//!
//! What does not belong here: I/O, serialization, anything of aya, blazesym or tokio.
//!
//! An example, which `cargo xtask check` compiles:
#![doc = "```no_run"]
#![doc = include_str!("../examples/fold_definitions.rs")]
#![doc = "```"]

mod consumer;
pub mod decode;
mod definition;
mod demand;
mod ends;
mod event;
pub mod heap;
pub mod helpers;
mod id;
mod live;
mod map_ids;
pub mod order;
pub mod raw;
mod renames;
pub mod room;
mod sink;
pub mod sorting;
mod spans;
mod stack_owner;
mod tables;
pub mod text;
mod value;
mod words;

pub use consumer::Consumer;
pub use definition::*;
pub use demand::{Demand, Sampling, Tracing};
pub use ends::StackEnds;
pub use event::*;
pub use id::*;
pub use live::LiveTables;
pub use map_ids::MapIds;
pub use renames::{Named, NamesThen};
pub use sink::Sink;
pub use spans::Spans;
pub use stack_owner::StackOwner;
pub use tables::*;
