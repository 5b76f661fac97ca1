//! What programs say by their markers: hits -> packets and demands.

use super::*;
use crate::rdp::agent::marks::SAMPLES;
use crate::rdp::markers::MOST;

/// Definitions of a stream of hits: functions 1 and 2 are the markers.
fn marker_definitions() -> Vec<Definition> {
    let mut all = definitions();
    for (index, name) in [(1, "profiler:start_trace"), (2, "profiler:stop_trace")] {
        let string = StringId::from_index(9 + index);
        all.push(Definition::String(string, name.into()));
        let function = Function {
            name: string,
            linkage_name: None,
            module: None,
            file: None,
            line: 0,
            start: Some(index as u64 * 16),
            size: None,
        };
        all.push(Definition::Function(
            FunctionId::from_index(index),
            function,
        ));
    }
    all
}

fn hit(at: u64, thread: usize, function: usize, values: &[Held]) -> Event {
    Event::Call(Call {
        at: Timestamp(at),
        thread: ThreadId::from_index(thread),
        cpu: Cpu(0),
        function: FunctionId::from_index(function),
        stack: 0,
        depth: 0,
        edge: CallEdge::Hit(Some(values.into())),
        later: None,
    })
}

fn text(text: &str) -> Held {
    Held::Text(text.into(), false)
}

fn starts(at: u64, name: Held, types: Held) -> Event {
    hit(at, 0, 1, &[name, types])
}

fn stops(at: u64, name: Held) -> Event {
    hit(at, 0, 2, &[name])
}

const NULL: Held = Held::Unreadable(0);

impl Served {
    /// A server that traces `work`, and a client that is attached.
    fn attached() -> (Served, Peer) {
        let mut served = Served::new(RdpOptions {
            functions: vec!["work".to_owned()],
            ..options()
        });
        served.batch(definitions(), Vec::new());
        let mut client = served.client();
        served.attach(&mut client, TRACE);
        (served, client)
    }

    /// The program raises these.
    fn raised(&mut self, events: Vec<Event>) {
        let hook = self.wanted(true).unwrap();
        let batch = Batch {
            epoch: 1,
            definitions: marker_definitions(),
            events,
        };
        self.agent.traced(&hook, batch, self.now);
        self.take_orders();
    }
}

/// What packets are, in short: type, name or depth.
fn short(packets: &[Value]) -> Vec<String> {
    let short = |packet: &Value| {
        let what = ["name", "why"].iter().find_map(|it| packet[*it].as_str());
        format!(
            "{} {}",
            packet["type"].as_str().unwrap(),
            what.unwrap_or("-")
        )
    };
    packets.iter().map(short).collect()
}

/// An answer to `attach` means that the client is told from then on; markers are watched as long as somebody is
/// attached, and once for all who are.
#[test]
fn who_is_attached_is_told_from_then_on() {
    let mut served = Served::ready();
    let mut one = served.client();
    let mut two = served.client();
    served.send(&one, &json!({ "to": TRACE, "type": "attach" }));
    assert!(served.packets(&mut one).is_empty());
    let hook = served.wanted(true).unwrap();
    assert_eq!(served.question().place, Place::Calls(hook.clone()));
    assert_eq!((hook.process, hook.values), (Pid(PID), true));
    served.acknowledge();
    assert_eq!(served.packets(&mut one)[0]["type"], "attached");
    let again = served.ask(&mut one, json!({ "to": TRACE, "type": "attach" }));
    assert_eq!(again["error"], "wrongState");
    // They are watched already.
    let second = "server1.conn1.trace20.5.21";
    let answer = served.ask(&mut two, json!({ "to": second, "type": "attach" }));
    assert_eq!(answer["type"], "attached");
    assert_eq!(served.wanted(true), Some(hook.clone()));
    served.ask(&mut one, json!({ "to": TRACE, "type": "detach" }));
    assert_eq!(served.wanted(true), Some(hook));
    served.agent.close(two.id);
    served.take_orders();
    assert_eq!(served.wanted(true), None);

    // A program without markers is attached to all the same.
    served.send(&one, &json!({ "to": TRACE, "type": "attach" }));
    let hook = served.wanted(true).unwrap();
    served.agent.untraced(&hook, "it has none");
    served.acknowledge();
    assert_eq!(served.packets(&mut one)[0]["type"], "attached");
}

/// A trace begins and ends where the program says so: calls of before its end come before that is told, later ones not
/// at all.
#[test]
fn calls_are_told_on_their_side_of_a_marker() {
    let (mut served, mut client) = Served::attached();
    assert_eq!(served.calls(), None);
    served.raised(vec![starts(1000, text("foo"), text("name, return"))]);
    let packets = served.packets(&mut client);
    assert_eq!(short(&packets), ["startedTrace foo"]);
    assert_eq!(packets[0]["why"], "console.startTrace");
    assert_eq!(packets[0]["tracing"], json!(["name", "return"]));
    let calls = served.calls().unwrap();
    assert!(calls.functions.contains("work") && !calls.awaited);
    served.acknowledge();
    // Until here nobody saw its calls.
    let lost = served.packets(&mut client);
    assert_eq!(short(&lost), ["lostFrames notYetAttached"]);
    assert_eq!(lost[0]["count"], Value::Null);

    served.traced(&calls, vec![call(1500, 0, true)]);
    served.raised(vec![stops(2000, text("foo"))]);
    // Calls of before may be on their way.
    assert_eq!(short(&served.packets(&mut client)), ["enteredFrame work"]);
    served.traced(&calls, vec![call(1900, 0, false), call(2100, 0, true)]);
    let packets = served.packets(&mut client);
    assert_eq!(short(&packets), ["exitedFrame return", "stoppedTrace foo"]);
    assert_eq!(packets[1]["why"], "console.stopTrace");
    assert_eq!(packets[0]["sequence"], 1);
    assert_eq!(served.calls(), None, "the probes are still there");

    // With nothing on its way, the answer tells so.
    served.raised(vec![starts(3000, NULL, NULL), stops(3500, NULL)]);
    let started = served.packets(&mut client);
    assert_eq!(short(&started), ["startedTrace Trace 1"]);
    let eight = started[0]["tracing"].as_array().unwrap().len();
    assert_eq!(eight, 8);
    served.acknowledge();
    let stopped = served.packets(&mut client);
    assert_eq!(
        short(&stopped),
        ["lostFrames notYetAttached", "stoppedTrace Trace 1"]
    );
    let idle = served.ask(&mut client, json!({ "to": TRACE, "type": "stopTrace" }));
    assert_eq!(idle["error"], "wrongState");
}

/// A trace of the program beside one of the client: the union of their types, one sequence, and either ends the other's
/// if it is the last one.
#[test]
fn programs_and_clients_share_a_sequence() {
    let (mut served, mut client) = Served::attached();
    let calls = served.trace(&mut client, TRACE);
    served.traced(&calls, vec![call(LATE, 0, true)]);
    served.raised(vec![starts(LATE + 1, text("mine"), text("depth"))]);
    served.traced(&calls, vec![call(LATE + 2, 0, false)]);
    let packets = served.packets(&mut client);
    assert_eq!(
        short(&packets),
        [
            "enteredFrame work",
            "startedTrace mine",
            "exitedFrame return"
        ]
    );
    assert_eq!(
        (&packets[2]["sequence"], &packets[2]["depth"]),
        (&json!(1), &json!(0))
    );
    // One that the client stops is not there for the program any more, and the other way round.
    served.raised(vec![
        stops(LATE + 3, text("nobody's")),
        stops(LATE + 4, NULL),
    ]);
    served.acknowledge();
    assert_eq!(short(&served.packets(&mut client)), ["stoppedTrace mine"]);
    served.raised(vec![stops(LATE + 5, text("Trace 1"))]);
    served.acknowledge();
    assert_eq!(
        short(&served.packets(&mut client)),
        ["stoppedTrace Trace 1"]
    );
    assert_eq!(served.calls(), None);
}

/// A request finds the state that the program has left, though its calls were still on their way.
#[test]
fn requests_come_behind_what_the_program_has_said() {
    let (mut served, mut client) = Served::attached();
    let calls = served.trace(&mut client, TRACE);
    served.raised(vec![stops(LATE, text("Trace 1"))]);
    served.send(&client, &json!({ "to": TRACE, "type": "stopTrace" }));
    assert!(served.packets(&mut client).is_empty());
    served.traced(&calls, vec![call(LATE - 1, 0, true)]);
    served.acknowledge();
    let packets = served.packets(&mut client);
    assert_eq!(
        short(&packets[..2]),
        ["enteredFrame work", "stoppedTrace Trace 1"]
    );
    assert_eq!(packets[2]["error"], "wrongState");
}

/// What is wrong with a marker starts nothing, and costs no connection; threads and processes are told apart.
#[test]
fn what_cannot_be_started_is_not() {
    let (mut served, mut client) = Served::attached();
    served.raised(vec![
        starts(10, text("a"), text("name,colour")),
        starts(11, Held::Unreadable(0x10), NULL),
        hit(12, 1, 1, &[text("other thread"), NULL]),
        hit(13, 0, 0, &[text("no marker of ours")]),
        stops(14, NULL),
    ]);
    served.acknowledge();
    assert!(served.packets(&mut client).is_empty());
    // A name that is cut is one, no types are the specification's, and separators may be what they like.
    let cut = Held::Text("long".into(), true);
    served.raised(vec![starts(20, cut, text(" time,\tname ,"))]);
    let started = served.packets(&mut client);
    assert_eq!(started[0]["name"], "long");
    assert_eq!(started[0]["tracing"], json!(["name", "time"]));
    // The functions are not there.
    let calls = served.calls().unwrap();
    served.agent.untraced(&calls, "no such function");
    served.take_orders();
    let stopped = served.packets(&mut client);
    assert_eq!(stopped[0]["why"], "unavailable");
    assert_eq!(served.calls(), None);
}

/// A program that raises more than can be told costs no more than that.
#[test]
fn marks_that_wait_are_limited() {
    let (mut served, mut client) = Served::attached();
    for _ in 0..2 * MOST {
        served.raised(vec![starts(10, text("a"), NULL), stops(20, NULL)]);
    }
    served.acknowledge();
    served.acknowledge();
    let packets = served.packets(&mut client);
    assert!(packets.len() <= 4 + MOST, "{}", packets.len());
    assert!(packets.len() > MOST / 2);
}

/// Where frames are inferred, the end waits until the samples of before can be here.
#[test]
fn samples_of_before_the_end_are_waited_for() {
    let mut served = Served::ready();
    let mut client = served.client();
    served.attach(&mut client, TRACE);
    served.raised(vec![starts(1000, text("foo"), NULL), stops(2000, NULL)]);
    assert_eq!(short(&served.packets(&mut client)), ["startedTrace foo"]);
    assert!(served.demand().sampling.is_some());
    served.now += SAMPLES / 2;
    served.agent.tick(served.now);
    assert!(served.packets(&mut client).is_empty());
    served.now += SAMPLES;
    served.agent.tick(served.now);
    served.take_orders();
    assert_eq!(short(&served.packets(&mut client)), ["stoppedTrace foo"]);
    assert!(served.demand().sampling.is_none());
}
