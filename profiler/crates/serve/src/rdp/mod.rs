//! A server of Firefox's remote debugging protocol: what a session sees -> processes, threads and their traces for
//! clients, their wishes -> the session.
//!
//! ```text
//! main thread --- batches, traced calls ---> queues --- thread "rdp": Agent (World, connections) --- sockets
//!     ^                                    (bounded)                        |
//!     +--------------------- orders (Demand, Question) ---------------------+
//! ```
//! The main thread has a `Handle`: it never blocks there. One thread owns all state and all connections;
//! nothing in it waits. An [`Agent`] is that state without sockets: bytes and batches in, bytes and orders out.
//!
//! Times are CLOCK_MONOTONIC. What does not belong here: packets and the TraceActor (`wire::rdp`), carrying out orders
//! (`pipeline`).

mod agent;
mod connection;
mod forms;
mod front;
mod markers;
mod network;
mod options;
mod source;

pub use agent::{Agent, ConnectionId};
pub use connection::Output;
pub use front::{RdpSummary, start};
pub use options::{RdpError, RdpLimits, RdpOptions, RdpPeer};
