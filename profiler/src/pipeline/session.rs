//! A session of the kernel's probes: what drains them, orders and resolves what they saw, follows the
//! targets and the command, and notes losses, markers and the time.
//!
//! [`Prepared`] -> batches, which a [`Consumer`] takes whenever whoever drives the session passes them
//! on; where they go is not known here. Its parts own their state: what is taken in (`collector`), what is made
//! of it (`walk`), when that counts (`window`), how much it was (`counts`), what was started (`command`). Clock:
//! CLOCK_MONOTONIC, but for how often things are done.
//!
//! What does not belong here: consumers of batches, and when a session ends (`record`, `stream`).

mod about;
mod attach;
mod collector;
mod command;
mod counts;
mod hurry;
mod walk;
mod window;

use std::os::fd::OwnedFd;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tokio::io::unix::AsyncFd;
use tokio::time::Interval;

use crate::error::Failure;
use profiler_model::raw::RawEvent;
use profiler_model::{Consumer, Sampling, Timestamp};
use profiler_probe::{AttachedSource, now};
use profiler_report::view::progress::Progress;
use profiler_resolve::{
    InterpreterSummary, KnownProcesses, NamelessSamples, Place, ResolveCounters, Resolver,
    UnwindSummary,
};
use profiler_target::command::RunningCommand;

pub(super) use counts::Counts;
pub(super) use hurry::Hurry;

use self::collector::Collector;
use self::command::Command;
use self::walk::Walk;
use self::window::Window;
use super::signals::Impatience;
use super::targets::Target;
use super::tracer::{Leaving, News, TraceSummary};

/// How often what is due is passed on.
pub(super) const TICK: Duration = Duration::from_millis(100);
/// How often is looked for a program that is about to be started, and is to be traced from its first
/// instruction.
const HURRY: Duration = Duration::from_millis(1);
/// How often is looked for unwind tables that are being built.
const TABLES_TICK: Duration = Duration::from_millis(5);
/// So many events are resolved before it is looked whether there are new processes: they may be gone in
/// a moment.
const AT_ONCE: usize = 256;
/// So many calls at a time are passed on at once: memory that was just written is read faster.
const MANY_CALLS: u64 = 4096;
/// How long the kernel may take to let go of probes, from when all else is done, until that is said.
const LEAVING_PATIENCE: Duration = Duration::from_millis(500);

/// A running session; it routes among the parts that own its state.
pub(super) struct Session {
    collector: Collector,
    walk: Walk,
    window: Window,
    counts: Counts,
    command: Command,
    /// The processes and threads that were named.
    targets: Vec<Target>,
    /// Readable when the kernel's buffers do not bear waiting.
    wake: AsyncFd<OwnedFd>,
    /// Readable when somebody has said what containers are.
    answers: Option<AsyncFd<OwnedFd>>,
    tick: Interval,
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
    /// Lets the command run; time counts from now on.
    pub(super) fn begin(&mut self) -> Result<(), Failure> {
        self.command.run()?;
        self.window.count();
        Ok(())
    }

    /// Waits for something to see to. May be dropped while it waits.
    pub(super) async fn due(&mut self) -> Due {
        tokio::select! {
            () = readable(Some(&self.wake)) => Due::Buffers,
            () = readable(self.answers.as_ref()) => Due::Answers,
            _ = self.tick.tick() => Due::Tick,
            () = tokio::time::sleep(HURRY), if self.walk.is_in_a_hurry() => Due::Buffers,
            () = tokio::time::sleep(TABLES_TICK), if self.walk.builds_tables() => Due::Buffers,
        }
    }

    /// Sees to what is due. What happened until the time that is returned is to be released, if any.
    pub(super) fn take_in(&mut self, due: Due) -> Option<Timestamp> {
        let until = now();
        match due {
            Due::Buffers => {
                // A process may be gone in a moment: look at once.
                let calls = self.drain();
                if let Some(attached) = self.collector.attached() {
                    self.walk.hurry(attached);
                }
                (calls >= MANY_CALLS).then_some(until)
            }
            Due::Answers => {
                self.answer();
                None
            }
            Due::Tick => {
                self.collector.extras(until);
                self.drain();
                self.answer();
                if let Some(attached) = self.collector.attached() {
                    self.walk.trace(attached);
                }
                if let Some(probe) = self.collector.probe() {
                    self.walk.tick(probe);
                }
                Some(until)
            }
        }
    }

    /// Makes batches of what happened until a time that [`Session::take_in`] gave, or of all that was
    /// taken in, and hands them over.
    pub(super) fn pass(&mut self, until: Option<Timestamp>, consumer: &mut impl Consumer) {
        if consumer.wants_new_epoch() {
            self.walk.resolver_mut().begin_epoch();
        }
        while let Some(spare) = consumer.spare() {
            self.walk.resolver_mut().reuse(spare);
        }
        let released = self.collector.release(until);
        self.resolve(released);
        if until.is_none() {
            self.walk.give_rest();
        }
        self.hand_over(consumer);
    }

    fn resolve(&mut self, mut released: Vec<RawEvent>) {
        let taken_out = self.walk.sift(&mut released, self.collector.probe());
        self.counts.samples = self.counts.samples.saturating_sub(taken_out);
        let mut rest = released.drain(..);
        loop {
            self.walk.take(rest.by_ref().take(AT_ONCE));
            if rest.len() == 0 {
                break;
            }
            self.close_if_over();
            // While there is other work, only if they do not bear waiting.
            if self.collector.is_awake() {
                self.drain();
            }
        }
        drop(rest);
        self.walk.give(self.collector.probe());
        self.collector.reuse(released);
    }

    /// Hands over the batches that were made since the last time.
    fn hand_over(&mut self, consumer: &mut impl Consumer) {
        for batch in self.walk.batches() {
            self.counts.batch(&batch);
            self.counts.dropped += consumer.send(batch);
        }
    }

    /// From now on nothing is recorded but what processes and threads become, until
    /// [`Session::resume`]. What happened before is to be released, all of it.
    pub(super) fn suspend(&mut self) {
        if let Some(attached) = self.collector.attached() {
            self.walk.suspend(attached);
        }
        self.drain();
        self.window.suspend(true);
    }

    /// Records again.
    pub(super) fn resume(&mut self) {
        self.drain();
        self.window.suspend(false);
        if let Some(attached) = self.collector.attached() {
            self.walk.resume(attached);
        }
    }

    /// Whether it has lasted so long. As long as what is to be watched does not exist, time stands still. No
    /// call is recorded when that time is over, however much there is to be resolved by then.
    pub(super) fn has_lasted(&mut self, time: Duration) -> bool {
        self.awaited().is_none() && self.window.has_lasted(time)
    }

    fn close_if_over(&mut self) {
        if let Some(probe) = self.collector.probe().filter(|_| self.window.is_over()) {
            self.walk.close(probe);
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
        let Some(probe) = self.collector.probe() else {
            return Ok(None);
        };
        let adjusted = probe.adjust(sampling)?;
        if let Some(hz) = adjusted {
            // The one source that such a probe has.
            self.walk.resolver_mut().set_frequency(0, hz);
        }
        Ok(adjusted)
    }

    /// Asks the resolver, and hands over what it says at once.
    pub(super) fn ask(
        &mut self,
        question: impl FnOnce(&mut Resolver),
        consumer: &mut impl Consumer,
    ) {
        question(self.walk.resolver_mut());
        self.pass_names(consumer);
    }

    /// Hands over names that have been found since the last time.
    pub(super) fn pass_names(&mut self, consumer: &mut impl Consumer) {
        self.walk.find_names();
        self.hand_over(consumer);
    }

    /// What became of traced files since the last call.
    pub(super) fn news(&mut self) -> Vec<News> {
        self.walk.news()
    }

    /// What has ended of what is watched, if that is all of it.
    pub(super) fn gone(&mut self) -> Result<Option<Gone>, Failure> {
        if let Some((pid, status)) = self.command.ended()? {
            self.walk.waited_for(pid, status);
            return Ok(Some(Gone::Command(status)));
        }
        let gone = !self.targets.is_empty() && self.targets.iter().all(Target::has_ended);
        Ok(gone.then_some(Gone::Targets))
    }

    /// Whether there is a command, which runs or did.
    pub(super) fn has_command(&self) -> bool {
        self.command.is_running()
    }

    /// Passes a signal on to the command.
    pub(super) fn signal(&mut self, signal: Signal) -> Result<(), Failure> {
        self.command.signal(signal)
    }

    /// Takes everything out of the kernel, and in what was left there: it is to be released.
    pub(super) fn detach(&mut self) -> Option<TraceSummary> {
        let at = now();
        self.collector.last_extras(at);
        // What has begun and can't be traced any more is to be told of.
        self.drain();
        let mut trace = None;
        if let Some((probe, raw)) = self.collector.attached() {
            probe.losses(at, raw);
            trace = self.walk.finish_trace((&mut *probe, &mut *raw));
            probe.finish_waits(raw);
        }
        self.drain();
        if let Some(probe) = self.collector.probe() {
            self.walk.finish_unwinding(probe);
        }
        // Nothing is left behind in the kernel while consumers are waited for.
        self.collector.detach();
        trace
    }

    /// What the kernel has still not let go of, when all else is done: it is waited for a moment, since
    /// most often nothing is.
    pub(super) fn leaving(&mut self) -> Option<Leaving> {
        self.walk.leaving(Instant::now() + LEAVING_PATIENCE)
    }

    /// Waits for names and hands them over. `left` is told how many are still looked for.
    pub(super) fn await_names(
        &mut self,
        deadline: Duration,
        left: &mut impl FnMut(usize),
        consumer: &mut impl Consumer,
    ) {
        self.walk.await_names(deadline, left);
        self.hand_over(consumer);
    }

    /// What is left of a session that was detached: the command, if it runs on.
    pub(super) fn take_command(&mut self) -> Option<RunningCommand> {
        self.command.take()
    }

    /// While what is returned lives, a signal to end has [`Session::await_names`] wait no longer.
    pub(super) fn be_hurried(&self) -> Option<Impatience> {
        self.walk.be_hurried()
    }

    /// What is left of the processes of a session that was detached: see [`Session::attach_again`].
    pub(super) fn into_known_processes(self) -> KnownProcesses {
        self.walk.into_resolver().into_known_processes()
    }

    /// What is waited for, if nothing that is to be recorded exists yet.
    pub(super) fn awaited(&self) -> Option<&str> {
        self.walk.awaited()
    }

    /// The containers that were recorded, if none of them is there any more.
    pub(super) fn ended_containers(&self) -> Option<&str> {
        self.walk.ended_containers()
    }

    /// How long it has gone on since it began.
    pub(super) fn elapsed(&self) -> Duration {
        self.window.elapsed()
    }

    /// Since when samples and calls count.
    pub(super) fn from(&self) -> Timestamp {
        self.window.from()
    }

    /// What was taken in, and what was lost.
    pub(super) fn counts(&self) -> &Counts {
        &self.counts
    }

    /// How it goes, as people are shown it; `bytes` is what was written.
    pub(super) fn progress(&self, bytes: u64) -> Progress {
        let Counts {
            samples,
            calls,
            lost,
            dropped,
            ..
        } = self.counts;
        Progress {
            elapsed: self.elapsed(),
            samples,
            calls,
            processes: self.counters().processes,
            lost: lost + dropped,
            bytes,
        }
    }

    /// The sources, as really used.
    pub(super) fn sources(&self) -> &[AttachedSource] {
        self.collector.sources()
    }

    /// Kernel memory of maps and buffers.
    pub(super) fn kernel_bytes(&self) -> u64 {
        self.collector.kernel_bytes()
    }

    /// How user stacks were walked by tables, if they were. Known once it has ended.
    pub(super) fn unwound(&self) -> Option<UnwindSummary> {
        self.walk.unwound()
    }

    /// What the resolver says.
    pub(super) fn counters(&self) -> ResolveCounters {
        self.walk.resolver().counters()
    }

    /// What was met of each interpreter.
    pub(super) fn interpreters(&self) -> Vec<InterpreterSummary> {
        self.walk.resolver().interpreters()
    }

    /// Samples whose function has no name, by whose it is.
    pub(super) fn nameless(&self) -> Vec<(Place, NamelessSamples)> {
        self.walk.resolver().nameless()
    }

    /// Takes what is in the kernel's buffers and opens files that may soon be gone; how many calls came.
    fn drain(&mut self) -> u64 {
        let calls = self.collector.drain(&self.window, &mut self.counts);
        let Some((probe, raw)) = self.collector.attached() else {
            return 0;
        };
        self.walk.notice(raw, calls, probe);
        self.collector.sort_in();
        self.see_arrival();
        calls
    }

    /// Takes what is told of containers.
    fn answer(&mut self) {
        self.walk.answer(self.collector.probe());
        self.see_arrival();
    }

    /// Looks what became of containers: there may be one that was waited for.
    fn see_arrival(&mut self) {
        self.window.see_arrival(self.walk.awaited().is_some());
    }
}

/// Waits until it is readable; for ever, if there is none.
async fn readable(fd: Option<&AsyncFd<OwnedFd>>) {
    match fd {
        Some(fd) => {
            if let Ok(mut ready) = fd.ready(tokio::io::Interest::READABLE).await {
                ready.clear_ready();
            }
        }
        None => std::future::pending().await,
    }
}
