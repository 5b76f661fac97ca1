//! JS Self-Profiling over HTTP: sessions that programs and pages open on processes of this machine, or of a capture.
//!
//! ```text
//! main thread --- batches ---> queue --- thread "http": Agent (World, sessions) <- routes <- network: sockets
//!     ^                     (bounded)                        |
//!     +--------------------- orders (Demand, Question) -----+
//! ```
//! One thread owns all sessions and all connections; nothing in it waits. An [`Agent`] is all of it without sockets, a
//! session is a `Profiling`. Times are CLOCK_MONOTONIC. Source: docs/http.md, docs/formats/js-self-profiling.md. What does not
//! belong here: what sessions and traces are (`wire::self_profiling`), ticks (`report::derive`), carrying out orders
//! (`pipeline`).

mod agent;
mod body;
mod front;
mod network;
mod options;
mod policy;
mod policy_file;
mod profiling;
mod routes;
mod script;
mod stacks;

pub use agent::{Agent, Answer, Forcing, Later, Ticket};
pub use front::{HttpSummary, start};
pub use options::{HttpAddress, HttpError, HttpLimits, HttpOptions};
pub use policy::{Forbidden, Policy, Rule, Subject};
pub use profiling::Told;
