//! The receiver of Bytefrog agents where peers are many, or its own side is slow.
#![allow(clippy::unwrap_used)] // A test fails by it.

use std::io::Write;
use std::sync::mpsc::{self, Sender, SyncSender};
use std::time::{Duration, Instant};

use crate::hq_shared::*;
use profiler_serve::hq::{BreakCause, Hq, HqOptions, Order, Receiver, RunReport};
use profiler_tests::Outcome;
use profiler_tests::setting::Setting;
use profiler_wire::bytefrog::{AgentMessage, Configuration, HqMessage, Mode};

#[test]
fn the_end_of_a_run_is_told_after_a_flood_of_strangers() {
    let (hq, _) = hq(HqOptions::default());
    let (control, run) = agent(hq.address());
    let one = data(hq.address(), run);
    finish(control, vec![one]);
    // More than the events that wait.
    for _ in 0..1200 {
        let mut stranger = Connection::open(hq.address());
        stranger.send(&[AgentMessage::Hello { version: 9 }]);
        while stranger.next().is_some() {}
    }
    assert_eq!(ended(&hq).failure, None);
}

#[test]
fn connections_that_are_closed_leave_nothing_open() {
    const CONNECTIONS: usize = 400;
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let (hq, _) = hq(HqOptions::default());
    let (control, run) = agent(hq.address());
    let stays = data(hq.address(), run);
    let before = open();
    for _ in 0..CONNECTIONS {
        drop(data(hq.address(), run));
    }
    let deadline = Instant::now() + LIMIT;
    // Other tests of this process have a few at the same time.
    while open() > before + CONNECTIONS / 4 {
        assert!(Instant::now() < deadline, "{before} before, {}", open());
        std::thread::sleep(Duration::from_millis(10));
    }
    finish(control, vec![stays]);
    assert_eq!(ended(&hq).failure, None);
}

/// Takes no message before it is allowed to, like a disk that hangs; then it has not kept it.
struct Slow {
    takes: Sender<()>,
    go: mpsc::Receiver<()>,
}

impl Receiver for Slow {
    fn message(&mut self, _: &AgentMessage<'_>) {
        self.takes.send(()).unwrap();
        // Who is gone allows everything.
        let _ = self.go.recv();
    }

    fn data_break(&mut self, _: BreakCause) {}

    fn missing(&mut self, _: u64) {}

    fn end(&mut self, _: &mut RunReport) -> Result<(), String> {
        Err("not kept".to_owned())
    }
}

fn slow() -> (Hq, mpsc::Receiver<()>, SyncSender<()>) {
    let (takes, taken) = mpsc::channel();
    let (allow, go) = mpsc::sync_channel(1);
    let mut receiver = Some(Slow { takes, go });
    let address = "127.0.0.1:0".parse().unwrap();
    let hq = Hq::start(address, HqOptions::default(), move |_, _| {
        Ok(Box::new(receiver.take().unwrap()))
    });
    (hq.unwrap(), taken, allow)
}

#[test]
fn a_disk_that_hangs_keeps_nobody_from_asking_and_ordering() {
    let (hq, taken, allow) = slow();
    let (mut control, run) = agent(hq.address());
    control.expect(&[HqMessage::Start]);
    let mut one = data(hq.address(), run);
    one.send(&[enter(0, 1, 0)]);
    taken.recv_timeout(LIMIT).unwrap();
    let (answered, answer) = mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let runs = hq.status().len();
            let orders = hq.order(None, Order::Stop).len();
            hq.abandon("enough");
            answered.send((runs, orders)).unwrap();
        });
        let answer = answer.recv_timeout(LIMIT / 4);
        drop(allow);
        assert_eq!(answer, Ok((1, 1)));
    });
    assert_eq!(ended(&hq).failure.as_deref(), Some("enough"));
}

#[test]
fn what_is_not_kept_is_a_failure() {
    let (hq, _taken, allow) = slow();
    let (control, run) = agent(hq.address());
    drop(allow);
    let one = data(hq.address(), run);
    finish(control, vec![one]);
    assert_eq!(ended(&hq).failure.as_deref(), Some("not kept"));
}

/// Agents that have connected and say nothing do not keep others out.
#[test]
fn runs_that_are_silent_make_room() {
    let (hq, _) = hq(HqOptions {
        configuration: Configuration {
            heartbeat_interval_ms: 100,
            ..Configuration::default()
        },
        ..HqOptions::default()
    });
    let agents: Vec<_> = (0..32).map(|_| agent(hq.address())).collect();
    // The first has data, the second goes on speaking: neither is silent.
    let (mut agents, mut speaks) = (agents, None);
    let _data = data(hq.address(), agents[0].1);
    let (mut second, spoken) = agents.remove(1);
    std::thread::scope(|scope| {
        let (done, is_done) = mpsc::channel::<()>();
        let speaking = scope.spawn(move || {
            while is_done.recv_timeout(Duration::from_millis(30)).is_err() {
                second.send(&[heartbeat(Mode::Tracing)]);
            }
            second
        });
        std::thread::sleep(Duration::from_millis(500));
        let (newest, run) = agent(hq.address());
        assert_eq!(run, 32);
        // It is told to go by the time another has its place.
        let report = ended(&hq);
        let why = report.failure.unwrap();
        assert!(why.contains("said nothing for long"), "{why}");
        assert!(report.run != 0 && report.run != spoken, "{}", report.run);
        done.send(()).unwrap();
        speaks = Some((speaking.join().unwrap(), newest));
    });
    assert_eq!(hq.status().len(), 32);
}

/// What the attackers of the next test send, one kind each; none: nothing more.
type Flood = fn(u32) -> Option<Vec<AgentMessage<'static>>>;

/// Whatever agents have kept here, all of it together is bounded: who has most kept goes, and others lose nothing.
#[test]
fn all_runs_together_keep_to_one_budget() -> Outcome {
    const BUDGET: u64 = 64 << 20;
    /// The program, what is read and written, and what its allocator has not given back.
    const BESIDE: u64 = 64 << 20;
    const LONG: usize = 30_000;
    fn text(at: u32) -> String {
        format!("{at}{}", "x".repeat(LONG))
    }
    fn named(at: u32, signature: String) -> AgentMessage<'static> {
        AgentMessage::MapMethodSignature {
            method: at,
            signature: signature.into(),
        }
    }
    let floods: [(&str, Flood); 6] = [
        ("names", |at| {
            (at < 6000).then(|| vec![named(at + 1, text(at))])
        }),
        ("short names", |at| {
            let names = (0..1000).map(|n| named(at * 1000 + n + 1, format!("f{at} {n}")));
            (at < 1000).then(|| names.collect())
        }),
        ("one method with many names", |at| {
            let names = (0..1000).map(|n| named(1, format!("f{at} {n}")));
            (at < 500).then(|| names.collect())
        }),
        ("calls that never end", |at| {
            let calls = (0..1000).map(|n| enter(at * 1000 + n, 1, (at % 100) as u16));
            (at < 1000).then(|| calls.collect())
        }),
        ("threads that were deep once", |at| {
            let deep = (0..2000).map(|n| match n < 1000 {
                true => enter(at * 2000 + n, 1, at as u16),
                false => exit(at * 2000 + n, 1, at as u16),
            });
            (at < 300).then(|| deep.collect())
        }),
        ("what is too early", |at| {
            let value = text(at);
            let early = AgentMessage::Marker {
                at_ms: 0,
                sequence: at + 1,
                key: "".into(),
                value: value.into(),
            };
            (at < 1000).then(|| vec![early])
        }),
    ];
    let Some(setting) = Setting::unprivileged("hq_budget")? else {
        return Ok(());
    };
    let mut receiver = Receiving::start(&setting, &["--memory", "64M"]);
    let address = receiver.address;
    let (mut honest, run) = agent(address);
    let mut one = data(address, run);
    let begun = receiver.peak();
    std::thread::scope(|scope| {
        let floods = floods.map(|(_, flood)| {
            scope.spawn(move || {
                let (_control, run) = agent(address);
                let mut data = data(address, run);
                let mut at = 0;
                while let Some(messages) = flood(at) {
                    let mut bytes = Vec::new();
                    for message in &messages {
                        message.encode(&mut bytes);
                    }
                    // It is closed when it has to go.
                    if data.stream.write_all(&bytes).is_err() {
                        return;
                    }
                    at += 1;
                }
            })
        });
        one.send(&[name(1, "work")]);
        let mut sequence = 0;
        while !floods.iter().all(|flood| flood.is_finished()) {
            one.send(&[enter(sequence, 1, 0), exit(sequence + 1, 1, 0)]);
            honest.send(&[heartbeat(Mode::Tracing)]);
            sequence += 2;
            std::thread::sleep(Duration::from_millis(10));
        }
        for flood in floods {
            flood.join().unwrap();
        }
    });
    let peak = receiver.peak();
    assert!(
        peak < BUDGET + BESIDE,
        "{} MiB, {} at first",
        peak >> 20,
        begun >> 20
    );
    finish(honest, vec![one]);
    receiver.order("quit");
    let said = receiver.end();
    assert!(said.contains(&format!("run {run} is complete")), "{said}");
    assert!(
        said.contains("the most of all runs, which may keep 64 MiB together"),
        "{said}"
    );
    Ok(())
}
