//! Reads and plans files that are mapped while tracing, on a thread of its own: a large one takes
//! seconds, for which neither events nor the end of a recording wait.
//!
//! Files -> what was found in them, in the order in which they were asked for; a file is looked at once
//! at a time. It ends when it is dropped, within the function that it is at.
//!
//! What does not belong here: what is found (`planned`), and what becomes of it (`plans`).

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use rustc_hash::FxHashSet;

use super::asked::Asked;
use super::contents::Reader;
use super::planned::{Before, Looked, look};
use profiler_resolve::objects::{FileId, TargetObject};

/// Most files that wait to be looked at; more are asked for again when there is room.
const MAX_UNDER_WAY: usize = 1024;

/// A file, and what was found in it.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) target: TargetObject,
    pub(super) looked: Looked,
}

/// The thread, and what it has been asked for.
#[derive(Debug)]
pub(super) struct Planner {
    asked: Arc<Asked>,
    thread: Option<Thread>,
    under_way: FxHashSet<FileId>,
    /// What has come while somebody waited for another file.
    found: VecDeque<Found>,
}

#[derive(Debug)]
struct Thread {
    jobs: Sender<(TargetObject, Before)>,
    done: Receiver<Found>,
    /// It is to end at once.
    over: Arc<AtomicBool>,
}

impl Planner {
    pub(super) fn new(asked: Arc<Asked>) -> Planner {
        Planner {
            asked,
            thread: None,
            under_way: FxHashSet::default(),
            found: VecDeque::new(),
        }
    }

    /// Asks for a file. Says whether it was not asked for already; what finds no room is to be asked for
    /// again.
    pub(super) fn ask(&mut self, target: &TargetObject, before: &Before) -> bool {
        if self.under_way.len() >= MAX_UNDER_WAY || !self.under_way.insert(target.id) {
            return false;
        }
        let job = (target.clone(), before.clone());
        let sent = match self.thread() {
            Ok(thread) => thread.jobs.send(job).is_ok(),
            Err(error) => {
                log::warn!("no thread to read what is mapped from now on: {error}");
                false
            }
        };
        if !sent {
            self.failed(target.clone(), "nothing reads it");
        }
        true
    }

    fn failed(&mut self, target: TargetObject, why: &str) {
        let looked = Looked::Unreadable(why.to_owned());
        self.found.push_back(Found { target, looked });
    }

    fn thread(&mut self) -> std::io::Result<&Thread> {
        let thread = match self.thread.take() {
            Some(thread) => thread,
            None => Thread::start(Arc::clone(&self.asked))?,
        };
        Ok(self.thread.insert(thread))
    }

    /// What was found since the last time.
    pub(super) fn take(&mut self) -> Vec<Found> {
        if let Some(thread) = &self.thread {
            self.found.extend(thread.done.try_iter());
        }
        let found: Vec<Found> = self.found.drain(..).collect();
        for one in &found {
            self.under_way.remove(&one.target.id);
        }
        found
    }

    /// Waits until nothing is under way any more, at most so long.
    pub(super) fn wait(&mut self, longest: Duration) {
        let until = Instant::now() + longest;
        while self.found.len() < self.under_way.len() {
            let left = until.saturating_duration_since(Instant::now());
            let Some(thread) = &self.thread else {
                return;
            };
            match thread.done.recv_timeout(left) {
                Ok(found) => self.found.push_back(found),
                Err(_) => return,
            }
        }
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
    }
}

impl Thread {
    fn start(asked: Arc<Asked>) -> std::io::Result<Thread> {
        let (jobs, todo) = channel::<(TargetObject, Before)>();
        let (tell, done) = channel();
        let over = Arc::new(AtomicBool::new(false));
        let is_over = Arc::clone(&over);
        let thread = std::thread::Builder::new().name("plans".to_owned());
        thread.spawn(move || {
            let given_up = || is_over.load(Ordering::Relaxed);
            let mut reader = Reader::new();
            for (target, before) in todo {
                // What a file holds may be made to hurt: it loses its functions, nobody else's.
                let looked = || look(&mut reader, &asked, &target, &before, &given_up);
                let looked = catch_unwind(AssertUnwindSafe(looked))
                    .unwrap_or_else(|_| Looked::Unreadable("reading it failed".to_owned()));
                if given_up() || tell.send(Found { target, looked }).is_err() {
                    return;
                }
            }
        })?;
        Ok(Thread { jobs, done, over })
    }
}
