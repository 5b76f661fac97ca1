//! What is sampled for whom: configurations, and the samples that wait to be read.
//!
//! Samples of a session -> stacks of addresses with counts, by channel and context; configurations ->
//! the [`Demand`] of all clients together. What does not belong here: where frames are (`world`), JSON.

use std::time::Instant;

use serde_json::{Map, Value};

use super::agent::ChannelId;
use super::options::{Limits, Replay};
use super::world::{ContextKey, World};
use crate::model::*;

/// Samples that were read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ReadOut {
    /// Words of 8 bytes, little-endian: see `wire::tcf`. Empty: there were no samples.
    pub(super) data: Vec<u8>,
    /// How many there are in it.
    pub(super) samples: u64,
    /// Samples that found no room since the last read.
    pub(super) dropped: u64,
    /// Samples of the whole machine that were lost on the way since the last read: whose they would
    /// have been nobody knows.
    pub(super) lost: u64,
    /// Samples per second and processor.
    pub(super) frequency_hz: u64,
}

/// See the module.
pub(super) struct Profiles {}

impl Profiles {
    /// Without any configuration.
    pub(super) fn new(_limits: Limits, _replay: Option<Replay>) -> Profiles {
        Profiles {}
    }

    /// Configures a context of a channel, in place of what was before; an empty object stops it. The
    /// id need not be that of a context yet.
    pub(super) fn configure(
        &mut self,
        _channel: ChannelId,
        _id: &str,
        _parameters: Map<String, Value>,
        _world: &mut World,
    ) {
    }

    /// Whether this channel has configured that id.
    pub(super) fn is_configured(&self, _channel: ChannelId, _id: &str) -> bool {
        false
    }

    /// Takes the samples; none if it is not configured.
    pub(super) fn read(&mut self, _channel: ChannelId, _id: &str) -> Option<ReadOut> {
        None
    }

    /// A channel has closed: its configurations go.
    pub(super) fn close(&mut self, _channel: ChannelId, _world: &mut World) {}

    /// A sample, with ids of the world's tables.
    pub(super) fn sample(&mut self, _sample: &Sample, _world: &mut World) {}

    /// Something is missing.
    pub(super) fn lost(&mut self, _lost: &Lost) {}

    /// Contexts have come and gone; time passes.
    pub(super) fn tick(&mut self, _now: Instant, _world: &mut World) {}

    /// What all configurations together want sampled.
    pub(super) fn sampling(&self, _world: &World) -> Option<Sampling> {
        None
    }
}
