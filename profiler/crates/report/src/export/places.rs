//! Stacks as numbers of places in code, for formats that have lines and addresses besides functions.
//!
//! Keys of samples -> numbers of places, root first, given in the order of first use; what a number stands for. A frame
//! is a place for each function inlined there. What does not belong here: names (`functions`).

use std::ops::Range;

use rustc_hash::FxHashMap;

use super::functions::{Function, StackFunctions};
use crate::derive::{Key, frame_lines};
use profiler_model::*;

/// A function at a frame.
#[derive(Clone, Copy)]
pub(super) struct Place {
    /// Its number among the functions.
    pub(super) function: u32,
    /// None of what is no code: what was waited for, no stack.
    pub(super) frame: Option<FrameId>,
    /// 0 if it is not known.
    pub(super) line: u32,
    /// How many functions around it are at the same frame.
    pub(super) inline_depth: u32,
}

/// All places of the stacks that were asked for.
pub(super) struct Places {
    pub(super) functions: StackFunctions,
    all: Vec<Place>,
    frames: FxHashMap<FrameId, (Range<u32>, bool)>,
    others: FxHashMap<u32, u32>,
}

impl Places {
    pub(super) fn new(tables: &Tables) -> Places {
        Places {
            functions: StackFunctions::new(tables),
            all: Vec::new(),
            frames: FxHashMap::default(),
            others: FxHashMap::default(),
        }
    }

    /// Fills `stack` with what a sample was in, root first, and says whether all of it has a name.
    pub(super) fn stack(&mut self, key: &Key, tables: &Tables, stack: &mut Vec<u32>) -> bool {
        let named = self.code(key.kernel, key.user, tables, stack);
        let other = match key.wait {
            Some(state) => self.functions.wait(state),
            None if stack.is_empty() => self.functions.no_stack(),
            None => return named,
        };
        stack.push(self.other(other));
        named
    }

    /// Fills `stack` with code alone.
    pub(super) fn code(
        &mut self,
        kernel: Option<StackId>,
        user: Option<StackId>,
        tables: &Tables,
        stack: &mut Vec<u32>,
    ) -> bool {
        stack.clear();
        let frames = tables.frames_of_both(kernel, user);
        let mut named = true;
        // Leaf first, and so are the lines of each; turned round at the end.
        for frame in frames {
            let (places, has_names) = self.of_frame(frame, tables);
            stack.extend(places.rev());
            named &= has_names;
        }
        stack.reverse();
        named
    }

    /// All, in the order of their numbers.
    pub(super) fn all(&self) -> &[Place] {
        &self.all
    }

    /// A function that has a number.
    pub(super) fn function(&self, place: &Place) -> Option<Function> {
        self.functions.all().get(place.function as usize).copied()
    }

    fn of_frame(&mut self, frame: FrameId, tables: &Tables) -> (Range<u32>, bool) {
        if let Some(known) = self.frames.get(&frame) {
            return known.clone();
        }
        let mut lines: Vec<u32> = frame_lines(tables, frame).map(|line| line.line).collect();
        lines.reverse();
        let (functions, named) = self.functions.of_frame(frame, tables);
        let first = self.all.len() as u32;
        for (depth, (&function, line)) in functions.iter().zip(lines).enumerate() {
            self.all.push(Place {
                function,
                frame: Some(frame),
                line,
                inline_depth: depth as u32,
            });
        }
        let known = (first..self.all.len() as u32, named);
        self.frames.insert(frame, known.clone());
        known
    }

    fn other(&mut self, function: u32) -> u32 {
        let next = self.all.len() as u32;
        let number = *self.others.entry(function).or_insert(next);
        if number == next {
            self.all.push(Place {
                function,
                frame: None,
                line: 0,
                inline_depth: 0,
            });
        }
        number
    }
}
