//! What tracing functions costs, beside bpftrace and uftrace in the same run.
//!
//! Scenarios: `cost`, what one traced call adds to a program, by the first instruction of the function
//! and by tool; `sustained`, how many calls a second reach a capture, and how many are lost; `attach`,
//! how long it takes until probes are there, and until they are gone; `kinds`, which share of the
//! functions of common libraries is of which kind. Times are nanoseconds of CLOCK_MONOTONIC.

mod attach;
mod cost;
mod kinds;
mod sustained;
mod tracer;

use std::io;
use std::path::PathBuf;

use super::Bench;
use tracer::Tracer;

pub(super) use cost::{end, start};

/// Names of the scenarios.
pub(crate) const SCENARIOS: [&str; 4] = ["kinds", "cost", "sustained", "attach"];

/// Runs the scenarios that `wanted` says.
pub(crate) fn run(
    bench: &Bench,
    rounds: usize,
    wanted: impl Fn(&str) -> bool,
    tools: &[String],
) -> io::Result<()> {
    let mut tracers = Vec::new();
    for tracer in Tracer::ALL {
        if !tools.iter().any(|name| name == tracer.tool()) {
            continue;
        }
        match tracer.missing(bench) {
            None => tracers.push(tracer),
            Some(why) => eprintln!("without {}: {why}", tracer.name()),
        }
    }
    if wanted("kinds") && tools.iter().any(|name| name == "profiler") {
        kinds::run(bench)?;
    }
    if wanted("cost") {
        cost::run(bench, rounds, &tracers)?;
    }
    if wanted("sustained") {
        sustained::run(bench, &tracers)?;
    }
    if wanted("attach") {
        attach::run(bench, &tracers)?;
    }
    Ok(())
}

/// The program that calls, built with these further flags.
pub(super) fn caller(bench: &Bench, name: &str, flags: &[&str]) -> io::Result<PathBuf> {
    bench.workload("trace_caller.c", name, flags)
}
