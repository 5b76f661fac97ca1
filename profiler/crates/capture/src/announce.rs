//! Tables and events with their ids -> batches that announce what they use: the inverse of
//! reading.
//!
//! Each epoch announces anew what its events refer to. What no event refers to (processes that
//! were never sampled, mappings, code) is announced once, in the first epoch, so that nothing is
//! lost by copying a capture.

use rustc_hash::FxHashMap;

use profiler_model::*;

/// Local ids of one kind, by the index of the tables' id.
#[derive(Debug)]
struct Local<I>(FxHashMap<I, I>);

impl<I> Default for Local<I> {
    fn default() -> Self {
        Local(FxHashMap::default())
    }
}

impl<I: EpochId + Eq + std::hash::Hash> Local<I> {
    fn get(&self, id: I) -> Option<I> {
        self.0.get(&id).copied()
    }

    fn add(&mut self, id: I) -> I {
        let local = I::from_index(self.0.len());
        self.0.insert(id, local);
        local
    }
}

/// Announces definitions of `tables` as events need them.
pub(super) struct Announcer<'t> {
    tables: &'t Tables,
    batch: Batch,
    strings: Local<StringId>,
    sources: Local<SourceId>,
    containers: Local<ContainerId>,
    processes: Local<ProcessId>,
    threads: Local<ThreadId>,
    modules: Local<ModuleId>,
    mappings: Local<MappingId>,
    functions: Local<FunctionId>,
    frames: Local<FrameId>,
    stacks: Local<StackId>,
}

impl<'t> Announcer<'t> {
    /// The first epoch, with all that no event may refer to. What refers to what the tables don't have is left
    /// out.
    pub(super) fn new(tables: &'t Tables) -> Self {
        let mut announcer = Self::epoch(tables, 0);
        for (id, _) in tables.sources.iter() {
            let _ = announcer.source(id);
        }
        for (id, _) in tables.processes() {
            let _ = announcer.process(id);
        }
        for (id, _) in tables.threads() {
            let _ = announcer.thread(id);
        }
        for (id, mapping) in tables.mappings.iter() {
            let _ = announcer.mapping(id, mapping);
        }
        for (module, address, bytes) in tables.code() {
            if let Ok(module) = announcer.module(module) {
                announcer.define(Definition::Code(Code {
                    module,
                    address,
                    bytes: bytes.clone(),
                }));
            }
        }
        let mut traced: Vec<_> = tables.all_traced().map(|(id, _)| id).collect();
        traced.sort_unstable();
        for id in traced {
            let _ = announcer.function(id);
        }
        announcer
    }

    fn epoch(tables: &'t Tables, number: u32) -> Self {
        let mut announcer = Announcer {
            tables,
            batch: Batch {
                epoch: number,
                ..Batch::default()
            },
            strings: Local::default(),
            containers: Local::default(),
            sources: Local::default(),
            processes: Local::default(),
            threads: Local::default(),
            modules: Local::default(),
            mappings: Local::default(),
            functions: Local::default(),
            frames: Local::default(),
            stacks: Local::default(),
        };
        announcer.define(Definition::Session(tables.session.clone()));
        announcer
    }

    /// Starts the next epoch; the caller has taken what was there.
    pub(super) fn next_epoch(&mut self) {
        *self = Self::epoch(self.tables, self.batch.epoch.saturating_add(1));
    }

    /// What has been announced and not been taken yet.
    pub(super) fn take(&mut self) -> Batch {
        let epoch = self.batch.epoch;
        std::mem::replace(
            &mut self.batch,
            Batch {
                epoch,
                ..Batch::default()
            },
        )
    }

    /// Definitions and events waiting to be taken.
    pub(super) fn waiting(&self) -> usize {
        self.batch.definitions.len() + self.batch.events.len()
    }

    /// Announces an event and what it uses. One that uses what the tables don't have is left out,
    /// which can't be for events that were replayed with these tables.
    pub(super) fn event(&mut self, event: &Event) {
        let mut event = event.clone();
        if event.map_ids(self).is_ok() {
            self.batch.events.push(event);
        }
    }

    fn define(&mut self, definition: Definition) {
        self.batch.definitions.push(definition);
    }

    fn mapping(&mut self, id: MappingId, mapping: &Mapping) -> Result<(), Missing> {
        let mut mapping = mapping.clone();
        mapping.map_ids(self)?;
        let local = self.mappings.add(id);
        self.define(Definition::Mapping(local, mapping));
        Ok(())
    }
}

/// The tables don't have it.
pub(super) struct Missing;

/// The tables' ids -> those of the epoch; what is not announced yet is announced first.
impl MapIds for Announcer<'_> {
    type Error = Missing;

    fn string(&mut self, id: StringId) -> Result<StringId, Missing> {
        if let Some(local) = self.strings.get(id) {
            return Ok(local);
        }
        let local = self.strings.add(id);
        self.define(Definition::String(local, self.tables.string(id).into()));
        Ok(local)
    }

    fn source(&mut self, id: SourceId) -> Result<SourceId, Missing> {
        if let Some(local) = self.sources.get(id) {
            return Ok(local);
        }
        let mut source = self.tables.sources.get(id).ok_or(Missing)?.clone();
        source.map_ids(self)?;
        let local = self.sources.add(id);
        self.define(Definition::Source(local, source));
        Ok(local)
    }

    fn container(&mut self, id: ContainerId) -> Result<ContainerId, Missing> {
        if let Some(local) = self.containers.get(id) {
            return Ok(local);
        }
        let mut container = self.tables.container(id).ok_or(Missing)?.clone();
        container.map_ids(self)?;
        let local = self.containers.add(id);
        self.define(Definition::Container(local, container));
        Ok(local)
    }

    /// Ancestors come first. Should a damaged capture have made a process its own ancestor, the
    /// ring is cut open where it closes.
    fn process(&mut self, id: ProcessId) -> Result<ProcessId, Missing> {
        let mut chain = Vec::new();
        let mut next = Some(id);
        while let Some(id) = next
            && self.processes.get(id).is_none()
        {
            // An id is taken when it is met, so that a ring ends the chain.
            let parent = self.tables.process(id).ok_or(Missing)?.parent;
            chain.push((id, self.processes.add(id)));
            next = parent;
        }
        let mut defined = next.filter(|id| !chain.iter().any(|(met, _)| met == id));
        for (id, local) in chain.into_iter().rev() {
            let mut process = self.tables.process(id).ok_or(Missing)?.clone();
            process.parent = None;
            process.map_ids(self)?;
            process.parent = defined.and_then(|id| self.processes.get(id));
            self.define(Definition::Process(local, process));
            defined = Some(id);
        }
        self.processes.get(id).ok_or(Missing)
    }

    fn thread(&mut self, id: ThreadId) -> Result<ThreadId, Missing> {
        if let Some(local) = self.threads.get(id) {
            return Ok(local);
        }
        let mut thread = self.tables.thread(id).ok_or(Missing)?.clone();
        thread.map_ids(self)?;
        let local = self.threads.add(id);
        self.define(Definition::Thread(local, thread));
        for mut named in self.tables.names_of(id) {
            named.map_ids(self)?;
            self.define(Definition::Named(named));
        }
        Ok(local)
    }

    fn module(&mut self, id: ModuleId) -> Result<ModuleId, Missing> {
        if let Some(local) = self.modules.get(id) {
            return Ok(local);
        }
        let mut module = self.tables.modules.get(id).ok_or(Missing)?.clone();
        module.map_ids(self)?;
        let local = self.modules.add(id);
        self.define(Definition::Module(local, module));
        Ok(local)
    }

    fn function(&mut self, id: FunctionId) -> Result<FunctionId, Missing> {
        if let Some(local) = self.functions.get(id) {
            return Ok(local);
        }
        let mut function = self.tables.functions.get(id).ok_or(Missing)?.clone();
        function.map_ids(self)?;
        let local = self.functions.add(id);
        self.define(Definition::Function(local, function));
        if let Some(traced) = self.tables.traced(id) {
            let mut traced = traced.clone();
            traced.map_ids(self)?;
            self.define(Definition::Traced(local, traced));
        }
        Ok(local)
    }

    /// A frame, and its names with it.
    fn frame(&mut self, id: FrameId) -> Result<FrameId, Missing> {
        if let Some(local) = self.frames.get(id) {
            return Ok(local);
        }
        let mut frame = *self.tables.frames.get(id).ok_or(Missing)?;
        frame.map_ids(self)?;
        let local = self.frames.add(id);
        self.define(Definition::Frame(local, frame));
        if let Some(symbol) = self.tables.symbol(id) {
            let mut symbol = symbol.clone();
            symbol.map_ids(self)?;
            self.define(Definition::Symbol(local, symbol));
        }
        Ok(local)
    }

    /// A stack, its callers first. Tables can't hold a stack among its own callers.
    fn stack(&mut self, id: StackId) -> Result<StackId, Missing> {
        if let Some(local) = self.stacks.get(id) {
            return Ok(local);
        }
        let mut chain = Vec::new();
        let mut next = Some(id);
        while let Some(id) = next
            && self.stacks.get(id).is_none()
        {
            let stack = *self.tables.stacks.get(id).ok_or(Missing)?;
            chain.push((id, stack.frame));
            next = stack.parent;
        }
        let mut parent = next.and_then(|id| self.stacks.get(id));
        for (id, frame) in chain.into_iter().rev() {
            let frame = self.frame(frame)?;
            let local = self.stacks.add(id);
            self.define(Definition::Stack(local, Stack { parent, frame }));
            parent = Some(local);
        }
        parent.ok_or(Missing)
    }
}
