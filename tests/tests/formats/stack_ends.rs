//! How user stacks ended, as all who say it say it: the tally that `record` keeps, `info`, and `report`.
//!
//! A capture with every kind of end, with and without frames -> the same numbers. What does not belong here: which ends
//! there are (`model`), and what people are told to do (`cli::stack_notes`).

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::path::PathBuf;

use profiler_capture::{Reader, TimeRange};
use profiler_model::*;
use profiler_report::view::info::write_info;
use profiler_report::view::report::{self, By, Collector, Format, Recording, ReportOptions};
use profiler_tests::{announced, canonical};
use serde_json::Value;

/// The canonical session, whose samples end in every way that there is: those of even turns have the frames that they
/// had, those of odd ones none.
fn write() -> PathBuf {
    let (tables, mut events) = canonical::session();
    let samples = events.iter_mut().filter_map(|event| match event {
        Event::Sample(sample) => Some(sample),
        _ => None,
    });
    for (turn, sample) in samples.enumerate() {
        sample.user_end = StackEnd::ALL[turn / 2 % StackEnd::ALL.len()];
        let has_frames = !matches!(sample.user_end, StackEnd::NoStack | StackEnd::Gone);
        if turn % 2 == 1 || !has_frames {
            sample.user = None;
        }
    }
    let path = std::env::temp_dir().join(format!("stack-ends-{}.cap", std::process::id()));
    let _ = std::fs::remove_file(&path);
    announced::write(&path, (tables, events)).unwrap();
    path
}

/// What a report says, as JSON.
fn reported(reader: &mut Reader, by: Option<By>) -> (StackEnds, Value) {
    let options = ReportOptions {
        by,
        format: Format::Json,
        ..ReportOptions::default()
    };
    let tables = reader.load_tables().unwrap();
    let mut collected = Collector::for_report(&options);
    let mut recorded = StackEnds::default();
    let each = &mut |event: &Event, tables: &Tables| {
        collected.add(event, tables);
        if let Event::Sample(sample) = event {
            // As sessions do.
            recorded.count(sample.user_end);
        }
        Ok(())
    };
    reader.replay(&tables, TimeRange::ALL, each).unwrap();
    let (tables, collected) = (&tables, &collected);
    let mut json = Vec::new();
    report::run(&Recording { tables, collected }, &options, &mut json).unwrap();
    (recorded, serde_json::from_slice(&json).unwrap())
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap()
}

#[test]
fn all_who_count_them_count_alike() {
    let path = write();
    let mut reader = Reader::open(&path).unwrap();
    let (recorded, by_end) = reported(&mut reader, Some(By::End));
    let (_, whole) = reported(&mut reader, None);
    let mut json = Vec::new();
    write_info(&mut reader, true, &mut json).unwrap();
    let info: Value = serde_json::from_slice(&json).unwrap();
    std::fs::remove_file(&path).unwrap();
    for &end in StackEnd::ALL {
        assert!(recorded.of(end) > 1, "{end:?} is missing");
    }

    // What is there, what of it is complete, and what is besides.
    let user = &info["user_stacks"];
    let ends = &by_end["ends"];
    assert_eq!(number(&user["there"]), recorded.total());
    assert_eq!(number(&ends["samples"]), recorded.total());
    assert_eq!(number(&user["complete"]), recorded.whole());
    assert_eq!(number(&ends["complete"]), recorded.whole());
    assert_eq!(number(&user["not_said"]), recorded.not_said());
    assert_eq!(number(&ends["not_said"]), recorded.not_said());
    assert_eq!(number(&user["gone"]), recorded.gone());

    // Each reason.
    let cut: BTreeMap<String, u64> = (recorded.cut().iter())
        .map(|(end, count)| (end.name().to_owned(), *count))
        .collect();
    let mut reported = BTreeMap::<String, u64>::new();
    for row in ends["early"].as_array().unwrap() {
        let name = row["end"].as_str().unwrap().to_owned();
        *reported.entry(name).or_default() += number(&row["samples"]);
    }
    assert_eq!(reported, cut);
    for (name, count) in &cut {
        assert_eq!(number(&info["stack_ends"]["user"][name]), *count, "{name}");
    }

    // In the head of a report a sample is told of once.
    let head = whole["header"]["stacks"].as_object().unwrap();
    let told: u64 = head.values().map(number).sum();
    assert!(told <= number(&whole["header"]["samples"]), "{head:?}");
}
