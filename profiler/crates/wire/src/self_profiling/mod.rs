//! JS Self-Profiling, as far as it is a language: sessions and their traces, without an engine of JavaScript.
//!
//! [`InitOptions`] reads what a client asks for, [`Intervals`] says which sample interval it gets, a [`Session`] has the
//! states of the specification and its buffer of samples, a [`Trace`] is a ProfilerTrace: frames, outermost first -> its
//! tables -> JSON. Errors have the specification's names ([`ErrorName`]). Times are nanoseconds, on any clock that does
//! not go back; in JSON they are milliseconds since the session's time origin.
//!
//! Source: "JS Self-Profiling API" (WICG), and what Chromium does where its text is silent. What does not belong here:
//! sockets, who may profile whom, when samples are taken.

mod error;
mod interval;
mod session;
mod trace;

pub use error::{Error, ErrorName};
pub use interval::{Intervals, MAX_INTERVAL_MS};
pub use session::{InitOptions, Session, State, Taken};
pub use trace::{Frame, StackId, ThreadTrace, Trace, milliseconds};
