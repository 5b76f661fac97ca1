//! The capture writer's thread: batches in through a bounded channel, so that a slow disk never
//! stalls the walk.
//!
//! When the channel is full, events are dropped and counted, and a loss event tells of them.
//! Definitions wait and go with a later batch of their epoch; those of an epoch that ended while the
//! disk was stuck are of no use any more and go with it.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use profiler_capture::{CaptureError, Totals, Untold, Writer};
use profiler_model::{Batch, Event, LostReason};

/// Batches that may wait for the disk.
const QUEUE: usize = 64;
/// Lists that wait to be used again.
const SPARE: usize = 8;
const TICK: Duration = Duration::from_millis(100);

/// The sending end.
pub(super) struct CaptureThread {
    queue: SyncSender<Message>,
    /// Lists of events that have been written, emptied.
    spare: Receiver<Vec<Event>>,
    thread: JoinHandle<Result<Totals, CaptureError>>,
    shared: Arc<Shared>,
    /// Definitions of the running epoch that found no room.
    waiting: Batch,
    /// What is still to be told.
    dropped: Untold,
    /// Whether epochs become files that stand alone.
    has_parts: bool,
    /// Files that the ring is to be written to, when waits that go on are in it.
    dumps: Vec<PathBuf>,
}

enum Message {
    Batch(Batch),
    Dump(PathBuf),
}

#[derive(Default)]
struct Shared {
    /// The epoch that is to end, and 1; 0: none is.
    to_end: AtomicU64,
    bytes: AtomicU64,
    trouble: Mutex<Option<CaptureError>>,
}

impl CaptureThread {
    /// Starts the thread.
    pub(super) fn start(writer: Box<Writer>) -> std::io::Result<CaptureThread> {
        let has_parts = writer.has_parts();
        let (queue, messages) = sync_channel(QUEUE);
        let (used, spare) = sync_channel(SPARE);
        let shared = Arc::new(Shared::default());
        let theirs = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("capture".into())
            .spawn(move || run(writer, messages, &used, &theirs))?;
        let (waiting, dropped) = (Batch::default(), Untold::default());
        Ok(CaptureThread {
            has_parts,
            dumps: Vec::new(),
            queue,
            spare,
            thread,
            shared,
            waiting,
            dropped,
        })
    }

    /// Hands a batch to the thread; never blocks. Returns how many events were dropped.
    pub(super) fn send(&mut self, mut batch: Batch) -> u64 {
        if batch.epoch == self.waiting.epoch && !self.waiting.definitions.is_empty() {
            self.waiting.definitions.append(&mut batch.definitions);
            batch.definitions = std::mem::take(&mut self.waiting.definitions);
        } else {
            self.waiting = Batch {
                epoch: batch.epoch,
                ..Batch::default()
            };
        }
        batch.events.splice(0..0, self.dropped.events());
        match self.queue.try_send(Message::Batch(batch)) {
            Ok(()) => {
                self.dropped = Untold::default();
                0
            }
            Err(TrySendError::Full(message) | TrySendError::Disconnected(message)) => {
                let Message::Batch(batch) = message else {
                    return 0;
                };
                self.waiting.definitions = batch.definitions;
                // What this batch was to tell is still to be told.
                self.dropped = Untold::default();
                let events = batch.events.iter();
                let note = |event: &&Event| self.dropped.note(event, LostReason::SlowOutput);
                events.filter(note).count() as u64
            }
        }
    }

    /// The list of a batch that was written, for another one.
    pub(super) fn spare(&self) -> Option<Vec<Event>> {
        self.spare.try_recv().ok()
    }

    /// Whether ids should start anew, because the file or a part of a ring is full.
    pub(super) fn wants_new_epoch(&self) -> bool {
        // One that the thread has not come to may not be full.
        self.shared.to_end.load(Ordering::Relaxed) == u64::from(self.waiting.epoch) + 1
    }

    /// Bytes written so far.
    pub(super) fn bytes(&self) -> u64 {
        self.shared.bytes.load(Ordering::Relaxed)
    }

    /// What went wrong with the output since the last call.
    pub(super) fn trouble(&self) -> Option<CaptureError> {
        self.shared
            .trouble
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
    }

    /// Whether epochs become files that stand alone.
    pub(super) fn has_parts(&self) -> bool {
        self.has_parts
    }

    /// Has what the ring holds written to a file, with [`CaptureThread::write_dumps`].
    pub(super) fn dump(&mut self, path: PathBuf) {
        self.dumps.push(path);
    }

    /// Whether the ring is to be written out.
    pub(super) fn wants_cut(&self) -> bool {
        !self.dumps.is_empty()
    }

    /// Writes the ring out where that is wanted. If that fails it is said, and the recording goes on.
    pub(super) fn write_dumps(&mut self) {
        for path in self.dumps.drain(..) {
            if self.queue.try_send(Message::Dump(path)).is_err() {
                log::warn!("the output is too slow: the ring is not written out; try again");
            }
        }
    }

    /// Writes what waits and closes the file.
    pub(super) fn finish(mut self) -> Result<Totals, CaptureError> {
        self.write_dumps();
        let lost: Vec<Event> = self.dropped.events().collect();
        if !lost.is_empty() || !self.waiting.definitions.is_empty() {
            let mut last = std::mem::take(&mut self.waiting);
            last.events.extend(lost);
            // Blocks until there is room: nothing is measured any more. If the thread is gone, its
            // result says why.
            let _ = self.queue.send(Message::Batch(last));
        }
        drop(self.queue);
        self.thread.join().unwrap_or_else(|_| {
            Err(CaptureError::Options(
                "the thread that writes the capture panicked".into(),
            ))
        })
    }
}

fn run(
    mut writer: Box<Writer>,
    messages: Receiver<Message>,
    used: &SyncSender<Vec<Event>>,
    shared: &Shared,
) -> Result<Totals, CaptureError> {
    let mut dumps: Vec<JoinHandle<()>> = Vec::new();
    let mut epoch = 0;
    loop {
        let result = match messages.recv_timeout(TICK) {
            Ok(Message::Batch(mut batch)) => {
                let result = writer.write(&batch);
                epoch = batch.epoch;
                batch.events.clear();
                // If there are enough, or nobody wants one, it goes.
                let _ = used.try_send(batch.events);
                result
            }
            Ok(Message::Dump(path)) => {
                dumps.retain(|dump| !dump.is_finished());
                dump(&mut writer, path).map(|started| dumps.extend(started))
            }
            Err(RecvTimeoutError::Timeout) => writer.tick(Instant::now()),
            Err(RecvTimeoutError::Disconnected) => {
                let totals = writer.finish();
                for dump in dumps {
                    // What went wrong in it has been said.
                    let _ = dump.join();
                }
                return totals;
            }
        };
        let to_end = match writer.wants_new_epoch() {
            true => u64::from(epoch) + 1,
            false => 0,
        };
        shared.to_end.store(to_end, Ordering::Relaxed);
        shared.bytes.store(writer.bytes(), Ordering::Relaxed);
        if let Err(error) = result {
            *shared
                .trouble
                .lock()
                .unwrap_or_else(PoisonError::into_inner) = Some(error);
        }
    }
}

/// Copies the ring into a file, on a thread of its own. An error is one of the recording itself.
fn dump(writer: &mut Writer, path: PathBuf) -> Result<Option<JoinHandle<()>>, CaptureError> {
    let failed = |error: &dyn std::fmt::Display| log::warn!("the ring is not written out: {error}");
    let dump = match writer.dump(&path) {
        Ok(dump) => dump,
        Err(error) => {
            if let CaptureError::Write { path, .. } = &error
                && path == writer.path()
            {
                return Err(error);
            }
            failed(&error);
            return Ok(None);
        }
    };
    let thread = std::thread::Builder::new().name("dump".into());
    let started = thread.spawn(move || match dump.run() {
        Ok((_, bytes, _)) => {
            log::warn!("wrote the ring to {} ({bytes} bytes)", path.display());
        }
        Err(error) => failed(&error),
    });
    Ok(started.inspect_err(|error| failed(error)).ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use profiler_capture::{CreateOptions, Reader, TimeRange};
    use profiler_model::{Clock, Definition, EpochId, Mark, StringId, Timestamp};

    fn mark(at: u64) -> Event {
        Event::Mark(Mark {
            at: Timestamp(at),
            text: StringId::from_index(0),
        })
    }

    #[test]
    fn what_a_stuck_disk_drops_is_counted_and_definitions_survive() {
        // A thread that never takes anything stands for a stuck disk.
        let (queue, messages) = sync_channel(1);
        let (used, spare) = sync_channel(1);
        let shared = Arc::new(Shared::default());
        let folder = std::env::temp_dir().join(format!("profiler-stuck-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("a.cap");
        let writer = Writer::create(&path, CreateOptions::default()).unwrap();
        let (go, wait) = sync_channel::<()>(0);
        let theirs = Arc::clone(&shared);
        let thread = std::thread::spawn(move || {
            wait.recv().unwrap();
            run(Box::new(writer), messages, &used, &theirs)
        });
        let (waiting, dropped) = (Batch::default(), Untold::default());
        let mut capture = CaptureThread {
            queue,
            spare,
            thread,
            shared,
            waiting,
            dropped,
            has_parts: false,
            dumps: Vec::new(),
        };
        let clock = Event::Clock(Clock {
            monotonic: Timestamp(1),
            realtime_ns: 1,
        });
        let first = Batch {
            epoch: 0,
            definitions: vec![],
            events: vec![clock],
        };
        assert_eq!(capture.send(first), 0);
        let definition = Definition::String(StringId::from_index(0), "hello".into());
        let second = Batch {
            epoch: 0,
            definitions: vec![definition],
            events: vec![mark(2)],
        };
        assert_eq!(capture.send(second), 1);
        let third = Batch {
            epoch: 0,
            definitions: vec![],
            events: vec![mark(3), mark(4)],
        };
        assert_eq!(capture.send(third), 2);
        go.send(()).unwrap();
        capture.finish().unwrap();

        let mut reader = Reader::open(&path).unwrap();
        let tables = reader.load_tables().unwrap();
        let mut lost = 0;
        let mut count = |event: &Event, _: &_| {
            if let Event::Lost(event) = event {
                assert_eq!(event.reason, LostReason::SlowOutput);
                lost += event.count;
            }
            Ok(())
        };
        reader.replay(&tables, TimeRange::ALL, &mut count).unwrap();
        assert_eq!(lost, 3);
        assert_eq!(tables.string(StringId::from_index(0)), "hello");
        std::fs::remove_dir_all(folder).unwrap();
    }
}
