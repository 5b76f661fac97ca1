//! Traced calls summed up, for formats that show sums.
//!
//! Events -> calls and their nanoseconds per process and chain of traced callers. What does not belong here: calls one
//! by one (`nest`).

use std::collections::BTreeMap;

use crate::derive::CallTable;
use crate::derive::calls::{CallLimits, Context, Part};
use profiler_model::*;

/// So deep and so many chains per process that hardly any program has more.
const LIMITS: CallLimits = CallLimits {
    contexts: 1 << 18,
    depth: 1 << 10,
    slowest: 0,
    argument_bytes: 0,
};

/// Calls of each process.
#[derive(Default)]
pub(super) struct CallSums(BTreeMap<Option<ProcessId>, CallTable>);

/// Calls with the same callers.
pub(super) struct Chain<'a> {
    /// The function called, then its callers.
    pub(super) functions: &'a [FunctionId],
    pub(super) calls: u64,
    /// Without that of the traced calls in them.
    pub(super) self_ns: u64,
}

impl CallSums {
    pub(super) fn event(&mut self, event: &Event, tables: &Tables) {
        let thread = match event {
            Event::Call(call) => call.thread,
            Event::Process(event) => event.thread,
            _ => return,
        };
        let process = tables.thread(thread).map(|thread| thread.process);
        let table = match event {
            Event::Call(_) => {
                let new = || CallTable::new(LIMITS);
                self.0.entry(process).or_insert_with(new)
            }
            _ => match self.0.get_mut(&process) {
                Some(table) => table,
                None => return,
            },
        };
        table.add(event, tables, Part::Counted);
    }

    /// Whether there was any.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Calls that were entered, and not left before the end.
    pub(super) fn open(&self) -> u64 {
        let functions = self.0.values().flat_map(CallTable::functions);
        functions.map(|(_, calls)| calls.open()).sum()
    }

    /// Calls whose chains were too many or too deep to be told apart: they are in no chain.
    pub(super) fn folded(&self) -> u64 {
        self.0.values().map(CallTable::folded).sum()
    }

    /// Each chain of each process, callers before those they call.
    pub(super) fn chains<E>(
        &self,
        mut take: impl FnMut(Option<ProcessId>, Chain<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut functions = Vec::new();
        for (&process, table) in &self.0 {
            let table = table.settled();
            let contexts = table.contexts();
            for context in contexts.iter().filter(|context| context.calls > 0) {
                let parent = |context: &&Context| contexts.get(context.parent?);
                let chain = std::iter::successors(Some(context), parent);
                functions.clear();
                functions.extend(chain.filter_map(|context| context.function));
                let chain = Chain {
                    functions: &functions,
                    calls: context.calls,
                    self_ns: context.self_ns,
                };
                take(process, chain)?;
            }
        }
        Ok(())
    }
}
