//! When a measured share or amount agrees with the truth.
//!
//! A share of `n` samples is held to be binomial: n independent draws that hit with the true
//! probability. Sampling at regular intervals a load whose slices have random lengths spreads less
//! than that, so the bounds are on the safe side. At four standard deviations a sound profiler fails
//! one check in 16,000.

use crate::stolen;

/// Standard deviations that a result may be off.
pub const SIGMAS: f64 = 4.0;

/// Checks that `hits` of `samples` agree with a true `share` of 0 to 1.
pub fn share(what: &str, hits: usize, samples: usize, share: f64) -> Result<(), String> {
    let (hits_f, n) = (hits as f64, samples as f64);
    let expected = n * share;
    // One sample more is for rounding at the ends of the recording.
    let allowed = SIGMAS * (n * share * (1.0 - share)).sqrt() + 1.0;
    if (hits_f - expected).abs() <= allowed {
        Ok(())
    } else {
        Err(format!(
            "{what}: {hits} of {samples} samples, expected {expected:.0} +- {allowed:.0} \
             ({:.2} % instead of {:.2} %)",
            100.0 * hits_f / n,
            100.0 * share
        ))
    }
}

/// Checks that a share, `hits` of `samples`, is no less than another one, within the standard deviations
/// of both. Of each, one hit and one miss more are counted: that none was missed does not mean that none
/// ever is.
pub fn no_less(
    what: &str,
    (hits, samples): (usize, usize),
    (other_hits, other_samples): (usize, usize),
) -> Result<(), String> {
    let share = |hits, samples| (hits as f64 + 1.0) / (samples as f64 + 2.0);
    let (ours, theirs) = (share(hits, samples), share(other_hits, other_samples));
    let variance = |share: f64, samples| share * (1.0 - share) / (samples as f64 + 2.0);
    let allowed = SIGMAS * (variance(ours, samples) + variance(theirs, other_samples)).sqrt();
    if ours >= theirs - allowed {
        Ok(())
    } else {
        Err(format!(
            "{what}: {hits} of {samples}, but {other_hits} of {other_samples} otherwise; it may be \
             {:.2} % less",
            100.0 * allowed
        ))
    }
}

/// Checks that the weights of `samples` samples add up to the CPU time that was really used, within
/// four standard deviations of a Poisson count, and never more than `at_most` (0 to 1) of it.
///
/// A virtual machine whose processor was taken away skips ticks; perf misses the same ones. What the
/// profiler itself says is missing (`missing_ns`) may be, no more. And the kernel leaves that time out of
/// what it says a thread used, while the clock that ticks goes on: what was taken since the test began may
/// be too much.
///
/// A thread that others take off its processor has up to 5 % too much (docs/performance.md, "What is noise"), which is
/// not allowed for: see `undisturbed`.
pub fn amount(
    what: &str,
    weight_ns: u64,
    truth_ns: u64,
    missing_ns: u64,
    samples: usize,
    at_most: f64,
) -> Result<(), String> {
    let taken_ns = stolen::since_start_ns();
    amount_beside(
        what, weight_ns, truth_ns, missing_ns, taken_ns, samples, at_most,
    )
}

fn amount_beside(
    what: &str,
    weight_ns: u64,
    truth_ns: u64,
    missing_ns: u64,
    taken_ns: u64,
    samples: usize,
    at_most: f64,
) -> Result<(), String> {
    let off = (weight_ns as f64 - truth_ns as f64) / truth_ns as f64;
    let allowed = (SIGMAS / (samples.max(1) as f64).sqrt()).min(at_most);
    let missing = missing_ns as f64 / truth_ns as f64;
    let taken = taken_ns as f64 / truth_ns as f64;
    if off <= allowed + taken && off >= -allowed - missing {
        Ok(())
    } else {
        Err(format!(
            "{what}: {samples} samples stand for {:.1} ms, {:.1} ms were used: {:+.2} %, allowed \
             {:.2} %, {:.2} % said to be missing, and {:.2} % too much by what the machine's host took",
            weight_ns as f64 / 1e6,
            truth_ns as f64 / 1e6,
            100.0 * off,
            100.0 * allowed,
            100.0 * missing,
            100.0 * taken
        ))
    }
}

/// Checks that at least `least` (0 to 1) of all are good.
pub fn at_least(what: &str, good: usize, all: usize, least: f64) -> Result<(), String> {
    if all > 0 && good as f64 >= least * all as f64 {
        Ok(())
    } else {
        Err(format!(
            "{what}: {good} of {all}, expected at least {} %",
            100.0 * least
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_bounded_on_both_sides() {
        assert!(share("half", 500, 1000, 0.5).is_ok());
        assert!(share("half", 560, 1000, 0.5).is_ok());
        assert!(share("half", 570, 1000, 0.5).is_err());
        assert!(share("half", 430, 1000, 0.5).is_err());
    }

    #[test]
    fn of_two_shares_both_may_be_off() {
        assert!(no_less("same", (950, 1000), (950, 1000)).is_ok());
        assert!(no_less("more", (1000, 1000), (900, 1000)).is_ok());
        // Four standard deviations of both are 4.6 %.
        assert!(no_less("a little less", (915, 1000), (950, 1000)).is_ok());
        assert!(no_less("less", (900, 1000), (950, 1000)).is_err());
        assert!(no_less("none", (1000, 1000), (1000, 1000)).is_ok());
        assert!(no_less("a few", (980, 1000), (1000, 1000)).is_err());
    }

    #[test]
    fn amounts_use_the_narrower_bound() {
        assert!(amount("cpu", 1_029, 1_000, 0, 100_000, 0.03).is_err());
        assert!(amount("cpu", 1_012, 1_000, 0, 100_000, 0.03).is_ok());
        assert!(amount("cpu", 1_040, 1_000, 0, 100, 0.03).is_err());
    }

    #[test]
    fn skipped_ticks_may_be_missing_but_never_too_much() {
        assert!(amount("cpu", 960, 1_000, 0, 100_000, 0.03).is_err());
        assert!(amount("cpu", 960, 1_000, 50, 100_000, 0.03).is_ok());
        assert!(amount("cpu", 1_040, 1_000, 50, 100_000, 0.03).is_err());
    }

    #[test]
    fn what_the_host_took_may_be_too_much_but_is_never_missing() {
        assert!(amount_beside("cpu", 1_060, 1_000, 0, 0, 100_000, 0.03).is_err());
        assert!(amount_beside("cpu", 1_060, 1_000, 0, 50, 100_000, 0.03).is_ok());
        assert!(amount_beside("cpu", 1_080, 1_000, 0, 50, 100_000, 0.03).is_err());
        assert!(amount_beside("cpu", 940, 1_000, 0, 50, 100_000, 0.03).is_err());
    }

    #[test]
    fn nothing_is_not_enough() {
        assert!(at_least("named", 0, 0, 0.99).is_err());
        assert!(at_least("named", 99, 100, 0.99).is_ok());
    }
}
