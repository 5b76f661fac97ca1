//! What a recording lacks, and how its clock maps to wall time.
//!
//! Input: all events; output: lost counts per reason within a span of time, and the first clock
//! anchor. Stacks that ended early are counted with the samples (see `Aggregate::ends`).

use std::collections::BTreeMap;

use profiler_model::*;

/// Lost counts per reason.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    counts: BTreeMap<LostReason, u64>,
}

impl Losses {
    /// Counts a gap.
    pub fn add(&mut self, lost: &Lost) {
        let count = self.counts.entry(lost.reason).or_default();
        *count = count.saturating_add(lost.count);
    }

    /// Counts per reason, in order of reason.
    pub fn iter(&self) -> impl Iterator<Item = (LostReason, u64)> {
        self.counts.iter().map(|(&reason, &count)| (reason, count))
    }

    /// How many of one reason.
    pub fn of(&self, reason: LostReason) -> u64 {
        self.counts.get(&reason).copied().unwrap_or(0)
    }

    /// How many samples are missing: all but records of calls, and but lost process events, which
    /// /proc made up for.
    pub fn samples(&self) -> u64 {
        self.iter()
            .filter(|(reason, _)| *reason != LostReason::SideBand && !is_of_calls(*reason))
            .fold(0, |sum, (_, count)| sum.saturating_add(count))
    }
}

/// Whether what was lost for this reason is about traced calls, not samples.
pub fn is_of_calls(reason: LostReason) -> bool {
    matches!(reason, LostReason::CallRingFull | LostReason::Unmatched)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_events_and_calls_are_no_samples() {
        let mut losses = Losses::default();
        for (reason, count) in [
            (LostReason::SideBand, 7),
            (LostReason::CallRingFull, 9),
            (LostReason::RingFull, 2),
            (LostReason::RingFull, 3),
        ] {
            losses.add(&Lost {
                cpu: None,
                from: Timestamp(0),
                to: Timestamp(1),
                count,
                reason,
            });
        }
        let all: Vec<_> = losses.iter().collect();
        let expected = [
            (LostReason::RingFull, 5),
            (LostReason::SideBand, 7),
            (LostReason::CallRingFull, 9),
        ];
        assert_eq!(all, expected);
        assert_eq!(losses.of(LostReason::RingFull), 5);
        assert_eq!(losses.samples(), 5);
    }
}
