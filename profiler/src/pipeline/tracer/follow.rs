//! Attaches to processes and files that appear while tracing.
//!
//! Raw events, as drained -> arrivals. The next step attaches the probes that each needs, and reports the
//! time until then as a gap. Timestamps are nanoseconds of CLOCK_MONOTONIC.
//!
//! What does not belong here: what runs already (`choose`), attaching itself (`links`).

use std::path::Path;

use rustc_hash::FxHashSet;

use super::Tracer;
use super::arrivals::Pending;
use super::links::tell_unlinked;
use profiler_model::raw::{RawBody, RawEvent, RawMmap};
use profiler_model::{Pid, Timestamp};
use profiler_probe::{Probe, now};
use profiler_resolve::Resolver;
use profiler_resolve::objects::Finder;

/// What a process has of what is traced, by index.
#[derive(Debug, Default)]
struct Found {
    objects: Vec<usize>,
    /// What it will run, or has begun to run a moment ago.
    expected: Vec<usize>,
    /// It has ended before anybody could look at what it runs.
    unseen: bool,
}

/// What could be seen of a process.
#[derive(Debug)]
enum Sight {
    Seen(Found),
    /// Its files are still being read.
    NotYet,
    /// It is not to be touched.
    Untouchable,
}

impl Tracer {
    /// Looks at drained events: notes new processes and files, detaches from processes that have ended.
    pub(in crate::pipeline) fn notice(&mut self, event: &RawEvent) {
        match &event.body {
            RawBody::Fork {
                pid, parent_pid, ..
            } if pid != parent_pid => self.note_fork(*pid, *parent_pid, event.at),
            RawBody::Cgroup(cgroup) => {
                if let Some(members) = &mut self.targets.members {
                    members.note(cgroup);
                }
            }
            RawBody::Mmap(mmap) => {
                let watched = self.is_watched(mmap, event.at);
                let who = (self.asked.shared, self.targets.members.is_some());
                self.arrivals.mapped(mmap, event.at, watched, who);
            }
            RawBody::Exit { pid, tid } if pid.0 == tid.0 => {
                self.ends.ended(*pid);
                self.targets.main_ended(*pid, &self.arrivals);
            }
            _ => {}
        }
    }

    /// Whether no call is missing in what a process mapped then: its probes were there, or it needs none. Asked
    /// while the process is known: one that ends soon can't be looked at any more.
    fn is_watched(&self, mmap: &RawMmap, at: Timestamp) -> bool {
        match self.plans.known_by_mapping(mmap) {
            Some(Some(object)) => {
                let process = self.asked.process(mmap.pid);
                self.targets.has(process, object) && !self.arrivals.was_late(object, at)
            }
            known => known.is_some(),
        }
    }

    fn note_fork(&mut self, pid: Pid, parent: Pid, at: Timestamp) {
        if !self.targets.takes_in(pid, parent, &self.arrivals) {
            return;
        }
        if self.targets.members.is_none() && self.asked.request.follow_exact {
            self.targets.family.insert(pid);
            self.ends.watch(pid);
        }
        self.ends.forked(parent, pid);
        if self.asked.shared {
            // The links are there already.
            return;
        }
        match self.ends.runs_dead(pid) {
            true => self.ends.leave_alone([pid], at),
            false => self.arrivals.forked(pid, parent, at),
        }
    }

    /// Detaches from processes that have ended. What was to be attached to them becomes a gap.
    pub(super) fn forget_ended(&mut self, probe: &mut Probe) {
        let ended = self.targets.take_ended(&self.arrivals);
        self.forget(probe, &ended);
    }

    pub(super) fn forget(&mut self, probe: &mut Probe, ended: &FxHashSet<Pid>) {
        if ended.is_empty() {
            return;
        }
        for pid in ended {
            self.targets.forget(*pid);
            self.budget.forget(*pid);
        }
        self.links.detach_processes(probe, ended);
    }

    /// Looks for processes that have come into wanted cgroups and for those that have left them.
    pub(super) fn look_for_members(&mut self, probe: &mut Probe) {
        if let Some(members) = &mut self.targets.members {
            let hurries = self.asked.request.follow_exact;
            let left = members.look(&mut self.arrivals, hurries);
            self.forget(probe, &left);
        }
    }

    /// Where nothing may be missed: attaches to the files that a new cgroup's program will be started
    /// from, as soon as they can be reached, which is when a process there has got its root and has yet
    /// to run the program.
    pub(super) fn attach_ahead(&mut self, probe: &mut Probe, resolver: &mut Resolver) {
        let Some(members) = &mut self.targets.members else {
            return;
        };
        for pid in members.hurried() {
            let members = self.targets.members.as_ref();
            if members.is_some_and(|members| !members.has_reached(pid)) && Finder::has_own_root(pid)
            {
                self.attach_at_paths(pid, probe, resolver);
            }
        }
    }

    /// Attaches to the files that are named by a path, below the root of a process.
    fn attach_at_paths(&mut self, pid: Pid, probe: &mut Probe, resolver: &mut Resolver) {
        let found = self.finder.objects_at_paths(pid);
        if !self.plans.look_at(&found) {
            // It has yet to be reached, so it is looked at again.
            return;
        }
        if let (Some(members), false) = (&mut self.targets.members, found.is_empty()) {
            members.reach(pid);
        }
        let mut objects: Vec<usize> = found
            .iter()
            .filter_map(|object| self.plans.known(object).flatten())
            .collect();
        let new = self.plans.announce(resolver);
        self.replan(probe, resolver);
        let mut result = self.plans.probes.tell(probe, &new);
        let process = self.asked.process(pid);
        objects.retain(|&object| self.targets.enter(process).insert(object));
        for &object in &objects {
            result = result.and(self.attach(probe, object, process));
        }
        if self.suspension.is_none() {
            result = result.and(self.plans.probes.arm(probe, &new));
        }
        self.arrivals.note_ahead(&objects);
        if let Err(error) = result {
            tell_unlinked(process, &error);
        }
    }

    /// Attaches to a new process, or to files that a process has mapped. False: the files are still being
    /// read, and it has to be called again.
    pub(super) fn follow(
        &mut self,
        pending: &Pending,
        probe: &mut Probe,
        resolver: &mut Resolver,
        out: &mut Vec<RawEvent>,
    ) -> bool {
        if !self.targets.concerns(pending, &self.asked) {
            return true;
        }
        let parent = pending.parent;
        // Of a parent that is gone already it is not known any more what it had.
        let found = match parent.filter(|&parent| self.targets.objects_of(parent).is_some()) {
            Some(parent) => self.inherit(pending.pid, parent, probe),
            None => match self.find(pending) {
                Sight::Seen(found) => found,
                Sight::NotYet => return false,
                // At once, before it reads what it will run.
                Sight::Untouchable => {
                    self.let_go(probe, [pending.pid], pending.since);
                    return true;
                }
            },
        };
        let new = self.plans.announce(resolver);
        // Before the process has probes at all: the kernel replaces its return addresses where anybody's
        // return probe sits on the same instruction, whoever that is.
        self.replan(probe, resolver);
        self.attach_found(pending, found, &new, probe, resolver, out);
        // Its end may have been seen before.
        if !self.asked.shared {
            self.targets.check_end(pending.pid);
        }
        true
    }

    /// Attaches a child to the objects of its parent.
    fn inherit(&mut self, pid: Pid, parent: Pid, probe: &mut Probe) -> Found {
        if self.targets.objects_of(pid).is_some() {
            // The id was that of another process before.
            self.targets.begins_anew(pid);
            self.forget(probe, &FxHashSet::from_iter([pid]));
        }
        let objects = self.targets.objects_of(parent).into_iter().flatten();
        let objects = objects.copied().collect();
        self.targets.enter(Some(pid));
        Found {
            objects,
            ..Found::default()
        }
    }

    /// What a process has mapped; nothing, if it may be gone by now: then there is nothing to attach to.
    fn find(&mut self, pending: &Pending) -> Sight {
        let pid = pending.pid;
        let mut result = Found::default();
        let found = match self.finder.objects_of(pid) {
            Ok(found) => found,
            Err(error) => {
                log::debug!("pid {pid}: {error}");
                result.unseen = self.asked.may_cover_any(&pending.paths);
                if self.asked.shared && result.unseen && self.targets.members.is_none() {
                    // Others will run these files.
                    result.objects = self.objects_by_path(&pending.paths);
                }
                return Sight::Seen(result);
            }
        };
        let mut translated = false;
        for object in &found {
            translated |= self.ends.is_translator(pid, object, self.asked.shared);
        }
        if translated && !self.asked.shared {
            return Sight::Untouchable;
        }
        let ahead = match self.targets.members.is_some() && self.asked.request.follow_exact {
            true => self.finder.objects_at_paths(pid),
            false => Vec::new(),
        };
        if !self.plans.look_at(found.iter().chain(&ahead)) {
            return Sight::NotYet;
        }
        let found = found.into_iter().map(|object| (object, true));
        let ahead = ahead.into_iter().map(|object| (object, false));
        for (object, is_mapped) in found.chain(ahead) {
            let index = self.plans.known(&object).flatten();
            if is_mapped {
                self.arrivals.note_seen(&object, index.is_some());
                result.objects.extend(index);
            } else {
                result.expected.extend(index);
            }
            if self.plans.switches_stacks(&object) {
                self.targets.switches(pid);
            }
        }
        Sight::Seen(result)
    }

    /// The traced objects among the files of a process that has ended, found by their paths on this machine.
    fn objects_by_path(&mut self, paths: &[Box<str>]) -> Vec<usize> {
        let mut files = Vec::new();
        for path in paths {
            match self.finder.object_at(Path::new(&**path), None) {
                Ok(object) => files.push(object),
                Err(error) => log::debug!("{error}"),
            }
        }
        // What is not known yet is attached for the next one who runs it.
        self.plans.look_at(&files);
        let known = files.iter().filter_map(|file| self.plans.known(file));
        known.flatten().collect()
    }

    /// Attaches the probes of a process's objects; those that are `new` have a gap until now.
    fn attach_found(
        &mut self,
        pending: &Pending,
        found: Found,
        new: &[u32],
        probe: &mut Probe,
        resolver: &mut Resolver,
        out: &mut Vec<RawEvent>,
    ) {
        let (pid, since) = (pending.pid, pending.since);
        let Found {
            mut objects,
            mut expected,
            unseen,
        } = found;
        if !self.asked.shared && (self.ends.runs_dead(pid) || self.targets.is_debugged(pid)) {
            objects.clear();
            self.let_go(probe, [pid], since);
        }
        self.targets.tell_switchers(resolver);
        let mut result = self.plans.probes.tell(probe, new);
        let mut attached = unseen;
        let process = self.asked.process(pid);
        for object in objects {
            if self.targets.enter(process).insert(object) {
                attached |= self.plans.has_calls(object);
                result = result.and(self.attach(probe, object, process));
            }
            attached |= self.arrivals.was_late(object, since);
        }
        expected.retain(|&object| self.targets.enter(process).insert(object));
        for &object in &expected {
            result = result.and(self.attach(probe, object, process));
        }
        if self.suspension.is_none() {
            result = result.and(self.plans.probes.arm(probe, new));
        }
        self.arrivals.note_ahead(&expected);
        if let Err(error) = result {
            tell_unlinked(process, &error);
        }
        if attached {
            let at = now();
            resolver.has_probes_from(pid, at);
            out.push(self.unwatched.gap(at, since, pid));
        }
    }

    /// The end: what was not looked at any more has a gap since it began.
    pub(super) fn close_pending(&mut self, at: Timestamp, out: &mut Vec<RawEvent>) {
        while let Some(pending) = self.arrivals.next() {
            if !self.targets.concerns(&pending, &self.asked) {
                continue;
            }
            let parent = pending.parent;
            let has = parent.and_then(|parent| self.targets.objects_of(parent));
            if has.is_some_and(|objects| !objects.is_empty())
                || self.ends.runs_dead(pending.pid)
                || self.asked.may_cover_any(&pending.paths)
            {
                out.push(self.unwatched.gap(at, pending.since, pending.pid));
            }
        }
    }
}
