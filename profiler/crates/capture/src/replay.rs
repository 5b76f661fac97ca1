//! Pass 2 over a capture: events ordered by time, in portions of about a block.
//!
//! Events of adjacent blocks may overlap in time (processors are drained one after the other), so
//! those of one block wait until the next one's beginning is known.

use profiler_model::*;

use super::block::*;
use super::decode;
use super::error::CaptureError;
use super::reader::{
    Reader, TimeRange, check_items, read_error, shift_definition, shift_event, shifted,
};
use super::rejoin::Rejoin;
use super::translate::Translation;
use super::walk::{Block, Walk, add_damage};

/// What a replay came upon.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplayStats {
    /// Events delivered.
    pub events: u64,
    /// Events that could not be read, or use what is not defined.
    pub unusable: u64,
    /// Items of kinds that this version does not know.
    pub unknown: u64,
    /// Events that came after later ones.
    pub out_of_order: u64,
}

/// A replay under way: events come in portions.
#[derive(Debug)]
pub(super) struct Replay {
    range: TimeRange,
    /// Index of the next epoch.
    run: usize,
    /// Where in it the walk stands; none between epochs.
    at: Option<u64>,
    /// Number of the next block, if what is before it was read.
    sequence: Option<u32>,
    epoch: Option<(u32, Translation)>,
    payload: Vec<u8>,
    /// Events that may have to wait for earlier ones of the next block.
    waiting: Vec<Event>,
    /// Events that are due.
    ready: Vec<Event>,
    latest: Timestamp,
    pub(super) stats: ReplayStats,
}

/// The events of a capture, one at a time; a wait that was told in parts is one.
#[derive(Debug)]
pub(super) struct Events {
    reader: Reader,
    replay: Replay,
    /// None: parts stay as they were told.
    rejoin: Option<Rejoin>,
    portion: std::vec::IntoIter<Event>,
}

impl Events {
    pub(super) fn new(mut reader: Reader, range: TimeRange) -> Result<Events, CaptureError> {
        let replay = reader.start_replay(range)?;
        Ok(Events {
            reader,
            replay,
            rejoin: Some(Rejoin::default()),
            portion: Vec::new().into_iter(),
        })
    }

    /// The same, with waits in the parts that they were told in.
    pub(super) fn as_told(reader: Reader) -> Result<Events, CaptureError> {
        Ok(Events {
            rejoin: None,
            ..Events::new(reader, TimeRange::ALL)?
        })
    }

    /// The next event; none at the end.
    pub(super) fn next(&mut self, tables: &Tables) -> Result<Option<Event>, CaptureError> {
        loop {
            if let Some(event) = self.portion.next() {
                return Ok(Some(event));
            }
            let Some(rejoin) = &mut self.rejoin else {
                let more = self.replay.next(&mut self.reader, tables)?;
                self.portion = more.unwrap_or_default().to_vec().into_iter();
                return Ok(self.portion.next());
            };
            let mut portion = Vec::new();
            let mut each = |event: &Event| {
                portion.push(event.clone());
                Ok::<(), CaptureError>(())
            };
            let events = self.replay.next(&mut self.reader, tables)?;
            let is_end = events.is_none();
            for event in events.unwrap_or_default() {
                rejoin.event(0, event, &mut each)?;
            }
            if is_end {
                rejoin.finish(&mut each)?;
                if portion.is_empty() {
                    return Ok(None);
                }
            }
            self.portion = portion.into_iter();
        }
    }

    pub(super) fn reader(&self) -> &Reader {
        &self.reader
    }
}

impl Replay {
    pub(super) fn new(range: TimeRange) -> Self {
        Replay {
            range,
            run: 0,
            at: None,
            sequence: None,
            epoch: None,
            payload: Vec::new(),
            waiting: Vec::new(),
            ready: Vec::new(),
            latest: Timestamp(0),
            stats: ReplayStats::default(),
        }
    }

    /// The next events; none at the end.
    pub(super) fn next(
        &mut self,
        reader: &mut Reader,
        tables: &Tables,
    ) -> Result<Option<&[Event]>, CaptureError> {
        self.ready.clear();
        while self.ready.is_empty() {
            if !self.block(reader, tables)? {
                std::mem::swap(&mut self.ready, &mut self.waiting);
                if self.ready.is_empty() {
                    return Ok(None);
                }
                break;
            }
        }
        for event in &self.ready {
            let at = event.at();
            if at < self.latest {
                self.stats.out_of_order += 1;
            } else {
                self.latest = at;
            }
        }
        self.stats.events += self.ready.len() as u64;
        Ok(Some(&self.ready))
    }

    /// Reads one block of events. False at the end.
    fn block(&mut self, reader: &mut Reader, tables: &Tables) -> Result<bool, CaptureError> {
        let Some(found) = &reader.found else {
            return Ok(false);
        };
        let (at, end) = loop {
            let Some(run) = found.runs.get(self.run) else {
                return Ok(false);
            };
            if run.events && self.range.overlaps(run.first_ns, run.last_ns) {
                let next = found.runs.get(self.run + 1);
                let end = next.map_or(reader.len, |next| next.offset);
                break (self.at.unwrap_or(run.offset), end);
            }
            self.run += 1;
            (self.at, self.sequence) = (None, None);
        };
        let mut walk = Walk::new(
            &reader.file,
            end,
            reader.file_id,
            at,
            self.sequence,
            &mut reader.unpacker,
        );
        let range = self.range;
        let mut more = true;
        loop {
            let block = walk.next(&mut self.payload, |header| {
                header.version <= VERSION
                    && match header.kind {
                        kind::DEFINITIONS => true,
                        kind::EVENTS => range.overlaps(header.first_ns, header.last_ns),
                        _ => false,
                    }
            });
            let Some(block) = block.map_err(|source| read_error(&reader.path, source))? else {
                more = false;
                break;
            };
            let header = &block.header;
            if header.version > VERSION {
                continue;
            }
            if header.kind != kind::DEFINITIONS && header.kind != kind::EVENTS {
                continue;
            }
            if self
                .epoch
                .as_ref()
                .is_none_or(|&(number, _)| number != header.epoch)
            {
                self.epoch = Some((header.epoch, Translation::default()));
            }
            let Some((_, translation)) = &mut self.epoch else {
                continue;
            };
            if header.kind == kind::DEFINITIONS {
                // What is wrong with them was said in pass 1.
                let shift_ns = reader.shift_ns;
                decode::definitions(&self.payload, &mut |mut definition| {
                    shift_definition(&mut definition, shift_ns);
                    translation.locate(tables, definition);
                });
            } else if range.overlaps(header.first_ns, header.last_ns) {
                self.events(&mut walk, &block, reader.shift_ns);
                break;
            }
        }
        if more {
            self.at = Some(walk.position());
        } else {
            self.run += 1;
            self.at = None;
            self.epoch = None;
        }
        self.sequence = walk.sequence;
        for damage in std::mem::take(&mut walk.damage) {
            add_damage(&mut reader.damage, damage);
        }
        Ok(true)
    }

    /// Takes a block of events: those waiting that can't be overtaken any more become ready.
    fn events(&mut self, walk: &mut Walk<'_>, block: &Block, shift_ns: u64) {
        let first = shifted(Timestamp(block.header.first_ns), shift_ns);
        let due = self.waiting.partition_point(|event| event.at() <= first);
        let overlapping = due < self.waiting.len();
        self.ready.extend(self.waiting.drain(..due));
        let Some((_, translation)) = &mut self.epoch else {
            return;
        };
        let (range, waiting) = (self.range, &mut self.waiting);
        let (mut undefined, mut sorted, mut before) = (0u32, true, Timestamp(0));
        let decoded = decode::events(&self.payload, |event| {
            let at = event.at();
            if !range.contains(at) {
                return;
            }
            match translation.event(event) {
                Some(mut event) => {
                    shift_event(&mut event, shift_ns);
                    let at = event.at();
                    sorted &= before <= at;
                    before = at;
                    waiting.push(event);
                }
                None => undefined += 1,
            }
        });
        if overlapping || !sorted {
            // Stable: events of one instant stay as they were written.
            self.waiting.sort_by_key(Event::at);
        }
        if undefined > 0 {
            let what = format!("{undefined} events use definitions that are missing");
            walk.hurt(block.offset, what);
        }
        self.stats.unusable += u64::from(undefined) + u64::from(decoded.bad);
        self.stats.unknown += u64::from(decoded.unknown);
        check_items(walk, block, &decoded);
    }
}
