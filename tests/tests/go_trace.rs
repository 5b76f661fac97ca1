//! Go traces against Go's own packages: `internal/trace` to the end of the trace, with the
//! validator of Go's tests, and `go tool trace` itself.
//!
//! Needs a Go distribution with sources, 1.26 or newer: the `go` that `PROFILER_GO` names, or that
//! of
//! `PATH`. Without one the tests say so and are skipped.
#![allow(clippy::unwrap_used)] // A test fails by it.

mod export_shared;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use export_shared::*;
use profiler::derive::stack_frames;
use profiler::model::*;
use profiler::wire::go_trace::{Kind, Version};
use profiler_tests::canonical;

/// The checker, built once; none if there is no suitable Go.
fn checker() -> Option<&'static Path> {
    static BUILT: OnceLock<Option<PathBuf>> = OnceLock::new();
    BUILT.get_or_init(build).as_deref()
}

fn go(args: &[&str]) -> std::io::Result<Output> {
    let go = std::env::var_os("PROFILER_GO").unwrap_or_else(|| "go".into());
    Command::new(go)
        .args(args)
        .envs([
            ("GOPROXY", "off"),
            ("GOFLAGS", "-mod=mod"),
            ("GOTOOLCHAIN", "local"),
        ])
        .output()
}

fn build() -> Option<PathBuf> {
    let skip = |why: &str| {
        let what = "put Go 1.26 or newer in PATH or name it in PROFILER_GO";
        profiler_tests::skip::skip("go_trace", &format!("{why}; {what}"));
        None
    };
    let Ok(root) = go(&["env", "GOROOT"]) else {
        return skip("there is no Go");
    };
    let root = PathBuf::from(String::from_utf8(root.stdout).unwrap().trim());
    let versions = std::fs::read_to_string(root.join("src/internal/trace/version/version.go"));
    if !versions.is_ok_and(|source| source.contains("Go126")) {
        return skip("this Go is too old, or has no sources");
    }
    let directory = scratch("checker");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("conformance/go/main.go");
    let place = root.join("src/cmd/profiler-trace-check/main.go");
    let overlay = serde_json::json!({ "Replace": { place.to_str().unwrap(): source } });
    let overlay_file = directory.join("overlay.json");
    std::fs::write(&overlay_file, overlay.to_string()).unwrap();
    let binary = directory.join("check");
    let built = go(&[
        "build",
        "-overlay",
        overlay_file.to_str().unwrap(),
        "-o",
        binary.to_str().unwrap(),
        "cmd/profiler-trace-check",
    ])
    .unwrap();
    assert!(
        built.status.success(),
        "{}",
        String::from_utf8_lossy(&built.stderr)
    );
    Some(binary)
}

fn scratch(name: &str) -> PathBuf {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join("go_trace")
        .join(name);
    std::fs::create_dir_all(&directory).unwrap();
    directory
}

/// Exports in both forms, has Go check them, and returns what it found.
fn check(name: &str, options: &[(&str, &str)], session: &Recording) -> Option<serde_json::Value> {
    let directory = scratch(name);
    let (text, wire) = (directory.join("text"), directory.join("wire"));
    std::fs::write(&text, try_export("go-trace", options, session).unwrap()).unwrap();
    std::fs::write(
        &wire,
        try_export("go-trace-wire", options, session).unwrap(),
    )
    .unwrap();
    let output = Command::new(checker()?)
        .arg(&text)
        .arg(&wire)
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name} {options:?}: {errors}");
    Some(serde_json::from_slice(&output.stdout).unwrap())
}

/// Samples per function, as often as a stack holds it, and samples.
fn counts((tables, events): &Recording) -> (BTreeMap<String, u64>, u64) {
    let mut functions = BTreeMap::new();
    let mut samples = 0;
    for event in events {
        if let Event::Sample(sample) = event {
            samples += 1;
            for frame in stack_frames(tables, sample.kernel, sample.user) {
                *functions.entry(frame.name.into_owned()).or_default() += 1;
            }
        }
    }
    (functions, samples)
}

const VERSIONS: [&str; 4] = ["22", "23", "25", "26"];

#[test]
fn text_is_golden() {
    let session = canonical::session();
    golden("canonical.gotrace", &export("go-trace", &[], &session));
}

#[test]
fn events_are_those_of_go() {
    let Some(checker) = checker() else {
        return;
    };
    let output = Command::new(checker).arg("-events").output().unwrap();
    let gos: BTreeMap<u32, Vec<String>> = serde_json::from_slice(&output.stdout).unwrap();
    for version in Version::ALL {
        let ours: Vec<String> = Kind::ALL
            .iter()
            .filter(|kind| kind.since() <= version)
            .map(|kind| format!("{} {} {}", *kind as u8, kind.name(), kind.args().join(" ")))
            .collect();
        assert_eq!(gos[&version.minor()], ours, "{version:?}");
    }
}

/// Go's own tool reads it, and finds every sample.
#[test]
fn go_tool_trace_opens_it() {
    if checker().is_none() {
        return;
    }
    let session = canonical::session();
    let file = scratch("tool").join("wire");
    std::fs::write(&file, try_export("go-trace-wire", &[], &session).unwrap()).unwrap();
    let output = go(&["tool", "trace", "-d=parsed", file.to_str().unwrap()]).unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(
        text.matches(" StackSample ").count() as u64,
        counts(&session).1
    );
}

#[test]
fn hostile_names_reach_go() {
    for name in HOSTILE {
        let session = session_of(&[(vec![name, "main", name], 2)], name);
        let Some(found) = check("hostile", &[], &session) else {
            return;
        };
        assert_eq!(found["functions"]["main"], 2, "{name:?}");
    }
}

/// Names and stacks longer than a trace can hold, and tables of many batches.
#[test]
fn what_is_too_long_is_cut() {
    let long = "é".repeat(2000);
    let names: Vec<String> = (0..3000).map(|i| format!("function {i} {long}")).collect();
    let mut stacks: Vec<(Vec<&str>, u64)> = names
        .iter()
        .map(|name| (vec!["main", name.as_str()], 3))
        .collect();
    let mut deep = vec!["root"; 400];
    deep.push("leaf");
    stacks.push((deep, 5));
    let session = session_of(&stacks, &long);
    for version in VERSIONS {
        let Some(found) = check("long", &[("version", version)], &session) else {
            return;
        };
        assert_eq!(found["samples"], 9005);
        assert_eq!(found["functions"]["main"], 9000);
        assert_eq!(found["functions"]["leaf"], 5);
        assert_eq!(found["functions"]["root"], 5 * 127);
        let cut = names[2999].get(..1023).unwrap_or(&names[2999][..1024]);
        assert_eq!(found["functions"][cut], 3);
        let logs = found["logs"].to_string();
        assert!(logs.contains("1 stacks cut"), "{logs}");
    }
}

#[test]
fn nothing_recorded_is_a_trace() {
    let (tables, _) = canonical::session();
    for session in [(tables, Vec::new()), (Tables::default(), Vec::new())] {
        for version in VERSIONS {
            let Some(found) = check("empty", &[("version", version)], &session) else {
                return;
            };
            assert_eq!(found["samples"], 0);
        }
    }
}

/// Threads that begin, rename, end and come back under the same ids, in any order and at equal
/// times, shortly after boot and after a year of uptime.
#[test]
fn any_order_of_lives_is_a_trace() {
    for (seed, boot) in (1..=12).zip(
        [1_u64, 5_000_000_000, 31_536_000_000_000_000]
            .into_iter()
            .cycle(),
    ) {
        let session = lives(seed, boot);
        let (functions, samples) = counts(&session);
        for version in VERSIONS {
            for generation in ["3", "50", "100000"] {
                let options = [("version", version), ("generation", generation)];
                let Some(found) = check("lives", &options, &session) else {
                    return;
                };
                let seen: BTreeMap<String, u64> =
                    serde_json::from_value(found["functions"].clone()).unwrap();
                assert_eq!(seen, functions, "seed {seed} {options:?}");
                assert_eq!(found["samples"], samples);
                assert_eq!(found["open_tasks"], 0);
            }
        }
    }
}

/// Random lives of a few pids with a few threads each.
fn lives(seed: u64, boot: u64) -> Recording {
    let (mut tables, template) = session_of(&[(vec!["main", "a"], 1), (vec!["b"], 1)], "p");
    tables.session.started = Timestamp(boot);
    let samples: Vec<Sample> = template
        .into_iter()
        .filter_map(|event| match event {
            Event::Sample(sample) => Some(sample),
            _ => None,
        })
        .collect();
    let name = tables.intern_string("p").0;
    let mut state = seed;
    let mut random = move |below: u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let mut events = Vec::new();
    let mut now = boot;
    for _ in 0..300 {
        now += random(3) * random(2_000_000);
        let pid = random(3) as u32;
        let (process, _) = tables.intern_process(Process {
            pid: Pid(pid),
            started: Timestamp(random(2)),
            parent: None,
            name,
            executable: None,
            command: None,
            namespace_pids: Vec::new(),
            uid: None,
            cgroup: None,
        });
        let (thread, _) = tables.intern_thread(Thread {
            process,
            tid: Tid(pid + 10 * random(3) as u32),
            started: Timestamp(random(2)),
            name,
        });
        let at = Timestamp(now);
        let change = match random(8) {
            0 => Some(ProcessChange::Started),
            1 => Some(ProcessChange::Exited),
            2 => Some(ProcessChange::Renamed(name)),
            _ => None,
        };
        events.push(match change {
            Some(change) => Event::Process(ProcessEvent { at, thread, change }),
            None => Event::Sample(Sample {
                at,
                thread,
                ..samples[random(2) as usize].clone()
            }),
        });
    }
    (tables, events)
}

#[test]
fn go_counts_the_same_samples() {
    let session = canonical::session();
    let (functions, samples) = counts(&session);
    for version in VERSIONS {
        let Some(found) = check("canonical", &[("version", version)], &session) else {
            return;
        };
        let seen: BTreeMap<String, u64> =
            serde_json::from_value(found["functions"].clone()).unwrap();
        assert_eq!(seen, functions, "version {version}");
        assert_eq!(found["samples"], samples);
        assert_eq!(found["samples_outside_goroutine"], 0);
        assert_eq!(found["version"].to_string(), version);
        assert_eq!(found["generations"], 1);
        let tasks: Vec<String> = serde_json::from_value(found["tasks"].clone()).unwrap();
        assert_eq!(tasks, ["web (pid 100)", "db (pid 200)"]);
        assert_eq!(found["open_tasks"], 0);
        for name in ["web", "worker 1", "db"] {
            assert_eq!(found["goroutines"][name], 1, "{name}");
        }
        let logs = found["logs"].to_string();
        for text in [
            "mark: load started",
            "target: system-wide",
            "renamed: thread 200 is now",
        ] {
            assert!(logs.contains(text), "{text}: {logs}");
        }
        assert!(
            logs.contains("lost: 4 on cpu 1 within the last 101 ms"),
            "{logs}"
        );
        if version >= "25" {
            assert_eq!(found["wall_ns"][0], 1_700_000_000_000_000_000_u64);
        }
    }
}

#[test]
fn generations_are_whole() {
    let session = canonical::session();
    let (functions, samples) = counts(&session);
    for version in VERSIONS {
        for generation in ["1", "7", "60"] {
            let options = [("version", version), ("generation", generation)];
            let Some(found) = check("generations", &options, &session) else {
                return;
            };
            let seen: BTreeMap<String, u64> =
                serde_json::from_value(found["functions"].clone()).unwrap();
            assert_eq!(seen, functions, "{options:?}");
            assert_eq!(found["samples"], samples);
            assert_eq!(found["samples_outside_goroutine"], 0, "{options:?}");
            assert_eq!(found["open_tasks"], 0);
            let generations = found["generations"].as_u64().unwrap();
            assert!(generations >= samples / generation.parse::<u64>().unwrap());
        }
    }
}
