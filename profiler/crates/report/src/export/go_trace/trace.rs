//! The tables and samples of a trace, generation by generation.
//!
//! Strings, stacks and samples are written as their batches fill; batches of one generation may
//! come in any order. Ids of strings and stacks are those of one generation.

use std::collections::hash_map::Entry;
use std::io::{self, Write};

use profiler_model::text::TextMap;
use rustc_hash::{FxHashMap, FxHashSet};

use super::super::{Output, name};
use crate::derive::{DisplayFrame, stack_frames};
use profiler_model::*;
use profiler_wire::go_trace::{
    self, Batch, BatchHead, Encoding, Event as Record, Frame as Place, Kind, MAX_FRAMES, NO_THREAD,
    Version, fit,
};

/// Bytes of strings and frames after which a generation is full.
const MAX_TABLE_BYTES: usize = 16 << 20;
/// Bytes gathered before they are written.
const WRITE_BYTES: usize = 64 << 10;

/// Addresses of frames that stand for a name rather than for code have this bit.
const NAME_TAG: u64 = 1 << 62;
/// Addresses of frames that stand for a function rather than for a place in it have this bit.
const FUNCTION_TAG: u64 = 1 << 61;

/// Which M, P and G a sample was taken on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Context {
    pub(super) m: u64,
    pub(super) p: u64,
    pub(super) g: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum StackKey {
    Sample(Option<StackId>, Option<StackId>),
    Name(u64),
    Function(FunctionId),
}

pub(super) struct Trace {
    output: Output,
    buffer: Vec<u8>,
    version: Version,
    encoding: Encoding,
    generation: u64,
    /// When the generation began.
    start: u64,
    strings: TextMap<Box<str>, u64>,
    stacks: FxHashMap<StackKey, u64>,
    /// Those with a frame that has no name.
    unnamed: FxHashSet<u64>,
    table_bytes: usize,
    string_batch: Batch,
    stack_batch: Batch,
    sample_batch: Batch,
    clock: Option<Clock>,
    /// Wall time that the last generation began at.
    wall_ns: u64,
    /// Stacks with more frames than a trace can hold.
    cut: u64,
}

impl Trace {
    pub(super) fn new(output: Output, version: Version, encoding: Encoding) -> Trace {
        let batch = |table| Batch::new(encoding, table_head(0, 0, table));
        Trace {
            output,
            buffer: go_trace::header(version, encoding).into_bytes(),
            version,
            encoding,
            generation: 0,
            start: 0,
            strings: TextMap::default(),
            stacks: FxHashMap::default(),
            unnamed: FxHashSet::default(),
            table_bytes: 0,
            string_batch: batch(Kind::Strings),
            stack_batch: batch(Kind::Stacks),
            sample_batch: batch(Kind::CPUSamples),
            clock: None,
            wall_ns: 0,
            cut: 0,
        }
    }

    /// Begins the next generation.
    pub(super) fn begin(&mut self, at: u64) -> io::Result<()> {
        self.generation += 1;
        self.start = at;
        self.strings.clear();
        self.stacks.clear();
        self.unnamed.clear();
        self.table_bytes = 0;
        let batch = |table| Batch::new(self.encoding, table_head(self.generation, at, table));
        self.string_batch = batch(Kind::Strings);
        self.stack_batch = batch(Kind::Stacks);
        self.sample_batch = batch(Kind::CPUSamples);
        self.flush(WRITE_BYTES)
    }

    /// Ends the generation; all batches of threads have been written.
    pub(super) fn end(&mut self) -> io::Result<()> {
        self.string_batch.write(&mut self.buffer);
        self.stack_batch.write(&mut self.buffer);
        self.sample_batch.write(&mut self.buffer);
        self.synchronize();
        if self.version >= Version::Go126 {
            go_trace::write_bare(Kind::EndOfGeneration, self.encoding, &mut self.buffer);
        }
        self.flush(WRITE_BYTES)
    }

    /// Writes what is left.
    pub(super) fn finish(&mut self) -> io::Result<()> {
        self.flush(0)?;
        self.output.flush()
    }

    pub(super) fn start(&self) -> u64 {
        self.start
    }

    pub(super) fn is_full(&self) -> bool {
        self.table_bytes >= MAX_TABLE_BYTES
    }

    pub(super) fn cut_stacks(&self) -> u64 {
        self.cut
    }

    pub(super) fn set_clock(&mut self, clock: &Clock) {
        self.clock = Some(*clock);
    }

    /// An empty batch for the events of a thread.
    pub(super) fn thread_batch(&self, thread: u64, time: u64) -> Batch {
        Batch::new(
            self.encoding,
            BatchHead {
                generation: self.generation,
                thread,
                time,
                table: None,
            },
        )
    }

    /// Writes the events of a thread.
    pub(super) fn write(&mut self, batch: &mut Batch) -> io::Result<()> {
        batch.write(&mut self.buffer);
        self.flush(WRITE_BYTES)
    }

    /// The id of a string; 0 stands for the empty one.
    pub(super) fn string(&mut self, text: &str) -> io::Result<u64> {
        let text = fit(text);
        if text.is_empty() {
            return Ok(0);
        }
        if let Some(&id) = self.strings.get(text) {
            return Ok(id);
        }
        let id = self.strings.len() as u64 + 1;
        self.strings.insert(text.into(), id);
        let record = Record::string(&id, text);
        self.table_bytes += record.wire_len();
        put(&mut self.string_batch, &record, &mut self.buffer);
        self.flush(WRITE_BYTES)?;
        Ok(id)
    }

    /// A stack of one frame that shows a thread's name.
    pub(super) fn name_stack(&mut self, text: &str) -> io::Result<u64> {
        let function = self.string(&name::text(text))?;
        let file = self.string("[thread]")?;
        let frame = Place {
            pc: NAME_TAG | function,
            function,
            file,
            line: 1,
        };
        self.stack(StackKey::Name(function), &[frame])
    }

    /// A stack of one frame: the function as a whole, under its name in text.
    pub(super) fn function_stack(
        &mut self,
        id: FunctionId,
        text: &str,
        tables: &Tables,
    ) -> io::Result<u64> {
        let key = StackKey::Function(id);
        if let Some(&stack) = self.stacks.get(&key) {
            return Ok(stack);
        }
        let function = tables.functions.get(id);
        let module = function.and_then(|f| tables.modules.get(f.module?));
        let file = match (function.and_then(|f| f.file), module) {
            (Some(file), _) => tables.string(file),
            (None, Some(module)) => tables.string(module.path),
            (None, None) => "[unknown]",
        };
        let frame = Place {
            pc: FUNCTION_TAG | u64::from(id.get()),
            function: self.string(text)?,
            file: self.string(&name::text(file))?,
            line: 1,
        };
        self.stack(key, &[frame])
    }

    /// The id of a sample's stack.
    pub(super) fn sample_stack(
        &mut self,
        kernel: Option<StackId>,
        user: Option<StackId>,
        tables: &Tables,
    ) -> io::Result<u64> {
        let key = StackKey::Sample(kernel, user);
        match self.stacks.get(&key) {
            Some(&id) => Ok(id),
            None => {
                let places = self.places(kernel, user, tables)?;
                let id = self.stack(key, &places)?;
                let mut frames = tables.frames_of_both(kernel, user);
                if frames.any(|frame| !tables.has_names(frame)) {
                    self.unnamed.insert(id);
                }
                Ok(id)
            }
        }
    }

    /// Whether a stack of a sample that was written has a frame without a name.
    pub(super) fn is_unnamed(&self, kernel: Option<StackId>, user: Option<StackId>) -> bool {
        let id = self.stacks.get(&StackKey::Sample(kernel, user));
        id.is_some_and(|id| self.unnamed.contains(id))
    }

    /// Writes a sample.
    pub(super) fn sample(
        &mut self,
        at: u64,
        context: Context,
        kernel: Option<StackId>,
        user: Option<StackId>,
        tables: &Tables,
    ) -> io::Result<()> {
        let stack = self.sample_stack(kernel, user, tables)?;
        let Context { m, p, g } = context;
        let args = [at.max(self.start), m, p, g, stack];
        let record = Record::new(Kind::CPUSample, &args);
        put(&mut self.sample_batch, &record, &mut self.buffer);
        self.flush(WRITE_BYTES)
    }

    fn stack(&mut self, key: StackKey, places: &[Place]) -> io::Result<u64> {
        if places.is_empty() {
            return Ok(0);
        }
        let next = self.stacks.len() as u64 + 1;
        let id = match self.stacks.entry(key) {
            Entry::Occupied(known) => return Ok(*known.get()),
            Entry::Vacant(new) => *new.insert(next),
        };
        let record = Record::stack(&id, places);
        self.table_bytes += record.wire_len();
        put(&mut self.stack_batch, &record, &mut self.buffer);
        self.flush(WRITE_BYTES)?;
        Ok(id)
    }

    fn places(
        &mut self,
        kernel: Option<StackId>,
        user: Option<StackId>,
        tables: &Tables,
    ) -> io::Result<Vec<Place>> {
        let mut places = Vec::new();
        let mut last = None;
        let mut line_of_frame = 0;
        for frame in stack_frames(tables, kernel, user) {
            if places.len() == MAX_FRAMES {
                self.cut += 1;
                break;
            }
            // Readers take the function from the address, so that functions inlined at one address
            // need addresses of their own.
            line_of_frame = if last == Some(frame.frame) {
                line_of_frame + 1
            } else {
                0
            };
            last = frame.inlined.then_some(frame.frame);
            places.push(self.place(&frame, line_of_frame, tables)?);
        }
        Ok(places)
    }

    fn place(&mut self, frame: &DisplayFrame, line: u64, tables: &Tables) -> io::Result<Place> {
        let module = frame.module.and_then(|id| tables.modules.get(id));
        let file = match (frame.file, module) {
            (Some(file), _) if !file.is_empty() => file,
            (_, Some(module)) => tables.string(module.path),
            _ => "[unknown]",
        };
        Ok(Place {
            pc: u64::from(frame.frame.get()) << 16 | line,
            function: self.string(&name::text(&frame.name))?,
            file: self.string(&name::text(file))?,
            // The tools' own checks call line 0 a missing line.
            line: u64::from(frame.line.max(1)),
        })
    }

    fn synchronize(&mut self) {
        let clocked = self.version >= Version::Go125;
        let head = BatchHead {
            table: clocked.then_some(Kind::Sync),
            ..table_head(self.generation, self.start, Kind::Sync)
        };
        let mut batch = Batch::new(self.encoding, head);
        batch.push(&Record::new(Kind::Frequency, &[1_000_000_000]));
        if clocked {
            // Readers want each generation later than the one before, whatever the wall clock did.
            let wall_ns = self.wall_at(self.start).max(self.wall_ns + 1);
            self.wall_ns = wall_ns;
            let (sec, nsec) = (wall_ns / 1_000_000_000, wall_ns % 1_000_000_000);
            batch.push_timed(Kind::ClockSnapshot, self.start, &[self.start, sec, nsec]);
        }
        batch.write(&mut self.buffer);
    }

    fn wall_at(&self, at: u64) -> u64 {
        self.clock.map_or(0, |clock| {
            let offset = i128::from(clock.realtime_ns) - i128::from(clock.monotonic.0);
            let wall = (i128::from(at) + offset).clamp(0, i128::from(super::LATEST));
            wall as u64
        })
    }

    fn flush(&mut self, over: usize) -> io::Result<()> {
        if self.buffer.len() > over {
            self.output.write_all(&self.buffer)?;
            self.buffer.clear();
        }
        Ok(())
    }
}

fn table_head(generation: u64, time: u64, table: Kind) -> BatchHead {
    BatchHead {
        generation,
        thread: NO_THREAD,
        time,
        table: Some(table),
    }
}

fn put(batch: &mut Batch, record: &Record, out: &mut Vec<u8>) {
    if !batch.fits(record.wire_len()) {
        batch.write(out);
    }
    batch.push(record);
}
