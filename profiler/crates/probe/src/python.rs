//! Which processes run CPython, told to the kernel side.
//!
//! Processes, and where in them what is -> the maps that `profiler_common::python` describes. Addresses are those of the
//! process. A kernel that does not describe its types gives no thread pointers, and so no frames.
//!
//! What does not belong here: how it is found out (`resolve`), what frames mean.

use std::os::fd::AsFd;

use aya::{Ebpf, EbpfLoader};
use profiler_common::python::{Layout, MAX_LAYOUTS, MAX_PYTHON_PROCESSES, PythonProcess};

use super::{ProbeError, bpf, load, offsets};
use profiler_model::Pid;

/// What the kernel side is told before it is loaded.
pub(super) struct PythonSettings {
    fsbase: u32,
}

impl PythonSettings {
    /// Looks where the kernel keeps thread pointers, if frames are wanted.
    pub(super) fn new(wanted: bool) -> PythonSettings {
        let fsbase = match wanted.then(offsets::of_thread_pointer) {
            Some(Ok(offset)) => offset,
            Some(Err(error)) => {
                let remedy = offsets::remedy(&error);
                log::debug!("frames of Python are not told: the kernel: {remedy}");
                0
            }
            None => 0,
        };
        PythonSettings { fsbase }
    }

    /// Sets globals and sizes of maps.
    pub(super) fn set<'a>(&'a self, loader: &mut EbpfLoader<'a>) {
        let most = match self.fsbase {
            0 => 1,
            _ => MAX_PYTHON_PROCESSES,
        };
        loader
            .override_global("TASK_FSBASE", &self.fsbase, true)
            .map_max_entries("PYTHON_PROCESSES", most);
    }

    /// The state of an attached probe.
    pub(super) fn attach(&self) -> PythonProcesses {
        PythonProcesses {
            enabled: self.fsbase != 0,
            layouts: Vec::new(),
            known: Default::default(),
            full: false,
        }
    }
}

/// What the kernel side knows.
#[derive(Default)]
pub(super) struct PythonProcesses {
    enabled: bool,
    layouts: Vec<Layout>,
    known: rustc_hash::FxHashSet<Pid>,
    /// That there is no room was said.
    full: bool,
}

impl PythonProcesses {
    /// Tells where the runtime is in a process, and how its version has its members; or that it runs
    /// no Python.
    pub(super) fn tell(
        &mut self,
        ebpf: &Ebpf,
        pid: Pid,
        runs: Option<(u64, Layout)>,
    ) -> Result<(), ProbeError> {
        if !self.enabled {
            return Ok(());
        }
        let failed = |error| ProbeError::from_io("list a process that runs Python", error);
        let Some((runtime, layout)) = runs else {
            if self.known.remove(&pid) {
                let map = load::map_fd(ebpf, "PYTHON_PROCESSES")?;
                bpf::remove_from_map(map.as_fd(), &[pid.0]).map_err(failed)?;
            }
            return Ok(());
        };
        let has_room =
            self.known.contains(&pid) || self.known.len() < MAX_PYTHON_PROCESSES as usize;
        let Some(index) = self.layout(ebpf, &layout)?.filter(|_| has_room) else {
            if !std::mem::replace(&mut self.full, true) {
                log::warn!(
                    "too many processes run Python, or too many versions of it (at most \
                     {MAX_PYTHON_PROCESSES} and {MAX_LAYOUTS}): those that came last are recorded \
                     without their Python frames"
                );
            }
            return Ok(());
        };
        let value = PythonProcess {
            runtime,
            layout: index,
            padding: 0,
        };
        let map = load::map_fd(ebpf, "PYTHON_PROCESSES")?;
        bpf::update_map(map.as_fd(), &[pid.0], &[value]).map_err(failed)?;
        self.known.insert(pid);
        Ok(())
    }

    /// The number of a layout; none if there is no room for another one.
    fn layout(&mut self, ebpf: &Ebpf, layout: &Layout) -> Result<Option<u32>, ProbeError> {
        if let Some(known) = self.layouts.iter().position(|known| known == layout) {
            return Ok(Some(known as u32));
        }
        let index = self.layouts.len() as u32;
        if index >= MAX_LAYOUTS {
            return Ok(None);
        }
        let map = load::map_fd(ebpf, "PYTHON_LAYOUTS")?;
        bpf::update_map(map.as_fd(), &[index], &[*layout])
            .map_err(|error| ProbeError::from_io("describe a version of Python", error))?;
        self.layouts.push(*layout);
        Ok(Some(index))
    }
}
