//! What runs when tracing begins -> the functions that are traced in it.
//!
//! Patterns and the files of all targets -> planned probes, or what is wrong with the patterns. What
//! runs decides together how exits may be seen, so all files are read before anything is planned.
//!
//! What does not belong here: files that are mapped later (`follow`), one file (`plans`).

use std::io::IsTerminal;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustc_hash::{FxHashMap, FxHashSet};

use super::asked::Asked;
use super::cgroup_members::CgroupMembers;
use super::contents::Contents;
use super::ends::Ends;
use super::plans::Plans;
use super::targets::Targets;
use crate::error::Failure;
use crate::pipeline::signals::{is_given_up, unless_given_up};
use profiler_model::Pid;
use profiler_probe::now;
use profiler_resolve::objects::TargetObject;
use profiler_trace::pattern::{Choice, Complaint, Coverage, Selection};
use profiler_trace::safety::ProcessSafety;

/// Who waits longer at a terminal is told for what.
const LONG: Duration = Duration::from_secs(1);
/// From this many functions on, a person is asked first.
const MANY: usize = 10_000;

/// Chooses functions in the files of the targets and plans them; targets come to have what they map.
pub(super) fn choose(
    files: Vec<(Option<Pid>, TargetObject)>,
    plans: &mut Plans,
    targets: &mut Targets,
    ends: &mut Ends,
) -> Result<(), Failure> {
    let asked = Arc::clone(&plans.asked);
    let selection = &asked.request.selection;
    let mut coverage = Coverage::new(selection);
    // A pattern may name a library as the dynamic linker knows it; that is inside the files.
    plans.reads_all =
        selection.may_name_sonames() && !files.iter().any(|(_, target)| asked.may_cover(target));
    if asked.shared {
        // What will run these files nobody knows.
        plans.safety = ProcessSafety::unknown();
    }
    let mut files = Files::read(files, plans);
    if files.miss_some(selection) {
        // For what could have been meant.
        files.read_rest(plans);
    }
    // What was not read is not missing.
    unless_given_up()?;
    // All is chosen before anything is planned: too much may be asked for.
    files.cover(plans, &mut coverage);
    let choices: Vec<&Choice> = files.choices().collect();
    let awaited = targets
        .members
        .as_ref()
        .is_some_and(CgroupMembers::is_empty);
    check_choice(&asked, &coverage.complaints(), &choices, awaited)?;
    let mut indexes = Vec::new();
    for (target, contents) in &files.read {
        let index = contents
            .as_ref()
            .and_then(|contents| plans.plan_object(target, contents));
        plans.know(target, index);
        indexes.push(index);
        unless_given_up()?;
    }
    // All of it was judged before any of it was planned.
    plans.take_replan_due();
    files.hand_out(&indexes, plans, targets, ends)
}

/// Files of the targets, each once, and who maps which by index.
struct Files {
    read: Vec<(TargetObject, Option<Contents>)>,
    /// Those that were not read because they have no word that is asked for, by index.
    without: Vec<usize>,
    users: Vec<(Pid, usize)>,
}

impl Files {
    fn read(files: Vec<(Option<Pid>, TargetObject)>, plans: &mut Plans) -> Files {
        let mut read: Vec<(TargetObject, Option<Contents>)> = Vec::new();
        let mut index_of = FxHashMap::default();
        let mut users: Vec<(Pid, usize)> = Vec::new();
        let mut without = Vec::new();
        let words = plans.asked.words();
        let begun = Instant::now();
        let mut told = !std::io::stderr().is_terminal();
        for (pid, target) in files {
            if is_given_up() {
                break;
            }
            if begun.elapsed() > LONG && !std::mem::replace(&mut told, true) {
                log::warn!(
                    "looking for what is traced in the files of all that runs: the recording begins behind that"
                );
            }
            let index = *index_of.entry(target.id).or_insert_with(|| {
                let has_none = |words: &Vec<_>| plans.sifts(&target) && !target.may_name(words);
                let contents = match words.as_ref().is_some_and(has_none) {
                    true => {
                        without.push(read.len());
                        None
                    }
                    false => plans.read(&target),
                };
                read.push((target, contents));
                read.len() - 1
            });
            users.extend(pid.map(|pid| (pid, index)));
        }
        Files {
            read,
            without,
            users,
        }
    }

    /// Whether something that is asked for is in none of those that were read, and may be in others, or have been
    /// meant there.
    fn miss_some(&self, selection: &Selection) -> bool {
        let mut coverage = Coverage::new(selection);
        let read = self
            .read
            .iter()
            .filter_map(|(_, contents)| contents.as_ref());
        read.for_each(|contents| coverage.add(contents.seen.clone()));
        let complaints = coverage.complaints();
        let mut missing = complaints.iter();
        !self.without.is_empty()
            && missing.any(|complaint| !matches!(complaint, Complaint::ChosenAtLoad { .. }))
    }

    /// Reads those that have no word that is asked for.
    fn read_rest(&mut self, plans: &mut Plans) {
        for index in std::mem::take(&mut self.without) {
            if is_given_up() {
                break;
            }
            let (target, contents) = &mut self.read[index];
            *contents = plans.read(target);
        }
    }

    /// Notes what was seen in each, and takes out what the request's filter does not admit.
    fn cover(&mut self, plans: &mut Plans, coverage: &mut Coverage) {
        for (target, contents) in &mut self.read {
            match contents {
                Some(contents) => {
                    coverage.add(contents.seen.clone());
                    plans.sift(target, contents);
                }
                None => coverage.skip(&target.path),
            }
        }
    }

    /// What is chosen in those that were read.
    fn choices(&self) -> impl Iterator<Item = &Choice> {
        let contents = self
            .read
            .iter()
            .filter_map(|(_, contents)| contents.as_ref());
        contents.map(|contents| &contents.choice)
    }

    /// Targets come to have the planned objects that these files are, unless they run copies of code.
    fn hand_out(
        mut self,
        objects: &[Option<usize>],
        plans: &Plans,
        targets: &mut Targets,
        ends: &mut Ends,
    ) -> Result<(), Failure> {
        let asked = &plans.asked;
        let mut translated = FxHashSet::default();
        for &(pid, index) in &self.users {
            if ends.is_translator(pid, &self.read[index].0, asked.shared) {
                translated.insert(pid);
            }
        }
        if !asked.shared && !translated.is_empty() {
            if self.users.iter().all(|(pid, _)| translated.contains(pid)) {
                return Err(Failure::failed(
                    "nothing is left to trace: see above for what can't be".to_owned(),
                ));
            }
            self.users.retain(|(pid, _)| !translated.contains(pid));
            ends.leave_alone(translated, now());
        }
        for (pid, index) in self.users {
            if plans.switches_stacks(&self.read[index].0) {
                targets.switches(pid);
            }
            targets.enter(asked.process(pid)).extend(objects[index]);
        }
        Ok(())
    }
}

/// What was asked for and is not there, or is there more often than anybody wants. What is `awaited`
/// need not be there.
fn check_choice(
    asked: &Asked,
    complaints: &[Complaint],
    choices: &[&Choice],
    awaited: bool,
) -> Result<(), Failure> {
    let chosen: usize = choices
        .iter()
        .map(|choice| choice.functions.len() + choice.markers.len())
        .sum();
    let patterns = (0..).zip(&asked.request.selection.include);
    let widest = patterns.map(|(index, pattern)| {
        let matched = choices
            .iter()
            .filter_map(|choice| choice.matched.get(index));
        (matched.sum::<usize>(), pattern.to_string())
    });
    // An object that is there won't come to have more functions.
    let final_one = |complaint: &&Complaint| match complaint {
        Complaint::UnknownObject { .. } => false,
        // Whoever asks for everything takes what there is, and what will be loaded or run may have some.
        Complaint::NoFunction { objects, name, .. } => !objects.is_empty() && &**name != "*",
        _ => true,
    };
    if chosen == 0
        && complaints.iter().all(|complaint| final_one(&complaint))
        && let Some(first) = complaints.first()
    {
        return Err(Failure::failed(first.to_string()));
    }
    for complaint in complaints {
        let level = match awaited && !final_one(&complaint) {
            true => log::Level::Info,
            false => log::Level::Warn,
        };
        log::log!(level, "{complaint}");
    }
    let matched = choices.iter().flat_map(|choice| &choice.matched);
    let matched: usize = matched.sum();
    if chosen == 0 && asked.request.filter.is_some() && matched > 0 {
        log::warn!(
            "nothing is traced yet: {matched} functions match, and HQ's inclusions and exclusions \
                 admit none of them"
        );
    } else if chosen == 0 && !awaited {
        log::warn!(
            "nothing is traced yet; programs and libraries that the target loads from now on are \
                 looked at ('profiler list functions' shows what there is)"
        );
    }
    if chosen > MANY && !asked.request.yes {
        let most = widest.max().map_or(String::new(), |(matched, pattern)| {
            format!(" ({matched} of them '{pattern}')")
        });
        return Err(Failure::failed(format!(
            "{chosen} functions match{most}, and every call of each costs the target time: name \
                 fewer, or insist with --yes ('profiler list functions' shows them)"
        )));
    }
    Ok(())
}
