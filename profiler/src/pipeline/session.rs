//! A session of the kernel's probes: what drains them, orders and resolves what they saw, follows the
//! targets and the command, and notes losses, markers and the time.
//!
//! [`Prepared`] -> batches for a [`Consumer`]. The driver of the session decides when they are passed on; a
//! session does not know where they go. State is with its parts: `collector` drains and orders, `walk`
//! resolves and tells the probes, `window` says which time counts, `counts` how much was seen, `command` is
//! the program that was started. Times are CLOCK_MONOTONIC; intervals are measured with `Instant`.
//!
//! What does not belong here: consumers of batches, and when a session ends (`record`, `stream`).

mod about;
mod attach;
mod call_counts;
mod collector;
mod command;
mod counts;
mod cuts;
mod own;
mod priority;
mod walk;
mod window;

use std::os::fd::OwnedFd;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tokio::io::unix::AsyncFd;
use tokio::time::Interval;

use crate::error::Failure;
use profiler_model::order::SLACK_NS;
use profiler_model::raw::RawEvent;
use profiler_model::{Consumer, OFF_CPU, Sampling, Timestamp};
use profiler_probe::{AttachedSource, now};
use profiler_report::view::progress::Progress;
use profiler_resolve::{
    InterpreterSummary, KnownProcesses, MemoryOfThreads, NamelessSamples, Place, ResolveCounters,
    Resolver, UnwindSummary,
};
use profiler_target::command::RunningCommand;

pub(super) use counts::Counts;
pub(super) use priority::Priority;

use self::call_counts::CallCounts;
use self::collector::Collector;
use self::command::Command;
use self::cuts::{Border, Cut, Cuts};
use self::walk::Walk;
use self::window::Window;
use super::signals::{Impatience, end_is_wanted, unless_given_up};
use super::targets::Target;
use super::tracer::{Leaving, News, TraceSummary};

/// Interval in which batches are passed on.
pub(super) const TICK: Duration = Duration::from_millis(100);
/// Interval in which the buffers are drained while a program is about to start that is to be traced from its
/// first instruction.
const HURRY: Duration = Duration::from_millis(1);
/// Interval in which the buffers are drained while unwind tables are being built.
const TABLES_TICK: Duration = Duration::from_millis(5);
/// Number of events that are resolved before the buffers are drained again if they need it: a new process
/// may be gone in a moment.
const AT_ONCE: usize = 256;
/// Events that are held back for names at a cut.
const MOST_HELD_BACK: usize = 1 << 17;
/// With so many calls in a drain, batches are passed on without waiting for the tick: memory that was just
/// written is read faster.
const MANY_CALLS: u64 = 4096;
/// How long the kernel may take to detach probes after everything else is done, before the user is told.
const LEAVING_PATIENCE: Duration = Duration::from_millis(500);

/// A running session; it routes among the parts that own its state.
pub(super) struct Session {
    collector: Collector,
    walk: Walk,
    window: Window,
    counts: Counts,
    cuts: Cuts,
    call_counts: CallCounts,
    command: Command,
    /// The processes and threads that were named.
    targets: Vec<Target>,
    /// Readable when the kernel's buffers have to be drained before the next tick.
    wake: AsyncFd<OwnedFd>,
    /// Readable when an engine has described containers.
    answers: Option<AsyncFd<OwnedFd>>,
    tick: Interval,
}

/// What a session has to look at next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Due {
    /// The kernel's buffers.
    Buffers,
    /// Descriptions of containers, which engines were asked for.
    Answers,
    /// What was left out at the beginning is over.
    Opening,
    /// Everything: the interval is over.
    Tick,
}

/// Why there is nothing left to watch.
#[derive(Debug)]
pub(super) enum Gone {
    /// The command has ended.
    Command(ExitStatus),
    /// All processes and threads that were named have ended.
    Targets,
}

impl Session {
    /// Lets the command run; time counts from now on.
    pub(super) fn begin(&mut self) -> Result<(), Failure> {
        if let Some((probe, raw)) = self.collector.attached() {
            // Without that, they count from their next wait on.
            let mut memory = MemoryOfThreads::default();
            let mut read = |pid, tid, address, len| memory.read(pid, tid, address, len);
            let passed_over = self.command.about_to_run();
            if let Err(error) = probe.begin_waits(passed_over, &mut read, raw) {
                log::warn!("threads that wait already are not known: {error}");
            }
        }
        self.cut_at_beginning();
        if self.command.about_to_run().is_some() {
            unless_given_up()?;
        }
        self.command.run()?;
        self.window.count();
        self.say_when_it_begins();
        Ok(())
    }

    /// Waits count from now on: who waited already has no part of the time in which all was made ready, and who waits
    /// since then has no more than others.
    fn cut_at_beginning(&mut self) {
        // What calls are counted from is when their probes were attached.
        if self.has_waits()
            && !self.walk.traces()
            && let Some(at) = self.window.begin()
        {
            let border = Border::Beginning;
            self.begin_cut(Cut { at, border });
        }
    }

    /// What was left out at the beginning is over: waits and calls count from now on as well.
    fn open(&mut self) {
        let at = self.window.open();
        if self.has_waits() {
            let border = Border::Beginning;
            self.begin_cut(Cut { at, border });
        }
        if let Some(probe) = self.collector.probe() {
            self.walk.begin_counts(probe);
        }
        self.say_when_it_begins();
    }

    fn has_waits(&self) -> bool {
        let mut sources = self.collector.sources().iter();
        sources.any(|source| source.name == OFF_CPU)
    }

    /// Waits until something is due. The future may be dropped while it waits.
    pub(super) async fn due(&mut self) -> Due {
        let (opening, end) = (self.window.opens_at(), self.window.ends_at());
        tokio::select! {
            () = sleep_until(opening) => Due::Opening,
            () = sleep_until(end), if self.awaited().is_none() => Due::Tick,
            () = readable(Some(&self.wake)) => Due::Buffers,
            () = readable(self.answers.as_ref()) => Due::Answers,
            _ = self.tick.tick() => Due::Tick,
            () = tokio::time::sleep(HURRY), if self.walk.is_in_a_hurry() => Due::Buffers,
            () = tokio::time::sleep(TABLES_TICK), if self.walk.builds() => Due::Buffers,
        }
    }

    /// Does what is due. If it returns a time, [`Session::pass`] is to be called with it.
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
            Due::Opening => {
                // What came before is to be left out.
                self.drain();
                self.open();
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

    /// Takes in all that has happened up to now, and what is missing of it, also where that goes on: for somebody who will
    /// not be told later.
    pub(super) fn take_in_all(&mut self) {
        let at = now();
        self.collector.losses(at);
        if let Some((_, raw)) = self.collector.attached() {
            self.walk.tell_missing(at, raw);
        }
        // Nothing that happened before that is drained later.
        self.take_in(Due::Buffers);
    }

    /// Makes batches of all events up to `until`, a time that [`Session::take_in`] returned, and hands them
    /// over. `None` means all events that were drained.
    pub(super) fn pass(&mut self, until: Option<Timestamp>, consumer: &mut impl Consumer) {
        self.pass_within(until, Duration::MAX, consumer);
    }

    /// The same of all events that were drained; those that wait for an unwind table do so no longer than that.
    pub(super) fn pass_rest(&mut self, patience: Duration, consumer: &mut impl Consumer) {
        self.pass_within(None, patience, consumer);
    }

    fn pass_within(
        &mut self,
        until: Option<Timestamp>,
        patience: Duration,
        consumer: &mut impl Consumer,
    ) {
        self.end_part(until, consumer);
        while let Some(spare) = consumer.spare() {
            self.walk.resolver_mut().reuse(spare);
        }
        if let Some(at) = until.filter(|&at| consumer.wants_waits(at)) {
            self.tell_waits(at);
        }
        let is_held = until.is_some_and(|until| self.holds(until));
        if is_held {
            self.walk.find_names();
        } else {
            let released = self.collector.release(until);
            self.resolve_parts(released, consumer);
        }
        if until.is_none() {
            self.walk.give_rest(patience);
        }
        self.hand_over(consumer);
        if let Some(until) = until.filter(|_| !is_held && !self.walk.is_behind()) {
            consumer.has_all(Timestamp(until.0.saturating_sub(SLACK_NS)));
        }
    }

    /// Ends an epoch, or what else is to stand alone, if that is due: a consumer of parts has the waits that go on told first.
    fn end_part(&mut self, until: Option<Timestamp>, consumer: &mut impl Consumer) {
        if self.cuts.is_pending() {
            return;
        }
        let has_parts = consumer.has_parts();
        let resolver = self.walk.resolver_mut();
        resolver.begin_epochs_on_demand(has_parts);
        let is_full = consumer.wants_new_epoch() || resolver.wants_epoch();
        let ends_epoch = is_full && !(has_parts && resolver.is_epoch_to_begin());
        if !ends_epoch && !consumer.wants_cut() {
            return;
        }
        if has_parts {
            // At the end all is told anyway.
            let Some(at) = until else {
                return;
            };
            let border = match ends_epoch {
                true => Border::Epoch,
                false => Border::Part,
            };
            if self.begin_cut(Cut { at, border }) {
                return;
            }
        }
        if ends_epoch {
            self.walk.resolver_mut().begin_epoch();
        }
        consumer.has_cut();
    }

    /// Whether a cut has events up to that time held back. Names are waited for as long as there is room for what happens
    /// meanwhile.
    fn holds(&self, until: Timestamp) -> bool {
        self.cuts.holds(until, || {
            let has_room = self.collector.held_back() < MOST_HELD_BACK;
            has_room && self.has_waits() && self.counters().frames_waiting > 0
        })
    }

    /// Takes in what was waited up to a cut, and what was called; false if that is not recorded.
    fn begin_cut(&mut self, cut: Cut) -> bool {
        let Some((probe, raw)) = self.collector.attached() else {
            return false;
        };
        let mut told = Vec::new();
        let is_told = probe.tell_waits_up_to(cut.at, &mut told);
        let has_waits = is_told.unwrap_or_else(|error| {
            log::warn!("waits that go on are told with a later part: {error}");
            false
        });
        let has_calls = cut.border != Border::Beginning && self.walk.traces();
        if !has_waits && !has_calls {
            return false;
        }
        if has_calls {
            self.walk.tell_counts((&mut *probe, &mut *raw));
        }
        self.cuts.begin(cut, &told, now());
        if cut.border != Border::Beginning {
            // What is not known now has no names.
            self.walk.resolver_mut().expect_waits(&told);
        }
        raw.append(&mut told);
        self.drain();
        true
    }

    /// Resolves events, and hands over those before a cut by themselves.
    fn resolve_parts(&mut self, mut released: Vec<RawEvent>, consumer: &mut impl Consumer) {
        if let Some((cut, before)) = self.cuts.apply(&mut released) {
            let mut behind = released.split_off(before);
            match cut.border {
                Border::Beginning => {
                    self.call_counts.tell(&mut released, false);
                    self.call_counts.tell(&mut behind, false);
                }
                Border::Part | Border::Epoch => {
                    self.call_counts.cut(cut.at, &mut released, &mut behind);
                }
            }
            self.resolve(std::mem::replace(&mut released, behind));
            if cut.border == Border::Epoch {
                self.walk.resolver_mut().begin_epoch_after(cut.at);
            }
            self.hand_over(consumer);
            if cut.border != Border::Beginning {
                consumer.has_cut();
            }
        } else {
            let all = self.collector.probe().is_none();
            self.call_counts.tell(&mut released, all);
        }
        self.resolve(released);
    }

    /// Takes in the waits that go on at that time.
    fn tell_waits(&mut self, at: Timestamp) {
        if let Some((probe, raw)) = self.collector.attached()
            && let Err(error) = probe.tell_waits(at, raw)
        {
            log::debug!("the waits that go on could not be read: {error}");
        }
        self.drain();
    }

    fn resolve(&mut self, mut released: Vec<RawEvent>) {
        let taken_out = self.walk.sift(&mut released, self.collector.probe());
        self.counts.samples = self.counts.samples.saturating_sub(taken_out);
        let mut rest = released.drain(..);
        let mut at_once = AT_ONCE;
        loop {
            self.walk.take(rest.by_ref().take(at_once));
            if rest.len() == 0 {
                break;
            }
            self.close_if_over();
            // Events are left to resolve: only if the buffers can't wait for the next tick. No more may come in than go
            // out: what finds no room in the buffers meanwhile is counted there.
            at_once = AT_ONCE;
            if self.collector.is_awake() {
                let before = self.collector.held_back();
                self.drain();
                at_once = at_once.max(self.collector.held_back().saturating_sub(before));
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

    /// Stops recording until [`Session::resume`]; only processes and threads are still followed. The caller
    /// then passes on all that happened before.
    pub(super) fn suspend(&mut self) {
        if let Some(attached) = self.collector.attached() {
            self.walk.suspend(attached);
        }
        self.drain();
        self.window.suspend(true);
    }

    /// Goes on recording.
    pub(super) fn resume(&mut self) {
        self.drain();
        self.window.suspend(false);
        if let Some(attached) = self.collector.attached() {
            self.walk.resume(attached);
        }
    }

    /// The recording is to last so long, or until something else ends it. Time does not count while the target does
    /// not exist yet.
    pub(super) fn last(&mut self, time: Option<Duration>) {
        self.window.last(time);
    }

    /// Whether it has lasted as long as it was to. No call is recorded after that time, however many events are left to
    /// resolve.
    pub(super) fn is_over(&self) -> bool {
        self.awaited().is_none() && self.window.is_over()
    }

    fn close_if_over(&mut self) {
        // A command is given the signal, and goes on as long as it wants.
        let is_over = self.window.is_over() || (end_is_wanted() && !self.command.is_running());
        if let Some(probe) = self.collector.probe().filter(|_| is_over) {
            self.walk.close(probe);
        }
    }

    /// Changes what is sampled (`None`: nothing), and returns the frequency that was really set. Batches of
    /// what happened before are handed over first. The probe must be adjustable.
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

    /// Asks the resolver a question, and hands over its answer without waiting for the next tick.
    pub(super) fn ask(
        &mut self,
        question: impl FnOnce(&mut Resolver),
        consumer: &mut impl Consumer,
    ) {
        question(self.walk.resolver_mut());
        self.pass_names(consumer);
    }

    /// Hands over the names that were found since the last call.
    pub(super) fn pass_names(&mut self, consumer: &mut impl Consumer) {
        self.walk.find_names();
        self.hand_over(consumer);
    }

    /// What happened to traced files since the last call.
    pub(super) fn news(&mut self) -> Vec<News> {
        self.walk.news()
    }

    /// Why there is nothing left to watch; none while there is something.
    pub(super) fn gone(&mut self) -> Result<Option<Gone>, Failure> {
        if let Some((pid, status)) = self.command.ended()? {
            self.walk.waited_for(pid, status);
            return Ok(Some(Gone::Command(status)));
        }
        let gone = !self.targets.is_empty() && self.targets.iter().all(Target::has_ended);
        Ok(gone.then_some(Gone::Targets))
    }

    /// Whether the session has a command, running or ended.
    pub(super) fn has_command(&self) -> bool {
        self.command.is_running()
    }

    /// Passes a signal on to the command.
    pub(super) fn signal(&mut self, signal: Signal) -> Result<(), Failure> {
        self.command.signal(signal)
    }

    /// Detaches all probes, after draining them a last time: [`Session::pass`] then makes batches of the rest.
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
        // Consumers may take long: the kernel is clean before they are waited for.
        self.collector.detach();
        trace
    }

    /// The probes that the kernel has not detached yet, after waiting [`LEAVING_PATIENCE`] for them.
    pub(super) fn leaving(&mut self) -> Option<Leaving> {
        self.walk.leaving(Instant::now() + LEAVING_PATIENCE)
    }

    /// Waits for names, at most for `deadline`, and hands them over. `left` is called with the number of
    /// names that are still looked for.
    pub(super) fn await_names(
        &mut self,
        deadline: Duration,
        left: &mut impl FnMut(usize),
        consumer: &mut impl Consumer,
    ) {
        self.walk.await_names(deadline, left);
        self.hand_over(consumer);
    }

    /// Takes the command of a detached session, if it still runs.
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
            ref lost,
            dropped,
            ..
        } = self.counts;
        Progress {
            elapsed: self.elapsed(),
            samples,
            calls,
            processes: self.counters().processes,
            lost: lost.samples() + dropped,
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
        if self.window.see_arrival(self.walk.awaited().is_some()) {
            self.say_when_it_begins();
        }
    }

    /// What is left out at the beginning is no part of the time that was recorded.
    fn say_when_it_begins(&mut self) {
        if let Some(from) = self.window.counts_from() {
            self.walk.resolver_mut().begin_at(from);
        }
    }
}

/// Waits until then; for ever, if there is no such time.
async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at.into()).await,
        None => std::future::pending().await,
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
