//! How many calls a second reach a capture, and what becomes of the rest.
//!
//! A producer that is paced at a million events a second for 30 seconds, of which none may be lost;
//! then two producers that call as fast as they can, on both processors beside the tool: how many a
//! second are kept, and whether every other one is counted as lost. Calls are counted by the programs.

use std::fs;
use std::io;

use serde::Serialize;

use super::super::Bench;
use super::super::measure::{Usage, Watched, run as run_tool};
use super::super::table::{Table, mib, per};
use super::caller;
use super::cost::{end, start};
use super::tracer::Tracer;

#[derive(Serialize, Default)]
struct Run {
    load: String,
    tracer: &'static str,
    /// As the programs say.
    calls: u64,
    /// By the kernel side, whatever became of their records.
    counted: u64,
    /// In the recording.
    seen: u64,
    /// As the tool says.
    lost: u64,
    /// Of the slowest program.
    took_ns: u64,
    bytes: u64,
    tool: Usage,
    report_ns: u64,
}

/// Measures and prints.
pub(super) fn run(bench: &Bench, tracers: &[Tracer]) -> io::Result<()> {
    let program = caller(bench, "trace_caller", &["-fcf-protection=none"])?;
    let paced = if bench.quick { 3 } else { 30 };
    let saturated = if bench.quick { "2" } else { "10" };
    let mut runs = Vec::new();
    // An exit is an event of its own: half as many calls. bpftrace can't keep up, and gets less to do.
    for (tracer, rate, seconds) in [
        (Tracer::Entry, "1000000", paced),
        (Tracer::Auto, "500000", paced),
        (Tracer::Lines, "1000000", if bench.quick { 1 } else { 3 }),
    ] {
        if tracers.contains(&tracer) {
            let load = format!("paced, {rate} calls/s for {seconds} s");
            eprintln!("{}: {load}", tracer.name());
            let seconds = seconds.to_string();
            let arguments = ["kind_nop5", "paced", rate, &seconds, "--probed"];
            runs.push(one(bench, &program, tracer, load, &arguments, 1)?);
        }
    }
    for tracer in [Tracer::Entry, Tracer::Auto, Tracer::Lines] {
        if tracers.contains(&tracer) {
            let load = format!("2 producers as fast as they can, {saturated} s");
            eprintln!("{}: {load}", tracer.name());
            let arguments = ["kind_nop5", "slots", saturated, "--probed"];
            runs.push(one(bench, &program, tracer, load, &arguments, 2)?);
        }
    }
    bench.keep("tracing-sustained.json", &runs)?;
    print(&runs);
    Ok(())
}

fn one(
    bench: &Bench,
    program: &std::path::Path,
    tracer: Tracer,
    load: String,
    arguments: &[&str],
    producers: usize,
) -> io::Result<Run> {
    let mut children = Vec::new();
    for _ in 0..producers {
        // One is pinned; two are where the kernel puts them, with the tool between.
        children.push(start(program, arguments, producers == 1)?);
    }
    let pids: Vec<u32> = children.iter().map(std::process::Child::id).collect();
    let mut command = tracer.command(bench, program, "kind_nop5", &pids)?;
    let log = bench.folder.join("log");
    let watched = Watched::start(&mut command, &log)?;
    let mut run = Run {
        load,
        tracer: tracer.name(),
        ..Run::default()
    };
    for child in children {
        let said = end(child)?;
        run.calls += said["calls"].as_u64().unwrap_or(0);
        run.took_ns = run.took_ns.max(said["took_ns"].as_u64().unwrap_or(0));
    }
    let _ = watched.interrupt();
    run.tool = watched.end()?.1;
    if tracer == Tracer::Lines {
        let said = fs::read(&log)?;
        run.bytes = said.len() as u64;
        for line in said.split(|byte| *byte == b'\n') {
            run.seen += u64::from(line.first().is_some_and(u8::is_ascii_digit));
            run.lost += lost_of_bpftrace(line);
        }
    } else {
        from_capture(bench, &mut run)?;
    }
    Ok(run)
}

/// The number in `Lost 123 events`.
fn lost_of_bpftrace(line: &[u8]) -> u64 {
    std::str::from_utf8(line)
        .ok()
        .and_then(|line| line.strip_prefix("Lost ")?.split(' ').next()?.parse().ok())
        .unwrap_or(0)
}

fn from_capture(bench: &Bench, run: &mut Run) -> io::Result<()> {
    let capture = Tracer::capture(bench);
    run.bytes = fs::metadata(&capture)?.len();
    let report = bench.folder.join("report.json");
    let mut command = std::process::Command::new(&bench.profiler);
    command
        .arg("report")
        .arg(&capture)
        .args(["--calls", "--format", "json"]);
    run.report_ns = run_tool(&mut command, &report)?.wall_ns;
    let report: serde_json::Value = serde_json::from_slice(&fs::read(&report)?)?;
    for row in report["calls"]["functions"]
        .as_array()
        .into_iter()
        .flatten()
    {
        let number = |key: &str| {
            row[key]
                .as_u64()
                .ok_or_else(|| io::Error::other(format!("the report has no '{key}'")))
        };
        run.counted += number("calls_counted")?;
        run.seen += number("calls_seen")?;
        run.lost += number("lost_records")?;
    }
    Ok(())
}

fn print(runs: &[Run]) {
    let mut table = Table::new(&[
        "load",
        "tool",
        "calls made",
        "calls/s",
        "calls counted",
        "calls kept",
        "records lost, said",
        "missing in silence",
        "bytes/call",
        "tool CPU s",
        "tool CPU ns/call kept",
        "RssAnon MiB",
        "BPF maps MiB",
        "report s",
    ]);
    for run in runs {
        // Of a call with an exit, either record can be lost: then this is a lower bound.
        let missing = run.calls.saturating_sub(run.seen + run.lost);
        table.row(vec![
            run.load.clone(),
            run.tracer.to_owned(),
            run.calls.to_string(),
            format!("{:.0}", run.calls as f64 * 1e9 / run.took_ns.max(1) as f64),
            match run.counted {
                0 => "-".to_owned(),
                counted => counted.to_string(),
            },
            run.seen.to_string(),
            run.lost.to_string(),
            missing.to_string(),
            per(run.bytes as f64, run.seen as f64),
            format!("{:.1}", run.tool.cpu_ns as f64 / 1e9),
            per(run.tool.cpu_ns as f64, run.seen as f64),
            mib(run.tool.anon_bytes),
            mib(run.tool.map_bytes),
            format!("{:.1}", run.report_ns as f64 / 1e9),
        ]);
    }
    table.print("Calls a second into a recording");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_bpftrace_lost() {
        assert_eq!(lost_of_bpftrace(b"Lost 123 events"), 123);
        assert_eq!(lost_of_bpftrace(b"123"), 0);
        assert_eq!(lost_of_bpftrace(b"\xff"), 0);
    }
}
