//! Send buffers: a fixed number of lists of bytes, filled by the thread that translates, emptied by
//! the data connections.
//!
//! Whole messages only are in a buffer, so that any connection may take it. The one that fills waits
//! when all are full: that is the back-pressure of a slow HQ. A buffer that one long message made
//! grow shrinks again when it has been sent.
//!
//! What does not belong here: what is in the buffers, sockets.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// The buffers of a run.
#[derive(Default)]
pub(super) struct Pool {
    state: Mutex<State>,
    /// One was given back, or it is over.
    freed: Condvar,
    /// One was filled, or it is over.
    filled: Notify,
    /// All that were filled have been sent.
    drained: Notify,
}

#[derive(Default)]
struct State {
    free: Vec<Vec<u8>>,
    filled: VecDeque<Vec<u8>>,
    /// Taken by a connection and not given back.
    sending: usize,
    buffer_bytes: usize,
    /// No more will be filled.
    ended: bool,
    /// Nothing is sent any more.
    closed: bool,
}

impl Pool {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets number and room of the buffers, before the first is taken.
    pub(super) fn configure(&self, buffers: usize, buffer_bytes: usize) {
        let mut state = self.state();
        // A buffer takes its memory when it is used first.
        state.free = vec![Vec::new(); buffers];
        state.buffer_bytes = buffer_bytes;
    }

    /// Room of one buffer.
    pub(super) fn buffer_bytes(&self) -> usize {
        self.state().buffer_bytes
    }

    /// An empty buffer; waits for one. Nothing when it is over.
    pub(super) fn take(&self) -> Option<Vec<u8>> {
        let mut state = self.state();
        loop {
            if state.closed {
                return None;
            }
            if let Some(mut buffer) = state.free.pop() {
                let room = state.buffer_bytes;
                drop(state);
                buffer.reserve_exact(room);
                return Some(buffer);
            }
            state = self
                .freed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Hands a filled buffer to the connections, an empty one back.
    pub(super) fn put(&self, buffer: Vec<u8>) {
        let mut state = self.state();
        if buffer.is_empty() {
            state.free.push(buffer);
            return;
        }
        state.filled.push_back(buffer);
        drop(state);
        self.filled.notify_one();
    }

    /// The buffer to be sent next; waits for one. Nothing when there will be none. Cancel-safe.
    pub(super) async fn next(&self) -> Option<Vec<u8>> {
        loop {
            let filled = self.filled.notified();
            {
                let mut state = self.state();
                if state.closed {
                    return None;
                }
                if let Some(buffer) = state.filled.pop_front() {
                    state.sending += 1;
                    return Some(buffer);
                }
                if state.ended {
                    drop(state);
                    // The next one is to learn of it as well.
                    self.filled.notify_one();
                    return None;
                }
            }
            filled.await;
        }
    }

    /// Takes a buffer back that has been sent.
    pub(super) fn give_back(&self, mut buffer: Vec<u8>) {
        buffer.clear();
        let mut state = self.state();
        // What a message of 64 KiB made of it is not kept.
        buffer.shrink_to(state.buffer_bytes);
        state.sending = state.sending.saturating_sub(1);
        state.free.push(buffer);
        let drained = state.is_drained();
        drop(state);
        self.freed.notify_one();
        if drained {
            self.drained.notify_waiters();
        }
    }

    /// How many are not empty, as heartbeats tell it.
    pub(super) fn filled(&self) -> u16 {
        let state = self.state();
        u16::try_from(state.filled.len() + state.sending).unwrap_or(u16::MAX)
    }

    /// Waits until all that were filled have been handed to the kernel.
    pub(super) async fn drained(&self) {
        loop {
            let drained = self.drained.notified();
            let mut drained = std::pin::pin!(drained);
            drained.as_mut().enable();
            if self.state().is_drained() {
                return;
            }
            drained.await;
        }
    }

    /// Whether all that were filled have been handed to the kernel; nothing when it is over.
    pub(super) fn is_drained(&self) -> Option<bool> {
        let state = self.state();
        (!state.closed).then(|| state.is_drained())
    }

    /// No more will be filled: connections end when all has been sent.
    pub(super) fn end(&self) {
        self.state().ended = true;
        self.filled.notify_one();
    }

    /// Ends all waiting at once.
    pub(super) fn close(&self) {
        self.state().closed = true;
        self.freed.notify_all();
        self.filled.notify_waiters();
        self.filled.notify_one();
    }
}

impl State {
    fn is_drained(&self) -> bool {
        self.filled.is_empty() && self.sending == 0
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;

    fn pool(buffers: usize) -> Pool {
        let pool = Pool::default();
        pool.configure(buffers, 512);
        pool
    }

    #[tokio::test]
    async fn buffers_go_round_in_order() {
        let pool = pool(2);
        for byte in [1, 2] {
            let mut buffer = pool.take().unwrap();
            buffer.push(byte);
            pool.put(buffer);
        }
        assert_eq!(pool.filled(), 2);
        let first = pool.next().await.unwrap();
        assert_eq!(first, [1]);
        assert_eq!(pool.filled(), 2);
        pool.give_back(first);
        assert_eq!(pool.filled(), 1);
        assert_eq!(pool.next().await.unwrap(), [2]);
    }

    #[test]
    fn filling_waits_for_a_free_one() {
        let pool = Arc::new(pool(1));
        let taken = pool.take().unwrap();
        let other = Arc::clone(&pool);
        let waiting = std::thread::spawn(move || other.take().is_some());
        std::thread::sleep(Duration::from_millis(20));
        assert!(!waiting.is_finished());
        pool.give_back(taken);
        assert!(waiting.join().unwrap());
        let other = Arc::clone(&pool);
        let waiting = std::thread::spawn(move || other.take().is_none());
        pool.close();
        assert!(waiting.join().unwrap());
    }

    #[tokio::test]
    async fn a_long_message_is_no_lasting_memory() {
        let pool = pool(1);
        let mut buffer = pool.take().unwrap();
        buffer.resize(70_000, 0);
        pool.put(buffer);
        let buffer = pool.next().await.unwrap();
        pool.give_back(buffer);
        assert!(pool.take().unwrap().capacity() <= 1024);
    }

    #[tokio::test]
    async fn every_connection_learns_of_the_end_when_all_is_sent() {
        let pool = Arc::new(pool(2));
        let mut buffer = pool.take().unwrap();
        buffer.push(1);
        pool.put(buffer);
        let connections: Vec<_> = (0..5)
            .map(|_| {
                let pool = Arc::clone(&pool);
                tokio::spawn(async move {
                    let mut sent = 0;
                    while let Some(buffer) = pool.next().await {
                        sent += buffer.len();
                        pool.give_back(buffer);
                    }
                    sent
                })
            })
            .collect();
        pool.drained().await;
        pool.end();
        let mut sent = 0;
        for connection in connections {
            sent += connection.await.unwrap();
        }
        assert_eq!(sent, 1);
    }
}
