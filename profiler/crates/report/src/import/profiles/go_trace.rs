//! Execution traces of Go, bytes or text: samples of running goroutines, and where goroutines waited.
//!
//! A trace -> samples of the source `samples`, each of which counts one (how often Go sampled is not in the file), and waits of the
//! source `off-cpu` that weigh their nanoseconds, from `GoBlock` to the next start. Goroutines are threads of one process. Times are
//! made nanoseconds by the trace's own frequency. Source: Go's `internal/trace/tracev2`; docs/formats/import.md.
//!
//! What does not belong here: bytes and lines of events (`wire::go_trace`); regions, tasks and logs, which are left out.

use std::io::{BufRead, Read};

use rustc_hash::FxHashMap;

use super::ImportError;
use super::intake::Intake;
use profiler_model::*;
use profiler_wire::go_trace::{Frame as GoFrame, Kind, Read as Event, read_event, read_header};

/// Most bytes of a trace.
const MAX_BYTES: u64 = 1 << 30;
/// Most events of a generation that are of interest.
const MAX_EVENTS: usize = 1 << 23;
/// Most goroutines that are remembered.
const MAX_GOROUTINES: usize = 1 << 20;
/// Go cuts stacks at 64 frames or more, as its version has it.
const FEWEST_CUT: usize = 64;
/// What stands for no goroutine.
const NOBODY: u64 = u64::MAX;

fn damaged<T>(what: impl std::fmt::Display) -> Result<T, ImportError> {
    Err(ImportError::Damaged(format!(
        "it is no execution trace of Go: {what}"
    )))
}

/// Whether a file begins like one.
pub(super) fn begins(head: &[u8]) -> bool {
    head.starts_with(b"go 1.")
        && head
            .get(..16)
            .is_some_and(|head| head.ends_with(b" trace\0\0\0"))
        || head.starts_with(b"Trace Go1.")
}

pub(super) fn read(input: &mut dyn BufRead, intake: &mut Intake<'_>) -> Result<(), ImportError> {
    let mut bytes = Vec::new();
    input.take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_BYTES {
        return damaged(format_args!("it has more than {MAX_BYTES} bytes"));
    }
    let head = &bytes[..bytes.len().min(64)];
    let (encoding, version, mut at) = match read_header(head) {
        Ok(header) => header,
        Err(damage) => return damaged(damage),
    };
    let mut trace = Trace::default();
    loop {
        let read = read_event(encoding, version, &bytes[at..], true);
        match read {
            Ok(Some((event, len))) => {
                at += len;
                trace.event(event, intake)?;
            }
            Ok(None) => break,
            Err(damage) => return damaged(format_args!("{damage} (at byte {at})")),
        }
    }
    trace.end_generation(intake)
}

/// What one generation says, and what goes on behind it.
#[derive(Default)]
struct Trace {
    generation: u64,
    /// Of the batch that is read.
    thread: u64,
    time: u64,
    /// Nanoseconds of a tick.
    tick: f64,
    /// Time, thread and event, in the order of the file.
    events: Vec<(u64, u64, Event)>,
    stacks: FxHashMap<u64, Vec<GoFrame>>,
    strings: FxHashMap<u64, Vec<u8>>,
    /// Which goroutine runs on a thread of the system.
    running: FxHashMap<u64, u64>,
    waiting: FxHashMap<u64, Waiting>,
    /// Places by function, file and line.
    places: FxHashMap<(FunctionId, u32), FrameId>,
}

/// A goroutine that is blocked.
#[derive(Clone, Copy)]
struct Waiting {
    since: Timestamp,
    runnable: Option<Timestamp>,
    stack: Whole,
}

impl Trace {
    fn event(&mut self, event: Event, intake: &mut Intake<'_>) -> Result<(), ImportError> {
        let arg = |index: usize| event.args.get(index).copied().unwrap_or(0);
        match event.kind {
            Kind::EventBatch => {
                if arg(0) != self.generation {
                    self.end_generation(intake)?;
                    self.generation = arg(0);
                }
                (self.thread, self.time) = (arg(1), arg(2));
            }
            Kind::Frequency => self.tick = 1e9 / arg(0).max(1) as f64,
            Kind::Stack => {
                self.stacks.insert(arg(0), event.frames);
            }
            Kind::String => {
                self.strings.insert(arg(0), event.data);
            }
            Kind::CPUSample => self.keep(arg(0), event)?,
            Kind::Stacks
            | Kind::Strings
            | Kind::CPUSamples
            | Kind::ExperimentalBatch
            | Kind::Sync
            | Kind::EndOfGeneration => {}
            kind => {
                // All others say how long after the one before they were.
                self.time = self.time.saturating_add(arg(0));
                if let Kind::GoStart
                | Kind::GoStop
                | Kind::GoBlock
                | Kind::GoUnblock
                | Kind::GoDestroy
                | Kind::GoSwitch
                | Kind::GoSwitchDestroy
                | Kind::GoStatus
                | Kind::GoStatusStack = kind
                {
                    self.keep(self.time, event)?;
                }
            }
        }
        Ok(())
    }

    fn keep(&mut self, time: u64, event: Event) -> Result<(), ImportError> {
        if self.events.len() >= MAX_EVENTS {
            return damaged(format_args!(
                "a generation has more than {MAX_EVENTS} events"
            ));
        }
        self.events.push((time, self.thread, event));
        Ok(())
    }

    /// All of a generation is there: its events can be understood, in the order of time.
    fn end_generation(&mut self, intake: &mut Intake<'_>) -> Result<(), ImportError> {
        let mut events = std::mem::take(&mut self.events);
        events.sort_by_key(|(time, ..)| *time);
        for (time, thread, event) in events {
            let tick = if self.tick > 0.0 { self.tick } else { 1.0 };
            let at = Timestamp((time as f64 * tick) as u64);
            self.happen(at, thread, &event, intake)?;
        }
        self.stacks.clear();
        self.strings.clear();
        Ok(())
    }

    fn happen(
        &mut self,
        at: Timestamp,
        thread: u64,
        event: &Event,
        intake: &mut Intake<'_>,
    ) -> Result<(), ImportError> {
        let arg = |index: usize| event.args.get(index).copied().unwrap_or(0);
        match event.kind {
            Kind::CPUSample => {
                let source = intake.source("samples", Unit::Events, None);
                let cpu = u32::try_from(arg(2)).unwrap_or(0);
                let thread = goroutine(arg(3), intake);
                let stack = self.stack(arg(4), intake);
                let sample = Sample::new(at, thread, Cpu(cpu), source, 1);
                return intake.sample(stack.of(sample));
            }
            Kind::GoStart => {
                self.run(thread, arg(1));
                return self.go_on(at, arg(1), intake);
            }
            Kind::GoSwitch | Kind::GoSwitchDestroy => {
                self.run(thread, arg(1));
                return self.go_on(at, arg(1), intake);
            }
            Kind::GoStatus | Kind::GoStatusStack => {
                // Running, or in a system call: on the thread that it names.
                if matches!(arg(3), 2 | 3) {
                    self.run(arg(2), arg(1));
                }
            }
            Kind::GoBlock => {
                let stack = self.stack(arg(2), intake);
                if let Some(goroutine) = self.running.remove(&thread)
                    && self.waiting.len() < MAX_GOROUTINES
                {
                    let waiting = Waiting {
                        since: at,
                        runnable: None,
                        stack,
                    };
                    self.waiting.insert(goroutine, waiting);
                }
            }
            Kind::GoUnblock => {
                if let Some(waiting) = self.waiting.get_mut(&arg(1)) {
                    waiting.runnable.get_or_insert(at);
                }
            }
            _ => {
                self.running.remove(&thread);
            }
        }
        Ok(())
    }

    fn run(&mut self, thread: u64, goroutine: u64) {
        if self.running.len() < MAX_GOROUTINES {
            self.running.insert(thread, goroutine);
        }
    }

    /// A goroutine goes on, if it waited.
    fn go_on(
        &mut self,
        at: Timestamp,
        id: u64,
        intake: &mut Intake<'_>,
    ) -> Result<(), ImportError> {
        let Some(waiting) = self.waiting.remove(&id) else {
            return Ok(());
        };
        let ns = at.since(waiting.since);
        let source = intake.source(OFF_CPU, Unit::Nanoseconds, None);
        let thread = goroutine(id, intake);
        let mut sample = Sample::new(at, thread, Cpu(0), source, ns);
        sample.wait = Some(Wait {
            ns,
            runnable_ns: waiting.runnable.map_or(0, |since| at.since(since).min(ns)),
            state: WaitState::Sleeping,
            waker: None,
            count: 1,
            open: false,
        });
        intake.sample(waiting.stack.of(sample))
    }

    fn stack(&mut self, id: u64, intake: &mut Intake<'_>) -> Whole {
        let Some(frames) = self.stacks.get(&id) else {
            return Whole::default();
        };
        let is_whole = frames.len() < FEWEST_CUT;
        let mut stack = Vec::with_capacity(frames.len());
        for frame in frames.iter().rev() {
            let text = |id: u64| {
                let text = self.strings.get(&id).map_or(&[][..], |text| text);
                String::from_utf8_lossy(text)
            };
            let (name, file) = (text(frame.function), text(frame.file));
            let name = match &*name {
                "" => format!("{:#x}", frame.pc),
                name => name.to_owned(),
            };
            let function = Function {
                name: intake.string(&name),
                linkage_name: None,
                module: None,
                file: (!file.is_empty()).then(|| intake.string(&file)),
                line: 0,
                start: None,
                size: None,
            };
            let function = intake.function(function);
            let line = u32::try_from(frame.line).unwrap_or(0);
            // Several functions that are inlined have one address.
            let next = self.places.len() as u64 + 1;
            let place = self.places.entry((function, line)).or_insert_with(|| {
                let frame = Frame {
                    kind: FrameKind::Native,
                    module: None,
                    address: next,
                };
                intake.frame(frame, || Symbol::Lines([Line { function, line }].into()))
            });
            stack.push(*place);
        }
        Whole {
            stack: intake.stack(stack),
            is_whole,
        }
    }
}

/// A stack, and whether it is known to be whole.
#[derive(Clone, Copy, Debug, Default)]
struct Whole {
    stack: Option<StackId>,
    is_whole: bool,
}

impl Whole {
    fn of(self, sample: Sample) -> Sample {
        let sample = sample.with_stacks(None, self.stack);
        match self.is_whole {
            true => sample,
            false => sample.with_ends(StackEnd::NotSaid),
        }
    }
}

/// A goroutine as a thread; what is of none is of the runtime.
fn goroutine(id: u64, intake: &mut Intake<'_>) -> ThreadId {
    match id {
        0 | NOBODY => intake.thread(1, "go", 1, "runtime"),
        id => {
            let tid = u32::try_from(id.saturating_add(1)).unwrap_or(u32::MAX);
            intake.thread(1, "go", tid, &format!("goroutine {id}"))
        }
    }
}
