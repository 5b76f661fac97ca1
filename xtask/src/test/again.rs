//! Tests that failed -> run again -> which of them fail, and which are unsteady.
//!
//! A sampled share is off by chance now and then, and a processor that was given to somebody else for 50 ms
//! lets things pass that no profiler sees. With hundreds of such tests one of them fails in most runs,
//! however wide their bounds are, unless they are so wide that they find nothing. A real fault fails again.
//! Many unsteady ones at once are a fault too: of the machine, or of all of it.
//!
//! What does not belong here: tests that measure nothing, which are right or wrong.

use std::fmt;
use std::io;

/// How often a test that failed is run again before it counts as failed.
const RUNS: usize = 2;
/// With more failures than that, nothing is run again.
const MOST_UNSTEADY: usize = 12;

/// A test that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failed {
    /// The file of tests.
    pub(super) file: String,
    /// Its name within that.
    pub(super) name: String,
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}::{}", self.file, self.name)
    }
}

/// Reads what cargo and the harness print, line by line.
#[derive(Default)]
pub(super) struct Lines {
    file: Option<String>,
    in_list: bool,
    failed: Vec<Failed>,
    /// What cargo says has failed: options that name it.
    targets: Vec<String>,
}

impl Lines {
    pub(super) fn add(&mut self, line: &str) {
        if let Some(file) = file_of(line) {
            self.file = file;
            self.in_list = false;
        } else if let Some(target) = target_of(line) {
            self.targets.push(target);
        } else if line == "failures:" {
            self.in_list = true;
        } else if line.starts_with("test result: ") {
            self.in_list = false;
        } else if self.in_list
            && let Some(name) = line.strip_prefix("    ")
            && is_path(name)
            && let Some(file) = &self.file
        {
            let failed = Failed {
                file: file.clone(),
                name: name.to_owned(),
            };
            // The names come behind what the tests have printed, where the same line may be by chance.
            if !self.failed.contains(&failed) {
                self.failed.push(failed);
            }
        }
    }
}

/// `     Running tests/NAME.rs (target/debug/deps/NAME-0123456789abcdef)`: the name; none of what is not an
/// integration test.
fn file_of(line: &str) -> Option<Option<String>> {
    let (source, _) = line
        .trim_start()
        .strip_prefix("Running ")?
        .split_once(" (")?;
    let name = source
        .strip_prefix("tests/")
        .and_then(|name| name.strip_suffix(".rs"));
    Some(name.map(str::to_owned))
}

/// ``error: test failed, to rerun pass `-p PACKAGE --test NAME` ``: the options.
fn target_of(line: &str) -> Option<String> {
    let (_, options) = line.strip_prefix("error: test failed")?.split_once('`')?;
    Some(options.split('`').next()?.to_owned())
}

fn is_path(name: &str) -> bool {
    let is_part = |character: char| character.is_alphanumeric() || "_:".contains(character);
    !name.is_empty() && name.chars().all(is_part)
}

/// What became of tests that failed.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Judged {
    /// They passed when they were run again.
    pub(super) unsteady: Vec<Failed>,
    /// What has failed, for people.
    pub(super) failures: Vec<String>,
}

/// Runs tests that failed again, if they are `to_run`, by `run`, which says whether one passes.
pub(super) fn judge(
    lines: Lines,
    to_run: bool,
    run: &mut dyn FnMut(&Failed) -> io::Result<bool>,
) -> io::Result<Judged> {
    let mut judged = Judged::default();
    let Lines {
        failed, targets, ..
    } = lines;
    if targets.is_empty() {
        // Nothing was built, or cargo was killed.
        judged.failures.push("tests that run alone".to_owned());
    }
    // What crashed has no list of tests.
    let has_list = |target: &String| {
        let mut files = failed
            .iter()
            .map(|failed| format!("--test {}", failed.file));
        files.any(|file| target.ends_with(&file))
    };
    let crashed = targets.iter().filter(|target| !has_list(target));
    judged.failures.extend(crashed.cloned());
    let to_run = to_run && failed.len() <= MOST_UNSTEADY;
    for failed in failed {
        let mut passed = false;
        for _ in 0..if to_run { RUNS } else { 0 } {
            passed = run(&failed)?;
            if passed {
                break;
            }
        }
        if passed {
            judged.unsteady.push(failed);
        } else {
            judged.failures.push(failed.to_string());
        }
    }
    Ok(judged)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "\
     Running unittests src/lib.rs (target/debug/deps/profiler_tests-00)
test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s
     Running tests/e2e_one.rs (target/debug/deps/e2e_one-5fd7ca55a1a8c0cc)

running 3 tests
test good ... ok
test inner::bad ... FAILED
test worse ... FAILED

failures:

---- inner::bad stdout ----
thread 'inner::bad' panicked
    at some place
    worse

failures:
    inner::bad
    worse

test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.00s

error: test failed, to rerun pass `-p profiler-tests --test e2e_one`
     Running tests/e2e_two.rs (target/debug/deps/e2e_two-ea8f8278c7db45dd)
    good
test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 2.73s
";

    fn failed(file: &str, name: &str) -> Failed {
        Failed {
            file: file.to_owned(),
            name: name.to_owned(),
        }
    }

    fn lines(text: &str) -> Lines {
        let mut lines = Lines::default();
        text.lines().for_each(|line| lines.add(line));
        lines
    }

    fn of(failed: Vec<Failed>) -> Lines {
        let target = |failed: &Failed| format!("-p profiler-tests --test {}", failed.file);
        Lines {
            targets: failed.iter().map(target).collect(),
            failed,
            ..Lines::default()
        }
    }

    #[test]
    fn failures_are_found_with_their_files() {
        let mut lines = lines(OUTPUT);
        lines.failed.sort_by(|a, b| a.name.cmp(&b.name));
        let expected = [failed("e2e_one", "inner::bad"), failed("e2e_one", "worse")];
        assert_eq!(lines.failed, expected);
        assert_eq!(lines.targets, ["-p profiler-tests --test e2e_one"]);
    }

    #[test]
    fn what_fails_again_has_failed() {
        let (steady, chance) = (failed("a", "steady"), failed("b", "chance"));
        let mut runs = Vec::new();
        let lines = of(vec![steady.clone(), chance.clone()]);
        let judged = judge(lines, true, &mut |failed| {
            runs.push(failed.clone());
            Ok(failed.file == "b" && runs.len() > RUNS + 1)
        });
        let expected = Judged {
            unsteady: vec![chance],
            failures: vec!["a::steady".to_owned()],
        };
        assert_eq!(judged.unwrap(), expected);
        assert_eq!(runs.len(), 2 * RUNS);
    }

    #[test]
    fn a_crash_is_a_failure_whatever_else_passes() {
        let mut text = OUTPUT.to_owned();
        text += "error: test failed, to rerun pass `-p profiler-tests --test e2e_two`\n\n\
                 Caused by:\n  process didn't exit successfully: (signal: 11, SIGSEGV)\n";
        let judged = judge(lines(&text), true, &mut |_| Ok(true)).unwrap();
        assert_eq!(judged.failures, ["-p profiler-tests --test e2e_two"]);
        assert_eq!(judged.unsteady.len(), 2);
    }

    #[test]
    fn what_can_not_be_run_again_has_failed() {
        let mut never = |_: &Failed| -> io::Result<bool> { panic!("run again") };
        let none = judge(Lines::default(), true, &mut never).unwrap();
        assert_eq!(none.failures, ["tests that run alone"]);
        let once = judge(of(vec![failed("a", "b")]), false, &mut never).unwrap();
        assert_eq!(once.failures, ["a::b"]);
        let many = (0..=MOST_UNSTEADY).map(|n| failed("a", &n.to_string()));
        let many = judge(of(many.collect()), true, &mut never).unwrap();
        assert_eq!(many.failures.len(), MOST_UNSTEADY + 1);
    }
}
