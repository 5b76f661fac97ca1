//! Probes in the kernel: attaches the sites of objects to processes, and moves probes between links.
//!
//! A link holds many sites of one file for one target and can only be removed as a whole. So a probe
//! that changes is moved: new links are attached beside the old ones under a new generation, which the
//! kernel side ignores until it is told that the generation has turned; then the old links go. Nothing
//! is counted twice in between; a hit under way on another processor at that moment can be missed.
//!
//! What does not belong here: which probes change (`budget`), what is attached to whom (the tracer).

use std::os::fd::AsFd;
use std::path::Path;
use std::time::Instant;

use rustc_hash::FxHashSet;

use super::state::ProbeState;
use super::{Leaving, TracedObject, Tracer};
use profiler_model::Pid;
use profiler_probe::{CallLink, CallSite, CallTarget, Probe, ProbeError};
use profiler_resolve::Role;

/// Sites of one object for one target.
#[derive(Debug)]
pub(super) struct Link {
    id: CallLink,
    /// Whose file.
    pub(super) object: usize,
    /// Which process; none: all.
    pub(super) process: Option<Pid>,
    /// Whose sites.
    probes: Vec<u32>,
}

fn target(process: Option<Pid>) -> CallTarget {
    process.map_or(CallTarget::Everyone, CallTarget::Process)
}

fn sites_of(states: &[ProbeState], probes: &[u32]) -> Vec<CallSite> {
    let mut sites = Vec::new();
    for &probe in probes {
        if let Some(state) = states.get(probe as usize) {
            state.sites(probe, &mut sites);
        }
    }
    sites
}

impl Tracer {
    /// Attaches all probes of an object to a process, or to all. Probes that the kernel refuses are
    /// named, the rest is attached.
    pub(super) fn attach(
        &mut self,
        probe: &mut Probe,
        object: usize,
        process: Option<Pid>,
    ) -> Result<(), ProbeError> {
        process.iter().for_each(|&pid| self.ends.watch(pid));
        let probes: Vec<u32> = self.objects[object].probes.clone().collect();
        // Those that are on duty have links of their own.
        let (steady, moving): (Vec<u32>, Vec<u32>) = probes
            .into_iter()
            .partition(|&probe| self.probes[probe as usize].level <= super::budget::Level::Entries);
        self.link(probe, object, process, steady)?;
        for single in moving {
            self.link(probe, object, process, vec![single])?;
        }
        Ok(())
    }

    fn link(
        &mut self,
        probe: &mut Probe,
        object: usize,
        process: Option<Pid>,
        probes: Vec<u32>,
    ) -> Result<(), ProbeError> {
        if self.suspension.is_some_and(|now| now.is_detached) {
            // Attached when tracing goes on.
            return Ok(());
        }
        let mut sites = sites_of(&self.probes, &probes);
        let refused = &self.refused_sites;
        sites.retain(|site| !refused.contains(&(object, site.offset, site.return_probe)));
        if sites.is_empty() {
            return Ok(());
        }
        let TracedObject { file, path, .. } = &self.objects[object];
        let (id, refused) = probe.attach_calls(target(process), file.as_fd(), &sites)?;
        for (index, error) in refused {
            let Some(site) = sites.get(index) else {
                continue;
            };
            let place = (object, site.offset, site.return_probe);
            self.refused_sites.insert(place);
            if self.refused.insert(site.probe) {
                let name = &self.probes[site.probe as usize].plan.function.name;
                log::warn!("{name} in {path} is not traced: {error}");
                self.news.failed(path, name, error);
            }
        }
        self.links.push(Link {
            id,
            object,
            process,
            probes,
        });
        Ok(())
    }

    /// Has the probes be attached as their levels now say, in place of how they were. Where that fails
    /// they are attached no more: a process has ended, most often.
    pub(super) fn move_probes(&mut self, probe: &mut Probe, changed: &[u32]) {
        let changed: FxHashSet<u32> = changed.iter().copied().collect();
        let objects: FxHashSet<usize> = changed
            .iter()
            .map(|&probe| self.probes[probe as usize].object)
            .collect();
        // Links that hold none of them stay; the other probes of those that do move as well.
        let (old, kept): (Vec<Link>, Vec<Link>) = std::mem::take(&mut self.links)
            .into_iter()
            .partition(|link| link.probes.iter().any(|probe| changed.contains(probe)));
        self.links = kept;
        let mut moved: FxHashSet<u32> = changed.clone();
        moved.extend(old.iter().flat_map(|link| link.probes.iter().copied()));
        for &number in &moved {
            let state = &mut self.probes[number as usize];
            state.generation = state.generation.wrapping_add(1);
        }
        for object in objects {
            for process in self.targets_now(object) {
                let rest: Vec<u32> = old
                    .iter()
                    .filter(|link| link.object == object && link.process == process)
                    .flat_map(|link| link.probes.iter().copied())
                    .filter(|probe| !changed.contains(probe))
                    .collect();
                let singles = changed.iter().copied();
                let singles =
                    singles.filter(|&single| self.probes[single as usize].object == object);
                let sets: Vec<Vec<u32>> = std::iter::once(rest)
                    .chain(singles.map(|single| vec![single]))
                    .collect();
                for set in sets.into_iter().filter(|set| !set.is_empty()) {
                    if let Err(error) = self.link(probe, object, process, set) {
                        self.tell_unlinked(process, &error);
                    }
                }
            }
        }
        let moved: Vec<u32> = moved.into_iter().collect();
        if let Err(error) = self.tell(probe, &moved) {
            log::warn!("{error}");
        }
        probe.release_calls(old.into_iter().map(|link| link.id));
    }

    /// That a process can't be attached to is news only while it is there.
    pub(super) fn tell_unlinked(&self, process: Option<Pid>, error: &ProbeError) {
        let there = |pid: Pid| Path::new(&format!("/proc/{pid}")).exists();
        match process {
            Some(pid) if !there(pid) => log::debug!("pid {pid}: {error}"),
            Some(pid) => log::warn!("process {pid} is not traced as it should be: {error}"),
            None => log::warn!("{error}"),
        }
    }

    /// Has the hits of probes count from now on.
    pub(super) fn arm(&mut self, probe: &mut Probe, probes: &[u32]) -> Result<(), ProbeError> {
        if self.closed {
            return Ok(());
        }
        for &number in probes {
            self.probes[number as usize].armed = true;
        }
        self.tell(probe, probes)
    }

    /// No hit counts from now on, of any probe; all that counted have been recorded.
    pub(super) fn disarm(&mut self, probe: &mut Probe) {
        self.ignore_hits(probe);
        if let Err(error) = probe.settle_calls() {
            log::warn!("{error}");
        }
    }

    fn ignore_hits(&mut self, probe: &mut Probe) {
        for state in &mut self.probes {
            state.armed = false;
        }
        if let Err(error) = self.tell(probe, &self.all()) {
            log::warn!("{error}");
        }
    }

    /// No hit counts from now on, for good. This takes no time; hits that are under way are recorded.
    pub(in crate::pipeline) fn close(&mut self, probe: &mut Probe) {
        if !std::mem::replace(&mut self.closed, true) {
            self.ignore_hits(probe);
        }
    }

    /// Takes everything out of the targets, for good, but does not wait for it. First all hits stop
    /// counting: links don't go at one moment, and exits without their entries say nothing.
    pub(super) fn detach_all(&mut self, probe: &mut Probe) {
        self.closed = true;
        self.disarm(probe);
        self.links.clear();
        self.leaving = probe.release_all_calls();
        self.waits_for_calls = probe.call_support().is_some_and(|support| support.multi);
    }

    /// What the kernel has not let go of when that time is over, once all is detached.
    pub(in crate::pipeline) fn leaving(&mut self, until: Instant) -> Option<Leaving> {
        let mut leaving = self.leaving.take()?;
        let probes = leaving.wait(until);
        let is_call = |&&number: &&u32| {
            let state = self.probes.get(number as usize);
            state.is_some_and(|state| state.role == Role::Call)
        };
        (!probes.is_empty()).then(|| Leaving {
            functions: probes.iter().filter(is_call).count(),
            waits_for_calls: self.waits_for_calls,
            process: leaving.keeper(),
        })
    }

    /// Takes everything out of the targets, but does not wait for it: nothing of it counts any more.
    pub(super) fn release_all(&mut self, probe: &mut Probe) {
        probe.release_calls(self.links.drain(..).map(|link| link.id));
    }

    /// All probes.
    pub(super) fn all(&self) -> Vec<u32> {
        (0..self.probes.len() as u32).collect()
    }

    /// Tells the kernel side of probes as they are now.
    pub(super) fn tell(&self, probe: &mut Probe, probes: &[u32]) -> Result<(), ProbeError> {
        let controls: Vec<_> = probes
            .iter()
            .map(|&number| {
                let state = &self.probes[number as usize];
                (number, state.control(), state.plan.fetches.as_slice())
            })
            .collect();
        probe.set_probes(&controls)
    }

    /// Detaches what is attached to processes that are gone.
    pub(super) fn detach_processes(&mut self, probe: &mut Probe, gone: &FxHashSet<Pid>) {
        let is_gone = |link: &Link| link.process.is_some_and(|pid| gone.contains(&pid));
        let (ended, kept): (Vec<Link>, Vec<Link>) = std::mem::take(&mut self.links)
            .into_iter()
            .partition(is_gone);
        self.links = kept;
        probe.release_calls(ended.into_iter().map(|link| link.id));
    }
}
