//! Whose stack a traced call is on: a thread's or a goroutine's.
//!
//! [`Call`] -> who it nests with. Calls of one owner are strictly nested; those of two are not, though one thread runs both. No
//! units, no times. What does not belong here: which thread a call is told of ([`Call::thread`]).

use std::borrow::Cow;

use super::{Call, ProcessId, Tables, ThreadId};

/// Whose stack a call is on. Threads come before goroutines in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum StackOwner {
    /// The thread's own stack.
    Thread(ThreadId),
    /// A goroutine of a process, whatever thread runs it. The number is that of [`Call::stack`].
    Goroutine(Option<ProcessId>, u32),
}

impl StackOwner {
    /// Whose stack a call is on.
    pub fn of(call: &Call, tables: &Tables) -> StackOwner {
        match call.stack {
            0 => StackOwner::Thread(call.thread),
            number => {
                let thread = tables.thread(call.thread);
                StackOwner::Goroutine(thread.map(|thread| thread.process), number)
            }
        }
    }

    /// Whose process it is of.
    pub fn process(self, tables: &Tables) -> Option<ProcessId> {
        match self {
            StackOwner::Thread(thread) => Some(tables.thread(thread)?.process),
            StackOwner::Goroutine(process, _) => process,
        }
    }

    /// The name of the thread, or `goroutine 7`.
    pub fn name(self, tables: &Tables) -> Cow<'_, str> {
        match self {
            StackOwner::Thread(thread) => match tables.thread(thread) {
                Some(thread) => tables.string(thread.name).into(),
                None => "unknown".into(),
            },
            StackOwner::Goroutine(_, number) => format!("goroutine {number}").into(),
        }
    }
}
