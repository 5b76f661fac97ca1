//! Who is traced, and what each process has of it.
//!
//! Processes that run at first, forks, ends and cgroups -> for each object who is to be attached to it.
//! Objects are given by index.
//!
//! What does not belong here: which cgroups are wanted (`cgroup_members`), attaching (`links`).

use std::path::Path;

use rustc_hash::{FxHashMap, FxHashSet};

use super::arrivals::{Arrivals, Pending};
use super::asked::Asked;
use super::cgroup_members::{CgroupMembers, Place};
use profiler_model::Pid;
use profiler_resolve::Resolver;

/// Traced processes and the objects that each has mapped.
#[derive(Debug)]
pub(super) struct Targets {
    /// The traced objects that each process has mapped. The key `None` stands for all processes together.
    has: FxHashMap<Option<Pid>, FxHashSet<usize>>,
    /// Which processes are traced, where cgroups say so.
    pub(super) members: Option<CgroupMembers>,
    /// Else: targets and what they have started, while these live.
    pub(super) family: FxHashSet<Pid>,
    /// Debuggers for which it was logged that what they debug is not traced.
    debuggers: FxHashSet<Pid>,
    /// Processes whose main thread has ended.
    ending: Vec<Pid>,
    /// Processes that have ended, until what was pending of them has been looked at.
    gone: Vec<Pid>,
    /// Processes that map files that switch between stacks, and that the resolver is not told of yet.
    switchers: Vec<Pid>,
}

impl Targets {
    pub(super) fn new(members: Option<CgroupMembers>, family: FxHashSet<Pid>) -> Targets {
        Targets {
            has: FxHashMap::default(),
            members,
            family,
            debuggers: FxHashSet::default(),
            ending: Vec::new(),
            gone: Vec::new(),
            switchers: Vec::new(),
        }
    }

    /// How many there are; all together count as one.
    pub(super) fn len(&self) -> usize {
        self.has.len()
    }

    /// Those with links of their own.
    pub(super) fn processes(&self) -> impl Iterator<Item = Pid> {
        self.has.keys().copied().flatten()
    }

    /// The targets of an object's links.
    pub(super) fn having(&self, object: usize) -> Vec<Option<Pid>> {
        let having = self.has.iter();
        let having = having.filter(|(_, objects)| objects.contains(&object));
        having.map(|(&process, _)| process).collect()
    }

    /// How many processes each of so many objects is attached to by links of their own.
    pub(super) fn crowds(&self, objects: usize) -> Vec<u32> {
        let mut crowds = vec![0; objects];
        for &object in self.has.values().flatten() {
            crowds[object] += 1;
        }
        crowds
    }

    /// What a process with links of its own has; none: nothing is known of it.
    pub(super) fn objects_of(&self, pid: Pid) -> Option<&FxHashSet<usize>> {
        self.has.get(&Some(pid))
    }

    /// Whether a process (`None`: all together) has an object.
    pub(super) fn has(&self, process: Option<Pid>, object: usize) -> bool {
        let objects = self.has.get(&process);
        objects.is_some_and(|objects| objects.contains(&object))
    }

    /// Adds a process (`None`: all together) that may come to have objects.
    pub(super) fn enter(&mut self, process: Option<Pid>) -> &mut FxHashSet<usize> {
        self.has.entry(process).or_default()
    }

    pub(super) fn forget(&mut self, pid: Pid) {
        self.has.remove(&Some(pid));
    }

    /// The id was that of another process before, whose end need not be waited for.
    pub(super) fn begins_anew(&mut self, pid: Pid) {
        self.ending.retain(|&ending| ending != pid);
    }

    /// Whether a child that was forked may be one to be traced: it is where its parent is. Without
    /// cgroups only children of targets are told of.
    pub(super) fn takes_in(&mut self, pid: Pid, parent: Pid, arrivals: &Arrivals) -> bool {
        self.gone.retain(|&gone| gone != pid);
        match &mut self.members {
            Some(members) if members.knows(parent) => {
                members.enter(pid);
                true
            }
            Some(members) => {
                // Its id may have been that of a member before.
                members.leave(pid);
                arrivals.has(parent)
            }
            None => true,
        }
    }

    /// The main thread of a process has ended.
    pub(super) fn main_ended(&mut self, pid: Pid, arrivals: &Arrivals) {
        self.family.remove(&pid);
        // A short-lived child may end before anything was attached to it.
        let member = || self.members.as_ref().is_some_and(|known| known.knows(pid));
        if self.has.contains_key(&Some(pid)) || arrivals.has(pid) || member() {
            self.ending.push(pid);
        }
    }

    /// A process may have ended before it was attached to.
    pub(super) fn check_end(&mut self, pid: Pid) {
        if !Path::new(&format!("/proc/{pid}")).exists() {
            self.ending.push(pid);
        }
    }

    /// Processes that have ended. Their other threads may outlive the main one, whose end was seen.
    pub(super) fn take_ended(&mut self, arrivals: &Arrivals) -> FxHashSet<Pid> {
        let mut ended = FxHashSet::default();
        // What children have that are still to be looked at is what it had.
        let parents = arrivals.parents();
        self.ending.retain(|&pid| {
            let stays = parents.contains(&pid) || Path::new(&format!("/proc/{pid}")).exists();
            if !stays {
                ended.insert(pid);
            }
            stays
        });
        self.gone.extend(&ended);
        ended
    }

    /// Nothing is pending any more: forgets the processes that have ended.
    pub(super) fn leave_gone(&mut self) {
        let gone = self.gone.drain(..);
        if let Some(members) = &mut self.members {
            gone.for_each(|pid| members.leave(pid));
        }
    }

    /// Whether a pending process or file concerns a process that is to be traced. Where cgroups decide, the
    /// process is looked up now.
    pub(super) fn concerns(&mut self, pending: &Pending, asked: &Asked) -> bool {
        let Some(members) = &mut self.members else {
            return true;
        };
        if let Some(parent) = pending.parent {
            let inside = members.knows(parent) || members.place(pending.pid) == Place::Inside;
            if inside {
                members.enter(pending.pid);
            }
            return inside;
        }
        match members.place(pending.pid) {
            Place::Inside => {
                members.has_started(pending.pid);
                true
            }
            Place::Outside => false,
            Place::Gone => {
                let unseen = asked.may_cover_any(&pending.paths);
                members.untold += u64::from(unseen && !pending.attached);
                false
            }
        }
    }

    /// Whether a process is one of those that tracing is for.
    pub(super) fn is_ours(&mut self, pid: Pid) -> bool {
        match &mut self.members {
            Some(members) => members.place(pid) == Place::Inside,
            None => self.family.contains(&pid),
        }
    }

    /// Whether a debugger has a process that nobody named. Its breakpoints and our probes would be on
    /// the same instructions, where the kernel tells the debugger of none; and it would read ours in the
    /// code.
    pub(super) fn is_debugged(&mut self, pid: Pid) -> bool {
        if self.family.contains(&pid) {
            return false;
        }
        let Some(debugger) = profiler_target::debugger::of(pid) else {
            return false;
        };
        if self.debuggers.insert(debugger) {
            log::warn!(
                "pid {pid} is not traced, nor is what else pid {debugger} debugs: name it with -p to insist"
            );
        }
        true
    }

    /// A process maps a file that switches between stacks.
    pub(super) fn switches(&mut self, pid: Pid) {
        self.switchers.push(pid);
    }

    /// Pairing needs to know whose threads have stacks of their own making.
    pub(super) fn tell_switchers(&mut self, resolver: &mut Resolver) {
        for pid in self.switchers.drain(..) {
            resolver.switches_stacks(pid);
        }
    }
}
