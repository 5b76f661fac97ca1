//! Recordings of other tools: folded stacks, text of perf script, perf.data, pprof, traces of Go, profiles of Firefox -> batches of
//! a recording.
//!
//! Bytes of a file -> definitions and samples, in pieces. What a file does not say is not made up, but for times where it has none:
//! samples then follow each other. All of it is untrusted: lines, sizes and numbers are bounded, nothing panics. The mapping:
//! docs/formats/import.md. What does not belong here: opening files, captures.

mod firefox;
mod folded;
mod go_trace;
mod intake;
mod perf_data;
mod perf_script;
mod perf_tasks;
mod pprof;

use std::io::{self, BufRead};

use intake::Intake;
use profiler_model::{Batch, BuildId};

/// A kind of file that can be imported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `root;..;leaf number`.
    Folded,
    /// What `perf script` writes.
    PerfScript,
    /// What `perf record` writes.
    PerfData,
    /// Protobuf of pprof, packed or not.
    Pprof,
    /// An execution trace of Go, bytes or text.
    GoTrace,
    /// JSON of the Firefox Profiler, packed or not.
    Firefox,
}

/// What to add to offsets of a file to have addresses of its symbols: its path, its build id, and the offset of the mapping
/// -> 0 where the file is not at hand.
pub type Bias<'b> = &'b dyn Fn(&str, &BuildId, u64) -> u64;

impl Kind {
    /// All there are.
    pub const ALL: [Kind; 6] = [
        Kind::Folded,
        Kind::PerfScript,
        Kind::PerfData,
        Kind::Pprof,
        Kind::GoTrace,
        Kind::Firefox,
    ];

    /// What it is called: as the format of export, if there is one.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Folded => "folded",
            Kind::PerfScript => "perf-script",
            Kind::PerfData => "perf-data",
            Kind::Pprof => "pprof",
            Kind::GoTrace => "go-trace",
            Kind::Firefox => "firefox",
        }
    }
}

/// A file is not what it should be.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// It can't be read, or what becomes of it can't be written.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// Nothing says which kind it is.
    #[error(
        "it is none of what can be imported, by its beginning; if it is, say which: --from {}",
        Kind::ALL.map(Kind::name).join("|")
    )]
    Unknown,
    /// It is damaged, or of another kind.
    #[error("line {line}: {what}")]
    Line {
        /// From 1.
        line: u64,
        /// What is wrong.
        what: String,
    },
    /// It is damaged.
    #[error("{0}")]
    Damaged(String),
    /// It holds no sample.
    #[error("it holds no samples")]
    Empty,
}

/// What came of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Imported {
    /// How many samples.
    pub samples: u64,
    /// What was left out: values that are negative.
    pub left_out: u64,
    /// The file ends before what it should hold does: the recording was killed, or the file was cut.
    pub ends_early: bool,
}

/// Longest line that is read.
const MAX_LINE: usize = 1 << 20;
/// So much of a file tells its kind, if it is read at once: the first line can be long.
pub const HEAD: usize = MAX_LINE;

/// Imports a file called `name`; what it is made of goes to `take` in batches. `bias` is asked of files that a recording names.
pub fn import(
    input: &mut dyn BufRead,
    kind: Option<Kind>,
    name: &str,
    bias: Bias<'_>,
    take: &mut dyn FnMut(Batch) -> io::Result<()>,
) -> Result<Imported, ImportError> {
    if input.fill_buf()?.is_empty() {
        return Err(ImportError::Damaged("it is empty".to_owned()));
    }
    let kind = match kind {
        Some(kind) => kind,
        None => kind_of(input.fill_buf()?).ok_or(ImportError::Unknown)?,
    };
    let mut intake = Intake::new(name, kind.name(), take);
    match kind {
        Kind::Folded => folded::read(input, &mut intake)?,
        Kind::PerfScript => perf_script::read(input, &mut intake)?,
        Kind::PerfData => perf_data::read(input, bias, &mut intake)?,
        Kind::Pprof => pprof::read(input, &mut intake)?,
        Kind::GoTrace => go_trace::read(input, &mut intake)?,
        Kind::Firefox => firefox::read(input, &mut intake)?,
    }
    intake.finish()
}

/// The kind of a file by its beginning.
fn kind_of(head: &[u8]) -> Option<Kind> {
    if head.starts_with(perf_data::MAGIC) {
        return Some(Kind::PerfData);
    }
    if go_trace::begins(head) {
        return Some(Kind::GoTrace);
    }
    if firefox::begins(head) {
        return Some(Kind::Firefox);
    }
    if head.starts_with(&[0x1f, 0x8b]) {
        return Some(Kind::Pprof);
    }
    let head = &head[..head.len().min(HEAD)];
    let text = match std::str::from_utf8(head) {
        Ok(text) => text,
        // A character may be cut in two.
        Err(error) if error.valid_up_to() + 4 > head.len() => {
            std::str::from_utf8(&head[..error.valid_up_to()]).ok()?
        }
        // A sample type: its number and length come first.
        Err(_) => return (head.first() == Some(&0x0a)).then_some(Kind::Pprof),
    };
    let says = |line: &&str| !is_silent(line);
    let line = text.lines().find(says)?;
    if perf_script::is_header(line) {
        Some(Kind::PerfScript)
    } else if head.contains(&0) {
        (head.first() == Some(&0x0a)).then_some(Kind::Pprof)
    } else {
        folded::number(line).map(|_| Kind::Folded)
    }
}

/// Whether a line says nothing: it is empty, or a comment. A name may begin like one: `#private`.
fn is_silent(line: &str) -> bool {
    line.trim().is_empty() || line == "#" || line.starts_with("# ")
}

/// Lines of a text, one after another; each is at most [`MAX_LINE`] long, and what is no UTF-8 in it is replaced.
struct Lines<'a> {
    input: &'a mut dyn BufRead,
    number: u64,
    line: String,
}

impl<'a> Lines<'a> {
    fn new(input: &'a mut dyn BufRead) -> Lines<'a> {
        Lines {
            input,
            number: 0,
            line: String::new(),
        }
    }

    /// Goes on to the next line, if there is one.
    fn advance(&mut self) -> Result<bool, ImportError> {
        let mut bytes = std::mem::take(&mut self.line).into_bytes();
        bytes.clear();
        let mut limited = io::Read::take(&mut *self.input, MAX_LINE as u64 + 1);
        if limited.read_until(b'\n', &mut bytes)? == 0 {
            return Ok(false);
        }
        self.number += 1;
        if bytes.len() > MAX_LINE {
            return Err(self.wrong("it is too long"));
        }
        self.line = String::from_utf8(bytes)
            .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned());
        let text = self.line.trim_end_matches(['\n', '\r']).len();
        self.line.truncate(text);
        Ok(true)
    }

    /// The line, without its end.
    fn line(&self) -> &str {
        &self.line
    }

    fn wrong(&self, what: impl Into<String>) -> ImportError {
        ImportError::Line {
            line: self.number,
            what: what.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_told_by_their_beginning() {
        for (head, kind) in [
            (&b"a;b;c 12\n"[..], Some(Kind::Folded)),
            (b"# said\n\nprogram 12.5\n", Some(Kind::Folded)),
            (
                b"my prog 12/13 [001] 5.000001: 250 cycles:u: \n\t 1f main (/a)\n",
                Some(Kind::PerfScript),
            ),
            (b"prog 12 5.000001: cycles: \n", Some(Kind::PerfScript)),
            (b"\x1f\x8b\x08\0", Some(Kind::Pprof)),
            (
                b"\x0a\x04\x08\x01\x10\x02\x12\x80\xff\xff\xff\xff",
                Some(Kind::Pprof),
            ),
            (b"\x0a\x04\x08\x01\x10\x02\x12\0", Some(Kind::Pprof)),
            (b"", None),
            (b"hello\n", None),
            (b"{\"meta\": 1}", Some(Kind::Firefox)),
            (b"PERFILE2\x68\0", Some(Kind::PerfData)),
            (b"go 1.22 trace\0\0\0", Some(Kind::GoTrace)),
            (b"Trace Go1.26\n", Some(Kind::GoTrace)),
            (b"\x7fELF\x02\x01\xff\xfe\xfd\xfc\xfb", None),
        ] {
            assert_eq!(kind_of(head), kind, "{head:?}");
        }
    }

    #[test]
    fn a_line_without_an_end_is_no_trouble() {
        let long = vec![b'x'; MAX_LINE + 5];
        let none = |_: &str, _: &BuildId, _| 0;
        let kind = Some(Kind::Folded);
        let error = import(&mut &long[..], kind, "x", &none, &mut |_| Ok(())).unwrap_err();
        assert_eq!(error.to_string(), "line 1: it is too long");
    }
}
