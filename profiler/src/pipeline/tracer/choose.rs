//! What runs when tracing begins -> the functions that are traced in it.
//!
//! Patterns and the files of all targets -> planned probes, or what is wrong with the patterns. What
//! runs decides together how exits may be seen, so all files are read before anything is planned.
//!
//! What does not belong here: files that are mapped later (`follow`), one file (`objects`).

use rustc_hash::FxHashSet;

use super::Tracer;
use super::members::Members;
use crate::error::Failure;
use profiler_model::Pid;
use profiler_object::Object;
use profiler_probe::now;
use profiler_resolve::objects::TargetObject;
use profiler_trace::pattern::{Choice, Complaint, Coverage};
use profiler_trace::safety::ProcessSafety;

/// From this many functions on, a person is asked first.
const MANY: usize = 10_000;

impl Tracer {
    /// Chooses functions in the files of the targets and plans them. What runs decides together how
    /// exits may be seen, so all files are read first.
    pub(super) fn choose(
        &mut self,
        targets: Vec<(Option<Pid>, TargetObject)>,
    ) -> Result<(), Failure> {
        let selection = self.request.selection.clone();
        let mut coverage = Coverage::new(&selection);
        // A pattern may name a library as the dynamic linker knows it; that is inside the files.
        self.reads_all = !targets.iter().any(|(_, target)| self.may_cover(target));
        let mut read: Vec<(TargetObject, Option<Object>)> = Vec::new();
        let mut index_of = rustc_hash::FxHashMap::default();
        let mut users: Vec<(Pid, usize)> = Vec::new();
        for (pid, target) in targets {
            let index = *index_of.entry(target.id).or_insert_with(|| {
                let object = self.read(&target);
                read.push((target, object));
                read.len() - 1
            });
            users.extend(pid.map(|pid| (pid, index)));
        }
        if self.shared {
            // What will run these files nobody knows.
            self.safety = ProcessSafety::unknown();
        }
        for (target, object) in &read {
            if let Some(object) = object {
                self.judge(target, object);
            }
        }
        // All is chosen before anything is planned: too much may be asked for.
        let mut choices = Vec::new();
        for (target, object) in &read {
            match object {
                Some(object) => {
                    let mut choice = selection.select(object, target.is_main);
                    coverage.add(object, target.is_main, &choice);
                    self.sift(target, object, &mut choice);
                    choices.push(choice);
                }
                None => {
                    coverage.skip(&target.path);
                    choices.push(Choice::default());
                }
            }
        }
        let chosen = choices
            .iter()
            .map(|choice| choice.functions.len() + choice.markers.len())
            .sum();
        let by_pattern = (0..).zip(&selection.include).map(|(index, pattern)| {
            let matched = choices
                .iter()
                .filter_map(|choice| choice.matched.get(index));
            (matched.sum::<usize>(), pattern.to_string())
        });
        self.check_choice(&coverage.complaints(), chosen, by_pattern.max())?;
        let mut indexes = Vec::new();
        for ((target, object), choice) in read.iter().zip(&choices) {
            let index = match object {
                Some(object) => self.plan_object(target, object, choice),
                None => None,
            };
            self.know(target, index);
            indexes.push(index);
        }
        let mut translated = FxHashSet::default();
        for &(pid, index) in &users {
            if self.is_translator(pid, &read[index].0) {
                translated.insert(pid);
            }
        }
        if !self.shared && !translated.is_empty() {
            if users.iter().all(|(pid, _)| translated.contains(pid)) {
                return Err(Failure::failed(
                    "nothing is left to trace: see above for what can't be".to_owned(),
                ));
            }
            users.retain(|(pid, _)| !translated.contains(pid));
            self.ends.leave_alone(translated, now());
        }
        for (pid, index) in users {
            if self.switching.contains(&read[index].0.id) {
                self.switchers.push(pid);
            }
            let objects = self.processes.entry(self.process(pid)).or_default();
            objects.extend(indexes[index]);
        }
        Ok(())
    }

    /// What was asked for and is not there, or is there more often than anybody wants.
    fn check_choice(
        &self,
        complaints: &[Complaint],
        chosen: usize,
        widest: Option<(usize, String)>,
    ) -> Result<(), Failure> {
        // An object that is there won't come to have more functions.
        let final_one = |complaint: &&Complaint| match complaint {
            Complaint::UnknownObject { .. } => false,
            Complaint::NoFunction { objects, .. } => !objects.is_empty(),
            _ => true,
        };
        if chosen == 0
            && complaints.iter().all(|complaint| final_one(&complaint))
            && let Some(first) = complaints.first()
        {
            return Err(Failure::failed(first.to_string()));
        }
        // Of what is waited for it is no wonder that it is not there.
        let awaited = self.members.as_ref().is_some_and(Members::is_empty);
        for complaint in complaints {
            let level = match awaited && !final_one(&complaint) {
                true => log::Level::Info,
                false => log::Level::Warn,
            };
            log::log!(level, "{complaint}");
        }
        if chosen == 0 && !awaited {
            log::warn!(
                "nothing is traced yet; programs and libraries that the target loads from now on are \
                 looked at ('profiler list functions' shows what there is)"
            );
        }
        if chosen > MANY && !self.request.yes {
            let most = widest.map_or(String::new(), |(matched, pattern)| {
                format!(" ({matched} of them '{pattern}')")
            });
            return Err(Failure::failed(format!(
                "{chosen} functions match{most}, and every call of each costs the target time: name \
                 fewer, or insist with --yes ('profiler list functions' shows them)"
            )));
        }
        Ok(())
    }
}
