//! Services over a small world: two processes of two users, with code and names.
//!
//! `P100`, "app" of user 1000 in a container, has the threads 100 and 101; `P200`, "daemon" of root,
//! is its child. /usr/bin/app is mapped at 0x400000; at 0x400136, in `compute`, `inner` is inlined.

mod any_arguments;
mod controlling;
mod naming;
mod observing;
mod profiling;

use std::borrow::Cow;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;

use super::*;
use crate::admission::Admission;
use crate::front::Replay;
use crate::machine::{Control, Life, Region, Status};
use crate::tcf::options::Limits;
use profiler_model::*;

/// Where `compute` begins, in the file and in the memory of `P100`.
const START: u64 = 0x1100;
const MAPPED: u64 = 0x40_0000;
const OFFSET: u64 = 0x1000;
/// An address of it that was sampled.
const SAMPLED: u64 = MAPPED + 0x136;
const HEAP: u64 = 0x50_0000;

/// What a machine was told and tells.
#[derive(Default)]
struct Told {
    controls: Vec<(u32, Control)>,
    /// Processes that stand still.
    stopped: Vec<u32>,
    ended: Vec<u32>,
}

#[derive(Clone, Default)]
struct FakeMachine(Arc<Mutex<Told>>);

impl FakeMachine {
    fn alive(&self, process: Life) -> Result<u32, MachineError> {
        let pid = process.pid.0;
        match self.0.lock().unwrap().ended.contains(&pid) {
            true => Err(MachineError::Ended),
            false => Ok(pid),
        }
    }
}

impl Machine for FakeMachine {
    fn status(&self, process: Life) -> Result<Status, MachineError> {
        let pid = self.alive(process)?;
        let is_stopped = self.0.lock().unwrap().stopped.contains(&pid);
        Ok(Status {
            state: if is_stopped { 'T' } else { 'S' },
            parent: Pid(1),
            group: 100,
            session: 99,
            terminal: 0,
            user_ns: 1_234_567_890,
            system_ns: 5_000_000,
            priority: 20,
            nice: -5,
            virtual_bytes: 1 << 30,
            resident_bytes: 8192 * 3,
            threads: 2,
            processor: 1,
            uids: (1000, 0),
            gids: (100, 101),
            user: Some("ada".to_owned()),
            directory: Some("/home/ada".to_owned()),
            root: Some("/".to_owned()),
            executable: Some("/usr/bin/app2".to_owned()),
        })
    }

    fn thread_status(&self, process: Life, _: Tid) -> Result<Status, MachineError> {
        self.status(process)
    }

    fn command_line(&self, process: Life) -> Result<Vec<String>, MachineError> {
        self.alive(process)?;
        Ok(["app", "a b", ""].map(str::to_owned).into())
    }

    fn environment(&self, process: Life) -> Result<Vec<String>, MachineError> {
        self.alive(process)?;
        Ok(vec!["HOME=/home/ada".to_owned()])
    }

    fn memory_map(&self, process: Life) -> Result<Vec<Region>, MachineError> {
        self.alive(process)?;
        let code = Region {
            start: MAPPED,
            end: MAPPED + 0x1_0000,
            readable: true,
            writable: false,
            executable: true,
            offset: OFFSET,
            path: "/usr/bin/app".to_owned(),
        };
        let heap = Region {
            start: HEAP,
            end: HEAP + 0x1000,
            writable: true,
            executable: false,
            offset: 0,
            path: "[heap]".to_owned(),
            ..code.clone()
        };
        Ok(vec![code, heap])
    }

    fn owner(&self, process: Life) -> Result<u32, MachineError> {
        let pid = self.alive(process)?;
        if pid == 200 { Ok(0) } else { Ok(1000) }
    }

    fn control(&self, process: Life, control: Control) -> Result<(), MachineError> {
        let pid = self.alive(process)?;
        let mut told = self.0.lock().unwrap();
        match control {
            Control::Stop => told.stopped.push(pid),
            Control::Continue => told.stopped.retain(|&stopped| stopped != pid),
            Control::Terminate | Control::Signal(_) => {}
        }
        told.controls.push((pid, control));
        Ok(())
    }
}

/// Services with a world and a machine below them.
struct Bench {
    state: State,
    machine: FakeMachine,
    peer: Peer,
    channel: ChannelId,
    last_try: bool,
    now: Instant,
}

impl Bench {
    fn new(replay: Option<Replay>) -> Bench {
        let machine = FakeMachine::default();
        let options = TcfOptions {
            user: "root".to_owned(),
            admission: Admission::only([]),
            control: true,
            environment: true,
            tls: None,
            replay,
            limits: Limits::default(),
        };
        let recorded = replay.is_some();
        let boxed: Box<dyn Machine> = match recorded {
            true => Box::new(crate::machine::NoMachine),
            false => Box::new(machine.clone()),
        };
        let mut bench = Bench {
            state: State::new(options, boxed),
            machine,
            peer: Peer {
                address: ([127, 0, 0, 1], 40_000).into(),
                uid: Some(0),
            },
            channel: ChannelId(1),
            last_try: false,
            now: Instant::now(),
        };
        bench.state.world.define(0, definitions());
        bench
    }

    fn live() -> Bench {
        Bench::new(None)
    }

    fn call(&mut self, service: &str, command: &str, arguments: &[&str]) -> Answer {
        let fields: Vec<Cow<'_, [u8]>> = arguments
            .iter()
            .map(|argument| argument.as_bytes().into())
            .collect();
        let request = Request {
            channel: self.channel,
            peer: self.peer,
            command,
            arguments: Arguments::new(&fields),
            last_try: self.last_try,
            now: self.now,
        };
        call(service, request, &mut self.state)
    }

    /// The fields of an answer, as text.
    #[track_caller]
    fn fields(&mut self, service: &str, command: &str, arguments: &[&str]) -> Vec<String> {
        match self.call(service, command, arguments) {
            Ok(Outcome::Done(reply)) => reply
                .fields
                .into_iter()
                .map(|field| String::from_utf8(field).unwrap())
                .collect(),
            other => panic!("{service}.{command} {arguments:?}: {other:?}"),
        }
    }

    /// What is behind "no error".
    #[track_caller]
    fn result(&mut self, service: &str, command: &str, arguments: &[&str]) -> Vec<String> {
        let mut fields = self.fields(service, command, arguments);
        assert_eq!(fields.remove(0), "", "{service}.{command} {arguments:?}");
        fields
    }

    /// The one field that is behind "no error".
    #[track_caller]
    fn one(&mut self, service: &str, command: &str, arguments: &[&str]) -> Value {
        let fields = self.result(service, command, arguments);
        assert_eq!(fields.len(), 1, "{fields:?}");
        serde_json::from_str(&fields[0]).unwrap()
    }

    /// The number of the error, and what is behind it.
    #[track_caller]
    fn error(&mut self, service: &str, command: &str, arguments: &[&str]) -> (u64, String) {
        let mut fields = self.fields(service, command, arguments);
        let error: Value = serde_json::from_str(&fields.remove(0)).unwrap_or_default();
        assert!(error["Time"].is_u64(), "{service}.{command}: {error}");
        let text = error["Format"].as_str().unwrap_or_default();
        assert!(!text.is_empty(), "{error}");
        (error["Code"].as_u64().unwrap(), fields.join(" "))
    }

    fn events(&mut self) -> Vec<(String, String)> {
        self.events_at(Instant::now())
    }

    fn events_at(&mut self, now: Instant) -> Vec<(String, String)> {
        let events = events(&mut self.state, now).into_iter();
        let text = |event: TcfEvent| {
            let arguments = event.arguments.into_iter();
            let arguments: Vec<String> = arguments
                .map(|argument| String::from_utf8(argument).unwrap())
                .collect();
            let name = format!("{}.{}", event.service, event.event);
            (name, arguments.join(" "))
        };
        events.map(text).collect()
    }

    fn controls(&self) -> Vec<(u32, Control)> {
        std::mem::take(&mut self.machine.0.lock().unwrap().controls)
    }

    /// A change of a thread: 0 and 1 are of `P100`, 2 is that of `P200`.
    fn happened(&mut self, thread: usize, change: ProcessChange) {
        let event = Event::Process(ProcessEvent {
            at: Timestamp(9_000_000_000),
            thread: ThreadId::from_index(thread),
            change,
        });
        self.state.world.event(event);
    }
}

fn definitions() -> Vec<Definition> {
    let mut definitions = Vec::new();
    let mut strings = 0;
    let mut text = |definitions: &mut Vec<Definition>, text: &str| {
        let id = StringId::from_index(strings);
        strings += 1;
        definitions.push(Definition::String(id, text.into()));
        id
    };
    let out = &mut definitions;
    let app = text(out, "app");
    let worker = text(out, "worker");
    let daemon = text(out, "daemon");
    let path = text(out, "/usr/bin/app");
    let command = text(out, "app\0a b\0\0");
    let cgroup = text(out, "/system.slice/app.service");
    let compute = text(out, "compute");
    let inner = text(out, "inner");
    let file = text(out, "/src/app/main.c");
    let header = text(out, "/src/app/inner.h");
    let (first, second) = (ProcessId::from_index(0), ProcessId::from_index(1));
    out.push(Definition::Process(
        first,
        Process {
            pid: Pid(100),
            started: Timestamp(7_000_000_000),
            parent: None,
            name: app,
            executable: Some(path),
            command: Some(command),
            namespace_pids: Vec::new(),
            uid: Some(1000),
            cgroup: Some(cgroup),
            container: None,
        },
    ));
    out.push(Definition::Process(
        second,
        Process {
            pid: Pid(200),
            started: Timestamp(8_000_000_000),
            parent: Some(first),
            name: daemon,
            executable: None,
            command: None,
            namespace_pids: Vec::new(),
            uid: Some(0),
            cgroup: None,
            container: None,
        },
    ));
    for (index, (process, tid, name)) in [
        (first, 100, app),
        (first, 101, worker),
        (second, 200, daemon),
    ]
    .into_iter()
    .enumerate()
    {
        let thread = Thread {
            process,
            tid: Tid(tid),
            started: Timestamp(8_000_000_000),
            name,
        };
        out.push(Definition::Thread(ThreadId::from_index(index), thread));
    }
    let module = ModuleId::from_index(0);
    out.push(Definition::Module(
        module,
        Module {
            kind: ModuleKind::File,
            path,
            build_id: None,
            address_bias: 0x3f_f000,
        },
    ));
    out.push(Definition::Mapping(
        MappingId::from_index(0),
        Mapping {
            process: first,
            module,
            start: MAPPED,
            end: MAPPED + 0x1_0000,
            offset: OFFSET,
            at: Timestamp(7_000_000_000),
        },
    ));
    for (index, (name, file, start, size)) in [
        (compute, file, Some(START), Some(0x80)),
        (inner, header, None, None),
    ]
    .into_iter()
    .enumerate()
    {
        let function = Function {
            name,
            linkage_name: None,
            module: Some(module),
            file: Some(file),
            line: 0,
            start,
            size,
        };
        out.push(Definition::Function(
            FunctionId::from_index(index),
            function,
        ));
    }
    let frame = FrameId::from_index(0);
    out.push(Definition::Frame(
        frame,
        Frame {
            kind: FrameKind::Native,
            module: Some(module),
            address: SAMPLED - MAPPED + OFFSET,
        },
    ));
    let lines = [(1, 7), (0, 12)].map(|(function, line)| Line {
        function: FunctionId::from_index(function),
        line,
    });
    out.push(Definition::Symbol(frame, Symbol::Lines(lines.into())));
    definitions
}
