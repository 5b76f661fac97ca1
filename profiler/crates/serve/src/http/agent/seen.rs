//! What the session tells and the time that passes -> sessions of clients.
//!
//! What does not belong here: what clients ask (`creating`, `traces`).

use std::time::{Duration, Instant};

use profiler_model::*;
use profiler_report::derive::sampling_period_ns;
use profiler_wire::self_profiling::State;

use super::{Agent, View};
use crate::front::Replay;
use crate::http::options::HttpLimits;
use crate::http::profiling::{Profiling, Target};
use crate::machine::MachineError;

/// What is so long past has come, even if nothing tells.
const CERTAIN: u64 = 2_000_000_000;
/// How often it is looked whether those who profile still may.
const LOOK: Duration = Duration::from_secs(1);

impl Agent {
    /// Takes a batch of the session.
    pub fn batch(&mut self, batch: Batch) {
        let at_once = self.options.replay == Some(Replay::AtOnce);
        let is_empty = batch.definitions.is_empty() && batch.events.is_empty();
        if !at_once && !is_empty {
            self.view = View::Ready;
        }
        if self.options.replay.is_none() && self.world.is_new(batch.epoch) {
            self.stacks.turn(&self.world.tables);
        }
        self.world.define(batch.epoch, batch.definitions);
        self.meet_threads();
        for event in batch.events {
            let Some(event) = self.world.event(event) else {
                continue;
            };
            if at_once {
                let tells = matches!(event, Event::Sample(_) | Event::Process(_));
                match self.kept.len() < self.options.limits.kept_events {
                    true if tells => self.kept.push(event),
                    true => {}
                    false => self.left_out += u64::from(tells),
                }
            } else if !self.sessions.is_empty() {
                self.event(&event, None);
            }
        }
    }

    pub(super) fn event(&mut self, event: &Event, only: Option<&str>) {
        let meant = |(id, _): &(&String, &mut Profiling)| only.is_none_or(|only| only == *id);
        match event {
            Event::Sample(sample) => {
                let Some(key) = self.world.thread_of(sample.thread) else {
                    return;
                };
                let since = self.world.tables.thread(sample.thread);
                let since = since.map_or(0, |thread| thread.started.0);
                let source = self.world.tables.sources.get(sample.source);
                let period = source.and_then(|source| sampling_period_ns(sample, source));
                let mut stack = None;
                for (_, session) in self.sessions.iter_mut().filter(meant) {
                    if !session.asked.target.has(key) {
                        continue;
                    }
                    session.thread(key, since);
                    let stack =
                        *stack.get_or_insert_with(|| self.stacks.key((sample.kernel, sample.user)));
                    match sample.wait {
                        Some(wait) => session.waited(key, sample.at.0, wait.ns, stack),
                        None => {
                            let period = period.unwrap_or(session.asked.interval_ns);
                            session.run(key, sample.at.0, period, stack);
                        }
                    }
                }
            }
            Event::Process(ProcessEvent { at, thread, change }) => {
                let Some(key) = self.world.thread_of(*thread) else {
                    return;
                };
                match change {
                    ProcessChange::Exited => {
                        for (_, session) in self.sessions.iter_mut().filter(meant) {
                            session.ended(key, at.0);
                        }
                    }
                    // It may have another user's rights now.
                    ProcessChange::Executed(_) if only.is_none() => {
                        self.look_at(at.0, |session| session.asked.target.life() == key.process);
                    }
                    ProcessChange::Started
                    | ProcessChange::Executed(_)
                    | ProcessChange::Renamed(_) => {}
                }
            }
            _ => {}
        }
    }

    /// Whether those who profile still may.
    fn look_at(&mut self, at: u64, is_meant: impl Fn(&Profiling) -> bool) {
        if self.options.replay.is_some() {
            return;
        }
        let sessions = self.sessions.iter();
        let running = sessions.filter(|(_, it)| it.state() != State::Stopped && is_meant(it));
        let looked_at: Vec<(String, u32, Target)> = running
            .map(|(id, it)| (id.clone(), it.owner, it.asked.target))
            .collect();
        let mut has_changed = false;
        for (id, user, target) in looked_at {
            let life = target.life();
            let (status, is_known) = match target {
                Target::Process(life) => (
                    self.machine.status(life),
                    self.world.process(life).is_some(),
                ),
                Target::Thread(key) => (
                    self.machine.thread_status(life, key.tid),
                    self.world.thread(key).is_some(),
                ),
            };
            let process = self.world.process(life);
            let may = process.map(|process| self.allows(user, life, process).is_ok());
            let Some(session) = self.sessions.get_mut(&id) else {
                continue;
            };
            match (may, status) {
                // One that has ended is nobody's; what was seen of it is kept.
                (Some(false), Ok(_)) => session.revoke(at, "NotAllowedError"),
                // Its end was not told.
                (_, Err(MachineError::Ended)) if !is_known => session.gone(at),
                _ => continue,
            }
            has_changed = true;
        }
        if has_changed {
            self.change_demand();
        }
    }

    /// Time passes.
    pub fn tick(&mut self, now: Instant) {
        let certain = match self.options.replay {
            Some(_) => self.world.at.0,
            None => self.world.at.0.max(self.now_ns().saturating_sub(CERTAIN)),
        };
        for session in self.sessions.values_mut() {
            if session.state() != State::Stopped {
                session.advance(certain);
            }
        }
        if self.looked.is_none_or(|at| now.duration_since(at) >= LOOK) {
            self.looked = Some(now);
            let at = self.now_ns();
            self.look_at(at, |_| true);
            let HttpLimits { idle, grace, .. } = self.options.limits;
            let mut over = Vec::new();
            for (id, session) in &mut self.sessions {
                if session.is_deserted(now, grace) {
                    log::debug!("session {id} is ended: who listened to it has gone");
                    over.push((id.clone(), "who listened to it has gone"));
                } else if now.duration_since(session.used) > idle {
                    log::warn!("session {id} is ended: nobody has asked for it for too long");
                    over.push((id.clone(), "nobody has asked for it for too long"));
                }
            }
            for (id, how) in over {
                self.remove(&id, how);
            }
        }
        // Sessions whose buffers are full want nothing more.
        self.change_demand();
    }
}
