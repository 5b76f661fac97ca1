//! The thread that translates: work of the queue -> messages in send buffers.
//!
//! Definitions are folded as everywhere; events become messages by [`Translator`]. Where events are
//! missing, because recording was off or the queue was full, the recipe of a data break is kept:
//! with N the next sequence id, HQ is told on control that data breaks before N + 1; when it knows
//! that, a marker with N says why; then events go on. Breaks that follow each other are one.
//!
//! Source: "Data break" in docs/formats/bytefrog.md. What does not belong here: sockets.

use std::sync::Arc;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::outbox::Break;
use super::queue::{Entry, Popped, Work};
use super::shared::{Progress, Shared};
use super::translate::{NameStyle, TranslateOptions, Translator, Wanted};
use super::{AgentError, StreamSummary};
use crate::model::{Epoch, Event, ProcessChange, Tables, Timestamp};
use crate::wire::bytefrog::Filter;

/// How long nothing may come before names that are waited for are looked at again.
const TICK: Duration = Duration::from_millis(50);
/// Names and stacks that the tables may gather before ids begin anew.
const MAX_TABLES: usize = 1_000_000;
/// Changes of threads that are held while recording is off.
const MAX_HELD: usize = 1 << 16;
/// What one event becomes mostly, at most.
const EVENT_BYTES: usize = 64;

/// The state of the thread.
pub(super) struct Feed {
    shared: Arc<Shared>,
    names: NameStyle,
    samples: bool,
    /// Since tracing began.
    translator: Option<Translator>,
    tables: Tables,
    epoch: (u32, Epoch),
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
            tables: Tables::default(),
            epoch: (0, Epoch::default()),
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
            let ends = matches!(entry.work, Work::End(_));
            let spare = self.work(entry)?;
            shared.queue.done(bytes, spare);
            if ends {
                return Ok(());
            }
        }
    }

    fn work(&mut self, entry: Entry) -> Result<Option<Vec<Event>>, Over> {
        if entry.epoch != self.epoch.0 {
            self.begin_epoch(entry.epoch);
        }
        for definition in entry.definitions {
            // What is not defined is missing, as are events that use it.
            let _ = self.epoch.1.define(&mut self.tables, definition);
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
            Work::Begin(at) => self.begin(at),
            Work::Suspend(at) => {
                if !self.suspended && self.translator.is_some() {
                    self.break_data()?;
                    if let Some(broken) = &mut self.broken {
                        broken.suspended.get_or_insert(at);
                    }
                }
                self.suspended = true;
            }
            Work::Resume(at) => {
                self.suspended = false;
                self.mend(at)?;
            }
            Work::End(at) => {
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
        let configuration = self.shared.configured();
        let mut wanted: Option<Wanted> = None;
        if self.samples
            && let Some((configuration, _)) = configuration
        {
            let (filter, warnings) = Filter::new(&configuration);
            for warning in warnings {
                log::warn!("configuration of HQ: {warning}");
            }
            if !filter.is_trivial() {
                wanted = Some(Box::new(move |path| filter.admits(path)));
            }
        }
        let options = TranslateOptions {
            names: self.names,
            samples: self.samples,
            filter: wanted,
        };
        let room = self.shared.pool.buffer_bytes();
        self.enough = room.saturating_sub(EVENT_BYTES).max(room / 2);
        self.translator = Some(Translator::new(options, at));
    }

    /// Ids begin anew; if there is much of it, so do the tables.
    fn begin_epoch(&mut self, epoch: u32) {
        self.epoch = (epoch, Epoch::default());
        if self.table_entries() + self.tables.threads().count() > MAX_TABLES {
            self.tables = Tables::default();
            // Their ids are those of the old tables. They cost a thread's number at most.
            self.held.clear();
            if let Some(translator) = &mut self.translator {
                translator.new_tables();
            }
        }
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
            let Ok(event) = self.epoch.1.event(event) else {
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
            let text = format!("{} events; HQ took them too slowly", broken.lost);
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
            exits: counts.exits,
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
