//! A live protocol, as whoever runs a session sees it: batches and notes in, orders out.
//!
//! Orders and questions speak of the machine, not of a protocol. What can be asked of the machine itself is
//! in `machine`. The list of protocols is [`crate::FrontOptions`]. What does not belong here: several fronts at one
//! session (`hub`), sockets, carrying out orders (`pipeline`).

use std::pin::Pin;
use std::time::Duration;

use profiler_model::{Batch, Consumer, Demand, Tracing};

use crate::machine::Life;

/// Something that is waited for.
pub type Awaited<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// What a front wants of whoever runs the session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Order {
    /// This is wanted from now on.
    Demand(Demand),
    /// What is at these places? Definitions of mappings, frames and, as they are found, symbols come
    /// as batches; when all that will come at once has been sent, the question is acknowledged.
    Ask(Question),
    /// Nothing is served any more, and why. Comes once, nothing follows.
    Failed(String),
}

/// Places whose meaning is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// Names it in the acknowledgement.
    pub id: u64,
    /// Where.
    pub place: Place,
}

/// Whose addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// All mappings of a process, and frames at these addresses of its memory.
    Process(Life, Vec<u64>),
    /// Frames of the kernel, by their distance from `_stext`.
    Kernel(Vec<u64>),
    /// Calls that are traced: all that were made before the question are sent, and it is known whether they can be
    /// traced at all.
    Calls(Tracing),
}

/// How the time of a capture goes by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replay {
    /// As the wall clock, times a factor: contexts come and go, samples come when they are due.
    Timed,
    /// All of it is there at once: every context of the capture is shown, and each configuration sees
    /// all samples.
    AtOnce,
}

/// One live protocol at a session. Nothing here blocks. Batches tell all that is defined and what
/// processes become, and of samples what the front has demanded.
pub trait Front: Consumer {
    /// What its clients want next; waits for it. May be dropped while it waits.
    fn order(&mut self) -> Awaited<'_, Order>;
    /// Waits until a batch finds room. May be dropped while it waits.
    fn room(&self) -> Awaited<'static, ()>;
    /// A question was answered, as far as it will be at once.
    fn acknowledge(&mut self, question: u64);
    /// Takes a batch of calls that it has demanded: its ids are of a stream of its own for each such demand. Returns
    /// how many events were dropped.
    fn traced(&mut self, _tracing: &Tracing, _batch: Batch) -> u64 {
        0
    }
    /// These calls can't be traced, or not any longer, because of this.
    fn untraced(&mut self, _tracing: &Tracing, _text: &str) {}
    /// What it has demanded last, as far as that is known here, is so from now on.
    fn adjusted(&mut self, _demand: &Demand) {}
    /// All processes have been announced.
    fn ready(&mut self);
    /// Nothing is attached any more.
    fn detached(&mut self);
    /// Nothing can be attached, because of this.
    fn trouble(&mut self, text: &str);
    /// What people are told when it has started.
    fn welcome(&self) -> String;
    /// Tells clients that it is over, and waits until they know, up to the deadline; what people are told
    /// of it then.
    fn finish(self: Box<Self>, deadline: Duration) -> Awaited<'static, String>;
}
