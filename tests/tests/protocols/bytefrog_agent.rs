//! Runs of an agent of Bytefrog with an HQ that behaves: every order of the life cycle, over real
//! sockets, with a checker as strict as the collector itself.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::time::{Duration, Instant};

use crate::bytefrog_agent_shared::*;
use profiler_model::{Call, CallEdge, Event, ExitKind, Timestamp};
use profiler_serve::bytefrog::{ClassNote, Order};
use profiler_wire::bytefrog::{AgentMessage, Configuration, HqMessage, Mode};

const QUEUE: usize = 64 << 20;

fn script(data_senders: i32) -> Script {
    Script {
        configuration: Configuration {
            data_senders,
            run: 200,
            ..Configuration::default()
        },
        ..Script::default()
    }
}

/// A run of some calls with as many data connections as asked for.
fn whole_run(script: Script, connections: usize, pairs: usize) {
    let hq = Hq::start(script);
    let summary = run(async {
        let agent = started(&hq, QUEUE).await;
        agent.class(ClassNote::Transformed("work/a".into()));
        let mut calls = Calls::default();
        for _ in 0..10 {
            assert_eq!(agent.send(calls.batch(pairs)), 0);
        }
        agent.finish(Timestamp(calls.at), PATIENCE).await.unwrap()
    });
    hq.wait("end", Heard::is_over);
    let checked = hq.check();
    let pairs = 10 * pairs as u64;
    assert_eq!((checked.entries, checked.exits), (pairs, pairs));
    assert_eq!((summary.entries, summary.exits), (pairs, pairs));
    assert_eq!(summary.messages, checked.messages);
    assert_eq!((summary.dropped_events, summary.data_breaks), (0, 0));
    assert_eq!(checked.methods.len(), FUNCTIONS);
    assert_eq!(checked.markers.first().unwrap().1, "recording started");
    assert_eq!(checked.markers.last().unwrap().1, "recording ended");
    let heard = hq.heard();
    assert_eq!(heard.data.len(), connections);
    assert_eq!(heard.modes(), "ITX");
    let note = AgentMessage::ClassTransformed("work/a".into());
    assert!(heard.control.contains(&note));
}

#[test]
fn a_run_over_one_connection() {
    whole_run(script(1), 1, 10_000);
}

#[test]
fn a_run_over_four_connections() {
    whole_run(script(4), 4, 10_000);
}

#[test]
fn a_run_over_sixteen_connections() {
    whole_run(script(16), 16, 10_000);
}

#[test]
fn senseless_numbers_of_connections_are_the_default() {
    whole_run(script(0), 1, 100);
    whole_run(script(-7), 1, 100);
}

#[test]
fn the_least_and_the_largest_budget_will_do() {
    for buffer_memory_budget in [0, 1, -1, i32::MAX] {
        let mut script = script(3);
        script.configuration.buffer_memory_budget = buffer_memory_budget;
        whole_run(script, 3, 1000);
    }
}

#[test]
fn what_hq_says_at_the_end_does_not_reset_data() {
    let mut script = script(3);
    script.chatters = true;
    let hq = Hq::start(script);
    run(async {
        let agent = started(&hq, QUEUE).await;
        let mut calls = Calls::default();
        assert_eq!(agent.send(calls.batch(1000)), 0);
        agent.finish(Timestamp(calls.at), PATIENCE).await.unwrap();
    });
    hq.wait("end", Heard::is_over);
    assert_eq!(hq.check().entries, 1000);
    assert_eq!(hq.heard().resets, 0);
}

#[test]
fn a_start_that_overtakes_the_configuration() {
    for late in [true, false] {
        let mut script = script(if late { 2 } else { 1 });
        script.configures = false;
        let wanted = match late {
            true => script.configuration.clone(),
            // It never comes.
            false => Configuration::default(),
        };
        script.configuration = wanted.clone();
        let hq = Hq::start(script);
        run(async {
            let mut agent = agent(hq.address, QUEUE);
            eventually("hello", || hq.is_greeted());
            let began = Instant::now();
            hq.order(&HqMessage::Suspend);
            hq.order(&HqMessage::Start);
            if late {
                hq.order(&HqMessage::Configuration(wanted.encode()));
            }
            assert_eq!(order(&mut agent).await, Order::Configure(wanted));
            assert!(late || began.elapsed() >= Duration::from_millis(900));
            assert_eq!(order(&mut agent).await, Order::Suspend);
            assert_eq!(order(&mut agent).await, Order::Start);
            agent.finish(Timestamp(0), PATIENCE).await.unwrap();
        });
        hq.wait("end", Heard::is_over);
        hq.check();
        assert_eq!(hq.heard().modes(), "IX");
    }
}

#[test]
fn methods_that_exceptions_left_are_counted_as_left() {
    let hq = Hq::start(script(1));
    let summary = run(async {
        let agent = started(&hq, QUEUE).await;
        let mut calls = Calls::default();
        let mut batch = calls.batch(10);
        for event in &mut batch.events {
            if let Event::Call(Call {
                edge: CallEdge::Exit(exit),
                ..
            }) = event
            {
                exit.how = ExitKind::Exception(None);
            }
        }
        agent.send(batch);
        agent.finish(Timestamp(calls.at), PATIENCE).await.unwrap()
    });
    assert_eq!((summary.entries, summary.exits), (10, 10));
    hq.wait("end", Heard::is_over);
    let heard = hq.heard();
    let bubble =
        |message: &&AgentMessage<'_>| matches!(message, AgentMessage::ExceptionBubble { .. });
    assert_eq!(heard.data.iter().flatten().filter(bubble).count(), 10);
}

#[test]
fn an_hq_that_reads_and_writes_a_byte_at_a_time() {
    let mut script = script(2);
    script.trickles = true;
    whole_run(script, 2, 100);
}

#[test]
fn heartbeats_come_at_once_and_each_interval() {
    let mut script = script(1);
    script.configuration.heartbeat_interval_ms = 50;
    let hq = Hq::start(script);
    run(async {
        let mut agent = agent(hq.address, QUEUE);
        assert!(matches!(order(&mut agent).await, Order::Configure(_)));
        hq.wait("heartbeats", |heard| heard.heartbeats() >= 4);
        // Another configuration before the start counts from then on.
        let slow = Configuration {
            heartbeat_interval_ms: 600_000,
            ..Configuration::default()
        };
        hq.order(&HqMessage::Configuration(slow.encode()));
        assert_eq!(order(&mut agent).await, Order::Configure(slow));
        tokio::time::sleep(Duration::from_millis(100)).await;
        let before = hq.heard().heartbeats();
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert_eq!(hq.heard().heartbeats(), before);
        agent.report(Mode::Paused);
        hq.wait_mode('P');
        agent.finish(Timestamp(0), PATIENCE).await.unwrap();
    });
    hq.wait("end", Heard::is_over);
    // It was not started.
    assert_eq!(hq.heard().modes(), "IP");
}

#[test]
fn senseless_heartbeats_are_the_default() {
    let mut script = script(1);
    script.configuration.heartbeat_interval_ms = 0;
    let hq = Hq::start(script);
    run(async {
        let mut agent = agent(hq.address, QUEUE);
        assert!(matches!(order(&mut agent).await, Order::Configure(_)));
        hq.wait("heartbeats", |heard| heard.heartbeats() >= 2);
        assert!(hq.heard().heartbeats() < 100);
        agent.finish(Timestamp(0), PATIENCE).await.unwrap();
    });
}

#[test]
fn suspended_in_the_run() {
    let hq = Hq::start(script(4));
    run(async {
        let mut agent = started(&hq, QUEUE).await;
        let mut calls = Calls::default();
        for round in 0..3 {
            agent.send(calls.batch(501));
            hq.order(&HqMessage::Suspend);
            assert_eq!(order(&mut agent).await, Order::Suspend, "{round}");
            agent.suspend(Timestamp(calls.at));
            agent.report(Mode::Suspended);
            // What straggles is of no use.
            agent.send(calls.batch(100));
            hq.order(&HqMessage::Unsuspend);
            assert_eq!(order(&mut agent).await, Order::Unsuspend);
            agent.resume(Timestamp(calls.at));
            agent.report(Mode::Tracing);
        }
        agent.send(calls.batch(501));
        let summary = agent.finish(Timestamp(calls.at), PATIENCE).await.unwrap();
        assert_eq!(summary.data_breaks, 3);
        assert_eq!(summary.dropped_events, 0);
    });
    hq.wait("end", Heard::is_over);
    let checked = hq.check();
    assert_eq!(checked.entries, 4 * 501);
    // A break before the message behind the marker that says why.
    let resumed: Vec<u32> = checked
        .markers
        .iter()
        .filter(|(_, key, _)| key == "recording resumed")
        .map(|(sequence, _, _)| sequence + 1)
        .collect();
    assert_eq!(checked.breaks, resumed);
    assert_eq!(resumed.len(), 3);
    assert_eq!(hq.heard().modes(), "ITSTSTSTX");
}

#[test]
fn suspended_before_the_start() {
    let hq = Hq::start(script(1));
    run(async {
        let mut agent = agent(hq.address, QUEUE);
        assert!(matches!(order(&mut agent).await, Order::Configure(_)));
        for message in [HqMessage::Suspend, HqMessage::Start, HqMessage::Unsuspend] {
            hq.order(&message);
        }
        assert_eq!(order(&mut agent).await, Order::Suspend);
        agent.suspend(Timestamp(0));
        assert_eq!(order(&mut agent).await, Order::Start);
        agent.begin(Timestamp(0));
        agent.report(Mode::Suspended);
        let mut calls = Calls::default();
        agent.send(calls.batch(10));
        assert_eq!(order(&mut agent).await, Order::Unsuspend);
        agent.resume(Timestamp(calls.at));
        agent.report(Mode::Tracing);
        agent.send(calls.batch(20));
        let summary = agent.finish(Timestamp(calls.at), PATIENCE).await.unwrap();
        assert_eq!(summary.data_breaks, 0);
    });
    hq.wait("end", Heard::is_over);
    let checked = hq.check();
    assert_eq!(checked.entries, 20);
    assert!(checked.breaks.is_empty());
}

#[test]
fn ended_while_suspended() {
    let hq = Hq::start(script(2));
    run(async {
        let agent = started(&hq, QUEUE).await;
        let mut calls = Calls::default();
        agent.send(calls.batch(100));
        agent.suspend(Timestamp(calls.at));
        agent.report(Mode::Suspended);
        agent.finish(Timestamp(calls.at), PATIENCE).await.unwrap();
    });
    hq.wait("end", Heard::is_over);
    let checked = hq.check();
    let (resumed, _) = checked.marker("recording resumed").unwrap();
    let (ended, _) = checked.marker("recording ended").unwrap();
    assert_eq!(checked.breaks, [resumed + 1]);
    assert_eq!(ended, resumed + 1);
}

#[test]
fn paused() {
    let hq = Hq::start(script(1));
    run(async {
        let mut agent = started(&hq, QUEUE).await;
        let mut calls = Calls::default();
        agent.send(calls.batch(100));
        hq.order(&HqMessage::Pause);
        assert_eq!(order(&mut agent).await, Order::Pause);
        agent.report(Mode::Paused);
        hq.wait_mode('P');
        // Stop while paused.
        hq.order(&HqMessage::Unpause);
        hq.order(&HqMessage::Stop);
        assert_eq!(order(&mut agent).await, Order::Unpause);
        agent.report(Mode::Tracing);
        agent.send(calls.batch(100));
        assert_eq!(order(&mut agent).await, Order::Stop);
        agent.finish(Timestamp(calls.at), PATIENCE).await.unwrap();
    });
    hq.wait("end", Heard::is_over);
    let checked = hq.check();
    assert_eq!((checked.entries, checked.breaks.len()), (200, 0));
}

#[test]
fn stopped_by_hq() {
    // It does not answer by a second stop.
    let mut script = script(2);
    script.answers = false;
    let hq = Hq::start(script);
    let began = run(async {
        let mut agent = started(&hq, QUEUE).await;
        agent.send(Calls::default().batch(100));
        hq.order(&HqMessage::Stop);
        assert_eq!(order(&mut agent).await, Order::Stop);
        let began = Instant::now();
        agent.finish(Timestamp(1), PATIENCE).await.unwrap();
        began
    });
    // It takes five seconds to give an answer up.
    assert!(began.elapsed() < Duration::from_secs(4));
    hq.wait("end", Heard::is_over);
    assert_eq!(hq.check().entries, 100);
}

#[test]
fn stopped_before_the_start() {
    for starts in [false, true] {
        let hq = Hq::start(script(3));
        run(async {
            let mut agent = agent(hq.address, QUEUE);
            assert!(matches!(order(&mut agent).await, Order::Configure(_)));
            if starts {
                hq.order(&HqMessage::Start);
                assert_eq!(order(&mut agent).await, Order::Start);
            }
            hq.order(&HqMessage::Stop);
            assert_eq!(order(&mut agent).await, Order::Stop);
            agent.finish(Timestamp(1), PATIENCE).await.unwrap();
        });
        hq.wait("end", Heard::is_over);
        hq.check();
        // HQ waits for data connections once it has started a run.
        assert_eq!(hq.heard().data.len(), if starts { 3 } else { 0 });
        // Nor does it ever end one that it has not started and that says it ends.
        assert_eq!(hq.heard().modes(), if starts { "IX" } else { "I" });
    }
}

#[test]
fn an_answer_that_does_not_come_is_not_waited_for_for_ever() {
    let mut script = script(1);
    script.answers = false;
    let hq = Hq::start(script);
    let began = Instant::now();
    run(async {
        let agent = started(&hq, QUEUE).await;
        agent.send(Calls::default().batch(100));
        agent.finish(Timestamp(1), PATIENCE).await.unwrap();
    });
    assert!(began.elapsed() >= Duration::from_secs(5));
    hq.wait("end", Heard::is_over);
    assert_eq!(hq.check().entries, 100);
}

/// It has read all, and goes before it has answered.
#[test]
fn an_hq_that_goes_instead_of_answering() {
    let mut script = script(1);
    script.answers = false;
    let hq = Hq::start(script);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            hq.wait("end of data", |heard| !heard.ended.is_empty());
            hq.die();
        });
        run(async {
            let agent = started(&hq, QUEUE).await;
            agent.send(Calls::default().batch(100));
            agent.finish(Timestamp(1), PATIENCE).await.unwrap();
        });
    });
    assert_eq!(hq.check().entries, 100);
}

#[test]
fn an_hq_that_comes_late() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = free.local_addr().unwrap();
    drop(free);
    run(async {
        let mut agent = agent(address, QUEUE);
        tokio::time::sleep(Duration::from_millis(300)).await;
        let hq = Hq::start_at(script(1), &address.to_string());
        assert!(matches!(order(&mut agent).await, Order::Configure(_)));
        agent.finish(Timestamp(0), PATIENCE).await.unwrap();
        hq.wait("end", Heard::is_over);
    });
}

#[test]
fn a_replay_loses_nothing() {
    let mut script = script(2);
    script.receive_bytes = 1 << 16;
    let hq = Hq::start(script);
    run(async {
        let agent = started(&hq, 1 << 20).await;
        let mut calls = Calls::default();
        for batch in 0..400 {
            agent.has_room().await;
            if batch % 50 == 0 {
                calls.new_epoch();
            }
            assert_eq!(agent.send(calls.batch(500)), 0, "{batch}");
        }
        agent.finish(Timestamp(calls.at), PATIENCE).await.unwrap();
    });
    hq.wait("end", Heard::is_over);
    let checked = hq.check();
    assert_eq!(checked.entries, 400 * 500);
    assert_eq!(checked.methods.len(), 8 * FUNCTIONS);
}
