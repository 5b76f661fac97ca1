//! Captures being written when things go wrong: killed, disk full, deleted, in the way; and the
//! forms of output that keep less or more than one file.

// What fails here fails the test, in its functions too.
#![allow(clippy::unwrap_used)]

use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use profiler_capture::{
    CaptureError, CreateOptions, Existing, Limit, Reader, Summary, TimeRange, Writer,
};
use profiler_capture::{merge, replay_into};
use profiler_model::*;
use profiler_tests::process::own_test;
use profiler_tests::scratch::Scratch;

/// Tells a child process of this test what to do, and where.
const CHILD: &str = "CAPTURE_TEST_CHILD";

fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// A process whose stacks differ from sample to sample as much as the test wants.
struct Workload {
    epoch: u32,
    stacks: usize,
    announced: bool,
    random: u64,
}

impl Workload {
    fn new() -> Workload {
        Workload {
            epoch: 0,
            stacks: 0,
            announced: false,
            random: 1,
        }
    }

    fn next_epoch(&mut self) {
        self.epoch += 1;
        self.stacks = 0;
        self.announced = false;
    }

    /// Samples at these times; each with a stack of its own if they are `fresh`.
    fn batch(&mut self, times: impl Iterator<Item = u64>, fresh: bool) -> Batch {
        let mut batch = Batch {
            epoch: self.epoch,
            ..Batch::default()
        };
        let name = StringId::from_index(0);
        if !self.announced {
            self.announced = true;
            let process = Process {
                pid: Pid(1),
                started: Timestamp(1),
                parent: None,
                name,
                executable: None,
                command: None,
                namespace_pids: Vec::new(),
                uid: None,
                cgroup: None,
                container: None,
            };
            let thread = Thread {
                process: ProcessId::from_index(0),
                tid: Tid(1),
                started: Timestamp(1),
                name,
            };
            let source = Source {
                name,
                unit: Unit::Nanoseconds,
                frequency_hz: Some(99),
                period: None,
            };
            let session = Session {
                started: Timestamp(1),
                ..Session::default()
            };
            batch.definitions = vec![
                Definition::Session(session),
                Definition::String(name, "work".into()),
                Definition::Source(SourceId::from_index(0), source),
                Definition::Process(ProcessId::from_index(0), process),
                Definition::Thread(ThreadId::from_index(0), thread),
            ];
        }
        for at in times {
            if fresh || self.stacks == 0 {
                self.random = self
                    .random
                    .wrapping_mul(0x5851_f42d_4c95_7f2d)
                    .wrapping_add(1);
                let frame = Frame {
                    kind: FrameKind::Native,
                    module: None,
                    address: self.random >> 20,
                };
                let id = FrameId::from_index(self.stacks);
                let stack = Stack {
                    parent: None,
                    frame: id,
                };
                batch.definitions.push(Definition::Frame(id, frame));
                let id = StackId::from_index(self.stacks);
                batch.definitions.push(Definition::Stack(id, stack));
                self.stacks += 1;
            }
            batch.events.push(Event::Sample(
                Sample::new(
                    Timestamp(at),
                    ThreadId::from_index(0),
                    Cpu(0),
                    SourceId::from_index(0),
                    1,
                )
                .with_stacks(None, Some(StackId::from_index(self.stacks - 1))),
            ));
        }
        batch
    }
}

fn summary(path: &Path) -> Summary {
    let mut reader = Reader::open(path).unwrap();
    reader.summary().unwrap()
}

/// This test binary again, to run one of the `child_` tests below.
fn child(test: &str, path: &Path) -> Command {
    let mut command = own_test(module_path!(), test).unwrap();
    command.env(CHILD, path).stdout(Stdio::null());
    command
}

#[test]
#[ignore = "runs as a child of a_killed_recording_reads_up_to_the_last_second"]
fn child_records_until_killed() {
    let Some(path) = std::env::var_os(CHILD) else {
        return;
    };
    let mut writer = Writer::create(Path::new(&path), CreateOptions::default()).unwrap();
    let mut work = Workload::new();
    let end = Instant::now() + Duration::from_secs(60);
    while Instant::now() < end {
        let now = now_ns();
        writer
            .write(&work.batch([now, now + 1].into_iter(), true))
            .unwrap();
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_killed_recording_reads_up_to_the_last_second() {
    let scratch = Scratch::new("output-kill").unwrap();
    let path = scratch.file("killed.cap");
    let mut recorder = child("child_records_until_killed", &path).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(2300));
    let killed = now_ns();
    recorder.kill().unwrap();
    recorder.wait().unwrap();
    let summary = summary(&path);
    assert_eq!(summary.damage, []);
    assert!(!summary.ended);
    let (_, last) = summary.span.unwrap();
    let missing_ms = (killed - last.0) / 1_000_000;
    assert!(missing_ms < 1000, "the last {missing_ms} ms are missing");
    assert!(summary.samples() > 100);
    // Who reads the tables is told.
    let mut reader = Reader::open(&path).unwrap();
    assert!(reader.load_tables().unwrap().is_cut_off);
}

#[test]
#[ignore = "runs as a child of a_full_disk_is_said_once_and_survived"]
fn child_fills_the_disk() {
    let Some(directory) = std::env::var_os(CHILD) else {
        return;
    };
    let directory = Path::new(&directory);
    let (path, ballast) = (directory.join("full.cap"), directory.join("ballast"));
    std::fs::write(&ballast, vec![1; 600 << 10]).unwrap();
    let mut writer = Writer::create(&path, CreateOptions::default()).unwrap();
    let mut work = Workload::new();
    let mut at = 1000;
    let mut written = 0u64;
    let mut feed = |writer: &mut Writer, work: &mut Workload, count: u64| {
        let batch = work.batch(at..at + count, true);
        at += count;
        written += count;
        writer.write(&batch)
    };
    let mut errors = Vec::new();
    while errors.is_empty() {
        errors.extend(feed(&mut writer, &mut work, 2000).err());
    }
    let message = errors[0].to_string();
    assert!(message.contains("No space left on device"), "{message}");
    // While it is full: nothing more is said, and what is there reads.
    for _ in 0..20 {
        feed(&mut writer, &mut work, 2000).unwrap();
    }
    writer
        .tick(Instant::now() + Duration::from_secs(1))
        .unwrap();
    let during = summary(&path);
    assert_eq!(during.damage, []);
    assert!(during.samples() > 0);
    let dropped = writer.totals().dropped;
    assert!(dropped > 0);
    // There is room again: the recording goes on, and says what is missing.
    std::fs::remove_file(&ballast).unwrap();
    std::thread::sleep(Duration::from_millis(600));
    writer.tick(Instant::now()).unwrap();
    feed(&mut writer, &mut work, 2000).unwrap();
    work.next_epoch();
    feed(&mut writer, &mut work, 100).unwrap();
    let totals = writer.finish().unwrap();
    let after = summary(&path);
    assert_eq!(after.damage, []);
    assert!(after.ended);
    let mut reader = Reader::open(&path).unwrap();
    assert!(!reader.load_tables().unwrap().is_cut_off);
    assert!(after.samples() > during.samples());
    assert_eq!(after.samples() + totals.dropped, written);
    assert_eq!(after.lost[&LostReason::UnwrittenSamples], totals.dropped);
    assert_eq!(after.dropped, totals.dropped);
}

#[test]
#[ignore = "runs as a child of what_is_missing_at_the_end_of_a_full_disk_is_told_with_its_number"]
fn child_ends_on_a_full_disk() {
    let Some(directory) = std::env::var_os(CHILD) else {
        return;
    };
    let path = Path::new(&directory).join("full.cap");
    let ballast = Path::new(&directory).join("ballast");
    std::fs::write(&ballast, vec![1; 16 << 10]).unwrap();
    let mut writer = Writer::create(&path, CreateOptions::default()).unwrap();
    let mut work = Workload::new();
    let (mut at, mut told) = (1000, 0);
    let mut errors = Vec::new();
    for round in 0..60 {
        let mut batch = work.batch(at..at + 2000, true);
        at += 2000;
        if round % 10 == 9 {
            // Who tells of losses and finds no room is told later.
            let time = Timestamp(at);
            batch.events.push(Event::Lost(Lost {
                cpu: None,
                from: time,
                to: time,
                count: 100,
                reason: LostReason::Late,
            }));
            told += 100;
        }
        errors.extend(writer.write(&batch).err());
    }
    assert_eq!(errors.len(), 1, "{errors:?}");
    // There is room for the end, and for little more.
    std::fs::remove_file(&ballast).unwrap();
    let totals = writer.finish().unwrap();
    let found = summary(&path);
    assert_eq!(found.damage, []);
    assert!(totals.dropped > 0);
    let all = [
        (LostReason::Late, told),
        (LostReason::UnwrittenSamples, totals.dropped),
    ];
    assert_eq!(found.lost, all.into_iter().collect());
    assert_eq!(totals.unwritten, all[1..]);
    assert_eq!(found.samples() + totals.dropped, 60 * 2000);
}

#[test]
#[ignore = "runs as a child of what_tells_of_all_the_time_has_room_on_a_full_disk"]
fn child_waits_on_a_full_disk() {
    let Some(directory) = std::env::var_os(CHILD) else {
        return;
    };
    let path = Path::new(&directory).join("full.cap");
    let mut writer = Writer::create(&path, CreateOptions::default()).unwrap();
    let mut work = Workload::new();
    let mut at = 1000;
    let thread = ThreadId::from_index(0);
    let counted = |from, to| {
        Event::Waits(Waits {
            thread,
            from: Timestamp(from),
            to: Timestamp(to),
            count: [0, 2, 0, 0],
            ns: [0, 500, 0, 0],
            runnable_ns: 10,
        })
    };
    let mut errors = Vec::new();
    let mut last = Batch::default();
    for _ in 0..60 {
        let mut batch = work.batch(at..at + 2000, true);
        batch.events.push(counted(at, at + 2000));
        at += 2000;
        errors.extend(writer.write(&batch).err());
        last = batch;
    }
    assert_eq!(errors.len(), 1, "{errors:?}");
    assert!(writer.totals().dropped > 0);
    // One wait that goes on at the end, with a stack that is defined when there is no room.
    let mut going_on = work.batch(at..at + 1, true);
    for event in &mut going_on.events {
        if let Event::Sample(sample) = event {
            sample.weight = at;
            sample.wait = Some(Wait {
                ns: at,
                runnable_ns: 0,
                state: WaitState::Sleeping,
                waker: None,
                count: 1,
                open: true,
            });
        }
    }
    assert_eq!(going_on.epoch, last.epoch);
    writer.write(&going_on).unwrap();
    // Nobody gives room.
    std::fs::write(Path::new(&directory).join("ballast"), vec![1; 1 << 20]).unwrap_err();
    let totals = writer.finish().unwrap();
    let found = summary(&path);
    assert_eq!(found.damage, []);
    assert!(found.ended);
    assert_eq!(found.counted_waits, (60 * 2 + 1, 60 * 500));
    assert_eq!(found.waits[WaitState::Sleeping as usize].ns, at);
    assert_eq!(found.unusable, 0);
    assert_eq!(
        found.lost,
        [(LostReason::UnwrittenSamples, totals.dropped)].into()
    );
    assert_eq!(found.samples() + totals.dropped, 60 * 2000 + 1);
    // All that was held is given back.
    let file = path.metadata().unwrap();
    assert!(file.blocks() * 512 < file.len() + (16 << 10), "{file:?}");
}

#[test]
#[ignore = "runs as a child of a_ring_on_a_full_disk_keeps_the_newest"]
fn child_fills_the_disk_with_a_ring() {
    let Some(directory) = std::env::var_os(CHILD) else {
        return;
    };
    let path = Path::new(&directory).join("r.cap");
    let options = CreateOptions {
        ring: Some(Limit::of_bytes(20 << 20)),
        ..CreateOptions::default()
    };
    let mut writer = Writer::create(&path, options).unwrap();
    let mut work = Workload::new();
    let mut errors = Vec::new();
    let mut now = Instant::now();
    for tick in 0..1000u64 {
        if writer.wants_new_epoch() {
            work.next_epoch();
        }
        let at = tick * 100_000_000;
        errors.extend(writer.write(&work.batch(at..at + 500, true)).err());
        now += Duration::from_secs(1);
        errors.extend(writer.tick(now).err());
    }
    let folder = Path::new(&directory).join("r.cap.ring");
    let kept = parts(&folder);
    assert!(
        matches!(&errors[..], [CaptureError::Crowded(at)] if *at == folder),
        "{errors:?}"
    );
    assert!((2..16).contains(&kept.len()), "{kept:?}");
    let totals = writer.totals();
    assert_eq!(totals.dropped, 0);
    assert!(totals.crowded_out > 10, "{}", totals.crowded_out);
    let newest = summary(kept.last().unwrap());
    assert!(newest.span.unwrap().1.0 > 990 * 100_000_000);
    let bytes: u64 = kept.iter().map(|part| part.metadata().unwrap().len()).sum();
    assert!(bytes > 550 << 10, "only {bytes} bytes are kept");

    // There is no room for another copy of it: the parts stay.
    let error = writer.finish().unwrap_err().to_string();
    assert!(
        error.contains("No space left") && error.contains("r.cap.ring"),
        "{error}"
    );
    assert!(!path.exists());
    let left = parts(&folder);
    assert!(left.len() >= kept.len() - 1, "{left:?}");

    // Where others have taken all the room, one part goes on, and no more are made.
    std::fs::remove_dir_all(&folder).unwrap();
    let options = CreateOptions {
        ring: Some(Limit::of_bytes(20 << 20)),
        ..CreateOptions::default()
    };
    let mut writer = Writer::create(&path, options).unwrap();
    let mut work = Workload::new();
    writer.write(&work.batch(0..500, true)).unwrap();
    now = Instant::now() + Duration::from_secs(1);
    writer.tick(now).unwrap();
    let ballast = Path::new(&directory).join("ballast");
    std::fs::write(&ballast, vec![1; 2 << 20]).unwrap_err();
    for tick in 1..200u64 {
        if writer.wants_new_epoch() {
            work.next_epoch();
        }
        let at = tick * 100_000_000;
        errors.extend(writer.write(&work.batch(at..at + 20_000, true)).err());
    }
    assert!(
        errors.len() > 1 && are_of_writing(&errors[1..]),
        "{errors:?}"
    );
    let only = parts(&folder);
    assert_eq!(only.len(), 1, "{only:?}");
    assert!(summary(&only[0]).samples() >= 500);
    // As soon as there is room it goes on.
    std::fs::remove_file(&ballast).unwrap();
    std::thread::sleep(Duration::from_millis(600));
    for tick in 200..210u64 {
        if writer.wants_new_epoch() {
            work.next_epoch();
        }
        let at = tick * 100_000_000;
        writer.write(&work.batch(at..at + 500, true)).unwrap();
    }
    writer
        .tick(Instant::now() + Duration::from_secs(1))
        .unwrap();
    let newest = summary(parts(&folder).last().unwrap());
    assert!(newest.span.unwrap().1.0 > 200 * 100_000_000);
    assert!(newest.samples() > 0 && writer.totals().dropped > 0);
}

#[test]
fn a_full_disk_is_said_once_and_survived() {
    on_a_small_disk(
        "a_full_disk_is_said_once_and_survived",
        "child_fills_the_disk",
    );
}

#[test]
fn what_is_missing_at_the_end_of_a_full_disk_is_told_with_its_number() {
    on_a_small_disk(
        "what_is_missing_at_the_end_of_a_full_disk_is_told_with_its_number",
        "child_ends_on_a_full_disk",
    );
}

#[test]
fn what_tells_of_all_the_time_has_room_on_a_full_disk() {
    on_a_small_disk(
        "what_tells_of_all_the_time_has_room_on_a_full_disk",
        "child_waits_on_a_full_disk",
    );
}

#[test]
fn a_ring_on_a_full_disk_keeps_the_newest() {
    on_a_small_disk(
        "a_ring_on_a_full_disk_keeps_the_newest",
        "child_fills_the_disk_with_a_ring",
    );
}

fn are_of_writing(errors: &[CaptureError]) -> bool {
    let is_of_writing = |error| matches!(error, &CaptureError::Write { .. });
    errors.iter().all(is_of_writing)
}

/// Runs a test of this executable in a folder that has room for a megabyte.
fn on_a_small_disk(test: &str, run: &str) {
    if !rustix::process::geteuid().is_root() {
        profiler_tests::skip::skip(test, "mounting needs root");
        return;
    }
    let scratch = Scratch::new(&format!("output-{run}")).unwrap();
    // A mount namespace of its own: the tmpfs ends with the child.
    let script = "mount -t tmpfs -o size=1m tmpfs \"$CAPTURE_TEST_CHILD\" && exec \"$0\" \"$@\"";
    let run = child(run, scratch.folder());
    let status = Command::new("unshare")
        .args(["--mount", "sh", "-c", script])
        .arg(run.get_program())
        .args(run.get_args())
        .env(CHILD, scratch.folder())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&status.stdout) + String::from_utf8_lossy(&status.stderr);
    assert!(
        status.status.success() && said.contains("1 passed"),
        "{said}"
    );
}

#[test]
fn a_deleted_output_is_said_once() {
    let scratch = Scratch::new("output-deleted").unwrap();
    let path = scratch.file("gone.cap");
    let mut writer = Writer::create(&path, CreateOptions::default()).unwrap();
    let mut work = Workload::new();
    writer.write(&work.batch(0..10, true)).unwrap();
    let mut later = Instant::now() + Duration::from_secs(1);
    writer.tick(later).unwrap();
    std::fs::remove_file(&path).unwrap();
    let mut said = Vec::new();
    for _ in 0..3 {
        later += Duration::from_secs(1);
        said.extend(writer.tick(later).err());
    }
    assert!(matches!(&said[..], [CaptureError::Vanished(_)]), "{said:?}");
}

#[test]
fn what_is_in_the_way_is_left_alone() {
    let scratch = Scratch::new("output-way").unwrap();
    let force = CreateOptions {
        existing: Existing::Replace,
        ..CreateOptions::default()
    };
    let create = |path: &Path, options: &CreateOptions| Writer::create(path, options.clone());
    let old = scratch.file("old");
    std::fs::write(&old, "precious").unwrap();

    // A writer that does not begin changes nothing.
    drop(create(&old, &CreateOptions::default()).unwrap());
    assert_eq!(std::fs::read(&old).unwrap(), b"precious");

    let (link, dangling) = (scratch.file("link"), scratch.file("dangling"));
    symlink(&old, &link).unwrap();
    symlink(scratch.file("nowhere"), &dangling).unwrap();
    for path in [&link, &dangling] {
        for options in [&force, &CreateOptions::default()] {
            let error = create(path, options).err().unwrap();
            assert!(error.to_string().contains("symbolic link"), "{error}");
        }
    }
    assert_eq!(std::fs::read(&old).unwrap(), b"precious");
    assert!(!scratch.file("nowhere").exists());

    for path in [scratch.folder().to_owned(), PathBuf::from("/dev/null")] {
        let error = create(&path, &force).err().unwrap();
        assert!(matches!(error, CaptureError::NotRegular { .. }), "{error}");
    }
    let null = std::fs::symlink_metadata("/dev/null").unwrap();
    assert!(null.file_type().is_char_device());

    // Replaced, not written to: another name of the old file keeps the old content.
    let other = scratch.file("other name");
    std::fs::hard_link(&old, &other).unwrap();
    create(&old, &force).unwrap().finish().unwrap();
    assert_eq!(std::fs::read(&other).unwrap(), b"precious");
    assert!(summary(&old).ended);
    let mode = std::fs::metadata(&old).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let left: Vec<_> = std::fs::read_dir(scratch.folder())
        .unwrap()
        .flatten()
        .collect();
    assert_eq!(left.len(), 4, "nothing stays behind: {left:?}");
}

/// Feeds a recording of `seconds` as the pipeline would, a batch each 100 ms.
fn record(writer: &mut Writer, seconds: u64, per_batch: u64) -> u64 {
    let mut work = Workload::new();
    let mut at = 0;
    for tick in 0..seconds * 10 {
        if writer.wants_new_epoch() {
            work.next_epoch();
        }
        at = tick * 100_000_000;
        let times = (0..per_batch).map(|i| at + i * 1000);
        writer.write(&work.batch(times, true)).unwrap();
    }
    at
}

fn parts(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).unwrap().flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

#[test]
fn a_ring_of_time_keeps_the_newest() {
    let scratch = Scratch::new("output-ringtime").unwrap();
    let path = scratch.file("ring.cap");
    let options = CreateOptions {
        ring: Some(Limit::of_time(Duration::from_secs(20))),
        ..CreateOptions::default()
    };
    let mut writer = Writer::create(&path, options).unwrap();
    let end = record(&mut writer, 100, 20);

    // On demand, while it runs.
    let (dump, directory) = (scratch.file("dump.cap"), scratch.file("ring.cap.ring"));
    writer.dump(&dump).unwrap().run().unwrap();
    let check = |path: &Path| {
        let found = summary(path);
        assert_eq!(found.damage, []);
        let (first, last) = found.span.unwrap();
        let span = last.since(first) as f64 / 1e9;
        // It began when its oldest part did, not when the recording did.
        let before_ns = first.since(found.session.started);
        assert!(last.0 >= end);
        (span, before_ns, found)
    };
    let of_limit = |path: &Path| {
        let (span, before_ns, found) = check(path);
        assert!(found.ended);
        assert!((19.9..=20.0).contains(&span), "{span} s of 20 s");
        assert!(before_ns <= 100_000_000, "{before_ns} ns");
        found.samples()
    };
    let dumped = of_limit(&dump);

    // Each part is a capture, should the recorder be killed now.
    let joined = scratch.file("joined.cap");
    let left = parts(&directory);
    assert!(left.len() > 8, "{left:?}");
    merge(&left, &joined, CreateOptions::default()).unwrap();
    let (span, before_ns, found) = check(&joined);
    assert!(!found.ended, "the newest part is still written");
    let samples = found.samples();
    assert!((20.0..22.6).contains(&span), "{span} s are kept of 20 s");
    assert!((1..=100_000_000).contains(&before_ns), "{before_ns} ns");
    assert_eq!(samples % 20, 0);
    assert!(samples >= dumped, "{samples} and {dumped}");
    let mode = std::fs::metadata(&directory).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);

    let totals = writer.finish().unwrap();
    assert_eq!(of_limit(&path), totals.events[0]);
    assert_eq!(totals.length_ns / 1_000_000, 20_000);
    assert_eq!(totals.bytes, std::fs::metadata(&path).unwrap().len());
    assert!(!directory.exists());
}

/// What a recording with a ring tells at its end is of what the ring has kept, as what is said is lost.
#[test]
fn what_a_ring_lacks_is_of_the_time_that_it_has() {
    let scratch = Scratch::new("output-ringlost").unwrap();
    let path = scratch.file("ring.cap");
    let options = CreateOptions {
        ring: Some(Limit::of_time(Duration::from_secs(10))),
        ..CreateOptions::default()
    };
    let mut writer = Writer::create(&path, options).unwrap();
    let mut work = Workload::new();
    for tick in 0..300u64 {
        if writer.wants_new_epoch() {
            work.next_epoch();
        }
        let at = tick * 100_000_000;
        let mut batch = work.batch(at..at + 10, true);
        batch.events.push(Event::Lost(Lost {
            cpu: None,
            from: Timestamp(at),
            to: Timestamp(at + 10),
            count: 3,
            reason: LostReason::RingFull,
        }));
        writer.write(&batch).unwrap();
    }
    let totals = writer.finish().unwrap();
    let found = summary(&path);
    assert_eq!(totals.ticked, found.samples());
    let lost = found.lost.into_iter().collect::<Vec<_>>();
    assert_eq!(totals.lost, lost);
    let (reason, count) = lost[0];
    assert_eq!(reason, LostReason::RingFull);
    assert!((290..=303).contains(&count), "{count}");
}

/// A part with the highest number there can be, and one that is no file: the first is told before anything is
/// recorded, the second is stepped over.
#[test]
fn numbers_of_parts_that_leave_no_room_are_told_at_the_start() {
    let scratch = Scratch::new("output-numbers").unwrap();
    let (path, directory) = (scratch.file("ring.cap"), scratch.file("ring.cap.ring"));
    let options = CreateOptions {
        ring: Some(Limit::of_bytes(1 << 20)),
        ..CreateOptions::default()
    };
    std::fs::create_dir(&directory).unwrap();
    let highest = directory.join(format!("part-{}.cap", u64::MAX));
    std::fs::write(&highest, "x").unwrap();
    let error = Writer::create(&path, options.clone()).err().unwrap();
    let error = error.to_string();
    assert!(
        error.contains("part-18446744073709551615.cap leaves no higher number"),
        "{error}"
    );
    assert_eq!(parts(&directory), std::slice::from_ref(&highest));

    // Names that no ring makes are of no number.
    std::fs::rename(&highest, directory.join(format!("part-+{}.cap", u64::MAX))).unwrap();
    std::fs::create_dir(directory.join("part-000004.cap")).unwrap();
    let mut writer = Writer::create(&path, options).unwrap();
    assert_eq!(writer.kept(), Some((directory.as_path(), 0)));
    writer.publish().unwrap();
    assert!(directory.join("part-000005.cap").is_file());
}

/// Recorders that are killed one after the other: what they had stays, within the limits.
#[test]
fn a_ring_keeps_what_killed_recorders_had() {
    let scratch = Scratch::new("output-killed").unwrap();
    let (path, directory) = (scratch.file("ring.cap"), scratch.file("ring.cap.ring"));
    let options = CreateOptions {
        ring: Some(Limit {
            bytes: Some(1 << 20),
            time: Some(Duration::from_secs(3600)),
        }),
        // Force is about files, and never about parts.
        existing: Existing::Replace,
        ..CreateOptions::default()
    };
    let mut samples = 0;
    for run in 0..3 {
        let mut writer = Writer::create(&path, options.clone()).unwrap();
        assert_eq!(writer.kept(), Some((directory.as_path(), run)));
        let mut work = Workload::new();
        writer.write(&work.batch(run as u64..100, true)).unwrap();
        writer
            .tick(Instant::now() + Duration::from_secs(1))
            .unwrap();
        samples += 100 - run as u64;
        let error = Writer::create(&path, options.clone()).err().unwrap();
        assert!(matches!(error, CaptureError::Busy(_)), "{error}");
        // As a kill leaves it: nothing is finished. Its locks go with it.
        drop(writer);
    }
    let left = parts(&directory);
    assert_eq!(left.len(), 3, "{left:?}");
    let joined = scratch.file("joined.cap");
    merge(&left, &joined, CreateOptions::default()).unwrap();
    assert_eq!(summary(&joined).samples(), samples);

    // What ends well leaves theirs.
    let mut writer = Writer::create(&path, options.clone()).unwrap();
    let mut work = Workload::new();
    writer.write(&work.batch(0..7, true)).unwrap();
    writer.finish().unwrap();
    assert_eq!(summary(&path).samples(), 7);
    assert_eq!(parts(&directory), left);

    // What is too old goes, then what finds no room; the newest stays longest.
    let old = std::time::SystemTime::now() - Duration::from_secs(3700);
    let first = std::fs::OpenOptions::new()
        .write(true)
        .open(&left[0])
        .unwrap();
    first.set_modified(old).unwrap();
    let grow = std::fs::OpenOptions::new()
        .write(true)
        .open(&left[1])
        .unwrap();
    grow.set_len(1 << 20).unwrap();
    let mut writer = Writer::create(&path, options).unwrap();
    let mut work = Workload::new();
    writer.write(&work.batch(0..7, true)).unwrap();
    writer
        .tick(Instant::now() + Duration::from_secs(1))
        .unwrap();
    let kept = parts(&directory);
    assert_eq!(kept.len(), 2, "{kept:?}");
    assert_eq!(kept[0], left[2]);
    assert!(kept[1].ends_with("part-000004.cap"), "{kept:?}");
}

#[test]
fn a_ring_of_bytes_never_grows_beyond() {
    let scratch = Scratch::new("output-ringbytes").unwrap();
    let path = scratch.file("ring.cap");
    let limit = 1 << 20;
    let options = CreateOptions {
        ring: Some(Limit::of_bytes(limit)),
        ..CreateOptions::default()
    };
    let mut writer = Writer::create(&path, options).unwrap();
    let directory = scratch.file("ring.cap.ring");
    let mut work = Workload::new();
    let mut most = 0;
    for tick in 0..3000u64 {
        if writer.wants_new_epoch() {
            work.next_epoch();
        }
        let at = tick * 100_000_000;
        writer.write(&work.batch(at..at + 100, true)).unwrap();
        let sizes = parts(&directory).into_iter();
        most = most.max(sizes.map(|path| path.metadata().unwrap().len()).sum());
    }
    assert!(most <= limit, "{most} bytes");
    assert!(
        most >= limit / 8 * 6,
        "only {most} bytes of {limit} are used"
    );
    writer.finish().unwrap();
    let found = summary(&path);
    assert_eq!(found.damage, []);
    assert!(
        found.bytes <= limit && found.bytes >= limit / 2,
        "{}",
        found.bytes
    );
}

#[test]
fn rotation_makes_files_that_stand_alone() {
    let scratch = Scratch::new("output-rotate").unwrap();
    let options = CreateOptions {
        rotate: Some(Limit::of_time(Duration::from_secs(10))),
        ..CreateOptions::default()
    };
    let mut writer = Writer::create(&scratch.file("profile.cap"), options).unwrap();
    record(&mut writer, 45, 10);
    let totals = writer.finish().unwrap();
    let files = parts(scratch.folder());
    assert_eq!(files.len(), totals.files as usize);
    assert_eq!(files.len(), 5, "{files:?}");
    assert!(files[0].ends_with("profile-0001.cap") && files[4].ends_with("profile-0005.cap"));
    let (mut samples, mut until) = (0, None);
    for file in &files {
        let found = summary(file);
        assert!(found.ended && found.damage.is_empty());
        samples += found.samples();
        // It begins where the one before ends.
        let (_, last) = found.span.unwrap();
        assert!(until.is_none_or(|until| found.session.started == until));
        until = Some(last);
    }
    assert_eq!(samples, 45 * 10 * 10);
    assert_eq!(totals.events[0], samples);

    // Joined again, each function has the samples that it had in the parts.
    let joined = scratch.file("joined.cap");
    merge(&files, &joined, CreateOptions::default()).unwrap();
    let mut all = std::collections::BTreeMap::new();
    for file in &files {
        count_frames(file, &mut all);
    }
    let mut together = std::collections::BTreeMap::new();
    count_frames(&joined, &mut together);
    assert_eq!(all, together);
}

/// Samples by name of their frames.
fn count_frames(path: &Path, counts: &mut std::collections::BTreeMap<String, u64>) {
    struct Counter<'c>(&'c mut std::collections::BTreeMap<String, u64>, bool);
    impl Sink for Counter<'_> {
        fn event(&mut self, event: &Event, tables: &Tables) -> std::io::Result<()> {
            if let Event::Sample(sample) = event {
                for frame in tables.frames_of(sample.user) {
                    *self.0.entry(tables.frame_name(frame)).or_default() += 1;
                }
            }
            Ok(())
        }
        fn finish(&mut self, _: &Tables) -> std::io::Result<()> {
            self.1 = true;
            Ok(())
        }
    }
    let mut reader = Reader::open(path).unwrap();
    let tables = reader.load_tables().unwrap();
    let mut counter = Counter(counts, false);
    replay_into(&mut reader, &tables, TimeRange::ALL, &mut [&mut counter]).unwrap();
    assert!(counter.1);
}

#[test]
fn limits_that_make_no_sense_are_refused() {
    let scratch = Scratch::new("output-limits").unwrap();
    for (ring, rotate) in [
        (Some(Limit::of_bytes(1000)), None),
        (None, Some(Limit::of_time(Duration::from_secs(1)))),
        (
            Some(Limit::of_bytes(1 << 30)),
            Some(Limit::of_bytes(1 << 30)),
        ),
    ] {
        let options = CreateOptions {
            ring,
            rotate,
            ..CreateOptions::default()
        };
        let made = Writer::create(&scratch.file("x.cap"), options);
        assert!(matches!(made, Err(CaptureError::Options(_))));
    }
    assert!(parts(scratch.folder()).is_empty());
}
