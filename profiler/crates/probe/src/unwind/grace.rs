//! Waits until all programs that may have begun before have ended, on a thread of its own.
//!
//! The kernel does that in each change of a map of maps by user space; it takes some 10 ms.

use std::{
    os::fd::{AsFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc::{Sender, channel},
    },
};

use super::super::bpf;

/// The thread that waits.
pub(super) struct Grace {
    requests: Option<Sender<u64>>,
    over: Arc<AtomicU64>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Grace {
    /// `outer` is a map of maps that has `inner` as its first.
    pub(super) fn new(outer: OwnedFd, inner: OwnedFd) -> std::io::Result<Grace> {
        let (requests, received) = channel::<u64>();
        let over = Arc::new(AtomicU64::new(0));
        let told = over.clone();
        let thread = std::thread::Builder::new()
            .name("unwind-grace".to_owned())
            .spawn(move || {
                use std::os::fd::AsRawFd;
                let inner = inner.as_raw_fd().cast_unsigned();
                for request in received {
                    // If it fails, nothing is used again: safe, and said when there is no room.
                    match bpf::update_map(outer.as_fd(), &[0], &[inner]) {
                        Ok(()) => told.store(request, Ordering::Release),
                        Err(error) => log::debug!("can't wait for programs to end: {error}"),
                    }
                }
            })?;
        Ok(Grace {
            requests: Some(requests),
            over,
            thread: Some(thread),
        })
    }

    /// Begins to wait; requests are numbered upwards.
    pub(super) fn begin(&self, request: u64) {
        if let Some(requests) = &self.requests {
            // The thread ends with this value.
            let _ = requests.send(request);
        }
    }

    /// The last request that is over; 0: none.
    pub(super) fn over(&self) -> u64 {
        self.over.load(Ordering::Acquire)
    }
}

impl Drop for Grace {
    fn drop(&mut self) {
        self.requests = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
