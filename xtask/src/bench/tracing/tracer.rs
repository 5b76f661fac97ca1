//! The tracers that are compared, and how each is asked the same question of the same process.
//!
//! Each traces one function of one process. Ours writes every call into a capture; bpftrace counts, or
//! makes a histogram of durations as `funclatency` does, or prints a line for each call; uftrace
//! starts a program that was built for it.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::super::Bench;

/// A tool, and what it is asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tracer {
    /// Ours, entries only.
    Entry,
    /// Ours, entries and exits, in the way that it chooses itself.
    Auto,
    /// Ours, exits by probes on instructions.
    Instructions,
    /// bpftrace with a probe that does nothing.
    Empty,
    /// bpftrace, counting.
    Count,
    /// bpftrace, times between entry and return.
    Latency,
    /// bpftrace, a line for each call.
    Lines,
    /// uftrace, on a program built with -pg.
    Uftrace,
}

impl Tracer {
    /// All of them.
    pub(crate) const ALL: [Tracer; 8] = [
        Tracer::Entry,
        Tracer::Auto,
        Tracer::Instructions,
        Tracer::Empty,
        Tracer::Count,
        Tracer::Latency,
        Tracer::Lines,
        Tracer::Uftrace,
    ];

    /// Name in tables.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Tracer::Entry => "profiler, entries",
            Tracer::Auto => "profiler, entries and exits",
            Tracer::Instructions => "profiler, ret-insn",
            Tracer::Empty => "bpftrace, empty",
            Tracer::Count => "bpftrace, count",
            Tracer::Latency => "bpftrace, latency",
            Tracer::Lines => "bpftrace, a line a call",
            Tracer::Uftrace => "uftrace",
        }
    }

    /// Name of the tool.
    pub(crate) fn tool(self) -> &'static str {
        match self {
            Tracer::Entry | Tracer::Auto | Tracer::Instructions => "profiler",
            Tracer::Empty | Tracer::Count | Tracer::Latency | Tracer::Lines => "bpftrace",
            Tracer::Uftrace => "uftrace",
        }
    }

    /// Whether it can be run; if not, why.
    pub(crate) fn missing(self, bench: &Bench) -> Option<String> {
        let mut command = match self.tool() {
            "profiler" => Command::new(&bench.profiler),
            tool => Command::new(tool),
        };
        match command.arg("--version").output() {
            Ok(output) if output.status.success() => None,
            Ok(output) => Some(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
            Err(error) => Some(error.to_string()),
        }
    }

    /// Where ours keeps its calls.
    pub(crate) fn capture(bench: &Bench) -> PathBuf {
        bench.folder.join("trace.cap")
    }

    /// The command that traces `function` (a glob) of `program` in the processes `pids`.
    pub(crate) fn command(
        self,
        bench: &Bench,
        program: &Path,
        function: &str,
        pids: &[u32],
    ) -> io::Result<Command> {
        let joined = pids
            .iter()
            .map(u32::to_string)
            .collect::<Vec<_>>()
            .join(",");
        if self.tool() == "profiler" {
            let returns = match self {
                Tracer::Entry => "none",
                Tracer::Auto => "auto",
                _ => "ret-insn",
            };
            let mut command = Command::new(&bench.profiler);
            command.args(["record", "--quiet", "--force", "--no-samples", "--yes"]);
            command.args(["--budget", "off", "--trace", function, "--returns", returns]);
            command
                .args(["-p", &joined, "-o"])
                .arg(Self::capture(bench));
            return Ok(command);
        }
        let probe = |kind: &str| format!("{kind}:{}:{function}", program.display());
        let entry = probe("uprobe");
        let script = match self {
            Tracer::Empty => format!("{entry} /0/ {{ }}"),
            Tracer::Count => format!("{entry} {{ @ = count(); }}"),
            Tracer::Lines => format!("{entry} {{ printf(\"%llu\\n\", nsecs); }}"),
            Tracer::Latency => format!(
                "{entry} {{ @start[tid] = nsecs; }} {} /@start[tid]/ \
                 {{ @ns = hist(nsecs - @start[tid]); delete(@start[tid]); }}",
                probe("uretprobe")
            ),
            _ => return Err(io::Error::other("uftrace starts its program itself")),
        };
        let mut command = Command::new("bpftrace");
        command.args(["-q", "-e", &script]);
        // It takes one process; without one, a probe is in every process that maps the file.
        if let [pid] = pids {
            command.args(["-p", &pid.to_string()]);
        }
        // For as many probes as one file has functions here.
        command.env("BPFTRACE_MAX_PROBES", "2048");
        Ok(command)
    }
}
