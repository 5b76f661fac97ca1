//! What calls inferred from samples add to a program: its CPU time with and without, by rate.
//!
//! In each round the job runs alone, and under a stream at each rate, the order turned by one. Beside
//! it `profiler record` at the highest rate: the sampling is the same. Medians of all rounds count.

use std::fs;
use std::io;
use std::path::Path;
use std::process::Command;
use std::thread;

use serde::Serialize;

use super::super::Bench;
use super::super::measure::{Usage, run as run_tool};
use super::super::slope::median;
use super::super::table::{Table, mib, ms};
use super::receiver::{Received, Receiver};
use super::{DEFAULT, stream};

/// Steps of the job that show how fast it is.
const TRIAL_STEPS: u64 = 100_000_000;

/// How the job is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
enum Way {
    Alone,
    Streamed(u32),
    Recorded(u32),
}

const WAYS: [Way; 5] = [
    Way::Alone,
    Way::Streamed(99),
    Way::Streamed(999),
    Way::Streamed(4999),
    Way::Recorded(4999),
];

#[derive(Serialize)]
struct Run {
    way: Way,
    job_cpu_ns: f64,
    /// The profiler's and the job's.
    usage: Usage,
    received: Option<Received>,
}

/// Measures and prints.
pub(super) fn run(bench: &Bench, rounds: usize, seconds: u64) -> io::Result<()> {
    let job = bench.workload("job.c", "job", &[])?;
    let trial = one(bench, &job, TRIAL_STEPS, Way::Alone)?;
    let steps = (TRIAL_STEPS as f64 * seconds as f64 * 1e9 / trial.job_cpu_ns) as u64;
    let mut plan = WAYS;
    let mut runs = Vec::new();
    for round in 0..rounds {
        plan.rotate_left(1);
        for way in plan {
            eprintln!("round {} of {rounds}: {way:?}", round + 1);
            runs.push(one(bench, &job, steps, way)?);
        }
    }
    bench.keep("bytefrog-samples.json", &runs)?;
    print(&runs, rounds);
    Ok(())
}

fn one(bench: &Bench, job: &Path, steps: u64, way: Way) -> io::Result<Run> {
    let receiver = match way {
        Way::Streamed(_) => Some(Receiver::start(DEFAULT)?),
        Way::Alone | Way::Recorded(_) => None,
    };
    let last = thread::available_parallelism()?.get() - 1;
    let pinned = ["-c", &last.to_string()];
    let mut command = match (way, &receiver) {
        (Way::Streamed(hz), Some(receiver)) => {
            let mut command = stream(bench, &receiver.address());
            command.args(["--from-samples", "-F", &hz.to_string(), "--", "taskset"]);
            command
        }
        (Way::Recorded(hz), _) => {
            let mut command = Command::new(&bench.profiler);
            command.args(["record", "--force", "-F", &hz.to_string(), "-o"]);
            command.arg(bench.folder.join("bytefrog-samples.cap"));
            command.args(["--", "taskset"]);
            command
        }
        _ => Command::new("taskset"),
    };
    command.args(pinned).arg(job).arg(steps.to_string());
    let log = bench.folder.join("log");
    let usage = run_tool(&mut command, &log)?;
    let log = fs::read_to_string(log)?;
    let result = log.lines().find(|line| line.starts_with('{'));
    let result: serde_json::Value = serde_json::from_str(result.unwrap_or("null"))?;
    let job_cpu_ns = result["cpu_ns"]
        .as_f64()
        .ok_or_else(|| io::Error::other(format!("the job gave no CPU time: {log}")))?;
    Ok(Run {
        way,
        job_cpu_ns,
        usage,
        received: receiver.map(Receiver::end).transpose()?,
    })
}

fn print(runs: &[Run], rounds: usize) {
    let of = |way: Way, value: &dyn Fn(&Run) -> f64| {
        let runs = runs.iter().filter(|run| run.way == way);
        median(&mut runs.map(value).collect::<Vec<_>>())
    };
    let alone = of(Way::Alone, &|run| run.job_cpu_ns);
    let mut table = Table::new(&[
        "watched by",
        "job CPU ms",
        "slower by",
        "messages",
        "profiler CPU ms",
        "profiler VmHWM MiB",
    ]);
    for way in WAYS {
        let job = of(way, &|run| run.job_cpu_ns);
        let messages = of(way, &|run| {
            run.received
                .map_or(0.0, |received| received.messages as f64)
        });
        let own = of(way, &|run| run.usage.cpu_ns as f64 - run.job_cpu_ns);
        let peak = of(way, &|run| run.usage.peak_bytes as f64);
        let profiled = way != Way::Alone;
        let or_dash = |text: String, is_there: bool| match is_there {
            true => text,
            false => "-".to_owned(),
        };
        table.row(vec![
            match way {
                Way::Alone => "nothing".to_owned(),
                Way::Streamed(hz) => format!("stream bytefrog --from-samples -F {hz}"),
                Way::Recorded(hz) => format!("record -F {hz}"),
            },
            ms(job),
            or_dash(format!("{:+.1} %", 100.0 * (job / alone - 1.0)), profiled),
            or_dash(format!("{messages:.0}"), matches!(way, Way::Streamed(_))),
            or_dash(ms(own), profiled),
            or_dash(mib(peak as u64), profiled),
        ]);
    }
    table.print(&format!(
        "A CPU-bound job of {} ms, calls inferred from samples (medians of {rounds})",
        ms(alone)
    ));
}
