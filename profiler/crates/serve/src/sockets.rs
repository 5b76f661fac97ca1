//! Connections of clients, whatever they speak: made ready, left without a loss, ended together.
//!
//! What does not belong here: who is admitted (`admission`), where they come from (`listening`), what is said.

use std::io;
use std::time::Duration;

use rustix::net::sockopt;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout, timeout_at};

/// What a client may take to close after us.
const LINGER: Duration = Duration::from_secs(1);
/// A peer that is silent for so long is asked whether it lives.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(30);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_PROBES: u32 = 4;

/// Makes a connection send at once, and notice a peer that is gone.
pub(crate) fn prepare(stream: &TcpStream) -> io::Result<()> {
    sockopt::set_tcp_nodelay(stream, true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, KEEPALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(stream, KEEPALIVE_INTERVAL)?;
    sockopt::set_tcp_keepcnt(stream, KEEPALIVE_PROBES)?;
    Ok(())
}

/// Says a last thing, and waits until the client has read it. What is still unread when a socket is closed costs what
/// was sent on it.
pub(crate) async fn say_and_leave(stream: impl AsyncRead + AsyncWrite, last: &[u8]) {
    let (mut reader, mut writer) = tokio::io::split(stream);
    let leave = async {
        writer.write_all(last).await?;
        writer.shutdown().await?;
        let mut unread = [0; 4096];
        while reader.read(&mut unread).await? > 0 {}
        io::Result::Ok(())
    };
    let _ = timeout(LINGER, leave).await;
}

/// Serves until `finished` says until when all connections may take to end, or is closed, or there is nothing to serve any
/// more; `finish` has them end. Each has a permit of the `most` of `connections`.
pub(crate) async fn serve_until(
    mut finished: mpsc::UnboundedReceiver<Instant>,
    (accepting, serving): (JoinHandle<()>, impl Future<Output = ()>),
    (connections, most): (&Semaphore, usize),
    finish: impl FnOnce(),
) {
    let deadline = tokio::select! {
        deadline = finished.recv() => deadline,
        () = serving => None,
    };
    accepting.abort();
    let Some(deadline) = deadline else {
        return;
    };
    finish();
    let _ = timeout_at(deadline, connections.acquire_many(most as u32)).await;
}
