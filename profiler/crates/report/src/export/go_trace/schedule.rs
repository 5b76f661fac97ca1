//! Threads, goroutines with traced calls, processors and tasks as Go's readers demand them.
//!
//! Input: which thread does something when; output: the timed events of all M, in the order and
//! with the sequence numbers that readers check. Where one M's event makes another's possible, the
//! later one gets a later time ([`after`]), since readers sort by time and do not keep ties in
//! order.
//!
//! A goroutine whose calls were traced is one more thread, on an M of its own from its first call to the end of its
//! process: which thread it was on in between is not known.
//!
//! The capture itself is the goroutine [`CAPTURE_G`] on M 0 and P 0: it creates the threads'
//! goroutines and carries tasks and logs.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::stream::Stream;
use super::trace::{Context, Trace};
use super::waits::{Off, quiet_ns};
use crate::derive::container_label_of;
use profiler_model::*;
use profiler_wire::go_trace::{Kind, NO_THREAD};

const CAPTURE_G: u64 = 1 << 32;
/// The M of the first goroutine: behind those of all threads (see [`machine`]).
const FIRST_GOROUTINE_M: u64 = 3 << 32;
const P_RUNNING: u64 = 1;
const P_IDLE: u64 = 2;
const G_RUNNING: u64 = 2;
const G_WAITING: u64 = 4;

/// A time surely later than `at`. Readers turn times into floating point, which beyond 2^53 ns (104
/// days) tells only larger steps apart.
pub(super) fn after(at: u64) -> u64 {
    at + (at >> 52) + 1
}

/// A thread between its first event and its end.
pub(super) struct Running {
    pub(super) context: Context,
    process: ProcessId,
    /// The task of its process, 0 if it has none.
    task: u64,
    pub(super) stream: Stream,
    /// Why it is off its P; none: it is on it.
    pub(super) off: Option<Off>,
    /// Number of its goroutine's last event in this generation, as readers count them.
    pub(super) g_seq: u64,
    /// When it was last known to run.
    pub(super) seen: u64,
    /// Regions that are open, outermost first; their depths increase.
    regions: Vec<Region>,
}

/// A traced call as a region.
#[derive(Clone, Debug)]
pub(super) struct Region {
    /// How many traced calls enclose it.
    pub(super) depth: u32,
    pub(super) function: FunctionId,
    /// Ids of strings are those of one generation, so the name itself is kept.
    pub(super) name: Arc<str>,
}

/// A P.
struct Processor {
    /// How often it has started in this generation.
    starts: u64,
    /// When it became idle.
    idle_since: u64,
    /// Whether its status is known in this generation.
    announced: bool,
}

/// A process that has, or had, running threads.
struct Task {
    id: u64,
    running: usize,
    /// Its main thread has ended.
    ended: bool,
}

pub(super) struct Schedule {
    capture: Stream,
    /// How long threads may go unseen while they run; none if the recording has no waits.
    quiet_ns: Option<u64>,
    running: BTreeMap<StackOwner, Running>,
    /// What threads did that ended in this generation, in that order, where events are put in later:
    /// those whom a thread wakes by its end wait longer than it lives.
    ended: Vec<Stream>,
    /// Where it is.
    ended_threads: FxHashMap<StackOwner, usize>,
    /// Those whose end is known, and what they ran on: what comes of them later belongs to the life that has ended.
    gone: FxHashMap<StackOwner, Option<Context>>,
    /// The running thread of each M.
    threads: FxHashMap<u64, StackOwner>,
    /// The M of each goroutine with traced calls.
    goroutines: FxHashMap<StackOwner, u64>,
    /// How many lives each M has had, and when the last ended; bounded by the kernel's pid_max.
    lives: FxHashMap<u64, (u64, u64)>,
    processors: Vec<Processor>,
    idle: BTreeSet<usize>,
    tasks: BTreeMap<ProcessId, Task>,
    /// How many tasks each pid has had.
    pids: FxHashMap<u32, u64>,
}

impl Schedule {
    /// Begins the first generation.
    pub(super) fn begin(trace: &mut Trace, tables: &Tables) -> io::Result<Schedule> {
        let quiet_ns = quiet_ns(tables);
        let start = trace.start();
        let mut schedule = Schedule {
            capture: Stream::new(trace.thread_batch(0, start), quiet_ns.is_some()),
            quiet_ns,
            running: BTreeMap::new(),
            ended: Vec::new(),
            ended_threads: FxHashMap::default(),
            gone: FxHashMap::default(),
            threads: FxHashMap::default(),
            goroutines: FxHashMap::default(),
            lives: FxHashMap::default(),
            processors: vec![Processor {
                starts: 0,
                idle_since: 0,
                announced: true,
            }],
            idle: BTreeSet::new(),
            tasks: BTreeMap::new(),
            pids: FxHashMap::default(),
        };
        let name = trace.name_stack("capture")?;
        schedule.tell(trace, Kind::ProcStatus, start, &[0, P_RUNNING])?;
        schedule.tell(trace, Kind::GoCreate, start, &[CAPTURE_G, name, 0])?;
        schedule.tell(trace, Kind::GoStart, start, &[CAPTURE_G, 1])?;
        let cpus = u64::from(tables.session.cpus);
        schedule.tell(trace, Kind::ProcsChange, start, &[cpus, 0])?;
        Ok(schedule)
    }

    /// Writes a log of a task, or of none (0).
    pub(super) fn log(
        &mut self,
        trace: &mut Trace,
        at: u64,
        task: u64,
        key: &str,
        value: &str,
    ) -> io::Result<()> {
        let key = trace.string(key)?;
        let value = trace.string(value)?;
        self.tell(trace, Kind::UserLog, at, &[task, key, value, 0])
    }

    /// The M, P and G of a thread, which runs from now on if it does not yet. None for a thread
    /// that was never defined, or has ended.
    pub(super) fn running(
        &mut self,
        trace: &mut Trace,
        id: StackOwner,
        at: u64,
        tables: &Tables,
    ) -> io::Result<Option<Context>> {
        if let Some(running) = self.running.get_mut(&id) {
            let context = running.context;
            running.seen = running.seen.max(at);
            self.resume(trace, id, at, at, None)?;
            return Ok(Some(context));
        }
        self.ensure(trace, id, at, tables)
    }

    /// The same, but a thread that is off its P stays so.
    pub(super) fn ensure(
        &mut self,
        trace: &mut Trace,
        id: StackOwner,
        at: u64,
        tables: &Tables,
    ) -> io::Result<Option<Context>> {
        if let Some(running) = self.running.get(&id) {
            return Ok(Some(running.context));
        }
        let process = id.process(tables).filter(|_| !self.gone.contains_key(&id));
        let (Some(process), Some(m)) = (process, self.machine(id, tables)) else {
            return Ok(None);
        };
        if let Some(&before) = self.threads.get(&m) {
            // The tid is in use again, and the end of its last life was lost.
            self.end(trace, before, at)?;
        }
        // Three steps earlier, so that what made us look at the thread happens while it runs.
        let at = at.saturating_sub(3 * (after(at) - at));
        self.join_task(trace, process, at, tables)?;
        let mut created = at.max(after(trace.start()));
        if self.quiet_ns.is_none() {
            created = created.max(self.capture.last());
        }
        let (lives, ended) = self.lives.get(&m).copied().unwrap_or_default();
        let p = self.idle_processor(trace, created)?;
        let name = trace.name_stack(&id.name(tables))?;
        // A goroutine of its own for each life, or readers would take them for one.
        let g = m + (lives << 34);
        self.tell(trace, Kind::GoCreate, created, &[g, name, 0])?;

        let free = self.processors[p].idle_since;
        let starts = after(created).max(after(free)).max(after(ended));
        let processor = &mut self.processors[p];
        processor.starts += 1;
        let context = Context { m, p: p as u64, g };
        let args = [context.p, processor.starts];
        let mut stream = Stream::new(trace.thread_batch(m, starts), self.quiet_ns.is_some());
        stream.push(trace, Kind::ProcStart, starts, &args)?;
        stream.push(trace, Kind::GoStart, after(starts), &[g, 1])?;
        self.threads.insert(m, id);
        let running = Running {
            context,
            process,
            task: self.task_of(id, tables),
            stream,
            off: None,
            g_seq: 1,
            seen: after(starts),
            regions: Vec::new(),
        };
        self.running.insert(id, running);
        Ok(Some(context))
    }

    /// A thread has ended.
    pub(super) fn exit(
        &mut self,
        trace: &mut Trace,
        id: StackOwner,
        at: u64,
        tables: &Tables,
    ) -> io::Result<()> {
        let context = self.running.get(&id).map(|running| running.context);
        self.end(trace, id, at)?;
        self.gone.insert(id, context);
        let StackOwner::Thread(thread) = id else {
            return Ok(());
        };
        let Some(thread) = tables.thread(thread) else {
            return Ok(());
        };
        let pid = tables.process(thread.process).map(|process| process.pid.0);
        let Some(task) = self.tasks.get_mut(&thread.process) else {
            return Ok(());
        };
        task.ended |= pid == Some(thread.tid.0);
        if task.ended && task.running == 0 {
            let id = task.id;
            self.tasks.remove(&thread.process);
            self.tell(trace, Kind::UserTaskEnd, at, &[id, 0])?;
        }
        Ok(())
    }

    /// Goroutines that end with a thread: those of its process, if it is the main one.
    pub(super) fn goroutines_of(&self, thread: ThreadId, tables: &Tables) -> Vec<StackOwner> {
        let Some(thread) = tables.thread(thread) else {
            return Vec::new();
        };
        let process = tables.process(thread.process);
        let is_main = process.is_some_and(|process| process.pid.0 == thread.tid.0);
        let running = self.running.iter().filter(|(id, running)| {
            is_main && running.process == thread.process && !matches!(id, StackOwner::Thread(_))
        });
        running.map(|(&id, _)| id).collect()
    }

    /// What a thread ran on that has ended: its last samples may come behind that. Of one that was never seen before, its M
    /// alone. None if it was never defined.
    pub(super) fn ran_on(&mut self, id: StackOwner, tables: &Tables) -> Option<Context> {
        let alone = Context {
            m: self.machine(id, tables)?,
            p: NO_THREAD,
            g: NO_THREAD,
        };
        Some(self.gone.get(&id).copied().flatten().unwrap_or(alone))
    }

    /// A thread goes on whose end was told: it has taken over the id of its process to run another program.
    pub(super) fn revive(&mut self, id: StackOwner) {
        self.gone.remove(&id);
    }

    /// Begins a region of a running thread. What is open at its depth or deeper ends before.
    pub(super) fn open(
        &mut self,
        trace: &mut Trace,
        id: StackOwner,
        at: u64,
        region: Region,
        tables: &Tables,
    ) -> io::Result<()> {
        self.awake(trace, id, at)?;
        self.close(trace, id, at, region.depth)?;
        if let Some(running) = self.running.get_mut(&id) {
            let name = trace.string(&region.name)?;
            let stack = trace.function_stack(region.function, &region.name, tables)?;
            let args = [running.task, name, stack];
            running
                .stream
                .push(trace, Kind::UserRegionBegin, at, &args)?;
            running.regions.push(region);
        }
        Ok(())
    }

    /// Ends the regions of a thread that are of this depth or deeper, the innermost first.
    pub(super) fn close(
        &mut self,
        trace: &mut Trace,
        id: StackOwner,
        at: u64,
        depth: u32,
    ) -> io::Result<()> {
        if self
            .innermost(id)
            .is_some_and(|innermost| innermost >= depth)
        {
            self.awake(trace, id, at)?;
        }
        match self.running.get_mut(&id) {
            Some(running) => running.close(trace, at, depth),
            None => Ok(()),
        }
    }

    /// Whether a region of that depth and function is open.
    pub(super) fn is_open(&self, id: StackOwner, depth: u32, function: FunctionId) -> bool {
        let regions = self.running.get(&id).map(|running| &running.regions[..]);
        let mut regions = regions.unwrap_or_default().iter();
        regions.any(|region| (region.depth, region.function) == (depth, function))
    }

    /// Depth of the innermost open region of a thread.
    pub(super) fn innermost(&self, id: StackOwner) -> Option<u32> {
        Some(self.running.get(&id)?.regions.last()?.depth)
    }

    /// How many regions are open.
    pub(super) fn open_regions(&self) -> usize {
        self.running
            .values()
            .map(|running| running.regions.len())
            .sum()
    }

    /// Time of a running thread's last event.
    pub(super) fn last(&self, id: StackOwner) -> Option<u64> {
        Some(self.running.get(&id)?.stream.last())
    }

    /// Writes a log of a running thread, within its regions.
    pub(super) fn log_on(
        &mut self,
        trace: &mut Trace,
        id: StackOwner,
        at: u64,
        key: &str,
        value: &str,
    ) -> io::Result<()> {
        self.awake(trace, id, at)?;
        let Some(running) = self.running.get_mut(&id) else {
            return Ok(());
        };
        let key = trace.string(key)?;
        let value = trace.string(value)?;
        let args = [running.task, key, value, 0];
        running.stream.push(trace, Kind::UserLog, at, &args)
    }

    /// The task of a thread's process; 0 if it has none.
    pub(super) fn task_of(&self, id: StackOwner, tables: &Tables) -> u64 {
        let process = id.process(tables);
        let task = process.and_then(|process| self.tasks.get(&process));
        task.map_or(0, |task| task.id)
    }

    /// Ends the generation and begins the next; returns the time from which events may follow.
    pub(super) fn next_generation(&mut self, trace: &mut Trace, now: u64) -> io::Result<u64> {
        if let Some(quiet_ns) = self.quiet_ns {
            self.leave_quiet(trace, now, quiet_ns)?;
        }
        let latest = self.latest(now);
        self.write_all(trace)?;
        trace.end()?;
        let start = after(latest);
        trace.begin(start)?;
        for processor in &mut self.processors {
            processor.starts = 0;
            processor.announced = false;
        }
        self.processors[0].announced = true;
        let held = self.quiet_ns.is_some();
        self.capture = Stream::new(trace.thread_batch(0, start), held);
        self.tell(trace, Kind::ProcStatus, start, &[0, P_RUNNING])?;
        self.tell(trace, Kind::GoStatus, start, &[CAPTURE_G, 0, G_RUNNING])?;
        for running in self.running.values_mut() {
            let Context { m, p, g } = running.context;
            running.stream = Stream::new(trace.thread_batch(m, start), held);
            running.g_seq = 0;
            let (stream, p_status, g_status) = match running.off {
                // Whose M it has no P on.
                Some(_) => (&mut self.capture, P_IDLE, [g, NO_THREAD, G_WAITING]),
                None => (&mut running.stream, P_RUNNING, [g, m, G_RUNNING]),
            };
            stream.push(trace, Kind::ProcStatus, start, &[p, p_status])?;
            stream.push(trace, Kind::GoStatus, start, &g_status)?;
            if let Some(processor) = self.processors.get_mut(p as usize) {
                processor.announced = true;
            }
        }
        Ok(after(start))
    }

    /// Ends all threads and tasks, and the last generation.
    pub(super) fn finish(&mut self, trace: &mut Trace, now: u64) -> io::Result<()> {
        if let Some(quiet_ns) = self.quiet_ns {
            self.leave_quiet(trace, now, quiet_ns)?;
        }
        let end = after(self.latest(now));
        let running: Vec<_> = self.running.keys().copied().collect();
        for id in running {
            // What waits goes on waiting. Regions must end, and that takes a running thread.
            if !self.is_off(id) || self.innermost(id).is_some() {
                self.end(trace, id, end)?;
            }
        }
        let end = after(after(after(end))).max(after(self.latest(end)));
        for task in std::mem::take(&mut self.tasks).into_values() {
            self.tell(trace, Kind::UserTaskEnd, end, &[task.id, 0])?;
        }
        self.tell(trace, Kind::GoDestroy, after(end), &[])?;
        self.tell(trace, Kind::ProcStop, after(after(end)), &[])?;
        self.write_all(trace)?;
        trace.end()
    }

    /// Ends a thread if it runs.
    fn end(&mut self, trace: &mut Trace, id: StackOwner, at: u64) -> io::Result<()> {
        self.awake(trace, id, at)?;
        let Some(mut running) = self.running.remove(&id) else {
            return Ok(());
        };
        let Context { m, p, .. } = running.context;
        running.close(trace, at, 0)?;
        let destroyed = at.max(after(running.stream.last()));
        let stopped = after(destroyed);
        let stream = &mut running.stream;
        stream.push(trace, Kind::GoDestroy, destroyed, &[])?;
        stream.push(trace, Kind::ProcStop, stopped, &[])?;
        match self.quiet_ns {
            Some(_) => {
                self.ended_threads.insert(id, self.ended.len());
                self.ended.push(running.stream);
            }
            None => stream.write(trace)?,
        }
        if let Some(processor) = self.processors.get_mut(p as usize) {
            processor.idle_since = stopped;
            self.idle.insert(p as usize);
        }
        self.threads.remove(&m);
        let (lives, _) = self.lives.get(&m).copied().unwrap_or_default();
        self.lives.insert(m, (lives + 1, stopped));
        if let Some(task) = self.tasks.get_mut(&running.process) {
            // A thread that began before its process was defined was never counted in.
            task.running = task.running.saturating_sub(1);
        }
        Ok(())
    }

    /// An idle P whose status is known in this generation: the first there is, else a new one.
    fn idle_processor(&mut self, trace: &mut Trace, at: u64) -> io::Result<usize> {
        let is_free = |p: &usize| {
            let processor = self.processors.get(*p);
            // Where events are put in their places later, a P may have become idle after `at`.
            self.quiet_ns.is_none() || processor.is_some_and(|p| p.idle_since < at)
        };
        let free = self.idle.iter().copied().find(is_free);
        let p = free.filter(|p| self.idle.remove(p)).unwrap_or_else(|| {
            self.processors.push(Processor {
                starts: 0,
                idle_since: 0,
                announced: false,
            });
            self.processors.len() - 1
        });
        if !std::mem::replace(&mut self.processors[p].announced, true) {
            self.tell(trace, Kind::ProcStatus, at, &[p as u64, P_IDLE])?;
        }
        Ok(p)
    }

    /// Counts a thread into the task of its process, which begins with its first one.
    fn join_task(
        &mut self,
        trace: &mut Trace,
        id: ProcessId,
        at: u64,
        tables: &Tables,
    ) -> io::Result<()> {
        if let Some(task) = self.tasks.get_mut(&id) {
            task.running += 1;
            return Ok(());
        }
        let Some(process) = tables.process(id) else {
            return Ok(());
        };
        let pid = process.pid.0;
        let lives = self.pids.entry(pid).or_default();
        // Task 0 would be none.
        let task = machine(Tid(pid)) + (*lives << 34);
        *lives += 1;
        let parent = process.parent.and_then(|parent| self.tasks.get(&parent));
        let parent = parent.map_or(0, |task| task.id);
        let name = match container_label_of(tables, process) {
            Some(container) => {
                format!("{} (pid {pid} in {container})", tables.string(process.name))
            }
            None => format!("{} (pid {pid})", tables.string(process.name)),
        };
        let name = trace.string(&name)?;
        self.tasks.insert(
            id,
            Task {
                id: task,
                running: 1,
                ended: false,
            },
        );
        self.tell(trace, Kind::UserTaskBegin, at, &[task, parent, name, 0])?;
        let container = process.container.and_then(|id| tables.container(id));
        match container {
            Some(container) => {
                let text = container_text(container, tables);
                self.log(trace, at, task, "container", &text)
            }
            None => Ok(()),
        }
    }

    /// An event of the capture's own thread.
    fn tell(&mut self, trace: &mut Trace, kind: Kind, at: u64, rest: &[u64]) -> io::Result<()> {
        let at = at.max(trace.start());
        match self.capture.insert(kind, at, rest) {
            true => Ok(()),
            false => self.capture.push(trace, kind, at, rest),
        }
    }

    /// Puts a thread on its P if it is off it.
    fn awake(&mut self, trace: &mut Trace, id: StackOwner, at: u64) -> io::Result<()> {
        self.resume(trace, id, at, at, None)
    }

    pub(super) fn running_mut(&mut self, id: StackOwner) -> Option<&mut Running> {
        self.running.get_mut(&id)
    }

    /// What a thread did in this generation, if it had not ended at a time.
    pub(super) fn stream_at(&mut self, id: StackOwner, at: u64) -> Option<&mut Stream> {
        if let Some(running) = self.running.get_mut(&id) {
            return Some(&mut running.stream);
        }
        let ended = self.ended.get_mut(*self.ended_threads.get(&id)?);
        // Its id may be in use again after that.
        ended.filter(|stream| at <= stream.last())
    }

    /// Whether a thread was never seen in the trace.
    pub(super) fn is_new(&self, id: StackOwner, tables: &Tables) -> bool {
        let thread = match id {
            StackOwner::Thread(thread) => tables.thread(thread),
            StackOwner::Goroutine(..) => None,
        };
        let m = thread.map(|thread| machine(thread.tid));
        let used = m.is_none_or(|m| self.lives.contains_key(&m) || self.threads.contains_key(&m));
        !used && !self.running.contains_key(&id)
    }

    /// Whether a thread is off its P.
    pub(super) fn is_off(&self, id: StackOwner) -> bool {
        let running = self.running.get(&id);
        running.is_some_and(|running| running.off.is_some())
    }

    /// Threads on their Ps, and when they were last known to run.
    pub(super) fn on_processors(&self) -> Vec<(StackOwner, u64)> {
        let on = self
            .running
            .iter()
            .filter(|(_, running)| running.off.is_none());
        on.map(|(&id, running)| (id, running.seen)).collect()
    }

    /// The number of a P's next start.
    pub(super) fn next_start(&mut self, p: u64) -> u64 {
        match self.processors.get_mut(p as usize) {
            Some(processor) => {
                processor.starts += 1;
                processor.starts
            }
            None => 1,
        }
    }

    /// The M of a thread or goroutine; none if there is no such thread.
    fn machine(&mut self, id: StackOwner, tables: &Tables) -> Option<u64> {
        match id {
            StackOwner::Thread(thread) => Some(machine(tables.thread(thread)?.tid)),
            StackOwner::Goroutine(..) => {
                let next = FIRST_GOROUTINE_M + self.goroutines.len() as u64;
                Some(*self.goroutines.entry(id).or_insert(next))
            }
        }
    }

    fn write_all(&mut self, trace: &mut Trace) -> io::Result<()> {
        self.capture.write(trace)?;
        self.ended_threads.clear();
        for mut stream in std::mem::take(&mut self.ended) {
            stream.write(trace)?;
        }
        for running in self.running.values_mut() {
            running.stream.write(trace)?;
        }
        Ok(())
    }

    fn latest(&self, now: u64) -> u64 {
        let threads = self.running.values().map(|running| running.stream.last());
        let idle = self.processors.iter().map(|processor| processor.idle_since);
        threads
            .chain(idle)
            .fold(now.max(self.capture.last()), u64::max)
    }
}

impl Running {
    fn close(&mut self, trace: &mut Trace, at: u64, depth: u32) -> io::Result<()> {
        while let Some(region) = self.regions.pop_if(|region| region.depth >= depth) {
            let name = trace.string(&region.name)?;
            let args = [self.task, name, 0];
            self.stream.push(trace, Kind::UserRegionEnd, at, &args)?;
        }
        Ok(())
    }
}

/// All that is known of a container: `name web, image nginx:1, cgroup /docker/01ab`.
fn container_text(container: &Container, tables: &Tables) -> String {
    const NAMES: [&str; 7] = ["engine", "id", "name", "image", "pod", "namespace", "unit"];
    let known = NAMES.into_iter().zip(container.texts());
    let mut parts: Vec<String> = known
        .filter_map(|(name, text)| Some(format!("{name} {}", tables.string(text?))))
        .collect();
    parts.push(format!("cgroup {}", tables.string(container.cgroup)));
    parts.join(", ")
}

/// The M of a thread. The ids of the kernel's idle threads (0) and those that viewers keep for rows
/// of their own move out of the way.
fn machine(tid: Tid) -> u64 {
    match tid.0 {
        0 | 1_000_001..=1_000_005 => u64::from(tid.0) + (1 << 33),
        tid => u64::from(tid),
    }
}
