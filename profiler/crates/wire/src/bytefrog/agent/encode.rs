//! Messages of an agent -> bytes.
//!
//! Those of each call are written at once, since a busy target makes millions a second.

use super::super::text;
use super::{
    AgentMessage, CLASS_IGNORED, CLASS_TRANSFORM_FAILED, CLASS_TRANSFORMED, DATA_BREAK, DATA_HELLO,
    ERROR, EXCEPTION, EXCEPTION_BUBBLE, HEARTBEAT, HELLO, MAP_EXCEPTION, MAP_METHOD_SIGNATURE,
    MAP_THREAD_NAME, MARKER, METHOD_ENTRY, METHOD_EXIT,
};

impl AgentMessage<'_> {
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
