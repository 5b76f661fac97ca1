//! ProfilerTraces as files: what the specification says of their tables holds of every recording, and each sample of
//! the recording is in the trace of its thread.
#![allow(clippy::unwrap_used)] // A test fails by it.

use std::collections::{BTreeMap, BTreeSet};

use crate::export_shared::*;
use crate::golden;
use profiler_model::*;
use profiler_report::derive::stack_frames;
use profiler_report::export::{Settings, by_name};
use profiler_tests::canonical;
use proptest::prelude::*;
use serde_json::Value;

const FORMAT: &str = "js-self-profiling";

/// A trace: time in ms and the names of the stack, outermost first, of each sample.
type Samples = Vec<(f64, Option<Vec<String>>)>;

/// Reads a ProfilerTrace, and holds it against the specification.
fn read(trace: &Value) -> Samples {
    let list = |name: &str| trace[name].as_array().unwrap();
    let is_known = |id: &Value, list: &[Value]| {
        id.is_null() || id.as_u64().is_some_and(|id| (id as usize) < list.len())
    };
    let (resources, frames, stacks) = (list("resources"), list("frames"), list("stacks"));
    for table in [resources, frames, stacks] {
        let once: BTreeSet<String> = table.iter().map(Value::to_string).collect();
        assert_eq!(once.len(), table.len(), "each element is there once");
        assert!(table.iter().all(|it| !it.to_string().contains("null")));
    }
    assert!(resources.iter().all(Value::is_string));
    for frame in frames {
        assert!(frame["name"].is_string() && is_known(&frame["resourceId"], resources));
        for place in ["line", "column"] {
            assert!(frame[place].is_null() || frame[place].as_u64().unwrap() > 0);
        }
    }
    for (index, stack) in stacks.iter().enumerate() {
        assert!(stack["frameId"].is_u64() && is_known(&stack["frameId"], frames));
        assert!(
            is_known(&stack["parentId"], &stacks[..index]),
            "parents come first"
        );
    }
    let mut before = 0.0;
    let samples = list("samples").iter().map(|sample| {
        let at = sample["timestamp"].as_f64().unwrap();
        assert!(at > before, "{at} after {before}");
        before = at;
        assert!(is_known(&sample["stackId"], stacks));
        let mut names = Vec::new();
        let mut id = sample["stackId"].as_u64();
        let has_stack = id.is_some();
        while let Some(stack) = id.map(|id| &stacks[id as usize]) {
            let frame = &frames[stack["frameId"].as_u64().unwrap() as usize];
            names.push(frame["name"].as_str().unwrap().to_owned());
            id = stack["parentId"].as_u64();
        }
        names.reverse();
        (at, has_stack.then_some(names))
    });
    samples.collect()
}

/// The traces of all threads, by id.
fn traces(options: &[(&str, &str)], session: &Recording) -> BTreeMap<u64, Samples> {
    let file: Value = serde_json::from_str(&export(FORMAT, options, session)).unwrap();
    assert!(file["notes"].is_array());
    let traces = file["traces"].as_array().unwrap().iter();
    traces
        .map(|of| (of["tid"].as_u64().unwrap(), read(&of["trace"])))
        .collect()
}

#[test]
fn is_golden() {
    let session = canonical::session();
    golden::check(
        "export/canonical.profilertrace",
        &export(FORMAT, &[], &session),
    );
    let session = canonical::session_with_waits();
    golden::check("export/wall.profilertrace", &export(FORMAT, &[], &session));
}

#[test]
fn each_sample_is_in_the_trace_of_its_thread() {
    let session = canonical::session();
    let (tables, events) = &session;
    let traces = traces(&[], &session);
    let mut expected: BTreeMap<u64, BTreeSet<Vec<String>>> = BTreeMap::new();
    for event in events {
        if let Event::Sample(sample) = event {
            let frames = stack_frames(tables, sample.kernel, sample.user);
            let mut names: Vec<String> = frames.map(|frame| frame.name.into_owned()).collect();
            names.reverse();
            let tid = tables.thread(sample.thread).unwrap().tid.0;
            expected.entry(tid.into()).or_default().insert(names);
        }
    }
    assert!(expected.len() > 1);
    for (tid, samples) in &traces {
        let stacks = samples.iter().filter_map(|(_, stack)| stack.clone());
        let unknown: Vec<_> = stacks
            .filter(|stack| !expected[tid].contains(stack))
            .collect();
        assert!(unknown.is_empty(), "{tid}: {unknown:?}");
    }
    assert_eq!(
        traces.keys().collect::<Vec<_>>(),
        expected.keys().collect::<Vec<_>>()
    );
}

#[test]
fn times_that_a_capture_claims_take_no_memory() {
    let (tables, mut events) = canonical::session();
    let sampled = events.iter().rev().find_map(|event| match event {
        Event::Sample(sample) => Some(sample.clone()),
        _ => None,
    });
    let mut late = sampled.unwrap();
    late.at.0 += 1 << 60;
    events.push(Event::Sample(late));
    let most = 10_000 + 1_000 * events.len();
    let file: Value = serde_json::from_str(&export(FORMAT, &[], &(tables, events))).unwrap();
    let traces = file["traces"].as_array().unwrap();
    let samples = traces
        .iter()
        .map(|of| of["trace"]["samples"].as_array().unwrap().len());
    assert!(samples.sum::<usize>() <= most);
    assert!(traces.iter().any(|of| of["bufferFull"] == true));
    let notes = file["notes"].as_array().unwrap();
    assert!(
        notes
            .iter()
            .any(|note| note.as_str().unwrap().contains("no room"))
    );
}

#[test]
fn waits_that_were_recorded_have_their_stacks() {
    let with = traces(&[], &canonical::session_with_waits());
    let without = traces(&[], &canonical::session());
    let stacks = |traces: &BTreeMap<u64, Samples>| {
        let samples = traces.values().flatten();
        samples.filter(|(_, stack)| stack.is_some()).count()
    };
    assert!(
        stacks(&with) > stacks(&without),
        "{} {}",
        stacks(&with),
        stacks(&without)
    );
}

#[test]
fn what_is_asked_for_is_given() {
    let session = canonical::session();
    let all = traces(&[], &session);
    let tid = all.keys().next().unwrap().to_string();
    let bare = |options: &[(&str, &str)]| {
        let options = [options, &[("thread", tid.as_str())]].concat();
        read(&serde_json::from_str(&export(FORMAT, &options, &session)).unwrap())
    };
    let whole = bare(&[]);
    assert_eq!(&whole, all.values().next().unwrap());
    assert!(whole.len() > 3, "{whole:?}");
    assert_eq!(bare(&[("maxBufferSize", "2")]), whole[..2]);
    assert_eq!(bare(&[("maxBufferSize", "0")]), []);
    let gap = |samples: &Samples| samples[1].0 - samples[0].0;
    let period = gap(&whole);
    let slow = bare(&[("sampleInterval", &(period * 1.5).to_string())]);
    assert!(
        (gap(&slow) - 2.0 * period).abs() < period * 0.01,
        "{slow:?}"
    );
    // What is private is not there.
    let file = export(FORMAT, &[("private", "*")], &session);
    let file: Value = serde_json::from_str(&file).unwrap();
    for of in file["traces"].as_array().unwrap() {
        assert!(read(&of["trace"]).iter().all(|(_, stack)| stack.is_none()));
        assert_eq!(of["trace"]["frames"], Value::Array(Vec::new()));
    }
    let error = try_export(FORMAT, &[("thread", "999999")], &session).unwrap_err();
    assert!(
        error.to_string().contains("no sample is of thread 999999"),
        "{error}"
    );
    for (name, value) in [
        ("sampleInterval", "-1"),
        ("sampleInterval", "nan"),
        ("sampleInterval", "inf"),
        ("maxBufferSize", "-1"),
        ("maxBufferSize", "4294967296"),
        ("thread", "0"),
    ] {
        let mut settings = Settings::new(by_name(FORMAT).unwrap());
        assert!(settings.set(name, value).is_err(), "{name}={value}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn hostile_names_make_traces(
        stacks in prop::collection::vec(
            (prop::collection::vec(prop::sample::select(HOSTILE), 1..4), 1..5u64),
            1..8,
        ),
    ) {
        let mut session = session_of(&stacks, "x\"y");
        for (index, event) in session.1.iter_mut().enumerate() {
            if let Event::Sample(sample) = event {
                sample.at = Timestamp(1000 * (index as u64 + 1));
            }
        }
        // The first one is when the recording begins, and no interval has passed.
        let shown: usize = traces(&[], &session).values().map(Vec::len).sum();
        prop_assert_eq!(shown + 1, session.1.len());
    }
}
