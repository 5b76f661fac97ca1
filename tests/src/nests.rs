//! Traced calls as formats nest them: files -> on which row, in which function, how deep.
//!
//! What a viewer would show is counted here by reading each format by itself: how deep a call is follows from the times or
//! the order of what is open on its row, never from a field that says so. Whatever does not nest, or ends without a begin, is an
//! error. Times are as the formats have them. What does not belong here: what is expected.

use std::collections::BTreeMap;

use profiler_wire::Message;
use profiler_wire::bytefrog::AgentMessage;
use profiler_wire::perfetto::{Data, Trace, kind};
use serde_json::Value as Json;

/// Calls by row, function and depth.
pub type Nests = BTreeMap<(String, String, usize), u64>;

/// Formats that can be read.
pub const FORMATS: [&str; 7] = [
    "chrome-trace",
    "firefox",
    "perfetto",
    "speedscope",
    "trace-actor",
    "bytefrog",
    "go-trace",
];

/// Counts what a file of a format says.
pub fn read(format: &str, file: &[u8]) -> Result<Nests, String> {
    match format {
        "chrome-trace" => chrome_trace(file),
        "firefox" => firefox(file),
        "perfetto" => perfetto(file),
        "speedscope" => speedscope(file),
        "trace-actor" => trace_actor(file),
        "bytefrog" => bytefrog(file),
        "go-trace" => go_trace(file),
        other => Err(format!("no reader of {other}")),
    }
}

/// Begins and ends on rows, by what tells rows apart.
#[derive(Default)]
struct Rows {
    names: BTreeMap<String, String>,
    open: BTreeMap<String, Vec<String>>,
    nests: Nests,
}

impl Rows {
    fn name(&mut self, row: String, name: &str) {
        self.names.insert(row, name.to_owned());
    }

    fn begin(&mut self, row: &str, function: &str) {
        let open = self.open.entry(row.to_owned()).or_default();
        let key = (row.to_owned(), function.to_owned(), open.len());
        *self.nests.entry(key).or_default() += 1;
        open.push(function.to_owned());
    }

    fn end(&mut self, row: &str, function: Option<&str>) -> Result<(), String> {
        let open = self.open.get_mut(row).and_then(Vec::pop);
        let open = open.ok_or(format!("{row}: an end without a begin"))?;
        match function {
            Some(function) if function != open => {
                Err(format!("{row}: the end of {function} within {open}"))
            }
            _ => Ok(()),
        }
    }

    fn done(self) -> Result<Nests, String> {
        match self.open.iter().find(|(_, open)| !open.is_empty()) {
            Some((row, open)) => Err(format!("{row}: {open:?} is open at the end")),
            None => {
                let mut named = Nests::new();
                for ((row, function, depth), calls) in self.nests {
                    let name = self.names.get(&row);
                    let name = name.ok_or(format!("{row} has no name"))?.clone();
                    *named.entry((name, function, depth)).or_default() += calls;
                }
                Ok(named)
            }
        }
    }
}

/// From when to when each call of a row lasts -> begins and ends.
fn spans(mut rows: Rows, all: BTreeMap<String, Vec<(u64, u64, String)>>) -> Result<Nests, String> {
    for (row, mut spans) in all {
        spans.sort_by_key(|(from, to, _)| (*from, std::cmp::Reverse(*to)));
        let mut ends: Vec<u64> = Vec::new();
        for (from, to, function) in spans {
            while ends.pop_if(|end| *end <= from).is_some() {
                rows.end(&row, None)?;
            }
            if ends.last().is_some_and(|end| *end < to) {
                return Err(format!(
                    "{row}: {function} from {from} to {to} does not nest"
                ));
            }
            rows.begin(&row, &function);
            ends.push(to);
        }
        for _ in ends {
            rows.end(&row, None)?;
        }
    }
    rows.done()
}

fn json(file: &[u8]) -> Result<Json, String> {
    serde_json::from_slice(file).map_err(|error| error.to_string())
}

fn list<'a>(value: &'a Json, name: &str) -> Result<&'a Vec<Json>, String> {
    value[name].as_array().ok_or(format!("no {name}"))
}

fn ns(value: &Json, unit_ns: f64) -> u64 {
    (value.as_f64().unwrap_or(0.0) * unit_ns).round() as u64
}

fn text(value: &Json) -> &str {
    value.as_str().unwrap_or("")
}

fn chrome_trace(file: &[u8]) -> Result<Nests, String> {
    let file = json(file)?;
    let events = list(&file, "traceEvents")?;
    let row = |event: &Json| format!("{} {}", event["pid"], event["tid"]);
    let named = events.iter().filter(|event| event["name"] == "thread_name");
    let mut rows = Rows::default();
    for event in named {
        rows.name(row(event), text(&event["args"]["name"]));
    }
    let mut all: BTreeMap<String, Vec<_>> = BTreeMap::new();
    for event in events.iter().filter(|event| event["ph"] == "X") {
        let from = ns(&event["ts"], 1e3);
        let span = (
            from,
            from + ns(&event["dur"], 1e3),
            text(&event["name"]).to_owned(),
        );
        all.entry(row(event)).or_default().push(span);
    }
    spans(rows, all)
}

fn firefox(file: &[u8]) -> Result<Nests, String> {
    let file = json(file)?;
    let texts = list(&file["shared"], "stringArray")?;
    let mut rows = Rows::default();
    let mut all: BTreeMap<String, Vec<_>> = BTreeMap::new();
    for thread in list(&file, "threads")? {
        let key = format!("{} {}", thread["pid"], thread["tid"]);
        rows.name(key.clone(), text(&thread["name"]));
        let markers = &thread["markers"];
        for (index, data) in list(markers, "data")?.iter().enumerate() {
            if data["type"] != "Call" {
                continue;
            }
            let name = markers["name"][index].as_u64().unwrap_or(0) as usize;
            let from = ns(&markers["startTime"][index], 1e6);
            let to = ns(&markers["endTime"][index], 1e6);
            let row = all.entry(key.clone()).or_default();
            row.push((from, to, texts.get(name).map_or("", text).to_owned()));
        }
    }
    spans(rows, all)
}

fn perfetto(file: &[u8]) -> Result<Nests, String> {
    let trace = Trace::decode(file).map_err(|error| error.to_string())?;
    let mut names: BTreeMap<(u32, u64), String> = BTreeMap::new();
    let mut rows = Rows::default();
    for packet in trace.packet {
        let sequence = packet.trusted_packet_sequence_id;
        for it in packet.interned_data.unwrap_or_default().event_names {
            names.insert((sequence, it.iid), it.name);
        }
        match packet.data {
            Some(Data::TrackDescriptor(track)) => {
                let thread = track.thread.map(|thread| thread.thread_name);
                let name = track.name.or(thread).unwrap_or_default();
                rows.name(track.uuid.to_string(), &name);
            }
            Some(Data::TrackEvent(event)) => {
                let row = &event.track_uuid.to_string();
                if event.r#type == kind::BEGIN {
                    let name = event.name_iid.and_then(|iid| names.get(&(sequence, iid)));
                    rows.begin(row, name.ok_or("no such name")?);
                } else if event.r#type == kind::END {
                    rows.end(row, None)?;
                }
            }
            _ => {}
        }
    }
    rows.done()
}

fn speedscope(file: &[u8]) -> Result<Nests, String> {
    let file = json(file)?;
    let frames = list(&file["shared"], "frames")?;
    let mut rows = Rows::default();
    let profiles = list(&file, "profiles")?.iter();
    for profile in profiles.filter(|profile| profile["type"] == "evented") {
        let row = text(&profile["name"]);
        let name = row.trim_start_matches("calls of ");
        let name = name.split([' ', '(']).next().unwrap_or("");
        let name = match row.split_once("goroutine ") {
            Some((_, number)) => &format!("goroutine {}", number.split(' ').next().unwrap_or("")),
            None => name,
        };
        rows.name(row.to_owned(), name);
        for event in list(profile, "events")? {
            let frame = event["frame"].as_u64().unwrap_or(0) as usize;
            let function = frames.get(frame).map_or("", |frame| text(&frame["name"]));
            match text(&event["type"]) {
                "O" => rows.begin(row, function),
                _ => rows.end(row, Some(function))?,
            }
        }
    }
    rows.done()
}

fn trace_actor(file: &[u8]) -> Result<Nests, String> {
    let mut rows = Rows::default();
    for line in file
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty())
    {
        let packet = json(line)?;
        let from = text(&packet["from"]).to_owned();
        let row = match packet["goroutine"].as_u64() {
            Some(number) => {
                let row = format!("{from} {number}");
                rows.name(row.clone(), &format!("goroutine {number}"));
                row
            }
            None => from.clone(),
        };
        match text(&packet["type"]) {
            "startedTrace" => rows.name(from, text(&packet["threadName"])),
            "enteredFrame" => {
                let open = rows.open.get(&row).map_or(0, Vec::len);
                if packet["depth"] != open {
                    return Err(format!("{row}: {packet} within {open}"));
                }
                rows.begin(&row, text(&packet["name"]));
            }
            "exitedFrame" => rows.end(&row, None)?,
            _ => {}
        }
    }
    rows.done()
}

fn bytefrog(mut file: &[u8]) -> Result<Nests, String> {
    let mut methods = BTreeMap::new();
    let (mut rows, mut calls) = (Rows::default(), Vec::new());
    while let Some((message, len)) = AgentMessage::decode(file).map_err(|it| it.to_string())? {
        match message {
            AgentMessage::MapThreadName { thread, name, .. } => {
                // Of several processes: `goroutine 7 [12]`.
                let name = name.split(" [").next().unwrap_or("");
                rows.name(thread.to_string(), name);
            }
            AgentMessage::MapMethodSignature { method, signature } => {
                let name = signature.split(" [").next().unwrap_or("").to_owned();
                methods.insert(method, name);
            }
            AgentMessage::MethodEntry { method, thread, .. } => calls.push((thread, method, true)),
            AgentMessage::MethodExit { method, thread, .. }
            | AgentMessage::ExceptionBubble { method, thread, .. } => {
                calls.push((thread, method, false));
            }
            _ => {}
        }
        file = &file[len..];
    }
    for (thread, method, enters) in calls {
        let row = &thread.to_string();
        let function = methods.get(&method).ok_or("a method without a name")?;
        match enters {
            true => rows.begin(row, function),
            false => rows.end(row, Some(function))?,
        }
    }
    rows.done()
}

/// The text of a trace of one generation.
fn go_trace(file: &[u8]) -> Result<Nests, String> {
    let file = std::str::from_utf8(file).map_err(|error| error.to_string())?;
    let value = |line: &str, name: &str| -> Option<String> {
        let mut words = line.split_whitespace();
        Some(
            words
                .find_map(|word| word.strip_prefix(&format!("{name}=")))?
                .to_owned(),
        )
    };
    // Names of strings and stacks come behind what refers to them.
    let (mut strings, mut stacks) = (BTreeMap::new(), BTreeMap::new());
    let mut lines = file.lines().map(str::trim).peekable();
    while let Some(line) = lines.next() {
        let next = lines.peek().copied().unwrap_or("");
        if let Some(id) = value(line, "id") {
            if line.starts_with("String ") {
                let data = next.strip_prefix("data=").unwrap_or("");
                let data: String = serde_json::from_str(data).map_err(|it| it.to_string())?;
                strings.insert(id, data);
            } else if line.starts_with("Stack ") {
                stacks.insert(id, value(next, "func").unwrap_or_default());
            }
        }
    }
    let (mut rows, mut running) = (Rows::default(), BTreeMap::new());
    for line in file.lines().filter(|line| line.starts_with("GoCreate ")) {
        let stack = value(line, "new_stack").and_then(|id| stacks.get(&id));
        let name = stack.and_then(|id| strings.get(id)).cloned();
        let g = value(line, "new_g").unwrap_or_default();
        rows.name(g, &name.unwrap_or_default());
    }
    let mut m = None;
    for line in file.lines() {
        if line.starts_with("EventBatch ") {
            m = value(line, "m");
        } else if line.starts_with("GoStart ") {
            running.insert(m.clone(), value(line, "g"));
        }
        let row = running.get(&m).cloned().flatten().unwrap_or_default();
        let function = value(line, "name_string").and_then(|id| strings.get(&id));
        let function = function.map_or("", String::as_str);
        if line.starts_with("UserRegionBegin ") {
            rows.begin(&row, function);
        } else if line.starts_with("UserRegionEnd ") {
            rows.end(&row, Some(function))?;
        }
    }
    rows.done()
}
