//! What an agent sends to its HQ.

use std::borrow::Cow;

use super::{DecodeError, Fields, Mode, text};

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

    /// Appends the message. Texts that are too long are cut.
    #[inline]
    pub fn encode(&self, out: &mut Vec<u8>) {
        match *self {
            AgentMessage::Hello { version } => out.extend_from_slice(&[HELLO, version]),
            AgentMessage::DataHello { run } => out.extend_from_slice(&[DATA_HELLO, run]),
            AgentMessage::Heartbeat { mode, filled } => {
                let [high, low] = filled.to_be_bytes();
                out.extend_from_slice(&[HEARTBEAT, mode as u8, high, low]);
            }
            AgentMessage::DataBreak { sequence } => {
                out.push(DATA_BREAK);
                put(out, sequence);
            }
            AgentMessage::ClassTransformed(ref name) => put_text(out, CLASS_TRANSFORMED, name),
            AgentMessage::ClassIgnored(ref name) => put_text(out, CLASS_IGNORED, name),
            AgentMessage::ClassTransformFailed(ref name) => {
                put_text(out, CLASS_TRANSFORM_FAILED, name);
            }
            AgentMessage::MapThreadName {
                thread,
                at_ms,
                ref name,
            } => {
                out.push(MAP_THREAD_NAME);
                put_short(out, thread);
                put(out, at_ms);
                text::put(name, out);
            }
            AgentMessage::MapMethodSignature {
                method,
                ref signature,
            } => {
                out.push(MAP_METHOD_SIGNATURE);
                put(out, method);
                text::put(signature, out);
            }
            AgentMessage::MapException {
                exception,
                ref name,
            } => {
                out.push(MAP_EXCEPTION);
                put(out, exception);
                text::put(name, out);
            }
            AgentMessage::MethodEntry {
                at_ms,
                sequence,
                method,
                thread,
            } => {
                let mut bytes = [METHOD_ENTRY; 15];
                bytes[1..5].copy_from_slice(&at_ms.to_be_bytes());
                bytes[5..9].copy_from_slice(&sequence.to_be_bytes());
                bytes[9..13].copy_from_slice(&method.to_be_bytes());
                bytes[13..].copy_from_slice(&thread.to_be_bytes());
                out.extend_from_slice(&bytes);
            }
            AgentMessage::MethodExit {
                at_ms,
                sequence,
                method,
                line,
                thread,
            } => {
                let mut bytes = [METHOD_EXIT; 17];
                bytes[1..5].copy_from_slice(&at_ms.to_be_bytes());
                bytes[5..9].copy_from_slice(&sequence.to_be_bytes());
                bytes[9..13].copy_from_slice(&method.to_be_bytes());
                bytes[13..15].copy_from_slice(&line.to_be_bytes());
                bytes[15..].copy_from_slice(&thread.to_be_bytes());
                out.extend_from_slice(&bytes);
            }
            AgentMessage::Exception {
                at_ms,
                sequence,
                method,
                exception,
                line,
                thread,
            } => {
                out.push(EXCEPTION);
                for word in [at_ms, sequence, method, exception] {
                    put(out, word);
                }
                put_short(out, line);
                put_short(out, thread);
            }
            AgentMessage::ExceptionBubble {
                at_ms,
                sequence,
                method,
                exception,
                thread,
            } => {
                out.push(EXCEPTION_BUBBLE);
                for word in [at_ms, sequence, method, exception] {
                    put(out, word);
                }
                put_short(out, thread);
            }
            AgentMessage::Marker {
                at_ms,
                sequence,
                ref key,
                ref value,
            } => {
                out.push(MARKER);
                put(out, at_ms);
                put(out, sequence);
                text::put(key, out);
                text::put(value, out);
            }
            AgentMessage::Error(ref error) => put_text(out, ERROR, error),
        }
    }

    /// The first message of `bytes` and its length; nothing if it has not come whole.
    pub fn decode(bytes: &[u8]) -> Result<Option<(AgentMessage<'static>, usize)>, DecodeError> {
        let mut fields = Fields(bytes);
        match AgentMessage::take(&mut fields) {
            Some(message) => Ok(Some((message?, bytes.len() - fields.0.len()))),
            None => Ok(None),
        }
    }

    /// The next message; nothing if it has not come whole.
    fn take(fields: &mut Fields<'_>) -> Option<Result<AgentMessage<'static>, DecodeError>> {
        Some(Ok(match fields.u8()? {
            HELLO => AgentMessage::Hello {
                version: fields.u8()?,
            },
            DATA_HELLO => AgentMessage::DataHello { run: fields.u8()? },
            HEARTBEAT => {
                let mode = fields.u8()?;
                let filled = fields.u16()?;
                match Mode::from_byte(mode) {
                    Some(mode) => AgentMessage::Heartbeat { mode, filled },
                    None => return Some(Err(DecodeError::UnknownMode(mode))),
                }
            }
            DATA_BREAK => AgentMessage::DataBreak {
                sequence: fields.u32()?,
            },
            id @ (CLASS_TRANSFORMED | CLASS_IGNORED | CLASS_TRANSFORM_FAILED | ERROR) => {
                let text = match fields.text()? {
                    Ok(text) => Cow::Owned(text),
                    Err(error) => return Some(Err(error.into())),
                };
                match id {
                    CLASS_TRANSFORMED => AgentMessage::ClassTransformed(text),
                    CLASS_IGNORED => AgentMessage::ClassIgnored(text),
                    CLASS_TRANSFORM_FAILED => AgentMessage::ClassTransformFailed(text),
                    _ => AgentMessage::Error(text),
                }
            }
            MAP_THREAD_NAME => {
                let (thread, at_ms) = (fields.u16()?, fields.u32()?);
                match fields.text()? {
                    Ok(name) => AgentMessage::MapThreadName {
                        thread,
                        at_ms,
                        name: name.into(),
                    },
                    Err(error) => return Some(Err(error.into())),
                }
            }
            id @ (MAP_METHOD_SIGNATURE | MAP_EXCEPTION) => {
                let number = fields.u32()?;
                match fields.text()? {
                    Ok(signature) if id == MAP_METHOD_SIGNATURE => {
                        AgentMessage::MapMethodSignature {
                            method: number,
                            signature: signature.into(),
                        }
                    }
                    Ok(name) => AgentMessage::MapException {
                        exception: number,
                        name: name.into(),
                    },
                    Err(error) => return Some(Err(error.into())),
                }
            }
            METHOD_ENTRY => AgentMessage::MethodEntry {
                at_ms: fields.u32()?,
                sequence: fields.u32()?,
                method: fields.u32()?,
                thread: fields.u16()?,
            },
            METHOD_EXIT => AgentMessage::MethodExit {
                at_ms: fields.u32()?,
                sequence: fields.u32()?,
                method: fields.u32()?,
                line: fields.u16()?,
                thread: fields.u16()?,
            },
            EXCEPTION => AgentMessage::Exception {
                at_ms: fields.u32()?,
                sequence: fields.u32()?,
                method: fields.u32()?,
                exception: fields.u32()?,
                line: fields.u16()?,
                thread: fields.u16()?,
            },
            EXCEPTION_BUBBLE => AgentMessage::ExceptionBubble {
                at_ms: fields.u32()?,
                sequence: fields.u32()?,
                method: fields.u32()?,
                exception: fields.u32()?,
                thread: fields.u16()?,
            },
            MARKER => {
                let (at_ms, sequence) = (fields.u32()?, fields.u32()?);
                match (fields.text()?, fields.text()?) {
                    (Ok(key), Ok(value)) => AgentMessage::Marker {
                        at_ms,
                        sequence,
                        key: key.into(),
                        value: value.into(),
                    },
                    (Err(error), _) | (_, Err(error)) => return Some(Err(error.into())),
                }
            }
            id => return Some(Err(DecodeError::UnknownId(id))),
        }))
    }
}

fn put(out: &mut Vec<u8>, word: u32) {
    out.extend_from_slice(&word.to_be_bytes());
}

fn put_short(out: &mut Vec<u8>, word: u16) {
    out.extend_from_slice(&word.to_be_bytes());
}

fn put_text(out: &mut Vec<u8>, id: u8, value: &str) {
    out.push(id);
    text::put(value, out);
}
