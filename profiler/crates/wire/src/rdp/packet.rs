//! Packets of the stream transport: bytes -> JSON objects, and back.
//!
//! `length:JSON`, the length in bytes as decimal digits; `bulk actor type length:data`. Bulk data is passed over, so
//! that its request can be refused by name. A packet of JSON that can't be read is one packet, and the stream goes on
//! behind it; a header that can't be read ends the stream. What is kept of a packet is bounded.
//!
//! Source: "Remote Debugging Protocol Stream Transport". What does not belong here: what packets mean.

use serde::Serialize;
use serde_json::{Map, Value};

/// A packet's properties.
pub type Packet = Map<String, Value>;

/// Most bytes of a header, without its colon.
const MAX_HEADER: usize = 200;
/// Most bytes of bulk data, as Firefox has it.
const MAX_BULK: u64 = 1 << 40;
/// How a header of bulk data begins.
const BULK: &str = "bulk ";
/// A buffer that has grown larger is given back.
const KEPT_BYTES: usize = 64 << 10;

/// Appends a packet.
pub fn encode(packet: &impl Serialize, out: &mut Vec<u8>) {
    // Only maps with keys that are no text fail, and writers that do.
    let Ok(json) = serde_json::to_vec(packet) else {
        return;
    };
    out.extend_from_slice(json.len().to_string().as_bytes());
    out.push(b':');
    out.extend_from_slice(&json);
}

/// What has come.
#[derive(Clone, Debug, PartialEq)]
pub enum Incoming {
    /// A packet of JSON.
    Packet(Packet),
    /// JSON that is no object.
    NoObject,
    /// What should be JSON is not.
    Unreadable,
    /// A packet of bulk data, whose data is passed over.
    Bulk {
        /// Who it is for.
        actor: String,
        /// What it asks for.
        kind: String,
    },
}

/// Bytes that are no packets. Nothing behind them can be understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PacketError {
    /// It has no colon where it should have one.
    #[error("a packet's header of more than {MAX_HEADER} bytes")]
    LongHeader,
    /// It is neither a length nor one of bulk data.
    #[error("'{0}' is no header of a packet")]
    Header(String),
    /// More than is taken.
    #[error("a packet of {0} bytes")]
    TooLong(u64),
}

/// What is to come next.
#[derive(Clone, Debug)]
enum State {
    Header,
    /// A packet of so many bytes.
    Json(usize),
    /// Bulk data, of which so many bytes are left.
    Bulk(u64),
}

/// Takes packets off what comes, in pieces of any size.
#[derive(Clone, Debug)]
pub struct Decoder {
    max_bytes: usize,
    /// What has come of a header or a packet.
    kept: Vec<u8>,
    state: State,
}

impl Decoder {
    /// For packets of JSON of so many bytes at most.
    pub fn new(max_bytes: usize) -> Decoder {
        Decoder {
            max_bytes,
            kept: Vec::new(),
            state: State::Header,
        }
    }

    /// Takes the next packet off the front of `come`; nothing once all is taken and none is whole. Not to be called
    /// again after an error.
    pub fn advance(&mut self, come: &mut &[u8]) -> Result<Option<Incoming>, PacketError> {
        loop {
            match self.state {
                State::Header => {
                    let room = MAX_HEADER + 1 - self.kept.len();
                    let seen = &come[..come.len().min(room)];
                    let Some(len) = seen.iter().position(|&byte| byte == b':') else {
                        self.kept.extend_from_slice(seen);
                        *come = &come[seen.len()..];
                        return match self.kept.len() > MAX_HEADER {
                            true => Err(PacketError::LongHeader),
                            false => self.may_become_header().map(|()| None),
                        };
                    };
                    self.kept.extend_from_slice(&come[..len]);
                    *come = &come[len + 1..];
                    let header = std::mem::take(&mut self.kept);
                    if let Some(bulk) = self.header(&header)? {
                        return Ok(Some(bulk));
                    }
                }
                State::Json(len) => {
                    let taken = come.len().min(len - self.kept.len());
                    self.kept.extend_from_slice(&come[..taken]);
                    *come = &come[taken..];
                    if self.kept.len() < len {
                        return Ok(None);
                    }
                    let incoming = read(&self.kept);
                    self.kept.clear();
                    self.kept.shrink_to(KEPT_BYTES);
                    self.state = State::Header;
                    return Ok(Some(incoming));
                }
                State::Bulk(left) => {
                    let passed = come.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                    *come = &come[passed..];
                    match left - passed as u64 {
                        0 => self.state = State::Header,
                        left => {
                            self.state = State::Bulk(left);
                            return Ok(None);
                        }
                    }
                }
            }
        }
    }

    /// Bytes of a packet that is not whole yet.
    pub fn bytes(&self) -> usize {
        self.kept.capacity()
    }

    /// What can never become a header is an error before the colon comes: a client of another protocol waits for an
    /// answer.
    fn may_become_header(&self) -> Result<(), PacketError> {
        let bulk = BULK.as_bytes();
        let common = self.kept.len().min(bulk.len());
        let may = self.kept.iter().all(u8::is_ascii_digit) || self.kept[..common] == bulk[..common];
        match may {
            true => Ok(()),
            false => Err(no_header(&self.kept)),
        }
    }

    /// Reads a header; a packet of bulk data is announced by it.
    fn header(&mut self, header: &[u8]) -> Result<Option<Incoming>, PacketError> {
        let wrong = || no_header(header);
        let text = std::str::from_utf8(header).map_err(|_| wrong())?;
        let Some(bulk) = text.strip_prefix(BULK) else {
            let len = length(text).ok_or_else(wrong)?;
            let max = self.max_bytes as u64;
            let fits = usize::try_from(len).ok().filter(|_| len <= max);
            self.state = State::Json(fits.ok_or(PacketError::TooLong(len))?);
            return Ok(None);
        };
        let mut words = bulk.split(' ');
        let (Some(actor), Some(kind), Some(len), None) =
            (words.next(), words.next(), words.next(), words.next())
        else {
            return Err(wrong());
        };
        let len = length(len).ok_or_else(wrong)?;
        if len > MAX_BULK {
            return Err(PacketError::TooLong(len));
        }
        if len > 0 {
            self.state = State::Bulk(len);
        }
        Ok(Some(Incoming::Bulk {
            actor: actor.to_owned(),
            kind: kind.to_owned(),
        }))
    }
}

/// A length: digits, zeros may lead. What is more than 64 bits is more than any limit.
fn length(text: &str) -> Option<u64> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().unwrap_or(u64::MAX))
}

fn no_header(header: &[u8]) -> PacketError {
    PacketError::Header(header.escape_ascii().to_string())
}

fn read(json: &[u8]) -> Incoming {
    match serde_json::from_slice(json) {
        Ok(Value::Object(packet)) => Incoming::Packet(packet),
        Ok(_) => Incoming::NoObject,
        Err(_) => Incoming::Unreadable,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// What comes of bytes, in pieces of a size.
    fn decoded(bytes: &[u8], piece: usize) -> (Vec<Incoming>, Option<PacketError>) {
        let mut decoder = Decoder::new(1000);
        let mut all = Vec::new();
        for mut come in bytes.chunks(piece) {
            loop {
                match decoder.advance(&mut come) {
                    Ok(Some(incoming)) => all.push(incoming),
                    Ok(None) => break,
                    Err(error) => return (all, Some(error)),
                }
            }
        }
        (all, None)
    }

    fn check(bytes: &[u8], expected: &[Incoming], error: Option<PacketError>) {
        for piece in [1, 2, 3, 7, bytes.len().max(1)] {
            let (all, failed) = decoded(bytes, piece);
            assert_eq!(all, expected, "in pieces of {piece}");
            assert_eq!(failed.is_some(), error.is_some(), "{failed:?}");
            if piece == bytes.len() {
                assert_eq!(failed, error);
            }
        }
    }

    fn packet(value: Value) -> Incoming {
        match value {
            Value::Object(packet) => Incoming::Packet(packet),
            _ => Incoming::NoObject,
        }
    }

    #[test]
    fn packets_come_in_pieces_and_behind_each_other() {
        let hello = packet(json!({ "to": "röot" }));
        let bytes = "14:{\"to\":\"röot\"}00002:{}2:{}";
        check(
            bytes.as_bytes(),
            &[hello, packet(json!({})), packet(json!({}))],
            None,
        );
        check(b"2:[]4:null1:7", &[const { Incoming::NoObject }; 3], None);
        check(b"", &[], None);
    }

    #[test]
    fn the_stream_goes_on_behind_json_that_cannot_be_read() {
        let expected = [
            Incoming::Unreadable,
            Incoming::Unreadable,
            Incoming::Unreadable,
            packet(json!({})),
        ];
        check(b"1:{0:4:\"\xff\xfe\"2:{}", &expected, None);
        let deep = format!("{}:{}2:{{}}", 900, "[".repeat(900));
        check(
            deep.as_bytes(),
            &[Incoming::Unreadable, packet(json!({}))],
            None,
        );
    }

    #[test]
    fn bulk_data_is_passed_over() {
        let bulk = |actor: &str| Incoming::Bulk {
            actor: actor.into(),
            kind: "load".into(),
        };
        check(
            b"bulk trace7 load 5:2:{}:2:{}bulk a load 0:2:{}",
            &[
                bulk("trace7"),
                packet(json!({})),
                bulk("a"),
                packet(json!({})),
            ],
            None,
        );
    }

    #[test]
    fn what_is_no_header_ends_the_stream() {
        let header = |text: &str| Some(PacketError::Header(text.into()));
        check(b"2:{}abc:", &[packet(json!({}))], header("abc"));
        check(b"-3:{}", &[], header("-3"));
        check(b":{}", &[], header(""));
        check(b" 2:{}", &[], header(" 2"));
        check(b"GET / HTTP/1.1\r\n", &[], header("GET / HTTP/1.1\\r\\n"));
        for bulk in ["bulk a load:", "bulk a load x:", "bulk a b c 1:", "bulk:"] {
            check(bulk.as_bytes(), &[], header(&bulk[..bulk.len() - 1]));
        }
        check(&[b'1'; 300], &[], Some(PacketError::LongHeader));
        check(b"1001:", &[], Some(PacketError::TooLong(1001)));
        check(
            b"99999999999999999999999:",
            &[],
            Some(PacketError::TooLong(u64::MAX)),
        );
        check(
            b"bulk a b 1099511627777:",
            &[],
            Some(PacketError::TooLong((1 << 40) + 1)),
        );
    }

    #[test]
    fn lengths_are_bytes() {
        let mut out = Vec::new();
        encode(&json!({ "name": "größe" }), &mut out);
        assert_eq!(out, "18:{\"name\":\"größe\"}".as_bytes());
        let (all, _) = decoded(&out, 5);
        assert_eq!(all, [packet(json!({ "name": "größe" }))]);
    }
}
