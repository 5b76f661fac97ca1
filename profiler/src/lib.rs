//! The program: what `main` and the tests are made of.
//!
//! The walk: `profiler-probe` drains kernel buffers, `profiler-model` reads records and merges them by time,
//! `profiler-resolve` names processes and code; [`pipeline`] hands batches to the capture and to live consumers;
//! `profiler-report` replays a capture into the same sinks. See docs/ARCHITECTURE.md.
//!
//! What does not belong here: anything but the wiring of these ([`pipeline`]) and the command line ([`cli`]).

// What only those drivers call that are left out.
#![cfg_attr(
    not(all(feature = "bytefrog", feature = "rdp", feature = "tcf")),
    allow(dead_code)
)]

pub mod cli;
pub mod error;
pub mod pipeline;

/// Shared with the end-to-end tests, so that every skip is said in the same way.
#[cfg(test)]
#[path = "../../tests/src/skip.rs"]
#[allow(unreachable_pub, dead_code)]
mod skip;
