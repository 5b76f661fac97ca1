//! The thread that serves: sockets, batches and time -> the agent, and what it has to say -> sockets.
//!
//! One task takes batches and keeps the time, one accepts, and each connection has one. They share the
//! agent, and none waits while it holds it. Who floods is read in turns; who does not read what waits
//! for it is not read from either, and closed after a while. What does not belong here: what is said.

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
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::task::{LocalSet, spawn_local, yield_now};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, sleep_until};
use tokio_rustls::TlsAcceptor;

use super::agent::{Agent, ChannelId};
use super::options::Peer;
use super::server::{ServeSummary, Shared, Word, lock};
use super::warnings::Warnings;
use crate::admission::Admission;
use crate::queue::{Entry, Popped, Work};
use crate::sockets::{prepare, say_and_leave, serve_until};
use crate::tls::agree;
use profiler_model::Batch;
use profiler_wire::tcf::{Code, ErrorReport, Frame};

/// Connections whose owner is looked up at a time.
pub(super) const ADMITTING: usize = 2;
/// Connections beyond those that have a channel: being admitted, refused or closed.
const MORE_CONNECTIONS: usize = 64;
/// Refused connections that are told why, at a time.
const TELLING: usize = 16;
/// How often events are told.
const TICK: Duration = Duration::from_millis(100);
/// What is read, or written, at a time.
const PIECE: usize = 16 << 10;
/// After a connection could not be accepted.
const PAUSE: Duration = Duration::from_millis(50);

/// How the main thread speaks with this one.
pub(super) struct Lines {
    pub(super) shared: Arc<Shared>,
    /// Until when all channels are to be ended; closed: at once.
    pub(super) finished: mpsc::UnboundedReceiver<Instant>,
    pub(super) tls: Option<TlsAcceptor>,
}

/// What all tasks share.
struct Serving {
    shared: Arc<Shared>,
    agent: RefCell<Agent>,
    /// Wakes the task of a channel.
    wakers: RefCell<BTreeMap<ChannelId, Rc<Notify>>>,
    admission: Admission,
    stall: Duration,
    tls: Option<TlsAcceptor>,
    refused: RefCell<(u64, Warnings)>,
    /// For those who are told why they are refused.
    told: Semaphore,
    /// Nobody gets a channel any more.
    closing: watch::Sender<bool>,
}

/// Serves until that is to end.
pub(super) async fn run(listener: TcpListener, agent: Agent, lines: Lines) {
    let Lines {
        shared,
        finished,
        tls,
    } = lines;
    let options = agent.options();
    let most = options.limits.channels + MORE_CONNECTIONS;
    let connections = Arc::new(Semaphore::new(most));
    let serving = Rc::new(Serving {
        shared,
        admission: options.admission.clone(),
        stall: options.limits.stall,
        agent: RefCell::new(agent),
        wakers: RefCell::default(),
        tls,
        refused: RefCell::default(),
        told: Semaphore::new(TELLING),
        closing: watch::Sender::default(),
    });
    let tasks = LocalSet::new();
    let work = async {
        let accepting = spawn_local(accept(
            Rc::clone(&serving),
            listener,
            Arc::clone(&connections),
        ));
        let finish = || {
            serving.closing.send_replace(true);
            serving.change(Agent::finish);
        };
        let work = (accepting, serve(&serving));
        serve_until(finished, work, (&connections, most), finish).await;
    };
    tasks.run_until(work).await;
    serving.sum_up();
}

impl Serving {
    /// Does something to the agent, and sees to what comes of it.
    fn change<T>(&self, change: impl FnOnce(&mut Agent) -> T) -> T {
        self.change_for(None, change)
    }

    /// The same for the task of a channel, which needs no waking.
    fn change_for<T>(&self, own: Option<ChannelId>, change: impl FnOnce(&mut Agent) -> T) -> T {
        let mut agent = self.agent.borrow_mut();
        let result = change(&mut agent);
        for order in agent.orders() {
            if let Err(question) = self.shared.order(order) {
                agent.acknowledge(question, now());
            }
        }
        let full = agent.wants_new_epoch();
        self.shared.wants_new_epoch.store(full, Ordering::Relaxed);
        for (&channel, waker) in &*self.wakers.borrow() {
            if Some(channel) == own {
                continue;
            }
            let output = agent.output(channel);
            if output.is_some_and(|it| it.is_last() || !it.bytes().is_empty()) {
                waker.notify_one();
            }
        }
        result
    }

    fn refuse(&self, reason: impl FnOnce() -> String) {
        let (count, warnings) = &mut *self.refused.borrow_mut();
        *count += 1;
        warnings.warn(now(), || format!("a TCF client is refused: {}", reason()));
    }

    fn sum_up(&self) {
        *lock(&self.shared.summary) = ServeSummary {
            refused: self.refused.borrow().0,
            ..self.agent.borrow().summary()
        };
    }
}

/// Takes batches, and keeps the time. Returns when the queue is closed.
async fn serve(serving: &Serving) {
    let mut tick = interval(TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let queue = &serving.shared.queue;
    let mut may_have_more = false;
    loop {
        // Clients are served between two batches.
        let batch = async {
            match may_have_more {
                true => yield_now().await,
                false => queue.came().await,
            }
        };
        tokio::select! {
            _ = tick.tick() => serving.change(|agent| agent.tick(now())),
            () = batch => match queue.pop(Duration::ZERO) {
                Popped::Entry(entry) => {
                    serving.take(entry);
                    may_have_more = true;
                }
                Popped::Nothing => may_have_more = false,
                Popped::Closed => return,
            }
        }
    }
}

impl Serving {
    fn take(&self, entry: Entry<Word>) {
        let bytes = entry.bytes();
        let spare = self.change(|agent| {
            let batch = Batch {
                epoch: entry.epoch,
                definitions: entry.definitions,
                events: Vec::new(),
            };
            match entry.work {
                Work::Events(events) => return Some(agent.batch(Batch { events, ..batch }, now())),
                Work::Define => drop(agent.batch(batch, now())),
                Work::Dropped { count, to } => {
                    agent.batch(batch, now());
                    agent.dropped(count, to, now());
                }
                Work::Note(word) => {
                    // Definitions may have been put to it.
                    agent.batch(batch, now());
                    match word {
                        Word::Acknowledge(question) => agent.acknowledge(question, now()),
                        Word::Adjusted(demand) => agent.adjusted(&demand, now()),
                        Word::Ready => agent.ready(now()),
                        Word::Detached => agent.detached(),
                        Word::Trouble(text) => agent.trouble(text, now()),
                    }
                }
            }
            None
        });
        self.shared.queue.done(bytes, spare);
    }
}

async fn accept(serving: Rc<Serving>, listener: TcpListener, connections: Arc<Semaphore>) {
    let listener = match tokio::net::TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return log::error!("no TCF client can be accepted: {error}"),
    };
    let mut warnings = Warnings::default();
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => match Arc::clone(&connections).try_acquire_owned() {
                Ok(permit) => {
                    let serving = Rc::clone(&serving);
                    spawn_local(async move { connect(&serving, stream, peer, permit).await });
                }
                Err(_) => {
                    let reason = "there are too many connections already";
                    serving.refuse(|| format!("{peer}: {reason}"));
                    // Nobody waits until it is read.
                    let _ = stream.try_write(&farewell(reason));
                }
            },
            Err(error) => {
                // Too many open files, for instance: others have to end first.
                warnings.warn(now(), || format!("a TCF client was not accepted: {error}"));
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
        Ok(Err(refusal)) => {
            let reason = refusal.to_string();
            serving.refuse(|| reason.clone());
            // Who awaits TLS would not understand it. Those who are refused must not take the place of others.
            if let (None, Ok(_telling)) = (&serving.tls, serving.told.try_acquire()) {
                say_and_leave(stream, &farewell(&reason)).await;
            }
            return;
        }
        Err(error) => return log::debug!("{address} was not admitted: {error}"),
    };
    if let Err(error) = prepare(&stream) {
        return log::debug!("{address} has gone: {error}");
    }
    let peer = Peer { address, uid };
    let Some(tls) = &serving.tls else {
        return converse(serving, stream, peer).await;
    };
    let mut closing = serving.closing.subscribe();
    tokio::select! {
        agreed = agree(tls, stream, address) => match agreed {
            Ok(stream) => converse(serving, stream, peer).await,
            Err(reason) => serving.refuse(|| reason),
        },
        _ = closing.wait_for(|closing| *closing) => {}
    }
}

/// A channel, from Hello to the end.
async fn converse(serving: &Serving, stream: impl AsyncRead + AsyncWrite + Unpin, peer: Peer) {
    if *serving.closing.borrow() {
        return;
    }
    let opened = serving.change(|agent| agent.open(peer));
    let address = peer.address;
    match opened {
        Ok(id) => {
            log::debug!("channel of {address} opened");
            let (mut reader, mut writer) = tokio::io::split(stream);
            let channel = OpenChannel::new(serving, id);
            let result = channel.serve(&mut reader, &mut writer).await;
            drop(channel);
            match result {
                Ok(()) => say_and_leave(reader.unsplit(writer), &[]).await,
                Err(error) => log::debug!("channel of {address}: {error}"),
            }
        }
        Err(too_many) => {
            serving.refuse(|| format!("{address} is one of too many channels"));
            say_and_leave(stream, &too_many.0).await;
        }
    }
}

/// What a client is told that gets no channel.
fn farewell(reason: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    Frame::encode_end(&ErrorReport::new(Code::Other, reason).encode(), &mut bytes);
    bytes
}

/// A channel in the agent, as long as this lives.
struct OpenChannel<'a> {
    serving: &'a Serving,
    id: ChannelId,
    waker: Rc<Notify>,
}

impl<'a> OpenChannel<'a> {
    fn new(serving: &'a Serving, id: ChannelId) -> OpenChannel<'a> {
        let waker = Rc::new(Notify::new());
        serving.wakers.borrow_mut().insert(id, Rc::clone(&waker));
        OpenChannel { serving, id, waker }
    }

    /// Returns when the end of the stream was sent; an error when that is not possible.
    async fn serve(
        &self,
        reader: &mut (impl AsyncRead + Unpin),
        writer: &mut (impl AsyncWrite + Unpin),
    ) -> io::Result<()> {
        let mut input = vec![0; PIECE];
        // What has come and was not taken yet.
        let mut come = 0..0;
        let mut is_flushed = true;
        // Since when something has waited without being sent.
        let mut waiting: Option<Instant> = None;
        loop {
            if !come.is_empty() {
                let bytes = &input[come.clone()];
                let receive = |agent: &mut Agent| agent.receive(self.id, bytes, now());
                come.start += self.serving.change_for(Some(self.id), receive);
                // A socket that can be written and read at once would never let others go on.
                yield_now().await;
            }
            let Some(next) = self.next() else {
                return Err(io::ErrorKind::BrokenPipe.into());
            };
            let waits = !next.piece.is_empty() || !is_flushed;
            if next.is_last && !waits {
                return Ok(());
            }
            let since = match waits {
                true => *waiting.get_or_insert_with(Instant::now),
                false => Instant::now(),
            };
            let write = async {
                match next.piece.is_empty() {
                    true => writer.flush().await.map(|()| 0),
                    false => writer.write(&next.piece).await,
                }
            };
            tokio::select! {
                written = write, if waits => {
                    let count = written?;
                    if !next.piece.is_empty() && count == 0 {
                        return Err(io::ErrorKind::WriteZero.into());
                    }
                    is_flushed = next.piece.is_empty();
                    waiting = None;
                    self.advance(count);
                }
                read = reader.read(&mut input), if come.is_empty() && next.takes_more => {
                    come = 0..read?;
                    if come.is_empty() {
                        let end = |agent: &mut Agent| agent.end_of_input(self.id);
                        self.serving.change_for(Some(self.id), end);
                    }
                }
                () = yield_now(), if !come.is_empty() && next.takes_more => {}
                () = self.waker.notified() => {}
                () = sleep_until(since + self.serving.stall), if waits => {
                    let give_up = |agent: &mut Agent| agent.give_up(self.id, now());
                    self.serving.change_for(Some(self.id), give_up);
                }
            }
        }
    }

    /// What is to be done next; nothing if the channel is broken.
    fn next(&self) -> Option<Next> {
        let mut agent = self.serving.agent.borrow_mut();
        let output = agent.output(self.id)?;
        if output.is_broken() {
            return None;
        }
        let bytes = output.bytes();
        Some(Next {
            piece: bytes[..bytes.len().min(PIECE)].to_vec(),
            is_last: output.is_last(),
            takes_more: !output.is_last() && !output.is_crowded(),
        })
    }

    fn advance(&self, count: usize) {
        if let Some(output) = self.serving.agent.borrow_mut().output(self.id) {
            output.advance(count);
        }
    }
}

impl Drop for OpenChannel<'_> {
    fn drop(&mut self) {
        self.serving.wakers.borrow_mut().remove(&self.id);
        self.serving.change(|agent| agent.close(self.id));
    }
}

struct Next {
    piece: Vec<u8>,
    /// Nothing comes behind the piece, if that is empty.
    is_last: bool,
    /// More commands may be taken.
    takes_more: bool,
}

fn now() -> std::time::Instant {
    std::time::Instant::now()
}
