//! A capture into a front that only notes what it gets.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use super::*;
use profiler_capture::{CreateOptions, Existing, Writer};
use profiler_model::*;
use profiler_serve::front::{Awaited, Front, Order, Place, Question};

const SECOND: u64 = 1_000_000_000;

/// What the server got, each with the time of our clock.
#[derive(Debug, PartialEq)]
enum Got {
    Defined(usize),
    Event(u64),
    Acknowledged(u64),
    Ready,
    Over,
}

/// Notes what it gets. Its clients' orders come at their times.
struct Notes {
    began: tokio::time::Instant,
    orders: VecDeque<(Duration, Order)>,
    got: Rc<RefCell<Vec<(Duration, Got)>>>,
    /// Batches that there is room for, until somebody makes more.
    room: Rc<RefCell<usize>>,
}

impl Notes {
    fn note(&self, got: Got) {
        self.got.borrow_mut().push((self.began.elapsed(), got));
    }
}

impl Consumer for Notes {
    fn wants_new_epoch(&self) -> bool {
        false
    }

    fn spare(&self) -> Option<Vec<Event>> {
        None
    }

    fn send(&mut self, batch: Batch) -> u64 {
        *self.room.borrow_mut() -= 1;
        if !batch.definitions.is_empty() {
            self.note(Got::Defined(batch.definitions.len()));
        }
        for event in &batch.events {
            self.note(Got::Event(event.at().0));
        }
        0
    }
}

impl Front for Notes {
    fn order(&mut self) -> Awaited<'_, Order> {
        Box::pin(async {
            let Some(&(at, _)) = self.orders.front() else {
                return std::future::pending().await;
            };
            tokio::time::sleep_until(self.began + at).await;
            self.orders.pop_front().unwrap().1
        })
    }

    fn room(&self) -> Awaited<'static, ()> {
        let room = self.room.clone();
        Box::pin(async move {
            while *room.borrow() == 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        })
    }

    fn acknowledge(&mut self, question: u64) {
        self.note(Got::Acknowledged(question));
    }

    fn ready(&mut self) {
        self.note(Got::Ready);
    }

    fn detached(&mut self) {}

    fn trouble(&mut self, _: &str) {}

    fn welcome(&self) -> String {
        String::new()
    }

    fn finish(self: Box<Self>, _: Duration) -> Awaited<'static, String> {
        Box::pin(std::future::ready(String::new()))
    }
}

fn attached(attached: bool) -> Order {
    Order::Demand(Demand {
        attached,
        sampling: None,
        ..Demand::default()
    })
}

/// A capture of marks at these times; what a server with these orders gets of it in a minute.
fn served(
    name: &str,
    at: &[u64],
    speed: Option<f64>,
    orders: Vec<(Duration, Order)>,
    room: usize,
) -> Vec<(Duration, Got)> {
    let name = format!("profiler-serve-{name}-{}.cap", std::process::id());
    let path = std::env::temp_dir().join(name);
    let options = CreateOptions {
        existing: Existing::Replace,
        ..CreateOptions::default()
    };
    let mut writer = Writer::create(&path, options).unwrap();
    let text = StringId::from_index(0);
    let mark = |&at| {
        Event::Mark(Mark {
            at: Timestamp(at),
            text,
        })
    };
    let session = Session {
        started: Timestamp(100 * SECOND),
        ..Session::default()
    };
    writer
        .write(&Batch {
            epoch: 0,
            definitions: vec![
                Definition::Session(session),
                Definition::String(text, "mark".into()),
            ],
            events: at.iter().map(mark).collect(),
        })
        .unwrap();
    writer.finish().unwrap();
    let got = Rc::new(RefCell::new(Vec::new()));
    let opened = Opened::open(&path).unwrap();
    std::fs::remove_file(path).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.unwrap().block_on(async {
        let notes = Notes {
            began: tokio::time::Instant::now(),
            orders: orders.into(),
            got: got.clone(),
            room: Rc::new(RefCell::new(room)),
        };
        let mut reader = opened.reader;
        let tables = reader.load_tables().unwrap();
        let batches = Batches::new(reader, &tables).unwrap();
        let (began, heard, room) = (notes.began, got.clone(), notes.room.clone());
        let over = |_: &Batches<'_>| heard.borrow_mut().push((began.elapsed(), Got::Over));
        let makes_room = async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            *room.borrow_mut() += 1000;
            std::future::pending::<()>().await;
        };
        let mut hub = Hub::new(vec![Box::new(notes)]);
        let mut replay = Replay::new(batches, speed, &mut hub, &over);
        let mut signals = Signals::listen().unwrap();
        let all = async { tokio::join!(play(&mut replay, &mut signals), makes_room).0 };
        let _ = tokio::time::timeout(Duration::from_millis(700), all).await;
    });
    Rc::try_unwrap(got).unwrap().into_inner()
}

fn times(got: &[(Duration, Got)], of: u64) -> Duration {
    let found = got.iter().find(|(_, got)| *got == Got::Event(of));
    found
        .unwrap_or_else(|| panic!("{of} did not come: {got:?}"))
        .0
}

#[test]
fn time_goes_by_while_somebody_looks() {
    let at = [100 * SECOND, 102 * SECOND, 103 * SECOND, 110 * SECOND];
    let ms = Duration::from_millis;
    let orders = vec![
        (ms(50), attached(true)),
        (ms(200), attached(false)),
        (ms(350), attached(true)),
    ];
    // A second takes 100 ms: 1.5 seconds go by, then 3.5.
    let got = served("timed", &at, Some(10.0), orders, 1000);
    assert!(matches!(got[0].1, Got::Defined(_)), "{got:?}");
    assert!(got[0].0 < ms(50), "{got:?}");
    assert!(got.contains(&(got[1].0, Got::Ready)), "{got:?}");
    // How late a busy machine lets things happen is not for a test: in this order, and not too early.
    assert!(times(&got, at[0]) <= times(&got, at[1]), "{got:?}");
    assert!(times(&got, at[1]) <= times(&got, at[2]), "{got:?}");
    assert!(times(&got, at[2]) >= ms(350), "{got:?}");
    assert!(!got.iter().any(|(_, got)| *got == Got::Event(at[3])));
    assert!(!got.iter().any(|(_, got)| *got == Got::Over));
}

#[test]
fn nothing_goes_by_while_nobody_looks() {
    let got = served("nobody", &[101 * SECOND], Some(1e6), Vec::new(), 1000);
    let got: Vec<Got> = got.into_iter().map(|(_, got)| got).collect();
    assert!(matches!(got[..], [Got::Defined(_), Got::Ready]), "{got:?}");
}

#[test]
fn at_once_is_as_fast_as_there_is_room_and_loses_nothing() {
    let at: Vec<u64> = (0..5000).map(|index| (100 + index) * SECOND).collect();
    let question = Question {
        id: 7,
        place: Place::Kernel(vec![1]),
    };
    let orders = vec![(Duration::from_millis(20), Order::Ask(question))];
    // Room for the definitions and one batch, until it is made after 100 ms.
    let got = served("max", &at, None, orders, 2);
    let events: Vec<u64> = got
        .iter()
        .filter_map(|(_, got)| match got {
            Got::Event(at) => Some(*at),
            _ => None,
        })
        .collect();
    assert_eq!(events, at);
    let early = got
        .iter()
        .filter(|(time, got)| matches!(got, Got::Event(_)) && *time < Duration::from_millis(100));
    assert_eq!(early.count(), BATCH);
    // Clients are not kept waiting by that.
    let acknowledged = got.iter().position(|(_, got)| *got == Got::Acknowledged(7));
    let last_early = got
        .iter()
        .position(|(_, it)| *it == Got::Event(at[BATCH - 1]));
    assert_eq!(acknowledged, last_early.map(|index| index + 1));
    let end: Vec<&Got> = got.iter().rev().take(2).map(|(_, got)| got).collect();
    assert_eq!(end, [&Got::Over, &Got::Ready]);
}

#[test]
fn a_server_that_fails_ends_it() {
    let failed = Order::Failed("gone".to_owned());
    let orders = vec![(Duration::ZERO, failed)];
    let got = served("failed", &[101 * SECOND], Some(1.0), orders, 1000);
    assert!(got.len() <= 2, "{got:?}");
}
