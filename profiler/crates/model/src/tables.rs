//! Tables: the fold over definitions that capture readers, live clients and exporters share.
//!
//! [`Tables`] interns by content, so that equal things of several epochs (or captures) get one id.
//! [`Epoch`] translates the ids of one epoch of a stream into those of the tables. The recording
//! side interns into a [`Tables`] of its own that it starts anew with each epoch.

use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault, Hash, RandomState};
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHasher};

use super::definition::*;
use super::event::*;
use super::id::*;
use super::map_ids::MapIds;
use super::renames::{Named, NamesThen, Renames};

/// Values of one kind, each content once. What others choose freely, as texts are, is hashed with a key (`RandomState`):
/// else they could choose texts that meet in one place.
#[derive(Clone, Debug)]
pub struct Table<I, T, S = BuildHasherDefault<FxHasher>> {
    items: Vec<T>,
    ids: HashMap<T, I, S>,
}

impl<I, T, S: Default> Default for Table<I, T, S> {
    fn default() -> Self {
        Table {
            items: Vec::new(),
            ids: HashMap::default(),
        }
    }
}

impl<I: EpochId, T: Clone + Eq + Hash, S: BuildHasher> Table<I, T, S> {
    /// The id of `value`, and whether it is new.
    pub fn intern(&mut self, value: T) -> (I, bool) {
        if let Some(&id) = self.ids.get(&value) {
            return (id, false);
        }
        let id = I::from_index(self.items.len());
        self.items.push(value.clone());
        self.ids.insert(value, id);
        (id, true)
    }

    /// The id of a value that is there.
    pub fn find(&self, value: &T) -> Option<I> {
        self.ids.get(value).copied()
    }

    /// The value of an id of this table.
    pub fn get(&self, id: I) -> Option<&T> {
        self.items.get(id.index())
    }

    /// How many values there are.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// All values with their ids, in order of id.
    pub fn iter(&self) -> impl Iterator<Item = (I, &T)> {
        self.items
            .iter()
            .enumerate()
            .map(|(index, item)| (I::from_index(index), item))
    }
}

/// Behind the address of a function that has no name.
const NAMELESS: &str = " (function)";

/// Everything defined so far.
#[derive(Clone, Debug, Default)]
pub struct Tables {
    /// The recording (of several merged ones, the last).
    pub session: Session,
    /// The capture has no end: the recording was killed or goes on, or the file is cut off.
    pub is_cut_off: bool,
    strings: Table<StringId, Arc<str>, RandomState>,
    /// Event sources.
    pub sources: Table<SourceId, Source>,
    /// Modules.
    pub modules: Table<ModuleId, Module>,
    /// Mappings.
    pub mappings: Table<MappingId, Mapping>,
    /// Functions.
    pub functions: Table<FunctionId, Function>,
    /// Frames.
    pub frames: Table<FrameId, Frame>,
    /// Stacks.
    pub stacks: Table<StackId, Stack>,
    containers: Vec<Container>,
    /// By path and id; by the path alone, the one that was announced last.
    container_ids: FxHashMap<(StringId, Option<StringId>), ContainerId>,
    processes: Vec<Process>,
    process_ids: FxHashMap<(Pid, Timestamp), ProcessId>,
    threads: Vec<Thread>,
    thread_ids: FxHashMap<(ProcessId, Tid, Timestamp), ThreadId>,
    renames: Renames,
    symbols: FxHashMap<FrameId, Symbol>,
    code: FxHashMap<(ModuleId, u64), Arc<[u8]>>,
    traced: FxHashMap<FunctionId, Traced>,
    declared: FxHashMap<FunctionId, Declared>,
}

/// Where a function is declared, as its file's debug information has it. It is not recorded: who needs it asks the file
/// again, which is there where a program is built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Declared {
    /// Line of its name.
    pub line: u32,
    /// What the compiler calls it, of those that have no symbol because each use was inlined.
    pub linkage_name: Option<StringId>,
}

impl Tables {
    /// The id of a string, and whether it is new.
    pub fn intern_string(&mut self, text: &str) -> (StringId, bool) {
        match self.strings.ids.get(text) {
            Some(&id) => (id, false),
            None => self.strings.intern(Arc::from(text)),
        }
    }

    /// The text of a string id; empty if it is not defined.
    pub fn string(&self, id: StringId) -> &str {
        self.strings.get(id).map_or("", |text| text)
    }

    /// The arguments of a process; none if they are not known one by one.
    pub fn arguments(&self, process: &Process) -> Option<Vec<&str>> {
        let arguments = self.string(process.command?).strip_suffix('\0')?;
        Some(arguments.split('\0').collect())
    }

    /// The same for people, joined by spaces; none if they are not known.
    pub fn command_line(&self, process: &Process) -> Option<String> {
        Some(crate::text::command_line(self.string(process.command?)))
    }

    /// The id of a string that is there.
    pub fn find_string(&self, text: &str) -> Option<StringId> {
        self.strings.ids.get(text).copied()
    }

    /// The id of a process that is there, by its identity.
    pub fn find_process(&self, pid: Pid, started: Timestamp) -> Option<ProcessId> {
        self.process_ids.get(&(pid, started)).copied()
    }

    /// The id of a thread that is there, by its identity.
    pub fn find_thread(
        &self,
        process: ProcessId,
        tid: Tid,
        started: Timestamp,
    ) -> Option<ThreadId> {
        self.thread_ids.get(&(process, tid, started)).copied()
    }

    /// The id of a container by its identity, and whether it is new or more of it is known than before.
    /// Another id at the same path is another container, which came after the first or ran on another
    /// machine.
    pub fn intern_container(&mut self, container: Container) -> (ContainerId, bool) {
        let (exact, latest) = (
            (container.cgroup, container.id),
            (container.cgroup, None::<StringId>),
        );
        let known = self.container_ids.get(&exact).copied().or_else(|| {
            let id = *self.container_ids.get(&latest)?;
            self.containers[id.index()].id.is_none().then_some(id)
        });
        let (id, changed) = match known {
            Some(id) => {
                let known = &mut self.containers[id.index()];
                let before = known.clone();
                // What one announcement knew is not forgotten for another that does not.
                for (known, text) in known.texts_mut().into_iter().zip(container.texts()) {
                    *known = text.or(*known);
                }
                (id, *known != before)
            }
            None => {
                let id = ContainerId::from_index(self.containers.len());
                self.containers.push(container);
                (id, true)
            }
        };
        self.container_ids.insert(exact, id);
        self.container_ids.insert(latest, id);
        (id, changed)
    }

    /// The id of a process by its identity, and whether it is new or differs from before.
    pub fn intern_process(&mut self, process: Process) -> (ProcessId, bool) {
        match self.process_ids.get(&(process.pid, process.started)) {
            Some(&id) => {
                let changed = self.processes[id.index()] != process;
                self.processes[id.index()] = process;
                (id, changed)
            }
            None => {
                let id = ProcessId::from_index(self.processes.len());
                self.process_ids.insert((process.pid, process.started), id);
                self.processes.push(process);
                (id, true)
            }
        }
    }

    /// The id of a thread by its identity, and whether it is new or differs from before.
    pub fn intern_thread(&mut self, thread: Thread) -> (ThreadId, bool) {
        match self
            .thread_ids
            .get(&(thread.process, thread.tid, thread.started))
        {
            Some(&id) => {
                let changed = self.threads[id.index()] != thread;
                self.threads[id.index()] = thread;
                (id, changed)
            }
            None => {
                let id = ThreadId::from_index(self.threads.len());
                self.thread_ids
                    .insert((thread.process, thread.tid, thread.started), id);
                self.threads.push(thread);
                (id, true)
            }
        }
    }

    /// Takes from when on a thread had a name.
    pub fn add_name(&mut self, named: Named) {
        self.renames.add(named);
    }

    /// What a thread and its process were called at a time, if that has changed.
    pub fn names_at(&self, thread: ThreadId, at: Timestamp) -> NamesThen {
        if self.renames.is_empty() {
            return NamesThen::default();
        }
        let main = self.thread(thread).and_then(|thread| {
            let process = self.process(thread.process)?;
            self.find_thread(thread.process, Tid(process.pid.0), process.started)
        });
        NamesThen {
            thread: self.renames.at(thread, at),
            process: main.and_then(|main| self.renames.at(main, at)),
        }
    }

    /// The names that a thread has had, if there were several.
    pub fn names_of(&self, thread: ThreadId) -> impl Iterator<Item = Named> + '_ {
        self.renames.of(thread)
    }

    /// How a function is traced; the last definition counts.
    pub fn set_traced(&mut self, function: FunctionId, traced: Traced) {
        self.traced.insert(function, traced);
    }

    /// How a function is traced, if it is.
    pub fn traced(&self, function: FunctionId) -> Option<&Traced> {
        self.traced.get(&function)
    }

    /// Sets where a function is declared.
    pub fn set_declared(&mut self, function: FunctionId, declared: Declared) {
        self.declared.insert(function, declared);
    }

    /// Where a function is declared, if that was asked for and is known.
    pub fn declared(&self, function: FunctionId) -> Option<Declared> {
        self.declared.get(&function).copied()
    }

    /// The line that a function is defined at: where its name is declared if that is known, else, of one that was traced,
    /// the line of its first instruction.
    pub fn line_of(&self, function: FunctionId) -> Option<u32> {
        let lines = [
            self.declared(function).map(|it| it.line),
            self.functions.get(function).map(|it| it.line),
            self.traced(function).map(|it| it.line),
        ];
        lines.into_iter().flatten().find(|line| *line > 0)
    }

    /// All traced functions, in no order.
    pub fn all_traced(&self) -> impl Iterator<Item = (FunctionId, &Traced)> {
        self.traced
            .iter()
            .map(|(&function, traced)| (function, traced))
    }

    /// Sets what is known of a frame. A name is never replaced by [`Symbol::Unknown`].
    pub fn set_symbol(&mut self, frame: FrameId, symbol: Symbol) {
        if matches!(symbol, Symbol::Unknown(_)) && self.symbols.contains_key(&frame) {
            return;
        }
        self.symbols.insert(frame, symbol);
    }

    /// What is known of a frame; none if no answer has come.
    pub fn symbol(&self, frame: FrameId) -> Option<&Symbol> {
        self.symbols.get(&frame)
    }

    /// Source lines and functions of a frame, innermost first; empty if there is no name.
    pub fn lines(&self, frame: FrameId) -> &[Line] {
        match self.symbols.get(&frame) {
            Some(Symbol::Lines(lines)) => lines,
            _ => &[],
        }
    }

    /// A container.
    pub fn container(&self, id: ContainerId) -> Option<&Container> {
        self.containers.get(id.index())
    }

    /// The id of a container that is there, by the path of its cgroup; the one announced last, if several
    /// have had it.
    pub fn find_container(&self, cgroup: StringId) -> Option<ContainerId> {
        self.container_ids.get(&(cgroup, None)).copied()
    }

    /// All containers, in order of id.
    pub fn containers(&self) -> impl Iterator<Item = (ContainerId, &Container)> {
        let containers = self.containers.iter().enumerate();
        containers.map(|(index, container)| (ContainerId::from_index(index), container))
    }

    /// The container that a process runs in, if it does.
    pub fn container_of(&self, process: ProcessId) -> Option<&Container> {
        self.container(self.process(process)?.container?)
    }

    /// What a container is called: `namespace/pod/name`, else its name, its unit, the beginning of its
    /// id, or the last part of its cgroup's path.
    pub fn container_label(&self, container: &Container) -> String {
        let text = |id: Option<StringId>| id.map(|id| self.string(id)).filter(|t| !t.is_empty());
        if let Some(pod) = text(container.pod) {
            let parts = [text(container.namespace), Some(pod), text(container.name)];
            return parts.into_iter().flatten().collect::<Vec<_>>().join("/");
        }
        if let Some(name) = text(container.name).or_else(|| text(container.unit)) {
            return name.to_owned();
        }
        if let Some(id) = text(container.id) {
            return Container::short_id(id).to_owned();
        }
        let path = self.string(container.cgroup);
        let last = path.rsplit('/').find(|part| !part.is_empty());
        last.unwrap_or(path).to_owned()
    }

    /// A process.
    pub fn process(&self, id: ProcessId) -> Option<&Process> {
        self.processes.get(id.index())
    }

    /// All processes, in order of id.
    pub fn processes(&self) -> impl Iterator<Item = (ProcessId, &Process)> {
        self.processes
            .iter()
            .enumerate()
            .map(|(i, p)| (ProcessId::from_index(i), p))
    }

    /// A thread.
    pub fn thread(&self, id: ThreadId) -> Option<&Thread> {
        self.threads.get(id.index())
    }

    /// All threads, in order of id.
    pub fn threads(&self) -> impl Iterator<Item = (ThreadId, &Thread)> {
        self.threads
            .iter()
            .enumerate()
            .map(|(i, t)| (ThreadId::from_index(i), t))
    }

    /// The frames of a stack, leaf first.
    pub fn frames_of(&self, stack: Option<StackId>) -> impl Iterator<Item = FrameId> + '_ {
        std::iter::successors(stack.and_then(|id| self.stacks.get(id)), |stack| {
            stack.parent.and_then(|id| self.stacks.get(id))
        })
        .map(|stack| stack.frame)
    }

    /// The frames of both parts of a stack, leaf first: the kernel's lies on top of the user's.
    pub fn frames_of_both(
        &self,
        kernel: Option<StackId>,
        user: Option<StackId>,
    ) -> impl Iterator<Item = FrameId> + '_ {
        self.frames_of(kernel).chain(self.frames_of(user))
    }

    /// Pieces of code: module, frame address of the first byte, bytes.
    pub fn code(&self) -> impl Iterator<Item = (ModuleId, u64, &Arc<[u8]>)> {
        self.code
            .iter()
            .map(|(&(module, address), bytes)| (module, address, bytes))
    }

    /// Keeps a piece of code; the longest at an address wins. Says whether it is new.
    pub fn add_code(&mut self, code: Code) -> bool {
        let known = self
            .code
            .entry((code.module, code.address))
            .or_insert_with(|| Arc::from([]));
        let new = known.len() < code.bytes.len();
        if new {
            *known = code.bytes;
        }
        new
    }

    /// How a frame is shown: its outermost function's name, else module and address, else the
    /// address. The build id is not part of it (see [`Module::build_id`]).
    pub fn frame_name(&self, frame: FrameId) -> String {
        if let Some(line) = self.lines(frame).last()
            && let Some(function) = self.functions.get(line.function)
        {
            return self.string(function.name).to_owned();
        }
        self.frame_location(frame)
    }

    /// A frame as `module+0xaddress`, or `[unknown]+0xaddress` outside all mappings. Of a file it is the address that its
    /// symbols have, and that `objdump -d` shows.
    pub fn frame_location(&self, frame: FrameId) -> String {
        match self.frames.get(frame) {
            Some(frame) => self.location(frame.module, frame.address),
            None => "[undefined]".to_owned(),
        }
    }

    fn location(&self, module: Option<ModuleId>, address: u64) -> String {
        let bias = module.and_then(|id| self.modules.get(id));
        let bias = bias.map_or(0, |module| module.address_bias);
        self.place(module, address.wrapping_add(bias))
    }

    fn place(&self, module: Option<ModuleId>, address: u64) -> String {
        let module = module.and_then(|id| self.modules.get(id));
        let name = module.map_or("[unknown]", |module| {
            let path = self.string(module.path);
            path.rsplit_once('/').map_or(path, |(_, name)| name)
        });
        format!("{name}+{address:#x}")
    }

    /// What a function is called that has bounds but no name: where it starts.
    pub fn nameless(&self, module: Option<ModuleId>, start: u64) -> String {
        self.location(module, start) + NAMELESS
    }

    /// Gives a function of a recording the name that it has without one: earlier versions wrote where it starts in the
    /// file, rather than its address.
    fn rename_nameless(&mut self, function: &mut Function) {
        let Some(start) = function.start.filter(|_| function.linkage_name.is_none()) else {
            return;
        };
        let place = self.string(function.name).strip_suffix(NAMELESS);
        if place.is_some_and(|place| place == self.place(function.module, start)) {
            let name = self.nameless(function.module, start);
            function.name = self.intern_string(&name).0;
        }
    }

    /// Whether a function has a name of its own, rather than what [`Tables::nameless`] gives it.
    pub fn is_named(&self, function: FunctionId) -> bool {
        self.functions.get(function).is_some_and(|function| {
            function.linkage_name.is_some()
                || function.start.is_none()
                || !self.string(function.name).ends_with(NAMELESS)
        })
    }

    /// Whether all functions of a frame are known by their names.
    pub fn has_names(&self, frame: FrameId) -> bool {
        let lines = self.lines(frame);
        !lines.is_empty() && lines.iter().all(|line| self.is_named(line.function))
    }
}

/// An id was used that the epoch has not defined: the stream is damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{kind} {id} is used but not defined")]
pub struct Undefined {
    /// What kind of id.
    pub kind: &'static str,
    /// The id as written.
    pub id: u32,
}

/// Translates the ids of one epoch of a stream into those of a [`Tables`].
#[derive(Clone, Debug, Default)]
pub struct Epoch {
    strings: Ids<StringId>,
    sources: Ids<SourceId>,
    containers: Ids<ContainerId>,
    processes: Ids<ProcessId>,
    threads: Ids<ThreadId>,
    modules: Ids<ModuleId>,
    mappings: Ids<MappingId>,
    functions: Ids<FunctionId>,
    frames: Ids<FrameId>,
    stacks: Ids<StackId>,
}

#[derive(Clone, Debug)]
struct Ids<I>(Vec<Option<I>>);

impl<I> Default for Ids<I> {
    fn default() -> Self {
        Ids(Vec::new())
    }
}

/// Ids are dense: one that is this far beyond the known ones is damage, not a big table.
const MAX_GAP: usize = 1 << 16;

impl<I: EpochId> Ids<I> {
    fn set(&mut self, local: I, global: I) -> Result<(), Undefined> {
        let index = local.index();
        if index >= self.0.len() {
            if index - self.0.len() > MAX_GAP {
                return Err(Undefined {
                    kind: "a far id",
                    id: local.get(),
                });
            }
            self.0.resize(index + 1, None);
        }
        self.0[index] = Some(global);
        Ok(())
    }

    fn get(&self, kind: &'static str, local: I) -> Result<I, Undefined> {
        let known = self.0.get(local.index()).copied().flatten();
        known.ok_or(Undefined {
            kind,
            id: local.get(),
        })
    }
}

impl Epoch {
    /// Folds one definition of this epoch into `tables`.
    pub fn define(&mut self, tables: &mut Tables, definition: Definition) -> Result<(), Undefined> {
        match definition {
            Definition::Session(session) => tables.session = session,
            Definition::String(id, text) => {
                let (global, _) = tables.intern_string(&text);
                self.strings.set(id, global)?;
            }
            Definition::Source(id, mut source) => {
                source.map_ids(self)?;
                self.sources.set(id, tables.sources.intern(source).0)?;
            }
            Definition::Container(id, mut container) => {
                container.map_ids(self)?;
                self.containers
                    .set(id, tables.intern_container(container).0)?;
            }
            Definition::Process(id, mut process) => {
                process.map_ids(self)?;
                self.processes.set(id, tables.intern_process(process).0)?;
            }
            Definition::Thread(id, mut thread) => {
                thread.map_ids(self)?;
                self.threads.set(id, tables.intern_thread(thread).0)?;
            }
            Definition::Named(mut named) => {
                named.map_ids(self)?;
                tables.add_name(named);
            }
            Definition::Module(id, mut module) => {
                module.map_ids(self)?;
                self.modules.set(id, tables.modules.intern(module).0)?;
            }
            Definition::Mapping(id, mut mapping) => {
                mapping.map_ids(self)?;
                self.mappings.set(id, tables.mappings.intern(mapping).0)?;
            }
            Definition::Function(id, mut function) => {
                function.map_ids(self)?;
                tables.rename_nameless(&mut function);
                self.functions
                    .set(id, tables.functions.intern(function).0)?;
            }
            Definition::Frame(id, mut frame) => {
                frame.map_ids(self)?;
                self.frames.set(id, tables.frames.intern(frame).0)?;
            }
            Definition::Stack(id, mut stack) => {
                stack.map_ids(self)?;
                self.stacks.set(id, tables.stacks.intern(stack).0)?;
            }
            Definition::Symbol(frame, mut symbol) => {
                let frame = self.frame(frame)?;
                symbol.map_ids(self)?;
                tables.set_symbol(frame, symbol);
            }
            Definition::Code(mut code) => {
                code.map_ids(self)?;
                tables.add_code(code);
            }
            Definition::Traced(function, mut traced) => {
                let function = MapIds::function(self, function)?;
                traced.map_ids(self)?;
                tables.set_traced(function, traced);
            }
        }
        Ok(())
    }

    /// The tables' id of a process of this epoch.
    pub fn process(&self, id: ProcessId) -> Option<ProcessId> {
        self.processes.get("process", id).ok()
    }

    /// The tables' id of a container of this epoch.
    pub fn container(&self, id: ContainerId) -> Option<ContainerId> {
        self.containers.get("container", id).ok()
    }

    /// The tables' id of a function of this epoch.
    pub fn function(&self, id: FunctionId) -> Option<FunctionId> {
        self.functions.get("function", id).ok()
    }

    /// The tables' id of a thread of this epoch.
    pub fn thread(&self, id: ThreadId) -> Option<ThreadId> {
        self.threads.get("thread", id).ok()
    }

    /// Translates the ids of an event of this epoch.
    pub fn event(&mut self, mut event: Event) -> Result<Event, Undefined> {
        event.map_ids(self)?;
        Ok(event)
    }
}

/// Local ids -> those of the tables.
impl MapIds for Epoch {
    type Error = Undefined;

    fn string(&mut self, id: StringId) -> Result<StringId, Undefined> {
        self.strings.get("string", id)
    }

    fn source(&mut self, id: SourceId) -> Result<SourceId, Undefined> {
        self.sources.get("source", id)
    }

    fn container(&mut self, id: ContainerId) -> Result<ContainerId, Undefined> {
        self.containers.get("container", id)
    }

    fn process(&mut self, id: ProcessId) -> Result<ProcessId, Undefined> {
        self.processes.get("process", id)
    }

    fn thread(&mut self, id: ThreadId) -> Result<ThreadId, Undefined> {
        self.threads.get("thread", id)
    }

    fn module(&mut self, id: ModuleId) -> Result<ModuleId, Undefined> {
        self.modules.get("module", id)
    }

    fn function(&mut self, id: FunctionId) -> Result<FunctionId, Undefined> {
        self.functions.get("function", id)
    }

    fn frame(&mut self, id: FrameId) -> Result<FrameId, Undefined> {
        self.frames.get("frame", id)
    }

    fn stack(&mut self, id: StackId) -> Result<StackId, Undefined> {
        self.stacks.get("stack", id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_things_of_two_epochs_get_one_id() {
        let mut tables = Tables::default();
        let (a, b) = (StringId::from_index(0), StringId::from_index(1));
        let mut first = Epoch::default();
        first
            .define(&mut tables, Definition::String(a, "main".into()))
            .unwrap();
        let mut second = Epoch::default();
        second
            .define(&mut tables, Definition::String(a, "other".into()))
            .unwrap();
        second
            .define(&mut tables, Definition::String(b, "main".into()))
            .unwrap();
        assert_eq!(first.string(a), second.string(b));
        assert_ne!(second.string(a), second.string(b));
    }

    #[test]
    fn arguments_are_told_apart() {
        for (recorded, list, line) in [
            (
                "sh\0-c\0a b\0\0",
                Some(&["sh", "-c", "a b", ""][..]),
                "sh -c a b",
            ),
            ("nginx: worker\0", Some(&["nginx: worker"]), "nginx: worker"),
            // As earlier versions have it.
            ("sh -c a b", None, "sh -c a b"),
        ] {
            let mut tables = Tables::default();
            let process = Process {
                pid: Pid(7),
                started: Timestamp(0),
                parent: None,
                name: tables.intern_string("sh").0,
                executable: None,
                command: Some(tables.intern_string(recorded).0),
                namespace_pids: Vec::new(),
                uid: None,
                cgroup: None,
                container: None,
            };
            assert_eq!(tables.arguments(&process).as_deref(), list);
            assert_eq!(tables.command_line(&process).as_deref(), Some(line));
        }
    }

    #[test]
    fn undefined_ids_are_errors() {
        let mut tables = Tables::default();
        let mut epoch = Epoch::default();
        let stack = Stack {
            parent: None,
            frame: FrameId::from_index(6),
        };
        let error = epoch.define(
            &mut tables,
            Definition::Stack(StackId::from_index(0), stack),
        );
        assert_eq!(
            error,
            Err(Undefined {
                kind: "frame",
                id: 7
            })
        );
        let far = StringId::from_index(1 << 30);
        assert!(
            epoch
                .define(&mut tables, Definition::String(far, "x".into()))
                .is_err()
        );
    }

    #[test]
    fn what_has_no_name_is_at_the_address_that_its_file_says() {
        let mut tables = Tables::default();
        let mut epoch = Epoch::default();
        let texts = ["/bin/app", "app+0x1210 (function)", "app+0x1999 (function)"];
        let [path, nameless, named] = [0, 1, 2].map(StringId::from_index);
        for (id, text) in [path, nameless, named].into_iter().zip(texts) {
            let text = Definition::String(id, text.into());
            epoch.define(&mut tables, text).unwrap();
        }
        let id = ModuleId::from_index(0);
        let module = Module {
            kind: ModuleKind::File,
            path,
            build_id: None,
            address_bias: 0x20_0000,
        };
        let module = Definition::Module(id, module);
        epoch.define(&mut tables, module).unwrap();
        let mut name_of = |index, name| {
            let function = Function {
                name,
                linkage_name: None,
                module: Some(id),
                file: None,
                line: 0,
                start: Some(0x1210),
                size: None,
            };
            let id = FunctionId::from_index(index);
            let function = Definition::Function(id, function);
            epoch.define(&mut tables, function).unwrap();
            let function = tables.functions.get(epoch.function(id).unwrap());
            tables.string(function.unwrap().name).to_owned()
        };
        // As earlier versions recorded it, and what a function may be called.
        assert_eq!(name_of(0, nameless), "app+0x201210 (function)");
        assert_eq!(name_of(1, named), texts[2]);
        let module = Some(epoch.module(id).unwrap());
        assert_eq!(tables.nameless(module, 0x1210), "app+0x201210 (function)");
        let frame = Frame {
            kind: FrameKind::Native,
            module,
            address: 0x1234,
        };
        let frame = tables.frames.intern(frame).0;
        assert_eq!(tables.frame_location(frame), "app+0x201234");
        assert_eq!(tables.location(None, 0x1234), "[unknown]+0x1234");
    }

    #[test]
    fn a_name_survives_a_later_unknown() {
        let mut tables = Tables::default();
        let frame = FrameId::from_index(0);
        let line = Line {
            function: FunctionId::from_index(0),
            line: 1,
        };
        tables.set_symbol(frame, Symbol::Lines([line].into()));
        tables.set_symbol(frame, Symbol::Unknown(UnknownReason::NoFile));
        assert_eq!(tables.lines(frame), [line]);
    }

    #[test]
    fn a_container_is_its_path_and_its_id() {
        let mut tables = Tables::default();
        let mut text = |text: &str| Some(tables.intern_string(text).0);
        let (cgroup, a, b) = (text("/lxc/web").unwrap(), text("a"), text("b"));
        let (name, image) = (text("web"), text("debian"));
        let container = |id, name, image| Container {
            cgroup,
            engine: None,
            id,
            name,
            image,
            pod: None,
            namespace: None,
            unit: None,
        };
        let first = tables.intern_container(container(None, None, None));
        assert!(first.1, "it is new");
        // Its id and more becomes known, piece by piece; nothing is forgotten.
        assert_eq!(
            tables.intern_container(container(a, name, None)),
            (first.0, true)
        );
        assert_eq!(
            tables.intern_container(container(a, None, image)),
            (first.0, true)
        );
        assert_eq!(
            tables.intern_container(container(None, None, None)),
            (first.0, false)
        );
        assert_eq!(tables.container(first.0), Some(&container(a, name, image)));
        // Another one at the same path, in either order.
        let (second, new) = tables.intern_container(container(b, None, None));
        assert!(new && second != first.0);
        assert_eq!(tables.container(second), Some(&container(b, None, None)));
        assert_eq!(tables.find_container(cgroup), Some(second));
        let (again, changed) = tables.intern_container(container(a, None, None));
        assert_eq!((again, changed), (first.0, false));
        assert_eq!(tables.containers().count(), 2);
    }

    #[test]
    fn containers_are_called_by_the_best_that_is_known() {
        let mut tables = Tables::default();
        for (cgroup, id, name, pod, namespace, unit, label) in [
            ("/a/b", "", "", "", "", "", "b"),
            ("/", "", "", "", "", "", "/"),
            ("/a/c/", "0123456789abcdef", "", "", "", "", "0123456789ab"),
            ("/a/d", "0123456789abcdef", "web", "", "", "", "web"),
            ("/a/e", "01", "app", "api-1", "prod", "", "prod/api-1/app"),
            ("/a/f", "01", "", "api-1", "", "", "api-1"),
            (
                "/a/ssh.service",
                "",
                "",
                "",
                "",
                "ssh.service",
                "ssh.service",
            ),
        ] {
            let mut some = |text: &str| match text {
                "" => None,
                text => Some(tables.intern_string(text).0),
            };
            let container = Container {
                id: some(id),
                name: some(name),
                pod: some(pod),
                namespace: some(namespace),
                unit: some(unit),
                engine: None,
                image: None,
                cgroup: some(cgroup).unwrap(),
            };
            assert_eq!(tables.container_label(&container), label);
        }
    }
}
