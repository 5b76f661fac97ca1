//! A capture, flattened into samples with names, for oracles to count.
//!
//! Input: a capture file, read through the profiler's own reader. Output: every sample with its
//! process, thread, weight and the names of its frames, leaf first; every loss; every marker.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use profiler_capture::{Reader, TimeRange, replay_into};
use profiler_model::{
    ContainerId, Event, FrameId, LostReason, Sink, StackEnd, StackId, StringId, Symbol, Tables,
    UnknownReason,
};
use rustix::time::{ClockId, clock_gettime};

/// A capture in memory.
#[derive(Debug, Default)]
pub struct Recording {
    /// All samples by time.
    pub samples: Vec<Sample>,
    /// What was lost, and how often.
    pub lost: BTreeMap<LostReason, u64>,
    /// All markers.
    pub marks: Vec<String>,
    /// Parts and events that could not be read.
    pub damaged: u64,
    /// Event sources that made samples.
    pub sources: Vec<String>,
}

/// A sample with names.
#[derive(Debug, Clone)]
pub struct Sample {
    /// Nanoseconds of CLOCK_MONOTONIC.
    pub at_ns: u64,
    /// Process.
    pub pid: u32,
    /// Thread.
    pub tid: u32,
    /// Name of the process: the last that it had.
    pub process: String,
    /// What its process was called when the sample was taken.
    pub process_then: String,
    /// Name of the thread.
    pub thread: String,
    /// Ids of the process in nested namespaces, outermost first, without the initial one.
    pub namespace_pids: Vec<u32>,
    /// The container that the process runs in.
    pub container: Option<Container>,
    /// Processor.
    pub cpu: u32,
    /// What the sample stands for.
    pub weight: u64,
    /// User stack, leaf first.
    pub user: Vec<Frame>,
    /// Kernel stack, leaf first.
    pub kernel: Vec<Frame>,
    /// Why the user stack ended.
    pub user_end: StackEnd,
}

/// A frame with its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// The function that was really called, or module and offset.
    pub name: String,
    /// Functions inlined into it at this place, innermost first.
    pub inlined: Vec<String>,
    /// Whether `name` is that of a function, not a place in a file.
    pub named: bool,
    /// Why it has none, where that was said.
    pub unknown: Option<UnknownReason>,
    /// Path of the module.
    pub module: Option<String>,
}

/// What a container is called.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Container {
    /// Path of its cgroup.
    pub cgroup: String,
    /// What runs it.
    pub engine: Option<String>,
    /// Its id, whole.
    pub id: Option<String>,
    /// Its name.
    pub name: Option<String>,
    /// Its image.
    pub image: Option<String>,
}

impl Recording {
    /// Reads a capture to its end. A capture that was cut off gives what is readable.
    pub fn read(path: &Path) -> io::Result<Recording> {
        let mut recording = Recording::default();
        let mut reader = Reader::open(path).map_err(io::Error::other)?;
        let tables = reader.load_tables().map_err(io::Error::other)?;
        let stats = replay_into(&mut reader, &tables, TimeRange::ALL, &mut [&mut recording])
            .map_err(io::Error::other)?;
        recording.damaged = reader.damage().len() as u64 + stats.unusable;
        Ok(recording)
    }

    /// How much the samples stand for that the profiler itself says are missing: ticks that the kernel
    /// skipped, as it estimates, and samples that found no room because it did not get a processor to
    /// make some. On a machine with little to do there are none of the latter; see
    /// [`Recording::nothing_lost`].
    pub fn missing_ns(&self) -> u64 {
        let reasons = [
            LostReason::Skipped,
            LostReason::RingFull,
            LostReason::Nested,
        ];
        let lost = reasons.iter().filter_map(|reason| self.lost.get(reason));
        lost.sum::<u64>() * self.samples.first().map_or(0, |sample| sample.weight)
    }

    /// Fails if anything was lost but ticks that the kernel skipped, and switches that it did not tell:
    /// these are the machine's.
    pub fn nothing_lost(&self) -> Result<(), String> {
        match self
            .lost
            .iter()
            .find(|(reason, _)| !matches!(reason, LostReason::Skipped | LostReason::WaitUnseen))
        {
            None => Ok(()),
            Some(_) => Err(format!("lost: {:?}", self.lost)),
        }
    }

    /// Samples of the process `pid`.
    pub fn of_pid(&self, pid: u32) -> Vec<&Sample> {
        self.samples
            .iter()
            .filter(|sample| sample.pid == pid)
            .collect()
    }

    /// Samples of all processes whose name is `name`.
    pub fn of_process(&self, name: &str) -> Vec<&Sample> {
        self.samples
            .iter()
            .filter(|sample| sample.process == name)
            .collect()
    }
}

impl Sample {
    /// Name of the innermost user frame; empty without a user stack.
    pub fn leaf(&self) -> &str {
        self.user.first().map_or("", |frame| &frame.name)
    }

    /// Names of the user frames, leaf first.
    pub fn chain(&self) -> Vec<&str> {
        self.user.iter().map(|frame| frame.name.as_str()).collect()
    }

    /// Whether a user frame has this name.
    pub fn calls(&self, name: &str) -> bool {
        self.user.iter().any(|frame| frame.name == name)
    }
}

/// What time it is, in nanoseconds of CLOCK_MONOTONIC, as samples have it.
pub fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Sum of the weights.
pub fn weight(samples: &[&Sample]) -> u64 {
    samples.iter().map(|sample| sample.weight).sum()
}

impl Sink for Recording {
    fn event(&mut self, event: &Event, tables: &Tables) -> io::Result<()> {
        match event {
            Event::Sample(sample) => {
                let missing = |what| io::Error::other(format!("a sample without {what}"));
                let thread = tables
                    .thread(sample.thread)
                    .ok_or_else(|| missing("thread"))?;
                let process = tables
                    .process(thread.process)
                    .ok_or_else(|| missing("process"))?;
                let source = tables
                    .sources
                    .get(sample.source)
                    .ok_or_else(|| missing("source"))?;
                let then = tables.names_at(sample.thread, sample.at);
                let source = tables.string(source.name);
                if !self.sources.iter().any(|known| known == source) {
                    self.sources.push(source.to_owned());
                }
                self.samples.push(Sample {
                    at_ns: sample.at.0,
                    pid: process.pid.0,
                    tid: thread.tid.0,
                    process: tables.string(process.name).to_owned(),
                    process_then: (tables.string(then.process.unwrap_or(process.name))).to_owned(),
                    thread: tables.string(thread.name).to_owned(),
                    namespace_pids: process.namespace_pids.iter().map(|pid| pid.0).collect(),
                    container: process.container.and_then(|id| container(tables, id)),
                    cpu: sample.cpu.0,
                    weight: sample.weight,
                    user: frames(tables, sample.user),
                    kernel: frames(tables, sample.kernel),
                    user_end: sample.user_end,
                });
            }
            Event::Lost(lost) => *self.lost.entry(lost.reason).or_default() += lost.count,
            Event::Mark(mark) => self.marks.push(tables.string(mark.text).to_owned()),
            Event::Process(_)
            | Event::Clock(_)
            | Event::Call(_)
            | Event::Throw(_)
            | Event::CallCount(_)
            | Event::Gap(_)
            | Event::Waits(_) => {}
        }
        Ok(())
    }

    fn finish(&mut self, _: &Tables) -> io::Result<()> {
        Ok(())
    }
}

fn container(tables: &Tables, id: ContainerId) -> Option<Container> {
    let container = tables.container(id)?;
    let text = |id: Option<StringId>| id.map(|id| tables.string(id).to_owned());
    Some(Container {
        cgroup: tables.string(container.cgroup).to_owned(),
        engine: text(container.engine),
        id: text(container.id),
        name: text(container.name),
        image: text(container.image),
    })
}

fn frames(tables: &Tables, stack: Option<StackId>) -> Vec<Frame> {
    tables
        .frames_of(stack)
        .map(|frame| named(tables, frame))
        .collect()
}

fn named(tables: &Tables, frame: FrameId) -> Frame {
    let lines = tables.lines(frame);
    let inlined = lines.len().saturating_sub(1);
    Frame {
        name: tables.frame_name(frame),
        inlined: lines[..inlined]
            .iter()
            .filter_map(|line| tables.functions.get(line.function))
            .map(|function| tables.string(function.name).to_owned())
            .collect(),
        named: tables.has_names(frame),
        unknown: match tables.symbol(frame) {
            Some(Symbol::Unknown(reason)) => Some(*reason),
            _ => None,
        },
        module: tables
            .frames
            .get(frame)
            .and_then(|frame| tables.modules.get(frame.module?))
            .map(|module| tables.string(module.path).to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_canonical_session_comes_out_with_names() {
        let (tables, events) = crate::canonical::session();
        let mut recording = Recording::default();
        for event in &events {
            recording.event(event, &tables).unwrap();
        }
        let samples = events
            .iter()
            .filter(|event| matches!(event, Event::Sample(_)))
            .count();
        assert_eq!(recording.samples.len(), samples);
        assert_eq!(recording.sources, ["cpu-clock"]);
        assert!(!recording.lost.is_empty() && !recording.marks.is_empty());
        assert!(
            recording
                .samples
                .iter()
                .any(|sample| !sample.user.is_empty() && sample.user[0].named)
        );
        assert!(
            recording
                .samples
                .iter()
                .any(|sample| sample.user.iter().any(|frame| !frame.named))
        );
        assert!(
            recording
                .samples
                .iter()
                .flat_map(|s| &s.user)
                .any(|frame| !frame.inlined.is_empty())
        );
        assert!(
            recording
                .samples
                .iter()
                .any(|sample| sample.tid == 101 && sample.pid == 100)
        );
    }
}
