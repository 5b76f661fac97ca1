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
//!
//! An example, which `cargo xtask check` compiles:
#![doc = "```no_run"]
#![doc = include_str!("../examples/walls.rs")]
#![doc = "```"]

mod accounts;
mod by_user;
mod called;
mod calls;
mod checksum;
mod closing;
mod containers;
mod copies;
mod debug_files;
mod epoch;
mod events;
mod files;
mod fingerprint;
mod frames;
mod go_names;
mod helper;
mod intern;
mod interpreters;
mod jit;
mod kernel;
mod kernel_names;
mod late_files;
pub mod left_behind;
mod lingering;
mod link_folder;
mod loaded;
mod locks;
mod mapped;
mod mapping;
mod material;
mod modules;
mod nameless;
mod names;
mod naming;
pub mod objects;
mod offline;
mod options;
mod overlay_layers;
mod owners;
mod patience;
mod proc_fs;
mod process;
mod processes;
mod served;
mod servers;
mod stacks;
mod symbolize;
#[cfg(test)]
mod tests;
mod turns;
mod unpacked;
mod unwinding;
mod vsyscall;
mod wait_stacks;
mod warnings;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use profiler_model::raw::RawEvent;
use profiler_model::{Batch, Event, Pid, Timestamp, heap};
use profiler_target::container::{Container, Identity};
use profiler_unwind::kernel::KernelTables;

pub use calls::{ExceptionName, Role, TracedProbe};
pub use go_names::{GoFrame, GoNames, GoPlace};
pub use helper::{
    Answering, MemoryOfThreads, Questions, Walls, for_each_helper, is_for_names, is_understood,
    offer_names, serve_names, start_opening, start_reading, walls,
};
pub use interpreters::{InterpreterChange, InterpreterSummary, UnsupportedVersion};
pub use nameless::{Nameless, NamelessSamples, Place};
pub use offline::{
    NameSources, NewSymbol, OfflineOptions, declare_offline, file_bias, name_sources,
    symbolize_offline,
};
pub use options::{EpochLimits, ResolveCounters, ResolveError, ResolveOptions, SourceOptions};
pub use proc_fs::{is_made_code, makes_code};
pub use unwinding::{TableCounters, UnwindSummary};
pub use warnings::warn_once;

use calls::Calls;
use closing::Closer;
use debug_files::Search;
use epoch::Epoch;
use files::{Root, Roots};
use frames::Frames;
use interpreters::Interpreters;
use kernel_names::KernelNames;
use late_files::LateFiles;
use mapped::Mapped;
use modules::Modules;
use naming::Naming;
use process::{GRACE_NS, ProcessTable};
use processes::Processes;
use stacks::Stacks;
use symbolize::Settings;
use unpacked::Unpacked;
use unwinding::{Dialogue, Opener, Unwinding};
use wait_stacks::WaitStacks;

/// How often what is no longer used is closed and forgotten.
const TIDY_NS: u64 = 5_000_000_000;
/// Last part of the time that [`Resolver::finish`] has: spent on names without lines.
const HURRY_SHARE: u32 = 4;
/// Longest time that [`Resolver::finish`] can be given.
const MAX_DEADLINE: Duration = Duration::from_secs(24 * 3600);
/// Most addresses of one question; the rest is left out.
const MAX_ADDRESSES: usize = 4096;

/// The processes that a resolver knew when it ended, for the next one. It keeps no file open.
#[derive(Debug)]
pub struct KnownProcesses {
    processes: ProcessTable,
    epoch: u32,
}

/// Turns raw events into events.
///
/// It only routes: state is with the parts below, each in the file of its name; how an event is handled is
/// in `events`.
#[derive(Debug)]
pub struct Resolver {
    /// What was announced, and the events of the next batch.
    epoch: Epoch,
    /// Names of frames of processes.
    naming: Naming,
    /// Names of the kernel.
    kernel: KernelNames,
    /// Stacks that were seen.
    stacks: Stacks,
    /// Processes and threads.
    processes: Processes,
    /// What they have mapped: modules, interpreters, how stacks are walked.
    mapped: Mapped,
    /// Traced functions, and calls that are open.
    calls: Calls,
    /// Stacks of waits.
    waits: WaitStacks,
    /// Unwind tables in the kernel.
    dialogue: Dialogue,
    tidied: Timestamp,
    last_event: (Timestamp, Instant),
}

impl Resolver {
    /// Starts the symbolizer, and begins to read the kernel's symbols.
    pub fn new(options: ResolveOptions) -> Result<Box<Resolver>, ResolveError> {
        let host = Root::own().ok().map(Arc::new);
        let closer = Closer::start().map_err(ResolveError::Thread)?;
        // Those who ask from here on have this thread's priority.
        patience::begin_anew();
        let roots = Roots::new(host.as_ref(), closer.clone());
        let processes = Processes::new(&options, host.clone(), roots);
        let settings = Settings {
            search: Search {
                debug_dirs: options.debug_dirs,
                debuginfod: options.debuginfod,
                host: host.clone(),
            },
            inlines: options.inlines,
            large_bytes: symbolize::LARGE_BYTES,
            patience: symbolize::PATIENCE,
            unpacked: Unpacked::of_user(),
        };
        let naming = Naming::start(settings, options.keep_code);
        let naming = naming.map_err(ResolveError::Thread)?;
        let kernel = KernelNames::start();
        let modules = Modules::new(host, options.tables_bytes.is_some(), closer);
        let unwinding = Unwinding::start(options.tables_bytes)?;
        let began = options.session.started;
        let mut resolver = heap::boxed(move || Resolver {
            epoch: Epoch::new(options.session, options.sources, options.epoch_limits),
            naming,
            kernel,
            stacks: Stacks::new(),
            processes,
            mapped: Mapped {
                modules,
                interpreters: Interpreters::new(),
                unwinding,
                late: LateFiles::default(),
            },
            calls: Calls::default(),
            waits: WaitStacks::default(),
            dialogue: Dialogue::default(),
            tidied: began,
            last_event: (began, Instant::now()),
        });
        resolver.start_epoch(0, began);
        Ok(resolver)
    }

    /// Takes over the processes of an earlier resolver with their start times, so that consumers see them as
    /// the same processes, and goes on with its number of epochs. [`Resolver::snapshot`] then reads which
    /// processes there are, and reports those that have ended meanwhile.
    pub fn resume(&mut self, known: KnownProcesses) {
        self.processes.table.go_on_with(known.processes);
        self.start_epoch(known.epoch.saturating_add(1), self.epoch.began());
    }

    /// Ends the resolver, closes the files of targets, and keeps what [`Resolver::resume`] takes.
    pub fn into_known_processes(self) -> KnownProcesses {
        let mut processes = self.processes.table;
        processes.forget_code();
        KnownProcesses {
            processes,
            epoch: self.epoch.tables.number,
        }
    }

    /// Time counts from then on: what is told of before says what there was.
    pub fn begin_at(&mut self, at: Timestamp) {
        self.epoch.begin_at(at);
    }

    /// Reads from /proc which processes there are.
    pub fn snapshot(&mut self, now: Timestamp) {
        self.snapshot_between(now, &mut || ());
    }

    /// The same; that takes a while, so `between` is called before each process.
    pub fn snapshot_between(&mut self, now: Timestamp, between: &mut dyn FnMut()) {
        let (mapped, epoch) = (&mut self.mapped, &mut self.epoch);
        self.processes.snapshot(now, between, mapped, epoch);
    }

    /// Reads some processes of those that already run.
    pub fn snapshot_of(&mut self, pids: &[Pid], now: Timestamp) {
        self.processes
            .snapshot_of(pids, now, &mut self.mapped, &mut self.epoch);
    }

    /// From now on processes are hidden until something shows that they are inside. To be called before
    /// [`Resolver::snapshot_of`], which is for those that are inside already.
    pub fn limit(&mut self) {
        self.processes.limit();
    }

    /// Says where the exec of this time happened, of which [`Resolver::notice`] was told.
    pub fn notice_place(&mut self, pid: Pid, at: Timestamp, inside: bool) {
        self.processes.notice_place(pid, at, inside);
    }

    /// A process is inside.
    pub fn show(&mut self, pid: Pid) {
        self.processes.show(pid);
    }

    /// Samples of a source come so often from now on.
    pub fn set_frequency(&mut self, source: usize, frequency_hz: u64) {
        self.epoch.set_frequency(source, frequency_hz);
    }

    /// Makes the next event begin an epoch, because the consumer wants one.
    pub fn begin_epoch(&mut self) {
        self.epoch.want_new(Timestamp(0));
    }

    /// Makes the first event after this time begin an epoch.
    pub fn begin_epoch_after(&mut self, at: Timestamp) {
        self.epoch.want_new(at);
    }

    /// Whether one was to begin, and no event has come since.
    pub fn is_epoch_to_begin(&self) -> bool {
        self.epoch.is_to_begin()
    }

    /// Whether epochs begin only by [`Resolver::begin_epoch`] and the like, from now on.
    pub fn begin_epochs_on_demand(&mut self, on_demand: bool) {
        self.epoch.end_on_demand(on_demand);
    }

    /// Whether an epoch should begin, where that is left to the caller.
    pub fn wants_epoch(&self) -> bool {
        self.epoch.is_full()
    }

    /// Takes back the memory of a batch's events, for a later one. `events` must be empty.
    pub fn reuse(&mut self, events: Vec<Event>) {
        self.epoch.reuse(events);
    }

    /// Once this is set, [`Resolver::finish`] waits no longer, whatever its deadline.
    pub fn hurried(&self) -> Arc<AtomicBool> {
        self.naming.hurried()
    }

    /// What happened so far.
    pub fn counters(&self) -> ResolveCounters {
        let Mapped {
            modules, unwinding, ..
        } = &self.mapped;
        ResolveCounters {
            processes: self.processes.seen,
            processes_now: self.processes.table.len() as u64,
            rescans: self.processes.rescans,
            stacks_known: self.stacks.known,
            stacks_new: self.stacks.new,
            frames_waiting: (self.naming.left() + self.kernel.left()) as u64,
            queue_full: self.naming.refused(),
            files_not_opened: modules.not_opened,
            calls_too_deep: self.calls.too_deep,
            stacks_continued: unwinding.continued,
            stacks_without_table: unwinding.without_table,
            stacks_copied_short: unwinding.copied_short,
            stacks_outdated: unwinding.outdated,
            kernel_hidden: self.kernel.is_restricted(),
            ..self.epoch.counters
        }
    }

    /// Samples whose innermost function has no name, or whose stack run-time code cut, by where that is; the
    /// most first.
    pub fn nameless(&self) -> Vec<(Place, NamelessSamples)> {
        self.epoch.nameless()
    }

    /// Containers that processes were met in for the first time, to be described (see
    /// [`profiler_target::container::Describer`]). No units: their paths say all there is to know.
    pub fn take_unknown_containers(&mut self) -> Vec<Identity> {
        self.processes.table.containers.take_unknown()
    }

    /// Cgroups that processes were met in for the first time, whose paths say nothing: a runtime may have
    /// a container there (see [`profiler_target::container::Describer`]).
    pub fn take_unknown_cgroups(&mut self) -> Vec<Arc<str>> {
        self.processes.table.containers.take_unknown_paths()
    }

    /// What a container is. One that was announced is announced anew, in the present epoch, and so are
    /// processes of which it was not known that they are in it.
    pub fn describe(&mut self, container: &Container) {
        let epoch = &mut self.epoch.tables;
        self.processes.table.describe_container(container, epoch);
    }

    /// What was met of each interpreter.
    pub fn interpreters(&self) -> Vec<InterpreterSummary> {
        self.mapped.interpreters.summaries()
    }

    /// What the kernel side is to be told of processes since the last call.
    pub fn take_interpreter_changes(&mut self) -> Vec<InterpreterChange> {
        self.mapped.interpreters.take_changes()
    }

    /// Whether stacks of waits are being forgotten: the kernel side is to send all again, and
    /// [`Self::keep_stacks_of`] to be called.
    pub fn has_forgotten_stacks(&self) -> bool {
        self.waits.have_forgotten()
    }

    /// The kernel side sends all stacks again, but for those of the waits that go on, which have these
    /// keys.
    pub fn keep_stacks_of(&mut self, going_on: Vec<u64>) {
        self.waits.told(going_on);
    }

    /// Says what the records of a probe are about, before the first of them is resolved. A probe
    /// that is registered anew has changed (its exits are not watched any more).
    pub fn trace(&mut self, probe: u32, traced: TracedProbe) {
        self.calls.trace(probe, traced);
    }

    /// Says that the threads of a process switch between stacks on their own: it uses coroutines,
    /// or fibers. Otherwise this is found out, at the price of some calls that end too early.
    pub fn switches_stacks(&mut self, pid: Pid) {
        self.calls.switches_stacks(pid);
    }

    /// Says that a process which was met late has all its probes from then on. They are attached one after
    /// the other, those of returns first: an exit before that may have no entry, and a gap tells of both.
    pub fn has_probes_from(&mut self, pid: Pid, at: Timestamp) {
        self.calls.has_probes_from(pid, at);
    }
}

/// Unwind tables in the kernel, if [`ResolveOptions::tables_bytes`] are given.
impl Resolver {
    /// Lists the processes that are known in the kernel. The tables of what processes `named` have mapped
    /// are built ahead of the first sample; without any, those that most processes share.
    pub fn begin_tables(&mut self, named: Option<&[Pid]>, kernel: &mut dyn KernelTables) {
        let unwinding = &mut self.mapped.unwinding;
        let mut opener = Opener {
            modules: &mut self.mapped.modules,
            processes: &mut self.processes,
        };
        self.dialogue.begin(named, unwinding, &mut opener, kernel);
    }

    /// Brings into the kernel what events need that were drained just now, and of which
    /// [`Resolver::notice`] was told. Never waits.
    pub fn bring_tables(&mut self, drained: &[RawEvent], kernel: &mut dyn KernelTables) {
        let unwinding = &mut self.mapped.unwinding;
        let mut opener = Opener {
            modules: &mut self.mapped.modules,
            processes: &mut self.processes,
        };
        self.dialogue
            .drained(drained, unwinding, &mut opener, kernel);
    }

    /// What is done now and then: room that was given back becomes free. Never waits.
    pub fn tend_tables(&mut self, kernel: &mut dyn KernelTables) {
        let unwinding = &mut self.mapped.unwinding;
        let mut opener = Opener {
            modules: &mut self.mapped.modules,
            processes: &mut self.processes,
        };
        self.dialogue
            .tick(self.last_event.0, unwinding, &mut opener, kernel);
    }

    /// Whether tables are being built.
    pub fn builds_tables(&self) -> bool {
        self.mapped.unwinding.is_building()
    }

    /// What walks by tables have come to.
    pub fn unwind_summary(&self, kernel: &dyn KernelTables) -> UnwindSummary {
        self.dialogue.summary(&self.mapped.unwinding, kernel)
    }
}

/// Questions from outside: what is mapped into a process, and what is at places of its memory or of
/// the kernel. Definitions in the current epoch answer them; symbols follow as those of samples do.
/// Addresses are inside of instructions, as those of [`profiler_model::Frame`] are: of a caller, the return
/// address less 1.
impl Resolver {
    /// Announces a process that started then, its mappings, and frames at addresses of its memory;
    /// those of one that has ended as long as it is known. Whether it is.
    pub fn ask_process(&mut self, pid: Pid, started: Timestamp, addresses: &[u64]) -> bool {
        let table = &mut self.processes.table;
        let known = |table: &ProcessTable| table.get(pid).is_some_and(|of| of.started == started);
        if !known(table) {
            return false;
        }
        table.announce(pid, &mut self.epoch.tables);
        table.announce_mappings(pid, &mut self.epoch.tables);
        let Some(process) = table.get(pid) else {
            return false;
        };
        let mut frames = Frames {
            modules: &mut self.mapped.modules,
            naming: &mut self.naming,
            epoch: &mut self.epoch,
        };
        for &address in addresses.iter().take(MAX_ADDRESSES) {
            frames.frame(process, address, false);
        }
        true
    }

    /// Announces frames of the kernel's image, by their distance from `_stext`.
    pub fn ask_kernel(&mut self, offsets: &[u64]) {
        for &offset in offsets.iter().take(MAX_ADDRESSES) {
            self.kernel.announce_image_frame(offset, &mut self.epoch);
        }
    }
}

/// Time that passes: epochs, names that have come, what is used no more.
impl Resolver {
    /// Takes names that have been found; never waits.
    pub fn poll_symbols(&mut self, out: &mut Vec<Batch>) {
        let (at, seen) = self.last_event;
        for renewed in self.naming.poll(&mut self.epoch) {
            self.processes.renewed(&renewed, at);
        }
        if self.kernel.poll(&mut self.epoch) {
            self.stacks.forget_kernel();
        }
        // Where nothing happens, files and roots of what has ended must not stay open either.
        self.processes
            .rescan_if_due(at, &mut self.mapped, &mut self.epoch);
        let now = Timestamp(at.0.saturating_add(seen.elapsed().as_nanos() as u64));
        if now.since(self.tidied) > TIDY_NS {
            self.tidy(now);
        }
        self.naming.send();
        self.epoch.flush(out);
    }

    /// Waits for tables and names that are still to come, up to `deadline`; `progress` is told how many
    /// frames are left. What is not answered by then is
    /// [`GaveUp`](profiler_model::UnknownReason::GaveUp), and counted.
    pub fn finish(
        &mut self,
        deadline: Duration,
        progress: &mut dyn FnMut(usize),
        out: &mut Vec<Batch>,
    ) {
        let deadline = deadline.min(MAX_DEADLINE);
        let until = Instant::now() + deadline;
        self.await_tables(deadline, out);
        let hurry = until - deadline / HURRY_SHARE;
        let mut hurried = false;
        self.naming.ask_again();
        self.kernel.hurry();
        loop {
            self.poll_symbols(out);
            let left = self.naming.left() + self.kernel.left();
            progress(left);
            let now = Instant::now();
            if left == 0 || now >= until || self.naming.is_hurried() {
                break;
            }
            if self.kernel.left() == 0 && self.naming.is_hopeless() {
                break;
            }
            if now >= hurry && !hurried {
                hurried = true;
                self.naming.ask_names();
            }
            let pause = (until - now).min(Duration::from_millis(20));
            self.naming.wait(pause, &mut self.epoch);
        }
        if self.kernel.finish(until, &mut self.epoch) {
            self.stacks.forget_kernel();
        }
        self.naming.give_up(&mut self.epoch);
        self.epoch.flush(out);
    }

    fn turn_epoch(&mut self, at: Timestamp, out: &mut Vec<Batch>) {
        if at.since(self.tidied) > TIDY_NS {
            self.tidy(at);
        }
        if self.epoch.is_over(at) {
            self.epoch.flush(out);
            self.start_epoch(self.epoch.tables.number + 1, at);
        }
    }

    fn start_epoch(&mut self, number: u32, at: Timestamp) {
        self.epoch.start(number, at);
        self.stacks.clear();
        self.naming.end_epoch();
        self.processes.announce_living(&mut self.epoch);
    }

    /// Drops what ended, and closes files that no living process maps.
    fn tidy(&mut self, now: Timestamp) {
        self.tidied = now;
        // What has come, and waits for its turn behind events of others, is not known yet.
        let resolved = Timestamp(now.0.saturating_sub(GRACE_NS));
        self.processes.table.expire(now);
        self.mapped.modules.tidy(resolved);
        let table = &self.processes.table;
        self.mapped.interpreters.tidy(now, &|pid| {
            let process = table.get(pid);
            process.is_some_and(|process| process.exited.is_none())
        });
        self.calls.retain(|pid, tid| {
            let thread = table.thread(tid);
            thread.is_some_and(|thread| thread.pid == pid && !thread.exited)
        });
        self.processes.tidy(now, resolved);
    }
}

/// Shared with the end-to-end tests, so that every skip is said in the same way.
#[cfg(test)]
#[path = "../../../../tests/src/skip.rs"]
#[allow(unreachable_pub, dead_code)]
mod skip;
