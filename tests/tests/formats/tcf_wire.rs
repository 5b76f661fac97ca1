//! Messages of TCF's channel: bytes by hand from the specification, in pieces of any size, within
//! bounds, and back.

// What fails here fails the test, in its functions too.
#![allow(clippy::unwrap_used)]

use profiler_wire::tcf::{
    Decoder, END_OF_STREAM, Frame, FrameError, Incoming, Message, MessageError,
};
use proptest::prelude::*;

const MAX_BYTES: usize = 1000;

/// What a stream has, up to its end or an error, if it comes so many bytes at a time.
fn decoded(bytes: &[u8], step: usize) -> (Vec<Incoming>, Result<bool, FrameError>) {
    let (mut decoder, mut all) = (Decoder::new(MAX_BYTES), Vec::new());
    for mut piece in bytes.chunks(step) {
        loop {
            match decoder.advance(&mut piece) {
                Ok(Some(incoming)) => all.push(incoming),
                Ok(None) => break assert!(piece.is_empty()),
                Err(error) => return (all, Err(error)),
            }
            if all.last() == Some(&Incoming::End) {
                return (all, Ok(true));
            }
        }
    }
    (all, Ok(decoder.is_between()))
}

fn frame(fields: &[&[u8]]) -> Frame {
    let mut frame = Frame::default();
    fields.iter().for_each(|field| frame.push(field));
    frame
}

fn encoded(message: &Message<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    message.encode(&mut out);
    out
}

fn arguments(all: &[&'static [u8]]) -> Vec<std::borrow::Cow<'static, [u8]>> {
    all.iter().map(|&argument| argument.into()).collect()
}

#[test]
fn messages_are_as_the_specification_has_them() {
    let token = || b"\x03t".as_slice().into();
    for (message, bytes) in [
        (
            Message::Command {
                token: token(),
                service: "Profiler".into(),
                command: "configure".into(),
                arguments: arguments(&[b"\"P1\"", b"{\"FrameCnt\":3}"]),
            },
            &b"C\0\x03\0t\0Profiler\0configure\0\"P1\"\0{\"FrameCnt\":3}\0\x03\x01"[..],
        ),
        (
            Message::Result {
                token: token(),
                arguments: arguments(&[b"", b"[]"]),
            },
            b"R\0\x03\0t\0\0[]\0\x03\x01",
        ),
        (
            Message::Progress {
                token: token(),
                arguments: Vec::new(),
            },
            b"P\0\x03\0t\0\x03\x01",
        ),
        (Message::Unknown { token: token() }, b"N\0\x03\0t\0\x03\x01"),
        (
            Message::Event {
                service: "Locator".into(),
                event: "Hello".into(),
                arguments: arguments(&[b"[\"Locator\"]"]),
            },
            b"E\0Locator\0Hello\0[\"Locator\"]\0\x03\x01",
        ),
        (Message::FlowControl { level: -100 }, b"F\0-100\0\x03\x01"),
    ] {
        assert_eq!(encoded(&message), bytes);
        for step in 1..=bytes.len() {
            let (all, end) = decoded(bytes, step);
            let [Incoming::Message(frame)] = &all[..] else {
                panic!("{all:?}")
            };
            assert_eq!(Message::decode(frame).as_ref(), Ok(&message));
            assert_eq!(end, Ok(true));
        }
        for len in 1..bytes.len() {
            assert_eq!(decoded(&bytes[..len], 100), (Vec::new(), Ok(false)));
        }
    }
}

#[test]
fn escapes_are_those_of_the_specification() {
    let message = |fields: &[&[u8]]| Incoming::Message(frame(fields));
    // Bytes as they are, with a length in one byte and in more than it needs; none of them.
    let raw = b"\x03\x03\x03\x00\x03\x01x\0a\x03\x03\x81\x80\x00\x03b\x03\x03\x00\0\x03\x01";
    let expected = message(&[b"\0\x03\x01x", b"a\x03b"]);
    for step in 1..=raw.len() {
        assert_eq!(decoded(raw, step), (vec![expected.clone()], Ok(true)));
    }
    // Written so that it is read again.
    let mut out = Vec::new();
    let long = [&[0; 200][..], b"\x03"].concat();
    frame(&[b"\x03\x03", &long]).encode(&mut out);
    assert!(out.starts_with(b"\x03\0\x03\0\0\x03\x03\xc9\x01\0"));
    assert_eq!(decoded(&out, 7).0, [message(&[b"\x03\x03", &long])]);
    // A message without fields, and the end with and without a reason, in a row.
    let mut end = b"\x03\x01".to_vec();
    Frame::encode_end(b"{\"Code\":3}", &mut end);
    assert_eq!(end, b"\x03\x01\x03\x02{\"Code\":3}\0\x03\x01");
    for end in [
        &end,
        &b"\x03\x01\x03\x02"[..],
        &[&end[..2], &END_OF_STREAM].concat(),
    ] {
        let (all, between) = decoded(end, 3);
        assert_eq!(all, [message(&[]), Incoming::End]);
        assert_eq!(between, Ok(true));
    }
}

#[test]
fn what_is_no_message_is_an_error() {
    for (bytes, error) in [
        (&b"C\0\x03\x04"[..], FrameError::Escape(4)),
        (b"C\0\x03\xff", FrameError::Escape(255)),
        (b"C\0t\x03\x01", FrameError::Unfinished),
        (b"C\0\x03\x02", FrameError::Unfinished),
        (b"\0\x03\x02", FrameError::Unfinished),
        (b"\x03\x03\xe9\x07", FrameError::TooLong(MAX_BYTES)),
        (
            b"\x03\x03\xff\xff\xff\xff\xff",
            FrameError::TooLong(MAX_BYTES),
        ),
        (
            b"\x03\x03\x80\x80\x80\x80\x80\x00",
            FrameError::TooLong(MAX_BYTES),
        ),
        (&[b'x'; MAX_BYTES + 1], FrameError::TooLong(MAX_BYTES)),
        (&[0; 257], FrameError::TooLong(MAX_BYTES)),
        (
            &b"\x03\0".repeat(MAX_BYTES + 1),
            FrameError::TooLong(MAX_BYTES),
        ),
    ] {
        for step in [1, 5, bytes.len()] {
            let (all, end) = decoded(bytes, step);
            let expected = Err(error.clone());
            // Of a length that is too long, not all bytes may be needed to see it.
            assert_eq!((all.len(), end), (0, expected), "{bytes:x?}");
        }
    }
    let most = [&[b'x'; MAX_BYTES][..], b"\0\x03\x01"].concat();
    assert_eq!(decoded(&most, 9).0.len(), 1);
    for (fields, error) in [
        (&[][..], MessageError::Kind(String::new())),
        (&[&b"X"[..], b"t"], MessageError::Kind("X".to_owned())),
        (&[b"C\n"], MessageError::Kind("C\\n".to_owned())),
        (&[b"C", b"1", b"Profiler"], MessageError::Fields('C')),
        (&[b"R"], MessageError::Fields('R')),
        (&[b"E", b"Locator"], MessageError::Fields('E')),
        (&[b"F", b"idle"], MessageError::Fields('F')),
    ] {
        assert_eq!(Message::decode(&frame(fields)), Err(error));
    }
}

proptest! {
    #[test]
    fn fields_are_read_however_they_come(
        messages in prop::collection::vec(
            prop::collection::vec(
                prop::collection::vec(prop_oneof![0..5_u8, any::<u8>()], 0..30), 0..6), 0..6),
        step in 1_usize..40,
    ) {
        let (mut bytes, mut frames) = (Vec::new(), Vec::new());
        for fields in &messages {
            let fields: Vec<&[u8]> = fields.iter().map(Vec::as_slice).collect();
            let frame = frame(&fields);
            prop_assert_eq!(&frame.fields().collect::<Vec<_>>(), &fields);
            frame.encode(&mut bytes);
            frames.push(Incoming::Message(frame));
        }
        prop_assert_eq!(decoded(&bytes, step), (frames, Ok(true)));
    }

    #[test]
    fn pieces_of_any_size_mean_the_same(
        bytes in prop::collection::vec(prop_oneof![0..5_u8, any::<u8>()], 0..200),
        step in 1_usize..40,
    ) {
        prop_assert_eq!(decoded(&bytes, step), decoded(&bytes, usize::MAX));
    }
}
