//! Tests that failed -> run again, alone -> which of them fail, and which are unsteady.
//!
//! A sampled share is off by chance now and then, and a processor that was given to somebody else for 50 ms
//! lets things pass that no profiler sees, or a deadline pass. With hundreds of such tests one of them fails
//! in most runs, however wide their bounds are, unless they are so wide that they find nothing. A real fault
//! fails again. Many unsteady ones at once are a fault too: of the machine, or of all of it.
//!
//! What does not belong here: crashes and tests that hang, which are right or wrong.

use std::io;

use super::child::End;

/// How often a test that failed is run again before it counts as failed.
const RUNS: usize = 2;
/// With more failures than that, nothing is run again.
const MOST_UNSTEADY: usize = 12;

/// What became of tests that failed.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Judged {
    /// They passed when they were run again; and how often they had failed.
    pub(super) unsteady: Vec<(usize, usize)>,
    pub(super) failures: Vec<usize>,
}

/// Runs tests that failed again, if they are `to_run`, by `run`, which says how one ends.
pub(super) fn judge(
    bad: &[(usize, End)],
    to_run: bool,
    run: &mut dyn FnMut(usize) -> io::Result<End>,
) -> io::Result<Judged> {
    let mut judged = Judged::default();
    let failed = bad.iter().filter(|(_, end)| *end == End::Failed).count();
    let to_run = to_run && failed <= MOST_UNSTEADY;
    for &(test, end) in bad {
        let (mut end, mut failures) = (end, 0);
        while end == End::Failed && to_run && failures < RUNS {
            failures += 1;
            end = run(test)?;
        }
        match end {
            End::Passed => judged.unsteady.push((test, failures)),
            _ => judged.failures.push(test),
        }
    }
    Ok(judged)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Judges, with a run's end for each test that is run again; gives how often each was.
    fn judged(bad: &[(usize, End)], ends: &mut dyn FnMut(usize) -> End) -> (Judged, Vec<usize>) {
        let mut runs = Vec::new();
        let judged = judge(bad, true, &mut |test| {
            runs.push(test);
            Ok(ends(test))
        });
        (judged.unwrap(), runs)
    }

    #[test]
    fn what_fails_again_has_failed() {
        let bad = [(4, End::Failed), (7, End::Failed), (9, End::Failed)];
        let mut second = 0;
        let (judged, runs) = judged(&bad, &mut |test| match test {
            4 => End::Passed,
            7 => {
                second += 1;
                if second == 2 {
                    End::Passed
                } else {
                    End::Failed
                }
            }
            _ => End::Failed,
        });
        assert_eq!(judged.unsteady, [(4, 1), (7, 2)]);
        assert_eq!(judged.failures, [9]);
        assert_eq!(runs, [4, 7, 7, 9, 9]);
    }

    #[test]
    fn crashes_hangs_and_what_is_not_there_are_failures_at_once() {
        let bad = [
            (1, End::Crashed(Some(11))),
            (2, End::Hung),
            (3, End::Missing),
        ];
        let (first, runs) = judged(&bad, &mut |_| End::Passed);
        assert_eq!(first.failures, [1, 2, 3]);
        assert_eq!(runs, [0; 0]);
        // Also when a test that failed crashes when it is run again.
        let (second, runs) = judged(&[(5, End::Failed)], &mut |_| End::Crashed(None));
        assert_eq!(second.failures, [5]);
        assert_eq!(runs, [5]);
    }

    #[test]
    fn many_failures_are_not_run_again() {
        let all: Vec<_> = (0..=MOST_UNSTEADY)
            .map(|test| (test, End::Failed))
            .collect();
        let (many, runs) = judged(&all, &mut |_| End::Passed);
        assert_eq!(many.failures.len(), MOST_UNSTEADY + 1);
        assert_eq!(runs, [0; 0]);
        let (most, runs) = judged(&all[1..], &mut |_| End::Passed);
        assert_eq!((most.failures.len(), runs.len()), (0, MOST_UNSTEADY));
        let once = judge(&all[..1], false, &mut |_| unreachable!()).unwrap();
        assert_eq!(once.failures, [0]);
    }
}
