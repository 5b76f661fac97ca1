//! `profiler serve` for minutes with all protocols at once: clients of RDP, HTTP and TCF come, trace, sample and go in all
//! ways, over processes that come and go. Memory, threads and descriptors of the server level off; behind the last client
//! nothing is left in the kernel.
//!
//! `PROFILER_SOAK_SECONDS` sets how long (600). Memory is `RssAnon` of `/proc/PID/status`.

use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::e2e_http_shared::{self, Remote};
use crate::e2e_rdp_shared::{Client, counts, port_in};
use crate::e2e_tcf_shared::{Agent, Failure, Talking, descriptors, with_clients};
use profiler_tests::Outcome;
use profiler_tests::process::{Running, status};
use serde_json::json;

/// More memory than that it never needs for such clients.
const MOST_KB: u64 = 384 << 10;
/// Clients of RDP and of HTTP at a time.
const EACH: usize = 3;

/// What the server uses at one time.
#[derive(Clone, Copy, Debug)]
struct Used {
    anon_kb: u64,
    threads: u64,
    sockets: u64,
    in_kernel: u64,
    files: u64,
}

impl Used {
    fn now(pid: u32) -> Result<Used, Failure> {
        let kinds = descriptors(pid)?;
        let count = |of: &dyn Fn(&str) -> bool| {
            let kinds = kinds.iter().filter(|(kind, _)| of(kind));
            kinds.map(|(_, count)| *count as u64).sum()
        };
        Ok(Used {
            anon_kb: status(pid, "RssAnon")?,
            threads: status(pid, "Threads")?,
            sockets: count(&|kind| kind == "socket"),
            in_kernel: count(&|kind| kind.contains("bpf") || kind.contains("perf_event")),
            files: count(&|kind| kind == "file"),
        })
    }
}

/// What clients did, of each kind.
#[derive(Default)]
struct Did {
    traces: AtomicU64,
    frames: AtomicU64,
    marked: AtomicU64,
    lost: AtomicU64,
    sessions: AtomicU64,
    samples: AtomicU64,
    profiles: AtomicU64,
    over: AtomicBool,
}

/// Clients of RDP, one after the other: some trace calls and check that they are whole, some are told of by the program,
/// some infer, some go without a word.
fn traces(port: u16, program: &mut Talking, tid: u64, did: &Did) -> Outcome {
    let mut round = 0_u64;
    // On a busy machine the server learns of the program somewhat later than we do.
    let until = Instant::now() + Duration::from_secs(30);
    while Client::connect(port)?.process(program.pid()).is_err() {
        assert!(Instant::now() < until, "the program is not known");
    }
    while !did.over.load(Ordering::Relaxed) {
        round += 1;
        let mut client = Client::connect(port)?;
        let actor = client.attached(program.pid(), tid)?;
        match round % 4 {
            0 => {
                program.ask("0 start - name,depth")?;
                client.until(&actor, "startedTrace")?;
                program.ask("0 stop -")?;
                let packets = client.until(&actor, "stoppedTrace")?;
                let why = &packets[packets.len() - 1]["why"];
                assert_eq!(why, "console.stopTrace");
                did.marked.fetch_add(1, Ordering::Relaxed);
            }
            1 => {
                let wanted = json!({ "trace": ["name"], "frequency": 199 });
                client.ask(&actor, "startTrace", wanted)?;
                program.ask("0 calls 2000")?;
                // It is gone without a word.
            }
            _ => {
                let wanted = json!({
                    "trace": ["name", "depth"], "functions": ["main:outer", "main:leaf"],
                });
                client.ask(&actor, "startTrace", wanted)?;
                program.ask("0 calls 500")?;
                client.send(&json!({ "to": actor, "type": "stopTrace" }))?;
                let packets = client.until(&actor, "stoppedTrace")?;
                let lost = packets.iter().filter(|it| it["type"] == "lostFrames");
                did.lost.fetch_add(lost.count() as u64, Ordering::Relaxed);
                let seen = counts(&packets, 0);
                assert_eq!(seen["outer"], (500, 500));
                assert_eq!(seen["leaf"], (1000, 1000));
                did.frames.fetch_add(3000, Ordering::Relaxed);
                did.traces.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
    Ok(())
}

/// Sessions, one after the other: most are stopped, some are given up.
fn sessions(remote: &Remote, pid: u32, did: &Did) -> Outcome {
    let mut round = 0_u64;
    while !did.over.load(Ordering::Relaxed) {
        round += 1;
        let interval = [10.0, 7.0, 2.0][(round % 3) as usize];
        let session = remote.session(json!({ "pid": pid }), interval, 10_000)?;
        std::thread::sleep(Duration::from_millis(400));
        if round.is_multiple_of(5) {
            let id = session["id"].as_str().ok_or("no id")?;
            let gone = remote.ask("DELETE", &format!("/session/{id}"), &[], None)?;
            assert_eq!(gone.status, 204);
            continue;
        }
        let stopped = remote.post(&session, "stop")?;
        let traces = stopped["traces"].as_array().ok_or("no traces")?;
        let samples = traces
            .iter()
            .filter_map(|it| it["trace"]["samples"].as_array());
        let samples: usize = samples.map(Vec::len).sum();
        did.samples.fetch_add(samples as u64, Ordering::Relaxed);
        did.sessions.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

/// Clients of TCF, one after the other.
fn profiles(agent: &Agent<'_>, id: &str, did: &Did) -> Outcome {
    while !did.over.load(Ordering::Relaxed) {
        let arguments = [
            "profile",
            id,
            "--seconds",
            "2",
            "--frames",
            "16",
            "--frequency",
            "99",
        ];
        let output = agent.command("client.py", &arguments).output()?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into());
        }
        did.profiles.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

fn median(values: impl Iterator<Item = u64>) -> u64 {
    let mut all: Vec<u64> = values.collect();
    all.sort_unstable();
    all.get(all.len() / 2).copied().unwrap_or(0)
}

#[test]
fn clients_of_all_protocols_come_and_go() -> Outcome {
    let test = "e2e_serve_soak::clients_of_all_protocols_come_and_go";
    let Some(setting) = with_clients(test, true)? else {
        return Ok(());
    };
    let seconds = std::env::var("PROFILER_SOAK_SECONDS").ok();
    let seconds: u64 = seconds.map_or(Ok(600), |text| text.parse())?;
    let more = [
        "--rdp",
        "127.0.0.1:0",
        "--http",
        "127.0.0.1:0",
        "--budget",
        "off",
    ];
    let agent = Agent::start(&setting, &more)?;
    let pid = agent.pid();
    let (mut http, mut rdp) = (None, None);
    let until = Instant::now() + Duration::from_secs(20);
    while (http.is_none() || rdp.is_none()) && Instant::now() < until {
        let said = agent.running.stderr_so_far()?;
        (http, rdp) = (e2e_http_shared::port_in(&said), port_in(&said));
        std::thread::sleep(Duration::from_millis(50));
    }
    let remote = Remote {
        port: http.ok_or("no port of HTTP")?,
    };
    let rdp = rdp.ok_or("no port of RDP")?;
    let mut burns = Talking::workload(&setting, "tcf_shares.c", &["20"])?;
    burns.hear()?;
    let mut forks = Command::new(setting.workload("fork_storm.c")?);
    forks.args(["20", &seconds.to_string(), "1000"]);
    let forks = Running::start(&mut forks, setting.folder(), "forks")?;
    let did = Did::default();
    let mut used = Vec::new();
    let begin = Instant::now();
    std::thread::scope(|scope| -> Outcome {
        let mut clients = Vec::new();
        for _ in 0..EACH {
            let mut program = Talking::workload(&setting, "rdp_marks.c", &[])?;
            let tid = program.hear()?["tids"][0].as_u64().ok_or("no thread")?;
            let (did, remote, burner) = (&did, &remote, burns.pid());
            let text = |error: Failure| error.to_string();
            clients.push(scope.spawn(move || traces(rdp, &mut program, tid, did).map_err(text)));
            clients.push(scope.spawn(move || sessions(remote, burner, did).map_err(text)));
        }
        let (did, id, agent) = (&did, burns.id(), &agent);
        let text = |error: Failure| error.to_string();
        clients.push(scope.spawn(move || profiles(agent, &id, did).map_err(text)));
        while begin.elapsed() < Duration::from_secs(seconds)
            && !clients
                .iter()
                .any(std::thread::ScopedJoinHandle::is_finished)
        {
            used.push(Used::now(pid)?);
            std::thread::sleep(Duration::from_millis(500));
        }
        did.over.store(true, Ordering::Relaxed);
        for client in clients {
            client.join().map_err(|_| "a client panicked")??;
        }
        Ok(())
    })?;
    forks.end(Duration::from_secs(90))?.success()?;
    let count = |of: &AtomicU64| of.load(Ordering::Relaxed);
    eprintln!(
        "{seconds} s: {} traces with {} frames, {} lost, {} of programs; {} sessions with {} samples; {} profiles of TCF; \
         VmHWM {} KiB",
        count(&did.traces),
        count(&did.frames),
        count(&did.lost),
        count(&did.marked),
        count(&did.sessions),
        count(&did.samples),
        count(&did.profiles),
        status(pid, "VmHWM")?
    );
    let thirds: Vec<&[Used]> = used.chunks((used.len() / 3).max(1)).take(3).collect();
    for third in &thirds {
        let most = |of: fn(&Used) -> u64| third.iter().map(of).max().unwrap_or(0);
        eprintln!(
            "RssAnon {} KiB, as a rule {} KiB, {} threads, {} sockets, {} of the kernel's, {} files",
            most(|it| it.anon_kb),
            median(third.iter().map(|it| it.anon_kb)),
            most(|it| it.threads),
            most(|it| it.sockets),
            most(|it| it.in_kernel),
            most(|it| it.files)
        );
    }
    assert_eq!(count(&did.lost), 0, "frames are lost");
    for of in [
        &did.traces,
        &did.marked,
        &did.sessions,
        &did.samples,
        &did.profiles,
    ] {
        assert!(count(of) > 0, "a kind of client did nothing");
    }
    let [_, second, last] = thirds[..] else {
        return Err("it was over too soon".into());
    };
    let most = |of: fn(&Used) -> u64, part: &[Used]| part.iter().map(of).max().unwrap_or(0);
    let usual = |part: &[Used]| median(part.iter().map(|it| it.anon_kb));
    let slack_kb = usual(second) / if seconds < 300 { 2 } else { 10 };
    assert!(usual(last) <= usual(second) + slack_kb, "memory grows");
    assert!(most(|it| it.anon_kb, &used) < MOST_KB);
    for (of, slack) in [
        ((|it| it.threads) as fn(&Used) -> u64, 2),
        (|it| it.sockets, 8),
        (|it| it.in_kernel, 64),
    ] {
        let (before, after) = (most(of, second), most(of, last));
        assert!(after <= before + slack, "from {before} to {after}");
    }

    // Behind the last client all is taken out, and what was open for it is closed.
    burns.end()?;
    let until = Instant::now() + Duration::from_secs(40);
    loop {
        let left = Used::now(pid)?;
        // Each protocol listens.
        if left.in_kernel == 0 && left.sockets <= used[0].sockets.max(8) {
            break;
        }
        assert!(Instant::now() < until, "left: {left:?}");
        std::thread::sleep(Duration::from_millis(500));
    }
    agent.end()?;
    Ok(())
}
