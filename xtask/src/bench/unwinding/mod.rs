//! `cargo xtask bench unwinding`: whole stacks of code without frame pointers, and what they cost, beside
//! other tools in the same run.
//!
//! Scenarios: `chain` (a known chain of calls, 10, 30 and 60 deep), `programs` (Python and a C compiler),
//! `tables` (building the tables of a machine's files), `processes` (a machine of 1,000 processes), `waits`
//! (100,000 switches a second).
//! Every tool attaches to what runs already, so that its CPU time is its own. Times are nanoseconds.

mod peers;
mod processes;
mod stacks;
mod tables;
mod waits;

use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde::Serialize;

use self::peers::{Peer, Run};
use super::Bench;
use super::slope::median;
use super::table::{Table, mib, ms, per};

/// Names of the scenarios.
pub(super) const SCENARIOS: [&str; 5] = ["chain", "programs", "tables", "processes", "waits"];

const DEPTHS: [u32; 3] = [10, 30, 60];
const HZ: u32 = 997;

/// Something that runs while tools attach to it.
struct Load {
    child: Child,
}

impl Load {
    fn start(command: &mut Command) -> io::Result<Load> {
        let child = command
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        // Past exec, and past the loading of what it is linked with.
        std::thread::sleep(Duration::from_millis(300));
        Ok(Load { child })
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        // With what it started.
        if let Some(group) = rustix::process::Pid::from_raw(self.child.id().cast_signed()) {
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        }
        let _ = self.child.wait();
    }
}

/// Runs the scenarios.
pub(super) fn run(
    bench: &Bench,
    rounds: usize,
    seconds: u64,
    wanted: impl Fn(&str) -> bool,
) -> io::Result<()> {
    let folder = bench.folder.join("unwinding");
    fs::create_dir_all(&folder)?;
    // Before statistics are on, which take time themselves.
    if wanted("waits") {
        waits::run(bench, &folder, rounds, seconds)?;
    }
    if !SCENARIOS[..4].iter().any(|name| wanted(name)) {
        return Ok(());
    }
    let mut peers = Vec::new();
    for peer in Peer::ALL {
        match peer.missing(bench) {
            None => peers.push(peer),
            Some(why) => println!("without {}: {why}\n", peer.name()),
        }
    }
    let _statistics = peers::statistics()?;
    let passing = passing(bench, &folder, &peers)?;
    if wanted("chain") {
        chain(bench, &folder, &peers, &passing, rounds, seconds)?;
    }
    if wanted("programs") {
        programs(bench, &folder, &peers, &passing, rounds, seconds)?;
    }
    if wanted("tables") {
        tables::run(bench)?;
    }
    if wanted("processes") {
        processes::run(bench, &folder, &peers)?;
    }
    Ok(())
}

/// Nanoseconds of a run of each tool's program that records nothing, of a process that sleeps: so much
/// is not a sample's.
fn passing(bench: &Bench, folder: &Path, peers: &[Peer]) -> io::Result<Vec<f64>> {
    let load = Load::start(Command::new("sleep").arg("600"))?;
    let mut passing = Vec::new();
    for peer in peers {
        let run = match peer.is_per_process() {
            true => Run::default(),
            // There may be nothing to write, then some tools write nothing.
            false => peer
                .record(bench, folder, Some(load.child.id()), HZ, 2, |_| false)
                .unwrap_or_default(),
        };
        passing.push(run.kernel_ns as f64 / run.kernel_runs.max(1) as f64);
    }
    Ok(passing)
}

#[derive(Serialize)]
struct Row {
    scenario: String,
    tool: &'static str,
    round: usize,
    run: Run,
}

fn chain(
    bench: &Bench,
    folder: &Path,
    peers: &[Peer],
    passing: &[f64],
    rounds: usize,
    seconds: u64,
) -> io::Result<()> {
    let program = build(bench, "unwind/deep.c", "unwinding/deep")?;
    let mut rows = Vec::new();
    for round in 0..rounds {
        for depth in DEPTHS {
            for peer in peers {
                eprintln!("chain: depth {depth}, {}, round {}", peer.name(), round + 1);
                let load =
                    Load::start(Command::new(&program).args([depth.to_string(), "600".into()]))?;
                let is_complete =
                    |stack: &stacks::Stack| stack.is_chain("known_level", depth as usize, "main");
                let run = peer.record(
                    bench,
                    folder,
                    Some(load.child.id()),
                    HZ,
                    seconds,
                    is_complete,
                )?;
                rows.push(Row {
                    scenario: format!("depth {depth}"),
                    tool: peer.name(),
                    round,
                    run,
                });
            }
        }
    }
    bench.keep("unwinding-chain.json", &rows)?;
    print(
        &rows,
        peers,
        passing,
        &format!("A chain of calls without frame pointers, {HZ} Hz, {seconds} s, {rounds} rounds"),
    );
    Ok(())
}

fn programs(
    bench: &Bench,
    folder: &Path,
    peers: &[Peer],
    passing: &[f64],
    rounds: usize,
    seconds: u64,
) -> io::Result<()> {
    let python = "import json, re\n\
        class Key:\n    def __init__(self, n): self.n = n\n    def __lt__(self, o): return self.n < o.n\n\
        while True:\n\
        \x20   sorted([Key(i * 7919 % 1009) for i in range(2000)])\n\
        \x20   t = json.dumps({str(i): [i] * 5 for i in range(1000)})\n\
        \x20   json.loads(t)\n\
        \x20   re.sub(r'(\\d+)', lambda m: m.group(1)[::-1], t)\n";
    let source = folder.join("large.c");
    fs::write(&source, large_source())?;
    let mut rows = Vec::new();
    for round in 0..rounds {
        for peer in peers {
            eprintln!("programs: python3, {}, round {}", peer.name(), round + 1);
            let load = Load::start(Command::new("/usr/bin/python3").args(["-c", python]))?;
            let run = peer.record(bench, folder, Some(load.child.id()), HZ, seconds, |stack| {
                stack.is_rooted()
            })?;
            rows.push(Row {
                scenario: "python3".into(),
                tool: peer.name(),
                round,
                run,
            });
            drop(load);
            if peer.is_per_process() {
                continue;
            }
            eprintln!("programs: cc, {}, round {}", peer.name(), round + 1);
            let script = format!(
                "while :; do timeout 20 cc -O2 -c -o {0}.o {0}; done",
                source.display()
            );
            let _load = Load::start(Command::new("sh").args(["-c", &script]))?;
            let run = peer.record(bench, folder, None, HZ, seconds, |stack| stack.is_rooted())?;
            rows.push(Row {
                scenario: "whole machine, cc".into(),
                tool: peer.name(),
                round,
                run,
            });
        }
    }
    bench.keep("unwinding-programs.json", &rows)?;
    print(
        &rows,
        peers,
        passing,
        &format!("Real programs, {HZ} Hz, {seconds} s, {rounds} rounds"),
    );
    Ok(())
}

/// A file that keeps a C compiler busy.
fn large_source() -> String {
    let mut source = String::from("#include <stdio.h>\n");
    for number in 0..3000 {
        source.push_str(&format!(
            "int f{number}(int *p, int n) {{ int s = {number}; for (int i = 0; i < n; i++) {{ \
             if (p[i] % {} == 0) s += p[i] * i; else s ^= p[n - i - 1]; \
             switch (s & 7) {{ case 1: s += n; break; case 3: printf(\"%d\", s); break; }} }} return s; }}\n",
            number % 13 + 2
        ));
    }
    source
}

fn print(rows: &[Row], peers: &[Peer], passing: &[f64], title: &str) {
    let mut table = Table::new(&[
        "load",
        "tool",
        "samples",
        "complete stacks",
        "bytes/sample",
        "CPU ms: recording",
        "CPU ms: into text",
        "CPU us/sample, both",
        "kernel ns/sample",
        "peak memory MiB",
        "BPF maps MiB",
    ]);
    let mut scenarios: Vec<&str> = Vec::new();
    for row in rows {
        if !scenarios.contains(&row.scenario.as_str()) {
            scenarios.push(&row.scenario);
        }
    }
    for scenario in scenarios {
        for (peer, passing) in peers.iter().zip(passing) {
            let of: Vec<&Run> = rows
                .iter()
                .filter(|row| row.scenario == scenario && row.tool == peer.name())
                .map(|row| &row.run)
                .collect();
            if of.is_empty() {
                continue;
            }
            let middle = |value: &dyn Fn(&Run) -> f64| {
                median(&mut of.iter().map(|run| value(run)).collect::<Vec<_>>())
            };
            let highest =
                |value: &dyn Fn(&Run) -> u64| of.iter().map(|run| value(run)).max().unwrap_or(0);
            let samples = middle(&|run| run.samples as f64);
            let record = middle(&|run| run.record.cpu_ns as f64);
            let text = middle(&|run| run.text.cpu_ns as f64);
            let complete = middle(&|run| 100.0 * run.complete as f64 / run.samples.max(1) as f64);
            let kernel = middle(&|run| {
                let others = run.kernel_runs.saturating_sub(run.samples) as f64;
                run.kernel_ns as f64 - passing * others
            });
            table.row(vec![
                scenario.to_owned(),
                peer.name().to_owned(),
                format!("{samples:.0}"),
                // Without names, only a known number of frames says what is complete.
                match peer.is_per_process() && !scenario.starts_with("depth") {
                    true => "-".to_owned(),
                    false => format!("{complete:.1} %"),
                },
                per(middle(&|run| run.bytes as f64), samples),
                ms(record),
                ms(text),
                per((record + text) / 1e3, samples),
                per(kernel, samples),
                mib(highest(&|run| {
                    run.record.peak_bytes.max(run.text.peak_bytes)
                })),
                mib(highest(&|run| run.record.map_bytes)),
            ]);
        }
    }
    table.print(title);
}

/// Builds a workload as distributions do: optimised, without frame pointers.
fn build(bench: &Bench, source: &str, name: &str) -> io::Result<PathBuf> {
    let output = bench.folder.join(name);
    let status = Command::new("cc")
        .args(["-O2", "-g", "-fomit-frame-pointer", "-o"])
        .arg(&output)
        .arg(bench.sources.join(source))
        .status()?;
    if status.success() {
        Ok(output)
    } else {
        Err(io::Error::other(format!("cc {source} failed")))
    }
}
