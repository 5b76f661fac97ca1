//! A machine of 1,000 processes over 200 executables: how long each tool takes until it records, or to
//! end, beyond the time it was asked for, and its memory.

use std::fs;
use std::io;
use std::path::Path;

use serde::Serialize;

use super::super::Bench;
use super::super::host::Host;
use super::super::table::{Table, mib, ms, per};
use super::peers::{Peer, Run};

const SECONDS: u64 = 5;

#[derive(Serialize)]
struct Row {
    tool: &'static str,
    state: &'static str,
    run: Run,
}

/// Measures and prints.
pub(super) fn run(bench: &Bench, folder: &Path, peers: &[Peer]) -> io::Result<()> {
    let (count, processes) = if bench.quick { (10, 50) } else { (200, 1000) };
    let crowd = folder.join("crowd");
    fs::create_dir_all(&crowd)?;
    eprintln!("processes: building {count} executables");
    let mut executables = Vec::new();
    for variant in 0..count {
        let define = format!("-DVARIANT={variant}");
        let name = format!("unwinding/crowd/host_{variant}");
        executables.push(bench.workload("host.c", &name, &[&define, "-fomit-frame-pointer"])?);
    }
    let _host = Host::start(&executables, processes)?;
    std::thread::sleep(std::time::Duration::from_secs(1));
    let mut rows = Vec::new();
    for peer in peers.iter().filter(|peer| !peer.is_per_process()) {
        for state in ["first", "again"] {
            eprintln!("processes: {}, {state}", peer.name());
            let is_rooted = |stack: &super::stacks::Stack| stack.is_rooted();
            let run = match peer.record(bench, folder, None, super::HZ, SECONDS, is_rooted) {
                Ok(run) => run,
                Err(error) => {
                    println!("{}, {state}: {error}\n", peer.name());
                    continue;
                }
            };
            rows.push(Row {
                tool: peer.name(),
                state,
                run,
            });
        }
    }
    bench.keep("unwinding-processes.json", &rows)?;
    let mut table = Table::new(&[
        "tool",
        "time",
        "samples",
        "complete stacks",
        "wall ms beyond the recording",
        "CPU ms: recording",
        "CPU ms: into text",
        "bytes/sample",
        "peak memory MiB",
        "BPF maps MiB",
    ]);
    for row in &rows {
        let run = &row.run;
        let beyond = run.record.wall_ns.saturating_sub(SECONDS * 1_000_000_000);
        table.row(vec![
            row.tool.to_owned(),
            row.state.to_owned(),
            run.samples.to_string(),
            format!("{} %", per(100.0 * run.complete as f64, run.samples as f64)),
            ms(beyond as f64),
            ms(run.record.cpu_ns as f64),
            ms(run.text.cpu_ns as f64),
            per(run.bytes as f64, run.samples as f64),
            mib(run.record.peak_bytes.max(run.text.peak_bytes)),
            mib(run.record.map_bytes),
        ]);
    }
    table.print(&format!(
        "A machine of {processes} processes over {count} executables, {SECONDS} s, the whole machine"
    ));
    Ok(())
}
