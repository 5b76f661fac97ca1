//! Processes and threads: who they are, what they map, how they end.
//!
//! Identity is id and start time, since ids are used again. A fork inherits everything, an exec
//! replaces the program, an exit is final; what has ended is kept for a short while, for events that
//! are still on their way, and then dropped. Times are those of the events.
//!
//! What does not belong here: reading /proc (`proc_fs`), opening files (`files`), the order of
//! events (`processes`).

use std::collections::VecDeque;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::containers::{Containers, Place};
use super::files::Root;
use super::intern::EpochTables;
use super::mapping::{CodeModule, Mappings};
use super::proc_fs::Facts;
use profiler_model::raw::Comm;
use profiler_model::{Pid, Process, ProcessId, Thread, ThreadId, Tid, Timestamp};
use profiler_target::container::Container;

/// How long what has ended is kept, unless told.
pub(super) const GRACE_NS: u64 = 2_000_000_000;
/// Most processes kept; beyond, what has ended goes first.
const MAX_PROCESSES: usize = 100_000;
/// How long it is believed that the threads of a process are in different cgroups.
const ELSEWHERE_NS: u64 = 1_000_000_000;
/// Most cgroups of threads of one process that are remembered, besides that of the process.
const MAX_ELSEWHERE: usize = 16;
/// Most parents that are announced with a process.
const MAX_LINE: usize = 64;
/// Most names of one thread that wait for it to be announced; of more the last ones are told.
const MAX_RENAMES: usize = 256;
/// Most processes and threads kept that ended longer than [`GRACE_NS`] ago.
const MAX_ENDED: usize = 8192;

/// One life of a process.
#[derive(Clone, Debug)]
pub(super) struct ProcessState {
    /// Process id.
    pub(super) pid: Pid,
    /// Start.
    pub(super) started: Timestamp,
    /// Which life of which process made it.
    pub(super) parent: Option<(Pid, Timestamp)>,
    /// Name.
    pub(super) comm: Comm,
    /// Path of the executable; none until it is mapped.
    pub(super) executable: Option<Arc<str>>,
    /// What /proc says.
    pub(super) facts: Arc<Facts>,
    /// The cgroup it is in: that of its main thread.
    pub(super) place: Option<Arc<Place>>,
    /// The kernel's id of that, by its last sample; 0: a sample has still to say it.
    pub(super) cgroup_id: u64,
    /// Ids of cgroups that other threads of it are in, and since when that is known.
    elsewhere: (Timestamp, Vec<u64>),
    /// It was forked in a nested pid namespace, and its pids there have not been read.
    pub(super) unread_pids: bool,
    /// Its executable memory.
    pub(super) mappings: Arc<Mappings>,
    /// Its root directory.
    pub(super) root: Option<Arc<Root>>,
    /// Code that it makes at run time.
    pub(super) jit: Option<Arc<CodeModule>>,
    /// The same where other code was announced than had been there: once, twice, and so on.
    pub(super) again: Vec<Arc<CodeModule>>,
    /// Threads that have not ended.
    pub(super) threads: u32,
    /// When the last thread ended.
    pub(super) exited: Option<Timestamp>,
    /// It is not recorded: known, in case that it will be, and not announced.
    pub(super) hidden: bool,
    /// Under which id it was announced, in which epoch; none after a change.
    announced: Option<(u32, ProcessId)>,
    /// Epoch and generation of the mappings that were announced last.
    pub(super) mapped: Option<(u32, u64)>,
}

impl ProcessState {
    /// A process of which nothing but its name is known.
    pub(super) fn new(pid: Pid, started: Timestamp, comm: Comm) -> ProcessState {
        ProcessState {
            pid,
            started,
            parent: None,
            comm,
            executable: None,
            facts: Arc::default(),
            place: None,
            cgroup_id: 0,
            elsewhere: (Timestamp(0), Vec::new()),
            unread_pids: false,
            mappings: Arc::default(),
            root: None,
            jit: None,
            again: Vec::new(),
            threads: 0,
            exited: None,
            hidden: false,
            announced: None,
            mapped: None,
        }
    }

    /// A child, as it is right after fork.
    pub(super) fn fork(&self, pid: Pid, at: Timestamp) -> ProcessState {
        let nested = self.unread_pids || !self.facts.namespace_pids.is_empty();
        ProcessState {
            pid,
            started: at,
            parent: Some((self.pid, self.started)),
            facts: if self.facts.namespace_pids.is_empty() {
                self.facts.clone()
            } else {
                // Its pids in nested namespaces are its own.
                Arc::new(Facts {
                    namespace_pids: Box::default(),
                    ..(*self.facts).clone()
                })
            },
            elsewhere: (at, Vec::new()),
            unread_pids: nested,
            // The first sample looks after them.
            cgroup_id: if nested { 0 } else { self.cgroup_id },
            jit: None,
            again: Vec::new(),
            threads: 0,
            exited: None,
            announced: None,
            mapped: None,
            ..self.clone()
        }
    }

    /// What a new program inherits.
    pub(super) fn exec(&mut self, comm: Comm, root: Option<Arc<Root>>) {
        self.comm = comm;
        self.executable = None;
        self.mappings = Arc::default();
        self.jit = None;
        self.again.clear();
        if root.is_some() {
            self.root = root;
        }
        self.announced = None;
    }

    /// Notes that something that is announced has changed.
    pub(super) fn changed(&mut self) {
        self.announced = None;
    }

    /// It is in this cgroup from now on.
    pub(super) fn move_to(&mut self, place: Option<Arc<Place>>, cgroup_id: u64) {
        self.cgroup_id = cgroup_id;
        if self.place != place {
            self.place = place;
            self.changed();
        }
    }

    /// Whether a thread of it is known to be in a cgroup that is not that of the process; not for ever,
    /// since the process may follow it there.
    pub(super) fn is_elsewhere(&self, cgroup_id: u64, at: Timestamp) -> bool {
        let (since, ids) = &self.elsewhere;
        at.since(*since) < ELSEWHERE_NS && ids.contains(&cgroup_id)
    }

    /// Notes that a thread of it is in another cgroup; whether that was not known, however long ago.
    pub(super) fn note_elsewhere(&mut self, cgroup_id: u64, at: Timestamp) -> bool {
        let (since, ids) = &mut self.elsewhere;
        *since = at;
        let new = !ids.contains(&cgroup_id);
        if new {
            if ids.len() >= MAX_ELSEWHERE {
                ids.remove(0);
            }
            ids.push(cgroup_id);
        }
        new
    }
}

/// One life of a thread.
#[derive(Clone, Debug)]
pub(super) struct ThreadState {
    /// Its process.
    pub(super) pid: Pid,
    /// Start.
    pub(super) started: Timestamp,
    /// Name.
    pub(super) comm: Comm,
    /// Whether it has ended.
    pub(super) exited: bool,
    announced: Option<(u32, ThreadId)>,
    /// Since when it has the name.
    named: Timestamp,
    /// Names that it had before, and since when, that have not been announced.
    before: Vec<(Timestamp, Comm)>,
}

impl ThreadState {
    /// It is called otherwise from now on.
    fn rename(&mut self, comm: Comm, at: Timestamp) {
        self.announced = None;
        if self.comm == comm {
            return;
        }
        if at <= self.named {
            // A name that held no time is none.
            self.comm = comm;
            return;
        }
        if self.before.len() >= MAX_RENAMES {
            self.before.remove(0);
        }
        self.before.push((self.named, self.comm));
        (self.comm, self.named) = (comm, at);
    }
}

/// All processes and threads.
#[derive(Debug)]
pub(super) struct ProcessTable {
    processes: FxHashMap<Pid, ProcessState>,
    threads: FxHashMap<Tid, ThreadState>,
    ended: VecDeque<(Timestamp, Ended)>,
    grace_ns: u64,
    /// What processes run in.
    pub(super) containers: Containers,
}

#[derive(Clone, Copy, Debug)]
enum Ended {
    Process(Pid, Timestamp),
    Thread(Tid, Timestamp),
}

impl ProcessTable {
    /// A table that keeps what has ended for so long.
    pub(super) fn new(grace_ns: u64, containers: Containers) -> ProcessTable {
        ProcessTable {
            processes: FxHashMap::default(),
            threads: FxHashMap::default(),
            ended: VecDeque::new(),
            grace_ns: grace_ns.max(GRACE_NS),
            containers,
        }
    }

    /// Takes the place of an earlier table, in which nothing keeps files open. Cgroups of another
    /// hierarchy mean nothing.
    pub(super) fn go_on_with(&mut self, earlier: ProcessTable) {
        let earlier = std::mem::replace(self, earlier);
        self.grace_ns = earlier.grace_ns;
        if self.containers.hierarchy() != earlier.containers.hierarchy() {
            self.containers = earlier.containers;
            for process in self.processes.values_mut() {
                process.move_to(None, 0);
            }
        }
    }

    /// Takes what is known of a container. Processes that were not known to be in it are announced anew.
    pub(super) fn describe_container(&mut self, container: &Container, epoch: &mut EpochTables) {
        let places = self.containers.describe(container, epoch);
        if places.is_empty() {
            return;
        }
        let places: FxHashMap<&str, &Arc<Place>> =
            places.iter().map(|place| (&*place.path, place)).collect();
        let mut moved = Vec::new();
        for (&pid, process) in &mut self.processes {
            let path = process.place.as_ref().map(|place| &*place.path);
            if let Some(&place) = path.and_then(|path| places.get(path)) {
                process.move_to(Some(place.clone()), process.cgroup_id);
                moved.push(pid);
            }
        }
        for pid in moved {
            self.announce(pid, epoch);
        }
    }

    /// Takes what /proc says of a process.
    pub(super) fn describe(&mut self, pid: Pid, mut facts: Facts) {
        let place = facts.cgroup.take();
        let place = place.and_then(|path| self.containers.place(&path));
        let Some(process) = self.processes.get_mut(&pid) else {
            return;
        };
        if process.place != place {
            // Read at another time than events are of: samples have the last word.
            process.move_to(place, 0);
        }
        process.facts = Arc::new(facts);
        process.unread_pids = false;
        process.changed();
    }

    /// Forgets where processes have their code, and whatever keeps files open.
    pub(super) fn forget_code(&mut self) {
        for process in self.processes.values_mut() {
            process.mappings = Arc::default();
            process.root = None;
            process.jit = None;
            process.again.clear();
            process.mapped = None;
            process.announced = None;
        }
        for thread in self.threads.values_mut() {
            thread.announced = None;
        }
        self.containers.forget_announcements();
    }

    /// A process.
    pub(super) fn get(&self, pid: Pid) -> Option<&ProcessState> {
        self.processes.get(&pid)
    }

    /// A process, to change it.
    pub(super) fn get_mut(&mut self, pid: Pid) -> Option<&mut ProcessState> {
        self.processes.get_mut(&pid)
    }

    /// A thread.
    pub(super) fn thread(&self, tid: Tid) -> Option<&ThreadState> {
        self.threads.get(&tid)
    }

    /// How many processes are known.
    pub(super) fn len(&self) -> usize {
        self.processes.len()
    }

    /// All processes.
    pub(super) fn processes(&self) -> impl Iterator<Item = &ProcessState> {
        self.processes.values()
    }

    /// Adds a process, in place of an earlier life of that id. Its main thread comes with it.
    pub(super) fn add(&mut self, process: ProcessState) {
        let (pid, started, comm) = (process.pid, process.started, process.comm);
        self.processes.insert(pid, process);
        self.add_thread(pid, Tid(pid.0), started, comm);
        if self.processes.len() > MAX_PROCESSES {
            self.shrink();
        }
    }

    /// Adds a thread, in place of an earlier life of that id.
    pub(super) fn add_thread(&mut self, pid: Pid, tid: Tid, started: Timestamp, comm: Comm) {
        let thread = ThreadState {
            pid,
            started,
            comm,
            exited: false,
            announced: None,
            named: started,
            before: Vec::new(),
        };
        let before = self.threads.insert(tid, thread);
        let counted =
            before.is_some_and(|before| before.pid == pid && !before.exited && tid.0 != pid.0);
        if !counted && let Some(process) = self.processes.get_mut(&pid) {
            process.threads += 1;
        }
    }

    /// Gives a thread a new name.
    pub(super) fn rename(&mut self, pid: Pid, tid: Tid, comm: Comm, at: Timestamp) {
        if let Some(thread) = self.threads.get_mut(&tid) {
            thread.rename(comm, at);
        }
        if tid.0 == pid.0
            && let Some(process) = self.processes.get_mut(&pid)
        {
            process.comm = comm;
            process.announced = None;
        }
    }

    /// Notes the end of a thread; with the last one its process ends.
    pub(super) fn exit(&mut self, pid: Pid, tid: Tid, at: Timestamp) {
        let Some(thread) = self.threads.get_mut(&tid) else {
            return;
        };
        if thread.pid != pid || std::mem::replace(&mut thread.exited, true) {
            return;
        }
        self.ended
            .push_back((at, Ended::Thread(tid, thread.started)));
        if let Some(process) = self.processes.get_mut(&pid) {
            process.threads = process.threads.saturating_sub(1);
            if process.threads == 0 && process.exited.is_none() {
                process.exited = Some(at);
                self.ended
                    .push_back((at, Ended::Process(pid, process.started)));
            }
        }
    }

    /// Notes that a process has ended with all its threads, unseen. Gives those that had not ended
    /// before, the main thread last.
    pub(super) fn vanish(&mut self, pid: Pid, at: Timestamp) -> Vec<Tid> {
        let mut gone = Vec::new();
        let threads = self.threads.iter_mut();
        for (&tid, thread) in threads.filter(|(_, thread)| thread.pid == pid && !thread.exited) {
            thread.exited = true;
            gone.push(tid);
            self.ended
                .push_back((at, Ended::Thread(tid, thread.started)));
        }
        gone.sort_unstable_by_key(|tid| (tid.0 == pid.0, tid.0));
        if let Some(process) = self.processes.get_mut(&pid)
            && process.exited.is_none()
        {
            process.threads = 0;
            process.exited = Some(at);
            self.ended
                .push_back((at, Ended::Process(pid, process.started)));
        }
        gone
    }

    /// Notes that a process runs a new program. Whichever thread called exec has the process's id
    /// from now on, even if the main thread had ended before, and is the only one. Gives those that
    /// have ended with it.
    pub(super) fn leave_one_thread(&mut self, pid: Pid, at: Timestamp) -> Vec<Tid> {
        let mut gone = Vec::new();
        let main = Tid(pid.0);
        let main_runs = self.threads.get(&main).is_some_and(|thread| !thread.exited);
        let Some(process) = self.processes.get_mut(&pid) else {
            return gone;
        };
        if process.threads == 1 && main_runs {
            return gone;
        }
        process.threads = 1;
        process.exited = None;
        for (&tid, thread) in &mut self.threads {
            if tid == main {
                thread.exited = false;
            } else if thread.pid == pid && !thread.exited {
                thread.exited = true;
                gone.push(tid);
                self.ended
                    .push_back((at, Ended::Thread(tid, thread.started)));
            }
        }
        gone
    }

    /// Drops what ended long enough before `now`.
    pub(super) fn expire(&mut self, now: Timestamp) {
        while let Some(&(at, ended)) = self.ended.front()
            && (now.since(at) > self.grace_ns
                || self.ended.len() > MAX_ENDED && now.since(at) > GRACE_NS)
        {
            self.ended.pop_front();
            self.drop_ended(ended);
        }
    }

    fn shrink(&mut self) {
        let half = self.ended.len() / 2;
        for (_, ended) in self.ended.drain(..half).collect::<Vec<_>>() {
            self.drop_ended(ended);
        }
    }

    fn drop_ended(&mut self, ended: Ended) {
        match ended {
            Ended::Process(pid, started) => {
                let same =
                    |process: &ProcessState| process.started == started && process.exited.is_some();
                if self.processes.get(&pid).is_some_and(same) {
                    self.processes.remove(&pid);
                }
            }
            Ended::Thread(tid, started) => {
                let same = |thread: &ThreadState| thread.started == started && thread.exited;
                if self.threads.get(&tid).is_some_and(same) {
                    self.threads.remove(&tid);
                }
            }
        }
    }

    /// The id of a process in this epoch, announced if need be; none if it is hidden.
    pub(super) fn announce(&mut self, pid: Pid, epoch: &mut EpochTables) -> Option<ProcessId> {
        let process = self.processes.get(&pid).filter(|process| !process.hidden)?;
        if let Some((number, id)) = process.announced
            && number == epoch.number
        {
            return Some(id);
        }
        // A parent that has changed is announced anew with its next event: its child would have none until then.
        let mut line = vec![pid];
        while let Some(parent) = line.last().and_then(|&pid| self.unannounced(pid, epoch))
            && line.len() < MAX_LINE
        {
            line.push(parent);
        }
        let announced = line.into_iter().rev();
        announced.fold(None, |_, pid| self.announce_one(pid, epoch))
    }

    /// The parent of a process, if that lives and is to be announced before it.
    fn unannounced(&self, pid: Pid, epoch: &EpochTables) -> Option<Pid> {
        let (parent, started) = self.processes.get(&pid)?.parent?;
        let parent = self.processes.get(&parent)?;
        let is_it = parent.started == started && parent.exited.is_none() && !parent.hidden;
        let is_known = parent
            .announced
            .is_some_and(|(number, _)| number == epoch.number);
        (is_it && !is_known).then_some(parent.pid)
    }

    fn announce_one(&mut self, pid: Pid, epoch: &mut EpochTables) -> Option<ProcessId> {
        let process = self.processes.get(&pid)?;
        let parent = process.parent.and_then(|(pid, started)| {
            let parent = self.processes.get(&pid)?;
            let (number, id) = parent.announced?;
            (parent.started == started && number == epoch.number).then_some(id)
        });
        let facts = &process.facts;
        let place = process.place.as_deref();
        let container = place.and_then(|place| self.containers.announce_of(place, epoch));
        let definition = Process {
            pid,
            started: process.started,
            parent,
            name: epoch.string(&process.comm.text()),
            executable: process.executable.as_deref().map(|path| epoch.string(path)),
            command: facts.command.as_deref().map(|text| epoch.string(text)),
            namespace_pids: facts.namespace_pids.to_vec(),
            uid: facts.uid,
            cgroup: place.map(|place| epoch.string(&place.path)),
            container,
        };
        let id = epoch.process(definition);
        if let Some(process) = self.processes.get_mut(&pid) {
            process.announced = Some((epoch.number, id));
        }
        Some(id)
    }

    /// The id of a thread in this epoch, announced if need be; none if its process is hidden. A name
    /// that differs from the known one is newer, with the time when it was seen.
    pub(super) fn announce_thread(
        &mut self,
        tid: Tid,
        comm: Option<(Timestamp, Comm)>,
        epoch: &mut EpochTables,
    ) -> Option<ThreadId> {
        let thread = self.threads.get(&tid)?;
        let known = comm.is_none_or(|(_, comm)| comm == thread.comm);
        if let Some((number, id)) = thread.announced
            && number == epoch.number
            && known
        {
            return Some(id);
        }
        let pid = thread.pid;
        if !known && let Some((at, comm)) = comm {
            self.rename(pid, tid, comm, at);
        }
        let process = self.announce(pid, epoch)?;
        let thread = self.threads.get_mut(&tid)?;
        let definition = Thread {
            process,
            tid,
            started: thread.started,
            name: epoch.string(&thread.comm.text()),
        };
        let id = epoch.thread(definition);
        thread.announced = Some((epoch.number, id));
        if !thread.before.is_empty() {
            for (from, comm) in std::mem::take(&mut thread.before) {
                epoch.named(id, from, &comm.text());
            }
            epoch.named(id, thread.named, &thread.comm.text());
        }
        Some(id)
    }

    /// Announces the mappings of a process with its first stack of an epoch, and when they have
    /// changed: a stack that is known from a process with the same mappings does not meet them.
    pub(super) fn announce_mappings(&mut self, pid: Pid, epoch: &mut EpochTables) {
        let Some(process) = self.processes.get_mut(&pid) else {
            return;
        };
        let now = Some((epoch.number, process.mappings.generation()));
        if std::mem::replace(&mut process.mapped, now) == now {
            return;
        }
        let mappings = process.mappings.clone();
        if let Some(process) = self.announce(pid, epoch) {
            for range in mappings.ranges() {
                epoch.mapping(process, range);
            }
        }
    }

    /// Announces all processes that live, parents first.
    pub(super) fn announce_all(&mut self, epoch: &mut EpochTables) {
        let living = self
            .processes
            .values()
            .filter(|process| process.exited.is_none());
        let mut pids: Vec<_> = living
            .map(|process| (process.started, process.pid))
            .collect();
        pids.sort_unstable();
        for (_, pid) in pids {
            self.announce(pid, epoch);
        }
    }

    /// Announces all threads that live.
    pub(super) fn announce_threads(&mut self, epoch: &mut EpochTables) {
        let mut tids = self.living_threads();
        tids.sort_unstable();
        for (_, tid) in tids {
            self.announce_thread(tid, None, epoch);
        }
    }

    /// Threads that have not ended, with their starts.
    pub(super) fn living_threads(&self) -> Vec<(Timestamp, Tid)> {
        let living = self.threads.iter().filter(|(_, thread)| !thread.exited);
        living.map(|(&tid, thread)| (thread.started, tid)).collect()
    }
}
