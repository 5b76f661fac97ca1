//! Profiles that compilers and linkers optimize by, made of samples without branch records.
//!
//! Input: events; output: text. `pgo-llvm`: LLVM's sample profile, by functions and lines from where they are declared, for
//! `clang -fprofile-sample-use`. `pgo-bolt`: addresses with counts, for `llvm-bolt -pa`. Both are of one object file, and of samples
//! that ran its code: those in the kernel, and waits, say nothing of it. Counts are samples, or their weights. Memory is
//! bounded by the number of distinct stacks. Source: clang's manual, llvm/ProfileData/SampleProfReader.h, DataAggregator.h of
//! BOLT; docs/formats/pgo.md.
//!
//! What does not belong here: Go's profiles (`pprof`), where functions are declared (asked for in [`Format::declared`]).

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, BufWriter, Write};

use rustc_hash::FxHashMap;

use super::collect::{Count, SOURCE, SOURCE_OF_TIME, choose, count};
use super::name;
use super::settings::{OptionHelp, Setting, Settings};
use super::{Format, Output, ShownSources, Shows};
use crate::derive::{Aggregator, Merge, first_same};
use profiler_model::sorting::InOrder;
use profiler_model::*;

pub(super) const LLVM: Format = Format {
    name: "pgo-llvm",
    extensions: &[".afdo", ".sample.prof"],
    description: "LLVM's sample profile, for clang -fprofile-sample-use",
    shows: Shows::Samples,
    sources: ShownSources::Time,
    options: &[&OBJECT, &COUNT, &SOURCE_OF_TIME],
    sink: |settings, output| Box::new(Pgo::new(settings, output, write_llvm)),
    difference: None,
    declared: true,
};

pub(super) const BOLT: Format = Format {
    name: "pgo-bolt",
    extensions: &[".bolt", ".preagg"],
    description: "addresses with counts, for llvm-bolt with pre-aggregated samples",
    shows: Shows::Samples,
    sources: ShownSources::Time,
    options: &[&OBJECT, &COUNT, &SOURCE_OF_TIME],
    sink: |settings, output| Box::new(Pgo::new(settings, output, write_bolt)),
    difference: None,
    declared: false,
};

const COUNT: Setting<Count> = count(
    "what counts are: samples, or what they stand for in the unit of their source (default: samples)",
);

const OBJECT: Setting<String> = Setting {
    help: OptionHelp {
        name: "object",
        value: "PATH|NAME",
        help: "the program or library whose profile it is (default: where most samples are)",
    },
    read: |value| Some(value.to_owned()),
};

/// What is written of an object's samples.
type Writer = fn(&Samples, ModuleId, &Tables, &mut BufWriter<Output>) -> io::Result<()>;

struct Pgo {
    object: Option<String>,
    count: Count,
    wanted: Option<String>,
    samples: Aggregator,
    sources: Vec<SourceId>,
    write: Writer,
    output: BufWriter<Output>,
}

/// Samples by the place that ran, and who had called whom then.
#[derive(Default)]
struct Samples {
    leaves: FxHashMap<FrameId, u64>,
    calls: FxHashMap<(FrameId, FrameId), u64>,
}

impl Pgo {
    fn new(settings: &Settings, output: Output, write: Writer) -> Pgo {
        Pgo {
            object: settings.get(&OBJECT),
            count: settings.get(&COUNT).unwrap_or(Count::Samples),
            wanted: settings.get(&SOURCE),
            samples: Aggregator::new(Merge::Process),
            sources: Vec::new(),
            write,
            output: BufWriter::new(output),
        }
    }

    /// Sums of what ran in programs.
    fn sums(&self, tables: &Tables) -> io::Result<Samples> {
        let sources = choose(&self.sources, self.wanted.as_deref(), tables)?;
        let mut samples = Samples::default();
        for (key, sum) in self.samples.iter() {
            if !sources.has(key.source, tables) || key.wait.is_some() || key.kernel.is_some() {
                continue;
            }
            let number = match self.count {
                Count::Samples => sum.count,
                Count::Weight => sum.weight,
            };
            let add = |to: &mut u64| *to = to.saturating_add(number);
            let mut callee = None;
            for frame in tables.frames_of(key.user) {
                match callee.replace(frame) {
                    None => add(samples.leaves.entry(frame).or_default()),
                    Some(callee) => add(samples.calls.entry((frame, callee)).or_default()),
                }
            }
        }
        Ok(samples)
    }

    /// The object that was asked for, or the one with most samples.
    fn chosen(&self, samples: &Samples, tables: &Tables) -> io::Result<Option<ModuleId>> {
        let mut sums: BTreeMap<ModuleId, u64> = BTreeMap::new();
        for (&frame, &number) in &samples.leaves {
            if let Some(module) = file_of(frame, tables) {
                let sum = sums.entry(module).or_default();
                *sum = sum.saturating_add(number);
            }
        }
        let path = |id: ModuleId| (tables.modules.get(id)).map_or("", |it| tables.string(it.path));
        let name = |id: ModuleId| path(id).rsplit('/').next().unwrap_or("");
        let Some(wanted) = &self.object else {
            let most = sums
                .iter()
                .max_by_key(|(id, sum)| (**sum, std::cmp::Reverse(**id)));
            return Ok(most.map(|(&id, _)| id));
        };
        let by_most = |id: &ModuleId| sums.get(id).copied();
        let fits = sums
            .keys()
            .copied()
            .filter(|&id| path(id) == wanted || name(id) == wanted);
        match fits.max_by_key(by_most) {
            Some(id) => Ok(Some(id)),
            None => {
                let mut known: Vec<(u64, &str)> =
                    sums.iter().map(|(&id, &sum)| (sum, path(id))).collect();
                known.order_by(|one, other| other.cmp(one));
                let known: Vec<&str> = known.iter().take(10).map(|(_, path)| *path).collect();
                let error = format!(
                    "no sample ran in '{wanted}'; most ran in: {}",
                    known.join(", ")
                );
                Err(io::Error::new(io::ErrorKind::InvalidInput, error))
            }
        }
    }
}

impl Sink for Pgo {
    fn event(&mut self, event: &Event, tables: &Tables) -> io::Result<()> {
        if let Event::Sample(sample) = event {
            if first_same(sample.source, &self.sources, tables).is_none() {
                self.sources.push(sample.source);
            }
            self.samples.add(sample, tables);
        }
        Ok(())
    }

    fn finish(&mut self, tables: &Tables) -> io::Result<()> {
        let samples = self.sums(tables)?;
        match self.chosen(&samples, tables)? {
            Some(object) => (self.write)(&samples, object, tables, &mut self.output)?,
            // Without any sample that is said of the export.
            None if !self.sources.is_empty() => {
                log::warn!(
                    "no sample ran in a program's own code: there is nothing for a compiler"
                );
            }
            None => {}
        }
        self.output.flush()
    }
}

/// The file that a frame's code is in.
fn file_of(frame: FrameId, tables: &Tables) -> Option<ModuleId> {
    let module = tables.frames.get(frame)?.module?;
    let is_file = tables.modules.get(module)?.kind == ModuleKind::File;
    is_file.then_some(module)
}

/// One file can be several modules: mapped under two paths, by two segments.
fn is_of(frame: FrameId, object: ModuleId, tables: &Tables) -> bool {
    file_of(frame, tables).is_some_and(|id| {
        let same = |one: &Module, other: &Module| match (&one.build_id, &other.build_id) {
            (Some(one), Some(other)) => one == other,
            _ => one.path == other.path,
        };
        let both = (tables.modules.get(id), tables.modules.get(object));
        id == object || matches!(both, (Some(one), Some(other)) if same(one, other))
    })
}

fn write_bolt(
    samples: &Samples,
    object: ModuleId,
    tables: &Tables,
    out: &mut BufWriter<Output>,
) -> io::Result<()> {
    let mut addresses: BTreeMap<u64, u64> = BTreeMap::new();
    for (&id, &number) in &samples.leaves {
        if let Some(frame) = tables.frames.get(id)
            && is_of(id, object, tables)
        {
            let bias = frame.module.and_then(|id| tables.modules.get(id));
            let bias = bias.map_or(0, |module| module.address_bias);
            let sum = addresses
                .entry(frame.address.wrapping_add(bias))
                .or_default();
            *sum = sum.saturating_add(number);
        }
    }
    for (address, number) in addresses {
        writeln!(out, "S {address:x} {number}")?;
    }
    Ok(())
}

/// A function, or one that was inlined at a line of another.
#[derive(Default)]
struct Profile<'t> {
    /// All samples in it, and in what is inlined into it.
    total: u64,
    /// How often it is entered, by the lines that call it.
    head: u64,
    lines: BTreeMap<u32, Body<'t>>,
    inlined: BTreeMap<(u32, &'t str), Profile<'t>>,
}

#[derive(Default)]
struct Body<'t> {
    /// The greatest of its instructions: a line is run as often as each, however many there are.
    number: u64,
    targets: BTreeMap<&'t str, u64>,
}

/// Where a frame is: the function and the line of it, of which the first is really there and the others are inlined.
type Position<'t> = Vec<(&'t str, u32)>;

fn write_llvm(
    samples: &Samples,
    object: ModuleId,
    tables: &Tables,
    out: &mut BufWriter<Output>,
) -> io::Result<()> {
    let (mut functions, mut unplaced) = (BTreeMap::<&str, Profile<'_>>::new(), 0_u64);
    for (&frame, &number) in &samples.leaves {
        if !is_of(frame, object, tables) {
            continue;
        }
        let position = position(frame, tables);
        match profile_at(&mut functions, &position, number) {
            Some((profile, line)) => {
                let line = profile.lines.entry(line).or_default();
                line.number = line.number.max(number);
            }
            None => unplaced = unplaced.saturating_add(number),
        }
    }
    let mut entries: BTreeSet<(Position<'_>, &str)> = BTreeSet::new();
    for (&(caller, callee), &number) in &samples.calls {
        let called = position(callee, tables);
        if !is_of(caller, object, tables) || !is_of(callee, object, tables) {
            continue;
        }
        let (at, Some(&(called, _))) = (position(caller, tables), called.first()) else {
            continue;
        };
        // Of a line that never ran itself nothing is said.
        if let Some((profile, line)) = profile_at(&mut functions, &at, 0)
            && let Some(line) = profile.lines.get_mut(&line)
        {
            let target = line.targets.entry(called).or_default();
            *target = target.saturating_add(number);
            entries.insert((at, called));
        }
    }
    for (at, called) in entries {
        let line = profile_at(&mut functions, &at, 0);
        let number = line.and_then(|(profile, line)| Some(profile.lines.get(&line)?.number));
        if let Some(called) = functions.get_mut(called) {
            called.head = called.head.saturating_add(number.unwrap_or(0));
        }
    }
    if let Some(module) = tables.modules.get(object) {
        writeln!(out, "# of {}", name::text(tables.string(module.path)))?;
    }
    if unplaced > 0 {
        writeln!(
            out,
            "# {unplaced} in functions whose name or first line is not known: is there debug information?"
        )?;
    }
    functions.retain(|_, profile| profile.total > 0);
    let mut sorted: Vec<_> = functions.iter().collect();
    sorted.order_by_key(|(name, profile)| (std::cmp::Reverse(profile.total), **name));
    for (name, profile) in sorted {
        writeln!(out, "{name}:{}:{}", profile.total, profile.head)?;
        write_body(profile, 1, out)?;
    }
    Ok(())
}

fn write_body(profile: &Profile<'_>, depth: usize, out: &mut BufWriter<Output>) -> io::Result<()> {
    let indent = " ".repeat(depth);
    for (offset, line) in &profile.lines {
        write!(out, "{indent}{offset}: {}", line.number)?;
        for (name, number) in &line.targets {
            write!(out, " {name}:{number}")?;
        }
        out.write_all(b"\n")?;
    }
    for ((offset, name), inlined) in &profile.inlined {
        if inlined.total > 0 {
            writeln!(out, "{indent}{offset}: {name}:{}", inlined.total)?;
            write_body(inlined, depth + 1, out)?;
        }
    }
    Ok(())
}

/// What a position is in, with the line there; `number` is added to all around it.
fn profile_at<'p, 't>(
    functions: &'p mut BTreeMap<&'t str, Profile<'t>>,
    position: &Position<'t>,
    number: u64,
) -> Option<(&'p mut Profile<'t>, u32)> {
    let (&(name, mut line), inner) = position.split_first()?;
    let mut profile = functions.entry(name).or_default();
    profile.total = profile.total.saturating_add(number);
    for &(name, next) in inner {
        profile = profile.inlined.entry((line, name)).or_default();
        profile.total = profile.total.saturating_add(number);
        line = next;
    }
    Some((profile, line))
}

/// Where a frame is; nowhere if the function that is really there is not known well enough. What is inlined counts as far as
/// it is known: the rest is a line of what is around it.
fn position(frame: FrameId, tables: &Tables) -> Position<'_> {
    let outermost_first = tables.lines(frame).iter().rev();
    outermost_first
        .map_while(|line| {
            let function = tables.functions.get(line.function)?;
            let declared = tables.declared(line.function)?;
            let name = declared.linkage_name.or(function.linkage_name);
            let name = tables.string(name.unwrap_or(function.name));
            // Readers keep 16 bits, so that what macros bring from elsewhere has a number, too.
            let offset = line.line.wrapping_sub(declared.line) & 0xffff;
            (line.line > 0 && is_name(name)).then_some((name, offset))
        })
        .collect()
}

/// Whether a reader takes it for a name: what a compiler calls a function.
fn is_name(name: &str) -> bool {
    let begins_otherwise = |c: char| c.is_ascii_digit() || matches!(c, '[' | '#' | '!');
    !name.is_empty()
        && !name.starts_with(begins_otherwise)
        && !name.contains(|c: char| c.is_whitespace() || c.is_control())
}
