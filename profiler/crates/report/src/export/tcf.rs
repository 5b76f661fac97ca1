//! Profile data of a TCF agent of a whole recording: what its Profiler service would have been read, and what the addresses are.
//!
//! Input: events; output: lines of JSON. First the recording, then a line for each context with its stacks as
//! `StackTraces` in base64 (layout: [`wire::tcf`](profiler_wire::tcf)), then a line for each address in them. An address
//! means one place in the whole file. Counts are samples, or what they stand for in the unit of their source. Memory is
//! bounded by the number of distinct stacks. Source: docs/formats/tcf.md.
//!
//! What does not belong here: services and live contexts (`serve::tcf`).

use std::io::{self, BufWriter, Write};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use rustc_hash::FxHashMap;
use serde::Serialize;

use super::about::About;
use super::collect::{Count, SOURCE, choose, count};
use super::settings::{OptionHelp, Setting, Settings};
use super::{Format, Output, ShownSources, Shows};
use crate::derive::{
    Aggregator, Functions, Merge, Owner, container_label_of, first_same, frame_lines, wait_frame,
};
use profiler_model::*;
use profiler_wire::tcf::{MAX_COUNT, WordLayout, encode_stack_trace};

pub(super) const FORMAT: Format = Format {
    name: "tcf",
    extensions: &[".tcf", ".tcf.jsonl"],
    description: "profile data of a TCF agent: StackTraces of each context, and what addresses are",
    shows: Shows::Samples,
    sources: ShownSources::One,
    options: &[&COUNT, &CONTEXTS, &SOURCE],
    sink: |settings, output| Box::new(Tcf::new(settings, output)),
    difference: None,
    declared: false,
};

const COUNT: Setting<Count> = count(
    "what counts are: samples, or what they stand for in the unit of their source (default: samples)",
);

const CONTEXTS: Setting<Merge> = Setting {
    help: OptionHelp {
        name: "contexts",
        value: "process|thread",
        help: "whose stacks are summed up (default: process)",
    },
    read: |value| match value {
        "process" => Some(Merge::Process),
        "thread" => Some(Merge::Thread),
        _ => None,
    },
};

/// Where `_stext` of the kernel is linked (x86-64's vmlinux and System.map): what the agent says, too.
const KERNEL_BASE: u64 = 0xffff_ffff_8100_0000;
/// The kernel's image is not longer.
const KERNEL_BYTES: u64 = 0x3f00_0000;
/// Nothing ever lies here: not canonical on x86-64. Files and kernel modules have a range of it each, ...
const RESERVED: u64 = 0x0f00_0000_0000_0000;
/// ... so long, ...
const MODULE_BYTES: u64 = 1 << 40;
/// ... and there is room for so many.
const MODULES: u64 = 1 << 15;
/// All others have addresses in the order of their first use, so far from each other.
const OTHERS: u64 = 0x0e00_0000_0000_0000;
const SPACING: u64 = 16;
/// A count has 31 bits, and greater ones are written in pieces: so many in a whole file, and no more.
const PIECES: u64 = 1 << 20;

struct Tcf {
    count: Option<Count>,
    wanted: Option<String>,
    samples: Aggregator,
    sources: Vec<SourceId>,
    about: About,
    output: BufWriter<Output>,
}

/// What an address stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Place {
    Frame(FrameId),
    /// What was waited for.
    Wait(WaitState),
}

/// The recording.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Head<'a> {
    recording: &'a str,
    host: &'a str,
    source: &'a str,
    count: &'a str,
    notes: Vec<String>,
}

/// A context, as the services of an agent tell of it, and what `Profiler read` says.
#[derive(Serialize)]
struct Context {
    #[serde(rename = "ID")]
    id: String,
    #[serde(rename = "ParentID", skip_serializing_if = "Option::is_none")]
    parent: Option<String>,
    #[serde(rename = "ProcessID", skip_serializing_if = "Option::is_none")]
    process: Option<String>,
    #[serde(rename = "Name")]
    name: String,
    #[serde(rename = "Container", skip_serializing_if = "Option::is_none")]
    container: Option<String>,
    #[serde(rename = "Profile")]
    profile: [Profile; 1],
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Profile {
    format: &'static str,
    addr_size: usize,
    data: String,
    samples: u64,
    #[serde(skip_serializing_if = "is_zero")]
    no_stack: u64,
    #[serde(skip_serializing_if = "is_zero")]
    clipped: u64,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// What is at an address.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Symbol<'a> {
    address: u64,
    /// The function that is really there.
    name: String,
    /// Functions inlined into it, innermost first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    inlined: Vec<String>,
    /// Of the innermost one.
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    module: Option<&'a str>,
    #[serde(rename = "BuildID", skip_serializing_if = "Option::is_none")]
    build_id: Option<String>,
    /// As the module's own symbols have it.
    #[serde(skip_serializing_if = "Option::is_none")]
    offset: Option<u64>,
    /// The first address of the function.
    #[serde(skip_serializing_if = "Option::is_none")]
    start: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    size: Option<u64>,
}

/// Addresses that were given out.
#[derive(Default)]
struct Addresses {
    given: FxHashMap<Place, u64>,
    others: u64,
}

impl Addresses {
    fn of(&mut self, place: Place, tables: &Tables) -> u64 {
        if let Some(&address) = self.given.get(&place) {
            return address;
        }
        let address = match place {
            Place::Frame(frame) => in_module(frame, tables),
            Place::Wait(_) => None,
        };
        let address = address.unwrap_or_else(|| {
            self.others += 1;
            OTHERS + self.others * SPACING
        });
        self.given.insert(place, address);
        address
    }
}

/// The address of a frame in what every process has at most once.
fn in_module(frame: FrameId, tables: &Tables) -> Option<u64> {
    let frame = tables.frames.get(frame)?;
    based(frame.module?, frame.address, tables)
}

/// An address of a module as one of the file.
fn based(id: ModuleId, address: u64, tables: &Tables) -> Option<u64> {
    match tables.modules.get(id)?.kind {
        ModuleKind::Kernel => (address < KERNEL_BYTES).then(|| KERNEL_BASE + address),
        ModuleKind::File | ModuleKind::KernelModule | ModuleKind::Vdso => {
            let number = id.index() as u64;
            let fits = number < MODULES && address < MODULE_BYTES;
            fits.then(|| RESERVED + number * MODULE_BYTES + address)
        }
        _ => None,
    }
}

impl Tcf {
    fn new(settings: &Settings, output: Output) -> Tcf {
        Tcf {
            count: settings.get(&COUNT),
            wanted: settings.get(&SOURCE),
            samples: Aggregator::new(settings.get(&CONTEXTS).unwrap_or(Merge::Process)),
            sources: Vec::new(),
            about: About::default(),
            output: BufWriter::new(output),
        }
    }

    fn line(&mut self, line: &impl Serialize) -> io::Result<()> {
        serde_json::to_writer(&mut self.output, line)?;
        self.output.write_all(b"\n")
    }
}

impl Sink for Tcf {
    fn event(&mut self, event: &Event, tables: &Tables) -> io::Result<()> {
        self.about.event(event);
        if let Event::Sample(sample) = event {
            if first_same(sample.source, &self.sources, tables).is_none() {
                self.sources.push(sample.source);
            }
            self.samples.add(sample, tables);
        }
        Ok(())
    }

    fn finish(&mut self, tables: &Tables) -> io::Result<()> {
        let sources = choose(&self.sources, self.wanted.as_deref(), tables)?;
        let count = self.count.unwrap_or(Count::Samples);
        let samples = std::mem::take(&mut self.samples);
        let mut samples = samples.sorted();
        samples.retain(|(key, _)| sources.has(key.source, tables));
        let unnamed = samples.iter().filter(|(key, _)| {
            let mut frames = tables.frames_of_both(key.kernel, key.user);
            !frames.all(|frame| tables.has_names(frame))
        });
        let unnamed = unnamed.map(|(_, sum)| sum.count).sum();
        let head = Head {
            recording: &tables.session.target,
            host: &tables.session.host,
            source: sources.name(tables).unwrap_or(""),
            count: match (count, sources.unit(tables)) {
                (Count::Samples, _) | (_, None) => "samples",
                (Count::Weight, Some(Unit::Nanoseconds)) => "nanoseconds",
                (Count::Weight, Some(Unit::Cycles)) => "cycles",
                (Count::Weight, Some(Unit::Events)) => "events",
            },
            notes: self.about.notes(tables, unnamed),
        };
        self.line(&head)?;
        let (mut addresses, mut pieces) = (Addresses::default(), PIECES);
        for same in samples.chunk_by(|(one, _), (other, _)| one.owner == other.owner) {
            let Some((first, _)) = same.first() else {
                continue;
            };
            let mut profile = Profile {
                format: "StackTraces",
                addr_size: WordLayout::WIDE.bytes(),
                data: String::new(),
                samples: 0,
                no_stack: 0,
                clipped: 0,
            };
            let (mut data, mut stack) = (Vec::new(), Vec::new());
            // Stacks of several names of a thread follow each other: equal ones are one.
            let equal = same.chunk_by(|(one, _), (other, _)| {
                (one.kernel, one.user, one.wait) == (other.kernel, other.user, other.wait)
            });
            for equal in equal {
                let Some((key, _)) = equal.first() else {
                    continue;
                };
                let numbers = equal.iter().map(|(_, sum)| match count {
                    Count::Samples => sum.count,
                    Count::Weight => sum.weight,
                });
                let whole = numbers.fold(0_u64, u64::saturating_add);
                let number = whole.min(MAX_COUNT.saturating_mul(pieces + 1));
                pieces -= number.saturating_sub(1) / MAX_COUNT;
                profile.clipped = profile.clipped.saturating_add(whole - number);
                stack.clear();
                stack.extend(key.wait.map(Place::Wait));
                let frames = tables.frames_of_both(key.kernel, key.user);
                stack.extend(frames.map(Place::Frame));
                match stack.is_empty() {
                    true => profile.no_stack = profile.no_stack.saturating_add(number),
                    false => profile.samples = profile.samples.saturating_add(number),
                }
                let stack: Vec<u64> = stack
                    .iter()
                    .map(|&place| addresses.of(place, tables))
                    .collect();
                encode_stack_trace(WordLayout::WIDE, number, &stack, &mut data)
                    .map_err(io::Error::other)?;
            }
            profile.data = BASE64_STANDARD.encode(&data);
            let context = context(first.owner, profile, tables);
            self.line(&context)?;
        }
        let mut given: Vec<(u64, Place)> = addresses
            .given
            .iter()
            .map(|(&place, &address)| (address, place))
            .collect();
        given.sort_unstable();
        let told = Functions::of(tables);
        for (address, place) in given {
            let symbol = symbol(address, place, &told, tables);
            self.line(&symbol)?;
        }
        self.output.flush()
    }
}

/// Whose stacks they are, by the names of contexts that the agent gives.
fn context(owner: Owner, profile: Profile, tables: &Tables) -> Context {
    let process = owner.process(tables).and_then(|id| tables.process(id));
    let parent = process.map(|process| format!("P{}", process.pid));
    let (of_process, of_thread) = owner.names(NamesThen::default(), tables);
    let text = |id: Option<StringId>| id.map_or(String::new(), |id| tables.string(id).to_owned());
    let container = process.and_then(|process| container_label_of(tables, process));
    let container = container.map(|label| label.to_string());
    let profile = [profile];
    match (owner, parent) {
        (Owner::Thread(id), Some(parent)) => Context {
            id: format!(
                "{parent}.{}",
                tables.thread(id).map_or(0, |thread| thread.tid.0)
            ),
            process: Some(parent.clone()),
            parent: Some(parent),
            name: text(of_thread),
            container,
            profile,
        },
        (_, parent) => Context {
            id: parent.clone().unwrap_or_else(|| "P".to_owned()),
            process: parent,
            parent: None,
            name: text(of_process),
            container,
            profile,
        },
    }
}

fn symbol<'t>(address: u64, place: Place, told: &Functions, tables: &'t Tables) -> Symbol<'t> {
    let mut symbol = Symbol {
        address,
        name: String::new(),
        inlined: Vec::new(),
        file: None,
        line: None,
        module: None,
        build_id: None,
        offset: None,
        start: None,
        size: None,
    };
    let id = match place {
        Place::Frame(id) => id,
        Place::Wait(state) => {
            wait_frame(state).clone_into(&mut symbol.name);
            return symbol;
        }
    };
    for (index, line) in frame_lines(tables, id).enumerate() {
        let name = match line.function {
            Some(function) => told.name(tables, function).into_owned(),
            None => line.name.into_owned(),
        };
        if index == 0 {
            symbol.file = line.file;
            symbol.line = (line.line > 0).then_some(line.line);
        }
        match line.inlined {
            true => symbol.inlined.push(name),
            false => symbol.name = name,
        }
    }
    if let Some(frame) = tables.frames.get(id)
        && let Some(module) = frame.module.and_then(|id| tables.modules.get(id))
    {
        symbol.module = Some(tables.string(module.path));
        symbol.build_id = module.build_id.as_ref().map(ToString::to_string);
        symbol.offset = Some(frame.address.wrapping_add(module.address_bias));
        let function = tables.lines(id).last();
        let function = function.and_then(|line| tables.functions.get(line.function));
        if let (Some(function), Some(id)) = (function, frame.module) {
            symbol.start = function.start.and_then(|start| based(id, start, tables));
            symbol.size = function.size;
        }
    }
    symbol
}
