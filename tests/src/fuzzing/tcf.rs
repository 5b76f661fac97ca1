//! Fuzzing of TCF: frames, messages and profile data, and an agent that is fed the canonical session.
//!
//! Input: a fuzzer's bytes; output: how much was understood, a broken promise is a panic. Time passes
//! as the bytes say.

use std::sync::OnceLock;
use std::time::Duration;

use profiler_model::Batch;
use profiler_serve::front::Replay;
use profiler_serve::tcf::{Limits, TcfOptions};
use profiler_wire::tcf::{
    Decoder, Frame, FrameError, Incoming, Message, WordLayout, decode_stack_traces,
    encode_stack_trace,
};

use super::seeds::canonical_batches;
use crate::tcf_channel::{HELLO, Served, answers, command, options};

/// Largest message of [`tcf_frames`].
const MAX_FRAME_BYTES: usize = 1000;
/// Most bytes that wait for a client.
const MAX_OUTPUT_BYTES: usize = 64 << 10;
/// Byte that lets time pass between two pieces of input.
const PAUSE: u8 = 0xfe;

/// Decodes frames at once and byte by byte, which is the same; messages are decoded again from what
/// they are encoded as, and so are stacks of profile data.
pub fn tcf_frames(data: &[u8]) -> usize {
    let stacks = stack_traces(data);
    let (whole, end) = frames(data, data.len().max(1));
    assert_eq!(frames(data, 1), (whole.clone(), end));
    for incoming in &whole {
        let Incoming::Message(frame) = incoming else {
            continue;
        };
        assert!(frame.fields().map(<[u8]>::len).sum::<usize>() <= MAX_FRAME_BYTES);
        let mut again = Vec::new();
        frame.encode(&mut again);
        assert_eq!(
            frames(&again, again.len()).0,
            std::slice::from_ref(incoming)
        );
        if let Ok(message) = Message::decode(frame) {
            again.clear();
            message.encode(&mut again);
            let (decoded, _) = frames(&again, again.len());
            let [Incoming::Message(frame)] = &decoded[..] else {
                // Replaced characters are longer.
                assert!(decoded.is_empty() && again.len() > MAX_FRAME_BYTES);
                continue;
            };
            assert_eq!(Message::decode(frame), Ok(message));
        }
    }
    stacks + whole.len()
}

/// Decodes profile data in all layouts of words, and encodes it: the same bytes, or counts in pieces.
/// How many stacks there were.
fn stack_traces(data: &[u8]) -> usize {
    let mut count = 0;
    for (wide, big_endian) in [(false, false), (false, true), (true, false), (true, true)] {
        let layout = WordLayout { wide, big_endian };
        let Ok(stacks) = decode_stack_traces(layout, data) else {
            continue;
        };
        count += stacks.len();
        let mut again = Vec::new();
        let mut is_split = false;
        for stack in &stacks {
            assert!(!stack.addresses.is_empty());
            is_split |= stack.count == 0 || stack.count > i32::MAX as u64;
            // Greater counts come in pieces: of 64 bits that may be too many of them.
            let count = stack.count.min(1 << 33);
            let encoded = encode_stack_trace(layout, count, &stack.addresses, &mut again);
            assert_eq!(encoded, Ok(()));
        }
        if is_split {
            let pieces = decode_stack_traces(layout, &again);
            assert!(pieces.is_ok_and(|all| all.iter().all(|one| one.count <= i32::MAX as u64)));
        } else {
            assert_eq!(again, data);
        }
    }
    count
}

/// What bytes are, up to an error or the end of the stream.
fn frames(data: &[u8], len: usize) -> (Vec<Incoming>, Option<FrameError>) {
    let (mut decoder, mut all) = (Decoder::new(MAX_FRAME_BYTES), Vec::new());
    for mut piece in data.chunks(len) {
        loop {
            match decoder.advance(&mut piece) {
                Ok(Some(Incoming::End)) => {
                    all.push(Incoming::End);
                    return (all, None);
                }
                Ok(Some(incoming)) => all.push(incoming),
                Ok(None) => break,
                Err(error) => return (all, Some(error)),
            }
        }
    }
    (all, None)
}

/// Gives an agent what a client sends behind its Hello: how many commands were answered. The first
/// byte says how the agent serves.
pub fn tcf(data: &[u8]) -> usize {
    static BATCHES: OnceLock<Vec<Batch>> = OnceLock::new();
    let batches = BATCHES.get_or_init(canonical_batches);
    let Some((&mode, data)) = data.split_first() else {
        return 0;
    };
    let limits = Limits {
        message_bytes: 16 << 10,
        output_bytes: MAX_OUTPUT_BYTES,
        pending: 16,
        configurations: 16,
        profile_bytes: 1 << 20,
        ..Limits::default()
    };
    let mut served = Served::with(TcfOptions {
        control: mode & 1 != 0,
        environment: mode & 2 != 0,
        replay: [None, Some(Replay::Timed), Some(Replay::AtOnce), None][usize::from(mode >> 2 & 3)],
        ..options(limits)
    });
    let other = served.client();
    let id = served.client();
    let mut batches = batches.iter();
    let mut out = Vec::new();
    for piece in data.split(|&byte| byte == PAUSE) {
        out.extend(served.say(id, piece));
        out.extend(served.read(id));
        let now = served.now;
        match batches.next() {
            Some(batch) => drop(served.agent.batch(batch.clone(), now)),
            None => served.agent.ready(now),
        }
        served.agent.orders();
        served.later(Duration::from_millis(100));
        out.extend(served.read(id));
    }
    served.agent.ready(served.now);
    served.later(Duration::from_secs(10));
    out.extend(served.read(id));
    let sent: Vec<u8> = data.iter().copied().filter(|&byte| byte != PAUSE).collect();
    let commands = check(&out, &sent);
    // Nobody else is concerned.
    served.read(other);
    let sync = served.say(other, &command("s", "Locator", "sync", &[]));
    assert_eq!(sync, b"R\0s\0\0\x03\x01");
    served.agent.close(id);
    served.agent.close(other);
    served.later(Duration::from_millis(100));
    served.agent.orders();
    commands
}

/// What the agent says is messages, then perhaps the end; there are no more answers than commands.
fn check(out: &[u8], sent: &[u8]) -> usize {
    let ends = |bytes: &[u8]| bytes.windows(2).filter(|pair| pair == b"\x03\x01").count();
    let answered = answers(out).len();
    assert!(answered <= ends(sent), "{}", String::from_utf8_lossy(out));
    let mut rest = out;
    let mut decoder = Decoder::new(usize::MAX);
    while let Some(incoming) = decoder.advance(&mut rest).unwrap_or_else(|error| {
        panic!("{error}: {}", String::from_utf8_lossy(out));
    }) {
        let Incoming::Message(frame) = incoming else {
            return answered;
        };
        check_json(&frame);
    }
    assert!(decoder.is_between());
    answered
}

/// Arguments of events and errors are JSON.
fn check_json(frame: &Frame) {
    let is_json = |field: &[u8]| serde_json::from_slice::<serde_json::Value>(field).is_ok();
    match Message::decode(frame) {
        Ok(Message::Event { arguments, .. }) => {
            assert!(arguments.iter().all(|argument| is_json(argument)));
        }
        Ok(Message::Result { arguments, .. }) => {
            let [error, ..] = &arguments[..] else { return };
            assert!(!error.starts_with(b"{\"Code\":") || is_json(error));
        }
        Ok(Message::Unknown { .. }) => {}
        other => panic!("{other:?}"),
    }
}

/// What both fuzzers begin with.
pub(super) mod seeds {
    use super::{HELLO, PAUSE, command};
    use crate::tcf_channel::COMMANDS;

    /// Each command alone, waited for, and all in a row in all modes.
    pub(in super::super) fn commands() -> Vec<Vec<u8>> {
        let mut seeds = Vec::new();
        let mut all = Vec::new();
        for (token, (service, name, arguments)) in COMMANDS.iter().enumerate() {
            let command = command(&token.to_string(), service, name, arguments);
            let pauses = [PAUSE; 4];
            seeds.push([&[8], &pauses[..], &command, &pauses].concat());
            all.extend(command);
            all.push(PAUSE);
        }
        seeds.extend((0..16).map(|mode| [&[mode], &all[..]].concat()));
        seeds.push(
            b"\x08C\x001\0Diagnostics\0echo\0\x03\x03\x04\"\0\x03\"\0\x03\x01\x03\x02".to_vec(),
        );
        seeds
    }

    /// Messages of all kinds.
    pub(in super::super) fn frames() -> Vec<Vec<u8>> {
        let mut seeds = vec![
            HELLO.to_vec(),
            b"R\0\x03\0t\0\0[]\0\x03\x01P\x001\0\x03\x01N\x001\0\x03\x01F\x00-7\0\x03\x01".to_vec(),
            [1u32, 2, 0x40_1136, 0x40_1200, 3, 1, 9]
                .map(u32::to_le_bytes)
                .concat(),
            [1u64, 2, 0x40_1136, u64::MAX - 8]
                .map(u64::to_be_bytes)
                .concat(),
            b"\x03\x03\x83\0\0\x03\x01\0\x03\x01\x03\x02{\"Code\":3}\0\x03\x01".to_vec(),
        ];
        seeds.extend(commands().into_iter().map(|seed| seed[1..].to_vec()));
        seeds
    }
}
