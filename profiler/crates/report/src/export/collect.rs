//! Folding: samples merged into `root;...;leaf` stacks with one number each.
//!
//! Input: events; output: [`Folded`], sorted, with what a reader must know of the recording's gaps.
//! Numbers are samples or the unit of the samples' source; times are CLOCK_MONOTONIC. Only samples
//! of one source are in it, since units of different sources do not add up; but CPU time and waits do
//! (see [`Sources`]). What a thread waited for is a frame below the code that waited.

use std::cmp::Ordering;
use std::io;

use rustc_hash::FxHashMap;

use super::about::About;
use super::name;
use super::settings::{OptionHelp, Setting, Settings, yes};
use crate::derive::{
    Aggregate, Aggregator, Functions, Key, Merge, Owner, Sources, WALL, container_label_of,
    frame_lines, wait_frame,
};
use profiler_model::sorting::InOrder;
use profiler_model::text::TextMap;
use profiler_model::*;

/// The frame of what runs in no container, where each stack begins with one.
const NO_CONTAINER: &str = "[no container]";

/// What numbers say how hot a stack is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Count {
    /// How many samples.
    Samples,
    /// What the samples stand for, in the unit of their source: nanoseconds, cycles, events.
    Weight,
}

/// Samples of which source; see [`Sources::choose`].
pub(super) const SOURCE: Setting<String> = source(
    "samples of this event source; `off-cpu`: waits; `wall`: CPU time and waits together (default: that of \
     most samples; `wall` if it is CPU time and waits were recorded, too)",
);
/// The same, for a format that shows all where none is chosen.
pub(super) const SOURCE_OF_ALL: Setting<String> = source(
    "samples of this event source alone; `off-cpu`: waits; `wall`: CPU time and waits (default: all sources)",
);
/// The same, for a format that is of use for CPU time.
pub(super) const SOURCE_OF_TIME: Setting<String> =
    source("samples of this event source (default: CPU time or cycles, else that of most samples)");

const fn source(help: &'static str) -> Setting<String> {
    Setting {
        help: OptionHelp {
            name: "source",
            value: "EVENT",
            help,
        },
        read: |value| Some(value.to_owned()),
    }
}

/// Whether a sample can be the first of the only source that a format shows, which takes what comes first.
pub(super) fn is_first(wanted: Option<&str>, sample: &Sample, tables: &Tables) -> bool {
    let Some(source) = tables.sources.get(sample.source) else {
        return false;
    };
    match wanted {
        Some(WALL) => sample.wait.is_none() && source.unit == Unit::Nanoseconds,
        Some(wanted) => wanted == tables.string(source.name),
        None => true,
    }
}

pub(super) const THREADS: Setting<bool> = Setting {
    help: OptionHelp {
        name: "threads",
        value: "yes|no",
        help: "keep the threads of a process apart (default: no)",
    },
    read: yes,
};
pub(super) const CONTAINERS: Setting<bool> = Setting {
    help: OptionHelp {
        name: "containers",
        value: "yes|no",
        help: "begin each stack with the container, pod or unit (default: no)",
    },
    read: yes,
};

/// What numbers are, with the help of a format.
pub(super) const fn count(help: &'static str) -> Setting<Count> {
    Setting {
        help: OptionHelp {
            name: "count",
            value: "samples|weight",
            help,
        },
        read: |value| match value {
            "samples" => Some(Count::Samples),
            "weight" => Some(Count::Weight),
            _ => None,
        },
    }
}

/// How samples are folded. The default is what each format does by itself.
#[derive(Clone, Debug, Default)]
pub(super) struct FoldOptions {
    count: Option<Count>,
    source: Option<String>,
    threads: bool,
    /// A frame with the container's name is above the process.
    pub(super) containers: bool,
}

impl FoldOptions {
    /// With `count` as the format declares it.
    pub(super) fn of(settings: &Settings, count: &Setting<Count>) -> FoldOptions {
        FoldOptions {
            count: settings.get(count),
            source: settings.get(&SOURCE),
            threads: settings.get(&THREADS).unwrap_or(false),
            containers: settings.get(&CONTAINERS).unwrap_or(false),
        }
    }
}

/// Folds a recording, as a sink, for who shows more than one.
pub struct Folding {
    collector: Collector,
    folded: Folded,
}

impl Folding {
    /// As an export with these settings folds it; numbers are weights unless told.
    pub fn new(settings: &Settings) -> Folding {
        let mut options = FoldOptions::of(settings, &count(""));
        options.count = options.count.or(Some(Count::Weight));
        Folding {
            collector: Collector::new(options),
            folded: Folded::default(),
        }
    }

    /// What came of it, once it is finished.
    pub fn folded(self) -> Folded {
        self.folded
    }
}

impl Sink for Folding {
    fn event(&mut self, event: &Event, tables: &Tables) -> io::Result<()> {
        self.collector.event(event, tables);
        Ok(())
    }

    fn finish(&mut self, tables: &Tables) -> io::Result<()> {
        let count = self.collector.count(tables, Count::Weight)?;
        self.folded = self.collector.fold(tables, count)?;
        Ok(())
    }
}

/// Gathers what folding needs; bounded by the number of distinct stacks.
pub(super) struct Collector {
    options: FoldOptions,
    aggregator: Aggregator,
    about: About,
    /// In order of their first samples.
    sources: Vec<SourceId>,
}

/// Stacks with their numbers.
#[derive(Debug, Default)]
pub struct Folded {
    /// Frames joined by `;`, root first, each stack once; in order of their frames.
    pub(super) stacks: Vec<(String, u64)>,
    /// The sources whose samples these are.
    pub(super) sources: Sources,
    /// How many samples of running threads.
    pub(super) samples: u64,
    /// How many waits.
    pub(super) waits: u64,
    /// How long they were, in nanoseconds.
    pub(super) waits_ns: u64,
    /// How many of these have a frame without a name.
    pub(super) unnamed: u64,
    /// Samples of other sources, left out.
    pub(super) others: u64,
    /// How stacks ended early.
    pub(super) ends: StackEnds,
    /// When it was, and what is missing from it.
    pub(super) about: About,
}

impl Collector {
    pub(super) fn new(options: FoldOptions) -> Collector {
        let merge = if options.threads {
            Merge::Thread
        } else {
            Merge::Process
        };
        Collector {
            options,
            aggregator: Aggregator::new(merge),
            about: About::default(),
            sources: Vec::new(),
        }
    }

    pub(super) fn event(&mut self, event: &Event, tables: &Tables) {
        self.about.event(event);
        if let Event::Sample(sample) = event {
            if !self.sources.contains(&sample.source) {
                self.sources.push(sample.source);
            }
            self.aggregator.add(sample, tables);
        }
    }

    /// What the numbers are to be: what was asked for, else what `running` threads are counted by.
    /// Waits are told by their lengths, not by their number.
    pub(super) fn count(&self, tables: &Tables, running: Count) -> io::Result<Count> {
        let sources = self.wanted(tables)?;
        Ok(match self.options.count {
            Some(count) => count,
            None if sources.is_wall() || sources.is_waits(tables) => Count::Weight,
            None => running,
        })
    }

    /// Folds the samples of the wanted sources.
    pub(super) fn fold(&self, tables: &Tables, count: Count) -> io::Result<Folded> {
        let sources = self.wanted(tables)?;
        let mut folded = Folded {
            sources,
            about: self.about.clone(),
            ..Folded::default()
        };
        let mut writer = StackWriter::new(tables, self.options.containers);
        let mut numbers: TextMap<String, u64> = TextMap::default();
        for (key, aggregate) in self.aggregator.iter() {
            if !sources.has(key.source, tables) {
                folded.others += aggregate.count;
                continue;
            }
            let number = match count {
                Count::Samples => aggregate.count,
                Count::Weight => aggregate.weight,
            };
            if key.wait.is_some() {
                folded.waits = folded.waits.saturating_add(aggregate.waits().count);
                folded.waits_ns = folded.waits_ns.saturating_add(aggregate.weight);
            } else {
                folded.samples += aggregate.count;
            }
            let (stack, unnamed) = writer.stack(key);
            match numbers.get_mut(stack) {
                Some(sum) => *sum = sum.saturating_add(number),
                None => {
                    numbers.insert(stack.to_owned(), number);
                }
            }
            folded.add(aggregate, unnamed);
        }
        folded.stacks = numbers.into_iter().collect();
        folded.stacks.order_by(|(a, _), (b, _)| by_frames(a, b));
        Ok(folded)
    }

    fn wanted(&self, tables: &Tables) -> io::Result<Sources> {
        choose(&self.sources, self.options.source.as_deref(), tables)
    }
}

/// The sources that are meant, or an error that names those there are. What was recorded, and is not `present` in what is selected,
/// is no mistake.
pub(super) fn choose(
    present: &[SourceId],
    wanted: Option<&str>,
    tables: &Tables,
) -> io::Result<Sources> {
    let recorded = || -> Vec<SourceId> { tables.sources.iter().map(|(id, _)| id).collect() };
    let chosen = Sources::choose(present, wanted, tables);
    let chosen = chosen.or_else(|| Sources::choose(&recorded(), wanted, tables));
    chosen.ok_or_else(|| {
        let named = tables.sources.iter().map(|(_, it)| tables.string(it.name));
        let known: Vec<_> = named.collect();
        io::Error::new(
            io::ErrorKind::InvalidInput,
            format!(
                "no sample is of event source '{}'; there are: {}",
                wanted.unwrap_or_default(),
                known.join(", ")
            ),
        )
    })
}

impl Folded {
    fn add(&mut self, aggregate: &Aggregate, unnamed: bool) {
        aggregate.ends.add_to(&mut self.ends);
        if unnamed {
            self.unnamed += aggregate.count;
        }
    }
}

/// Orders stacks frame by frame, so that equal prefixes are neighbours. (Plain text order would put
/// `a b;c` between `a` and `a;b`.)
pub(super) fn by_frames(a: &str, b: &str) -> Ordering {
    a.split(';').cmp(b.split(';'))
}

/// Writes stacks as text, each frame's text made once.
struct StackWriter<'a> {
    tables: &'a Tables,
    functions: Functions,
    containers: bool,
    /// Lines of a frame joined by `;`, caller first, and whether it has no name.
    frames: FxHashMap<FrameId, (String, bool)>,
    text: String,
    ids: Vec<FrameId>,
}

impl<'a> StackWriter<'a> {
    fn new(tables: &'a Tables, containers: bool) -> StackWriter<'a> {
        StackWriter {
            tables,
            functions: Functions::of(tables),
            containers,
            frames: FxHashMap::default(),
            text: String::new(),
            ids: Vec::new(),
        }
    }

    /// The folded stack of a key, and whether a frame in it has no name.
    fn stack(&mut self, key: &Key) -> (&str, bool) {
        self.text.clear();
        self.owner(key);
        self.ids.clear();
        self.ids
            .extend(self.tables.frames_of_both(key.kernel, key.user));
        let mut unnamed = false;
        for &id in self.ids.iter().rev() {
            let (text, no_name) = self
                .frames
                .entry(id)
                .or_insert_with(|| frame_text(self.tables, &self.functions, id));
            unnamed |= *no_name;
            self.text.push(';');
            self.text.push_str(text);
        }
        if let Some(state) = key.wait {
            self.text.push(';');
            self.text.push_str(wait_frame(state));
        }
        (&self.text, unnamed)
    }

    fn owner(&mut self, key: &Key) {
        let owner = key.owner;
        let (called, thread) = owner.names(key.names, self.tables);
        let process = owner
            .process(self.tables)
            .and_then(|id| self.tables.process(id));
        if self.containers {
            let label = process.and_then(|process| container_label_of(self.tables, process));
            let label = label.as_deref().unwrap_or(NO_CONTAINER);
            self.text.push_str(&name::frame(label));
            self.text.push(';');
        }
        let called = called.map_or("", |name| self.tables.string(name));
        self.text.push_str(&name::frame(called));
        if let Owner::Thread(id) = owner
            && let (Some(thread), Some(name)) = (self.tables.thread(id), thread)
        {
            let label = format!("{}/{}", self.tables.string(name), thread.tid);
            self.text.push(';');
            self.text.push_str(&name::frame(&label));
        }
    }
}

fn frame_text(tables: &Tables, functions: &Functions, id: FrameId) -> (String, bool) {
    let lines: Vec<_> = frame_lines(tables, id).collect();
    let unnamed = !tables.has_names(id);
    let texts: Vec<_> = lines
        .iter()
        .rev()
        .map(|line| {
            let mark = match (line.kind, line.inlined) {
                (FrameKind::Kernel, _) => "_[k]",
                (FrameKind::Jit, _) => "_[j]",
                (FrameKind::Interpreted, _) => "_[p]",
                (FrameKind::Native, true) => "_[i]",
                (FrameKind::Native, false) => "",
            };
            let name = match line.function {
                Some(function) => functions.name(tables, function),
                None => line.name.clone(),
            };
            format!("{}{mark}", name::frame(&name))
        })
        .collect();
    (texts.join(";"), unnamed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_prefixes_are_neighbours() {
        let mut stacks = ["a;b", "a b;c", "a", "a;b c", "a;b;c"];
        stacks.order_by(|a, b| by_frames(a, b));
        assert_eq!(stacks, ["a", "a;b", "a;b;c", "a;b c", "a b;c"]);
    }
}
