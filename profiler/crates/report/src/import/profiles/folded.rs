//! Folded stacks: `process;root;..;leaf number`, a sample a line that weighs the number.
//!
//! What marks frames have (`_[k]`, `_[j]`, `_[p]`, `_[i]`) is read as export writes it.

use rustc_hash::FxHashMap;

use super::intake::Intake;
use super::{ImportError, Lines, is_silent};
use profiler_model::text::TextMap;
use profiler_model::*;
use std::io::BufRead;

/// The stack of a line, and its number; fractions are left out.
pub(super) fn number(line: &str) -> Option<(&str, u64)> {
    let (stack, number) = line.trim_end().rsplit_once(' ')?;
    let whole = number.split_once('.').map_or(number, |(whole, _)| whole);
    let digits = number
        .bytes()
        .all(|byte| byte.is_ascii_digit() || byte == b'.');
    Some((stack, whole.parse().ok()?)).filter(|_| digits)
}

pub(super) fn read(input: &mut dyn BufRead, intake: &mut Intake<'_>) -> Result<(), ImportError> {
    let mut lines = Lines::new(input);
    let source = intake.source("samples", Unit::Events, Some(1));
    let mut threads: TextMap<String, ThreadId> = TextMap::default();
    let mut places: FxHashMap<(FrameKind, Vec<FunctionId>), FrameId> = FxHashMap::default();
    while lines.advance()? {
        if is_silent(lines.line()) {
            continue;
        }
        let (stack, weight) =
            number(lines.line()).ok_or_else(|| lines.wrong("no number is at its end"))?;
        let (process, rest) = stack.split_once(';').unwrap_or((stack, ""));
        let next = threads.len() as u32 + 1;
        let thread = match threads.get(process) {
            Some(&thread) => thread,
            None => {
                let thread = intake.thread(next, process, next, process);
                threads.insert(process.to_owned(), thread);
                thread
            }
        };
        let (mut frames, mut at) = (Vec::new(), 0);
        let names: Vec<&str> = rest.split(';').filter(|_| !rest.is_empty()).collect();
        while let Some(name) = names.get(at) {
            let (name, kind) = marked(name);
            let mut functions = vec![function(name, intake)];
            at += 1;
            // What is inlined is at the place of what it is inlined into.
            while let Some(inlined) = names.get(at).and_then(|name| name.strip_suffix("_[i]")) {
                functions.push(function(inlined, intake));
                at += 1;
            }
            functions.reverse();
            let number = places.len() as u64 + 1;
            let place = (kind, functions);
            let frame = match places.get(&place) {
                Some(&frame) => frame,
                None => {
                    let frame = Frame {
                        kind,
                        module: None,
                        address: number,
                    };
                    let line = |&function: &FunctionId| Line { function, line: 0 };
                    let lines = place.1.iter().map(line).collect();
                    let frame = intake.frame(frame, || Symbol::Lines(lines));
                    places.insert(place, frame);
                    frame
                }
            };
            frames.push(frame);
        }
        let stacks = intake.stacks(&frames);
        let sample = Sample::new(intake.after(), thread, Cpu(0), source, weight);
        intake.unsaid(sample, stacks)?;
    }
    Ok(())
}

/// A frame's name without its mark.
fn marked(name: &str) -> (&str, FrameKind) {
    let marks = [
        ("_[k]", FrameKind::Kernel),
        ("_[j]", FrameKind::Jit),
        ("_[p]", FrameKind::Interpreted),
    ];
    let found = marks
        .into_iter()
        .find_map(|(mark, kind)| Some((name.strip_suffix(mark)?, kind)));
    found.unwrap_or((name, FrameKind::Native))
}

fn function(name: &str, intake: &mut Intake<'_>) -> FunctionId {
    let name = intake.string(name);
    intake.function(Function {
        name,
        linkage_name: None,
        module: None,
        file: None,
        line: 0,
        start: None,
        size: None,
    })
}
