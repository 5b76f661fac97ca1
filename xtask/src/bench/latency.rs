//! Third scenario: from the start of a tool to its first sample, and how long reports take.
//!
//! A job keeps a processor busy, so that a sample is due 0.2 ms after sampling begins at 4,999 Hz.
//! Output: the time from just before the tool is started to the time stamp of its first sample, and the
//! time to report and export the recording. All on CLOCK_MONOTONIC.

use std::io;
use std::process::{Command, Stdio};
use std::thread;

use serde::Serialize;

use super::Bench;
use super::measure::Watched;
use super::slope::median;
use super::table::{Table, ms, per};
use super::tool::Tool;

const HZ: u32 = 4999;

#[derive(Serialize)]
struct Run {
    tool: &'static str,
    first_ns: f64,
    samples: f64,
    report_ns: f64,
    export_ns: f64,
}

/// Measures and prints.
pub(crate) fn run(bench: &Bench, rounds: usize) -> io::Result<()> {
    let job = bench.workload("job.c", "job", &[])?;
    // Long enough for all rounds; it is ended when they are over.
    let mut job = Command::new(job)
        .arg("1000000000000")
        .stdout(Stdio::null())
        .spawn()?;
    let measured = measure(bench, rounds);
    job.kill()?;
    job.wait()?;
    let runs = measured?;
    bench.keep("first.json", &runs)?;

    let mut table = Table::new(&[
        "tool",
        "start to first sample, ms (median)",
        "worst",
        "samples",
        "report ms",
        "export ms",
        "report us/sample",
        "export us/sample",
    ]);
    for tool in &bench.tools {
        let of: Vec<&Run> = runs.iter().filter(|run| run.tool == tool.name()).collect();
        let middle = |value: &dyn Fn(&Run) -> f64| {
            median(&mut of.iter().map(|run| value(run)).collect::<Vec<_>>())
        };
        let worst = of.iter().map(|run| run.first_ns).fold(0.0, f64::max);
        let samples = middle(&|run| run.samples);
        let (report, export) = (middle(&|run| run.report_ns), middle(&|run| run.export_ns));
        table.row(vec![
            tool.name().to_owned(),
            ms(middle(&|run| run.first_ns)),
            ms(worst),
            format!("{samples:.0}"),
            ms(report),
            ms(export),
            per(report / 1e3, samples),
            per(export / 1e3, samples),
        ]);
    }
    table.print(&format!(
        "First sample and reports, {rounds} rounds at {HZ} Hz"
    ));
    Ok(())
}

fn measure(bench: &Bench, rounds: usize) -> io::Result<Vec<Run>> {
    let mut runs = Vec::new();
    for round in 0..rounds {
        for &tool in &bench.tools {
            eprintln!(
                "round {} of {rounds}: first sample of {}",
                round + 1,
                tool.name()
            );
            runs.push(one(bench, tool)?);
        }
    }
    Ok(runs)
}

fn one(bench: &Bench, tool: Tool) -> io::Result<Run> {
    let mut command = match tool {
        // Counts by stack have no times, so this one prints the first and no more.
        Tool::Bpftrace => first_of_bpftrace(bench),
        Tool::Profiler | Tool::Perf => tool.record(&bench.profiler, &bench.folder, HZ)?,
    };
    let from = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let from_ns = from.tv_sec as u64 * 1_000_000_000 + from.tv_nsec as u64;
    let watched = Watched::start(&mut command, &bench.folder.join("log"))?;
    thread::sleep(tool.settling() * 3);
    // bpftrace may have ended by itself; then there is nothing to interrupt.
    let _ = watched.interrupt();
    watched.end()?;
    let first_ns = tool
        .first_sample_ns(&bench.profiler, &bench.folder)?
        .saturating_sub(from_ns);
    let mut run = Run {
        tool: tool.name(),
        first_ns: first_ns as f64,
        samples: 0.0,
        report_ns: 0.0,
        export_ns: 0.0,
    };
    if tool != Tool::Bpftrace {
        run.samples = tool.contents(&bench.profiler, &bench.folder)?.samples as f64;
        run.report_ns = tool.report(&bench.profiler, &bench.folder)?.wall_ns as f64;
        run.export_ns = tool.export(&bench.profiler, &bench.folder)?.wall_ns as f64;
    }
    Ok(run)
}

fn first_of_bpftrace(bench: &Bench) -> Command {
    let mut command = Command::new("bpftrace");
    command
        .arg("-o")
        .arg(Tool::Bpftrace.recording(&bench.folder));
    command.arg("-e").arg(format!(
        "profile:hz:{HZ} {{ printf(\"%llu\\n\", nsecs); exit(); }}"
    ));
    command
}
