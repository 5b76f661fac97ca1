//! Tables and events with their ids -> batches that announce what they use: the inverse of
//! reading.
//!
//! Each epoch announces anew what its events refer to. What no event refers to (processes that
//! were never sampled, mappings, code) is announced once, in the first epoch, so that nothing is
//! lost by copying a capture.

use rustc_hash::FxHashMap;

use crate::model::*;

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
    /// The first epoch, with all that no event may refer to.
    pub(super) fn new(tables: &'t Tables) -> Self {
        let mut announcer = Self::epoch(tables, 0);
        for (id, _) in tables.sources.iter() {
            announcer.source(id);
        }
        for (id, _) in tables.processes() {
            announcer.process(id);
        }
        for (id, _) in tables.threads() {
            announcer.thread(id);
        }
        for (id, mapping) in tables.mappings.iter() {
            announcer.mapping(id, mapping);
        }
        for (module, address, bytes) in tables.code() {
            if let Some(module) = announcer.module(module) {
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
            announcer.function(id);
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
        if let Some(event) = self.localize(event.clone()) {
            self.batch.events.push(event);
        }
    }

    fn localize(&mut self, mut event: Event) -> Option<Event> {
        match &mut event {
            Event::Sample(sample) => {
                sample.thread = self.thread(sample.thread)?;
                sample.source = self.source(sample.source)?;
                sample.kernel = self.maybe_stack(sample.kernel)?;
                sample.user = self.maybe_stack(sample.user)?;
                if let Some(wait) = &mut sample.wait {
                    wait.waker = wait.waker.and_then(|waker| self.thread(waker));
                }
            }
            Event::Process(change) => {
                change.thread = self.thread(change.thread)?;
                match &mut change.change {
                    ProcessChange::Executed(name) | ProcessChange::Renamed(name) => {
                        *name = self.string(*name);
                    }
                    ProcessChange::Started | ProcessChange::Exited => {}
                }
            }
            Event::Mark(mark) => mark.text = self.string(mark.text),
            Event::Call(call) => {
                call.thread = self.thread(call.thread)?;
                call.function = self.function(call.function)?;
                if let CallEdge::Exit(exit) = &mut call.edge
                    && let ExitKind::Exception(Some(kind)) = &mut exit.how
                {
                    *kind = self.string(*kind);
                }
            }
            Event::Throw(throw) => {
                throw.thread = self.thread(throw.thread)?;
                throw.kind = self.string(throw.kind);
                throw.thrower = match throw.thrower {
                    Some(frame) => Some(self.frame(frame)?),
                    None => None,
                };
            }
            Event::CallCount(count) => count.function = self.function(count.function)?,
            Event::Waits(waits) => waits.thread = self.thread(waits.thread)?,
            Event::Gap(gap) => {
                gap.function = match gap.function {
                    Some(function) => Some(self.function(function)?),
                    None => None,
                };
                gap.process = match gap.process {
                    Some(process) => Some(self.process(process)?),
                    None => None,
                };
            }
            Event::Clock(_) | Event::Lost(_) => {}
        }
        Some(event)
    }

    fn define(&mut self, definition: Definition) {
        self.batch.definitions.push(definition);
    }

    fn string(&mut self, id: StringId) -> StringId {
        if let Some(local) = self.strings.get(id) {
            return local;
        }
        let local = self.strings.add(id);
        self.define(Definition::String(local, self.tables.string(id).into()));
        local
    }

    fn maybe_string(&mut self, id: Option<StringId>) -> Option<StringId> {
        id.map(|id| self.string(id))
    }

    fn source(&mut self, id: SourceId) -> Option<SourceId> {
        if let Some(local) = self.sources.get(id) {
            return Some(local);
        }
        let mut source = self.tables.sources.get(id)?.clone();
        source.name = self.string(source.name);
        let local = self.sources.add(id);
        self.define(Definition::Source(local, source));
        Some(local)
    }

    fn container(&mut self, id: ContainerId) -> Option<ContainerId> {
        if let Some(local) = self.containers.get(id) {
            return Some(local);
        }
        let mut container = self.tables.container(id)?.clone();
        container.cgroup = self.string(container.cgroup);
        for text in container.texts_mut() {
            *text = self.maybe_string(*text);
        }
        let local = self.containers.add(id);
        self.define(Definition::Container(local, container));
        Some(local)
    }

    /// Ancestors come first. Should a damaged capture have made a process its own ancestor, the
    /// ring is cut open where it closes.
    fn process(&mut self, id: ProcessId) -> Option<ProcessId> {
        let mut chain = Vec::new();
        let mut next = Some(id);
        while let Some(id) = next
            && self.processes.get(id).is_none()
        {
            // An id is taken when it is met, so that a ring ends the chain.
            let parent = self.tables.process(id)?.parent;
            chain.push((id, self.processes.add(id)));
            next = parent;
        }
        let mut defined = next.filter(|id| !chain.iter().any(|(met, _)| met == id));
        for (id, local) in chain.into_iter().rev() {
            let mut process = self.tables.process(id)?.clone();
            process.parent = defined.and_then(|id| self.processes.get(id));
            process.name = self.string(process.name);
            process.executable = self.maybe_string(process.executable);
            process.command = self.maybe_string(process.command);
            process.cgroup = self.maybe_string(process.cgroup);
            process.container = process.container.and_then(|id| self.container(id));
            self.define(Definition::Process(local, process));
            defined = Some(id);
        }
        self.processes.get(id)
    }

    fn thread(&mut self, id: ThreadId) -> Option<ThreadId> {
        if let Some(local) = self.threads.get(id) {
            return Some(local);
        }
        let mut thread = self.tables.thread(id)?.clone();
        thread.process = self.process(thread.process)?;
        thread.name = self.string(thread.name);
        let local = self.threads.add(id);
        self.define(Definition::Thread(local, thread));
        Some(local)
    }

    fn module(&mut self, id: ModuleId) -> Option<ModuleId> {
        if let Some(local) = self.modules.get(id) {
            return Some(local);
        }
        let mut module = self.tables.modules.get(id)?.clone();
        module.path = self.string(module.path);
        let local = self.modules.add(id);
        self.define(Definition::Module(local, module));
        Some(local)
    }

    fn mapping(&mut self, id: MappingId, mapping: &Mapping) -> Option<()> {
        let mut mapping = mapping.clone();
        mapping.process = self.process(mapping.process)?;
        mapping.module = self.module(mapping.module)?;
        let local = self.mappings.add(id);
        self.define(Definition::Mapping(local, mapping));
        Some(())
    }

    fn function(&mut self, id: FunctionId) -> Option<FunctionId> {
        if let Some(local) = self.functions.get(id) {
            return Some(local);
        }
        let mut function = self.tables.functions.get(id)?.clone();
        function.name = self.string(function.name);
        function.linkage_name = self.maybe_string(function.linkage_name);
        function.file = self.maybe_string(function.file);
        function.module = match function.module {
            Some(module) => Some(self.module(module)?),
            None => None,
        };
        let local = self.functions.add(id);
        self.define(Definition::Function(local, function));
        if let Some(traced) = self.tables.traced(id) {
            let mut traced = traced.clone();
            for parameter in &mut traced.parameters {
                parameter.name = self.string(parameter.name);
                parameter.kind = self.maybe_string(parameter.kind);
            }
            traced.result = self.maybe_string(traced.result);
            self.define(Definition::Traced(local, traced));
        }
        Some(local)
    }

    /// A frame, and its names with it.
    fn frame(&mut self, id: FrameId) -> Option<FrameId> {
        if let Some(local) = self.frames.get(id) {
            return Some(local);
        }
        let mut frame = *self.tables.frames.get(id)?;
        frame.module = match frame.module {
            Some(module) => Some(self.module(module)?),
            None => None,
        };
        let local = self.frames.add(id);
        self.define(Definition::Frame(local, frame));
        let tables = self.tables;
        match tables.symbol(id) {
            Some(Symbol::Lines(lines)) => {
                let mut lines = lines.clone();
                for line in &mut lines {
                    line.function = self.function(line.function)?;
                }
                self.define(Definition::Symbol(local, Symbol::Lines(lines)));
            }
            Some(unknown) => self.define(Definition::Symbol(local, unknown.clone())),
            None => {}
        }
        Some(local)
    }

    fn maybe_stack(&mut self, id: Option<StackId>) -> Option<Option<StackId>> {
        match id {
            Some(id) => self.stack(id).map(Some),
            None => Some(None),
        }
    }

    /// A stack, its callers first. Tables can't hold a stack among its own callers.
    fn stack(&mut self, id: StackId) -> Option<StackId> {
        if let Some(local) = self.stacks.get(id) {
            return Some(local);
        }
        let mut chain = Vec::new();
        let mut next = Some(id);
        while let Some(id) = next
            && self.stacks.get(id).is_none()
        {
            let stack = *self.tables.stacks.get(id)?;
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
        parent
    }
}
