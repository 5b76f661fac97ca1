//! The listening socket, the runs, and the handle by which they are led.

use std::collections::VecDeque;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::budget::Budget;
use super::connection::{self, Incoming};
use super::life::{Order, OrderError};
use super::options::HqOptions;
use super::receive::{HqEvent, Receiver, RunStatus};
use super::run::Run;
use crate::admission::Refusal;

/// Connections at a time, of all runs and of those that have not said what they are.
const MAX_CONNECTIONS: usize = 512;
/// Runs at a time.
const MAX_RUNS: usize = 32;
/// Peers turned away and signs of life that wait to be told of; more are forgotten. What begins and
/// ends a run is not: whoever counts runs waits for it.
const MAX_EVENTS: usize = 1024;
/// How long a run that has to make room may take to end.
const ROOM: Duration = Duration::from_secs(1);
/// How often the listener looks whether it is to end.
const POLL: Duration = Duration::from_millis(50);

/// An HQ can't listen.
#[derive(Debug, thiserror::Error)]
pub enum HqError {
    /// Not at this address.
    #[error("failed to listen at {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What went wrong.
        source: io::Error,
    },
    /// Not at an address that others can reach.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// There are no more threads.
    #[error("failed to start a thread: {0}")]
    Thread(io::Error),
}

/// Makes the receiver of a run: its number, the agent's address.
pub(super) type Opener = dyn FnMut(u8, SocketAddr) -> Result<Box<dyn Receiver>, String> + Send;

pub(super) struct Shared {
    pub(super) options: HqOptions,
    opener: Mutex<Box<Opener>>,
    runs: Mutex<Runs>,
    events: Mutex<VecDeque<HqEvent>>,
    happened: Condvar,
    connections: AtomicUsize,
    budget: Arc<Budget>,
    pub(super) closing: AtomicBool,
}

#[derive(Default)]
struct Runs {
    active: Vec<Arc<Run>>,
    begun: u64,
    next: u8,
}

/// A running HQ. Dropping it ends all runs.
pub struct Hq {
    shared: Arc<Shared>,
    address: SocketAddr,
    acceptor: Option<JoinHandle<()>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Hq {
    /// Listens at `address` (port 0: any). `opener` makes the receiver of each run, by its number
    /// and the agent's address; its error is told to the agent.
    pub fn start(
        address: SocketAddr,
        options: HqOptions,
        opener: impl FnMut(u8, SocketAddr) -> Result<Box<dyn Receiver>, String> + Send + 'static,
    ) -> Result<Hq, HqError> {
        options.admission.may_listen(address)?;
        let failed = |source| HqError::Listen { address, source };
        let listener = TcpListener::bind(address).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let budget = Arc::new(Budget::new(options.memory));
        let shared = Arc::new(Shared {
            options,
            budget,
            opener: Mutex::new(Box::new(opener)),
            runs: Mutex::default(),
            events: Mutex::default(),
            happened: Condvar::new(),
            connections: AtomicUsize::new(0),
            closing: AtomicBool::new(false),
        });
        let theirs = Arc::clone(&shared);
        let acceptor = std::thread::Builder::new()
            .name("hq-accept".into())
            .spawn(move || accept(&theirs, &listener))
            .map_err(HqError::Thread)?;
        Ok(Hq {
            shared,
            address,
            acceptor: Some(acceptor),
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Gives an order to one run, or to all; how each took it.
    pub fn order(&self, run: Option<u8>, order: Order) -> Vec<(u8, Result<(), OrderError>)> {
        let active = lock(&self.shared.runs).active.clone();
        active
            .iter()
            .filter(|candidate| run.is_none_or(|run| candidate.id == run))
            .map(|run| (run.id, run.order(order)))
            .collect()
    }

    /// The runs that go on.
    pub fn status(&self) -> Vec<RunStatus> {
        let active = lock(&self.shared.runs).active.clone();
        active.iter().map(|run| run.status()).collect()
    }

    /// The next thing that happened, waiting for it so long.
    pub fn next_event(&self, timeout: Duration) -> Option<HqEvent> {
        let deadline = Instant::now() + timeout;
        let mut events = lock(&self.shared.events);
        loop {
            if let Some(event) = events.pop_front() {
                return Some(event);
            }
            let left = deadline.checked_duration_since(Instant::now())?;
            let waited = self.shared.happened.wait_timeout(events, left);
            events = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Gives all runs up at once; they end as failed, and what came is kept.
    pub fn abandon(&self, reason: &str) {
        for run in lock(&self.shared.runs).active.clone() {
            run.abandon(reason);
        }
    }
}

impl Drop for Hq {
    fn drop(&mut self) {
        self.shared.closing.store(true, Ordering::Release);
        self.abandon("the receiver is closing");
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
        // Receivers are closed by the threads of their runs.
        let deadline = Instant::now() + Duration::from_secs(10);
        while !lock(&self.shared.runs).active.is_empty() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Shared {
    pub(super) fn tell(&self, event: HqEvent) {
        let mut events = lock(&self.events);
        let counts = matches!(event, HqEvent::Began { .. } | HqEvent::Ended(_));
        if events.len() >= MAX_EVENTS && !counts {
            return;
        }
        events.push_back(event);
        self.happened.notify_all();
    }

    /// A run by its number.
    pub(super) fn find(&self, id: u8) -> Option<Arc<Run>> {
        let runs = lock(&self.runs);
        runs.active.iter().find(|run| run.id == id).cloned()
    }

    /// Where there are as many runs as there may be, the one goes that has said nothing for longest.
    pub(super) fn make_room(&self) {
        let deadline = Instant::now() + ROOM;
        let mut asked = false;
        while self.is_full() && Instant::now() < deadline {
            if !std::mem::replace(&mut asked, true) {
                let active = lock(&self.runs).active.clone();
                let silent = active
                    .iter()
                    .filter_map(|run| Some((run.is_silent()?, run)));
                let Some((_, run)) = silent.max_by_key(|(silent, _)| *silent) else {
                    return;
                };
                run.abandon("it has said nothing for long, and another one has come");
            }
            std::thread::sleep(POLL);
        }
    }

    fn is_full(&self) -> bool {
        lock(&self.runs).active.len() >= MAX_RUNS
    }

    /// Makes a run of a control connection; an error is told to the agent.
    pub(super) fn begin(
        &self,
        peer: SocketAddr,
        writer: TcpStream,
        incoming: Incoming,
    ) -> Result<Arc<Run>, String> {
        let mut runs = lock(&self.runs);
        if runs.active.len() >= MAX_RUNS {
            return Err(format!("{MAX_RUNS} runs are received already"));
        }
        if self.options.runs.is_some_and(|most| runs.begun >= most) {
            return Err("no more runs are received".to_owned());
        }
        let mut id = runs.next;
        while runs.active.iter().any(|run| run.id == id) {
            id = id.wrapping_add(1);
        }
        let receiver = lock(&self.opener)(id, peer)?;
        let run = Arc::new(Run::new(
            (id, runs.begun),
            peer,
            (writer, incoming),
            Arc::clone(&self.budget),
            self.options.clone(),
            receiver,
        ));
        runs.next = id.wrapping_add(1);
        runs.begun += 1;
        runs.active.push(Arc::clone(&run));
        drop(runs);
        self.tell(HqEvent::Began { run: id, peer });
        Ok(run)
    }

    pub(super) fn remove(&self, id: u8) {
        lock(&self.runs).active.retain(|run| run.id != id);
    }
}

fn accept(shared: &Arc<Shared>, listener: &TcpListener) {
    while !shared.closing.load(Ordering::Acquire) {
        match listener.accept() {
            Ok((stream, peer)) => admit(shared, stream, peer),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => wait(listener),
            Err(error) => {
                log::debug!("a connection was not accepted: {error}");
                // Too many open files, for instance: others have to end first.
                std::thread::sleep(POLL);
            }
        }
    }
}

/// Until someone connects, or it is time to look whether to end.
fn wait(listener: &TcpListener) {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let timeout = Timespec {
        tv_sec: 0,
        tv_nsec: i64::from(POLL.subsec_nanos()),
    };
    let mut fds = [PollFd::new(listener, PollFlags::IN)];
    // An interruption is looked at like a connection.
    let _ = poll(&mut fds, Some(&timeout));
}

fn admit(shared: &Arc<Shared>, stream: TcpStream, peer: SocketAddr) {
    let refuse = |reason: String| shared.tell(HqEvent::Refused { peer, reason });
    if shared.connections.fetch_add(1, Ordering::AcqRel) >= MAX_CONNECTIONS {
        shared.connections.fetch_sub(1, Ordering::AcqRel);
        return refuse(format!("there are {MAX_CONNECTIONS} connections already"));
    }
    let theirs = Arc::clone(shared);
    let thread = std::thread::Builder::new().name("hq-data".into());
    let started = thread.spawn(move || {
        connection::serve(&theirs, stream, peer);
        theirs.connections.fetch_sub(1, Ordering::AcqRel);
    });
    if let Err(error) = started {
        shared.connections.fetch_sub(1, Ordering::AcqRel);
        refuse(format!("failed to start a thread: {error}"));
    }
}
