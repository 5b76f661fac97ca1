//! `profiler serve --rdp`: clients are told of each frame that a thread enters and leaves.

use std::fs;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use crate::e2e_rdp_shared::{Server, counts};
use crate::e2e_tcf_shared::{Failure, NOBODY, Talking};
use profiler_tests::Outcome;
use profiler_tests::kernel_objects::held_by;
use profiler_tests::setting::{LIMIT, Setting};
use serde_json::{Value, json};

/// What is asked for of each frame.
const TYPES: [&str; 7] = [
    "name",
    "time",
    "depth",
    "hitCount",
    "parameterNames",
    "arguments",
    "return",
];

/// The workload, and its two threads.
fn started(setting: &Setting) -> Result<(Talking, [u64; 2]), Failure> {
    let mut program = Talking::workload(setting, "rdp_calls.c", &[])?;
    let said = program.hear()?;
    let tid = |index: usize| said["tids"][index].as_u64().ok_or("no thread");
    Ok((program, [tid(0)?, tid(1)?]))
}

fn types(names: &[&str]) -> Value {
    json!({ "trace": names, "functions": ["main:outer", "main:leaf"] })
}

/// Every call of a thread is told, once, in order and nested, and none of another thread; when the client has stopped
/// nothing is left in the kernel.
#[test]
fn each_call_of_a_thread_is_told() -> Outcome {
    let Some(setting) = Setting::new("e2e_rdp::each_call_of_a_thread_is_told")? else {
        return Ok(());
    };
    let (mut program, [main, second]) = started(&setting)?;
    let server = Server::start(&setting, &["--allow-args", "--budget", "off"])?;
    let mut client = server.client()?;
    assert_eq!(client.greeting["from"], "root");
    let idle = held_by(server.running.pid())?;
    let actor = client.attached(program.pid(), second)?;
    let started = client.ask(&actor, "startTrace", types(&TYPES))?;
    assert_eq!(started["type"], "startedTrace", "{started}");
    assert_eq!(
        (&started["why"], &started["name"]),
        (&json!("requested"), &json!("Trace 1"))
    );
    assert_eq!(started["tid"], second);
    let tracing = held_by(server.running.pid())?;
    // Of maps some come with other programs, whose stacks are to be walked.
    assert!(tracing.maps.len() > idle.maps.len());
    let came = |now: &[u32], before: &[u32]| -> Vec<u32> {
        let came = now.iter().filter(|id| !before.contains(id));
        came.copied().collect()
    };
    let probes = [
        came(&tracing.programs, &idle.programs),
        came(&tracing.links, &idle.links),
    ];
    assert!(probes.iter().all(|came| !came.is_empty()), "{tracing:?}");

    program.ask("0 77")?;
    let said = program.ask("1 5000")?;
    client.send(&json!({ "to": actor, "type": "stopTrace" }))?;
    let packets = client.until(&actor, "stoppedTrace")?;
    let counts = counts(&packets, 0);
    let expected = |name: &str| said[name].as_u64().map(|count| (count, count));
    assert_eq!(counts.get("outer").copied(), expected("outer"));
    assert_eq!(counts.get("leaf").copied(), expected("leaf"));
    assert_eq!(counts.len(), 2, "{counts:?}");

    // outer(0) > leaf(0), leaf(1)
    let first = &packets[0];
    assert_eq!(first["parameterNames"], json!(["n", "why"]));
    let arguments = json!({ "values": [0, "because"], "objectPool": [] });
    assert_eq!(first["arguments"], arguments, "{first}");
    assert_eq!(packets[1]["arguments"]["values"], json!([0]));
    assert_eq!(
        packets[2]["return"],
        json!({ "value": 1, "objectPool": [] })
    );
    assert_eq!(
        (&packets[2]["why"], &packets[2]["depth"]),
        (&json!("return"), &json!(1))
    );
    assert_eq!(packets[3]["hitCount"], 2);
    let times: Vec<f64> = packets
        .iter()
        .filter_map(|it| it["time"].as_f64())
        .collect();
    assert_eq!(times.len(), 2 * (5000 + 10_000));
    assert!(times.is_sorted() && times[0] >= 0.0);
    assert!(
        packets
            .iter()
            .all(|packet| packet.get("inferred").is_none())
    );

    // Each actor has a state of its own.
    let wrong = client.ask(&actor, "stopTrace", json!({}))?;
    assert_eq!(wrong["error"], "wrongState");
    let main = client.attached(program.pid(), main)?;
    let wrong = client.ask(&main, "stopTrace", json!({}))?;
    assert_eq!(wrong["error"], "wrongState");
    let mut left = probes.clone();
    for _ in 0..100 {
        let now = held_by(server.running.pid())?;
        left[0].retain(|id| now.programs.contains(id));
        left[1].retain(|id| now.links.contains(id));
        if left.iter().all(Vec::is_empty) {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(left, [[0; 0]; 2], "programs and links that are left");
    server.end()?;
    program.end()?;
    Ok(())
}

/// Traces of two clients on one thread, and of one client on two threads, do not know of each other; a connection that
/// is lost takes its own with it.
#[test]
fn clients_trace_by_themselves() -> Outcome {
    let Some(setting) = Setting::new("e2e_rdp::clients_trace_by_themselves")? else {
        return Ok(());
    };
    let (mut program, [main, second]) = started(&setting)?;
    let server = Server::start(&setting, &["--budget", "off", "--trace", "main:outer"])?;
    let mut one = server.client()?;
    let mut two = server.client()?;
    let mut lost = server.client()?;
    let ones_main = one.attached(program.pid(), main)?;
    let ones_second = one.attached(program.pid(), second)?;
    let twos_main = two.attached(program.pid(), main)?;
    let losts_main = lost.attached(program.pid(), main)?;
    let wanted = json!({ "trace": ["name", "depth"] });
    for actor in [&ones_main, &ones_second] {
        let started = one.ask(actor, "startTrace", wanted.clone())?;
        assert_eq!(started["type"], "startedTrace", "{started}");
    }
    let leaves = json!({ "trace": ["name", "depth"], "functions": ["main:leaf"] });
    two.ask(&twos_main, "startTrace", leaves)?;
    lost.ask(&losts_main, "startTrace", wanted)?;
    drop(lost);
    program.ask("0 300")?;
    program.ask("1 200")?;

    two.send(&json!({ "to": twos_main, "type": "detach" }))?;
    let packets = two.until(&twos_main, "stoppedTrace")?;
    // The answer comes first.
    assert_eq!(packets[packets.len() - 2]["type"], "detached");
    assert_eq!(packets[packets.len() - 1]["why"], "detached");
    assert_eq!(
        counts(&packets, 0),
        [("leaf".to_owned(), (600, 600))].into()
    );

    let mut packets = Vec::new();
    for actor in [&ones_main, &ones_second] {
        one.send(&json!({ "to": actor, "type": "stopTrace" }))?;
    }
    while packets
        .iter()
        .filter(|it: &&Value| it["type"] == "stoppedTrace")
        .count()
        < 2
    {
        packets.push(one.packet()?);
    }
    for (actor, calls) in [(&ones_main, 300), (&ones_second, 200)] {
        let own = packets.iter().filter(|it| it["from"] == **actor);
        let own: Vec<Value> = own.cloned().collect();
        assert_eq!(
            counts(&own, 0),
            [("outer".to_owned(), (calls, calls))].into()
        );
    }
    server.end()?;
    program.end()?;
    Ok(())
}

/// Without functions to trace, frames are inferred from samples, and marked so.
#[test]
fn frames_are_inferred_from_samples() -> Outcome {
    let Some(setting) = Setting::new("e2e_rdp::frames_are_inferred_from_samples")? else {
        return Ok(());
    };
    let (mut program, [main, _]) = started(&setting)?;
    let server = Server::start(&setting, &[])?;
    let mut client = server.client()?;
    let actor = client.attached(program.pid(), main)?;
    let wanted = json!({ "trace": ["name", "depth", "time"], "frequency": 499 });
    let started = client.ask(&actor, "startTrace", wanted)?;
    assert_eq!(started["type"], "startedTrace", "{started}");
    program.ask("0 -1500")?;
    std::thread::sleep(Duration::from_millis(1200));
    client.send(&json!({ "to": actor, "type": "stopTrace" }))?;
    let packets = client.until(&actor, "stoppedTrace")?;
    let frames = packets.iter().filter(|it| it["sequence"].is_u64());
    assert!(frames.clone().all(|it| it["inferred"] == true));
    let counts = counts(&packets, 0);
    let busy = counts.get("busy").ok_or_else(|| format!("{counts:?}"))?;
    assert!(busy.0 >= 1, "{counts:?}");
    server.end()?;
    program.end()?;
    Ok(())
}

/// What can't be traced is refused, with the reason, and nothing is begun.
#[test]
fn what_cannot_be_traced_is_refused() -> Outcome {
    let Some(setting) = Setting::new("e2e_rdp::what_cannot_be_traced_is_refused")? else {
        return Ok(());
    };
    let (program, [main, _]) = started(&setting)?;
    let server = Server::start(&setting, &[])?;
    let mut client = server.client()?;
    let actor = client.attached(program.pid(), main)?;
    for (wanted, error) in [
        (
            json!({ "trace": ["name"], "functions": ["main:no_such_function"] }),
            "unavailable",
        ),
        (
            json!({ "trace": ["name"], "functions": ["main:"] }),
            "unavailable",
        ),
        (
            json!({ "trace": ["name"], "functions": "outer" }),
            "badParameterType",
        ),
        (json!({ "trace": ["name", "colour"] }), "noSuchTraceType"),
        (json!({ "trace": "name" }), "badParameterType"),
        (json!({}), "missingParameter"),
    ] {
        let answer = client.ask(&actor, "startTrace", wanted.clone())?;
        assert_eq!(answer["error"], error, "{wanted}: {answer}");
        assert!(
            answer["message"]
                .as_str()
                .is_some_and(|text| !text.is_empty())
        );
    }
    let idle = client.ask(&actor, "stopTrace", json!({}))?;
    assert_eq!(idle["error"], "wrongState");
    let gone = client.ask("root", "getProcess", json!({ "id": 4_000_000_000_u64 }))?;
    assert_eq!(gone["error"], "noSuchProcess", "{gone}");
    server.end()?;
    program.end()?;
    Ok(())
}

/// A client that does not read is told what it missed once it reads, and then closed.
#[test]
fn who_does_not_read_is_told_what_it_missed() -> Outcome {
    let Some(setting) = Setting::new("e2e_rdp::who_does_not_read_is_told_what_it_missed")? else {
        return Ok(());
    };
    let (mut program, [main, _]) = started(&setting)?;
    let server = Server::start(&setting, &["--budget", "off"])?;
    let mut client = server.client()?;
    let actor = client.attached(program.pid(), main)?;
    let started = client.ask(&actor, "startTrace", types(&TYPES))?;
    assert_eq!(started["type"], "startedTrace", "{started}");
    let mut calls = 0;
    // Half as much again as may wait for a client, in a fraction of the time that one may read nothing.
    for _ in 0..6 {
        let said = program.ask("0 15000")?;
        calls += said["outer"].as_u64().unwrap_or(0) + said["leaf"].as_u64().unwrap_or(0);
        std::thread::sleep(Duration::from_millis(300));
    }
    // On a busy machine the server may not have come to all of it: another trace of the same begins behind it.
    let mut other = server.client()?;
    let second = other.attached(program.pid(), main)?;
    let started = other.ask(&second, "startTrace", types(&["name"]))?;
    assert_eq!(started["type"], "startedTrace", "{started}");
    let packets = client.until(&actor, "stoppedTrace")?;
    let [.., lost, stopped] = &packets[..] else {
        return Err("nothing was told".into());
    };
    assert_eq!(stopped["why"], "slowClient");
    assert_eq!(
        (&lost["type"], &lost["why"]),
        (&json!("lostFrames"), &json!("slowClient"))
    );
    let frames = packets.iter().filter(|it| it["sequence"].is_u64()).count() as u64;
    let others = packets.iter().filter(|it| it["type"] == "lostFrames");
    let lost: u64 = others.filter_map(|it| it["count"].as_u64()).sum();
    assert_eq!(frames + lost, 2 * calls);
    let closed = client.packet_within(LIMIT);
    assert!(closed.is_err(), "{closed:?}");
    // Others are served on.
    other.process(program.pid())?;
    let stopped = other.ask(&second, "stopTrace", json!({}))?;
    assert_eq!(stopped["why"], "requested", "{stopped}");
    server.end()?;
    program.end()?;
    Ok(())
}

/// Of a trace that is stopped while a function is watched less than all the time, to keep the budget, it is told that frames
/// are missing, before it is told that it has stopped.
#[test]
fn a_trace_that_stops_in_a_gap_says_so() -> Outcome {
    let Some(setting) = Setting::new("e2e_rdp::a_trace_that_stops_in_a_gap_says_so")? else {
        return Ok(());
    };
    let (mut program, [main, _]) = started(&setting)?;
    let server = Server::start(&setting, &["--budget", "0.1%"])?;
    let mut client = server.client()?;
    let actor = client.attached(program.pid(), main)?;
    let mut missed = 0;
    // How often the budget is exceeded just then is chance: three times are enough, and once has to be.
    for round in 0..200 {
        client.ask(&actor, "startTrace", types(&["name", "depth"]))?;
        let said = program.ask("0 3000")?;
        let stopped = json!({ "to": actor, "type": "stopTrace" });
        client.send(&stopped)?;
        let packets = client.until(&actor, "stoppedTrace")?;
        let seen = counts(&packets, 0).get("leaf").map_or(0, |leaf| leaf.0);
        let lost = packets.iter().filter(|it| it["type"] == "lostFrames");
        if Some(seen) == said["leaf"].as_u64() {
            continue;
        }
        assert!(
            lost.clone().any(|it| it["why"] == "overBudget"),
            "round {round}: {seen} frames of {said}"
        );
        missed += 1;
        if missed == 3 {
            break;
        }
    }
    assert!(missed > 0, "the budget was kept without a gap");
    server.end()?;
    program.end()?;
    Ok(())
}

/// Another user is turned away.
#[test]
fn other_users_are_turned_away() -> Outcome {
    let Some(setting) = Setting::new("e2e_rdp::other_users_are_turned_away")? else {
        return Ok(());
    };
    let server = Server::start(&setting, &[])?;
    let script = format!(
        "exec 3<>/dev/tcp/127.0.0.1/{}; timeout 10 cat <&3",
        server.port
    );
    let mut bash = Command::new("/bin/bash");
    let output = bash
        .args(["-c", &script])
        .uid(NOBODY)
        .gid(NOBODY)
        .output()?;
    assert!(output.stdout.is_empty(), "{output:?}");
    server.client()?;
    let ended = server.end()?;
    let said = fs::read_to_string(setting.path("serve.err")).unwrap_or_default();
    let said = format!("{said}{ended:?}");
    assert!(said.contains("--allow-user"), "{said}");
    Ok(())
}

/// It serves beside TCF.
#[test]
fn protocols_serve_together() -> Outcome {
    let Some(setting) = Setting::new("e2e_rdp::protocols_serve_together")? else {
        return Ok(());
    };
    let (mut program, [main, _]) = started(&setting)?;
    let server = Server::start(&setting, &["--tcf", "127.0.0.1:0", "--budget", "off"])?;
    let mut client = server.client()?;
    let actor = client.attached(program.pid(), main)?;
    client.ask(&actor, "startTrace", types(&["name", "depth"]))?;
    program.ask("0 100")?;
    client.send(&json!({ "to": actor, "type": "stopTrace" }))?;
    let packets = client.until(&actor, "stoppedTrace")?;
    assert_eq!(counts(&packets, 0)["leaf"], (200, 200));
    server.end()?;
    program.end()?;
    Ok(())
}
