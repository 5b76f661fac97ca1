//! The thread that owns all sockets: one run, from connecting to closing.
//!
//! ```text
//! connect -> hello -> configuration -> (begin) data connections -> (finish) drain -> X -> stop -> close
//! ```
//! Whatever breaks on the way ends it; HQ is told if it can be. What does not belong here: what is
//! sent, carrying out orders.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use rustix::net::{Shutdown, shutdown};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout, timeout_at};

use super::error::AgentError;
use super::shared::{Progress, Shared};
use super::{Order, connection, control, data};
use profiler_wire::bytefrog::{AgentMessage, Mode, VERSION};

/// What HQ may take to send its configuration, which it does at once.
const CONFIGURATION: Duration = Duration::from_secs(30);
/// After so long it is said that HQ owes it.
const NOTED: Duration = Duration::from_secs(1);
/// What HQ may take to answer the last heartbeat.
const STOP: Duration = Duration::from_secs(5);
/// What is spent on telling HQ of an error.
const FAREWELL: Duration = Duration::from_millis(500);
/// What HQ may take to close the control connection after us.
const LINGER: Duration = Duration::from_secs(1);

/// What the main thread wants.
#[derive(Debug)]
pub(super) enum Command {
    /// Data connections are needed.
    Begin,
    /// No events will come; all is to be sent until then.
    Finish(Instant),
}

/// Where to connect, and how long that is tried.
pub(super) struct Peer {
    pub(super) address: (String, u16),
    pub(super) patience: Option<Duration>,
}

/// How the main thread speaks with this one.
pub(super) struct Lines {
    pub(super) orders: mpsc::Sender<Order>,
    pub(super) commands: mpsc::UnboundedReceiver<Command>,
    pub(super) done: oneshot::Sender<Result<(), AgentError>>,
}

/// Lives through one run.
pub(super) async fn run(shared: Arc<Shared>, peer: Peer, lines: Lines) {
    let Lines {
        orders,
        commands,
        done,
    } = lines;
    let result = tokio::select! {
        biased;
        error = shared.failed() => Err(error),
        result = live(&shared, peer, orders, commands) => result,
    };
    if let Err(error) = &result {
        shared.fail(error.clone());
        if error.is_own() {
            let text = error.to_string().into();
            shared.outbox.push(&AgentMessage::Error(text));
            let _ = timeout(FAREWELL, written(&shared)).await;
        }
    }
    shared.close();
    // Nobody waits for it if the agent was dropped.
    let _ = done.send(result);
}

async fn live(
    shared: &Arc<Shared>,
    peer: Peer,
    orders: mpsc::Sender<Order>,
    mut commands: mpsc::UnboundedReceiver<Command>,
) -> Result<(), AgentError> {
    let socket = tokio::select! {
        socket = connection::connect(&peer.address, peer.patience) => Arc::new(socket?),
        // Whatever it is: there is no run that it could be about.
        _ = commands.recv() => return Ok(()),
    };
    let name = "the control connection";
    let broken = |error: &io::Error| AgentError::broken(name, error);
    connection::prepare(&socket, true).map_err(|error| broken(&error))?;
    let hq = socket.peer_addr().map_err(|error| broken(&error))?;
    log::info!("connected to HQ at {hq}");
    let hello = AgentMessage::Hello { version: VERSION };
    shared.outbox.push(&hello);
    shared.outbox.open(Arc::clone(&socket));
    let reading = converse(shared, &socket, orders);

    let mut said = shared.said.subscribe();
    let owed = async {
        let mut configured = pin!(said.wait_for(|said| said.configured.is_some()));
        if timeout(NOTED, &mut configured).await.is_ok() {
            return Ok(());
        }
        log::warn!(
            "waiting for HQ at {hq} to send its configuration, for {} s at most",
            CONFIGURATION.as_secs()
        );
        timeout(CONFIGURATION - NOTED, configured).await.map(drop)
    };
    tokio::select! {
        // A command may be there already that came of the configuration.
        biased;
        came = owed => {
            came.map_err(|_| AgentError::Silent {
                awaited: "configuration",
                seconds: CONFIGURATION.as_secs(),
            })?;
        }
        _ = commands.recv() => return Ok(()),
    }
    let mut data = None;
    loop {
        match commands.recv().await {
            // Beside this, so that an end in between is noticed.
            Some(Command::Begin) => data = Some(tokio::spawn(open(Arc::clone(shared), hq))),
            Some(Command::Finish(deadline)) => {
                return finish(shared, &socket, data, reading, deadline).await;
            }
            // HQ has no run yet that could have gone wrong.
            None if !shared.said.borrow().started => return Ok(()),
            None => {
                let text = "the recording ended without an end of the run".to_owned();
                return Err(AgentError::GivenUp(text));
            }
        }
    }
}

/// Starts all that goes on beside the run. Gives what reads.
fn converse(
    shared: &Arc<Shared>,
    socket: &Arc<TcpStream>,
    orders: mpsc::Sender<Order>,
) -> JoinHandle<()> {
    let broken = |error: io::Error| AgentError::broken("the control connection", &error);
    let ours = Arc::clone(shared);
    spawn(
        shared,
        async move { Err(broken(ours.outbox.write().await)) },
    );
    let ours = Arc::clone(shared);
    spawn(
        shared,
        async move { Err(broken(ours.outbox.settle().await)) },
    );
    let ours = Arc::clone(shared);
    tokio::spawn(async move { control::heartbeats(&ours).await });
    let (ours, socket) = (Arc::clone(shared), Arc::clone(socket));
    spawn(shared, async move {
        control::read(&socket, &ours, &orders).await
    })
}

/// Runs a task whose error ends the run, unless that is over.
fn spawn(
    shared: &Arc<Shared>,
    task: impl Future<Output = Result<(), AgentError>> + Send + 'static,
) -> JoinHandle<()> {
    let shared = Arc::clone(shared);
    tokio::spawn(async move {
        if let Err(error) = task.await
            && *shared.progress.borrow() < Progress::Closing
        {
            shared.fail(error);
        }
    })
}

/// Opens all data connections before any of them sends: HQ ends the run when those that are open
/// have ended. An error ends the run.
async fn open(shared: Arc<Shared>, hq: SocketAddr) -> Vec<JoinHandle<()>> {
    let Some((_, settings)) = shared.configured() else {
        return Vec::new();
    };
    let mut streams = Vec::with_capacity(settings.senders);
    for number in 1..=settings.senders {
        match connection::open_data(hq, settings.run, number).await {
            Ok(stream) => streams.push(stream),
            Err(error) => {
                shared.fail(error);
                return Vec::new();
            }
        }
    }
    // One that can't be looked at is not waited for.
    let seen = streams
        .iter()
        .filter_map(|stream| stream.as_fd().try_clone_to_owned().ok());
    shared.watch_data(seen.collect());
    shared.said.send_modify(|said| said.accepted = true);
    let numbered = streams.into_iter().zip(1..);
    let sending = numbered.map(|(stream, number)| {
        let ours = Arc::clone(&shared);
        spawn(
            &shared,
            async move { data::send(stream, number, &ours).await },
        )
    });
    sending.collect()
}

/// Sends what is left, says good-bye, closes data connections, then control.
async fn finish(
    shared: &Shared,
    socket: &TcpStream,
    data: Option<JoinHandle<Vec<JoinHandle<()>>>>,
    reading: JoinHandle<()>,
    deadline: Instant,
) -> Result<(), AgentError> {
    if !shared.said.borrow().started {
        // A run that was not started can't be ended: the original would wait for its data for ever.
        return Ok(());
    }
    let began = Instant::now();
    let mut connections = Vec::new();
    if let Some(data) = data {
        let mut progress = shared.progress.subscribe();
        let drain = async {
            let opened = data.await.unwrap_or_default();
            let _ = progress.wait_for(|&at| at >= Progress::Translated).await;
            shared.pool.drained().await;
            opened
        };
        connections = timeout_at(deadline, drain)
            .await
            .map_err(|_| AgentError::TooSlow {
                seconds: began.elapsed().as_secs(),
            })?;
    }
    shared.advance(Progress::Leaving);
    shared.report(Mode::ShuttingDown);
    let mut said = shared.said.subscribe();
    let patience = deadline.min(Instant::now() + STOP);
    let stopped = said.wait_for(|said| said.stopped);
    if timeout_at(patience, stopped).await.is_err() {
        log::warn!("HQ did not answer that the run has ended; its connections are closed");
        // It has been sent all: that it goes from now on is no loss.
        shared.advance(Progress::Closing);
    }
    shared.pool.end();
    shared.watch_data(Vec::new());
    for connection in connections {
        // What went wrong in it has been said by its task.
        let _ = connection.await;
    }
    let _ = timeout(LINGER, written(shared)).await;
    shared.advance(Progress::Closing);
    if shutdown(socket, Shutdown::Write).is_ok() {
        let _ = timeout(LINGER, reading).await;
    }
    Ok(())
}

/// Waits until all control messages have been handed to the kernel.
async fn written(shared: &Shared) {
    while matches!(shared.outbox.flush(), Ok(false)) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
