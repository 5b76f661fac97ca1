//! Object files of the targets -> probes: chooses functions, plans where their probes sit, tells the
//! resolver what they are.
//!
//! Each file is read once, however many processes map it. What does not belong here: attaching
//! (`links`), which process gets what (the tracer).

use std::fs::File;
use std::ops::Range;
use std::sync::Arc;

use super::state::ProbeState;
use super::{KnownFile, MANY, Tracer};
use crate::error::Failure;
use crate::model::{BuildId, Pid, TracedKind, Value};
use crate::probe::now;
use crate::resolve::objects::TargetObject;
use crate::resolve::{Resolver, Role, TracedProbe};
use crate::trace::arguments::{Signature, Signatures, exception_class, exception_name};
use crate::trace::lines;
use crate::trace::object::Object;
use crate::trace::pattern::{Choice, Complaint, Coverage};
use crate::trace::place::{PlaceOptions, Placer, Returns};
use crate::trace::safety::{ProcessSafety, changes_stacks};
use crate::trace::{CallValues, Exits, Function, FunctionKind, Plan};

/// A file with probes.
#[derive(Debug)]
pub(super) struct TracedObject {
    /// The file itself, kept open: what is at its path may change.
    pub(super) file: Arc<File>,
    debug: Option<Arc<File>>,
    /// Its path as the first process that mapped it sees it.
    pub(super) path: Box<str>,
    build_id: Option<BuildId>,
    /// Its probes.
    pub(super) probes: Range<u32>,
    /// Signatures of those that have one, by probe.
    values: Vec<Option<Arc<Values>>>,
}

/// Functions of a file that are named if they can't be traced; the rest is counted.
const NAMED: usize = 5;

/// Functions that tell of exceptions and of jumps out of functions.
/// Sources: the Itanium C++ ABI (exception handling), glibc's setjmp.h.
const HOOKS: &[(&str, Role)] = &[
    ("__cxa_throw", Role::CxxThrow),
    ("_Unwind_RaiseException", Role::UnwindThrow),
    ("__cxa_rethrow", Role::Rethrow),
    ("_Unwind_ForcedUnwind", Role::Unwind),
    ("__cxa_begin_catch", Role::Land),
    ("_Unwind_Resume", Role::Land),
    ("_Unwind_DeleteException", Role::Land),
    ("__rust_panic_cleanup", Role::Land),
    ("longjmp", Role::Jump),
    ("_longjmp", Role::Jump),
    ("siglongjmp", Role::Jump),
    ("__longjmp_chk", Role::Jump),
];

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
        self.reads_all = !targets
            .iter()
            .any(|(_, target)| selection.may_cover(&target.path, target.is_main));
        let mut read: Vec<(TargetObject, Option<Object>)> = Vec::new();
        let mut index_of = rustc_hash::FxHashMap::default();
        let mut users: Vec<(Pid, usize)> = Vec::new();
        for (pid, target) in targets {
            let index = *index_of.entry(target.device_inode).or_insert_with(|| {
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
                    let choice = selection.select(object, target.is_main);
                    coverage.add(object, target.is_main, &choice);
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
        for (pid, index) in users {
            if self.switching.contains(&read[index].0.device_inode) {
                self.switchers.push(pid);
            }
            if let Some(object) = indexes[index] {
                let key = if self.shared { Pid(0) } else { pid };
                self.processes
                    .entry(key)
                    .or_default()
                    .objects
                    .insert(object);
            } else if !self.shared {
                self.processes.entry(pid).or_default();
            }
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
        for complaint in complaints {
            log::warn!("{complaint}");
        }
        if chosen == 0 {
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

    fn read(&self, target: &TargetObject) -> Option<Object> {
        let selection = &self.request.selection;
        let wanted = self.reads_all || selection.may_cover(&target.path, target.is_main);
        let judged = self.request.returns == Returns::Auto && !self.shared;
        if !wanted && !judged && !is_hook_library(&target.path) {
            return None;
        }
        let debug = target.debug.as_deref().filter(|_| wanted);
        match Object::read(&target.file, debug, &target.path) {
            Ok(object) => Some(object),
            Err(error) => {
                log::warn!("{}: {error}; nothing in it is traced", target.path);
                None
            }
        }
    }

    /// The index of a file that a process has mapped; none if nothing in it is traced.
    pub(super) fn object(&mut self, target: &TargetObject, pid: Option<Pid>) -> Option<usize> {
        // A file with probes is kept open, so its number can't be that of another one.
        if let Some(known) = self.by_file.get(&target.device_inode)
            && (known.object.is_some() || known.build_id == target.build_id)
        {
            return known.object;
        }
        let object = self.read(target);
        let index = object.and_then(|object| {
            self.judge(target, &object);
            let choice = self.request.selection.select(&object, target.is_main);
            self.plan_object(target, &object, &choice)
        });
        if let (Some(index), Some(pid)) = (index, pid) {
            let count = self.objects[index].probes.len();
            log::debug!("pid {pid} has mapped {}: {count} probes", target.path);
        }
        self.know(target, index);
        index
    }

    fn know(&mut self, target: &TargetObject, object: Option<usize>) {
        let build_id = target.build_id.clone();
        let known = KnownFile { object, build_id };
        self.by_file.insert(target.device_inode, known);
    }

    /// What a file says of the processes that map it.
    fn judge(&mut self, target: &TargetObject, object: &Object) {
        self.safety.add(object);
        if changes_stacks(object) {
            self.switching.insert(target.device_inode);
        }
    }

    fn place_options(&self) -> PlaceOptions<'_> {
        PlaceOptions {
            at: self.request.at,
            returns: self.request.returns,
            costs: &self.costs,
        }
    }

    fn plan_object(
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
        let mut placer = Placer::new(object, self.place_options(), &self.safety);
        for function in functions.chain(markers) {
            match placer.plan(function) {
                Ok(plan) => plans.push((plan, Role::Call)),
                Err(refusal) => refused.push((function, refusal)),
            }
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
        self.plan_hooks(object, &mut plans);
        let room = self.max_probes.saturating_sub(self.probes.len() as u32) as usize;
        if plans.len() > room {
            if !std::mem::replace(&mut self.full_told, true) {
                log::warn!(
                    "{} of {} functions in {} are not traced: no more probes fit into this recording",
                    plans.len() - room,
                    plans.len(),
                    target.path
                );
            }
            plans.truncate(room);
        }
        if plans.is_empty() {
            return None;
        }
        let called = plans.iter_mut().filter(|(_, role)| *role == Role::Call);
        lines::of_plans(object, called.map(|(plan, _)| plan));
        let values = self.sign(object, &mut plans);
        let index = self.objects.len();
        let first = self.probes.len() as u32;
        let at = now();
        for (plan, role) in plans {
            self.probes
                .push(ProbeState::new(plan, role, index, &self.costs, at));
        }
        self.objects.push(TracedObject {
            file: Arc::clone(&target.file),
            debug: target.debug.clone(),
            path: target.path.clone(),
            build_id: target.build_id.clone(),
            probes: first..self.probes.len() as u32,
            values,
        });
        Some(index)
    }

    /// Where exceptions are thrown and land; needed only if exits are watched.
    fn plan_hooks(&self, object: &Object, plans: &mut Vec<(Plan, Role)>) {
        if self.request.returns == Returns::None {
            return;
        }
        let entries = PlaceOptions {
            returns: Returns::None,
            ..self.place_options()
        };
        let mut placer = Placer::new(object, entries, &self.safety);
        let mut seen = Vec::new();
        for &(name, role) in HOOKS {
            let named = |function: &&Function| {
                let linkage = function.linkage_name.as_deref();
                linkage.unwrap_or(&function.name) == name
                    || function.aliases.iter().any(|alias| **alias == *name)
            };
            let Some(function) = object.functions().iter().find(named) else {
                continue;
            };
            if seen.contains(&function.offset) {
                continue;
            }
            seen.push(function.offset);
            if let Ok(plan) = placer.plan(function) {
                plans.push((plan, role));
            }
        }
    }

    pub(super) fn has_throws(&self) -> bool {
        let throws = |state: &ProbeState| matches!(state.role, Role::CxxThrow | Role::UnwindThrow);
        self.probes.iter().any(throws) || self.request.returns != Returns::None
    }

    /// Finds out what the values of functions are, if they are wanted.
    fn sign(&self, object: &Object, plans: &mut [(Plan, Role)]) -> Vec<Option<Arc<Values>>> {
        let Some(longest) = self.request.arguments else {
            return vec![None; plans.len()];
        };
        let mut signatures = Signatures::open(|name| object.section(name));
        let mut found = Vec::with_capacity(plans.len());
        for (plan, role) in plans {
            if *role != Role::Call {
                found.push(None);
                continue;
            }
            let function = &plan.function;
            let signature = match &function.kind {
                FunctionKind::Marker { arguments, .. } => Signature::of_marker(arguments),
                FunctionKind::Function => {
                    let linkage = function.linkage_name.as_deref().unwrap_or(&function.name);
                    let known = signatures
                        .as_mut()
                        .and_then(|signatures| signatures.signature(function.address, linkage));
                    known.unwrap_or_else(Signature::registers)
                }
            };
            let mut signature = signature;
            signature.limit_text(longest);
            plan.fetches = signature.fetches.clone();
            if matches!(plan.exits, Exits::None(_)) {
                plan.fetches.retain(|fetch| fetch.at_exit == 0);
            }
            found.push(Some(Arc::new(Values { signature, longest })));
        }
        found
    }

    /// Tells the resolver of all probes from `first` on.
    pub(super) fn announce(&self, first: usize, resolver: &mut Resolver) {
        for number in first..self.probes.len() {
            self.announce_probe(number as u32, resolver);
        }
    }

    /// Tells the resolver of a probe as it is now.
    pub(super) fn announce_probe(&self, number: u32, resolver: &mut Resolver) {
        let state = &self.probes[number as usize];
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
                entry_offset: (state.plan.entry.offset
                    - function.offset.min(state.plan.entry.offset))
                    as u32,
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

    /// A file was mapped that makes return probes unsafe: functions that have them get probes on
    /// their return instructions instead, or lose their exits.
    pub(super) fn replan(&mut self, probe: &mut crate::probe::Probe, resolver: &mut Resolver) {
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
                    .map_or(Exits::None(crate::trace::NoExits::NotWanted), |plan| {
                        plan.exits
                    });
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

/// The values of a function, as the resolver reads them.
#[derive(Debug)]
struct Values {
    signature: Signature,
    longest: usize,
}

impl CallValues for Values {
    fn parameters(&self) -> Vec<(String, Option<String>)> {
        let parameters = self.signature.parameters.iter();
        parameters
            .map(|parameter| (parameter.name.to_string(), Some(parameter.kind.to_string())))
            .collect()
    }

    fn result(&self) -> Option<String> {
        let result = self.signature.result.as_ref()?;
        Some(result.kind.to_string())
    }

    fn decode(&self, items: &[u8], at_exit: bool) -> Vec<Value> {
        self.signature.decode(items, at_exit, self.longest)
    }
}

/// What `_Unwind_RaiseException` raises: the record has the class of the exception.
fn unwind_class(class: &[u8]) -> String {
    match class.try_into() {
        Ok(class) => exception_class(u64::from_ne_bytes(class)),
        Err(_) => "exception".to_owned(),
    }
}

/// Whether a library has the functions that tell of exceptions and jumps.
fn is_hook_library(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    [
        "libstdc++",
        "libgcc_s",
        "libc++abi",
        "libunwind",
        "libc.so",
        "libc-",
    ]
    .iter()
    .any(|stem| name.starts_with(stem))
}
