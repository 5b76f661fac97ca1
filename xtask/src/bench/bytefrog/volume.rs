//! How much one agent sends of what it traces, and what it does when the receiver stands still for a while.
//!
//! Threads of a program call a function as fast as they can; `stream bytefrog` traces entries and exits of
//! it at any price and sends them to `profiler hq`, which in one of two runs is stopped for five seconds. The
//! program counts its calls, both sides say what they lost or left out: what then is missing nobody counted.

use std::fs;
use std::io;
use std::process::Command;
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;

use super::super::Bench;
use super::super::measure::{Usage, Watched};
use super::super::table::{Table, mib, per};
use super::replay::listens_at;
use super::{said, stream};

const THREADS: u64 = 8;
/// Calls of all threads for each second that is asked for.
const CALLS_PER_S: u64 = 10_000_000;
/// When the receiver is stopped, from when the agent has come, and for how long.
const BEFORE: Duration = Duration::from_secs(2);
const STOPPED: Duration = Duration::from_secs(5);
/// How long the agent may take to come.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Serialize)]
struct Run {
    stopped: bool,
    calls: u64,
    took_ns: u64,
    /// What the agent says that it sent: all messages, entries, exits.
    messages: u64,
    entered: u64,
    left: u64,
    /// Messages that the receiver says that it got.
    received: u64,
    /// Entries and exits that the kernel had no room for.
    lost: u64,
    /// Events that the agent left out because the receiver was too slow.
    dropped: u64,
    breaks: u64,
    /// Exits that were told without an event, and exits whose entries had been lost or forgotten.
    inferred: u64,
    unmatched: u64,
    /// The program's CPU time is not the sender's.
    sender: Usage,
    receiver: Usage,
}

impl Run {
    /// Entries and exits that were not sent and that nobody counted: of each call two should be.
    fn uncounted(&self) -> i64 {
        let counted = self.entered + self.left + self.lost + self.dropped + self.unmatched;
        (2 * self.calls + self.inferred).cast_signed() - counted.cast_signed()
    }
}

/// Measures and prints.
pub(super) fn run(bench: &Bench, seconds: u64) -> io::Result<()> {
    let mut runs = Vec::new();
    for stopped in [false, true] {
        eprintln!(
            "{} calls, the receiver stopped: {stopped}",
            seconds * CALLS_PER_S
        );
        runs.push(one(bench, seconds * CALLS_PER_S, stopped)?);
    }
    bench.keep("bytefrog-volume.json", &runs)?;
    print(&runs);
    Ok(())
}

fn one(bench: &Bench, calls: u64, stopped: bool) -> io::Result<Run> {
    let program = bench.workload(
        "trace_crowd.c",
        "trace_crowd",
        &["-fcf-protection=none", "-pthread"],
    )?;
    let mut command = Command::new(&bench.profiler);
    command.args([
        "hq",
        "--listen",
        "127.0.0.1:0",
        "--runs",
        "1",
        "--force",
        "-o",
    ]);
    command.arg(bench.folder.join("bytefrog-volume.cap"));
    let hq_log = bench.folder.join("hq-log");
    let hq = Watched::start(&mut command, &hq_log)?;
    let log = bench.folder.join("log");
    let sent = listens_at(&hq_log).and_then(|address| {
        let mut command = stream(bench, &address);
        command.args([
            "--yes",
            "--budget",
            "off",
            "--trace",
            "trace_crowd:kind_nop5",
            "--",
        ]);
        command.arg(&program).arg(THREADS.to_string());
        command.arg((calls / THREADS).to_string());
        let sender = Watched::start(&mut command, &log)?;
        if stopped {
            stop_for_a_while(hq.pid(), &hq_log)?;
        }
        sender.end()
    });
    if sent.is_err() {
        let _ = hq.interrupt();
    }
    let (hq_status, receiver) = hq.end()?;
    let (status, sender) = sent?;
    let (log, hq_log) = (fs::read_to_string(log)?, fs::read_to_string(hq_log)?);
    if !status.success() || !hq_status.success() {
        return Err(io::Error::other(format!("it failed: {log}{hq_log}")));
    }
    let program = log.lines().find(|line| line.starts_with("{\"calls\""));
    let program: serde_json::Value = serde_json::from_str(program.unwrap_or("null"))?;
    if program["good"] != true {
        return Err(io::Error::other(format!("the program failed: {log}")));
    }
    let number = |name: &str| program[name].as_u64().unwrap_or(0);
    let mut sender = sender;
    sender.cpu_ns = sender.cpu_ns.saturating_sub(number("cpu_ns"));
    Ok(Run {
        stopped,
        calls: number("calls"),
        took_ns: number("took_ns"),
        messages: said(&log, " message"),
        entered: said(&log, " methods entered"),
        left: said(&log, " left"),
        received: said(&hq_log, " message"),
        // Either may be said of the same ones.
        lost: said(&log, " records lost")
            .max(said(&log, " events lost before"))
            .max(said(&log, " event lost before")),
        dropped: said(&log, " events left out in") + said(&log, " event left out in"),
        breaks: said(&log, " data break"),
        inferred: said(&log, " of them inferred"),
        unmatched: said(&log, " exits of calls that were not open"),
        sender,
        receiver,
    })
}

/// Stops the receiver some time after its agent has come.
fn stop_for_a_while(pid: u32, hq_log: &std::path::Path) -> io::Result<()> {
    let step = Duration::from_millis(10);
    let mut waited = Duration::ZERO;
    while !fs::read_to_string(hq_log)?.contains("the agent at") {
        if waited > PATIENCE {
            return Err(io::Error::other("no agent came"));
        }
        thread::sleep(step);
        waited += step;
    }
    let pid = Pid::from_raw(pid.cast_signed());
    let pid = pid.ok_or_else(|| io::Error::other("process id 0"))?;
    thread::sleep(BEFORE);
    kill_process(pid, Signal::STOP)?;
    thread::sleep(STOPPED);
    Ok(kill_process(pid, Signal::CONT)?)
}

fn print(runs: &[Run]) {
    let mut table = Table::new(&[
        "receiver",
        "calls made",
        "calls/s",
        "entries sent",
        "exits sent",
        "inferred",
        "lost in the kernel",
        "left out",
        "data breaks",
        "not open",
        "uncounted",
        "messages sent",
        "messages received",
        "sender CPU s",
        "sender CPU ns/call",
        "sender VmHWM MiB",
        "receiver CPU s",
        "receiver VmHWM MiB",
    ]);
    for run in runs {
        table.row(vec![
            match run.stopped {
                true => format!("stopped for {} s", STOPPED.as_secs()),
                false => "reads".to_owned(),
            },
            run.calls.to_string(),
            format!("{:.0}", run.calls as f64 * 1e9 / run.took_ns.max(1) as f64),
            run.entered.to_string(),
            run.left.to_string(),
            run.inferred.to_string(),
            run.lost.to_string(),
            run.dropped.to_string(),
            run.breaks.to_string(),
            run.unmatched.to_string(),
            run.uncounted().to_string(),
            run.messages.to_string(),
            run.received.to_string(),
            format!("{:.2}", run.sender.cpu_ns as f64 / 1e9),
            per(run.sender.cpu_ns as f64, run.calls as f64),
            mib(run.sender.peak_bytes),
            format!("{:.2}", run.receiver.cpu_ns as f64 / 1e9),
            mib(run.receiver.peak_bytes),
        ]);
    }
    table.print(&format!(
        "Calls of {THREADS} threads, as many as there can be, to `profiler hq`"
    ));
}
