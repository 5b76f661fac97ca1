//! The receiver of Bytefrog agents where peers are many, or its own side is slow.
#![allow(clippy::unwrap_used)] // A test fails by it.

use std::sync::mpsc::{self, Sender, SyncSender};
use std::time::{Duration, Instant};

use crate::hq_shared::*;
use profiler_serve::hq::{Hq, HqOptions, Order, Receiver, RunReport};
use profiler_wire::bytefrog::{AgentMessage, HqMessage};

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

    fn data_break(&mut self) {}

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
