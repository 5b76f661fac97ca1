//! A session of a client: what is seen of its threads -> their buffers.
//!
//! Each thread has its own ticks and its own buffer. Pauses are spans of time, so that samples which come late are where
//! they belong. Times are nanoseconds of CLOCK_MONOTONIC, or of a capture's own. What does not belong here: what stacks
//! are, who may have a session.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Instant;

use serde_json::{Value, json};
use tokio::sync::mpsc;

use profiler_report::derive::{Tick, Ticks};
use profiler_wire::self_profiling::{Error, Session, State, Taken, milliseconds};

use super::stacks::StackKey;
use crate::machine::Life;
use crate::world::{ThreadKey, World};

/// Events that a client has not read; with more of them it is cut off.
const UNREAD: usize = 64;
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
pub(super) struct Asked {
    pub(super) target: Target,
    pub(super) interval_ns: u64,
    pub(super) max_buffer_size: u32,
    /// Sessions of one context are sampled together when that is forced.
    pub(super) context: String,
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

/// A session.
#[derive(Debug)]
pub(super) struct Profiling {
    pub(super) owner: u32,
    pub(super) asked: Asked,
    pub(super) origin_ns: u64,
    /// When somebody has asked for it.
    pub(super) used: Instant,
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
    listeners: Vec<mpsc::Sender<Told>>,
}

#[derive(Debug)]
struct Lane {
    ticks: Ticks<Option<StackKey>>,
    session: Session<Option<StackKey>>,
    /// It takes no more samples.
    is_over: bool,
}

impl Lane {
    /// It took no more samples because there was no room for them.
    fn is_full(&self) -> bool {
        self.is_over && self.session.state() == State::Stopped
    }
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
        asked: Asked,
        owner: u32,
        (origin_ns, now): (u64, Instant),
        waits: bool,
        most_lanes: usize,
        budget: (Budget, usize),
    ) -> Profiling {
        Profiling {
            owner,
            origin_ns,
            used: now,
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
        }
    }

    pub(super) fn state(&self) -> State {
        self.states.state()
    }

    /// Its threads that are there.
    pub(super) fn meet(&mut self, world: &World) {
        match self.asked.target {
            Target::Thread(key) => {
                let since = world.thread(key).map_or(0, |thread| thread.started.0);
                self.thread(key, since);
            }
            Target::Process(life) => {
                for (key, thread) in world.threads(life) {
                    self.thread(key, thread.started.0);
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
                since_ns.max(self.origin_ns),
                self.asked.interval_ns,
                self.waits,
            ),
            session: Session::new(self.asked.max_buffer_size),
            is_over: false,
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
        self.change(key, |ticks, emit| ticks.finish(at, emit));
        if let Some(lane) = self.lanes.get_mut(&key) {
            lane.is_over = true;
        }
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
        let Some(lane) = self.lanes.get_mut(&key).filter(|lane| !lane.is_over) else {
            return;
        };
        let Lane { ticks, session, .. } = lane;
        let (origin_ns, end_ns) = (self.origin_ns, self.stopped_ns);
        let (pauses, budget) = (&self.pauses, &self.budget);
        let mut is_full = false;
        change(ticks, &mut |tick| {
            let is_wanted = is_within(tick.at, origin_ns, end_ns, pauses);
            is_full = is_wanted && !take(session, tick, origin_ns, budget);
            !is_full
        });
        if is_full {
            self.full(key);
        }
    }

    /// The buffer of a thread is full.
    fn full(&mut self, key: ThreadKey) {
        if let Some(lane) = self.lanes.get_mut(&key) {
            lane.is_over = true;
        }
        self.tell("samplebufferfull", json!({ "tid": key.tid.0 }));
        if matches!(self.asked.target, Target::Thread(_)) {
            self.states.fill();
            self.tell_state(None);
        }
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

    pub(super) fn stop(&mut self, at: u64) -> Result<(), Error> {
        self.states.stop()?;
        self.stopped_ns.get_or_insert(at);
        self.tell_state(None);
        Ok(())
    }

    /// It may not go on, since then.
    pub(super) fn revoke(&mut self, at: u64, why: &str) {
        if self.state() != State::Stopped {
            self.states.fill();
            self.stopped_ns.get_or_insert(at);
            self.tell_state(Some(why));
        }
    }

    /// All that happened before it was stopped has come. The stacks of its samples: those that are named are for the caller to
    /// take out, who is asked for them until all are.
    pub(super) fn finish(&mut self) -> &mut BTreeSet<StackKey> {
        if self.unnamed.is_none()
            && let Some(to) = self.stopped_ns
        {
            let keys: Vec<ThreadKey> = self.lanes.keys().copied().collect();
            for key in keys {
                self.ended(key, to);
            }
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
        let is_wanted = is_within(at, self.origin_ns, self.stopped_ns, &self.pauses);
        let lane = self.lanes.get_mut(&key).filter(|lane| !lane.is_over);
        if let Some(lane) = lane.filter(|_| is_wanted) {
            let stack = Some(stack);
            let tick = Tick { at, stack };
            if !take(&mut lane.session, tick, self.origin_ns, &self.budget) {
                self.full(key);
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

    /// The buffers, in order of time, and whether they were full.
    pub(super) fn samples(
        &self,
    ) -> impl Iterator<Item = (ThreadKey, bool, Vec<(u64, Option<StackKey>)>)> {
        self.lanes.iter().map(|(key, lane)| {
            let mut samples = lane.session.samples().to_vec();
            // A sample that was forced may have come before one that was due before.
            samples.sort_by_key(|(at, _)| *at);
            (*key, lane.is_full(), samples)
        })
    }

    pub(super) fn left_out(&self) -> usize {
        self.left_out.len()
    }

    /// What clients are told of it.
    pub(super) fn about(&self, id: &str) -> Value {
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
            "id": id,
            "state": self.state(),
            "target": target,
            "sampleInterval": milliseconds(self.asked.interval_ns),
            "maxBufferSize": self.asked.max_buffer_size,
            "timeOrigin": milliseconds(self.origin_ns),
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
        let state = json!({ "state": self.state() });
        let _ = sender.try_send(Told("state", state));
        // Buffers may be full before their client can listen.
        let full = self.lanes.iter().filter(|(_, lane)| lane.is_full());
        for (key, _) in full {
            let _ = sender.try_send(Told("samplebufferfull", json!({ "tid": key.tid.0 })));
        }
        self.listeners.push(sender);
        Some(receiver)
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
        let tell =
            |listener: &mpsc::Sender<Told>| listener.try_send(Told(name, says.clone())).is_ok();
        self.listeners.retain(tell);
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
