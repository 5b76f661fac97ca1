//! Closes links of probes on threads, at the same time, and tells which are still being closed.
//!
//! Descriptors of links, by number -> detached. What the kernel does when a link is closed has two
//! parts. First the places get their own instructions back, at once. Then it waits until nobody can be
//! in the link's program: some 30 ms at least, however few its places, and since Linux 6.13 until no call
//! under a return probe can still ask for it. Such a call is let go 100 ms after the last return probe
//! that its thread has met (`ri_timer` in kernel/events/uprobes.c). So a thread that calls a probed
//! function all the time, inside a probed call that lasts, holds up everybody on the machine who closes a
//! link; and one link that waits for it must not keep another one from being taken out of that thread's
//! way. Hence a thread for each descriptor, and return probes first.
//!
//! What does not belong here: which links (`super`), in which process this is done (`keeper`).

use std::collections::{HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::LinkFds;

/// Most descriptors that are closed at a time. Those behind wait for one of these.
const MAX_THREADS: usize = 1024;
/// A thread does nothing but a system call.
const STACK_BYTES: usize = 64 << 10;

/// Links that are being closed. Dropping it does not wait for them.
#[derive(Clone, Default)]
pub(super) struct Closer(Arc<Shared>);

#[derive(Default)]
struct Shared {
    work: Mutex<Work>,
    closed: Condvar,
}

#[derive(Default)]
struct Work {
    waiting: VecDeque<(u64, OwnedFd)>,
    /// Descriptors of each link that are not closed yet.
    open: HashMap<u64, usize>,
    threads: usize,
}

impl Shared {
    fn work(&self) -> MutexGuard<'_, Work> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What each thread does.
    fn close_all(&self) {
        let mut work = self.work();
        while let Some((link, fd)) = work.waiting.pop_front() {
            drop(work);
            drop(fd);
            work = self.work();
            work.has_closed(link);
            self.closed.notify_all();
        }
        work.threads -= 1;
    }
}

impl Work {
    fn has_closed(&mut self, link: u64) {
        if let Some(count) = self.open.get_mut(&link) {
            *count -= 1;
            if *count == 0 {
                self.open.remove(&link);
            }
        }
    }
}

impl Closer {
    /// Closes links, by their numbers; each has its return probes first.
    pub(super) fn close(&self, links: impl IntoIterator<Item = (u64, LinkFds)>) {
        let mut links: Vec<_> = links
            .into_iter()
            .map(|(link, fds)| (link, fds.into_iter()))
            .collect();
        let mut work = self.0.work();
        while !links.is_empty() {
            links.retain_mut(|(link, fds)| {
                let Some(fd) = fds.next() else { return false };
                *work.open.entry(*link).or_default() += 1;
                work.waiting.push_back((*link, fd));
                true
            });
        }
        let wanted = (work.threads + work.waiting.len()).min(MAX_THREADS);
        while work.threads < wanted {
            let shared = self.0.clone();
            let thread = std::thread::Builder::new()
                .name("detach".to_owned())
                .stack_size(STACK_BYTES);
            match thread.spawn(move || shared.close_all()) {
                Ok(_) => work.threads += 1,
                // Those that there are do it, one after the other.
                Err(_) if work.threads > 0 => break,
                Err(_) => {
                    work.threads = 1;
                    drop(work);
                    return self.0.close_all();
                }
            }
        }
    }

    /// The links that are not closed yet.
    pub(super) fn closing(&self) -> Vec<u64> {
        self.0.work().open.keys().copied().collect()
    }

    /// Waits until all are closed, at the latest until then; those that are not.
    pub(super) fn wait(&self, until: Option<Instant>) -> Vec<u64> {
        let mut work = self.0.work();
        while !work.open.is_empty() {
            work = match until {
                None => self
                    .0
                    .closed
                    .wait(work)
                    .unwrap_or_else(PoisonError::into_inner),
                Some(until) => {
                    let left = until.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        break;
                    }
                    let woken = self.0.closed.wait_timeout(work, left);
                    woken.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
        work.open.keys().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::time::Duration;

    use super::*;

    fn pipe() -> (std::fs::File, OwnedFd) {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        (reader.into(), writer)
    }

    #[test]
    fn all_are_closed_and_then_none_is_closing() {
        let closer = Closer::default();
        let (mut readers, mut links) = (Vec::new(), Vec::new());
        for link in 0..40 {
            let (first, its_writer) = pipe();
            let (second, other_writer) = pipe();
            readers.extend([first, second]);
            links.push((link, vec![its_writer, other_writer]));
        }
        closer.close(links);
        assert_eq!(closer.wait(None), [0_u64; 0]);
        assert_eq!(closer.closing(), [0_u64; 0]);
        for mut reader in readers {
            // The end: nobody has it open for writing.
            assert_eq!(reader.read(&mut [0]).unwrap(), 0);
        }
        let deadline = Instant::now() + Duration::from_secs(10);
        while closer.0.work().threads > 0 {
            assert!(Instant::now() < deadline, "a thread stays");
            std::thread::yield_now();
        }
    }

    #[test]
    fn what_takes_long_is_said_and_holds_up_nobody_else() {
        // A socket that lingers is closed when its peer has read what was sent, or time is over.
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let slow = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (peer, _) = listener.accept().unwrap();
        let linger = Some(Duration::from_secs(30));
        rustix::net::sockopt::set_socket_linger(&slow, linger).unwrap();
        slow.set_nonblocking(true).unwrap();
        while std::io::Write::write(&mut &slow, &[0; 1 << 16]).is_ok() {}
        slow.set_nonblocking(false).unwrap();
        let closer = Closer::default();
        closer.close([(1, vec![slow.into()])]);
        let (mut reader, writer) = pipe();
        closer.close([(2, vec![writer])]);
        assert_eq!(reader.read(&mut [0]).unwrap(), 0);
        let soon = Instant::now() + Duration::from_millis(200);
        assert_eq!(closer.wait(Some(soon)), [1]);
        assert_eq!(closer.closing(), [1]);
        // Reset: there is nobody any more who could read it.
        drop((peer, listener));
        assert_eq!(closer.wait(None), [0_u64; 0]);
    }
}
