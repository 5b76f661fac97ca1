//! Frames of a channel: bytes -> fields, and back.
//!
//! `03 00` is a 3, `03 01` ends a message, `03 02` the stream, `03 03` and a length of 7 bits a byte
//! announce bytes that are taken as they are. A zero ends a field, but not among those. What is kept
//! of a message is bounded.

/// The byte that all escapes begin with.
const ESCAPE: u8 = 3;
const LITERAL: u8 = 0;
const MESSAGE_END: u8 = 1;
const STREAM_END: u8 = 2;
const RAW: u8 = 3;
/// Most bits of a length.
const LENGTH_BITS: u32 = 35;
/// Most fields of a message.
const MAX_FIELDS: usize = 256;

/// What closes a channel, without an error in it.
pub const END_OF_STREAM: [u8; 5] = [ESCAPE, STREAM_END, 0, ESCAPE, MESSAGE_END];

/// The fields of a message, without escapes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frame {
    bytes: Vec<u8>,
    /// Behind each field.
    ends: Vec<usize>,
}

impl Frame {
    /// The fields.
    pub fn fields(&self) -> impl Iterator<Item = &[u8]> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts
            .zip(&self.ends)
            .map(|(start, &end)| &self.bytes[start..end])
    }

    /// Bytes of memory, apart from itself.
    pub fn bytes(&self) -> usize {
        self.bytes.capacity() + self.ends.capacity() * size_of::<usize>()
    }

    /// Appends a field.
    pub fn push(&mut self, field: &[u8]) {
        self.bytes.extend_from_slice(field);
        self.ends.push(self.bytes.len());
    }

    /// Appends the frame's bytes. Fields with zeros, which no JSON has, are written as they are, with
    /// their length before them.
    pub fn encode(&self, out: &mut Vec<u8>) {
        for field in self.fields() {
            put_field(field, out);
        }
        out.extend_from_slice(&[ESCAPE, MESSAGE_END]);
    }

    /// Appends what closes a channel because of an error, a report in JSON.
    pub fn encode_end(error: &[u8], out: &mut Vec<u8>) {
        out.extend_from_slice(&[ESCAPE, STREAM_END]);
        put_field(error, out);
        out.extend_from_slice(&[ESCAPE, MESSAGE_END]);
    }
}

fn put_field(field: &[u8], out: &mut Vec<u8>) {
    if field.contains(&0) {
        out.extend_from_slice(&[ESCAPE, RAW]);
        let mut len = field.len();
        while len > 0x7f {
            out.push(0x80 | (len & 0x7f) as u8);
            len >>= 7;
        }
        out.push(len as u8);
        out.extend_from_slice(field);
    } else {
        for piece in field.split_inclusive(|&byte| byte == ESCAPE) {
            out.extend_from_slice(piece);
            if piece.ends_with(&[ESCAPE]) {
                out.push(LITERAL);
            }
        }
    }
    out.push(0);
}

/// What has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Incoming {
    /// A whole message.
    Message(Frame),
    /// The peer sends no more. What is behind is why, for people.
    End,
}

/// Bytes that are no messages. Nothing behind them can be understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// An escape that does not exist.
    #[error("3 {0} is no escape of a channel")]
    Escape(u8),
    /// A message ends within a field, or the stream within a message.
    #[error("a message ends before its last field does")]
    Unfinished,
    /// More than a message may have.
    #[error("a message of more than {0} bytes or {MAX_FIELDS} fields")]
    TooLong(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Plain,
    Escape,
    /// The length so far, and its bits.
    Length(usize, u32),
    /// Bytes that still are to be taken as they are.
    Raw(usize),
}

impl State {
    fn raw(left: usize) -> State {
        match left {
            0 => State::Plain,
            left => State::Raw(left),
        }
    }
}

/// Takes messages off what comes, in pieces of any size.
#[derive(Clone, Debug)]
pub struct Decoder {
    max_bytes: usize,
    frame: Frame,
    state: State,
}

impl Decoder {
    /// For messages of so many bytes at most.
    pub fn new(max_bytes: usize) -> Decoder {
        Decoder {
            max_bytes,
            frame: Frame::default(),
            state: State::Plain,
        }
    }

    /// Takes the next message off the front of `come`; nothing once all is taken and none is whole.
    /// Not to be called again after an error or the end.
    pub fn advance(&mut self, come: &mut &[u8]) -> Result<Option<Incoming>, FrameError> {
        while let Some((&first, rest)) = come.split_first() {
            match self.state {
                State::Plain => {
                    let special = |&byte: &u8| byte == 0 || byte == ESCAPE;
                    let len = come.iter().position(special).unwrap_or(come.len());
                    if len > 0 {
                        self.take(come, len)?;
                        continue;
                    }
                    *come = rest;
                    if first == ESCAPE {
                        self.state = State::Escape;
                    } else {
                        self.end_field()?;
                    }
                }
                State::Escape => {
                    *come = rest;
                    self.state = State::Plain;
                    match first {
                        LITERAL => self.take(&mut &[ESCAPE][..], 1)?,
                        MESSAGE_END => {
                            if self.frame.ends.last().unwrap_or(&0) != &self.frame.bytes.len() {
                                return Err(FrameError::Unfinished);
                            }
                            return Ok(Some(Incoming::Message(std::mem::take(&mut self.frame))));
                        }
                        STREAM_END => {
                            return match self.is_between() {
                                true => Ok(Some(Incoming::End)),
                                false => Err(FrameError::Unfinished),
                            };
                        }
                        RAW => self.state = State::Length(0, 0),
                        other => return Err(FrameError::Escape(other)),
                    }
                }
                State::Length(len, bits) => {
                    *come = rest;
                    let more = usize::from(first & 0x7f);
                    let len = match bits {
                        LENGTH_BITS.. => usize::MAX,
                        bits => len | more << bits,
                    };
                    if len > self.max_bytes {
                        return Err(FrameError::TooLong(self.max_bytes));
                    }
                    self.state = match first {
                        0x80.. => State::Length(len, bits + 7),
                        _ => State::raw(len),
                    };
                }
                State::Raw(left) => {
                    let len = left.min(come.len());
                    self.take(come, len)?;
                    self.state = State::raw(left - len);
                }
            }
        }
        Ok(None)
    }

    /// Bytes of a message that is not whole yet.
    pub fn bytes(&self) -> usize {
        self.frame.bytes()
    }

    /// Whether nothing of a message has come that is not whole. A stream may end only then.
    pub fn is_between(&self) -> bool {
        self.state == State::Plain && self.frame == Frame::default()
    }

    fn take(&mut self, come: &mut &[u8], len: usize) -> Result<(), FrameError> {
        if len > self.max_bytes - self.frame.bytes.len() {
            return Err(FrameError::TooLong(self.max_bytes));
        }
        let (taken, rest) = come.split_at(len);
        self.frame.bytes.extend_from_slice(taken);
        *come = rest;
        Ok(())
    }

    fn end_field(&mut self) -> Result<(), FrameError> {
        if self.frame.ends.len() == MAX_FIELDS {
            return Err(FrameError::TooLong(self.max_bytes));
        }
        self.frame.ends.push(self.frame.bytes.len());
        Ok(())
    }
}
