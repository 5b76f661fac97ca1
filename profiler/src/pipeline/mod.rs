//! The only wiring: from the probes through order and resolve into a capture, and from a capture
//! into sinks.
//!
//! One task drives the walk: it drains the kernel's buffers when they say so and each 100 ms, and
//! passes on what is due. Symbols are found, and the capture is written, on threads of their own.

pub mod hq;
pub mod marks;
mod output;
mod outputs;
mod record;
mod scope;
mod signals;
mod targets;
mod tracer;
mod writer;

pub use output::ScreenOptions;
pub use outputs::{Export, export, export_difference, open_export};
pub use record::{Finished, Request, run};
pub use tracer::{COSTS, TraceRequest, TraceSummary};
