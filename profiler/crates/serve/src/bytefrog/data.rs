//! A data connection: filled send buffers -> one socket.
//!
//! Any connection takes the next buffer. What waits for the control connection is written before.
//! HQ says nothing on a data connection but that it gives up. What does not belong here: opening it.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::OwnedReadHalf;

use super::connection::data_name;
use super::error::{AgentError, shown};
use super::shared::{Progress, Shared};
use profiler_wire::bytefrog::HqMessage;

/// What HQ may take to close its end when all has been sent.
const LINGER: Duration = Duration::from_secs(1);

/// Sends buffers until there will be no more, then closes the connection.
pub(super) async fn send(
    stream: TcpStream,
    number: usize,
    shared: &Shared,
) -> Result<(), AgentError> {
    let (mut read, mut write) = stream.into_split();
    let broken = |error: &io::Error| AgentError::broken(data_name(number), error);
    let mut heard = Vec::new();
    loop {
        // Not before what HQ must know first. If HQ takes nothing there, data goes on.
        shared
            .outbox
            .flush()
            .map_err(|error| AgentError::broken("the control connection", &error))?;
        let buffer = tokio::select! {
            biased;
            error = listen(&mut read, &mut heard, number) => match error {
                // All has been sent, so that it is of no use, and does no harm.
                AgentError::Protocol { .. } if is_leaving(shared) => break,
                // HQ may close a connection when it was told that all has been sent.
                AgentError::Connection { .. } if is_leaving(shared) => return Ok(()),
                error => return Err(error),
            },
            buffer = shared.pool.next() => buffer,
        };
        let Some(buffer) = buffer else {
            break;
        };
        tokio::select! {
            biased;
            // While HQ does not read, it may still say why, or go.
            error = listen(&mut read, &mut heard, number) => return Err(error),
            sent = write.write_all(&buffer) => sent.map_err(|error| broken(&error))?,
        }
        shared.pool.give_back(buffer);
    }
    if !is_leaving(shared) {
        // Ended by an error elsewhere, which has been said.
        return Ok(());
    }
    write.shutdown().await.map_err(|error| broken(&error))?;
    // A connection that is closed with something unread is reset, and data with it. What HQ still says
    // changes nothing: it has been sent all.
    let _ = tokio::time::timeout(LINGER, tokio::io::copy(&mut read, &mut tokio::io::sink())).await;
    Ok(())
}

/// Whether HQ was told that all has been sent.
fn is_leaving(shared: &Shared) -> bool {
    *shared.progress.borrow() >= Progress::Leaving
}

/// What ends a connection from HQ's side. Cancel-safe.
async fn listen(read: &mut OwnedReadHalf, heard: &mut Vec<u8>, number: usize) -> AgentError {
    let mut chunk = [0; 256];
    loop {
        match read.read(&mut chunk).await {
            Ok(0) => return AgentError::closed(data_name(number)),
            Ok(len) => heard.extend_from_slice(&chunk[..len]),
            Err(error) => return AgentError::broken(data_name(number), &error),
        }
        let reason = match HqMessage::decode(heard) {
            Ok(None) if heard.len() <= 3 + usize::from(u16::MAX) => continue,
            Ok(Some((HqMessage::Error(text), _))) => return AgentError::Refused(shown(&text)),
            Ok(_) => "nothing but an error may come there".to_owned(),
            Err(error) => error.to_string(),
        };
        return AgentError::Protocol {
            connection: data_name(number),
            reason,
        };
    }
}
