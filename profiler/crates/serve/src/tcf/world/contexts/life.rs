//! Comings and goings: when a context is there, and what ends with what.
//!
//! What does not belong here: who is who (`contexts`), when what has ended is forgotten (`forget`).

use super::{Contexts, Entry, State};
use crate::tcf::world::ContextKey;
use profiler_model::*;

impl Contexts {
    /// When a context that is not shown yet begins.
    pub(in crate::tcf::world) fn unborn(&self, key: ContextKey) -> Option<Timestamp> {
        let entry = self.entries.get(&key)?;
        (entry.state == State::Unborn).then_some(entry.started)
    }

    /// A context is there from now on: a process with its main thread, a thread with its process.
    /// One that ended and is there all the same comes back, too, if `again` says so.
    pub(in crate::tcf::world) fn show(&mut self, key: ContextKey, again: bool) {
        let Some(entry) = self.entries.get(&key) else {
            return;
        };
        let process = entry.context.process;
        let wanted = match entry.state {
            State::Unborn => true,
            State::Lives => false,
            State::Ended(_) => again,
        };
        if !wanted {
            return;
        }
        self.show_process(process);
        if key != process && self.lives(process) {
            self.show_thread(process, key);
        }
    }

    fn lives(&self, key: ContextKey) -> bool {
        let entry = self.entries.get(&key);
        entry.is_some_and(|entry| entry.state == State::Lives)
    }

    fn show_process(&mut self, key: ContextKey) {
        let Some(entry) = self.entries.get(&key) else {
            return;
        };
        if entry.state == State::Lives {
            return;
        }
        let (pid, life) = (entry.context.life.pid, entry.life);
        let revived = entry.state != State::Unborn;
        if let Some(&before) = self.latest.get(&pid)
            && before != key
        {
            if revived {
                // Late news of a process whose id is another one's now.
                return;
            }
            self.end(before);
        }
        self.latest.insert(pid, key);
        self.shown.insert((pid, life), key);
        self.live(key);
        let main = self
            .entries
            .get(&key)
            .and_then(|entry| entry.whole.as_ref())
            .map(|whole| whole.main);
        // One that comes back does so because of another thread, or says that it has a new program.
        if let Some(main) = main
            && !revived
        {
            self.show_thread(key, main);
        }
    }

    fn show_thread(&mut self, process: ContextKey, key: ContextKey) {
        let Some(entry) = self.entries.get(&key) else {
            return;
        };
        let Some(tid) = entry.context.thread else {
            return;
        };
        if entry.state == State::Lives {
            return;
        }
        let life = entry.life;
        if let Some(&before) = self.latest_thread.get(&(process, tid))
            && before != key
            && !self.at_once()
        {
            self.end_thread(before);
        }
        self.latest_thread.insert((process, tid), key);
        if let Some(whole) = self.whole_mut(process) {
            whole.threads.insert((tid, life), key);
        }
        self.live(key);
    }

    fn live(&mut self, key: ContextKey) {
        let Some(entry) = self.entries.get_mut(&key) else {
            return;
        };
        if let (State::Ended(_), Some(whole)) = (entry.state, &mut entry.whole)
            && !std::mem::replace(&mut whole.overdue, false)
        {
            self.ended_processes -= 1;
        }
        entry.state = State::Lives;
        entry.context.ended = false;
        entry.context.gone = false;
        self.untold.remove(&key);
        let before = self.ids.insert(entry.context.id.clone(), key);
        if let Some(before) = before.filter(|&before| before != key) {
            self.untold.remove(&before);
        }
        self.pending.came(key);
    }

    /// A context has ended: a process with all its threads, with the last thread its process. Nothing
    /// ends where all of a capture is there at once.
    pub(in crate::tcf::world) fn end(&mut self, key: ContextKey) {
        let Some(entry) = self.entries.get(&key) else {
            return;
        };
        if self.at_once() || entry.state != State::Lives {
            return;
        }
        let process = entry.context.process;
        if let Some(whole) = &entry.whole {
            let threads: Vec<ContextKey> = whole.threads.values().copied().collect();
            for thread in threads {
                self.end_thread(thread);
            }
        } else {
            self.end_thread(key);
        }
        let last = self
            .entries
            .get(&process)
            .and_then(|entry| entry.whole.as_ref())
            .is_some_and(|whole| whole.threads.is_empty());
        if last {
            self.end_process(process);
        }
    }

    fn end_process(&mut self, key: ContextKey) {
        let Some(entry) = self.entries.get(&key) else {
            return;
        };
        if entry.state != State::Lives {
            return;
        }
        self.shown.remove(&(entry.context.life.pid, entry.life));
        self.ended_processes += 1;
        self.die(key);
    }

    fn end_thread(&mut self, key: ContextKey) {
        let Some(entry) = self.entries.get(&key) else {
            return;
        };
        let (process, life) = (entry.context.process, entry.life);
        let Some(tid) = entry.context.thread else {
            return;
        };
        if entry.state != State::Lives {
            return;
        }
        if let Some(whole) = self.whole_mut(process) {
            whole.threads.remove(&(tid, life));
        }
        self.die(key);
    }

    fn die(&mut self, key: ContextKey) {
        self.ends += 1;
        let Some(entry) = self.entries.get_mut(&key) else {
            return;
        };
        entry.state = State::Ended(self.ends);
        entry.context.ended = true;
        entry.context.gone = !self.pending.went(key, &entry.context);
        if !entry.context.gone {
            self.untold.insert(key);
        }
        self.ended.push_back((None, key, self.ends));
    }

    /// A process runs another program since then: of what was before only its main thread is left, or there again.
    /// Threads of the new program may have been told of already.
    pub(in crate::tcf::world) fn execute(
        &mut self,
        process: ContextKey,
        name: &str,
        at: Timestamp,
    ) {
        let Some(whole) = self.whole(process) else {
            return;
        };
        let main = whole.main;
        let others = whole.threads.values().copied();
        let is_old = |key: &ContextKey| {
            let entry = self.entries.get(key);
            *key != main && entry.is_some_and(|entry| entry.started < at)
        };
        let others: Vec<ContextKey> = others.filter(is_old).collect();
        self.show(main, true);
        if !self.at_once() {
            for thread in others {
                self.end_thread(thread);
            }
        }
        self.rename(process, name);
        for key in [process, main] {
            if self.lives(key) {
                self.pending.changed(key);
            }
        }
    }

    /// A new session tells of all that lives.
    pub(in crate::tcf::world) fn begin_session(&mut self) {
        self.session += 1;
    }

    /// What the present session has not told of has ended while there was none.
    pub(in crate::tcf::world) fn end_session_before(&mut self) {
        let session = self.session;
        let stale = |entry: &Entry| entry.state == State::Lives && entry.session < session;
        let keys: Vec<ContextKey> = self
            .entries
            .iter()
            .filter(|(_, entry)| stale(entry))
            .filter(|(_, entry)| match entry.context.thread {
                // The main thread need not be told of.
                Some(tid) => tid.0 != entry.context.life.pid.0,
                None => true,
            })
            .map(|(&key, _)| key)
            .collect();
        for key in keys {
            self.end(key);
        }
    }
}
