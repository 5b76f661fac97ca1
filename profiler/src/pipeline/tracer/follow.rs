//! What begins while tracing: new processes and newly mapped files -> probes attached to them.
//!
//! Raw events, as drained -> what is to be attached, and since when calls are missing; at the next step
//! it is attached, and that time told as a gap. Timestamps are nanoseconds of CLOCK_MONOTONIC.
//!
//! What does not belong here: what runs already (`choose`), attaching itself (`links`).

use std::path::Path;

use rustc_hash::FxHashSet;

use super::Tracer;
use super::keep::gap;
use super::members::Place;
use profiler_model::raw::{FileIdentity, RawBody, RawEvent};
use profiler_model::{GapReason, Pid, Timestamp};
use profiler_probe::{Probe, now};
use profiler_resolve::objects::TargetObject;
use profiler_resolve::{Resolver, Role};
use profiler_target::translator;

/// Most files of one process that are remembered until it is looked at.
const MAX_PATHS: usize = 256;
/// Most mapped files that are remembered.
const MAX_SEEN: usize = 1 << 16;

/// Something that is to be attached.
#[derive(Debug)]
pub(super) struct Pending {
    pid: Pid,
    /// Since when calls are missed.
    since: Timestamp,
    /// A fork: the files of its parent.
    parent: Option<Pid>,
    /// Files that it has mapped, as it sees them.
    paths: Vec<Box<str>>,
    /// All of these were attached for all processes before.
    attached: bool,
}

impl Pending {
    /// A process that was found to be there.
    pub(super) fn found(pid: Pid, since: Timestamp) -> Pending {
        Pending {
            pid,
            since,
            parent: None,
            paths: Vec::new(),
            attached: false,
        }
    }

    pub(super) fn is_of(&self, pid: Pid) -> bool {
        self.pid == pid
    }
}

/// A mapped file as the kernel tells of it.
pub(super) type SeenFile = (FileIdentity, Box<[u8]>);

impl Tracer {
    /// Looks at what was drained: new processes and files are to be attached, ended ones let go.
    /// `admitted` tells which events concern the recording.
    pub(in crate::pipeline) fn notice(&mut self, event: &RawEvent) {
        let (pid, parent) = match &event.body {
            RawBody::Fork {
                pid, parent_pid, ..
            } if pid != parent_pid => {
                if !self.takes_in(*pid, *parent_pid) {
                    return;
                }
                self.ends.forked(*parent_pid, *pid);
                if !self.shared && self.ends.runs_dead(*pid) {
                    self.ends.leave_alone([*pid], event.at);
                    return;
                }
                (*pid, Some(*parent_pid))
            }
            RawBody::Cgroup(cgroup) => {
                if let Some(members) = &mut self.members {
                    members.note(cgroup);
                }
                return;
            }
            RawBody::Mmap(mmap) => {
                self.code_made |= profiler_resolve::is_made_code(&mmap.path);
                if !mmap.path.starts_with(b"/") || mmap.path.starts_with(b"//anon") {
                    return;
                }
                let file = (mmap.file, mmap.path.clone());
                // Where cgroups say who is traced, one may have run a file before it was attached.
                let for_all = self.shared && self.members.is_none();
                let attached = match self.seen.get(&file) {
                    // Nothing in it is traced, or it is attached for all already.
                    Some(traced) if !traced || for_all => return,
                    seen => seen.is_some() && self.shared,
                };
                let path = String::from_utf8_lossy(&mmap.path).into();
                let mut pending = self.pending.iter_mut();
                if let Some(pending) =
                    pending.find(|pending| pending.pid == mmap.pid && pending.parent.is_none())
                {
                    pending.attached &= attached;
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
                    attached,
                });
                return;
            }
            RawBody::Exit { pid, tid } if pid.0 == tid.0 => {
                self.ends.ended(*pid);
                self.family.remove(pid);
                // A short-lived child may end before anything was attached to it.
                let pending = || self.pending.iter().any(|pending| pending.pid == *pid);
                let member = || self.members.as_ref().is_some_and(|known| known.knows(*pid));
                if self.processes.contains_key(&Some(*pid)) || pending() || member() {
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
                attached: false,
            });
        }
    }

    /// Whether a child that was forked may be one to be traced: it is where its parent is. Without
    /// cgroups only children of targets are told of.
    fn takes_in(&mut self, pid: Pid, parent: Pid) -> bool {
        let pending = || self.pending.iter().any(|pending| pending.pid == parent);
        self.gone.retain(|&gone| gone != pid);
        match &mut self.members {
            Some(members) if members.knows(parent) => {
                members.enter(pid);
                true
            }
            Some(members) => {
                // Its id may have been that of a member before.
                members.leave(pid);
                pending()
            }
            None => {
                if self.request.follow_exact {
                    self.family.insert(pid);
                    self.ends.watch(pid);
                }
                true
            }
        }
    }

    /// Lets go of processes that have ended. Their other threads may outlive the main one, whose end
    /// was seen.
    pub(super) fn forget_ended(&mut self, probe: &mut Probe) {
        let mut ended = FxHashSet::default();
        // What children have that are still to be looked at is what it had.
        let parents: FxHashSet<Pid> = self.pending.iter().filter_map(|one| one.parent).collect();
        self.ending.retain(|&pid| {
            let stays = parents.contains(&pid) || Path::new(&format!("/proc/{pid}")).exists();
            if !stays {
                ended.insert(pid);
            }
            stays
        });
        if ended.is_empty() {
            return;
        }
        // What was to be attached to them is still looked at: it is a gap.
        self.forget(probe, &ended);
        self.gone.extend(ended);
    }

    pub(super) fn forget(&mut self, probe: &mut Probe, ended: &FxHashSet<Pid>) {
        for pid in ended {
            self.processes.remove(&Some(*pid));
            self.cpu_ns.remove(pid);
        }
        self.detach_processes(probe, ended);
    }

    /// Attaches to a new process, or to files that a process has mapped.
    pub(super) fn follow(
        &mut self,
        pending: &Pending,
        probe: &mut Probe,
        resolver: &mut Resolver,
        out: &mut Vec<RawEvent>,
    ) {
        if !self.concerns(pending) {
            return;
        }
        let before = self.probes.len();
        let was_safe = self.safety.verdict().uretprobe;
        let mut objects: Vec<usize> = Vec::new();
        // What it will run, or has begun to run a moment ago.
        let mut expected: Vec<usize> = Vec::new();
        // It has ended before anybody could look at what it runs.
        let mut unseen = false;
        let parent = pending.parent;
        // Of a parent that is gone already it is not known any more what it had.
        match parent.filter(|&parent| self.processes.contains_key(&Some(parent))) {
            Some(parent) => {
                if self.processes.contains_key(&Some(pending.pid)) {
                    // The id was that of another process before.
                    self.ending.retain(|&pid| pid != pending.pid);
                    self.forget(probe, &FxHashSet::from_iter([pending.pid]));
                }
                objects.extend(self.processes.get(&Some(parent)).into_iter().flatten());
                self.processes.entry(Some(pending.pid)).or_default();
            }
            // It may be gone by now: then there is nothing to attach to.
            None => match self.finder.objects_of(pending.pid) {
                Ok(found) => {
                    let mut translated = false;
                    for object in &found {
                        translated |= self.is_translator(pending.pid, object);
                    }
                    if translated && !self.shared {
                        // At once, before it reads what it will run.
                        let pids = FxHashSet::from_iter([pending.pid]);
                        return self.let_go(probe, pids, pending.since);
                    }
                    let ahead = match self.members.is_some() && self.request.follow_exact {
                        true => self.finder.objects_at_paths(pending.pid),
                        false => Vec::new(),
                    };
                    let found = found.into_iter().map(|object| (object, true));
                    let ahead = ahead.into_iter().map(|object| (object, false));
                    for (object, is_mapped) in found.chain(ahead) {
                        let index = self.object(&object, Some(pending.pid));
                        if is_mapped {
                            self.note_seen(&object, index.is_some());
                            objects.extend(index);
                        } else {
                            expected.extend(index);
                        }
                        if self.switching.contains(&object.id) {
                            self.switchers.push(pending.pid);
                        }
                    }
                }
                Err(error) => {
                    log::debug!("pid {}: {error}", pending.pid);
                    let selection = &self.request.selection;
                    let mut paths = pending.paths.iter();
                    unseen = paths.any(|path| selection.may_cover(path, true));
                    if self.shared && unseen && self.members.is_none() {
                        // Others will run these files.
                        objects.extend(self.objects_by_path(&pending.paths));
                    }
                }
            },
        }
        // Before the process has probes at all: the kernel replaces its return addresses where anybody's
        // return probe sits on the same instruction, whoever that is.
        if was_safe && !self.safety.verdict().uretprobe {
            self.replan(probe, resolver);
        }
        if !self.shared && (self.ends.runs_dead(pending.pid) || self.is_debugged(pending.pid)) {
            objects.clear();
            self.let_go(probe, FxHashSet::from_iter([pending.pid]), pending.since);
        }
        self.announce(before, resolver);
        self.tell_switchers(resolver);
        let new: Vec<u32> = (before as u32..self.probes.len() as u32).collect();
        let mut result = self.tell(probe, &new);
        let mut attached = unseen;
        let process = self.process(pending.pid);
        for object in objects {
            if self.processes.entry(process).or_default().insert(object) {
                attached |= self.has_calls(object);
                result = result.and(self.attach(probe, object, process));
            }
            let ahead = self.ahead.get(&object);
            attached |= ahead.is_some_and(|&ahead| pending.since < ahead);
        }
        expected.retain(|&object| self.processes.entry(process).or_default().insert(object));
        for &object in &expected {
            result = result.and(self.attach(probe, object, process));
        }
        if self.suspension.is_none() {
            result = result.and(self.arm(probe, &new));
        }
        self.note_ahead(&expected);
        if let Err(error) = result {
            self.tell_unlinked(process, &error);
        }
        if attached {
            let at = now();
            resolver.has_probes_from(pending.pid, at);
            out.push(gap(
                at,
                pending.since,
                None,
                Some(pending.pid),
                GapReason::NotYetAttached,
            ));
        }
        // Its end may have been seen before.
        if !self.shared && !Path::new(&format!("/proc/{}", pending.pid)).exists() {
            self.ending.push(pending.pid);
        }
    }

    /// Notes what a process runs; whether it runs copies of code, in which a probe is a trap.
    pub(super) fn is_translator(&mut self, pid: Pid, mapped: &TargetObject) -> bool {
        if mapped.is_main {
            self.ends.runs(pid, mapped.id);
        }
        if !translator::is_one(&mapped.path) {
            return false;
        }
        if self.ends.translates(mapped.id) {
            let path = &mapped.path;
            match self.shared {
                true => log::warn!(
                    "pid {pid} runs copies of other programs' code ({path}): probes in all processes end \
                     what it runs where it comes to one"
                ),
                false => log::warn!(
                    "what {path} runs is not traced: it runs copies of the code, and would be ended by the \
                     copy of a probe"
                ),
            }
        }
        true
    }

    /// Whether a debugger has a process that nobody named. Its breakpoints and our probes would be on
    /// the same instructions, where the kernel tells the debugger of none; and it would read ours in the
    /// code.
    fn is_debugged(&mut self, pid: Pid) -> bool {
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

    /// What is never looked at, because this is the end, is missing since it began.
    pub(super) fn close_pending(&mut self, at: Timestamp, out: &mut Vec<RawEvent>) {
        while let Some(pending) = self.pending.pop_front() {
            if !self.concerns(&pending) {
                continue;
            }
            let parents = self.processes.get(&pending.parent);
            let selection = &self.request.selection;
            let mut paths = pending.paths.iter();
            if parents.is_some_and(|objects| pending.parent.is_some() && !objects.is_empty())
                || self.ends.runs_dead(pending.pid)
                || paths.any(|path| selection.may_cover(path, true))
            {
                let (from, pid) = (pending.since, Some(pending.pid));
                out.push(gap(at, from, None, pid, GapReason::NotYetAttached));
            }
        }
    }

    /// Whether what is pending is of a process that is to be traced: where cgroups say so, it is looked
    /// at by now.
    fn concerns(&mut self, pending: &Pending) -> bool {
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
                self.has_started(pending.pid);
                true
            }
            Place::Outside => false,
            Place::Gone => {
                let selection = &self.request.selection;
                let mut paths = pending.paths.iter();
                let unseen = paths.any(|path| selection.may_cover(path, true));
                members.untold += u64::from(unseen && !pending.attached);
                false
            }
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
        self.seen.insert((object.identity, path), traced);
    }

    /// Whether functions of an object are traced: without its other probes no call is missing.
    fn has_calls(&self, object: usize) -> bool {
        let mut probes = self.objects[object].probes.clone();
        probes.any(|number| self.probes[number as usize].role == Role::Call)
    }

    /// Objects are attached now that nobody was seen to map. Who is told of later to have mapped one
    /// before this has a gap.
    pub(super) fn note_ahead(&mut self, objects: &[usize]) {
        let at = now();
        self.ahead
            .extend(objects.iter().map(|&object| (object, at)));
    }

    /// Pairing needs to know whose threads have stacks of their own making.
    pub(super) fn tell_switchers(&mut self, resolver: &mut Resolver) {
        for pid in self.switchers.drain(..) {
            resolver.switches_stacks(pid);
        }
    }
}
