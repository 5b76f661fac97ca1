//! The main thread's handle of a server: batches and traced calls in, orders out.
//!
//! Nothing here blocks. What does not belong here: sockets (`network`), what clients are told (`agent`).

use std::collections::{BTreeMap, VecDeque};
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;

use super::agent::Agent;
use super::network::{self, Lines};
use super::options::{RdpError, RdpOptions};
use crate::front::{Order, Question};
use crate::queue::{Joined, Note, Queue};
use profiler_model::{Batch, Demand, Event, Tracing};

/// Memory that events may take while they wait for the thread.
const QUEUE_BYTES: usize = 64 << 20;
/// The same for the calls of each demand.
const CALLS_BYTES: usize = 64 << 20;
/// What the thread may take to end behind the deadline of [`RdpServer::finish`].
const FAREWELL: Duration = Duration::from_secs(2);

/// What is said to the thread, in order with batches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Word {
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

/// What both threads see.
pub(super) struct Shared {
    pub(super) queue: Queue<Word>,
    /// Calls of each demand: their ids are of streams of their own.
    calls: Mutex<BTreeMap<Tracing, Arc<Queue<Word>>>>,
    /// Something came for one of the queues.
    pub(super) came: Notify,
    /// The tables of the thread have grown too large.
    pub(super) wants_new_epoch: AtomicBool,
    orders: Mutex<Orders>,
    ordered: Notify,
    /// What has become of clients, once the thread has ended.
    pub(super) summary: Mutex<RdpSummary>,
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

/// What serving came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RdpSummary {
    /// Connections that were opened.
    pub connections: u64,
    /// Those that were not admitted, or were too many.
    pub refused: u64,
    /// Those that were ended because their client did not read.
    pub laggards: u64,
    /// Requests that were answered.
    pub requests: u64,
    /// Events that found no room in the queues.
    pub dropped_events: u64,
}

/// A running server, from the side of the session. Dropping it ends all connections at once.
pub struct RdpServer {
    shared: Arc<Shared>,
    address: SocketAddr,
    /// Sends when all connections are to be ended.
    finish: mpsc::UnboundedSender<Instant>,
    thread: JoinHandle<()>,
    failed: bool,
    dropped: u64,
}

impl RdpServer {
    /// Listens at `address` (port 0: any), and serves from a thread of its own.
    pub fn start(address: SocketAddr, options: RdpOptions) -> Result<RdpServer, RdpError> {
        options.admission.may_listen(address)?;
        let failed = |source| RdpError::Listen { address, source };
        let listener = TcpListener::bind(address).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(network::ADMITTING)
            .thread_name("rdp-admit")
            .build()
            .map_err(RdpError::Thread)?;
        let shared = Arc::new(Shared::new());
        let (finish, finished) = mpsc::unbounded_channel();
        let guard = Guard(Arc::clone(&shared));
        let thread = std::thread::Builder::new()
            .name("rdp".into())
            .spawn(move || {
                let lines = Lines {
                    shared: Arc::clone(&guard.0),
                    finished,
                };
                runtime.block_on(network::run(listener, Agent::new(options), lines));
                // A look at the kernel's tables is not waited for.
                runtime.shutdown_background();
                drop(guard);
            })
            .map_err(RdpError::Thread)?;
        Ok(RdpServer {
            shared,
            address,
            finish,
            thread,
            failed: false,
            dropped: 0,
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What clients want next; waits for it. Cancel-safe.
    pub async fn order(&mut self) -> Order {
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
                let text =
                    "the thread that serves clients of the remote debugging protocol has ended";
                return Order::Failed(text.to_owned());
            }
            self.shared.ordered.notified().await;
        }
        std::future::pending().await
    }

    /// Hands a batch on. Never blocks; returns how many of its events were dropped.
    pub fn send(&self, batch: Batch) -> u64 {
        let dropped = self.shared.queue.send(batch);
        self.shared.came.notify_one();
        dropped
    }

    /// Hands on calls of a demand. Never blocks; returns how many were dropped.
    pub fn traced(&mut self, tracing: &Tracing, batch: Batch) -> u64 {
        let dropped = self.shared.calls_of(tracing).send(batch);
        self.shared.came.notify_one();
        self.dropped += dropped;
        dropped
    }

    /// Calls of a demand can't be traced.
    pub fn untraced(&self, tracing: &Tracing, text: &str) {
        let queue = self.shared.calls_of(tracing);
        queue.push(Word::Untraced(text.to_owned()));
        self.shared.came.notify_one();
    }

    /// Waits until half of the queue is free. Cancel-safe.
    pub fn has_room(&self) -> impl Future<Output = ()> + use<> {
        let shared = Arc::clone(&self.shared);
        async move { shared.queue.room().await }
    }

    /// An emptied list of events, to be used again.
    pub fn spare(&self) -> Option<Vec<Event>> {
        self.shared.queue.spare()
    }

    /// Whether ids should start anew, because much was defined.
    pub fn wants_new_epoch(&self) -> bool {
        self.shared.queue.wants_new_epoch() || self.shared.wants_new_epoch.load(Ordering::Relaxed)
    }

    /// What a question asked for has been sent: it is told behind that.
    pub fn acknowledge(&self, question: u64) {
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

    /// All processes have been announced.
    pub fn ready(&self) {
        self.say(Word::Ready);
    }

    /// Nothing is attached any more: what clients see is old, until batches come again.
    pub fn detached(&self) {
        self.say(Word::Detached);
    }

    /// The session could not be attached.
    pub fn trouble(&self, text: String) {
        self.say(Word::Trouble(text));
    }

    fn say(&self, word: Word) {
        self.shared.queue.push(word);
        self.shared.came.notify_one();
    }

    /// Ends all connections, and waits until clients have read that, up to the deadline.
    pub async fn finish(self, deadline: Duration) -> RdpSummary {
        let end = Instant::now() + deadline;
        // If the thread is gone, there is nothing to end.
        let _ = self.finish.send(end);
        let ended = async {
            while !self.shared.orders().over {
                self.shared.ordered.notified().await;
            }
        };
        if tokio::time::timeout_at(end + FAREWELL, ended)
            .await
            .is_err()
        {
            log::warn!("the thread that serves the remote debugging protocol does not end");
        } else if self.thread.join().is_err() {
            log::warn!("the thread that serves the remote debugging protocol has panicked");
        }
        let mut summary = *lock(&self.shared.summary);
        summary.dropped_events = self.shared.queue.dropped() + self.dropped;
        summary
    }
}

impl Shared {
    fn new() -> Shared {
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

    /// All queues of calls.
    pub(super) fn calls(&self) -> Vec<(Tracing, Arc<Queue<Word>>)> {
        let calls = lock(&self.calls);
        calls
            .iter()
            .map(|(tracing, queue)| (tracing.clone(), Arc::clone(queue)))
            .collect()
    }

    /// Tells the main thread.
    pub(super) fn order(&self, order: Order) {
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
struct Guard(Arc<Shared>);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.queue.close();
        self.0.orders().over = true;
        self.0.ordered.notify_one();
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
