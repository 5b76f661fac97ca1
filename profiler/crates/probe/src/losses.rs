//! Losses of the kernel side: counters of each processor -> how many samples and calls are missing,
//! and why.
//!
//! | counter | reason | exact? |
//! |---|---|---|
//! | `ring_full` | the ring buffer had no room | yes |
//! | `nested` | no scratch memory was left | yes |
//! | `lost` of calls | the ring buffer for calls had no room | yes |
//! | `skipped` | another BPF program ran when the clock ticked | an estimate |
//!
//! Skipped ticks are estimated for clocks only (cpu-clock, task-clock), whose next tick is known to
//! the nanosecond. There are two estimates, and what both agree on is reported:
//!
//! - The kernel side counts a tick as skipped if the next one that arrives is on time, a whole number of
//!   periods after the last: then the timer ran in between, and only the program did not. Ticks missing
//!   before one that is late are not losses: the processor took no interrupts (it had been taken away by
//!   a hypervisor, was offline, slept), so nothing ran that could have been sampled. But where clocks do not tick
//!   while a processor is idle, as on some virtual machines, nothing was skipped before it woke; and a late tick is
//!   on time by chance once in eight times. So where few of the ticks arrived that were due while a processor was
//!   idle, only those count between which one thread ran without being switched. There may have been more.
//! - No more ticks can have been skipped than were due while the processor had something to run, by
//!   the kernel's account of idle and stolen time, and did not arrive. That account takes what interrupts of an idle
//!   processor need, these clocks' own most of all, for something that ran.
//!
//! Whom the filter does not want loses nothing. Those ticks count between which a wanted thread ran without being
//! switched; and where all that were skipped may count, no smaller a part of them than of those that came.
//!
//! When the period of an adjustable source changes, or it is stopped, what was lost so far is settled, and
//! both estimates begin anew. The account of idle time has steps of 10 ms, which may fall on the wrong
//! side of a change: from then on, two of them are taken for idle.
//!
//! Gaps of more than 16 periods never count. Idle processors tick as well and are counted as idle; what
//! is missing next to an idle tick is no loss either. Counters of hardware and of frequency mode have
//! no known next tick; nothing is estimated for them.

use aya::{
    Ebpf,
    maps::{MapData, PerCpuArray},
};
use profiler_common::{
    call::CallCpu,
    control::{Counters, MAX_SOURCES},
};

use super::{hotplug, load, sys::MapValue};
use profiler_model::raw::{RawBody, RawEvent};
use profiler_model::{Cpu, Lost, LostReason, Timestamp};

/// Counters of the first `sources` sources, by source and processor.
pub(super) fn read_counters(ebpf: &Ebpf, sources: usize) -> Vec<Vec<Counters>> {
    let Some(map) = ebpf.map("COUNTERS") else {
        return Vec::new();
    };
    let Ok(map) = PerCpuArray::<&MapData, MapValue<Counters>>::try_from(map) else {
        return Vec::new();
    };
    (0..sources as u32)
        .map(|source| match map.get(&source, 0) {
            Ok(values) => values.iter().map(|value| value.0).collect(),
            Err(_) => Vec::new(),
        })
        .collect()
}

/// How many records of calls each processor has lost.
pub(super) fn read_call_losses(ebpf: &Ebpf) -> Vec<u64> {
    match load::map_fd(ebpf, "CALL_CPU").and_then(hotplug::values::<CallCpu>) {
        Ok(values) => values.iter().map(|cpu| cpu.lost).collect(),
        Err(error) => {
            log::warn!("failed to read how many calls were lost: {error}");
            Vec::new()
        }
    }
}

/// Totals of one processor that have been reported.
#[derive(Clone, Copy, Default)]
struct Reported {
    ring_full: u64,
    nested: u64,
    skipped: u64,
    calls: u64,
}

/// A processor when it was looked at first.
struct Baseline {
    at: Timestamp,
    idle_ns: u64,
    /// By source.
    counters: Vec<Counters>,
}

impl Baseline {
    /// How many ticks of a source were skipped: those that were settled then, and since then as many as both estimates have, if
    /// its period is known.
    fn skipped(
        &self,
        source: usize,
        seen: &Counters,
        period_ns: u64,
        idle_ns: u64,
        now: Timestamp,
    ) -> Option<u64> {
        let before = self.counters.get(source)?;
        let idle_ns = idle_ns.saturating_sub(self.idle_ns);
        let busy_ns = now.since(self.at).saturating_sub(idle_ns);
        if period_ns == 0 {
            return None;
        }
        let busy = |counters: &Counters| counters.ticks.saturating_sub(counters.idle);
        let arrived = busy(seen).saturating_sub(busy(before));
        let missing = busy_ns.div_ceil(period_ns).saturating_sub(arrived);
        let idle = seen.idle.saturating_sub(before.idle);
        let surely = seen.skipped_surely.saturating_sub(before.skipped_surely);
        let by_times = match idle.saturating_mul(2) >= idle_ns.div_ceil(period_ns) {
            true => seen.skipped.saturating_sub(before.skipped),
            false => 0,
        };
        let by_share = wanted(seen, by_times.min(missing));
        Some(before.skipped + by_share.max(surely.min(missing)))
    }
}

/// What the kernel side and the kernel tell of processors.
pub(super) struct Account<'a> {
    /// Counters by source and processor.
    pub(super) counters: &'a [Vec<Counters>],
    /// Time between two ticks of each source; 0: it is no clock.
    pub(super) periods_ns: &'a [u64],
    /// How long each processor has been idle.
    pub(super) idle_ns: &'a [Option<u64>],
    /// Lost records of calls by processor.
    pub(super) lost_calls: &'a [u64],
}

impl Account<'_> {
    /// Counters of a processor by source.
    fn of_cpu(&self, cpu: usize) -> Vec<Counters> {
        let of_cpu = |source: &Vec<Counters>| source.get(cpu).copied().unwrap_or_default();
        self.counters.iter().map(of_cpu).collect()
    }
}

/// Of so many skipped ticks, those at which something ran that is wanted: as many as of the ticks that came.
fn wanted(seen: &Counters, skipped: u64) -> u64 {
    let busy = seen.ticks.saturating_sub(seen.idle);
    if seen.filtered == 0 || busy == 0 {
        return skipped;
    }
    let wanted = busy.saturating_sub(seen.filtered);
    let share = u128::from(skipped) * u128::from(wanted) / u128::from(busy);
    share as u64
}

/// What the account of idle time may be off by around a change of the period.
const IDLE_STEPS_NS: u64 = 20_000_000;

/// Remembers what has been reported.
pub(super) struct LossMeter {
    last: Timestamp,
    /// Of records of calls, which are told more often.
    last_calls: Timestamp,
    reported: Vec<Reported>,
    baselines: Vec<Option<Baseline>>,
    unfollowed: u64,
}

impl LossMeter {
    /// A meter that begins at `now`; so long each processor had been idle before.
    pub(super) fn new(now: Timestamp, idle_ns: &[Option<u64>]) -> LossMeter {
        let baseline = |idle_ns: &Option<u64>| {
            Some(Baseline {
                at: now,
                idle_ns: (*idle_ns)?,
                counters: vec![Counters::default(); MAX_SOURCES],
            })
        };
        LossMeter {
            last: now,
            last_calls: now,
            reported: Vec::new(),
            baselines: idle_ns.iter().map(baseline).collect(),
            unfollowed: 0,
        }
    }

    /// Begins anew at a change of the periods. What was lost before must have been told by
    /// [`Self::update`] with the same account.
    pub(super) fn rebase(&mut self, account: &Account<'_>, now: Timestamp) {
        let cpus = self.reported.len().max(account.idle_ns.len());
        self.reported.resize(cpus, Reported::default());
        self.baselines = account
            .idle_ns
            .iter()
            .enumerate()
            .map(|(cpu, idle_ns)| {
                Some(Baseline {
                    at: Timestamp(now.0.saturating_add(IDLE_STEPS_NS)),
                    idle_ns: (*idle_ns)?,
                    counters: account.of_cpu(cpu),
                })
            })
            .collect();
        for (cpu, reported) in self.reported.iter_mut().enumerate() {
            // What one estimate alone took for skipped is settled as well.
            let seen: u64 = account.of_cpu(cpu).iter().map(|seen| seen.skipped).sum();
            reported.skipped = seen.max(reported.skipped);
        }
    }

    /// Ticks of a processor that were skipped since the start, over all sources.
    fn skipped(&mut self, cpu: usize, account: &Account<'_>, now: Timestamp) -> u64 {
        let seen = account.of_cpu(cpu);
        let idle_ns = account.idle_ns.get(cpu).copied().flatten();
        if self.baselines.len() <= cpu {
            self.baselines.resize_with(cpu + 1, || None);
        }
        let baseline = &mut self.baselines[cpu];
        if let (None, Some(idle_ns)) = (&baseline, idle_ns) {
            // It has come online.
            *baseline = Some(Baseline {
                at: now,
                idle_ns,
                counters: seen.clone(),
            });
        }
        let mut skipped = 0;
        for (source, seen) in seen.iter().enumerate() {
            let period_ns = account.periods_ns.get(source).copied().unwrap_or(0);
            let known = baseline
                .as_ref()
                .zip(idle_ns)
                .and_then(|(before, idle)| before.skipped(source, seen, period_ns, idle, now));
            skipped += known.unwrap_or_else(|| wanted(seen, seen.skipped));
        }
        skipped
    }

    /// Adds the records of calls that have been lost since the last call of this or [`LossMeter::update`].
    pub(super) fn update_calls(
        &mut self,
        lost_calls: &[u64],
        now: Timestamp,
        out: &mut Vec<RawEvent>,
    ) {
        let cpus = self.reported.len().max(lost_calls.len());
        self.reported.resize(cpus, Reported::default());
        for ((number, total), reported) in (0..).zip(lost_calls).zip(&mut self.reported) {
            let count = total.saturating_sub(reported.calls);
            reported.calls = reported.calls.max(*total);
            if count > 0 {
                let from = self.last_calls;
                out.push(lost(
                    Cpu(number),
                    from,
                    now,
                    count,
                    LostReason::CallRingFull,
                ));
            }
        }
        self.last_calls = now;
    }

    /// Adds what has been lost since the last call to `out`. Returns how many children of watched
    /// tasks could not be followed since then: how many samples that costs nobody knows.
    pub(super) fn update(
        &mut self,
        account: &Account<'_>,
        now: Timestamp,
        out: &mut Vec<RawEvent>,
    ) -> u64 {
        let Account {
            counters,
            lost_calls,
            ..
        } = *account;
        let cpus = counters.iter().map(Vec::len).max().unwrap_or(0);
        let cpus = cpus.max(lost_calls.len()).max(self.reported.len());
        self.reported.resize(cpus, Reported::default());
        for cpu in 0..cpus {
            let reported = self.reported[cpu];
            let mut total = Reported {
                // Of an estimate that has become less nothing is taken back.
                skipped: self.skipped(cpu, account, now).max(reported.skipped),
                ..Reported::default()
            };
            for seen in counters.iter().filter_map(|source| source.get(cpu)) {
                total.ring_full += seen.ring_full;
                total.nested += seen.nested;
            }
            total.calls = lost_calls.get(cpu).copied().unwrap_or(0);
            // Counters that could not be read this time are no smaller: else they were told again.
            total.ring_full = total.ring_full.max(reported.ring_full);
            total.nested = total.nested.max(reported.nested);
            total.calls = total.calls.max(reported.calls);
            self.reported[cpu] = total;
            let cpu = Cpu(cpu as u32);
            for (reason, total, before) in [
                (LostReason::RingFull, total.ring_full, reported.ring_full),
                (LostReason::Nested, total.nested, reported.nested),
                (LostReason::Skipped, total.skipped, reported.skipped),
                (LostReason::CallRingFull, total.calls, reported.calls),
            ] {
                let count = total.saturating_sub(before);
                if count > 0 {
                    let from = match reason {
                        LostReason::CallRingFull => self.last_calls,
                        _ => self.last,
                    };
                    out.push(lost(cpu, from, now, count, reason));
                }
            }
        }
        (self.last, self.last_calls) = (now, now);
        let unfollowed: u64 = counters.iter().flatten().map(|seen| seen.unfollowed).sum();
        let unfollowed = unfollowed.max(self.unfollowed);
        unfollowed - std::mem::replace(&mut self.unfollowed, unfollowed)
    }
}

fn lost(cpu: Cpu, from: Timestamp, to: Timestamp, count: u64, reason: LostReason) -> RawEvent {
    RawEvent {
        at: to,
        cpu,
        body: RawBody::Lost(Lost {
            cpu: Some(cpu),
            from,
            to,
            count,
            reason,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counters(ring_full: u64, skipped: u64) -> Counters {
        Counters {
            ring_full,
            skipped,
            ..Counters::default()
        }
    }

    fn account<'a>(counters: &'a [Vec<Counters>], lost_calls: &'a [u64]) -> Account<'a> {
        Account {
            counters,
            periods_ns: &[],
            idle_ns: &[],
            lost_calls,
        }
    }

    #[test]
    fn nothing_is_lost_of_what_is_not_wanted() {
        let seen = |ticks, idle, filtered| Counters {
            ticks,
            idle,
            filtered,
            ..Counters::default()
        };
        assert_eq!(wanted(&seen(1000, 200, 800), 20), 0);
        assert_eq!(wanted(&seen(1000, 200, 600), 20), 5);
        assert_eq!(wanted(&seen(1000, 200, 0), 20), 20);
        assert_eq!(wanted(&seen(0, 0, 0), 3), 3);
    }

    /// A second of a processor ticking at 100 Hz, which was idle for so long.
    #[track_caller]
    fn check_skipped(seen: Counters, idle_ms: u64, expected: u64) {
        const MS: u64 = 1_000_000;
        let (began, before) = (Timestamp(500), Some(70_000 * MS));
        let mut meter = LossMeter::new(began, &[before]);
        let mut out = Vec::new();
        let account = Account {
            counters: &[vec![seen]],
            periods_ns: &[10 * MS],
            idle_ns: &[before.map(|before| before + idle_ms * MS)],
            lost_calls: &[],
        };
        meter.update(&account, Timestamp(500 + 1000 * MS), &mut out);
        let total: u64 = out
            .iter()
            .map(|event| match &event.body {
                RawBody::Lost(lost) => {
                    assert_eq!(lost.reason, LostReason::Skipped);
                    lost.count
                }
                other => panic!("{other:?}"),
            })
            .sum();
        assert_eq!(total, expected);
    }

    #[test]
    fn no_more_ticks_are_skipped_than_were_due_while_something_ran() {
        let ticks = |ticks, idle, skipped| Counters {
            ticks,
            idle,
            skipped,
            ..Counters::default()
        };
        // Idle, and its clock waited for most of the time: three ticks hit what woke it.
        check_skipped(ticks(20, 17, 35), 970, 0);
        check_skipped(ticks(3, 0, 35), 960, 0);
        // More than half of the ticks when it was idle came, which the account of idle time makes fewer.
        check_skipped(ticks(63, 60, 35), 960, 1);
        // Busy all the time: what the kernel side says.
        check_skipped(ticks(90, 0, 10), 0, 10);
        check_skipped(ticks(90, 0, 4), 0, 4);
        // Busy half of the time, every other tick skipped then.
        check_skipped(ticks(75, 50, 25), 500, 25);
        // Whatever the account of idle time says.
        check_skipped(ticks(90, 0, 4), 5000, 0);
    }

    /// A processor whose clock does not tick while it is idle: what is before the tick that woke it was not skipped.
    #[test]
    fn clocks_that_stand_still_skip_nothing() {
        let ticks = |idle, skipped_surely| Counters {
            ticks: 40 + idle,
            idle,
            skipped: 50,
            skipped_surely,
            ..Counters::default()
        };
        check_skipped(ticks(0, 0), 500, 0);
        check_skipped(ticks(0, 7), 500, 7);
        // Never more than there was time for.
        check_skipped(ticks(0, 30), 500, 10);
        check_skipped(ticks(24, 7), 500, 7);
        check_skipped(ticks(25, 7), 500, 10);
    }

    /// Beside programs that the filter does not want, and that let no other program of the kernel run: all that is
    /// missing is of what it wants.
    #[test]
    fn what_a_wanted_thread_surely_missed_is_not_shared_with_others() {
        let ticks = |skipped_surely| Counters {
            ticks: 80,
            filtered: 60,
            skipped: 20,
            skipped_surely,
            ..Counters::default()
        };
        check_skipped(ticks(19), 0, 19);
        check_skipped(ticks(2), 0, 5);
        // Where there was no time for more.
        check_skipped(ticks(19), 100, 10);
    }

    #[test]
    fn a_change_of_the_period_settles_what_was_estimated() {
        const MS: u64 = 1_000_000;
        let mut meter = LossMeter::new(Timestamp(0), &[Some(0)]);
        let mut told = |at_ms: u64, period_ms: u64, idle_ms: u64, busy: u64, skipped, rebase| {
            let counters = Counters {
                ticks: busy + idle_ms,
                idle: idle_ms,
                skipped,
                ..Counters::default()
            };
            let account = Account {
                counters: &[vec![counters]],
                periods_ns: &[period_ms * MS],
                idle_ns: &[Some(idle_ms * MS)],
                lost_calls: &[],
            };
            let mut out = Vec::new();
            meter.update(&account, Timestamp(at_ms * MS), &mut out);
            if rebase {
                meter.rebase(&account, Timestamp(at_ms * MS));
            }
            let counts = out.iter().map(|event| match &event.body {
                RawBody::Lost(lost) => lost.count,
                other => panic!("{other:?}"),
            });
            counts.sum::<u64>()
        };
        // A second at 100 Hz: the kernel side says 30, the account of idle time 10.
        assert_eq!(told(1000, 10, 0, 90, 30, true), 10);
        // A second off: neither the time nor what was not told counts.
        assert_eq!(told(2000, 0, 0, 90, 30, true), 0);
        // A second at 1000 Hz, idle for half of it; two steps of the account are in doubt.
        assert_eq!(told(3000, 1, 500, 90 + 440, 30 + 50, false), 40);
        assert_eq!(told(4000, 1, 500, 90 + 1430, 30 + 60, true), 10);
        // So short that nothing can be said.
        assert_eq!(told(4015, 1, 500, 90 + 1435, 30 + 70, true), 0);
    }

    #[test]
    fn children_that_are_not_followed_are_told_once() {
        let mut meter = LossMeter::new(Timestamp(5), &[]);
        let unfollowed = |unfollowed| Counters {
            unfollowed,
            ..Counters::default()
        };
        let mut out = Vec::new();
        let mut update = |counts: [u64; 2]| {
            let counters = [counts.map(unfollowed).to_vec()];
            meter.update(&account(&counters, &[]), Timestamp(9), &mut out)
        };
        assert_eq!([update([2, 1]), update([2, 1]), update([2, 5])], [3, 0, 4]);
        // Could not be read.
        assert_eq!([update([0, 0]), update([2, 5]), update([3, 5])], [0, 0, 1]);
    }

    #[test]
    fn what_could_not_be_read_once_is_not_told_again() {
        let mut meter = LossMeter::new(Timestamp(5), &[]);
        let mut out = Vec::new();
        let counted = [vec![counters(2, 0), counters(3, 4)]];
        for counters in [&counted[..], &[], &counted[..], &[vec![]], &counted[..]] {
            let lost_calls: &[u64] = if counters.len() == 1 { &[6, 0] } else { &[] };
            meter.update(&account(counters, lost_calls), Timestamp(9), &mut out);
        }
        let first = out.len();
        meter.update(&account(&counted, &[6, 0]), Timestamp(9), &mut out);
        assert_eq!((first, out.len()), (4, 4));
    }

    #[test]
    fn only_what_is_new_is_reported_per_processor_over_all_sources() {
        let mut meter = LossMeter::new(Timestamp(5), &[]);
        let mut out = Vec::new();
        let idle = Counters::default();
        let first = [vec![idle, counters(2, 0)], vec![idle, counters(1, 7)]];
        meter.update(&account(&first, &[0, 5]), Timestamp(10), &mut out);
        meter.update(&account(&first, &[0, 5]), Timestamp(20), &mut out);
        let second = [vec![idle, counters(2, 0)], vec![idle, counters(5, 7)]];
        meter.update(&account(&second, &[2, 5]), Timestamp(30), &mut out);
        let seen: Vec<_> = out
            .iter()
            .map(|event| match &event.body {
                RawBody::Lost(lost) => {
                    (event.cpu.0, lost.reason, lost.count, lost.from.0, lost.to.0)
                }
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(
            seen,
            [
                (1, LostReason::RingFull, 3, 5, 10),
                (1, LostReason::Skipped, 7, 5, 10),
                (1, LostReason::CallRingFull, 5, 5, 10),
                (0, LostReason::CallRingFull, 2, 20, 30),
                (1, LostReason::RingFull, 4, 20, 30),
            ]
        );
    }
}
