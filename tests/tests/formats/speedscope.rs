//! speedscope files, read as its schema has them: sums are those of the events, calls are in balance.
#![allow(clippy::unwrap_used)] // A test fails by it.

use crate::export_shared::*;
use crate::golden;
use profiler_tests::canonical;
use proptest::prelude::*;
use serde_json::Value;

/// What the schema wants, and the stacks of all sampled profiles with their weights.
fn read(options: &[(&str, &str)], session: &Recording) -> (Value, Vec<(Vec<String>, u64)>) {
    let file: Value = serde_json::from_str(&export("speedscope", options, session)).unwrap();
    let frames = file["shared"]["frames"].as_array().unwrap();
    let name = |frame: &Value| {
        let frame = &frames[frame.as_u64().unwrap() as usize];
        frame["name"].as_str().unwrap().to_owned()
    };
    let mut stacks = Vec::new();
    for profile in file["profiles"].as_array().unwrap() {
        assert!(profile["name"].is_string() && profile["unit"].is_string());
        let (from, to) = (profile["startValue"].as_u64(), profile["endValue"].as_u64());
        let (from, to) = (from.unwrap(), to.unwrap());
        if profile["type"] == "evented" {
            let (mut open, mut last) = (Vec::new(), from);
            for event in profile["events"].as_array().unwrap() {
                let (at, frame) = (event["at"].as_u64().unwrap(), name(&event["frame"]));
                assert!(at >= last && at <= to);
                last = at;
                match event["type"].as_str() {
                    Some("O") => open.push(frame),
                    _ => assert_eq!(open.pop(), Some(frame)),
                }
            }
            assert_eq!(open, [""; 0]);
            continue;
        }
        assert_eq!(profile["type"], "sampled");
        let (samples, weights) = (&profile["samples"], &profile["weights"]);
        let (samples, weights) = (samples.as_array().unwrap(), weights.as_array().unwrap());
        assert_eq!(samples.len(), weights.len());
        let mut sum = 0;
        for (sample, weight) in samples.iter().zip(weights) {
            let weight = weight.as_u64().unwrap();
            sum += weight;
            stacks.push((
                sample.as_array().unwrap().iter().map(name).collect(),
                weight,
            ));
        }
        assert_eq!(to - from, sum);
    }
    let shown = file["activeProfileIndex"].as_u64().unwrap() as usize;
    assert!(shown == 0 || shown < file["profiles"].as_array().unwrap().len());
    (file, stacks)
}

#[test]
fn is_golden() {
    let session = canonical::session();
    golden::check(
        "export/canonical.speedscope.json",
        &export("speedscope", &[], &session),
    );
}

#[test]
fn sums_are_those_of_the_events() {
    let session = canonical::session_with_everything();
    let (file, stacks) = read(&[], &session);
    assert_eq!(weights_of(stacks), weights(&session, |_| true));
    let (_, waits) = read(&[("source", "off-cpu")], &session);
    assert_eq!(
        weights_of(waits),
        weights(&session, |sample| sample.wait.is_some())
    );
    let calls = |profile: &&Value| profile["type"] == "evented";
    let edges = file["profiles"].as_array().unwrap().iter().filter(calls);
    let edges: usize = edges.map(|it| it["events"].as_array().unwrap().len()).sum();
    // 8 requests, 16 steps, 8 markers, 4 of the recursion, one that is open.
    assert_eq!(edges, 2 * (8 + 16 + 8 + 4 + 1));
    let notes = file["notes"].to_string();
    assert!(
        notes.contains("lost: 4") && notes.contains("open at the end: 1"),
        "{notes}"
    );
}

#[test]
fn names_are_as_they_are() {
    for name in hostile() {
        let session = session_of(&[(vec![&name, "main"], 5)], &name);
        let (file, stacks) = read(&[], &session);
        assert_eq!(stacks, [(vec![name.clone(), "main".to_owned()], 5000)]);
        let shown = file["profiles"][0]["name"].as_str().unwrap();
        assert_eq!(shown, format!("{name} (tid 1) of {name} (pid 1)"));
    }
}

#[test]
fn nothing_is_a_file_too() {
    let (tables, _) = canonical::session();
    assert_eq!(read(&[], &(tables, Vec::new())).1, []);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(50))]

    #[test]
    fn weights_are_those_of_the_folded_stacks(stacks in odd_stacks()) {
        let session = session_of_odd(&stacks, "p");
        for count in ["samples", "weight"] {
            let options = [("count", count)];
            let sum: u64 = read(&options, &session).1.iter().map(|(_, weight)| weight).sum();
            prop_assert_eq!(sum, folded_sum(&options, &session));
        }
    }
}
