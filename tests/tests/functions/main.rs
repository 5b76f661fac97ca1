//! Tracing of functions: what is known of object files, where probes are placed, and, in the modules whose
//! names begin with `e2e_`, what `profiler trace` records of programs that count their own calls.
//!
//! What does not belong here: the kernel side alone (`probes`), streams to a receiver (`protocols`).

mod calls_languages;
mod e2e_trace_args;
mod e2e_trace_containers;
mod e2e_trace_counts;
mod e2e_trace_detach;
mod e2e_trace_errors;
mod e2e_trace_harm;
mod e2e_trace_late;
mod e2e_trace_limits;
mod e2e_trace_lines;
mod e2e_trace_programs;
mod e2e_trace_random;
mod e2e_trace_red_zone;
mod e2e_trace_tail;
mod e2e_trace_times;
mod e2e_trace_window;
mod return_addresses;
mod trace_arguments;
#[cfg(test)]
mod trace_arguments_shared;
mod trace_functions;
mod trace_lines;
mod trace_placement;
