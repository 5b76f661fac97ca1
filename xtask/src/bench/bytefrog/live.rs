//! A program that calls a traced function at a fixed rate: what reaches a receiver, and at what price.
//!
//! Beside it, the same under `profiler record`, so that what sending costs shows. Calls are counted by the
//! program, messages by the receiver, losses by the profiler.

use std::fs;
use std::io;

use serde::Serialize;

use super::super::Bench;
use super::super::measure::{Usage, Watched};
use super::super::table::{Table, mib, per};
use super::super::tracing::{caller, end, start};
use super::receiver::{Received, Receiver};
use super::{DEFAULT, record, said, stream, tracing};

const FUNCTION: &str = "kind_nop5";
/// Calls a second; two messages each.
const RATES: [u64; 3] = [50_000, 200_000, 500_000];

#[derive(Serialize)]
struct Run {
    tool: &'static str,
    rate: u64,
    calls: u64,
    took_ns: u64,
    received: Option<Received>,
    /// Before they could be sent or written.
    lost: u64,
    /// Because the receiver was too slow.
    dropped: u64,
    usage: Usage,
}

/// Measures and prints.
pub(super) fn run(bench: &Bench, seconds: u64) -> io::Result<()> {
    let mut runs = Vec::new();
    for rate in RATES {
        for streams in [true, false] {
            let tool = if streams { "stream bytefrog" } else { "record" };
            eprintln!("{tool}: {rate} calls/s for {seconds} s");
            runs.push(one(bench, rate, seconds, streams)?);
        }
    }
    bench.keep("bytefrog-live.json", &runs)?;
    print(&runs, seconds);
    Ok(())
}

fn one(bench: &Bench, rate: u64, seconds: u64, streams: bool) -> io::Result<Run> {
    let program = caller(bench, "trace_caller", &["-fcf-protection=none"])?;
    let (per_s, for_s) = (rate.to_string(), seconds.to_string());
    let arguments = [FUNCTION, "paced", &per_s, &for_s, "--probed"];
    let child = start(&program, &arguments, true)?;
    let receiver = match streams {
        true => Some(Receiver::start(DEFAULT)?),
        false => None,
    };
    let mut command = match &receiver {
        Some(receiver) => stream(bench, &receiver.address()),
        None => record(bench, &bench.folder.join("bytefrog-live.cap")),
    };
    tracing(&mut command, FUNCTION, child.id());
    let log = bench.folder.join("log");
    let watched = Watched::start(&mut command, &log)?;
    let program = end(child);
    // It ends with its target.
    let (status, usage) = watched.end()?;
    let log = fs::read_to_string(log)?;
    let program = match (program, status.success()) {
        (Ok(program), true) => program,
        (Err(error), _) => return Err(io::Error::other(format!("{error}: {log}"))),
        (Ok(_), false) => return Err(io::Error::other(format!("{status}: {log}"))),
    };
    let received = receiver.map(Receiver::end).transpose()?;
    let dropped = said(&log, " events left out in") + said(&log, " event left out in");
    Ok(Run {
        tool: match streams {
            true => "stream bytefrog",
            false => "record",
        },
        rate,
        calls: program["calls"].as_u64().unwrap_or(0),
        took_ns: program["took_ns"].as_u64().unwrap_or(0),
        received,
        // Either may be said of the same ones.
        lost: said(&log, " events lost before")
            .max(said(&log, " event lost before"))
            .max(said(&log, " records lost")),
        dropped,
        usage,
    })
}

fn print(runs: &[Run], seconds: u64) {
    let mut table = Table::new(&[
        "calls/s wanted",
        "tool",
        "calls made",
        "calls/s",
        "messages",
        "messages/s",
        "lost",
        "dropped",
        "CPU s",
        "CPU ns/call",
        "VmHWM MiB",
        "RssAnon MiB",
        "BPF maps MiB",
    ]);
    for run in runs {
        let per_s = |count: u64| format!("{:.0}", count as f64 * 1e9 / run.took_ns.max(1) as f64);
        let messages = run.received.map(|received| received.messages);
        table.row(vec![
            run.rate.to_string(),
            run.tool.to_owned(),
            run.calls.to_string(),
            per_s(run.calls),
            messages.map_or("-".to_owned(), |messages| messages.to_string()),
            messages.map_or("-".to_owned(), per_s),
            run.lost.to_string(),
            run.dropped.to_string(),
            format!("{:.2}", run.usage.cpu_ns as f64 / 1e9),
            per(run.usage.cpu_ns as f64, run.calls as f64),
            mib(run.usage.peak_bytes),
            mib(run.usage.anon_bytes),
            mib(run.usage.map_bytes),
        ]);
    }
    table.print(&format!(
        "Calls as they happen, {seconds} s, budget {} bytes, {} data connection",
        DEFAULT.budget_bytes, DEFAULT.senders
    ));
}
