//! Which processes run CPython, and since when.
//!
//! An interpreter in the memory of a process, forks, execs and exits, as they are drained ->
//! changes for the kernel side. What a process ran before is kept for a while, for samples that are still on
//! their way. Times are nanoseconds of CLOCK_MONOTONIC.
//!
//! What does not belong here: how interpreters are found (`runtime`).

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use profiler_common::interpreter::Layout;
use profiler_common::python::PythonFrame;
use rustc_hash::{FxHashMap, FxHashSet};

use super::names::{Codes, Named};
use super::runtime::Runtime;
use super::version::{Offsets, Unsupported, Version};
use crate::helper::Memory;
use crate::mapping::CodeModule;
use crate::process::GRACE_NS;
use profiler_model::{BuildId, Pid, Timestamp, UnknownReason};

/// Most processes that are followed.
const MAX_PROCESSES: usize = 8192;
/// Most programs of one process that are remembered.
const MAX_LIVES: usize = 4;
/// Most files that are remembered to have an interpreter, or none.
const MAX_FILES: usize = 4096;
/// Most memory for names of all processes; beyond, half of it is forgotten, and read anew as it is seen.
pub(super) const MAX_BYTES: usize = 64 << 20;
/// Most memories of processes that are kept open.
const MAX_OPEN: usize = 512;

/// A file: its path, what tells it from others of that path, and its build id.
type Place = (String, Option<u32>, Option<BuildId>);

/// An interpreter in the memory of a process.
#[derive(Debug)]
pub(super) struct Loaded {
    /// Where `_PyRuntime` is.
    runtime: u64,
    /// Where its version has its members.
    pub(super) offsets: Offsets,
    /// The address of the type of code objects.
    pub(super) code_type: Option<u64>,
    /// What its frames are in.
    pub(super) module: Arc<CodeModule>,
    /// Where its loop is.
    pub(super) loops: Arc<[Range<u64>]>,
}

impl Loaded {
    /// One of a file that is mapped so that its addresses are `base` higher.
    pub(super) fn new(
        base: u64,
        file: &Runtime,
        offsets: Offsets,
        module: Arc<CodeModule>,
    ) -> Loaded {
        let moved = |address: u64| address.wrapping_add(base);
        Loaded {
            runtime: moved(file.state),
            offsets,
            code_type: file.code_type.map(moved),
            module,
            loops: file
                .code
                .iter()
                .map(|piece| moved(piece.start)..moved(piece.end))
                .collect(),
        }
    }
}

/// One program of a process.
#[derive(Debug)]
struct Life {
    from: Timestamp,
    until: Option<Timestamp>,
    /// None: a program without CPython.
    interpreter: Option<Arc<Loaded>>,
    memory: Option<Memory>,
    /// The memory could not be opened.
    is_closed: bool,
    codes: Codes,
}

impl Life {
    fn new(from: Timestamp, interpreter: Option<Arc<Loaded>>) -> Life {
        Life {
            from,
            until: None,
            interpreter,
            memory: None,
            is_closed: false,
            codes: Codes::default(),
        }
    }
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Pythons {
    /// What the kernel side is still to be told.
    pub(super) changes: Vec<(Pid, Option<(u64, Layout)>)>,
    /// Files that were looked into.
    pub(super) runtimes: FxHashMap<Place, Option<Arc<Runtime>>>,
    processes: FxHashMap<Pid, VecDeque<Life>>,
    /// Memory for names of all processes; no less than it is.
    name_bytes: usize,
    /// Names were forgotten, and nobody was told.
    forgotten: bool,
    /// Processes with an interpreter whose frames are not known, by its version.
    unsupported: BTreeMap<Version, (Unsupported, FxHashSet<Pid>)>,
}

impl Pythons {
    /// Keeps what is known of a file.
    pub(super) fn remember(&mut self, file: Place, runtime: Option<Arc<Runtime>>) {
        if self.runtimes.len() >= MAX_FILES {
            self.runtimes.clear();
        }
        self.runtimes.insert(file, runtime);
    }

    /// Notes that a process runs an interpreter whose frames are not known; whether that is the first one
    /// of its version.
    pub(super) fn unsupported(&mut self, pid: Pid, version: Version, why: Unsupported) -> bool {
        let known = self.unsupported.len();
        match self.unsupported.entry(version) {
            Entry::Occupied(mut met) => {
                add(&mut met.get_mut().1, pid);
                false
            }
            Entry::Vacant(new) => {
                let room = known < MAX_FILES;
                if room {
                    new.insert((why, FxHashSet::from_iter([pid])));
                }
                room
            }
        }
    }

    /// Those that were met so far.
    pub(super) fn all_unsupported(&self) -> impl Iterator<Item = (Version, Unsupported, u64)> + '_ {
        let all = self.unsupported.iter();
        all.map(|(version, (why, pids))| (*version, *why, pids.len() as u64))
    }

    /// A process has mapped an interpreter.
    pub(super) fn started(&mut self, pid: Pid, at: Timestamp, interpreter: Arc<Loaded>) {
        let current = self.processes.get(&pid).and_then(VecDeque::back);
        if let Some(known) = current.and_then(|life| life.interpreter.as_ref())
            && known.runtime == interpreter.runtime
            && known.offsets == interpreter.offsets
        {
            // The file's other segments.
            return;
        }
        // What runs already when it is met has run before.
        let from = if current.is_some() { at } else { Timestamp(0) };
        self.begin(pid, from, Some(interpreter));
    }

    /// A process was forked.
    pub(super) fn forked(&mut self, pid: Pid, parent: Pid, at: Timestamp) {
        for (_, pids) in self.unsupported.values_mut() {
            if pids.contains(&parent) {
                add(pids, pid);
            }
        }
        let parent = self.processes.get(&parent).and_then(VecDeque::back);
        let interpreter = parent.and_then(|life| life.interpreter.clone());
        if interpreter.is_some() || self.processes.contains_key(&pid) {
            self.begin(pid, at, interpreter);
        }
    }

    /// A process runs a new program, or has ended.
    pub(super) fn ended(&mut self, pid: Pid, at: Timestamp) {
        if self.processes.contains_key(&pid) {
            self.begin(pid, at, None);
        }
    }

    fn begin(&mut self, pid: Pid, from: Timestamp, interpreter: Option<Arc<Loaded>>) {
        let known = self.processes.len();
        let lives = self.processes.entry(pid).or_default();
        if let Some(last) = lives.back_mut() {
            if last.from > from {
                // Events of several buffers: a newer one came before.
                return;
            }
            last.until = Some(from);
        } else if known >= MAX_PROCESSES {
            self.processes.remove(&pid);
            return;
        }
        if lives.len() >= MAX_LIVES {
            lives.pop_front();
        }
        let runs = interpreter.as_ref();
        let runs = runs.map(|found| (found.runtime, found.offsets.layout));
        self.changes.push((pid, runs));
        lives.push_back(Life::new(from, interpreter));
    }

    /// What a process ran at some time.
    pub(super) fn interpreter(&self, pid: Pid, at: Timestamp) -> Option<Arc<Loaded>> {
        self.life(pid, at)?.interpreter.clone()
    }

    fn life(&self, pid: Pid, at: Timestamp) -> Option<&Life> {
        let lives = self.processes.get(&pid)?;
        lives.iter().rev().find(|life| life.from <= at)
    }

    /// Reads the names of frames, unless they are known.
    pub(super) fn read_names(
        &mut self,
        pid: Pid,
        at: Timestamp,
        frames: impl Iterator<Item = PythonFrame>,
    ) {
        let lives = self.processes.get_mut(&pid);
        let life = lives.and_then(|lives| lives.iter_mut().rev().find(|life| life.from <= at));
        let Some(life) = life.filter(|life| !life.is_closed) else {
            return;
        };
        let Some(interpreter) = &life.interpreter else {
            return;
        };
        if life.memory.is_none() {
            match Memory::open(pid) {
                Ok(memory) => life.memory = Some(memory),
                Err(error) => {
                    log::debug!("pid {pid}: no names of Python functions: {error}");
                    life.is_closed = true;
                }
            }
        }
        let Some(memory) = &life.memory else { return };
        let before = life.codes.bytes();
        for frame in frames.filter(|frame| frame.code != 0) {
            life.codes.look(memory, interpreter, &frame);
        }
        self.forgotten |= life.codes.take_forgotten();
        let (after, from) = (life.codes.bytes(), life.from);
        self.name_bytes = (self.name_bytes + after).saturating_sub(before);
        if self.name_bytes > MAX_BYTES {
            self.forget_names((pid, from));
        }
    }

    /// Forgets names until half of the memory for them is free, none of one program of a process; those of
    /// what has ended first.
    fn forget_names(&mut self, but: (Pid, Timestamp)) {
        let lives = self.processes.values().flatten();
        self.name_bytes = lives.map(|life| life.codes.bytes()).sum();
        for of_ended in [true, false] {
            for (&pid, lives) in &mut self.processes {
                for life in lives {
                    if self.name_bytes <= MAX_BYTES / 2 {
                        return;
                    }
                    if (pid, life.from) != but && (life.until.is_some() || !of_ended) {
                        let before = life.codes.bytes();
                        life.codes.clear();
                        self.forgotten |= life.codes.take_forgotten();
                        self.name_bytes -= before - life.codes.bytes();
                    }
                }
            }
        }
    }

    /// Whether names were forgotten since the last call: what was seen before has none until it is seen
    /// again.
    pub(super) fn take_forgotten(&mut self) -> bool {
        std::mem::take(&mut self.forgotten)
    }

    /// Memory for names, counted anew.
    #[cfg(test)]
    pub(super) fn name_bytes(&self) -> usize {
        let lives = self.processes.values().flatten();
        lives.map(|life| life.codes.bytes()).sum()
    }

    /// What a frame is called.
    pub(super) fn name(&self, pid: Pid, at: Timestamp, frame: &PythonFrame) -> Named {
        let life = self.life(pid, at);
        let found = life.and_then(|life| Some((life, life.interpreter.as_ref()?)));
        match found {
            Some((life, of)) => life.codes.name(of, frame),
            None => Named::Unknown(UnknownReason::NoFile),
        }
    }

    /// Forgets what has ended long enough before `now`, and closes what is open beyond the limits.
    pub(super) fn tidy(&mut self, now: Timestamp, lives: &dyn Fn(Pid) -> bool) {
        let resolved = Timestamp(now.0.saturating_sub(GRACE_NS));
        self.processes.retain(|&pid, all| {
            all.retain(|life| life.until.is_none_or(|until| until >= resolved));
            let last = all.back();
            let runs = last.is_some_and(|life| life.interpreter.is_some() && lives(pid));
            runs || last.is_some_and(|life| life.from >= resolved)
        });
        let (mut open, mut bytes) = (0, 0);
        for life in self.processes.values_mut().flatten() {
            open += usize::from(life.memory.is_some());
            bytes += life.codes.bytes();
            if open > MAX_OPEN {
                life.memory = None;
            }
        }
        self.name_bytes = bytes;
    }
}

fn add(pids: &mut FxHashSet<Pid>, pid: Pid) {
    if pids.len() < MAX_PROCESSES {
        pids.insert(pid);
    }
}
