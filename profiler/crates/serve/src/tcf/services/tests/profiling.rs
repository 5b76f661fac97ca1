//! Sampling, from its configuration to the names of what was read.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::*;
use profiler_wire::tcf::{WordLayout, decode_stack_traces};

/// A sample of thread 0, at 99 Hz, in `compute`.
fn sample(bench: &mut Bench) {
    let source = Source {
        name: StringId::from_index(0),
        unit: Unit::Nanoseconds,
        frequency_hz: Some(99),
        period: None,
    };
    let stack = Stack {
        parent: None,
        frame: FrameId::from_index(0),
    };
    let definitions = vec![
        Definition::Source(SourceId::from_index(0), source),
        Definition::Stack(StackId::from_index(0), stack),
    ];
    let State {
        world, profiles, ..
    } = &mut bench.state;
    world.define(0, definitions);
    let event = world.event(Event::Sample(
        Sample::new(
            Timestamp(9_000_000_000),
            ThreadId::from_index(0),
            Cpu(0),
            SourceId::from_index(0),
            10_101_010,
        )
        .with_stacks(None, Some(StackId::from_index(0))),
    ));
    let Some(Event::Sample(sample)) = event else {
        panic!("{event:?} is no sample");
    };
    profiles.sample(&sample, world);
}

#[test]
fn what_was_sampled_is_read_and_has_a_name() {
    let mut bench = Bench::live();
    let id = r#""P100""#;
    assert!(bench.one("Profiler", "getCapabilities", &[id])["StackTraces"].is_object());
    assert_eq!(bench.result("Profiler", "read", &[id]), ["[]"]);
    let configured = bench.result("Profiler", "configure", &[id, r#"{"FrameCnt":8}"#]);
    assert!(configured.is_empty());
    let empty = [r#"[{"Format":"StackTraces"}]"#];
    assert_eq!(bench.result("Profiler", "read", &[id]), empty);
    sample(&mut bench);
    sample(&mut bench);
    let read = bench.one("Profiler", "read", &[id]);
    let data = STANDARD.decode(read[0]["Data"].as_str().unwrap()).unwrap();
    let stacks = decode_stack_traces(WordLayout::WIDE, &data).unwrap();
    assert_eq!((stacks.len(), stacks[0].count), (1, 2));
    assert_eq!(stacks[0].addresses, [SAMPLED]);
    let found = bench.result("Symbols", "findByAddr", &[id, &SAMPLED.to_string()]);
    assert!(found[0].contains("P100"), "{found:?}");
    assert_eq!(bench.result("Profiler", "read", &[id]), empty);
}

#[test]
fn a_process_that_has_ended_is_read_once_more() {
    let mut bench = Bench::live();
    let id = r#""P100""#;
    bench.result("Profiler", "configure", &[id, r#"{"FrameCnt":1}"#]);
    sample(&mut bench);
    for thread in [1, 0] {
        bench.happened(thread, ProcessChange::Exited);
    }
    let read = bench.one("Profiler", "read", &[id]);
    assert_eq!(read[0]["Samples"], 1);
    let events = bench.events_at(bench.now + Duration::from_secs(60));
    assert!(!events.is_empty());
    let (code, rest) = bench.error("Profiler", "read", &[id]);
    assert_eq!((code, rest.as_str()), (11, "null"));
    let (code, rest) = bench.error("Profiler", "getCapabilities", &[id]);
    assert_eq!((code, rest.as_str()), (11, "{}"));
}

#[test]
fn the_end_of_a_process_is_told_when_its_samples_were_read() {
    let mut bench = Bench::live();
    let id = r#""P100""#;
    bench.events();
    bench.result("Profiler", "configure", &[id, r#"{"FrameCnt":1}"#]);
    sample(&mut bench);
    for thread in [1, 0] {
        bench.happened(thread, ProcessChange::Exited);
    }
    let State {
        world, profiles, ..
    } = &mut bench.state;
    profiles.tick(Instant::now(), world);
    let removed = |ids: &str| vec![("RunControl.contextRemoved".to_owned(), ids.to_owned())];
    assert_eq!(bench.events(), removed(r#"["P100.100","P100.101"]"#));
    assert_eq!(bench.events(), []);
    bench.one("Profiler", "read", &[id]);
    // Clients ask for names now, one after the other.
    let at = |bench: &Bench, seconds| bench.now + Duration::from_secs(seconds);
    assert_eq!(bench.events_at(at(&bench, 3)), []);
    bench.now = at(&bench, 3);
    bench.result("Symbols", "findByAddr", &[id, &SAMPLED.to_string()]);
    assert_eq!(bench.events_at(at(&bench, 3)), []);
    assert_eq!(bench.events_at(at(&bench, 4)), removed(r#"["P100"]"#));
}
