//! The tools that are compared, how each is asked for whole user stacks, and what it took.
//!
//! perf copies pieces of stacks (8 KiB of each, its default) and walks them in `perf script`; samply
//! copies them and walks while it records; profile-bee has tables in the kernel (`--dwarf`), as we do. samply's
//! recording has addresses only, the others' text has names. CPU time without the load's: tools attach
//! to what runs.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde::Serialize;

use super::super::Bench;
use super::super::measure::{self, Usage, Watched};
use super::super::sysctls::{BPF_STATISTICS, PERF_EVENT_PARANOID, Sysctls};
use super::stacks::{self, Stack};

/// A tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Peer {
    /// Ours.
    Profiler,
    /// `perf record --call-graph dwarf`.
    Perf,
    /// samply.
    Samply,
    /// profile-bee.
    ProfileBee,
}

/// What a recording took and holds.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct Run {
    /// Recording.
    pub(super) record: Usage,
    /// Turning the recording into text; nothing where that is one.
    pub(super) text: Usage,
    /// Samples with a user stack.
    pub(super) samples: u64,
    /// Of these, those whose stack is whole.
    pub(super) complete: u64,
    /// Size of the recording.
    pub(super) bytes: u64,
    /// Time of the tool's sampling programs in the kernel; 0: not counted.
    pub(super) kernel_ns: u64,
    /// How often they ran, also for what is not recorded.
    pub(super) kernel_runs: u64,
}

impl Peer {
    /// All of them.
    pub(super) const ALL: [Peer; 4] = [Peer::Profiler, Peer::Perf, Peer::Samply, Peer::ProfileBee];

    /// Name in tables.
    pub(super) fn name(self) -> &'static str {
        match self {
            Peer::Profiler => "profiler",
            Peer::Perf => "perf --call-graph dwarf",
            Peer::Samply => "samply",
            Peer::ProfileBee => "profile-bee --dwarf",
        }
    }

    /// Whether it records given processes only.
    pub(super) fn is_per_process(self) -> bool {
        self == Peer::Samply
    }

    /// The program: of `target/bench-tools/bin` if it was installed there.
    fn program(self, bench: &Bench) -> PathBuf {
        let name = match self {
            Peer::Profiler => return bench.profiler.clone(),
            Peer::Perf => "perf",
            Peer::Samply => "samply",
            Peer::ProfileBee => "probee",
        };
        let installed = bench.folder.join("../bench-tools/bin").join(name);
        if installed.is_file() {
            installed
        } else {
            name.into()
        }
    }

    /// Why it can't be run, if so.
    pub(super) fn missing(self, bench: &Bench) -> Option<String> {
        match Command::new(self.program(bench)).arg("--version").output() {
            Ok(_) => None,
            Err(error) => Some(format!(
                "{error}; 'cargo install --locked --root target/bench-tools samply@0.13.1 \
                 profile-bee@0.3.13' installs what cargo has"
            )),
        }
    }

    /// Records a process (none: the whole machine) for some seconds, and counts the complete stacks.
    pub(super) fn record(
        self,
        bench: &Bench,
        folder: &Path,
        pid: Option<u32>,
        hz: u32,
        seconds: u64,
        is_complete: impl Fn(&Stack) -> bool,
    ) -> io::Result<Run> {
        let recording = folder.join(match self {
            Peer::Profiler => "profiler.cap",
            Peer::Perf => "perf.data",
            Peer::Samply => "samply.json",
            Peer::ProfileBee => "profile-bee.folded",
        });
        match fs::remove_file(&recording) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut command = self.command(bench, &recording, pid, hz, seconds);
        let log = folder.join("record.log");
        let watched = Watched::start(&mut command, &log)?;
        // Shortly before the end: what programs took is only told while they live.
        std::thread::sleep(Duration::from_millis(seconds * 1000 - 300));
        let (kernel_ns, kernel_runs) = sampling(watched.pid());
        if self == Peer::Samply {
            std::thread::sleep(Duration::from_millis(300));
            watched.interrupt()?;
        }
        let (status, record) = watched.end()?;
        let metadata = recording.metadata().ok().filter(|_| status.success());
        let Some(metadata) = metadata else {
            let said = fs::read_to_string(&log).unwrap_or_default();
            return Err(io::Error::other(format!(
                "{} ({status}): {said}",
                self.name()
            )));
        };
        let (text, stacks) = self.text(bench, folder, &recording)?;
        let mut run = Run {
            record,
            text,
            bytes: metadata.len(),
            kernel_ns,
            kernel_runs,
            ..Run::default()
        };
        for stack in stacks.iter().filter(|stack| stack.depth > 0) {
            run.samples += stack.count;
            run.complete += if is_complete(stack) { stack.count } else { 0 };
        }
        Ok(run)
    }

    fn command(
        self,
        bench: &Bench,
        recording: &Path,
        pid: Option<u32>,
        hz: u32,
        seconds: u64,
    ) -> Command {
        let mut command = Command::new(self.program(bench));
        let (hz, duration) = (hz.to_string(), seconds.to_string());
        match self {
            Peer::Profiler => {
                command.args(["record", "--quiet", "-e", "cpu-clock", "--no-kernel"]);
                command
                    .args(["-F", &hz, "-d", &format!("{duration}s"), "-o"])
                    .arg(recording);
                match pid {
                    Some(pid) => command.args(["-p", &pid.to_string()]),
                    None => command.arg("-a"),
                };
            }
            Peer::Perf => {
                command.args(["record", "-q", "-e", "cpu-clock:u", "--call-graph", "dwarf"]);
                // Without reading build ids at its end, which some files make it fail on.
                command.args(["-B", "-F", &hz, "-o"]).arg(recording);
                match pid {
                    Some(pid) => command.args(["-p", &pid.to_string()]),
                    None => command.arg("-a"),
                };
                command.args(["--", "sleep", &duration]);
            }
            Peer::Samply => {
                // A duration counts for commands that it starts only: it is interrupted.
                command.args(["record", "--save-only", "--rate", &hz]);
                command.arg("-o").arg(recording);
                if let Some(pid) = pid {
                    command.args(["-p", &pid.to_string()]);
                }
            }
            Peer::ProfileBee => {
                command
                    .args(["--dwarf", "true", "--frequency", &hz, "-o"])
                    .arg(recording);
                command.args(["--time", &(seconds * 1000).to_string()]);
                if let Some(pid) = pid {
                    command.args(["--pid", &pid.to_string()]);
                }
            }
        }
        command
    }

    fn text(
        self,
        bench: &Bench,
        folder: &Path,
        recording: &Path,
    ) -> io::Result<(Usage, Vec<Stack>)> {
        match self {
            Peer::Profiler => {
                let out = folder.join("profiler.folded");
                let _ = fs::remove_file(&out);
                let mut command = Command::new(&bench.profiler);
                command.arg("export").arg(recording);
                command.args(["--format", "folded", "-o"]).arg(&out);
                let usage = measure::run(&mut command, &folder.join("export.log"))?;
                Ok((usage, stacks::folded(&fs::read_to_string(out)?)))
            }
            Peer::Perf => {
                let out = folder.join("perf.txt");
                let mut command = Command::new("perf");
                command.args([
                    "script",
                    "-F",
                    "comm,pid,time,event,ip,sym",
                    "--no-inline",
                    "-i",
                ]);
                let (status, usage) = Watched::start(command.arg(recording), &out)?.end()?;
                if !status.success() {
                    // What it has put out so far counts.
                    println!("perf script ended early ({status})\n");
                }
                let text = fs::read(out)?;
                Ok((usage, stacks::perf_script(&String::from_utf8_lossy(&text))))
            }
            Peer::Samply => {
                let profile = serde_json::from_slice(&fs::read(recording)?)?;
                Ok((Usage::default(), stacks::firefox(&profile)))
            }
            Peer::ProfileBee => {
                let text = fs::read(recording)?;
                let stacks = stacks::folded(&String::from_utf8_lossy(&text));
                Ok((Usage::default(), stacks))
            }
        }
    }
}

/// Time so far of a process's programs for perf events, in nanoseconds, and how often they ran.
fn sampling(pid: u32) -> (u64, u64) {
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/fdinfo")) else {
        return (0, 0);
    };
    let mut programs = std::collections::BTreeMap::new();
    for entry in entries.flatten() {
        let text = fs::read_to_string(entry.path()).unwrap_or_default();
        let field = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name))?;
            line.trim().parse::<u64>().ok()
        };
        // BPF_PROG_TYPE_PERF_EVENT
        if field("prog_type:") == Some(7)
            && let (Some(id), Some(ns), Some(runs)) =
                (field("prog_id:"), field("run_time_ns:"), field("run_cnt:"))
        {
            programs.insert(id, (ns, runs));
        }
    }
    let sum = |(ns, runs), (more_ns, more_runs): &(u64, u64)| (ns + more_ns, runs + more_runs);
    programs.values().fold((0, 0), sum)
}

/// The kernel counts what programs take; and samply may record. As before when dropped.
pub(super) fn statistics() -> io::Result<Sysctls> {
    Sysctls::set(&[(BPF_STATISTICS, "1"), (PERF_EVENT_PARANOID, "1")])
}
