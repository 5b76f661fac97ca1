//! `convert`: an execution trace of Go in one form becomes the other, event by event.
//!
//! Our own exports, which Go's tools check elsewhere, and the traces that Go tests its own readers with, where there is a Go ->
//! the other form and back. What does not belong here: what is rejected (`wire::go_trace`).
#![allow(clippy::unwrap_used)] // A test fails by it.

use std::path::PathBuf;

use crate::export_shared::*;
use crate::go_trace::go;
use profiler_tests::{canonical, skip};
use profiler_wire::go_trace::{Encoding, header, read_event, read_header};

/// The trace in that form.
fn convert(trace: &[u8], to: Encoding) -> Result<Vec<u8>, String> {
    let failed = |error: &dyn std::fmt::Display| error.to_string();
    let (from, version, mut at) = read_header(trace).map_err(|error| failed(&error))?;
    let mut out = header(version, to).into_bytes();
    while let Some((event, len)) =
        read_event(from, version, &trace[at..], true).map_err(|error| failed(&error))?
    {
        event.event().encode(to, &mut out);
        at += len;
    }
    Ok(out)
}

#[test]
fn our_exports_become_each_other() {
    let session = canonical::session_with_everything();
    for version in ["22", "23", "25", "26"] {
        let options = [("version", version), ("generation", "100")];
        let text = try_export("go-trace", &options, &session).unwrap();
        let wire = try_export("go-trace-wire", &options, &session).unwrap();
        assert_eq!(convert(&text, Encoding::Wire).unwrap(), wire, "{version}");
        assert_eq!(convert(&wire, Encoding::Text).unwrap(), text, "{version}");
        assert_eq!(convert(&text, Encoding::Text).unwrap(), text, "{version}");
        assert!(text.len() > 10_000);
    }
}

/// Where Go keeps the traces that it tests its own readers with.
fn of_go() -> Option<PathBuf> {
    let root = go().args(["env", "GOROOT"]).output().ok()?;
    let root = PathBuf::from(String::from_utf8(root.stdout).ok()?.trim());
    let folder = root.join("src/internal/trace/testdata/tests");
    folder.is_dir().then_some(folder)
}

#[test]
fn traces_of_go_become_bytes_and_text_again() {
    let Some(folder) = of_go() else {
        skip::skip("go_trace", "there is no Go with the sources of its tests");
        return;
    };
    let mut seen = 0;
    for file in std::fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        let all = std::fs::read_to_string(&path).unwrap();
        let Some((_, trace)) = all.split_once("-- trace --\n") else {
            continue;
        };
        let wire = convert(trace.as_bytes(), Encoding::Wire).unwrap();
        let text = convert(&wire, Encoding::Text).unwrap();
        assert_eq!(
            String::from_utf8(text).unwrap(),
            trace,
            "{}",
            path.display()
        );
        assert_eq!(convert(&wire, Encoding::Wire).unwrap(), wire);
        seen += 1;
    }
    assert!(seen > 10, "{seen} traces");
}
