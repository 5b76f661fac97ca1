//! Hand-made sessions -> what clients see.

mod bounds;
mod contexts;
mod lookup;
mod places;
mod property;
mod starts;

use std::time::{Duration, Instant};

use super::*;

const AFTERLIFE: Duration = Duration::from_secs(60);

/// The other end: a session that announces things once per epoch.
struct Scene {
    world: World,
    tables: Tables,
    epoch: u32,
    definitions: Vec<Definition>,
    began: Instant,
}

impl Scene {
    fn new(replay: Option<Replay>) -> Scene {
        Scene {
            world: World::new(replay, AFTERLIFE),
            tables: Tables::default(),
            epoch: 0,
            definitions: Vec::new(),
            began: Instant::now(),
        }
    }

    fn live() -> Scene {
        Scene::new(None)
    }

    /// Sends what was defined.
    fn flush(&mut self) {
        let definitions = std::mem::take(&mut self.definitions);
        self.world.define(self.epoch, definitions);
    }

    /// Ids begin anew.
    fn next_epoch(&mut self) {
        self.flush();
        self.epoch += 1;
        self.tables = Tables::default();
    }

    /// The same, and the tables of the world with them.
    fn turn(&mut self) {
        self.next_epoch();
        self.world.present.bytes = usize::MAX / 2;
        self.world.define(self.epoch, Vec::new());
    }

    fn tick(&mut self, seconds: u64) {
        self.world.tick(self.began + Duration::from_secs(seconds));
    }

    fn session(&mut self, started: u64) {
        self.definitions.push(Definition::Session(Session {
            started: Timestamp(started),
            host: "host".to_owned(),
            ..Session::default()
        }));
    }

    fn string(&mut self, text: &str) -> StringId {
        let (id, new) = self.tables.intern_string(text);
        if new {
            self.definitions.push(Definition::String(id, text.into()));
        }
        id
    }

    fn child(
        &mut self,
        parent: Option<ProcessId>,
        pid: u32,
        started: u64,
        name: &str,
    ) -> ProcessId {
        let name = self.string(name);
        let executable = Some(self.string(&format!("/bin/{pid}")));
        let process = Process {
            pid: Pid(pid),
            started: Timestamp(started),
            parent,
            name,
            executable,
            command: None,
            namespace_pids: Vec::new(),
            uid: Some(pid),
            cgroup: None,
            container: None,
        };
        let (id, _) = self.tables.intern_process(process.clone());
        self.definitions.push(Definition::Process(id, process));
        id
    }

    fn process(&mut self, pid: u32, started: u64, name: &str) -> ProcessId {
        self.child(None, pid, started, name)
    }

    fn thread(&mut self, process: ProcessId, tid: u32, started: u64, name: &str) -> ThreadId {
        let thread = Thread {
            process,
            tid: Tid(tid),
            started: Timestamp(started),
            name: self.string(name),
        };
        let (id, _) = self.tables.intern_thread(thread.clone());
        self.definitions.push(Definition::Thread(id, thread));
        id
    }

    fn module(&mut self, kind: ModuleKind, path: &str) -> ModuleId {
        let module = Module {
            kind,
            path: self.string(path),
            build_id: None,
            address_bias: 0,
        };
        let (id, new) = self.tables.modules.intern(module.clone());
        if new {
            self.definitions.push(Definition::Module(id, module));
        }
        id
    }

    fn map(
        &mut self,
        process: ProcessId,
        module: ModuleId,
        range: (u64, u64),
        offset: u64,
        at: u64,
    ) {
        let mapping = Mapping {
            process,
            module,
            start: range.0,
            end: range.1,
            offset,
            at: Timestamp(at),
        };
        let (id, new) = self.tables.mappings.intern(mapping.clone());
        if new {
            self.definitions.push(Definition::Mapping(id, mapping));
        }
    }

    /// A frame of the session, and the frame of the world's tables that it becomes.
    fn frame(&mut self, kind: FrameKind, module: Option<ModuleId>, address: u64) -> Frame {
        let frame = Frame {
            kind,
            module,
            address,
        };
        let (id, new) = self.tables.frames.intern(frame);
        if new {
            self.definitions.push(Definition::Frame(id, frame));
        }
        frame
    }

    fn native(&mut self, module: ModuleId, address: u64) -> Frame {
        self.frame(FrameKind::Native, Some(module), address)
    }

    /// The world's id of a frame, sent if it was not yet.
    fn known(&mut self, frame: Frame) -> FrameId {
        self.flush();
        let tables = &self.world.present.tables;
        let module = frame.module.map(|id| {
            let mut module = self.tables.modules.get(id).unwrap().clone();
            let path = self.tables.string(module.path);
            module.path = tables.find_string(path).unwrap();
            tables.modules.find(&module).unwrap()
        });
        tables.frames.find(&Frame { module, ..frame }).unwrap()
    }

    fn address(&mut self, process: ContextKey, frame: Frame) -> u64 {
        let frame = self.known(frame);
        self.world.address_of(process, frame)
    }

    fn function(
        &mut self,
        module: Option<ModuleId>,
        name: &str,
        range: Option<(u64, u64)>,
        file: Option<&str>,
    ) -> FunctionId {
        let function = Function {
            name: self.string(name),
            linkage_name: None,
            module,
            file: file.map(|file| self.string(file)),
            line: 0,
            start: range.map(|range| range.0),
            size: range.map(|range| range.1),
        };
        let (id, new) = self.tables.functions.intern(function.clone());
        if new {
            self.definitions.push(Definition::Function(id, function));
        }
        id
    }

    fn lines(&mut self, frame: Frame, lines: &[(FunctionId, u32)]) {
        let lines = lines
            .iter()
            .map(|&(function, line)| Line { function, line });
        self.symbol(frame, Symbol::Lines(lines.collect()));
    }

    fn symbol(&mut self, frame: Frame, symbol: Symbol) {
        let (id, _) = self.tables.frames.intern(frame);
        self.definitions.push(Definition::Symbol(id, symbol));
    }

    /// Names a frame of a module, after a function of 0x100 bytes around it.
    fn name(&mut self, frame: Frame, name: &str) {
        let range = (frame.address & !0xff, 0x100);
        let function = self.function(frame.module, name, Some(range), Some("a.c"));
        self.lines(frame, &[(function, 7)]);
    }

    fn event(&mut self, at: u64, thread: ThreadId, change: ProcessChange) -> Option<Event> {
        self.flush();
        self.world.event(Event::Process(ProcessEvent {
            at: Timestamp(at),
            thread,
            change,
        }))
    }

    fn exit(&mut self, at: u64, thread: ThreadId) {
        self.event(at, thread, ProcessChange::Exited).unwrap();
    }

    fn execute(&mut self, at: u64, thread: ThreadId, name: &str) {
        let name = self.string(name);
        self.event(at, thread, ProcessChange::Executed(name))
            .unwrap();
    }

    fn sample(&mut self, at: u64, thread: ThreadId) -> Option<Event> {
        let name = self.string("cpu-clock");
        let source = Source {
            name,
            unit: Unit::Nanoseconds,
            frequency_hz: None,
            period: None,
        };
        let (source_id, new) = self.tables.sources.intern(source.clone());
        if new {
            self.definitions.push(Definition::Source(source_id, source));
        }
        self.flush();
        self.world.event(Event::Sample(Sample::new(
            Timestamp(at),
            thread,
            Cpu(0),
            source_id,
            1,
        )))
    }

    fn find(&mut self, id: &str) -> ContextKey {
        self.flush();
        self.world.find(id).unwrap()
    }

    fn id(&self, key: ContextKey) -> String {
        self.world.context(key).unwrap().id.clone()
    }

    fn ids(&self, keys: &[ContextKey]) -> Vec<String> {
        keys.iter().map(|&key| self.id(key)).collect()
    }

    fn processes(&mut self) -> Vec<String> {
        self.flush();
        self.ids(&self.world.processes())
    }

    fn threads(&mut self, id: &str) -> Vec<String> {
        let key = self.find(id);
        self.ids(&self.world.threads(key))
    }

    /// Ids of what was added, changed and removed.
    fn changes(&mut self) -> (Vec<String>, Vec<String>, Vec<String>) {
        self.flush();
        let changes = self.world.changes();
        (
            self.ids(&changes.added),
            self.ids(&changes.changed),
            changes.removed,
        )
    }

    fn symbol_at(&mut self, process: ContextKey, address: u64) -> Lookup {
        self.flush();
        self.world.symbol(process, address)
    }

    fn name_at(&mut self, process: ContextKey, address: u64) -> String {
        match self.symbol_at(process, address) {
            Lookup::Found(found) => found.name,
            other => format!("{other:?}"),
        }
    }
}
