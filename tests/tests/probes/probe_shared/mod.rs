//! Workloads of the tests of the kernel side: their own binary, started again with a role, and what
//! became of it.
// Each test uses a part, and fails by unwrapping.
#![allow(clippy::unwrap_used, dead_code, unreachable_pub)]

pub mod cgroups;
pub mod stacks;
pub mod statistics;

use std::{
    collections::BTreeSet,
    fs,
    io::{BufRead, BufReader},
    process::{Child, ChildStdout, Command, Stdio},
    time::{Duration, Instant},
};

use profiler_common::control::Counters;
use profiler_model::LostReason;
use profiler_model::raw::{RawBody, RawEvent, RawSample};
use profiler_probe::Probe;
use profiler_tests::process::own_test;
use rustix::time::{ClockId, clock_gettime};

/// For what has no other end.
pub const LIMIT: Duration = Duration::from_secs(60);

/// A workload that ends with the test.
pub struct Workload {
    pub child: Child,
    pub line: String,
    /// Kept open: what it prints later finds a reader.
    pub output: BufReader<ChildStdout>,
}

impl Workload {
    /// Starts this executable in a role of a module (see its `role`) and waits for its first line.
    pub fn start(module: &str, role: &str) -> Workload {
        Workload::spawn(own_test(module, "role").unwrap().env("PROBE_ROLE", role))
    }

    pub fn spawn(command: &mut Command) -> Workload {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let line = loop {
            let mut line = String::new();
            assert_ne!(output.read_line(&mut line).unwrap(), 0, "the role ended");
            if let Some((_, text)) = line.split_once("role: ") {
                break text.trim().to_owned();
            }
        };
        Workload {
            child,
            line,
            output,
        }
    }

    /// Lets a role go on that waits for it.
    pub fn go(&mut self) {
        drop(self.child.stdin.take());
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// CPU time of all its threads so far.
    pub fn cpu_ns(&self) -> u64 {
        process_cpu_ns(self.pid())
    }
}

/// CPU time of all threads of a process so far.
pub fn process_cpu_ns(pid: u32) -> u64 {
    fs::read_dir(format!("/proc/{pid}/task"))
        .unwrap()
        .map(|task| fs::read_to_string(task.unwrap().path().join("schedstat")).unwrap())
        .map(|text| text.split(' ').next().unwrap().parse::<u64>().unwrap())
        .sum()
}

impl Drop for Workload {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Drains for a while.
pub fn record(probe: &mut Probe, time: Duration) -> Vec<RawEvent> {
    let mut out = Vec::new();
    let end = Instant::now() + time;
    while Instant::now() < end {
        std::thread::sleep(Duration::from_millis(20));
        let stats = probe.drain(&mut out);
        assert_eq!((stats.bad, stats.unknown), (0, 0));
    }
    out
}

/// Drains until a workload has ended by itself.
pub fn record_to_the_end(probe: &mut Probe, workload: &mut Workload) -> Vec<RawEvent> {
    let mut out = Vec::new();
    let end = Instant::now() + Duration::from_secs(60);
    while workload.child.try_wait().unwrap().is_none() {
        assert!(Instant::now() < end, "the workload does not end");
        out.extend(record(probe, Duration::from_millis(20)));
    }
    out.extend(record(probe, Duration::from_millis(20)));
    out
}

/// Drains until the counters of each processor's clock are so. One may be taken away for a while, or have a clock that stands
/// still while it is idle; until it has ticked again its counters are of the time before.
pub fn when_all(probe: &mut Probe, are_so: impl Fn(&Counters) -> bool) -> Vec<Vec<Counters>> {
    let processors = std::thread::available_parallelism().unwrap().get();
    let end = Instant::now() + LIMIT;
    loop {
        record(probe, Duration::from_millis(50));
        let counters = probe.counters();
        if counters[0].iter().filter(|cpu| are_so(cpu)).count() >= processors {
            return counters;
        }
        assert!(Instant::now() < end, "a processor does not tick");
    }
}

pub fn samples(events: &[RawEvent]) -> impl Iterator<Item = (&RawEvent, &RawSample)> {
    events.iter().filter_map(|event| match &event.body {
        RawBody::Sample(sample) => Some((event, &**sample)),
        _ => None,
    })
}

pub fn assert_near(what: &str, found: u64, expected: u64, tolerance: u64) {
    assert!(
        found.abs_diff(expected) <= tolerance,
        "{what}: {found}, expected {expected} within {tolerance}"
    );
}

/// The role "forks": 20 children with a child each, of 5 ms of CPU time, once it may go on.
pub fn fork_family() {
    println!("role: ready");
    wait_for_go();
    for _ in 0..20 {
        fork::child(|| {
            burn(Duration::from_millis(5));
            fork::child(|| burn(Duration::from_millis(5)));
        });
    }
}

/// That role's process and its descendants, from the side-band.
pub fn family(root: u32, events: &[RawEvent]) -> BTreeSet<u32> {
    let mut forks: Vec<_> = events
        .iter()
        .filter_map(|event| match event.body {
            RawBody::Fork {
                pid, parent_pid, ..
            } if pid != parent_pid => Some((event.at, pid.0, parent_pid.0)),
            _ => None,
        })
        .collect();
    forks.sort();
    let mut family = BTreeSet::from([root]);
    for (_, pid, parent) in forks {
        if family.contains(&parent) {
            family.insert(pid);
        }
    }
    assert_eq!(family.len(), 41, "20 children with a child each");
    family
}

/// Ticks that are said to have been skipped.
pub fn told_skipped(events: &[RawEvent]) -> u64 {
    let skipped = events.iter().filter_map(|event| match &event.body {
        RawBody::Lost(lost) if lost.reason == LostReason::Skipped => Some(lost.count),
        _ => None,
    });
    skipped.sum()
}

pub fn wait_for_go() {
    let _ = std::io::stdin().lines().next();
}

pub fn wait_forever() {
    loop {
        std::thread::park();
    }
}

/// Uses so much CPU time of the process.
pub fn burn(time: Duration) {
    burn_by(ClockId::ProcessCPUTime, time);
}

/// Uses so much CPU time of the calling thread.
pub fn burn_thread(time: Duration) {
    burn_by(ClockId::ThreadCPUTime, time);
}

fn burn_by(clock: ClockId, time: Duration) {
    let ns = || {
        let now = clock_gettime(clock);
        now.tv_sec as u128 * 1_000_000_000 + now.tv_nsec as u128
    };
    let start = ns();
    while ns() - start < time.as_nanos() {}
}

#[allow(unsafe_code)]
pub mod fork {
    /// Runs `body` in a child and waits for it.
    pub fn child(body: impl FnOnce()) {
        // SAFETY: the role has a second thread (the test harness's), but the child calls nothing
        // that takes a lock: it reads clocks, forks, and exits.
        unsafe {
            match libc::fork() {
                0 => {
                    body();
                    libc::_exit(0);
                }
                pid => {
                    libc::waitpid(pid, std::ptr::null_mut(), 0);
                }
            }
        }
    }
}
