//! A client's connection: what waits to be sent, which TraceActors are attached, which request is being answered.
//!
//! Replies always find room, since no more requests are taken while much waits; frames find it up to the limit. From
//! the first one that does not, all are counted and none is sent, so that what a client has got is whole. What does
//! not belong here: requests (`agent`), sockets.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use profiler_wire::rdp::{Decoder, Packet, PacketSink, TraceActor, encode};
use serde::Serialize;

use super::markers::Pendings;
use super::options::{RdpLimits, RdpPeer};
use super::source::Source;
use crate::world::ThreadKey;
use profiler_model::Tracing;
use profiler_report::derive::SampledFrames;

/// From so many bytes on no more requests are taken.
const CROWDED: usize = 1 << 20;

/// What waits to be sent to a client.
#[derive(Debug)]
pub struct Output {
    bytes: Vec<u8>,
    sent: usize,
    limit: usize,
    /// Frames are missing since it was full.
    lags: bool,
    is_last: bool,
}

impl Output {
    fn new(limit: usize) -> Output {
        Output {
            bytes: Vec::new(),
            sent: 0,
            limit,
            lags: false,
            is_last: false,
        }
    }

    /// What is to be sent next.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[self.sent..]
    }

    /// So much of it was sent.
    pub fn advance(&mut self, count: usize) {
        self.sent = (self.sent + count).min(self.bytes.len());
        if self.sent == self.bytes.len() {
            self.bytes.clear();
            self.bytes.shrink_to(CROWDED);
            self.sent = 0;
        } else if self.sent > self.limit / 2 {
            self.bytes.drain(..self.sent);
            self.sent = 0;
        }
    }

    /// Nothing comes behind what waits.
    pub fn is_last(&self) -> bool {
        self.is_last
    }

    /// No more requests are taken.
    pub fn is_crowded(&self) -> bool {
        self.bytes().len() >= CROWDED
    }

    /// Frames are missing from now on.
    pub(super) fn lag(&mut self) {
        self.lags = true;
    }

    /// Frames are missing.
    pub(super) fn lags(&self) -> bool {
        self.lags
    }

    pub(super) fn end(&mut self) {
        self.is_last = true;
    }

    pub(super) fn give_up(&mut self) {
        self.bytes.clear();
        self.sent = 0;
        self.is_last = true;
    }
}

/// Replies, and what is told without having been asked.
impl PacketSink for Output {
    fn put(&mut self, packet: &impl Serialize) {
        if !self.is_last {
            encode(packet, &mut self.bytes);
        }
    }
}

/// Frames: they may find no room.
pub(super) struct FrameSink<'o> {
    pub(super) output: &'o mut Output,
    pub(super) missed: &'o mut u64,
}

impl PacketSink for FrameSink<'_> {
    fn put(&mut self, packet: &impl Serialize) {
        self.output.lags |= self.output.bytes().len() >= self.output.limit;
        match self.output.lags {
            true => *self.missed += 1,
            false => self.output.put(packet),
        }
    }
}

/// A TraceActor that is attached, and where its frames come from.
#[derive(Debug)]
pub(super) struct Attached {
    pub(super) actor: TraceActor,
    pub(super) source: Option<Source>,
    /// What each of its traces asks for.
    pub(super) wishes: Vec<Wish>,
    pub(super) sampled: SampledFrames,
    /// What its program has said and it has not been told of.
    pub(super) marks: Pendings,
    /// Its program has started a trace, and calls of since then may be missing: until this question is answered.
    pub(super) unwatched: Option<u64>,
    /// Frames that found no room.
    pub(super) missed: u64,
    /// Of the events of a capture that is there at once, so many have been told.
    pub(super) position: usize,
    /// Told already: the process has ended, or can't be traced.
    pub(super) is_over: bool,
}

/// What a trace asks for beside types.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wish {
    pub(super) name: String,
    pub(super) functions: BTreeSet<String>,
    pub(super) frequency_hz: u64,
}

/// A request whose answer is not there yet.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) packet: Packet,
    pub(super) until: Instant,
    /// It waits for this to be acknowledged; none: for the processes of the machine.
    pub(super) question: Option<u64>,
    /// Where frames are to come from, of a trace that is to start.
    pub(super) source: Option<Source>,
    /// Markers that are to be watched before it is carried out.
    pub(super) hook: Option<Tracing>,
    /// It is carried out from its beginning once that was acknowledged.
    pub(super) begins_anew: bool,
    /// That was acknowledged.
    pub(super) is_answered: bool,
    /// Changes of who is there when it was looked at last.
    pub(super) changes: u64,
}

/// One client.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) peer: RdpPeer,
    pub(super) decoder: Decoder,
    /// Its client is on this machine, or has shown the token.
    pub(super) is_authenticated: bool,
    pub(super) output: Output,
    pub(super) actors: BTreeMap<ThreadKey, Attached>,
    pub(super) waiting: Option<Waiting>,
    /// What it is told when others are there, and changes of who is there when it listed them last. It is told once:
    /// clients that know nothing of one kind of lists take what they are told of it for an answer.
    pub(super) listed: Vec<(&'static str, u64)>,
}

impl Connection {
    pub(super) fn new(peer: RdpPeer, limits: &RdpLimits) -> Connection {
        Connection {
            peer,
            decoder: Decoder::new(limits.packet_bytes),
            is_authenticated: peer.uid.is_some(),
            output: Output::new(limits.output_bytes),
            actors: BTreeMap::new(),
            waiting: None,
            listed: Vec::new(),
        }
    }

    /// Where frames are wanted from: what is traced, and what is about to be.
    pub(super) fn sources(&self) -> impl Iterator<Item = (ThreadKey, &Source)> {
        let actors = self.actors.iter();
        actors.filter_map(|(key, it)| Some((*key, it.source.as_ref()?)))
    }

    /// Whether anything is traced.
    pub(super) fn is_tracing(&self) -> bool {
        self.actors.values().any(|it| it.actor.is_tracing())
    }
}
