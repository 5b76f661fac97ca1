//! Go's execution traces, versions 1.22 to 1.26: the text of `internal/trace/raw`, and the wire
//! format that `go tool trace` opens.
//!
//! Input: [`Event`]s, put into [`Batch`]es; output: lines of text or bytes. Both forms hold the
//! same events: a batch states the length of its events in wire form, so the text needs the wire
//! form's lengths too. Times are in units of the trace's own `Frequency` event.
//!
//! Source: Go's `internal/trace/raw` (text), `internal/trace/tracev2` (events, limits) and
//! `internal/trace/version`. What events mean in sequence does not belong here.

mod batch;
mod event;
mod quote;
mod read;

pub use batch::{Batch, BatchHead, NO_THREAD};
pub use event::{Event, Frame, Kind};
pub use quote::quote;
pub use read::{Damage, HEADER_BYTES, MAX_EVENT_BYTES, Read, read_event, read_header};

/// Most bytes of events that a batch may hold, in wire form.
pub const MAX_BATCH_BYTES: usize = 64 << 10;
/// Most frames that a stack may have.
pub const MAX_FRAMES: usize = 128;
/// Most bytes that a string may have.
pub const MAX_STRING_BYTES: usize = 1 << 10;

/// A version of the format, named after the first Go release that wrote it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Version {
    /// Go 1.22; every later Go reads it.
    #[default]
    Go122 = 22,
    /// Go 1.23 and 1.24.
    Go123 = 23,
    /// Go 1.25: each generation maps its time to the wall clock.
    Go125 = 25,
    /// Go 1.26: each generation has an explicit end.
    Go126 = 26,
}

impl Version {
    /// All versions there are.
    pub const ALL: [Version; 4] = [
        Version::Go122,
        Version::Go123,
        Version::Go125,
        Version::Go126,
    ];

    /// The version of Go's minor release number, if it introduced one.
    pub fn from_minor(minor: u32) -> Option<Version> {
        Version::ALL.into_iter().find(|v| v.minor() == minor)
    }

    /// `22` of `Go1.22`.
    pub fn minor(self) -> u32 {
        self as u32
    }
}

/// Which form to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// Lines for people and for `internal/trace/raw`.
    Text,
    /// Bytes for `go tool trace`.
    Wire,
}

/// What a trace begins with.
pub fn header(version: Version, encoding: Encoding) -> String {
    match encoding {
        Encoding::Text => format!("Trace Go1.{}\n", version.minor()),
        Encoding::Wire => format!("go 1.{} trace\0\0\0", version.minor()),
    }
}

/// The longest head of a string that fits into a trace, whole characters only.
pub fn fit(text: &str) -> &str {
    &text[..text.floor_char_boundary(MAX_STRING_BYTES)]
}

/// Writes one event that belongs to no batch: [`Kind::EndOfGeneration`].
pub fn write_bare(kind: Kind, encoding: Encoding, out: &mut Vec<u8>) {
    Event::new(kind, &[]).encode(encoding, out);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_exact() {
        assert_eq!(header(Version::Go122, Encoding::Text), "Trace Go1.22\n");
        let wire = header(Version::Go126, Encoding::Wire);
        assert_eq!(wire.as_bytes(), b"go 1.26 trace\0\0\0");
        assert_eq!(wire.len(), 16);
        assert_eq!(Version::from_minor(24), None);
        assert_eq!(Version::from_minor(25), Some(Version::Go125));
    }

    #[test]
    fn strings_are_cut_between_characters() {
        let long = format!("{}é{}", "a".repeat(MAX_STRING_BYTES - 1), "b".repeat(9));
        assert_eq!(fit(&long), "a".repeat(MAX_STRING_BYTES - 1));
        assert_eq!(fit("short"), "short");
    }
}
