//! Definitions: what events refer to by id, each announced once per epoch before its first use.

use std::sync::Arc;

use super::id::*;
use super::renames::Named;

/// Announces one thing under an id. Ids are valid within one epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Definition {
    /// The recording as a whole; first in every epoch.
    Session(Session),
    /// A string.
    String(StringId, Arc<str>),
    /// An event source.
    Source(SourceId, Source),
    /// What processes run in; announced anew under the same id when more of it is known.
    Container(ContainerId, Container),
    /// A process; announced anew under the same id when something about it has changed.
    Process(ProcessId, Process),
    /// A thread; announced anew under the same id when its name has changed.
    Thread(ThreadId, Thread),
    /// From when on a thread had a name, if it has had several.
    Named(Named),
    /// An object file, or the kernel.
    Module(ModuleId, Module),
    /// A module in a process's memory.
    Mapping(MappingId, Mapping),
    /// A function.
    Function(FunctionId, Function),
    /// A place in code.
    Frame(FrameId, Frame),
    /// A frame and its callers.
    Stack(StackId, Stack),
    /// Names for a frame. May come later than the samples that use it.
    Symbol(FrameId, Symbol),
    /// Bytes of code, for views that disassemble.
    Code(Code),
    /// How a function is traced. Announced anew when that changes.
    Traced(FunctionId, Traced),
}

/// Where and how a recording was made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Session {
    /// Version of the profiler that recorded.
    pub version: String,
    /// Name of the machine.
    pub host: String,
    /// `uname -r`.
    pub kernel: String,
    /// `uname -m`.
    pub arch: String,
    /// Processors online at the start.
    pub cpus: u32,
    /// What was recorded, in words: `system-wide`, `pid 12`, the command.
    pub target: String,
    /// The command line of the profiler.
    pub command: Vec<String>,
    /// When what is told of began: the recording, or, in one of several files of it, that file. Events of before say what
    /// there was.
    pub started: Timestamp,
    /// What no other recording has: one number, which all files of a recording share. Of a capture that was made of several
    /// recordings the numbers of all, and 0 if there is more in it than all between its first and last event of one
    /// that is known. None: not known.
    pub recordings: Vec<u64>,
}

impl Session {
    /// When what events tell of began, of which `first` is the first and `recorded` the first of what was done in that time
    /// ([`Event::is_recorded`](super::Event::is_recorded)). Captures that were merged may have earlier ones than they say.
    pub fn began(&self, first: Timestamp, recorded: Option<Timestamp>) -> Timestamp {
        match self.started {
            Timestamp(0) => first,
            started => recorded.map_or(started, |at| started.min(at)),
        }
    }
}

/// The unit of a sample's weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unit {
    /// Nanoseconds of CPU time.
    Nanoseconds,
    /// CPU cycles.
    Cycles,
    /// Occurrences of the event.
    Events,
}

/// What made the samples.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Source {
    /// `cpu-clock`, `cycles`, `page-faults`, `sched:sched_switch`, ...
    pub name: StringId,
    /// Unit of the weights.
    pub unit: Unit,
    /// Samples per second asked for, if by frequency.
    pub frequency_hz: Option<u64>,
    /// Events per sample, if fixed (in `unit`).
    pub period: Option<u64>,
}

/// One life of a process. Namespace pids are attributes; identity is (`pid`, `started`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// Process id in the initial namespace.
    pub pid: Pid,
    /// When it was forked (as exact as the source allows; only for identity and lifetimes).
    pub started: Timestamp,
    /// The process that forked it, if known.
    pub parent: Option<ProcessId>,
    /// The name (comm) it had last.
    pub name: StringId,
    /// Path of its executable as the process sees it.
    pub executable: Option<StringId>,
    /// Command line: arguments, each with a zero behind it. Of earlier versions joined by spaces. Read by
    /// [`Tables::arguments`](crate::Tables::arguments) and [`Tables::command_line`](crate::Tables::command_line).
    pub command: Option<StringId>,
    /// Its pids in nested namespaces, outermost first, without the initial one.
    pub namespace_pids: Vec<Pid>,
    /// User id.
    pub uid: Option<u32>,
    /// Path of its cgroup, in the hierarchy that the recording looks at.
    pub cgroup: Option<StringId>,
    /// The innermost container, pod or unit that it runs in.
    pub container: Option<ContainerId>,
}

/// What processes run in: a container, or a unit of systemd. Its identity is `cgroup`, and `id` where
/// that is known: what is announced without an id is the container that had the path last.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Container {
    /// Path of its cgroup; what is below belongs to it.
    pub cgroup: StringId,
    /// What runs it: `docker`, `podman`, `containerd`, `cri-o`, `lxc`, `nspawn`, `systemd`; `oci` if
    /// that is not known.
    pub engine: Option<StringId>,
    /// Its id, whole.
    pub id: Option<StringId>,
    /// Its name, without a leading slash.
    pub name: Option<StringId>,
    /// Its image, by name.
    pub image: Option<StringId>,
    /// The Kubernetes pod that it belongs to.
    pub pod: Option<StringId>,
    /// That pod's namespace.
    pub namespace: Option<StringId>,
    /// The unit of systemd, if it is one.
    pub unit: Option<StringId>,
}

/// Characters of an id that are shown where there is no name: as many as engines show.
const SHORT_ID: usize = 12;

impl Container {
    /// Whether it is a unit of systemd and nothing more.
    pub fn is_plain_unit(&self) -> bool {
        self.unit.is_some() && self.id.is_none() && self.name.is_none() && self.pod.is_none()
    }

    /// The beginning of an id, as engines show it.
    pub fn short_id(id: &str) -> &str {
        let end = id.char_indices().nth(SHORT_ID).map(|(at, _)| at);
        &id[..end.unwrap_or(id.len())]
    }

    /// All that is said of it besides its cgroup, in the order of the fields.
    pub fn texts(&self) -> [Option<StringId>; 7] {
        [
            self.engine,
            self.id,
            self.name,
            self.image,
            self.pod,
            self.namespace,
            self.unit,
        ]
    }

    /// The texts of [`Container::texts`], to be changed.
    pub fn texts_mut(&mut self) -> [&mut Option<StringId>; 7] {
        [
            &mut self.engine,
            &mut self.id,
            &mut self.name,
            &mut self.image,
            &mut self.pod,
            &mut self.namespace,
            &mut self.unit,
        ]
    }
}

/// One life of a thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Thread {
    /// The process it belongs to.
    pub process: ProcessId,
    /// Thread id in the initial namespace.
    pub tid: Tid,
    /// When it was created.
    pub started: Timestamp,
    /// The name (comm) it had last.
    pub name: StringId,
}

/// What kind of code a module holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ModuleKind {
    /// An ELF file mapped by processes. Frame addresses are file offsets.
    File,
    /// The kernel image. Frame addresses are offsets from `_stext`.
    Kernel,
    /// A loadable kernel module. Frame addresses are offsets from its load address.
    KernelModule,
    /// The kernel's code page in every process. Frame addresses are offsets into it.
    Vdso,
    /// Code made at run time (JIT, BPF): frame addresses are absolute, in one process.
    Jit,
    /// Memory not backed by any of these; frame addresses are absolute.
    Unknown,
    /// What an interpreter runs. Frame addresses are numbers that stand for places in the source, the same
    /// in all captures.
    Interpreted,
}

/// Something that code lives in. Identity is (`kind`, `path`, `build_id`).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Module {
    /// What it is.
    pub kind: ModuleKind,
    /// Path as its processes see it; `[kernel]`, `[vdso]`, `[jit PID]` for what is no file.
    pub path: StringId,
    /// Build id, if it has one.
    pub build_id: Option<BuildId>,
    /// What to add to a frame's address to get the address that the file's own symbols and
    /// `addr2line` use: what these differ by from file offsets in the first executable segment of an ELF file.
    pub address_bias: u64,
}

/// A module in the memory of a process.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Mapping {
    /// Whose memory.
    pub process: ProcessId,
    /// What is mapped.
    pub module: ModuleId,
    /// First address.
    pub start: u64,
    /// First address behind it.
    pub end: u64,
    /// The module's frame address at `start` (for a file: the file offset).
    pub offset: u64,
    /// When it was mapped.
    pub at: Timestamp,
}

/// A function. Identity is all of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Function {
    /// Demangled name.
    pub name: StringId,
    /// Name as in the symbol table, where that differs.
    pub linkage_name: Option<StringId>,
    /// The module it is in.
    pub module: Option<ModuleId>,
    /// Source file.
    pub file: Option<StringId>,
    /// The line that it is defined at there; 0: not known.
    pub line: u32,
    /// Frame address of its first instruction, if it has one of its own (an inlined one has not).
    pub start: Option<u64>,
    /// Length in bytes, if known.
    pub size: Option<u64>,
}

/// What kind of code a frame runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FrameKind {
    /// Machine code of a file.
    Native,
    /// The kernel.
    Kernel,
    /// Machine code made at run time.
    Jit,
    /// Source that an interpreter runs.
    Interpreted,
}

/// One place in code; identity is all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Frame {
    /// What kind of code.
    pub kind: FrameKind,
    /// Where it lives; none if the address is in no known mapping.
    pub module: Option<ModuleId>,
    /// Address within the module (see [`ModuleKind`]), absolute without a module. For callers this
    /// is the return address minus 1, so that it lies inside the call instruction.
    pub address: u64,
}

/// A frame and what called it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stack {
    /// The caller's stack; none at the outermost frame.
    pub parent: Option<StackId>,
    /// The innermost frame.
    pub frame: FrameId,
}

/// What a frame's address means in source code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Symbol {
    /// The functions there, innermost inlined one first; the last is the one really called.
    /// Never empty.
    Lines(Box<[Line]>),
    /// No name can be had.
    Unknown(UnknownReason),
}

/// One function at an address, and where in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Line {
    /// The function.
    pub function: FunctionId,
    /// Source line; 0 if not known.
    pub line: u32,
}

/// Why there is no name for an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum UnknownReason {
    /// The address was in no mapping of the process.
    NoMapping,
    /// The module's file could not be opened any more.
    NoFile,
    /// The file has no symbols, or none that covers the address.
    NoSymbol,
    /// The file is damaged or not of a known format.
    BadFile,
    /// The symbolizer gave up: too slow, or its queue was full.
    GaveUp,
    /// The file is larger than what is read, or unpacks to more, or takes more memory.
    TooLarge,
}

/// A piece of machine code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Code {
    /// The module.
    pub module: ModuleId,
    /// Frame address of the first byte.
    pub address: u64,
    /// The instructions.
    pub bytes: Arc<[u8]>,
}

/// How a function is traced, and what its values are.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Traced {
    /// A function or a marker in the code.
    pub kind: TracedKind,
    /// Distance of the entry's probe from the function's first instruction.
    pub entry_offset: u32,
    /// How its exits are seen.
    pub returns: ReturnMode,
    /// What one call costs the target, as predicted when the probes were placed.
    pub cost_ns: u32,
    /// Line of source of its first instruction; 0: not known.
    pub line: u32,
    /// Its parameters, in the order of the values of [`super::CallEdge::Enter`].
    pub parameters: Box<[Parameter]>,
    /// Type of its result.
    pub result: Option<StringId>,
}

/// What is traced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum TracedKind {
    /// A function.
    #[default]
    Function,
    /// A statically defined marker (USDT): the function's name is `provider:name`.
    Marker,
}

/// How the exits of a function are seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReturnMode {
    /// Not at all: entries only.
    None,
    /// By the kernel's return probe, which replaces the return address.
    Uretprobe,
    /// By a probe on each instruction that leaves the function.
    Instructions,
    /// By another program's agent, in its own way.
    Agent,
}

/// A parameter of a traced function.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Parameter {
    /// Its name; without debug information the register's.
    pub name: StringId,
    /// Its type, if known.
    pub kind: Option<StringId>,
}
