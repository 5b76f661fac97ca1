//! The present epoch: what was announced in it, and the events of the next batch.
//!
//! Definitions and events of all parts of the resolver -> [`Batch`]es, definitions first. An epoch ends
//! when it is full or old, or when somebody wants a new one. Times are those of the events.
//!
//! What does not belong here: which definitions are announced already (`intern`), what is announced anew
//! when an epoch begins (the [`super::Resolver`] asks those who know).

use super::intern::EpochTables;
use super::mapping::CodeModule;
use super::nameless::{Nameless, NamelessSamples, Place};
use super::options::{EpochLimits, ResolveCounters, SourceOptions};
use super::symbolize::Answer;
use profiler_model::{
    Batch, Cpu, Event, FrameId, Lost, LostReason, OFF_CPU, Sample, Session, Source, SourceId,
    Timestamp, Unit, UnknownReason,
};

/// Lists of events that are kept for their memory, and most events that one has room for.
const MAX_SPARE: usize = 8;
const MAX_SPARE_EVENTS: usize = 1 << 17;
/// What an event takes in a capture, roughly.
const EVENT_BYTES: u64 = 32;

/// The epoch that is being filled, and the batch that is being made.
#[derive(Debug)]
pub(super) struct Epoch {
    /// What was announced.
    pub(super) tables: EpochTables,
    /// How many events, frames with and without names, and epochs there were.
    pub(super) counters: ResolveCounters,
    session: Session,
    sources: Vec<SourceOptions>,
    source_ids: Vec<SourceId>,
    limits: EpochLimits,
    began: Timestamp,
    /// The first event after that begins an epoch, full or not.
    wanted: Option<Timestamp>,
    /// An epoch ends only when that is wanted.
    on_demand: bool,
    /// It is full, and goes on until it is wanted that it ends.
    is_full: bool,
    event_bytes: u64,
    events: Vec<Event>,
    /// Empty, for later batches.
    spare: Vec<Vec<Event>>,
    /// What of the samples has no names.
    nameless: Nameless,
}

impl Epoch {
    /// None has begun yet.
    pub(super) fn new(session: Session, sources: Vec<SourceOptions>, limits: EpochLimits) -> Epoch {
        Epoch {
            tables: EpochTables::default(),
            counters: ResolveCounters::default(),
            began: session.started,
            session,
            sources,
            source_ids: Vec::new(),
            limits,
            wanted: None,
            on_demand: false,
            is_full: false,
            event_bytes: 0,
            events: Vec::new(),
            spare: Vec::new(),
            nameless: Nameless::default(),
        }
    }

    /// Begins one, in which nothing is announced but the session and its sources.
    pub(super) fn start(&mut self, number: u32, at: Timestamp) {
        self.counters.epochs += 1;
        self.wanted = None;
        self.is_full = false;
        self.nameless.end_epoch(self.tables.all());
        self.tables = EpochTables::start(number, &self.session);
        self.began = at;
        self.event_bytes = 0;
        self.source_ids.clear();
        for source in &self.sources {
            self.source_ids.push(self.tables.source_of(source));
        }
    }

    /// The recording begins then.
    pub(super) fn begin_at(&mut self, at: Timestamp) {
        self.session.started = at;
        self.tables.session(&self.session);
    }

    /// When it began.
    pub(super) fn began(&self) -> Timestamp {
        self.began
    }

    /// The first event after this time is to begin an epoch.
    pub(super) fn want_new(&mut self, after: Timestamp) {
        self.wanted = Some(after);
    }

    /// Whether an epoch is to begin with an event that has not come.
    pub(super) fn is_to_begin(&self) -> bool {
        self.wanted.is_some()
    }

    /// Whether epochs end only when that is wanted, from now on.
    pub(super) fn end_on_demand(&mut self, on_demand: bool) {
        self.on_demand = on_demand;
    }

    /// Whether it should end, and does not by itself.
    pub(super) fn is_full(&self) -> bool {
        self.is_full
    }

    /// Whether it is over with an event of this time. An epoch begins with its first event.
    pub(super) fn is_over(&mut self, at: Timestamp) -> bool {
        if self.event_bytes == 0 {
            self.began = at;
        }
        let limits = &self.limits;
        let is_full = self.tables.bytes() >= limits.definition_bytes
            || self.tables.bytes() + self.event_bytes >= limits.bytes
            || at.since(self.began) >= limits.duration_ns;
        self.is_full = is_full && self.on_demand;
        self.wanted.is_some_and(|after| at > after) || is_full && !self.on_demand
    }

    /// Adds an event.
    pub(super) fn push(&mut self, event: Event) {
        self.push_of(EVENT_BYTES, event);
    }

    /// Adds a sample.
    pub(super) fn push_sample(&mut self, sample: Sample) {
        self.nameless.sample(&sample, self.tables.all());
        self.push(Event::Sample(sample));
    }

    /// What of the samples has no names, the most first.
    pub(super) fn nameless(&self) -> Vec<(Place, NamelessSamples)> {
        self.nameless.places(self.tables.all())
    }

    /// Adds one that takes about so many bytes in a capture.
    pub(super) fn push_of(&mut self, bytes: u64, event: Event) {
        self.event_bytes += bytes;
        self.events.push(event);
    }

    /// Adds that a record was lost that made no sense.
    pub(super) fn push_bad_record(&mut self, at: Timestamp, cpu: Cpu) {
        self.push(Event::Lost(Lost {
            cpu: Some(cpu),
            from: at,
            to: at,
            count: 1,
            reason: LostReason::BadRecord,
        }));
    }

    /// Hands over what has come since the last call.
    pub(super) fn flush(&mut self, out: &mut Vec<Batch>) {
        let definitions = self.tables.take();
        let mut events = Vec::new();
        if !self.events.is_empty() {
            events = std::mem::replace(&mut self.events, self.spare.pop().unwrap_or_default());
        }
        if !definitions.is_empty() || !events.is_empty() {
            out.push(Batch {
                epoch: self.tables.number,
                definitions,
                events,
            });
        }
    }

    /// Takes back the memory of a batch's events, for a later one: new memory costs the kernel more
    /// time than all that is put into it. `events` must be empty.
    pub(super) fn reuse(&mut self, events: Vec<Event>) {
        if self.spare.len() < MAX_SPARE
            && events.is_empty()
            && events.capacity() <= MAX_SPARE_EVENTS
        {
            self.spare.push(events);
        }
    }

    /// The source of samples with this index.
    pub(super) fn source(&mut self, index: u16) -> SourceId {
        match self.source_ids.get(usize::from(index)) {
            Some(&id) => id,
            None => {
                // Samples of a source that the session does not speak of.
                let source = Source {
                    name: self.tables.string(&format!("source {index}")),
                    unit: Unit::Events,
                    frequency_hz: None,
                    period: None,
                };
                self.tables.source(source)
            }
        }
    }

    /// The source of waits.
    pub(super) fn off_cpu_source(&mut self) -> SourceId {
        let mut sources = self.sources.iter();
        let index = sources.position(|source| source.name == OFF_CPU);
        self.source(index.map_or(u16::MAX, |index| index as u16))
    }

    /// Samples of a source come so often from now on.
    pub(super) fn set_frequency(&mut self, source: usize, frequency_hz: u64) {
        let Some(options) = self.sources.get_mut(source) else {
            return;
        };
        if options.unit == Unit::Nanoseconds && options.period.is_some() {
            options.period = Some(1_000_000_000 / frequency_hz.max(1));
        }
        options.frequency_hz = Some(frequency_hz);
        let id = self.tables.source_of(options);
        if let Some(known) = self.source_ids.get_mut(source) {
            *known = id;
        }
    }

    /// Says what a frame means, unless that was said in this epoch.
    pub(super) fn define(&mut self, frame: FrameId, module: Option<&CodeModule>, answer: &Answer) {
        if !self.tables.answer(frame, module, answer) {
            return;
        }
        let counters = &mut self.counters;
        let counter = match answer {
            Answer::Lines(lines) if lines.iter().any(|(function, _)| function.name.is_empty()) => {
                &mut counters.frames_no_symbol
            }
            Answer::Lines(_) | Answer::NotYet => &mut counters.frames_named,
            Answer::Unknown(UnknownReason::NoMapping) => &mut counters.frames_no_mapping,
            Answer::Unknown(UnknownReason::NoFile) => &mut counters.frames_no_file,
            Answer::Unknown(UnknownReason::NoSymbol) => &mut counters.frames_no_symbol,
            Answer::Unknown(UnknownReason::BadFile) => &mut counters.frames_bad_file,
            Answer::Unknown(UnknownReason::GaveUp | UnknownReason::TooLarge) => {
                &mut counters.frames_gave_up
            }
        };
        *counter += 1;
    }
}
