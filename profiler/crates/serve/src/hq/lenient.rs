//! Messages of agents that are not careful with text.
//!
//! The original collector ends a run for text that is no modified UTF-8; some agents send plain
//! UTF-8. Such a message is counted as a fault and read with what can be read of its texts.

use std::borrow::Cow;

use super::check::Fault;
use super::flow::Flow;
use profiler_wire::bytefrog::{AgentMessage, DecodeError, text};

/// The first message of `bytes` and its length. An error is of bytes that have no length.
#[inline]
pub(super) fn decode<'a>(
    bytes: &'a [u8],
    flow: &mut Flow,
) -> Result<Option<(AgentMessage<'a>, usize)>, Fault> {
    match AgentMessage::decode(bytes) {
        Ok(message) => Ok(message),
        Err(error @ DecodeError::Text(_)) => {
            flow.fault(Fault::Decode(error.clone()));
            repaired(bytes).map(Some).ok_or(Fault::Decode(error))
        }
        Err(error) => Err(Fault::Decode(error)),
    }
}

/// A message whose texts are plain UTF-8, or no text at all.
pub(super) fn repaired(bytes: &[u8]) -> Option<(AgentMessage<'static>, usize)> {
    // Bytes before the first text, and how many texts there are.
    let (fixed, texts) = match bytes.first()? {
        10 => (7, 1),
        11 | 12 => (5, 1),
        40..=42 | 99 => (1, 1),
        50 => (9, 2),
        _ => return None,
    };
    let mut whole = bytes.get(..fixed)?.to_vec();
    let mut at = fixed;
    for _ in 0..texts {
        let len = u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?);
        let end = at + 2 + usize::from(len);
        let part = bytes.get(at + 2..end)?;
        let part = match text::read(part) {
            Ok(text) => Cow::Owned(text.into_owned()),
            Err(_) => String::from_utf8_lossy(part),
        };
        text::put(&part, &mut whole);
        at = end;
    }
    let (message, _) = AgentMessage::decode(&whole).ok()??;
    Some((message.into_owned(), at))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_utf_8_is_read() {
        let mut bytes = vec![11, 0, 0, 0, 7, 0, 6];
        bytes.extend_from_slice("a\u{1f600}b".as_bytes());
        bytes.push(20);
        assert!(AgentMessage::decode(&bytes).is_err());
        let (message, len) = repaired(&bytes).unwrap();
        let expected = AgentMessage::MapMethodSignature {
            method: 7,
            signature: "a\u{1f600}b".into(),
        };
        assert_eq!((message, len), (expected, bytes.len() - 1));
    }

    #[test]
    fn what_is_no_text_keeps_its_place() {
        let mut bytes = vec![50, 0, 0, 0, 1, 0, 0, 0, 9, 0, 1, 0xff, 0, 1, b'v'];
        let (message, len) = repaired(&bytes).unwrap();
        assert_eq!((message.sequence(), len), (Some(9), 15));
        bytes.truncate(14);
        assert_eq!(repaired(&bytes), None);
        assert_eq!(repaired(&[20, 0]), None);
    }
}
