//! Text as `perf script` writes it: a paragraph for each sample, for the many scripts that read that.
//!
//! Input: events; output: UTF-8, samples in the order of the events, leaf first. Times are seconds of CLOCK_MONOTONIC,
//! periods are in the unit of the source, addresses those of the object files. Written as the events come: memory is
//! that of one line for each distinct frame, and of the text of stacks that are met again, up to a limit. Source: perf-script(1); the mapping is in docs/formats/perf-script.md.

use std::fmt::Write as _;
use std::io::{self, BufWriter, Write};

use rustc_hash::FxHashMap;

use super::about::About;
use super::name;
use super::settings::Settings;
use super::{Format, Output, ShownSources, Shows};
use crate::derive::{Functions, frame_lines, wait_frame};
use profiler_model::*;

pub(super) const FORMAT: Format = Format {
    name: "perf-script",
    extensions: &[".perf-script", ".perf"],
    description: "text as of perf script: each sample with its stack",
    shows: Shows::Samples,
    sources: ShownSources::All,
    options: &[],
    sink: |settings, output| Box::new(PerfScript::new(settings, output)),
    difference: None,
    declared: false,
};

/// Most bytes of text of stacks that are kept: stacks come again and again.
const MAX_KEPT: usize = 32 << 20;
/// What is written at once: a sample has some thousand bytes.
const AT_ONCE: usize = 1 << 16;

/// The kernel's and the user's part of a stack.
type Pair = (Option<StackId>, Option<StackId>);

struct PerfScript {
    output: BufWriter<Output>,
    /// Of each thread the name that it had last, and what a line says of it then; of each source its name as a word.
    threads: FxHashMap<ThreadId, (Option<StringId>, Box<str>)>,
    sources: FxHashMap<SourceId, Box<str>>,
    line: String,
    functions: Functions,
    /// The lines of a frame, and whether all of it has a name.
    frames: FxHashMap<FrameId, (Box<str>, bool)>,
    /// The same of whole stacks, and how many bytes all of them have.
    stacks: FxHashMap<Pair, (Box<str>, bool)>,
    kept: usize,
    about: About,
    unnamed: u64,
}

impl PerfScript {
    fn new(_: &Settings, output: Output) -> PerfScript {
        PerfScript {
            output: BufWriter::with_capacity(AT_ONCE, output),
            threads: FxHashMap::default(),
            sources: FxHashMap::default(),
            line: String::new(),
            functions: Functions::default(),
            frames: FxHashMap::default(),
            stacks: FxHashMap::default(),
            kept: 0,
            about: About::default(),
            unnamed: 0,
        }
    }

    fn sample(&mut self, sample: &Sample, tables: &Tables) -> io::Result<()> {
        if self.functions.len() != tables.functions.len() {
            // Which of them share a name is another question than before.
            self.functions = Functions::of(tables);
            self.frames.clear();
            self.stacks.clear();
            self.kept = 0;
        }
        let thread = tables.thread(sample.thread);
        let then = tables.names_at(sample.thread, sample.at).thread;
        let name = then.or(thread.map(|thread| thread.name));
        let of_thread = self.threads.entry(sample.thread).or_default();
        if of_thread.1.is_empty() || of_thread.0 != name {
            *of_thread = (name, thread_words(thread, name, tables));
        }
        let source = self.sources.entry(sample.source).or_insert_with(|| {
            let source = tables.sources.get(sample.source);
            one_word(source.map_or("", |source| tables.string(source.name))).into()
        });
        let (seconds, ns) = (sample.at.0 / 1_000_000_000, sample.at.0 % 1_000_000_000);
        self.line.clear();
        // What can be written to a string never fails.
        let _ = writeln!(
            self.line,
            "{} [{:03}] {seconds}.{ns:09}: {} {source}: ",
            of_thread.1, sample.cpu.0, sample.weight,
        );
        self.output.write_all(self.line.as_bytes())?;
        if let Some(wait) = &sample.wait {
            writeln!(
                self.output,
                "\t{:>16} {} ([wait])",
                0,
                wait_frame(wait.state)
            )?;
        }
        let pair = (sample.kernel, sample.user);
        if let Some((lines, named)) = self.stacks.get(&pair) {
            self.output.write_all(lines.as_bytes())?;
            self.unnamed += u64::from(!named);
            return self.output.write_all(b"\n");
        }
        let (lines, named) = self.stack(pair, tables);
        self.output.write_all(lines.as_bytes())?;
        self.unnamed += u64::from(!named);
        if self.kept + lines.len() > MAX_KEPT {
            self.stacks.clear();
            self.kept = 0;
        }
        self.kept += lines.len();
        self.stacks.insert(pair, (lines, named));
        self.output.write_all(b"\n")
    }

    /// The lines of a stack, and whether all of it has names.
    fn stack(&mut self, (kernel, user): Pair, tables: &Tables) -> (Box<str>, bool) {
        let (mut text, mut named) = (String::new(), true);
        for frame in tables.frames_of_both(kernel, user) {
            let (lines, has_names) = &*self.frames.entry(frame).or_insert_with(|| {
                let lines = lines(frame, tables, &self.functions);
                (lines, tables.has_names(frame))
            });
            text += lines;
            named &= has_names;
        }
        (text.into(), named)
    }
}

impl Sink for PerfScript {
    fn event(&mut self, event: &Event, tables: &Tables) -> io::Result<()> {
        self.about.event(event);
        match event {
            Event::Sample(sample) => self.sample(sample, tables),
            _ => Ok(()),
        }
    }

    fn finish(&mut self, tables: &Tables) -> io::Result<()> {
        for note in self.about.notes(tables, self.unnamed) {
            writeln!(self.output, "# {}", name::text(&note))?;
        }
        self.output.flush()
    }
}

/// The name of a thread, and the ids.
fn thread_words(thread: Option<&Thread>, name: Option<StringId>, tables: &Tables) -> Box<str> {
    let comm = name::frame(name.map_or("", |name| tables.string(name)));
    let process = thread.and_then(|thread| tables.process(thread.process));
    let pid = process.map_or(0, |process| process.pid.0);
    let tid = thread.map_or(0, |thread| thread.tid.0);
    format!("{comm} {pid}/{tid}").into()
}

/// A name without what ends it for readers.
fn one_word(text: &str) -> String {
    let mut word = name::text(text).replace(' ', "_");
    // The last colon of a line ends the event's name.
    if word.ends_with(':') {
        word.push('_');
    }
    word
}

/// The functions at a frame, innermost first, each on its line.
fn lines(frame: FrameId, tables: &Tables, functions: &Functions) -> Box<str> {
    let place = tables.frames.get(frame);
    let module = place.and_then(|place| tables.modules.get(place.module?));
    let bias = module.map_or(0, |module| module.address_bias);
    let address = place.map_or(0, |place| place.address);
    let object = module.map_or_else(
        || "[unknown]".into(),
        |module| one_word(tables.string(module.path)),
    );
    let mut text = String::new();
    for line in frame_lines(tables, frame) {
        let known = line.function.and_then(|id| tables.functions.get(id));
        let name = match line.function {
            Some(id) if tables.is_named(id) => functions.name(tables, id),
            // As perf has it: tools look for the name at the address themselves.
            _ => "[unknown]".into(),
        };
        let name = name::text(&name);
        let offset = known.and_then(|function| address.checked_sub(function.start?));
        let shown = address.wrapping_add(bias);
        // What can be written to a string never fails.
        let _ = match (line.inlined, offset) {
            (true, _) => writeln!(text, "\t{shown:>16x} {name} (inlined)"),
            (false, Some(offset)) => writeln!(text, "\t{shown:>16x} {name}+{offset:#x} ({object})"),
            (false, None) => writeln!(text, "\t{shown:>16x} {name} ({object})"),
        };
    }
    text.into()
}
