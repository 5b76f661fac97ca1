//! TCF's channel protocol: messages -> bytes and back, for both ends of a channel.
//!
//! A message is a row of fields, each ended by a zero; escapes end messages and the stream. A
//! [`Decoder`] makes [`Frame`]s of what comes, however it comes; a [`Message`] says what a frame means.
//! Fields of arguments are JSON, which nobody here looks at.
//!
//! Source: the specification "TCF Communication Channel" of the Target Communication Framework. What
//! does not belong here: sockets, services, JSON.

mod error;
mod frame;
mod message;
mod stack_traces;

pub use error::{Code, ErrorReport};
pub use frame::{Decoder, END_OF_STREAM, Frame, FrameError, Incoming};
pub use message::{Message, MessageError};
pub use stack_traces::{
    MAX_COUNT, StackTrace, StackTracesError, WordLayout, decode as decode_stack_traces,
    encode as encode_stack_trace,
};
