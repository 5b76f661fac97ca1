//! Closes links of uprobes where nobody has to wait for it.
//!
//! Descriptors -> detached. The kernel lets go of a link only when no processor can be in its program
//! any more, which takes some 30 ms (Linux 6.18), however few its places; but those that wait at the
//! same time wait together. So links are closed by several threads.
//!
//! What does not belong here: which links (`super`).

use std::thread::JoinHandle;

use super::LinkFds;

/// Most threads that close links at a time.
const MAX_THREADS: usize = 64;

/// The threads that close links.
#[derive(Default)]
pub(super) struct Closer {
    threads: Vec<JoinHandle<()>>,
}

impl Closer {
    /// Closes links; the descriptors of each in their order.
    pub(super) fn close(&mut self, links: Vec<LinkFds>) {
        self.threads.retain(|thread| !thread.is_finished());
        if links.is_empty() {
            return;
        }
        let free = MAX_THREADS.saturating_sub(self.threads.len()).max(1);
        let mut shares: Vec<Vec<LinkFds>> = Vec::new();
        shares.resize_with(free.min(links.len()), Vec::new);
        let count = shares.len();
        for (index, link) in links.into_iter().enumerate() {
            shares[index % count].push(link);
        }
        for share in shares {
            let thread = std::thread::Builder::new().name("detach".to_owned());
            // Without a thread, the closure is dropped here, and the links with it.
            if let Ok(thread) = thread.spawn(move || drop(share)) {
                self.threads.push(thread);
            }
        }
    }

    /// Waits until all are closed.
    pub(super) fn wait(&mut self) {
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                log::warn!("a thread that detaches probes has ended early");
            }
        }
    }
}
