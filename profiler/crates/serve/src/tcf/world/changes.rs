//! What became of contexts since clients were told last.
//!
//! Comings, goings and changes -> [`Changes`], each context once. What does not belong here: who
//! tells clients (`services`).

use rustc_hash::FxHashMap;

use super::{Changes, Context, ContextKey};

/// Most ends that are kept to be told; more than that nobody waits for.
const MAX_REMOVED: usize = 200_000;

#[derive(Debug)]
enum Change {
    Added,
    Changed,
    /// A process or not, and what it was called.
    Removed(bool, String),
}

/// Contexts whose changes clients are not told of yet.
#[derive(Debug, Default)]
pub(super) struct Pending {
    changes: FxHashMap<ContextKey, Change>,
    removed: usize,
}

impl Pending {
    /// A context has come, or come back.
    pub(super) fn came(&mut self, key: ContextKey) {
        match self.changes.get_mut(&key) {
            Some(change @ Change::Removed(..)) => {
                *change = Change::Changed;
                self.removed -= 1;
            }
            Some(Change::Added | Change::Changed) => {}
            None => {
                self.changes.insert(key, Change::Added);
            }
        }
    }

    /// A context has another name or program.
    pub(super) fn changed(&mut self, key: ContextKey) {
        self.changes.entry(key).or_insert(Change::Changed);
    }

    /// A context has gone; whether that will be told. One that nobody has heard of is not missed.
    pub(super) fn went(&mut self, key: ContextKey, context: &Context) -> bool {
        let is_new = matches!(self.changes.remove(&key), Some(Change::Added));
        let is_told = (!is_new || context.seen.get()) && self.removed < MAX_REMOVED;
        if is_told {
            self.removed += 1;
            let change = Change::Removed(context.thread.is_none(), context.id.clone());
            self.changes.insert(key, change);
        }
        is_told
    }

    /// All of it.
    pub(super) fn take(&mut self) -> Changes {
        self.removed = 0;
        let mut changes = Changes::default();
        let mut removed = Vec::new();
        for (key, change) in std::mem::take(&mut self.changes) {
            match change {
                Change::Added => changes.added.push(key),
                Change::Changed => changes.changed.push(key),
                Change::Removed(process, id) => removed.push((process, key, id)),
            }
        }
        // Keys count up, and a process has its own before its threads.
        changes.added.sort_unstable();
        changes.changed.sort_unstable();
        removed.sort_unstable();
        changes.removed = removed.into_iter().map(|(.., id)| id).collect();
        changes
    }
}
