//! Captures of one recording that have times in common, joined: each event once, whatever was written out when, and in
//! which order the files come.

// What fails here fails the test, in its functions too.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::time::Duration;

use profiler_capture::{
    CreateOptions, Existing, Limit, Merged, Reader, TimeRange, Writer, merge, rewrite,
};
use profiler_model::*;
use profiler_tests::scratch::Scratch;

const SECOND: u64 = 1_000_000_000;

/// A recording of a thread that runs, and one that hangs all the time.
struct Recording {
    writer: Writer,
    recordings: Vec<u64>,
    epoch: u32,
    is_announced: bool,
    /// Up to when all was told.
    at: u64,
}

const BUSY: usize = 0;
const HUNG: usize = 1;

impl Recording {
    fn new(path: &Path, options: CreateOptions, recordings: &[u64]) -> Recording {
        Recording {
            writer: Writer::create(path, options).unwrap(),
            recordings: recordings.to_vec(),
            epoch: 0,
            is_announced: false,
            at: SECOND,
        }
    }

    fn ring(path: &Path) -> Recording {
        let options = CreateOptions {
            ring: Some(Limit::of_time(Duration::from_secs(20))),
            ..CreateOptions::default()
        };
        Recording::new(path, options, &[7])
    }

    fn definitions(&mut self) -> Vec<Definition> {
        if std::mem::replace(&mut self.is_announced, true) {
            return Vec::new();
        }
        let name = StringId::from_index(0);
        let session = Session {
            host: "here".to_owned(),
            target: "pid 1".to_owned(),
            started: Timestamp(SECOND),
            recordings: self.recordings.clone(),
            ..Session::default()
        };
        let source = Source {
            name,
            unit: Unit::Nanoseconds,
            frequency_hz: Some(99),
            period: None,
        };
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
        let function = Function {
            name,
            linkage_name: None,
            module: None,
            file: None,
            line: 0,
            start: None,
            size: None,
        };
        let thread = |index: usize| {
            let thread = Thread {
                process: ProcessId::from_index(0),
                tid: Tid(index as u32 + 1),
                started: Timestamp(1),
                name,
            };
            Definition::Thread(ThreadId::from_index(index), thread)
        };
        vec![
            Definition::Session(session),
            Definition::String(name, "work".into()),
            Definition::Source(SourceId::from_index(0), source),
            Definition::Process(ProcessId::from_index(0), process),
            thread(BUSY),
            thread(HUNG),
            Definition::Function(FunctionId::from_index(0), function),
        ]
    }

    fn write(&mut self, events: Vec<Event>) {
        let batch = Batch {
            epoch: self.epoch,
            definitions: self.definitions(),
            events,
        };
        self.writer.write(&batch).unwrap();
    }

    /// Half a second in which something happens of each kind; then all that was waited in it is told, as at each cut.
    fn run_half_a_second(&mut self) {
        if self.writer.wants_new_epoch() {
            self.epoch += 1;
            self.is_announced = false;
        }
        let (from, to) = (self.at, self.at + SECOND / 2);
        let middle = Timestamp(from + SECOND / 4);
        let [busy, hung] = [BUSY, HUNG].map(ThreadId::from_index);
        let (cpu, source) = (Cpu(0), SourceId::from_index(0));
        let ns = to - from;
        let wait = Wait {
            ns,
            runnable_ns: 0,
            state: WaitState::Sleeping,
            waker: None,
            count: 1,
            open: true,
        };
        let waited = Sample {
            wait: Some(wait),
            ..Sample::new(Timestamp(to), hung, cpu, source, ns)
        };
        let waits = Waits {
            thread: hung,
            from: Timestamp(from),
            to: Timestamp(to),
            count: [0; 4],
            ns: [0, ns, 0, 0],
            runnable_ns: 0,
        };
        let count = CallCount {
            function: FunctionId::from_index(0),
            from: Timestamp(from),
            to: middle,
            entries: 3,
            exits: 3,
            lost: 0,
            left_out: 0,
        };
        let lost = Lost {
            cpu: None,
            from: middle,
            to: middle,
            count: 5,
            reason: LostReason::RingFull,
        };
        let started = ProcessEvent {
            at: middle,
            thread: busy,
            change: ProcessChange::Started,
        };
        let mark = Mark {
            at: middle,
            text: StringId::from_index(0),
        };
        self.write(vec![
            Event::Sample(Sample::new(middle, busy, cpu, source, 11)),
            Event::CallCount(count),
            Event::Lost(lost),
            Event::Process(started),
            Event::Mark(mark),
            Event::Sample(waited),
            Event::Waits(waits),
        ]);
        self.at = to;
    }

    fn run_until(&mut self, second: u64) {
        while self.at < second * SECOND {
            self.run_half_a_second();
        }
    }

    fn dump(&mut self, path: &Path) -> PathBuf {
        self.writer.dump(path).unwrap().run().unwrap();
        path.to_owned()
    }
}

/// What a capture has, in sums.
#[derive(Debug, Default, PartialEq, Eq)]
struct Sums {
    weight: u64,
    /// Waits of the thread that hangs, from and to.
    hung: Vec<(u64, u64)>,
    counted_ns: u64,
    calls: u64,
    lost: u64,
    started: u64,
    marks: u64,
}

impl Sums {
    fn of(path: &Path) -> Sums {
        let mut reader = Reader::open(path).unwrap();
        let tables = reader.load_tables().unwrap();
        let mut sums = Sums::default();
        let mut each = |event: &Event, _: &Tables| {
            match event {
                Event::Sample(sample) => match sample.wait {
                    Some(wait) => sums.hung.push((sample.at.0 - wait.ns, sample.at.0)),
                    None => sums.weight += sample.weight,
                },
                Event::Waits(waits) => sums.counted_ns += waits.ns.iter().sum::<u64>(),
                Event::CallCount(count) => sums.calls += count.entries,
                Event::Lost(lost) => sums.lost += lost.count,
                Event::Process(_) => sums.started += 1,
                Event::Mark(_) => sums.marks += 1,
                _ => {}
            }
            Ok(())
        };
        reader.replay(&tables, TimeRange::ALL, &mut each).unwrap();
        sums
    }

    /// What is told of these times, of which each half second has the same.
    fn between(spans: &[(u64, u64)]) -> Sums {
        let ns = spans.iter().map(|(from, to)| to - from).sum();
        let halves = ns / (SECOND / 2);
        Sums {
            weight: 11 * halves,
            hung: spans.to_vec(),
            counted_ns: ns,
            calls: 3 * halves,
            lost: 5 * halves,
            started: halves,
            marks: halves,
        }
    }
}

fn merged(inputs: &[&PathBuf], out: &Path) -> Merged {
    let inputs: Vec<PathBuf> = inputs.iter().map(|&path| path.clone()).collect();
    let options = CreateOptions {
        existing: Existing::Replace,
        ..CreateOptions::default()
    };
    merge(&inputs, out, options).unwrap()
}

#[test]
fn what_a_ring_wrote_out_more_than_once_is_counted_once() {
    let scratch = Scratch::new("merge-ring").unwrap();
    let (path, out) = (scratch.file("r.cap"), scratch.file("out.cap"));
    let mut recording = Recording::ring(&path);
    recording.run_until(10);
    let one = recording.dump(&scratch.file("r-dump1.cap"));
    recording.run_until(20);
    let two = recording.dump(&scratch.file("r-dump2.cap"));
    recording.run_until(36);
    recording.writer.finish().unwrap();

    // The first one has what the ring has lost since, and in the end there is a part that only the second has.
    let sums = [&one, &two, &path].map(|path| Sums::of(path));
    let [(_, _), (_, _), (began, ended)] = [0, 1, 2].map(|i| sums[i].hung[0]);
    assert_eq!(sums[0], Sums::between(&[(SECOND, 10 * SECOND)]));
    assert_eq!(sums[1], Sums::between(&[(SECOND, 20 * SECOND)]));
    assert_eq!(sums[2], Sums::between(&[(began, 36 * SECOND)]));
    assert!(began > 10 * SECOND && began < 20 * SECOND && ended == 36 * SECOND);

    let whole = Sums::between(&[(SECOND, 36 * SECOND)]);
    let orders = [
        [0, 1, 2],
        [0, 2, 1],
        [1, 0, 2],
        [1, 2, 0],
        [2, 0, 1],
        [2, 1, 0],
    ];
    for order in orders {
        let files = order.map(|index| [&one, &two, &path][index]);
        let told = merged(&files, &out);
        assert_eq!(Sums::of(&out), whole, "{order:?}");
        // 7 of each half second.
        let both = (10 * SECOND - SECOND) + (20 * SECOND - began);
        assert_eq!(told.shared, both / (SECOND / 2) * 7, "{order:?}");
        assert!(told.doubtful.is_empty());
    }

    // With a time that none has, and the second one put into it.
    let gap = [(SECOND, 10 * SECOND), (began, 36 * SECOND)];
    let told = merged(&[&one, &path], &out);
    assert_eq!((Sums::of(&out), told.shared), (Sums::between(&gap), 0));
    let again = scratch.file("again.cap");
    let error = merge(&[out, two.clone()], &again, CreateOptions::default());
    let error = error.unwrap_err().to_string();
    assert!(
        error.contains("both have events of one recording"),
        "{error}"
    );

    // What was made of some of them, in which waits are whole, with others.
    let made = scratch.file("made.cap");
    merged(&[&two, &path], &made);
    let copy = scratch.file("copy.cap");
    rewrite(&path, &copy, CreateOptions::default(), |_| ()).unwrap();
    for files in [
        [&made, &one, &two],
        [&one, &made, &two],
        [&two, &one, &made],
        [&one, &two, &copy],
        [&copy, &two, &one],
    ] {
        merged(&files, &again);
        assert_eq!(Sums::of(&again), whole, "{files:?}");
    }
}

#[test]
fn a_capture_joined_with_itself_is_that_capture() {
    let scratch = Scratch::new("merge-itself").unwrap();
    let out = scratch.file("out.cap");
    // One that says of which recording it is, and one that does not.
    for (name, ids) in [("a.cap", &[7][..]), ("b.cap", &[])] {
        let path = scratch.file(name);
        let mut recording = Recording::new(&path, CreateOptions::default(), ids);
        recording.run_until(4);
        recording.writer.finish().unwrap();
        let told = merged(&[&path, &path], &out);
        assert_eq!(Sums::of(&out), Sums::between(&[(SECOND, 4 * SECOND)]));
        assert_eq!((told.shared, told.doubtful.len()), (6 * 7, 0));
    }
}

#[test]
fn files_of_a_rotation_are_joined_whole() {
    let scratch = Scratch::new("merge-rotation").unwrap();
    let options = CreateOptions {
        rotate: Some(Limit::of_time(Duration::from_secs(10))),
        ..CreateOptions::default()
    };
    let mut recording = Recording::new(&scratch.file("r.cap"), options, &[7]);
    recording.run_until(30);
    let files = recording.writer.finish().unwrap().files;
    assert_eq!(files, 3);
    let [one, two, three] = [1, 2, 3].map(|n| scratch.file(&format!("r-000{n}.cap")));
    let (most, out) = (scratch.file("most.cap"), scratch.file("out.cap"));
    assert_eq!(merged(&[&one, &two], &most).shared, 0);
    assert_eq!(merged(&[&one, &two, &three], &out).shared, 0);
    let whole = Sums::between(&[(SECOND, 30 * SECOND)]);
    assert_eq!(Sums::of(&out), whole);
    // What was made of all between two times is as good as one file of them.
    for files in [[&most, &two, &three], [&two, &three, &most]] {
        assert!(merged(&files, &out).shared > 0);
        assert_eq!(Sums::of(&out), whole, "{files:?}");
    }
}

#[test]
fn recordings_of_the_same_time_are_both_there() {
    let scratch = Scratch::new("merge-two").unwrap();
    let record = |name: &str, ids: &[u64]| {
        let path = scratch.file(name);
        let mut recording = Recording::new(&path, CreateOptions::default(), ids);
        recording.run_until(4);
        recording.writer.finish().unwrap();
        path
    };
    let (a, b, out) = (
        record("a.cap", &[7]),
        record("b.cap", &[8]),
        scratch.file("out.cap"),
    );
    let told = merged(&[&a, &b], &out);
    let of = (SECOND, 4 * SECOND);
    let twice = Sums {
        hung: vec![of, of],
        ..Sums::between(&[of, of])
    };
    assert_eq!((Sums::of(&out), told.shared), (twice, 0));
    assert!(told.doubtful.is_empty());
    // In it one can't be told from the other.
    let error = merge(
        &[a, out.clone()],
        &scratch.file("x"),
        CreateOptions::default(),
    );
    assert!(error.is_err());

    // Where nothing says of which recording they are, that is said.
    let (c, d) = (record("c.cap", &[]), record("d.cap", &[]));
    let told = merged(&[&c, &d], &out);
    assert_eq!((told.shared, told.doubtful), (0, vec![(c, d)]));
}

/// What is made of a recording that was cut off is not called whole, whatever comes of it.
#[test]
fn what_is_made_of_an_unfinished_recording_says_so() {
    let scratch = Scratch::new("merge-unfinished").unwrap();
    let path = |name: &str| scratch.file(name);
    let mut recording = Recording::new(&path("whole.cap"), CreateOptions::default(), &[7]);
    recording.run_until(5);
    recording.writer.finish().unwrap();
    let bytes = std::fs::read(path("whole.cap")).unwrap();
    // The footer and the end of the block before it.
    std::fs::write(path("cut.cap"), &bytes[..bytes.len() - 30]).unwrap();
    let is_ended = |name: &str| {
        let open = || Reader::open(&path(name)).unwrap();
        let is_ended = open().summary().unwrap().ended;
        assert_eq!(open().load_tables().unwrap().is_cut_off, !is_ended);
        is_ended
    };
    let replacing = || CreateOptions {
        existing: Existing::Replace,
        ..CreateOptions::default()
    };
    for (input, expected) in [("whole.cap", true), ("cut.cap", false)] {
        assert_eq!(is_ended(input), expected);
        rewrite(&path(input), &path("named.cap"), replacing(), |_| ()).unwrap();
        assert_eq!(is_ended("named.cap"), expected);
        // And of that.
        merge(&[path("named.cap")], &path("again.cap"), replacing()).unwrap();
        assert_eq!(is_ended("again.cap"), expected);
    }
}
