//! What is inside a capture, as counts.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use profiler_model::*;

use super::error::{CaptureError, Damage};
use super::reader::{Reader, TimeRange};

/// What a capture holds, and what it lacks.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Where and how it was recorded.
    pub session: Session,
    /// When the file was begun, nanoseconds since 1970; 0 if that is damaged.
    pub created_ns: u64,
    /// Bytes of the file.
    pub bytes: u64,
    /// Bytes of definitions and of events, unpacked.
    pub raw_bytes: (u64, u64),
    /// Blocks of definitions, of events, and others.
    pub blocks: (u64, u64, u64),
    /// Epochs.
    pub epochs: u64,
    /// Times of the first and the last event.
    pub span: Option<(Timestamp, Timestamp)>,
    /// Time of the first sample.
    pub first_sample: Option<Timestamp>,
    /// Time of the first event of what was done in the time that was recorded.
    pub first_recorded: Option<Timestamp>,
    /// The first tie of monotonic to wall time.
    pub clock: Option<Clock>,
    /// Events by kind.
    pub events: BTreeMap<&'static str, u64>,
    /// By source: name, unit, samples, sum of weights.
    pub sources: Vec<SourceSummary>,
    /// Waits, by [`WaitState`]: samples that are such.
    pub waits: [WaitSummary; 4],
    /// What the kernel counted of waits: how many, with those that had not ended, nanoseconds.
    pub counted_waits: (u64, u64),
    /// Samples by the kinds of code in their stacks.
    pub kinds: BTreeMap<&'static str, u64>,
    /// Modules of interpreted code.
    pub interpreted_modules: u64,
    /// Traced functions, and what happened to their calls.
    pub calls: CallSummary,
    /// What was lost by reason; estimates included.
    pub lost: BTreeMap<LostReason, u64>,
    /// Times in which calls were not recorded, by reason: how many, and for how many nanoseconds there was any.
    pub gaps: BTreeMap<GapReason, (u64, u64)>,
    /// Processes, and those of them with samples.
    pub processes: (u64, u64),
    /// Threads, and those of them with samples.
    pub threads: (u64, u64),
    /// What processes ran in, that with the most samples first.
    pub containers: Vec<ContainerSummary>,
    /// Modules, functions, frames, stacks.
    pub tables: [u64; 4],
    /// Frames without a name.
    pub unsymbolized_frames: u64,
    /// Samples with such a frame.
    pub unsymbolized_samples: u64,
    /// Stacks of samples by how they ended: kernel stacks.
    pub kernel_ends: StackEnds,
    /// User stacks.
    pub user_ends: StackEnds,
    /// Whether the recording was ended (not killed or cut off).
    pub ended: bool,
    /// Events that the writer could not write.
    pub dropped: u64,
    /// Events that could not be read, or use what is missing.
    pub unusable: u64,
    /// Items of a later version.
    pub unknown: u64,
    /// What is damaged.
    pub damage: Vec<Damage>,
}

/// Waits for one reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WaitSummary {
    /// How many were recorded.
    pub recorded: u64,
    /// How many these stand for.
    pub count: u64,
    /// How long they were, in nanoseconds.
    pub ns: u64,
    /// Of that: runnable, but without a processor.
    pub runnable_ns: u64,
}

impl WaitSummary {
    fn add(&mut self, sample: &Sample, wait: &Wait) {
        let count = u64::from(wait.count);
        self.recorded += 1;
        self.count = self.count.saturating_add(count);
        self.ns = self.ns.saturating_add(sample.weight);
        let runnable_ns = wait.runnable_ns.saturating_mul(count);
        self.runnable_ns = self.runnable_ns.saturating_add(runnable_ns);
    }
}

/// What one source has given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceSummary {
    /// Its name.
    pub name: String,
    /// Unit of its weights.
    pub unit: Unit,
    /// Samples a second asked for.
    pub frequency_hz: Option<u64>,
    /// Or how much each sample stands for.
    pub period: Option<u64>,
    /// Samples.
    pub samples: u64,
    /// What they stand for.
    pub weight: u64,
}

/// What is known of a container, pod or unit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerSummary {
    /// What it is called.
    pub label: String,
    /// Path of its cgroup.
    pub cgroup: String,
    /// What runs it.
    pub engine: Option<String>,
    /// Its id, whole.
    pub id: Option<String>,
    /// Its name.
    pub name: Option<String>,
    /// Its image.
    pub image: Option<String>,
    /// Its pod.
    pub pod: Option<String>,
    /// Its pod's namespace.
    pub namespace: Option<String>,
    /// Its unit.
    pub unit: Option<String>,
    /// Processes in it, and those of them with samples.
    pub processes: (u64, u64),
    /// Samples of them.
    pub samples: u64,
}

/// What calls of traced functions there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallSummary {
    /// Functions and markers that were traced.
    pub functions: u64,
    /// Entries.
    pub entered: u64,
    /// Passes of functions whose exits are not watched.
    pub passed: u64,
    /// Exits by return.
    pub returned: u64,
    /// Exits by exception.
    pub thrown: u64,
    /// Calls that ended with their thread.
    pub terminated: u64,
    /// Calls whose exits were not seen, with the longest time that they can have taken.
    pub inferred: u64,
    /// Calls that were not watched to their end: in no time.
    pub unwatched: u64,
}

/// Kinds of code, in the order of the bits of [`stack_kinds`].
const KINDS: [&str; 4] = ["native", "kernel", "jit", "interpreted"];

/// Which kinds of code are in each stack.
fn stack_kinds(tables: &Tables) -> Vec<u8> {
    let mut kinds: Vec<u8> = Vec::with_capacity(tables.stacks.len());
    for (_, stack) in tables.stacks.iter() {
        let frame = tables.frames.get(stack.frame);
        let own = frame.map_or(0, |frame| match frame.kind {
            FrameKind::Native => 1,
            FrameKind::Kernel => 2,
            FrameKind::Jit => 4,
            FrameKind::Interpreted => 8,
        });
        // Callers come before those that they call.
        let callers = stack.parent.and_then(|parent| kinds.get(parent.index()));
        kinds.push(own | callers.copied().unwrap_or(0));
    }
    kinds
}

impl Summary {
    /// Samples.
    pub fn samples(&self) -> u64 {
        self.events.get("sample").copied().unwrap_or(0)
    }

    /// Whether it is there from its beginning to its end: not killed, nor received from an agent that was cut off.
    pub fn is_whole(&self) -> bool {
        self.ended && !self.gaps.contains_key(&GapReason::CutOff)
    }

    /// Stacks with frames missing at the outer end.
    pub fn truncated(&self) -> u64 {
        let ends = self.kernel_ends.iter().chain(self.user_ends.iter());
        ends.filter(|(end, _)| end.is_cut())
            .fold(0, |sum, (_, count)| sum.saturating_add(count))
    }
}

impl Reader {
    /// Reads all of the capture and counts.
    pub fn summary(&mut self) -> Result<Summary, CaptureError> {
        let tables = self.load_tables()?;
        let mut summary = Summary::default();
        let mut sources: BTreeMap<SourceId, (u64, u64)> = BTreeMap::new();
        let mut sampled: FxHashMap<ThreadId, u64> = FxHashMap::default();
        let named = named_stacks(&tables);
        let kinds = stack_kinds(&tables);
        let kinds_of = |stack: Option<StackId>| {
            stack
                .and_then(|stack| kinds.get(stack.index()))
                .copied()
                .unwrap_or(0)
        };
        let is_named = |stack: Option<StackId>| {
            stack.is_none_or(|stack| named.get(stack.index()).copied().unwrap_or(false))
        };
        let mut gaps: BTreeMap<GapReason, Spans> = BTreeMap::new();
        // Waits that the kernel would have counted when they ended.
        let mut open: u64 = 0;
        // When they were counted last of a thread, and what was recorded since then.
        let mut since: FxHashMap<ThreadId, (Timestamp, u64, u64)> = FxHashMap::default();
        let stats = self.replay(&tables, TimeRange::ALL, &mut |event, _| {
            let at = event.at();
            let (first, last) = summary.span.get_or_insert((at, at));
            (*first, *last) = ((*first).min(at), (*last).max(at));
            if event.is_recorded() {
                summary.first_recorded.get_or_insert(at);
            }
            let kind = match event {
                Event::Sample(sample) => {
                    summary.first_sample.get_or_insert(at);
                    let (samples, weight) = sources.entry(sample.source).or_default();
                    *samples += 1;
                    *weight = weight.saturating_add(sample.weight);
                    *sampled.entry(sample.thread).or_default() += 1;
                    summary.kernel_ends.count(sample.kernel_end);
                    summary.user_ends.count(sample.user_end);
                    if let Some(wait) = &sample.wait {
                        summary.waits[wait.state as usize].add(sample, wait);
                        open += u64::from(wait.open) * u64::from(wait.count);
                        if let Some((told, count, ns)) = since.get_mut(&sample.thread)
                            && at > *told
                        {
                            *count += u64::from(!wait.open) * u64::from(wait.count);
                            *ns = ns.saturating_add(sample.weight);
                        }
                    }
                    let seen = kinds_of(sample.kernel) | kinds_of(sample.user);
                    for (bit, name) in KINDS.iter().enumerate() {
                        if seen & 1 << bit != 0 {
                            *summary.kinds.entry(name).or_default() += 1;
                        }
                    }
                    if !is_named(sample.kernel) || !is_named(sample.user) {
                        summary.unsymbolized_samples += 1;
                    }
                    "sample"
                }
                Event::Process(_) => "process",
                Event::Call(call) => {
                    match &call.edge {
                        CallEdge::Enter(_) => summary.calls.entered += 1,
                        CallEdge::Hit(_) => summary.calls.passed += 1,
                        CallEdge::Exit(exit) => {
                            let left = match exit.how {
                                ExitKind::Return => &mut summary.calls.returned,
                                ExitKind::Exception(_) => &mut summary.calls.thrown,
                                ExitKind::Terminated => &mut summary.calls.terminated,
                                ExitKind::Inferred => &mut summary.calls.inferred,
                                ExitKind::Unwatched => &mut summary.calls.unwatched,
                            };
                            *left += 1;
                        }
                    }
                    "call"
                }
                Event::Throw(_) => "throw",
                Event::CallCount(_) => "call count",
                Event::Gap(gap) => {
                    let spans = gaps.entry(gap.reason).or_default();
                    spans.add(gap.from, gap.to);
                    let (count, ns) = summary.gaps.entry(gap.reason).or_default();
                    (*count, *ns) = (*count + 1, spans.ns());
                    "gap"
                }
                Event::Waits(waits) => {
                    let (count, ns) = &mut summary.counted_waits;
                    *count = waits
                        .count
                        .iter()
                        .fold(*count, |sum, n| sum.saturating_add(*n));
                    *ns = waits.ns.iter().fold(*ns, |sum, n| sum.saturating_add(*n));
                    since.insert(waits.thread, (at, 0, 0));
                    "waits"
                }
                Event::Mark(_) => "mark",
                Event::Clock(clock) => {
                    summary.clock.get_or_insert(*clock);
                    "clock"
                }
                Event::Lost(lost) => {
                    let count = summary.lost.entry(lost.reason).or_default();
                    *count = count.saturating_add(lost.count);
                    "lost"
                }
            };
            *summary.events.entry(kind).or_default() += 1;
            Ok(())
        })?;
        let (counted, counted_ns) = &mut summary.counted_waits;
        if (*counted, *counted_ns) != (0, 0) {
            *counted = counted.saturating_add(open);
            // A recording that was cut off has some.
            for (_, count, ns) in since.into_values() {
                *counted = counted.saturating_add(count);
                *counted_ns = counted_ns.saturating_add(ns);
            }
        }
        if let Some(found) = self.found() {
            summary.raw_bytes = (found.raw_bytes[0], found.raw_bytes[1]);
            summary.blocks = (found.blocks[0], found.blocks[1], found.blocks[2]);
            summary.epochs = found.epochs() as u64;
            summary.ended = found.ended;
            summary.dropped = found.dropped;
            summary.unknown = found.unknown + stats.unknown;
        }
        summary.sources = tables
            .sources
            .iter()
            .map(|(id, source)| {
                let (samples, weight) = sources.get(&id).copied().unwrap_or_default();
                SourceSummary {
                    name: tables.string(source.name).to_owned(),
                    unit: source.unit,
                    frequency_hz: source.frequency_hz,
                    period: source.period,
                    samples,
                    weight,
                }
            })
            .collect();
        let mut processes: FxHashMap<ProcessId, u64> = FxHashMap::default();
        for (&thread, samples) in &sampled {
            if let Some(thread) = tables.thread(thread) {
                *processes.entry(thread.process).or_default() += samples;
            }
        }
        summary.containers = containers(&tables, &processes);
        summary.processes = (tables.processes().count() as u64, processes.len() as u64);
        summary.threads = (tables.threads().count() as u64, sampled.len() as u64);
        summary.tables = [
            tables.modules.len() as u64,
            tables.functions.len() as u64,
            tables.frames.len() as u64,
            tables.stacks.len() as u64,
        ];
        let frames = tables.frames.iter();
        let unnamed = frames.filter(|&(frame, _)| !tables.has_names(frame));
        summary.unsymbolized_frames = unnamed.count() as u64;
        let modules = tables.modules.iter();
        let interpreted = modules.filter(|(_, module)| module.kind == ModuleKind::Interpreted);
        summary.interpreted_modules = interpreted.count() as u64;
        summary.calls.functions = tables.all_traced().count() as u64;
        summary.unusable = stats.unusable;
        summary.session = tables.session;
        summary.created_ns = self.created_ns;
        summary.bytes = self.len;
        summary.damage = self.damage().to_vec();
        Ok(summary)
    }
}

fn containers(tables: &Tables, samples: &FxHashMap<ProcessId, u64>) -> Vec<ContainerSummary> {
    let text = |id: StringId| tables.string(id).to_owned();
    let summary = |container: &Container| ContainerSummary {
        label: tables.container_label(container),
        cgroup: text(container.cgroup),
        engine: container.engine.map(text),
        id: container.id.map(text),
        name: container.name.map(text),
        image: container.image.map(text),
        pod: container.pod.map(text),
        namespace: container.namespace.map(text),
        unit: container.unit.map(text),
        ..ContainerSummary::default()
    };
    let mut containers: Vec<ContainerSummary> = (tables.containers())
        .map(|(_, container)| summary(container))
        .collect();
    for (id, process) in tables.processes() {
        let Some(container) = process.container else {
            continue;
        };
        if let Some(summary) = containers.get_mut(container.index()) {
            let samples = samples.get(&id).copied().unwrap_or(0);
            summary.processes.0 += 1;
            summary.processes.1 += u64::from(samples > 0);
            summary.samples += samples;
        }
    }
    containers.sort_by(|a, b| (b.samples, &a.label, &a.id).cmp(&(a.samples, &b.label, &b.id)));
    containers
}

/// For each stack whether all its frames have names. Parents come before what they called.
fn named_stacks(tables: &Tables) -> Vec<bool> {
    let mut named = Vec::with_capacity(tables.stacks.len());
    for (_, stack) in tables.stacks.iter() {
        let parent = stack
            .parent
            .is_none_or(|parent| named.get(parent.index()).copied().unwrap_or(false));
        named.push(parent && tables.has_names(stack.frame));
    }
    named
}
