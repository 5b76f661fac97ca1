//! Reading traces in either form, event by event, so that one form can be made of the other.
//!
//! The bytes that are there -> the first event in them and how many bytes it has, or that more are needed. Bytes may be
//! anything. What a reader of Go's rejects is rejected; whether events make sense in sequence is not looked at. Source:
//! Go's `internal/trace/raw`.

use super::quote::unquote;
use super::{Encoding, Event, Frame, Kind, MAX_BATCH_BYTES, MAX_FRAMES, MAX_STRING_BYTES, Version};

/// An event that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Read {
    /// What it is.
    pub kind: Kind,
    /// In the order of [`Kind::args`], without the number of frames.
    pub args: Vec<u64>,
    /// Of a stack, leaf first.
    pub frames: Vec<Frame>,
    /// Of a string: any bytes.
    pub data: Vec<u8>,
}

impl Read {
    /// As an event that can be written.
    pub fn event(&self) -> Event<'_> {
        Event::of(self.kind, &self.args, &self.frames, &self.data)
    }
}

/// What is no trace of Go.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Damage(String);

fn damage<T>(what: impl Into<String>) -> Result<T, Damage> {
    Err(Damage(what.into()))
}

/// Most bytes that one event may have in text, with what is between it and the one before.
pub const MAX_EVENT_BYTES: usize = 1 << 20;
/// Bytes of the header that tell the form and the version.
pub const HEADER_BYTES: usize = 16;
/// Longest line of text that Go takes.
const MAX_LINE: usize = 65_535;

/// The form and version of a trace by its first bytes, and how long its header is. Give [`HEADER_BYTES`] or more, or all
/// there are.
pub fn read_header(bytes: &[u8]) -> Result<(Encoding, Version, usize), Damage> {
    let minor = |digits: &[u8]| {
        let digits = std::str::from_utf8(digits).ok()?;
        Version::from_minor(digits.parse().ok()?)
    };
    if let Some(rest) = bytes.strip_prefix(b"go 1.") {
        let version = rest
            .strip_suffix(b" trace\0\0\0")
            .or_else(|| rest.get(..11)?.strip_suffix(b" trace\0\0\0"));
        return match version.and_then(minor) {
            Some(version) => Ok((Encoding::Wire, version, HEADER_BYTES)),
            None => damage(
                "it is of a version of Go's traces that is not known: there are 1.22, 1.23, 1.25, 1.26",
            ),
        };
    }
    let line = bytes.split(|byte| *byte == b'\n').next().unwrap_or(bytes);
    let trimmed = line.trim_ascii();
    match trimmed.strip_prefix(b"Trace Go1.").map(minor) {
        Some(Some(version)) => Ok((Encoding::Text, version, line.len())),
        Some(None) => damage(
            "it is of a version of Go's traces that is not known: there are Go1.22, Go1.23, Go1.25, Go1.26",
        ),
        None => damage(
            "it is no execution trace of Go: it begins neither with 'go 1.N trace' nor with 'Trace Go1.N'",
        ),
    }
}

/// The first event in `bytes`, and how many of them it takes; none if there is none, or, unless these are the `last`, only
/// a part of one.
pub fn read_event(
    encoding: Encoding,
    version: Version,
    bytes: &[u8],
    last: bool,
) -> Result<Option<(Read, usize)>, Damage> {
    let read = match encoding {
        Encoding::Wire => wire(bytes)?,
        Encoding::Text => text(bytes, last)?,
    };
    match read {
        Some((read, _)) if read.kind.since() > version => damage(format!(
            "{} is of Go 1.{}, the trace is of Go 1.{}",
            read.kind.name(),
            read.kind.since().minor(),
            version.minor()
        )),
        None if last && encoding == Encoding::Wire && !bytes.is_empty() => {
            damage("it ends within an event")
        }
        None if bytes.len() > MAX_EVENT_BYTES => damage("an event has no end"),
        read => Ok(read),
    }
}

/// What has data behind its arguments, and how much.
pub(super) fn most_data(kind: Kind) -> Option<usize> {
    match kind {
        Kind::String => Some(MAX_STRING_BYTES),
        Kind::ExperimentalBatch => Some(MAX_BATCH_BYTES),
        _ => None,
    }
}

fn wire(bytes: &[u8]) -> Result<Option<(Read, usize)>, Damage> {
    let Some((&code, mut rest)) = bytes.split_first() else {
        return Ok(None);
    };
    let Some(&kind) = Kind::ALL.get(usize::from(code).wrapping_sub(1)) else {
        return damage(format!("there is no event of number {code}"));
    };
    let (mut args, mut frames, mut data) = (Vec::new(), Vec::new(), Vec::new());
    macro_rules! number {
        () => {
            match uvarint(&mut rest)? {
                Some(number) => number,
                None => return Ok(None),
            }
        };
    }
    // The number of frames is told by the frames.
    for _ in kind.args().iter().filter(|name| **name != "nframes") {
        args.push(number!());
    }
    if kind == Kind::Stack {
        let count = number!();
        if count > MAX_FRAMES as u64 {
            return damage(format!(
                "a stack has {count} frames; {MAX_FRAMES} are the most"
            ));
        }
        for _ in 0..count {
            frames.push(Frame {
                pc: number!(),
                function: number!(),
                file: number!(),
                line: number!(),
            });
        }
    }
    if let Some(most) = most_data(kind) {
        let len = number!();
        let Some(len) = usize::try_from(len).ok().filter(|len| *len <= most) else {
            return damage(format!(
                "{} has {len} bytes; {most} are the most",
                kind.name()
            ));
        };
        let Some((text, after)) = rest.split_at_checked(len) else {
            return Ok(None);
        };
        (data, rest) = (text.to_vec(), after);
    }
    let read = Read {
        kind,
        args,
        frames,
        data,
    };
    Ok(Some((read, bytes.len() - rest.len())))
}

fn uvarint(rest: &mut &[u8]) -> Result<Option<u64>, Damage> {
    let mut number = 0;
    for (index, &byte) in rest.iter().enumerate() {
        if index == 9 && byte > 1 || index > 9 {
            return damage("a number has more than 64 bits");
        }
        number |= u64::from(byte & 0x7f) << (7 * index);
        if byte < 0x80 {
            *rest = &rest[index + 1..];
            return Ok(Some(number));
        }
    }
    Ok(None)
}

/// Lines, without those that say nothing.
struct Lines<'a> {
    all: &'a [u8],
    at: usize,
    last: bool,
}

impl<'a> Lines<'a> {
    fn next(&mut self) -> Result<Option<&'a str>, Damage> {
        while let Some(rest) = self.all.get(self.at..).filter(|rest| !rest.is_empty()) {
            let end = rest.iter().position(|byte| *byte == b'\n');
            let (line, len) = match end {
                Some(end) => (&rest[..end], end + 1),
                None if self.last => (rest, rest.len()),
                None => return Ok(None),
            };
            if line.len() > MAX_LINE {
                return damage(format!("a line has more than {MAX_LINE} bytes"));
            }
            let Ok(line) = std::str::from_utf8(line) else {
                return damage("a line is not UTF-8");
            };
            self.at += len;
            let line = line.trim();
            if !line.is_empty() && !line.starts_with('#') {
                return Ok(Some(line));
            }
        }
        Ok(None)
    }
}

fn text(bytes: &[u8], last: bool) -> Result<Option<(Read, usize)>, Damage> {
    let mut lines = Lines {
        all: bytes,
        at: 0,
        last,
    };
    let Some(line) = lines.next()? else {
        return Ok(None);
    };
    let mut words = line.split_whitespace();
    let name = words.next().unwrap_or("");
    let Some(&kind) = Kind::ALL.iter().find(|kind| kind.name() == name) else {
        return damage(format!("there is no event '{name}'"));
    };
    let mut args = numbers(line, words, kind.args())?;
    let mut frames = Vec::new();
    let cut = |what: &str| damage(format!("it ends before the {what} of '{line}'"));
    if kind == Kind::Stack {
        let count = args.pop().unwrap_or(0);
        if count > MAX_FRAMES as u64 {
            return damage(format!("'{line}': {MAX_FRAMES} frames are the most"));
        }
        for _ in 0..count {
            let Some(line) = lines.next()? else {
                return if last { cut("frames") } else { Ok(None) };
            };
            let names = ["pc", "func", "file", "line"];
            let numbers = numbers(line, line.split_whitespace(), &names)?;
            let &[pc, function, file, line] = &numbers[..] else {
                return damage(format!("'{line}' is no frame"));
            };
            frames.push(Frame {
                pc,
                function,
                file,
                line,
            });
        }
    }
    let mut data = Vec::new();
    if let Some(most) = most_data(kind) {
        let Some(line) = lines.next()? else {
            return if last { cut("data") } else { Ok(None) };
        };
        let quoted = line.strip_prefix("data=").and_then(unquote);
        match quoted {
            Some(text) if text.len() <= most => data = text,
            Some(text) => {
                return damage(format!(
                    "{name} has {} bytes; {most} are the most",
                    text.len()
                ));
            }
            _ => return damage(format!("'{line}' is not data=\"...\" behind '{name}'")),
        }
    }
    let read = Read {
        kind,
        args,
        frames,
        data,
    };
    Ok(Some((read, lines.at)))
}

/// `name=number` for each of the names, in their order.
fn numbers<'a>(
    line: &str,
    mut words: impl Iterator<Item = &'a str>,
    names: &[&str],
) -> Result<Vec<u64>, Damage> {
    let mut numbers = Vec::with_capacity(names.len());
    for name in names {
        let word = words
            .next()
            .and_then(|word| word.strip_prefix(name)?.strip_prefix('='));
        // Unlike Go, Rust would take a sign.
        let digits = word.filter(|word| word.bytes().all(|byte| byte.is_ascii_digit()));
        match digits.and_then(|digits| digits.parse().ok()) {
            Some(number) => numbers.push(number),
            None => return damage(format!("'{line}': {name}=NUMBER is missing in its place")),
        }
    }
    match words.next() {
        Some(more) => damage(format!("'{line}': nothing is to be said by '{more}'")),
        None => Ok(numbers),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all(bytes: &[u8]) -> Result<Vec<Read>, Damage> {
        let (encoding, version, mut at) = read_header(bytes)?;
        let mut events = Vec::new();
        while let Some((event, len)) = read_event(encoding, version, &bytes[at..], true)? {
            at += len;
            events.push(event);
        }
        Ok(events)
    }

    fn write(encoding: Encoding, version: Version, events: &[Read]) -> Vec<u8> {
        let mut out = super::super::header(version, encoding).into_bytes();
        events
            .iter()
            .for_each(|event| event.event().encode(encoding, &mut out));
        out
    }

    #[test]
    fn what_go_takes_is_taken() {
        let text = "Trace Go1.23\r\n\n# a comment\n\tEventBatch\tgen=1  m=18446744073709551615 time=0 size=9\r\n\
                    Stack id=5 nframes=1\n\n\tpc=1 func=2 file=3 line=4\nString id=1\n\tdata=\"a\\x00\\u00e9\\377\\n\"\n\
                    String id=2\ndata=`raw\\`\nExperimentalBatch exp=1 gen=2 m=3 time=4\n\tdata=\"\"\nStrings";
        let events = all(text.as_bytes()).unwrap();
        assert_eq!(events.len(), 6);
        assert_eq!(events[0].args, [1, u64::MAX, 0, 9]);
        assert_eq!(events[1].frames.len(), 1);
        assert_eq!(events[2].data, b"a\0\xc3\xa9\xff\n");
        assert_eq!(events[3].data, b"raw\\");
        for encoding in [Encoding::Text, Encoding::Wire] {
            let again = write(encoding, Version::Go123, &events);
            assert_eq!(all(&again).unwrap(), events);
        }
    }

    #[test]
    fn what_go_rejects_is_rejected() {
        for text in [
            "trace Go1.22\n",
            "Trace Go1.24\n",
            "\u{feff}Trace Go1.22\n",
            "Trace Go1.22 x\n",
            "Trace Go1.22\nStack id=5 n=2\n",
            "Trace Go1.22\nStack id=5 nframes=2\n\tpc=1 func=2 file=3 line=4\n",
            "Trace Go1.22\nStack id=5 nframes=129\n",
            "Trace Go1.22\nProcStop dt= 1\n",
            "Trace Go1.22\nProcStop dt=-1\n",
            "Trace Go1.22\nProcStop dt=+1\n",
            "Trace Go1.22\nProcStop dt=1 # no comment\n",
            "Trace Go1.22\nProcStop\n",
            "Trace Go1.22\nString id=1\n",
            "Trace Go1.22\nString id=1\n\tdata=x\n",
            "Trace Go1.22\nGoSwitch dt=1 g=1 g_seq=1\n",
            "Trace Go1.22\nHello\n",
        ] {
            assert!(all(text.as_bytes()).is_err(), "{text:?}");
        }
        let long = format!("Trace Go1.22\n#{}\n", "x".repeat(MAX_LINE));
        assert!(all(long.as_bytes()).is_err());
        let wire = b"go 1.22 trace\0\0\0";
        for rest in [
            &b"\x00"[..],
            b"\xff",
            b"\x0b",
            b"\x05\x01\x05abc",
            b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02",
        ] {
            assert!(all(&[wire, rest].concat()).is_err(), "{rest:?}");
        }
    }

    fn events() -> impl Strategy<Value = Vec<Read>> {
        let number = prop_oneof![any::<u64>(), 0..300_u64];
        let frame = prop::array::uniform4(number.clone());
        let parts = (
            prop::sample::select(Kind::ALL),
            prop::collection::vec(number, 5),
            prop::collection::vec(frame, 0..4),
            prop::collection::vec(any::<u8>(), 0..40),
        );
        let event = parts.prop_map(|(kind, mut args, frames, data)| {
            let of_frames = usize::from(kind == Kind::Stack);
            args.truncate(kind.args().len() - of_frames);
            let frame = |[pc, function, file, line]: [u64; 4]| Frame {
                pc,
                function,
                file,
                line,
            };
            Read {
                kind,
                args,
                frames: match kind {
                    Kind::Stack => frames.into_iter().map(frame).collect(),
                    _ => Vec::new(),
                },
                data: if most_data(kind).is_some() {
                    data
                } else {
                    Vec::new()
                },
            }
        });
        prop::collection::vec(event, 0..8)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn each_form_reads_back(events in events()) {
            for encoding in [Encoding::Text, Encoding::Wire] {
                let bytes = write(encoding, Version::Go126, &events);
                prop_assert_eq!(all(&bytes), Ok(events.clone()));
                // However much of it is there, what comes out first is the same.
                if let Some(first) = events.first() {
                    for len in (HEADER_BYTES.min(bytes.len())..bytes.len()).step_by(7) {
                        let (encoding, version, at) = read_header(&bytes).unwrap();
                        let part = read_event(encoding, version, bytes.get(at..len).unwrap_or(&[]), false);
                        if let Ok(Some((event, _))) = part {
                            prop_assert_eq!(&event, first);
                        }
                    }
                }
            }
        }

        #[test]
        fn anything_is_read_without_panic(
            events in events(), wire in any::<bool>(), at in any::<prop::sample::Index>(), byte in any::<u8>(),
        ) {
            let encoding = if wire { Encoding::Wire } else { Encoding::Text };
            let mut bytes = write(encoding, Version::Go126, &events);
            let at = at.index(bytes.len());
            bytes[at] = byte;
            let _ = all(&bytes);
            let _ = all(&bytes[..at]);
        }
    }
}
