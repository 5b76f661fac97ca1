//! The remote debugging protocol of Firefox, as far as tracing needs it: packets -> bytes and back, and the
//! TraceActor.
//!
//! A [`Decoder`] takes packets off what a client sends, however it comes; [`encode`] writes one. [`TraceActor`] is all
//! that the specification of tracing says, without sockets: requests and frames that are entered and left -> packets.
//! Frames, places and values are in its own terms ([`Entered`], [`Exited`], [`Values`]). Times are nanoseconds, on any
//! clock that does not go back.
//!
//! Source: "Tracing Profiler Protocol Spec", and the "Remote Debugging Protocol" and its "Stream Transport" of
//! Mozilla. What does not belong here: sockets, processes and threads, where frames come from.

mod actor;
mod error;
mod frame;
mod grip;
mod packet;
mod types;

pub use actor::{MAX_TRACES, PacketSink, REQUESTS, TraceActor, TraceReply};
pub use error::{ErrorName, ErrorReply};
pub use frame::{Entered, Exited, Place, Why};
pub use grip::{LONG_STRING, Values};
pub use packet::{Decoder, Incoming, Packet, PacketError, encode};
pub use types::{NoSuchTraceType, TraceType, TraceTypes};
