//! A channel: what has come of a message, what waits to be sent, which answers are still looked for.
//!
//! What does not belong here: what messages mean (`agent`).

use std::collections::VecDeque;
use std::time::Instant;

use super::options::{Limits, Peer};
use profiler_wire::tcf::{Decoder, Frame, Message};

/// A buffer that has grown larger than this is given back once it is empty.
const KEPT_BYTES: usize = 64 << 10;

/// One end of a channel.
pub(super) struct Channel {
    pub(super) peer: Peer,
    pub(super) decoder: Decoder,
    /// The peer's Hello has come.
    pub(super) greeted: bool,
    /// Since when it is awaited, once a tick has come.
    pub(super) silent_since: Option<Instant>,
    pub(super) output: Output,
    /// In the order in which they came.
    pub(super) pending: VecDeque<Pending>,
    pending_bytes: usize,
    /// What was known when they were tried last: the world's generation, that of what is seen.
    pub(super) tried: (u64, u64),
    max_pending: (usize, usize),
}

/// A command whose answer is still looked for.
pub(super) struct Pending {
    /// As it came.
    pub(super) frame: Frame,
    /// Then it is answered, whatever is known.
    pub(super) until: Instant,
}

impl Channel {
    pub(super) fn new(peer: Peer, limits: &Limits) -> Channel {
        Channel {
            peer,
            decoder: Decoder::new(limits.message_bytes),
            greeted: false,
            silent_since: None,
            output: Output::new(limits.output_bytes),
            pending: VecDeque::new(),
            pending_bytes: 0,
            tried: (0, 0),
            max_pending: (limits.pending, limits.message_bytes),
        }
    }

    /// Whether commands are still answered, and events told.
    pub(super) fn is_open(&self) -> bool {
        self.output.state == State::Open
    }

    /// What is kept for it. Nothing, once it is broken.
    pub(super) fn bytes(&self) -> usize {
        match self.output.state {
            State::Broken => 0,
            _ => self.decoder.bytes() + self.pending_bytes + self.output.bytes.len(),
        }
    }

    /// Whether one more command can be kept.
    pub(super) fn has_room(&self, frame: &Frame) -> bool {
        let bytes = size_of::<Pending>() + frame.bytes();
        let (most, most_bytes) = self.max_pending;
        let is_full = self.pending_bytes + bytes > most_bytes && !self.pending.is_empty();
        !is_full && self.pending.len() < most
    }

    /// Keeps a command.
    pub(super) fn keep(&mut self, pending: Pending) {
        self.pending_bytes += size_of::<Pending>() + pending.frame.bytes();
        self.pending.push_back(pending);
    }

    /// Takes all that is kept.
    pub(super) fn take_pending(&mut self) -> VecDeque<Pending> {
        self.pending_bytes = 0;
        std::mem::take(&mut self.pending)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// More may come.
    Open,
    /// The end of the stream is the last there is.
    Ended,
    /// What waited is gone: the client did not read.
    Broken,
}

/// What is to be sent to a client.
#[derive(Debug)]
pub struct Output {
    bytes: Vec<u8>,
    /// So many of these were sent.
    sent: usize,
    limit: usize,
    state: State,
}

impl Output {
    fn new(limit: usize) -> Output {
        Output {
            bytes: Vec::new(),
            sent: 0,
            limit,
            state: State::Open,
        }
    }

    /// What waits.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[self.sent..]
    }

    /// So many bytes of it were sent.
    pub fn advance(&mut self, count: usize) {
        self.sent = (self.sent + count).min(self.bytes.len());
        if self.sent == self.bytes.len() {
            self.bytes.clear();
            self.bytes.shrink_to(KEPT_BYTES);
            self.sent = 0;
        } else if self.sent > self.bytes.len() / 2 && self.sent > KEPT_BYTES {
            self.bytes.drain(..self.sent);
            self.sent = 0;
        }
    }

    /// So much waits that no more commands are taken.
    pub fn is_crowded(&self) -> bool {
        self.bytes().len() > self.limit / 4
    }

    /// Nothing comes behind [`Output::bytes`]: the connection is to be closed once these are sent.
    pub fn is_last(&self) -> bool {
        self.state != State::Open
    }

    /// The client has not read for too long: the connection is to be closed at once.
    pub fn is_broken(&self) -> bool {
        self.state == State::Broken
    }

    /// Appends a message. False if there was no room for it, which breaks the channel: one message
    /// more than the limit is, so that any can be sent.
    #[must_use]
    pub(super) fn push(&mut self, message: &Message<'_>) -> bool {
        let has_room = self.has_room();
        if has_room {
            message.encode(&mut self.bytes);
        }
        has_room
    }

    /// Appends the bytes of a message.
    #[must_use]
    pub(super) fn push_encoded(&mut self, message: &[u8]) -> bool {
        let has_room = self.has_room();
        if has_room {
            self.bytes.extend_from_slice(message);
        }
        has_room
    }

    /// Whether a message may come behind what waits. If it may not, what waits goes.
    fn has_room(&mut self) -> bool {
        if self.state == State::Open && self.bytes().len() > self.limit {
            self.give_up();
        }
        self.state == State::Open
    }

    /// Appends the end of the stream, with a report if there is an error.
    pub(super) fn end(&mut self, report: &[u8]) {
        if self.state == State::Open {
            Frame::encode_end(report, &mut self.bytes);
            self.state = State::Ended;
        }
    }

    /// Lets go what waits.
    pub(super) fn give_up(&mut self) {
        self.bytes = Vec::new();
        self.sent = 0;
        self.state = State::Broken;
    }
}
