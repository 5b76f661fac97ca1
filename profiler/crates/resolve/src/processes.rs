//! What happens to processes: snapshot, fork, exec, mmap, exit.
//!
//! Side-band events, and /proc where there are none -> the table of processes, and [`ProcessEvent`]s of
//! the epoch. What a new program is, and which root it has, is read as soon as its exec is drained,
//! because it may be gone in a moment; it counts when the exec has its turn. Times are those of events.
//!
//! What does not belong here: the table itself (`process`), what their mappings are of (`modules`),
//! stacks (`stacks`).

mod settle;
mod threads;
mod visibility;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustc_hash::{FxHashMap, FxHashSet};

use super::containers::Containers;
use super::epoch::Epoch;
use super::files::{FileKey, Root, Roots};
use super::helper::await_opening;
use super::late_files::LateFile;
use super::mapped::Mapped;
use super::mapping::Mappings;
use super::modules;
use super::options::ResolveOptions;
use super::proc_fs::{self, Clocks, Facts};
use super::process::{GRACE_NS, ProcessState, ProcessTable};
use super::symbolize::Renewed;
use profiler_model::raw::{Comm, RawBody, RawEvent, RawMmap};
use profiler_model::{Event, ModuleKind, Pid, ProcessChange, ProcessEvent, Tid, Timestamp};

/// /proc is not read again as a whole sooner.
const RESCAN_INTERVAL: Duration = Duration::from_secs(1);
/// Most execs of one process that are noted before they are resolved.
const MAX_EXECS: usize = 16;
/// How long an exec is remembered that was noticed, and never resolved.
const EXEC_NS: u64 = 5_000_000_000;

/// What was read of a process at the moment of its exec.
#[derive(Debug)]
struct ExecFacts {
    at: Timestamp,
    facts: Option<Facts>,
    root: Option<Arc<Root>>,
    /// Whether it is inside of what is recorded; none: not known, or all is.
    inside: Option<bool>,
}

/// The table of processes, and what is read of a process as soon as it is seen.
#[derive(Debug)]
pub(super) struct Processes {
    /// All that are known.
    pub(super) table: ProcessTable,
    /// Lives of processes seen.
    pub(super) seen: u64,
    /// How often /proc was read again because process events were lost.
    pub(super) rescans: u64,
    roots: Roots,
    /// This process's own root.
    host: Option<Arc<Root>>,
    /// As of the events that were noticed, with the time of the last that spoke of it.
    live_roots: FxHashMap<Pid, (Arc<Root>, Timestamp)>,
    execs: FxHashMap<Pid, VecDeque<ExecFacts>>,
    /// Time of the events that come now. They are resolved later.
    now: Timestamp,
    clocks: Clocks,
    /// Whether all threads that live are announced.
    threads: bool,
    rescanned: Option<Instant>,
    /// Side-band events were lost since /proc was read.
    rescan_due: bool,
    /// Only some processes are recorded.
    scoped: bool,
    /// Processes are hidden until something shows that they are recorded.
    limited: bool,
}

impl Processes {
    /// None known yet.
    pub(super) fn new(
        options: &ResolveOptions,
        host: Option<Arc<Root>>,
        roots: Roots,
    ) -> Processes {
        let grace_ns = u64::try_from(options.grace.as_nanos()).unwrap_or(u64::MAX);
        let containers = Containers::new(options.hierarchy.clone());
        Processes {
            table: ProcessTable::new(grace_ns, containers),
            seen: 0,
            rescans: 0,
            roots,
            host,
            live_roots: FxHashMap::default(),
            execs: FxHashMap::default(),
            now: Timestamp(0),
            clocks: Clocks::read(),
            threads: options.threads,
            rescanned: None,
            rescan_due: false,
            scoped: false,
            limited: false,
        }
    }

    /// Reads what already runs; before each process `between` is called.
    pub(super) fn snapshot(
        &mut self,
        now: Timestamp,
        between: &mut dyn FnMut(),
        mapped: &mut Mapped,
        epoch: &mut Epoch,
    ) {
        await_opening();
        let mut listed = proc_fs::processes();
        if self.scoped {
            // One whose fork was lost is met with its first sample.
            listed.retain(|&pid| self.table.get(pid).is_some());
        }
        listed.retain(|&pid| {
            between();
            self.adopt(pid, now, None, mapped)
        });
        self.find_parents(&listed);
        // What is known but not there any more has ended.
        let listed: FxHashSet<Pid> = listed.into_iter().collect();
        let living = self.table.processes();
        let living = living.filter(|process| process.exited.is_none() && process.started < now);
        let gone: Vec<Pid> = living
            .map(|process| process.pid)
            .filter(|pid| pid.0 != 0 && !listed.contains(pid))
            .collect();
        for pid in gone {
            for tid in self.table.vanish(pid, now) {
                self.push_change(now, tid, ProcessChange::Exited, epoch);
            }
            mapped.unwinding.ended(pid, now);
        }
        if self.threads {
            self.miss_threads(now, mapped, epoch);
        }
        self.announce_living(epoch);
    }

    /// Reads some processes of those that already run.
    pub(super) fn snapshot_of(
        &mut self,
        pids: &[Pid],
        now: Timestamp,
        mapped: &mut Mapped,
        epoch: &mut Epoch,
    ) {
        self.scoped = true;
        await_opening();
        for &pid in pids {
            self.adopt(pid, now, None, mapped);
            self.show(pid);
        }
        self.find_parents(pids);
        self.announce_living(epoch);
    }

    /// Whether only some processes are recorded.
    pub(super) fn are_some(&self) -> bool {
        self.scoped || self.limited
    }

    /// Whether only some are, and it is known which ones.
    pub(super) fn are_named(&self) -> bool {
        self.scoped && !self.limited
    }

    /// Finds parents that were not known yet when their children were read: ids begin anew at some time,
    /// so that the child's may be the lower one.
    pub(super) fn find_parents(&mut self, pids: &[Pid]) {
        for &pid in pids {
            let process = self.table.get(pid);
            if process.is_none_or(|process| process.parent.is_some()) {
                continue;
            }
            let Some(stat) = proc_fs::process_stat(pid, &self.clocks) else {
                continue;
            };
            let parent = self.table.get(stat.parent);
            let parent = parent.map(|parent| (parent.pid, parent.started));
            if parent.is_some()
                && let Some(process) = self.table.get_mut(pid)
            {
                process.parent = parent;
                process.changed();
            }
        }
    }

    /// Looks which threads of processes that live are not there any more.
    fn miss_threads(&mut self, now: Timestamp, mapped: &mut Mapped, epoch: &mut Epoch) {
        for (started, tid) in self.table.living_threads() {
            let Some(pid) = self.table.thread(tid).map(|thread| thread.pid) else {
                continue;
            };
            if started < now
                && pid.0 != 0
                && proc_fs::thread_stat(pid, tid, &self.clocks).is_none_or(|stat| stat.zombie)
            {
                self.exited(now, (pid, tid), mapped, epoch);
            }
        }
    }

    /// Announces what lives.
    pub(super) fn announce_living(&mut self, epoch: &mut Epoch) {
        self.table.announce_all(&mut epoch.tables);
        if self.threads {
            self.table.announce_threads(&mut epoch.tables);
        }
    }

    /// Looks at an event as soon as it is drained, before its turn: reads what describes a new program,
    /// while the process is still there.
    pub(super) fn notice(&mut self, event: &RawEvent) {
        self.now = self.now.max(event.at);
        match &event.body {
            RawBody::Fork {
                pid, parent_pid, ..
            } if pid != parent_pid => {
                if let Some(root) = self.root_of(*parent_pid) {
                    self.keep_root(*pid, root);
                }
            }
            RawBody::Comm {
                pid, exec: true, ..
            } => {
                let root = self.roots.of(*pid);
                if let Some(root) = &root {
                    self.keep_root(*pid, root.clone());
                }
                let execs = self.execs.entry(*pid).or_default();
                if execs.len() < MAX_EXECS {
                    execs.push_back(ExecFacts {
                        at: event.at,
                        facts: proc_fs::facts(*pid, self.table.containers.hierarchy()),
                        root,
                        inside: None,
                    });
                }
            }
            RawBody::Cgroup(cgroup) => self.table.containers.learn(cgroup),
            _ => {}
        }
    }

    pub(super) fn keep_root(&mut self, pid: Pid, root: Arc<Root>) {
        self.live_roots.insert(pid, (root, self.now));
    }

    /// The root of a process, as of the events that were noticed.
    pub(super) fn root_of(&mut self, pid: Pid) -> Option<Arc<Root>> {
        if let Some((root, _)) = self.live_roots.get(&pid) {
            return Some(root.clone());
        }
        let known = self.table.get(pid);
        let known = known.and_then(|process| process.root.clone());
        match known.or_else(|| self.roots.of(pid)) {
            Some(root) => {
                self.keep_root(pid, root.clone());
                Some(root)
            }
            // Ended already, or out of reach. What is found below our own root must be the very
            // file all the same.
            None => self.host.clone(),
        }
    }

    /// Makes sure that a sample's process and thread are known; whether that process is known to be in
    /// the cgroup of this id.
    pub(super) fn meet(
        &mut self,
        (pid, tid): (Pid, Tid),
        comm: Comm,
        at: Timestamp,
        cgroup_id: u64,
        mapped: &mut Mapped,
    ) -> bool {
        let process = self.table.get(pid);
        let known = process.is_some_and(|process| {
            // An id that is used again although its last life ended long ago: its fork was lost.
            process
                .exited
                .is_none_or(|exited| at.since(exited) <= GRACE_NS)
        });
        let settled = known && process.is_some_and(|process| process.cgroup_id == cgroup_id);
        if !known {
            self.adopt(pid, at, Some(comm), mapped);
        }
        let thread = self.table.thread(tid);
        if thread.is_none_or(|thread| thread.pid != pid) {
            let stat = proc_fs::thread_stat(pid, tid, &self.clocks);
            let started = stat.map_or(at, |stat| stat.started.min(at));
            self.table.add_thread(pid, tid, started, comm);
        }
        settled
    }

    /// Takes a process from /proc, or updates it; one that isn't there by its name alone, if that
    /// is given. Whether it is there.
    pub(super) fn adopt(
        &mut self,
        pid: Pid,
        now: Timestamp,
        comm: Option<Comm>,
        mapped: &mut Mapped,
    ) -> bool {
        let idle = pid.0 == 0;
        let stat = (!idle)
            .then(|| proc_fs::process_stat(pid, &self.clocks))
            .flatten();
        let Some(stat) = stat else {
            if let Some(comm) = comm {
                let started = if idle { Timestamp(0) } else { now };
                let comm = if idle { idle_comm() } else { comm };
                self.add(ProcessState::new(pid, started, comm));
            }
            return false;
        };
        let threads = proc_fs::threads(pid);
        if stat.zombie && comm.is_none() && threads.len() <= 1 {
            // It will not be heard of again.
            return false;
        }
        let process = self.table.get(pid);
        let same = process.is_some_and(|process| {
            process.exited.is_none() && process.started.tells_of_start(stat.started)
        });
        if !same {
            let started = stat.started.min(now);
            let mut process = ProcessState::new(pid, started, stat.comm);
            let parent = self.table.get(stat.parent);
            process.parent = parent.map(|parent| (parent.pid, parent.started));
            self.add(process);
        }
        self.describe(pid, stat.comm);
        self.add_threads(pid, threads, now);
        if stat.zombie && comm.is_none() && !same {
            // Its other threads go on without the main thread.
            self.table.exit(pid, Tid(pid.0), now);
        }
        self.read_mappings(pid, now, mapped);
        true
    }

    /// Takes what /proc says of a process that is known.
    fn describe(&mut self, pid: Pid, comm: Comm) {
        let root = self.roots.of(pid);
        if let Some(root) = &root {
            self.keep_root(pid, root.clone());
        }
        let facts = proc_fs::facts(pid, self.table.containers.hierarchy());
        let executable = proc_fs::executable(pid);
        if let Some(process) = self.table.get_mut(pid) {
            process.comm = comm;
            process.root = root;
            process.executable = executable.map(Into::into);
        }
        self.table.describe(pid, facts.unwrap_or_default());
    }

    /// Takes those of its threads that are not known.
    fn add_threads(&mut self, pid: Pid, threads: Vec<Tid>, now: Timestamp) {
        for tid in threads {
            let known = self.table.thread(tid);
            if known.is_some_and(|thread| thread.pid == pid) {
                continue;
            }
            let thread = proc_fs::thread_stat(pid, tid, &self.clocks);
            if let Some(thread) = thread.filter(|thread| !thread.zombie) {
                let started = thread.started.min(now);
                self.table.add_thread(pid, tid, started, thread.comm);
            }
        }
    }

    /// Takes what it has mapped.
    fn read_mappings(&mut self, pid: Pid, now: Timestamp, mapped: &mut Mapped) {
        let mut mappings = Mappings::default();
        for mmap in proc_fs::mappings(pid) {
            if mapped.notice(&mmap, false, self).is_err() {
                mapped.put_off(LateFile::mapped(now, mmap.clone()));
            }
            if let Some(range) = mapped.modules.range_of(now, &mmap, &mut self.table) {
                mappings.insert(range);
            }
        }
        if let Some(process) = self.table.get_mut(pid) {
            mappings.renew_like(&process.mappings);
            if !process.mappings.is_like(&mappings) {
                process.mappings = Arc::new(mappings);
            }
            mapped.unwinding.found(pid, &process.mappings, now);
        }
    }

    /// Adds one that nothing was known of.
    fn add(&mut self, mut process: ProcessState) {
        process.hidden = self.limited;
        self.seen += u64::from(!process.hidden);
        self.table.add(process);
    }

    /// Reads /proc again after side-band events were lost; later, if that was done a moment ago.
    pub(super) fn rescan(&mut self, now: Timestamp, mapped: &mut Mapped, epoch: &mut Epoch) {
        self.rescan_due = self
            .rescanned
            .is_some_and(|at| at.elapsed() < RESCAN_INTERVAL);
        if self.rescan_due {
            return;
        }
        self.rescans += 1;
        self.snapshot(now, &mut || (), mapped, epoch);
        // From its end: one that takes long does not make the next one due.
        self.rescanned = Some(Instant::now());
    }

    /// Reads /proc again if that was put off.
    pub(super) fn rescan_if_due(&mut self, now: Timestamp, mapped: &mut Mapped, epoch: &mut Epoch) {
        if self.rescan_due {
            self.rescan(now, mapped, epoch);
        }
    }

    /// A process or a thread was made.
    pub(super) fn forked(
        &mut self,
        at: Timestamp,
        (pid, tid): (Pid, Tid),
        (parent_pid, parent_tid): (Pid, Tid),
        mapped: &mut Mapped,
        epoch: &mut Epoch,
    ) {
        let comm = self.table.thread(parent_tid).map(|thread| thread.comm);
        let known_parent = self.table.get(parent_pid);
        let comm = self
            .name_of_kernel_thread(at, pid, parent_pid)
            .or(comm)
            .or_else(|| known_parent.map(|parent| parent.comm))
            .unwrap_or_default();
        let has_parent = known_parent.is_some();
        let process = self.table.get(pid);
        if pid == parent_pid {
            if !has_parent {
                self.adopt(pid, at, Some(comm), mapped);
            }
            let known = self.table.thread(tid);
            if known.is_none_or(|thread| thread.exited || thread.started.since(at) == 0) {
                self.table.add_thread(pid, tid, at, comm);
            }
        } else if process
            .is_some_and(|process| process.exited.is_none() && at.tells_of_start(process.started))
        {
            // Forked between the start of side-band events and the snapshot, which has it.
        } else {
            if !has_parent {
                self.adopt(parent_pid, at, None, mapped);
            }
            let parent = self.table.get(parent_pid);
            match parent.map(|parent| parent.fork(pid, at)) {
                Some(child) => {
                    self.seen += u64::from(!child.hidden);
                    self.table.add(child);
                }
                None => self.add(ProcessState::new(pid, at, comm)),
            }
            self.table.rename(pid, Tid(pid.0), comm, at);
        }
        self.push_change(at, tid, ProcessChange::Started, epoch);
    }

    /// The name that a thread of the kernel was made with: newer kernels give it with the thread, and say nothing more.
    fn name_of_kernel_thread(&self, at: Timestamp, pid: Pid, parent: Pid) -> Option<Comm> {
        if parent != proc_fs::KTHREADD || pid == parent {
            return None;
        }
        let stat = proc_fs::process_stat(pid, &self.clocks)?;
        let is_it = stat.parent == parent && stat.started.is_same_start(at);
        is_it.then_some(stat.comm)
    }

    /// A thread has another name, or runs a new program.
    pub(super) fn named(
        &mut self,
        at: Timestamp,
        (pid, tid): (Pid, Tid),
        exec: bool,
        comm: Comm,
        mapped: &mut Mapped,
        epoch: &mut Epoch,
    ) {
        self.meet((pid, tid), comm, at, 0, mapped);
        if exec {
            self.executed(at, pid, comm, epoch);
        }
        self.table.rename(pid, tid, comm, at);
        let name = epoch.tables.string(&comm.text());
        let change = if exec {
            ProcessChange::Executed(name)
        } else {
            ProcessChange::Renamed(name)
        };
        self.push_change(at, tid, change, epoch);
    }

    fn executed(&mut self, at: Timestamp, pid: Pid, comm: Comm, epoch: &mut Epoch) {
        for gone in self.table.leave_one_thread(pid, at) {
            // Threads that exec ends say so, but for the one that called it: it is the main
            // thread from now on.
            self.push_change(at, gone, ProcessChange::Exited, epoch);
        }
        let (facts, root, inside) = match self.noticed_exec(pid, at) {
            Some(noticed) => (noticed.facts, noticed.root, noticed.inside),
            None => (None, None, None),
        };
        self.place_exec(pid, inside);
        if let Some(process) = self.table.get_mut(pid) {
            process.exec(comm, root);
        }
        if let Some(facts) = facts {
            self.table.describe(pid, facts);
        }
    }

    fn noticed_exec(&mut self, pid: Pid, at: Timestamp) -> Option<ExecFacts> {
        let execs = self.execs.get_mut(&pid)?;
        while let Some(exec) = execs.pop_front() {
            if exec.at == at {
                return Some(exec);
            }
            if exec.at > at {
                execs.push_front(exec);
                break;
            }
        }
        None
    }

    /// A process has mapped something.
    pub(super) fn mapped(&mut self, at: Timestamp, mmap: &RawMmap, mapped: &mut Mapped) {
        if self.table.get(mmap.pid).is_none() {
            self.adopt(mmap.pid, at, Some(Comm::default()), mapped);
        }
        let Some(range) = mapped.modules.range_of(at, mmap, &mut self.table) else {
            return;
        };
        let Some(process) = self.table.get_mut(mmap.pid) else {
            return;
        };
        if process.executable.is_none() && range.module.kind == ModuleKind::File {
            // The kernel maps the program first, then its interpreter.
            process.executable = Some(Arc::from(&*range.module.path));
            process.changed();
        }
        Arc::make_mut(&mut process.mappings).insert(range);
        if let Some(besides) = mapped.modules.mapped_besides(mmap) {
            self.mapped(at, &besides, mapped);
        }
    }

    /// A file is open now that was not when a process was found to have it mapped.
    pub(super) fn mapped_late(&mut self, at: Timestamp, mmap: &RawMmap, mapped: &mut Mapped) {
        let process = self.table.get(mmap.pid);
        let there = process.and_then(|process| process.mappings.find(mmap.start));
        // Unless there is something else by now.
        let is_it = there.is_some_and(|range| {
            let module = &range.module;
            module.elf.is_none() && module.key == FileKey::of(mmap.file)
        });
        if is_it {
            self.mapped(at, mmap, mapped);
        }
    }

    /// Other code was announced where a process had made some.
    pub(super) fn renewed(&mut self, renewed: &Renewed, at: Timestamp) {
        let first = &renewed.module;
        let Some(jit) = &first.jit else { return };
        let Some(process) = self.table.get_mut(jit.pid) else {
            return;
        };
        // Of a life before, or given up.
        if process.jit.as_ref().is_none_or(|own| own.uid != first.uid) {
            return;
        }
        let (mappings, again) = (&mut process.mappings, &mut process.again);
        for &range in &renewed.ranges {
            Arc::make_mut(mappings).renew(first, range, at, |times| {
                if again.len() <= times {
                    again.push(modules::again(first, times + 1));
                }
                again[times.min(again.len() - 1)].clone()
            });
        }
    }

    /// A thread has ended, and with the last one its process.
    pub(super) fn exited(
        &mut self,
        at: Timestamp,
        (pid, tid): (Pid, Tid),
        mapped: &mut Mapped,
        epoch: &mut Epoch,
    ) {
        let thread = self.table.thread(tid);
        if thread.is_none_or(|thread| thread.pid != pid || thread.exited) {
            return;
        }
        self.push_change(at, tid, ProcessChange::Exited, epoch);
        self.table.exit(pid, tid, at);
        let process = self.table.get(pid);
        if process.is_none_or(|process| process.exited.is_some()) {
            mapped.unwinding.ended(pid, at);
        }
    }

    fn push_change(&mut self, at: Timestamp, tid: Tid, change: ProcessChange, epoch: &mut Epoch) {
        let thread = self.table.announce_thread(tid, None, &mut epoch.tables);
        if let Some(thread) = thread {
            epoch.push(Event::Process(ProcessEvent { at, thread, change }));
        }
    }

    /// Forgets what was noticed before `resolved`, and execs that never had their turn.
    pub(super) fn tidy(&mut self, now: Timestamp, resolved: Timestamp) {
        let table = &self.table;
        self.live_roots
            .retain(|&pid, (_, noticed)| *noticed >= resolved || table.get(pid).is_some());
        self.execs.retain(|_, execs| {
            execs.retain(|exec| now.since(exec.at) < EXEC_NS);
            !execs.is_empty()
        });
    }

    /// How many roots and execs are remembered.
    #[cfg(test)]
    pub(super) fn noticed(&self) -> (usize, usize) {
        (self.live_roots.len(), self.execs.len())
    }

    /// The root of a process, if one is remembered.
    #[cfg(test)]
    pub(super) fn live_root(&self, pid: Pid) -> Option<Arc<Root>> {
        self.live_roots.get(&pid).map(|(root, _)| root.clone())
    }
}

/// The idle tasks of all processors have pid 0 and, but here, a name each.
pub(super) fn idle_comm() -> Comm {
    Comm::from_bytes(b"swapper")
}
