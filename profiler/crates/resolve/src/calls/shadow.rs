//! Shadow stacks: which traced calls are open, and which exit ends which.
//!
//! Hits of probes in order of time ([`Hit`]) -> calls that were entered and left ([`Left`]). Times
//! are nanoseconds of CLOCK_MONOTONIC, stack pointers those of the return addresses.
//! docs/adr/0004-pairing.md says why the rules are what they are.
//!
//! A thread may run on several stacks (signal stacks, coroutines); a goroutine has one of its own,
//! whatever thread runs it. All of it is bounded, whatever a target does.
//!
//! What does not belong here: functions, epochs, events (the parent module).

use std::collections::hash_map::Entry;
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use super::stack::{Around, How, Left, Same, Stack};
use super::thread::Thread;
use profiler_model::{Pid, Tid};

/// Most calls that are open at a time, over all stacks.
const MAX_OPEN: usize = 1 << 18;
/// Most threads that are kept, and most processes.
const MAX_THREADS: usize = 1 << 16;

/// Most goroutines of a process that are kept without an open call.
const MAX_QUIET: usize = 4096;

/// A hit of a probe.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hit {
    pub(super) at: u64,
    pub(super) pid: Pid,
    pub(super) tid: Tid,
    /// 0: the thread's own stacks; else a goroutine.
    pub(super) goroutine: u32,
    pub(super) probe: u32,
    /// Where the return address lies; of a goroutine: how far below the upper end of its stack.
    pub(super) sp: u64,
    /// The return address; 0: not known.
    pub(super) caller: u64,
    /// Exits of the function are seen by the kernel's return probe.
    pub(super) uretprobe: bool,
    /// Its exits were given up since: the record is from before.
    pub(super) unwatched: bool,
    /// The function is not watched at this time: its exit may come, or not.
    pub(super) over: bool,
}

/// All shadow stacks.
#[derive(Debug, Default)]
pub(super) struct Shadows {
    threads: FxHashMap<Tid, Thread>,
    processes: FxHashMap<Pid, Process>,
    /// Open calls on all stacks.
    open: usize,
    /// How often records were lost.
    losses: u32,
    /// Number of the last entry or throw.
    sequence: u64,
    /// No room is looked for before that.
    crowded_until: u64,
}

#[derive(Debug, Default)]
struct Process {
    threads: FxHashSet<Tid>,
    /// With the thread that the outermost of each one's open calls was entered on.
    goroutines: FxHashMap<u32, (Tid, Stack)>,
    /// Its threads switch between stacks on their own.
    switches: bool,
}

impl Shadows {
    /// Records were lost: what happens next may not fit what is known.
    pub(super) fn lost(&mut self) {
        self.losses = self.losses.wrapping_add(1);
    }

    /// The threads of a process switch between stacks on their own (coroutines).
    pub(super) fn switches(&mut self, pid: Pid) {
        if self.processes.len() >= MAX_THREADS && !self.processes.contains_key(&pid) {
            return;
        }
        let process = self.processes.entry(pid).or_default();
        process.switches = true;
        for tid in &process.threads {
            if let Some(thread) = self.threads.get_mut(tid) {
                thread.switches = true;
            }
        }
    }

    /// Whether a process is known to do that.
    pub(super) fn is_switching(&self, pid: Pid) -> bool {
        self.processes
            .get(&pid)
            .is_some_and(|process| process.switches)
    }

    /// Open calls on all stacks.
    #[cfg(test)]
    pub(super) fn open(&self) -> usize {
        self.open
    }

    /// The thread that the outermost open call of a goroutine was entered on; none if there is none. It may have been
    /// handed on to another thread since, and all its calls are told of one.
    pub(super) fn home(&self, pid: Pid, goroutine: u32) -> Option<Tid> {
        let goroutines = &self.processes.get(&pid)?.goroutines;
        let (tid, stack) = goroutines.get(&goroutine)?;
        (!stack.open().is_empty()).then_some(*tid)
    }

    /// A function was entered: its depth. None if there is no room for it; then its exit will have
    /// no entry.
    #[inline]
    pub(super) fn enter(&mut self, hit: &Hit, out: &mut Vec<Left>) -> Option<u32> {
        self.sequence += 1;
        if self.open >= MAX_OPEN {
            return None;
        }
        let (sequence, losses, first) = (self.sequence, self.losses, out.len());
        let depth = if hit.goroutine == 0 {
            self.thread(hit)?.enter(hit, sequence, losses, out)
        } else {
            self.goroutine(hit, Same::Entered(0), out, |hit, stack, _, _| {
                stack.enter(hit, sequence, losses, false)
            })?
        };
        self.count(out.len() - first);
        self.open += usize::from(depth.is_some());
        depth
    }

    /// A function was left; whether its entry was seen.
    #[inline]
    pub(super) fn exit(&mut self, hit: &Hit, out: &mut Vec<Left>) -> bool {
        let (losses, first) = (self.losses, out.len());
        let matched = if hit.goroutine == 0 {
            let Some(thread) = self.thread(hit) else {
                return false;
            };
            let matched = thread.exit(hit, losses, out);
            if std::mem::take(&mut thread.learned) {
                self.switches(hit.pid);
            }
            matched
        } else {
            let matched = self.goroutine(hit, Same::Kept, out, |hit, stack, around, out| {
                let Some(index) = stack.find(hit.probe, hit.sp) else {
                    stack.leave_below(hit.sp, Same::Exited, around, out);
                    return false;
                };
                stack.leave_from(index + 1, hit.sp, around, out);
                out.extend(stack.pop(hit.at, How::Return));
                stack.take_off(hit.at, out);
                true
            });
            matched.unwrap_or(false)
        };
        self.count(out.len() - first);
        matched
    }

    /// A function was passed, or a call is told as a whole, since `began`: how many calls enclose
    /// it, and of a whole one the time it spent itself.
    pub(super) fn pass(
        &mut self,
        hit: &Hit,
        began: Option<u64>,
        out: &mut Vec<Left>,
    ) -> (u32, u64) {
        let (losses, first) = (self.losses, out.len());
        let passed = if hit.goroutine == 0 {
            self.thread(hit).map(|thread| match began {
                Some(began) => thread.whole(hit, began, losses, out),
                None => (thread.pass(hit, losses, out), 0),
            })
        } else {
            self.goroutine(hit, Same::Kept, out, |hit, stack, _, _| {
                let self_ns = began.map_or(0, |began| stack.whole(began, hit.at));
                (stack.depth(), self_ns)
            })
        };
        self.count(out.len() - first);
        passed.unwrap_or((0, began.map_or(0, |began| hit.at.saturating_sub(began))))
    }

    /// An exception is thrown: whether it is a new one, and what is known of its type.
    pub(super) fn throw(
        &mut self,
        hit: &Hit,
        kind: Option<Arc<str>>,
        out: &mut Vec<Left>,
    ) -> (bool, Option<Arc<str>>) {
        self.sequence += 1;
        let (sequence, losses, first) = (self.sequence, self.losses, out.len());
        let Some(thread) = self.thread(hit) else {
            return (true, kind);
        };
        let new = thread.throw(hit, kind, sequence, losses, out);
        let kind = thread.thrown().cloned();
        self.count(out.len() - first);
        (new, kind)
    }

    /// A thread begins to leave all its functions because it is to end.
    pub(super) fn unwind(&mut self, hit: &Hit, out: &mut Vec<Left>) {
        self.sequence += 1;
        let (sequence, losses, first) = (self.sequence, self.losses, out.len());
        if let Some(thread) = self.thread(hit) {
            thread.unwind(hit, sequence, losses, out);
        }
        self.count(out.len() - first);
    }

    /// An exception has landed in the function that called this one; it goes on from there if it
    /// `resumes`.
    pub(super) fn land(&mut self, hit: &Hit, resumes: bool, out: &mut Vec<Left>) {
        self.sequence += 1;
        let (sequence, losses, first) = (self.sequence, self.losses, out.len());
        if let Some(thread) = self.thread(hit) {
            thread.land(hit, resumes, sequence, losses, out);
        }
        self.count(out.len() - first);
    }

    /// A longjmp is called.
    pub(super) fn jump(&mut self, hit: &Hit, out: &mut Vec<Left>) {
        let (losses, first) = (self.losses, out.len());
        if let Some(thread) = self.thread(hit) {
            thread.jump(hit, losses, out);
        }
        self.count(out.len() - first);
    }

    /// A thread has ended.
    pub(super) fn end_thread(&mut self, pid: Pid, tid: Tid, at: u64, out: &mut Vec<Left>) {
        let Entry::Occupied(entry) = self.threads.entry(tid) else {
            return;
        };
        if entry.get().pid != pid {
            return;
        }
        let first = out.len();
        entry.remove().end(at, How::Terminated, out);
        self.count(out.len() - first);
        if let Some(process) = self.processes.get_mut(&pid) {
            process.threads.remove(&tid);
        }
    }

    /// A process has ended or runs another program: its threads that have open calls, with those,
    /// goroutines last.
    pub(super) fn end_process(&mut self, pid: Pid, at: u64) -> Vec<(Tid, Vec<Left>)> {
        let Some(process) = self.processes.remove(&pid) else {
            return Vec::new();
        };
        let mut ended = Vec::new();
        for tid in process.threads {
            let mut left = Vec::new();
            if let Some(mut thread) = self.threads.remove(&tid) {
                thread.end(at, How::Terminated, &mut left);
            }
            self.count(left.len());
            ended.push((tid, left));
        }
        for (tid, mut stack) in process.goroutines.into_values() {
            let mut left = Vec::new();
            stack.end(at, &How::Terminated, &mut left);
            self.count(left.len());
            ended.push((tid, left));
        }
        ended.retain(|(_, left)| !left.is_empty());
        ended
    }

    /// Hits are missing from now on, or were until now: ends all open calls, of which nobody knows
    /// when they are left. What is known of stacks and of exceptions under way is forgotten with them;
    /// which processes switch stacks is not.
    pub(super) fn suspend(&mut self, at: u64, how: &How) -> Vec<(Tid, Vec<Left>)> {
        let mut ended = Vec::new();
        for (tid, mut thread) in self.threads.drain() {
            let mut left = Vec::new();
            thread.end(at, how.clone(), &mut left);
            ended.push((tid, left));
        }
        for process in self.processes.values_mut() {
            process.threads.clear();
            for (tid, mut stack) in process.goroutines.drain().map(|(_, seen)| seen) {
                let mut left = Vec::new();
                stack.end(at, how, &mut left);
                ended.push((tid, left));
            }
        }
        self.open = 0;
        ended.retain(|(_, left)| !left.is_empty());
        ended.sort_by_key(|(tid, _)| *tid);
        ended
    }

    /// Exits of a function are not watched any more.
    pub(super) fn unwatch(&mut self, probe: u32) {
        for thread in self.threads.values_mut() {
            thread.unwatch(probe);
        }
    }

    /// A function is not watched any more from now on: takes off its open calls, by the thread of each.
    pub(super) fn give_up(&mut self, probe: u32, at: u64) -> Vec<(Tid, Vec<Left>)> {
        let mut ended = Vec::new();
        for (&tid, thread) in &mut self.threads {
            let mut left = Vec::new();
            thread.give_up(probe, at, &mut left);
            ended.push((tid, left));
        }
        let processes = self.processes.values_mut();
        for (tid, stack) in processes.flat_map(|process| process.goroutines.values_mut()) {
            let mut left = Vec::new();
            stack.give_up(probe, at, &mut left);
            ended.push((*tid, left));
        }
        ended.retain(|(_, left)| !left.is_empty());
        ended.sort_by_key(|(tid, _)| *tid);
        self.count(ended.iter().map(|(_, left)| left.len()).sum());
        ended
    }

    /// Forgets threads whose end was not seen.
    pub(super) fn retain(&mut self, lives: impl Fn(Pid, Tid) -> bool) {
        let (mut open, processes) = (self.open, &mut self.processes);
        self.threads.retain(|&tid, thread| {
            let keep = lives(thread.pid, tid);
            if !keep {
                open = open.saturating_sub(thread.open_calls());
                if let Some(process) = processes.get_mut(&thread.pid) {
                    process.threads.remove(&tid);
                }
            }
            keep
        });
        processes.retain(|&pid, process| {
            let keep = !process.threads.is_empty() || lives(pid, Tid(pid.0));
            if !keep {
                let stacks = process.goroutines.values();
                let calls: usize = stacks.map(|(_, stack)| stack.open().len()).sum();
                open = open.saturating_sub(calls);
            }
            keep
        });
        self.open = open;
    }

    /// See [`Thread::pending_returns`].
    pub(super) fn pending_returns(&self, tid: Tid) -> Vec<u64> {
        self.threads
            .get(&tid)
            .map_or_else(Vec::new, Thread::pending_returns)
    }

    fn count(&mut self, left: usize) {
        self.open = self.open.saturating_sub(left);
    }

    /// The thread of a hit; none if there are too many.
    #[inline]
    fn thread(&mut self, hit: &Hit) -> Option<&mut Thread> {
        // Looked up twice: the borrow of the first would outlive the insertion.
        match self.threads.get(&hit.tid) {
            Some(thread) if thread.pid == hit.pid => {}
            _ => self.add_thread(hit)?,
        }
        self.threads.get_mut(&hit.tid)
    }

    #[cold]
    fn add_thread(&mut self, hit: &Hit) -> Option<()> {
        if self.threads.len() >= MAX_THREADS || self.processes.len() >= MAX_THREADS {
            if hit.at < self.crowded_until {
                return None;
            }
            self.crowded_until = hit.at.saturating_add(1_000_000_000);
            let busy = |thread: &Thread| !thread.is_idle();
            self.threads.retain(|_, thread| busy(thread));
            let threads = &self.threads;
            self.processes.retain(|_, process| {
                process.threads.retain(|tid| threads.contains_key(tid));
                !process.threads.is_empty() || !process.goroutines.is_empty()
            });
            if self.threads.len() >= MAX_THREADS || self.processes.len() >= MAX_THREADS {
                return None;
            }
        }
        let process = self.processes.entry(hit.pid).or_default();
        process.threads.insert(hit.tid);
        let thread = Thread::new(hit.pid, process.switches, hit.sp);
        if let Some(before) = self.threads.insert(hit.tid, thread) {
            // An earlier life of that id, whose end was lost: nobody can be told.
            self.open = self.open.saturating_sub(before.open_calls());
            if let Some(process) = self.processes.get_mut(&before.pid) {
                process.threads.remove(&hit.tid);
            }
        }
        Some(())
    }

    /// Does something on the stack of a goroutine, after leaving what is below. Its addresses are
    /// turned over, so that they grow downwards as others do.
    fn goroutine<T>(
        &mut self,
        hit: &Hit,
        same: Same,
        out: &mut Vec<Left>,
        act: impl FnOnce(&Hit, &mut Stack, &Around<'_>, &mut Vec<Left>) -> T,
    ) -> Option<T> {
        if self.processes.len() >= MAX_THREADS && !self.processes.contains_key(&hit.pid) {
            return None;
        }
        let hit = Hit {
            sp: !hit.sp,
            ..*hit
        };
        let goroutines = &mut self.processes.entry(hit.pid).or_default().goroutines;
        let (tid, stack) = goroutines
            .entry(hit.goroutine)
            .or_insert_with(|| (hit.tid, Stack::of(hit.goroutine, hit.sp)));
        if stack.open().is_empty() {
            *tid = hit.tid;
        }
        let around = Around {
            at: hit.at,
            losses: self.losses,
            jumped: false,
            switches: false,
            flights: &[],
        };
        if stack.leave_below(hit.sp, same, &around, out).is_some() || !out.is_empty() {
            stack.take_off(hit.at, out);
        }
        let done = act(&hit, stack, &around, out);
        let forgettable = !stack.has_wholes();
        if stack.open().is_empty() && (forgettable || goroutines.len() > MAX_QUIET) {
            goroutines.remove(&hit.goroutine);
        }
        Some(done)
    }
}
