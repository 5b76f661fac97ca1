//! `profiler serve --tcf` for minutes: clients come, profile and go in all ways over processes that come
//! and go. Memory, threads and descriptors of the agent level off; files of programs that have ended are
//! closed, and behind the last client all are.
//!
//! `PROFILER_SOAK_SECONDS` sets how long (90). The agent follows the whole machine, on which others may
//! run what they like: of the files that it has open, those of the test's own programs are counted.
//! Memory is `RssAnon` of `/proc/PID/status` in KiB: pages of files that it reads names from belong
//! to the system, which takes them when it needs them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::e2e_tcf_shared::{Agent, descriptors, with_clients};
use profiler_tests::Outcome;
use profiler_tests::process::{Running, status};

/// How long files of what has ended stay open at most: processes can be asked about for 10 s, which is
/// looked at each 5 s, and what was read of files is dropped when no name was asked for in 10 s.
const CLOSED: Duration = Duration::from_secs(30);
/// As often one file may be open: by its processes, and on each thread that reads names.
const MOST_OF_ONE: u64 = 12;
/// More memory than that the agent never needs for such clients.
const MOST_KB: u64 = 256 << 10;

/// What the agent uses at one time.
#[derive(Clone, Debug)]
struct Used {
    anon_kb: u64,
    threads: u64,
    /// Descriptors that are no files: sockets, what is in the kernel, timers.
    no_files: u64,
    in_kernel: u64,
    /// Descriptors of the test's programs.
    ours: u64,
    /// The most of any one file.
    most_of_one: u64,
}

impl Used {
    fn now(pid: u32, ours: &[&Path]) -> Result<Used, Box<dyn std::error::Error>> {
        let files = files(pid)?;
        let kinds = descriptors(pid)?;
        let count = |of: &dyn Fn(&str) -> bool| {
            let kinds = kinds.iter().filter(|(kind, _)| of(kind));
            kinds.map(|(_, count)| *count as u64).sum()
        };
        let of_file = |path: &&Path| files.get(*path).copied().unwrap_or(0);
        Ok(Used {
            anon_kb: status(pid, "RssAnon")?,
            threads: status(pid, "Threads")?,
            no_files: count(&|kind| kind != "file"),
            in_kernel: count(&|kind| kind.contains("bpf") || kind.contains("perf_event")),
            ours: ours.iter().map(of_file).sum(),
            most_of_one: files.values().copied().max().unwrap_or(0),
        })
    }
}

/// The files that a process has open, each with the number of its descriptors; not its three outputs and
/// inputs, nor devices and what is only in memory.
fn files(pid: u32) -> std::io::Result<BTreeMap<PathBuf, u64>> {
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(format!("/proc/{pid}/fd"))? {
        let path = entry?.path();
        let is_standard = ["0", "1", "2"]
            .iter()
            .any(|name| path.ends_with(Path::new(name)));
        // A descriptor can be closed while the folder is read.
        let Ok(target) = fs::read_link(&path) else {
            continue;
        };
        let is_other = ["/memfd:", "/dev/"]
            .iter()
            .any(|start| target.to_string_lossy().starts_with(start));
        if target.is_absolute() && !is_standard && !is_other {
            *files.entry(target).or_default() += 1;
        }
    }
    Ok(files)
}

/// The highest of one kind in a third of the time.
fn most(used: &[Used], third: usize, of: fn(&Used) -> u64) -> u64 {
    let size = used.len() / 3;
    let part = used.iter().skip(third * size).take(size);
    part.map(of).max().unwrap_or(0)
}

/// The median of the memory in a third of the time: a moment in which much is read is no growth.
fn usual_kb(used: &[Used], third: usize) -> u64 {
    let size = used.len() / 3;
    let mut all: Vec<_> = used
        .iter()
        .skip(third * size)
        .take(size)
        .map(|one| one.anon_kb)
        .collect();
    all.sort_unstable();
    all.get(size / 2).copied().unwrap_or(0)
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
        &["watch", "--seconds", &(seconds + 300).to_string()],
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
    let ours = [storm.as_path(), chain.as_path()];
    let begin = Instant::now();
    let mut used = Vec::new();
    while begin.elapsed() < Duration::from_secs(seconds) {
        used.push(Used::now(pid, &ours)?);
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
            "third {}: RssAnon {} KiB, as a rule {} KiB, {} threads, {} descriptors that are no files, {} of the kernel's, \
             {} of the programs here, {} of one file",
            third + 1,
            of(|one| one.anon_kb),
            usual_kb(&used, third),
            of(|one| one.threads),
            of(|one| one.no_files),
            of(|one| one.in_kernel),
            of(|one| one.ours),
            of(|one| one.most_of_one)
        );
    }
    for what in ["channels", "reads", "samples", "addresses", "gone"] {
        assert!(did[what].as_u64().unwrap_or(0) > 0, "no {what}: {did}");
    }
    let grows = |of: fn(&Used) -> u64, slack: u64| {
        let (second, last) = (most(&used, 1, of), most(&used, 2, of));
        (last > second + slack).then(|| format!("from {second} to {last}"))
    };
    // Epochs of definitions come and go, two of them at a time, and what the machine runs besides is known
    // better and better: it takes three minutes until memory levels off.
    let (second, last) = (usual_kb(&used, 1), usual_kb(&used, 2));
    let slack_kb = second / if seconds < 300 { 2 } else { 10 };
    assert!(
        last <= second + slack_kb,
        "RssAnon from {second} to {last} KiB"
    );
    let highest = used.iter().map(|one| one.anon_kb).max().unwrap_or(0);
    assert!(highest < MOST_KB, "RssAnon {highest} KiB");
    assert_eq!(grows(|one| one.threads, 1), None, "threads");
    // As many clients as there are.
    assert_eq!(grows(|one| one.no_files, 8), None, "no files");
    assert_eq!(grows(|one| one.in_kernel, 0), None, "what is in the kernel");
    for used in &used {
        assert!(used.most_of_one <= MOST_OF_ONE, "{used:?}");
    }

    // The programs have ended; a client is still there.
    let until = Instant::now() + CLOSED;
    while Used::now(pid, &ours)?.ours > 0 {
        assert!(Instant::now() < until, "left open: {:?}", files(pid)?);
        std::thread::sleep(Duration::from_millis(500));
    }
    drop(stays);
    std::thread::sleep(Duration::from_secs(12));
    assert_eq!(Used::now(pid, &ours)?.in_kernel, 0, "left in the kernel");
    assert_eq!(files(pid)?, BTreeMap::new(), "left open");
    agent.end()?;
    Ok(())
}
