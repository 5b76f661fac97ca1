//! The server without sockets: what clients say in bytes, what the session tells -> packets and orders.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use profiler_wire::rdp::{Decoder, Incoming};
use serde_json::{Value, json};

use super::*;
use crate::admission::Admission;
use crate::front::Replay;
use crate::rdp::options::RdpLimits;
use profiler_model::Value as Held;

/// A server, and the time.
struct Served {
    agent: Agent,
    now: Instant,
    orders: Vec<Order>,
}

/// What a client has got.
struct Peer {
    id: ConnectionId,
    decoder: Decoder,
}

const PID: u32 = 20;
const TRACE: &str = "server1.conn0.trace20.5.20";

fn options() -> RdpOptions {
    RdpOptions {
        admission: Admission::new([]),
        token: None,
        tls: None,
        functions: Vec::new(),
        values: true,
        replay: None,
        limits: RdpLimits::default(),
    }
}

/// Definitions of process 20 with threads 20 and 21, function `work` and a source.
fn definitions() -> Vec<Definition> {
    let string =
        |index: usize, text: &str| Definition::String(StringId::from_index(index), text.into());
    let name = StringId::from_index;
    let thread = |index: usize, tid: u32| {
        let thread = Thread {
            process: ProcessId::from_index(0),
            tid: Tid(tid),
            started: Timestamp(5),
            name: name(0),
        };
        Definition::Thread(ThreadId::from_index(index), thread)
    };
    let process = Process {
        pid: Pid(PID),
        started: Timestamp(5),
        parent: None,
        name: name(0),
        executable: Some(name(1)),
        command: None,
        namespace_pids: Vec::new(),
        uid: Some(1000),
        cgroup: None,
        container: None,
    };
    let function = Function {
        name: name(2),
        linkage_name: None,
        module: None,
        file: None,
        line: 0,
        start: Some(1),
        size: None,
    };
    vec![
        string(0, "server"),
        string(1, "/bin/server"),
        string(2, "work"),
        Definition::Process(ProcessId::from_index(0), process),
        thread(0, PID),
        thread(1, PID + 1),
        Definition::Function(FunctionId::from_index(0), function),
    ]
}

fn call(at: u64, thread: usize, enters: bool) -> Event {
    let exit = Exit {
        began: Timestamp(at),
        self_ns: 0,
        how: ExitKind::Return,
        line: 0,
        result: Some(Held::Signed(4)),
        whole: None,
    };
    Event::Call(Call {
        at: Timestamp(at),
        thread: ThreadId::from_index(thread),
        cpu: Cpu(0),
        function: FunctionId::from_index(0),
        stack: 0,
        depth: 0,
        edge: match enters {
            true => CallEdge::Enter(Some(Box::new([Held::Signed(3)]))),
            false => CallEdge::Exit(Box::new(exit)),
        },
        later: None,
    })
}

/// Later than any moment at which a test may start a trace.
const LATE: u64 = u64::MAX / 2;

impl Served {
    fn new(options: RdpOptions) -> Served {
        Served {
            agent: Agent::new(options),
            now: Instant::now(),
            orders: Vec::new(),
        }
    }

    /// With process 20.
    fn ready() -> Served {
        let mut served = Served::new(options());
        served.batch(definitions(), Vec::new());
        served
    }

    fn batch(&mut self, definitions: Vec<Definition>, events: Vec<Event>) {
        let batch = Batch {
            epoch: 1,
            definitions,
            events,
        };
        self.agent.batch(batch, self.now);
        self.take_orders();
    }

    fn take_orders(&mut self) {
        self.orders.extend(self.agent.orders());
    }

    /// A client that has read the greeting.
    fn client(&mut self) -> Peer {
        self.client_of(Some(1000))
    }

    fn client_of(&mut self, uid: Option<u32>) -> Peer {
        let address = "127.0.0.1:9".parse().unwrap();
        let id = self.agent.open(RdpPeer { address, uid }).unwrap();
        let mut peer = Peer {
            id,
            decoder: Decoder::new(1 << 24),
        };
        let greeting = self.packets(&mut peer);
        assert_eq!(greeting.len(), 1);
        assert_eq!(greeting[0]["applicationType"], "browser");
        self.take_orders();
        peer
    }

    /// All that waits for a client.
    fn packets(&mut self, peer: &mut Peer) -> Vec<Value> {
        let output = self.agent.output(peer.id).unwrap();
        let bytes = output.bytes().to_vec();
        output.advance(bytes.len());
        let mut rest = &bytes[..];
        let mut all = Vec::new();
        while let Ok(Some(Incoming::Packet(packet))) = peer.decoder.advance(&mut rest) {
            all.push(Value::Object(packet));
        }
        assert!(rest.is_empty());
        all
    }

    fn send(&mut self, peer: &Peer, packet: &Value) -> usize {
        let json = packet.to_string();
        let bytes = format!("{}:{json}", json.len());
        let taken = self.agent.receive(peer.id, bytes.as_bytes(), self.now);
        self.take_orders();
        taken
    }

    /// The one answer to a request.
    fn ask(&mut self, peer: &mut Peer, packet: Value) -> Value {
        self.send(peer, &packet);
        let mut packets = self.packets(peer);
        assert_eq!(packets.len(), 1, "{packet}: {packets:?}");
        packets.remove(0)
    }

    fn attach(&mut self, peer: &mut Peer, actor: &str) {
        self.send(peer, &json!({ "to": actor, "type": "attach" }));
        self.acknowledge();
        let packets = self.packets(peer);
        assert_eq!(packets.len(), 1, "{packets:?}");
        assert_eq!(packets[0]["type"], "attached", "{packets:?}");
    }

    /// Whoever runs the session answers all questions.
    fn acknowledge(&mut self) {
        let asked: Vec<u64> = self
            .orders
            .iter()
            .filter_map(|order| match order {
                Order::Ask(question) => Some(question.id),
                Order::Demand(_) | Order::Failed(_) => None,
            })
            .collect();
        for question in asked {
            self.agent.acknowledge(question, self.now);
        }
        self.take_orders();
    }

    /// The last demand.
    fn demand(&self) -> Demand {
        let mut demands = self.orders.iter().filter_map(|order| match order {
            Order::Demand(demand) => Some(demand.clone()),
            _ => None,
        });
        demands.next_back().unwrap_or_default()
    }

    /// The one demand for calls.
    fn calls(&self) -> Option<Tracing> {
        self.wanted(false)
    }

    /// The demand for markers, or for calls.
    fn wanted(&self, awaited: bool) -> Option<Tracing> {
        let demand = self.demand();
        let mut wanted = demand
            .tracing
            .into_iter()
            .filter(|it| it.awaited == awaited);
        let first = wanted.next();
        assert_eq!(wanted.next(), None);
        first
    }

    /// The last question.
    fn question(&self) -> Question {
        let mut questions = self.orders.iter().filter_map(|order| match order {
            Order::Ask(question) => Some(question.clone()),
            _ => None,
        });
        questions.next_back().unwrap()
    }

    /// Starts a trace of `work`, whose probes come to sit; the demand.
    fn trace(&mut self, peer: &mut Peer, actor: &str) -> Tracing {
        let start = json!({
            "to": actor, "type": "startTrace", "trace": ["name", "arguments", "return"],
            "functions": ["work"],
        });
        self.send(peer, &start);
        let question = self.question();
        self.agent.acknowledge(question.id, self.now);
        self.take_orders();
        let answer = self.packets(peer).remove(0);
        assert_eq!(answer["type"], "startedTrace", "{answer}");
        match question.place {
            Place::Calls(tracing) => tracing,
            other => panic!("{other:?}"),
        }
    }

    fn traced(&mut self, tracing: &Tracing, events: Vec<Event>) {
        let batch = Batch {
            epoch: 1,
            definitions: definitions(),
            events,
        };
        self.agent.traced(tracing, batch, self.now);
        self.take_orders();
    }
}

#[test]
fn who_is_on_another_machine_shows_the_token_first() {
    let mut served = Served::new(RdpOptions {
        token: Some("abc".to_owned()),
        ..options()
    });
    served.batch(definitions(), Vec::new());
    let types = json!({ "to": "root", "type": "requestTypes" });
    let mut near = served.client();
    assert!(served.ask(&mut near, types.clone())["requestTypes"].is_array());
    let mut far = served.client_of(None);
    let list = json!({ "to": "root", "type": "listProcesses" });
    assert_eq!(
        served.ask(&mut far, list.clone())["error"],
        "notAuthenticated"
    );
    let show = |token: &str| json!({ "to": "root", "type": "authenticate", "token": token });
    assert_eq!(served.ask(&mut far, show("abc")), json!({ "from": "root" }));
    assert_eq!(served.ask(&mut far, list)["processes"][0]["id"], PID);
    // Who need not may.
    for client in [&mut near, &mut far] {
        assert_eq!(served.ask(client, show("abc")), json!({ "from": "root" }));
    }
    let mut wrong = served.client_of(None);
    let error = served.ask(&mut wrong, show("abd"));
    assert_eq!(error["error"], "notAuthenticated", "{error}");
    assert!(served.agent.output(wrong.id).unwrap().is_last());
}

#[test]
fn requests_wait_until_it_is_known_who_is_there() {
    let mut served = Served::new(options());
    let mut client = served.client();
    assert!(served.demand().attached);
    served.send(&client, &json!({ "to": "root", "type": "listProcesses" }));
    // What comes behind is not taken before.
    assert_eq!(
        served.send(&client, &json!({ "to": "root", "type": "connect" })),
        0
    );
    assert!(!served.agent.takes_more(client.id));
    assert!(served.packets(&mut client).is_empty());
    served.batch(definitions(), Vec::new());
    let packets = served.packets(&mut client);
    assert_eq!(packets.len(), 1);
    assert_eq!(packets[0]["processes"][0]["id"], PID);
    assert!(served.agent.takes_more(client.id));

    let mut served = Served::new(options());
    let mut client = served.client();
    served.send(&client, &json!({ "to": "root", "type": "listTabs" }));
    served.agent.trouble("no privileges".to_owned(), served.now);
    let packets = served.packets(&mut client);
    assert_eq!(packets[0]["error"], "unavailable");
    assert_eq!(packets[0]["message"], "no privileges");

    let mut served = Served::new(options());
    let mut client = served.client();
    served.send(&client, &json!({ "to": "root", "type": "listTabs" }));
    served.now += Duration::from_secs(31);
    served.agent.tick(served.now);
    assert_eq!(served.packets(&mut client)[0]["error"], "unavailable");
}

#[test]
fn all_that_clients_ask_first_is_answered() {
    let mut served = Served::ready();
    let mut client = served.client();
    let mut root = |kind: &str, more: Value| {
        let mut packet = json!({ "to": "root", "type": kind });
        for (name, value) in more.as_object().unwrap() {
            packet[name] = value.clone();
        }
        let answer = served.ask(&mut client, packet);
        assert_eq!(answer["from"], "root");
        assert!(answer.get("error").is_none(), "{kind}: {answer}");
        answer
    };
    root("connect", json!({ "frontendVersion": "130.0" }));
    root("getRoot", json!({}));
    root("watchResources", json!({}));
    for (kind, list) in [
        ("listAddons", "addons"),
        ("listWorkers", "workers"),
        ("listServiceWorkerRegistrations", "registrations"),
    ] {
        assert_eq!(root(kind, json!({}))[list], json!([]));
    }
    assert_eq!(root("echo", json!({ "x": [1] }))["x"], json!([1]));
    let kinds = root("requestTypes", json!({}));
    assert!(
        kinds["requestTypes"]
            .as_array()
            .unwrap()
            .contains(&json!("listTabs"))
    );
    let tabs = root("listTabs", json!({}));
    assert_eq!(tabs["selected"], 0);
    assert_eq!(tabs["tabs"][0]["traceActor"], TRACE);
    assert_eq!(tabs["tabs"][0]["url"], "file:///bin/server");
    let processes = root("listProcesses", json!({}));
    assert_eq!(processes["processes"][0]["traits"]["watcher"], false);
    let process = root("getProcess", json!({ "id": PID }));
    let descriptor = process["processDescriptor"]["actor"]
        .as_str()
        .unwrap()
        .to_owned();
    let target = process["form"]["actor"].as_str().unwrap().to_owned();
    let threads = process["form"]["threads"].clone();
    assert_eq!(threads.as_array().unwrap().len(), 2);
    assert_eq!(threads[0]["traceActor"], TRACE);
    assert_eq!(
        root("getTab", json!({ "outerWindowID": PID }))["tab"]["actor"],
        target
    );
    let thread = threads[1]["actor"].as_str().unwrap().to_owned();
    for (actor, kind, property) in [
        (&descriptor, "getTarget", "process"),
        (&descriptor, "listThreads", "threads"),
        (&target, "getTarget", "frame"),
        (&target, "attach", "traceActor"),
        (&target, "listThreads", "threads"),
        (&target, "listWorkers", "workers"),
        (&target, "detach", "type"),
        (&thread, "getTraceActor", "traceActor"),
    ] {
        let answer = served.ask(&mut client, json!({ "to": actor, "type": kind }));
        assert_eq!(answer["from"], **actor);
        assert!(!answer[property].is_null(), "{kind}: {answer}");
    }
    for actor in [&descriptor, &target, &thread, &TRACE.to_owned()] {
        let answer = served.ask(&mut client, json!({ "to": actor, "type": "requestTypes" }));
        let kinds = answer["requestTypes"].as_array().unwrap();
        assert!(kinds.contains(&json!("requestTypes")));
        let wrong = served.ask(&mut client, json!({ "to": actor, "type": "dance" }));
        assert_eq!(wrong["error"], "unrecognizedPacketType");
        assert_eq!(wrong["from"], **actor);
    }
}

#[test]
fn every_wrong_request_has_its_error() {
    let mut served = Served::ready();
    let mut client = served.client();
    for (packet, from, error) in [
        (json!({ "type": "listTabs" }), "root", "noSuchActor"),
        (
            json!({ "to": "nobody", "type": "x" }),
            "nobody",
            "noSuchActor",
        ),
        (json!({ "to": 7, "type": "x" }), "root", "noSuchActor"),
        (json!({ "to": "root" }), "root", "missingParameter"),
        (
            json!({ "to": "root", "type": 7 }),
            "root",
            "missingParameter",
        ),
        (
            json!({ "to": "root", "type": "dance" }),
            "root",
            "unrecognizedPacketType",
        ),
        (
            json!({ "to": "root", "type": "getProcess" }),
            "root",
            "missingParameter",
        ),
        (
            json!({ "to": "root", "type": "getProcess", "id": "x" }),
            "root",
            "badParameterType",
        ),
        (
            json!({ "to": "server1.conn0.process20.6", "type": "getTarget" }),
            "server1.conn0.process20.6",
            "noSuchActor",
        ),
        (
            json!({ "to": "server1.conn0.trace20.5.99", "type": "attach" }),
            "server1.conn0.trace20.5.99",
            "noSuchActor",
        ),
        // That of another connection.
        (
            json!({ "to": "server1.conn1.trace20.5.20", "type": "attach" }),
            "server1.conn1.trace20.5.20",
            "noSuchActor",
        ),
    ] {
        let answer = served.ask(&mut client, packet.clone());
        assert_eq!(answer["error"], error, "{packet}");
        assert_eq!(answer["from"], from, "{packet}");
    }
    // Somebody who is not known may only just have come.
    served.send(
        &client,
        &json!({ "to": "root", "type": "getProcess", "id": 99 }),
    );
    assert!(served.packets(&mut client).is_empty());
    served.now += Duration::from_secs(1);
    served.agent.tick(served.now);
    assert_eq!(served.packets(&mut client)[0]["error"], "noSuchProcess");
    // What is no packet at all.
    let now = served.now;
    served
        .agent
        .receive(client.id, b"bulk root load 2:xx1:{2:[]", now);
    let packets = served.packets(&mut client);
    let errors: Vec<&Value> = packets.iter().map(|it| &it["error"]).collect();
    assert_eq!(errors, ["unrecognizedPacketType", "noSuchActor"]);
    served.agent.receive(client.id, b"abc:", now);
    assert!(served.agent.output(client.id).unwrap().is_last());
}

#[test]
fn a_trace_starts_when_its_probes_sit() {
    let mut served = Served::ready();
    let mut client = served.client();
    served.attach(&mut client, TRACE);
    let start = json!({
        "to": TRACE, "type": "startTrace", "trace": ["name"], "name": "one", "functions": ["work"],
    });
    served.send(&client, &start);
    // It is asked for, and the answer waits.
    let tracing = served.calls().unwrap();
    assert_eq!(tracing.process, Pid(PID));
    assert_eq!(tracing.functions, BTreeSet::from(["work".to_owned()]));
    assert_eq!(served.question().place, Place::Calls(tracing.clone()));
    assert!(served.packets(&mut client).is_empty());
    let id = served.question().id;
    served.agent.acknowledge(id, served.now);
    let answer = served.packets(&mut client).remove(0);
    assert_eq!(answer["type"], "startedTrace");
    assert_eq!(
        (&answer["name"], &answer["tid"]),
        (&json!("one"), &json!(20))
    );
    served.traced(
        &tracing,
        vec![
            call(LATE, 0, true),
            call(LATE + 1, 1, true),
            call(LATE + 2, 0, false),
        ],
    );
    let packets = served.packets(&mut client);
    let kinds: Vec<&Value> = packets.iter().map(|it| &it["type"]).collect();
    assert_eq!(kinds, ["enteredFrame", "exitedFrame"]);
    // Another thread needs no other probes.
    let other = "server1.conn0.trace20.5.21";
    served.attach(&mut client, other);
    served.send(
        &client,
        &json!({
            "to": other, "type": "startTrace", "trace": ["name"], "functions": ["work"],
        }),
    );
    assert_eq!(served.calls().as_ref(), Some(&tracing));
    let id = served.question().id;
    served.agent.acknowledge(id, served.now);
    assert_eq!(served.packets(&mut client)[0]["type"], "startedTrace");
    // All that was called before it stops is told before.
    served.send(&client, &json!({ "to": TRACE, "type": "stopTrace" }));
    assert!(served.packets(&mut client).is_empty());
    served.traced(&tracing, vec![call(LATE + 3, 0, true)]);
    let id = served.question().id;
    served.agent.acknowledge(id, served.now);
    served.take_orders();
    let packets = served.packets(&mut client);
    let kinds: Vec<&Value> = packets.iter().map(|it| &it["type"]).collect();
    assert_eq!(kinds, ["enteredFrame", "stoppedTrace"]);
    let calls = served.calls();
    assert_eq!(calls, Some(tracing), "the other thread is traced on");
    served.agent.close(client.id);
    served.take_orders();
    assert_eq!(served.demand(), Demand::default());
}

#[test]
fn what_cannot_be_traced_is_an_error_and_nothing_is_left_of_it() {
    let mut served = Served::ready();
    let mut client = served.client();
    served.attach(&mut client, TRACE);
    let start = json!({
        "to": TRACE, "type": "startTrace", "trace": ["name"], "functions": ["nothing"],
    });
    for late in [false, true] {
        served.send(&client, &start);
        let tracing = served.calls().unwrap();
        if late {
            served.now += Duration::from_secs(31);
            served.agent.tick(served.now);
        } else {
            served.agent.untraced(&tracing, "no function fits");
            let id = served.question().id;
            served.agent.acknowledge(id, served.now);
        }
        served.take_orders();
        let answer = served.packets(&mut client).remove(0);
        assert_eq!(answer["error"], "unavailable");
        assert_eq!(answer["message"] == "no function fits", !late, "{answer}");
        assert_eq!(served.calls(), None);
        let stop = served.ask(&mut client, json!({ "to": TRACE, "type": "stopTrace" }));
        assert_eq!(stop["error"], "wrongState");
    }
    // The process ends while it is traced.
    let tracing = served.trace(&mut client, TRACE);
    served.traced(&tracing, vec![call(LATE, 0, true)]);
    served.agent.untraced(&tracing, "the process has ended");
    let packets = served.packets(&mut client);
    let said: Vec<(&Value, &Value)> = packets.iter().map(|it| (&it["type"], &it["why"])).collect();
    assert_eq!(said[1], (&json!("exitedFrame"), &json!("terminated")));
    assert_eq!(said[2], (&json!("stoppedTrace"), &json!("exited")));
}

#[test]
fn values_are_for_the_owner_of_the_process_alone() {
    for (uid, allowed, sees) in [
        (Some(1000), true, true),
        (Some(0), true, true),
        (Some(1001), true, false),
        (None, true, false),
        (Some(1000), false, false),
    ] {
        let mut served = Served::ready();
        served.agent.options.values = allowed;
        let mut client = served.client_of(uid);
        served.attach(&mut client, TRACE);
        let tracing = served.trace(&mut client, TRACE);
        assert_eq!(tracing.values, sees, "{uid:?}");
        served.traced(
            &tracing,
            vec![call(LATE, 0, true), call(LATE + 1, 0, false)],
        );
        let packets = served.packets(&mut client);
        assert_eq!(packets[0].get("arguments").is_some(), sees);
        assert_eq!(packets[1].get("return").is_some(), sees);
    }
}

#[test]
fn losses_are_told_where_they_are_lost() {
    let mut served = Served::ready();
    let mut client = served.client();
    served.attach(&mut client, TRACE);
    let tracing = served.trace(&mut client, TRACE);
    let lost = Event::Lost(Lost {
        cpu: None,
        from: Timestamp(1),
        to: Timestamp(2),
        count: 7,
        reason: LostReason::CallRingFull,
    });
    served.traced(&tracing, vec![lost]);
    served.agent.dropped_calls(&tracing, 5);
    let packets = served.packets(&mut client);
    let said: Vec<(&Value, &Value)> = packets
        .iter()
        .map(|it| (&it["count"], &it["why"]))
        .collect();
    assert_eq!(
        said,
        [
            (&json!(7), &json!("ringFull")),
            (&json!(5), &json!("slowServer"))
        ]
    );
}

#[test]
fn who_does_not_read_is_told_what_it_missed_and_closed() {
    let mut served = Served::ready();
    served.agent.options.limits.output_bytes = 1000;
    let mut client = served.client();
    served.attach(&mut client, TRACE);
    let tracing = served.trace(&mut client, TRACE);
    for at in 0..50 {
        served.traced(
            &tracing,
            vec![
                call(LATE + 2 * at, 0, true),
                call(LATE + 2 * at + 1, 0, false),
            ],
        );
    }
    served.agent.tick(served.now);
    assert!(!served.agent.output(client.id).unwrap().is_last());
    let told = served.packets(&mut client);
    served.agent.tick(served.now);
    served.take_orders();
    let end = served.packets(&mut client);
    assert_eq!(end[0]["type"], "lostFrames");
    assert_eq!(end[0]["count"].as_u64().unwrap() + told.len() as u64, 100);
    assert_eq!(
        (&end[1]["type"], &end[1]["why"]),
        (&json!("stoppedTrace"), &json!("slowClient"))
    );
    assert!(served.agent.output(client.id).unwrap().is_last());
    assert_eq!(served.calls(), None);
    assert_eq!(served.agent.summary().laggards, 1);
}

#[test]
fn all_that_waits_together_is_bounded() {
    let mut served = Served::ready();
    served.agent.options.limits.all_output_bytes = 20_000;
    let mut one = served.client();
    let mut two = served.client();
    served.attach(&mut one, TRACE);
    served.attach(&mut two, "server1.conn1.trace20.5.20");
    let tracing = served.trace(&mut one, TRACE);
    served.trace(&mut two, "server1.conn1.trace20.5.20");
    for at in 0..100 {
        served.traced(
            &tracing,
            vec![
                call(LATE + 2 * at, 0, true),
                call(LATE + 2 * at + 1, 0, false),
            ],
        );
        if at == 60 {
            served.packets(&mut two);
        }
    }
    served.agent.tick(served.now);
    let lags = [&one, &two].map(|it| served.agent.output(it.id).unwrap().lags());
    assert_eq!(lags, [true, false]);
}

#[test]
fn limits_hold() {
    let mut served = Served::ready();
    served.agent.options.limits.connections = 1;
    served.agent.options.limits.actors = 1;
    served.agent.options.limits.patterns = 2;
    let mut client = served.client();
    let address = "127.0.0.1:9".parse().unwrap();
    assert_eq!(served.agent.open(RdpPeer { address, uid: None }), None);
    served.attach(&mut client, TRACE);
    let other = "server1.conn0.trace20.5.21";
    let answer = served.ask(&mut client, json!({ "to": other, "type": "attach" }));
    assert_eq!(answer["error"], "limitExceeded");
    let start = json!({
        "to": TRACE, "type": "startTrace", "trace": ["name"], "functions": ["a", "b", "c"],
    });
    assert_eq!(served.ask(&mut client, start)["error"], "limitExceeded");
    for (property, value) in [
        ("functions", json!("a")),
        ("functions", json!([1])),
        ("frequency", json!(0)),
        ("frequency", json!("x")),
        ("frequency", json!(0.5)),
        ("inferred", json!(1)),
    ] {
        let mut start = json!({ "to": TRACE, "type": "startTrace", "trace": ["name"] });
        start[property] = value;
        assert_eq!(served.ask(&mut client, start)["error"], "badParameterType");
    }
}

#[test]
fn samples_tell_frames_where_no_function_is_named() {
    let mut served = Served::ready();
    let mut client = served.client();
    served.attach(&mut client, TRACE);
    let start = json!({
        "to": TRACE, "type": "startTrace", "trace": ["name"], "frequency": 1e5,
    });
    let answer = served.ask(&mut client, start);
    assert_eq!(answer["type"], "startedTrace");
    let sampling = served.demand().sampling.unwrap();
    assert_eq!(sampling.frequency_hz, 1000, "the limit");
    assert_eq!(sampling.threads, BTreeSet::from([Tid(20)]));
    let frame = Frame {
        kind: FrameKind::Native,
        module: None,
        address: 7,
    };
    let stack = Stack {
        parent: None,
        frame: FrameId::from_index(0),
    };
    let definitions = vec![
        Definition::Frame(FrameId::from_index(0), frame),
        Definition::Stack(StackId::from_index(0), stack),
    ];
    let sample = |thread: usize| {
        let thread = ThreadId::from_index(thread);
        let sample = Sample::new(Timestamp(LATE), thread, Cpu(0), SourceId::from_index(0), 1);
        Event::Sample(sample.with_stacks(None, Some(StackId::from_index(0))))
    };
    let source = profiler_model::Source {
        name: StringId::from_index(0),
        unit: Unit::Nanoseconds,
        frequency_hz: Some(1000),
        period: None,
    };
    let source = Definition::Source(SourceId::from_index(0), source);
    served.batch(vec![source], Vec::new());
    served.batch(definitions, vec![sample(0), sample(1)]);
    // Its name may come yet, whoever ends meanwhile, of the other thread and of this one.
    let ended = |at: u64, thread: usize| {
        Event::Process(ProcessEvent {
            at: Timestamp(at),
            thread: ThreadId::from_index(thread),
            change: ProcessChange::Exited,
        })
    };
    served.batch(Vec::new(), vec![ended(LATE + 1, 1), ended(LATE + 2, 0)]);
    served.now += Duration::from_secs(4);
    served.agent.tick(served.now);
    assert!(served.packets(&mut client).is_empty());
    let line = Line {
        function: FunctionId::from_index(0),
        line: 3,
    };
    let symbol = Definition::Symbol(FrameId::from_index(0), Symbol::Lines(Box::new([line])));
    served.batch(vec![symbol], Vec::new());
    served.agent.tick(served.now);
    let packets = served.packets(&mut client);
    let packets: Vec<&Value> = packets.iter().filter(|it| it["from"] == TRACE).collect();
    assert_eq!(packets.len(), 2);
    assert_eq!(packets[0]["name"], "work");
    assert_eq!(packets[0]["inferred"], true);
    assert_eq!(packets[1]["why"], "terminated");
    let stop = served.ask(&mut client, json!({ "to": TRACE, "type": "stopTrace" }));
    assert_eq!(stop["type"], "stoppedTrace");
    assert_eq!(served.demand().sampling, None);
}

/// What is known by name is told before the end, what is not is left out: it would be a function of its own.
#[test]
fn the_end_of_a_trace_does_not_wait_for_names() {
    let mut served = Served::ready();
    let mut client = served.client();
    served.attach(&mut client, TRACE);
    let start = json!({ "to": TRACE, "type": "startTrace", "trace": ["name"] });
    served.ask(&mut client, start);
    let mut definitions = vec![Definition::Source(
        SourceId::from_index(0),
        profiler_model::Source {
            name: StringId::from_index(0),
            unit: Unit::Nanoseconds,
            frequency_hz: Some(99),
            period: None,
        },
    )];
    // Three places in one function, of which the second has no name yet.
    for index in 0..3 {
        let frame = Frame {
            kind: FrameKind::Native,
            module: None,
            address: index as u64,
        };
        let (id, parent) = (FrameId::from_index(index), None);
        definitions.push(Definition::Frame(id, frame));
        definitions.push(Definition::Stack(
            StackId::from_index(index),
            Stack { parent, frame: id },
        ));
        let line = Line {
            function: FunctionId::from_index(0),
            line: 3,
        };
        if index != 1 {
            definitions.push(Definition::Symbol(id, Symbol::Lines(Box::new([line]))));
        }
    }
    let sample = |at: u64, stack: usize| {
        let (thread, source) = (ThreadId::from_index(0), SourceId::from_index(0));
        let sample = Sample::new(Timestamp(at), thread, Cpu(0), source, 1);
        Event::Sample(sample.with_stacks(None, Some(StackId::from_index(stack))))
    };
    let samples = vec![sample(LATE, 0), sample(LATE + 1, 1), sample(LATE + 2, 2)];
    served.batch(definitions, samples);
    served.send(&client, &json!({ "to": TRACE, "type": "stopTrace" }));
    let packets = served.packets(&mut client);
    let kinds: Vec<(&Value, &Value)> = packets
        .iter()
        .map(|it| (&it["type"], &it["name"]))
        .collect();
    assert_eq!(
        kinds,
        [
            (&json!("enteredFrame"), &json!("work")),
            (&json!("stoppedTrace"), &json!("Trace 1")),
        ]
    );
    served.now += Duration::from_secs(6);
    served.agent.tick(served.now);
    assert!(served.packets(&mut client).is_empty());
}

#[test]
fn those_who_listed_are_told_once_that_there_are_others() {
    let mut served = Served::ready();
    let mut client = served.client();
    served.ask(
        &mut client,
        json!({ "to": "root", "type": "listProcesses" }),
    );
    served.agent.tick(served.now);
    assert!(served.packets(&mut client).is_empty());
    let exited = Event::Process(ProcessEvent {
        at: Timestamp(9),
        thread: ThreadId::from_index(1),
        change: ProcessChange::Exited,
    });
    served.batch(Vec::new(), vec![exited]);
    served.agent.tick(served.now);
    let packets = served.packets(&mut client);
    let kinds: Vec<&Value> = packets.iter().map(|it| &it["type"]).collect();
    assert_eq!(kinds, ["processListChanged"]);
    served.agent.tick(served.now);
    assert!(served.packets(&mut client).is_empty());
    let process = served.ask(
        &mut client,
        json!({ "to": "root", "type": "getProcess", "id": PID }),
    );
    assert_eq!(process["form"]["threads"].as_array().unwrap().len(), 1);
}

#[test]
fn a_capture_that_is_there_at_once_is_told_from_its_beginning() {
    let mut served = Served::new(RdpOptions {
        replay: Some(Replay::AtOnce),
        ..options()
    });
    let mut definitions = definitions();
    let traced = Traced {
        kind: TracedKind::Function,
        entry_offset: 0,
        returns: ReturnMode::Instructions,
        cost_ns: 0,
        line: 0,
        parameters: Box::new([]),
        result: None,
    };
    definitions.push(Definition::Traced(FunctionId::from_index(0), traced));
    let events = (0..10).map(|at| call(100 + at, 0, at % 2 == 0)).collect();
    served.batch(definitions, events);
    served.agent.ready(served.now);
    let mut client = served.client();
    assert!(!served.demand().attached);
    for _ in 0..2 {
        served.attach(&mut client, TRACE);
        let start = json!({ "to": TRACE, "type": "startTrace", "trace": ["name", "time"] });
        assert_eq!(served.ask(&mut client, start)["type"], "startedTrace");
        assert!(served.demand().attached);
        while served.agent.play(client.id) {}
        let packets = served.packets(&mut client);
        assert_eq!(packets.len(), 10);
        assert_eq!(packets[0]["time"], 0.0);
        let stop = json!({ "to": TRACE, "type": "detach" });
        served.send(&client, &stop);
        assert_eq!(served.packets(&mut client).len(), 2);
        assert!(!served.demand().attached);
    }
}

#[path = "marker_tests.rs"]
mod markers;
