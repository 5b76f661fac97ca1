//! `profiler serve --rdp --replay`: clients are told what a capture holds, without privileges: the packets that an
//! export of it has, at once or in their own time.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::e2e_rdp_shared::{Client, Server, counts};
use crate::e2e_tcf_shared::{Failure, NOBODY, Talking};
use profiler_tests::Outcome;
use profiler_tests::setting::{LIMIT, Setting};
use profiler_tests::{announced, canonical};
use serde_json::{Value, json};

/// Starts a server of a capture as nobody, who may not load anything.
fn as_nobody(setting: &Setting, arguments: &[&str]) -> Result<Server, Failure> {
    let copy = setting.profiler_for_all()?;
    fs::set_permissions(setting.path("out.cap"), fs::Permissions::from_mode(0o644))?;
    let mut command = Command::new(copy);
    command.current_dir(setting.folder());
    if rustix::process::geteuid().is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    let more = ["--allow-user", "0", "--allow-args", "--replay", "out.cap"];
    Server::start_command(setting, command, &[&more[..], arguments].concat())
}

/// Frames that an export has: by process and thread.
fn exported(setting: &Setting) -> Result<BTreeMap<(u64, u64), Vec<Value>>, Failure> {
    let ended = setting.run(&["export", "out.cap", "--format", "trace-actor", "-o", "-"])?;
    let mut of = BTreeMap::new();
    let mut frames: BTreeMap<(u64, u64), Vec<Value>> = BTreeMap::new();
    for line in ended.success()?.stdout.lines() {
        let packet: Value = serde_json::from_str(line)?;
        let from = packet["from"].as_str().unwrap_or_default().to_owned();
        if packet["type"] == "startedTrace" {
            let number = |name: &str| packet[name].as_u64().ok_or("no number");
            of.insert(from, (number("processID")?, number("tid")?));
        } else if let Some(thread) = of.get(&from)
            && packet["sequence"].is_u64()
        {
            frames.entry(*thread).or_default().push(bare(packet));
        }
    }
    Ok(frames)
}

/// Milliseconds since the trace of a frame was started.
fn time_of(packet: &Value) -> Result<f64, Failure> {
    Ok(packet["time"].as_f64().ok_or("no time")?)
}

/// Without whose it is.
fn bare(mut packet: Value) -> Value {
    packet["from"].take();
    packet
}

/// Attaches to a thread and starts a trace of all there is.
fn start(client: &mut Client, (pid, tid): (u64, u64)) -> Result<String, Failure> {
    let actor = client.attached(u32::try_from(pid)?, tid)?;
    let types = client.ask(&actor, "attach", json!({}))?;
    assert_eq!(types["error"], "wrongState");
    let all = [
        "name",
        "callsite",
        "time",
        "parameterNames",
        "arguments",
        "return",
        "throw",
        "yield",
        "location",
        "depth",
        "hitCount",
        "blackBoxed",
    ];
    client.send(&json!({ "to": actor, "type": "startTrace", "trace": all }))?;
    Ok(actor)
}

/// Checks that clients are told the frames of an export, each of them: one after the other, all at once, or all
/// while the capture's own time goes by.
fn check(setting: &Setting, server: &Server, clients: Clients) -> Result<(), Failure> {
    let expected = exported(setting)?;
    assert!(!expected.is_empty());
    let is_timed = clients == Clients::Timed;
    let mut waiting = Vec::new();
    for &thread in expected.keys() {
        let mut client = server.client()?;
        let actor = start(&mut client, thread)?;
        waiting.push((thread, client, actor));
        if clients == Clients::InTurn {
            read(&mut waiting, &expected, is_timed)?;
        }
    }
    read(&mut waiting, &expected, is_timed)
}

#[derive(Clone, Copy, PartialEq)]
enum Clients {
    InTurn,
    Together,
    Timed,
}

fn read(
    clients: &mut Vec<((u64, u64), Client, String)>,
    expected: &BTreeMap<(u64, u64), Vec<Value>>,
    is_timed: bool,
) -> Result<(), Failure> {
    for (thread, mut client, actor) in clients.drain(..) {
        let mut told = Vec::new();
        while told.len() < expected[&thread].len() {
            let packet = client.packet_of(&actor)?;
            assert!(packet.get("error").is_none(), "{packet}");
            if packet["sequence"].is_u64() {
                told.push(bare(packet));
            }
        }
        // Times are since the trace was started: of all but the first client, when the capture's time goes by already.
        let since = match is_timed {
            true => time_of(&expected[&thread][0])? - time_of(&told[0])?,
            false => 0.0,
        };
        let rounding = if is_timed { 1e-5 } else { 0.0 };
        assert!(since >= 0.0, "{thread:?}: {since} ms");
        for (mut told, mut expected) in told.into_iter().zip(expected[&thread].clone()) {
            let apart = time_of(&expected)? - time_of(&told)? - since;
            assert!(
                apart.abs() <= rounding,
                "{apart} ms apart: {told} {expected}"
            );
            (told["time"], expected["time"]) = (Value::Null, Value::Null);
            assert_eq!(told, expected);
        }
        client.send(&json!({ "to": actor, "type": "stopTrace" }))?;
        client.until(&actor, "stoppedTrace")?;
    }
    Ok(())
}

/// A made-up session with everything: at once, over and over, and in its own time, once.
#[test]
fn the_packets_of_an_export() -> Outcome {
    let Some(setting) = Setting::unprivileged("rdp_replay::the_packets_of_an_export")? else {
        return Ok(());
    };
    announced::write(
        &setting.path("out.cap"),
        canonical::session_with_everything(),
    )?;
    let server = as_nobody(&setting, &["--speed", "max"])?;
    check(&setting, &server, Clients::InTurn)?;
    check(&setting, &server, Clients::Together)?;
    let mut client = server.client()?;
    let listed = client.ask("root", "listProcesses", json!({}))?;
    assert!(
        listed["processes"]
            .as_array()
            .is_some_and(|all| !all.is_empty())
    );
    server.end()?;
    Ok(())
}

/// What was recorded of a program: as often as it has called.
#[test]
fn calls_that_were_recorded() -> Outcome {
    let Some(setting) = Setting::new("rdp_replay::calls_that_were_recorded")? else {
        return Ok(());
    };
    let mut program = Talking::workload(&setting, "rdp_calls.c", &[])?;
    let tids = program.hear()?["tids"].clone();
    let pid = program.pid().to_string();
    let trace = ["--trace", "main:outer", "--trace", "main:leaf", "-p", &pid];
    let recording =
        setting.start_recording(&[&["--args", "--budget", "off"][..], &trace].concat())?;
    program.ask("0 200")?;
    program.ask("1 300")?;
    recording.signal(rustix::process::Signal::INT)?;
    recording.end(LIMIT)?.success()?;
    for speed in ["max", "1"] {
        let server = as_nobody(&setting, &["--speed", speed])?;
        let is_timed = speed != "max";
        let clients = match is_timed {
            true => Clients::Timed,
            false => Clients::InTurn,
        };
        check(&setting, &server, clients)?;
        if !is_timed {
            let mut client = server.client()?;
            let tid = tids[1].as_u64().ok_or("no thread")?;
            let actor = start(&mut client, (program.pid().into(), tid))?;
            let mut packets = Vec::new();
            while packets.len() < 2 * 900 {
                let packet = client.packet_of(&actor)?;
                packets.extend(packet["sequence"].is_u64().then_some(packet));
            }
            let counts = counts(&packets, 0);
            assert_eq!((counts["outer"], counts["leaf"]), ((300, 300), (600, 600)));
        }
        server.end()?;
    }
    program.end()?;
    Ok(())
}
