//! pprof: protobuf, gzipped as a rule. Each value of a sample is one of ours, that weighs it.
//!
//! Of the types of values those that don't merely count are taken, if there are any. Labels of ours (`process`, `pid`,
//! `thread`, `tid`) tell whose it is; else all is of one process, called like its first object.

use std::io::{BufRead, Read};

use rustc_hash::FxHashMap;

use super::ImportError;
use super::intake::Intake;
use profiler_model::*;
use profiler_wire::Message;
use profiler_wire::pprof as proto;

/// Most bytes of an unpacked profile: decoded, two bytes of it can be 72.
const MAX_BYTES: u64 = 1 << 26;

fn damaged<T>(what: &str) -> Result<T, ImportError> {
    Err(ImportError::Damaged(format!(
        "it is no profile of pprof: {what}"
    )))
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
        return damaged(&error.to_string());
    }
    if bytes.len() as u64 > MAX_BYTES {
        return damaged(&format!("it has more than {MAX_BYTES} bytes"));
    }
    let profile = match proto::Profile::decode(&bytes[..]) {
        Ok(profile) => profile,
        Err(error) => return damaged(&error.to_string()),
    };
    drop(bytes);
    Profile::new(&profile)?.import(intake)
}

struct Profile<'a> {
    all: &'a proto::Profile,
    functions: FxHashMap<u64, &'a proto::Function>,
    locations: FxHashMap<u64, &'a proto::Location>,
    mappings: FxHashMap<u64, &'a proto::Mapping>,
    frames: FxHashMap<u64, FrameId>,
}

impl<'a> Profile<'a> {
    fn new(all: &'a proto::Profile) -> Result<Profile<'a>, ImportError> {
        if all.sample_type.is_empty() {
            return damaged("it has no types of samples");
        }
        Ok(Profile {
            all,
            functions: all.function.iter().map(|it| (it.id, it)).collect(),
            locations: all.location.iter().map(|it| (it.id, it)).collect(),
            mappings: all.mapping.iter().map(|it| (it.id, it)).collect(),
            frames: FxHashMap::default(),
        })
    }

    fn text(&self, index: i64) -> Result<&'a str, ImportError> {
        let texts = &self.all.string_table;
        match usize::try_from(index)
            .ok()
            .and_then(|index| texts.get(index))
        {
            Some(text) => Ok(text),
            None => damaged(&format!("there is no text {index}")),
        }
    }

    fn import(mut self, intake: &mut Intake<'_>) -> Result<(), ImportError> {
        let all = self.all;
        let mut types = Vec::new();
        for kind in &all.sample_type {
            types.push((self.text(kind.kind)?, self.text(kind.unit)?));
        }
        let only_counts = types.iter().all(|(_, unit)| *unit == "count");
        let mut sources = Vec::new();
        for (kind, unit) in types {
            let wanted = only_counts || unit != "count";
            let unit = match unit {
                "nanoseconds" => Unit::Nanoseconds,
                _ => Unit::Events,
            };
            sources.push(wanted.then(|| intake.source(kind, unit, None)));
        }
        let begin = intake.after();
        if let Ok(wall @ 1..) = u64::try_from(all.time_nanos) {
            intake.event(Event::Clock(Clock {
                monotonic: begin,
                realtime_ns: wall,
            }))?;
        }
        let duration = u64::try_from(all.duration_nanos).unwrap_or(0);
        let count = all.sample.len().max(1) as u64;
        let first = all
            .mapping
            .first()
            .map_or(Ok(""), |it| self.text(it.filename))?;
        let first = first.rsplit('/').next().unwrap_or("").to_owned();
        for (index, sample) in all.sample.iter().enumerate() {
            if sample.value.len() != sources.len() {
                return damaged("a sample has more or fewer values than there are types");
            }
            let mut frames = Vec::with_capacity(sample.location_id.len());
            for &id in sample.location_id.iter().rev() {
                frames.push(self.frame(id, intake)?);
            }
            let stacks = intake.stacks(&frames);
            let thread = self.thread(sample, &first, intake)?;
            // They have no times: they are spread over that of the recording.
            let share = u128::from(duration) * index as u128 / u128::from(count);
            let at = Timestamp(begin.0.saturating_add(share as u64));
            for (value, source) in sample.value.iter().zip(&sources) {
                match (u64::try_from(*value), source) {
                    (Ok(0), _) | (_, None) => {}
                    (Err(_), Some(_)) => intake.leave_out(),
                    (Ok(weight), Some(source)) => {
                        let sample = Sample::new(at, thread, Cpu(0), *source, weight);
                        intake.unsaid(sample, stacks)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn thread(
        &self,
        sample: &proto::Sample,
        process: &str,
        intake: &mut Intake<'_>,
    ) -> Result<ThreadId, ImportError> {
        let (mut pid, mut tid) = (None, None);
        let (mut process, mut thread) = (process, None);
        for label in &sample.label {
            let number = u32::try_from(label.num).ok();
            match self.text(label.key)? {
                "process" => process = self.text(label.str)?,
                "thread" | "thread_name" => thread = Some(self.text(label.str)?),
                "pid" => pid = number,
                "tid" | "thread_id" => tid = number,
                _ => {}
            }
        }
        let pid = pid.unwrap_or(1);
        Ok(intake.thread(pid, process, tid.unwrap_or(pid), thread.unwrap_or(process)))
    }

    fn frame(&mut self, id: u64, intake: &mut Intake<'_>) -> Result<FrameId, ImportError> {
        if let Some(&frame) = self.frames.get(&id) {
            return Ok(frame);
        }
        let Some(&location) = self.locations.get(&id) else {
            return damaged(&format!("there is no location {id}"));
        };
        let mapping = self.mappings.get(&location.mapping_id).copied();
        let (mut module, mut kind) = (None, FrameKind::Native);
        if let Some(mapping) = mapping {
            let path = self.text(mapping.filename)?;
            let module_kind = match path {
                _ if path.starts_with("[kernel") => ModuleKind::Kernel,
                _ if path.starts_with("[jit") => ModuleKind::Jit,
                "[vdso]" => ModuleKind::Vdso,
                _ => ModuleKind::File,
            };
            kind = match module_kind {
                ModuleKind::Kernel => FrameKind::Kernel,
                ModuleKind::Jit => FrameKind::Jit,
                _ => FrameKind::Native,
            };
            let build_id = build_id(self.text(mapping.build_id)?);
            module = Some(intake.module(module_kind, path, build_id));
        }
        let mut lines = Vec::new();
        for line in &location.line {
            let Some(&function) = self.functions.get(&line.function_id) else {
                return damaged(&format!("there is no function {}", line.function_id));
            };
            let (name, symbol) = (self.text(function.name)?, self.text(function.system_name)?);
            let file = self.text(function.filename)?;
            let function = Function {
                name: intake.string(name),
                linkage_name: (!symbol.is_empty() && symbol != name).then(|| intake.string(symbol)),
                module,
                file: (!file.is_empty()).then(|| intake.string(file)),
                line: 0,
                start: None,
                size: None,
            };
            lines.push(Line {
                function: intake.function(function),
                line: u32::try_from(line.line).unwrap_or(0),
            });
        }
        // Without an address places are told apart by their numbers.
        let address = match location.address {
            0 => id,
            address => address,
        };
        let symbol = || match lines.is_empty() {
            true => Symbol::Unknown(UnknownReason::NoSymbol),
            false => Symbol::Lines(lines.into()),
        };
        let frame = Frame {
            kind,
            module,
            address,
        };
        let frame = intake.frame(frame, symbol);
        self.frames.insert(id, frame);
        Ok(frame)
    }
}

/// A build id in hexadecimal.
fn build_id(text: &str) -> Option<BuildId> {
    let digits = text.as_bytes();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    let bytes: Option<Vec<u8>> = digits.chunks(2).map(byte).collect();
    Some(BuildId(bytes.filter(|bytes| !bytes.is_empty())?.into()))
}
