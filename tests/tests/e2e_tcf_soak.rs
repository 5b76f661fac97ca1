//! `profiler serve --tcf` for minutes: clients come, profile and go in all ways over processes that come
//! and go. Memory, threads and descriptors of the agent do not grow between the second third and the
//! last one.
//!
//! `PROFILER_SOAK_SECONDS` sets how long (90). Sizes are KiB of `/proc/PID/status`.

mod e2e_tcf_shared;

use std::process::Command;
use std::time::{Duration, Instant};

use e2e_tcf_shared::{Agent, descriptors, status, with_clients};
use profiler_tests::Outcome;
use profiler_tests::process::Running;

/// What the agent uses at one time.
#[derive(Clone, Debug)]
struct Used {
    rss_kb: u64,
    threads: u64,
    descriptors: u64,
    in_kernel: u64,
}

impl Used {
    fn now(pid: u32) -> Result<Used, Box<dyn std::error::Error>> {
        let kinds = descriptors(pid)?;
        let of_kernel = |kind: &str| kind.contains("bpf") || kind.contains("perf_event");
        let count = |of: &dyn Fn(&str) -> bool| {
            let kinds = kinds.iter().filter(|(kind, _)| of(kind));
            kinds.map(|(_, count)| *count as u64).sum()
        };
        Ok(Used {
            rss_kb: status(pid, "VmRSS")?,
            threads: status(pid, "Threads")?,
            descriptors: count(&|_| true),
            in_kernel: count(&of_kernel),
        })
    }
}

/// The highest of one kind in a third of the time.
fn most(used: &[Used], third: usize, of: fn(&Used) -> u64) -> u64 {
    let size = used.len() / 3;
    let part = used.iter().skip(third * size).take(size);
    part.map(of).max().unwrap_or(0)
}

#[test]
fn clients_and_processes_come_and_go() -> Outcome {
    let Some(setting) = with_clients("e2e_tcf_soak::clients_and_processes_come_and_go", true)?
    else {
        return Ok(());
    };
    let seconds = std::env::var("PROFILER_SOAK_SECONDS").ok();
    let seconds: u64 = seconds.map_or(Ok(90), |text| text.parse())?;
    let storm = setting.workload("fork_storm.c")?;
    let chain = setting.workload("chain.c")?;
    let agent = Agent::start(&setting, &[])?;
    let pid = agent.pid();
    // One client stays through all of it, so that no epoch begins with nothing.
    let stays = agent.begin(
        "stays",
        "client.py",
        &["watch", "--seconds", &(seconds + 30).to_string()],
    )?;
    let mut forks = Command::new(&storm);
    forks.args(["40", &seconds.to_string(), "2000"]);
    let forks = Running::start(&mut forks, setting.folder(), "forks")?;
    // Programs that are executed, one after the other: new images, mappings, names.
    let script = format!(
        "end=$(($(date +%s) + {seconds})); while [ $(date +%s) -lt $end ]; do {} 200 >/dev/null; done",
        chain.display()
    );
    let mut execs = Command::new("sh");
    execs.args(["-c", &script]);
    let execs = Running::start(&mut execs, setting.folder(), "execs")?;
    let clients = agent.begin(
        "churn",
        "load.py",
        &["churn", "--clients", "6", "--seconds", &seconds.to_string()],
    )?;
    let begin = Instant::now();
    let mut used = Vec::new();
    while begin.elapsed() < Duration::from_secs(seconds) {
        used.push(Used::now(pid)?);
        std::thread::sleep(Duration::from_millis(500));
    }
    let limit = Duration::from_secs(60);
    let did = agent.result(clients.end(limit)?)?;
    forks.end(limit)?.success()?;
    execs.end(limit)?.success()?;
    let high = status(pid, "VmHWM")?;
    eprintln!("{did}; VmHWM {high} KiB");
    for third in 0..3 {
        let of = |of| most(&used, third, of);
        eprintln!(
            "third {}: VmRSS {} KiB, {} threads, {} descriptors, {} of the kernel's",
            third + 1,
            of(|one| one.rss_kb),
            of(|one| one.threads),
            of(|one| one.descriptors),
            of(|one| one.in_kernel)
        );
    }
    for what in ["channels", "reads", "samples", "addresses", "gone"] {
        assert!(did[what].as_u64().unwrap_or(0) > 0, "no {what}: {did}");
    }
    let grows = |of: fn(&Used) -> u64, slack: u64| {
        let (second, last) = (most(&used, 1, of), most(&used, 2, of));
        (last > second + slack).then(|| format!("from {second} to {last}"))
    };
    // Epochs of definitions come and go, two of them at a time.
    let rss = grows(
        |one| one.rss_kb,
        (most(&used, 1, |one| one.rss_kb) / 10).max(8 << 10),
    );
    assert_eq!(rss, None, "VmRSS");
    assert_eq!(grows(|one| one.threads, 1), None, "threads");
    // Files that are looked into, and as many clients as there are.
    assert_eq!(grows(|one| one.descriptors, 16), None, "descriptors");
    assert_eq!(grows(|one| one.in_kernel, 0), None, "what is in the kernel");

    drop(stays);
    std::thread::sleep(Duration::from_secs(11));
    assert_eq!(Used::now(pid)?.in_kernel, 0, "left in the kernel");
    agent.end()?;
    Ok(())
}
