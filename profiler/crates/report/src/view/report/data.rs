//! The report as data: what the text shows and what JSON holds, under stable names.
//!
//! Weights are in the unit of the source, times in nanoseconds since the start of the recording
//! unless their name says otherwise, percentages are of the weight of the selected samples.

use profiler_model::{FrameKind, LostKind, LostReason, StackEnd, Unit, UnknownReason};
use serde::Serialize;

use super::calls_data::Calls;
use super::waits_data::WaitReport;

/// Name and version of this shape; fields may be added under the same version.
pub const SCHEMA: &str = "profiler-report/2";

/// A report.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: &'static str,
    /// What was recorded, and what is missing.
    pub header: Header,
    /// Functions and addresses without a name.
    pub functions: Vec<FunctionRow>,
    /// Source lines, if asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lines: Option<Vec<FunctionRow>>,
    /// The call tree in depth-first order, the root first.
    pub tree: Vec<TreeRow>,
    /// Containers, pods and units, if any of the samples is of one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub containers: Vec<ContainerRow>,
    /// Processes.
    pub processes: Vec<OwnerRow>,
    /// Threads.
    pub threads: Vec<OwnerRow>,
    /// Modules.
    pub modules: Vec<ModuleRow>,
    /// Modules with code that has no name.
    pub unsymbolized: Vec<UnsymbolizedRow>,
    /// Waits, if any of the samples is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waits: Option<WaitReport>,
    /// How user stacks end, if asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ends: Option<EndReport>,
    /// Traced calls, if there are any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub calls: Option<Calls>,
    /// Callers and callees, if asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub callers_of: Option<Vec<Focus>>,
}

/// What was recorded, and what is missing.
#[derive(Clone, Debug, Serialize)]
pub struct Header {
    /// Version of the profiler that recorded.
    pub version: String,
    /// Its command line.
    pub command: Vec<String>,
    /// Name of the machine.
    pub host: String,
    /// Kernel release.
    pub kernel: String,
    /// Architecture.
    pub arch: String,
    /// Processors.
    pub cpus: u32,
    /// What was recorded.
    pub target: String,
    /// Wall time of the start, nanoseconds since 1970.
    pub started_realtime_ns: Option<u64>,
    /// Start of the span looked at.
    pub from_ns: u64,
    /// End of the span looked at.
    pub to_ns: u64,
    /// Whether that is less than the recording.
    pub is_part: bool,
    /// Whether the recording was finished: else what came last may be missing.
    pub complete: bool,
    /// Samples of the whole recording, of all sources.
    pub recorded_samples: u64,
    /// All sources; those that are shown are what the report is about.
    pub sources: Vec<SourceRow>,
    /// What the report is about: a source's name, or `wall` for running and waiting together.
    pub profile: Option<String>,
    /// Samples selected by source, range and filters.
    pub samples: u64,
    /// Their weight.
    pub weight: u64,
    /// Of that, waits.
    #[serde(skip_serializing_if = "is_zero")]
    pub wait_weight: u64,
    /// Unit of weights.
    pub unit: Unit,
    /// Processes among the selected samples.
    pub process_count: u64,
    /// What is missing, per reason.
    pub lost: Vec<LostRow>,
    /// Samples of what ran that are missing.
    pub lost_samples: u64,
    /// How stacks of the selected samples ended.
    pub stacks: StackRow,
    /// What has no name.
    pub unnamed: UnnamedRow,
    /// What kinds of code are in the stacks of the selected samples.
    pub kinds: Vec<KindRow>,
    /// Markers.
    pub marks: Vec<MarkRow>,
    /// How many there are; `marks` may hold fewer.
    pub mark_count: u64,
}

/// A source of samples.
#[derive(Clone, Debug, Serialize)]
pub struct SourceRow {
    /// Its name.
    pub name: String,
    /// Unit of its weights.
    pub unit: Unit,
    /// Samples per second asked for.
    pub frequency_hz: Option<u64>,
    /// Events per sample.
    pub period: Option<u64>,
    /// Samples in the span.
    pub samples: u64,
    /// Their weight.
    pub weight: u64,
    /// Whether the report is about it.
    pub shown: bool,
}

/// Something missing.
#[derive(Clone, Debug, Serialize)]
pub struct LostRow {
    /// Why it is missing.
    pub reason: LostReason,
    /// What is missing.
    pub kind: LostKind,
    /// How many.
    pub count: u64,
}

/// Samples by how their stacks ended.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct StackRow {
    /// The limit of frames was reached.
    pub truncated: u64,
    /// Memory could not be read.
    pub unreadable: u64,
    /// The chain of frame pointers ended; frames may be missing.
    pub frame_pointer: u64,
    /// There was no rule for the code.
    pub no_rule: u64,
    /// Code made at run time could not be walked through.
    pub jit: u64,
    /// The rules for the code were not loaded in time.
    pub no_table: u64,
    /// The address was in no known mapping.
    pub no_mapping: u64,
    /// Only the leaf was recorded.
    pub leaf_only: u64,
    /// The outermost frame was reached, and the middle is left out.
    pub left_out: u64,
    /// What was imported does not say whether they are complete.
    pub not_said: u64,
    /// There is no stack at all.
    pub none: u64,
}

/// What has no name.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct UnnamedRow {
    /// Samples with a nameless frame anywhere.
    pub samples: u64,
    /// Samples whose innermost frame has no name.
    pub leaf_samples: u64,
    /// Nameless frames, once per sample they are in.
    pub frames: u64,
    /// All frames, counted alike.
    pub all_frames: u64,
}

/// Samples by one kind of code.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct KindRow {
    /// `native`, `inlined`, `kernel`, `jit` or `interpreted`.
    pub kind: &'static str,
    /// Samples with such code anywhere in their stacks.
    pub samples: u64,
    /// Their weight.
    pub weight: u64,
    /// Their part of the whole.
    pub percent: f64,
    /// Part of the samples that ended in such code.
    pub self_percent: f64,
}

/// A marker.
#[derive(Clone, Debug, Serialize)]
pub struct MarkRow {
    /// The time that it marks, from the beginning of the recording.
    pub at_ns: u64,
    /// What it says.
    pub text: String,
}

/// Shares of one row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Share {
    /// Samples that ended here.
    pub self_samples: u64,
    /// Their weight.
    pub self_weight: u64,
    /// Their part of the whole.
    pub self_percent: f64,
    /// Samples with this anywhere in their stacks.
    pub total_samples: u64,
    /// Their weight.
    pub total_weight: u64,
    /// Their part of the whole.
    pub total_percent: f64,
    /// Of `self_weight`: waits that a program began here. Only in tables of functions, lines and
    /// modules; in the tree waits have rows of their own.
    #[serde(skip_serializing_if = "is_zero")]
    pub self_wait_weight: u64,
    /// Of `total_weight`: waits.
    #[serde(skip_serializing_if = "is_zero")]
    pub total_wait_weight: u64,
}

pub(super) fn is_zero(value: &u64) -> bool {
    *value == 0
}

/// Where code lives.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct CodeModule {
    /// Its path; empty if the address was in no mapping.
    pub module: String,
    /// Its build id in hex.
    pub build_id: Option<String>,
}

/// A function, a source line or an address.
#[derive(Clone, Debug, Serialize)]
pub struct FunctionRow {
    /// Name, told apart from others of its module, or `module+0xaddress`.
    pub name: String,
    /// Its own name, if it has one.
    #[serde(skip)]
    pub short: Option<String>,
    /// Where it lives.
    #[serde(flatten)]
    pub module: CodeModule,
    /// What kind of code it is.
    pub kind: FrameKind,
    /// Whether it has a name.
    pub named: bool,
    /// Whether it was inlined wherever it was met.
    pub inlined: bool,
    /// Source file, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// Address of its first instruction, as the object file's own symbols have it, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start: Option<u64>,
    /// Source line that it is declared at there, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub declared_line: Option<u32>,
    /// Source line, in a table of lines.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
    /// How hot it is.
    #[serde(flatten)]
    pub share: Share,
}

impl FunctionRow {
    /// Its name, not told apart from others.
    pub(super) fn own_name(&self) -> &str {
        self.short.as_deref().unwrap_or(&self.name)
    }

    /// What it can be called.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        let short = self.short.as_deref().filter(|short| *short != self.name);
        [self.name.as_str()].into_iter().chain(short)
    }
}

/// A node of the call tree.
#[derive(Clone, Debug, Serialize)]
pub struct TreeRow {
    /// Its index in the list.
    pub id: usize,
    /// The caller's index; none for the root.
    pub parent: Option<usize>,
    /// Distance from the root.
    pub depth: usize,
    /// `all`, `process`, `function`, `address`, `no_stack` or `wait`.
    pub kind: &'static str,
    /// Name.
    pub name: String,
    /// Where it lives.
    #[serde(flatten)]
    pub module: CodeModule,
    /// Whether it was inlined wherever it was met.
    pub inlined: bool,
    /// How hot it is.
    #[serde(flatten)]
    pub share: Share,
    /// Callees that are not listed because their share is below the limit.
    pub omitted: u64,
    /// Their weight.
    pub omitted_weight: u64,
    /// Their part of the whole.
    pub omitted_percent: f64,
}

/// A process or thread.
#[derive(Clone, Debug, Serialize)]
pub struct OwnerRow {
    /// Process id.
    pub pid: u32,
    /// The process's id as it sees it itself, if it runs in a namespace of ids.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace_pid: Option<u32>,
    /// Name of the process.
    pub process: String,
    /// What it runs in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    /// Thread id, of a thread.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tid: Option<u32>,
    /// Name of the thread.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thread: Option<String>,
    /// Samples.
    pub samples: u64,
    /// Their weight.
    pub weight: u64,
    /// Of that, waits.
    #[serde(skip_serializing_if = "is_zero")]
    pub wait_weight: u64,
    /// Their part of the whole.
    pub percent: f64,
    /// Of a thread that had several names, or whose process had: by these. Of many, those with the least weight are with the last
    /// one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub names: Vec<NameRow>,
}

/// What samples of a thread under one of its names come to.
#[derive(Clone, Debug, Serialize)]
pub struct NameRow {
    /// Name of the process then.
    pub process: String,
    /// Name of the thread then.
    pub thread: Option<String>,
    /// Samples.
    pub samples: u64,
    /// Their weight.
    pub weight: u64,
    /// Of that, waits.
    #[serde(skip_serializing_if = "is_zero")]
    pub wait_weight: u64,
    /// Their part of the whole.
    pub percent: f64,
}

/// A container, pod or unit; or all that runs in none. What is not known is null.
#[derive(Clone, Debug, Serialize)]
pub struct ContainerRow {
    /// What it is called; none for what runs in no container.
    pub container: Option<String>,
    /// Path of its cgroup.
    pub cgroup: Option<String>,
    /// What runs it.
    pub engine: Option<String>,
    /// Its id.
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
    /// Processes among the selected samples.
    pub processes: u64,
    /// Samples.
    pub samples: u64,
    /// Their weight.
    pub weight: u64,
    /// Of that, waits.
    #[serde(skip_serializing_if = "is_zero")]
    pub wait_weight: u64,
    /// Their part of the whole.
    pub percent: f64,
}

impl ContainerRow {
    /// Whether it is a unit and nothing more, or nothing at all.
    pub fn is_plain(&self) -> bool {
        self.id.is_none()
            && self.name.is_none()
            && self.pod.is_none()
            && (self.unit.is_some() || self.container.is_none())
    }
}

/// A module.
#[derive(Clone, Debug, Serialize)]
pub struct ModuleRow {
    /// Which.
    #[serde(flatten)]
    pub module: CodeModule,
    /// How hot it is.
    #[serde(flatten)]
    pub share: Share,
}

/// A module with code that has no name.
#[derive(Clone, Debug, Serialize)]
pub struct UnsymbolizedRow {
    /// Which.
    #[serde(flatten)]
    pub module: CodeModule,
    /// Why, by the most addresses; null: nobody looked for names.
    pub reason: Option<UnknownReason>,
    /// Distinct addresses without a name.
    pub addresses: u64,
    /// Samples with such an address anywhere in their stacks.
    pub samples: u64,
    /// Their part of all selected samples' weight.
    pub percent: f64,
}

/// How user stacks end.
#[derive(Clone, Debug, Serialize)]
pub struct EndReport {
    /// Samples with a user stack of which it is known.
    pub samples: u64,
    /// Of these, those with one that reaches the outermost function.
    pub complete: u64,
    /// Besides: samples that were imported from where it isn't said.
    pub not_said: u64,
    /// Their part of these.
    pub complete_percent: f64,
    /// Why the others end, and where.
    pub early: Vec<EndRow>,
}

/// User stacks that end too early for one reason in one module.
#[derive(Clone, Debug, Serialize)]
pub struct EndRow {
    /// Why they end.
    pub end: StackEnd,
    /// Where the outermost frame is that was found.
    #[serde(flatten)]
    pub module: CodeModule,
    /// Name of the frame that is the outermost one most often, or `module+0xaddress`.
    pub outermost: String,
    /// Samples.
    pub samples: u64,
    /// Their weight.
    pub weight: u64,
    /// Their part of the whole.
    pub percent: f64,
}

/// Callers and callees of one function.
#[derive(Clone, Debug, Serialize)]
pub struct Focus {
    /// The function.
    pub function: FunctionRow,
    /// Who calls it; a name in brackets if it was outermost.
    pub callers: Vec<EdgeRow>,
    /// What it calls.
    pub callees: Vec<EdgeRow>,
}

impl Focus {
    /// The modules of the function, its callers and its callees.
    pub fn modules(&self) -> impl Iterator<Item = &CodeModule> {
        let edges = self.callers.iter().chain(&self.callees);
        std::iter::once(&self.function.module).chain(edges.map(|edge| &edge.module))
    }
}

/// One caller or callee.
#[derive(Clone, Debug, Serialize)]
pub struct EdgeRow {
    /// Its name.
    pub name: String,
    /// Where it lives.
    #[serde(flatten)]
    pub module: CodeModule,
    /// Samples with this call in their stacks.
    pub samples: u64,
    /// Their weight.
    pub weight: u64,
    /// Their part of the whole.
    pub percent: f64,
    /// Their part of the function's total.
    pub percent_of_function: f64,
}
