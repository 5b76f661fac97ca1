//! Containers of a session: which samples are wanted, if only some containers are recorded, and what
//! containers are called.
//!
//! The kernel side decides by cgroup. Of a cgroup that is made while it records it may not know whether
//! it is wanted: its samples come marked, and whoever knows engines is asked ([`Describer`], on a thread
//! of its own) by the path of the cgroup. Until the answer, which takes milliseconds, samples and what is
//! behind them wait ([`undecided_events`]); then the kernel side is told. What nobody knows in time is
//! given up, and counted. The same answers go to the resolver, which puts names of containers to
//! processes.
//!
//! Where no hierarchy of cgroups is mounted, there is none of this. What does not belong here: what
//! paths and names mean (`target::container`), which process is in which container (`resolve`).

mod choose;
mod decisions;
mod recorded_processes;
mod undecided_events;

use std::collections::VecDeque;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;

use profiler_model::Pid;
use profiler_model::raw::{CgroupVerdict, RawBody, RawCgroup, RawEvent};
use profiler_probe::{Probe, now};
use profiler_resolve::Resolver;
use profiler_target::cgroup::{Cgroup, Hierarchy};
use profiler_target::container::{Container, Describer, Engine, Engines, Identity, identify};

pub use choose::CgroupTargets;
pub(super) use choose::{Chosen, Wanted};

use super::wanted::WantedCgroups;
use decisions::{Decisions, Meaning, PATIENCE_NS, Step};
use recorded_processes::RecordedProcesses;
use undecided_events::{Fate, UndecidedEvents};

/// Most processes of a cgroup that are looked at when it turns out to be wanted.
const MAX_PROCESSES: usize = 100_000;
/// Most containers that are asked about and not answered yet, and answers that are kept.
const MAX_ASKED: usize = 4096;
/// How long to wait for answers when all else is done.
const LAST_PATIENCE: Duration = Duration::from_secs(1);
/// How long a description is believed when its container is started again.
const FRESH: Duration = Duration::from_secs(12);
/// How often what was removed is forgotten.
const TIDY: Duration = Duration::from_secs(5);
/// Most cgroups that are told of one by one when nobody knows what they are; anybody may make many.
const MAX_TOLD: u64 = 8;
const TOLD_NO_MORE: u64 = MAX_TOLD + 1;

/// The containers of a session: whose samples are wanted, and their names.
pub(super) struct Containers {
    hierarchy: Hierarchy,
    describer: Describer,
    /// Containers that are not described yet, by their cgroup, since when.
    asked: FxHashMap<String, Instant>,
    /// Descriptions, for who asks later: nobody is asked twice in a while.
    answers: FxHashMap<String, (Instant, Container)>,
    /// Those that were named and ran: the resolver is still to be told what they are.
    named: Vec<Container>,
    gate: Option<Gate>,
}

/// Which cgroups are recorded.
struct Gate {
    decisions: Decisions,
    undecided: UndecidedEvents,
    recorded: RecordedProcesses,
    /// What is decided is told to others here.
    wanted: WantedCgroups,
    steps: Vec<Step>,
    tidied: Instant,
    /// The kernel side could not be told; said once.
    failed: bool,
    text: String,
    /// Cgroups of which nobody knew what they are.
    given_up: u64,
}

impl Containers {
    /// Begins, right after the probe was attached.
    pub(super) fn start(
        chosen: Chosen,
        wanted: Option<WantedCgroups>,
        probe: &mut Probe,
    ) -> std::io::Result<Containers> {
        let mut containers = Containers {
            hierarchy: chosen.hierarchy,
            describer: Describer::start(Engines::of_this_machine())?,
            asked: FxHashMap::default(),
            answers: FxHashMap::default(),
            named: Vec::new(),
            gate: None,
        };
        if let (Some(chosen), Some(wanted)) = (chosen.wanted, wanted) {
            containers.open_gate(chosen, wanted);
            containers.carry_out(Some(probe));
        }
        Ok(containers)
    }

    fn open_gate(&mut self, chosen: Wanted, wanted: WantedCgroups) {
        let mut gate = Gate {
            decisions: Decisions::new(Meaning::of(chosen.selectors.clone()), chosen.paths.clone()),
            undecided: UndecidedEvents::default(),
            recorded: RecordedProcesses::default(),
            wanted,
            steps: Vec::new(),
            tidied: Instant::now(),
            failed: false,
            text: chosen.text.clone(),
            given_up: 0,
        };
        for container in &chosen.containers {
            gate.decisions.remember(container);
        }
        self.named.clone_from(&chosen.containers);
        for cgroup in chosen.tops() {
            // Unless it has ended since it was looked for.
            if self
                .hierarchy
                .cgroup(&cgroup.path)
                .is_ok_and(|there| there.id == cgroup.id)
            {
                gate.admit(&self.hierarchy, cgroup.path.clone(), cgroup.id);
            }
        }
        // What was made between looking and attaching nobody has told.
        for path in &chosen.paths {
            gate.decisions.found(path, &mut gate.steps);
        }
        gate.steps.retain(
            |step| !matches!(step, Step::Admit(path) if self.hierarchy.cgroup(path).is_err()),
        );
        if !chosen.selectors.is_empty() {
            let mut made = Vec::new();
            self.hierarchy.walk(&mut |path| {
                if !chosen.seen.contains(path)
                    && identify(path).is_some_and(|identity| identity.cgroup == path)
                {
                    made.push(path.to_owned());
                }
            });
            for path in made {
                gate.decisions.found(&path, &mut gate.steps);
            }
        }
        self.gate = Some(gate);
    }

    /// Becomes readable when there are answers; see [`Containers::answer`].
    pub(super) fn wake_fd(&self) -> std::io::Result<OwnedFd> {
        self.describer.wake_fd().try_clone_to_owned()
    }

    /// The processes that are recorded; none if all are.
    pub(super) fn pids(&self) -> Option<Vec<Pid>> {
        self.gate.as_ref().map(|gate| gate.recorded.pids())
    }

    /// What is waited for, as long as nothing of it has been there.
    pub(super) fn awaited(&self) -> Option<&str> {
        let gate = self.gate.as_ref()?;
        (!gate.decisions.has_come()).then_some(&gate.text)
    }

    /// What has been there and is not any more, all of it.
    pub(super) fn ended(&self) -> Option<&str> {
        let gate = self.gate.as_ref()?;
        (gate.decisions.has_come() && !gate.decisions.is_there()).then_some(&gate.text)
    }

    /// Looks at an event as soon as it is drained, and tells the resolver of it.
    pub(super) fn notice(&mut self, event: &RawEvent, probe: &mut Probe, resolver: &mut Resolver) {
        if let (RawBody::Cgroup(cgroup), Some(gate)) = (&event.body, &mut self.gate) {
            match cgroup.removed {
                true => gate.decisions.removed(event.at, cgroup.id),
                false => gate.decisions.made(event.at, cgroup, &mut gate.steps),
            }
            self.carry_out(Some(probe));
        }
        if let RawBody::Cgroup(cgroup) = &event.body
            && let Some(identity) = begun(cgroup)
        {
            // By the time that its first sample is resolved it may have been removed, and be forgotten
            // by its engine. Who is not met is not waited for at the end.
            self.describer.ask(&identity);
        }
        resolver.notice(event);
        let Some(gate) = &mut self.gate else { return };
        let (hierarchy, decisions) = (&self.hierarchy, &gate.decisions);
        let inside = gate.recorded.has(event, &mut |pid| {
            Some(decisions.wants(&hierarchy.path_of_process(pid)?))
        });
        if let (
            RawBody::Comm {
                pid, exec: true, ..
            },
            Some(inside),
        ) = (&event.body, inside)
        {
            resolver.notice_place(*pid, event.at, inside);
        }
    }

    /// Takes answers, and does what follows from them.
    pub(super) fn answer(&mut self, probe: Option<&mut Probe>, resolver: &mut Resolver) {
        for container in self.describer.poll() {
            let own = &container.identity.cgroup;
            self.asked.remove(own);
            if let Some(gate) = &mut self.gate {
                gate.decisions.answered(&container, &mut gate.steps);
                if self.answers.len() < MAX_ASKED {
                    let answer = (Instant::now(), container.clone());
                    self.answers.insert(own.clone(), answer);
                }
            }
            resolver.describe(&container);
        }
        if let Some(gate) = &mut self.gate {
            let given_up = gate.decisions.give_up(now(), &mut gate.steps);
            for path in given_up {
                gate.given_up += 1;
                match gate.given_up {
                    ..=MAX_TOLD => log::warn!(
                        "nobody knows whether cgroup {path} is {}: it is not recorded",
                        gate.text
                    ),
                    TOLD_NO_MORE => log::warn!(
                        "there are more such cgroups; what is not recorded of them is counted as lost"
                    ),
                    _ => {}
                }
            }
        }
        self.carry_out(probe);
        self.tidy();
    }

    /// Leaves of events, which are in order, those that can go on: what is not wanted is taken out, and
    /// what is not known yet waits, but for the `last` time. Returns how many samples were taken out.
    pub(super) fn pass(
        &mut self,
        events: &mut Vec<RawEvent>,
        last: bool,
        probe: Option<&mut Probe>,
    ) -> u64 {
        let Some(gate) = &mut self.gate else { return 0 };
        let (hierarchy, decisions, steps) = (&self.hierarchy, &mut gate.decisions, &mut gate.steps);
        let taken_out = gate.undecided.pass(events, last, &mut |at, place| {
            if let Some(fate) = decisions.fate(place) {
                return fate;
            }
            // Its making was not told: it was lost, or is on its way.
            let id = place.cgroup;
            match hierarchy.path_of(id) {
                Some(path) => {
                    let cgroup = RawCgroup {
                        id,
                        path: path.into(),
                        removed: false,
                        verdict: CgroupVerdict::Undecided,
                    };
                    decisions.made(at, &cgroup, steps);
                }
                None => decisions.nameless(at, id),
            }
            decisions.fate(place).unwrap_or(Fate::Lose)
        });
        self.carry_out(probe);
        taken_out
    }

    /// Has containers described that the resolver has met.
    pub(super) fn feed(&mut self, resolver: &mut Resolver) {
        for container in self.named.drain(..) {
            resolver.describe(&container);
        }
        for identity in resolver.take_unknown_containers() {
            match self.answers.get(&identity.cgroup) {
                Some((_, container)) => resolver.describe(container),
                None => self.ask(&identity),
            }
        }
        // Most of these are no containers, and then nobody answers.
        for path in resolver.take_unknown_cgroups() {
            self.describer.ask_about(&path);
        }
    }

    /// At the end: waits a moment for answers that samples wait for.
    pub(super) fn settle(&mut self, events: &mut Vec<RawEvent>, resolver: &mut Resolver) -> u64 {
        let mut taken_out = self.pass(events, false, None);
        let until = Instant::now() + Duration::from_nanos(PATIENCE_NS);
        let mut more = Vec::new();
        while self
            .gate
            .as_ref()
            .is_some_and(|gate| gate.undecided.is_waiting())
            && Instant::now() < until
        {
            self.wait(until);
            self.answer(None, resolver);
            taken_out += self.pass(&mut more, false, None);
            events.append(&mut more);
        }
        taken_out += self.pass(&mut more, true, None);
        events.append(&mut more);
        taken_out
    }

    /// At the very end: waits a moment for names of containers.
    pub(super) fn describe_rest(&mut self, resolver: &mut Resolver) {
        let until = Instant::now() + LAST_PATIENCE;
        self.feed(resolver);
        self.answer(None, resolver);
        while !self.asked.is_empty() && Instant::now() < until {
            self.wait(until);
            self.answer(None, resolver);
            self.feed(resolver);
        }
    }

    fn wait(&self, until: Instant) {
        let fd: BorrowedFd<'_> = self.describer.wake_fd();
        let mut polled = [rustix::event::PollFd::new(
            &fd,
            rustix::event::PollFlags::IN,
        )];
        let left = until.saturating_duration_since(Instant::now());
        let left = left.min(Duration::from_millis(100));
        let timeout = rustix::event::Timespec {
            tv_sec: 0,
            tv_nsec: left.subsec_nanos().into(),
        };
        // Interrupted or not: what is there is looked at.
        let _ = rustix::event::poll(&mut polled, Some(&timeout));
    }

    fn ask(&mut self, identity: &Identity) {
        if self.asked.len() < MAX_ASKED {
            self.asked.insert(identity.cgroup.clone(), Instant::now());
        }
        self.describer.ask(identity);
    }

    /// Does what the gate has decided to do.
    fn carry_out(&mut self, mut probe: Option<&mut Probe>) {
        let Some(gate) = &mut self.gate else { return };
        let mut asked = Vec::new();
        let mut steps = VecDeque::from(std::mem::take(&mut gate.steps));
        while let Some(step) = steps.pop_front() {
            match step {
                Step::Ask(identity) => {
                    // One that is started again soon after it was asked about.
                    let known = self.answers.get(&identity.cgroup);
                    if let Some((_, container)) = known.filter(|(at, _)| at.elapsed() < FRESH) {
                        gate.decisions.answered(container, &mut gate.steps);
                    }
                    if gate.steps.is_empty() {
                        asked.push(identity);
                    }
                    steps.extend(gate.steps.drain(..));
                }
                Step::Decide(id, wanted) => {
                    gate.tell(probe.as_deref_mut(), id, wanted);
                    if let Some(path) = gate.decisions.path_of(id) {
                        gate.wanted.decide(path, wanted);
                        if wanted {
                            let pids = self.hierarchy.processes(path, MAX_PROCESSES);
                            gate.recorded.add(pids);
                        }
                    }
                }
                Step::Admit(path) => {
                    // It may have ended meanwhile.
                    if let Ok(cgroup) = self.hierarchy.cgroup(&path) {
                        gate.tell(probe.as_deref_mut(), cgroup.id, true);
                        gate.wanted.decide(&path, true);
                        gate.admit(&self.hierarchy, path, cgroup.id);
                    }
                }
            }
        }
        for identity in asked {
            self.ask(&identity);
        }
    }

    fn tidy(&mut self) {
        let Some(gate) = &mut self.gate else {
            return;
        };
        if gate.tidied.elapsed() < TIDY {
            return;
        }
        gate.tidied = Instant::now();
        gate.decisions.tidy(now());
        self.asked.retain(|_, since| since.elapsed() < 2 * TIDY);
        if self.answers.len() >= MAX_ASKED {
            self.answers.clear();
        }
    }
}

/// The container that begins with a cgroup, if the path says so.
fn begun(cgroup: &RawCgroup) -> Option<Identity> {
    let identity = identify(&cgroup.path).filter(|_| !cgroup.removed)?;
    let is_own = identity.cgroup == *cgroup.path;
    // Of a unit, the path says all there is to know.
    (is_own && identity.engine != Engine::Systemd).then_some(identity)
}

impl Gate {
    /// A cgroup is wanted.
    fn admit(&mut self, hierarchy: &Hierarchy, path: String, id: u64) {
        self.recorded.add(hierarchy.processes(&path, MAX_PROCESSES));
        self.decisions.admit(&Cgroup { path, id });
    }

    fn tell(&mut self, probe: Option<&mut Probe>, id: u64, wanted: bool) {
        let Some(probe) = probe else { return };
        if let Err(error) = probe.decide(id, wanted)
            && !std::mem::replace(&mut self.failed, true)
        {
            log::error!("the kernel side can't be told which cgroups are recorded: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn containers_are_asked_about_when_their_own_cgroup_is_made() {
        let asked = |path: &str, removed| {
            let cgroup = RawCgroup {
                id: 7,
                path: path.into(),
                removed,
                verdict: CgroupVerdict::Undecided,
            };
            begun(&cgroup).map(|identity| identity.cgroup)
        };
        let own = format!("/docker/{}", "ab".repeat(32));
        assert_eq!(asked(&own, false), Some(own.clone()));
        assert_eq!(asked(&own, true), None);
        assert_eq!(asked(&format!("{own}/inner"), false), None);
        assert_eq!(asked("/system.slice/cron.service", false), None);
        assert_eq!(asked("/docker", false), None);
    }
}
