//! Chrome's trace events: samples as profiles of each thread, calls and waits as slices, the rest as instants.
//!
//! Input: events; output: JSON of the trace event format, for DevTools, ui.perfetto.dev, speedscope, chrome://tracing. Times are microseconds
//! of CLOCK_MONOTONIC. Slices are written as they come; samples are kept, packed, and written at the end. The mapping, and
//! what is lost: docs/formats/chrome-trace.md.

use std::collections::BTreeMap;
use std::io::{self, BufWriter, Write};

use rustc_hash::{FxHashMap, FxHashSet};
use serde_json::{Map, Value as Json, json};

use super::about::About;
use super::collect::{SOURCE, choose};
use super::cpuprofile::{Item, call_frame};
use super::functions::StackFunctions;
use super::json;
use super::notes::{OpenSlices, ended, note, thread_text};
use super::runs::Keys;
use super::settings::Settings;
use super::timed::{Moment, Timed};
use super::tree::Tree;
use super::{Format, Output, ShownSources, Shows};
use crate::derive::{Functions, arguments_text, container_label_of};
use profiler_model::*;

pub(super) const FORMAT: Format = Format {
    name: "chrome-trace",
    extensions: &[".trace.json", ".chrome.json"],
    description: "trace events of Chrome: threads in time, calls and waits as slices",
    shows: Shows::SamplesAndCalls,
    sources: ShownSources::One,
    options: &[&SOURCE],
    sink: |settings, output| Box::new(ChromeTrace::new(settings, output)),
    difference: None,
    declared: false,
};

/// The number of the node that all others are below, and of a node of the tree.
const ROOT: u32 = 1;

fn number_of(node: u32) -> u32 {
    node + ROOT + 1
}

/// Goroutines have numbers of threads from here on: the kernel gives smaller ones (`PID_MAX_LIMIT`).
const FIRST_GOROUTINE: u64 = 1 << 22;

/// Samples in one event.
const CHUNK: usize = 10_000;

struct ChromeTrace {
    wanted: Option<String>,
    keys: Keys,
    threads: BTreeMap<ThreadId, Timed>,
    open: OpenSlices,
    /// Numbers of their rows.
    goroutines: FxHashMap<StackOwner, u64>,
    functions: Functions,
    waits: u64,
    about: About,
    /// Whether anything was written.
    begun: bool,
    output: BufWriter<Output>,
}

impl ChromeTrace {
    fn new(settings: &Settings, output: Output) -> ChromeTrace {
        ChromeTrace {
            wanted: settings.get(&SOURCE),
            keys: Keys::default(),
            threads: BTreeMap::new(),
            open: OpenSlices::default(),
            goroutines: FxHashMap::default(),
            functions: Functions::default(),
            waits: 0,
            about: About::default(),
            begun: false,
            output: BufWriter::new(output),
        }
    }

    /// Begins an event: `{"ph":..,"pid":..,"tid":..,"ts":..`.
    fn begin(
        &mut self,
        kind: &str,
        whose: Option<StackOwner>,
        at: Timestamp,
        tables: &Tables,
    ) -> io::Result<()> {
        let process = whose.and_then(|whose| whose.process(tables));
        let process = process.and_then(|id| tables.process(id));
        let pid = process.map_or(0, |process| process.pid.0);
        let tid = whose.map_or(0, |whose| self.row(whose, tables));
        let before = if self.begun {
            ",\n"
        } else {
            "{\"traceEvents\":[\n"
        };
        self.begun = true;
        write!(
            self.output,
            "{before}{{\"ph\":\"{kind}\",\"pid\":{pid},\"tid\":{tid},\"ts\":{}",
            json::us(at.0)
        )
    }

    /// The number of a row.
    fn row(&mut self, whose: StackOwner, tables: &Tables) -> u64 {
        match whose {
            StackOwner::Thread(id) => tables.thread(id).map_or(0, |it| it.tid.0.into()),
            StackOwner::Goroutine(..) => {
                let next = FIRST_GOROUTINE + self.goroutines.len() as u64;
                *self.goroutines.entry(whose).or_insert(next)
            }
        }
    }

    /// Its name, its category, and what else is known; and ends it.
    fn end(&mut self, name: &str, category: &str, known: Map<String, Json>) -> io::Result<()> {
        let out = &mut self.output;
        write!(out, ",\"cat\":\"{category}\",\"name\":")?;
        json::value(out, name)?;
        out.write_all(b",\"args\":")?;
        json::value(out, &known)?;
        out.write_all(b"}")
    }

    fn call(&mut self, call: &Call, tables: &Tables) -> io::Result<()> {
        if self.functions.is_empty() {
            self.functions = Functions::of(tables);
        }
        let owner = StackOwner::of(call, tables);
        match &call.edge {
            CallEdge::Enter(values) => {
                self.open.enter(call, values, tables);
                Ok(())
            }
            CallEdge::Hit(values) => {
                self.begin("i", Some(owner), call.at, tables)?;
                self.output.write_all(b",\"s\":\"t\"")?;
                let mut known = Map::new();
                if let Some(values) = values.as_deref() {
                    arguments(&mut known, values, call.function, tables);
                }
                let name = self.functions.name(tables, call.function);
                self.end(&name, "call", known)
            }
            CallEdge::Exit(exit) => {
                let mut known = Map::new();
                if let Some(values) = self.open.exit(call, exit, tables) {
                    arguments(&mut known, &values, call.function, tables);
                }
                for (name, text) in ended(call, exit, tables) {
                    known.insert(name.to_owned(), text.into());
                }
                let began = exit.began.min(call.at);
                let name = self.functions.name(tables, call.function);
                self.slice(owner, began, call.at, &name, known, tables)
            }
        }
    }

    fn slice(
        &mut self,
        owner: StackOwner,
        from: Timestamp,
        to: Timestamp,
        name: &str,
        known: Map<String, Json>,
        tables: &Tables,
    ) -> io::Result<()> {
        self.begin("X", Some(owner), from, tables)?;
        write!(self.output, ",\"dur\":{}", json::us(to.since(from)))?;
        self.end(name, "call", known)
    }

    /// A wait, on a line of its own: it may have begun before the call around it did.
    fn wait(&mut self, sample: &Sample, wait: &Wait, tables: &Tables) -> io::Result<()> {
        self.waits += 1;
        let id = self.waits;
        let mut known = Map::new();
        known.insert("runnable_us".to_owned(), (wait.runnable_ns / 1000).into());
        if let Some(waker) = wait.waker {
            known.insert("waker".to_owned(), thread_text(waker, tables).into());
        }
        if wait.count > 1 {
            known.insert("count".to_owned(), wait.count.into());
        }
        let from = Timestamp(sample.at.0.saturating_sub(wait.ns));
        for (kind, at, known) in [("b", from, known), ("e", sample.at, Map::new())] {
            let whose = StackOwner::Thread(sample.thread);
            self.begin(kind, Some(whose), at, tables)?;
            write!(self.output, ",\"id\":\"{id:#x}\"")?;
            self.end(wait.state.name(), "wait", known)?;
        }
        Ok(())
    }

    fn names(&mut self, tables: &Tables) -> io::Result<()> {
        let mut of_threads = Vec::new();
        let mut of_processes = BTreeMap::new();
        for (id, thread) in tables.threads() {
            of_threads.push(StackOwner::Thread(id));
            if let Some(process) = tables.process(thread.process) {
                let first = (StackOwner::Thread(id), process);
                of_processes.entry(thread.process).or_insert(first);
            }
        }
        let mut goroutines: Vec<StackOwner> = self.goroutines.keys().copied().collect();
        goroutines.sort_unstable();
        of_threads.append(&mut goroutines);
        for (_, (first, process)) in of_processes {
            let comm = tables.string(process.name);
            self.metadata("process_name", "name", comm, first, tables)?;
            if let Some(container) = container_label_of(tables, process) {
                self.metadata("process_labels", "labels", &container, first, tables)?;
            }
        }
        for owner in of_threads {
            self.metadata("thread_name", "name", &owner.name(tables), owner, tables)?;
        }
        Ok(())
    }

    fn metadata(
        &mut self,
        kind: &str,
        key: &str,
        text: &str,
        whose: StackOwner,
        tables: &Tables,
    ) -> io::Result<()> {
        self.begin("M", Some(whose), Timestamp(0), tables)?;
        let mut known = Map::new();
        known.insert(key.to_owned(), text.into());
        self.end(kind, "__metadata", known)
    }

    /// The samples of a thread, in order of time, as a profile in pieces.
    fn profile(
        &mut self,
        profile: &Profile<'_>,
        samples: &mut impl Iterator<Item = (Timestamp, u32)>,
        tables: &Tables,
    ) -> io::Result<()> {
        let &Profile {
            number,
            thread,
            tree,
            functions,
        } = profile;
        let mut chunk: Vec<_> = samples.by_ref().take(CHUNK).collect();
        let Some(&(began, _)) = chunk.first() else {
            return Ok(());
        };
        let category = "disabled-by-default-v8.cpu_profiler";
        self.begin("P", Some(thread), began, tables)?;
        write!(
            self.output,
            ",\"id\":\"{number:#x}\",\"cat\":\"{category}\",\"name\":\"Profile\",\
             \"args\":{{\"data\":{{\"startTime\":{}}}}}}}",
            json::us(began.0)
        )?;
        let mut last = began;
        // Nodes of this profile. A node has the same number in all profiles: some readers take them for one.
        let mut known: FxHashSet<u32> = FxHashSet::default();
        let mut new = Vec::new();
        while !chunk.is_empty() {
            let at = chunk.last().map_or(began, |(at, _)| *at);
            self.begin("P", Some(thread), at, tables)?;
            write!(
                self.output,
                ",\"id\":\"{number:#x}\",\"cat\":\"{category}\",\"name\":\"ProfileChunk\",\
                 \"args\":{{\"data\":{{\"cpuProfile\":{{\"nodes\":["
            )?;
            let mut comma = "";
            for (_, node) in &chunk {
                // Callers come before those they call.
                let callers = std::iter::successors(Some(*node), |node| {
                    tree.nodes()
                        .get(*node as usize)
                        .and_then(|(caller, _)| *caller)
                });
                new.clear();
                new.extend(callers.take_while(|node| !known.contains(node)));
                for node in new.drain(..).rev() {
                    let Some(&(caller, function)) = tree.nodes().get(node as usize) else {
                        continue;
                    };
                    if known.is_empty() {
                        self.output.write_all(
                            b"{\"id\":1,\"callFrame\":{\"functionName\":\"(root)\",\"scriptId\":\"0\",\"url\":\"\",\
                              \"lineNumber\":-1,\"columnNumber\":-1}}",
                        )?;
                        comma = ",";
                    }
                    let (id, caller) = (number_of(node), caller.map_or(ROOT, number_of));
                    write!(self.output, "{comma}{{\"id\":{id},\"parent\":{caller},")?;
                    call_frame(
                        &mut self.output,
                        Item::Function(function),
                        functions,
                        tables,
                    )?;
                    self.output.write_all(b"}")?;
                    comma = ",";
                    known.insert(node);
                }
            }
            self.output.write_all(b"]")?;
            let ids = chunk.iter().map(|(_, node)| number_of(*node));
            json::column(&mut self.output, "samples", ids)?;
            self.output.write_all(b"}")?;
            let mut deltas = Vec::with_capacity(chunk.len());
            for (at, _) in &chunk {
                deltas.push(json::us(at.since(last)));
                last = *at;
            }
            json::column(&mut self.output, "timeDeltas", deltas)?;
            self.output.write_all(b"}}}")?;
            chunk.clear();
            chunk.extend(samples.by_ref().take(CHUNK));
        }
        Ok(())
    }
}

/// Whose samples, and what its nodes are.
struct Profile<'a> {
    number: usize,
    thread: StackOwner,
    tree: &'a Tree<u32>,
    functions: &'a StackFunctions,
}

fn arguments(
    known: &mut Map<String, Json>,
    values: &[Value],
    function: FunctionId,
    tables: &Tables,
) {
    if !values.is_empty() {
        let text = arguments_text(values, function, tables);
        known.insert("arguments".to_owned(), text.into());
    }
}

impl Sink for ChromeTrace {
    fn event(&mut self, event: &Event, tables: &Tables) -> io::Result<()> {
        self.about.event(event);
        match event {
            Event::Sample(sample) => {
                let timed = self.threads.entry(sample.thread).or_default();
                let key = self.keys.number(sample, tables);
                let waited = sample.wait.map_or(0, |wait| wait.ns);
                // The line of time has each sample last until the next one: a wait is told when it begins.
                let moment = Moment {
                    at: Timestamp(sample.at.0.saturating_sub(waited)),
                    key,
                    count: 1,
                    weight: 0,
                };
                timed.push(moment, &mut self.keys.aside);
                match &sample.wait {
                    Some(wait) => self.wait(sample, wait, tables),
                    None => Ok(()),
                }
            }
            Event::Call(call) => self.call(call, tables),
            event => {
                let Some(note) = note(event, tables) else {
                    return Ok(());
                };
                let whose = note.thread.map(StackOwner::Thread);
                self.begin("i", whose, note.at, tables)?;
                let scope = if note.thread.is_some() { "t" } else { "g" };
                write!(self.output, ",\"s\":\"{scope}\"")?;
                let mut known = Map::new();
                if !note.text.is_empty() {
                    known.insert("text".to_owned(), note.text.into());
                }
                self.end(note.kind, "note", known)
            }
        }
    }

    fn finish(&mut self, tables: &Tables) -> io::Result<()> {
        let sources = choose(&self.keys.sources, self.wanted.as_deref(), tables)?;
        let end = self.about.last();
        for open in self.open.rest() {
            let (from, function) = (open.began, open.function);
            let name = self.functions.name(tables, function);
            let mut known = Map::new();
            if let Some(values) = open.arguments.as_deref() {
                arguments(&mut known, values, function, tables);
            }
            known.insert("left by".to_owned(), "open at the end".into());
            self.slice(open.owner, from, end.max(from), &name, known, tables)?;
        }
        self.names(tables)?;
        let (mut functions, mut tree) = (StackFunctions::new(tables), Tree::default());
        let (mut nodes, mut stack, mut unnamed) = (Vec::new(), Vec::new(), 0);
        let mut nameless = Vec::new();
        for key in self.keys.all() {
            let wanted = sources.has(key.source, tables);
            let named = !wanted || functions.stack(key, tables, &mut stack);
            nodes.push(match wanted {
                true => tree.path(stack.iter().copied()),
                false => None,
            });
            nameless.push(!named);
        }
        let aside = std::mem::take(&mut self.keys.aside);
        for (index, (thread, timed)) in std::mem::take(&mut self.threads).into_iter().enumerate() {
            let mut samples = timed.iter(&aside).filter_map(|moment| {
                let key = moment.key as usize;
                let node = nodes.get(key).copied().flatten()?;
                unnamed += u64::from(nameless.get(key) == Some(&true));
                Some((moment.at, node))
            });
            let profile = Profile {
                number: index + 1,
                thread: StackOwner::Thread(thread),
                tree: &tree,
                functions: &functions,
            };
            if timed.are_in_order() {
                self.profile(&profile, &mut samples, tables)?;
            } else {
                let mut samples: Vec<_> = samples.collect();
                samples.sort_by_key(|(at, _)| *at);
                self.profile(&profile, &mut samples.into_iter(), tables)?;
            }
        }
        let notes = self.about.notes_in_time(tables, unnamed);
        let out = &mut self.output;
        out.write_all(if self.begun {
            b""
        } else {
            b"{\"traceEvents\":["
        })?;
        let session = &tables.session;
        let other = json!({
            "notes": notes,
            "host": session.host,
            "command": session.command.join(" "),
        });
        out.write_all(b"],\n\"displayTimeUnit\":\"ns\",\"otherData\":")?;
        json::value(out, &other)?;
        out.write_all(b"}\n")?;
        aside.check()?;
        out.flush()
    }
}
