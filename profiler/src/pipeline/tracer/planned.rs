//! One object file -> what is to be traced in it, and what it says of the processes that map it.
//!
//! Reading a file and planning all of its functions can take seconds, so nothing here belongs to the
//! tracer: it can be done on any thread, and given up. Nobody is told of anything yet.
//!
//! What does not belong here: what becomes of it (`plans`), the thread (`planner`).

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::asked::Asked;
use super::contents::{Contents, Reader};
use super::hooks::{is_hook_library, plan_hooks};
use super::values::{Values, sign};
use profiler_object::{Function, Object};
use profiler_resolve::Role;
use profiler_resolve::objects::TargetObject;
use profiler_trace::pattern::Choice;
use profiler_trace::place::{PlaceOptions, Placer, Returns};
use profiler_trace::safety::{ProcessSafety, changes_stacks};
use profiler_trace::{Exits, Plan, lines};

/// What is known of processes before a file is looked at.
#[derive(Clone, Debug)]
pub(super) struct Before {
    pub(super) safety: ProcessSafety,
    /// No file's path says that it holds what is asked for, so all are looked into.
    pub(super) reads_all: bool,
}

/// What a file says of the processes that map it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Judged {
    /// How exits may be seen, by all that was known before and this file.
    pub(super) safety: ProcessSafety,
    /// It switches between stacks.
    pub(super) switches: bool,
}

impl Judged {
    pub(super) fn of(object: &Object, before: &ProcessSafety) -> Judged {
        let mut safety = before.clone();
        safety.add(object);
        Judged {
            safety,
            switches: changes_stacks(object),
        }
    }
}

/// What is to be traced in a file.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Planned {
    pub(super) plans: Vec<(Plan, Role)>,
    /// Signatures of those that have one, in the same order.
    pub(super) values: Vec<Option<Arc<Values>>>,
    /// Functions that were chosen and can't be traced, and why.
    pub(super) refused: Vec<(Box<str>, String)>,
}

/// A file that was looked at.
#[derive(Debug)]
pub(super) enum Looked {
    /// Nothing in it can be of use.
    Useless,
    /// It can't be read: why.
    Unreadable(String),
    /// It was read.
    Read {
        judged: Judged,
        /// Functions were chosen, but the request's filter admits none of them.
        is_filtered: bool,
        planned: Planned,
    },
}

/// Reads a file if anything in it may be of use, and chooses in it what was asked for.
pub(super) fn read(
    reader: &mut Reader,
    asked: &Asked,
    target: &TargetObject,
    before: &Before,
    given_up: &dyn Fn() -> bool,
) -> Option<Result<Contents, String>> {
    let wanted = before.reads_all || asked.may_cover(target);
    let by_probes = matches!(asked.request.returns, Returns::Auto | Returns::Uretprobe);
    let judged = by_probes && !asked.shared;
    if !wanted && !judged && !is_hook_library(&target.path) {
        return None;
    }
    if !target.is_local {
        // Only one that was named by its path comes so far.
        let why = "it lies with a server (FUSE, a network), or on an overlay that may have it from one: the kernel \
                   would ask that where probes are attached";
        return Some(Err(why.to_owned()));
    }
    Some(reader.read(asked, target, wanted, &before.safety, given_up))
}

/// Reads a file, chooses in it what was asked for, and plans that, unless it is `given_up` meanwhile.
pub(super) fn look(
    reader: &mut Reader,
    asked: &Asked,
    target: &TargetObject,
    before: &Before,
    given_up: &dyn Fn() -> bool,
) -> Looked {
    let mut contents = match read(reader, asked, target, before, given_up) {
        None => return Looked::Useless,
        Some(Err(why)) => return Looked::Unreadable(why),
        Some(Ok(contents)) => contents,
    };
    let is_filtered = contents.sift(target, asked.request.filter.as_ref());
    let safety = &contents.judged.safety;
    match reader.plan(asked, target, &contents, safety, given_up) {
        Ok(planned) => Looked::Read {
            judged: contents.judged,
            is_filtered,
            planned,
        },
        Err(why) => Looked::Unreadable(why),
    }
}

impl Planned {
    /// Whether there is what there must be, if somebody else says so.
    pub(super) fn is_sound(&self) -> bool {
        self.plans.len() == self.values.len()
    }
}

/// Plans what was chosen in a file, and the functions that tell of exceptions. What is left when it is
/// `given_up` is not planned. Of text among `arguments` so many bytes; none: they are not wanted.
pub(super) fn plan(
    options: PlaceOptions<'_>,
    arguments: Option<usize>,
    object: &Object,
    choice: &Choice,
    safety: &ProcessSafety,
    given_up: &dyn Fn() -> bool,
) -> Planned {
    let mut planned = Planned::default();
    let functions = choice.functions.iter();
    let functions = functions.filter_map(|&index| object.functions().get(index));
    let markers = choice.markers.iter();
    let markers = markers.filter_map(|&index| object.markers().get(index));
    let mut placer = Placer::new(object, options, safety);
    for function in functions.chain(markers).take_while(|_| !given_up()) {
        match placer.plan(function) {
            Ok(mut plan) => {
                if choice.has_sources {
                    plan.function.source = object.source_of(function).map(Box::from);
                    plan.function.line = object.line_of(function).unwrap_or(0);
                }
                planned.plans.push((plan, Role::Call));
            }
            Err(refusal) => {
                let refused = (function.name.clone(), refusal.to_string());
                planned.refused.push(refused);
            }
        }
    }
    plan_hooks(object, options, safety, &mut planned.plans);
    let called = planned.plans.iter_mut();
    let called = called.filter(|(_, role)| *role == Role::Call);
    lines::of_plans(object, called.map(|(plan, _)| plan));
    planned.values = sign(arguments, object, &mut planned.plans);
    planned
}

/// How the exits of functions are seen; none: they can't be.
pub(super) fn exits(
    options: PlaceOptions<'_>,
    object: &Object,
    functions: &[Function],
    safety: &ProcessSafety,
) -> Vec<Option<Exits>> {
    let mut placer = Placer::new(object, options, safety);
    let planned = functions.iter().map(|function| placer.plan(function).ok());
    let mut exits: Vec<Option<Exits>> = planned.map(|plan| plan.map(|plan| plan.exits)).collect();
    lines::of_exits(object, exits.iter_mut().flatten());
    exits
}
