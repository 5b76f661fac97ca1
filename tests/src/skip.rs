//! Tests that can't check what they are for, said aloud.
//!
//! Output: `SKIPPED test: reason` on standard error, which libtest's capture does not swallow, and
//! a line `test<TAB>reason` in the file that `PROFILER_SKIP_LOG` names, for the summary of
//! `cargo xtask test`. `PROFILER_EMULATED` says that the machine is.

use std::fs::OpenOptions;
use std::io::Write;
use std::process::Command;

/// Says that `test` was skipped, and why.
pub fn skip(test: &str, reason: &str) {
    let _ = writeln!(std::io::stderr(), "SKIPPED {test}: {reason}");
    let Some(path) = std::env::var_os("PROFILER_SKIP_LOG") else {
        return;
    };
    let written = OpenOptions::new()
        .create(true)
        .append(true)
        .open(&path)
        .and_then(|mut log| log.write_all(format!("{test}\t{reason}\n").as_bytes()));
    if let Err(error) = written {
        panic!("failed to log a skip in {}: {error}", path.display());
    }
}

/// Whether `test` has a tool that says its version; says so if not.
pub fn has(test: &str, tool: &str) -> bool {
    let is_there = Command::new(tool).arg("--version").output().is_ok();
    if !is_there {
        skip(test, &format!("{tool} is not installed"));
    }
    is_there
}

/// Whether `test` may load kernel-side programs; says so if not.
pub fn privileged(test: &str) -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        skip(test, "loading kernel-side programs needs root");
    }
    root
}

/// Whether the machine is emulated: slower and less even than a real one.
pub fn emulated() -> bool {
    std::env::var_os("PROFILER_EMULATED").is_some()
}

/// Whether repetitions are to be as many as a release wants (`cargo xtask test --long`).
pub fn long() -> bool {
    std::env::var_os("PROFILER_LONG").is_some()
}
