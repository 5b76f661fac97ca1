//! Programs of our own among those of Debian: what a language or a C library does that no small program of
//! Debian does for sure. Sources in `tests/workloads/programs`.
//!
//! Input: a name of [`ALL`]. Output: the path of the program, built if need be.

use std::env;
use std::path::PathBuf;
use std::process::Command;

use crate::workload::{self, Unbuilt};

/// Name, source, compiler and its flags.
pub const ALL: &[(&str, &str, &[&str])] = &[
    ("throws", "throws.cpp", &["c++", "-O2"]),
    ("panics", "panics.rs", &["rustc", "-O"]),
    ("goroutines", "goroutines/main.go", &["go", "build"]),
    ("calls", "calls.c", &["cc", "-O2"]),
    ("calls-static", "calls.c", &["cc", "-O2", "-static"]),
    ("calls-static-pie", "calls.c", &["cc", "-O2", "-static-pie"]),
    ("calls-musl", "calls.c", &["musl-gcc", "-O2"]),
    ("spawns", "spawns.c", &["cc", "-O2"]),
    ("sandboxed", "sandboxed.c", &["cc", "-O2"]),
    ("traces", "traces.c", &["cc", "-O2", "-no-pie"]),
    (
        "preloaded.so",
        "preloaded.c",
        &["cc", "-O2", "-shared", "-fPIC"],
    ),
];

/// Path of the program of this name.
pub fn built(name: &str) -> Result<PathBuf, Unbuilt> {
    let Some((_, source, compiler)) = ALL.iter().find(|(known, ..)| *known == name) else {
        return Err(Unbuilt::Failed(format!("no program {name}")));
    };
    let input = workload::source_path("programs").join(source);
    workload::made(name, std::slice::from_ref(&input), |fresh| {
        let program = match compiler[0] {
            "rustc" => env::var_os("RUSTC").unwrap_or("rustc".into()),
            "go" => env::var_os("PROFILER_GO").unwrap_or("go".into()),
            other => other.into(),
        };
        let mut command = Command::new(program);
        command
            .args(&compiler[1..])
            .arg("-o")
            .arg(fresh)
            .arg(&input);
        // Where `HOME` is not set, it knows no place for what it keeps.
        if compiler[0] == "go" {
            command.env("GOCACHE", workload::folder().join(".go-cache"));
        }
        (compiler[0], command)
    })
}
