//! Who is who in an epoch: definitions -> lives of processes, threads, sources of samples.
//!
//! A fold of the few definitions by which events are told apart; names, stacks and the rest pass by. Ids
//! are those of the session's epoch. What does not belong here: who gets what (`share`).

use rustc_hash::FxHashMap;

use profiler_model::*;

/// One life of a process: its id and its start, exact as it was defined.
pub(super) type Life = (Pid, Timestamp);

/// A process that was defined, and who its parent is, if that is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Born {
    pub(super) life: Life,
    pub(super) parent: Option<Life>,
}

/// Lives of processes and threads, and sources of samples, by the ids of the present epoch.
#[derive(Debug, Default)]
pub(super) struct Lives {
    epoch: Option<u32>,
    processes: FxHashMap<ProcessId, Life>,
    threads: FxHashMap<ThreadId, (ProcessId, Tid)>,
    sources: FxHashMap<SourceId, Source>,
}

impl Lives {
    /// Takes the definitions of a batch; the processes that it defines, parents first.
    pub(super) fn take(&mut self, batch: &Batch) -> Vec<Born> {
        if self.epoch != Some(batch.epoch) {
            *self = Lives {
                epoch: Some(batch.epoch),
                ..Lives::default()
            };
        }
        let mut born = Vec::new();
        for definition in &batch.definitions {
            match definition {
                Definition::Process(id, process) => {
                    let life = (process.pid, process.started);
                    self.processes.insert(*id, life);
                    let parent = process.parent.and_then(|id| self.processes.get(&id));
                    born.push(Born {
                        life,
                        parent: parent.copied(),
                    });
                }
                Definition::Thread(id, thread) => {
                    self.threads.insert(*id, (thread.process, thread.tid));
                }
                Definition::Source(id, source) => {
                    self.sources.insert(*id, source.clone());
                }
                _ => {}
            }
        }
        born
    }

    /// Whose thread it is.
    pub(super) fn of(&self, thread: ThreadId) -> Option<(Life, Tid)> {
        let (process, tid) = self.threads.get(&thread)?;
        Some((*self.processes.get(process)?, *tid))
    }

    /// A source of samples.
    pub(super) fn source(&self, id: SourceId) -> Option<&Source> {
        self.sources.get(&id)
    }

    /// All sources of the epoch.
    pub(super) fn sources(&self) -> impl Iterator<Item = (SourceId, &Source)> {
        self.sources.iter().map(|(id, source)| (*id, source))
    }
}
