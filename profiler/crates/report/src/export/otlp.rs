//! OpenTelemetry profiles: sums per stack and thread, a resource for each process.
//!
//! Input: events; output: protobuf of `ProfilesData` (layout: [`wire::otlp`](profiler_wire::otlp)). Weights are in the
//! unit of their source, times nanoseconds. Memory is bounded by the number of distinct stacks. The mapping, and what is
//! lost: docs/formats/otlp.md.

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::io::{self, BufWriter, Write};

use rustc_hash::{FxHashMap, FxHasher};

use super::collect::SOURCE_OF_ALL;
use super::functions::NO_STACK;
use super::settings::Settings;
use super::summed::{Summed, count};
use super::{Format, Output, ShownSources, Shows};
use crate::derive::{Functions, Key, Merge, Owner, first_same, frame_lines};
use profiler_model::text::TextMap;
use profiler_model::*;
use profiler_wire::Message;
use profiler_wire::otlp::{self as proto, Any, AnyValue, Dictionary, KeyValue, ValueType};

pub(super) const FORMAT: Format = Format {
    name: "otlp",
    extensions: &[".otlp", ".otlp.pb"],
    description: "OpenTelemetry profiles (v1development), for Pyroscope and collectors",
    shows: Shows::SamplesAndCalls,
    sources: ShownSources::All,
    options: &[&SOURCE_OF_ALL],
    sink: |settings, output| Box::new(Otlp::new(settings, output)),
    difference: None,
    declared: false,
};

struct Otlp {
    summed: Summed,
    output: BufWriter<Output>,
}

/// The samples of a process in one type.
#[derive(Default)]
struct Typed {
    samples: Vec<proto::Sample>,
}

/// Types of values: of each source how many and what they weigh; of calls how many and how long.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Type {
    Count(SourceId),
    Weight(SourceId),
    Calls,
    CallTime,
}

impl Otlp {
    fn new(settings: &Settings, output: Output) -> Otlp {
        Otlp {
            summed: Summed::new(settings, Merge::Thread),
            output: BufWriter::new(output),
        }
    }

    fn profile(
        &self,
        kind: Type,
        typed: Typed,
        process: Option<ProcessId>,
        writer: &mut Writer<'_>,
    ) -> proto::Profile {
        let (name, unit, source) = match kind {
            Type::Count(id) | Type::Weight(id) => {
                let source = writer.tables.sources.get(id);
                let name = source.map_or("unknown", |source| writer.tables.string(source.name));
                let is_time = source.is_some_and(|source| source.unit == Unit::Nanoseconds);
                let unit = if is_time { "nanoseconds" } else { "count" };
                match (kind, name) {
                    (Type::Count(_), OFF_CPU) => ("waits", "count", source),
                    (Type::Count(_), _) => ("samples", "count", source),
                    (_, OFF_CPU) => ("off_cpu", unit, source),
                    _ if is_time => ("cpu", unit, source),
                    _ => (name, unit, source),
                }
            }
            Type::Calls => ("calls", "count", None),
            Type::CallTime => ("call_time", "nanoseconds", None),
        };
        let sample_type = writer.kind(name, unit);
        let interval = source.and_then(|source| match source.unit {
            Unit::Nanoseconds => (source.frequency_hz)
                .and_then(|hz| 1_000_000_000_u64.checked_div(hz))
                .or(source.period),
            Unit::Cycles | Unit::Events => source.period,
        });
        let name = source.map_or("", |source| writer.tables.string(source.name));
        let period_type = match source.map(|source| source.unit) {
            Some(Unit::Nanoseconds) => writer.kind("cpu", "nanoseconds"),
            Some(Unit::Cycles | Unit::Events) => writer.kind(name, "count"),
            None => sample_type,
        };
        let time = self
            .summed
            .about
            .wall_ns(self.summed.about.first(writer.tables))
            .unwrap_or(0);
        let mut id = Vec::new();
        for salt in 0..2 {
            let mut hasher = FxHasher::default();
            let session = &writer.tables.session;
            (salt, &session.host, time, session.started.0).hash(&mut hasher);
            (
                process.map(ProcessId::index),
                name,
                sample_type.type_strindex,
            )
                .hash(&mut hasher);
            id.extend(hasher.finish().to_be_bytes());
        }
        proto::Profile {
            sample_type: Some(sample_type),
            samples: typed.samples,
            time_unix_nano: time,
            duration_nano: self.summed.about.duration_ns(writer.tables),
            period_type: Some(period_type),
            // Readers take 0 for damage: where each one is counted, one lies between two.
            period: signed(interval.unwrap_or(1).max(1)),
            profile_id: id,
            attribute_indices: vec![writer.attribute("profiler.event", text(name))],
        }
    }
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn text(text: &str) -> Any {
    Any::Text(text.to_owned())
}

fn key_value(key: &str, value: Any) -> KeyValue {
    KeyValue {
        key: key.to_owned(),
        value: Some(AnyValue { value: Some(value) }),
    }
}

impl Sink for Otlp {
    fn event(&mut self, event: &Event, tables: &Tables) -> io::Result<()> {
        self.summed.event(event, tables);
        Ok(())
    }

    fn finish(&mut self, tables: &Tables) -> io::Result<()> {
        let sources = self.summed.sources(tables)?;
        let mut writer = Writer::new(tables);
        let mut all: BTreeMap<Option<ProcessId>, BTreeMap<Type, Typed>> = BTreeMap::new();
        let mut unnamed = 0;
        for (key, sums) in self.summed.samples.sorted() {
            let Some(source) = first_same(key.source, &sources, tables) else {
                continue;
            };
            let (stack_index, named) = writer.stack_of(&key);
            unnamed += if named { 0 } else { sums.count };
            let attribute_indices = writer.attributes(&key);
            let count = count(&key, sums);
            let types = all.entry(key.owner.process(tables)).or_default();
            for (kind, value) in [
                (Type::Count(source), count),
                (Type::Weight(source), sums.weight),
            ] {
                types.entry(kind).or_default().samples.push(proto::Sample {
                    stack_index,
                    attribute_indices: attribute_indices.clone(),
                    link_index: 0,
                    values: vec![signed(value)],
                });
            }
        }
        self.summed.calls.chains(|process, chain| {
            let places = chain.functions.iter().map(|&id| writer.entry(id)).collect();
            let stack_index = writer.stack(places);
            let types = all.entry(process).or_default();
            for (kind, value) in [(Type::Calls, chain.calls), (Type::CallTime, chain.self_ns)] {
                types.entry(kind).or_default().samples.push(proto::Sample {
                    stack_index,
                    values: vec![signed(value)],
                    ..proto::Sample::default()
                });
            }
            io::Result::Ok(())
        })?;
        let session = &tables.session;
        let mut attributes = vec![key_value("otlp.proto.version", text(proto::PROTO_VERSION))];
        // A key stands once.
        let mut noted: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for note in self.summed.notes(tables, unnamed) {
            let named = note.split_once(": ").filter(|(key, _)| !key.contains(','));
            let (key, value) = named.unwrap_or(("note", &note));
            let key = format!("profiler.{}", key.replace(' ', "_"));
            noted.entry(key).or_default().push(value.to_owned());
        }
        let noted = noted.into_iter();
        attributes.extend(noted.map(|(key, values)| key_value(&key, text(&values.join("; ")))));
        let mut resource_profiles = Vec::new();
        for (process, types) in all {
            let types = types.into_iter();
            let profiles = types
                .map(|(kind, typed)| self.profile(kind, typed, process, &mut writer))
                .collect();
            resource_profiles.push(proto::ResourceProfiles {
                resource: Some(resource(process, tables)),
                scope_profiles: vec![proto::ScopeProfiles {
                    scope: Some(proto::Scope {
                        name: "profiler".to_owned(),
                        version: session.version.clone(),
                        attributes: attributes.clone(),
                    }),
                    profiles,
                }],
            });
        }
        let data = proto::ProfilesData {
            resource_profiles,
            dictionary: Some(writer.dictionary),
        };
        self.output.write_all(&data.encode_to_vec())?;
        self.output.flush()
    }
}

/// What is known of a process, by the names that OpenTelemetry has for it.
fn resource(process: Option<ProcessId>, tables: &Tables) -> proto::Resource {
    let session = &tables.session;
    let mut attributes = Vec::new();
    let known = process.and_then(|id| tables.process(id));
    let name = known.map_or("unknown", |process| tables.string(process.name));
    // Without a name readers refuse it.
    let name = if name.is_empty() { "unknown" } else { name };
    attributes.push(key_value("service.name", text(name)));
    attributes.push(key_value("host.name", text(&session.host)));
    attributes.push(key_value("host.arch", text(&session.arch)));
    attributes.push(key_value("os.type", text("linux")));
    attributes.push(key_value("os.version", text(&session.kernel)));
    if let Some(path) = known.and_then(|process| process.executable) {
        attributes.push(key_value(
            "process.executable.path",
            text(tables.string(path)),
        ));
    }
    if let Some(line) = known.and_then(|process| tables.command_line(process)) {
        attributes.push(key_value("process.command_line", text(&line)));
    }
    let mut add = |key: &str, id: Option<StringId>| {
        if let Some(id) = id {
            attributes.push(key_value(key, text(tables.string(id))));
        }
    };
    let container = process.and_then(|id| tables.container_of(id));
    if let Some(container) = container {
        add("container.id", container.id);
        add("container.name", container.name);
        add("container.image.name", container.image);
        add("container.runtime.name", container.engine);
        add("k8s.pod.name", container.pod);
        add("k8s.namespace.name", container.namespace);
        add("linux.cgroup.path", Some(container.cgroup));
        add("systemd.unit", container.unit);
    }
    if let Some(process) = known {
        let pid = Any::Number(process.pid.0.into());
        attributes.push(key_value("process.pid", pid));
        if let Some(uid) = process.uid {
            attributes.push(key_value("process.user.id", Any::Number(uid.into())));
        }
    }
    proto::Resource { attributes }
}

/// What fills the dictionary.
struct Writer<'a> {
    tables: &'a Tables,
    told: Functions,
    dictionary: Dictionary,
    strings: TextMap<String, i32>,
    attributes: TextMap<(i32, Result<String, i64>), i32>,
    stacks: FxHashMap<Vec<i32>, i32>,
    /// Locations, and whether all functions at them have names.
    frames: FxHashMap<FrameId, (i32, bool)>,
    entries: FxHashMap<FunctionId, i32>,
    functions: FxHashMap<FunctionId, i32>,
    modules: FxHashMap<ModuleId, i32>,
    nowhere: Option<i32>,
}

impl<'a> Writer<'a> {
    fn new(tables: &'a Tables) -> Writer<'a> {
        let dictionary = Dictionary {
            mapping_table: vec![proto::Mapping::default()],
            location_table: vec![proto::Location::default()],
            function_table: vec![proto::Function::default()],
            link_table: vec![proto::Link::default()],
            string_table: vec![String::new()],
            attribute_table: vec![proto::KeyValueAndUnit::default()],
            stack_table: vec![proto::Stack::default()],
        };
        Writer {
            tables,
            told: Functions::of(tables),
            dictionary,
            strings: TextMap::from_iter([(String::new(), 0)]),
            attributes: TextMap::default(),
            stacks: FxHashMap::from_iter([(Vec::new(), 0)]),
            frames: FxHashMap::default(),
            entries: FxHashMap::default(),
            functions: FxHashMap::default(),
            modules: FxHashMap::default(),
            nowhere: None,
        }
    }

    fn string(&mut self, text: &str) -> i32 {
        if let Some(&number) = self.strings.get(text) {
            return number;
        }
        let number = next(&self.dictionary.string_table);
        self.dictionary.string_table.push(text.to_owned());
        self.strings.insert(text.to_owned(), number);
        number
    }

    fn kind(&mut self, kind: &str, unit: &str) -> ValueType {
        ValueType {
            type_strindex: self.string(kind),
            unit_strindex: self.string(unit),
        }
    }

    fn attribute(&mut self, key: &str, value: Any) -> i32 {
        let key_strindex = self.string(key);
        let content = match &value {
            Any::Text(text) => Ok(text.clone()),
            Any::Number(number) => Err(*number),
        };
        if let Some(&number) = self.attributes.get(&(key_strindex, content.clone())) {
            return number;
        }
        let number = next(&self.dictionary.attribute_table);
        self.dictionary
            .attribute_table
            .push(proto::KeyValueAndUnit {
                key_strindex,
                value: Some(AnyValue { value: Some(value) }),
                unit_strindex: 0,
            });
        self.attributes.insert((key_strindex, content), number);
        number
    }

    /// What is known of who made a sample.
    fn attributes(&mut self, key: &Key) -> Vec<i32> {
        let mut attributes = Vec::new();
        if let Owner::Thread(id) = key.owner
            && let Some(thread) = self.tables.thread(id)
        {
            let (_, name) = key.owner.names(key.names, self.tables);
            let name = text(self.tables.string(name.unwrap_or(thread.name)));
            attributes.push(self.attribute("thread.name", name));
            let tid = Any::Number(thread.tid.0.into());
            attributes.push(self.attribute("thread.id", tid));
        }
        if let Some(state) = key.wait {
            attributes.push(self.attribute("profiler.wait", text(state.name())));
        }
        attributes
    }

    fn stack_of(&mut self, key: &Key) -> (i32, bool) {
        let tables = self.tables;
        let frames = tables.frames_of_both(key.kernel, key.user);
        let (mut places, mut named) = (Vec::new(), true);
        for frame in frames {
            let (place, has_names) = self.location(frame);
            places.push(place);
            named &= has_names;
        }
        if places.is_empty() {
            places.push(self.no_stack());
        }
        (self.stack(places), named)
    }

    fn stack(&mut self, places: Vec<i32>) -> i32 {
        if let Some(&number) = self.stacks.get(&places) {
            return number;
        }
        let number = next(&self.dictionary.stack_table);
        self.dictionary.stack_table.push(proto::Stack {
            location_indices: places.clone(),
        });
        self.stacks.insert(places, number);
        number
    }

    fn no_stack(&mut self) -> i32 {
        if let Some(number) = self.nowhere {
            return number;
        }
        let function_index = self.nameless(NO_STACK);
        let number = self.place(proto::Location {
            lines: vec![proto::Line {
                function_index,
                line: 0,
            }],
            ..proto::Location::default()
        });
        self.nowhere = Some(number);
        number
    }

    fn place(&mut self, location: proto::Location) -> i32 {
        let number = next(&self.dictionary.location_table);
        self.dictionary.location_table.push(location);
        number
    }

    fn location(&mut self, frame: FrameId) -> (i32, bool) {
        if let Some(&known) = self.frames.get(&frame) {
            return known;
        }
        let tables = self.tables;
        let (mut lines, mut named) = (Vec::new(), true);
        for line in frame_lines(tables, frame) {
            let function_index = match line.function {
                Some(function) => self.function(function),
                None => self.nameless(&line.name),
            };
            named &= line.function.is_some_and(|id| tables.is_named(id));
            lines.push(proto::Line {
                function_index,
                line: line.line.into(),
            });
        }
        let place = tables.frames.get(frame);
        let kind = match place.map(|place| place.kind) {
            Some(FrameKind::Kernel) => "kernel",
            Some(FrameKind::Jit) => "jit",
            Some(FrameKind::Interpreted) => "interpreted",
            Some(FrameKind::Native) | None => "native",
        };
        let kind = self.attribute("profile.frame.type", text(kind));
        let address = place.map_or(0, |place| place.address);
        let mapping_index = (place.and_then(|place| place.module)).map_or(0, |id| self.module(id));
        let number = self.place(proto::Location {
            mapping_index,
            address,
            lines,
            attribute_indices: vec![kind],
        });
        self.frames.insert(frame, (number, named));
        (number, named)
    }

    /// The place of a traced function's first instruction.
    fn entry(&mut self, function: FunctionId) -> i32 {
        if let Some(&number) = self.entries.get(&function) {
            return number;
        }
        let function_index = self.function(function);
        let known = self.tables.functions.get(function);
        let module = known.and_then(|function| function.module);
        let address = known.and_then(|function| function.start).unwrap_or(0);
        let mapping_index = module.map_or(0, |id| self.module(id));
        let line = self.start_line(function);
        let number = self.place(proto::Location {
            mapping_index,
            address,
            lines: vec![proto::Line {
                function_index,
                line,
            }],
            attribute_indices: Vec::new(),
        });
        self.entries.insert(function, number);
        number
    }

    fn start_line(&self, function: FunctionId) -> i64 {
        self.tables.line_of(function).unwrap_or(0).into()
    }

    fn function(&mut self, id: FunctionId) -> i32 {
        let id = self.told.same(id);
        if let Some(&number) = self.functions.get(&id) {
            return number;
        }
        let tables = self.tables;
        let name = self.told.name(tables, id).into_owned();
        let known = tables.functions.get(id);
        let symbol = known.map(|it| it.linkage_name.unwrap_or(it.name));
        let file = known.and_then(|it| it.file);
        let function = proto::Function {
            name_strindex: self.string(&name),
            system_name_strindex: symbol.map_or(0, |symbol| self.string(tables.string(symbol))),
            filename_strindex: file.map_or(0, |file| self.string(tables.string(file))),
            start_line: self.start_line(id),
        };
        let number = next(&self.dictionary.function_table);
        self.dictionary.function_table.push(function);
        self.functions.insert(id, number);
        number
    }

    fn nameless(&mut self, name: &str) -> i32 {
        let function = proto::Function {
            name_strindex: self.string(name),
            ..proto::Function::default()
        };
        let number = next(&self.dictionary.function_table);
        self.dictionary.function_table.push(function);
        number
    }

    /// A module as if it were mapped once, from offset 0 to address 0.
    fn module(&mut self, id: ModuleId) -> i32 {
        if let Some(&number) = self.modules.get(&id) {
            return number;
        }
        let tables = self.tables;
        let known = tables.modules.get(id);
        let filename_strindex = known.map_or(0, |module| self.string(tables.string(module.path)));
        let build_id = known.and_then(|module| module.build_id.as_ref());
        let attribute_indices = build_id
            .map(|id| self.attribute("process.executable.build_id.gnu", text(&id.to_string())))
            .into_iter()
            .collect();
        let mapped = tables
            .mappings
            .iter()
            .filter(|(_, mapping)| mapping.module == id);
        let ends = mapped.map(|(_, it)| it.offset.saturating_add(it.end.saturating_sub(it.start)));
        let number = next(&self.dictionary.mapping_table);
        self.dictionary.mapping_table.push(proto::Mapping {
            memory_start: 0,
            memory_limit: ends.max().unwrap_or(0),
            file_offset: 0,
            filename_strindex,
            attribute_indices,
        });
        self.modules.insert(id, number);
        number
    }
}

/// The number of what is added next.
fn next<T>(table: &[T]) -> i32 {
    i32::try_from(table.len()).unwrap_or(i32::MAX)
}
