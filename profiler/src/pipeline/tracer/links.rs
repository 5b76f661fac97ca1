//! Probes in the kernel: attaches the sites of objects to processes, and moves probes between links.
//!
//! A link holds many sites of one file for one target and can only be removed as a whole. So a probe
//! that changes is moved: new links are attached beside the old ones under a new generation, which the
//! kernel side ignores until it is told that the generation has turned; then the old links go. Nothing
//! is counted twice in between; a hit under way on another processor at that moment can be missed.
//!
//! What does not belong here: which probes change (`budget`), what is attached to whom (`targets`).

use std::os::fd::AsFd;
use std::path::Path;
use std::time::Instant;

use rustc_hash::FxHashSet;

use super::Leaving;
use super::load::Level;
use super::plans::{Plans, TracedObject};
use super::targets::Targets;
use crate::pipeline::signals::is_given_up;
use profiler_model::{Pid, Timestamp};
use profiler_probe::{CallLink, CallTarget, LeavingCalls, Probe, ProbeError, now};

/// Probes of one link at most. Attaching these takes the kernel some 0.1 s, during which nothing else can be
/// done; and the fewer share a link, the fewer move when one of them does.
const MOST_OF_A_LINK: usize = 256;

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

/// All links.
#[derive(Debug, Default)]
pub(super) struct Links {
    pub(super) attached: Vec<Link>,
    /// Probes that were reported as refused.
    refused: FxHashSet<u32>,
    /// Places that the kernel refused, by object, offset and whether at return: they are not tried again.
    refused_sites: FxHashSet<(usize, u64, bool)>,
    /// Everything is detached for a while. What is added meanwhile is attached with the rest.
    pub(super) are_out: bool,
    /// Links that were closed, and that the kernel has not removed yet.
    leaving: Option<LeavingCalls>,
    waits_for_calls: bool,
}

impl Links {
    /// Attaches all probes of an object to a process, or to all. Probes that the kernel refuses are logged
    /// by name; the rest is attached.
    pub(super) fn attach(
        &mut self,
        plans: &mut Plans,
        probe: &mut Probe,
        object: usize,
        process: Option<Pid>,
    ) -> Result<(), ProbeError> {
        let probes: Vec<u32> = plans.objects[object].probes.clone().collect();
        // Those that are on duty have links of their own.
        let (steady, moving): (Vec<u32>, Vec<u32>) = probes
            .into_iter()
            .partition(|&probe| plans.probes[probe].level <= Level::Entries);
        for some in steady.chunks(MOST_OF_A_LINK) {
            if is_given_up() {
                return Err(ProbeError::Request("interrupted".to_owned()));
            }
            self.link(plans, probe, object, process, some.to_vec())?;
        }
        for single in moving {
            self.link(plans, probe, object, process, vec![single])?;
        }
        Ok(())
    }

    fn link(
        &mut self,
        plans: &mut Plans,
        probe: &mut Probe,
        object: usize,
        process: Option<Pid>,
        probes: Vec<u32>,
    ) -> Result<(), ProbeError> {
        if self.are_out {
            return Ok(());
        }
        let mut sites = plans.probes.sites(probes.iter().copied());
        let refused = &self.refused_sites;
        sites.retain(|site| !refused.contains(&(object, site.offset, site.return_probe)));
        if sites.is_empty() {
            return Ok(());
        }
        let TracedObject { target: of, .. } = &plans.objects[object];
        let (file, path) = (&of.file, &of.path);
        let (id, refused) = probe.attach_calls(target(process), file.as_fd(), &sites)?;
        for (index, error) in refused {
            let Some(site) = sites.get(index) else {
                continue;
            };
            let place = (object, site.offset, site.return_probe);
            self.refused_sites.insert(place);
            if self.refused.insert(site.probe) {
                let name = &plans.probes[site.probe].plan.function.name;
                log::warn!("{name} in {path} is not traced: {error}");
                plans.news.failed(path, name, error);
            }
        }
        self.attached.push(Link {
            id,
            object,
            process,
            probes,
        });
        Ok(())
    }

    /// Moves probes to new links, as their levels now say; between which times that came into force. Where it fails
    /// they are no longer attached: most often because the process has ended.
    pub(super) fn move_probes(
        &mut self,
        plans: &mut Plans,
        targets: &Targets,
        probe: &mut Probe,
        changed: &[u32],
    ) -> (Timestamp, Timestamp) {
        let changed: FxHashSet<u32> = changed.iter().copied().collect();
        let objects: FxHashSet<usize> = changed
            .iter()
            .map(|&probe| plans.probes[probe].object)
            .collect();
        // Links that hold none of them stay; the other probes of those that do move as well.
        let (old, kept): (Vec<Link>, Vec<Link>) = std::mem::take(&mut self.attached)
            .into_iter()
            .partition(|link| link.probes.iter().any(|probe| changed.contains(probe)));
        self.attached = kept;
        let mut moved: FxHashSet<u32> = changed.clone();
        moved.extend(old.iter().flat_map(|link| link.probes.iter().copied()));
        plans.probes.turn(moved.iter().copied());
        for object in objects {
            for process in targets.having(object) {
                let rest: Vec<u32> = old
                    .iter()
                    .filter(|link| link.object == object && link.process == process)
                    .flat_map(|link| link.probes.iter().copied())
                    .filter(|probe| !changed.contains(probe))
                    .collect();
                let singles = changed.iter().copied();
                let singles = singles.filter(|&single| plans.probes[single].object == object);
                let sets: Vec<Vec<u32>> = std::iter::once(rest)
                    .chain(singles.map(|single| vec![single]))
                    .collect();
                for set in sets.into_iter().filter(|set| !set.is_empty()) {
                    if let Err(error) = self.link(plans, probe, object, process, set) {
                        tell_unlinked(process, &error);
                    }
                }
            }
        }
        let moved: Vec<u32> = moved.into_iter().collect();
        let from = now();
        if let Err(error) = plans.probes.tell(probe, &moved) {
            log::warn!("{error}");
        }
        let to = now();
        probe.release_calls(old.into_iter().map(|link| link.id));
        (from, to)
    }

    /// Detaches everything for good, without waiting for it. All hits stop counting first: links are not
    /// removed at one moment, and exits without their entries say nothing.
    pub(super) fn detach_all(&mut self, plans: &mut Plans, probe: &mut Probe) {
        plans.probes.close_and_settle(probe);
        self.attached.clear();
        self.are_out = true;
        if self.leaving.is_some() {
            return;
        }
        self.leaving = probe.release_all_calls();
        self.waits_for_calls = probe.call_support().is_some_and(|support| support.multi);
    }

    /// After the end: the links that the kernel has not removed by `until`.
    pub(super) fn leaving(&mut self, plans: &Plans, until: Instant) -> Option<Leaving> {
        let mut leaving = self.leaving.take()?;
        let probes = leaving.wait(until);
        let is_call = |&&number: &&u32| plans.probes.is_call(number);
        (!probes.is_empty()).then(|| Leaving {
            functions: probes.iter().filter(is_call).count(),
            waits_for_calls: self.waits_for_calls,
            process: leaving.keeper(),
        })
    }

    /// Detaches everything for a while, without waiting for it. Its hits no longer count.
    pub(super) fn release_all(&mut self, probe: &mut Probe) {
        self.are_out = true;
        probe.release_calls(self.attached.drain(..).map(|link| link.id));
    }

    /// Detaches the links of processes that have ended.
    pub(super) fn detach_processes(&mut self, probe: &mut Probe, gone: &FxHashSet<Pid>) {
        let is_gone = |link: &Link| link.process.is_some_and(|pid| gone.contains(&pid));
        let (ended, kept): (Vec<Link>, Vec<Link>) = std::mem::take(&mut self.attached)
            .into_iter()
            .partition(is_gone);
        self.attached = kept;
        probe.release_calls(ended.into_iter().map(|link| link.id));
    }
}

/// That a process can't be attached to is news only while it is there.
pub(super) fn tell_unlinked(process: Option<Pid>, error: &ProbeError) {
    let there = |pid: Pid| Path::new(&format!("/proc/{pid}")).exists();
    match process {
        Some(pid) if !there(pid) => log::debug!("pid {pid}: {error}"),
        Some(pid) => log::warn!("process {pid} is not traced as it should be: {error}"),
        None => log::warn!("{error}"),
    }
}
