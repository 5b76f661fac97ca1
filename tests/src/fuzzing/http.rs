//! Clients of sessions over HTTP: any bodies, for sessions in any state, between batches of a session.
//!
//! Each line is a request: its first byte says which, the rest is its body. What is told must be JSON, of a trace its tables
//! must fit together, and when all is over nothing may be kept. What does not belong here: heads of requests (hyper).

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use profiler_model::Batch;
use profiler_serve::admission::Admission;
use profiler_serve::front::{Order, Replay};
use profiler_serve::http::{Agent, HttpLimits, HttpOptions, Policy};
use profiler_serve::machine::NoMachine;
use serde_json::Value;

use super::seeds::canonical_batches;

/// The users of requests.
const USERS: [u32; 2] = [0, 1000];

fn batches() -> &'static [Batch] {
    static BATCHES: OnceLock<Vec<Batch>> = OnceLock::new();
    BATCHES.get_or_init(canonical_batches)
}

/// Gives a server requests: how many were carried out. The first byte says how it serves.
pub fn http(data: &[u8]) -> usize {
    let Some((&mode, data)) = data.split_first() else {
        return 0;
    };
    let text = String::from_utf8_lossy(data);
    let policy = text.lines().next().unwrap_or_default();
    let options = HttpOptions {
        admission: Admission::only([]),
        policy: Policy::read(policy, |_| Some(7)).unwrap_or_default(),
        origins: Vec::new(),
        token: None,
        tls: None,
        replay: [None, Some(Replay::Timed), Some(Replay::AtOnce), None][usize::from(mode & 3)],
        limits: HttpLimits {
            sessions: 8,
            samples: 4096,
            threads: 4,
            ..HttpLimits::default()
        },
    };
    let mut agent = Agent::new(options, Box::new(NoMachine));
    let mut now = Instant::now();
    let mut ids: Vec<String> = Vec::new();
    let mut batches = batches().iter();
    let mut done = 0;
    for line in text.lines().skip(1).take(256) {
        let mut bytes = line.bytes();
        let what = bytes.next().unwrap_or(b' ');
        let user = USERS[usize::from(what & 0x20 != 0)];
        let rest = line.get(1..).unwrap_or_default();
        let number: usize = rest.trim().parse().unwrap_or(0);
        let id = ids.get(number).cloned().unwrap_or_default();
        let said = match what.to_ascii_lowercase() {
            b'n' => {
                let body = serde_json::from_str(rest).unwrap_or(Value::Null);
                let long_ago = now.checked_sub(Duration::from_secs(60)).unwrap_or(now);
                let about = agent.create(user, &body, long_ago, now);
                let about = about.unwrap_or_else(|_| panic!("it has waited long enough"));
                about.inspect(|about| {
                    ids.extend(about["id"].as_str().map(str::to_owned));
                })
            }
            b'p' => agent.pause(user, &id, now),
            b'r' => agent.resume(user, &id, now),
            b'g' => agent.state(user, &id, now),
            b'd' => agent.discard(user, &id, now).map(|()| Value::Null),
            b'f' => agent.force(user, &id, now).map(|mut forcing| {
                now += Duration::from_secs(20);
                let _ = agent.forced(&mut forcing, now);
                answer(&mut agent);
                let _ = agent.forced(&mut forcing, now);
                Value::Null
            }),
            // At once, or as of a while ago.
            how @ (b's' | b'c') => {
                let ago = agent.now_ns().saturating_sub(5_000_000);
                let ticket = agent.stop(user, &id, (how == b'c').then_some(ago), now);
                ticket.map(|ticket| {
                    answer(&mut agent);
                    now += Duration::from_secs(20);
                    match agent.trace(&ticket, now) {
                        Ok(Ok(trace)) => checked(&trace),
                        other => panic!("{other:?}"),
                    }
                })
            }
            _ => {
                match batches.next() {
                    Some(batch) => agent.batch(batch.clone()),
                    None => agent.ready(),
                }
                Ok(Value::Null)
            }
        };
        done += usize::from(said.is_ok());
        answer(&mut agent);
        now += Duration::from_millis(100);
        agent.tick(now);
    }
    for id in &ids {
        let _ = agent.discard(0, id, now);
    }
    assert_eq!(agent.kept_samples(), 0);
    assert_eq!(agent.list(0), Value::Array(Vec::new()));
    done
}

/// Whoever runs the session does what is wanted.
fn answer(agent: &mut Agent) {
    for order in agent.orders() {
        if let Order::Ask(question) = order {
            agent.acknowledge(question.id);
        }
    }
}

/// A trace, or those of all threads, which must be whole.
fn checked(json: &[u8]) -> Value {
    let said: Value = serde_json::from_slice(json).unwrap_or_else(|error| panic!("{error}"));
    let alone = [said.clone()];
    let traces: Vec<&Value> = match said["traces"].as_array() {
        Some(traces) => traces.iter().map(|of| &of["trace"]).collect(),
        None => alone.iter().collect(),
    };
    for trace in traces {
        let len = |name: &str| trace[name].as_array().map_or(0, Vec::len) as u64;
        let fits = |value: &Value, most: u64| value.as_u64().is_none_or(|id| id < most);
        let (frames, stacks, resources) = (len("frames"), len("stacks"), len("resources"));
        let list = |name: &str| trace[name].as_array().into_iter().flatten();
        assert!(list("frames").all(|frame| fits(&frame["resourceId"], resources)));
        for (index, stack) in list("stacks").enumerate() {
            assert!(fits(&stack["frameId"], frames) && fits(&stack["parentId"], index as u64));
        }
        let mut before = 0.0;
        for sample in list("samples") {
            let at = sample["timestamp"].as_f64().unwrap_or(-1.0);
            assert!(at >= before && fits(&sample["stackId"], stacks), "{sample}");
            before = at;
        }
    }
    said
}

pub(super) mod seeds {
    //! What the fuzzer begins with.

    /// Requests of clients, one of each kind.
    pub(in crate::fuzzing) fn requests() -> Vec<Vec<u8>> {
        let policy =
            r#"{"rules":[{"users":["x"],"processes":["web*"],"allow":true}],"private":["*.so"]}"#;
        let requests = [
            "b\nb\nb",
            r#"N{"target":{"pid":100},"sampleInterval":0.5,"maxBufferSize":50,"context":"a"}"#,
            r#"N{"target":{"tid":101},"sampleInterval":1,"maxBufferSize":3}"#,
            r#"n{"target":200,"sampleInterval":7,"maxBufferSize":0}"#,
            r#"N{"target":{"pid":0},"sampleInterval":-1,"maxBufferSize":1e99}"#,
            "b\nb\nF0\nP0\nb\nR0\nG1\nb\nb\nb\nb\nb\nb\nS0\nS0\nS1\nD2\nG9",
        ];
        let requests = requests.join("\n");
        let with = |mode: u8| [&[mode][..], format!("{policy}\n{requests}").as_bytes()].concat();
        (0..3).map(with).collect()
    }
}
