//! Messages of a Bytefrog agent -> batches of definitions and calls.
//!
//! Input: messages in the order of their sequence ids, times in milliseconds since tracing began;
//! output: [`Batch`]es whose times are nanoseconds of CLOCK_MONOTONIC of this machine. A run is a
//! process, its threads keep their numbers plus 1 (0 is nobody's). Calls are paired on a stack per
//! thread; what was left unseen is closed as [`ExitKind::Inferred`].
//!
//! The agent's clock has milliseconds: shorter calls last 0 or 1 ms. Events keep the agent's order;
//! a time that lies before the previous one counts as the same.
//!
//! What does not belong here: the order of messages and what is wrong with it (`serve::hq`).

mod names;
mod said;
mod signature;
mod stacks;
mod throwers;
mod time;

use std::collections::BTreeMap;
use std::sync::Arc;

use profiler_model::text::TextMap;
use rustc_hash::FxHashMap;

use names::{Known, Names};
use profiler_model::*;
use profiler_wire::bytefrog::{AgentMessage, UNKNOWN_LINE};
use signature::Signature;
use stacks::{Left, OpenCall, Stacks};
use throwers::Throwers;
use time::Time;

/// A batch is handed on when it has so many events, or definitions of so many bytes.
const BATCH_EVENTS: usize = 16 << 10;
const BATCH_BYTES: usize = 1 << 20;
/// Most events that wait for the name of a method that was used before it was told.
const MAX_WAITING_EVENTS: usize = 256 << 10;
/// Longest name of a thread; there are up to 65,536 of them, whose names are kept.
const MAX_THREAD_NAME: usize = 512;
/// Most functions of gaps that no call was seen of.
const MAX_UNSEEN: usize = 1 << 12;
/// What an open call takes when it ends.
const EXIT_BYTES: usize = size_of::<Event>() + size_of::<Exit>();
/// Longer lists are not filled again.
const MAX_SPARE: usize = 2 * BATCH_EVENTS;
/// A new epoch is wanted when this one has defined so much.
const EPOCH_BYTES: usize = 64 << 20;

/// What an importer has seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImportCounts {
    /// Entries of methods.
    pub entries: u64,
    /// Exits, those by an exception too.
    pub exits: u64,
    /// Exceptions thrown.
    pub throws: u64,
    /// Markers.
    pub marks: u64,
    /// Threads.
    pub threads: u64,
    /// Exits that no entry was seen of.
    pub unmatched: u64,
    /// Calls that were closed without an exit.
    pub inferred: u64,
    /// Exits that were inferred at the agent, as it says.
    pub inferred_there: u64,
    /// Entries that are left out because too many calls are open.
    pub left_out: u64,
    /// Methods and exceptions whose names did not come in time.
    pub unnamed: u64,
    /// Names that are left out because there are too many.
    pub names_left_out: u64,
    /// What the agent says that it has lost, by [`LostReason`].
    pub lost_there: BTreeMap<LostReason, u64>,
    /// When calls are missing, by what it says, and by what did not come: how often, and the times.
    pub gaps: BTreeMap<GapReason, (u64, Spans)>,
}

/// Makes batches of one run.
#[derive(Debug)]
pub struct Importer {
    session: Session,
    process: Arc<str>,
    pid: Pid,
    /// Two readings of the same instant; the first event.
    clock: Option<Clock>,
    time: Time,
    epoch: u32,
    /// The session and the process are defined in this epoch.
    begun: bool,
    epoch_bytes: usize,
    batch_bytes: usize,
    strings: TextMap<Arc<str>, StringId>,
    next_string: usize,
    next_function: usize,
    next_thread: usize,
    modules: FxHashMap<StringId, ModuleId>,
    definitions: Vec<Definition>,
    events: Vec<Event>,
    names: Names,
    threads: Vec<Option<Thread16>>,
    /// Bytes of their names.
    thread_names: usize,
    stacks: Stacks,
    throwers: Throwers,
    /// Functions of gaps that no call was seen of, in this epoch.
    unseen: TextMap<Arc<str>, FunctionId>,
    /// Calls that were left out and not told yet.
    left_out: u64,
    /// Since when nothing was recorded, and why, if that is so.
    gap_from: Option<(Timestamp, GapReason)>,
    /// Gaps of suspensions that breaks have told of, and no marker yet.
    suspensions: u64,
    counts: ImportCounts,
}

/// A thread by its number of 16 bits.
#[derive(Clone, Debug)]
struct Thread16 {
    id: ThreadId,
    epoch: u32,
    name: Arc<str>,
}

impl Importer {
    /// For one run, whose number tells its process from others'. `session.started` is when tracing
    /// began; `realtime_ns` is the same instant since 1970.
    pub fn new(session: Session, process: &str, run: u8, realtime_ns: Option<u64>) -> Importer {
        let started = session.started;
        Importer {
            process: process.into(),
            pid: Pid(u32::from(run) + 1),
            clock: realtime_ns.map(|realtime_ns| Clock {
                monotonic: started,
                realtime_ns,
            }),
            time: Time::begin(started),
            session,
            epoch: 0,
            begun: false,
            epoch_bytes: 0,
            batch_bytes: 0,
            strings: TextMap::default(),
            next_string: 0,
            next_function: 0,
            next_thread: 0,
            modules: FxHashMap::default(),
            definitions: Vec::new(),
            events: Vec::new(),
            names: Names::default(),
            threads: Vec::new(),
            thread_names: 0,
            stacks: Stacks::default(),
            throwers: Throwers::default(),
            unseen: TextMap::default(),
            left_out: 0,
            gap_from: None,
            suspensions: 0,
            counts: ImportCounts::default(),
        }
    }

    /// Takes the next message of the run. Those that are not data say nothing here.
    pub fn message(&mut self, message: &AgentMessage<'_>) {
        match message {
            &AgentMessage::MethodEntry {
                at_ms,
                method,
                thread,
                ..
            } => self.enter(at_ms, method, thread),
            &AgentMessage::MethodExit {
                at_ms,
                method,
                line,
                thread,
                ..
            } => {
                let at = self.at(at_ms);
                self.exit(at, method, thread, line_number(line), ExitKind::Return);
            }
            &AgentMessage::ExceptionBubble {
                at_ms,
                method,
                exception,
                thread,
                ..
            } => {
                let at = self.at(at_ms);
                let kind = self.exception(exception);
                self.exit(at, method, thread, 0, ExitKind::Exception(Some(kind)));
            }
            &AgentMessage::Exception {
                at_ms,
                method,
                exception,
                line,
                thread,
                ..
            } => {
                let at = self.at(at_ms);
                let throw = Throw {
                    at,
                    thread: self.thread(thread),
                    cpu: Cpu::default(),
                    kind: self.exception(exception),
                    thrower: Some(self.thrower(method, line_number(line))),
                };
                self.counts.throws += 1;
                self.events.push(Event::Throw(throw));
            }
            AgentMessage::Marker {
                at_ms, key, value, ..
            } => {
                let at = self.at(*at_ms);
                let text = match (key.as_ref(), value.as_ref()) {
                    (key, "") => key.to_owned(),
                    ("", value) => value.to_owned(),
                    (key, value) => format!("{key}: {value}"),
                };
                self.counts.marks += 1;
                self.mark(at, &text);
                self.missing_there(at, key, value);
            }
            AgentMessage::MapThreadName { thread, name, .. } => self.rename(*thread, name),
            AgentMessage::MapMethodSignature { method, signature } => {
                self.counts.names_left_out += u64::from(!self.names.method(*method, signature));
            }
            AgentMessage::MapException { exception, name } => {
                self.counts.names_left_out += u64::from(!self.names.exception(*exception, name));
            }
            _ => {}
        }
    }

    /// What is missing at the agent, as one of ours says it.
    fn missing_there(&mut self, at: Timestamp, key: &str, value: &str) {
        match key {
            said::LOST => {
                for (reason, count) in said::losses(value) {
                    self.lost_by_agent(at, reason, count);
                }
            }
            said::ENDED => {
                self.counts.inferred_there = said::inferred_at_end(value);
                for (reason, count) in said::losses_at_end(value) {
                    // What was told meanwhile is among it.
                    let told = self.counts.lost_there.get(&reason).copied();
                    let more = count.saturating_sub(told.unwrap_or(0));
                    self.lost_by_agent(at, reason, more);
                }
            }
            said::GAP => {
                if let Some(mut gap) = said::gap(value) {
                    self.leave_out_told(&mut gap);
                    self.gap_there(at, &gap);
                }
            }
            _ => {}
        }
    }

    fn lost_by_agent(&mut self, at: Timestamp, reason: LostReason, count: u64) {
        if count > 0 {
            let sum = self.counts.lost_there.entry(reason).or_default();
            *sum = sum.saturating_add(count);
            self.push_lost(at, reason, count);
        }
    }

    /// Breaks tell of suspensions before a live agent's markers do. One that replays a recording has no breaks.
    fn leave_out_told(&mut self, gap: &mut said::Gap<'_>) {
        if gap.reason == GapReason::Suspended {
            let told = self.suspensions.min(gap.count);
            self.suspensions -= told;
            gap.ns = gap.ns / gap.count * (gap.count - told);
            gap.count -= told;
        }
    }

    /// Where in the time before they were, is not said: they end where they are told.
    fn gap_there(&mut self, at: Timestamp, gap: &said::Gap<'_>) {
        let function = gap.function.and_then(|text| self.function_of_gap(text));
        if gap.count == 0 || function.is_none() && gap.function.is_some() {
            return;
        }
        let from = Timestamp(at.0.saturating_sub(gap.ns / gap.count));
        let from = from.max(self.session.started);
        for _ in 0..gap.count {
            self.push_gap((from, at), function, gap.reason);
        }
    }

    /// The function that an agent speaks of, also if no call of it was seen.
    fn function_of_gap(&mut self, text: &str) -> Option<FunctionId> {
        if let Some(method) = self.names.find(text) {
            return Some(self.function(method, true));
        }
        if let Some(&id) = self.unseen.get(text) {
            return Some(id);
        }
        if self.unseen.len() >= MAX_UNSEEN {
            return None;
        }
        let id = FunctionId::from_index(self.next_function);
        self.next_function += 1;
        self.unseen.insert(text.into(), id);
        self.define(Known::Function(id, Signature::parse(text).into(), false));
        Some(id)
    }

    fn push_lost(&mut self, at: Timestamp, reason: LostReason, count: u64) {
        self.events.push(Event::Lost(Lost {
            cpu: None,
            from: at,
            to: at,
            count,
            reason,
        }));
    }

    /// Something of the receiver's own to be kept in the recording.
    pub fn remark(&mut self, text: &str) {
        let at = self.time.at;
        self.mark(at, text);
    }

    /// Messages are missing before the next one, or tracing was suspended: what is open is closed,
    /// and the time until the next event is a gap.
    pub fn break_data(&mut self, reason: GapReason) {
        self.close_all(ExitKind::Inferred);
        let (_, why) = self.gap_from.get_or_insert((self.time.at, reason));
        // Where both are, what was not meant to be missing counts.
        *why = reason.max(*why);
    }

    /// Messages that are known to be missing; their number.
    pub fn lost(&mut self, count: u64) {
        self.break_data(GapReason::MissingData);
        self.push_lost(self.time.at, LostReason::BadRecord, count);
    }

    /// The run broke off; it would have gone on until `at` at least.
    pub fn cut_off(&mut self, at: Timestamp) {
        self.begin();
        self.close_all(ExitKind::Inferred);
        let from = self.time.at;
        self.end_gap(from);
        self.push_gap((from, at.max(from)), None, GapReason::CutOff);
    }

    /// Whether there is nothing for a batch.
    pub fn is_empty(&self) -> bool {
        self.events.is_empty() && self.definitions.is_empty()
    }

    /// Whether there is enough for a batch.
    pub fn is_full(&self) -> bool {
        self.events.len() >= BATCH_EVENTS || self.batch_bytes >= BATCH_BYTES
    }

    /// Takes what there is, if it can be handed on: a method that has no name yet may still get one,
    /// unless `now` says that it is waited for no longer.
    pub fn take(&mut self, now: bool) -> Option<Batch> {
        let bounded = self.events.len() < MAX_WAITING_EVENTS && self.batch_bytes < BATCH_BYTES;
        if !now && bounded && self.names.is_waiting() {
            return None;
        }
        let left_out = std::mem::take(&mut self.left_out);
        if left_out > 0 {
            self.push_lost(self.time.at, LostReason::TooMany, left_out);
        }
        if self.is_empty() {
            return None;
        }
        for known in self.names.settle() {
            self.counts.unnamed += u64::from(known.is_unnamed());
            self.define(known);
        }
        // Behind the functions that they name.
        self.definitions.append(&mut self.throwers.waiting);
        self.batch_bytes = 0;
        Some(Batch {
            epoch: self.epoch,
            definitions: std::mem::take(&mut self.definitions),
            events: std::mem::take(&mut self.events),
        })
    }

    /// Whether ids should start anew, because this epoch has defined much.
    pub fn wants_new_epoch(&self) -> bool {
        self.epoch_bytes >= EPOCH_BYTES
    }

    /// Starts ids anew. Only right after a batch was taken, with nothing waiting.
    pub fn begin_epoch(&mut self) {
        if !self.begun || !self.is_empty() {
            return;
        }
        self.epoch += 1;
        self.begun = false;
        self.epoch_bytes = 0;
        self.strings.clear();
        self.modules.clear();
        (self.next_string, self.next_function, self.next_thread) = (0, 0, 0);
        self.names.begin_epoch();
        self.throwers.begin_epoch();
        self.unseen.clear();
    }

    /// About how many bytes of memory it takes, and would if all open calls ended now.
    pub fn bytes(&self) -> usize {
        let open = self.stacks.open() * EXIT_BYTES;
        let threads = self.threads.capacity() * size_of::<Option<Thread16>>();
        // Strings that are defined are kept until the epoch ends, and are in the batch before that.
        let epoch = self.epoch_bytes * 2 + self.batch_bytes;
        let events = self.events.len() * size_of::<Exit>();
        self.names.memory()
            + self.stacks.bytes()
            + self.throwers.bytes()
            + (open + threads + self.thread_names + epoch + events)
            + self.events.capacity() * size_of::<Event>()
            + self.definitions.capacity() * size_of::<Definition>()
    }

    /// Takes a list of events back, to be filled again.
    pub fn recycle(&mut self, mut events: Vec<Event>) {
        let usual = events.capacity() <= MAX_SPARE;
        if usual && self.events.capacity() < events.capacity() {
            events.clear();
            events.append(&mut self.events);
            self.events = events;
        }
    }

    /// Ends the run: what is open ended with it.
    pub fn finish(&mut self) -> Option<Batch> {
        self.begin();
        self.close_all(ExitKind::Inferred);
        let to = self.time.at;
        self.end_gap(to);
        self.take(true)
    }

    /// What has been seen.
    pub fn counts(&self) -> &ImportCounts {
        &self.counts
    }

    fn at(&mut self, at_ms: u32) -> Timestamp {
        let at = self.time.event(at_ms);
        self.begin();
        self.end_gap(at);
        at
    }

    /// Defines what every epoch begins with.
    fn begin(&mut self) {
        if self.begun {
            return;
        }
        self.begun = true;
        let session = self.session.clone();
        self.definitions.push(Definition::Session(session));
        let process = Process {
            pid: self.pid,
            started: self.session.started,
            parent: None,
            name: self.string(&Arc::clone(&self.process)),
            executable: None,
            command: None,
            namespace_pids: Vec::new(),
            uid: None,
            cgroup: None,
            container: None,
        };
        let id = ProcessId::from_index(0);
        self.definitions.push(Definition::Process(id, process));
        if let Some(clock) = self.clock.take() {
            self.events.push(Event::Clock(clock));
        }
    }

    fn end_gap(&mut self, to: Timestamp) {
        if let Some((from, reason)) = self.gap_from.take() {
            self.suspensions += u64::from(reason == GapReason::Suspended);
            self.push_gap((from, to), None, reason);
        }
    }

    fn push_gap(
        &mut self,
        (from, to): (Timestamp, Timestamp),
        function: Option<FunctionId>,
        reason: GapReason,
    ) {
        let (count, times) = self.counts.gaps.entry(reason).or_default();
        *count = count.saturating_add(1);
        times.add(from, to);
        self.events.push(Event::Gap(Gap {
            from,
            to,
            function,
            process: Some(ProcessId::from_index(0)),
            reason,
        }));
    }

    fn enter(&mut self, at_ms: u32, method: u32, thread: u16) {
        let at = self.at(at_ms);
        self.counts.entries += 1;
        let id = self.thread(thread);
        let (method, named) = self.names.use_method(method);
        let frame = OpenCall {
            method,
            named,
            began: at,
            children_ns: 0,
        };
        let Some(depth) = self.stacks.push(thread, frame) else {
            self.counts.left_out += 1;
            self.left_out += 1;
            return;
        };
        let function = self.function(method, named);
        self.events.push(Event::Call(Call {
            at,
            thread: id,
            cpu: Cpu::default(),
            function,
            stack: 0,
            depth,
            edge: CallEdge::Enter(None),
            later: None,
        }));
    }

    fn exit(&mut self, at: Timestamp, method: u32, thread: u16, line: u32, how: ExitKind) {
        self.counts.exits += 1;
        let (method, _) = self.names.use_method(method);
        match self.stacks.find(thread, method) {
            Left::Beyond => {}
            Left::Unknown => {
                self.counts.unmatched += 1;
                self.push_lost(at, LostReason::Unmatched, 1);
            }
            Left::Frame { above } => {
                for _ in 0..above {
                    self.counts.inferred += 1;
                    self.pop(at, thread, 0, ExitKind::Inferred);
                }
                self.pop(at, thread, line, how);
            }
        }
    }

    fn pop(&mut self, at: Timestamp, thread: u16, line: u32, how: ExitKind) {
        let Some((frame, depth)) = self.stacks.pop(thread, at) else {
            return;
        };
        let id = self.thread(thread);
        let function = self.function(frame.method, frame.named);
        let exit = Exit {
            began: frame.began,
            self_ns: at.since(frame.began).saturating_sub(frame.children_ns),
            how,
            line,
            result: None,
            whole: None,
        };
        self.events.push(Event::Call(Call {
            at,
            thread: id,
            cpu: Cpu::default(),
            function,
            stack: 0,
            depth,
            edge: CallEdge::Exit(Box::new(exit)),
            later: None,
        }));
    }

    fn close_all(&mut self, how: ExitKind) {
        let at = self.time.at;
        for thread in self.stacks.threads() {
            while self.stacks.depth(thread) > 0 {
                self.counts.inferred += 1;
                self.pop(at, thread, 0, how);
            }
        }
        self.stacks.clear();
    }

    fn mark(&mut self, at: Timestamp, text: &str) {
        self.begin();
        let text = self.string(text);
        self.events.push(Event::Mark(Mark { at, text }));
    }

    /// The id of a thread in this epoch.
    fn thread(&mut self, number: u16) -> ThreadId {
        let index = usize::from(number);
        if let Some(Some(thread)) = self.threads.get(index)
            && thread.epoch == self.epoch
        {
            return thread.id;
        }
        self.begin();
        if self.threads.len() <= index {
            self.threads.resize(index + 1, None);
        }
        let name = match &self.threads[index] {
            Some(thread) => Arc::clone(&thread.name),
            None => {
                self.counts.threads += 1;
                Arc::from(format!("thread {number}"))
            }
        };
        let id = ThreadId::from_index(self.next_thread);
        self.next_thread += 1;
        self.announce(number, id, name);
        id
    }

    fn announce(&mut self, number: u16, id: ThreadId, name: Arc<str>) -> StringId {
        let text = self.string(&name);
        let thread = Thread {
            process: ProcessId::from_index(0),
            tid: Tid(u32::from(number) + 1),
            started: self.session.started,
            name: text,
        };
        self.definitions.push(Definition::Thread(id, thread));
        self.thread_names += name.len();
        let before = self.threads[usize::from(number)].replace(Thread16 {
            id,
            epoch: self.epoch,
            name,
        });
        self.thread_names -= before.map_or(0, |before| before.name.len());
        text
    }

    fn rename(&mut self, number: u16, name: &str) {
        let name = &name[..name.floor_char_boundary(MAX_THREAD_NAME)];
        let known = self.threads.get(usize::from(number)).cloned().flatten();
        if known.as_ref().is_some_and(|thread| *thread.name == *name) {
            return;
        }
        let thread = self.thread(number);
        let name = self.announce(number, thread, name.into());
        if known.is_some() {
            self.events.push(Event::Process(ProcessEvent {
                at: self.time.at,
                thread,
                change: ProcessChange::Renamed(name),
            }));
        }
    }

    fn function(&mut self, method: u32, named: bool) -> FunctionId {
        let (id, known) = self.names.function(method, named, &mut self.next_function);
        if let Some(known) = known {
            self.define(known);
        }
        id
    }

    fn exception(&mut self, exception: u32) -> StringId {
        self.begin();
        let (id, known) = self.names.kind(exception, &mut self.next_string);
        if let Some(known) = known {
            self.define(known);
        }
        id
    }

    /// The place in a method that threw; 0: an unknown line.
    fn thrower(&mut self, method: u32, line: u32) -> FrameId {
        let (method, named) = self.names.use_method(method);
        let function = self.function(method, named);
        let name = self.names.version(method, named);
        let (frame, new) = self.throwers.frame(method, name, Line { function, line });
        if new {
            self.grow(size_of::<Definition>() * 2);
        }
        frame
    }

    /// Defines a function or the name of an exception.
    fn define(&mut self, known: Known) {
        match known {
            Known::Function(id, signature, _) => {
                let function = Function {
                    name: self.string(&signature.name),
                    linkage_name: signature
                        .linkage_name
                        .as_deref()
                        .map(|name| self.string(name)),
                    module: signature.module.as_deref().map(|name| self.module(name)),
                    file: signature.file.as_deref().map(|name| self.string(name)),
                    line: 0,
                    start: None,
                    size: None,
                };
                self.grow(size_of::<Definition>() * 2);
                self.definitions.push(Definition::Function(id, function));
                let traced = Traced {
                    kind: TracedKind::Function,
                    entry_offset: 0,
                    returns: ReturnMode::Agent,
                    cost_ns: 0,
                    line: signature.line,
                    parameters: Box::default(),
                    result: None,
                };
                self.definitions.push(Definition::Traced(id, traced));
            }
            Known::Exception(id, name, _) => {
                self.grow(name.len() + size_of::<Definition>());
                self.definitions.push(Definition::String(id, name));
            }
        }
    }

    fn module(&mut self, path: &str) -> ModuleId {
        let path = self.string(path);
        if let Some(&id) = self.modules.get(&path) {
            return id;
        }
        let id = ModuleId::from_index(self.modules.len());
        self.modules.insert(path, id);
        let module = Module {
            kind: ModuleKind::File,
            path,
            build_id: None,
            address_bias: 0,
        };
        self.grow(size_of::<Definition>());
        self.definitions.push(Definition::Module(id, module));
        id
    }

    fn string(&mut self, text: &str) -> StringId {
        if let Some(&id) = self.strings.get(text) {
            return id;
        }
        let id = StringId::from_index(self.next_string);
        self.next_string += 1;
        let text: Arc<str> = text.into();
        self.grow(text.len() + size_of::<Definition>() * 2);
        self.strings.insert(Arc::clone(&text), id);
        self.definitions.push(Definition::String(id, text));
        id
    }

    fn grow(&mut self, bytes: usize) {
        self.batch_bytes += bytes;
        self.epoch_bytes += bytes;
    }
}

/// A line of a message; 0: not known.
fn line_number(line: u16) -> u32 {
    match line {
        UNKNOWN_LINE => 0,
        line => u32::from(line),
    }
}

#[cfg(test)]
mod tests;
