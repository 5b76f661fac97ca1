//! Probes that must be seen in another way, because of what a target has mapped since.
//!
//! What does not belong here: whether return probes are safe (`trace::safety`).

use super::plans::Plans;
use profiler_trace::{Exits, NoExits};

impl Plans {
    /// A file was mapped that makes return probes unsafe: functions that have them get probes on
    /// their return instructions instead, or lose their exits. Says whose probes are to be moved for that.
    pub(super) fn replan(&mut self) -> Vec<u32> {
        let mut changed = Vec::new();
        for index in 0..self.objects.len() {
            let traced = &self.objects[index];
            let has_return_probe =
                |&number: &u32| matches!(self.probes[number].plan.exits, Exits::Uretprobe);
            let risky: Vec<u32> = traced.probes.clone().filter(has_return_probe).collect();
            if risky.is_empty() {
                continue;
            }
            let functions = risky.iter();
            let functions = functions.map(|&number| self.probes[number].plan.function.clone());
            let target = &traced.target;
            let functions = functions.collect();
            let exits = self
                .reader
                .exits(&self.asked, target, functions, &self.safety)
                .unwrap_or_else(|why| {
                    log::warn!(
                        "{}: {why}; only entries are traced from now on",
                        target.path
                    );
                    vec![None; risky.len()]
                });
            for (number, exits) in risky.into_iter().zip(exits) {
                let exits = exits.unwrap_or(Exits::None(NoExits::NotWanted));
                if exits != self.probes[number].plan.exits {
                    changed.push((number, exits));
                }
            }
        }
        if changed.is_empty() {
            return Vec::new();
        }
        log::warn!(
            "a target has mapped code that return probes could break: {} functions are watched by \
             their return instructions from now on",
            changed.len()
        );
        let mut numbers = Vec::new();
        for (number, exits) in changed {
            let state = &mut self.probes[number];
            let mut plan = state.plan.clone();
            plan.exits = exits;
            state.replan(plan, &self.asked.costs);
            numbers.push(number);
        }
        numbers
    }
}
