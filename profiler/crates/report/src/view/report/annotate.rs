//! One function in detail: samples per source line and per instruction.
//!
//! Input: a folded recording and a function's name; output: [`Annotation`]. Shares are of the
//! samples that have the function in their stacks. Instructions come from the code kept in the
//! recording, source text from files here (see `source`). Addresses are those of the object file's
//! own symbols, as `objdump -d` prints them.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::build::{self, Base};
use super::data::{FunctionRow, Header, Share};
use super::disassemble::{self, Instruction};
use super::options::ReportOptions;
use super::source::Readers;
use super::{Recording, ReportError, header, source};
use crate::derive::{Functions, Owner, Pattern, Place, PlaceId, Sums};
use profiler_model::sorting::InOrder;
use profiler_model::*;

/// Name and version of this shape.
const SCHEMA: &str = "profiler-report-annotate/1";
/// More functions of the name are only counted.
const MAX_OTHERS: usize = 10;

/// A function in detail.
#[derive(Clone, Debug, Serialize)]
pub struct Annotation {
    /// Name and version of this shape.
    pub schema: &'static str,
    /// What was recorded.
    pub header: Header,
    /// The function; its shares are of all selected samples.
    pub function: FunctionRow,
    /// Address of its first instruction.
    pub start: Option<u64>,
    /// Its length.
    pub size_bytes: Option<u64>,
    /// Other functions that match, hottest first.
    pub others: Vec<FunctionRow>,
    /// Source files with lines of the function.
    pub files: Vec<SourceFile>,
    /// Instructions in order of address; all of the function if its code was kept.
    pub instructions: Vec<InstructionRow>,
    /// What could not be shown, why, and what to do.
    pub notes: Vec<String>,
}

/// A source file.
#[derive(Clone, Debug, Serialize)]
pub struct SourceFile {
    /// Its path.
    pub path: String,
    /// Lines with samples; with those around them if the file could be read.
    pub lines: Vec<SourceLine>,
}

/// A source line.
#[derive(Clone, Debug, Serialize)]
pub struct SourceLine {
    /// Its number, from 1.
    pub line: u32,
    /// Its text, if the file could be read.
    pub text: Option<String>,
    /// How hot it is.
    #[serde(flatten)]
    pub share: Share,
}

/// An instruction.
#[derive(Clone, Debug, Serialize)]
pub struct InstructionRow {
    /// Its address in the object file.
    pub address: u64,
    /// Its bytes in hex; none where the recording has no code.
    pub bytes: Option<String>,
    /// In words.
    pub text: Option<String>,
    /// How hot it is.
    #[serde(flatten)]
    pub share: Share,
}

pub(super) fn build(
    recording: &Recording<'_>,
    options: &ReportOptions,
    name: &str,
) -> Result<Annotation, ReportError> {
    let base = Base::new(recording, options)?;
    let mut matching = functions(&base, name);
    if matching.is_empty() {
        return Err(ReportError::NoFunction(name.to_owned()));
    }
    let (place, function) = matching.remove(0);
    let others = matching.into_iter().take(MAX_OTHERS).map(|(_, row)| row);
    let others = others.collect();

    let whole = function.share.total_weight;
    let target = Target::new(&base, place);
    let sums = target.sum(&base);
    let mut notes = Vec::new();
    let realtime_ns = recording.collected.started_realtime_ns();
    let owners = sums.owners.iter().map(|owner| owner.process(base.tables));
    let readers = Readers::of(base.tables, owners, options.source_dir.as_deref());
    let files = source_files(base.tables, &sums, whole, &readers, realtime_ns, &mut notes);
    let body = target.body(base.tables, &sums);
    let mut annotation = Annotation {
        schema: SCHEMA,
        header: header::build(recording, &base),
        function,
        start: body.as_ref().map(|body| body.shown(body.start)),
        size_bytes: body.as_ref().and_then(|body| body.size),
        others,
        files,
        instructions: Vec::new(),
        notes,
    };
    match body {
        Some(body) => instructions(&base, &body, &sums, &mut annotation),
        None => annotation.notes.push(match annotation.function.inlined {
            true => {
                "it was inlined wherever it ran: its instructions are in its callers".to_owned()
            }
            false => "its address range is not known: no instructions can be shown".to_owned(),
        }),
    }
    Ok(annotation)
}

/// Functions of exactly this name, else those that match; the hottest first.
fn functions(base: &Base<'_>, name: &str) -> Vec<(PlaceId, FunctionRow)> {
    let mut named = build::matching(base, &Pattern::new(name));
    named.retain(|(_, row)| row.named || row.start.is_some());
    named.order_by_key(|(id, row)| {
        let share = &row.share;
        (
            std::cmp::Reverse((share.self_weight, share.total_weight)),
            *id,
        )
    });
    named
}

/// Which code belongs to the function.
struct Target<'a> {
    functions: &'a Functions,
    module: Option<ModuleId>,
    /// The one that stands for it.
    function: Option<FunctionId>,
}

/// Sums per place of the function.
#[derive(Default)]
struct PlaceSums {
    lines: BTreeMap<(Option<StringId>, u32), Sums>,
    /// By frame: samples that ended in it, and samples with it anywhere.
    frames: BTreeMap<FrameId, Sums>,
    /// Who ran it.
    owners: BTreeSet<Owner>,
}

/// The function's own code, not the copies that were inlined.
struct Body {
    module: ModuleId,
    kind: ModuleKind,
    path: StringId,
    bias: u64,
    start: u64,
    size: Option<u64>,
    /// Starts of its other parts.
    twins: usize,
}

impl Body {
    /// The address as the object file's own symbols have it.
    fn shown(&self, address: u64) -> u64 {
        address.wrapping_add(self.bias)
    }
}

impl Target<'_> {
    fn new<'a>(base: &'a Base<'_>, place: PlaceId) -> Target<'a> {
        let functions = &base.functions;
        match base.tree.place(place).place {
            Place::Function {
                module, function, ..
            } => Target {
                functions,
                module,
                function: Some(function),
            },
            _ => Target {
                functions,
                module: None,
                function: None,
            },
        }
    }

    fn has(&self, tables: &Tables, frame: FrameId, line: &Line) -> bool {
        let frame_module = || tables.frames.get(frame).and_then(|frame| frame.module);
        tables.functions.get(line.function).is_some_and(|function| {
            Some(self.functions.same(line.function)) == self.function
                && function.module.or_else(frame_module) == self.module
        })
    }

    /// Sums over all stacks with the function; recursion counts once.
    fn sum(&self, base: &Base<'_>) -> PlaceSums {
        let tables = base.tables;
        let mut sums = PlaceSums::default();
        let (mut lines_seen, mut frames_seen) = (Vec::new(), Vec::new());
        for selected in &base.selected {
            lines_seen.clear();
            frames_seen.clear();
            let key = &selected.key;
            let frames = tables.frames_of_both(key.kernel, key.user);
            for (depth, frame) in frames.enumerate() {
                for (inline_depth, line) in tables.lines(frame).iter().enumerate() {
                    if !self.has(tables, frame, line) {
                        continue;
                    }
                    sums.owners.insert(key.owner);
                    let aggregate = &selected.aggregate;
                    let (count, weight) = (aggregate.count, aggregate.weight);
                    let function = tables.functions.get(line.function);
                    let place = (function.and_then(|function| function.file), line.line);
                    let sum = sums.lines.entry(place).or_default();
                    add(
                        sum,
                        count,
                        weight,
                        depth == 0 && inline_depth == 0,
                        &mut lines_seen,
                        place,
                    );
                    let sum = sums.frames.entry(frame).or_default();
                    add(sum, count, weight, depth == 0, &mut frames_seen, frame);
                }
            }
        }
        sums
    }

    /// Where the function's own code is: of several starts the one with the most samples.
    fn body(&self, tables: &Tables, sums: &PlaceSums) -> Option<Body> {
        let mut starts: BTreeMap<(u64, Option<u64>), u64> = BTreeMap::new();
        for (&frame, sums) in &sums.frames {
            let function = tables
                .lines(frame)
                .last()
                .filter(|line| self.has(tables, frame, line));
            let function = function.and_then(|line| tables.functions.get(line.function));
            if let Some((start, size)) = function.and_then(|f| Some((f.start?, f.size))) {
                let weight = starts.entry((start, size)).or_default();
                *weight = weight.saturating_add(sums.weight);
            }
        }
        let (&(start, size), _) = starts.iter().max_by_key(|(_, weight)| **weight)?;
        let module = self.module?;
        let known = tables.modules.get(module)?;
        Some(Body {
            module,
            kind: known.kind,
            path: known.path,
            bias: known.address_bias,
            start,
            size,
            twins: starts.len() - 1,
        })
    }
}

fn add<T: PartialEq>(
    sum: &mut Sums,
    count: u64,
    weight: u64,
    is_self: bool,
    seen: &mut Vec<T>,
    this: T,
) {
    // Several lines of one leaf frame can be of the function when it was inlined into itself.
    let first = !seen.contains(&this);
    if is_self && first {
        sum.self_count += count;
        sum.self_weight = sum.self_weight.saturating_add(weight);
    }
    if first {
        sum.count += count;
        sum.weight = sum.weight.saturating_add(weight);
        seen.push(this);
    }
}

fn source_files(
    tables: &Tables,
    sums: &PlaceSums,
    whole: u64,
    readers: &Readers<'_>,
    started_realtime_ns: Option<u64>,
    notes: &mut Vec<String>,
) -> Vec<SourceFile> {
    let mut files: BTreeMap<StringId, Vec<SourceLine>> = BTreeMap::new();
    let mut unknown = 0;
    for (&(file, line), sums) in &sums.lines {
        match file.filter(|_| line > 0) {
            Some(file) => files.entry(file).or_default().push(SourceLine {
                line,
                text: None,
                share: share(sums, whole),
            }),
            None => unknown += sums.count,
        }
    }
    if unknown > 0 {
        notes.push(match files.is_empty() {
            true => "no source lines are known: its file has no debug information (install its debug package, or record with --debuginfod)".to_owned(),
            false => format!("{unknown} samples have no source line"),
        });
    }
    let mut shown: Vec<SourceFile> = (files.into_iter())
        .map(|(path, lines)| {
            let path = tables.string(path).to_owned();
            let lines = source::with_text(&path, lines, readers, started_realtime_ns, notes);
            SourceFile { path, lines }
        })
        .collect();
    shown.order_by(|a, b| {
        let own = |file: &SourceFile| file.lines.iter().map(|l| l.share.self_samples).sum::<u64>();
        (own(b), &a.path).cmp(&(own(a), &b.path))
    });
    shown
}

fn instructions(base: &Base<'_>, body: &Body, sums: &PlaceSums, annotation: &mut Annotation) {
    let tables = base.tables;
    let whole = annotation.function.share.total_weight;
    if body.twins > 0 {
        annotation.notes.push(format!(
            "it has {} more parts elsewhere in its file; the instructions are those of the hottest",
            body.twins
        ));
    }
    let mut code: Vec<Instruction> = Vec::new();
    if tables.session.arch == "x86_64" {
        let end = body.size.map(|size| body.start.saturating_add(size));
        code = disassemble::range(tables, body.module, body.start, end, body.bias);
    } else {
        annotation.notes.push(format!(
            "code of {} cannot be disassembled",
            tables.session.arch
        ));
    }
    let mut rows: BTreeMap<u64, (Option<Instruction>, Sums)> = BTreeMap::new();
    for instruction in code {
        rows.insert(instruction.address, (Some(instruction), Sums::default()));
    }
    let mut outside = false;
    for (&frame, frame_sums) in &sums.frames {
        let Some(frame) = tables.frames.get(frame) else {
            continue;
        };
        let in_body = frame.address >= body.start
            && (body.size).is_none_or(|size| frame.address - body.start < size.max(1));
        if frame.module != Some(body.module) || !in_body {
            continue;
        }
        // A caller's address lies inside its call instruction.
        let around = rows.range_mut(..=frame.address).next_back();
        let (_, sum) = match around {
            Some((&at, row))
                if row
                    .0
                    .as_ref()
                    .is_some_and(|i| frame.address - at < i.length()) =>
            {
                row
            }
            _ => {
                outside = true;
                rows.entry(frame.address).or_default()
            }
        };
        sum.self_count += frame_sums.self_count;
        sum.self_weight = sum.self_weight.saturating_add(frame_sums.self_weight);
        sum.count += frame_sums.count;
        sum.weight = sum.weight.saturating_add(frame_sums.weight);
    }
    if outside {
        annotation.notes.push(missing_code(tables, body));
    }
    annotation.instructions = rows
        .into_iter()
        .map(|(address, (instruction, sums))| InstructionRow {
            address: body.shown(address),
            bytes: instruction.as_ref().map(Instruction::hex),
            text: instruction.map(|instruction| instruction.text),
            share: share(&sums, whole),
        })
        .collect();
}

/// Why there are no instructions, and how to see them all the same.
fn missing_code(tables: &Tables, body: &Body) -> String {
    let what = "the recording has no code at some sampled addresses";
    if body.kind != ModuleKind::File {
        return format!("{what}: it keeps that of files only");
    }
    let end = body.start.saturating_add(body.size.unwrap_or(0x100));
    format!(
        "{what}; if the file is still there, see: \
         objdump -d --start-address={:#x} --stop-address={:#x} {}",
        body.shown(body.start),
        body.shown(end),
        tables.string(body.path)
    )
}

fn share(sums: &Sums, whole: u64) -> Share {
    Share {
        self_samples: sums.self_count,
        self_weight: sums.self_weight,
        self_percent: build::share_of(sums.self_weight, whole),
        total_samples: sums.count,
        total_weight: sums.weight,
        total_percent: build::share_of(sums.weight, whole),
        self_wait_weight: 0,
        total_wait_weight: 0,
    }
}
