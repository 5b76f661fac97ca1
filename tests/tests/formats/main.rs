//! What is written and read: captures, exports, reports, and messages of protocols, byte for byte.
//!
//! Nothing here is recorded: sessions are made up, and what they become is compared with golden files, with
//! other people's readers, or with itself. What does not belong here: connections (`protocols`).

mod bytefrog_configuration;
mod bytefrog_translate;
mod bytefrog_wire;
mod calls_cost;
mod calls_pairing;
mod calls_shared;
mod capture;
mod capture_cost;
mod capture_fuzz;
mod capture_fuzz_decode;
mod capture_merge;
mod capture_output;
mod export;
mod export_bytefrog;
mod export_conformance;
mod export_pgo;
mod export_readers;
mod export_shared;
mod go_trace;
mod go_trace_convert;
mod golden;
mod golden_calls;
mod golden_captures;
mod golden_containers;
mod golden_report;
mod golden_report_sums;
mod goroutines;
mod import;
mod import_perf_data;
mod js_self_profiling;
mod perf_script;
mod pprof;
mod speedscope;
mod stack_ends;
mod tcf_wire;
mod trace_actor;
