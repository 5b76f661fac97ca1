//! Calls as entries and exits that nest strictly on each thread; a goroutine is a thread of its own.
//!
//! Traced calls and what samples show -> messages, by way of the thread's open calls. An exit closes
//! its own call, after those above it; the exit of a call that is not open is left out.

use super::Translator;
use super::stack::{Closes, OpenCall};
use crate::derive::CallChange;
use profiler_model::*;
use profiler_wire::bytefrog::UNKNOWN_LINE;

/// Most open calls of all threads together; what is beyond is left out.
const MAX_OPEN: usize = 1 << 22;

/// The name of exceptions of an unknown type.
const UNKNOWN_EXCEPTION: &str = "unknown exception";

impl Translator {
    #[inline]
    pub(super) fn call(&mut self, call: &Call, tables: &Tables, out: &mut Vec<u8>) {
        let owner = StackOwner::of(call, tables);
        let Some(thread) = self.owner(call.at, owner, tables, out) else {
            return;
        };
        let method = self
            .methods
            .function(call.function, tables, &mut self.stream, out);
        let Some(method) = method else {
            self.counts.calls_unwanted += 1;
            return;
        };
        match &call.edge {
            CallEdge::Enter(_) => self.enter(call.at, thread, method, out),
            CallEdge::Exit(exit) => {
                let line = line_number(exit.line);
                match &exit.whole {
                    Some(_) => {
                        self.stream.entry(exit.began, method, thread, out);
                        self.left(call.at, thread, method, (exit.how, line), tables, out);
                    }
                    None => {
                        let ended = OpenCall {
                            began_ns: exit.began.0,
                            method,
                        };
                        if let Some(on) = self.close_above(call.at, thread, ended, out) {
                            self.left(call.at, on, method, (exit.how, line), tables, out);
                        }
                    }
                }
            }
            CallEdge::Hit(_) => {
                self.stream.entry(call.at, method, thread, out);
                self.stream.exit(call.at, method, UNKNOWN_LINE, thread, out);
            }
        }
    }

    #[inline]
    fn enter(&mut self, at: Timestamp, thread: u16, method: u32, out: &mut Vec<u8>) {
        let has_room = self.open < MAX_OPEN;
        let Some(slot) = self.threads.slot(thread) else {
            return;
        };
        let call = OpenCall {
            began_ns: at.0,
            method,
        };
        if slot.stack.push(call, has_room) {
            self.open += 1;
            self.stream.entry(at, method, thread, out);
        } else {
            self.counts.entries_left_out += 1;
        }
    }

    /// Closes a call without telling its own exit, and tells the exits of those above it. The thread
    /// on which it was open; none if it was not.
    #[inline]
    fn close_above(
        &mut self,
        at: Timestamp,
        thread: u16,
        ended: OpenCall,
        out: &mut Vec<u8>,
    ) -> Option<u16> {
        match self.threads.slot(thread)?.stack.find(ended) {
            Closes::Top => {
                self.close_from(at, thread, None, out);
                Some(thread)
            }
            Closes::From(index) => {
                self.close_from(at, thread, Some(index), out);
                Some(thread)
            }
            Closes::LeftOut => None,
            Closes::Nothing => self.close_moved(at, thread, ended, out),
        }
    }

    /// The same for the exit of what moves between threads, a goroutine of a recording that does not say whose stacks calls
    /// are on: its call is open on the thread that entered it.
    #[cold]
    fn close_moved(
        &mut self,
        at: Timestamp,
        thread: u16,
        ended: OpenCall,
        out: &mut Vec<u8>,
    ) -> Option<u16> {
        let moved = match ended.began_ns >= self.known_since.0 {
            true => self.threads.find_call(thread, ended),
            false => None,
        };
        let Some((on, index)) = moved else {
            self.counts.exits_left_out += 1;
            return None;
        };
        self.counts.exits_moved += 1;
        self.close_from(at, on, Some(index), out);
        Some(on)
    }

    /// Tells the exits of all calls above the one at `index`, and forgets that one; without an index
    /// it is the innermost.
    #[inline]
    fn close_from(&mut self, at: Timestamp, thread: u16, index: Option<usize>, out: &mut Vec<u8>) {
        let Some(slot) = self.threads.slot(thread) else {
            return;
        };
        while let Some(call) = slot.stack.pop() {
            self.open -= 1;
            if index.is_none_or(|index| slot.stack.len() <= index) {
                return;
            }
            self.counts.exits_inferred += 1;
            self.stream.exit(at, call.method, UNKNOWN_LINE, thread, out);
        }
    }

    /// Tells the exits of all open calls of a thread.
    pub(super) fn close_all(&mut self, at: Timestamp, thread: u16, out: &mut Vec<u8>) {
        if let Some(samples) = &mut self.samples {
            samples.end(thread, at);
        }
        let Some(slot) = self.threads.slot(thread) else {
            return;
        };
        while let Some(call) = slot.stack.pop() {
            self.open -= 1;
            self.counts.exits_inferred += 1;
            self.stream.exit(at, call.method, UNKNOWN_LINE, thread, out);
        }
    }

    /// Tells how a method was left.
    #[inline]
    fn left(
        &mut self,
        at: Timestamp,
        thread: u16,
        method: u32,
        (how, line): (ExitKind, u16),
        tables: &Tables,
        out: &mut Vec<u8>,
    ) {
        match how {
            ExitKind::Exception(kind) => {
                let exception = self.exception(thread, kind, tables, out);
                self.stream.bubble(at, (method, exception), thread, out);
            }
            ExitKind::Return | ExitKind::Terminated | ExitKind::Inferred | ExitKind::Unwatched => {
                self.counts.exits_recorded_inferred += u64::from(how == ExitKind::Inferred);
                self.stream.exit(at, method, line, thread, out);
            }
        }
    }

    /// The number of an exception; of one of unknown type that of the thread's last.
    fn exception(
        &mut self,
        thread: u16,
        kind: Option<StringId>,
        tables: &Tables,
        out: &mut Vec<u8>,
    ) -> u32 {
        let thrown = self.threads.slot(thread).map_or(0, |slot| slot.thrown);
        match kind {
            Some(kind) => self.methods.exception(kind, tables, &mut self.stream, out),
            None if thrown != 0 => thrown,
            None => self
                .methods
                .exception_named(UNKNOWN_EXCEPTION, &mut self.stream, out),
        }
    }

    pub(super) fn throw(&mut self, throw: &Throw, tables: &Tables, out: &mut Vec<u8>) {
        let Some(thread) = self.thread(throw.at, throw.thread, tables, out) else {
            return;
        };
        let exception = self
            .methods
            .exception(throw.kind, tables, &mut self.stream, out);
        let Some(slot) = self.threads.slot(thread) else {
            return;
        };
        slot.thrown = exception;
        let Some(OpenCall { method, .. }) = slot.stack.innermost() else {
            self.counts.throws_left_out += 1;
            return;
        };
        let thrown_in = throw.thrower.and_then(|frame| {
            let mut lines = tables.lines(frame).iter().rev();
            lines.find(|line| self.methods.is_of(line.function, method, tables))
        });
        let line = thrown_in.map_or(UNKNOWN_LINE, |line| line_number(line.line));
        self.stream
            .exception(throw.at, (method, exception), line, thread, out);
    }

    /// Takes a sample whose turn it is.
    pub(super) fn sample(&mut self, sample: &Sample, tables: &Tables, out: &mut Vec<u8>) {
        let (Some(user), Some(samples)) = (sample.user, &mut self.samples) else {
            self.counts.samples_without_stack += 1;
            return;
        };
        self.counts.samples += 1;
        let path = samples.path(user, tables, &mut self.methods, &mut self.stream, out);
        let Some(thread) = self.thread(sample.at, sample.thread, tables, out) else {
            return;
        };
        let mut changes = std::mem::take(&mut self.changes);
        if let Some(samples) = &mut self.samples {
            samples.differ(thread, sample.at, &path, &mut changes);
        }
        for change in changes.drain(..) {
            match change {
                CallChange::Entered { function, at } => self.enter(at, thread, function, out),
                CallChange::Left {
                    function,
                    began,
                    at,
                } => {
                    let ended = OpenCall {
                        began_ns: began.0,
                        method: function,
                    };
                    if let Some(on) = self.close_above(at, thread, ended, out) {
                        self.stream.exit(at, function, UNKNOWN_LINE, on, out);
                    }
                }
            }
        }
        self.changes = changes;
    }
}

/// A line as messages have it.
fn line_number(line: u32) -> u16 {
    match u16::try_from(line) {
        Ok(0) | Err(_) => UNKNOWN_LINE,
        Ok(line) => line,
    }
}
