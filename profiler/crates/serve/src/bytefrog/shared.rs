//! What the threads of an agent share: queues between them, what HQ said last, and how it ended.
//!
//! What does not belong here: what each thread does.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use super::StreamSummary;
use super::buffers::Pool;
use super::error::AgentError;
use super::outbox::Outbox;
use super::run_change::RunChange;
use super::settings::Settings;
use super::unacknowledged::unacknowledged_bytes;
use crate::queue::Queue;
use profiler_wire::bytefrog::{AgentMessage, Configuration, Mode};

/// Shared by all threads of an agent.
pub(super) struct Shared {
    /// Batches that are to be translated.
    pub(super) queue: Queue<RunChange>,
    /// Bytes that are to be sent.
    pub(super) pool: Pool,
    /// Messages for the control connection.
    pub(super) outbox: Outbox,
    /// What HQ said.
    pub(super) said: watch::Sender<Said>,
    /// How far the run is.
    pub(super) progress: watch::Sender<Progress>,
    /// The tables on this side have grown too large.
    pub(super) tables_full: AtomicBool,
    /// What has been translated.
    pub(super) translated: Mutex<StreamSummary>,
    /// The data connections, to look at.
    data: Mutex<Vec<OwnedFd>>,
    error: watch::Sender<Option<AgentError>>,
    mode: Mutex<Mode>,
}

/// What HQ said so far.
#[derive(Clone, Debug, Default)]
pub(super) struct Said {
    /// Its last configuration, and what it comes to.
    pub(super) configured: Option<(Configuration, Settings)>,
    /// It started the run, and so expects data connections.
    pub(super) started: bool,
    /// It has accepted all data connections.
    pub(super) accepted: bool,
    /// It ended the run, or has taken note that it ended.
    pub(super) stopped: bool,
}

/// How far a run is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Progress {
    /// Events come, or will come.
    #[default]
    Running,
    /// All events have been handed to the send buffers.
    Translated,
    /// All data has been sent; HQ was told.
    Leaving,
    /// Connections are being closed.
    Closing,
}

impl Shared {
    pub(super) fn new(queue_bytes: usize) -> Shared {
        Shared {
            queue: Queue::new(queue_bytes),
            pool: Pool::default(),
            outbox: Outbox::default(),
            said: watch::Sender::default(),
            progress: watch::Sender::default(),
            tables_full: AtomicBool::default(),
            translated: Mutex::default(),
            data: Mutex::default(),
            error: watch::Sender::default(),
            mode: Mutex::new(Mode::Initializing),
        }
    }

    /// Keeps the first error and ends all waiting.
    pub(super) fn fail(&self, error: AgentError) {
        self.error.send_if_modified(|known| {
            let is_first = known.is_none();
            known.get_or_insert(error);
            if is_first {
                // Before anybody learns of it: what is sent from then on is dropped, and counted.
                self.close();
            }
            is_first
        });
    }

    /// Ends all waiting.
    pub(super) fn close(&self) {
        self.queue.close();
        self.pool.close();
        self.outbox.close();
        self.watch_data(Vec::new());
    }

    /// Sets the data connections whose way to HQ can be asked for. They are not closed before they
    /// are forgotten.
    pub(super) fn watch_data(&self, connections: Vec<OwnedFd>) {
        *self.data() = connections;
    }

    fn data(&self) -> MutexGuard<'_, Vec<OwnedFd>> {
        self.data.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether HQ's system has all data that was handed over; nothing when it is over.
    pub(super) fn has_arrived(&self) -> Option<bool> {
        let drained = self.pool.is_drained()?;
        // What can't be asked is broken, which its task says.
        let arrived = |fd: &OwnedFd| !matches!(unacknowledged_bytes(fd), Ok(1..));
        Some(drained && self.data().iter().all(arrived))
    }

    /// What went wrong, when it does. Cancel-safe.
    pub(super) async fn failed(&self) -> AgentError {
        let mut errors = self.error.subscribe();
        let error = errors.wait_for(Option::is_some).await;
        match error.ok().and_then(|error| error.clone()) {
            Some(error) => error,
            // The sender lives as long as `self`.
            None => std::future::pending().await,
        }
    }

    /// Takes a configuration of HQ.
    pub(super) fn configure(&self, configuration: &Configuration) {
        let (settings, warnings) = Settings::new(configuration);
        for warning in warnings {
            log::warn!("configuration of HQ: {warning}");
        }
        self.pool.configure(settings.buffers, settings.buffer_bytes);
        let configured = (configuration.clone(), settings);
        self.said
            .send_modify(|said| said.configured = Some(configured));
        // Before anything that an order behind it brings.
        self.report(self.mode());
    }

    /// What HQ wants, if it has said so.
    pub(super) fn configured(&self) -> Option<(Configuration, Settings)> {
        self.said.borrow().configured.clone()
    }

    /// Tells HQ another mode, at once. Nothing follows shutting down.
    pub(super) fn report(&self, mode: Mode) {
        let mut known = self.mode.lock().unwrap_or_else(PoisonError::into_inner);
        if *known == Mode::ShuttingDown {
            return;
        }
        *known = mode;
        // Nothing may be said before HQ's configuration came; that brings the first heartbeat.
        if self.said.borrow().configured.is_some() {
            self.outbox.push(&self.heartbeat_of(mode));
        }
    }

    fn mode(&self) -> Mode {
        *self.mode.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells HQ that the agent lives, unless it does not even read what it was told before.
    pub(super) fn heartbeat(&self) {
        let mode = self.mode.lock().unwrap_or_else(PoisonError::into_inner);
        if *mode != Mode::ShuttingDown && self.outbox.is_empty() {
            self.outbox.push(&self.heartbeat_of(*mode));
        }
    }

    fn heartbeat_of(&self, mode: Mode) -> AgentMessage<'static> {
        let filled = self.pool.filled();
        AgentMessage::Heartbeat { mode, filled }
    }

    /// Goes a step further.
    pub(super) fn advance(&self, to: Progress) {
        self.progress.send_modify(|at| *at = to.max(*at));
    }

    /// Whether ids should start anew.
    pub(super) fn wants_new_epoch(&self) -> bool {
        self.tables_full.load(Ordering::Relaxed) || self.queue.wants_new_epoch()
    }
}
