//! Tests that can't check what they are for, said aloud.
//!
//! Output: `SKIPPED test: reason` on standard error, which libtest's capture does not swallow, and
//! a line `test<TAB>reason` in the file that `PROFILER_SKIP_LOG` names, for the summary of
//! `cargo xtask test`.

use std::fs::OpenOptions;
use std::io::Write;

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

/// Why this process can't load and attach the profiler's programs, if it can't.
pub fn missing_privilege() -> Option<&'static str> {
    const CAP_SYS_ADMIN: u64 = 1 << 21;
    const CAP_PERFMON: u64 = 1 << 38;
    const CAP_BPF: u64 = 1 << 39;
    let effective = std::fs::read_to_string("/proc/self/status")
        .ok()
        .and_then(|status| {
            let line = status
                .lines()
                .find_map(|line| line.strip_prefix("CapEff:"))?;
            u64::from_str_radix(line.trim(), 16).ok()
        })
        .unwrap_or(0);
    if !rustix::process::geteuid().is_root() {
        Some("needs root")
    } else if effective & CAP_SYS_ADMIN == 0
        && effective & (CAP_BPF | CAP_PERFMON) != CAP_BPF | CAP_PERFMON
    {
        Some("needs CAP_BPF and CAP_PERFMON")
    } else {
        None
    }
}
