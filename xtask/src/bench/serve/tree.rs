//! The tree of contexts with 10,000 threads more than the machine has: how long a client that asks for
//! all at once takes to walk it, and what the agent needs for it.

use std::io;
use std::time::Instant;

use serde::Serialize;

use super::super::Bench;
use super::super::table::{Table, mib, ms};
use super::client::Client;
use super::{Process, serve};

#[derive(Serialize)]
struct Walk {
    contexts: usize,
    took_ns: u64,
    cpu_ns: u64,
    bytes: u64,
}

/// Measures and prints.
pub(super) fn run(bench: &Bench, rounds: usize) -> io::Result<()> {
    let _crowd = Process::workload(bench, "tcf_crowd", &["20", "500"])?;
    let (agent, address) = serve(bench)?;
    let mut walks = Vec::new();
    for round in 0..=rounds {
        eprintln!("tree: round {round}");
        let walk = walk(&agent, &address)?;
        // With the first client the agent attaches and reads what is there.
        walks.push(walk);
    }
    bench.keep("serve-tree.json", &walks)?;
    let mut table = Table::new(&["walk", "contexts", "ms", "agent's CPU ms", "bytes/context"]);
    for (index, walk) in walks.iter().enumerate() {
        let name = match index {
            0 => "first".to_owned(),
            index => index.to_string(),
        };
        table.row(vec![
            name,
            walk.contexts.to_string(),
            ms(walk.took_ns as f64),
            ms(walk.cpu_ns as f64),
            (walk.bytes / walk.contexts.max(1) as u64).to_string(),
        ]);
    }
    table.print(&format!(
        "A walk over 10,000 threads of 20 processes and what else there is; VmHWM {} MiB",
        mib(agent.peak_bytes()?)
    ));
    Ok(())
}

fn walk(agent: &Process, address: &str) -> io::Result<Walk> {
    let (begin, from) = (Instant::now(), agent.cpu_ns()?);
    let mut client = Client::connect(address)?;
    let mut level = vec!["null".to_owned()];
    let mut contexts = 0;
    while !level.is_empty() {
        let parents: Vec<_> = level.drain(..).map(|id| vec![id]).collect();
        let mut ids = Vec::new();
        for fields in client.all("RunControl", "getChildren", &parents)? {
            let children: Vec<String> = fields
                .get(1)
                .and_then(|field| serde_json::from_slice(field).ok())
                .unwrap_or_default();
            ids.extend(children.iter().map(|id| vec![super::quoted(id)]));
        }
        for (fields, id) in client
            .all("RunControl", "getContext", &ids)?
            .iter()
            .zip(&ids)
        {
            let context: serde_json::Value = fields
                .get(1)
                .and_then(|field| serde_json::from_slice(field).ok())
                .unwrap_or_default();
            contexts += usize::from(context.is_object());
            if context["IsContainer"] == true {
                level.extend(id.iter().cloned());
            }
        }
    }
    Ok(Walk {
        contexts,
        took_ns: begin.elapsed().as_nanos() as u64,
        cpu_ns: agent.cpu_ns()? - from,
        bytes: client.received_bytes,
    })
}
