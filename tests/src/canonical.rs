//! The canonical session: one small recording made by hand, that all golden outputs come from.
//!
//! Two processes on two processors, recorded for 100 ms at 999 Hz of cpu-clock: `web` (pid 100,
//! with a worker thread 101) runs native code with an inlined function, recursion, a stripped
//! library, kernel code and JIT code; `db` (pid 200) is renamed, executes another program and
//! exits. There are lost samples, a truncated stack, an unknown address, a name with a semicolon,
//! a space and a quote in it, and a marker. Four functions and a marker are traced: calls with values
//! that nest, one left by an exception, one that the recording's end cuts off, a gap, counts. All of
//! it is reached by [`session`]; everything is deterministic. [`session_in_containers`] is the same with
//! containers, and some processes more; [`session_with_waits`] has off-CPU time and interpreted frames;
//! [`session_with_everything`] has both.

use std::sync::Arc;

use profiler_model::*;

const MS: u64 = 1_000_000;
const START: u64 = 5_000_000_000;
const PERIOD_NS: u64 = 1_001_001;

/// Builds the session: its tables, and its events ordered by time.
pub fn session() -> (Tables, Vec<Event>) {
    let mut b = Builder::default();
    b.tables.session = Session {
        version: "0.1.0".into(),
        host: "canonical".into(),
        kernel: "6.1.0".into(),
        arch: "x86_64".into(),
        cpus: 2,
        target: "system-wide".into(),
        command: vec!["profiler".into(), "record".into(), "-a".into()],
        started: Timestamp(START),
        recordings: Vec::new(),
    };
    let clock = b.string("cpu-clock");
    let (source, _) = b.tables.sources.intern(Source {
        name: clock,
        unit: Unit::Nanoseconds,
        frequency_hz: Some(999),
        period: Some(PERIOD_NS),
    });
    let web = b.process(100, START - 900 * MS, None, "web", "/usr/bin/web");
    let db = b.process(
        200,
        START - 400 * MS,
        Some(web),
        "db",
        "/opt/db/bin/db server",
    );
    let main = b.thread(web, 100, START - 900 * MS, "web");
    let worker = b.thread(web, 101, START - 800 * MS, "worker 1");
    let database = b.thread(db, 200, START - 400 * MS, "db");

    let app = b.module(
        ModuleKind::File,
        "/usr/bin/web",
        Some(&[0xab; 20]),
        0x40_0000,
    );
    let library = b.module(
        ModuleKind::File,
        "/usr/lib/libstripped.so.1",
        Some(&[0xcd; 20]),
        0,
    );
    let database_app = b.module(ModuleKind::File, "/opt/db/bin/db server", None, 0);
    let kernel = b.module(ModuleKind::Kernel, "[kernel]", Some(&[0x11; 20]), 0);
    let jit = b.module(ModuleKind::Jit, "[jit 100]", None, 0);
    for (process, module, start, len) in [
        (web, app, 0x40_1000, 0x9000),
        (web, library, 0x7f00_0000_1000, 0x4000),
        (db, database_app, 0x5500_0000_1000, 0x8000),
    ] {
        b.tables.mappings.intern(Mapping {
            process,
            module,
            start,
            end: start + len,
            offset: 0x1000,
            at: Timestamp(START - 300 * MS),
        });
    }

    let start_fn = b.native(app, 0x1010, "_start", "start.S", 10);
    let main_fn = b.native(app, 0x1105, "main", "src/main.c", 42);
    let handle = b.native(
        app,
        0x1230,
        "handle_request(http::Request const&)",
        "src/web.cc",
        120,
    );
    let parse = b.inlined(app, 0x1344, "parse_header", 77, "std::find<char>", 9);
    let recurse = b.native(app, 0x1450, "walk; \"tree\" <T>", "src/tree.cc", 5);
    let unnamed = b.frame(FrameKind::Native, Some(library), 0x2222);
    b.tables
        .set_symbol(unnamed, Symbol::Unknown(UnknownReason::NoSymbol));
    let nowhere = b.frame(FrameKind::Native, None, 0x7fff_dead_beef);
    b.tables
        .set_symbol(nowhere, Symbol::Unknown(UnknownReason::NoMapping));
    let jitted = b.named(
        FrameKind::Jit,
        jit,
        0x7f11_0000_0040,
        "LazyCompile:~render app.js:3",
        None,
    );
    let entry = b.named(
        FrameKind::Kernel,
        kernel,
        0x1000,
        "entry_SYSCALL_64_after_hwframe",
        None,
    );
    let read = b.named(FrameKind::Kernel, kernel, 0x2345, "ksys_read", None);
    let copy = b.named(FrameKind::Kernel, kernel, 0x3456, "copy_page_to_iter", None);
    let query = b.native(database_app, 0x1500, "execute_query", "db/query.c", 300);
    let scan = b.native(database_app, 0x1600, "seq_scan", "db/scan.c", 33);

    let in_main = b.stack(&[start_fn, main_fn]);
    let in_parse = b.stack(&[start_fn, main_fn, handle, parse]);
    let in_tree = b.stack(&[start_fn, main_fn, recurse, recurse, recurse]);
    let in_library = b.stack(&[start_fn, main_fn, handle, unnamed]);
    let in_jit = b.stack(&[start_fn, main_fn, jitted]);
    let in_scan = b.stack(&[query, scan]);
    let in_nowhere = b.stack(&[nowhere]);
    let reading = b.stack(&[entry, read, copy]);

    let start = Timestamp(START);
    b.events.push(Event::Clock(Clock {
        monotonic: start,
        realtime_ns: 1_700_000_000_000_000_000,
    }));
    let text = b.string("load started");
    b.events.push(Event::Mark(Mark {
        at: Timestamp(START + MS / 2),
        text,
    }));
    // (user stack, kernel stack, thread, how many): the shares of the session, in order of time.
    let plan = [
        (in_parse, None, main, 30),
        (in_tree, None, worker, 20),
        (in_library, None, main, 10),
        (in_main, Some(reading), main, 15),
        (in_jit, None, worker, 9),
        (in_scan, None, database, 12),
        (in_nowhere, None, database, 1),
        (in_scan, Some(reading), database, 3),
    ];
    let mut tick = 0;
    for (user, kernel, thread, count) in plan {
        for _ in 0..count {
            tick += 1;
            b.events.push(Event::Sample(Sample {
                user_end: match user {
                    user if user == in_tree => StackEnd::Truncated,
                    user if user == in_nowhere => StackEnd::BadMemory,
                    _ => StackEnd::FramePointer,
                },
                ..Sample::new(
                    Timestamp(START + tick * MS),
                    thread,
                    Cpu(u32::from(thread == worker)),
                    source,
                    PERIOD_NS,
                )
                .with_stacks(kernel, Some(user))
            }));
        }
    }
    trace(&mut b, [handle, parse, recurse, query], main, worker, web);
    let name = b.string("db-writer");
    let change = |at, change| {
        Event::Process(ProcessEvent {
            at: Timestamp(START + at),
            thread: database,
            change,
        })
    };
    b.events
        .push(change(85 * MS + 1, ProcessChange::Renamed(name)));
    b.events.push(change(100 * MS + 1, ProcessChange::Exited));
    b.events.push(Event::Lost(Lost {
        cpu: Some(Cpu(1)),
        from: start,
        to: Timestamp(START + 101 * MS),
        count: 4,
        reason: LostReason::Skipped,
    }));
    b.events.sort_by_key(Event::at);
    (b.tables, b.events)
}

/// The session with all time of its threads: what they waited for besides what they ran, a program in
/// Python whose frames are interpreted, and why more stacks ended. `worker` and `db` wake `main`, `main`
/// wakes `worker`; one sample stands for four waits; the kernel counted more waits than were recorded.
pub fn session_with_waits() -> (Tables, Vec<Event>) {
    with_waits(session())
}

/// All that [`session_with_waits`] and [`session_in_containers`] have: one of each kind of thing that a capture
/// holds.
pub fn session_with_everything() -> (Tables, Vec<Event>) {
    with_waits(in_containers(session()))
}

fn with_waits((tables, events): (Tables, Vec<Event>)) -> (Tables, Vec<Event>) {
    let mut b = Builder { tables, events };
    let name = b.string("off-cpu");
    let (waits, _) = b.tables.sources.intern(Source {
        name,
        unit: Unit::Nanoseconds,
        frequency_hz: None,
        period: None,
    });
    let thread = |tid: u32| {
        let mut threads = b.tables.threads();
        threads
            .find(|(_, thread)| thread.tid == Tid(tid))
            .map(|(id, _)| id)
    };
    let (Some(main), Some(worker), Some(database)) = (thread(100), thread(101), thread(200)) else {
        return (b.tables, b.events);
    };
    let python = b.process(
        500,
        START - 600 * MS,
        None,
        "python3",
        "/usr/bin/python3.11",
    );
    let script = b.thread(python, 500, START - 600 * MS, "python3");

    let kernel = b.module(ModuleKind::Kernel, "[kernel]", Some(&[0x11; 20]), 0);
    let app = b.module(
        ModuleKind::File,
        "/usr/bin/web",
        Some(&[0xab; 20]),
        0x40_0000,
    );
    let libc = b.module(ModuleKind::File, "/usr/lib/libc.so.6", Some(&[0xee; 20]), 0);
    let interpreter = b.module(
        ModuleKind::File,
        "/usr/bin/python3.11",
        Some(&[0x33; 20]),
        0,
    );
    let code = b.module(ModuleKind::Interpreted, "/srv/jobs/etl.py", None, 0);
    let mut in_kernel = |address, name| b.named(FrameKind::Kernel, kernel, address, name, None);
    let entry = in_kernel(0x1000, "entry_SYSCALL_64_after_hwframe");
    let epoll = in_kernel(0x4100, "do_epoll_wait");
    let futex = in_kernel(0x4200, "futex_wait_queue");
    let page = in_kernel(0x4300, "folio_wait_bit_common");
    let nap = in_kernel(0x4400, "hrtimer_nanosleep");
    let timeout = in_kernel(0x4500, "schedule_timeout");
    let schedule = in_kernel(0x4600, "__schedule");
    let thread_of_kernel = in_kernel(0x4700, "worker_thread");
    let start = b.native(app, 0x1010, "_start", "start.S", 10);
    let main_fn = b.native(app, 0x1105, "main", "src/main.c", 42);
    let serve = b.native(app, 0x1920, "serve_forever", "src/web.cc", 90);
    let poll = b.native(libc, 0x10_8000, "epoll_wait", "epoll_wait.c", 30);
    let lock = b.native(
        libc,
        0x8_9000,
        "__futex_abstimed_wait_common",
        "futex-internal.c",
        57,
    );
    let fetch = b.native(app, 0x1a20, "fetch_page", "src/page.cc", 12);
    let spin = b.native(app, 0x1b20, "checksum", "src/page.cc", 44);
    let run = b.native(interpreter, 0x2100, "Py_RunMain", "main.c", 700);
    let evaluate = b.native(
        interpreter,
        0x5200,
        "_PyEval_EvalFrameDefault",
        "ceval.c",
        1100,
    );
    let sleep = b.native(libc, 0xe_6000, "clock_nanosleep", "clock_nanosleep.c", 48);
    let mut python_at = |address, name, line| {
        let source = Some(("/srv/jobs/etl.py", line));
        b.named(FrameKind::Interpreted, code, address, name, source)
    };
    let module_body = python_at(0x100, "<module>", 61);
    let transform = python_at(0x200, "transform", 33);
    let parse_row = python_at(0x300, "Row.parse", 12);

    let in_epoll = b.stack(&[start, main_fn, serve, poll]);
    let in_lock = b.stack(&[start, main_fn, lock]);
    let in_fetch = b.stack(&[start, main_fn, fetch]);
    let in_spin = b.stack(&[start, main_fn, fetch, spin]);
    let in_python = b.stack(&[run, evaluate, module_body, transform, parse_row]);
    let in_sleep = b.stack(&[run, evaluate, module_body, transform, sleep]);
    let polling = b.stack(&[entry, epoll, timeout, schedule]);
    let locking = b.stack(&[entry, futex, schedule]);
    let reading = b.stack(&[entry, page, schedule]);
    let napping = b.stack(&[entry, nap, schedule]);
    let resting = b.stack(&[thread_of_kernel, schedule]);

    let kworker = b.process(2, 0, None, "kworker/0:1", "");
    let kworker = b.thread(kworker, 2, 0, "kworker/0:1");
    let us = MS / 1000;
    // (thread, stacks, begin and end in us, runnable us, state, waker, how many)
    let plan = [
        (
            worker,
            Some(in_lock),
            Some(locking),
            500,
            30_500,
            100,
            WaitState::Sleeping,
            Some(main),
            1,
        ),
        (
            main,
            Some(in_epoll),
            Some(polling),
            39_500,
            50_500,
            200,
            WaitState::Sleeping,
            Some(worker),
            1,
        ),
        (
            worker,
            Some(in_spin),
            None,
            40_100,
            40_900,
            800,
            WaitState::Preempted,
            None,
            1,
        ),
        (
            worker,
            Some(in_lock),
            Some(locking),
            63_500,
            75_500,
            1_500,
            WaitState::Sleeping,
            Some(main),
            1,
        ),
        (
            main,
            Some(in_epoll),
            Some(polling),
            75_300,
            98_500,
            20,
            WaitState::Sleeping,
            Some(database),
            1,
        ),
        (
            database,
            Some(in_fetch),
            Some(reading),
            600,
            84_500,
            50,
            WaitState::Disk,
            None,
            1,
        ),
        (
            script,
            Some(in_sleep),
            Some(napping),
            10_000,
            12_000,
            10,
            WaitState::Sleeping,
            None,
            4,
        ),
        (
            script,
            Some(in_python),
            None,
            22_500,
            22_900,
            400,
            WaitState::Preempted,
            None,
            1,
        ),
        (
            script,
            Some(in_sleep),
            Some(napping),
            60_000,
            62_000,
            30,
            WaitState::Sleeping,
            None,
            1,
        ),
        (
            kworker,
            None,
            Some(resting),
            5_000,
            9_000,
            5,
            WaitState::Sleeping,
            Some(main),
            1,
        ),
        (
            kworker,
            None,
            None,
            9_100,
            9_900,
            0,
            WaitState::Stopped,
            Some(main),
            1,
        ),
    ];
    for (thread, user, kernel, from, to, runnable, state, waker, count) in plan {
        let ns = (to - from) * us;
        b.events.push(Event::Sample(Sample {
            wait: Some(Wait {
                ns,
                runnable_ns: runnable * us,
                state,
                waker,
                count,
                open: false,
            }),
            ..Sample::new(
                Timestamp(START + to * us),
                thread,
                Cpu(1),
                waits,
                ns * u64::from(count),
            )
            .with_stacks(kernel, user)
        }));
    }
    let clock = b.events.iter().find_map(|event| match event {
        Event::Sample(sample) if sample.wait.is_none() => Some(sample.source),
        _ => None,
    });
    let ends = [
        StackEnd::Complete,
        StackEnd::NoRule,
        StackEnd::Jit,
        StackEnd::NoTable,
        StackEnd::NoMapping,
    ];
    for tick in 0..10 {
        b.events.push(Event::Sample(Sample {
            user_end: ends[tick as usize % ends.len()],
            ..Sample::new(
                Timestamp(START + (20 + 4 * tick) * MS + 500 * us),
                script,
                Cpu(0),
                clock.unwrap_or(waits),
                PERIOD_NS,
            )
            .with_stacks(None, Some(in_python))
        }));
    }
    let (from, to) = (Timestamp(START), Timestamp(START + 100 * MS));
    // Preempted, sleeping, disk, stopped.
    for (thread, count, ns, runnable_us) in [
        (main, [0, 2, 0, 0], [0, 34_200, 0, 0], 220),
        (worker, [3, 2, 0, 0], [900, 42_000, 0, 0], 2_450),
        (database, [0, 0, 1, 0], [0, 0, 83_900, 0], 50),
        (script, [1, 6, 0, 0], [400, 11_500, 0, 0], 490),
    ] {
        b.events.push(Event::Waits(Waits {
            thread,
            from,
            to,
            count,
            ns: ns.map(|in_us: u64| in_us * us),
            runnable_ns: runnable_us * us,
        }));
    }
    b.events.sort_by_key(Event::at);
    (b.tables, b.events)
}

/// The name of the container that `web` runs in, in [`session_in_containers`].
pub const ODD_NAME: &str = "we;b \"\u{fc}\" 12";

/// The session with its processes in containers, and three more: `web` runs in a Docker container of an
/// odd name, a second `web` in one that was made anew under that name, `db` in a pod of Kubernetes, `sshd`
/// in a unit of systemd, and a kernel thread in nothing.
pub fn session_in_containers() -> (Tables, Vec<Event>) {
    in_containers(session())
}

fn in_containers((tables, events): (Tables, Vec<Event>)) -> (Tables, Vec<Event>) {
    let mut b = Builder { tables, events };
    let first = b.container([
        "/system.slice/docker-0123456789abcdef.scope",
        "docker",
        "0123456789abcdef",
        ODD_NAME,
        "registry.example/shop/web:1.25",
        "",
        "",
        "",
    ]);
    let second = b.container([
        "/system.slice/docker-fedcba9876543210.scope",
        "docker",
        "fedcba9876543210",
        ODD_NAME,
        "registry.example/shop/web:1.26",
        "",
        "",
        "",
    ]);
    let pod = b.container([
        "/kubepods.slice/kubepods-pod77.slice/cri-containerd-77aa.scope",
        "containerd",
        "77aa",
        "postgres",
        "docker.io/library/postgres:16",
        "db-0",
        "shop",
        "",
    ]);
    let unit = b.container([
        "/system.slice/ssh.service",
        "systemd",
        "",
        "",
        "",
        "",
        "",
        "ssh.service",
    ]);
    b.put_into(100, START - 900 * MS, first, &[1]);
    b.put_into(200, START - 400 * MS, pod, &[31, 7]);
    let sshd = b.process(300, START - 700 * MS, None, "sshd", "/usr/sbin/sshd");
    let worker = b.process(2, 0, None, "kworker/0:1", "");
    let anew = b.process(400, START - 100 * MS, None, "web", "/usr/bin/web");
    b.put_into(300, START - 700 * MS, unit, &[]);
    b.put_into(400, START - 100 * MS, second, &[1]);
    // Each does what the first sample does.
    let sample = b.events.iter().find_map(|event| match event {
        Event::Sample(sample) => Some(sample.clone()),
        _ => None,
    });
    let Some(sample) = sample else {
        return (b.tables, b.events);
    };
    for (process, tid, started, name, count) in [
        (sshd, 300, START - 700 * MS, "sshd", 5),
        (worker, 2, 0, "kworker/0:1", 3),
        (anew, 400, START - 100 * MS, "web", 12),
    ] {
        let thread = b.thread(process, tid, started, name);
        for _ in 0..count {
            let at = Timestamp(START + 102 * MS + b.events.len() as u64);
            b.events.push(Event::Sample(Sample {
                at,
                thread,
                ..sample.clone()
            }));
        }
    }
    (b.tables, b.events)
}

/// Adds what was traced: of `web` the functions of three frames, of `db` that of the last one (which
/// was attached late and is not called after that), and a marker.
fn trace(b: &mut Builder, frames: [FrameId; 4], main: ThreadId, worker: ThreadId, web: ProcessId) {
    let [handle, parse, walk, query] = frames.map(|frame| b.function_of(frame));
    let marker = b.string("web:request");
    let module = b
        .tables
        .functions
        .get(handle)
        .and_then(|function| function.module);
    let (marker, _) = b.tables.functions.intern(Function {
        name: marker,
        linkage_name: None,
        module,
        file: None,
        line: 0,
        start: Some(0x1240),
        size: None,
    });
    let text = |text: &str| Value::Text(text.into(), false);
    for (function, kind, returns, cost_ns, parameters, result) in [
        (
            handle,
            TracedKind::Function,
            ReturnMode::Instructions,
            10_100,
            &[("request", "http::Request const&"), ("retries", "int")][..],
            Some("bool"),
        ),
        (
            parse,
            TracedKind::Function,
            ReturnMode::Uretprobe,
            800,
            &[],
            None,
        ),
        (
            walk,
            TracedKind::Function,
            ReturnMode::Instructions,
            1_200,
            &[("depth", "int")],
            None,
        ),
        (
            query,
            TracedKind::Function,
            ReturnMode::Uretprobe,
            900,
            &[],
            None,
        ),
        (
            marker,
            TracedKind::Marker,
            ReturnMode::None,
            500,
            &[("path", "char const*")],
            None,
        ),
    ] {
        let parameters = parameters.iter().map(|(name, kind)| Parameter {
            name: b.string(name),
            kind: Some(b.string(kind)),
        });
        let traced = Traced {
            kind,
            entry_offset: if returns == ReturnMode::Uretprobe {
                0
            } else {
                4
            },
            returns,
            cost_ns,
            line: 10 * function.get(),
            parameters: parameters.collect(),
            result: result.map(|kind| b.string(kind)),
        };
        b.tables.set_traced(function, traced);
    }

    // On the main thread, every 5 ms: a request that is parsed in two steps.
    for turn in 0..8 {
        let at = START + (2 + 5 * turn) * MS;
        let request = Value::Struct(
            [
                ("method".into(), Value::Named("GET".into(), 0)),
                ("path".into(), text(&format!("/page/{turn}"))),
            ]
            .into(),
        );
        let arguments = [request, Value::Signed(turn as i64 % 2)];
        b.enter(at, main, handle, 0, Some(arguments.into()));
        b.call(
            at + 1_000,
            CallEdge::Hit(Some([text("/page")].into())),
            main,
            marker,
            1,
        );
        for step in 0..2 {
            let began = at + 100_000 + step * 400_000;
            b.enter(began, main, parse, 1, None);
            b.exit(
                began + 250_000,
                main,
                parse,
                1,
                (began, 250_000),
                ExitKind::Return,
                None,
            );
        }
        let end = at + 1_000_000 + turn * 100_000;
        let self_ns = end - at - 500_000;
        let result = Some(Value::Bool(turn != 3));
        b.exit(
            end,
            main,
            handle,
            0,
            (at, self_ns),
            ExitKind::Return,
            result,
        );
    }
    // On the worker: recursion that an exception leaves, one level of it caught.
    let thrown = b.string("std::runtime_error");
    let began = [35, 36, 37].map(|ms| START + ms * MS);
    for (depth, at) in began.into_iter().enumerate() {
        let arguments = [Value::Signed(depth as i64)];
        b.enter(at, worker, walk, depth as u32, Some(arguments.into()));
    }
    let at = START + 38 * MS;
    b.events.push(Event::Throw(Throw {
        at: Timestamp(at),
        thread: worker,
        cpu: Cpu(1),
        kind: thrown,
        thrower: Some(frames[2]),
    }));
    let how = ExitKind::Exception(Some(thrown));
    let landed = at + 50_000;
    b.exit(
        landed,
        worker,
        walk,
        2,
        (began[2], landed - began[2]),
        how,
        None,
    );
    b.exit(landed, worker, walk, 1, (began[1], MS), how, None);
    b.exit(
        at + MS,
        worker,
        walk,
        0,
        (began[0], 2 * MS - 50_000),
        ExitKind::Return,
        None,
    );
    // One whose exit was lost, and one that is not over when the recording ends.
    let at = START + 60 * MS;
    b.enter(at, worker, walk, 0, Some([Value::Unreadable(0x10)].into()));
    b.exit(
        at + 3 * MS,
        worker,
        walk,
        0,
        (at, 3 * MS),
        ExitKind::Inferred,
        None,
    );
    b.enter(
        START + 99 * MS,
        main,
        handle,
        0,
        Some([Value::Unavailable, Value::Unavailable].into()),
    );

    let (from, to) = (Timestamp(START), Timestamp(START + 100 * MS));
    for (function, entries, exits, lost) in [
        (handle, 9, 8, 0),
        (parse, 16, 16, 0),
        (walk, 4, 3, 1),
        (marker, 8, 0, 0),
        (query, 0, 0, 0),
    ] {
        b.events.push(Event::CallCount(CallCount {
            function,
            from,
            to,
            entries,
            exits,
            lost,
            left_out: 0,
        }));
    }
    for (function, process, reason, ms) in [
        (Some(query), None, GapReason::NotYetAttached, 40),
        (None, Some(web), GapReason::DutyCycle, 70),
    ] {
        b.events.push(Event::Gap(Gap {
            from: Timestamp(START + (ms - 5) * MS),
            to: Timestamp(START + ms * MS),
            function,
            process,
            reason,
        }));
    }
}

#[derive(Default)]
struct Builder {
    tables: Tables,
    events: Vec<Event>,
}

impl Builder {
    /// The function that is really called at a frame.
    fn function_of(&self, frame: FrameId) -> FunctionId {
        let lines = self.tables.lines(frame);
        lines
            .last()
            .map_or(FunctionId::from_index(0), |line| line.function)
    }

    fn call(
        &mut self,
        at: u64,
        edge: CallEdge,
        thread: ThreadId,
        function: FunctionId,
        depth: u32,
    ) {
        let cpu = self
            .tables
            .thread(thread)
            .map_or(0, |thread| thread.tid.0 % 2);
        self.events.push(Event::Call(Call {
            at: Timestamp(at),
            thread,
            cpu: Cpu(cpu),
            function,
            stack: 0,
            depth,
            edge,
            later: None,
        }));
    }

    fn enter(
        &mut self,
        at: u64,
        thread: ThreadId,
        function: FunctionId,
        depth: u32,
        arguments: Option<Box<[Value]>>,
    ) {
        self.call(at, CallEdge::Enter(arguments), thread, function, depth);
    }

    #[allow(clippy::too_many_arguments)]
    fn exit(
        &mut self,
        at: u64,
        thread: ThreadId,
        function: FunctionId,
        depth: u32,
        (began, self_ns): (u64, u64),
        how: ExitKind,
        result: Option<Value>,
    ) {
        // A line of its own for each return.
        let line = match how {
            ExitKind::Return => 10 * function.get() + 3,
            _ => 0,
        };
        let exit = Exit {
            began: Timestamp(began),
            self_ns,
            how,
            line,
            result,
            whole: None,
        };
        self.call(at, CallEdge::Exit(Box::new(exit)), thread, function, depth);
    }

    fn string(&mut self, text: &str) -> StringId {
        self.tables.intern_string(text).0
    }

    /// A container: path, engine, id, name, image, pod, namespace, unit; what is empty is not known.
    fn container(&mut self, texts: [&str; 8]) -> ContainerId {
        let [cgroup, rest @ ..] = texts;
        let mut container = Container {
            cgroup: self.string(cgroup),
            engine: None,
            id: None,
            name: None,
            image: None,
            pod: None,
            namespace: None,
            unit: None,
        };
        for (slot, text) in container.texts_mut().into_iter().zip(rest) {
            *slot = (!text.is_empty()).then(|| self.tables.intern_string(text).0);
        }
        self.tables.intern_container(container).0
    }

    fn put_into(&mut self, pid: u32, started: u64, container: ContainerId, inside: &[u32]) {
        let known = self.tables.find_process(Pid(pid), Timestamp(started));
        let known = known.and_then(|id| self.tables.process(id)).cloned();
        let cgroup = self.tables.container(container).map(|known| known.cgroup);
        if let Some(process) = known {
            self.tables.intern_process(Process {
                cgroup,
                container: Some(container),
                namespace_pids: inside.iter().copied().map(Pid).collect(),
                ..process
            });
        }
    }

    fn process(
        &mut self,
        pid: u32,
        started: u64,
        parent: Option<ProcessId>,
        name: &str,
        executable: &str,
    ) -> ProcessId {
        let name = self.string(name);
        let executable = self.string(executable);
        let process = Process {
            pid: Pid(pid),
            started: Timestamp(started),
            parent,
            name,
            executable: Some(executable),
            command: Some(executable),
            namespace_pids: Vec::new(),
            uid: Some(1000),
            cgroup: None,
            container: None,
        };
        self.tables.intern_process(process).0
    }

    fn thread(&mut self, process: ProcessId, tid: u32, started: u64, name: &str) -> ThreadId {
        let name = self.string(name);
        let thread = Thread {
            process,
            tid: Tid(tid),
            started: Timestamp(started),
            name,
        };
        self.tables.intern_thread(thread).0
    }

    fn module(
        &mut self,
        kind: ModuleKind,
        path: &str,
        build_id: Option<&[u8]>,
        bias: u64,
    ) -> ModuleId {
        let path = self.string(path);
        let build_id = build_id.map(|bytes| BuildId(bytes.into()));
        self.tables
            .modules
            .intern(Module {
                kind,
                path,
                build_id,
                address_bias: bias,
            })
            .0
    }

    fn frame(&mut self, kind: FrameKind, module: Option<ModuleId>, address: u64) -> FrameId {
        self.tables
            .frames
            .intern(Frame {
                kind,
                module,
                address,
            })
            .0
    }

    fn function(
        &mut self,
        module: ModuleId,
        name: &str,
        file: Option<&str>,
        start: Option<u64>,
    ) -> FunctionId {
        let name = self.string(name);
        let file = file.map(|file| self.string(file));
        let function = Function {
            name,
            linkage_name: None,
            module: Some(module),
            file,
            line: 0,
            start,
            size: start.map(|_| 0x100),
        };
        self.tables.functions.intern(function).0
    }

    /// A frame whose function starts at the address rounded down to 256.
    fn named(
        &mut self,
        kind: FrameKind,
        module: ModuleId,
        address: u64,
        name: &str,
        source: Option<(&str, u32)>,
    ) -> FrameId {
        let frame = self.frame(kind, Some(module), address);
        let start = Some(address & !0xff);
        let function = self.function(module, name, source.map(|(file, _)| file), start);
        let line = source.map_or(0, |(_, line)| line);
        self.tables
            .set_symbol(frame, Symbol::Lines([Line { function, line }].into()));
        frame
    }

    fn native(
        &mut self,
        module: ModuleId,
        address: u64,
        name: &str,
        file: &str,
        line: u32,
    ) -> FrameId {
        self.named(FrameKind::Native, module, address, name, Some((file, line)))
    }

    /// A frame in `inner`, inlined into `outer`.
    fn inlined(
        &mut self,
        module: ModuleId,
        address: u64,
        outer: &str,
        outer_line: u32,
        inner: &str,
        inner_line: u32,
    ) -> FrameId {
        let frame = self.native(module, address, outer, "src/parse.cc", outer_line);
        let function = self.function(module, inner, Some("include/algorithm"), None);
        let inner = Line {
            function,
            line: inner_line,
        };
        let mut lines = vec![inner];
        lines.extend_from_slice(self.tables.lines(frame));
        self.tables.set_symbol(frame, Symbol::Lines(lines.into()));
        let bytes: Arc<[u8]> = [0x55, 0x48, 0x89, 0xe5, 0x5d, 0xc3].into();
        self.tables.add_code(Code {
            module,
            address: address & !0xff,
            bytes,
        });
        frame
    }

    /// A stack from its frames, outermost first.
    fn stack(&mut self, frames: &[FrameId]) -> StackId {
        let mut parent = None;
        let mut stack = StackId::from_index(0);
        for &frame in frames {
            stack = self.tables.stacks.intern(Stack { parent, frame }).0;
            parent = Some(stack);
        }
        stack
    }
}
