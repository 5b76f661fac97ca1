//! The profilers that are compared, and how each is asked the same question.
//!
//! Each records the whole machine with user and kernel stacks by frame pointers, and then turns the
//! recording into text: ours by `report`, perf by `perf script`; bpftrace has its text already when it
//! ends.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::measure::{Usage, run};

/// A profiler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tool {
    /// Ours.
    Profiler,
    /// Linux perf.
    Perf,
    /// bpftrace, counting stacks in the kernel.
    Bpftrace,
}

/// What a recording holds.
#[derive(Clone, Copy, Debug, Default, serde::Serialize)]
pub(crate) struct Contents {
    /// Samples in it (for bpftrace: the sum of its counts).
    pub(crate) samples: u64,
    /// Those of them that are not of an idle processor.
    pub(crate) busy: u64,
    /// Samples that it says were lost.
    pub(crate) lost: u64,
    /// Size of the recording.
    pub(crate) bytes: u64,
}

impl Tool {
    /// Name in tables.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Tool::Profiler => "profiler",
            Tool::Perf => "perf",
            Tool::Bpftrace => "bpftrace",
        }
    }

    /// Where it keeps its recording.
    pub(crate) fn recording(self, folder: &Path) -> PathBuf {
        folder.join(match self {
            Tool::Profiler => "profiler.cap",
            Tool::Perf => "perf.data",
            Tool::Bpftrace => "bpftrace.txt",
        })
    }

    /// Whether it can be run; if not, why.
    pub(crate) fn missing(self, profiler: &Path) -> Option<String> {
        let mut command = match self {
            Tool::Profiler => Command::new(profiler),
            Tool::Perf => Command::new("perf"),
            Tool::Bpftrace => Command::new("bpftrace"),
        };
        match command.arg("--version").output() {
            Ok(output) if output.status.success() => None,
            Ok(output) => Some(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
            Err(error) => Some(error.to_string()),
        }
    }

    /// The command that records the whole machine at `hz` until it is interrupted.
    pub(crate) fn record(self, profiler: &Path, folder: &Path, hz: u32) -> io::Result<Command> {
        let output = self.recording(folder);
        match fs::remove_file(&output) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let rate = hz.to_string();
        Ok(match self {
            Tool::Profiler => {
                let mut command = Command::new(profiler);
                command
                    .args([
                        "record",
                        "--quiet",
                        "-a",
                        "-e",
                        "cpu-clock",
                        "-F",
                        &rate,
                        "-o",
                    ])
                    .arg(output);
                command
            }
            Tool::Perf => {
                let mut command = Command::new("perf");
                command.args([
                    "record",
                    "-q",
                    "-a",
                    "-g",
                    "-e",
                    "cpu-clock",
                    "-k",
                    "CLOCK_MONOTONIC",
                ]);
                command.args(["-F", &rate, "-o"]).arg(output);
                command
            }
            Tool::Bpftrace => {
                let mut command = Command::new("bpftrace");
                // Without a larger map it drops stacks beyond 4,096 in silence.
                command
                    .env("BPFTRACE_MAP_KEYS_MAX", "65536")
                    .arg("-o")
                    .arg(output)
                    .arg("-e");
                command.arg(format!(
                    "profile:hz:{hz} {{ @[kstack, ustack, comm, pid] = count(); }}"
                ));
                command
            }
        })
    }

    /// How long it may take until it samples.
    pub(crate) fn settling(self) -> Duration {
        match self {
            Tool::Profiler | Tool::Perf => Duration::from_millis(1200),
            Tool::Bpftrace => Duration::from_millis(2500),
        }
    }

    /// Turns the recording into text; what that took. bpftrace has done so already.
    pub(crate) fn into_text(self, profiler: &Path, folder: &Path) -> io::Result<Usage> {
        match self {
            Tool::Profiler => self.report(profiler, folder),
            Tool::Perf => {
                let mut command = Command::new("perf");
                run(
                    command.arg("script").arg("-i").arg(self.recording(folder)),
                    &folder.join("text"),
                )
            }
            Tool::Bpftrace => Ok(Usage::default()),
        }
    }

    /// The tool's report of the hottest functions with call graphs.
    pub(crate) fn report(self, profiler: &Path, folder: &Path) -> io::Result<Usage> {
        let recording = self.recording(folder);
        let mut command = match self {
            Tool::Profiler => {
                let mut command = Command::new(profiler);
                command.arg("report").arg(recording);
                command
            }
            Tool::Perf => {
                let mut command = Command::new("perf");
                command.args(["report", "--stdio", "-i"]).arg(recording);
                command
            }
            Tool::Bpftrace => return Ok(Usage::default()),
        };
        run(&mut command, &folder.join("report"))
    }

    /// Every sample, or every distinct stack, as text for other tools.
    pub(crate) fn export(self, profiler: &Path, folder: &Path) -> io::Result<Usage> {
        match self {
            Tool::Profiler => {
                let out = folder.join("export.folded");
                let _ = fs::remove_file(&out);
                let mut command = Command::new(profiler);
                command
                    .arg("export")
                    .arg(self.recording(folder))
                    .args(["--format", "folded", "-o"]);
                run(command.arg(out), &folder.join("export"))
            }
            Tool::Perf | Tool::Bpftrace => self.into_text(profiler, folder),
        }
    }

    /// What the recording holds.
    pub(crate) fn contents(self, profiler: &Path, folder: &Path) -> io::Result<Contents> {
        let recording = self.recording(folder);
        let bytes = recording.metadata()?.len();
        let (samples, busy, lost) = match self {
            Tool::Profiler => {
                let output = Command::new(profiler)
                    .arg("info")
                    .arg(&recording)
                    .args(["--format", "json"])
                    .output()?;
                let info: serde_json::Value = serde_json::from_slice(&output.stdout)?;
                let (samples, lost) = profiler_counts(&info)
                    .ok_or_else(|| io::Error::other(format!("no counts in {info}")))?;
                // Idle processors make no samples.
                (samples, samples, lost)
            }
            Tool::Perf => {
                let output = Command::new("perf")
                    .args(["report", "--stats", "-i"])
                    .arg(&recording)
                    .output()?;
                let text = String::from_utf8_lossy(&output.stdout).into_owned();
                let count = |kind: &str| perf_count(&text, kind);
                let output = Command::new("perf")
                    .args(["script", "-F", "pid", "-i"])
                    .arg(&recording)
                    .output()?;
                let pids = String::from_utf8_lossy(&output.stdout);
                let busy = pids
                    .lines()
                    .filter(|line| !matches!(line.trim(), "" | "0"))
                    .count();
                (
                    count("SAMPLE events:"),
                    busy as u64,
                    count("LOST_SAMPLES events:") + count("LOST events:"),
                )
            }
            Tool::Bpftrace => {
                let (samples, busy) = bpftrace_sums(&fs::read_to_string(&recording)?);
                (samples, busy, 0)
            }
        };
        Ok(Contents {
            samples,
            busy,
            lost,
            bytes,
        })
    }

    /// Timestamp of the first sample (CLOCK_MONOTONIC), in nanoseconds.
    pub(crate) fn first_sample_ns(self, profiler: &Path, folder: &Path) -> io::Result<u64> {
        let recording = self.recording(folder);
        let text = match self {
            Tool::Profiler => {
                let output = Command::new(profiler)
                    .arg("info")
                    .arg(&recording)
                    .args(["--format", "json"])
                    .output()?;
                let info: serde_json::Value = serde_json::from_slice(&output.stdout)?;
                return info["first_sample_ns"]
                    .as_u64()
                    .ok_or_else(|| io::Error::other(format!("no first_sample_ns in {info}")));
            }
            Tool::Perf => {
                let output = Command::new("perf")
                    .args(["script", "--ns", "-F", "time", "-i"])
                    .arg(&recording)
                    .output()?;
                String::from_utf8_lossy(&output.stdout).into_owned()
            }
            Tool::Bpftrace => fs::read_to_string(&recording)?,
        };
        text.lines()
            .find_map(seconds_to_ns)
            .ok_or_else(|| io::Error::other(format!("no sample in {}", recording.display())))
    }
}

fn profiler_counts(info: &serde_json::Value) -> Option<(u64, u64)> {
    Some((info["samples"].as_u64()?, info["lost"].as_u64()?))
}

/// The number behind `kind` in `perf report --stats`; 0 if it is not there.
fn perf_count(text: &str, kind: &str) -> u64 {
    text.lines()
        .find_map(|line| {
            line.trim()
                .strip_prefix(kind)?
                .split_whitespace()
                .next()?
                .parse()
                .ok()
        })
        .unwrap_or(0)
}

/// Sum of the counts that end the entries `@[..., name, pid]: N`: all, and those not of pid 0.
fn bpftrace_sums(text: &str) -> (u64, u64) {
    let mut sums = (0, 0);
    for line in text.lines() {
        let Some((key, count)) = line.rsplit_once("]: ") else {
            continue;
        };
        let count: u64 = count.trim().parse().unwrap_or(0);
        sums.0 += count;
        if !key.ends_with(", 0") {
            sums.1 += count;
        }
    }
    sums
}

/// `123.000000456:` or `123000000456` in nanoseconds.
fn seconds_to_ns(line: &str) -> Option<u64> {
    let line = line.trim().trim_end_matches(':');
    match line.split_once('.') {
        Some((seconds, nanoseconds)) if nanoseconds.len() == 9 => {
            Some(seconds.parse::<u64>().ok()? * 1_000_000_000 + nanoseconds.parse::<u64>().ok()?)
        }
        Some(_) => None,
        None => line.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_the_tools_say() {
        let stats = "Aggregated stats:\n  TOTAL events:  12\n  SAMPLE events:  7  (58.3%)\n";
        assert_eq!(perf_count(stats, "SAMPLE events:"), 7);
        assert_eq!(perf_count(stats, "LOST events:"), 0);
        let counts = "Attaching 1 probe...\n\n@[\n    0x1234\n, \n    main+4\n, x, 12]: 3\n@[, , swapper/1, 0]: 40\n";
        assert_eq!(bpftrace_sums(counts), (43, 3));
        assert_eq!(seconds_to_ns("  123.000000456: "), Some(123_000_000_456));
        assert_eq!(seconds_to_ns("123000000456"), Some(123_000_000_456));
        assert_eq!(seconds_to_ns("Attaching 1 probe..."), None);
    }
}
