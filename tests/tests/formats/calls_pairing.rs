//! Traced calls through the resolver: records of probes in, batches out.
//!
//! Which exit ends which call is tested where it is decided (`resolve::calls`); here is what comes
//! of it: functions, threads, types, values, epochs, the ends of threads and programs, and the
//! stacks of samples while returns are pending.

// What fails here fails the test, in its functions too.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use profiler_model::raw::*;
use profiler_model::*;
use profiler_resolve::{ResolveOptions, Resolver, Role, TracedProbe};
use profiler_trace::CallValues;

/// A pid that no real process has (beyond the kernel's largest).
const PID: u32 = 5_000_000;
const PAGE: u64 = 0x7fff_ffff_e000;
const THROW: u32 = 90;
const LAND: u32 = 91;

/// Each byte of the items is a number.
#[derive(Debug)]
struct Bytes;

impl CallValues for Bytes {
    fn parameters(&self) -> Vec<(String, Option<String>)> {
        vec![("x".into(), Some("char".into())), ("y".into(), None)]
    }
    fn result(&self) -> Option<String> {
        Some("int".into())
    }
    fn decode(&self, items: &[u8], at_exit: bool) -> Vec<Value> {
        let sign = if at_exit { -1 } else { 1 };
        items
            .iter()
            .map(|&byte| Value::Signed(i64::from(byte) * sign))
            .collect()
    }
}

fn probe(name: &str, returns: ReturnMode, role: Role) -> TracedProbe {
    TracedProbe {
        name: name.into(),
        linkage_name: None,
        path: "/usr/bin/work".into(),
        build_id: Some(BuildId([7; 20].into())),
        address_bias: 0x40_0000,
        start: 0x1000 + name.len() as u64 * 0x100,
        size: 0,
        source: Some("work.c".into()),
        declared: 0,
        line: 12,
        exit_lines: [20, 0, 30].into(),
        kind: TracedKind::Function,
        entry_offset: 4,
        returns,
        cost_ns: 900,
        values: None,
        role,
        exception: None,
    }
}

struct Case {
    resolver: Box<Resolver>,
    now: u64,
    raw: Vec<RawEvent>,
    batches: Vec<Batch>,
}

fn case() -> Case {
    let options = ResolveOptions {
        debug_dirs: Vec::new(),
        ..ResolveOptions::default()
    };
    let mut resolver = Resolver::new(options).unwrap();
    resolver.trace(0, probe("f", ReturnMode::Instructions, Role::Call));
    resolver.trace(1, probe("gg", ReturnMode::Uretprobe, Role::Call));
    let values = TracedProbe {
        values: Some(Arc::new(Bytes)),
        ..probe("values", ReturnMode::Instructions, Role::Call)
    };
    resolver.trace(2, values);
    let throws = TracedProbe {
        exception: Some(|bytes| String::from_utf8_lossy(bytes).into_owned()),
        ..probe("__cxa_throw", ReturnMode::None, Role::CxxThrow)
    };
    resolver.trace(THROW, throws);
    resolver.trace(
        LAND,
        probe("__cxa_begin_catch", ReturnMode::None, Role::Land),
    );
    let mut case = Case {
        resolver,
        now: 1_000_000,
        raw: Vec::new(),
        batches: Vec::new(),
    };
    case.push(RawBody::Comm {
        pid: Pid(PID),
        tid: Tid(PID),
        exec: true,
        comm: Comm::from_bytes(b"work"),
    });
    case
}

impl Case {
    fn push(&mut self, body: RawBody) {
        self.now += 100;
        self.raw.push(RawEvent {
            at: Timestamp(self.now),
            cpu: Cpu(1),
            body,
        });
    }

    fn hit(&mut self, probe: u32, edge: RawEdge, sp: u64) {
        self.hit_with(probe, edge, sp, 0, &[]);
    }

    fn hit_with(&mut self, probe: u32, edge: RawEdge, sp: u64, caller: u64, items: &[u8]) {
        let began = match edge {
            RawEdge::Whole => self.now - 1_000,
            _ => 0,
        };
        self.push(RawBody::Call(RawCall {
            pid: Pid(PID),
            tid: Tid(PID),
            probe,
            site: 0,
            edge,
            after_loss: false,
            stack: 0,
            sp,
            caller,
            began: Timestamp(began),
            values: (!items.is_empty()).then(|| items.into()),
        }));
    }

    fn enter(&mut self, probe: u32, sp: u64) {
        self.hit(probe, RawEdge::Enter, sp);
    }

    fn exit(&mut self, probe: u32, sp: u64) {
        self.hit(probe, RawEdge::Exit, sp);
    }

    /// An exit at one of the function's sites.
    fn exit_at(&mut self, probe: u32, sp: u64, number: u8) {
        self.exit(probe, sp);
        if let Some(RawBody::Call(RawCall { site, .. })) =
            self.raw.last_mut().map(|event| &mut event.body)
        {
            *site = number;
        }
    }

    fn map(&mut self, start: u64, path: &str) {
        self.push(RawBody::Mmap(Box::new(RawMmap {
            pid: Pid(PID),
            tid: Tid(PID),
            start,
            len: 0x1000,
            file_offset: 0,
            path: path.as_bytes().into(),
            file: FileIdentity {
                inode: 9,
                ..FileIdentity::default()
            },
        })));
    }

    fn sample(&mut self, user: &[u64]) {
        let bytes: Vec<u8> = user
            .iter()
            .flat_map(|address| address.to_ne_bytes())
            .collect();
        self.push(RawBody::Sample(Box::new(RawSample {
            comm: Comm::from_bytes(b"work"),
            user: RawStack {
                bytes: bytes.into(),
                end: StackEnd::Complete,
            },
            ..RawSample::new(Pid(PID), Tid(PID))
        })));
    }

    fn resolve(&mut self) {
        self.resolver.resolve(&mut self.raw, &mut self.batches);
    }

    fn read(mut self) -> (Tables, Vec<Event>) {
        self.resolve();
        let mut events = Vec::new();
        let mut tables = Tables::default();
        let mut epochs = std::collections::BTreeMap::<u32, Epoch>::new();
        for batch in self.batches {
            let epoch = epochs.entry(batch.epoch).or_default();
            for definition in batch.definitions {
                epoch.define(&mut tables, definition).unwrap();
            }
            for event in batch.events {
                events.push(epoch.event(event).unwrap());
            }
        }
        assert!(events.is_sorted_by_key(Event::at));
        (tables, events)
    }

    /// The same without ends and beginnings of processes.
    fn told_of_calls(self) -> Vec<String> {
        let mut told = self.told();
        told.retain(|line| !line.starts_with("ex"));
        told
    }

    /// The calls, in short.
    fn told(self) -> Vec<String> {
        let (tables, events) = self.read();
        let name = |id| {
            tables
                .string(tables.functions.get(id).unwrap().name)
                .to_owned()
        };
        let said = |event: &Event| match event {
            Event::Call(call) => {
                let (function, depth) = (name(call.function), call.depth);
                Some(match &call.edge {
                    CallEdge::Enter(values) => format!("+{function}{depth}{}", show(values)),
                    CallEdge::Hit(values) => format!(".{function}{depth}{}", show(values)),
                    CallEdge::Exit(exit) => {
                        let how = match exit.how {
                            ExitKind::Return => String::new(),
                            ExitKind::Exception(kind) => {
                                format!(" thrown {}", tables.string(kind.unwrap()))
                            }
                            other => format!(" {other:?}"),
                        };
                        let result = exit.result.clone().map(|value| [value].into());
                        let values = (show(&result), show(&exit.whole));
                        format!("-{function}{depth}{how}{}{}", values.0, values.1)
                    }
                })
            }
            Event::Throw(throw) => {
                let thrower = throw
                    .thrower
                    .map(|frame| tables.frames.get(frame).unwrap().address);
                Some(format!("throw {} {thrower:x?}", tables.string(throw.kind)))
            }
            Event::Process(change) => match change.change {
                ProcessChange::Exited => Some("exited".to_owned()),
                ProcessChange::Executed(_) => Some("exec".to_owned()),
                _ => None,
            },
            Event::Lost(lost) => Some(format!("lost {:?} {}", lost.reason, lost.count)),
            _ => None,
        };
        events.iter().filter_map(said).collect()
    }
}

fn show(values: &Option<Box<[Value]>>) -> String {
    let Some(values) = values else {
        return String::new();
    };
    let numbers = values.iter().map(|value| match value {
        Value::Signed(number) => number.to_string(),
        other => format!("{other:?}"),
    });
    format!("({})", numbers.collect::<Vec<_>>().join(" "))
}

#[test]
fn calls_have_functions_and_values() {
    let mut c = case();
    c.enter(0, 0x9000);
    c.hit_with(2, RawEdge::Enter, 0x8f00, 0, &[3, 4]);
    c.hit_with(2, RawEdge::Exit, 0x8f00, 0, &[5]);
    c.exit(0, 0x9000);
    c.hit_with(2, RawEdge::Hit, 0x8f00, 0, &[6]);
    c.hit_with(2, RawEdge::Whole, 0x8f00, 0, &[7]);
    assert_eq!(
        c.told(),
        [
            "exec",
            "+f0",
            "+values1(3 4)",
            "-values1(-5)",
            "-f0",
            ".values0(6)",
            "-values0(-7)()"
        ]
    );
}

#[test]
fn returns_have_the_line_of_their_site_and_nothing_else_has() {
    let mut c = case();
    for site in [1, 2, 3, 4, 0, 63] {
        c.enter(0, 0x9000);
        c.exit_at(0, 0x9000, site);
    }
    // The inner call is left with the outer one, unseen.
    c.enter(0, 0x9000);
    c.enter(0, 0x8f00);
    c.exit_at(0, 0x9000, 3);
    let (tables, events) = c.read();
    let mut lines = Vec::new();
    for event in &events {
        let Event::Call(call) = event else { continue };
        assert_eq!(tables.traced(call.function).unwrap().line, 12);
        if let CallEdge::Exit(exit) = &call.edge {
            lines.push((exit.how == ExitKind::Return, exit.line));
        }
    }
    let expected = [20, 0, 30, 0, 0, 0].map(|line| (true, line));
    assert_eq!(lines[..6], expected);
    assert_eq!(lines[6..], [(false, 0), (true, 30)]);
}

#[test]
fn functions_are_announced_once_in_each_epoch() {
    let mut c = case();
    for _ in 0..2 {
        c.hit_with(2, RawEdge::Enter, 0x9000, 0, &[1, 2]);
        c.resolve();
        c.resolver.begin_epoch();
        c.hit_with(2, RawEdge::Exit, 0x9000, 0, &[1]);
    }
    c.resolve();
    let is_traced = |definition: &&Definition| matches!(definition, Definition::Traced(..));
    let announced = c.batches.iter().map(|batch| {
        (
            batch.epoch,
            batch.definitions.iter().filter(is_traced).count(),
        )
    });
    let mut by_epoch = std::collections::BTreeMap::<u32, usize>::new();
    for (epoch, count) in announced {
        *by_epoch.entry(epoch).or_default() += count;
    }
    assert_eq!(by_epoch.into_values().collect::<Vec<_>>(), [1, 1, 1]);
    let (tables, events) = c.read();
    let calls: Vec<_> = events
        .iter()
        .filter_map(|event| match event {
            Event::Call(call) => Some(call),
            _ => None,
        })
        .collect();
    assert_eq!(calls.len(), 4);
    assert!(calls.iter().all(|call| call.function == calls[0].function));
    let CallEdge::Exit(exit) = &calls[1].edge else {
        panic!("{calls:?}");
    };
    assert_eq!((exit.began, exit.self_ns), (calls[0].at, 100));
    let function = tables.functions.get(calls[0].function).unwrap();
    let module = tables.modules.get(function.module.unwrap()).unwrap();
    assert_eq!(tables.string(module.path), "/usr/bin/work");
    assert_eq!((function.start, function.size), (Some(0x1600), None));
    assert_eq!(tables.string(function.file.unwrap()), "work.c");
    let traced = tables.traced(calls[0].function).unwrap();
    assert_eq!(
        (traced.entry_offset, traced.returns),
        (4, ReturnMode::Instructions)
    );
    assert_eq!((traced.cost_ns, traced.parameters.len()), (900, 2));
    assert_eq!(tables.string(traced.parameters[0].name), "x");
    assert_eq!(tables.string(traced.result.unwrap()), "int");
}

#[test]
fn what_is_thrown_has_its_type_and_place() {
    let mut c = case();
    c.map(0x5000, "/usr/bin/work");
    c.enter(0, 0x9000);
    c.enter(0, 0x8f00);
    let type_name = [&[0, 0, 1, 0, 0, 0, 0, 0][..], b"E\0\0\0\0\0\0\0"].concat();
    c.hit_with(THROW, RawEdge::Throw, 0x8e00, 0x5124, &type_name);
    c.hit(LAND, RawEdge::Land, 0x8f80);
    c.exit(0, 0x9000);
    // The address may be an item of its own.
    let mut items = vec![0, 0, 8, 0, 0, 0, 0, 0];
    items.extend(0x5235u64.to_ne_bytes());
    items.extend(&type_name);
    c.hit_with(THROW, RawEdge::Throw, 0x8e00, 0, &items);
    // Its type could not be read: that of what was thrown last.
    let unread = [1, 0, 8, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];
    c.hit_with(THROW, RawEdge::Throw, 0x2000, 7, &unread);
    assert_eq!(
        c.told(),
        [
            "exec",
            "+f0",
            "+f1",
            "throw E Some(123)",
            "-f1 thrown E",
            "-f0",
            "throw E Some(234)",
            "throw E None"
        ]
    );
}

#[test]
fn calls_end_with_their_thread_and_their_program() {
    let mut c = case();
    c.enter(0, 0x9000);
    c.enter(0, 0x8f00);
    let tid = Tid(PID);
    c.push(RawBody::Comm {
        pid: Pid(PID),
        tid,
        exec: true,
        comm: Comm::from_bytes(b"other"),
    });
    c.enter(0, 0x9000);
    c.push(RawBody::Exit { pid: Pid(PID), tid });
    assert_eq!(
        c.told(),
        [
            "exec",
            "+f0",
            "+f1",
            "-f1 Terminated",
            "-f0 Terminated",
            "exec",
            "+f0",
            "-f0 Terminated",
            "exited"
        ]
    );
}

#[test]
fn what_can_not_be_paired_is_counted() {
    let mut c = case();
    c.exit(0, 0x9000);
    c.exit(0, 0x9100);
    c.enter(77, 0x9000);
    c.push(RawBody::CallCount(RawCallCount {
        probe: 77,
        from: Timestamp(0),
        entries: 1,
        exits: 1,
        lost: 0,
        left_out: 0,
    }));
    assert_eq!(c.told(), ["exec", "lost Unmatched 2", "lost BadRecord 1"]);
}

/// A process gets its probes while calls are open: their exits are in the gap that is told, also those that come
/// later. What returns where something was entered since has lost its entry.
#[test]
fn exits_of_calls_from_before_the_probes_are_in_the_gap() {
    let mut c = case();
    c.exit(0, 0x8f00);
    c.resolver.has_probes_from(Pid(PID), Timestamp(c.now + 1));
    c.exit(0, 0x9000);
    c.enter(0, 0x9000);
    c.exit(0, 0x9000);
    c.exit(0, 0x9100);
    // Behind those that were open then.
    c.exit(0, 0x9080);
    c.exit(0, 0x9100);
    assert_eq!(c.told(), ["exec", "+f0", "-f0", "lost Unmatched 2"]);
}

#[test]
fn counts_and_gaps_name_their_function_and_process() {
    let mut c = case();
    c.push(RawBody::CallCount(RawCallCount {
        probe: 0,
        from: Timestamp(5),
        entries: 10,
        exits: 9,
        lost: 1,
        left_out: 2,
    }));
    for (probe, pid) in [(Some(0), None), (None, Some(Pid(PID))), (Some(77), None)] {
        c.push(RawBody::Gap(RawGap {
            from: Timestamp(5),
            probe,
            pid,
            reason: GapReason::DutyCycle,
        }));
    }
    let now = c.now;
    let (tables, events) = c.read();
    let [_, Event::CallCount(count), Event::Gap(one), Event::Gap(all)] = &events[..] else {
        panic!("{events:?}");
    };
    assert_eq!(
        (count.from, count.to, count.exits),
        (Timestamp(5), Timestamp(now - 300), 9)
    );
    assert_eq!((one.function, one.process), (Some(count.function), None));
    let process = tables.process(all.process.unwrap()).unwrap();
    assert_eq!((all.function, process.pid), (None, Pid(PID)));
}

impl Case {
    /// A record on a processor, behind lost ones or not.
    fn on(&mut self, cpu: u32, after_loss: bool) {
        let event = self.raw.last_mut().unwrap();
        event.cpu = Cpu(cpu);
        if let RawBody::Call(call) = &mut event.body {
            call.after_loss = after_loss;
        }
    }

    /// Records of a processor were lost since `from`, which is known now.
    fn lost_since(&mut self, from: u64, cpu: u32) {
        let to = self.now + 100;
        self.push(RawBody::Lost(Lost {
            cpu: Some(Cpu(cpu)),
            from: Timestamp(from),
            to: Timestamp(to),
            count: 7,
            reason: LostReason::CallRingFull,
        }));
    }

    /// As a session does with what it drains.
    fn notice(&mut self) {
        self.resolver.notice_losses(&self.raw);
    }
}

#[test]
fn no_call_is_paired_across_lost_records() {
    // The exit of f and the entry of the next call are lost; its exit is not.
    let mut c = case();
    c.enter(1, 0x9100);
    c.enter(0, 0x9000);
    c.exit(0, 0x9000);
    c.on(1, true);
    c.enter(0, 0x9000);
    c.exit(0, 0x9000);
    c.exit(1, 0x9100);
    let told = c.told_of_calls();
    assert_eq!(
        told,
        [
            "+gg0",
            "+f1",
            "-f1 Unwatched",
            "-gg0 Unwatched",
            "+f0",
            "-f0",
            "lost Unmatched 2"
        ]
    );
}

#[test]
fn while_records_of_a_processor_are_lost_none_of_another_is_paired() {
    // The thread moves to a processor that has room: a later call's exit is seen there. What was lost is known before
    // any of it is told, by the first record behind, or as a count.
    for by_count in [false, true] {
        let mut c = case();
        c.enter(0, 0x9000);
        c.exit(0, 0x9000);
        let from = c.now;
        c.enter(0, 0x9000);
        c.on(0, false);
        c.exit(0, 0x9000);
        c.enter(0, 0x9000);
        c.exit(0, 0x9000);
        if by_count {
            c.lost_since(from, 0);
        } else {
            c.enter(0, 0x9000);
            c.on(0, true);
            c.exit(0, 0x9000);
        }
        c.notice();
        let told = c.told_of_calls();
        let first = ["+f0", "-f0", "+f0", "-f0 Unwatched", "+f0", "-f0 Unwatched"];
        assert_eq!(told[..6], first, "{told:?}");
        let rest: &[&str] = if by_count {
            &["lost CallRingFull 7"]
        } else {
            &["+f0", "-f0"]
        };
        assert_eq!(&told[6..], rest);
    }
}

#[test]
fn what_is_open_when_a_loss_is_told_is_given_up() {
    let mut c = case();
    c.enter(0, 0x9000);
    let from = c.now;
    c.lost_since(from, 3);
    c.exit(0, 0x9000);
    c.enter(0, 0x9000);
    c.exit(0, 0x9000);
    let told = c.told_of_calls();
    assert_eq!(
        told,
        [
            "+f0",
            "-f0 Unwatched",
            "lost CallRingFull 7",
            "+f0",
            "-f0",
            "lost Unmatched 1"
        ]
    );
}

#[test]
fn pending_returns_do_not_show_in_stacks() {
    let stack_of = |prepare: &dyn Fn(&mut Case), addresses: &[u64]| {
        let mut c = case();
        c.map(0x5000, "/usr/bin/work");
        prepare(&mut c);
        c.sample(addresses);
        let (tables, events) = c.read();
        let sample = events.iter().find_map(|event| match event {
            Event::Sample(sample) => Some(sample),
            _ => None,
        });
        let frames = tables.frames_of(sample.unwrap().user);
        frames
            .map(|frame| tables.frames.get(frame).unwrap().address)
            .collect::<Vec<_>>()
    };
    let two = |c: &mut Case| {
        c.hit_with(1, RawEdge::Enter, 0x9000, 0x5101, &[]);
        c.hit_with(1, RawEdge::Enter, 0x8f00, 0x5202, &[]);
    };
    // Leaf first; callers are looked up one byte before.
    assert_eq!(
        stack_of(&two, &[0x5300, PAGE, PAGE, 0x5011]),
        [0x300, 0x201, 0x100, 0x10]
    );
    // In the trampoline itself: the innermost has just returned.
    assert_eq!(
        stack_of(&two, &[PAGE + 1, PAGE, 0x5011]),
        [0x202, 0x100, 0x10]
    );
    // An instruction executed out of line is no place in the program; nor is what nobody knows.
    assert_eq!(stack_of(&two, &[PAGE + 0x100, 0x5011]), [0x10]);
    assert_eq!(
        stack_of(&two, &[0x5300, PAGE, PAGE, PAGE, 0x5011]),
        [0x300, 0x201, 0x100, 0x10]
    );
    let unknown = |c: &mut Case| c.enter(1, 0x9000);
    assert_eq!(stack_of(&unknown, &[0x5300, PAGE, 0x5011]), [0x300, 0x10]);
    // Where the kernel had to put it elsewhere, the mapping tells.
    let elsewhere = |c: &mut Case| {
        c.map(0x7000_0000, "[uprobes]");
        c.hit_with(1, RawEdge::Enter, 0x9000, 0x5101, &[]);
    };
    assert_eq!(
        stack_of(&elsewhere, &[0x5300, 0x7000_0000, 0x5011]),
        [0x300, 0x100, 0x10]
    );
    // Nothing pending any more: an address like any other.
    let over = |c: &mut Case| {
        two(c);
        c.exit(1, 0x8f00);
        c.exit(1, 0x9000);
    };
    assert_eq!(stack_of(&over, &[0x5300, 0x5011]), [0x300, 0x10]);
}
