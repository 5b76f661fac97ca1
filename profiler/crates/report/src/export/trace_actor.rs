//! The packets of a TraceActor, of each thread: what a client of the remote debugging protocol would have been told.
//!
//! Input: events; output: lines of JSON, each a packet of a thread's actor, in the order of time: `startedTrace` before
//! its first frame, `enteredFrame` and `exitedFrame`, `stoppedTrace` at the end. Times are milliseconds since the
//! recording began. Frames are those of traced calls, or inferred from samples and marked so. Source: the specification of
//! tracing; docs/formats/trace-actor.md.
//!
//! What does not belong here: packets (`wire::rdp`), frames (`derive`), connections (`serve`).

use std::collections::BTreeMap;
use std::io::{self, BufWriter, Write};

use profiler_wire::rdp::{PacketSink, TraceActor, TraceTypes};
use serde::Serialize;
use serde_json::{Map, Value as Json, json};

use super::collect::{SOURCE, is_first};
use super::settings::{OptionHelp, Setting, Settings};
use super::{Format, Output, ShownSources, Shows};
use crate::derive::{
    FrameEvent, OFF_CPU, SampledFrames, WALL, call_frames, is_same, missing_frames,
};
use profiler_model::*;

pub(super) const FORMAT: Format = Format {
    name: "trace-actor",
    extensions: &[".packets", ".jsonl"],
    description: "frames entered and left, as packets of Firefox's TraceActor",
    shows: Shows::SamplesAndCalls,
    sources: ShownSources::One,
    options: &[&TYPES, &FRAMES, &SOURCE],
    sink: |settings, output| Box::new(Packets::new(settings, output)),
    difference: None,
    declared: false,
};

const TYPES: Setting<TraceTypes> = Setting {
    help: OptionHelp {
        name: "types",
        value: "NAME,...",
        help: "what is told of each frame: name, callsite, time, parameterNames, arguments, return, \
               throw, yield, location, depth, hitCount, blackBoxed (default: all)",
    },
    read: |value| TraceTypes::read(value.split(',')).ok(),
};

const FRAMES: Setting<Frames> = Setting {
    help: OptionHelp {
        name: "frames",
        value: "observed|inferred",
        help: "frames of traced calls, or those that samples tell of (default: observed, if calls were \
               traced)",
    },
    read: |value| match value {
        "observed" => Some(Frames::Observed),
        "inferred" => Some(Frames::Inferred),
        _ => None,
    },
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Frames {
    Observed,
    Inferred,
}

struct Packets {
    types: TraceTypes,
    frames: Option<Frames>,
    wanted: Option<String>,
    source: Option<SourceId>,
    lines: Lines,
    /// When the recording began.
    since_ns: Option<u64>,
    threads: BTreeMap<ThreadId, Traced>,
}

struct Traced {
    actor: TraceActor,
    sampled: SampledFrames,
}

/// Packets as lines. An error is kept until somebody can be told.
struct Lines {
    output: BufWriter<Output>,
    failed: Option<io::Error>,
}

impl PacketSink for Lines {
    fn put(&mut self, packet: &impl Serialize) {
        if self.failed.is_none() {
            let written = serde_json::to_writer(&mut self.output, packet)
                .map_err(io::Error::from)
                .and_then(|()| self.output.write_all(b"\n"));
            self.failed = written.err();
        }
    }
}

/// What need not be told.
struct Nowhere;

impl PacketSink for Nowhere {
    fn put(&mut self, _: &impl Serialize) {}
}

impl Packets {
    fn new(settings: &Settings, output: Output) -> Packets {
        Packets {
            types: settings.get(&TYPES).unwrap_or(TraceTypes::ALL),
            frames: settings.get(&FRAMES),
            wanted: settings.get(&SOURCE),
            source: None,
            lines: Lines {
                output: BufWriter::new(output),
                failed: None,
            },
            since_ns: None,
            threads: BTreeMap::new(),
        }
    }

    fn frames(&mut self, tables: &Tables) -> Frames {
        let traced = || match tables.all_traced().next() {
            Some(_) => Frames::Observed,
            None => Frames::Inferred,
        };
        *self.frames.get_or_insert_with(traced)
    }

    /// A thread's actor, which traces.
    fn traced(&mut self, id: ThreadId, at: Timestamp, tables: &Tables) -> &mut Traced {
        let started = tables.session.started.0;
        let begin = || match started {
            0 => at.0,
            started => started.min(at.0),
        };
        let since_ns = *self.since_ns.get_or_insert_with(begin);
        let (types, lines) = (self.types, &mut self.lines);
        self.threads.entry(id).or_insert_with(|| {
            let (name, about) = about(id, tables);
            let mut actor = TraceActor::new(name, about);
            let types: Vec<&str> = types.names().collect();
            let mut wanted = Map::new();
            wanted.insert("trace".to_owned(), types.into());
            actor.request("attach", &Map::new(), since_ns, &mut Nowhere);
            actor.request("startTrace", &wanted, since_ns, lines);
            Traced {
                actor,
                sampled: SampledFrames::default(),
            }
        })
    }

    fn call(&mut self, call: &Call, tables: &Tables) {
        self.traced(call.thread, call.at, tables);
        let Some(Traced { actor, .. }) = self.threads.get_mut(&call.thread) else {
            return;
        };
        let lines = &mut self.lines;
        call_frames(tables, call, true, |event| tell(actor, &event, lines));
    }

    fn sample(&mut self, sample: &Sample, tables: &Tables) {
        if !self.tells(sample, tables) {
            return;
        }
        self.traced(sample.thread, sample.at, tables);
        let Some(Traced { actor, sampled }) = self.threads.get_mut(&sample.thread) else {
            return;
        };
        let lines = &mut self.lines;
        sampled.sample(tables, sample, |event| tell(actor, &event, lines));
    }

    /// Whether a sample's frames are told: those of one source, and where no other is wanted those of waits as well. A
    /// thread runs or waits, so both together say what it did.
    fn tells(&mut self, sample: &Sample, tables: &Tables) -> bool {
        let wanted = self.wanted.as_deref();
        if sample.wait.is_some() {
            return wanted.is_none_or(|wanted| [WALL, OFF_CPU].contains(&wanted));
        }
        if self.source.is_none() && is_first(wanted, sample, tables) {
            self.source = Some(sample.source);
        }
        let is_it = |source| is_same(source, sample.source, tables);
        self.source.is_some_and(is_it)
    }

    fn done(&mut self) -> io::Result<()> {
        match self.lines.failed.take() {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }
}

fn tell(actor: &mut TraceActor, event: &FrameEvent<'_>, lines: &mut Lines) {
    match event {
        FrameEvent::Entered(frame) => actor.entered(frame, lines),
        FrameEvent::Exited(frame) => actor.exited(frame, lines),
    }
}

/// The name of a thread's actor, and what is said of the thread.
fn about(id: ThreadId, tables: &Tables) -> (String, Map<String, Json>) {
    let mut about = Map::new();
    let Some(thread) = tables.thread(id) else {
        return (format!("trace{}", id.index()), about);
    };
    about.insert("tid".to_owned(), thread.tid.0.into());
    about.insert("threadName".to_owned(), tables.string(thread.name).into());
    let Some(process) = tables.process(thread.process) else {
        return (format!("trace{}", thread.tid), about);
    };
    about.insert("processID".to_owned(), process.pid.0.into());
    about.insert("processName".to_owned(), tables.string(process.name).into());
    let name = format!("trace{}.{}.{}", process.pid, process.started.0, thread.tid);
    (name, about)
}

impl Sink for Packets {
    fn event(&mut self, event: &Event, tables: &Tables) -> io::Result<()> {
        match (event, self.frames(tables)) {
            (Event::Call(call), Frames::Observed) => self.call(call, tables),
            (Event::Sample(sample), Frames::Inferred) => self.sample(sample, tables),
            (
                Event::Process(ProcessEvent {
                    at,
                    thread,
                    change: ProcessChange::Exited,
                }),
                _,
            ) => {
                if let Some(Traced { actor, .. }) = self.threads.get_mut(thread) {
                    actor.terminated(at.0, &mut self.lines);
                }
            }
            (event, Frames::Observed) => {
                if let Some((count, why)) = missing_frames(event) {
                    let packet = json!({
                        "from": "root", "type": "lostFrames", "count": count, "why": why,
                    });
                    self.lines.put(&packet);
                }
            }
            _ => {}
        }
        self.done()
    }

    fn finish(&mut self, _: &Tables) -> io::Result<()> {
        for Traced { actor, .. } in self.threads.values_mut() {
            actor.request("stopTrace", &Map::new(), 0, &mut self.lines);
        }
        self.done()?;
        self.lines.output.flush()
    }
}
