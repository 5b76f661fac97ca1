//! Live peers: a recording that goes on -> sockets, and what comes back from there.
//!
//! What does not belong here: byte layouts (`wire`), files of other tools (`export`, `import`), what
//! is recorded (`pipeline`).

pub mod admission;
pub mod bytefrog;
pub mod front;
pub mod hq;
pub mod hub;
pub mod machine;
mod pace;
mod queue;
pub mod tcf;
mod thin;
