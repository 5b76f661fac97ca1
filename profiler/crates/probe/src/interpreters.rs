//! Which processes run an interpreter, told to the kernel side.
//!
//! Processes, and where in them what is -> the maps that `profiler_common::interpreter` describes. Addresses are those of the
//! process. A kernel that does not describe its types gives no thread pointers, and so no frames.
//!
//! What does not belong here: how it is found out (`resolve`), what frames mean.

use std::os::fd::AsFd;

use aya::{Ebpf, EbpfLoader};
use profiler_common::interpreter::{
    InterpreterProcess, Layout, MAX_INTERPRETER_PROCESSES, MAX_LAYOUTS,
};
use rustc_hash::FxHashMap;

use super::{ProbeError, bpf, load, offsets};
use profiler_model::Pid;

/// What the kernel side is told before it is loaded.
pub(super) struct InterpreterSettings {
    fsbase: u32,
}

impl InterpreterSettings {
    /// Looks where the kernel keeps thread pointers, if frames are wanted.
    pub(super) fn new(wanted: bool) -> InterpreterSettings {
        let fsbase = match wanted.then(offsets::of_thread_pointer) {
            Some(Ok(offset)) => offset,
            Some(Err(error)) => {
                let remedy = offsets::remedy(&error);
                log::debug!("frames of interpreters are not told: the kernel: {remedy}");
                0
            }
            None => 0,
        };
        InterpreterSettings { fsbase }
    }

    /// Sets globals and sizes of maps.
    pub(super) fn set<'a>(&'a self, loader: &mut EbpfLoader<'a>) {
        let most = match self.fsbase {
            0 => 1,
            _ => MAX_INTERPRETER_PROCESSES,
        };
        loader
            .override_global("TASK_FSBASE", &self.fsbase, true)
            .map_max_entries("INTERPRETER_PROCESSES", most);
    }

    /// The state of an attached probe.
    pub(super) fn attach(&self) -> InterpreterProcesses {
        InterpreterProcesses {
            enabled: self.fsbase != 0,
            layouts: Vec::new(),
            known: Default::default(),
            full: false,
        }
    }
}

/// What the kernel side knows.
#[derive(Default)]
pub(super) struct InterpreterProcesses {
    enabled: bool,
    layouts: Vec<Layout>,
    /// Which interpreter each process runs.
    known: FxHashMap<Pid, u8>,
    /// That there is no room was said.
    full: bool,
}

impl InterpreterProcesses {
    /// Tells where the state of an interpreter is in a process, and how its version has its members; or
    /// that the process does not run it.
    pub(super) fn tell(
        &mut self,
        ebpf: &Ebpf,
        (pid, interpreter): (Pid, u8),
        runs: Option<(u64, Layout)>,
    ) -> Result<(), ProbeError> {
        if !self.enabled {
            return Ok(());
        }
        let failed = |error| ProbeError::from_io("list a process that runs an interpreter", error);
        let Some((state, layout)) = runs else {
            // It may run another one by now.
            if self.known.get(&pid) == Some(&interpreter) {
                self.known.remove(&pid);
                let map = load::map_fd(ebpf, "INTERPRETER_PROCESSES")?;
                bpf::remove_from_map(map.as_fd(), &[pid.0]).map_err(failed)?;
            }
            return Ok(());
        };
        let has_room =
            self.known.contains_key(&pid) || self.known.len() < MAX_INTERPRETER_PROCESSES as usize;
        let Some(index) = self.layout(ebpf, &layout)?.filter(|_| has_room) else {
            if !std::mem::replace(&mut self.full, true) {
                log::warn!(
                    "too many processes run interpreters, or too many versions of them (at most \
                     {MAX_INTERPRETER_PROCESSES} and {MAX_LAYOUTS}): those that came last are \
                     recorded without their interpreted frames"
                );
            }
            return Ok(());
        };
        let value = InterpreterProcess {
            state,
            layout: index,
            interpreter: interpreter.into(),
        };
        let map = load::map_fd(ebpf, "INTERPRETER_PROCESSES")?;
        bpf::update_map(map.as_fd(), &[pid.0], &[value]).map_err(failed)?;
        self.known.insert(pid, interpreter);
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
        let map = load::map_fd(ebpf, "INTERPRETER_LAYOUTS")?;
        bpf::update_map(map.as_fd(), &[index], &[*layout])
            .map_err(|error| ProbeError::from_io("describe a version of an interpreter", error))?;
        self.layouts.push(*layout);
        Ok(Some(index))
    }
}
