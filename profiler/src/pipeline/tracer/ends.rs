//! Traced processes that die of a signal.
//!
//! Ends of processes and hits of probes -> what is said of a death, and probes taken out of the program
//! that died. A probe should never be the cause; if one is, it shall not happen twice.
//!
//! What does not belong here: how a status is found (`target::fate`).

use rustc_hash::{FxHashMap, FxHashSet};

use super::load::Level;
use super::plans::{Plans, TracedObject};
use super::{Tracer, gap};
use profiler_model::raw::{RawBody, RawEvent};
use profiler_model::sorting::InOrder;
use profiler_model::{GapReason, Pid, Tid, Timestamp};
use profiler_probe::{Probe, now};
use profiler_resolve::objects::{FileId, TargetObject};
use profiler_target::fate::{self, Fate, Watched};
use profiler_target::translator;

/// Most processes whose ends are looked at.
const MAX_WATCHED: usize = 1024;
/// Most threads whose last hits are remembered.
const MAX_THREADS: usize = 1 << 14;
/// Hits that are remembered of a thread.
const HITS: usize = 4;
/// How often the end of a process without a descriptor is looked at.
const TRIES: u8 = 5;

/// Signals that a program brings upon itself. Others were sent by somebody.
const FAULTS: [(i32, &str); 7] = [
    (libc::SIGILL, "SIGILL"),
    (libc::SIGTRAP, "SIGTRAP"),
    (libc::SIGABRT, "SIGABRT"),
    (libc::SIGBUS, "SIGBUS"),
    (libc::SIGFPE, "SIGFPE"),
    (libc::SIGSEGV, "SIGSEGV"),
    (libc::SIGSYS, "SIGSYS"),
];

/// What is known of traced processes until they end.
#[derive(Debug, Default)]
pub(super) struct Ends {
    watched: FxHashMap<Pid, Watched>,
    /// The programs that processes run.
    programs: FxHashMap<Pid, FileId>,
    /// The last hits of each thread, oldest first.
    hits: FxHashMap<Tid, LastHits>,
    /// Main threads that have ended, as was seen since the last call of `remember`: what they have done last may still be
    /// in the buffer of another processor, which was taken in before.
    just_ended: Vec<Pid>,
    /// Those of which all is known, and how often was looked at them.
    ended: Vec<(Pid, u8)>,
    /// The command, once it was waited for, and its status: then the kernel may tell no more.
    waited_for: Option<(Pid, i32)>,
    /// Programs that have died, or would.
    dead: FxHashSet<FileId>,
    /// Processes that were let go for that, and since when.
    let_go: FxHashMap<Pid, Timestamp>,
}

#[derive(Debug)]
struct LastHits {
    pid: Pid,
    hits: Vec<(Timestamp, u32)>,
}

impl Ends {
    /// A process that is traced from now on.
    pub(super) fn watch(&mut self, pid: Pid) {
        if self.watched.len() < MAX_WATCHED && !self.watched.contains_key(&pid) {
            self.watched
                .extend(Watched::open(pid).map(|watched| (pid, watched)));
        }
    }

    /// Notes what a process runs; whether it runs copies of code, in which a probe is a trap. Where probes
    /// are not `shared` by all processes, whatever runs such a program gets none.
    pub(super) fn is_translator(&mut self, pid: Pid, mapped: &TargetObject, shared: bool) -> bool {
        if mapped.is_main {
            self.programs.insert(pid, mapped.id);
        }
        if !translator::is_one(&mapped.path) {
            return false;
        }
        if self.dead.insert(mapped.id) {
            let path = &mapped.path;
            match shared {
                true => log::warn!(
                    "pid {pid} runs copies of other programs' code ({path}): probes in all processes end \
                     what it runs where it comes to one"
                ),
                false => log::warn!(
                    "what {path} runs is not traced: it runs copies of the code, and would be ended by the \
                     copy of a probe"
                ),
            }
        }
        true
    }

    /// A child runs what its parent does.
    pub(super) fn forked(&mut self, parent: Pid, child: Pid) {
        match self.programs.get(&parent).copied() {
            Some(program) => self.programs.insert(child, program),
            // Its id may have been that of a process before.
            None => self.programs.remove(&child),
        };
    }

    /// Whether a process runs a program that has died before, or would.
    pub(super) fn runs_dead(&self, pid: Pid) -> bool {
        let program = self.programs.get(&pid);
        program.is_some_and(|program| self.dead.contains(program))
    }

    /// Processes that are not traced since then.
    pub(super) fn leave_alone(&mut self, pids: impl IntoIterator<Item = Pid>, since: Timestamp) {
        for pid in pids {
            if self.let_go.len() < MAX_THREADS {
                self.let_go.entry(pid).or_insert(since);
            }
        }
    }

    /// The main thread of a process has ended.
    pub(super) fn ended(&mut self, pid: Pid) {
        if self.ended.len() + self.just_ended.len() < MAX_THREADS {
            self.just_ended.push(pid);
        }
    }

    /// No more is taken in of those that have ended.
    pub(super) fn all_is_known(&mut self) {
        let just_ended = self.just_ended.drain(..);
        self.ended.extend(just_ended.map(|pid| (pid, 0)));
    }

    /// Remembers which probes each thread has hit last: of all that was in the buffers, before ends among it are noted.
    pub(super) fn remember(&mut self, events: &[RawEvent]) {
        self.all_is_known();
        let calls = |event: &RawEvent| match &event.body {
            RawBody::Call(call) => Some((call.tid, call.pid, event.at, call.probe)),
            _ => None,
        };
        // Most often many hits of one thread follow each other, and the last of them count.
        let same = |a: &RawEvent, b: &RawEvent| match (calls(a), calls(b)) {
            (Some(a), Some(b)) => a.0 == b.0,
            (a, b) => a.is_none() && b.is_none(),
        };
        for run in events.chunk_by(same) {
            for event in &run[run.len().saturating_sub(HITS)..] {
                let Some((tid, pid, at, probe)) = calls(event) else {
                    break;
                };
                if self.hits.len() >= MAX_THREADS && !self.hits.contains_key(&tid) {
                    self.hits.clear();
                }
                let none = || LastHits {
                    pid,
                    hits: Vec::new(),
                };
                let last = self.hits.entry(tid).or_insert_with(none);
                if last.pid != pid {
                    *last = none();
                }
                if last.hits.len() == HITS {
                    last.hits.remove(0);
                }
                last.hits.push((at, probe));
            }
        }
    }

    /// The thread of a process that has hit probes last, and which, the last one first.
    fn last_hits(&self, pid: Pid) -> Option<(Tid, Vec<u32>)> {
        let of = self.hits.iter().filter(|(_, last)| last.pid == pid);
        let (&tid, last) = of.max_by_key(|(_, last)| last.hits.last().map(|&(at, _)| at))?;
        let mut probes: Vec<u32> = last.hits.iter().rev().map(|&(_, probe)| probe).collect();
        probes.dedup();
        Some((tid, probes))
    }

    /// Processes of which it is known by now how they have ended.
    fn fates(&mut self) -> Vec<(Pid, i32)> {
        let mut fates = Vec::new();
        let (watched, waited_for) = (&self.watched, self.waited_for);
        self.ended.retain_mut(|(pid, tries)| {
            *tries = tries.saturating_add(1);
            let fate = match watched.get(pid) {
                Some(watched) => watched.fate(*pid),
                None => match fate::zombie(*pid) {
                    Some(status) => Fate::Ended(status),
                    None if *tries < TRIES => Fate::Alive,
                    None => Fate::Unknown,
                },
            };
            match fate {
                Fate::Alive => return true,
                Fate::Ended(status) => fates.push((*pid, status)),
                Fate::Unknown => {
                    let known = waited_for.filter(|(waited, _)| waited == pid);
                    fates.push((*pid, known.map_or(0, |(_, status)| status)));
                }
            }
            false
        });
        fates
    }

    /// What is said of the hits of a process that has died.
    fn describe_hits(&self, pid: Pid, plans: &Plans) -> String {
        let Some((tid, probes)) = self.last_hits(pid) else {
            return "it had hit no probe".to_owned();
        };
        let names = probes.iter().map(|&number| {
            let state = &plans.probes[number];
            let file = &plans.objects[state.object].target.path;
            let file = file.rsplit('/').next().unwrap_or_default();
            format!("{} in {file}", state.plan.function.name)
        });
        let names: Vec<String> = names.collect();
        format!("thread {tid} hit these probes last: {}", names.join(", "))
    }

    /// The end: what was let go is missing since.
    pub(super) fn close(&mut self, at: Timestamp, out: &mut Vec<RawEvent>) {
        let mut let_go: Vec<(Pid, Timestamp)> = self.let_go.drain().collect();
        let_go.order_by_key(|&(pid, since)| (since, pid.0));
        for (pid, since) in let_go {
            out.push(gap(at, since, None, Some(pid), GapReason::Detached));
        }
    }

    fn forget(&mut self, pid: Pid) {
        self.watched.remove(&pid);
        self.programs.remove(&pid);
        self.hits.retain(|_, last| last.pid != pid);
    }
}

impl Tracer {
    /// Remembers which probes were hit last; to be called with all that was taken in at a time.
    pub(in crate::pipeline) fn remember(&mut self, events: &[RawEvent]) {
        self.ends.remember(events);
    }

    /// The command has ended with this status, as of wait(2).
    pub(in crate::pipeline) fn waited_for(&mut self, command: Pid, status: i32) {
        self.ends.waited_for = Some((command, status));
    }

    /// Looks how traced processes have ended. A program that a signal has ended has no probes from
    /// then on.
    pub(super) fn look_at_ends(&mut self, probe: &mut Probe) {
        for (pid, status) in self.ends.fates() {
            let signal = fate::signal_of(status);
            let fault = FAULTS.iter().find(|&&(number, _)| signal == Some(number));
            if let Some((_, fault)) = fault {
                self.let_die(probe, pid, fault);
            } else if let Some(signal) = signal {
                log::info!("process {pid} was ended by signal {signal}");
            }
            self.ends.forget(pid);
        }
    }

    fn let_die(&mut self, probe: &mut Probe, pid: Pid, signal: &str) {
        let program = self.ends.programs.get(&pid).copied();
        let path = program
            .and_then(|program| {
                self.plans
                    .objects
                    .iter()
                    .find(|object| object.target.id == program)
            })
            .map_or_else(
                || "its program".to_owned(),
                |object| object.target.path.to_string(),
            );
        let last = self.ends.describe_hits(pid, &self.plans);
        log::warn!(
            "process {pid} ({path}) was ended by {signal} while it was traced; {last}. No probes are left \
             in {path} for the rest of this recording. If it lives without them, please report this"
        );
        let at = now();
        if self.asked.shared {
            self.clear_objects(probe, pid, program, at);
            return;
        }
        let Some(program) = program else { return };
        self.ends.dead.insert(program);
        let runs = |other: &Pid| self.ends.programs.get(other) == Some(&program);
        let others = self.targets.processes();
        let others: Vec<Pid> = others
            .filter(|other| *other != pid && runs(other))
            .collect();
        self.let_go(probe, others, at);
    }

    /// Takes all probes out of the program that has died and of the files whose probes it hit last.
    fn clear_objects(
        &mut self,
        probe: &mut Probe,
        pid: Pid,
        program: Option<FileId>,
        at: Timestamp,
    ) {
        let hits = self.ends.last_hits(pid);
        let hit = hits.iter().flat_map(|(_, probes)| probes);
        let mut objects: FxHashSet<usize> = hit
            .map(|&number| self.plans.probes[number].object)
            .collect();
        let main = |object: &TracedObject| Some(object.target.id) == program;
        objects.extend(self.plans.objects.iter().position(main));
        let mut numbers = Vec::new();
        for object in objects {
            numbers.extend(self.plans.objects[object].probes.clone());
        }
        for &number in &numbers {
            let state = &mut self.plans.probes[number];
            state.level = Level::Off;
            state.since = at;
        }
        self.move_probes(probe, &numbers);
    }

    /// Takes all probes out of processes that live on; since then they are not traced.
    pub(super) fn let_go(
        &mut self,
        probe: &mut Probe,
        processes: impl IntoIterator<Item = Pid>,
        since: Timestamp,
    ) {
        let processes = FxHashSet::from_iter(processes);
        self.ends.leave_alone(processes.iter().copied(), since);
        self.forget(probe, &processes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use profiler_model::Cpu;
    use profiler_model::raw::{RawCall, RawEdge};

    fn hit(at: u64, tid: u32, probe: u32) -> RawEvent {
        RawEvent {
            at: Timestamp(at),
            cpu: Cpu(0),
            body: RawBody::Call(RawCall {
                pid: Pid(tid / 10),
                tid: Tid(tid),
                probe,
                site: 0,
                edge: RawEdge::Enter,
                after_loss: false,
                stack: 0,
                sp: 0,
                caller: 0,
                began: Timestamp(0),
                values: None,
            }),
        }
    }

    #[test]
    fn the_thread_that_hit_last_is_named_with_its_last_probes() {
        let mut ends = Ends::default();
        ends.remember(&[hit(1, 10, 1), hit(2, 10, 2), hit(9, 11, 7), hit(3, 10, 3)]);
        ends.remember(&[hit(4, 10, 4), hit(5, 10, 5), hit(6, 10, 5), hit(7, 20, 8)]);
        assert_eq!(ends.last_hits(Pid(1)), Some((Tid(11), vec![7])));
        ends.remember(&[hit(10, 10, 6)]);
        assert_eq!(ends.last_hits(Pid(1)), Some((Tid(10), vec![6, 5, 4])));
        assert_eq!(ends.last_hits(Pid(2)), Some((Tid(20), vec![8])));
        ends.forget(Pid(1));
        assert_eq!(ends.last_hits(Pid(1)), None);
    }

    /// The buffer of the processor on which it hit its last probe was taken in before that, and the one of the processor on
    /// which it ended after it.
    #[test]
    fn an_end_is_looked_at_when_what_came_before_it_is_taken_in() {
        let nobody = Pid(u32::MAX);
        let mut ends = Ends {
            waited_for: Some((nobody, libc::SIGSEGV)),
            ..Ends::default()
        };
        ends.remember(&[hit(1, 10, 1)]);
        ends.ended(nobody);
        for _ in 0..2 * TRIES {
            assert_eq!(ends.fates(), []);
        }
        ends.remember(&[hit(2, 10, 2)]);
        let fates = (0..TRIES).find_map(|_| ends.fates().pop());
        assert_eq!(fates, Some((nobody, libc::SIGSEGV)));
    }
}
