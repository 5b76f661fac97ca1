//! `cargo xtask budgets`: what building, testing and starting the profiler take, beside what they may.
//!
//! Output: a Markdown table on standard output; what does not depend on the machine (size, memory, the number
//! of executables) fails if it is exceeded. Times are of the machine that it runs on: they are said, and a
//! reader judges.
//!
//! `--build` comes before, from an empty target folder: it builds the release and notes the CPU time, which
//! other work on the machine hardly changes; what both are made of is built with `xtask` before. What does not
//! belong here: how the start is measured (`bench::start`).

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::bench::measure::run as run_measured;
use crate::bench::start::Run;
use crate::bench::starts;
use crate::process::{Failure, Outcome, cargo, failed, workspace};

/// Four minutes of two processors.
const BUILD_CPU_S: f64 = 480.0;
const BINARY_MB: f64 = 25.0;
const TESTS_S: f64 = 900.0;
const EXECUTABLES: usize = 7;
const IDLE_CPU_S: f64 = 0.25;
const IDLE_ANON_MIB: f64 = 40.0;
const BUSY_PEAK_MIB: f64 = 96.0;

/// What to do.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Build the release and note what that takes; no table.
    #[arg(long)]
    build: bool,
    /// How long the tests took, for the table.
    #[arg(long, value_name = "SECONDS")]
    tests: Option<f64>,
}

/// What a build took.
#[derive(Deserialize, Serialize)]
struct Build {
    /// Nothing of it was there before.
    from_nothing: bool,
    cpu_s: f64,
    wall_s: f64,
}

/// One line of the table.
struct Budget {
    what: &'static str,
    now: Option<f64>,
    most: Option<f64>,
    /// Whether another machine would say the same, so that it fails.
    binds: bool,
}

impl Budget {
    fn is_exceeded(&self) -> bool {
        matches!((self.now, self.most), (Some(now), Some(most)) if now > most)
    }

    fn row(&self) -> String {
        let number = |value: Option<f64>| match value {
            Some(value) if value.fract() == 0.0 => format!("{value:.0}"),
            Some(value) => format!("{value:.2}"),
            None => "-".to_owned(),
        };
        let says = match (self.is_exceeded(), self.binds) {
            (false, _) => "",
            (true, false) => "over, on this machine",
            (true, true) => "**over**",
        };
        let (now, most) = (number(self.now), number(self.most));
        format!("| {} | {now} | {most} | {says} |", self.what)
    }
}

/// Builds, or prints the table; fails if a budget is exceeded that does not depend on the machine.
pub(crate) fn run(arguments: &Arguments) -> Outcome {
    if arguments.build {
        return build();
    }
    let budgets = budgets(arguments)?;
    println!("| budget | now | at most | |\n|---|---|---|---|");
    budgets
        .iter()
        .for_each(|budget| println!("{}", budget.row()));
    let over: Vec<&str> = budgets
        .iter()
        .filter(|budget| budget.binds && budget.is_exceeded())
        .map(|budget| budget.what)
        .collect();
    match over.is_empty() {
        true => Ok(()),
        false => Err(Failure(format!("over budget: {}", over.join("; ")))),
    }
}

/// What builds the release, with the packages and features of `cargo run --release`: another selection would build
/// the last crates again.
pub(crate) const RELEASE: &[&str] = &["build", "--release", "--bin", "profiler"];

fn notes() -> PathBuf {
    workspace().join("target/budgets.json")
}

fn binary() -> PathBuf {
    workspace().join("target/release/profiler")
}

fn build() -> Outcome {
    let target = workspace().join("target");
    let from_nothing = !binary().exists();
    let mut command = cargo();
    command.args(RELEASE);
    command.current_dir(workspace());
    let used = run_measured(&mut command, &target.join("budgets.log"))
        .map_err(|error| failed("build the release", error))?;
    let build = Build {
        from_nothing,
        cpu_s: used.cpu_ns as f64 / 1e9,
        wall_s: used.wall_ns as f64 / 1e9,
    };
    let text = serde_json::to_string(&build).map_err(|error| failed("note the build", error))?;
    fs::write(notes(), text).map_err(|error| failed("note the build", error))
}

fn budgets(arguments: &Arguments) -> Outcome<Vec<Budget>> {
    let noted = fs::read_to_string(notes()).ok();
    let noted = noted.and_then(|text| serde_json::from_str::<Build>(&text).ok());
    // A build of a part says nothing.
    let build = noted.filter(|build| build.from_nothing);
    let bytes = fs::metadata(binary()).map_err(|error| {
        let binary = binary();
        failed(
            format!(
                "find {}: build it with 'cargo xtask budgets --build'",
                binary.display()
            ),
            error,
        )
    })?;
    let runs = starts(binary()).map_err(|error| failed("measure the start", error))?;
    let ours = |busy: bool| find(&runs, |run| run.way.busy == busy && run.way.is_ours_again());
    let perf = find(&runs, |run| run.way.busy && run.way.is_perf());
    let cpu = |run: &Run| run.usage.cpu_ns as f64 / 1e9;
    let mib = |bytes: u64| bytes as f64 / 1_048_576.0;
    let budget = |what, now, most, binds| Budget {
        what,
        now,
        most,
        binds,
    };
    Ok(vec![
        budget(
            "release build from nothing, CPU s",
            build.as_ref().map(|build| build.cpu_s),
            Some(BUILD_CPU_S),
            false,
        ),
        budget(
            "the same beside other work, s",
            build.as_ref().map(|build| build.wall_s),
            None,
            false,
        ),
        budget(
            "release binary, MB",
            Some(bytes.len() as f64 / 1e6),
            Some(BINARY_MB),
            true,
        ),
        budget("tests, s", arguments.tests, Some(TESTS_S), false),
        budget(
            "executables of integration tests",
            Some(executables()? as f64),
            Some(EXECUTABLES as f64),
            true,
        ),
        budget(
            "5 s of an idle machine, CPU s",
            ours(false).map(cpu),
            Some(IDLE_CPU_S),
            false,
        ),
        budget(
            "5 s of an idle machine, anonymous MiB",
            ours(false).map(|run| mib(run.usage.anon_bytes)),
            Some(IDLE_ANON_MIB),
            true,
        ),
        budget(
            "5 s beside a busy process at 999 Hz, CPU s (at most: perf's in the same run)",
            ours(true).map(cpu),
            perf.map(cpu),
            false,
        ),
        budget(
            "5 s beside a busy process at 999 Hz, peak RSS MiB",
            ours(true).map(|run| mib(run.usage.peak_bytes)),
            Some(BUSY_PEAK_MIB),
            true,
        ),
    ])
}

fn find(runs: &[Run], wanted: impl Fn(&&Run) -> bool) -> Option<&Run> {
    runs.iter().find(wanted)
}

/// How many executables the integration tests of the workspace are.
fn executables() -> Outcome<usize> {
    let mut command = cargo();
    command.args([
        "metadata",
        "--no-deps",
        "--offline",
        "--format-version",
        "1",
    ]);
    let output = command
        .current_dir(workspace())
        .output()
        .map_err(|error| failed("run 'cargo metadata'", error))?;
    count_executables(&output.stdout).ok_or_else(|| Failure("'cargo metadata' failed".to_owned()))
}

fn count_executables(metadata: &[u8]) -> Option<usize> {
    let metadata: serde_json::Value = serde_json::from_slice(metadata).ok()?;
    let mut tests = BTreeSet::new();
    for package in metadata["packages"].as_array()? {
        for target in package["targets"].as_array()? {
            if target["kind"].as_array()?.iter().any(|kind| kind == "test") {
                tests.insert(target["src_path"].as_str()?.to_owned());
            }
        }
    }
    Some(tests.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integration_tests_are_counted() {
        let metadata = br#"{"packages":[{"targets":[
            {"kind":["test"],"src_path":"/a/tests/x.rs"},
            {"kind":["lib"],"src_path":"/a/src/lib.rs"},
            {"kind":["test"],"src_path":"/a/tests/y.rs"}]},
            {"targets":[{"kind":["bin"],"src_path":"/b/src/main.rs"}]}]}"#;
        assert_eq!(count_executables(metadata), Some(2));
        assert_eq!(count_executables(b"error"), None);
    }

    #[test]
    fn a_budget_says_when_it_is_exceeded() {
        let budget = |now, most, binds| Budget {
            what: "it",
            now,
            most,
            binds,
        };
        assert!(!budget(Some(25.0), Some(25.0), true).is_exceeded());
        assert!(!budget(None, Some(25.0), true).is_exceeded());
        let over = budget(Some(25.125), Some(25.0), true);
        assert!(over.is_exceeded());
        assert_eq!(over.row(), "| it | 25.12 | 25 | **over** |");
        assert_eq!(budget(Some(2.0), None, false).row(), "| it | 2 | - |  |");
    }
}
