//! Programs of our own among those of Debian: what a language or a C library does that no small program of
//! Debian does for sure. Sources in `tests/workloads/programs`.
//!
//! Input: a name of [`ALL`]. Output: the path of the program, built if need be.

use std::path::PathBuf;

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
        let mut command = workload::compiler(compiler[0]);
        command
            .args(&compiler[1..])
            .arg("-o")
            .arg(fresh)
            .arg(&input);
        (compiler[0], command)
    })
}
