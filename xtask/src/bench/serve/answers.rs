//! How long answers take: a read while a process is profiled, and a thousand symbols asked for at once,
//! of places that nobody has asked for before, and again.

use std::fs;
use std::io;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::super::Bench;
use super::super::table::{Table, mib};
use super::client::Client;
use super::{Process, quoted, serve};

/// Addresses that are asked for at once.
const ADDRESSES: usize = 1000;
const READS: usize = 200;

#[derive(Serialize)]
struct Answers {
    what: &'static str,
    times_ns: Vec<u64>,
    found: usize,
}

/// Measures and prints.
pub(super) fn run(bench: &Bench, rounds: usize) -> io::Result<()> {
    let mut all = [
        ("a read", Vec::new(), 0),
        ("1,000 Symbols.findByAddr, new", Vec::new(), 0),
        ("1,000 Symbols.findByAddr, known", Vec::new(), 0),
    ]
    .map(|(what, times_ns, found)| Answers {
        what,
        times_ns,
        found,
    });
    let mut peak_bytes = 0;
    for round in 0..rounds {
        eprintln!("answers: round {}", round + 1);
        let target = Process::workload(bench, "tcf_shares", &[])?;
        let (agent, address) = serve(bench)?;
        let mut client = Client::connect(&address)?;
        let id = quoted(&format!("P{}", target.pid()));
        let parameters = "{\"FrameCnt\":64,\"Frequency\":999}";
        client.call("Profiler", "configure", &[&id, parameters])?;
        std::thread::sleep(Duration::from_secs(1));
        for _ in 0..READS {
            let begin = Instant::now();
            client.call("Profiler", "read", &[&id])?;
            all[0].times_ns.push(begin.elapsed().as_nanos() as u64);
            std::thread::sleep(Duration::from_millis(5));
        }
        let arguments: Vec<Vec<String>> = addresses(target.pid())?
            .into_iter()
            .map(|address| vec![id.clone(), address.to_string()])
            .collect();
        for answers in &mut all[1..] {
            let begin = Instant::now();
            let results = client.all("Symbols", "findByAddr", &arguments)?;
            answers.times_ns.push(begin.elapsed().as_nanos() as u64);
            let found = results
                .iter()
                .filter(|fields| fields.first().is_some_and(Vec::is_empty));
            answers.found = found.count();
        }
        peak_bytes = peak_bytes.max(agent.peak_bytes()?);
    }
    bench.keep("serve-answers.json", &all)?;
    let mut table = Table::new(&["", "median ms", "99 % ms", "longest ms", "found"]);
    for answers in &mut all {
        answers.times_ns.sort_unstable();
        let times = &answers.times_ns;
        let at = |part: usize| {
            let index = (times.len() * part / 100).min(times.len().saturating_sub(1));
            format!("{:.2}", times.get(index).map_or(0.0, |&ns| ns as f64 / 1e6))
        };
        let found = match answers.found {
            0 => "-".to_owned(),
            found => found.to_string(),
        };
        table.row(vec![
            answers.what.to_owned(),
            at(50),
            at(99),
            at(100),
            found,
        ]);
    }
    table.print(&format!(
        "Answers to one client, {rounds} rounds; VmHWM {} MiB",
        mib(peak_bytes)
    ));
    Ok(())
}

/// Addresses all over the C library of a process.
fn addresses(pid: u32) -> io::Result<Vec<u64>> {
    for line in fs::read_to_string(format!("/proc/{pid}/maps"))?.lines() {
        let mut fields = line.split_whitespace();
        let (Some(range), Some(permissions)) = (fields.next(), fields.next()) else {
            continue;
        };
        if permissions.contains('x') && line.contains("libc") {
            let (start, end) = range.split_once('-').unwrap_or((range, range));
            let hex = |text| u64::from_str_radix(text, 16).map_err(io::Error::other);
            let (start, end) = (hex(start)?, hex(end)?);
            let step = (end - start) / ADDRESSES as u64;
            return Ok((0..ADDRESSES as u64)
                .map(|index| start + index * step)
                .collect());
        }
    }
    Err(io::Error::other("the workload maps no C library"))
}
