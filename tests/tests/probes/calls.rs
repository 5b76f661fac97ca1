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
    process::{Child, ChildStdin, ChildStdout, Stdio},
    time::{Duration, Instant},
};

use profiler_common::call::{
    CallCounters, EDGE_ENTER, EDGE_EXIT, EDGE_HIT, EDGE_TAIL, FETCH_COUNTED, FETCH_MEMORY,
    FETCH_STRING, FETCH_WORD, Fetch, ITEM_BAD_MEMORY, ITEM_CUT, ITEM_OK, MAX_SITES, PROBE_FETCHES,
    PROBE_OFF, ProbeControl, REGISTER_RAX, REGISTER_RCX, REGISTER_RDI, REGISTER_RDX, REGISTER_RSI,
    REGISTER_RSP,
};
use profiler_model::{
    LostReason, Pid,
    raw::{RawBody, RawCall, RawEdge, RawEvent},
};
use profiler_probe::{CallLink, CallOptions, CallSite, CallTarget, Probe, ProbeOptions};
use profiler_target::Filter;
use profiler_tests::process::own_test;
use profiler_tests::skip::{emulated, privileged};
use profiler_trace::{InstructionKind, cost::KINDS};

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
        ".p2align 4",
        // Leaves by a jump to calls_values; what is in rax then is not its result.
        ".globl calls_tail; calls_tail: push rbp; mov eax, 1234; pop rbp",
        ".globl calls_tail_jmp; calls_tail_jmp: jmp calls_values",
        // Never executed: the kernel allows no probe on it.
        ".globl calls_forbidden; calls_forbidden: lock add dword ptr [rax], 1; ret",
    );

    unsafe extern "C" {
        pub(super) fn calls_leaf();
        static calls_leaf_ret: u8;
        pub(super) fn calls_nest(depth: u64);
        static calls_nest_ret: u8;
        pub(super) fn calls_values(a: u64, b: *const u8, c: *const u8, d: u64) -> u64;
        static calls_values_ret: u8;
        fn calls_tail(a: u64, b: *const u8, c: *const u8, d: u64) -> u64;
        static calls_tail_jmp: u8;
        static calls_forbidden: u8;
    }

    /// Names and addresses.
    pub(super) fn addresses() -> [(&'static str, u64); 9] {
        [
            ("leaf", calls_leaf as *const () as u64),
            ("leaf_ret", &raw const calls_leaf_ret as u64),
            ("nest", calls_nest as *const () as u64),
            ("nest_ret", &raw const calls_nest_ret as u64),
            ("values", calls_values as *const () as u64),
            ("values_ret", &raw const calls_values_ret as u64),
            ("tail", calls_tail as *const () as u64),
            ("tail_jmp", &raw const calls_tail_jmp as u64),
            ("forbidden", &raw const calls_forbidden as u64),
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

    pub(super) fn tail(a: u64) {
        // SAFETY: as above.
        let result = unsafe { calls_tail(a, std::ptr::null(), std::ptr::null(), 0) };
        assert_eq!(result, a);
    }

    /// Maps `file` as code, for good.
    pub(super) fn map_code(file: &std::fs::File, bytes: usize) -> usize {
        use std::os::fd::AsRawFd;
        // SAFETY: a new mapping, of which nobody has a reference.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_EXEC,
                libc::MAP_PRIVATE,
                file.as_raw_fd(),
                0,
            )
        };
        assert_ne!(start, libc::MAP_FAILED);
        start as usize
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
            "alone" => code::leaf(number(1)),
            "child" => code::in_child(|| code::leaf(10)),
            "nest" => code::nest(number(1)),
            "tail" => (0..number(1)).for_each(code::tail),
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
        let mut child = own_test(module_path!(), "role")
            .unwrap()
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
            site: 0,
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

fn attach(calls: CallOptions, filter: Filter) -> Box<Probe> {
    let options = ProbeOptions {
        hierarchy: None,
        sources: Vec::new(),
        calls: Some(calls),
        filter,
        buffer_bytes: 1 << 20,
        kernel_stacks: false,
        user_stacks: false,
        unwind: None,
        kernel_log: false,
        off_cpu: false,
        adjustable: false,
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
    let each: u64 = if emulated() { 20_000 } else { 500_000 };
    let events = drain_until_done(&mut probe, &mut workload, &format!("leaf {each} 2"));
    let count = counts(&mut probe)[&3];
    assert_eq!((count.entries, count.exits), (2 * each, 2 * each));
    let (mut entries, mut exits) = (0, 0);
    for call in calls(&events) {
        assert_eq!((call.pid, call.probe, call.stack), (workload.pid(), 3, 0));
        match call.edge {
            RawEdge::Enter => entries += 1,
            RawEdge::Exit => exits += 1,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(entries + exits + count.lost, 4 * each);
    println!("{entries} entries, {exits} exits, {} lost", count.lost);
    assert_eq!(counts(&mut probe), BTreeMap::new(), "nothing has changed");
}

#[test]
fn nesting_is_seen_by_where_return_addresses_lie() {
    if !privileged("nesting_is_seen_by_where_return_addresses_lie") {
        return;
    }
    let mut workload = Workload::start();
    let options = CallOptions {
        callers: true,
        ..CALLS
    };
    let mut probe = attach(options, Filter::default());
    probe.set_probe(0, ON, &[]).unwrap();
    // By its return instruction, and by a return probe.
    for at_return in [false, true] {
        let exit = if at_return { "nest" } else { "nest_ret" };
        let sites = [
            workload.site("nest", 0, EDGE_ENTER),
            CallSite {
                site: MAX_SITES,
                return_probe: at_return,
                ..workload.site(exit, 0, EDGE_EXIT)
            },
        ];
        let link = link(&mut probe, &workload, &sites);
        workload.run("nest 9");
        let mut events = Vec::new();
        probe.drain(&mut events);
        events.sort_by_key(|event| event.at);
        let calls: Vec<&RawCall> = calls(&events).collect();
        let edges: Vec<RawEdge> = calls.iter().map(|call| call.edge).collect();
        assert_eq!(edges[..10], [RawEdge::Enter; 10]);
        assert_eq!(edges[10..], [RawEdge::Exit; 10]);
        // The number of the exit's site comes along.
        assert!(calls[..10].iter().all(|call| call.site == 0));
        assert!(calls[10..].iter().all(|call| call.site == MAX_SITES));
        let places: Vec<u64> = calls.iter().map(|call| call.sp).collect();
        assert!(places[..10].is_sorted_by(|outer, inner| outer > inner));
        let left: Vec<u64> = places[10..].iter().rev().copied().collect();
        assert_eq!(places[..10], left);
        // All but the outermost are called from the same place within.
        let (nest, nest_ret) = (workload.labels["nest"].0, workload.labels["nest_ret"].0);
        let callers: Vec<u64> = calls[1..10].iter().map(|call| call.caller).collect();
        if !at_return {
            assert!((nest..nest_ret).contains(&callers[0]), "{callers:x?}");
        }
        assert!(callers.iter().all(|caller| *caller == callers[0]));
        assert!(calls[10..].iter().all(|call| call.caller == 0));
        probe.detach_calls(link);
    }
}

#[test]
fn values_are_fetched_and_bad_pointers_are_said() {
    if !privileged("values_are_fetched_and_bad_pointers_are_said") {
        return;
    }
    let mut workload = Workload::start();
    let options = CallOptions {
        fetches: true,
        ..CALLS
    };
    let mut probe = attach(options, Filter::default());
    let control = ProbeControl {
        flags: PROBE_FETCHES,
        ..ON
    };
    let fetch = |kind, register, size| Fetch {
        kind,
        register,
        size,
        ..Fetch::default()
    };
    let at_exit = Fetch {
        at_exit: 1,
        ..fetch(FETCH_WORD, REGISTER_RAX, 0)
    };
    // The return address, through the stack pointer; what is around the second argument's text.
    let stack_word = Fetch {
        derefs: 1,
        ..fetch(FETCH_WORD, REGISTER_RSP, 0)
    };
    let offset = Fetch {
        offsets: [2, 0, 0],
        ..fetch(FETCH_MEMORY, REGISTER_RSI, 6)
    };
    let fetches = [
        fetch(FETCH_WORD, REGISTER_RDI, 0),
        fetch(FETCH_STRING, REGISTER_RSI, 200),
        fetch(FETCH_STRING, REGISTER_RDX, 8),
        at_exit,
        stack_word,
        offset,
        fetch(FETCH_WORD, REGISTER_RCX, 0),
        fetch(FETCH_COUNTED, REGISTER_RSI, 6),
    ];
    probe.set_probe(15, control, &fetches).unwrap();
    let sites = [
        workload.site("values", 15, EDGE_ENTER),
        workload.site("values_ret", 15, EDGE_EXIT),
    ];
    let _link = link(&mut probe, &workload, &sites);
    workload.run("values");
    let mut events = Vec::new();
    probe.drain(&mut events);
    events.sort_by_key(|event| event.at);
    let calls: Vec<Vec<(u16, Vec<u8>)>> = calls(&events).map(items).collect();
    let word = |value: u64| (ITEM_OK, value.to_ne_bytes().to_vec());
    let text = &TEXT[..TEXT.len() - 1];
    let [first, first_exit, second, second_exit] = &calls[..] else {
        panic!("{calls:?}");
    };
    assert_eq!(first[0], word(7));
    assert_eq!(first[1], (ITEM_OK, text.to_vec()));
    assert_eq!(first[2], (ITEM_BAD_MEMORY, 16_u64.to_ne_bytes().to_vec()));
    assert_eq!(first[3].0, ITEM_OK);
    assert_ne!(first[3].1, [0; 8], "a return address");
    assert_eq!(first[4], (ITEM_OK, text[2..8].to_vec()));
    assert_eq!(first[5], word(99));
    assert_eq!(first[6], (ITEM_CUT, text[..6].to_vec()));
    assert_eq!(first.len(), 7);
    assert_eq!(first_exit[..], [word(7)]);
    assert_eq!(second[1], (ITEM_CUT, vec![b'x'; 200]));
    assert_eq!(second[2], (ITEM_CUT, text[..8].to_vec()));
    assert_eq!(second[6], (ITEM_OK, vec![b'x'; 5]));
    assert_eq!(second_exit[..], [word(8)]);
}

#[test]
fn an_exit_by_a_jump_has_no_result() {
    if !privileged("an_exit_by_a_jump_has_no_result") {
        return;
    }
    let mut workload = Workload::start();
    let result = Fetch {
        at_exit: 1,
        kind: FETCH_WORD,
        register: REGISTER_RAX,
        ..Fetch::default()
    };
    let argument = Fetch {
        kind: FETCH_WORD,
        register: REGISTER_RDI,
        ..Fetch::default()
    };
    let control = ProbeControl {
        flags: PROBE_FETCHES,
        ..ON
    };
    for min_duration_ns in [0, 1] {
        let options = CallOptions {
            fetches: true,
            min_duration_ns,
            ..CALLS
        };
        let mut probe = attach(options, Filter::default());
        for number in [1, 2] {
            let fetches = [argument, result];
            probe.set_probe(number, control, &fetches).unwrap();
        }
        let sites = [
            workload.site("tail", 1, EDGE_ENTER),
            workload.site("tail_jmp", 1, EDGE_TAIL),
            workload.site("values", 2, EDGE_ENTER),
            workload.site("values_ret", 2, EDGE_EXIT),
        ];
        let _link = link(&mut probe, &workload, &sites);
        workload.run("tail 20");
        let mut events = Vec::new();
        probe.drain(&mut events);
        events.sort_by_key(|event| event.at);
        let counted = counts(&mut probe);
        for number in [1, 2] {
            assert_eq!((counted[&number].entries, counted[&number].exits), (20, 20));
        }
        let word = |value: u64| vec![(ITEM_OK, value.to_ne_bytes().to_vec())];
        let seen: Vec<_> = calls(&events)
            .map(|call| (call.probe, call.edge, items(call)))
            .collect();
        let expected: Vec<_> = (0..20)
            .flat_map(|n| match min_duration_ns {
                0 => vec![
                    (1, RawEdge::Enter, word(n)),
                    (1, RawEdge::Exit, vec![]),
                    (2, RawEdge::Enter, word(n)),
                    (2, RawEdge::Exit, word(n)),
                ],
                _ => vec![(1, RawEdge::Whole, vec![]), (2, RawEdge::Whole, word(n))],
            })
            .collect();
        assert_eq!(seen, expected);
    }
}

/// Status and payload of each item.
fn items(call: &RawCall) -> Vec<(u16, Vec<u8>)> {
    let mut rest = call.items();
    let mut items = Vec::new();
    while !rest.is_empty() {
        let number = |at: usize| u16::from_ne_bytes([rest[at], rest[at + 1]]);
        let (status, len) = (number(0), usize::from(number(2)));
        items.push((status, rest[8..8 + len].to_vec()));
        rest = &rest[8 + len.next_multiple_of(8)..];
    }
    items
}

#[test]
fn limits_leave_calls_out_whole() {
    if !privileged("limits_leave_calls_out_whole") {
        return;
    }
    let mut workload = Workload::start();
    let mut run = |options: CallOptions, command: &str, probe_name: &str| {
        let mut probe = attach(options, Filter::default());
        probe.set_probe(0, ON, &[]).unwrap();
        let sites = [
            workload.site(probe_name, 0, EDGE_ENTER),
            workload.site(&format!("{probe_name}_ret"), 0, EDGE_EXIT),
        ];
        let _link = link(&mut probe, &workload, &sites);
        let events = drain_until_done(&mut probe, &mut workload, command);
        let count = counts(&mut probe)[&0];
        let calls: Vec<RawCall> = calls(&events).cloned().collect();
        assert_eq!(count.lost, 0);
        (calls, count)
    };
    let of = |calls: &[RawCall], edge: RawEdge| -> Vec<(u64, u32)> {
        let edges = calls.iter().filter(|call| call.edge == edge);
        let mut places: Vec<_> = edges.map(|call| (call.sp, call.tid.0)).collect();
        places.sort_unstable();
        places
    };

    let deep = CallOptions {
        max_depth: 3,
        ..CALLS
    };
    let (calls, count) = run(deep, "nest 9", "nest");
    assert_eq!((count.entries, count.exits, count.left_out), (10, 10, 7));
    assert_eq!(of(&calls, RawEdge::Enter).len(), 3);
    assert_eq!(of(&calls, RawEdge::Enter), of(&calls, RawEdge::Exit));

    let rare = CallOptions {
        max_rate: 5,
        ..CALLS
    };
    let (calls, count) = run(rare, "leaf 5000 2", "leaf");
    let entered = of(&calls, RawEdge::Enter);
    assert_eq!((count.entries, count.exits), (10_000, 10_000));
    assert_eq!(count.left_out, 10_000 - entered.len() as u64);
    // Each processor's limit, for each second that this may have taken.
    assert!(
        entered.len() >= 5 && entered.len() < 200,
        "{}",
        entered.len()
    );
    assert_eq!(entered, of(&calls, RawEdge::Exit));

    let long = CallOptions {
        min_duration_ns: 1,
        callers: true,
        ..CALLS
    };
    let (calls, count) = run(long, "nest 4", "nest");
    assert_eq!((count.entries, count.exits, count.left_out), (5, 5, 0));
    assert_eq!(of(&calls, RawEdge::Whole).len(), 5);
    assert_eq!(calls.len(), 5);
    let is_whole = |call: &RawCall| call.began.0 != 0 && call.caller != 0;
    assert!(calls.iter().all(is_whole));
    // Of the calls that lasted long enough, so many.
    let both = CallOptions {
        min_duration_ns: 1,
        max_rate: 5,
        ..CALLS
    };
    let (calls, count) = run(both, "leaf 5000 2", "leaf");
    assert_eq!((count.entries, count.exits), (10_000, 10_000));
    assert!(calls.iter().all(|call| call.edge == RawEdge::Whole));
    assert!((5..200).contains(&calls.len()), "{}", calls.len());
    assert_eq!(count.left_out, 10_000 - calls.len() as u64);
    // Those that did not last do not take from what the others may have.
    let none = CallOptions {
        min_duration_ns: 1 << 40,
        max_rate: 5,
        ..CALLS
    };
    let (calls, count) = run(none, "leaf 5000 2", "leaf");
    assert_eq!((calls.len(), count.left_out), (0, 10_000));
    let never = CallOptions {
        min_duration_ns: 1 << 40,
        ..CALLS
    };
    let (calls, count) = run(never, "nest 4", "nest");
    assert_eq!((calls.len(), count.left_out), (0, 5));
    // Deeper than the kernel side follows: all that is recorded is recorded whole.
    let (calls, count) = run(
        CallOptions {
            max_depth: 1000,
            ..CALLS
        },
        "nest 99",
        "nest",
    );
    assert_eq!((count.entries, count.exits, count.left_out), (100, 100, 36));
    assert_eq!(of(&calls, RawEdge::Enter), of(&calls, RawEdge::Exit));
}

/// Threads that call a function while its probe moves.
const MOVERS: u64 = 2;

#[test]
fn a_probe_that_moves_between_links_counts_each_call_once() {
    if !privileged("a_probe_that_moves_between_links_counts_each_call_once") {
        return;
    }
    let mut workload = Workload::start();
    let mut probe = attach(CALLS, Filter::default());
    let first = workload.site("leaf", 2, EDGE_HIT);
    let site = |generation| CallSite {
        generation,
        ..first
    };
    probe.set_probe(2, ON, &[]).unwrap();
    let mut current = link(&mut probe, &workload, &[site(1)]);
    workload.send("for_ms 600");
    let mut events = Vec::new();
    for generation in 2..12 {
        let next = link(&mut probe, &workload, &[site(generation)]);
        let control = ProbeControl { generation, ..ON };
        probe.set_probe(2, control, &[]).unwrap();
        probe.detach_calls(std::mem::replace(&mut current, next));
        probe.drain(&mut events);
    }
    let called: u64 = workload.answer().parse().unwrap();
    probe.drain(&mut events);
    let count = counts(&mut probe)[&2];
    // A hit that is under way at the very moment of a turn may have been seen by neither link; by
    // both, never.
    assert!(
        (called - 10 * MOVERS..=called).contains(&count.entries),
        "{} of {called}",
        count.entries
    );
    assert_eq!(count.exits, 0);
    assert_eq!(calls(&events).count() as u64 + count.lost, count.entries);
}

#[test]
fn only_the_process_that_a_link_names_is_traced() {
    if !privileged("only_the_process_that_a_link_names_is_traced") {
        return;
    }
    let mut workload = Workload::start();
    let mut other = Workload::start();
    let mut probe = attach(CALLS, Filter::default());
    probe.set_probe(1, ON, &[]).unwrap();
    let sites = [workload.site("leaf", 1, EDGE_HIT)];
    let one = link(&mut probe, &workload, &sites);
    let before = other.bytes("leaf");
    workload.run("leaf 10 3");
    workload.run("child");
    other.run("leaf 10 3");
    assert_eq!(counts(&mut probe)[&1].entries, 30);
    // Others who map the file pay nothing.
    assert_eq!(other.bytes("leaf"), before);
    assert_ne!(workload.bytes("leaf"), before);
    probe.detach_calls(one);
    assert_eq!(workload.bytes("leaf"), before);

    // Everyone, as far as the filter wants them.
    let filter = Filter {
        pids: vec![other.pid()],
        ..Filter::default()
    };
    let options = CallOptions {
        per_process: false,
        ..CALLS
    };
    let mut probe = attach(options, filter);
    probe.set_probe(1, ON, &[]).unwrap();
    let file = workload.file.as_fd();
    let (_link, refused) = probe
        .attach_calls(CallTarget::Everyone, file, &sites)
        .unwrap();
    assert!(refused.is_empty());
    workload.run("leaf 10 3");
    other.run("leaf 10 2");
    other.run("child");
    assert_eq!(counts(&mut probe)[&1].entries, 30);
}

/// Neither reported nor slowed: whoever runs the same file has its own bytes, however many others are
/// traced. What a fork has copied goes with the first hit that concerns nobody, or stays with no report.
#[test]
fn who_is_not_traced_has_no_probe_in_its_code() {
    if !privileged("who_is_not_traced_has_no_probe_in_its_code") {
        return;
    }
    let mut stranger = Workload::start();
    let before = (stranger.bytes("leaf"), stranger.bytes("leaf_ret"));
    let mut probe = attach(CALLS, Filter::default());
    probe.set_probe(1, ON, &[]).unwrap();
    let mut traced: Vec<Workload> = Vec::new();
    for links in if emulated() {
        vec![1, 3]
    } else {
        vec![1, 10, 50]
    } {
        while traced.len() < links {
            let workload = Workload::start();
            let leaf = workload.site("leaf", 1, EDGE_ENTER);
            let at_return = CallSite {
                return_probe: true,
                ..workload.site("leaf", 1, EDGE_EXIT)
            };
            link(&mut probe, &workload, &[leaf, at_return]);
            traced.push(workload);
        }
        // One that begins when the links are there, and one that was there before.
        let mut later = Workload::start();
        stranger.run("leaf 1000 2");
        later.run("leaf 1000 2");
        for other in [&stranger, &later] {
            let now = (other.bytes("leaf"), other.bytes("leaf_ret"));
            assert_eq!(now, before, "{links} links");
        }
        assert!(traced.iter().all(|one| one.bytes("leaf") != before.0));
        assert_eq!(counts(&mut probe), BTreeMap::new(), "{links} links");
    }
    let all = traced.len() as u64;
    traced.iter_mut().for_each(|one| {
        one.run("leaf 10 1");
    });
    let count = counts(&mut probe)[&1];
    assert_eq!((count.entries, count.exits), (10 * all, 10 * all));
}

#[test]
fn places_that_the_kernel_refuses_are_named_and_the_rest_is_traced() {
    if !privileged("places_that_the_kernel_refuses_are_named_and_the_rest_is_traced") {
        return;
    }
    let mut workload = Workload::start();
    let mut probe = attach(CALLS, Filter::default());
    probe.set_probe(1, ON, &[]).unwrap();
    let beyond = CallSite {
        offset: 1 << 40,
        ..workload.site("leaf", 1, EDGE_HIT)
    };
    let forbidden = workload.site("forbidden", 1, EDGE_HIT);
    let good = workload.site("leaf", 1, EDGE_HIT);
    let sites = [forbidden, good, beyond];
    let target = CallTarget::Process(workload.pid());
    let (_link, refused) = probe
        .attach_calls(target, workload.file.as_fd(), &sites)
        .unwrap();
    let refused: Vec<(usize, String)> = refused
        .into_iter()
        .map(|(index, error)| (index, error.to_string()))
        .collect();
    assert_eq!(refused.len(), 2, "{refused:?}");
    assert_eq!((refused[0].0, refused[1].0), (0, 2));
    assert!(refused[0].1.contains("allows no probes"), "{refused:?}");
    assert!(refused[1].1.contains("0x10000000000"), "{refused:?}");
    workload.run("leaf 10 1");
    assert_eq!(counts(&mut probe)[&1].entries, 10);

    let gone = CallTarget::Process(Pid(u32::MAX >> 2));
    let error = probe.attach_calls(gone, workload.file.as_fd(), &[good]);
    assert!(error.unwrap_err().to_string().contains("has ended"));
    let error = probe.set_probe(16, ON, &[]).unwrap_err().to_string();
    assert!(error.contains("16"), "{error}");
}

/// Traces until it is killed: see the next test.
#[test]
#[ignore = "a tracer for the other tests"]
fn tracer() {
    let text = std::env::var("CALLS_TARGET").unwrap();
    let [pid, offset] = text.split(' ').collect::<Vec<_>>()[..] else {
        panic!("{text}");
    };
    let mut probe = attach(CALLS, Filter::default());
    probe.set_probe(0, ON, &[]).unwrap();
    let file = File::open(format!("/proc/{pid}/exe")).unwrap();
    let site = |edge, return_probe| CallSite {
        offset: offset.parse().unwrap(),
        probe: 0,
        site: 0,
        edge,
        generation: 1,
        return_probe,
        semaphore: None,
    };
    let target = CallTarget::Process(Pid(pid.parse().unwrap()));
    let sites = [site(EDGE_ENTER, false), site(EDGE_EXIT, true)];
    let _link = probe.attach_calls(target, file.as_fd(), &sites).unwrap();
    println!("role: attached");
    loop {
        std::thread::park();
    }
}

#[test]
fn a_tracer_that_is_killed_leaves_nothing_behind() {
    if !privileged("a_tracer_that_is_killed_leaves_nothing_behind") {
        return;
    }
    let mut workload = Workload::start();
    let before = workload.bytes("leaf");
    // While it runs, so that returns are pending.
    workload.send("for_ms 2000");
    let offset = workload.labels["leaf"].1;
    let mut tracer = own_test(module_path!(), "tracer")
        .unwrap()
        .env("CALLS_TARGET", format!("{} {offset}", workload.pid().0))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let output = BufReader::new(tracer.stdout.take().unwrap());
    let attached = output
        .lines()
        .any(|line| line.unwrap().contains("role: attached"));
    assert!(attached);
    assert_ne!(workload.bytes("leaf"), before);
    tracer.kill().unwrap();
    tracer.wait().unwrap();
    let end = Instant::now() + Duration::from_secs(10);
    while workload.bytes("leaf") != before {
        assert!(Instant::now() < end, "the probe is still there");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(workload.answer().parse::<u64>().unwrap() > 0);
    assert_eq!(workload.run("leaf 10 1"), "done");
}

#[test]
fn a_ring_that_fills_wakes_the_reader() {
    if !privileged("a_ring_that_fills_wakes_the_reader") {
        return;
    }
    let mut workload = Workload::start();
    let options = CallOptions {
        buffer_bytes: 1 << 16,
        ..CALLS
    };
    let mut probe = attach(options, Filter::default());
    probe.set_probe(0, ON, &[]).unwrap();
    let sites = [workload.site("leaf", 0, EDGE_HIT)];
    let _link = link(&mut probe, &workload, &sites);
    let mut is_woken_by = |calls: u32| {
        probe.drain(&mut Vec::new());
        workload.run(&format!("alone {calls}"));
        let mut fds = [rustix::event::PollFd::from_borrowed_fd(
            probe.wake_fd(),
            rustix::event::PollFlags::IN,
        )];
        let now = rustix::event::Timespec::default();
        rustix::event::poll(&mut fds, Some(&now)).unwrap() > 0
    };
    // A few records are no reason to wake; other processes that start or end just then are.
    assert!((0..1000).any(|_| !is_woken_by(10)));
    assert!((0..10).all(|_| is_woken_by(3000)));
}

#[test]
fn a_full_ring_counts_what_it_loses() {
    if !privileged("a_full_ring_counts_what_it_loses") {
        return;
    }
    let mut workload = Workload::start();
    let options = CallOptions {
        buffer_bytes: 1 << 16,
        ..CALLS
    };
    let mut probe = attach(options, Filter::default());
    probe.set_probe(0, ON, &[]).unwrap();
    let sites = [
        workload.site("leaf", 0, EDGE_ENTER),
        workload.site("leaf_ret", 0, EDGE_EXIT),
    ];
    let _link = link(&mut probe, &workload, &sites);
    let mut out = Vec::new();
    workload.run("alone 10000");
    probe.drain(&mut out);
    let count = counts(&mut probe)[&0];
    assert_eq!((count.entries, count.exits), (10_000, 10_000));
    assert!(count.lost > 0);
    let sent = calls(&out).count() as u64;
    assert_eq!(sent + count.lost, 20_000);
    // Each processor's next record tells of the loss, once.
    let mut after = Vec::new();
    // It takes a thread on a processor that has lost some.
    for _ in 0..100 {
        workload.run("leaf 100 2");
        probe.drain(&mut after);
        if calls(&after).any(|call| call.after_loss) {
            break;
        }
    }
    let told = calls(&after).filter(|call| call.after_loss).count();
    assert!((1..=2).contains(&told), "{told}");
    assert_eq!(calls(&out).filter(|call| call.after_loss).count(), 0);

    // A drain of a ring that was half full tells of it at once, the rest is told when it is asked for.
    let mut losses = Vec::new();
    probe.losses(profiler_probe::now(), &mut losses);
    let all = out.iter().chain(&after).chain(&losses);
    let lost: u64 = all
        .filter_map(|event| match &event.body {
            RawBody::Lost(lost) if lost.reason == LostReason::CallRingFull => Some(lost.count),
            _ => None,
        })
        .sum();
    assert_eq!(lost, count.lost);
}

#[test]
fn costs_are_measured_by_kind_of_instruction() {
    if !privileged("costs_are_measured_by_kind_of_instruction") {
        return;
    }
    let start = Instant::now();
    let costs = profiler_probe::calibrate().unwrap();
    let spent = start.elapsed();
    println!("{costs:?} in {spent:?}");
    let of = |kind| costs.entry_ns(kind);
    for kind in KINDS {
        assert!((20..1_000_000).contains(&of(kind)), "{kind:?}");
    }
    // One exception or two; an emulator's time is not about that.
    assert!(emulated() || of(InstructionKind::Nop5) < of(InstructionKind::Stepped));
    assert!(costs.is_measured() && costs.return_ns() > 0);
}

/// The program of this test, so that no process is between.
fn own_places() -> BTreeMap<&'static str, u64> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    code::addresses()
        .into_iter()
        .map(|(name, address)| (name, file_offset(&maps, address)))
        .collect()
}

#[test]
#[ignore = "a timing: cargo test --release -p profiler-tests --test probes calls::timing_of -- --ignored --nocapture --test-threads 1"]
fn timing_of_hits() {
    let places = own_places();
    let own = std::fs::File::open("/proc/self/exe").unwrap();
    let fastest_ns = |probe: &mut Probe, mut out: Option<&mut Vec<RawEvent>>| {
        (0..200)
            .map(|_| {
                let start = Instant::now();
                code::leaf(500);
                let ns = start.elapsed().as_nanos() as u64 / 500;
                let mut own = Vec::new();
                probe.drain(out.as_deref_mut().unwrap_or(&mut own));
                ns
            })
            .min()
            .unwrap()
    };
    let site = |label: &str, edge, return_probe| CallSite {
        offset: places[label],
        probe: 0,
        site: 0,
        edge,
        generation: 1,
        return_probe,
        semaphore: None,
    };
    let entry = site("leaf", EDGE_ENTER, false);
    for (name, sites) in [
        ("none", vec![]),
        ("entry (push)", vec![entry]),
        (
            "entry (push), uretprobe",
            vec![entry, site("leaf", EDGE_EXIT, true)],
        ),
        (
            "entry (push), ret",
            vec![entry, site("leaf_ret", EDGE_EXIT, false)],
        ),
    ] {
        for (how, options, flags) in [
            ("off", CALLS, PROBE_OFF),
            ("recorded", CALLS, 0),
            (
                "with the caller",
                CallOptions {
                    callers: true,
                    ..CALLS
                },
                0,
            ),
            (
                "with three words",
                CallOptions {
                    fetches: true,
                    ..CALLS
                },
                PROBE_FETCHES,
            ),
            (
                "depth limited",
                CallOptions {
                    max_depth: 9,
                    ..CALLS
                },
                0,
            ),
        ] {
            let mut probe = attach(options, Filter::default());
            let word = |register| Fetch {
                kind: FETCH_WORD,
                register,
                ..Fetch::default()
            };
            let words = [REGISTER_RDI, REGISTER_RSI, REGISTER_RDX].map(word);
            let fetches = if flags == PROBE_FETCHES {
                &words[..]
            } else {
                &[]
            };
            probe
                .set_probe(0, ProbeControl { flags, ..ON }, fetches)
                .unwrap();
            let target = CallTarget::Process(Pid(std::process::id()));
            let (_link, refused) = probe.attach_calls(target, own.as_fd(), &sites).unwrap();
            assert!(refused.is_empty());
            println!("{name}, {how}: {} ns", fastest_ns(&mut probe, None));
        }
    }
}

/// What a call costs who is traced and who is not, by how many processes that run the same file are.
#[test]
#[ignore = "a timing: cargo test --release -p profiler-tests --test probes calls::timing_of -- --ignored --nocapture --test-threads 1"]
fn timing_of_crowds() {
    let mut stranger = Workload::start();
    let mut probe = attach(CALLS, Filter::default());
    probe.set_probe(1, ON, &[]).unwrap();
    let mut traced: Vec<Workload> = Vec::new();
    // The best of several rounds, out of the calls in a fixed time.
    let call_ns = |workload: &mut Workload, probe: &mut Probe| {
        let rounds = (0..10).map(|_| {
            let calls: f64 = workload.run("for_ms 50").parse().unwrap();
            probe.drain(&mut Vec::new());
            50e6 / calls
        });
        rounds.fold(f64::MAX, f64::min)
    };
    for links in [0, 1, 10, 50, 200] {
        while traced.len() < links {
            let workload = Workload::start();
            let site = workload.site("leaf", 1, EDGE_HIT);
            link(&mut probe, &workload, &[site]);
            traced.push(workload);
        }
        let other = call_ns(&mut stranger, &mut probe);
        let own = traced.first_mut().map(|one| call_ns(one, &mut probe));
        println!("{links} links: a stranger's call {other:.1} ns, a traced one {own:.0?} ns");
    }
    let file = stranger.file.as_fd();
    let site = [stranger.site("leaf", 1, EDGE_HIT)];
    let filter = Filter {
        pids: vec![Pid(std::process::id())],
        ..Filter::default()
    };
    let options = CallOptions {
        per_process: false,
        ..CALLS
    };
    drop(probe);
    let mut probe = attach(options, filter);
    probe.set_probe(1, ON, &[]).unwrap();
    let target = CallTarget::Everyone;
    let (_link, _) = probe.attach_calls(target, file, &site).unwrap();
    let other = call_ns(&mut stranger, &mut probe);
    println!("one link for all: a stranger's call {other:.0} ns");
}

#[test]
#[ignore = "a timing: cargo test --release -p profiler-tests --test probes calls::timing_of -- --ignored --nocapture --test-threads 1"]
fn timing_of_links() {
    // A file with as many places as are wanted, mapped as code.
    const MOST: usize = 10_000;
    let path = std::env::temp_dir().join(format!("profiler-places-{}", std::process::id()));
    let mut bytes = vec![0x90; MOST * 16];
    for place in bytes.chunks_mut(16) {
        place[..2].copy_from_slice(&[0x55, 0xc3]);
    }
    std::fs::write(&path, &bytes).unwrap();
    let file = File::open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let _mapping = code::map_code(&file, bytes.len());
    for count in [1, 500, MOST] {
        let mut best: [Duration; 3] = [Duration::MAX; 3];
        for _ in 0..5 {
            let options = CallOptions {
                max_probes: MOST as u32,
                ..CALLS
            };
            let mut probe = attach(options, Filter::default());
            let sites: Vec<CallSite> = (0..count)
                .map(|index| CallSite {
                    offset: index as u64 * 16,
                    probe: index as u32,
                    site: 0,
                    edge: EDGE_HIT,
                    generation: 1,
                    return_probe: false,
                    semaphore: None,
                })
                .collect();
            let controls: Vec<(u32, ProbeControl, &[Fetch])> = (0..count as u32)
                .map(|probe| (probe, ON, &[][..]))
                .collect();
            let mut time = Instant::now();
            let mut lap = || std::mem::replace(&mut time, Instant::now()).elapsed();
            probe.set_probes(&controls).unwrap();
            let set = lap();
            let target = CallTarget::Process(Pid(std::process::id()));
            let (link, refused) = probe.attach_calls(target, file.as_fd(), &sites).unwrap();
            let attached = lap();
            probe.detach_calls(link);
            let detached = lap();
            assert!(refused.is_empty());
            let start = Instant::now();
            probe.call_counts(&mut Vec::new());
            println!("{count} places: counts read in {:?}", start.elapsed());
            for (best, this) in best.iter_mut().zip([set, attached, detached]) {
                *best = this.min(*best);
            }
        }
        let [set, attached, detached] = best;
        println!("{count} places: set {set:?}, attach {attached:?}, detach {detached:?}");
    }
}

#[test]
#[ignore = "a timing: cargo test --release -p profiler-tests --test probes calls::timing_of -- --ignored --nocapture --test-threads 1"]
fn timing_of_decoding() {
    let mut head = Vec::new();
    head.extend(1_000_u64.to_ne_bytes());
    head.extend(2_000_u64.to_ne_bytes());
    for value in [10, 11, 77 | EDGE_EXIT << 24, 0_u32] {
        head.extend(value.to_ne_bytes());
    }
    let mut out = Vec::with_capacity(1_000_000);
    let mut decoder = profiler_model::decode::Decoder::default();
    for _ in 0..3 {
        out.clear();
        let start = Instant::now();
        for _ in 0..1_000_000 {
            let copy = |_: &[u8]| panic!("there are no items");
            decoder.call(profiler_model::Cpu(0), &head, copy, &mut out);
        }
        println!("1 M records decoded in {:?}", start.elapsed());
    }
    assert_eq!(out.len(), 1_000_000);
}
