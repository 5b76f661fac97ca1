//! Distributions of durations: percentiles within 1 %, in bounded memory.
//!
//! Input: durations in nanoseconds; output: count, sum, least and greatest (exact), quantiles and
//! counts per bucket. Buckets are log-linear: each power of two is cut into 64 of equal width, below
//! 128 ns each value has its own. The middle of a bucket is at most 1/128 (0.8 %) off.
//!
//! What does not belong here: what the durations are of (see `calls`), how they are drawn.

/// Buckets per power of two.
const STEPS: u64 = 64;
const STEP_BITS: u32 = STEPS.ilog2();
/// Values below this are buckets of their own: the first row and the first octave.
const EXACT: u64 = 2 * STEPS;

/// A histogram of durations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Latency {
    count: u64,
    sum_ns: u64,
    min_ns: u64,
    max_ns: u64,
    /// Row 0 has the values below 64, row n those from 2^(n + 5) to 2^(n + 6); rows are made when
    /// they are needed.
    rows: Vec<Option<Box<[u64; STEPS as usize]>>>,
}

/// Durations from `from_ns` to `to_ns` (not included), and how many there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// First duration in it.
    pub from_ns: u64,
    /// First duration beyond it; the greatest possible one is in the last bucket.
    pub to_ns: u64,
    /// How many durations.
    pub count: u64,
}

impl Latency {
    /// Adds one duration.
    pub fn record(&mut self, ns: u64) {
        self.record_many(ns, 1);
    }

    /// Adds a duration that stands for so many.
    pub fn record_many(&mut self, ns: u64, many: u64) {
        if many == 0 {
            return;
        }
        let (row, step) = place(ns);
        if row >= self.rows.len() {
            self.rows.resize(row + 1, None);
        }
        let counts = self.rows[row].get_or_insert_with(|| Box::new([0; STEPS as usize]));
        counts[step] = counts[step].saturating_add(many);
        self.min_ns = match self.count {
            0 => ns,
            _ => self.min_ns.min(ns),
        };
        self.max_ns = self.max_ns.max(ns);
        self.count = self.count.saturating_add(many);
        self.sum_ns = self.sum_ns.saturating_add(ns.saturating_mul(many));
    }

    /// Adds all durations of another.
    pub fn merge(&mut self, other: &Latency) {
        if other.count == 0 {
            return;
        }
        self.min_ns = match self.count {
            0 => other.min_ns,
            _ => self.min_ns.min(other.min_ns),
        };
        self.max_ns = self.max_ns.max(other.max_ns);
        self.count = self.count.saturating_add(other.count);
        self.sum_ns = self.sum_ns.saturating_add(other.sum_ns);
        if self.rows.len() < other.rows.len() {
            self.rows.resize(other.rows.len(), None);
        }
        for (own, theirs) in self.rows.iter_mut().zip(&other.rows) {
            match (own, theirs) {
                (Some(own), Some(theirs)) => {
                    for (count, more) in own.iter_mut().zip(theirs.iter()) {
                        *count = count.saturating_add(*more);
                    }
                }
                (own @ None, Some(theirs)) => *own = Some(theirs.clone()),
                (_, None) => {}
            }
        }
    }

    /// How many durations.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Their sum.
    pub fn sum_ns(&self) -> u64 {
        self.sum_ns
    }

    /// The least; 0 if there are none.
    pub fn min_ns(&self) -> u64 {
        self.min_ns
    }

    /// The greatest; 0 if there are none.
    pub fn max_ns(&self) -> u64 {
        self.max_ns
    }

    /// The mean; 0 if there are none.
    pub fn mean_ns(&self) -> u64 {
        self.sum_ns.checked_div(self.count).unwrap_or(0)
    }

    /// The least duration that at least `part` (0 to 1) of all do not exceed, to within 0.8 %;
    /// 0 if there are none.
    pub fn quantile_ns(&self, part: f64) -> u64 {
        let wanted = (part * self.count as f64).ceil().max(1.0) as u64;
        let mut seen: u64 = 0;
        for bucket in self.buckets() {
            seen = seen.saturating_add(bucket.count);
            if seen >= wanted {
                let middle = bucket.from_ns + (bucket.to_ns - bucket.from_ns) / 2;
                return middle.clamp(self.min_ns, self.max_ns);
            }
        }
        self.max_ns
    }

    /// All buckets that are not empty, shortest durations first.
    pub fn buckets(&self) -> impl Iterator<Item = Bucket> + '_ {
        let rows = self.rows.iter().enumerate();
        rows.filter_map(|(row, counts)| Some((row, counts.as_ref()?)))
            .flat_map(|(row, counts)| {
                let counts = counts.iter().enumerate();
                counts
                    .filter(|(_, count)| **count > 0)
                    .map(move |(step, &count)| {
                        let (from_ns, to_ns) = bounds(row, step);
                        Bucket {
                            from_ns,
                            to_ns,
                            count,
                        }
                    })
            })
    }
}

/// Row and step of a duration.
fn place(ns: u64) -> (usize, usize) {
    if ns < EXACT {
        return ((ns / STEPS) as usize, (ns % STEPS) as usize);
    }
    let octave = ns.ilog2();
    let step = (ns >> (octave - STEP_BITS)) - STEPS;
    ((octave - STEP_BITS + 1) as usize, step as usize)
}

fn bounds(row: usize, step: usize) -> (u64, u64) {
    let (row, step) = (row as u32, step as u64);
    if row == 0 {
        return (step, step + 1);
    }
    let shift = row - 1;
    let from = (STEPS + step) << shift;
    (from, from.saturating_add(1 << shift))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn buckets_tile_all_durations() {
        let mut next = 0;
        for row in 0..=58 {
            for step in 0..STEPS as usize {
                let (from, to) = bounds(row, step);
                assert_eq!(from, next, "{row} {step}");
                assert_eq!(place(from), (row, step));
                assert_eq!(place(to - 1), (row, step));
                next = to;
            }
        }
        assert_eq!(next, u64::MAX);
        assert_eq!(place(u64::MAX), (58, 63));
    }

    #[test]
    fn nothing_is_zero() {
        let none = Latency::default();
        assert_eq!((none.count(), none.mean_ns(), none.max_ns()), (0, 0, 0));
        assert_eq!(none.quantile_ns(0.99), 0);
        let mut merged = none.clone();
        merged.merge(&none);
        assert_eq!(merged, none);
    }

    #[test]
    fn one_duration_is_all_of_it() {
        let mut one = Latency::default();
        one.record(123_456_789);
        for part in [0.0, 0.5, 1.0] {
            assert_eq!(one.quantile_ns(part), 123_456_789);
        }
    }

    proptest! {
        #[test]
        fn quantiles_are_within_one_percent(
            durations in prop::collection::vec(
                prop_oneof![0..300_u64, 0..1_000_000_u64, any::<u64>().prop_map(|ns| ns >> 8)], 1..400),
            cut in 0..400_usize,
        ) {
            let mut whole = Latency::default();
            let (mut left, mut right) = (Latency::default(), Latency::default());
            for (index, &ns) in durations.iter().enumerate() {
                whole.record(ns);
                if index < cut { left.record(ns) } else { right.record(ns) }
            }
            left.merge(&right);
            prop_assert_eq!(left.buckets().collect::<Vec<_>>(), whole.buckets().collect::<Vec<_>>());
            let mut sorted = durations;
            sorted.sort_unstable();
            prop_assert_eq!(left.count(), sorted.len() as u64);
            prop_assert_eq!(left.min_ns(), sorted[0]);
            prop_assert_eq!(left.max_ns(), sorted[sorted.len() - 1]);
            let sum = sorted.iter().fold(0_u64, |sum, ns| sum.saturating_add(*ns));
            prop_assert_eq!(left.sum_ns(), sum);
            for part in [0.0, 0.5, 0.95, 0.99, 1.0] {
                let rank = ((part * sorted.len() as f64).ceil() as usize).max(1);
                let (exact, found) = (sorted[rank - 1], left.quantile_ns(part));
                let off = exact.abs_diff(found) as f64;
                prop_assert!(off <= exact as f64 * 0.01, "{part}: {found} for {exact}");
            }
        }
    }
}
