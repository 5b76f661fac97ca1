//! Call tracing against the real kernel: what is counted, recorded, lost, fetched and left behind.
//!
//! Oracles are exact: a workload calls functions whose every instruction is known so many times. It
//! is this very binary, started again with a role. Times are nanoseconds of CLOCK_MONOTONIC. Needs
//! root; says what it skips without.

// Failing is what tests do.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::{
    collections::BTreeMap,
    fs::File,
    io::{BufRead, BufReader, Write},
    os::{fd::AsFd, unix::fs::FileExt},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    time::{Duration, Instant},
};

use profiler::{
    model::{
        Pid,
        raw::{RawBody, RawCall, RawEdge, RawEvent},
    },
    probe::{CallLink, CallOptions, CallSite, CallTarget, Probe, ProbeOptions},
    target::Filter,
};
use profiler_common::call::{CallCounters, EDGE_ENTER, EDGE_EXIT, ProbeControl};

/// Whether the test can run; says so if not.
fn privileged(name: &str) -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        profiler_tests::skip::skip(name, "loading kernel-side programs needs root");
    }
    root
}

/// Functions with known instructions.
#[allow(unsafe_code)]
mod code {
    std::arch::global_asm!(
        ".p2align 4",
        ".globl calls_leaf; calls_leaf: push rbp; mov rbp, rsp; pop rbp",
        ".globl calls_leaf_ret; calls_leaf_ret: ret",
        ".p2align 4",
        // Calls itself rdi times.
        ".globl calls_nest; calls_nest: push rbp",
        "test rdi, rdi; jz 2f; dec rdi; call calls_nest",
        "2: pop rbp",
        ".globl calls_nest_ret; calls_nest_ret: ret",
        ".p2align 4",
        // Returns its first argument.
        ".globl calls_values; calls_values: push rbp; mov rax, rdi; pop rbp",
        ".globl calls_values_ret; calls_values_ret: ret",
    );

    unsafe extern "C" {
        pub(super) fn calls_leaf();
        static calls_leaf_ret: u8;
        pub(super) fn calls_nest(depth: u64);
        static calls_nest_ret: u8;
        pub(super) fn calls_values(a: u64, b: *const u8, c: *const u8, d: u64) -> u64;
        static calls_values_ret: u8;
    }

    /// Names and addresses.
    pub(super) fn addresses() -> [(&'static str, u64); 6] {
        [
            ("leaf", calls_leaf as *const () as u64),
            ("leaf_ret", &raw const calls_leaf_ret as u64),
            ("nest", calls_nest as *const () as u64),
            ("nest_ret", &raw const calls_nest_ret as u64),
            ("values", calls_values as *const () as u64),
            ("values_ret", &raw const calls_values_ret as u64),
        ]
    }

    pub(super) fn leaf(times: u64) {
        for _ in 0..times {
            // SAFETY: takes nothing and changes no more than a call may.
            unsafe { calls_leaf() };
        }
    }

    pub(super) fn nest(depth: u64) {
        // SAFETY: needs 16 bytes of stack for each level.
        unsafe { calls_nest(depth) };
    }

    pub(super) fn values(a: u64, b: *const u8, c: *const u8, d: u64) {
        // SAFETY: looks at no argument but the first, and only as a number.
        assert_eq!(unsafe { calls_values(a, b, c, d) }, a);
    }

    pub(super) fn in_child(body: impl FnOnce()) {
        // SAFETY: the child takes no lock: it calls functions that do nothing, and exits.
        unsafe {
            match libc::fork() {
                0 => {
                    body();
                    libc::_exit(0);
                }
                child => {
                    libc::waitpid(child, std::ptr::null_mut(), 0);
                }
            }
        }
    }
}

const TEXT: &[u8] = b"a string of some length\0";

/// Runs as a workload: obeys lines on standard input.
#[test]
#[ignore = "a workload of the other tests"]
fn role() {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let lines: Vec<String> = code::addresses()
        .into_iter()
        .map(|(name, address)| {
            let offset = file_offset(&maps, address);
            format!("{name}={address}:{offset}")
        })
        .collect();
    println!("role: {}", lines.join(" "));
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let words: Vec<&str> = line.split(' ').collect();
        let number = |index: usize| words[index].parse::<u64>().unwrap();
        match words[0] {
            "leaf" => std::thread::scope(|scope| {
                for _ in 0..number(2) {
                    scope.spawn(|| code::leaf(number(1)));
                }
            }),
            "for_ms" => {
                let end = Instant::now() + Duration::from_millis(number(1));
                let mut calls = 0;
                while Instant::now() < end {
                    code::leaf(100);
                    calls += 100;
                }
                println!("role: {calls}");
                continue;
            }
            "child" => code::in_child(|| code::leaf(10)),
            "nest" => code::nest(number(1)),
            "values" => {
                let long = [b'x'; 600];
                code::values(7, TEXT.as_ptr(), std::ptr::without_provenance(16), 99);
                code::values(8, long.as_ptr(), TEXT.as_ptr(), 5);
            }
            other => panic!("no command {other}"),
        }
        println!("role: done");
    }
}

fn file_offset(maps: &str, address: u64) -> u64 {
    maps.lines()
        .find_map(|line| {
            let fields: Vec<&str> = line.split_ascii_whitespace().collect();
            let (start, end) = fields[0].split_once('-')?;
            let number = |text| u64::from_str_radix(text, 16).unwrap();
            (number(start)..number(end))
                .contains(&address)
                .then(|| address - number(start) + number(fields[2]))
        })
        .unwrap()
}

/// A workload that ends with the test.
struct Workload {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    /// Address and file offset of each label.
    labels: BTreeMap<String, (u64, u64)>,
    file: File,
}

impl Workload {
    fn start() -> Workload {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "role", "--ignored", "--nocapture"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut workload = Workload {
            input: child.stdin.take().unwrap(),
            output: BufReader::new(child.stdout.take().unwrap()),
            labels: BTreeMap::new(),
            file: File::open(format!("/proc/{}/exe", child.id())).unwrap(),
            child,
        };
        let line = workload.answer();
        workload.labels = line
            .split(' ')
            .map(|word| {
                let (name, place) = word.split_once('=').unwrap();
                let (address, offset) = place.split_once(':').unwrap();
                let place = (address.parse().unwrap(), offset.parse().unwrap());
                (name.to_owned(), place)
            })
            .collect();
        workload
    }

    fn answer(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert_ne!(self.output.read_line(&mut line).unwrap(), 0, "it ended");
            if let Some((_, text)) = line.split_once("role: ") {
                return text.trim().to_owned();
            }
        }
    }

    fn send(&mut self, line: &str) {
        writeln!(self.input, "{line}").unwrap();
    }

    fn run(&mut self, line: &str) -> String {
        self.send(line);
        self.answer()
    }

    fn pid(&self) -> Pid {
        Pid(self.child.id())
    }

    fn site(&self, label: &str, probe: u32, edge: u32) -> CallSite {
        CallSite {
            offset: self.labels[label].1,
            probe,
            edge,
            generation: 1,
            return_probe: false,
            semaphore: None,
        }
    }

    /// The bytes that it would execute at a label.
    fn bytes(&self, label: &str) -> [u8; 4] {
        let memory = File::open(format!("/proc/{}/mem", self.child.id())).unwrap();
        let mut bytes = [0; 4];
        memory
            .read_exact_at(&mut bytes, self.labels[label].0)
            .unwrap();
        bytes
    }
}

impl Drop for Workload {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const CALLS: CallOptions = CallOptions {
    max_probes: 16,
    buffer_bytes: 8 << 20,
    fetches: false,
    callers: false,
    per_process: true,
    min_duration_ns: 0,
    max_depth: 0,
    max_rate: 0,
};

const ON: ProbeControl = ProbeControl {
    generation: 1,
    flags: 0,
    reserved: [0; 6],
};

fn attach(calls: CallOptions, filter: Filter) -> Probe {
    let options = ProbeOptions {
        sources: Vec::new(),
        calls: Some(calls),
        filter,
        buffer_bytes: 1 << 20,
        kernel_stacks: false,
        user_stacks: false,
        kernel_log: false,
    };
    Probe::attach(options).unwrap()
}

/// Attaches places of the workload, all of which the kernel must take.
fn link(probe: &mut Probe, workload: &Workload, sites: &[CallSite]) -> CallLink {
    let target = CallTarget::Process(workload.pid());
    let (link, refused) = probe
        .attach_calls(target, workload.file.as_fd(), sites)
        .unwrap();
    assert!(refused.is_empty(), "{refused:?}");
    link
}

fn calls(events: &[RawEvent]) -> impl Iterator<Item = &RawCall> {
    events.iter().filter_map(|event| match &event.body {
        RawBody::Call(call) => Some(call),
        _ => None,
    })
}

fn counts(probe: &mut Probe) -> BTreeMap<u32, CallCounters> {
    let mut out = Vec::new();
    probe.call_counts(&mut out);
    out.into_iter().collect()
}

/// Drains until the workload answers.
fn drain_until_done(probe: &mut Probe, workload: &mut Workload, line: &str) -> Vec<RawEvent> {
    workload.send(line);
    let mut out = Vec::new();
    std::thread::scope(|scope| {
        let answer = scope.spawn(|| workload.answer());
        while !answer.is_finished() {
            let stats = probe.drain(&mut out);
            assert_eq!((stats.bad, stats.unknown), (0, 0));
            std::thread::sleep(Duration::from_millis(1));
        }
        answer.join().unwrap()
    });
    probe.drain(&mut out);
    out
}

#[test]
fn every_entry_and_exit_is_counted_and_recorded() {
    if !privileged("every_entry_and_exit_is_counted_and_recorded") {
        return;
    }
    let mut workload = Workload::start();
    let mut probe = attach(CALLS, Filter::default());
    probe.set_probe(3, ON, &[]).unwrap();
    let sites = [
        workload.site("leaf", 3, EDGE_ENTER),
        CallSite {
            return_probe: true,
            ..workload.site("leaf", 3, EDGE_EXIT)
        },
    ];
    let _link = link(&mut probe, &workload, &sites);
    let events = drain_until_done(&mut probe, &mut workload, "leaf 500000 2");
    let count = counts(&mut probe)[&3];
    assert_eq!((count.entries, count.exits), (1_000_000, 1_000_000));
    let (mut entries, mut exits) = (0, 0);
    for call in calls(&events) {
        assert_eq!((call.pid, call.probe, call.stack), (workload.pid(), 3, 0));
        match call.edge {
            RawEdge::Enter => entries += 1,
            RawEdge::Exit => exits += 1,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(entries + exits + count.lost, 2_000_000);
    println!("{entries} entries, {exits} exits, {} lost", count.lost);
    assert_eq!(counts(&mut probe), BTreeMap::new(), "nothing has changed");
}
