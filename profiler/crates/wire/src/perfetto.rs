//! Messages of Perfetto's trace protocol: those that a recording needs.
//!
//! Values of the format's own terms -> protobuf. A trace is packets, each a field 1 of the whole, so that it can be
//! written piece by piece. Interned ids hold within a sequence of packets; 0 is none. Source: the field numbers of
//! `perfetto_trace.proto`, version 59. What does not belong here: what they mean in a recording.

use prost::{Message, Oneof};

/// Number of the field of a trace that packets are.
pub const PACKET: u32 = 1;

/// A whole trace, for who reads one.
#[derive(Clone, PartialEq, Message)]
pub struct Trace {
    /// Its packets.
    #[prost(message, repeated, tag = "1")]
    pub packet: Vec<Packet>,
}

/// Bits of [`Packet::sequence_flags`].
pub mod flags {
    /// Ids begin anew.
    pub const CLEARED: u32 = 1;
    /// It refers to ids of packets before.
    pub const NEEDS_STATE: u32 = 2;
}

/// Clocks by number.
pub mod clock {
    /// CLOCK_REALTIME.
    pub const REALTIME: u32 = 1;
    /// CLOCK_MONOTONIC.
    pub const MONOTONIC: u32 = 3;
}

/// A packet.
#[derive(Clone, PartialEq, Message)]
pub struct Packet {
    /// When, by the sequence's clock.
    #[prost(uint64, optional, tag = "8")]
    pub timestamp: Option<u64>,
    /// Which sequence.
    #[prost(uint32, tag = "10")]
    pub trusted_packet_sequence_id: u32,
    /// See [`flags`].
    #[prost(uint32, tag = "13")]
    pub sequence_flags: u32,
    /// Whether it is the first of its sequence.
    #[prost(bool, tag = "87")]
    pub first_packet_on_sequence: bool,
    /// What holds for all packets of the sequence.
    #[prost(message, optional, tag = "59")]
    pub trace_packet_defaults: Option<Defaults>,
    /// What packets refer to from now on.
    #[prost(message, optional, tag = "12")]
    pub interned_data: Option<Interned>,
    /// What it says.
    #[prost(oneof = "Data", tags = "2, 6, 11, 45, 60, 66, 135")]
    pub data: Option<Data>,
}

/// What a packet says.
#[derive(Clone, PartialEq, Oneof)]
pub enum Data {
    /// Processes.
    #[prost(message, tag = "2")]
    ProcessTree(ProcessTree),
    /// How clocks relate.
    #[prost(message, tag = "6")]
    ClockSnapshot(ClockSnapshot),
    /// A slice begins or ends, or an instant.
    #[prost(message, tag = "11")]
    TrackEvent(TrackEvent),
    /// The machine.
    #[prost(message, tag = "45")]
    SystemInfo(SystemInfo),
    /// A row of the timeline.
    #[prost(message, tag = "60")]
    TrackDescriptor(TrackDescriptor),
    /// A sample, as before version 58.
    #[prost(message, tag = "66")]
    PerfSample(PerfSample),
    /// A sample, from version 58 on.
    #[prost(message, tag = "135")]
    StackSample(StackSample),
}

/// What holds for all packets of a sequence.
#[derive(Clone, PartialEq, Message)]
pub struct Defaults {
    /// The clock of timestamps.
    #[prost(uint32, tag = "58")]
    pub timestamp_clock_id: u32,
    /// What samples of the older kind count.
    #[prost(message, optional, tag = "12")]
    pub perf_sample_defaults: Option<PerfSampleDefaults>,
    /// Who took samples of the newer kind.
    #[prost(message, optional, tag = "100")]
    pub stack_sample_defaults: Option<StackSampleDefaults>,
}

/// What samples of the older kind count.
#[derive(Clone, PartialEq, Message)]
pub struct PerfSampleDefaults {
    /// The event.
    #[prost(message, optional, tag = "1")]
    pub timebase: Option<Timebase>,
}

/// An event that is counted.
#[derive(Clone, PartialEq, Message)]
pub struct Timebase {
    /// How many lie between samples.
    #[prost(uint64, optional, tag = "1")]
    pub period: Option<u64>,
    /// Or samples per second.
    #[prost(uint64, optional, tag = "2")]
    pub frequency: Option<u64>,
    /// Which of the known ones.
    #[prost(int32, optional, tag = "4")]
    pub counter: Option<i32>,
    /// Its name.
    #[prost(string, tag = "10")]
    pub name: String,
}

/// Who took samples of the newer kind.
#[derive(Clone, PartialEq, Message)]
pub struct StackSampleDefaults {
    /// A name.
    #[prost(string, tag = "1")]
    pub source: String,
}

/// Things with ids.
#[derive(Clone, PartialEq, Message)]
pub struct Interned {
    /// Names of slices.
    #[prost(message, repeated, tag = "2")]
    pub event_names: Vec<EventName>,
    /// Names of functions.
    #[prost(message, repeated, tag = "5")]
    pub function_names: Vec<Text>,
    /// Places in code.
    #[prost(message, repeated, tag = "6")]
    pub frames: Vec<Frame>,
    /// Stacks.
    #[prost(message, repeated, tag = "7")]
    pub callstacks: Vec<Callstack>,
    /// Build ids, as bytes.
    #[prost(message, repeated, tag = "16")]
    pub build_ids: Vec<Text>,
    /// Paths of object files.
    #[prost(message, repeated, tag = "17")]
    pub mapping_paths: Vec<Text>,
    /// Paths of source files.
    #[prost(message, repeated, tag = "18")]
    pub source_paths: Vec<Text>,
    /// Object files.
    #[prost(message, repeated, tag = "19")]
    pub mappings: Vec<Mapping>,
    /// Threads of samples.
    #[prost(message, repeated, tag = "48")]
    pub stack_sample_task_contexts: Vec<TaskContext>,
    /// What samples count.
    #[prost(message, repeated, tag = "50")]
    pub stack_sample_counter_descriptors: Vec<CounterDescriptor>,
}

/// The name of a slice.
#[derive(Clone, PartialEq, Message)]
pub struct EventName {
    /// Its id.
    #[prost(uint64, tag = "1")]
    pub iid: u64,
    /// The name.
    #[prost(string, tag = "2")]
    pub name: String,
}

/// A text that is bytes.
#[derive(Clone, PartialEq, Message)]
pub struct Text {
    /// Its id.
    #[prost(uint64, tag = "1")]
    pub iid: u64,
    /// The bytes.
    #[prost(bytes = "vec", tag = "2")]
    pub str: Vec<u8>,
}

/// A place in code.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Frame {
    /// Its id.
    #[prost(uint64, tag = "1")]
    pub iid: u64,
    /// The function's name.
    #[prost(uint64, tag = "2")]
    pub function_name_id: u64,
    /// The object file.
    #[prost(uint64, tag = "3")]
    pub mapping_id: u64,
    /// Address in the object file.
    #[prost(uint64, tag = "4")]
    pub rel_pc: u64,
    /// The source file.
    #[prost(uint64, optional, tag = "5")]
    pub source_path_iid: Option<u64>,
    /// The line.
    #[prost(uint32, optional, tag = "6")]
    pub line_number: Option<u32>,
    /// What code it is: 1 native, 2 kernel, 3 interpreted, 4 made at run time.
    #[prost(int32, tag = "7")]
    pub kind: i32,
}

/// A stack.
#[derive(Clone, PartialEq, Message)]
pub struct Callstack {
    /// Its id.
    #[prost(uint64, tag = "1")]
    pub iid: u64,
    /// Frames, outermost first.
    #[prost(uint64, repeated, packed = "false", tag = "2")]
    pub frame_ids: Vec<u64>,
}

/// An object file in memory.
#[derive(Clone, PartialEq, Message)]
pub struct Mapping {
    /// Its id.
    #[prost(uint64, tag = "1")]
    pub iid: u64,
    /// Its build id.
    #[prost(uint64, tag = "2")]
    pub build_id: u64,
    /// First address.
    #[prost(uint64, tag = "4")]
    pub start: u64,
    /// First address behind it.
    #[prost(uint64, tag = "5")]
    pub end: u64,
    /// Parts of its path, joined by `/`.
    #[prost(uint64, repeated, packed = "false", tag = "7")]
    pub path_string_ids: Vec<u64>,
}

/// A thread.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct TaskContext {
    /// Its id.
    #[prost(uint64, tag = "1")]
    pub iid: u64,
    /// Process.
    #[prost(uint32, tag = "2")]
    pub pid: u32,
    /// Thread.
    #[prost(uint32, tag = "3")]
    pub tid: u32,
}

/// What a sample's weight is.
#[derive(Clone, PartialEq, Message)]
pub struct CounterDescriptor {
    /// Its id.
    #[prost(uint64, tag = "1")]
    pub iid: u64,
    /// The event's name.
    #[prost(string, tag = "2")]
    pub name: String,
    /// 1 nanoseconds, 2 cycles, 9 a count.
    #[prost(int32, tag = "3")]
    pub unit: i32,
}

/// Where a sample was taken.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct ExecutionContext {
    /// Processor.
    #[prost(uint32, optional, tag = "2")]
    pub cpu: Option<u32>,
    /// 1 user, 2 kernel.
    #[prost(int32, tag = "3")]
    pub mode: i32,
}

/// A sample, from version 58 on.
#[derive(Clone, PartialEq, Message)]
pub struct StackSample {
    /// Its thread.
    #[prost(uint64, tag = "2")]
    pub task_context_iid: u64,
    /// Where.
    #[prost(message, optional, tag = "3")]
    pub execution_context: Option<ExecutionContext>,
    /// Its stack.
    #[prost(uint64, tag = "6")]
    pub callstack_iid: u64,
    /// Why the stack ends early.
    #[prost(string, optional, tag = "7")]
    pub unwind_error: Option<String>,
    /// What it counts.
    #[prost(uint64, tag = "10")]
    pub primary_descriptor_iid: u64,
    /// How many of these it stands for.
    #[prost(uint64, optional, tag = "11")]
    pub primary_weight: Option<u64>,
}

/// A sample, as before version 58.
#[derive(Clone, PartialEq, Message)]
pub struct PerfSample {
    /// Processor.
    #[prost(uint32, optional, tag = "1")]
    pub cpu: Option<u32>,
    /// Process.
    #[prost(uint32, tag = "2")]
    pub pid: u32,
    /// Thread.
    #[prost(uint32, tag = "3")]
    pub tid: u32,
    /// Its stack.
    #[prost(uint64, tag = "4")]
    pub callstack_iid: u64,
    /// 1 kernel, 2 user.
    #[prost(int32, tag = "5")]
    pub cpu_mode: i32,
    /// The event's count on this processor so far.
    #[prost(uint64, tag = "6")]
    pub timebase_count: u64,
}

/// Processes.
#[derive(Clone, PartialEq, Message)]
pub struct ProcessTree {
    /// All there are.
    #[prost(message, repeated, tag = "1")]
    pub processes: Vec<Process>,
}

/// A process.
#[derive(Clone, PartialEq, Message)]
pub struct Process {
    /// Its number.
    #[prost(int32, tag = "1")]
    pub pid: i32,
    /// Its parent's.
    #[prost(int32, tag = "2")]
    pub ppid: i32,
    /// Its command line, or its name.
    #[prost(string, repeated, tag = "3")]
    pub cmdline: Vec<String>,
    /// Its user.
    #[prost(int32, optional, tag = "5")]
    pub uid: Option<i32>,
    /// Its numbers in inner namespaces.
    #[prost(int32, repeated, packed = "false", tag = "6")]
    pub nspid: Vec<i32>,
}

/// How clocks relate.
#[derive(Clone, PartialEq, Message)]
pub struct ClockSnapshot {
    /// Each at the same moment.
    #[prost(message, repeated, tag = "1")]
    pub clocks: Vec<ClockAt>,
    /// The one that a viewer shows.
    #[prost(int32, tag = "2")]
    pub primary_trace_clock: i32,
}

/// A clock at a moment.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct ClockAt {
    /// See [`clock`].
    #[prost(uint32, tag = "1")]
    pub clock_id: u32,
    /// Nanoseconds.
    #[prost(uint64, tag = "2")]
    pub timestamp: u64,
}

/// The machine.
#[derive(Clone, PartialEq, Message)]
pub struct SystemInfo {
    /// Its kernel.
    #[prost(message, optional, tag = "1")]
    pub utsname: Option<Utsname>,
    /// What recorded.
    #[prost(string, tag = "4")]
    pub tracing_service_version: String,
    /// Processors.
    #[prost(uint32, tag = "8")]
    pub num_cpus: u32,
    /// Its name.
    #[prost(string, tag = "17")]
    pub machine_name: String,
}

/// A kernel.
#[derive(Clone, PartialEq, Message)]
pub struct Utsname {
    /// `Linux`.
    #[prost(string, tag = "1")]
    pub sysname: String,
    /// Its release.
    #[prost(string, tag = "3")]
    pub release: String,
    /// Its architecture.
    #[prost(string, tag = "4")]
    pub machine: String,
}

/// A row of the timeline.
#[derive(Clone, PartialEq, Message)]
pub struct TrackDescriptor {
    /// Its number.
    #[prost(uint64, tag = "1")]
    pub uuid: u64,
    /// Its name, where it is neither a process nor a thread.
    #[prost(string, optional, tag = "2")]
    pub name: Option<String>,
    /// The process that it is.
    #[prost(message, optional, tag = "3")]
    pub process: Option<ProcessDescriptor>,
    /// The thread that it is.
    #[prost(message, optional, tag = "4")]
    pub thread: Option<ThreadDescriptor>,
    /// The row that it belongs to.
    #[prost(uint64, optional, tag = "5")]
    pub parent_uuid: Option<u64>,
}

/// A process that is a row.
#[derive(Clone, PartialEq, Message)]
pub struct ProcessDescriptor {
    /// Its number.
    #[prost(int32, tag = "1")]
    pub pid: i32,
    /// Its command line.
    #[prost(string, repeated, tag = "2")]
    pub cmdline: Vec<String>,
    /// Its name.
    #[prost(string, tag = "6")]
    pub process_name: String,
    /// When it began.
    #[prost(int64, optional, tag = "7")]
    pub start_timestamp_ns: Option<i64>,
    /// What else is shown with its name.
    #[prost(string, repeated, tag = "8")]
    pub process_labels: Vec<String>,
}

/// A thread that is a row.
#[derive(Clone, PartialEq, Message)]
pub struct ThreadDescriptor {
    /// Its process.
    #[prost(int32, tag = "1")]
    pub pid: i32,
    /// Its number.
    #[prost(int64, tag = "2")]
    pub tid: i64,
    /// Its name.
    #[prost(string, tag = "5")]
    pub thread_name: String,
}

/// Kinds of [`TrackEvent`].
pub mod kind {
    /// A slice begins.
    pub const BEGIN: i32 = 1;
    /// The innermost slice of the row ends.
    pub const END: i32 = 2;
    /// It takes no time.
    pub const INSTANT: i32 = 3;
}

/// A slice begins or ends, or an instant.
#[derive(Clone, PartialEq, Message)]
pub struct TrackEvent {
    /// See [`kind`].
    #[prost(int32, tag = "9")]
    pub r#type: i32,
    /// Its row.
    #[prost(uint64, tag = "11")]
    pub track_uuid: u64,
    /// What kind of thing.
    #[prost(string, repeated, tag = "22")]
    pub categories: Vec<String>,
    /// Its name.
    #[prost(uint64, optional, tag = "10")]
    pub name_iid: Option<u64>,
    /// The code that it happened in.
    #[prost(uint64, optional, tag = "56")]
    pub callstack_iid: Option<u64>,
    /// What else is known.
    #[prost(message, repeated, tag = "4")]
    pub debug_annotations: Vec<Annotation>,
    /// Arrows that go through it.
    #[prost(fixed64, repeated, packed = "false", tag = "47")]
    pub flow_ids: Vec<u64>,
    /// Arrows that end in it.
    #[prost(fixed64, repeated, packed = "false", tag = "48")]
    pub terminating_flow_ids: Vec<u64>,
}

/// A name and a value.
#[derive(Clone, PartialEq, Message)]
pub struct Annotation {
    /// The name.
    #[prost(string, tag = "10")]
    pub name: String,
    /// The value.
    #[prost(oneof = "AnnotationValue", tags = "2, 3, 4, 5, 6, 7")]
    pub value: Option<AnnotationValue>,
    /// Or parts with names.
    #[prost(message, repeated, tag = "11")]
    pub dict_entries: Vec<Annotation>,
}

/// A value.
#[derive(Clone, PartialEq, Oneof)]
pub enum AnnotationValue {
    /// A truth value.
    #[prost(bool, tag = "2")]
    Bool(bool),
    /// A number.
    #[prost(uint64, tag = "3")]
    Unsigned(u64),
    /// A number.
    #[prost(int64, tag = "4")]
    Signed(i64),
    /// A number.
    #[prost(double, tag = "5")]
    Double(f64),
    /// A text.
    #[prost(string, tag = "6")]
    Text(String),
    /// An address.
    #[prost(uint64, tag = "7")]
    Pointer(u64),
}
