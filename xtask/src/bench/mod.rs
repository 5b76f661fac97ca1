//! `cargo xtask bench`: what sampling, tracing, streaming, serving and containers cost, beside other tools
//! in the same run.
//!
//! Output: Markdown tables on standard output, the raw numbers as JSON in `target/bench`, progress on
//! standard error. What a table means, and what is within noise, is in docs/performance.md.

mod busy;
mod bytefrog;
mod containers;
mod export;
mod host;
mod latency;
pub(crate) mod measure;
mod pgo;
mod sampling;
mod serve;
mod slope;
pub(crate) mod start;
mod sysctls;
mod table;
mod tool;
mod tracing;
mod unwinding;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use tool::Tool;

/// What to measure.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The benchmark.
    #[arg(value_parser = ["sampling", "unwinding", "tracing", "bytefrog", "serve", "containers", "pgo", "export"])]
    name: String,
    /// A short run, to see that it works; its numbers mean little.
    #[arg(long)]
    quick: bool,
    /// Rounds of the first scenario, in each of which every tool runs in every way.
    #[arg(long)]
    rounds: Option<usize>,
    /// Scenarios to run: of sampling `job`, `host`, `first`, `start`, `busy`; of tracing `kinds`, `cost`,
    /// `sustained`, `attach`; of bytefrog `replay`, `live`, `samples`, `volume`; of serve `cost`, `threads`,
    /// `answers`, `tree`, `rdp`, `http`; of containers `start`, `discard`; of unwinding `chain`, `programs`, `tables`,
    /// `processes`, `waits`; of pgo `cpp`, `go`; of export the formats.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Seconds of each load (bytefrog, serve, unwinding).
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: Option<u64>,
    /// Tools to compare.
    #[arg(long, value_delimiter = ',', default_values = ["profiler", "perf", "bpftrace", "uftrace"])]
    tools: Vec<String>,
}

/// Scenarios of sampling.
const SAMPLING: [&str; 5] = ["job", "host", "first", "start", "busy"];

/// What all scenarios need.
struct Bench {
    profiler: PathBuf,
    tools: Vec<Tool>,
    /// `target/bench`.
    folder: PathBuf,
    sources: PathBuf,
    quick: bool,
}

/// Runs the benchmark.
pub(crate) fn run(arguments: &Arguments) -> io::Result<()> {
    let root = crate::process::workspace().canonicalize()?;
    let profiler = build_profiler(&root)?;
    let mut tools = Vec::new();
    for tool in [Tool::Profiler, Tool::Perf, Tool::Bpftrace] {
        if !arguments.tools.iter().any(|name| name == tool.name()) {
            continue;
        }
        match tool.missing(&profiler) {
            None => tools.push(tool),
            Some(why) => eprintln!("without {}: {why}", tool.name()),
        }
    }
    let folder = root.join("target/bench");
    fs::create_dir_all(&folder)?;
    let sources = root.join("tests/workloads");
    let bench = Bench {
        profiler,
        tools,
        folder,
        sources,
        quick: arguments.quick,
    };
    let tracing = arguments.name == "tracing";
    let scenarios = match arguments.name.as_str() {
        "tracing" => &tracing::SCENARIOS[..],
        "bytefrog" => &bytefrog::SCENARIOS,
        "serve" => &serve::SCENARIOS,
        "containers" => &containers::SCENARIOS,
        "unwinding" => &unwinding::SCENARIOS,
        "pgo" => &pgo::SCENARIOS,
        "export" => &export::SCENARIOS,
        _ => &SAMPLING,
    };
    if let Some(unknown) = arguments
        .only
        .iter()
        .find(|only| !scenarios.contains(&only.as_str()))
    {
        return Err(io::Error::other(format!(
            "no scenario '{unknown}'; there are {}",
            scenarios.join(", ")
        )));
    }
    let wanted =
        |name: &str| arguments.only.is_empty() || arguments.only.iter().any(|only| only == name);
    let rounds = match (arguments.rounds, tracing) {
        (Some(rounds), _) => rounds,
        (None, true) if arguments.quick => 1,
        (None, false) if arguments.quick => 2,
        (None, true) => 3,
        (None, false) => 10,
    };
    println!("{}", machine());
    if let "bytefrog" | "serve" | "unwinding" = arguments.name.as_str() {
        let seconds = match (arguments.seconds, arguments.quick) {
            (Some(seconds), _) => seconds,
            (None, true) => 1,
            (None, false) => 5,
        };
        let rounds = match (arguments.rounds, arguments.quick) {
            (Some(rounds), _) => rounds.max(1),
            (None, true) => 1,
            (None, false) => 5,
        };
        return match arguments.name.as_str() {
            "unwinding" => unwinding::run(&bench, rounds.min(3), seconds.max(2), wanted),
            "serve" => serve::run(&bench, rounds, seconds, wanted),
            _ => bytefrog::run(&bench, rounds, seconds, wanted),
        };
    }
    if arguments.name == "containers" {
        return containers::run(&bench, rounds, wanted);
    }
    if arguments.name == "pgo" {
        let rounds = if arguments.rounds.is_some() || arguments.quick {
            rounds
        } else {
            20
        };
        return pgo::run(&bench, rounds, wanted);
    }
    if arguments.name == "export" {
        return export::run(&bench, wanted);
    }
    if tracing {
        return tracing::run(&bench, rounds, wanted, &arguments.tools);
    }
    if wanted("job") {
        sampling::run(&bench, rounds)?;
    }
    if wanted("host") {
        host::run(&bench)?;
    }
    if wanted("first") {
        latency::run(&bench, rounds.min(10))?;
    }
    if wanted("start") {
        start::run(&bench, rounds.min(5))?;
    }
    if wanted("busy") {
        busy::run(&bench, rounds.min(5))?;
    }
    Ok(())
}

/// A few recordings of the whole machine by a profiler that is built, and by perf if it is there.
pub(crate) fn starts(profiler: PathBuf) -> io::Result<Vec<start::Run>> {
    let root = crate::process::workspace().canonicalize()?;
    let tools = [Tool::Profiler, Tool::Perf];
    let tools = tools
        .into_iter()
        .filter(|tool| tool.missing(&profiler).is_none());
    let bench = Bench {
        tools: tools.collect(),
        profiler,
        folder: root.join("target/bench"),
        sources: root.join("tests/workloads"),
        quick: true,
    };
    fs::create_dir_all(&bench.folder)?;
    start::runs(&bench, 1, &start::with_budgets(&bench))
}

impl Bench {
    /// Builds a workload of `tests/workloads` with these further flags.
    fn workload(&self, source: &str, name: &str, flags: &[&str]) -> io::Result<PathBuf> {
        let output = self.folder.join(name);
        let status = Command::new("cc")
            .args([
                "-O2",
                "-fno-omit-frame-pointer",
                "-fno-optimize-sibling-calls",
            ])
            .args(flags)
            .arg("-o")
            .arg(&output)
            .arg(self.sources.join(source))
            .status()?;
        if status.success() {
            Ok(output)
        } else {
            Err(io::Error::other(format!("cc {source} failed")))
        }
    }

    /// Keeps the raw numbers.
    fn keep(&self, name: &str, numbers: &impl serde::Serialize) -> io::Result<()> {
        let file = fs::File::create(self.folder.join(name))?;
        Ok(serde_json::to_writer_pretty(file, numbers)?)
    }
}

/// Builds the profiler; `PROFILER_BIN` names another one.
pub(crate) fn build_profiler(root: &Path) -> io::Result<PathBuf> {
    if let Some(path) = std::env::var_os("PROFILER_BIN") {
        return Ok(path.into());
    }
    let status = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()))
        .args(crate::budgets::RELEASE)
        .arg("--quiet")
        .current_dir(root)
        .status()?;
    if status.success() {
        Ok(root.join("target/release/profiler"))
    } else {
        Err(io::Error::other("the profiler did not build"))
    }
}

/// Where the numbers were measured.
fn machine() -> String {
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let cpus = std::thread::available_parallelism().map_or(0, usize::from);
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(':'))
        .map_or("unknown processor", |(_, model)| model.trim());
    let perf = Command::new("perf").arg("--version").output();
    let perf = perf.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    let bpftrace = Command::new("bpftrace").arg("--version").output();
    let bpftrace = bpftrace.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    format!(
        "Linux {}, {cpus} processors ({model}); {}, {}\n",
        kernel.trim(),
        perf.unwrap_or_default(),
        bpftrace.unwrap_or_default()
    )
}
