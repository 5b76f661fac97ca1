//! What people look at: reports, the live table, the live line of a recording, and how they reach a
//! terminal.
//!
//! Input: aggregates and call trees of `derive`, and tables; output: text or JSON. Times shown are
//! relative to the start of the recording, dates are UTC. Files of other formats are `export`'s.

pub mod bytefrog;
pub mod info;
pub mod list;
pub mod losses;
pub mod pager;
pub mod progress;
pub mod report;
pub mod table;
pub mod term;
pub mod terminal;
pub mod top;

pub use crate::derive::quantity;
