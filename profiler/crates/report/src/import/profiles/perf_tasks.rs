//! Processes and threads of a perf.data as they come and go: what they are called, and what is mapped in them.
//!
//! Forks, names, mappings and ends, in the order of time -> whose thread a sample is of, and what lies at an address. Numbers are used
//! again: what has the number of something older takes its place. Bounded, whatever a file says: what has ended makes room.
//!
//! What does not belong here: bytes of records, what a path means.

use std::collections::BTreeMap;
use std::rc::Rc;

use rustc_hash::{FxHashMap, FxHashSet};

use super::intake::Intake;
use profiler_model::*;

/// Most mappings of all processes together.
const MAX_MAPPINGS: usize = 1 << 20;
/// Most threads.
const MAX_THREADS: usize = 1 << 20;

/// A mapping of a process, or of the kernel.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mapping {
    pub(super) end: u64,
    pub(super) module: ModuleId,
    /// What is added to an address to make it one of the module.
    pub(super) to_module: u64,
    pub(super) kind: FrameKind,
}

/// A thread begins, of a process of its own or not.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fork {
    pub(super) pid: u32,
    pub(super) parent: u32,
    pub(super) tid: u32,
    pub(super) parent_tid: u32,
    /// None: it ran already when perf began.
    pub(super) at: Option<u64>,
}

/// A thread has a name from now on.
#[derive(Clone, Debug)]
pub(super) struct Comm {
    pub(super) pid: u32,
    pub(super) tid: u32,
    pub(super) name: String,
    /// With another program.
    pub(super) is_exec: bool,
    pub(super) at: u64,
}

#[derive(Debug, Default)]
struct Thread {
    pid: u32,
    name: String,
    started: u64,
    /// In the recording.
    id: Option<ThreadId>,
}

#[derive(Debug, Default)]
struct Process {
    started: u64,
    /// By where they begin; shared with a parent until one of them changes.
    mappings: Rc<BTreeMap<u64, Mapping>>,
    /// What the program had that called exec, until the new one runs: the kernel's work at it is sampled, too.
    before: Rc<BTreeMap<u64, Mapping>>,
    /// Its threads that run.
    running: FxHashSet<u32>,
}

#[derive(Debug, Default)]
pub(super) struct Tasks {
    processes: FxHashMap<u32, Process>,
    threads: FxHashMap<u32, Thread>,
    /// Of all processes.
    mappings: usize,
    /// Processes that have ended since there was no room, and threads: both are kept, for what the kernel does at their end
    /// is sampled, too.
    ended_processes: Vec<u32>,
    ended_threads: usize,
}

impl Tasks {
    /// A thread has a name; with an exec, nothing is left of what was there.
    pub(super) fn named(&mut self, comm: Comm, intake: &mut Intake<'_>) {
        let Comm { pid, tid, .. } = comm;
        if !self.has_room(pid, tid) {
            return;
        }
        let thread = self.threads.entry(tid).or_default();
        if thread.pid != pid {
            *thread = Thread::default();
        }
        thread.pid = pid;
        let before = std::mem::replace(&mut thread.name, comm.name);
        if let Some(id) = thread.id.filter(|_| before != thread.name) {
            let name = &thread.name;
            if !before.is_empty() && intake.tables.names_of(id).next().is_none() {
                intake.named(id, Timestamp(thread.started), &before);
            }
            intake.named(id, Timestamp(comm.at), name);
            let started = Timestamp(self.processes.get(&pid).map_or(0, |it| it.started));
            // Both have the name that they have last, if that is of both.
            let process = match pid == tid {
                true => Some(intake.process(pid, started, name)),
                false => intake.tables.find_process(Pid(pid), started),
            };
            if let Some(process) = process {
                intake.thread_of(process, tid, Timestamp(thread.started), name);
            }
        }
        let process = self.processes.entry(pid).or_default();
        if comm.is_exec && pid == tid {
            // Whichever thread it was has the number of the process now.
            process.running.clear();
            self.mappings -= process.before.len();
            process.before = std::mem::take(&mut process.mappings);
        }
        process.running.insert(tid);
    }

    pub(super) fn forked(&mut self, fork: Fork) {
        let Fork { pid, parent, .. } = fork;
        if !self.has_room(pid, fork.tid) {
            return;
        }
        if pid != parent && fork.at.is_some() {
            // The number's last process has ended, told or not.
            self.unmap(pid);
            let mappings = self.processes.get(&parent).map(|it| it.mappings.clone());
            let mappings = mappings.filter(|it| self.has_room_for(it.len()));
            let mappings = mappings.unwrap_or_default();
            self.mappings += mappings.len();
            let process = Process {
                started: fork.at.unwrap_or(0),
                mappings,
                ..Process::default()
            };
            self.processes.insert(pid, process);
        }
        let process = self.processes.entry(pid).or_default();
        process.running.insert(fork.tid);
        let name = self.threads.get(&fork.parent_tid);
        let thread = Thread {
            pid,
            name: name.map_or_else(String::new, |it| it.name.clone()),
            started: fork.at.unwrap_or(0),
            id: None,
        };
        self.threads.insert(fork.tid, thread);
    }

    /// A thread has ended; with the last one, its process.
    pub(super) fn ended(&mut self, pid: u32, tid: u32) {
        let Some(process) = self.processes.get_mut(&pid) else {
            return;
        };
        if process.running.remove(&tid) {
            self.ended_threads += 1;
            if process.running.is_empty() {
                self.ended_processes.push(pid);
            }
        }
    }

    fn unmap(&mut self, pid: u32) {
        if let Some(process) = self.processes.get_mut(&pid) {
            self.mappings -= process.mappings.len() + process.before.len();
            (process.mappings, process.before) = Default::default();
        }
    }

    /// Whether there is room for so many mappings: processes that have ended make it, all at once.
    fn has_room_for(&mut self, more: usize) -> bool {
        if self.mappings + more > MAX_MAPPINGS {
            self.unmap_ended();
        }
        self.mappings + more <= MAX_MAPPINGS
    }

    fn unmap_ended(&mut self) {
        for pid in std::mem::take(&mut self.ended_processes) {
            let process = self.processes.get(&pid);
            if process.is_some_and(|process| process.running.is_empty()) {
                self.unmap(pid);
            }
        }
    }

    /// Whether there is room for a thread: those that have ended make it, many at once.
    fn has_room(&mut self, pid: u32, tid: u32) -> bool {
        let has_room = |it: &Tasks| {
            (it.threads.len() < MAX_THREADS || it.threads.contains_key(&tid))
                && (it.processes.len() < MAX_THREADS || it.processes.contains_key(&pid))
        };
        if has_room(self) {
            return true;
        }
        if self.ended_threads < MAX_THREADS / 2 {
            return false;
        }
        self.ended_threads = 0;
        self.unmap_ended();
        let processes = &self.processes;
        let runs = |tid: &u32, thread: &Thread| {
            let process = processes.get(&thread.pid);
            process.is_some_and(|it| it.running.contains(tid))
        };
        self.threads.retain(|tid, thread| runs(tid, thread));
        self.processes
            .retain(|_, it| !it.running.is_empty() || !it.mappings.is_empty());
        has_room(self)
    }

    /// Something is mapped; what was there is cut, or gone.
    pub(super) fn mapped(&mut self, pid: u32, start: u64, mapping: Mapping) {
        let end = mapping.end;
        if self.processes.len() >= MAX_THREADS && !self.processes.contains_key(&pid) {
            return;
        }
        let has_room = self.has_room_for(1);
        let process = self.processes.entry(pid).or_default();
        let mappings = Rc::make_mut(&mut process.mappings);
        self.mappings -= mappings.len();
        let over: Vec<u64> = mappings
            .range(..end)
            .rev()
            .take_while(|(_, mapping)| mapping.end > start)
            .map(|(&start, _)| start)
            .collect();
        for before in over {
            if let Some(cut) = mappings.remove(&before) {
                let head = Mapping { end: start, ..cut };
                for (from, piece) in [(before, head), (end, cut)] {
                    // Without room no mapping becomes two.
                    if from < piece.end && (has_room || from == before) {
                        mappings.insert(from, piece);
                    }
                }
            }
        }
        if has_room && start < end {
            mappings.insert(start, mapping);
        }
        self.mappings += mappings.len();
    }

    /// A process was seen in user mode: what was there before an exec is gone.
    pub(super) fn runs(&mut self, pid: u32) {
        if let Some(process) = self.processes.get_mut(&pid) {
            self.mappings -= process.before.len();
            process.before = Rc::default();
        }
    }

    /// What lies at an address of a process.
    pub(super) fn at(&self, pid: u32, address: u64) -> Option<Mapping> {
        let process = self.processes.get(&pid)?;
        let at = |mappings: &BTreeMap<u64, Mapping>| {
            let (_, mapping) = mappings.range(..=address).next_back()?;
            (address < mapping.end).then_some(*mapping)
        };
        at(&process.mappings).or_else(|| at(&process.before))
    }

    /// A thread in the recording.
    pub(super) fn thread(&mut self, pid: u32, tid: u32, intake: &mut Intake<'_>) -> ThreadId {
        let known = self.threads.get(&tid).filter(|it| it.pid == pid);
        if let Some(id) = known.and_then(|it| it.id) {
            return id;
        }
        let name = |tid| {
            let name = self.threads.get(tid).map(|it| it.name.as_str());
            name.filter(|name| !name.is_empty())
        };
        let thread = name(&tid).or(name(&pid));
        let process = name(&pid).or(thread);
        let nameless = match pid {
            0 => "swapper".to_owned(),
            // What the kernel does once it has no number any more is of -1.
            pid => format!(":{}", pid as i32),
        };
        let (process, thread) = (process.unwrap_or(&nameless), thread.unwrap_or(&nameless));
        let started = self.processes.get(&pid).map_or(0, |it| it.started);
        let process = intake.process(pid, Timestamp(started), process);
        let started = known.map_or(0, |it| it.started);
        let id = intake.thread_of(process, tid, Timestamp(started), thread);
        if let Some(known) = self.threads.get_mut(&tid)
            && known.pid == pid
        {
            known.id = Some(id);
        }
        id
    }
}
