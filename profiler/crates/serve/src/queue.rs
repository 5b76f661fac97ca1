//! The event queue of a live server: batches of a recording -> work for the thread that serves,
//! bounded by bytes of memory. Between batches there are notes, in order with them.
//!
//! When there is no room, events are dropped and counted; the place where they are missing stays in
//! the queue. Dropping goes on until half of the queue is free, so that one loss comes of one burst.
//! Definitions are never dropped with events; when many wait, those of an epoch that has ended
//! without an event behind them go, so that what a stuck server costs is bounded (see
//! [`Queue::wants_new_epoch`]). Bytes count until the work is done.
//!
//! What does not belong here: what becomes of events, what notes say.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use profiler_model::{Batch, Call, CallEdge, Definition, Event, Symbol, Timestamp, Value};

/// Lists that wait to be used again.
const SPARE: usize = 8;

/// What is said between batches, of which a server has its own.
pub(super) trait Note: Sized {
    /// What is left of two notes without a batch between them.
    fn join(&self, _next: &Self) -> Joined {
        Joined::Both
    }

    /// Whether definitions that come behind may not be taken before it.
    fn divides(&self) -> bool {
        false
    }
}

/// What is left of two notes that follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Joined {
    /// Both.
    Both,
    /// The first: the second says nothing more.
    First,
    /// Neither: together they say nothing.
    Neither,
}

/// Something to be done, in order.
#[derive(Debug)]
pub(super) struct Entry<N> {
    /// Of the definitions and events.
    pub(super) epoch: u32,
    /// To be taken before the work.
    pub(super) definitions: Vec<Definition>,
    /// What is to be done.
    pub(super) work: Work<N>,
    /// What it counts for in the queue.
    event_bytes: usize,
    definition_bytes: usize,
}

/// What is to be done.
#[derive(Debug, PartialEq)]
pub(super) enum Work<N> {
    /// Nothing but taking the definitions.
    Define,
    /// Events to be sent.
    Events(Vec<Event>),
    /// Events are missing here.
    Dropped {
        /// How many.
        count: u64,
        /// When the last of them happened.
        to: Timestamp,
    },
    /// Something is said.
    Note(N),
}

/// What a look into the queue gave.
#[derive(Debug)]
pub(super) enum Popped<N> {
    /// Something to do.
    Entry(Entry<N>),
    /// Nothing came in the time given.
    Nothing,
    /// It is over.
    Closed,
}

/// The queue.
pub(super) struct Queue<N> {
    limit_bytes: usize,
    state: Mutex<State<N>>,
    came: Condvar,
    /// The same for who waits in a task.
    arrival: Notify,
    /// Less than half is used, or it is over.
    room: Notify,
}

struct State<N> {
    entries: VecDeque<Entry<N>>,
    event_bytes: usize,
    definition_bytes: usize,
    epoch: u32,
    /// Until half is free.
    dropping: bool,
    dropped: u64,
    spare: Vec<Vec<Event>>,
    closed: bool,
}

impl<N: Note> Queue<N> {
    /// A queue of at most so many bytes of events.
    pub(super) fn new(limit_bytes: usize) -> Queue<N> {
        Queue {
            limit_bytes,
            state: Mutex::new(State {
                entries: VecDeque::new(),
                event_bytes: 0,
                definition_bytes: 0,
                epoch: 0,
                dropping: false,
                dropped: 0,
                spare: Vec::new(),
                closed: false,
            }),
            came: Condvar::new(),
            arrival: Notify::new(),
            room: Notify::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State<N>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a batch; says how many of its events were dropped.
    pub(super) fn send(&self, batch: Batch) -> u64 {
        let event_bytes = event_bytes(&batch.events);
        let definition_bytes = batch.definitions.iter().map(definition_bytes).sum();
        let mut state = self.state();
        state.epoch = batch.epoch;
        if state.closed {
            let count = count(&batch.events);
            state.dropped += count;
            return count;
        }
        let is_full = state.event_bytes > 0 && state.event_bytes + event_bytes > self.limit_bytes;
        state.dropping |= is_full;
        let mut lost = 0;
        let work = if batch.events.is_empty() {
            Work::Define
        } else if state.dropping {
            lost = count(&batch.events);
            let to = batch.events.last().map_or(Timestamp(0), Event::at);
            state.keep(batch.events);
            Work::Dropped { count: lost, to }
        } else {
            Work::Events(batch.events)
        };
        state.dropped += lost;
        let event_bytes = match work {
            Work::Events(_) => event_bytes,
            _ => 0,
        };
        let entry = Entry {
            epoch: batch.epoch,
            definitions: batch.definitions,
            work,
            event_bytes,
            definition_bytes,
        };
        state.push(entry, self.limit_bytes);
        drop(state);
        self.announce();
        lost
    }

    /// Adds a note.
    pub(super) fn push(&self, note: N) {
        let mut state = self.state();
        let epoch = state.epoch;
        let entry = Entry {
            epoch,
            definitions: Vec::new(),
            work: Work::Note(note),
            event_bytes: 0,
            definition_bytes: 0,
        };
        state.push(entry, self.limit_bytes);
        drop(state);
        self.announce();
    }

    /// What is to be done next. Waits for it no longer than `patience`.
    pub(super) fn pop(&self, patience: Duration) -> Popped<N> {
        let empty = |state: &mut State<N>| state.entries.is_empty() && !state.closed;
        let (mut state, _) = self
            .came
            .wait_timeout_while(self.state(), patience, empty)
            .unwrap_or_else(PoisonError::into_inner);
        if state.closed {
            return Popped::Closed;
        }
        match state.entries.pop_front() {
            Some(entry) => Popped::Entry(entry),
            None => Popped::Nothing,
        }
    }

    fn announce(&self) {
        self.came.notify_one();
        self.arrival.notify_one();
    }

    /// Waits until something may have come. For one task. Cancel-safe.
    #[cfg(feature = "fronts")]
    pub(super) async fn came(&self) {
        self.arrival.notified().await;
    }

    /// Takes note that an entry's work is done; `events` is its list, to be used again.
    pub(super) fn done(&self, bytes: Bytes, events: Option<Vec<Event>>) {
        let mut state = self.state();
        state.event_bytes = state.event_bytes.saturating_sub(bytes.events);
        state.definition_bytes = state.definition_bytes.saturating_sub(bytes.definitions);
        if let Some(events) = events {
            state.keep(events);
        }
        let has_room = self.has_half(&state);
        if has_room {
            state.dropping = false;
        }
        drop(state);
        if has_room {
            self.room.notify_waiters();
        }
    }

    /// An emptied list of events.
    pub(super) fn spare(&self) -> Option<Vec<Event>> {
        self.state().spare.pop()
    }

    /// Waits until less than half is used, so that what comes next is not dropped. Cancel-safe.
    pub(super) async fn room(&self) {
        loop {
            let room = self.room.notified();
            let mut room = std::pin::pin!(room);
            room.as_mut().enable();
            {
                let state = self.state();
                if state.closed || self.has_half(&state) {
                    return;
                }
            }
            room.await;
        }
    }

    fn has_half(&self, state: &State<N>) -> bool {
        state.event_bytes + state.definition_bytes <= self.limit_bytes / 2
    }

    /// Whether definitions that wait have become many: a new epoch lets the old ones go.
    pub(super) fn wants_new_epoch(&self) -> bool {
        self.state().definition_bytes > self.limit_bytes
    }

    /// Events dropped so far.
    pub(super) fn dropped(&self) -> u64 {
        self.state().dropped
    }

    /// Ends all waiting. What is in the queue goes, what comes is dropped.
    pub(super) fn close(&self) {
        let mut state = self.state();
        state.closed = true;
        let left: Vec<Entry<N>> = state.entries.drain(..).collect();
        for entry in &left {
            if let Work::Events(events) = &entry.work {
                state.dropped += count(events);
            }
        }
        drop(state);
        self.came.notify_all();
        self.arrival.notify_one();
        self.room.notify_waiters();
    }
}

/// What an entry counts for.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Bytes {
    events: usize,
    definitions: usize,
}

impl<N> Entry<N> {
    /// What it counts for.
    pub(super) fn bytes(&self) -> Bytes {
        Bytes {
            events: self.event_bytes,
            definitions: self.definition_bytes,
        }
    }
}

impl<N: Note> State<N> {
    /// Adds an entry, as part of the last one where that says the same.
    fn push(&mut self, mut entry: Entry<N>, limit_bytes: usize) {
        let crowded = self.definition_bytes > limit_bytes / 4;
        self.event_bytes += entry.event_bytes;
        self.definition_bytes += entry.definition_bytes;
        let Some(last) = self.entries.back_mut() else {
            self.entries.push_back(entry);
            return;
        };
        let same_epoch = last.epoch == entry.epoch;
        if !same_epoch && !last.definitions.is_empty() && !crowded {
            // Names of what was sent before may be among them.
            self.entries.push_back(entry);
            return;
        }
        let used = matches!(last.work, Work::Events(_));
        let joins = match (&mut last.work, &entry.work) {
            (Work::Note(note), Work::Define) if note.divides() => false,
            // Taken before the work of the last one, which does no harm within an epoch.
            (_, Work::Define) if same_epoch || !used => true,
            (work @ Work::Define, _) => {
                std::mem::swap(work, &mut entry.work);
                last.event_bytes = entry.event_bytes;
                true
            }
            (
                Work::Dropped { count, to },
                &Work::Dropped {
                    count: more,
                    to: at,
                },
            ) => {
                *count += more;
                *to = at;
                true
            }
            (work @ Work::Note(_), Work::Note(next)) => {
                let joined = match work {
                    Work::Note(first) => first.join(next),
                    _ => Joined::Both,
                };
                if joined == Joined::Neither {
                    *work = Work::Define;
                }
                joined != Joined::Both
            }
            _ => false,
        };
        if !joins {
            self.entries.push_back(entry);
            return;
        }
        if !same_epoch {
            // Nothing in the queue can use what the epoch that ended defined since.
            self.definition_bytes -= last.definition_bytes;
            last.definitions = entry.definitions;
            last.definition_bytes = entry.definition_bytes;
            last.epoch = entry.epoch;
        } else {
            last.definitions.append(&mut entry.definitions);
            last.definition_bytes += entry.definition_bytes;
        }
    }

    /// Keeps an emptied list, if one is wanted.
    fn keep(&mut self, mut events: Vec<Event>) {
        events.clear();
        if self.spare.len() < SPARE {
            self.spare.push(events);
        }
    }
}

/// How many events a list stands for. The kernel's own counts and readings of clocks are not sent, so
/// that nothing is missing without them.
fn count(events: &[Event]) -> u64 {
    let count = |event: &Event| match event {
        Event::Lost(lost) => lost.count,
        Event::CallCount(_) | Event::Clock(_) => 0,
        _ => 1,
    };
    events.iter().map(count).sum()
}

/// Memory of a list of events.
fn event_bytes(events: &Vec<Event>) -> usize {
    let apart: usize = events
        .iter()
        .map(|event| match event {
            Event::Call(Call { edge, .. }) => match edge {
                CallEdge::Enter(values) | CallEdge::Hit(values) => list_bytes(values),
                CallEdge::Exit(exit) => {
                    size_of_val(&**exit)
                        + list_bytes(&exit.whole)
                        + exit.result.as_ref().map_or(0, value_bytes)
                }
            },
            _ => 0,
        })
        .sum();
    events.capacity() * size_of::<Event>() + apart
}

fn list_bytes(values: &Option<Box<[Value]>>) -> usize {
    values
        .iter()
        .flatten()
        .map(|value| size_of::<Value>() + value_bytes(value))
        .sum()
}

/// Memory of a value apart from itself.
fn value_bytes(value: &Value) -> usize {
    match value {
        Value::Named(text, _) | Value::Text(text, _) => text.len(),
        Value::Struct(parts) => parts
            .iter()
            .map(|part| size_of_val(part) + part.0.len() + value_bytes(&part.1))
            .sum(),
        _ => 0,
    }
}

fn definition_bytes(definition: &Definition) -> usize {
    let apart = match definition {
        Definition::String(_, text) => text.len(),
        Definition::Symbol(_, Symbol::Lines(lines)) => size_of_val(&**lines),
        Definition::Code(code) => code.bytes.len(),
        Definition::Traced(_, traced) => size_of_val(&*traced.parameters),
        _ => 0,
    };
    size_of::<Definition>() + apart
}

#[cfg(test)]
mod tests {
    use super::*;
    use profiler_model::{EpochId, Mark, StringId};

    const NOW: Duration = Duration::ZERO;

    /// A note.
    #[derive(Debug, PartialEq)]
    enum Word {
        Off(u64),
        On(u64),
        Wall,
    }

    impl Note for Word {
        fn join(&self, next: &Word) -> Joined {
            match (self, next) {
                (Word::On(_), Word::Off(_)) => Joined::Neither,
                (Word::Off(_), Word::Off(_)) => Joined::First,
                _ => Joined::Both,
            }
        }

        fn divides(&self) -> bool {
            *self == Word::Wall
        }
    }

    fn batch(epoch: u32, names: &[&str], events: usize) -> Batch {
        let definitions = names.iter().enumerate();
        let text = StringId::from_index(0);
        let mark = |at| Event::Mark(Mark { at, text });
        Batch {
            epoch,
            definitions: definitions
                .map(|(at, &name)| Definition::String(StringId::from_index(at), name.into()))
                .collect(),
            events: (1..=events).map(|at| mark(Timestamp(at as u64))).collect(),
        }
    }

    /// A queue with room for some marks.
    fn queue(marks: usize) -> Queue<Word> {
        Queue::new(marks * size_of::<Event>())
    }

    /// What is in the queue, in words: definitions, then the work.
    fn drain(queue: &Queue<Word>) -> Vec<String> {
        let mut out = Vec::new();
        while let Popped::Entry(entry) = queue.pop(NOW) {
            let bytes = entry.bytes();
            let names: Vec<&str> = entry
                .definitions
                .iter()
                .map(|definition| match definition {
                    Definition::String(_, text) => &**text,
                    _ => "?",
                })
                .collect();
            let work = match &entry.work {
                Work::Events(events) => format!("{} events", events.len()),
                Work::Dropped { count, to } => format!("dropped {count} to {}", to.0),
                work => format!("{work:?}"),
            };
            out.push(format!("{}[{}] {work}", entry.epoch, names.join(" ")));
            queue.done(bytes, None);
        }
        out
    }

    #[test]
    fn what_has_no_room_is_counted_and_keeps_its_definitions() {
        let queue = queue(10);
        assert_eq!(queue.send(batch(0, &["a"], 6)), 0);
        assert_eq!(queue.send(batch(0, &["b"], 5)), 5);
        // There would be room for this one, but half of the queue is not free.
        assert_eq!(queue.send(batch(0, &["c"], 2)), 2);
        queue.send(batch(0, &["d"], 0));
        assert_eq!(queue.dropped(), 7);
        assert_eq!(drain(&queue), ["0[a] 6 events", "0[b c d] dropped 7 to 2"]);
        assert_eq!(queue.send(batch(0, &[], 10)), 0);
        assert_eq!(drain(&queue), ["0[] 10 events"]);
    }

    #[test]
    fn a_batch_larger_than_the_queue_has_room_in_an_empty_one() {
        let queue = queue(1);
        assert_eq!(queue.send(batch(0, &[], 100)), 0);
        assert_eq!(queue.send(batch(0, &[], 1)), 1);
        assert_eq!(drain(&queue), ["0[] 100 events", "0[] dropped 1 to 1"]);
    }

    #[test]
    fn bytes_count_until_the_work_is_done() {
        let queue = queue(10);
        queue.send(batch(0, &[], 10));
        let Popped::Entry(entry) = queue.pop(NOW) else {
            panic!("nothing in the queue");
        };
        assert_eq!(queue.send(batch(0, &[], 1)), 1);
        queue.done(entry.bytes(), None);
        assert_eq!(queue.send(batch(0, &[], 1)), 0);
    }

    #[test]
    fn definitions_of_epochs_without_events_go() {
        let queue = queue(2);
        queue.send(batch(0, &["a"], 2));
        for epoch in 0..100 {
            queue.send(batch(epoch, &["b"], 2));
            queue.send(batch(epoch, &["c"], 0));
        }
        assert_eq!(drain(&queue), ["0[a] 2 events", "99[b c] dropped 200 to 2"]);
        assert_eq!(queue.state().definition_bytes, 0);
        assert_eq!(queue.state().event_bytes, 0);
    }

    #[test]
    fn definitions_that_an_event_uses_stay() {
        let queue = queue(10);
        queue.send(batch(0, &["a"], 1));
        queue.send(batch(1, &["b"], 0));
        queue.send(batch(1, &["c"], 1));
        queue.send(batch(1, &["d"], 0));
        assert_eq!(drain(&queue), ["0[a] 1 events", "1[b c d] 1 events"]);
    }

    #[test]
    fn many_definitions_want_a_new_epoch() {
        let queue = queue(10);
        let long = "x".repeat(10_000);
        queue.send(batch(0, &["a"], 1));
        assert!(!queue.wants_new_epoch());
        queue.send(batch(0, &[&long], 1));
        assert!(queue.wants_new_epoch());
        queue.send(batch(1, &["a"], 1));
        queue.send(batch(2, &["a"], 0));
        drain(&queue);
        assert!(!queue.wants_new_epoch());
    }

    #[test]
    fn notes_that_say_nothing_more_go() {
        let queue = queue(10);
        queue.push(Word::Off(1));
        for time in 2..50 {
            queue.push(Word::On(time));
            queue.push(Word::Off(time));
        }
        queue.push(Word::On(60));
        queue.send(batch(0, &["a"], 1));
        queue.push(Word::On(70));
        assert_eq!(
            drain(&queue),
            [
                "0[] Note(Off(1))",
                "0[] Note(On(60))",
                "0[a] 1 events",
                "0[] Note(On(70))"
            ]
        );
    }

    #[test]
    fn definitions_stay_on_their_side_of_some_notes() {
        let queue = queue(10);
        queue.push(Word::On(1));
        queue.send(batch(0, &["a"], 0));
        queue.push(Word::Wall);
        queue.send(batch(1, &["b"], 0));
        assert_eq!(
            drain(&queue),
            ["0[a] Note(On(1))", "0[] Note(Wall)", "1[b] Define"]
        );
    }

    #[test]
    fn lists_are_used_again() {
        let queue = queue(10);
        assert!(queue.spare().is_none());
        queue.send(batch(0, &[], 5));
        if let Popped::Entry(entry) = queue.pop(NOW) {
            let bytes = entry.bytes();
            let Work::Events(events) = entry.work else {
                panic!("{:?}", entry.work);
            };
            queue.done(bytes, Some(events));
        }
        let spare = queue.spare().unwrap();
        assert!(spare.is_empty() && spare.capacity() >= 5);
    }

    #[tokio::test]
    async fn who_waits_for_room_loses_nothing() {
        let queue = std::sync::Arc::new(queue(10));
        let theirs = std::sync::Arc::clone(&queue);
        let taking = std::thread::spawn(move || {
            let mut events = 0;
            loop {
                match theirs.pop(Duration::from_secs(5)) {
                    Popped::Entry(entry) => {
                        let bytes = entry.bytes();
                        if let Work::Events(list) = &entry.work {
                            events += list.len();
                        }
                        let end = matches!(entry.work, Work::Note(_));
                        theirs.done(bytes, None);
                        if end {
                            return events;
                        }
                    }
                    other => panic!("{other:?}"),
                }
            }
        });
        for _ in 0..1000 {
            queue.room().await;
            assert_eq!(queue.send(batch(0, &[], 5)), 0);
        }
        queue.push(Word::On(0));
        assert_eq!(taking.join().unwrap(), 5000);
    }

    #[test]
    fn nothing_waits_when_it_is_over() {
        let queue = queue(10);
        queue.send(batch(0, &[], 5));
        queue.close();
        assert!(matches!(queue.pop(Duration::from_secs(60)), Popped::Closed));
        assert_eq!(queue.send(batch(0, &[], 1)), 1);
        assert_eq!(queue.dropped(), 6);
    }
}
