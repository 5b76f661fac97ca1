//! Calls of one stack that have not ended, and ended calls whose callers are still to come.
//!
//! Input: entries, exits and whole calls of a stack; output: in which context each call ran. Calls
//! that are recorded whole, at their end, come before their callers: they wait until a call ends
//! whose caller is known.
//!
//! A thread that runs several stacks (coroutines) has their calls here together: an exit finds its
//! entry by when that was. A goroutine has its own, whatever threads run it.

use super::contexts::{Contexts, Position};
use profiler_model::*;

/// Most open calls of a thread; beyond it the oldest are forgotten.
const MAX_OPEN: usize = 1 << 16;
/// Most whole calls of a thread that wait for their callers.
const MAX_WAITING: usize = 1 << 16;

/// A call between its entry and its exit.
#[derive(Clone, Debug)]
pub(super) struct Open {
    pub(super) depth: u32,
    pub(super) function: FunctionId,
    pub(super) began: Timestamp,
    pub(super) position: Position,
    /// The same function is open outside of it.
    pub(super) recursive: bool,
    /// What ended calls of the same function in it have added to its total already.
    pub(super) within_ns: u64,
    pub(super) arguments: Option<Box<[Value]>>,
}

/// A call that has ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ended {
    pub(super) depth: u32,
    pub(super) function: FunctionId,
    pub(super) began: Timestamp,
    pub(super) total_ns: u64,
    pub(super) self_ns: u64,
    pub(super) counted: bool,
}

#[derive(Clone, Debug, Default)]
pub(super) struct OpenCalls {
    open: Vec<Open>,
    waiting: Vec<Ended>,
}

impl OpenCalls {
    /// Enters a call; gives back the one that was forgotten for it.
    pub(super) fn enter(
        &mut self,
        contexts: &mut Contexts,
        call: &Call,
        arguments: Option<Box<[Value]>>,
    ) -> Option<Open> {
        let forgotten = (self.open.len() >= MAX_OPEN).then(|| self.open.remove(0));
        let (caller, within) = self.caller(contexts, call.depth, call.function);
        let position = contexts.position(caller, call.function);
        let recursive = match position.folded {
            true => within,
            false => contexts.is_recursive(position.node),
        };
        self.open.push(Open {
            depth: call.depth,
            function: call.function,
            began: call.at,
            position,
            recursive,
            within_ns: 0,
            arguments,
        });
        forgotten
    }

    /// The context that a call of this depth is made in, and whether `function` is open there.
    fn caller(&self, contexts: &Contexts, depth: u32, function: FunctionId) -> (Position, bool) {
        let Some(outer) = depth.checked_sub(1) else {
            return (Position::ROOT, false);
        };
        match self.open.iter().rfind(|open| open.depth == outer) {
            Some(open) if open.position.folded => {
                let within = self.open.iter().any(|open| open.function == function);
                let within = within || contexts.is_within(open.position.node, function);
                (open.position, within)
            }
            Some(open) => {
                let within = contexts.is_within(open.position.node, function);
                (open.position, within)
            }
            None => (Position::UNKNOWN, false),
        }
    }

    /// Leaves a call: its entry, if that is known. Calls that began later stay: they are of other
    /// stacks of the thread (coroutines), or their exits are not in the recording.
    pub(super) fn leave(&mut self, ended: &Ended) -> Option<Open> {
        // Not by depth: on a thread with several stacks it may only have become known since.
        let same = |open: &Open| (open.function, open.began) == (ended.function, ended.began);
        let at = self.open.iter().rposition(same)?;
        let left = self.open.remove(at);
        if left.recursive {
            self.cover(ended, ended.total_ns.max(left.within_ns));
        }
        Some(left)
    }

    /// A call of a function that is open outside of it has ended: what it has added to the function's total, be it of
    /// another time, is not to be added again when that one ends. Whether it will is not known: it may not be watched
    /// to its end.
    fn cover(&mut self, ended: &Ended, added_ns: u64) {
        let outer = |open: &&mut Open| open.function == ended.function && open.depth < ended.depth;
        if let Some(outer) = self.open.iter_mut().rfind(outer) {
            outer.within_ns = outer.within_ns.saturating_add(added_ns);
        }
    }

    /// A whole call has ended: it waits for its callers, unless they are open.
    pub(super) fn ended(
        &mut self,
        contexts: &mut Contexts,
        ended: Ended,
        settle: impl FnMut(&mut Contexts, &Ended, Position, u64),
    ) {
        self.waiting.push(ended);
        let outer = ended.depth.checked_sub(1);
        let known = outer.is_none_or(|outer| self.open.iter().any(|open| open.depth == outer));
        if known || self.waiting.len() >= MAX_WAITING {
            self.settle(contexts, settle);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty() && self.waiting.is_empty()
    }

    pub(super) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Settles in which contexts the calls that wait ran, and what each adds to the total of its function.
    pub(super) fn settle(
        &mut self,
        contexts: &mut Contexts,
        mut settle: impl FnMut(&mut Contexts, &Ended, Position, u64),
    ) {
        // Callers end after the calls in them: from the last on, each call's caller is there first.
        let mut path: Vec<(Ended, Position)> = Vec::new();
        for ended in std::mem::take(&mut self.waiting).into_iter().rev() {
            let is_caller = |(caller, _): &(Ended, Position)| {
                caller.depth < ended.depth && caller.began <= ended.began
            };
            while path.last().is_some_and(|caller| !is_caller(caller)) {
                path.pop();
            }
            let direct = path
                .last()
                .filter(|(call, _)| call.depth + 1 == ended.depth);
            let (caller, within) = match direct {
                Some(&(_, position)) => {
                    let within = contexts.is_within(position.node, ended.function);
                    (position, within)
                }
                None => self.caller(contexts, ended.depth, ended.function),
            };
            let position = contexts.position(caller, ended.function);
            let recursive = match position.folded {
                true => within,
                false => contexts.is_recursive(position.node),
            };
            let is_covered = |(call, _): &(Ended, Position)| {
                call.function == ended.function && call.total_ns > 0
            };
            let new_ns = match path.iter().any(is_covered) {
                true => 0,
                false => ended.total_ns,
            };
            if recursive {
                self.cover(&ended, new_ns);
            }
            settle(contexts, &ended, position, new_ns);
            path.push((ended, position));
        }
    }

    pub(super) fn open(&self) -> &[Open] {
        &self.open
    }

    pub(super) fn into_open(self) -> Vec<Open> {
        self.open
    }
}
