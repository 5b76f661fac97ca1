//! Stack samples as calls: a stack becomes a path of methods, which differs from the last.
//!
//! Samples have waited for the names of their frames; frames without one are known by module and offset.
//! The user's stack counts, with inlined functions; kernel frames on top of it don't.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::methods::Methods;
use super::stream::Stream;
use crate::derive::{CallChange, CallDiffer};
use profiler_model::*;

/// Most methods of the paths that are remembered.
const MAX_REMEMBERED: usize = 1 << 22;

/// Most frames of a stack that are looked at, innermost first.
const MAX_FRAMES: usize = 1 << 12;

/// What the last samples showed.
#[derive(Default)]
pub(super) struct Samples {
    /// Methods of stacks all of whose frames have names, outermost first.
    paths: FxHashMap<StackId, Arc<[u32]>>,
    remembered: usize,
    differ: CallDiffer<u16, u32>,
}

impl Samples {
    /// Whether all frames of a stack have an answer.
    pub(super) fn is_named(&self, user: StackId, tables: &Tables) -> bool {
        self.paths.contains_key(&user)
            || tables
                .frames_of(Some(user))
                .take(MAX_FRAMES)
                .all(|frame| tables.symbol(frame).is_some())
    }

    /// The methods of a stack, outermost first.
    pub(super) fn path(
        &mut self,
        stack: StackId,
        tables: &Tables,
        methods: &mut Methods,
        stream: &mut Stream,
        out: &mut Vec<u8>,
    ) -> Arc<[u32]> {
        if let Some(path) = self.paths.get(&stack) {
            return path.clone();
        }
        let mut path = Vec::new();
        let mut named = true;
        for frame in tables.frames_of(Some(stack)).take(MAX_FRAMES) {
            match tables.lines(frame) {
                [] => {
                    named = false;
                    path.extend(methods.place(frame, tables, stream, out));
                }
                lines => path.extend(
                    lines
                        .iter()
                        .filter_map(|line| methods.function(line.function, tables, stream, out)),
                ),
            }
        }
        path.reverse();
        let path: Arc<[u32]> = path.into();
        // A name that comes later is to be used then.
        if named {
            if self.remembered > MAX_REMEMBERED {
                self.paths.clear();
                self.remembered = 0;
            }
            self.remembered += path.len() + 1;
            self.paths.insert(stack, path.clone());
        }
        path
    }

    /// Appends what a sample changes.
    pub(super) fn differ(
        &mut self,
        thread: u16,
        at: Timestamp,
        path: &[u32],
        changes: &mut Vec<CallChange<u32>>,
    ) {
        self.differ
            .sample(thread, at, path, |change| changes.push(change));
    }

    /// Forgets what is open on a thread.
    pub(super) fn end(&mut self, thread: u16, at: Timestamp) {
        self.differ.end(thread, at, |_| ());
    }

    /// Forgets what is open.
    pub(super) fn break_data(&mut self) {
        self.differ.clear();
    }

    /// Forgets what ids meant.
    pub(super) fn new_tables(&mut self) {
        self.paths.clear();
        self.remembered = 0;
    }
}
