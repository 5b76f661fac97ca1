//! A session of the kernel's probes: what drains them, orders and resolves what they saw, follows the
//! targets and the command, and notes losses, markers and the time.
//!
//! [`Prepared`] -> batches, which a [`Consumer`] takes whenever whoever drives the session passes them
//! on; where they go is not known here. Clock: CLOCK_MONOTONIC, but for how often things are done.
//!
//! What does not belong here: consumers of batches, and when a session ends (`record`, `stream`).

mod about;
mod ends;
mod hurry;

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use rustix::time::{ClockId, clock_gettime};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::{Interval, MissedTickBehavior};

use crate::error::{Context, Failure};
use profiler_model::order::Order;
use profiler_model::raw::{RawBody, RawEvent};
use profiler_model::{Batch, Consumer, Cpu, Event, LostReason, Sampling, Timestamp};
use profiler_probe::{AttachedSource, Probe, now};
use profiler_resolve::{KnownProcesses, ResolveCounters, Resolver, UnsupportedPython};
use profiler_target::command::{RunningCommand, StoppedCommand};

pub use ends::StackEnds;
pub(super) use hurry::Hurry;

use self::about::{exec_failure, machine, source};
use super::containers::Containers;
use super::marks::Marks;
use super::prepare::Prepared;
use super::scope::Scope;
use super::signals::Impatience;
use super::targets::Target;
use super::tracer::{Leaving, News, TraceSummary, Tracer};
use super::unwinding::{UnwindSummary, Unwinding};

/// How often what is due is passed on.
pub(super) const TICK: Duration = Duration::from_millis(100);
/// How often is looked for a program that is about to be started, and is to be traced from its first
/// instruction.
const HURRY: Duration = Duration::from_millis(1);
/// How often is looked for unwind tables that are being built.
const TABLES_TICK: Duration = Duration::from_millis(5);
/// How often losses are asked for, processors looked at and the wall clock read.
const SLOW_TICK: Duration = Duration::from_secs(1);
/// How often the wall clock is put into the recording.
const CLOCK_INTERVAL: Duration = Duration::from_secs(10);
/// Events held back to be ordered; more are passed on unordered rather than kept.
const MAX_PENDING: usize = 1 << 20;
/// So many events are resolved before it is looked whether there are new processes: they may be gone in
/// a moment.
const AT_ONCE: usize = 256;
/// So many calls at a time are passed on at once: memory that was just written is read faster.
const MANY_CALLS: u64 = 4096;
/// How long the kernel may take to let go of probes, from when all else is done, until that is said.
const LEAVING_PATIENCE: Duration = Duration::from_millis(500);
const POLL_FAILED: &str = "failed to poll for what happens";

/// See the module.
pub(super) struct Session {
    probe: Option<Probe>,
    wake: AsyncFd<OwnedFd>,
    tick: Interval,
    resolver: Resolver,
    order: Order,
    scope: Scope,
    /// The same for what has not been ordered yet. It may miss a child whose fork comes out of a
    /// buffer that was drained a moment too early; then its files are opened only when they are
    /// needed, and nothing is left out.
    early_scope: Scope,
    /// None if there are no cgroups here.
    containers: Option<Containers>,
    answers: Option<AsyncFd<OwnedFd>>,
    /// What is to be recorded does not exist yet.
    awaiting: bool,
    tracer: Option<Tracer>,
    unwinding: Unwinding,
    /// What came of it, once the probes are gone.
    unwound: Option<UnwindSummary>,
    warned_of_stacks: bool,
    stacks: StackEnds,
    marks: Option<Marks>,
    stopped: Option<StoppedCommand>,
    command: Option<RunningCommand>,
    /// What the command is called.
    program: String,
    /// The processes and threads that were named.
    targets: Vec<Target>,
    delay: Duration,
    started: Instant,
    /// Samples and calls before this are not wanted.
    from: Timestamp,
    /// When it ends, if that is known: from then on no call is wanted, even if there is no time to end it.
    ends_at: Option<Instant>,
    suspended: bool,
    slow_tick: Instant,
    clock_tick: Option<Instant>,
    raw: Vec<RawEvent>,
    /// Empty between two uses, kept for its memory.
    due: Vec<RawEvent>,
    batches: Vec<Batch>,
    samples: u64,
    /// Those of this process among them.
    own_samples: u64,
    /// They are not wanted.
    no_self: bool,
    calls: u64,
    lost: u64,
    dropped: u64,
    sources: Vec<AttachedSource>,
    kernel_bytes: u64,
}

/// What a session is to see to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Due {
    /// The kernel's buffers.
    Buffers,
    /// What containers are, which somebody was asked for.
    Answers,
    /// Everything: some time has passed.
    Tick,
}

/// What was watched is gone.
#[derive(Debug)]
pub(super) enum Gone {
    /// The command has ended.
    Command(ExitStatus),
    /// All processes and threads that were named have.
    Targets,
}

impl Session {
    /// Attaches everything. The command, if there is one, still waits for [`Session::begin`].
    pub(super) fn attach(prepared: Prepared) -> Result<Session, Failure> {
        Session::attach_again(prepared, &mut None)
    }

    /// The same, and what was known of processes is known again: they stay the same, and epochs are
    /// counted on. It is left where it is if this fails.
    pub(super) fn attach_again(
        prepared: Prepared,
        known: &mut Option<KnownProcesses>,
    ) -> Result<Session, Failure> {
        let Prepared {
            watch,
            targets,
            cgroups,
            command,
            mut tracer,
            wanted,
        } = prepared;
        let scope = Scope::new(&watch.probe.filter);
        let mut probe = Probe::attach(watch.probe)?;
        let wake = probe.wake_fd().try_clone_to_owned();
        let wake = watched(wake.context(|| POLL_FAILED)?).context(|| POLL_FAILED)?;
        let containers = cgroups.map(|chosen| Containers::start(chosen, wanted, &mut probe));
        let containers = containers
            .transpose()
            .context(|| "failed to start a thread")?;
        let answers = containers.as_ref().map(Containers::wake_fd);
        let answers = answers.map(|fd| fd.and_then(watched)).transpose();
        let answers = answers.context(|| POLL_FAILED)?;
        let sources = probe.sources().to_vec();
        let kernel_bytes = probe.memory_bytes();
        let at = now();
        let mut resolve = watch.resolve;
        resolve.session = profiler_model::Session {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            target: watch.target,
            command: std::env::args_os()
                .map(|word| word.to_string_lossy().into_owned())
                .collect(),
            started: Timestamp(at.0 + watch.delay.as_nanos() as u64),
            ..machine()
        };
        resolve.sources = sources.iter().map(source).collect();
        let mut resolver = Resolver::new(resolve)?;
        if let Some(known) = known.take() {
            resolver.resume(known);
        }
        match (scope.pids(), containers.as_ref().and_then(Containers::pids)) {
            (pids, Some(mut inside)) => {
                if let Some(pids) = pids {
                    inside.retain(|pid| pids.contains(pid));
                }
                resolver.limit();
                resolver.snapshot_of(&inside, at);
            }
            (Some(pids), None) => resolver.snapshot_of(&pids, at),
            (None, None) => resolver.snapshot(at),
        }
        tell_pythons(&mut resolver, &mut probe);
        if let Some(tracer) = &mut tracer {
            tracer.attach_all(&mut probe, &mut resolver)?;
        }
        let mut unwinding = Unwinding::default();
        if let Some(unwinder) = probe.unwinder() {
            let inside = containers.as_ref().and_then(Containers::pids);
            let mut named = inside.or(scope.pids());
            if let (Some(named), Some(command)) = (&mut named, &command) {
                // It is a copy of this process until it runs.
                named.retain(|pid| *pid != command.pid());
            }
            unwinding.begin(named.as_deref(), &mut resolver, unwinder);
        }
        let marks = Marks::listen()
            .inspect_err(|error| log::warn!("'profiler mark' will not reach this: {error}"))
            .ok();
        let program = watch.command.iter().flatten().next();
        let started = Instant::now();
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Ok(Session {
            wake,
            tick,
            probe: Some(probe),
            resolver,
            order: Order::new(MAX_PENDING),
            early_scope: scope.clone(),
            scope,
            awaiting: containers
                .as_ref()
                .is_some_and(|containers| containers.awaited().is_some()),
            containers,
            answers,
            tracer,
            unwinding,
            unwound: None,
            warned_of_stacks: false,
            stacks: StackEnds::default(),
            marks,
            stopped: command,
            command: None,
            program: program.map_or(String::new(), |word| word.display().to_string()),
            targets,
            delay: watch.delay,
            started,
            from: at,
            ends_at: None,
            suspended: false,
            slow_tick: started,
            clock_tick: None,
            raw: Vec::new(),
            due: Vec::new(),
            batches: Vec::new(),
            samples: 0,
            own_samples: 0,
            no_self: watch.no_self,
            calls: 0,
            lost: 0,
            dropped: 0,
            sources,
            kernel_bytes,
        })
    }

    /// Lets the command run; time counts from now on.
    pub(super) fn begin(&mut self) -> Result<(), Failure> {
        if let Some(stopped) = self.stopped.take() {
            let running = stopped.run();
            self.command = Some(running.map_err(|error| exec_failure(&self.program, &error))?);
        }
        self.count();
        Ok(())
    }

    /// Time counts from now on, unless what is recorded does not exist yet.
    fn count(&mut self) {
        self.started = Instant::now();
        // What came while we got ready counts, unless the beginning is not wanted at all.
        if !self.delay.is_zero() {
            self.from = match self.awaiting {
                true => Timestamp(u64::MAX),
                false => Timestamp(now().0 + self.delay.as_nanos() as u64),
            };
        }
    }

    /// Waits for something to see to. May be dropped while it waits.
    pub(super) async fn due(&mut self) -> Due {
        tokio::select! {
            () = readable(Some(&self.wake)) => Due::Buffers,
            () = readable(self.answers.as_ref()) => Due::Answers,
            _ = self.tick.tick() => Due::Tick,
            () = tokio::time::sleep(HURRY), if self.is_in_a_hurry() => Due::Buffers,
            () = tokio::time::sleep(TABLES_TICK), if self.resolver.builds_tables() => Due::Buffers,
        }
    }

    /// Sees to what is due. What happened until the time that is returned is to be released, if any.
    pub(super) fn take_in(&mut self, due: Due) -> Option<Timestamp> {
        let until = now();
        match due {
            Due::Buffers => {
                // A process may be gone in a moment: look at once.
                let before = self.calls;
                self.drain();
                self.trace_in_a_hurry();
                (self.calls - before >= MANY_CALLS).then_some(until)
            }
            Due::Answers => {
                self.answer();
                None
            }
            Due::Tick => {
                self.extras(until);
                self.drain();
                self.answer();
                self.trace();
                if let Some(unwinder) = self.probe.as_mut().and_then(Probe::unwinder) {
                    self.unwinding.tick(&mut self.resolver, unwinder);
                }
                Some(until)
            }
        }
    }

    /// Makes batches of what happened until a time that [`Session::take_in`] gave, or of all that was
    /// taken in, and hands them over.
    pub(super) fn pass(&mut self, until: Option<Timestamp>, consumer: &mut impl Consumer) {
        if consumer.wants_new_epoch() {
            self.resolver.begin_epoch();
        }
        while let Some(spare) = consumer.spare() {
            self.resolver.reuse(spare);
        }
        let mut due = std::mem::take(&mut self.due);
        match until {
            Some(until) => self.order.release(until, &mut due),
            None => self.order.finish(&mut due),
        }
        self.resolve(due);
        if until.is_none() {
            self.resolver.await_tables(&mut self.batches);
            self.resolver.give(&mut self.batches);
        }
        self.hand_over(consumer);
    }

    fn resolve(&mut self, mut due: Vec<RawEvent>) {
        if let Some(containers) = &mut self.containers {
            let taken_out = match &mut self.probe {
                Some(probe) => containers.pass(&mut due, false, Some(probe)),
                None => containers.settle(&mut due, &mut self.resolver),
            };
            self.samples = self.samples.saturating_sub(taken_out);
        }
        self.scope.retain(&mut due);
        let mut rest = due.drain(..);
        loop {
            let some = rest.by_ref().take(AT_ONCE);
            self.resolver.take(some, &mut self.batches);
            // Engines forget what has been removed: they are asked before the rest is resolved.
            if let Some(containers) = &mut self.containers {
                containers.feed(&mut self.resolver);
            }
            if rest.len() == 0 {
                break;
            }
            self.close_if_over();
            self.drain_if_woken();
        }
        drop(rest);
        self.resolver.give(&mut self.batches);
        if self.resolver.has_forgotten_stacks()
            && let Some(probe) = &mut self.probe
        {
            match probe.forget_wait_stacks() {
                Ok(going_on) => self.resolver.keep_stacks_of(going_on),
                // Next time, perhaps.
                Err(error) if !std::mem::replace(&mut self.warned_of_stacks, true) => {
                    log::warn!("some waits will have no stacks: {error}");
                }
                Err(_) => {}
            }
        }
        self.resolver.poll_symbols(&mut self.batches);
        self.due = due;
    }

    /// Hands over the batches that were made since the last time.
    fn hand_over(&mut self, consumer: &mut impl Consumer) {
        for batch in self.batches.drain(..) {
            for event in &batch.events {
                match event {
                    // Calls that had begun before they were traced are no loss.
                    Event::Lost(lost) if lost.reason != LostReason::Unmatched => {
                        self.lost += lost.count;
                    }
                    Event::Sample(sample) => self.stacks.count(sample),
                    _ => {}
                }
            }
            self.dropped += consumer.send(batch);
        }
    }

    /// From now on nothing is recorded but what processes and threads become, until
    /// [`Session::resume`]. What happened before is to be released, all of it.
    pub(super) fn suspend(&mut self) {
        if let (Some(tracer), Some(probe)) = (&mut self.tracer, &mut self.probe) {
            tracer.suspend(probe, &mut self.raw);
        }
        self.drain();
        self.suspended = true;
    }

    /// Records again.
    pub(super) fn resume(&mut self) {
        self.drain();
        self.suspended = false;
        if let (Some(tracer), Some(probe)) = (&mut self.tracer, &mut self.probe) {
            tracer.resume(probe, &mut self.raw);
        }
    }

    /// Whether it has lasted so long. As long as what is to be watched does not exist, time stands still. No
    /// call is recorded when that time is over, however much there is to be resolved by then.
    pub(super) fn has_lasted(&mut self, time: Duration) -> bool {
        if self.awaited().is_some() {
            return false;
        }
        let began = Instant::now() - self.elapsed();
        *self.ends_at.get_or_insert(began + time) <= Instant::now()
    }

    fn close_if_over(&mut self) {
        if self.ends_at.is_some_and(|at| at <= Instant::now())
            && let (Some(tracer), Some(probe)) = (&mut self.tracer, &mut self.probe)
        {
            tracer.close(probe);
        }
    }

    /// Samples this from now on, or nothing; at which frequency really, if anything is. What happened
    /// before is handed over first. The probe must be adjustable.
    pub(super) fn adjust(
        &mut self,
        sampling: Option<&Sampling>,
        consumer: &mut impl Consumer,
    ) -> Result<Option<u64>, Failure> {
        self.drain();
        self.pass(None, consumer);
        let Some(probe) = &mut self.probe else {
            return Ok(None);
        };
        let adjusted = probe.adjust(sampling)?;
        if let Some(hz) = adjusted {
            // The one source that such a probe has.
            self.resolver.set_frequency(0, hz);
        }
        Ok(adjusted)
    }

    /// Asks the resolver, and hands over what it says at once.
    pub(super) fn ask(
        &mut self,
        question: impl FnOnce(&mut Resolver),
        consumer: &mut impl Consumer,
    ) {
        question(&mut self.resolver);
        self.pass_names(consumer);
    }

    /// Hands over names that have been found since the last time.
    pub(super) fn pass_names(&mut self, consumer: &mut impl Consumer) {
        self.resolver.poll_symbols(&mut self.batches);
        self.hand_over(consumer);
    }

    /// What became of traced files since the last call.
    pub(super) fn news(&mut self) -> Vec<News> {
        self.tracer.as_mut().map_or_else(Vec::new, Tracer::news)
    }

    /// What has ended of what is watched, if that is all of it.
    pub(super) fn gone(&mut self) -> Result<Option<Gone>, Failure> {
        if let Some(command) = &mut self.command
            && let Some(status) = command
                .try_wait()
                .context(|| "failed to wait for the command")?
        {
            if let Some(tracer) = &mut self.tracer {
                tracer.waited_for(command.pid(), status.into_raw());
            }
            return Ok(Some(Gone::Command(status)));
        }
        let gone = !self.targets.is_empty() && self.targets.iter().all(Target::has_ended);
        Ok(gone.then_some(Gone::Targets))
    }

    /// The command, once it runs.
    pub(super) fn command(&mut self) -> Option<&mut RunningCommand> {
        self.command.as_mut()
    }

    /// Passes a signal on to the command.
    pub(super) fn signal(&mut self, signal: Signal) -> Result<(), Failure> {
        match &mut self.command {
            Some(command) => command
                .signal(signal)
                .context(|| "failed to pass a signal to the command"),
            None => Ok(()),
        }
    }

    /// Takes everything out of the kernel, and in what was left there: it is to be released.
    pub(super) fn detach(&mut self) -> Option<TraceSummary> {
        let at = now();
        // Who set one just before the end was told that it was recorded.
        self.take_marks(at);
        self.read_clock();
        let mut trace = None;
        // What has begun and can't be traced any more is to be told of.
        self.drain();
        if let Some(probe) = &mut self.probe {
            probe.losses(at, &mut self.raw);
            if let Some(tracer) = &mut self.tracer {
                trace = Some(tracer.finish(probe, &mut self.raw));
            }
            probe.finish_waits(&mut self.raw);
        }
        self.drain();
        if let Some(probe) = &mut self.probe {
            let unwinder = probe.unwinder();
            self.unwound = unwinder.map(|of| self.unwinding.summary(&self.resolver, of));
            self.kernel_bytes = self.kernel_bytes.max(probe.memory_bytes());
        }
        // Nothing is left behind in the kernel while consumers are waited for.
        self.probe = None;
        trace
    }

    /// What the kernel has still not let go of, when all else is done: it is waited for a moment, since
    /// most often nothing is.
    pub(super) fn leaving(&mut self) -> Option<Leaving> {
        let until = Instant::now() + LEAVING_PATIENCE;
        self.tracer.as_mut()?.leaving(until)
    }

    /// Waits for names and hands them over. `left` is told how many are still looked for.
    pub(super) fn await_names(
        &mut self,
        deadline: Duration,
        left: &mut impl FnMut(usize),
        consumer: &mut impl Consumer,
    ) {
        if let Some(containers) = &mut self.containers {
            containers.describe_rest(&mut self.resolver);
        }
        self.resolver.finish(deadline, left, &mut self.batches);
        self.hand_over(consumer);
    }

    /// What is left of a session that was detached: the command, if it runs on.
    pub(super) fn take_command(&mut self) -> Option<RunningCommand> {
        self.command.take()
    }

    /// While what is returned lives, a signal to end has [`Session::await_names`] wait no longer.
    pub(super) fn be_hurried(&self) -> Option<Impatience> {
        let watched = Impatience::watch(self.resolver.hurried());
        let unheard = |error: &io::Error| log::debug!("signals are not listened to: {error}");
        watched.inspect_err(unheard).ok()
    }

    /// What is left of the processes of a session that was detached: see [`Session::attach_again`].
    pub(super) fn into_known_processes(self) -> KnownProcesses {
        self.resolver.into_known_processes()
    }

    /// What is waited for, if nothing that is to be recorded exists yet.
    pub(super) fn awaited(&self) -> Option<&str> {
        self.containers.as_ref()?.awaited()
    }

    /// The containers that were recorded, if none of them is there any more.
    pub(super) fn ended_containers(&self) -> Option<&str> {
        self.containers.as_ref()?.ended()
    }

    /// How long it has gone on since it began.
    pub(super) fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// Since when samples and calls count.
    pub(super) fn from(&self) -> Timestamp {
        self.from
    }

    /// Samples taken in.
    pub(super) fn samples(&self) -> u64 {
        self.samples
    }

    /// Samples of this process among those taken in.
    pub(super) fn own_samples(&self) -> u64 {
        self.own_samples
    }

    /// Calls taken in: entries and exits.
    pub(super) fn calls(&self) -> u64 {
        self.calls
    }

    /// Events that batches said were lost.
    pub(super) fn lost(&self) -> u64 {
        self.lost
    }

    /// Events that the consumer dropped.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped
    }

    /// The sources, as really used.
    pub(super) fn sources(&self) -> &[AttachedSource] {
        &self.sources
    }

    /// Kernel memory of maps and buffers.
    pub(super) fn kernel_bytes(&self) -> u64 {
        self.kernel_bytes
    }

    /// How user stacks were walked by tables, if they were. Known once it has ended.
    pub(super) fn unwound(&self) -> Option<UnwindSummary> {
        self.unwound
    }

    /// Why user stacks ended.
    pub(super) fn stacks(&self) -> &StackEnds {
        &self.stacks
    }

    /// What the resolver says.
    pub(super) fn counters(&self) -> ResolveCounters {
        self.resolver.counters()
    }

    /// Interpreters of Python whose frames are not known.
    pub(super) fn unsupported_pythons(&self) -> Vec<UnsupportedPython> {
        self.resolver.unsupported_pythons()
    }

    /// Takes what is in the kernel's buffers and opens files that may soon be gone.
    fn drain(&mut self) {
        let Some(probe) = &mut self.probe else { return };
        probe.drain(&mut self.raw);
        let (from, mut samples, mut calls) = (self.from, 0, 0);
        let (suspended, no_self) = (self.suspended, self.no_self);
        let own_pid = std::process::id();
        let mut own_samples = 0;
        self.raw.retain(|event| match &event.body {
            RawBody::Sample(_) | RawBody::Call(_) | RawBody::Wait(_) | RawBody::Waits(_)
                if suspended || event.at < from =>
            {
                false
            }
            RawBody::Sample(sample) if sample.pid.0 == own_pid => {
                own_samples += u64::from(!no_self);
                !no_self
            }
            RawBody::Wait(wait) if no_self && wait.record.tgid == own_pid => false,
            RawBody::Waits(waits) if no_self && waits.pid.0 == own_pid => false,
            RawBody::Sample(_) | RawBody::Wait(_) => {
                samples += 1;
                true
            }
            RawBody::Call(_) => {
                calls += 1;
                true
            }
            _ => true,
        });
        self.samples += samples + own_samples;
        self.own_samples += own_samples;
        self.calls += calls;
        if let Some(tracer) = self.tracer.as_mut().filter(|_| calls > 0) {
            tracer.remember(&self.raw);
        }
        // Of these there are few. Forks come before what the child does, whatever buffer they came in.
        let hits = |event: &&RawEvent| {
            matches!(
                event.body,
                RawBody::Sample(_)
                    | RawBody::Call(_)
                    | RawBody::Wait(_)
                    | RawBody::WaitStack(_)
                    | RawBody::Waits(_)
            )
        };
        let mut changes: Vec<&RawEvent> = self.raw.iter().filter(|event| !hits(event)).collect();
        changes.sort_by_key(|event| event.at);
        for event in changes {
            if !self.early_scope.admits(event) {
                continue;
            }
            // The tracer first: what is decided of a cgroup counts more than that it was made.
            if let Some(tracer) = &mut self.tracer {
                tracer.notice(event);
            }
            match &mut self.containers {
                Some(containers) => containers.notice(event, probe, &mut self.resolver),
                None => self.resolver.notice(event),
            }
        }
        if let Some(unwinder) = probe.unwinder() {
            self.raw
                .iter()
                .for_each(|event| self.resolver.foresee(event));
            self.unwinding.step(&mut self.resolver, unwinder);
        }
        for event in self
            .raw
            .iter()
            .filter(|event| !matches!(event.body, RawBody::Call(_)))
        {
            self.resolver.notice_interpreted(event);
        }
        tell_pythons(&mut self.resolver, probe);
        self.order.push(&mut self.raw);
        self.see_arrival();
    }

    /// The same while there is other work, if it does not bear waiting.
    fn drain_if_woken(&mut self) {
        if self.probe.as_ref().is_some_and(Probe::is_awake) {
            self.drain();
        }
    }

    /// Takes what is told of containers.
    fn answer(&mut self) {
        let Some(containers) = &mut self.containers else {
            return;
        };
        containers.answer(self.probe.as_mut(), &mut self.resolver);
        self.see_arrival();
    }

    /// Looks what became of containers: there may be one that was waited for.
    fn see_arrival(&mut self) {
        if self.awaiting && self.awaited().is_none() {
            self.awaiting = false;
            self.count();
        }
    }

    /// Attaches probes to what is new, keeps their budget.
    fn trace(&mut self) {
        if let (Some(tracer), Some(probe)) = (&mut self.tracer, &mut self.probe) {
            tracer.step(probe, &mut self.resolver, &mut self.raw);
        }
    }

    fn is_in_a_hurry(&self) -> bool {
        self.tracer.as_ref().is_some_and(Tracer::is_in_a_hurry)
    }

    /// Attaches probes to what is about to run.
    fn trace_in_a_hurry(&mut self) {
        if let (Some(tracer), Some(probe)) = (&mut self.tracer, &mut self.probe)
            && tracer.is_in_a_hurry()
        {
            tracer.hurry(probe, &mut self.resolver, &mut self.raw);
        }
    }

    /// What does not come by itself: losses, markers, the wall clock, processors.
    fn extras(&mut self, at: Timestamp) {
        self.take_marks(at);
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

    fn take_marks(&mut self, at: Timestamp) {
        while let Some(text) = self.marks.as_ref().and_then(Marks::next) {
            self.raw.push(RawEvent {
                at,
                cpu: Cpu(0),
                body: RawBody::Mark(text),
            });
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
}

/// Has the event loop watch a descriptor of our own.
#[allow(unsafe_code)]
fn watched(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: the AsyncFd owns the descriptor, which stays open and the same until it is dropped.
    let watched = unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) };
    Ok(watched?)
}

/// Waits until it is readable; for ever, if there is none.
async fn readable(fd: Option<&AsyncFd<OwnedFd>>) {
    match fd {
        Some(fd) => {
            if let Ok(mut ready) = fd.ready(Interest::READABLE).await {
                ready.clear_ready();
            }
        }
        None => std::future::pending().await,
    }
}

/// Tells the kernel side which processes run Python.
fn tell_pythons(resolver: &mut Resolver, probe: &mut Probe) {
    for change in resolver.take_python_changes() {
        if let Err(error) = probe.set_python(change.pid, change.runs) {
            log::debug!("pid {}: {error}", change.pid);
        }
    }
}
