//! Keeps tracing within its budget: chooses probes that are watched less, and notes their gaps.
//!
//! Counts of the kernel and the targets' processor time -> probes that are watched less. Costs are
//! nanoseconds of the target.
//!
//! What does not belong here: which steps (`load`), moving probes between links (`links`).

use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use super::asked::Asked;
use super::load::{self, Level, Load};
use super::plans::Plans;
use super::probes::Probes;
use super::targets::Targets;
use profiler_model::raw::RawEvent;
use profiler_model::sorting::InOrder;
use profiler_model::{GapReason, Pid, Timestamp};

/// Interval in which the budget is checked.
const BUDGET_NS: u64 = 200_000_000;
/// If tracing costs more than this many times its budget, the next tick checks it again.
const URGENT: f64 = 4.0;
/// Shortest time over which costs are compared with the budget: less says too little.
const URGENT_NS: u64 = 20_000_000;
/// The least share of its CPU time that a target is assumed to have for itself, however much tracing takes.
const MIN_LEFT: f64 = 0.05;

/// Number of functions that are logged one by one when many are watched less at once.
const MAX_TOLD: usize = 10;

/// The message about a function that is watched less.
fn becomes(level: Level) -> &'static str {
    match level {
        Level::Full => "goes on",
        Level::Entries => "is watched at its entry only from now on",
        Level::Duty => "is watched 5 % of the time, at its entry only, from now on",
        Level::Off => "is not traced any more",
    }
}

/// What tracing has cost so far, and which probes are watched less for it.
#[derive(Debug)]
pub(super) struct Budget {
    asked: Arc<Asked>,
    looked_at: Timestamp,
    /// CPU time of each target at that time.
    cpu_ns: FxHashMap<Pid, u64>,
    stepped_down: FxHashSet<u32>,
}

impl Budget {
    pub(super) fn new(asked: Arc<Asked>, at: Timestamp) -> Budget {
        Budget {
            asked,
            looked_at: at,
            cpu_ns: FxHashMap::default(),
            stepped_down: FxHashSet::default(),
        }
    }

    /// Probes that are watched less than they were at first.
    pub(super) fn stepped_down(&self) -> usize {
        self.stepped_down.len()
    }

    pub(super) fn forget(&mut self, pid: Pid) {
        self.cpu_ns.remove(&pid);
    }

    /// Compares what tracing costs with its budget, if the interval is over or the excess is large. Returns
    /// the probes that are watched less now, and so have to be moved.
    pub(super) fn look(
        &mut self,
        plans: &mut Plans,
        targets: &Targets,
        at: Timestamp,
        out: &mut Vec<RawEvent>,
    ) -> Vec<u32> {
        let elapsed = at.since(self.looked_at);
        let budget = self.asked.request.budget;
        let Some(share) = budget.filter(|_| elapsed >= URGENT_NS) else {
            return Vec::new();
        };
        let loads = loads(plans, targets, elapsed);
        let cost = load::cost_ns(&loads);
        if elapsed < BUDGET_NS && cost as f64 <= elapsed as f64 * share * URGENT {
            return Vec::new();
        }
        // A target that is mostly idle may still be slowed by a part of one processor.
        let time_ns = self.begin(&mut plans.probes, targets, at).max(elapsed);
        // What has cost half of the target's time will be called twice as often once it is relieved.
        let left = (1.0 - cost as f64 / time_ns as f64).clamp(MIN_LEFT, 1.0);
        let mut allowed = time_ns as f64 * share;
        if cost as f64 > allowed {
            allowed *= left;
        }
        let mut steps = load::decide(&loads, allowed as u64);
        if steps.is_empty() {
            return Vec::new();
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
        steps.order_by_key(|&(number, _)| std::cmp::Reverse(rate(number)));
        // One more is told of as soon as a line of its own would take as much room.
        let told = match steps.len() {
            len if len <= MAX_TOLD + 1 => len,
            _ => MAX_TOLD,
        };
        let mut changed = Vec::new();
        for (index, &(number, level)) in steps.iter().enumerate() {
            self.step_down(&mut plans.probes, number, level, at, out);
            let name = &plans.probes[number].plan.function.name;
            // One that was off duty has a cost by what it was called before.
            let calls = match rate(number) {
                0 => String::new(),
                calls => format!(" ({calls} calls a second)"),
            };
            let level_of_line = match index < told {
                true => log::Level::Warn,
                false => log::Level::Info,
            };
            log::log!(
                level_of_line,
                "{too_much}: {name}{calls} {}",
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
        changed
    }

    /// Begins a new interval. Returns the CPU time that the targets have used in the last one.
    pub(super) fn begin(&mut self, probes: &mut Probes, targets: &Targets, at: Timestamp) -> u64 {
        self.looked_at = at;
        for (_, state) in probes.iter_mut() {
            if state.level != Level::Duty {
                state.budgeted = state.counted;
            }
        }
        self.used_ns(targets)
    }

    fn step_down(
        &mut self,
        probes: &mut Probes,
        number: u32,
        level: Level,
        at: Timestamp,
        out: &mut Vec<RawEvent>,
    ) {
        self.stepped_down.insert(number);
        out.extend(probes[number].gap(number, at));
        let on_duty = probes
            .iter()
            .filter(|(_, state)| state.level == Level::Duty);
        let others = on_duty.count();
        let state = &mut probes[number];
        state.was_without_returns = state.gap_reason() == Some(GapReason::NoReturns);
        state.level = level;
        state.since = at;
        state.on_duty = level != Level::Duty;
        state.wait_ns = load::first_wait_ns(others as u64);
        state.budgeted = state.counted;
        state.last_duty = 0;
        out.extend(state.gap_begins(number, at));
    }

    /// CPU time that the targets have used since the last call; 0 if the whole machine is traced. Of
    /// one that is new nothing counts yet: it may have run long before.
    pub(super) fn used_ns(&mut self, targets: &Targets) -> u64 {
        let mut used = 0u64;
        for pid in targets.processes() {
            let Some(cpu_ns) = profiler_target::proc_fs::cpu_time_ns(pid) else {
                continue;
            };
            if let Some(before) = self.cpu_ns.insert(pid, cpu_ns) {
                used = used.saturating_add(cpu_ns.saturating_sub(before));
            }
        }
        used
    }
}

/// The hits of each probe since the last check.
fn loads(plans: &Plans, targets: &Targets, elapsed: u64) -> Vec<Load> {
    let crowds = targets.crowds(plans.objects.len());
    let loads = plans.probes.iter().map(|(number, state)| {
        let mut load = state.load(number, elapsed);
        load.crowd(crowds[state.object]);
        load
    });
    loads.filter(|load| load.cost_ns() > 0).collect()
}
