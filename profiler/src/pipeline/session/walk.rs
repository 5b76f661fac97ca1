//! What a session makes of raw events: processes, containers, probes and unwind tables are followed, and
//! batches come of it.
//!
//! Raw events, at first as they come, then in order -> [`Batch`]es; what the kernel side is to know of processes
//! -> the probe. What does not belong here: where raw events come from (`collector`), where batches go.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::pipeline::containers::Containers;
use crate::pipeline::scope::Scope;
use crate::pipeline::signals::Impatience;
use crate::pipeline::tracer::{Leaving, News, TraceSummary, Tracer};
use profiler_model::raw::{RawBody, RawEvent};
use profiler_model::{Batch, Pid, Timestamp};
use profiler_probe::{Probe, Unwinder};
use profiler_resolve::{Resolver, UnwindSummary};

/// How long files of what runs already are waited for that are not open at once.
const FILES: Duration = Duration::from_millis(250);

/// From raw events to batches: the resolver and all who follow events beside it.
pub(super) struct Walk {
    resolver: Box<Resolver>,
    scope: Scope,
    /// The same for what has not been ordered yet. It may miss a child whose fork comes out of a
    /// buffer that was drained a moment too early; then its files are opened only when they are
    /// needed, and nothing is left out.
    early_scope: Scope,
    /// None if there are no cgroups here.
    containers: Option<Box<Containers>>,
    tracer: Option<Box<Tracer>>,
    /// How stacks were walked by tables, once the probes are gone.
    unwound: Option<UnwindSummary>,
    warned_of_stacks: bool,
    batches: Vec<Batch>,
}

impl Walk {
    /// Begins with what runs at this time, and tells the probe of it. `about_to_run` is a command that does not
    /// run yet. What is recorded while that takes its time is drained into `raw`, else buffers would fill: until tables
    /// are there stacks come with copies.
    pub(super) fn begin(
        resolver: Box<Resolver>,
        scope: Scope,
        containers: Option<Box<Containers>>,
        tracer: Option<Box<Tracer>>,
        about_to_run: Option<Pid>,
        (at, probe, raw): (Timestamp, &mut Probe, &mut Vec<RawEvent>),
    ) -> Result<Walk, crate::error::Failure> {
        let mut walk = Walk {
            resolver,
            early_scope: scope.clone(),
            scope,
            containers,
            tracer,
            unwound: None,
            warned_of_stacks: false,
            batches: Vec::new(),
        };
        walk.look_around(at, &mut || make_room(probe, raw));
        if walk.resolver.awaits_files() {
            // Of most, which lie on this machine, there are tables from the beginning then.
            walk.resolver
                .await_late_files(FILES, &mut || make_room(probe, raw));
        }
        walk.tell_interpreters(probe);
        if let Some(tracer) = &mut walk.tracer {
            tracer.attach_all(probe, &mut walk.resolver)?;
            make_room(probe, raw);
        }
        if let Some(unwinder) = probe.unwinder() {
            walk.begin_unwinding(about_to_run, unwinder);
            make_room(probe, raw);
        }
        Ok(walk)
    }

    /// Reads the processes that run already.
    fn look_around(&mut self, at: Timestamp, between: &mut dyn FnMut()) {
        let resolver = &mut self.resolver;
        let inside = self.containers.as_deref().and_then(Containers::pids);
        match (self.scope.pids(), inside) {
            (pids, Some(mut inside)) => {
                if let Some(pids) = pids {
                    inside.retain(|pid| pids.contains(pid));
                }
                resolver.limit();
                resolver.snapshot_of(&inside, at);
            }
            (Some(pids), None) => resolver.snapshot_of(&pids, at),
            (None, None) => resolver.snapshot_between(at, between),
        }
    }

    fn begin_unwinding(&mut self, about_to_run: Option<Pid>, unwinder: &mut Unwinder) {
        let inside = self.containers.as_deref().and_then(Containers::pids);
        let mut named = inside.or(self.scope.pids());
        if let (Some(named), Some(command)) = (&mut named, about_to_run) {
            // It is a copy of this process until it runs.
            named.retain(|pid| *pid != command);
        }
        self.resolver.begin_tables(named.as_deref(), unwinder);
    }

    /// Looks at what was just taken in, among it so many calls: opens files that may soon be gone.
    pub(super) fn notice(&mut self, raw: &[RawEvent], calls: u64, probe: &mut Probe) {
        if let Some(tracer) = &mut self.tracer {
            tracer.remember(if calls > 0 { raw } else { &[] });
        }
        self.resolver.notice_losses(raw);
        self.resolver.notice_late_files();
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
        let mut changes: Vec<&RawEvent> = raw.iter().filter(|event| !hits(event)).collect();
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
            self.resolver.bring_tables(raw, unwinder);
        }
        for event in raw
            .iter()
            .filter(|event| !matches!(event.body, RawBody::Call(_)))
        {
            self.resolver.notice_interpreted(event);
        }
        self.tell_interpreters(probe);
    }

    /// Tells the kernel side which processes run interpreters.
    fn tell_interpreters(&mut self, probe: &mut Probe) {
        for change in self.resolver.take_interpreter_changes() {
            if let Err(error) = probe.set_interpreter(change.pid, change.interpreter, change.runs) {
                log::debug!("pid {}: {error}", change.pid);
            }
        }
    }

    /// What is done now and then: room for unwind tables that was given back becomes free.
    pub(super) fn tick(&mut self, probe: &mut Probe) {
        if let Some(unwinder) = probe.unwinder() {
            self.resolver.tend_tables(unwinder);
        }
    }

    /// Whether unwind tables are being built, or files opened, which is told by nobody.
    pub(super) fn builds(&self) -> bool {
        self.resolver.builds_tables() || self.resolver.awaits_files()
    }

    /// Whether events that were taken wait for something.
    pub(super) fn is_behind(&self) -> bool {
        self.resolver.holds_events()
    }

    /// Takes what is told of containers.
    pub(super) fn answer(&mut self, probe: Option<&mut Probe>) {
        if let Some(containers) = &mut self.containers {
            containers.answer(probe, &mut self.resolver);
        }
    }

    /// What is waited for, if nothing that is to be recorded exists yet.
    pub(super) fn awaited(&self) -> Option<&str> {
        self.containers.as_deref()?.awaited()
    }

    /// The containers that were recorded, if none of them is there any more.
    pub(super) fn ended_containers(&self) -> Option<&str> {
        self.containers.as_deref()?.ended()
    }

    /// Takes out what is of others; how many samples of those that were taken in.
    pub(super) fn sift(&mut self, events: &mut Vec<RawEvent>, probe: Option<&mut Probe>) -> u64 {
        let taken_out = self
            .containers
            .as_mut()
            .map_or(0, |containers| match probe {
                Some(probe) => containers.pass(events, false, Some(probe)),
                None => containers.settle(events, &mut self.resolver),
            });
        self.scope.retain(events);
        taken_out
    }

    /// Makes batches of some events, which are in order.
    pub(super) fn take(&mut self, events: impl Iterator<Item = RawEvent>) {
        self.resolver.take(events, &mut self.batches);
        // Engines forget what has been removed: they are asked before the rest is resolved.
        if let Some(containers) = &mut self.containers {
            containers.feed(&mut self.resolver);
        }
    }

    /// All that was taken is in batches now, and names that were found meanwhile.
    pub(super) fn give(&mut self, probe: Option<&mut Probe>) {
        self.resolver.give(&mut self.batches);
        if let Some(probe) = probe.filter(|_| self.resolver.has_forgotten_stacks()) {
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
    }

    /// What waits for unwind tables does so no longer than that.
    pub(super) fn give_rest(&mut self, patience: Duration) {
        self.resolver.await_tables(patience, &mut self.batches);
        self.resolver.give(&mut self.batches);
    }

    /// Waits for names. `left` is told how many are still looked for.
    pub(super) fn await_names(&mut self, deadline: Duration, left: &mut impl FnMut(usize)) {
        if let Some(containers) = &mut self.containers {
            containers.describe_rest(&mut self.resolver);
        }
        self.resolver.finish(deadline, left, &mut self.batches);
    }

    /// While what is returned lives, a signal to end has [`Walk::await_names`] wait no longer.
    pub(super) fn be_hurried(&self) -> Option<Impatience> {
        let hurried = self.resolver.hurried();
        let watched = Impatience::watch(move |_| hurried.store(true, Ordering::Relaxed));
        let unheard = |error: &io::Error| log::debug!("signals are not listened to: {error}");
        watched.inspect_err(unheard).ok()
    }

    /// The batches that were made since the last time.
    pub(super) fn batches(&mut self) -> impl Iterator<Item = Batch> {
        self.batches.drain(..)
    }

    /// Names that have been found since the last time become a batch.
    pub(super) fn find_names(&mut self) {
        self.resolver.poll_symbols(&mut self.batches);
    }

    pub(super) fn resolver(&self) -> &Resolver {
        &self.resolver
    }

    pub(super) fn resolver_mut(&mut self) -> &mut Resolver {
        &mut self.resolver
    }

    pub(super) fn into_resolver(self) -> Box<Resolver> {
        self.resolver
    }

    /// Attaches probes to what is new, keeps their budget.
    pub(super) fn trace(&mut self, (probe, raw): (&mut Probe, &mut Vec<RawEvent>)) {
        if let Some(tracer) = &mut self.tracer {
            tracer.step(probe, &mut self.resolver, raw);
        }
    }

    /// What was left out at the beginning is over.
    pub(super) fn begin_counts(&mut self, probe: &mut Probe) {
        if let Some(tracer) = &mut self.tracer {
            tracer.begin_counts(probe);
        }
    }

    /// Whether calls are traced.
    pub(super) fn traces(&self) -> bool {
        self.tracer.is_some()
    }

    /// Whether a program is about to be started, and is to be traced from its first instruction.
    pub(super) fn is_in_a_hurry(&self) -> bool {
        self.tracer.as_deref().is_some_and(Tracer::is_in_a_hurry)
    }

    /// Attaches probes to what is about to run.
    pub(super) fn hurry(&mut self, (probe, raw): (&mut Probe, &mut Vec<RawEvent>)) {
        if let Some(tracer) = self.tracer.as_mut().filter(|tracer| tracer.is_in_a_hurry()) {
            tracer.hurry(probe, &mut self.resolver, raw);
        }
    }

    /// No calls are traced until [`Walk::resume`].
    pub(super) fn suspend(&mut self, (probe, raw): (&mut Probe, &mut Vec<RawEvent>)) {
        if let Some(tracer) = &mut self.tracer {
            tracer.suspend(probe, raw);
        }
    }

    /// They are traced again.
    pub(super) fn resume(&mut self, (probe, raw): (&mut Probe, &mut Vec<RawEvent>)) {
        if let Some(tracer) = &mut self.tracer {
            tracer.resume(probe, raw);
        }
    }

    /// Tells what is missing of calls up to now, though it goes on.
    pub(super) fn tell_missing(&mut self, at: Timestamp, raw: &mut Vec<RawEvent>) {
        if let Some(tracer) = &mut self.tracer {
            tracer.tell_missing(at, raw);
        }
    }

    /// Tells what was counted of calls up to now.
    pub(super) fn tell_counts(&mut self, (probe, raw): (&mut Probe, &mut Vec<RawEvent>)) {
        if let Some(tracer) = &mut self.tracer {
            tracer.tell_counts(probe, raw);
        }
    }

    /// No call is wanted any more.
    pub(super) fn close(&mut self, probe: &mut Probe) {
        if let Some(tracer) = &mut self.tracer {
            tracer.close(probe);
        }
    }

    /// What became of traced files since the last call.
    pub(super) fn news(&mut self) -> Vec<News> {
        self.tracer
            .as_deref_mut()
            .map_or_else(Vec::new, Tracer::news)
    }

    /// The command was waited for, and has ended so.
    pub(super) fn waited_for(&mut self, command: Pid, status: ExitStatus) {
        if let Some(tracer) = &mut self.tracer {
            tracer.waited_for(command, status.into_raw());
        }
    }

    /// Takes the tracing out of the kernel; what became of it.
    pub(super) fn finish_trace(
        &mut self,
        (probe, raw): (&mut Probe, &mut Vec<RawEvent>),
    ) -> Option<TraceSummary> {
        let tracer = self.tracer.as_mut()?;
        Some(tracer.finish(probe, raw))
    }

    /// What the kernel has still not let go of until then.
    pub(super) fn leaving(&mut self, until: Instant) -> Option<Leaving> {
        self.tracer.as_mut()?.leaving(until)
    }

    /// Sums up how stacks were walked by tables, before the probe goes.
    pub(super) fn finish_unwinding(&mut self, probe: &mut Probe) {
        let unwinder = probe.unwinder();
        self.unwound = unwinder.map(|of| self.resolver.unwind_summary(of));
    }

    /// How user stacks were walked by tables, if they were. Known once it has ended.
    pub(super) fn unwound(&self) -> Option<UnwindSummary> {
        self.unwound
    }
}

/// Drains buffers that do not bear waiting.
fn make_room(probe: &mut Probe, raw: &mut Vec<RawEvent>) {
    if probe.is_awake() {
        probe.drain(raw);
    }
}
