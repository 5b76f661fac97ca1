//! What building tables takes: of every object file below `/usr/bin`, `/usr/sbin` and `/usr/lib`, per MB
//! of unwind information, and how large they are in the kernel.
//!
//! Done by the tests' own measurement of the library (`figures` in `tests/tests/unwinding/unwind_tables.rs`), whose
//! words are passed on.

use std::io;
use std::process::Command;

use super::super::Bench;

/// Measures and prints.
pub(super) fn run(bench: &Bench) -> io::Result<()> {
    eprintln!("tables: of all object files (builds the tests first)");
    let roots = if bench.quick {
        "/usr/bin"
    } else {
        "/usr/bin:/usr/sbin:/usr/lib"
    };
    let output = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()))
        .args([
            "test",
            "--release",
            "--quiet",
            "--package",
            "profiler-tests",
        ])
        .args(["--test", "unwinding", "--", "--ignored", "--nocapture"])
        .args(["--exact", "unwind_tables::figures"])
        .env("ROOTS", roots)
        .current_dir(bench.sources.join("../.."))
        .output()?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(io::Error::other(format!("the figures of tables: {said}")));
    }
    println!("### Tables of all object files below {roots}\n\n```");
    let text = String::from_utf8_lossy(&output.stdout);
    let said = text
        .lines()
        .filter(|line| !line.starts_with("test ") && !line.is_empty());
    for line in said.filter(|line| !line.starts_with("running ")) {
        println!("{line}");
    }
    println!("```\n");
    Ok(())
}
