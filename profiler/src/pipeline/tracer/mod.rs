//! Function tracing of a recording: which probes are attached to whom, from its start to its end.
//!
//! A [`TraceRequest`] -> probes attached to what runs, to what is mapped later and to children; counts
//! and gaps as raw events; steps down when the budget is exceeded. Costs are nanoseconds of the target.
//!
//! What does not belong here: choosing and placing (`trace`), the kernel side (`probe`), pairing
//! (`resolve`).

mod arrivals;
mod asked;
mod budget;
mod cgroup_members;
mod choose;
mod contents;
mod counts;
mod duty;
mod ends;
mod filter;
mod follow;
mod hooks;
mod links;
mod load;
mod news;
mod other_processes;
mod planned;
mod planner;
mod plans;
mod probes;
mod replan;
mod request;
mod suspend;
mod targets;
mod values;

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use self::arrivals::Arrivals;
use self::asked::Asked;
use self::budget::Budget;
use self::cgroup_members::CgroupMembers;
use self::counts::Counts;
use self::ends::Ends;
use self::links::Links;
use self::load::Level;
use self::other_processes::OtherProcesses;
use self::plans::Plans;
use self::probes::ProbeState;
use self::suspend::Suspension;
use self::targets::Targets;
use crate::error::{Context, Failure};
use crate::pipeline::wanted::WantedCgroups;
use profiler_model::raw::{RawBody, RawEvent, RawGap};
use profiler_model::{Cpu, GapReason, Pid, Timestamp};
use profiler_probe::{CallOptions, Probe, ProbeError, now};
use profiler_resolve::Resolver;
use profiler_resolve::objects::{Finder, ObjectsError, TargetObject};
use profiler_target::Filter;
use profiler_target::cgroup::Hierarchy;
use profiler_trace::Exits;
use profiler_trace::cost::CostTable;
use profiler_trace::place::Returns;

pub use self::contents::answering;
pub use self::filter::PathFilter;
pub use self::news::News;
pub use self::request::{Leaving, TraceRequest, TraceSummary, Unwatched};

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

/// Traces functions. It only routes among its parts, which own the state.
#[derive(Debug)]
pub(super) struct Tracer {
    asked: Arc<Asked>,
    finder: Finder,
    plans: Plans,
    targets: Targets,
    arrivals: Arrivals,
    links: Links,
    budget: Budget,
    counts: Counts,
    ends: Ends,
    suspension: Option<Suspension>,
    unwatched: Unwatched,
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
        let named = filter.is_by_ids() || command.is_some();
        let narrowed = filter.is_by_kernel_facts();
        let mut members = cgroups.map(|(hierarchy, wanted)| CgroupMembers::new(hierarchy, wanted));
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
        let finder = Finder::default().with_paths(request.selection.paths());
        let asked = Arc::new(Asked {
            request,
            costs,
            shared,
        });
        let mut tracer = Tracer {
            finder,
            plans: Plans::new(Arc::clone(&asked)),
            targets: Targets::new(members, running.iter().copied().collect()),
            arrivals: Arrivals::default(),
            links: Links::default(),
            budget: Budget::new(Arc::clone(&asked), at),
            counts: Counts { told_at: at },
            ends: Ends::default(),
            suspension: None,
            unwatched: Unwatched::default(),
            asked,
        };
        let files = tracer.files(running, &filter.pids, command)?;
        choose::choose(
            files,
            &mut tracer.plans,
            &mut tracer.targets,
            &mut tracer.ends,
        )?;
        tracer.tell_ways();
        let probes = &mut tracer.plans.probes;
        probes.most = (probes.len() + ROOM).min(profiler_common::call::MAX_PROBES);
        Ok(tracer)
    }

    /// Reads the files of processes that run already, and of the command. If a file that is `named` can't be
    /// read, that is an error.
    fn files(
        &mut self,
        running: Vec<Pid>,
        named: &[Pid],
        command: Option<(Pid, &Path)>,
    ) -> Result<Vec<(Option<Pid>, TargetObject)>, Failure> {
        let mut files: Vec<(Option<Pid>, TargetObject)> = Vec::new();
        if let Some((pid, program)) = command {
            let objects = self
                .finder
                .objects_of_command(program)
                .context(|| format!("failed to read {}", program.display()))?;
            files.extend(objects.into_iter().map(|object| (Some(pid), object)));
            self.targets.family.insert(pid);
        }
        let mut out_of_reach = 0;
        for pid in running {
            if self.targets.members.is_some() && self.asked.shared {
                // What is started there from now on.
                let objects = self.finder.objects_at_paths(pid);
                files.extend(objects.into_iter().map(|object| (Some(pid), object)));
            }
            match self.finder.objects_of(pid) {
                Ok(objects) => {
                    files.extend(objects.into_iter().map(|object| (Some(pid), object)));
                    // What is shared is planned for the worst.
                    if !self.asked.shared && profiler_resolve::makes_code(pid) {
                        self.plans.add_anonymous_code();
                    }
                }
                // Of many processes some end meanwhile; of one that was named it is said.
                Err(error) if named.contains(&pid) => {
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
        Ok(files)
    }

    /// For each way to see exits, the number of functions that are watched so.
    fn tell_ways(&self) {
        let mut ways = [0; 3];
        for state in self.plans.probes.calls() {
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

    /// Options of the kernel side, which are fixed when it is loaded.
    pub(super) fn call_options(&self, buffer_bytes: usize) -> CallOptions {
        let asked = &self.asked.request;
        let probes = &self.plans.probes;
        let by_probe = |(_, state): (u32, &ProbeState)| state.plan.exits == Exits::Uretprobe;
        let returns = probes.iter().any(by_probe);
        CallOptions {
            max_probes: probes.most,
            buffer_bytes,
            fetches: asked.arguments.is_some() || asked.returns != Returns::None,
            callers: returns && profiler_probe::features::shows_trampolines(),
            per_process: !self.asked.shared,
            min_duration_ns: asked.min_duration.as_nanos() as u64,
            max_depth: asked.max_depth,
            max_rate: asked.max_rate,
        }
    }

    /// Attaches everything that was chosen.
    pub(super) fn attach_all(
        &mut self,
        probe: &mut Probe,
        resolver: &mut Resolver,
    ) -> Result<(), Failure> {
        self.warn_of_classic(probe)?;
        let all = self.plans.announce(resolver);
        self.targets.tell_switchers(resolver);
        self.plans.probes.tell(probe, &all)?;
        let family = &self.targets.family;
        if self.targets.len() > 0 && family.len() <= MAX_OWN_LINKS_OF_CGROUPS {
            family.iter().for_each(|&pid| self.ends.watch(pid));
        }
        for object in 0..self.plans.objects.len() {
            for process in self.targets.having(object) {
                self.attach(probe, object, process)?;
            }
        }
        self.plans.probes.arm(probe, &all)?;
        self.tell_strangers(true);
        let at = now();
        self.counts.told_at = at;
        self.budget.begin(&mut self.plans.probes, &self.targets, at);
        Ok(())
    }

    /// Attaches all probes of an object to a process, or to all.
    fn attach(
        &mut self,
        probe: &mut Probe,
        object: usize,
        process: Option<Pid>,
    ) -> Result<(), ProbeError> {
        process.iter().for_each(|&pid| self.ends.watch(pid));
        self.links.attach(&mut self.plans, probe, object, process)
    }

    /// Moves probes to new links, as their levels and plans now say; between which times that came into force.
    fn move_probes(&mut self, probe: &mut Probe, changed: &[u32]) -> (Timestamp, Timestamp) {
        self.links
            .move_probes(&mut self.plans, &self.targets, probe, changed)
    }

    /// Plans functions anew if a target has mapped something that forbids how they are watched now.
    fn replan(&mut self, probe: &mut Probe, resolver: &mut Resolver) {
        if !self.plans.take_replan_due() {
            return;
        }
        let changed = self.plans.replan();
        if !changed.is_empty() {
            self.move_probes(probe, &changed);
            self.plans.announce_again(&changed, resolver);
        }
    }

    /// With `--follow-exact`: logs how many processes outside the target are slowed by its probes.
    fn tell_strangers(&mut self, beginning: bool) {
        if self.asked.request.follow_exact {
            OtherProcesses::tell(&self.plans, &mut self.targets, beginning);
        }
    }

    /// Old kernels take so long to remove a link that many of them are a hazard.
    fn warn_of_classic(&self, probe: &Probe) -> Result<(), Failure> {
        let Some(support) = probe.call_support() else {
            return Ok(());
        };
        if support.multi {
            if !support.pid_filter && !self.asked.shared {
                log::warn!(
                    "this kernel's links don't tell processes apart as they should: others that run \
                     the same code are slowed as well"
                );
            }
            return Ok(());
        }
        let sites = self.plans.probes.sites(0..self.plans.probes.len());
        let count = sites.len() * self.targets.len().max(1);
        let seconds = support.detach_ns(count) / 1_000_000_000;
        if count > MANY_CLASSIC && !self.asked.request.yes {
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

    /// One tick: attaches to new processes and files, checks the budget, reports counts and gaps.
    pub(super) fn step(
        &mut self,
        probe: &mut Probe,
        resolver: &mut Resolver,
        out: &mut Vec<RawEvent>,
    ) {
        self.hurry(probe, resolver, out);
        counts::read(&mut self.plans.probes, probe);
        let at = now();
        match self.suspension {
            Some(suspension) => self.keep_suspended(probe, suspension),
            None => {
                let turned = self.plans.probes.turn_duty(at, out);
                if !turned.is_empty() {
                    let since = self.move_probes(probe, &turned);
                    self.plans.probes.changed(&turned, since, out);
                }
                self.keep_budget(probe, resolver, at, out);
            }
        }
        if self.counts.are_due(at) {
            self.counts.tell(&mut self.plans.probes, at, false, out);
        }
    }

    /// Reports what was counted until now, which else is when it is time.
    pub(super) fn tell_counts(&mut self, probe: &mut Probe, out: &mut Vec<RawEvent>) {
        counts::read(&mut self.plans.probes, probe);
        self.counts.tell(&mut self.plans.probes, now(), false, out);
    }

    /// Calls are counted from now on. Some that are recorded may not be among those.
    pub(super) fn begin_counts(&mut self, probe: &mut Probe) {
        counts::read(&mut self.plans.probes, probe);
        self.counts.begin(&mut self.plans.probes, now());
    }

    /// Watches functions less when tracing costs more than its budget.
    fn keep_budget(
        &mut self,
        probe: &mut Probe,
        resolver: &mut Resolver,
        at: Timestamp,
        out: &mut Vec<RawEvent>,
    ) {
        let changed = self.budget.look(&mut self.plans, &self.targets, at, out);
        if changed.is_empty() {
            return;
        }
        let since = self.move_probes(probe, &changed);
        self.plans.probes.changed(&changed, since, out);
        self.plans.announce_again(&changed, resolver);
        // What was hit until the probes were moved is no fault of their new levels.
        counts::read(&mut self.plans.probes, probe);
        self.budget
            .begin(&mut self.plans.probes, &self.targets, now());
    }

    /// Whether probes have to be attached before a process reaches their code: steps should then follow each
    /// other without delay.
    pub(super) fn is_in_a_hurry(&self) -> bool {
        let members = self.targets.members.as_ref();
        members.is_some_and(CgroupMembers::are_in_a_hurry)
    }

    /// The part of a step that can't wait while [`Tracer::is_in_a_hurry`]: attaches to new processes and files.
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
        self.plans.take_found();
        if self.arrivals.take_code_made() {
            self.plans.add_anonymous_code();
        }
        self.replan(probe, resolver);
        let mut waiting = Vec::new();
        while let Some(pending) = self.arrivals.next() {
            if pending.comes_after(&waiting) || !self.follow(&pending, probe, resolver, out) {
                waiting.push(pending);
            }
            if now().since(began) > STEP_NS {
                break;
            }
        }
        self.arrivals.put_back(waiting);
        if self.arrivals.is_empty() {
            self.targets.leave_gone();
        }
    }

    /// What happened to object files and functions since the last call: those chosen at the start, and those
    /// mapped later.
    pub(super) fn news(&mut self) -> Vec<News> {
        self.plans.news.take()
    }

    /// Tells what is missing up to now, which else is told when it ends.
    pub(super) fn tell_missing(&mut self, at: Timestamp, out: &mut Vec<RawEvent>) {
        self.plans.probes.tell_gaps(at, out);
    }

    /// Ends counting for good, at once. Hits that have begun are still recorded. What is left to be done goes on
    /// without probes in our own code: that they do not count does not make them faster.
    pub(super) fn close(&mut self, probe: &mut Probe) {
        if !self.plans.probes.is_closed() {
            self.links.detach_all(&mut self.plans, probe);
        }
    }

    /// The end: last counts, and the gaps that lasted until now.
    pub(super) fn finish(&mut self, probe: &mut Probe, out: &mut Vec<RawEvent>) -> TraceSummary {
        self.tell_strangers(false);
        if let Some(members) = &self.targets.members {
            members.tell_untold(self.asked.request.follow_exact);
        }
        self.ends.all_is_known();
        self.look_at_ends(probe);
        // No hit counts any more when counts are read, so they are those of what is drained then.
        self.links.detach_all(&mut self.plans, probe);
        let probes = &mut self.plans.probes;
        counts::read(probes, probe);
        let at = now();
        self.counts.tell(probes, at, true, out);
        self.close_pending(at, out);
        self.close_suspension(at, out);
        self.ends.close(at, out);
        let probes = &self.plans.probes;
        out.extend(
            probes
                .iter()
                .filter_map(|(number, state)| state.gap(number, at)),
        );
        let mut summary = TraceSummary {
            functions: probes.calls().count(),
            stepped_down: self.budget.stepped_down(),
            at_least: self.unwatched.gaps > 0,
            unwatched: self.unwatched.clone(),
            ..TraceSummary::default()
        };
        for state in probes.calls() {
            let before = &state.before;
            summary.at_least |= state.level >= Level::Duty;
            summary.calls += state.told.entries.saturating_sub(before.entries);
            summary.lost += state.told.lost.saturating_sub(before.lost);
            summary.left_out += state.told.left_out.saturating_sub(before.left_out);
        }
        summary
    }

    /// After the end: the links that the kernel has not removed by `until`.
    pub(super) fn leaving(&mut self, until: Instant) -> Option<Leaving> {
        self.links.leaving(&self.plans, until)
    }
}

/// A gap that ends at `at`.
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

/// The processes that run already. That of the command is still one of ours.
fn initial_processes(filter: &Filter, command: Option<Pid>) -> Vec<Pid> {
    if filter.is_by_ids() {
        let owners = filter
            .tids
            .iter()
            .filter_map(|&tid| profiler_target::proc_fs::process_of(tid));
        let named = filter.pids.iter().copied().chain(owners);
        return named.filter(|&pid| Some(pid) != command).collect();
    }
    profiler_target::proc_fs::processes()
}

/// Measures what a hit costs on this machine, and keeps the result for the next time.
fn measured_costs() -> Result<CostTable, Failure> {
    let costs = profiler_probe::calibrate()?;
    if let Err(error) = costs.save(Path::new(COSTS)) {
        log::debug!("what probes cost is measured each time: {COSTS}: {error}");
    }
    Ok(costs)
}
