//! Times in which calls were not recorded.
//!
//! Input: gaps, of one function or all, in one process or all; output: how long they were for a
//! function, and how many calls they probably hid. What is watched between the gaps of a duty cycle is a fair
//! sample of them, if it is always about the same, and if watching does not change it much: else there is no
//! estimate. What was watched before is none: that it was too much is why the gaps began. How it was
//! before probes were attached, after they went for good, or while a target was suspended, nobody knows.

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

/// Fewest times for which a function on duty has to be watched.
const MIN_TIMES: u64 = 3;
/// What is shorter says nothing. A function on duty is watched for 100 ms each time.
const MIN_TIME_NS: u64 = 10_000_000;
/// Largest standard error of how often it is called, as a share.
const MAX_ERROR: f64 = 0.1;
/// Largest share of a thread's time that watching may take: what is busy would be called so much more often without,
/// and what waits would not.
const MAX_COST: f64 = 0.2;
/// What a thread does between two calls is taken to last no longer: it may have waited for a processor.
const MAX_BETWEEN_NS: u64 = 250_000;

#[derive(Clone, Debug, Default)]
pub(super) struct Gaps {
    sums: FxHashMap<(Option<FunctionId>, Option<ProcessId>, GapReason), GapSum>,
    /// When there was any: functions and processes have theirs at the same time.
    of_reasons: FxHashMap<GapReason, (u64, Spans)>,
    duties: FxHashMap<FunctionId, Duty>,
    /// The last call of each thread, of any function, since there are such.
    last: FxHashMap<ThreadId, Timestamp>,
}

/// What was watched of a function between the gaps of its duty cycle.
#[derive(Clone, Debug, Default)]
struct Duty {
    /// The beginning of the first gap.
    began: Timestamp,
    /// The end of the last gap.
    since: Timestamp,
    /// Calls seen since then.
    calls: u64,
    /// The time from the calls before these, of the same threads, to them.
    busy_ns: u64,
    /// Some calls of these times are not in the recording, or there are several cycles in one.
    lacks: bool,
    times: u64,
    sum_ns: f64,
    sum_calls: f64,
    sum_busy_ns: f64,
    /// Sums of products, for what is between the times.
    ns_ns: f64,
    calls_calls: f64,
    ns_calls: f64,
}

impl Duty {
    fn gap(&mut self, gap: &Gap) {
        let is_first = self.since == Timestamp::default();
        if is_first {
            self.began = gap.from;
        }
        self.lacks |= !is_first && gap.from < self.since;
        let watched_ns = gap.from.since(self.since);
        if !is_first && watched_ns >= MIN_TIME_NS {
            let (ns, calls) = (watched_ns as f64, self.calls as f64);
            self.times += 1;
            self.sum_ns += ns;
            self.sum_calls += calls;
            self.sum_busy_ns += self.busy_ns as f64;
            self.ns_ns += ns * ns;
            self.calls_calls += calls * calls;
            self.ns_calls += ns * calls;
        }
        self.since = gap.to;
        (self.calls, self.busy_ns) = (0, 0);
    }

    /// Calls in a nanosecond without tracing, if that is known.
    fn rate(&self, cost_ns: u32) -> Option<f64> {
        if self.lacks || self.times < MIN_TIMES || self.sum_calls == 0.0 {
            return None;
        }
        let times = self.times as f64;
        let rate = self.sum_calls / self.sum_ns;
        let residues = self.calls_calls - 2.0 * rate * self.ns_calls + rate * rate * self.ns_ns;
        let error = (residues.max(0.0) * times / (times - 1.0)).sqrt() / self.sum_calls;
        let cost = self.sum_calls * f64::from(cost_ns) / self.sum_busy_ns.max(1.0);
        let is_known = error <= MAX_ERROR && cost <= MAX_COST;
        // In the middle of what is busy and what waits.
        is_known.then(|| rate / (1.0 - cost).sqrt())
    }
}

impl Gaps {
    pub(super) fn add(&mut self, gap: &Gap) {
        if let (Some(function), GapReason::DutyCycle) = (gap.function, gap.reason)
            && (self.duties.len() < MAX_KEYS || self.duties.contains_key(&function))
        {
            self.duties.entry(function).or_default().gap(gap);
        }
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

    /// A call of a function was seen.
    pub(super) fn called(&mut self, function: FunctionId, thread: ThreadId, at: Timestamp) {
        if self.duties.is_empty() {
            return;
        }
        let before = self.last.insert(thread, at);
        if let Some(duty) = self.duties.get_mut(&function) {
            duty.calls += 1;
            let between = before.map_or(0, |before| at.since(before));
            duty.busy_ns += between.min(MAX_BETWEEN_NS);
        }
    }

    /// Of calls of a function that were counted, some are not in the recording.
    pub(super) fn lost(&mut self, count: &CallCount) {
        let lacks = count.lost > 0 || count.left_out > 0;
        if let Some(duty) = self.duties.get_mut(&count.function).filter(|_| lacks) {
            // Most often it is what was too much at first that was lost.
            duty.lacks |= count.from >= duty.began;
        }
    }

    /// How many calls the gaps of the budget hid, if one costs `cost_ns` more when it is watched; none if
    /// what was watched does not say so.
    pub(super) fn hidden(&self, function: FunctionId, cost_ns: Option<u32>) -> Option<u64> {
        if self.longest_ns(function, GapReason::Detached) > 0 {
            return None;
        }
        match self.longest_ns(function, GapReason::DutyCycle) {
            0 => Some(0),
            ns => {
                let rate = self.duties.get(&function)?.rate(cost_ns?)?;
                Some((rate * ns as f64).round() as u64)
            }
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
        assert_eq!(gaps.of_reason(GapReason::DutyCycle).count, 3);
    }

    const MS: u64 = 1_000_000;

    /// Gaps of 1.9 s, and between them 0.1 s with so many calls each time, `every_ns`.
    fn duty(calls: &[u64], every_ns: u64) -> Gaps {
        let mut gaps = Gaps::default();
        let (f0, t0) = (FunctionId::from_index(0), ThreadId::from_index(0));
        let add = |gaps: &mut Gaps, from: u64| {
            gaps.add(&Gap {
                from: Timestamp(from * MS),
                to: Timestamp((from + 1900) * MS),
                function: Some(f0),
                process: None,
                reason: GapReason::DutyCycle,
            });
        };
        // Before the first gap: no part of the sample.
        (0..1_000_000).for_each(|at| gaps.called(f0, t0, Timestamp(at)));
        add(&mut gaps, 500);
        for (index, &calls) in (0..).zip(calls) {
            let from = (2_400 + index * 2_000) * MS;
            (0..calls).for_each(|call| gaps.called(f0, t0, Timestamp(from + call * every_ns)));
            add(&mut gaps, 2_500 + index * 2_000);
        }
        gaps
    }

    fn hidden(gaps: &Gaps, cost_ns: u32) -> Option<u64> {
        gaps.hidden(FunctionId::from_index(0), Some(cost_ns))
    }

    #[test]
    fn a_steady_load_is_estimated_by_the_times_on_duty() {
        let gaps = duty(&[100, 102, 98, 100], MS);
        assert_eq!(hidden(&gaps, 1), Some(5 * 1900));
        let other = FunctionId::from_index(1);
        assert_eq!(gaps.hidden(other, None), Some(0), "it has no gap");
        let cost = gaps.hidden(FunctionId::from_index(0), None);
        assert_eq!(cost, None, "what it costs is not known");
    }

    #[test]
    fn what_watching_slows_is_estimated_if_that_is_little() {
        // One each 100 us as long as the thread has a processor, or work.
        let gaps = duty(&[100; 4], 100_000);
        // 10 % of the time: it is between 9,500 and 10,556.
        let some = hidden(&gaps, 10_000).unwrap();
        assert!((9_990..10_040).contains(&some), "{some}");
        assert_eq!(hidden(&gaps, 30_000), None, "watching takes 30 %");
    }

    #[test]
    fn what_is_not_steady_or_watched_too_little_is_not_estimated() {
        assert_eq!(hidden(&duty(&[100, 100], MS), 1), None);
        assert_eq!(hidden(&duty(&[0; 4], MS), 1), None, "all was at once");
        assert_eq!(hidden(&duty(&[100, 0, 0, 0], MS), 1), None);
        assert_eq!(hidden(&duty(&[10, 80, 30, 100], MS), 1), None);
    }

    #[test]
    fn what_lacks_calls_is_not_estimated() {
        let steady = duty(&[100, 102, 98, 100], MS);
        let mut detached = steady.clone();
        detached.add(&gap(Some(0), None, 7, GapReason::Detached));
        assert_eq!(hidden(&detached, 1), None, "what came then is not known");
        let mut twice = steady.clone();
        twice.add(&gap(Some(0), None, 7, GapReason::DutyCycle));
        assert_eq!(hidden(&twice, 1), None, "two cycles in one");
        let mut lost = steady;
        lost.lost(&CallCount {
            function: FunctionId::from_index(0),
            from: Timestamp(2_500 * MS),
            to: Timestamp(3_500 * MS),
            entries: 10,
            exits: 10,
            lost: 1,
            left_out: 0,
        });
        assert_eq!(hidden(&lost, 1), None);
    }
}
