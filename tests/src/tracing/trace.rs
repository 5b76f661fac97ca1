//! The traced calls of a capture, with names.
//!
//! Input: a capture file, read through the profiler's own reader. Output: all calls by time, throws,
//! counts, gaps, losses.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use profiler_capture::{Reader, TimeRange, replay_into};
use profiler_model::{
    CallEdge, Event, ExitKind, FunctionId, GapReason, LostReason, ReturnMode, Sink, Tables,
    ThreadId, Value,
};

/// All that a capture holds of traced calls.
#[derive(Debug, Default)]
pub struct Trace {
    /// Ends of calls, by time.
    pub calls: Vec<Call>,
    /// What was thrown: when, on which thread, its type.
    pub throws: Vec<Throw>,
    /// The kernel's counts, by function.
    pub counts: BTreeMap<String, Counts>,
    /// What is missing, and is known to be.
    pub gaps: Vec<Gap>,
    /// What was lost, and how often.
    pub lost: BTreeMap<LostReason, u64>,
    /// How each traced function's exits were seen, and how far behind its start its probe sat.
    pub modes: BTreeMap<String, (ReturnMode, u32)>,
    /// Source file and line of each traced function; empty and 0: not known.
    pub sources: BTreeMap<String, (String, u32)>,
    /// Parts and events that could not be read.
    pub damaged: u64,
}

/// One end of a call.
#[derive(Debug, Clone, PartialEq)]
pub struct Call {
    /// When.
    pub at_ns: u64,
    /// Process.
    pub pid: u32,
    /// Thread.
    pub tid: u32,
    /// Function.
    pub function: String,
    /// Traced calls around it.
    pub depth: u32,
    /// Which end.
    pub edge: Edge,
}

/// Which end of a call it is.
#[derive(Debug, Clone, PartialEq)]
pub enum Edge {
    /// Its beginning, with its arguments if they were asked for.
    Enter(Option<Box<[Value]>>),
    /// Its end.
    Exit {
        /// When it began.
        began_ns: u64,
        /// Its time less that of the calls in it.
        self_ns: u64,
        /// How it ended.
        how: How,
        /// The line that it was left from; 0: not known.
        line: u32,
        /// What it returned.
        result: Option<Value>,
        /// Without a beginning of its own: its arguments.
        whole: Option<Box<[Value]>>,
    },
    /// All of it: no end is watched.
    Hit(Option<Box<[Value]>>),
}

/// How a call ended.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum How {
    /// It returned.
    Return,
    /// An exception passed through; its type.
    Exception(Option<String>),
    /// With its thread or process.
    Terminated,
    /// Somehow, by then.
    Inferred,
}

/// Something thrown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Throw {
    /// When.
    pub at_ns: u64,
    /// Thread.
    pub tid: u32,
    /// Its type.
    pub kind: String,
    /// The function that threw, and the line of that.
    pub thrower: Option<(String, u32)>,
}

/// Sums of the kernel's counts.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    /// Entries.
    pub entries: u64,
    /// Exits.
    pub exits: u64,
    /// Records that were lost.
    pub lost: u64,
    /// Calls that a limit left out.
    pub left_out: u64,
}

/// A time in which calls are missing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gap {
    /// From.
    pub from_ns: u64,
    /// To.
    pub to_ns: u64,
    /// Of which function, if not of all.
    pub function: Option<String>,
    /// In which process, if not in all.
    pub pid: Option<u32>,
    /// Why.
    pub reason: GapReason,
}

impl Trace {
    /// Reads a capture to its end.
    pub fn read(path: &Path) -> io::Result<Trace> {
        let mut trace = Trace::default();
        let mut reader = Reader::open(path).map_err(io::Error::other)?;
        let tables = reader.load_tables().map_err(io::Error::other)?;
        let stats = replay_into(&mut reader, &tables, TimeRange::ALL, &mut [&mut trace])
            .map_err(io::Error::other)?;
        trace.damaged = reader.damage().len() as u64 + stats.unusable;
        for (function, traced) in tables.all_traced() {
            let mode = (traced.returns, traced.entry_offset);
            let file = tables.functions.get(function).and_then(|of| of.file);
            let file = file.map_or("", |file| tables.string(file)).to_owned();
            let source = (file, traced.line);
            trace.sources.insert(name(&tables, function), source);
            trace.modes.insert(name(&tables, function), mode);
        }
        Ok(trace)
    }
}

impl Sink for Trace {
    fn event(&mut self, event: &Event, tables: &Tables) -> io::Result<()> {
        match event {
            Event::Call(call) => {
                let (pid, tid) = thread(tables, call.thread)?;
                self.calls.push(Call {
                    at_ns: call.at.0,
                    pid,
                    tid,
                    function: name(tables, call.function),
                    depth: call.depth,
                    edge: edge(tables, &call.edge),
                });
            }
            Event::Throw(throw) => self.throws.push(Throw {
                at_ns: throw.at.0,
                tid: thread(tables, throw.thread)?.1,
                kind: tables.string(throw.kind).to_owned(),
                thrower: throw.thrower.map(|frame| {
                    let line = tables.lines(frame).last().map_or(0, |line| line.line);
                    (tables.frame_name(frame), line)
                }),
            }),
            Event::CallCount(count) => {
                let sums = self.counts.entry(name(tables, count.function)).or_default();
                sums.entries += count.entries;
                sums.exits += count.exits;
                sums.lost += count.lost;
                sums.left_out += count.left_out;
            }
            Event::Gap(gap) => self.gaps.push(Gap {
                from_ns: gap.from.0,
                to_ns: gap.to.0,
                function: gap.function.map(|function| name(tables, function)),
                pid: gap
                    .process
                    .and_then(|process| tables.process(process))
                    .map(|process| process.pid.0),
                reason: gap.reason,
            }),
            Event::Lost(lost) => *self.lost.entry(lost.reason).or_default() += lost.count,
            Event::Sample(_)
            | Event::Process(_)
            | Event::Mark(_)
            | Event::Clock(_)
            | Event::Waits(_) => {}
        }
        Ok(())
    }

    fn finish(&mut self, _: &Tables) -> io::Result<()> {
        Ok(())
    }
}

fn edge(tables: &Tables, edge: &CallEdge) -> Edge {
    match edge {
        CallEdge::Enter(values) => Edge::Enter(values.clone()),
        CallEdge::Hit(values) => Edge::Hit(values.clone()),
        CallEdge::Exit(exit) => Edge::Exit {
            began_ns: exit.began.0,
            self_ns: exit.self_ns,
            how: match exit.how {
                ExitKind::Return => How::Return,
                ExitKind::Exception(kind) => {
                    How::Exception(kind.map(|kind| tables.string(kind).to_owned()))
                }
                ExitKind::Terminated => How::Terminated,
                // Neither was seen.
                ExitKind::Inferred | ExitKind::Unwatched => How::Inferred,
            },
            line: exit.line,
            result: exit.result.clone(),
            whole: exit.whole.clone(),
        },
    }
}

fn name(tables: &Tables, function: FunctionId) -> String {
    tables
        .functions
        .get(function)
        .map_or("?", |function| tables.string(function.name))
        .to_owned()
}

fn thread(tables: &Tables, thread: ThreadId) -> io::Result<(u32, u32)> {
    let missing = || io::Error::other("a call without thread or process");
    let thread = tables.thread(thread).ok_or_else(missing)?;
    let process = tables.process(thread.process).ok_or_else(missing)?;
    Ok((process.pid.0, thread.tid.0))
}
