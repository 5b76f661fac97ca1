//! The only wiring: from the probes through order and resolve into a capture, and from a capture
//! into sinks.
//!
//! One task drives the walk: it drains the kernel's buffers when they say so and each 100 ms, and
//! passes on what is due. Symbols are found, and the capture is written, on threads of their own.

mod containers;
mod convert;
mod drive;
#[cfg(feature = "bytefrog")]
pub mod hq;
mod import;
pub mod marks;
mod outlive;
mod output;
mod outputs;
mod prepare;
mod privileges;
mod record;
mod renounce;
mod scope;
mod scratch;
#[cfg(feature = "fronts")]
mod serve;
mod session;
mod signals;
#[cfg(feature = "bytefrog")]
mod stream;
mod targets;
mod tracer;
mod unwinding;
pub mod wanted;
mod writer;

use tokio::runtime::{Builder, Runtime};

use crate::error::{Context, Failure};

pub use containers::CgroupTargets;
pub use convert::convert;
pub use import::import;
pub use output::ScreenOptions;
pub use outputs::{Export, check_difference, export, export_difference, open_export, owner};
pub use prepare::Watch;
pub use record::{Finished, Request, run};
pub use renounce::renounce;
#[cfg(feature = "fronts")]
pub use serve::{Adjustable, CallLimits, ServeRequest, ServeSource, adjustable, serve};
#[cfg(feature = "bytefrog")]
pub use stream::{LiveSource, StreamRequest, StreamSource, Streamed, stream};
pub use tracer::{
    COSTS, Leaving, News, PathFilter, TraceRequest, TraceSummary, Unwatched, answering,
};
pub use unwinding::{COPIES_PER_SECOND, DEEP_FRAMES_PER_SECOND};

/// What drives a recording, a stream or a server: all of it on the thread that calls.
fn event_loop() -> Result<Runtime, Failure> {
    let runtime = Builder::new_current_thread().enable_all().build();
    runtime.context(|| "failed to start the event loop")
}

/// Runs what `begin` returns to its end. It lies on the heap (see [`profiler_model::heap`]), and what comes of it should be small: each
/// frame of the event loop has room for it.
fn block_on<T, F: Future<Output = T>>(event_loop: &Runtime, begin: impl FnOnce() -> F) -> T {
    event_loop.block_on(Box::into_pin(profiler_model::heap::boxed(begin)))
}
