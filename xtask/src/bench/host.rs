//! Second scenario: a machine of 1,000 processes over 200 distinct executables, with a fork storm.
//!
//! Every process wakes now and then and burns a little; beside them children are forked 300 times a
//! second. Each tool records the same time at 999 Hz, one after the other. Output: own CPU time,
//! memory, bytes, losses, and the time that report and export take.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use serde::Serialize;

use super::Bench;
use super::measure::{Usage, Watched};
use super::table::{Table, mib, ms, per};
use super::tool::{Contents, Tool};

const EXECUTABLES: usize = 200;
const PROCESSES: usize = 1000;
const HZ: u32 = 999;

#[derive(Serialize)]
struct Run {
    tool: &'static str,
    record: Usage,
    report: Usage,
    export: Usage,
    contents: Contents,
}

/// The processes; they end with their standard input.
pub(super) struct Host {
    children: Vec<Child>,
}

impl Host {
    /// Starts so many, of each executable in turn.
    pub(super) fn start(executables: &[PathBuf], processes: usize) -> io::Result<Host> {
        let mut host = Host {
            children: Vec::new(),
        };
        for index in 0..processes {
            let mut command = Command::new(&executables[index % executables.len()]);
            // About 60 us of each 100 ms: 1,000 of them fill little more than half a processor.
            command
                .args(["60", "100"])
                .stdin(Stdio::piped())
                .stdout(Stdio::null());
            host.children.push(command.spawn()?);
        }
        Ok(host)
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        for child in &mut self.children {
            drop(child.stdin.take());
        }
        for child in &mut self.children {
            let _ = child.wait();
        }
    }
}

/// Measures and prints.
pub(crate) fn run(bench: &Bench) -> io::Result<()> {
    let (count, processes, seconds) = if bench.quick {
        (10, 50, 3)
    } else {
        (EXECUTABLES, PROCESSES, 20)
    };
    fs::create_dir_all(bench.folder.join("host"))?;
    eprintln!("building {count} executables");
    let mut executables = Vec::new();
    for variant in 0..count {
        let define = format!("-DVARIANT={variant}");
        executables.push(bench.workload("host.c", &format!("host/host_{variant}"), &[&define])?);
    }
    let storm = bench.workload("fork_storm.c", "fork_storm", &[])?;
    let host = Host::start(&executables, processes)?;
    let mut runs = Vec::new();
    for &tool in &bench.tools {
        eprintln!("{} on a host of {processes} processes", tool.name());
        runs.push(one(bench, tool, &storm, seconds)?);
    }
    drop(host);
    bench.keep("host.json", &runs)?;
    print(&runs, processes, count, seconds);
    Ok(())
}

fn one(bench: &Bench, tool: Tool, storm: &PathBuf, seconds: u64) -> io::Result<Run> {
    let mut storm = Command::new(storm)
        .args(["300", &(seconds + 2).to_string(), "500"])
        .stdout(Stdio::null())
        .spawn()?;
    let mut command = tool.record(&bench.profiler, &bench.folder, HZ)?;
    let watched = Watched::start(&mut command, &bench.folder.join("log"))?;
    thread::sleep(Duration::from_secs(seconds));
    watched.interrupt()?;
    let (_, record) = watched.end()?;
    storm.wait()?;
    let contents = tool.contents(&bench.profiler, &bench.folder)?;
    let report = tool.report(&bench.profiler, &bench.folder)?;
    let export = tool.export(&bench.profiler, &bench.folder)?;
    Ok(Run {
        tool: tool.name(),
        record,
        report,
        export,
        contents,
    })
}

fn print(runs: &[Run], processes: usize, executables: usize, seconds: u64) {
    let mut table = Table::new(&[
        "tool",
        "samples",
        "not idle",
        "lost",
        "ticks skipped",
        "record CPU ms",
        "report CPU ms",
        "report ms",
        "export ms",
        "report us/sample",
        "bytes/sample",
        "record RssAnon MiB",
        "BPF maps MiB",
    ]);
    for run in runs {
        let samples = run.contents.samples as f64;
        table.row(vec![
            run.tool.to_owned(),
            run.contents.samples.to_string(),
            run.contents.busy.to_string(),
            run.contents.lost.to_string(),
            run.contents.skipped.to_string(),
            ms(run.record.cpu_ns as f64),
            ms(run.report.cpu_ns as f64),
            ms(run.report.wall_ns as f64),
            ms(run.export.wall_ns as f64),
            per(run.report.wall_ns as f64 / 1e3, samples),
            per(run.contents.bytes as f64, samples),
            mib(run.record.anon_bytes),
            mib(run.record.map_bytes),
        ]);
    }
    table.print(&format!(
        "A host of {processes} processes of {executables} executables and a fork storm, {seconds} s at {HZ} Hz"
    ));
}
