//! The server without sockets: bytes of clients, batches and traced calls in, bytes and orders out.
//!
//! Time is what the caller says it is; that of frames is CLOCK_MONOTONIC. Requests of a connection are answered in
//! order: while one waits for its answer, no more are taken. A client whose stream of packets can't be understood, or
//! that does not read, loses its connection, and with it all that it traced. What does not belong here: sockets and
//! threads (`server`), the TraceActor itself (`wire::rdp`).

mod answers;
mod marks;
mod seen;
mod traces;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use profiler_wire::rdp::{ErrorName, ErrorReply, Incoming, Packet, PacketSink};
use serde_json::{Value as Json, json};

use self::answers::{LISTS, LOOKS, fail, is_early, no_such_actor, process, root, target, thread};
use self::seen::{Held, tell_missing};
use super::connection::{Connection, Output, Waiting};
use super::forms::{Actor, Names};
use super::front::RdpSummary;
use super::options::{RdpOptions, RdpPeer};
use super::source::{Source, Stream};
use crate::admission::is_same_token;
use crate::front::{Order, Place, Question};
use crate::world::{ThreadKey, World, monotonic_ns};
use profiler_model::sorting::InOrder;
use profiler_model::*;

/// Requests of a connection that are carried out at a time, so that others get their turn.
const REQUESTS_AT_A_TIME: usize = 64;
/// How long somebody who is asked for may be on the way.
const SOON: Duration = Duration::from_millis(400);

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
        outputs.order_by_key(|output| output.bytes().len());
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
#[cfg(test)]
#[path = "agent_tests.rs"]
mod tests;
