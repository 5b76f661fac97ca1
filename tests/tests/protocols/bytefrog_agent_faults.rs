//! An agent of Bytefrog with an HQ that is slow, dies, refuses or says what makes no sense: nothing
//! blocks, memory is bounded, what is missing is counted, and the end says what happened.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::net::{Shutdown, TcpListener};
use std::time::{Duration, Instant};

use crate::bytefrog_agent_shared::*;
use profiler_model::{Event, Timestamp};
use profiler_serve::bytefrog::{Agent, AgentError, AgentOptions, Order};
use profiler_wire::bytefrog::{Configuration, HqMessage, Mode};

const QUEUE: usize = 1 << 20;

/// Little room in HQ's system, so that it is slow as soon as it does not read.
fn slow(data_senders: i32) -> Script {
    Script {
        configuration: Configuration {
            data_senders,
            ..Configuration::default()
        },
        receive_bytes: 4096,
        ..Script::default()
    }
}

async fn lost(agent: &mut Agent) -> AgentError {
    match order(agent).await {
        Order::Lost(error) => error,
        other => panic!("{other:?}"),
    }
}

/// HQ stops reading until events are dropped, and reads on. More than once.
fn stall(connections: i32, new_epochs: bool) {
    let hq = Hq::start(slow(connections));
    let (sent, dropped) = run(async {
        let agent = started(&hq, QUEUE).await;
        let mut calls = Calls::default();
        let (mut sent, mut dropped) = (0, 0);
        for _ in 0..2 {
            hq.stall(true);
            let (mut kept, mut lost) = (0, 0);
            while lost < 50_000 {
                let batch = calls.batch(200);
                sent += 200;
                let of_it = agent.send(batch);
                assert!(of_it == 0 || of_it == 400);
                lost += of_it;
                kept += 400 - of_it;
                if new_epochs && sent % 2000 == 0 {
                    calls.new_epoch();
                }
            }
            // The queue, send buffers, and what systems take: of this much more was offered.
            let room = QUEUE / size_of::<Event>() + (8 << 20) / 15;
            assert!(kept < room as u64, "{kept} events found room");
            dropped += lost;
            hq.stall(false);
            agent.has_room().await;
        }
        let summary = agent.finish(Timestamp(calls.at), PATIENCE).await.unwrap();
        assert_eq!(summary.dropped_events, dropped);
        assert!(summary.data_breaks >= 2);
        (sent, dropped)
    });
    hq.wait("end", Heard::has_ended);
    let checked = hq.check();
    assert_eq!(checked.entries, sent - dropped / 2);
    assert_eq!(checked.exits, checked.entries);
    let told: u64 = checked
        .markers
        .iter()
        .filter(|(_, key, _)| key == "lost events")
        .map(|(_, _, value)| value.rsplit(": ").next().unwrap().parse::<u64>().unwrap())
        .sum();
    assert_eq!(told, dropped);
    let behind: Vec<u32> = checked
        .markers
        .iter()
        .filter(|(_, key, _)| key == "lost events")
        .map(|(sequence, _, _)| sequence + 1)
        .collect();
    assert_eq!(checked.breaks, behind);
}

#[test]
fn a_slow_hq_costs_events_and_no_memory() {
    stall(1, false);
}

#[test]
fn a_slow_hq_with_many_connections() {
    stall(4, false);
}

#[test]
fn a_slow_hq_while_epochs_change() {
    stall(2, true);
}

#[test]
fn definitions_of_dropped_batches_are_kept() {
    let hq = Hq::start(slow(1));
    let mut epochs = 1;
    run(async {
        let agent = started(&hq, QUEUE).await;
        hq.stall(true);
        let mut calls = Calls::default();
        while agent.send(calls.batch(200)) == 0 {}
        // All that the last epoch defines comes with a batch that is dropped: the first one after a drop may find the room
        // of what the kernel has just taken.
        loop {
            calls.new_epoch();
            epochs += 1;
            if agent.send(calls.batch(200)) > 0 {
                break;
            }
        }
        hq.stall(false);
        agent.has_room().await;
        assert_eq!(agent.send(calls.batch(200)), 0);
        agent.finish(Timestamp(calls.at), PATIENCE).await.unwrap();
    });
    hq.wait("end", Heard::has_ended);
    let checked = hq.check();
    let named = |epoch: u32| {
        let part = format!("function_{epoch}_");
        checked
            .methods
            .values()
            .filter(|name| name.contains(&part))
            .count()
    };
    for epoch in 0..epochs {
        assert_eq!(named(epoch), FUNCTIONS, "{epoch} of {epochs}");
    }
}

#[test]
fn suspended_while_hq_is_slow() {
    let hq = Hq::start(slow(2));
    run(async {
        let agent = started(&hq, QUEUE).await;
        hq.stall(true);
        let mut calls = Calls::default();
        // Until systems take no more either: what they take later would end the break.
        let stuck = Duration::from_secs(1);
        while tokio::time::timeout(stuck, agent.has_room()).await.is_ok() {
            assert_eq!(agent.send(calls.batch(200)), 0);
        }
        while agent.send(calls.batch(200)) == 0 {}
        for _ in 0..1000 {
            agent.suspend(Timestamp(calls.at));
            agent.resume(Timestamp(calls.at));
        }
        hq.stall(false);
        agent.has_room().await;
        assert_eq!(agent.send(calls.batch(200)), 0);
        let summary = agent.finish(Timestamp(calls.at), PATIENCE).await.unwrap();
        assert_eq!(summary.data_breaks, 1);
    });
    hq.wait("end", Heard::has_ended);
    assert_eq!(hq.check().breaks.len(), 1);
}

#[test]
fn what_hq_does_not_take_in_time_is_an_error() {
    let hq = Hq::start(slow(2));
    run(async {
        let agent = started(&hq, QUEUE).await;
        hq.stall(true);
        let mut calls = Calls::default();
        // Until systems take no more either.
        let stuck = Duration::from_secs(1);
        while tokio::time::timeout(stuck, agent.has_room()).await.is_ok() {
            agent.send(calls.batch(2000));
        }
        let began = Instant::now();
        let deadline = Duration::from_millis(500);
        let result = agent.finish(Timestamp(calls.at), deadline).await;
        assert_eq!(result, Err(AgentError::TooSlow { seconds: 0 }));
        assert!(began.elapsed() < Duration::from_secs(10));
    });
    hq.stall(false);
    hq.wait("error", |heard| heard.error().is_some());
}

#[test]
fn a_data_hello_that_is_not_answered_in_time_is_an_error() {
    let hq = Hq::start(slow(2));
    run(async {
        let mut agent = into_mode(&hq, Mode::Initializing).await;
        hq.order(&HqMessage::Start);
        assert_eq!(order(&mut agent).await, Order::Start);
        hq.stall(true);
        agent.begin(Timestamp(0));
        let deadline = Duration::from_millis(500);
        let result = agent.finish(Timestamp(0), deadline).await;
        assert_eq!(result, Err(AgentError::TooSlow { seconds: 0 }));
    });
    hq.stall(false);
}

#[test]
fn an_unknown_run() {
    let script = Script {
        refuses: true,
        ..Script::default()
    };
    let hq = Hq::start(script);
    run(async {
        let mut agent = starting(&hq, QUEUE).await;
        let error = lost(&mut agent).await;
        let text = "Unknown run".to_owned();
        assert_eq!(error, AgentError::DataRefused { number: 1, text });
        // Nothing waits any more, whatever is asked for.
        assert_eq!(agent.send(Calls::default().batch(10)), 20);
        agent.has_room().await;
        let result = agent.finish(Timestamp(0), PATIENCE).await;
        assert_eq!(result, Err(error));
    });
}

/// Brings a run into a mode.
async fn into_mode(hq: &Hq, mode: Mode) -> Agent {
    if mode == Mode::Initializing {
        let mut agent = agent(hq.address, QUEUE);
        assert!(matches!(order(&mut agent).await, Order::Configure(_)));
        hq.wait_mode('I');
        return agent;
    }
    let mut agent = started(hq, QUEUE).await;
    agent.send(Calls::default().batch(100));
    match mode {
        Mode::Paused => {
            hq.order(&HqMessage::Pause);
            assert_eq!(order(&mut agent).await, Order::Pause);
        }
        Mode::Suspended => {
            hq.order(&HqMessage::Suspend);
            assert_eq!(order(&mut agent).await, Order::Suspend);
            agent.suspend(Timestamp(0));
        }
        _ => {}
    }
    agent.report(mode);
    hq.wait_mode(char::from(mode as u8));
    agent
}

const MODES: [Mode; 4] = [
    Mode::Initializing,
    Mode::Tracing,
    Mode::Paused,
    Mode::Suspended,
];

/// Something happens to HQ in each mode. Gives what the agent says of it.
fn in_each_mode(happens: impl Fn(&Hq), is_right: impl Fn(&AgentError) -> bool) {
    for mode in MODES {
        let hq = Hq::start(slow(2));
        run(async {
            let mut agent = into_mode(&hq, mode).await;
            happens(&hq);
            let error = lost(&mut agent).await;
            assert!(is_right(&error), "{mode:?}: {error}");
            let began = Instant::now();
            let result = agent.finish(Timestamp(0), PATIENCE).await;
            assert_eq!(result, Err(error));
            assert!(began.elapsed() < Duration::from_secs(10));
        });
    }
}

#[test]
fn hq_dies() {
    let broken = |error: &AgentError| matches!(error, AgentError::Connection { .. });
    in_each_mode(Hq::die, broken);
}

#[test]
fn hq_closes_its_half_of_control() {
    let closed = "lost the control connection to HQ: HQ closed it";
    in_each_mode(
        |hq| hq.each(true, |stream| stream.shutdown(Shutdown::Write).unwrap()),
        |error| error.to_string() == closed,
    );
}

#[test]
fn hq_says_what_went_wrong() {
    let refused = |error: &AgentError| *error == AgentError::Refused("no more disk".into());
    in_each_mode(
        |hq| hq.order(&HqMessage::Error("no more disk".into())),
        refused,
    );
}

#[test]
fn hq_says_what_is_no_message() {
    let hostile = |error: &AgentError| matches!(error, AgentError::Protocol { .. });
    in_each_mode(|hq| hq.raw(&[200]), hostile);
    in_each_mode(|hq| hq.raw(&[1, 0xff, 0xff, 0xff, 0xff]), hostile);
}

#[test]
fn a_data_connection_breaks() {
    // Once the agent has noticed it of one of them, it closes them all: the second one may be gone by then.
    let acts: [fn(&Hq); 3] = [
        |hq| hq.each(false, |stream| drop(stream.shutdown(Shutdown::Write))),
        |hq| hq.each(false, |stream| drop(stream.shutdown(Shutdown::Both))),
        |hq| {
            hq.each(false, |mut stream| {
                use std::io::Write;
                let _ = stream.write_all(&[99, 0, 2, b'n', b'o']);
            })
        },
    ];
    for act in acts {
        let hq = Hq::start(slow(2));
        run(async {
            let mut agent = into_mode(&hq, Mode::Tracing).await;
            act(&hq);
            let error = lost(&mut agent).await;
            match &error {
                AgentError::Connection { connection, .. } => {
                    assert!(connection.starts_with("data connection"), "{error}");
                    // HQ is told, since it lives.
                    hq.wait("error", |heard| heard.error().is_some());
                }
                error => assert_eq!(*error, AgentError::Refused("no".into())),
            }
            assert!(agent.finish(Timestamp(0), PATIENCE).await.is_err());
        });
    }
}

#[test]
fn hq_dies_while_it_is_slow() {
    let hq = Hq::start(slow(4));
    run(async {
        let mut agent = started(&hq, QUEUE).await;
        hq.stall(true);
        let mut calls = Calls::default();
        while agent.send(calls.batch(200)) == 0 {}
        hq.die();
        let error = lost(&mut agent).await;
        assert!(matches!(error, AgentError::Connection { .. }), "{error}");
        assert!(agent.finish(Timestamp(0), PATIENCE).await.is_err());
    });
    hq.stall(false);
}

#[test]
fn nobody_listens() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = free.local_addr().unwrap().to_string();
    drop(free);
    run(async {
        let mut agent = Agent::start(AgentOptions {
            address,
            connect_timeout: Some(Duration::from_millis(1100)),
            queue_bytes: QUEUE,
            names: Default::default(),
            samples: false,
        })
        .unwrap();
        let error = lost(&mut agent).await;
        assert!(matches!(error, AgentError::Unreachable { .. }), "{error}");
    });
}

#[test]
fn ended_before_anybody_listens() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = free.local_addr().unwrap();
    drop(free);
    run(async {
        let agent = agent(address, QUEUE);
        let began = Instant::now();
        assert!(agent.finish(Timestamp(0), PATIENCE).await.is_ok());
        assert!(began.elapsed() < Duration::from_secs(10));
    });
}

#[test]
fn ended_while_hq_says_nothing() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    run(async {
        let agent = agent(address, QUEUE);
        let connection = listener.accept().unwrap();
        assert!(agent.finish(Timestamp(0), PATIENCE).await.is_ok());
        drop(connection);
    });
}

/// An HQ waits for ever for the data of a run that ends before it was started.
#[test]
fn a_run_that_was_not_started_is_only_closed() {
    for dropped in [true, false] {
        let hq = Hq::start(slow(2));
        run(async {
            let mut agent = agent(hq.address, QUEUE);
            assert!(matches!(order(&mut agent).await, Order::Configure(_)));
            if dropped {
                drop(agent);
            } else {
                let summary = agent.finish(Timestamp(0), PATIENCE).await.unwrap();
                assert_eq!(summary.messages, 0);
            }
            eventually("end", || hq.heard().is_over());
        });
        let heard = hq.heard();
        assert_eq!(heard.modes(), "I");
        assert_eq!(heard.error(), None);
        assert_eq!((heard.data.len(), heard.resets), (0, 0));
    }
}

#[test]
fn a_run_that_is_given_up() {
    for dropped in [true, false] {
        let hq = Hq::start(slow(2));
        run(async {
            let agent = into_mode(&hq, Mode::Tracing).await;
            if dropped {
                drop(agent);
            } else {
                let error = agent.abort("no probe could be attached").await;
                let why = "no probe could be attached".to_owned();
                assert_eq!(error, AgentError::GivenUp(why));
            }
            hq.wait("error", |heard| heard.error().is_some());
        });
        let told = hq.heard().error().unwrap();
        assert_eq!(told.contains("no probe"), !dropped, "{told}");
        eventually("end", || hq.heard().ended.len() == 3);
    }
}

#[test]
fn an_address_that_is_none() {
    let options = AgentOptions {
        address: "hq:many".into(),
        connect_timeout: None,
        queue_bytes: QUEUE,
        names: Default::default(),
        samples: false,
    };
    let error = Agent::start(options).err().unwrap();
    assert_eq!(error, AgentError::Address("hq:many".into()));
}
