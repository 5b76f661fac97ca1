//! The event model: what every part of the profiler speaks of.
//!
//! `decode` makes [`raw`] events of bytes; `resolve` makes [`Event`]s and [`Definition`]s of them,
//! in [`Batch`]es; the capture, the views and the exporters consume these. [`Tables`] is the fold
//! over definitions that they all share. Times are nanoseconds of CLOCK_MONOTONIC.
//!
//! What does not belong here: I/O, serialization, anything of aya, blazesym or tokio.

mod definition;
mod demand;
mod event;
mod id;
pub mod raw;
mod sink;
mod tables;
mod value;

pub use definition::*;
pub use demand::{Demand, Sampling};
pub use event::*;
pub use id::*;
pub use sink::Sink;
pub use tables::*;
