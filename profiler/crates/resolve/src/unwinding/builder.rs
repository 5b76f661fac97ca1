//! Builds unwind tables, on threads of its own.
//!
//! Open files -> [`Table`]s, built or read back from where earlier recordings kept them. What samples wait for
//! comes first, small files before large ones. What only root can change is read here, with positioned reads; all
//! else by a process without privileges (`apart`), and on threads of its own for each of a few users, so that nobody's
//! files keep back those of the system or of others. A file that can't be read, or that is the end of who reads it, has none.
//!
//! What does not belong here: which tables are wanted, and what is done with them (`store`).

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use super::super::files::TargetFile;
use super::apart::{Apart, GivenUp};
use crate::by_user::ByUser;
use crate::locks::lock;
use crate::turns::{READERS, Turns};
use crate::warnings::warn_once;
use profiler_unwind::Table;
use profiler_unwind::cache::Cache;

/// Most files that wait to be read.
const MAX_JOBS: usize = 8192;
/// Most threads, and so many processors for each.
const MAX_THREADS: usize = 4;
const CPUS_PER_THREAD: usize = 2;
/// A process that builds tables ends when nothing has been asked of it for so long.
const IDLE: Duration = Duration::from_secs(10);

/// A file to be read.
#[derive(Debug)]
pub(super) struct Job {
    /// Which file it is.
    pub(super) id: u64,
    /// The file.
    pub(super) file: Arc<TargetFile>,
}

impl Job {
    /// Whose file it is; none is root's alone.
    fn user(&self) -> Option<u32> {
        self.file.owner.filter(|_| !self.file.trusted)
    }
}

/// What became of a job.
#[derive(Debug)]
pub(super) struct Built {
    /// Which file it is.
    pub(super) id: u64,
    /// Its table; none if it says nothing about its frames.
    pub(super) table: Option<Table>,
    /// There is none because it was not read to its end.
    pub(super) given_up: bool,
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
        self.urgent.push((job.file.opened_len, job));
    }

    fn is_empty(&self) -> bool {
        self.urgent.is_empty() && self.ahead.is_empty()
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

/// Files that wait for some threads.
#[derive(Debug, Default)]
struct Waiting {
    queue: Mutex<Queue>,
    filled: Condvar,
}

impl Waiting {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        lock(&self.queue)
    }

    /// The next job; `None` when there will be no more, no job if there was none for so long.
    fn next(&self, patience: Option<Duration>) -> Option<Option<Job>> {
        let mut queue = self.lock();
        loop {
            if queue.ended {
                return None;
            }
            if let Some(job) = queue.pop() {
                return Some(Some(job));
            }
            queue = match patience {
                None => {
                    let waited = self.filled.wait(queue);
                    waited.unwrap_or_else(PoisonError::into_inner)
                }
                Some(patience) => {
                    let waited = self.filled.wait_timeout(queue, patience);
                    let (queue, waited) = waited.unwrap_or_else(PoisonError::into_inner);
                    if waited.timed_out() && queue.is_empty() {
                        return Some(None);
                    }
                    queue
                }
            };
        }
    }
}

/// Threads that build tables, as many as are needed up to some number.
#[derive(Debug)]
struct Pool {
    waiting: Arc<Waiting>,
    threads: usize,
    most: usize,
}

impl Pool {
    fn new(most: usize) -> Pool {
        Pool {
            waiting: Arc::default(),
            threads: 0,
            most,
        }
    }

    fn start_thread(
        &mut self,
        kept: &Kept,
        done: &Sender<Built>,
        turns: &Arc<Turns>,
    ) -> io::Result<()> {
        let (waiting, kept, done) = (self.waiting.clone(), kept.clone(), done.clone());
        let turns = turns.clone();
        let thread = std::thread::Builder::new().name("unwind-tables".to_owned());
        thread.spawn(move || work(&waiting, &kept, &done, &turns))?;
        self.threads += 1;
        Ok(())
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.waiting.lock().ended = true;
        self.waiting.filled.notify_all();
    }
}

/// What earlier recordings kept, opened by the first thread that gets there.
type Kept = Arc<OnceLock<Cache>>;

/// The threads that build tables. Dropping it lets them end.
#[derive(Debug)]
pub(super) struct Builder {
    /// For what only root can change.
    system: Pool,
    /// For all else, by user; they start when there is something for them.
    users: ByUser<Pool>,
    /// Whose turn it is.
    turns: Arc<Turns>,
    /// Threads of each.
    most: usize,
    kept: Kept,
    done: Sender<Built>,
    built: Receiver<Built>,
}

impl Builder {
    /// Starts the threads.
    pub(super) fn start() -> io::Result<Builder> {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let most = (cpus / CPUS_PER_THREAD).clamp(1, MAX_THREADS);
        let (done, built) = channel();
        let mut builder = Builder {
            system: Pool::new(most),
            users: ByUser::default(),
            turns: Turns::new(READERS.max(most)),
            most,
            kept: Arc::default(),
            done,
            built,
        };
        for _ in 0..most {
            let (kept, done, turns) = (&builder.kept, &builder.done, &builder.turns);
            builder.system.start_thread(kept, done, turns)?;
        }
        Ok(builder)
    }

    /// Has a file read; whether there was room for that.
    pub(super) fn ask(&mut self, job: Job, urgent: bool) -> bool {
        let user = job.user();
        let theirs = user.and_then(|user| self.users.of(user, || Ok(Pool::new(self.most))));
        let pool = theirs.unwrap_or(&mut self.system);
        if pool.threads < pool.most
            && let Err(error) = pool.start_thread(&self.kept, &self.done, &self.turns)
        {
            log::debug!("no thread to build unwind tables: {error}");
            if pool.threads == 0 {
                return false;
            }
        }
        let mut queue = pool.waiting.lock();
        if queue.urgent.len() + queue.ahead.len() >= MAX_JOBS {
            return false;
        }
        match urgent {
            true => queue.push_urgent(job),
            false => queue.ahead.push_back(job),
        }
        drop(queue);
        pool.waiting.filled.notify_one();
        true
    }

    /// Somebody waits for a file now.
    pub(super) fn hurry(&mut self, id: u64) {
        for pool in std::iter::once(&mut self.system).chain(self.users.all()) {
            let mut queue = pool.waiting.lock();
            if let Some(index) = queue.ahead.iter().position(|job| job.id == id)
                && let Some(job) = queue.ahead.remove(index)
            {
                queue.push_urgent(job);
            }
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

fn work(waiting: &Waiting, kept: &Kept, done: &Sender<Built>, turns: &Arc<Turns>) {
    let mut cache = kept.get_or_init(Cache::of_user).share();
    let mut apart = Apart::new();
    while let Some(job) = waiting.next(apart.is_busy().then_some(IDLE)) {
        let Some(job) = job else {
            apart.rest();
            continue;
        };
        let turn = turns.take(job.user(), || apart.rest());
        let Job { id, file } = job;
        let began = Instant::now();
        let build = || build(&file, &mut cache, &mut apart);
        let built = catch_unwind(AssertUnwindSafe(build)).unwrap_or_else(|_| {
            warn_once(
                "unwind information",
                format_args!("{}: its unwind information can't be read", file.path),
            );
            Ok(None)
        });
        drop(turn);
        let built = Built {
            id,
            given_up: built.is_err(),
            table: built.unwrap_or_default(),
            took: began.elapsed(),
        };
        if done.send(built).is_err() {
            return;
        }
    }
}

fn build(
    file: &TargetFile,
    cache: &mut Cache,
    apart: &mut Apart,
) -> Result<Option<Table>, GivenUp> {
    if let Some(owner) = file.owner {
        return apart.table(file, owner, cache);
    }
    let Some(elf) = &file.elf else {
        return Ok(None);
    };
    match cache.table(&file.file, elf, None) {
        Ok((table, report)) => {
            log::debug!("{}: {report:?}", file.path);
            Ok(Some(table))
        }
        Err(error) => {
            log::debug!("{}: {error}", file.path);
            Ok(None)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::apart::tests::{honest, long_program};
    use super::*;
    use crate::tests::TempDir;

    /// While one user's files are read, those of others have their tables.
    #[test]
    fn one_users_tables_hold_nobody_elses_up() {
        let dir = TempDir::new("builder-users");
        let mut builder = Builder::start().unwrap();
        let long = long_program(48 << 20).file;
        let mut ask = |id, mut file: TargetFile, owner| {
            (file.trusted, file.owner) = (false, Some(owner));
            let file = Arc::new(file);
            assert!(builder.ask(Job { id, file }, true));
        };
        // As many as there may be threads for all users.
        for id in 0..MAX_THREADS as u64 {
            let file = long.try_clone().unwrap();
            let stat = rustix::fs::fstat(&file).unwrap();
            ask(id, TargetFile::new(file, &stat, "/long", None, true), 1001);
        }
        std::thread::sleep(Duration::from_millis(50));
        ask(100, honest(&dir), 1002);
        let until = Instant::now() + Duration::from_secs(60);
        let first = builder.wait(until).unwrap();
        assert!(first.id == 100 && first.table.is_some(), "{}", first.id);
    }
}
