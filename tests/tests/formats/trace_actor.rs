//! Packets of a TraceActor as a file: every call and every sample is in them, in order and nested.
//!
//! `UPDATE_GOLDEN=1` writes `golden/export/*.packets` anew; read the difference before keeping it.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;

use crate::calls_shared::shop;
use crate::export_shared::try_export;
use crate::golden;
use profiler_model::*;
use profiler_report::export::Settings;
use profiler_tests::canonical;
use serde_json::Value;

type Session = (Tables, Vec<Event>);

fn packets(options: &[(&str, &str)], session: &Session) -> Vec<Value> {
    let bytes = try_export("trace-actor", options, session).unwrap();
    let text = String::from_utf8(bytes).unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// By function: frames entered and left, of packets that are whole.
fn counts(packets: &[Value]) -> BTreeMap<String, (u64, u64)> {
    let mut counts: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    let mut actors: BTreeMap<String, (u64, Vec<String>)> = BTreeMap::new();
    for packet in packets {
        let from = packet["from"].as_str().unwrap().to_owned();
        match packet["type"].as_str().unwrap() {
            "startedTrace" => {
                assert!(packet["tid"].is_u64());
                assert!(actors.insert(from, Default::default()).is_none());
            }
            "enteredFrame" => {
                let (sequence, open) = actors.get_mut(&from).unwrap();
                assert_eq!(packet["sequence"], *sequence);
                *sequence += 1;
                let name = packet["name"].as_str().unwrap().to_owned();
                counts.entry(name.clone()).or_default().0 += 1;
                open.push(name);
            }
            "exitedFrame" => {
                let (sequence, open) = actors.get_mut(&from).unwrap();
                assert_eq!(packet["sequence"], *sequence);
                *sequence += 1;
                counts.entry(open.pop().unwrap()).or_default().1 += 1;
            }
            "stoppedTrace" => {
                actors.remove(&from).unwrap();
            }
            "lostFrames" => {}
            other => panic!("{other}"),
        }
    }
    assert!(actors.is_empty());
    counts
}

#[test]
fn traced_calls_are_golden() {
    let session = shop();
    let bytes = try_export("trace-actor", &[], &session).unwrap();
    golden::check("export/calls.packets", &bytes);
    let only = [("types", "name,time")];
    golden::check(
        "export/calls-name.packets",
        &try_export("trace-actor", &only, &session).unwrap(),
    );
}

#[test]
fn inferred_frames_are_golden() {
    let session = canonical::session();
    let bytes = try_export("trace-actor", &[("frames", "inferred")], &session).unwrap();
    golden::check("export/canonical.packets", &bytes);
}

#[test]
fn each_call_is_told() {
    let session = shop();
    let mut expected: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    let (tables, events) = &session;
    for event in events {
        let Event::Call(call) = event else {
            continue;
        };
        let name = tables.string(tables.functions.get(call.function).unwrap().name);
        let count = expected.entry(name.to_owned()).or_default();
        match &call.edge {
            CallEdge::Enter(_) => count.0 += 1,
            CallEdge::Exit(exit) => {
                count.0 += u64::from(exit.whole.is_some());
                count.1 += 1;
            }
            CallEdge::Hit(_) => {
                count.0 += 1;
                count.1 += 1;
            }
        }
    }
    let told = counts(&packets(&[], &session));
    assert_eq!(
        told.keys().collect::<Vec<_>>(),
        expected.keys().collect::<Vec<_>>()
    );
    for (name, (entered, left)) in expected {
        // What is left without having been entered in the recording is not told.
        let (told_entered, told_left) = told[&name];
        assert_eq!(told_entered, entered, "{name}");
        assert!(
            told_left <= told_entered && told_left >= left.min(entered),
            "{name}"
        );
    }
}

/// A wait may come before any sample of a running thread.
#[test]
fn running_and_waiting_are_told_together() {
    let frames = |source: &[(&str, &str)]| {
        let session = canonical::session_with_everything();
        let options = [&[("frames", "inferred")], source].concat();
        packets(&options, &session).len()
    };
    let (running, waiting) = (
        frames(&[("source", "cpu-clock")]),
        frames(&[("source", OFF_CPU)]),
    );
    let (all, wall) = (frames(&[]), frames(&[("source", "wall")]));
    assert!(all > running && all > waiting, "{all} {running} {waiting}");
    assert_eq!(all, wall);
}

#[test]
fn inferred_frames_are_nested_and_marked() {
    let session = canonical::session();
    let told = packets(&[("frames", "inferred")], &session);
    counts(&told);
    let frames = told.iter().filter(|packet| packet["sequence"].is_u64());
    assert!(frames.clone().count() > 0);
    for frame in frames {
        assert_eq!(frame["inferred"], true, "{frame}");
    }
}

#[test]
fn unknown_types_are_refused() {
    let format = profiler_report::export::by_name("trace-actor").unwrap();
    for (name, value) in [("types", "name,colour"), ("types", ""), ("frames", "all")] {
        let mut settings = Settings::new(format);
        assert!(settings.set(name, value).is_err(), "{name}={value}");
    }
}
