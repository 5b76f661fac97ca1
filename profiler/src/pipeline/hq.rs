//! The receiver of Bytefrog agents: an HQ whose runs go into captures, led by a person or a script.
//!
//! Input: orders, one a line, from standard input; output: what happens, one line each, on standard
//! error, and a capture per run. A run's data go from its connections through the importer straight
//! into the queue of its capture's thread; a slow disk holds the agent up, nothing is dropped here.
//!
//! What does not belong here: the protocol (`serve::hq`), what messages mean (`import::bytefrog`).

mod console;
mod run_keeper;

use std::collections::HashMap;
use std::io::{self, BufRead, IsTerminal, Read};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver as Lines, TryRecvError, sync_channel};
use std::time::{Duration, Instant};

use super::outputs::owner;
use super::renounce::renounce;
use super::signals::{Signals, hangup};
use crate::error::Failure;
use console::Console;
use profiler_capture::{CaptureError, CreateOptions, Existing, Writer};
use profiler_report::view::quantity;
use profiler_report::view::table::cut;
use profiler_serve::hq::{Hq, HqEvent, HqOptions, Order, Phase, Receiver, RunReport, RunStatus};
use run_keeper::RunKeeper;

/// Interval in which runs and signals are looked at.
const TICK: Duration = Duration::from_millis(50);
/// Between two looks of the live line.
const LIVE: Duration = Duration::from_millis(500);
/// How long agents may take to end their runs when the receiver is to end.
const PATIENCE: Duration = Duration::from_secs(10);
/// Longest line of the prompt that is read.
const MAX_LINE: u64 = 4096;
/// Most characters of what is no order that are shown again.
const MAX_WORD: usize = 40;

/// What to receive, and where it goes.
pub struct HqRequest {
    /// Where to listen.
    pub listen: SocketAddr,
    /// How to receive.
    pub options: HqOptions,
    /// The capture of the first run; others are numbered.
    pub output: PathBuf,
    /// What becomes of files that exist; those with a number stay unless they are replaced.
    pub existing: Existing,
    /// Only errors are said.
    pub quiet: bool,
}

/// Receives until it is told to end, or all runs have ended; the exit status.
pub fn run(request: HqRequest) -> Result<u8, Failure> {
    super::block_on(&super::event_loop()?, move || receive(request))
}

async fn receive(request: HqRequest) -> Result<u8, Failure> {
    let mut signals = Signals::listen()?;
    let runs = request.options.runs;
    let waits = !request.options.start;
    let mut files = Files::create(&request.output, request.existing)?;
    let hq = Hq::start(request.listen, request.options, move |run, peer| {
        let is_first = files.first.is_some();
        let keeper = files.of_run(run).and_then(|writer| {
            let path = writer.path().to_owned();
            Ok(RunKeeper::start(writer, path, run, peer, is_first)?)
        });
        match keeper {
            Ok(keeper) => Ok(Box::new(keeper) as Box<dyn Receiver>),
            Err(failure) => {
                log::warn!("run {run} is not received: {failure}");
                Err("the receiver can't write a capture".to_owned())
            }
        }
    })?;
    renounce(&[&request.output]);
    let lines = prompt();
    let mut session = Session {
        hq,
        console: Console::new(request.quiet, lines.is_some()),
        runs,
        ended: 0,
        failed: 0,
        quitting: None,
        shown: Instant::now(),
        last: (0, Instant::now()),
    };
    let address = session.hq.address();
    session.console.say(&format!("listening at {address}"));
    if waits {
        session.console.say("runs wait for the order to start");
    }
    loop {
        tokio::select! {
            () = signals.interrupt.recv() => session.quit(),
            () = signals.terminate.recv() => session.quit(),
            () = hangup(&mut signals.hangup) => session.quit(),
            () = tokio::time::sleep(TICK) => {}
        }
        loop {
            match lines.as_ref().map(Lines::try_recv) {
                Some(Ok(Some(line))) => session.obey(&line),
                // A person ends the input to end this; a script that is through does not.
                Some(Ok(None)) => session.quit(),
                Some(Err(TryRecvError::Empty | TryRecvError::Disconnected)) | None => break,
            }
        }
        if session.step() {
            session.console.clear();
            return Ok(u8::from(session.failed > 0));
        }
    }
}

/// Lines of standard input, from a thread of their own; at the end of a terminal's, nothing. None
/// if there is nobody to ask.
fn prompt() -> Option<Lines<Option<String>>> {
    let terminal = io::stdin().is_terminal();
    if terminal && !super::signals::in_foreground() {
        return None;
    }
    let (sender, lines) = sync_channel(16);
    let read = move || {
        let mut input = io::stdin().lock();
        while let Ok(Some(line)) = next_line(&mut input) {
            if sender.send(Some(line)).is_err() {
                return;
            }
        }
        if terminal {
            // Nobody listens any more if this fails.
            let _ = sender.send(None);
        }
    };
    let thread = std::thread::Builder::new().name("prompt".into());
    match thread.spawn(read) {
        Ok(_) => Some(lines),
        Err(error) => {
            log::warn!("orders can't be read: {error}");
            None
        }
    }
}

/// The next line; none at the end. What is too long is passed over: no part of it is a line of its own.
fn next_line(input: &mut impl BufRead) -> io::Result<Option<String>> {
    let mut line = Vec::new();
    let read = input.by_ref().take(MAX_LINE).read_until(b'\n', &mut line)?;
    if read as u64 == MAX_LINE && !line.ends_with(b"\n") {
        input.skip_until(b'\n')?;
    }
    Ok((read > 0).then(|| String::from_utf8_lossy(&line).trim().to_owned()))
}

/// The captures of the runs: `FILE` of the first, `FILE-N` of run N, `FILE-N-2` when N is used again.
struct Files {
    path: PathBuf,
    options: CreateOptions,
    /// The first one is made before anything else, so that it is known to work.
    first: Option<Writer>,
    /// How often the number of a run was used.
    used: HashMap<u8, u32>,
}

impl Files {
    fn create(path: &Path, existing: Existing) -> Result<Files, CaptureError> {
        let options = CreateOptions {
            existing,
            owner: owner(),
            ..CreateOptions::default()
        };
        Ok(Files {
            first: Some(Writer::create(path, options.clone())?),
            path: path.to_owned(),
            options: CreateOptions {
                existing: existing.numbered(),
                ..options
            },
            used: HashMap::new(),
        })
    }

    fn of_run(&mut self, run: u8) -> Result<Writer, Failure> {
        if let Some(first) = self.first.take() {
            return Ok(first);
        }
        let used = self.used.entry(run).or_default();
        loop {
            *used = used.saturating_add(1);
            let path = numbered(&self.path, run, *used);
            match Writer::create(&path, self.options.clone()) {
                // Someone else's file is stepped over.
                Err(CaptureError::Exists(_)) if *used < u32::MAX => {}
                made => return Ok(made?),
            }
        }
    }
}

fn numbered(path: &Path, run: u8, used: u32) -> PathBuf {
    let mut name = path.file_stem().unwrap_or_default().to_owned();
    name.push(format!("-{run}"));
    if used > 1 {
        name.push(format!("-{used}"));
    }
    if let Some(extension) = path.extension() {
        name.push(".");
        name.push(extension);
    }
    path.with_file_name(name)
}

struct Session {
    hq: Hq,
    console: Console,
    runs: Option<u64>,
    ended: u64,
    failed: u64,
    /// Since when it is to end.
    quitting: Option<Instant>,
    shown: Instant,
    /// Messages at the last look, for their rate.
    last: (u64, Instant),
}

const HELP: &str = "\
orders: start, stop, pause, unpause, suspend, unsuspend (of all runs, or of one: stop 2), status, \
quit, help";

impl Session {
    /// Looks at what has happened; whether all is over.
    fn step(&mut self) -> bool {
        // In this order: the end of a run that is not among them is among the events.
        let active = self.hq.status();
        while let Some(event) = self.hq.next_event(Duration::ZERO) {
            self.tell(event);
        }
        if self.shown.elapsed() >= LIVE {
            self.shown = Instant::now();
            let line = self.live(&active);
            self.console.show(&line);
        }
        if self.runs.is_some_and(|runs| self.ended >= runs) {
            return true;
        }
        match self.quitting {
            Some(_) if active.is_empty() => true,
            Some(since) if since.elapsed() > PATIENCE => {
                self.hq.abandon("the receiver is closing");
                self.quitting = None;
                self.runs = Some(self.ended + active.len() as u64);
                false
            }
            _ => false,
        }
    }

    /// Stops all runs, and ends when they have ended; the second time at once.
    fn quit(&mut self) {
        let active = self.hq.status();
        if self.quitting.is_some() {
            self.hq.abandon("the receiver is closing");
            return;
        }
        self.quitting = Some(Instant::now());
        if !active.is_empty() {
            self.console
                .say("stopping the runs; once more gives them up");
            self.hq.order(None, Order::Stop);
        }
    }

    fn obey(&mut self, line: &str) {
        self.console.typed(line);
        let mut words = line.split_whitespace();
        let Some(word) = words.next() else {
            return self.console.refresh();
        };
        let order = match word {
            "start" => Order::Start,
            "stop" => Order::Stop,
            "pause" => Order::Pause,
            "unpause" => Order::Unpause,
            "suspend" => Order::Suspend,
            "unsuspend" => Order::Unsuspend,
            "status" => return self.status(),
            "quit" | "exit" => return self.quit(),
            "help" | "?" => return self.console.say(HELP),
            other => {
                let text = format!("'{}' is no order; {HELP}", cut(other, MAX_WORD));
                return self.console.say(&text);
            }
        };
        let run = match words.next().map(str::parse::<u32>) {
            None => None,
            Some(Ok(run)) => Some(run),
            Some(Err(_)) => {
                return self.console.say(&format!(
                    "write '{word}' or '{word} RUN'; status lists runs"
                ));
            }
        };
        let outcomes = match run.map(u8::try_from) {
            None => self.hq.order(None, order),
            Some(Ok(run)) => self.hq.order(Some(run), order),
            Some(Err(_)) => Vec::new(),
        };
        if outcomes.is_empty() {
            let text = match run {
                Some(run) => format!("there is no run {run}; status lists runs"),
                None => "there is no run: an agent has to connect first".to_owned(),
            };
            self.console.say(&text);
        }
        for (run, outcome) in outcomes {
            match outcome {
                Ok(()) => self.console.say(&format!("run {run}: {word}")),
                Err(error) => self.console.say(&format!("run {run}: {error}")),
            }
        }
    }

    fn status(&mut self) {
        let active = self.hq.status();
        if active.is_empty() {
            let text = format!("no run; listening at {}", self.hq.address());
            self.console.say(&text);
        }
        for run in active {
            let mut text = format!(
                "run {} of {}: {}, {}, {}, {}, {}",
                run.run,
                run.peer,
                mode(&run),
                quantity::plural(run.counts.messages, "message"),
                quantity::plural(run.counts.calls, "call record"),
                quantity::plural(run.counts.threads.into(), "thread"),
                quantity::plural(run.connections as u64, "data connection"),
            );
            if run.faults > 0 {
                text += &format!(", {}", quantity::plural(run.faults, "fault"));
            }
            self.console.say(&text);
        }
    }

    fn live(&mut self, active: &[RunStatus]) -> String {
        let messages: u64 = active.iter().map(|run| run.counts.messages).sum();
        let calls: u64 = active.iter().map(|run| run.counts.calls).sum();
        let threads: u64 = active.iter().map(|run| u64::from(run.counts.threads)).sum();
        let (before, at) = self.last;
        self.last = (messages, Instant::now());
        let seconds = at.elapsed().as_secs_f64().max(1e-3);
        let rate = messages.saturating_sub(before) as f64 / seconds;
        match active {
            [] => "waiting for an agent".to_owned(),
            runs => format!(
                "{}  {} messages/s  {}  {}",
                match runs {
                    [run] => mode(run),
                    runs => format!("{} runs", runs.len()),
                },
                quantity::count(rate as u64),
                quantity::plural(calls, "call record"),
                quantity::plural(threads, "thread"),
            ),
        }
    }

    fn tell(&mut self, event: HqEvent) {
        match event {
            HqEvent::Refused { peer, reason } => {
                self.console
                    .warn(&format!("{peer} was turned away: {reason}"));
            }
            HqEvent::Began { run, peer } => {
                self.console.say(&format!("run {run}: the agent at {peer}"));
            }
            HqEvent::Health { run, healthy } => self.console.say(&match healthy {
                true => format!("run {run}: heartbeats come again"),
                false => format!("run {run}: unhealthy, heartbeats are missing"),
            }),
            HqEvent::Ended(report) => self.ended(&report),
        }
    }

    fn ended(&mut self, report: &RunReport) {
        self.ended += 1;
        let run = report.run;
        for (fault, count) in report.faults.iter() {
            let times = match count {
                1 => String::new(),
                count => format!(" (and {} more like it)", quantity::count(count - 1)),
            };
            self.console.warn(&format!("run {run}: {fault}{times}"));
        }
        let counts = &report.counts;
        let what = format!(
            "{} in {:.1} s, {}",
            quantity::plural(counts.messages, "message"),
            report.elapsed.as_secs_f64(),
            quantity::plural(counts.calls, "call record"),
        );
        match &report.failure {
            None if report.faults.iter().any(|(fault, _)| fault.loses_data()) => {
                let text = format!("run {run} has ended, but its data are not complete: {what}");
                self.console.warn(&text);
            }
            None => self.console.say(&format!("run {run} is complete: {what}")),
            Some(reason) => {
                self.failed += 1;
                self.console
                    .warn(&format!("run {run} failed: {reason}; kept: {what}"));
            }
        }
        for remark in &report.remarks {
            self.console.say(&format!("run {run}: {remark}"));
        }
    }
}

/// Where a run is, in a word: by the agent, or by its orders as long as that has said nothing.
fn mode(run: &RunStatus) -> String {
    use profiler_wire::bytefrog::Mode;
    let word = match (run.mode, run.phase) {
        (Some(Mode::Initializing) | None, Phase::Initializing { .. }) => "waiting for its start",
        (Some(Mode::Initializing) | None, _) => "starting",
        (Some(Mode::Tracing), _) => "tracing",
        (Some(Mode::Paused), _) => "paused",
        (Some(Mode::Suspended), _) => "suspended",
        (Some(Mode::ShuttingDown), _) => "ending",
    };
    match run.unhealthy {
        true => format!("{word} (unhealthy)"),
        false => word.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_is_too_long_is_one_line() {
        let long = "x".repeat(MAX_LINE as usize - 1);
        let input = format!("start\n{long}y stop\nstop\n{long}\nquit");
        let mut input = input.as_bytes();
        let mut lines = Vec::new();
        while let Some(line) = next_line(&mut input).unwrap() {
            lines.push(line);
        }
        assert_eq!(lines, ["start", &format!("{long}y"), "stop", &long, "quit"]);
    }

    #[test]
    fn captures_of_later_runs_have_their_numbers() {
        for (path, of_run_58, again) in [
            ("a/run.cap", "a/run-58.cap", "a/run-58-2.cap"),
            ("run", "run-58", "run-58-2"),
            ("x.y.cap", "x.y-58.cap", "x.y-58-2.cap"),
        ] {
            assert_eq!(numbered(Path::new(path), 58, 1), Path::new(of_run_58));
            assert_eq!(numbered(Path::new(path), 58, 2), Path::new(again));
        }
    }

    #[test]
    fn files_of_others_are_stepped_over() {
        let folder = std::env::temp_dir().join(format!("profiler-hq-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("a.cap");
        std::fs::write(folder.join("a-1.cap"), "mine").unwrap();
        std::fs::write(&path, "mine").unwrap();
        let mut files = Files::create(&path, Existing::Keep).unwrap();
        let mut first = files.of_run(0).unwrap();
        assert_eq!(first.path(), path);
        for (run, name) in [
            (1, "a-1-2.cap"),
            (2, "a-2.cap"),
            (0, "a-0.cap"),
            (2, "a-2-2.cap"),
        ] {
            assert_eq!(files.of_run(run).unwrap().path(), folder.join(name));
        }
        assert_eq!(std::fs::read(&path).unwrap(), b"mine");
        first.publish().unwrap();
        assert_eq!(std::fs::read(folder.join("a.cap.old")).unwrap(), b"mine");
        assert_eq!(std::fs::read(folder.join("a-1.cap")).unwrap(), b"mine");
        std::fs::remove_dir_all(folder).unwrap();
    }
}
