//! Times in which calls were not recorded.
//!
//! Input: gaps, of one function or all, in one process or all; output: how long they were for a
//! function, and how many calls they probably hid. What was watched before and between the gaps of the
//! budget is a fair sample of them: the rate outside of all gaps is taken for the rate within these. How it was
//! before probes were attached, or while a target was suspended, nobody knows.

use rustc_hash::FxHashMap;

use profiler_model::*;

/// Most combinations of function, process and reason; more are counted together as those of all
/// functions.
const MAX_KEYS: usize = 1 << 16;

/// How many gaps, and how long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GapSum {
    /// Gaps.
    pub count: u64,
    /// Of one function in one process their lengths, of several the time in which there was any.
    pub ns: u64,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Gaps {
    sums: FxHashMap<(Option<FunctionId>, Option<ProcessId>, GapReason), GapSum>,
    /// When there was any: functions and processes have theirs at the same time.
    of_reasons: FxHashMap<GapReason, (u64, Spans)>,
}

impl Gaps {
    pub(super) fn add(&mut self, gap: &Gap) {
        let mut key = (gap.function, gap.process, gap.reason);
        if self.sums.len() >= MAX_KEYS && !self.sums.contains_key(&key) {
            key = (None, None, gap.reason);
        }
        let sum = self.sums.entry(key).or_default();
        sum.count += 1;
        sum.ns = sum.ns.saturating_add(gap.to.since(gap.from));
        let (count, spans) = self.of_reasons.entry(gap.reason).or_default();
        *count += 1;
        spans.add(gap.from, gap.to);
    }

    /// All gaps of one reason.
    pub(super) fn of_reason(&self, reason: GapReason) -> GapSum {
        let all = self.of_reasons.get(&reason);
        all.map_or_else(GapSum::default, |(count, spans)| GapSum {
            count: *count,
            ns: spans.ns(),
        })
    }

    fn ns(&self, function: FunctionId, process: Option<ProcessId>, reason: GapReason) -> u64 {
        let of = |function| self.sums.get(&(function, process, reason));
        let ns = |sum: Option<&GapSum>| sum.map_or(0, |sum| sum.ns);
        ns(of(Some(function))).saturating_add(ns(of(None)))
    }

    /// How long a function was affected, in the process where that was longest.
    pub(super) fn longest_ns(&self, function: FunctionId, reason: GapReason) -> u64 {
        let everywhere = self.ns(function, None, reason);
        let processes = self.sums.keys().filter_map(|&(f, process, r)| {
            let applies = r == reason && f.is_none_or(|f| f == function);
            process.filter(|_| applies)
        });
        let most = processes
            .map(|process| self.ns(function, Some(process), reason))
            .max();
        everywhere.saturating_add(most.unwrap_or(0))
    }

    /// How many calls the gaps of the budget probably hid, of `calls` seen in a process that was
    /// watched for `span_ns`, gaps included; none if the gaps leave no time that says how frequent they are.
    pub(super) fn hidden(
        &self,
        function: FunctionId,
        process: ProcessId,
        calls: u64,
        span_ns: u64,
    ) -> Option<f64> {
        let (mut hidden_ns, mut away_ns) = (0_u64, 0_u64);
        for &reason in GapReason::ALL {
            let everywhere = self.ns(function, None, reason);
            let ns = everywhere.saturating_add(self.ns(function, Some(process), reason));
            if reason.is_sampled() {
                hidden_ns = hidden_ns.saturating_add(ns);
            }
            // Without returns entries are seen all the same.
            if reason != GapReason::NoReturns {
                away_ns = away_ns.saturating_add(ns);
            }
        }
        match span_ns.saturating_sub(away_ns) {
            _ if hidden_ns == 0 => Some(0.0),
            0 => None,
            watched_ns => Some(calls as f64 * hidden_ns as f64 / watched_ns as f64),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.sums.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gap(function: Option<usize>, process: Option<usize>, ns: u64, reason: GapReason) -> Gap {
        Gap {
            from: Timestamp(1_000),
            to: Timestamp(1_000 + ns),
            function: function.map(FunctionId::from_index),
            process: process.map(ProcessId::from_index),
            reason,
        }
    }

    #[test]
    fn gaps_of_all_and_of_one_add_up() {
        let mut gaps = Gaps::default();
        gaps.add(&gap(Some(0), Some(0), 100, GapReason::DutyCycle));
        gaps.add(&gap(Some(0), Some(1), 300, GapReason::DutyCycle));
        gaps.add(&gap(None, None, 50, GapReason::DutyCycle));
        gaps.add(&gap(Some(1), None, 7, GapReason::Detached));
        let (f0, f1) = (FunctionId::from_index(0), FunctionId::from_index(1));
        assert_eq!(gaps.longest_ns(f0, GapReason::DutyCycle), 350);
        assert_eq!(gaps.longest_ns(f1, GapReason::DutyCycle), 50);
        assert_eq!(gaps.longest_ns(f1, GapReason::Detached), 7);
        let (p0, p1) = (ProcessId::from_index(0), ProcessId::from_index(1));
        // Watched 850 of 1000 ns: 85 calls there are 15 more in the gaps.
        let hidden = |process, calls, span| {
            let hidden = gaps.hidden(f0, process, calls, span);
            hidden.map(f64::round)
        };
        assert_eq!(hidden(p0, 85, 1_000), Some(15.0));
        assert_eq!(hidden(p1, 65, 1_000), Some(35.0));
        assert_eq!(hidden(p1, 65, 350), None);
        assert_eq!(gaps.of_reason(GapReason::DutyCycle).count, 3);
    }

    #[test]
    fn the_rate_is_that_outside_of_all_gaps() {
        let (f0, p0) = (FunctionId::from_index(0), ProcessId::from_index(0));
        let hidden = |others: &[(u64, GapReason)]| {
            let mut gaps = Gaps::default();
            for &(ns, reason) in others {
                gaps.add(&gap(Some(0), None, ns, reason));
            }
            gaps.hidden(f0, p0, 240, 8_440).map(f64::round)
        };
        use GapReason::{Detached, DutyCycle, NoReturns, NotYetAttached, Suspended};
        // 240 calls in 650 ns.
        let rest = |reason| hidden(&[(1_780, DutyCycle), (6_010, reason)]);
        assert_eq!(rest(Detached), Some(2_876.0));
        assert_eq!(rest(NotYetAttached), Some(657.0));
        assert_eq!(rest(Suspended), Some(657.0));
        assert_eq!(rest(NoReturns), Some(64.0));
        assert_eq!(hidden(&[(8_440, NotYetAttached)]), Some(0.0));
        assert_eq!(hidden(&[(8_440, Detached)]), None);
    }
}
