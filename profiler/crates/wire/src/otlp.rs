//! Messages of OpenTelemetry's profiles: `profiles.v1development` of opentelemetry-proto 1.10.
//!
//! Values of the format's own terms -> protobuf. All tables are in the dictionary; the first entry of each is the empty
//! one, and 0 is none. Version 1.10 gave the fields of [`Sample`] other numbers than those before. What does not belong
//! here: what they mean in a recording.

use prost::{Message, Oneof};

/// The version of opentelemetry-proto whose numbers these are.
pub const PROTO_VERSION: &str = "1.10.0";

/// A whole file, and what an exporter sends.
#[derive(Clone, PartialEq, Message)]
pub struct ProfilesData {
    /// What each resource did.
    #[prost(message, repeated, tag = "1")]
    pub resource_profiles: Vec<ResourceProfiles>,
    /// The tables.
    #[prost(message, optional, tag = "2")]
    pub dictionary: Option<Dictionary>,
}

/// Tables, shared by all.
#[derive(Clone, PartialEq, Message)]
pub struct Dictionary {
    /// Object files.
    #[prost(message, repeated, tag = "1")]
    pub mapping_table: Vec<Mapping>,
    /// Places in code.
    #[prost(message, repeated, tag = "2")]
    pub location_table: Vec<Location>,
    /// Functions.
    #[prost(message, repeated, tag = "3")]
    pub function_table: Vec<Function>,
    /// Spans of traces.
    #[prost(message, repeated, tag = "4")]
    pub link_table: Vec<Link>,
    /// Texts.
    #[prost(string, repeated, tag = "5")]
    pub string_table: Vec<String>,
    /// Names with values.
    #[prost(message, repeated, tag = "6")]
    pub attribute_table: Vec<KeyValueAndUnit>,
    /// Stacks.
    #[prost(message, repeated, tag = "7")]
    pub stack_table: Vec<Stack>,
}

/// What a resource did.
#[derive(Clone, PartialEq, Message)]
pub struct ResourceProfiles {
    /// Which: a process here.
    #[prost(message, optional, tag = "1")]
    pub resource: Option<Resource>,
    /// By who recorded it.
    #[prost(message, repeated, tag = "2")]
    pub scope_profiles: Vec<ScopeProfiles>,
}

/// What runs.
#[derive(Clone, PartialEq, Message)]
pub struct Resource {
    /// What is known of it.
    #[prost(message, repeated, tag = "1")]
    pub attributes: Vec<KeyValue>,
}

/// What one program recorded.
#[derive(Clone, PartialEq, Message)]
pub struct ScopeProfiles {
    /// Which program.
    #[prost(message, optional, tag = "1")]
    pub scope: Option<Scope>,
    /// Profiles.
    #[prost(message, repeated, tag = "2")]
    pub profiles: Vec<Profile>,
}

/// A program that records.
#[derive(Clone, PartialEq, Message)]
pub struct Scope {
    /// Its name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Its version.
    #[prost(string, tag = "2")]
    pub version: String,
    /// What else is known.
    #[prost(message, repeated, tag = "3")]
    pub attributes: Vec<KeyValue>,
}

/// Samples of one type.
#[derive(Clone, PartialEq, Message)]
pub struct Profile {
    /// What the values are.
    #[prost(message, optional, tag = "1")]
    pub sample_type: Option<ValueType>,
    /// The samples.
    #[prost(message, repeated, tag = "2")]
    pub samples: Vec<Sample>,
    /// When it began: nanoseconds since 1970.
    #[prost(fixed64, tag = "3")]
    pub time_unix_nano: u64,
    /// How long it took.
    #[prost(uint64, tag = "4")]
    pub duration_nano: u64,
    /// The unit of `period`.
    #[prost(message, optional, tag = "5")]
    pub period_type: Option<ValueType>,
    /// How much lies between two samples.
    #[prost(int64, tag = "6")]
    pub period: i64,
    /// 16 bytes that no other profile has.
    #[prost(bytes = "vec", tag = "7")]
    pub profile_id: Vec<u8>,
    /// What else is known, by attribute.
    #[prost(int32, repeated, tag = "11")]
    pub attribute_indices: Vec<i32>,
}

/// A stack with what it was seen for.
#[derive(Clone, PartialEq, Message)]
pub struct Sample {
    /// Which stack.
    #[prost(int32, tag = "1")]
    pub stack_index: i32,
    /// What else is known, by attribute.
    #[prost(int32, repeated, tag = "2")]
    pub attribute_indices: Vec<i32>,
    /// Which span.
    #[prost(int32, tag = "3")]
    pub link_index: i32,
    /// The value.
    #[prost(int64, repeated, tag = "4")]
    pub values: Vec<i64>,
}

/// What a value is.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct ValueType {
    /// Such as `cpu`.
    #[prost(int32, tag = "1")]
    pub type_strindex: i32,
    /// Such as `nanoseconds`.
    #[prost(int32, tag = "2")]
    pub unit_strindex: i32,
}

/// An object file in memory.
#[derive(Clone, PartialEq, Message)]
pub struct Mapping {
    /// First address.
    #[prost(uint64, tag = "1")]
    pub memory_start: u64,
    /// First address behind it.
    #[prost(uint64, tag = "2")]
    pub memory_limit: u64,
    /// Offset in the file at `memory_start`.
    #[prost(uint64, tag = "3")]
    pub file_offset: u64,
    /// Path.
    #[prost(int32, tag = "4")]
    pub filename_strindex: i32,
    /// Its build id, by attribute.
    #[prost(int32, repeated, tag = "5")]
    pub attribute_indices: Vec<i32>,
}

/// A place in code.
#[derive(Clone, PartialEq, Message)]
pub struct Location {
    /// Where it is mapped from.
    #[prost(int32, tag = "1")]
    pub mapping_index: i32,
    /// Its address.
    #[prost(uint64, tag = "2")]
    pub address: u64,
    /// The functions there, innermost inlined one first.
    #[prost(message, repeated, tag = "3")]
    pub lines: Vec<Line>,
    /// What code it is, by attribute.
    #[prost(int32, repeated, tag = "4")]
    pub attribute_indices: Vec<i32>,
}

/// A function at a place.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Line {
    /// Which function.
    #[prost(int32, tag = "1")]
    pub function_index: i32,
    /// The line; 0 if it is not known.
    #[prost(int64, tag = "2")]
    pub line: i64,
}

/// A function.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Function {
    /// Its name.
    #[prost(int32, tag = "1")]
    pub name_strindex: i32,
    /// Its name in the symbol table.
    #[prost(int32, tag = "2")]
    pub system_name_strindex: i32,
    /// Its source file.
    #[prost(int32, tag = "3")]
    pub filename_strindex: i32,
    /// The line that it begins at.
    #[prost(int64, tag = "4")]
    pub start_line: i64,
}

/// A span of a trace.
#[derive(Clone, PartialEq, Message)]
pub struct Link {
    /// 16 bytes.
    #[prost(bytes = "vec", tag = "1")]
    pub trace_id: Vec<u8>,
    /// 8 bytes.
    #[prost(bytes = "vec", tag = "2")]
    pub span_id: Vec<u8>,
}

/// A stack.
#[derive(Clone, PartialEq, Message)]
pub struct Stack {
    /// Leaf first.
    #[prost(int32, repeated, tag = "1")]
    pub location_indices: Vec<i32>,
}

/// A name in the table of texts, with a value.
#[derive(Clone, PartialEq, Message)]
pub struct KeyValueAndUnit {
    /// The name.
    #[prost(int32, tag = "1")]
    pub key_strindex: i32,
    /// The value.
    #[prost(message, optional, tag = "2")]
    pub value: Option<AnyValue>,
    /// Its unit.
    #[prost(int32, tag = "3")]
    pub unit_strindex: i32,
}

/// A name with a value.
#[derive(Clone, PartialEq, Message)]
pub struct KeyValue {
    /// The name.
    #[prost(string, tag = "1")]
    pub key: String,
    /// The value.
    #[prost(message, optional, tag = "2")]
    pub value: Option<AnyValue>,
}

/// A value.
#[derive(Clone, PartialEq, Message)]
pub struct AnyValue {
    /// Of which kind.
    #[prost(oneof = "Any", tags = "1, 3")]
    pub value: Option<Any>,
}

/// A value of a kind.
#[derive(Clone, PartialEq, Oneof)]
pub enum Any {
    /// A text.
    #[prost(string, tag = "1")]
    Text(String),
    /// A number.
    #[prost(int64, tag = "3")]
    Number(i64),
}
