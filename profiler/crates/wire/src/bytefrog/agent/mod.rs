//! What an agent sends to its HQ: messages -> bytes and back.
//!
//! Times are milliseconds since tracing began. What does not belong here: which message is legal when.

use std::borrow::Cow;

use super::Mode;

mod decode;
mod encode;

/// A message from the agent to HQ. Times are milliseconds since tracing began; sequence ids begin
/// with 0 and wrap around; method and exception ids begin with 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AgentMessage<'a> {
    /// Opens the control connection.
    Hello {
        /// Version of the protocol.
        version: u8,
    },
    /// Opens a data connection.
    DataHello {
        /// The run of the configuration.
        run: u8,
    },
    /// The agent lives.
    Heartbeat {
        /// What it is doing.
        mode: Mode,
        /// Send buffers that are not empty.
        filled: u16,
    },
    /// Stacks are to be forgotten when data reaches this sequence id.
    DataBreak {
        /// The first one behind the break.
        sequence: u32,
    },
    /// A class is traced.
    ClassTransformed(Cow<'a, str>),
    /// A class is not traced, as asked.
    ClassIgnored(Cow<'a, str>),
    /// A class can't be traced.
    ClassTransformFailed(Cow<'a, str>),
    /// Names a thread, from now on.
    MapThreadName {
        /// Its number in this run.
        thread: u16,
        /// When.
        at_ms: u32,
        /// Its name.
        name: Cow<'a, str>,
    },
    /// Names a method. May come after its first use.
    MapMethodSignature {
        /// Its number in this run.
        method: u32,
        /// Its signature.
        signature: Cow<'a, str>,
    },
    /// Names a type of exceptions. May come after its first use.
    MapException {
        /// Its number in this run.
        exception: u32,
        /// Its name.
        name: Cow<'a, str>,
    },
    /// A method was entered.
    MethodEntry {
        /// When.
        at_ms: u32,
        /// Place in the run.
        sequence: u32,
        /// Which method.
        method: u32,
        /// On which thread.
        thread: u16,
    },
    /// A method was left by returning.
    MethodExit {
        /// When.
        at_ms: u32,
        /// Place in the run.
        sequence: u32,
        /// Which method.
        method: u32,
        /// Line of source, or [`super::UNKNOWN_LINE`].
        line: u16,
        /// On which thread.
        thread: u16,
    },
    /// A method threw. It has not been left.
    Exception {
        /// When.
        at_ms: u32,
        /// Place in the run.
        sequence: u32,
        /// Which method.
        method: u32,
        /// What it threw.
        exception: u32,
        /// Line of source, or [`super::UNKNOWN_LINE`].
        line: u16,
        /// On which thread.
        thread: u16,
    },
    /// A method was left by an exception that passed through it.
    ExceptionBubble {
        /// When.
        at_ms: u32,
        /// Place in the run.
        sequence: u32,
        /// Which method.
        method: u32,
        /// What passed.
        exception: u32,
        /// On which thread.
        thread: u16,
    },
    /// Something else happened.
    Marker {
        /// When.
        at_ms: u32,
        /// Place in the run.
        sequence: u32,
        /// What kind of thing.
        key: Cow<'a, str>,
        /// What.
        value: Cow<'a, str>,
    },
    /// A fatal error.
    Error(Cow<'a, str>),
}

/// On which connection a message may come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Channel {
    /// First on a connection: says which one it is.
    Greeting,
    /// The connection that began with hello.
    Control,
    /// A connection that began with data hello.
    Data,
    /// Any.
    Any,
}

const HELLO: u8 = 0;
const HEARTBEAT: u8 = 8;
const DATA_BREAK: u8 = 9;
const MAP_THREAD_NAME: u8 = 10;
const MAP_METHOD_SIGNATURE: u8 = 11;
const MAP_EXCEPTION: u8 = 12;
const METHOD_ENTRY: u8 = 20;
const METHOD_EXIT: u8 = 21;
const EXCEPTION: u8 = 22;
const EXCEPTION_BUBBLE: u8 = 23;
const DATA_HELLO: u8 = 30;
const CLASS_TRANSFORMED: u8 = 40;
const CLASS_IGNORED: u8 = 41;
const CLASS_TRANSFORM_FAILED: u8 = 42;
const MARKER: u8 = 50;
const ERROR: u8 = 99;

impl AgentMessage<'_> {
    /// Where it may come.
    pub fn channel(&self) -> Channel {
        match self {
            AgentMessage::Hello { .. } | AgentMessage::DataHello { .. } => Channel::Greeting,
            AgentMessage::Heartbeat { .. }
            | AgentMessage::DataBreak { .. }
            | AgentMessage::ClassTransformed(_)
            | AgentMessage::ClassIgnored(_)
            | AgentMessage::ClassTransformFailed(_) => Channel::Control,
            AgentMessage::Error(_) => Channel::Any,
            _ => Channel::Data,
        }
    }

    /// Its place in the run, if it has one.
    pub fn sequence(&self) -> Option<u32> {
        match *self {
            AgentMessage::MethodEntry { sequence, .. }
            | AgentMessage::MethodExit { sequence, .. }
            | AgentMessage::Exception { sequence, .. }
            | AgentMessage::ExceptionBubble { sequence, .. }
            | AgentMessage::Marker { sequence, .. } => Some(sequence),
            _ => None,
        }
    }
}
