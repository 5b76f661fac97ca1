//! A sequence of packets with samples of one source: what its packets refer to by ids.
//!
//! Samples -> ids of stacks and threads, and what is new since the packet before. What does not belong here: packets.

use rustc_hash::FxHashMap;

use crate::derive::Key;
use crate::derive::Merge;
use crate::export::places::Places;
use profiler_model::text::TextMap;
use profiler_model::*;
use profiler_wire::perfetto::{
    Callstack, CounterDescriptor, Data, Defaults, Interned, Mapping, Packet, PerfSampleDefaults,
    StackSampleDefaults, TaskContext, Text, Timebase, TrackDescriptor, clock, flags,
};

/// Kernel, user, and what the thread waited for.
type Stacks = (Option<StackId>, Option<StackId>, Option<WaitState>);

pub(super) struct Sequence {
    pub(super) number: u32,
    places: Places,
    /// How many of the functions and places were told.
    functions: usize,
    told: usize,
    paths: TextMap<String, u64>,
    modules: FxHashMap<ModuleId, u64>,
    /// Their numbers, and whether all of them has names.
    stacks: FxHashMap<Stacks, (u64, bool)>,
    tasks: FxHashMap<(u32, u32), u64>,
}

impl Sequence {
    pub(super) fn new(number: u32, tables: &Tables) -> Sequence {
        Sequence {
            number,
            places: Places::new(tables),
            functions: 0,
            told: 0,
            paths: TextMap::default(),
            modules: FxHashMap::default(),
            stacks: FxHashMap::default(),
            tasks: FxHashMap::default(),
        }
    }

    /// The first packet: what samples count. It describes a row that nothing is on, since a packet has to say something.
    pub(super) fn begin(
        &mut self,
        id: SourceId,
        source: Option<&Source>,
        tables: &Tables,
    ) -> Packet {
        let name = source.map_or("unknown", |source| tables.string(source.name));
        let (unit, counter) = match (source.map(|source| source.unit), name) {
            (Some(Unit::Nanoseconds), OFF_CPU) => (1, None),
            (Some(Unit::Nanoseconds), _) => (1, Some(1)),
            (Some(Unit::Cycles), _) => (2, Some(10)),
            _ => (9, None),
        };
        let timebase = Timebase {
            period: source.and_then(|source| source.period),
            frequency: source.and_then(|source| source.frequency_hz),
            counter,
            name: name.to_owned(),
        };
        let descriptor = CounterDescriptor {
            iid: 1,
            name: name.to_owned(),
            unit,
        };
        Packet {
            trusted_packet_sequence_id: self.number,
            sequence_flags: flags::CLEARED,
            first_packet_on_sequence: true,
            trace_packet_defaults: Some(Defaults {
                timestamp_clock_id: clock::MONOTONIC,
                perf_sample_defaults: Some(PerfSampleDefaults {
                    timebase: Some(timebase),
                }),
                stack_sample_defaults: Some(StackSampleDefaults {
                    source: "profiler".to_owned(),
                }),
            }),
            interned_data: Some(Interned {
                stack_sample_counter_descriptors: vec![descriptor],
                ..Interned::default()
            }),
            data: Some(Data::TrackDescriptor(TrackDescriptor {
                uuid: u64::MAX - id.index() as u64,
                name: Some(format!("samples of {name}")),
                ..TrackDescriptor::default()
            })),
            ..Packet::default()
        }
    }

    /// The thread of a sample.
    pub(super) fn task(&mut self, pid: u32, tid: u32, new: &mut Interned) -> u64 {
        let next = self.tasks.len() as u64 + 1;
        let iid = *self.tasks.entry((pid, tid)).or_insert(next);
        if iid == next {
            let task = TaskContext { iid, pid, tid };
            new.stack_sample_task_contexts.push(task);
        }
        iid
    }

    /// The stack of a sample, and whether all of it has names.
    pub(super) fn stack(
        &mut self,
        sample: &Sample,
        tables: &Tables,
        new: &mut Interned,
    ) -> (u64, bool) {
        let state = sample.wait.map(|wait| wait.state);
        let known = (sample.kernel, sample.user, state);
        if let Some(&known) = self.stacks.get(&known) {
            return known;
        }
        let mut stack = Vec::new();
        let key = Key::of(sample, Merge::Thread, tables);
        let named = self.places.stack(&key, tables, &mut stack);
        self.tell(tables, new);
        let iid = self.stacks.len() as u64 + 1;
        new.callstacks.push(Callstack {
            iid,
            frame_ids: stack.iter().map(|&place| u64::from(place) + 1).collect(),
        });
        self.stacks.insert(known, (iid, named));
        (iid, named)
    }

    /// Tells of functions and places that were not told yet.
    fn tell(&mut self, tables: &Tables, new: &mut Interned) {
        let functions = &self.places.functions;
        for (index, function) in functions.all().iter().enumerate().skip(self.functions) {
            new.function_names.push(Text {
                iid: index as u64 + 1,
                str: functions.name(*function, tables).into_owned().into_bytes(),
            });
        }
        self.functions = functions.all().len();
        for index in self.told..self.places.all().len() {
            let place = self.places.all()[index];
            let function = self.places.function(&place);
            let frame = place.frame.and_then(|id| tables.frames.get(id));
            let file = function.and_then(|function| function.file(tables));
            let source_path_iid = file.map(|file| self.path(file, new, false));
            let module = frame.and_then(|frame| frame.module);
            let mapping_id = module.map_or(0, |module| self.module(module, tables, new));
            new.frames.push(profiler_wire::perfetto::Frame {
                iid: index as u64 + 1,
                function_name_id: u64::from(place.function) + 1,
                mapping_id,
                rel_pc: frame.map_or(0, |frame| {
                    let module = frame.module.and_then(|id| tables.modules.get(id));
                    let bias = module.map_or(0, |module| module.address_bias);
                    frame.address.wrapping_add(bias)
                }),
                source_path_iid,
                line_number: (place.line > 0).then_some(place.line),
                kind: match frame.map(|frame| frame.kind) {
                    Some(FrameKind::Native) => 1,
                    Some(FrameKind::Kernel) => 2,
                    Some(FrameKind::Interpreted) => 3,
                    Some(FrameKind::Jit) => 4,
                    None => 0,
                },
            });
        }
        self.told = self.places.all().len();
    }

    /// A path: of a source file, or a part of that of an object file.
    fn path(&mut self, path: &str, new: &mut Interned, of_object: bool) -> u64 {
        // One row of numbers for both: a text is told in each list that refers to it.
        let key = format!("{}{path}", if of_object { 'o' } else { 's' });
        let next = self.paths.len() as u64 + 1;
        let iid = *self.paths.entry(key).or_insert(next);
        if iid == next {
            let text = Text {
                iid,
                str: path.as_bytes().to_vec(),
            };
            match of_object {
                true => new.mapping_paths.push(text),
                false => new.source_paths.push(text),
            }
        }
        iid
    }

    fn module(&mut self, id: ModuleId, tables: &Tables, new: &mut Interned) -> u64 {
        if let Some(&iid) = self.modules.get(&id) {
            return iid;
        }
        let iid = self.modules.len() as u64 + 1;
        self.modules.insert(id, iid);
        let Some(module) = tables.modules.get(id) else {
            return 0;
        };
        let mut build_id = 0;
        if let Some(known) = &module.build_id {
            build_id = iid;
            new.build_ids.push(Text {
                iid,
                str: known.to_string().into_bytes(),
            });
        }
        let path = tables
            .string(module.path)
            .trim_start_matches('/')
            .to_owned();
        let path_string_ids = vec![self.path(&path, new, true)];
        // As if it were mapped once, at its own addresses: processes have it at different places.
        new.mappings.push(Mapping {
            iid,
            build_id,
            start: 0,
            end: u64::MAX,
            path_string_ids,
        });
        iid
    }
}
