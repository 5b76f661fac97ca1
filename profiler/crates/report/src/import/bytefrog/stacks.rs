//! Open calls of each thread of a run, within a bound of all together.
//!
//! Entries push, exits find what they end. What is beyond the bound is only counted per thread:
//! these are its innermost calls, so that later exits of outer ones still find theirs.

use profiler_model::Timestamp;
use profiler_model::room::give_back;

/// Most open calls of a run: 48 MiB.
const MAX_OPEN: usize = 2 << 20;
/// How deep an exit that is not the innermost call's is looked for.
const MAX_SEARCH: usize = 1024;

/// An open call.
#[derive(Clone, Copy, Debug)]
pub(super) struct OpenCall {
    pub(super) method: u32,
    /// It was entered under its name.
    pub(super) named: bool,
    pub(super) began: Timestamp,
    /// Time in calls directly in it.
    pub(super) children_ns: u64,
}

/// What an exit ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Left {
    /// A call with so many above it that were left unseen.
    Frame { above: usize },
    /// One beyond the bound.
    Beyond,
    /// None that is known.
    Unknown,
}

#[derive(Clone, Debug, Default)]
struct Stack {
    frames: Vec<OpenCall>,
    left_out: u64,
}

#[derive(Debug, Default)]
pub(super) struct Stacks {
    threads: Vec<Stack>,
    open: usize,
    /// Places of all threads.
    room: usize,
}

impl Stacks {
    /// Enters a call; its depth, unless there are too many.
    pub(super) fn push(&mut self, thread: u16, frame: OpenCall) -> Option<u32> {
        let index = usize::from(thread);
        if self.threads.len() <= index {
            self.threads.resize(index + 1, Stack::default());
        }
        let stack = &mut self.threads[index];
        if self.open >= MAX_OPEN || stack.left_out > 0 {
            stack.left_out += 1;
            return None;
        }
        self.open += 1;
        let before = stack.frames.capacity();
        stack.frames.push(frame);
        self.room += stack.frames.capacity() - before;
        Some(stack.frames.len() as u32 - 1)
    }

    /// What an exit of `method` ends. One beyond the bound is forgotten by this.
    pub(super) fn find(&mut self, thread: u16, method: u32) -> Left {
        let Some(stack) = self.threads.get_mut(usize::from(thread)) else {
            return Left::Unknown;
        };
        if stack.left_out > 0 {
            stack.left_out -= 1;
            return Left::Beyond;
        }
        let inner = stack.frames.iter().rev().take(MAX_SEARCH);
        match inner.enumerate().find(|(_, frame)| frame.method == method) {
            Some((above, _)) => Left::Frame { above },
            None => Left::Unknown,
        }
    }

    /// Leaves the innermost call; with its depth.
    pub(super) fn pop(&mut self, thread: u16, at: Timestamp) -> Option<(OpenCall, u32)> {
        let stack = self.threads.get_mut(usize::from(thread))?;
        let frame = stack.frames.pop()?;
        self.open -= 1;
        if let Some(caller) = stack.frames.last_mut() {
            let total_ns = at.since(frame.began);
            caller.children_ns = caller.children_ns.saturating_add(total_ns);
        }
        self.room -= give_back(&mut stack.frames);
        Some((frame, stack.frames.len() as u32))
    }

    /// Calls that are open.
    pub(super) fn open(&self) -> usize {
        self.open
    }

    /// Bytes of memory that they take.
    pub(super) fn bytes(&self) -> usize {
        self.room * size_of::<OpenCall>() + self.threads.capacity() * size_of::<Stack>()
    }

    pub(super) fn depth(&self, thread: u16) -> usize {
        let stack = self.threads.get(usize::from(thread));
        stack.map_or(0, |stack| stack.frames.len())
    }

    /// Numbers of all threads so far.
    pub(super) fn threads(&self) -> impl Iterator<Item = u16> + use<> {
        (0..self.threads.len()).map(|index| index as u16)
    }

    /// Forgets all calls.
    pub(super) fn clear(&mut self) {
        for stack in &mut self.threads {
            stack.frames = Vec::new();
            stack.left_out = 0;
        }
        (self.open, self.room) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(method: u32, began: u64) -> OpenCall {
        OpenCall {
            method,
            named: true,
            began: Timestamp(began),
            children_ns: 0,
        }
    }

    #[test]
    fn times_of_calls_are_their_callers_children() {
        let mut stacks = Stacks::default();
        assert_eq!(stacks.push(3, frame(1, 10)), Some(0));
        assert_eq!(stacks.push(3, frame(2, 20)), Some(1));
        assert_eq!(stacks.find(3, 1), Left::Frame { above: 1 });
        assert_eq!(stacks.find(3, 7), Left::Unknown);
        assert_eq!(stacks.find(9, 1), Left::Unknown);
        assert_eq!(stacks.pop(3, Timestamp(50)).unwrap().1, 1);
        let (outer, depth) = stacks.pop(3, Timestamp(60)).unwrap();
        assert_eq!((outer.children_ns, depth), (30, 0));
        assert!(stacks.pop(3, Timestamp(60)).is_none());
    }

    #[test]
    fn calls_beyond_the_bound_are_the_innermost() {
        let mut stacks = Stacks::default();
        for _ in 0..MAX_OPEN {
            assert!(stacks.push(0, frame(1, 0)).is_some());
        }
        assert_eq!(stacks.push(0, frame(2, 0)), None);
        assert_eq!(stacks.push(1, frame(2, 0)), None);
        assert_eq!(stacks.find(0, 2), Left::Beyond);
        assert_eq!(stacks.find(0, 1), Left::Frame { above: 0 });
        stacks.clear();
        assert_eq!(stacks.push(1, frame(2, 0)), Some(0));
    }

    /// Room is that of calls that are open, whichever threads had many of them before.
    #[test]
    fn room_goes_with_the_calls_it_was_for() {
        let bare = 3000 * size_of::<Stack>();
        let mut stacks = Stacks::default();
        for thread in 0..1000 {
            for _ in 0..10_000 {
                stacks.push(thread, frame(1, 0));
            }
            for _ in 0..10_000 {
                stacks.pop(thread, Timestamp(0));
            }
        }
        let few = 1000 * 2 * profiler_model::room::KEPT * size_of::<OpenCall>();
        assert!(stacks.bytes() <= bare + few, "{} bytes", stacks.bytes());
        let room: usize = stacks
            .threads
            .iter()
            .map(|stack| stack.frames.capacity())
            .sum();
        assert_eq!(stacks.room, room);
        stacks.push(7, frame(1, 0));
        assert!(stacks.bytes() >= room * size_of::<OpenCall>());
        stacks.clear();
        assert!(stacks.bytes() <= bare);
    }
}
