//! Batches: runs of events of one thread or of one table, with the length of their wire form.
//!
//! A batch is filled until [`Batch::fits`] says no, then written and emptied. Events that carry a
//! time say it as the difference from the one before.

use super::event::{Event, Kind};
use super::{Encoding, MAX_BATCH_BYTES};

/// The thread of batches that belong to none.
pub const NO_THREAD: u64 = u64::MAX;

/// What a batch says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchHead {
    /// Number of the generation, from 1.
    pub generation: u64,
    /// Thread whose events these are, or [`NO_THREAD`].
    pub thread: u64,
    /// Time that the first difference counts from.
    pub time: u64,
    /// For batches that hold a table: the event that says which, put before all others.
    pub table: Option<Kind>,
}

/// Events on their way into a trace.
#[derive(Clone, Debug)]
pub struct Batch {
    encoding: Encoding,
    head: BatchHead,
    /// Time of the last event.
    last: u64,
    body: Vec<u8>,
    wire_len: usize,
}

impl Batch {
    /// An empty batch.
    pub fn new(encoding: Encoding, head: BatchHead) -> Batch {
        let mut batch = Batch {
            encoding,
            head,
            last: head.time,
            body: Vec::new(),
            wire_len: 0,
        };
        batch.put_table();
        batch
    }

    fn put_table(&mut self) {
        if let Some(kind) = self.head.table {
            self.push(&Event::new(kind, &[]));
        }
    }

    /// Whether an event of that length still has room.
    pub fn fits(&self, wire_len: usize) -> bool {
        self.wire_len + wire_len <= MAX_BATCH_BYTES
    }

    /// Whether it holds no events.
    pub fn is_empty(&self) -> bool {
        self.wire_len <= usize::from(self.head.table.is_some())
    }

    /// Time of the last event put in, or that of the head.
    pub fn last(&self) -> u64 {
        self.last
    }

    /// Puts an event in. It must fit.
    pub fn push(&mut self, event: &Event) {
        debug_assert!(self.fits(event.wire_len()));
        event.encode(self.encoding, &mut self.body);
        self.wire_len += event.wire_len();
    }

    /// Puts in an event whose first argument is the time since the last; `rest` are the others. It
    /// must fit (see [`Batch::fits_timed`]). A time before that of the last event counts as that.
    pub fn push_timed(&mut self, kind: Kind, at: u64, rest: &[u64]) {
        let mut args = [0; MAX_TIMED_ARGS];
        let len = (rest.len() + 1).min(MAX_TIMED_ARGS);
        args[0] = at.saturating_sub(self.last);
        args[1..len].copy_from_slice(&rest[..len - 1]);
        self.last = self.last.max(at);
        self.push(&Event::new(kind, &args[..len]));
    }

    /// Appends the batch to `out`, unless it is empty, and empties it. Differences now count from
    /// the last event.
    pub fn write(&mut self, out: &mut Vec<u8>) {
        if self.is_empty() {
            return;
        }
        let BatchHead {
            generation,
            thread,
            time,
            ..
        } = self.head;
        let args = [generation, thread, time, self.wire_len as u64];
        Event::new(Kind::EventBatch, &args).encode(self.encoding, out);
        out.append(&mut self.body);
        self.head.time = self.last;
        self.wire_len = 0;
        self.put_table();
    }
}

/// Most arguments of an event that has a time.
const MAX_TIMED_ARGS: usize = 5;
/// Most bytes of an event that has a time.
pub(super) const MAX_TIMED_BYTES: usize = 1 + MAX_TIMED_ARGS * 10;

impl Batch {
    /// Whether so many more events with a time have room, whatever their numbers.
    pub fn fits_timed(&self, events: usize) -> bool {
        self.fits(events * MAX_TIMED_BYTES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: BatchHead = BatchHead {
        generation: 1,
        thread: 7,
        time: 100,
        table: None,
    };

    #[test]
    fn differences_count_from_the_last_event() {
        let mut batch = Batch::new(Encoding::Text, HEAD);
        let mut out = Vec::new();
        batch.write(&mut out);
        assert!(out.is_empty());
        batch.push_timed(Kind::ProcStart, 105, &[1, 1]);
        batch.push_timed(Kind::ProcStop, 90, &[]);
        batch.write(&mut out);
        batch.push_timed(Kind::GoDestroy, 300, &[]);
        batch.write(&mut out);
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "EventBatch gen=1 m=7 time=100 size=6\nProcStart dt=5 p=1 p_seq=1\nProcStop dt=0\n\
             EventBatch gen=1 m=7 time=105 size=3\nGoDestroy dt=195\n"
        );
    }

    #[test]
    fn tables_repeat_their_head() {
        let head = BatchHead {
            table: Some(Kind::Strings),
            thread: NO_THREAD,
            ..HEAD
        };
        let mut batch = Batch::new(Encoding::Wire, head);
        assert!(batch.is_empty());
        let mut out = Vec::new();
        for id in [1, 2] {
            batch.push(&Event::string(&id, "ab"));
            batch.write(&mut out);
        }
        assert!(batch.is_empty());
        let strings: Vec<usize> = (0..out.len())
            .filter(|&i| out[i..].starts_with(&[4, 5]))
            .collect();
        assert_eq!(strings.len(), 2);
    }

    #[test]
    fn full_is_exactly_the_limit() {
        let mut batch = Batch::new(Encoding::Wire, HEAD);
        while batch.fits(2) {
            batch.push_timed(Kind::GoDestroy, 100, &[]);
        }
        let mut out = Vec::new();
        batch.write(&mut out);
        let head = Event::new(Kind::EventBatch, &[1, 7, 100, 65_536]).wire_len();
        assert_eq!(out.len() - head, MAX_BATCH_BYTES);
    }
}
