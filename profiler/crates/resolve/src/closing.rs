//! Closes what targets had open, on a thread of its own.
//!
//! Whoever closes the last file of a mount namespace that has ended, or of a file system in it, takes it
//! down: some 20 to 60 ms for a container on a busy machine. A reader that does so does not see what starts
//! and ends meanwhile.
//!
//! What does not belong here: what is needed no more (`files`).

use std::any::Any;
use std::io;
use std::sync::mpsc::{Sender, channel};

/// Closes things elsewhere; at once, unless it was started.
#[derive(Clone, Debug, Default)]
pub(super) struct Closer(Option<Sender<Box<dyn Any + Send>>>);

impl Closer {
    /// Starts the thread. It ends after what it has to close, when all copies of this are gone.
    pub(super) fn start() -> io::Result<Closer> {
        let (closed, to_close) = channel::<Box<dyn Any + Send>>();
        let thread = std::thread::Builder::new().name("closing".to_owned());
        thread.spawn(move || to_close.into_iter().for_each(drop))?;
        Ok(Closer(Some(closed)))
    }

    /// Drops it.
    pub(super) fn close(&self, open: impl Any + Send) {
        if let Some(thread) = &self.0 {
            // If the thread is gone, it is dropped here.
            let _ = thread.send(Box::new(open));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::Receiver;
    use std::thread::ThreadId;

    use super::*;

    struct Open(Sender<ThreadId>);

    impl Drop for Open {
        fn drop(&mut self) {
            self.0.send(std::thread::current().id()).unwrap();
        }
    }

    fn closed_by(closer: &Closer) -> Receiver<ThreadId> {
        let (sender, receiver) = channel();
        closer.close(Open(sender.clone()));
        closer.close(Open(sender));
        receiver
    }

    #[test]
    fn all_is_closed_by_another_thread_also_at_the_end() {
        let closer = Closer::start().unwrap();
        let closed = closed_by(&closer);
        drop(closer);
        let by: Vec<ThreadId> = closed.iter().collect();
        assert_eq!(by.len(), 2);
        assert!(by.iter().all(|&id| id != std::thread::current().id()));
    }

    #[test]
    fn one_that_was_not_started_closes_at_once() {
        let closed = closed_by(&Closer::default());
        let by: Vec<ThreadId> = closed.try_iter().collect();
        assert_eq!(by, [std::thread::current().id(); 2]);
    }
}
