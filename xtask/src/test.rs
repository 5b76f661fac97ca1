//! `cargo xtask test`: all tests, and a summary of what passed and what was skipped.
//!
//! Tests that measure, or load anything into the kernel, run one at a time, each test binary after the
//! other; before them, several at a time, those that do neither. A skip is said aloud at the end; with
//! `CI=true` one that is not declared in `tests/declared-skips.txt` is a failure, and so is a missing
//! compiler.
//!
//! Many tests measure a machine on which others may be at work: shares, times, what a busy processor let
//! pass. One that fails is run again, alone (`again`), which is said at the end whatever comes of it.

mod again;

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use again::{Failed, Judged, Lines};

/// Files of tests that wait for sockets, or calculate: they measure nothing, load nothing into the
/// kernel, and the seconds that they allow are many times what they need. What takes longest comes
/// first. A file that is not listed runs alone.
const BESIDE_OTHERS: &[&str] = &[
    "bytefrog_agent",
    "hq",
    "trace_lines",
    "trace_arguments",
    "bytefrog_agent_faults",
    "go_trace",
    "trace_placement",
    "capture_output",
    "export",
    "unwind_rules",
    "hq_bounds",
    "tcf_channel_sockets",
    "bytefrog_configuration",
    "bytefrog_translate",
    "bytefrog_wire",
    "calls_pairing",
    "capture",
    "capture_fuzz",
    "capture_fuzz_decode",
    "golden_calls",
    "golden_containers",
    "golden_report",
    "golden_report_sums",
    "tcf_channel",
    "tcf_channel_bounds",
    "tcf_client",
    "tcf_wire",
];
/// How many of them at a time: they wait for more than half of theirs.
const AT_A_TIME: usize = 3;

/// What to run.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Without the end-to-end tests, which need root and some minutes.
    #[arg(long)]
    no_e2e: bool,
    /// Don't run again what failed.
    #[arg(long)]
    once: bool,
    /// Passed on to the test binaries: a filter by name, or flags of libtest.
    #[arg(last = true)]
    rest: Vec<String>,
}

/// Sums of libtest's results.
#[derive(Default)]
struct Sums {
    passed: u64,
    failed: u64,
    ignored: u64,
}

/// Runs the tests.
pub(crate) fn run(arguments: &Arguments) -> io::Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("..")
        .canonicalize()?;
    let log = root.join("target/skipped-tests");
    fs::create_dir_all(root.join("target"))?;
    match fs::remove_file(&log) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    install_compilers()?;
    let started = Instant::now();
    let mut sums = Sums::default();

    // The kernel side is built for another target; its package is tested through the others.
    let mut all = cargo(
        &root,
        &[
            "test",
            "--workspace",
            "--exclude",
            "profiler-tests",
            "--no-fail-fast",
        ],
    );
    let mut alone = cargo(
        &root,
        &["test", "--package", "profiler-tests", "--no-fail-fast"],
    );
    alone.args(["--lib", "--bins"]);
    for name in test_files(&root)? {
        let left_out = arguments.no_e2e && name.starts_with("e2e_");
        if !(left_out || BESIDE_OTHERS.contains(&&*name)) {
            alone.args(["--test", &name]);
        }
    }
    all.arg("--").args(&arguments.rest);
    alone
        .arg("--")
        .arg("--test-threads=1")
        .args(&arguments.rest);
    let go = crate::setup::test_tools().map_err(|failure| io::Error::other(failure.0))?;
    let prepare = |command: &mut Command| {
        command.env("PROFILER_SKIP_LOG", &log);
        if let Some(go) = &go {
            command.env("PROFILER_GO", go);
        }
    };
    let mut lines = Lines::default();
    prepare(&mut all);
    run_stage("unit and documentation tests", all, &mut sums, &mut lines)?;
    println!("== tests that run beside others");
    run_beside(&root, &arguments.rest, &prepare, &mut sums, &mut lines)?;
    prepare(&mut alone);
    run_stage("tests that run alone", alone, &mut sums, &mut lines)?;
    let Judged { unsteady, failures } = again::judge(lines, !arguments.once, &mut |failed| {
        run_again(&root, failed, &prepare)
    })?;

    let undeclared = report_skips(&root, &log)?;
    println!(
        "\n{} passed, {} failed, {} ignored in {:.0} s",
        sums.passed,
        sums.failed,
        sums.ignored,
        started.elapsed().as_secs_f64()
    );
    if !unsteady.is_empty() {
        println!("{} of them failed once, and then passed:", unsteady.len());
        for failed in &unsteady {
            println!("  {failed}");
        }
    }
    if !failures.is_empty() {
        return Err(io::Error::other(format!(
            "failures in: {}",
            failures.join(", ")
        )));
    }
    if sums.passed == 0 && arguments.rest.is_empty() {
        return Err(io::Error::other("no test was run"));
    }
    if undeclared > 0 && std::env::var_os("CI").is_some_and(|value| value == "true") {
        return Err(io::Error::other(format!(
            "{undeclared} skipped without being declared in tests/declared-skips.txt"
        )));
    }
    Ok(())
}

/// The workloads are C and C++. Without root the tests say themselves what they lack.
fn install_compilers() -> io::Result<()> {
    let present = |name: &str| {
        let mut command = Command::new(name);
        command
            .arg("--version")
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    if (present("cc") && present("c++")) || !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    crate::setup::install_packages("compilers of the workloads", &["gcc", "g++", "libc6-dev"])
        .map_err(|failure| io::Error::other(failure.to_string()))
}

/// Builds all tests, and runs those of [`BESIDE_OTHERS`], several files at a time. What one of them says
/// is shown when it has ended.
fn run_beside(
    root: &Path,
    rest: &[String],
    prepare: &(dyn Fn(&mut Command) + Sync),
    sums: &mut Sums,
    lines: &mut Lines,
) -> io::Result<()> {
    let mut build = cargo(root, &["test", "--package", "profiler-tests", "--no-run"]);
    build.arg("--quiet");
    prepare(&mut build);
    if !build.status()?.success() {
        lines.append(Lines::default(), "building the tests", false);
        return Ok(());
    }
    let next = AtomicUsize::new(0);
    let ended = Mutex::new((sums, lines));
    let work = || -> io::Result<()> {
        while let Some(name) = BESIDE_OTHERS.get(next.fetch_add(1, Ordering::Relaxed)) {
            let mut command = cargo(root, &["test", "--package", "profiler-tests"]);
            command.args(["--no-fail-fast", "--test", name]);
            command.arg("--").arg("--test-threads=1").args(rest);
            prepare(&mut command);
            let output = command.output()?;
            let mut ended = ended
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner);
            let said = show(name, &output, ended.0)?;
            ended.1.append(said, name, output.status.success());
        }
        Ok(())
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..AT_A_TIME).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|worker| {
            let ended = worker.join();
            ended.unwrap_or_else(|_| Err(io::Error::other("a thread has panicked")))
        })
    })
}

/// Shows what a file of tests said, and adds up the results in it. Gives what it said of failures.
fn show(name: &str, output: &Output, sums: &mut Sums) -> io::Result<Lines> {
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "-- {name}")?;
    // What cargo says, and tests that write past the harness.
    stdout.write_all(&output.stderr)?;
    stdout.write_all(&output.stdout)?;
    let mut lines = Lines::default();
    // The tests' list of failures is on the one, cargo's word of what they are in on the other.
    for stream in [&output.stdout, &output.stderr] {
        for line in String::from_utf8_lossy(stream).lines() {
            sums.add(line);
            lines.add(line);
        }
    }
    Ok(lines)
}

fn cargo(root: &Path, arguments: &[&str]) -> Command {
    let mut command = crate::process::cargo();
    command
        .args(arguments)
        .current_dir(root)
        .stdin(Stdio::null());
    command
}

/// Names of the integration tests of the package `profiler-tests`.
fn test_files(root: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(root.join("tests/tests"))? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "rs")
            && let Some(name) = path.file_stem()
        {
            names.push(name.to_string_lossy().into_owned());
        }
    }
    names.sort();
    Ok(names)
}

/// Runs tests, which are called `what`.
fn run_stage(
    what: &str,
    mut command: Command,
    sums: &mut Sums,
    lines: &mut Lines,
) -> io::Result<()> {
    println!("== {what}");
    let (passed, said) = tee(&mut command, sums)?;
    lines.append(said, what, passed);
    Ok(())
}

/// Runs a test that failed once more: whether it passes. A name that no test has does not.
fn run_again(root: &Path, failed: &Failed, prepare: &dyn Fn(&mut Command)) -> io::Result<bool> {
    println!("== {failed} again");
    let mut command = cargo(root, &["test"]);
    command.args(failed.target.split(' '));
    command.args(["--", "--test-threads=1", "--exact", &failed.name]);
    prepare(&mut command);
    let mut sums = Sums::default();
    let (passed, _) = tee(&mut command, &mut sums)?;
    Ok(passed && sums.passed > 0)
}

/// Runs a command, shows its output, and adds up the results in it. Gives whether it succeeded, and
/// what it said of failures.
fn tee(command: &mut Command, sums: &mut Sums) -> io::Result<(bool, Lines)> {
    // One pipe for both, since cargo says on the one which file the tests on the other are of.
    let (output, into) = io::pipe()?;
    command.stdout(into.try_clone()?).stderr(into);
    let mut child = command.spawn()?;
    // The command holds the ends to write to, behind which the output would never end.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut stdout = io::stdout();
    let mut lines = Lines::default();
    for line in BufReader::new(output).split(b'\n') {
        let line = line?;
        stdout.write_all(&line)?;
        stdout.write_all(b"\n")?;
        let line = String::from_utf8_lossy(&line);
        sums.add(&line);
        lines.add(&line);
    }
    Ok((child.wait()?.success(), lines))
}

impl Sums {
    /// Adds `test result: ok. 3 passed; 0 failed; 1 ignored; ...`.
    fn add(&mut self, line: &str) {
        let Some((_, counts)) = line
            .strip_prefix("test result: ")
            .and_then(|result| result.split_once(". "))
        else {
            return;
        };
        for part in counts.split("; ") {
            match part.split_once(' ') {
                Some((count, "passed")) => self.passed += count.parse().unwrap_or(0),
                Some((count, "failed")) => self.failed += count.parse().unwrap_or(0),
                Some((count, "ignored")) => self.ignored += count.parse().unwrap_or(0),
                _ => {}
            }
        }
    }
}

/// Lists the skips, and counts those that are not declared.
fn report_skips(root: &Path, log: &PathBuf) -> io::Result<usize> {
    let skips = match fs::read_to_string(log) {
        Ok(text) => parse_skips(&text),
        Err(error) if error.kind() == io::ErrorKind::NotFound => BTreeMap::new(),
        Err(error) => return Err(error),
    };
    if skips.is_empty() {
        println!("\nno test was skipped");
        return Ok(0);
    }
    let declared = parse_declared(&fs::read_to_string(root.join("tests/declared-skips.txt"))?);
    let mut undeclared = 0;
    println!("\n{} skipped:", skips.len());
    for (test, reason) in &skips {
        let known = declared.contains_key(test);
        undeclared += usize::from(!known);
        println!(
            "  {test}: {reason}{}",
            if known { " (declared)" } else { "" }
        );
    }
    Ok(undeclared)
}

/// Lines `test<TAB>reason` or `test: reason`.
fn parse_skips(text: &str) -> BTreeMap<String, String> {
    text.lines()
        .filter_map(|line| line.split_once('\t').or_else(|| line.split_once(": ")))
        .map(|(test, reason)| (test.to_owned(), reason.to_owned()))
        .collect()
}

/// Lines `test: reason`; `#` begins a comment.
fn parse_declared(text: &str) -> BTreeMap<String, String> {
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split_once(": "))
        .map(|(test, reason)| (test.to_owned(), reason.to_owned()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_added_up() {
        let mut sums = Sums::default();
        sums.add("test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 2 filtered out; finished in 0.00s");
        sums.add("test result: FAILED. 4 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out");
        sums.add("test e2e_x::y ... ok");
        assert_eq!((sums.passed, sums.failed, sums.ignored), (7, 2, 1));
    }

    #[test]
    fn what_runs_beside_others_exists_and_is_no_end_to_end_test() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let files = test_files(&root).unwrap();
        for name in BESIDE_OTHERS {
            assert!(files.iter().any(|file| file == name), "{name}");
            assert!(!name.starts_with("e2e_"), "{name}");
        }
    }

    #[test]
    fn skips_and_declarations() {
        let skips =
            parse_skips("e2e_a::b\tneeds root\nbroken line\ne2e_a::b\tneeds root\nc: d: e\n");
        assert_eq!(skips.len(), 2);
        assert_eq!(skips["c"], "d: e");
        let declared = parse_declared("# comment: x\n\ne2e_a::b: no hardware PMU\n");
        assert_eq!(declared.len(), 1);
        assert!(declared.contains_key("e2e_a::b"));
    }
}
