//! A capture -> tables (pass 1) and events ordered by time (pass 2), in bounded memory.
//!
//! Pass 1 reads definition blocks only, so that names which came late are there before the first
//! event. Pass 2 reads the epochs that overlap a time range, block by block. Memory is that of the
//! tables plus one block, one epoch's ids, and 40 bytes per epoch.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use profiler_model::*;

use super::block::*;
use super::decode;
use super::error::{CaptureError, Damage};
use super::foreign;
use super::rejoin::Rejoin;
use super::replay::{Replay, ReplayStats};
use super::translate::IdGuard;
use super::walk::{Block, Unpacker, Walk, add_damage};

/// Definitions read from one capture, before unpacking; beyond this it is not a recording.
const MAX_DEFINITION_BYTES: u64 = 4 << 30;
/// Epochs that can be sought; what comes behind counts to the last one.
const MAX_EPOCHS: usize = 1 << 20;

/// A span of time, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeRange {
    /// Not before.
    pub from: Timestamp,
    /// Not after.
    pub to: Timestamp,
}

impl TimeRange {
    /// All of a capture.
    pub const ALL: TimeRange = TimeRange {
        from: Timestamp(0),
        to: Timestamp(u64::MAX),
    };

    /// Whether it holds that time.
    pub fn contains(&self, at: Timestamp) -> bool {
        self.from <= at && at <= self.to
    }

    pub(super) fn overlaps(&self, first_ns: u64, last_ns: u64) -> bool {
        self.from.0 <= last_ns && first_ns <= self.to.0
    }
}

/// An epoch as found in the file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    pub(super) offset: u64,
    pub(super) epoch: u32,
    pub(super) events: bool,
    pub(super) first_ns: u64,
    pub(super) last_ns: u64,
}

/// What pass 1 found.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) runs: Vec<Run>,
    /// Blocks by kind: definitions, events, others.
    pub(super) blocks: [u64; 3],
    /// Bytes after unpacking, of definitions and of events.
    pub(super) raw_bytes: [u64; 2],
    /// Definitions read.
    pub(super) definitions: u64,
    /// Items of kinds that this version does not know.
    pub(super) unknown: u64,
    /// The block of totals is there.
    pub(super) ended: bool,
    /// Events that the writer said it dropped.
    pub(super) dropped: u64,
}

impl Found {
    pub(super) fn epochs(&self) -> usize {
        self.runs.len()
    }

    fn note(&mut self, block: &Block) {
        let header = &block.header;
        match header.kind {
            kind::DEFINITIONS | kind::EVENTS => {
                let index = usize::from(header.kind == kind::EVENTS);
                self.blocks[index] += 1;
                self.raw_bytes[index] += u64::from(header.raw_bytes);
            }
            _ => {
                self.blocks[2] += 1;
                return;
            }
        }
        let full = self.runs.len() >= MAX_EPOCHS;
        let same = |run: &&mut Run| run.epoch == header.epoch || full;
        if self.runs.last_mut().filter(same).is_none() {
            self.runs.push(Run {
                offset: block.offset,
                epoch: header.epoch,
                events: false,
                first_ns: u64::MAX,
                last_ns: 0,
            });
        }
        if header.kind == kind::EVENTS
            && let Some(run) = self.runs.last_mut()
        {
            run.events = true;
            run.first_ns = run.first_ns.min(header.first_ns);
            run.last_ns = run.last_ns.max(header.last_ns);
        }
    }
}

/// Reads one capture.
pub struct Reader {
    pub(super) path: PathBuf,
    pub(super) file: File,
    pub(super) len: u64,
    pub(super) file_id: u32,
    pub(super) created_ns: u64,
    pub(super) unpacker: Unpacker,
    pub(super) damage: Vec<Damage>,
    pub(super) found: Option<Found>,
    /// Added to all times, to put captures of several machines on one clock.
    pub(super) shift_ns: u64,
}

impl std::fmt::Debug for Reader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reader")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

impl Reader {
    /// Opens a capture, or says what the file is instead.
    pub fn open(path: &Path) -> Result<Reader, CaptureError> {
        let read_error = |source| CaptureError::Read {
            path: path.to_owned(),
            offset: 0,
            source,
        };
        let file = open(path).map_err(read_error)?;
        let found = file.metadata().map_err(read_error)?;
        if !found.is_file() {
            let what = if found.is_dir() {
                "a directory"
            } else {
                "a device, pipe or socket; save it to a file first"
            };
            return Err(CaptureError::Foreign {
                path: path.to_owned(),
                looks: what,
            });
        }
        let len = found.len();
        if len == 0 {
            return Err(CaptureError::Empty(path.to_owned()));
        }
        let mut head = [0; FILE_HEADER_BYTES + HEADER_BYTES];
        let have = head.len().min(usize::try_from(len).unwrap_or(usize::MAX));
        file.read_exact_at(&mut head[..have], 0)
            .map_err(read_error)?;
        let mut reader = Reader {
            path: path.to_owned(),
            file,
            len,
            file_id: 0,
            created_ns: 0,
            unpacker: Unpacker::new()?,
            damage: Vec::new(),
            found: None,
            shift_ns: 0,
        };
        let (file_head, block_head) = head.split_at(FILE_HEADER_BYTES);
        let header = file_head.try_into().ok().and_then(FileHeader::decode);
        let block = block_head.try_into().ok().and_then(BlockHeader::decode);
        match (header, block) {
            (Some(header), _) if header.version > VERSION => Err(CaptureError::Newer {
                path: path.to_owned(),
                found: header.version,
                known: VERSION,
            }),
            (Some(header), _) => {
                reader.file_id = header.file_id;
                reader.created_ns = header.created_ns;
                Ok(reader)
            }
            // What follows is enough to read it.
            (None, Some(block)) => {
                reader.file_id = block.file_id;
                reader.hurt(0, "the file header is damaged");
                Ok(reader)
            }
            (None, None) if FILE_MAGIC.starts_with(&head[..have.min(8)]) => {
                Err(if have < FILE_HEADER_BYTES {
                    CaptureError::Truncated {
                        path: path.to_owned(),
                        len,
                    }
                } else {
                    CaptureError::Foreign {
                        path: path.to_owned(),
                        looks: "a capture whose beginning is damaged",
                    }
                })
            }
            (None, None) => Err(CaptureError::Foreign {
                path: path.to_owned(),
                looks: foreign::looks_like(&head[..have]),
            }),
        }
    }

    /// Pass 1: all definitions of the capture.
    pub fn load_tables(&mut self) -> Result<Tables, CaptureError> {
        let mut tables = Tables::default();
        self.load_into(&mut tables)?;
        Ok(tables)
    }

    /// Pass 1 into tables that may hold other captures' definitions already.
    pub fn load_into(&mut self, tables: &mut Tables) -> Result<(), CaptureError> {
        let mut found = Found::default();
        let mut epoch: Option<(u32, Epoch, IdGuard)> = None;
        // When what the epochs before tell of began.
        let mut began: Option<Timestamp> = None;
        let mut payload = Vec::new();
        let start = FILE_HEADER_BYTES as u64;
        let mut walk = Walk::new(
            &self.file,
            self.len,
            self.file_id,
            start,
            Some(0),
            &mut self.unpacker,
        );
        loop {
            let block = walk.next(&mut payload, |header| {
                header.version <= VERSION && header.kind != kind::EVENTS
            });
            let Some(block) = block.map_err(|source| read_error(&self.path, source))? else {
                break;
            };
            found.note(&block);
            let header = &block.header;
            if header.version > VERSION {
                walk.hurt(block.offset, "the block is of a newer version".to_owned());
                continue;
            }
            match header.kind {
                kind::DEFINITIONS => {}
                kind::END => {
                    (found.ended, found.dropped) = totals(&payload);
                    continue;
                }
                _ => continue,
            }
            if found.raw_bytes[0] > MAX_DEFINITION_BYTES {
                let what = "there are more definitions than any recording has; \
                            they are not read any further";
                walk.hurt(block.offset, what.to_owned());
                break;
            }
            if epoch
                .as_ref()
                .is_none_or(|&(number, ..)| number != header.epoch)
            {
                began = epoch.map(|_| tables.session.started);
                epoch = Some((header.epoch, Epoch::default(), IdGuard::default()));
            }
            let Some((_, ids, guard)) = &mut epoch else {
                continue;
            };
            let (mut refused, mut reason) = (0u32, String::new());
            let shift_ns = self.shift_ns;
            let decoded = decode::definitions(&payload, &mut |mut definition| {
                shift_definition(&mut definition, shift_ns);
                let is_session = matches!(definition, Definition::Session(_));
                let defined = if guard.allows(&definition) {
                    ids.define(tables, definition)
                        .map_err(|error| error.to_string())
                } else {
                    Err("an id is far beyond the others".to_owned())
                };
                // A ring that is written out is a row of files, each of which says when it was begun.
                if let (true, Some(began)) = (is_session, began) {
                    tables.session.started = tables.session.started.min(began);
                }
                if let Err(error) = defined {
                    if refused == 0 {
                        reason = error;
                    }
                    refused += 1;
                }
            });
            if refused > 0 {
                let what = format!("{refused} definitions can't be used: {reason}");
                walk.hurt(block.offset, what);
            }
            found.definitions += u64::from(decoded.items);
            found.unknown += u64::from(decoded.unknown);
            check_items(&mut walk, &block, &decoded);
        }
        for damage in std::mem::take(&mut walk.damage) {
            add_damage(&mut self.damage, damage);
        }
        tables.is_cut_off |= !found.ended;
        self.found = Some(found);
        Ok(())
    }

    /// Pass 2: the events of a range of time, in order, with the ids of `tables`, which must hold
    /// this capture's definitions. An event is in the range if its [`Event::at`] is: an exit comes
    /// although its entry lies before, and says itself when that was. A wait that was told in parts comes as one.
    pub fn replay(
        &mut self,
        tables: &Tables,
        range: TimeRange,
        each: &mut dyn FnMut(&Event, &Tables) -> io::Result<()>,
    ) -> Result<ReplayStats, CaptureError> {
        let mut replay = self.start_replay(range)?;
        let mut rejoin = Rejoin::default();
        let mut each = |event: &Event| each(event, tables).map_err(CaptureError::Sink);
        while let Some(events) = replay.next(self, tables)? {
            events
                .iter()
                .try_for_each(|event| rejoin.event(0, event, &mut each))?;
        }
        rejoin.finish(&mut each)?;
        Ok(replay.stats)
    }

    /// Begins pass 2; see [`Replay::next`].
    pub(super) fn start_replay(&mut self, range: TimeRange) -> Result<Replay, CaptureError> {
        if self.found.is_none() {
            // The tables came from another reader of the same file: only the epochs are missing.
            self.load_tables()?;
        }
        Ok(Replay::new(range))
    }

    /// The first tie of monotonic to wall time.
    pub(super) fn first_clock(&mut self) -> Result<Option<Clock>, CaptureError> {
        let tables = self.load_tables()?;
        let mut replay = self.start_replay(TimeRange::ALL)?;
        while let Some(events) = replay.next(self, &tables)? {
            let clock = events.iter().find_map(|event| match event {
                Event::Clock(clock) => Some(*clock),
                _ => None,
            });
            if clock.is_some() {
                return Ok(clock);
            }
        }
        Ok(None)
    }

    /// Adds so much to all times from now on. Ranges of time are those of the file.
    pub(super) fn set_shift(&mut self, shift_ns: u64) {
        self.shift_ns = shift_ns;
    }

    /// What could not be used so far.
    pub fn damage(&self) -> &[Damage] {
        &self.damage
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn found(&self) -> Option<&Found> {
        self.found.as_ref()
    }

    fn hurt(&mut self, offset: u64, what: &str) {
        let what = what.to_owned();
        add_damage(&mut self.damage, Damage { offset, what });
    }
}

/// Replays a capture into several sinks at once, and ends them.
pub fn replay_into(
    reader: &mut Reader,
    tables: &Tables,
    range: TimeRange,
    sinks: &mut [&mut dyn Sink],
) -> Result<ReplayStats, CaptureError> {
    let stats = reader.replay(tables, range, &mut |event, tables| {
        sinks
            .iter_mut()
            .try_for_each(|sink| sink.event(event, tables))
    })?;
    for sink in sinks {
        sink.finish(tables).map_err(CaptureError::Sink)?;
    }
    Ok(stats)
}

pub(super) fn shifted(at: Timestamp, shift_ns: u64) -> Timestamp {
    Timestamp(at.0.saturating_add(shift_ns))
}

pub(super) fn shift_event(event: &mut Event, shift_ns: u64) {
    for time in event.times_mut() {
        *time = shifted(*time, shift_ns);
    }
}

pub(super) fn shift_definition(definition: &mut Definition, shift_ns: u64) {
    if let Some(time) = definition.time_mut() {
        *time = shifted(*time, shift_ns);
    }
}

/// Puts on record what could not be read of a block.
pub(super) fn check_items(walk: &mut Walk<'_>, block: &Block, decoded: &decode::Decoded) {
    if let Some((index, bad)) = decoded.first_bad {
        let what = format!(
            "{} of {} items can't be read, the first is item {index}: {}",
            decoded.bad, block.header.items, bad.0
        );
        walk.hurt(block.offset, what);
    } else if decoded.items != block.header.items {
        let what = format!(
            "the block has {} items, its header says {}",
            decoded.items, block.header.items
        );
        walk.hurt(block.offset, what);
    }
}

/// Whether what was recorded had come to its end, and events that the writer dropped, as the block of totals says.
fn totals(totals: &[u8]) -> (bool, u64) {
    let (mut ended, mut dropped) = (true, 0);
    decode::items(totals, |kind, mut fields| {
        match kind {
            2 => dropped = fields.get()?,
            3 => ended = false,
            _ => {}
        }
        Ok(true)
    });
    (ended, dropped)
}

/// Opens without waiting for a writer, should it be a FIFO.
fn open(path: &Path) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    let mut options = std::fs::OpenOptions::new();
    options
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC);
    options.open(path)
}

pub(super) fn read_error(path: &Path, source: io::Error) -> CaptureError {
    CaptureError::Read {
        path: path.to_owned(),
        offset: 0,
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CreateOptions, Existing, Writer};

    fn sample(at: u64, stack: usize) -> Event {
        Event::Sample(
            Sample::new(
                Timestamp(at),
                ThreadId::from_index(0),
                Cpu(1),
                SourceId::from_index(0),
                10,
            )
            .with_stacks(None, Some(StackId::from_index(stack))),
        )
    }

    /// An epoch whose strings have other ids than those of the epoch before.
    fn batch(epoch: u32) -> Batch {
        let text = |i: u32, text: &str| {
            Definition::String(
                StringId::from_index(((i + epoch) % 3) as usize),
                text.into(),
            )
        };
        let id = |i: u32| StringId::from_index(((i + epoch) % 3) as usize);
        let process = Process {
            pid: Pid(7),
            started: Timestamp(1),
            parent: None,
            name: id(1),
            executable: None,
            command: None,
            namespace_pids: vec![],
            uid: Some(0),
            cgroup: None,
            container: None,
        };
        let thread = Thread {
            process: ProcessId::from_index(0),
            tid: Tid(7),
            started: Timestamp(1),
            name: id(1),
        };
        let frame = |address| Frame {
            kind: FrameKind::Native,
            module: None,
            address,
        };
        let source = Source {
            name: id(2),
            unit: Unit::Nanoseconds,
            frequency_hz: Some(99),
            period: None,
        };
        let stack = |parent: Option<usize>, frame| Stack {
            parent: parent.map(StackId::from_index),
            frame: FrameId::from_index(frame),
        };
        Batch {
            epoch,
            definitions: vec![
                text(0, "a"),
                text(1, "name"),
                text(2, "cpu-clock"),
                Definition::Source(SourceId::from_index(0), source),
                Definition::Process(ProcessId::from_index(0), process),
                Definition::Thread(ThreadId::from_index(0), thread),
                Definition::Frame(FrameId::from_index(0), frame(0x1000 + u64::from(epoch))),
                Definition::Frame(FrameId::from_index(1), frame(0x2000)),
                Definition::Stack(StackId::from_index(0), stack(None, 0)),
                Definition::Stack(StackId::from_index(1), stack(Some(0), 1)),
            ],
            events: vec![
                sample(u64::from(epoch) * 100 + 1, 0),
                sample(u64::from(epoch) * 100 + 2, 1),
            ],
        }
    }

    #[test]
    fn epochs_are_unified_and_ranges_are_sought() {
        let path = std::env::temp_dir().join(format!("profiler-reader-{}", std::process::id()));
        let options = CreateOptions {
            existing: Existing::Replace,
            ..CreateOptions::default()
        };
        let mut writer = Writer::create(&path, options).unwrap();
        for epoch in 0..3 {
            writer.write(&batch(epoch)).unwrap();
        }
        assert_eq!(
            writer.finish().unwrap().events,
            [6, 0, 0, 0, 0, 0, 0, 0, 0, 0]
        );
        let mut reader = Reader::open(&path).unwrap();
        let tables = reader.load_tables().unwrap();
        assert_eq!(tables.frames.len(), 4);
        assert_eq!(tables.stacks.len(), 6);
        let range = TimeRange {
            from: Timestamp(102),
            to: Timestamp(201),
        };
        let mut seen = Vec::new();
        let stats = reader.replay(&tables, range, &mut |event, tables| {
            let Event::Sample(sample) = event else {
                return Ok(());
            };
            let frames = tables.frames_of(sample.user);
            let addresses: Vec<u64> = frames
                .filter_map(|frame| Some(tables.frames.get(frame)?.address))
                .collect();
            seen.push((sample.at.0, addresses));
            Ok(())
        });
        assert_eq!(stats.unwrap().events, 2);
        assert_eq!(seen, [(102, vec![0x2000, 0x1001]), (201, vec![0x1002])]);
        assert!(reader.damage().is_empty(), "{:?}", reader.damage());
        let summary = reader.summary().unwrap();
        assert!(summary.ended);
        assert_eq!((summary.samples(), summary.epochs), (6, 3));
        std::fs::remove_file(&path).unwrap();
    }
}
