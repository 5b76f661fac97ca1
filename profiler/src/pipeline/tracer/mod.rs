//! Function tracing of a recording: which probes are attached to whom, from its start to its end.
//!
//! A [`TraceRequest`] -> probes attached to what runs, to what is mapped later and to children; counts
//! and gaps as raw events; steps down when the budget is exceeded. Costs are nanoseconds of the target.
//!
//! What does not belong here: choosing and placing (`trace`), the kernel side (`probe`), pairing
//! (`resolve`).

mod budget;
mod links;
mod objects;
mod state;

use std::collections::VecDeque;
use std::path::Path;
use std::time::Duration;

use rustc_hash::{FxHashMap, FxHashSet};

use self::budget::{DUTY_ON_NS, DUTY_PERIOD_NS, Level};
use self::links::Link;
use self::objects::TracedObject;
use self::state::{Counted, ProbeState};
use crate::error::{Context, Failure};
use crate::model::raw::{FileIdentity, RawBody, RawCallCount, RawEvent, RawGap};
use crate::model::{BuildId, Cpu, GapReason, Pid, Timestamp};
use crate::probe::{self, CallOptions, Probe, now};
use crate::resolve::objects::{Finder, TargetObject};
use crate::resolve::{Resolver, Role};
use crate::target::Filter;
use crate::trace::cost::CostTable;
use crate::trace::pattern::Selection;
use crate::trace::place::{ProbeAt, Returns};
use crate::trace::safety::ProcessSafety;

/// How often the budget is looked at.
const BUDGET_NS: u64 = 200_000_000;
/// What costs more than so many times the budget is seen to at the next tick.
const URGENT: f64 = 4.0;
/// No look at the budget is shorter than this: too little happens.
const URGENT_NS: u64 = 20_000_000;
/// Part of its time that a target is thought to have left at the least, however much tracing takes.
const MIN_LEFT: f64 = 0.05;
/// How often counts are put into the recording.
const COUNTS_NS: u64 = 1_000_000_000;
/// Probes beyond those known at the start, for what is mapped later.
const ROOM: u32 = 4096;
/// Time that one step may spend on attaching to new processes and files.
const STEP_NS: u64 = 100_000_000;
/// Most files of one process that are remembered until it is looked at.
const MAX_PATHS: usize = 256;
/// Most mapped files that are remembered.
const MAX_SEEN: usize = 1 << 16;
/// From this many functions on, a person is asked first.
const MANY: usize = 10_000;
/// From this many sites on, links that take 0.1 s each to remove need to be asked for.
const MANY_CLASSIC: usize = 300;
/// Up to so many processes that run already get links of their own, which keep off all others that run
/// the same files. But each one slows the hits of all the others (see `budget`): more share one link.
const MAX_OWN_LINKS: usize = 32;
/// The folder in which measured costs of probes are kept.
pub const COSTS: &str = "/var/cache/profiler";

/// What to trace, and how.
#[derive(Clone, Debug)]
pub struct TraceRequest {
    /// Which functions.
    pub selection: Selection,
    /// Where entries are seen.
    pub at: ProbeAt,
    /// How exits are seen.
    pub returns: Returns,
    /// Longest string kept of an argument; none: arguments are not wanted.
    pub arguments: Option<usize>,
    /// Share of the target's time that tracing may take; none: no limit.
    pub budget: Option<f64>,
    /// Shorter calls are left out.
    pub min_duration: Duration,
    /// Calls nested deeper are left out; 0: no limit.
    pub max_depth: u32,
    /// More calls of a function per second and processor are left out; 0: no limit.
    pub max_rate: u32,
    /// Children are traced from their first instruction, for which all others that run the same files
    /// pay.
    pub follow_exact: bool,
    /// Don't ask.
    pub yes: bool,
}

/// What became of the tracing.
#[derive(Clone, Debug, Default)]
pub struct TraceSummary {
    /// Functions and markers that were traced.
    pub functions: usize,
    /// Calls by the kernel's count.
    pub calls: u64,
    /// Records lost for want of room.
    pub lost: u64,
    /// Calls left out because of a limit.
    pub left_out: u64,
    /// Functions that stepped down to stay within the budget.
    pub stepped_down: usize,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Tracer {
    request: TraceRequest,
    costs: CostTable,
    /// One link for all processes, filtered in the kernel.
    shared: bool,
    safety: ProcessSafety,
    /// Files that switch between stacks, and processes that map them and are to be told of.
    switching: FxHashSet<(u64, u64)>,
    switchers: Vec<Pid>,
    finder: Finder,
    objects: Vec<TracedObject>,
    /// Files that have been looked at; none: nothing in it is traced.
    by_file: FxHashMap<(u64, u64), KnownFile>,
    probes: Vec<ProbeState>,
    max_probes: u32,
    links: Vec<Link>,
    processes: FxHashMap<Pid, TracedProcess>,
    pending: VecDeque<Pending>,
    /// Mapped files, and whether anything of them is traced.
    seen: FxHashMap<SeenFile, bool>,
    /// Processes whose main thread has ended.
    ending: Vec<Pid>,
    refused: FxHashSet<u32>,
    budget_at: Timestamp,
    counts_at: Timestamp,
    counts: FxHashMap<u32, Counted>,
    /// CPU time of each target when the budget was last looked at.
    cpu_ns: FxHashMap<Pid, u64>,
    /// Memory was made executable that is no file's; what that forbids is still to be replanned.
    code_made: bool,
    stepped_down: FxHashSet<u32>,
    full_told: bool,
    /// No file's path says that it holds what is asked for, so all are looked into.
    reads_all: bool,
}

/// A process that probes are attached to.
#[derive(Debug, Default)]
struct TracedProcess {
    objects: FxHashSet<usize>,
}

/// A file that has been looked at.
#[derive(Debug)]
struct KnownFile {
    /// Its traced object; none: nothing in it is traced.
    object: Option<usize>,
    /// Which file it was: the number of a file is used again once it is deleted and closed.
    build_id: Option<BuildId>,
}

/// Something that is to be attached.
#[derive(Debug)]
struct Pending {
    pid: Pid,
    /// Since when calls are missed.
    since: Timestamp,
    /// A fork: the files of its parent.
    parent: Option<Pid>,
    /// Files that it has mapped, as it sees them.
    paths: Vec<Box<str>>,
}

/// A mapped file as the kernel tells of it.
type SeenFile = (FileIdentity, Box<[u8]>);

impl Tracer {
    /// Chooses functions in what runs, or in what the command will run, and plans their probes.
    /// Nothing is attached yet.
    pub(super) fn prepare(
        request: TraceRequest,
        filter: &Filter,
        command: Option<(Pid, &Path)>,
    ) -> Result<Tracer, Failure> {
        let named = !filter.pids.is_empty() || !filter.tids.is_empty() || command.is_some();
        let narrowed =
            !filter.comms.is_empty() || !filter.uids.is_empty() || !filter.cgroups.is_empty();
        let running = initial_processes(filter, command.map(|(pid, _)| pid));
        let shared = request.follow_exact || narrowed || !named || running.len() > MAX_OWN_LINKS;
        if shared && named && !request.follow_exact && !narrowed {
            log::info!(
                "{} processes share their probes: others that run the same code are slowed as well",
                running.len()
            );
        }
        let costs = CostTable::load(Path::new(COSTS)).map_or_else(measured_costs, Ok)?;
        let at = now();
        let mut tracer = Tracer {
            request,
            costs,
            shared,
            safety: ProcessSafety::of([], false),
            switching: FxHashSet::default(),
            switchers: Vec::new(),
            finder: Finder::default(),
            objects: Vec::new(),
            by_file: FxHashMap::default(),
            probes: Vec::new(),
            max_probes: u32::MAX,
            links: Vec::new(),
            processes: FxHashMap::default(),
            pending: VecDeque::new(),
            seen: FxHashMap::default(),
            ending: Vec::new(),
            refused: FxHashSet::default(),
            budget_at: at,
            counts_at: at,
            counts: FxHashMap::default(),
            cpu_ns: FxHashMap::default(),
            code_made: false,
            stepped_down: FxHashSet::default(),
            full_told: false,
            reads_all: false,
        };
        let mut targets: Vec<(Option<Pid>, TargetObject)> = Vec::new();
        if let Some((pid, program)) = command {
            let objects = tracer
                .finder
                .objects_of_command(program)
                .context(|| format!("failed to read {}", program.display()))?;
            targets.extend(objects.into_iter().map(|object| (Some(pid), object)));
        }
        for pid in running {
            match tracer.finder.objects_of(pid) {
                Ok(objects) => {
                    targets.extend(objects.into_iter().map(|object| (Some(pid), object)));
                    if crate::resolve::makes_code(pid) {
                        tracer.safety.add_anonymous_code();
                    }
                }
                // Of many processes some end meanwhile; of one that was named it is said.
                Err(error) if filter.pids.contains(&pid) => {
                    return Err(Failure::because(
                        format!("failed to read what process {pid} runs"),
                        &error,
                    ));
                }
                Err(error) => log::debug!("pid {pid}: {error}"),
            }
        }
        tracer.choose(targets)?;
        tracer.max_probes = tracer.probes.len() as u32 + ROOM;
        tracer.max_probes = tracer.max_probes.min(profiler_common::call::MAX_PROBES);
        Ok(tracer)
    }

    /// What the kernel side needs to be told before it is loaded.
    pub(super) fn call_options(&self, buffer_bytes: usize) -> CallOptions {
        let returns = self
            .probes
            .iter()
            .any(|state| matches!(state.plan.exits, crate::trace::Exits::Uretprobe));
        CallOptions {
            max_probes: self.max_probes,
            buffer_bytes,
            fetches: self.request.arguments.is_some() || self.has_throws(),
            callers: returns && probe::features::shows_trampolines(),
            per_process: !self.shared,
            min_duration_ns: self.request.min_duration.as_nanos() as u64,
            max_depth: self.request.max_depth,
            max_rate: self.request.max_rate,
        }
    }

    /// Attaches everything that was chosen.
    pub(super) fn attach_all(
        &mut self,
        probe: &mut Probe,
        resolver: &mut Resolver,
    ) -> Result<(), Failure> {
        self.warn_of_classic(probe)?;
        self.announce(0, resolver);
        self.tell_switchers(resolver);
        let all: Vec<u32> = (0..self.probes.len() as u32).collect();
        self.tell(probe, &all)?;
        for object in 0..self.objects.len() {
            for process in self.targets_now(object) {
                self.attach(probe, object, process)?;
            }
        }
        self.arm(probe, &all)?;
        let at = now();
        (self.budget_at, self.counts_at) = (at, at);
        self.used_ns();
        Ok(())
    }

    fn targets_now(&self, object: usize) -> Vec<Option<Pid>> {
        if self.shared {
            return vec![None];
        }
        let processes = self.processes.iter();
        processes
            .filter(|(_, process)| process.objects.contains(&object))
            .map(|(&pid, _)| Some(pid))
            .collect()
    }

    /// Links of old kernels take so long to remove that many of them are a hazard.
    fn warn_of_classic(&self, probe: &Probe) -> Result<(), Failure> {
        let Some(support) = probe.call_support() else {
            return Ok(());
        };
        if support.multi {
            if !support.pid_filter && !self.shared {
                log::warn!(
                    "this kernel's links don't tell processes apart as they should: others that run \
                     the same code are slowed as well"
                );
            }
            return Ok(());
        }
        let mut sites = Vec::new();
        for (number, state) in (0..).zip(&self.probes) {
            state.sites(number, &mut sites);
        }
        let targets = if self.shared {
            1
        } else {
            self.processes.len().max(1)
        };
        let count = sites.len() * targets;
        let seconds = count as u64 * support.detach_ns_per_site / 1_000_000_000;
        if count > MANY_CLASSIC && !self.request.yes {
            return Err(Failure::failed(format!(
                "{count} probes would take this kernel about {seconds} s to remove: name fewer \
                 functions, boot Linux 6.6 or newer, or insist with --yes"
            )));
        }
        if seconds > 1 {
            log::warn!(
                "removing {count} probes at the end will take about {seconds} s (Linux 6.6 and newer \
                 remove them at once)"
            );
        }
        Ok(())
    }

    /// Looks at what was drained: new processes and files are to be attached, ended ones let go.
    /// `admitted` tells which events concern the recording.
    pub(super) fn notice(&mut self, event: &RawEvent) {
        let (pid, parent) = match &event.body {
            RawBody::Fork {
                pid, parent_pid, ..
            } if pid != parent_pid => (*pid, Some(*parent_pid)),
            RawBody::Mmap(mmap) => {
                self.code_made |= crate::resolve::is_made_code(&mmap.path);
                if !mmap.path.starts_with(b"/") || mmap.path.starts_with(b"//anon") {
                    return;
                }
                let file = (mmap.file.clone(), mmap.path.clone());
                match self.seen.get(&file) {
                    // Nothing in it is traced, or it is attached for all already.
                    Some(traced) if !traced || self.shared => return,
                    _ => {}
                }
                let path = String::from_utf8_lossy(&mmap.path).into();
                let mut pending = self.pending.iter_mut();
                if let Some(pending) =
                    pending.find(|pending| pending.pid == mmap.pid && pending.parent.is_none())
                {
                    if pending.paths.len() < MAX_PATHS {
                        pending.paths.push(path);
                    }
                    return;
                }
                self.pending.push_back(Pending {
                    pid: mmap.pid,
                    since: event.at,
                    parent: None,
                    paths: vec![path],
                });
                return;
            }
            RawBody::Exit { pid, tid } if pid.0 == tid.0 => {
                // A short-lived child may end before anything was attached to it.
                let pending = || self.pending.iter().any(|pending| pending.pid == *pid);
                if self.processes.contains_key(pid) || pending() {
                    self.ending.push(*pid);
                }
                return;
            }
            _ => return,
        };
        if self.shared && parent.is_some() {
            // The links are there already.
            return;
        }
        let known = |pending: &Pending| pending.pid == pid && pending.parent == parent;
        if !self.pending.iter().any(known) {
            self.pending.push_back(Pending {
                pid,
                since: event.at,
                parent,
                paths: Vec::new(),
            });
        }
    }

    /// Lets go of processes that have ended. Their other threads may outlive the main one, whose end
    /// was seen.
    fn forget_ended(&mut self, probe: &mut Probe) {
        let mut ended = FxHashSet::default();
        self.ending.retain(|&pid| {
            let lives = Path::new(&format!("/proc/{pid}")).exists();
            if !lives {
                ended.insert(pid);
            }
            lives
        });
        if ended.is_empty() {
            return;
        }
        // What was to be attached to them is still looked at: it is a gap.
        self.forget(probe, &ended);
    }

    fn forget(&mut self, probe: &mut Probe, ended: &FxHashSet<Pid>) {
        for pid in ended {
            self.processes.remove(pid);
            self.cpu_ns.remove(pid);
        }
        self.detach_processes(probe, ended);
    }

    /// One tick: attaches what has come, looks at the budget, tells counts and gaps.
    pub(super) fn step(
        &mut self,
        probe: &mut Probe,
        resolver: &mut Resolver,
        out: &mut Vec<RawEvent>,
    ) {
        let began = now();
        self.forget_ended(probe);
        if std::mem::take(&mut self.code_made) && self.safety.add_anonymous_code() {
            self.replan(probe, resolver);
        }
        while let Some(pending) = self.pending.pop_front() {
            self.follow(&pending, probe, resolver, out);
            if now().since(began) > STEP_NS {
                break;
            }
        }
        self.read_counts(probe);
        let at = now();
        self.turn_duty(probe, at, out);
        if at.since(self.budget_at) >= BUDGET_NS || self.is_urgent(at) {
            self.keep_budget(probe, resolver, at, out);
        }
        if at.since(self.counts_at) >= COUNTS_NS {
            self.tell_counts(at, out);
        }
    }

    /// Attaches to a new process, or to files that a process has mapped.
    fn follow(
        &mut self,
        pending: &Pending,
        probe: &mut Probe,
        resolver: &mut Resolver,
        out: &mut Vec<RawEvent>,
    ) {
        let before = self.probes.len();
        let was_safe = self.safety.verdict().uretprobe;
        let mut objects: Vec<usize> = Vec::new();
        // It has ended before anybody could look at what it runs.
        let mut unseen = false;
        match pending.parent {
            Some(parent) => {
                if self.processes.contains_key(&pending.pid) {
                    // The id was that of another process before.
                    self.ending.retain(|&pid| pid != pending.pid);
                    self.forget(probe, &FxHashSet::from_iter([pending.pid]));
                }
                let parent = self.processes.get(&parent);
                objects.extend(parent.iter().flat_map(|process| process.objects.iter()));
                self.processes.entry(pending.pid).or_default();
            }
            // It may be gone by now: then there is nothing to attach to.
            None => match self.finder.objects_of(pending.pid) {
                Ok(found) => {
                    for object in found {
                        let index = self.object(&object, Some(pending.pid));
                        self.note_seen(&object, index.is_some());
                        objects.extend(index);
                        if self.switching.contains(&object.device_inode) {
                            self.switchers.push(pending.pid);
                        }
                    }
                }
                Err(error) => {
                    log::debug!("pid {}: {error}", pending.pid);
                    let selection = &self.request.selection;
                    let mut paths = pending.paths.iter();
                    unseen = paths.any(|path| selection.may_cover(path, true));
                    if self.shared && unseen {
                        // Others will run these files.
                        objects.extend(self.objects_by_path(&pending.paths));
                    }
                }
            },
        }
        self.announce(before, resolver);
        self.tell_switchers(resolver);
        let new: Vec<u32> = (before as u32..self.probes.len() as u32).collect();
        let mut result = self.tell(probe, &new);
        let (mut attached, shared) = (unseen, self.shared);
        let key = if shared { Pid(0) } else { pending.pid };
        for object in objects {
            let process = self.processes.entry(key).or_default();
            if process.objects.insert(object) {
                attached = true;
                let target = (!shared).then_some(pending.pid);
                result = result.and(self.attach(probe, object, target));
            }
        }
        result = result.and(self.arm(probe, &new));
        if let Err(error) = result {
            self.tell_unlinked((!shared).then_some(pending.pid), &error);
        }
        if attached {
            let at = now();
            out.push(gap(
                at,
                pending.since,
                None,
                Some(pending.pid),
                GapReason::NotYetAttached,
            ));
        }
        if was_safe && !self.safety.verdict().uretprobe {
            self.replan(probe, resolver);
        }
        // Its end may have been seen before.
        if !shared && !Path::new(&format!("/proc/{}", pending.pid)).exists() {
            self.ending.push(pending.pid);
        }
    }

    /// What is traced of files that a process had mapped which is gone, by their paths on this machine.
    fn objects_by_path(&mut self, paths: &[Box<str>]) -> Vec<usize> {
        let mut objects = Vec::new();
        for path in paths {
            match self.finder.object_at(Path::new(&**path), None) {
                Ok(object) => objects.extend(self.object(&object, None)),
                Err(error) => log::debug!("{error}"),
            }
        }
        objects
    }

    /// Remembers whether anything of a mapped file is traced, so that it need not be looked at again.
    fn note_seen(&mut self, object: &TargetObject, traced: bool) {
        if self.seen.len() >= MAX_SEEN {
            self.seen.clear();
        }
        let path = object.path.as_bytes().into();
        self.seen.insert((object.identity.clone(), path), traced);
    }

    /// Pairing needs to know whose threads have stacks of their own making.
    fn tell_switchers(&mut self, resolver: &mut Resolver) {
        for pid in self.switchers.drain(..) {
            resolver.switches_stacks(pid);
        }
    }

    /// Reads the kernel's counts.
    fn read_counts(&mut self, probe: &mut Probe) {
        let mut changed = Vec::new();
        probe.call_counts(&mut changed);
        for (number, counters) in changed {
            self.counts.insert(
                number,
                Counted {
                    entries: counters.entries,
                    exits: counters.exits,
                    lost: counters.lost,
                    left_out: counters.left_out,
                    turns: counters.turns,
                },
            );
        }
    }

    fn counted(&self, number: u32) -> Counted {
        self.counts.get(&number).copied().unwrap_or_default()
    }

    /// Puts what was counted since the last time into the recording.
    fn tell_counts(&mut self, at: Timestamp, out: &mut Vec<RawEvent>) {
        for (number, state) in (0..).zip(&mut self.probes) {
            let counted = self.counts.get(&number).copied().unwrap_or_default();
            if counted == state.told || state.role != Role::Call {
                continue;
            }
            let told = std::mem::replace(&mut state.told, counted);
            out.push(RawEvent {
                at,
                cpu: Cpu(0),
                body: RawBody::CallCount(RawCallCount {
                    probe: number,
                    from: self.counts_at,
                    entries: counted.entries.saturating_sub(told.entries),
                    exits: counted.exits.saturating_sub(told.exits),
                    lost: counted.lost.saturating_sub(told.lost),
                    left_out: counted.left_out.saturating_sub(told.left_out),
                }),
            });
        }
        self.counts_at = at;
    }

    /// Detaches probes on duty whose time is over, attaches those whose time has come.
    fn turn_duty(&mut self, probe: &mut Probe, at: Timestamp, out: &mut Vec<RawEvent>) {
        let mut turned = Vec::new();
        for (number, state) in (0..).zip(&mut self.probes) {
            if state.level != Level::Duty {
                continue;
            }
            let span = if state.on_duty {
                DUTY_ON_NS
            } else {
                DUTY_PERIOD_NS - DUTY_ON_NS
            };
            if at.since(state.since) < span {
                continue;
            }
            let counted = self.counts.get(&number).copied().unwrap_or_default();
            if state.on_duty {
                state.last_duty = state.hits(counted);
            } else {
                let since = state.since;
                out.push(gap(at, since, Some(number), None, GapReason::DutyCycle));
            }
            state.budgeted = counted;
            state.on_duty = !state.on_duty;
            state.since = at;
            turned.push(number);
        }
        if !turned.is_empty() {
            self.move_probes(probe, &turned);
            self.changed_now(&turned);
        }
    }

    /// Compares what tracing costs with what it may cost.
    fn keep_budget(
        &mut self,
        probe: &mut Probe,
        resolver: &mut Resolver,
        at: Timestamp,
        out: &mut Vec<RawEvent>,
    ) {
        let elapsed = at.since(self.budget_at);
        let loads = self.loads(elapsed);
        let used = self.begin_look(at);
        let Some(share) = self.request.budget else {
            return;
        };
        // A target that is mostly idle may still be slowed by a part of one processor.
        let time_ns = used.max(elapsed);
        let cost: u64 = loads.iter().map(|load| load.cost_ns()).sum();
        // What has cost half of the target's time will be called twice as often once it is relieved.
        let left = (1.0 - cost as f64 / time_ns as f64).clamp(MIN_LEFT, 1.0);
        let mut allowed = time_ns as f64 * share;
        if cost as f64 > allowed {
            allowed *= left;
        }
        let steps = budget::decide(&loads, allowed as u64);
        if steps.is_empty() {
            return;
        }
        let percent = cost as f64 * 100.0 / time_ns as f64;
        let mut changed = Vec::new();
        for (number, level) in steps {
            let rate = loads
                .iter()
                .find(|load| load.probe == number)
                .map_or(0, |load| {
                    load.entries.saturating_mul(1_000_000_000) / elapsed.max(1)
                });
            self.step_down(number, level, at, out);
            let state = &self.probes[number as usize];
            let name = &state.plan.function.name;
            log::warn!(
                "tracing takes {percent:.1} % of the target's time, the budget is {:.1} %: {name} \
                 ({rate} calls a second) {}",
                share * 100.0,
                match level {
                    Level::Full => "goes on",
                    Level::Entries => "is watched at its entry only from now on",
                    Level::Duty => "is watched 5 % of the time from now on",
                    Level::Off => "is not traced any more",
                }
            );
            changed.push(number);
        }
        self.move_probes(probe, &changed);
        self.changed_now(&changed);
        for number in changed {
            self.announce_probe(number, resolver);
        }
        // What was hit until the probes were moved is no fault of their new levels.
        self.read_counts(probe);
        self.begin_look(now());
    }

    /// What each probe has done since the budget was looked at.
    fn loads(&self, elapsed: u64) -> Vec<budget::Load> {
        let crowds = self.crowds();
        let loads = (0..).zip(&self.probes).map(|(number, state)| {
            let mut load = state.load(number, self.counted(number), elapsed);
            load.crowd(crowds[state.object]);
            load
        });
        loads.filter(|load| load.cost_ns() > 0).collect()
    }

    /// From now on is what the budget looks at next. Says how much processor time the targets have used
    /// since the last time.
    fn begin_look(&mut self, at: Timestamp) -> u64 {
        self.budget_at = at;
        for (number, state) in (0..).zip(&mut self.probes) {
            if state.level != Level::Duty {
                state.budgeted = self.counts.get(&number).copied().unwrap_or_default();
            }
        }
        self.used_ns()
    }

    /// Whether tracing costs so much that the next look at the budget would be too late.
    fn is_urgent(&self, at: Timestamp) -> bool {
        let elapsed = at.since(self.budget_at);
        let Some(share) = self.request.budget.filter(|_| elapsed >= URGENT_NS) else {
            return false;
        };
        let cost: u64 = self.loads(elapsed).iter().map(|load| load.cost_ns()).sum();
        cost as f64 > elapsed as f64 * share * URGENT
    }

    /// What was decided holds from now on: until its links had gone, a probe was hit as before.
    fn changed_now(&mut self, probes: &[u32]) {
        let at = now();
        for &number in probes {
            self.probes[number as usize].since = at;
        }
    }

    fn step_down(&mut self, number: u32, level: Level, at: Timestamp, out: &mut Vec<RawEvent>) {
        self.stepped_down.insert(number);
        self.close_gap(number, at, out);
        let counted = self.counted(number);
        let state = &mut self.probes[number as usize];
        state.level = level;
        state.since = at;
        state.on_duty = level != Level::Duty;
        state.budgeted = counted;
        state.last_duty = 0;
    }

    /// Tells the gap of a probe's present level, which ends now.
    fn close_gap(&self, number: u32, at: Timestamp, out: &mut Vec<RawEvent>) {
        let state = &self.probes[number as usize];
        let reason = match state.level {
            Level::Full => return,
            Level::Entries => GapReason::NoReturns,
            Level::Duty if state.on_duty => return,
            Level::Duty => GapReason::DutyCycle,
            Level::Off => GapReason::Detached,
        };
        // It may have begun since this tick did.
        if at > state.since {
            out.push(gap(at, state.since, Some(number), None, reason));
        }
    }

    /// CPU time that the targets have used since the last call; 0 if the whole machine is traced. Of
    /// one that is new nothing counts yet: it may have run long before.
    fn used_ns(&mut self) -> u64 {
        let mut used = 0u64;
        for &pid in self.processes.keys() {
            let Some(cpu_ns) = crate::resolve::cpu_time_ns(pid) else {
                continue;
            };
            if let Some(before) = self.cpu_ns.insert(pid, cpu_ns) {
                used = used.saturating_add(cpu_ns.saturating_sub(before));
            }
        }
        used
    }

    /// How many processes each object is attached to by links of their own.
    fn crowds(&self) -> Vec<u32> {
        let mut crowds = vec![0; self.objects.len()];
        for process in self.processes.values() {
            for &object in &process.objects {
                crowds[object] += 1;
            }
        }
        crowds
    }

    /// The end: last counts, and the gaps that lasted until now.
    pub(super) fn finish(&mut self, probe: &mut Probe, out: &mut Vec<RawEvent>) -> TraceSummary {
        // Nothing is hit any more when counts are read, so they are those of what is drained then.
        self.detach_all(probe);
        self.read_counts(probe);
        let at = now();
        self.tell_counts(at, out);
        for number in 0..self.probes.len() as u32 {
            self.close_gap(number, at, out);
        }
        let calls = self.probes.iter().filter(|state| state.role == Role::Call);
        let mut summary = TraceSummary {
            functions: calls.clone().count(),
            stepped_down: self.stepped_down.len(),
            ..TraceSummary::default()
        };
        for state in calls {
            summary.calls += state.told.entries;
            summary.lost += state.told.lost;
            summary.left_out += state.told.left_out;
        }
        summary
    }
}

/// The processes that run already. That of the command is still one of ours.
fn initial_processes(filter: &Filter, command: Option<Pid>) -> Vec<Pid> {
    if !filter.pids.is_empty() || !filter.tids.is_empty() {
        let owners = filter
            .tids
            .iter()
            .filter_map(|&tid| super::scope::owner(tid));
        let named = filter.pids.iter().copied().chain(owners);
        return named.filter(|&pid| Some(pid) != command).collect();
    }
    crate::resolve::processes()
}

fn gap(
    at: Timestamp,
    from: Timestamp,
    probe: Option<u32>,
    pid: Option<Pid>,
    reason: GapReason,
) -> RawEvent {
    RawEvent {
        at,
        cpu: Cpu(0),
        body: RawBody::Gap(RawGap {
            from,
            probe,
            pid,
            reason,
        }),
    }
}

/// Measures what a hit costs here, and keeps that for the next time.
fn measured_costs() -> Result<CostTable, Failure> {
    let costs = probe::calibrate()?;
    if let Err(error) = costs.save(Path::new(COSTS)) {
        log::debug!("what probes cost is measured each time: {COSTS}: {error}");
    }
    Ok(costs)
}
