//! JS Self-Profiling: a ProfilerTrace of each thread, as a session on it would have been given.
//!
//! Input: events; output: JSON, `{"traces":[{pid, process, tid, thread, trace}], "notes":[..]}`, or the ProfilerTrace of the
//! one thread that was asked for. Timestamps are milliseconds since the recording began. A trace has a sample for each
//! tick, so threads of which nothing was seen at all have none. Memory: the format has the tables before the samples, so
//! these are kept, 24 bytes each. Source: "JS Self-Profiling API" (WICG); docs/formats/js-self-profiling.md.
//!
//! What does not belong here: ticks (`derive`), the tables of a trace (`wire::self_profiling`).

use std::collections::BTreeMap;
use std::io::{self, BufWriter, Write};

use rustc_hash::FxHashMap;
use serde::Serialize;

use profiler_wire::self_profiling::{
    self, Intervals, Session, Taken, ThreadTrace, Trace, milliseconds,
};

use super::about::About;
use super::collect::{SOURCE, is_first};
use super::settings::{OptionHelp, Setting, Settings};
use super::{Format, Output, ShownSources, Shows};
use crate::derive::{
    OFF_CPU, Realm, RealmFrame, Tick, Ticks, is_same, realm_frames, sampling_period_ns,
};
use profiler_model::*;

pub(super) const FORMAT: Format = Format {
    name: "js-self-profiling",
    extensions: &[".profilertrace.json", ".profilertrace"],
    description: "ProfilerTrace of JS Self-Profiling, one of each thread",
    shows: Shows::Samples,
    sources: ShownSources::One,
    options: &[&INTERVAL, &BUFFER, &THREAD, &PRIVATE, &SOURCE],
    sink: |settings, output| Box::new(Traces::new(settings, output)),
    difference: None,
    declared: false,
};

const INTERVAL: Setting<f64> = Setting {
    help: OptionHelp {
        name: "sampleInterval",
        value: "MS",
        help: "milliseconds between samples; rounded up to a multiple of what was recorded (default: \
               as recorded)",
    },
    read: |value| {
        let asked: f64 = value.parse().ok()?;
        let bounds = 0.0..=self_profiling::MAX_INTERVAL_MS;
        bounds.contains(&asked).then_some(asked)
    },
};

const BUFFER: Setting<u32> = Setting {
    help: OptionHelp {
        name: "maxBufferSize",
        value: "COUNT",
        help: "samples of a thread at most; the trace ends there (default: no limit)",
    },
    read: |value| value.parse().ok(),
};

const THREAD: Setting<u32> = Setting {
    help: OptionHelp {
        name: "thread",
        value: "TID",
        help: "the ProfilerTrace of this thread and nothing else (default: all threads, in a list)",
    },
    read: |value| value.parse().ok().filter(|tid| *tid > 0),
};

const PRIVATE: Setting<Vec<String>> = Setting {
    help: OptionHelp {
        name: "private",
        value: "GLOB,...",
        help: "objects whose frames are withheld, with those of library functions that they called",
    },
    read: |value| Some(value.split(',').map(str::to_owned).collect()),
};

const SECOND_NS: u64 = 1_000_000_000;

/// Samples of all threads at most: 24 bytes each. A recording of a whole machine has a tick of each thread that it saw, for
/// as long as that lived.
const MOST_SAMPLES: u64 = 1 << 23;
/// So many are allowed anyhow, and so many more for each event: times are what the capture says they are, and a tick at
/// which nothing was seen costs its author nothing.
const SAMPLES_ANYHOW: u64 = 10_000;
const SAMPLES_AN_EVENT: u64 = 1_000;

/// Stacks of a sample.
type Stacks = (Option<StackId>, Option<StackId>);

struct Traces {
    asked_ms: Option<f64>,
    max_buffer_size: u32,
    only: Option<Tid>,
    realm: Realm,
    wanted: Option<String>,
    source: Option<SourceId>,
    threads: BTreeMap<ThreadId, Thread>,
    /// The effective one.
    interval_ns: Option<u64>,
    /// When the recording began.
    origin_ns: Option<u64>,
    room: Room,
    about: About,
    output: BufWriter<Output>,
}

/// Samples that may still be taken, of all threads.
#[derive(Clone, Copy)]
struct Room {
    left: u64,
    /// Allowed in all so far.
    granted: u64,
    /// There was none for a sample.
    is_short: bool,
}

impl Default for Room {
    fn default() -> Room {
        Room {
            left: SAMPLES_ANYHOW,
            granted: SAMPLES_ANYHOW,
            is_short: false,
        }
    }
}

impl Room {
    fn event(&mut self) {
        let more = SAMPLES_AN_EVENT.min(MOST_SAMPLES - self.granted);
        self.granted += more;
        self.left += more;
    }

    fn take(&mut self) -> bool {
        let left = self.left.checked_sub(1);
        self.left = left.unwrap_or(0);
        self.is_short |= left.is_none();
        left.is_some()
    }
}

struct Thread {
    ticks: Ticks<Stacks>,
    taken: Samples,
    is_over: bool,
}

struct Samples {
    origin_ns: u64,
    session: Session<Option<Stacks>>,
    is_full: bool,
}

/// The whole file.
#[derive(Serialize)]
struct File {
    traces: Vec<ThreadTrace>,
    notes: Vec<String>,
}

impl Traces {
    fn new(settings: &Settings, output: Output) -> Traces {
        let private = settings.get(&PRIVATE).unwrap_or_default();
        Traces {
            asked_ms: settings.get(&INTERVAL),
            max_buffer_size: settings.get(&BUFFER).unwrap_or(u32::MAX),
            only: settings.get(&THREAD).map(Tid),
            realm: Realm::without(private.iter().map(String::as_str)),
            wanted: settings.get(&SOURCE),
            source: None,
            threads: BTreeMap::new(),
            interval_ns: None,
            origin_ns: None,
            room: Room::default(),
            about: About::default(),
            output: BufWriter::new(output),
        }
    }

    fn sample(&mut self, sample: &Sample, tables: &Tables) {
        let stacks = (sample.kernel, sample.user);
        let mut room = self.room;
        if let Some(wait) = sample.wait {
            let thread = self.thread(sample.thread, None, tables);
            if let Some(Thread { ticks, taken, .. }) = thread {
                ticks.waited(sample.at.0, wait.ns, stacks, |tick| {
                    taken.take(tick, &mut room)
                });
                self.room = room;
            }
            return;
        }
        let Some(source) = tables.sources.get(sample.source) else {
            return;
        };
        if self.source.is_none() && is_first(self.wanted.as_deref(), sample, tables) {
            self.source = Some(sample.source);
        }
        let is_it = |source| is_same(source, sample.source, tables);
        if !self.source.is_some_and(is_it) {
            return;
        }
        let period = sampling_period_ns(sample, source);
        if let Some(Thread { ticks, taken, .. }) = self.thread(sample.thread, period, tables) {
            let period = period.unwrap_or(u64::MAX);
            ticks.run(sample.at.0, period, stacks, |tick| {
                taken.take(tick, &mut room)
            });
            self.room = room;
        }
    }

    /// A thread that is wanted; `period_ns` is that of what was seen of it. What it waited for before it was first seen
    /// running counts only if the recording says how often it samples.
    fn thread(
        &mut self,
        id: ThreadId,
        period_ns: Option<u64>,
        tables: &Tables,
    ) -> Option<&mut Thread> {
        let known = tables.thread(id);
        if self
            .only
            .is_some_and(|only| known.is_none_or(|thread| thread.tid != only))
        {
            return None;
        }
        let origin_ns = self.origin_ns?;
        let recorded = || {
            let mut sources = tables.sources.iter().map(|(_, source)| source);
            sources.find_map(|source| Some(SECOND_NS / source.frequency_hz?.max(1)))
        };
        let asked_ms = self.asked_ms;
        let interval_ns = || {
            let period_ns = period_ns.or_else(recorded).unwrap_or(10_000_000);
            let intervals = Intervals::multiples_of(period_ns);
            intervals
                .at_or_above(asked_ms.unwrap_or(0.0))
                .unwrap_or(period_ns)
        };
        let interval_ns = *self.interval_ns.get_or_insert_with(interval_ns);
        let max_buffer_size = self.max_buffer_size;
        Some(self.threads.entry(id).or_insert_with(|| {
            let began = known.map_or(0, |thread| thread.started.0);
            let mut sources = tables.sources.iter();
            let waits = sources.any(|(_, it)| tables.string(it.name) == OFF_CPU);
            Thread {
                ticks: Ticks::new(began.max(origin_ns), interval_ns, waits),
                taken: Samples {
                    origin_ns,
                    session: Session::new(max_buffer_size),
                    is_full: false,
                },
                is_over: false,
            }
        }))
    }

    /// The trace of a thread, and how many of its samples have a frame without a name.
    fn trace(&self, thread: Thread, tables: &Tables) -> (Trace, u64) {
        let mut trace = Trace::default();
        let mut known: FxHashMap<Stacks, (Option<self_profiling::StackId>, bool)> =
            FxHashMap::default();
        let mut unnamed = 0;
        for (at_ns, stacks) in thread.taken.session.into_samples() {
            let stack = stacks.and_then(|stacks| {
                let (stack, has_names) = *known.entry(stacks).or_insert_with(|| {
                    let (kernel, user) = stacks;
                    let mut ids = tables.frames_of_both(kernel, user);
                    let has_names = ids.all(|frame| tables.has_names(frame));
                    let frames = realm_frames(tables, kernel, user);
                    let shown = self.realm.shown(&frames).map(RealmFrame::as_frame);
                    (trace.stack(shown), has_names)
                });
                unnamed += u64::from(!has_names);
                stack
            });
            trace.sample(at_ns, stack);
        }
        (trace, unnamed)
    }
}

impl Samples {
    /// Whether more are wanted.
    fn take(&mut self, tick: Tick<Stacks>, room: &mut Room) -> bool {
        let at_ns = tick.at.saturating_sub(self.origin_ns);
        if !self.is_full && !room.take() {
            self.session.fill();
        }
        self.is_full |= self.session.take(at_ns, tick.stack) != Taken::Yes;
        !self.is_full
    }
}

impl Sink for Traces {
    fn event(&mut self, event: &Event, tables: &Tables) -> io::Result<()> {
        self.about.event(event);
        self.room.event();
        let at_ns = event.at().0;
        let started_ns = tables.session.started.0;
        self.origin_ns.get_or_insert(match started_ns {
            0 => at_ns,
            started => started.min(at_ns),
        });
        match event {
            Event::Sample(sample) => self.sample(sample, tables),
            Event::Process(ProcessEvent {
                thread,
                change: ProcessChange::Exited,
                ..
            }) => {
                if let Some(thread) = self.threads.get_mut(thread) {
                    thread.end(at_ns, &mut self.room);
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn finish(&mut self, tables: &Tables) -> io::Result<()> {
        let (mut traces, mut unnamed) = (Vec::new(), 0);
        for (id, mut thread) in std::mem::take(&mut self.threads) {
            thread.end(self.about.last().0, &mut self.room);
            let is_full = thread.taken.is_full;
            let (trace, nameless) = self.trace(thread, tables);
            unnamed += nameless;
            let about = tables.thread(id);
            let process = about.and_then(|thread| tables.process(thread.process));
            traces.push(ThreadTrace {
                pid: process.map_or(0, |process| process.pid.0),
                process: process
                    .map_or("", |process| tables.string(process.name))
                    .into(),
                tid: about.map_or(0, |thread| thread.tid.0),
                thread: about.map_or("", |thread| tables.string(thread.name)).into(),
                sample_interval: self.interval_ns.map_or(0.0, milliseconds),
                buffer_full: is_full,
                trace,
            });
        }
        let mut notes = self.about.notes(tables, unnamed);
        if self.room.is_short {
            notes.push(format!(
                "traces end where there is no room for more than {} samples in all: choose a thread, a longer \
                 sampleInterval or a maxBufferSize",
                self.room.granted
            ));
        }
        match self.only {
            None => serde_json::to_writer(&mut self.output, &File { traces, notes })?,
            Some(only) => {
                // An id may have been given out twice: the first thread that has had it is as good as another.
                let Some(trace) = traces.into_iter().next() else {
                    let text = format!("no sample is of thread {only}");
                    return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
                };
                // The trace has no place for them.
                for note in notes.iter().skip(1) {
                    log::warn!("{note}");
                }
                serde_json::to_writer(&mut self.output, &trace.trace)?;
            }
        }
        self.output.write_all(b"\n")?;
        self.output.flush()
    }
}

impl Thread {
    fn end(&mut self, at_ns: u64, room: &mut Room) {
        if !std::mem::replace(&mut self.is_over, true) {
            let Thread { ticks, taken, .. } = self;
            ticks.finish(at_ns, |tick| taken.take(tick, room));
        }
    }
}
