//! What programs say is to be traced: markers that their threads pass -> traces of those who are attached to them.
//!
//! A marker is told in its turn: what was called before it is told before it. What does not belong here: what a marker
//! says (`markers`).

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::traces::{FREQUENCY_HZ, TRACINGS};
use super::{Agent, ConnectionId};
use crate::rdp::connection::{Attached, Output, Wish};
use crate::rdp::markers::{self, Mark, Pending};
use crate::rdp::source::Source;
use crate::world::ThreadKey;
use profiler_model::{Event, Pid, Tid, Tracing};
use profiler_report::derive::SampledFrames;

/// How long samples of before a program's marker are waited for: they come later than it does.
pub(super) const SAMPLES: Duration = Duration::from_millis(750);

impl Agent {
    /// The demand for the markers of a process.
    pub(super) fn hook(&self, process: Pid) -> Tracing {
        let known = self.streams.keys();
        let mut known = known.filter(|it| it.awaited && it.process == process);
        known.next().cloned().unwrap_or_else(|| Tracing {
            id: TRACINGS.fetch_add(1, Ordering::Relaxed),
            process,
            functions: [markers::PATTERN.to_owned()].into(),
            values: true,
            awaited: true,
        })
    }

    /// A thread has passed one of its program's markers: those who are attached to it are to be told. Whether there was
    /// room for that.
    fn marked(&mut self, process: Pid, tid: Tid, at_ns: u64, mark: &Mark, now: Instant) -> bool {
        let mut found_room = true;
        for connection in self.connections.values_mut() {
            for (key, attached) in &mut connection.actors {
                let is_its = key.process.pid == process && key.tid == tid;
                if !is_its || !attached.actor.is_attached() {
                    continue;
                }
                if attached.marks.len() >= markers::MOST {
                    found_room = false;
                    continue;
                }
                attached.marks.push_back(Pending {
                    mark: mark.clone(),
                    at_ns,
                    question: None,
                    until: now + SAMPLES,
                });
            }
        }
        found_room
    }

    /// Tells an actor of the marks that it can be told of now: what was called before is here.
    fn settle(&mut self, id: ConnectionId, key: ThreadKey, now: Instant) {
        loop {
            let own = self.held.iter().filter(|(_, of, _)| *of == key);
            let held_ns = own.map(|(_, _, held)| held.at().0).min();
            let Some(connection) = self.connections.get_mut(&id) else {
                return;
            };
            let Some(attached) = connection.actors.get_mut(&key) else {
                return;
            };
            if !attached.actor.is_tracing() {
                attached.source = None;
            }
            if attached.actor.is_tracing() && attached.source.is_none() {
                self.provide(id, key);
                continue;
            }
            let Some(first) = attached.marks.front_mut() else {
                break;
            };
            let is_due = match (&attached.source, first.question) {
                (Some(Source::Calls(_)), Some(question)) => !self.asked.contains_key(&question),
                (Some(Source::Calls(tracing)), None) => {
                    let tracing = tracing.clone();
                    // The demand goes first.
                    self.change_demand();
                    let question = self.ask(tracing);
                    if let Some(connection) = self.connections.get_mut(&id)
                        && let Some(attached) = connection.actors.get_mut(&key)
                    {
                        // All calls of before each of them are here then.
                        let marks = attached.marks.iter_mut();
                        marks.for_each(|it| it.question = it.question.or(Some(question)));
                    }
                    false
                }
                (Some(Source::Samples(_)), _) => {
                    first.until <= now && held_ns.is_none_or(|at_ns| at_ns > first.at_ns)
                }
                (Some(Source::Captured) | None, _) => true,
            };
            if !is_due {
                break;
            }
            let Some(connection) = self.connections.get_mut(&id) else {
                return;
            };
            if let Some(attached) = connection.actors.get_mut(&key)
                && let Some(pending) = attached.marks.pop_front()
            {
                apply(&pending, attached, &mut connection.output);
            }
        }
        self.change_demand();
    }

    /// Where the frames of a trace that the program has started come from.
    fn provide(&mut self, id: ConnectionId, key: ThreadKey) {
        let functions: BTreeSet<String> = self.options.functions.iter().cloned().collect();
        let frequency_hz = FREQUENCY_HZ.min(self.options.limits.frequency_hz);
        let source = match functions.is_empty() {
            true => Source::Samples(frequency_hz),
            false => {
                let values = self.may_see_values(id, key.process);
                Source::Calls(self.tracing(key.process.pid, functions.clone(), values))
            }
        };
        self.lives += 1;
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        let Some(attached) = connection.actors.get_mut(&key) else {
            return;
        };
        attached.sampled = SampledFrames::default();
        attached.is_over = false;
        attached.source = Some(source.clone());
        let names: Vec<String> = attached.actor.traces().map(str::to_owned).collect();
        attached.wishes = names
            .into_iter()
            .map(|name| Wish {
                name,
                functions: functions.clone(),
                frequency_hz,
            })
            .collect();
        if let Source::Calls(tracing) = source {
            self.change_demand();
            let question = self.ask(tracing);
            if let Some(connection) = self.connections.get_mut(&id)
                && let Some(attached) = connection.actors.get_mut(&key)
            {
                attached.unwatched = Some(question);
            }
        }
    }

    /// Settles all that can be.
    pub(super) fn settle_all(&mut self, now: Instant) {
        let mut places = Vec::new();
        for (id, connection) in &self.connections {
            let marked = connection.actors.iter();
            let marked = marked.filter(|(_, it)| {
                let provided = it.actor.is_tracing() == it.source.is_some();
                !it.marks.is_empty() || !provided
            });
            places.extend(marked.map(|(key, _)| (*id, *key)));
        }
        for (id, key) in places {
            self.settle(id, key, now);
        }
    }

    /// Takes hits of the markers of a process.
    pub(super) fn hits(&mut self, tracing: &Tracing, events: Vec<Event>, now: Instant) {
        let mut hits = Vec::new();
        if let Some(stream) = self.streams.get_mut(tracing) {
            for event in events {
                let Some(Event::Call(call)) = stream.event(event) else {
                    continue;
                };
                let Some(tid) = stream.tables.thread(call.thread).map(|it| it.tid) else {
                    continue;
                };
                match markers::read(&stream.tables, &call) {
                    Some(Ok(mark)) => hits.push((tid, call.at.0, mark)),
                    // Who asks can't be told: the program is none of ours, and it is no answer to any client.
                    Some(Err(text)) if !std::mem::replace(&mut stream.complained, true) => {
                        let process = tracing.process;
                        log::warn!("process {process} wants a trace that can't be started: {text}");
                    }
                    Some(Err(_)) | None => {}
                }
            }
        }
        let process = tracing.process;
        for (tid, at_ns, mark) in hits {
            if !self.marked(process, tid, at_ns, &mark, now)
                && let Some(stream) = self.streams.get_mut(tracing)
                && !std::mem::replace(&mut stream.complained, true)
            {
                log::warn!("process {process}: its markers come faster than they can be told");
            }
        }
        self.settle_all(now);
    }
}

/// Tells an actor what its program has said before this time.
pub(super) fn pass_marks(before_ns: u64, attached: &mut Attached, output: &mut Output) {
    while attached
        .marks
        .front()
        .is_some_and(|it| it.at_ns <= before_ns)
        && let Some(pending) = attached.marks.pop_front()
    {
        apply(&pending, attached, output);
    }
}

/// Tells an actor what its program has said. Where frames come from is for [`Agent::settle`] to see to.
pub(super) fn apply(pending: &Pending, attached: &mut Attached, output: &mut Output) {
    let actor = &mut attached.actor;
    match &pending.mark {
        Mark::Start(name, types) => {
            actor.started_by_program(name.as_deref(), *types, pending.at_ns, output);
            let started = actor.traces().last().map(str::to_owned);
            if let (Some(name), Some(like)) = (started, attached.wishes.last().cloned()) {
                // It sees what those see that run.
                attached.wishes.retain(|it| it.name != name);
                attached.wishes.push(Wish { name, ..like });
            }
        }
        Mark::Stop(name) => actor.stopped_by_program(name.as_deref(), output),
    }
    let traces: BTreeSet<&str> = attached.actor.traces().collect();
    attached.wishes.retain(|it| traces.contains(&*it.name));
}
