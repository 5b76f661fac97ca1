//! Events of a recording -> data messages of Bytefrog, with stacks that balance.
//!
//! Input: events with the ids of their [`Tables`], ordered by time; output: whole messages. Times
//! become milliseconds since tracing began. Whatever comes, sequence ids have no gap, what is entered
//! and left nests strictly on each thread, and everything is named before its first use
//! (docs/formats/bytefrog.md).
//!
//! What does not belong here: sockets, buffers, control messages.

mod calls;
mod markers;
mod methods;
mod names;
mod samples;
mod stack;
mod stream;
mod thread_events;
mod threads;
mod waiting;

use crate::derive::CallChange;
use markers::{Containers, Missing, key};
use methods::Methods;
pub use names::NameStyle;
use profiler_model::*;
use samples::Samples;
use stream::Stream;
use threads::Threads;
use waiting::Waiting;

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
    /// Exits (among `exits`) that the recording had inferred.
    pub exits_recorded_inferred: u64,
    /// Exits of calls that were not open.
    pub exits_left_out: u64,
    /// Exits that another thread told than the one that entered the call: told on the latter.
    pub exits_moved: u64,
    /// Entries beyond the limits of depth.
    pub entries_left_out: u64,
    /// Exceptions thrown outside of all open methods.
    pub throws_left_out: u64,
    /// Events of threads for which there was no number.
    pub events_without_thread: u64,
    /// Entries, exits and passes of traced functions that are not wanted.
    pub calls_unwanted: u64,
    /// Calls whose records the kernel had no room for, by its own count.
    pub calls_lost: u64,
    /// Calls that limits left out, by the kernel's own count.
    pub calls_limited: u64,
    /// Samples that calls were inferred from.
    pub samples: u64,
    /// Samples without a stack of the user's.
    pub samples_without_stack: u64,
    /// Events that still waited for names when new tables began.
    pub events_forgotten: u64,
}

impl Counts {
    /// Exits that nobody saw.
    pub fn all_inferred(&self) -> u64 {
        self.exits_inferred + self.exits_recorded_inferred
    }
}

/// Makes messages of events.
pub struct Translator {
    stream: Stream,
    threads: Threads,
    methods: Methods,
    /// What is needed to infer calls; none if traced ones are told.
    samples: Option<Box<Samples>>,
    /// What waits for names.
    waiting: Waiting,
    /// Used again for each sample.
    changes: Vec<CallChange<u32>>,
    missing: Missing,
    containers: Containers,
    /// Open calls of all threads.
    open: usize,
    /// Of calls that began earlier, entries may not have come.
    known_since: Timestamp,
    started: bool,
    has_clock: bool,
    told_threads: bool,
    counts: Counts,
}

impl Translator {
    /// A translator for what happens from `began` on.
    pub fn new(options: TranslateOptions, began: Timestamp) -> Translator {
        Translator {
            stream: Stream::new(began),
            threads: Threads::default(),
            methods: Methods::new(options.names, options.filter),
            samples: options.samples.then(Box::default),
            waiting: Waiting::default(),
            changes: Vec::new(),
            missing: Missing::default(),
            containers: Containers::default(),
            open: 0,
            known_since: began,
            started: false,
            has_clock: false,
            told_threads: false,
            counts: Counts::default(),
        }
    }

    /// Takes an event, whose ids are those of `tables`; appends whole messages only.
    #[inline]
    pub fn event(&mut self, event: &Event, tables: &Tables, out: &mut Vec<u8>) {
        if !self.started || self.stream.owes_marker {
            let clock = match event {
                Event::Clock(clock) => Some(clock),
                _ => None,
            };
            self.open_stream(event.at(), clock, tables, out);
        }
        if self.samples.is_some() && matches!(event, Event::Call(_) | Event::Throw(_)) {
            return;
        }
        if self.waiting.is_empty() && self.is_ready(event, tables) {
            self.take(event, tables, out);
        } else {
            self.waiting.push(event.clone());
            if self.waiting.is_overdue() {
                self.release(tables, false, out);
            }
        }
    }

    /// Whether there are names, or answers in their place, of what an event needs named.
    #[inline]
    fn is_ready(&self, event: &Event, tables: &Tables) -> bool {
        match (event, &self.samples) {
            (Event::Sample(sample), Some(samples)) => {
                let mut user = sample.user.into_iter();
                user.all(|user| samples.is_named(user, tables))
            }
            (Event::Throw(throw), None) => {
                let mut thrower = throw.thrower.into_iter();
                thrower.all(|frame| tables.symbol(frame).is_some())
            }
            _ => true,
        }
    }

    /// Takes an event whose turn it is.
    #[inline]
    fn take(&mut self, event: &Event, tables: &Tables, out: &mut Vec<u8>) {
        match event {
            Event::Call(call) => self.call(call, tables, out),
            _ => self.other(event, tables, out),
        }
    }

    fn other(&mut self, event: &Event, tables: &Tables, out: &mut Vec<u8>) {
        match event {
            // What waits runs nothing: calls are inferred from what runs.
            Event::Sample(sample) if self.samples.is_some() && sample.wait.is_none() => {
                self.sample(sample, tables, out);
            }
            Event::Throw(throw) => self.throw(throw, tables, out),
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
                let function = gap
                    .function
                    .and_then(|id| self.methods.signature(id, tables));
                self.missing.gap(gap, function.as_deref(), tables);
                self.report(gap.to, out);
            }
            Event::CallCount(count) => {
                let Counts {
                    calls_lost,
                    calls_limited,
                    ..
                } = &mut self.counts;
                *calls_lost = calls_lost.saturating_add(count.lost);
                *calls_limited = calls_limited.saturating_add(count.left_out);
            }
            Event::Sample(_) | Event::Call(_) | Event::Waits(_) => {}
        }
    }

    /// Does what time and new names bring: to be called after each batch, and now and then. `now` is
    /// not before the last event.
    pub fn poll(&mut self, now: Timestamp, tables: &Tables, out: &mut Vec<u8>) {
        if self.stream.owes_marker {
            return;
        }
        self.waiting.advance(now);
        self.release(tables, false, out);
        self.describe(now, tables, out);
        self.report(now, out);
    }

    /// Tells names of containers that have become known.
    fn describe(&mut self, now: Timestamp, tables: &Tables, out: &mut Vec<u8>) {
        let described = self.containers.described(tables);
        for text in &described {
            self.stream.marker(now, key::DESCRIBED, text, out);
        }
        if !described.is_empty() {
            self.threads.describe(now, tables, &mut self.stream, out);
        }
    }

    /// Releases all that waits for names, whether or not they have come.
    pub fn flush(&mut self, tables: &Tables, out: &mut Vec<u8>) {
        if let Some(at) = self.waiting.since() {
            self.open_stream(at, None, tables, out);
        }
        self.release(tables, true, out);
    }

    fn release(&mut self, tables: &Tables, all: bool, out: &mut Vec<u8>) {
        // One at a time: what it is ready for is known by what came before it.
        let mut waiting = std::mem::take(&mut self.waiting);
        while let Some(event) = waiting.next(|event| all || self.is_ready(event, tables)) {
            self.take(&event, tables, out);
        }
        self.waiting = waiting;
    }

    /// Appends a marker.
    pub fn marker(&mut self, at: Timestamp, key: &str, value: &str, out: &mut Vec<u8>) {
        if self.stream.owes_marker {
            self.known_since = at;
        }
        self.stream.marker(at, key, value, out);
    }

    /// The sequence id that the next message will have.
    pub fn next_sequence(&self) -> u32 {
        self.stream.next()
    }

    /// As if so much had been sent: for tests of what happens where ids wrap.
    #[doc(hidden)]
    pub fn skip_to(&mut self, sequence: u32) {
        self.stream.skip_to(sequence);
    }

    /// Forgets all open calls, because events are missing from here on; what still waits for names should have
    /// been released by [`Translator::flush`]. Returns the sequence id to
    /// announce in a data break: one more than the next message's, which has to be a marker (made
    /// with [`Translator::marker`], or by itself before the next event). Again without a message in
    /// between it returns the same id.
    pub fn break_data(&mut self) -> u32 {
        for slot in self.threads.slots() {
            slot.stack.clear();
        }
        if let Some(samples) = &mut self.samples {
            samples.break_data();
        }
        self.open = 0;
        self.stream.owes_marker = true;
        self.stream.next().wrapping_add(1)
    }

    /// Ids mean something else from here on: another life of the tables has begun. Methods, threads
    /// and exceptions keep their numbers by what they are. What still waits for names is lost unless
    /// [`Translator::flush`] was called with the old tables.
    pub fn new_tables(&mut self) {
        if let Some(samples) = &mut self.samples {
            samples.new_tables();
        }
        self.counts.events_forgotten += self.waiting.clear();
        self.methods.new_tables();
        self.threads.new_tables();
    }

    /// Ends the run with a marker; open calls stay open.
    pub fn finish(&mut self, at: Timestamp, tables: &Tables, out: &mut Vec<u8>) {
        self.open_stream(at, None, tables, out);
        self.flush(tables, out);
        self.missing.tell(at, &mut self.stream, out);
        let mut text = format!("entries: {}, exits: {}", self.stream.entries, self.ends());
        for (count, what) in [
            (self.counts.calls_lost, "calls lost for want of room"),
            (
                self.counts.calls_limited,
                "calls left out because of limits",
            ),
            (self.counts.entries_left_out, "entries too deep"),
            (self.counts.all_inferred(), "exits inferred"),
            (
                self.counts.exits_left_out,
                "exits of calls that were not open",
            ),
            (
                self.counts.events_without_thread,
                "events of threads without a number",
            ),
        ] {
            if count > 0 {
                text.push_str(&format!(", {what}: {count}"));
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
    fn open_stream(
        &mut self,
        at: Timestamp,
        clock: Option<&Clock>,
        tables: &Tables,
        out: &mut Vec<u8>,
    ) {
        if self.stream.owes_marker {
            self.marker(at, key::RESUMED, "", out);
        }
        if !self.started {
            self.started = true;
            self.has_clock = clock.is_some();
            let began = self.stream.began();
            let date = clock.map(|clock| markers::date(began, clock));
            let text = markers::started(&tables.session, date, self.samples.is_some());
            self.stream.marker(began, key::STARTED, &text, out);
        }
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
}
