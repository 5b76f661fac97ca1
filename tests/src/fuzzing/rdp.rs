//! Clients of the remote debugging protocol: any bytes, between batches of a session.
//!
//! What is said must be packets, whole, with frames in order. What does not belong here: sockets.

use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use profiler_model::Batch;
use profiler_serve::admission::Admission;
use profiler_serve::front::{Order, Place, Replay};
use profiler_serve::rdp::{Agent, ConnectionId, RdpLimits, RdpOptions, RdpPeer};
use profiler_wire::rdp::{Decoder, Incoming, Packet};

use super::seeds::canonical_batches;

/// Byte that lets time pass between two pieces of input.
const PAUSE: u8 = 0xfe;
/// Most bytes of a packet that is taken.
const MAX_PACKET: usize = 16 << 10;

struct Served {
    agent: Agent,
    now: Instant,
}

impl Served {
    fn client(&mut self) -> ConnectionId {
        let peer = RdpPeer {
            address: ([127, 0, 0, 1], 9).into(),
            uid: Some(0),
        };
        let opened = self.agent.open(peer);
        opened.unwrap_or_else(|| panic!("there is room for two"))
    }

    /// Gives bytes until they are taken, or nothing more is.
    fn say(&mut self, id: ConnectionId, mut bytes: &[u8], out: &mut Vec<u8>) {
        while !bytes.is_empty() {
            let taken = self.agent.receive(id, bytes, self.now);
            bytes = &bytes[taken..];
            self.read(id, out);
            if taken == 0 {
                self.later();
                self.answer();
                self.read(id, out);
            }
        }
    }

    fn read(&mut self, id: ConnectionId, out: &mut Vec<u8>) {
        while self.agent.play(id) {}
        if let Some(output) = self.agent.output(id) {
            out.extend_from_slice(output.bytes());
            let count = output.bytes().len();
            output.advance(count);
        }
    }

    /// Whoever runs the session does what is wanted.
    fn answer(&mut self) {
        for order in self.agent.orders() {
            let Order::Ask(question) = order else {
                continue;
            };
            if let Place::Calls(tracing) = &question.place {
                // Each other can't be traced.
                match tracing.id % 4 {
                    0 => self.agent.untraced(tracing, "no"),
                    _ => {
                        for batch in batches() {
                            self.agent.traced(tracing, batch.clone(), self.now);
                        }
                    }
                }
            }
            self.agent.acknowledge(question.id, self.now);
        }
    }

    fn later(&mut self) {
        self.now += Duration::from_millis(500);
        self.agent.tick(self.now);
    }
}

fn batches() -> &'static [Batch] {
    static BATCHES: OnceLock<Vec<Batch>> = OnceLock::new();
    BATCHES.get_or_init(canonical_batches)
}

/// Gives a server what a client sends: how many packets it has said. The first byte says how it serves.
pub fn rdp(data: &[u8]) -> usize {
    let Some((&mode, data)) = data.split_first() else {
        return 0;
    };
    let options = RdpOptions {
        admission: Admission::only([]),
        token: None,
        tls: None,
        functions: match mode & 4 {
            0 => Vec::new(),
            _ => vec!["*".to_owned()],
        },
        values: mode & 8 != 0,
        replay: [None, Some(Replay::Timed), Some(Replay::AtOnce), None][usize::from(mode & 3)],
        limits: RdpLimits {
            packet_bytes: MAX_PACKET,
            output_bytes: 64 << 10,
            actors: 8,
            patterns: 16,
            ..RdpLimits::default()
        },
    };
    let mut served = Served {
        agent: Agent::new(options),
        now: Instant::now(),
    };
    let other = served.client();
    let id = served.client();
    let mut batches = batches().iter();
    let mut out = Vec::new();
    for piece in data.split(|&byte| byte == PAUSE) {
        served.say(id, piece, &mut out);
        match batches.next() {
            Some(batch) => served.agent.batch(batch.clone(), served.now),
            None => served.agent.ready(served.now),
        }
        served.answer();
        served.later();
        served.read(id, &mut out);
    }
    let said = check(&out);
    // Nobody else is concerned.
    let mut answer = Vec::new();
    served.read(other, &mut answer);
    answer.clear();
    let request = br#"36:{"to":"root","type":"requestTypes"} "#;
    served.say(other, request, &mut answer);
    let answers = packets(&answer);
    assert!(
        answers
            .iter()
            .any(|packet| packet.contains_key("requestTypes"))
    );
    served.agent.close(id);
    served.agent.close(other);
    served.later();
    served.agent.orders();
    said
}

fn packets(bytes: &[u8]) -> Vec<Packet> {
    let mut decoder = Decoder::new(usize::MAX);
    let mut rest = bytes;
    let mut packets = Vec::new();
    loop {
        match decoder.advance(&mut rest) {
            Ok(None) => break,
            Ok(Some(Incoming::Packet(packet))) => packets.push(packet),
            other => panic!("{other:?}: {}", String::from_utf8_lossy(bytes)),
        }
    }
    assert!(rest.is_empty());
    packets
}

/// All of it is packets that say whose they are, and frames come between the beginning and the end of tracing, in order.
fn check(out: &[u8]) -> usize {
    let packets = packets(out);
    let text = |packet: &Packet, name: &str| {
        let text = packet.get(name).and_then(serde_json::Value::as_str);
        text.map(str::to_owned)
    };
    // What the next sequence number of each actor is, and its traces.
    let mut actors: BTreeMap<String, (u64, Vec<String>)> = BTreeMap::new();
    for packet in &packets {
        let from = text(packet, "from").unwrap_or_else(|| panic!("{packet:?}"));
        let (next, traces) = actors.entry(from).or_default();
        let name = text(packet, "name").unwrap_or_default();
        match text(packet, "type").as_deref() {
            Some("startedTrace") => {
                if traces.is_empty() {
                    *next = 0;
                }
                traces.retain(|known| *known != name);
                traces.push(name);
            }
            Some("stoppedTrace") => {
                assert!(traces.contains(&name), "{packet:?}");
                traces.retain(|known| *known != name);
            }
            Some("enteredFrame" | "exitedFrame") => {
                assert!(!traces.is_empty(), "{packet:?}");
                assert_eq!(packet.get("sequence"), Some(&(*next).into()));
                *next += 1;
            }
            _ => {}
        }
    }
    packets.len()
}

/// What the fuzzer begins with.
pub(super) mod seeds {
    use super::PAUSE;
    use serde_json::{Value, json};

    /// Every request alone and all in a row, in all modes.
    pub(in super::super) fn requests() -> Vec<Vec<u8>> {
        let trace = "server1.conn1.trace100.4100000000.100";
        let process = "server1.conn1.process100.4100000000";
        let target = "server1.conn1.target100.4100000000";
        let start = |name: Value, more: Value| {
            json!({
                "to": trace, "type": "startTrace", "trace": ["name", "time", "arguments", "return", "depth"],
                "name": name, "functions": more,
            })
        };
        let requests = [
            json!({ "to": "root", "type": "connect", "frontendVersion": "130" }),
            json!({ "to": "root", "type": "listTabs" }),
            json!({ "to": "root", "type": "listProcesses" }),
            json!({ "to": "root", "type": "getProcess", "id": 100 }),
            json!({ "to": process, "type": "getTarget" }),
            json!({ "to": target, "type": "attach" }),
            json!({ "to": trace, "type": "requestTypes" }),
            json!({ "to": trace, "type": "attach" }),
            start(Value::Null, Value::Null),
            start("one".into(), json!(["a", "b:c"])),
            start("one".into(), json!([])),
            json!({ "to": trace, "type": "startTrace", "trace": ["name"], "inferred": true, "frequency": 9 }),
            json!({ "to": trace, "type": "stopTrace", "name": "one" }),
            json!({ "to": trace, "type": "stopTrace" }),
            json!({ "to": trace, "type": "detach" }),
        ];
        let mut all = Vec::new();
        let mut seeds = Vec::new();
        for request in requests {
            let json = request.to_string();
            let bytes = format!("{}:{json}", json.len()).into_bytes();
            all.extend(&bytes);
            all.push(PAUSE);
            seeds.push([&[0, PAUSE, PAUSE][..], &bytes, &[PAUSE]].concat());
        }
        seeds.extend((0..16).map(|mode| [&[mode], &all[..], &all[..]].concat()));
        seeds.push(b"\0bulk root load 3:abc2:[]1:x2:{}abc:".to_vec());
        seeds
    }
}
