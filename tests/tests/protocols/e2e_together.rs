//! All protocols of `profiler serve` over one session, and a recording beside it, of the same programs at the same time:
//! each tells what the programs themselves have counted and measured.
//!
//! Calls are exact; shares of CPU time are those that the workload measured, within four standard deviations of the
//! samples; amounts are its CPU time. What does not belong here: each protocol by itself (its own tests).

use std::path::Path;
use std::time::Duration;

use crate::e2e_http_shared::{self, samples};
use crate::e2e_rdp_shared::{Client, counts, port_in};
use crate::e2e_tcf_shared::profile::Profile;
use crate::e2e_tcf_shared::{Agent, Failure, Talking, with_clients};
use profiler_tests::Outcome;
use profiler_tests::recording::Recording;
use profiler_tests::setting::LIMIT;
use profiler_tests::statistics::share;
use profiler_tests::tracing::Trace;
use serde_json::{Value, json};

const LEAVES: [&str; 3] = ["leaf_a", "leaf_b", "leaf_c"];
/// Samples a second of TCF and the recording; sessions of HTTP have their own ticks. The workload is at the same leaf each
/// millisecond or so: samples that are closer than a few of these know of each other, and shares are not binomial.
const HZ: u64 = 499;
/// No multiple of a scheduler's tick: on a busy machine threads change at those.
const INTERVAL_MS: f64 = 7.0;

/// What a burner used of each leaf, as shares.
fn truth(from: &Value, to: &Value, thread: usize) -> Result<([f64; 3], f64), Failure> {
    let mut used = [0.0; 3];
    for (used, leaf) in used.iter_mut().zip(LEAVES) {
        let at = |answer: &Value| answer["threads"][thread][leaf].as_f64().ok_or("no time");
        *used = at(to)? - at(from)?;
    }
    let all: f64 = used.iter().sum();
    Ok((used.map(|it| it / all), all))
}

/// How many stacks are in each leaf below `outer`.
fn leaves<'s>(stacks: impl Iterator<Item = Vec<&'s str>>, outer: &str) -> [usize; 3] {
    let mut hits = [0; 3];
    for stack in stacks.filter(|stack| stack.contains(&outer)) {
        for (hits, leaf) in hits.iter_mut().zip(LEAVES) {
            *hits += usize::from(stack.contains(&leaf));
        }
    }
    hits
}

fn check(what: &str, hits: [usize; 3], truth: [f64; 3]) -> Outcome {
    let all = hits.iter().sum();
    for ((leaf, hits), truth) in LEAVES.iter().zip(hits).zip(truth) {
        share(&format!("{what}: {leaf}"), hits, all, truth)?;
    }
    Ok(())
}

#[test]
fn protocols_and_a_recording_tell_the_same() -> Outcome {
    let test = "e2e_together::protocols_and_a_recording_tell_the_same";
    let Some(setting) = with_clients(test, true)? else {
        return Ok(());
    };
    // A turn of a millisecond and a pause that differs by more than two are at another place with each sample: with a pause of
    // one they keep step with samples every two, and shares vary 1.6 times as much as by chance.
    let mut burns = Talking::workload(&setting, "tcf_shares.c", &["3"])?;
    let burners = burns.hear()?["tids"].clone();
    let mut calls = Talking::workload(&setting, "rdp_calls.c", &[])?;
    let tids = calls.hear()?["tids"].clone();
    let more = [
        "--rdp",
        "127.0.0.1:0",
        "--http",
        "127.0.0.1:0",
        "--budget",
        "off",
    ];
    let agent = Agent::start(&setting, &more)?;
    let mut http = None;
    let mut rdp = None;
    for _ in 0..200 {
        let said = agent.running.stderr_so_far()?;
        http = e2e_http_shared::port_in(&said);
        rdp = port_in(&said);
        if http.is_some() && rdp.is_some() {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    let http = e2e_http_shared::Remote {
        port: http.ok_or("no port of HTTP")?,
    };
    let rdp = rdp.ok_or("no port of RDP")?;

    // A recording that has both programs, and calls of the second one.
    let (first, second) = (burns.pid().to_string(), calls.pid().to_string());
    let hz = HZ.to_string();
    let recorder = setting.start_recording(&[
        "-F",
        &hz,
        "-p",
        &first,
        "-p",
        &second,
        "--trace",
        "rdp_calls:outer",
        "--trace",
        "rdp_calls:leaf",
        "--budget",
        "off",
    ])?;
    let mut traces = Vec::new();
    for tid in [0, 1] {
        let mut client = Client::connect(rdp)?;
        let tid = tids[tid].as_u64().ok_or("no thread")?;
        let actor = client.attached(calls.pid(), tid)?;
        let wanted = json!({
            "trace": ["name", "depth"], "functions": ["main:outer", "main:leaf"],
        });
        let answer = client.ask(&actor, "startTrace", wanted)?;
        assert_eq!(answer["type"], "startedTrace", "{answer}");
        traces.push((client, actor, Vec::new()));
    }
    // Frames of a burner, inferred of the same samples.
    let mut infers = Client::connect(rdp)?;
    let burner = burners[0].as_u64().ok_or("no thread")?;
    let inferred = infers.attached(burns.pid(), burner)?;
    let wanted = json!({ "trace": ["name", "depth", "time"], "frequency": HZ });
    infers.ask(&inferred, "startTrace", wanted)?;

    let session = http.session(json!({ "pid": burns.pid() }), INTERVAL_MS, 100_000)?;
    let from = burns.ask("from")?;
    let clock = || -> Result<f64, Failure> {
        let now = http.ask("GET", "/clock", &[], None)?.json()?;
        now["now"].as_f64().ok_or("no clock".into())
    };
    let from_ms = clock()?;
    let id = burns.id();
    let arguments = [
        "profile",
        &id,
        "--seconds",
        "10",
        "--frames",
        "64",
        "--frequency",
        &hz,
        "--settle",
    ];
    let profile = agent.begin("client", "client.py", &arguments)?;
    let turns = [4000, 2500];
    for (which, turns) in turns.iter().enumerate() {
        for _ in 0..4 {
            calls.ask(&format!("{which} {turns}"))?;
            // Ten megabytes would wait for who reads at the end, and there is not always room for them.
            for (client, actor, packets) in &mut traces {
                while let Some(packet) = client.packet_within(Duration::from_millis(1))? {
                    if packet["from"] == *actor {
                        packets.push(packet);
                    }
                }
            }
        }
    }
    let profile = Profile::of(&agent.result(profile.end(4 * LIMIT)?)?)?;
    let to = burns.ask("to")?;
    let to_ms = clock()?;
    let sessions = http.post(&session, "stop")?;

    // Calls: to each client those of its thread, to the recording all.
    for ((client, actor, packets), turns) in traces.iter_mut().zip(turns) {
        client.send(&json!({ "to": actor, "type": "stopTrace" }))?;
        packets.extend(client.until(actor, "stoppedTrace")?);
        let mut lost = packets.iter().filter(|it| it["type"] == "lostFrames");
        assert_eq!(lost.next(), None, "frames are lost");
        let seen = counts(packets, 0);
        let turns = 4 * turns;
        let expected = [
            ("leaf".to_owned(), (2 * turns, 2 * turns)),
            ("outer".to_owned(), (turns, turns)),
        ];
        assert_eq!(seen, expected.into());
    }
    infers.send(&json!({ "to": inferred, "type": "stopTrace" }))?;
    let frames = infers.until(&inferred, "stoppedTrace")?;
    recorder.signal(rustix::process::Signal::INT)?;
    recorder.end(LIMIT)?.success()?;
    let path: &Path = &setting.path("out.cap");
    let trace = Trace::read(path)?;
    let all: u64 = turns.iter().map(|turns| 4 * turns).sum();
    for (name, count) in [("outer", all), ("leaf", 2 * all)] {
        let counted = &trace.counts[name];
        assert_eq!(
            (counted.entries, counted.exits, counted.lost),
            (count, count, 0)
        );
    }

    // Shares: of each burner, by each that samples.
    let recording = Recording::read(path)?;
    let recorded = recording.of_pid(burns.pid());
    profile.check_amount("TCF", HZ)?;
    let of_processes = sessions["traces"].as_array().ok_or("no traces")?;
    for (thread, outer) in ["outer_0", "outer_1"].into_iter().enumerate() {
        let (shares, used_ns) = truth(&from, &to, thread)?;
        let tcf = LEAVES.map(|leaf| profile.with_chain(&[leaf, "middle", outer]) as usize);
        check("TCF", tcf, shares)?;
        check(
            "recording",
            leaves(recorded.iter().map(|it| it.chain()), outer),
            shares,
        )?;
        let of_thread = of_processes.iter().find(|it| it["tid"] == burners[thread]);
        let ticks = samples(&of_thread.ok_or("no trace of the thread")?["trace"])?;
        // Of the time in which the program measured.
        let origin = session["timeOrigin"].as_f64().ok_or("no origin")?;
        let ticks = ticks
            .iter()
            .filter(|(at, _)| (from_ms..=to_ms).contains(&(origin + at)));
        let stacks = ticks.filter_map(|(_, stack)| stack.as_deref());
        let hits = leaves(stacks.map(|stack| stack.split(';').collect()), outer);
        check("HTTP", hits, shares)?;
        // A tick in the thread's own CPU time is one with a stack.
        let found: usize = hits.iter().sum();
        let expected = used_ns / 1e6 / INTERVAL_MS;
        let slack = 4.0 * expected.sqrt() + 0.05 * expected;
        eprintln!("HTTP: {found} ticks in {outer}, {expected:.0} +- {slack:.0} expected");
        assert!(
            (found as f64 - expected).abs() <= slack,
            "{found}, {expected}"
        );
    }
    // The inferred frames are the same functions, and change as often as samples can tell.
    let entered = counts(&frames, 0);
    for name in LEAVES {
        assert!(
            entered.get(name).is_some_and(|it| it.0 > 0),
            "{name}: {entered:?}"
        );
    }
    burns.end()?;
    calls.end()?;
    agent.end()?;
    Ok(())
}
