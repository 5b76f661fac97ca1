//! An HQ of Bytefrog: accepts agents, sends them orders, checks and hands on what they send.
//!
//! Input: connections of agents, orders; output: per run one stream of messages in the order of
//! their ids, to a [`Receiver`], and [`HqEvent`]s. Sockets and threads are in `server` and
//! `connection`; what runs are allowed and how data become one stream is free of them.
//!
//! Source: the wiki page "Message Protocol" of Bytefrog and what its collector does
//! (docs/formats/bytefrog.md).
//!
//! What does not belong here: byte layouts (`wire::bytefrog`), what messages mean as events
//! (`import::bytefrog`).

mod budget;
mod check;
mod connection;
mod flow;
mod lenient;
mod life;
mod merge;
mod options;
mod receive;
mod run;
mod server;

pub use check::{Checker, Fault, Faults};
pub use flow::Counts;
pub use life::{Life, Order, OrderError, Phase};
pub use merge::{MergeLimits, Merger, Offer};
pub use options::HqOptions;
pub use receive::{BreakCause, Classes, HqEvent, Receiver, RunReport, RunStatus};
pub use server::{Hq, HqError};
