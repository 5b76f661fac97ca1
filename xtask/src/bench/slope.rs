//! What one sample costs: a line through (samples, CPU time), round by round.
//!
//! Input: per round the same job measured at several rates. Output: the slope in ns per sample with
//! a 95 % confidence interval. Each round has an intercept of its own, because the speed of the
//! machine drifts between rounds; only differences within a round count.

/// One run of the job.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Point {
    /// In which round.
    pub(crate) round: usize,
    /// Samples taken of the job.
    pub(crate) samples: f64,
    /// CPU time of the job in nanoseconds.
    pub(crate) cpu_ns: f64,
}

/// A slope and how sure it is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Slope {
    /// Nanoseconds per sample.
    pub(crate) ns: f64,
    /// Half the width of the 95 % confidence interval.
    pub(crate) plus_minus_ns: f64,
}

/// Least squares with one intercept per round; none if there are too few points.
pub(crate) fn slope(points: &[Point]) -> Option<Slope> {
    let rounds = points.iter().map(|point| point.round + 1).max()?;
    let mut sums = vec![(0.0, 0.0, 0.0); rounds];
    for point in points {
        let sum = &mut sums[point.round];
        *sum = (sum.0 + 1.0, sum.1 + point.samples, sum.2 + point.cpu_ns);
    }
    let used = sums.iter().filter(|sum| sum.0 > 0.0).count();
    let centred = || {
        points.iter().map(|point| {
            let (count, samples, cpu_ns) = sums[point.round];
            (
                point.samples - samples / count,
                point.cpu_ns - cpu_ns / count,
            )
        })
    };
    let xx: f64 = centred().map(|(x, _)| x * x).sum();
    let xy: f64 = centred().map(|(x, y)| x * y).sum();
    let freedom = points
        .len()
        .checked_sub(used + 1)
        .filter(|&freedom| freedom > 0)?;
    if xx == 0.0 {
        return None;
    }
    let ns = xy / xx;
    let residual: f64 = centred().map(|(x, y)| (y - ns * x).powi(2)).sum();
    let error = (residual / freedom as f64 / xx).sqrt();
    Some(Slope {
        ns,
        plus_minus_ns: student_95(freedom) * error,
    })
}

/// The 97.5 % quantile of Student's distribution (Cornish-Fisher; within 1 % from three degrees of
/// freedom on).
fn student_95(freedom: usize) -> f64 {
    let (z, n) = (1.959_964_f64, freedom as f64);
    let z3 = z.powi(3);
    let z5 = z.powi(5);
    let z7 = z.powi(7);
    z + (z3 + z) / (4.0 * n)
        + (5.0 * z5 + 16.0 * z3 + 3.0 * z) / (96.0 * n * n)
        + (3.0 * z7 + 19.0 * z5 + 17.0 * z3 - 15.0 * z) / (384.0 * n * n * n)
}

/// The median; 0 of nothing.
pub(crate) fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => 0.0,
        len if len % 2 == 1 => values[len / 2],
        len => (values[len / 2 - 1] + values[len / 2]) / 2.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_slope_through_drifting_rounds() {
        let mut points = Vec::new();
        for round in 0..10 {
            for (index, samples) in [0.0, 2_000.0, 10_000.0, 40_000.0].into_iter().enumerate() {
                let noise = if (round + index) % 2 == 0 { 1e6 } else { -1e6 };
                let cpu_ns = 2e9 + 5e7 * round as f64 + 3_000.0 * samples + noise;
                points.push(Point {
                    round,
                    samples,
                    cpu_ns,
                });
            }
        }
        let found = slope(&points).unwrap();
        assert!(
            (found.ns - 3_000.0).abs() < found.plus_minus_ns + 1.0,
            "{found:?}"
        );
        assert!(
            found.plus_minus_ns > 5.0 && found.plus_minus_ns < 60.0,
            "{found:?}"
        );
    }

    #[test]
    fn quantiles_match_the_tables() {
        for (freedom, value) in [(5, 2.571), (10, 2.228), (29, 2.045), (1000, 1.962)] {
            assert!((student_95(freedom) - value).abs() < 0.005, "{freedom}");
        }
    }

    #[test]
    fn too_little_gives_nothing() {
        let point = Point {
            round: 0,
            samples: 1.0,
            cpu_ns: 1.0,
        };
        assert_eq!(slope(&[]), None);
        assert_eq!(slope(&[point, point]), None);
        assert_eq!(slope(&[point, point, point]), None);
    }

    #[test]
    fn medians() {
        assert_eq!(median(&mut []), 0.0);
        assert_eq!(median(&mut [3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&mut [4.0, 1.0, 2.0, 3.0]), 2.5);
    }
}
