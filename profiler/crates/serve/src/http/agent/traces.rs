//! What sessions give: their traces when they are stopped, samples that are forced.
//!
//! Both want all that has happened up to a moment: the session is asked for it, and told what it wants anew, which hands over
//! what is still in the kernel. What does not belong here: what is seen meanwhile (`seen`).

use std::collections::BTreeMap;
use std::time::Instant;

use serde::Serialize;

use profiler_wire::self_profiling::{Error, ErrorName, ThreadTrace, Trace, milliseconds};

use super::{Agent, Answer, Forcing, Later, Ticket};
use crate::front::{Order, Place, Question};
use crate::http::profiling::Target;

/// A forced sample is waited for no longer than this.
const FORCED_NS: u64 = 20_000_000;
/// Beyond the sampler's period.
const SLACK_NS: u64 = 2_000_000;

/// What stopping a session on a process gives.
#[derive(Serialize)]
struct Traces {
    traces: Vec<ThreadTrace>,
}

impl Agent {
    /// Stops a session, as of a time of its clock that has passed, or of now; its trace comes by [`Agent::trace`].
    pub fn stop(
        &mut self,
        user: u32,
        id: &str,
        as_of_ns: Option<u64>,
        now: Instant,
    ) -> Result<Ticket, Error> {
        let at = self.now_ns();
        let at = as_of_ns.map_or(at, |as_of| as_of.min(at));
        self.session(user, id, now)?.stop(at)?;
        Ok(Ticket {
            id: id.to_owned(),
            question: self.flush(),
            since: now,
        })
    }

    /// The trace of a session that was stopped, as JSON.
    pub fn trace(&mut self, ticket: &Ticket, now: Instant) -> Answer<Vec<u8>> {
        let limits = &self.options.limits;
        let waited = now.duration_since(ticket.since);
        if !self.answered.contains(&ticket.question) && waited < limits.patience {
            return Err(Later);
        }
        let Some(profiling) = self.sessions.get_mut(&ticket.id) else {
            let text = "the session was ended meanwhile";
            return Ok(Err(Error::new(ErrorName::InvalidStateError, text)));
        };
        let (stacks, tables) = (&self.stacks, &self.world.tables);
        let unnamed = profiling.finish();
        unnamed.retain(|key| !stacks.is_named(*key, tables));
        if waited < limits.names && !unnamed.is_empty() {
            return Err(Later);
        }
        self.answered.remove(&ticket.question);
        let json = self.write(&ticket.id);
        self.remove(&ticket.id, "its trace was handed over");
        Ok(json.map_err(|error| Error::new(ErrorName::OperationError, error.to_string())))
    }

    fn write(&self, id: &str) -> Result<Vec<u8>, serde_json::Error> {
        let (tables, policy) = (&self.world.tables, &self.options.policy);
        let Some(profiling) = self.sessions.get(id) else {
            return Ok(Vec::new());
        };
        let mut traces = Vec::new();
        for buffer in profiling.buffers() {
            let mut trace = Trace::default();
            let mut known = BTreeMap::new();
            for (at_ns, stack) in buffer.samples {
                let stack = stack.and_then(|stack| {
                    let add = || self.stacks.add(stack, &policy.realm, tables, &mut trace);
                    *known.entry(stack).or_insert_with(add)
                });
                trace.sample(policy.coarse(at_ns), stack);
            }
            traces.push(ThreadTrace {
                pid: buffer.key.process.pid.0,
                process: buffer.names.process.clone(),
                tid: buffer.key.tid.0,
                thread: buffer.names.thread.clone(),
                sample_interval: milliseconds(profiling.asked.interval_ns),
                buffer_full: buffer.is_full,
                trace,
            });
        }
        match profiling.asked.target {
            Target::Process(_) => serde_json::to_vec(&Traces { traces }),
            Target::Thread(_) => {
                let trace = traces.pop().map(|it| it.trace).unwrap_or_default();
                serde_json::to_vec(&trace)
            }
        }
    }

    /// Takes a sample of all started sessions of the context of one. They come by [`Agent::forced`].
    pub fn force(&mut self, user: u32, id: &str, now: Instant) -> Result<Forcing, Error> {
        let at = self.now_ns();
        let session = self.session(user, id, now)?;
        let (owner, context) = (session.owner, session.asked.context.clone());
        let is_live = self.options.replay.is_none();
        let period = self.demand.sampling.as_ref();
        let period = period.map_or(0, |it| 1_000_000_000 / it.frequency_hz.max(1));
        let until = at + period.min(FORCED_NS) + SLACK_NS;
        for session in self.sessions.values_mut() {
            if session.owner == owner && session.asked.context == context {
                session.force(at, until);
            }
        }
        self.change_demand();
        Ok(Forcing {
            user: owner,
            context,
            until: if is_live { until } else { at },
            question: None,
            since: now,
        })
    }

    /// Whether these samples were taken.
    pub fn forced(&mut self, forcing: &mut Forcing, now: Instant) -> Result<(), Later> {
        if self.now_ns() < forcing.until {
            return Err(Later);
        }
        let question = match forcing.question {
            Some(question) => question,
            None => *forcing.question.insert(self.flush()),
        };
        let waited = now.duration_since(forcing.since);
        if !self.answered.remove(&question) && waited < self.options.limits.patience {
            return Err(Later);
        }
        for session in self.sessions.values_mut() {
            if session.owner == forcing.user && session.asked.context == forcing.context {
                session.settle_forced();
            }
        }
        self.change_demand();
        Ok(())
    }

    /// All that has happened is to come; the question that is answered then.
    fn flush(&mut self) -> u64 {
        self.lives += 1;
        self.change_demand();
        self.questions += 1;
        self.orders.push(Order::Ask(Question {
            id: self.questions,
            place: Place::Kernel(Vec::new()),
        }));
        self.questions
    }
}
