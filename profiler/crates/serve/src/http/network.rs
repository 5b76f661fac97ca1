//! The thread that serves: sockets, batches and time -> the agent, and what it has to say -> sockets.
//!
//! One task takes batches and keeps the time, one accepts, and each connection has one. They share the agent, and none
//! waits while it holds it. Who neither sends nor reads for too long is cut off. What does not belong here: what requests
//! mean (`routes`).

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::body::Incoming;
use hyper::rt::ReadBufCursor;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use rustix::net::sockopt;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::task::{LocalSet, spawn_local, yield_now};
use tokio::time::{Instant, MissedTickBehavior, Sleep, interval, sleep};
use tokio_rustls::TlsAcceptor;

use super::agent::Agent;
use super::body::Answered;
use super::front::HttpSummary;
use super::options::HttpOptions;
use super::routes;
use crate::handle::{Lines, Shared, Word, lock};
use crate::queue::{Entry, Popped, Work};
use crate::tls::agree;
use profiler_model::Batch;

/// Connections whose owner is looked up at a time.
pub(super) const ADMITTING: usize = 2;
/// Connections beyond those that are served: being admitted or refused.
const MORE_CONNECTIONS: usize = 64;
/// Clients that are refused and told why at a time, and how long each may take to ask: others are cut off.
const DISMISSED: usize = 8;
const DISMISSAL: Duration = Duration::from_secs(1);
/// How often it is looked what is due.
const TICK: Duration = Duration::from_millis(50);
/// After a connection could not be accepted.
const PAUSE: Duration = Duration::from_millis(50);
/// What a client that has just come may take to ask something, when all is to end.
const LAST: Duration = Duration::from_millis(500);
/// What a client may take to send the head of a request.
const HEAD: Duration = Duration::from_secs(10);
/// Bytes of a head; at most so many headers are in it.
const HEAD_BYTES: usize = 16 << 10;
const HEADERS: usize = 64;
/// What is read at a time.
const PIECE: usize = 8 << 10;

/// Where clients connect.
pub(super) enum Listener {
    Tcp(std::net::TcpListener),
    /// With its path, which is removed at the end, if it was made here.
    Unix(UnixListener, Option<PathBuf>),
}

/// The other end of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peer {
    /// The address that it has connected to; none: by a socket of this machine.
    pub(super) local: Option<SocketAddr>,
    /// Who owns it, if it is on this machine.
    pub(super) uid: Option<u32>,
    /// It has seen the server's certificate.
    pub(super) is_encrypted: bool,
}

/// What all tasks share.
pub(super) struct Serving {
    shared: Arc<Shared<HttpSummary>>,
    agent: RefCell<Agent>,
    /// Something may be known now that was not.
    pub(super) changed: Notify,
    closing: Notify,
    /// What is not known yet never will be.
    pub(super) is_closing: Cell<bool>,
    pub(super) options: HttpOptions,
    tls: Option<TlsAcceptor>,
    refused: Cell<u64>,
    dismissing: Semaphore,
    connections: Cell<u64>,
}

/// Serves until that is to end.
pub(super) async fn run(
    listener: Listener,
    tls: Option<TlsAcceptor>,
    agent: Agent,
    lines: Lines<HttpSummary>,
) {
    let Lines {
        shared,
        mut finished,
    } = lines;
    let options = agent.options().clone();
    let most = options.limits.connections + MORE_CONNECTIONS;
    let connections = Arc::new(Semaphore::new(most));
    let serving = Rc::new(Serving {
        shared,
        agent: RefCell::new(agent),
        changed: Notify::new(),
        closing: Notify::new(),
        is_closing: Cell::new(false),
        options,
        tls,
        refused: Cell::new(0),
        dismissing: Semaphore::new(DISMISSED),
        connections: Cell::new(0),
    });
    let path = match &listener {
        Listener::Unix(_, path) => path.clone(),
        Listener::Tcp(_) => None,
    };
    let tasks = LocalSet::new();
    let work = async {
        let accepting = spawn_local(accept(
            Rc::clone(&serving),
            listener,
            Arc::clone(&connections),
        ));
        let deadline = tokio::select! {
            deadline = finished.recv() => deadline,
            () = serve(&serving) => None,
        };
        accepting.abort();
        let Some(deadline) = deadline else {
            return;
        };
        serving.change(Agent::finish);
        serving.is_closing.set(true);
        serving.closing.notify_waiters();
        serving.changed.notify_waiters();
        let all_closed = connections.acquire_many(most as u32);
        let _ = tokio::time::timeout_at(deadline, all_closed).await;
    };
    tasks.run_until(work).await;
    if let Some(path) = path {
        // Somebody else may have taken it away.
        let _ = std::fs::remove_file(path);
    }
    *lock(&serving.shared.summary) = HttpSummary {
        refused: serving.refused.get(),
        connections: serving.connections.get(),
        ..*serving.agent.borrow_mut().summary()
    };
}

impl Serving {
    /// Does something to the agent, and sees to what comes of it.
    pub(super) fn change<T>(&self, change: impl FnOnce(&mut Agent) -> T) -> T {
        let mut agent = self.agent.borrow_mut();
        let result = change(&mut agent);
        for order in agent.orders() {
            self.shared.order(order);
        }
        let full = agent.wants_new_epoch();
        self.shared.wants_new_epoch.store(full, Ordering::Relaxed);
        result
    }

    /// Returns when connections are to end.
    async fn closing(&self) {
        if !self.is_closing.get() {
            self.closing.notified().await;
        }
    }

    fn refuse(&self, reason: &str) {
        self.refused.set(self.refused.get() + 1);
        log::warn!("a client of HTTP is refused: {reason}");
    }

    fn take(&self, entry: Entry<Word>) {
        self.change(|agent| {
            let batch = Batch {
                epoch: entry.epoch,
                definitions: entry.definitions,
                events: Vec::new(),
            };
            match entry.work {
                Work::Events(events) => agent.batch(Batch { events, ..batch }),
                Work::Define => agent.batch(batch),
                Work::Dropped { count, .. } => {
                    agent.batch(batch);
                    agent.dropped(count);
                    log::warn!("{count} events are in no session: the server is too slow");
                }
                Work::Note(word) => {
                    // Definitions may have been put to it.
                    agent.batch(batch);
                    match word {
                        Word::Acknowledge(question) => agent.acknowledge(question),
                        Word::Ready => agent.ready(),
                        Word::Detached => agent.detached(),
                        Word::Trouble(text) => agent.trouble(text),
                        Word::Untraced(_) => {}
                    }
                }
            }
        });
        self.changed.notify_waiters();
    }
}

/// Takes batches, and keeps the time. Returns when the queue is closed.
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
                serving.change(|agent| agent.tick(std::time::Instant::now()));
                serving.changed.notify_waiters();
            }
            () = batch => {
                may_have_more = false;
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

async fn accept(serving: Rc<Serving>, listener: Listener, connections: Arc<Semaphore>) {
    let unusable = |error: io::Error| log::error!("no client can be accepted: {error}");
    match listener {
        Listener::Tcp(listener) => match tokio::net::TcpListener::from_std(listener) {
            Ok(listener) => loop {
                let accepted = listener.accept().await;
                admitted(&serving, &connections, accepted, connect_tcp).await;
            },
            Err(error) => unusable(error),
        },
        Listener::Unix(listener, _) => match tokio::net::UnixListener::from_std(listener) {
            Ok(listener) => loop {
                let accepted = listener.accept().await;
                admitted(&serving, &connections, accepted, connect_unix).await;
            },
            Err(error) => unusable(error),
        },
    }
}

/// Lets a connection live in a task of its own, if there is room.
async fn admitted<S: 'static, A: 'static, F: Future<Output = ()> + 'static>(
    serving: &Rc<Serving>,
    connections: &Arc<Semaphore>,
    accepted: io::Result<(S, A)>,
    connect: impl FnOnce(Rc<Serving>, S, A, OwnedSemaphorePermit) -> F + 'static,
) {
    match accepted {
        Ok((stream, address)) => match Arc::clone(connections).try_acquire_owned() {
            Ok(permit) => {
                serving.connections.set(serving.connections.get() + 1);
                spawn_local(connect(Rc::clone(serving), stream, address, permit));
            }
            Err(_) => serving.refuse("there are too many connections"),
        },
        Err(error) => {
            // Too many open files, for instance: others have to end first.
            log::warn!("a client was not accepted: {error}");
            sleep(PAUSE).await;
        }
    }
}

async fn connect_tcp(
    serving: Rc<Serving>,
    stream: tokio::net::TcpStream,
    address: SocketAddr,
    permit: OwnedSemaphorePermit,
) {
    let local = match stream.local_addr() {
        Ok(local) => local,
        Err(error) => return log::debug!("{address} has gone: {error}"),
    };
    let admission = &serving.options.admission;
    let uid = match admission.admit_aside(&stream, address).await {
        Ok(Ok(uid)) => uid,
        Ok(Err(refusal)) => {
            drop(permit);
            return dismiss(&serving, stream, &refusal.to_string()).await;
        }
        Err(error) => return log::debug!("{address} was not admitted: {error}"),
    };
    if let Err(error) = sockopt::set_tcp_nodelay(&stream, true) {
        return log::debug!("{address} has gone: {error}");
    }
    let peer = Peer {
        local: Some(local),
        uid,
        is_encrypted: serving.tls.is_some(),
    };
    let Some(tls) = &serving.tls else {
        return converse(&serving, stream, peer, permit).await;
    };
    // Who has begun to speak is answered, also at the end.
    let over = async {
        serving.closing().await;
        sleep(LAST).await;
    };
    let agreed = tokio::select! {
        agreed = agree(tls, stream, address) => agreed,
        () = over => return,
    };
    match agreed {
        Ok(stream) => converse(&serving, stream, peer, permit).await,
        Err(reason) => serving.refuse(&reason),
    }
}

async fn connect_unix(
    serving: Rc<Serving>,
    stream: tokio::net::UnixStream,
    _: tokio::net::unix::SocketAddr,
    permit: OwnedSemaphorePermit,
) {
    let uid = match sockopt::socket_peercred(&stream) {
        Ok(credentials) => credentials.uid.as_raw(),
        Err(error) => return log::debug!("a client of a socket has gone: {error}"),
    };
    if let Err(refusal) = serving.options.admission.admit_user(uid) {
        drop(permit);
        return dismiss(&serving, stream, &refusal.to_string()).await;
    }
    let peer = Peer {
        local: None,
        uid: Some(uid),
        is_encrypted: false,
    };
    converse(&serving, stream, peer, permit).await;
}

/// Refuses a client. What it asks is answered by the reason; not where it would have to agree on keys first.
async fn dismiss(
    serving: &Serving,
    stream: impl AsyncRead + AsyncWrite + Unpin + 'static,
    reason: &str,
) {
    serving.refuse(reason);
    let Ok(_one) = serving.dismissing.try_acquire() else {
        return;
    };
    if serving.tls.is_some() {
        return;
    }
    let io = Io {
        stream,
        stall: DISMISSAL,
        until: Box::pin(sleep(DISMISSAL)),
    };
    let service = service_fn(|_: Request<Incoming>| async {
        Ok::<Response<Answered>, Infallible>(routes::refusal(reason))
    });
    let connection = http1::Builder::new()
        .timer(Clock)
        .keep_alive(false)
        .header_read_timeout(DISMISSAL)
        .max_buf_size(HEAD_BYTES)
        .max_headers(HEADERS)
        .serve_connection(io, service);
    tokio::select! {
        // It has gone, or has its answer.
        _ = tokio::time::timeout(DISMISSAL, connection) => {}
        () = serving.closing() => {}
    }
}

/// Answers the requests of one connection, which ends with the permit.
async fn converse(
    serving: &Rc<Serving>,
    stream: impl AsyncRead + AsyncWrite + Unpin + 'static,
    peer: Peer,
    _permit: OwnedSemaphorePermit,
) {
    let io = Io {
        stream,
        stall: serving.options.limits.stall,
        until: Box::pin(sleep(serving.options.limits.stall)),
    };
    let has_asked = Cell::new(false);
    let service = service_fn(|request: Request<Incoming>| {
        let serving = Rc::clone(serving);
        has_asked.set(true);
        async move {
            let response = routes::answer(&serving, peer, request).await;
            Ok::<Response<Answered>, Infallible>(response)
        }
    });
    let connection = http1::Builder::new()
        .timer(Clock)
        .header_read_timeout(HEAD)
        .max_buf_size(HEAD_BYTES)
        .max_headers(HEADERS)
        .serve_connection(io, service);
    let mut connection = std::pin::pin!(connection);
    let over = async {
        serving.closing().await;
        if !has_asked.get() {
            sleep(LAST).await;
        }
    };
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = over => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        log::debug!("a connection of HTTP: {error}");
    }
}

/// A stream as hyper wants it, which fails when neither direction has got on for too long.
struct Io<S> {
    stream: S,
    stall: Duration,
    until: Pin<Box<Sleep>>,
}

impl<S> Io<S> {
    /// What an operation gave: if it waits, no longer than to the deadline, which each that got on moves.
    fn within<T>(
        &mut self,
        context: &mut Context<'_>,
        result: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        match result {
            Poll::Ready(result) => {
                self.until.as_mut().reset(Instant::now() + self.stall);
                Poll::Ready(result)
            }
            Poll::Pending => {
                ready!(self.until.as_mut().poll(context));
                Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
            }
        }
    }
}

impl<S: AsyncRead + Unpin> hyper::rt::Read for Io<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        mut into: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let mut piece = [0; PIECE];
        let most = into.remaining().min(PIECE);
        let mut read = ReadBuf::new(&mut piece[..most]);
        let result = Pin::new(&mut self.stream).poll_read(context, &mut read);
        ready!(self.within(context, result))?;
        into.put_slice(read.filled());
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> hyper::rt::Write for Io<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.within(context, result)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// The time, for heads of requests that do not come.
#[derive(Clone, Copy)]
struct Clock;

struct Nap(Pin<Box<Sleep>>);

impl hyper::rt::Timer for Clock {
    fn sleep(&self, time: Duration) -> Pin<Box<dyn hyper::rt::Sleep>> {
        Box::pin(Nap(Box::pin(sleep(time))))
    }

    fn sleep_until(&self, until: std::time::Instant) -> Pin<Box<dyn hyper::rt::Sleep>> {
        Box::pin(Nap(Box::pin(tokio::time::sleep_until(until.into()))))
    }
}

impl Future for Nap {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        self.0.as_mut().poll(context)
    }
}

impl hyper::rt::Sleep for Nap {}
