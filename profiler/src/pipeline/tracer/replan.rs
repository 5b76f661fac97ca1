//! Probes that must be seen in another way, because of what a target has mapped since.
//!
//! What does not belong here: whether return probes are safe (`trace::safety`).

use super::plans::Plans;
use profiler_object::Object;
use profiler_trace::lines;
use profiler_trace::place::Placer;
use profiler_trace::{Exits, NoExits};

impl Plans {
    /// A file was mapped that makes return probes unsafe: functions that have them get probes on
    /// their return instructions instead, or lose their exits. Says whose probes are to be moved for that.
    pub(super) fn replan(&mut self) -> Vec<u32> {
        let mut changed = Vec::new();
        for index in 0..self.objects.len() {
            let traced = &self.objects[index];
            let risky = traced
                .probes
                .clone()
                .any(|number| matches!(self.probes[number].plan.exits, Exits::Uretprobe));
            if !risky {
                continue;
            }
            let object = match Object::read(&traced.file, traced.debug.as_deref(), &traced.path) {
                Ok(object) => Some(object),
                Err(error) => {
                    log::warn!(
                        "{}: {error}; only entries are traced from now on",
                        traced.path
                    );
                    None
                }
            };
            let mut placer = object
                .as_ref()
                .map(|object| Placer::new(object, self.asked.place_options(), &self.safety));
            let first = changed.len();
            for number in traced.probes.clone() {
                let state = &self.probes[number];
                if !matches!(state.plan.exits, Exits::Uretprobe) {
                    continue;
                }
                let exits = placer
                    .as_mut()
                    .and_then(|placer| placer.plan(&state.plan.function).ok())
                    .map_or(Exits::None(NoExits::NotWanted), |plan| plan.exits);
                if exits != state.plan.exits {
                    changed.push((number, exits));
                }
            }
            if let Some(object) = &object {
                let exits = changed[first..].iter_mut();
                lines::of_exits(object, exits.map(|(_, exits)| exits));
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
