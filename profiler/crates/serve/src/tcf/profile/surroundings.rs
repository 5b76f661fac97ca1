//! What profiles ask of the world, as a trait, so that tests can play it.
//!
//! What does not belong here: anything that profiles do with the answers.

use crate::tcf::world::{Context, ContextKey, World};
use profiler_model::*;

/// Contexts and where their frames are. See [`World`] for each.
pub(in crate::tcf) trait Surroundings {
    /// What ids of events mean.
    fn tables(&self) -> &Tables;
    /// Counts up when [`Surroundings::tables`] have begun anew: ids from before mean nothing any more.
    fn turns(&self) -> u64;
    /// The context that clients call so; the living one, if there are several.
    fn find(&self, id: &str) -> Option<ContextKey>;
    /// A context.
    fn context(&self, key: ContextKey) -> Option<&Context>;
    /// All processes that are shown.
    fn processes(&self) -> Vec<ContextKey>;
    /// The process and the thread of a thread of the tables.
    fn contexts_of(&self, thread: ThreadId) -> Option<(ContextKey, ContextKey)>;
    /// Path of a process's cgroup.
    fn cgroup(&self, process: ContextKey) -> Option<&str>;
    /// Path of the cgroup at which the container of a process begins, if it runs in one.
    fn container(&self, process: ContextKey) -> Option<&str>;
    /// Whether nothing is known of a process's program: the kernel's own have none.
    fn has_no_program(&self, process: ContextKey) -> bool;
    /// Keeps what is known of a process although it has ended, or no longer.
    fn hold(&mut self, process: ContextKey, hold: bool);
    /// Where a process has a frame.
    fn address_of(&mut self, process: ContextKey, frame: FrameId) -> u64;
}

impl Surroundings for World {
    fn tables(&self) -> &Tables {
        World::tables(self)
    }

    fn turns(&self) -> u64 {
        World::turns(self)
    }

    fn find(&self, id: &str) -> Option<ContextKey> {
        World::find(self, id)
    }

    fn context(&self, key: ContextKey) -> Option<&Context> {
        World::context(self, key)
    }

    fn processes(&self) -> Vec<ContextKey> {
        World::processes(self)
    }

    fn contexts_of(&self, thread: ThreadId) -> Option<(ContextKey, ContextKey)> {
        World::contexts_of(self, thread)
    }

    fn cgroup(&self, process: ContextKey) -> Option<&str> {
        let cgroup = self.process(process)?.cgroup?;
        Some(World::tables(self).string(cgroup))
    }

    fn container(&self, process: ContextKey) -> Option<&str> {
        let container = World::container(self, process)?;
        Some(World::tables(self).string(container.cgroup))
    }

    fn has_no_program(&self, process: ContextKey) -> bool {
        self.process(process)
            .is_some_and(|process| process.executable.is_none() && process.command.is_none())
    }

    fn hold(&mut self, process: ContextKey, hold: bool) {
        World::hold(self, process, hold);
    }

    fn address_of(&mut self, process: ContextKey, frame: FrameId) -> u64 {
        World::address_of(self, process, frame)
    }
}
