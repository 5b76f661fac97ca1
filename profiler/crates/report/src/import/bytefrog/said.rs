//! What an agent of ours says that is missing: values of markers -> losses and gaps.
//!
//! `records of calls without room in the kernel's buffer: 7, exits without an entry: 25`; `work [app] src/a.c:7 in app [100]: over
//! budget, watched a part of the time (812.5 ms in 3 gaps)`. What only looks like it is a mark and no more. Source:
//! "Markers" in docs/formats/bytefrog.md; the words are those of [`LostReason`] and [`GapReason`].

use profiler_model::{GapReason, LostReason};

/// Keys of markers.
pub(super) const LOST: &str = "lost events";
pub(super) const GAP: &str = "not traced";
pub(super) const ENDED: &str = "recording ended";

/// Most gaps of one marker; it tells of about a second.
const MAX_GAPS: u64 = 1 << 10;

/// A time, or several, in which calls were not seen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Gap<'a> {
    /// Its signature; none: all functions.
    pub(super) function: Option<&'a str>,
    pub(super) reason: GapReason,
    /// How many, at least one, and how long together.
    pub(super) count: u64,
    pub(super) ns: u64,
}

/// What was lost: reasons, each with its number.
pub(super) fn losses(value: &str) -> impl Iterator<Item = (LostReason, u64)> {
    let reasons = LostReason::ALL.iter();
    reasons.filter_map(|&reason| Some((reason, number(value, reason.phrase())?)))
}

/// What was lost in all, of what is said only at the end.
pub(super) fn losses_at_end(value: &str) -> impl Iterator<Item = (LostReason, u64)> {
    let all = [
        (LostReason::CallRingFull, "calls lost for want of room"),
        (LostReason::TooMany, "entries too deep"),
        (LostReason::TooMany, "events of threads without a number"),
    ];
    let mut sums: Vec<(LostReason, u64)> = Vec::new();
    for (reason, what) in all {
        let Some(count) = number(value, what) else {
            continue;
        };
        match sums.iter_mut().find(|(known, _)| *known == reason) {
            Some((_, sum)) => *sum = sum.saturating_add(count),
            None => sums.push((reason, count)),
        }
    }
    sums.into_iter()
}

/// Exits that were not seen there, of those that were sent: the messages look like any other.
pub(super) fn inferred_at_end(value: &str) -> u64 {
    number(value, "exits inferred").unwrap_or(0)
}

/// The number behind `what: `.
fn number(value: &str, what: &str) -> Option<u64> {
    let (_, rest) = value.split_once(&format!("{what}: "))?;
    let digits = rest.split(|it: char| !it.is_ascii_digit()).next()?;
    digits.parse().ok()
}

/// What was not watched; none if that is not what it says.
pub(super) fn gap(value: &str) -> Option<Gap<'_>> {
    let (rest, length) = value.strip_suffix(')')?.rsplit_once(" (")?;
    let (ms, count) = match length.strip_suffix(" ms") {
        Some(ms) => (ms, 1),
        None => {
            let (ms, count) = length.strip_suffix(" gaps")?.split_once(" ms in ")?;
            (ms, count.parse().ok().filter(|&count| count > 0)?)
        }
    };
    let ms: f64 = ms.parse().ok().filter(|ms: &f64| *ms >= 0.0)?;
    let reason = GapReason::ALL.iter();
    let (subject, reason) = { reason }.find_map(|&reason| {
        let subject = rest.strip_suffix(reason.phrase())?.strip_suffix(": ")?;
        Some((subject, reason))
    })?;
    let function = match subject.rsplit_once(" in ") {
        Some((function, process)) if is_process(process) => function,
        _ => subject,
    };
    Some(Gap {
        function: (function != "all functions").then_some(function),
        reason,
        count: MAX_GAPS.min(count),
        ns: (ms * 1e6) as u64,
    })
}

/// `web [100]`.
fn is_process(text: &str) -> bool {
    let pid = text.strip_suffix(']').and_then(|it| it.rsplit_once(" ["));
    pid.is_some_and(|(_, pid)| !pid.is_empty() && pid.bytes().all(|it| it.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(value: &str, expected: Option<(Option<&str>, GapReason, u64, u64)>) {
        let found = gap(value).map(|it| (it.function, it.reason, it.count, it.ns));
        assert_eq!(found, expected, "{value}");
    }

    #[test]
    fn gaps() {
        use GapReason::{Detached, DutyCycle, NotYetAttached};
        check(
            "all functions in web [100]: not watched until probes were attached (5.0 ms)",
            Some((None, NotYetAttached, 1, 5_000_000)),
        );
        check(
            "f(int) [a.out] src/a in b.c:7: over budget, watched a part of the time (812.5 ms in 3 gaps)",
            Some((
                Some("f(int) [a.out] src/a in b.c:7"),
                DutyCycle,
                3,
                812_500_000,
            )),
        );
        check(
            "f [a.out] in my in web [1]: over budget, not watched any more (0.0 ms)",
            Some((Some("f [a.out] in my"), Detached, 1, 0)),
        );
        check(
            "all functions: over budget, not watched any more (1e300 ms in 9999999999 gaps)",
            Some((None, Detached, MAX_GAPS, u64::MAX)),
        );
        for value in [
            "",
            ")",
            "f: because (5.0 ms)",
            "f: over budget, not watched any more",
            "f: over budget, not watched any more (-5.0 ms)",
            "f: over budget, not watched any more (NaN ms)",
            "f: over budget, not watched any more (5.0 ms in 0 gaps)",
            "f: over budget, not watched any more (5.0 ms in x gaps)",
            "further gaps: 3",
        ] {
            check(value, None);
        }
    }

    #[test]
    fn losses_of_the_end_are_sums() {
        let value = "entries: 5, exits: 4, calls lost for want of room: 7, entries too deep: 2, exits inferred: 1, \
                     events of threads without a number: 3";
        let found: Vec<(LostReason, u64)> = losses_at_end(value).collect();
        let expected = [(LostReason::CallRingFull, 7), (LostReason::TooMany, 5)];
        assert_eq!(found, expected);
        assert_eq!(inferred_at_end(value), 1);
        assert_eq!(inferred_at_end("entries: 5, exits: 4"), 0);
    }
}
