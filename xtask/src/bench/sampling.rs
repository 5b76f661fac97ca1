//! First scenario: a fixed CPU-bound job, with and without each tool, at several rates.
//!
//! In each round the job runs once alone and once under every tool at every rate, the order turned by
//! one from round to round. Output: per tool the slope of the job's CPU time over the samples taken
//! of it, and per tool and rate the tool's own CPU time, bytes, memory and losses.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;
use std::process::{Command, Output};
use std::thread;

use serde::Serialize;

use super::Bench;
use super::measure::{Usage, Watched};
use super::slope::{Point, median, slope};
use super::table::{Table, mib, ms, per};
use super::tool::{Contents, Tool};

const RATES: [u32; 3] = [999, 4999, 20_000];

/// One run of the job under a tool.
#[derive(Serialize)]
struct Run {
    tool: &'static str,
    hz: u32,
    round: usize,
    /// CPU time of the job.
    job_cpu_ns: f64,
    /// The tool while it recorded.
    record: Usage,
    /// The tool while it made text of the recording.
    text: Usage,
    contents: Contents,
}

/// Measures and prints.
pub(crate) fn run(bench: &Bench, rounds: usize) -> io::Result<()> {
    let job = bench.workload("job.c", "job", &[])?;
    let seconds = if bench.quick { 0.5 } else { 3.0 };
    let probe_steps = 100_000_000_u64;
    let probe_ns = job_cpu_ns(&job, probe_steps)?;
    let steps = (probe_steps as f64 * seconds * 1e9 / probe_ns) as u64;

    let mut plan: Vec<Option<(Tool, u32)>> = vec![None];
    plan.extend(
        bench
            .tools
            .iter()
            .flat_map(|&tool| RATES.map(|hz| Some((tool, hz)))),
    );
    let mut alone = Vec::new();
    let mut runs = Vec::new();
    for round in 0..rounds {
        plan.rotate_left(1);
        for step in &plan {
            match *step {
                None => alone.push((round, job_cpu_ns(&job, steps)?)),
                Some((tool, hz)) => {
                    eprintln!(
                        "round {} of {rounds}: {} at {hz} Hz",
                        round + 1,
                        tool.name()
                    );
                    runs.push(one(bench, &job, steps, tool, hz, round)?);
                }
            }
        }
    }
    bench.keep("sampling.json", &runs)?;
    slopes(bench, &alone, &runs);
    costs(bench, &runs);
    Ok(())
}

fn one(
    bench: &Bench,
    job: &Path,
    steps: u64,
    tool: Tool,
    hz: u32,
    round: usize,
) -> io::Result<Run> {
    let mut command = tool.record(&bench.profiler, &bench.folder, hz)?;
    let log = bench.folder.join("log");
    let watched = Watched::start(&mut command, &log)?;
    thread::sleep(tool.settling());
    let job_cpu_ns = job_cpu_ns(job, steps)?;
    watched.interrupt()?;
    let (_, record) = watched.end()?;
    let contents = tool
        .contents(&bench.profiler, &bench.folder)
        .map_err(|error| {
            let said = fs::read_to_string(&log).unwrap_or_default();
            io::Error::other(format!(
                "{} at {hz} Hz: {error}; it said: {said}",
                tool.name()
            ))
        })?;
    let text = tool.into_text(&bench.profiler, &bench.folder)?;
    Ok(Run {
        tool: tool.name(),
        hz,
        round,
        job_cpu_ns,
        record,
        text,
        contents,
    })
}

/// Runs the job on the last processor; its CPU time.
fn job_cpu_ns(job: &Path, steps: u64) -> io::Result<f64> {
    let last = thread::available_parallelism()?.get() - 1;
    let output: Output = Command::new("taskset")
        .args(["-c", &last.to_string()])
        .arg(job)
        .arg(steps.to_string())
        .output()?;
    let result: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    result["cpu_ns"]
        .as_f64()
        .ok_or_else(|| io::Error::other("the job gave no CPU time"))
}

fn slopes(bench: &Bench, alone: &[(usize, f64)], runs: &[Run]) {
    let mut table = Table::new(&[
        "tool",
        "ns of the job's CPU time per sample, 95 % confidence",
        "job at 999 Hz",
        "at 4,999 Hz",
        "at 20,000 Hz",
    ]);
    let mut base: Vec<f64> = alone.iter().map(|run| run.1).collect();
    let base = median(&mut base);
    for tool in &bench.tools {
        let mut points: Vec<Point> = alone
            .iter()
            .map(|&(round, cpu_ns)| Point {
                round,
                samples: 0.0,
                cpu_ns,
            })
            .collect();
        let mut by_rate: BTreeMap<u32, Vec<f64>> = BTreeMap::new();
        for run in runs.iter().filter(|run| run.tool == tool.name()) {
            // Ticks that hit the job: it alone ran on its processor.
            let samples = f64::from(run.hz) * run.job_cpu_ns / 1e9;
            points.push(Point {
                round: run.round,
                samples,
                cpu_ns: run.job_cpu_ns,
            });
            by_rate.entry(run.hz).or_default().push(run.job_cpu_ns);
        }
        let mut row = vec![tool.name().to_owned()];
        row.push(match slope(&points) {
            Some(slope) => format!("{:.0} +- {:.0}", slope.ns, slope.plus_minus_ns),
            None => "-".to_owned(),
        });
        for hz in RATES {
            let cpu_ns = by_rate.get_mut(&hz).map_or(0.0, |values| median(values));
            row.push(format!("{:+.1} %", 100.0 * (cpu_ns / base - 1.0)));
        }
        table.row(row);
    }
    table.print(&format!(
        "A CPU-bound job of {} ms, {} rounds",
        ms(base),
        alone.len()
    ));
}

fn costs(bench: &Bench, runs: &[Run]) {
    let mut table = Table::new(&[
        "tool",
        "Hz",
        "samples",
        "not idle",
        "lost",
        "record CPU ms",
        "text CPU ms",
        "own CPU us/sample not idle",
        "bytes/sample",
        "record RssAnon MiB",
        "text RssAnon MiB",
        "BPF maps MiB",
    ]);
    for tool in &bench.tools {
        for hz in RATES {
            let of: Vec<&Run> = runs
                .iter()
                .filter(|run| run.tool == tool.name() && run.hz == hz)
                .collect();
            let middle = |value: &dyn Fn(&Run) -> f64| {
                median(&mut of.iter().map(|run| value(run)).collect::<Vec<_>>())
            };
            let samples = middle(&|run| run.contents.samples as f64);
            let busy = middle(&|run| run.contents.busy as f64);
            let record = middle(&|run| run.record.cpu_ns as f64);
            let text = middle(&|run| run.text.cpu_ns as f64);
            let highest =
                |value: &dyn Fn(&Run) -> u64| of.iter().map(|run| value(run)).max().unwrap_or(0);
            table.row(vec![
                tool.name().to_owned(),
                hz.to_string(),
                format!("{samples:.0}"),
                format!("{busy:.0}"),
                of.iter()
                    .map(|run| run.contents.lost)
                    .sum::<u64>()
                    .to_string(),
                ms(record),
                ms(text),
                per((record + text) / 1e3, busy),
                per(middle(&|run| run.contents.bytes as f64), samples),
                mib(highest(&|run| run.record.anon_bytes)),
                mib(highest(&|run| run.text.anon_bytes)),
                mib(highest(&|run| run.record.map_bytes)),
            ]);
        }
    }
    table.print("What the tools themselves use (medians; memory: the highest; lost: the sum)");
}
