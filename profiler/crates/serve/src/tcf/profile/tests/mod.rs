//! A world that tests make up, and what profiles make of it.

mod binding;
mod memory;
mod samples;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::*;
use crate::machine::Life;
use crate::tcf::world::Context;
use crate::thin::Random;
use profiler_wire::tcf::{StackTrace, WordLayout, decode_stack_traces};

/// 99 samples per second.
const PERIOD_NS: u64 = 10_101_010;
const ONE: ChannelId = ChannelId(1);
const TWO: ChannelId = ChannelId(2);

/// Contexts, stacks and threads as tests say. A frame's address is its process's number in the upper
/// half, what the test called it in the lower one.
#[derive(Default)]
struct Made {
    tables: Tables,
    turns: u64,
    contexts: BTreeMap<ContextKey, Context>,
    threads: FxHashMap<ThreadId, (ContextKey, ContextKey)>,
    cgroups: FxHashMap<ContextKey, String>,
    containers: FxHashMap<ContextKey, String>,
    held: BTreeSet<ContextKey>,
    /// How often it was asked for an address.
    asked: usize,
}

/// A process with one thread, or that thread.
#[derive(Clone, Copy, Debug)]
struct Task {
    process: ContextKey,
    id: ThreadId,
}

impl Made {
    fn context(&mut self, id: String, process: Option<ContextKey>, context: Context) -> ContextKey {
        let key = ContextKey(self.contexts.len() as u64 + 1);
        let process = process.unwrap_or(key);
        let context = Context {
            id,
            process,
            ..context
        };
        self.contexts.insert(key, context);
        key
    }

    fn process(&mut self, pid: u32, parent: Option<ContextKey>) -> Task {
        let life = Life {
            pid: Pid(pid),
            started: Timestamp(self.contexts.len() as u64),
        };
        let context = Context {
            id: String::new(),
            process: ContextKey(0),
            life,
            thread: None,
            name: "made".to_owned(),
            parent,
            ended: false,
            gone: false,
            seen: Default::default(),
        };
        let process = self.context(format!("P{pid}"), None, context);
        self.thread(process, pid)
    }

    fn thread(&mut self, process: ContextKey, tid: u32) -> Task {
        let context = Context {
            thread: Some(Tid(tid)),
            ..self.contexts[&process].clone()
        };
        let id = format!("{}.{tid}", context.id);
        let thread = self.context(id, Some(process), context);
        let id = ThreadId::from_index(self.threads.len());
        self.threads.insert(id, (process, thread));
        Task { process, id }
    }

    fn end(&mut self, made: Task) {
        for context in self.contexts.values_mut() {
            context.ended |= context.process == made.process;
        }
    }

    /// A stack of these frames, leaf first.
    fn stack(&mut self, frames: &[u64]) -> StackId {
        let mut parent = None;
        for &address in frames.iter().rev() {
            let frame = Frame {
                kind: FrameKind::Native,
                module: None,
                address,
            };
            let (frame, _) = self.tables.frames.intern(frame);
            parent = Some(self.tables.stacks.intern(Stack { parent, frame }).0);
        }
        parent.expect("a stack has frames")
    }

    fn source(&mut self, unit: Unit, frequency_hz: Option<u64>) -> SourceId {
        let (name, _) = self.tables.intern_string("source");
        let source = Source {
            name,
            unit,
            frequency_hz,
            period: None,
        };
        self.tables.sources.intern(source).0
    }

    /// A sample at 99 Hz.
    fn sample(&mut self, made: Task, kernel: Option<StackId>, user: Option<StackId>) -> Sample {
        let source = self.source(Unit::Nanoseconds, Some(99));
        Sample::new(Timestamp(0), made.id, Cpu(0), source, PERIOD_NS).with_stacks(kernel, user)
    }
}

impl Surroundings for Made {
    fn tables(&self) -> &Tables {
        &self.tables
    }

    fn turns(&self) -> u64 {
        self.turns
    }

    fn find(&self, id: &str) -> Option<ContextKey> {
        let of_id = || self.contexts.iter().filter(|(_, context)| context.id == id);
        let living = of_id().find(|(_, context)| !context.ended);
        living.or_else(|| of_id().next_back()).map(|(key, _)| *key)
    }

    fn context(&self, key: ContextKey) -> Option<&Context> {
        self.contexts.get(&key)
    }

    fn processes(&self) -> Vec<ContextKey> {
        let is_process = |(key, context): &(&ContextKey, &Context)| context.process == **key;
        let all = self.contexts.iter().filter(is_process);
        all.map(|(key, _)| *key).collect()
    }

    fn contexts_of(&self, thread: ThreadId) -> Option<(ContextKey, ContextKey)> {
        self.threads.get(&thread).copied()
    }

    fn cgroup(&self, process: ContextKey) -> Option<&str> {
        self.cgroups.get(&process).map(String::as_str)
    }

    fn container(&self, process: ContextKey) -> Option<&str> {
        self.containers.get(&process).map(String::as_str)
    }

    fn has_no_program(&self, _process: ContextKey) -> bool {
        false
    }

    fn hold(&mut self, process: ContextKey, hold: bool) {
        let changed = match hold {
            true => self.held.insert(process),
            false => self.held.remove(&process),
        };
        assert!(changed, "{process:?} was held already, or not at all");
    }

    fn address_of(&mut self, process: ContextKey, frame: FrameId) -> u64 {
        self.asked += 1;
        let frame = self.tables.frames.get(frame).expect("frames are defined");
        process.0 << 32 | frame.address
    }
}

fn profiles() -> Profiles {
    Profiles::with_random(Limits::default(), None, Random::new(4711))
}

fn replay(replay: Replay) -> Profiles {
    Profiles::with_random(Limits::default(), Some(replay), Random::new(4711))
}

impl Profiles {
    fn set(&mut self, channel: ChannelId, id: &str, parameters: Value, world: &mut Made) {
        let Value::Object(parameters) = parameters else {
            panic!("{parameters} is no object");
        };
        self.configure(channel, id, parameters, world);
    }

    fn take(&mut self, channel: ChannelId, id: &str, world: &mut Made) -> ReadOut {
        match self.read(channel, id, world) {
            Read::Samples(out) => out,
            other => panic!("{id} gives {other:?}"),
        }
    }
}

impl ReadOut {
    fn stacks(&self) -> Vec<StackTrace> {
        decode_stack_traces(WordLayout::WIDE, &self.data).expect("data is whole")
    }

    /// Counts by the addresses of their process.
    fn counts(&self) -> BTreeMap<Vec<u64>, u64> {
        let mut counts = BTreeMap::new();
        for stack in self.stacks() {
            let low = stack.addresses.iter().map(|address| address & 0xffff_ffff);
            *counts.entry(low.collect()).or_default() += stack.count;
        }
        counts
    }
}

fn all(frames: u64) -> Value {
    json!({ "FrameCnt": frames })
}
