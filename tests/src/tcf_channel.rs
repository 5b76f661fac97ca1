//! An agent without sockets, and what its clients see.
//!
//! Bytes of a client -> bytes for it, in the notation of the protocol's documents: zeros as `\0`,
//! escapes as their bytes.

use std::time::{Duration, Instant};

use profiler_serve::admission::Admission;
use profiler_serve::machine::NoMachine;
use profiler_serve::tcf::{Agent, ChannelId, Limits, Peer, TcfOptions};
use profiler_wire::tcf::{Decoder, Incoming, Message};

/// What every channel begins with.
pub const HELLO: &[u8] =
    b"E\0Locator\0Hello\0[\"Locator\",\"Profiler\",\"RunControl\",\"Processes\",\
    \"SysMonitor\",\"MemoryMap\",\"Symbols\",\"LineNumbers\",\"Diagnostics\"]\0\x03\x01";
/// What clients begin with.
pub const CLIENT_HELLO: &[u8] = b"E\0Locator\0Hello\0[\"Locator\"]\0\x03\x01";

/// How the tests serve.
pub fn options(limits: Limits) -> TcfOptions {
    TcfOptions {
        user: "root".to_owned(),
        admission: Admission::new([]),
        control: false,
        environment: false,
        tls: None,
        replay: None,
        limits,
    }
}

/// A client on this machine.
pub fn peer() -> Peer {
    Peer {
        address: ([127, 0, 0, 1], 40_000).into(),
        uid: Some(0),
    }
}

/// An agent at a time.
pub struct Served {
    /// The agent.
    pub agent: Agent,
    /// The time.
    pub now: Instant,
}

impl Served {
    /// With these limits, without batches.
    pub fn new(limits: Limits) -> Served {
        Served::with(options(limits))
    }

    /// The same, told more.
    pub fn with(options: TcfOptions) -> Served {
        Served {
            agent: Agent::new(options, Box::new(NoMachine)),
            now: Instant::now(),
        }
    }

    /// A channel whose hellos have been said.
    pub fn client(&mut self) -> ChannelId {
        let id = self.open();
        assert_eq!(self.read(id), HELLO);
        assert_eq!(self.say(id, CLIENT_HELLO), b"");
        id
    }

    /// A channel that has said nothing yet; so has the agent.
    pub fn open(&mut self) -> ChannelId {
        match self.agent.open(peer()) {
            Ok(id) => id,
            Err(too_many) => panic!("{too_many:?}"),
        }
    }

    /// Gives bytes, and reads what comes of them.
    pub fn say(&mut self, id: ChannelId, bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        self.give(id, bytes, &mut out);
        out
    }

    /// Gives bytes in pieces, and reads in between.
    pub fn say_in_pieces(&mut self, id: ChannelId, bytes: &[u8], len: usize) -> Vec<u8> {
        let mut out = Vec::new();
        for piece in bytes.chunks(len) {
            self.give(id, piece, &mut out);
        }
        out
    }

    fn give(&mut self, id: ChannelId, mut bytes: &[u8], out: &mut Vec<u8>) {
        loop {
            let taken = self.agent.receive(id, bytes, self.now);
            bytes = &bytes[taken..];
            out.extend(self.read(id));
            if bytes.is_empty() {
                return;
            }
        }
    }

    /// Reads all that waits.
    pub fn read(&mut self, id: ChannelId) -> Vec<u8> {
        let Some(output) = self.agent.output(id) else {
            return Vec::new();
        };
        let bytes = output.bytes().to_vec();
        output.advance(bytes.len());
        assert!(output.bytes().is_empty());
        bytes
    }

    /// Whether the connection is to be closed.
    pub fn is_over(&mut self, id: ChannelId) -> bool {
        self.agent.output(id).is_none_or(|output| output.is_last())
    }

    /// Time passes.
    pub fn later(&mut self, time: Duration) {
        self.now += time;
        self.agent.tick(self.now);
    }
}

/// A command.
pub fn command(token: &str, service: &str, name: &str, arguments: &[&str]) -> Vec<u8> {
    let mut fields = vec!["C", token, service, name];
    fields.extend(arguments);
    let mut bytes = fields.join("\0").into_bytes();
    bytes.extend(b"\0\x03\x01");
    bytes
}

/// Bytes with all times of errors taken out: these differ from run to run.
pub fn without_times(bytes: &[u8]) -> Vec<u8> {
    const TIME: &[u8] = b"\"Time\":";
    let mut out = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let Some(at) = rest.windows(TIME.len()).position(|window| window == TIME) {
        let (before, behind) = rest.split_at(at);
        out.extend_from_slice(before);
        let digits = behind[TIME.len()..].iter();
        let len = digits.take_while(|byte| byte.is_ascii_digit()).count();
        rest = &behind[TIME.len() + len..];
    }
    out.extend_from_slice(rest);
    out
}

/// What an agent has sent: the letter and token of each answer, in order.
pub fn answers(mut bytes: &[u8]) -> Vec<(char, String)> {
    let mut decoder = Decoder::new(usize::MAX);
    let mut answers = Vec::new();
    while let Ok(Some(Incoming::Message(frame))) = decoder.advance(&mut bytes) {
        let (letter, token) = match Message::decode(&frame) {
            Ok(Message::Result { token, .. }) => ('R', token),
            Ok(Message::Unknown { token }) => ('N', token),
            Ok(Message::Event { .. }) => continue,
            other => panic!("{other:?}"),
        };
        answers.push((letter, String::from_utf8_lossy(&token).into_owned()));
    }
    answers
}

/// All commands that an agent knows, with arguments that they take, and some that it does not know.
pub const COMMANDS: &[(&str, &str, &[&str])] = &[
    ("Locator", "sync", &[]),
    ("Locator", "getAgentID", &[]),
    ("Locator", "getPeers", &[]),
    ("Locator", "redirect", &["\"TCP:10.0.0.1:1534\""]),
    ("Locator", "publishPeer", &["{}"]),
    ("Diagnostics", "echo", &["\"\u{e9}\\u0000\""]),
    ("Diagnostics", "echoINT", &["8", "-9223372036854775808"]),
    ("Diagnostics", "echoFP", &["-1.25e10"]),
    ("Diagnostics", "echoERR", &["{\"Code\":1,\"Format\":\"x\"}"]),
    ("Diagnostics", "getTestList", &[]),
    ("Diagnostics", "runTest", &["\"RCBP1\""]),
    ("Profiler", "getCapabilities", &["\"P100\""]),
    (
        "Profiler",
        "configure",
        &["\"P100\"", "{\"FrameCnt\":8,\"MaxSamples\":100}"],
    ),
    ("Profiler", "read", &["\"P100\""]),
    ("RunControl", "getChildren", &["null"]),
    ("RunControl", "getChildren", &["\"P100\""]),
    ("RunControl", "getContext", &["\"P100.101\""]),
    ("RunControl", "getState", &["\"P100.101\""]),
    ("RunControl", "resume", &["\"P100\"", "0", "1"]),
    ("RunControl", "suspend", &["\"P100\""]),
    ("RunControl", "terminate", &["\"P100\""]),
    ("RunControl", "detach", &["\"P100\""]),
    ("Processes", "getChildren", &["null", "false"]),
    ("Processes", "getContext", &["\"P100\""]),
    ("Processes", "attach", &["\"P100\""]),
    ("Processes", "terminate", &["\"P200\""]),
    ("Processes", "signal", &["\"P200\"", "0"]),
    ("Processes", "getSignalList", &["null"]),
    ("Processes", "getEnvironment", &[]),
    ("SysMonitor", "getChildren", &["null"]),
    ("SysMonitor", "getContext", &["\"P100\""]),
    ("SysMonitor", "getCommandLine", &["\"P100\""]),
    ("SysMonitor", "getEnvironment", &["\"P100\""]),
    ("MemoryMap", "get", &["\"P100\""]),
    ("MemoryMap", "set", &["\"P100\"", "[]"]),
    (
        "Symbols",
        "findByAddr",
        &["\"P100\"", "18446744071578845184"],
    ),
    ("Symbols", "getContext", &["\"@S1.P100\""]),
    ("Symbols", "getChildren", &["\"@S1.P100\""]),
    (
        "LineNumbers",
        "mapToSource",
        &["\"P100\"", "4198400", "4198401"],
    ),
    (
        "LineNumbers",
        "mapToMemory",
        &["\"P100\"", "\"a.c\"", "1", "0"],
    ),
    ("Breakpoints", "set", &["[]"]),
];
