//! What `perf record` writes: samples with their stacks, and what was mapped where.
//!
//! A file or a pipe of perf.data -> frames as offsets in files with their build ids, which `profiler symbolize` names on the
//! machine that has the files; the kernel's as distances from its start. Times are those of perf, in nanoseconds. Records come in
//! rounds, each in the order of buffers: they are put in the order of time. All numbers are untrusted. Source: perf.data-file-format.txt
//! of the kernel's tools, perf_event_open(2).
//!
//! What does not belong here: stacks that perf copied to unwind them later, which `perf script` unwinds; branches.

use std::io::{BufRead, Read};

use rustc_hash::FxHashMap;
use zstd::stream::raw::{Decoder, InBuffer, Operation, OutBuffer};

use super::intake::Intake;
use super::perf_tasks::{Comm, Fork, Mapping, Tasks};
use super::{Bias, ImportError};
use profiler_model::*;

pub(super) const MAGIC: &[u8] = b"PERFILE2";

/// Most bytes of a file.
const MAX_BYTES: u64 = 1 << 30;
/// Most bytes of what was compressed in it.
const MAX_UNPACKED: usize = 2 << 30;
/// Most records that wait for the end of their round.
const MAX_WAITING: usize = 1 << 20;
/// Most paths whose build ids are known.
const MAX_BUILD_IDS: usize = 1 << 20;
/// Most frames of a stack.
const MAX_FRAMES: usize = 4096;
/// So many the kernel takes where nothing else is said.
const USUAL_FRAMES: usize = 127;
/// Most ids of events.
const MAX_IDS: usize = 1 << 20;

/// Kinds of records: of the kernel, and from 64 on of perf.
mod kind {
    pub(super) const MMAP: u32 = 1;
    pub(super) const COMM: u32 = 3;
    pub(super) const EXIT: u32 = 4;
    pub(super) const FORK: u32 = 7;
    pub(super) const SAMPLE: u32 = 9;
    pub(super) const MMAP2: u32 = 10;
    pub(super) const LOST: u32 = 2;
    pub(super) const ATTR: u32 = 64;
    pub(super) const BUILD_ID: u32 = 67;
    pub(super) const FINISHED_ROUND: u32 = 68;
    pub(super) const AUXTRACE: u32 = 71;
    pub(super) const EVENT_UPDATE: u32 = 78;
    pub(super) const FEATURE: u32 = 80;
    pub(super) const COMPRESSED: u32 = 81;
    pub(super) const COMPRESSED2: u32 = 83;
}

/// Bits of `misc`.
const CPUMODE: u16 = 7;
const USER: u16 = 2;
const KERNEL: u16 = 1;
/// Of a mapping: its build id is in the record. Of a name: it comes with an exec. Of a fork: perf found the process running.
const MMAP_BUILD_ID: u16 = 1 << 14;
const COMM_EXEC: u16 = 1 << 13;
const FORK_FOUND: u16 = 1 << 13;
/// Of a build id in the header: its length is said.
const BUILD_ID_SIZE: u16 = 1 << 15;

/// Bits of `sample_type`, and the words that they stand for before a stack.
mod has {
    pub(super) const IP: u64 = 1 << 0;
    pub(super) const TID: u64 = 1 << 1;
    pub(super) const TIME: u64 = 1 << 2;
    pub(super) const ADDR: u64 = 1 << 3;
    pub(super) const READ: u64 = 1 << 4;
    pub(super) const CALLCHAIN: u64 = 1 << 5;
    pub(super) const ID: u64 = 1 << 6;
    pub(super) const CPU: u64 = 1 << 7;
    pub(super) const PERIOD: u64 = 1 << 8;
    pub(super) const STREAM_ID: u64 = 1 << 9;
    pub(super) const IDENTIFIER: u64 = 1 << 16;
}

/// Features of the header that are read.
const FEATURE_BUILD_ID: u32 = 2;
const FEATURE_HOSTNAME: u32 = 3;
const FEATURE_OSRELEASE: u32 = 4;
const FEATURE_ARCH: u32 = 6;
const FEATURE_CPUS: u32 = 7;
const FEATURE_EVENT_DESC: u32 = 12;

/// From here on an address of a stack says whose the next ones are.
const CONTEXTS: u64 = -4095_i64 as u64;
const CONTEXT_KERNEL: u64 = -128_i64 as u64;
const CONTEXT_USER: u64 = -512_i64 as u64;
/// Addresses of the kernel lie here and above.
const KERNEL_HALF: u64 = 1 << 63;

fn damaged<T>(what: impl std::fmt::Display) -> Result<T, ImportError> {
    Err(ImportError::Damaged(format!("it is no perf.data: {what}")))
}

pub(super) fn read(
    input: &mut dyn BufRead,
    bias: Bias<'_>,
    intake: &mut Intake<'_>,
) -> Result<(), ImportError> {
    let mut bytes = Vec::new();
    input.take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_BYTES {
        return damaged(format_args!("it has more than {MAX_BYTES} bytes"));
    }
    let mut words = Bytes(bytes.get(8..).unwrap_or_default());
    let Some(size) = words.u64() else {
        return damaged("it ends within its header");
    };
    let mut reader = Reader::new(bias, intake);
    // A pipe has records at once, which say what the header of a file does.
    let (records, is_whole) = match size {
        16 => (bytes.get(16..).unwrap_or_default(), true),
        _ => match reader.header(&bytes, words) {
            Some(records) => records,
            None => return damaged("what its header points to is not there"),
        },
    };
    let read = reader.records(records, true)?;
    reader.release(usize::MAX)?;
    if !is_whole || read < records.len() || !reader.rest.is_empty() {
        reader.intake.ends_early();
    }
    Ok(())
}

/// Takes words off the front.
#[derive(Clone, Copy)]
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        let bytes = self.take(8)?;
        Some(u64::from_le_bytes(bytes.try_into().ok()?))
    }

    fn u32(&mut self) -> Option<u32> {
        let bytes = self.take(4)?;
        Some(u32::from_le_bytes(bytes.try_into().ok()?))
    }

    fn u16(&mut self) -> Option<u16> {
        let bytes = self.take(2)?;
        Some(u16::from_le_bytes(bytes.try_into().ok()?))
    }

    /// A text with its length, padded.
    fn text(&mut self) -> Option<String> {
        let len = self.u32()? as usize;
        Some(until_nul(self.take(len)?))
    }
}

/// None of zeros: perf has found none then.
fn build_id_of(bytes: &[u8]) -> Option<BuildId> {
    let is_any = bytes.iter().any(|byte| *byte != 0);
    is_any.then(|| BuildId(bytes.into()))
}

fn until_nul(bytes: &[u8]) -> String {
    let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).into_owned()
}

/// The records of a file, and whether all are there: perf writes how long they are when it ends, and a file can be cut.
fn records_in<'a>(bytes: &'a [u8], words: &mut Bytes<'_>) -> Option<(&'a [u8], bool)> {
    let (offset, size) = (words.u64()?, words.u64()?);
    let rest = bytes.get(usize::try_from(offset).ok()?..)?;
    let size = usize::try_from(size).ok().filter(|size| *size > 0);
    let whole = size.and_then(|size| rest.get(..size));
    Some((whole.unwrap_or(rest), whole.is_some()))
}

/// A part of a file.
fn section<'a>(bytes: &'a [u8], words: &mut Bytes<'_>) -> Option<&'a [u8]> {
    let (offset, size) = (words.u64()?, words.u64()?);
    let (offset, size) = (usize::try_from(offset).ok()?, usize::try_from(size).ok()?);
    bytes.get(offset..offset.checked_add(size)?)
}

/// What made samples.
#[derive(Clone, Debug, Default)]
struct Event {
    kind: u32,
    config: u64,
    sample_type: u64,
    read_format: u64,
    /// Of a fixed period.
    period: Option<u64>,
    /// Most frames of a stack, those of the kernel and the user together.
    frames: usize,
    /// Other records say when and whose they are.
    sample_id_all: bool,
    name: String,
    source: Option<SourceId>,
}

impl Event {
    fn read(attr: &[u8]) -> Option<Event> {
        let mut words = Bytes(attr);
        let kind = words.u32()?;
        let _size = words.u32()?;
        let config = words.u64()?;
        let period = words.u64()?;
        let sample_type = words.u64()?;
        let read_format = words.u64()?;
        let flags = words.u64()?;
        let by_frequency = flags & 1 << 10 != 0;
        // Earlier versions of the structure end before it.
        let frames = Bytes(attr.get(108..).unwrap_or_default()).u16();
        let frames = frames
            .filter(|it| *it > 0)
            .map_or(USUAL_FRAMES, usize::from);
        let name = match (kind, config) {
            (0, 0) => "cycles",
            (0, 1) => "instructions",
            (0, 3) => "cache-misses",
            (0, 5) => "branch-misses",
            (1, 0) => "cpu-clock",
            (1, 1) => "task-clock",
            (1, 2) => "page-faults",
            (1, 3) => "context-switches",
            (2, _) => "tracepoint",
            _ => "event",
        };
        Some(Event {
            kind,
            config,
            sample_type,
            read_format,
            period: (!by_frequency).then_some(period),
            frames: frames.min(MAX_FRAMES),
            sample_id_all: flags & 1 << 18 != 0,
            name: name.to_owned(),
            source: None,
        })
    }

    fn has(&self, bit: u64) -> bool {
        self.sample_type & bit != 0
    }

    fn unit(&self) -> Unit {
        match (self.kind, self.config) {
            (1, 0 | 1) => Unit::Nanoseconds,
            (0, 0) => Unit::Cycles,
            _ => Unit::Events,
        }
    }
}

/// A record whose turn has not come.
struct Waiting {
    at: u64,
    /// In the order of the file.
    number: u64,
    kind: u32,
    misc: u16,
    body: Box<[u8]>,
}

struct Reader<'i, 'a, 'b> {
    bias: Bias<'b>,
    intake: &'i mut Intake<'a>,
    events: Vec<Event>,
    ids: FxHashMap<u64, usize>,
    build_ids: FxHashMap<String, BuildId>,
    tasks: Tasks,
    waiting: Vec<Waiting>,
    /// Of these, those of rounds that are over.
    complete: usize,
    numbered: u64,
    unpacked: usize,
    decoder: Option<Decoder<'static>>,
    /// Unpacked, and not whole yet.
    rest: Vec<u8>,
}

impl<'i, 'a, 'b> Reader<'i, 'a, 'b> {
    fn new(bias: Bias<'b>, intake: &'i mut Intake<'a>) -> Reader<'i, 'a, 'b> {
        Reader {
            bias,
            intake,
            events: Vec::new(),
            ids: FxHashMap::default(),
            build_ids: FxHashMap::default(),
            tasks: Tasks::default(),
            waiting: Vec::new(),
            complete: 0,
            numbered: 0,
            unpacked: 0,
            decoder: None,
            rest: Vec::new(),
        }
    }

    /// Reads the header of a file; its records, and whether all are there.
    fn header<'f>(&mut self, bytes: &'f [u8], mut words: Bytes<'f>) -> Option<(&'f [u8], bool)> {
        let attr_size = usize::try_from(words.u64()?).ok()?;
        let attrs = section(bytes, &mut words)?;
        let (mut data_words, after) = (words, words);
        let (data, is_whole) = records_in(bytes, &mut data_words)?;
        let end = {
            let mut words = after;
            words.u64()?.checked_add(words.u64()?)?
        };
        let _event_types = (data_words.u64()?, data_words.u64()?);
        let mut features = [0; 4];
        for word in &mut features {
            *word = data_words.u64()?;
        }
        // What describes an event, and where its ids are.
        for attr in attrs.chunks_exact(attr_size.max(64 + 16)) {
            let (attr, ids) = attr.split_at(attr.len() - 16);
            let ids = section(bytes, &mut Bytes(ids))?;
            self.event(Event::read(attr)?, ids);
        }
        // They are behind the records.
        let places = bytes.get(usize::try_from(end).ok()?..);
        let mut places = Bytes(places.filter(|_| is_whole).unwrap_or_default());
        for bit in 0..256_u32 {
            if features[bit as usize / 64] & 1 << (bit % 64) == 0 {
                continue;
            }
            match section(bytes, &mut places) {
                Some(content) => self.feature(bit, content),
                None => self.intake.ends_early(),
            }
        }
        Some((data, is_whole))
    }

    fn event(&mut self, event: Event, ids: &[u8]) {
        if self.events.len() < MAX_IDS {
            let index = self.events.len();
            self.events.push(event);
            self.names(index, ids);
        }
    }

    fn names(&mut self, index: usize, ids: &[u8]) {
        let mut ids = Bytes(ids);
        while let Some(id) = ids.u64() {
            if self.ids.len() < MAX_IDS {
                self.ids.insert(id, index);
            }
        }
    }

    fn feature(&mut self, feature: u32, content: &[u8]) {
        let mut words = Bytes(content);
        let session = &mut self.intake.session;
        match feature {
            FEATURE_HOSTNAME => session.host = words.text().unwrap_or_default(),
            FEATURE_OSRELEASE => session.kernel = words.text().unwrap_or_default(),
            FEATURE_ARCH => session.arch = words.text().unwrap_or_default(),
            // Those that there could be come first, then those that ran.
            FEATURE_CPUS => {
                let _could_be = words.u32();
                session.cpus = words.u32().unwrap_or(0);
            }
            FEATURE_BUILD_ID => {
                while let (Some(_), Some(misc), Some(size)) =
                    (words.u32(), words.u16(), words.u16())
                {
                    let body = usize::from(size).checked_sub(8);
                    let Some(body) = body.and_then(|len| words.take(len)) else {
                        break;
                    };
                    self.build_id(misc, body);
                }
            }
            FEATURE_EVENT_DESC => {
                let _ = self.descriptions(words);
            }
            _ => {}
        }
    }

    /// A process, 20 bytes with the length behind them, and a path.
    fn build_id(&mut self, misc: u16, body: &[u8]) {
        let (Some(id), Some(path)) = (body.get(4..28), body.get(28..)) else {
            return;
        };
        let len = match misc & BUILD_ID_SIZE {
            0 => 20,
            _ => usize::from(id[20]).min(20),
        };
        let path = until_nul(path);
        if self.build_ids.len() < MAX_BUILD_IDS
            && let Some(id) = build_id_of(&id[..len])
        {
            self.build_ids.insert(path, id);
        }
    }

    /// Names of events, in the order of these.
    fn descriptions(&mut self, mut words: Bytes<'_>) -> Option<()> {
        let (count, attr_size) = (words.u32()?, words.u32()? as usize);
        for index in 0..count as usize {
            words.take(attr_size)?;
            let ids = words.u32()? as usize;
            let name = words.text()?;
            self.events.get_mut(index)?.name = name;
            let ids = words.take(ids.checked_mul(8)?)?;
            self.names(index, ids);
        }
        Some(())
    }

    /// Reads records; how many bytes of them were whole.
    fn records(&mut self, bytes: &[u8], outermost: bool) -> Result<usize, ImportError> {
        let mut at = 0;
        while let Some(rest) = bytes.get(at..).filter(|rest| rest.len() >= 8) {
            let mut words = Bytes(rest);
            let (Some(kind), Some(misc), Some(size)) = (words.u32(), words.u16(), words.u16())
            else {
                break;
            };
            let size = usize::from(size);
            if size < 8 {
                return damaged(format_args!("a record of {size} bytes"));
            }
            let Some(body) = rest.get(8..size) else {
                // A recording that was killed ends anywhere.
                break;
            };
            at += size;
            match kind {
                // Its data come behind it.
                kind::AUXTRACE => {
                    let size = Bytes(body).u64().unwrap_or(0);
                    at = at.saturating_add(usize::try_from(size).unwrap_or(usize::MAX));
                }
                kind::COMPRESSED | kind::COMPRESSED2 if outermost => {
                    let body = match kind {
                        kind::COMPRESSED => Some(body),
                        _ => {
                            let mut words = Bytes(body);
                            let len = words.u64().and_then(|len| usize::try_from(len).ok());
                            len.and_then(|len| words.take(len))
                        }
                    };
                    self.unpack(body.unwrap_or_default())?;
                }
                kind::ATTR => {
                    let size = Bytes(body.get(4..).unwrap_or_default()).u32();
                    let attr = size.and_then(|size| body.split_at_checked(size as usize));
                    if let Some((attr, ids)) = attr
                        && let Some(event) = Event::read(attr)
                    {
                        self.event(event, ids);
                    }
                }
                kind::EVENT_UPDATE => {
                    let mut words = Bytes(body);
                    // A name, of those things that can change.
                    if let (Some(2), Some(id)) = (words.u64(), words.u64())
                        && let Some(&index) = self.ids.get(&id)
                        && let Some(event) = self.events.get_mut(index)
                    {
                        event.name = until_nul(words.0);
                    }
                }
                kind::BUILD_ID => self.build_id(misc, body),
                kind::FEATURE => {
                    let mut words = Bytes(body);
                    if let Some(feature) = words.u64() {
                        self.feature(feature.min(u64::from(u32::MAX)) as u32, words.0);
                    }
                }
                kind::FINISHED_ROUND => {
                    // What is still to come is not older than the round before.
                    let complete = self.complete;
                    self.complete = self.waiting.len();
                    self.release(complete)?;
                }
                kind::MMAP
                | kind::MMAP2
                | kind::COMM
                | kind::FORK
                | kind::EXIT
                | kind::SAMPLE
                | kind::LOST => self.wait(kind, misc, body)?,
                _ => {}
            }
        }
        Ok(at.min(bytes.len()))
    }

    fn unpack(&mut self, mut packed: &[u8]) -> Result<(), ImportError> {
        let mut bytes = std::mem::take(&mut self.rest);
        let mut decoder = match self.decoder.take() {
            Some(decoder) => decoder,
            None => Decoder::new()?,
        };
        let mut piece = vec![0; 1 << 17];
        loop {
            let mut from = InBuffer::around(packed);
            let mut to = OutBuffer::around(&mut piece[..]);
            if let Err(error) = decoder.run(&mut from, &mut to) {
                return damaged(error);
            }
            let (used, made) = (from.pos(), to.pos());
            packed = &packed[used..];
            self.unpacked += made;
            if self.unpacked > MAX_UNPACKED {
                return damaged(format_args!("it unpacks to more than {MAX_UNPACKED} bytes"));
            }
            bytes.extend_from_slice(&piece[..made]);
            if packed.is_empty() && made < piece.len() || used == 0 && made == 0 {
                break;
            }
        }
        self.decoder = Some(decoder);
        let used = self.records(&bytes, false)?;
        bytes.drain(..used);
        self.rest = bytes;
        Ok(())
    }

    fn wait(&mut self, kind: u32, misc: u16, body: &[u8]) -> Result<(), ImportError> {
        let at = match kind {
            kind::SAMPLE => self.sample_time(body),
            _ => self.other_time(body),
        };
        // What was there before has no time.
        let at = at.filter(|at| *at != u64::MAX).unwrap_or(0);
        self.numbered += 1;
        self.waiting.push(Waiting {
            at,
            number: self.numbered,
            kind,
            misc,
            body: body.into(),
        });
        if self.waiting.len() >= MAX_WAITING {
            // The older half: rounds are not that long.
            self.waiting.sort_unstable_by_key(|it| (it.at, it.number));
            self.release(MAX_WAITING / 2)?;
            self.complete = 0;
        }
        Ok(())
    }

    /// Handles the records of complete rounds, `complete` of them, and what is older than the last of these.
    fn release(&mut self, complete: usize) -> Result<(), ImportError> {
        let complete = complete.min(self.waiting.len());
        let Some(until) = self.waiting[..complete].iter().map(|it| it.at).max() else {
            return Ok(());
        };
        let mut waiting = std::mem::take(&mut self.waiting);
        waiting.sort_unstable_by_key(|it| (it.at, it.number));
        let older = waiting.partition_point(|it| it.at <= until);
        let newer = waiting.split_off(older);
        for it in waiting {
            // What can't be read is passed over: the next record is where its length says.
            match it.kind {
                kind::SAMPLE => self.sample(it.misc, &it.body)?,
                kind::LOST => self.lost(it.at, &it.body)?,
                kind => drop(self.change(it.at, kind, it.misc, &it.body)),
            }
        }
        self.waiting = newer;
        self.complete = self.waiting.len();
        Ok(())
    }

    /// The event of a sample, by the id that is in it.
    fn event_of(&self, body: &[u8]) -> Option<usize> {
        let first = self.events.first()?;
        if self.events.len() == 1 {
            return Some(0);
        }
        let before = match first.has(has::IDENTIFIER) {
            true => 0,
            false => {
                let words = [has::IP, has::TID, has::TIME, has::ADDR];
                let words = words.iter().filter(|bit| first.has(**bit)).count();
                if !first.has(has::ID) {
                    return Some(0);
                }
                words * 8
            }
        };
        let id = Bytes(body.get(before..)?).u64()?;
        Some(self.ids.get(&id).copied().unwrap_or(0))
    }

    fn sample_time(&self, body: &[u8]) -> Option<u64> {
        let event = self.events.get(self.event_of(body)?)?;
        let before = [has::IDENTIFIER, has::IP, has::TID];
        let before = before.iter().filter(|bit| event.has(**bit)).count() * 8;
        match event.has(has::TIME) {
            true => Bytes(body.get(before..)?).u64(),
            false => None,
        }
    }

    /// Other records end with some of what samples begin with.
    fn other_time(&self, body: &[u8]) -> Option<u64> {
        let event = self.events.first()?;
        if !event.sample_id_all || !event.has(has::TIME) {
            return None;
        }
        let behind = [
            has::TIME,
            has::ID,
            has::STREAM_ID,
            has::CPU,
            has::IDENTIFIER,
        ];
        let behind = behind.iter().filter(|bit| event.has(**bit)).count() * 8;
        Bytes(body.get(body.len().checked_sub(behind)?..)?).u64()
    }

    fn lost(&mut self, at: u64, body: &[u8]) -> Result<(), ImportError> {
        let count = Bytes(body.get(8..).unwrap_or_default()).u64().unwrap_or(0);
        self.intake.lost(at, count)
    }

    /// Something became of a process.
    fn change(&mut self, at: u64, kind: u32, misc: u16, body: &[u8]) -> Option<()> {
        let mut words = Bytes(body);
        let pid = words.u32()?;
        let second = words.u32()?;
        match kind {
            kind::COMM => {
                let comm = Comm {
                    pid,
                    tid: second,
                    name: until_nul(words.0),
                    is_exec: misc & COMM_EXEC != 0,
                    at,
                };
                self.tasks.named(comm, self.intake);
            }
            kind::FORK => self.tasks.forked(Fork {
                pid,
                parent: second,
                tid: words.u32()?,
                parent_tid: words.u32()?,
                at: (misc & FORK_FOUND == 0).then_some(at),
            }),
            kind::EXIT => self.tasks.ended(pid, words.u32()?),
            _ => {
                let (start, len, offset) = (words.u64()?, words.u64()?, words.u64()?);
                let mut build_id = None;
                if kind == kind::MMAP2 {
                    let id = words.take(24)?;
                    if misc & MMAP_BUILD_ID != 0 {
                        build_id = build_id_of(&id[4..4 + usize::from(id[0]).min(20)]);
                    }
                    let _protection_and_flags = words.u64()?;
                }
                let path = until_nul(words.0);
                self.map(pid, (start, len, offset), &path, build_id);
            }
        }
        Some(())
    }

    fn map(
        &mut self,
        pid: u32,
        (start, len, offset): (u64, u64, u64),
        path: &str,
        build_id: Option<BuildId>,
    ) {
        let build_id = build_id.or_else(|| self.build_ids.get(path).cloned());
        let (module_kind, kind, to_module) = match path {
            _ if path.starts_with("[kernel.kallsyms]") || path.starts_with("[guest.kernel") => {
                // It tells where a symbol at the image's beginning is.
                let base = if offset >= KERNEL_HALF { offset } else { start };
                (ModuleKind::Kernel, FrameKind::Kernel, base.wrapping_neg())
            }
            "[vdso]" => (ModuleKind::Vdso, FrameKind::Native, start.wrapping_neg()),
            _ if start >= KERNEL_HALF => {
                let to_module = start.wrapping_neg();
                (ModuleKind::KernelModule, FrameKind::Kernel, to_module)
            }
            // Code that was made at run time.
            "//anon" | "[heap]" | "[stack]" | "" => (ModuleKind::Jit, FrameKind::Jit, 0),
            _ if path.starts_with("/memfd:") || path.starts_with("/dev/zero") => {
                (ModuleKind::Jit, FrameKind::Jit, 0)
            }
            _ => {
                let to_module = offset.wrapping_sub(start);
                (ModuleKind::File, FrameKind::Native, to_module)
            }
        };
        let named = match module_kind {
            ModuleKind::Kernel => "[kernel]".to_owned(),
            ModuleKind::Jit => format!("[jit {pid}]"),
            _ => path.to_owned(),
        };
        let bias = match (module_kind, &build_id) {
            (ModuleKind::File, Some(id)) => (self.bias)(path, id, offset),
            _ => 0,
        };
        let module = self
            .intake
            .biased_module(module_kind, &named, build_id, bias);
        let mapping = Mapping {
            end: start.saturating_add(len),
            module,
            to_module,
            kind,
        };
        self.tasks.mapped(pid, start, mapping);
    }

    fn sample(&mut self, misc: u16, body: &[u8]) -> Result<(), ImportError> {
        let Some(parsed) = self.parse(misc, body) else {
            return damaged("a sample is shorter than its event says");
        };
        let Parsed {
            event,
            pid,
            tid,
            at,
            cpu,
            period,
            chain,
            ends: (kernel_end, user_end),
        } = parsed;
        let Some(known) = self.events.get_mut(event) else {
            return damaged("a sample is of no event");
        };
        let weight = period.or(known.period).unwrap_or(1);
        let source = match known.source {
            Some(source) => source,
            None => {
                let (name, unit) = (known.name.clone(), known.unit());
                let source = self.intake.source(&name, unit, known.period);
                known.source = Some(source);
                source
            }
        };
        if misc & CPUMODE == USER {
            self.tasks.runs(pid);
        }
        let mut kernel = Vec::new();
        let mut user = Vec::new();
        for (address, of_kernel) in chain {
            let frame = self.frame(pid, address, of_kernel);
            match of_kernel {
                true => kernel.push(frame),
                false => user.push(frame),
            }
        }
        let kernel = self.intake.stack(kernel.into_iter().rev());
        let user = self.intake.stack(user.into_iter().rev());
        let thread = self.tasks.thread(pid, tid, self.intake);
        let sample = Sample::new(Timestamp(at), thread, Cpu(cpu), source, weight);
        let mut sample = sample.with_stacks(kernel, user);
        if kernel.is_some() {
            sample.kernel_end = kernel_end;
        }
        if user.is_some() {
            sample.user_end = user_end;
        }
        self.intake.sample(sample)
    }

    /// The parts of a sample in the order in which they lie.
    fn parse(&self, misc: u16, body: &[u8]) -> Option<Parsed> {
        let event = self.event_of(body)?;
        let of = self.events.get(event)?;
        let mut words = Bytes(body);
        let mut word = |bit| match of.has(bit) {
            true => words.u64().map(Some),
            false => Some(None),
        };
        word(has::IDENTIFIER)?;
        let ip = word(has::IP)?;
        let ids = word(has::TID)?.unwrap_or(0);
        let at = word(has::TIME)?.unwrap_or(0);
        word(has::ADDR)?;
        word(has::ID)?;
        word(has::STREAM_ID)?;
        let cpu = word(has::CPU)?.unwrap_or(0);
        let period = word(has::PERIOD)?;
        if of.has(has::READ) {
            let format = of.read_format;
            let times = usize::from(format & 1 != 0) + usize::from(format & 2 != 0);
            let each = 1 + usize::from(format & 4 != 0) + usize::from(format & 16 != 0);
            let count = match format & 8 {
                0 => each + times,
                _ => {
                    let count = usize::try_from(words.u64()?).ok()?;
                    count.checked_mul(each)?.checked_add(times)?
                }
            };
            words.take(count.checked_mul(8)?)?;
        }
        let in_kernel = misc & CPUMODE == KERNEL;
        let mut chain = Vec::new();
        // The kernel walks its own stacks to their end. How a chain of frame pointers ended it does not say.
        let mut ends = (StackEnd::Complete, StackEnd::FramePointer);
        if of.has(has::CALLCHAIN) {
            let count = usize::try_from(words.u64()?).ok()?;
            let mut addresses = Bytes(words.take(count.checked_mul(8)?)?);
            let (mut of_kernel, mut first) = (in_kernel, true);
            while let Some(address) = addresses.u64() {
                if address >= CONTEXTS {
                    match address {
                        CONTEXT_KERNEL => of_kernel = true,
                        CONTEXT_USER => of_kernel = false,
                        _ => {}
                    }
                    first = true;
                    continue;
                }
                // Callers are where they go on.
                let address = if first {
                    address
                } else {
                    address.saturating_sub(1)
                };
                first = false;
                if chain.len() < MAX_FRAMES {
                    chain.push((address, of_kernel));
                }
                if chain.len() >= of.frames {
                    match of_kernel {
                        true => ends.0 = StackEnd::Truncated,
                        false => ends.1 = StackEnd::Truncated,
                    }
                }
            }
        }
        if let (Some(ip), true) = (ip, chain.is_empty())
            && matches!(misc & CPUMODE, KERNEL | USER)
        {
            chain.push((ip, in_kernel));
            ends = (StackEnd::LeafOnly, StackEnd::LeafOnly);
        }
        Some(Parsed {
            event,
            pid: ids as u32,
            tid: (ids >> 32) as u32,
            at,
            cpu: cpu as u32,
            period,
            chain,
            ends,
        })
    }

    fn frame(&mut self, pid: u32, address: u64, of_kernel: bool) -> FrameId {
        // Of the kernel perf tells under the number of nobody.
        let owner = if of_kernel { u32::MAX } else { pid };
        let at = |pid| self.tasks.at(pid, address);
        let found = at(owner).or_else(|| at(0).filter(|_| of_kernel));
        let (frame, reason) = match found {
            Some(mapping) => (
                Frame {
                    kind: mapping.kind,
                    module: Some(mapping.module),
                    address: address.wrapping_add(mapping.to_module),
                },
                UnknownReason::NoSymbol,
            ),
            None => (
                Frame {
                    kind: match of_kernel {
                        true => FrameKind::Kernel,
                        false => FrameKind::Native,
                    },
                    module: None,
                    address,
                },
                UnknownReason::NoMapping,
            ),
        };
        self.intake.frame(frame, || Symbol::Unknown(reason))
    }
}

struct Parsed {
    event: usize,
    pid: u32,
    tid: u32,
    at: u64,
    cpu: u32,
    period: Option<u64>,
    /// Leaf first; whether it is the kernel's.
    chain: Vec<(u64, bool)>,
    /// How the kernel's and the user's part end, if they are there.
    ends: (StackEnd, StackEnd),
}
