//! Captures as files: what goes in comes out, and what is damaged is named, never guessed.

// What fails here fails the test, in its functions too.
#![allow(clippy::unwrap_used)]

use std::path::Path;

use profiler_capture::{
    CaptureError, CreateOptions, Existing, Reader, TimeRange, Writer, merge, rewrite,
};
use profiler_model::*;
use profiler_tests::arbitrary::{expected, recording, recordings};
use profiler_tests::scratch::Scratch;
use proptest::prelude::*;

fn force() -> CreateOptions {
    CreateOptions {
        existing: Existing::Replace,
        ..CreateOptions::default()
    }
}

fn write(path: &Path, batches: &[Batch]) {
    let mut writer = Writer::create(path, force()).unwrap();
    for batch in batches {
        writer.write(batch).unwrap();
    }
    writer.finish().unwrap();
}

fn replay(reader: &mut Reader, tables: &Tables, range: TimeRange) -> Vec<Event> {
    let mut events = Vec::new();
    let each = &mut |event: &Event, _: &Tables| {
        events.push(event.clone());
        Ok(())
    };
    reader.replay(tables, range, each).unwrap();
    events
}

fn assert_same_tables(got: &Tables, want: &Tables) {
    assert_eq!(got.session, want.session);
    assert!(got.sources.iter().eq(want.sources.iter()));
    assert!(got.modules.iter().eq(want.modules.iter()));
    assert!(got.mappings.iter().eq(want.mappings.iter()));
    assert!(got.functions.iter().eq(want.functions.iter()));
    assert!(got.frames.iter().eq(want.frames.iter()));
    assert!(got.stacks.iter().eq(want.stacks.iter()));
    assert!(got.containers().eq(want.containers()));
    assert!(got.processes().eq(want.processes()));
    assert!(got.threads().eq(want.threads()));
    for (function, _) in want.functions.iter() {
        assert_eq!(got.traced(function), want.traced(function));
    }
    for (frame, _) in want.frames.iter() {
        assert_eq!(got.symbol(frame), want.symbol(frame));
    }
    let code = |tables: &Tables| {
        let mut code: Vec<_> = tables.code().map(|(m, a, b)| (m, a, b.to_vec())).collect();
        code.sort();
        code
    };
    assert_eq!(code(got), code(want));
    // Strings are reached through ids only.
    for id in (0..10_000).map(StringId::from_index) {
        assert_eq!(got.string(id), want.string(id));
    }
}

/// Text that is shown as it is: what is escaped, and again in what holds it, grows and takes most of the
/// time of a test that compares thousands of recordings.
struct Plain<T>(T);

impl<T: AsRef<str>> std::fmt::Debug for Plain<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0.as_ref())
    }
}

/// An event in full, with everything it refers to that no later definition changes.
fn describe(event: &Event, tables: &Tables) -> String {
    let text = |id| Plain(tables.string(id));
    let thread = |id| {
        let thread = tables.thread(id).unwrap();
        let process = tables.process(thread.process).unwrap();
        (thread.tid, thread.started, process.pid, process.started)
    };
    let function = |id| {
        let function = tables.functions.get(id).unwrap();
        let module = function.module.and_then(|id| tables.modules.get(id));
        let module = module.map(|module| text(module.path));
        let (name, start) = (text(function.name), function.start);
        Plain(format!("{name:?} {start:?} {:?} {module:?}", function.size))
    };
    let stack = |id| {
        let frames = tables.frames_of(id).map(|frame| {
            let frame = tables.frames.get(frame).unwrap();
            let module = frame.module.and_then(|id| tables.modules.get(id));
            let module = module.map(|module| {
                let path = text(module.path);
                (module.kind, path, &module.build_id, module.address_bias)
            });
            Plain(format!("{:?} {:#x} {module:?}", frame.kind, frame.address))
        });
        frames.collect::<Vec<_>>()
    };
    match event {
        Event::Sample(sample) => {
            let source = tables.sources.get(sample.source).unwrap();
            let source = (text(source.name), source.unit, source.period);
            let wait = sample.wait.map(|wait| {
                let waker = wait.waker.map(thread);
                (wait.ns, wait.runnable_ns, wait.state, waker, wait.count)
            });
            format!(
                "{:?} {:?} {:?} {:?} {:?} {:?} {:?} {} {source:?} {wait:?} {:?}",
                sample.at,
                thread(sample.thread),
                sample.cpu,
                stack(sample.kernel),
                stack(sample.user),
                sample.kernel_end,
                sample.user_end,
                sample.weight,
                sample.later,
            )
        }
        Event::Process(change) => {
            let name = match change.change {
                ProcessChange::Executed(name) => format!("exec {}", tables.string(name)),
                ProcessChange::Renamed(name) => format!("name {}", tables.string(name)),
                other => format!("{other:?}"),
            };
            format!("{:?} {:?} {name}", change.at, thread(change.thread))
        }
        Event::Mark(mark) => format!("{:?} {:?}", mark.at, text(mark.text)),
        Event::Waits(waits) => format!(
            "{:?} {:?} {:?} {:?} {:?} {}",
            thread(waits.thread),
            waits.from,
            waits.to,
            waits.count,
            waits.ns,
            waits.runnable_ns
        ),
        Event::Call(call) => {
            let edge = match &call.edge {
                CallEdge::Exit(exit) => {
                    let how = match exit.how {
                        ExitKind::Exception(kind) => {
                            format!("exception {:?}", kind.map(text))
                        }
                        other => format!("{other:?}"),
                    };
                    let values = (&exit.result, &exit.whole);
                    format!("{:?} {} {how} {values:?}", exit.began, exit.self_ns)
                }
                other => format!("{other:?}"),
            };
            format!(
                "{:?} {:?} {:?} {:?} {} {edge} {:?}",
                call.at,
                thread(call.thread),
                call.cpu,
                function(call.function),
                call.depth,
                call.later,
            )
        }
        Event::Throw(throw) => {
            let thrower = throw.thrower.and_then(|frame| tables.frames.get(frame));
            let thrower = thrower.map(|frame| (frame.kind, frame.address));
            let kind = text(throw.kind);
            let (at, cpu) = (throw.at, throw.cpu);
            format!(
                "{at:?} {:?} {cpu:?} {kind:?} {thrower:?}",
                thread(throw.thread)
            )
        }
        Event::CallCount(count) => format!(
            "{:?} {:?} {:?} {} {} {} {}",
            count.from,
            count.to,
            function(count.function),
            count.entries,
            count.exits,
            count.lost,
            count.left_out
        ),
        Event::Gap(gap) => {
            let process = gap.process.map(|process| {
                let process = tables.process(process).unwrap();
                (process.pid, process.started)
            });
            let function = gap.function.map(function);
            format!(
                "{:?} {:?} {function:?} {process:?} {:?}",
                gap.from, gap.to, gap.reason
            )
        }
        Event::Clock(_) | Event::Lost(_) => format!("{event:?}"),
    }
}

fn describe_all(events: &[Event], tables: &Tables) -> Vec<String> {
    events.iter().map(|event| describe(event, tables)).collect()
}

/// Opens and reads everything.
fn read(path: &Path) -> Result<(Reader, Tables, Vec<Event>), CaptureError> {
    let mut reader = Reader::open(path)?;
    let tables = reader.load_tables()?;
    let events = replay(&mut reader, &tables, TimeRange::ALL);
    Ok((reader, tables, events))
}

/// When a recording of several epochs began, each of which says it of itself: with the first of them.
fn first_started(batches: &[Batch]) -> Timestamp {
    let (mut epoch, mut began, mut started) = (None, None, Timestamp(0));
    for batch in batches {
        if epoch != Some(batch.epoch) {
            began = epoch.map(|_| started);
            epoch = Some(batch.epoch);
        }
        for definition in &batch.definitions {
            if let Definition::Session(session) = definition {
                started = began.map_or(session.started, |began| session.started.min(began));
            }
        }
    }
    started
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn what_is_written_is_read(batches in recordings()) {
        let scratch = Scratch::new("capture-roundtrip").unwrap();
        let path = scratch.file("a.cap");
        write(&path, &batches);
        let (mut reader, tables, events) = read(&path).unwrap();
        let (mut want_tables, want_events) = expected(&batches);
        want_tables.session.started = first_started(&batches);
        prop_assert_eq!(reader.damage(), &[]);
        assert_same_tables(&tables, &want_tables);
        prop_assert_eq!(&events, &want_events);
        let summary = reader.summary().unwrap();
        prop_assert!(summary.ended);
        prop_assert_eq!(summary.events.values().sum::<u64>(), want_events.len() as u64);
    }

    #[test]
    fn a_range_is_what_lies_in_it(batches in recordings(), a in 0usize..500, b in 0usize..500) {
        let scratch = Scratch::new("capture-range").unwrap();
        let path = scratch.file("a.cap");
        write(&path, &batches);
        let (mut reader, tables, events) = read(&path).unwrap();
        prop_assume!(!events.is_empty());
        let (a, b) = (events[a % events.len()].at(), events[b % events.len()].at());
        let range = TimeRange { from: a.min(b), to: a.max(b) };
        let want: Vec<Event> =
            events.iter().filter(|event| range.contains(event.at())).cloned().collect();
        prop_assert_eq!(replay(&mut reader, &tables, range), want);
    }

    #[test]
    fn copying_and_merging_keep_every_event(
        (one, two) in (recordings(), recordings())
    ) {
        let scratch = Scratch::new("capture-merge").unwrap();
        let (a, b, c) = (scratch.file("a.cap"), scratch.file("b.cap"), scratch.file("c.cap"));
        write(&a, &one);
        write(&b, &two);
        rewrite(&a, &c, force(), |_| ()).unwrap();
        let (_, tables_a, events_a) = read(&a).unwrap();
        let (reader, tables_c, events_c) = read(&c).unwrap();
        prop_assert_eq!(reader.damage(), &[]);
        let described_a = describe_all(&events_a, &tables_a);
        prop_assert_eq!(&described_a, &describe_all(&events_c, &tables_c));
        prop_assert_eq!(tables_a.processes().count(), tables_c.processes().count());
        prop_assert_eq!(containers(&tables_a), containers(&tables_c));
        prop_assert_eq!(tables_a.mappings.len(), tables_c.mappings.len());

        // Without ties to wall time both are taken to be on one clock.
        let no_clock = |events: &[Event]| !events.iter().any(|e| matches!(e, Event::Clock(_)));
        let (_, tables_b, events_b) = read(&b).unwrap();
        let merged = merge(&[a, b], &c, force()).unwrap();
        let (_, tables_c, events_c) = read(&c).unwrap();
        prop_assert_eq!(events_c.len(), events_a.len() + events_b.len());
        prop_assert_eq!(merged.totals.events.iter().sum::<u64>(), events_c.len() as u64);
        prop_assert!(events_c.is_sorted_by_key(Event::at));
        if no_clock(&events_a) || no_clock(&events_b) {
            let mut want = described_a;
            want.extend(describe_all(&events_b, &tables_b));
            let mut got = describe_all(&events_c, &tables_c);
            want.sort();
            got.sort();
            prop_assert_eq!(got, want);
        }
    }
}

/// What each process runs in, in words.
fn containers(tables: &Tables) -> Vec<String> {
    let mut all: Vec<String> = tables
        .processes()
        .map(|(id, process)| {
            let container = tables.container_of(id).map(|container| {
                let texts = container
                    .texts()
                    .map(|text| text.map(|id| tables.string(id)));
                (tables.string(container.cgroup), texts)
            });
            format!("{:?} {:?} {container:?}", process.pid, process.started)
        })
        .collect();
    all.sort();
    all
}

/// A capture of several blocks, small enough to damage it everywhere.
fn small(scratch: &Scratch) -> (Vec<u8>, Vec<String>) {
    let path = scratch.file("small.cap");
    write(&path, &recording(7, 4, 12));
    let (_, tables, events) = read(&path).unwrap();
    assert!(events.len() > 20, "too little to damage: {}", events.len());
    (
        std::fs::read(&path).unwrap(),
        describe_all(&events, &tables),
    )
}

#[test]
fn every_truncation_reads_as_a_prefix() {
    let scratch = Scratch::new("capture-truncate").unwrap();
    let (bytes, all) = small(&scratch);
    let path = scratch.file("cut.cap");
    let mut most = 0;
    for len in 0..bytes.len() {
        std::fs::write(&path, &bytes[..len]).unwrap();
        match read(&path) {
            Ok((mut reader, tables, events)) => {
                let got = describe_all(&events, &tables);
                assert!(all.starts_with(&got), "cut at {len}");
                assert!(
                    got.len() >= most,
                    "cut at {len} reads less than a shorter one"
                );
                most = got.len();
                let summary = reader.summary().unwrap();
                assert!(!summary.ended || got.len() == all.len(), "cut at {len}");
            }
            Err(CaptureError::Empty(_)) => assert_eq!(len, 0),
            Err(CaptureError::Truncated { len: said, .. }) => assert_eq!(said, len as u64),
            Err(other) => panic!("cut at {len}: {other}"),
        }
    }
    assert_eq!(most, all.len());
}

#[test]
fn every_flipped_byte_is_an_error_or_harmless() {
    let scratch = Scratch::new("capture-flip").unwrap();
    let (bytes, all) = small(&scratch);
    let path = scratch.file("flip.cap");
    let mut harmless = 0;
    for at in 0..bytes.len() {
        for flip in [0x01, 0xff] {
            let mut damaged = bytes.clone();
            damaged[at] ^= flip;
            std::fs::write(&path, &damaged).unwrap();
            let (reader, tables, events) = read(&path).unwrap();
            let got = describe_all(&events, &tables);
            if reader.damage().is_empty() {
                assert!(got == all, "byte {at} flipped, nothing said");
                harmless += 1;
            } else {
                let near = reader.damage().iter().any(|d| d.offset <= at as u64);
                assert!(near, "byte {at}: {:?}", reader.damage());
                let mut left = all.iter();
                let known = got.iter().all(|event| left.any(|one| one == event));
                assert!(
                    known,
                    "byte {at} flipped, and events came that were not written"
                );
            }
        }
    }
    assert_eq!(harmless, 0, "all bytes are covered by a checksum");
}

#[test]
fn a_missing_or_repeated_block_is_told() {
    let scratch = Scratch::new("capture-blocks").unwrap();
    let (bytes, all) = small(&scratch);
    let starts: Vec<usize> = (32..bytes.len())
        .filter(|&at| bytes[at..].starts_with(b"\xb1PCB"))
        .collect();
    assert!(starts.len() > 6);
    let path = scratch.file("blocks.cap");
    for pair in starts.windows(2) {
        let mut without = bytes.clone();
        without.drain(pair[0]..pair[1]);
        std::fs::write(&path, &without).unwrap();
        let (reader, ..) = read(&path).unwrap();
        assert!(!reader.damage().is_empty(), "block at {} is gone", pair[0]);

        let mut twice = bytes.clone();
        let block = bytes[pair[0]..pair[1]].to_vec();
        twice.splice(pair[1]..pair[1], block);
        std::fs::write(&path, &twice).unwrap();
        let (reader, tables, events) = read(&path).unwrap();
        assert!(!reader.damage().is_empty(), "block at {} is twice", pair[0]);
        let same = describe_all(&events, &tables) == all;
        assert!(same, "block at {} is twice", pair[0]);
    }
}

#[test]
fn a_torn_block_costs_only_itself() {
    let scratch = Scratch::new("capture-torn").unwrap();
    let (bytes, all) = small(&scratch);
    let starts: Vec<usize> = (32..bytes.len())
        .filter(|&at| bytes[at..].starts_with(b"\xb1PCB"))
        .collect();
    let path = scratch.file("torn.cap");
    for pair in starts.windows(2) {
        // The beginning of a block, then the block in full: a write that was repeated.
        for part in [10, 64, (pair[1] - pair[0]) * 2 / 3] {
            let mut torn = bytes.clone();
            let half = bytes[pair[0]..pair[0] + part.min(pair[1] - pair[0] - 1)].to_vec();
            torn.splice(pair[0]..pair[0], half);
            std::fs::write(&path, &torn).unwrap();
            let (reader, tables, events) = read(&path).unwrap();
            assert!(describe_all(&events, &tables) == all, "torn at {}", pair[0]);
            assert!(!reader.damage().is_empty());
        }
    }
}

#[test]
fn other_files_are_named_for_what_they_are() {
    let scratch = Scratch::new("capture-foreign").unwrap();
    let path = scratch.file("other");
    let say = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        Reader::open(&path).unwrap_err().to_string()
    };
    assert!(say(b"").contains("is empty"));
    for (bytes, word) in [
        (&b"PERFILE2\x68\0\0\0"[..], "perf.data"),
        (b"\x7fELF\x02\x01\x01", "ELF"),
        (b"\x1f\x8b\x08\0", "gzip"),
        (b"{\"meta\": 1}", "JSON"),
        (b"main;foo 12\n", "text"),
        (b"\0\0\0\0", "zero"),
        (b"\xff\xfe\xfd", "unknown"),
        (b"\x8fPROF", "cut off at byte 5"),
    ] {
        let error = say(bytes);
        assert!(error.contains(word), "{error}");
        assert!(error.contains("byte"), "{error}");
    }
    assert!(
        Reader::open(scratch.folder())
            .unwrap_err()
            .to_string()
            .contains("directory")
    );
    assert!(Reader::open(&scratch.file("none")).is_err());
}

#[test]
fn late_names_are_there_before_the_first_event() {
    let scratch = Scratch::new("capture-late").unwrap();
    let (path, named) = (scratch.file("a.cap"), scratch.file("b.cap"));
    write(&path, &recording(11, 2, 30));
    // Every frame gets a name, as `symbolize` does.
    let change = |tables: &mut Tables| {
        let frames: Vec<FrameId> = tables.frames.iter().map(|(id, _)| id).collect();
        for frame in frames {
            let (name, _) = tables.intern_string(&format!("f{}", frame.get()));
            let function = Function {
                name,
                linkage_name: None,
                module: None,
                file: None,
                line: 0,
                start: None,
                size: None,
            };
            let (function, _) = tables.functions.intern(function);
            tables.set_symbol(frame, Symbol::Lines([Line { function, line: 3 }].into()));
        }
    };
    rewrite(&path, &named, force(), change).unwrap();
    let summary = Reader::open(&named).unwrap().summary().unwrap();
    assert_eq!(summary.unsymbolized_samples, 0);
    assert!(summary.samples() > 0);
    let same = rewrite(&path, &path, force(), |_| ()).unwrap_err();
    assert!(same.to_string().contains("is an input too"), "{same}");
}

#[test]
fn captures_of_two_machines_are_put_on_one_clock() {
    let scratch = Scratch::new("capture-clocks").unwrap();
    let mut paths = Vec::new();
    for (host, zero_ns) in [("a", 5_000_000_000_000u64), ("b", 9_000_000_000_000)] {
        let path = scratch.file(host);
        let session = Session {
            host: host.to_owned(),
            ..Session::default()
        };
        let clock = |at: u64| {
            Event::Clock(Clock {
                monotonic: Timestamp(at),
                realtime_ns: zero_ns + at,
            })
        };
        let batch = Batch {
            epoch: 0,
            definitions: vec![Definition::Session(session)],
            events: vec![clock(1000), clock(2000)],
        };
        write(&path, &[batch]);
        paths.push(path);
    }
    paths.reverse();
    let out = scratch.file("merged");
    merge(&paths, &out, force()).unwrap();
    let (_, tables, events) = read(&out).unwrap();
    assert_eq!(tables.session.host, "b + a");
    for event in &events {
        let Event::Clock(clock) = event else {
            panic!("{event:?}");
        };
        assert_eq!(clock.realtime_ns - clock.monotonic.0, 5_000_000_000_000);
    }
    assert_eq!(events.len(), 4);
}

/// Definitions of a session: strings, a container (path, id, name, image) and a process in it.
fn in_container(host: &str, pid: u32, texts: [&str; 4]) -> Vec<Definition> {
    let session = Session {
        host: host.to_owned(),
        ..Session::default()
    };
    let mut definitions = vec![Definition::Session(session)];
    let mut some = Vec::new();
    for text in texts {
        let id = StringId::from_index(definitions.len() - 1);
        some.push((!text.is_empty()).then_some(id));
        definitions.push(Definition::String(id, text.into()));
    }
    let container = Container {
        cgroup: some[0].unwrap(),
        engine: None,
        id: some[1],
        name: some[2],
        image: some[3],
        pod: None,
        namespace: None,
        unit: None,
    };
    let process = Process {
        pid: Pid(pid),
        started: Timestamp(u64::from(pid)),
        parent: None,
        name: some[0].unwrap(),
        executable: None,
        command: None,
        namespace_pids: vec![Pid(1)],
        uid: None,
        cgroup: some[0],
        container: Some(ContainerId::from_index(0)),
    };
    let thread = Thread {
        process: ProcessId::from_index(0),
        tid: Tid(pid),
        started: Timestamp(u64::from(pid)),
        name: some[0].unwrap(),
    };
    definitions.extend([
        Definition::Container(ContainerId::from_index(0), container),
        Definition::Process(ProcessId::from_index(0), process),
        Definition::Thread(ThreadId::from_index(0), thread),
    ]);
    definitions
}

fn started(at: u64) -> Event {
    Event::Process(ProcessEvent {
        at: Timestamp(at),
        thread: ThreadId::from_index(0),
        change: ProcessChange::Started,
    })
}

#[test]
fn a_container_that_is_described_late_is_so_for_all() {
    let scratch = Scratch::new("capture-described").unwrap();
    let (path, copy) = (scratch.file("a.cap"), scratch.file("b.cap"));
    let batch = |definitions, at| Batch {
        epoch: 0,
        definitions,
        events: vec![started(at)],
    };
    let described = in_container("h", 7, ["/docker/x", "abc", "web; \"ü\"", "img"]);
    // The same but for its strings, which are there: only the container is announced anew.
    let mut later = described.clone();
    later.retain(|definition| {
        matches!(
            definition,
            Definition::Container(..) | Definition::String(..)
        )
    });
    let mut first = described.clone();
    for definition in &mut first {
        if let Definition::Container(_, container) = definition {
            (container.name, container.image) = (None, None);
        }
    }
    write(&path, &[batch(first, 10), batch(later, 20)]);
    let whole = "Pid(7) Timestamp(7) Some((\"/docker/x\", [None, Some(\"abc\"), \
                 Some(\"web; \\\"ü\\\"\"), Some(\"img\"), None, None, None]))";
    assert_eq!(containers(&read(&path).unwrap().1), [whole]);
    rewrite(&path, &copy, force(), |_| ()).unwrap();
    assert_eq!(containers(&read(&copy).unwrap().1), [whole]);
    let info = |json| {
        let mut out = Vec::new();
        let mut reader = Reader::open(&path).unwrap();
        profiler_report::view::info::write_info(&mut reader, json, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    };
    let line = "container   web; \"ü\" (img, abc): 0 samples, 1 process\n";
    assert!(info(false).contains(line), "{}", info(false));
    let json: serde_json::Value = serde_json::from_str(&info(true)).unwrap();
    let container = &json["containers"][0];
    assert_eq!(container["container"], "web; \"ü\"");
    assert_eq!(container["cgroup"], "/docker/x");
    assert_eq!(container["processes"]["all"], 1);
    assert_eq!(container["pod"], serde_json::Value::Null);
}

#[test]
fn containers_of_two_machines_stay_what_they_are() {
    let scratch = Scratch::new("capture-hosts").unwrap();
    let mut paths = Vec::new();
    for (index, (host, texts)) in [
        ("a", ["/system.slice/ssh.service", "", "ssh", ""]),
        ("b", ["/system.slice/ssh.service", "", "ssh", ""]),
        ("a", ["/web", "a1", "web", "nginx:1"]),
        ("b", ["/web", "b2", "web", "nginx:2"]),
    ]
    .into_iter()
    .enumerate()
    {
        let path = scratch.file(&index.to_string());
        let batch = Batch {
            epoch: 0,
            definitions: in_container(host, index as u32 + 1, texts),
            events: vec![started(index as u64)],
        };
        write(&path, &[batch]);
        paths.push(path);
    }
    let out = scratch.file("merged");
    merge(&paths, &out, force()).unwrap();
    let (mut reader, tables, _) = read(&out).unwrap();
    let of = |pid: u32| {
        let id = tables
            .find_process(Pid(pid), Timestamp(pid.into()))
            .unwrap();
        tables.process(id).unwrap().container.unwrap()
    };
    // Nothing tells the units apart; the ids do so with what has the same path and name.
    assert_eq!(of(1), of(2));
    assert_ne!(of(3), of(4));
    let image = |pid| tables.string(tables.container(of(pid)).unwrap().image.unwrap());
    assert_eq!((image(3), image(4)), ("nginx:1", "nginx:2"));
    let labels: Vec<String> = (reader.summary().unwrap().containers.iter())
        .map(|one| format!("{} {} {}", one.label, one.cgroup, one.processes.0))
        .collect();
    assert_eq!(
        labels,
        [
            "ssh /system.slice/ssh.service 2",
            "web /web 1",
            "web /web 1",
        ]
    );
}

#[test]
fn info_says_what_is_inside_as_text_and_as_json() {
    let scratch = Scratch::new("capture-info").unwrap();
    let path = scratch.file("a.cap");
    let batches = recording(3, 2, 40);
    write(&path, &batches);
    let (_, want) = expected(&batches);
    let samples = want
        .iter()
        .filter(|e| matches!(e, Event::Sample(_)))
        .count();
    let info = |json| {
        let mut out = Vec::new();
        let mut reader = Reader::open(&path).unwrap();
        profiler_report::view::info::write_info(&mut reader, json, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    };
    let json: serde_json::Value = serde_json::from_str(&info(true)).unwrap();
    assert_eq!(json["events"]["sample"], samples);
    let is_cut_off =
        |event: &Event| matches!(event, Event::Gap(gap) if gap.reason == GapReason::CutOff);
    let is_whole = !want.iter().any(is_cut_off);
    assert_eq!(json["complete"], is_whole);
    assert_eq!(json["bytes"], std::fs::metadata(&path).unwrap().len());
    let text = info(false);
    assert!(text.contains(&format!("{samples} sample")), "{text}");
    let complete = match is_whole {
        true => "complete    yes",
        false => "complete    no: the run was cut off",
    };
    assert!(text.contains(complete), "{text}");
}
