//! Memory of all buffers: what each channel uses, and who has to give way.
//!
//! All of the memory is for whoever needs it. Once it is used up, a channel that has less than its
//! share gets room from those that have more than theirs; who has its share gets no more. Sizes are
//! bytes. What does not belong here: what is dropped then (`mod`).

use rustc_hash::FxHashMap;

use crate::tcf::agent::ChannelId;

/// Whether there is room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Room {
    /// There is.
    Yes,
    /// If this channel gives up what it has above the share.
    From(ChannelId),
    /// There is none.
    No,
}

/// The memory of all channels' buffers.
#[derive(Debug)]
pub(super) struct Budget {
    limit: usize,
    used: usize,
    channels: FxHashMap<ChannelId, usize>,
}

impl Budget {
    /// Of so many bytes.
    pub(super) fn new(limit: usize) -> Budget {
        Budget {
            limit,
            used: 0,
            channels: FxHashMap::default(),
        }
    }

    /// A channel wants a share.
    pub(super) fn enter(&mut self, channel: ChannelId) {
        self.channels.entry(channel).or_default();
    }

    /// A channel wants none any more. It has released what it used.
    pub(super) fn leave(&mut self, channel: ChannelId) {
        self.channels.remove(&channel);
    }

    /// What each channel can have for sure.
    pub(super) fn share(&self) -> usize {
        self.limit / self.channels.len().max(1)
    }

    /// What a channel uses.
    pub(super) fn used_by(&self, channel: ChannelId) -> usize {
        self.channels.get(&channel).copied().unwrap_or(0)
    }

    /// Whether a channel may use so much more.
    pub(super) fn room(&self, channel: ChannelId, bytes: usize) -> Room {
        if self.used + bytes <= self.limit {
            return Room::Yes;
        }
        let share = self.share();
        if self.used_by(channel) + bytes > share {
            return Room::No;
        }
        let greatest = self.channels.iter().max_by_key(|(id, used)| (**used, **id));
        match greatest {
            Some((&id, &used)) if used > share => Room::From(id),
            _ => Room::No,
        }
    }

    /// A channel uses so much more.
    pub(super) fn take(&mut self, channel: ChannelId, bytes: usize) {
        self.used += bytes;
        *self.channels.entry(channel).or_default() += bytes;
    }

    /// A channel uses so much less.
    pub(super) fn give(&mut self, channel: ChannelId, bytes: usize) {
        self.used = self.used.saturating_sub(bytes);
        if let Some(used) = self.channels.get_mut(&channel) {
            *used = used.saturating_sub(bytes);
        }
    }

    /// What all channels use.
    #[cfg(test)]
    pub(super) fn used(&self) -> usize {
        self.used
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_alone_has_all_and_gives_way_later() {
        let (a, b) = (ChannelId(1), ChannelId(2));
        let mut budget = Budget::new(100);
        budget.enter(a);
        assert_eq!(budget.room(a, 100), Room::Yes);
        budget.take(a, 100);
        assert_eq!(budget.room(a, 1), Room::No);
        budget.enter(b);
        assert_eq!(budget.room(b, 50), Room::From(a));
        assert_eq!(budget.room(b, 51), Room::No);
        budget.give(a, 60);
        budget.take(b, 50);
        assert_eq!(budget.room(a, 10), Room::Yes);
        budget.take(a, 10);
        assert_eq!(budget.room(a, 1), Room::No);
        budget.give(b, 50);
        budget.leave(b);
        assert_eq!(budget.room(a, 50), Room::Yes);
    }
}
