//! The sending side of the control connection: messages of several threads -> one socket, before any
//! data.
//!
//! Messages are appended by whoever has one; the network thread writes them as soon as the socket
//! takes them, and its data connections look here before each buffer that they take. A data break is
//! *settled* when HQ's system has acknowledged it, HQ has read it (which is known of one on this machine), and its
//! reader had a moment to act on it: what comes behind it on a data connection must not be taken before.
//!
//! Source: "Data break" in docs/formats/bytefrog.md. What does not belong here: what is said when.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::Notify;

use super::unacknowledged::unacknowledged_bytes;
use crate::tcp_peer;
use profiler_wire::bytefrog::AgentMessage;

/// Most bytes that may wait. What only informs is left out when HQ does not read.
const MAX_WAITING_BYTES: usize = 1 << 20;
/// What a reader may need to read what its system has. Control and data are read by threads of their
/// own there, and the run is over for a collector whose data is ahead.
const READING_TIME: Duration = Duration::from_millis(100);
const LOOK_AGAIN: Duration = Duration::from_millis(5);
/// The same of what costs more.
const READ_YET: Duration = Duration::from_millis(20);

/// What waits to be written to the control connection.
#[derive(Default)]
pub(super) struct Outbox {
    socket: OnceLock<Arc<TcpStream>>,
    state: Mutex<State>,
    /// There is something to write.
    came: Notify,
    /// A data break was written.
    broke: Notify,
    /// A data break is settled, or it is over.
    settled: Condvar,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<u8>,
    /// Bytes appended and written in all.
    appended: u64,
    written: u64,
    /// Where data breaks end, as a number of appended bytes.
    breaks: VecDeque<u64>,
    breaks_appended: u64,
    breaks_settled: u64,
    left_out: u64,
    closed: bool,
}

/// A data break on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Break(u64);

impl Outbox {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins to write, to this socket.
    pub(super) fn open(&self, socket: Arc<TcpStream>) {
        // There is one control connection in a run.
        let _ = self.socket.set(socket);
        self.came.notify_one();
    }

    /// Appends a message that must arrive.
    pub(super) fn push(&self, message: &AgentMessage<'_>) {
        self.state().append(message);
        self.came.notify_one();
    }

    /// Appends a message that only informs, unless too much waits already.
    pub(super) fn inform(&self, message: &AgentMessage<'_>) {
        let mut state = self.state();
        if state.waiting.len() > MAX_WAITING_BYTES {
            state.left_out += 1;
            return;
        }
        state.append(message);
        drop(state);
        self.came.notify_one();
    }

    /// Appends a data break before `sequence`.
    pub(super) fn break_data(&self, sequence: u32) -> Break {
        let mut state = self.state();
        state.append(&AgentMessage::DataBreak { sequence });
        let end = state.appended;
        state.breaks.push_back(end);
        state.breaks_appended += 1;
        let number = state.breaks_appended;
        drop(state);
        self.came.notify_one();
        Break(number)
    }

    /// Waits until HQ knows of a data break. Whether it does: not if it is over.
    pub(super) fn settled(&self, number: Break) -> bool {
        let waiting = |state: &mut State| state.breaks_settled < number.0 && !state.closed;
        let state = self
            .settled
            .wait_while(self.state(), waiting)
            .unwrap_or_else(PoisonError::into_inner);
        !state.closed
    }

    /// Whether all has been written.
    pub(super) fn is_empty(&self) -> bool {
        self.state().waiting.is_empty()
    }

    /// Messages that were left out because HQ did not read.
    pub(super) fn left_out(&self) -> u64 {
        self.state().left_out
    }

    /// Writes what the socket takes now. Whether that was all.
    pub(super) fn flush(&self) -> io::Result<bool> {
        let Some(socket) = self.socket.get() else {
            return Ok(true);
        };
        let mut state = self.state();
        while !state.waiting.is_empty() {
            let (bytes, _) = state.waiting.as_slices();
            match socket.try_write(bytes) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(len) => {
                    state.waiting.drain(..len);
                    state.written += len as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        if !state.breaks.is_empty() {
            self.broke.notify_one();
        }
        Ok(true)
    }

    /// Writes all that comes, for ever. Ends with what went wrong.
    pub(super) async fn write(&self) -> io::Error {
        loop {
            self.came.notified().await;
            loop {
                match self.flush() {
                    Ok(true) => break,
                    Ok(false) => {}
                    Err(error) => return error,
                }
                if let Some(socket) = self.socket.get()
                    && let Err(error) = socket.writable().await
                {
                    return error;
                }
            }
        }
    }

    /// Settles data breaks, for ever.
    pub(super) async fn settle(&self) -> io::Error {
        loop {
            self.broke.notified().await;
            let Some(socket) = self.socket.get() else {
                continue;
            };
            loop {
                let written = self.state().written_break();
                let Some((number, end)) = written else {
                    break;
                };
                loop {
                    match unacknowledged_bytes(socket) {
                        Ok(0) => break,
                        Ok(_) => tokio::time::sleep(LOOK_AGAIN).await,
                        Err(error) => return error.into(),
                    }
                }
                while self.is_unread(socket, end) {
                    tokio::time::sleep(READ_YET).await;
                }
                tokio::time::sleep(READING_TIME).await;
                let mut state = self.state();
                state.breaks.retain(|&other| other > end);
                state.breaks_settled = number;
                drop(state);
                self.settled.notify_all();
            }
        }
    }

    /// Whether HQ is known not to have read all up to there: it may stand still, and its system take what comes.
    fn is_unread(&self, socket: &TcpStream, end: u64) -> bool {
        let (Ok(its), Ok(ours)) = (socket.peer_addr(), socket.local_addr()) else {
            return false;
        };
        let behind = self.state().written - end;
        let its = tcp_peer::find(its, ours).ok().flatten();
        its.is_some_and(|its| its.unread > behind)
    }

    /// Ends all waiting.
    pub(super) fn close(&self) {
        self.state().closed = true;
        self.settled.notify_all();
    }
}

impl State {
    fn append(&mut self, message: &AgentMessage<'_>) {
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        self.appended += bytes.len() as u64;
        self.waiting.extend(bytes);
    }

    /// The last data break that has been written and is not settled: its number, and where it ends.
    fn written_break(&self) -> Option<(u64, u64)> {
        let end = *self.breaks.iter().rfind(|&&end| end <= self.written)?;
        let count = self.breaks.iter().filter(|&&other| other <= end).count() as u64;
        Some((self.breaks_settled + count, end))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use tokio::io::AsyncReadExt;
    use tokio::net::TcpListener;

    use super::*;
    use profiler_wire::bytefrog::Mode;

    async fn pair() -> (Arc<TcpStream>, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let ours = TcpStream::connect(listener.local_addr().unwrap());
        let (ours, theirs) = tokio::join!(ours, listener.accept());
        (Arc::new(ours.unwrap()), theirs.unwrap().0)
    }

    fn running(outbox: &Arc<Outbox>) {
        let (one, other) = (Arc::clone(outbox), Arc::clone(outbox));
        tokio::spawn(async move { one.write().await });
        tokio::spawn(async move { other.settle().await });
    }

    #[tokio::test]
    async fn a_break_is_settled_after_it_was_written() {
        let outbox = Arc::new(Outbox::default());
        running(&outbox);
        let first = outbox.break_data(5);
        let (ours, mut theirs) = pair().await;
        let waiting = {
            let outbox = Arc::clone(&outbox);
            tokio::task::spawn_blocking(move || outbox.settled(first))
        };
        tokio::time::sleep(Duration::from_millis(30)).await;
        assert!(!waiting.is_finished());
        let began = Instant::now();
        outbox.open(ours);
        let mut bytes = [0; 5];
        theirs.read_exact(&mut bytes).await.unwrap();
        assert_eq!(bytes, [9, 0, 0, 0, 5]);
        assert!(waiting.await.unwrap());
        assert!(began.elapsed() >= READING_TIME);
        // And again.
        let second = outbox.break_data(9);
        let settled = tokio::task::spawn_blocking(move || outbox.settled(second));
        theirs.read_exact(&mut bytes).await.unwrap();
        assert!(settled.await.unwrap());
    }

    /// An HQ that stands still: its system takes what comes, and nobody reads it.
    #[tokio::test]
    async fn a_break_is_not_settled_before_it_is_read() {
        let outbox = Arc::new(Outbox::default());
        running(&outbox);
        let (ours, mut theirs) = pair().await;
        outbox.open(ours);
        let number = outbox.break_data(5);
        let waiting = {
            let outbox = Arc::clone(&outbox);
            tokio::task::spawn_blocking(move || outbox.settled(number))
        };
        tokio::time::sleep(READING_TIME * 5).await;
        assert!(!waiting.is_finished());
        // What is behind it may wait.
        outbox.push(&AgentMessage::DataHello { run: 0 });
        let mut bytes = [0; 5];
        theirs.read_exact(&mut bytes).await.unwrap();
        assert!(waiting.await.unwrap());
    }

    #[test]
    fn what_only_informs_is_bounded() {
        let outbox = Outbox::default();
        let name = "x".repeat(60_000);
        for _ in 0..100 {
            outbox.inform(&AgentMessage::ClassIgnored(name.as_str().into()));
        }
        assert!(outbox.state().waiting.len() < MAX_WAITING_BYTES + 70_000);
        assert!(outbox.left_out() > 50);
        let (mode, filled) = (Mode::Tracing, 0);
        outbox.push(&AgentMessage::Heartbeat { mode, filled });
        assert_eq!(outbox.state().waiting.back(), Some(&0));
    }

    #[test]
    fn nobody_waits_when_it_is_over() {
        let outbox = Outbox::default();
        let number = outbox.break_data(1);
        outbox.close();
        assert!(!outbox.settled(number));
    }
}
