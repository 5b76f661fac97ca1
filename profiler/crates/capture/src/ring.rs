//! The flight recorder: the newest part of a recording as a row of small captures.
//!
//! Each epoch is a file of its own in `OUTPUT.ring/`; the oldest are removed as new ones come.
//! After a kill each of them still reads (and `profiler merge` joins them); the next recording into the same output
//! goes on behind them, and removes them as they grow old or find no room. On a full disk the oldest give way to the
//! newest. A [`Dump`] copies what this recording
//! has there into one capture, block by block, without unpacking; of the oldest part only what is not older than the limit.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use profiler_model::{CallCount, CallEdge, Definition, Event, ExitKind, FunctionId, Timestamp};
use rustc_hash::FxHashMap;

use super::block::*;
use super::decode;
use super::encode::{DefinitionEncoder, EventEncoder};
use super::error::CaptureError;
use super::item::event;
use super::limit::Limit;
use super::new_file::{Owner, failed, with_ending};
use super::output::{Output, Payload};
use super::tally::{Owners, Tally};
use super::walk::{Unpacker, Walk};
use super::writer::CreateOptions;

const PREFIX: &str = "part-";
/// Parts are made with numbers up to twice this: there is room for all that one recording can make.
const MAX_NUMBER: u64 = u64::MAX / 2;
/// More than what a file takes beside its bytes.
const SLACK_BYTES: u64 = 16 << 10;

/// Parts of a recording, oldest first.
#[derive(Debug)]
pub(super) struct Ring {
    directory: PathBuf,
    limit: Limit,
    /// Those of recordings that were killed.
    earlier: Vec<Earlier>,
    parts: Vec<Part>,
    /// Number of the part made last.
    number: u64,
    /// What all parts take and could take of the disk, when that was looked at.
    room: u64,
    /// Parts that went because the disk was full.
    crowded_out: u64,
    /// Whether that was said.
    is_said: bool,
    /// Of the directory, as long as parts are written there.
    _lock: File,
}

/// A part that an earlier recording has left. Its events may be of another boot: its age is that of the file.
#[derive(Debug)]
struct Earlier {
    number: u64,
    path: PathBuf,
    len: u64,
    written: SystemTime,
}

#[derive(Debug)]
struct Part {
    path: PathBuf,
    len: u64,
    last_ns: u64,
    tally: Tally,
}

impl Ring {
    /// Makes the directory of parts, or takes over the one that an earlier recording has left: what is in it
    /// counts within the limits.
    pub(super) fn create(
        output: &Path,
        limit: Limit,
        owner: Option<Owner>,
    ) -> Result<Ring, CaptureError> {
        let directory = with_ending(output, ".ring");
        let made = match std::fs::DirBuilder::new().mode(0o700).create(&directory) {
            Ok(()) => true,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => false,
            Err(source) => return Err(failed(&directory, source)),
        };
        let mut options = OpenOptions::new();
        options.read(true);
        options.custom_flags(libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_CLOEXEC);
        let lock = options
            .open(&directory)
            .map_err(|source| failed(&directory, source))?;
        if made {
            Owner::take(owner, &lock);
        } else {
            let found = lock
                .metadata()
                .map_err(|source| failed(&directory, source))?;
            let ours = rustix::process::geteuid().as_raw();
            if found.uid() != ours && owner.is_none_or(|owner| found.uid() != owner.uid) {
                return Err(CaptureError::Options(format!(
                    "{} belongs to user {}, who could take parts away; name another file with -o",
                    directory.display(),
                    found.uid()
                )));
            }
        }
        if matches!(lock.try_lock(), Err(TryLockError::WouldBlock)) {
            return Err(CaptureError::Busy(directory));
        }
        let (earlier, number) = earlier_parts(&directory)?;
        if number > MAX_NUMBER {
            return Err(CaptureError::Options(format!(
                "{} leaves no higher number to the parts of this recording; move it away",
                part_path(&directory, number).display()
            )));
        }
        Ok(Ring {
            number,
            earlier,
            directory,
            limit,
            parts: Vec::new(),
            room: u64::MAX,
            crowded_out: 0,
            is_said: false,
            _lock: lock,
        })
    }

    /// Parts of earlier recordings, and where they are.
    pub(super) fn kept(&self) -> (&Path, usize) {
        (&self.directory, self.earlier.len())
    }

    /// Where the next part belongs.
    pub(super) fn next_path(&mut self) -> PathBuf {
        self.number += 1;
        part_path(&self.directory, self.number)
    }

    /// Takes a part that is complete.
    pub(super) fn keep(&mut self, output: &Output, tally: Tally) {
        self.parts.push(Part {
            path: output.path.clone(),
            len: output.len,
            last_ns: output.last_ns(),
            tally,
        });
    }

    /// Bytes of all parts but the current one.
    fn bytes(&self) -> u64 {
        let earlier: u64 = self.earlier.iter().map(|part| part.len).sum();
        let own: u64 = self.parts.iter().map(|part| part.len).sum();
        earlier + own
    }

    /// Removes the oldest parts as far as the limit has no room for them beside the current one,
    /// which has `len` bytes and reaches up to `now_ns`.
    pub(super) fn expire(&mut self, len: u64, now_ns: u64) -> Result<(), CaptureError> {
        let mut total = self.bytes() + len;
        let Limit { bytes, time } = self.limit;
        let is_old = |age: Duration| time.is_some_and(|time| age > time);
        while let Some(part) = self.earlier.first() {
            let age = part.written.elapsed().unwrap_or_default();
            if !is_old(age) && bytes.is_none_or(|bytes| total <= bytes) {
                break;
            }
            total -= part.len;
            remove(&self.earlier.remove(0).path)?;
        }
        while let Some(part) = self.parts.first() {
            let age = Duration::from_nanos(now_ns.saturating_sub(part.last_ns));
            if !is_old(age) && bytes.is_none_or(|bytes| total <= bytes) {
                break;
            }
            total -= part.len;
            remove(&self.parts.remove(0).path)?;
        }
        Ok(())
    }

    /// Looks how much room there is, beside a current part of `len` bytes.
    pub(super) fn look(&mut self, len: u64) {
        if let Ok(disk) = rustix::fs::statvfs(&self.directory) {
            let free = disk.f_bavail.saturating_mul(disk.f_frsize);
            self.room = free.saturating_add(self.bytes() + len);
        }
    }

    /// How many bytes the ring may have, by its limit and the disk.
    pub(super) fn room(&self) -> u64 {
        self.limit
            .bytes
            .map_or(self.room, |bytes| bytes.min(self.room))
    }

    /// Removes the oldest parts because the disk has no room for so many bytes. Whether that has made some.
    pub(super) fn make_room(&mut self, bytes: u64) -> bool {
        let wanted = bytes + SLACK_BYTES;
        let mut freed = 0;
        while freed < wanted {
            let (path, len) = if !self.earlier.is_empty() {
                let part = self.earlier.remove(0);
                (part.path, part.len)
            } else if !self.parts.is_empty() {
                let part = self.parts.remove(0);
                (part.path, part.len)
            } else {
                break;
            };
            if remove(&path).is_ok() {
                freed += len;
                self.crowded_out += 1;
            }
        }
        freed > 0
    }

    /// How many parts went because the disk was full.
    pub(super) fn crowded_out(&self) -> u64 {
        self.crowded_out
    }

    /// That parts went because the disk was full, once.
    pub(super) fn be_said(&mut self) -> Result<(), CaptureError> {
        if self.crowded_out == 0 || std::mem::replace(&mut self.is_said, true) {
            return Ok(());
        }
        Err(CaptureError::Crowded(self.directory.clone()))
    }

    /// What to tell if all could not be written out.
    pub(super) fn stays(&self, error: CaptureError) -> CaptureError {
        match error {
            CaptureError::Write { path, source, .. } | CaptureError::Create { path, source } => {
                CaptureError::RingStays {
                    path,
                    parts: self.directory.clone(),
                    source,
                }
            }
            error => error,
        }
    }

    /// All that is there now, ready to be copied.
    pub(super) fn dump(
        &self,
        current: &Output,
        tally: &Tally,
        path: &Path,
        options: &CreateOptions,
    ) -> Result<Dump, CaptureError> {
        let options = CreateOptions {
            whole: true,
            ..options.clone()
        };
        let output = Output::create(path, options.existing, &options)?;
        let paths = self
            .parts
            .iter()
            .map(|part| (&part.path, part.len, &part.tally));
        let mut parts = Vec::new();
        for (path, len, tally) in paths.chain([(&current.path, current.len, tally)]) {
            // Open files outlive their names: a part may expire while it is copied.
            let file = File::open(path).map_err(|source| read_error(path, source))?;
            parts.push((path.clone(), file, len, tally.clone()));
        }
        let time = self.limit.time.map(|time| time.as_nanos() as u64);
        Ok(Dump {
            output,
            parts,
            from_ns: time.map_or(0, |time| current.last_ns().saturating_sub(time)),
            dropped: 0,
        })
    }

    /// Removes all parts of this recording, the last one too.
    pub(super) fn remove(self, last: &Path) -> Result<(), CaptureError> {
        for part in &self.parts {
            remove(&part.path)?;
        }
        remove(last)
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // Only an empty directory can be removed like this: not that of a recording which failed, nor one with parts
        // of earlier ones.
        let _ = std::fs::remove_dir(&self.directory);
    }
}

/// A copy of a ring that is to be written; see [`Writer::dump`](super::Writer::dump).
pub struct Dump {
    output: Output,
    /// Path, file, bytes of it that count, what is in it.
    parts: Vec<(PathBuf, File, u64, Tally)>,
    /// What was over by then is left out: a part goes when all of it is old.
    from_ns: u64,
    dropped: u64,
}

impl Dump {
    /// Writes it. Returns the events by kind (as in [`Totals`](super::Totals)), the bytes of the
    /// file and those before packing.
    pub fn run(self) -> Result<([u64; event::KINDS], u64, u64), CaptureError> {
        let (tally, bytes, raw_bytes) = self.write()?;
        Ok((tally.events, bytes, raw_bytes))
    }

    pub(super) fn write(mut self) -> Result<(Tally, u64, u64), CaptureError> {
        let mut unpacker = Unpacker::new()?;
        let mut payload = Vec::new();
        let mut stored = Vec::new();
        let mut all = Tally::default();
        for (path, file, len, tally) in &self.parts {
            let read_error = |source| read_error(path, source);
            let mut head = [0; FILE_HEADER_BYTES];
            file.read_exact_at(&mut head, 0).map_err(read_error)?;
            let Some(header) = FileHeader::decode(&head) else {
                continue;
            };
            let start = FILE_HEADER_BYTES as u64;
            let mut walk = Walk::new(file, *len, header.file_id, start, Some(0), &mut unpacker);
            // What is left of a part is counted anew.
            let from = Timestamp(self.from_ns);
            let is_cut = tally.begins_before(from);
            let mut left = Left::default();
            let is_wanted = |header: &BlockHeader| {
                is_cut && matches!(header.kind, kind::DEFINITIONS | kind::EVENTS)
            };
            while let Some(block) = walk.next(&mut payload, is_wanted).map_err(read_error)? {
                let header = &block.header;
                if is_wanted(header) {
                    let cut = cut(header, &payload, from, &mut left);
                    if let Some((items, bytes, [first_ns, last_ns])) = cut {
                        self.output.block(&Payload {
                            kind: header.kind,
                            epoch: header.epoch,
                            items,
                            bytes: &bytes,
                            first_ns,
                            last_ns,
                        })?;
                    }
                    continue;
                }
                if matches!(header.kind, kind::DEFINITIONS | kind::EVENTS) {
                    stored.resize(block.header.stored_bytes as usize, 0);
                    let at = block.offset + HEADER_BYTES as u64;
                    file.read_exact_at(&mut stored, at).map_err(read_error)?;
                    self.output.copy(block.header, &stored)?;
                }
            }
            all.follow(if is_cut { &left.tally } else { tally });
        }
        self.output.finish(&all.events, self.dropped)?;
        Ok((all, self.output.len, self.output.raw_bytes))
    }

    /// What the block of totals is to say of events that were not written.
    pub(super) fn set_dropped(&mut self, dropped: u64) {
        self.dropped = dropped;
    }
}

/// What is left of a part.
#[derive(Default)]
struct Left {
    owners: Owners,
    tally: Tally,
    calls: Calls,
}

/// Entries and exits of functions that were recorded since they were counted last: those that are left out, and those that are left.
#[derive(Default)]
struct Calls {
    epoch: u32,
    recorded: FxHashMap<FunctionId, [[u64; 2]; 2]>,
}

/// What is left of a block from that time on.
fn cut(
    header: &BlockHeader,
    payload: &[u8],
    from: Timestamp,
    left: &mut Left,
) -> Option<(u32, Vec<u8>, [u64; 2])> {
    if header.kind == kind::DEFINITIONS {
        let mut kept = DefinitionEncoder::default();
        decode::definitions(payload, &mut |mut definition| {
            left.owners.define(&definition);
            if let Definition::Session(session) = &mut definition {
                session.started = session.started.max(from);
            }
            kept.push(&definition);
        });
        return Some((kept.items, kept.payload, [header.first_ns, header.last_ns]));
    }
    let mut kept = EventEncoder::default();
    left.calls.turn(header.epoch);
    decode::events(payload, |mut event| {
        left.calls.note(&event, from);
        if is_left(&mut event, from, &mut left.calls) {
            left.owners.count(&event, &mut left.tally);
            kept.push(&event);
        }
    });
    (kept.items > 0).then_some((kept.items, kept.payload, [kept.first_ns, kept.last_ns]))
}

impl Calls {
    /// Functions have other ids in another epoch.
    fn turn(&mut self, epoch: u32) {
        if std::mem::replace(&mut self.epoch, epoch) != epoch {
            self.recorded.clear();
        }
    }

    fn note(&mut self, event: &Event, from: Timestamp) {
        let Event::Call(call) = event else {
            return;
        };
        let is_left = call.at >= from;
        let [entries, exits] =
            &mut self.recorded.entry(call.function).or_default()[usize::from(is_left)];
        match &call.edge {
            CallEdge::Enter(_) | CallEdge::Hit(_) => *entries += 1,
            CallEdge::Exit(exit) => {
                *entries += u64::from(exit.whole.is_some());
                // Else it was not seen by a probe.
                let is_seen = matches!(exit.how, ExitKind::Return | ExitKind::Exception(_));
                *exits += u64::from(is_seen);
            }
        }
    }
}

/// Whether something of an event is left from that time on, and what; of calls this is what was recorded since they were counted.
fn is_left(event: &mut Event, from: Timestamp, recorded: &mut Calls) -> bool {
    // When in its time it was counted is not known.
    let share = |sum: &mut u64, part: u64, whole: u64| {
        let share = u128::from(*sum) * u128::from(part) / u128::from(whole.max(1));
        *sum = u64::try_from(share).unwrap_or(u64::MAX);
    };
    match event {
        Event::Sample(sample) => {
            let Some(wait) = &mut sample.wait else {
                return sample.at >= from;
            };
            let Some(part) = wait.within(sample.at, from, Timestamp(u64::MAX)) else {
                return false;
            };
            if wait.ns > 0 {
                share(&mut sample.weight, part.ns, wait.ns);
            }
            *wait = part;
        }
        Event::Waits(waits) if waits.from < from => {
            let (part, all) = (waits.to.since(from), waits.to.since(waits.from));
            let sums = waits.count.iter_mut().chain(&mut waits.ns);
            for sum in sums.chain([&mut waits.runnable_ns]) {
                share(sum, part, all);
            }
            waits.from = from;
            return waits.to > from;
        }
        Event::CallCount(calls) => {
            let recorded = recorded.recorded.remove(&calls.function);
            if calls.from >= from {
                return true;
            }
            let [out, left] = recorded.unwrap_or_default();
            let (part, all) = (calls.to.since(from), calls.to.since(calls.from));
            let CallCount {
                entries,
                exits,
                lost,
                left_out,
                ..
            } = calls;
            // What was recorded has its times; of what is missing nobody knows when that was.
            for (sum, out, left) in [(entries, out[0], left[0]), (exits, out[1], left[1])] {
                let mut missing = sum.saturating_sub(out + left);
                share(&mut missing, part, all);
                *sum = left + missing;
            }
            for sum in [lost, left_out] {
                share(sum, part, all);
            }
            calls.from = from;
            return calls.to > from;
        }
        Event::Gap(gap) => {
            gap.from = gap.from.max(from);
            return gap.to > from;
        }
        Event::Clock(clock) if clock.monotonic < from => {
            let ahead = from.since(clock.monotonic);
            clock.realtime_ns = clock.realtime_ns.saturating_add(ahead);
            clock.monotonic = from;
        }
        event => return event.at() >= from,
    }
    true
}

fn read_error(path: &Path, source: std::io::Error) -> CaptureError {
    CaptureError::Read {
        path: path.to_owned(),
        offset: 0,
        source,
    }
}

fn part_path(directory: &Path, number: u64) -> PathBuf {
    directory.join(format!("{PREFIX}{number:06}.cap"))
}

/// What earlier recordings have left, oldest first, and the highest number there is. Only what a ring makes counts:
/// others may have files there.
fn earlier_parts(directory: &Path) -> Result<(Vec<Earlier>, u64), CaptureError> {
    let entries = std::fs::read_dir(directory).map_err(|source| failed(directory, source))?;
    let (mut earlier, mut highest) = (Vec::new(), 0);
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some(name) = name.to_str().and_then(|name| name.strip_prefix(PREFIX)) else {
            continue;
        };
        // A part that was not begun when its recorder was killed.
        if name.ends_with(".new") {
            remove(&entry.path())?;
        }
        let number = name.strip_suffix(".cap").and_then(|n| n.parse().ok());
        let Some(number) = number.filter(|&n| entry.path() == part_path(directory, n)) else {
            continue;
        };
        highest = highest.max(number);
        // Not through links.
        if let Some(found) = entry.metadata().ok().filter(std::fs::Metadata::is_file) {
            earlier.push(Earlier {
                number,
                path: entry.path(),
                len: found.len(),
                written: found.modified().unwrap_or(SystemTime::UNIX_EPOCH),
            });
        }
    }
    earlier.sort_by_key(|part| part.number);
    Ok((earlier, highest))
}

fn remove(path: &Path) -> Result<(), CaptureError> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(failed(path, error)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use profiler_model::*;

    #[test]
    fn what_is_left_is_what_lies_behind() {
        let from = Timestamp(100);
        let wait = |at, ns| {
            let wait = Wait {
                ns,
                runnable_ns: 4,
                state: WaitState::Sleeping,
                waker: None,
                count: 2,
                open: false,
            };
            let (thread, source) = (ThreadId::from_index(0), SourceId::from_index(0));
            Event::Sample(Sample {
                wait: Some(wait),
                ..Sample::new(Timestamp(at), thread, Cpu(0), source, 2 * ns)
            })
        };
        let waits = |from, to, ns| {
            Event::Waits(Waits {
                thread: ThreadId::from_index(0),
                from: Timestamp(from),
                to: Timestamp(to),
                count: [0; 4],
                ns: [0, ns, 0, 0],
                runnable_ns: 0,
            })
        };
        let clock = |at, realtime_ns| {
            Event::Clock(Clock {
                monotonic: Timestamp(at),
                realtime_ns,
            })
        };
        for (mut event, left) in [
            (wait(130, 20), Some(wait(130, 20))),
            (wait(130, 60), Some(wait(130, 30))),
            (wait(100, 20), None),
            (waits(90, 110, 20), Some(waits(100, 110, 10))),
            (waits(80, 100, 20), None),
            (clock(70, 1_000), Some(clock(100, 1_030))),
        ] {
            let is = is_left(&mut event, from, &mut Calls::default()).then_some(event);
            assert_eq!(is, left);
        }
    }

    #[test]
    fn of_calls_that_are_left_out_none_is_missing() {
        let (from, function) = (Timestamp(100), FunctionId::from_index(3));
        let call = |at| {
            let (at, cpu) = (Timestamp(at), Cpu(0));
            Event::Call(Call {
                at,
                thread: ThreadId::from_index(0),
                cpu,
                function,
                stack: 0,
                depth: 0,
                edge: CallEdge::Hit(None),
                later: None,
            })
        };
        let count = |from, entries, lost| CallCount {
            function,
            from: Timestamp(from),
            to: Timestamp(110),
            entries,
            exits: 0,
            lost,
            left_out: 0,
        };
        for (entries, lost, left) in [(12, 0, 3), (14, 2, 4)] {
            let mut recorded = Calls::default();
            // 9 before, 3 behind, and what is lost in both halves.
            for at in (91..100).chain(100..103) {
                let mut call = call(at);
                recorded.note(&call, from);
                assert_eq!(is_left(&mut call, from, &mut recorded), at >= 100);
            }
            let mut event = Event::CallCount(count(90, entries, lost));
            assert!(is_left(&mut event, from, &mut recorded));
            assert_eq!(event, Event::CallCount(count(100, left, lost / 2)));
        }
    }
}
