//! Processes and threads that clients can look at: definitions and what becomes of processes -> who is there.
//!
//! A life is a process id and when it began, so that one which has got the id of another is not taken for it. What
//! does not belong here: how clients are told (the protocols).

use std::collections::BTreeMap;

use profiler_model::sorting::InOrder;
use profiler_model::*;
use rustix::time::{ClockId, clock_gettime};

use crate::machine::Life;

/// A thread of a life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ThreadKey {
    pub(crate) process: Life,
    pub(crate) tid: Tid,
}

/// Who is there.
#[derive(Debug, Default)]
pub(crate) struct World {
    pub(crate) tables: Tables,
    epoch: Option<(u32, Epoch)>,
    processes: BTreeMap<Life, Present>,
    /// The present life of a process id.
    lives: BTreeMap<Pid, Life>,
    /// Of a capture: what has ended can be looked at, and ids stay what they are.
    is_capture: bool,
    /// Counts changes of who is there.
    pub(crate) changes: u64,
    /// Of the last event.
    pub(crate) at: Timestamp,
    /// Definitions or events that could not be understood.
    pub(crate) undefined: u64,
    /// Definitions of this epoch.
    defined: usize,
}

#[derive(Debug)]
struct Present {
    id: ProcessId,
    threads: BTreeMap<Tid, ThreadId>,
}

/// So many definitions of an epoch are enough.
const MANY: usize = 1 << 20;

impl World {
    pub(crate) fn new(is_capture: bool) -> World {
        World {
            is_capture,
            ..World::default()
        }
    }

    /// Whether ids of this epoch are other ones than those up to now.
    pub(crate) fn is_new(&self, epoch: u32) -> bool {
        self.epoch.as_ref().is_none_or(|(known, _)| *known != epoch)
    }

    /// Takes definitions.
    pub(crate) fn define(&mut self, epoch: u32, definitions: Vec<Definition>) {
        if self.is_new(epoch) {
            self.epoch = Some((epoch, Epoch::default()));
            self.defined = 0;
            if !self.is_capture {
                // An epoch begins with all that lives.
                self.tables = Tables::default();
                self.processes.clear();
                self.lives.clear();
                self.changes += 1;
            }
        }
        self.defined += definitions.len();
        let Some((_, ids)) = &mut self.epoch else {
            return;
        };
        for definition in definitions {
            let process = match &definition {
                Definition::Process(id, _) => Some(*id),
                _ => None,
            };
            let thread = match &definition {
                Definition::Thread(id, _) => Some(*id),
                _ => None,
            };
            if ids.define(&mut self.tables, definition).is_err() {
                self.undefined += 1;
                continue;
            }
            if let Some(id) = process.and_then(|id| Epoch::process(ids, id))
                && let Some(process) = self.tables.process(id)
            {
                let life = Life {
                    pid: process.pid,
                    started: process.started,
                };
                self.lives.insert(life.pid, life);
                let threads = BTreeMap::new();
                let present = Present { id, threads };
                self.processes.entry(life).or_insert(present).id = id;
                self.changes += 1;
            }
            if let Some(id) = thread.and_then(|id| Epoch::thread(ids, id))
                && let Some(key) = key(&self.tables, id)
                && let Some(present) = self.processes.get_mut(&key.process)
            {
                present.threads.insert(key.tid, id);
                self.changes += 1;
            }
        }
    }

    /// Takes an event; gives it back in terms of the tables.
    pub(crate) fn event(&mut self, event: Event) -> Option<Event> {
        let Some((_, ids)) = &mut self.epoch else {
            return None;
        };
        let Ok(event) = ids.event(event) else {
            self.undefined += 1;
            return None;
        };
        self.at = self.at.max(event.at());
        if let Event::Process(ProcessEvent {
            thread,
            change: ProcessChange::Exited,
            ..
        }) = &event
            && !self.is_capture
            && let Some(key) = key(&self.tables, *thread)
            && let Some(present) = self.processes.get_mut(&key.process)
        {
            present.threads.remove(&key.tid);
            self.changes += 1;
            if present.threads.is_empty() {
                self.processes.remove(&key.process);
                if self.lives.get(&key.process.pid) == Some(&key.process) {
                    self.lives.remove(&key.process.pid);
                }
            }
        }
        Some(event)
    }

    /// How far the time of a capture has come.
    pub(crate) fn now_ns(&self) -> u64 {
        self.at.0.max(self.tables.session.started.0)
    }

    /// Whose thread it is.
    pub(crate) fn thread_of(&self, id: ThreadId) -> Option<ThreadKey> {
        key(&self.tables, id)
    }

    /// All that are there.
    pub(crate) fn processes(&self) -> impl Iterator<Item = (Life, &Process)> {
        let present = self.processes.iter();
        present.filter_map(|(life, it)| Some((*life, self.tables.process(it.id)?)))
    }

    /// One that is there.
    pub(crate) fn process(&self, life: Life) -> Option<&Process> {
        self.tables.process(self.processes.get(&life)?.id)
    }

    /// Who has a process id now.
    pub(crate) fn life(&self, pid: Pid) -> Option<Life> {
        self.lives.get(&pid).copied()
    }

    /// Threads of a process that are there, the main one first.
    pub(crate) fn threads(&self, life: Life) -> Vec<(ThreadKey, &Thread)> {
        let present = self.processes.get(&life);
        let threads = present.into_iter().flat_map(|it| &it.threads);
        let threads = threads.filter_map(|(tid, id)| {
            let process = life;
            Some((ThreadKey { process, tid: *tid }, self.tables.thread(*id)?))
        });
        let mut threads: Vec<_> = threads.collect();
        threads.order_by_key(|(key, _)| (key.tid.0 != life.pid.0, key.tid));
        threads
    }

    /// A thread that is there.
    pub(crate) fn thread(&self, key: ThreadKey) -> Option<&Thread> {
        let id = self.processes.get(&key.process)?.threads.get(&key.tid)?;
        self.tables.thread(*id)
    }

    /// Whether ids should start anew.
    pub(crate) fn wants_new_epoch(&self) -> bool {
        !self.is_capture && self.defined > MANY
    }

    /// Whether calls were traced in the capture.
    pub(crate) fn has_traced(&self) -> bool {
        self.tables.all_traced().next().is_some()
    }
}

/// The clock of events, now.
pub(crate) fn monotonic_ns() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
}

fn key(tables: &Tables, id: ThreadId) -> Option<ThreadKey> {
    let thread = tables.thread(id)?;
    let process = tables.process(thread.process)?;
    Some(ThreadKey {
        process: Life {
            pid: process.pid,
            started: process.started,
        },
        tid: thread.tid,
    })
}
