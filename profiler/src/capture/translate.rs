//! The ids of one epoch -> those of tables that hold all its definitions already.
//!
//! The second pass over a capture: [`Epoch`](crate::model::Epoch) folds definitions into tables in
//! the first one; this only looks them up, so that the tables stay as the whole capture made them
//! (with the last name of each process), and nothing per epoch is kept in between.

use crate::model::*;

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
    fn get(&self, local: I) -> Option<I> {
        self.0.get(local.index()).copied().flatten()
    }

    /// Outer: whether it is known. Inner: whether there is one.
    #[inline]
    fn maybe(&self, local: Option<I>) -> Option<Option<I>> {
        match local {
            None => Some(None),
            Some(local) => self.get(local).map(Some),
        }
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
                let found = self.strings.get(source.name).and_then(|name| {
                    source.name = name;
                    tables.sources.find(&source)
                });
                self.sources.set(id, found);
            }
            Definition::Process(id, process) => {
                let found = tables.find_process(process.pid, process.started);
                self.processes.set(id, found);
            }
            Definition::Thread(id, thread) => {
                let process = self.processes.get(thread.process);
                let found = process
                    .and_then(|process| tables.find_thread(process, thread.tid, thread.started));
                self.threads.set(id, found);
            }
            Definition::Module(id, mut module) => {
                let found = self.strings.get(module.path).and_then(|path| {
                    module.path = path;
                    tables.modules.find(&module)
                });
                self.modules.set(id, found);
            }
            Definition::Frame(id, mut frame) => {
                let found = self.modules.maybe(frame.module).and_then(|module| {
                    frame.module = module;
                    tables.frames.find(&frame)
                });
                self.frames.set(id, found);
            }
            Definition::Stack(id, stack) => {
                let parent = self.stacks.maybe(stack.parent);
                let found = parent
                    .zip(self.frames.get(stack.frame))
                    .and_then(|(parent, frame)| tables.stacks.find(&Stack { parent, frame }));
                self.stacks.set(id, found);
            }
            Definition::Function(id, function) => {
                let found = self.function(tables, function);
                self.functions.set(id, found);
            }
            // No event refers to these.
            Definition::Session(_)
            | Definition::Container(..)
            | Definition::Mapping(..)
            | Definition::Symbol(..)
            | Definition::Code(_)
            | Definition::Traced(..) => {}
        }
    }

    fn function(&self, tables: &Tables, mut function: Function) -> Option<FunctionId> {
        function.name = self.strings.get(function.name)?;
        function.linkage_name = self.strings.maybe(function.linkage_name)?;
        function.module = self.modules.maybe(function.module)?;
        function.file = self.strings.maybe(function.file)?;
        tables.functions.find(&function)
    }

    /// The event with the ids of the tables; none if it uses what is not defined.
    #[inline]
    pub(super) fn event(&self, mut event: Event) -> Option<Event> {
        match &mut event {
            Event::Sample(sample) => {
                sample.thread = self.threads.get(sample.thread)?;
                sample.kernel = self.stacks.maybe(sample.kernel)?;
                sample.user = self.stacks.maybe(sample.user)?;
                sample.source = self.sources.get(sample.source)?;
                if let Some(wait) = &mut sample.wait {
                    wait.waker = wait.waker.and_then(|waker| self.threads.get(waker));
                }
            }
            Event::Process(event) => {
                event.thread = self.threads.get(event.thread)?;
                match &mut event.change {
                    ProcessChange::Executed(name) | ProcessChange::Renamed(name) => {
                        *name = self.strings.get(*name)?;
                    }
                    ProcessChange::Started | ProcessChange::Exited => {}
                }
            }
            Event::Mark(mark) => mark.text = self.strings.get(mark.text)?,
            Event::Call(call) => {
                call.thread = self.threads.get(call.thread)?;
                call.function = self.functions.get(call.function)?;
                if let CallEdge::Exit(exit) = &mut call.edge
                    && let ExitKind::Exception(Some(kind)) = &mut exit.how
                {
                    *kind = self.strings.get(*kind)?;
                }
            }
            Event::Throw(throw) => {
                throw.thread = self.threads.get(throw.thread)?;
                throw.kind = self.strings.get(throw.kind)?;
                throw.thrower = self.frames.maybe(throw.thrower)?;
            }
            Event::CallCount(count) => count.function = self.functions.get(count.function)?,
            Event::Waits(waits) => waits.thread = self.threads.get(waits.thread)?,
            Event::Gap(gap) => {
                gap.function = self.functions.maybe(gap.function)?;
                gap.process = self.processes.maybe(gap.process)?;
            }
            Event::Clock(_) | Event::Lost(_) => {}
        }
        Some(event)
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
            | Definition::Symbol(..)
            | Definition::Code(_)
            | Definition::Traced(..) => return true,
        };
        self.0[kind] = self.0[kind].saturating_add(1);
        id <= self.0[kind].saturating_add(MAX_MISSING)
    }
}
