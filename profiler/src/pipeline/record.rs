//! A recording: a session into a capture or onto the screen, until what was asked for ends it.
//!
//! A [`Request`] -> a capture and other files, and what came of it. What does not belong here: the
//! walk itself (`session`).

use std::convert::Infallible;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::error::{Context, FAILED, Failure};
use profiler_capture::{CreateOptions, Reader, Writer};
use profiler_model::text::printable;
use profiler_model::{Consumer, LostKind, LostReason, StackEnds, heap};
use profiler_probe::{AttachedSource, now};
use profiler_report::export::Selection;
use profiler_report::view::losses;
use profiler_report::view::progress::LiveLine;
use profiler_resolve::{
    InterpreterSummary, NamelessSamples, Place, ResolveCounters, UnwindSummary,
};
use profiler_target::command::shell_status;

use super::drive::{Driver, drive};
use super::outlive::{fail, outlive};
use super::output::{Output, Screen, ScreenOptions};
use super::outputs::{self, Export};
use super::prepare::{Prepared, Watch};
use super::privileges::{self, Later};
use super::renounce::may_replace;
use super::scratch::{self, Scratch};
use super::session::{Gone, Priority, Session};
use super::signals::{Heard, Signals, Start, given_up, in_foreground};
use super::tracer::TraceSummary;
use super::writer::CaptureThread;

/// How long to wait for names when everything else is done, unless told otherwise: of a recording that is over when
/// its time is, and of others.
const SOON: Duration = Duration::from_millis(900);
const SYMBOL_DEADLINE: Duration = Duration::from_secs(60);
/// How long stacks wait for unwind tables in the first case.
const TABLES_SOON: Duration = Duration::from_millis(300);

/// What to record, and where to.
pub struct Request {
    /// Whom and what.
    pub watch: Box<Watch>,
    /// A live table in place of a capture.
    pub screen: Option<ScreenOptions>,
    /// Where the capture goes; none: only the exports are wanted.
    pub capture: Option<PathBuf>,
    /// How the capture is written.
    pub create: CreateOptions,
    /// Other files.
    pub exports: Vec<Export>,
    /// When to end by itself.
    pub duration: Option<Duration>,
    /// How long to wait for names at the end.
    pub wait_names: Option<Duration>,
    /// No live line.
    pub quiet: bool,
}

/// What came of a recording.
#[derive(Debug)]
pub struct Finished {
    /// The command's exit status; or 1 if that is 0, or there is none, and not all could be written.
    pub status: u8,
    /// Samples recorded.
    pub samples: u64,
    /// Those of the profiler itself among them.
    pub own_samples: u64,
    /// There were samples or waits, and none could be written.
    pub none_fits: bool,
    /// What was lost, in words, if anything was.
    pub lost: Option<String>,
    /// Parts of a ring that went early, because the disk was full.
    pub crowded_out: u64,
    /// Whether it went before what it recorded.
    pub had_priority: bool,
    /// Whether whoever ran was recorded: nothing was filtered.
    pub sees_all: bool,
    /// How long it recorded.
    pub elapsed: Duration,
    /// Processes of which samples or calls were recorded.
    pub processes: u64,
    /// How long what a ring has kept is, if there is one.
    pub kept: Option<Duration>,
    /// The sources, as really used.
    pub sources: Vec<AttachedSource>,
    /// What the resolver says.
    pub counters: ResolveCounters,
    /// Why user stacks ended.
    pub stacks: StackEnds,
    /// How they were walked by tables, if they were.
    pub unwound: Option<UnwindSummary>,
    /// What was met of each interpreter.
    pub interpreters: Vec<InterpreterSummary>,
    /// Samples whose function has no name, by whose it is.
    pub nameless: Vec<(Place, NamelessSamples)>,
    /// The capture, and how large all its files are, if one was asked for.
    pub capture: Option<(PathBuf, u64)>,
    /// How many files it has in its place, the first and the last, if they are numbered.
    pub numbered: Option<(u32, PathBuf, PathBuf)>,
    /// Kernel memory of maps and buffers.
    pub kernel_bytes: u64,
    /// What became of the tracing, if there was any.
    pub trace: Option<TraceSummary>,
    /// What was to be recorded and never came, if that was all.
    pub never_came: Option<String>,
    /// What was recorded and had ended, if that was all and nothing but its end was waited for.
    pub had_ended: Option<String>,
}

/// Records until the end that was asked for, writes all outputs.
pub fn run(mut request: Box<Request>) -> Result<Box<Finished>, Failure> {
    // Whoever has all processors would hold up the start as well, and the end.
    let priority = Priority::begin();
    request.watch.nice = priority.nice_before();
    scratch::sweep();
    let mut scratch = Scratch::new(request.capture.is_none());
    let capture = request
        .capture
        .clone()
        .unwrap_or_else(|| scratch.path.clone());
    let exports = std::mem::take(&mut request.exports);
    let quiet = request.quiet;
    // Exports are renamed at the end; rings, rotation and dumps make files as they go.
    let writes_files =
        !exports.is_empty() || request.create.ring.is_some() || request.create.rotate.is_some();
    let names_files = || {
        let us = rustix::process::geteuid().as_raw();
        let exports = exports.iter().filter_map(|export| export.path.as_deref());
        let mut outputs = exports.chain(request.capture.as_deref());
        outputs.any(|output| !may_replace(us, output))
    };
    let later = Later {
        attaches: request.watch.trace.is_some(),
        loads_tables: request.watch.unwind_bytes.is_some(),
        signals: request.watch.command.is_some(),
        writes_files,
        names_files: writes_files && names_files(),
        gives_files: request.create.owner.is_some()
            && (request.create.ring.is_some() || request.create.rotate.is_some()),
        mounts_tracefs: false,
    };
    let mut finished = record(request, &capture, later, &priority)?;
    scratch.keep_locked();
    if exports.is_empty() {
        priority.keep();
    } else {
        drop(priority);
        export(&capture, exports, quiet).map_err(|failure| scratch.keep(failure))?;
    }
    if scratch.used {
        finished.capture = None;
    }
    Ok(finished)
}

/// Writes the other files. In a frame of its own: see [`heap`].
#[inline(never)]
fn export(capture: &Path, exports: Vec<Export>, quiet: bool) -> Result<(), Failure> {
    let capture = Reader::open(capture)?;
    let selection = Selection::default();
    outputs::export(capture, &selection, exports, quiet)
}

fn record(
    request: Box<Request>,
    path: &Path,
    later: Later,
    priority: &Priority,
) -> Result<Box<Finished>, Failure> {
    let event_loop = super::event_loop()?;
    let entered = event_loop.enter();
    // From before the first signal is listened to: none passes between them.
    let start = Start::watch().context(|| "failed to listen for signals")?;
    let mut signals = Signals::listen().context(|| "failed to listen for signals")?;
    let (mut session, mut recording) = begin(request, path, priority, start)?;
    drop(entered);
    super::block_on(&event_loop, move || async move {
        let end = recording.watch(&mut session, &mut signals, later).await;
        recording.finish(session, end, &mut signals).await
    })
}

/// Starts it, unless a signal to end comes first, to the `start`.
fn begin(
    request: Box<Request>,
    path: &Path,
    priority: &Priority,
    start: Start,
) -> Result<(Box<Session>, Box<Recording>), Failure> {
    let started = Recording::start(request, path, priority).map_err(|failure| match given_up() {
        Some(status) => Failure {
            status,
            message: "interrupted before anything was recorded".to_owned(),
        },
        None => failure,
    });
    drop(start);
    started
}

/// Why a recording ended.
enum End {
    Asked,
    Duration,
    TargetGone,
    Command(ExitStatus),
    Failed(Failure),
}

struct Recording {
    output: Output,
    path: PathBuf,
    live: LiveLine,
    quiet: bool,
    /// How long to record, counted from when what is recorded exists.
    lasts: Option<Duration>,
    wait_names: Option<Duration>,
    /// It was said that nothing of what is recorded is there any more.
    ended_said: bool,
    interrupts: u32,
    has_ring: bool,
    had_priority: bool,
    sees_all: bool,
    dumps: u32,
}

impl Driver for Recording {
    type Of = Session;
    type Input = Infallible;
    type End = End;

    fn consumer(&mut self) -> &mut impl Consumer {
        &mut self.output
    }

    async fn input(&mut self) -> Infallible {
        std::future::pending().await
    }

    fn hear(&mut self, input: Infallible, _: &mut Session) -> Result<Option<End>, Failure> {
        match input {}
    }

    fn look(&mut self, session: &mut Session) -> Result<Option<End>, Failure> {
        self.live.update(&session.progress(self.output.bytes()));
        let ends = self.output.tick();
        if let Some(failure) = self.output.trouble() {
            return Err(failure);
        }
        if ends {
            return Ok(Some(End::Asked));
        }
        let gone = session.gone()?;
        if let Some(Gone::Command(status)) = gone {
            return Ok(Some(End::Command(status)));
        }
        self.say_ended(session);
        if session.is_over() {
            return Ok(Some(End::Duration));
        }
        Ok(gone.map(|_| End::TargetGone))
    }

    fn signalled(&mut self, signal: Heard, session: &mut Session) -> Result<Option<End>, Failure> {
        match signal {
            Heard::Interrupt => return self.interrupted(session),
            Heard::Terminate => session.signal(Signal::TERM)?,
            Heard::Hangup => {}
            Heard::Dump => {
                self.dump();
                return Ok(None);
            }
        }
        Ok(Some(End::Asked))
    }
}

impl Recording {
    fn start(
        request: Box<Request>,
        path: &Path,
        priority: &Priority,
    ) -> Result<(Box<Session>, Box<Recording>), Failure> {
        let lasts = request.duration.map(|lasts| request.watch.delay + lasts);
        let has_ring = request.create.ring.is_some();
        let sees_all = request.watch.probe.filter.is_empty();
        // A name that is taken is told before code is read for seconds, and the file made behind that: who kills us
        // meanwhile finds none.
        if request.screen.is_none() {
            Writer::check(path, &request.create)?;
        }
        let create = request.create;
        let prepared = Prepared::new(request.watch)?;
        let mut session = Session::attach(prepared)?;
        let output = match request.screen {
            None => {
                let mut writer = heap::try_boxed(|| Writer::create(path, create))?;
                session.begin()?;
                writer.publish()?;
                if let Some((folder, parts @ 1..)) = writer.kept()
                    && !request.quiet
                {
                    say(&kept(folder, parts));
                }
                let thread = CaptureThread::start(writer);
                let thread = thread.context(|| "failed to start a thread")?;
                Output::Capture(Box::new(thread), false)
            }
            Some(screen) => {
                session.begin()?;
                let screen = heap::try_boxed(|| Screen::open(screen));
                Output::Screen(screen.context(|| "failed to use the terminal")?)
            }
        };
        session.last(lasts);
        priority.records();
        if !request.quiet
            && let Some(awaited) = session.awaited()
        {
            say(&format!("waiting for {awaited}"));
        }
        let recording = Box::new(Recording {
            output,
            path: path.to_owned(),
            live: LiveLine::new(request.quiet),
            quiet: request.quiet,
            lasts,
            wait_names: request.wait_names,
            ended_said: false,
            interrupts: 0,
            has_ring,
            had_priority: priority.is_raised(),
            sees_all,
            dumps: 0,
        });
        Ok((session, recording))
    }

    /// Runs until something ends the recording.
    async fn watch(&mut self, session: &mut Session, signals: &mut Signals, later: Later) -> End {
        privileges::settle(later);
        match drive(session, self, signals).await {
            Ok(end) => end,
            Err(failure) => End::Failed(failure),
        }
    }

    /// Ctrl-C on a terminal reaches the command as well; a signal sent to us alone is passed on.
    /// Either way the recording goes on until the command has ended, or until it is asked twice.
    fn interrupted(&mut self, session: &mut Session) -> Result<Option<End>, Failure> {
        self.interrupts += 1;
        if !session.has_command() || self.interrupts > 1 {
            return Ok(Some(End::Asked));
        }
        if !in_foreground() {
            session.signal(Signal::INT)?;
        }
        Ok(None)
    }

    fn dump(&mut self) {
        if !self.has_ring {
            log::warn!("SIGUSR2 writes out a ring, and this recording has none: see --ring");
            return;
        }
        let stem = self
            .path
            .file_stem()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        // Those of earlier recordings stay.
        let path = loop {
            self.dumps += 1;
            let name = format!("{stem}-dump{}.cap", self.dumps);
            let path = self.path.with_file_name(name);
            if path.symlink_metadata().is_err() {
                break path;
            }
        };
        self.output.dump(path);
    }

    /// Says once when the containers that are recorded have all ended: nothing else ends the recording,
    /// since they may be started again.
    fn say_ended(&mut self, session: &Session) {
        let Some(ended) = session.ended_containers() else {
            self.ended_said = false;
            return;
        };
        if !std::mem::replace(&mut self.ended_said, true) && self.lasts.is_none() && !self.quiet {
            self.live.clear();
            say(&format!(
                "{ended} has ended; the recording goes on, in case it is started again (Ctrl-C ends it)"
            ));
        }
    }

    /// Detaches, passes on what is left, waits for names and closes the capture.
    async fn finish(
        mut self: Box<Self>,
        mut session: Box<Session>,
        end: End,
        signals: &mut Signals,
    ) -> Result<Box<Finished>, Failure> {
        let over = Instant::now();
        let mut trace = session.detach();
        // As readers of the capture count: what came while all was attached, or detached, is in it.
        let elapsed = Duration::from_nanos(now().since(session.from()));
        let (tables, names) = match (&end, self.wait_names) {
            (_, Some(told)) => (told, told),
            (End::Duration, None) => (TABLES_SOON, SOON),
            (_, None) => (Duration::MAX, SYMBOL_DEADLINE),
        };
        session.pass_rest(tables, &mut self.output);
        let never_came = session.awaited().map(str::to_owned);
        let had_ended = session.ended_containers().map(str::to_owned);
        let had_ended = had_ended.filter(|_| self.lasts.is_none());
        let live = &mut self.live;
        live.clear();
        let mut left = |left: usize| live.waiting(left);
        // Who has asked for the end, and asks again, wants it now. Else a signal is the command's.
        let is_ours = matches!(end, End::Asked) || !session.has_command();
        let impatience = is_ours.then(|| session.be_hurried()).flatten();
        let names = names.saturating_sub(over.elapsed());
        session.await_names(names, &mut left, &mut self.output);
        drop(impatience);
        self.live.clear();
        let counts = session.counts().clone();
        let mut lost = counts.lost.clone();
        lost.add_count(LostReason::SlowOutput, counts.dropped);
        let (sources, kernel_bytes) = (session.sources().to_vec(), session.kernel_bytes());
        let counters = session.counters();
        let unwound = session.unwound();
        let interpreters = session.interpreters();
        let nameless = session.nameless();
        let is_capture = matches!(self.output, Output::Capture(..));
        let written = self.output.finish();
        if let Some(trace) = &mut trace {
            trace.leaving = session.leaving();
            session.counts().add_to(trace);
        }
        let mut command = session.take_command();
        let how = "without being recorded";
        let (end, totals) = match (end, written) {
            (End::Failed(failure), _) => return Err(fail(failure, command, how, signals).await),
            (_, Err(error)) => return Err(fail(error, command, how, signals).await),
            (end, Ok(totals)) => (end, totals),
        };
        let mut ticked = counts.ticked;
        if self.has_ring {
            // The rest is of the time that was not kept: as readers of the capture count.
            (lost, ticked) = (totals.lost.iter().copied().collect(), totals.ticked);
        }
        // What did not get into the capture was taken in all the same.
        let mut missing = counts.dropped;
        for &(reason, count) in &totals.unwritten {
            let is_told = self.has_ring && lost.of(reason) > 0;
            if !is_told {
                lost.add_count(reason, count);
            }
            match reason.kind() {
                LostKind::Samples => {
                    missing += count;
                    ticked = ticked.saturating_sub(if self.has_ring { 0 } else { count });
                }
                LostKind::Waits => missing += count,
                _ => {}
            }
        }
        let kept = self
            .has_ring
            .then(|| Duration::from_nanos(totals.length_ns));
        let status = match (end, &mut command) {
            (End::Command(status), _) => shell_status(status),
            (_, Some(command)) => outlive(command, signals).await?,
            (_, None) => 0,
        };
        // What ran well was not recorded well.
        let status = match (status, totals.dropped) {
            (0, 1..) => FAILED,
            (status, _) => status,
        };
        Ok(Box::new(Finished {
            status,
            samples: match is_capture {
                true => totals.events[0],
                false => counts.samples.saturating_sub(missing),
            },
            // Whose those are that are missing is not known.
            own_samples: match missing > 0 || kept.is_some() {
                true => 0,
                false => counts.own_samples,
            },
            processes: match is_capture {
                true => totals.processes,
                false => counters.processes,
            },
            kept,
            none_fits: counts.samples > 0 && totals.events[0] == 0 && totals.dropped > 0,
            lost: losses::text(&lost, ticked),
            crowded_out: totals.crowded_out,
            had_priority: self.had_priority,
            sees_all: self.sees_all,
            elapsed,
            sources,
            counters,
            // As readers of the capture count.
            stacks: match is_capture {
                true => totals.stacks,
                false => counts.stacks,
            },
            unwound,
            interpreters,
            // They are of all that came, written or not: readers of the capture tell of what is in it.
            nameless: match totals.dropped == 0 && !self.has_ring {
                true => nameless,
                false => Vec::new(),
            },
            capture: Some((self.path, totals.bytes)),
            numbered: (totals.numbered).map(|(first, last)| (totals.files, first, last)),
            kernel_bytes,
            trace,
            never_came,
            had_ended,
        }))
    }
}

/// What is said of a ring that an earlier recording has left.
fn kept(folder: &Path, parts: usize) -> String {
    let (parts, them, are) = match parts {
        1 => ("1 part".to_owned(), "it", "is"),
        parts => (format!("{parts} parts"), "them", "are"),
    };
    let folder = folder.display();
    format!(
        "note: {parts} of an earlier recording {are} kept in {folder} within the limits of the ring; \
         profiler merge makes a capture of {them}"
    )
}

/// Says something to people.
fn say(line: &str) {
    // A terminal that is gone is no failure.
    let _ = writeln!(io::stderr(), "{}", printable(line));
}
