//! How often samples are taken: a sample and its source -> which part of such samples to keep.
//!
//! A timer's sample says its period itself (its weight), so that samples which were under way while the
//! frequency changed are taken for what they are. Frequencies are samples per second and processor,
//! periods nanoseconds.

use crate::thin::WHOLE;
use profiler_model::*;

/// Nanoseconds of a second.
const SECOND_NS: u64 = 1_000_000_000;

/// How often samples of a kind are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Pace {
    /// That is not known, or not by time.
    Unknown,
    /// One in so many nanoseconds, rounded down.
    PeriodNs(u64),
    /// So many per second, as an aim.
    Hz(u64),
}

impl Pace {
    /// Of a sample and what made it, if that is known.
    pub(crate) fn of(sample: &Sample, source: Option<&Source>) -> Pace {
        let Some(source) = source else {
            return Pace::Unknown;
        };
        let is_regular = source.frequency_hz.is_some() || source.period.is_some();
        match (source.unit, source.frequency_hz) {
            (Unit::Nanoseconds, _) if is_regular && sample.weight > 0 => {
                Pace::PeriodNs(sample.weight)
            }
            (_, Some(hz)) if hz > 0 => Pace::Hz(hz),
            _ => Pace::Unknown,
        }
    }

    /// The mass that makes samples of this pace some of that frequency: see `thin`.
    pub(crate) fn mass(self, wanted_hz: u64) -> u64 {
        match self {
            Pace::Unknown => WHOLE,
            // Of a period of 10,101,010 ns, 99 Hz are all.
            Pace::PeriodNs(ns) if wanted_hz.saturating_mul(ns.saturating_add(1)) > SECOND_NS => {
                WHOLE
            }
            Pace::PeriodNs(ns) => wanted_hz * ns,
            Pace::Hz(hz) if wanted_hz >= hz => WHOLE,
            Pace::Hz(hz) => {
                let mass = u128::from(wanted_hz) * u128::from(WHOLE) / u128::from(hz);
                mass as u64
            }
        }
    }

    /// As a frequency; 0 if it is none.
    pub(crate) fn frequency_hz(self) -> u64 {
        match self {
            Pace::Unknown => 0,
            Pace::PeriodNs(ns) => (SECOND_NS + ns / 2) / ns.max(1),
            Pace::Hz(hz) => hz,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_frequency_keeps_all_of_its_own_samples() {
        for hz in 1..=20_000 {
            let pace = Pace::PeriodNs(SECOND_NS / hz);
            assert_eq!(pace.mass(hz), WHOLE, "{hz} Hz");
            assert_eq!(pace.frequency_hz(), hz);
            if hz > 1 {
                let less = pace.mass(hz - 1);
                let exact = WHOLE as f64 * (hz - 1) as f64 / hz as f64;
                assert!(less < WHOLE && (less as f64 - exact).abs() <= hz as f64);
            }
        }
    }

    #[test]
    fn aims_and_unknown_paces() {
        assert_eq!(Pace::Hz(1000).mass(250), WHOLE / 4);
        assert_eq!(Pace::Hz(1000).mass(1000), WHOLE);
        assert_eq!(Pace::Unknown.mass(1), WHOLE);
        assert_eq!(Pace::PeriodNs(u64::MAX).mass(u64::MAX), WHOLE);
        assert_eq!(Pace::PeriodNs(1).mass(1), 1);
    }
}
