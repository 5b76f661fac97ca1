//! The thread that serves: sockets, batches and time -> the agent, and what it has to say -> sockets.
//!
//! One task takes batches and calls and keeps the time, one accepts, and each connection has one. They share the
//! agent, and none waits while it holds it. Who does not read what waits for it is not read from either, and closed
//! after a while. What does not belong here: what is said.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::{LocalSet, spawn_local, yield_now};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, sleep_until};
use tokio_rustls::TlsAcceptor;

use super::agent::{Agent, ConnectionId};
use super::front::RdpSummary;
use super::options::RdpPeer;
use crate::admission::Admission;
use crate::handle::{Lines, Shared, Word, lock};
use crate::queue::{Entry, Popped, Work};
use crate::sockets::{prepare, say_and_leave, serve_until};
use crate::tls::agree;
use profiler_model::{Batch, Tracing};

/// Connections whose owner is looked up at a time.
pub(super) const ADMITTING: usize = 2;
/// Connections beyond those that are served: being admitted, refused or closed.
const MORE_CONNECTIONS: usize = 64;
/// How often it is looked what is due.
const TICK: Duration = Duration::from_millis(50);
/// What is read, or written, at a time.
const PIECE: usize = 64 << 10;
/// After a connection could not be accepted.
const PAUSE: Duration = Duration::from_millis(50);

/// What all tasks share.
struct Serving {
    shared: Arc<Shared<RdpSummary>>,
    agent: RefCell<Agent>,
    /// Wakes the task of a connection.
    wakers: RefCell<BTreeMap<ConnectionId, Rc<Notify>>>,
    admission: Admission,
    tls: Option<TlsAcceptor>,
    /// Nobody is let in any more.
    closing: watch::Sender<bool>,
    stall: Duration,
    refused: RefCell<u64>,
}

/// Serves until that is to end.
pub(super) async fn run(
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    agent: Agent,
    lines: Lines<RdpSummary>,
) {
    let Lines { shared, finished } = lines;
    let options = agent.options();
    let most = options.limits.connections + MORE_CONNECTIONS;
    let connections = Arc::new(Semaphore::new(most));
    let serving = Rc::new(Serving {
        shared,
        admission: options.admission.clone(),
        tls,
        closing: watch::Sender::new(false),
        stall: options.limits.stall,
        agent: RefCell::new(agent),
        wakers: RefCell::default(),
        refused: RefCell::default(),
    });
    let tasks = LocalSet::new();
    let work = async {
        let accepting = spawn_local(accept(
            Rc::clone(&serving),
            listener,
            Arc::clone(&connections),
        ));
        let finish = || {
            serving.change(Agent::finish);
            serving.closing.send_replace(true);
        };
        let work = (accepting, serve(&serving));
        serve_until(finished, work, (&connections, most), finish).await;
    };
    tasks.run_until(work).await;
    *lock(&serving.shared.summary) = RdpSummary {
        refused: *serving.refused.borrow(),
        ..serving.agent.borrow().summary()
    };
}

impl Serving {
    /// Does something to the agent, and sees to what comes of it.
    fn change<T>(&self, change: impl FnOnce(&mut Agent) -> T) -> T {
        self.change_for(None, change)
    }

    /// The same for the task of a connection, which needs no waking.
    fn change_for<T>(&self, own: Option<ConnectionId>, change: impl FnOnce(&mut Agent) -> T) -> T {
        let mut agent = self.agent.borrow_mut();
        let result = change(&mut agent);
        for order in agent.orders() {
            self.shared.order(order);
        }
        let full = agent.wants_new_epoch();
        self.shared.wants_new_epoch.store(full, Ordering::Relaxed);
        for (&connection, waker) in &*self.wakers.borrow() {
            if Some(connection) == own {
                continue;
            }
            // Who has waited for an answer has got one.
            let output = agent.output(connection);
            if output.is_some_and(|it| it.is_last() || !it.bytes().is_empty()) {
                waker.notify_one();
            }
        }
        result
    }

    fn refuse(&self, reason: &str) {
        *self.refused.borrow_mut() += 1;
        log::warn!("a client of the remote debugging protocol is refused: {reason}");
    }
}

/// Takes batches and calls, and keeps the time. Returns when the queue is closed.
async fn serve(serving: &Serving) {
    let mut tick = interval(TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let shared = &serving.shared;
    let mut may_have_more = false;
    loop {
        // Clients are served between two batches.
        let batch = async {
            match may_have_more {
                true => yield_now().await,
                false => shared.came.notified().await,
            }
        };
        tokio::select! {
            _ = tick.tick() => {
                serving.change(|agent| agent.tick(now()));
                // There may be more of a capture.
                serving.wakers.borrow().values().for_each(|waker| waker.notify_one());
            }
            () = batch => {
                may_have_more = shared.take_calls(|tracing, entry| {
                    serving.take_calls(tracing, entry);
                });
                match shared.queue.pop(Duration::ZERO) {
                    Popped::Entry(entry) => {
                        let bytes = entry.bytes();
                        serving.take(entry);
                        shared.queue.done(bytes, None);
                        may_have_more = true;
                    }
                    Popped::Nothing => {}
                    Popped::Closed => return,
                }
            }
        }
    }
}

impl Serving {
    fn take(&self, entry: Entry<Word>) {
        self.change(|agent| {
            let batch = Batch {
                epoch: entry.epoch,
                definitions: entry.definitions,
                events: Vec::new(),
            };
            match entry.work {
                Work::Events(events) => agent.batch(Batch { events, ..batch }, now()),
                Work::Define => agent.batch(batch, now()),
                Work::Dropped { count, .. } => {
                    agent.batch(batch, now());
                    log::warn!("{count} samples are not told: the server is too slow");
                }
                Work::Note(word) => {
                    // Definitions may have been put to it.
                    agent.batch(batch, now());
                    match word {
                        Word::Acknowledge(question) => agent.acknowledge(question, now()),
                        Word::Ready => agent.ready(now()),
                        Word::Detached => agent.detached(),
                        Word::Trouble(text) => agent.trouble(text, now()),
                        Word::Untraced(_) => {}
                    }
                }
            }
        });
    }

    fn take_calls(&self, tracing: &Tracing, entry: Entry<Word>) {
        self.change(|agent| {
            let batch = Batch {
                epoch: entry.epoch,
                definitions: entry.definitions,
                events: Vec::new(),
            };
            match entry.work {
                Work::Events(events) => agent.traced(tracing, Batch { events, ..batch }, now()),
                Work::Define => agent.traced(tracing, batch, now()),
                Work::Dropped { count, .. } => {
                    agent.traced(tracing, batch, now());
                    agent.dropped_calls(tracing, count);
                }
                Work::Note(word) => {
                    agent.traced(tracing, batch, now());
                    match word {
                        Word::Acknowledge(question) => agent.acknowledge(question, now()),
                        Word::Untraced(text) => agent.untraced(tracing, &text),
                        Word::Ready | Word::Detached | Word::Trouble(_) => {}
                    }
                }
            }
        });
    }
}

async fn accept(serving: Rc<Serving>, listener: TcpListener, connections: Arc<Semaphore>) {
    let listener = match tokio::net::TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return log::error!("no client can be accepted: {error}"),
    };
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => match Arc::clone(&connections).try_acquire_owned() {
                Ok(permit) => {
                    let serving = Rc::clone(&serving);
                    spawn_local(async move { connect(&serving, stream, peer, permit).await });
                }
                Err(_) => serving.refuse(&format!("{peer} is one of too many connections")),
            },
            Err(error) => {
                // Too many open files, for instance: others have to end first.
                log::warn!("a client was not accepted: {error}");
                sleep(PAUSE).await;
            }
        }
    }
}

/// Lives through one connection, which ends with the permit.
async fn connect(
    serving: &Serving,
    stream: TcpStream,
    address: SocketAddr,
    _permit: OwnedSemaphorePermit,
) {
    let uid = match serving.admission.admit_aside(&stream, address).await {
        Ok(Ok(uid)) => uid,
        Ok(Err(refusal)) => return serving.refuse(&refusal.to_string()),
        Err(error) => return log::debug!("{address} was not admitted: {error}"),
    };
    if let Err(error) = prepare(&stream) {
        return log::debug!("{address} has gone: {error}");
    }
    let peer = RdpPeer { address, uid };
    let Some(tls) = &serving.tls else {
        return converse(serving, stream, peer).await;
    };
    let mut closing = serving.closing.subscribe();
    tokio::select! {
        agreed = agree(tls, stream, address) => match agreed {
            Ok(stream) => converse(serving, stream, peer).await,
            Err(reason) => serving.refuse(&reason),
        },
        _ = closing.wait_for(|closing| *closing) => {}
    }
}

/// A conversation, from the greeting to the end.
async fn converse(serving: &Serving, stream: impl AsyncRead + AsyncWrite + Unpin, peer: RdpPeer) {
    if *serving.closing.borrow() {
        return;
    }
    let address = peer.address;
    let Some(id) = serving.change(|agent| agent.open(peer)) else {
        return serving.refuse(&format!("{address} is one of too many connections"));
    };
    // It takes a place until the client has left.
    let open = Open::new(serving, id);
    let (mut reader, mut writer) = tokio::io::split(stream);
    match open.serve(&mut reader, &mut writer).await {
        Ok(()) => say_and_leave(reader.unsplit(writer), &[]).await,
        Err(error) => log::debug!("connection of {address}: {error}"),
    }
}

/// A connection in the agent, as long as this lives.
struct Open<'a> {
    serving: &'a Serving,
    id: ConnectionId,
    waker: Rc<Notify>,
}

impl<'a> Open<'a> {
    fn new(serving: &'a Serving, id: ConnectionId) -> Open<'a> {
        let waker = Rc::new(Notify::new());
        serving.wakers.borrow_mut().insert(id, Rc::clone(&waker));
        Open { serving, id, waker }
    }

    /// Returns when the end of the stream was sent, or the client has closed it; an error when that is not possible.
    async fn serve(
        &self,
        reader: &mut (impl AsyncRead + Unpin),
        writer: &mut (impl AsyncWrite + Unpin),
    ) -> io::Result<()> {
        let mut input = vec![0; PIECE];
        // What has come and was not taken yet.
        let mut come = 0..0;
        let mut has_ended = false;
        // Since when something has waited without being sent.
        let mut waiting: Option<Instant> = None;
        loop {
            let plays = self.change(|agent| agent.play(self.id));
            let takes_more = self.serving.agent.borrow().takes_more(self.id);
            if !come.is_empty() && takes_more {
                let bytes = &input[come.clone()];
                let receive = |agent: &mut Agent| agent.receive(self.id, bytes, now());
                let taken = self.change(receive);
                come.start += taken;
                // A socket that can be written and read at once would never let others go on.
                yield_now().await;
            }
            let Some((piece, is_last)) = self.next() else {
                return Err(io::ErrorKind::BrokenPipe.into());
            };
            let waits = !piece.is_empty();
            if is_last && !waits {
                return Ok(());
            }
            let takes_more = self.serving.agent.borrow().takes_more(self.id);
            if has_ended && come.is_empty() && takes_more {
                // All that it has asked for is answered.
                if !waits {
                    return Ok(());
                }
            }
            let since = match waits {
                true => *waiting.get_or_insert_with(Instant::now),
                false => Instant::now(),
            };
            tokio::select! {
                written = writer.write(&piece), if waits => {
                    let count = written?;
                    if count == 0 {
                        return Err(io::ErrorKind::WriteZero.into());
                    }
                    waiting = None;
                    self.change(|agent| {
                        if let Some(output) = agent.output(self.id) {
                            output.advance(count);
                        }
                    });
                }
                read = reader.read(&mut input), if come.is_empty() && takes_more && !has_ended => {
                    come = 0..read?;
                    has_ended = come.is_empty();
                }
                () = yield_now(), if plays || (!come.is_empty() && takes_more) => {}
                () = self.waker.notified() => {}
                () = sleep_until(since + self.serving.stall), if waits => {
                    self.change(|agent| agent.give_up(self.id));
                }
            }
        }
    }

    fn change<T>(&self, change: impl FnOnce(&mut Agent) -> T) -> T {
        self.serving.change_for(Some(self.id), change)
    }

    /// What is to be sent next, and whether nothing comes behind it; none if the connection is no more.
    fn next(&self) -> Option<(Vec<u8>, bool)> {
        let mut agent = self.serving.agent.borrow_mut();
        let output = agent.output(self.id)?;
        let bytes = output.bytes();
        let piece = bytes[..bytes.len().min(PIECE)].to_vec();
        Some((piece, output.is_last()))
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.serving.wakers.borrow_mut().remove(&self.id);
        self.serving.change(|agent| agent.close(self.id));
    }
}

fn now() -> std::time::Instant {
    std::time::Instant::now()
}
