//! Fuzzing of traced calls: records of the kernel side -> raw calls -> paired calls.
//!
//! Input: a fuzzer's bytes; output: none, a broken promise is a panic. Integers of records are in
//! the byte order of the machine; times are nanoseconds of CLOCK_MONOTONIC.
//!
//! One resolver serves all inputs, since to start one costs more than to run an input. Each input has
//! processes and threads of its own, which end with it, and later times: what it does depends on
//! itself alone.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

use profiler_common::call::{CALL_HAS_CALLER, CallHead, EDGE_WHOLE, ITEM_OK, split_item};
use profiler_model::decode::Decoder;
use profiler_model::raw::{Comm, RawBody, RawCall, RawEdge, RawEvent};
use profiler_model::{
    Batch, Call, CallEdge, Cpu, Event, ExitKind, Lost, LostReason, Pid, ReturnMode, Tid, Timestamp,
    TracedKind, Value,
};
use profiler_resolve::{ResolveOptions, Resolver, Role, TracedProbe};
use profiler_trace::CallValues;
use profiler_trace::arguments::{Signature, exception_class, exception_name};

/// Bytes of one step in the short form.
const STEP_BYTES: usize = 8;
/// Threads of an input; two for each process.
const THREADS: u32 = 4;
/// No real process has such an id: the kernel's largest is 2^22.
const FIRST_TID: u32 = 5_000_000;
/// Deepest stack that is kept.
const MAX_DEPTH: u32 = 4096;
/// The beginning of a page, as the trampoline of return probes is.
const TRAMPOLINE: u64 = 0x7fff_ffff_e000;
/// Registered probes; hits of others are not known.
const PROBES: [(Role, ReturnMode); 10] = [
    (Role::Call, ReturnMode::Instructions),
    (Role::Call, ReturnMode::Uretprobe),
    (Role::Call, ReturnMode::Instructions),
    (Role::Call, ReturnMode::Uretprobe),
    (Role::Call, ReturnMode::None),
    (Role::CxxThrow, ReturnMode::None),
    (Role::UnwindThrow, ReturnMode::None),
    (Role::Land, ReturnMode::None),
    (Role::Land, ReturnMode::None),
    (Role::Jump, ReturnMode::None),
];
/// The one that lands and goes on.
const RESUMES: usize = 8;

/// Decodes records of calls, and pairs them. If the first byte is odd, the rest is a row of records
/// as they are, each behind its length in one byte, which are decoded only: their processes could be
/// real ones. If it is even, it is a row of steps of 8 bytes, of which records of made-up threads are
/// made: edge and flags, probe, thread and goroutine, place on the stack, time, caller, length of the
/// items that follow, and what to do with them.
pub fn calls(data: &[u8]) {
    let Some((mode, mut rest)) = data.split_first() else {
        return;
    };
    if mode % 2 == 1 {
        while let [len, more @ ..] = rest {
            let (record, behind) = more.split_at(usize::from(*len).min(more.len()));
            decoded(record);
            rest = behind;
        }
        return;
    }
    thread_local! {
        static PAIRING: RefCell<Option<Pairing>> = const { RefCell::new(None) };
    }
    PAIRING.with_borrow_mut(|pairing| pairing.get_or_insert_with(Pairing::start).input(rest));
}

/// What is decoded is counted once and holds no more than the record did.
fn decoded(record: &[u8]) -> Option<RawEvent> {
    let (mut decoder, mut out) = (Decoder::default(), Vec::new());
    let mut copied = None;
    let copy = |items: &[u8]| {
        copied = Some(items.to_vec());
        items.into()
    };
    decoder.call(Cpu(2), record, copy, &mut out);
    assert_eq!(out.len() as u64 + decoder.bad + decoder.unknown, 1);
    let event = out.pop()?;
    let RawBody::Call(call) = &event.body else {
        panic!("a record of a call gives {event:?}");
    };
    assert!(record.ends_with(call.items()));
    assert!(record.len() >= size_of::<CallHead>() + call.items().len());
    assert_eq!(copied.unwrap_or_default(), call.items());
    let began = match call.edge {
        RawEdge::Whole => split_item(&record[size_of::<CallHead>()..])?
            .1
            .try_into()
            .ok()?,
        _ => [0; 8],
    };
    assert_eq!(call.began.0, u64::from_ne_bytes(began));
    Some(event)
}

/// The six registers, as of a function without debug information.
#[derive(Debug)]
struct Registers(Signature);

impl CallValues for Registers {
    fn parameters(&self) -> Vec<(String, Option<String>)> {
        let parameters = self.0.parameters.iter();
        parameters
            .map(|parameter| (parameter.name.to_string(), None))
            .collect()
    }

    fn result(&self) -> Option<String> {
        None
    }

    fn decode(&self, items: &[u8], at_exit: bool) -> Vec<Value> {
        let values = self.0.decode(items, at_exit, 64);
        let expected = if at_exit { 1 } else { self.0.parameters.len() };
        assert_eq!(values.len(), expected, "a value for each");
        values
    }
}

struct Pairing {
    resolver: Box<Resolver>,
    now: u64,
    tid: u32,
}

impl Pairing {
    fn start() -> Pairing {
        let options = ResolveOptions {
            debug_dirs: Vec::new(),
            ..ResolveOptions::default()
        };
        let mut resolver = match Resolver::new(options) {
            Ok(resolver) => resolver,
            Err(error) => panic!("{error}"),
        };
        for (index, (role, returns)) in PROBES.into_iter().enumerate() {
            resolver.trace(index as u32, probe(index, role, returns));
        }
        Pairing {
            resolver,
            now: 1_000_000_000,
            tid: FIRST_TID,
        }
    }

    fn input(&mut self, mut steps: &[u8]) {
        self.tid += THREADS;
        let mut events = Vec::new();
        let mut ended = [false; THREADS as usize];
        while let Some((step, rest)) = steps.split_first_chunk::<STEP_BYTES>() {
            let (items, behind) = rest.split_at(usize::from(step[6] % 32).min(rest.len()));
            steps = behind;
            self.now += u64::from(step[4]) * 10;
            let who = (u32::from(step[2]) % THREADS) as usize;
            if ended[who] {
                // Nothing runs on a thread that has ended.
                continue;
            }
            if let Some(body) = self.step(step, items) {
                match body {
                    RawBody::Exit { .. } => ended[who] = true,
                    // Only the leader is left, whoever it was.
                    RawBody::Comm { .. } => (ended[who & !1], ended[who | 1]) = (false, true),
                    _ => {}
                }
                events.push(RawEvent {
                    at: Timestamp(self.now),
                    cpu: Cpu(2),
                    body,
                });
            }
        }
        self.now += 1;
        for tid in self.tid..self.tid + THREADS {
            events.push(RawEvent {
                at: Timestamp(self.now),
                cpu: Cpu(2),
                body: RawBody::Exit {
                    pid: pid_of(tid),
                    tid: Tid(tid),
                },
            });
        }
        let wholes = events.iter().filter(|event| is_whole(event)).count();
        let mut batches = Vec::new();
        self.resolver.resolve(&mut events, &mut batches);
        assert!(events.is_empty());
        check(&batches, wholes);
    }

    /// What a step says: a record, or something else that concerns calls.
    fn step(&self, step: &[u8; STEP_BYTES], items: &[u8]) -> Option<RawBody> {
        let [what, probe, who, place, _, caller, _, how] = *step;
        let tid = self.tid + u32::from(who) % THREADS;
        let at = Timestamp(self.now);
        match who >> 5 {
            0 => {
                return Some(RawBody::Exit {
                    pid: pid_of(tid),
                    tid: Tid(tid),
                });
            }
            1 if how & 1 == 0 => {
                return Some(RawBody::Comm {
                    pid: pid_of(tid),
                    tid: Tid(pid_of(tid).0),
                    exec: true,
                    comm: Comm::from_bytes(b"work"),
                });
            }
            1 => {
                return Some(RawBody::Lost(Lost {
                    cpu: None,
                    from: at,
                    to: at,
                    count: 1,
                    reason: LostReason::CallRingFull,
                }));
            }
            _ => {}
        }
        let goroutine = u32::from(who >> 2) % 3;
        // Places near to each other, a page and more apart, and far away.
        let place = u64::from(place);
        let sp = 0x7fff_0000_0000
            + match place {
                0..128 => place * 8,
                128..192 => place * 0x1000,
                _ => place * 0x100_0000,
            };
        let mut bytes = self.now.to_ne_bytes().to_vec();
        bytes.extend(sp.to_ne_bytes());
        let (edge, flags) = (u32::from(what & 7), u32::from(what >> 4));
        let what = (u32::from(probe) % 12) | edge << 24 | flags << 28;
        for field in [pid_of(tid).0, tid, what, goroutine] {
            bytes.extend(field.to_ne_bytes());
        }
        if edge == EDGE_WHOLE {
            let began = self.now.saturating_sub(u64::from(how) * 10);
            item(&mut bytes, ITEM_OK, &began.to_ne_bytes());
        }
        if flags & CALL_HAS_CALLER != 0 {
            let caller = match caller {
                0 => TRAMPOLINE,
                caller => 0x40_1000 + u64::from(caller) * 4,
            };
            item(&mut bytes, ITEM_OK, &caller.to_ne_bytes());
        }
        match how & 3 {
            // Items as they are.
            0 => bytes.extend(items),
            1 => item(&mut bytes, u16::from(how >> 2), items),
            // A row of words.
            _ => {
                let words = items.chunks_exact(8);
                words.for_each(|word| item(&mut bytes, u16::from(how >> 4 & 3), word));
            }
        }
        decoded(&bytes).map(|event| event.body)
    }
}

fn pid_of(tid: u32) -> Pid {
    Pid(tid & !1)
}

fn item(bytes: &mut Vec<u8>, status: u16, payload: &[u8]) {
    bytes.extend(status.to_ne_bytes());
    bytes.extend((payload.len() as u16).to_ne_bytes());
    bytes.extend([0; 4]);
    bytes.extend(payload);
    bytes.resize(bytes.len().next_multiple_of(8), 0);
}

fn probe(index: usize, role: Role, returns: ReturnMode) -> TracedProbe {
    let name = match index {
        RESUMES => "_Unwind_Resume".to_owned(),
        _ => format!("function{index}"),
    };
    let values = || Arc::new(Registers(Signature::registers())) as Arc<_>;
    TracedProbe {
        name: name.into(),
        linkage_name: None,
        path: "/nowhere/work".into(),
        build_id: None,
        address_bias: 0,
        start: 0x1000 * (index as u64 + 1),
        size: 0x100,
        source: None,
        declared: 0,
        line: 1,
        exit_lines: [1, 0, 3].into(),
        kind: TracedKind::Function,
        entry_offset: 0,
        returns,
        cost_ns: 500,
        values: index.is_multiple_of(2).then(values),
        role,
        exception: match role {
            Role::CxxThrow => Some(exception_name),
            Role::UnwindThrow => Some(|bytes| {
                let class = bytes.try_into().map(u64::from_ne_bytes);
                exception_class(class.unwrap_or(0))
            }),
            _ => None,
        },
    }
}

fn is_whole(event: &RawEvent) -> bool {
    let RawBody::Call(RawCall { edge, .. }) = event.body else {
        return false;
    };
    edge == RawEdge::Whole
}

/// Every call that was entered has been left once, when its threads have ended, at a time and for a
/// time that can be.
fn check(batches: &[Batch], mut wholes: usize) {
    let events = batches.iter().flat_map(|batch| &batch.events);
    let mut open: HashMap<_, usize> = HashMap::new();
    let mut last = Timestamp(0);
    // Ids are those of an epoch.
    let one_epoch = batches.windows(2).all(|two| two[0].epoch == two[1].epoch);
    for event in events {
        let Event::Call(call) = event else { continue };
        let Call {
            at,
            function,
            depth,
            ref edge,
            ..
        } = *call;
        assert!(at >= last, "not in order of time");
        assert!(depth <= MAX_DEPTH);
        last = at;
        match edge {
            CallEdge::Enter(_) => *open.entry((function, at)).or_default() += 1,
            CallEdge::Hit(_) => {}
            CallEdge::Exit(exit) => {
                assert!(exit.began <= at, "left before it was entered");
                assert!(exit.self_ns <= at.since(exit.began), "longer than itself");
                assert!(exit.result.is_none() || exit.how == ExitKind::Return);
                assert!(exit.line == 0 || exit.how == ExitKind::Return);
                match open.get_mut(&(function, exit.began)) {
                    Some(calls) if *calls > 0 => *calls -= 1,
                    _ if one_epoch => {
                        assert!(wholes > 0, "left, but not entered: {exit:?}");
                        wholes -= 1;
                    }
                    _ => {}
                }
            }
        }
    }
    if one_epoch {
        let left_open: usize = open.into_values().sum();
        // A whole call that was entered when another one was can be taken for that.
        assert!(left_open <= wholes, "{left_open} entered and never left");
    }
}
