//! What can go wrong with a capture as a whole ([`CaptureError`]), and with a part of one
//! ([`Damage`]).

use std::fmt;
use std::io;
use std::path::PathBuf;

/// Why a capture can't be written or read.
#[derive(Debug, thiserror::Error)]
pub enum CaptureError {
    /// The output is there already.
    #[error("{} exists already; name another file with -o", .0.display())]
    Exists(PathBuf),
    /// Another recording writes the output.
    #[error("{} is being written by another recording; name another file with -o, or end that one", .0.display())]
    Busy(PathBuf),
    /// The output is something that a capture must not replace.
    #[error("{} is {what}, which is never written through or replaced; name a regular file with -o", .path.display())]
    NotRegular {
        /// The output.
        path: PathBuf,
        /// What it is.
        what: &'static str,
    },
    /// The output could not be made.
    #[error("failed to create {}: {source}", .path.display())]
    Create {
        /// The output.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Writing failed. What was written before reads as a capture.
    #[error("failed to write {}{}", .path.display(), write_failure(*offset, source))]
    Write {
        /// The output.
        path: PathBuf,
        /// Bytes that are safely in the file.
        offset: u64,
        /// What the system said.
        source: io::Error,
    },
    /// There was no room for all that a ring is to keep. It keeps the newest.
    #[error("the disk is full: {} keeps less than was asked for, its oldest parts go to make room", .0.display())]
    Crowded(PathBuf),
    /// What a ring held could not be written out. Its parts are still there.
    #[error("failed to write {}: {source}; all that the ring kept stays in {} (profiler merge joins its parts, into a file where there is room)", .path.display(), .parts.display())]
    RingStays {
        /// The output.
        path: PathBuf,
        /// Where the parts are.
        parts: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The output was deleted while it was being written.
    #[error("{} was deleted while it was being written; nothing recorded from here on can be found again", .0.display())]
    Vanished(PathBuf),
    /// A file could not be opened or read.
    #[error("failed to read {} at byte {offset}: {source}", .path.display())]
    Read {
        /// The capture.
        path: PathBuf,
        /// Byte of the file at which it was read.
        offset: u64,
        /// What the system said.
        source: io::Error,
    },
    /// There is nothing in the file.
    #[error("{} is empty (0 bytes), so it holds no capture", .0.display())]
    Empty(PathBuf),
    /// The file is not a capture.
    #[error("{} is not a capture (at byte 0): it looks like {looks}", .path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// What it looks like.
        looks: &'static str,
    },
    /// The capture is of a version that this program does not know.
    #[error("{} has capture format version {found} (at byte 8), this program knows up to {known}; use a newer profiler", .path.display())]
    Newer {
        /// The capture.
        path: PathBuf,
        /// Its version.
        found: u16,
        /// What is known here.
        known: u16,
    },
    /// The file ends before the first block.
    #[error("{} is cut off at byte {len}, before the first data", .path.display())]
    Truncated {
        /// The capture.
        path: PathBuf,
        /// Its length.
        len: u64,
    },
    /// A limit or combination of options that makes no sense.
    #[error("{0}")]
    Options(String),
    /// A consumer of events failed.
    #[error("failed to write the output: {0}")]
    Sink(#[source] io::Error),
}

/// What became of a capture that could not be written from this byte on.
fn write_failure(offset: u64, source: &io::Error) -> String {
    let (place, kept) = match offset {
        0 => (String::new(), "nothing is in it".to_owned()),
        _ => (
            format!(" at byte {offset}"),
            "the capture reads fine up to there".to_owned(),
        ),
    };
    format!("{place}: {source}; {kept}, later events are dropped and counted until there is room")
}

impl CaptureError {
    /// Whether there was no room.
    pub(super) fn is_full(&self) -> bool {
        let (CaptureError::Write { source, .. } | CaptureError::Create { source, .. }) = self
        else {
            return false;
        };
        matches!(
            source.kind(),
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge
        )
    }
}

/// A part of a capture that could not be used.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Damage {
    /// Byte of the file.
    pub offset: u64,
    /// What is wrong there.
    pub what: String,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "byte {}: {}", self.offset, self.what)
    }
}
