//! Events of a recording -> data messages of Bytefrog, with stacks that balance.
//!
//! Input: events with the ids of their [`Tables`], ordered by time; output: whole messages. Times
//! become milliseconds since tracing began. Whatever comes, sequence ids have no gap, what is entered
//! and left nests strictly on each thread, and everything is named before its first use
//! (docs/formats/bytefrog.md).
//!
//! What does not belong here: sockets, buffers, control messages.

mod markers;
mod methods;
mod names;
mod stack;
mod stream;
mod threads;

use crate::model::*;
use crate::wire::bytefrog::UNKNOWN_LINE;
use markers::{Containers, Missing, key};
use methods::Methods;
pub use names::NameStyle;
use stack::{Closes, OpenCall};
use stream::Stream;
use threads::{Found, Threads};

/// Most open calls of all threads together; what is beyond is left out.
const MAX_OPEN: usize = 1 << 22;

/// The name of exceptions of an unknown type.
const UNKNOWN_EXCEPTION: &str = "unknown exception";

/// Whether a receiver wants a function, by its path ([`crate::derive::ClassPath::full`]).
pub type Wanted = Box<dyn Fn(&str) -> bool + Send>;

/// How a recording is translated.
#[derive(Default)]
pub struct TranslateOptions {
    /// How methods are named.
    pub names: NameStyle,
    /// Calls are inferred from stack samples; traced calls are left out.
    pub samples: bool,
    /// What the receiver wants; none: everything.
    pub filter: Option<Wanted>,
}

/// What a translator has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Messages of all kinds.
    pub messages: u64,
    /// Method entries.
    pub entries: u64,
    /// Method exits.
    pub exits: u64,
    /// Methods left by an exception.
    pub bubbles: u64,
    /// Exceptions thrown.
    pub exceptions: u64,
    /// Markers.
    pub markers: u64,
    /// Methods named.
    pub methods: u64,
    /// Types of exceptions named.
    pub exception_types: u64,
    /// Numbers of threads in use.
    pub threads: u64,
    /// How often a thread's number was given to another thread.
    pub threads_reused: u64,
    /// Exits (among `exits`) that no event told: of calls above one that ended, or of a thread that
    /// ended.
    pub exits_inferred: u64,
    /// Exits of calls that were not open.
    pub exits_left_out: u64,
    /// Entries beyond the limits of depth.
    pub entries_left_out: u64,
    /// Exceptions thrown outside of all open methods.
    pub throws_left_out: u64,
    /// Events of threads for which there was no number.
    pub events_without_thread: u64,
    /// Calls of functions that are not wanted.
    pub calls_unwanted: u64,
}

/// Makes messages of events.
pub struct Translator {
    options: Kept,
    stream: Stream,
    threads: Threads,
    methods: Methods,
    missing: Missing,
    containers: Containers,
    open: usize,
    started: bool,
    has_clock: bool,
    told_threads: bool,
    counted: Counted,
    counts: Counts,
}

/// Options that are of use after the start.
struct Kept {
    samples: bool,
}

/// Sums of the kernel's own counts.
#[derive(Default)]
struct Counted {
    lost: u64,
    left_out: u64,
}

impl Translator {
    /// A translator for what happens from `began` on.
    pub fn new(options: TranslateOptions, began: Timestamp) -> Translator {
        Translator {
            stream: Stream::new(began),
            threads: Threads::default(),
            methods: Methods::new(options.names, options.filter),
            options: Kept {
                samples: options.samples,
            },
            missing: Missing::default(),
            containers: Containers::default(),
            open: 0,
            started: false,
            has_clock: false,
            told_threads: false,
            counted: Counted::default(),
            counts: Counts::default(),
        }
    }

    /// Takes an event, whose ids are those of `tables`; appends whole messages only.
    #[inline]
    pub fn event(&mut self, event: &Event, tables: &Tables, out: &mut Vec<u8>) {
        if !self.started || self.stream.owes_marker {
            self.open_stream(event, tables, out);
        }
        match event {
            Event::Call(call) if !self.options.samples => self.call(call, tables, out),
            Event::Call(_) => {}
            _ => self.other(event, tables, out),
        }
    }

    fn other(&mut self, event: &Event, tables: &Tables, out: &mut Vec<u8>) {
        match event {
            Event::Throw(throw) if !self.options.samples => self.throw(throw, tables, out),
            Event::Process(change) => self.process(change, tables, out),
            Event::Mark(mark) => {
                self.stream
                    .marker(mark.at, key::MARK, tables.string(mark.text), out);
            }
            Event::Clock(clock) => self.clock(clock, out),
            Event::Lost(lost) => {
                self.missing.lost(lost);
                self.report(lost.to, out);
            }
            Event::Gap(gap) => {
                self.missing.gap(gap, tables);
                self.report(gap.to, out);
            }
            Event::CallCount(count) => {
                let Counted { lost, left_out } = &mut self.counted;
                *lost = lost.saturating_add(count.lost);
                *left_out = left_out.saturating_add(count.left_out);
            }
            Event::Sample(_) | Event::Call(_) | Event::Throw(_) => {}
        }
    }

    /// Does what time brings: `now` is not before the last event.
    pub fn poll(&mut self, now: Timestamp, _tables: &Tables, out: &mut Vec<u8>) {
        if !self.stream.owes_marker {
            self.report(now, out);
        }
    }

    /// Appends a marker.
    pub fn marker(&mut self, at: Timestamp, key: &str, value: &str, out: &mut Vec<u8>) {
        self.stream.marker(at, key, value, out);
    }

    /// Forgets all open calls, because events are missing from here on. Returns the sequence id to
    /// announce in a data break: one more than the next message's, which has to be a marker (made
    /// with [`Translator::marker`], or by itself before the next event). Again without a message in
    /// between it returns the same id.
    pub fn break_data(&mut self) -> u32 {
        for slot in self.threads.slots() {
            slot.stack.clear();
        }
        self.open = 0;
        self.stream.owes_marker = true;
        self.stream.next().wrapping_add(1)
    }

    /// Ids mean something else from here on: another life of the tables has begun. Methods, threads
    /// and exceptions keep their numbers by what they are.
    pub fn new_tables(&mut self) {
        self.methods.new_tables();
        self.threads.new_tables();
    }

    /// Ends the run with a marker; open calls stay open.
    pub fn finish(&mut self, at: Timestamp, _tables: &Tables, out: &mut Vec<u8>) {
        if self.stream.owes_marker {
            self.stream.marker(at, key::RESUMED, "", out);
        }
        self.missing.tell(at, &mut self.stream, out);
        let mut text = format!("{} entries, {} exits", self.stream.entries, self.ends());
        for (count, what) in [
            (self.counted.lost, "calls lost for want of room"),
            (self.counted.left_out, "calls left out because of limits"),
            (self.counts.entries_left_out, "entries too deep"),
            (
                self.counts.events_without_thread,
                "events of threads without a number",
            ),
        ] {
            if count > 0 {
                text.push_str(&format!(", {count} {what}"));
            }
        }
        self.stream.marker(at, key::ENDED, &text, out);
    }

    /// What has been done so far.
    pub fn counts(&self) -> Counts {
        Counts {
            messages: self.stream.messages,
            entries: self.stream.entries,
            exits: self.stream.exits,
            bubbles: self.stream.bubbles,
            exceptions: self.stream.exceptions,
            markers: self.stream.markers,
            methods: self.methods.told(),
            exception_types: self.methods.told_exceptions(),
            threads: self.threads.len() as u64,
            threads_reused: self.threads.reused,
            ..self.counts
        }
    }

    fn ends(&self) -> u64 {
        self.stream.exits + self.stream.bubbles
    }

    /// Tells what is recorded, or that recording goes on behind a break.
    #[cold]
    fn open_stream(&mut self, event: &Event, tables: &Tables, out: &mut Vec<u8>) {
        if self.started {
            self.stream.marker(event.at(), key::RESUMED, "", out);
            return;
        }
        self.started = true;
        let began = self.stream.began();
        let date = match event {
            Event::Clock(clock) => {
                self.has_clock = true;
                Some(markers::date(began, clock))
            }
            _ => None,
        };
        let text = markers::started(&tables.session, date);
        self.stream.marker(began, key::STARTED, &text, out);
    }

    /// Tells the date at which tracing began, once.
    fn clock(&mut self, clock: &Clock, out: &mut Vec<u8>) {
        if !self.has_clock {
            self.has_clock = true;
            let began = self.stream.began();
            let text = markers::date(began, clock);
            self.stream.marker(began, key::CLOCK, &text, out);
        }
    }

    fn report(&mut self, now: Timestamp, out: &mut Vec<u8>) {
        if self.missing.is_due(now) {
            self.missing.tell(now, &mut self.stream, out);
        }
    }

    #[inline]
    fn call(&mut self, call: &Call, tables: &Tables, out: &mut Vec<u8>) {
        let Some(thread) = self.thread(call.at, call.thread, tables, out) else {
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
                        if self.close_above(call.at, thread, ended, out) {
                            self.left(call.at, thread, method, (exit.how, line), tables, out);
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

    /// The number of a thread, which has a name from now on; none if there is no number for it.
    #[inline]
    fn thread(
        &mut self,
        at: Timestamp,
        id: ThreadId,
        tables: &Tables,
        out: &mut Vec<u8>,
    ) -> Option<u16> {
        match self.threads.find(id, tables) {
            Found::Known(number) => Some(number),
            found => self.new_thread(found, at, id, tables, out),
        }
    }

    #[cold]
    fn new_thread(
        &mut self,
        found: Found,
        at: Timestamp,
        id: ThreadId,
        tables: &Tables,
        out: &mut Vec<u8>,
    ) -> Option<u16> {
        let found = match found {
            Found::ToClose(number) => {
                self.close_all(at, number, out);
                self.threads.find(id, tables)
            }
            found => found,
        };
        match found {
            Found::Known(number) => Some(number),
            Found::ToName(number) => {
                self.threads.tell(number, at, &mut self.stream, out);
                self.see_container(at, id, tables, out);
                Some(number)
            }
            Found::ToNameAll(number) => {
                self.threads.tell_all(number, at, &mut self.stream, out);
                self.see_container(at, id, tables, out);
                Some(number)
            }
            Found::None => {
                self.counts.events_without_thread += 1;
                if !self.told_threads {
                    self.told_threads = true;
                    let text =
                        "all 65536 numbers of threads are in use; further threads are not shown";
                    self.stream.marker(at, key::THREADS, text, out);
                }
                None
            }
            Found::ToClose(_) | Found::Undefined => None,
        }
    }

    fn see_container(&mut self, at: Timestamp, id: ThreadId, tables: &Tables, out: &mut Vec<u8>) {
        let Some(thread) = tables.thread(id) else {
            return;
        };
        if let Some(process) = tables.process(thread.process)
            && let Some(container) = self.containers.see(process, tables)
        {
            let text = format!(
                "{container}: {}",
                markers::process_name(thread.process, tables)
            );
            self.stream.marker(at, key::CONTAINER, &text, out);
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

    /// Closes a call without telling its own exit, and tells the exits of those above it; false if it
    /// is not open.
    #[inline]
    fn close_above(
        &mut self,
        at: Timestamp,
        thread: u16,
        ended: OpenCall,
        out: &mut Vec<u8>,
    ) -> bool {
        let Some(slot) = self.threads.slot(thread) else {
            return false;
        };
        match slot.stack.find(ended) {
            Closes::Top => {
                slot.stack.pop();
                self.open -= 1;
                true
            }
            Closes::From(index) => {
                while slot.stack.len() > index + 1 {
                    let Some(above) = slot.stack.pop() else {
                        break;
                    };
                    self.open -= 1;
                    self.counts.exits_inferred += 1;
                    self.stream
                        .exit(at, above.method, UNKNOWN_LINE, thread, out);
                }
                slot.stack.pop();
                self.open -= 1;
                true
            }
            Closes::LeftOut => false,
            Closes::Nothing => {
                self.counts.exits_left_out += 1;
                false
            }
        }
    }

    /// Tells the exits of all open calls of a thread.
    fn close_all(&mut self, at: Timestamp, thread: u16, out: &mut Vec<u8>) {
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
            ExitKind::Return | ExitKind::Terminated | ExitKind::Inferred => {
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

    fn throw(&mut self, throw: &Throw, tables: &Tables, out: &mut Vec<u8>) {
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
            let lines = tables.lines(frame).iter();
            lines
                .rev()
                .find(|line| self.methods.known_function(line.function) == Some(method))
        });
        let line = thrown_in.map_or(UNKNOWN_LINE, |line| line_number(line.line));
        self.stream
            .exception(throw.at, (method, exception), line, thread, out);
    }

    fn process(&mut self, event: &ProcessEvent, tables: &Tables, out: &mut Vec<u8>) {
        match event.change {
            ProcessChange::Started => {
                self.see_container(event.at, event.thread, tables, out);
            }
            ProcessChange::Executed(name) => {
                let text = match tables.thread(event.thread) {
                    Some(thread) => format!(
                        "{} runs {}",
                        markers::process_name(thread.process, tables),
                        tables.string(name)
                    ),
                    None => tables.string(name).to_owned(),
                };
                self.stream.marker(event.at, key::EXECUTED, &text, out);
                self.see_container(event.at, event.thread, tables, out);
            }
            ProcessChange::Renamed(name) => {
                if let Some(thread) = self.threads.known(event.thread, tables)
                    && self.threads.rename(thread, tables.string(name))
                {
                    self.threads.tell(thread, event.at, &mut self.stream, out);
                }
            }
            ProcessChange::Exited => {
                if let Some(thread) = self.threads.known(event.thread, tables) {
                    self.close_all(event.at, thread, out);
                    self.threads.end(thread);
                }
            }
        }
    }
}

/// A line as messages have it.
fn line_number(line: u32) -> u16 {
    match u16::try_from(line) {
        Ok(0) | Err(_) => UNKNOWN_LINE,
        Ok(line) => line,
    }
}
