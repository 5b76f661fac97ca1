//! The main thread's handle of an agent: batches in, orders out.
//!
//! Nothing here blocks. What does not belong here: sockets (`network`), what clients are told
//! (`agent`).

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;

use super::agent::Agent;
use super::error::TcfError;
use super::network::{self, Lines};
use super::options::TcfOptions;
use crate::front::{Order, Question};
use crate::listening::Listening;
use crate::machine::Machine;
use crate::queue::{Joined, Note, Queue};
use crate::tls;
use profiler_model::{Batch, Demand, Event};

/// Memory that events may take while they wait for the thread.
const QUEUE_BYTES: usize = 64 << 20;
/// Questions that may wait for the main thread; of more there is no answer.
const MAX_QUESTIONS: usize = 16_384;
/// What the thread may take to end behind the deadline of [`Server::finish`].
const FAREWELL: Duration = Duration::from_secs(2);

/// What is said to the thread, in order with batches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Word {
    /// A question was answered.
    Acknowledge(u64),
    /// See [`Server::adjusted`].
    Adjusted(Demand),
    /// See [`Server::ready`].
    Ready,
    /// See [`Server::detached`].
    Detached,
    /// See [`Server::trouble`].
    Trouble(String),
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
    /// The tables of the thread have grown too large.
    pub(super) wants_new_epoch: AtomicBool,
    orders: Mutex<Orders>,
    ordered: Notify,
    /// What has become of clients, once the thread has ended.
    pub(super) summary: Mutex<ServeSummary>,
}

#[derive(Default)]
struct Orders {
    /// The last one counts.
    demand: Option<Demand>,
    questions: VecDeque<Question>,
    over: bool,
}

/// What serving came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServeSummary {
    /// Channels that were opened.
    pub channels: u64,
    /// Connections that were not admitted, or were too many.
    pub refused: u64,
    /// Channels that were ended because their client did not read.
    pub laggards: u64,
    /// Channels that were ended because most was kept for them.
    pub heavy: u64,
    /// Commands that were answered.
    pub commands: u64,
    /// Events that found no room in the queue.
    pub dropped_events: u64,
}

/// A running agent, from the side of the session. Dropping it ends all channels at once.
pub struct Server {
    shared: Arc<Shared>,
    address: SocketAddr,
    /// Sends when all channels are to be ended.
    finish: mpsc::UnboundedSender<Instant>,
    thread: JoinHandle<()>,
    failed: bool,
}

impl Server {
    /// Listens, and serves from a thread of its own.
    pub fn start(
        at: impl Into<Listening>,
        options: TcfOptions,
        machine: Box<dyn Machine>,
    ) -> Result<Server, TcfError> {
        let at = at.into();
        let address = at.address().map_err(TcfError::Given)?;
        options.admission.may_listen(address)?;
        let tls = options.tls.as_ref().map(tls::acceptor).transpose()?;
        let failed = |source| TcfError::Listen { address, source };
        let listener = at.listen().map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(network::ADMITTING)
            .thread_name("tcf-admit")
            .build()
            .map_err(TcfError::Thread)?;
        let shared = Arc::new(Shared::new());
        let (finish, finished) = mpsc::unbounded_channel();
        let guard = Guard(Arc::clone(&shared));
        let thread = std::thread::Builder::new()
            .name("tcf".into())
            .spawn(move || {
                let mut agent = Agent::new(options, machine);
                agent.listens(address);
                if agent.options().replay.is_none() {
                    agent.is_told();
                }
                let lines = Lines {
                    shared: Arc::clone(&guard.0),
                    finished,
                    tls,
                };
                runtime.block_on(network::run(listener, agent, lines));
                // A look at the kernel's tables is not waited for.
                runtime.shutdown_background();
                drop(guard);
            })
            .map_err(TcfError::Thread)?;
        Ok(Server {
            shared,
            address,
            finish,
            thread,
            failed: false,
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
                return Order::Failed("the thread that serves TCF clients has ended".to_owned());
            }
            self.shared.ordered.notified().await;
        }
        std::future::pending().await
    }

    /// Hands a batch on. Never blocks; returns how many of its events were dropped.
    pub fn send(&self, batch: Batch) -> u64 {
        self.shared.queue.send(batch)
    }

    /// Waits until half of the queue is free: who sends only then loses nothing, if one batch is
    /// less than half of it. Cancel-safe.
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

    /// What a question asked for has been sent, as far as it comes at once.
    pub fn acknowledge(&self, question: u64) {
        self.shared.queue.push(Word::Acknowledge(question));
    }

    /// This is sampled from now on.
    pub fn adjusted(&self, demand: Demand) {
        self.shared.queue.push(Word::Adjusted(demand));
    }

    /// All processes have been announced. Commands that need them wait for that, up to the limit of
    /// patience. The first batch of a session that is attached says the same, but not one of a capture
    /// that is shown at once.
    pub fn ready(&self) {
        self.shared.queue.push(Word::Ready);
    }

    /// Nothing is attached any more: what clients see is old, until batches come again.
    pub fn detached(&self) {
        self.shared.queue.push(Word::Detached);
    }

    /// The session could not be attached: commands that need it are answered with this text, until
    /// batches come.
    pub fn trouble(&self, text: String) {
        self.shared.queue.push(Word::Trouble(text));
    }

    /// Ends all channels, and waits until clients have read that, up to the deadline.
    pub async fn finish(self, deadline: Duration) -> ServeSummary {
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
            log::warn!("the thread that serves TCF clients does not end; it is left behind");
        } else if self.thread.join().is_err() {
            log::warn!("the thread that serves TCF clients has panicked");
        }
        let mut summary = *lock(&self.shared.summary);
        summary.dropped_events = self.shared.queue.dropped();
        summary
    }
}

impl Shared {
    fn new() -> Shared {
        Shared {
            queue: Queue::new(QUEUE_BYTES),
            wants_new_epoch: AtomicBool::new(false),
            orders: Mutex::default(),
            ordered: Notify::new(),
            summary: Mutex::default(),
        }
    }

    fn orders(&self) -> MutexGuard<'_, Orders> {
        lock(&self.orders)
    }

    /// Tells the main thread; gives back the id of a question that it has no room for.
    pub(super) fn order(&self, order: Order) -> Result<(), u64> {
        let mut orders = self.orders();
        match order {
            Order::Demand(demand) => orders.demand = Some(demand),
            Order::Ask(question) if orders.questions.len() >= MAX_QUESTIONS => {
                return Err(question.id);
            }
            Order::Ask(question) => orders.questions.push_back(question),
            Order::Failed(_) => orders.over = true,
        }
        drop(orders);
        self.ordered.notify_one();
        Ok(())
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
