//! Fifth scenario: a short recording of the whole machine beside busy threads, in the same window as perf.
//!
//! 0, 1, 4 and 16 threads for each processor that never wait, in two sessions of their own; both tools start at once,
//! since no two windows have the same load. The profiler finds nothing in /var/cache/profiler, as in a first recording.
//! Output: how much longer than the window each tool took until its output was written, its CPU time, whole stacks and
//! losses, as each tool says them.

use std::fs;
use std::io::{self, BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde::Serialize;

use super::Bench;
use super::measure::{Usage, Watched};
use super::slope::median;
use super::start::WITHOUT_TABLES;
use super::table::{Table, ms};
use super::tool::Tool;

const SECONDS: u64 = 3;
/// Busy threads for each processor, both sessions together.
const THREADS: [usize; 4] = [0, 1, 4, 16];

/// A recording.
#[derive(Serialize)]
struct Run {
    tool: &'static str,
    threads: usize,
    usage: Usage,
    /// User stacks, and those that are whole; none if the tool does not tell.
    stacks: Option<(u64, u64)>,
    lost: Option<u64>,
}

/// Busy threads, until this is dropped.
struct Load(Vec<Child>);

impl Load {
    fn start(program: &Path, threads: usize) -> io::Result<Load> {
        let mut load = Load(Vec::new());
        for part in [threads.div_ceil(2), threads / 2] {
            if part == 0 {
                continue;
            }
            let mut command = Command::new(program);
            command.arg(part.to_string());
            let child = command.stdin(Stdio::piped()).stdout(Stdio::piped());
            load.0.push(child.spawn()?);
            let child = load.0.last_mut().and_then(|child| child.stdout.take());
            let mut line = String::new();
            BufReader::new(child.ok_or(io::ErrorKind::BrokenPipe)?).read_line(&mut line)?;
        }
        Ok(load)
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Measures and prints.
pub(super) fn run(bench: &Bench, rounds: usize) -> io::Result<()> {
    let program = bench.workload("busy.c", "busy", &["-pthread"])?;
    let cpus = std::thread::available_parallelism()?.get();
    let mut runs = Vec::new();
    for round in 0..rounds {
        for threads in THREADS {
            eprintln!("round {} of {rounds}: {threads} threads", round + 1);
            let load = Load::start(&program, threads * cpus)?;
            runs.extend(both(bench, threads)?);
            drop(load);
        }
    }
    bench.keep("busy.json", &runs)?;
    let mut table = Table::new(&[
        "threads for each processor",
        "tool",
        "ms behind the window (median)",
        "most",
        "CPU ms (median)",
        "whole user stacks",
        "lost",
    ]);
    for threads in THREADS {
        for tool in [Tool::Profiler, Tool::Perf] {
            let of = || {
                let of = |run: &&Run| run.threads == threads && run.tool == tool.name();
                runs.iter().filter(of)
            };
            if of().next().is_none() {
                continue;
            }
            let behind = |run: &Run| run.usage.wall_ns.saturating_sub(SECONDS * 1_000_000_000);
            let mut late: Vec<f64> = of().map(|run| behind(run) as f64).collect();
            let mut cpu: Vec<f64> = of().map(|run| run.usage.cpu_ns as f64).collect();
            let sum = |count: &dyn Fn(&Run) -> Option<u64>| of().map(count).sum::<Option<u64>>();
            let stacks = sum(&|run| Some(run.stacks?.0)).zip(sum(&|run| Some(run.stacks?.1)));
            table.row(vec![
                threads.to_string(),
                tool.name().to_owned(),
                ms(median(&mut late)),
                ms(late.iter().copied().fold(0.0, f64::max)),
                ms(median(&mut cpu)),
                stacks.map_or("-".to_owned(), |(all, whole)| {
                    format!("{:.1} %", whole as f64 * 100.0 / all.max(1) as f64)
                }),
                sum(&|run| run.lost).map_or("-".to_owned(), |lost| lost.to_string()),
            ]);
        }
    }
    table.print(&format!(
        "A first recording of {SECONDS} s of the whole machine beside busy threads, {rounds} rounds"
    ));
    Ok(())
}

/// Both tools in one window.
fn both(bench: &Bench, threads: usize) -> io::Result<Vec<Run>> {
    let mut started = Vec::new();
    for tool in [Tool::Profiler, Tool::Perf] {
        if !bench.tools.contains(&tool) {
            continue;
        }
        let output = tool.recording(&bench.folder);
        let _ = fs::remove_file(&output);
        let seconds = SECONDS.to_string();
        let mut command = match tool {
            Tool::Profiler => {
                let mut command = Command::new("unshare");
                command.args(["--mount", "sh", "-c", WITHOUT_TABLES, "sh"]);
                command.arg(&bench.profiler);
                command.args(["record", "-a", "--wall", "-d", &seconds, "--force", "-o"]);
                command.arg(&output);
                command
            }
            _ => {
                let mut command = Command::new("perf");
                command.args(["record", "-a", "-g", "-o"]).arg(&output);
                command.args(["sleep", &seconds]);
                command
            }
        };
        let log = bench.folder.join(format!("busy-{}.log", tool.name()));
        started.push((tool, Watched::start(&mut command, &log)?, log));
    }
    // Each is waited for on its own, so that neither has the other's end.
    let ended = std::thread::scope(|scope| {
        let wait = |(tool, watched, log): (Tool, Watched, _)| {
            (tool, scope.spawn(move || watched.end()), log)
        };
        let waiting: Vec<_> = started.into_iter().map(wait).collect();
        let join = |(tool, thread, log): (Tool, std::thread::ScopedJoinHandle<'_, _>, _)| {
            let ended = thread.join();
            (
                tool,
                ended.unwrap_or_else(|_| Err(io::Error::other("no end"))),
                log,
            )
        };
        waiting.into_iter().map(join).collect::<Vec<_>>()
    });
    let mut runs = Vec::new();
    for (tool, ended, log) in ended {
        let (status, usage) = ended?;
        if !status.success() {
            let said = fs::read_to_string(&log).unwrap_or_default();
            return Err(io::Error::other(format!("{} failed: {said}", tool.name())));
        }
        let Said { stacks, lost } = match tool {
            Tool::Profiler => said(bench)?,
            _ => Said::default(),
        };
        runs.push(Run {
            tool: tool.name(),
            threads,
            usage,
            stacks,
            lost,
        });
    }
    Ok(runs)
}

/// What the profiler says of its recording.
#[derive(Default)]
struct Said {
    stacks: Option<(u64, u64)>,
    lost: Option<u64>,
}

/// User stacks and those that are whole, and what was lost but for ticks that the kernel skipped.
fn said(bench: &Bench) -> io::Result<Said> {
    let output = Command::new(&bench.profiler)
        .args(["info", "--format", "json"])
        .arg(Tool::Profiler.recording(&bench.folder))
        .output()?;
    let info: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let stacks = &info["user_stacks"];
    let stacks = stacks["there"].as_u64().zip(stacks["complete"].as_u64());
    let lost = info["lost"].as_object().map(|reasons| {
        let reasons = reasons.iter().filter(|(reason, _)| *reason != "skipped");
        reasons.filter_map(|(_, count)| count.as_u64()).sum()
    });
    Ok(Said { stacks, lost })
}
