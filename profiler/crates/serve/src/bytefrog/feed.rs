//! The thread that translates: work of the queue -> messages in send buffers.
//!
//! Definitions are folded as everywhere; events become messages by [`Translator`]. Where events are
//! missing, because recording was off or the queue was full, the recipe of a data break is kept:
//! with N the next sequence id, HQ is told on control that data breaks before N + 1; when it knows
//! that, a marker with N says why; then events go on. Breaks that follow each other are one. No break is
//! announced across the number at which ids turn negative.
//!
//! Source: "Data break" in docs/formats/bytefrog.md. What does not belong here: sockets.

use std::sync::Arc;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::outbox::Break;
use super::run_change::RunChange;
use super::shared::{Progress, Shared};
use super::{AgentError, StreamSummary};
use crate::queue::{Entry, Popped, Work};
use profiler_model::{Event, LiveTables, LostReason, ProcessChange, Timestamp};
use profiler_report::export::bytefrog::{NameStyle, TranslateOptions, Translator, Wanted};
use profiler_wire::bytefrog::Filter;

/// How long nothing may come before names that are waited for are looked at again.
const TICK: Duration = Duration::from_millis(50);
/// Names and stacks that the tables may gather before ids begin anew.
const MAX_TABLES: usize = 1_000_000;
/// Changes of threads that are held while recording is off.
const MAX_HELD: usize = 1 << 16;
/// What one event becomes mostly, at most.
const EVENT_BYTES: usize = 64;

/// Collectors compare sequence ids as signed numbers: from here on they are negative.
const SIGN: u32 = 1 << 31;
/// Messages that may be on their way to HQ's collector, with room: 64 MiB of buffers, and sockets.
const UNDERWAY: u32 = 1 << 24;
/// What a collector may need to put into order what its system has. Once in 2^32 messages.
const ORDERING_TIME: Duration = Duration::from_secs(1);
/// How often it is looked whether data has arrived.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// The state of the thread.
pub(super) struct Feed {
    shared: Arc<Shared>,
    names: NameStyle,
    samples: bool,
    /// Since tracing began.
    translator: Option<Translator>,
    tables: LiveTables,
    /// Messages that no connection has.
    buffer: Vec<u8>,
    /// A buffer with so many bytes is sent.
    enough: usize,
    suspended: bool,
    broken: Option<Broken>,
    /// What threads became while recording was off: told when it is on again.
    held: Vec<Event>,
    /// The last event's time, and when that was.
    last: Option<(Timestamp, Instant)>,
    bytes: u64,
    data_breaks: u64,
    undefined: u64,
}

/// A data break that HQ was told of, without the marker that follows it.
struct Broken {
    told: Break,
    /// Recording was switched off then.
    suspended: Option<Timestamp>,
    lost: u64,
    /// When the last of what is missing happened.
    to: Timestamp,
}

/// No more can be sent.
struct Over;

impl Feed {
    pub(super) fn new(shared: Arc<Shared>, names: NameStyle, samples: bool) -> Feed {
        Feed {
            shared,
            names,
            samples,
            translator: None,
            tables: LiveTables::default(),
            buffer: Vec::new(),
            enough: 0,
            suspended: false,
            broken: None,
            held: Vec::new(),
            last: None,
            bytes: 0,
            data_breaks: 0,
            undefined: 0,
        }
    }

    /// Works until the run has ended.
    pub(super) fn run(mut self) {
        let guard = Guard::new(Arc::clone(&self.shared), "bytefrog");
        // Over is said where it happens; what was done counts all the same.
        let _ = self.work_all();
        self.sum_up();
        self.shared.advance(Progress::Translated);
        drop(guard);
    }

    fn work_all(&mut self) -> Result<(), Over> {
        let shared = Arc::clone(&self.shared);
        loop {
            let entry = match shared.queue.pop(Duration::ZERO) {
                Popped::Entry(entry) => entry,
                Popped::Closed => return Ok(()),
                Popped::Nothing => {
                    // What is there goes before waiting for more.
                    self.poll()?;
                    self.hand_over()?;
                    match shared.queue.pop(TICK) {
                        Popped::Entry(entry) => entry,
                        Popped::Nothing => continue,
                        Popped::Closed => return Ok(()),
                    }
                }
            };
            let bytes = entry.bytes();
            let ends = matches!(entry.work, Work::Note(RunChange::End(_)));
            let spare = self.work(entry)?;
            shared.queue.done(bytes, spare);
            if ends {
                return Ok(());
            }
        }
    }

    fn work(&mut self, entry: Entry<RunChange>) -> Result<Option<Vec<Event>>, Over> {
        self.turn(entry.epoch)?;
        for definition in entry.definitions {
            // What is not defined is missing, as are events that use it.
            let _ = self.tables.define(definition);
        }
        let full = self.table_entries() > MAX_TABLES;
        self.shared.tables_full.store(full, Ordering::Relaxed);
        match entry.work {
            Work::Define => {}
            Work::Events(mut events) => {
                self.events(&mut events)?;
                return Ok(Some(events));
            }
            Work::Dropped { count, to } => {
                if self.translator.is_some() && !self.suspended {
                    self.break_data()?;
                    if let Some(broken) = &mut self.broken {
                        broken.lost += count;
                        broken.to = to;
                    }
                }
            }
            Work::Note(RunChange::Begin(at)) => self.begin(at),
            Work::Note(RunChange::Suspend(at)) => {
                if !self.suspended && self.translator.is_some() {
                    self.break_data()?;
                    if let Some(broken) = &mut self.broken {
                        broken.suspended.get_or_insert(at);
                    }
                }
                self.suspended = true;
            }
            Work::Note(RunChange::Resume(at)) => {
                self.suspended = false;
                self.mend(at)?;
            }
            Work::Note(RunChange::End(at)) => {
                self.mend(at)?;
                if let Some(translator) = &mut self.translator {
                    take(&self.shared, &mut self.buffer)?;
                    translator.finish(at, &self.tables, &mut self.buffer);
                }
                self.hand_over()?;
            }
        }
        Ok(None)
    }

    fn begin(&mut self, at: Timestamp) {
        if self.translator.is_some() {
            return;
        }
        // Functions that are traced live were filtered before they were probed; what was recorded, or
        // comes from samples, is filtered here.
        let filter = self.shared.configured().map(|(configuration, _)| {
            // Its warnings were said when it came.
            let (filter, _) = Filter::new(&configuration);
            filter
        });
        let filter = filter.filter(|filter| !filter.is_trivial());
        let wanted = filter.map(|filter| Box::new(move |path: &str| filter.admits(path)) as Wanted);
        let options = TranslateOptions {
            names: self.names,
            samples: self.samples,
            filter: wanted,
        };
        let room = self.shared.pool.buffer_bytes();
        self.enough = room.saturating_sub(EVENT_BYTES).max(room / 2);
        self.translator = Some(Translator::new(options, at));
    }

    /// With an epoch ids begin anew; if there is much of it, so do the tables.
    fn turn(&mut self, epoch: u32) -> Result<(), Over> {
        let are_full = self.table_entries() + self.tables.threads().count() > MAX_TABLES;
        if are_full && self.tables.is_another(epoch) {
            self.flush()?;
        }
        if self.tables.turn(epoch, are_full) {
            // Their ids are those of the old tables. They cost a thread's number at most.
            self.held.clear();
            if let Some(translator) = &mut self.translator {
                translator.new_tables();
            }
        }
        Ok(())
    }

    /// Lets go of all that waits for names.
    fn flush(&mut self) -> Result<(), Over> {
        if !self.suspended
            && self.broken.is_none()
            && let Some(translator) = &mut self.translator
        {
            take(&self.shared, &mut self.buffer)?;
            translator.flush(&self.tables, &mut self.buffer);
        }
        Ok(())
    }

    fn table_entries(&self) -> usize {
        let tables = &self.tables;
        tables.stacks.len() + tables.frames.len() + tables.functions.len() + tables.mappings.len()
    }

    fn events(&mut self, events: &mut Vec<Event>) -> Result<(), Over> {
        if self.translator.is_none() {
            events.clear();
            return Ok(());
        }
        if let Some(last) = events.last() {
            self.last = Some((last.at(), Instant::now()));
        }
        if let Some(first) = events.first()
            && !self.suspended
        {
            self.mend(first.at())?;
        }
        for event in events.drain(..) {
            // Calls of a time without recording are of no use, what threads became is.
            if self.suspended && !is_of_threads(&event) {
                continue;
            }
            let Ok(event) = self.tables.event(event) else {
                self.undefined += 1;
                continue;
            };
            if !self.suspended {
                self.event(&event)?;
            } else if self.held.len() < MAX_HELD {
                self.held.push(event);
            }
        }
        self.poll()
    }

    #[inline]
    fn event(&mut self, event: &Event) -> Result<(), Over> {
        take(&self.shared, &mut self.buffer)?;
        if let Some(translator) = &mut self.translator {
            translator.event(event, &self.tables, &mut self.buffer);
        }
        if self.buffer.len() >= self.enough {
            self.hand_over()?;
        }
        Ok(())
    }

    /// Lets events go that waited for names.
    fn poll(&mut self) -> Result<(), Over> {
        if !self.suspended
            && self.broken.is_none()
            && let Some(translator) = &mut self.translator
            && let Some((at, when)) = self.last
        {
            // A replay has its own time.
            let now = Timestamp(at.0.saturating_add(when.elapsed().as_nanos() as u64));
            take(&self.shared, &mut self.buffer)?;
            translator.poll(now, &self.tables, &mut self.buffer);
            if self.buffer.len() >= self.enough {
                self.hand_over()?;
            }
        }
        Ok(())
    }

    /// Tells HQ that something is missing from here on. Once, until it goes on.
    fn break_data(&mut self) -> Result<(), Over> {
        if self.broken.is_none() {
            self.flush()?;
            self.pass_the_wrap()?;
        }
        if self.broken.is_none()
            && let Some(translator) = &mut self.translator
        {
            let sequence = translator.break_data();
            self.broken = Some(Broken {
                told: self.shared.outbox.break_data(sequence),
                suspended: None,
                lost: 0,
                to: Timestamp(0),
            });
            self.data_breaks += 1;
            self.hand_over()?;
        }
        Ok(())
    }

    /// A data break that is announced as a negative number while the collector is at a positive one is
    /// too late for it, which ends the run: such a break is moved behind the wrap, and waits until the
    /// collector is there too.
    fn pass_the_wrap(&mut self) -> Result<(), Over> {
        let Some(translator) = &mut self.translator else {
            return Ok(());
        };
        if !(SIGN - 1..SIGN + UNDERWAY).contains(&translator.next_sequence()) {
            return Ok(());
        }
        let at = self.last.map_or(Timestamp(0), |(at, _)| at);
        while translator.next_sequence() <= SIGN {
            take(&self.shared, &mut self.buffer)?;
            let text = "sequence ids are negative from here on";
            translator.marker(at, "sequence", text, &mut self.buffer);
        }
        self.hand_over()?;
        while !self.shared.has_arrived().ok_or(Over)? {
            std::thread::sleep(LOOK_AGAIN);
        }
        std::thread::sleep(ORDERING_TIME);
        Ok(())
    }

    /// Goes on behind a data break: when HQ knows of it, markers say what is missing.
    fn mend(&mut self, at: Timestamp) -> Result<(), Over> {
        let (Some(broken), Some(translator)) = (self.broken.take(), &mut self.translator) else {
            return Ok(());
        };
        if !self.shared.outbox.settled(broken.told) {
            return Err(Over);
        }
        take(&self.shared, &mut self.buffer)?;
        if let Some(since) = broken.suspended {
            let text = format!("after {} ms without", at.since(since) / 1_000_000);
            translator.marker(at, "recording resumed", &text, &mut self.buffer);
        }
        if broken.lost > 0 {
            let text = format!("{}: {}", LostReason::SlowOutput.phrase(), broken.lost);
            translator.marker(broken.to, "lost events", &text, &mut self.buffer);
        }
        for event in std::mem::take(&mut self.held) {
            self.event(&event)?;
        }
        Ok(())
    }

    /// Gives what is in the buffer to the connections.
    fn hand_over(&mut self) -> Result<(), Over> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        self.bytes += self.buffer.len() as u64;
        self.shared.pool.put(std::mem::take(&mut self.buffer));
        self.sum_up();
        Ok(())
    }

    fn sum_up(&self) {
        let counts = self.translator.as_ref().map(Translator::counts);
        let counts = counts.unwrap_or_default();
        let mut summary = self
            .shared
            .translated
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *summary = StreamSummary {
            messages: counts.messages,
            entries: counts.entries,
            exits: counts.exits + counts.bubbles,
            exits_inferred: counts.all_inferred(),
            exits_left_out: counts.exits_left_out,
            bytes: self.bytes,
            data_breaks: self.data_breaks,
            dropped_events: self.undefined,
            ..StreamSummary::default()
        };
    }
}

/// Sees to it that there is a buffer to write to.
#[inline]
fn take(shared: &Shared, buffer: &mut Vec<u8>) -> Result<(), Over> {
    if buffer.capacity() == 0 {
        *buffer = shared.pool.take().ok_or(Over)?;
    }
    Ok(())
}

fn is_of_threads(event: &Event) -> bool {
    use ProcessChange::{Exited, Renamed, Started};
    match event {
        Event::Process(event) => matches!(event.change, Started | Renamed(_) | Exited),
        _ => false,
    }
}

/// Says it if the thread ends by a defect: nobody would ever learn of it.
pub(super) struct Guard {
    shared: Arc<Shared>,
    thread: &'static str,
}

impl Guard {
    pub(super) fn new(shared: Arc<Shared>, thread: &'static str) -> Guard {
        Guard { shared, thread }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.shared.fail(AgentError::Panicked(self.thread));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use profiler_wire::bytefrog::{AgentMessage, Configuration};

    /// A data break when `next` is the next sequence id: what was announced, and how long it took.
    fn broken_at(next: u32) -> (u32, Vec<AgentMessage<'static>>, Duration) {
        let shared = Arc::new(Shared::new(1 << 20));
        shared.configure(&Configuration::default());
        let mut feed = Feed::new(Arc::clone(&shared), NameStyle::Readable, false);
        feed.begin(Timestamp(0));
        feed.translator.as_mut().unwrap().skip_to(next);
        let began = Instant::now();
        let sending = std::thread::spawn({
            let shared = Arc::clone(&shared);
            move || {
                let mut sent = Vec::new();
                let runtime = tokio::runtime::Builder::new_current_thread();
                let runtime = { runtime }.enable_all().build().unwrap();
                runtime.block_on(async {
                    while let Some(buffer) = shared.pool.next().await {
                        sent.extend_from_slice(&buffer);
                        shared.pool.give_back(buffer);
                    }
                });
                sent
            }
        });
        assert!(feed.break_data().is_ok());
        let took = began.elapsed();
        let announced = feed.translator.as_ref().unwrap().next_sequence() + 1;
        shared.pool.end();
        let bytes = sending.join().unwrap();
        let (mut messages, mut at) = (Vec::new(), 0);
        while let Some((message, len)) = AgentMessage::decode(&bytes[at..]).unwrap() {
            messages.push(message.into_owned());
            at += len;
        }
        (announced, messages, took)
    }

    #[test]
    fn breaks_do_not_cross_the_number_where_ids_turn_negative() {
        for next in [0, 1 << 20, SIGN - 2, SIGN + UNDERWAY, u32::MAX - 1] {
            let (announced, sent, took) = broken_at(next);
            assert_eq!(announced, next + 1);
            assert!(sent.is_empty() && took < ORDERING_TIME, "{next}");
        }
        for (next, fill) in [(SIGN - 1, 2), (SIGN, 1), (SIGN + 1, 0), (SIGN + 100, 0)] {
            let (announced, sent, took) = broken_at(next);
            assert_eq!(announced, next + fill + 1);
            // What was sent is behind the wrap before the break is told.
            let sequences: Vec<_> = sent.iter().filter_map(AgentMessage::sequence).collect();
            assert_eq!(sequences, (next..next + fill).collect::<Vec<_>>());
            assert!(announced > SIGN + 1 && took >= ORDERING_TIME, "{next}");
        }
    }
}
