//! Requests to TraceActors: what is traced for whom, and where its frames come from.
//!
//! A request -> its answer, or what it waits for. What does not belong here: frames (`seen`), the states of an actor
//! (`wire::rdp`).

use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};

use profiler_wire::rdp::{
    ErrorName, ErrorReply, Packet, PacketSink, REQUESTS, TraceActor, TraceReply,
};
use serde::Serialize;
use serde_json::{Value as Json, json};

use super::answers::{fail, no_such_actor};
use super::marks::apply;
use super::{Agent, Attempt, ConnectionId, Handled, View};
use crate::front::Replay;
use crate::machine::Life;
use crate::rdp::connection::{Attached, Connection, Wish};
use crate::rdp::forms::{Actor, Names, about};
use crate::rdp::options::RdpOptions;
use crate::rdp::source::{Source, Stream};
use crate::world::ThreadKey;
use profiler_model::{Pid, Tracing};
use profiler_report::derive::SampledFrames;

/// Samples per second of clients that ask for no frequency.
pub(super) const FREQUENCY_HZ: u64 = 99;
/// Characters of a pattern of functions.
const PATTERN: usize = 1024;
/// Demands for calls, of all servers.
pub(super) static TRACINGS: AtomicU64 = AtomicU64::new(1);

impl Agent {
    /// A request to a TraceActor.
    pub(super) fn trace(
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
    pub(super) fn tracing(
        &self,
        process: Pid,
        functions: BTreeSet<String>,
        values: bool,
    ) -> Tracing {
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
    pub(super) fn may_see_values(&self, id: ConnectionId, process: Life) -> bool {
        let peer = self.connections.get(&id).and_then(|it| it.peer.uid);
        let owner = self.world.process(process).and_then(|it| it.uid);
        let owns = peer.is_some() && (peer == Some(0) || peer == owner);
        self.options.values && (owns || self.options.replay.is_some())
    }
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
