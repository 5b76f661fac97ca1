//! What happens to processes: snapshot, fork, exec, mmap, exit.
//!
//! Side-band events, and /proc where there are none -> the table of processes, and
//! [`ProcessEvent`]s.
//!
//! What does not belong here: the table itself (`process`), stacks (`stacks`).

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use super::containers::Place;
use super::files::{FileKey, MappedFile, OpenError, Root};
use super::jit::{JitProcess, is_dump};
use super::mapping::{CodeModule, CodeRange, Mappings, next_uid};
use super::process::{GRACE_NS, ProcessState};
use super::{ExecFacts, Resolver, proc_fs};
use profiler_model::raw::{Comm, RawBody, RawEvent, RawMmap};
use profiler_model::{Event, ModuleKind, Pid, ProcessChange, ProcessEvent, Tid, Timestamp};

/// /proc is not read again as a whole sooner.
const RESCAN_INTERVAL: Duration = Duration::from_secs(1);
/// Most execs of one process that are noted before they are resolved.
const MAX_EXECS: usize = 16;
/// Longest path kept.
const MAX_PATH_BYTES: usize = 4096;
/// What the kernel adds to the path of a file that has no name any more.
const DELETED: &str = " (deleted)";

/// What kind of memory a mapping's name speaks of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Backing {
    File,
    /// A file without a place in a file system: run-time code, or a program started from memory.
    Memory,
    Anonymous,
    Vdso,
    Other,
}

impl Resolver {
    /// Reads what already runs.
    pub fn snapshot(&mut self, now: Timestamp) {
        let mut listed = proc_fs::processes();
        if self.scoped {
            // One whose fork was lost is met with its first sample.
            listed.retain(|&pid| self.processes.get(pid).is_some());
        }
        listed.retain(|&pid| self.adopt(pid, now, None));
        self.find_parents(&listed);
        // What is known but not there any more has ended.
        let listed: rustc_hash::FxHashSet<Pid> = listed.into_iter().collect();
        let gone: Vec<Pid> = self
            .processes
            .processes()
            .filter(|process| process.exited.is_none() && process.started < now)
            .map(|process| process.pid)
            .filter(|pid| pid.0 != 0 && !listed.contains(pid))
            .collect();
        for pid in gone {
            for tid in self.processes.vanish(pid, now) {
                self.push_change(now, tid, ProcessChange::Exited);
            }
            self.unwinding.ended(pid, now);
        }
        if self.threads {
            self.miss_threads(now);
        }
        self.announce_living();
    }

    /// Finds parents that were not known yet when their children were read: ids begin anew at some time,
    /// so that the child's may be the lower one.
    pub(super) fn find_parents(&mut self, pids: &[Pid]) {
        for &pid in pids {
            let process = self.processes.get(pid);
            if process.is_none_or(|process| process.parent.is_some()) {
                continue;
            }
            let Some(stat) = proc_fs::process_stat(pid, &self.clocks) else {
                continue;
            };
            let parent = self.processes.get(stat.parent);
            let parent = parent.map(|parent| (parent.pid, parent.started));
            if parent.is_some()
                && let Some(process) = self.processes.get_mut(pid)
            {
                process.parent = parent;
                process.changed();
            }
        }
    }

    /// Looks which threads of processes that live are not there any more.
    fn miss_threads(&mut self, now: Timestamp) {
        for (started, tid) in self.processes.living_threads() {
            let Some(pid) = self.processes.thread(tid).map(|thread| thread.pid) else {
                continue;
            };
            if started < now
                && pid.0 != 0
                && proc_fs::thread_stat(pid, tid, &self.clocks).is_none_or(|stat| stat.zombie)
            {
                self.exited(now, pid, tid);
            }
        }
    }

    /// Announces what lives.
    pub(super) fn announce_living(&mut self) {
        self.processes.announce_all(&mut self.epoch);
        if self.threads {
            self.processes.announce_threads(&mut self.epoch);
        }
    }

    /// Reads some processes of those that already run.
    pub fn snapshot_of(&mut self, pids: &[Pid], now: Timestamp) {
        self.scoped = true;
        for &pid in pids {
            self.adopt(pid, now, None);
            self.show(pid);
        }
        self.find_parents(pids);
        self.announce_living();
    }

    /// Makes the next event begin an epoch, because the consumer wants one.
    pub fn begin_epoch(&mut self) {
        self.epoch_wanted = true;
    }

    /// Looks at an event as soon as it is drained, before its turn: opens the file of a new mapping
    /// and reads what describes a new program, while the process is still there.
    pub fn notice(&mut self, event: &RawEvent) {
        self.files.now = self.files.now.max(event.at);
        match &event.body {
            RawBody::Fork {
                pid, parent_pid, ..
            } if pid != parent_pid => {
                self.python.forked(*pid, *parent_pid, event.at);
                if let Some(root) = self.root_of(*parent_pid) {
                    self.keep_root(*pid, root);
                }
            }
            RawBody::Comm {
                pid, exec: true, ..
            } => {
                self.python.ended(*pid, event.at);
                let root = self.roots.of(*pid);
                if let Some(root) = &root {
                    self.keep_root(*pid, root.clone());
                }
                let execs = self.execs.entry(*pid).or_default();
                if execs.len() < MAX_EXECS {
                    execs.push_back(ExecFacts {
                        at: event.at,
                        facts: proc_fs::facts(*pid, self.processes.containers.hierarchy()),
                        root,
                        inside: None,
                    });
                }
            }
            RawBody::Mmap(mmap) => self.notice_mapping(mmap),
            RawBody::Exit { pid, tid } if pid.0 == tid.0 => self.python.ended(*pid, event.at),
            RawBody::Cgroup(cgroup) => self.processes.containers.learn(cgroup),
            _ => {}
        }
        self.notice_code(event);
    }

    fn notice_mapping(&mut self, mmap: &RawMmap) {
        let path = path_of(mmap);
        if !matches!(backing(&path), Backing::File | Backing::Memory) {
            return;
        }
        let root = self.root_of(mmap.pid);
        let Some(key) = FileKey::of(mmap.file) else {
            return;
        };
        if let Some(file) = self.files.get(&key) {
            self.notice_python(mmap, &path, &file);
            return;
        }
        self.files.forgive(&key);
        let opened = self.files.open(&MappedFile {
            pid: mmap.pid,
            range: (mmap.start, mmap.start.saturating_add(mmap.len)),
            path: &path,
            identity: mmap.file,
            root: root.as_ref(),
        });
        match opened {
            Ok(file) => self.notice_python(mmap, &path, &file),
            Err(OpenError::Again) => {}
            Err(error) => {
                self.counters.files_not_opened += 1;
                log::debug!("pid {}: {path}: {error}", mmap.pid);
            }
        }
    }

    fn keep_root(&mut self, pid: Pid, root: Arc<Root>) {
        self.live_roots.insert(pid, (root, self.files.now));
    }

    pub(super) fn root_of(&mut self, pid: Pid) -> Option<Arc<Root>> {
        if let Some((root, _)) = self.live_roots.get(&pid) {
            return Some(root.clone());
        }
        let known = self
            .processes
            .get(pid)
            .and_then(|process| process.root.clone());
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
        pid: Pid,
        tid: Tid,
        comm: Comm,
        at: Timestamp,
        cgroup_id: u64,
    ) -> bool {
        let process = self.processes.get(pid);
        let known = process.is_some_and(|process| {
            // An id that is used again although its last life ended long ago: its fork was lost.
            process
                .exited
                .is_none_or(|exited| at.since(exited) <= GRACE_NS)
        });
        let settled = known && process.is_some_and(|process| process.cgroup_id == cgroup_id);
        if !known {
            self.adopt(pid, at, Some(comm));
        }
        if self
            .processes
            .thread(tid)
            .is_none_or(|thread| thread.pid != pid)
        {
            let stat = proc_fs::thread_stat(pid, tid, &self.clocks);
            let started = stat.map_or(at, |stat| stat.started.min(at));
            self.processes.add_thread(pid, tid, started, comm);
        }
        settled
    }

    /// A process is in another cgroup than was thought, or one of its threads is.
    pub(super) fn settle(&mut self, pid: Pid, tid: Tid, cgroup_id: u64, at: Timestamp) {
        let Some(process) = self.processes.get_mut(pid) else {
            return;
        };
        if std::mem::take(&mut process.unread_pids)
            && let Some(pids) = proc_fs::namespace_pids(pid)
        {
            Arc::make_mut(&mut process.facts).namespace_pids = pids;
            process.changed();
        }
        let is_main = tid.0 == pid.0;
        let elsewhere = !is_main && process.is_elsewhere(cgroup_id, at);
        let known = process.place.clone();
        let containers = &mut self.processes.containers;
        let place = match containers.hierarchy() {
            Some(_) if !elsewhere => containers.place_of(cgroup_id),
            Some(_) => return,
            None => known.clone(),
        };
        if containers.hierarchy().is_none() || place.is_some() && (is_main || place == known) {
            if let Some(process) = self.processes.get_mut(pid) {
                process.move_to(place, cgroup_id);
            }
        } else {
            self.settle_by_proc(pid, is_main, (cgroup_id, place), at);
        }
        self.processes.announce(pid, &mut self.epoch);
    }

    /// The same, where a sample alone does not tell: threads can be in cgroups of their own, and that of
    /// the process is its main thread's; and of a cgroup that is gone or out of reach, /proc may still
    /// know the path.
    fn settle_by_proc(
        &mut self,
        pid: Pid,
        is_main: bool,
        met: (u64, Option<Arc<Place>>),
        at: Timestamp,
    ) {
        let (id, place) = met;
        let containers = &mut self.processes.containers;
        let own = proc_fs::cgroup(pid, containers.hierarchy());
        let own = own.and_then(|path| containers.place(&path));
        let Some(process) = self.processes.get_mut(pid) else {
            return;
        };
        match own {
            Some(own) if is_main || place.as_ref() == Some(&own) => {
                process.move_to(Some(own), id);
            }
            Some(own) => {
                process.note_elsewhere(id, at);
                let same = process.place.as_ref() == Some(&own);
                let id = if same { process.cgroup_id } else { 0 };
                process.move_to(Some(own), id);
            }
            // It has ended. Each cgroup of its other threads counts once, the last one holds.
            None if !is_main && !process.note_elsewhere(id, at) => {}
            None => {
                let told_by_proc = process.cgroup_id == 0;
                let before = process.place.clone().filter(|_| told_by_proc);
                process.move_to(place.or(before), id);
            }
        }
    }

    /// Takes a process from /proc, or updates it; one that isn't there by its name alone, if that
    /// is given. Whether it is there.
    pub(super) fn adopt(&mut self, pid: Pid, now: Timestamp, comm: Option<Comm>) -> bool {
        let idle = pid.0 == 0;
        let stat = (!idle)
            .then(|| proc_fs::process_stat(pid, &self.clocks))
            .flatten();
        let Some(stat) = stat else {
            if let Some(comm) = comm {
                let started = if idle { Timestamp(0) } else { now };
                let comm = if idle { idle_comm() } else { comm };
                self.add_process(ProcessState::new(pid, started, comm));
            }
            return false;
        };
        let threads = proc_fs::threads(pid);
        if stat.zombie && comm.is_none() && threads.len() <= 1 {
            // It will not be heard of again.
            return false;
        }
        let same = self.processes.is_known(pid, stat.started)
            && self
                .processes
                .get(pid)
                .is_some_and(|process| process.exited.is_none());
        if !same {
            let started = stat.started.min(now);
            let mut process = ProcessState::new(pid, started, stat.comm);
            process.parent = self
                .processes
                .get(stat.parent)
                .map(|parent| (parent.pid, parent.started));
            self.add_process(process);
        }
        let root = self.roots.of(pid);
        if let Some(root) = &root {
            self.keep_root(pid, root.clone());
        }
        let facts = proc_fs::facts(pid, self.processes.containers.hierarchy());
        let executable = proc_fs::executable(pid);
        if let Some(process) = self.processes.get_mut(pid) {
            process.comm = stat.comm;
            process.root = root;
            process.executable = executable.map(Into::into);
        }
        self.processes.describe(pid, facts.unwrap_or_default());
        for tid in threads {
            if self
                .processes
                .thread(tid)
                .is_some_and(|thread| thread.pid == pid)
            {
                continue;
            }
            let thread = proc_fs::thread_stat(pid, tid, &self.clocks);
            if let Some(thread) = thread.filter(|thread| !thread.zombie) {
                self.processes
                    .add_thread(pid, tid, thread.started.min(now), thread.comm);
            }
        }
        if stat.zombie && comm.is_none() && !same {
            // Its other threads go on without the main thread.
            self.processes.exit(pid, Tid(pid.0), now);
        }
        let mut mappings = Mappings::default();
        for mmap in proc_fs::mappings(pid) {
            self.notice_mapping(&mmap);
            if let Some(range) = self.range_of(now, &mmap) {
                mappings.insert(range);
            }
        }
        if let Some(process) = self.processes.get_mut(pid) {
            if !process.mappings.is_like(&mappings) {
                process.mappings = Arc::new(mappings);
            }
            self.unwinding.found(pid, &process.mappings, now);
        }
        true
    }

    /// Adds one that nothing was known of.
    fn add_process(&mut self, mut process: ProcessState) {
        process.hidden = self.limited;
        self.counters.processes += u64::from(!process.hidden);
        self.processes.add(process);
    }

    /// Reads /proc again after side-band events were lost; later, if that was done a moment ago.
    pub(super) fn rescan(&mut self, now: Timestamp) {
        self.rescan_due = self
            .rescanned
            .is_some_and(|at| at.elapsed() < RESCAN_INTERVAL);
        if self.rescan_due {
            return;
        }
        self.counters.rescans += 1;
        self.snapshot(now);
        // From its end: one that takes long does not make the next one due.
        self.rescanned = Some(Instant::now());
    }

    pub(super) fn forked(&mut self, at: Timestamp, new: (Pid, Tid), parent: (Pid, Tid)) {
        let ((pid, tid), (parent_pid, parent_tid)) = (new, parent);
        let comm = self.processes.thread(parent_tid).map(|thread| thread.comm);
        let known_parent = self.processes.get(parent_pid);
        let comm = comm
            .or_else(|| known_parent.map(|parent| parent.comm))
            .unwrap_or_default();
        if pid == parent_pid {
            if known_parent.is_none() {
                self.adopt(pid, at, Some(comm));
            }
            let known = self.processes.thread(tid);
            if known.is_none_or(|thread| thread.exited || thread.started.since(at) == 0) {
                self.processes.add_thread(pid, tid, at, comm);
            }
        } else if self.processes.is_known(pid, at)
            && self
                .processes
                .get(pid)
                .is_some_and(|process| process.exited.is_none())
        {
            // Forked between the start of side-band events and the snapshot, which has it.
        } else {
            if known_parent.is_none() {
                self.adopt(parent_pid, at, None);
            }
            match self
                .processes
                .get(parent_pid)
                .map(|parent| parent.fork(pid, at))
            {
                Some(child) => {
                    self.counters.processes += u64::from(!child.hidden);
                    self.processes.add(child);
                }
                None => self.add_process(ProcessState::new(pid, at, comm)),
            }
            self.processes.rename(pid, Tid(pid.0), comm);
        }
        self.push_change(at, tid, ProcessChange::Started);
    }

    pub(super) fn named(&mut self, at: Timestamp, id: (Pid, Tid), exec: bool, comm: Comm) {
        let (pid, tid) = id;
        self.meet(pid, tid, comm, at, 0);
        if exec {
            for gone in self.processes.leave_one_thread(pid, at) {
                // Threads that exec ends say so, but for the one that called it: it is the main
                // thread from now on.
                self.push_change(at, gone, ProcessChange::Exited);
            }
            let noticed = self.noticed_exec(pid, at);
            let (facts, root, inside) = match noticed {
                Some(noticed) => (noticed.facts, noticed.root, noticed.inside),
                None => (None, None, None),
            };
            self.place_exec(pid, inside);
            if let Some(process) = self.processes.get_mut(pid) {
                process.exec(comm, root);
            }
            if let Some(facts) = facts {
                self.processes.describe(pid, facts);
            }
        }
        self.processes.rename(pid, tid, comm);
        let name = self.epoch.string(&comm.text());
        let change = if exec {
            ProcessChange::Executed(name)
        } else {
            ProcessChange::Renamed(name)
        };
        self.push_change(at, tid, change);
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

    pub(super) fn mapped(&mut self, at: Timestamp, mmap: &RawMmap) {
        if self.processes.get(mmap.pid).is_none() {
            self.adopt(mmap.pid, at, Some(Comm::default()));
        }
        let Some(range) = self.range_of(at, mmap) else {
            return;
        };
        let Some(process) = self.processes.get_mut(mmap.pid) else {
            return;
        };
        if process.executable.is_none() && range.module.kind == ModuleKind::File {
            // The kernel maps the program first, then its interpreter.
            process.executable = Some(Arc::from(&*range.module.path));
            process.changed();
        }
        Arc::make_mut(&mut process.mappings).insert(range);
    }

    pub(super) fn exited(&mut self, at: Timestamp, pid: Pid, tid: Tid) {
        if self
            .processes
            .thread(tid)
            .is_none_or(|thread| thread.pid != pid || thread.exited)
        {
            return;
        }
        self.push_change(at, tid, ProcessChange::Exited);
        self.processes.exit(pid, tid, at);
        let process = self.processes.get(pid);
        if process.is_none_or(|process| process.exited.is_some()) {
            self.unwinding.ended(pid, at);
        }
    }

    fn push_change(&mut self, at: Timestamp, tid: Tid, change: ProcessChange) {
        if let Some(thread) = self.processes.announce_thread(tid, None, &mut self.epoch) {
            self.push(Event::Process(ProcessEvent { at, thread, change }));
        }
    }

    fn range_of(&mut self, at: Timestamp, mmap: &RawMmap) -> Option<CodeRange> {
        let path = path_of(mmap);
        if is_dump(&path)
            && let Some(jit) = &self.jit_module(mmap.pid).jit
        {
            // The first one: a child that was forked maps its own later.
            let _ = jit.dump.set(path.clone().into());
        }
        let module = self.module_of(mmap, &path);
        let module = module.unwrap_or_else(|| self.jit_module(mmap.pid));
        range_within(at, mmap, module)
    }

    /// The same as soon as it is drained: of whose memory it is little may be known.
    pub(super) fn early_range_of(&mut self, at: Timestamp, mmap: &RawMmap) -> Option<CodeRange> {
        let path = path_of(mmap);
        let module = self.module_of(mmap, &path);
        // Nobody sees this one.
        let module = module.unwrap_or_else(|| self.named_module(ModuleKind::Jit, "[jit]"));
        range_within(at, mmap, module)
    }

    /// What is mapped; none: code made at run time.
    fn module_of(&mut self, mmap: &RawMmap, path: &str) -> Option<Arc<CodeModule>> {
        let key = FileKey::of(mmap.file);
        let module = match backing(path) {
            Backing::File => self.file_module(mmap, path, key),
            Backing::Memory => {
                let file = key.as_ref().and_then(|key| self.files.get(key));
                if file.is_some_and(|file| file.elf.is_some()) {
                    self.file_module(mmap, path, key)
                } else {
                    return None;
                }
            }
            Backing::Anonymous => return None,
            Backing::Vdso => match &self.vdso {
                // That of a 32-bit process lies below 4 GiB, and is another one.
                Some((module, _)) if mmap.start > u64::from(u32::MAX) => module.clone(),
                _ => self.named_module(ModuleKind::Unknown, path),
            },
            Backing::Other => self.named_module(ModuleKind::Unknown, path),
        };
        Some(module)
    }

    fn file_module(&mut self, mmap: &RawMmap, path: &str, key: Option<FileKey>) -> Arc<CodeModule> {
        let file = key.as_ref().and_then(|key| self.files.get(key));
        let place = (Box::from(path), key.clone());
        let known = self.modules.get(&place).and_then(std::sync::Weak::upgrade);
        let is_other = |known: &CodeModule| {
            // The place in the file system is another file's by now.
            let file = file.as_ref();
            file.is_some_and(|file| file.print.name != known.copy)
        };
        if let Some(known) = &known
            && known.elf.is_some()
            && !is_other(known)
        {
            return known.clone();
        }
        let copy = file.as_ref().and_then(|file| file.print.name);
        let elf = file.as_ref().and_then(|file| file.elf.clone());
        if let Some(known) = known
            && elf.is_none()
        {
            return known;
        }
        let module = Arc::new(CodeModule {
            uid: next_uid(),
            kind: ModuleKind::File,
            path: path.into(),
            build_id: elf.as_ref().and_then(|elf| elf.build_id.clone()),
            bias: elf.as_ref().map_or(0, |elf| elf.bias(mmap.file_offset)),
            copy,
            code: match (&elf, &file) {
                (Some(elf), Some(file)) => self.unwinding.code_of(file, elf, key.as_ref()),
                _ => None,
            },
            key,
            elf,
            jit: None,
        });
        self.modules.insert(place, Arc::downgrade(&module));
        module
    }

    pub(super) fn named_module(&mut self, kind: ModuleKind, path: &str) -> Arc<CodeModule> {
        let place = (Box::from(path), None);
        if let Some(known) = self.modules.get(&place).and_then(std::sync::Weak::upgrade) {
            return known;
        }
        let module = Arc::new(module_named(kind, path, None));
        self.modules.insert(place, Arc::downgrade(&module));
        module
    }

    fn jit_module(&mut self, pid: Pid) -> Arc<CodeModule> {
        let Some(process) = self.processes.get(pid) else {
            return self.named_module(ModuleKind::Unknown, "//anon");
        };
        if let Some(module) = &process.jit {
            return module.clone();
        }
        // A child that was forked but runs no new program has ids of its own.
        let facts = if process.facts.uid.is_none() || process.facts.namespace_pids.is_empty() {
            proc_fs::facts(pid, None).map_or_else(|| process.facts.clone(), Arc::new)
        } else {
            process.facts.clone()
        };
        let jit = JitProcess {
            pid,
            namespace_pid: facts.namespace_pids.last().copied().unwrap_or(pid),
            uid: facts.uid,
            root: process.root.clone(),
            dump: OnceLock::new(),
        };
        // Two lives of one id in an epoch must not share frames, whose addresses are absolute.
        let place = |path: &str| (Box::from(path), None);
        let mut path = format!("[jit {pid}]");
        let mut life = 2;
        while self.modules.contains_key(&place(&path)) {
            path = format!("[jit {pid} life {life}]");
            life += 1;
        }
        let module = Arc::new(module_named(ModuleKind::Jit, &path, Some(Arc::new(jit))));
        self.modules.insert(place(&path), Arc::downgrade(&module));
        if let Some(process) = self.processes.get_mut(pid) {
            process.jit = Some(module.clone());
        }
        module
    }
}

/// The idle tasks of all processors have pid 0 and, but here, a name each.
pub(super) fn idle_comm() -> Comm {
    Comm::from_bytes(b"swapper")
}

fn range_within(at: Timestamp, mmap: &RawMmap, module: Arc<CodeModule>) -> Option<CodeRange> {
    let end = mmap.start.checked_add(mmap.len)?;
    let offset = match module.kind {
        ModuleKind::File => mmap.file_offset,
        ModuleKind::Vdso => 0,
        _ => mmap.start,
    };
    Some(CodeRange {
        start: mmap.start,
        end,
        offset,
        mapped: (mmap.start, end),
        at,
        module,
        identity: mmap.file,
    })
}

fn module_named(kind: ModuleKind, path: &str, jit: Option<Arc<JitProcess>>) -> CodeModule {
    CodeModule {
        uid: next_uid(),
        kind,
        path: path.into(),
        build_id: None,
        bias: 0,
        copy: None,
        key: None,
        elf: None,
        jit,
        code: None,
    }
}

/// The path of a mapping, without what the kernel adds to deleted ones.
fn path_of(mmap: &RawMmap) -> String {
    let path = &mmap.path[..mmap.path.len().min(MAX_PATH_BYTES)];
    let path = String::from_utf8_lossy(path);
    path.strip_suffix(DELETED).unwrap_or(&path).to_owned()
}

fn backing(path: &str) -> Backing {
    if path == "[vdso]" {
        Backing::Vdso
    } else if path.is_empty()
        || path.starts_with("//anon")
        || path.starts_with("[heap]")
        || path.starts_with("[stack")
        || path.starts_with("[anon")
        || path.starts_with("/dev/zero")
        || path.starts_with("/SYSV")
    {
        Backing::Anonymous
    } else if path.starts_with("/memfd:") {
        Backing::Memory
    } else if path.starts_with('/') {
        Backing::File
    } else {
        Backing::Other
    }
}
