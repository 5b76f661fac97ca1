//! Keeps a run: its messages through the importer into the queue of a capture's thread.
//!
//! The queue is short and waits when it is full, so that a slow disk holds the agent up: it has
//! buffers of its own, and says what it drops.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver as Queue, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use profiler_capture::{CaptureError, Totals, Writer};
use profiler_model::{Batch, Definition, Event, Exit, GapReason, Session};
use profiler_probe::now;
use profiler_report::import::bytefrog::{ImportCounts, Importer};
use profiler_report::view::quantity;
use profiler_serve::hq::{BreakCause, Receiver, RunReport};
use profiler_wire::bytefrog::AgentMessage;

/// Batches that may wait for the disk.
const QUEUE: usize = 4;
/// What a writer takes: blocks that are packed, and a list of events that is filled again.
const WRITER_BYTES: usize = 4 << 20;
/// The capture's thread looks that often whether what it holds should be written.
const TICK: Duration = Duration::from_millis(100);
/// A batch that is not full is handed on after so long.
const FLUSH: Duration = Duration::from_millis(200);
/// A name that is missing is waited for so long.
const NAME: Duration = Duration::from_secs(2);
/// A full batch that waits for a name looks for it again after so many messages.
const AGAIN: u32 = 1024;

pub(super) struct RunKeeper {
    importer: Option<Importer>,
    run: u8,
    peer: SocketAddr,
    path: PathBuf,
    /// There is a capture even if nothing comes.
    is_first: bool,
    queue: Option<SyncSender<Batch>>,
    spare: Queue<Vec<Event>>,
    wants_new_epoch: Arc<AtomicBool>,
    /// Bytes of what is in the queue.
    queued: Arc<AtomicUsize>,
    thread: Option<JoinHandle<Result<Option<Totals>, CaptureError>>>,
    handed: Instant,
    skip: u32,
}

impl RunKeeper {
    pub(super) fn start(
        writer: Writer,
        path: PathBuf,
        run: u8,
        peer: SocketAddr,
        is_first: bool,
    ) -> std::io::Result<RunKeeper> {
        let (queue, batches) = sync_channel(QUEUE);
        let (used, spare) = sync_channel(1);
        let wants_new_epoch = Arc::new(AtomicBool::new(false));
        let queued = Arc::new(AtomicUsize::new(0));
        let theirs = (Arc::clone(&wants_new_epoch), Arc::clone(&queued));
        let thread = std::thread::Builder::new()
            .name("capture".into())
            .spawn(move || write(writer, &batches, &used, (&theirs.0, &theirs.1)))?;
        Ok(RunKeeper {
            importer: None,
            run,
            peer,
            path,
            is_first,
            queue: Some(queue),
            spare,
            wants_new_epoch,
            queued,
            thread: Some(thread),
            handed: Instant::now(),
            skip: 0,
        })
    }

    fn importer(&mut self) -> &mut Importer {
        let (run, peer) = (self.run, self.peer);
        self.importer.get_or_insert_with(|| {
            let session = Session {
                version: env!("CARGO_PKG_VERSION").to_owned(),
                target: format!("run {run} of the Bytefrog agent at {peer}"),
                command: std::env::args_os()
                    .map(|word| word.to_string_lossy().into_owned())
                    .collect(),
                started: now(),
                ..Session::default()
            };
            let realtime = SystemTime::now().duration_since(UNIX_EPOCH);
            let realtime_ns = realtime.map_or(0, |time| time.as_nanos() as u64);
            let name = format!("bytefrog run {run}");
            Importer::new(session, &name, run, Some(realtime_ns))
        })
    }

    fn hand_on(&mut self, waited: bool) {
        let Some(importer) = &mut self.importer else {
            return;
        };
        let Some(batch) = importer.take(waited) else {
            self.skip = AGAIN;
            return;
        };
        self.handed = Instant::now();
        if let Some(queue) = &self.queue {
            self.queued
                .fetch_add(batch_bytes(&batch), Ordering::Relaxed);
            // If the thread is gone, its result says why.
            let _ = queue.send(batch);
        }
        if let Ok(spare) = self.spare.try_recv() {
            importer.recycle(spare);
        }
        if importer.wants_new_epoch() || self.wants_new_epoch.swap(false, Ordering::Relaxed) {
            importer.begin_epoch();
        }
    }
}

impl Receiver for RunKeeper {
    fn begin(&mut self) {
        self.importer();
    }

    #[inline]
    fn message(&mut self, message: &AgentMessage<'_>) {
        let importer = self.importer();
        importer.message(message);
        if importer.is_full() {
            match self.skip.checked_sub(1) {
                Some(skip) => self.skip = skip,
                None => self.hand_on(self.handed.elapsed() > NAME),
            }
        }
    }

    fn data_break(&mut self, cause: BreakCause) {
        if let Some(importer) = &mut self.importer {
            importer.break_data(match cause {
                BreakCause::Suspended => GapReason::Suspended,
                BreakCause::Missing => GapReason::MissingData,
            });
        }
    }

    fn missing(&mut self, count: u64) {
        self.importer().lost(count);
    }

    fn tick(&mut self) {
        if self.importer.as_ref().is_none_or(Importer::is_empty) {
            // Names are waited for from the first message on that needs them.
            self.handed = Instant::now();
            return;
        }
        let since = self.handed.elapsed();
        if since > FLUSH {
            self.hand_on(since > NAME);
        }
    }

    fn bytes(&self) -> usize {
        let importer = self.importer.as_ref().map_or(0, Importer::bytes);
        importer + self.queued.load(Ordering::Relaxed) + WRITER_BYTES
    }

    fn end(&mut self, report: &mut RunReport) -> Result<(), String> {
        let importer = self.importer();
        if let Some(reason) = &report.failure {
            importer.remark(&format!("run failed: {reason}"));
        }
        for (fault, _) in report.faults.iter() {
            importer.remark(&format!("agent's fault: {fault}"));
        }
        if report.failure.is_some() || report.faults.iter().any(|(fault, _)| fault.is_cut_off()) {
            importer.cut_off(now());
        }
        let last = importer.finish();
        let counts = importer.counts();
        for (count, what) in [
            (counts.inferred, "call had no exit"),
            (counts.left_out, "call was left out: too many were open"),
            (counts.unnamed, "method never got a name"),
            (
                counts.names_left_out,
                "name was left out: there are too many",
            ),
        ] {
            if count > 0 {
                let remarks = &mut report.remarks;
                remarks.push(format!("{what}: {}", quantity::count(count)));
            }
        }
        if counts.inferred_there > 0 {
            let exits = quantity::plural(counts.inferred_there, "exit");
            report
                .remarks
                .push(format!("{exits} inferred by the agent"));
        }
        let missing = missing_there(counts);
        if !missing.is_empty() {
            report
                .remarks
                .push(format!("missing: {}", missing.join("; ")));
        }
        // Who only connects, time and again, fills no folder.
        let last = last.filter(|_| self.is_first || report.counts.messages > 0);
        if let (Some(queue), Some(batch)) = (&self.queue, last) {
            self.queued
                .fetch_add(batch_bytes(&batch), Ordering::Relaxed);
            let _ = queue.send(batch);
        }
        self.queue = None;
        let written = self.thread.take().map(JoinHandle::join);
        let totals = match written {
            Some(Ok(Ok(Some(totals)))) => totals,
            Some(Ok(Ok(None))) => {
                report
                    .remarks
                    .push("nothing came: it has no capture".to_owned());
                return Ok(());
            }
            Some(Ok(Err(error))) => return Err(format!("the capture is not whole: {error}")),
            Some(Err(_)) | None => {
                return Err("the thread that writes the capture panicked".to_owned());
            }
        };
        let (path, bytes) = (self.path.display(), quantity::bytes(totals.bytes));
        report.remarks.push(format!("wrote {path} ({bytes})"));
        match totals.dropped {
            0 => Ok(()),
            dropped => Err(format!(
                "{} could not be written to {path}",
                quantity::plural(dropped, "event")
            )),
        }
    }
}

/// What an agent of ours says that it has lost, or not watched, and when data did not come.
fn missing_there(counts: &ImportCounts) -> Vec<String> {
    let lost = counts.lost_there.iter();
    let lost = lost.map(|(reason, &n)| format!("{} {}", quantity::count(n), reason.phrase()));
    let gaps = counts.gaps.iter();
    let gaps = gaps.map(|(reason, (gaps, times))| {
        let gaps = quantity::gaps(*gaps, times.ns());
        format!("{gaps}: {}", reason.phrase())
    });
    lost.chain(gaps).collect()
}

/// About how many bytes of memory a batch takes.
fn batch_bytes(batch: &Batch) -> usize {
    let text = |definition: &Definition| match definition {
        Definition::String(_, text) => text.len(),
        _ => 0,
    };
    let texts: usize = batch.definitions.iter().map(text).sum();
    let events = batch.events.len() * (size_of::<Event>() + size_of::<Exit>());
    texts + events + batch.definitions.len() * size_of::<Definition>()
}

/// Writes what comes; none if nothing does, and then there is no file.
fn write(
    mut writer: Writer,
    batches: &Queue<Batch>,
    used: &SyncSender<Vec<Event>>,
    (wants_new_epoch, queued): (&AtomicBool, &AtomicUsize),
) -> Result<Option<Totals>, CaptureError> {
    let mut epoch = None;
    loop {
        let result = match batches.recv_timeout(TICK) {
            Ok(mut batch) => {
                let result = writer.write(&batch);
                queued.fetch_sub(batch_bytes(&batch), Ordering::Relaxed);
                // A wish is for the epoch that it was made in.
                if epoch.replace(batch.epoch) == Some(batch.epoch) && writer.wants_new_epoch() {
                    wants_new_epoch.store(true, Ordering::Relaxed);
                }
                batch.events.clear();
                // If there are enough, or nobody wants one, it goes.
                let _ = used.try_send(batch.events);
                result
            }
            Err(RecvTimeoutError::Timeout) => writer.tick(Instant::now()),
            Err(RecvTimeoutError::Disconnected) if epoch.is_none() => return Ok(None),
            Err(RecvTimeoutError::Disconnected) => return writer.finish().map(Some),
        };
        if let Err(error) = result {
            log::warn!("{error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use profiler_capture::CreateOptions;

    #[test]
    fn a_name_is_waited_for_from_its_first_use_on() {
        let path = std::env::temp_dir().join(format!("profiler-keep-{}.cap", std::process::id()));
        let writer = Writer::create(&path, CreateOptions::default()).unwrap();
        let peer = "127.0.0.1:1".parse().unwrap();
        let mut keeper = RunKeeper::start(writer, path.clone(), 0, peer, true).unwrap();
        keeper.begin();
        // Nothing has come for long.
        keeper.handed = Instant::now().checked_sub(NAME * 2).unwrap();
        keeper.tick();
        keeper.message(&AgentMessage::MethodEntry {
            at_ms: 0,
            sequence: 0,
            method: 7,
            thread: 0,
        });
        keeper.tick();
        assert!(!keeper.importer().is_empty());
        keeper.message(&AgentMessage::MapMethodSignature {
            method: 7,
            signature: "late".into(),
        });
        keeper.importer().finish();
        assert_eq!(keeper.importer().counts().unnamed, 0);
        // The file has its name, or is gone, when the thread has ended.
        let thread = keeper.thread.take().unwrap();
        drop(keeper);
        thread.join().unwrap().unwrap();
        let _ = std::fs::remove_file(path);
    }
}
