//! Bytes -> messages of an agent.
//!
//! A text that is the same in UTF-8 is not copied: most messages cost no allocation.

use std::borrow::Cow;

use super::super::{DecodeError, Fields, Mode, Stop};
use super::{
    AgentMessage, CLASS_IGNORED, CLASS_TRANSFORM_FAILED, CLASS_TRANSFORMED, DATA_BREAK, DATA_HELLO,
    ERROR, EXCEPTION, EXCEPTION_BUBBLE, HEARTBEAT, HELLO, MAP_EXCEPTION, MAP_METHOD_SIGNATURE,
    MAP_THREAD_NAME, MARKER, METHOD_ENTRY, METHOD_EXIT,
};

impl<'a> AgentMessage<'a> {
    /// The first message of `bytes` and its length; nothing if it has not come whole.
    #[inline]
    pub fn decode(bytes: &'a [u8]) -> Result<Option<(AgentMessage<'a>, usize)>, DecodeError> {
        let mut fields = Fields(bytes);
        match AgentMessage::take(&mut fields) {
            Ok(message) => Ok(Some((message, bytes.len() - fields.0.len()))),
            Err(Stop::Incomplete) => Ok(None),
            Err(Stop::Bad(error)) => Err(error),
        }
    }

    /// The message with texts of its own.
    pub fn into_owned(self) -> AgentMessage<'static> {
        fn owned(text: Cow<'_, str>) -> Cow<'static, str> {
            Cow::Owned(text.into_owned())
        }
        match self {
            AgentMessage::Hello { version } => AgentMessage::Hello { version },
            AgentMessage::DataHello { run } => AgentMessage::DataHello { run },
            AgentMessage::Heartbeat { mode, filled } => AgentMessage::Heartbeat { mode, filled },
            AgentMessage::DataBreak { sequence } => AgentMessage::DataBreak { sequence },
            AgentMessage::ClassTransformed(name) => AgentMessage::ClassTransformed(owned(name)),
            AgentMessage::ClassIgnored(name) => AgentMessage::ClassIgnored(owned(name)),
            AgentMessage::ClassTransformFailed(name) => {
                AgentMessage::ClassTransformFailed(owned(name))
            }
            AgentMessage::MapThreadName {
                thread,
                at_ms,
                name,
            } => AgentMessage::MapThreadName {
                thread,
                at_ms,
                name: owned(name),
            },
            AgentMessage::MapMethodSignature { method, signature } => {
                AgentMessage::MapMethodSignature {
                    method,
                    signature: owned(signature),
                }
            }
            AgentMessage::MapException { exception, name } => AgentMessage::MapException {
                exception,
                name: owned(name),
            },
            AgentMessage::MethodEntry {
                at_ms,
                sequence,
                method,
                thread,
            } => AgentMessage::MethodEntry {
                at_ms,
                sequence,
                method,
                thread,
            },
            AgentMessage::MethodExit {
                at_ms,
                sequence,
                method,
                line,
                thread,
            } => AgentMessage::MethodExit {
                at_ms,
                sequence,
                method,
                line,
                thread,
            },
            AgentMessage::Exception {
                at_ms,
                sequence,
                method,
                exception,
                line,
                thread,
            } => AgentMessage::Exception {
                at_ms,
                sequence,
                method,
                exception,
                line,
                thread,
            },
            AgentMessage::ExceptionBubble {
                at_ms,
                sequence,
                method,
                exception,
                thread,
            } => AgentMessage::ExceptionBubble {
                at_ms,
                sequence,
                method,
                exception,
                thread,
            },
            AgentMessage::Marker {
                at_ms,
                sequence,
                key,
                value,
            } => AgentMessage::Marker {
                at_ms,
                sequence,
                key: owned(key),
                value: owned(value),
            },
            AgentMessage::Error(error) => AgentMessage::Error(owned(error)),
        }
    }

    #[inline]
    fn take(fields: &mut Fields<'a>) -> Result<AgentMessage<'a>, Stop> {
        Ok(match fields.u8()? {
            HELLO => AgentMessage::Hello {
                version: fields.u8()?,
            },
            DATA_HELLO => AgentMessage::DataHello { run: fields.u8()? },
            HEARTBEAT => {
                let (mode, filled) = (fields.u8()?, fields.u16()?);
                let mode = Mode::from_byte(mode).ok_or(DecodeError::UnknownMode(mode))?;
                AgentMessage::Heartbeat { mode, filled }
            }
            DATA_BREAK => AgentMessage::DataBreak {
                sequence: fields.u32()?,
            },
            MAP_THREAD_NAME => AgentMessage::MapThreadName {
                thread: fields.u16()?,
                at_ms: fields.u32()?,
                name: fields.text()?,
            },
            MAP_METHOD_SIGNATURE => AgentMessage::MapMethodSignature {
                method: fields.u32()?,
                signature: fields.text()?,
            },
            MAP_EXCEPTION => AgentMessage::MapException {
                exception: fields.u32()?,
                name: fields.text()?,
            },
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
            CLASS_TRANSFORMED => AgentMessage::ClassTransformed(fields.text()?),
            CLASS_IGNORED => AgentMessage::ClassIgnored(fields.text()?),
            CLASS_TRANSFORM_FAILED => AgentMessage::ClassTransformFailed(fields.text()?),
            MARKER => AgentMessage::Marker {
                at_ms: fields.u32()?,
                sequence: fields.u32()?,
                key: fields.text()?,
                value: fields.text()?,
            },
            ERROR => AgentMessage::Error(fields.text()?),
            id => return Err(DecodeError::UnknownId(id).into()),
        })
    }
}
