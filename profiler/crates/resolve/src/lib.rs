//! Raw events to events: who ran, in which code, under which names.
//!
//! [`RawEvent`]s ordered by time -> [`Batch`]es, definitions before what uses them. Names follow
//! when the symbolizer has found them; nothing here waits for it. Times are nanoseconds of
//! CLOCK_MONOTONIC.
//!
//! An event passes twice: [`Resolver::notice`] sees it as soon as it is drained and opens what may
//! be gone in a moment (the files of a process that lives 5 ms); [`Resolver::resolve`] sees it in
//! order and keeps the tables of processes, mappings and stacks.
//!
//! What does not belong here: sockets, output formats, where events come from.

mod ask;
mod calls;
mod closing;
mod containers;
mod copies;
mod debug_files;
mod events;
mod files;
mod go_names;
mod intern;
mod jit;
mod kernel;
mod layers;
mod limit;
mod loaded;
mod mapping;
mod names;
pub mod objects;
mod offline;
mod options;
mod proc_fs;
mod process;
mod python;
mod stacks;
mod symbolize;
#[cfg(test)]
mod tests;
mod unwinding;
mod waits;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;

use profiler_model::raw::{RawBody, RawEvent};
use profiler_model::{
    Batch, Clock, Event, FrameKind, Lost, LostReason, Mark, Pid, Sample, Session, Source, SourceId,
    StackEnd, StackId, Timestamp, Unit, UnknownReason,
};

pub use calls::{ExceptionName, Role, TracedProbe};
pub use go_names::{GoFrame, GoNames, GoPlace};
pub use offline::{NewSymbol, OfflineOptions, symbolize_offline};
pub use options::{EpochLimits, ResolveCounters, ResolveError, ResolveOptions, SourceOptions};
pub use unwinding::{Code, CodeFile, TableCounters, TableState};

pub use proc_fs::{is_made_code, makes_code};
pub use python::{PythonChange, UnsupportedPython};

use closing::Closer;
use containers::Containers;
use debug_files::Search;
use files::{FileKey, Files, Root, Roots, TargetFile};
use intern::EpochTables;
use kernel::Kernel;
use mapping::CodeModule;
use names::{Answered, Names};
use proc_fs::{Clocks, Facts};
use process::ProcessTable;
use profiler_target::container::{Container, Identity};
use python::Pythons;
use symbolize::{Answer, Settings, Symbolizer};

/// How often what is no longer used is closed and forgotten.
const TIDY_NS: u64 = 5_000_000_000;
/// Lists of events that are kept for their memory, and most events that one has room for.
const MAX_SPARE: usize = 8;
const MAX_SPARE_EVENTS: usize = 1 << 17;
/// What an event takes in a capture, roughly.
const EVENT_BYTES: u64 = 32;
/// Last part of the time that [`Resolver::finish`] has: spent on names without lines.
const HURRY_SHARE: u32 = 4;
/// Longest time that [`Resolver::finish`] can be given.
const MAX_DEADLINE: Duration = Duration::from_secs(24 * 3600);
/// The kernel's symbols are not read again sooner, and ever more seldom while that is of no use.
const KERNEL_INTERVAL: Duration = Duration::from_secs(10);
const MAX_KERNEL_INTERVAL: Duration = Duration::from_secs(640);

/// What was read of a process at the moment of its exec.
#[derive(Debug)]
struct ExecFacts {
    at: Timestamp,
    facts: Option<Facts>,
    root: Option<Arc<Root>>,
    /// Whether it is inside of what is recorded; none: not known, or all is.
    inside: Option<bool>,
}

/// What is known of processes when nobody looks at them: who they were, and nothing that keeps a file
/// open.
#[derive(Debug)]
pub struct KnownProcesses {
    processes: ProcessTable,
    epoch: u32,
}

/// Turns raw events into events. See the module.
#[derive(Debug)]
pub struct Resolver {
    session: Session,
    sources: Vec<SourceOptions>,
    source_ids: Vec<SourceId>,
    limits: EpochLimits,
    keep_code: bool,
    threads: bool,
    clocks: Clocks,

    epoch: EpochTables,
    epoch_began: Timestamp,
    /// The next event begins an epoch, full or not.
    epoch_wanted: bool,
    /// Nobody wants to wait for names any more.
    hurried: Arc<AtomicBool>,
    event_bytes: u64,
    events: Vec<Event>,
    /// Empty, for later batches.
    spare: Vec<Vec<Event>>,
    stacks: FxHashMap<(u64, u64), stacks::Found>,
    seed: u64,
    addresses: Vec<u64>,

    processes: ProcessTable,
    roots: Roots,
    host: Option<Arc<Root>>,
    live_roots: FxHashMap<Pid, (Arc<Root>, Timestamp)>,
    execs: FxHashMap<Pid, VecDeque<ExecFacts>>,
    modules: FxHashMap<(Box<str>, Option<FileKey>), Weak<CodeModule>>,
    files: Files,
    vdso: Option<(Arc<CodeModule>, Arc<TargetFile>)>,
    kernel: Kernel,
    kernel_loading: Option<Receiver<Kernel>>,
    kernel_known: bool,
    kernel_loaded: Instant,
    kernel_interval: Duration,
    kernel_waiting: FxHashMap<u64, Instant>,
    rescanned: Option<Instant>,
    /// Side-band events were lost since /proc was read.
    rescan_due: bool,
    /// Only some processes are recorded.
    scoped: bool,
    /// Processes are hidden until something shows that they are recorded.
    limited: bool,
    tidied: Timestamp,
    last_event: (Timestamp, Instant),

    names: Names,
    symbolizer: Symbolizer,
    counters: ResolveCounters,
    calls: calls::Calls,
    unwinding: unwinding::Unwinding,
    python: Pythons,
    wait_stacks: waits::WaitStacks,
}

impl Resolver {
    /// Starts the symbolizer, and begins to read the kernel's symbols.
    pub fn new(options: ResolveOptions) -> Result<Resolver, ResolveError> {
        let host = Root::own().ok().map(Arc::new);
        let closer = Closer::start().map_err(ResolveError::Thread)?;
        let search = Search {
            debug_dirs: options.debug_dirs,
            debuginfod: options.debuginfod,
            host: host.clone(),
        };
        let settings = Settings {
            search,
            inlines: options.inlines,
            large_bytes: symbolize::LARGE_BYTES,
            patience: symbolize::PATIENCE,
        };
        let began = options.session.started;
        let grace_ns = u64::try_from(options.grace.as_nanos()).unwrap_or(u64::MAX);
        let mut resolver = Resolver {
            session: options.session,
            sources: options.sources,
            source_ids: Vec::new(),
            limits: options.epoch_limits,
            keep_code: options.keep_code,
            threads: options.threads,
            clocks: Clocks::read(),
            epoch: EpochTables::default(),
            epoch_began: began,
            epoch_wanted: false,
            hurried: Arc::default(),
            event_bytes: 0,
            events: Vec::new(),
            spare: Vec::new(),
            stacks: FxHashMap::default(),
            seed: seed(),
            addresses: Vec::new(),
            processes: ProcessTable::new(grace_ns, Containers::new(options.hierarchy)),
            roots: Roots::new(host.as_ref(), closer.clone()),
            host: host.clone(),
            live_roots: FxHashMap::default(),
            execs: FxHashMap::default(),
            modules: FxHashMap::default(),
            files: Files::new(files::raise_file_limit(), closer),
            vdso: stacks::own_vdso(),
            kernel: Kernel::default(),
            kernel_loading: None,
            kernel_known: false,
            kernel_loaded: Instant::now(),
            kernel_interval: KERNEL_INTERVAL,
            kernel_waiting: FxHashMap::default(),
            rescanned: None,
            rescan_due: false,
            scoped: false,
            limited: false,
            tidied: began,
            last_event: (began, Instant::now()),
            names: Names::default(),
            symbolizer: Symbolizer::start(settings).map_err(ResolveError::Thread)?,
            counters: ResolveCounters::default(),
            calls: calls::Calls::default(),
            unwinding: unwinding::Unwinding::start(options.tables_bytes)?,
            python: Pythons::default(),
            wait_stacks: waits::WaitStacks::default(),
        };
        resolver.load_kernel(Kernel::load_kept);
        resolver.start_epoch(0, began);
        Ok(resolver)
    }

    /// Knows the processes of an earlier resolver by the same starts, so that they are the same to who
    /// takes the batches, and counts epochs on. What lives now is read by [`Resolver::snapshot`]; what
    /// has ended meanwhile is told then.
    pub fn resume(&mut self, known: KnownProcesses) {
        self.processes.go_on_with(known.processes);
        self.start_epoch(known.epoch.saturating_add(1), self.epoch_began);
    }

    /// Ends. What it held of targets' files is closed.
    pub fn into_known_processes(self) -> KnownProcesses {
        let mut processes = self.processes;
        processes.forget_code();
        KnownProcesses {
            processes,
            epoch: self.epoch.number,
        }
    }

    /// Samples of a source come so often from now on.
    pub fn set_frequency(&mut self, source: usize, frequency_hz: u64) {
        let Some(options) = self.sources.get_mut(source) else {
            return;
        };
        if options.unit == Unit::Nanoseconds && options.period.is_some() {
            options.period = Some(1_000_000_000 / frequency_hz.max(1));
        }
        options.frequency_hz = Some(frequency_hz);
        let id = self.epoch.source_of(options);
        if let Some(known) = self.source_ids.get_mut(source) {
            *known = id;
        }
    }

    /// Takes events ordered by time, leaving `events` empty. Gives a batch, or more than one when
    /// an epoch ends between two events.
    pub fn resolve(&mut self, events: &mut Vec<RawEvent>, out: &mut Vec<Batch>) {
        self.take(events.drain(..), out);
        self.give(out);
    }

    /// The same in parts, for who has other things to do meanwhile: takes some events. Epochs that end
    /// between two of them are given, the rest by [`Resolver::give`].
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

    /// Gives what was made of events that were taken, but for those that wait for unwind tables.
    pub fn give(&mut self, out: &mut Vec<Batch>) {
        self.release_held(out);
        self.tell_unmatched(self.last_event.0);
        self.flush(out);
        self.names.send(&self.symbolizer);
    }

    /// Takes names that have been found; never waits.
    pub fn poll_symbols(&mut self, out: &mut Vec<Batch>) {
        let replies: Vec<_> = self.symbolizer.replies().collect();
        for reply in replies {
            if let Some(answered) = self.names.take(reply) {
                self.answered(answered);
            }
        }
        if let Some(module) = self.symbolizer.stuck() {
            for answered in self.names.abandon(module) {
                log::warn!(
                    "{}: finding names takes too long; left without",
                    answered.module.path
                );
                self.answered(answered);
            }
        }
        self.poll_kernel(false);
        // Where nothing happens, files and roots of what has ended must not stay open either.
        let (at, seen) = self.last_event;
        if self.rescan_due {
            self.rescan(at);
        }
        let now = Timestamp(at.0.saturating_add(seen.elapsed().as_nanos() as u64));
        if now.since(self.tidied) > TIDY_NS {
            self.tidy(now);
        }
        self.names.send(&self.symbolizer);
        self.flush(out);
    }

    /// Waits for the names that are still to come, up to `deadline`; `progress` is told how many
    /// frames are left. What is not answered by then is [`UnknownReason::GaveUp`], and counted.
    pub fn finish(
        &mut self,
        deadline: Duration,
        progress: &mut dyn FnMut(usize),
        out: &mut Vec<Batch>,
    ) {
        let deadline = deadline.min(MAX_DEADLINE);
        self.await_tables(out);
        let until = Instant::now() + deadline;
        let hurry = until - deadline / HURRY_SHARE;
        let mut hurried = false;
        self.names.hurry();
        if !self.kernel_waiting.is_empty() && self.kernel_loading.is_none() {
            self.load_kernel(Kernel::load);
        }
        loop {
            self.poll_symbols(out);
            let left = self.names.left() + self.kernel_waiting.len();
            progress(left);
            let now = Instant::now();
            if left == 0 || now >= until || self.hurried.load(Ordering::Relaxed) {
                break;
            }
            if self.kernel_waiting.is_empty() && self.names.is_hopeless() {
                break;
            }
            if now >= hurry && !hurried {
                hurried = true;
                self.names.ask_names(&mut self.symbolizer);
            }
            let pause = (until - now).min(Duration::from_millis(20));
            for reply in self.symbolizer.wait(pause) {
                if let Some(answered) = self.names.take(reply) {
                    self.answered(answered);
                }
            }
        }
        self.poll_kernel(true);
        for answered in self.names.give_up() {
            self.answered(answered);
        }
        self.flush(out);
    }

    /// Once this is set, [`Resolver::finish`] waits no longer, whatever its deadline.
    pub fn hurried(&self) -> Arc<AtomicBool> {
        self.hurried.clone()
    }

    /// What happened so far.
    pub fn counters(&self) -> ResolveCounters {
        ResolveCounters {
            processes_now: self.processes.len() as u64,
            frames_waiting: (self.names.left() + self.kernel_waiting.len()) as u64,
            queue_full: self.names.refused,
            kernel_hidden: self.kernel.is_restricted(),
            ..self.counters
        }
    }

    /// Containers that processes were met in for the first time, to be described (see
    /// [`profiler_target::container::Describer`]). No units: their paths say all there is to know.
    pub fn take_unknown_containers(&mut self) -> Vec<Identity> {
        self.processes.containers.take_unknown()
    }

    /// Cgroups that processes were met in for the first time, whose paths say nothing: a runtime may have
    /// a container there (see [`profiler_target::container::Describer`]).
    pub fn take_unknown_cgroups(&mut self) -> Vec<Arc<str>> {
        self.processes.containers.take_unknown_paths()
    }

    /// What a container is. One that was announced is announced anew, in the present epoch, and so are
    /// processes of which it was not known that they are in it.
    pub fn describe(&mut self, container: &Container) {
        self.processes
            .describe_container(container, &mut self.epoch);
    }

    fn event(&mut self, event: RawEvent) {
        let at = event.at;
        match event.body {
            RawBody::Sample(sample) => {
                self.counters.samples += 1;
                let comm = match sample.pid {
                    Pid(0) => events::idle_comm(),
                    _ => sample.comm,
                };
                let cgroup = sample.cgroup;
                let settled = self.meet(sample.pid, sample.tid, comm, at, cgroup);
                self.show_or_adopt(sample.pid, at);
                if !settled && cgroup != 0 {
                    self.settle(sample.pid, sample.tid, cgroup, at);
                }
                let thread =
                    self.processes
                        .announce_thread(sample.tid, Some(comm), &mut self.epoch);
                let Some(thread) = thread else {
                    // `meet` has just made it known; should it ever not, that is told.
                    self.push(Event::Lost(Lost {
                        cpu: Some(event.cpu),
                        from: at,
                        to: at,
                        count: 1,
                        reason: LostReason::BadRecord,
                    }));
                    return;
                };
                let kernel = self.kernel_stack(&sample.kernel.bytes);
                let user = self.with_real_returns(sample.pid, sample.tid, sample.user.bytes);
                let (user, user_end) = if sample.interpreted.is_empty() {
                    self.user_stack(sample.pid, &user, sample.user.end)
                } else {
                    let who = (sample.pid, at);
                    self.stack_with_interpreted(who, &user, sample.user.end, &sample.interpreted)
                };
                let source = self.source(sample.source);
                self.push(Event::Sample(Sample {
                    kernel,
                    user,
                    kernel_end: end_of(kernel, sample.kernel.end),
                    user_end: end_of(user, user_end),
                    ..Sample::new(at, thread, event.cpu, source, sample.weight)
                }));
            }
            RawBody::Call(call) => {
                self.show_or_adopt(call.pid, at);
                self.call(at, event.cpu, &call);
            }
            RawBody::CallCount(count) => self.call_count(at, count),
            RawBody::Gap(gap) => self.gap(at, gap),
            RawBody::Lost(lost) => {
                if matches!(lost.reason, LostReason::CallRingFull | LostReason::Late) {
                    self.calls.lost();
                }
                if lost.reason == LostReason::SideBand {
                    self.rescan(at);
                }
                self.push(Event::Lost(lost));
            }
            RawBody::Cgroup(cgroup) => self.processes.containers.learn(&cgroup),
            RawBody::WaitStack(stack) => self.wait_stack(&stack),
            RawBody::Wait(wait) => self.wait(at, event.cpu, &wait),
            RawBody::Waits(waits) => self.waits(at, &waits),
            RawBody::Mark(text) => {
                let text = self.epoch.string(&text);
                self.push(Event::Mark(Mark { at, text }));
            }
            RawBody::Clock { realtime_ns } => {
                self.push(Event::Clock(Clock {
                    monotonic: at,
                    realtime_ns,
                }));
            }
            RawBody::Fork {
                pid,
                tid,
                parent_pid,
                parent_tid,
            } => self.forked(at, (pid, tid), (parent_pid, parent_tid)),
            RawBody::Comm {
                pid,
                tid,
                exec,
                comm,
            } => {
                if exec {
                    self.exec_calls(at, event.cpu, pid);
                }
                self.named(at, (pid, tid), exec, comm);
            }
            RawBody::Mmap(mmap) => self.mapped(at, &mmap),
            RawBody::Exit { pid, tid } => {
                self.end_calls(at, event.cpu, pid, tid);
                self.exited(at, pid, tid);
            }
        }
    }

    fn push(&mut self, event: Event) {
        self.event_bytes += EVENT_BYTES;
        self.events.push(event);
    }

    fn source(&mut self, index: u16) -> SourceId {
        match self.source_ids.get(usize::from(index)) {
            Some(&id) => id,
            None => {
                // Samples of a source that the session does not speak of.
                let source = Source {
                    name: self.epoch.string(&format!("source {index}")),
                    unit: Unit::Events,
                    frequency_hz: None,
                    period: None,
                };
                self.epoch.source(source)
            }
        }
    }

    /// An answer becomes a definition of the current epoch, with its frame if that is not used
    /// there yet.
    fn answered(&mut self, answered: Answered) {
        let Answered {
            module,
            address,
            known,
        } = answered;
        let kind = stacks::kind_of(&module);
        let (frame, _) = self.epoch.frame(kind, Some(&module), address);
        self.define(frame, Some(&module), &known.answer);
        if let Some((start, bytes)) = &known.code {
            self.epoch.code(&module, *start, bytes);
        }
    }

    fn define(
        &mut self,
        frame: profiler_model::FrameId,
        module: Option<&CodeModule>,
        answer: &Answer,
    ) {
        if !self.epoch.answer(frame, module, answer) {
            return;
        }
        let counters = &mut self.counters;
        let counter = match answer {
            Answer::Lines(_) | Answer::NotYet => &mut counters.frames_named,
            Answer::Unknown(UnknownReason::NoMapping) => &mut counters.frames_no_mapping,
            Answer::Unknown(UnknownReason::NoFile) => &mut counters.frames_no_file,
            Answer::Unknown(UnknownReason::NoSymbol) => &mut counters.frames_no_symbol,
            Answer::Unknown(UnknownReason::BadFile) => &mut counters.frames_bad_file,
            Answer::Unknown(UnknownReason::GaveUp) => &mut counters.frames_gave_up,
        };
        *counter += 1;
    }

    /// Looks whether a new table of the kernel's symbols has come, for addresses that the old one
    /// did not know: of a module or BPF program loaded since.
    fn poll_kernel(&mut self, last: bool) {
        if let Some(loading) = &self.kernel_loading {
            let loaded = if last {
                loading.recv_timeout(Duration::from_secs(1)).ok()
            } else {
                loading.try_recv().ok()
            };
            let Some(mut kernel) = loaded else {
                if last {
                    self.answer_kernel(Instant::now());
                }
                return;
            };
            let began = self.kernel_loaded;
            kernel.keep_modules_of(&self.kernel);
            self.kernel_is(kernel);
            // Stacks with such addresses are resolved anew, and get their module.
            self.stacks.retain(|&(generation, _), _| generation != 0);
            let useful = self.answer_kernel(if last { Instant::now() } else { began });
            self.kernel_interval = if useful {
                KERNEL_INTERVAL
            } else {
                (self.kernel_interval * 2).min(MAX_KERNEL_INTERVAL)
            };
        }
        if last {
            self.answer_kernel(Instant::now());
        } else if !self.kernel_waiting.is_empty() {
            self.reload_kernel();
        }
    }

    /// Answers what waited for a table that was begun to be read at `since`; whether any has a name.
    fn answer_kernel(&mut self, since: Instant) -> bool {
        let mut named = false;
        let waiting = std::mem::take(&mut self.kernel_waiting);
        for (address, asked) in waiting {
            if asked > since {
                self.kernel_waiting.insert(address, asked);
                continue;
            }
            let answer = stacks::kernel_answer(&self.kernel, address);
            let (frame, _) = self.epoch.frame(FrameKind::Kernel, None, address);
            named |= matches!(answer, Answer::Lines(_));
            self.define(frame, None, &answer);
        }
        named
    }

    fn turn_epoch(&mut self, at: Timestamp, out: &mut Vec<Batch>) {
        if at.since(self.tidied) > TIDY_NS {
            self.tidy(at);
        }
        if self.event_bytes == 0 {
            // An epoch begins with its first event.
            self.epoch_began = at;
        }
        let limits = &self.limits;
        let full = self.epoch_wanted
            || self.epoch.bytes() >= limits.definition_bytes
            || self.epoch.bytes() + self.event_bytes >= limits.bytes;
        if full || at.since(self.epoch_began) >= limits.duration_ns {
            self.flush(out);
            self.start_epoch(self.epoch.number + 1, at);
        }
    }

    fn start_epoch(&mut self, number: u32, at: Timestamp) {
        self.counters.epochs += 1;
        self.epoch_wanted = false;
        self.epoch = EpochTables::start(number, &self.session);
        self.epoch_began = at;
        self.event_bytes = 0;
        self.stacks.clear();
        self.names.end_epoch();
        self.source_ids.clear();
        for source in &self.sources {
            self.source_ids.push(self.epoch.source_of(source));
        }
        self.announce_living();
    }

    fn flush(&mut self, out: &mut Vec<Batch>) {
        let definitions = self.epoch.take();
        let mut events = Vec::new();
        if !self.events.is_empty() {
            events = std::mem::replace(&mut self.events, self.spare.pop().unwrap_or_default());
        }
        if !definitions.is_empty() || !events.is_empty() {
            out.push(Batch {
                epoch: self.epoch.number,
                definitions,
                events,
            });
        }
    }

    /// Takes back the memory of a batch's events, for a later one: new memory costs the kernel more
    /// time than all that is put into it. `events` must be empty.
    pub fn reuse(&mut self, events: Vec<Event>) {
        if self.spare.len() < MAX_SPARE
            && events.is_empty()
            && events.capacity() <= MAX_SPARE_EVENTS
        {
            self.spare.push(events);
        }
    }

    /// Drops what ended, and closes files that no living process maps.
    fn tidy(&mut self, now: Timestamp) {
        self.tidied = now;
        self.processes.expire(now);
        self.modules.retain(|_, module| module.strong_count() > 0);
        let mapped: rustc_hash::FxHashSet<&FileKey> = self
            .modules
            .keys()
            .filter_map(|(_, key)| key.as_ref())
            .collect();
        // What has come, and waits for its turn behind events of others, is not known yet.
        let resolved = Timestamp(now.0.saturating_sub(process::GRACE_NS));
        self.files.retain(resolved, |key| mapped.contains(key));
        let processes = &self.processes;
        self.python.tidy(now, |pid| {
            processes
                .get(pid)
                .is_some_and(|process| process.exited.is_none())
        });
        self.calls.retain(|pid, tid| {
            let thread = processes.thread(tid);
            thread.is_some_and(|thread| thread.pid == pid && !thread.exited)
        });
        self.live_roots
            .retain(|&pid, (_, noticed)| *noticed >= resolved || processes.get(pid).is_some());
        self.execs.retain(|_, execs| {
            execs.retain(|exec| now.since(exec.at) < TIDY_NS);
            !execs.is_empty()
        });
    }
}

fn end_of(stack: Option<StackId>, end: StackEnd) -> StackEnd {
    match stack {
        None if end == StackEnd::Complete => StackEnd::NoStack,
        _ => end,
    }
}

/// A number that a target can't guess, so that it can't make stacks that collide.
fn seed() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::collections::hash_map::RandomState::new()
        .build_hasher()
        .finish()
}

/// Shared with the end-to-end tests, so that every skip is said in the same way.
#[cfg(test)]
#[path = "../../../../tests/src/skip.rs"]
#[allow(unreachable_pub, dead_code)]
mod skip;
