//! An agent without sockets, and what its clients see.
//!
//! Bytes of a client -> bytes for it, in the notation of the protocol's documents: zeros as `\0`,
//! escapes as their bytes.

use std::time::{Duration, Instant};

use profiler::serve::admission::Admission;
use profiler::serve::machine::NoMachine;
use profiler::serve::tcf::{Agent, ChannelId, Limits, Peer, TcfOptions};

/// What every channel begins with.
pub const HELLO: &[u8] =
    b"E\0Locator\0Hello\0[\"Locator\",\"Profiler\",\"RunControl\",\"Processes\",\
    \"SysMonitor\",\"MemoryMap\",\"Symbols\",\"LineNumbers\",\"Diagnostics\"]\0\x03\x01";
/// What clients begin with.
pub const CLIENT_HELLO: &[u8] = b"E\0Locator\0Hello\0[\"Locator\"]\0\x03\x01";

/// How the tests serve.
pub fn options(limits: Limits) -> TcfOptions {
    TcfOptions {
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
        match self.agent.open(peer(), self.now) {
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
