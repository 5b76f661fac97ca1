//! Messages of pprof's `profile.proto`.
//!
//! Values of the format's own terms -> protobuf, without the gzip around it. Strings are indices into the string
//! table, whose first is empty; ids begin at 1, and 0 is none. What does not belong here: what they mean in a
//! recording.

use prost::Message;

/// Numbers of the fields of [`Profile`]: a profile can be written field by field, in any order.
pub mod field {
    #![expect(missing_docs, reason = "they are the names of the fields")]
    pub const SAMPLE: u32 = 2;
    pub const MAPPING: u32 = 3;
    pub const LOCATION: u32 = 4;
    pub const FUNCTION: u32 = 5;
    pub const STRING: u32 = 6;
}

/// A whole profile.
#[derive(Clone, PartialEq, Message)]
pub struct Profile {
    /// What the values of each sample are.
    #[prost(message, repeated, tag = "1")]
    pub sample_type: Vec<ValueType>,
    /// Samples; equal ones may be merged.
    #[prost(message, repeated, tag = "2")]
    pub sample: Vec<Sample>,
    /// Object files; the first is the main program.
    #[prost(message, repeated, tag = "3")]
    pub mapping: Vec<Mapping>,
    /// Places in code.
    #[prost(message, repeated, tag = "4")]
    pub location: Vec<Location>,
    /// Functions.
    #[prost(message, repeated, tag = "5")]
    pub function: Vec<Function>,
    /// All texts.
    #[prost(string, repeated, tag = "6")]
    pub string_table: Vec<String>,
    /// When it began: nanoseconds since 1970.
    #[prost(int64, tag = "9")]
    pub time_nanos: i64,
    /// How long it took.
    #[prost(int64, tag = "10")]
    pub duration_nanos: i64,
    /// The unit of `period`.
    #[prost(message, optional, tag = "11")]
    pub period_type: Option<ValueType>,
    /// How much lies between two samples.
    #[prost(int64, tag = "12")]
    pub period: i64,
    /// Free text.
    #[prost(int64, repeated, tag = "13")]
    pub comment: Vec<i64>,
    /// The type that tools show first.
    #[prost(int64, tag = "14")]
    pub default_sample_type: i64,
}

/// What a value is.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct ValueType {
    /// Such as `cpu`.
    #[prost(int64, tag = "1")]
    pub kind: i64,
    /// Such as `nanoseconds`.
    #[prost(int64, tag = "2")]
    pub unit: i64,
}

/// A stack with its values.
#[derive(Clone, PartialEq, Message)]
pub struct Sample {
    /// Leaf first.
    #[prost(uint64, repeated, tag = "1")]
    pub location_id: Vec<u64>,
    /// One for each type.
    #[prost(int64, repeated, tag = "2")]
    pub value: Vec<i64>,
    /// What else is known of it.
    #[prost(message, repeated, tag = "3")]
    pub label: Vec<Label>,
}

/// A name and a text or a number.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Label {
    /// The name.
    #[prost(int64, tag = "1")]
    pub key: i64,
    /// The text; 0: it is a number.
    #[prost(int64, tag = "2")]
    pub str: i64,
    /// The number.
    #[prost(int64, tag = "3")]
    pub num: i64,
}

/// An object file in memory.
#[derive(Clone, PartialEq, Message)]
pub struct Mapping {
    /// Its number.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// First address.
    #[prost(uint64, tag = "2")]
    pub memory_start: u64,
    /// First address behind it.
    #[prost(uint64, tag = "3")]
    pub memory_limit: u64,
    /// Offset in the file at `memory_start`.
    #[prost(uint64, tag = "4")]
    pub file_offset: u64,
    /// Path.
    #[prost(int64, tag = "5")]
    pub filename: i64,
    /// Build id, hexadecimal.
    #[prost(int64, tag = "6")]
    pub build_id: i64,
    /// Names were looked up.
    #[prost(bool, tag = "7")]
    pub has_functions: bool,
    /// Source files were.
    #[prost(bool, tag = "8")]
    pub has_filenames: bool,
    /// Source lines were.
    #[prost(bool, tag = "9")]
    pub has_line_numbers: bool,
    /// Inlined functions were.
    #[prost(bool, tag = "10")]
    pub has_inline_frames: bool,
}

/// A place in code.
#[derive(Clone, PartialEq, Message)]
pub struct Location {
    /// Its number.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// Where it is mapped from.
    #[prost(uint64, tag = "2")]
    pub mapping_id: u64,
    /// Its address.
    #[prost(uint64, tag = "3")]
    pub address: u64,
    /// The functions there, innermost inlined one first.
    #[prost(message, repeated, tag = "4")]
    pub line: Vec<Line>,
}

/// A function at a location.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Line {
    /// Which.
    #[prost(uint64, tag = "1")]
    pub function_id: u64,
    /// Source line.
    #[prost(int64, tag = "2")]
    pub line: i64,
}

/// A function.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Function {
    /// Its number.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// Name for people.
    #[prost(int64, tag = "2")]
    pub name: i64,
    /// Name in the symbol table.
    #[prost(int64, tag = "3")]
    pub system_name: i64,
    /// Source file.
    #[prost(int64, tag = "4")]
    pub filename: i64,
    /// Source line that it begins at.
    #[prost(int64, tag = "5")]
    pub start_line: i64,
}
