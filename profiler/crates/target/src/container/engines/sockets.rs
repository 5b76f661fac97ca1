//! Unix sockets of engines, called with patience that has an end.
//!
//! A question as a future -> its answer within a second; an engine that gave none, or nonsense, is left
//! alone for half a minute.
//!
//! What does not belong here: what is said (`http`, `grpc`).

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tokio::net::UnixStream;
use tokio::runtime::{Builder, Runtime};

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(1);
/// The same of a user's engine.
const USERS_PATIENCE: Duration = Duration::from_millis(250);
/// How long one who did not answer is left alone.
const REST: Duration = Duration::from_secs(30);
/// Most bytes of an answer.
pub(super) const MAX_ANSWER_BYTES: usize = 4 << 20;

/// Why there is no answer.
#[derive(Debug)]
pub(super) enum Silence {
    /// Nobody listens, or not to us.
    Closed,
    /// Nothing that can be understood, or nothing in time.
    Bad,
}

/// Calls sockets, and remembers who does not answer. Not to be used on a thread of a runtime.
#[derive(Debug)]
pub(super) struct Sockets {
    patience: Duration,
    runtime: Option<Runtime>,
    left_alone: HashMap<PathBuf, Instant>,
}

impl Default for Sockets {
    fn default() -> Sockets {
        Sockets {
            patience: PATIENCE,
            runtime: None,
            left_alone: HashMap::new(),
        }
    }
}

impl Sockets {
    /// Those of a user, who has less time.
    pub(super) fn of_a_user() -> Sockets {
        Sockets {
            patience: USERS_PATIENCE,
            ..Sockets::default()
        }
    }

    /// Asks. None, if there is no answer, for whatever reason.
    pub(super) fn ask<T>(
        &mut self,
        socket: &Path,
        question: impl AsyncFnOnce(UnixStream) -> Result<T, Silence>,
    ) -> Option<T> {
        self.ask_within(self.patience, socket, question)
    }

    fn ask_within<T>(
        &mut self,
        patience: Duration,
        socket: &Path,
        question: impl AsyncFnOnce(UnixStream) -> Result<T, Silence>,
    ) -> Option<T> {
        let now = Instant::now();
        if (self.left_alone.get(socket)).is_some_and(|until| *until > now) {
            return None;
        }
        if self.runtime.is_none() {
            self.runtime = Builder::new_current_thread().enable_all().build().ok();
        }
        let asked = async {
            let stream = UnixStream::connect(socket).await.map_err(closed)?;
            question(stream).await
        };
        let answer = self
            .runtime
            .as_ref()?
            .block_on(async { tokio::time::timeout(patience, asked).await });
        match answer.unwrap_or(Err(Silence::Bad)) {
            Ok(answer) => Some(answer),
            Err(Silence::Closed) => None,
            Err(Silence::Bad) => {
                log::warn!(
                    "no useful answer from {}: not asked again for {} s",
                    socket.display(),
                    REST.as_secs()
                );
                self.left_alone.insert(socket.to_owned(), now + REST);
                None
            }
        }
    }
}

fn closed(error: io::Error) -> Silence {
    // A queue of others that wait for it.
    match error.kind() {
        io::ErrorKind::WouldBlock => Silence::Bad,
        _ => Silence::Closed,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn who_does_not_answer_is_left_alone() {
        let name = format!("profiler-silent-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).unwrap();
        let mut sockets = Sockets::default();
        let patience = Duration::from_millis(20);
        let mut ask = |silent: bool| {
            sockets.ask_within(patience, &path, async |stream: UnixStream| {
                if silent {
                    stream.readable().await.map_err(|_| Silence::Bad)?;
                }
                Ok(())
            })
        };
        assert_eq!(ask(false), Some(()));
        assert_eq!(ask(true), None);
        assert_eq!(ask(false), None);
        drop(listener);
        std::fs::remove_file(&path).unwrap();
        let mut sockets = Sockets::default();
        assert_eq!(sockets.ask(&path, async |_| Ok(())), None);
        assert!(sockets.left_alone.is_empty());
    }
}
