//! CPU time of the agent for each sample that a client gets, by the number of clients.
//!
//! Each client profiles the same process, 64 frames deep, and reads each second. Beside it
//! `profiler record` of that process for as long. Both are measured from a second behind their start on.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use serde::Serialize;

use super::super::Bench;
use super::super::table::{Table, mib, per};
use super::client::Client;
use super::{Process, quoted, serve};

const HZ: u64 = 999;
const CLIENTS: [usize; 3] = [1, 10, 50];
/// What is not measured: attaching, names, the first read.
const SETTLING: Duration = Duration::from_secs(2);

#[derive(Default, Serialize)]
struct Run {
    tool: String,
    /// Samples of one client, or of the recording.
    samples: u64,
    reads: u64,
    read_bytes: u64,
    /// Samples that found no room.
    dropped: u64,
    cpu_ns: u64,
    peak_bytes: u64,
}

/// What a client got while it was measured.
#[derive(Default)]
struct Got {
    samples: u64,
    dropped: u64,
    reads: u64,
    bytes: u64,
}

/// Measures and prints.
pub(super) fn run(bench: &Bench, seconds: u64) -> io::Result<()> {
    let target = Process::workload(bench, "tcf_shares", &[])?;
    let mut runs = vec![record(bench, &target, seconds)?];
    for clients in CLIENTS {
        eprintln!("serve: {clients} clients for {seconds} s");
        runs.push(served(bench, &target, clients, seconds)?);
    }
    bench.keep("serve-cost.json", &runs)?;
    print(&runs, seconds);
    Ok(())
}

fn record(bench: &Bench, target: &Process, seconds: u64) -> io::Result<Run> {
    eprintln!("record: for {seconds} s");
    let capture = bench.folder.join("serve-cost.cap");
    let (capture, pid, hz) = (
        capture.to_string_lossy(),
        target.pid().to_string(),
        HZ.to_string(),
    );
    let arguments = [
        "record", "-q", "--force", "-o", &capture, "-F", &hz, "-p", &pid,
    ];
    let recorder = Process::profiler(bench, &bench.folder.join("log"), &arguments)?;
    thread::sleep(SETTLING);
    let from = (recorder.cpu_ns()?, target.cpu_ns()?);
    thread::sleep(Duration::from_secs(seconds));
    let to = (recorder.cpu_ns()?, target.cpu_ns()?);
    Ok(Run {
        tool: "record".to_owned(),
        // A tick of the target's time is a sample.
        samples: (to.1 - from.1) * HZ / 1_000_000_000,
        cpu_ns: to.0 - from.0,
        peak_bytes: recorder.peak_bytes()?,
        ..Run::default()
    })
}

fn served(bench: &Bench, target: &Process, clients: usize, seconds: u64) -> io::Result<Run> {
    let (agent, address) = serve(bench)?;
    let id = format!("P{}", target.pid());
    let (measured, over) = (AtomicBool::new(false), AtomicBool::new(false));
    let (got, cpu_ns) = thread::scope(|scope| {
        let clients: Vec<_> = (0..clients)
            .map(|index| {
                let (address, id, measured, over) = (&address, &id, &measured, &over);
                // They don't all read at the same moment.
                let phase = Duration::from_millis(1000 * index as u64 / clients as u64);
                scope.spawn(move || {
                    thread::sleep(phase);
                    profile(address, id, measured, over)
                })
            })
            .collect();
        thread::sleep(SETTLING + Duration::from_secs(1));
        measured.store(true, Ordering::Relaxed);
        let from = agent.cpu_ns();
        thread::sleep(Duration::from_secs(seconds));
        let to = agent.cpu_ns();
        over.store(true, Ordering::Relaxed);
        let mut sum = Got::default();
        for client in clients {
            let failed = || io::Error::other("a client panicked");
            let got = client.join().map_err(|_| failed())??;
            sum.samples += got.samples;
            sum.dropped += got.dropped;
            sum.reads += got.reads;
            sum.bytes += got.bytes;
        }
        Ok::<_, io::Error>((sum, to? - from?))
    })?;
    Ok(Run {
        tool: format!("serve, {clients} clients"),
        samples: got.samples / clients as u64,
        reads: got.reads,
        read_bytes: got.bytes,
        dropped: got.dropped,
        cpu_ns,
        peak_bytes: agent.peak_bytes()?,
    })
}

/// One client's life; what it got while that counts.
fn profile(address: &str, id: &str, measured: &AtomicBool, over: &AtomicBool) -> io::Result<Got> {
    let mut client = Client::connect(address)?;
    let id = quoted(id);
    let parameters = format!("{{\"FrameCnt\":64,\"Frequency\":{HZ}}}");
    client.call("Profiler", "configure", &[&id, &parameters])?;
    let mut got = Got::default();
    while !over.load(Ordering::Relaxed) {
        thread::sleep(Duration::from_secs(1));
        let before = client.received_bytes;
        let result = client.call("Profiler", "read", &[&id])?;
        if measured.load(Ordering::Relaxed) && !over.load(Ordering::Relaxed) {
            let data = &result[0][0];
            got.samples += data["Samples"].as_u64().unwrap_or(0);
            got.dropped += data["Dropped"].as_u64().unwrap_or(0);
            got.reads += 1;
            got.bytes += client.received_bytes - before;
        }
    }
    Ok(got)
}

fn print(runs: &[Run], seconds: u64) {
    let mut table = Table::new(&[
        "",
        "samples (each client)",
        "own CPU ms/s",
        "own CPU us/sample",
        "of record's",
        "own CPU us/(sample and client)",
        "bytes/read",
        "dropped",
        "VmHWM MiB",
    ]);
    let each = |run: &Run| run.cpu_ns as f64 / 1e3 / run.samples.max(1) as f64;
    let base = runs.first().map_or(0.0, each);
    for (run, clients) in runs.iter().zip([1].iter().chain(&CLIENTS)) {
        table.row(vec![
            run.tool.clone(),
            run.samples.to_string(),
            per(run.cpu_ns as f64 / 1e6, seconds as f64),
            format!("{:.2}", each(run)),
            per(each(run), base),
            format!("{:.2}", each(run) / *clients as f64),
            per(run.read_bytes as f64, run.reads as f64),
            run.dropped.to_string(),
            mib(run.peak_bytes),
        ]);
    }
    table.print(&format!(
        "Three busy threads, {HZ} Hz on each processor, {seconds} s, a read each second"
    ));
}
