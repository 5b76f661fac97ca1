//! How many answers a second 1, 10 and 100 clients get that read each thread of a busy process all the time, and what
//! the agent needs for them.
//!
//! Each client configures all threads, 64 frames deep, and reads them all at once, again and again without a pause. CPU
//! time is the agent's own: of each answer, and of each sample of the process.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::super::Bench;
use super::super::table::{Table, mib, per};
use super::client::Client;
use super::{Process, quoted, serve};

const HZ: u64 = 999;
const CLIENTS: [usize; 3] = [1, 10, 100];
/// What is not measured: attaching, the first reads.
const SETTLING: Duration = Duration::from_secs(1);

#[derive(Serialize)]
struct Run {
    clients: usize,
    threads: usize,
    replies: u64,
    /// Of one client.
    samples: u64,
    cpu_ns: u64,
    took_ns: u64,
    peak_bytes: u64,
}

/// Measures and prints.
pub(super) fn run(bench: &Bench, seconds: u64) -> io::Result<()> {
    let target = Process::workload(bench, "tcf_shares", &[])?;
    let mut runs = Vec::new();
    for clients in CLIENTS {
        eprintln!("threads: {clients} clients for {seconds} s");
        runs.push(served(bench, &target, clients, seconds)?);
    }
    bench.keep("serve-threads.json", &runs)?;
    let mut table = Table::new(&[
        "clients",
        "threads",
        "replies/s",
        "own CPU us/reply",
        "samples (each client)",
        "own CPU us/sample",
        "VmHWM MiB",
    ]);
    for run in &runs {
        let cpu_us = run.cpu_ns as f64 / 1e3;
        table.row(vec![
            run.clients.to_string(),
            run.threads.to_string(),
            per(run.replies as f64 * 1e9, run.took_ns as f64),
            per(cpu_us, run.replies as f64),
            run.samples.to_string(),
            per(cpu_us, run.samples as f64),
            mib(run.peak_bytes),
        ]);
    }
    table.print(&format!(
        "All threads of a busy process read without a pause, {HZ} Hz on each processor, {seconds} s"
    ));
    Ok(())
}

fn served(bench: &Bench, target: &Process, clients: usize, seconds: u64) -> io::Result<Run> {
    let (agent, address) = serve(bench)?;
    let process = quoted(&format!("P{}", target.pid()));
    let mut first = Client::connect(&address)?;
    let children = first.call("RunControl", "getChildren", &[&process])?;
    let ids = children.first().and_then(|ids| ids.as_array()).cloned();
    let ids: Vec<String> = ids
        .unwrap_or_default()
        .iter()
        .map(ToString::to_string)
        .collect();
    if ids.is_empty() {
        return Err(io::Error::other("the workload has no threads there"));
    }
    let (measured, over) = (AtomicBool::new(false), AtomicBool::new(false));
    thread::scope(|scope| {
        let readers: Vec<_> = (0..clients)
            .map(|_| scope.spawn(|| read(&address, &ids, &measured, &over)))
            .collect();
        thread::sleep(SETTLING);
        measured.store(true, Ordering::Relaxed);
        let (begun, from) = (Instant::now(), agent.cpu_ns());
        thread::sleep(Duration::from_secs(seconds));
        let (took, to) = (begun.elapsed(), agent.cpu_ns());
        over.store(true, Ordering::Relaxed);
        let (mut replies, mut samples) = (0, 0);
        for reader in readers {
            let failed = || io::Error::other("a client panicked");
            let got = reader.join().map_err(|_| failed())??;
            replies += got.0;
            samples += got.1;
        }
        Ok(Run {
            clients,
            threads: ids.len(),
            replies,
            samples: samples / clients as u64,
            cpu_ns: to? - from?,
            took_ns: took.as_nanos() as u64,
            peak_bytes: agent.peak_bytes()?,
        })
    })
}

/// One client's life: replies and samples that it got while that counts.
fn read(
    address: &str,
    ids: &[String],
    measured: &AtomicBool,
    over: &AtomicBool,
) -> io::Result<(u64, u64)> {
    let mut client = Client::connect(address)?;
    let parameters = format!("{{\"FrameCnt\":64,\"Frequency\":{HZ}}}");
    let configured = ids.iter().map(|id| vec![id.clone(), parameters.clone()]);
    client.all("Profiler", "configure", &configured.collect::<Vec<_>>())?;
    let reads: Vec<Vec<String>> = ids.iter().map(|id| vec![id.clone()]).collect();
    let (mut replies, mut samples) = (0, 0);
    while !over.load(Ordering::Relaxed) {
        let all = client.all("Profiler", "read", &reads)?;
        if !measured.load(Ordering::Relaxed) || over.load(Ordering::Relaxed) {
            continue;
        }
        for fields in all {
            replies += 1;
            let buffers = fields.get(1).map(|field| serde_json::from_slice(field));
            let buffers: serde_json::Value = buffers.transpose()?.unwrap_or_default();
            samples += buffers[0]["Samples"].as_u64().unwrap_or(0);
        }
    }
    Ok((replies, samples))
}
