//! Golden reports of a session in containers: by container, pod, unit and image, filtered, compared.
//!
//! `UPDATE_GOLDEN=1` writes the files in `golden/containers` anew; read the difference before keeping it.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::golden;
use profiler_model::{Event, Tables};
use profiler_report::derive::{ContainerError, ContainerNames, Target, TargetError};
use profiler_report::view::report::{
    self, By, Collector, Filter, Format, Recording, ReportError, ReportOptions,
};
use profiler_tests::canonical::{self, ODD_NAME};
use serde_json::Value;

type Session = (Tables, Vec<Event>);

fn run((tables, events): &Session, options: &ReportOptions) -> Result<String, ReportError> {
    let mut collected = Collector::for_report(options);
    for event in events {
        collected.add(event, tables);
    }
    let recording = Recording {
        tables,
        collected: &collected,
    };
    let mut out = Vec::new();
    report::run(&recording, options, &mut out)?;
    Ok(String::from_utf8(out).unwrap())
}

fn check(name: &str, options: &ReportOptions) {
    let actual = run(&canonical::session_in_containers(), options).unwrap();
    golden::check_on_screen(&format!("containers/{name}"), options.width, &actual);
}

fn by(by: By) -> ReportOptions {
    ReportOptions {
        by: Some(by),
        width: Some(80),
        ..ReportOptions::default()
    }
}

fn only(containers: &[&str], pods: &[&str], units: &[&str]) -> ReportOptions {
    let texts = |texts: &[&str]| texts.iter().map(|text| text.to_string()).collect();
    ReportOptions {
        filter: Filter {
            target: Target {
                containers: ContainerNames {
                    containers: texts(containers),
                    pods: texts(pods),
                    units: texts(units),
                },
                ..Target::default()
            },
            ..Filter::default()
        },
        ..ReportOptions::default()
    }
}

fn json(options: ReportOptions) -> Value {
    let options = ReportOptions {
        format: Format::Json,
        ..options
    };
    let text = run(&canonical::session_in_containers(), &options).unwrap();
    serde_json::from_str(&text).unwrap()
}

#[test]
fn whole() {
    check("whole.txt", &ReportOptions::default());
    let narrow = ReportOptions {
        width: Some(80),
        ..ReportOptions::default()
    };
    check("whole-80.txt", &narrow);
}

#[test]
fn tables() {
    check("by-container.txt", &by(By::Container));
    check("by-pod.txt", &by(By::Pod));
    check("by-unit.txt", &by(By::Unit));
    check("by-image.txt", &by(By::Image));
    check("by-process.txt", &by(By::Process));
    check("by-thread.txt", &by(By::Thread));
}

#[test]
fn sums_of_containers_are_those_of_the_samples() {
    let report = json(ReportOptions::default());
    let rows = report["containers"].as_array().unwrap();
    let sum = |field: &str| {
        rows.iter()
            .map(|row| row[field].as_u64().unwrap())
            .sum::<u64>()
    };
    assert_eq!(sum("samples"), report["header"]["samples"]);
    assert_eq!(sum("weight"), report["header"]["weight"]);
    assert_eq!(sum("processes"), report["header"]["process_count"]);
    let first = rows
        .iter()
        .find(|row| row["id"] == "0123456789abcdef")
        .unwrap();
    assert_eq!(first["container"], ODD_NAME);
    assert_eq!(first["engine"], "docker");
    assert_eq!(first["image"], "registry.example/shop/web:1.25");
    assert_eq!(first["pod"], Value::Null);
    // What runs in nothing has a row too.
    let none = rows.iter().find(|row| row["container"].is_null()).unwrap();
    assert_eq!(none["samples"], 3);

    let processes = report["processes"].as_array().unwrap();
    let of = |pid: u32| processes.iter().find(|row| row["pid"] == pid).unwrap();
    assert_eq!(of(100)["container"], ODD_NAME);
    assert_eq!(of(100)["namespace_pid"], 1);
    assert_eq!(of(200)["container"], "shop/db-0/postgres");
    assert_eq!(of(200)["namespace_pid"], 7);
    assert_eq!(of(2).get("container"), None);
    let calls = report["calls"]["processes"].as_array().unwrap();
    assert!(
        calls.iter().all(|row| row["container"] == ODD_NAME),
        "{calls:?}"
    );
}

#[test]
fn without_containers_there_is_no_word_of_them() {
    let text = run(&canonical::session(), &by(By::Container)).unwrap();
    assert!(
        text.contains("None of the samples is of a container"),
        "{text}"
    );
    let options = ReportOptions {
        format: Format::Json,
        ..ReportOptions::default()
    };
    let text = run(&canonical::session(), &options).unwrap();
    assert!(!text.contains("container"), "{text}");
}

#[test]
fn one_unit_for_all_is_not_shown() {
    let only_unit = run(
        &canonical::session_in_containers(),
        &only(&[], &[], &["ssh"]),
    )
    .unwrap();
    assert!(
        !only_unit.contains("Units") && only_unit.contains("sshd  (pid 300)"),
        "{only_unit}"
    );
}

#[test]
fn filters_choose_what_ran_in_them() {
    let samples = |options| json(options)["header"]["samples"].as_u64().unwrap();
    assert_eq!(samples(only(&[ODD_NAME], &[], &[])), 84 + 12);
    assert_eq!(samples(only(&["0123"], &[], &[])), 84);
    assert_eq!(samples(only(&["fed"], &[], &[])), 12);
    assert_eq!(samples(only(&[], &["shop/db-0"], &[])), 16);
    assert_eq!(samples(only(&[], &[], &["ssh.service"])), 5);
    assert_eq!(
        samples(only(&["fed"], &["shop/db-0"], &["ssh"])),
        12 + 16 + 5
    );
    // Traced calls of others are left out as well.
    assert_eq!(
        json(only(&["0123"], &[], &[]))["calls"]["processes"][0]["pid"],
        100
    );
    let none = json(only(&["fed"], &[], &[]));
    assert_eq!(none["calls"]["processes"], Value::Array(Vec::new()));
    check("filtered.txt", &only(&["fed"], &["shop/db-0"], &[]));
}

#[test]
fn unknown_names_list_what_there_is() {
    let session = canonical::session_in_containers();
    for (options, words) in [
        (
            only(&["cart"], &[], &[]),
            ["no container `cart`", "shop/db-0/postgres (77aa)"],
        ),
        (
            only(&[], &["shop/cart"], &[]),
            ["no pod `shop/cart`", "it has: shop/db-0"],
        ),
        (
            only(&[], &[], &["cron"]),
            ["no unit `cron`", "it has: ssh.service"],
        ),
    ] {
        let error = run(&session, &options).unwrap_err();
        assert!(matches!(
            error,
            ReportError::Target(TargetError::Container(ContainerError::Unknown { .. }))
        ));
        let error = error.to_string();
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
    }
}

#[test]
fn comparisons_know_what_only_one_side_has() {
    let (with, without) = (canonical::session_in_containers(), canonical::session());
    let diff = |this: &Session, other: &Session, options: &ReportOptions| {
        let collect = |(tables, events): &Session| {
            let mut collected = Collector::for_report(options);
            events.iter().for_each(|event| collected.add(event, tables));
            collected
        };
        let collected = (collect(this), collect(other));
        let recording = |tables, collected| Recording { tables, collected };
        let (this, other) = (
            recording(&this.0, &collected.0),
            recording(&other.0, &collected.1),
        );
        let mut out = Vec::new();
        report::run_diff(&this, &other, options, &mut out)?;
        Ok::<_, ReportError>(String::from_utf8(out).unwrap())
    };
    let options = only(&[], &["shop/db-0"], &[]);
    for (this, other) in [(&with, &without), (&without, &with)] {
        let text = diff(this, other, &options).unwrap();
        assert!(
            text.contains("recording has no samples that match"),
            "{text}"
        );
        assert!(
            text.contains("seq_scan") && !text.contains("parse_header"),
            "{text}"
        );
    }
    assert!(diff(&without, &without, &options).is_err());
}
