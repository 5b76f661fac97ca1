//! The receiver of Bytefrog agents over real connections: the life of a run, and agents that behave
//! badly.
#![allow(clippy::unwrap_used)] // A test fails by it.

use std::io::Read;
use std::time::{Duration, Instant};

use crate::hq_shared::*;
use profiler_serve::admission::Admission;
use profiler_serve::hq::{Fault, Hq, HqOptions, MergeLimits, Order, OrderError};
use profiler_wire::bytefrog::{
    AgentMessage, BYTEFROG_CLASS, CODE_PULSE_CLASS, Configuration, HqMessage, Mode,
};

fn all_take(hq: &Hq, order: Order) {
    for (run, outcome) in hq.order(None, order) {
        assert_eq!(outcome, Ok(()), "run {run} {order:?}");
    }
}

#[test]
fn a_run_from_hello_to_its_normal_end() {
    let (hq, told) = hq(HqOptions::default());
    let (mut control, run) = agent(hq.address());
    assert_eq!(run, 0);
    control.expect(&[HqMessage::Start]);
    let mut one = data(hq.address(), run);
    let mut two = data(hq.address(), run);
    two.send(&[exit(2, 1, 0), marker(3, "x")]);
    one.send(&[name(1, "main"), enter(0, 1, 0), enter(1, 1, 5)]);
    finish(control, vec![one, two]);
    let report = ended(&hq);
    assert_eq!(report.failure, None);
    assert_eq!(report.faults.total(), 0);
    assert_eq!((report.counts.messages, report.counts.calls), (5, 3));
    assert_eq!(report.counts.threads, 2);
    let lines = told.lines();
    assert_eq!(lines[..2], ["begin", "1 is main"]);
    assert_eq!(
        lines[2..],
        ["0 +1 on 0", "1 +1 on 5", "2 -1 on 0", "3 mark=x"]
    );
    // The next run has the next number.
    let (control, run) = agent(hq.address());
    assert_eq!(run, 1);
    drop(control);
    let failure = ended(&hq).failure.unwrap();
    assert_eq!(failure, "the agent went away without ending the run");
}

/// The original agent takes what its first read brings for the whole configuration, and knows it by
/// one name only.
#[test]
fn the_configuration_comes_whole_and_by_the_name_that_is_wanted() {
    for configuration_class in [BYTEFROG_CLASS, CODE_PULSE_CLASS] {
        let options = HqOptions {
            start: false,
            configuration_class,
            ..HqOptions::default()
        };
        let exclusions = (0..100).map(|n| format!("package{n}/.*"));
        let configuration = Configuration {
            exclusions: exclusions.collect(),
            ..options.configuration.clone()
        };
        let (hq, _) = hq(HqOptions {
            configuration: configuration.clone(),
            ..options
        });
        let mut control = Connection::open(hq.address());
        control.send(&[AgentMessage::Hello { version: 1 }]);
        let mut bytes = [0; 1 << 16];
        let read = control.stream.read(&mut bytes).unwrap();
        let expected = configuration.encode_as(configuration_class);
        assert_eq!(read, 5 + expected.len());
        assert_eq!(bytes[5..read], expected);
    }
}

#[test]
fn orders_come_as_the_original_sends_them() {
    use HqMessage as M;
    let options = HqOptions {
        start: false,
        ..HqOptions::default()
    };
    let (hq, _) = hq(options);
    let (mut control, _) = agent(hq.address());
    assert_eq!(
        hq.order(Some(0), Order::Pause),
        [(0, Err(OrderError::NotStarted))]
    );
    assert_eq!(hq.order(Some(9), Order::Start), []);
    for order in [
        Order::Suspend,
        Order::Start,
        Order::Pause,
        Order::Suspend,
        Order::Unsuspend,
        Order::Pause,
        Order::Stop,
    ] {
        all_take(&hq, order);
    }
    control.expect(&[
        M::Suspend,
        M::Start,
        M::Unsuspend,
        M::Pause,
        M::Unpause,
        M::Suspend,
        M::Unsuspend,
        M::Pause,
        M::Unpause,
        M::Stop,
    ]);
    // A run that had no data ends normally too.
    finish_without_data(control);
    assert_eq!(ended(&hq).failure, None);
}

fn finish_without_data(mut control: Connection) {
    control.send(&[heartbeat(Mode::ShuttingDown)]);
    control.expect(&[HqMessage::Stop]);
}

#[test]
fn stop_before_start_and_a_suspended_start() {
    let options = HqOptions {
        start: false,
        suspended: true,
        ..HqOptions::default()
    };
    let (hq, _) = hq(options);
    let (mut control, _) = agent(hq.address());
    all_take(&hq, Order::Stop);
    control.expect(&[HqMessage::Suspend, HqMessage::Start, HqMessage::Stop]);
    finish_without_data(control);
    assert_eq!(ended(&hq).failure, None);
}

#[test]
fn a_run_stops_after_its_time() {
    let options = HqOptions {
        stop_after: Some(Duration::from_millis(200)),
        ..HqOptions::default()
    };
    let (hq, _) = hq(options);
    let (mut control, _) = agent(hq.address());
    control.expect(&[HqMessage::Start]);
    let began = Instant::now();
    control.expect(&[HqMessage::Stop]);
    assert!(began.elapsed() > Duration::from_millis(100));
    finish_without_data(control);
    assert_eq!(ended(&hq).failure, None);
}

#[test]
fn who_is_not_understood_is_told_so() {
    let options = HqOptions {
        greeting: Duration::from_millis(300),
        runs: Some(1),
        ..HqOptions::default()
    };
    let (hq, _) = hq(options);
    let error = |connection: &mut Connection| match connection.next() {
        Some(HqMessage::Error(text)) => {
            assert_eq!(connection.next(), None);
            text
        }
        other => panic!("{other:?}"),
    };
    let mut version = Connection::open(hq.address());
    version.send(&[AgentMessage::Hello { version: 4 }]);
    assert!(error(&mut version).contains("version 4"));
    assert!(refused(&hq).contains("version 4"));

    let began = Instant::now();
    let mut unknown = Connection::open(hq.address());
    unknown.send(&[AgentMessage::DataHello { run: 7 }]);
    assert!(error(&mut unknown).contains("no run 7"));
    assert!(began.elapsed() >= Duration::from_millis(500));

    let mut wrong = Connection::open(hq.address());
    wrong.bytes(b"GET / HTTP/1.1\r\n\r\n");
    assert!(error(&mut wrong).contains("hello"));

    // Half a hello, for ever.
    let mut silent = Connection::open(hq.address());
    silent.bytes(&[0]);
    assert!(error(&mut silent).contains("in time"));

    let (_control, _) = agent(hq.address());
    let mut late = Connection::open(hq.address());
    late.send(&[AgentMessage::Hello { version: 1 }]);
    assert!(error(&mut late).contains("no more runs"));
}

#[test]
fn others_are_not_admitted() {
    let me = rustix::process::getuid().as_raw();
    let options = HqOptions {
        admission: Admission::only([me + 1]),
        ..HqOptions::default()
    };
    let (hq, _) = hq(options);
    let mut peer = Connection::open(hq.address());
    peer.send(&[AgentMessage::Hello { version: 1 }]);
    assert_eq!(peer.next(), None);
    let reason = refused(&hq);
    assert!(reason.contains(&format!("--allow-user {me}")), "{reason}");
    let outside = Hq::start(
        "0.0.0.0:0".parse().unwrap(),
        HqOptions::default(),
        |_, _| Err(String::new()),
    );
    assert!(outside.is_err());
}

#[test]
fn one_byte_at_a_time() {
    let (hq, told) = hq(HqOptions::default());
    let (control, run) = agent(hq.address());
    let mut one = data(hq.address(), run);
    let mut bytes = Vec::new();
    for message in [
        name(1, "f"),
        enter(0, 1, 0),
        exit(1, 1, 0),
        marker(2, "end"),
    ] {
        message.encode(&mut bytes);
    }
    for byte in bytes {
        one.bytes(&[byte]);
        std::thread::sleep(Duration::from_millis(1));
    }
    finish(control, vec![one]);
    assert_eq!(ended(&hq).failure, None);
    assert_eq!(
        told.lines()[1..],
        ["1 is f", "0 +1 on 0", "1 -1 on 0", "2 mark=end"]
    );
}

#[test]
fn a_suspension_with_its_marker() {
    let strict = HqOptions {
        strict: true,
        ..HqOptions::default()
    };
    let (hq, told) = hq(strict);
    let (mut control, run) = agent(hq.address());
    let mut one = data(hq.address(), run);
    one.send(&[enter(0, 1, 0)]);
    control.send(&[AgentMessage::DataBreak { sequence: 2 }]);
    control.send(&[heartbeat(Mode::Suspended)]);
    let deadline = Instant::now() + LIMIT;
    while hq
        .status()
        .iter()
        .all(|run| run.mode != Some(Mode::Suspended))
    {
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(5));
    }
    one.send(&[marker(1, "on"), enter(2, 2, 0), exit(3, 2, 0)]);
    finish(control, vec![one]);
    let report = ended(&hq);
    assert_eq!(report.failure, None, "{:?}", report.faults);
    assert_eq!(report.counts.breaks, 1);
    assert_eq!(
        told.lines()[1..],
        ["0 +1 on 0", "break", "1 mark=on", "2 +2 on 0", "3 -2 on 0"]
    );
}

/// What a run ends with if its data connection brings this, and what it was told; strict or not.
fn faulty(
    strict: bool,
    script: impl Fn(&mut Connection, &mut Connection, &Told),
) -> (Option<String>, Vec<Fault>, Vec<String>) {
    let options = HqOptions {
        strict,
        ..HqOptions::default()
    };
    let (hq, told) = hq(options);
    let (mut control, run) = agent(hq.address());
    let mut one = data(hq.address(), run);
    script(&mut control, &mut one, &told);
    // A strict run may be over before this is written.
    let mut bytes = Vec::new();
    heartbeat(Mode::ShuttingDown).encode(&mut bytes);
    let _ = std::io::Write::write_all(&mut control.stream, &bytes);
    std::thread::sleep(Duration::from_millis(300));
    drop(one);
    while control.next().is_some() {}
    let report = ended(&hq);
    let faults = report
        .faults
        .iter()
        .map(|(fault, _)| fault.clone())
        .collect();
    (report.failure, faults, told.lines()[1..].to_vec())
}

#[test]
fn faults_end_a_strict_run_and_are_counted_otherwise() {
    type Script = fn(&mut Connection, &mut Connection, &Told);
    let scripts: [(Script, &str); 6] = [
        (
            |_, one, _| one.send(&[enter(0, 1, 0), enter(2, 1, 0)]),
            "did not come",
        ),
        (
            |_, one, _| one.send(&[enter(0, 1, 0), enter(0, 1, 0)]),
            "came twice",
        ),
        (
            |_, one, _| one.send(&[enter(0, 1, 0), exit(1, 2, 0)]),
            "left method 2 while in 1",
        ),
        (
            |_, one, _| one.send(&[enter(0, 1, 0), AgentMessage::DataBreak { sequence: 5 }]),
            "data break on a data connection",
        ),
        (
            |_, one, _| {
                one.send(&[enter(0, 1, 0)]);
                one.bytes(b"\x0b\0\0\0\x01\0\x04\xf0\x9f\x98\x80");
            },
            "no modified UTF-8",
        ),
        (
            |control, one, told| {
                one.send(&[enter(0, 1, 0)]);
                told.wait("0 +1 on 0");
                control.send(&[AgentMessage::DataBreak { sequence: 1 }]);
            },
            "a data break at 1 when 1 is the next one",
        ),
    ];
    for (script, words) in scripts {
        let (failure, _, lines) = faulty(true, script);
        let failure = failure.unwrap();
        assert!(failure.contains(words), "{failure} / {words}");
        assert_eq!(
            lines.first().map(String::as_str),
            Some("0 +1 on 0"),
            "{words}"
        );

        let (failure, faults, _) = faulty(false, script);
        assert_eq!(failure, None, "{words}");
        assert_eq!(faults.len(), 1, "{faults:?}");
        assert!(faults[0].to_string().contains(words), "{faults:?}");
    }
}

#[test]
fn unknown_messages_and_errors_end_a_run() {
    for (bytes, words) in [
        (&b"\xc8rest"[..], "200 is no id"),
        (b"\x63\0\x04oops", "oops"),
    ] {
        for on_control in [true, false] {
            let (failure, _, lines) = faulty(false, |control, one, told| {
                one.send(&[enter(0, 1, 0)]);
                told.wait("0 +1 on 0");
                if on_control { control } else { one }.bytes(bytes);
            });
            let failure = failure.unwrap();
            assert!(failure.contains(words), "{failure}");
            assert_eq!(lines, ["0 +1 on 0"]);
        }
    }
}

#[test]
fn what_was_under_way_is_kept_when_an_agent_dies() {
    let (hq, told) = hq(HqOptions::default());
    let (control, run) = agent(hq.address());
    let mut one = data(hq.address(), run);
    one.send(&[enter(0, 1, 0)]);
    drop(control);
    one.send(&[exit(1, 1, 0)]);
    drop(one);
    let report = ended(&hq);
    assert!(report.failure.unwrap().contains("went away"));
    assert_eq!(told.lines()[1..], ["0 +1 on 0", "1 -1 on 0"]);
}

#[test]
fn a_data_connection_that_is_reset_is_no_normal_end() {
    let (hq, told) = hq(HqOptions::default());
    let (mut control, run) = agent(hq.address());
    let mut one = data(hq.address(), run);
    one.send(&[enter(0, 1, 0)]);
    let deadline = Instant::now() + LIMIT;
    while hq.status()[0].counts.messages == 0 {
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(5));
    }
    rustix::net::sockopt::set_socket_linger(&one.stream, Some(Duration::ZERO)).unwrap();
    control.send(&[heartbeat(Mode::ShuttingDown)]);
    drop(one);
    let failure = ended(&hq).failure.unwrap();
    assert!(failure.contains("broke"), "{failure}");
    assert_eq!(told.lines()[1..], ["0 +1 on 0"]);
}

#[test]
fn heartbeats_that_stop_are_noticed() {
    let mut options = HqOptions::default();
    options.configuration.heartbeat_interval_ms = 100;
    let (hq, _) = hq(options);
    let (mut control, _) = agent(hq.address());
    let health = || {
        let deadline = Instant::now() + LIMIT;
        loop {
            assert!(Instant::now() < deadline);
            let event = hq.next_event(Duration::from_millis(50));
            if let Some(profiler_serve::hq::HqEvent::Health { healthy, .. }) = event {
                return healthy;
            }
        }
    };
    assert!(!health());
    assert!(hq.status()[0].unhealthy);
    control.send(&[heartbeat(Mode::Tracing)]);
    assert!(health());
}

#[test]
fn several_agents_at_once() {
    let (hq, _) = hq(HqOptions::default());
    let mut agents: Vec<_> = (0..4).map(|_| agent(hq.address())).collect();
    let numbers: Vec<u8> = agents.iter().map(|(_, run)| *run).collect();
    assert_eq!(numbers, [0, 1, 2, 3]);
    for (control, run) in agents.drain(..) {
        let mut one = data(hq.address(), run);
        for sequence in 0..u32::from(run) {
            one.send(&[enter(sequence, 1, 0)]);
        }
        finish(control, vec![one]);
    }
    let mut calls = [0; 4];
    for _ in 0..4 {
        let report = ended(&hq);
        assert_eq!(report.failure, None);
        calls[usize::from(report.run)] = report.counts.calls;
    }
    assert_eq!(calls, [0, 1, 2, 3]);
}

#[test]
fn a_connection_that_is_far_ahead_waits_for_the_other() {
    const EVENTS: u32 = 20_000;
    let options = HqOptions {
        merge: MergeLimits {
            items: 64,
            bytes: 1 << 20,
        },
        strict: true,
        ..HqOptions::default()
    };
    let (hq, told) = hq(options);
    let (control, run) = agent(hq.address());
    let mut one = data(hq.address(), run);
    let mut two = data(hq.address(), run);
    let send = |connection: &mut Connection, odd: u32| {
        let mut bytes = Vec::new();
        for block in (0..EVENTS / 1000).filter(|block| block % 2 == odd) {
            for sequence in block * 1000..(block + 1) * 1000 {
                enter(sequence, 1, 0).encode(&mut bytes);
            }
        }
        connection.bytes(&bytes);
    };
    std::thread::scope(|scope| {
        scope.spawn(|| send(&mut two, 1));
        std::thread::sleep(Duration::from_millis(200));
        scope.spawn(|| send(&mut one, 0));
    });
    finish(control, vec![one, two]);
    let report = ended(&hq);
    assert_eq!(report.failure, None);
    let expected: Vec<String> = (0..EVENTS).map(|id| format!("{id} +1 on 0")).collect();
    assert!(told.lines()[1..] == expected);
}

#[test]
fn ids_wrap_around_only_where_they_should() {
    // From 0 straight to the end of the numbers is 1 back: it came already.
    let (failure, faults, _) = faulty(false, |_, one, _| {
        one.send(&[enter(0, 1, 0), enter(u32::MAX, 1, 0)])
    });
    assert_eq!((failure, faults), (None, vec![Fault::Duplicate(u32::MAX)]));
}

#[test]
fn floods_are_bounded() {
    let options = HqOptions {
        merge: MergeLimits {
            bytes: 16 << 20,
            ..MergeLimits::default()
        },
        stall: Duration::from_secs(1),
        ..HqOptions::default()
    };
    let (hq, _) = hq(options);
    let (control, run) = agent(hq.address());
    let before = memory_bytes();
    let mut one = data(hq.address(), run);
    let mut two = data(hq.address(), run);
    // All threads, each with an open call; and texts of the greatest length that wait for one before
    // them, many more than may wait.
    let mut bytes = Vec::new();
    for thread in 0..=u16::MAX {
        enter(u32::from(thread) + 1, 1, thread).encode(&mut bytes);
    }
    one.bytes(&bytes);
    let long = "x".repeat(65_535);
    std::thread::scope(|scope| {
        let flood = scope.spawn(|| {
            for id in 0..1_500 {
                two.send(&[marker(100_000 + id, &long)]);
            }
        });
        std::thread::sleep(Duration::from_millis(500));
        assert!(!flood.is_finished());
        let grown = memory_bytes().saturating_sub(before);
        assert!(grown < 100 << 20, "{grown} bytes");
        one.send(&[enter(0, 1, 0)]);
    });
    finish(control, vec![one, two]);
    let report = ended(&hq);
    assert_eq!(report.failure, None);
    assert_eq!(report.counts.threads, 65_536);
    assert_eq!(report.counts.messages, 65_537 + 1_500);
    assert_eq!(report.counts.missing, 100_000 - 65_537);
}

fn memory_bytes() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = text.split_whitespace().nth(1).unwrap().parse().unwrap();
    pages * rustix::param::page_size()
}
