//! Batches -> a capture: one file, a new file now and then (`rotate`), or only the newest part of
//! a long recording (`ring`).
//!
//! Definitions and events gather in two payloads; a payload that is full, or older than
//! [`FLUSH_INTERVAL`], goes to the file as a block, definitions before the events that may use
//! them. A process that is killed loses what is not in the file yet: less than a second.
//!
//! When the file can't be written, the error is returned once, events are dropped and counted, and
//! definitions are kept for when writing works again; what was written stays readable. So are counts of waits and calls, and the waits that
//! go on (`kept`), which the end of the file has room for that is held back. Where the disk is full, a ring removes its oldest parts first.
//!
//! What does not belong here: when to start a new epoch (the resolver does, asked by
//! [`Writer::wants_new_epoch`]), threads and queues (pipeline).

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use profiler_model::*;

use super::block::kind;
use super::decode;
use super::encode::{DefinitionEncoder, EventEncoder};
use super::error::CaptureError;
use super::item::event;
use super::kept::{self, Kept, Names};
use super::limit::Limit;
use super::new_file::{self, Existing, Owner};
use super::output::{self, Output, Payload};
use super::ring::{Dump, Ring};
use super::tally::{Owners, Tally};
use super::untold::{Untold, unwritten};

/// A block is written when its payload has reached this. Larger ones hardly pack better.
const BLOCK_BYTES: usize = 256 << 10;
/// Where there is no more room than that, each batch is written by itself: so that what there is room for are not
/// definitions alone.
const SCARCE_BYTES: u64 = 4 << 20;
/// Nothing stays in memory longer than this (checked by [`Writer::write`] and [`Writer::tick`]).
const FLUSH_INTERVAL: Duration = Duration::from_millis(500);
/// Definitions kept in memory while the file can't be written; then the epoch is given up. They
/// have to fit one block.
const MAX_WAITING_BYTES: usize = 2 << 20;
/// A new epoch is wanted after so many bytes before packing, or so much recorded time.
const EPOCH_BYTES: u64 = 64 << 20;
const EPOCH_NS: u64 = 60_000_000_000;
/// A ring or file is filled by so many epochs, so that what expires at once is at most an eighth; by fewer if most of that
/// were definitions, which each epoch has anew.
const EPOCHS_PER_RING: u64 = 10;
/// Where most of an epoch are definitions it has at least so much time.
const SHORTEST_PART_NS: u64 = 1_000_000_000;
const MIN_BYTES: u64 = 1 << 20;
const MIN_TIME: Duration = Duration::from_secs(10);

/// How a capture is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreateOptions {
    /// What becomes of a file that is there already.
    pub existing: Existing,
    /// Whose the files are to be, if not ours.
    pub owner: Option<Owner>,
    /// The file gets its name when it is complete: what is made of other captures is of no use in part.
    pub whole: bool,
    /// Keep only the newest so much, in `OUTPUT.ring/`, until the end or [`Writer::dump`].
    pub ring: Option<Limit>,
    /// Start a new file, `NAME-0001.cap` and so on, after so much.
    pub rotate: Option<Limit>,
    /// zstd level.
    pub level: i32,
}

impl Default for CreateOptions {
    fn default() -> Self {
        CreateOptions {
            existing: Existing::Keep,
            owner: None,
            whole: false,
            ring: None,
            rotate: None,
            // Level 3 saves 5 % of the bytes and takes twice the time (docs/formats/capture.md).
            level: 1,
        }
    }
}

/// What a writer has done so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Events in the file by kind: samples, process events, marks, clocks, losses, calls, throws,
    /// call counts, gaps.
    pub events: [u64; event::KINDS],
    /// Definitions written.
    pub definitions: u64,
    /// Bytes of all files written.
    pub bytes: u64,
    /// What those would be if no block were packed.
    pub raw_bytes: u64,
    /// Events that could not be written.
    pub dropped: u64,
    /// How user stacks of the samples in the file end.
    pub stacks: StackEnds,
    /// Samples in the file of what ran: no waits.
    pub ticked: u64,
    /// What the file says is lost, by reason.
    pub lost: Vec<(LostReason, u64)>,
    /// Processes with samples or calls in the file.
    pub processes: u64,
    /// From the first sample or call in the file to the last event, in nanoseconds.
    pub length_ns: u64,
    /// Events that could not be written, by reason.
    pub unwritten: Vec<(LostReason, u64)>,
    /// Files finished or begun.
    pub files: u32,
    /// The first and the last of them, where they are numbered.
    pub numbered: Option<(PathBuf, PathBuf)>,
    /// Parts that a ring has removed because the disk was full.
    pub crowded_out: u64,
}

/// Writes one recording.
pub struct Writer {
    path: PathBuf,
    options: CreateOptions,
    output: Output,
    ring: Option<Ring>,
    definitions: DefinitionEncoder,
    events: EventEncoder,
    /// What is encoded and not yet written.
    pending: Tally,
    owners: Owners,
    /// What is to be told if they can't be.
    pending_untold: Untold,
    /// What could not be written, and is for the end.
    kept: Kept,
    totals: Totals,
    /// What is in the current file, and in those before it.
    file: Tally,
    before: Tally,
    /// Number of the current file, if they are numbered, and the first one.
    number: u32,
    first: PathBuf,
    epoch: Option<Epoch>,
    /// When the current file was begun, if it is not the first: what came before is not in it.
    began: Timestamp,
    last_ns: u64,
    flushed: Instant,
    trouble: Trouble,
    /// There is little room on the disk.
    is_scarce: bool,
    /// All that is missing.
    unwritten: Untold,
    vanished: bool,
}

#[derive(Clone, Copy, Debug)]
struct Epoch {
    number: u32,
    /// Time of its first event.
    first_ns: Option<u64>,
    /// Bytes of the file, before packing, when it began.
    raw_start: u64,
    /// Bytes of the file as stored when it began.
    start: u64,
    /// Bytes of its definitions as stored.
    definitions: u64,
    /// Definitions of it are lost, so that its events would mean nothing.
    broken: bool,
}

/// What is going wrong with the output.
#[derive(Debug, Default)]
struct Trouble {
    /// When writing failed last, if it does.
    since: Option<Instant>,
    /// What is missing, and was not told yet.
    untold: Untold,
}

impl Totals {
    fn take(&mut self, tally: &Tally) {
        self.events = tally.read_events();
        self.stacks = tally.stacks();
        self.ticked = tally.ticked();
        self.lost = tally.lost().collect();
        self.processes = tally.processes();
        self.length_ns = tally.length_ns();
    }
}

impl CreateOptions {
    fn check(&self) -> Result<(), CaptureError> {
        if self.ring.is_some() && self.rotate.is_some() {
            let what = "--ring keeps the newest part in one file, --rotate keeps all in many: \
                        use one of them";
            return Err(CaptureError::Options(what.to_owned()));
        }
        for limit in [self.ring, self.rotate].into_iter().flatten() {
            if limit.bytes.is_some_and(|bytes| bytes < MIN_BYTES)
                || limit.time.is_some_and(|time| time < MIN_TIME)
            {
                let what = format!("{limit} is too little: use at least 10s or 1M");
                return Err(CaptureError::Options(what));
            }
        }
        Ok(())
    }
}

impl Writer {
    /// Fails where [`Writer::create`] would, as far as that can be said without making a file: for callers that
    /// prepare for long before they write anything.
    pub fn check(path: &Path, options: &CreateOptions) -> Result<(), CaptureError> {
        options.check()?;
        if options.rotate.is_none() {
            new_file::check(path, options.existing, options.owner)?;
        }
        output::check_folder(path)
    }

    /// Makes the output, and with it the promise that writing can begin. It gets its name, and another file of that
    /// name goes aside, with the first block or [`Writer::publish`]; a writer that is dropped before leaves all as
    /// it was.
    pub fn create(path: &Path, options: CreateOptions) -> Result<Writer, CaptureError> {
        options.check()?;
        let mut number = 1;
        let (ring, mut output) = if let Some(limit) = options.ring {
            new_file::check(path, options.existing, options.owner)?;
            let mut ring = Ring::create(path, limit, options.owner)?;
            let first = Output::create(&ring.next_path(), Existing::Refuse, &options)?;
            (Some(ring), first)
        } else if options.rotate.is_some() {
            (None, next_numbered(path, &mut number, &options)?)
        } else {
            (None, Output::create(path, options.existing, &options)?)
        };
        if ring.is_none() && !options.whole {
            output.hold_back();
        }
        let is_scarce = output.room() < SCARCE_BYTES;
        let first = output.path.clone();
        Ok(Writer {
            path: path.to_owned(),
            options,
            output,
            ring,
            definitions: DefinitionEncoder::default(),
            events: EventEncoder::default(),
            pending: Tally::default(),
            owners: Owners::default(),
            pending_untold: Untold::default(),
            kept: Kept::default(),
            totals: Totals {
                files: 1,
                ..Totals::default()
            },
            file: Tally::default(),
            before: Tally::default(),
            number,
            first,
            epoch: None,
            began: Timestamp(0),
            last_ns: 0,
            flushed: Instant::now(),
            trouble: Trouble::default(),
            is_scarce,
            unwritten: Untold::default(),
            vanished: false,
        })
    }

    /// Gives the file its name, whether anything is in it or not.
    pub fn publish(&mut self) -> Result<(), CaptureError> {
        self.output.publish()
    }

    /// Takes a batch. An error says that the output has begun to fail; the writer goes on, and
    /// takes up writing when it works again.
    pub fn write(&mut self, batch: &Batch) -> Result<(), CaptureError> {
        let mut first_error = Ok(());
        if self.epoch.is_none_or(|epoch| epoch.number != batch.epoch) {
            first_error = first_error.and(self.begin_epoch(batch.epoch));
        }
        for definition in &batch.definitions {
            if self.is_broken() {
                break;
            }
            self.owners.define(definition);
            match definition {
                Definition::Session(session) if session.started < self.began => {
                    let session = Session {
                        started: self.began,
                        ..session.clone()
                    };
                    self.definitions.push(&Definition::Session(session));
                }
                _ => self.definitions.push(definition),
            }
            self.totals.definitions += 1;
            if self.definitions.payload.len() >= BLOCK_BYTES {
                first_error = first_error.and(self.flush_definitions());
            }
        }
        if let (Some(first), Some(epoch)) = (batch.events.first(), &mut self.epoch) {
            epoch.first_ns.get_or_insert(first.at().0);
        }
        if self.is_broken() || self.trouble.since.is_some() {
            self.drop_events(&batch.events);
            return first_error.and(self.tick(Instant::now()));
        }
        for event in &batch.events {
            self.push_event(event);
            if self.events.payload.len() >= BLOCK_BYTES {
                first_error = first_error.and(self.flush(false));
            }
        }
        if self.is_scarce {
            first_error = first_error.and(self.flush(false));
        }
        first_error.and(self.tick(Instant::now()))
    }

    /// Writes what has waited long enough. Call this at least every 100 ms.
    pub fn tick(&mut self, now: Instant) -> Result<(), CaptureError> {
        if now.saturating_duration_since(self.flushed) < FLUSH_INTERVAL {
            return Ok(());
        }
        self.flushed = now;
        self.is_scarce = self.output.room() < SCARCE_BYTES;
        let flushed = self.flush(false);
        let flushed = match &mut self.ring {
            Some(ring) if flushed.is_ok() => ring.be_said(),
            _ => flushed,
        };
        if !self.vanished && self.output.vanished() {
            self.vanished = true;
            return flushed.and(Err(CaptureError::Vanished(self.output.path.clone())));
        }
        flushed
    }

    /// Whether the resolver should begin a new epoch: the next batches get a higher
    /// [`Batch::epoch`] and announce anew what they use.
    pub fn wants_new_epoch(&self) -> bool {
        let Some(epoch) = self.epoch else {
            return false;
        };
        let raw = self.output.raw_bytes + self.waiting() - epoch.raw_start;
        let age_ns = self
            .last_ns
            .saturating_sub(epoch.first_ns.unwrap_or(self.last_ns));
        if epoch.broken {
            return true;
        }
        if self.trouble.since.is_some() && self.ring.is_none() {
            // What is kept for the end is of this one.
            return false;
        }
        if raw >= EPOCH_BYTES || age_ns >= EPOCH_NS {
            return true;
        }
        let Some(limit) = self.options.ring else {
            return self.file_is_full();
        };
        let len = self.output.len - epoch.start + self.waiting() / 2;
        let definitions = epoch.definitions + self.definitions.payload.len() as u64 / 2;
        let room = self.ring.as_ref().map_or(u64::MAX, Ring::room);
        let is_part = is_part(len, definitions, age_ns, room.max(MIN_BYTES))
            || limit.bytes.is_some_and(|bytes| len >= bytes / 2);
        let is_old = |time: Duration| age_ns >= time.as_nanos() as u64 / EPOCHS_PER_RING;
        is_part || limit.time.is_some_and(is_old)
    }

    /// Whether epochs become files, or parts of some, that stand alone.
    pub fn has_parts(&self) -> bool {
        self.options.ring.is_some() || self.options.rotate.is_some()
    }

    /// Bytes of all files written so far.
    pub fn bytes(&self) -> u64 {
        self.totals.bytes + self.output.len
    }

    /// What has been done so far.
    pub fn totals(&self) -> Totals {
        let mut all = self.before.clone();
        all.follow(&self.file);
        let mut totals = self.totals.clone();
        totals.take(&all);
        totals.bytes = self.bytes();
        totals.raw_bytes += self.output.raw_bytes;
        totals.crowded_out = self.ring.as_ref().map_or(0, Ring::crowded_out);
        if self.options.rotate.is_some() {
            totals.numbered = Some((self.first.clone(), self.output.path.clone()));
        }
        totals.unwritten = self.unwritten.missing().collect();
        totals
    }

    /// Parts of earlier recordings that the ring has kept, and where.
    pub fn kept(&self) -> Option<(&Path, usize)> {
        self.ring.as_ref().map(Ring::kept)
    }

    /// The file that is being written.
    pub fn path(&self) -> &Path {
        &self.output.path
    }

    /// Prepares to write what the ring holds now to a file of its own; [`Dump::run`] does it,
    /// on any thread, while this writer goes on.
    pub fn dump(&mut self, path: &Path) -> Result<Dump, CaptureError> {
        self.flush(true)?;
        self.output.publish()?;
        match &mut self.ring {
            Some(ring) => ring.dump(&self.output, &self.file, path, &self.options),
            None => {
                let what = "only a recording with --ring can be written out while it runs";
                Err(CaptureError::Options(what.to_owned()))
            }
        }
    }

    /// What is written is made of a recording that was not finished, and will be no more so.
    pub(super) fn set_of_unfinished(&mut self) {
        self.output.of_unfinished = true;
    }

    /// Ends the recording: writes what waits, the index and the totals; a ring is written out and
    /// its parts are removed.
    pub fn finish(mut self) -> Result<Totals, CaptureError> {
        let flushed = self.flush(true);
        if self.trouble.since.is_some() {
            // What waits and can't be written is lost, and said to be.
            self.give_up_pending(0);
            // That takes less room than what did not fit.
            let _ = self.flush(true);
        }
        let Some(ring) = self.ring.take() else {
            let finished = flushed.and(self.finish_file());
            return match finished {
                // That the file can't be written was told when it began, and how much is missing is told with this.
                Err(CaptureError::Write { .. }) if self.totals.dropped > 0 => Ok(self.totals()),
                finished => finished.map(|()| self.totals()),
            };
        };
        self.output.publish()?;
        // The ring is what the recording was for: it is written out even if its last part has
        // trouble, and if it can't be, its parts stay.
        let dump = ring.dump(&self.output, &self.file, &self.path, &self.options);
        let dropped = self.totals.dropped;
        let written = dump.and_then(|mut dump| {
            dump.set_dropped(dropped);
            dump.write()
        });
        let (kept, bytes, raw_bytes) = written.map_err(|error| ring.stays(error))?;
        let crowded_out = ring.crowded_out();
        ring.remove(&self.output.path)?;
        match flushed {
            // How much is missing is told with this.
            Err(CaptureError::Write { .. }) if dropped > 0 => {}
            flushed => flushed?,
        }
        let mut totals = Totals {
            bytes,
            raw_bytes,
            files: 1,
            crowded_out,
            unwritten: self.unwritten.missing().collect(),
            ..self.totals
        };
        totals.take(&kept);
        Ok(totals)
    }

    /// Whether definitions of this epoch are lost, so that its events would mean nothing.
    fn is_broken(&self) -> bool {
        self.epoch.is_some_and(|epoch| epoch.broken)
    }

    /// Bytes that are encoded and not written.
    fn waiting(&self) -> u64 {
        (self.definitions.payload.len() + self.events.payload.len()) as u64
    }

    fn file_is_full(&self) -> bool {
        let Some(limit) = self.options.rotate else {
            return false;
        };
        let len = self.output.len + self.waiting() / 2;
        let age_ns = self.last_ns.saturating_sub(self.file_started());
        limit.bytes.is_some_and(|bytes| len >= bytes / 16 * 15)
            || (limit.time).is_some_and(|time| age_ns >= time.as_nanos() as u64)
    }

    fn file_started(&self) -> u64 {
        self.output
            .first_ns()
            .or(self.epoch.and_then(|epoch| epoch.first_ns))
            .unwrap_or(self.last_ns)
    }

    fn begin_epoch(&mut self, number: u32) -> Result<(), CaptureError> {
        let mut result = Ok(());
        if self.epoch.is_some() {
            result = self.flush(true);
            if self.trouble.since.is_some() {
                self.give_up_pending(self.output.held_back() / 2);
            }
            // Where there is no room for events there is none for files.
            let next = self.ring.is_some() && self.trouble.since.is_none();
            if next || self.file_is_full() {
                result = result.and(match self.next_file() {
                    // This one goes on, and it is told when that has no room.
                    Err(error) if self.ring.is_some() && error.is_full() => Ok(()),
                    made => made,
                });
            }
        }
        if let Some(ring) = &mut self.ring {
            ring.look(self.output.len);
        }
        self.owners = Owners::default();
        self.epoch = Some(Epoch {
            number,
            first_ns: None,
            raw_start: self.output.raw_bytes,
            start: self.output.len,
            definitions: 0,
            broken: false,
        });
        result
    }

    /// Ends this file and begins the next one. If that can't be made, this one goes on.
    fn next_file(&mut self) -> Result<(), CaptureError> {
        let output = match &mut self.ring {
            Some(ring) => {
                let path = ring.next_path();
                let make = || Output::create(&path, Existing::Refuse, &self.options);
                let made = make();
                match made.as_ref().is_err_and(CaptureError::is_full) && ring.make_room(0) {
                    true => make()?,
                    false => made?,
                }
            }
            None => {
                self.number = self.number.saturating_add(1);
                let mut next = next_numbered(&self.path, &mut self.number, &self.options)?;
                next.hold_back();
                next
            }
        };
        let mut result = self.finish_file();
        let done = std::mem::replace(&mut self.output, output);
        let tally = std::mem::take(&mut self.file);
        self.began = Timestamp(self.last_ns);
        self.vanished = false;
        self.totals.bytes += done.len;
        self.totals.raw_bytes += done.raw_bytes;
        match &mut self.ring {
            Some(ring) => {
                ring.keep(&done, tally);
                result = result.and(ring.expire(self.output.len, self.last_ns));
            }
            None => {
                self.before.follow(&tally);
                self.totals.files += 1;
            }
        }
        result
    }

    fn finish_file(&mut self) -> Result<(), CaptureError> {
        let (events, dropped) = (self.file.events, self.totals.dropped);
        let finished = self.output.finish(&events, dropped);
        let is_full = finished.as_ref().is_err_and(CaptureError::is_full);
        let ring = self.ring.as_mut().filter(|_| is_full);
        match ring.is_some_and(|ring| ring.make_room(0)) {
            true => self.output.finish(&events, dropped),
            false => finished,
        }
    }

    fn push_event(&mut self, event: &Event) {
        self.events.push(event);
        self.owners.count(event, &mut self.pending);
        if !Kept::is_kind(event) {
            self.pending_untold.note(event, unwritten(event));
        }
        self.last_ns = self.last_ns.max(event.at().0);
    }

    /// Writes what waits. While writing fails this is tried again only now and then, or if `urgent`.
    fn flush(&mut self, urgent: bool) -> Result<(), CaptureError> {
        let recent = |since: Instant| since.elapsed() < FLUSH_INTERVAL;
        if !urgent && self.trouble.since.is_some_and(recent) {
            return Ok(());
        }
        self.write_definitions()?;
        if self.trouble.since.is_some() && self.definitions.items > 0 {
            return Ok(());
        }
        let told = self.tell_of_drops();
        if self.events.items == 0 {
            return Ok(());
        }
        let payload = Payload {
            kind: kind::EVENTS,
            epoch: self.epoch.map_or(0, |epoch| epoch.number),
            items: self.events.items,
            bytes: &self.events.payload,
            first_ns: self.events.first_ns,
            last_ns: self.events.last_ns,
        };
        let written = append(&mut self.output, &mut self.ring, &payload);
        let result = self.outcome(written);
        if self.trouble.since.is_some() {
            self.give_up_events();
            return result;
        }
        if told {
            self.trouble = Trouble::default();
        }
        self.file.add(&std::mem::take(&mut self.pending));
        self.owners.turn();
        self.pending_untold = Untold::default();
        self.events.clear();
        let expired = match &mut self.ring {
            Some(ring) => ring.expire(self.output.len, self.last_ns),
            None => Ok(()),
        };
        result.and(expired)
    }

    /// Writes definitions because they have become many.
    fn flush_definitions(&mut self) -> Result<(), CaptureError> {
        let waits = self.trouble.since.is_some();
        if waits && self.definitions.payload.len() < MAX_WAITING_BYTES {
            return Ok(());
        }
        self.write_definitions()
    }

    fn write_definitions(&mut self) -> Result<(), CaptureError> {
        if self.definitions.items == 0 {
            return Ok(());
        }
        let payload = Payload {
            kind: kind::DEFINITIONS,
            epoch: self.epoch.map_or(0, |epoch| epoch.number),
            items: self.definitions.items,
            bytes: &self.definitions.payload,
            first_ns: self.last_ns,
            last_ns: self.last_ns,
        };
        let before = self.output.len;
        let written = append(&mut self.output, &mut self.ring, &payload);
        if let Some(epoch) = &mut self.epoch {
            epoch.definitions += self.output.len - before;
        }
        let mut result = self.outcome(written);
        if self.trouble.since.is_none() {
            self.definitions.clear();
            if let Some(ring) = &mut self.ring {
                result = result.and(ring.expire(self.output.len, self.last_ns));
            }
        } else if self.definitions.payload.len() >= MAX_WAITING_BYTES {
            self.give_up_pending(self.output.held_back() / 2);
        }
        result
    }

    /// What to tell of an attempt to write: a failure is told once.
    fn outcome(&mut self, written: Result<(), CaptureError>) -> Result<(), CaptureError> {
        let failing = self.trouble.since.is_some();
        match written {
            Ok(()) => {
                self.trouble.since = None;
                Ok(())
            }
            Err(error) => {
                self.trouble.since = Some(Instant::now());
                if failing { Ok(()) } else { Err(error) }
            }
        }
    }

    /// Adds what was kept, and events that say what is missing, if anything is.
    fn tell_of_drops(&mut self) -> bool {
        let mut told = false;
        let mut kept = self.kept.take_all();
        kept.sort_by_key(Event::at);
        kept.iter().for_each(|event| self.push_event(event));
        for lost in self.trouble.untold.events() {
            self.events.push(&lost);
            self.pending.event(&lost);
            told = true;
        }
        told
    }

    fn drop_events(&mut self, events: &[Event]) {
        let mut untold = Untold::default();
        for event in events {
            if self.is_broken() || !self.kept.take(event) {
                untold.note(event, unwritten(event));
            }
            self.last_ns = self.last_ns.max(event.at().0);
        }
        self.lack(untold);
    }

    /// Drops the events that are encoded and could not be written, but for what is kept.
    fn give_up_events(&mut self) {
        let mut untold = std::mem::take(&mut self.pending_untold);
        decode::events(&self.events.payload, |event| {
            if Kept::is_kind(&event) && !self.kept.take(&event) {
                untold.note(&event, unwritten(&event));
            }
        });
        self.lack(untold);
        self.pending = Tally::default();
        self.owners.turn();
        self.events.clear();
    }

    /// These are missing from now on.
    fn lack(&mut self, mut untold: Untold) {
        for (_, count) in untold.missing() {
            self.totals.dropped = self.totals.dropped.saturating_add(count);
        }
        self.unwritten.append(&mut untold.clone());
        self.trouble.untold.append(&mut untold);
    }

    /// Drops all that waits; the epoch means nothing without its definitions. What is kept goes into the room that is held back,
    /// besides so much of it.
    fn give_up_pending(&mut self, besides: u64) {
        self.give_up_events();
        self.write_kept(besides);
        if self.definitions.items > 0 {
            self.definitions.clear();
            if let Some(epoch) = &mut self.epoch {
                epoch.broken = true;
            }
        }
    }

    /// Writes what is kept, with what is needed to read it; as much as there is room for. The rest is missing.
    fn write_kept(&mut self, besides: u64) {
        let kept = self.kept.take_all();
        let mut definitions = Vec::new();
        decode::definitions(&self.definitions.payload, &mut |one| definitions.push(one));
        let mut names = Names::All;
        let mut count = kept.len();
        loop {
            let (events, rest) = kept.split_at(count);
            let missing = untold(rest);
            match self.write_last(&definitions, names, events, &missing, besides) {
                Ok(true) => {
                    self.lack(missing);
                    self.trouble.untold = Untold::default();
                    return;
                }
                Ok(false) => match names.fewer() {
                    Some(fewer) => names = fewer,
                    None if count > 0 => count /= 2,
                    None => break,
                },
                Err(_) => break,
            }
        }
        self.lack(untold(&kept));
    }

    /// Writes these events into the room that is held back, and what is missing with these; whether there was room.
    fn write_last(
        &mut self,
        definitions: &[Definition],
        names: Names,
        events: &[Event],
        missing: &Untold,
        besides: u64,
    ) -> Result<bool, CaptureError> {
        let mut first = DefinitionEncoder::default();
        let needed = kept::needed(definitions, events, names);
        for (definition, _) in definitions.iter().zip(needed).filter(|(_, needed)| *needed) {
            first.push(definition);
        }
        let mut untold = self.trouble.untold.clone();
        untold.append(&mut missing.clone());
        let mut events = events.to_vec();
        events.sort_by_key(Event::at);
        events.extend(untold.events());
        let mut then = EventEncoder::default();
        events.iter().for_each(|event| then.push(event));
        let epoch = self.epoch.map_or(0, |epoch| epoch.number);
        let of_events = Payload {
            kind: kind::EVENTS,
            epoch,
            items: then.items,
            bytes: &then.payload,
            first_ns: then.first_ns,
            last_ns: then.last_ns,
        };
        let of_definitions = Payload {
            kind: kind::DEFINITIONS,
            epoch,
            items: first.items,
            bytes: &first.payload,
            first_ns: self.last_ns,
            last_ns: self.last_ns,
        };
        let mut payloads = vec![of_definitions, of_events];
        payloads.retain(|payload| payload.items > 0);
        let written = self.output.last_blocks(&payloads, besides)?;
        if written {
            for event in &events {
                self.owners.count(event, &mut self.file);
            }
            self.owners.turn();
        }
        Ok(written)
    }
}

/// These can't be written.
fn untold(events: &[Event]) -> Untold {
    let mut untold = Untold::default();
    for event in events {
        untold.note(event, unwritten(event));
    }
    untold
}

/// Whether an epoch of so many bytes, so many of them definitions, is what a ring with so much room expires at once.
fn is_part(len: u64, definitions: u64, age_ns: u64, room: u64) -> bool {
    let events = len.saturating_sub(definitions);
    let is_worth_it = events >= definitions || len >= room / 3 && age_ns >= SHORTEST_PART_NS;
    len >= room / EPOCHS_PER_RING && is_worth_it
}

/// Appends a block; where there is no room for it the ring makes some.
fn append(
    output: &mut Output,
    ring: &mut Option<Ring>,
    payload: &Payload<'_>,
) -> Result<(), CaptureError> {
    let written = output.block(payload);
    let is_full = written.as_ref().is_err_and(CaptureError::is_full);
    let ring = ring.as_mut().filter(|_| is_full);
    match ring.is_some_and(|ring| ring.make_room(payload.bytes.len() as u64)) {
        true => output.block(payload),
        false => written,
    }
}

/// Makes a numbered file, the first from `number` on. Someone else's are stepped over.
fn next_numbered(
    path: &Path,
    number: &mut u32,
    options: &CreateOptions,
) -> Result<Output, CaptureError> {
    let existing = options.existing.numbered();
    loop {
        match Output::create(&numbered(path, *number), existing, options) {
            Err(CaptureError::Exists(_)) if *number < u32::MAX => *number += 1,
            made => return made,
        }
    }
}

/// `dir/name.cap` -> `dir/name-0001.cap`.
fn numbered(path: &Path, number: u32) -> PathBuf {
    let mut name = path.file_stem().unwrap_or_default().to_owned();
    name.push(format!("-{number:04}"));
    if let Some(extension) = path.extension() {
        name.push(".");
        name.push(extension);
    }
    path.with_file_name(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_not_made_of_definitions() {
        const ROOM: u64 = 30 << 20;
        let is = |events: u64, definitions: u64| {
            is_part((events + definitions) << 10, definitions << 10, 0, ROOM)
        };
        // A tenth, if at least half of it are events.
        assert!(is(3072, 0) && is(1536, 1536) && !is(3000, 0));
        assert!(!is(1000, 2072) && is(2072, 2072));
        // Else a third, and no more of them than one in a second.
        let later = |events: u64, definitions: u64| {
            let len = (events + definitions) << 10;
            is_part(len, definitions << 10, SHORTEST_PART_NS, ROOM)
        };
        assert!(later(1240, 9000) && !later(1000, 9000) && !is(1240, 9000));
    }
}
