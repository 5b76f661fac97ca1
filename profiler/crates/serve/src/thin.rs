//! Thinning: samples at one frequency -> those of a lower one, without bias.
//!
//! Each sample has a mass below 1, the part of such samples that are to be kept. Laid end to end, the
//! masses fill strata of length 1; in each stratum one point is drawn at random and the sample that
//! covers it is kept. A sample that lies across two strata is not kept twice: the draw in the second one
//! is made such that its chance still is its mass. (This is Deville's systematic sampling, 1998.) So
//!
//! - each sample is kept with a chance of exactly its mass, whatever pattern the samples have;
//! - after any n samples of mass m, the number of those kept is within 1 of n * m;
//! - masses may change from sample to sample.
//!
//! Masses are whole numbers of billionths: nothing drifts. What does not belong here: which frequency
//! samples have.

/// The mass of a sample that is kept for sure.
pub(crate) const WHOLE: u64 = 1_000_000_000;

/// Random numbers: splitmix64. Not for secrets; seeded so that no target can foretell them.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    /// Starts here.
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// Starts where nobody knows.
    pub(crate) fn unforeseen() -> Random {
        use std::hash::{BuildHasher, Hasher};
        let state = std::collections::hash_map::RandomState::new();
        Random(state.build_hasher().finish())
    }

    /// The next number.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`; 0 if that is 0.
    fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(end)) >> 64) as u64
    }
}

/// Draws which samples of a stream are kept.
#[derive(Clone, Debug)]
pub(crate) struct Thinner {
    random: Random,
    /// How much of the stratum is behind.
    at: u64,
    /// The point drawn in this stratum. It is behind if its sample was kept.
    point: u64,
}

impl Thinner {
    /// With random numbers of its own.
    pub(crate) fn new(mut random: Random) -> Thinner {
        let point = random.below(WHOLE);
        Thinner {
            random,
            at: 0,
            point,
        }
    }

    /// Whether the next sample, of this mass, is kept.
    pub(crate) fn keeps(&mut self, mass: u64) -> bool {
        if mass >= WHOLE {
            return true;
        }
        let start = self.at;
        let end = start + mass;
        let here = (start..end).contains(&self.point);
        if end < WHOLE {
            self.at = end;
            return here;
        }
        // It reaches `over` far into the next stratum.
        let over = end - WHOLE;
        self.at = over;
        // Not kept here, it is there with this chance, so that its chance in all is its mass.
        let there = !here && over > 0 && self.random.below(start) < over;
        self.point = match there {
            true => 0,
            false => over + self.random.below(WHOLE - over),
        };
        here || there
    }

    /// How many of so many equal samples, of this mass each, are kept.
    pub(crate) fn keeps_of(&mut self, count: u64, mass: u64) -> u64 {
        if mass >= WHOLE {
            return count;
        }
        let exact = u128::from(count) * u128::from(mass);
        let whole = (exact / u128::from(WHOLE)) as u64;
        let rest = (exact % u128::from(WHOLE)) as u64;
        whole + u64::from(self.random.below(WHOLE) < rest)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn kept(mass: u64, samples: u64, seed: u64) -> Vec<u64> {
        let mut thinner = Thinner::new(Random::new(seed));
        (0..samples).filter(|_| thinner.keeps(mass)).collect()
    }

    #[test]
    fn samples_that_alternate_keep_their_proportions() {
        // Threads in patterns whose length divides the strata's are where a fixed choice fails.
        for (parts, period) in [(2, 2), (2, 4), (3, 3), (5, 10), (10, 10), (10, 2)] {
            let mut counts = vec![0u32; period as usize];
            let samples = 200_000;
            for sample in kept(WHOLE / parts, samples, 42) {
                counts[(sample % period) as usize] += 1;
            }
            let expected = samples as f64 / parts as f64 / period as f64;
            for count in &counts {
                // Five standard deviations of independent draws; strata vary less.
                let tolerance = 5.0 * expected.sqrt();
                assert!(
                    (f64::from(*count) - expected).abs() < tolerance,
                    "1 of {parts}, period {period}: {counts:?}, expected {expected} each"
                );
            }
        }
    }

    #[test]
    fn each_sample_has_the_same_chance() {
        // 49 of 99 Hz: samples lie across strata at every place.
        let mass = WHOLE * 49 / 99;
        let (runs, samples) = (20_000u32, 12usize);
        let mut counts = vec![0u32; samples];
        for seed in 0..u64::from(runs) {
            for sample in kept(mass, samples as u64, seed * 7919) {
                counts[sample as usize] += 1;
            }
        }
        let chance = mass as f64 / WHOLE as f64;
        let expected = f64::from(runs) * chance;
        let tolerance = 5.0 * (expected * (1.0 - chance)).sqrt();
        for count in &counts {
            assert!(
                (f64::from(*count) - expected).abs() < tolerance,
                "{counts:?}, expected {expected}"
            );
        }
    }

    #[test]
    fn whole_samples_are_all_kept() {
        assert_eq!(kept(WHOLE, 1000, 1).len(), 1000);
        assert_eq!(kept(WHOLE + 5, 1000, 1).len(), 1000);
        assert_eq!(kept(0, 1000, 1).len(), 0);
    }

    #[test]
    fn two_seeds_keep_others() {
        assert_ne!(kept(WHOLE / 4, 200, 1), kept(WHOLE / 4, 200, 2));
    }

    #[test]
    fn a_part_of_many_equal_ones_has_no_bias() {
        let mut thinner = Thinner::new(Random::new(9));
        let total: u64 = (0..100_000).map(|_| thinner.keeps_of(3, WHOLE / 4)).sum();
        assert!(total.abs_diff(75_000) < 1_000, "{total}");
        assert_eq!(thinner.keeps_of(1_000_000, WHOLE / 4), 250_000);
    }

    proptest! {
        #[test]
        fn the_number_kept_never_drifts(
            masses in prop::collection::vec(0..=WHOLE, 1..500),
            seed in any::<u64>(),
        ) {
            let mut thinner = Thinner::new(Random::new(seed));
            let (mut kept, mut sum) = (0u64, 0u64);
            for mass in masses {
                kept += u64::from(thinner.keeps(mass));
                sum += mass;
                prop_assert!((kept * WHOLE).abs_diff(sum) <= WHOLE);
            }
        }
    }
}
