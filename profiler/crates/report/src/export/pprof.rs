//! pprof: gzipped protobuf of sums per stack and thread, with all sources of a recording as sample types.
//!
//! Input: events; output: `profile.proto` (layout: [`wire::pprof`](profiler_wire::pprof)). Weights are in the unit of
//! their source, times nanoseconds. Memory is bounded by the number of distinct stacks: of the output, only what has
//! numbers is remembered. The mapping, and what is lost: docs/formats/pprof.md.

use std::io::{self, BufWriter, Write};

use flate2::Compression;
use flate2::write::GzEncoder;
use profiler_model::text::TextMap;
use rustc_hash::FxHashMap;

use super::calls::CallSums;
use super::collect::{SOURCE_OF_ALL, SOURCE_OF_TIME};
use super::functions::{NO_STACK, Named, Numbers};
use super::settings::Settings;
use super::summed::{Summed, count};
use super::{Format, Output, ShownSources, Shows};
use crate::derive::{Functions, Merge, Owner, container_label_of, first_same, frame_lines};
use profiler_model::*;
use profiler_wire::pprof::{self as proto, Label, Line, Profile, ValueType, field};
use profiler_wire::{Message, prost::encoding};

pub(super) const FORMAT: Format = Format {
    name: "pprof",
    extensions: &[".pb.gz", ".pprof"],
    description: "pprof profile, for go tool pprof, Pyroscope and Parca",
    shows: Shows::SamplesAndCalls,
    sources: ShownSources::All,
    options: &[&SOURCE_OF_ALL],
    sink: |settings, output| Box::new(Pprof::new(settings, output)),
    difference: None,
    declared: false,
};

/// The same, for `go build -pgo`: it counts from the lines that functions are declared at, and takes one type of samples.
pub(super) const GO: Format = Format {
    name: "pgo-go",
    extensions: &[".pgo"],
    description: "profile for go build -pgo: pprof with the lines that functions begin at",
    shows: Shows::Samples,
    sources: ShownSources::Time,
    options: &[&SOURCE_OF_TIME],
    sink: |settings, output| Box::new(Pprof::new(settings, output)),
    difference: None,
    declared: true,
};

struct Pprof {
    summed: Summed,
    output: Option<Output>,
}

impl Pprof {
    fn new(settings: &Settings, output: Output) -> Pprof {
        Pprof {
            summed: Summed::new(settings, Merge::Thread),
            output: Some(output),
        }
    }
}

impl Sink for Pprof {
    fn event(&mut self, event: &Event, tables: &Tables) -> io::Result<()> {
        self.summed.event(event, tables);
        Ok(())
    }

    fn finish(&mut self, tables: &Tables) -> io::Result<()> {
        let sources = self.summed.sources(tables)?;
        let Some(output) = self.output.take() else {
            return Ok(());
        };
        let output = GzEncoder::new(BufWriter::new(output), Compression::new(6));
        let mut writer = Writer::new(tables, output)?;
        let (types, places) = types(&sources, &self.summed.calls, tables);
        let mut head = Profile::default();
        for (kind, unit) in &types {
            let kind = value_type(&mut writer, kind, unit)?;
            head.sample_type.push(kind);
        }
        let mut unnamed = 0;
        for (key, sums) in self.summed.samples.sorted() {
            let source = first_same(key.source, &sources, tables);
            let Some(&place) = source.and_then(|source| places.get(&source)) else {
                continue;
            };
            let mut values = vec![0; types.len()];
            let count = count(&key, sums);
            for (value, sum) in values.iter_mut().skip(place).zip([count, sums.weight]) {
                *value = signed(sum);
            }
            let mut sample = proto::Sample {
                value: values,
                label: writer.labels(key.owner, key.names)?,
                ..proto::Sample::default()
            };
            if let Some(state) = key.wait {
                sample.label.push(writer.text_label("wait", state.name())?);
            }
            let frames = tables.frames_of_both(key.kernel, key.user);
            let mut named = true;
            for frame in frames {
                let (id, has_name) = writer.location(frame)?;
                sample.location_id.push(id);
                named &= has_name;
            }
            if sample.location_id.is_empty() {
                sample.location_id.push(writer.no_stack()?);
            }
            unnamed += if named { 0 } else { sums.count };
            writer.put(field::SAMPLE, &sample)?;
        }
        self.summed.calls.chains(|process, chain| {
            let mut values = vec![0; types.len() - 2];
            values.extend([signed(chain.calls), signed(chain.self_ns)]);
            let owner = process.map(Owner::Process);
            let mut sample = proto::Sample {
                value: values,
                label: owner.map_or(Ok(Vec::new()), |owner| {
                    writer.labels(owner, NamesThen::default())
                })?,
                ..proto::Sample::default()
            };
            for &function in chain.functions {
                sample.location_id.push(writer.entry(function)?);
            }
            writer.put(field::SAMPLE, &sample)
        })?;
        writer.mappings()?;
        head.time_nanos = signed(
            self.summed
                .about
                .wall_ns(self.summed.about.first(tables))
                .unwrap_or(0),
        );
        head.duration_nanos = signed(self.summed.about.duration_ns(tables));
        self.period(&mut head, &sources, &mut writer)?;
        for note in self.summed.notes(tables, unnamed) {
            head.comment.push(writer.string(&note)?);
        }
        writer.write(&head)?;
        writer.output.finish()?.flush()
    }
}

impl Pprof {
    /// Which type is shown first, and how far apart its samples are.
    fn period(
        &self,
        head: &mut Profile,
        sources: &[SourceId],
        writer: &mut Writer<'_>,
    ) -> io::Result<()> {
        let known =
            |id: &SourceId| Some((writer.tables.sources.get(*id)?, head.sample_type.get(1)?));
        let Some((source, &kind)) = sources.first().and_then(known) else {
            head.default_sample_type = head.sample_type.last().map_or(0, |kind| kind.kind);
            return Ok(());
        };
        head.default_sample_type = kind.kind;
        head.period_type = Some(kind);
        let by_frequency = match source.unit {
            Unit::Nanoseconds => source
                .frequency_hz
                .and_then(|hz| 1_000_000_000_u64.checked_div(hz)),
            Unit::Cycles | Unit::Events => None,
        };
        head.period = signed(source.period.or(by_frequency).unwrap_or(0));
        Ok(())
    }
}

/// The types of values, each by name and unit; each source has two, from its place on. Those of calls are last.
fn types(
    sources: &[SourceId],
    calls: &CallSums,
    tables: &Tables,
) -> (Vec<(String, &'static str)>, FxHashMap<SourceId, usize>) {
    let (mut types, mut places) = (Vec::<(String, &str)>::new(), FxHashMap::default());
    for &id in sources {
        let Some(source) = tables.sources.get(id) else {
            continue;
        };
        places.insert(id, types.len());
        let name = tables.string(source.name);
        let taken = types.iter().any(|(kind, _)| kind == "samples");
        let (count, weight) = match (name, source.unit) {
            (OFF_CPU, _) => ("waits".to_owned(), "wait".to_owned()),
            (_, Unit::Nanoseconds) if !taken => ("samples".to_owned(), "cpu".to_owned()),
            _ if !taken => ("samples".to_owned(), name.to_owned()),
            _ => (format!("{name}-samples"), name.to_owned()),
        };
        let unit = match source.unit {
            Unit::Nanoseconds => "nanoseconds",
            Unit::Cycles | Unit::Events => "count",
        };
        types.extend([(count, "count"), (weight, unit)]);
    }
    if !calls.is_empty() {
        let of_calls = [("calls", "count"), ("call-time", "nanoseconds")];
        types.extend(of_calls.map(|(kind, unit)| (kind.to_owned(), unit)));
    }
    (types, places)
}

fn value_type(writer: &mut Writer<'_>, kind: &str, unit: &str) -> io::Result<ValueType> {
    Ok(ValueType {
        kind: writer.string(kind)?,
        unit: writer.string(unit)?,
    })
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// What is known of a module by the places in it.
#[derive(Clone, Copy, Default)]
struct Seen {
    limit: u64,
    functions: bool,
    files: bool,
    lines: bool,
    inlines: bool,
}

struct Writer<'a> {
    tables: &'a Tables,
    told: Functions,
    output: GzEncoder<BufWriter<Output>>,
    buffer: Vec<u8>,
    strings: TextMap<String, i64>,
    functions: Numbers<Named>,
    locations: u64,
    /// Locations by frame, and whether all of it has a name.
    frames: FxHashMap<FrameId, (u64, bool)>,
    nowhere: Option<u64>,
    /// Locations by the function whose first instruction they are.
    entries: FxHashMap<FunctionId, u64>,
    modules: Numbers<ModuleId>,
    seen: FxHashMap<ModuleId, Seen>,
    labels: FxHashMap<(Owner, NamesThen), Vec<Label>>,
}

impl<'a> Writer<'a> {
    fn new(tables: &'a Tables, output: GzEncoder<BufWriter<Output>>) -> io::Result<Writer<'a>> {
        let mut writer = Writer {
            tables,
            told: Functions::of(tables),
            output,
            buffer: Vec::new(),
            strings: TextMap::default(),
            functions: Numbers::default(),
            locations: 0,
            frames: FxHashMap::default(),
            nowhere: None,
            entries: FxHashMap::default(),
            modules: Numbers::default(),
            seen: FxHashMap::default(),
            labels: FxHashMap::default(),
        };
        writer.string("")?;
        Ok(writer)
    }

    /// Writes fields of the profile.
    fn write(&mut self, profile: &Profile) -> io::Result<()> {
        self.output.write_all(&profile.encode_to_vec())
    }

    /// Writes one part of a repeated field of the profile.
    fn put(&mut self, field: u32, message: &impl Message) -> io::Result<()> {
        self.buffer.clear();
        encoding::message::encode(field, message, &mut self.buffer);
        self.output.write_all(&self.buffer)
    }

    fn string(&mut self, text: &str) -> io::Result<i64> {
        if let Some(&number) = self.strings.get(text) {
            return Ok(number);
        }
        let text = text.to_owned();
        self.buffer.clear();
        encoding::string::encode(field::STRING, &text, &mut self.buffer);
        self.output.write_all(&self.buffer)?;
        let number = self.strings.len() as i64;
        self.strings.insert(text, number);
        Ok(number)
    }

    fn text_label(&mut self, key: &str, text: &str) -> io::Result<Label> {
        Ok(Label {
            key: self.string(key)?,
            str: self.string(text)?,
            num: 0,
        })
    }

    fn number_label(&mut self, key: &str, num: u32) -> io::Result<Label> {
        let (key, num) = (self.string(key)?, num.into());
        Ok(Label { key, str: 0, num })
    }

    /// What is known of who made a sample.
    fn labels(&mut self, owner: Owner, then: NamesThen) -> io::Result<Vec<Label>> {
        if let Some(labels) = self.labels.get(&(owner, then)) {
            return Ok(labels.clone());
        }
        let tables = self.tables;
        let mut labels = Vec::new();
        let (called, thread_called) = owner.names(then, tables);
        let text = |name: Option<StringId>| name.map_or("", |name| tables.string(name));
        if let Some(process) = owner.process(tables).and_then(|id| tables.process(id)) {
            labels.push(self.text_label("process", text(called))?);
            labels.push(self.number_label("pid", process.pid.0)?);
            if let Some(container) = container_label_of(tables, process) {
                labels.push(self.text_label("container", &container)?);
            }
        }
        if let Owner::Thread(id) = owner
            && let Some(thread) = tables.thread(id)
        {
            labels.push(self.text_label("thread", text(thread_called))?);
            labels.push(self.number_label("tid", thread.tid.0)?);
        }
        self.labels.insert((owner, then), labels.clone());
        Ok(labels)
    }

    fn next_location(&mut self) -> u64 {
        self.locations += 1;
        self.locations
    }

    fn no_stack(&mut self) -> io::Result<u64> {
        if let Some(id) = self.nowhere {
            return Ok(id);
        }
        let function_id = self.unnamed(Named::Nowhere, NO_STACK)?;
        let location = proto::Location {
            id: self.next_location(),
            line: vec![Line {
                function_id,
                line: 0,
            }],
            ..proto::Location::default()
        };
        self.put(field::LOCATION, &location)?;
        self.nowhere = Some(location.id);
        Ok(location.id)
    }

    /// The location of a frame, and whether all of it has a name.
    fn location(&mut self, frame: FrameId) -> io::Result<(u64, bool)> {
        if let Some(&known) = self.frames.get(&frame) {
            return Ok(known);
        }
        let mut location = proto::Location {
            id: self.next_location(),
            ..proto::Location::default()
        };
        let mut seen = Seen::default();
        let mut named = true;
        let tables = self.tables;
        for line in frame_lines(tables, frame) {
            let function_id = match line.function {
                Some(function) => self.function(function)?,
                None => self.unnamed(Named::Place(frame), &line.name)?,
            };
            let known = (line.function).is_some_and(|function| tables.is_named(function));
            named &= known;
            seen.functions |= known;
            seen.files |= line.file.is_some();
            seen.lines |= line.line > 0;
            seen.inlines |= line.inlined;
            let line = line.line.into();
            location.line.push(Line { function_id, line });
        }
        if let Some(place) = tables.frames.get(frame) {
            location.address = place.address;
            location.mapping_id = self.module(place.module, place.address, seen);
        }
        self.put(field::LOCATION, &location)?;
        self.frames.insert(frame, (location.id, named));
        Ok((location.id, named))
    }

    /// The location of a function's first instruction.
    fn entry(&mut self, function: FunctionId) -> io::Result<u64> {
        if let Some(&id) = self.entries.get(&function) {
            return Ok(id);
        }
        let function_id = self.function(function)?;
        let line = self.start_line(function);
        let mut location = proto::Location {
            id: self.next_location(),
            line: vec![Line { function_id, line }],
            ..proto::Location::default()
        };
        if let Some(known) = self.tables.functions.get(function) {
            let seen = Seen {
                functions: true,
                files: known.file.is_some(),
                lines: line > 0,
                ..Seen::default()
            };
            location.address = known.start.unwrap_or(0);
            location.mapping_id = self.module(known.module, location.address, seen);
        }
        self.put(field::LOCATION, &location)?;
        self.entries.insert(function, location.id);
        Ok(location.id)
    }

    /// The source line that a function begins at, where it is known.
    fn start_line(&self, function: FunctionId) -> i64 {
        self.tables.line_of(function).unwrap_or(0).into()
    }

    fn function(&mut self, id: FunctionId) -> io::Result<u64> {
        let id = self.told.same(id);
        let (number, new) = self.functions.of(Named::Function(id));
        if let (true, Some(function)) = (new, self.tables.functions.get(id)) {
            let tables = self.tables;
            // Readers take functions of one name for one.
            let name = self.told.name(tables, id);
            let name = self.string(&name)?;
            let system_name = match function.linkage_name {
                Some(linkage) => self.string(tables.string(linkage))?,
                None => self.string(tables.string(function.name))?,
            };
            let filename = self.string(function.file.map_or("", |file| tables.string(file)))?;
            let function = proto::Function {
                id: number,
                name,
                system_name,
                filename,
                start_line: self.start_line(id),
            };
            self.put(field::FUNCTION, &function)?;
        }
        Ok(number)
    }

    fn unnamed(&mut self, place: Named, name: &str) -> io::Result<u64> {
        let (id, new) = self.functions.of(place);
        if new {
            let name = self.string(name)?;
            let function = proto::Function {
                id,
                name,
                ..proto::Function::default()
            };
            self.put(field::FUNCTION, &function)?;
        }
        Ok(id)
    }

    /// The mapping of a module; 0 of none.
    fn module(&mut self, module: Option<ModuleId>, address: u64, more: Seen) -> u64 {
        let Some(module) = module else {
            return 0;
        };
        let seen = self.seen.entry(module).or_default();
        seen.limit = seen.limit.max(address.saturating_add(1));
        seen.functions |= more.functions;
        seen.files |= more.files;
        seen.lines |= more.lines;
        seen.inlines |= more.inlines;
        self.modules.of(module).0
    }

    /// Each module as if it were mapped once, from offset 0 to address 0: processes have it at different places.
    fn mappings(&mut self) -> io::Result<()> {
        let tables = self.tables;
        let modules = self.modules.in_order();
        let mut limits: FxHashMap<ModuleId, u64> = FxHashMap::default();
        for (_, mapping) in tables.mappings.iter() {
            let len = mapping.end.saturating_sub(mapping.start);
            let limit = limits.entry(mapping.module).or_default();
            *limit = (*limit).max(mapping.offset.saturating_add(len));
        }
        for (module_id, id) in modules {
            let Some(module) = tables.modules.get(module_id) else {
                continue;
            };
            let build_id = module.build_id.as_ref();
            let seen = self.seen.get(&module_id).copied().unwrap_or_default();
            let mapped = limits.get(&module_id).copied().unwrap_or(0);
            let mapping = proto::Mapping {
                id,
                memory_start: 0,
                memory_limit: mapped.max(seen.limit),
                file_offset: 0,
                filename: self.string(tables.string(module.path))?,
                build_id: self.string(&build_id.map_or(String::new(), BuildId::to_string))?,
                has_functions: seen.functions,
                has_filenames: seen.files,
                has_line_numbers: seen.lines,
                has_inline_frames: seen.inlines,
            };
            self.put(field::MAPPING, &mapping)?;
        }
        Ok(())
    }
}
