//! What is known of a frame that is entered or left.
//!
//! All of it, whatever is asked for: the actor sends what its traces want. Times are nanoseconds. What does not belong
//! here: how frames come to be known.

use std::borrow::Cow;

use serde::Serialize;

use super::grip::Values;

/// A place in source code. Lines and columns begin with 1; 0: not known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place<'a> {
    /// Path of the file.
    pub path: Cow<'a, str>,
    /// The line.
    pub line: u32,
}

/// A frame is entered.
#[derive(Clone, Debug, PartialEq)]
pub struct Entered<'a> {
    /// Tells functions apart.
    pub function: u64,
    /// How many frames enclose it on its stack.
    pub depth: u32,
    /// Whose stack that is: a goroutine's number, 0 for the thread's own.
    pub goroutine: u32,
    /// When.
    pub at_ns: u64,
    /// Its function's name.
    pub name: Cow<'a, str>,
    /// Where it was called from, if that is known.
    pub callsite: Option<Place<'a>>,
    /// Where it is, if that is known.
    pub location: Option<Place<'a>>,
    /// Names of its parameters, if they are known.
    pub parameter_names: Option<Vec<Cow<'a, str>>>,
    /// Its arguments, if they are known.
    pub arguments: Option<Values>,
    /// It was not seen: others tell that it must have been.
    pub inferred: bool,
}

/// A frame is left.
#[derive(Clone, Debug, PartialEq)]
pub struct Exited {
    /// Tells functions apart.
    pub function: u64,
    /// How many frames enclose it on its stack.
    pub depth: u32,
    /// Whose stack that is: a goroutine's number, 0 for the thread's own.
    pub goroutine: u32,
    /// When.
    pub at_ns: u64,
    /// How.
    pub why: Why,
    /// What it has returned, thrown or yielded, if that is known.
    pub value: Option<Values>,
    /// It was not seen: others tell that it must have been.
    pub inferred: bool,
}

/// How a frame is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Why {
    /// It has returned.
    Return,
    /// An exception went through.
    Exception,
    /// It will be entered again.
    Yield,
    /// It was done away with.
    Terminated,
}
