//! Definitions and events -> items of a block.
//!
//! Each block stands for itself: what is coded as a difference starts anew with it. An item is its
//! kind, its length in bytes, its fields. Texts and lists that no honest recording has (see
//! [`MAX_TEXT_BYTES`] and others) are cut, so that an item always fits a block.

use profiler_model::*;

use super::calls;
use super::item::*;
use super::samples;

/// Longest text kept.
pub(super) const MAX_TEXT_BYTES: usize = 64 << 10;
/// Longest piece of code kept.
pub(super) const MAX_CODE_BYTES: usize = 1 << 20;
/// Most bytes kept of the profiler's own command line.
const MAX_COMMAND_BYTES: usize = 256 << 10;
/// Most nested pid namespaces kept (the kernel allows 32).
const MAX_NAMESPACES: usize = 64;
/// Most inlined functions kept at one address.
const MAX_LINES: usize = 4096;
/// Most parameters kept of a traced function.
const MAX_PARAMETERS: usize = 256;

/// Definitions as the payload of a block.
#[derive(Debug, Default)]
pub(super) struct DefinitionEncoder {
    /// The payload so far.
    pub(super) payload: Vec<u8>,
    /// Items in it.
    pub(super) items: u32,
    fields: Vec<u8>,
    /// The previous id of each kind.
    previous: [u32; definition::KINDS],
    address: u64,
    stack_frame: u32,
    function: u32,
}

impl DefinitionEncoder {
    /// Starts the next block.
    pub(super) fn clear(&mut self) {
        self.payload.clear();
        self.items = 0;
        self.previous = Default::default();
        (self.address, self.stack_frame, self.function) = (0, 0, 0);
    }

    /// Appends one definition.
    pub(super) fn push(&mut self, item: &Definition) {
        self.fields.clear();
        let kind = match item {
            Definition::Session(session) => {
                self.session(session);
                definition::SESSION
            }
            Definition::String(id, text) => {
                self.id(definition::STRING, id.get());
                self.text(text);
                definition::STRING
            }
            Definition::Source(id, source) => {
                self.id(definition::SOURCE, id.get());
                self.put(source.name.get());
                put(&mut self.fields, unit_code(source.unit));
                self.maybe([source.frequency_hz, source.period]);
                definition::SOURCE
            }
            Definition::Process(id, process) => {
                self.id(definition::PROCESS, id.get());
                self.process(process);
                definition::PROCESS
            }
            Definition::Thread(id, thread) => {
                self.id(definition::THREAD, id.get());
                self.put(thread.process.get());
                self.put(thread.tid.0);
                put(&mut self.fields, thread.started.0);
                self.put(thread.name.get());
                definition::THREAD
            }
            Definition::Named(named) => {
                self.put(named.thread.get());
                put(&mut self.fields, named.from.0);
                self.put(named.name.get());
                definition::NAMED
            }
            Definition::Module(id, module) => {
                self.id(definition::MODULE, id.get());
                put(&mut self.fields, module_kind_code(module.kind));
                self.put(module.path.get());
                put_signed(&mut self.fields, module.address_bias as i64);
                let build_id = module.build_id.as_ref().map(|id| &*id.0);
                // 0 says none, so that an empty one stays apart from none.
                put(
                    &mut self.fields,
                    build_id.map_or(0, |id| id.len() as u64 + 1),
                );
                self.fields.extend_from_slice(build_id.unwrap_or_default());
                definition::MODULE
            }
            Definition::Mapping(id, mapping) => {
                self.id(definition::MAPPING, id.get());
                self.put(mapping.process.get());
                self.put(mapping.module.get());
                put(&mut self.fields, mapping.start);
                put(&mut self.fields, mapping.end.wrapping_sub(mapping.start));
                put(&mut self.fields, mapping.offset);
                put(&mut self.fields, mapping.at.0);
                definition::MAPPING
            }
            Definition::Container(id, container) => {
                self.id(definition::CONTAINER, id.get());
                self.put(container.cgroup.get());
                for text in container.texts() {
                    self.optional(text);
                }
                definition::CONTAINER
            }
            Definition::Function(id, function) => {
                self.id(definition::FUNCTION, id.get());
                self.put(function.name.get());
                self.optional(function.linkage_name);
                self.optional(function.module);
                self.optional(function.file);
                let line = (function.line > 0).then_some(u64::from(function.line));
                self.maybe([function.start, function.size, line]);
                definition::FUNCTION
            }
            Definition::Frame(id, frame) => {
                self.id(definition::FRAME, id.get());
                put(&mut self.fields, frame_kind_code(frame.kind));
                self.optional(frame.module);
                let difference = frame.address.wrapping_sub(self.address);
                self.address = frame.address;
                put_signed(&mut self.fields, difference as i64);
                definition::FRAME
            }
            Definition::Stack(id, stack) => {
                self.id(definition::STACK, id.get());
                let parent = stack.parent.map_or(0, |parent| {
                    zigzag(i64::from(id.get()) - i64::from(parent.get())) + 1
                });
                put(&mut self.fields, parent);
                let difference = i64::from(stack.frame.get()) - i64::from(self.stack_frame);
                self.stack_frame = stack.frame.get();
                put_signed(&mut self.fields, difference);
                definition::STACK
            }
            Definition::Symbol(frame, symbol) => {
                self.id(definition::SYMBOL, frame.get());
                self.symbol(symbol);
                definition::SYMBOL
            }
            Definition::Code(code) => {
                self.put(code.module.get());
                put(&mut self.fields, code.address);
                let bytes = &code.bytes[..code.bytes.len().min(MAX_CODE_BYTES)];
                put(&mut self.fields, bytes.len() as u64);
                self.fields.extend_from_slice(bytes);
                definition::CODE
            }
            Definition::Traced(function, traced) => {
                self.id(definition::TRACED, function.get());
                self.traced(traced);
                definition::TRACED
            }
        };
        put(&mut self.payload, kind);
        put(&mut self.payload, self.fields.len() as u64);
        self.payload.extend_from_slice(&self.fields);
        self.items += 1;
    }

    fn session(&mut self, session: &Session) {
        self.text(&session.version);
        self.text(&session.host);
        self.text(&session.kernel);
        self.text(&session.arch);
        self.put(session.cpus);
        self.text(&session.target);
        put(&mut self.fields, session.started.0);
        let mut left = MAX_COMMAND_BYTES;
        let kept = session.command.iter().take_while(|argument| {
            let cost = argument.len().min(MAX_TEXT_BYTES) + 4;
            left = left.saturating_sub(cost);
            left > 0
        });
        let kept = kept.count();
        put(&mut self.fields, kept as u64);
        for argument in session.command.iter().take(kept) {
            self.text(argument);
        }
        put(&mut self.fields, session.recordings.len() as u64);
        for &recording in &session.recordings {
            put(&mut self.fields, recording);
        }
    }

    fn process(&mut self, process: &Process) {
        self.put(process.pid.0);
        put(&mut self.fields, process.started.0);
        self.optional(process.parent);
        self.put(process.name.get());
        self.optional(process.executable);
        self.optional(process.command);
        self.optional(process.cgroup);
        self.maybe([process.uid.map(u64::from)]);
        let count = process.namespace_pids.len().min(MAX_NAMESPACES);
        put(&mut self.fields, count as u64);
        for pid in &process.namespace_pids[..count] {
            self.put(pid.0);
        }
        self.optional(process.container);
    }

    fn symbol(&mut self, symbol: &Symbol) {
        match symbol {
            Symbol::Unknown(reason) => {
                put(&mut self.fields, 0);
                put(&mut self.fields, unknown_reason_code(*reason));
            }
            Symbol::Lines(lines) => {
                let lines = &lines[..lines.len().min(MAX_LINES)];
                put(&mut self.fields, lines.len() as u64);
                for line in lines {
                    let difference = i64::from(line.function.get()) - i64::from(self.function);
                    self.function = line.function.get();
                    put_signed(&mut self.fields, difference);
                    self.put(line.line);
                }
            }
        }
    }

    fn traced(&mut self, traced: &Traced) {
        put(&mut self.fields, traced_kind_code(traced.kind));
        self.put(traced.entry_offset);
        put(&mut self.fields, return_mode_code(traced.returns));
        self.put(traced.cost_ns);
        let count = traced.parameters.len().min(MAX_PARAMETERS);
        put(&mut self.fields, count as u64);
        for parameter in &traced.parameters[..count] {
            self.put(parameter.name.get());
            self.optional(parameter.kind);
        }
        self.optional(traced.result);
        self.put(traced.line);
    }

    /// An id as its difference to the previous one of its kind: usually 1.
    fn id(&mut self, kind: u64, id: u32) {
        let previous = &mut self.previous[kind as usize];
        let difference = i64::from(id) - i64::from(*previous);
        *previous = id;
        put_signed(&mut self.fields, difference);
    }

    fn put(&mut self, value: u32) {
        put(&mut self.fields, u64::from(value));
    }

    fn optional<I: EpochId>(&mut self, id: Option<I>) {
        self.put(id.map_or(0, I::get));
    }

    /// Which of the values are there, then those.
    fn maybe<const N: usize>(&mut self, values: [Option<u64>; N]) {
        let present = values.iter().enumerate();
        let bits = present.fold(0, |bits, (i, value)| bits | u64::from(value.is_some()) << i);
        put(&mut self.fields, bits);
        for value in values.into_iter().flatten() {
            put(&mut self.fields, value);
        }
    }

    fn text(&mut self, text: &str) {
        let text = &text[..text.floor_char_boundary(MAX_TEXT_BYTES)];
        put(&mut self.fields, text.len() as u64);
        self.fields.extend_from_slice(text.as_bytes());
    }
}

/// Events as the payload of a block.
#[derive(Debug, Default)]
pub(super) struct EventEncoder {
    /// The payload so far.
    pub(super) payload: Vec<u8>,
    /// Items in it.
    pub(super) items: u32,
    /// Time of the earliest event.
    pub(super) first_ns: u64,
    /// Time of the latest event.
    pub(super) last_ns: u64,
    times: Times,
    samples: samples::Contexts,
    calls: calls::Contexts,
}

impl EventEncoder {
    /// Starts the next block.
    pub(super) fn clear(&mut self) {
        self.payload.clear();
        self.items = 0;
        (self.first_ns, self.last_ns) = (0, 0);
        self.times = Times::default();
        self.samples.clear();
        self.calls.clear();
    }

    /// Appends one event.
    pub(super) fn push(&mut self, item: &Event) {
        let at = item.at().0;
        if self.items == 0 {
            // The first event says its time in full.
            (self.first_ns, self.last_ns) = (at, at);
        }
        self.first_ns = self.first_ns.min(at);
        self.last_ns = self.last_ns.max(at);
        self.items += 1;
        let kind = match item {
            Event::Sample(_) => event::SAMPLE,
            Event::Process(_) => event::PROCESS,
            Event::Mark(_) => event::MARK,
            Event::Clock(_) => event::CLOCK,
            Event::Lost(_) => event::LOST,
            Event::Call(_) => event::CALL,
            Event::Throw(_) => event::THROW,
            Event::CallCount(_) => event::CALL_COUNT,
            Event::Gap(_) => event::GAP,
            Event::Waits(_) => event::WAITS,
        };
        self.payload.push(kind as u8);
        // The length is one byte, unless there are values.
        self.payload.push(0);
        let start = self.payload.len();
        let (out, times) = (&mut self.payload, &mut self.times);
        match item {
            Event::Sample(sample) => self.samples.put(out, times, sample),
            Event::Call(call) => self.calls.put_call(out, call),
            Event::Throw(throw) => self.calls.put_throw(out, throw),
            Event::CallCount(count) => self.calls.put_count(out, count),
            Event::Gap(gap) => self.calls.put_gap(out, gap),
            Event::Waits(waits) => put_waits(out, waits),
            Event::Process(change) => put_process(out, times, change),
            Event::Mark(mark) => {
                times.put(out, mark.at);
                put(out, mark.text.get().into());
            }
            Event::Clock(clock) => {
                times.put(out, clock.monotonic);
                put(out, clock.realtime_ns);
            }
            Event::Lost(lost) => put_lost(out, times, lost),
        }
        let len = self.payload.len() - start;
        self.payload[start - 1] = len as u8;
        if len >= 0x80 {
            self.lengthen(start, len);
        }
    }

    /// Makes room for a length of more than one byte before the fields at `start`.
    #[cold]
    fn lengthen(&mut self, start: usize, len: usize) {
        let mut length = Vec::new();
        put(&mut length, len as u64);
        self.payload.splice(start - 1..start, length);
    }
}

/// In full, so that readers that don't know this kind lose no chain of times.
fn put_waits(out: &mut Vec<u8>, item: &Waits) {
    put(out, item.to.0);
    put(out, item.to.0.saturating_sub(item.from.0));
    put(out, item.thread.get().into());
    for value in item.count.iter().chain(&item.ns) {
        put(out, *value);
    }
    put(out, item.runnable_ns);
}

fn put_process(out: &mut Vec<u8>, times: &mut Times, item: &ProcessEvent) {
    times.put(out, item.at);
    put(out, item.thread.get().into());
    let (code, name) = match item.change {
        ProcessChange::Started => (1, None),
        ProcessChange::Executed(name) => (2, Some(name)),
        ProcessChange::Renamed(name) => (3, Some(name)),
        ProcessChange::Exited => (4, None),
    };
    put(out, code);
    put(out, name.map_or(0, StringId::get).into());
}

fn put_lost(out: &mut Vec<u8>, times: &mut Times, item: &Lost) {
    times.put(out, item.to);
    put_signed(out, item.to.0.wrapping_sub(item.from.0) as i64);
    put(out, item.cpu.map_or(0, |cpu| u64::from(cpu.0) + 1));
    put(out, item.count);
    put(out, item.reason as u64);
}
