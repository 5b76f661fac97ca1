//! Go traces against Go's own packages: `internal/trace` to the end of the trace, with the validator
//! of Go's tests, and `go tool trace` itself.
//!
//! Needs a Go distribution with sources, 1.26 or newer: the `go` that `PROFILER_GO` names, or that of
//! `PATH`. Without one the tests say so and are skipped.
#![allow(clippy::unwrap_used)] // A test fails by it.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Arc, Mutex, OnceLock};

use profiler::derive::stack_frames;
use profiler::export::{self, ExportOptions};
use profiler::model::*;
use profiler_tests::canonical;

/// An output whose bytes stay readable after the exporter has taken it.
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

type Session = (Tables, Vec<Event>);

fn export(format: &str, options: &[(&str, &str)], (tables, events): &Session) -> Vec<u8> {
    let format = export::by_name(format).unwrap();
    let mut parsed = ExportOptions::default();
    for (name, value) in options {
        parsed.set(format, name, value).unwrap();
    }
    let output = Shared::default();
    let mut sink = export::open(format, parsed, Box::new(output.clone()));
    for event in events {
        sink.event(event, tables).unwrap();
    }
    sink.finish(tables).unwrap();
    output.0.lock().unwrap().clone()
}

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
        eprintln!(
            "SKIPPED go_trace: {why}; put Go 1.26 or newer in PATH or name it in PROFILER_GO"
        );
        if let Some(log) = std::env::var_os("PROFILER_SKIP_LOG") {
            let mut log = std::fs::OpenOptions::new()
                .append(true)
                .create(true)
                .open(log)
                .unwrap();
            writeln!(log, "go_trace: {why}").unwrap();
        }
        None
    };
    let Ok(root) = go(&["env", "GOROOT"]) else {
        return skip("there is no Go");
    };
    let root = PathBuf::from(String::from_utf8(root.stdout).unwrap().trim());
    // The package whose name tells a Go that knows all versions of the format.
    if !root.join("src/internal/trace/tracev2").is_dir() {
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
fn check(name: &str, options: &[(&str, &str)], session: &Session) -> Option<serde_json::Value> {
    let checker = checker()?;
    let directory = scratch(name);
    let (text, wire) = (directory.join("text"), directory.join("wire"));
    std::fs::write(&text, export("go-trace", options, session)).unwrap();
    std::fs::write(&wire, export("go-trace-wire", options, session)).unwrap();
    let output = Command::new(checker)
        .arg(&text)
        .arg(&wire)
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name} {options:?}: {errors}");
    Some(serde_json::from_slice(&output.stdout).unwrap())
}

/// Samples per function, as often as a stack holds it, and samples.
fn counts((tables, events): &Session) -> (BTreeMap<String, u64>, u64) {
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
    let text = String::from_utf8(export("go-trace", &[], &session)).unwrap();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden/export/canonical.gotrace");
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap();
    let differs = expected.lines().zip(text.lines()).find(|(e, a)| e != a);
    assert!(
        expected == text,
        "first: {differs:?}; see it with UPDATE_GOLDEN=1 and git diff"
    );
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
