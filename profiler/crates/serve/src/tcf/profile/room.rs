//! Room for what waits to be read: who gets how much of it, what gives way, and what has to stay known
//! meanwhile.
//!
//! What does not belong here: how memory is shared out (`budget`), what is in a buffer (`buffer`).

use profiler_model::sorting::InOrder;
use rustc_hash::FxHashMap;

use super::Profiles;
use super::budget::Room;
use super::buffer::Buffer;
use super::configuration::{Configuration, Phase, Slot};
use super::stacks::ListId;
use super::surroundings::Surroundings;
use crate::tcf::agent::ChannelId;
use crate::tcf::world::ContextKey;

impl Profiles {
    /// Puts samples of a stack that is new to a buffer into it, if there is memory for that.
    pub(super) fn insert(
        &mut self,
        slot: Slot,
        process: ContextKey,
        list: ListId,
        count: u64,
        world: &mut impl Surroundings,
    ) {
        let cost = Buffer::cost(list, &self.stacks);
        let data_bytes = Buffer::data_bytes(list, &self.stacks);
        let max_data_bytes = self.max_data_bytes();
        let Some(channel) = self.configuration(slot).map(|own| own.channel) else {
            return;
        };
        // A list that gives way may be this one.
        self.stacks.acquire(list);
        let has_room = self.make_room(channel, cost, world);
        if let Some(configuration) = self.configurations[slot.0 as usize].as_mut() {
            let buffer = &mut configuration.buffer;
            if has_room && buffer.data_bytes + data_bytes <= max_data_bytes {
                let was_empty = buffer.samples == 0;
                buffer.insert(list, count, &mut self.stacks);
                self.budget.take(channel, cost);
                if was_empty {
                    self.hold(process, world);
                }
            } else {
                buffer.dropped += count;
            }
        }
        self.stacks.release(list);
    }

    /// Most bytes of data of a read: in base64, half of what may wait for a client.
    fn max_data_bytes(&self) -> usize {
        self.limits.output_bytes / 2 / 4 * 3
    }

    /// Whether a channel may have one more configuration. Spent ones go for that.
    pub(super) fn has_place(
        &mut self,
        channel: ChannelId,
        id: &str,
        world: &mut impl Surroundings,
    ) -> bool {
        let count = |own: &Profiles| own.channels.get(&channel).map_or(0, FxHashMap::len);
        if count(self) >= self.limits.configurations {
            let ids = self.channels.get(&channel);
            let slots = ids.into_iter().flat_map(|ids| ids.values().copied());
            let is_spent = |slot: &Slot| {
                let phase = self.configuration(*slot).map(|own| &own.phase);
                matches!(phase, Some(Phase::Spent))
            };
            let spent: Vec<Slot> = slots.filter(is_spent).collect();
            for slot in spent {
                self.remove(slot, world);
            }
        }
        count(self) < self.limits.configurations
            && self.make_room(channel, Configuration::bytes(id), world)
    }

    /// Whether a channel may use so much more memory. Others that have more than their share give way.
    fn make_room(
        &mut self,
        channel: ChannelId,
        bytes: usize,
        world: &mut impl Surroundings,
    ) -> bool {
        match self.budget.room(channel, bytes) {
            Room::Yes => true,
            Room::From(other) => {
                self.shrink(other, world);
                self.budget.room(channel, bytes) == Room::Yes
            }
            Room::No => false,
        }
    }

    /// Makes a channel give up what it has above its share, the greatest buffers first.
    fn shrink(&mut self, channel: ChannelId, world: &mut impl Surroundings) {
        let Some(ids) = self.channels.get(&channel) else {
            return;
        };
        let bytes = |slot: &Slot| self.configuration(*slot).map_or(0, |own| own.buffer.bytes);
        let mut slots: Vec<(usize, Slot)> = ids.values().map(|slot| (bytes(slot), *slot)).collect();
        slots.order_by(|a, b| b.cmp(a));
        for (_, slot) in slots {
            if self.budget.used_by(channel) <= self.budget.share() {
                break;
            }
            let Some(configuration) = self.configuration(slot) else {
                continue;
            };
            let buffer = &configuration.buffer;
            let (dropped, no_stack) = (buffer.dropped + buffer.samples, buffer.no_stack);
            self.clear(slot, world);
            if let Some(configuration) = self.configuration_mut(slot) {
                configuration.buffer.dropped = dropped;
                configuration.buffer.no_stack = no_stack;
            }
        }
    }

    /// Empties a buffer.
    pub(super) fn clear(&mut self, slot: Slot, world: &mut impl Surroundings) {
        let Some(configuration) = self.configurations[slot.0 as usize].as_mut() else {
            return;
        };
        self.budget
            .give(configuration.channel, configuration.buffer.bytes);
        let had_samples = configuration.buffer.samples > 0;
        configuration.buffer.clear(&mut self.stacks);
        if had_samples && let Some(process) = configuration.process() {
            match self.now {
                Some(now) if !self.is_alive(process, world) => {
                    let until = now + self.limits.afterlife;
                    self.late_holds.push_back((until, process));
                }
                _ => self.release(process, world),
            }
        }
    }

    fn hold(&mut self, process: ContextKey, world: &mut impl Surroundings) {
        let holds = self.holds.entry(process).or_default();
        *holds += 1;
        if *holds == 1 {
            world.hold(process, true);
        }
    }

    pub(super) fn release(&mut self, process: ContextKey, world: &mut impl Surroundings) {
        let Some(holds) = self.holds.get_mut(&process) else {
            return;
        };
        *holds -= 1;
        if *holds == 0 {
            self.holds.remove(&process);
            world.hold(process, false);
        }
    }
}
