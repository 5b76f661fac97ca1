//! The TraceActor: requests of a client, and frames that are entered and left -> packets.
//!
//! ```text
//! detached -- attach --> idle -- startTrace --> tracing (one trace or more) -- stopTrace of the last --> idle
//!    ^                    |                        |
//!    +------ detach ------+------------------------+
//! ```
//! One client's view of one thread. Times are nanoseconds. Source: "Tracing Profiler Protocol Spec"; where it says
//! nothing, what Firefox did. What does not belong here: sockets, which frames there are.

use rustc_hash::FxHashMap;
use serde::Serialize;
use serde_json::{Map, Value as Json};

use super::error::{ErrorName, ErrorReply};
use super::frame::{Entered, Exited, Place, Why};
use super::packet::{Packet, encode};
use super::types::{TraceType, TraceTypes};

/// Traces that one actor collects at a time.
pub const MAX_TRACES: usize = 1024;
/// Frames that are open at a time; deeper ones are not told.
const MAX_OPEN: usize = 1 << 16;

/// Where packets go.
pub trait PacketSink {
    /// Takes one.
    fn put(&mut self, packet: &impl Serialize);
}

/// As they are sent.
impl PacketSink for Vec<u8> {
    fn put(&mut self, packet: &impl Serialize) {
        encode(packet, self);
    }
}

/// What has become of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceReply {
    /// It was answered.
    Answered,
    /// The actor knows no such request.
    Unrecognized,
}

/// Requests that it knows.
pub const REQUESTS: [&str; 4] = ["attach", "detach", "startTrace", "stopTrace"];

/// One client's view of one thread.
#[derive(Clone, Debug)]
pub struct TraceActor {
    id: String,
    /// What `startedTrace` says besides.
    about: Map<String, Json>,
    state: State,
    /// Names that were generated.
    generated: u64,
}

#[derive(Clone, Debug)]
enum State {
    Detached,
    Idle,
    Tracing(Tracing),
}

#[derive(Clone, Debug)]
struct Tracing {
    /// In the order in which they were started; never empty.
    traces: Vec<Trace>,
    /// What they want, all together.
    types: TraceTypes,
    sequence: u64,
    /// When it became so.
    since_ns: u64,
    /// Entered since then, and not left.
    open: Vec<Open>,
    hits: FxHashMap<u64, u64>,
}

#[derive(Clone, Debug)]
struct Trace {
    name: String,
    types: TraceTypes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Open {
    function: u64,
    depth: u32,
    goroutine: u32,
}

impl TraceActor {
    /// Detached. `about` is said of the thread with each `startedTrace`.
    pub fn new(id: String, about: Map<String, Json>) -> TraceActor {
        TraceActor {
            id,
            about,
            state: State::Detached,
            generated: 0,
        }
    }

    /// Its name.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Whether frames are wanted.
    pub fn is_tracing(&self) -> bool {
        matches!(self.state, State::Tracing(_))
    }

    /// What is wanted of frames.
    pub fn types(&self) -> TraceTypes {
        match &self.state {
            State::Tracing(tracing) => tracing.types,
            _ => TraceTypes::NONE,
        }
    }

    /// Names of the traces that are being collected, in the order in which they were started.
    pub fn traces(&self) -> impl Iterator<Item = &str> {
        let traces = match &self.state {
            State::Tracing(tracing) => &tracing.traces[..],
            _ => &[],
        };
        traces.iter().map(|trace| &*trace.name)
    }

    /// Whether a client is attached.
    pub fn is_attached(&self) -> bool {
        !matches!(self.state, State::Detached)
    }

    /// Carries out a request.
    pub fn request(
        &mut self,
        kind: &str,
        packet: &Packet,
        now_ns: u64,
        out: &mut impl PacketSink,
    ) -> TraceReply {
        let result = match kind {
            "attach" => self.attach(out),
            "detach" => self.detach(out),
            "startTrace" => self.start(packet, now_ns, out),
            "stopTrace" => self.stop(packet, out),
            _ => return TraceReply::Unrecognized,
        };
        if let Err(error) = result {
            out.put(&Said {
                from: &self.id,
                what: error,
            });
        }
        TraceReply::Answered
    }

    fn attach(&mut self, out: &mut impl PacketSink) -> Result<(), ErrorReply> {
        if !matches!(self.state, State::Detached) {
            return Err(wrong_state("it is attached already"));
        }
        self.state = State::Idle;
        self.say(
            Attached {
                kind: "attached",
                trace_types: TraceTypes::ALL,
            },
            out,
        );
        Ok(())
    }

    /// The answer comes first: a client may take whatever comes next for it.
    fn detach(&mut self, out: &mut impl PacketSink) -> Result<(), ErrorReply> {
        if matches!(self.state, State::Detached) {
            return Err(wrong_state("it is not attached"));
        }
        let before = std::mem::replace(&mut self.state, State::Detached);
        self.say(Plain { kind: "detached" }, out);
        if let State::Tracing(tracing) = before {
            for trace in tracing.traces.iter().rev() {
                self.stopped(&trace.name, "detached", out);
            }
        }
        Ok(())
    }

    fn start(
        &mut self,
        packet: &Packet,
        now_ns: u64,
        out: &mut impl PacketSink,
    ) -> Result<(), ErrorReply> {
        if matches!(self.state, State::Detached) {
            return Err(wrong_state("it is not attached"));
        }
        let types = types(packet)?;
        let name = name(packet)?;
        self.begin(name, types, "requested", now_ns, out)
    }

    /// Begins a trace that the program itself has asked for; nothing if the actor is not attached.
    pub fn started_by_program(
        &mut self,
        name: Option<&str>,
        types: TraceTypes,
        now_ns: u64,
        out: &mut impl PacketSink,
    ) {
        if !matches!(self.state, State::Detached) {
            let name = name.map(str::to_owned);
            // Too many: the program is not told.
            let _ = self.begin(name, types, "console.startTrace", now_ns, out);
        }
    }

    /// Ends a trace that the program itself wants to end; nothing if there is none.
    pub fn stopped_by_program(&mut self, name: Option<&str>, out: &mut impl PacketSink) {
        let _ = self.end(name.map(str::to_owned), "console.stopTrace", out);
    }

    /// Ends all traces because they can't go on: `why` is none of the specification's reasons.
    pub fn interrupt(&mut self, why: &'static str, out: &mut impl PacketSink) {
        if let State::Tracing(tracing) = &mut self.state {
            let traces = std::mem::take(&mut tracing.traces);
            self.state = State::Idle;
            for trace in traces.iter().rev() {
                self.stopped(&trace.name, why, out);
            }
        }
    }

    fn begin(
        &mut self,
        name: Option<String>,
        types: TraceTypes,
        why: &'static str,
        now_ns: u64,
        out: &mut impl PacketSink,
    ) -> Result<(), ErrorReply> {
        let name = match name {
            Some(name) => name,
            None => self.generate(),
        };
        let trace = Trace {
            name: name.clone(),
            types,
        };
        match &mut self.state {
            State::Tracing(tracing) => {
                tracing.traces.retain(|trace| trace.name != name);
                if tracing.traces.len() >= MAX_TRACES {
                    let text = format!("{MAX_TRACES} traces are collected already");
                    return Err(ErrorReply::new(ErrorName::LimitExceeded, text));
                }
                tracing.traces.push(trace);
                tracing.unite();
            }
            _ => {
                self.state = State::Tracing(Tracing {
                    traces: vec![trace],
                    types,
                    sequence: 0,
                    since_ns: now_ns,
                    open: Vec::new(),
                    hits: FxHashMap::default(),
                });
            }
        }
        let tracing = (why != "requested").then_some(types);
        let started = Started {
            kind: "startedTrace",
            why,
            name: &name,
            tracing,
            about: &self.about,
        };
        self.say(started, out);
        Ok(())
    }

    fn stop(&mut self, packet: &Packet, out: &mut impl PacketSink) -> Result<(), ErrorReply> {
        if !self.is_tracing() {
            return Err(wrong_state("it is not tracing"));
        }
        self.end(name(packet)?, "requested", out)
    }

    fn end(
        &mut self,
        name: Option<String>,
        why: &'static str,
        out: &mut impl PacketSink,
    ) -> Result<(), ErrorReply> {
        let State::Tracing(tracing) = &mut self.state else {
            return Err(wrong_state("it is not tracing"));
        };
        let at = match &name {
            Some(name) => tracing.traces.iter().position(|it| it.name == *name),
            None => tracing.traces.len().checked_sub(1),
        };
        let Some(at) = at else {
            let text = format!("there is no trace '{}'", name.unwrap_or_default());
            return Err(ErrorReply::new(ErrorName::NoSuchTrace, text));
        };
        let trace = tracing.traces.remove(at);
        tracing.unite();
        if tracing.traces.is_empty() {
            self.state = State::Idle;
        }
        self.stopped(&trace.name, why, out);
        Ok(())
    }

    /// A name that no trace has.
    fn generate(&mut self) -> String {
        loop {
            self.generated += 1;
            let name = format!("Trace {}", self.generated);
            let is_taken = match &self.state {
                State::Tracing(tracing) => tracing.traces.iter().any(|it| it.name == name),
                _ => false,
            };
            if !is_taken {
                return name;
            }
        }
    }

    fn stopped(&self, name: &str, why: &'static str, out: &mut impl PacketSink) {
        let stopped = Stopped {
            kind: "stoppedTrace",
            why,
            name,
        };
        self.say(stopped, out);
    }

    fn say(&self, what: impl Serialize, out: &mut impl PacketSink) {
        out.put(&Said {
            from: &self.id,
            what,
        });
    }

    /// A frame is entered.
    pub fn entered(&mut self, frame: &Entered<'_>, out: &mut impl PacketSink) {
        let State::Tracing(tracing) = &mut self.state else {
            return;
        };
        // What happened before tracing began may still be under way.
        if tracing.open.len() >= MAX_OPEN || frame.at_ns < tracing.since_ns {
            return;
        }
        let hits = tracing.hits.entry(frame.function).or_default();
        *hits += 1;
        let hits = *hits;
        tracing.open.push(Open {
            function: frame.function,
            depth: frame.depth,
            goroutine: frame.goroutine,
        });
        let types = tracing.types;
        let packet = EnteredFrame {
            from: &self.id,
            kind: "enteredFrame",
            sequence: tracing.next(),
            name: types.has(TraceType::Name).then_some(&frame.name),
            callsite: url(types, TraceType::Callsite, frame.callsite.as_ref()),
            time: types
                .has(TraceType::Time)
                .then(|| tracing.time(frame.at_ns)),
            parameter_names: match types.has(TraceType::ParameterNames) {
                true => frame.parameter_names.as_deref(),
                false => None,
            },
            arguments: match &frame.arguments {
                Some(values) if types.has(TraceType::Arguments) => Some(values.arguments()),
                _ => None,
            },
            location: url(types, TraceType::Location, frame.location.as_ref()),
            depth: types.has(TraceType::Depth).then_some(frame.depth),
            goroutine: frame.goroutine,
            hit_count: types.has(TraceType::HitCount).then_some(hits),
            black_boxed: types
                .has(TraceType::BlackBoxed)
                .then_some(frame.location.is_none()),
            inferred: frame.inferred,
        };
        out.put(&packet);
    }

    /// A frame is left. Those that were entered within it, on its stack, are over by then, whether that was told or not; one
    /// that was entered before tracing began was never told.
    pub fn exited(&mut self, frame: &Exited, out: &mut impl PacketSink) {
        let State::Tracing(tracing) = &mut self.state else {
            return;
        };
        let own = Open {
            function: frame.function,
            depth: frame.depth,
            goroutine: frame.goroutine,
        };
        let Some(at) = tracing.open.iter().rposition(|open| *open == own) else {
            return;
        };
        let is_within = |open: &Open| open.goroutine == own.goroutine;
        for within in (at + 1..tracing.open.len()).rev() {
            if tracing.open.get(within).is_some_and(is_within) {
                let open = tracing.open.remove(within);
                tracing.exit(&self.id, &open.terminated(frame.at_ns), out);
            }
        }
        tracing.open.remove(at);
        tracing.exit(&self.id, frame, out);
    }

    /// All frames that are open end: their thread does, or what becomes of them can't be told.
    pub fn terminated(&mut self, at_ns: u64, out: &mut impl PacketSink) {
        if let State::Tracing(tracing) = &mut self.state {
            while let Some(open) = tracing.open.pop() {
                tracing.exit(&self.id, &open.terminated(at_ns), out);
            }
        }
    }
}

impl Open {
    /// Its end, which nobody saw.
    fn terminated(self, at_ns: u64) -> Exited {
        Exited {
            function: self.function,
            depth: self.depth,
            goroutine: self.goroutine,
            at_ns,
            why: Why::Terminated,
            value: None,
            inferred: true,
        }
    }
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

impl Tracing {
    fn unite(&mut self) {
        let all = self.traces.iter().map(|trace| trace.types);
        self.types = all.fold(TraceTypes::NONE, TraceTypes::union);
    }

    fn next(&mut self) -> u64 {
        let sequence = self.sequence;
        self.sequence += 1;
        sequence
    }

    /// Milliseconds since tracing began.
    fn time(&self, at_ns: u64) -> f64 {
        at_ns.saturating_sub(self.since_ns) as f64 / 1e6
    }

    fn exit(&mut self, id: &str, frame: &Exited, out: &mut impl PacketSink) {
        let types = self.types;
        let value = |why, one| match &frame.value {
            Some(value) if frame.why == why && types.has(one) => Some(value.completion()),
            _ => None,
        };
        let packet = ExitedFrame {
            from: id,
            kind: "exitedFrame",
            sequence: self.next(),
            why: frame.why,
            time: types.has(TraceType::Time).then(|| self.time(frame.at_ns)),
            returned: value(Why::Return, TraceType::Return),
            thrown: value(Why::Exception, TraceType::Throw),
            yielded: value(Why::Yield, TraceType::Yield),
            depth: types.has(TraceType::Depth).then_some(frame.depth),
            goroutine: frame.goroutine,
            inferred: frame.inferred,
        };
        out.put(&packet);
    }
}

fn wrong_state(text: &str) -> ErrorReply {
    ErrorReply::new(ErrorName::WrongState, text)
}

/// The types that a request asks for.
fn types(packet: &Packet) -> Result<TraceTypes, ErrorReply> {
    let list = packet.get("trace");
    let list = list.ok_or_else(|| ErrorReply::missing("trace"))?;
    let wrong = || ErrorReply::bad_type("trace", "a list of trace types");
    let list = list.as_array().ok_or_else(wrong)?;
    let names: Option<Vec<&str>> = list.iter().map(Json::as_str).collect();
    TraceTypes::read(names.ok_or_else(wrong)?)
        .map_err(|unknown| ErrorReply::new(ErrorName::NoSuchTraceType, unknown.to_string()))
}

/// The name that a request gives; an empty one is none.
fn name(packet: &Packet) -> Result<Option<String>, ErrorReply> {
    match packet.get("name") {
        None | Some(Json::Null) => Ok(None),
        Some(Json::String(name)) if name.is_empty() => Ok(None),
        Some(Json::String(name)) => Ok(Some(name.clone())),
        Some(_) => Err(ErrorReply::bad_type("name", "text")),
    }
}

/// A place, if it is wanted and known.
fn url(types: TraceTypes, wanted: TraceType, place: Option<&Place<'_>>) -> Option<SourceLocation> {
    let place = place.filter(|_| types.has(wanted))?;
    Some(SourceLocation {
        url: file_url(&place.path),
        line: (place.line > 0).then_some(place.line),
    })
}

/// `file://` and the path, with what a URL does not take as it is in percent.
fn file_url(path: &str) -> String {
    let mut url = String::with_capacity(path.len() + 8);
    url.push_str(match path.starts_with('/') {
        true => "file://",
        // A path that is relative to nobody knows what: not one from the root.
        false => "file:",
    });
    for byte in path.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => url.push(char::from(byte)),
            b'/' | b'-' | b'.' | b'_' | b'~' | b'+' | b',' | b'=' | b'@' | b':' => {
                url.push(char::from(byte));
            }
            byte => url.push_str(&format!("%{byte:02X}")),
        }
    }
    url
}

/// A packet, and who says it.
#[derive(Serialize)]
struct Said<'a, T> {
    from: &'a str,
    #[serde(flatten)]
    what: T,
}

#[derive(Serialize)]
struct Plain {
    #[serde(rename = "type")]
    kind: &'static str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Attached {
    #[serde(rename = "type")]
    kind: &'static str,
    trace_types: TraceTypes,
}

#[derive(Serialize)]
struct Started<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    why: &'static str,
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    tracing: Option<TraceTypes>,
    #[serde(flatten)]
    about: &'a Map<String, Json>,
}

#[derive(Serialize)]
struct Stopped<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    why: &'static str,
    name: &'a str,
}

#[derive(Serialize)]
struct SourceLocation {
    url: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u32>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct EnteredFrame<'a> {
    from: &'a str,
    #[serde(rename = "type")]
    kind: &'static str,
    sequence: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a std::borrow::Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    callsite: Option<SourceLocation>,
    #[serde(skip_serializing_if = "Option::is_none")]
    time: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    parameter_names: Option<&'a [std::borrow::Cow<'a, str>]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    arguments: Option<Json>,
    #[serde(skip_serializing_if = "Option::is_none")]
    location: Option<SourceLocation>,
    #[serde(skip_serializing_if = "Option::is_none")]
    depth: Option<u32>,
    #[serde(skip_serializing_if = "is_zero")]
    goroutine: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    hit_count: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    black_boxed: Option<bool>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    inferred: bool,
}

#[derive(Serialize)]
struct ExitedFrame<'a> {
    from: &'a str,
    #[serde(rename = "type")]
    kind: &'static str,
    sequence: u64,
    why: Why,
    #[serde(skip_serializing_if = "Option::is_none")]
    time: Option<f64>,
    #[serde(rename = "return", skip_serializing_if = "Option::is_none")]
    returned: Option<Json>,
    #[serde(rename = "throw", skip_serializing_if = "Option::is_none")]
    thrown: Option<Json>,
    #[serde(rename = "yield", skip_serializing_if = "Option::is_none")]
    yielded: Option<Json>,
    #[serde(skip_serializing_if = "Option::is_none")]
    depth: Option<u32>,
    #[serde(skip_serializing_if = "is_zero")]
    goroutine: u32,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    inferred: bool,
}

#[cfg(test)]
mod tests;
