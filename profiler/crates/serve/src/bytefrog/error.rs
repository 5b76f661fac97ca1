//! What ends a stream to an HQ before its time.
//!
//! What does not belong here: what a target or a recording can do wrong (`error`).

use std::io;

/// Longest text of an HQ that is repeated, in characters.
const MAX_TEXT: usize = 500;

/// Why a run can't go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AgentError {
    /// The address names no place.
    #[error("{0:?} is no address of an HQ; give HOST, HOST:PORT or [IPV6]:PORT")]
    Address(String),
    /// A thread of the agent could not be started.
    #[error("failed to start thread {name}: {reason}")]
    Thread {
        /// Its name.
        name: &'static str,
        /// What the system says.
        reason: String,
    },
    /// A thread of the agent ended by a defect.
    #[error("thread {0} of the agent panicked")]
    Panicked(&'static str),
    /// Nobody answered in time.
    #[error("no HQ answered at {address} within {seconds} s ({reason}); start it, or wait longer")]
    Unreachable {
        /// Where.
        address: String,
        /// How long it was tried.
        seconds: u64,
        /// What the last try said.
        reason: String,
    },
    /// The peer accepts connections and says nothing.
    #[error("HQ sent no {awaited} within {seconds} s: what listens there may be no HQ of Bytefrog")]
    Silent {
        /// What should have come.
        awaited: &'static str,
        /// How long it was waited for.
        seconds: u64,
    },
    /// HQ sent an error.
    #[error("HQ ended the run: {0}")]
    Refused(String),
    /// HQ answered to the hello of a data connection with an error.
    #[error("HQ refused data connection {number}: {text}")]
    DataRefused {
        /// Which one, from 1.
        number: usize,
        /// What it said.
        text: String,
    },
    /// A connection broke. What was on its way is lost, so that the run can't go on.
    #[error("lost {connection} to HQ: {reason}")]
    Connection {
        /// Which one.
        connection: String,
        /// What the system says.
        reason: String,
    },
    /// What came is no message.
    #[error("HQ sent what can't be understood on {connection}: {reason}")]
    Protocol {
        /// On which connection.
        connection: String,
        /// What is wrong about it.
        reason: String,
    },
    /// The rest of the data was not taken in time.
    #[error("HQ did not take what was left within {seconds} s; the run is incomplete")]
    TooSlow {
        /// How long it was waited for.
        seconds: u64,
    },
    /// The profiler itself gave up.
    #[error("the run was given up: {0}")]
    GivenUp(String),
}

impl AgentError {
    /// A connection that broke.
    pub(super) fn broken(connection: impl Into<String>, error: &io::Error) -> AgentError {
        AgentError::Connection {
            connection: connection.into(),
            reason: error.to_string(),
        }
    }

    /// A connection that HQ closed.
    pub(super) fn closed(connection: impl Into<String>) -> AgentError {
        AgentError::Connection {
            connection: connection.into(),
            reason: "HQ closed it".to_owned(),
        }
    }

    /// Whether HQ does not know of it yet, and could be told.
    pub(super) fn is_own(&self) -> bool {
        !matches!(
            self,
            AgentError::Refused(_) | AgentError::Unreachable { .. } | AgentError::Address(_)
        )
    }
}

/// A text of an HQ as it can be shown: of bounded length, without control characters.
pub(super) fn shown(text: &str) -> String {
    let mut shown: String = text
        .chars()
        .take(MAX_TEXT)
        .map(|character| match character.is_control() {
            true => ' ',
            false => character,
        })
        .collect();
    if text.chars().nth(MAX_TEXT).is_some() {
        shown.push('…');
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_an_hq_can_do_nothing() {
        assert_eq!(shown("Unknown run\u{1b}[31m\n"), "Unknown run [31m ");
        assert_eq!(shown(&"x".repeat(1000)).chars().count(), MAX_TEXT + 1);
    }
}
