//! Stacks as numbers of functions, for formats with tables of them.
//!
//! Keys of samples -> numbers, root first, given in the order of first use; what a number stands for. Inlined functions
//! have numbers as others have. What someone waited for is below the code that waited, as in folded stacks. What does
//! not belong here: places within functions.

use std::borrow::Cow;
use std::hash::Hash;

use rustc_hash::FxHashMap;

use crate::derive::{Functions, Key, frame_lines, wait_frame};
use profiler_model::sorting::InOrder;
use profiler_model::*;

/// What samples without any stack are shown in: without any function tools leave them out.
pub(super) const NO_STACK: &str = "[no stack]";

/// What a function is known by: those without a name are places, or not even that.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Named {
    Function(FunctionId),
    Place(FrameId),
    Wait(WaitState),
    Process(Option<ProcessId>),
    Nowhere,
}

/// Numbers of things, from 1 on, in the order of their first use.
pub(super) struct Numbers<T>(FxHashMap<T, u64>);

impl<T: Copy + Eq + Hash> Numbers<T> {
    /// The number, and whether it is new.
    pub(super) fn of(&mut self, thing: T) -> (u64, bool) {
        let next = self.0.len() as u64 + 1;
        let number = *self.0.entry(thing).or_insert(next);
        (number, number == next)
    }

    pub(super) fn in_order(&self) -> Vec<(T, u64)> {
        let mut all: Vec<_> = self
            .0
            .iter()
            .map(|(&thing, &number)| (thing, number))
            .collect();
        all.order_by_key(|(_, number)| *number);
        all
    }
}

impl<T> Default for Numbers<T> {
    fn default() -> Self {
        Numbers(FxHashMap::default())
    }
}

/// A function that has a number.
#[derive(Clone, Copy)]
pub(super) struct Function {
    named: Named,
    module: Option<ModuleId>,
}

impl Function {
    /// Source file.
    pub(super) fn file(self, tables: &Tables) -> Option<&str> {
        let Named::Function(id) = self.named else {
            return None;
        };
        let file = tables.functions.get(id)?.file?;
        Some(tables.string(file))
    }

    /// Its module, if it is in one.
    pub(super) fn module_id(self) -> Option<ModuleId> {
        self.module
    }

    /// Path of the object file.
    pub(super) fn module(self, tables: &Tables) -> Option<&str> {
        let module = tables.modules.get(self.module?)?;
        Some(tables.string(module.path))
    }

    /// The source line that it begins at.
    pub(super) fn line(self, tables: &Tables) -> Option<u32> {
        let Named::Function(id) = self.named else {
            return None;
        };
        tables.line_of(id)
    }
}

/// All functions of the stacks that were asked for, told apart.
pub(super) struct StackFunctions {
    told: Functions,
    numbers: FxHashMap<Named, u32>,
    all: Vec<Function>,
    /// The lines of a frame, root first, and whether all have names.
    frames: FxHashMap<FrameId, (Box<[u32]>, bool)>,
    ids: Vec<FrameId>,
}

impl StackFunctions {
    /// None yet, of those that a recording has.
    pub(super) fn new(tables: &Tables) -> StackFunctions {
        StackFunctions {
            told: Functions::of(tables),
            numbers: FxHashMap::default(),
            all: Vec::new(),
            frames: FxHashMap::default(),
            ids: Vec::new(),
        }
    }

    /// The name of one that has a number.
    pub(super) fn name<'t>(&self, function: Function, tables: &'t Tables) -> Cow<'t, str> {
        match function.named {
            Named::Function(id) => self.told.name(tables, id),
            Named::Place(frame) => Cow::Owned(tables.frame_location(frame)),
            Named::Wait(state) => Cow::Borrowed(wait_frame(state)),
            Named::Process(id) => match id.and_then(|id| tables.process(id)) {
                Some(process) => {
                    let comm = tables.string(process.name);
                    Cow::Owned(format!("[{comm} (pid {})]", process.pid))
                }
                None => Cow::Borrowed("[unknown process]"),
            },
            Named::Nowhere => Cow::Borrowed(NO_STACK),
        }
    }

    /// The functions at a frame, root first, and whether all have names.
    pub(super) fn of_frame(&mut self, frame: FrameId, tables: &Tables) -> (&[u32], bool) {
        if !self.frames.contains_key(&frame) {
            let lines = self.lines(frame, tables);
            self.frames.insert(frame, lines);
        }
        match self.frames.get(&frame) {
            Some((lines, named)) => (lines, *named),
            None => (&[], false),
        }
    }

    /// What is below code that waits.
    pub(super) fn wait(&mut self, state: WaitState) -> u32 {
        self.number(Named::Wait(state), None)
    }

    /// What stands for a process, around all that it does.
    pub(super) fn process(&mut self, id: Option<ProcessId>) -> u32 {
        self.number(Named::Process(id), None)
    }

    /// What stands for a stack of nothing.
    pub(super) fn no_stack(&mut self) -> u32 {
        self.number(Named::Nowhere, None)
    }

    /// Fills `stack` with what a sample was in, root first, and says whether all of it has a name.
    pub(super) fn stack(&mut self, key: &Key, tables: &Tables, stack: &mut Vec<u32>) -> bool {
        stack.clear();
        self.ids.clear();
        self.ids.extend(tables.frames_of_both(key.kernel, key.user));
        let mut named = true;
        for frame in std::mem::take(&mut self.ids).into_iter().rev() {
            let (lines, has_names) = self.of_frame(frame, tables);
            stack.extend_from_slice(lines);
            named &= has_names;
        }
        if let Some(state) = key.wait {
            stack.push(self.wait(state));
        } else if stack.is_empty() {
            stack.push(self.no_stack());
        }
        named
    }

    /// A traced function.
    pub(super) fn traced(&mut self, id: FunctionId, tables: &Tables) -> u32 {
        let module = tables
            .functions
            .get(id)
            .and_then(|function| function.module);
        self.number(Named::Function(self.told.same(id)), module)
    }

    /// All, in the order of their numbers.
    pub(super) fn all(&self) -> &[Function] {
        &self.all
    }

    fn lines(&mut self, frame: FrameId, tables: &Tables) -> (Box<[u32]>, bool) {
        let mut named = true;
        let mut lines: Vec<u32> = frame_lines(tables, frame)
            .map(|line| {
                named &= line.function.is_some_and(|id| tables.is_named(id));
                let function = line.function.map(|id| self.told.same(id));
                let name = function.map_or(Named::Place(frame), Named::Function);
                self.number(name, line.module)
            })
            .collect();
        lines.reverse();
        (lines.into(), named)
    }

    fn number(&mut self, named: Named, module: Option<ModuleId>) -> u32 {
        let next = self.all.len() as u32;
        let number = *self.numbers.entry(named).or_insert(next);
        if number == next {
            self.all.push(Function { named, module });
        }
        number
    }
}
