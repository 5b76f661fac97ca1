//! Object files of the targets -> probes: chooses functions, plans where their probes sit, tells the
//! resolver what they are.
//!
//! Each file is read once, however many processes map it. What does not belong here: attaching
//! (`links`), which process gets what (`targets`).

use std::fs::File;
use std::ops::Range;
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use super::asked::Asked;
use super::hooks::{is_hook_library, plan_hooks, unwind_class};
use super::news::{Bulletin, News};
use super::probes::{ProbeState, Probes};
use super::values::{Values, sign};
use crate::pipeline::signals::is_given_up;
use profiler_model::{BuildId, Pid, TracedKind};
use profiler_object::Object;
use profiler_probe::now;
use profiler_resolve::objects::{FileId, TargetObject};
use profiler_resolve::{Resolver, Role, TracedProbe};
use profiler_trace::arguments::exception_name;
use profiler_trace::lines;
use profiler_trace::pattern::Choice;
use profiler_trace::place::{Placer, Returns};
use profiler_trace::safety::{ProcessSafety, changes_stacks};
use profiler_trace::{CallValues, FunctionKind, Plan};

/// A file with probes.
#[derive(Debug)]
pub(super) struct TracedObject {
    /// The file itself, kept open: what is at its path may change.
    pub(super) file: Arc<File>,
    pub(super) id: FileId,
    pub(super) debug: Option<Arc<File>>,
    /// Its path as the first process that mapped it sees it.
    pub(super) path: Box<str>,
    build_id: Option<BuildId>,
    /// Its probes.
    pub(super) probes: Range<u32>,
    /// Signatures of those that have one, by probe.
    values: Vec<Option<Arc<Values>>>,
}

/// A file that has been looked at.
#[derive(Debug)]
pub(super) struct KnownFile {
    /// Its traced object; none: nothing in it is traced.
    pub(super) object: Option<usize>,
    /// Which file it was: the number of a file is used again once it is deleted and closed.
    pub(super) build_id: Option<BuildId>,
}

/// Functions of a file that are named if they can't be traced; the rest is counted.
const NAMED: usize = 5;

/// Files that were read, and the probes planned in them.
#[derive(Debug)]
pub(super) struct Plans {
    pub(super) asked: Arc<Asked>,
    pub(super) objects: Vec<TracedObject>,
    pub(super) probes: Probes,
    /// Files that have been looked at; none: nothing in it is traced.
    by_file: FxHashMap<FileId, KnownFile>,
    /// What the files say together of how exits may be seen.
    pub(super) safety: ProcessSafety,
    /// Files that switch between stacks.
    switching: FxHashSet<FileId>,
    /// No file's path says that it holds what is asked for, so all are looked into.
    pub(super) reads_all: bool,
    full_told: bool,
    pub(super) news: Bulletin,
}

impl Plans {
    pub(super) fn new(asked: Arc<Asked>) -> Plans {
        Plans {
            asked,
            objects: Vec::new(),
            probes: Probes::default(),
            by_file: FxHashMap::default(),
            safety: ProcessSafety::of([], false),
            switching: FxHashSet::default(),
            reads_all: false,
            full_told: false,
            news: Bulletin::default(),
        }
    }

    /// Reads a file if anything in it may be of use.
    pub(super) fn read(&mut self, target: &TargetObject) -> Option<Object> {
        let wanted = self.reads_all || self.asked.may_cover(target);
        let returns = self.asked.request.returns;
        let by_probes = matches!(returns, Returns::Auto | Returns::Uretprobe);
        let judged = by_probes && !self.asked.shared;
        if !wanted && !judged && !is_hook_library(&target.path) {
            return None;
        }
        let debug = target.debug.as_deref().filter(|_| wanted);
        match Object::read(&target.file, debug, &target.path) {
            Ok(object) => Some(object.with_aliases(&target.aliases)),
            Err(error) => {
                log::warn!("{}: {error}; nothing in it is traced", target.path);
                self.news.failed(&target.path, "*", error);
                None
            }
        }
    }

    /// The index of a file that a process has mapped; none if nothing in it is traced.
    pub(super) fn object(&mut self, target: &TargetObject, pid: Option<Pid>) -> Option<usize> {
        // A file with probes is kept open, so its number can't be that of another one.
        if let Some(known) = self.by_file.get(&target.id)
            && (known.object.is_some() || known.build_id == target.build_id)
        {
            return known.object;
        }
        let object = self.read(target);
        let index = object.and_then(|object| {
            self.judge(target, &object);
            let mut choice = self.asked.request.selection.select(&object, target.is_main);
            self.sift(target, &object, &mut choice);
            self.plan_object(target, &object, &choice)
        });
        if let (Some(index), Some(pid)) = (index, pid) {
            let count = self.objects[index].probes.len();
            log::debug!("pid {pid} has mapped {}: {count} probes", target.path);
        }
        self.know(target, index);
        index
    }

    pub(super) fn know(&mut self, target: &TargetObject, object: Option<usize>) {
        let build_id = target.build_id.clone();
        let known = KnownFile { object, build_id };
        self.by_file.insert(target.id, known);
    }

    /// What a file says of the processes that map it.
    pub(super) fn judge(&mut self, target: &TargetObject, object: &Object) {
        self.safety.add(object);
        if changes_stacks(object) {
            self.switching.insert(target.id);
        }
    }

    /// Whether a file switches between stacks: whoever maps it, pairing needs to know.
    pub(super) fn switches_stacks(&self, target: &TargetObject) -> bool {
        self.switching.contains(&target.id)
    }

    /// Takes out of a choice what the filter of the request does not admit.
    pub(super) fn sift(&mut self, target: &TargetObject, object: &Object, choice: &mut Choice) {
        if let Some(filter) = &self.asked.request.filter
            && filter.sift(target, object, choice)
        {
            let object = target.path.to_string();
            self.news.add(News::Filtered { object });
        }
    }

    /// Whether functions of an object are traced: without its other probes no call is missing.
    pub(super) fn has_calls(&self, object: usize) -> bool {
        let mut probes = self.objects[object].probes.clone();
        probes.any(|number| self.probes.is_call(number))
    }

    pub(super) fn plan_object(
        &mut self,
        target: &TargetObject,
        object: &Object,
        choice: &Choice,
    ) -> Option<usize> {
        let mut plans: Vec<(Plan, Role)> = Vec::new();
        let mut refused = Vec::new();
        let functions = choice
            .functions
            .iter()
            .map(|&index| &object.functions()[index]);
        let markers = choice.markers.iter().map(|&index| &object.markers()[index]);
        let mut placer = Placer::new(object, self.asked.place_options(), &self.safety);
        // Nobody waits for the rest once the start is given up; `choose` tells.
        for function in functions.chain(markers).take_while(|_| !is_given_up()) {
            match placer.plan(function) {
                Ok(plan) => plans.push((plan, Role::Call)),
                Err(refusal) => refused.push((function, refusal)),
            }
        }
        for (function, refusal) in &refused {
            self.news.failed(&target.path, &function.name, refusal);
        }
        for (function, refusal) in refused.iter().take(NAMED) {
            log::warn!(
                "{} in {} is not traced: {refusal}",
                function.name,
                target.path
            );
        }
        if refused.len() > NAMED {
            log::warn!(
                "nor are {} other functions in {}: 'profiler list functions' says why",
                refused.len() - NAMED,
                target.path
            );
        }
        plan_hooks(object, self.asked.place_options(), &self.safety, &mut plans);
        let room = self.probes.most.saturating_sub(self.probes.len()) as usize;
        if plans.len() > room {
            if !std::mem::replace(&mut self.full_told, true) {
                log::warn!(
                    "{} of {} functions in {} are not traced: no more probes fit into this recording",
                    plans.len() - room,
                    plans.len(),
                    target.path
                );
            }
            let dropped = plans.drain(room..);
            for (plan, _) in dropped.filter(|(_, role)| *role == Role::Call) {
                let why = "no more probes fit into this recording";
                self.news.failed(&target.path, &plan.function.name, why);
            }
        }
        if plans.is_empty() {
            return None;
        }
        let called = plans.iter_mut().filter(|(_, role)| *role == Role::Call);
        lines::of_plans(object, called.map(|(plan, _)| plan));
        let functions = plans.iter().filter(|(_, role)| *role == Role::Call);
        let functions = functions.count();
        if functions > 0 {
            self.news.add(News::Traced {
                object: target.path.to_string(),
                functions,
            });
        }
        let values = sign(self.asked.request.arguments, object, &mut plans);
        let index = self.objects.len();
        let first = self.probes.len();
        let at = now();
        for (plan, role) in plans {
            self.probes
                .push(ProbeState::new(plan, role, index, &self.asked.costs, at));
        }
        self.objects.push(TracedObject {
            file: Arc::clone(&target.file),
            id: target.id,
            debug: target.debug.clone(),
            path: target.path.clone(),
            build_id: target.build_id.clone(),
            probes: first..self.probes.len(),
            values,
        });
        Some(index)
    }

    /// Tells the resolver of all probes from `first` on.
    pub(super) fn announce(&self, first: u32, resolver: &mut Resolver) {
        for number in first..self.probes.len() {
            self.announce_probe(number, resolver);
        }
    }

    /// Tells the resolver of a probe as it is now.
    pub(super) fn announce_probe(&self, number: u32, resolver: &mut Resolver) {
        let state = &self.probes[number];
        let object = &self.objects[state.object];
        let function = &state.plan.function;
        let values = object
            .values
            .get((number - object.probes.start) as usize)
            .and_then(Option::as_ref);
        resolver.trace(
            number,
            TracedProbe {
                name: function.name.clone(),
                linkage_name: function.linkage_name.clone(),
                path: object.path.clone(),
                build_id: object.build_id.clone(),
                address_bias: function.address.wrapping_sub(function.offset),
                start: function.offset,
                size: function.size,
                source: function.source.clone(),
                line: state.plan.line,
                exit_lines: state.exit_lines(),
                kind: match function.kind {
                    FunctionKind::Function => TracedKind::Function,
                    FunctionKind::Marker { .. } => TracedKind::Marker,
                },
                entry_offset: state.plan.entry.offset.saturating_sub(function.offset) as u32,
                returns: state.returns(),
                cost_ns: state.call_ns(),
                values: values
                    .map(|values| Arc::clone(values) as Arc<dyn CallValues + Send + Sync>),
                role: state.role,
                exception: match state.role {
                    Role::CxxThrow => Some(exception_name),
                    Role::UnwindThrow => Some(unwind_class),
                    _ => None,
                },
            },
        );
    }
}
