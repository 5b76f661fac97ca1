//! Epochs: each stands for itself.

use super::*;

fn small() -> ResolveOptions {
    ResolveOptions {
        epoch_limits: EpochLimits {
            duration_ns: 1000,
            ..EpochLimits::default()
        },
        ..options()
    }
}

/// Reads each epoch alone, with tables of its own.
fn alone(batches: &[Batch]) -> BTreeMap<u32, Reader> {
    let mut readers: BTreeMap<u32, Reader> = BTreeMap::new();
    for batch in batches {
        readers
            .entry(batch.epoch)
            .or_default()
            .read(vec![batch.clone()]);
    }
    readers
}

#[test]
fn a_new_epoch_announces_again_what_it_uses() {
    let dir = TempDir::new("epochs");
    let program = build(&dir, "program", &[]);
    let (inner, outer) = (offset_of(&program, "inner"), offset_of(&program, "outer"));
    let id = pid(20);
    let mut resolver = Resolver::new(small()).unwrap();
    let mut events = start(10, id, "program");
    events.push(map_file(12, id, BASE, 0x10000, &program, 0));
    let stack = [BASE + inner + 4, BASE + outer + 20];
    for time in [13, 14, 1500, 1501, 3000] {
        events.push(sample(time, id, "program", &stack, &[]));
    }
    for event in &events {
        resolver.notice(event);
    }
    let mut out = Vec::new();
    // Names come before the second epoch starts.
    let mut later = events.split_off(5);
    resolver.resolve(&mut events, &mut out);
    resolver.finish(Duration::from_secs(60), &mut |_| {}, &mut out);
    resolver.resolve(&mut later, &mut out);
    let epochs = alone(&out);
    assert_eq!(epochs.len(), 3);
    for (number, reader) in &epochs {
        for stack in reader.user_stacks() {
            assert_eq!(stack, ["inner", "outer"], "epoch {number}");
        }
        assert_eq!(reader.tables.sources.len(), 1);
        assert_eq!(reader.tables.code().count(), 1);
    }
    let samples: Vec<_> = epochs
        .values()
        .map(|reader| reader.samples().count())
        .collect();
    assert_eq!(samples, [2, 2, 1]);
    let first = out.iter().find(|batch| batch.epoch == 1).unwrap();
    assert!(matches!(first.definitions[0], Definition::Session(_)));
    // Together they are one process.
    let mut reader = Reader::default();
    reader.read(out);
    let of_the_program = reader
        .tables
        .processes()
        .filter(|(_, process)| process.pid == Pid(id));
    assert_eq!(of_the_program.count(), 1);
}

#[test]
fn a_name_that_comes_late_brings_its_frame_along() {
    let dir = TempDir::new("late");
    let program = build(&dir, "program", &[]);
    let code = BASE + offset_of(&program, "inner");
    let id = pid(21);
    let mut resolver = Resolver::new(small()).unwrap();
    let mut events = start(10, id, "program");
    events.push(map_file(12, id, BASE, 0x10000, &program, 0));
    events.push(sample(13, id, "program", &[code], &[]));
    for event in &events {
        resolver.notice(event);
    }
    // The epoch ends before the symbolizer is asked.
    events.push(sample(2000, id, "program", &[], &[]));
    let mut out = Vec::new();
    resolver.resolve(&mut events, &mut out);
    resolver.finish(Duration::from_secs(60), &mut |_| {}, &mut out);
    let epochs = alone(&out);
    assert!(
        epochs[&0]
            .tables
            .frames
            .iter()
            .all(|(id, _)| epochs[&0].tables.symbol(id).is_none())
    );
    let (frame, _) = epochs[&1].tables.frames.iter().next().unwrap();
    assert_eq!(epochs[&1].tables.frame_name(frame), "inner");
    let mut reader = Reader::default();
    reader.read(out);
    assert_eq!(reader.user_stacks()[0], ["inner"]);
}

#[test]
fn a_frequency_that_changes_is_that_of_later_samples() {
    let id = pid(25);
    let mut resolver = Resolver::new(options()).unwrap();
    let mut out = Vec::new();
    let mut take = |resolver: &mut Resolver, time| {
        let mut events = vec![sample(time, id, "program", &[], &[])];
        resolver.resolve(&mut events, &mut out);
    };
    take(&mut resolver, 10);
    resolver.set_frequency(0, 499);
    resolver.set_frequency(1, 7);
    take(&mut resolver, 20);
    resolver.begin_epoch();
    take(&mut resolver, 30);
    resolver.set_frequency(0, 99);
    take(&mut resolver, 40);
    for epoch in alone(&out).into_values() {
        let frequencies = epoch.samples().map(|sample| {
            let source = epoch.tables.sources.get(sample.source).unwrap();
            (sample.at.0, source.frequency_hz)
        });
        for (at, frequency_hz) in frequencies {
            let expected = if at == 10 || at == 40 { 99 } else { 499 };
            assert_eq!(frequency_hz, Some(expected), "at {at}");
        }
    }
    assert_eq!(resolver.counters().samples, 4);
}

#[test]
fn an_epoch_ends_when_its_definitions_fill_it() {
    let mut options = options();
    options.epoch_limits.definition_bytes = 100_000;
    let id = pid(22);
    let mut resolver = Resolver::new(options).unwrap();
    let mut events = start(10, id, "program");
    events.extend((0..5000).map(|index| sample(12 + index, id, "program", &[index * 0x100], &[])));
    let mut out = Vec::new();
    resolver.resolve(&mut events, &mut out);
    assert!(resolver.counters().epochs >= 5, "{:?}", resolver.counters());
    let epochs = alone(&out);
    let samples: usize = epochs.values().map(|reader| reader.samples().count()).sum();
    assert_eq!(samples, 5000);
}

#[test]
fn what_is_not_answered_in_time_is_given_up_and_counted() {
    let dir = TempDir::new("deadline");
    let program = build(&dir, "program", &[]);
    let code = BASE + offset_of(&program, "inner");
    let id = pid(23);
    let mut resolver = Resolver::new(options()).unwrap();
    let mut events = start(10, id, "program");
    events.push(map_file(12, id, BASE, 0x10000, &program, 0));
    events.push(sample(13, id, "program", &[code], &[]));
    for event in &events {
        resolver.notice(event);
    }
    let mut out = Vec::new();
    // Resolved, but not sent to the symbolizer, as if its queue were full.
    for event in events.drain(..) {
        resolver.event(event);
    }
    resolver.naming.give_up(&mut resolver.epoch);
    resolver.epoch.flush(&mut out);
    let mut reader = Reader::default();
    reader.read(out);
    assert_eq!(reader.reasons(), [Some(UnknownReason::GaveUp)]);
    assert_eq!(resolver.counters().frames_gave_up, 1);
    let mut progress = Vec::new();
    resolver.finish(
        Duration::ZERO,
        &mut |left| progress.push(left),
        &mut Vec::new(),
    );
    assert_eq!(progress, [0]);
}

#[test]
#[ignore = "a timing: cargo test --release -p profiler-resolve known_stacks -- --ignored --nocapture"]
fn known_stacks_cost_less_than_a_microsecond() {
    let dir = TempDir::new("timing");
    let program = build(&dir, "program", &[]);
    let (inner, outer) = (offset_of(&program, "inner"), offset_of(&program, "outer"));
    for depth in [10, 40, 127] {
        let id = pid(24);
        let mut resolver = Resolver::new(options()).unwrap();
        let mut events = start(10, id, "program");
        events.push(map_file(12, id, BASE, 0x10000, &program, 0));
        let stacks: Vec<Vec<u64>> = (0..500)
            .map(|leaf| {
                let callers = (1..depth).map(|_| BASE + outer + 20);
                std::iter::once(BASE + inner + leaf % 50)
                    .chain(callers)
                    .collect()
            })
            .collect();
        let times = 13..;
        events.extend(
            times
                .zip(&stacks)
                .map(|(at, stack)| sample(at, id, "program", stack, &[])),
        );
        let mut out = Vec::new();
        resolver.resolve(&mut events, &mut out);
        resolver.finish(Duration::from_secs(60), &mut |_| {}, &mut out);
        let mut nanoseconds = Vec::new();
        for round in 0..20 {
            let mut events: Vec<RawEvent> = (0..200)
                .flat_map(|_| &stacks)
                .map(|stack| sample(1000 + round, id, "program", stack, &[]))
                .collect();
            let count = events.len() as u64;
            out.clear();
            let started = Instant::now();
            resolver.resolve(&mut events, &mut out);
            nanoseconds.push(started.elapsed().as_nanos() as u64 / count);
        }
        nanoseconds.sort_unstable();
        let (least, median) = (nanoseconds[0], nanoseconds[10]);
        println!("{depth} frames: {median} ns a sample (least {least})");
        assert!(median < 1000, "{depth} frames: {median} ns");
    }
}

/// Time counts from when all is ready, which is announced as if it had been known at once; later, once more.
#[test]
fn a_session_begins_when_time_counts() {
    let mut resolver = Resolver::new(options()).unwrap();
    let mark = |at| RawEvent {
        at: Timestamp(at),
        cpu: Cpu(0),
        body: RawBody::Mark("here".into()),
    };
    let mut out = Vec::new();
    resolver.begin_at(Timestamp(70));
    resolver.resolve(&mut vec![mark(80)], &mut out);
    resolver.begin_at(Timestamp(90));
    resolver.resolve(&mut vec![mark(95)], &mut out);
    let started = out.iter().map(|batch| {
        let sessions = batch
            .definitions
            .iter()
            .filter_map(|definition| match definition {
                Definition::Session(session) => Some(session.started.0),
                _ => None,
            });
        sessions.collect::<Vec<_>>()
    });
    assert_eq!(started.collect::<Vec<_>>(), [[70], [90]]);
}
