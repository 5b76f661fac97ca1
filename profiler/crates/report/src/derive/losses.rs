//! What a recording lacks, and how its clock maps to wall time.
//!
//! Input: all events; output: lost counts per reason within a span of time, and the first clock
//! anchor. Stacks that ended early are counted with the samples (see `Aggregate::ends`).

use std::collections::BTreeMap;

use profiler_model::*;

/// What is said of a recording whose capture has no end.
pub const CUT_OFF: &str = "the recording was not finished, what came last may be missing";

/// Lost counts per reason.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    counts: BTreeMap<LostReason, u64>,
}

impl FromIterator<(LostReason, u64)> for Losses {
    fn from_iter<I: IntoIterator<Item = (LostReason, u64)>>(all: I) -> Losses {
        let mut losses = Losses::default();
        all.into_iter()
            .for_each(|(reason, count)| losses.add_count(reason, count));
        losses
    }
}

impl Losses {
    /// Counts a gap.
    pub fn add(&mut self, lost: &Lost) {
        self.add_count(lost.reason, lost.count);
    }

    /// Counts so many of one reason.
    pub fn add_count(&mut self, reason: LostReason, more: u64) {
        let count = self.counts.entry(reason).or_default();
        *count = count.saturating_add(more);
    }

    /// Counts per reason, in order of reason.
    pub fn iter(&self) -> impl Iterator<Item = (LostReason, u64)> {
        self.counts.iter().map(|(&reason, &count)| (reason, count))
    }

    /// How many of one reason.
    pub fn of(&self, reason: LostReason) -> u64 {
        self.counts.get(&reason).copied().unwrap_or(0)
    }

    /// How many of one kind.
    pub fn of_kind(&self, kind: LostKind) -> u64 {
        self.iter()
            .filter(|(reason, _)| reason.kind() == kind)
            .fold(0, |sum, (_, count)| sum.saturating_add(count))
    }

    /// How many samples of what ran are missing.
    pub fn samples(&self) -> u64 {
        self.of_kind(LostKind::Samples)
    }

    /// How many events could not be written, of any kind.
    pub fn unwritten(&self) -> u64 {
        let counts = self.iter().filter(|(reason, _)| reason.is_unwritten());
        let counts = counts.map(|(_, count)| count);
        counts.fold(0, u64::saturating_add)
    }

    /// How many events of any kind are missing that had happened, and that nothing made up for.
    pub fn missing_events(&self) -> u64 {
        let kinds = [
            LostKind::Samples,
            LostKind::Waits,
            LostKind::Events,
            LostKind::Calls,
        ];
        kinds
            .iter()
            .fold(0_u64, |sum, kind| sum.saturating_add(self.of_kind(*kind)))
            .saturating_sub(self.of(LostReason::Skipped))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_tick_gives_is_a_sample() {
        let mut losses = Losses::default();
        for (reason, count) in [
            (LostReason::SideBand, 7),
            (LostReason::CallRingFull, 9),
            (LostReason::RingFull, 2),
            (LostReason::RingFull, 3),
            (LostReason::WaitUnseen, 4),
            (LostReason::Late, 6),
            (LostReason::Unmatched, 8),
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
            (LostReason::Late, 6),
            (LostReason::CallRingFull, 9),
            (LostReason::Unmatched, 8),
            (LostReason::WaitUnseen, 4),
        ];
        assert_eq!(all, expected);
        assert_eq!(losses.of(LostReason::RingFull), 5);
        assert_eq!(losses.samples(), 5);
        assert_eq!(losses.missing_events(), 5 + 4 + 6 + 9);
    }
}
