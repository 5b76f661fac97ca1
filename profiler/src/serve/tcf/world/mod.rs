//! What clients see: processes, threads, what is mapped where, and what addresses mean.
//!
//! Batches of a session -> contexts, the changes among them, and names. Two epochs of definitions are
//! kept at most, so that memory stays bounded; what has ended is kept for a while. Addresses are those
//! of a process's memory, the kernel's as its image is linked (see `places`). What does not belong
//! here: JSON, and what is sampled for whom (`profile`).

use std::time::Instant;

use super::options::{Question, Replay};
use crate::model::*;
use crate::serve::machine::Life;

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
}

/// What became of contexts since it was asked for last. One that came and went is in none.
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
    /// Where that begins, and how long it is, as far as that is known; else the address itself and 1.
    pub(super) start: u64,
    /// Its length.
    pub(super) size: u64,
    /// File and line of the innermost inlined function there, if known.
    pub(super) source: Option<(String, u32)>,
}

/// What is known of an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Lookup {
    /// This.
    Found(Found),
    /// There is nothing, or no name.
    Missing,
    /// It is being asked for; look again when more is known.
    Waiting,
}

/// See the module.
pub(super) struct World {
    tables: Tables,
}

impl World {
    /// Of what happens now, or of a capture.
    pub(super) fn new(_replay: Option<Replay>) -> World {
        World {
            tables: Tables::default(),
        }
    }

    /// Folds definitions of an epoch.
    pub(super) fn define(&mut self, _epoch: u32, _definitions: Vec<Definition>) {}

    /// Takes an event of the epoch that was defined last; gives it with ids of [`World::tables`].
    pub(super) fn event(&mut self, _event: Event) -> Option<Event> {
        None
    }

    /// What ids of events mean.
    pub(super) fn tables(&self) -> &Tables {
        &self.tables
    }

    /// Counts up when [`World::tables`] have begun anew: ids kept from before mean nothing any more.
    pub(super) fn turns(&self) -> u64 {
        0
    }

    /// Whether ids should start anew: the tables have grown too large.
    pub(super) fn wants_new_epoch(&self) -> bool {
        false
    }

    /// Forgets what ended long ago.
    pub(super) fn tick(&mut self, _now: Instant) {}

    /// What has changed.
    pub(super) fn changes(&mut self) -> Changes {
        Changes::default()
    }

    /// Counts up with each batch, acknowledgement and tick that may answer something.
    pub(super) fn generation(&self) -> u64 {
        0
    }

    /// The context that clients call so; the living one, if there are several.
    pub(super) fn find(&self, _id: &str) -> Option<ContextKey> {
        None
    }

    /// A context.
    pub(super) fn context(&self, _key: ContextKey) -> Option<&Context> {
        None
    }

    /// All processes that are shown, in order of their ids.
    pub(super) fn processes(&self) -> Vec<ContextKey> {
        Vec::new()
    }

    /// Threads of a process, in order of their ids.
    pub(super) fn threads(&self, _process: ContextKey) -> Vec<ContextKey> {
        Vec::new()
    }

    /// What definitions say of a process: executable, command, user, cgroup.
    pub(super) fn process(&self, _process: ContextKey) -> Option<&Process> {
        None
    }

    /// The contexts of a thread of [`World::tables`]: its process, itself.
    pub(super) fn contexts_of(&self, _thread: ThreadId) -> Option<(ContextKey, ContextKey)> {
        None
    }

    /// Keeps what is known of a process although it has ended, or no longer.
    pub(super) fn hold(&mut self, _process: ContextKey, _hold: bool) {}

    /// Where a process has a frame: an address that [`World::symbol`] knows in this process. A frame
    /// without an address of its own there gets one of the reserved range.
    pub(super) fn address_of(&mut self, _process: ContextKey, _frame: FrameId) -> u64 {
        0
    }

    /// What is mapped into a process, as far as that was told.
    pub(super) fn mappings(&self, _process: ContextKey) -> Vec<Mapped> {
        Vec::new()
    }

    /// What is at an address of a process. Asks for it, if that is of use (see [`World::questions`]).
    pub(super) fn symbol(&mut self, _process: ContextKey, _address: u64) -> Lookup {
        Lookup::Missing
    }

    /// Questions that arose since the last call.
    pub(super) fn questions(&mut self) -> Vec<Question> {
        Vec::new()
    }

    /// A question was answered, as far as it will be at once.
    pub(super) fn acknowledged(&mut self, _question: u64) {}
}
