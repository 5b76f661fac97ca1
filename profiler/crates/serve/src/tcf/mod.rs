//! A TCF agent: what a session sees -> replies and events for clients, their wishes -> the session.
//!
//! ```text
//! main thread --- batches ---> queue --- thread "tcf": Agent (World, Profiles, channels) --- sockets
//!     ^            (bounded)                                                |
//!     +------------------------ orders (Demand, Question) ------------------+
//! ```
//! `Server` is the handle of the main thread: it never blocks there. One thread owns all state and
//! all channels; nothing in it waits. An [`Agent`] is that state without sockets: bytes and batches in,
//! bytes and orders out.
//!
//! Times are CLOCK_MONOTONIC. What does not belong here: the channel's bytes (`wire::tcf`), carrying
//! out orders (`pipeline`).

mod agent;
mod arguments;
mod channel;
mod error;
mod front;
mod lenient;
mod network;
mod options;
mod profile;
mod reply;
mod server;
mod services;
mod warnings;
mod world;

pub use agent::{Agent, ChannelId, TooMany};
pub use channel::Output;
pub use error::TcfError;
pub use options::{Limits, Peer, TcfOptions};
pub use server::{ServeSummary, Server};
