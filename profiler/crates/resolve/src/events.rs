//! How [`Resolver`] handles an event: first as soon as it is drained, then in the order of time.
//!
//! Raw events -> calls of the parts that own what they change. If an event waits for an unwind table, all
//! events behind it wait too.
//!
//! What does not belong here: what those parts know.

use std::time::{Duration, Instant};

use super::calls::Place;
use super::frames::Frames;
use super::late_files::LateFile;
use super::modules::NotYet;
use super::process::ProcessTable;
use super::processes::idle_comm;
use super::stacks::before_gap;
use super::unwinding::{Opener, PATIENCE};
use super::wait_stacks::{end_without, wait_of};
use super::{Batch, Pid, RawEvent, Resolver, Timestamp};
use profiler_model::raw::{
    Comm, RawBody, RawCall, RawGap, RawInterpreted, RawSample, RawStack, RawWait, RawWaits,
};
use profiler_model::{
    Clock, Cpu, Event, GapReason, LostReason, Mark, Sample, StackEnd, StackId, Tid, Waits,
};

/// How often it is looked whether a file is open by now, where there is nothing else to do.
const GLANCE: Duration = Duration::from_millis(5);

impl Resolver {
    /// Looks at an event as soon as it is drained, before it is resolved: opens the file of a new mapping
    /// and reads what describes a new program, while the process still exists.
    pub fn notice(&mut self, event: &RawEvent) {
        self.mapped.modules.come_to(event.at);
        self.mapped.interpreters.follow(event);
        self.processes.notice(event);
        if let RawBody::Mmap(mmap) = &event.body
            && let Err(NotYet) = self.mapped.notice(mmap, false, &mut self.processes)
        {
            let (event, is_mapped) = (event.clone(), false);
            self.mapped.put_off(LateFile { event, is_mapped });
        }
        self.follow(event);
    }

    /// Looks at mappings once more whose files were not open when they were noticed.
    pub fn notice_late_files(&mut self) {
        if self.mapped.late.is_empty() || !self.mapped.modules.look_at_slow() {
            return;
        }
        let mut late = self.mapped.late.take();
        late.retain(|late| {
            let RawBody::Mmap(mmap) = &late.event.body else {
                return false;
            };
            if let Err(NotYet) = self.mapped.notice(mmap, true, &mut self.processes) {
                return true;
            }
            if late.is_mapped {
                let at = late.event.at;
                self.processes.mapped_late(at, mmap, &mut self.mapped);
            }
            self.follow(&late.event);
            false
        });
        self.mapped.late.put_back(late);
    }

    /// Waits so long at the most for files that are not open yet: for whoever has nothing else to do than what is
    /// done meanwhile, again and again.
    pub fn await_late_files(&mut self, patience: Duration, meanwhile: &mut dyn FnMut()) {
        let until = Instant::now() + patience;
        while self.awaits_files() && Instant::now() < until {
            std::thread::sleep(GLANCE);
            meanwhile();
            self.notice_late_files();
        }
    }

    /// Whether some files are not open yet.
    pub fn awaits_files(&self) -> bool {
        !self.mapped.late.is_empty()
    }

    fn follow(&mut self, event: &RawEvent) {
        let mut opener = Opener {
            modules: &mut self.mapped.modules,
            processes: &mut self.processes,
        };
        self.mapped.unwinding.follow(event, &mut opener);
    }

    /// Looks at an event as soon as it is drained: reads the names of an interpreter's frames from the
    /// process's memory, while the process still exists.
    pub fn notice_interpreted(&mut self, event: &RawEvent) {
        if self.mapped.interpreters.read_names(event) {
            self.waits.lack_names();
        }
    }

    /// Looks at all that was drained at a time, records of each processor in their order: when some of calls were lost.
    pub fn notice_losses(&mut self, drained: &[RawEvent]) {
        self.calls.notice(drained);
    }

    /// Resolves events, which are ordered by time, and leaves `events` empty. Gives one batch, or more if
    /// an epoch ends between two events.
    pub fn resolve(&mut self, events: &mut Vec<RawEvent>, out: &mut Vec<Batch>) {
        self.take(events.drain(..), out);
        self.give(out);
    }

    /// The first half of [`Resolver::resolve`], for callers that do other work between some events and the
    /// next. Gives the batches of epochs that end between two of these events; [`Resolver::give`] the rest.
    pub fn take(&mut self, events: impl Iterator<Item = RawEvent>, out: &mut Vec<Batch>) {
        let mut last = None;
        for event in events {
            last = Some(event.at);
            self.event_or_hold(event, out);
        }
        if let Some(last) = last {
            self.last_event = (last, Instant::now());
        }
    }

    /// The second half: gives the batch of the events that were taken, except those that wait for unwind
    /// tables.
    pub fn give(&mut self, out: &mut Vec<Batch>) {
        self.release_held(out);
        self.calls
            .tell_unmatched(self.last_event.0, &mut self.epoch);
        self.epoch.flush(out);
        self.naming.send();
    }

    /// Whether events wait for unwind tables, or the files of mappings.
    pub fn holds_events(&self) -> bool {
        !self.mapped.unwinding.held.is_empty()
    }

    /// Waits so long at the most, and no longer than an event may wait, for the tables that held events need, and
    /// resolves them all.
    pub fn await_tables(&mut self, patience: Duration, out: &mut Vec<Batch>) {
        let patience = patience.min(PATIENCE);
        let until = Instant::now() + patience;
        self.await_late_files(patience, &mut || ());
        loop {
            self.release_held(out);
            let mut opener = Opener {
                modules: &mut self.mapped.modules,
                processes: &mut self.processes,
            };
            if !self.mapped.unwinding.wait(until, &mut opener) {
                break;
            }
        }
        while let Some(mut event) = self.mapped.unwinding.held.pop() {
            self.complete(&mut event, true);
            self.resolve_now(event, out);
        }
    }

    /// Resolves an event, or holds it if it has to wait for a table.
    fn event_or_hold(&mut self, mut event: RawEvent, out: &mut Vec<Batch>) {
        if !self.mapped.unwinding.held.is_empty() || !self.complete(&mut event, false) {
            self.mapped.unwinding.held.push(event);
            return;
        }
        self.resolve_now(event, out);
    }

    fn resolve_now(&mut self, event: RawEvent, out: &mut Vec<Batch>) {
        self.mapped.unwinding.follow_turn(&event);
        self.turn_epoch(event.at, out);
        self.event(event);
    }

    /// Resolves the held events that need not wait any longer.
    fn release_held(&mut self, out: &mut Vec<Batch>) {
        self.notice_late_files();
        while let Some(mut event) = self.mapped.unwinding.held.pop() {
            let full = self.mapped.unwinding.held.is_full();
            if !self.complete(&mut event, full) {
                self.mapped.unwinding.held.put_back(event);
                break;
            }
            self.resolve_now(event, out);
        }
    }

    /// Corrects and completes an event's user stack; false: a table is being built or a file is not open yet, and the
    /// event has to wait. With `at_once` it does without.
    fn complete(&mut self, event: &mut RawEvent, at_once: bool) -> bool {
        if self.mapped.late.holds(event) {
            return at_once;
        }
        let has_vdso = self.mapped.modules.has_vdso();
        let table = &self.processes.table;
        let Some(id) = self.mapped.unwinding.correct(event, has_vdso, table) else {
            return true;
        };
        let mapped = &mut self.mapped;
        match &event.body {
            RawBody::Sample(sample) => {
                self.processes.meet(id, sample.comm, event.at, 0, mapped);
            }
            _ => self.processes.meet_unnamed(event.at, id, mapped),
        }
        let mut opener = Opener {
            modules: &mut mapped.modules,
            processes: &mut self.processes,
        };
        mapped.unwinding.complete(event, at_once, &mut opener)
    }

    pub(super) fn event(&mut self, event: RawEvent) {
        let (at, cpu) = (event.at, event.cpu);
        let (mapped, epoch) = (&mut self.mapped, &mut self.epoch);
        match event.body {
            RawBody::Sample(sample) => self.sample(at, cpu, *sample),
            RawBody::Call(call) => self.call(at, cpu, &call),
            RawBody::CallCount(count) => self.calls.call_count(at, count, epoch),
            RawBody::Gap(gap) => self.gap(at, gap),
            RawBody::Lost(lost) => {
                match lost.reason {
                    LostReason::CallRingFull => {
                        self.calls.doubt(at, &mut self.processes.table, epoch);
                    }
                    LostReason::Late => self.calls.lost(),
                    _ => {}
                }
                if lost.reason == LostReason::SideBand {
                    self.processes.rescan(at, mapped, epoch);
                }
                epoch.push(Event::Lost(lost));
            }
            RawBody::Cgroup(cgroup) => self.processes.table.containers.learn(&cgroup),
            RawBody::WaitStack(stack) => self.waits.take(&stack, &mut self.kernel),
            RawBody::Wait(wait) => self.wait(at, cpu, &wait),
            RawBody::Waits(waits) => self.totals(at, &waits),
            RawBody::Mark(text) => {
                let text = epoch.tables.string(&text);
                epoch.push(Event::Mark(Mark { at, text }));
            }
            RawBody::Clock { realtime_ns } => epoch.push(Event::Clock(Clock {
                monotonic: at,
                realtime_ns,
            })),
            RawBody::Fork {
                pid,
                tid,
                parent_pid,
                parent_tid,
            } => {
                let parent = (parent_pid, parent_tid);
                self.processes.forked(at, (pid, tid), parent, mapped, epoch);
            }
            RawBody::Comm {
                pid,
                tid,
                exec,
                comm,
            } => {
                let table = &mut self.processes.table;
                if exec {
                    self.calls.exec((at, cpu), pid, table, epoch);
                }
                self.processes
                    .named(at, (pid, tid), exec, comm, mapped, epoch);
            }
            RawBody::Mmap(mmap) => self.processes.mapped(at, &mmap, mapped),
            RawBody::Exit { pid, tid } => {
                let table = &mut self.processes.table;
                self.calls.end_thread((at, cpu), (pid, tid), table, epoch);
                self.processes.exited(at, (pid, tid), mapped, epoch);
            }
        }
    }

    fn sample(&mut self, at: Timestamp, cpu: Cpu, sample: RawSample) {
        self.epoch.counters.samples += 1;
        let id = (sample.pid, sample.tid);
        let comm = match sample.pid {
            Pid(0) => idle_comm(),
            _ => sample.comm,
        };
        let (mapped, epoch) = (&mut self.mapped, &mut self.epoch);
        let told = (sample.cgroup, comm);
        let Some(thread) = self.processes.sampled(at, id, told, mapped, epoch) else {
            // The thread has just been announced. Should it ever be unknown, the event counts as lost.
            epoch.push_bad_record(at, cpu);
            return;
        };
        let kernel = self.kernel_stack(&sample.kernel);
        let user = self.user_stack(at, id, sample.user, &sample.interpreted);
        let source = self.epoch.source(sample.source);
        self.epoch.push_sample(Sample {
            kernel: kernel.0,
            user: user.0,
            kernel_end: kernel.1,
            user_end: user.1,
            ..Sample::new(at, thread, cpu, source, sample.weight)
        });
    }

    /// A wait has ended.
    fn wait(&mut self, at: Timestamp, cpu: Cpu, wait: &RawWait) {
        self.epoch.counters.samples += 1;
        let record = &wait.record;
        let id = (Pid(record.tgid), Tid(record.tid));
        let (mapped, epoch) = (&mut self.mapped, &mut self.epoch);
        let told = (record.cgroup, Comm(record.comm));
        let Some(thread) = self.processes.waiting(at, id, told, mapped, epoch) else {
            // The thread has just been announced. Should it ever be unknown, the event counts as lost.
            epoch.push_bad_record(at, cpu);
            return;
        };
        let waker = (Pid(record.waker_tgid), Tid(record.waker_tid));
        let waker = self.processes.waker(at, waker, mapped, epoch);
        let none = (None, end_without(record));
        // A thread of the kernel has nothing mapped.
        let process = self.processes.table.get(id.0);
        let no_user = match process.is_some_and(|process| process.mappings.ranges().is_empty()) {
            true => (None, StackEnd::NoStack),
            false => none,
        };
        let (kernel, user) = match self.waits.find(record.key) {
            Some(stack) => (
                self.kernel_stack(&stack.kernel),
                self.user_stack(at, id, stack.user, &stack.interpreted),
            ),
            None => (none, no_user),
        };
        let wait = wait_of(wait, at, waker);
        let source = self.epoch.off_cpu_source();
        let weight = wait.ns.saturating_mul(wait.count.into());
        self.epoch.push_sample(Sample {
            kernel: kernel.0,
            user: user.0,
            kernel_end: kernel.1,
            user_end: user.1,
            wait: Some(wait),
            ..Sample::new(at, thread, cpu, source, weight)
        });
    }

    /// Asks for the names that waits that go on will need when they are told, so that they are there by then.
    pub fn expect_waits(&mut self, going_on: &[RawEvent]) {
        for event in going_on {
            let RawBody::Wait(wait) = &event.body else {
                continue;
            };
            let id = (Pid(wait.record.tgid), Tid(wait.record.tid));
            if let Some(stack) = self.waits.find(wait.record.key) {
                self.kernel_stack(&stack.kernel);
                self.user_stack(event.at, id, stack.user, &stack.interpreted);
            }
        }
        self.naming.send();
    }

    /// Totals of a thread's waits.
    fn totals(&mut self, at: Timestamp, waits: &RawWaits) {
        let (mapped, epoch) = (&mut self.mapped, &mut self.epoch);
        let told = (waits.cgroup, Comm::default());
        let id = (waits.pid, waits.tid);
        if let Some(thread) = self.processes.waiting(at, id, told, mapped, epoch) {
            epoch.push(Event::Waits(Waits {
                thread,
                from: waits.from,
                to: at,
                count: waits.count,
                ns: waits.ns,
                runnable_ns: waits.runnable_ns,
            }));
        }
    }

    fn kernel_stack(&mut self, raw: &RawStack) -> (Option<StackId>, StackEnd) {
        let (kernel, epoch) = (&mut self.kernel, &mut self.epoch);
        let stack = self.stacks.of_kernel(&raw.bytes, kernel, epoch);
        (stack, end_of(stack, raw.end))
    }

    /// The user stack of a thread, with the frames of an interpreter if there are any, and why it ended.
    fn user_stack(
        &mut self,
        at: Timestamp,
        (pid, tid): (Pid, Tid),
        raw: RawStack,
        interpreted: &RawInterpreted,
    ) -> (Option<StackId>, StackEnd) {
        let table: &mut ProcessTable = &mut self.processes.table;
        let Some(process) = table.get(pid) else {
            return (None, end_of(None, raw.end));
        };
        let bytes = self.calls.with_real_returns(process, tid, raw.bytes);
        let is_interpreted = !interpreted.frames.is_empty();
        if bytes.len() < 8 && !is_interpreted {
            return (None, end_of(None, raw.end));
        }
        table.announce_mappings(pid, &mut self.epoch.tables);
        let Some(process) = table.get(pid) else {
            return (None, end_of(None, raw.end));
        };
        if let Some(made) = &process.jit {
            self.naming.watch(made);
        }
        let ends = (raw.end, self.mapped.unwinding.end_at_bogus_caller());
        let mut frames = Frames {
            modules: &mut self.mapped.modules,
            naming: &mut self.naming,
            epoch: &mut self.epoch,
        };
        let (stack, end) = if is_interpreted {
            // Frames of the interpreter are placed by counting: behind a gap nobody knows which they are.
            let (bytes, ends) = match before_gap(&bytes) {
                Some(bytes) => (bytes, (StackEnd::Truncated, ends.1)),
                None => (bytes, ends),
            };
            let (who, stacks) = ((process, at), &mut self.stacks);
            let interpreters = &mut self.mapped.interpreters;
            interpreters.stack(who, &bytes, ends, interpreted, stacks, &mut frames)
        } else {
            self.stacks.of_user(process, &bytes, ends, &mut frames)
        };
        (stack, end_of(stack, end))
    }

    /// A probe was hit.
    fn call(&mut self, at: Timestamp, cpu: Cpu, call: &RawCall) {
        let (mapped, epoch) = (&mut self.mapped, &mut self.epoch);
        self.processes.show_or_adopt(call.pid, at, mapped);
        if !self.calls.knows(at, call) {
            return;
        }
        let id = (call.pid, call.tid);
        let Some(thread) = self.processes.calling(at, id, mapped, epoch) else {
            self.calls.miss(at);
            return;
        };
        let table = &mut self.processes.table;
        let in_doubt = self.calls.come_to(at, call.after_loss, table, epoch);
        let home = self.calls.home(call);
        let home = home.and_then(|tid| table.announce_thread(tid, None, &mut epoch.tables));
        let thread = home.unwrap_or(thread);
        let process = self.processes.table.get(call.pid);
        let mut frames = Frames {
            modules: &mut mapped.modules,
            naming: &mut self.naming,
            epoch,
        };
        let place = Place { at, cpu, thread };
        self.calls
            .call(&place, call, process, in_doubt, &mut frames);
        if in_doubt {
            // Its exit may be lost, and be taken for that of the next one.
            let table = &mut self.processes.table;
            self.calls.doubt(at, table, &mut self.epoch);
        }
    }

    /// A time in which calls are missing.
    fn gap(&mut self, at: Timestamp, gap: RawGap) {
        let (mapped, epoch) = (&mut self.mapped, &mut self.epoch);
        if gap.reason == GapReason::Suspended {
            self.calls.suspend(at, &mut self.processes.table, epoch);
            if gap.from >= at {
                // It begins.
                return;
            }
        }
        if let Some(probe) = gap.probe.filter(|_| gap.from >= at) {
            // It begins.
            self.calls
                .give_up(at, probe, &mut self.processes.table, epoch);
            return;
        }
        let processes = &mut self.processes;
        let process = gap
            .pid
            .and_then(|pid| processes.with_gap(at, pid, mapped, epoch));
        self.calls.gap(at, gap, process, epoch);
    }
}

fn end_of(stack: Option<StackId>, end: StackEnd) -> StackEnd {
    match stack {
        None if end == StackEnd::Complete => StackEnd::NoStack,
        _ => end,
    }
}
