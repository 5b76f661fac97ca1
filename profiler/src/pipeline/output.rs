//! Where a running recording's batches go: into a capture, or onto the screen.
//!
//! What does not belong here: how a capture is written (`writer`), what a screen shows (`view`).

use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::writer::CaptureThread;
use crate::error::Failure;
use profiler_capture::{CaptureError, Totals};
use profiler_model::{Batch, Consumer, Event, LiveTables, Timestamp};
use profiler_probe::now;
use profiler_report::view::terminal::RawMode;
use profiler_report::view::top::{Action, TopOptions, TopTable};

/// Names and stacks that a live table may gather before it begins anew.
const MAX_LIVE: usize = 2_000_000;

/// A frame waits so long for what happened before it: in the kernel's buffers, or for unwind tables.
const PATIENCE: Duration = Duration::from_secs(1);

/// How a live table is shown.
#[derive(Clone, Copy, Debug)]
pub struct ScreenOptions {
    /// What it shows.
    pub table: TopOptions,
    /// Time between two frames.
    pub interval: Duration,
    /// Ends after so many frames.
    pub frames: Option<u64>,
    /// Frames one after the other, as text; also if there is no terminal.
    pub batch: bool,
}

impl Default for ScreenOptions {
    fn default() -> ScreenOptions {
        ScreenOptions {
            table: TopOptions::default(),
            interval: Duration::from_secs(1),
            frames: None,
            batch: false,
        }
    }
}

/// The consumer of a recording.
pub(super) enum Output {
    /// A capture file, and whether it was said that it can't be written.
    Capture(Box<CaptureThread>, bool),
    /// A live table.
    Screen(Box<Screen>),
}

impl Consumer for Output {
    fn send(&mut self, batch: Batch) -> u64 {
        match self {
            Output::Capture(capture, _) => capture.send(batch),
            Output::Screen(screen) => {
                screen.take(batch);
                0
            }
        }
    }

    fn spare(&self) -> Option<Vec<Event>> {
        match self {
            Output::Capture(capture, _) => capture.spare(),
            Output::Screen(_) => None,
        }
    }

    fn wants_new_epoch(&self) -> bool {
        match self {
            Output::Capture(capture, _) => capture.wants_new_epoch(),
            Output::Screen(screen) => screen.is_full(),
        }
    }

    fn has_parts(&self) -> bool {
        matches!(self, Output::Capture(capture, _) if capture.has_parts())
    }

    fn wants_cut(&self) -> bool {
        matches!(self, Output::Capture(capture, _) if capture.wants_cut())
    }

    fn has_cut(&mut self) {
        if let Output::Capture(capture, _) = self {
            capture.write_dumps();
        }
    }

    fn wants_waits(&mut self, at: Timestamp) -> bool {
        match self {
            Output::Capture(..) => false,
            Output::Screen(screen) => screen.begin_frame(at),
        }
    }

    fn has_all(&mut self, until: Timestamp) {
        if let Output::Screen(screen) = self {
            screen.has_all = until;
        }
    }
}

impl Output {
    /// Bytes written so far.
    pub(super) fn bytes(&self) -> u64 {
        match self {
            Output::Capture(capture, _) => capture.bytes(),
            Output::Screen(_) => 0,
        }
    }

    /// What went wrong since the last call and ends the recording. A disk that is full does not: there may be room
    /// again, and what is missing until then is counted.
    pub(super) fn trouble(&mut self) -> Option<Failure> {
        match self {
            Output::Capture(capture, said) => match capture.trouble()? {
                error @ (CaptureError::Write { .. } | CaptureError::Create { .. }) => {
                    if !std::mem::replace(said, true) {
                        log::warn!("{error}");
                    }
                    None
                }
                error @ CaptureError::Crowded(_) => {
                    log::warn!("{error}");
                    None
                }
                error => Some(error.into()),
            },
            Output::Screen(screen) => screen.trouble.take(),
        }
    }

    /// Writes a ring out, if there is one, when all that has happened by now is in it.
    pub(super) fn dump(&mut self, path: PathBuf) {
        if let Output::Capture(capture, _) = self {
            capture.dump(path);
        }
    }

    /// A moment for what is live: keys and frames. Whether the person wants to end.
    pub(super) fn tick(&mut self) -> bool {
        match self {
            Output::Capture(..) => false,
            Output::Screen(screen) => screen.tick(),
        }
    }

    /// Ends the output; what was written in all.
    pub(super) fn finish(self) -> Result<Totals, Failure> {
        match self {
            Output::Capture(capture, _) => Ok(capture.finish()?),
            Output::Screen(screen) => screen.trouble.map_or_else(|| Ok(Totals::default()), Err),
        }
    }
}

/// A table that is drawn again and again.
pub(super) struct Screen {
    options: ScreenOptions,
    table: TopTable,
    tables: LiveTables,
    terminal: Option<RawMode>,
    /// When a frame was begun; none: one is due.
    begun: Option<Instant>,
    frame: Option<Frame>,
    /// All that happened until then is in the table.
    has_all: Timestamp,
    frames: u64,
    trouble: Option<Failure>,
}

/// A frame that is being made, of what there was when it was begun.
#[derive(Clone, Copy)]
enum Frame {
    /// It is to be looked which waits go on.
    Begun,
    /// What goes on was read before then: what had ended by that time is among the events before it.
    Read(Timestamp),
}

impl Screen {
    pub(super) fn open(options: ScreenOptions) -> io::Result<Screen> {
        let terminal = match options.batch || !io::stdout().is_terminal() {
            true => None,
            false => RawMode::enter()?,
        };
        Ok(Screen {
            options,
            table: TopTable::new(options.table, now()),
            tables: LiveTables::default(),
            terminal,
            begun: Some(Instant::now()),
            frame: None,
            has_all: Timestamp(0),
            frames: 0,
            trouble: None,
        })
    }

    fn take(&mut self, batch: Batch) {
        if self.tables.turn(batch.epoch, self.is_full()) {
            // Numbers begin anew as well: they are of the last seconds only.
            self.table = TopTable::new(self.options.table, now());
            (self.begun, self.frame) = (None, None);
        }
        for definition in batch.definitions {
            // What is not defined is missing from the table, as are events that use it.
            let _ = self.tables.define(definition);
        }
        for event in batch.events {
            if let Ok(event) = self.tables.event(event) {
                self.table.event(&event, &self.tables);
            }
        }
    }

    fn is_full(&self) -> bool {
        let tables = &self.tables;
        tables.stacks.len() + tables.frames.len() + tables.functions.len() > MAX_LIVE
    }

    /// Begins a frame of that time, if one is due; whether it is to be told of the waits that go on.
    fn begin_frame(&mut self, at: Timestamp) -> bool {
        let interval = self.options.interval;
        let is_due = self.begun.is_none_or(|begun| begun.elapsed() >= interval);
        if !is_due || self.frame.is_some() {
            return false;
        }
        self.begun = Some(Instant::now());
        self.frame = Some(Frame::Begun);
        self.table.begin_frame(at);
        self.table.shows_waits()
    }

    /// Whether a frame is complete now.
    fn ends_frame(&mut self) -> bool {
        let has_waited = self.begun.is_none_or(|begun| begun.elapsed() >= PATIENCE);
        match self.frame {
            None => false,
            Some(Frame::Begun) => {
                self.frame = Some(Frame::Read(now()));
                false
            }
            Some(Frame::Read(at)) => self.has_all >= at || has_waited,
        }
    }

    fn tick(&mut self) -> bool {
        let is_new = self.ends_frame();
        if is_new {
            self.frame = None;
            self.table.end_frame(&self.tables);
        }
        let mut due = is_new;
        while let Some(terminal) = &self.terminal {
            match terminal.key(Duration::ZERO) {
                Ok(Some(key)) => match self.table.key(key) {
                    Action::Quit => return true,
                    Action::Redraw => due = true,
                    Action::None => {}
                },
                // A terminal that is gone ends this by a hang-up.
                Ok(None) | Err(_) => break,
            }
        }
        if !due {
            return false;
        }
        self.frames += u64::from(is_new);
        if let Err(error) = self.draw() {
            let quiet = error.kind() == io::ErrorKind::BrokenPipe;
            self.trouble = (!quiet).then(|| Failure::because("failed to show the table", &error));
            return true;
        }
        self.options.frames.is_some_and(|most| self.frames >= most)
    }

    fn draw(&mut self) -> io::Result<()> {
        match &self.terminal {
            Some(terminal) => {
                let (width, height) = terminal.size();
                let frame = self.table.draw(width, height, &self.tables);
                terminal.draw(&frame)
            }
            None => {
                let width = profiler_report::view::term::width(io::stdout()).unwrap_or(120);
                let frame = self.table.draw(width, 0, &self.tables);
                let mut output = io::stdout().lock();
                writeln!(output, "{}\n", frame.trim_end())?;
                output.flush()
            }
        }
    }
}
