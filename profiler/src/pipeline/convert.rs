//! From one form of an execution trace of Go to the other; from messages of Bytefrog to text.
//!
//! A file or standard input, text or wire -> the other form, or the same written anew. In pieces: memory does not grow with
//! the input. What does not belong here: the forms (`wire::go_trace`, `view::bytefrog`), recordings (`outputs`).

use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::path::Path;

use super::outputs;
use crate::error::{Context, Failure};
use profiler_capture::Existing;
use profiler_report::view::bytefrog::{Printer, Speaker};
use profiler_wire::go_trace::{
    Encoding, HEADER_BYTES, MAX_EVENT_BYTES, header, read_event, read_header,
};

/// How much is read at once.
const PIECE: usize = 1 << 18;

/// Bytes of an input that were not used yet.
struct Input {
    from: Box<dyn Read>,
    bytes: Vec<u8>,
    used: usize,
    last: bool,
}

impl Input {
    fn rest(&self) -> &[u8] {
        &self.bytes[self.used..]
    }

    /// Reads on, if there is more.
    fn more(&mut self) -> io::Result<()> {
        self.bytes.drain(..self.used);
        self.used = 0;
        let before = self.bytes.len();
        self.bytes.resize(before + PIECE, 0);
        let mut filled = before;
        while filled < self.bytes.len() {
            match self.from.read(&mut self.bytes[filled..]) {
                Ok(0) => {
                    self.last = true;
                    break;
                }
                Ok(len) => filled += len,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.bytes.truncate(filled);
        Ok(())
    }
}

/// Writes a trace in a form: none is the one that it does not have; messages of Bytefrog as lines of text. `-` as a path is
/// standard input.
pub fn convert(
    from: &Path,
    to: Option<&Path>,
    form: Option<Encoding>,
    force: bool,
) -> Result<(), Failure> {
    let name = from.display();
    let opened: Box<dyn Read> = match from.as_os_str() == "-" {
        true => Box::new(io::stdin()),
        false => Box::new(File::open(from).context(|| format!("failed to open {name}"))?),
    };
    let mut input = Input {
        from: opened,
        bytes: Vec::new(),
        used: 0,
        last: false,
    };
    let failed = |error: io::Error| Failure::failed(format!("failed to read {name}: {error}"));
    input.more().map_err(failed)?;
    if let Some(speaker) = Speaker::of(input.rest()) {
        if form == Some(Encoding::Wire) {
            return Err(Failure::usage(format!(
                "{name} holds messages of Bytefrog, which become text only"
            )));
        }
        return print(input, speaker, from, to, force);
    }
    let head = &input.rest()[..input.rest().len().min(64.max(HEADER_BYTES))];
    let (encoding, version, len) =
        read_header(head).map_err(|damage| Failure::failed(format!("{name}: {damage}")))?;
    input.used = len;
    let form = form.unwrap_or(match encoding {
        Encoding::Text => Encoding::Wire,
        Encoding::Wire => Encoding::Text,
    });
    let (output, file) = outputs::open_output(to, Existing::forced(force), &[from])?;
    super::renounce(to.as_slice());
    let mut output = BufWriter::new(output);
    output.write_all(header(version, form).as_bytes())?;
    let (mut buffer, mut events) = (Vec::new(), 0_u64);
    loop {
        let last = input.last;
        let read = read_event(encoding, version, input.rest(), last).map_err(|damage| {
            Failure::failed(format!("{name}: {damage} (after {events} events)"))
        })?;
        match read {
            Some((event, len)) => {
                input.used += len;
                events += 1;
                buffer.clear();
                event.event().encode(form, &mut buffer);
                output.write_all(&buffer)?;
                // Part of an event may be left: it is read again with what follows.
                if !input.last && input.rest().len() < MAX_EVENT_BYTES / 8 {
                    input.more().map_err(failed)?;
                }
            }
            None if last => break,
            None => input.more().map_err(failed)?,
        }
    }
    output.flush()?;
    drop(output);
    outputs::keep(file)
}

/// Writes messages of Bytefrog as lines of text.
fn print(
    mut input: Input,
    speaker: Speaker,
    from: &Path,
    to: Option<&Path>,
    force: bool,
) -> Result<(), Failure> {
    let name = from.display();
    let (output, file) = outputs::open_output(to, Existing::forced(force), &[from])?;
    super::renounce(to.as_slice());
    let mut output = BufWriter::new(output);
    let (mut printer, mut line, mut at) = (Printer::new(speaker), String::new(), 0_u64);
    loop {
        line.clear();
        let read = printer.message(input.rest(), &mut line);
        let wrong = |what: &dyn std::fmt::Display| {
            Failure::failed(format!("{name}: {what} (at byte {at})"))
        };
        match read.map_err(|error| wrong(&error))? {
            Some(len) => {
                output.write_all(line.as_bytes())?;
                input.used += len;
                at += len as u64;
            }
            None if !input.last => input
                .more()
                .map_err(|error| Failure::failed(format!("failed to read {name}: {error}")))?,
            None if input.rest().is_empty() => break,
            None => {
                // What came before is shown.
                output.flush()?;
                return Err(wrong(&"it ends within a message"));
            }
        }
    }
    output.flush()?;
    drop(output);
    outputs::keep(file)
}
