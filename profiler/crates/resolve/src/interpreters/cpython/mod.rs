//! CPython: which processes run it, and what its frames are called.
//!
//! Its program in the kernel is `python`; what both agree on is in [`profiler_common::python`]. Times are
//! nanoseconds of CLOCK_MONOTONIC.
//!
//! What does not belong here: how frames are found (the kernel side), where they belong in a stack
//! (`super`).

mod code;
mod lines;
mod names;
mod processes;
mod runtime;
#[cfg(test)]
mod tests;
mod version;

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use profiler_common::interpreter::Layout;
use profiler_common::python::{PYTHON, PYTHON_CUT, PYTHON_ENTRY, PythonFrame};

use self::names::Named;
use self::processes::{Loaded, Pythons};
use self::runtime::Runtime;
use super::{Interpreted, Interpreter, UnsupportedVersion};
use crate::epoch::Epoch;
use crate::files::TargetFile;
use crate::modules::Modules;
use crate::patience::ask_at_length;
use crate::symbolize::Answer;
use crate::warnings::warn_once;
use profiler_model::raw::RawMmap;
use profiler_model::{FrameId, FrameKind, ModuleKind, Pid, Timestamp};

/// Where the addresses of frames without a name begin to be made up.
const NAMELESS: u64 = 1;

/// Processes that run CPython, and the names of their functions.
#[derive(Debug, Default)]
pub(super) struct CPython {
    processes: Pythons,
}

impl Interpreter for CPython {
    fn id(&self) -> u8 {
        PYTHON
    }

    fn words(&self) -> (&'static str, &'static str) {
        ("CPython", "Python")
    }

    fn notice(
        &mut self,
        mmap: &RawMmap,
        path: &str,
        file: &TargetFile,
        modules: &mut Modules,
    ) -> bool {
        let Some(elf) = file.elf.as_ref().filter(|_| runtime::may_have_one(path)) else {
            return false;
        };
        let place = (
            path.to_owned(),
            file.fingerprint.name,
            file.build_id().cloned(),
        );
        let runtime = match self.processes.runtimes.get(&place) {
            Some(known) => known.clone(),
            None => {
                let (of, elf) = (file.file.try_clone().ok(), elf.clone());
                let read = move || Runtime::read(&of?, &elf);
                let runtime = ask_at_length(mmap.pid, read).flatten().map(Arc::new);
                self.processes.remember(place, runtime.clone());
                runtime
            }
        };
        let Some(runtime) = runtime else { return false };
        let offsets = match &runtime.offsets {
            Ok(offsets) => *offsets,
            Err(reason) => {
                let version = runtime.version;
                if self.processes.unsupported(mmap.pid, version, *reason) {
                    warn_once(
                        "Python",
                        format_args!("{path}: no frames of Python {version}: {reason}"),
                    );
                }
                return true;
            }
        };
        let bias = elf.bias(mmap.file_offset);
        let base = mmap.start.wrapping_sub(mmap.file_offset.wrapping_add(bias));
        let (major, minor) = runtime.version.series();
        let module = format!("[python {major}.{minor}]");
        let module = modules.named(ModuleKind::Interpreted, &module);
        let loaded = Loaded::new(base, &runtime, offsets, module);
        self.processes
            .started(mmap.pid, modules.now(), Arc::new(loaded));
        false
    }

    fn forked(&mut self, pid: Pid, parent: Pid, at: Timestamp) {
        self.processes.forked(pid, parent, at);
    }

    fn ended(&mut self, pid: Pid, at: Timestamp) {
        self.processes.ended(pid, at);
    }

    fn names(&mut self, pid: Pid, at: Timestamp, frames: &Bytes) -> bool {
        self.processes.read_names(pid, at, python_frames(frames));
        self.processes.take_forgotten()
    }

    fn frames(
        &mut self,
        pid: Pid,
        at: Timestamp,
        section: &Bytes,
        epoch: &mut Epoch,
    ) -> Option<Interpreted> {
        let loaded = self.processes.interpreter(pid, at)?;
        let (mut frames, mut runs) = (Vec::new(), Vec::<Range<usize>>::new());
        let (mut start, mut complete) = (0, true);
        for frame in python_frames(section) {
            if frame.code != 0
                && let Some(id) = self.frame((pid, at), &loaded, &frame, epoch)
            {
                frames.push(id);
            }
            if frame.flags & PYTHON_ENTRY != 0 || loaded.offsets.each_is_called() {
                runs.push(start..frames.len());
                start = frames.len();
            }
            complete &= frame.flags & PYTHON_CUT == 0;
        }
        if start < frames.len() {
            runs.push(start..frames.len());
        }
        Some(Interpreted {
            frames,
            runs,
            complete,
            loops: loaded.loops.clone(),
        })
    }

    fn take_changes(&mut self) -> Vec<(Pid, Option<(u64, Layout)>)> {
        std::mem::take(&mut self.processes.changes)
    }

    fn unsupported(&self) -> Vec<UnsupportedVersion> {
        let mut all: Vec<UnsupportedVersion> = Vec::new();
        for (version, why, processes) in self.processes.all_unsupported() {
            let (major, minor) = version.series();
            let found = UnsupportedVersion {
                series: format!("{major}.{minor}"),
                why: why.to_string(),
                processes,
            };
            // 3.9.1 and 3.9.2 are the same to a reader.
            let same =
                |of: &&mut UnsupportedVersion| of.series == found.series && of.why == found.why;
            match all.iter_mut().find(same) {
                Some(known) => known.processes += processes,
                None => all.push(found),
            }
        }
        all
    }

    fn tidy(&mut self, now: Timestamp, lives: &dyn Fn(Pid) -> bool) {
        self.processes.tidy(now, lives);
    }
}

impl CPython {
    /// The id of a frame, announced with its name; none if it is not to be seen.
    fn frame(
        &mut self,
        (pid, at): (Pid, Timestamp),
        loaded: &Loaded,
        frame: &PythonFrame,
        epoch: &mut Epoch,
    ) -> Option<FrameId> {
        let module = Some(&*loaded.module);
        let (address, answer) = match self.processes.name(pid, at, frame) {
            Named::Hidden => return None,
            Named::At(function, line) => {
                let place = names::place(&function, line);
                (place, Answer::Lines([(function, line)].into()))
            }
            Named::Unknown(reason) => {
                let place = [frame.code, frame.instruction, u64::from(pid.0), NAMELESS];
                (
                    names::hash(place.iter().flat_map(|word| word.to_ne_bytes())),
                    Answer::Unknown(reason),
                )
            }
        };
        let (id, new) = epoch.tables.frame(FrameKind::Interpreted, module, address);
        if new {
            epoch.define(id, module, &answer);
        }
        Some(id)
    }
}

/// The frames of a section; what is behind the last whole one is no frame.
fn python_frames(bytes: &Bytes) -> impl Iterator<Item = PythonFrame> {
    let frames = bytes.as_chunks::<{ size_of::<PythonFrame>() }>().0.iter();
    frames.map(|bytes| zerocopy::transmute!(*bytes))
}
