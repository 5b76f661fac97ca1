//! Events of traced functions <-> the fields of their items.
//!
//! A call takes a few bytes: both sides keep, for each thread, the calls that were entered in this
//! block and not left yet ([`Contexts`]), so that an exit need not say what its entry said. All of
//! it starts anew with each block. These items have a chain of times of their own, so that a reader
//! that does not know them is not led astray.
//!
//! What does not belong here: whose calls these are and how they pair up (`resolve::calls`).

use rustc_hash::FxHashMap;

use profiler_model::*;

use super::item::{Bad, CPU_CONTEXTS, Fields, Times, call, put, put_signed};
use super::{sections, value};

/// Most open calls that are kept of one thread; beyond, all of them are forgotten.
const MAX_OPEN: usize = 256;

/// A call that was entered in this block.
#[derive(Clone, Copy, Debug)]
struct Open {
    function: u32,
    began: u64,
    /// Time spent in calls directly in it.
    children_ns: u64,
}

#[derive(Debug, Default)]
struct ThreadContext {
    /// The depth that the next entry has, if it is as expected.
    depth: u32,
    /// Function of the last call that was left or passed: a loop calls it again.
    function: u32,
    open: Vec<Open>,
}

/// What calls of the block so far say about the next one.
#[derive(Debug)]
pub(super) struct Contexts {
    times: Times,
    cpu: u32,
    /// By processor: the thread of its previous call, and the place of that thread's context.
    slots: Box<[(u32, u32); CPU_CONTEXTS]>,
    places: FxHashMap<u32, u32>,
    threads: Vec<ThreadContext>,
    /// How many of `threads` are in use.
    used: usize,
    /// Line of the last return of each function; 0 if it is not there.
    lines: FxHashMap<u32, u32>,
}

impl Default for Contexts {
    fn default() -> Self {
        Contexts {
            times: Times::default(),
            cpu: 0,
            slots: Box::new([(0, u32::MAX); CPU_CONTEXTS]),
            places: FxHashMap::default(),
            threads: Vec::new(),
            used: 0,
            lines: FxHashMap::default(),
        }
    }
}

impl Contexts {
    /// Starts the next block.
    pub(super) fn clear(&mut self) {
        (self.times, self.cpu) = (Times::default(), 0);
        self.slots.fill((0, u32::MAX));
        self.places.clear();
        self.used = 0;
        self.lines.clear();
    }

    /// The line that an exit is expected to have.
    #[inline]
    fn line(&self, function: u32, how: ExitKind) -> u32 {
        if how != ExitKind::Return || self.lines.is_empty() {
            return 0;
        }
        self.lines.get(&function).copied().unwrap_or(0)
    }

    /// An exit had another line than was expected.
    fn learn(&mut self, function: u32, exit: &Exit) {
        if exit.how == ExitKind::Return {
            self.lines.insert(function, exit.line);
        }
    }

    /// Makes `thread` the one of its processor's slot; its place.
    fn place(&mut self, slot: usize, thread: u32) -> usize {
        let (known, place) = self.slots[slot];
        if known == thread && place != u32::MAX {
            return place as usize;
        }
        let place = *self.places.entry(thread).or_insert(self.used as u32) as usize;
        if place == self.used {
            match self.threads.get_mut(place) {
                Some(context) => {
                    (context.depth, context.function) = (0, 0);
                    context.open.clear();
                }
                None => self.threads.push(ThreadContext::default()),
            }
            self.used += 1;
        }
        self.slots[slot] = (thread, place as u32);
        place
    }

    /// Appends the fields of a call.
    pub(super) fn put_call(&mut self, out: &mut Vec<u8>, item: &Call) {
        let flags_at = out.len();
        out.push(0);
        self.times.put(out, item.at);
        let mut flags = 0;
        if item.cpu.0 != self.cpu {
            flags |= call::CPU;
            self.cpu = item.cpu.0;
            put(out, u64::from(item.cpu.0));
        }
        let slot = item.cpu.0 as usize % CPU_CONTEXTS;
        let thread = item.thread.get();
        if self.slots[slot].0 != thread {
            flags |= call::THREAD;
            put(out, u64::from(thread));
        }
        let place = self.place(slot, thread);
        let context = &mut self.threads[place];
        let function = item.function.get();
        match &item.edge {
            CallEdge::Enter(values) | CallEdge::Hit(values) => {
                if function != context.function {
                    flags |= call::FUNCTION;
                    put_signed(out, i64::from(function) - i64::from(context.function));
                }
                if item.depth != context.depth {
                    flags |= call::DEPTH;
                    put(out, u64::from(item.depth));
                }
                if let Some(values) = values {
                    flags |= call::MORE;
                    value::put_values(out, values);
                }
                if matches!(item.edge, CallEdge::Enter(_)) {
                    flags |= call::ENTER;
                    context.enter(function, item.depth, item.at.0);
                } else {
                    flags |= call::HIT;
                    context.pass(function, item.depth);
                }
            }
            CallEdge::Exit(exit) => {
                flags |= call::EXIT;
                let known = context
                    .open
                    .last()
                    .is_some_and(|open| open.function == function && open.began == exit.began.0);
                if !known {
                    flags |= call::FUNCTION;
                    put_signed(out, i64::from(function) - i64::from(context.function));
                    let duration = item.at.0.wrapping_sub(exit.began.0);
                    put_signed(out, duration as i64);
                }
                if item.depth != context.depth.saturating_sub(1) {
                    flags |= call::DEPTH;
                    put(out, u64::from(item.depth));
                }
                let duration = item.at.0.wrapping_sub(exit.began.0);
                let self_ns = context.exit(function, item.depth, duration, known);
                if exit.self_ns != self_ns {
                    flags |= call::SELF;
                    put(out, exit.self_ns);
                }
                let plain = exit.how == ExitKind::Return;
                let expected = self.line(function, exit.how);
                let line =
                    (exit.line != expected).then(|| i64::from(exit.line) - i64::from(expected));
                if !plain || exit.result.is_some() || exit.whole.is_some() || line.is_some() {
                    flags |= call::MORE;
                    put_more(out, exit, line);
                }
                if line.is_some() {
                    self.learn(function, exit);
                }
            }
        }
        if item.stack != 0 {
            sections::put_number(out, call::STACK, item.stack.into());
        }
        sections::put(out, item.later.as_deref());
        out[flags_at] = flags;
    }

    /// Reads the fields of a call, and whether there is more in it than this version knows; none if it is of a later
    /// version.
    pub(super) fn call(&mut self, fields: &mut Fields<'_>) -> Result<Option<(Call, bool)>, Bad> {
        let flags = fields.byte()?;
        let at = self.times.read(fields)?;
        if flags & call::CPU != 0 {
            self.cpu = fields.get32()?;
        }
        let slot = self.cpu as usize % CPU_CONTEXTS;
        let thread = match flags & call::THREAD {
            0 => self.slots[slot].0,
            _ => fields.get32()?,
        };
        let id = ThreadId::new(thread).ok_or(Bad("a call has no thread"))?;
        let place = self.place(slot, thread);
        let context = &mut self.threads[place];
        let mut function = context.function;
        let (depth, edge);
        match flags & call::EDGE {
            edge_code @ (call::ENTER | call::HIT) => {
                if flags & call::FUNCTION != 0 {
                    function = moved(function, fields.signed()?)?;
                }
                depth = match flags & call::DEPTH {
                    0 => context.depth,
                    _ => fields.get32()?,
                };
                let values = match flags & call::MORE {
                    0 => None,
                    _ => Some(value::values(fields)?),
                };
                if edge_code == call::ENTER {
                    context.enter(function, depth, at.0);
                    edge = CallEdge::Enter(values);
                } else {
                    context.pass(function, depth);
                    edge = CallEdge::Hit(values);
                }
            }
            call::EXIT => {
                let known = flags & call::FUNCTION == 0;
                let began = if known {
                    let open = context.open.last();
                    let open = open.ok_or(Bad("an exit has no entry before it"))?;
                    function = open.function;
                    open.began
                } else {
                    function = moved(function, fields.signed()?)?;
                    at.0.wrapping_sub(fields.signed()? as u64)
                };
                depth = match flags & call::DEPTH {
                    0 => context.depth.saturating_sub(1),
                    _ => fields.get32()?,
                };
                let duration = at.0.wrapping_sub(began);
                let mut exit = Exit {
                    began: Timestamp(began),
                    self_ns: context.exit(function, depth, duration, known),
                    how: ExitKind::Return,
                    line: 0,
                    result: None,
                    whole: None,
                };
                if flags & call::SELF != 0 {
                    exit.self_ns = fields.get()?;
                }
                let mut other_line = None;
                if flags & call::MORE != 0 {
                    match more(fields, &mut exit)? {
                        Some(line) => other_line = line,
                        None => return Ok(None),
                    }
                }
                exit.line = self.line(function, exit.how);
                if let Some(difference) = other_line {
                    exit.line = moved(exit.line, difference)?;
                    self.learn(function, &exit);
                }
                edge = CallEdge::Exit(Box::new(exit));
            }
            _ => return Ok(None),
        }
        let mut stack = 0;
        let more = sections::read(fields, |kind, mut section| {
            let is_stack = kind == call::STACK;
            if is_stack {
                stack = section.get32()?;
            }
            Ok(is_stack)
        })?;
        let call = Call {
            at,
            thread: id,
            cpu: Cpu(self.cpu),
            function: FunctionId::new(function).ok_or(Bad("a call has no function"))?,
            stack,
            depth,
            edge,
            later: more.kept,
        };
        Ok(Some((call, more.unknown)))
    }

    /// Appends the fields of a throw.
    pub(super) fn put_throw(&mut self, out: &mut Vec<u8>, item: &Throw) {
        self.times.put(out, item.at);
        put(out, u64::from(item.cpu.0));
        put(out, u64::from(item.thread.get()));
        put(out, u64::from(item.kind.get()));
        put(out, u64::from(item.thrower.map_or(0, FrameId::get)));
    }

    /// Reads the fields of a throw.
    pub(super) fn throw(&mut self, fields: &mut Fields<'_>) -> Result<Option<Event>, Bad> {
        Ok(Some(Event::Throw(Throw {
            at: self.times.read(fields)?,
            cpu: Cpu(fields.get32()?),
            thread: fields.id()?,
            kind: fields.id()?,
            thrower: fields.optional()?,
        })))
    }

    /// Appends the fields of a count.
    pub(super) fn put_count(&mut self, out: &mut Vec<u8>, item: &CallCount) {
        self.times.put(out, item.to);
        put_signed(out, item.to.0.wrapping_sub(item.from.0) as i64);
        put(out, u64::from(item.function.get()));
        for count in [item.entries, item.exits, item.lost, item.left_out] {
            put(out, count);
        }
    }

    /// Reads the fields of a count.
    pub(super) fn count(&mut self, fields: &mut Fields<'_>) -> Result<Option<Event>, Bad> {
        let to = self.times.read(fields)?;
        Ok(Some(Event::CallCount(CallCount {
            from: Timestamp(to.0.wrapping_sub(fields.signed()? as u64)),
            to,
            function: fields.id()?,
            entries: fields.get()?,
            exits: fields.get()?,
            lost: fields.get()?,
            left_out: fields.get()?,
        })))
    }

    /// Appends the fields of a gap.
    pub(super) fn put_gap(&mut self, out: &mut Vec<u8>, item: &Gap) {
        self.times.put(out, item.to);
        put_signed(out, item.to.0.wrapping_sub(item.from.0) as i64);
        put(out, u64::from(item.function.map_or(0, FunctionId::get)));
        put(out, u64::from(item.process.map_or(0, ProcessId::get)));
        put(out, item.reason as u64);
    }

    /// Reads the fields of a gap; none if its reason is of a later version.
    pub(super) fn gap(&mut self, fields: &mut Fields<'_>) -> Result<Option<Event>, Bad> {
        let to = self.times.read(fields)?;
        let from = Timestamp(to.0.wrapping_sub(fields.signed()? as u64));
        let (function, process) = (fields.optional()?, fields.optional()?);
        let reason = match fields.get()? {
            1 => GapReason::NotYetAttached,
            2 => GapReason::NoReturns,
            3 => GapReason::DutyCycle,
            4 => GapReason::Detached,
            5 => GapReason::Suspended,
            6 => GapReason::MissingData,
            7 => GapReason::CutOff,
            _ => return Ok(None),
        };
        Ok(Some(Event::Gap(Gap {
            from,
            to,
            function,
            process,
            reason,
        })))
    }
}

impl ThreadContext {
    fn enter(&mut self, function: u32, depth: u32, began: u64) {
        if self.open.len() >= MAX_OPEN {
            self.open.clear();
        }
        self.open.push(Open {
            function,
            began,
            children_ns: 0,
        });
        (self.depth, self.function) = (depth.saturating_add(1), function);
    }

    fn pass(&mut self, function: u32, depth: u32) {
        (self.depth, self.function) = (depth, function);
    }

    /// Takes a call off, if its entry is `known` and on top; the time it should have spent itself.
    fn exit(&mut self, function: u32, depth: u32, duration: u64, known: bool) -> u64 {
        (self.depth, self.function) = (depth, function);
        if !known {
            return duration;
        }
        let left = self.open.pop();
        if let Some(caller) = self.open.last_mut() {
            caller.children_ns = caller.children_ns.saturating_add(duration);
        }
        duration.saturating_sub(left.map_or(0, |open| open.children_ns))
    }
}

/// How an exit came to be, unless it is a plain return: one byte, then what its bits say.
fn put_more(out: &mut Vec<u8>, exit: &Exit, line: Option<i64>) {
    let (how, kind) = match exit.how {
        ExitKind::Return => (call::RETURN, None),
        ExitKind::Exception(kind) => (call::EXCEPTION, kind),
        ExitKind::Terminated => (call::TERMINATED, None),
        ExitKind::Inferred => (call::INFERRED, None),
        ExitKind::Unwatched => (call::UNWATCHED, None),
    };
    let result = if exit.result.is_some() {
        call::RESULT
    } else {
        0
    };
    let whole = if exit.whole.is_some() { call::WHOLE } else { 0 };
    let other_line = if line.is_some() { call::LINE } else { 0 };
    out.push(how | result | whole | other_line);
    if how == call::EXCEPTION {
        put(out, u64::from(kind.map_or(0, StringId::get)));
    }
    if let Some(result) = &exit.result {
        value::put_value(out, result);
    }
    if let Some(values) = &exit.whole {
        value::put_values(out, values);
    }
    if let Some(line) = line {
        put_signed(out, line);
    }
}

/// Reads what [`put_more`] wrote, the line apart; none if it is of a later version.
fn more(fields: &mut Fields<'_>, exit: &mut Exit) -> Result<Option<Option<i64>>, Bad> {
    let byte = fields.byte()?;
    exit.how = match byte & call::HOW {
        call::RETURN => ExitKind::Return,
        call::EXCEPTION => ExitKind::Exception(fields.optional()?),
        call::TERMINATED => ExitKind::Terminated,
        call::INFERRED => ExitKind::Inferred,
        call::UNWATCHED => ExitKind::Unwatched,
        _ => return Ok(None),
    };
    if byte & call::RESULT != 0 {
        exit.result = Some(value::value(fields)?);
    }
    if byte & call::WHOLE != 0 {
        exit.whole = Some(value::values(fields)?);
    }
    Ok(Some(match byte & call::LINE {
        0 => None,
        _ => Some(fields.signed()?),
    }))
}

/// `before` and a difference -> an id, or a line.
pub(super) fn moved(before: u32, difference: i64) -> Result<u32, Bad> {
    let moved = i64::from(before).checked_add(difference);
    moved
        .and_then(|id| u32::try_from(id).ok())
        .ok_or(Bad("an id or a line is out of range"))
}
