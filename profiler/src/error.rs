//! What the program ends with when it can't do what it was asked: one line and an exit status.
//!
//! Layers have error enums of their own; at the edge each becomes a [`Failure`].

use std::error::Error;
use std::fmt;
use std::io;

use profiler_model::text::with_causes;

/// Exit status for a wrong command line.
pub const USAGE: u8 = 2;
/// Exit status for anything else that failed.
pub const FAILED: u8 = 1;

/// A message for people and an exit status.
#[derive(Debug, PartialEq, Eq)]
pub struct Failure {
    /// What to exit with.
    pub status: u8,
    /// One line; empty if there is nothing to say (the reader of a pipe went away).
    pub message: String,
}

impl Failure {
    /// The command line asks for something that can't be.
    pub fn usage(message: impl Into<String>) -> Failure {
        Failure {
            status: USAGE,
            message: message.into(),
        }
    }

    /// It did not work.
    pub fn failed(message: impl Into<String>) -> Failure {
        Failure {
            status: FAILED,
            message: message.into(),
        }
    }

    /// It did not work, because of an error below; its causes are joined into the line.
    pub fn because(what: impl fmt::Display, error: &(dyn Error + 'static)) -> Failure {
        if broken_pipe(error) {
            return Failure {
                status: 0,
                message: String::new(),
            };
        }
        Failure::failed(format!("{what}: {}", with_causes(error)))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.message.fmt(f)
    }
}

impl<E: Error + 'static> From<E> for Failure {
    fn from(error: E) -> Failure {
        if broken_pipe(&error) {
            return Failure {
                status: 0,
                message: String::new(),
            };
        }
        Failure::failed(with_causes(&error))
    }
}

/// Adds what was being done to an error.
pub trait Context<T> {
    /// `what` says what failed, as in `failed to open /proc/1/maps`.
    fn context<D: fmt::Display>(self, what: impl FnOnce() -> D) -> Result<T, Failure>;
}

impl<T, E: Error + 'static> Context<T> for Result<T, E> {
    fn context<D: fmt::Display>(self, what: impl FnOnce() -> D) -> Result<T, Failure> {
        self.map_err(|error| Failure::because(what(), &error))
    }
}

/// Whether the reader of our output went away, which is no error of ours.
fn broken_pipe(error: &(dyn Error + 'static)) -> bool {
    std::iter::successors(Some(error), |&error| error.source())
        .filter_map(|error| error.downcast_ref::<io::Error>())
        .any(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_are_joined_into_one_line() {
        let error = io::Error::other("no\n  luck");
        let failure = Err::<(), _>(error)
            .context(|| "failed to open x")
            .unwrap_err();
        assert_eq!(failure, Failure::failed("failed to open x: no luck"));
    }

    #[test]
    fn a_cause_is_told_once() {
        #[derive(Debug, thiserror::Error)]
        #[error("failed to write x: {source}; what is there reads fine")]
        struct Outer {
            source: io::Error,
        }
        let failure = Failure::from(Outer {
            source: io::Error::other("disk full"),
        });
        assert_eq!(
            failure.message,
            "failed to write x: disk full; what is there reads fine"
        );
    }

    #[test]
    fn a_closed_pipe_is_no_error() {
        let failure = Failure::from(io::Error::from(io::ErrorKind::BrokenPipe));
        assert_eq!((failure.status, failure.message.as_str()), (0, ""));
    }
}
