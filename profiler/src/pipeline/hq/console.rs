//! What the receiver says: lines on standard error, and on a terminal a live line above a prompt.
//!
//! The live line is redrawn by moving up and back, so that an order that is being typed stays.

use std::io::{self, IsTerminal, Write};

use profiler_model::text::printable;
use profiler_report::view::table::cut;
use profiler_report::view::term;

/// Most characters of a typed line that are shown again.
const MAX_TYPED: usize = 200;

pub(super) struct Console {
    quiet: bool,
    /// There are a live line and a prompt.
    live: bool,
    /// They are on the screen.
    drawn: bool,
    status: String,
}

impl Console {
    pub(super) fn new(quiet: bool, prompt: bool) -> Console {
        let terminal = io::stderr().is_terminal() && io::stdin().is_terminal();
        Console {
            quiet,
            live: terminal && prompt && !quiet,
            drawn: false,
            status: String::new(),
        }
    }

    /// Says a line, unless only errors are wanted.
    pub(super) fn say(&mut self, line: &str) {
        if !self.quiet {
            self.put(line);
        }
    }

    /// Says a line in any case.
    pub(super) fn warn(&mut self, line: &str) {
        self.put(&format!("profiler: {line}"));
    }

    /// Shows a new live line.
    pub(super) fn show(&mut self, line: &str) {
        line.clone_into(&mut self.status);
        if !self.live {
            return;
        }
        match self.drawn {
            true => write(&format!("\x1b7\x1b[1A\r\x1b[K{}\x1b8", self.line())),
            false => self.refresh(),
        }
    }

    /// A line was typed: it stays, without the live line above it.
    pub(super) fn typed(&mut self, line: &str) {
        if std::mem::take(&mut self.drawn) {
            let line = cut(line, MAX_TYPED);
            write(&format!("\x1b[2A\r\x1b[J> {}\n", printable(&line)));
        }
    }

    /// Draws live line and prompt where the cursor is.
    pub(super) fn refresh(&mut self) {
        if self.live {
            write(&format!("\r\x1b[K{}\n> ", self.line()));
            self.drawn = true;
        }
    }

    /// Leaves the screen without live line and prompt.
    pub(super) fn clear(&mut self) {
        if std::mem::take(&mut self.drawn) {
            write("\r\x1b[K\x1b[1A\r\x1b[K");
        }
    }

    fn put(&mut self, line: &str) {
        self.clear();
        // Agents choose what errors say.
        write(&format!("{}\n", printable(line)));
        if self.live {
            self.refresh();
        }
    }

    fn line(&self) -> String {
        let width = term::width(io::stderr()).unwrap_or(80);
        cut(&self.status, width.saturating_sub(1)).to_string()
    }
}

/// A terminal that is gone is no failure.
fn write(text: &str) {
    let _ = io::stderr().write_all(text.as_bytes());
}
