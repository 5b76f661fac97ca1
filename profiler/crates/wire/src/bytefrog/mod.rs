//! Bytefrog's message protocol, version 1: messages -> bytes and back, both directions.
//!
//! Everything is big-endian, nothing is delimited. An agent sends [`AgentMessage`]s, an HQ
//! [`HqMessage`]s; decoding takes the first message off what has come so far. Times are milliseconds
//! since tracing began, sequence ids count the messages of a run that have one.
//!
//! Source: the wiki page "Message Protocol" of Bytefrog and what its collector does
//! (docs/formats/bytefrog.md). What does not belong here: sockets, the order of messages in a run,
//! what they mean for a native program.

use std::borrow::Cow;

mod agent;
mod configuration;
mod filter;
mod hq;
pub mod text;

pub use agent::{AgentMessage, Channel};
pub use configuration::{BYTEFROG_CLASS, CODE_PULSE_CLASS, Configuration, ConfigurationError};
pub use filter::Filter;
pub use hq::HqMessage;

/// The version of the protocol that is spoken here.
pub const VERSION: u8 = 1;

/// Where an HQ listens unless it is told otherwise.
pub const DEFAULT_PORT: u16 = 8765;

/// The line of a place that has none.
pub const UNKNOWN_LINE: u16 = u16::MAX;

/// Most bytes of an encoded configuration that are accepted.
pub const MAX_CONFIGURATION_BYTES: usize = 4 << 20;

/// What an agent is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Mode {
    /// Waiting for the order to start.
    Initializing = b'I',
    /// Tracing.
    Tracing = b'T',
    /// The program stands still.
    Paused = b'P',
    /// The program runs and is not traced.
    Suspended = b'S',
    /// Sending what is left.
    ShuttingDown = b'X',
}

impl Mode {
    /// From its byte in a heartbeat.
    pub fn from_byte(byte: u8) -> Option<Mode> {
        Some(match byte {
            b'I' => Mode::Initializing,
            b'T' => Mode::Tracing,
            b'P' => Mode::Paused,
            b'S' => Mode::Suspended,
            b'X' => Mode::ShuttingDown,
            _ => return None,
        })
    }
}

/// Bytes that are no message. Nothing behind them can be understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The first byte names no message that may come from this side.
    #[error("{0} is no id of a message")]
    UnknownId(u8),
    /// A heartbeat with a mode that does not exist.
    #[error("a heartbeat with the unknown mode {0}")]
    UnknownMode(u8),
    /// A text is no text.
    #[error(transparent)]
    Text(#[from] text::BadText),
    /// A length that no peer has a use for.
    #[error("a configuration of {0} bytes; at most {MAX_CONFIGURATION_BYTES} are accepted")]
    TooLong(u32),
}

/// Why a message could not be taken.
enum Stop {
    /// It has not come whole.
    Incomplete,
    /// It is none.
    Bad(DecodeError),
}

impl<E: Into<DecodeError>> From<E> for Stop {
    fn from(error: E) -> Stop {
        Stop::Bad(error.into())
    }
}

/// Takes fields off the front of what has come.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    #[inline]
    fn bytes(&mut self, len: usize) -> Result<&'a [u8], Stop> {
        let (bytes, rest) = self.0.split_at_checked(len).ok_or(Stop::Incomplete)?;
        self.0 = rest;
        Ok(bytes)
    }

    #[inline]
    fn array<const LEN: usize>(&mut self) -> Result<[u8; LEN], Stop> {
        let (bytes, rest) = self.0.split_first_chunk().ok_or(Stop::Incomplete)?;
        self.0 = rest;
        Ok(*bytes)
    }

    #[inline]
    fn u8(&mut self) -> Result<u8, Stop> {
        self.array().map(|[byte]| byte)
    }

    #[inline]
    fn u16(&mut self) -> Result<u16, Stop> {
        self.array().map(u16::from_be_bytes)
    }

    #[inline]
    fn u32(&mut self) -> Result<u32, Stop> {
        self.array().map(u32::from_be_bytes)
    }

    /// A text with its length before it.
    #[inline]
    fn text(&mut self) -> Result<Cow<'a, str>, Stop> {
        let len = self.u16()?;
        Ok(text::read(self.bytes(usize::from(len))?)?)
    }
}
