//! The server without sockets: requests of clients, batches -> answers, orders, events.
//!
//! Time is what the caller says it is; that of samples is CLOCK_MONOTONIC, or the capture's own. What can't be answered yet
//! is asked for again when something has changed ([`Later`]). What does not belong here: paths, headers and bodies
//! (`routes`), sockets (`network`).

mod creating;
mod seen;
mod traces;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Instant;

use serde_json::Value;
use tokio::sync::mpsc;

use profiler_model::*;
use profiler_wire::self_profiling::{Error, ErrorName, State, milliseconds};

use super::front::HttpSummary;
use super::options::HttpOptions;
use super::profiling::{Budget, Profiling, Target, Told, UNREAD};
use super::stacks::Stacks;
use crate::front::Order;
use crate::machine::Machine;
use crate::world::{World, monotonic_ns};

/// Sessions that are over and are remembered.
const REMEMBERED: usize = 1024;

/// Whether clients see what there is.
#[derive(Clone, Debug, PartialEq, Eq)]
enum View {
    Awaited,
    Ready,
    Trouble(String),
}

/// It is not known yet: to be asked again when something has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Later;

/// An answer, or not yet.
pub type Answer<T> = Result<Result<T, Error>, Later>;

/// Something that is waited for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ticket {
    id: String,
    question: u64,
    since: Instant,
}

/// Samples that are forced, and until when they may come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forcing {
    user: u32,
    context: String,
    /// Nanoseconds of the samples' clock.
    until: u64,
    question: Option<u64>,
    since: Instant,
}

/// Somebody who listens to all sessions of a context.
struct Context {
    user: u32,
    name: String,
    teller: mpsc::Sender<Told>,
}

impl Context {
    fn has(&self, session: &Profiling) -> bool {
        session.owner == self.user && session.asked.context == self.name
    }
}

/// All sessions, and what they look at.
pub struct Agent {
    options: HttpOptions,
    machine: Box<dyn Machine>,
    world: World,
    view: View,
    sessions: BTreeMap<String, Profiling>,
    /// Whose they were, and how they have ended.
    over: VecDeque<(String, u32, &'static str)>,
    contexts: Vec<Context>,
    stacks: Stacks,
    budget: Budget,
    /// Of a capture that is there at once.
    kept: Vec<Event>,
    left_out: u64,
    /// Requests that wait for what there is.
    expecting: usize,
    orders: Vec<Order>,
    demand: Demand,
    lives: u64,
    questions: u64,
    answered: BTreeSet<u64>,
    looked: Option<Instant>,
    /// Changes of who is there that the sessions know of.
    met: u64,
    summary: HttpSummary,
}

impl Agent {
    /// Without sessions.
    pub fn new(options: HttpOptions, machine: Box<dyn Machine>) -> Agent {
        Agent {
            world: World::new(options.replay.is_some()),
            machine,
            view: View::Awaited,
            sessions: BTreeMap::new(),
            over: VecDeque::new(),
            contexts: Vec::new(),
            stacks: Stacks::default(),
            budget: Budget::default(),
            kept: Vec::new(),
            left_out: 0,
            expecting: 0,
            orders: Vec::new(),
            demand: Demand::default(),
            lives: 0,
            questions: 0,
            answered: BTreeSet::new(),
            looked: None,
            met: 0,
            summary: HttpSummary::default(),
            options,
        }
    }

    /// How it serves.
    pub fn options(&self) -> &HttpOptions {
        &self.options
    }

    /// What serving came to.
    pub fn summary(&mut self) -> &mut HttpSummary {
        &mut self.summary
    }

    /// What is wanted of whoever runs the session, since the last call.
    pub fn orders(&mut self) -> Vec<Order> {
        std::mem::take(&mut self.orders)
    }

    /// Ends all sessions: nothing is served any more.
    pub fn finish(&mut self) {
        self.sessions.clear();
        self.contexts.clear();
        self.change_demand();
    }

    /// So many events found no room.
    pub fn dropped(&mut self, count: u64) {
        for session in self.sessions.values_mut() {
            session.dropped += count;
        }
    }

    /// Samples that are kept, of all sessions.
    pub fn kept_samples(&self) -> usize {
        self.budget.used()
    }

    /// Whether ids should start anew.
    pub fn wants_new_epoch(&self) -> bool {
        self.world.wants_new_epoch()
    }

    /// Now, as clients may know it, in milliseconds.
    pub fn clock(&self) -> f64 {
        milliseconds(self.options.policy.coarse(self.now_ns()))
    }

    /// Now, by the clock of samples.
    pub fn now_ns(&self) -> u64 {
        match self.options.replay {
            Some(_) => self.world.now_ns(),
            None => monotonic_ns(),
        }
    }

    /// Somebody waits for what there is, or does so no longer.
    pub fn expect(&mut self, more: bool) {
        self.expecting = match more {
            true => self.expecting + 1,
            false => self.expecting.saturating_sub(1),
        };
        self.change_demand();
    }

    fn about(&self, id: &str) -> Value {
        let mut about = self.sessions.get(id).map_or(Value::Null, Profiling::about);
        if self.left_out > 0 {
            about["eventsLeftOut"] = self.left_out.into();
        }
        about
    }

    /// Threads that have come since the last time, to the sessions that profile them.
    fn meet_threads(&mut self) {
        if self.met == self.world.changes {
            return;
        }
        self.met = self.world.changes;
        for profiling in self.sessions.values_mut() {
            if profiling.state() != State::Stopped {
                profiling.meet(&self.world);
            }
        }
    }

    /// A session of a user, or anybody's for root.
    fn session(&mut self, user: u32, id: &str, now: Instant) -> Result<&mut Profiling, Error> {
        let mut over = self.over.iter();
        if let Some((_, _, how)) = over.find(|(known, owner, _)| known == id && *owner == user) {
            let text = format!("the session is stopped: {how}");
            return Err(Error::new(ErrorName::InvalidStateError, text));
        }
        let session = self.sessions.get_mut(id);
        let session = session.filter(|session| user == 0 || session.owner == user);
        let Some(session) = session else {
            return Err(Error::new(
                ErrorName::NotFoundError,
                "there is no such session",
            ));
        };
        session.used = now;
        Ok(session)
    }

    /// What a session is doing.
    pub fn state(&mut self, user: u32, id: &str, now: Instant) -> Result<Value, Error> {
        self.session(user, id, now)?;
        Ok(self.about(id))
    }

    /// All sessions of a user; root's: all.
    pub fn list(&self, user: u32) -> Value {
        let sessions = self.sessions.values();
        let own = sessions.filter(|it| user == 0 || it.owner == user);
        own.map(Profiling::about).collect()
    }

    /// Takes no samples until it is resumed.
    pub fn pause(&mut self, user: u32, id: &str, now: Instant) -> Result<Value, Error> {
        let at = self.now_ns();
        self.session(user, id, now)?.pause(at)?;
        self.change_demand();
        Ok(self.about(id))
    }

    /// Takes samples again.
    pub fn resume(&mut self, user: u32, id: &str, now: Instant) -> Result<Value, Error> {
        let at = self.now_ns();
        self.session(user, id, now)?.resume(at)?;
        self.change_demand();
        Ok(self.about(id))
    }

    /// Ends a session without its trace.
    pub fn discard(&mut self, user: u32, id: &str, now: Instant) -> Result<(), Error> {
        self.session(user, id, now)?;
        self.remove(id, "it was ended without its trace");
        Ok(())
    }

    /// What is told of a session from now on.
    pub fn listen(
        &mut self,
        user: u32,
        id: &str,
        now: Instant,
    ) -> Result<mpsc::Receiver<Told>, Error> {
        let listener = self.session(user, id, now)?.listen();
        listener.ok_or_else(|| {
            let text = "too many listen to this session already";
            Error::new(ErrorName::QuotaExceededError, text)
        })
    }

    /// What is told of a user's sessions of a context from now on, of those too that begin later.
    pub fn listen_to_context(
        &mut self,
        user: u32,
        name: &str,
    ) -> Result<mpsc::Receiver<Told>, Error> {
        self.contexts.retain(|it| !it.teller.is_closed());
        if self.contexts.len() >= self.options.limits.sessions {
            let text = "too many listen to contexts already";
            return Err(Error::new(ErrorName::QuotaExceededError, text));
        }
        let (teller, receiver) = mpsc::channel(UNREAD + self.options.limits.threads);
        let context = Context {
            user,
            name: name.to_owned(),
            teller,
        };
        for session in self.sessions.values_mut() {
            if context.has(session) {
                session.tell_context(context.teller.clone());
            }
        }
        self.contexts.push(context);
        Ok(receiver)
    }

    /// A session that was stopped, and whose trace nobody waits for any more.
    pub fn forget(&mut self, ticket: &Ticket) {
        if self.sessions.contains_key(&ticket.id) {
            self.remove(&ticket.id, "who waited for its trace has gone");
        }
    }

    fn remove(&mut self, id: &str, how: &'static str) {
        if let Some(profiling) = self.sessions.remove(id) {
            self.over.push_back((id.to_owned(), profiling.owner, how));
            if self.over.len() > REMEMBERED {
                self.over.pop_front();
            }
        }
        if self.sessions.is_empty() {
            self.stacks.clear();
        }
        self.change_demand();
    }

    /// A question was answered, as far as it will be at once.
    pub fn acknowledge(&mut self, question: u64) {
        self.answered.insert(question);
        // Those who have left never ask.
        while self.answered.len() > REMEMBERED {
            self.answered.pop_first();
        }
    }

    /// Clients see what there is.
    pub fn ready(&mut self) {
        self.view = View::Ready;
    }

    /// What clients see is old, until batches come.
    pub fn detached(&mut self) {
        self.view = View::Awaited;
    }

    /// There will be nothing to see, until batches come.
    pub fn trouble(&mut self, text: String) {
        self.view = View::Trouble(text);
    }

    fn change_demand(&mut self) {
        let started = || {
            let sessions = self.sessions.values();
            sessions.filter(|session| session.state() == State::Started)
        };
        let mut intervals: Vec<u64> = started().map(|it| it.asked.interval_ns).collect();
        if started().any(Profiling::is_forced) {
            intervals.push(self.intervals().coarse_ns);
        }
        let frequency_hz = self.intervals().frequency_hz(intervals);
        let sampling = frequency_hz.map(|frequency_hz| {
            let mut sampling = Sampling {
                frequency_hz,
                regular_hz: Some(frequency_hz),
                kernel_stacks: true,
                processes: BTreeSet::new(),
                threads: BTreeSet::new(),
                followed: BTreeSet::new(),
            };
            for session in started() {
                match session.asked.target {
                    Target::Process(life) => sampling.processes.insert(life.pid),
                    Target::Thread(key) => sampling.threads.insert(key.tid),
                };
            }
            sampling
        });
        let demand = Demand {
            // The time of a capture goes by while somebody looks.
            attached: match self.options.replay {
                Some(_) => sampling.is_some(),
                None => self.expecting > 0 || !self.sessions.is_empty(),
            },
            lives: self.lives,
            sampling,
            tracing: BTreeSet::new(),
        };
        if demand != self.demand {
            self.demand = demand.clone();
            self.orders.retain(|it| !matches!(it, Order::Demand(_)));
            self.orders.push(Order::Demand(demand));
        }
    }
}

#[cfg(test)]
#[path = "agent_tests.rs"]
mod tests;
