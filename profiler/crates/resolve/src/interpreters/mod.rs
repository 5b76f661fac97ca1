//! Interpreters in processes: which run one, what its frames are called, and where they belong in a stack.
//!
//! Mappings -> [`InterpreterChange`]s for the kernel side; frames of samples -> names, which are read from
//! the memory of their process as soon as the sample is drained, because it may be gone in a moment
//! ([`Interpreters::read_names`]); a stack of machine code and frames -> one stack. Times are nanoseconds
//! of CLOCK_MONOTONIC.
//!
//! Each interpreter is a folder here and a line of [`all`]; the rest of the resolver knows none by name. A
//! section of a sample says whose frames it has ([`profiler_common::interpreter`]).
//!
//! What does not belong here: how frames are found (the kernel side).

mod cpython;
mod interleave;
#[cfg(test)]
mod tests;

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use profiler_common::interpreter::Layout;

use self::interleave::{Part, interleave};
use super::epoch::Epoch;
use super::files::TargetFile;
use super::frames::Frames;
use super::modules::Modules;
use super::process::ProcessState;
use super::stacks::{Bottom, Stacks};
use profiler_model::raw::{RawBody, RawEvent, RawInterpreted, RawMmap};
use profiler_model::{EpochId, FrameId, Pid, StackEnd, StackId, Timestamp};

/// Those that there are.
fn all() -> Vec<Box<dyn Interpreter>> {
    vec![Box::new(cpython::CPython::default())]
}

/// A process runs an interpreter, or does not any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterpreterChange {
    /// Which process.
    pub pid: Pid,
    /// Which interpreter: what sections of samples are marked with.
    pub interpreter: u8,
    /// Where its state is in the memory of the process, and where its version has what the kernel side
    /// needs; none: it runs there no more.
    pub runs: Option<(u64, Layout)>,
}

/// What was met of an interpreter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterpreterSummary {
    /// What it is called, such as `CPython`.
    pub name: &'static str,
    /// What it interprets, such as `Python`.
    pub language: &'static str,
    /// Stacks (of each epoch) in which its frames could not be put where they belong: they are together, at
    /// the innermost place that has any.
    pub misplaced: u64,
    /// Mappings of versions that frames can't be had of.
    pub unknown_mappings: u64,
    /// These versions.
    pub unsupported: Vec<UnsupportedVersion>,
}

/// Processes with a version of an interpreter whose frames are not known: they are shown as native code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnsupportedVersion {
    /// The version, such as `3.9`.
    pub series: String,
    /// Why.
    pub why: String,
    /// How many processes ran it.
    pub processes: u64,
}

/// Frames of an interpreter, and how they are to be put into a stack.
#[derive(Debug)]
struct Interpreted {
    /// Leaf first, announced with their names.
    frames: Vec<FrameId>,
    /// How they are divided: one for each time that the interpreter's loop was entered. May be empty.
    runs: Vec<Range<usize>>,
    /// Whether these are all.
    complete: bool,
    /// Where the loop is in the memory of the process.
    loops: Arc<[Range<u64>]>,
}

/// An interpreter of some language: what is known of the processes that run it. What belongs to targets may
/// be anything, and change at any time.
trait Interpreter: fmt::Debug + Send {
    /// Its number: what its program in the kernel marks sections with.
    fn id(&self) -> u8;

    /// What it is called, and what the language is.
    fn words(&self) -> (&'static str, &'static str);

    /// Looks at a mapping of a file with code, as soon as it is known; whether there is an interpreter in
    /// it whose frames can't be had.
    fn notice(&mut self, mmap: &RawMmap, path: &str, file: &TargetFile, of: &mut Modules) -> bool;

    /// A process was forked. As soon as that is known.
    fn forked(&mut self, pid: Pid, parent: Pid, at: Timestamp);

    /// A process runs a new program, or has ended. As soon as that is known.
    fn ended(&mut self, pid: Pid, at: Timestamp);

    /// Reads what frames are called, as soon as they are drained; whether names of others were forgotten
    /// for that.
    fn names(&mut self, pid: Pid, at: Timestamp, frames: &Bytes) -> bool;

    /// What frames are, when they have their turn; none if the process did not run this then.
    fn frames(
        &mut self,
        pid: Pid,
        at: Timestamp,
        frames: &Bytes,
        epoch: &mut Epoch,
    ) -> Option<Interpreted>;

    /// What the kernel side is to be told of processes since the last call.
    fn take_changes(&mut self) -> Vec<(Pid, Option<(u64, Layout)>)>;

    /// Versions that were met whose frames can't be had.
    fn unsupported(&self) -> Vec<UnsupportedVersion>;

    /// Forgets what has ended long enough before `now`; `lives` says which processes live.
    fn tidy(&mut self, now: Timestamp, lives: &dyn Fn(Pid) -> bool);
}

/// All interpreters, each with its counts.
#[derive(Debug)]
pub(super) struct Interpreters(Vec<Counted>);

/// One of them, and what is counted of it: see [`InterpreterSummary`].
#[derive(Debug)]
struct Counted {
    of: Box<dyn Interpreter>,
    misplaced: u64,
    unknown_mappings: u64,
}

impl Interpreters {
    /// No process is known to run one.
    pub(super) fn new() -> Interpreters {
        let mut interpreters = Interpreters(Vec::new());
        all().into_iter().for_each(|of| interpreters.add(of));
        interpreters
    }

    fn add(&mut self, of: Box<dyn Interpreter>) {
        self.0.push(Counted {
            of,
            misplaced: 0,
            unknown_mappings: 0,
        });
    }

    /// Looks at a mapping as soon as it is known: it may be that of an interpreter.
    pub(super) fn notice(
        &mut self,
        mmap: &RawMmap,
        path: &str,
        file: &TargetFile,
        modules: &mut Modules,
    ) {
        for interpreter in &mut self.0 {
            let is_unknown = interpreter.of.notice(mmap, path, file, modules);
            interpreter.unknown_mappings += u64::from(is_unknown);
        }
    }

    /// Follows what becomes of processes, as soon as it is drained.
    pub(super) fn follow(&mut self, event: &RawEvent) {
        for Counted { of, .. } in &mut self.0 {
            match &event.body {
                RawBody::Fork {
                    pid, parent_pid, ..
                } if pid != parent_pid => of.forked(*pid, *parent_pid, event.at),
                RawBody::Comm {
                    pid, exec: true, ..
                } => of.ended(*pid, event.at),
                RawBody::Exit { pid, tid } if pid.0 == tid.0 => of.ended(*pid, event.at),
                _ => {}
            }
        }
    }

    /// Reads what the frames of a drained event are called; whether others were forgotten for that: what
    /// was seen before has no names until it is seen again.
    pub(super) fn read_names(&mut self, event: &RawEvent) -> bool {
        let (pid, interpreted) = match &event.body {
            RawBody::Sample(sample) => (sample.pid, &sample.interpreted),
            RawBody::WaitStack(stack) => (stack.pid, &stack.interpreted),
            _ => return false,
        };
        if interpreted.frames.is_empty() {
            return false;
        }
        let interpreter = self.get(interpreted.interpreter);
        interpreter.is_some_and(|known| known.of.names(pid, event.at, &interpreted.frames))
    }

    /// The user stack of a sample that has frames of an interpreter: see [`Stacks::of_user`].
    pub(super) fn stack(
        &mut self,
        (process, at): (&ProcessState, Timestamp),
        bytes: &Bytes,
        (end, bogus): (StackEnd, StackEnd),
        interpreted: &RawInterpreted,
        stacks: &mut Stacks,
        frames: &mut Frames<'_>,
    ) -> (Option<StackId>, StackEnd) {
        let section = &interpreted.frames;
        let interpreter = self.get(interpreted.interpreter).and_then(|known| {
            let found = known.of.frames(process.pid, at, section, frames.epoch)?;
            Some((known, found))
        });
        let Some((known, found)) = interpreter else {
            return stacks.of_user(process, bytes, (end, bogus), frames);
        };
        let mut key = BytesMut::from(&bytes[..]);
        for run in &found.runs {
            key.put_u64_ne(run.len() as u64);
        }
        for frame in &found.frames {
            key.put_u64_ne(frame.index() as u64);
        }
        let key = stacks.key(process, &key.freeze());
        if let Some(found) = stacks.find(key) {
            return found.outcome(end, bogus);
        }
        let native = stacks.native_frames(process, bytes, frames);
        let is_loop = |address: &u64| found.loops.iter().any(|piece| piece.contains(address));
        let addresses = native.addresses.iter().enumerate();
        let loops = addresses.filter(|(_, address)| is_loop(address));
        let loops: Vec<usize> = loops.map(|(index, _)| index).collect();
        let module = |index: usize| {
            let range = process.mappings.find(*native.addresses.get(index)?);
            Some(range?.module.uid)
        };
        let of_loop = loops.first().and_then(|&index| module(index));
        let (parts, fits) = interleave(&interleave::Stacks {
            natives: native.frames.len(),
            loops: &loops,
            leaf_in_file: of_loop.is_some() && module(0) == of_loop,
            natives_complete: end == StackEnd::Complete && native.bottom == Bottom::AsWalked,
            runs: &found.runs,
            runs_complete: found.complete,
        });
        known.misplaced += u64::from(!fits);
        let mut stack = None;
        for part in parts.iter().rev() {
            let of = match part {
                Part::Native(index) => &native.frames[*index..=*index],
                Part::Interpreted(run) => &found.frames[run.clone()],
            };
            for &frame in of.iter().rev() {
                stack = Some(frames.epoch.tables.stack(stack, frame));
            }
        }
        match stack {
            Some(stack) => stacks.keep(key, stack, native.bottom).outcome(end, bogus),
            None => (None, end),
        }
    }

    /// What the kernel side is to be told of processes since the last call.
    pub(super) fn take_changes(&mut self) -> Vec<InterpreterChange> {
        let mut changes = Vec::new();
        for Counted { of, .. } in &mut self.0 {
            let interpreter = of.id();
            let new = of.take_changes().into_iter();
            changes.extend(new.map(|(pid, runs)| InterpreterChange {
                pid,
                interpreter,
                runs,
            }));
        }
        changes
    }

    /// What was met of each.
    pub(super) fn summaries(&self) -> Vec<InterpreterSummary> {
        let summary = |known: &Counted| {
            let (name, language) = known.of.words();
            InterpreterSummary {
                name,
                language,
                misplaced: known.misplaced,
                unknown_mappings: known.unknown_mappings,
                unsupported: known.of.unsupported(),
            }
        };
        self.0.iter().map(summary).collect()
    }

    /// Forgets what has ended long enough before `now`; `lives` says which processes live.
    pub(super) fn tidy(&mut self, now: Timestamp, lives: &dyn Fn(Pid) -> bool) {
        self.0
            .iter_mut()
            .for_each(|known| known.of.tidy(now, lives));
    }

    fn get(&mut self, id: u8) -> Option<&mut Counted> {
        self.0.iter_mut().find(|known| known.of.id() == id)
    }
}
