//! What a stream to an HQ of Bytefrog costs, and how fast it is.
//!
//! Scenarios: `replay`, a capture with many calls as fast as the receiver takes it, to one that only
//! counts and to `profiler hq`; `live`, a program that calls a traced function at a fixed rate, beside
//! `profiler record` of the same; `samples`, what calls inferred from samples add to a program; `volume`,
//! what comes of threads that call as fast as they can, with a receiver that reads and one that stands
//! still for a while. Times are nanoseconds; everything goes over loopback, on the same processors.

mod live;
mod receiver;
mod replay;
mod samples;
mod volume;

use std::io;
use std::path::Path;
use std::process::Command;

use super::Bench;
use receiver::Wish;

/// Names of the scenarios.
pub(crate) const SCENARIOS: [&str; 4] = ["replay", "live", "samples", "volume"];

/// What Bytefrog's own HQ gives an agent.
const DEFAULT: Wish = Wish {
    budget_bytes: 25_600,
    senders: 1,
};

/// Runs the scenarios that `wanted` says.
pub(crate) fn run(
    bench: &Bench,
    rounds: usize,
    seconds: u64,
    wanted: impl Fn(&str) -> bool,
) -> io::Result<()> {
    if wanted("replay") {
        replay::run(bench, rounds, seconds)?;
    }
    if wanted("live") {
        live::run(bench, seconds)?;
    }
    if wanted("samples") {
        samples::run(bench, rounds, seconds)?;
    }
    if wanted("volume") {
        volume::run(bench, seconds)?;
    }
    Ok(())
}

/// `profiler stream bytefrog` to this address.
fn stream(bench: &Bench, address: &str) -> Command {
    let mut command = Command::new(&bench.profiler);
    command.args(["stream", "bytefrog", address]);
    command
}

/// `profiler record` of calls into a capture.
fn record(bench: &Bench, capture: &Path) -> Command {
    let mut command = Command::new(&bench.profiler);
    command.args(["record", "--force", "--no-samples", "-o"]);
    command.arg(capture);
    command
}

/// What traces `function` in a process at any price.
fn tracing<'c>(command: &'c mut Command, function: &str, pid: u32) -> &'c mut Command {
    command.args(["--yes", "--budget", "off", "--trace", function, "-p"]);
    command.arg(pid.to_string())
}

/// The number before `what` in what the profiler said at its end; 0 if it did not say it.
fn said(log: &str, what: &str) -> u64 {
    log.lines()
        .find_map(|line| {
            let before = line.split_once(what)?.0.trim_end();
            let number = before.rsplit(' ').next()?.replace(',', "");
            number.parse().ok()
        })
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_the_profiler_says() {
        let log = "sent 2,000,003 messages (30.5 MiB) to 127.0.0.1:1 in 1.0 s: 1,000,000 methods \
                   entered, 1,000,000 left\n12 events left out in 3 data breaks, because HQ was \
                   too slow: see --buffer\n1 event lost before they could be sent\n";
        assert_eq!(said(log, " message"), 2_000_003);
        assert_eq!(said(log, " events left out"), 12);
        assert_eq!(said(log, " event lost before"), 1);
        assert_eq!(said(log, " events lost before"), 0);
    }
}
