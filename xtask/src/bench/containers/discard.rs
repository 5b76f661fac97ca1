//! What the kernel-side program takes for an event that is not wanted.
//!
//! Every processor is kept busy by a process in a cgroup of its own, two levels deep, while the target is
//! another one that sleeps: so all events are dropped. What is dropped by cgroup is set beside what is dropped
//! by process id, kept, and a program that does nothing (of bpftrace), whose time is that of the
//! measurement itself. Source: run_time_ns and run_cnt of the programs of type perf_event that the tool
//! holds (kernel.bpf_stats_enabled).

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use serde::Serialize;

use super::super::Bench;
use super::super::measure::Watched;
use super::super::slope::median;
use super::super::sysctls::{BPF_STATISTICS, Sysctls};
use super::super::table::Table;
use super::super::tool::Tool;
use super::{Cgroup, Processes, hierarchies};

const HZ: &str = "4999";
/// `prog_type` of a program for perf events.
const PERF_EVENT: u64 = 7;

#[derive(Serialize)]
struct Run {
    case: String,
    runs: u64,
    ns: f64,
}

/// Measures and prints.
pub(super) fn run(bench: &Bench, rounds: usize) -> io::Result<()> {
    let _statistics = Sysctls::set(&[(BPF_STATISTICS, "1")])?;
    let job = bench.workload("job.c", "job", &[])?;
    let mut cgroups = Cgroups::new()?;
    let mut busy = Processes::default();
    for processor in 0..thread::available_parallelism()?.get() {
        let child = Command::new("taskset")
            .args(["-c", &processor.to_string()])
            .arg(&job)
            .arg("1000000000000000")
            .stdout(Stdio::null())
            .spawn()?;
        let pid = child.id();
        busy.0.push(child);
        cgroups.other(pid)?;
    }
    let sleeper = Command::new("sleep").arg("1000000").spawn()?;
    let pid = sleeper.id();
    busy.0.push(sleeper);
    cgroups.target(pid)?;

    let mut cases: Vec<(String, Command)> = Vec::new();
    for (name, path) in &cgroups.targets {
        cases.push((
            format!("dropped by cgroup, {name}"),
            recorder(bench, &["--cgroup", &path.to_string_lossy()]),
        ));
    }
    let text = pid.to_string();
    cases.push((
        "dropped by process id".to_owned(),
        recorder(bench, &["-p", &text]),
    ));
    cases.push(("kept, 21 frames".to_owned(), recorder(bench, &["-a"])));
    if bench.tools.contains(&Tool::Bpftrace) {
        let mut command = Command::new("bpftrace");
        command.args(["-e", &format!("profile:hz:{HZ} /0/ {{ }}")]);
        cases.push(("a program that does nothing".to_owned(), command));
    }
    let mut runs = Vec::new();
    for round in 0..rounds {
        for (case, command) in &mut cases {
            eprintln!("discard: round {} of {rounds}: {case}", round + 1);
            let (count, ns) = one(bench, command)?;
            runs.push(Run {
                case: case.clone(),
                runs: count,
                ns: ns as f64 / count.max(1) as f64,
            });
        }
    }
    drop(busy);
    bench.keep("containers-discard.json", &runs)?;
    let mut table = Table::new(&["event", "runs", "ns a run (median)", "least", "most"]);
    for (case, _) in &cases {
        let mut ns: Vec<f64> = runs
            .iter()
            .filter(|run| run.case == *case)
            .map(|run| run.ns)
            .collect();
        let counts = runs.iter().filter(|run| run.case == *case);
        table.row(vec![
            case.clone(),
            counts.map(|run| run.runs).sum::<u64>().to_string(),
            format!("{:.0}", median(&mut ns)),
            format!("{:.0}", ns.iter().copied().fold(f64::INFINITY, f64::min)),
            format!("{:.0}", ns.iter().copied().fold(0.0, f64::max)),
        ]);
    }
    table.print(&format!(
        "Kernel time of the sampling program, {rounds} rounds at {HZ} Hz"
    ));
    Ok(())
}

fn recorder(bench: &Bench, target: &[&str]) -> Command {
    let mut command = Command::new(&bench.profiler);
    command
        .args(["record", "--quiet", "--force", "-e", "cpu-clock", "-F", HZ])
        .args(target)
        .arg("-o")
        .arg(Tool::Profiler.recording(&bench.folder));
    command
}

/// Runs and time of a tool's programs between two looks at them.
fn one(bench: &Bench, command: &mut Command) -> io::Result<(u64, u64)> {
    let log = bench.folder.join("log");
    let watched = Watched::start(command, &log)?;
    thread::sleep(Duration::from_millis(2000));
    let before = programs(watched.pid())?;
    thread::sleep(Duration::from_millis(if bench.quick { 500 } else { 3000 }));
    let after = programs(watched.pid())?;
    watched.interrupt()?;
    watched.end()?;
    if after.0 == before.0 {
        return Err(io::Error::other(format!(
            "{command:?} ran no program: {}",
            fs::read_to_string(log)?
        )));
    }
    Ok((after.0 - before.0, after.1 - before.1))
}

fn programs(pid: u32) -> io::Result<(u64, u64)> {
    let mut sums = (0, 0);
    let mut seen = Vec::new();
    for entry in fs::read_dir(format!("/proc/{pid}/fdinfo"))? {
        let Ok(text) = fs::read_to_string(entry?.path()) else {
            continue;
        };
        let field = |name: &str| {
            text.lines()
                .find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok())
        };
        if field("prog_type:") == Some(PERF_EVENT)
            && let (Some(id), Some(runs), Some(ns)) =
                (field("prog_id:"), field("run_cnt:"), field("run_time_ns:"))
            && !seen.contains(&id)
        {
            seen.push(id);
            sums.0 += runs;
            sums.1 += ns;
        }
    }
    Ok(sums)
}

/// Cgroups of the target and of others, in a hierarchy of version 1 and in that of version 2, as far as
/// they are there.
struct Cgroups {
    targets: Vec<(&'static str, PathBuf)>,
    others: Vec<PathBuf>,
    // Children before their parents.
    _made: Vec<Cgroup>,
}

impl Cgroups {
    fn new() -> io::Result<Cgroups> {
        let mounts = hierarchies()?;
        let first = |two: bool, preferred: &str| {
            let all = mounts.iter().filter(|(_, version)| *version == two);
            let mut all: Vec<&Path> = all.map(|(mount, _)| mount.as_path()).collect();
            all.sort_by_key(|mount| !mount.ends_with(preferred));
            all.first().map(|mount| mount.to_path_buf())
        };
        let mut cgroups = Cgroups {
            targets: Vec::new(),
            others: Vec::new(),
            _made: Vec::new(),
        };
        for (name, mount) in [
            ("version 1", first(false, "pids")),
            ("version 2", first(true, "unified")),
        ] {
            let Some(mount) = mount else {
                continue;
            };
            let parent = mount.join(format!("profiler-bench-{}", std::process::id()));
            for (child, list) in [("target", true), ("other", false)] {
                let path = parent.join(child);
                cgroups._made.push(Cgroup::new(path.clone())?);
                match list {
                    true => cgroups.targets.push((name, path)),
                    false => cgroups.others.push(path),
                }
            }
            cgroups._made.push(Cgroup(parent));
        }
        Ok(cgroups)
    }

    fn target(&mut self, pid: u32) -> io::Result<()> {
        self.targets
            .iter()
            .try_for_each(|(_, path)| fs::write(path.join("cgroup.procs"), pid.to_string()))
    }

    fn other(&mut self, pid: u32) -> io::Result<()> {
        self.others
            .iter()
            .try_for_each(|path| fs::write(path.join("cgroup.procs"), pid.to_string()))
    }
}
