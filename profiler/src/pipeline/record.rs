//! A recording, from attaching to the last file written.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use rustix::time::{ClockId, clock_gettime};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::capture::{CreateOptions, TimeRange, Writer};
use crate::error::{Context, Failure};
use crate::model::raw::{RawBody, RawEvent};
use crate::model::{Batch, Cpu, Event, LostReason, Session, Timestamp};
use crate::order::Order;
use crate::probe::{AttachedSource, Probe, ProbeOptions, now, set_own_nice};
use crate::resolve::{ResolveCounters, ResolveOptions, Resolver, SourceOptions};
use crate::target::command::{RunningCommand, StoppedCommand, shell_status};
use crate::target::user::User;
use crate::view::progress::{LiveLine, Progress};

use super::marks::Marks;
use super::output::{Output, Screen, ScreenOptions};
use super::outputs::{self, Export};
use super::scope::Scope;
use super::signals::{Signals, hangup, in_foreground};
use super::targets::{Target, open_targets};
use super::tracer::{TraceRequest, TraceSummary, Tracer};
use super::writer::CaptureThread;

/// How often what is due is passed on.
const TICK: Duration = Duration::from_millis(100);
/// How often losses are asked for, processors looked at and the wall clock read.
const SLOW_TICK: Duration = Duration::from_secs(1);
/// How often the wall clock is put into the recording.
const CLOCK_INTERVAL: Duration = Duration::from_secs(10);
/// Events held back to be ordered; more are passed on unordered rather than kept.
const MAX_PENDING: usize = 1 << 20;
/// So many calls at a time are passed on at once: memory that was just written is read faster.
const MANY_CALLS: u64 = 4096;
/// Nice value of the thread that empties the kernel's buffers. It takes little time, but what it
/// leaves there too long is lost, on a busy machine most of all.
const NICE: i32 = -10;
/// How long to wait for names when everything else is done.
const SYMBOL_DEADLINE: Duration = Duration::from_secs(60);

/// What to record, and where to.
pub struct Request {
    /// The probes.
    pub probe: ProbeOptions,
    /// The resolver; its session and sources are filled in here.
    pub resolve: ResolveOptions,
    /// Functions to trace.
    pub trace: Option<TraceRequest>,
    /// What is recorded, in words.
    pub target: String,
    /// A command to run.
    pub command: Option<Vec<OsString>>,
    /// Who runs it; none: who we are.
    pub user: Option<User>,
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
    /// Samples before this time are left out.
    pub delay: Duration,
    /// No live line.
    pub quiet: bool,
}

/// What came of a recording.
#[derive(Debug)]
pub struct Finished {
    /// The command's exit status, or 0.
    pub status: u8,
    /// Samples recorded.
    pub samples: u64,
    /// Events lost, for whatever reason.
    pub lost: u64,
    /// How long it recorded.
    pub elapsed: Duration,
    /// The sources, as really used.
    pub sources: Vec<AttachedSource>,
    /// What the resolver says.
    pub counters: ResolveCounters,
    /// The capture, and how large all its files are, if one was asked for.
    pub capture: Option<(PathBuf, u64)>,
    /// Kernel memory of maps and buffers.
    pub kernel_bytes: u64,
    /// What became of the tracing, if there was any.
    pub trace: Option<TraceSummary>,
}

/// Records until the end that was asked for, writes all outputs.
pub fn run(mut request: Request) -> Result<Finished, Failure> {
    let scratch = Scratch::new(request.capture.is_none());
    let capture = request
        .capture
        .clone()
        .unwrap_or_else(|| scratch.path.clone());
    let exports = std::mem::take(&mut request.exports);
    let mut finished = record(request, &capture)?;
    if !exports.is_empty() {
        outputs::export(&capture, |_| TimeRange::ALL, exports)
            .map_err(|failure| scratch.keep(failure))?;
    }
    if scratch.used {
        finished.capture = None;
    }
    Ok(finished)
}

fn record(request: Request, path: &Path) -> Result<Finished, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context(|| "failed to start the event loop")?;
    runtime.block_on(async {
        let mut signals = Signals::listen().context(|| "failed to listen for signals")?;
        let mut recording = Recording::start(request, path)?;
        let end = recording.watch(&mut signals).await;
        recording.finish(end, &mut signals).await
    })
}

/// A capture that is only made for exports, and removed when they are done.
struct Scratch {
    path: PathBuf,
    used: bool,
}

impl Scratch {
    fn new(used: bool) -> Scratch {
        let name = format!("profiler-{}-{}.cap", std::process::id(), now().0);
        Scratch {
            path: std::env::temp_dir().join(name),
            used,
        }
    }

    /// The export failed: what was recorded is not thrown away.
    fn keep(&self, failure: Failure) -> Failure {
        if !self.used {
            return failure;
        }
        let kept = self.path.with_extension("kept.cap");
        match std::fs::rename(&self.path, &kept) {
            Ok(()) => Failure {
                message: format!("{failure}; the recording is kept in {}", kept.display()),
                ..failure
            },
            Err(_) => failure,
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if self.used {
            // It may not have been made yet.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Why a recording ended.
enum End {
    Asked,
    Duration,
    TargetGone,
    Command(std::process::ExitStatus),
    Failed(Failure),
}

struct Recording {
    probe: Option<Probe>,
    resolver: Resolver,
    order: Order,
    scope: Scope,
    /// The same for what has not been ordered yet. It may miss a child whose fork comes out of a
    /// buffer that was drained a moment too early; then its files are opened only when they are
    /// needed, and nothing is left out.
    early_scope: Scope,
    output: Output,
    path: PathBuf,
    marks: Option<Marks>,
    command: Option<RunningCommand>,
    /// The processes and threads that were named.
    targets: Vec<Target>,
    live: LiveLine,
    started: Instant,
    /// Samples before this are not wanted.
    from: Timestamp,
    ends_at: Option<Instant>,
    slow_tick: Instant,
    clock_tick: Option<Instant>,
    raw: Vec<RawEvent>,
    /// Empty between two uses, kept for its memory.
    due: Vec<RawEvent>,
    batches: Vec<Batch>,
    tracer: Option<Tracer>,
    samples: u64,
    calls: u64,
    lost: u64,
    interrupts: u32,
    has_ring: bool,
    dumps: u32,
    sources: Vec<AttachedSource>,
    kernel_bytes: u64,
}

impl Recording {
    fn start(request: Request, path: &Path) -> Result<Recording, Failure> {
        let Request {
            mut probe,
            mut resolve,
            ..
        } = request;
        let targets = open_targets(&probe.filter)?;
        let command = match &request.command {
            Some(command) => {
                let stopped = StoppedCommand::create(command, request.user.as_ref())
                    .context(|| format!("failed to start {}", command[0].display()))?;
                probe.filter.pids.push(stopped.pid());
                Some(stopped)
            }
            None => None,
        };
        let mut tracer = None;
        if let Some(trace) = request.trace {
            let words = request.command.as_deref().unwrap_or_default();
            let program = words.first().map(|word| executable(word));
            let running = command
                .as_ref()
                .map(StoppedCommand::pid)
                .zip(program.as_deref());
            let prepared = Tracer::prepare(trace, &probe.filter, running)?;
            probe.calls = Some(prepared.call_options(probe.buffer_bytes));
            tracer = Some(prepared);
        }
        let has_ring = request.create.ring.is_some();
        let writer = match request.screen {
            None => Some(Writer::create(path, request.create)?),
            Some(_) => None,
        };
        let scope = Scope::new(&probe.filter);
        let mut probe = Probe::attach(probe)?;
        let sources = probe.sources().to_vec();
        let kernel_bytes = probe.memory_bytes();
        let at = now();
        resolve.session = Session {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            target: request.target,
            command: std::env::args_os()
                .map(|word| word.to_string_lossy().into_owned())
                .collect(),
            started: Timestamp(at.0 + request.delay.as_nanos() as u64),
            ..machine()
        };
        resolve.sources = sources.iter().map(source).collect();
        let mut resolver = Resolver::new(resolve)?;
        match scope.pids() {
            Some(pids) => resolver.snapshot_of(&pids, at),
            None => resolver.snapshot(at),
        }
        if let Some(tracer) = &mut tracer {
            tracer.attach_all(&mut probe, &mut resolver)?;
        }
        let marks = Marks::listen()
            .inspect_err(|error| log::warn!("'profiler mark' will not reach this: {error}"))
            .ok();
        let command = match command {
            Some(stopped) => {
                let shown = request.command.iter().flatten().next().map(|w| w.display());
                let what = || match &shown {
                    Some(program) => format!("failed to run {program}"),
                    None => "failed to run the command".to_owned(),
                };
                Some(
                    stopped
                        .run()
                        .map_err(|error| exec_failure(what(), &error))?,
                )
            }
            None => None,
        };
        let output = match (writer, request.screen) {
            (Some(mut writer), _) => {
                writer.publish()?;
                let thread = CaptureThread::start(writer);
                Output::Capture(thread.context(|| "failed to start a thread")?)
            }
            (None, screen) => {
                let screen = Screen::open(screen.unwrap_or_default());
                Output::Screen(Box::new(screen.context(|| "failed to use the terminal")?))
            }
        };
        let started = Instant::now();
        // What came while we got ready counts, unless the beginning is not wanted at all.
        let from = if request.delay.is_zero() { at } else { now() };
        Ok(Recording {
            probe: Some(probe),
            resolver,
            order: Order::new(MAX_PENDING),
            early_scope: scope.clone(),
            scope,
            output,
            path: path.to_owned(),
            marks,
            command,
            targets,
            live: LiveLine::new(request.quiet),
            started,
            from: Timestamp(from.0 + request.delay.as_nanos() as u64),
            ends_at: request
                .duration
                .map(|duration| started + request.delay + duration),
            slow_tick: started,
            clock_tick: None,
            raw: Vec::new(),
            due: Vec::new(),
            batches: Vec::new(),
            tracer,
            samples: 0,
            calls: 0,
            lost: 0,
            interrupts: 0,
            has_ring,
            dumps: 0,
            sources,
            kernel_bytes,
        })
    }

    /// Runs until something ends the recording.
    async fn watch(&mut self, signals: &mut Signals) -> End {
        let nice = set_own_nice(NICE)
            .inspect_err(|error| log::debug!("the priority stays as it is: {error}"));
        let end = match self.drive(signals).await {
            Ok(end) => end,
            Err(failure) => End::Failed(failure),
        };
        // What is still to be done can wait.
        if let Err(error) = nice.and_then(set_own_nice) {
            log::debug!("the priority is not set back: {error}");
        }
        end
    }

    async fn drive(&mut self, signals: &mut Signals) -> Result<End, Failure> {
        let wake = self.wake_fd()?;
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                ready = wake.ready(Interest::READABLE) => {
                    // A process may be gone in a moment: look at once.
                    let until = now();
                    let before = self.calls;
                    self.drain();
                    if let Ok(mut ready) = ready {
                        ready.clear_ready();
                    }
                    if self.calls - before >= MANY_CALLS {
                        self.release(until);
                    }
                }
                _ = tick.tick() => {
                    if let Some(end) = self.step()? {
                        return Ok(end);
                    }
                }
                _ = signals.interrupt.recv() => {
                    if let Some(end) = self.interrupted()? {
                        return Ok(end);
                    }
                }
                _ = signals.terminate.recv() => {
                    self.pass_on(Signal::TERM)?;
                    return Ok(End::Asked);
                }
                _ = hangup(&mut signals.hangup) => return Ok(End::Asked),
                _ = signals.dump.recv() => self.dump(),
            }
        }
    }

    /// Ctrl-C on a terminal reaches the command as well; a signal sent to us alone is passed on.
    /// Either way the recording goes on until the command has ended, or until it is asked twice.
    fn interrupted(&mut self) -> Result<Option<End>, Failure> {
        self.interrupts += 1;
        if self.command.is_none() || self.interrupts > 1 {
            return Ok(Some(End::Asked));
        }
        if !in_foreground() {
            self.pass_on(Signal::INT)?;
        }
        Ok(None)
    }

    fn pass_on(&mut self, signal: Signal) -> Result<(), Failure> {
        match &mut self.command {
            Some(command) => command
                .signal(signal)
                .context(|| "failed to pass a signal to the command"),
            None => Ok(()),
        }
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

    /// A descriptor of our own for the event loop, which wants to own what it polls.
    #[allow(unsafe_code)]
    fn wake_fd(&self) -> Result<AsyncFd<OwnedFd>, Failure> {
        let what = || "failed to poll the kernel's buffers";
        let Some(probe) = &self.probe else {
            return Err(Failure::failed(what()));
        };
        let fd = probe.wake_fd().try_clone_to_owned().context(what)?;
        // SAFETY: the AsyncFd owns the descriptor, which stays open and the same until it is dropped.
        unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) }.context(what)
    }

    /// Takes what is in the kernel's buffers and opens files that may soon be gone.
    fn drain(&mut self) {
        let Some(probe) = &mut self.probe else { return };
        probe.drain(&mut self.raw);
        let (from, mut samples, mut calls) = (self.from, 0, 0);
        self.raw.retain(|event| match event.body {
            RawBody::Sample(_) | RawBody::Call(_) if event.at < from => false,
            RawBody::Sample(_) => {
                samples += 1;
                true
            }
            RawBody::Call(_) => {
                calls += 1;
                true
            }
            _ => true,
        });
        self.samples += samples;
        self.calls += calls;
        // Of these there are few. Forks come before what the child does, whatever buffer they came in.
        let hits = |event: &&RawEvent| matches!(event.body, RawBody::Sample(_) | RawBody::Call(_));
        let mut changes: Vec<&RawEvent> = self.raw.iter().filter(|event| !hits(event)).collect();
        changes.sort_by_key(|event| event.at);
        for event in changes {
            if self.early_scope.admits(event) {
                self.resolver.notice(event);
                if let Some(tracer) = &mut self.tracer {
                    tracer.notice(event);
                }
            }
        }
        self.order.push(&mut self.raw);
    }

    /// One tick: drains, passes on what is due, looks at what may end the recording.
    fn step(&mut self) -> Result<Option<End>, Failure> {
        let until = now();
        self.extras(until);
        self.drain();
        self.trace();
        self.release(until);
        self.show();
        let ends = self.output.tick();
        if let Some(failure) = self.output.trouble() {
            return Err(failure);
        }
        if ends {
            return Ok(Some(End::Asked));
        }
        if let Some(command) = &mut self.command
            && let Some(status) = command
                .try_wait()
                .context(|| "failed to wait for the command")?
        {
            return Ok(Some(End::Command(status)));
        }
        if self.ends_at.is_some_and(|at| at <= Instant::now()) {
            return Ok(Some(End::Duration));
        }
        let gone = !self.targets.is_empty() && self.targets.iter().all(Target::has_ended);
        Ok(gone.then_some(End::TargetGone))
    }

    /// Passes on what is due. `until` was taken before the last drain.
    fn release(&mut self, until: Timestamp) {
        let mut due = std::mem::take(&mut self.due);
        self.order.release(until, &mut due);
        self.pass(&mut due);
        due.clear();
        self.due = due;
    }

    /// Attaches probes to what is new, keeps their budget.
    fn trace(&mut self) {
        if let (Some(tracer), Some(probe)) = (&mut self.tracer, &mut self.probe) {
            tracer.step(probe, &mut self.resolver, &mut self.raw);
        }
    }

    /// What does not come by itself: losses, markers, the wall clock, processors.
    fn extras(&mut self, at: Timestamp) {
        while let Some(text) = self.marks.as_ref().and_then(Marks::next) {
            self.raw.push(RawEvent {
                at,
                cpu: Cpu(0),
                body: RawBody::Mark(text),
            });
        }
        let now = Instant::now();
        if self
            .clock_tick
            .is_none_or(|last| now - last >= CLOCK_INTERVAL)
        {
            self.clock_tick = Some(now);
            self.read_clock();
        }
        if now - self.slow_tick < SLOW_TICK {
            return;
        }
        self.slow_tick = now;
        if let Some(probe) = &mut self.probe {
            probe.losses(at, &mut self.raw);
            if let Err(error) = probe.update_cpus() {
                log::warn!("a processor that came online is not recorded: {error}");
            }
        }
    }

    fn read_clock(&mut self) {
        let wall = clock_gettime(ClockId::Realtime);
        let realtime_ns = wall.tv_sec as u64 * 1_000_000_000 + wall.tv_nsec as u64;
        let body = RawBody::Clock { realtime_ns };
        self.raw.push(RawEvent {
            at: now(),
            cpu: Cpu(0),
            body,
        });
    }

    /// Ordered events through the resolver to the capture.
    fn pass(&mut self, due: &mut Vec<RawEvent>) {
        if self.output.wants_new_epoch() {
            self.resolver.begin_epoch();
        }
        while let Some(spare) = self.output.spare() {
            self.resolver.reuse(spare);
        }
        self.scope.retain(due);
        self.resolver.resolve(due, &mut self.batches);
        self.resolver.poll_symbols(&mut self.batches);
        self.send();
    }

    fn send(&mut self) {
        for batch in self.batches.drain(..) {
            for event in &batch.events {
                if let Event::Lost(lost) = event
                    // Calls that had begun before they were traced are no loss.
                    && lost.reason != LostReason::Unmatched
                {
                    self.lost += lost.count;
                }
            }
            self.lost += self.output.send(batch);
        }
    }

    fn show(&mut self) {
        self.live.update(&Progress {
            elapsed: self.started.elapsed(),
            samples: self.samples,
            calls: self.calls,
            processes: self.resolver.counters().processes,
            lost: self.lost,
            bytes: self.output.bytes(),
        });
    }

    /// Detaches, passes on what is left, waits for names and closes the capture.
    async fn finish(mut self, end: End, signals: &mut Signals) -> Result<Finished, Failure> {
        let elapsed = self.started.elapsed();
        let at = now();
        self.read_clock();
        let mut trace = None;
        if let Some(probe) = &mut self.probe {
            probe.losses(at, &mut self.raw);
            if let Some(tracer) = &mut self.tracer {
                trace = Some(tracer.finish(probe, &mut self.raw));
            }
        }
        self.drain();
        // Nothing is left behind in the kernel while files are written.
        self.probe = None;
        let mut due = Vec::new();
        self.order.finish(&mut due);
        self.pass(&mut due);
        let live = &mut self.live;
        live.clear();
        let mut left = |left: usize| live.waiting(left);
        self.resolver
            .finish(SYMBOL_DEADLINE, &mut left, &mut self.batches);
        self.live.clear();
        self.send();
        let counters = self.resolver.counters();
        let bytes = self.output.finish();
        let (end, bytes) = match (end, bytes) {
            (End::Failed(failure), _) => return Err(fail(failure, self.command, signals).await),
            (_, Err(error)) => return Err(fail(error, self.command, signals).await),
            (end, Ok(bytes)) => (end, bytes),
        };
        let status = match (end, &mut self.command) {
            (End::Command(status), _) => shell_status(status),
            (_, Some(command)) => outlive(command, signals).await?,
            (_, None) => 0,
        };
        Ok(Finished {
            status,
            samples: self.samples,
            lost: self.lost,
            elapsed,
            sources: self.sources,
            counters,
            capture: Some((self.path, bytes)),
            kernel_bytes: self.kernel_bytes,
            trace,
        })
    }
}

/// The recording has failed. Its command may be worth more than that: it is not left alone, but
/// the failure is said at once.
async fn fail(failure: Failure, command: Option<RunningCommand>, signals: &mut Signals) -> Failure {
    let Some(mut command) = command else {
        return failure;
    };
    if !matches!(command.try_wait(), Ok(None)) {
        return failure;
    }
    log::error!("{failure}; the command goes on without being recorded");
    match outlive(&mut command, signals).await {
        Ok(_) => Failure {
            message: String::new(),
            ..failure
        },
        Err(failure) => failure,
    }
}

/// The recording is done and written, but its command runs on: its end is ours. A signal now is
/// meant for it.
async fn outlive(command: &mut RunningCommand, signals: &mut Signals) -> Result<u8, Failure> {
    let mut tick = tokio::time::interval(TICK);
    loop {
        let wait = command
            .try_wait()
            .context(|| "failed to wait for the command")?;
        if let Some(status) = wait {
            return Ok(shell_status(status));
        }
        let signal = tokio::select! {
            _ = tick.tick() => continue,
            _ = signals.interrupt.recv() => Signal::INT,
            _ = signals.terminate.recv() => Signal::TERM,
            _ = hangup(&mut signals.hangup) => Signal::HUP,
        };
        command
            .signal(signal)
            .context(|| "failed to pass a signal to the command")?;
    }
}

/// The file that a command's first word names: as execvp(3) finds it.
fn executable(word: &std::ffi::OsStr) -> PathBuf {
    use std::os::unix::ffi::OsStrExt;
    let named = PathBuf::from(word);
    if word.as_bytes().contains(&b'/') {
        return named;
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
    let mut candidates = std::env::split_paths(&path).map(|folder| folder.join(word));
    candidates.find(|file| file.is_file()).unwrap_or(named)
}

/// As a shell would: 127 for a command that is not there, 126 for one that can't be run.
fn exec_failure(what: String, error: &io::Error) -> Failure {
    let status = match error.kind() {
        io::ErrorKind::NotFound => 127,
        _ => 126,
    };
    Failure {
        status,
        ..Failure::because(what, error)
    }
}

fn source(attached: &AttachedSource) -> SourceOptions {
    SourceOptions {
        name: attached.name.clone(),
        unit: attached.unit,
        frequency_hz: attached.frequency_hz,
        period: attached.period,
    }
}

fn machine() -> Session {
    let uname = rustix::system::uname();
    Session {
        host: uname.nodename().to_string_lossy().into_owned(),
        kernel: uname.release().to_string_lossy().into_owned(),
        arch: uname.machine().to_string_lossy().into_owned(),
        cpus: std::thread::available_parallelism().map_or(1, |cpus| cpus.get() as u32),
        ..Session::default()
    }
}
