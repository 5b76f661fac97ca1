//! Firefox Profiler: its processed profile, with samples of each thread in time and markers for all else.
//!
//! Input: events; output: JSON of version 60 of the processed format, in which threads share their tables. Times are
//! milliseconds since the recording began, CPU time is nanoseconds. Memory: the format has what a thread did together,
//! so samples are kept, packed, and so are markers. The mapping, and what is lost: docs/formats/firefox.md.

mod markers;
mod tables;

use std::collections::BTreeMap;
use std::io::{self, BufWriter, Write};

use rustc_hash::FxHashMap;
use serde_json::json;

use super::about::About;
use super::collect::{Count, SOURCE, choose, count};
use super::json;
use super::runs::Keys;
use super::settings::{Setting, Settings};
use super::timed::Timed;
use super::{Format, Output, ShownSources, Shows};
use crate::derive::{Sources, container_label_of};
use markers::{Marker, Markers};
use profiler_model::*;
use tables::{CATEGORIES, Shared};

pub(super) const FORMAT: Format = Format {
    name: "firefox",
    extensions: &[".firefox.json", ".profile.json"],
    description: "Firefox Profiler (profiler.firefox.com): threads in time, with waits and calls as markers",
    shows: Shows::SamplesAndCalls,
    sources: ShownSources::One,
    options: &[&COUNT, &SOURCE],
    sink: |settings, output| Box::new(Firefox::new(settings, output)),
    difference: None,
    declared: false,
};

const COUNT: Setting<Count> = count(
    "what a sample weighs: 1, or what it stands for in the unit of its source (default: samples; weight where \
     there are waits)",
);

/// The version of the processed format that is written: the first in which threads share tables.
const VERSION: u32 = 60;

struct Firefox {
    count: Option<Count>,
    wanted: Option<String>,
    keys: Keys,
    rows: BTreeMap<StackOwner, Row>,
    markers: Markers,
    about: About,
    output: BufWriter<Output>,
}

/// What a thread did, or what was called on a goroutine.
#[derive(Default)]
struct Row {
    samples: Timed,
    markers: Vec<Marker>,
}

/// What of the recording is shown, and how.
struct Shown<'a> {
    /// By keys; none of what is not wanted.
    stacks: Vec<Option<Option<u32>>>,
    unit: Count,
    sources: Sources,
    tables: &'a Tables,
    zero: Timestamp,
}

/// Who a row of the file is.
struct Who {
    name: String,
    is_main: bool,
    process: String,
    pid: String,
    tid: String,
    process_started: u64,
    started: u64,
}

impl Firefox {
    fn new(settings: &Settings, output: Output) -> Firefox {
        Firefox {
            count: settings.get(&COUNT),
            wanted: settings.get(&SOURCE),
            keys: Keys::default(),
            rows: BTreeMap::new(),
            markers: Markers::default(),
            about: About::default(),
            output: BufWriter::new(output),
        }
    }

    fn meta(
        &mut self,
        tables: &Tables,
        sources: Sources,
        notes: &[String],
        zero: Timestamp,
    ) -> io::Result<()> {
        let session = &tables.session;
        let source = sources.main.and_then(|id| tables.sources.get(id));
        let by_frequency = source.and_then(|source| {
            let hz = source.frequency_hz?;
            (1_000_000_000_u64).checked_div(hz)
        });
        let by_period = source
            .filter(|source| source.unit == Unit::Nanoseconds)
            .and_then(|source| source.period);
        let interval = by_frequency.or(by_period).unwrap_or(1_000_000).max(1);
        let started = self.about.wall_ns(zero).unwrap_or(0);
        let category = |(name, color): &(&str, &str)| json!({"name": name, "color": color, "subcategories": ["Other"]});
        let categories: Vec<_> = CATEGORIES.iter().map(category).collect();
        let notes: Vec<_> = notes
            .iter()
            .map(|note| match note.split_once(": ") {
                Some((label, text)) => {
                    json!({"label": label, "format": "string", "value": text})
                }
                None => json!({"label": "note", "format": "string", "value": note}),
            })
            .collect();
        let out = &mut self.output;
        write!(
            out,
            "{{\"meta\":{{\"interval\":{},\"startTime\":{}",
            json::ms(interval),
            json::ms(started)
        )?;
        let rest = json!({
            "preprocessedProfileVersion": VERSION,
            "version": 24,
            "processType": 0,
            "product": session.target,
            "importedFrom": format!("profiler {}", session.version),
            "arguments": session.command.join(" "),
            "oscpu": format!("Linux {} {}", session.kernel, session.arch),
            "device": session.host,
            "logicalCPUs": session.cpus,
            "stackwalk": 1,
            "debug": false,
            "symbolicated": true,
            "usesOnlyOneStackType": true,
            "sourceCodeIsNotOnSearchfox": true,
            "keepProfileThreadOrder": true,
            "extensions": {"length": 0, "baseURL": [], "id": [], "name": []},
            "sampleUnits": {"time": "ms", "eventDelay": "ms", "threadCPUDelta": "ns"},
            "categories": categories,
            "markerSchema": markers::schema(),
            "extra": [{"label": "Recording", "entries": notes}],
        });
        // One object of both.
        let rest = rest.to_string();
        write!(
            out,
            ",{},\n\"pages\":[],\"threads\":[",
            rest.trim_start_matches('{')
        )
    }

    fn thread(
        &mut self,
        who: &Who,
        row: &Row,
        shared: &mut Shared,
        shown: &Shown<'_>,
    ) -> io::Result<()> {
        let &Shown {
            ref stacks,
            unit,
            sources,
            tables,
            zero,
        } = shown;
        let out = &mut self.output;
        let since = |at: Timestamp| at.since(zero);
        let shown = || {
            row.samples.iter(&self.keys.aside).filter_map(|sample| {
                let stack = stacks.get(sample.key as usize).copied().flatten()?;
                Some((sample, stack))
            })
        };
        let is_time = sources.unit(tables) == Some(Unit::Nanoseconds);
        let calls = row.markers.iter().any(Marker::is_call);
        out.write_all(b"\n{\"name\":")?;
        json::value(out, &who.name)?;
        write!(
            out,
            ",\"isMainThread\":{},\"processType\":\"default\",\"processName\":",
            who.is_main
        )?;
        json::value(out, &who.process)?;
        out.write_all(b",\"pid\":")?;
        json::value(out, &who.pid)?;
        out.write_all(b",\"tid\":")?;
        json::value(out, &who.tid)?;
        write!(
            out,
            ",\"processStartupTime\":{},\"processShutdownTime\":null,\"registerTime\":{},\
             \"unregisterTime\":null,\"pausedRanges\":[],\"showMarkersInTimeline\":{calls},\"samples\":",
            json::ms(since(Timestamp(who.process_started))),
            json::ms(since(Timestamp(who.started))),
        )?;
        let kind = match unit {
            Count::Weight if is_time => "tracing-ms",
            _ => "samples",
        };
        let len = shown().count();
        write!(out, "{{\"length\":{len},\"weightType\":\"{kind}\"")?;
        json::column(out, "stack", shown().map(|(_, stack)| json::OrNull(stack)))?;
        let times = shown().map(|(sample, _)| json::ms(since(sample.at)));
        json::column(out, "time", times)?;
        match (unit, is_time) {
            (Count::Samples, _) => {
                json::column(out, "weight", shown().map(|(sample, _)| sample.count))?;
            }
            (Count::Weight, true) => {
                let weights = shown().map(|(sample, _)| json::ms(sample.weight));
                json::column(out, "weight", weights)?;
            }
            (Count::Weight, false) => {
                json::column(out, "weight", shown().map(|(sample, _)| sample.weight))?;
            }
        }
        if is_time {
            let keys = self.keys.all();
            let ran = |key: u32| keys.get(key as usize).is_some_and(|key| key.wait.is_none());
            let cpu = shown().map(|(sample, _)| if ran(sample.key) { sample.weight } else { 0 });
            json::column(out, "threadCPUDelta", cpu)?;
        }
        out.write_all(b"},\n\"markers\":")?;
        self.markers
            .write(out, &row.markers, shared, tables, zero)?;
        out.write_all(b"}")
    }

    fn whole(&mut self, tables: &Tables) -> io::Result<()> {
        let sources = choose(&self.keys.sources, self.wanted.as_deref(), tables)?;
        let has_waits = self
            .keys
            .all()
            .iter()
            .any(|key| key.wait.is_some() && sources.has(key.source, tables));
        let by_default = if has_waits {
            Count::Weight
        } else {
            Count::Samples
        };
        let unit = self.count.unwrap_or(by_default);
        let mut shared = Shared::new(tables);
        let mut unnamed = Vec::new();
        let mut stacks = Vec::new();
        for key in self.keys.all() {
            let wanted = sources.has(key.source, tables);
            let (node, named) = match wanted {
                true => shared.stack(key, tables),
                false => (None, true),
            };
            stacks.push(wanted.then_some(node));
            unnamed.push(!named);
        }
        let rows = self.rows.values();
        let samples = rows.flat_map(|row| row.samples.iter(&self.keys.aside));
        let unnamed = samples
            .filter(|sample| unnamed.get(sample.key as usize) == Some(&true))
            .map(|sample| u64::from(sample.count))
            .sum();
        let notes = self.about.notes_in_time(tables, unnamed);
        let zero = match tables.session.started {
            Timestamp(0) => self.about.first(tables),
            started => started.min(self.about.first(tables)),
        };
        for (owner, marker) in self.markers.open(self.about.last()) {
            self.rows.entry(owner).or_default().markers.push(marker);
        }
        self.meta(tables, sources, &notes, zero)?;
        let shown = Shown {
            stacks,
            unit,
            sources,
            tables,
            zero,
        };
        let mut first = true;
        let of_none = self.markers.of_none();
        if !of_none.is_empty() {
            let (who, row) = recording(of_none);
            self.thread(&who, &row, &mut shared, &shown)?;
            first = false;
        }
        let mut rows: Vec<_> = std::mem::take(&mut self.rows).into_iter().collect();
        rows.sort_by_cached_key(|(owner, _)| order(*owner, tables));
        let mut lives = Lives::default();
        for (owner, row) in rows {
            if !first {
                self.output.write_all(b",")?;
            }
            first = false;
            let who = lives.who(owner, tables);
            self.thread(&who, &row, &mut shared, &shown)?;
        }
        self.output.write_all(b"],\n")?;
        shared.write(&mut self.output, tables)?;
        self.output.write_all(b"}\n")?;
        self.keys.aside.check()?;
        self.output.flush()
    }
}

impl Sink for Firefox {
    fn event(&mut self, event: &Event, tables: &Tables) -> io::Result<()> {
        self.about.event(event);
        if let Event::Sample(sample) = event {
            let thread = StackOwner::Thread(sample.thread);
            let row = self.rows.entry(thread).or_default();
            self.keys.time(sample, tables, &mut row.samples);
        }
        if let Some((owner, marker)) = self.markers.event(event, tables) {
            self.rows.entry(owner).or_default().markers.push(marker);
        }
        Ok(())
    }

    fn finish(&mut self, tables: &Tables) -> io::Result<()> {
        self.whole(tables)
    }
}

/// The row of what is no thread's.
fn recording(markers: Vec<Marker>) -> (Who, Row) {
    let name = "recording".to_owned();
    let who = Who {
        process: name.clone(),
        name,
        is_main: true,
        pid: "recording".to_owned(),
        tid: "recording".to_owned(),
        process_started: 0,
        started: 0,
    };
    let row = Row {
        markers,
        ..Row::default()
    };
    (who, row)
}

/// Processes by when they began, the threads of each together, its first one in front, goroutines behind them.
fn order(
    owner: StackOwner,
    tables: &Tables,
) -> (Timestamp, Option<ProcessId>, bool, Timestamp, StackOwner) {
    let Some(id) = owner.process(tables) else {
        return (Timestamp(u64::MAX), None, true, Timestamp(0), owner);
    };
    let process = tables.process(id);
    let (is_other, started) = match owner {
        StackOwner::Thread(thread) => {
            let thread = tables.thread(thread);
            let pid = process.map(|process| process.pid.0);
            let is_main = pid.is_some() && pid == thread.map(|thread| thread.tid.0);
            (!is_main, thread.map_or(Timestamp(0), |it| it.started))
        }
        StackOwner::Goroutine(..) => (true, Timestamp(u64::MAX)),
    };
    let began = process.map_or(Timestamp(0), |process| process.started);
    (began, Some(id), is_other, started, owner)
}

/// Numbers are used again by later processes and threads; the file tells rows apart by them.
#[derive(Default)]
struct Lives {
    pids: FxHashMap<Pid, Vec<ProcessId>>,
    tids: FxHashMap<Tid, u32>,
}

impl Lives {
    fn who(&mut self, owner: StackOwner, tables: &Tables) -> Who {
        let name = owner.name(tables).into_owned();
        let Some(id) = owner.process(tables) else {
            let tid = match owner {
                StackOwner::Thread(id) => format!("unknown {}", id.index()),
                StackOwner::Goroutine(..) => format!("unknown {name}"),
            };
            return Who {
                name,
                is_main: true,
                process: "unknown".to_owned(),
                pid: tid.clone(),
                tid,
                process_started: 0,
                started: 0,
            };
        };
        let process = tables.process(id);
        let pid = process.map_or(Pid(0), |process| process.pid);
        let lives = self.pids.entry(pid).or_default();
        let life = lives.iter().position(|known| *known == id);
        let life = life.unwrap_or_else(|| {
            lives.push(id);
            lives.len() - 1
        });
        let process_started = process.map_or(0, |process| process.started.0);
        let (tid, is_main, started) = match owner {
            StackOwner::Thread(id) => {
                let thread = tables.thread(id);
                let tid = thread.map_or(Tid(0), |thread| thread.tid);
                let lives = self.tids.entry(tid).or_default();
                *lives += 1;
                let number = numbered(tid.0, *lives as usize - 1);
                let started = thread.map_or(0, |thread| thread.started.0);
                (number, pid.0 == tid.0, started)
            }
            // Of all processes: they are told apart by their tids alone.
            StackOwner::Goroutine(..) => {
                let tid = format!("{name} of {}", numbered(pid.0, life));
                (tid, false, process_started)
            }
        };
        let comm = process.map_or("", |process| tables.string(process.name));
        let container = process.and_then(|process| container_label_of(tables, process));
        Who {
            name,
            is_main,
            process: container.map_or(comm.to_owned(), |label| format!("{comm} ({label})")),
            pid: numbered(pid.0, life),
            tid,
            process_started,
            started,
        }
    }
}

/// `12`, and of what has the number next `12.1`.
fn numbered(number: u32, life: usize) -> String {
    match life {
        0 => number.to_string(),
        life => format!("{number}.{life}"),
    }
}
