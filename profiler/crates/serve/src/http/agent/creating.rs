//! How a session begins: what a client asks for, whether it may have that, and what it is told.
//!
//! What does not belong here: what becomes of it (`seen`, `traces`).

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use profiler_model::*;
use profiler_report::derive::OFF_CPU;
use profiler_wire::self_profiling::{
    Error, ErrorName, InitOptions, Intervals, MAX_INTERVAL_MS, milliseconds,
};

use super::{Agent, Answer, Later, View};
use crate::admission::unguessable;
use crate::front::Replay;
use crate::http::policy::{Forbidden, Subject};
use crate::http::profiling::{Asked, Begin, Profiling, Target};
use crate::machine::Life;
use crate::world::ThreadKey;

/// How long somebody who is asked for may be on the way.
const SOON: Duration = Duration::from_millis(400);
/// Bytes of the name of a context.
const CONTEXT: usize = 256;

impl Agent {
    /// Which intervals there are.
    pub fn intervals(&self) -> Intervals {
        let recorded = || {
            let mut sources = self.world.tables.sources.iter().map(|(_, source)| source);
            sources.find_map(|source| Some(1_000_000_000 / source.frequency_hz?.max(1)))
        };
        match self.options.replay {
            Some(_) => Intervals::multiples_of(recorded().unwrap_or(10_000_000)),
            None => Intervals::up_to(self.options.limits.frequency_hz),
        }
    }

    /// What a script of this user is to know before it asks: limits, and whether it may profile anything.
    pub fn served(&self, user: u32) -> Value {
        let intervals = self.intervals();
        json!({
            "jsProfiling": self.options.policy.allows_anything(user),
            "fineInterval": milliseconds(intervals.fine_ns),
            "coarseInterval": milliseconds(intervals.coarse_ns),
            "longestInterval": MAX_INTERVAL_MS,
            "maxBufferSize": self.options.limits.buffer,
            "timestampResolution": milliseconds(self.options.policy.resolution_ns),
        })
    }

    /// Whether a user may profile the process of a target, as far as that is known.
    pub fn is_allowed(&self, user: u32, pid: Pid) -> Option<bool> {
        let life = self.world.life(pid)?;
        let process = self.world.process(life)?;
        Some(self.allows(user, life, process).is_ok())
    }

    pub(super) fn allows(&self, user: u32, life: Life, process: &Process) -> Result<(), Forbidden> {
        let tables = &self.world.tables;
        let is_capture = self.options.replay.is_some();
        let owner = match is_capture {
            true => process.uid,
            false => {
                let uids = self.machine.status(life).ok().map(|status| status.uids);
                uids.and_then(|(real, effective)| (real == effective).then_some(real))
            }
        };
        let container = process.container.and_then(|id| tables.container(id));
        let container = container.map(|container| tables.container_label(container));
        let subject = Subject {
            owner,
            name: tables.string(process.name),
            container: container.as_deref(),
        };
        self.options.policy.allows(user, &subject, is_capture)
    }

    /// Starts a session, as the constructor does; what clients are told of it.
    pub fn create(
        &mut self,
        user: u32,
        body: &Value,
        since: Instant,
        now: Instant,
    ) -> Answer<Value> {
        let asked = match self.read(user, body) {
            Ok(asked) => asked,
            Err(error) => return Ok(Err(error)),
        };
        match &self.view {
            View::Ready => {}
            View::Awaited => {
                return match now.duration_since(since) < self.options.limits.patience {
                    true => Err(Later),
                    false => Ok(Err(Error::new(
                        ErrorName::OperationError,
                        "what runs on this machine is not known yet",
                    ))),
                };
            }
            View::Trouble(why) => {
                return Ok(Err(Error::new(ErrorName::OperationError, why.clone())));
            }
        }
        let (asked, is_paused) = asked;
        let target = self.find(asked.target);
        let found = target.and_then(|target| Some((target, self.world.process(target.life())?)));
        let Some((target, process)) = found else {
            // It may only just have come.
            return match now.duration_since(since) < SOON {
                true => Err(Later),
                false => {
                    let text = format!("there is no {}", asked.target);
                    Ok(Err(Error::new(ErrorName::NotFoundError, text)))
                }
            };
        };
        if let Err(why) = self.allows(user, target.life(), process) {
            let pid = target.life().pid;
            let text = format!("user {user} may not profile process {pid}: {why}");
            return Ok(Err(Error::new(ErrorName::NotAllowedError, text)));
        }
        if self.sessions.len() >= self.options.limits.sessions {
            let text = format!("there are {} sessions already", self.sessions.len());
            return Ok(Err(Error::new(ErrorName::QuotaExceededError, text)));
        }
        let Some(id) = unguessable::<16>() else {
            let text = "there are no random numbers";
            return Ok(Err(Error::new(ErrorName::OperationError, text)));
        };
        let asked = asked.of(target);
        let about = self.begin((id, user), asked, is_paused, now);
        Ok(Ok(about))
    }

    /// What is asked for, as far as it is right by itself: in the order in which the specification throws.
    /// Whether it is to be paused as soon as it begins is told beside it.
    fn read(&self, user: u32, body: &Value) -> Result<(Asked<Wanted>, bool), Error> {
        let options = InitOptions::read(body)?;
        let target = Wanted::read(body)?;
        let context = match body.get("context") {
            None | Some(Value::Null) => String::new(),
            Some(Value::String(context)) if context.len() <= CONTEXT => context.clone(),
            Some(_) => {
                let text = format!("context is no text of up to {CONTEXT} bytes");
                return Err(Error::new(ErrorName::TypeError, text));
            }
        };
        let flag = |name: &str| match body.get(name) {
            None | Some(Value::Null) => Ok(false),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(_) => {
                let text = format!("{name} is neither true nor false");
                Err(Error::new(ErrorName::TypeError, text))
            }
        };
        let (while_listened, is_paused) = (flag("whileListened")?, flag("paused")?);
        let interval_ns = self.intervals().at_or_above(options.sample_interval_ms)?;
        let most = self.options.limits.buffer;
        if options.max_buffer_size > most {
            let asked = options.max_buffer_size;
            let text = format!("maxBufferSize is {asked}: no more than {most} samples are kept");
            return Err(Error::new(ErrorName::RangeError, text));
        }
        if !self.options.policy.allows_anything(user) {
            let text = format!("js-profiling is not allowed to user {user}");
            return Err(Error::new(ErrorName::NotAllowedError, text));
        }
        let asked = Asked {
            target,
            interval_ns,
            max_buffer_size: options.max_buffer_size,
            context,
            while_listened,
        };
        Ok((asked, is_paused))
    }

    fn find(&self, wanted: Wanted) -> Option<Target> {
        match wanted {
            Wanted::Process(pid) => {
                let life = self.world.life(pid)?;
                self.world.process(life).map(|_| Target::Process(life))
            }
            Wanted::Thread(tid) => {
                let threads = self
                    .world
                    .processes()
                    .map(|(life, _)| ThreadKey { process: life, tid });
                let threads = threads.filter(|key| self.world.thread(*key).is_some());
                threads.last().map(Target::Thread)
            }
        }
    }

    fn begin(
        &mut self,
        (id, user): (String, u32),
        asked: Asked<Target>,
        is_paused: bool,
        now: Instant,
    ) -> Value {
        let at_once = self.options.replay == Some(Replay::AtOnce);
        let at_ns = match at_once {
            true => self.world.tables.session.started.0,
            false => self.now_ns(),
        };
        let tables = &self.world.tables;
        let waits = tables
            .sources
            .iter()
            .any(|(_, it)| tables.string(it.name) == OFF_CPU);
        let mut profiling = Profiling::new(
            (id.clone(), user),
            asked,
            Begin {
                at_ns,
                origin_ns: self.options.policy.coarse(at_ns),
                now,
            },
            waits,
            self.options.limits.threads,
            (self.budget.clone(), self.options.limits.samples),
        );
        self.summary.sessions += 1;
        profiling.meet(&self.world);
        if is_paused {
            // One that has just begun can be.
            let _ = profiling.pause(at_ns);
        }
        self.contexts.retain(|it| !it.teller.is_closed());
        for context in &self.contexts {
            if context.has(&profiling) {
                profiling.tell_context(context.teller.clone());
            }
        }
        self.sessions.insert(id.clone(), profiling);
        if at_once {
            let kept = std::mem::take(&mut self.kept);
            for event in &kept {
                self.event(event, Some(&id));
            }
            self.kept = kept;
            let to = self.world.at.0;
            if let Some(profiling) = self.sessions.get_mut(&id) {
                profiling.advance(to);
            }
        }
        self.lives += 1;
        self.change_demand();
        self.about(&id)
    }
}

/// What a client names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wanted {
    Process(Pid),
    Thread(Tid),
}

impl std::fmt::Display for Wanted {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Wanted::Process(pid) => write!(formatter, "process {pid}"),
            Wanted::Thread(tid) => write!(formatter, "thread {tid}"),
        }
    }
}

impl Wanted {
    /// `{"target":{"pid":7}}`, `{"target":{"tid":8}}`, or the number of a process alone.
    fn read(body: &Value) -> Result<Wanted, Error> {
        let target = &body["target"];
        let number = |value: &Value| {
            let number = value.as_u64().and_then(|number| u32::try_from(number).ok());
            number.filter(|number| *number > 0)
        };
        let of = |name: &str| target.get(name).filter(|value| !value.is_null());
        let wanted = match (of("tid"), of("pid")) {
            (Some(tid), None) => number(tid).map(|tid| Wanted::Thread(Tid(tid))),
            (None, Some(pid)) => number(pid).map(|pid| Wanted::Process(Pid(pid))),
            (None, None) => number(target).map(|pid| Wanted::Process(Pid(pid))),
            (Some(_), Some(_)) => None,
        };
        wanted.ok_or_else(|| {
            let text = "target is neither {\"pid\":NUMBER} nor {\"tid\":NUMBER}";
            Error::new(ErrorName::TypeError, text)
        })
    }
}
