//! Configurations and the lives of their contexts: which one waits, which has one, whose has ended.
//!
//! What does not belong here: samples on their way (`mod`).

use std::time::Instant;

use rustc_hash::FxHashSet;

use super::Profiles;
use super::configuration::{Bound, Phase, Slot};
use super::history::Moment;
use super::scope;
use super::settings::Scope;
use super::surroundings::Surroundings;
use crate::front::Replay;
use crate::tcf::world::ContextKey;

/// Most configurations of a channel that are of several processes: each sample of a process is counted
/// for all of them.
const MAX_WIDE: usize = 64;

impl Profiles {
    /// Gives configurations that wait for this id its living context, if there is one.
    pub(super) fn bind_waiting(&mut self, id: &str, world: &mut impl Surroundings) {
        if !self.waiting.contains_key(id) {
            return;
        }
        let Some(key) = world.find(id).filter(|&key| self.is_alive(key, world)) else {
            return;
        };
        for slot in self.waiting.remove(id).unwrap_or_default() {
            self.bind(slot, key, world);
        }
    }

    /// A configuration waits no more.
    pub(super) fn stop_waiting(&mut self, id: &str, slot: Slot) {
        if let Some(slots) = self.waiting.get_mut(id) {
            slots.retain(|&other| other != slot);
            if slots.is_empty() {
                self.waiting.remove(id);
            }
        }
    }

    /// Ends those of these configurations whose contexts have ended.
    pub(super) fn notice_ends(
        &mut self,
        slots: impl IntoIterator<Item = Slot>,
        world: &impl Surroundings,
    ) {
        for slot in slots {
            let bound = self.configuration(slot).and_then(|own| own.bound());
            let Some((context, process)) = bound.map(|bound| (bound.context, bound.process)) else {
                continue;
            };
            if self.is_alive(context, world) {
                continue;
            }
            self.unroute(slot);
            if let Some(configuration) = self.configuration_mut(slot) {
                configuration.phase = Phase::Ended(process);
            }
        }
    }

    /// Ids of contexts that have ended, and whose samples were not all read.
    pub(in crate::tcf) fn unread(&self) -> FxHashSet<&str> {
        let configurations = self.configurations.iter().flatten();
        configurations
            .filter(|own| matches!(own.phase, Phase::Ended(_)))
            .map(|own| &*own.id)
            .collect()
    }

    /// Finds out whom samples of a process are for.
    pub(super) fn look_at(&mut self, process: ContextKey, world: &mut impl Surroundings) {
        self.routes.entry(process).or_default();
        let wide = self.wide.iter().copied();
        let slots: Vec<Slot> = wide
            .filter(|&slot| self.wants(slot, process, world))
            .collect();
        for slot in slots {
            self.admit(slot, process, world);
        }
    }

    /// Forgets what has ended; looks at cgroups again, since processes move between them.
    pub(super) fn review(&mut self, world: &mut impl Surroundings) {
        let mut routes = std::mem::take(&mut self.routes);
        routes.retain(|&process, _| self.is_alive(process, world));
        self.routes = routes;
        for slot in self.wide.clone() {
            let Some(configuration) = self.configuration(slot) else {
                continue;
            };
            let Some(bound) = configuration.bound() else {
                continue;
            };
            let is_container = configuration.settings.scope == Scope::Container;
            let stays = |key: ContextKey| {
                self.is_alive(key, world) && (!is_container || self.wants(slot, key, world))
            };
            let members = bound.members.iter().copied();
            let gone: Vec<ContextKey> = members.filter(|&key| !stays(key)).collect();
            let mut come = match is_container {
                true => world.processes(),
                false => Vec::new(),
            };
            come.retain(|&key| self.is_alive(key, world) && self.wants(slot, key, world));
            for key in gone {
                self.dismiss(slot, key);
            }
            for key in come {
                self.admit(slot, key, world);
            }
        }
    }

    /// Samples of a configuration's context go nowhere any more.
    pub(super) fn unroute(&mut self, slot: Slot) {
        let Some(bound) = self.configuration(slot).and_then(|own| own.bound()) else {
            return;
        };
        let keys = std::iter::once(bound.context).chain(bound.members.iter().copied());
        for key in keys.collect::<Vec<_>>() {
            self.unroute_from(slot, key);
        }
        self.wide.retain(|&other| other != slot);
        self.wanted.take();
    }

    fn unroute_from(&mut self, slot: Slot, key: ContextKey) {
        if let Some(slots) = self.routes.get_mut(&key) {
            slots.retain(|&other| other != slot);
        }
    }

    fn bind(&mut self, slot: Slot, key: ContextKey, world: &mut impl Surroundings) {
        let Some(context) = world.context(key) else {
            return;
        };
        let (process, is_thread) = (context.process, context.thread.is_some());
        let Some(configuration) = self.configuration_mut(slot) else {
            return;
        };
        configuration.phase = Phase::Active(Bound {
            context: key,
            process,
            is_thread,
            members: Default::default(),
        });
        let (channel, is_wide) = (configuration.channel, configuration.is_wide());
        self.wanted.take();
        self.lives += 1;
        if !self.routes.contains_key(&process) {
            self.look_at(process, world);
        }
        self.routes.entry(key).or_default().push(slot);
        self.recall(slot, process, is_thread.then_some(key), world);
        if !is_wide {
            return;
        }
        let is_of_channel = |&&slot: &&Slot| {
            let own = self.configuration(slot);
            own.is_some_and(|own| own.channel == channel)
        };
        if self.wide.iter().filter(is_of_channel).count() >= MAX_WIDE {
            self.warnings.warn(Instant::now(), || {
                format!("a TCF client configures more than {MAX_WIDE} groups of processes; this one is of one process")
            });
            if let Some(configuration) = self.configuration_mut(slot) {
                configuration.settings.scope = Scope::Context;
            }
            return;
        }
        self.wide.push(slot);
        for other in world.processes() {
            if self.is_alive(other, world) && self.wants(slot, other, world) {
                self.admit(slot, other, world);
            }
        }
    }

    /// A process becomes a member of a configuration.
    fn admit(&mut self, slot: Slot, process: ContextKey, world: &mut impl Surroundings) {
        let Some(configuration) = self.configuration_mut(slot) else {
            return;
        };
        let Phase::Active(bound) = &mut configuration.phase else {
            return;
        };
        if process == bound.process || !bound.members.insert(process) {
            return;
        }
        self.routes.entry(process).or_default().push(slot);
        self.wanted.take();
        self.lives += 1;
        self.recall(slot, process, None, world);
    }

    /// A process is a member no more.
    fn dismiss(&mut self, slot: Slot, process: ContextKey) {
        self.unroute_from(slot, process);
        let Some(configuration) = self.configuration_mut(slot) else {
            return;
        };
        if let Phase::Active(bound) = &mut configuration.phase {
            bound.members.remove(&process);
        }
        self.wanted.take();
    }

    /// Gives a configuration all samples of a recording that were before it.
    fn recall(
        &mut self,
        slot: Slot,
        process: ContextKey,
        thread: Option<ContextKey>,
        world: &mut impl Surroundings,
    ) {
        let Some(history) = &self.history else {
            return;
        };
        let (moments, dropped) = history.of(process);
        let is_own = |moment: &Moment| thread.is_none_or(|only| only == moment.thread);
        let mut last = None;
        for (moment, count) in moments.into_iter().filter(|(moment, _)| is_own(moment)) {
            self.deliver(slot, moment, count, &mut last, world);
        }
        if let Some(configuration) = self.configuration_mut(slot) {
            configuration.buffer.dropped += dropped;
        }
    }

    /// Whether samples of a process are for a configuration.
    fn wants(&self, slot: Slot, process: ContextKey, world: &impl Surroundings) -> bool {
        self.configuration(slot).is_some_and(|own| {
            let bound = own.bound();
            bound.is_some_and(|bound| scope::includes(own.settings.scope, bound, process, world))
        })
    }

    /// Whether a context gets samples still. Of a recording that is there at once, all do.
    pub(super) fn is_alive(&self, key: ContextKey, world: &impl Surroundings) -> bool {
        match world.context(key) {
            Some(context) => !context.ended || self.replay == Some(Replay::AtOnce),
            None => false,
        }
    }
}
