//! Sample intervals: what is asked for -> the nearest one that is supported, at or above.
//!
//! Sessions share one clock, whose ticks are the samples of all of them: each interval is a multiple of its period. Its
//! frequency is a whole number that divides a second, so that the period is exact. Intervals below the `coarse` one are
//! multiples of the `fine` one, all others of the coarse one, which keeps the shared clock slow where nobody needs it
//! fast. What does not belong here: who ticks.

use super::error::{Error, ErrorName};

const SECOND_NS: u64 = 1_000_000_000;
/// The shortest interval is 0.2 ms.
const FINE_HZ: u64 = 5_000;
/// Intervals from here on are multiples of 1 ms.
const COARSE_HZ: u64 = 1_000;
/// The longest interval: a day.
pub const MAX_INTERVAL_MS: f64 = 86_400_000.0;

/// The intervals that there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Intervals {
    /// The shortest, of which those below `coarse_ns` are multiples.
    pub fine_ns: u64,
    /// All others are multiples of this, which is a multiple of `fine_ns`.
    pub coarse_ns: u64,
}

impl Intervals {
    /// With a clock that ticks no more often than this.
    pub fn up_to(limit_hz: u64) -> Intervals {
        let divides = |hz: &u64| SECOND_NS.is_multiple_of(*hz);
        let coarse_hz = (1..=limit_hz.min(COARSE_HZ)).rev().find(divides);
        let coarse_ns = SECOND_NS / coarse_hz.unwrap_or(1);
        let fits = |hz: &u64| divides(hz) && coarse_ns.is_multiple_of(SECOND_NS / hz);
        let fine_hz = (1..=limit_hz.min(FINE_HZ)).rev().find(fits);
        Intervals {
            fine_ns: fine_hz.map_or(coarse_ns, |hz| SECOND_NS / hz),
            coarse_ns,
        }
    }

    /// Multiples of the period of a clock that ticks already.
    pub fn multiples_of(period_ns: u64) -> Intervals {
        Intervals {
            fine_ns: period_ns.max(1),
            coarse_ns: period_ns.max(1),
        }
    }

    /// The nearest at or above, in nanoseconds. Below 0 there is none, nor beyond [`MAX_INTERVAL_MS`].
    pub fn at_or_above(&self, asked_ms: f64) -> Result<u64, Error> {
        if asked_ms.is_nan() {
            let text = "sampleInterval is not a number";
            return Err(Error::new(ErrorName::TypeError, text));
        }
        if asked_ms < 0.0 {
            let text = format!("sampleInterval is {asked_ms:?} ms: it can't be less than 0");
            return Err(Error::new(ErrorName::RangeError, text));
        }
        if asked_ms > MAX_INTERVAL_MS {
            let text = format!("sampleInterval is more than a day ({MAX_INTERVAL_MS} ms)");
            return Err(Error::new(ErrorName::RangeError, text));
        }
        let multiple = |of_ns: u64| {
            // To a billionth: 10.1 ms is no more than 101 times 0.1 ms, though no such number is exact.
            let times = (asked_ms * 1e6 / of_ns as f64 * (1.0 - 1e-9)).ceil();
            of_ns.saturating_mul((times as u64).max(1))
        };
        let fine = multiple(self.fine_ns);
        Ok(match fine < self.coarse_ns {
            true => fine,
            false => multiple(self.coarse_ns),
        })
    }

    /// The lowest frequency whose ticks serve all of these, in samples per second; none without any.
    pub fn frequency_hz(&self, intervals_ns: impl IntoIterator<Item = u64>) -> Option<u64> {
        let period = intervals_ns.into_iter().reduce(divisor)?;
        let period = divisor(period, SECOND_NS).max(1);
        Some(SECOND_NS / period)
    }
}

/// The greatest number that divides both.
fn divisor(a: u64, b: u64) -> u64 {
    match b {
        0 => a,
        b => divisor(b, a % b),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn the_nearest_at_or_above_is_given() {
        let all = Intervals::up_to(100_000);
        assert_eq!((all.fine_ns, all.coarse_ns), (MS / 5, MS));
        for (asked, effective) in [
            (0.0, MS / 5),
            (1e-300, MS / 5),
            (0.2, MS / 5),
            (0.21, MS * 2 / 5),
            (0.9, MS),
            (1.0, MS),
            (1.2, 2 * MS),
            (7.0, 7 * MS),
            (10.0, 10 * MS),
            (10.000_001, 11 * MS),
            (MAX_INTERVAL_MS, 86_400_000 * MS),
        ] {
            assert_eq!(all.at_or_above(asked), Ok(effective), "{asked}");
        }
        let named = |asked| all.at_or_above(asked).map_err(|error| error.name);
        assert_eq!(named(-1e-9), Err(ErrorName::RangeError));
        assert_eq!(named(f64::NEG_INFINITY), Err(ErrorName::RangeError));
        assert_eq!(named(f64::INFINITY), Err(ErrorName::RangeError));
        assert_eq!(named(f64::NAN), Err(ErrorName::TypeError));
        assert_eq!(named(-0.0), Ok(MS / 5));
        let message = all.at_or_above(-1e-300).unwrap_err().message;
        assert!(message.contains("is -1e-300 ms"), "{message}");
    }

    #[test]
    fn a_slow_clock_has_long_intervals() {
        for (limit, fine, coarse) in [
            (1000, MS, MS),
            (999, 1_250_000, 1_250_000),
            (99, 12_500_000, 12_500_000),
            (1, 1000 * MS, 1000 * MS),
            (0, 1000 * MS, 1000 * MS),
            (1600, MS, MS),
            (2000, MS / 2, MS),
        ] {
            let intervals = Intervals::up_to(limit);
            let (is_fine, is_coarse) = (intervals.fine_ns, intervals.coarse_ns);
            assert_eq!((is_fine, is_coarse), (fine, coarse), "{limit}");
        }
        let recorded = Intervals::multiples_of(10_101_010);
        assert_eq!(recorded.at_or_above(10.0), Ok(10_101_010));
        assert_eq!(recorded.at_or_above(15.0), Ok(20_202_020));
    }

    #[test]
    fn one_clock_serves_all() {
        let all = Intervals::up_to(5000);
        let hz = |ms: &[f64]| {
            let intervals = ms.iter().map(|&ms| all.at_or_above(ms).unwrap());
            all.frequency_hz(intervals)
        };
        assert_eq!(hz(&[]), None);
        assert_eq!(hz(&[10.0]), Some(100));
        assert_eq!(hz(&[7.0]), Some(1000));
        assert_eq!(hz(&[7.0, 10.0]), Some(1000));
        assert_eq!(hz(&[16.0]), Some(125));
        assert_eq!(hz(&[0.4]), Some(2500));
        assert_eq!(hz(&[0.6, 100.0]), Some(5000));
        assert_eq!(hz(&[86_400_000.0]), Some(1));
    }

    proptest! {
        #[test]
        fn the_clock_is_within_its_limit_and_each_interval_a_multiple(
            limit in 1..200_000u64,
            asked in prop::collection::vec(0.0..100_000.0, 1..8),
        ) {
            let all = Intervals::up_to(limit);
            let intervals: Vec<u64> = asked.iter().map(|&ms| all.at_or_above(ms).unwrap()).collect();
            let hz = all.frequency_hz(intervals.iter().copied()).unwrap();
            prop_assert!(hz <= limit.min(FINE_HZ) && SECOND_NS.is_multiple_of(hz), "{hz}");
            for (asked, interval) in asked.iter().zip(&intervals) {
                prop_assert_eq!(interval % (SECOND_NS / hz), 0);
                let (asked, interval) = (asked * 1e6, *interval as f64);
                prop_assert!(interval >= asked - asked * 1e-9 - 1.0);
                prop_assert!(interval < asked + all.coarse_ns as f64 + 1.0);
            }
        }
    }
}
