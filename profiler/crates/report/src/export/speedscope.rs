//! speedscope: a sampled profile of each thread, and one with the calls of each thread and goroutine where they were traced.
//!
//! Input: events; output: JSON of speedscope's own file format. Weights are in the unit of the source; times of calls
//! are nanoseconds since the first event. The format has the samples of a thread together, so they are put aside until
//! the end; equal neighbours are one. The mapping, and what is lost: docs/formats/speedscope.md.

use std::collections::BTreeMap;
use std::io::{self, BufWriter, Write};

use serde::Serialize;

use super::about::About;
use super::collect::{Count, SOURCE, choose, count};
use super::functions::StackFunctions;
use super::nest::Nest;
use super::runs::Keys;
use super::settings::{Setting, Settings};
use super::timed::{Moment, Timed};
use super::{Format, Output, ShownSources, Shows};
use crate::derive::container_label_of;
use profiler_model::*;

pub(super) const FORMAT: Format = Format {
    name: "speedscope",
    extensions: &[".speedscope.json", ".speedscope"],
    description: "speedscope.app: samples of each thread in order of time, and traced calls",
    shows: Shows::SamplesAndCalls,
    sources: ShownSources::One,
    options: &[&COUNT, &SOURCE],
    sink: |settings, output| Box::new(Speedscope::new(settings, output)),
    difference: None,
    declared: false,
};

const COUNT: Setting<Count> = count(
    "what a sample weighs: 1, or what it stands for in the unit of its source (default: weight)",
);

struct Speedscope {
    count: Count,
    wanted: Option<String>,
    keys: Keys,
    threads: BTreeMap<ThreadId, Timed>,
    nest: Nest,
    about: About,
    output: BufWriter<Output>,
}

#[derive(Serialize)]
struct Frame<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u32>,
}

impl Speedscope {
    fn new(settings: &Settings, output: Output) -> Speedscope {
        Speedscope {
            count: settings.get(&COUNT).unwrap_or(Count::Weight),
            wanted: settings.get(&SOURCE),
            keys: Keys::default(),
            threads: BTreeMap::new(),
            nest: Nest::default(),
            about: About::default(),
            output: BufWriter::new(output),
        }
    }

    /// A profile of the samples of a thread; none if it has none that are wanted. Says what it weighs.
    fn sampled(
        &mut self,
        name: &str,
        unit: &str,
        timed: &Timed,
        stacks: &[Option<Box<[u8]>>],
        first: bool,
    ) -> io::Result<Option<u64>> {
        let weight = |run: Moment| match self.count {
            Count::Samples => run.count.into(),
            Count::Weight => run.weight,
        };
        let stack = |run: Moment| stacks.get(run.key as usize).and_then(Option::as_deref);
        let shown = || {
            let runs = merged(timed.iter(&self.keys.aside));
            runs.filter_map(|run| Some((stack(run)?, weight(run))))
        };
        let sum = shown().fold(0_u64, |sum, (_, weight)| sum.saturating_add(weight));
        if shown().next().is_none() {
            return Ok(None);
        }
        let out = &mut self.output;
        out.write_all(if first { b"\n" } else { b",\n" })?;
        out.write_all(b"{\"type\":\"sampled\",\"name\":")?;
        serde_json::to_writer(&mut *out, name)?;
        write!(
            out,
            ",\"unit\":\"{unit}\",\"startValue\":0,\"endValue\":{sum}"
        )?;
        out.write_all(b",\n\"samples\":[")?;
        for (index, (stack, _)) in shown().enumerate() {
            out.write_all(if index == 0 { b"" } else { b"," })?;
            out.write_all(stack)?;
        }
        out.write_all(b"],\n\"weights\":[")?;
        for (index, (_, weight)) in shown().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            write!(out, "{comma}{weight}")?;
        }
        out.write_all(b"]}")?;
        Ok(Some(sum))
    }
}

impl Sink for Speedscope {
    fn event(&mut self, event: &Event, tables: &Tables) -> io::Result<()> {
        self.about.event(event);
        if let Event::Sample(sample) = event {
            let timed = self.threads.entry(sample.thread).or_default();
            self.keys.time(sample, tables, timed);
        }
        self.nest.event(event, tables);
        Ok(())
    }

    fn finish(&mut self, tables: &Tables) -> io::Result<()> {
        let sources = choose(&self.keys.sources, self.wanted.as_deref(), tables)?;
        let unit = match (self.count, sources.unit(tables)) {
            (Count::Weight, Some(Unit::Nanoseconds)) => "nanoseconds",
            _ => "none",
        };
        let mut functions = StackFunctions::new(tables);
        let (mut stacks, mut stack, mut unnamed) = (Vec::new(), Vec::new(), Vec::new());
        for key in self.keys.all() {
            let wanted = sources.has(key.source, tables);
            let named = !wanted || functions.stack(key, tables, &mut stack);
            // As it is written, often.
            let text = wanted.then(|| serde_json::to_vec(&stack)).transpose()?;
            stacks.push(text.map(Vec::into_boxed_slice));
            unnamed.push(!named);
        }
        let is_unnamed = |sample: &Moment| unnamed.get(sample.key as usize) == Some(&true);
        let threads = self.threads.values();
        let samples = threads.flat_map(|timed| timed.iter(&self.keys.aside));
        let unnamed = samples.filter(is_unnamed);
        let unnamed = unnamed.map(|sample| u64::from(sample.count)).sum();
        let mut notes = self.about.notes_in_time(tables, unnamed);
        if self.nest.open() > 0 {
            notes.push(format!("calls still open at the end: {}", self.nest.open()));
        }

        let head =
            "{\"$schema\":\"https://www.speedscope.app/file-format-schema.json\",\"profiles\":[";
        self.output.write_all(head.as_bytes())?;
        let (mut index, mut heaviest) = (0_usize, (0, std::cmp::Reverse(0)));
        for (thread, timed) in std::mem::take(&mut self.threads) {
            let name = thread_name(thread, tables);
            let sum = self.sampled(&name, unit, &timed, &stacks, index == 0)?;
            if let Some(sum) = sum {
                heaviest = heaviest.max((sum, std::cmp::Reverse(index)));
                index += 1;
            }
        }
        let first = self.about.first(tables);
        for (owner, edges) in std::mem::take(&mut self.nest).finish() {
            let out = &mut self.output;
            out.write_all(if index == 0 { b"\n" } else { b",\n" })?;
            index += 1;
            out.write_all(b"{\"type\":\"evented\",\"name\":")?;
            let name = format!("calls of {}", owner_name(owner, tables));
            serde_json::to_writer(&mut *out, &name)?;
            let from = edges.first().map_or(0, |edge| edge.at.since(first));
            let to = edges.last().map_or(0, |edge| edge.at.since(first));
            write!(
                out,
                ",\"unit\":\"nanoseconds\",\"startValue\":{from},\"endValue\":{to}"
            )?;
            out.write_all(b",\n\"events\":[")?;
            for (index, edge) in edges.iter().enumerate() {
                let comma = if index == 0 { "" } else { "," };
                let kind = if edge.enters { 'O' } else { 'C' };
                let frame = functions.traced(edge.function, tables);
                let at = edge.at.since(first);
                write!(
                    out,
                    "{comma}{{\"type\":\"{kind}\",\"frame\":{frame},\"at\":{at}}}"
                )?;
            }
            out.write_all(b"]}")?;
        }
        let out = &mut self.output;
        out.write_all(b"],\n\"shared\":{\"frames\":[")?;
        for (index, function) in functions.all().iter().enumerate() {
            out.write_all(if index == 0 { b"\n" } else { b",\n" })?;
            let frame = Frame {
                name: &functions.name(*function, tables),
                file: function.file(tables).or(function.module(tables)),
                line: function.line(tables),
            };
            serde_json::to_writer(&mut *out, &frame)?;
        }
        write!(
            out,
            "]}},\n\"activeProfileIndex\":{},\"name\":",
            heaviest.1.0
        )?;
        serde_json::to_writer(&mut *out, &tables.session.target)?;
        out.write_all(b",\"exporter\":")?;
        serde_json::to_writer(&mut *out, &format!("profiler {}", tables.session.version))?;
        out.write_all(b",\"notes\":")?;
        serde_json::to_writer(&mut *out, &notes)?;
        out.write_all(b"}\n")?;
        self.keys.aside.check()?;
        out.flush()
    }
}

/// Equal neighbours as one.
fn merged(samples: impl Iterator<Item = Moment>) -> impl Iterator<Item = Moment> {
    let mut samples = samples.peekable();
    std::iter::from_fn(move || {
        let mut run = samples.next()?;
        while let Some(next) = samples.peek().filter(|next| next.key == run.key)
            && let Some(count) = run.count.checked_add(next.count)
            && let Some(weight) = run.weight.checked_add(next.weight)
        {
            (run.count, run.weight) = (count, weight);
            samples.next();
        }
        Some(run)
    })
}

/// `worker 1 (tid 101) of web (pid 100 in shop/web)`.
fn thread_name(id: ThreadId, tables: &Tables) -> String {
    owner_name(StackOwner::Thread(id), tables)
}

/// The same, or `goroutine 7 of web (pid 100 in shop/web)`.
fn owner_name(owner: StackOwner, tables: &Tables) -> String {
    let mut name = owner.name(tables).into_owned();
    if let StackOwner::Thread(id) = owner
        && let Some(thread) = tables.thread(id)
    {
        name += &format!(" (tid {})", thread.tid);
    }
    if let Some(process) = owner.process(tables).and_then(|id| tables.process(id)) {
        let container = container_label_of(tables, process);
        let container = container.map_or(String::new(), |label| format!(" in {label}"));
        let comm = tables.string(process.name);
        name += &format!(" of {comm} (pid {}{container})", process.pid);
    }
    name
}
