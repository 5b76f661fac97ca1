//! `profiler serve --tcf` with many clients, with clients that behave badly, and with many contexts.

use std::collections::BTreeSet;

use crate::e2e_tcf_shared::profile::Profile;
use crate::e2e_tcf_shared::{Agent, Talking, network_sockets, with_clients};
use profiler_tests::Outcome;
use profiler_tests::process::status;
use serde_json::{Value, json};

/// More than that the agent's memory never is, whatever clients do: twice what they may cost by their
/// limits (samples 256 MiB, output 16 MiB of each that does not read), and tables.
const MOST_KB: u64 = 768 << 10;

/// Threads of a process, as clients call them.
fn threads_of(workload: &mut Talking) -> Result<Vec<String>, Box<dyn std::error::Error>> {
    let first = workload.hear()?;
    let tids = first["tids"].as_array().ok_or("no tids")?;
    Ok(tids
        .iter()
        .map(|tid| format!("{}.{tid}", workload.id()))
        .collect())
}

/// Fifty clients, each with its own context, depth and frequency: each gets what its own calls for.
#[test]
fn fifty_clients_at_once() -> Outcome {
    let Some(setting) = with_clients("e2e_tcf_many::fifty_clients_at_once", true)? else {
        return Ok(());
    };
    let mut workload = Talking::workload(&setting, "tcf_shares.c", &[])?;
    let threads = threads_of(&mut workload)?;
    let agent = Agent::start(&setting, &[])?;
    let contexts = [&workload.id(), &threads[0], &threads[1], &threads[2]];
    let depths = [1, 8, 64];
    let frequencies = [49, 99, 199, 499, 999];
    let wishes: Vec<Value> = (0..50_usize)
        .map(|index| {
            json!({
                "id": contexts[index % 4],
                "frames": depths[index % 3],
                "frequency": frequencies[index % 5],
                "kernel": index % 7 == 0,
            })
        })
        .collect();
    let wishes = Value::from(wishes).to_string();
    // At the lowest rate 150 samples of each processor.
    let said = agent.script("load.py", &["many", &wishes, "--seconds", "3"])?;
    let found = said.as_array().ok_or("no profiles")?;
    assert_eq!(found.len(), 50);
    for (index, one) in found.iter().enumerate() {
        let profile = Profile::of(one)?;
        let hz = frequencies[index % 5];
        profile.check_amount(&format!("client {index}, {}", contexts[index % 4]), hz)?;
        assert_eq!((profile.dropped, profile.frequency_hz), (0, hz));
        let of = |thread: usize| index % 4 == 0 || index % 4 == thread + 1;
        if index % 3 > 0 {
            for (thread, outer) in ["outer_0", "outer_1"].iter().enumerate() {
                assert_eq!(
                    profile.inclusive(outer) > 0,
                    of(thread),
                    "client {index}: {outer}"
                );
            }
        }
    }
    eprintln!(
        "VmHWM with 50 clients: {} KiB",
        status(agent.pid(), "VmHWM")?
    );
    agent.end()?;
    workload.end()
}

/// Clients that are gone in the middle of a message, of a reply, of a profile, by a reset or a half
/// close: the others don't notice, and nothing of them stays.
#[test]
fn clients_that_vanish() -> Outcome {
    let Some(setting) = with_clients("e2e_tcf_many::clients_that_vanish", true)? else {
        return Ok(());
    };
    let workload = Talking::workload(&setting, "tcf_shares.c", &["3"])?;
    let agent = Agent::start(&setting, &[])?;
    let id = workload.id();
    // One that profiles all the while.
    let arguments = [
        "profile",
        &id,
        "--seconds",
        "12",
        "--frequency",
        "99",
        "--settle",
    ];
    let steady = agent.begin("steady", "client.py", &arguments)?;
    std::thread::sleep(std::time::Duration::from_secs(2));
    let before = network_sockets(agent.pid())?;
    let said = agent.script("load.py", &["vanish", &id, "--rounds", "12"])?;
    assert_eq!(said.as_object().map(serde_json::Map::len), Some(21));
    // What is told by the kernel of the connections that went comes within moments.
    std::thread::sleep(std::time::Duration::from_secs(1));
    let behind = network_sockets(agent.pid())?;
    assert!(behind <= before, "{behind} for {before}");
    let profile = Profile::of(&agent.result(steady.end(profiler_tests::setting::LIMIT)?)?)?;
    profile.check_amount("the one that stayed", 99)?;
    agent.end()?;
    workload.end()
}

/// A client that asks and never reads is cut off, 30 s after it read last; the others are served
/// meanwhile.
#[test]
fn a_client_that_never_reads() -> Outcome {
    let Some(setting) = with_clients("e2e_tcf_many::a_client_that_never_reads", true)? else {
        return Ok(());
    };
    let workload = Talking::workload(&setting, "tcf_shares.c", &["9"])?;
    let agent = Agent::start(&setting, &[])?;
    let said = agent.script("load.py", &["deaf", &workload.id()])?;
    eprintln!("{said}; VmHWM {} KiB", status(agent.pid(), "VmHWM")?);
    assert_eq!(said["cut"], true, "{said}");
    let slowest = said["slowest_answer_s"].as_f64().ok_or("no time")?;
    // A part of the time in which nothing is read; more where others keep the processors busy.
    assert!(slowest < 10.0, "another client waited {slowest} s");
    assert!(status(agent.pid(), "VmHWM")? < MOST_KB);
    agent.end()?;
    workload.end()
}

/// Ten thousand threads: the tree has each of them, in order and in time.
#[test]
fn ten_thousand_contexts() -> Outcome {
    let Some(setting) = with_clients("e2e_tcf_many::ten_thousand_contexts", true)? else {
        return Ok(());
    };
    let mut crowd = Talking::workload(&setting, "tcf_crowd.c", &["20", "500"])?;
    let pids = crowd.hear()?;
    let agent = Agent::start(&setting, &[])?;
    let walk = agent.client(&["walk"])?;
    let contexts = walk["contexts"].as_object().ok_or("no contexts")?;
    let mut count = 0;
    for pid in pids["pids"].as_array().ok_or("no pids")? {
        let process = format!("P{pid}");
        assert!(contexts.contains_key(&process), "{process} is missing");
        let ours: BTreeSet<String> = contexts
            .values()
            .filter(|one| one["ParentID"] == process.as_str())
            .filter_map(|one| one["ID"].as_str().map(str::to_owned))
            .collect();
        let mut theirs = BTreeSet::new();
        for entry in std::fs::read_dir(format!("/proc/{pid}/task"))? {
            theirs.insert(format!(
                "{process}.{}",
                entry?.file_name().to_string_lossy()
            ));
        }
        assert_eq!(ours, theirs);
        count += ours.len();
    }
    assert_eq!(count, 10_000);
    eprintln!(
        "{} contexts walked in {} s; VmHWM {} KiB",
        contexts.len(),
        walk["seconds"],
        status(agent.pid(), "VmHWM")?
    );
    let seconds = walk["seconds"].as_f64().ok_or("no time")?;
    assert!(seconds < 60.0, "{seconds} s");
    // All of them end at once: a client that looks on is told of each.
    let mut watch = agent.begin("watch", "client.py", &["watch", "--seconds", "60"])?;
    std::thread::sleep(std::time::Duration::from_secs(3));
    crowd.end()?;
    let gone = |running: &profiler_tests::process::Running| {
        let said = running.stdout_so_far().unwrap_or_default();
        let events = said
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let removed: usize = events
            .filter(|event| event["event"] == "contextRemoved")
            .filter_map(|event| event["arguments"][0].as_array().map(Vec::len))
            .sum();
        removed >= 10_020
    };
    watch.wait_until("10,020 ends", std::time::Duration::from_secs(20), gone)?;
    agent.end()?;
    Ok(())
}
