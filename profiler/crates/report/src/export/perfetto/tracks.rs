//! Rows of processes, threads and goroutines, and what is on them besides samples: calls, waits, notes.
//!
//! Events -> packets of slices and instants. Slices of a row end in balance: what does not nest is cut to what is around
//! it. Times are nanoseconds of CLOCK_MONOTONIC. What does not belong here: samples.

use std::io;

use rustc_hash::{FxHashMap, FxHashSet};

use super::{Packets, numbers};
use crate::derive::{Functions, container_label_of, parameter};
use crate::export::notes::{ended, note, thread_text};
use profiler_model::sorting::InOrder;
use profiler_model::text::TextMap;
use profiler_model::*;
use profiler_wire::perfetto::{
    Annotation, AnnotationValue, Data, EventName, Interned, Packet, ProcessDescriptor,
    ThreadDescriptor, TrackDescriptor, TrackEvent, flags, kind,
};

/// The row of what is no thread's.
const RECORDING: u64 = 1;
/// What is written of a value that has parts in parts.
const MAX_DEPTH: u32 = 8;

/// Rows by number: each thread has one for calls and one for waits, a goroutine one; kinds are told apart by the last bits.
#[derive(Clone, Copy)]
enum Row {
    Process,
    Calls,
    Waits,
    Goroutine,
}

fn uuid(index: usize, row: Row) -> u64 {
    (index as u64 + 1) * 4 + row as u64 + 4
}

pub(super) struct Tracks {
    sequence: u32,
    functions: Functions,
    names: TextMap<String, u64>,
    processes: FxHashSet<ProcessId>,
    threads: FxHashSet<ThreadId>,
    /// In the order in which they have come.
    goroutines: FxHashMap<StackOwner, usize>,
    /// Calls that are open, with their depths, outermost first.
    open: FxHashMap<StackOwner, Vec<(u32, FunctionId)>>,
    waits: FxHashSet<ThreadId>,
    recording: bool,
    arrows: u64,
}

fn text(name: &str, text: impl Into<String>) -> Annotation {
    Annotation {
        name: name.to_owned(),
        value: Some(AnnotationValue::Text(text.into())),
        ..Annotation::default()
    }
}

fn number(name: &str, number: u64) -> Annotation {
    Annotation {
        name: name.to_owned(),
        value: Some(AnnotationValue::Unsigned(number)),
        ..Annotation::default()
    }
}

fn annotation(name: String, value: &Value, depth: u32) -> Annotation {
    let (value, dict_entries) = match value {
        Value::Signed(number) => (Some(AnnotationValue::Signed(*number)), Vec::new()),
        Value::Unsigned(number) => (Some(AnnotationValue::Unsigned(*number)), Vec::new()),
        Value::Float(number) => (Some(AnnotationValue::Double(*number)), Vec::new()),
        Value::Bool(truth) => (Some(AnnotationValue::Bool(*truth)), Vec::new()),
        Value::Pointer(at) => (Some(AnnotationValue::Pointer(*at)), Vec::new()),
        Value::Text(text, false) => (Some(AnnotationValue::Text(text.to_string())), Vec::new()),
        Value::Struct(parts) if depth < MAX_DEPTH => {
            let parts = parts.iter();
            let parts = parts.map(|(name, part)| annotation(name.to_string(), part, depth + 1));
            (None, parts.collect())
        }
        other => (Some(AnnotationValue::Text(other.to_string())), Vec::new()),
    };
    Annotation {
        name,
        value,
        dict_entries,
    }
}

/// A call's arguments, each with its name.
fn arguments(values: &[Value], function: FunctionId, tables: &Tables) -> Vec<Annotation> {
    let named = values.iter().enumerate().map(|(index, value)| {
        let name = match parameter(index, function, tables) {
            Some((name, _)) => name.to_owned(),
            None => format!("{index}"),
        };
        annotation(name, value, 0)
    });
    named.collect()
}

impl Tracks {
    pub(super) fn new(sequence: u32) -> Tracks {
        Tracks {
            sequence,
            functions: Functions::default(),
            names: TextMap::default(),
            processes: FxHashSet::default(),
            threads: FxHashSet::default(),
            goroutines: FxHashMap::default(),
            open: FxHashMap::default(),
            waits: FxHashSet::default(),
            recording: false,
            arrows: 0,
        }
    }

    fn put(
        &self,
        out: &mut Packets,
        at: Option<Timestamp>,
        interned: Option<Interned>,
        data: Data,
    ) -> io::Result<()> {
        out.put(&Packet {
            timestamp: at.map(|at| at.0),
            trusted_packet_sequence_id: self.sequence,
            sequence_flags: flags::NEEDS_STATE,
            interned_data: interned,
            data: Some(data),
            ..Packet::default()
        })
    }

    /// Makes rows for a thread and its process, if it has none.
    pub(super) fn thread(
        &mut self,
        out: &mut Packets,
        id: ThreadId,
        tables: &Tables,
    ) -> io::Result<()> {
        if !self.threads.insert(id) {
            return Ok(());
        }
        let Some(thread) = tables.thread(id) else {
            return Ok(());
        };
        let (pid, tid) = numbers(id, tables);
        self.process(out, thread.process, tables)?;
        let track = TrackDescriptor {
            uuid: uuid(id.index(), Row::Calls),
            parent_uuid: Some(uuid(thread.process.index(), Row::Process)),
            thread: Some(ThreadDescriptor {
                pid: pid.cast_signed(),
                tid: tid.into(),
                thread_name: tables.string(thread.name).to_owned(),
            }),
            ..TrackDescriptor::default()
        };
        self.put(out, None, None, Data::TrackDescriptor(track))
    }

    /// Makes a row for a process, if it has none.
    fn process(&mut self, out: &mut Packets, id: ProcessId, tables: &Tables) -> io::Result<()> {
        let Some(process) = tables.process(id).filter(|_| self.processes.insert(id)) else {
            return Ok(());
        };
        let command = super::arguments(process, tables);
        let descriptor = ProcessDescriptor {
            pid: process.pid.0.cast_signed(),
            cmdline: command.unwrap_or_default(),
            process_name: tables.string(process.name).to_owned(),
            start_timestamp_ns: i64::try_from(process.started.0).ok(),
            process_labels: container_label_of(tables, process).into_iter().collect(),
        };
        let track = TrackDescriptor {
            uuid: uuid(id.index(), Row::Process),
            process: Some(descriptor),
            ..TrackDescriptor::default()
        };
        self.put(out, None, None, Data::TrackDescriptor(track))
    }

    /// The row that calls of a stack are on, made if there is none.
    fn row(&mut self, out: &mut Packets, owner: StackOwner, tables: &Tables) -> io::Result<u64> {
        let process = match owner {
            StackOwner::Thread(thread) => {
                self.thread(out, thread, tables)?;
                return Ok(uuid(thread.index(), Row::Calls));
            }
            StackOwner::Goroutine(process, _) => process,
        };
        if let Some(&index) = self.goroutines.get(&owner) {
            return Ok(uuid(index, Row::Goroutine));
        }
        let index = self.goroutines.len();
        self.goroutines.insert(owner, index);
        if let Some(process) = process {
            self.process(out, process, tables)?;
        }
        let track = TrackDescriptor {
            uuid: uuid(index, Row::Goroutine),
            name: Some(owner.name(tables).into_owned()),
            parent_uuid: process.map(|id| uuid(id.index(), Row::Process)),
            ..TrackDescriptor::default()
        };
        self.put(out, None, None, Data::TrackDescriptor(track))?;
        Ok(uuid(index, Row::Goroutine))
    }

    /// A slice begins or ends, or an instant; without a name an end.
    fn tell(
        &mut self,
        out: &mut Packets,
        at: Timestamp,
        name: Option<&str>,
        category: &str,
        mut event: TrackEvent,
    ) -> io::Result<()> {
        let mut interned = None;
        if let Some(name) = name {
            let next = self.names.len() as u64 + 1;
            let iid = match self.names.get(name) {
                Some(&iid) => iid,
                None => {
                    self.names.insert(name.to_owned(), next);
                    next
                }
            };
            if iid == next {
                let name = name.to_owned();
                interned = Some(Interned {
                    event_names: vec![EventName { iid, name }],
                    ..Interned::default()
                });
            }
            event.name_iid = Some(iid);
            event.categories = vec![category.to_owned()];
        }
        self.put(out, Some(at), interned, Data::TrackEvent(event))
    }

    pub(super) fn call(
        &mut self,
        out: &mut Packets,
        call: &Call,
        tables: &Tables,
    ) -> io::Result<()> {
        let owner = StackOwner::of(call, tables);
        let track_uuid = self.row(out, owner, tables)?;
        if self.functions.is_empty() {
            self.functions = Functions::of(tables);
        }
        let name = self.functions.name(tables, call.function);
        let slice = |r#type, debug_annotations| TrackEvent {
            r#type,
            track_uuid,
            debug_annotations,
            ..TrackEvent::default()
        };
        let known = |values: &Option<Box<[Value]>>| match values {
            Some(values) => arguments(values, call.function, tables),
            None => Vec::new(),
        };
        let key = (call.depth, call.function);
        match &call.edge {
            CallEdge::Enter(values) => {
                self.open.entry(owner).or_default().push(key);
                let slice = slice(kind::BEGIN, known(values));
                self.tell(out, call.at, Some(&name), "call", slice)
            }
            CallEdge::Hit(values) => {
                let instant = slice(kind::INSTANT, known(values));
                self.tell(out, call.at, Some(&name), "call", instant)
            }
            CallEdge::Exit(exit) => {
                let mut left: Vec<Annotation> = ended(call, exit, tables)
                    .into_iter()
                    .filter(|(name, _)| *name != "arguments" && *name != "result")
                    .map(|(name, what)| text(name, what))
                    .collect();
                if let Some(result) = &exit.result {
                    left.push(annotation("result".to_owned(), result, 0));
                }
                let open = self.open.entry(owner).or_default();
                if let Some(at) = open.iter().rposition(|open| *open == key) {
                    // What is still open within it can't be longer than it.
                    let within = open.len() - at - 1;
                    open.truncate(at);
                    for _ in 0..within {
                        self.tell(out, call.at, None, "", slice(kind::END, Vec::new()))?;
                    }
                    return self.tell(out, call.at, None, "", slice(kind::END, left));
                }
                // It was open, and ended with what was around it; else its begin was not told, as only whole calls
                // were recorded.
                let was_cut = matches!(exit.how, ExitKind::Inferred | ExitKind::Unwatched);
                if exit.whole.is_none() && was_cut {
                    return Ok(());
                }
                let began = exit.began.min(call.at);
                let begin = slice(kind::BEGIN, known(&exit.whole));
                self.tell(out, began, Some(&name), "call", begin)?;
                self.tell(out, call.at, None, "", slice(kind::END, left))
            }
        }
    }

    /// A wait, on a row of its own, with the part of it that the thread was runnable in; an arrow comes from who ended it.
    pub(super) fn wait(
        &mut self,
        out: &mut Packets,
        sample: &Sample,
        wait: &Wait,
        tables: &Tables,
    ) -> io::Result<()> {
        let thread = sample.thread;
        let track_uuid = uuid(thread.index(), Row::Waits);
        if self.waits.insert(thread) {
            let track = TrackDescriptor {
                uuid: track_uuid,
                name: Some("waits".to_owned()),
                parent_uuid: Some(uuid(thread.index(), Row::Calls)),
                ..TrackDescriptor::default()
            };
            self.put(out, None, None, Data::TrackDescriptor(track))?;
        }
        let slice = |r#type| TrackEvent {
            r#type,
            track_uuid,
            ..TrackEvent::default()
        };
        let mut begin = slice(kind::BEGIN);
        if wait.count > 1 {
            begin
                .debug_annotations
                .push(number("count", wait.count.into()));
        }
        let began = Timestamp(sample.at.0.saturating_sub(wait.ns));
        let woken = Timestamp(sample.at.0.saturating_sub(wait.runnable_ns)).max(began);
        if let Some(waker) = wait.waker {
            self.thread(out, waker, tables)?;
            let waker_name = thread_text(waker, tables);
            begin.debug_annotations.push(text("waker", waker_name));
            let (_, tid) = numbers(waker, tables);
            begin
                .debug_annotations
                .push(number("waker_tid", tid.into()));
        }
        self.tell(out, began, Some(wait.state.name()), "wait", begin)?;
        let is_waiting = wait.state != WaitState::Preempted;
        if is_waiting && woken < sample.at {
            let mut runnable = slice(kind::BEGIN);
            if let Some(waker) = wait.waker {
                self.arrows += 1;
                runnable.terminating_flow_ids.push(self.arrows);
                let wakes = TrackEvent {
                    r#type: kind::INSTANT,
                    track_uuid: uuid(waker.index(), Row::Calls),
                    flow_ids: vec![self.arrows],
                    debug_annotations: vec![text("thread", thread_text(thread, tables))],
                    ..TrackEvent::default()
                };
                self.tell(out, woken, Some("wakes"), "wait", wakes)?;
            }
            self.tell(out, woken, Some("runnable"), "wait", runnable)?;
            self.tell(out, sample.at, None, "", slice(kind::END))?;
        }
        self.tell(out, sample.at, None, "", slice(kind::END))
    }

    /// What is neither a sample nor a call, as an instant.
    pub(super) fn other(
        &mut self,
        out: &mut Packets,
        event: &Event,
        tables: &Tables,
    ) -> io::Result<()> {
        let Some(note) = note(event, tables) else {
            return Ok(());
        };
        let track_uuid = match note.thread {
            Some(thread) => {
                self.thread(out, thread, tables)?;
                uuid(thread.index(), Row::Calls)
            }
            None => self.recording(out)?,
        };
        let mut debug_annotations = Vec::new();
        if !note.text.is_empty() {
            debug_annotations.push(text("text", note.text));
        }
        let event = TrackEvent {
            r#type: kind::INSTANT,
            track_uuid,
            debug_annotations,
            ..TrackEvent::default()
        };
        self.tell(out, note.at, Some(note.kind), "note", event)
    }

    fn recording(&mut self, out: &mut Packets) -> io::Result<u64> {
        if !self.recording {
            self.recording = true;
            let track = TrackDescriptor {
                uuid: RECORDING,
                name: Some("recording".to_owned()),
                ..TrackDescriptor::default()
            };
            self.put(out, None, None, Data::TrackDescriptor(track))?;
        }
        Ok(RECORDING)
    }

    /// Ends what is open, and tells what is missing.
    pub(super) fn finish(
        &mut self,
        out: &mut Packets,
        end: Timestamp,
        notes: Vec<String>,
    ) -> io::Result<()> {
        let mut stacks: Vec<_> = std::mem::take(&mut self.open).into_iter().collect();
        stacks.order_by_key(|(owner, _)| *owner);
        for (owner, open) in stacks {
            let track_uuid = match owner {
                StackOwner::Thread(thread) => uuid(thread.index(), Row::Calls),
                StackOwner::Goroutine(..) => {
                    let index = self.goroutines.get(&owner);
                    uuid(index.copied().unwrap_or(0), Row::Goroutine)
                }
            };
            for _ in open {
                let event = TrackEvent {
                    r#type: kind::END,
                    track_uuid,
                    debug_annotations: vec![text("left by", "open at the end")],
                    ..TrackEvent::default()
                };
                self.tell(out, end, None, "", event)?;
            }
        }
        let track_uuid = self.recording(out)?;
        for note in notes {
            let event = TrackEvent {
                r#type: kind::INSTANT,
                track_uuid,
                debug_annotations: vec![text("text", note)],
                ..TrackEvent::default()
            };
            self.tell(out, end, Some("about"), "note", event)?;
        }
        Ok(())
    }
}
