//! A capture as the batches of a recording: what consumers of a session that runs understand.
//!
//! [`Reader`] and its [`Tables`] -> [`Batch`]es, in the order of time, each definition before its first
//! use. All names are known from the start. What does not belong here: when a batch is due.

use profiler_model::*;

use super::announce::Announcer;
use super::error::{CaptureError, Damage};
use super::reader::{Reader, TimeRange};
use super::replay::Events;

/// The batches of a capture, one after the other.
pub struct Batches<'t> {
    tables: &'t Tables,
    events: Events,
    head: Option<Event>,
    announcer: Announcer<'t>,
}

impl<'t> Batches<'t> {
    /// Begins with the first event. `tables` are those of the reader.
    pub fn new(reader: Reader, tables: &'t Tables) -> Result<Batches<'t>, CaptureError> {
        let mut events = Events::new(reader, TimeRange::ALL)?;
        let head = events.next(tables)?;
        Ok(Batches {
            tables,
            events,
            head,
            announcer: Announcer::new(tables),
        })
    }

    /// When the next event happened; none at the end.
    pub fn next_at(&self) -> Option<Timestamp> {
        self.head.as_ref().map(Event::at)
    }

    /// When the recording began: no event is older. To be asked before any is taken.
    pub fn begin(&self) -> Timestamp {
        let started = self.tables.session.started;
        let first = self.next_at().unwrap_or(started);
        match started {
            Timestamp(0) => first,
            started => started.min(first),
        }
    }

    /// The next events until a time, with what they use; `most` at the most.
    pub fn take(&mut self, until: Timestamp, most: usize) -> Result<Batch, CaptureError> {
        for _ in 0..most {
            let Some(event) = self.pop(until)? else { break };
            self.announcer.event(&event);
        }
        Ok(self.announcer.take())
    }

    /// Leaves out what happened until a time; how many events.
    pub fn skip(&mut self, until: Timestamp) -> Result<u64, CaptureError> {
        let mut skipped = 0;
        while self.pop(until)?.is_some() {
            skipped += 1;
        }
        Ok(skipped)
    }

    /// Ids start anew with the next batch.
    pub fn begin_epoch(&mut self) {
        self.announcer.next_epoch();
    }

    /// What of the capture could not be used so far.
    pub fn damage(&self) -> &[Damage] {
        self.events.reader().damage()
    }

    fn pop(&mut self, until: Timestamp) -> Result<Option<Event>, CaptureError> {
        if self.head.as_ref().is_none_or(|event| event.at() > until) {
            return Ok(None);
        }
        let next = self.events.next(self.tables)?;
        Ok(std::mem::replace(&mut self.head, next))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CreateOptions, Existing, Writer};

    fn mark(at: u64, text: usize) -> Event {
        Event::Mark(Mark {
            at: Timestamp(at),
            text: StringId::from_index(text),
        })
    }

    fn capture(name: &str) -> std::path::PathBuf {
        let name = format!("profiler-batches-{name}-{}.cap", std::process::id());
        let path = std::env::temp_dir().join(name);
        let options = CreateOptions {
            existing: Existing::Replace,
            ..CreateOptions::default()
        };
        let mut writer = Writer::create(&path, options).unwrap();
        let text = |index, text: &str| Definition::String(StringId::from_index(index), text.into());
        writer
            .write(&Batch {
                epoch: 0,
                definitions: vec![text(0, "a"), text(1, "b")],
                events: vec![mark(10, 0), mark(20, 1), mark(30, 0)],
            })
            .unwrap();
        writer.finish().unwrap();
        path
    }

    /// What a consumer makes of batches, as it does of those of a recording.
    fn texts(batches: &[Batch]) -> Vec<(u64, String)> {
        let (mut tables, mut epoch, mut number) = (Tables::default(), Epoch::default(), 0);
        let mut texts = Vec::new();
        for batch in batches.iter().cloned() {
            if batch.epoch != number {
                (epoch, number) = (Epoch::default(), batch.epoch);
            }
            for definition in batch.definitions {
                epoch.define(&mut tables, definition).unwrap();
            }
            for event in batch.events {
                let Event::Mark(mark) = epoch.event(event).unwrap() else {
                    panic!("only marks were written");
                };
                texts.push((mark.at.0, tables.string(mark.text).to_owned()));
            }
        }
        texts
    }

    #[test]
    fn every_epoch_announces_what_it_uses() {
        let path = capture("epochs");
        let mut reader = Reader::open(&path).unwrap();
        let tables = reader.load_tables().unwrap();
        let mut batches = Batches::new(reader, &tables).unwrap();
        let end = Timestamp(u64::MAX);
        let first = batches.take(end, 2).unwrap();
        batches.begin_epoch();
        let second = batches.take(end, 2).unwrap();
        assert_eq!((first.epoch, second.epoch), (0, 1));
        assert_eq!(batches.next_at(), None);
        assert_eq!(batches.take(end, 2).unwrap().events, []);
        let expected = [(10, "a"), (20, "b"), (30, "a")];
        assert_eq!(
            texts(&[first, second]),
            expected.map(|(at, text)| (at, text.to_owned()))
        );
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn time_can_be_kept_and_skipped() {
        let path = capture("times");
        let mut reader = Reader::open(&path).unwrap();
        let tables = reader.load_tables().unwrap();
        let mut batches = Batches::new(reader, &tables).unwrap();
        assert_eq!(batches.next_at(), Some(Timestamp(10)));
        assert_eq!(batches.take(Timestamp(9), 10).unwrap().events, []);
        assert_eq!(batches.take(Timestamp(10), 10).unwrap().events.len(), 1);
        assert_eq!(batches.skip(Timestamp(25)).unwrap(), 1);
        assert_eq!(batches.next_at(), Some(Timestamp(30)));
        std::fs::remove_file(path).unwrap();
    }
}
