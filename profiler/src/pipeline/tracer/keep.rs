//! Keeps tracing within its budget: steps down whose time has come, probes on duty, their gaps.
//!
//! Counts of the kernel and the targets' processor time -> probes that are watched less. Costs are
//! nanoseconds of the target.
//!
//! What does not belong here: which steps (`budget`), moving probes between links (`links`).

use rustc_hash::FxHashMap;

use super::Tracer;
use super::budget::{self, DUTY_ON_NS, DUTY_PERIOD_NS, Level};
use super::state::ProbeState;
use profiler_model::raw::{RawBody, RawEvent, RawGap};
use profiler_model::{Cpu, GapReason, Pid, Timestamp};
use profiler_probe::{Probe, now};
use profiler_resolve::Resolver;

/// How often the budget is looked at.
const BUDGET_NS: u64 = 200_000_000;
/// What costs more than so many times the budget is seen to at the next tick.
const URGENT: f64 = 4.0;
/// No look at the budget is shorter than this: too little happens.
const URGENT_NS: u64 = 20_000_000;
/// Part of its time that a target is thought to have left at the least, however much tracing takes.
const MIN_LEFT: f64 = 0.05;

/// Functions that are told of one by one when many are watched less at once.
const MAX_TOLD: usize = 10;

/// What is said of a function that is watched less.
fn becomes(level: Level) -> &'static str {
    match level {
        Level::Full => "goes on",
        Level::Entries => "is watched at its entry only from now on",
        Level::Duty => "is watched 5 % of the time from now on",
        Level::Off => "is not traced any more",
    }
}

impl Tracer {
    /// Detaches probes on duty whose time is over, attaches those whose time has come.
    pub(super) fn turn_duty(&mut self, probe: &mut Probe, at: Timestamp, out: &mut Vec<RawEvent>) {
        let mut turned = Vec::new();
        for (number, state) in (0..).zip(&mut self.probes) {
            if state.level != Level::Duty {
                continue;
            }
            if at.since(state.since) < state.wait_ns {
                continue;
            }
            if state.on_duty {
                state.last_duty = state.hits();
            } else {
                let since = state.since;
                out.push(gap(at, since, Some(number), None, GapReason::DutyCycle));
            }
            state.budgeted = state.counted;
            state.on_duty = !state.on_duty;
            state.since = at;
            state.wait_ns = match state.on_duty {
                true => DUTY_ON_NS,
                false => DUTY_PERIOD_NS - DUTY_ON_NS,
            };
            turned.push(number);
        }
        if !turned.is_empty() {
            self.move_probes(probe, &turned);
            self.changed_now(&turned);
        }
    }

    /// Compares what tracing costs with what it may cost, when it is time for that, or urgent.
    pub(super) fn keep_budget(
        &mut self,
        probe: &mut Probe,
        resolver: &mut Resolver,
        at: Timestamp,
        out: &mut Vec<RawEvent>,
    ) {
        let elapsed = at.since(self.budget_at);
        let Some(share) = self.request.budget.filter(|_| elapsed >= URGENT_NS) else {
            return;
        };
        let loads = self.loads(elapsed);
        let cost = budget::cost_ns(&loads);
        if elapsed < BUDGET_NS && cost as f64 <= elapsed as f64 * share * URGENT {
            return;
        }
        // A target that is mostly idle may still be slowed by a part of one processor.
        let time_ns = self.begin_look(at).max(elapsed);
        // What has cost half of the target's time will be called twice as often once it is relieved.
        let left = (1.0 - cost as f64 / time_ns as f64).clamp(MIN_LEFT, 1.0);
        let mut allowed = time_ns as f64 * share;
        if cost as f64 > allowed {
            allowed *= left;
        }
        let mut steps = budget::decide(&loads, allowed as u64);
        if steps.is_empty() {
            return;
        }
        let percent = cost as f64 * 100.0 / time_ns as f64;
        let too_much = format!(
            "tracing takes {percent:.1} % of the target's time, the budget is {:.1} %",
            share * 100.0
        );
        let rates: FxHashMap<u32, u64> = loads
            .iter()
            .map(|load| {
                let calls = load.entries.saturating_mul(1_000_000_000);
                (load.probe, calls / elapsed.max(1))
            })
            .collect();
        let rate = |number: u32| rates.get(&number).copied().unwrap_or(0);
        steps.sort_by_key(|&(number, _)| std::cmp::Reverse(rate(number)));
        // One more is told of as soon as a line of its own would take as much room.
        let told = match steps.len() {
            len if len <= MAX_TOLD + 1 => len,
            _ => MAX_TOLD,
        };
        let mut changed = Vec::new();
        for (index, &(number, level)) in steps.iter().enumerate() {
            self.step_down(number, level, at, out);
            let name = &self.probes[number as usize].plan.function.name;
            let calls = rate(number);
            let level_of_line = match index < told {
                true => log::Level::Warn,
                false => log::Level::Info,
            };
            log::log!(
                level_of_line,
                "{too_much}: {name} ({calls} calls a second) {}",
                becomes(level)
            );
            changed.push(number);
        }
        let rest = &steps[told..];
        for level in [Level::Entries, Level::Duty, Level::Off] {
            let count = rest.iter().filter(|&&(_, other)| other == level).count();
            if count > 0 {
                log::warn!(
                    "{too_much}: each of {count} more functions {}",
                    becomes(level)
                );
            }
        }
        self.move_probes(probe, &changed);
        self.changed_now(&changed);
        for number in changed {
            self.announce_probe(number, resolver);
        }
        // What was hit until the probes were moved is no fault of their new levels.
        self.read_counts(probe);
        self.begin_look(now());
    }

    /// What each probe has done since the budget was looked at.
    fn loads(&self, elapsed: u64) -> Vec<budget::Load> {
        let crowds = self.crowds();
        let loads = (0..).zip(&self.probes).map(|(number, state)| {
            let mut load = state.load(number, elapsed);
            load.crowd(crowds[state.object]);
            load
        });
        loads.filter(|load| load.cost_ns() > 0).collect()
    }

    /// From now on is what the budget looks at next. Says how much processor time the targets have used
    /// since the last time.
    pub(super) fn begin_look(&mut self, at: Timestamp) -> u64 {
        self.budget_at = at;
        for state in &mut self.probes {
            if state.level != Level::Duty {
                state.budgeted = state.counted;
            }
        }
        self.used_ns()
    }

    /// What was decided holds from now on: until its links had gone, a probe was hit as before.
    fn changed_now(&mut self, probes: &[u32]) {
        let at = now();
        for &number in probes {
            self.probes[number as usize].since = at;
        }
    }

    fn step_down(&mut self, number: u32, level: Level, at: Timestamp, out: &mut Vec<RawEvent>) {
        self.stepped_down.insert(number);
        self.close_gap(number, at, out);
        let on_duty = |state: &&ProbeState| state.level == Level::Duty;
        let others = self.probes.iter().filter(on_duty).count();
        let state = &mut self.probes[number as usize];
        state.level = level;
        state.since = at;
        state.on_duty = level != Level::Duty;
        state.wait_ns = budget::first_wait_ns(others as u64);
        state.budgeted = state.counted;
        state.last_duty = 0;
    }

    /// Tells the gap of a probe's present level, which ends now.
    pub(super) fn close_gap(&self, number: u32, at: Timestamp, out: &mut Vec<RawEvent>) {
        let state = &self.probes[number as usize];
        let reason = match state.level {
            Level::Full => return,
            Level::Entries => GapReason::NoReturns,
            Level::Duty if state.on_duty => return,
            Level::Duty => GapReason::DutyCycle,
            Level::Off => GapReason::Detached,
        };
        // It may have begun since this tick did.
        if at > state.since {
            out.push(gap(at, state.since, Some(number), None, reason));
        }
    }

    /// CPU time that the targets have used since the last call; 0 if the whole machine is traced. Of
    /// one that is new nothing counts yet: it may have run long before.
    pub(super) fn used_ns(&mut self) -> u64 {
        let mut used = 0u64;
        for pid in self.processes.keys().copied().flatten() {
            let Some(cpu_ns) = profiler_resolve::cpu_time_ns(pid) else {
                continue;
            };
            if let Some(before) = self.cpu_ns.insert(pid, cpu_ns) {
                used = used.saturating_add(cpu_ns.saturating_sub(before));
            }
        }
        used
    }

    /// How many processes each object is attached to by links of their own.
    fn crowds(&self) -> Vec<u32> {
        let mut crowds = vec![0; self.objects.len()];
        for &object in self.processes.values().flatten() {
            crowds[object] += 1;
        }
        crowds
    }
}

/// A gap that ends at `at`.
pub(super) fn gap(
    at: Timestamp,
    from: Timestamp,
    probe: Option<u32>,
    pid: Option<Pid>,
    reason: GapReason,
) -> RawEvent {
    RawEvent {
        at,
        cpu: Cpu(0),
        body: RawBody::Gap(RawGap {
            from,
            probe,
            pid,
            reason,
        }),
    }
}
