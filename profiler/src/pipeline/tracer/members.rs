//! Which processes are traced, where cgroups say so: those that are in wanted ones.
//!
//! Cgroups of processes -> members; processes that have come into a wanted cgroup, by whatever way, are
//! to be attached to, those that have left it are let go. A process that is forked is where its parent
//! is. Whoever was not seen coming (records were lost, a cgroup has come to be wanted, a process was
//! moved) is found by looking into the cgroups, at once when there is reason to, else every second.
//!
//! What does not belong here: which cgroups are wanted (`wanted`), attaching (`follow`).

use rustc_hash::FxHashSet;

use super::Tracer;
use super::follow::Pending;
use crate::pipeline::wanted::WantedCgroups;
use profiler_model::raw::RawCgroup;
use profiler_model::{Pid, Timestamp};
use profiler_probe::{Probe, now};
use profiler_resolve::Resolver;
use profiler_resolve::objects::{Finder, started};
use profiler_target::cgroup::{Hierarchy, contains};

/// How often cgroups are looked into without a reason.
const SCAN_NS: u64 = 1_000_000_000;
/// Most processes of one cgroup that are looked at.
const MAX_PROCESSES: usize = 16_384;
/// How long a new cgroup's first process is waited for in a hurry, if nothing may be missed.
const HURRY_NS: u64 = 5_000_000_000;
/// Most cgroups that are waited for so.
const MAX_HURRIED: usize = 64;

/// See the module.
#[derive(Debug)]
pub(super) struct Members {
    hierarchy: Hierarchy,
    wanted: WantedCgroups,
    /// Processes that are known to be in wanted cgroups.
    inside: FxHashSet<Pid>,
    scanned_at: Timestamp,
    /// New cgroups whose first program is still to be started, and since when.
    hurried: Vec<(Box<str>, Timestamp)>,
    /// Processes there whose files have been attached to.
    reached: FxHashSet<Pid>,
    /// Processes that had ended before anybody could tell which cgroup they were in.
    pub(super) untold: u64,
}

/// Where a process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Inside,
    Outside,
    /// It has ended.
    Gone,
}

impl Members {
    pub(super) fn new(hierarchy: Hierarchy, wanted: WantedCgroups) -> Members {
        Members {
            hierarchy,
            wanted,
            inside: FxHashSet::default(),
            scanned_at: now(),
            hurried: Vec::new(),
            reached: FxHashSet::default(),
            untold: 0,
        }
    }

    /// All processes that are inside now; they are known from now on.
    pub(super) fn enter_all(&mut self) -> Vec<Pid> {
        let found = self.scan();
        self.inside.extend(&found);
        found.into_iter().collect()
    }

    /// Looks where a process is, unless it is known to be inside and has ended.
    pub(super) fn place(&mut self, pid: Pid) -> Place {
        match self.is_inside(pid) {
            Some(true) => {
                self.inside.insert(pid);
                Place::Inside
            }
            Some(false) => Place::Outside,
            None if self.inside.contains(&pid) => Place::Inside,
            None => Place::Gone,
        }
    }

    /// Whether a process was seen inside.
    pub(super) fn knows(&self, pid: Pid) -> bool {
        self.inside.contains(&pid)
    }

    /// Whether no process has been seen inside.
    pub(super) fn is_empty(&self) -> bool {
        self.inside.is_empty()
    }

    /// Takes in a child of a process that is inside.
    pub(super) fn enter(&mut self, pid: Pid) {
        self.inside.insert(pid);
    }

    pub(super) fn leave(&mut self, pid: Pid) {
        self.inside.remove(&pid);
    }

    /// A cgroup was made or removed.
    pub(super) fn note(&mut self, cgroup: &RawCgroup) {
        self.wanted.note(cgroup);
        if cgroup.removed {
            self.hurried.retain(|(path, _)| *path != cgroup.path);
        }
    }

    /// Whether a process is in a wanted cgroup now; none if it is gone.
    fn is_inside(&self, pid: Pid) -> Option<bool> {
        let path = self.hierarchy.path_of_process(pid)?;
        Some(self.wanted.contains(&path))
    }

    fn scan(&self) -> FxHashSet<Pid> {
        let paths = self.wanted.paths();
        let mut found = FxHashSet::default();
        for path in &paths {
            found.extend(self.processes(path));
        }
        found
    }

    /// The processes of a wanted cgroup, without those of cgroups in it that are not wanted.
    fn processes(&self, path: &str) -> Vec<Pid> {
        let mut found = self.hierarchy.processes(path, MAX_PROCESSES);
        if self.wanted.excludes_below(path) {
            found.retain(|&pid| self.is_inside(pid) == Some(true));
        }
        found
    }
}

impl Tracer {
    /// Whether something is to be attached before a process comes to it: steps should follow each
    /// other as fast as can be.
    pub(in crate::pipeline) fn is_in_a_hurry(&self) -> bool {
        let hurried = |members: &Members| !members.hurried.is_empty();
        self.members.as_ref().is_some_and(hurried)
    }

    /// Looks for processes that have come into wanted cgroups and for those that have left them.
    pub(super) fn look_for_members(&mut self, probe: &mut Probe) {
        let Some(members) = &mut self.members else {
            return;
        };
        let at = now();
        let new = members.wanted.take_new();
        if self.request.follow_exact && members.hurried.len() + new.len() <= MAX_HURRIED {
            let hurried = new.iter().map(|path| (path.clone(), at));
            members.hurried.extend(hurried);
        }
        let since = members.scanned_at;
        if new.is_empty() && at.since(since) < SCAN_NS {
            return;
        }
        members.scanned_at = at;
        let found = members.scan();
        let mut left: FxHashSet<Pid> = members.inside.difference(&found).copied().collect();
        // Those that have ended are let go when what is pending of them has been looked at.
        left.retain(|&pid| members.is_inside(pid) == Some(false));
        for &pid in &found {
            if !members.inside.insert(pid) || self.pending.iter().any(|known| known.is_of(pid)) {
                continue;
            }
            // Where it is new that a cgroup is wanted, its processes may have run for long.
            let since = match new.is_empty() {
                true => since,
                false => started(pid).map_or(since, |started| started.max(self.began)),
            };
            self.pending.push_back(Pending::found(pid, since));
        }
        for pid in &left {
            members.leave(*pid);
        }
        self.forget(probe, &left);
    }

    /// Where nothing may be missed: attaches to the files that a new cgroup's program will be started
    /// from, as soon as they can be reached, which is when a process there has got its root and has yet
    /// to run the program.
    pub(super) fn attach_ahead(&mut self, probe: &mut Probe, resolver: &mut Resolver) {
        let Some(members) = &mut self.members else {
            return;
        };
        let at = now();
        let waits = |(_, since): &(_, Timestamp)| at.since(*since) < HURRY_NS;
        members.hurried.retain(waits);
        if members.hurried.is_empty() {
            members.reached.clear();
            return;
        }
        let cgroups = members.hurried.iter();
        let found: Vec<Pid> = cgroups
            .flat_map(|(path, _)| members.processes(path))
            .collect();
        for pid in found {
            let is_new = |members: &Members| !members.reached.contains(&pid);
            if self.members.as_ref().is_some_and(is_new) && Finder::has_own_root(pid) {
                self.attach_at_paths(pid, probe, resolver);
            }
        }
    }

    /// Attaches to the files that are named by a path, below the root of a process.
    fn attach_at_paths(&mut self, pid: Pid, probe: &mut Probe, resolver: &mut Resolver) {
        let found = self.finder.objects_at_paths(pid);
        if let (Some(members), false) = (&mut self.members, found.is_empty()) {
            members.reached.insert(pid);
        }
        let before = self.probes.len();
        let mut objects: Vec<usize> = found
            .iter()
            .filter_map(|object| self.object(object, Some(pid)))
            .collect();
        self.announce(before, resolver);
        let new: Vec<u32> = (before as u32..self.probes.len() as u32).collect();
        let mut result = self.tell(probe, &new);
        let process = self.process(pid);
        objects.retain(|&object| self.processes.entry(process).or_default().insert(object));
        for &object in &objects {
            result = result.and(self.attach(probe, object, process));
        }
        if self.suspension.is_none() {
            result = result.and(self.arm(probe, &new));
        }
        self.note_ahead(&objects);
        if let Err(error) = result {
            self.tell_unlinked(process, &error);
        }
    }

    /// A process runs a program: nobody need hurry for its cgroup any more.
    pub(super) fn has_started(&mut self, pid: Pid) {
        let Some(members) = &mut self.members else {
            return;
        };
        if members.hurried.is_empty() || !Finder::has_own_root(pid) {
            return;
        }
        let Some(path) = members.hierarchy.path_of_process(pid) else {
            return;
        };
        let holds = |(whole, _): &(Box<str>, _)| contains(whole, &path);
        members.hurried.retain(|cgroup| !holds(cgroup));
    }
}
