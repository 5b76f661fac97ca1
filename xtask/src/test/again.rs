//! Tests that failed -> run again, alone -> which of them fail, and which are unsteady.
//!
//! A sampled share is off by chance now and then, and a processor that was given to somebody else for 50 ms
//! lets things pass that no profiler sees, or a deadline pass. With hundreds of such tests one of them fails
//! in most runs, however wide their bounds are, unless they are so wide that they find nothing. A real fault
//! fails again. Many unsteady ones at once are a fault too: of the machine, or of all of it.
//!
//! What does not belong here: crashes and documentation tests, which are right or wrong.

use std::fmt;
use std::io;

/// How often a test that failed is run again before it counts as failed.
const RUNS: usize = 2;
/// With more failures than that, nothing is run again.
const MOST_UNSTEADY: usize = 12;

/// A test that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failed {
    /// Options of `cargo test` that name what it is in: `-p PACKAGE --test FILE`.
    pub(super) target: String,
    /// Its name within that.
    pub(super) name: String,
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} -- {}", self.target, self.name)
    }
}

/// Reads what the harness and cargo print, line by line.
#[derive(Debug, Default)]
pub(super) struct Lines {
    in_list: bool,
    /// The list of failures of what was run last.
    list: Vec<String>,
    failed: Vec<Failed>,
    /// What failed without a list: it crashed.
    crashed: Vec<String>,
}

impl Lines {
    pub(super) fn add(&mut self, line: &str) {
        if let Some(target) = target_of(line) {
            if self.list.is_empty() {
                self.crashed.push(target.to_owned());
            }
            self.failed.extend(self.list.drain(..).map(|name| Failed {
                target: target.to_owned(),
                name,
            }));
        } else if line == "failures:" {
            // Twice: first with what the tests have printed, in which anything may be.
            self.in_list = true;
            self.list.clear();
        } else if line.starts_with("test result: ") {
            self.in_list = false;
        } else if self.in_list
            && let Some(name) = line.strip_prefix("    ")
            && is_path(name)
        {
            self.list.push(name.to_owned());
        }
    }

    /// Adds the output of something else, called `what`, that has ended, and whether it `passed`.
    pub(super) fn append(&mut self, other: Lines, what: &str, passed: bool) {
        if !passed && other.failed.is_empty() && other.crashed.is_empty() {
            // Nothing was built, or cargo was killed.
            self.crashed.push(what.to_owned());
        }
        self.failed.extend(other.failed);
        self.crashed.extend(other.crashed);
    }
}

/// ``error: test failed, to rerun pass `-p PACKAGE --test NAME` ``: the options.
fn target_of(line: &str) -> Option<&str> {
    let (_, options) = line.strip_prefix("error: test failed")?.split_once('`')?;
    options.split('`').next()
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
    let Lines {
        failed, crashed, ..
    } = lines;
    let mut judged = Judged {
        failures: crashed,
        ..Judged::default()
    };
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

    fn failed(target: &str, name: &str) -> Failed {
        Failed {
            target: target.to_owned(),
            name: name.to_owned(),
        }
    }

    fn lines(text: &str) -> Lines {
        let mut lines = Lines::default();
        text.lines().for_each(|line| lines.add(line));
        lines
    }

    fn of(failed: Vec<Failed>) -> Lines {
        Lines {
            failed,
            ..Lines::default()
        }
    }

    #[test]
    fn failures_are_found_with_what_they_are_in() {
        let text = OUTPUT.to_owned()
            + &OUTPUT.replace("-p profiler-tests --test e2e_one", "-p profiler --lib");
        let lines = lines(&text);
        let names = ["inner::bad", "worse"];
        let expected = ["-p profiler-tests --test e2e_one", "-p profiler --lib"]
            .map(|target| names.map(|name| failed(target, name)));
        assert_eq!(lines.failed, expected.concat());
        assert!(lines.crashed.is_empty());
    }

    #[test]
    fn what_fails_again_has_failed() {
        let (steady, chance) = (failed("a", "steady"), failed("b", "chance"));
        let mut runs = Vec::new();
        let lines = of(vec![steady.clone(), chance.clone()]);
        let judged = judge(lines, true, &mut |failed| {
            runs.push(failed.clone());
            Ok(failed.target == "b" && runs.len() > RUNS + 1)
        });
        let expected = Judged {
            unsteady: vec![chance],
            failures: vec!["a -- steady".to_owned()],
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
    fn what_fails_without_a_word_has_failed() {
        let mut all = lines(OUTPUT);
        all.append(lines("error: could not compile"), "these", false);
        all.append(lines("test result: ok. 3 passed"), "others", true);
        let judged = judge(all, true, &mut |_| Ok(true)).unwrap();
        assert_eq!(judged.failures, ["these"]);
        assert_eq!(judged.unsteady.len(), 2);
    }

    #[test]
    fn what_is_not_to_be_run_again_has_failed() {
        let mut never = |_: &Failed| -> io::Result<bool> { panic!("run again") };
        let once = judge(of(vec![failed("a", "b")]), false, &mut never).unwrap();
        assert_eq!(once.failures, ["a -- b"]);
        let many = (0..=MOST_UNSTEADY).map(|n| failed("a", &n.to_string()));
        let many = judge(of(many.collect()), true, &mut never).unwrap();
        assert_eq!(many.failures.len(), MOST_UNSTEADY + 1);
    }
}
