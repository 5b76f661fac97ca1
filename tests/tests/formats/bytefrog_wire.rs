//! Messages of Bytefrog, both directions: bytes written by hand from the protocol, every message cut
//! anywhere, and whatever the encoder writes read back.

// What fails here fails the test, in its functions too.
#![allow(clippy::unwrap_used)]

use std::borrow::Cow;

use profiler_wire::bytefrog::text::MAX_TEXT_BYTES;
use profiler_wire::bytefrog::{
    AgentMessage, Channel, DecodeError, HqMessage, MAX_CONFIGURATION_BYTES, Mode,
};
use proptest::prelude::*;

/// Each message of an agent, its bytes, where it may come, and its sequence id.
fn agent_messages() -> Vec<(AgentMessage<'static>, &'static [u8], Channel, Option<u32>)> {
    use AgentMessage::{
        ClassIgnored, ClassTransformFailed, ClassTransformed, DataBreak, DataHello, Error,
        Exception, ExceptionBubble, Heartbeat, Hello, MapException, MapMethodSignature,
        MapThreadName, Marker, MethodEntry, MethodExit,
    };
    let (at_ms, sequence, method, thread) = (0x0102_0304, 0xfffe_fdfc, 0x1112_1314, 0x2122);
    let (exception, line) = (0x3132_3334, 0x4142);
    let next = Some(sequence);
    vec![
        (Hello { version: 1 }, b"\x00\x01", Channel::Greeting, None),
        (DataHello { run: 200 }, b"\x1e\xc8", Channel::Greeting, None),
        (
            Heartbeat {
                mode: Mode::Initializing,
                filled: 258,
            },
            b"\x08I\x01\x02",
            Channel::Control,
            None,
        ),
        (
            DataBreak { sequence },
            b"\x09\xff\xfe\xfd\xfc",
            Channel::Control,
            None,
        ),
        (
            ClassTransformed("a/B".into()),
            b"\x28\0\x03a/B",
            Channel::Control,
            None,
        ),
        (
            ClassIgnored("é".into()),
            b"\x29\0\x02\xc3\xa9",
            Channel::Control,
            None,
        ),
        (
            ClassTransformFailed("".into()),
            b"\x2a\0\0",
            Channel::Control,
            None,
        ),
        (
            MapThreadName {
                thread,
                at_ms,
                name: "main".into(),
            },
            b"\x0a\x21\x22\x01\x02\x03\x04\0\x04main",
            Channel::Data,
            None,
        ),
        (
            MapMethodSignature {
                method,
                signature: "a/B.f;9;()V".into(),
            },
            b"\x0b\x11\x12\x13\x14\0\x0ba/B.f;9;()V",
            Channel::Data,
            None,
        ),
        (
            MapException {
                exception,
                name: "\0\u{1f600}".into(),
            },
            b"\x0c\x31\x32\x33\x34\0\x08\xc0\x80\xed\xa0\xbd\xed\xb8\x80",
            Channel::Data,
            None,
        ),
        (
            MethodEntry {
                at_ms,
                sequence,
                method,
                thread,
            },
            b"\x14\x01\x02\x03\x04\xff\xfe\xfd\xfc\x11\x12\x13\x14\x21\x22",
            Channel::Data,
            next,
        ),
        (
            MethodExit {
                at_ms,
                sequence,
                method,
                line,
                thread,
            },
            b"\x15\x01\x02\x03\x04\xff\xfe\xfd\xfc\x11\x12\x13\x14\x41\x42\x21\x22",
            Channel::Data,
            next,
        ),
        (
            Exception {
                at_ms,
                sequence,
                method,
                exception,
                line,
                thread,
            },
            b"\x16\x01\x02\x03\x04\xff\xfe\xfd\xfc\x11\x12\x13\x14\x31\x32\x33\x34\x41\x42\x21\x22",
            Channel::Data,
            next,
        ),
        (
            ExceptionBubble {
                at_ms,
                sequence,
                method,
                exception,
                thread,
            },
            b"\x17\x01\x02\x03\x04\xff\xfe\xfd\xfc\x11\x12\x13\x14\x31\x32\x33\x34\x21\x22",
            Channel::Data,
            next,
        ),
        (
            Marker {
                at_ms,
                sequence,
                key: "lost".into(),
                value: "12".into(),
            },
            b"\x32\x01\x02\x03\x04\xff\xfe\xfd\xfc\0\x04lost\0\x0212",
            Channel::Data,
            next,
        ),
        (Error("no".into()), b"\x63\0\x02no", Channel::Any, None),
    ]
}

/// Each message of an HQ and its bytes.
fn hq_messages() -> Vec<(HqMessage, &'static [u8])> {
    vec![
        (
            HqMessage::Configuration(vec![0xac, 0xed]),
            b"\x01\0\0\0\x02\xac\xed",
        ),
        (HqMessage::Start, b"\x02"),
        (HqMessage::Stop, b"\x03"),
        (HqMessage::Pause, b"\x04"),
        (HqMessage::Unpause, b"\x05"),
        (HqMessage::Suspend, b"\x06"),
        (HqMessage::Unsuspend, b"\x07"),
        (HqMessage::DataHelloReply, b"\x1f"),
        (HqMessage::Error("no".into()), b"\x63\0\x02no"),
    ]
}

fn encoded(messages: &[AgentMessage<'_>]) -> Vec<u8> {
    let mut out = Vec::new();
    messages.iter().for_each(|message| message.encode(&mut out));
    out
}

fn encoded_hq(messages: &[HqMessage]) -> Vec<u8> {
    let mut out = Vec::new();
    messages.iter().for_each(|message| message.encode(&mut out));
    out
}

/// What a connection gives that brings so many bytes at a time.
fn trickled<T>(
    mut bytes: &[u8],
    step: usize,
    decode: impl Fn(&[u8]) -> Option<(T, usize)>,
) -> Vec<T> {
    let (mut come, mut messages) = (Vec::new(), Vec::new());
    while !bytes.is_empty() {
        let (now, later) = bytes.split_at(step.min(bytes.len()));
        come.extend_from_slice(now);
        bytes = later;
        while let Some((message, len)) = decode(&come) {
            messages.push(message);
            come.drain(..len);
        }
    }
    assert!(come.is_empty(), "{} bytes are left", come.len());
    messages
}

fn agent_trickled(bytes: &[u8], step: usize) -> Vec<AgentMessage<'static>> {
    trickled(bytes, step, |come| {
        let decoded = AgentMessage::decode(come).unwrap();
        decoded.map(|(message, len)| (message.into_owned(), len))
    })
}

#[test]
fn messages_of_an_agent_are_as_the_protocol_has_them() {
    for (message, bytes, channel, sequence) in agent_messages() {
        assert_eq!(
            encoded(std::slice::from_ref(&message)),
            bytes,
            "{message:?}"
        );
        assert_eq!(message.channel(), channel, "{message:?}");
        assert_eq!(message.sequence(), sequence, "{message:?}");
        for len in 0..bytes.len() {
            assert_eq!(AgentMessage::decode(&bytes[..len]), Ok(None), "{message:?}");
        }
        for more in [&b""[..], b"\xff", b"\x14\0"] {
            let come = [bytes, more].concat();
            let expected = (message.clone(), bytes.len());
            assert_eq!(AgentMessage::decode(&come), Ok(Some(expected)));
        }
    }
}

#[test]
fn messages_of_an_hq_are_as_the_protocol_has_them() {
    for (message, bytes) in hq_messages() {
        assert_eq!(encoded_hq(std::slice::from_ref(&message)), bytes);
        for len in 0..bytes.len() {
            assert_eq!(HqMessage::decode(&bytes[..len]), Ok(None), "{message:?}");
        }
        let come = [bytes, b"\xff"].concat();
        let expected = (message, bytes.len());
        assert_eq!(HqMessage::decode(&come), Ok(Some(expected)));
    }
}

/// The sizes of the protocol's quick reference, texts apart.
#[test]
fn sizes_are_those_of_the_quick_reference() {
    let sizes = [
        (0, 2),
        (8, 4),
        (9, 5),
        (10, 9),
        (11, 7),
        (12, 7),
        (20, 15),
        (21, 17),
        (22, 21),
        (23, 19),
        (30, 2),
        (40, 3),
        (41, 3),
        (42, 3),
        (50, 13),
        (99, 3),
    ];
    let mut bytes = [0; 32];
    for id in 0..=u8::MAX {
        bytes[0] = id;
        bytes[1] = if id == 8 { b'T' } else { 0 };
        let expected = sizes.iter().find(|(known, _)| *known == id);
        match AgentMessage::decode(&bytes) {
            Ok(Some((_, len))) => assert_eq!(Some(&(id, len)), expected),
            other => {
                assert_eq!(other, Err(DecodeError::UnknownId(id)));
                assert_eq!(expected, None, "{id}");
            }
        }
    }
    let sizes = [
        (1, 5),
        (2, 1),
        (3, 1),
        (4, 1),
        (5, 1),
        (6, 1),
        (7, 1),
        (31, 1),
        (99, 3),
    ];
    for id in 0..=u8::MAX {
        let expected = sizes.iter().find(|(known, _)| *known == id);
        match HqMessage::decode(&[id, 0, 0, 0, 0, 0]) {
            Ok(Some((_, len))) => assert_eq!(Some(&(id, len)), expected),
            other => {
                assert_eq!(other, Err(DecodeError::UnknownId(id)));
                assert_eq!(expected, None, "{id}");
            }
        }
    }
}

#[test]
fn modes_have_their_letters() {
    let known = [
        (b'I', Mode::Initializing),
        (b'T', Mode::Tracing),
        (b'P', Mode::Paused),
        (b'S', Mode::Suspended),
        (b'X', Mode::ShuttingDown),
    ];
    for byte in 0..=u8::MAX {
        let expected = known.iter().find(|(letter, _)| *letter == byte);
        let bytes = [8, byte, 0, 7];
        let decoded = AgentMessage::decode(&bytes).map_err(|error| error.to_string());
        match expected {
            Some(&(_, mode)) => {
                let message = AgentMessage::Heartbeat { mode, filled: 7 };
                assert_eq!(decoded, Ok(Some((message, 4))));
            }
            None => assert_eq!(
                decoded,
                Err(format!("a heartbeat with the unknown mode {byte}"))
            ),
        }
    }
}

#[test]
fn texts_that_are_no_modified_utf8_are_errors() {
    for head in [
        &b"\x28"[..],
        b"\x0a\0\0\0\0\0\0",
        b"\x0b\0\0\0\0",
        b"\x32\0\0\0\0\0\0\0\0\0\0",
    ] {
        let bytes = [head, b"\0\x04\xf0\x9f\x98\x80"].concat();
        assert!(matches!(
            AgentMessage::decode(&bytes),
            Err(DecodeError::Text(bad)) if bad.at == 0
        ));
    }
    let error = HqMessage::decode(b"\x63\0\x02a\xc3").unwrap_err();
    assert_eq!(error.to_string(), "byte 1 of a text is no modified UTF-8");
}

#[test]
fn texts_are_copied_only_if_they_must_be() {
    for (text, borrowed) in [
        ("plain", true),
        ("é€", true),
        ("\u{1f600}", false),
        ("\0", false),
    ] {
        let bytes = encoded(&[AgentMessage::Error(text.into())]);
        match AgentMessage::decode(&bytes) {
            Ok(Some((AgentMessage::Error(read), _))) => {
                assert_eq!(read, text);
                assert_eq!(matches!(read, Cow::Borrowed(_)), borrowed, "{text}");
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn what_is_too_long_is_cut_or_refused() {
    for text in ["x", "é", "\u{1f600}"] {
        let long = text.repeat(MAX_TEXT_BYTES);
        let message = AgentMessage::Marker {
            at_ms: 1,
            sequence: 2,
            key: long.as_str().into(),
            value: "after".into(),
        };
        let bytes = encoded(&[message]);
        match AgentMessage::decode(&bytes) {
            Ok(Some((AgentMessage::Marker { key, value, .. }, len))) => {
                assert!(long.starts_with(&*key) && key.len() > MAX_TEXT_BYTES / 2);
                assert_eq!((&*value, len), ("after", bytes.len()));
            }
            other => panic!("{other:?}"),
        }
    }
    let len = MAX_CONFIGURATION_BYTES as u32;
    let head = |len: u32| [&[1], &len.to_be_bytes()[..]].concat();
    assert_eq!(HqMessage::decode(&head(len)), Ok(None));
    assert_eq!(
        HqMessage::decode(&head(len + 1)),
        Err(DecodeError::TooLong(len + 1))
    );
}

fn texts() -> impl Strategy<Value = Cow<'static, str>> {
    prop_oneof![
        "[a-z/]{0,12}",
        "[\0\u{7f}\u{80}\u{7ff}\u{800}\u{ffff}\u{10000}\u{10ffff}]{0,6}",
        any::<String>(),
    ]
    .prop_map(Cow::Owned)
}

fn agent_message() -> impl Strategy<Value = AgentMessage<'static>> {
    let modes = prop_oneof![
        Just(Mode::Initializing),
        Just(Mode::Tracing),
        Just(Mode::Paused),
        Just(Mode::Suspended),
        Just(Mode::ShuttingDown),
    ];
    let words = any::<([u32; 4], [u16; 2], u8)>();
    (0..16, words, texts(), texts(), modes).prop_map(|(kind, words, key, value, mode)| {
        let ([at_ms, sequence, method, exception], [line, thread], byte) = words;
        match kind {
            0 => AgentMessage::Hello { version: byte },
            1 => AgentMessage::DataHello { run: byte },
            2 => AgentMessage::Heartbeat { mode, filled: line },
            3 => AgentMessage::DataBreak { sequence },
            4 => AgentMessage::ClassTransformed(key),
            5 => AgentMessage::ClassIgnored(key),
            6 => AgentMessage::ClassTransformFailed(key),
            7 => AgentMessage::MapThreadName {
                thread,
                at_ms,
                name: key,
            },
            8 => AgentMessage::MapMethodSignature {
                method,
                signature: key,
            },
            9 => AgentMessage::MapException {
                exception,
                name: key,
            },
            10 => AgentMessage::MethodEntry {
                at_ms,
                sequence,
                method,
                thread,
            },
            11 => AgentMessage::MethodExit {
                at_ms,
                sequence,
                method,
                line,
                thread,
            },
            12 => AgentMessage::Exception {
                at_ms,
                sequence,
                method,
                exception,
                line,
                thread,
            },
            13 => AgentMessage::ExceptionBubble {
                at_ms,
                sequence,
                method,
                exception,
                thread,
            },
            14 => AgentMessage::Marker {
                at_ms,
                sequence,
                key,
                value,
            },
            _ => AgentMessage::Error(key),
        }
    })
}

fn hq_message() -> impl Strategy<Value = HqMessage> {
    prop_oneof![
        prop::collection::vec(any::<u8>(), 0..40).prop_map(HqMessage::Configuration),
        texts().prop_map(|text| HqMessage::Error(text.into_owned())),
        (1_usize..8).prop_map(|kind| hq_messages().swap_remove(kind).0),
    ]
}

proptest! {
    #[test]
    fn what_an_agent_sends_is_decoded_however_it_comes(
        messages in prop::collection::vec(agent_message(), 0..12),
        step in 2_usize..40,
    ) {
        let bytes = encoded(&messages);
        for step in [1, step, bytes.len().max(1)] {
            prop_assert_eq!(&agent_trickled(&bytes, step), &messages);
        }
    }

    #[test]
    fn what_an_hq_sends_is_decoded_however_it_comes(
        messages in prop::collection::vec(hq_message(), 0..12),
        step in 2_usize..40,
    ) {
        let bytes = encoded_hq(&messages);
        for step in [1, step, bytes.len().max(1)] {
            let decoded = trickled(&bytes, step, |come| HqMessage::decode(come).unwrap());
            prop_assert_eq!(&decoded, &messages);
        }
    }

    /// Whatever comes is a message, the beginning of one, or an error; it is never more than came.
    #[test]
    fn any_bytes_are_decoded(id in 0_u8..101, mut bytes: Vec<u8>) {
        bytes.insert(0, id);
        if let Ok(Some((message, len))) = AgentMessage::decode(&bytes) {
            prop_assert!(len <= bytes.len());
            prop_assert!(encoded(&[message]).len() >= 2);
        }
        if let Ok(Some((_, len))) = HqMessage::decode(&bytes) {
            prop_assert!((1..=bytes.len()).contains(&len));
        }
    }
}
