//! One object file -> what is to be traced in it, and what it says of the processes that map it.
//!
//! Reading a file and planning all of its functions can take seconds, so nothing here belongs to the
//! tracer: it can be done on any thread, and given up. Nobody is told of anything yet.
//!
//! What does not belong here: what becomes of it (`plans`), the thread (`planner`).

use std::sync::Arc;

use super::asked::Asked;
use super::hooks::{is_hook_library, plan_hooks};
use super::values::{Values, sign};
use profiler_object::Object;
use profiler_resolve::Role;
use profiler_resolve::objects::TargetObject;
use profiler_trace::pattern::Choice;
use profiler_trace::place::{Placer, Returns};
use profiler_trace::safety::{ProcessSafety, changes_stacks};
use profiler_trace::{Plan, lines};

/// What is known of processes before a file is looked at.
#[derive(Clone, Debug)]
pub(super) struct Before {
    pub(super) safety: ProcessSafety,
    /// No file's path says that it holds what is asked for, so all are looked into.
    pub(super) reads_all: bool,
}

/// What a file says of the processes that map it.
#[derive(Clone, Debug)]
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
#[derive(Debug, Default)]
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

/// Reads a file if anything in it may be of use. Source of what it holds: `object`.
pub(super) fn read(
    asked: &Asked,
    target: &TargetObject,
    reads_all: bool,
) -> Option<Result<Object, String>> {
    let wanted = reads_all || asked.may_cover(target);
    let by_probes = matches!(asked.request.returns, Returns::Auto | Returns::Uretprobe);
    let judged = by_probes && !asked.shared;
    if !wanted && !judged && !is_hook_library(&target.path) {
        return None;
    }
    let debug = target.debug.as_deref().filter(|_| wanted);
    Some(target.read(debug).map_err(|error| error.to_string()))
}

/// Reads a file, chooses in it what was asked for, and plans that, unless it is `given_up` meanwhile.
pub(super) fn look(
    asked: &Asked,
    target: &TargetObject,
    before: &Before,
    given_up: &dyn Fn() -> bool,
) -> Looked {
    let object = match read(asked, target, before.reads_all) {
        None => return Looked::Useless,
        Some(Err(why)) => return Looked::Unreadable(why),
        Some(Ok(object)) => object,
    };
    let judged = Judged::of(&object, &before.safety);
    let mut choice = asked.request.selection.select(&object, target.is_main);
    let is_filtered = sift(asked, target, &object, &mut choice);
    let planned = plan(asked, &object, &choice, &judged.safety, given_up);
    Looked::Read {
        judged,
        is_filtered,
        planned,
    }
}

/// Takes out of a choice what the filter of the request does not admit. Says whether that was all of it.
pub(super) fn sift(
    asked: &Asked,
    target: &TargetObject,
    object: &Object,
    choice: &mut Choice,
) -> bool {
    let filter = asked.request.filter.as_ref();
    filter.is_some_and(|filter| filter.sift(target, object, choice))
}

/// Plans what was chosen in a file, and the functions that tell of exceptions. What is left when it is
/// `given_up` is not planned.
pub(super) fn plan(
    asked: &Asked,
    object: &Object,
    choice: &Choice,
    safety: &ProcessSafety,
    given_up: &dyn Fn() -> bool,
) -> Planned {
    let mut planned = Planned::default();
    let functions = choice
        .functions
        .iter()
        .map(|&index| &object.functions()[index]);
    let markers = choice.markers.iter().map(|&index| &object.markers()[index]);
    let mut placer = Placer::new(object, asked.place_options(), safety);
    for function in functions.chain(markers).take_while(|_| !given_up()) {
        match placer.plan(function) {
            Ok(mut plan) => {
                if choice.has_sources {
                    plan.function.source = object.source_of(function).map(Box::from);
                }
                planned.plans.push((plan, Role::Call));
            }
            Err(refusal) => {
                let refused = (function.name.clone(), refusal.to_string());
                planned.refused.push(refused);
            }
        }
    }
    plan_hooks(object, asked.place_options(), safety, &mut planned.plans);
    let called = planned.plans.iter_mut();
    let called = called.filter(|(_, role)| *role == Role::Call);
    lines::of_plans(object, called.map(|(plan, _)| plan));
    planned.values = sign(asked.request.arguments, object, &mut planned.plans);
    planned
}
