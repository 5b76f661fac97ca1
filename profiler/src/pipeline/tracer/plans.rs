//! Object files of the targets -> probes: chooses functions, plans where their probes sit, tells the
//! resolver what they are.
//!
//! Each file is read once, however many processes map it. What does not belong here: reading one
//! (`planned`), attaching (`links`), which process gets what (`targets`).

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use rustc_hash::{FxHashMap, FxHashSet};

use super::asked::Asked;
use super::contents::{Contents, Reader};
use super::hooks::{is_hook_library, unwind_class};
use super::news::{Bulletin, News};
use super::planned::{self, Before, Judged, Looked, Planned};
use super::planner::{Found, Planner};
use super::probes::{ProbeState, Probes};
use super::values::Values;
use crate::pipeline::signals::is_given_up;
use profiler_model::raw::RawMmap;
use profiler_model::text::TextMap;
use profiler_model::{BuildId, TracedKind};
use profiler_probe::now;
use profiler_resolve::objects::{FileId, TargetObject};
use profiler_resolve::{Resolver, Role, TracedProbe, warn_once};
use profiler_trace::arguments::exception_name;
use profiler_trace::safety::ProcessSafety;
use profiler_trace::{CallValues, FunctionKind, Plan};

/// A file with probes.
#[derive(Debug)]
pub(super) struct TracedObject {
    /// The file itself, kept open: what is at its path may change. The path is that of the first process that
    /// mapped it.
    pub(super) target: TargetObject,
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

/// How long events wait until a newly mapped file has been read. Most are read within a tenth of that; calls
/// are missing until then.
const PATIENCE: Duration = Duration::from_millis(50);
/// Functions of a file that are named if they can't be traced; the rest is counted.
const NAMED: usize = 5;

/// Files that were read, and the probes planned in them.
#[derive(Debug)]
pub(super) struct Plans {
    pub(super) asked: Arc<Asked>,
    pub(super) objects: Vec<TracedObject>,
    pub(super) probes: Probes,
    /// How many of them the resolver knows.
    announced: u32,
    /// Files that have been looked at; none: nothing in it is traced.
    by_file: FxHashMap<FileId, KnownFile>,
    /// The same by the path at which each was seen first.
    by_path: TextMap<Box<str>, Vec<FileId>>,
    /// How exits may be seen, as far as the files together allow.
    pub(super) safety: ProcessSafety,
    /// Files that switch between stacks.
    switching: FxHashSet<FileId>,
    /// A pattern names no path, so all files are read.
    pub(super) reads_all: bool,
    /// Plans are outdated, see [`Plans::replan`].
    replan_due: bool,
    full_told: bool,
    pub(super) reader: Reader,
    planner: Planner,
    pub(super) news: Bulletin,
}

impl Plans {
    pub(super) fn new(asked: Arc<Asked>) -> Plans {
        Plans {
            reader: Reader::new(),
            planner: Planner::new(Arc::clone(&asked)),
            asked,
            objects: Vec::new(),
            probes: Probes::default(),
            announced: 0,
            by_file: FxHashMap::default(),
            by_path: TextMap::default(),
            safety: ProcessSafety::of([], false),
            switching: FxHashSet::default(),
            reads_all: false,
            replan_due: false,
            full_told: false,
            news: Bulletin::default(),
        }
    }

    /// Reads a file if a pattern may match something in it.
    pub(super) fn read(&mut self, target: &TargetObject) -> Option<Contents> {
        let before = self.before();
        let read = planned::read(&mut self.reader, &self.asked, target, &before, &is_given_up);
        match read? {
            Ok(contents) => {
                self.judge(target, contents.judged.clone());
                Some(contents)
            }
            Err(why) => {
                self.unreadable(target, &why);
                None
            }
        }
    }

    /// Whether a file is read for the functions in it alone.
    pub(super) fn sifts(&self, target: &TargetObject) -> bool {
        (self.reads_all || self.asked.may_cover(target)) && !is_hook_library(&target.path)
    }

    fn before(&self) -> Before {
        Before {
            safety: self.safety.clone(),
            reads_all: self.reads_all,
        }
    }

    fn unreadable(&mut self, target: &TargetObject, why: &str) {
        let path = &target.path;
        warn_once(
            "files",
            format_args!("{path}: {why}; nothing in it is traced"),
        );
        self.news.failed(&target.path, "*", why);
    }

    /// What is known of a file that was looked at: the index of its traced object, or that nothing in it is
    /// traced.
    pub(super) fn known(&self, target: &TargetObject) -> Option<Option<usize>> {
        let known = self.by_file.get(&target.id)?;
        // A file with probes is kept open, so its number can't be that of another one.
        let is_same = known.object.is_some() || known.build_id == target.build_id;
        is_same.then_some(known.object)
    }

    /// The same of a file that is known only by what its mapping says.
    pub(super) fn known_by_mapping(&self, mmap: &RawMmap) -> Option<Option<usize>> {
        let path = String::from_utf8_lossy(&mmap.path);
        let of_path = self.by_path.get(&*path)?;
        let mut files = of_path.iter().filter(|id| id.inode() == mmap.file.inode);
        let known = files.next().and_then(|id| self.by_file.get(id))?;
        Some(known.object)
    }

    /// Looks at files that are not known yet, on another thread; waits for it, but not for long. Says
    /// whether all are known now: what isn't is to be asked for again.
    pub(super) fn look_at<'a>(
        &mut self,
        targets: impl IntoIterator<Item = &'a TargetObject> + Clone,
    ) -> bool {
        let before = self.before();
        let mut is_new = false;
        for target in targets.clone() {
            is_new |= self.known(target).is_none() && self.planner.ask(target, &before);
        }
        if is_new {
            self.planner.wait(PATIENCE);
        }
        self.take_found();
        let mut targets = targets.into_iter();
        targets.all(|target| self.known(target).is_some())
    }

    /// Takes the results of files that were read since the last call.
    pub(super) fn take_found(&mut self) {
        for Found { target, looked } in self.planner.take() {
            if self.known(&target).is_some() {
                continue;
            }
            let index = match looked {
                Looked::Useless => None,
                Looked::Unreadable(why) => {
                    self.unreadable(&target, &why);
                    None
                }
                Looked::Read {
                    judged,
                    is_filtered,
                    planned,
                } => {
                    let mut safety = judged.safety.clone();
                    self.judge(&target, judged);
                    // Another file may have come between.
                    self.replan_due |= safety.restrict_as(&self.safety);
                    if is_filtered {
                        self.tell_filtered(&target);
                    }
                    self.add(&target, planned)
                }
            };
            if let Some(index) = index {
                let count = self.objects[index].probes.len();
                log::debug!("{} was mapped: {count} probes", target.path);
            }
            self.know(&target, index);
        }
    }

    pub(super) fn know(&mut self, target: &TargetObject, object: Option<usize>) {
        let build_id = target.build_id.clone();
        let known = KnownFile { object, build_id };
        if self.by_file.insert(target.id, known).is_none() {
            let of_path = self.by_path.entry(target.path.clone()).or_default();
            of_path.push(target.id);
        }
    }

    /// Notes what a file implies for the processes that map it.
    pub(super) fn judge(&mut self, target: &TargetObject, judged: Judged) {
        self.replan_due |= self.safety.restrict_as(&judged.safety);
        if judged.switches {
            self.switching.insert(target.id);
        }
    }

    /// Notes that a process makes code at run time.
    pub(super) fn add_anonymous_code(&mut self) {
        self.replan_due |= self.safety.add_anonymous_code();
    }

    /// Whether what was planned must be planned anew, because of what was mapped since.
    pub(super) fn take_replan_due(&mut self) -> bool {
        std::mem::take(&mut self.replan_due)
    }

    /// Whether a file switches between stacks: whoever maps it, pairing needs to know.
    pub(super) fn switches_stacks(&self, target: &TargetObject) -> bool {
        self.switching.contains(&target.id)
    }

    /// Takes out of what is chosen what the filter of the request does not admit.
    pub(super) fn sift(&mut self, target: &TargetObject, contents: &mut Contents) {
        if contents.sift(target, self.asked.request.filter.as_ref()) {
            self.tell_filtered(target);
        }
    }

    fn tell_filtered(&mut self, target: &TargetObject) {
        let object = target.path.to_string();
        self.news.add(News::Filtered { object });
    }

    /// Whether functions of an object are traced: without its other probes no call is missing.
    pub(super) fn has_calls(&self, object: usize) -> bool {
        let mut probes = self.objects[object].probes.clone();
        probes.any(|number| self.probes.is_call(number))
    }

    /// Plans what was chosen in a file before anything is attached, unless the start is given up.
    pub(super) fn plan_object(
        &mut self,
        target: &TargetObject,
        contents: &Contents,
    ) -> Option<usize> {
        let (asked, safety) = (&self.asked, &self.safety);
        match self
            .reader
            .plan(asked, target, contents, safety, &is_given_up)
        {
            Ok(planned) => self.add(target, planned),
            Err(why) => {
                self.unreadable(target, &why);
                None
            }
        }
    }

    /// Gives the plans of a file numbers of probes. None if there are none.
    fn add(&mut self, target: &TargetObject, planned: Planned) -> Option<usize> {
        let Planned {
            mut plans,
            mut values,
            refused,
        } = planned;
        self.tell_refused(target, &refused);
        let room = self.probes.most.saturating_sub(self.probes.len()) as usize;
        if plans.len() > room {
            self.tell_dropped(target, plans.len(), &plans[room..]);
            plans.truncate(room);
            values.truncate(room);
        }
        if plans.is_empty() {
            return None;
        }
        let functions = plans.iter().filter(|(_, role)| *role == Role::Call);
        let functions = functions.count();
        if functions > 0 {
            self.news.add(News::Traced {
                object: target.path.to_string(),
                functions,
            });
        }
        let index = self.objects.len();
        let first = self.probes.len();
        let at = now();
        for (plan, role) in plans {
            self.probes
                .push(ProbeState::new(plan, role, index, &self.asked.costs, at));
        }
        self.objects.push(TracedObject {
            target: target.clone(),
            probes: first..self.probes.len(),
            values,
        });
        Some(index)
    }

    fn tell_refused(&mut self, target: &TargetObject, refused: &[(Box<str>, String)]) {
        for (name, why) in refused {
            self.news.failed(&target.path, name, why);
        }
        for (name, why) in refused.iter().take(NAMED) {
            warn_once(
                "functions",
                format_args!("{name} in {} is not traced: {why}", target.path),
            );
        }
        if refused.len() > NAMED {
            warn_once(
                "functions",
                format_args!(
                    "nor are {} other functions in {}: 'profiler list functions' says why",
                    refused.len() - NAMED,
                    target.path
                ),
            );
        }
    }

    /// Logs that there is no room for some probes of a file.
    fn tell_dropped(&mut self, target: &TargetObject, of: usize, dropped: &[(Plan, Role)]) {
        if !std::mem::replace(&mut self.full_told, true) {
            log::warn!(
                "{} of {of} functions in {} are not traced: no more probes fit into this recording",
                dropped.len(),
                target.path
            );
        }
        for (plan, _) in dropped.iter().filter(|(_, role)| *role == Role::Call) {
            let why = "no more probes fit into this recording";
            self.news.failed(&target.path, &plan.function.name, why);
        }
    }

    /// Announces all probes to the resolver that it does not know yet.
    pub(super) fn announce(&mut self, resolver: &mut Resolver) -> Vec<u32> {
        let new = self.announced..self.probes.len();
        self.announced = new.end;
        for number in new.clone() {
            self.announce_probe(number, resolver);
        }
        new.collect()
    }

    /// Announces probes again that have changed.
    pub(super) fn announce_again(&self, changed: &[u32], resolver: &mut Resolver) {
        for &number in changed.iter().filter(|&&number| number < self.announced) {
            self.announce_probe(number, resolver);
        }
    }

    /// Announces a probe as it is now.
    fn announce_probe(&self, number: u32, resolver: &mut Resolver) {
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
                path: object.target.path.clone(),
                build_id: object.target.build_id.clone(),
                address_bias: object.target.bias,
                start: function.address.wrapping_sub(object.target.bias),
                size: function.size,
                source: function.source.clone(),
                declared: function.line,
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
