//! Live peers: a recording that goes on -> sockets, and what comes back from there.
//!
//! Protocols that serve are fronts ([`front`]) on a [`hub`]; [`FrontOptions`] is the list of them.
//!
//! What does not belong here: byte layouts (`wire`), files of other tools (`export`, `import`), what
//! is recorded (`pipeline`).
//!
//! An example, which `cargo xtask check` compiles:
#![doc = "```no_run"]
#![doc = include_str!("../examples/admit.rs")]
#![doc = "```"]
// What only TCF uses of what fronts share.
#![cfg_attr(not(feature = "tcf"), allow(dead_code))]

pub mod admission;
#[cfg(feature = "bytefrog")]
pub mod bytefrog;
pub mod front;
#[cfg(feature = "fronts")]
mod fronts;
#[cfg(any(feature = "http", feature = "rdp"))]
mod handle;
#[cfg(feature = "bytefrog")]
pub mod hq;
#[cfg(feature = "http")]
pub mod http;
#[cfg(feature = "fronts")]
pub mod hub;
#[cfg(feature = "fronts")]
pub mod listening;
pub mod machine;
#[cfg(feature = "fronts")]
mod pace;
#[cfg(any(feature = "bytefrog", feature = "fronts"))]
mod queue;
#[cfg(feature = "rdp")]
pub mod rdp;
#[cfg(any(feature = "rdp", feature = "tcf"))]
mod sockets;
#[cfg(feature = "tcf")]
pub mod tcf;
mod tcp_peer;
#[cfg(feature = "fronts")]
mod thin;
#[cfg(feature = "fronts")]
pub mod tls;
#[cfg(any(feature = "http", feature = "rdp"))]
mod world;

#[cfg(feature = "fronts")]
pub use fronts::{FrontError, FrontOptions};
