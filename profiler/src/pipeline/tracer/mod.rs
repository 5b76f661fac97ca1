//! Function tracing of a recording: which probes are attached to whom, from its start to its end.
//!
//! A [`TraceRequest`] -> probes attached to what runs, to what is mapped later and to children; counts
//! and gaps as raw events; steps down when the budget is exceeded. Costs are nanoseconds of the target.
//!
//! What does not belong here: choosing and placing (`trace`), the kernel side (`probe`), pairing
//! (`resolve`).

mod budget;
mod choose;
mod counts;
mod ends;
mod filter;
mod follow;
mod hooks;
mod keep;
mod links;
mod members;
mod news;
mod objects;
mod replan;
mod request;
mod state;
mod strangers;
mod suspend;
mod values;

use std::collections::VecDeque;
use std::path::Path;

use rustc_hash::{FxHashMap, FxHashSet};

use self::ends::Ends;
use self::follow::{Pending, SeenFile};
use self::links::Link;
use self::members::Members;
use self::news::Bulletin;

use self::objects::{KnownFile, TracedObject};
use self::state::ProbeState;
use self::suspend::Suspension;
use crate::error::{Context, Failure};
use crate::pipeline::wanted::WantedCgroups;
use profiler_model::raw::RawEvent;
use profiler_model::{Pid, Timestamp};
use profiler_probe::{CallOptions, LeavingCalls, Probe, now};
use profiler_resolve::objects::{FileId, Finder, ObjectsError, TargetObject};
use profiler_resolve::{Resolver, Role};
use profiler_target::Filter;
use profiler_target::cgroup::Hierarchy;
use profiler_trace::Exits;
use profiler_trace::cost::CostTable;
use profiler_trace::place::Returns;
use profiler_trace::safety::ProcessSafety;

pub use self::filter::PathFilter;
pub use self::news::News;
pub use self::request::{Leaving, TraceRequest, TraceSummary};

/// Probes beyond those known at the start, for what is mapped later.
const ROOM: u32 = 4096;
/// Time that one step may spend on attaching to new processes and files.
const STEP_NS: u64 = 100_000_000;
/// From this many sites on, links that take 0.1 s each to remove need to be asked for.
const MANY_CLASSIC: usize = 50;
/// The same of processes that cgroups say: others share their files most often, being of the same image,
/// and are kept off as long as that can be.
const MAX_OWN_LINKS_OF_CGROUPS: usize = 512;
/// Up to so many processes that run already get links of their own, which keep off all others that run
/// the same files. But each one slows the hits of all the others (see `budget`): more share one link.
const MAX_OWN_LINKS: usize = 32;
/// The folder in which measured costs of probes are kept.
pub const COSTS: &str = "/var/cache/profiler";

/// See the module.
#[derive(Debug)]
pub(super) struct Tracer {
    request: TraceRequest,
    costs: CostTable,
    /// One link for all processes, filtered in the kernel.
    shared: bool,
    safety: ProcessSafety,
    /// Files that switch between stacks, and processes that map them and are to be told of.
    switching: FxHashSet<FileId>,
    switchers: Vec<Pid>,
    finder: Finder,
    objects: Vec<TracedObject>,
    /// Files that have been looked at; none: nothing in it is traced.
    by_file: FxHashMap<FileId, KnownFile>,
    probes: Vec<ProbeState>,
    max_probes: u32,
    links: Vec<Link>,
    /// What each process has of what is traced, objects by index; none: all processes together.
    processes: FxHashMap<Option<Pid>, FxHashSet<usize>>,
    /// Which processes are traced, where cgroups say so.
    members: Option<Members>,
    /// Else: targets and what they have started, while these live.
    family: FxHashSet<Pid>,
    /// Debuggers of whom it was said that what they debug is not traced.
    debuggers: FxHashSet<Pid>,
    /// Processes that have ended, until what was pending of them has been looked at.
    gone: Vec<Pid>,
    began: Timestamp,
    pending: VecDeque<Pending>,
    /// Mapped files, and whether anything of them is traced.
    seen: FxHashMap<SeenFile, bool>,
    /// Objects that were attached before any process was seen to map them, and since when they are.
    ahead: FxHashMap<usize, Timestamp>,
    /// Processes whose main thread has ended.
    ending: Vec<Pid>,
    refused: FxHashSet<u32>,
    /// Places that the kernel refused, by object, offset and whether at return: they are not tried again.
    refused_sites: FxHashSet<(usize, u64, bool)>,
    /// Nothing is recorded any more, whatever comes up.
    closed: bool,
    /// What was attached, and the kernel has not let go of yet.
    leaving: Option<LeavingCalls>,
    waits_for_calls: bool,
    budget_at: Timestamp,
    counts_at: Timestamp,
    /// CPU time of each target when the budget was last looked at.
    cpu_ns: FxHashMap<Pid, u64>,
    /// Memory was made executable that is no file's; what that forbids is still to be replanned.
    code_made: bool,
    stepped_down: FxHashSet<u32>,
    full_told: bool,
    suspension: Option<Suspension>,
    news: Bulletin,
    ends: Ends,
    /// No file's path says that it holds what is asked for, so all are looked into.
    reads_all: bool,
}

impl Tracer {
    /// Chooses functions in what runs, or in what the command will run, and plans their probes.
    /// Nothing is attached yet. With `cgroups`, only processes in wanted ones are traced.
    pub(super) fn prepare(
        request: TraceRequest,
        filter: &Filter,
        cgroups: Option<(Hierarchy, WantedCgroups)>,
        command: Option<(Pid, &Path)>,
    ) -> Result<Tracer, Failure> {
        let named = !filter.pids.is_empty() || !filter.tids.is_empty() || command.is_some();
        let narrowed = !filter.comms.is_empty() || !filter.uids.is_empty();
        let mut members = cgroups.map(|(hierarchy, wanted)| Members::new(hierarchy, wanted));
        let running = match &mut members {
            Some(members) if !named => members.enter_all(),
            _ => initial_processes(filter, command.map(|(pid, _)| pid)),
        };
        let most = match members {
            Some(_) => MAX_OWN_LINKS_OF_CGROUPS,
            None => MAX_OWN_LINKS,
        };
        let limited = named || members.is_some();
        let shared = request.follow_exact || narrowed || !limited || running.len() > most;
        if shared && limited && !request.follow_exact && !narrowed {
            log::warn!(
                "{} processes share their probes: others that run the same code are slowed as well",
                running.len()
            );
        }
        let costs = CostTable::load(Path::new(COSTS)).map_or_else(measured_costs, Ok)?;
        let at = now();
        let paths = request.selection.paths();
        let mut tracer = Tracer {
            request,
            costs,
            shared,
            safety: ProcessSafety::of([], false),
            switching: FxHashSet::default(),
            switchers: Vec::new(),
            finder: Finder::default().with_paths(paths),
            objects: Vec::new(),
            by_file: FxHashMap::default(),
            probes: Vec::new(),
            max_probes: u32::MAX,
            links: Vec::new(),
            processes: FxHashMap::default(),
            members,
            family: running.iter().copied().collect(),
            debuggers: FxHashSet::default(),
            gone: Vec::new(),
            began: at,
            pending: VecDeque::new(),
            seen: FxHashMap::default(),
            ahead: FxHashMap::default(),
            ending: Vec::new(),
            refused: FxHashSet::default(),
            refused_sites: FxHashSet::default(),
            closed: false,
            leaving: None,
            waits_for_calls: false,
            budget_at: at,
            counts_at: at,
            cpu_ns: FxHashMap::default(),
            code_made: false,
            stepped_down: FxHashSet::default(),
            full_told: false,
            suspension: None,
            news: Bulletin::default(),
            ends: Ends::default(),
            reads_all: false,
        };
        let mut targets: Vec<(Option<Pid>, TargetObject)> = Vec::new();
        if let Some((pid, program)) = command {
            let objects = tracer
                .finder
                .objects_of_command(program)
                .context(|| format!("failed to read {}", program.display()))?;
            targets.extend(objects.into_iter().map(|object| (Some(pid), object)));
            tracer.family.insert(pid);
        }
        let mut out_of_reach = 0;
        for pid in running {
            if tracer.members.is_some() && shared {
                // What is started there from now on.
                let objects = tracer.finder.objects_at_paths(pid);
                targets.extend(objects.into_iter().map(|object| (Some(pid), object)));
            }
            match tracer.finder.objects_of(pid) {
                Ok(objects) => {
                    targets.extend(objects.into_iter().map(|object| (Some(pid), object)));
                    // What is shared is planned for the worst.
                    if !shared && profiler_resolve::makes_code(pid) {
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
                Err(error) => {
                    out_of_reach += usize::from(matches!(error, ObjectsError::OutOfReach(_)));
                    log::debug!("pid {pid}: {error}");
                }
            }
        }
        if out_of_reach > 0 {
            log::warn!(
                "nothing is traced in {out_of_reach} processes of other users: that takes \
                 CAP_SYS_PTRACE (run as root)"
            );
        }
        tracer.choose(targets)?;
        tracer.tell_ways();
        tracer.max_probes = tracer.probes.len() as u32 + ROOM;
        tracer.max_probes = tracer.max_probes.min(profiler_common::call::MAX_PROBES);
        Ok(tracer)
    }

    /// How exits are seen of how many functions.
    fn tell_ways(&self) {
        let mut ways = [0; 3];
        for state in self.probes.iter().filter(|state| state.role == Role::Call) {
            ways[match state.plan.exits {
                Exits::Uretprobe => 0,
                Exits::Instructions(_) => 1,
                Exits::None(_) => 2,
            }] += 1;
        }
        let [probes, instructions, entries] = ways;
        log::info!(
            "exits are seen of {probes} functions by return probes, of {instructions} by the instructions \
             that leave; of {entries} only entries are seen"
        );
    }

    /// What the kernel side needs to be told before it is loaded.
    pub(super) fn call_options(&self, buffer_bytes: usize) -> CallOptions {
        let returns = self
            .probes
            .iter()
            .any(|state| matches!(state.plan.exits, Exits::Uretprobe));
        CallOptions {
            max_probes: self.max_probes,
            buffer_bytes,
            fetches: self.request.arguments.is_some() || self.request.returns != Returns::None,
            callers: returns && profiler_probe::features::shows_trampolines(),
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
        let all = self.all();
        self.tell(probe, &all)?;
        if !self.processes.is_empty() && self.family.len() <= MAX_OWN_LINKS_OF_CGROUPS {
            self.family.iter().for_each(|&pid| self.ends.watch(pid));
        }
        for object in 0..self.objects.len() {
            for process in self.targets_now(object) {
                self.attach(probe, object, process)?;
            }
        }
        self.arm(probe, &all)?;
        self.tell_strangers(true);
        let at = now();
        (self.budget_at, self.counts_at) = (at, at);
        self.used_ns();
        Ok(())
    }

    /// Who is attached to where an object is concerned.
    fn targets_now(&self, object: usize) -> Vec<Option<Pid>> {
        let processes = self.processes.iter();
        let having = processes.filter(|(_, objects)| objects.contains(&object));
        having.map(|(&process, _)| process).collect()
    }

    /// As whom a process is attached to.
    fn process(&self, pid: Pid) -> Option<Pid> {
        (!self.shared).then_some(pid)
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
        let count = sites.len() * self.processes.len().max(1);
        let seconds = support.detach_ns(count) / 1_000_000_000;
        if count > MANY_CLASSIC && !self.request.yes {
            return Err(Failure::failed(format!(
                "{count} probes would take this kernel about {seconds} s to remove: name fewer \
                 functions, boot Linux 6.6 or newer, or insist with --yes"
            )));
        }
        if seconds > 1 {
            log::warn!(
                "removing {count} probes when this is over will take about {seconds} s, in which they \
                 still slow the target (Linux 6.6 and newer remove them at once)"
            );
        }
        Ok(())
    }

    /// One tick: attaches what has come, looks at the budget, tells counts and gaps.
    pub(super) fn step(
        &mut self,
        probe: &mut Probe,
        resolver: &mut Resolver,
        out: &mut Vec<RawEvent>,
    ) {
        self.hurry(probe, resolver, out);
        self.read_counts(probe);
        let at = now();
        match self.suspension {
            Some(suspension) => self.keep_suspended(probe, suspension),
            None => {
                self.turn_duty(probe, at, out);
                self.keep_budget(probe, resolver, at, out);
            }
        }
        if at.since(self.counts_at) >= counts::COUNTS_NS {
            self.tell_counts(at, out);
        }
    }

    /// The part of a step that can't wait, while [`Tracer::is_in_a_hurry`]: attaches what has come.
    pub(super) fn hurry(
        &mut self,
        probe: &mut Probe,
        resolver: &mut Resolver,
        out: &mut Vec<RawEvent>,
    ) {
        let began = now();
        self.look_at_ends(probe);
        self.forget_ended(probe);
        self.look_for_members(probe);
        self.attach_ahead(probe, resolver);
        if std::mem::take(&mut self.code_made) && self.safety.add_anonymous_code() {
            self.replan(probe, resolver);
        }
        while let Some(pending) = self.pending.pop_front() {
            self.follow(&pending, probe, resolver, out);
            if now().since(began) > STEP_NS {
                break;
            }
        }
        if let (Some(members), true) = (&mut self.members, self.pending.is_empty()) {
            self.gone.drain(..).for_each(|pid| members.leave(pid));
        }
    }

    /// What became of object files and functions since this was called last: those that were chosen
    /// at first, and those that were mapped later.
    pub(super) fn news(&mut self) -> Vec<News> {
        self.news.take()
    }

    /// The end: last counts, and the gaps that lasted until now.
    pub(super) fn finish(&mut self, probe: &mut Probe, out: &mut Vec<RawEvent>) -> TraceSummary {
        self.tell_strangers(false);
        self.tell_untold();
        self.look_at_ends(probe);
        // No hit counts any more when counts are read, so they are those of what is drained then.
        self.detach_all(probe);
        self.read_counts(probe);
        let at = now();
        self.tell_counts(at, out);
        self.close_pending(at, out);
        self.close_suspension(at, out);
        self.close_let_go(at, out);
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
    profiler_resolve::processes()
}

/// Measures what a hit costs here, and keeps that for the next time.
fn measured_costs() -> Result<CostTable, Failure> {
    let costs = profiler_probe::calibrate()?;
    if let Err(error) = costs.save(Path::new(COSTS)) {
        log::debug!("what probes cost is measured each time: {COSTS}: {error}");
    }
    Ok(costs)
}
