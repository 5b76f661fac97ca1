//! The kernel side against the real kernel: what is sampled, filtered, followed and counted.
//!
//! Oracles are exact where the kernel is (stack contents, filters, hits of a tracepoint), else CPU
//! time as the kernel accounts it. Workloads are this very binary, started again with a role. Times
//! are nanoseconds of CLOCK_MONOTONIC. Needs root; says what it skips without.

// Failing is what tests do.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::unix::process::CommandExt,
    process::Command,
    time::{Duration, Instant},
};

use crate::probe_shared::*;

use profiler_model::{
    LostReason, Pid, StackEnd, Tid, Timestamp,
    raw::{Comm, RawBody, RawEvent},
};
use profiler_probe::{EventSpec, Probe, ProbeOptions, Rate, SourceSpec, is_kernel_misjudged, now};
use profiler_target::{Filter, cgroup::CgroupFilter};
use profiler_tests::skip::{emulated, privileged};

const PERIOD_NS: u64 = 1_000_000_000 / 4999;

fn options(event: &str, rate: Rate, filter: Filter) -> ProbeOptions {
    let event = match event {
        "default" => EventSpec::Default,
        name => name.parse().unwrap(),
    };
    ProbeOptions {
        hierarchy: None,
        sources: vec![SourceSpec { event, rate }],
        filter,
        buffer_bytes: 8 << 20,
        kernel_stacks: true,
        user_stacks: true,
        unwind: None,
        kernel_log: false,
        off_cpu: false,
        adjustable: false,
        calls: None,
    }
}

fn clock(filter: Filter) -> ProbeOptions {
    options("cpu-clock", Rate::FrequencyHz(4999), filter)
}

fn only(pid: u32) -> Filter {
    Filter {
        pids: vec![Pid(pid)],
        ..Filter::default()
    }
}

/// The loader finds all that this kernel has where nothing disturbs it: nobody is started anew for ever.
#[test]
fn a_kernel_is_taken_for_what_it_is() {
    if privileged("a_kernel_is_taken_for_what_it_is") {
        assert!(!is_kernel_misjudged());
    }
}

/// Runs as a workload: see `Workload::start`.
#[test]
#[ignore = "a workload of the other tests"]
fn role() {
    match std::env::var("PROBE_ROLE").as_deref() {
        Ok("chain") => {
            println!("role: {}", chain::addresses());
            loop {
                chain::run(10_000_000);
            }
        }
        Ok("forks") => fork_family(),
        Ok("syscalls") => {
            println!("role: ready");
            loop {
                let _ = rustix::process::getppid();
            }
        }
        Ok("count") => {
            println!("role: ready");
            wait_for_go();
            for _ in 0..10_000 {
                let _ = rustix::process::getppid();
            }
            wait_forever();
        }
        Ok("named") => {
            rustix::thread::set_name(c"probe-named").unwrap();
            println!("role: ready");
            loop {
                chain::run(10_000_000);
            }
        }
        other => panic!("no role {other:?}"),
    }
}

/// A chain of calls whose addresses are known to the byte.
#[allow(unsafe_code)]
mod chain {
    std::arch::global_asm!(
        "probe_outer: push rbp; mov rbp, rsp; call probe_middle",
        "probe_outer_return: pop rbp; ret",
        "probe_middle: push rbp; mov rbp, rsp; call probe_leaf",
        "probe_middle_return: pop rbp; ret",
        "probe_leaf: push rbp; mov rbp, rsp; 2: dec rdi; jnz 2b; pop rbp; ret",
        "probe_leaf_end:",
    );

    unsafe extern "C" {
        fn probe_outer(rounds: u64);
        static probe_outer_return: u8;
        static probe_middle_return: u8;
        static probe_leaf: u8;
        static probe_leaf_end: u8;
    }

    pub(super) fn run(rounds: u64) {
        // SAFETY: counts `rounds` down and touches nothing else.
        unsafe { probe_outer(rounds) };
    }

    /// Leaf, its end, and the two return addresses.
    pub(super) fn addresses() -> String {
        // SAFETY: only the addresses of labels are taken.
        let labels = [
            &raw const probe_leaf,
            &raw const probe_leaf_end,
            &raw const probe_middle_return,
            &raw const probe_outer_return,
        ];
        let texts: Vec<_> = labels
            .iter()
            .map(|label| (*label as u64).to_string())
            .collect();
        texts.join(" ")
    }
}

#[test]
fn stacks_and_counts_of_a_known_chain() {
    if !privileged("stacks_and_counts_of_a_known_chain") {
        return;
    }
    let workload = Workload::start(module_path!(), "chain");
    let known: Vec<u64> = workload
        .line
        .split(' ')
        .map(|text| text.parse().unwrap())
        .collect();
    let mut probe = Probe::attach(clock(only(workload.pid()))).unwrap();
    let before = workload.cpu_ns();
    let events = record(&mut probe, Duration::from_millis(1000));
    let used = workload.cpu_ns() - before;

    let mut user = 0;
    let mut whole = 0;
    for (_, sample) in samples(&events) {
        assert_eq!(
            (sample.pid, sample.weight),
            (Pid(workload.pid()), PERIOD_NS)
        );
        if sample.kernel.end != StackEnd::NoStack {
            // Interrupts and page faults: kernel addresses, leaf first.
            assert!(sample.kernel.addresses().all(|address| address >> 63 == 1));
            continue;
        }
        user += 1;
        let stack: Vec<u64> = sample.user.addresses().take(3).collect();
        assert!(stack.iter().all(|address| address >> 63 == 0));
        let in_leaf = (known[0]..known[1]).contains(&stack[0]);
        whole += u64::from(in_leaf && stack[1..] == [known[2], known[3]]);
    }
    // The few others are in the loop around the chain.
    assert!(
        whole * 100 >= user * 99,
        "{whole} of {user} stacks are whole"
    );
    let total = samples(&events).count() as u64;
    let counters = probe.counters();
    let missing: u64 = counters[0].iter().map(|cpu| cpu.skipped + cpu.late).sum();
    let expected = used / PERIOD_NS;
    assert_near("samples", total, expected, expected / 20 + missing + 50);
    let lost: u64 = counters[0]
        .iter()
        .map(|cpu| cpu.ring_full + cpu.nested)
        .sum();
    assert_eq!(lost, 0);
}

#[test]
fn filters_let_through_exactly_what_they_name() {
    if !privileged("filters_let_through_exactly_what_they_name") {
        return;
    }
    let noise = Workload::start(module_path!(), "chain");
    let named = Workload::start(module_path!(), "named");
    let mut shell = Command::new("sh");
    shell
        .args(["-c", "echo 'role: ready'; while :; do :; done"])
        .uid(54_321);
    let other_user = Workload::spawn(&mut shell);
    let none = Filter::default();

    let mut cases: Vec<(&str, Filter, u32)> = vec![
        ("pid", only(named.pid()), named.pid()),
        (
            "tid",
            Filter {
                tids: vec![Tid(other_user.pid())],
                ..none.clone()
            },
            other_user.pid(),
        ),
        (
            "uid",
            Filter {
                uids: vec![54_321],
                ..none.clone()
            },
            other_user.pid(),
        ),
        (
            "comm",
            Filter {
                comms: vec![Comm::from_bytes(b"probe-named")],
                ..none.clone()
            },
            named.pid(),
        ),
    ];
    let hierarchy = cgroups::version_two();
    let cgroup = hierarchy.as_ref().map(cgroups::Made::new);
    match &cgroup {
        Some(made) => {
            made.add(noise.pid());
            let filter = Filter {
                cgroups: Some(CgroupFilter {
                    wanted: vec![made.cgroup()],
                    ..CgroupFilter::default()
                }),
                ..none.clone()
            };
            cases.push(("cgroup", filter, noise.pid()));
        }
        None => profiler_tests::skip::skip("the filter by cgroup", "no cgroup v2 is mounted"),
    }
    for (kind, filter, pid) in cases {
        let mut options = clock(filter);
        options.hierarchy = hierarchy.clone();
        let mut probe = Probe::attach(options).unwrap();
        let events = record(&mut probe, Duration::from_millis(200));
        let pids: BTreeSet<u32> = samples(&events).map(|(_, sample)| sample.pid.0).collect();
        assert_eq!(pids, BTreeSet::from([pid]), "filter by {kind}");
        let filtered: u64 = probe.counters()[0].iter().map(|cpu| cpu.filtered).sum();
        assert!(filtered > 0, "the noise was not filtered by {kind}");
    }
    // Conditions of different kinds must all hold.
    let contradiction = Filter {
        uids: vec![54_321],
        ..only(named.pid())
    };
    let mut probe = Probe::attach(clock(contradiction)).unwrap();
    let events = record(&mut probe, Duration::from_millis(100));
    assert_eq!(samples(&events).count(), 0);
}

#[test]
fn children_are_followed_from_their_first_sample() {
    if !privileged("children_are_followed_from_their_first_sample") {
        return;
    }
    let mut workload = Workload::start(module_path!(), "forks");
    let noise = Workload::start(module_path!(), "chain");
    let mut options = clock(only(workload.pid()));
    // So that the programs with their log calls are loaded once, too.
    options.kernel_log = true;
    let mut probe = Probe::attach(options).unwrap();
    workload.go();
    let events = record_to_the_end(&mut probe, &mut workload);

    let family = family(workload.pid(), &events);
    let mut family: BTreeMap<u32, u64> = family.into_iter().map(|pid| (pid, 0)).collect();
    for (_, sample) in samples(&events) {
        assert_ne!(sample.pid.0, noise.pid());
        *family
            .get_mut(&sample.pid.0)
            .expect("a sample of a stranger") += 1;
    }
    family.remove(&workload.pid());
    // 5 ms at 4999 Hz are 25 samples; the first ones would be missing of most if following were late.
    // A hypervisor that runs something else for some milliseconds costs one or two theirs. The clocks
    // of an emulated machine are too coarse for more than that most are seen at all.
    let (least, may_miss) = if emulated() { (1, 8) } else { (15, 2) };
    let missed = family.values().filter(|count| **count < least).count();
    assert!(
        missed <= may_miss,
        "{missed} processes have too few samples: {family:?}"
    );
    let unfollowed: u64 = probe.counters()[0].iter().map(|cpu| cpu.unfollowed).sum();
    assert_eq!(unfollowed, 0);
}

#[test]
fn another_busy_program_leaves_no_hole() {
    if !privileged("another_busy_program_leaves_no_hole") {
        return;
    }
    let workload = Workload::start(module_path!(), "syscalls");
    // The other program: it runs on every system call, and samples none of them.
    let mut other = Probe::attach(options(
        "raw_syscalls:sys_enter",
        Rate::Period(u64::MAX),
        Filter::default(),
    ))
    .unwrap();
    let mut probe = Probe::attach(clock(Filter::default())).unwrap();
    let runs = |probe: &Probe| probe.counters()[0].iter().map(|cpu| cpu.ticks).sum::<u64>();
    let first = when_all(&mut probe, |cpu| cpu.last_due_ns > 0);
    let (start, before) = (Instant::now(), runs(&other));
    let mut events = record(&mut probe, Duration::from_millis(2000));
    let (elapsed, after, last) = (start.elapsed(), runs(&other), probe.counters());
    let rate = (after - before) as f64 / elapsed.as_secs_f64();
    let busy = workload.cpu_ns();
    probe.losses(now(), &mut events);
    other.drain(&mut Vec::new());

    let mut skipped = 0;
    for (first, last) in first[0].iter().zip(&last[0]) {
        let found =
            last.ticks - first.ticks + last.skipped - first.skipped + last.late - first.late;
        let expected = (last.last_due_ns - first.last_due_ns) / PERIOD_NS;
        assert_near(
            "ticks received, skipped and late",
            found,
            expected,
            expected / 100 + 2,
        );
        skipped += last.skipped;
        let sent = last.idle + last.filtered + last.nested + last.ring_full + last.sent;
        // Its ticks are counted before what becomes of them: one may be on its way.
        let on_their_way = last.ticks.checked_sub(sent);
        assert!(
            on_their_way.is_some_and(|ticks| ticks <= 1),
            "each tick is counted once: {last:?}"
        );
        assert_eq!(last.ring_full + last.nested, 0);
    }
    eprintln!("{rate:.0} runs/s of the other program, {skipped} ticks skipped");
    // An emulated machine is too slow for this to say anything about its kernel.
    let demanded = if emulated() { 0.0 } else { 500_000.0 };
    assert!(
        busy > 0 && rate > demanded,
        "only {rate:.0} runs/s of the other program"
    );
    // Ticks inside the other program are lost, and said to be.
    assert!(skipped > 0);
    let reported = told_skipped(&events);
    // What the account of idle time, in steps of 10 ms, does not contradict.
    assert!(
        reported >= skipped - skipped / 10,
        "{reported} reported of {skipped}"
    );

    // No hole: between two samples of the workload on one processor there is no gap that the ticks
    // counted as missing would not fill.
    let longest_gap_ns = longest_gap(&events, workload.pid());
    assert!(
        longest_gap_ns < 500_000_000,
        "a hole of {longest_gap_ns} ns"
    );
}

/// The longest time without a sample of a process that never sleeps, on any processor.
fn longest_gap(events: &[RawEvent], pid: u32) -> u64 {
    let mut times: Vec<u64> = samples(events)
        .filter(|(_, sample)| sample.pid.0 == pid)
        .map(|(event, _)| event.at.0)
        .collect();
    times.sort_unstable();
    times
        .windows(2)
        .map(|pair| pair[1] - pair[0])
        .max()
        .unwrap_or(u64::MAX)
}

#[test]
fn every_hit_of_a_tracepoint_counts() {
    if !privileged("every_hit_of_a_tracepoint_counts") {
        return;
    }
    for period in [1, 10] {
        let mut workload = Workload::start(module_path!(), "count");
        let filter = only(workload.pid());
        let event = "raw_syscalls:sys_enter";
        let mut probe = Probe::attach(options(event, Rate::Period(period), filter)).unwrap();
        workload.go();
        // However slow the machine: until no more comes.
        let mut events = Vec::new();
        loop {
            let more = record(&mut probe, Duration::from_millis(500));
            let was_last = samples(&more).count() == 0 && samples(&events).count() > 0;
            events.extend(more);
            if was_last {
                break;
            }
        }
        let counters = &probe.counters()[0];
        let full: u64 = counters.iter().map(|cpu| cpu.ring_full).sum();
        let found: u64 = samples(&events).map(|(_, sample)| sample.weight).sum();
        // Besides the calls that are counted, some of start and end; a period is counted over all
        // processes of a processor, so with one above 1 the count is a matter of chance.
        let tolerance = if period == 1 { 100 } else { 1500 };
        assert_near("hits", found + full * period, 10_050, tolerance);
        assert!(samples(&events).all(|(_, sample)| sample.kernel.addresses().len() > 0));
    }
}

#[test]
fn a_full_ring_wakes_the_reader_then_counts_what_it_loses() {
    if !privileged("a_full_ring_wakes_the_reader_then_counts_what_it_loses") {
        return;
    }
    let _workload = Workload::start(module_path!(), "chain");
    let mut small = clock(Filter::default());
    small.buffer_bytes = 0;
    let mut probe = Probe::attach(small).unwrap();
    probe.drain(&mut Vec::new());
    std::thread::sleep(Duration::from_millis(500));
    let wake = probe.wake_fd();
    let mut polled = [rustix::event::PollFd::new(
        &wake,
        rustix::event::PollFlags::IN,
    )];
    let ready = rustix::event::poll(&mut polled, Some(&rustix::event::Timespec::default()));
    assert_eq!(ready, Ok(1), "nobody woke the reader");
    let mut out = Vec::new();
    probe.losses(Timestamp(u64::MAX), &mut out);
    let lost: u64 = out
        .iter()
        .filter_map(|event| match &event.body {
            RawBody::Lost(lost) if lost.reason == LostReason::RingFull => Some(lost.count),
            _ => None,
        })
        .sum();
    let counters = probe.counters();
    assert!(lost > 0, "{counters:?}");
    let counted: u64 = counters[0].iter().map(|cpu| cpu.ring_full).sum();
    assert_near("samples without room", lost, counted, counted / 5 + 10);
    let stats = probe.drain(&mut out);
    assert!(stats.ring_bytes > 0 && stats.bad == 0);
}

#[test]
fn a_source_that_is_not_there_is_explained() {
    if !privileged("a_source_that_is_not_there_is_explained") {
        return;
    }
    let attach = |event: &str, rate| match Probe::attach(options(event, rate, Filter::default())) {
        Ok(_) => panic!("{event} was attached"),
        Err(error) => error.to_string(),
    };
    let text = attach("sched:no_such_thing", Rate::Period(1));
    assert!(text.contains("no tracepoint sched:no_such_thing"), "{text}");
    let text = attach("cpu-clock", Rate::FrequencyHz(u64::MAX));
    assert!(text.contains("kernel.perf_event_max_sample_rate"), "{text}");
    let text = attach("cpu-clock", Rate::Period(1));
    assert!(text.contains("10000 ns"), "{text}");
    let probe =
        Probe::attach(options("default", Rate::FrequencyHz(99), Filter::default())).unwrap();
    let source = &probe.sources()[0];
    assert!(
        source.name == "cycles" || source.note.is_some(),
        "{source:?}"
    );
    assert!(probe.memory_bytes() < 16 << 20);
}

#[test]
fn processors_that_go_and_come_are_sampled() {
    let switch = "/sys/devices/system/cpu/cpu1/online";
    if !emulated() || !std::path::Path::new(switch).exists() {
        profiler_tests::skip::skip(
            "processors_that_go_and_come_are_sampled",
            "takes a processor away, so it runs on emulated machines only (cargo xtask vm)",
        );
        return;
    }
    let _both = [
        Workload::start(module_path!(), "chain"),
        Workload::start(module_path!(), "chain"),
    ];
    let mut probe = Probe::attach(clock(Filter::default())).unwrap();
    let samples_of = |events: Vec<RawEvent>, cpu: u32| {
        samples(&events)
            .filter(|(event, _)| event.cpu.0 == cpu)
            .count()
    };
    let half_a_second = Duration::from_millis(500);
    assert!(samples_of(record(&mut probe, half_a_second), 1) > 0);

    fs::write(switch, "0").unwrap();
    assert!(probe.update_cpus().unwrap());
    probe.drain(&mut Vec::new());
    let events = record(&mut probe, half_a_second);
    assert!(samples_of(events.clone(), 0) > 0);
    assert_eq!(samples_of(events, 1), 0);

    fs::write(switch, "1").unwrap();
    assert!(probe.update_cpus().unwrap());
    assert!(!probe.update_cpus().unwrap());
    let before = probe.counters()[0][1];
    let events = record(&mut probe, half_a_second);
    assert!(samples_of(events, 1) > 0);
    // The time that it was away, 2,500 ticks, is no loss. (The emulator itself stops now and then.)
    let after = probe.counters()[0][1];
    let skipped = after.skipped - before.skipped;
    assert!(skipped < 500, "{before:?} {after:?}");

    // Away and back before anybody looks, as in a suspend: online, and its clock stands still.
    fs::write(switch, "0").unwrap();
    fs::write(switch, "1").unwrap();
    probe.drain(&mut Vec::new());
    let looks = (0..40).take_while(|_| {
        std::thread::sleep(half_a_second);
        !probe.update_cpus().unwrap()
    });
    assert!(looks.count() < 40, "nobody noticed");
    assert!(samples_of(record(&mut probe, half_a_second), 1) > 0);
}

/// On a kernel without a description of its types children are followed by tracepoints' records: the same
/// test, in a mount namespace where that description is empty.
#[test]
fn children_are_followed_without_types() {
    const TEST: &str = "children_are_followed_without_types";
    if !privileged(TEST) {
        return;
    }
    let script = "mount --bind /dev/null /sys/kernel/btf/vmlinux || exit 97
        test -s /sys/kernel/btf/vmlinux && exit 98
        exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", script, "sh"]);
    command.arg(std::env::current_exe().unwrap());
    let followed = module_path!().split_once("::").unwrap().1.to_owned();
    command.args(["--exact", "--nocapture"]);
    command.arg(followed + "::children_are_followed_from_their_first_sample");
    let ended = command.output().unwrap();
    let said = String::from_utf8_lossy(&ended.stdout);
    assert!(
        ended.status.success() && said.contains("1 passed"),
        "{:?}: {said}{}",
        ended.status,
        String::from_utf8_lossy(&ended.stderr)
    );
}
