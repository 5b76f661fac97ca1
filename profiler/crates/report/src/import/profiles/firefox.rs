//! Profiles of the Firefox Profiler, in its processed form: samples of each thread with their stacks.
//!
//! JSON, gzipped or not -> samples. Tables are shared by all threads (since version 56 or so), or each thread has its own; both are
//! read, by their columns' names. Times are milliseconds since the profile's start, made nanoseconds. Weights are those of
//! the file; `tracing-ms` are made nanoseconds. Source: docs-developer of the Firefox Profiler, src/types/profile.js there.
//!
//! What does not belong here: Gecko's own form, markers, counters, memory.

use std::io::{BufRead, Read};

use rustc_hash::FxHashMap;
use serde_json::Value as Json;

use super::ImportError;
use super::intake::Intake;
use profiler_model::*;

/// Most bytes of a profile, unpacked: read, a few bytes can be 72.
const MAX_BYTES: u64 = 1 << 28;
/// Most frames of a stack.
const MAX_FRAMES: usize = 4096;

fn damaged<T>(what: impl std::fmt::Display) -> Result<T, ImportError> {
    Err(ImportError::Damaged(format!(
        "it is no profile of the Firefox Profiler: {what}"
    )))
}

/// Whether a file begins like one.
pub(super) fn begins(head: &[u8]) -> bool {
    if head.starts_with(&[0x1f, 0x8b]) {
        let mut first = [0; 64];
        let mut unpacked = flate2::read::GzDecoder::new(head);
        let got = unpacked.read(&mut first).unwrap_or(0);
        return first[..got].trim_ascii_start().starts_with(b"{");
    }
    head.trim_ascii_start().starts_with(b"{")
}

pub(super) fn read(input: &mut dyn BufRead, intake: &mut Intake<'_>) -> Result<(), ImportError> {
    let packed = input.fill_buf()?.starts_with(&[0x1f, 0x8b]);
    let mut bytes = Vec::new();
    let read = match packed {
        true => flate2::bufread::MultiGzDecoder::new(input)
            .take(MAX_BYTES + 1)
            .read_to_end(&mut bytes),
        false => input.take(MAX_BYTES + 1).read_to_end(&mut bytes),
    };
    if let Err(error) = read {
        return damaged(error);
    }
    if bytes.len() as u64 > MAX_BYTES {
        return damaged(format_args!("it has more than {MAX_BYTES} bytes"));
    }
    let profile: Json = match serde_json::from_slice(&bytes) {
        Ok(profile) => profile,
        Err(error) => return damaged(error),
    };
    drop(bytes);
    let (meta, threads) = (&profile["meta"], profile["threads"].as_array());
    let (Some(threads), true) = (threads, meta["preprocessedProfileVersion"].is_u64()) else {
        return damaged("it has no threads, or no version of the processed form");
    };
    let mut importer = Importer {
        begin: intake.after(),
        places: FxHashMap::default(),
    };
    if let Some(ms) = meta["startTime"].as_f64()
        && ms > 0.0
    {
        intake.event(Event::Clock(Clock {
            monotonic: importer.begin,
            realtime_ns: (ms * 1e6) as u64,
        }))?;
    }
    if let Some(name) = meta["product"].as_str() {
        name.clone_into(&mut intake.session.target);
    }
    let mut samples = Vec::new();
    for (index, thread) in threads.iter().enumerate() {
        let tables = match profile["shared"].is_object() {
            true => &profile["shared"],
            false => thread,
        };
        importer.thread(index, thread, tables, meta, &mut samples, intake)?;
    }
    samples.sort_by_key(|sample: &Sample| sample.at);
    for sample in samples {
        intake.sample(sample)?;
    }
    Ok(())
}

struct Importer {
    begin: Timestamp,
    /// Frames by function, line, and what they are inlined into: all that they are.
    places: FxHashMap<(FrameKind, Vec<(FunctionId, u32)>), FrameId>,
}

/// A cell of a table's column.
fn cell<'j>(table: &'j Json, column: &str, row: usize) -> &'j Json {
    &table[column][row]
}

fn index(value: &Json) -> Option<usize> {
    usize::try_from(value.as_u64()?).ok()
}

fn number(value: &Json) -> Option<u32> {
    match value {
        // They are texts where they may have a part behind a point.
        Json::String(text) => text.split('.').next()?.parse().ok(),
        value => u32::try_from(value.as_u64()?).ok(),
    }
}

impl Importer {
    fn thread(
        &mut self,
        row: usize,
        thread: &Json,
        tables: &Json,
        meta: &Json,
        all: &mut Vec<Sample>,
        intake: &mut Intake<'_>,
    ) -> Result<(), ImportError> {
        let samples = &thread["samples"];
        let count = index(&samples["length"]).unwrap_or(0);
        // A column can be left out, a row cannot.
        let stacks = samples["stack"].as_array().map_or(0, Vec::len);
        if count != stacks {
            return damaged(format_args!(
                "thread {row} has {stacks} stacks of {count} samples"
            ));
        }
        if count == 0 {
            return Ok(());
        }
        let text = |key: &str| thread[key].as_str().filter(|text| !text.is_empty());
        let name = text("name").unwrap_or("thread");
        let process = text("processName").or(text("processType")).unwrap_or(name);
        let pid = number(&thread["pid"]).unwrap_or(1);
        let tid = number(&thread["tid"]).unwrap_or(row as u32 + 1);
        let id = intake.thread(pid, process, tid, name);
        let kind = samples["weightType"].as_str().unwrap_or("samples");
        let source = match kind {
            "tracing-ms" => intake.source("cpu", Unit::Nanoseconds, None),
            kind => intake.source(kind, Unit::Events, None),
        };
        let categories = meta["categories"].as_array();
        let mut known: FxHashMap<usize, (Option<StackId>, Option<StackId>)> = FxHashMap::default();
        let mut ms = 0.0;
        for at in 0..count {
            match cell(samples, "time", at).as_f64() {
                Some(time) => ms = time,
                None => ms += cell(samples, "timeDeltas", at).as_f64().unwrap_or(0.0),
            }
            let weight = match cell(samples, "weight", at) {
                Json::Null => Some(1),
                value if kind == "tracing-ms" => value
                    .as_f64()
                    .filter(|ms| *ms >= 0.0)
                    .map(|ms| (ms * 1e6).round() as u64),
                value => value.as_u64().or_else(|| {
                    let value = value.as_f64().filter(|it| *it >= 0.0);
                    value.map(|it| it.round() as u64)
                }),
            };
            let Some(weight) = weight else {
                intake.leave_out();
                continue;
            };
            let stack = index(cell(samples, "stack", at));
            let (user, kernel) = match stack {
                None => (None, None),
                Some(stack) => match known.get(&stack) {
                    Some(&stacks) => stacks,
                    None => {
                        let frames = self.stack(stack, tables, categories, intake)?;
                        let stacks = intake.stacks(&frames);
                        known.insert(stack, stacks);
                        stacks
                    }
                },
            };
            let time = self.begin.0.saturating_add((ms.max(0.0) * 1e6) as u64);
            let sample = Sample::new(Timestamp(time), id, Cpu(0), source, weight);
            let sample = sample.with_stacks(kernel, user);
            all.push(sample.with_ends(StackEnd::NotSaid));
        }
        Ok(())
    }

    /// The frames of a stack, root first.
    fn stack(
        &mut self,
        leaf: usize,
        tables: &Json,
        categories: Option<&Vec<Json>>,
        intake: &mut Intake<'_>,
    ) -> Result<Vec<FrameId>, ImportError> {
        let stack_table = &tables["stackTable"];
        let (mut rows, mut at) = (Vec::new(), Some(leaf));
        while let Some(row) = at {
            let Some(frame) = index(cell(stack_table, "frame", row)) else {
                return damaged(format_args!("stack {row} has no frame"));
            };
            rows.push((frame, index(cell(stack_table, "category", row))));
            at = index(cell(stack_table, "prefix", row));
            if rows.len() >= MAX_FRAMES || at.is_some_and(|next| next >= row) {
                return damaged(format_args!("the stack {leaf} has no end"));
            }
        }
        rows.reverse();
        let mut frames = Vec::new();
        let mut lines: Vec<(FunctionId, u32)> = Vec::new();
        let mut of_kernel = false;
        for (place, &(frame, category)) in rows.iter().enumerate() {
            lines.push(self.line(frame, tables, intake)?);
            let frame_table = &tables["frameTable"];
            let category = category.or_else(|| index(cell(frame_table, "category", frame)));
            let category = category.and_then(|it| categories?.get(it)?["name"].as_str());
            of_kernel |= category == Some("Kernel");
            // What is inlined is at the place of what it is inlined into.
            let next = rows.get(place + 1).map(|(next, _)| *next);
            let depth = |frame| index(cell(frame_table, "inlineDepth", frame)).unwrap_or(0);
            let address = |frame| cell(frame_table, "address", frame).as_i64();
            let is_inlined = next
                .is_some_and(|next| depth(next) > depth(frame) && address(next) == address(frame));
            if is_inlined {
                continue;
            }
            lines.reverse();
            let kind = match of_kernel {
                true => FrameKind::Kernel,
                false => FrameKind::Native,
            };
            frames.push(self.place(kind, std::mem::take(&mut lines), intake));
        }
        Ok(frames)
    }

    fn line(
        &self,
        frame: usize,
        tables: &Json,
        intake: &mut Intake<'_>,
    ) -> Result<(FunctionId, u32), ImportError> {
        let strings = match tables["stringArray"].is_array() {
            true => &tables["stringArray"],
            false => &tables["stringTable"],
        };
        let text = |id: &Json| index(id).and_then(|id| strings[id].as_str());
        let frame_table = &tables["frameTable"];
        let functions = &tables["funcTable"];
        let function = index(cell(frame_table, "func", frame));
        let Some(function) = function else {
            return damaged(format_args!("frame {frame} has no function"));
        };
        let Some(name) = text(cell(functions, "name", function)) else {
            return damaged(format_args!("function {function} has no name"));
        };
        // A file has a name of its own, or is a row of the table of sources.
        let file = text(cell(functions, "fileName", function)).or_else(|| {
            let source = index(cell(functions, "source", function))?;
            text(cell(&tables["sources"], "filename", source))
        });
        let line = number(cell(frame_table, "line", frame)).unwrap_or(0);
        let function = Function {
            name: intake.string(name),
            linkage_name: None,
            module: None,
            file: file
                .filter(|file| !file.is_empty())
                .map(|file| intake.string(file)),
            line: 0,
            start: None,
            size: None,
        };
        Ok((intake.function(function), line))
    }

    fn place(
        &mut self,
        kind: FrameKind,
        lines: Vec<(FunctionId, u32)>,
        intake: &mut Intake<'_>,
    ) -> FrameId {
        let next = self.places.len() as u64 + 1;
        let key = (kind, lines);
        if let Some(&frame) = self.places.get(&key) {
            return frame;
        }
        let frame = Frame {
            kind,
            module: None,
            address: next,
        };
        let of = |&(function, line): &(FunctionId, u32)| Line { function, line };
        let symbol: Vec<Line> = key.1.iter().map(of).collect();
        let frame = intake.frame(frame, || Symbol::Lines(symbol.into()));
        self.places.insert(key, frame);
        frame
    }
}
