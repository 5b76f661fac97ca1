//! Messages in the order of a run: sequence ids without gap, times as the protocol has them.
//!
//! Timestamps -> milliseconds since tracing began, as unsigned 32-bit numbers that wrap after 49.7
//! days; what happened before has 0. Only what is surely sent takes a sequence id.

use std::borrow::Cow;

use profiler_model::Timestamp;
use profiler_wire::bytefrog::AgentMessage;

const NS_PER_MS: u64 = 1_000_000;

/// What has been sent, and numbers for what is sent next.
#[derive(Debug)]
pub(super) struct Stream {
    began: Timestamp,
    next: u32,
    /// Whether the next message with a sequence id has to be a marker.
    pub(super) owes_marker: bool,
    pub(super) messages: u64,
    pub(super) entries: u64,
    pub(super) exits: u64,
    pub(super) bubbles: u64,
    pub(super) exceptions: u64,
    pub(super) markers: u64,
}

impl Stream {
    pub(super) fn new(began: Timestamp) -> Stream {
        Stream {
            began,
            next: 0,
            owes_marker: false,
            messages: 0,
            entries: 0,
            exits: 0,
            bubbles: 0,
            exceptions: 0,
            markers: 0,
        }
    }

    /// When tracing began.
    pub(super) fn began(&self) -> Timestamp {
        self.began
    }

    /// The sequence id that the next message will have.
    pub(super) fn next(&self) -> u32 {
        self.next
    }

    /// As if so much had been sent.
    pub(super) fn skip_to(&mut self, sequence: u32) {
        self.next = sequence;
    }

    #[inline]
    fn sequence(&mut self) -> u32 {
        self.messages += 1;
        let sequence = self.next;
        self.next = sequence.wrapping_add(1);
        sequence
    }

    #[inline]
    fn ms(&self, at: Timestamp) -> u32 {
        (at.since(self.began) / NS_PER_MS) as u32
    }

    pub(super) fn thread_name(
        &mut self,
        at: Timestamp,
        thread: u16,
        name: &str,
        out: &mut Vec<u8>,
    ) {
        self.messages += 1;
        AgentMessage::MapThreadName {
            thread,
            at_ms: self.ms(at),
            name: Cow::Borrowed(name),
        }
        .encode(out);
    }

    pub(super) fn method_signature(&mut self, method: u32, signature: &str, out: &mut Vec<u8>) {
        self.messages += 1;
        AgentMessage::MapMethodSignature {
            method,
            signature: Cow::Borrowed(signature),
        }
        .encode(out);
    }

    pub(super) fn exception_name(&mut self, exception: u32, name: &str, out: &mut Vec<u8>) {
        self.messages += 1;
        AgentMessage::MapException {
            exception,
            name: Cow::Borrowed(name),
        }
        .encode(out);
    }

    #[inline]
    pub(super) fn entry(&mut self, at: Timestamp, method: u32, thread: u16, out: &mut Vec<u8>) {
        self.entries += 1;
        AgentMessage::MethodEntry {
            at_ms: self.ms(at),
            sequence: self.sequence(),
            method,
            thread,
        }
        .encode(out);
    }

    #[inline]
    pub(super) fn exit(
        &mut self,
        at: Timestamp,
        method: u32,
        line: u16,
        thread: u16,
        out: &mut Vec<u8>,
    ) {
        self.exits += 1;
        AgentMessage::MethodExit {
            at_ms: self.ms(at),
            sequence: self.sequence(),
            method,
            line,
            thread,
        }
        .encode(out);
    }

    pub(super) fn exception(
        &mut self,
        at: Timestamp,
        (method, exception): (u32, u32),
        line: u16,
        thread: u16,
        out: &mut Vec<u8>,
    ) {
        self.exceptions += 1;
        AgentMessage::Exception {
            at_ms: self.ms(at),
            sequence: self.sequence(),
            method,
            exception,
            line,
            thread,
        }
        .encode(out);
    }

    pub(super) fn bubble(
        &mut self,
        at: Timestamp,
        (method, exception): (u32, u32),
        thread: u16,
        out: &mut Vec<u8>,
    ) {
        self.bubbles += 1;
        AgentMessage::ExceptionBubble {
            at_ms: self.ms(at),
            sequence: self.sequence(),
            method,
            exception,
            thread,
        }
        .encode(out);
    }

    pub(super) fn marker(&mut self, at: Timestamp, key: &str, value: &str, out: &mut Vec<u8>) {
        self.owes_marker = false;
        self.markers += 1;
        AgentMessage::Marker {
            at_ms: self.ms(at),
            sequence: self.sequence(),
            key: Cow::Borrowed(key),
            value: Cow::Borrowed(value),
        }
        .encode(out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use profiler_wire::bytefrog::UNKNOWN_LINE;

    fn decoded(bytes: &[u8]) -> AgentMessage<'static> {
        let (message, len) = AgentMessage::decode(bytes).unwrap().unwrap();
        assert_eq!(len, bytes.len());
        message.into_owned()
    }

    #[test]
    fn sequence_ids_and_times_wrap() {
        let mut stream = Stream::new(Timestamp(7 * NS_PER_MS));
        stream.next = u32::MAX;
        let mut out = Vec::new();
        stream.entry(Timestamp(0), 1, 0, &mut out);
        let first = AgentMessage::MethodEntry {
            at_ms: 0,
            sequence: u32::MAX,
            method: 1,
            thread: 0,
        };
        assert_eq!(decoded(&out), first);
        out.clear();
        let wrapped = Timestamp((7 + (1 << 32) + 3) * NS_PER_MS + 999_999);
        stream.exit(wrapped, 1, UNKNOWN_LINE, 0, &mut out);
        let second = AgentMessage::MethodExit {
            at_ms: 3,
            sequence: 0,
            method: 1,
            line: UNKNOWN_LINE,
            thread: 0,
        };
        assert_eq!(decoded(&out), second);
    }

    #[test]
    fn maps_take_no_sequence_id() {
        let mut stream = Stream::new(Timestamp(0));
        let mut out = Vec::new();
        stream.thread_name(Timestamp(0), 0, "main", &mut out);
        stream.method_signature(1, "main", &mut out);
        stream.exception_name(1, "error", &mut out);
        assert_eq!((stream.next(), stream.messages), (0, 3));
    }
}
