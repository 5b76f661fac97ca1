//! The main thread's handle of a server that has a thread of its own: batches and traced calls in, orders out.
//!
//! Nothing here blocks. A [`Handle`] is a [`Front`]; what its protocol adds is how its thread serves, and a [`Summary`].
//! What does not belong here: sockets, what clients are told (the protocols).

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;

use crate::front::{Awaited, Front, Order, Question};
use crate::queue::{Entry, Joined, Note, Popped, Queue};
use profiler_model::{Batch, Consumer, Demand, Event, Tracing};
use profiler_report::view::quantity;

/// Memory that events may take while they wait for the thread.
const QUEUE_BYTES: usize = 64 << 20;
/// The same for the calls of each demand.
const CALLS_BYTES: usize = 64 << 20;
/// What the thread may take to end behind the deadline of [`Front::finish`].
const FAREWELL: Duration = Duration::from_secs(2);

/// What is said to the thread, in order with batches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Word {
    /// A question was answered.
    Acknowledge(u64),
    /// All processes have been announced.
    Ready,
    /// Nothing is attached any more.
    Detached,
    /// Nothing can be attached.
    Trouble(String),
    /// The calls of the queue's demand can't be traced, or not any longer.
    Untraced(String),
}

impl Note for Word {
    fn join(&self, next: &Word) -> Joined {
        match self == next {
            true => Joined::First,
            false => Joined::Both,
        }
    }

    /// What comes behind tells that something can be seen again.
    fn divides(&self) -> bool {
        matches!(self, Word::Detached | Word::Trouble(_))
    }
}

/// What has become of the clients of a server.
pub(crate) trait Summary: Copy + Default + Send + 'static {
    /// What people are told.
    fn text(&self) -> String;
}

/// What both threads see.
pub(crate) struct Shared<S> {
    pub(crate) queue: Queue<Word>,
    /// Calls of each demand: their ids are of streams of their own.
    calls: Mutex<BTreeMap<Tracing, Arc<Queue<Word>>>>,
    /// Something came for one of the queues.
    pub(crate) came: Notify,
    /// The tables of the thread have grown too large.
    pub(crate) wants_new_epoch: AtomicBool,
    orders: Mutex<Orders>,
    ordered: Notify,
    /// What has become of clients, once the thread has ended.
    pub(crate) summary: Mutex<S>,
}

#[derive(Default)]
struct Orders {
    /// The last one counts.
    demand: Option<Demand>,
    questions: VecDeque<Question>,
    /// Those that were asked, and of which calls.
    asked: BTreeMap<u64, Tracing>,
    over: bool,
}

/// How the main thread speaks with the one that serves.
pub(crate) struct Lines<S> {
    pub(crate) shared: Arc<Shared<S>>,
    /// Until when all connections are to be ended; closed: at once.
    pub(crate) finished: mpsc::UnboundedReceiver<Instant>,
}

/// What a server says of itself.
#[derive(Clone, Debug)]
pub(crate) struct Names {
    /// Of its thread.
    pub(crate) thread: &'static str,
    /// Of its protocol, for people.
    pub(crate) protocol: &'static str,
    /// What people are told when it has started.
    pub(crate) welcome: String,
}

/// A running server, from the side of the session. Dropping it ends all connections at once.
pub(crate) struct Handle<S: Summary> {
    shared: Arc<Shared<S>>,
    names: Names,
    /// Sends when all connections are to be ended.
    finish: mpsc::UnboundedSender<Instant>,
    thread: JoinHandle<()>,
    failed: bool,
    dropped: u64,
}

impl<S: Summary> Handle<S> {
    /// Serves from a thread of its own, with so many threads that may be waited for.
    pub(crate) fn start<F: Future<Output = ()>>(
        names: Names,
        blocking_threads: usize,
        serve: impl FnOnce(Lines<S>) -> F + Send + 'static,
    ) -> io::Result<Handle<S>> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(blocking_threads)
            .thread_name(format!("{}-admit", names.thread))
            .build()?;
        let shared = Arc::new(Shared::new());
        let (finish, finished) = mpsc::unbounded_channel();
        let guard = Guard(Arc::clone(&shared));
        let thread = std::thread::Builder::new()
            .name(names.thread.into())
            .spawn(move || {
                let lines = Lines {
                    shared: Arc::clone(&guard.0),
                    finished,
                };
                runtime.block_on(serve(lines));
                // A look at the kernel's tables is not waited for.
                runtime.shutdown_background();
                drop(guard);
            })?;
        Ok(Handle {
            shared,
            names,
            finish,
            thread,
            failed: false,
            dropped: 0,
        })
    }

    async fn next_order(&mut self) -> Order {
        while !self.failed {
            {
                let mut orders = self.shared.orders();
                if let Some(demand) = orders.demand.take() {
                    return Order::Demand(demand);
                }
                if let Some(question) = orders.questions.pop_front() {
                    return Order::Ask(question);
                }
                self.failed = orders.over;
            }
            if self.failed {
                let protocol = self.names.protocol;
                let text = format!("the thread that serves clients of {protocol} has ended");
                return Order::Failed(text);
            }
            self.shared.ordered.notified().await;
        }
        std::future::pending().await
    }

    fn say(&self, word: Word) {
        self.shared.queue.push(word);
        self.shared.came.notify_one();
    }

    async fn end(self, deadline: Duration) -> String {
        let end = Instant::now() + deadline;
        // What still waits then is not wanted any more: it was not lost because somebody was slow.
        let dropped = self.shared.queue.dropped() + self.dropped;
        // If the thread is gone, there is nothing to end.
        let _ = self.finish.send(end);
        let ended = async {
            while !self.shared.orders().over {
                self.shared.ordered.notified().await;
            }
        };
        let protocol = self.names.protocol;
        if tokio::time::timeout_at(end + FAREWELL, ended)
            .await
            .is_err()
        {
            log::warn!("the thread that serves {protocol} does not end");
        } else if self.thread.join().is_err() {
            log::warn!("the thread that serves {protocol} has panicked");
        }
        let summary = *lock(&self.shared.summary);
        let mut text = summary.text();
        if dropped > 0 {
            text += &format!(
                "; {} lost because the server was too slow",
                quantity::plural(dropped, "event")
            );
        }
        text
    }
}

impl<S: Summary> Consumer for Handle<S> {
    fn wants_new_epoch(&self) -> bool {
        self.shared.queue.wants_new_epoch() || self.shared.wants_new_epoch.load(Ordering::Relaxed)
    }

    fn spare(&self) -> Option<Vec<Event>> {
        self.shared.queue.spare()
    }

    fn send(&mut self, batch: Batch) -> u64 {
        let dropped = self.shared.queue.send(batch);
        self.shared.came.notify_one();
        dropped
    }
}

impl<S: Summary> Front for Handle<S> {
    fn order(&mut self) -> Awaited<'_, Order> {
        Box::pin(self.next_order())
    }

    fn room(&self) -> Awaited<'static, ()> {
        let shared = Arc::clone(&self.shared);
        Box::pin(async move { shared.queue.room().await })
    }

    fn acknowledge(&mut self, question: u64) {
        let asked = self.shared.orders().asked.remove(&question);
        match asked {
            Some(tracing) => self
                .shared
                .calls_of(&tracing)
                .push(Word::Acknowledge(question)),
            None => self.shared.queue.push(Word::Acknowledge(question)),
        }
        self.shared.came.notify_one();
    }

    fn traced(&mut self, tracing: &Tracing, batch: Batch) -> u64 {
        let dropped = self.shared.calls_of(tracing).send(batch);
        self.shared.came.notify_one();
        self.dropped += dropped;
        dropped
    }

    fn untraced(&mut self, tracing: &Tracing, text: &str) {
        let queue = self.shared.calls_of(tracing);
        queue.push(Word::Untraced(text.to_owned()));
        self.shared.came.notify_one();
    }

    fn ready(&mut self) {
        self.say(Word::Ready);
    }

    fn detached(&mut self) {
        self.say(Word::Detached);
    }

    fn trouble(&mut self, text: &str) {
        self.say(Word::Trouble(text.to_owned()));
    }

    fn welcome(&self) -> String {
        self.names.welcome.clone()
    }

    fn finish(self: Box<Self>, deadline: Duration) -> Awaited<'static, String> {
        Box::pin(self.end(deadline))
    }
}

impl<S: Summary> Shared<S> {
    fn new() -> Shared<S> {
        Shared {
            queue: Queue::new(QUEUE_BYTES),
            calls: Mutex::default(),
            came: Notify::new(),
            wants_new_epoch: AtomicBool::new(false),
            orders: Mutex::default(),
            ordered: Notify::new(),
            summary: Mutex::default(),
        }
    }

    fn orders(&self) -> MutexGuard<'_, Orders> {
        lock(&self.orders)
    }

    fn calls_of(&self, tracing: &Tracing) -> Arc<Queue<Word>> {
        let mut calls = lock(&self.calls);
        let queue = calls.entry(tracing.clone());
        Arc::clone(queue.or_insert_with(|| Arc::new(Queue::new(CALLS_BYTES))))
    }

    /// Queues of calls.
    fn calls(&self, wanted: impl Fn(&Tracing) -> bool) -> Vec<(Tracing, Arc<Queue<Word>>)> {
        let calls = lock(&self.calls);
        calls
            .iter()
            .filter(|(tracing, _)| wanted(tracing))
            .map(|(tracing, queue)| (tracing.clone(), Arc::clone(queue)))
            .collect()
    }

    /// Takes an entry of each queue of calls; whether there was one. What awaited markers say decides what becomes of the
    /// calls behind them, and is put here before these: all of it that there is by now is taken before calls of its process.
    pub(crate) fn take_calls(&self, mut take: impl FnMut(&Tracing, Entry<Word>)) -> bool {
        let mut was_there = false;
        let mut take = |tracing: &Tracing, queue: &Queue<Word>, entry: Entry<Word>| {
            let bytes = entry.bytes();
            take(tracing, entry);
            queue.done(bytes, None);
        };
        for (tracing, queue) in self.calls(|_| true) {
            let Popped::Entry(entry) = queue.pop(Duration::ZERO) else {
                continue;
            };
            was_there = true;
            if !tracing.awaited {
                let is_its = |it: &Tracing| it.awaited && it.process == tracing.process;
                for (markers, queue) in self.calls(is_its) {
                    while let Popped::Entry(entry) = queue.pop(Duration::ZERO) {
                        take(&markers, &queue, entry);
                    }
                }
            }
            take(&tracing, &queue, entry);
        }
        was_there
    }

    /// Tells the main thread.
    pub(crate) fn order(&self, order: Order) {
        let mut orders = self.orders();
        match order {
            Order::Demand(demand) => {
                // What nobody wants any more may still be on its way: it is dropped with its queue.
                lock(&self.calls).retain(|known, _| demand.tracing.contains(known));
                orders.demand = Some(demand);
            }
            Order::Ask(question) => {
                if let crate::front::Place::Calls(tracing) = &question.place {
                    orders.asked.insert(question.id, tracing.clone());
                }
                orders.questions.push_back(question);
            }
            Order::Failed(_) => orders.over = true,
        }
        drop(orders);
        self.ordered.notify_one();
    }
}

/// Says that the thread has ended, however it does.
struct Guard<S: Summary>(Arc<Shared<S>>);

impl<S: Summary> Drop for Guard<S> {
    fn drop(&mut self) {
        self.0.queue.close();
        self.0.orders().over = true;
        self.0.ordered.notify_one();
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use profiler_model::{Gap, GapReason, Pid, Timestamp};

    #[derive(Clone, Copy, Default)]
    struct Nothing;

    impl Summary for Nothing {
        fn text(&self) -> String {
            "served".to_owned()
        }
    }

    /// A server that takes nothing of what comes, and ends when it is to, or at once.
    fn started(at_once: bool) -> Handle<Nothing> {
        let names = Names {
            thread: "test",
            protocol: "nothing",
            welcome: String::new(),
        };
        let serve = move |mut lines: Lines<Nothing>| async move {
            if !at_once {
                lines.finished.recv().await;
            }
        };
        Handle::start(names, 1, serve).unwrap()
    }

    fn batch() -> Batch {
        Batch {
            epoch: 1,
            definitions: Vec::new(),
            events: vec![Event::Gap(Gap {
                from: Timestamp(0),
                to: Timestamp(1),
                function: None,
                process: None,
                reason: GapReason::Suspended,
            })],
        }
    }

    /// What waits when it is to end is not lost because the server was slow; what came when it had ended by itself was
    /// for nobody.
    #[test]
    fn what_waits_at_the_end_is_not_lost() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let mut handle = started(false);
        assert_eq!(handle.send(batch()), 0);
        let said = runtime.block_on(handle.end(Duration::from_secs(5)));
        assert_eq!(said, "served");

        let mut handle = started(true);
        while !handle.shared.orders().over {
            std::thread::yield_now();
        }
        assert_eq!(handle.send(batch()), 1);
        let said = runtime.block_on(handle.end(Duration::from_secs(5)));
        assert!(said.contains("1 event lost"), "{said}");
    }

    /// Also those that come while something else is taken.
    #[test]
    fn markers_are_taken_before_the_calls_behind_them() {
        let tracing = |id, process, awaited| Tracing {
            id,
            process: Pid(process),
            functions: BTreeSet::new(),
            values: false,
            awaited,
        };
        let shared = Shared::<Nothing>::new();
        let (other, calls) = (tracing(1, 7, false), tracing(2, 8, false));
        let (markers, strange) = (tracing(3, 8, true), tracing(4, 9, true));
        for tracing in [&other, &calls] {
            shared.calls_of(tracing).send(batch());
        }
        let mut taken = Vec::new();
        let was_there = shared.take_calls(|tracing, _| {
            taken.push(tracing.id);
            if *tracing == other {
                for tracing in [&markers, &strange] {
                    shared.calls_of(tracing).push(Word::Ready);
                    shared.calls_of(tracing).push(Word::Detached);
                }
            }
        });
        assert!(was_there);
        // The others' were not there when it was looked which there are.
        assert_eq!(taken, [1, 3, 3, 2]);
        assert!(shared.take_calls(|tracing, _| taken.push(tracing.id)));
        assert!(shared.take_calls(|tracing, _| taken.push(tracing.id)));
        assert!(!shared.take_calls(|tracing, _| taken.push(tracing.id)));
        assert_eq!(taken, [1, 3, 3, 2, 4, 4]);
    }
}
