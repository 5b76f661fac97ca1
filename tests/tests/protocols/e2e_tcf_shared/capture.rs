//! What a capture holds of a process or thread, in the terms of a client: each address is one function,
//! the one really called, and one line, that of the innermost inlined code.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;

use profiler_capture::{Reader, TimeRange, replay_into};
use profiler_model::{Event, FrameId, Sink, Tables};

use super::profile::Function;

/// The samples of one process or thread of a capture.
#[derive(Debug, Default)]
pub(crate) struct Context {
    /// Samples.
    pub(crate) samples: u64,
    /// By name, or by module and offset where there is none.
    pub(crate) functions: BTreeMap<String, Function>,
    /// Names that came of symbols.
    pub(crate) named: BTreeSet<String>,
}

/// What is looked at.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Wish {
    /// Of this process.
    pub(crate) pid: Option<u32>,
    /// Of this thread.
    pub(crate) tid: Option<u32>,
    /// Kernel frames too.
    pub(crate) kernel: bool,
    /// That many frames, the innermost.
    pub(crate) frames: usize,
    /// Of this time; none: all of it.
    pub(crate) range: Option<TimeRange>,
}

/// Reads a capture.
pub(crate) fn read(path: &Path, wish: Wish) -> io::Result<Context> {
    let range = wish.range.unwrap_or(TimeRange::ALL);
    let mut sink = Reading {
        wish,
        context: Context::default(),
    };
    let mut reader = Reader::open(path).map_err(io::Error::other)?;
    let tables = reader.load_tables().map_err(io::Error::other)?;
    replay_into(&mut reader, &tables, range, &mut [&mut sink]).map_err(io::Error::other)?;
    Ok(sink.context)
}

struct Reading {
    wish: Wish,
    context: Context,
}

impl Sink for Reading {
    fn event(&mut self, event: &Event, tables: &Tables) -> io::Result<()> {
        let Event::Sample(sample) = event else {
            return Ok(());
        };
        let thread = tables
            .thread(sample.thread)
            .ok_or(io::ErrorKind::NotFound)?;
        let process = tables
            .process(thread.process)
            .ok_or(io::ErrorKind::NotFound)?;
        let wish = self.wish;
        if wish.pid.is_some_and(|pid| pid != process.pid.0)
            || wish.tid.is_some_and(|tid| tid != thread.tid.0)
        {
            return Ok(());
        }
        let user = tables.frames_of(sample.user);
        let kernel = tables.frames_of(sample.kernel);
        // A task without memory of its own has nothing but kernel frames.
        let with_kernel = wish.kernel || sample.user.is_none();
        let frames = kernel.filter(|_| with_kernel).chain(user);
        let frames: Vec<FrameId> = frames.take(wish.frames).collect();
        self.context.add(&frames, tables);
        Ok(())
    }

    fn finish(&mut self, _: &Tables) -> io::Result<()> {
        Ok(())
    }
}

impl Context {
    fn add(&mut self, frames: &[FrameId], tables: &Tables) {
        if frames.is_empty() {
            return;
        }
        self.samples += 1;
        let mut seen = BTreeSet::new();
        for (depth, &frame) in frames.iter().enumerate() {
            let name = tables.frame_name(frame);
            let lines = tables.lines(frame);
            let function = self.functions.entry(name.clone()).or_default();
            function.leaf += u64::from(depth == 0);
            // The C library and the kernel's own object have functions of one name, and both are called.
            let module = tables.frames.get(frame).and_then(|frame| frame.module);
            function.inclusive += u64::from(seen.insert((name.clone(), module)));
            if !lines.is_empty() {
                self.named.insert(name);
            }
            let innermost = lines.first().filter(|line| line.line > 0);
            let file = innermost.and_then(|line| tables.functions.get(line.function)?.file);
            if let (Some(line), Some(file)) = (innermost, file) {
                let file = tables.string(file).to_owned();
                function.lines.insert((file, u64::from(line.line)));
            }
        }
    }
}
