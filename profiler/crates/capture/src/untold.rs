//! Events that could not be passed on -> the events that tell of them.
//!
//! Each is counted once, by why it is missing. What tells of losses is not lost with the rest: it is told again, with sums. What does
//! not belong here: why something can't be passed on.

use profiler_model::{Event, Lost, LostReason, Timestamp};

/// Codes of reasons begin at 1.
pub(super) const REASONS: usize = LostReason::ALL.len() + 1;

/// What is still to be told.
#[derive(Clone, Debug, Default)]
pub struct Untold {
    counts: [u64; REASONS],
    /// Of these, what is missing here: the rest was told by what is missing.
    missing: [u64; REASONS],
    span: Option<(Timestamp, Timestamp)>,
}

impl Untold {
    /// Takes an event that is missing for this reason; whether it told of something else than a loss.
    #[inline]
    pub fn note(&mut self, event: &Event, why: LostReason) -> bool {
        let is_missing = !matches!(event, Event::Lost(_));
        let (reason, count, from) = match event {
            Event::Lost(lost) => (lost.reason, lost.count, lost.from),
            event => (why, 1, event.at()),
        };
        add(&mut self.counts, reason, count);
        if is_missing {
            add(&mut self.missing, reason, count);
        }
        self.reach((from, event.at()));
        is_missing
    }

    /// Takes all that another one has.
    pub(super) fn append(&mut self, other: &mut Untold) {
        for &reason in LostReason::ALL {
            add(&mut self.counts, reason, other.counts[reason as usize]);
            add(&mut self.missing, reason, other.missing[reason as usize]);
        }
        if let Some(span) = other.span {
            self.reach(span);
        }
        *other = Untold::default();
    }

    /// The events that are missing here, by reason.
    pub fn missing(&self) -> impl Iterator<Item = (LostReason, u64)> {
        counted(&self.missing)
    }

    /// What tells of all.
    pub fn events(&self) -> impl Iterator<Item = Event> {
        let (from, to) = self.span.unwrap_or_default();
        counted(&self.counts).map(move |(reason, count)| {
            Event::Lost(Lost {
                cpu: None,
                from,
                to,
                count,
                reason,
            })
        })
    }

    fn reach(&mut self, (from, to): (Timestamp, Timestamp)) {
        let span = self.span.get_or_insert((from, to));
        *span = (span.0.min(from), span.1.max(to));
    }
}

/// An imported capture can say any number.
#[inline]
pub(super) fn add(counts: &mut [u64; REASONS], reason: LostReason, more: u64) {
    let count = &mut counts[reason as usize];
    *count = count.saturating_add(more);
}

pub(super) fn counted(counts: &[u64; REASONS]) -> impl Iterator<Item = (LostReason, u64)> {
    let all = LostReason::ALL.iter();
    let counts = all.map(|&reason| (reason, counts[reason as usize]));
    counts.filter(|(_, count)| *count > 0)
}

/// Why an event is missing that could not be written.
#[inline]
pub(super) fn unwritten(event: &Event) -> LostReason {
    match event {
        Event::Sample(sample) if sample.wait.is_some() => LostReason::UnwrittenWaits,
        Event::Sample(_) => LostReason::UnwrittenSamples,
        Event::Call(_) | Event::Throw(_) => LostReason::UnwrittenCalls,
        Event::Waits(_) => LostReason::UnwrittenCounts,
        _ => LostReason::Unwritten,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use profiler_model::StringId;
    use profiler_model::{EpochId, Mark};

    #[test]
    fn what_tells_of_losses_is_told_again() {
        let mark = |at| {
            let (at, text) = (Timestamp(at), StringId::from_index(0));
            Event::Mark(Mark { at, text })
        };
        let lost = |from, to, count, reason| {
            let (from, to) = (Timestamp(from), Timestamp(to));
            Event::Lost(Lost {
                cpu: None,
                from,
                to,
                count,
                reason,
            })
        };
        let mut untold = Untold::default();
        let why = LostReason::SlowOutput;
        assert!(untold.note(&mark(50), why) && untold.note(&mark(60), why));
        assert!(!untold.note(&lost(10, 70, 7, LostReason::RingFull), why));
        let told: Vec<Event> = untold.events().collect();
        let all = [
            lost(10, 70, 7, LostReason::RingFull),
            lost(10, 70, 2, LostReason::SlowOutput),
        ];
        assert_eq!(told, all);
        // That found no room either.
        let mut again = Untold::default();
        assert!(told.iter().all(|event| !again.note(event, why)));
        assert_eq!(again.missing().count(), 0);
        again.append(&mut untold);
        let told: Vec<Event> = again.events().collect();
        let all = [
            lost(10, 70, 14, LostReason::RingFull),
            lost(10, 70, 4, LostReason::SlowOutput),
        ];
        assert_eq!((told, untold.events().count()), (all.to_vec(), 0));
        let missing: Vec<_> = again.missing().collect();
        assert_eq!(missing, [(LostReason::SlowOutput, 2)]);
    }
}
