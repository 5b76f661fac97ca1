//! What a recording lacks, for people: counts per reason -> one text that every output has.
//!
//! `21,802 samples (60.1%): 21,791 samples without room in the kernel's buffer, 11 ticks skipped by the kernel (an estimate); 5 waits
//! whose end was not seen`. Only samples have a share: how many waits or calls there would have been is not known. What does not
//! belong here: stacks that end early.

use crate::derive::Losses;
use crate::view::quantity::{count, percent, percent_of, plural};
use profiler_model::{LostKind, LostReason};

/// What is missing beside so many samples of what ran; none if nothing is. Calls that had begun before they were watched are
/// not: they are told with the calls.
pub fn text(losses: &Losses, samples: u64) -> Option<String> {
    let of = |kind: LostKind| {
        let losses = losses.iter();
        let losses = losses.filter(move |(reason, n)| reason.kind() == kind && *n > 0);
        losses.map(|(reason, n)| phrase(reason, n))
    };
    let mut parts = Vec::new();
    let lost = losses.samples();
    if lost > 0 {
        let share = percent(percent_of(lost, samples.saturating_add(lost)));
        let why: Vec<String> = of(LostKind::Samples).collect();
        let (lost, why) = (plural(lost, "sample"), why.join(", "));
        parts.push(format!("{lost} ({share}): {why}"));
    }
    parts.extend(of(LostKind::Waits));
    parts.extend(of(LostKind::Events));
    parts.extend(of(LostKind::Calls));
    parts.extend(of(LostKind::ProcessEvents));
    (!parts.is_empty()).then(|| parts.join("; "))
}

/// Of traced calls that were not watched to their end, in words that stand behind their number. `lost`: records of calls were;
/// `budget`: functions were watched less, to stay within it.
pub fn without_end(lost: bool, budget: bool) -> &'static str {
    match (lost, budget) {
        (true, true) => {
            "not watched to their end (records were lost while they were open, or to stay within the budget)"
        }
        (true, false) => "not watched to their end (records were lost while they were open)",
        (false, true) => "not watched to their end (to stay within the budget)",
        (false, false) => "not watched to their end",
    }
}

fn phrase(reason: LostReason, n: u64) -> String {
    let phrase = reason.phrase();
    match (n, phrase.split_once(' ')) {
        (1, Some(("process", rest))) => {
            format!("1 process {}", rest.replacen("events", "event", 1))
        }
        (1, Some((what, rest))) => format!("1 {} {rest}", what.trim_end_matches('s')),
        _ => format!("{} {phrase}", count(n)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn losses(all: &[(LostReason, u64)]) -> Losses {
        all.iter().copied().collect()
    }

    #[test]
    fn kinds_are_not_added_up() {
        let lost = losses(&[
            (LostReason::SideBand, 60_845),
            (LostReason::Skipped, 5),
            (LostReason::RingFull, 10),
            (LostReason::WaitUnseen, 2),
            (LostReason::Unmatched, 7),
        ]);
        assert_eq!(
            text(&lost, 85).unwrap(),
            "15 samples (15.0%): 10 samples without room in the kernel's buffer, 5 ticks skipped by the kernel (an estimate); \
             2 waits whose end was not seen; 60,845 process events lost, /proc read again"
        );
        let one = losses(&[
            (LostReason::SideBand, 1),
            (LostReason::Skipped, 1),
            (LostReason::WaitUnseen, 1),
        ]);
        assert_eq!(
            text(&one, 99).unwrap(),
            "1 sample (1.0%): 1 tick skipped by the kernel (an estimate); 1 wait whose end was not seen; \
             1 process event lost, /proc read again"
        );
        let only_waits = losses(&[(LostReason::WaitUnseen, 5)]);
        assert_eq!(
            text(&only_waits, 0).unwrap(),
            "5 waits whose end was not seen"
        );
        assert_eq!(text(&losses(&[(LostReason::Unmatched, 7)]), 9), None);
    }
}
