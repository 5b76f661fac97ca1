//! The live line of a recording: one line on a terminal, redrawn in place.
//!
//! Input: counts at any rate; output: at most five redraws a second on standard error, cut to the
//! width, cleared at the end. Nothing if standard error is no terminal, or when told to be quiet.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use super::quantity;
use super::table::cut;
use super::term;

const INTERVAL: Duration = Duration::from_millis(200);
/// An export that takes no longer has no line.
const PATIENCE: Duration = Duration::from_secs(1);

/// What a recording has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Since its start.
    pub elapsed: Duration,
    /// Samples taken.
    pub samples: u64,
    /// Records of traced calls.
    pub calls: u64,
    /// Processes seen in samples.
    pub processes: u64,
    /// Samples lost.
    pub lost: u64,
    /// Written to the capture.
    pub bytes: u64,
}

impl Progress {
    /// As one line of text.
    pub fn text(&self) -> String {
        let mut text = format!("{:>6.1} s  ", self.elapsed.as_secs_f64());
        if self.calls > 0 {
            text += &format!("{}  ", quantity::plural(self.calls, "call record"));
        }
        text += &format!(
            "{}  {}",
            quantity::plural(self.samples, "sample"),
            match self.processes {
                1 => "1 process".to_owned(),
                n => format!("{} processes", quantity::count(n)),
            },
        );
        if self.lost > 0 {
            text += &format!("  {} lost", quantity::count(self.lost));
        }
        text += &format!("  {}", quantity::bytes(self.bytes));
        text
    }
}

/// How far an export is, in words.
fn exported(events: u64, elapsed: Duration) -> String {
    let seconds = elapsed.as_secs_f64();
    let rate = (events as f64 / seconds.max(0.001)) as u64;
    let events = quantity::plural(events, "event");
    format!("{seconds:>6.1} s  {events}  {}/s", quantity::count(rate))
}

/// The line on the terminal.
#[derive(Debug)]
pub struct LiveLine {
    enabled: bool,
    drawn: Option<Instant>,
}

impl LiveLine {
    /// A line on standard error, if that is a terminal and `quiet` is not set.
    pub fn new(quiet: bool) -> LiveLine {
        LiveLine {
            enabled: !quiet && io::stderr().is_terminal(),
            drawn: None,
        }
    }

    /// Shows progress, unless the last redraw was a moment ago.
    pub fn update(&mut self, progress: &Progress) {
        let width = || term::width(io::stderr()).unwrap_or(80);
        self.draw(progress, Instant::now(), width, &mut io::stderr());
    }

    /// Shows how many names are still to be found, when everything else is done.
    pub fn waiting(&mut self, names: usize) {
        if self.enabled && names > 0 {
            self.drawn = Some(Instant::now());
            let text = format!("looking for {} ...", quantity::plural(names as u64, "name"));
            // As above.
            let _ = write!(io::stderr(), "\r{text}\x1b[K").and_then(|()| io::stderr().flush());
        }
    }

    /// Shows how far the export of a capture is.
    pub fn exporting(&mut self, events: u64, elapsed: Duration) {
        let fresh = |drawn: Instant| drawn.elapsed() < INTERVAL;
        // What is done in a moment needs no line.
        if !self.enabled || elapsed < PATIENCE || self.drawn.is_some_and(fresh) {
            return;
        }
        self.drawn = Some(Instant::now());
        let text = exported(events, elapsed);
        // As above.
        let _ = write!(io::stderr(), "\r{text}\x1b[K").and_then(|()| io::stderr().flush());
    }

    /// Clears the line, for the end or for a message of another kind.
    pub fn clear(&mut self) {
        self.clear_on(&mut io::stderr());
    }

    fn draw(
        &mut self,
        progress: &Progress,
        now: Instant,
        width: impl Fn() -> usize,
        out: &mut dyn Write,
    ) {
        let fresh = |drawn| now.saturating_duration_since(drawn) < INTERVAL;
        if !self.enabled || self.drawn.is_some_and(fresh) {
            return;
        }
        self.drawn = Some(now);
        // A full last column would wrap on some terminals.
        let text = progress.text();
        let text = cut(&text, width().saturating_sub(1));
        // A terminal that has gone away must not end the recording.
        let _ = write!(out, "\r{text}\x1b[K").and_then(|()| out.flush());
    }

    fn clear_on(&mut self, out: &mut dyn Write) {
        if self.drawn.take().is_some() {
            let _ = write!(out, "\r\x1b[K").and_then(|()| out.flush());
        }
    }
}

impl Drop for LiveLine {
    fn drop(&mut self) {
        self.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROGRESS: Progress = Progress {
        elapsed: Duration::from_millis(12_340),
        calls: 0,
        samples: 2_345,
        processes: 12,
        lost: 3,
        bytes: 70_000,
    };

    #[test]
    fn says_what_matters() {
        assert_eq!(
            PROGRESS.text(),
            "  12.3 s  2,345 samples  12 processes  3 lost  68.4 KiB"
        );
    }

    #[test]
    fn redraws_at_most_five_times_a_second_and_clears() {
        let mut line = LiveLine {
            enabled: true,
            drawn: None,
        };
        let start = Instant::now();
        let mut out = Vec::new();
        for at_ms in [0, 50, 199, 200, 399, 400] {
            let now = start + Duration::from_millis(at_ms);
            line.draw(&PROGRESS, now, || 20, &mut out);
        }
        let text = String::from_utf8(std::mem::take(&mut out)).unwrap();
        assert_eq!(text.matches('\r').count(), 3);
        assert!(text.starts_with("\r  12.3 s  2,345 sa…\x1b[K"), "{text:?}");
        line.clear_on(&mut out);
        line.clear_on(&mut out);
        assert_eq!(out, b"\r\x1b[K");
    }

    #[test]
    fn a_disabled_line_writes_nothing() {
        let mut line = LiveLine {
            enabled: false,
            drawn: None,
        };
        let mut out = Vec::new();
        line.draw(&PROGRESS, Instant::now(), || 80, &mut out);
        line.clear_on(&mut out);
        assert!(out.is_empty());
    }
}
