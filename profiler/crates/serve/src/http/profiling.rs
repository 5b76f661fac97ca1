//! A session of a client: what is seen of its threads -> their buffers.
//!
//! Each thread has its own ticks and its own buffer. Pauses are spans of time, so that samples which come late are where
//! they belong. Times are nanoseconds of CLOCK_MONOTONIC, or of a capture's own. What does not belong here: what stacks
//! are, who may have a session.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::sync::mpsc;

use profiler_report::derive::{Tick, Ticks};
use profiler_wire::self_profiling::{Error, Session, State, Taken, milliseconds};

use super::stacks::StackKey;
use crate::machine::Life;
use crate::world::{ThreadKey, World};

/// Events that a client has not read; with more of them it is cut off.
pub(super) const UNREAD: usize = 64;
/// Who listens to a session at a time.
const LISTENERS: usize = 16;
/// Pauses that are remembered; the oldest go, and long past ones before that.
const PAUSES: usize = 1024;

/// What a session profiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// All threads of a process.
    Process(Life),
    /// One thread.
    Thread(ThreadKey),
}

impl Target {
    pub(super) fn life(self) -> Life {
        match self {
            Target::Process(life) => life,
            Target::Thread(key) => key.process,
        }
    }

    pub(super) fn has(self, key: ThreadKey) -> bool {
        match self {
            Target::Process(life) => key.process == life,
            Target::Thread(thread) => key == thread,
        }
    }
}

/// What a client has asked for.
#[derive(Clone, Debug)]
pub(super) struct Asked<T> {
    pub(super) target: T,
    pub(super) interval_ns: u64,
    pub(super) max_buffer_size: u32,
    /// Sessions of one context are sampled together when that is forced.
    pub(super) context: String,
    /// It is for whoever listens to it, and ends with them.
    pub(super) while_listened: bool,
}

impl<T> Asked<T> {
    /// The same of this target.
    pub(super) fn of<U>(self, target: U) -> Asked<U> {
        Asked {
            target,
            interval_ns: self.interval_ns,
            max_buffer_size: self.max_buffer_size,
            context: self.context,
            while_listened: self.while_listened,
        }
    }
}

/// When a session begins.
#[derive(Clone, Copy, Debug)]
pub(super) struct Begin {
    pub(super) at_ns: u64,
    /// What its timestamps are relative to: no finer than the policy allows.
    pub(super) origin_ns: u64,
    pub(super) now: Instant,
}

/// Samples of all sessions.
#[derive(Clone, Debug, Default)]
pub(super) struct Budget(Rc<Cell<usize>>);

impl Budget {
    pub(super) fn used(&self) -> usize {
        self.0.get()
    }
}

/// Something that clients are told of a session: the name of an event, and what it says.
#[derive(Clone, Debug, PartialEq)]
pub struct Told(pub &'static str, pub Value);

impl Told {
    /// The same, with the session that it is told of.
    fn of(mut self, id: &str) -> Told {
        self.1["session"] = id.into();
        self
    }
}

/// A session.
#[derive(Debug)]
pub(super) struct Profiling {
    id: String,
    pub(super) owner: u32,
    pub(super) asked: Asked<Target>,
    begin: Begin,
    /// When somebody has asked for it.
    pub(super) used: Instant,
    /// Since when nobody listens.
    unheard: Instant,
    /// Waits of its threads are recorded.
    waits: bool,
    states: Session<()>,
    lanes: BTreeMap<ThreadKey, Lane>,
    most_lanes: usize,
    /// Threads that found no room.
    left_out: BTreeSet<ThreadKey>,
    /// Spans without samples; the last one goes on if its end is the end of time.
    pauses: Vec<(u64, u64)>,
    forced: Option<Forced>,
    stopped_ns: Option<u64>,
    /// Of its samples' stacks, when all have come.
    unnamed: Option<BTreeSet<StackKey>>,
    /// Events that may have been its own and did not come.
    pub(super) dropped: u64,
    budget: (Budget, usize),
    /// Who listens to it alone.
    listeners: Vec<mpsc::Sender<Told>>,
    /// Who listens to all sessions of its context.
    contexts: Vec<mpsc::Sender<Told>>,
}

#[derive(Debug)]
struct Lane {
    ticks: Ticks<Option<StackKey>>,
    session: Session<Option<StackKey>>,
    names: Names,
    over: Option<Over>,
}

/// What a process and its thread are called, or were when they ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Names {
    pub(super) process: Box<str>,
    pub(super) thread: Box<str>,
}

/// Why a thread's buffer takes no more samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Over {
    /// There was no room for one that was due then.
    Full(u64),
    /// The thread has ended, or the session has.
    Ended,
}

impl Lane {
    fn is_full(&self) -> bool {
        matches!(self.over, Some(Over::Full(_)))
    }
}

/// The buffer of a thread.
#[derive(Debug)]
pub(super) struct Buffer<'s> {
    pub(super) key: ThreadKey,
    pub(super) names: &'s Names,
    pub(super) is_full: bool,
    /// In order of time.
    pub(super) samples: Vec<(u64, Option<StackKey>)>,
}

/// A sample of each thread that was asked for at a time.
#[derive(Debug)]
struct Forced {
    at: u64,
    until: u64,
    taken: BTreeSet<ThreadKey>,
}

impl Profiling {
    pub(super) fn new(
        (id, owner): (String, u32),
        asked: Asked<Target>,
        begin: Begin,
        waits: bool,
        most_lanes: usize,
        budget: (Budget, usize),
    ) -> Profiling {
        Profiling {
            id,
            owner,
            begin,
            used: begin.now,
            unheard: begin.now,
            waits,
            states: Session::new(asked.max_buffer_size),
            asked,
            lanes: BTreeMap::new(),
            most_lanes,
            left_out: BTreeSet::new(),
            pauses: Vec::new(),
            forced: None,
            stopped_ns: None,
            unnamed: None,
            dropped: 0,
            budget,
            listeners: Vec::new(),
            contexts: Vec::new(),
        }
    }

    pub(super) fn state(&self) -> State {
        self.states.state()
    }

    /// Its threads that are there, by their present names.
    pub(super) fn meet(&mut self, world: &World) {
        let name = |id| world.tables.string(id);
        let process = world.process(self.asked.target.life());
        let process = process.map_or("", |process| name(process.name));
        let threads = match self.asked.target {
            Target::Thread(key) => world.thread(key).map(|it| (key, it)).into_iter().collect(),
            Target::Process(life) => world.threads(life),
        };
        for (key, thread) in threads {
            self.thread(key, thread.started.0);
            let Some(Lane { names, .. }) = self.lanes.get_mut(&key) else {
                continue;
            };
            for (known, now) in [
                (&mut names.process, process),
                (&mut names.thread, name(thread.name)),
            ] {
                if **known != *now {
                    *known = now.into();
                }
            }
        }
    }

    /// A thread of it is there since then.
    pub(super) fn thread(&mut self, key: ThreadKey, since_ns: u64) {
        if self.lanes.contains_key(&key) || !self.asked.target.has(key) {
            return;
        }
        if self.lanes.len() >= self.most_lanes {
            self.left_out.insert(key);
            return;
        }
        let lane = Lane {
            ticks: Ticks::new(
                since_ns.max(self.begin.at_ns),
                self.asked.interval_ns,
                self.waits,
            ),
            session: Session::new(self.asked.max_buffer_size),
            names: Names::default(),
            over: None,
        };
        self.lanes.insert(key, lane);
    }

    /// A thread was seen running.
    pub(super) fn run(&mut self, key: ThreadKey, at: u64, period: u64, stack: Option<StackKey>) {
        self.force_taken(key, at, stack);
        self.change(key, |ticks, emit| ticks.run(at, period, stack, emit));
    }

    /// A thread has waited for so long, until then.
    pub(super) fn waited(&mut self, key: ThreadKey, until: u64, ns: u64, stack: Option<StackKey>) {
        self.change(key, |ticks, emit| ticks.waited(until, ns, stack, emit));
    }

    /// A thread has ended.
    pub(super) fn ended(&mut self, key: ThreadKey, at: u64) {
        if self.lanes.contains_key(&key) {
            self.end(key, at);
            self.settle(at, self.left_out.is_empty());
        }
    }

    /// Its process or thread has ended, by now at least.
    pub(super) fn gone(&mut self, at: u64) {
        self.end_all(at);
        self.settle(at, true);
    }

    fn end_all(&mut self, at: u64) {
        let keys: Vec<ThreadKey> = self.lanes.keys().copied().collect();
        for key in keys {
            self.end(key, at);
        }
    }

    fn end(&mut self, key: ThreadKey, at: u64) {
        self.change(key, |ticks, emit| ticks.finish(at, emit));
        if let Some(lane) = self.lanes.get_mut(&key) {
            lane.over.get_or_insert(Over::Ended);
        }
    }

    /// It is stopped if none of its buffers takes more samples; its trace can still be had. Of a process that has ended it
    /// is so if `are_all` its threads have buffers, or those that had none have ended too.
    fn settle(&mut self, at: u64, are_all: bool) {
        let is_over = self.lanes.values().all(|lane| lane.over.is_some());
        if self.state() == State::Stopped || !is_over {
            return;
        }
        if self.lanes.values().any(Lane::is_full) {
            self.close(at, None);
        } else if are_all {
            self.close(at, Some("ended"));
        }
    }

    fn close(&mut self, at: u64, why: Option<&str>) {
        self.states.fill();
        self.stopped_ns.get_or_insert(at);
        self.tell_state(why);
    }

    /// All that happened before this time has come.
    pub(super) fn advance(&mut self, to: u64) {
        let keys: Vec<ThreadKey> = self.lanes.keys().copied().collect();
        for key in keys {
            self.change(key, |ticks, emit| ticks.advance(to, emit));
        }
        // Nothing of before can come any more.
        self.pauses.retain(|(_, until)| *until >= to);
        let excess = self.pauses.len().saturating_sub(PAUSES);
        self.pauses.drain(..excess);
    }

    fn change(
        &mut self,
        key: ThreadKey,
        change: impl FnOnce(
            &mut Ticks<Option<StackKey>>,
            &mut dyn FnMut(Tick<Option<StackKey>>) -> bool,
        ),
    ) {
        let Some(lane) = self.lanes.get_mut(&key).filter(|lane| lane.over.is_none()) else {
            return;
        };
        let Lane { ticks, session, .. } = lane;
        let (
            Begin {
                at_ns, origin_ns, ..
            },
            end_ns,
        ) = (self.begin, self.stopped_ns);
        let (pauses, budget) = (&self.pauses, &self.budget);
        let mut full = None;
        change(ticks, &mut |tick| {
            let at = tick.at;
            let is_wanted = is_within(at, at_ns, end_ns, pauses);
            if is_wanted && !take(session, tick, origin_ns, budget) {
                full = Some(at);
            }
            full.is_none()
        });
        if let Some(at) = full {
            self.full(key, at);
        }
    }

    /// There is no room for a thread's sample.
    fn full(&mut self, key: ThreadKey, at: u64) {
        if let Some(lane) = self.lanes.get_mut(&key) {
            lane.over = Some(Over::Full(at));
        }
        self.tell("samplebufferfull", json!({ "tid": key.tid.0 }));
        self.settle(at, false);
    }

    pub(super) fn pause(&mut self, at: u64) -> Result<(), Error> {
        if self.states.pause()? {
            self.pauses.push((at, u64::MAX));
            self.tell_state(None);
        }
        Ok(())
    }

    pub(super) fn resume(&mut self, at: u64) -> Result<(), Error> {
        if self.states.resume()? {
            if let Some((_, until)) = self.pauses.last_mut() {
                *until = at;
            }
            self.tell_state(None);
        }
        Ok(())
    }

    /// Stops it as of then: what was sampled later is given up.
    pub(super) fn stop(&mut self, at: u64) -> Result<(), Error> {
        self.states.stop()?;
        let at = self.stopped_ns.map_or(at, |before| before.min(at));
        self.stopped_ns = Some(at);
        let last = at.checked_sub(self.begin.origin_ns);
        let (Budget(used), _) = &self.budget;
        for lane in self.lanes.values_mut() {
            let given_up = lane.session.give_up_after(last);
            used.set(used.get().saturating_sub(given_up));
            if matches!(lane.over, Some(Over::Full(full)) if full > at) {
                lane.over = Some(Over::Ended);
            }
        }
        self.tell_state(None);
        Ok(())
    }

    /// It may not go on, since then.
    pub(super) fn revoke(&mut self, at: u64, why: &str) {
        if self.state() != State::Stopped {
            self.close(at, Some(why));
        }
    }

    /// All that happened before it was stopped has come. The stacks of its samples: those that are named are for the caller to
    /// take out, who is asked for them until all are.
    pub(super) fn finish(&mut self) -> &mut BTreeSet<StackKey> {
        if self.unnamed.is_none()
            && let Some(to) = self.stopped_ns
        {
            self.end_all(to);
        }
        let samples = self.lanes.values().flat_map(|lane| lane.session.samples());
        let stacks = samples.filter_map(|(_, stack)| *stack);
        self.unnamed.get_or_insert_with(|| stacks.collect())
    }

    /// A sample of each thread is to be taken at this time, from what is seen until then.
    pub(super) fn force(&mut self, at: u64, until: u64) {
        if self.state() == State::Started {
            self.settle_forced();
            self.forced = Some(Forced {
                at,
                until,
                taken: BTreeSet::new(),
            });
        }
    }

    /// Whether a forced sample is waited for.
    pub(super) fn is_forced(&self) -> bool {
        self.forced.is_some()
    }

    fn force_taken(&mut self, key: ThreadKey, at: u64, stack: Option<StackKey>) {
        let Some(forced) = &mut self.forced else {
            return;
        };
        if (forced.at..=forced.until).contains(&at)
            && self.lanes.contains_key(&key)
            && forced.taken.insert(key)
        {
            self.take_forced(key, at, stack);
        }
    }

    fn take_forced(&mut self, key: ThreadKey, at: u64, stack: Option<StackKey>) {
        let is_wanted = is_within(at, self.begin.at_ns, self.stopped_ns, &self.pauses);
        let lane = self.lanes.get_mut(&key).filter(|it| it.over.is_none());
        if let Some(lane) = lane.filter(|_| is_wanted) {
            let stack = Some(stack);
            let tick = Tick { at, stack };
            if !take(&mut lane.session, tick, self.begin.origin_ns, &self.budget) {
                self.full(key, at);
            }
        }
    }

    /// Threads that were not seen did not run.
    pub(super) fn settle_forced(&mut self) {
        let Some(forced) = self.forced.take() else {
            return;
        };
        let keys: Vec<ThreadKey> = self.lanes.keys().copied().collect();
        for key in keys.into_iter().filter(|key| !forced.taken.contains(key)) {
            self.take_forced(key, forced.at, None);
        }
    }

    /// What its threads have.
    pub(super) fn buffers(&self) -> impl Iterator<Item = Buffer<'_>> {
        self.lanes.iter().map(|(key, lane)| {
            let mut samples = lane.session.samples().to_vec();
            // A sample that was forced may have come before one that was due before.
            samples.sort_by_key(|(at, _)| *at);
            Buffer {
                key: *key,
                names: &lane.names,
                is_full: lane.is_full(),
                samples,
            }
        })
    }

    pub(super) fn left_out(&self) -> usize {
        self.left_out.len()
    }

    /// What clients are told of it.
    pub(super) fn about(&self) -> Value {
        let target = match self.asked.target {
            Target::Process(life) => json!({ "pid": life.pid.0 }),
            Target::Thread(key) => json!({ "pid": key.process.pid.0, "tid": key.tid.0 }),
        };
        let samples: usize = self
            .lanes
            .values()
            .map(|lane| lane.session.samples().len())
            .sum();
        json!({
            "id": self.id,
            "state": self.state(),
            "target": target,
            "sampleInterval": milliseconds(self.asked.interval_ns),
            "maxBufferSize": self.asked.max_buffer_size,
            "timeOrigin": milliseconds(self.begin.origin_ns),
            "threads": self.lanes.len(),
            "threadsLeftOut": self.left_out(),
            "samples": samples,
            "eventsDropped": self.dropped,
        })
    }

    /// What it is doing, which buffers are full, and what is told of it from now on; none if too many listen.
    pub(super) fn listen(&mut self) -> Option<mpsc::Receiver<Told>> {
        self.listeners.retain(|listener| !listener.is_closed());
        if self.listeners.len() >= LISTENERS {
            return None;
        }
        let (sender, receiver) = mpsc::channel(UNREAD + self.lanes.len());
        for told in self.present() {
            let _ = sender.try_send(told);
        }
        self.listeners.push(sender);
        Some(receiver)
    }

    /// Tells the same to one who listens to its context.
    pub(super) fn tell_context(&mut self, listener: mpsc::Sender<Told>) {
        for told in self.present() {
            let _ = listener.try_send(told.of(&self.id));
        }
        self.contexts.push(listener);
    }

    /// Buffers may be full before their client can listen.
    fn present(&self) -> Vec<Told> {
        let state = Told("state", json!({ "state": self.state() }));
        let full = self.lanes.iter().filter(|(_, lane)| lane.is_full());
        let full = full.map(|(key, _)| Told("samplebufferfull", json!({ "tid": key.tid.0 })));
        std::iter::once(state).chain(full).collect()
    }

    /// Whether it is for whoever listens, and nobody has for so long.
    pub(super) fn is_deserted(&mut self, now: Instant, grace: Duration) -> bool {
        let mut all = self.listeners.iter().chain(&self.contexts);
        if all.any(|listener| !listener.is_closed()) {
            self.unheard = now;
        }
        self.asked.while_listened && now.duration_since(self.unheard) > grace
    }

    fn tell_state(&mut self, why: Option<&str>) {
        let state = self.state();
        self.tell(
            "state",
            match why {
                Some(why) => json!({ "state": state, "why": why }),
                None => json!({ "state": state }),
            },
        );
    }

    fn tell(&mut self, name: &'static str, says: Value) {
        // Who does not read what it is told is told nothing more: the end of its stream says so.
        let told = Told(name, says);
        self.listeners
            .retain(|listener| listener.try_send(told.clone()).is_ok());
        let told = told.of(&self.id);
        self.contexts
            .retain(|listener| listener.try_send(told.clone()).is_ok());
    }
}

/// Whether a session is started at a time.
fn is_within(at: u64, from: u64, to: Option<u64>, pauses: &[(u64, u64)]) -> bool {
    let is_paused = pauses.iter().any(|(from, to)| (*from..*to).contains(&at));
    !is_paused && at >= from && to.is_none_or(|to| at <= to)
}

/// Puts a sample into a buffer; whether there was room.
fn take(
    session: &mut Session<Option<StackKey>>,
    tick: Tick<Option<StackKey>>,
    origin_ns: u64,
    (used, most): &(Budget, usize),
) -> bool {
    if used.used() >= *most {
        session.fill();
        return false;
    }
    let taken = session.take(tick.at - origin_ns, tick.stack.flatten());
    if taken == Taken::Yes {
        used.0.set(used.0.get() + 1);
    }
    taken != Taken::Full
}

impl Drop for Profiling {
    fn drop(&mut self) {
        let samples: usize = self
            .lanes
            .values()
            .map(|lane| lane.session.samples().len())
            .sum();
        let (Budget(used), _) = &self.budget;
        used.set(used.get().saturating_sub(samples));
    }
}
