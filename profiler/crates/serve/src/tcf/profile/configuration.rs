//! One configuration of a channel: what is wanted of a context's id, and how far it is.
//!
//! A configuration belongs to one life of its context: it waits for one, gets its samples, can be read
//! once more when that has ended, and is spent then. A later life of the same id is another process; a
//! client that wants it configures anew. What does not belong here: samples (`buffer`).

use rustc_hash::FxHashSet;

use super::buffer::Buffer;
use super::settings::{Scope, Settings};
use crate::pace::Pace;
use crate::tcf::agent::ChannelId;
use crate::tcf::world::ContextKey;
use crate::thin::{Thinner, WHOLE};

/// A configuration, wherever it is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Slot(pub(super) u32);

/// The life that a configuration belongs to.
#[derive(Debug)]
pub(super) struct Bound {
    /// The context.
    pub(super) context: ContextKey,
    /// Its process.
    pub(super) process: ContextKey,
    /// It is a thread.
    pub(super) is_thread: bool,
    /// Other processes whose samples it gets.
    pub(super) members: FxHashSet<ContextKey>,
}

/// How far it is.
#[derive(Debug)]
pub(super) enum Phase {
    /// There is no living context of this id yet.
    Waiting,
    /// It gets samples.
    Active(Bound),
    /// The context has ended; what there is can be read. With its process.
    Ended(ContextKey),
    /// That was read.
    Spent,
}

/// What a channel wants of a context, from its first wait to the last read.
#[derive(Debug)]
pub(super) struct Configuration {
    pub(super) channel: ChannelId,
    pub(super) id: String,
    pub(super) settings: Settings,
    pub(super) phase: Phase,
    pub(super) buffer: Buffer,
    /// Samples that the whole machine had lost when it was read last.
    pub(super) lost_before: u64,
    thinner: Thinner,
    pace: Pace,
    /// A recording is shown.
    is_replay: bool,
}

impl Configuration {
    /// A new one.
    pub(super) fn new(
        channel: ChannelId,
        id: &str,
        settings: Settings,
        thinner: Thinner,
        lost_before: u64,
        is_replay: bool,
    ) -> Configuration {
        Configuration {
            channel,
            id: id.to_owned(),
            settings,
            phase: Phase::Waiting,
            buffer: Buffer::default(),
            lost_before,
            thinner,
            pace: Pace::Unknown,
            is_replay,
        }
    }

    /// Memory of one with this id, without samples.
    pub(super) fn bytes(id: &str) -> usize {
        // The id is a key too; a table of pointers and one of ids are about half full.
        2 * size_of::<Configuration>() + 4 * (id.len() + size_of::<String>())
    }

    /// The life that it gets samples of.
    pub(super) fn bound(&self) -> Option<&Bound> {
        match &self.phase {
            Phase::Active(bound) => Some(bound),
            Phase::Waiting | Phase::Ended(_) | Phase::Spent => None,
        }
    }

    /// The process whose addresses are in the buffer.
    pub(super) fn process(&self) -> Option<ContextKey> {
        match &self.phase {
            Phase::Active(bound) => Some(bound.process),
            Phase::Ended(process) => Some(*process),
            Phase::Waiting | Phase::Spent => None,
        }
    }

    /// Whether it gets samples of more processes than one.
    pub(super) fn is_wide(&self) -> bool {
        self.settings.scope != Scope::Context && self.bound().is_some_and(|bound| !bound.is_thread)
    }

    /// How many of so many samples in a row, of this pace, are for it.
    pub(super) fn keeps(&mut self, count: u64, pace: Pace) -> u64 {
        self.pace = pace;
        let mass = match self.thins() {
            true => pace.mass(self.settings.frequency_hz),
            false => WHOLE,
        };
        match count {
            1 => u64::from(self.thinner.keeps(mass)),
            count => self.thinner.keeps_of(count, mass),
        }
    }

    /// Samples per second and processor that it gets; 0 if that is not known.
    pub(super) fn frequency_hz(&self) -> u64 {
        match (self.pace.frequency_hz(), self.settings.frequency_hz) {
            (0, _) if self.is_replay => 0,
            (0, wanted) => wanted,
            (hz, wanted) if self.thins() => hz.min(wanted),
            (hz, _) => hz,
        }
    }

    fn thins(&self) -> bool {
        !self.is_replay || self.settings.is_explicit
    }
}
