//! What the end-to-end tests share: workloads that know their own truth, the real `profiler`
//! binary, what it recorded, and the statistics that decide.
//!
//! A test asks for a [`setting::Setting`]; without the privileges or tools that it needs there is
//! none, and the skip is said aloud. Times are nanoseconds of CLOCK_MONOTONIC, CPU time is in
//! nanoseconds.
//!
//! What does not belong here: tests themselves (`tests/tests`), and the programs that are profiled
//! (`tests/workloads`).

pub mod announced;
pub mod arbitrary;
pub mod bytefrog;
pub mod canonical;
pub mod containers;
pub mod fuzzing;
pub mod kernel_objects;
pub mod nests;
pub mod oracle;
pub mod perf_file;
pub mod process;
pub mod programs;
pub mod recording;
pub mod scratch;
pub mod setting;
pub mod skip;
pub mod statistics;
pub mod stolen;
pub mod tcf_channel;
pub mod timer;
pub mod tracefs;
pub mod tracing;
pub mod undisturbed;
pub mod workload;
pub mod xml;

/// What a test ends with; any error fails it.
pub type Outcome = Result<(), Box<dyn std::error::Error>>;
