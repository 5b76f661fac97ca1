//! What programs gain that are built anew with a profile of `profiler export`: C++ with clang, Go with its own compiler.
//!
//! A program is built, recorded, exported, and built with that; then both run in turn. Output: a row for each language, with
//! the mean of the differences of CPU time within a round and its 95 % interval (Student's t). The programs are
//! `tests/workloads/pgo.cpp` and `pgo.go`, which leave much to be gained: they show that a profile works, not what others gain.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::Bench;
use super::measure;
use super::table::{Table, ms};

pub(super) const SCENARIOS: [&str; 2] = ["cpp", "go"];

/// 97.5 % of Student's distribution with so many degrees of freedom.
fn quantile(degrees: usize) -> f64 {
    match degrees {
        0..5 => 4.303,
        5..10 => 2.571,
        10..19 => 2.228,
        19..30 => 2.093,
        _ => 2.042,
    }
}

struct Language {
    name: &'static str,
    compiler: PathBuf,
    /// What stands before the output's name.
    flags: &'static [&'static str],
    source: &'static str,
    /// The profile's name, and the flag that it is given by.
    profile: &'static str,
    format: &'static str,
    with: &'static str,
}

pub(super) fn run(bench: &Bench, rounds: usize, wanted: impl Fn(&str) -> bool) -> io::Result<()> {
    let steps = if bench.quick { "20000000" } else { "300000000" };
    let mut table = Table::new(&["program", "without", "with", "difference", "95 % interval"]);
    let languages = [
        Language {
            name: "cpp",
            compiler: "clang++".into(),
            flags: &["-O2", "-g", "-fdebug-info-for-profiling", "-o"],
            source: "pgo.cpp",
            profile: "pgo.afdo",
            format: "pgo-llvm",
            with: "-fprofile-sample-use=",
        },
        Language {
            name: "go",
            compiler: go(bench),
            flags: &["build", "-o"],
            source: "pgo.go",
            profile: "default.pgo",
            format: "pgo-go",
            with: "-pgo=",
        },
    ];
    for language in languages.iter().filter(|language| wanted(language.name)) {
        if let Err(error) = Command::new(&language.compiler).arg("version").output() {
            eprintln!(
                "without {}: {}: {error}",
                language.name,
                language.compiler.display()
            );
            continue;
        }
        let times = of_language(bench, language, rounds, steps)?;
        bench.keep(&format!("pgo-{}.json", language.name), &times)?;
        let count = times.len() as f64;
        let mean = |of: &dyn Fn(&(u64, u64)) -> f64| times.iter().map(of).sum::<f64>() / count;
        let without = mean(&|times| times.0 as f64);
        let with = mean(&|times| times.1 as f64);
        let gain = |times: &(u64, u64)| times.1 as f64 - times.0 as f64;
        let difference = mean(&gain);
        let variance =
            mean(&|times| (gain(times) - difference).powi(2)) * count / (count - 1.0).max(1.0);
        let around = quantile(times.len().saturating_sub(1)) * (variance / count).sqrt();
        let percent = |ns: f64| format!("{:+.1} %", ns / without * 100.0);
        table.row(vec![
            language.source.to_owned(),
            ms(without),
            ms(with),
            percent(difference),
            format!(
                "{} to {}",
                percent(difference - around),
                percent(difference + around)
            ),
        ]);
    }
    table.print(&format!(
        "Built with a profile: CPU time of {steps} steps, {rounds} rounds"
    ));
    Ok(())
}

/// The CPU time of each round, without and with the profile, in nanoseconds.
fn of_language(
    bench: &Bench,
    language: &Language,
    rounds: usize,
    steps: &str,
) -> io::Result<Vec<(u64, u64)>> {
    let path = |name: &str| bench.folder.join(name);
    let source = bench.sources.join(language.source);
    let [base, fast] = ["base", "fast"].map(|it| path(&format!("pgo-{}-{it}", language.name)));
    let (capture, profile) = (path("pgo.cap"), path(language.profile));
    let build = |output: &Path, flag: Option<String>| {
        let mut command = Command::new(&language.compiler);
        let (out, flags) = language.flags.split_last().unwrap_or((&"-o", &[]));
        command
            .args(flags)
            .args(flag)
            .arg(out)
            .arg(output)
            .arg(&source);
        // One file outside of all modules; nothing is to be fetched.
        command.env("GOFLAGS", "-mod=mod").env("GOPROXY", "off");
        done(&mut command)
    };
    let is_go = language.name == "go";
    build(&base, is_go.then(|| "-pgo=off".to_owned()))?;
    let mut record = Command::new(&bench.profiler);
    record.args(["record", "-q", "-F", "1999", "--force", "-o"]);
    done(record.arg(&capture).arg("--").arg(&base).arg(steps))?;
    let mut export = Command::new(&bench.profiler);
    export.args(["export", "--force", "--format", language.format, "-o"]);
    done(export.arg(&profile).arg(&capture))?;
    build(
        &fast,
        Some(format!("{}{}", language.with, profile.display())),
    )?;
    let log = path("pgo.log");
    let time = |program: &Path| {
        let usage = measure::run(Command::new(program).arg(steps), &log)?;
        Ok::<u64, io::Error>(usage.cpu_ns)
    };
    let mut times = Vec::new();
    for round in 0..rounds {
        // The one that is first has not always the same neighbour.
        let pair = match round % 2 {
            0 => {
                let without = time(&base)?;
                (without, time(&fast)?)
            }
            _ => {
                let with = time(&fast)?;
                (time(&base)?, with)
            }
        };
        times.push(pair);
    }
    Ok(times)
}

fn done(command: &mut Command) -> io::Result<()> {
    let status = command.status()?;
    match status.success() {
        true => Ok(()),
        false => Err(io::Error::other(format!("{command:?} failed: {status}"))),
    }
}

/// The Go that the tests install, or the system's.
pub(super) fn go(bench: &Bench) -> PathBuf {
    let tools = bench.folder.join("../go-tools/lib");
    let versions = std::fs::read_dir(tools).into_iter().flatten().flatten();
    let mut found = versions.map(|it| it.path().join("site-packages/go/bin/go"));
    found.find(|go| go.exists()).unwrap_or_else(|| "go".into())
}
