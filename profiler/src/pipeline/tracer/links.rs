//! Probes in the kernel: attaches the sites of objects to processes, and moves probes between links.
//!
//! A link holds many sites of one file for one target and can only be removed as a whole. So a probe
//! that changes is moved: new links are attached beside the old ones under a new generation, which the
//! kernel side ignores until it is told that the generation has turned; then the old links go. Nothing
//! is lost and nothing counted twice in between.
//!
//! What does not belong here: which probes change (`budget`), what is attached to whom (the tracer).

use std::os::fd::AsFd;

use rustc_hash::FxHashSet;

use super::state::ProbeState;
use super::{TracedObject, Tracer};
use crate::model::Pid;
use crate::probe::{CallLink, CallSite, CallTarget, Probe, ProbeError};

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
        let sites = sites_of(&self.probes, &probes);
        if sites.is_empty() {
            return Ok(());
        }
        let TracedObject { file, path, .. } = &self.objects[object];
        let (id, refused) = probe.attach_calls(target(process), file.as_fd(), &sites)?;
        for (index, error) in refused {
            let Some(site) = sites.get(index) else {
                continue;
            };
            if self.refused.insert(site.probe) {
                let name = &self.probes[site.probe as usize].plan.function.name;
                log::warn!("{name} in {path} is not traced: {error}");
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

    /// Has the probes be attached as their levels now say, in place of how they were.
    pub(super) fn move_probes(
        &mut self,
        probe: &mut Probe,
        changed: &[u32],
    ) -> Result<(), ProbeError> {
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
        let mut result = Ok(());
        for object in objects {
            for process in self.targets_of(object) {
                let rest: Vec<u32> = old
                    .iter()
                    .filter(|link| link.object == object && link.process == process)
                    .flat_map(|link| link.probes.iter().copied())
                    .filter(|probe| !changed.contains(probe))
                    .collect();
                if !rest.is_empty() {
                    result = result.and(self.link(probe, object, process, rest));
                }
                for &single in &changed {
                    if self.probes[single as usize].object == object {
                        result = result.and(self.link(probe, object, process, vec![single]));
                    }
                }
            }
        }
        let moved: Vec<u32> = moved.into_iter().collect();
        self.tell(probe, &moved)?;
        for link in old {
            probe.detach_calls(link.id);
        }
        result
    }

    /// Has the hits of probes count from now on.
    pub(super) fn arm(&mut self, probe: &mut Probe, probes: &[u32]) -> Result<(), ProbeError> {
        for &number in probes {
            self.probes[number as usize].armed = true;
        }
        self.tell(probe, probes)
    }

    /// Takes everything out of the targets. First all hits stop counting: links go one after the other,
    /// and exits without their entries say nothing.
    pub(super) fn detach_all(&mut self, probe: &mut Probe) {
        for state in &mut self.probes {
            state.armed = false;
        }
        let all: Vec<u32> = (0..self.probes.len() as u32).collect();
        if let Err(error) = self.tell(probe, &all) {
            log::warn!("{error}");
        }
        for link in self.links.drain(..) {
            probe.detach_calls(link.id);
        }
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

    /// To whom an object is attached.
    fn targets_of(&self, object: usize) -> Vec<Option<Pid>> {
        if self.shared {
            return vec![None];
        }
        let attached = self.processes.iter();
        attached
            .filter(|(_, process)| process.objects.contains(&object))
            .map(|(&pid, _)| Some(pid))
            .collect()
    }

    /// Detaches what is attached to a process that is gone.
    pub(super) fn detach_process(&mut self, probe: &mut Probe, pid: Pid) {
        let mut kept = Vec::with_capacity(self.links.len());
        for link in std::mem::take(&mut self.links) {
            if link.process == Some(pid) {
                probe.detach_calls(link.id);
            } else {
                kept.push(link);
            }
        }
        self.links = kept;
    }
}
