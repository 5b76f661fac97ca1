//! `cargo xtask test`: all tests, and a summary of what passed and what was skipped.
//!
//! Tests that measure run one at a time, each test binary after the other. A skip is said aloud at the
//! end; with `CI=true` one that is not declared in `tests/declared-skips.txt` is a failure, and so is a
//! missing compiler.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

/// What to run.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Without the end-to-end tests, which need root and some minutes.
    #[arg(long)]
    no_e2e: bool,
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
    let mut failures = Vec::new();

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
    let mut e2e = cargo(
        &root,
        &["test", "--package", "profiler-tests", "--no-fail-fast"],
    );
    if arguments.no_e2e {
        e2e.args(["--lib", "--bins"]);
        for name in test_files(&root)? {
            if !name.starts_with("e2e_") {
                e2e.args(["--test", &name]);
            }
        }
    }
    all.arg("--").args(&arguments.rest);
    e2e.arg("--").arg("--test-threads=1").args(&arguments.rest);
    let go = crate::setup::test_tools().map_err(|failure| io::Error::other(failure.0))?;
    for (name, mut command) in [
        ("unit and documentation tests", all),
        ("end-to-end tests", e2e),
    ] {
        println!("== {name}");
        command.env("PROFILER_SKIP_LOG", &log);
        if let Some(go) = &go {
            command.env("PROFILER_GO", go);
        }
        if !tee(&mut command, &mut sums)? {
            failures.push(name);
        }
    }

    let undeclared = report_skips(&root, &log)?;
    println!(
        "\n{} passed, {} failed, {} ignored in {:.0} s",
        sums.passed,
        sums.failed,
        sums.ignored,
        started.elapsed().as_secs_f64()
    );
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

/// Runs a command, shows its standard output, and adds up the results in it. Gives whether it
/// succeeded.
fn tee(command: &mut Command, sums: &mut Sums) -> io::Result<bool> {
    let mut child = command.stdout(Stdio::piped()).spawn()?;
    let mut stdout = io::stdout();
    if let Some(output) = child.stdout.take() {
        for line in BufReader::new(output).split(b'\n') {
            let line = line?;
            stdout.write_all(&line)?;
            stdout.write_all(b"\n")?;
            sums.add(&String::from_utf8_lossy(&line));
        }
    }
    Ok(child.wait()?.success())
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
