//! Answers to commands: fields of JSON, built up one after the other.

use serde::Serialize;

use super::arguments::Malformed;
use profiler_wire::tcf::{Code, ErrorReport};

/// What becomes of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// An answer.
    Done(Reply),
    /// Something is asked for first; the command is tried again when more is known, until `patience`
    /// is over: see [`super::services::Request::last_try`].
    Later,
    /// There is no such command.
    Unknown,
}

/// What a command comes to, or what ends the channel.
pub(super) type Answer = Result<Outcome, Malformed>;

/// The fields of an answer behind its token.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Reply {
    /// Each in JSON; an empty one is "no error".
    pub(super) fields: Vec<Vec<u8>>,
}

impl Reply {
    /// An answer that begins with "no error".
    pub(super) fn ok() -> Reply {
        Reply {
            fields: vec![Vec::new()],
        }
    }

    /// An answer that begins with an error.
    pub(super) fn error(code: Code, text: impl Into<String>) -> Reply {
        Reply::report(ErrorReport::new(code, text))
    }

    /// An answer that begins with this report, which gets the time.
    pub(super) fn report(report: ErrorReport) -> Reply {
        Reply {
            fields: vec![report.at(now_ms()).encode()],
        }
    }

    /// An answer that begins with none of these.
    pub(super) fn bare() -> Reply {
        Reply::default()
    }

    /// Adds a field.
    pub(super) fn json(mut self, value: &impl Serialize) -> Reply {
        // Maps with text for keys: that can't fail.
        self.fields
            .push(serde_json::to_vec(value).unwrap_or_else(|_| b"null".to_vec()));
        self
    }

    /// Adds the field `null`.
    pub(super) fn null(self) -> Reply {
        self.raw(b"null")
    }

    /// Adds a field of bytes.
    pub(super) fn raw(mut self, bytes: &[u8]) -> Reply {
        self.fields.push(bytes.to_vec());
        self
    }

    /// The same answer with an error, whatever it was. Its other fields stay: clients read them whether
    /// there is an error or not, and some must not be null.
    pub(super) fn failed(mut self, code: Code, text: &str) -> Reply {
        if let Some(error) = self.fields.first_mut() {
            *error = ErrorReport::new(code, text).at(now_ms()).encode();
        }
        self
    }

    /// It is all.
    pub(super) fn done(self) -> Answer {
        Ok(Outcome::Done(self))
    }
}

/// Milliseconds since 1970.
fn now_ms() -> u64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |since| since.as_millis() as u64)
}
