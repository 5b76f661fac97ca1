//! Definitions of one generation of ids: tables, and what is looked up in them.
//!
//! A generation begins with an epoch of the session; further epochs are folded into it until it is
//! large. Then a new one begins, and ids mean something else. What does not belong here: when that is
//! (the [`super::World`]).

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::ContextKey;
use super::code::{Code, CodeModule, Modules};
use super::contexts::Contexts;
use super::functions::Functions;
use profiler_model::*;

/// What a definition costs in memory beyond the texts in it.
const DEFINITION_BYTES: usize = 96;

/// What is known of a place in code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Described<'a> {
    /// The function that is really there.
    pub(super) name: &'a str,
    /// Frame address of that, if known.
    pub(super) start: Option<u64>,
    /// Its length, if known.
    pub(super) size: Option<u64>,
    /// File and line of the innermost inlined function.
    pub(super) source: Option<(&'a str, u32)>,
    /// File and line of the function that is really there.
    pub(super) own: Option<(&'a str, u32)>,
}

/// What tables say of a place in code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Meaning<'a> {
    /// This.
    Known(Described<'a>),
    /// It has no name.
    Unnamed,
    /// There is no answer yet.
    Open,
    /// There is no such frame.
    Absent,
}

/// The tables of one generation of ids, with its lookups.
#[derive(Debug, Default)]
pub(super) struct Generation {
    pub(super) tables: Tables,
    /// The epoch that is being folded.
    pub(super) epoch: Epoch,
    /// Estimated memory.
    pub(super) bytes: usize,
    /// What of it came with the first definitions: all that lived then.
    pub(super) first_bytes: usize,
    /// The kernel image, if it is known.
    pub(super) kernel: Option<Arc<CodeModule>>,
    modules: Vec<Arc<CodeModule>>,
    ids: FxHashMap<u64, ModuleId>,
    functions: Functions,
    functions_seen: usize,
    /// The lowest line that is known in each function's own file.
    lowest: FxHashMap<FunctionId, u32>,
    mappings_seen: usize,
    /// Containers as they were when they were looked at last.
    containers_seen: Vec<Container>,
    processes: Vec<Option<ContextKey>>,
    threads: Vec<Option<(ContextKey, ContextKey)>>,
}

impl Generation {
    /// Folds a definition.
    pub(super) fn define(
        &mut self,
        definition: Definition,
        modules: &mut Modules,
    ) -> Result<(), Undefined> {
        self.bytes += bytes_of(&definition);
        let line = match &definition {
            Definition::Symbol(_, Symbol::Lines(lines)) => lines.last().copied(),
            _ => None,
        };
        self.epoch.define(&mut self.tables, definition)?;
        if let Some(line) = line.filter(|line| line.line > 0)
            && let Some(function) = self.epoch.function(line.function)
        {
            let lowest = self.lowest.entry(function).or_insert(line.line);
            *lowest = line.line.min(*lowest);
        }
        while self.modules.len() < self.tables.modules.len() {
            let id = ModuleId::from_index(self.modules.len());
            let Some(module) = self.tables.modules.get(id) else {
                break;
            };
            let known = modules.intern(module, self.tables.string(module.path));
            if known.kind == ModuleKind::Kernel {
                self.kernel = Some(known.clone());
            }
            self.ids.insert(known.uid, id);
            self.modules.push(known);
        }
        while self.functions_seen < self.tables.functions.len() {
            let id = FunctionId::from_index(self.functions_seen);
            self.functions_seen += 1;
            if let Some(function) = self.tables.functions.get(id) {
                self.functions.add(id, function);
            }
        }
        Ok(())
    }

    /// The next mapping that was defined and not been taken yet.
    pub(super) fn next_mapping(&mut self) -> Option<Mapping> {
        let mapping = self
            .tables
            .mappings
            .get(MappingId::from_index(self.mappings_seen))?;
        self.mappings_seen += 1;
        Some(mapping.clone())
    }

    /// A container of the epoch that is being folded, if more is known of it than when it was looked at
    /// last.
    pub(super) fn described(&mut self, local: ContainerId) -> Option<ContainerId> {
        let id = self.epoch.container(local)?;
        let container = self.tables.container(id)?;
        match self.containers_seen.get_mut(id.index()) {
            Some(seen) if seen == container => None,
            Some(seen) => {
                seen.clone_from(container);
                Some(id)
            }
            // What is new has no processes yet.
            None => {
                let news = self.tables.containers().skip(self.containers_seen.len());
                self.containers_seen
                    .extend(news.map(|(_, container)| container.clone()));
                None
            }
        }
    }

    /// A module.
    pub(super) fn module(&self, id: ModuleId) -> Option<&Arc<CodeModule>> {
        self.modules.get(id.index())
    }

    /// What a frame is.
    pub(super) fn code(&self, frame: FrameId) -> Option<Code> {
        let frame = self.tables.frames.get(frame)?;
        let module = match frame.module {
            Some(id) => Some(self.module(id)?.clone()),
            None => None,
        };
        Some(Code {
            kind: frame.kind,
            module,
            address: frame.address,
        })
    }

    /// The frame of a place in code.
    pub(super) fn frame_of(&self, code: &Code) -> Option<FrameId> {
        let module = match &code.module {
            Some(module) => Some(*self.ids.get(&module.uid)?),
            None => None,
        };
        self.tables.frames.find(&Frame {
            kind: code.kind,
            module,
            address: code.address,
        })
    }

    /// What the symbol of a place in code says.
    pub(super) fn meaning(&self, code: &Code) -> Meaning<'_> {
        let Some(frame) = self.frame_of(code) else {
            return Meaning::Absent;
        };
        match self.tables.symbol(frame) {
            Some(Symbol::Lines(lines)) => match self.describe(lines) {
                Some(described) => Meaning::Known(described),
                None => Meaning::Unnamed,
            },
            Some(Symbol::Unknown(_)) => Meaning::Unnamed,
            None => Meaning::Open,
        }
    }

    fn describe(&self, lines: &[Line]) -> Option<Described<'_>> {
        let tables = &self.tables;
        let outermost = tables.functions.get(lines.last()?.function)?;
        let source = |line: &Line| {
            let file = tables.functions.get(line.function)?.file?;
            (line.line > 0).then(|| (tables.string(file), line.line))
        };
        Some(Described {
            name: tables.string(outermost.name),
            start: outermost.start,
            size: outermost.size,
            source: source(lines.first()?),
            own: source(lines.last()?),
        })
    }

    /// The function that covers a place in code, whether or not that has a frame. Its own line is the
    /// lowest one that is known.
    pub(super) fn covering(&self, code: &Code) -> Option<Described<'_>> {
        let id = self.ids.get(&code.module.as_ref()?.uid)?;
        let id = self.functions.find(*id, code.address)?;
        let function = self.tables.functions.get(id)?;
        let line = self.lowest.get(&id);
        Some(Described {
            name: self.tables.string(function.name),
            start: function.start,
            size: function.size,
            source: None,
            own: function
                .file
                .zip(line)
                .map(|(file, &line)| (self.tables.string(file), line)),
        })
    }

    /// Notes the context of a process.
    pub(super) fn set_process(&mut self, id: ProcessId, key: Option<ContextKey>) {
        set(&mut self.processes, id.index(), key);
    }

    /// The context of a process, if it is shown.
    pub(super) fn process(&self, id: ProcessId) -> Option<ContextKey> {
        self.processes.get(id.index()).copied().flatten()
    }

    /// Notes the contexts of a thread: its process's and its own.
    pub(super) fn set_thread(&mut self, id: ThreadId, keys: Option<(ContextKey, ContextKey)>) {
        set(&mut self.threads, id.index(), keys);
    }

    /// The contexts of a thread.
    pub(super) fn thread(&self, id: ThreadId) -> Option<(ContextKey, ContextKey)> {
        self.threads.get(id.index()).copied().flatten()
    }

    /// Begins where this one ends: what processes are called goes on.
    pub(super) fn next(&self, contexts: &mut Contexts) -> Generation {
        let mut next = Generation::default();
        next.tables.session = self.tables.session.clone();
        contexts.translate(&self.tables, &mut next.tables);
        let containers = next.tables.containers();
        next.containers_seen = containers.map(|(_, container)| container.clone()).collect();
        next
    }
}

/// Ids of tables are dense: this grows as they do.
fn set<T: Copy>(places: &mut Vec<Option<T>>, index: usize, value: Option<T>) {
    if places.len() <= index {
        places.resize(index + 1, None);
    }
    places[index] = value;
}

fn bytes_of(definition: &Definition) -> usize {
    let more = match definition {
        Definition::String(_, text) => text.len() * 2,
        Definition::Symbol(_, Symbol::Lines(lines)) => size_of_val(&**lines),
        Definition::Code(code) => code.bytes.len(),
        Definition::Process(_, process) => process.namespace_pids.len() * size_of::<Pid>(),
        Definition::Traced(_, traced) => size_of_val(&*traced.parameters),
        _ => 0,
    };
    DEFINITION_BYTES + more
}
