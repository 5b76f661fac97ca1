//! How many messages a second a capture becomes, and what both sides spend on them.
//!
//! A program calls a function many times while the profiler records it. That capture is replayed to a
//! receiver that counts, and to `profiler hq`, which checks each message and writes a capture. The first
//! is timed from its first data connection to the end of the last, the second from the start of the
//! sender to the end of the receiver, with its capture closed. The median of all rounds, by time, counts.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::super::Bench;
use super::super::measure::{Usage, Watched, run as run_tool};
use super::super::table::{Table, mib, per};
use super::super::tracing::{caller, end, start};
use super::receiver::{Received, Receiver, Wish};
use super::{DEFAULT, record, said, stream, tracing};

const FUNCTION: &str = "kind_nop5";
/// Calls for each second that is asked for; two messages each.
const CALLS_PER_S: u64 = 1_000_000;
/// How long `profiler hq` may take to listen.
const PATIENCE: Duration = Duration::from_secs(10);

const WISHES: [Wish; 4] = [
    DEFAULT,
    Wish {
        senders: 4,
        ..DEFAULT
    },
    Wish {
        budget_bytes: 1 << 20,
        senders: 1,
    },
    Wish {
        budget_bytes: 1 << 20,
        senders: 4,
    },
];

#[derive(Clone, Serialize)]
struct Run {
    receiver: &'static str,
    wish: Wish,
    messages: u64,
    bytes: u64,
    took_ns: u64,
    sender: Usage,
    receiver_cpu_ns: u64,
    /// Of `profiler hq`.
    receiver_usage: Option<Usage>,
}

/// Measures and prints.
pub(super) fn run(bench: &Bench, rounds: usize, seconds: u64) -> io::Result<()> {
    let calls = seconds * CALLS_PER_S;
    eprintln!("recording {calls} calls");
    let capture = capture(bench, calls)?;
    let mut runs = Vec::new();
    for wish in WISHES {
        for one in [counted, received] {
            let mut of = Vec::new();
            for round in 0..rounds {
                eprintln!("round {} of {rounds}: {wish:?}", round + 1);
                let run: Run = one(bench, &capture, wish)?;
                if run.messages < 2 * calls {
                    return Err(io::Error::other(format!(
                        "{} messages of {calls} calls",
                        run.messages
                    )));
                }
                of.push(run);
            }
            of.sort_by_key(|run| run.took_ns);
            runs.push(of.swap_remove(of.len() / 2));
        }
    }
    bench.keep("bytefrog-replay.json", &runs)?;
    print(&runs, calls, rounds);
    Ok(())
}

/// A capture of so many calls.
fn capture(bench: &Bench, calls: u64) -> io::Result<PathBuf> {
    let program = caller(bench, "trace_caller", &["-fcf-protection=none"])?;
    let arguments = [FUNCTION, "calls", &calls.to_string(), "--probed"];
    let child = start(&program, &arguments, true)?;
    let capture = bench.folder.join("bytefrog-replay.cap");
    let mut command = record(bench, &capture);
    tracing(&mut command, FUNCTION, child.id());
    let watched = Watched::start(&mut command, &bench.folder.join("log"))?;
    end(child)?;
    // It ends with its target, or is told to.
    let _ = watched.interrupt();
    watched.end()?;
    Ok(capture)
}

fn replay(bench: &Bench, capture: &Path, address: &str) -> Command {
    let mut command = stream(bench, address);
    command.arg("--replay").arg(capture);
    command
}

fn counted(bench: &Bench, capture: &Path, wish: Wish) -> io::Result<Run> {
    let receiver = Receiver::start(wish)?;
    let mut command = replay(bench, capture, &receiver.address());
    let sender = run_tool(&mut command, &bench.folder.join("log"))?;
    let Received {
        messages,
        bytes,
        took_ns,
        cpu_ns,
        ..
    } = receiver.end()?;
    Ok(Run {
        receiver: "counts",
        wish,
        messages,
        bytes,
        took_ns,
        sender,
        receiver_cpu_ns: cpu_ns,
        receiver_usage: None,
    })
}

fn received(bench: &Bench, capture: &Path, wish: Wish) -> io::Result<Run> {
    let output = bench.folder.join("bytefrog-received.cap");
    let mut command = Command::new(&bench.profiler);
    command.args(["hq", "--listen", "127.0.0.1:0", "--runs", "1", "--force"]);
    command.args(["--budget", &wish.budget_bytes.to_string()]);
    command.args(["--senders", &wish.senders.to_string(), "-o"]);
    command.arg(&output);
    let hq_log = bench.folder.join("hq-log");
    let hq = Watched::start(&mut command, &hq_log)?;
    let sent = listens_at(&hq_log).and_then(|address| {
        let log = bench.folder.join("log");
        let began = Instant::now();
        let sender = run_tool(&mut replay(bench, capture, &address), &log)?;
        Ok((began, sender, fs::read_to_string(log)?))
    });
    if sent.is_err() {
        let _ = hq.interrupt();
    }
    let (status, usage) = hq.end()?;
    let (began, sender, log) = sent?;
    let took_ns = began.elapsed().as_nanos() as u64;
    if !status.success() {
        let why = fs::read_to_string(&hq_log)?;
        return Err(io::Error::other(format!("the receiver failed: {why}")));
    }
    Ok(Run {
        receiver: "profiler hq",
        wish,
        messages: said(&log, " message"),
        bytes: 0,
        took_ns,
        sender,
        receiver_cpu_ns: usage.cpu_ns,
        receiver_usage: Some(usage),
    })
}

/// Where `profiler hq` says that it listens.
pub(super) fn listens_at(log: &Path) -> io::Result<String> {
    let until = Instant::now() + PATIENCE;
    while Instant::now() < until {
        let text = fs::read_to_string(log)?;
        let address = text.split_once("listening at ").map(|(_, rest)| rest);
        if let Some((address, _)) = address.and_then(|rest| rest.split_once('\n')) {
            return Ok(address.trim().to_owned());
        }
        thread::sleep(Duration::from_millis(10));
    }
    Err(io::Error::other("the receiver does not listen"))
}

fn print(runs: &[Run], calls: u64, rounds: usize) {
    let mut table = Table::new(&[
        "receiver",
        "budget bytes",
        "data connections",
        "messages/s",
        "MB/s",
        "sender CPU s",
        "sender CPU ns/message",
        "sender VmHWM MiB",
        "receiver CPU s",
        "receiver VmHWM MiB",
    ]);
    for run in runs {
        let seconds = run.took_ns as f64 / 1e9;
        table.row(vec![
            run.receiver.to_owned(),
            run.wish.budget_bytes.to_string(),
            run.wish.senders.to_string(),
            format!("{:.0}", run.messages as f64 / seconds),
            match run.bytes {
                0 => "-".to_owned(),
                bytes => format!("{:.1}", bytes as f64 / seconds / 1e6),
            },
            format!("{:.2}", run.sender.cpu_ns as f64 / 1e9),
            per(run.sender.cpu_ns as f64, run.messages as f64),
            mib(run.sender.peak_bytes),
            format!("{:.2}", run.receiver_cpu_ns as f64 / 1e9),
            run.receiver_usage
                .map_or("-".to_owned(), |usage| mib(usage.peak_bytes)),
        ]);
    }
    table.print(&format!(
        "A capture of {calls} calls, replayed (median of {rounds})"
    ));
}
