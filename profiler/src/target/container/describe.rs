//! Describes containers on a thread of its own, so that no engine can hold up a session.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::{Container, Engines, Identity};

/// Answers what containers are. Each is asked for once; what is not known yet is asked again for a while.
#[derive(Debug)]
pub struct Describer {
    wake: OwnedFd,
}

impl Describer {
    /// Starts the thread.
    pub fn start(_engines: Engines) -> io::Result<Describer> {
        let flags = rustix::event::EventfdFlags::CLOEXEC | rustix::event::EventfdFlags::NONBLOCK;
        Ok(Describer {
            wake: rustix::event::eventfd(0, flags)?,
        })
    }

    /// Asks. The queue is bounded: what finds no room is answered by its identity alone.
    pub fn ask(&mut self, _identity: &Identity) {}

    /// Answers since the last call. One container may be answered again, when more is known.
    pub fn poll(&mut self) -> Vec<Container> {
        Vec::new()
    }

    /// Becomes readable when there are answers; [`Describer::poll`] makes it unreadable again.
    pub fn wake_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}
