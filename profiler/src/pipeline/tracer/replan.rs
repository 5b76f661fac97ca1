//! Probes that must be seen in another way, because of what a target has mapped since.
//!
//! What does not belong here: whether return probes are safe (`trace::safety`).

use super::Tracer;
use profiler_object::Object;
use profiler_probe::Probe;
use profiler_resolve::Resolver;
use profiler_trace::lines;
use profiler_trace::place::Placer;
use profiler_trace::{Exits, NoExits};

impl Tracer {
    /// A file was mapped that makes return probes unsafe: functions that have them get probes on
    /// their return instructions instead, or lose their exits.
    pub(super) fn replan(&mut self, probe: &mut Probe, resolver: &mut Resolver) {
        let mut changed = Vec::new();
        for index in 0..self.objects.len() {
            let traced = &self.objects[index];
            let risky = traced
                .probes
                .clone()
                .any(|number| matches!(self.probes[number as usize].plan.exits, Exits::Uretprobe));
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
                .map(|object| Placer::new(object, self.place_options(), &self.safety));
            let first = changed.len();
            for number in traced.probes.clone() {
                let state = &self.probes[number as usize];
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
            return;
        }
        log::warn!(
            "a target has mapped code that return probes could break: {} functions are watched by \
             their return instructions from now on",
            changed.len()
        );
        let mut numbers = Vec::new();
        for (number, exits) in changed {
            let state = &mut self.probes[number as usize];
            let mut plan = state.plan.clone();
            plan.exits = exits;
            state.replan(plan, &self.costs);
            numbers.push(number);
        }
        self.move_probes(probe, &numbers);
        for number in numbers {
            self.announce_probe(number, resolver);
        }
    }
}
