//! Builds unwind tables, on threads of its own.
//!
//! Open files -> [`Table`]s, built or read back from where earlier recordings kept them. What samples wait for comes first, small files before large ones. A file that can't be read, or that
//! makes the builder panic, has none. Files are read with positioned reads: they belong to targets.
//!
//! What does not belong here: which tables are wanted, and what is done with them (`store`).

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use super::super::files::TargetFile;
use super::super::thrift::Thrift;
use profiler_unwind::Table;
use profiler_unwind::cache::Cache;

/// Most files that wait to be read.
const MAX_JOBS: usize = 8192;
/// Most threads, and so many processors for each.
const MAX_THREADS: usize = 4;
const CPUS_PER_THREAD: usize = 2;

/// A file to be read.
#[derive(Debug)]
pub(super) struct Job {
    /// Which file it is.
    pub(super) id: u64,
    /// The file.
    pub(super) file: Arc<TargetFile>,
}

/// What became of a job.
#[derive(Debug)]
pub(super) struct Built {
    /// Which file it is.
    pub(super) id: u64,
    /// Its table; none if it says nothing about its frames.
    pub(super) table: Option<Table>,
    /// How long that took.
    pub(super) took: Duration,
}

#[derive(Debug, Default)]
struct Queue {
    urgent: Vec<(u64, Job)>,
    ahead: VecDeque<Job>,
    ended: bool,
}

impl Queue {
    fn push_urgent(&mut self, job: Job) {
        self.urgent.push((job.file.len(), job));
    }

    fn pop(&mut self) -> Option<Job> {
        let urgent = self.urgent.iter().enumerate();
        let smallest = urgent.min_by_key(|(_, (bytes, _))| *bytes);
        match smallest.map(|(index, _)| index) {
            Some(index) => Some(self.urgent.swap_remove(index).1),
            None => self.ahead.pop_front(),
        }
    }
}

#[derive(Debug, Default)]
struct Shared {
    queue: Mutex<Queue>,
    filled: Condvar,
    /// What earlier recordings kept, opened by the first thread that gets here.
    kept: OnceLock<Cache>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next job; none when there will be no more.
    fn next(&self) -> Option<Job> {
        let mut queue = self.lock();
        loop {
            if queue.ended {
                return None;
            }
            if let Some(job) = queue.pop() {
                return Some(job);
            }
            let waited = self.filled.wait(queue);
            queue = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// The threads that build tables. Dropping it lets them end.
#[derive(Debug)]
pub(super) struct Builder {
    shared: Arc<Shared>,
    built: Receiver<Built>,
}

impl Drop for Builder {
    fn drop(&mut self) {
        self.shared.lock().ended = true;
        self.shared.filled.notify_all();
    }
}

impl Builder {
    /// Starts the threads.
    pub(super) fn start() -> io::Result<Builder> {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let shared = Arc::new(Shared::default());
        let (done, built) = channel();
        let builder = Builder { shared, built };
        for _ in 0..(cpus / CPUS_PER_THREAD).clamp(1, MAX_THREADS) {
            let (shared, done) = (builder.shared.clone(), done.clone());
            let thread = std::thread::Builder::new().name("unwind-tables".to_owned());
            thread.spawn(move || work(&shared, &done))?;
        }
        Ok(builder)
    }

    /// Has a file read; whether there was room for that.
    pub(super) fn ask(&self, job: Job, urgent: bool) -> bool {
        let mut queue = self.shared.lock();
        if queue.urgent.len() + queue.ahead.len() >= MAX_JOBS {
            return false;
        }
        match urgent {
            true => queue.push_urgent(job),
            false => queue.ahead.push_back(job),
        }
        drop(queue);
        self.shared.filled.notify_one();
        true
    }

    /// Somebody waits for a file now.
    pub(super) fn hurry(&self, id: u64) {
        let mut queue = self.shared.lock();
        if let Some(index) = queue.ahead.iter().position(|job| job.id == id)
            && let Some(job) = queue.ahead.remove(index)
        {
            queue.push_urgent(job);
        }
    }

    /// What has been built.
    pub(super) fn built(&self) -> impl Iterator<Item = Built> + '_ {
        self.built.try_iter()
    }

    /// The same, waiting for the first one until some time.
    pub(super) fn wait(&self, until: Instant) -> Option<Built> {
        let patience = until.saturating_duration_since(Instant::now());
        self.built.recv_timeout(patience).ok()
    }
}

fn work(shared: &Shared, done: &Sender<Built>) {
    let mut cache = shared.kept.get_or_init(Cache::of_user).share();
    let mut thrift = Thrift::default();
    while let Some(Job { id, file }) = shared.next() {
        let began = Instant::now();
        let table = catch_unwind(AssertUnwindSafe(|| build(&file, &mut cache)));
        let table = table.unwrap_or_else(|_| {
            log::warn!("{}: its unwind information can't be read", file.path);
            None
        });
        let took = began.elapsed();
        thrift.look();
        if done.send(Built { id, table, took }).is_err() {
            return;
        }
    }
}

fn build(file: &TargetFile, cache: &mut Cache) -> Option<Table> {
    let elf = file.elf.as_ref()?;
    match cache.table(&file.file, elf, None) {
        Ok((table, report)) => {
            log::debug!("{}: {report:?}", file.path);
            Some(table)
        }
        Err(error) => {
            log::debug!("{}: {error}", file.path);
            None
        }
    }
}
