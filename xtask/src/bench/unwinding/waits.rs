//! What recording waits costs: pairs of threads that hand over to each other, all on one processor.
//!
//! Each round runs the load alone and under each tool, the order turned by one from round to round: as
//! fast as it goes, for what the tool takes from it, and at 100,000 switches a second, for the CPU time of
//! the tool's own process. Then, apart, our programs' time in the kernel (BPF statistics), from which the
//! time of an all but empty program is taken: that is the statistics' own. Times are nanoseconds.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::super::Bench;
use super::super::measure::Watched;
use super::super::slope::median;
use super::super::table::Table;
use super::peers::statistics;

/// Switches a second that the aim speaks of.
const RATE: u64 = 100_000;
const PAIRS: &str = "2";
/// Until a tool records: compiling of scripts, reading of tables of processes.
const SETTLING: Duration = Duration::from_secs(4);
/// From <linux/bpf.h>.
const TRACEPOINT: u64 = 5;
const RAW_TRACEPOINT: u64 = 17;

/// Time off the processor by stack, as the script `offcputime` of bpftrace's collections does it.
const OFF_CPU_TIME: &str = "tracepoint:sched:sched_switch { @start[args->prev_pid] = nsecs; \
    @kernel[args->prev_pid] = kstack; @user[args->prev_pid] = ustack; \
    if (@start[args->next_pid]) { \
    @[@kernel[args->next_pid], @user[args->next_pid], args->next_comm] = sum(nsecs - @start[args->next_pid]); \
    delete(@start[args->next_pid]); } }";
/// Next to nothing: the compiler can't know that there is no such processor.
const EMPTY: &str = "tracepoint:sched:sched_switch { if (cpu == 65536) { exit(); } }";

/// What is done beside the load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Beside {
    Nothing,
    Machine,
    Process,
    PerfSched,
    PerfTrace,
    Bpftrace,
}

impl Beside {
    const ALL: [Beside; 6] = [
        Beside::Nothing,
        Beside::Machine,
        Beside::Process,
        Beside::PerfSched,
        Beside::PerfTrace,
        Beside::Bpftrace,
    ];

    fn name(self) -> &'static str {
        match self {
            Beside::Nothing => "nothing",
            Beside::Machine => "profiler --off-cpu -a",
            Beside::Process => "profiler --off-cpu -p",
            Beside::PerfSched => "perf sched record",
            Beside::PerfTrace => "perf trace -s -a",
            Beside::Bpftrace => "bpftrace, time by stack",
        }
    }

    /// The command for a load of this process id.
    fn command(self, bench: &Bench, folder: &Path, pid: u32) -> Option<Command> {
        let profiler = |words: &[&str]| {
            let mut command = Command::new(&bench.profiler);
            command.args(["record", "--quiet", "--force", "--off-cpu"]);
            command.args(words).arg("-o").arg(folder.join("waits.cap"));
            command
        };
        let tool = |name: &str, words: &[&str]| {
            let mut command = Command::new(name);
            command.args(words);
            command
        };
        let data = folder.join("sched.data").to_string_lossy().into_owned();
        Some(match self {
            Beside::Nothing => return None,
            Beside::Machine => profiler(&["-a"]),
            Beside::Process => profiler(&["-p", &pid.to_string()]),
            Beside::PerfSched => tool("perf", &["sched", "record", "-o", &data]),
            Beside::PerfTrace => tool("perf", &["trace", "-s", "-a"]),
            Beside::Bpftrace => {
                let mut command = tool("bpftrace", &["-q", "-e", OFF_CPU_TIME]);
                command.env("BPFTRACE_MAP_KEYS_MAX", "65536");
                command
            }
        })
    }
}

#[derive(Clone, Copy, Debug, Default, Serialize)]
struct Run {
    /// Of the load as fast as it goes.
    switches_per_second: f64,
    /// CPU time of the tool's process, for each second of the load at 100,000 switches a second.
    tool_ns_per_second: f64,
}

#[derive(Clone, Copy, Debug, Default, Serialize)]
struct Kernel {
    /// Of each run of the programs, by how often they ran; the statistics' own share included.
    ns_per_run: [f64; 2],
    /// All but empty.
    empty_ns: f64,
    /// All programs for each switch, without that.
    ns_per_switch: f64,
}

#[derive(Serialize)]
struct Row {
    tool: &'static str,
    round: usize,
    run: Run,
}

/// Measures and prints.
pub(super) fn run(bench: &Bench, folder: &Path, rounds: usize, seconds: u64) -> io::Result<()> {
    let program = bench.workload("switches.c", "unwinding/switches", &["-pthread"])?;
    let mut rows = Vec::new();
    for round in 0..rounds {
        for step in 0..Beside::ALL.len() {
            let beside = Beside::ALL[(step + round) % Beside::ALL.len()];
            eprintln!("waits: {}, round {}", beside.name(), round + 1);
            match beside_load(bench, folder, &program, beside, seconds) {
                Ok(run) => rows.push(Row {
                    tool: beside.name(),
                    round,
                    run,
                }),
                Err(error) => println!("{}: {error}\n", beside.name()),
            }
        }
    }
    let mut kernels = Vec::new();
    for round in 0..rounds {
        eprintln!("waits: the kernel's share, round {}", round + 1);
        match kernel(bench, folder, &program, seconds) {
            Ok(found) => kernels.push(found),
            Err(error) => println!("the kernel's share: {error}\n"),
        }
    }
    bench.keep("unwinding-waits.json", &(&rows, &kernels))?;
    print(&rows, rounds, seconds);
    if !kernels.is_empty() {
        print_kernel(&rows, &kernels);
    }
    Ok(())
}

fn middle(values: impl Iterator<Item = f64>) -> f64 {
    median(&mut values.collect::<Vec<_>>())
}

fn print(rows: &[Row], rounds: usize, seconds: u64) {
    let mut table = Table::new(&[
        "beside the load",
        "switches/s at most",
        "ns more for each",
        "tool's own CPU at 100,000/s",
    ]);
    let of = |beside: Beside| rows.iter().filter(move |row| row.tool == beside.name());
    for beside in Beside::ALL {
        if of(beside).next().is_none() {
            continue;
        }
        let rate = middle(of(beside).map(|row| row.run.switches_per_second));
        // Only rounds compare: the machine's speed drifts.
        let more = middle(of(beside).filter_map(|row| {
            let mut alone = of(Beside::Nothing);
            let alone = alone.find(|alone| alone.round == row.round)?;
            Some(1e9 / row.run.switches_per_second - 1e9 / alone.run.switches_per_second)
        }));
        let own = middle(of(beside).map(|row| row.run.tool_ns_per_second));
        table.row(vec![
            beside.name().to_owned(),
            format!("{rate:.0}"),
            format!("{more:.0}"),
            format!("{:.2} %", own / 1e7),
        ]);
    }
    table.print(&format!(
        "Threads that hand over to each other on one processor, {rounds} rounds of {seconds} s"
    ));
}

/// A member of it.
type Value = fn(&Kernel) -> f64;

fn print_kernel(rows: &[Row], kernels: &[Kernel]) {
    let least = |value: Value| {
        kernels
            .iter()
            .map(value)
            .min_by(f64::total_cmp)
            .unwrap_or(0.0)
    };
    let own = middle(
        rows.iter()
            .filter(|row| row.tool == Beside::Process.name())
            .map(|row| row.run.tool_ns_per_second),
    );
    let mut table = Table::new(&[
        "",
        "switch ns",
        "wake-up ns",
        "empty ns",
        "kernel ns a switch, without that",
        "kernel and user, of one CPU at 100,000/s",
    ]);
    let middles = |value: Value| middle(kernels.iter().map(value));
    for (name, of) in [
        ("median", &middles as &dyn Fn(Value) -> f64),
        ("least", &least),
    ] {
        let kernel = of(|kernel| kernel.ns_per_switch);
        table.row(vec![
            name.to_owned(),
            format!("{:.0}", of(|kernel| kernel.ns_per_run[0])),
            format!("{:.0}", of(|kernel| kernel.ns_per_run[1])),
            format!("{:.0}", of(|kernel| kernel.empty_ns)),
            format!("{kernel:.0}"),
            format!("{:.2} %", (kernel * RATE as f64 + own) / 1e7),
        ]);
    }
    table.print("Programs of waits in the kernel, by BPF statistics");
}

/// Starts the load on the last processor.
fn load(program: &Path, rate: u64, time: Duration) -> Command {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let mut command = Command::new(program);
    command.args([
        (cpus - 1).to_string(),
        PAIRS.to_owned(),
        rate.to_string(),
        time.as_millis().to_string(),
    ]);
    command
}

fn beside_load(
    bench: &Bench,
    folder: &Path,
    program: &Path,
    beside: Beside,
    seconds: u64,
) -> io::Result<Run> {
    let time = Duration::from_secs(seconds);
    // A tool that is for one process has to see the processes of both loads: a shell starts them.
    let marks = folder.join("switches.out");
    let script = format!(
        "sleep {0}; {1} > {2}; sleep 1; exec {3}",
        SETTLING.as_secs(),
        words(&load(program, 0, time)),
        marks.display(),
        words(&load(program, RATE, time + Duration::from_secs(2))),
    );
    fs::write(&marks, "")?;
    let mut shell = Command::new("sh").args(["-c", &script]).spawn()?;
    let watched = match beside.command(bench, folder, shell.id()) {
        Some(mut command) => Some(Watched::start(&mut command, &folder.join("waits.log"))?),
        None => None,
    };
    // The second load begins when the first has told its speed, and a second later.
    let mut told = String::new();
    while told.is_empty() && shell.try_wait()?.is_none() {
        std::thread::sleep(Duration::from_millis(50));
        told = fs::read_to_string(&marks)?;
    }
    std::thread::sleep(Duration::from_secs(2));
    let (began, before) = (
        Instant::now(),
        watched.as_ref().map(|tool| cpu_ns(tool.pid())),
    );
    std::thread::sleep(time);
    let after = watched.as_ref().map(|tool| cpu_ns(tool.pid()));
    let elapsed = began.elapsed();
    shell.wait()?;
    if let Some(watched) = watched {
        watched.interrupt()?;
        watched.end()?;
    }
    let rate = told.split_whitespace().next();
    let rate = rate.and_then(|rate| rate.parse::<f64>().ok());
    let used = match (before, after) {
        (Some(Some(before)), Some(Some(after))) => after.saturating_sub(before),
        (None, None) => 0,
        _ => return Err(io::Error::other("it has ended before the load")),
    };
    Ok(Run {
        switches_per_second: rate.ok_or_else(|| io::Error::other("the load failed"))?,
        tool_ns_per_second: used as f64 / elapsed.as_secs_f64(),
    })
}

fn words(command: &Command) -> String {
    let mut words = vec![command.get_program().to_string_lossy()];
    words.extend(command.get_args().map(|word| word.to_string_lossy()));
    words.join(" ")
}

/// User and system time of a process so far; none if it is gone.
fn cpu_ns(pid: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = text.rsplit_once(')')?;
    let ticks = |index: usize| fields.split_whitespace().nth(index)?.parse::<u64>().ok();
    // The kernel tells hundredths of a second.
    Some((ticks(11)? + ticks(12)?) * 10_000_000)
}

/// Programs of one type that a process holds: time and number of their runs, by their ids.
fn programs(pid: u32, wanted: u64) -> Vec<(u64, f64, f64)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(PathBuf::from(format!("/proc/{pid}/fdinfo")))
        .into_iter()
        .flatten()
        .flatten()
    {
        let text = fs::read_to_string(entry.path()).unwrap_or_default();
        let field = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name))?;
            line.trim().parse::<u64>().ok()
        };
        if field("prog_type:") == Some(wanted)
            && let (Some(id), Some(ns), Some(runs)) =
                (field("prog_id:"), field("run_time_ns:"), field("run_cnt:"))
        {
            found.push((id, ns as f64, runs as f64));
        }
    }
    found.sort_by_key(|&(id, ..)| id);
    found.dedup_by_key(|&mut (id, ..)| id);
    found
}

/// Time and runs of each program while the load runs.
fn spent(pid: u32, kind: u64, time: Duration) -> Vec<(f64, f64)> {
    let before = programs(pid, kind);
    std::thread::sleep(time);
    let mut spent: Vec<(f64, f64)> = programs(pid, kind)
        .iter()
        .filter_map(|(id, ns, runs)| {
            let (_, ns_before, runs_before) = before.iter().find(|(known, ..)| known == id)?;
            Some((ns - ns_before, runs - runs_before))
        })
        .collect();
    spent.sort_by(|one, other| other.1.total_cmp(&one.1));
    spent
}

/// Our programs' time, and that of an all but empty one.
fn kernel(bench: &Bench, folder: &Path, program: &Path, seconds: u64) -> io::Result<Kernel> {
    let _statistics = statistics()?;
    let time = Duration::from_secs(seconds);
    let mut load = load(
        program,
        RATE,
        SETTLING * 2 + time * 2 + Duration::from_secs(2),
    )
    .spawn()?;
    let log = folder.join("waits.log");
    let ours = Beside::Process.command(bench, folder, load.id());
    let mut ours = ours.ok_or_else(|| io::Error::other("no command"))?;
    let tool = Watched::start(&mut ours, &log)?;
    std::thread::sleep(SETTLING);
    let own = spent(tool.pid(), RAW_TRACEPOINT, time);
    tool.interrupt()?;
    tool.end()?;
    let tool = Watched::start(Command::new("bpftrace").args(["-q", "-e", EMPTY]), &log)?;
    std::thread::sleep(SETTLING);
    let empty = spent(tool.pid(), TRACEPOINT, time);
    tool.interrupt()?;
    tool.end()?;
    load.kill()?;
    load.wait()?;
    let (Some(&(empty_ns, empty_runs)), Some(&(_, switches))) = (empty.first(), own.first()) else {
        return Err(io::Error::other("a tool's programs did not run"));
    };
    let empty_ns = empty_ns / empty_runs.max(1.0);
    let mut ns_per_run = [0.0; 2];
    for (place, (ns, runs)) in ns_per_run.iter_mut().zip(&own) {
        *place = ns / runs.max(1.0);
    }
    let all: f64 = own.iter().map(|(ns, runs)| ns - runs * empty_ns).sum();
    Ok(Kernel {
        ns_per_run,
        empty_ns,
        ns_per_switch: all / switches.max(1.0),
    })
}
