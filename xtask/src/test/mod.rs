//! `cargo xtask test`: all tests, and a summary of what passed and what was skipped.
//!
//! Everything is built once (`build`), while packages that tests need are installed; each test runs in a
//! process of its own (`child`), beside others or alone (`schedule`) as `tests/classes.txt` says (`classes`).
//! A skip is said aloud at the end (`skips`); with `CI=true` one that is not declared in
//! `tests/declared-skips.txt` is a failure, and so is a missing compiler.
//!
//! Many tests measure a machine on which others may be at work: shares, times, what a busy processor let
//! pass. One that fails is run again, alone (`again`), which is said at the end whatever comes of it.

mod again;
mod build;
mod child;
mod classes;
pub(crate) mod compiler;
mod idle;
mod interrupt;
mod list;
mod progress;
mod runner;
mod schedule;
mod skips;
mod times;

use std::fs;
use std::io;
use std::time::{Duration, Instant};

use again::Judged;
use child::{End, Ended};
use classes::{Class, Classes, Entry};
use list::{Test, Wanted};
use progress::Progress;
use runner::Runner;
use schedule::{Job, Schedule};
use times::Times;

/// What to run.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Build all and install what tests need, but run none.
    #[arg(long)]
    no_run: bool,
    /// Without the end-to-end tests, which need root and some minutes.
    #[arg(long)]
    no_e2e: bool,
    /// End-to-end tests run an unoptimised profiler, which is built sooner after a change and checks more.
    #[arg(long)]
    debug: bool,
    /// Don't run again what failed.
    #[arg(long)]
    once: bool,
    /// With soak tests, and repetitions as many as a release wants.
    #[arg(long)]
    long: bool,
    /// List the slowest tests.
    #[arg(long)]
    times: bool,
    /// Parts of names of tests; --exact, --skip NAME, --ignored, --include-ignored, --nocapture.
    #[arg(last = true)]
    rest: Vec<String>,
}

/// Sums of results.
#[derive(Debug, Default, PartialEq, Eq)]
struct Sums {
    passed: usize,
    failed: usize,
    ignored: usize,
}

/// Runs the tests.
pub(crate) fn run(arguments: &Arguments) -> io::Result<()> {
    let wanted = Wanted::parse(&arguments.rest)?;
    let root = crate::process::workspace().canonicalize()?;
    let log = root.join("target/skipped-tests");
    let folder = root.join("target/test-output");
    fs::create_dir_all(&folder)?;
    match fs::remove_file(&log) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let started = Instant::now();
    let built = build::build(&root, arguments.long, arguments.debug)?;
    let built_in = started.elapsed();
    if arguments.no_run {
        println!("built in {:.0} s", built_in.as_secs_f64());
        return Ok(());
    }

    let tests = list::list(&built.executables)?;
    let entries = Classes::parse(&fs::read_to_string(root.join("tests/classes.txt"))?)?;
    let entries = entries.of_all(&tests)?;
    let classes: Vec<Class> = entries.iter().map(|entry| entry.class).collect();
    let times_path = root.join("target/test-times");
    let mut times = Times::read(&times_path);
    let (jobs, ignored) = select(arguments, &wanted, &tests, &entries, &times);
    let left_out = if arguments.long {
        0
    } else {
        only_long(&wanted, &tests, &classes)
    };

    interrupt::catch()?;
    println!(
        "built in {:.0} s; {} tests to run",
        built_in.as_secs_f64(),
        jobs.len()
    );
    let runner = Runner {
        built: &built,
        tests: &tests,
        classes: &classes,
        skip_log: &log,
        folder: &folder,
        long: arguments.long,
    };
    let mut progress = Progress::new(jobs.len(), wanted.shown);
    let all = runner.run(Schedule::new(jobs, processors()), &mut progress)?;
    for (test, ended) in &all {
        times.set(&tests[*test].name, ended.wall, ended.cpu);
    }
    times.write(&times_path)?;

    let bad: Vec<(usize, End)> = all
        .iter()
        .map(|(test, ended)| (*test, ended.end))
        .filter(|(_, end)| *end != End::Passed)
        .collect();
    let Judged { unsteady, failures } = again::judge(&bad, !arguments.once, &mut |test| {
        println!("== {} again", tests[test].name);
        run_again(&runner, test, wanted.shown)
    })?;

    if arguments.times {
        say_times(&tests, &all);
    }
    let undeclared = skips::report(&root, &log)?;
    if left_out > 0 {
        println!("\n{left_out} run only with --long");
    }
    let sums = Sums {
        passed: all.len() - failures.len(),
        failed: failures.len(),
        ignored,
    };
    let names = |tests_of: &[usize]| -> Vec<&str> {
        tests_of.iter().map(|test| &*tests[*test].name).collect()
    };
    for (failures, how_often) in [(1, "once"), (2, "twice")] {
        let these: Vec<usize> = unsteady
            .iter()
            .filter(|(_, failed)| *failed == failures)
            .map(|(test, _)| *test)
            .collect();
        if !these.is_empty() {
            println!("\n{} failed {how_often}, and then passed:", these.len());
        }
        for name in names(&these) {
            println!("  {name}");
        }
    }
    println!(
        "\n{} passed, {} failed, {} ignored in {:.0} s ({:.0} s of that to build)",
        sums.passed,
        sums.failed,
        sums.ignored,
        started.elapsed().as_secs_f64(),
        built_in.as_secs_f64()
    );
    if !failures.is_empty() {
        return Err(io::Error::other(format!(
            "failures in: {}",
            names(&failures).join(", ")
        )));
    }
    if all.is_empty() {
        let why = match ignored + left_out {
            0 => "no name has that in it",
            _ => "those that are wanted run only with --long, or --ignored",
        };
        return Err(io::Error::other(format!("no test was run: {why}")));
    }
    if undeclared > 0 && std::env::var_os("CI").is_some_and(|value| value == "true") {
        return Err(io::Error::other(format!(
            "{undeclared} skipped without being declared in tests/declared-skips.txt"
        )));
    }
    Ok(())
}

/// The tests to run, and how many of the wanted ones are ignored.
fn select(
    arguments: &Arguments,
    wanted: &Wanted,
    tests: &[Test],
    entries: &[Entry],
    times: &Times,
) -> (Vec<Job>, usize) {
    let (mut jobs, mut ignored) = (Vec::new(), 0);
    for (index, (test, entry)) in tests.iter().zip(entries).enumerate() {
        let left_out = (arguments.no_e2e && is_end_to_end(test))
            || (entry.class == Class::Long && !arguments.long);
        if left_out || !wanted.by_name(test) {
            continue;
        }
        if !wanted.runs(test) {
            ignored += 1;
            continue;
        }
        jobs.push(Job {
            test: index,
            class: entry.class,
            expected: times.of(&test.name).or(entry.about).unwrap_or_default(),
        });
    }
    (jobs, ignored)
}

/// How many of the wanted tests run only with `--long`.
fn only_long(wanted: &Wanted, tests: &[Test], classes: &[Class]) -> usize {
    let long = tests.iter().zip(classes).filter(|(test, class)| {
        **class == Class::Long && wanted.by_name(test) && wanted.runs(test)
    });
    long.count()
}

/// Modules whose names begin with `e2e_` hold them.
fn is_end_to_end(test: &Test) -> bool {
    test.path().starts_with("e2e_")
}

fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Runs a test that failed once more, alone.
fn run_again(runner: &Runner<'_>, test: usize, shown: bool) -> io::Result<End> {
    let job = Job {
        test,
        class: Class::Alone,
        expected: Duration::ZERO,
    };
    let ended = runner.run(Schedule::new([job], 1), &mut Progress::new(1, shown))?;
    ended
        .first()
        .map(|(_, ended)| ended.end)
        .ok_or_else(|| io::Error::other("a test was not run"))
}

fn say_times(tests: &[Test], all: &[(usize, Ended)]) {
    let times: Vec<_> = all
        .iter()
        .map(|(test, ended)| (&*tests[*test].name, ended.wall, ended.cpu))
        .collect();
    println!("\nthe slowest tests: seconds, seconds of CPU");
    for line in times::slowest(&times) {
        println!("{line}");
    }
    let sum = |time: fn(&Ended) -> Duration| -> f64 {
        all.iter().map(|(_, ended)| time(ended).as_secs_f64()).sum()
    };
    println!(
        "{:7.1} {:7.1}  all",
        sum(|ended| ended.wall),
        sum(|ended| ended.cpu)
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(no_e2e: bool, long: bool) -> Arguments {
        Arguments {
            no_run: false,
            debug: false,
            no_e2e,
            once: false,
            long,
            times: false,
            rest: Vec::new(),
        }
    }

    #[test]
    fn what_is_selected() {
        let test = |name: &str, ignored| Test {
            executable: 0,
            name: name.to_owned(),
            ignored,
        };
        let tests = [
            test("x::a", false),
            test("x::e2e_b::c", false),
            test("x::soak", false),
            test("x::child", true),
        ];
        let classes = Classes::parse("waits ~7 x\nlong x::soak").unwrap();
        let entries = classes.of_all(&tests).unwrap();
        let mut times = Times::default();
        times.set("x::a", Duration::from_secs(3), Duration::ZERO);
        let selected = |no_e2e, long, words: &[&str]| {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            let wanted = Wanted::parse(&words).unwrap();
            let (jobs, ignored) =
                select(&arguments(no_e2e, long), &wanted, &tests, &entries, &times);
            let jobs: Vec<_> = jobs
                .iter()
                .map(|job| (job.test, job.expected.as_secs()))
                .collect();
            (jobs, ignored)
        };
        assert_eq!(selected(false, false, &[]), (vec![(0, 3), (1, 7)], 1));
        assert_eq!(selected(true, true, &[]), (vec![(0, 3), (2, 0)], 1));
        assert_eq!(selected(false, false, &["soak"]), (vec![], 0));
        assert_eq!(selected(false, false, &["--ignored"]).0, [(3, 7)]);
        let classes: Vec<Class> = entries.iter().map(|entry| entry.class).collect();
        assert_eq!(only_long(&Wanted::default(), &tests, &classes), 1);
    }
}
