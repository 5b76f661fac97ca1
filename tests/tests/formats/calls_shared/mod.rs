//! A made-up recording of traced calls, and what builds such recordings.
//!
//! Times are nanoseconds of CLOCK_MONOTONIC. Everything is deterministic.
// Each test uses a part, and fails by unwrapping.
#![allow(clippy::unwrap_used, dead_code, unreachable_pub)]

use profiler_model::*;

pub const US: u64 = 1_000;
pub const MS: u64 = 1_000_000;
pub const START: u64 = 5_000_000_000;

/// Makes recordings. Events are put in order at the end.
#[derive(Default)]
pub struct Builder {
    pub tables: Tables,
    pub events: Vec<Event>,
    pub process: Option<ProcessId>,
    pub module: Option<ModuleId>,
}

/// What a call looks like beyond its times.
#[derive(Default)]
pub struct Details {
    pub arguments: Option<Box<[Value]>>,
    pub result: Option<Value>,
    pub how: Option<ExitKind>,
}

impl Builder {
    pub fn string(&mut self, text: &str) -> StringId {
        self.tables.intern_string(text).0
    }

    /// A thread of the only process.
    pub fn thread(&mut self, name: &str, tid: u32) -> ThreadId {
        let name = self.string(name);
        let process = match self.process {
            Some(process) => process,
            None => {
                let process = Process {
                    pid: Pid(tid),
                    started: Timestamp(START - MS),
                    parent: None,
                    name,
                    executable: Some(name),
                    command: None,
                    namespace_pids: Vec::new(),
                    uid: None,
                    cgroup: None,
                    container: None,
                };
                self.tables.intern_process(process).0
            }
        };
        self.process = Some(process);
        let thread = Thread {
            process,
            tid: Tid(tid),
            started: Timestamp(START - MS),
            name,
        };
        self.tables.intern_thread(thread).0
    }

    /// A traced function whose calls cost 600 ns.
    pub fn function(&mut self, name: &str, start: u64) -> FunctionId {
        self.traced(name, start, TracedKind::Function, &[])
    }

    pub fn traced(
        &mut self,
        name: &str,
        start: u64,
        kind: TracedKind,
        parameters: &[(&str, &str)],
    ) -> FunctionId {
        let path = self.string("/usr/bin/shop");
        let module = self.tables.modules.intern(Module {
            kind: ModuleKind::File,
            path,
            build_id: Some(BuildId([0xab; 20].into())),
            address_bias: 0x40_0000,
        });
        self.module = Some(module.0);
        let name = self.string(name);
        let file = self.string("src/shop.cc");
        let function = Function {
            name,
            linkage_name: None,
            module: self.module,
            file: Some(file),
            line: 0,
            start: Some(start),
            size: Some(0x80),
        };
        let function = self.tables.functions.intern(function).0;
        let parameters = parameters
            .iter()
            .map(|(name, kind)| Parameter {
                name: self.string(name),
                kind: Some(self.string(kind)),
            })
            .collect();
        let result = self.string("bool");
        let traced = Traced {
            kind,
            entry_offset: 4,
            returns: match kind {
                TracedKind::Function => ReturnMode::Uretprobe,
                TracedKind::Marker => ReturnMode::None,
            },
            cost_ns: match kind {
                TracedKind::Function => 600,
                TracedKind::Marker => 350,
            },
            line: 0,
            parameters,
            result: Some(result),
        };
        self.tables.set_traced(function, traced);
        function
    }

    /// A place in the code of a function.
    pub fn frame(&mut self, function: FunctionId, address: u64) -> FrameId {
        let frame = Frame {
            kind: FrameKind::Native,
            module: self.module,
            address,
        };
        let frame = self.tables.frames.intern(frame).0;
        let line = Line { function, line: 7 };
        self.tables.set_symbol(frame, Symbol::Lines([line].into()));
        frame
    }

    fn push(
        &mut self,
        at: u64,
        thread: ThreadId,
        function: FunctionId,
        depth: u32,
        edge: CallEdge,
    ) {
        self.events.push(Event::Call(Call {
            at: Timestamp(at),
            thread,
            cpu: Cpu(0),
            function,
            stack: 0,
            depth,
            edge,
            later: None,
        }));
    }

    pub fn enter(&mut self, thread: ThreadId, function: FunctionId, depth: u32, at: u64) {
        self.push(at, thread, function, depth, CallEdge::Enter(None));
    }

    pub fn hit(&mut self, thread: ThreadId, function: FunctionId, depth: u32, at: u64) {
        self.push(at, thread, function, depth, CallEdge::Hit(None));
    }

    pub fn exit(
        &mut self,
        thread: ThreadId,
        function: FunctionId,
        depth: u32,
        began: u64,
        at: u64,
        self_ns: u64,
    ) {
        self.exit_how(
            thread,
            function,
            depth,
            began,
            at,
            self_ns,
            ExitKind::Return,
        );
    }

    #[allow(clippy::too_many_arguments)]
    pub fn exit_how(
        &mut self,
        thread: ThreadId,
        function: FunctionId,
        depth: u32,
        began: u64,
        at: u64,
        self_ns: u64,
        how: ExitKind,
    ) {
        let exit = Exit {
            began: Timestamp(began),
            self_ns,
            how,
            line: 0,
            result: None,
            whole: None,
        };
        self.push(at, thread, function, depth, CallEdge::Exit(exit.into()));
    }

    /// A call without calls in it.
    pub fn call(
        &mut self,
        thread: ThreadId,
        function: FunctionId,
        depth: u32,
        at: u64,
        total_ns: u64,
        details: &mut dyn FnMut(&mut Details),
    ) {
        let mut known = Details::default();
        details(&mut known);
        self.push(
            at,
            thread,
            function,
            depth,
            CallEdge::Enter(known.arguments),
        );
        let exit = Exit {
            began: Timestamp(at),
            self_ns: total_ns,
            how: known.how.unwrap_or(ExitKind::Return),
            line: 0,
            result: known.result,
            whole: None,
        };
        self.push(
            at + total_ns,
            thread,
            function,
            depth,
            CallEdge::Exit(exit.into()),
        );
    }
}

/// 100 ms of a shop: requests that parse and query, one of which throws through two calls; a worker
/// that calls itself; markers; lost records, an end that was inferred, one with its thread, calls
/// open at the end, and code that ran before its probes were in place.
pub fn shop() -> (Tables, Vec<Event>) {
    let mut b = Builder::default();
    b.tables.session = Session {
        version: "0.1.0".into(),
        host: "canonical".into(),
        kernel: "6.1.0".into(),
        arch: "x86_64".into(),
        cpus: 2,
        target: "pid 300".into(),
        command: ["profiler", "record", "--trace", "shop:*", "-p", "300"]
            .map(Into::into)
            .into(),
        started: Timestamp(START),
        recordings: Vec::new(),
    };
    b.events.push(Event::Clock(Clock {
        monotonic: Timestamp(START),
        realtime_ns: 1_700_000_000_000_000_000,
    }));
    let main = b.thread("shop", 300);
    let worker = b.thread("worker", 301);
    let handle = b.traced(
        "shop::handle(Request const&)",
        0x1000,
        TracedKind::Function,
        &[("id", "int"), ("path", "char const*")],
    );
    let parse = b.traced(
        "shop::parse(char const*)",
        0x1100,
        TracedKind::Function,
        &[("text", "char const*")],
    );
    let query = b.traced(
        "db_query",
        0x1200,
        TracedKind::Function,
        &[("sql", "char const*")],
    );
    let walk = b.traced(
        "walk<Tree>",
        0x1300,
        TracedKind::Function,
        &[("depth", "unsigned")],
    );
    let wait = b.function("wait_for_work", 0x1400);
    let marker = b.traced("shop:request_done", 0x1500, TracedKind::Marker, &[]);
    let thrower = b.frame(query, 0x1234);
    let busy = b.string("db::busy_error");

    for request in 0..40_u64 {
        let at = START + MS + request * 2 * MS;
        let parse_ns = 20 * US + request * request * 37;
        let query_ns = 200 * US + (request % 7) * 90 * US;
        let throws = request == 23;
        let total_ns = 30 * US + parse_ns + query_ns;
        let id = Value::Signed(request as i64);
        let path = Value::Text(
            format!("/cart/{request}?q=\"tea\"").into(),
            request % 2 == 1,
        );
        let arguments: Box<[Value]> = [id, path.clone()].into();
        b.push(at, main, handle, 0, CallEdge::Enter(Some(arguments)));
        b.call(main, parse, 1, at + 10 * US, parse_ns, &mut |call| {
            call.arguments = Some([path.clone()].into());
            call.result = Some(Value::Bool(true));
        });
        let how = if throws {
            ExitKind::Exception(Some(busy))
        } else {
            ExitKind::Return
        };
        let query_at = at + 15 * US + parse_ns;
        b.call(main, query, 1, query_at, query_ns, &mut |call| {
            call.how = Some(how);
            call.arguments = Some([Value::Unreadable(0x10)].into());
        });
        let end = at + total_ns;
        if throws {
            b.events.push(Event::Throw(Throw {
                at: Timestamp(query_at + query_ns - US),
                thread: main,
                cpu: Cpu(0),
                kind: busy,
                thrower: Some(thrower),
            }));
        } else {
            b.hit(main, marker, 1, end - US);
        }
        b.exit_how(main, handle, 0, at, end, 30 * US, how);
    }
    // Each level takes 1 ms of its own, half before and half after what it calls.
    for start in [3 * MS, 60 * MS] {
        for level in 0..6_u64 {
            let began = START + start + level * MS / 2;
            let ends = START + start + (12 - level) * MS / 2;
            b.enter(worker, walk, level as u32, began);
            let how = if start > 50 * MS && level == 3 {
                ExitKind::Inferred
            } else {
                ExitKind::Return
            };
            b.exit_how(worker, walk, level as u32, began, ends, MS, how);
        }
    }
    b.enter(worker, wait, 0, START + 70 * MS);
    b.exit_how(
        worker,
        wait,
        0,
        START + 70 * MS,
        START + 95 * MS,
        25 * MS,
        ExitKind::Terminated,
    );
    b.events.push(Event::Process(ProcessEvent {
        at: Timestamp(START + 95 * MS),
        thread: worker,
        change: ProcessChange::Exited,
    }));
    b.enter(main, handle, 0, START + 98 * MS);
    b.enter(main, query, 1, START + 99 * MS);

    b.events.push(Event::Gap(Gap {
        from: Timestamp(START),
        to: Timestamp(START + MS),
        function: None,
        process: None,
        reason: GapReason::NotYetAttached,
    }));
    for (function, entries, exits, lost) in [
        (handle, 41, 40, 0),
        (parse, 52, 52, 24),
        (query, 41, 40, 0),
        (walk, 12, 12, 0),
        (wait, 1, 0, 0),
        (marker, 39, 0, 0),
    ] {
        b.events.push(Event::CallCount(CallCount {
            function,
            from: Timestamp(START),
            to: Timestamp(START + 100 * MS),
            entries,
            exits,
            lost,
            left_out: 0,
        }));
    }
    b.events.push(Event::Lost(Lost {
        cpu: Some(Cpu(0)),
        from: Timestamp(START + 80 * MS),
        to: Timestamp(START + 100 * MS),
        count: 24,
        reason: LostReason::CallRingFull,
    }));
    // Of what happens at one time, the inner ends first and the outer begins first.
    b.events.sort_by_key(|event| {
        let depth = match event {
            Event::Call(call) => match call.edge {
                CallEdge::Enter(_) | CallEdge::Hit(_) => i64::from(call.depth),
                CallEdge::Exit(_) => -i64::from(call.depth) - 1_000,
            },
            _ => -2_000,
        };
        (event.at(), depth)
    });
    (b.tables, b.events)
}
