//! The definitions of one epoch: each thing is announced once, before its first use.
//!
//! Things of the recording (modules, functions) -> dense ids of the epoch and [`Definition`]s. When
//! an epoch is full, a new one starts with empty tables; whatever is used in it is announced again.
//!
//! What does not belong here: where names come from (`names`), processes (`process`).

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::calls::TracedProbe;
use super::mapping::{CodeModule, CodeRange};
use super::options::SourceOptions;
use super::symbolize::{Answer, FunctionInfo};
use profiler_model::{
    Code, Container, ContainerId, Definition, Frame, FrameId, FrameKind, Function, FunctionId,
    Line, Mapping, Module, ModuleId, Named, Parameter, Process, ProcessId, Session, Source,
    SourceId, Stack, StackId, StringId, Symbol, Tables, Thread, ThreadId, Timestamp, Traced,
};

/// What a definition costs in memory beyond the texts in it: the definition, its two places in the
/// tables, and what lies around it in a hash table.
const DEFINITION_BYTES: u64 = 64;

/// Definitions of one epoch.
#[derive(Debug, Default)]
pub(super) struct EpochTables {
    /// Number of this epoch.
    pub(super) number: u32,
    tables: Tables,
    definitions: Vec<Definition>,
    modules: FxHashMap<u64, ModuleId>,
    bytes: u64,
}

impl EpochTables {
    /// Starts an epoch.
    pub(super) fn start(number: u32, session: &Session) -> EpochTables {
        let mut tables = EpochTables {
            number,
            ..EpochTables::default()
        };
        tables.define(Definition::Session(session.clone()), 0);
        tables
    }

    /// Announces what is known of the session by now, in place of what was announced and not taken.
    pub(super) fn session(&mut self, session: &Session) {
        let is_session =
            |definition: &&mut Definition| matches!(definition, Definition::Session(_));
        let session = Definition::Session(session.clone());
        match self.definitions.iter_mut().find(is_session) {
            Some(announced) => *announced = session,
            None => self.define(session, 0),
        }
    }

    /// All that was defined.
    pub(super) fn all(&self) -> &Tables {
        &self.tables
    }

    /// Estimated memory of all that was defined.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Takes the definitions made since the last call.
    pub(super) fn take(&mut self) -> Vec<Definition> {
        std::mem::take(&mut self.definitions)
    }

    /// The id of a string.
    pub(super) fn string(&mut self, text: &str) -> StringId {
        let (id, new) = self.tables.intern_string(text);
        if new {
            self.define(
                Definition::String(id, Arc::from(text)),
                text.len() as u64 * 2,
            );
        }
        id
    }

    /// The id of an event source.
    pub(super) fn source(&mut self, source: Source) -> SourceId {
        let (id, new) = self.tables.sources.intern(source.clone());
        if new {
            self.define(Definition::Source(id, source), 0);
        }
        id
    }

    /// The id of an event source of the session.
    pub(super) fn source_of(&mut self, source: &SourceOptions) -> SourceId {
        let definition = Source {
            name: self.string(&source.name),
            unit: source.unit,
            frequency_hz: source.frequency_hz,
            period: source.period,
        };
        self.source(definition)
    }

    /// The id of a container, announced again if more is known of it than before.
    pub(super) fn container(&mut self, container: Container) -> ContainerId {
        let (id, new) = self.tables.intern_container(container.clone());
        if new {
            self.define(Definition::Container(id, container), 0);
        }
        id
    }

    /// The id of a process, announced again if something about it has changed.
    pub(super) fn process(&mut self, process: Process) -> ProcessId {
        let (id, new) = self.tables.intern_process(process.clone());
        if new {
            self.define(Definition::Process(id, process), 0);
        }
        id
    }

    /// The id of a thread, announced again if its name has changed.
    pub(super) fn thread(&mut self, thread: Thread) -> ThreadId {
        let (id, new) = self.tables.intern_thread(thread.clone());
        if new {
            self.define(Definition::Thread(id, thread), 0);
        }
        id
    }

    /// Says from when on a thread had a name.
    pub(super) fn named(&mut self, thread: ThreadId, from: Timestamp, name: &str) {
        let name = self.string(name);
        let named = Named { thread, from, name };
        self.tables.add_name(named);
        self.define(Definition::Named(named), 0);
    }

    /// The id of a module.
    pub(super) fn module(&mut self, module: &CodeModule) -> ModuleId {
        if let Some(&id) = self.modules.get(&module.uid) {
            return id;
        }
        let definition = Module {
            kind: module.kind,
            path: match module.copy {
                None => self.string(&module.path),
                Some(copy) => self.string(&format!("{} (copy {copy:08x})", module.path)),
            },
            build_id: module.build_id.clone(),
            address_bias: module.bias,
        };
        let (id, new) = self.tables.modules.intern(definition.clone());
        if new {
            self.define(Definition::Module(id, definition), 0);
        }
        self.modules.insert(module.uid, id);
        id
    }

    /// Announces a mapping.
    pub(super) fn mapping(&mut self, process: ProcessId, range: &CodeRange) {
        let mapping = Mapping {
            process,
            module: self.module(&range.module),
            start: range.start,
            end: range.end,
            offset: range.offset,
            at: range.at,
        };
        let (id, new) = self.tables.mappings.intern(mapping.clone());
        if new {
            self.define(Definition::Mapping(id, mapping), 0);
        }
    }

    /// The id of a frame, and whether it is new in this epoch.
    pub(super) fn frame(
        &mut self,
        kind: FrameKind,
        module: Option<&CodeModule>,
        address: u64,
    ) -> (FrameId, bool) {
        let frame = Frame {
            kind,
            module: module.map(|module| self.module(module)),
            address,
        };
        let (id, new) = self.tables.frames.intern(frame);
        if new {
            self.define(Definition::Frame(id, frame), 0);
        }
        (id, new)
    }

    /// The id of a stack.
    pub(super) fn stack(&mut self, parent: Option<StackId>, frame: FrameId) -> StackId {
        let stack = Stack { parent, frame };
        let (id, new) = self.tables.stacks.intern(stack);
        if new {
            self.define(Definition::Stack(id, stack), 0);
        }
        id
    }

    /// Says what a frame means, unless that was said in this epoch; whether it was not.
    pub(super) fn answer(
        &mut self,
        frame: FrameId,
        module: Option<&CodeModule>,
        answer: &Answer,
    ) -> bool {
        if self.tables.symbol(frame).is_some() {
            return false;
        }
        let symbol = match answer {
            Answer::NotYet => return false,
            Answer::Unknown(reason) => Symbol::Unknown(*reason),
            Answer::Lines(lines) => {
                // One function is one, wherever its code is made anew.
                let module = module.map(|module| self.module(module.first()));
                let lines = lines.iter().map(|(function, line)| Line {
                    function: self.function(function, module),
                    line: *line,
                });
                Symbol::Lines(lines.collect())
            }
        };
        self.tables.set_symbol(frame, symbol.clone());
        self.define(Definition::Symbol(frame, symbol), 0);
        true
    }

    /// Adds a piece of code.
    pub(super) fn code(&mut self, module: &CodeModule, address: u64, bytes: &Arc<[u8]>) {
        let code = Code {
            module: self.module(module),
            address,
            bytes: bytes.clone(),
        };
        if self.tables.add_code(code.clone()) {
            self.define(Definition::Code(code), bytes.len() as u64);
        }
    }

    fn function(&mut self, info: &FunctionInfo, module: Option<ModuleId>) -> FunctionId {
        let name = match info.start {
            Some(start) if info.name.is_empty() => {
                let name = self.tables.nameless(module, start);
                self.string(&name)
            }
            _ => self.string(&info.name),
        };
        let function = Function {
            name,
            linkage_name: info.linkage_name.as_deref().map(|name| self.string(name)),
            module,
            file: info.file.as_deref().map(|file| self.string(file)),
            line: info.line,
            start: info.start,
            size: info.size,
        };
        let (id, new) = self.tables.functions.intern(function.clone());
        if new {
            self.define(Definition::Function(id, function), 0);
        }
        id
    }

    /// The function of a probe, announced with how it is traced.
    pub(super) fn traced(&mut self, probe: &TracedProbe, module: &CodeModule) -> FunctionId {
        let function = FunctionInfo {
            name: probe.name.clone(),
            linkage_name: probe.linkage_name.clone(),
            file: probe.source.clone(),
            line: probe.declared,
            start: Some(probe.start),
            size: (probe.size > 0).then_some(probe.size),
        };
        let module = self.module(module);
        let function = self.function(&function, Some(module));
        let values = probe.values.as_deref();
        let parameters = values.map_or_else(Vec::new, |values| values.parameters());
        let parameters = parameters.iter().map(|(name, kind)| Parameter {
            name: self.string(name),
            kind: kind.as_deref().map(|kind| self.string(kind)),
        });
        let traced = Traced {
            kind: probe.kind,
            entry_offset: probe.entry_offset,
            returns: probe.returns,
            cost_ns: probe.cost_ns,
            line: probe.line,
            parameters: parameters.collect(),
            result: values
                .and_then(|values| values.result())
                .map(|kind| self.string(&kind)),
        };
        if self.tables.traced(function) != Some(&traced) {
            self.tables.set_traced(function, traced.clone());
            self.define(Definition::Traced(function, traced), 0);
        }
        function
    }

    fn define(&mut self, definition: Definition, text_bytes: u64) {
        self.bytes += DEFINITION_BYTES + text_bytes;
        self.definitions.push(definition);
    }
}
