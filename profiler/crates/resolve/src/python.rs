//! CPython in processes: which run it, what its frames are called, and where they belong in a stack.
//!
//! Mappings -> [`PythonChange`]s for the kernel side; frames of samples -> names, which are read from
//! the memory of their process as soon as the sample is drained, because it may be gone in a moment
//! ([`Resolver::notice_interpreted`]); a stack of machine code and frames -> one stack. Times are
//! nanoseconds of CLOCK_MONOTONIC.
//!
//! What does not belong here: how frames are found (the kernel side).

mod code;
mod interleave;
mod lines;
mod names;
mod processes;
mod runtime;
#[cfg(test)]
mod tests;
mod version;

use std::ops::Range;
use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use profiler_common::python::{Layout, PYTHON_CUT, PYTHON_ENTRY, PythonFrame};

use self::interleave::{Part, Stacks, interleave};
use self::names::Named;
use self::processes::Interpreter;
pub(super) use self::processes::Pythons;
use self::runtime::Runtime;
use super::Resolver;
use super::files::TargetFile;
use super::symbolize::Answer;
use profiler_model::raw::{RawBody, RawEvent, RawMmap};
use profiler_model::{EpochId, FrameId, FrameKind, ModuleKind, Pid, StackEnd, StackId, Timestamp};

/// Where the addresses of frames without a name begin to be made up.
const NAMELESS: u64 = 1;

/// A process runs CPython, or does not any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PythonChange {
    /// Which process.
    pub pid: Pid,
    /// Where `_PyRuntime` is in its memory, and where its version has its members.
    pub runs: Option<(u64, Layout)>,
}

/// Processes with an interpreter whose frames are not known: they are shown as native code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnsupportedPython {
    /// Its version, such as `3.9`.
    pub series: String,
    /// Why.
    pub why: String,
    /// How many processes ran it.
    pub processes: u64,
}

impl Resolver {
    /// Interpreters that were met whose frames are not known.
    pub fn unsupported_pythons(&self) -> Vec<UnsupportedPython> {
        let mut all: Vec<UnsupportedPython> = Vec::new();
        for (version, why, processes) in self.python.all_unsupported() {
            let (major, minor) = version.series();
            let found = UnsupportedPython {
                series: format!("{major}.{minor}"),
                why: why.to_string(),
                processes,
            };
            // 3.9.1 and 3.9.2 are the same to a reader.
            let same =
                |of: &&mut UnsupportedPython| of.series == found.series && of.why == found.why;
            match all.iter_mut().find(same) {
                Some(known) => known.processes += processes,
                None => all.push(found),
            }
        }
        all
    }

    /// What the kernel side is to be told of processes since the last call.
    pub fn take_python_changes(&mut self) -> Vec<PythonChange> {
        std::mem::take(&mut self.python.changes)
    }

    /// Looks at an event as soon as it is drained: reads what frames of an interpreter are called,
    /// while the process is still there.
    pub fn notice_interpreted(&mut self, event: &RawEvent) {
        let (pid, frames) = match &event.body {
            RawBody::Sample(sample) => (sample.pid, &sample.interpreted),
            RawBody::WaitStack(stack) => (stack.pid, &stack.interpreted),
            _ => return,
        };
        if !frames.is_empty() {
            self.python.read_names(pid, event.at, python_frames(frames));
            if self.python.take_forgotten() {
                self.wait_stacks.lack_names();
            }
        }
    }

    /// Looks at a mapping as soon as it is known: it may be that of an interpreter.
    pub(super) fn notice_python(&mut self, mmap: &RawMmap, path: &str, file: &TargetFile) {
        let Some(elf) = file.elf.as_ref().filter(|_| runtime::may_have_one(path)) else {
            return;
        };
        let place = (path.to_owned(), file.print.name, file.build_id().cloned());
        let runtime = match self.python.runtimes.get(&place) {
            Some(known) => known.clone(),
            None => {
                let runtime = Runtime::read(&file.file, elf).map(Arc::new);
                self.python.remember(place, runtime.clone());
                runtime
            }
        };
        let Some(runtime) = runtime else { return };
        let offsets = match &runtime.offsets {
            Ok(offsets) => *offsets,
            Err(reason) => {
                self.counters.python_unsupported += 1;
                let version = runtime.version;
                if self.python.unsupported(mmap.pid, version, *reason) {
                    log::warn!("{path}: no frames of Python {version}: {reason}");
                }
                return;
            }
        };
        let bias = elf.bias(mmap.file_offset);
        let base = mmap.start.wrapping_sub(mmap.file_offset.wrapping_add(bias));
        let (major, minor) = runtime.version.series();
        let module = format!("[python {major}.{minor}]");
        let module = self.named_module(ModuleKind::Interpreted, &module);
        let interpreter = Interpreter::new(base, &runtime, offsets, module);
        let at = self.files.now;
        self.python.started(mmap.pid, at, Arc::new(interpreter));
    }

    /// The user stack of a sample that has frames of an interpreter: see [`Resolver::user_stack`].
    pub(super) fn stack_with_interpreted(
        &mut self,
        (pid, at): (Pid, Timestamp),
        bytes: &Bytes,
        end: StackEnd,
        interpreted: &Bytes,
    ) -> (Option<StackId>, StackEnd) {
        let Some(interpreter) = self.python.interpreter(pid, at) else {
            return self.user_stack(pid, bytes, end);
        };
        let (frames, runs) = self.interpreted_frames(pid, at, &interpreter, interpreted);
        let Some(process) = self.processes.get(pid) else {
            return (None, end);
        };
        let generation = process.mappings.generation();
        self.announce_mappings(pid, generation);
        let mut key = BytesMut::from(&bytes[..]);
        for run in &runs.0 {
            key.put_u64_ne(run.len() as u64);
        }
        for frame in &frames {
            key.put_u64_ne(frame.index() as u64);
        }
        let key = self.stack_key(generation, &key.freeze());
        if let Some(found) = self.known_stack(key) {
            return found.outcome(end, self.unwinding.end_of_wreck());
        }
        let (natives, addresses, cut) = self.native_frames(pid, bytes);
        let loops: Vec<usize> = addresses
            .iter()
            .enumerate()
            .filter(|(_, address)| interpreter.is_loop(**address))
            .map(|(index, _)| index)
            .collect();
        let (parts, fits) = interleave(&Stacks {
            natives: natives.len(),
            loops: &loops,
            natives_complete: end == StackEnd::Complete && !cut,
            runs: &runs.0,
            runs_complete: runs.1,
        });
        self.counters.python_misplaced += u64::from(!fits);
        let mut stack = None;
        for part in parts.iter().rev() {
            let frames = match part {
                Part::Native(index) => &natives[*index..=*index],
                Part::Interpreted(run) => &frames[run.clone()],
            };
            for &frame in frames.iter().rev() {
                stack = Some(self.epoch.stack(stack, frame));
            }
        }
        match stack {
            Some(stack) => self
                .keep_stack(key, stack, cut)
                .outcome(end, self.unwinding.end_of_wreck()),
            None => (None, end),
        }
    }

    /// The frames of an interpreter, leaf first; how they are divided into runs, one for each time that
    /// its loop was entered, and whether these are all.
    fn interpreted_frames(
        &mut self,
        pid: Pid,
        at: Timestamp,
        interpreter: &Interpreter,
        bytes: &Bytes,
    ) -> (Vec<FrameId>, (Vec<Range<usize>>, bool)) {
        let (mut frames, mut runs) = (Vec::new(), Vec::new());
        let (mut start, mut complete) = (0, true);
        for frame in python_frames(bytes) {
            if frame.code != 0
                && let Some(id) = self.interpreted_frame(pid, at, interpreter, &frame)
            {
                frames.push(id);
            }
            if frame.flags & PYTHON_ENTRY != 0 {
                runs.push(start..frames.len());
                start = frames.len();
            }
            complete &= frame.flags & PYTHON_CUT == 0;
        }
        if start < frames.len() {
            runs.push(start..frames.len());
        }
        (frames, (runs, complete))
    }

    /// The id of a frame, announced with its name; none if it is not to be seen.
    fn interpreted_frame(
        &mut self,
        pid: Pid,
        at: Timestamp,
        interpreter: &Interpreter,
        frame: &PythonFrame,
    ) -> Option<FrameId> {
        let module = Some(&*interpreter.module);
        let (address, answer) = match self.python.name(pid, at, frame) {
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
        let (id, new) = self.epoch.frame(FrameKind::Interpreted, module, address);
        if new {
            self.define(id, module, &answer);
        }
        Some(id)
    }
}

/// The frames of a section; what is behind the last whole one is no frame.
fn python_frames(bytes: &Bytes) -> impl Iterator<Item = PythonFrame> {
    let frames = bytes.as_chunks::<{ size_of::<PythonFrame>() }>().0.iter();
    frames.map(|bytes| {
        let word = |index: usize| {
            let bytes = bytes[index * 8..].first_chunk().copied();
            u64::from_ne_bytes(bytes.unwrap_or_default())
        };
        PythonFrame {
            code: word(0),
            instruction: word(1),
            flags: word(2),
        }
    })
}
