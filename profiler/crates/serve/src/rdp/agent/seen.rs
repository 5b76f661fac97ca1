//! What the session has seen -> frames that those who trace are told of, and what is missing of them.
//!
//! Samples wait for the names of their frames; calls are told as they come; those of a capture that is there at once as
//! far as a client reads. What does not belong here: traces (`traces`), packets (`wire::rdp`).

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use profiler_wire::rdp::PacketSink;
use serde_json::json;

use super::marks::pass_marks;
use super::{Agent, ConnectionId, View};
use crate::front::Replay;
use crate::rdp::connection::{Attached, Connection, FrameSink, Output};
use crate::rdp::source::Source;
use crate::world::ThreadKey;
use profiler_model::*;
use profiler_report::derive::{FrameEvent, call_frames, missing_frames};

/// Events of a capture that one client is told at a time.
const EVENTS_AT_A_TIME: usize = 4096;
/// How long names of the frames of a sample are waited for: a frame that is told without its name is left, and entered
/// by its name, as soon as that is known.
const NAMES: Duration = Duration::from_secs(5);
/// The same of code that was made at run time, which may never have one.
const JIT_NAMES: Duration = Duration::from_millis(500);
/// Samples that wait for names.
const MOST_HELD: usize = 1 << 16;

impl Agent {
    /// When a capture that is there at once begins.
    pub(super) fn kept_from(&self) -> u64 {
        let first = self.kept.first().map_or(0, |event| event.at().0);
        let started = self.world.tables.session.started.0;
        match (first, started) {
            (0, started) => started,
            (first, 0) => first,
            (first, started) => first.min(started),
        }
    }

    /// Takes a batch of the session.
    pub fn batch(&mut self, batch: Batch, now: Instant) {
        let at_once = self.options.replay == Some(Replay::AtOnce);
        let is_empty = batch.definitions.is_empty() && batch.events.is_empty();
        if !at_once && !is_empty {
            self.view = View::Ready;
        }
        if self.world.is_new(batch.epoch) && self.options.replay.is_none() {
            // Their ids mean nothing any more.
            self.release(now, true);
        }
        self.world.define(batch.epoch, batch.definitions);
        for event in batch.events {
            let Some(event) = self.world.event(event) else {
                continue;
            };
            if at_once {
                let tells = matches!(event, Event::Call(_) | Event::Sample(_));
                let ends = has_exited(&event).is_some() || missing_frames(&event).is_some();
                match self.kept.len() < self.options.limits.kept_events {
                    true if tells || ends => self.kept.push(event),
                    true => {}
                    false => self.left_out += u64::from(tells),
                }
                continue;
            }
            self.event(event, now);
        }
        self.retry(now);
    }

    fn event(&mut self, event: Event, now: Instant) {
        match event {
            Event::Sample(sample) => {
                let Some(key) = self.world.thread_of(sample.thread) else {
                    return;
                };
                let is_sampled = |it: &Connection| {
                    let attached = it.actors.get(&key);
                    attached.is_some_and(|it| matches!(it.source, Some(Source::Samples(_))))
                };
                if self.connections.values().any(is_sampled) {
                    self.held.push_back((now, key, Held::Sample(sample)));
                    if self.held.len() > MOST_HELD {
                        self.release(now, true);
                    }
                }
            }
            Event::Call(call) => {
                let Some(key) = self.world.thread_of(call.thread) else {
                    return;
                };
                for connection in self.connections.values_mut() {
                    if let Some(attached) = connection.actors.get_mut(&key)
                        && attached.source == Some(Source::Captured)
                    {
                        let values = self.options.values;
                        tell_call(
                            &self.world.tables,
                            &call,
                            values,
                            attached,
                            &mut connection.output,
                        );
                    }
                }
            }
            event if let Some(thread) = has_exited(&event) => {
                let at = event.at();
                let Some(key) = self.world.thread_of(thread) else {
                    return;
                };
                let is_attended = |it: &Connection| it.actors.contains_key(&key);
                if self.connections.values().any(is_attended) {
                    self.held.push_back((now, key, Held::Ended(at)));
                    self.release(now, false);
                }
            }
            event => {
                if let Some(what) = missing_frames(&event) {
                    for connection in self.connections.values_mut() {
                        for attached in connection.actors.values_mut() {
                            if attached.source == Some(Source::Captured) {
                                tell_missing(what, attached, &mut connection.output);
                            }
                        }
                    }
                }
            }
        }
    }

    /// Tells of samples whose frames have names, or have waited long enough for them; `all`: of all. What is behind one
    /// that waits, of the same thread, waits too.
    pub(super) fn release(&mut self, now: Instant, all: bool) {
        let mut wait = BTreeSet::new();
        let tables = &self.world.tables;
        for (came, key, held) in std::mem::take(&mut self.held) {
            let waited = now.saturating_duration_since(came);
            if !all && (wait.contains(&key) || !held.is_named(tables, waited)) {
                wait.insert(key);
                self.held.push_back((came, key, held));
                continue;
            }
            for Connection { actors, output, .. } in self.connections.values_mut() {
                let Some(attached) = actors.get_mut(&key) else {
                    continue;
                };
                match (&held, &attached.source) {
                    (Held::Sample(sample), Some(Source::Samples(_))) => {
                        pass_marks(sample.at.0, attached, output);
                        tell_sample(tables, sample, attached, output);
                    }
                    (Held::Ended(at), Some(Source::Samples(_) | Source::Captured)) => {
                        let mut sink = FrameSink {
                            output,
                            missed: &mut attached.missed,
                        };
                        attached.actor.terminated(at.0, &mut sink);
                    }
                    _ => {}
                }
            }
        }
    }

    /// Tells an actor that will not trace any longer of those samples that wait for others behind none that has no
    /// names yet.
    pub(super) fn tell_rest(&mut self, id: ConnectionId, key: ThreadKey, attached: &mut Attached) {
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        let tables = &self.world.tables;
        let own = self.held.iter().filter(|(_, of, _)| *of == key);
        let named = own.take_while(|(_, _, held)| held.is_named(tables, Duration::ZERO));
        for (_, _, held) in named {
            if let Held::Sample(sample) = held {
                tell_sample(tables, sample, attached, &mut connection.output);
            }
        }
    }

    /// Takes calls that were traced for a demand.
    pub fn traced(&mut self, tracing: &Tracing, batch: Batch, now: Instant) {
        let Some(stream) = self.streams.get_mut(tracing) else {
            return;
        };
        stream.define(batch.epoch, batch.definitions);
        if tracing.awaited {
            return self.hits(tracing, batch.events, now);
        }
        let mut marked = false;
        for event in batch.events {
            let Some(event) = stream.event(event) else {
                continue;
            };
            let call = match event {
                Event::Call(call) => call,
                event => {
                    if let Some(what) = missing_frames(&event) {
                        tell_stream(&mut self.connections, tracing, what);
                    }
                    continue;
                }
            };
            let Some(thread) = stream.tables.thread(call.thread) else {
                continue;
            };
            let tid = thread.tid;
            for connection in self.connections.values_mut() {
                let Connection { actors, output, .. } = connection;
                // A thread of the process in whose name it was asked for: its beginning is known there more or less
                // exactly, so that it is no part of who it is.
                for (key, attached) in actors.iter_mut() {
                    let is_its =
                        matches!(&attached.source, Some(Source::Calls(own)) if own == tracing);
                    if is_its && key.tid == tid {
                        marked |= !attached.marks.is_empty();
                        pass_marks(call.at.0, attached, output);
                        tell_call(&stream.tables, &call, tracing.values, attached, output);
                    }
                }
            }
        }
        if marked {
            self.settle_all(now);
        }
    }

    /// Calls of a demand found no room on the way here.
    pub fn dropped_calls(&mut self, tracing: &Tracing, count: u64) {
        tell_stream(&mut self.connections, tracing, (Some(count), "slowServer"));
    }

    /// Calls can't be traced, or not any longer.
    pub fn untraced(&mut self, tracing: &Tracing, text: &str) {
        let Some(stream) = self.streams.get_mut(tracing) else {
            return;
        };
        let why = match std::mem::take(&mut stream.runs) {
            true => "exited",
            false => "unavailable",
        };
        stream.failed = Some(text.to_owned());
        let now_ns = self.now_ns();
        for connection in self.connections.values_mut() {
            let Connection { actors, output, .. } = connection;
            for attached in actors.values_mut() {
                if matches!(&attached.source, Some(Source::Calls(own)) if own == tracing) {
                    attached.actor.terminated(now_ns, output);
                    attached.actor.interrupt(why, output);
                    attached.source = None;
                    attached.wishes.clear();
                    attached.marks.clear();
                    attached.unwatched = None;
                }
            }
        }
        self.change_demand();
    }

    /// Tells a client more of a capture that is there at once, as far as it reads; whether there was more.
    pub fn play(&mut self, id: ConnectionId) -> bool {
        let Some(connection) = self.connections.get_mut(&id) else {
            return false;
        };
        let Connection { actors, output, .. } = connection;
        let mut told = false;
        for (key, attached) in actors.iter_mut() {
            if !attached.actor.is_tracing() {
                continue;
            }
            let mut rest = EVENTS_AT_A_TIME;
            while rest > 0
                && !output.is_crowded()
                && let Some(event) = self.kept.get(attached.position)
            {
                rest -= 1;
                attached.position += 1;
                told = true;
                let thread = match event {
                    Event::Call(call) => call.thread,
                    Event::Sample(sample) => sample.thread,
                    Event::Process(of) => of.thread,
                    event => {
                        if let Some(what) = missing_frames(event) {
                            tell_missing(what, attached, output);
                        }
                        continue;
                    }
                };
                if self.world.thread_of(thread) != Some(*key) {
                    continue;
                }
                match (event, &attached.source) {
                    (Event::Call(call), Some(Source::Captured)) => {
                        let values = self.options.values;
                        tell_call(&self.world.tables, call, values, attached, output);
                    }
                    (Event::Sample(sample), Some(Source::Samples(_))) => {
                        tell_sample(&self.world.tables, sample, attached, output);
                    }
                    (event, _) if has_exited(event).is_some() => {
                        let mut sink = FrameSink {
                            output,
                            missed: &mut attached.missed,
                        };
                        attached.actor.terminated(event.at().0, &mut sink);
                    }
                    _ => {}
                }
            }
            let is_over = attached.position == self.kept.len() && !attached.is_over;
            if is_over && self.left_out > 0 && self.view == View::Ready {
                attached.is_over = true;
                tell_missing((Some(self.left_out), "captureTooLong"), attached, output);
            }
        }
        told
    }
}

/// What is told in its turn.
#[derive(Debug)]
pub(super) enum Held {
    Sample(Sample),
    /// The thread has ended.
    Ended(Timestamp),
}

impl Held {
    pub(super) fn at(&self) -> Timestamp {
        match self {
            Held::Sample(sample) => sample.at,
            Held::Ended(at) => *at,
        }
    }

    /// Whether its frames have names, or have been waited for long enough.
    fn is_named(&self, tables: &Tables, waited: Duration) -> bool {
        let Held::Sample(sample) = self else {
            return true;
        };
        let is_named = |frame: FrameId| {
            let is_jit = || {
                let place = tables.frames.get(frame);
                place.is_some_and(|place| place.kind == FrameKind::Jit)
            };
            tables.symbol(frame).is_some() || waited >= JIT_NAMES && is_jit()
        };
        let mut frames = tables.frames_of_both(sample.kernel, sample.user);
        waited >= NAMES || frames.all(is_named)
    }
}

/// The thread that has ended.
fn has_exited(event: &Event) -> Option<ThreadId> {
    match event {
        Event::Process(ProcessEvent {
            thread,
            change: ProcessChange::Exited,
            ..
        }) => Some(*thread),
        _ => None,
    }
}

fn tell_call(
    tables: &Tables,
    call: &Call,
    values: bool,
    attached: &mut Attached,
    output: &mut Output,
) {
    let actor = &mut attached.actor;
    let mut sink = FrameSink {
        output,
        missed: &mut attached.missed,
    };
    call_frames(tables, call, values, |event| match event {
        FrameEvent::Entered(frame) => actor.entered(&frame, &mut sink),
        FrameEvent::Exited(frame) => actor.exited(&frame, &mut sink),
    });
}

fn tell_sample(tables: &Tables, sample: &Sample, attached: &mut Attached, output: &mut Output) {
    let actor = &mut attached.actor;
    let mut sink = FrameSink {
        output,
        missed: &mut attached.missed,
    };
    attached
        .sampled
        .sample(tables, sample, |event| match event {
            FrameEvent::Entered(frame) => actor.entered(&frame, &mut sink),
            FrameEvent::Exited(frame) => actor.exited(&frame, &mut sink),
        });
}

/// Tells a client that frames are missing: how many, if that is known, and why.
pub(super) fn tell_missing(
    (count, why): (Option<u64>, &str),
    attached: &Attached,
    output: &mut Output,
) {
    if attached.actor.is_tracing() {
        output.put(&json!({
            "from": attached.actor.id(),
            "type": "lostFrames",
            "count": count,
            "why": why,
        }));
    }
}

fn tell_stream(
    connections: &mut BTreeMap<ConnectionId, Connection>,
    tracing: &Tracing,
    what: (Option<u64>, &str),
) {
    for connection in connections.values_mut() {
        let Connection { actors, output, .. } = connection;
        for attached in actors.values() {
            if matches!(&attached.source, Some(Source::Calls(own)) if own == tracing) {
                tell_missing(what, attached, output);
            }
        }
    }
}
