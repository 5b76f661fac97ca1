//! The capture file: [`Batch`](profiler_model::Batch)es of events kept on disk, and read back.
//!
//! [`Writer`] takes batches as the walk makes them; [`Reader`] gives a capture back as
//! [`Tables`](profiler_model::Tables) (pass 1: definitions) and events (pass 2). [`merge`] and
//! [`rewrite`] make captures of captures. Times are nanoseconds of CLOCK_MONOTONIC.
//! The format is docs/formats/capture.md.
//!
//! Captures are untrusted input: everything read is checked, bounded, and never a panic. What is
//! damaged is named with its offset, and everything else is delivered.
//!
//! What does not belong here: what events mean (model), and how they are shown (view, export).
//!
//! An example, which `cargo xtask check` compiles:
#![doc = "```no_run"]
#![doc = include_str!("../examples/write_and_read.rs")]
#![doc = "```"]

mod announce;
mod batches;
mod block;
mod calls;
mod decode;
mod encode;
mod error;
mod foreign;
#[cfg(test)]
mod hostile;
mod item;
mod kept;
mod limit;
mod merge;
mod new_file;
mod output;
mod reader;
mod rejoin;
mod replay;
mod ring;
mod samples;
mod sections;
mod shared;
mod summary;
mod tally;
mod translate;
mod untold;
mod value;
mod walk;
mod writer;

pub use batches::Batches;
pub use error::{CaptureError, Damage};
pub use limit::Limit;
pub use merge::{Derived, Merged, merge, refuse_same, rewrite};
pub use new_file::{Existing, NewFile, Owner, folder_of, old};
pub use reader::{Reader, TimeRange, replay_into};
pub use replay::ReplayStats;
pub use ring::Dump;
pub use summary::{CallSummary, ContainerSummary, SourceSummary, Summary, WaitSummary};
pub use untold::Untold;
pub use writer::{CreateOptions, Totals, Writer};
