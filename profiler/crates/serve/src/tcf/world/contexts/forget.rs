//! How long what has ended is known: for a while, while it is held, and only so many.
//!
//! What does not belong here: when something ends (`life`).

use std::time::Instant;

use rustc_hash::FxHashSet;

use super::{Contexts, State};
use crate::tcf::world::ContextKey;

/// Most processes that have ended and are still known.
const MAX_ENDED_PROCESSES: usize = 10_000;
/// Most processes and threads that have ended and are still known.
const MAX_ENDED: usize = 100_000;

impl Contexts {
    /// Forgets what ended long ago.
    pub(in crate::tcf::world) fn tick(&mut self, now: Instant) {
        for (at, ..) in self.ended.iter_mut().rev() {
            if at.is_some() {
                break;
            }
            *at = Some(now);
        }
        while let Some(&(Some(at), ..)) = self.ended.front()
            && now.saturating_duration_since(at) >= self.afterlife
        {
            self.forget_oldest();
        }
    }

    /// Processes that were forgotten since the last call, the oldest beyond the limits with them.
    pub(in crate::tcf::world) fn take_forgotten(&mut self) -> Vec<ContextKey> {
        while (self.ended_processes > MAX_ENDED_PROCESSES || self.ended.len() > MAX_ENDED)
            && !self.ended.is_empty()
        {
            self.forget_oldest();
        }
        std::mem::take(&mut self.forgotten)
    }

    fn forget_oldest(&mut self) {
        let Some((_, key, end)) = self.ended.pop_front() else {
            return;
        };
        let Some(entry) = self.entries.get(&key) else {
            return;
        };
        if entry.state != State::Ended(end) {
            return;
        }
        let process = entry.context.process;
        let Some(whole) = self.whole_mut(process) else {
            return;
        };
        if key == whole.main {
            // That goes with its process, whose last one it need not be.
        } else if whole.held == 0 {
            self.forget(key);
        } else if key == process {
            whole.overdue = true;
            self.ended_processes -= 1;
        } else {
            whole.overdue_threads = true;
        }
    }

    fn forget(&mut self, key: ContextKey) {
        let Some(entry) = self.entries.remove(&key) else {
            return;
        };
        let context = &entry.context;
        self.untold.remove(&key);
        if self.ids.get(&context.id) == Some(&key) {
            self.ids.remove(&context.id);
        }
        match entry.whole {
            Some(whole) => {
                let (pid, started) = (context.life.pid, entry.started);
                if !whole.overdue {
                    self.ended_processes = self.ended_processes.saturating_sub(1);
                }
                self.by_life.remove(&(pid, started));
                for alias in whole.aliases {
                    self.by_life.remove(&(pid, alias));
                }
                if self.latest.get(&pid) == Some(&key) {
                    self.latest.remove(&pid);
                }
                for thread in whole.known {
                    self.forget(thread);
                }
                self.forgotten.push(key);
            }
            None => {
                let process = context.process;
                let Some(tid) = context.thread else {
                    return;
                };
                self.by_thread.remove(&(process, tid, entry.started));
                if self.latest_thread.get(&(process, tid)) == Some(&key) {
                    self.latest_thread.remove(&(process, tid));
                }
                if let Some(whole) = self.whole_mut(process) {
                    whole.known.remove(&key);
                }
            }
        }
    }

    /// Keeps a process although it has ended, or no longer; each of the two as often as the other.
    pub(in crate::tcf::world) fn hold(&mut self, key: ContextKey, hold: bool) {
        let Some(process) = self.entries.get(&key).map(|entry| entry.context.process) else {
            return;
        };
        let Some(entry) = self.entries.get_mut(&process) else {
            return;
        };
        let Some(whole) = &mut entry.whole else {
            return;
        };
        if hold {
            whole.held = whole.held.saturating_add(1);
            return;
        }
        whole.held = whole.held.saturating_sub(1);
        if whole.held > 0 {
            return;
        }
        if whole.overdue {
            self.forget(process);
        } else if std::mem::replace(&mut whole.overdue_threads, false) {
            let main = whole.main;
            let known: Vec<ContextKey> = whole.known.iter().copied().collect();
            let ended = self.ended.iter().map(|(_, key, _)| *key);
            let due: FxHashSet<ContextKey> = ended.collect();
            for key in known {
                let entry = self.entries.get(&key);
                let ended = entry.is_some_and(|entry| matches!(entry.state, State::Ended(_)));
                if key != main && ended && !due.contains(&key) {
                    self.forget(key);
                }
            }
        }
    }
}
