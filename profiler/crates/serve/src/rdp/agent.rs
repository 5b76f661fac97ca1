//! The server without sockets: bytes of clients, batches and traced calls in, bytes and orders out.
//!
//! Time is what the caller says it is; that of frames is CLOCK_MONOTONIC. Requests of a connection are answered in
//! order: while one waits for its answer, no more are taken. A client whose stream of packets can't be understood, or
//! that does not read, loses its connection, and with it all that it traced. What does not belong here: sockets and
//! threads (`server`), the TraceActor itself (`wire::rdp`).

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use profiler_wire::rdp::{
    ErrorName, ErrorReply, Incoming, Packet, PacketSink, REQUESTS, TraceActor, TraceReply,
};
use serde::Serialize;
use serde_json::{Value as Json, json};

use super::connection::{Attached, Connection, FrameSink, Output, Waiting, Wish};
use super::forms::{Actor, Names, about};
use super::front::RdpSummary;
use super::markers::{self, Mark, Pending};
use super::options::{RdpOptions, RdpPeer};
use super::source::{Source, Stream};
use crate::admission::is_same_token;
use crate::front::{Order, Place, Question, Replay};
use crate::machine::Life;
use crate::world::{ThreadKey, World, monotonic_ns};
use profiler_model::*;
use profiler_report::derive::{FrameEvent, SampledFrames, call_frames, missing_frames};

/// Requests of a connection that are carried out at a time, so that others get their turn.
const REQUESTS_AT_A_TIME: usize = 64;
/// Events of a capture that one client is told at a time.
const EVENTS_AT_A_TIME: usize = 4096;
/// How long somebody who is asked for may be on the way.
const SOON: Duration = Duration::from_millis(400);
/// How long names of the frames of a sample are waited for: a frame that is told without its name is left, and entered
/// by its name, as soon as that is known.
const NAMES: Duration = Duration::from_secs(5);
/// The same of code that was made at run time, which may never have one.
const JIT_NAMES: Duration = Duration::from_millis(500);
/// How long samples of before a program's marker are waited for: they come later than it does.
const SAMPLES: Duration = Duration::from_millis(750);
/// Samples that wait for names.
const MOST_HELD: usize = 1 << 16;
/// Samples per second of clients that ask for no frequency.
const FREQUENCY_HZ: u64 = 99;
/// Characters of a pattern of functions.
const PATTERN: usize = 1024;

/// Demands for calls, of all servers.
static TRACINGS: AtomicU64 = AtomicU64::new(1);

/// A client's connection. Never given out again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId(pub u64);

/// Whether clients see what there is.
#[derive(Clone, Debug, PartialEq, Eq)]
enum View {
    Awaited,
    Ready,
    Trouble(String),
}

/// What is to become of a request.
enum Handled {
    Done,
    /// It waits for who is there.
    Awaits,
    /// It waits a moment: whoever it asks for may only just have come.
    Soon,
    /// It waits until all that this source has told is here; a trace is to start from it if so said.
    Flush(Source, bool),
    /// It waits until all of these calls are here, and is looked at anew.
    Settle(Tracing),
}

/// How a request is carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Attempt {
    First,
    /// What is known now has to do.
    Last,
    /// It has waited for the frames of its actor, and if it starts a trace, for where its frames come from.
    Flushed(Option<Source>),
}

/// What is told in its turn.
#[derive(Debug)]
enum Held {
    Sample(Sample),
    /// The thread has ended.
    Ended(Timestamp),
}

impl Held {
    fn at(&self) -> Timestamp {
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

/// All connections, and what they look at.
pub struct Agent {
    options: RdpOptions,
    world: World,
    connections: BTreeMap<ConnectionId, Connection>,
    opened: u64,
    view: View,
    streams: BTreeMap<Tracing, Stream>,
    /// Samples whose frames may get names yet, and what is behind them: since when, and of whom.
    held: VecDeque<(Instant, ThreadKey, Held)>,
    /// Of a capture that is there at once.
    kept: Vec<Event>,
    /// Of those, so many found no room.
    left_out: u64,
    orders: Vec<Order>,
    demand: Demand,
    /// How often somebody new was wanted.
    lives: u64,
    questions: u64,
    /// Questions about calls that were not answered yet.
    asked: BTreeMap<u64, Tracing>,
    requests: u64,
    laggards: u64,
}

impl Agent {
    /// Without connections.
    pub fn new(options: RdpOptions) -> Agent {
        Agent {
            world: World::new(options.replay.is_some()),
            connections: BTreeMap::new(),
            opened: 0,
            view: View::Awaited,
            streams: BTreeMap::new(),
            held: VecDeque::new(),
            kept: Vec::new(),
            left_out: 0,
            orders: Vec::new(),
            demand: Demand::default(),
            lives: 0,
            questions: 0,
            asked: BTreeMap::new(),
            requests: 0,
            laggards: 0,
            options,
        }
    }

    /// How it serves.
    pub fn options(&self) -> &RdpOptions {
        &self.options
    }

    /// Opens a connection, whose greeting waits in its output; none if there are too many.
    pub fn open(&mut self, peer: RdpPeer) -> Option<ConnectionId> {
        if self.connections.len() >= self.options.limits.connections {
            return None;
        }
        let id = ConnectionId(self.opened);
        self.opened += 1;
        let mut connection = Connection::new(peer, &self.options.limits);
        connection.output.put(&json!({
            "from": "root",
            "applicationType": "browser",
            "testConnectionPrefix": Names::new(id.0).prefix,
            "traits": { "native": true },
        }));
        self.connections.insert(id, connection);
        self.change_demand();
        Some(id)
    }

    /// What is to be sent to a client; none once it was closed.
    pub fn output(&mut self, id: ConnectionId) -> Option<&mut Output> {
        Some(&mut self.connections.get_mut(&id)?.output)
    }

    /// Whether more of what a client sends can be taken now.
    pub fn takes_more(&self, id: ConnectionId) -> bool {
        self.connections.get(&id).is_some_and(|it| {
            it.waiting.is_none() && !it.output.is_last() && !it.output.is_crowded()
        })
    }

    /// A connection is no more, and what it traced is not.
    pub fn close(&mut self, id: ConnectionId) {
        self.connections.remove(&id);
        self.change_demand();
    }

    /// The client of a connection does not read.
    pub fn give_up(&mut self, id: ConnectionId) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.output.give_up();
            connection.actors.clear();
            connection.waiting = None;
            self.laggards += 1;
        }
        self.change_demand();
    }

    /// Ends all connections: nothing is served any more.
    pub fn finish(&mut self) {
        for connection in self.connections.values_mut() {
            for attached in connection.actors.values_mut() {
                attached
                    .actor
                    .interrupt("serverClosed", &mut connection.output);
            }
            connection.output.end();
        }
    }

    /// Whether ids should start anew.
    pub fn wants_new_epoch(&self) -> bool {
        self.world.wants_new_epoch()
    }

    /// What serving came to.
    pub fn summary(&self) -> RdpSummary {
        RdpSummary {
            connections: self.opened,
            requests: self.requests,
            laggards: self.laggards,
            ..RdpSummary::default()
        }
    }

    /// What is wanted of whoever runs the session, since the last call.
    pub fn orders(&mut self) -> Vec<Order> {
        std::mem::take(&mut self.orders)
    }

    /// Takes bytes of a client; how many. The others are to be given again once more can be taken.
    pub fn receive(&mut self, id: ConnectionId, bytes: &[u8], now: Instant) -> usize {
        let mut rest = bytes;
        for _ in 0..REQUESTS_AT_A_TIME {
            let Some(connection) = self.connections.get_mut(&id) else {
                return bytes.len();
            };
            if connection.output.is_last() {
                return bytes.len();
            }
            if connection.waiting.is_some() || connection.output.is_crowded() {
                break;
            }
            match connection.decoder.advance(&mut rest) {
                Ok(None) => break,
                Ok(Some(Incoming::Packet(packet))) => self.request(id, packet, now),
                Ok(Some(Incoming::Bulk { actor, kind })) => {
                    let error = ErrorReply::unrecognized(&actor, &kind);
                    fail(&mut connection.output, &actor, &error);
                }
                Ok(Some(Incoming::NoObject)) => {
                    let error = ErrorReply::new(ErrorName::NoSuchActor, "a packet is an object");
                    fail(&mut connection.output, "root", &error);
                }
                // As Firefox does: the frame of the packet was whole.
                Ok(Some(Incoming::Unreadable)) => {
                    log::debug!("{}: a packet is no JSON", connection.peer.address);
                }
                Err(error) => {
                    log::debug!("{}: {error}", connection.peer.address);
                    connection.output.end();
                    connection.actors.clear();
                    self.change_demand();
                }
            }
        }
        bytes.len() - rest.len()
    }

    fn request(&mut self, id: ConnectionId, packet: Packet, now: Instant) {
        self.requests += 1;
        if !self.authenticate(id, &packet) {
            return;
        }
        let handled = self.handle(id, &packet, Attempt::First);
        let mut patience = self.options.limits.patience;
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        let awaits = matches!(handled, Handled::Awaits);
        let (mut calls, mut source, mut hook) = (None, None, None);
        match handled {
            Handled::Done => return,
            Handled::Awaits => {}
            Handled::Soon => patience = SOON,
            Handled::Flush(of, starts) => {
                // Only calls are flushed.
                if let Source::Calls(tracing) = &of {
                    calls = Some(tracing.clone());
                }
                source = starts.then_some(of);
            }
            Handled::Settle(tracing) => {
                calls = Some(tracing.clone());
                hook = Some(tracing);
            }
        }
        connection.waiting = Some(Waiting {
            packet,
            until: now + patience,
            question: None,
            source,
            begins_anew: hook.is_some(),
            hook,
            is_answered: false,
            // That of the machine is looked at even if nobody has come.
            changes: self.world.changes.wrapping_sub(u64::from(awaits)),
        });
        self.change_demand();
        let question = calls.map(|tracing| self.ask(tracing));
        if let Some(connection) = self.connections.get_mut(&id)
            && let Some(waiting) = &mut connection.waiting
        {
            waiting.question = question;
        }
    }

    /// Asks for all calls that were made until now, behind the demand for them; the question.
    fn ask(&mut self, tracing: Tracing) -> u64 {
        self.questions += 1;
        let id = self.questions;
        self.asked.insert(id, tracing.clone());
        let place = Place::Calls(tracing);
        self.orders.push(Order::Ask(Question { id, place }));
        id
    }

    /// Whether a request is to be carried out: if there is a token, whoever is on another machine shows it first. A wrong
    /// one is the end of the connection.
    fn authenticate(&mut self, id: ConnectionId, packet: &Packet) -> bool {
        let Some(connection) = self.connections.get_mut(&id) else {
            return false;
        };
        let text = |name: &str| packet.get(name).and_then(Json::as_str);
        let Some(token) = &self.options.token else {
            return true;
        };
        let output = &mut connection.output;
        let shows = text("type") == Some("authenticate") && text("to") == Some("root");
        if connection.is_authenticated && !shows {
            return true;
        }
        if shows {
            let is_right = text("token").is_some_and(|shown| is_same_token(shown, token));
            if is_right {
                connection.is_authenticated = true;
                output.put(&json!({ "from": "root" }));
            } else {
                let error = ErrorReply::new(ErrorName::NotAuthenticated, "that is not the token");
                fail(output, "root", &error);
                output.end();
            }
            return false;
        }
        let message = "send {to:\"root\",type:\"authenticate\",token} first: the token was printed when the \
                       server started";
        let error = ErrorReply::new(ErrorName::NotAuthenticated, message);
        fail(output, text("to").unwrap_or("root"), &error);
        false
    }

    /// Carries out a request.
    fn handle(&mut self, id: ConnectionId, packet: &Packet, attempt: Attempt) -> Handled {
        let to = packet.get("to").and_then(Json::as_str).unwrap_or_default();
        let names = Names::new(id.0);
        let actor = names.read(to);
        let kind = packet.get("type").and_then(Json::as_str);
        let Some(connection) = self.connections.get_mut(&id) else {
            return Handled::Done;
        };
        let out = &mut connection.output;
        let (Some(actor), Some(kind)) = (actor, kind) else {
            let (from, error) = match (actor, packet.get("to")) {
                (None, None) => ("root", no_such_actor("")),
                (None, _) => (to, no_such_actor(to)),
                (Some(_), _) => (to, ErrorReply::missing("type")),
            };
            fail(out, if from.is_empty() { "root" } else { from }, &error);
            return Handled::Done;
        };
        let is_there = matches!(actor, Actor::Root | Actor::Trace(_));
        if !is_there || LOOKS.contains(&kind) {
            match &self.view {
                View::Awaited => return Handled::Awaits,
                View::Trouble(text) => {
                    let error = ErrorReply::new(ErrorName::Unavailable, text.clone());
                    fail(out, to, &error);
                    return Handled::Done;
                }
                View::Ready => {}
            }
        }
        let answer = match actor {
            Actor::Root => {
                if let Some((_, told)) = LISTS.into_iter().find(|(list, _)| *list == kind) {
                    connection.listed.retain(|(known, _)| *known != told);
                    connection.listed.push((told, self.world.changes));
                }
                root(&self.world, &names, kind, packet)
            }
            Actor::Process(life) => process(&self.world, &names, life, kind),
            Actor::Target(life) => target(&self.world, &names, life, kind),
            Actor::Thread(key) => thread(&self.world, &names, key, kind),
            Actor::Trace(key) => return self.trace(id, key, kind, packet, attempt),
        };
        match answer {
            Ok(mut answer) => {
                answer["from"] = to.into();
                out.put(&answer);
            }
            Err(None) => fail(out, to, &ErrorReply::unrecognized(to, kind)),
            Err(Some(error)) if is_early(&error) && attempt == Attempt::First => {
                return Handled::Soon;
            }
            Err(Some(error)) => fail(out, to, &error),
        }
        Handled::Done
    }

    /// A request to a TraceActor.
    fn trace(
        &mut self,
        id: ConnectionId,
        key: ThreadKey,
        kind: &str,
        packet: &Packet,
        attempt: Attempt,
    ) -> Handled {
        let name = Names::new(id.0).of(Actor::Trace(key));
        let is_there = self.world.thread(key).is_some();
        let now_ns = self.now_ns();
        let begin = self.kept_from();
        let Some(connection) = self.connections.get_mut(&id) else {
            return Handled::Done;
        };
        if !connection.actors.contains_key(&key) && !is_there {
            match self.view {
                View::Awaited => return Handled::Awaits,
                _ => fail(&mut connection.output, &name, &no_such_actor(&name)),
            }
            return Handled::Done;
        }
        if kind == "requestTypes" {
            let mut kinds = REQUESTS.to_vec();
            kinds.push("requestTypes");
            let answer = json!({ "from": name, "requestTypes": kinds });
            connection.output.put(&answer);
            return Handled::Done;
        }
        let is_full = connection.actors.len() >= self.options.limits.actors;
        if kind == "attach" && is_full && !connection.actors.contains_key(&key) {
            let error = ErrorReply::new(ErrorName::LimitExceeded, "too many actors are attached");
            fail(&mut connection.output, &name, &error);
            return Handled::Done;
        }
        let fresh = || Attached {
            actor: TraceActor::new(name.clone(), about(key)),
            source: None,
            wishes: Vec::new(),
            sampled: SampledFrames::default(),
            marks: VecDeque::new(),
            unwatched: None,
            missed: 0,
            position: 0,
            is_over: false,
        };
        let mut attached = connection.actors.remove(&key).unwrap_or_else(fresh);
        // Who is attached is told of what the program says from then on.
        let is_new = kind == "attach" && !attached.actor.is_attached();
        if is_new && attempt == Attempt::First && self.options.replay.is_none() {
            let hook = self.hook(key.process.pid);
            let known = self.streams.get(&hook);
            if !known.is_some_and(|it| it.runs || it.failed.is_some()) {
                return Handled::Settle(hook);
            }
        }
        // What it has said already comes before.
        if !attached.marks.is_empty() && matches!(kind, "startTrace" | "stopTrace" | "detach") {
            if let Some(Source::Calls(tracing)) = &attached.source
                && attempt == Attempt::First
            {
                let tracing = tracing.clone();
                self.keep(id, key, attached);
                return Handled::Settle(tracing);
            }
            if let Some(connection) = self.connections.get_mut(&id) {
                while let Some(pending) = attached.marks.pop_front() {
                    apply(&pending, &mut attached, &mut connection.output);
                }
            }
        }
        let Some(connection) = self.connections.get_mut(&id) else {
            return Handled::Done;
        };
        // What would come of it? Most often that is looked at only to see that it is no error.
        let needs_flush = attempt == Attempt::First && attached.actor.is_attached();
        if needs_flush && matches!(kind, "startTrace" | "stopTrace" | "detach") {
            let mut trial = attached.actor.clone();
            let mut said = Outcome::default();
            trial.request(kind, packet, now_ns, &mut said);
            let flush = match (said.is_error, kind) {
                (true, _) => None,
                (false, "startTrace") => {
                    let wished = wish(packet, &self.options, connection_patterns(connection));
                    match wished {
                        Err(error) => {
                            fail(&mut connection.output, &name, &error);
                            connection.actors.insert(key, attached);
                            return Handled::Done;
                        }
                        Ok(wish) => {
                            let source = self.source(id, key, &attached, wish, &trial, packet);
                            let is_same = attached.source.as_ref() == Some(&source);
                            let runs = match &source {
                                Source::Calls(tracing) => {
                                    self.streams.get(tracing).is_some_and(|it| it.runs)
                                }
                                _ => true,
                            };
                            match is_same && runs {
                                true => None,
                                false => Some((source, true)),
                            }
                        }
                    }
                }
                // All that was called before is told before.
                (false, _) if attached.actor.is_tracing() => {
                    attached.source.clone().map(|source| (source, false))
                }
                _ => None,
            };
            if let Some((source, starts)) = flush {
                let waits = matches!(source, Source::Calls(_));
                if waits {
                    self.keep(id, key, attached);
                    return Handled::Flush(source, starts);
                }
                if starts {
                    attached.source = Some(source);
                } else if !trial.is_tracing() {
                    self.tell_rest(id, key, &mut attached);
                }
            }
        }
        if let Attempt::Flushed(Some(source)) = attempt {
            let changed = attached.source.as_ref() != Some(&source);
            if let Some(connection) = self.connections.get_mut(&id)
                && attached.actor.is_tracing()
                && changed
            {
                // Calls under way are known to the probes of before alone.
                attached.actor.terminated(now_ns, &mut connection.output);
            }
            attached.source = Some(source);
        }
        let Some(connection) = self.connections.get_mut(&id) else {
            return Handled::Done;
        };
        let was_tracing = attached.actor.is_tracing();
        let since_ns = match attached.source {
            _ if self.options.replay == Some(Replay::AtOnce) => begin,
            _ => now_ns,
        };
        let reply = attached
            .actor
            .request(kind, packet, since_ns, &mut connection.output);
        if reply == TraceReply::Unrecognized {
            let error = ErrorReply::unrecognized(&name, kind);
            fail(&mut connection.output, &name, &error);
        }
        if kind == "startTrace"
            && attached.actor.is_tracing()
            && let Ok(mut wish) = wish(packet, &self.options, 0)
            && let Some(last) = attached.actor.traces().last()
        {
            wish.name = last.to_owned();
            attached.wishes.retain(|it| it.name != wish.name);
            attached.wishes.push(wish);
        }
        let traces: BTreeSet<&str> = attached.actor.traces().collect();
        attached.wishes.retain(|it| traces.contains(&*it.name));
        if !was_tracing && attached.actor.is_tracing() {
            attached.sampled = SampledFrames::default();
            attached.position = 0;
            attached.is_over = false;
            self.lives += 1;
        }
        if !attached.actor.is_tracing() {
            attached.source = None;
        }
        if attached.actor.is_attached() {
            connection.actors.insert(key, attached);
        }
        self.change_demand();
        Handled::Done
    }

    /// The demand for the markers of a process.
    fn hook(&self, process: Pid) -> Tracing {
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
    fn settle_all(&mut self, now: Instant) {
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

    fn keep(&mut self, id: ConnectionId, key: ThreadKey, attached: Attached) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.actors.insert(key, attached);
        }
    }

    /// Where the frames of an actor are to come from, once one more trace is started.
    fn source(
        &self,
        id: ConnectionId,
        key: ThreadKey,
        attached: &Attached,
        wish: Wish,
        trial: &TraceActor,
        packet: &Packet,
    ) -> Source {
        let wishes = attached.wishes.iter();
        // One of the same name is replaced.
        let replaced = trial.traces().last();
        let wishes = wishes.filter(|it| Some(&*it.name) != replaced);
        let all: Vec<&Wish> = wishes.chain(std::iter::once(&wish)).collect();
        let frequency = all.iter().map(|it| it.frequency_hz).max();
        let functions: BTreeSet<String> = all.iter().flat_map(|it| it.functions.clone()).collect();
        let infers = packet.get("inferred").and_then(Json::as_bool) == Some(true);
        match self.options.replay {
            Some(_) if self.world.has_traced() && !infers => Source::Captured,
            None if !functions.is_empty() => {
                let values = self.may_see_values(id, key.process);
                Source::Calls(self.tracing(key.process.pid, functions, values))
            }
            _ => Source::Samples(frequency.unwrap_or(FREQUENCY_HZ)),
        }
    }

    /// The demand for these calls: one that others have already, if there is one.
    fn tracing(&self, process: Pid, functions: BTreeSet<String>, values: bool) -> Tracing {
        let is_same = |(known, stream): &(&Tracing, &Stream)| {
            let same = (known.process, &known.functions, known.values, known.awaited);
            same == (process, &functions, values, false) && stream.failed.is_none()
        };
        let known = self.streams.iter().find(is_same);
        let known = known.map(|(known, _)| known.clone());
        known.unwrap_or_else(|| Tracing {
            id: TRACINGS.fetch_add(1, Ordering::Relaxed),
            process,
            functions,
            values,
            awaited: false,
        })
    }

    /// Whether a client may see arguments and results: its process is root's or of the same user.
    fn may_see_values(&self, id: ConnectionId, process: Life) -> bool {
        let peer = self.connections.get(&id).and_then(|it| it.peer.uid);
        let owner = self.world.process(process).and_then(|it| it.uid);
        let owns = peer.is_some() && (peer == Some(0) || peer == owner);
        self.options.values && (owns || self.options.replay.is_some())
    }

    /// Forms the demand anew.
    fn change_demand(&mut self) {
        let mut tracing = BTreeSet::new();
        let mut frequency = 0;
        let mut threads = BTreeSet::new();
        let mut is_tracing = false;
        for connection in self.connections.values() {
            is_tracing |= connection.is_tracing();
            let about_to = connection
                .waiting
                .iter()
                .filter_map(|it| it.source.as_ref());
            let sources = connection.sources();
            for (key, source) in sources {
                if let Source::Samples(hz) = source {
                    frequency = frequency.max(*hz);
                    threads.insert(key.tid);
                } else if let Source::Calls(calls) = source {
                    tracing.insert(calls.clone());
                }
            }
            for source in about_to {
                if let Source::Calls(calls) = source {
                    tracing.insert(calls.clone());
                }
            }
            let hooks = connection.waiting.iter();
            tracing.extend(hooks.filter_map(|it| it.hook.clone()));
            if self.options.replay.is_none() {
                let attached = connection.actors.iter();
                let attached = attached.filter(|(_, it)| it.actor.is_attached());
                tracing.extend(attached.map(|(key, _)| self.hook(key.process.pid)));
            }
        }
        for wanted in &tracing {
            self.streams.entry(wanted.clone()).or_default();
        }
        self.streams.retain(|known, _| tracing.contains(known));
        let sampling = (!threads.is_empty()).then(|| Sampling {
            frequency_hz: frequency,
            regular_hz: None,
            kernel_stacks: false,
            processes: BTreeSet::new(),
            threads,
            followed: BTreeSet::new(),
        });
        let demand = Demand {
            // The time of a capture goes by while somebody traces: else what is in it would be over.
            attached: match self.options.replay {
                Some(_) => is_tracing,
                None => !self.connections.is_empty(),
            },
            lives: match sampling {
                Some(_) => self.lives,
                None => 0,
            },
            sampling,
            tracing,
        };
        if demand != self.demand {
            self.demand = demand.clone();
            self.orders.retain(|it| !matches!(it, Order::Demand(_)));
            // It goes before the questions.
            self.orders.insert(0, Order::Demand(demand));
        }
    }

    /// The time of frames now.
    fn now_ns(&self) -> u64 {
        match self.options.replay {
            Some(_) => self.world.now_ns(),
            None => monotonic_ns(),
        }
    }

    /// When a capture that is there at once begins.
    fn kept_from(&self) -> u64 {
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
    fn release(&mut self, now: Instant, all: bool) {
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
    fn tell_rest(&mut self, id: ConnectionId, key: ThreadKey, attached: &mut Attached) {
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

    /// Takes hits of the markers of a process.
    fn hits(&mut self, tracing: &Tracing, events: Vec<Event>, now: Instant) {
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

    /// A question was answered.
    pub fn acknowledge(&mut self, question: u64, now: Instant) {
        for connection in self.connections.values_mut() {
            if let Some(waiting) = &mut connection.waiting
                && waiting.question == Some(question)
            {
                waiting.is_answered = true;
            }
            let Connection { actors, output, .. } = connection;
            for attached in actors.values_mut() {
                if attached.unwatched == Some(question) {
                    attached.unwatched = None;
                    // What was called until now nobody saw.
                    tell_missing((None, "notYetAttached"), attached, output);
                }
            }
        }
        if let Some(tracing) = self.asked.remove(&question)
            && let Some(stream) = self.streams.get_mut(&tracing)
        {
            stream.runs = stream.failed.is_none();
        }
        self.settle_all(now);
        self.retry(now);
    }

    /// All processes have been announced.
    pub fn ready(&mut self, now: Instant) {
        self.view = View::Ready;
        self.retry(now);
    }

    /// What clients see is old, until batches come.
    pub fn detached(&mut self) {
        self.view = View::Awaited;
    }

    /// There will be nothing to see, until batches come.
    pub fn trouble(&mut self, text: String, now: Instant) {
        self.view = View::Trouble(text);
        self.retry(now);
    }

    /// Time passes.
    pub fn tick(&mut self, now: Instant) {
        self.release(now, false);
        self.settle_all(now);
        self.retry(now);
        self.tell_changes();
        self.keep_within();
        self.dismiss();
    }

    /// Tells those who have listed processes, once, that there are others now.
    fn tell_changes(&mut self) {
        let changes = self.world.changes;
        for connection in self.connections.values_mut() {
            let Connection { listed, output, .. } = connection;
            listed.retain(|&(kind, listed)| {
                let is_same = listed == changes;
                if !is_same {
                    output.put(&json!({ "from": "root", "type": kind }));
                }
                is_same
            });
        }
    }

    /// Those who have most waiting get no more frames, if all together have too much.
    fn keep_within(&mut self) {
        let outputs = self.connections.values_mut().map(|it| &mut it.output);
        let mut outputs: Vec<&mut Output> = outputs.filter(|it| !it.lags()).collect();
        outputs.sort_by_key(|output| output.bytes().len());
        let mut bytes: usize = outputs.iter().map(|output| output.bytes().len()).sum();
        while bytes > self.options.limits.all_output_bytes
            && let Some(most) = outputs.pop()
        {
            bytes -= most.bytes().len();
            most.lag();
        }
    }

    /// Tells those who did not read, and now have read all that waited, what they missed, and ends it.
    fn dismiss(&mut self) {
        let mut dismissed = false;
        for connection in self.connections.values_mut() {
            let Connection { actors, output, .. } = connection;
            if !output.lags() || output.is_last() || !output.bytes().is_empty() {
                continue;
            }
            for attached in actors.values_mut() {
                let missed = std::mem::take(&mut attached.missed);
                if missed > 0 {
                    tell_missing((Some(missed), "slowClient"), attached, output);
                }
                attached.actor.interrupt("slowClient", output);
            }
            actors.clear();
            output.end();
            self.laggards += 1;
            dismissed = true;
        }
        if dismissed {
            self.change_demand();
        }
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

    /// Looks at requests that wait.
    fn retry(&mut self, now: Instant) {
        for id in self.connections.keys().copied().collect::<Vec<_>>() {
            let Some(connection) = self.connections.get_mut(&id) else {
                continue;
            };
            let Some(waiting) = &connection.waiting else {
                continue;
            };
            let is_over = waiting.until <= now;
            let is_due = match waiting.question {
                Some(_) => waiting.is_answered,
                None => self.view != View::Awaited,
            };
            let is_new = waiting.changes != self.world.changes;
            if is_due && waiting.question.is_none() && !is_new && !is_over {
                continue;
            }
            if !is_due && !is_over {
                continue;
            }
            let Some(waiting) = connection.waiting.take() else {
                continue;
            };
            let to = waiting.packet.get("to").and_then(Json::as_str);
            let to = to.unwrap_or("root").to_owned();
            let failed = match &waiting.source {
                Some(Source::Calls(tracing)) => {
                    self.streams.get(tracing).and_then(|it| it.failed.clone())
                }
                _ => None,
            };
            let late = || "it has not come to pass in time".to_owned();
            let failed = failed.or_else(|| (!is_due).then(late));
            if let Some(text) = failed {
                let error = ErrorReply::new(ErrorName::Unavailable, text);
                fail(&mut connection.output, &to, &error);
                self.change_demand();
                continue;
            }
            let attempt = match (waiting.question, is_over) {
                _ if waiting.begins_anew => Attempt::First,
                (Some(_), _) => Attempt::Flushed(waiting.source.clone()),
                (None, true) => Attempt::Last,
                (None, false) => Attempt::First,
            };
            match self.handle(id, &waiting.packet, attempt) {
                Handled::Done => {}
                Handled::Soon => {
                    if let Some(connection) = self.connections.get_mut(&id) {
                        let changes = self.world.changes;
                        connection.waiting = Some(Waiting { changes, ..waiting });
                    }
                }
                // It was the processes that it waited for before, or what its program has said.
                Handled::Awaits | Handled::Flush(..) | Handled::Settle(_) => {
                    self.requests -= 1;
                    self.request(id, waiting.packet, now);
                }
            }
        }
    }
}

/// Requests that ask who is there.
const LOOKS: [&str; 5] = [
    "listTabs",
    "listProcesses",
    "getProcess",
    "getTab",
    "listThreads",
];
/// Requests after which it is told when there are others, and how.
const LISTS: [(&str, &str); 2] = [
    ("listTabs", "tabListChanged"),
    ("listProcesses", "processListChanged"),
];
const ROOT: [&str; 14] = [
    "connect",
    "getRoot",
    "listTabs",
    "getTab",
    "listProcesses",
    "getProcess",
    "listAddons",
    "listWorkers",
    "listServiceWorkerRegistrations",
    "watchResources",
    "unwatchResources",
    "protocolDescription",
    "requestTypes",
    "echo",
];
const PROCESS: [&str; 3] = ["getTarget", "requestTypes", "listThreads"];
const TARGET: [&str; 6] = [
    "attach",
    "detach",
    "getTarget",
    "listThreads",
    "listWorkers",
    "requestTypes",
];
const THREAD: [&str; 2] = ["getTraceActor", "requestTypes"];

/// An answer without `from`; an error, or none if the request is not known.
type Answer = Result<Json, Option<ErrorReply>>;

fn root(world: &World, names: &Names, kind: &str, packet: &Packet) -> Answer {
    Ok(match kind {
        "connect" | "watchResources" | "unwatchResources" => json!({}),
        "getRoot" => json!({ "traits": {} }),
        "listTabs" => {
            let processes = world.processes();
            let tabs = processes.map(|(life, process)| names.tab(world, life, process));
            let mut tabs: Vec<Json> = tabs.collect();
            if let Some(first) = tabs.first_mut() {
                first["selected"] = true.into();
            }
            json!({ "tabs": tabs, "selected": 0 })
        }
        "listProcesses" => {
            let processes = world.processes();
            let forms = processes.map(|(life, process)| names.process(world, life, process));
            json!({ "processes": forms.collect::<Vec<_>>() })
        }
        "getProcess" | "getTab" => {
            let property = ["id", "outerWindowID", "browserId"]
                .into_iter()
                .find_map(|name| Some((name, packet.get(name)?)));
            let (name, value) = property.ok_or_else(|| ErrorReply::missing("id"))?;
            let pid = value.as_u64().and_then(|pid| u32::try_from(pid).ok());
            let pid = pid.ok_or_else(|| ErrorReply::bad_type(name, "a process id"))?;
            // Nobody is 0: it means the parent of all, whom clients look at first.
            let pid = Pid(pid.max(1));
            let gone = || {
                let text = format!("there is no process {pid}");
                ErrorReply::new(ErrorName::NoSuchProcess, text)
            };
            let life = world.life(pid).ok_or_else(gone)?;
            let process = world.process(life).ok_or_else(gone)?;
            let target = names.target(world, life, process);
            match kind {
                "getTab" => json!({ "tab": target }),
                _ => json!({
                    "processDescriptor": names.process(world, life, process),
                    "form": target,
                }),
            }
        }
        "listAddons" => json!({ "addons": [] }),
        "listWorkers" => json!({ "workers": [] }),
        "listServiceWorkerRegistrations" => json!({ "registrations": [] }),
        "protocolDescription" => json!({ "types": {} }),
        "requestTypes" => json!({ "requestTypes": ROOT }),
        "echo" => {
            let mut packet = packet.clone();
            packet.remove("to");
            Json::Object(packet)
        }
        _ => return Err(None),
    })
}

fn process(world: &World, names: &Names, life: Life, kind: &str) -> Answer {
    let name = || names.of(Actor::Process(life));
    let process = world.process(life).ok_or_else(|| no_such_actor(&name()))?;
    Ok(match kind {
        "getTarget" => json!({ "process": names.target(world, life, process) }),
        "listThreads" => json!({ "threads": names.threads(world, life) }),
        "requestTypes" => json!({ "requestTypes": PROCESS }),
        _ => return Err(None),
    })
}

fn target(world: &World, names: &Names, life: Life, kind: &str) -> Answer {
    let name = || names.of(Actor::Target(life));
    let process = world.process(life).ok_or_else(|| no_such_actor(&name()))?;
    let form = || names.target(world, life, process);
    Ok(match kind {
        "attach" => {
            let mut answer = json!({ "type": "tabAttached" });
            let form = form();
            for property in ["threadActor", "traceActor", "threads", "traits"] {
                answer[property] = form[property].clone();
            }
            answer
        }
        "detach" => json!({ "type": "detached" }),
        "getTarget" => json!({ "frame": form(), "process": form() }),
        "listThreads" => json!({ "threads": names.threads(world, life) }),
        "listWorkers" => json!({ "workers": [] }),
        "requestTypes" => json!({ "requestTypes": TARGET }),
        _ => return Err(None),
    })
}

fn thread(world: &World, names: &Names, key: ThreadKey, kind: &str) -> Answer {
    let name = || names.of(Actor::Thread(key));
    let thread = world.thread(key).ok_or_else(|| no_such_actor(&name()))?;
    Ok(match kind {
        "getTraceActor" => names.thread(world, key, thread),
        "requestTypes" => json!({ "requestTypes": THREAD }),
        _ => return Err(None),
    })
}

/// What was just started is not known yet.
fn is_early(error: &ErrorReply) -> bool {
    error.name == ErrorName::NoSuchProcess
}

fn no_such_actor(name: &str) -> ErrorReply {
    ErrorReply::new(
        ErrorName::NoSuchActor,
        format!("there is no actor '{name}'"),
    )
}

fn fail(out: &mut impl PacketSink, from: &str, error: &ErrorReply) {
    out.put(&Failed { from, error });
}

#[derive(Serialize)]
struct Failed<'a> {
    from: &'a str,
    #[serde(flatten)]
    error: &'a ErrorReply,
}

/// Whether what would be said is an error.
#[derive(Default)]
struct Outcome {
    is_error: bool,
}

impl PacketSink for Outcome {
    fn put(&mut self, packet: &impl Serialize) {
        let packet = serde_json::to_value(packet).unwrap_or_default();
        self.is_error |= packet.get("error").is_some();
    }
}

fn connection_patterns(connection: &Connection) -> usize {
    let attached = connection.actors.values();
    let wishes = attached.flat_map(|it| &it.wishes);
    wishes.map(|it| it.functions.len()).sum()
}

/// What `startTrace` asks for beside types, where the connection has so many patterns already.
fn wish(packet: &Packet, options: &RdpOptions, patterns: usize) -> Result<Wish, ErrorReply> {
    let list = || ErrorReply::bad_type("functions", "a list of patterns");
    let infers = match packet.get("inferred") {
        None | Some(Json::Null) => false,
        Some(Json::Bool(infers)) => *infers,
        Some(_) => return Err(ErrorReply::bad_type("inferred", "true or false")),
    };
    let functions: BTreeSet<String> = match packet.get("functions") {
        _ if infers => BTreeSet::new(),
        None | Some(Json::Null) => options.functions.iter().cloned().collect(),
        Some(Json::Array(texts)) => {
            let texts = texts.iter().map(|text| text.as_str().map(str::to_owned));
            texts.collect::<Option<_>>().ok_or_else(list)?
        }
        Some(_) => return Err(list()),
    };
    let most = options.limits.patterns;
    if functions.len() + patterns > most || functions.iter().any(|it| it.len() > PATTERN) {
        let text = format!("more than {most} patterns, or one of more than {PATTERN} characters");
        return Err(ErrorReply::new(ErrorName::LimitExceeded, text));
    }
    let frequency_hz = match packet.get("frequency") {
        None | Some(Json::Null) => FREQUENCY_HZ.min(options.limits.frequency_hz),
        Some(frequency) => {
            let hz = frequency.as_f64().filter(|hz| *hz >= 1.0);
            let hz = hz.ok_or_else(|| ErrorReply::bad_type("frequency", "a number from 1 on"))?;
            (hz as u64).min(options.limits.frequency_hz)
        }
    };
    Ok(Wish {
        name: String::new(),
        functions,
        frequency_hz,
    })
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

/// Tells an actor what its program has said before this time.
fn pass_marks(before_ns: u64, attached: &mut Attached, output: &mut Output) {
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
fn apply(pending: &Pending, attached: &mut Attached, output: &mut Output) {
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

/// Tells a client that frames are missing: how many, if that is known, and why.
fn tell_missing((count, why): (Option<u64>, &str), attached: &Attached, output: &mut Output) {
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

#[cfg(test)]
#[path = "agent_tests.rs"]
mod tests;
