//! `.cpuprofile`: the profile of V8, as Chrome's DevTools, VS Code and speedscope read it.
//!
//! Input: events; output: JSON of one profile. The format has one line of time, so threads follow each other on it, each
//! sample as long as what it weighs, in microseconds. Memory: samples are kept, packed. The mapping, and what is lost:
//! docs/formats/cpuprofile.md.

use std::collections::BTreeMap;
use std::io::{self, BufWriter, Write};

use super::about::About;
use super::collect::{SOURCE, choose};
use super::functions::StackFunctions;
use super::json;
use super::notes::thread_text;
use super::runs::Keys;
use super::settings::Settings;
use super::timed::{Moment, Timed};
use super::tree::Tree;
use super::{Format, Output, ShownSources, Shows};
use profiler_model::*;

pub(super) const FORMAT: Format = Format {
    name: "cpuprofile",
    extensions: &[".cpuprofile"],
    description: "profile of V8, for Chrome's DevTools and VS Code: sums, thread by thread",
    shows: Shows::Samples,
    sources: ShownSources::One,
    options: &[&SOURCE],
    sink: |settings, output| Box::new(CpuProfile::new(settings, output)),
    difference: None,
    declared: false,
};

struct CpuProfile {
    wanted: Option<String>,
    keys: Keys,
    threads: BTreeMap<ThreadId, Timed>,
    about: About,
    output: BufWriter<Output>,
}

/// What a node of the tree is.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Item {
    Thread(ThreadId),
    Function(u32),
}

impl CpuProfile {
    fn new(settings: &Settings, output: Output) -> CpuProfile {
        CpuProfile {
            wanted: settings.get(&SOURCE),
            keys: Keys::default(),
            threads: BTreeMap::new(),
            about: About::default(),
            output: BufWriter::new(output),
        }
    }
}

/// Writes `"callFrame":{..}` of a node.
pub(super) fn call_frame(
    out: &mut impl Write,
    item: Item,
    functions: &StackFunctions,
    tables: &Tables,
) -> io::Result<()> {
    let (name, url, line) = match item {
        Item::Thread(id) => (thread_text(id, tables).into(), "", None),
        Item::Function(number) => match functions.all().get(number as usize) {
            Some(function) => (
                functions.name(*function, tables),
                function
                    .file(tables)
                    .or(function.module(tables))
                    .unwrap_or(""),
                function.line(tables),
            ),
            None => ("".into(), "", None),
        },
    };
    out.write_all(b"\"callFrame\":{\"functionName\":")?;
    json::value(out, &name)?;
    out.write_all(b",\"scriptId\":\"0\",\"url\":")?;
    json::value(out, url)?;
    // They count from 0.
    let line = line.map_or(-1, |line| i64::from(line) - 1);
    write!(out, ",\"lineNumber\":{line},\"columnNumber\":-1}}")
}

impl Sink for CpuProfile {
    fn event(&mut self, event: &Event, tables: &Tables) -> io::Result<()> {
        self.about.event(event);
        if let Event::Sample(sample) = event {
            let timed = self.threads.entry(sample.thread).or_default();
            self.keys.time(sample, tables, timed);
        }
        Ok(())
    }

    fn finish(&mut self, tables: &Tables) -> io::Result<()> {
        let sources = choose(&self.keys.sources, self.wanted.as_deref(), tables)?;
        let is_time = sources.unit(tables) == Some(Unit::Nanoseconds);
        let mut functions = StackFunctions::new(tables);
        let mut tree = Tree::default();
        let (mut nodes, mut unnamed, mut stack) = (Vec::new(), Vec::new(), Vec::new());
        for key in self.keys.all() {
            let wanted = sources.has(key.source, tables);
            let named = !wanted || functions.stack(key, tables, &mut stack);
            let thread = match key.owner {
                crate::derive::Owner::Thread(thread) => Some(Item::Thread(thread)),
                crate::derive::Owner::Process(_) => None,
            };
            let items = stack.iter().map(|&function| Item::Function(function));
            let path = thread.into_iter().chain(items);
            nodes.push(if wanted { tree.path(path) } else { None });
            unnamed.push(!named);
        }
        let samples = || {
            let threads = self.threads.values();
            let samples = threads.flat_map(|timed| timed.iter(&self.keys.aside));
            samples.filter_map(|sample: Moment| {
                Some((sample, nodes.get(sample.key as usize).copied()??))
            })
        };
        let (mut hits, mut sum) = (vec![0_u64; tree.nodes().len()], 0_u64);
        let mut nameless = 0;
        for (sample, node) in samples() {
            if let Some(hits) = hits.get_mut(node as usize) {
                *hits += 1;
            }
            sum = sum.saturating_add(sample.weight);
            if unnamed.get(sample.key as usize) == Some(&true) {
                nameless += u64::from(sample.count);
            }
        }
        let mut children: Vec<Vec<u32>> = vec![Vec::new(); tree.nodes().len()];
        let mut roots = Vec::new();
        // Number 1 is the root, which is in no stack.
        for (node, (caller, _)) in tree.nodes().iter().enumerate() {
            let id = node as u32 + 2;
            match caller.and_then(|caller| children.get_mut(caller as usize)) {
                Some(children) => children.push(id),
                None => roots.push(id),
            }
        }
        let out = &mut self.output;
        out.write_all(
            b"{\"nodes\":[\n{\"id\":1,\"callFrame\":{\"functionName\":\"(root)\",\"scriptId\":\"0\",\"url\":\"\",\
              \"lineNumber\":-1,\"columnNumber\":-1},\"hitCount\":0",
        )?;
        json::column(out, "children", roots)?;
        out.write_all(b"}")?;
        for (node, ((_, item), children)) in tree.nodes().iter().zip(children).enumerate() {
            write!(out, ",\n{{\"id\":{},", node + 2)?;
            call_frame(out, *item, &functions, tables)?;
            write!(out, ",\"hitCount\":{}", hits[node])?;
            if !children.is_empty() {
                json::column(out, "children", children)?;
            }
            out.write_all(b"}")?;
        }
        let length = |weight: u64| match is_time {
            true => json::us(weight),
            false => json::Fraction {
                ns: weight,
                digits: 0,
            },
        };
        // Not 0: some readers leave out a sample there.
        let start = match is_time {
            true => self.about.first(tables).0,
            false => 1_000_000,
        };
        write!(
            out,
            "],
\"startTime\":{},\"endTime\":{}",
            length(start),
            length(start.saturating_add(sum))
        )?;
        json::column(out, "samples", samples().map(|(_, node)| node + 2))?;
        // How long after the one before each is: as long as that one weighs.
        let weights = samples().map(|(sample, _)| sample.weight);
        let before = std::iter::once(0).chain(weights);
        let deltas = before.zip(samples()).map(|(before, _)| length(before));
        json::column(out, "timeDeltas", deltas)?;
        json::texts(out, "notes", self.about.notes(tables, nameless))?;
        out.write_all(b"}\n")?;
        self.keys.aside.check()?;
        out.flush()
    }
}
