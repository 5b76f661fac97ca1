//! What is sampled for whom: configurations, and the samples that wait to be read.
//!
//! Samples of a session -> stacks of addresses with counts, by channel and context; configurations ->
//! the [`Sampling`] of all clients together. One session serves all: a sample is looked up once by its
//! process, thinned for each configuration to the frequency that it asked for, and counted under its
//! list of addresses. Memory of all that waits is bounded; what finds no room is counted. What does not
//! belong here: where frames are (`world`), JSON.

mod binding;
mod budget;
mod buffer;
mod configuration;
mod demand;
mod history;
mod room;
mod scope;
mod settings;
mod stacks;
mod surroundings;
#[cfg(test)]
mod tests;

use std::cell::OnceCell;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;
use serde_json::{Map, Value};

use self::budget::Budget;
use self::configuration::{Configuration, Phase, Slot};
use self::history::{History, Moment};
use self::settings::Settings;
pub(super) use self::settings::{DEFAULT_FREQUENCY_HZ, DEFAULT_MAX_SAMPLES, MAX_FRAME_COUNT};
use self::stacks::{ListId, Shape, Stacks};
pub(super) use self::surroundings::Surroundings;
use super::agent::ChannelId;
use super::options::Limits;
use super::warnings::Warnings;
use super::world::ContextKey;
use crate::front::Replay;
use crate::pace::Pace;
use crate::thin::{Random, Thinner};
use profiler_model::*;

/// How often cgroups are looked at again, and what has ended is forgotten.
const REVIEW: Duration = Duration::from_secs(1);

/// Longest id that a context can have.
const MAX_ID_BYTES: usize = 256;

/// Samples that were read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ReadOut {
    /// Words of 8 bytes, little-endian: see `wire::tcf`. Empty: there were no samples.
    pub(super) data: Vec<u8>,
    /// How many there are in it.
    pub(super) samples: u64,
    /// Samples that found no room since the last read.
    pub(super) dropped: u64,
    /// Samples since the last read that have neither a user stack nor a kernel stack.
    pub(super) no_stack: u64,
    /// Of `samples`, those whose stacks have fewer frames than were wanted and there were.
    pub(super) truncated: u64,
    /// Samples of the whole machine that were lost on the way since the last read: whose they would
    /// have been nobody knows.
    pub(super) lost: u64,
    /// Samples per second and processor; 0: not known.
    pub(super) frequency_hz: u64,
    /// The context has ended: there will be no more.
    pub(super) is_last: bool,
}

/// What reading comes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Read {
    /// These samples, or none yet.
    Samples(ReadOut),
    /// The context has ended, and its samples were read.
    Spent,
    /// It is not configured, or configured for a context that is not there yet.
    Nothing,
}

/// The configurations of all channels, and what was sampled for them.
pub(super) struct Profiles {
    limits: Limits,
    replay: Option<Replay>,
    configurations: Vec<Option<Configuration>>,
    free: Vec<Slot>,
    channels: FxHashMap<ChannelId, FxHashMap<String, Slot>>,
    /// Configurations that wait for a context, by its id.
    waiting: FxHashMap<String, Vec<Slot>>,
    /// Configurations of several processes.
    wide: Vec<Slot>,
    /// Who gets samples of a process or thread. There is one, though maybe an empty one, for each process
    /// that was looked at.
    routes: FxHashMap<ContextKey, Vec<Slot>>,
    stacks: Stacks,
    budget: Budget,
    /// How many buffers have addresses of a process, so that what is there must stay known.
    holds: FxHashMap<ContextKey, usize>,
    /// Holds that end later: clients ask for names after they have read.
    late_holds: VecDeque<(Instant, ContextKey)>,
    history: Option<History>,
    /// Samples that the whole machine has lost.
    lost: u64,
    random: Random,
    now: Option<Instant>,
    reviewed: Option<Instant>,
    wanted: OnceCell<Option<Sampling>>,
    /// Counts up when a context begins to be sampled.
    lives: u64,
    warnings: Warnings,
}

impl Profiles {
    /// Without any configuration.
    pub(super) fn new(limits: Limits, replay: Option<Replay>) -> Profiles {
        Profiles::with_random(limits, replay, Random::unforeseen())
    }

    fn with_random(limits: Limits, replay: Option<Replay>, random: Random) -> Profiles {
        let bytes = limits.profile_bytes;
        let history = match replay {
            Some(Replay::AtOnce) => Some(bytes / 2),
            Some(Replay::Timed) | None => None,
        };
        let remembered = bytes / 8;
        Profiles {
            replay,
            configurations: Vec::new(),
            free: Vec::new(),
            channels: FxHashMap::default(),
            waiting: FxHashMap::default(),
            wide: Vec::new(),
            routes: FxHashMap::default(),
            stacks: Stacks::new(remembered),
            budget: Budget::new(bytes - remembered - history.unwrap_or(0)),
            holds: FxHashMap::default(),
            late_holds: VecDeque::new(),
            history: history.map(History::new),
            lost: 0,
            random,
            now: None,
            reviewed: None,
            wanted: OnceCell::new(),
            lives: 0,
            warnings: Warnings::default(),
            limits,
        }
    }

    /// Configures a context of a channel, in place of what was before; an empty object stops it. The
    /// id need not be that of a context yet.
    pub(super) fn configure(
        &mut self,
        channel: ChannelId,
        id: &str,
        parameters: Map<String, Value>,
        world: &mut impl Surroundings,
    ) {
        if let Some(slot) = self.slot(channel, id) {
            self.remove(slot, world);
        }
        let Some(settings) = Settings::parse(&parameters, &self.limits) else {
            return;
        };
        self.budget.enter(channel);
        if id.len() > MAX_ID_BYTES || !self.has_place(channel, id, world) {
            self.warnings.warn(Instant::now(), || {
                "a TCF client configures more contexts than it may; one is ignored".to_owned()
            });
            if !self.channels.contains_key(&channel) {
                self.budget.leave(channel);
            }
            return;
        }
        let thinner = Thinner::new(Random::new(self.random.next()));
        let is_replay = self.replay.is_some();
        // With all samples of a recording comes all that it has lost.
        let lost_before = match self.history {
            Some(_) => 0,
            None => self.lost,
        };
        let configuration =
            Configuration::new(channel, id, settings, thinner, lost_before, is_replay);
        let slot = self.free.pop().unwrap_or_else(|| {
            self.configurations.push(None);
            Slot((self.configurations.len() - 1) as u32)
        });
        self.configurations[slot.0 as usize] = Some(configuration);
        // The last one that it had may have gone for that.
        self.budget.enter(channel);
        self.budget.take(channel, Configuration::bytes(id));
        let ids = self.channels.entry(channel).or_default();
        ids.insert(id.to_owned(), slot);
        self.waiting.entry(id.to_owned()).or_default().push(slot);
        self.bind_waiting(id, world);
    }

    /// Takes the samples of a configuration.
    pub(super) fn read(
        &mut self,
        channel: ChannelId,
        id: &str,
        world: &mut impl Surroundings,
    ) -> Read {
        self.bind_waiting(id, world);
        self.notice_ends(self.slot(channel, id), world);
        let Some(slot) = self.slot(channel, id) else {
            return Read::Nothing;
        };
        let lost = self.lost;
        let Some(configuration) = self.configuration_mut(slot) else {
            return Read::Nothing;
        };
        let is_last = match configuration.phase {
            Phase::Waiting => return Read::Nothing,
            Phase::Spent => return Read::Spent,
            Phase::Active(_) => false,
            Phase::Ended(_) => true,
        };
        let buffer = &configuration.buffer;
        let mut out = ReadOut {
            data: Vec::new(),
            samples: buffer.samples,
            dropped: buffer.dropped,
            no_stack: buffer.no_stack,
            truncated: buffer.truncated,
            lost: lost - configuration.lost_before,
            frequency_hz: configuration.frequency_hz(),
            is_last,
        };
        configuration.lost_before = lost;
        if let Some(configuration) = self.configuration(slot) {
            configuration.buffer.encode(&self.stacks, &mut out.data);
        }
        self.clear(slot, world);
        if is_last && let Some(configuration) = self.configuration_mut(slot) {
            configuration.phase = Phase::Spent;
        }
        Read::Samples(out)
    }

    /// A channel has closed: its configurations go.
    pub(super) fn close(&mut self, channel: ChannelId, world: &mut impl Surroundings) {
        let ids = self.channels.get(&channel);
        let slots: Vec<Slot> = ids
            .into_iter()
            .flat_map(|ids| ids.values().copied())
            .collect();
        for slot in slots {
            self.remove(slot, world);
        }
    }

    /// A sample, with ids of the world's tables.
    pub(super) fn sample(&mut self, sample: &Sample, world: &mut impl Surroundings) {
        // Counts are of samples of what runs; a wait is none of these.
        if sample.wait.is_some() || (self.channels.is_empty() && self.history.is_none()) {
            return;
        }
        let Some((process, thread)) = world.contexts_of(sample.thread) else {
            return;
        };
        if !self.waiting.is_empty() {
            for key in [process, thread] {
                let id = world.context(key).map(|context| &context.id);
                if let Some(id) = id.filter(|&id| self.waiting.contains_key(id)).cloned() {
                    self.bind_waiting(&id, world);
                }
            }
        }
        if !self.routes.contains_key(&process) {
            self.look_at(process, world);
        }
        if let Some(history) = &mut self.history {
            history.follow(world.turns());
        }
        let moment = Moment {
            thread,
            kernel: sample.kernel,
            user: sample.user,
            pace: Pace::of(sample, world.tables().sources.get(sample.source)),
            truncated: (
                sample.kernel_end.is_too_deep(),
                sample.user_end.is_too_deep(),
            ),
        };
        let mut last = None;
        for key in [process, thread] {
            // Taken out while it is gone through; nothing below changes it.
            let Some(slots) = self.routes.get_mut(&key).map(std::mem::take) else {
                continue;
            };
            for &slot in &slots {
                self.deliver(slot, moment, 1, &mut last, world);
            }
            self.routes.insert(key, slots);
        }
        if let Some(history) = &mut self.history {
            history.add(process, moment);
        }
    }

    /// Something is missing.
    pub(super) fn lost(&mut self, lost: &Lost) {
        match lost.reason.kind() {
            LostKind::Samples | LostKind::Events => {
                self.lost = self.lost.saturating_add(lost.count);
            }
            LostKind::Waits | LostKind::Calls | LostKind::ProcessEvents | LostKind::Begun => {}
        }
    }

    /// Contexts have come and gone; time passes.
    pub(super) fn tick(&mut self, now: Instant, world: &mut impl Surroundings) {
        self.now = Some(now);
        while let Some(&(until, process)) = self.late_holds.front()
            && until <= now
        {
            self.late_holds.pop_front();
            self.release(process, world);
        }
        let ids: Vec<String> = self.waiting.keys().cloned().collect();
        for id in ids {
            self.bind_waiting(&id, world);
        }
        let slots = 0..self.configurations.len() as u32;
        self.notice_ends(slots.map(Slot), world);
        let due = |last: Instant| now.saturating_duration_since(last) >= REVIEW;
        if self.reviewed.is_none_or(due) {
            self.reviewed = Some(now);
            self.review(world);
        }
        if !self.wide.is_empty() {
            for process in world.processes() {
                if !self.routes.contains_key(&process) {
                    self.look_at(process, world);
                }
            }
        }
    }

    /// What all configurations together want sampled; nothing of a recording.
    pub(super) fn sampling(&self, world: &impl Surroundings) -> Option<&Sampling> {
        let find = || match self.replay {
            Some(_) => None,
            None => demand::union(self.configurations.iter().flatten(), world),
        };
        self.wanted.get_or_init(find).as_ref()
    }

    /// Differs from what it was when a context has begun to be sampled since, though it may have the id
    /// of another.
    pub(super) fn lives(&self) -> u64 {
        self.lives
    }

    /// Gives samples to a configuration, as many as it is to have of them. `last` is the list that the
    /// last one came to: clients of one process often want the same.
    fn deliver(
        &mut self,
        slot: Slot,
        moment: Moment,
        count: u64,
        last: &mut Option<(Shape, Option<ListId>)>,
        world: &mut impl Surroundings,
    ) {
        let Some(configuration) = self.configurations[slot.0 as usize].as_mut() else {
            return;
        };
        let Some(process) = configuration.process() else {
            return;
        };
        let count = configuration.keeps(count, moment.pace);
        if count == 0 {
            return;
        }
        let is_kernel_shown = configuration.settings.kernel_stacks || moment.user.is_none();
        let shape = Shape {
            process,
            kernel: moment.kernel.filter(|_| is_kernel_shown),
            user: moment.user,
            frames: configuration.settings.frames,
        };
        let list = match last {
            Some((known, list)) if *known == shape => *list,
            _ => {
                let list = self.stacks.list(shape, world);
                *last = Some((shape, list));
                list
            }
        };
        let Some(list) = list else {
            configuration.buffer.no_stack += count;
            return;
        };
        let is_truncated = moment.truncated.1 || moment.truncated.0 && is_kernel_shown;
        let lacks =
            is_truncated && self.stacks.addresses(list).len() < configuration.settings.frames;
        let buffer = &mut configuration.buffer;
        let before = buffer.samples;
        let room = configuration.settings.max_samples - before;
        let fitting = count.min(room);
        buffer.dropped += count - fitting;
        if fitting > 0 && !buffer.add(list, fitting) {
            self.insert(slot, process, list, fitting, world);
        }
        if lacks && let Some(configuration) = self.configuration_mut(slot) {
            let buffer = &mut configuration.buffer;
            // Making room may have emptied it.
            buffer.truncated += buffer.samples.saturating_sub(before);
        }
    }

    /// Removes a configuration.
    fn remove(&mut self, slot: Slot, world: &mut impl Surroundings) {
        self.clear(slot, world);
        self.unroute(slot);
        let Some(configuration) = self.configurations[slot.0 as usize].take() else {
            return;
        };
        self.free.push(slot);
        self.budget.give(
            configuration.channel,
            Configuration::bytes(&configuration.id),
        );
        self.stop_waiting(&configuration.id, slot);
        if let Some(ids) = self.channels.get_mut(&configuration.channel) {
            ids.remove(&configuration.id);
            if ids.is_empty() {
                self.channels.remove(&configuration.channel);
                self.budget.leave(configuration.channel);
            }
        }
    }

    fn slot(&self, channel: ChannelId, id: &str) -> Option<Slot> {
        self.channels.get(&channel)?.get(id).copied()
    }

    fn configuration(&self, slot: Slot) -> Option<&Configuration> {
        self.configurations.get(slot.0 as usize)?.as_ref()
    }

    fn configuration_mut(&mut self, slot: Slot) -> Option<&mut Configuration> {
        self.configurations.get_mut(slot.0 as usize)?.as_mut()
    }
}
