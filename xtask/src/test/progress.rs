//! Tests that start and end -> lines for people.
//!
//! On a terminal the last line says what runs; above it stay failures. Elsewhere a line is written for each
//! test that took a second, and after each hundredth test.
//!
//! What does not belong here: sums and what they mean (the runner).

use std::collections::BTreeMap;
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use super::child::{End, Ended};

/// Not a terminal: tests that were quicker get no line of their own.
const WORTH_A_LINE: Duration = Duration::from_secs(1);
/// And there is one after so many, however quick they are.
const LINE_EACH: usize = 100;
/// Width of a terminal that doesn't say it.
const COLUMNS: usize = 80;

/// What is said while tests run.
pub(super) struct Progress {
    terminal: bool,
    /// Whether what tests say is shown though they pass.
    shown: bool,
    total: usize,
    done: usize,
    failed: usize,
    running: BTreeMap<usize, (String, Instant)>,
}

impl Progress {
    pub(super) fn new(total: usize, shown: bool) -> Progress {
        Progress {
            terminal: io::stdout().is_terminal(),
            shown,
            total,
            done: 0,
            failed: 0,
            running: BTreeMap::new(),
        }
    }

    /// A test has started.
    pub(super) fn started(&mut self, test: usize, name: &str) -> io::Result<()> {
        self.running.insert(test, (name.to_owned(), Instant::now()));
        self.tick()
    }

    /// A test has ended.
    pub(super) fn ended(&mut self, test: usize, name: &str, ended: &Ended) -> io::Result<()> {
        self.running.remove(&test);
        self.done += 1;
        let passed = ended.end == End::Passed;
        self.failed += usize::from(!passed);
        let mut out = io::stdout().lock();
        if self.terminal {
            write!(out, "\r\x1b[K")?;
        }
        if !passed || self.shown {
            let word = word(ended.end);
            writeln!(
                out,
                "---- {name} {word} after {:.1} s",
                ended.wall.as_secs_f64()
            )?;
            out.write_all(ended.output.as_bytes())?;
            writeln!(out, "----")?;
        } else if !self.terminal && ended.wall >= WORTH_A_LINE {
            let of = self.total;
            writeln!(
                out,
                "{:5}/{of} {:6.1} s {name}",
                self.done,
                ended.wall.as_secs_f64()
            )?;
        } else if !self.terminal && self.done.is_multiple_of(LINE_EACH) {
            writeln!(out, "{:5}/{}", self.done, self.total)?;
        }
        drop(out);
        self.tick()
    }

    /// Says what runs, on a terminal.
    pub(super) fn tick(&self) -> io::Result<()> {
        if !self.terminal {
            return Ok(());
        }
        let mut out = io::stdout().lock();
        let columns = rustix::termios::tcgetwinsize(out.as_fd())
            .map_or(COLUMNS, |size| usize::from(size.ws_col));
        write!(out, "\r\x1b[K{}", self.line(columns, Instant::now()))?;
        out.flush()
    }

    /// Makes room for other lines.
    pub(super) fn end(&self) -> io::Result<()> {
        if self.terminal {
            write!(io::stdout(), "\r\x1b[K")?;
        }
        Ok(())
    }

    /// `[12/345, 1 failed] NAME 3 s, NAME 1 s`, in so many columns.
    fn line(&self, columns: usize, now: Instant) -> String {
        let mut line = format!("[{}/{}", self.done, self.total);
        if self.failed > 0 {
            line += &format!(", {} failed", self.failed);
        }
        line += "]";
        // What has run longest is what one waits for.
        let mut running: Vec<_> = self.running.values().collect();
        running.sort_by_key(|(_, since)| *since);
        for (at, (name, since)) in running.into_iter().enumerate() {
            let seconds = now.saturating_duration_since(*since).as_secs();
            line += if at == 0 { " " } else { ", " };
            line += &format!("{name} {seconds} s");
        }
        if line.chars().count() >= columns {
            line = line.chars().take(columns.saturating_sub(2)).collect();
            line.push('…');
        }
        line
    }
}

fn word(end: End) -> &'static str {
    match end {
        End::Passed => "passed",
        End::Failed => "failed",
        End::Crashed(_) => "crashed",
        End::Hung => "was killed: it hung",
        End::Missing => "is not there",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_says_what_runs_and_fits() {
        let since = Instant::now();
        let mut progress = Progress::new(345, false);
        progress.terminal = false;
        progress.done = 12;
        assert_eq!(progress.line(80, since), "[12/345]");
        progress.failed = 1;
        let later = since + Duration::from_secs(2);
        progress.running.insert(1, ("x::b".to_owned(), later));
        progress.running.insert(2, ("x::a".to_owned(), since));
        let now = since + Duration::from_secs(3);
        let line = progress.line(80, now);
        assert_eq!(line, "[12/345, 1 failed] x::a 3 s, x::b 1 s");
        assert_eq!(progress.line(20, now), "[12/345, 1 failed]…");
        assert_eq!(progress.line(0, now), "…");
    }
}
