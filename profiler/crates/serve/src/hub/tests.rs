//! Fronts that note what they get of a made-up session.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use super::*;
use crate::front::Place;
use profiler_model::*;

const PERIOD_NS: u64 = 1_000_000;

#[derive(Default)]
struct Noted {
    orders: VecDeque<Order>,
    batches: Vec<Batch>,
    acknowledged: Vec<u64>,
}

#[derive(Clone, Default)]
struct Notes(Rc<RefCell<Noted>>);

impl Consumer for Notes {
    fn wants_new_epoch(&self) -> bool {
        false
    }

    fn spare(&self) -> Option<Vec<Event>> {
        None
    }

    fn send(&mut self, batch: Batch) -> u64 {
        self.0.borrow_mut().batches.push(batch);
        1
    }
}

impl Front for Notes {
    fn order(&mut self) -> Awaited<'_, Order> {
        // Taken when it is asked for, and not before: others may be listened to first.
        Box::pin(poll_fn(|_| match self.0.borrow_mut().orders.pop_front() {
            Some(order) => Poll::Ready(order),
            None => Poll::Pending,
        }))
    }

    fn room(&self) -> Awaited<'static, ()> {
        Box::pin(std::future::ready(()))
    }

    fn acknowledge(&mut self, question: u64) {
        self.0.borrow_mut().acknowledged.push(question);
    }

    fn ready(&mut self) {}

    fn detached(&mut self) {}

    fn trouble(&mut self, _: &str) {}

    fn welcome(&self) -> String {
        String::new()
    }

    fn finish(self: Box<Self>, _: Duration) -> Awaited<'static, String> {
        let batches = self.0.borrow().batches.len();
        Box::pin(std::future::ready(format!("{batches} batches")))
    }
}

impl Notes {
    fn order(&self, order: Order) {
        self.0.borrow_mut().orders.push_back(order);
    }

    fn demand(&self, sampling: Option<Sampling>) {
        self.order(Order::Demand(Demand {
            attached: sampling.is_some(),
            sampling,
            ..Demand::default()
        }));
    }

    /// Samples since the last call: by process, how many and what they weigh.
    fn samples(&self) -> BTreeMap<usize, (u64, u64)> {
        let mut sums = BTreeMap::new();
        for batch in self.0.borrow_mut().batches.drain(..) {
            for event in batch.events {
                if let Event::Sample(sample) = event {
                    let (count, weight) = sums.entry(sample.thread.index()).or_insert((0, 0));
                    *count += 1;
                    *weight += sample.weight;
                }
            }
        }
        sums
    }
}

/// Two fronts, and what a session of 1000 Hz would tell them. A process has its number as its id, and one
/// thread.
struct Shared {
    hub: Hub,
    one: Notes,
    two: Notes,
    epoch: u32,
    at: u64,
}

impl Shared {
    fn new() -> Shared {
        let (one, two) = (Notes::default(), Notes::default());
        let fronts: Vec<Box<dyn Front>> = vec![Box::new(one.clone()), Box::new(two.clone())];
        let mut shared = Shared {
            hub: Hub::new(fronts),
            one,
            two,
            epoch: 0,
            at: 0,
        };
        shared.send(vec![shared.source(1000)], Vec::new());
        shared
    }

    fn source(&self, hz: u64) -> Definition {
        let source = Source {
            name: StringId::from_index(0),
            unit: Unit::Nanoseconds,
            frequency_hz: Some(hz),
            period: None,
        };
        Definition::Source(SourceId::from_index(0), source)
    }

    fn send(&mut self, definitions: Vec<Definition>, events: Vec<Event>) -> u64 {
        let epoch = self.epoch;
        self.hub.send(Batch {
            epoch,
            definitions,
            events,
        })
    }

    /// A process, which begins now.
    fn process(&mut self, number: usize, parent: Option<usize>) {
        self.at += 1;
        self.process_since(number, parent, self.at);
    }

    fn process_since(&mut self, number: usize, parent: Option<usize>, started: u64) {
        let process = Process {
            pid: Pid(number as u32),
            started: Timestamp(started),
            parent: parent.map(ProcessId::from_index),
            name: StringId::from_index(0),
            executable: None,
            command: None,
            namespace_pids: Vec::new(),
            uid: None,
            cgroup: None,
            container: None,
        };
        let thread = Thread {
            process: ProcessId::from_index(number),
            tid: Tid(number as u32),
            started: Timestamp(started),
            name: StringId::from_index(0),
        };
        let definitions = vec![
            Definition::Process(ProcessId::from_index(number), process),
            Definition::Thread(ThreadId::from_index(number), thread),
        ];
        self.send(definitions, Vec::new());
    }

    /// So many samples of each of these processes, as threads take turns.
    fn sample(&mut self, processes: &[usize], count: usize) -> u64 {
        let mut events = Vec::new();
        for _ in 0..count {
            for &process in processes {
                self.at += 1;
                let (at, cpu) = (Timestamp(self.at), Cpu(0));
                let thread = ThreadId::from_index(process);
                let sample = Sample::new(at, thread, cpu, SourceId::from_index(0), PERIOD_NS);
                let sample = sample.with_stacks(Some(StackId::from_index(0)), None);
                events.push(Event::Sample(sample));
            }
        }
        self.send(Vec::new(), events)
    }

    /// Carries out what is ordered now; the last wish.
    fn adjust(&mut self) -> Option<Wish> {
        let mut last = None;
        while let Some(wish) = now_or_never(self.hub.wish()) {
            last = Some(wish);
        }
        self.at += 1;
        let at = Timestamp(self.at);
        self.hub.adjusted(at, at);
        last
    }
}

fn now_or_never<T>(future: impl Future<Output = T>) -> Option<T> {
    let mut context = Context::from_waker(std::task::Waker::noop());
    match std::pin::pin!(future).poll(&mut context) {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    }
}

fn wants(frequency_hz: u64, processes: &[u32], followed: &[u32]) -> Option<Sampling> {
    Some(Sampling {
        frequency_hz,
        regular_hz: None,
        kernel_stacks: false,
        processes: processes.iter().map(|&pid| Pid(pid)).collect(),
        threads: [].into(),
        followed: followed.iter().map(|&pid| Pid(pid)).collect(),
    })
}

#[test]
fn all_demands_are_one() {
    let mut shared = Shared::new();
    let threads = Sampling {
        kernel_stacks: true,
        threads: [Tid(7)].into(),
        ..wants(99, &[], &[]).unwrap()
    };
    shared.one.demand(wants(1000, &[1, 2], &[2]));
    shared.two.demand(Some(threads));
    let Some(Wish::Demand(demand)) = shared.adjust() else {
        panic!("a demand");
    };
    let union = Sampling {
        kernel_stacks: true,
        threads: [Tid(7)].into(),
        ..wants(1000, &[1, 2], &[2]).unwrap()
    };
    assert_eq!((demand.attached, demand.sampling), (true, Some(union)));
    // What one does not want any more goes, and who has an id may have changed.
    shared.one.order(Order::Demand(Demand {
        lives: 3,
        ..Demand::default()
    }));
    let Some(Wish::Demand(next)) = shared.adjust() else {
        panic!("a demand");
    };
    assert_eq!(next.sampling.unwrap().frequency_hz, 99);
    assert!(next.attached && next.lives != demand.lives);
}

#[test]
fn each_gets_its_own_targets_at_its_own_rate() {
    let mut shared = Shared::new();
    for process in 1..=3 {
        shared.process(process, None);
    }
    shared.one.demand(wants(1000, &[1, 3], &[]));
    shared.two.demand(wants(100, &[2, 3], &[]));
    shared.adjust();
    assert_eq!(shared.sample(&[1, 2, 3], 1000), 2, "dropped by both");
    let all = (1000, 1000 * PERIOD_NS);
    assert_eq!(shared.one.samples(), [(1, all), (3, all)].into());
    let two = shared.two.samples();
    assert_eq!(two.keys().copied().collect::<Vec<_>>(), [2, 3]);
    let count: u64 = two.values().map(|(count, _)| count).sum();
    assert!(count.abs_diff(200) <= 1, "{two:?}");
    assert!(
        two.values()
            .all(|(count, weight)| *weight == count * 10 * PERIOD_NS)
    );
    // Alone it gets all that is sampled, as it is.
    shared.one.demand(None);
    shared.adjust();
    shared.sample(&[2], 100);
    assert_eq!(shared.two.samples(), [(2, (100, 100 * PERIOD_NS))].into());
    assert_eq!(shared.one.samples(), [].into());
}

#[test]
fn what_was_taken_before_is_nobody_elses() {
    let mut shared = Shared::new();
    shared.process(1, None);
    shared.process(2, None);
    shared.one.demand(wants(1000, &[1], &[]));
    shared.adjust();
    // Taken before the first one left, and sent after.
    let late = shared.at;
    shared.one.demand(None);
    shared.two.demand(wants(1000, &[2], &[]));
    shared.adjust();
    let now = std::mem::replace(&mut shared.at, late - 1);
    shared.sample(&[1], 1);
    shared.at = now;
    shared.sample(&[2], 5);
    assert_eq!(shared.one.samples(), [].into());
    assert_eq!(shared.two.samples(), [(2, (5, 5 * PERIOD_NS))].into());
}

#[test]
fn kernel_stacks_are_for_those_who_want_them() {
    let mut shared = Shared::new();
    shared.process(1, None);
    let mut kernel = wants(1000, &[1], &[]);
    kernel.as_mut().unwrap().kernel_stacks = true;
    shared.one.demand(kernel);
    shared.two.demand(wants(1000, &[1], &[]));
    shared.adjust();
    shared.sample(&[1], 1);
    let stacks = |notes: &Notes| match notes.0.borrow().batches.last().unwrap().events[..] {
        [Event::Sample(ref sample)] => (sample.kernel.is_some(), sample.kernel_end),
        ref other => panic!("{other:?}"),
    };
    assert_eq!(stacks(&shared.one), (true, StackEnd::Complete));
    assert_eq!(stacks(&shared.two), (false, StackEnd::NoStack));
}

#[test]
fn descendants_are_whose_ancestors_are() {
    let mut shared = Shared::new();
    shared.process(1, None);
    shared.process(2, Some(1));
    shared.one.demand(wants(1000, &[1], &[1]));
    shared.two.demand(wants(1000, &[1], &[]));
    shared.adjust();
    shared.process(3, Some(1));
    shared.process(4, Some(3));
    // Its parent lived before it was followed.
    shared.process(5, Some(2));
    let of = |count| (count, count * PERIOD_NS);
    shared.sample(&[1, 2, 3, 4, 5], 1);
    let expected = BTreeMap::from([(1, of(1)), (3, of(1)), (4, of(1))]);
    assert_eq!(shared.two.samples(), [(1, of(1))].into());
    shared.two.demand(wants(1000, &[5], &[]));
    shared.adjust();
    shared.one.samples();
    shared.sample(&[1, 2, 3, 4, 5], 1);
    assert_eq!(shared.one.samples(), expected);
    // In the next epoch its ancestor may not be there any more.
    shared.epoch += 1;
    shared.process_since(4, None, 5);
    shared.process(1, None);
    shared.sample(&[4, 1], 1);
    assert_eq!(shared.one.samples(), [(1, of(1)), (4, of(1))].into());
    // Nor is it followed any more.
    shared.one.demand(wants(1000, &[1], &[]));
    shared.adjust();
    shared.sample(&[4, 1], 1);
    assert_eq!(shared.one.samples(), [(1, of(1))].into());
}

#[test]
fn a_source_has_the_frequency_that_the_front_sees() {
    let mut shared = Shared::new();
    shared.process(1, None);
    let told = |notes: &Notes| {
        let batches = std::mem::take(&mut notes.0.borrow_mut().batches);
        let definitions = batches.into_iter().flat_map(|batch| batch.definitions);
        let sources = definitions.filter_map(|definition| match definition {
            Definition::Source(_, source) => source.frequency_hz,
            _ => None,
        });
        sources.collect::<Vec<u64>>()
    };
    assert_eq!(
        (told(&shared.one), told(&shared.two)),
        (vec![1000], vec![1000])
    );
    shared.one.demand(wants(1000, &[1], &[]));
    shared.two.demand(wants(100, &[1], &[]));
    shared.adjust();
    shared.sample(&[1], 1);
    assert_eq!((told(&shared.one), told(&shared.two)), (vec![], vec![100]));
    shared.two.demand(wants(50, &[1], &[]));
    shared.adjust();
    shared.sample(&[1], 1);
    shared.sample(&[1], 1);
    assert_eq!((told(&shared.one), told(&shared.two)), (vec![], vec![50]));
    // Less than was asked for, which the kernel may allow.
    shared.epoch += 1;
    shared.send(vec![shared.source(500)], Vec::new());
    assert_eq!(
        (told(&shared.one), told(&shared.two)),
        (vec![500], vec![50])
    );
}

#[test]
fn who_asks_is_answered_and_who_fails_is_left_out() {
    let mut shared = Shared::new();
    let question = Question {
        id: 5,
        place: Place::Kernel(vec![1]),
    };
    shared.two.order(Order::Ask(question.clone()));
    let Some(Wish::Ask(front, asked)) = shared.adjust() else {
        panic!("a question");
    };
    assert_eq!(asked, question);
    shared.hub.acknowledge(front, 5);
    let acknowledged = |notes: &Notes| notes.0.borrow().acknowledged.clone();
    assert_eq!(acknowledged(&shared.one), [0; 0]);
    assert_eq!(acknowledged(&shared.two), [5]);

    shared.one.demand(wants(1000, &[1], &[]));
    shared.two.demand(wants(100, &[2], &[]));
    shared.adjust();
    shared.one.order(Order::Failed("broken".to_owned()));
    let left = Demand {
        attached: true,
        sampling: wants(100, &[2], &[]),
        tracing: Default::default(),
        lives: 0,
    };
    assert_eq!(shared.adjust(), Some(Wish::Demand(left)));
    // Questions of those that are left are still theirs.
    shared.hub.acknowledge(front, 6);
    assert_eq!(acknowledged(&shared.two), [5, 6]);
    shared.two.order(Order::Failed("broken too".to_owned()));
    let failed = Wish::Failed("broken too".to_owned());
    assert_eq!(now_or_never(shared.hub.wish()), Some(failed));
    let said = now_or_never(shared.hub.finish(Duration::ZERO)).unwrap();
    assert_eq!(said, ["1 batches"]);
}

#[test]
fn who_wants_regular_samples_gets_all_of_its_own() {
    let mut shared = Shared::new();
    for process in 1..=2 {
        shared.process(process, None);
    }
    let regular = wants(40, &[1], &[]).map(|it| Sampling {
        regular_hz: Some(40),
        ..it
    });
    shared.one.demand(regular);
    shared.two.demand(wants(99, &[2], &[]));
    let Some(Wish::Demand(demand)) = shared.adjust() else {
        panic!("a demand");
    };
    // The next multiple.
    let sampling = demand.sampling.unwrap();
    assert_eq!(
        (sampling.frequency_hz, sampling.regular_hz),
        (120, Some(40))
    );
    shared.sample(&[1, 2], 1000);
    assert_eq!(shared.one.samples(), [(1, (1000, 1000 * PERIOD_NS))].into());
    assert!(shared.two.samples()[&2].0 < 150, "these are thinned");
}
