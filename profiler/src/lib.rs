//! The profiler as a library: what `main` and the tests are made of.
//!
//! The walk: `probe` drains kernel buffers, `decode` reads records, `order` merges by time,
//! `resolve` names processes and code, `pipeline` hands batches to the capture and to live
//! consumers; `report`, `export` and others replay a capture into the same sinks.
//! See docs/ARCHITECTURE.md.

pub mod capture;
pub mod cli;
pub mod decode;
pub mod derive;
pub mod error;
pub mod export;
pub mod import;
pub mod model;
pub mod order;
pub mod pipeline;
pub mod privileges;
pub mod probe;
pub mod resolve;
pub mod serve;
pub mod target;
pub mod trace;
pub mod unwind;
pub mod view;
pub mod wire;

/// Shared with the end-to-end tests, so that every skip is said in the same way.
#[cfg(test)]
#[path = "../../tests/src/skip.rs"]
#[allow(unreachable_pub, dead_code)]
mod skip;
