//! The states of the actor, all its errors, and what packets say.

use serde_json::json;

use super::*;
use crate::rdp::Values;

/// Packets as JSON.
#[derive(Default)]
struct Seen(Vec<Json>);

impl PacketSink for Seen {
    fn put(&mut self, packet: &impl Serialize) {
        self.0.push(serde_json::to_value(packet).unwrap());
    }
}

struct Client {
    actor: TraceActor,
    now_ns: u64,
}

impl Client {
    fn new() -> Client {
        Client {
            actor: TraceActor::new("t".into(), Map::new()),
            now_ns: 1_000_000,
        }
    }

    fn attached() -> Client {
        let mut client = Client::new();
        client.ask(json!({"type": "attach"}));
        client
    }

    fn ask_all(&mut self, request: Json) -> Vec<Json> {
        let mut seen = Seen::default();
        let packet = request.as_object().unwrap();
        let kind = request["type"].as_str().unwrap();
        let reply = self.actor.request(kind, packet, self.now_ns, &mut seen);
        assert_eq!(reply, TraceReply::Answered);
        seen.0
    }

    fn ask(&mut self, request: Json) -> Json {
        let mut all = self.ask_all(request);
        assert_eq!(all.len(), 1);
        assert_eq!(all[0]["from"], "t");
        all.remove(0)
    }

    fn start(&mut self, name: &str, types: &[&str]) -> String {
        let said = self.ask(json!({"type": "startTrace", "trace": types, "name": name}));
        assert_eq!(said["type"], "startedTrace", "{said}");
        assert_eq!(said["why"], "requested");
        assert_eq!(said.get("tracing"), None);
        said["name"].as_str().unwrap().to_owned()
    }

    fn stop(&mut self, name: Json) -> String {
        let said = self.ask(json!({"type": "stopTrace", "name": name}));
        assert_eq!(said["type"], "stoppedTrace", "{said}");
        assert_eq!(said["why"], "requested");
        said["name"].as_str().unwrap().to_owned()
    }

    fn error(&mut self, request: Json) -> String {
        let said = self.ask(request);
        assert!(said["message"].is_string() && said.get("type").is_none());
        said["error"].as_str().unwrap().to_owned()
    }

    fn enter(&mut self, function: u64, depth: u32) -> Option<Json> {
        let mut seen = Seen::default();
        let frame = Entered {
            at_ns: self.now_ns,
            ..entered(function, depth)
        };
        self.actor.entered(&frame, &mut seen);
        seen.0.pop()
    }

    fn exit(&mut self, function: u64, depth: u32, why: Why) -> Vec<Json> {
        let mut seen = Seen::default();
        let frame = Exited {
            function,
            depth,
            goroutine: 0,
            at_ns: self.now_ns,
            why,
            value: Some(value(7)),
            inferred: false,
        };
        self.actor.exited(&frame, &mut seen);
        seen.0
    }
}

fn value(number: i128) -> Values {
    let mut values = Values::default();
    values.push(Values::integer(number));
    values
}

fn entered(function: u64, depth: u32) -> Entered<'static> {
    let place = |path: &'static str, line| Place {
        path: path.into(),
        line,
    };
    Entered {
        function,
        depth,
        goroutine: 0,
        at_ns: 0,
        name: "work<T>".into(),
        callsite: Some(place("/src/main 1.c", 12)),
        location: Some(place("lib.c", 0)),
        parameter_names: Some(vec!["a".into()]),
        arguments: Some(value(3)),
        inferred: false,
    }
}

const ALL: [&str; 12] = [
    "name",
    "callsite",
    "time",
    "parameterNames",
    "arguments",
    "return",
    "throw",
    "yield",
    "location",
    "depth",
    "hitCount",
    "blackBoxed",
];

#[test]
fn attached_tells_the_trace_types() {
    let said = Client::new().ask(json!({"type": "attach"}));
    assert_eq!(
        said,
        json!({"from": "t", "type": "attached", "traceTypes": ALL})
    );
}

#[test]
fn requests_fit_the_state() {
    let start = || json!({"type": "startTrace", "trace": []});
    let mut client = Client::new();
    for request in [
        json!({"type": "detach"}),
        start(),
        json!({"type": "stopTrace"}),
    ] {
        assert_eq!(client.error(request), "wrongState");
    }
    client.ask(json!({"type": "attach"}));
    assert_eq!(client.error(json!({"type": "attach"})), "wrongState");
    assert_eq!(client.error(json!({"type": "stopTrace"})), "wrongState");
    client.start("", &[]);
    assert_eq!(client.error(json!({"type": "attach"})), "wrongState");
    assert_eq!(client.stop(Json::Null), "Trace 1");
    assert_eq!(client.error(json!({"type": "stopTrace"})), "wrongState");
    let said = client.ask(json!({"type": "detach"}));
    assert_eq!(said, json!({"from": "t", "type": "detached"}));
    assert_eq!(client.error(json!({"type": "detach"})), "wrongState");
    client.ask(json!({"type": "attach"}));
}

#[test]
fn what_is_wrong_with_a_request_is_said() {
    let mut client = Client::attached();
    for (request, error) in [
        (json!({"type": "startTrace"}), "missingParameter"),
        (
            json!({"type": "startTrace", "trace": "name"}),
            "badParameterType",
        ),
        (
            json!({"type": "startTrace", "trace": [1]}),
            "badParameterType",
        ),
        (
            json!({"type": "startTrace", "trace": ["name", "x"]}),
            "noSuchTraceType",
        ),
        (
            json!({"type": "startTrace", "trace": [], "name": 1}),
            "badParameterType",
        ),
    ] {
        assert_eq!(client.error(request), error);
        assert!(!client.actor.is_tracing());
    }
    client.start("a", &[]);
    assert_eq!(
        client.error(json!({"type": "stopTrace", "name": "b"})),
        "noSuchTrace"
    );
    assert_eq!(
        client.error(json!({"type": "stopTrace", "name": []})),
        "badParameterType"
    );
    let reply = client
        .actor
        .request("dance", &Map::new(), 0, &mut Seen::default());
    assert_eq!(reply, TraceReply::Unrecognized);
}

#[test]
fn a_trace_replaces_that_of_its_name() {
    let mut client = Client::attached();
    for name in ["foo", "foo", "bar", "baz"] {
        assert_eq!(client.start(name, &[]), name);
    }
    assert_eq!(client.stop(json!("bar")), "bar");
    assert_eq!(client.stop(json!(null)), "baz");
    assert_eq!(client.stop(json!("")), "foo");
    assert!(!client.actor.is_tracing());
    assert_eq!(client.error(json!({"type": "stopTrace"})), "wrongState");
}

#[test]
fn generated_names_are_unique() {
    let mut client = Client::attached();
    client.start("Trace 7", &[]);
    let mut names: Vec<String> = (0..50).map(|_| client.start("", &[])).collect();
    assert!(!names.contains(&"Trace 7".to_owned()));
    for name in names.iter().rev() {
        assert_eq!(client.stop(Json::Null), *name);
    }
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), 50);
}

#[test]
fn traces_are_limited() {
    let mut client = Client::attached();
    for _ in 0..MAX_TRACES {
        client.start("", &[]);
    }
    let more = json!({"type": "startTrace", "trace": []});
    assert_eq!(client.error(more), "limitExceeded");
    // One that replaces another has room.
    client.start("Trace 1", &[]);
}

#[test]
fn all_traces_stop_when_the_client_detaches() {
    let mut client = Client::attached();
    client.start("a", &[]);
    client.start("b", &[]);
    let said = client.ask_all(json!({"type": "detach"}));
    let stopped =
        |name| json!({"from": "t", "type": "stoppedTrace", "why": "detached", "name": name});
    assert_eq!(said[0], json!({"from": "t", "type": "detached"}));
    assert_eq!(said[1..], [stopped("b"), stopped("a")]);
    assert_eq!(client.enter(1, 0), None);
}

#[test]
fn packets_have_what_was_asked_for() {
    let mut client = Client::attached();
    client.start("", &ALL);
    client.now_ns += 1_500_000;
    assert_eq!(
        client.enter(1, 0),
        Some(json!({
            "from": "t", "type": "enteredFrame", "sequence": 0, "name": "work<T>", "time": 1.5,
            "callsite": {"url": "file:///src/main%201.c", "line": 12},
            "location": {"url": "file:lib.c"}, "depth": 0, "hitCount": 1, "blackBoxed": false,
            "parameterNames": ["a"], "arguments": {"values": [3], "objectPool": []},
        }))
    );
    client.now_ns += 1;
    assert_eq!(
        client.exit(1, 0, Why::Return),
        [json!({
            "from": "t", "type": "exitedFrame", "sequence": 1, "why": "return", "time": 1.500001, "depth": 0,
            "return": {"value": 7, "objectPool": []},
        })]
    );
    for (why, name, property) in [
        (Why::Exception, "exception", Some("throw")),
        (Why::Yield, "yield", Some("yield")),
        (Why::Terminated, "terminated", None),
    ] {
        client.enter(1, 0);
        let said = client.exit(1, 0, why).remove(0);
        assert_eq!(said["why"], name);
        let values = ["return", "throw", "yield"];
        let there: Vec<&str> = values
            .into_iter()
            .filter(|it| said.get(it).is_some())
            .collect();
        assert_eq!(there, property.into_iter().collect::<Vec<_>>());
    }
    client.stop(Json::Null);
    client.start("", &[]);
    assert_eq!(
        client.enter(1, 0),
        Some(json!({"from": "t", "type": "enteredFrame", "sequence": 0}))
    );
    assert_eq!(
        client.exit(1, 0, Why::Return),
        [json!({"from": "t", "type": "exitedFrame", "sequence": 1, "why": "return"})]
    );
}

#[test]
fn several_traces_share_a_sequence_and_their_types() {
    let mut client = Client::attached();
    client.start("a", &["name"]);
    client.enter(1, 0);
    client.now_ns += 2_000_000;
    client.start("b", &["time", "hitCount"]);
    let said = client.enter(1, 1).unwrap();
    assert_eq!(said["sequence"], 1);
    assert_eq!(said["name"], "work<T>");
    // Since tracing began, not since the second trace did.
    assert_eq!(said["time"], 2.0);
    assert_eq!(said["hitCount"], 2);
    client.stop(json!("a"));
    let said = client.enter(1, 2).unwrap();
    assert_eq!((said.get("name"), &said["sequence"]), (None, &json!(2)));
    client.stop(json!("b"));
    client.start("c", &["hitCount"]);
    let said = client.enter(1, 0).unwrap();
    assert_eq!(
        (&said["sequence"], &said["hitCount"]),
        (&json!(0), &json!(1))
    );
}

#[test]
fn only_frames_that_were_entered_are_left() {
    let mut client = Client::attached();
    assert_eq!(client.enter(1, 0), None);
    client.start("", &["depth"]);
    assert!(client.exit(1, 0, Why::Return).is_empty());
    for (function, depth) in [(1, 0), (2, 1), (1, 2)] {
        client.enter(function, depth);
    }
    // The exit of the innermost was lost.
    let said = client.exit(2, 1, Why::Return);
    let what = |said: &Json| {
        (
            said["why"].as_str().unwrap().to_owned(),
            said["depth"].as_u64(),
            said.get("inferred").is_some(),
        )
    };
    assert_eq!(
        said.iter().map(what).collect::<Vec<_>>(),
        [
            ("terminated".to_owned(), Some(2), true),
            ("return".to_owned(), Some(1), false)
        ]
    );
    assert!(client.exit(1, 1, Why::Return).is_empty());
    let mut seen = Seen::default();
    client.actor.terminated(client.now_ns, &mut seen);
    assert_eq!(seen.0.len(), 1);
    assert_eq!(seen.0[0]["why"], "terminated");
    client.actor.terminated(client.now_ns, &mut seen);
    assert_eq!(seen.0.len(), 1);
}

#[test]
fn programs_start_and_stop_traces() {
    let mut client = Client::new();
    let mut seen = Seen::default();
    let types = TraceTypes::NONE.with(TraceType::Name);
    client.actor.started_by_program(None, types, 0, &mut seen);
    client.actor.stopped_by_program(None, &mut seen);
    assert!(seen.0.is_empty());
    client.ask(json!({"type": "attach"}));
    client.actor.started_by_program(None, types, 0, &mut seen);
    client.actor.stopped_by_program(Some("x"), &mut seen);
    client.actor.stopped_by_program(Some("Trace 1"), &mut seen);
    assert_eq!(
        seen.0,
        [
            json!({"from": "t", "type": "startedTrace", "tracing": ["name"], "why": "console.startTrace", "name": "Trace 1"}),
            json!({"from": "t", "type": "stoppedTrace", "why": "console.stopTrace", "name": "Trace 1"}),
        ]
    );
    assert!(!client.actor.is_tracing());
}
