//! `profiler record` and what follows from a recording, as people run it.
//!
//! What does not belong here: containers, tracing of functions, streams; each has an executable of its own.

mod e2e_busy;
mod e2e_errors;
mod e2e_features;
mod e2e_hostile;
mod e2e_languages;
mod e2e_lifecycle;
mod e2e_names;
mod e2e_off_cpu;
mod e2e_other_tools;
mod e2e_outputs;
mod e2e_permissions;
mod e2e_processes;
mod e2e_self;
mod e2e_shares;
mod e2e_targets;
mod e2e_tracefs;
mod unprivileged;
