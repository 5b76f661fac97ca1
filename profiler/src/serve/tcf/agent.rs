//! The agent without sockets: bytes of clients and batches in, bytes and orders out.
//!
//! Time is what the caller says it is. What does not belong here: sockets, threads (`server`).

/// A client's channel. Never given out again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChannelId(pub u64);

/// See the module.
pub struct Agent {}
