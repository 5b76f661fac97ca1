//! Perfetto: samples, waits with who ended them, traced calls with their values, on the rows of threads.
//!
//! Input: events; output: packets of Perfetto's protobuf (layout: [`wire::perfetto`](profiler_wire::perfetto)), written
//! as they come. Times are nanoseconds of CLOCK_MONOTONIC, weights are in the unit of the source. Memory is bounded by
//! the number of distinct stacks. The mapping, and what is lost: docs/formats/perfetto.md.

mod sequence;
mod tracks;

use std::io::{self, BufWriter, Write};

use rustc_hash::FxHashMap;

use super::about::About;
use super::collect::{SOURCE, SOURCE_OF_ALL, choose};
use super::settings::{OptionHelp, Setting, Settings};
use super::{Format, Output, ShownSources, Shows};
use profiler_model::*;
use profiler_wire::perfetto::*;
use profiler_wire::prost::encoding;
use sequence::Sequence;
use tracks::Tracks;

pub(super) const FORMAT: Format = Format {
    name: "perfetto",
    extensions: &[".pftrace", ".perfetto-trace"],
    description: "Perfetto (ui.perfetto.dev): samples, waits with who ended them, calls with values",
    shows: Shows::SamplesAndCalls,
    sources: ShownSources::All,
    options: &[&SAMPLES, &SOURCE_OF_ALL],
    sink: |settings, output| Box::new(Perfetto::new(settings, output)),
    difference: None,
    declared: false,
};

const SAMPLES: Setting<Kind> = Setting {
    help: OptionHelp {
        name: "samples",
        value: "stack|perf",
        help: "how samples are told: as stack samples, which Perfetto 58 and later know, or as those of \
               perf, which all know (default: stack)",
    },
    read: |value| match value {
        "stack" => Some(Kind::Stack),
        "perf" => Some(Kind::Perf),
        _ => None,
    },
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Stack,
    Perf,
}

/// The sequence of slices and rows; those of samples follow.
const SLICES: u32 = 1;

struct Perfetto {
    kind: Kind,
    wanted: Option<String>,
    out: Packets,
    tracks: Tracks,
    /// Of each source. None: it is not wanted.
    sequences: FxHashMap<SourceId, Option<Sequence>>,
    /// What each source has counted on each processor.
    counted: FxHashMap<(SourceId, Cpu), u64>,
    sources: Vec<SourceId>,
    about: About,
    unnamed: u64,
    begun: bool,
}

/// Where packets go.
pub(super) struct Packets {
    output: BufWriter<Output>,
    buffer: Vec<u8>,
}

impl Packets {
    fn put(&mut self, packet: &Packet) -> io::Result<()> {
        self.buffer.clear();
        encoding::message::encode(PACKET, packet, &mut self.buffer);
        self.output.write_all(&self.buffer)
    }
}

impl Perfetto {
    fn new(settings: &Settings, output: Output) -> Perfetto {
        Perfetto {
            kind: settings.get(&SAMPLES).unwrap_or(Kind::Stack),
            wanted: settings.get(&SOURCE),
            out: Packets {
                output: BufWriter::new(output),
                buffer: Vec::new(),
            },
            tracks: Tracks::new(SLICES),
            sequences: FxHashMap::default(),
            counted: FxHashMap::default(),
            sources: Vec::new(),
            about: About::default(),
            unnamed: 0,
            begun: false,
        }
    }

    fn begin(&mut self, event: &Event, tables: &Tables) -> io::Result<()> {
        self.begun = true;
        let session = &tables.session;
        let at = |clock_id, timestamp| ClockAt {
            clock_id,
            timestamp,
        };
        let mut clocks = vec![at(clock::MONOTONIC, event.at().0)];
        if let Event::Clock(both) = event {
            clocks = vec![
                at(clock::MONOTONIC, both.monotonic.0),
                at(clock::REALTIME, both.realtime_ns),
            ];
        }
        let snapshot = ClockSnapshot {
            clocks,
            primary_trace_clock: clock::MONOTONIC as i32,
        };
        let system = SystemInfo {
            utsname: Some(Utsname {
                sysname: "Linux".to_owned(),
                release: session.kernel.clone(),
                machine: session.arch.clone(),
            }),
            tracing_service_version: format!("profiler {}", session.version),
            num_cpus: session.cpus,
            machine_name: session.host.clone(),
        };
        self.out.put(&Packet {
            trusted_packet_sequence_id: SLICES,
            sequence_flags: flags::CLEARED,
            first_packet_on_sequence: true,
            trace_packet_defaults: Some(Defaults {
                timestamp_clock_id: clock::MONOTONIC,
                ..Defaults::default()
            }),
            data: Some(Data::ClockSnapshot(snapshot)),
            ..Packet::default()
        })?;
        let processes = tables.processes().map(|(_, it)| process(it, tables));
        let tree = ProcessTree {
            processes: processes.collect(),
        };
        for data in [Data::SystemInfo(system), Data::ProcessTree(tree)] {
            self.out.put(&Packet {
                timestamp: Some(event.at().0),
                trusted_packet_sequence_id: SLICES,
                sequence_flags: flags::NEEDS_STATE,
                data: Some(data),
                ..Packet::default()
            })?;
        }
        Ok(())
    }

    fn is_wanted(&self, id: SourceId, tables: &Tables) -> bool {
        let Some(wanted) = self.wanted.as_deref() else {
            return true;
        };
        let all: Vec<SourceId> = tables.sources.iter().map(|(id, _)| id).collect();
        choose(&all, Some(wanted), tables).is_ok_and(|sources| sources.has(id, tables))
    }

    fn sample(&mut self, sample: &Sample, tables: &Tables) -> io::Result<()> {
        if !self.sources.contains(&sample.source) {
            self.sources.push(sample.source);
        }
        if !self.sequences.contains_key(&sample.source) {
            let number = SLICES + 1 + self.sequences.len() as u32;
            let sequence = match self.is_wanted(sample.source, tables) {
                true => {
                    let mut sequence = Sequence::new(number, tables);
                    let source = tables.sources.get(sample.source);
                    self.out
                        .put(&sequence.begin(sample.source, source, tables))?;
                    Some(sequence)
                }
                false => None,
            };
            self.sequences.insert(sample.source, sequence);
        }
        let Some(Some(sequence)) = self.sequences.get_mut(&sample.source) else {
            return Ok(());
        };
        self.tracks.thread(&mut self.out, sample.thread, tables)?;
        let mut new = Interned::default();
        let (callstack_iid, named) = sequence.stack(sample, tables, &mut new);
        self.unnamed += u64::from(!named);
        let (pid, tid) = numbers(sample.thread, tables);
        let in_kernel = sample.kernel.is_some();
        let data = match self.kind {
            Kind::Stack => {
                let end = [sample.user_end, sample.kernel_end];
                let end = end.into_iter().find(|end| end.is_cut());
                Data::StackSample(StackSample {
                    task_context_iid: sequence.task(pid, tid, &mut new),
                    execution_context: Some(ExecutionContext {
                        cpu: Some(sample.cpu.0),
                        mode: if in_kernel { 2 } else { 1 },
                    }),
                    callstack_iid,
                    unwind_error: end.map(|end| end.phrase().to_owned()),
                    primary_descriptor_iid: 1,
                    primary_weight: Some(sample.weight),
                })
            }
            Kind::Perf => {
                let key = (sample.source, sample.cpu);
                let counted = self.counted.entry(key).or_default();
                *counted = counted.saturating_add(sample.weight);
                Data::PerfSample(PerfSample {
                    cpu: Some(sample.cpu.0),
                    pid,
                    tid,
                    callstack_iid,
                    cpu_mode: if in_kernel { 1 } else { 2 },
                    timebase_count: *counted,
                })
            }
        };
        self.out.put(&Packet {
            timestamp: Some(sample.at.0),
            trusted_packet_sequence_id: sequence.number,
            sequence_flags: flags::NEEDS_STATE,
            interned_data: (new != Interned::default()).then_some(new),
            data: Some(data),
            ..Packet::default()
        })
    }
}

/// Process and thread by their numbers.
fn numbers(id: ThreadId, tables: &Tables) -> (u32, u32) {
    let thread = tables.thread(id);
    let process = thread.and_then(|thread| tables.process(thread.process));
    (
        process.map_or(0, |process| process.pid.0),
        thread.map_or(0, |thread| thread.tid.0),
    )
}

/// What a process was called with: its arguments, or all of them as one where they are not told apart.
fn arguments(process: &profiler_model::Process, tables: &Tables) -> Option<Vec<String>> {
    let arguments = tables.arguments(process);
    let arguments = arguments.map(|list| list.into_iter().map(str::to_owned).collect());
    arguments.or_else(|| Some(vec![tables.command_line(process)?]))
}

fn process(process: &profiler_model::Process, tables: &Tables) -> profiler_wire::perfetto::Process {
    let parent = process.parent.and_then(|id| tables.process(id));
    let is_one = |list: &Vec<String>| list.iter().any(|argument| !argument.is_empty());
    let line = arguments(process, tables).filter(is_one);
    let line = line.unwrap_or_else(|| {
        let path = process.executable.map_or("", |path| tables.string(path));
        let name = tables.string(process.name);
        vec![if path.is_empty() { name } else { path }.to_owned()]
    });
    profiler_wire::perfetto::Process {
        pid: process.pid.0.cast_signed(),
        ppid: parent.map_or(0, |parent| parent.pid.0.cast_signed()),
        cmdline: line,
        uid: process.uid.map(u32::cast_signed),
        nspid: process
            .namespace_pids
            .iter()
            .map(|pid| pid.0.cast_signed())
            .collect(),
    }
}

impl Sink for Perfetto {
    fn event(&mut self, event: &Event, tables: &Tables) -> io::Result<()> {
        if !self.begun {
            self.begin(event, tables)?;
        }
        self.about.event(event);
        match event {
            Event::Sample(sample) => {
                self.sample(sample, tables)?;
                match &sample.wait {
                    Some(wait) => self.tracks.wait(&mut self.out, sample, wait, tables),
                    None => Ok(()),
                }
            }
            Event::Call(call) => self.tracks.call(&mut self.out, call, tables),
            event => self.tracks.other(&mut self.out, event, tables),
        }
    }

    fn finish(&mut self, tables: &Tables) -> io::Result<()> {
        if let Some(wanted) = self.wanted.as_deref() {
            choose(&self.sources, Some(wanted), tables)?;
        }
        let notes = self.about.notes_in_time(tables, self.unnamed);
        let end = self.about.last();
        self.tracks.finish(&mut self.out, end, notes)?;
        self.out.output.flush()
    }
}
