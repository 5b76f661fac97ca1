//! Golden reports: the canonical session as text and JSON, byte for byte.
//!
//! `UPDATE_GOLDEN=1` writes the files in `golden/report` anew; read the difference before keeping it.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::golden;
use profiler_model::{Event, Source, StackEnd, Tables, Unit};
use profiler_report::derive::Target;
use profiler_report::view::report::{
    self, By, Collector, Filter, Format, Recording, ReportError, ReportOptions, Sort, TimeRange,
};
use profiler_tests::canonical;

fn collect(range: TimeRange) -> (Tables, Collector) {
    let (tables, events) = canonical::session();
    let mut collected = Collector::new(range);
    for event in &events {
        collected.add(event, &tables);
    }
    (tables, collected)
}

fn written(tables: &Tables, collected: &Collector, options: &ReportOptions) -> String {
    let recording = Recording { tables, collected };
    let mut out = Vec::new();
    report::run(&recording, options, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

fn report(options: &ReportOptions) -> String {
    let (tables, events) = canonical::session();
    // Calls are not filtered here: see golden_calls.
    let mut collected = Collector::for_report(&ReportOptions {
        range: options.range,
        by: options.by,
        ..ReportOptions::default()
    });
    for event in &events {
        collected.add(event, &tables);
    }
    written(&tables, &collected, options)
}

/// The session's first half compared with its second.
fn diff(options: &ReportOptions) -> String {
    let (tables, first) = collect("..60ms".parse().unwrap());
    let (_, second) = collect("60ms..".parse().unwrap());
    let recording = |collected| Recording {
        tables: &tables,
        collected,
    };
    let mut out = Vec::new();
    report::run_diff(&recording(&first), &recording(&second), options, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

fn check(name: &str, options: ReportOptions) {
    check_text(name, &options, report(&options));
}

fn check_text(name: &str, options: &ReportOptions, actual: String) {
    golden::check_on_screen(&format!("report/{name}"), options.width, &actual);
}

#[test]
fn whole() {
    check("whole.txt", ReportOptions::default());
}

#[test]
fn a_recording_that_was_not_finished_is_said_to_be_that() {
    let (mut tables, collected) = collect(TimeRange::default());
    let of = |format| ReportOptions {
        format,
        ..ReportOptions::default()
    };
    let said = "Complete  no: the recording was not finished, what came last may be missing\n";
    for is_cut_off in [false, true] {
        tables.is_cut_off = is_cut_off;
        let text = written(&tables, &collected, &of(Format::Text));
        assert_eq!(text.contains(said), is_cut_off, "{text}");
        let json = written(&tables, &collected, &of(Format::Json));
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(json["header"]["complete"], !is_cut_off);
    }
}

/// What waited, and of which not even the leaf was recorded, has a row, and is told as what it is.
#[test]
fn waits_without_a_stack_are_in_a_row_and_in_the_sum() {
    let (tables, mut events) = canonical::session_with_waits();
    let waits = events.iter_mut().filter_map(|event| match event {
        Event::Sample(sample) if sample.wait.is_some() && sample.user.is_some() => Some(sample),
        _ => None,
    });
    for sample in waits.take(2) {
        (sample.kernel, sample.user) = (None, None);
        sample.kernel_end = StackEnd::usual(None);
        sample.user_end = StackEnd::LeafOnly;
    }
    let options = ReportOptions {
        format: Format::Json,
        min_percent: 0.0,
        ..ReportOptions::default()
    };
    let report = |events: &[Event]| -> serde_json::Value {
        let mut collected = Collector::for_report(&options);
        events.iter().for_each(|it| collected.add(it, &tables));
        serde_json::from_str(&written(&tables, &collected, &options)).unwrap()
    };
    let (before, after) = (report(&canonical::session_with_waits().1), report(&events));
    let none = |report: &serde_json::Value| report["header"]["stacks"]["none"].as_u64().unwrap();
    assert_eq!(none(&after), none(&before) + 2);
    let leaves = |report: &serde_json::Value| report["header"]["stacks"]["leaf_only"].clone();
    assert_eq!(leaves(&after), leaves(&before));
    for report in [before, after] {
        let rows = report["functions"].as_array().unwrap();
        let own = rows.iter().map(|row| row["self_weight"].as_u64().unwrap());
        assert_eq!(own.sum::<u64>(), report["header"]["weight"], "{report}");
        assert!(rows.iter().any(|row| row["name"] == "[no stack]"));
    }
}

/// Captures that were merged may have had a source at several rates: each has its line, and what is shown of all another one.
#[test]
fn a_source_with_two_rates_is_told_and_summed() {
    let (mut tables, mut events) = canonical::session();
    let known = tables
        .sources
        .iter()
        .next()
        .map(|(id, source)| (id, source.clone()));
    let (main, source) = known.unwrap();
    let source = Source {
        frequency_hz: Some(49),
        ..source
    };
    let other = tables.sources.intern(source).0;
    for event in events.iter_mut().skip(50) {
        if let Event::Sample(sample) = event
            && sample.source == main
        {
            sample.source = other;
        }
    }
    let mut collected = Collector::default();
    events
        .iter()
        .for_each(|event| collected.add(event, &tables));
    let text = written(&tables, &collected, &ReportOptions::default());
    let lines: Vec<&str> = text
        .lines()
        .filter(|line| line.contains(" samples, "))
        .collect();
    let begin = [
        "cpu-clock at 999 Hz: ",
        "cpu-clock at 49 Hz: ",
        "shown together: 100 samples, ",
    ];
    let all = begin
        .iter()
        .all(|begin| lines.iter().any(|line| line.contains(begin)));
    assert!(all && !text.contains("; selected"), "{lines:?}");
}

#[test]
fn whole_80_columns() {
    let options = ReportOptions {
        width: Some(80),
        ..ReportOptions::default()
    };
    check("whole-80.txt", options);
}

#[test]
fn whole_in_color() {
    let options = ReportOptions {
        color: true,
        width: Some(100),
        ..ReportOptions::default()
    };
    let text = report(&options);
    assert!(text.contains("\u{1b}["));
    let plain = ReportOptions {
        color: false,
        ..options
    };
    assert!(!report(&plain).contains('\u{1b}'));
}

#[test]
fn json() {
    let options = ReportOptions {
        format: Format::Json,
        callers_of: Some("main".into()),
        by: Some(By::Line),
        ..ReportOptions::default()
    };
    let text = report(&options);
    let value: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(value["schema"], "profiler-report/2");
    check("whole.json", options);
}

#[test]
fn tables() {
    for (name, by) in [
        ("by-function-total.txt", By::Function),
        ("by-line.txt", By::Line),
        ("by-module.txt", By::Module),
        ("by-process.txt", By::Process),
        ("by-thread.txt", By::Thread),
    ] {
        let options = ReportOptions {
            by: Some(by),
            sort: Sort::Total,
            ..ReportOptions::default()
        };
        check(name, options);
    }
}

fn named(comm: &str) -> Target {
    Target {
        comms: vec![comm.into()],
        ..Target::default()
    }
}

/// Why user stacks end too early, and in which module.
#[test]
fn ends() {
    let by_end = ReportOptions {
        by: Some(By::End),
        ..ReportOptions::default()
    };
    check("by-end.txt", by_end.clone());
    let narrow = ReportOptions {
        width: Some(80),
        ..by_end.clone()
    };
    check("by-end-80.txt", narrow);
    let of_db = ReportOptions {
        filter: Filter {
            target: named("db"),
            ..Filter::default()
        },
        format: Format::Json,
        ..by_end
    };
    let value: serde_json::Value = serde_json::from_str(&report(&of_db)).unwrap();
    let whole = ReportOptions {
        filter: Filter::default(),
        ..of_db
    };
    let all: serde_json::Value = serde_json::from_str(&report(&whole)).unwrap();
    let samples = |value: &serde_json::Value| -> u64 {
        let early = value["ends"]["early"].as_array().unwrap();
        early
            .iter()
            .map(|row| row["samples"].as_u64().unwrap())
            .sum()
    };
    for value in [&value, &all] {
        let ends = &value["ends"];
        let (samples, complete) = (samples(value), ends["complete"].as_u64().unwrap());
        assert_eq!(samples + complete, ends["samples"].as_u64().unwrap());
    }
    assert!(samples(&value) < samples(&all));
    // What is not asked for is not there.
    let plain = ReportOptions { by: None, ..whole };
    assert!(!report(&plain).contains("\"ends\":"));
}

#[test]
fn callers_and_callees() {
    for (name, function) in [("callers-main.txt", "main"), ("callers-walk.txt", "walk*")] {
        let options = ReportOptions {
            callers_of: Some(function.into()),
            ..ReportOptions::default()
        };
        check(name, options);
    }
}

#[test]
fn filtered() {
    let options = ReportOptions {
        filter: Filter {
            target: named("db*"),
            functions: vec!["scan".into()],
            ..Filter::default()
        },
        range: "90ms..".parse().unwrap(),
        ..ReportOptions::default()
    };
    check("filtered.txt", options);
}

#[test]
fn nothing_matches() {
    let options = ReportOptions {
        filter: Filter {
            target: named("absent"),
            ..Filter::default()
        },
        ..ReportOptions::default()
    };
    check("nothing.txt", options);
}

#[test]
fn compared() {
    let options = ReportOptions::default();
    check_text("diff.txt", &options, diff(&options));
    let options = ReportOptions {
        sort: Sort::Total,
        format: Format::Json,
        ..options
    };
    check_text("diff.json", &options, diff(&options));
}

#[test]
fn annotated() {
    for (name, function, format) in [
        ("annotate-parse.txt", "parse_header", Format::Text),
        ("annotate-parse.json", "parse_header", Format::Json),
        ("annotate-inlined.txt", "std::find*", Format::Text),
        ("annotate-kernel.txt", "copy_page_to_iter", Format::Text),
    ] {
        let options = ReportOptions {
            annotate: Some(function.into()),
            format,
            ..ReportOptions::default()
        };
        check(name, options);
    }
}

#[test]
fn what_is_not_there_is_an_error_that_says_so() {
    let (tables, collected) = collect(TimeRange::default());
    let recording = Recording {
        tables: &tables,
        collected: &collected,
    };
    let run = |options: &ReportOptions| report::run(&recording, options, &mut Vec::new());
    let no_function = ReportOptions {
        annotate: Some("absent".into()),
        ..ReportOptions::default()
    };
    assert!(matches!(run(&no_function), Err(ReportError::NoFunction(_))));
    let no_source = ReportOptions {
        source: Some("cycles".into()),
        ..ReportOptions::default()
    };
    let error = run(&no_source).unwrap_err().to_string();
    assert!(error.ends_with("it has samples of: cpu-clock"), "{error}");
}

fn wait_report(options: &ReportOptions) -> String {
    let (tables, events) = canonical::session_with_waits();
    let mut collected = Collector::for_report(options);
    for event in &events {
        collected.add(event, &tables);
    }
    written(&tables, &collected, options)
}

/// All time: running and waiting in one, apart in columns and at the leaves of the tree.
#[test]
fn waits() {
    let default = ReportOptions::default();
    let off_cpu = Some("off-cpu".to_owned());
    for (name, options) in [
        ("wall.txt", default.clone()),
        (
            "wall-80.txt",
            ReportOptions {
                width: Some(80),
                ..default.clone()
            },
        ),
        (
            "wall.json",
            ReportOptions {
                format: Format::Json,
                ..default.clone()
            },
        ),
        (
            "off-cpu.txt",
            ReportOptions {
                source: off_cpu.clone(),
                ..default.clone()
            },
        ),
        (
            "by-wait.txt",
            ReportOptions {
                by: Some(By::Wait),
                source: off_cpu,
                ..default.clone()
            },
        ),
        (
            "wall-part.txt",
            ReportOptions {
                by: Some(By::Wait),
                range: "40ms..60ms".parse().unwrap(),
                filter: Filter {
                    target: named("web"),
                    ..Filter::default()
                },
                ..default.clone()
            },
        ),
        (
            "wall-by-process.txt",
            ReportOptions {
                by: Some(By::Process),
                ..default.clone()
            },
        ),
        (
            "wall-callers.txt",
            ReportOptions {
                callers_of: Some("schedule_timeout".into()),
                ..default.clone()
            },
        ),
        (
            "wall-not.txt",
            ReportOptions {
                by: Some(By::Function),
                source: Some("cpu-clock".into()),
                ..default
            },
        ),
    ] {
        let text = wait_report(&options);
        check_text(name, &options, text);
    }
}

/// The canonical session with each third sample made by another source.
fn two_sources() -> (Tables, Collector) {
    let (mut tables, mut events) = canonical::session();
    let other = Source {
        name: tables.intern_string("page-faults").0,
        unit: Unit::Events,
        frequency_hz: None,
        period: Some(1),
    };
    let other = tables.sources.intern(other).0;
    let traced = |event: &Event| {
        use Event::{Call, CallCount, Gap, Throw};
        matches!(event, Call(_) | Throw(_) | CallCount(_) | Gap(_))
    };
    let others = events.iter_mut().filter(|event| !traced(event));
    for event in others.step_by(3) {
        if let Event::Sample(sample) = event {
            sample.source = other;
            sample.weight = 1;
        }
    }
    let mut collected = Collector::default();
    for event in &events {
        collected.add(event, &tables);
    }
    (tables, collected)
}

#[test]
fn one_source_is_shown_and_the_others_are_named() {
    let (tables, collected) = two_sources();
    let recording = Recording {
        tables: &tables,
        collected: &collected,
    };
    let options = ReportOptions {
        by: Some(By::Function),
        ..ReportOptions::default()
    };
    let mut out = Vec::new();
    report::run(&recording, &options, &mut out).unwrap();
    check_text("two-sources.txt", &options, String::from_utf8(out).unwrap());

    let faults = ReportOptions {
        source: Some("page-faults".into()),
        ..options
    };
    let mut out = Vec::new();
    report::run(&recording, &faults, &mut out).unwrap();
    check_text("page-faults.txt", &faults, String::from_utf8(out).unwrap());
}

#[test]
fn a_comparison_of_different_things_warns() {
    let (tables, collected) = collect(TimeRange::default());
    let (other_tables, mut other) = two_sources();
    let options = ReportOptions::default();
    let compare = |other_tables: &Tables, other: &Collector, options: &ReportOptions| {
        let this = Recording {
            tables: &tables,
            collected: &collected,
        };
        let other = Recording {
            tables: other_tables,
            collected: other,
        };
        let mut out = Vec::new();
        report::run_diff(&this, &other, options, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    };
    // Both have cpu-clock: nothing to warn of.
    assert!(!compare(&other_tables, &other, &options).contains("Warning"));

    let (only_faults, mut events) = canonical::session();
    other = Collector::default();
    let mut only_faults_tables = only_faults;
    let source = Source {
        name: only_faults_tables.intern_string("page-faults").0,
        unit: Unit::Events,
        frequency_hz: None,
        period: Some(1),
    };
    let source = only_faults_tables.sources.intern(source).0;
    for event in &mut events {
        if let Event::Sample(sample) = event {
            sample.source = source;
        }
        other.add(event, &only_faults_tables);
    }
    let text = compare(&only_faults_tables, &other, &options);
    assert!(text.contains("the sources differ: cpu-clock here, page-faults"));
    assert!(text.contains("the units differ: nanoseconds here, events"));

    let nothing = Collector::default();
    let text = compare(&tables, &nothing, &options);
    assert!(
        text.contains("the other recording has no samples"),
        "{text}"
    );
}
