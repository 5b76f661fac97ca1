//! Stack samples as calls: samples wait for the names of their frames, then differ from the last.
//!
//! Names come after the samples that need them (docs/adr/0003). Events wait in their order until all
//! frames of the first sample among them have an answer, or a second has passed; then frames without
//! one are known by module and offset. The user's stack counts, with inlined functions; kernel frames
//! on top of it don't.

use std::collections::VecDeque;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::methods::Methods;
use super::stream::Stream;
use profiler_model::*;
use profiler_report::derive::{CallChange, CallDiffer};

/// How long a sample waits for names.
const MAX_WAIT_NS: u64 = 1_000_000_000;

/// Most events that wait.
const MAX_WAITING: usize = 1 << 16;

/// Most methods of the paths that are remembered.
const MAX_REMEMBERED: usize = 1 << 22;

/// Most frames of a stack that are looked at, innermost first.
const MAX_FRAMES: usize = 1 << 12;

/// Events that wait, and what the last samples showed.
#[derive(Default)]
pub(super) struct Samples {
    waiting: VecDeque<Event>,
    now: Timestamp,
    /// Methods of stacks all of whose frames have names, outermost first.
    paths: FxHashMap<StackId, Arc<[u32]>>,
    remembered: usize,
    differ: CallDiffer<u16, u32>,
}

impl Samples {
    /// Whether an event can be taken at once; else it is kept until [`Samples::next`] gives it back.
    pub(super) fn admit(&mut self, event: &Event, tables: &Tables) -> bool {
        self.now = self.now.max(event.at());
        if self.waiting.is_empty() && self.is_ready(event, tables) {
            return true;
        }
        self.waiting.push_back(event.clone());
        false
    }

    /// The time is at least this.
    pub(super) fn advance(&mut self, now: Timestamp) {
        self.now = self.now.max(now);
    }

    /// The time of the first event that waits.
    pub(super) fn waits(&self) -> Option<Timestamp> {
        self.waiting.front().map(Event::at)
    }

    /// The next event that need not wait any more. With `all` none has to.
    pub(super) fn next(&mut self, tables: &Tables, all: bool) -> Option<Event> {
        let first = self.waiting.front()?;
        let waited = self.now.since(first.at()) >= MAX_WAIT_NS;
        let full = self.waiting.len() > MAX_WAITING;
        match all || waited || full || self.is_ready(first, tables) {
            true => self.waiting.pop_front(),
            false => None,
        }
    }

    /// Whether the event that came first has waited too long: a cheap look without names.
    pub(super) fn is_overdue(&self) -> bool {
        self.waiting.len() > MAX_WAITING
            || self
                .waiting
                .front()
                .is_some_and(|first| self.now.since(first.at()) >= MAX_WAIT_NS)
    }

    fn is_ready(&self, event: &Event, tables: &Tables) -> bool {
        let Event::Sample(Sample {
            user: Some(user), ..
        }) = event
        else {
            return true;
        };
        self.paths.contains_key(user)
            || tables
                .frames_of(Some(*user))
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

    /// Forgets what ids meant; how many events waited still and are lost.
    pub(super) fn new_tables(&mut self) -> u64 {
        let lost = self.waiting.len() as u64;
        self.waiting.clear();
        self.paths.clear();
        self.remembered = 0;
        lost
    }
}
