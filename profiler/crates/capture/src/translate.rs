//! The ids of one epoch -> those of tables that hold all its definitions already.
//!
//! The second pass over a capture: [`Epoch`](profiler_model::Epoch) folds definitions into tables in
//! the first one; this only looks them up, so that the tables stay as the whole capture made them
//! (with the last name of each process), and nothing per epoch is kept in between.

use profiler_model::*;

/// Local id -> id of the tables, by index.
#[derive(Debug)]
struct Ids<I>(Vec<Option<I>>);

impl<I> Default for Ids<I> {
    fn default() -> Self {
        Ids(Vec::new())
    }
}

impl<I: EpochId> Ids<I> {
    /// The caller has made sure that the id is near those that are there (see [`IdGuard`]).
    fn set(&mut self, local: I, global: Option<I>) {
        if local.index() >= self.0.len() {
            self.0.resize(local.index() + 1, None);
        }
        if let Some(slot) = self.0.get_mut(local.index()) {
            *slot = global;
        }
    }

    #[inline]
    fn get(&self, local: I) -> Result<I, Unknown> {
        let known = self.0.get(local.index()).copied().flatten();
        known.ok_or(Unknown)
    }
}

/// The translation of one epoch.
#[derive(Debug, Default)]
pub(super) struct Translation {
    guard: IdGuard,
    strings: Ids<StringId>,
    sources: Ids<SourceId>,
    processes: Ids<ProcessId>,
    threads: Ids<ThreadId>,
    modules: Ids<ModuleId>,
    functions: Ids<FunctionId>,
    frames: Ids<FrameId>,
    stacks: Ids<StackId>,
}

impl Translation {
    /// Looks up what a definition of this epoch is called in `tables`. One that is damaged or not
    /// there stays unknown, as do events that use it.
    pub(super) fn locate(&mut self, tables: &Tables, definition: Definition) {
        if !self.guard.allows(&definition) {
            return;
        }
        match definition {
            Definition::String(id, text) => self.strings.set(id, tables.find_string(&text)),
            Definition::Source(id, mut source) => {
                let found = source.map_ids(self).ok();
                self.sources
                    .set(id, found.and_then(|()| tables.sources.find(&source)));
            }
            Definition::Process(id, process) => {
                let found = tables.find_process(process.pid, process.started);
                self.processes.set(id, found);
            }
            Definition::Thread(id, thread) => {
                let process = self.processes.get(thread.process).ok();
                let found = process
                    .and_then(|process| tables.find_thread(process, thread.tid, thread.started));
                self.threads.set(id, found);
            }
            Definition::Module(id, mut module) => {
                let found = module.map_ids(self).ok();
                self.modules
                    .set(id, found.and_then(|()| tables.modules.find(&module)));
            }
            Definition::Frame(id, mut frame) => {
                let found = frame.map_ids(self).ok();
                self.frames
                    .set(id, found.and_then(|()| tables.frames.find(&frame)));
            }
            Definition::Stack(id, mut stack) => {
                let found = stack.map_ids(self).ok();
                self.stacks
                    .set(id, found.and_then(|()| tables.stacks.find(&stack)));
            }
            Definition::Function(id, mut function) => {
                let found = function.map_ids(self).ok();
                self.functions
                    .set(id, found.and_then(|()| tables.functions.find(&function)));
            }
            // No event refers to these.
            Definition::Session(_)
            | Definition::Container(..)
            | Definition::Named(_)
            | Definition::Mapping(..)
            | Definition::Symbol(..)
            | Definition::Code(_)
            | Definition::Traced(..) => {}
        }
    }

    /// The event with the ids of the tables; none if it uses what is not defined.
    #[inline]
    pub(super) fn event(&mut self, mut event: Event) -> Option<Event> {
        event.map_ids(self).ok()?;
        Some(event)
    }
}

/// An id that is not defined, by damage.
pub(super) struct Unknown;

impl MapIds for Translation {
    type Error = Unknown;

    /// No event refers to one.
    fn container(&mut self, _: ContainerId) -> Result<ContainerId, Unknown> {
        Err(Unknown)
    }

    #[inline]
    fn string(&mut self, id: StringId) -> Result<StringId, Unknown> {
        self.strings.get(id)
    }

    #[inline]
    fn source(&mut self, id: SourceId) -> Result<SourceId, Unknown> {
        self.sources.get(id)
    }

    #[inline]
    fn process(&mut self, id: ProcessId) -> Result<ProcessId, Unknown> {
        self.processes.get(id)
    }

    #[inline]
    fn thread(&mut self, id: ThreadId) -> Result<ThreadId, Unknown> {
        self.threads.get(id)
    }

    #[inline]
    fn module(&mut self, id: ModuleId) -> Result<ModuleId, Unknown> {
        self.modules.get(id)
    }

    #[inline]
    fn function(&mut self, id: FunctionId) -> Result<FunctionId, Unknown> {
        self.functions.get(id)
    }

    #[inline]
    fn frame(&mut self, id: FrameId) -> Result<FrameId, Unknown> {
        self.frames.get(id)
    }

    #[inline]
    fn stack(&mut self, id: StackId) -> Result<StackId, Unknown> {
        self.stacks.get(id)
    }
}

/// Ids are dense, but for those that damage has taken: within an epoch an id may be so much beyond
/// the number of definitions. What is farther is damage itself, and must not make tables grow.
const MAX_MISSING: u32 = 1 << 16;

/// Bounds the ids of one epoch by the number of its definitions.
#[derive(Debug, Default)]
pub(super) struct IdGuard([u32; 10]);

impl IdGuard {
    /// Whether the id of a definition can be one of this epoch.
    pub(super) fn allows(&mut self, definition: &Definition) -> bool {
        let (kind, id) = match definition {
            Definition::String(id, _) => (0, id.get()),
            Definition::Source(id, _) => (1, id.get()),
            Definition::Process(id, _) => (2, id.get()),
            Definition::Thread(id, _) => (3, id.get()),
            Definition::Module(id, _) => (4, id.get()),
            Definition::Mapping(id, _) => (5, id.get()),
            Definition::Function(id, _) => (6, id.get()),
            Definition::Frame(id, _) => (7, id.get()),
            Definition::Stack(id, _) => (8, id.get()),
            Definition::Container(id, _) => (9, id.get()),
            Definition::Session(_)
            | Definition::Named(_)
            | Definition::Symbol(..)
            | Definition::Code(_)
            | Definition::Traced(..) => return true,
        };
        self.0[kind] = self.0[kind].saturating_add(1);
        id <= self.0[kind].saturating_add(MAX_MISSING)
    }
}
