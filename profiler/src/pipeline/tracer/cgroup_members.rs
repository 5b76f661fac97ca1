//! Which processes are traced, where cgroups say so: those that are in wanted ones.
//!
//! Cgroups of processes -> members; processes that have come into a wanted cgroup, by whatever way, are
//! to be attached to, those that have left it are let go. A process that is forked is where its parent
//! is. Whoever was not seen coming (records were lost, a cgroup has come to be wanted, a process was
//! moved) is found by looking into the cgroups, at once when there is reason to, else every second.
//!
//! What does not belong here: which cgroups are wanted (`wanted`), attaching (`follow`).

use rustc_hash::FxHashSet;

use super::arrivals::Arrivals;
use crate::pipeline::wanted::WantedCgroups;
use profiler_model::raw::RawCgroup;
use profiler_model::{Pid, Timestamp};
use profiler_probe::now;
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

/// The traced processes, where cgroups decide.
#[derive(Debug)]
pub(super) struct CgroupMembers {
    hierarchy: Hierarchy,
    wanted: WantedCgroups,
    /// Processes that are known to be in wanted cgroups.
    inside: FxHashSet<Pid>,
    began: Timestamp,
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

impl CgroupMembers {
    pub(super) fn new(hierarchy: Hierarchy, wanted: WantedCgroups) -> CgroupMembers {
        let began = now();
        CgroupMembers {
            hierarchy,
            wanted,
            inside: FxHashSet::default(),
            began,
            scanned_at: began,
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

    /// Whether something is to be attached before a process comes to it: steps should follow each
    /// other as fast as can be.
    pub(super) fn are_in_a_hurry(&self) -> bool {
        !self.hurried.is_empty()
    }

    /// Looks for processes that have come into wanted cgroups, which are arrivals, and for those that
    /// have left them. With `hurries` new cgroups are waited for in a hurry.
    pub(super) fn look(&mut self, arrivals: &mut Arrivals, hurries: bool) -> FxHashSet<Pid> {
        let at = now();
        let new = self.wanted.take_new();
        if hurries && self.hurried.len() + new.len() <= MAX_HURRIED {
            let hurried = new.iter().map(|path| (path.clone(), at));
            self.hurried.extend(hurried);
        }
        let since = self.scanned_at;
        if new.is_empty() && at.since(since) < SCAN_NS {
            return FxHashSet::default();
        }
        self.scanned_at = at;
        let found = self.scan();
        let mut left: FxHashSet<Pid> = self.inside.difference(&found).copied().collect();
        // Those that have ended are let go when what is pending of them has been looked at.
        left.retain(|&pid| self.is_inside(pid) == Some(false));
        for &pid in &found {
            if !self.inside.insert(pid) || arrivals.has(pid) {
                continue;
            }
            // Where it is new that a cgroup is wanted, its processes may have run for long.
            let since = match new.is_empty() {
                true => since,
                false => started(pid).map_or(since, |started| started.max(self.began)),
            };
            arrivals.found(pid, since);
        }
        for pid in &left {
            self.leave(*pid);
        }
        left
    }

    /// Processes of new cgroups that are waited for.
    pub(super) fn hurried(&mut self) -> Vec<Pid> {
        let at = now();
        let waits = |(_, since): &(_, Timestamp)| at.since(*since) < HURRY_NS;
        self.hurried.retain(waits);
        if self.hurried.is_empty() {
            self.reached.clear();
        }
        let cgroups = self.hurried.iter();
        cgroups.flat_map(|(path, _)| self.processes(path)).collect()
    }

    /// Whether files of a process there have been attached to.
    pub(super) fn has_reached(&self, pid: Pid) -> bool {
        self.reached.contains(&pid)
    }

    pub(super) fn reach(&mut self, pid: Pid) {
        self.reached.insert(pid);
    }

    /// A process runs a program: nobody need hurry for its cgroup any more.
    pub(super) fn has_started(&mut self, pid: Pid) {
        if self.hurried.is_empty() || !Finder::has_own_root(pid) {
            return;
        }
        let Some(path) = self.hierarchy.path_of_process(pid) else {
            return;
        };
        let holds = |(whole, _): &(Box<str>, _)| contains(whole, &path);
        self.hurried.retain(|cgroup| !holds(cgroup));
    }

    /// Processes of whom nobody could tell any more whether they were in a wanted cgroup.
    pub(super) fn tell_untold(&self, follow_exact: bool) {
        let untold = self.untold;
        let hint = match follow_exact {
            true => "",
            false => " (--follow-exact traces from the first instruction)",
        };
        if untold > 0 {
            let processes = if untold == 1 { "process" } else { "processes" };
            log::warn!(
                "{untold} {processes} that may have run traced functions ended before it was seen in \
                 which cgroup{hint}"
            );
        }
    }
}
