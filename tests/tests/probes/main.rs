//! The kernel side against the real kernel, through the library: sampling, waits, walks, cgroups, calls,
//! and pauses. `cargo xtask vm` runs these on other kernels.
//!
//! What does not belong here: the commands of the profiler (the other executables).

mod calls;
mod pause;
mod probe;
mod probe_adjust;
mod probe_cgroups;
mod probe_log;
mod probe_shared;
mod probe_unwind;
mod probe_unwind_files;
mod probe_waits;
