//! Fourth scenario: what a short recording of the whole machine costs, most of which is its start.
//!
//! Five seconds of a machine that is idle but for what is measured, and of one with a busy process, each tool
//! in turn. Output: CPU time of the tool and its children, the most anonymous memory and the largest
//! resident set. A first recording finds nothing in /var/cache/profiler: it runs with an empty directory
//! there, in a mount namespace of its own; of the others there was one before.

use std::fs;
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};

use serde::Serialize;

use super::Bench;
use super::measure::{Usage, Watched};
use super::slope::median;
use super::table::{Table, mib, ms};
use super::tool::Tool;

const SECONDS: &str = "5";
const BUSY_HZ: &str = "999";

/// Puts an empty directory where tables are kept, and becomes the command behind it.
pub(super) const WITHOUT_TABLES: &str = "mkdir -p -m 0700 /var/cache/profiler && \
     mount -t tmpfs -o mode=0700 none /var/cache/profiler && exec \"$@\"";

/// One way to record.
#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct Way {
    tool: &'static str,
    pub(crate) busy: bool,
    first: bool,
}

const WAYS: [Way; 6] = [
    Way::of("profiler", false, false),
    Way::of("perf", false, false),
    Way::of("profiler", false, true),
    Way::of("profiler", true, false),
    Way::of("perf", true, false),
    Way::of("profiler", true, true),
];

impl Way {
    const fn of(tool: &'static str, busy: bool, first: bool) -> Way {
        Way { tool, busy, first }
    }

    fn command(self, profiler: &Path, folder: &Path) -> io::Result<Command> {
        let output = folder.join("start.out");
        match fs::remove_file(&output) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let ours = self.tool == Tool::Profiler.name();
        let mut command = match (ours, self.first) {
            (true, true) => {
                let mut command = Command::new("unshare");
                command.args(["--mount", "sh", "-c", WITHOUT_TABLES, "sh"]);
                command.arg(profiler);
                command
            }
            (true, false) => Command::new(profiler),
            (false, _) => Command::new("perf"),
        };
        command.arg("record").arg("-a");
        if !ours {
            command.arg("-g");
        }
        if self.busy {
            command.args(["-F", BUSY_HZ]);
        }
        match ours {
            true => {
                // By its ending it is told what to write.
                command.args(["-d", SECONDS, "--force", "-o"]);
                command.arg(output.with_extension("cap"));
            }
            false => {
                command.arg("-o").arg(output).args(["sleep", SECONDS]);
            }
        }
        Ok(command)
    }

    fn text(self) -> String {
        let rate = match self.busy {
            true => " -F 999",
            false => "",
        };
        match self.tool {
            "perf" => format!("perf record -a -g{rate}"),
            _ => format!("profiler record -a{rate} -d {SECONDS}"),
        }
    }
}

/// A recording, and what it took.
#[derive(Serialize)]
pub(crate) struct Run {
    pub(crate) way: Way,
    pub(crate) usage: Usage,
}

impl Way {
    /// Whether it is ours, with tables that were kept.
    pub(crate) fn is_ours_again(self) -> bool {
        self.tool == Tool::Profiler.name() && !self.first
    }

    /// Whether it is perf's.
    pub(crate) fn is_perf(self) -> bool {
        self.tool == Tool::Perf.name()
    }
}

/// Records in all of these ways in turn.
pub(super) fn runs(bench: &Bench, rounds: usize, ways: &[Way]) -> io::Result<Vec<Run>> {
    let job = bench.workload("job.c", "job", &[])?;
    // So that the tables of what runs all the time are there.
    record(bench, &job, Way::of("profiler", false, false))?;
    let mut runs = Vec::new();
    for round in 0..rounds {
        for &way in ways {
            eprintln!("round {} of {rounds}: {}", round + 1, way.text());
            let usage = record(bench, &job, way)?;
            runs.push(Run { way, usage });
        }
    }
    Ok(runs)
}

/// Those that have a budget: ours, with the tables of an earlier one, and perf's beside a busy process, which ours is compared
/// with.
pub(super) fn with_budgets(bench: &Bench) -> Vec<Way> {
    let mut ways = ways(bench);
    ways.retain(|way| way.is_ours_again() || way.is_perf() && way.busy);
    ways
}

/// Those whose tool is there.
fn ways(bench: &Bench) -> Vec<Way> {
    let ways = WAYS.iter().filter(|way| {
        let tools = bench.tools.iter();
        tools.map(|tool| tool.name()).any(|name| name == way.tool)
    });
    ways.copied().collect()
}

/// Measures and prints.
pub(super) fn run(bench: &Bench, rounds: usize) -> io::Result<()> {
    let runs = runs(bench, rounds, &ways(bench))?;
    bench.keep("start.json", &runs)?;

    let mut table = Table::new(&[
        "recording",
        "machine",
        "CPU ms (median)",
        "least",
        "most",
        "RssAnon MiB",
        "peak RSS MiB",
    ]);
    for way in ways(bench) {
        let of = || runs.iter().filter(|run| run.way == way);
        let mut cpu: Vec<f64> = of().map(|run| run.usage.cpu_ns as f64).collect();
        let most = |value: &dyn Fn(&Usage) -> u64| {
            mib(of().map(|run| value(&run.usage)).max().unwrap_or(0))
        };
        table.row(vec![
            match way.first {
                true => format!("{}, the first", way.text()),
                false => way.text(),
            },
            match way.busy {
                true => "a busy process",
                false => "idle",
            }
            .to_owned(),
            ms(median(&mut cpu)),
            ms(cpu.iter().copied().fold(f64::INFINITY, f64::min)),
            ms(cpu.iter().copied().fold(0.0, f64::max)),
            most(&|usage| usage.anon_bytes),
            most(&|usage| usage.peak_bytes),
        ]);
    }
    table.print(&format!(
        "A recording of {SECONDS} s of the whole machine, {rounds} rounds (memory: the highest)"
    ));
    Ok(())
}

fn record(bench: &Bench, job: &Path, way: Way) -> io::Result<Usage> {
    // Longer than any recording; it is ended when that is over.
    let mut job = match way.busy {
        true => Some(
            Command::new(job)
                .arg("1000000000000")
                .stdout(Stdio::null())
                .spawn()?,
        ),
        false => None,
    };
    let recorded = measure(bench, way);
    if let Some(job) = &mut job {
        job.kill()?;
        job.wait()?;
    }
    recorded
}

fn measure(bench: &Bench, way: Way) -> io::Result<Usage> {
    let mut command = way.command(&bench.profiler, &bench.folder)?;
    let log = bench.folder.join("log");
    let (status, usage) = Watched::start(&mut command, &log)?.end()?;
    match status.success() {
        true => Ok(usage),
        false => {
            let said = fs::read_to_string(&log).unwrap_or_default();
            Err(io::Error::other(format!(
                "{} failed ({status}): {said}",
                way.text()
            )))
        }
    }
}
