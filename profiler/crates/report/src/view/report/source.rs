//! The text of source lines, from files on this machine.
//!
//! Input: a path out of a recording (untrusted) and lines with samples; output: these lines and
//! those around them with their text. Only regular files of bounded size are read, without waiting
//! for a reader of a FIFO; what cannot be read is noted, and the lines are shown without text.

use std::fs::File;
use std::io::{self, Read};
use std::time::UNIX_EPOCH;

use rustix::fs::{Mode, OFlags};

use super::annotate::SourceLine;
use super::data::Share;

/// A larger file is no source.
const MAX_BYTES: u64 = 16 << 20;
/// Lines shown before and after one with samples.
const AROUND: usize = 3;

/// Adds text and context to `lines`, which are ordered by number.
pub(super) fn with_text(
    path: &str,
    lines: Vec<SourceLine>,
    started_realtime_ns: Option<u64>,
    notes: &mut Vec<String>,
) -> Vec<SourceLine> {
    let (text, modified_ns) = match read(path) {
        Ok(read) => read,
        Err(error) => {
            notes.push(format!(
                "{path} cannot be read ({error}); its lines are shown without text"
            ));
            return lines;
        }
    };
    if started_realtime_ns.is_some_and(|started| modified_ns > started) {
        notes.push(format!(
            "{path} was changed after the recording: the text may be of other lines"
        ));
    }
    in_context(&text, lines)
}

fn read(path: &str) -> io::Result<(String, u64)> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    let metadata = file.metadata()?;
    if !metadata.is_file() || metadata.len() > MAX_BYTES {
        return Err(io::Error::other("not a regular file of at most 16 MiB"));
    }
    let modified = metadata.modified()?.duration_since(UNIX_EPOCH);
    let modified_ns = modified.map_or(0, |since| since.as_nanos() as u64);
    let mut bytes = Vec::new();
    file.take(MAX_BYTES).read_to_end(&mut bytes)?;
    Ok((String::from_utf8_lossy(&bytes).into_owned(), modified_ns))
}

fn in_context(text: &str, lines: Vec<SourceLine>) -> Vec<SourceLine> {
    let source: Vec<&str> = text.lines().collect();
    let mut shown: Vec<SourceLine> = Vec::new();
    let plain = |number: usize| SourceLine {
        line: number as u32,
        text: source.get(number - 1).map(|text| (*text).to_owned()),
        share: Share::default(),
    };
    for (index, line) in lines.iter().enumerate() {
        let number = line.line as usize;
        let done = shown.last().map_or(0, |last| last.line as usize);
        let from = number.saturating_sub(AROUND).max(done + 1);
        shown.extend((from..number).filter(|n| *n <= source.len()).map(plain));
        shown.push(SourceLine {
            text: plain(number).text,
            ..line.clone()
        });
        let next = lines
            .get(index + 1)
            .map_or(usize::MAX, |next| next.line as usize);
        let to = (number + AROUND).min(next - 1).min(source.len());
        shown.extend((number + 1..=to).map(plain));
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(line: u32) -> SourceLine {
        SourceLine {
            line,
            text: None,
            share: Share {
                self_samples: 1,
                ..Share::default()
            },
        }
    }

    #[test]
    fn lines_come_with_their_context_once() {
        let text: String = (1..=12).map(|n| format!("line {n}\n")).collect();
        let shown = in_context(&text, vec![line(2), line(4), line(11), line(40)]);
        let numbers: Vec<u32> = shown.iter().map(|line| line.line).collect();
        assert_eq!(numbers, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 40]);
        assert_eq!(shown[1].text.as_deref(), Some("line 2"));
        assert_eq!(shown.iter().filter(|l| l.share.self_samples > 0).count(), 4);
        assert_eq!(shown[12].text, None);
    }

    #[test]
    fn only_regular_files_are_read() {
        let mut notes = Vec::new();
        for path in ["/dev/zero", "/proc", "/nowhere/at/all", "with\0nul"] {
            let lines = with_text(path, vec![line(1)], None, &mut notes);
            assert_eq!(lines.len(), 1);
        }
        assert_eq!(notes.len(), 4);
    }
}
