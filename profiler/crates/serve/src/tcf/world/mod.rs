//! What clients see: processes, threads, what is mapped where, and what addresses mean.
//!
//! Batches of a session -> contexts, the changes among them, and names. Two epochs of definitions are
//! kept at most, so that memory stays bounded; what has ended is kept for a while. Addresses are those
//! of a process's memory, the kernel's as its image is linked (see `places`). What does not belong
//! here: JSON, and what is sampled for whom (`profile`).

mod changes;
mod code;
mod contexts;
mod fold;
mod functions;
mod generation;
mod lookup;
mod memory;
mod places;
mod questions;
#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;

use self::code::Modules;
use self::contexts::Contexts;
use self::generation::Generation;
use self::memory::{Memory, Range};
use self::places::{Space, Texts};
use self::questions::Questions;
use crate::front::{Question, Replay};
use crate::machine::Life;
use profiler_model::*;

/// A context: one life of a process or thread. Never given out again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct ContextKey(pub(super) u64);

/// A process or a thread.
#[derive(Clone, Debug)]
pub(super) struct Context {
    /// As clients know it: `P100`, `P100.101`; later lives of an id that are shown beside it have
    /// `@2`, ... behind them.
    pub(super) id: String,
    /// The process; itself, if it is one.
    pub(super) process: ContextKey,
    /// Of the process.
    pub(super) life: Life,
    /// The thread; none for a process.
    pub(super) thread: Option<Tid>,
    /// Its name (comm).
    pub(super) name: String,
    /// The process that forked it.
    pub(super) parent: Option<ContextKey>,
    /// It has ended.
    pub(super) ended: bool,
    /// Clients know that, or never knew of the context: until then it is to them as if it lived.
    pub(super) gone: bool,
    /// It was in an answer to a client.
    pub(super) seen: Cell<bool>,
}

/// What became of contexts since it was asked for last: what was removed was so before what was added
/// came, which may have the same id. One that came and went is in none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Changes {
    /// New ones, processes before their threads.
    pub(super) added: Vec<ContextKey>,
    /// With a new name or program.
    pub(super) changed: Vec<ContextKey>,
    /// Ids of those that have ended, threads before their processes.
    pub(super) removed: Vec<String>,
}

/// What is mapped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mapped {
    /// First address.
    pub(super) start: u64,
    /// First address behind it.
    pub(super) end: u64,
    /// Offset in the file.
    pub(super) offset: u64,
    /// The file.
    pub(super) path: String,
}

/// What an address means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Found {
    /// Name of the function that is really there, not of one that is inlined into it.
    pub(super) name: String,
    /// Where that begins, if that is known and means this function, too; no other one begins there.
    pub(super) start: Option<u64>,
    /// Its length, if that and where it begins are known.
    pub(super) size: Option<u64>,
    /// File and line of the innermost inlined function there, if known.
    pub(super) source: Option<(String, u32)>,
    /// File and line of the function that is really there, if known.
    pub(super) own: Option<(String, u32)>,
}

/// What is known of an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Lookup<T = Found> {
    /// This.
    Found(T),
    /// There is nothing, or no name.
    Missing,
    /// It is being asked for; look again when more is known.
    Waiting,
}

/// All that clients can see of a session.
pub(super) struct World {
    replay: Option<Replay>,
    modules: Modules,
    texts: Texts,
    contexts: Contexts,
    present: Generation,
    previous: Option<Generation>,
    /// Number of the epoch that is folded into the present generation.
    epoch: Option<u32>,
    memories: FxHashMap<ContextKey, Memory>,
    /// Mappings in all of them.
    mapped: usize,
    spaces: FxHashMap<ContextKey, Space>,
    kernel: Space,
    /// Addresses that were given out in all of them.
    places: usize,
    questions: Questions,
    /// The present, in a replay that takes its time.
    time: Timestamp,
    /// What is announced and has not happened yet then.
    agenda: BTreeMap<(Timestamp, u64), Due>,
    agendas: u64,
    /// A session told of itself: what it has not told of when this time has passed is gone.
    census: Option<Option<Instant>>,
    generation: u64,
    turns: u64,
    undefined: u64,
    refused: u64,
}

/// What happens later.
enum Due {
    Birth(ContextKey),
    Mapping(ContextKey, Range),
}

impl World {
    /// Of what happens now, or of a capture. What has ended is known for `afterlife` more.
    pub(super) fn new(replay: Option<Replay>, afterlife: Duration) -> World {
        World {
            replay,
            modules: Modules::default(),
            texts: Texts::default(),
            contexts: Contexts::new(replay, afterlife),
            present: Generation::default(),
            previous: None,
            epoch: None,
            memories: FxHashMap::default(),
            mapped: 0,
            spaces: FxHashMap::default(),
            kernel: Space::of_kernel(),
            places: 0,
            questions: Questions::default(),
            time: Timestamp(0),
            agenda: BTreeMap::new(),
            agendas: 0,
            census: None,
            generation: 0,
            turns: 0,
            undefined: 0,
            refused: 0,
        }
    }

    /// What ids of events mean.
    pub(super) fn tables(&self) -> &Tables {
        &self.present.tables
    }

    /// Counts up when [`World::tables`] have begun anew: ids kept from before mean nothing any more.
    pub(super) fn turns(&self) -> u64 {
        self.turns
    }

    /// Definitions and events left out because they used what is not defined.
    pub(super) fn undefined(&self) -> u64 {
        self.undefined
    }

    /// Definitions, contexts and mappings that there was no room for.
    pub(super) fn refused(&self) -> u64 {
        self.refused + self.contexts.refused
    }

    /// What has changed.
    pub(super) fn changes(&mut self) -> Changes {
        self.contexts.changes()
    }

    /// Counts up with each batch, acknowledgement and tick that may answer something.
    pub(super) fn generation(&self) -> u64 {
        self.generation
    }

    /// The context that clients call so; the living one, if there are several.
    pub(super) fn find(&self, id: &str) -> Option<ContextKey> {
        self.contexts.find(id)
    }

    /// A context.
    pub(super) fn context(&self, key: ContextKey) -> Option<&Context> {
        self.contexts.get(key)
    }

    /// All processes that are shown, in order of their ids.
    pub(super) fn processes(&self) -> Vec<ContextKey> {
        self.contexts.processes()
    }

    /// Threads of a process, in order of their ids.
    pub(super) fn threads(&self, process: ContextKey) -> Vec<ContextKey> {
        self.contexts.threads(process)
    }

    /// All processes that clients know of, in order of their ids: those that are shown, and those that have ended
    /// without their being told.
    pub(super) fn known_processes(&self) -> Vec<ContextKey> {
        self.contexts.with_untold(None, self.contexts.processes())
    }

    /// Threads of a process that clients know of, likewise.
    pub(super) fn known_threads(&self, process: ContextKey) -> Vec<ContextKey> {
        let threads = self.contexts.threads(process);
        self.contexts.with_untold(Some(process), threads)
    }

    /// Clients are told of the end of the context with this id.
    pub(super) fn told(&mut self, id: &str) {
        self.contexts.told(id);
    }

    /// What definitions say of a process: executable, command, user, cgroup, container. Without its parent, which
    /// [`Context::parent`] is.
    pub(super) fn process(&self, process: ContextKey) -> Option<&Process> {
        self.contexts.definition(process)
    }

    /// What a process runs in, if that is known.
    pub(super) fn container(&self, process: ContextKey) -> Option<&Container> {
        self.present
            .tables
            .container(self.process(process)?.container?)
    }

    /// The contexts of a thread of [`World::tables`]: its process, itself.
    pub(super) fn contexts_of(&self, thread: ThreadId) -> Option<(ContextKey, ContextKey)> {
        let (process, thread) = self.present.thread(thread)?;
        self.contexts.get(thread).map(|_| (process, thread))
    }

    /// Keeps what is known of a process although it has ended, or no longer: each of the two is called
    /// as often as the other.
    pub(super) fn hold(&mut self, process: ContextKey, hold: bool) {
        self.contexts.hold(process, hold);
        self.drop_forgotten();
    }

    /// What is mapped into a process, as far as that was told.
    pub(super) fn mappings(&self, process: ContextKey) -> Vec<Mapped> {
        let process = self.contexts.get(process).map(|context| context.process);
        let memory = process.and_then(|process| self.memories.get(&process));
        memory.map_or_else(Vec::new, Memory::list)
    }

    /// Questions that arose since the last call.
    pub(super) fn questions(&mut self) -> Vec<Question> {
        let contexts = &self.contexts;
        self.questions
            .take(|key| contexts.get(key).map(|context| context.life))
    }

    /// A question was answered, as far as it will be at once.
    pub(super) fn acknowledged(&mut self, question: u64) {
        if self.questions.answered(question) {
            self.generation += 1;
        }
    }
}
