//! Arbitrary recordings that keep the model's rules: for round trips of anything that takes
//! batches.
//!
//! [`recording`] is a pure function of a seed and sizes. Every kind of definition and event, every
//! enum value and the extremes of every field turn up; ids are defined before use and dense, and
//! events are ordered by time. [`recordings`] is the same as a proptest strategy, which shrinks to
//! fewer epochs and events.

use std::sync::Arc;

use profiler_model::*;
use proptest::prelude::*;

/// A source of arbitrary numbers (SplitMix64).
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    /// Any number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// A number below `end` (0 if that is 0).
    pub fn below(&mut self, end: usize) -> usize {
        (self.number() % (end.max(1) as u64)) as usize
    }

    fn chance(&mut self, one_in: usize) -> bool {
        self.below(one_in) == 0
    }

    /// A number of any magnitude, the extremes included.
    pub fn any(&mut self) -> u64 {
        match self.below(8) {
            0 => 0,
            1 => u64::MAX,
            _ => self.number() >> self.below(64),
        }
    }

    fn any32(&mut self) -> u32 {
        self.any() as u32
    }

    fn text(&mut self) -> String {
        const PARTS: [&str; 8] = [
            "main",
            "::",
            "ü",
            "\u{1f980}",
            " ",
            "\n",
            "operator<",
            "/lib",
        ];
        let parts = if self.chance(40) { 500 } else { 6 };
        let mut text: String = (0..self.below(parts))
            .map(|_| PARTS[self.below(PARTS.len())])
            .collect();
        text.push_str(&self.number().to_string());
        text
    }

    fn pick<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.below(values.len())]
    }

    fn maybe<T>(&mut self, value: impl FnOnce(&mut Self) -> T) -> Option<T> {
        if self.chance(3) {
            None
        } else {
            Some(value(self))
        }
    }
}

const UNITS: [Unit; 3] = [Unit::Nanoseconds, Unit::Cycles, Unit::Events];
const MODULES: [ModuleKind; 7] = [
    ModuleKind::File,
    ModuleKind::Kernel,
    ModuleKind::KernelModule,
    ModuleKind::Vdso,
    ModuleKind::Jit,
    ModuleKind::Interpreted,
    ModuleKind::Unknown,
];
const FRAMES: [FrameKind; 4] = [
    FrameKind::Native,
    FrameKind::Kernel,
    FrameKind::Jit,
    FrameKind::Interpreted,
];
const UNKNOWN: [UnknownReason; 6] = [
    UnknownReason::NoMapping,
    UnknownReason::NoFile,
    UnknownReason::NoSymbol,
    UnknownReason::BadFile,
    UnknownReason::GaveUp,
    UnknownReason::TooLarge,
];
const ENDS: [StackEnd; 12] = [
    StackEnd::Complete,
    StackEnd::Truncated,
    StackEnd::LeftOut,
    StackEnd::BadMemory,
    StackEnd::FramePointer,
    StackEnd::NoStack,
    StackEnd::NoRule,
    StackEnd::Jit,
    StackEnd::NoTable,
    StackEnd::NoMapping,
    StackEnd::Gone,
    StackEnd::Unknown,
];
const STATES: [WaitState; 4] = [
    WaitState::Preempted,
    WaitState::Sleeping,
    WaitState::Disk,
    WaitState::Stopped,
];
const LOST: [LostReason; 20] = [
    LostReason::RingFull,
    LostReason::Nested,
    LostReason::Skipped,
    LostReason::SideBand,
    LostReason::Late,
    LostReason::SlowOutput,
    LostReason::BadRecord,
    LostReason::CallRingFull,
    LostReason::Unmatched,
    LostReason::Undecided,
    LostReason::WaitTable,
    LostReason::WaitUnseen,
    LostReason::WaitRingFull,
    LostReason::WaitNested,
    LostReason::TooMany,
    LostReason::Unwritten,
    LostReason::UnwrittenSamples,
    LostReason::UnwrittenWaits,
    LostReason::UnwrittenCalls,
    LostReason::UnwrittenCounts,
];
const TRACED: [TracedKind; 2] = [TracedKind::Function, TracedKind::Marker];
const RETURNS: [ReturnMode; 3] = [
    ReturnMode::None,
    ReturnMode::Uretprobe,
    ReturnMode::Instructions,
];
const GAPS: [GapReason; 7] = [
    GapReason::NotYetAttached,
    GapReason::NoReturns,
    GapReason::DutyCycle,
    GapReason::Detached,
    GapReason::Suspended,
    GapReason::MissingData,
    GapReason::CutOff,
];

/// How many of each kind an epoch has announced.
#[derive(Default)]
struct Counts {
    strings: usize,
    sources: usize,
    processes: usize,
    threads: usize,
    modules: usize,
    mappings: usize,
    functions: usize,
    frames: usize,
    stacks: usize,
    /// Path and id of each: what stays when it is announced anew.
    containers: Vec<(StringId, Option<StringId>)>,
}

fn new<I: EpochId>(count: &mut usize) -> I {
    *count += 1;
    I::from_index(*count - 1)
}

/// One of the ids announced; there is at least one.
fn one<I: EpochId>(random: &mut Random, count: usize) -> I {
    I::from_index(random.below(count))
}

fn some<I: EpochId>(random: &mut Random, count: usize) -> Option<I> {
    (count > 0 && !random.chance(4)).then(|| one(random, count))
}

/// A recording of so many epochs, each of up to three batches of up to so many events.
pub fn recording(seed: u64, epochs: usize, events: usize) -> Vec<Batch> {
    let random = &mut Random(seed);
    let mut batches = Vec::new();
    let mut now = random.any() >> 2;
    for epoch in 0..epochs {
        let mut counts = Counts::default();
        for part in 0..1 + random.below(3) {
            let mut batch = Batch {
                epoch: epoch as u32,
                ..Batch::default()
            };
            if part == 0 {
                batch.definitions.push(Definition::Session(session(random)));
                for kind in 0..9 {
                    batch
                        .definitions
                        .push(definition(random, &mut counts, kind));
                }
            }
            for _ in 0..random.below(events + 1) {
                let kind = random.below(15);
                batch
                    .definitions
                    .push(definition(random, &mut counts, kind));
            }
            // Calls of a few threads that nest, so that exits meet their entries.
            let mut open: Vec<Call> = Vec::new();
            for _ in 0..random.below(events + 1) {
                let step = random.pick(&[0, 1, 1_000, 1_000_000, 1 << 33]);
                now = u64::min(now + random.below(step + 1) as u64, u64::MAX >> 1);
                let event = match random.below(3) {
                    0 => nested_call(random, &counts, now, &mut open),
                    _ => event(random, &counts, now),
                };
                batch.events.push(event);
            }
            batches.push(batch);
        }
    }
    batches
}

/// Arbitrary recordings.
pub fn recordings() -> impl Strategy<Value = Vec<Batch>> {
    (any::<u64>(), 0usize..5, 0usize..60)
        .prop_map(|(seed, epochs, events)| recording(seed, epochs, events))
}

fn session(random: &mut Random) -> Session {
    Session {
        version: random.text(),
        host: random.text(),
        kernel: random.text(),
        arch: random.text(),
        cpus: random.any32(),
        target: random.text(),
        command: (0..random.below(4)).map(|_| random.text()).collect(),
        started: Timestamp(random.any()),
        recordings: (0..random.below(3)).map(|_| random.number()).collect(),
    }
}

/// Kinds 0 to 8 announce in an order in which each finds what it needs.
fn definition(random: &mut Random, counts: &mut Counts, kind: usize) -> Definition {
    match kind {
        0 => Definition::String(new(&mut counts.strings), random.text().into()),
        1 => Definition::Source(
            new(&mut counts.sources),
            Source {
                name: one(random, counts.strings),
                unit: random.pick(&UNITS),
                frequency_hz: random.maybe(Random::any),
                period: random.maybe(Random::any),
            },
        ),
        2 => {
            let process = Process {
                pid: Pid(random.any32()),
                started: Timestamp(random.any()),
                parent: some(random, counts.processes),
                name: one(random, counts.strings),
                executable: some(random, counts.strings),
                command: some(random, counts.strings),
                namespace_pids: (0..random.below(3)).map(|_| Pid(random.any32())).collect(),
                uid: random.maybe(Random::any32),
                cgroup: some(random, counts.strings),
                container: some(random, counts.containers.len()),
            };
            Definition::Process(new(&mut counts.processes), process)
        }
        3 => Definition::Thread(
            new(&mut counts.threads),
            Thread {
                process: one(random, counts.processes),
                tid: Tid(random.any32()),
                started: Timestamp(random.any()),
                name: one(random, counts.strings),
            },
        ),
        4 => Definition::Module(
            new(&mut counts.modules),
            Module {
                kind: random.pick(&MODULES),
                path: one(random, counts.strings),
                build_id: random.maybe(|random| {
                    BuildId(
                        (0..1 + random.below(32))
                            .map(|_| random.any() as u8)
                            .collect(),
                    )
                }),
                address_bias: random.any(),
            },
        ),
        5 => Definition::Mapping(
            new(&mut counts.mappings),
            Mapping {
                process: one(random, counts.processes),
                module: one(random, counts.modules),
                start: random.any(),
                end: random.any(),
                offset: random.any(),
                at: Timestamp(random.any()),
            },
        ),
        6 => Definition::Function(
            new(&mut counts.functions),
            Function {
                name: one(random, counts.strings),
                linkage_name: some(random, counts.strings),
                module: some(random, counts.modules),
                file: some(random, counts.strings),
                line: if random.chance(2) { 0 } else { random.any32() },
                start: random.maybe(Random::any),
                size: random.maybe(Random::any),
            },
        ),
        7 => Definition::Frame(
            new(&mut counts.frames),
            Frame {
                kind: random.pick(&FRAMES),
                module: some(random, counts.modules),
                address: random.any(),
            },
        ),
        8 | 9 => {
            let parent = some(random, counts.stacks);
            let frame = one(random, counts.frames);
            Definition::Stack(new(&mut counts.stacks), Stack { parent, frame })
        }
        10 => {
            let symbol = if random.chance(3) {
                Symbol::Unknown(random.pick(&UNKNOWN))
            } else {
                let lines = (0..1 + random.below(4)).map(|_| Line {
                    function: one(random, counts.functions),
                    line: random.any32(),
                });
                Symbol::Lines(lines.collect())
            };
            Definition::Symbol(one(random, counts.frames), symbol)
        }
        11 => {
            let traced = Traced {
                kind: random.pick(&TRACED),
                entry_offset: random.any32(),
                returns: random.pick(&RETURNS),
                cost_ns: random.any32(),
                line: random.any32(),
                parameters: (0..random.below(4))
                    .map(|_| Parameter {
                        name: one(random, counts.strings),
                        kind: some(random, counts.strings),
                    })
                    .collect(),
                result: some(random, counts.strings),
            };
            Definition::Traced(one(random, counts.functions), traced)
        }
        12 => container(random, counts),
        13 => Definition::Named(Named {
            thread: one(random, counts.threads),
            from: Timestamp(random.any()),
            name: one(random, counts.strings),
        }),
        _ => Definition::Code(Code {
            module: one(random, counts.modules),
            address: random.any(),
            bytes: (0..random.below(40))
                .map(|_| random.any() as u8)
                .collect::<Arc<[u8]>>(),
        }),
    }
}

/// A container; often one that is there already, of which other things are known now.
fn container(random: &mut Random, counts: &mut Counts) -> Definition {
    let known = counts.containers.len();
    let again = some::<ContainerId>(random, known).filter(|_| random.chance(2));
    let index = again.map_or(known, ContainerId::index);
    if again.is_none() {
        let identity = (one(random, counts.strings), some(random, counts.strings));
        counts.containers.push(identity);
    }
    let (cgroup, id) = counts.containers[index];
    let mut container = Container {
        cgroup,
        engine: None,
        id: None,
        name: None,
        image: None,
        pod: None,
        namespace: None,
        unit: None,
    };
    for text in container.texts_mut() {
        *text = some(random, counts.strings);
    }
    container.id = id;
    Definition::Container(ContainerId::from_index(index), container)
}

fn event(random: &mut Random, counts: &Counts, now: u64) -> Event {
    let at = Timestamp(now);
    match random.below(19) {
        0 => Event::Mark(Mark {
            at,
            text: one(random, counts.strings),
        }),
        1 => Event::Clock(Clock {
            monotonic: at,
            realtime_ns: random.any(),
        }),
        2 => Event::Lost(Lost {
            cpu: random.maybe(|random| Cpu(random.any32())),
            from: Timestamp(random.any().min(now)),
            to: at,
            count: random.any(),
            reason: random.pick(&LOST),
        }),
        3 => {
            let name = one(random, counts.strings);
            let change = random.pick(&[
                ProcessChange::Started,
                ProcessChange::Executed(name),
                ProcessChange::Renamed(name),
                ProcessChange::Exited,
            ]);
            let thread = one(random, counts.threads);
            Event::Process(ProcessEvent { at, thread, change })
        }
        4 => Event::Throw(Throw {
            at,
            thread: one(random, counts.threads),
            cpu: Cpu(random.any32()),
            kind: one(random, counts.strings),
            thrower: some(random, counts.frames),
        }),
        5 => Event::CallCount(CallCount {
            function: one(random, counts.functions),
            from: Timestamp(random.any().min(now)),
            to: at,
            entries: random.any(),
            exits: random.any(),
            lost: random.any(),
            left_out: random.any(),
        }),
        6 => Event::Gap(Gap {
            from: Timestamp(random.any().min(now)),
            to: at,
            function: some(random, counts.functions),
            process: some(random, counts.processes),
            reason: random.pick(&GAPS),
        }),
        18 => Event::Waits(Waits {
            thread: one(random, counts.threads),
            from: Timestamp(random.any().min(now)),
            to: at,
            count: [(); 4].map(|()| random.any()),
            ns: [(); 4].map(|()| random.any()),
            runnable_ns: random.any(),
        }),
        7 | 8 => {
            let edge = call_edge(random, counts, now);
            Event::Call(Call {
                at,
                thread: one(random, counts.threads),
                cpu: Cpu(random.below(300) as u32),
                function: one(random, counts.functions),
                stack: if random.chance(3) { random.any32() } else { 0 },
                depth: random.any32(),
                edge,
                later: sections(random),
            })
        }
        _ => {
            let cpu = if random.chance(10) {
                random.any32()
            } else {
                random.below(300) as u32
            };
            let kernel = some(random, counts.stacks);
            let user = some(random, counts.stacks);
            let usual = random.chance(2);
            let end = |random: &mut Random, stack: Option<StackId>| match (usual, stack) {
                (true, Some(_)) => StackEnd::Complete,
                (true, None) => StackEnd::NoStack,
                _ => random.pick(&ENDS),
            };
            let wait = random.chance(3).then(|| Wait {
                ns: random.any(),
                runnable_ns: random.any(),
                state: random.pick(&STATES),
                waker: some(random, counts.threads),
                count: random.any32(),
                // What is told in parts is read as one.
                open: false,
            });
            let weight = if random.chance(2) {
                1_001_001
            } else {
                random.any()
            };
            let (thread, source) = (one(random, counts.threads), one(random, counts.sources));
            Event::Sample(Sample {
                kernel,
                user,
                kernel_end: end(random, kernel),
                user_end: end(random, user),
                wait,
                later: sections(random),
                ..Sample::new(at, thread, Cpu(cpu), source, weight)
            })
        }
    }
}

/// Now and then, what a later version of the profiler says besides: sections that refer to nothing.
fn sections(random: &mut Random) -> Option<Box<Sections>> {
    random.chance(20).then(|| {
        let mut bytes = Vec::new();
        for _ in 0..1 + random.below(3) {
            let len = random.below(100) as u8;
            // Kind 2 of a call is known: whose stack it is on.
            bytes.extend([4 + 2 * random.below(58) as u8, len]);
            bytes.extend((0..len).map(|i| i ^ 0xa5));
        }
        Box::new(Sections(bytes.into()))
    })
}

/// A call that is entered, or one of those that are open and is left.
fn nested_call(random: &mut Random, counts: &Counts, now: u64, open: &mut Vec<Call>) -> Event {
    let at = Timestamp(now);
    if let Some(begun) = open.last().filter(|_| random.chance(2)).cloned() {
        open.pop();
        let self_ns = now - begun.at.0;
        let exit = Exit {
            began: begun.at,
            self_ns: if random.chance(2) {
                self_ns
            } else {
                random.any()
            },
            how: ExitKind::Return,
            // Most functions have an exit or two.
            line: random.pick(&[0, 10, 10, 12]),
            result: None,
            whole: None,
        };
        let edge = CallEdge::Exit(Box::new(exit));
        return Event::Call(Call { at, edge, ..begun });
    }
    let call = Call {
        at,
        thread: ThreadId::from_index(open.len() % 2 % counts.threads),
        cpu: Cpu(random.below(2) as u32),
        function: one(random, counts.functions),
        stack: 0,
        depth: open.len() as u32 / 2,
        edge: CallEdge::Enter(None),
        later: None,
    };
    open.push(call.clone());
    Event::Call(call)
}

fn call_edge(random: &mut Random, counts: &Counts, now: u64) -> CallEdge {
    match random.below(3) {
        0 => CallEdge::Enter(random.maybe(values)),
        1 => CallEdge::Hit(random.maybe(values)),
        _ => {
            let kind = some(random, counts.strings);
            CallEdge::Exit(Box::new(Exit {
                began: Timestamp(random.any().min(now)),
                self_ns: random.any(),
                how: random.pick(&[
                    ExitKind::Return,
                    ExitKind::Exception(kind),
                    ExitKind::Terminated,
                    ExitKind::Inferred,
                ]),
                line: if random.chance(2) { 0 } else { random.any32() },
                result: random.maybe(|random| value(random, 0)),
                whole: random.maybe(values),
            }))
        }
    }
}

fn values(random: &mut Random) -> Box<[Value]> {
    (0..random.below(5)).map(|_| value(random, 0)).collect()
}

/// A value that no writer cuts.
fn value(random: &mut Random, nesting: u32) -> Value {
    let name = |random: &mut Random| -> Box<str> {
        let mut text = random.text();
        text.truncate(text.floor_char_boundary(200));
        text.into()
    };
    match random.below(if nesting < 2 { 12 } else { 11 }) {
        0 => Value::Signed(random.any() as i64),
        1 => Value::Unsigned(random.any()),
        // A number, since nothing equals what is none.
        2 => Value::Float(random.any() as f64 / 3.0),
        3 => Value::Bool(random.chance(2)),
        4 => Value::Char(random.pick(&['a', '\0', 'ü', '\u{10ffff}'])),
        5 => Value::Named(name(random), random.any() as i64),
        6 => Value::Pointer(random.any()),
        7 => Value::Text(name(random), random.chance(2)),
        8 => Value::Text("x".repeat(random.below(4096)).into(), false),
        9 => Value::Unreadable(random.any()),
        10 => Value::Unavailable,
        _ => {
            let parts = (0..random.below(4)).map(|_| {
                let name = name(random);
                (name, value(random, nesting + 1))
            });
            Value::Struct(parts.collect())
        }
    }
}

/// What a reader of a recording must come to: all definitions folded, and all events with the ids
/// of these tables.
pub fn expected(batches: &[Batch]) -> (Tables, Vec<Event>) {
    let mut tables = Tables::default();
    let mut events = Vec::new();
    let mut epoch = (u32::MAX, Epoch::default());
    for batch in batches {
        if epoch.0 != batch.epoch {
            epoch = (batch.epoch, Epoch::default());
        }
        for definition in &batch.definitions {
            let defined = epoch.1.define(&mut tables, definition.clone());
            assert_eq!(defined, Ok(()), "a generated recording breaks the rules");
        }
        for event in &batch.events {
            match epoch.1.event(event.clone()) {
                Ok(event) => events.push(event),
                Err(error) => panic!("a generated recording breaks the rules: {error}"),
            }
        }
    }
    (tables, events)
}
