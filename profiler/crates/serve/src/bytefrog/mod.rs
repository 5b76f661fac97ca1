//! An agent of Bytefrog: a recording's calls -> messages to an HQ, its orders -> the recording.
//!
//! ```text
//! main thread --- batches ---> queue --- thread "bytefrog" ---> send buffers --- thread
//!     ^            (bounded)              (translates)            (bounded)     "bytefrog-net"
//!     +--------------------------- orders -------------------------------------------+
//! ```
//! [`Agent`] is the handle of the main thread: it never blocks there. The queue and the buffers are
//! bounded; an HQ that is too slow costs events, counted, and a data break. A connection that breaks
//! ends the run, because nothing may be missing in it: [`Order::Lost`].
//!
//! Times are CLOCK_MONOTONIC. What does not belong here: byte layouts (`wire::bytefrog`), carrying
//! out orders (`pipeline`).

mod buffers;
mod connection;
mod control;
mod data;
mod error;
mod feed;
mod life;
mod network;
mod outbox;
mod run_change;
mod settings;
mod shared;
mod unacknowledged;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

pub use error::AgentError;
use feed::Feed;
use network::{Command, Lines, Peer};
use run_change::RunChange;
use shared::Shared;

use profiler_model::{Batch, Consumer, Event, Timestamp};
use profiler_report::export::bytefrog::NameStyle;
use profiler_wire::bytefrog::{AgentMessage, Configuration, Mode};

/// Orders that may wait for the main thread.
const ORDERS: usize = 16;

/// Where an agent connects, and how it translates.
#[derive(Clone, Debug)]
pub struct AgentOptions {
    /// `HOST` or `HOST:PORT`.
    pub address: String,
    /// How long connecting is tried; none: for ever.
    pub connect_timeout: Option<Duration>,
    /// Memory that events may take while HQ is slow.
    pub queue_bytes: usize,
    /// How methods are named.
    pub names: NameStyle,
    /// Calls are inferred from samples of stacks.
    pub samples: bool,
}

/// What HQ wants, in an order that makes sense (see [`life`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Order {
    /// How to work. May come again until the start; the last one counts.
    Configure(Configuration),
    /// The program may run.
    Start,
    /// The run is to end.
    Stop,
    /// The program is to stand still.
    Pause,
    /// It may go on.
    Unpause,
    /// Recording is to be off. May come before the start.
    Suspend,
    /// It is to be on again.
    Unsuspend,
    /// The run can't go on. Comes once, nothing follows.
    Lost(AgentError),
}

/// What became of a class: of an object's functions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClassNote {
    /// It is traced.
    Transformed(String),
    /// It is not, as asked.
    Ignored(String),
    /// It can't be.
    Failed(String),
}

/// What a run came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamSummary {
    /// Data messages.
    pub messages: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Methods entered.
    pub entries: u64,
    /// Methods left, by returning or by an exception.
    pub exits: u64,
    /// Those of them that no event told.
    pub exits_inferred: u64,
    /// Exits of calls that were not open, which HQ is not told of.
    pub exits_left_out: u64,
    /// Events that found no room.
    pub dropped_events: u64,
    /// Places where something is missing, as HQ knows them.
    pub data_breaks: u64,
    /// Notes of classes that were left out because HQ did not read.
    pub notes_left_out: u64,
}

/// The main thread's handle of an agent. Dropping it gives the run up.
pub struct Agent {
    shared: Arc<Shared>,
    orders: mpsc::Receiver<Order>,
    commands: mpsc::UnboundedSender<Command>,
    done: oneshot::Receiver<Result<(), AgentError>>,
    threads: [(&'static str, JoinHandle<()>); 2],
    begun: AtomicBool,
    /// [`Order::Lost`] has been given.
    lost: bool,
}

impl Agent {
    /// Starts the threads. They connect, and try again each second until the time-out.
    pub fn start(options: AgentOptions) -> Result<Agent, AgentError> {
        let address = connection::parse_address(&options.address)?;
        let failed = |name, error: std::io::Error| AgentError::Thread {
            name,
            reason: error.to_string(),
        };
        let shared = Arc::new(Shared::new(options.queue_bytes));
        let (orders, theirs) = mpsc::channel(ORDERS);
        let (commands, commanded) = mpsc::unbounded_channel();
        let (done, ended) = oneshot::channel();
        let peer = Peer {
            address,
            patience: options.connect_timeout,
        };
        let lines = Lines {
            orders,
            commands: commanded,
            done,
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| failed("bytefrog-net", error))?;
        let ours = Arc::clone(&shared);
        let network = std::thread::Builder::new()
            .name("bytefrog-net".into())
            .spawn(move || {
                let guard = feed::Guard::new(Arc::clone(&ours), "bytefrog-net");
                runtime.block_on(network::run(ours, peer, lines));
                // A name that is still being looked up is not waited for.
                runtime.shutdown_background();
                drop(guard);
            })
            .map_err(|error| failed("bytefrog-net", error))?;
        let feed = Feed::new(Arc::clone(&shared), options.names, options.samples);
        let feed = std::thread::Builder::new()
            .name("bytefrog".into())
            .spawn(move || feed.run())
            .map_err(|error| failed("bytefrog", error))?;
        Ok(Agent {
            shared,
            orders: theirs,
            commands,
            done: ended,
            threads: [("bytefrog-net", network), ("bytefrog", feed)],
            begun: AtomicBool::new(false),
            lost: false,
        })
    }

    /// The next order; waits for it. Cancel-safe.
    pub async fn order(&mut self) -> Order {
        tokio::select! {
            biased;
            Some(order) = self.orders.recv() => order,
            error = self.shared.failed(), if !self.lost => {
                self.lost = true;
                Order::Lost(error)
            }
            else => std::future::pending().await,
        }
    }

    /// Tells HQ at once, and by heartbeats from now on, what is being done.
    pub fn report(&self, mode: Mode) {
        self.shared.report(mode);
    }

    /// Tracing begins: times count from here, data connections open.
    pub fn begin(&self, at: Timestamp) {
        if !self.begun.swap(true, Ordering::Relaxed) {
            self.shared.queue.push(RunChange::Begin(at));
            // If the thread is gone, it has been said why.
            let _ = self.commands.send(Command::Begin);
        }
    }

    /// Waits until HQ has accepted all data connections, after [`Agent::begin`]. If it does not, the run is lost.
    /// Cancel-safe.
    pub fn accepted(&self) -> impl Future<Output = ()> + use<> {
        let mut said = self.shared.said.subscribe();
        async move {
            if said.wait_for(|said| said.accepted).await.is_err() {
                std::future::pending().await
            }
        }
    }

    /// Tells HQ what became of a class. Only after it has configured the run.
    pub fn class(&self, note: ClassNote) {
        if self.shared.said.borrow().configured.is_none() {
            return;
        }
        self.shared.outbox.inform(&match note {
            ClassNote::Transformed(name) => AgentMessage::ClassTransformed(name.into()),
            ClassNote::Ignored(name) => AgentMessage::ClassIgnored(name.into()),
            ClassNote::Failed(name) => AgentMessage::ClassTransformFailed(name.into()),
        });
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
        self.shared.wants_new_epoch()
    }

    /// Recording is off from here on, in the order of batches.
    pub fn suspend(&self, at: Timestamp) {
        self.shared.queue.push(RunChange::Suspend(at));
    }

    /// Recording is on again.
    pub fn resume(&self, at: Timestamp) {
        self.shared.queue.push(RunChange::Resume(at));
    }

    /// Ends the run: sends what is left, tells HQ, waits for its answer, closes.
    pub async fn finish(
        self,
        at: Timestamp,
        deadline: Duration,
    ) -> Result<StreamSummary, AgentError> {
        if self.shared.said.borrow().started {
            // HQ waits for data connections, even if it wants nothing of them.
            self.begin(at);
        }
        self.shared.queue.push(RunChange::End(at));
        let _ = self
            .commands
            .send(Command::Finish(Instant::now() + deadline));
        self.ended().await
    }

    /// Gives the run up: HQ is told why, if it can be.
    pub async fn abort(self, why: &str) -> AgentError {
        self.shared.fail(AgentError::GivenUp(why.to_owned()));
        match self.ended().await {
            Err(error) => error,
            Ok(_) => AgentError::GivenUp(why.to_owned()),
        }
    }

    async fn ended(self) -> Result<StreamSummary, AgentError> {
        // Orders that still come have no meaning, and must not hold the network up.
        drop(self.orders);
        let result = self.done.await;
        let mut panicked = None;
        for (name, thread) in self.threads {
            if thread.join().is_err() {
                panicked = Some(name);
            }
        }
        if let Some(name) = panicked {
            return Err(AgentError::Panicked(name));
        }
        result.unwrap_or(Err(AgentError::Panicked("bytefrog-net")))?;
        let mut summary = *self
            .shared
            .translated
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        summary.dropped_events += self.shared.queue.dropped();
        summary.notes_left_out = self.shared.outbox.left_out();
        Ok(summary)
    }
}

impl Consumer for Agent {
    fn wants_new_epoch(&self) -> bool {
        Agent::wants_new_epoch(self)
    }

    fn spare(&self) -> Option<Vec<Event>> {
        Agent::spare(self)
    }

    fn send(&mut self, batch: Batch) -> u64 {
        Agent::send(self, batch)
    }
}
