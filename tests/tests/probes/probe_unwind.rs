//! Walks of user stacks by tables, on the kernel side, against the real kernel: known chains, whole or
//! cut, and tables that change meanwhile.
//!
//! The oracle is exact: a process spins at the end of calls that are written in assembly, none of
//! which has a frame pointer, so every sample of it has the same known chain. Tables are made by hand.
//! Needs root; says what it skips without.

// Failing is what tests do.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::{
    fs,
    os::fd::AsFd,
    time::{Duration, Instant},
};

use crate::probe_shared::stacks::{self, Code};
use crate::probe_shared::statistics::{Statistics, run_times};
use crate::probe_shared::*;

use profiler_common::{
    call::{EDGE_EXIT, ProbeControl},
    sample::LEFT_OUT,
    unwind::{COPY_BYTES, MAX_MAPPINGS, MAX_PROCESSES, Rule},
};
use profiler_model::{
    LostReason, Pid, StackEnd,
    raw::{RawBody, RawEvent, RawSample},
};
use profiler_probe::{
    CallOptions, CallSite, CallTarget, KernelTables, MappedCode, NoRoom, Probe, ProbeOptions, Rate,
    Slot, SourceSpec, UnwindOptions,
};
use profiler_target::Filter;
use profiler_tests::skip::{emulated, privileged};
use profiler_unwind::{
    Builder, Entry, Table,
    walk::{Code as Mapped, Place, StackCopy, Start, walk},
};

fn options(pid: u32) -> ProbeOptions {
    ProbeOptions {
        sources: vec![SourceSpec {
            event: "cpu-clock".parse().unwrap(),
            rate: Rate::FrequencyHz(if emulated() { 199 } else { 4999 }),
        }],
        hierarchy: None,
        filter: Filter {
            pids: vec![Pid(pid)],
            ..Filter::default()
        },
        buffer_bytes: 32 << 20,
        kernel_stacks: false,
        user_stacks: true,
        unwind: Some(UnwindOptions {
            memory_bytes: 64 << 20,
            copies_per_second: 0,
            deep_frames_per_second: u32::MAX,
        }),
        kernel_log: false,
        off_cpu: false,
        adjustable: false,
        calls: None,
    }
}

/// Runs as a workload: see `Workload::start`.
#[test]
#[ignore = "a workload of the other tests"]
fn role() {
    let role = std::env::var("PROBE_ROLE").unwrap();
    let (name, depth) = role.rsplit_once(' ').unwrap();
    println!("role: {}", Code::here().line());
    wait_for_go();
    stacks::enter(name, depth.parse().unwrap());
}

/// A workload and where its code is.
struct Spinner {
    workload: Workload,
    code: Code,
}

impl Spinner {
    /// Starts a role, which runs at once.
    fn start(role: &str, depth: usize) -> Spinner {
        let mut spinner = Spinner::start_halted(role, depth);
        spinner.workload.go();
        spinner
    }

    fn start_halted(role: &str, depth: usize) -> Spinner {
        let workload = Workload::start(module_path!(), &format!("{role} {depth}"));
        let code = Code::parse(&workload.line);
        Spinner { workload, code }
    }

    fn options(&self) -> ProbeOptions {
        options(self.workload.pid())
    }

    fn pid(&self) -> Pid {
        Pid(self.workload.pid())
    }

    /// All of its code.
    fn mapping(&self, slot: Slot) -> MappedCode {
        MappedCode {
            start: self.code.bottom,
            end: self.code.end,
            address: self.code.bottom,
            slot: Some(slot),
        }
    }

    fn map(&self, probe: &mut Probe, mappings: &[MappedCode]) {
        let unwinder = probe.unwinder().unwrap();
        unwinder.set_process(self.pid(), mappings).unwrap();
    }

    /// Has walks of its stack use its table.
    fn load(&self, probe: &mut Probe) -> Slot {
        let unwinder = probe.unwinder().unwrap();
        let slot = unwinder.reserve().unwrap();
        unwinder.load(slot, &self.code.table()).unwrap();
        self.map(probe, &[self.mapping(slot)]);
        slot
    }

    /// Its samples of a while, once it is where it belongs: by its own time, whoever else runs.
    fn events(&self, probe: &mut Probe) -> Vec<RawEvent> {
        let ran = Duration::from_millis(if emulated() { 1500 } else { 150 });
        self.record(probe, ran / 3);
        self.record(probe, ran)
    }

    /// Drains until it has run for so long.
    fn record(&self, probe: &mut Probe, ran: Duration) -> Vec<RawEvent> {
        let end = Instant::now() + Duration::from_secs(60);
        let until_ns = self.workload.cpu_ns() + ran.as_nanos() as u64;
        let mut events = Vec::new();
        while self.workload.cpu_ns() < until_ns {
            assert!(Instant::now() < end, "the workload does not run");
            events.extend(record(probe, Duration::from_millis(20)));
        }
        events
    }

    fn samples<'a>(&self, events: &'a [RawEvent]) -> Vec<&'a RawSample> {
        let samples = samples(events).map(|(_, sample)| sample);
        let samples: Vec<_> = samples.filter(|sample| sample.pid == self.pid()).collect();
        assert!(samples.len() > 20, "{} samples", samples.len());
        samples
    }

    /// All its samples must have this stack.
    fn expect(&self, probe: &mut Probe, stack: &[u64], end: StackEnd) {
        let events = self.events(probe);
        for sample in self.samples(&events) {
            assert_eq!(addresses(sample), stack, "{:x?}", self.code);
            assert_eq!(sample.user.end, end);
        }
    }
}

fn addresses(sample: &RawSample) -> Vec<u64> {
    sample.user.addresses().collect()
}

#[test]
fn known_chains_are_found_whole() {
    if !privileged("known_chains_are_found_whole") {
        return;
    }
    for depth in [1, 2, 30, 126, 127] {
        let spinner = Spinner::start("recursion", depth);
        let mut probe = Probe::attach(spinner.options()).unwrap();
        spinner.load(&mut probe);
        let expected = spinner.code.stack("recursion", depth);
        spinner.expect(&mut probe, &expected, StackEnd::Complete);
        let counters = probe.unwinder().unwrap().counters();
        assert!(counters.walks > 20 && counters.frames >= 20 * expected.len() as u64);
        assert_eq!((counters.changed, counters.copies_refused), (0, 0));
    }
}

/// For stacks that take long to be walked.
fn seldom(spinner: &Spinner) -> ProbeOptions {
    let mut options = spinner.options();
    options.sources[0].rate = Rate::FrequencyHz(if emulated() { 29 } else { 499 });
    options
}

#[test]
fn of_deep_stacks_both_ends_are_kept() {
    if !privileged("of_deep_stacks_both_ends_are_kept") {
        return;
    }
    // So many frames are there beside the recursion.
    let beside = Spinner::start("recursion", 1);
    let beside = beside.code.stack("recursion", 1).len() - 1;
    for frames in [
        128, 200, 510, 511, 512, 513, 639, 640, 1000, 2032, 2033, 2500,
    ] {
        let depth = frames - beside;
        let spinner = Spinner::start("recursion", depth);
        let mut probe = Probe::attach(seldom(&spinner)).unwrap();
        spinner.load(&mut probe);
        let whole = spinner.code.stack("recursion", depth);
        assert_eq!(whole.len(), frames);
        let (expected, end) = match frames {
            ..=511 => (whole, StackEnd::Complete),
            512..=2032 => {
                let (inner, outer) = (&whole[..384], &whole[frames - 127..]);
                ([inner, &[LEFT_OUT], outer].concat(), StackEnd::LeftOut)
            }
            _ => (whole[..384].to_vec(), StackEnd::Truncated),
        };
        spinner.expect(&mut probe, &expected, end);
        let counters = probe.unwinder().unwrap().counters();
        assert_eq!((counters.changed, counters.refused), (0, 0));
    }
}

#[test]
fn frames_of_deep_stacks_are_limited_and_what_is_refused_is_counted() {
    if !privileged("frames_of_deep_stacks_are_limited_and_what_is_refused_is_counted") {
        return;
    }
    const DEPTH: usize = 300;
    let spinner = Spinner::start("recursion", DEPTH);
    let whole = spinner.code.stack("recursion", DEPTH);
    let beyond = whole.len() as u64 - 127;
    for stacks_per_second in [0, 3] {
        let mut options = seldom(&spinner);
        let limit = stacks_per_second * beyond;
        options.unwind.as_mut().unwrap().deep_frames_per_second = limit as u32;
        let mut probe = Probe::attach(options).unwrap();
        let began = Instant::now();
        spinner.load(&mut probe);
        // Those of before are without the table.
        record(&mut probe, Duration::from_millis(500));
        let mut events = record(&mut probe, Duration::from_millis(2500));
        for _ in 0..20 {
            if samples(&events).count() > 20 {
                break;
            }
            events.extend(record(&mut probe, Duration::from_millis(500)));
        }
        let seconds = began.elapsed().as_secs() + 2;
        let (mut deep, mut cut) = (0, 0);
        for sample in spinner.samples(&events) {
            match sample.user.end {
                StackEnd::Complete => {
                    assert_eq!(addresses(sample), whole);
                    deep += 1;
                }
                end => {
                    assert_eq!(
                        (end, &*addresses(sample)),
                        (StackEnd::Truncated, &whole[..127])
                    );
                    cut += 1;
                }
            }
        }
        let cpus = std::thread::available_parallelism().unwrap().get() as u64;
        assert!(deep <= stacks_per_second * cpus * seconds, "{deep} stacks");
        assert_eq!(deep > 0, stacks_per_second > 0);
        let counters = probe.unwinder().unwrap().counters();
        assert!(cut > 0 && counters.refused >= cut);
    }
}

#[test]
fn what_a_signal_interrupted_is_exact() {
    if !privileged("what_a_signal_interrupted_is_exact") {
        return;
    }
    let spinner = Spinner::start("signal", 7);
    let mut probe = Probe::attach(spinner.options()).unwrap();
    spinner.load(&mut probe);
    let expected = spinner.code.stack("signal", 7);
    spinner.expect(&mut probe, &expected, StackEnd::Complete);
}

#[test]
fn registers_are_known_in_the_kernel_as_well() {
    if !privileged("registers_are_known_in_the_kernel_as_well") {
        return;
    }
    let spinner = Spinner::start("system calls", 5);
    let mut options = spinner.options();
    options.sources = vec![SourceSpec {
        event: "raw_syscalls:sys_enter".parse().unwrap(),
        rate: Rate::Period(1000),
    }];
    options.kernel_stacks = true;
    let mut probe = Probe::attach(options).unwrap();
    spinner.load(&mut probe);
    let expected = spinner.code.stack("system calls", 5);
    spinner.expect(&mut probe, &expected, StackEnd::Complete);
}

#[test]
fn frame_pointers_and_tables_are_mixed() {
    if !privileged("frame_pointers_and_tables_are_mixed") {
        return;
    }
    let spinner = Spinner::start("frame pointer", 9);
    let mut probe = Probe::attach(spinner.options()).unwrap();
    let expected = spinner.code.stack("frame pointer", 9);
    // A table that says nothing about the function.
    let slot = spinner.load(&mut probe);
    spinner.expect(&mut probe, &expected, StackEnd::Complete);
    // A file without a table, and no file at all.
    let unwinder = probe.unwinder().unwrap();
    let none = unwinder.reserve().unwrap();
    unwinder.load_none(none);
    for framed in [Some(none), None] {
        let whole = spinner.mapping(slot);
        let mappings = [
            MappedCode {
                end: spinner.code.framed,
                ..whole
            },
            MappedCode {
                start: spinner.code.framed,
                address: 0,
                slot: framed,
                ..whole
            },
        ];
        spinner.map(&mut probe, &mappings);
        spinner.expect(&mut probe, &expected, StackEnd::Complete);
    }
}

#[test]
fn a_frame_pointer_that_is_none_ends_the_stack() {
    if !privileged("a_frame_pointer_that_is_none_ends_the_stack") {
        return;
    }
    let spinner = Spinner::start("recursion", 3);
    let mut probe = Probe::attach(spinner.options()).unwrap();
    let slot = spinner.load(&mut probe);
    let whole = spinner.mapping(slot);
    let leaf_is = |slot: Option<Slot>| {
        [
            MappedCode {
                end: spinner.code.spin,
                ..whole
            },
            MappedCode {
                start: spinner.code.spin,
                slot,
                ..whole
            },
        ]
    };
    let none = probe.unwinder().unwrap().reserve().unwrap();
    let only_leaf = [spinner.code.spin];
    spinner.map(&mut probe, &leaf_is(None));
    spinner.expect(&mut probe, &only_leaf, StackEnd::Jit);
    spinner.map(&mut probe, &leaf_is(Some(none)));
    spinner.expect(&mut probe, &only_leaf, StackEnd::NoTable);
    probe.unwinder().unwrap().load_none(none);
    spinner.expect(&mut probe, &only_leaf, StackEnd::NoRule);
    spinner.map(&mut probe, &leaf_is(None)[..1]);
    spinner.expect(&mut probe, &only_leaf, StackEnd::NoMapping);
    // The leaf alone: its caller is in no mapping.
    let leaf = MappedCode {
        start: spinner.code.spin,
        address: spinner.code.spin,
        ..whole
    };
    spinner.map(&mut probe, &[leaf]);
    let two = &spinner.code.stack("recursion", 3)[..2];
    spinner.expect(&mut probe, two, StackEnd::NoMapping);
    probe.unwinder().unwrap().forget_process(spinner.pid());
    spinner.expect(&mut probe, &only_leaf, StackEnd::NoTable);
}

/// What is mapped in a process with one table.
struct OneTable(Code, Table);

impl Mapped for OneTable {
    fn at(&self, address: u64) -> Place<'_> {
        if (self.0.bottom..self.0.end).contains(&address) {
            Place::Table(&self.1, address)
        } else {
            Place::Unmapped
        }
    }
}

#[test]
fn a_stack_is_copied_where_there_is_no_table() {
    if !privileged("a_stack_is_copied_where_there_is_no_table") {
        return;
    }
    const COPIES: u32 = 100_000;
    // Near to the end of its stack, and far from it.
    for (depth, mapped) in [(30, true), (30, false), (120, true)] {
        let spinner = Spinner::start("recursion", depth);
        let mut options = spinner.options();
        options.unwind.as_mut().unwrap().copies_per_second = COPIES;
        let mut probe = Probe::attach(options).unwrap();
        if mapped {
            let absent = probe.unwinder().unwrap().reserve().unwrap();
            spinner.map(&mut probe, &[spinner.mapping(absent)]);
        }
        let code = OneTable(spinner.code, spinner.code.table());
        let events = spinner.events(&mut probe);
        let mut refused = 0;
        for sample in spinner.samples(&events) {
            // Nobody reads for so long that the ring buffer fills: what is left of it is for samples.
            let Some(copy) = &sample.copy else {
                assert_eq!(addresses(sample).len(), 1);
                refused += 1;
                continue;
            };
            assert_eq!(
                (addresses(sample).len(), sample.user.end),
                (0, StackEnd::NoTable)
            );
            // To the end of the stack, if that is nearer.
            assert!((8192..=COPY_BYTES).contains(&copy.bytes.len()));
            let start = Start::from(&copy.head);
            let stack = StackCopy {
                address: start.registers[7],
                absent: copy.head.absent,
                bytes: &copy.bytes,
            };
            let walked = walk(&start, &[], &code, &stack);
            let expected = spinner.code.stack("recursion", depth);
            assert_eq!(walked.addresses, expected);
            assert_eq!(walked.end, 0);
        }
        let counters = probe.unwinder().unwrap().counters();
        assert!(counters.copies > 20);
        assert!(counters.copies_refused >= refused);
        let lost = |event: &&RawEvent| matches!(&event.body, RawBody::Lost(lost) if lost.reason == LostReason::RingFull);
        assert_eq!(events.iter().filter(lost).count(), 0);
    }
}

#[test]
fn copies_are_limited_and_what_is_refused_is_counted() {
    if !privileged("copies_are_limited_and_what_is_refused_is_counted") {
        return;
    }
    let spinner = Spinner::start("recursion", 4);
    let mut options = spinner.options();
    options.unwind.as_mut().unwrap().copies_per_second = 5;
    let mut probe = Probe::attach(options).unwrap();
    let began = Instant::now();
    let events = record(&mut probe, Duration::from_millis(2500));
    let seconds = began.elapsed().as_secs() + 2;
    let (copied, not): (Vec<_>, Vec<_>) = spinner
        .samples(&events)
        .into_iter()
        .partition(|sample| sample.copy.is_some());
    let cpus = std::thread::available_parallelism().unwrap().get() as u64;
    assert!(!copied.is_empty() && copied.len() as u64 <= 5 * cpus * seconds);
    assert!(
        not.iter()
            .all(|sample| addresses(sample) == [spinner.code.spin])
    );
    let counters = probe.unwinder().unwrap().counters();
    assert!(counters.copies >= copied.len() as u64 && counters.copies <= 5 * cpus * seconds);
    assert!(counters.copies_refused >= not.len() as u64);
}

#[test]
fn probed_calls_return_to_where_they_really_do() {
    if !privileged("probed_calls_return_to_where_they_really_do") {
        return;
    }
    for (role, depth) in [("recursion", 30), ("returns", 3)] {
        let mut spinner = Spinner::start_halted(role, depth);
        let mut options = spinner.options();
        options.calls = Some(CallOptions {
            max_probes: 1,
            buffer_bytes: 1 << 20,
            fetches: false,
            callers: false,
            per_process: true,
            min_duration_ns: 0,
            max_depth: 0,
            max_rate: 0,
        });
        let mut probe = Probe::attach(options).unwrap();
        spinner.load(&mut probe);
        let control = ProbeControl {
            generation: 1,
            ..ProbeControl::default()
        };
        probe.set_probe(0, control, &[]).unwrap();
        let function = match role {
            "recursion" => spinner.code.recurse,
            _ => spinner.code.returning,
        };
        let site = CallSite {
            offset: file_offset(spinner.pid(), function),
            probe: 0,
            site: 0,
            edge: EDGE_EXIT,
            generation: 1,
            return_probe: true,
            semaphore: None,
        };
        let file = fs::File::open(std::env::current_exe().unwrap()).unwrap();
        let target = CallTarget::Process(spinner.pid());
        let (_link, refused) = probe.attach_calls(target, file.as_fd(), &[site]).unwrap();
        assert!(refused.is_empty());
        spinner.workload.go();
        if role == "recursion" {
            let expected = spinner.code.stack(role, depth);
            spinner.expect(&mut probe, &expected, StackEnd::Complete);
            continue;
        }
        let events = spinner.events(&mut probe);
        let code = spinner.code;
        let mut callers = code.stack("recursion", depth);
        callers.remove(0);
        let in_loop = code.return_..code.frame_end;
        let samples = spinner.samples(&events);
        let mut torn = 0;
        for sample in &samples {
            let stack = addresses(sample);
            let own = stack.strip_suffix(&callers[..]);
            let is_right = match own {
                Some([leaf]) => in_loop.contains(leaf),
                Some([leaf, caller]) => {
                    (code.returning..code.returning_end).contains(leaf)
                        && *caller == code.return_ + 5
                }
                _ => false,
            };
            // In between, the kernel is about to note a call or its return, and user space is in neither
            // state. A stack that looks like a whole one then has a wrong leaf, no wrong caller.
            let is_whole = sample.user.end == StackEnd::Complete;
            assert!(is_right || !is_whole || own.is_some(), "{stack:x?}");
            torn += usize::from(!is_right);
        }
        println!("{torn} of {} in between", samples.len());
        // It does little else than being caught.
        assert!(torn * 8 < samples.len());
    }
}

/// Where an address of a process is in its file.
fn file_offset(pid: Pid, address: u64) -> u64 {
    let maps = fs::read_to_string(format!("/proc/{}/maps", pid.0)).unwrap();
    let offset = maps.lines().find_map(|line| {
        let mut fields = line.split(' ');
        let (start, end) = fields.next()?.split_once('-')?;
        let [start, end, offset] =
            [start, end, fields.nth(1)?].map(|field| u64::from_str_radix(field, 16).unwrap());
        (start..end)
            .contains(&address)
            .then_some(address - start + offset)
    });
    offset.unwrap()
}

#[test]
fn tables_that_come_and_go_give_no_wrong_frame() {
    if !privileged("tables_that_come_and_go_give_no_wrong_frame") {
        return;
    }
    let spinner = Spinner::start("recursion", 40);
    let mut probe = Probe::attach(spinner.options()).unwrap();
    let slot = spinner.load(&mut probe);
    let other = probe.unwinder().unwrap().reserve().unwrap();
    let (right, wrong) = (spinner.code.table(), spinner.code.shifted_table(64));
    let expected = spinner.code.stack("recursion", 40);
    spinner.events(&mut probe);
    let end = Instant::now() + Duration::from_secs(if emulated() { 10 } else { 5 });
    let (mut whole, mut cut, mut loads) = (0, 0, 0);
    while Instant::now() < end {
        let mut events = Vec::new();
        for _ in 0..if emulated() { 10 } else { 200 } {
            let unwinder = probe.unwinder().unwrap();
            // What becomes free is used for what would be wrong here.
            unwinder.evict(slot);
            unwinder.collect();
            unwinder.load(other, &wrong).unwrap();
            unwinder.load(slot, &right).unwrap();
            let mapping = spinner.mapping(slot);
            spinner.map(&mut probe, &[mapping]);
            loads += 2;
        }
        probe.drain(&mut events);
        for (_, sample) in samples(&events).filter(|(_, sample)| sample.pid == spinner.pid()) {
            let stack = addresses(sample);
            match sample.user.end {
                StackEnd::Complete => {
                    assert_eq!(stack, expected);
                    whole += 1;
                }
                StackEnd::NoTable => {
                    assert_eq!(stack, expected[..stack.len()]);
                    cut += 1;
                }
                end => panic!("{end:?} {stack:x?}"),
            }
        }
    }
    println!("{whole} whole, {cut} without a table, {loads} loads");
    assert!(whole > 20 && cut > 0 && loads > 100);
    assert_eq!(probe.unwinder().unwrap().rules(), 6 + 5);
}

/// A table with as many rows as a page has bytes.
fn large_table(pages: u64) -> Table {
    let mut builder = Builder::default();
    for address in 0..pages << 12 {
        builder.push(address, entry(8 + 8 * (address & 1) as i32));
    }
    builder.push(pages << 12, Entry::None);
    builder.finish().unwrap()
}

fn entry(cfa_offset: i32) -> Entry {
    Entry::Rule(Rule {
        cfa_offset,
        register: 7,
        ra_offset: -1,
        ..Rule::default()
    })
}

/// Waits until what was taken out is free.
fn collect(probe: &mut Probe) {
    for _ in 0..4 {
        probe.unwinder().unwrap().collect();
        std::thread::sleep(Duration::from_millis(if emulated() { 1000 } else { 100 }));
    }
}

#[test]
fn memory_stays_below_its_limit() {
    if !privileged("memory_stays_below_its_limit") {
        return;
    }
    const LIMIT: u64 = 24 << 20;
    let spinner = Spinner::start("recursion", 3);
    let mut options = spinner.options();
    options.unwind.as_mut().unwrap().memory_bytes = LIMIT;
    let mut probe = Probe::attach(options).unwrap();
    spinner.load(&mut probe);
    let expected = spinner.code.stack("recursion", 3);
    let table = large_table(100);
    let mut counts = Vec::new();
    for _ in 0..2 {
        let mut slots = Vec::new();
        loop {
            let unwinder = probe.unwinder().unwrap();
            let slot = unwinder.reserve().unwrap();
            slots.push(slot);
            if unwinder.load(slot, &table) == Err(NoRoom) {
                break;
            }
        }
        counts.push(slots.len());
        assert!(probe.unwinder().unwrap().memory_bytes() <= LIMIT);
        assert!(probe.memory_bytes() > probe.unwinder().unwrap().memory_bytes());
        spinner.expect(&mut probe, &expected, StackEnd::Complete);
        for slot in slots {
            probe.unwinder().unwrap().release(slot);
        }
        collect(&mut probe);
    }
    // 821,120 bytes each.
    assert_eq!(counts[0], counts[1], "all room came back");
    assert!((8..30).contains(&counts[0]), "{counts:?}");
}

#[test]
fn forty_thousand_processes_and_a_full_list() {
    if !privileged("forty_thousand_processes_and_a_full_list") {
        return;
    }
    let spinner = Spinner::start("recursion", 12);
    let mut probe = Probe::attach(spinner.options()).unwrap();
    let slot = spinner.load(&mut probe);
    let whole = spinner.mapping(slot);
    let expected = spinner.code.stack("recursion", 12);
    // Among as many others as there may be, at the beginning, in the middle, and at the end.
    for before in [0, 3000, MAX_MAPPINGS as u64 - 1] {
        let at = |start: u64| MappedCode {
            start,
            end: start + 4096,
            ..whole
        };
        let mut mappings: Vec<_> = (0..before).map(|index| at((1 + index) << 13)).collect();
        mappings.push(whole);
        let behind = MAX_MAPPINGS as u64 - 1 - before;
        mappings.extend((0..behind).map(|index| at(whole.end + ((1 + index) << 13))));
        assert_eq!(mappings.len(), MAX_MAPPINGS as usize);
        spinner.map(&mut probe, &mappings);
        spinner.expect(&mut probe, &expected, StackEnd::Complete);
    }
    spinner.map(&mut probe, &[whole]);
    // Beyond the ids that there are.
    let pids = || (10_000_000..10_040_000).map(Pid);
    let unwinder = probe.unwinder().unwrap();
    let refused = pids().filter(|pid| unwinder.set_process(*pid, &[whole]) == Err(NoRoom));
    assert_eq!(refused.count(), 40_001 - MAX_PROCESSES as usize);
    let bytes = unwinder.memory_bytes();
    spinner.expect(&mut probe, &expected, StackEnd::Complete);
    for _ in 0..3 {
        let unwinder = probe.unwinder().unwrap();
        pids().for_each(|pid| unwinder.forget_process(pid));
        collect(&mut probe);
        let unwinder = probe.unwinder().unwrap();
        for pid in pids().take(30_000) {
            unwinder.set_process(pid, &[whole]).unwrap();
        }
        assert_eq!(unwinder.memory_bytes(), bytes);
    }
    spinner.expect(&mut probe, &expected, StackEnd::Complete);
}

#[test]
fn tables_are_used_when_walks_meet_them() {
    if !privileged("tables_are_used_when_walks_meet_them") {
        return;
    }
    let spinner = Spinner::start("recursion", 3);
    let mut probe = Probe::attach(spinner.options()).unwrap();
    let unwinder = probe.unwinder().unwrap();
    let idle = unwinder.reserve().unwrap();
    unwinder.load(idle, &spinner.code.table()).unwrap();
    // A use is noted once a second, and the first may come as soon as it is loaded.
    let before = profiler_probe::now();
    let slot = spinner.load(&mut probe);
    spinner.events(&mut probe);
    let unwinder = probe.unwinder().unwrap();
    assert_eq!(unwinder.used(idle).0, 0);
    assert!(unwinder.used(slot) > before);
}

#[test]
fn without_tables_stacks_are_walked_as_before() {
    if !privileged("without_tables_stacks_are_walked_as_before") {
        return;
    }
    let spinner = Spinner::start("frame pointer", 1);
    let mut options = spinner.options();
    options.unwind = None;
    let mut probe = Probe::attach(options).unwrap();
    assert!(probe.unwinder().is_none());
    let events = spinner.events(&mut probe);
    for sample in spinner.samples(&events) {
        // The leaf has no frame of its own: its caller is missing.
        let stack = addresses(sample);
        assert_eq!(
            stack[..2],
            [spinner.code.inner_1, spinner.code.frame_return]
        );
        assert_eq!(sample.user.end, StackEnd::FramePointer);
    }
}

/// Nanoseconds of the kernel for a sample, by the kernel's own statistics.
#[test]
#[ignore = "a timing: cargo test -p profiler-tests --test probes probe_unwind::timing_of -- --ignored --nocapture"]
fn timing_of_walks() {
    if !privileged("timing_of_walks") {
        return;
    }
    let _statistics = Statistics::enable();
    for depth in [1, 10, 30, 60, 126] {
        let spinner = Spinner::start("recursion", depth);
        for way in ["no stack", "frame pointers", "tables", "copy"] {
            let mut options = spinner.options();
            options.user_stacks = way != "no stack";
            options.unwind = options.unwind.filter(|_| way != "frame pointers");
            if let Some(unwind) = &mut options.unwind {
                unwind.copies_per_second = 1_000_000;
            }
            let mut probe = Probe::attach(options).unwrap();
            if way == "tables" {
                spinner.load(&mut probe);
            }
            let mut rounds = Vec::new();
            for _ in 0..7 {
                record(&mut probe, Duration::from_millis(50));
                let (before_ns, before) = run_times();
                let sent =
                    |probe: &Probe| -> u64 { probe.counters()[0].iter().map(|cpu| cpu.sent).sum() };
                let sent_before = sent(&probe);
                record(&mut probe, Duration::from_millis(300));
                let (after_ns, after) = run_times();
                let samples = (sent(&probe) - sent_before) as f64;
                // What other threads cost is known from a run without stacks.
                let others = (after - before) as f64 - samples;
                rounds.push(((after_ns - before_ns) as f64 - others * 150.0) / samples);
            }
            rounds.sort_by(f64::total_cmp);
            println!(
                "{depth} calls, {way}: {:.0} ns (least {:.0}) a sample",
                rounds[3], rounds[0]
            );
        }
    }
}

/// How long user space takes to load tables and lists of mappings.
#[test]
#[ignore = "a timing: cargo test -p profiler-tests --test probes probe_unwind::timing_of -- --ignored --nocapture"]
fn timing_of_loads() {
    if !privileged("timing_of_loads") {
        return;
    }
    let mut probe = Probe::attach(options(1)).unwrap();
    let unwinder = probe.unwinder().unwrap();
    let table = large_table(1000);
    let slot = unwinder.reserve().unwrap();
    let began = Instant::now();
    unwinder.load(slot, &table).unwrap();
    let rows = table.rows.len() as f64;
    let ns = began.elapsed().as_nanos() as f64;
    println!("{rows} rows: {:.1} ns a row", ns / rows);
    let began = Instant::now();
    let mapping = MappedCode {
        start: 0x1000,
        end: 0x2000,
        address: 0,
        slot: Some(slot),
    };
    for pid in 0..1000 {
        let pid = Pid(10_000_000 + pid);
        unwinder.set_process(pid, &[mapping; 20]).unwrap();
    }
    println!("1,000 processes: {:?}", began.elapsed());
    let began = Instant::now();
    unwinder.collect();
    println!("collect: {:?}", began.elapsed());
}
