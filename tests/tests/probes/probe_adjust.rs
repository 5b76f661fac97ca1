//! Sampling that is changed while the probe is attached, against the real kernel: how much, of whom,
//! and what is said to be lost.
//!
//! Oracles: CPU time as the kernel accounts it, for counts; families of processes as the workloads
//! tell them. Where a hypervisor or another program took ticks, the kernel side has counted them, and
//! that many may be missing. Workloads are this very binary, started again with a role. Needs root;
//! says what it skips without.

// Failing is what tests do.
#![allow(clippy::unwrap_used)]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::{BufRead, Write},
    time::{Duration, Instant},
};

use crate::probe_shared::*;
use profiler_common::control::Counters;
use profiler_model::{
    LostReason, Pid, Sampling, Tid,
    raw::{RawBody, RawEvent},
};
use profiler_probe::{Probe, ProbeOptions, Rate, SourceSpec, now};
use profiler_target::Filter;
use profiler_tests::skip::{emulated, privileged, skip};

const NS_PER_SECOND: u64 = 1_000_000_000;

fn options() -> ProbeOptions {
    ProbeOptions {
        hierarchy: None,
        sources: vec![SourceSpec {
            event: "cpu-clock".parse().unwrap(),
            rate: Rate::FrequencyHz(99),
        }],
        filter: Filter::default(),
        buffer_bytes: 8 << 20,
        // Of no consequence: whether they are walked is adjusted.
        kernel_stacks: true,
        user_stacks: true,
        unwind: None,
        kernel_log: false,
        off_cpu: false,
        adjustable: true,
        calls: None,
    }
}

fn sampling(frequency_hz: u64, processes: &[u32]) -> Sampling {
    Sampling {
        frequency_hz,
        regular_hz: None,
        kernel_stacks: false,
        processes: processes.iter().copied().map(Pid).collect(),
        threads: BTreeSet::new(),
        followed: BTreeSet::new(),
    }
}

fn following(processes: &[u32], followed: &[u32]) -> Sampling {
    Sampling {
        followed: followed.iter().copied().map(Pid).collect(),
        ..sampling(4999, processes)
    }
}

fn threads_of(pid: u32) -> BTreeSet<u32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    tasks
        .map(|task| task.unwrap().file_name().to_str().unwrap().parse().unwrap())
        .collect()
}

/// Processes and threads that were sampled, and how often.
fn by_thread(events: &[RawEvent]) -> BTreeMap<(u32, u32), u64> {
    let mut counts = BTreeMap::new();
    for (_, sample) in samples(events) {
        *counts.entry((sample.pid.0, sample.tid.0)).or_insert(0) += 1;
    }
    counts
}

fn sampled(events: &[RawEvent]) -> BTreeSet<u32> {
    by_thread(events).into_keys().map(|(pid, _)| pid).collect()
}

/// Throws away what was sampled up to now.
fn forget(probe: &mut Probe) {
    probe.drain(&mut Vec::new());
}

/// Drains until each of these has used that much CPU time, however busy the machine.
fn record_cpu_time(probe: &mut Probe, workloads: &[&Workload], time: Duration) -> Vec<RawEvent> {
    record_while(probe, time, || {
        workloads.iter().map(|workload| workload.cpu_ns()).collect()
    })
}

/// Drains until each of these CPU times has grown by so much.
fn record_while(probe: &mut Probe, time: Duration, cpu_ns: impl Fn() -> Vec<u64>) -> Vec<RawEvent> {
    let start = cpu_ns();
    let is_done = || {
        let mut used = cpu_ns().into_iter().zip(&start);
        used.all(|(now, start)| u128::from(now - start) >= time.as_nanos())
    };
    let mut out = Vec::new();
    let end = Instant::now() + LIMIT;
    while !is_done() {
        assert!(Instant::now() < end, "the workload gets no CPU time");
        out.extend(record(probe, Duration::from_millis(20)));
    }
    out
}

/// CPU time of a thread so far.
fn thread_cpu_ns(pid: u32, tid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{tid}/schedstat")).unwrap();
    text.split(' ').next().unwrap().parse().unwrap()
}

/// Drains until there are samples: at its limit the kernel stops a clock for a while, if its ticks take
/// long.
fn first_samples(probe: &mut Probe) -> Vec<RawEvent> {
    let end = Instant::now() + LIMIT;
    loop {
        assert!(Instant::now() < end, "nothing is sampled");
        let events = record(probe, Duration::from_millis(20));
        if samples(&events).count() > 0 {
            return events;
        }
    }
}

fn sum(probe: &Probe, of: fn(&Counters) -> u64) -> u64 {
    probe.counters()[0].iter().map(of).sum()
}

/// Runs as a workload: see `Workload::start`.
#[test]
#[ignore = "a workload of the other tests"]
fn role() {
    match std::env::var("PROBE_ROLE").as_deref() {
        Ok(role @ ("busy" | "spare")) => {
            if role == "spare" {
                rustix::process::setpriority_process(None, 19).unwrap();
            }
            let (told, tids) = std::sync::mpsc::channel();
            for _ in 0..2 {
                let told = told.clone();
                std::thread::spawn(move || {
                    told.send(rustix::thread::gettid().as_raw_pid()).unwrap();
                    burn_thread(LIMIT);
                });
            }
            println!("role: {} {}", tids.recv().unwrap(), tids.recv().unwrap());
            wait_forever();
        }
        Ok("syscalls") => {
            println!("role: ready");
            let end = Instant::now() + LIMIT;
            while Instant::now() < end {
                let _ = rustix::process::getppid();
            }
        }
        Ok("forks") => fork_family(),
        // Starts a child that is busy for each line that it is given.
        Ok("spawns") => {
            println!("role: ready");
            for _ in std::io::stdin().lines() {
                let child = Workload::start(module_path!(), "child");
                println!("role: {}", child.pid());
                // It ends by itself.
                std::mem::forget(child);
            }
        }
        Ok("child") => {
            println!("role: ready");
            burn(LIMIT / 4);
        }
        Ok("many") => {
            for _ in 1..many() {
                let thread = std::thread::Builder::new().stack_size(16 << 10);
                thread.spawn(wait_forever).unwrap();
            }
            println!("role: ready");
            wait_forever();
        }
        other => panic!("no role {other:?}"),
    }
}

/// How many threads are many.
fn many() -> usize {
    if emulated() { 1000 } else { 10_000 }
}

/// Has a workload in the role "spawns" start a child, whose id is returned.
fn spawn_child(workload: &mut Workload) -> u32 {
    let stdin = workload.child.stdin.as_mut().unwrap();
    stdin.write_all(b"\n").unwrap();
    loop {
        let mut line = String::new();
        assert_ne!(workload.output.read_line(&mut line).unwrap(), 0);
        if let Some((_, pid)) = line.split_once("role: ") {
            return pid.trim().parse().unwrap();
        }
    }
}

#[test]
fn samples_are_as_frequent_as_was_asked_last() {
    if !privileged("samples_are_as_frequent_as_was_asked_last") {
        return;
    }
    let (one, two) = (
        Workload::start(module_path!(), "busy"),
        Workload::start(module_path!(), "busy"),
    );
    // It has what the others leave, for whose time it would be waited else.
    let stranger = Workload::start(module_path!(), "spare");
    let mut probe = Probe::attach(options()).unwrap();
    let events = record_cpu_time(&mut probe, &[&one], Duration::from_millis(100));
    assert_eq!(samples(&events).count(), 0);

    let second = NS_PER_SECOND;
    for (hz, cpu_ns) in [
        (99, second),
        (499, second / 2),
        (4999, second / 2),
        (99, second),
    ] {
        let period_ns = second / hz;
        forget(&mut probe);
        let missing = |probe: &Probe| sum(probe, |cpu| cpu.skipped + cpu.late);
        let (known, before) = (missing(&probe), [one.cpu_ns(), two.cpu_ns()]);
        let used_hz = probe.adjust(Some(&sampling(hz, &[one.pid(), two.pid()])));
        assert_eq!(used_hz.unwrap(), Some(hz));
        let time = Duration::from_nanos(cpu_ns);
        let mut events = record_cpu_time(&mut probe, &[&one, &two], time);
        assert_eq!(probe.adjust(None).unwrap(), None);
        let after = [one.cpu_ns(), two.cpu_ns()];
        probe.drain(&mut events);
        let missing = missing(&probe) - known;

        assert!(samples(&events).all(|(_, sample)| sample.weight == period_ns));
        assert!(!sampled(&events).contains(&stranger.pid()));
        for (index, workload) in [&one, &two].into_iter().enumerate() {
            let expected = (after[index] - before[index]) / period_ns;
            let counts = by_thread(&events);
            let of_process = counts.iter().filter(|((pid, _), _)| *pid == workload.pid());
            let found: u64 = of_process.map(|(_, count)| count).sum();
            eprintln!("{hz} Hz: {found} samples, {expected} expected, {missing} ticks missing");
            // Which thread a tick hits is a matter of chance.
            let chance = 3 * expected.isqrt() + 2;
            assert_near("samples", found, expected, expected / 50 + chance + missing);
        }
    }

    // Off: the clock stands still.
    let before = sum(&probe, |cpu| cpu.ticks);
    let events = record_cpu_time(&mut probe, &[&one], Duration::from_millis(200));
    assert_eq!(samples(&events).count(), 0);
    assert_eq!(sum(&probe, |cpu| cpu.ticks), before);
    // Nobody named is nothing sampled, too.
    assert_eq!(probe.adjust(Some(&sampling(499, &[]))).unwrap(), None);
    record_cpu_time(&mut probe, &[&one], Duration::from_millis(50));
    assert_eq!(sum(&probe, |cpu| cpu.ticks), before);
}

/// A lower limit than the machine's, at which samples leave time for anything else; until this is dropped.
struct LowLimit(String);

impl LowLimit {
    const PATH: &str = "/proc/sys/kernel/perf_event_max_sample_rate";

    fn set(hz: u64) -> LowLimit {
        let before = LowLimit(fs::read_to_string(Self::PATH).unwrap());
        fs::write(Self::PATH, hz.to_string()).unwrap();
        before
    }

    fn read() -> u64 {
        let text = fs::read_to_string(Self::PATH).unwrap();
        text.trim().parse().unwrap()
    }
}

impl Drop for LowLimit {
    fn drop(&mut self) {
        let _ = fs::write(Self::PATH, self.0.trim());
    }
}

#[test]
fn the_kernels_limit_is_kept_and_told() {
    if !privileged("the_kernels_limit_is_kept_and_told") {
        return;
    }
    let workload = Workload::start(module_path!(), "busy");
    let lowered = LowLimit::set(7_000);
    let limit = LowLimit::read();
    assert!(limit <= 7_000, "{limit} Hz");
    let mut probe = Probe::attach(options()).unwrap();
    let used_hz = probe.adjust(Some(&sampling(u64::MAX, &[workload.pid()])));
    assert_eq!(used_hz.unwrap(), Some(limit));
    assert_eq!(probe.sources()[0].frequency_hz, Some(limit));
    let events = first_samples(&mut probe);
    let weight = NS_PER_SECOND / limit;
    assert!(samples(&events).all(|(_, sample)| sample.weight == weight));
    drop(lowered);

    let text = probe
        .adjust(Some(&sampling(0, &[1])))
        .unwrap_err()
        .to_string();
    assert!(text.contains("frequency of 0"), "{text}");
    let crowd: Vec<u32> = (1..20_000).collect();
    forget(&mut probe);
    let text = probe.adjust(Some(&sampling(99, &crowd))).unwrap_err();
    assert!(text.to_string().contains("at most 16384"), "{text}");
    // All is as it was.
    first_samples(&mut probe);

    for wrong in [
        ProbeOptions {
            sources: Vec::new(),
            ..options()
        },
        ProbeOptions {
            filter: Filter {
                pids: vec![Pid(1)],
                ..Filter::default()
            },
            ..options()
        },
        ProbeOptions {
            hierarchy: None,
            sources: vec![SourceSpec {
                event: "sched:sched_switch".parse().unwrap(),
                rate: Rate::FrequencyHz(99),
            }],
            ..options()
        },
    ] {
        assert!(Probe::attach(wrong).is_err());
    }
    let mut fixed = Probe::attach(ProbeOptions {
        adjustable: false,
        ..options()
    })
    .unwrap();
    assert!(fixed.adjust(None).is_err());
}

#[test]
fn tasks_are_sampled_while_they_are_named() {
    if !privileged("tasks_are_sampled_while_they_are_named") {
        return;
    }
    let (one, two) = (
        Workload::start(module_path!(), "busy"),
        Workload::start(module_path!(), "busy"),
    );
    let (first, second) = two.line.split_once(' ').unwrap();
    let [first, second]: [u32; 2] = [first, second].map(|tid| tid.parse().unwrap());
    let mut probe = Probe::attach(options()).unwrap();
    let mut check = |named: Sampling, expected: &dyn Fn(u32, u32) -> bool| {
        probe.adjust(Some(&named)).unwrap();
        forget(&mut probe);
        let events = record_while(&mut probe, Duration::from_millis(100), || {
            let of_thread = |tid| thread_cpu_ns(two.pid(), tid);
            vec![one.cpu_ns(), of_thread(first), of_thread(second)]
        });
        let counts = by_thread(&events);
        assert!(!counts.is_empty(), "nothing is sampled as {named:?}");
        assert!(
            counts.keys().all(|(pid, tid)| expected(*pid, *tid)),
            "{counts:?}"
        );
        counts.into_keys().collect::<BTreeSet<_>>()
    };
    let with_threads = |processes: &[u32], threads: &[u32]| Sampling {
        threads: threads.iter().copied().map(Tid).collect(),
        ..sampling(4999, processes)
    };
    check(with_threads(&[], &[first]), &|_, tid| tid == first);
    check(with_threads(&[], &[second]), &|_, tid| tid == second);
    let seen = check(with_threads(&[one.pid()], &[second]), &|pid, tid| {
        pid == one.pid() || tid == second
    });
    assert!(
        seen.contains(&(two.pid(), second)) && seen.len() > 1,
        "{seen:?}"
    );
    check(with_threads(&[two.pid()], &[]), &|pid, _| pid == two.pid());
    check(with_threads(&[one.pid()], &[]), &|pid, _| pid == one.pid());
}

#[test]
fn children_of_the_followed_are_sampled_from_the_first_instruction_and_of_no_others() {
    if !privileged(
        "children_of_the_followed_are_sampled_from_the_first_instruction_and_of_no_others",
    ) {
        return;
    }
    let (mut followed, mut other) = (
        Workload::start(module_path!(), "forks"),
        Workload::start(module_path!(), "forks"),
    );
    let mut probe = Probe::attach(options()).unwrap();
    let wanted = following(&[followed.pid(), other.pid()], &[followed.pid()]);
    probe.adjust(Some(&wanted)).unwrap();
    forget(&mut probe);
    followed.go();
    other.go();
    let mut events = record_to_the_end(&mut probe, &mut followed);
    events.extend(record_to_the_end(&mut probe, &mut other));

    let mut family = family(followed.pid(), &events);
    let mut counts: BTreeMap<u32, u64> = BTreeMap::new();
    for (_, sample) in samples(&events) {
        *counts.entry(sample.pid.0).or_default() += 1;
    }
    let strangers = counts
        .keys()
        .filter(|pid| !family.contains(pid) && **pid != other.pid());
    assert_eq!(strangers.count(), 0);
    family.remove(&followed.pid());
    let found: u64 = family.iter().filter_map(|pid| counts.get(pid)).sum();
    let missing = sum(&probe, |cpu| cpu.skipped + cpu.late);
    // Each of 40 uses 5 ms; what they use besides, to start and end, is left out here.
    let expected = 40 * 5_000_000 / (NS_PER_SECOND / 4999);
    eprintln!("{found} samples of children, {expected} expected, {missing} ticks missing");
    assert!(
        found + missing >= expected * 95 / 100,
        "{found} of {expected}"
    );
    assert_eq!(sum(&probe, |cpu| cpu.unfollowed), 0);
}

#[test]
fn descendants_stay_while_whom_they_stem_from_is_followed() {
    if !privileged("descendants_stay_while_whom_they_stem_from_is_followed") {
        return;
    }
    let mut parent = Workload::start(module_path!(), "spawns");
    let busy = Workload::start(module_path!(), "busy");
    let mut probe = Probe::attach(options()).unwrap();
    // Until those whom it is asked of had the processor.
    let mut sampled_as = |processes: &[u32], followed: &[u32], of: &[u32]| {
        probe.adjust(Some(&following(processes, followed))).unwrap();
        forget(&mut probe);
        let time = Duration::from_millis(150);
        let cpu_ns = || of.iter().map(|&pid| process_cpu_ns(pid)).collect();
        sampled(&record_while(&mut probe, time, cpu_ns))
    };
    let (root, other) = (parent.pid(), busy.pid());
    sampled_as(&[root, other], &[root], &[other]);
    let child = spawn_child(&mut parent);
    // Unnamed; named, but not followed for itself; unnamed again.
    for processes in [&[root, other][..], &[root, child, other], &[root, other]] {
        let found = sampled_as(processes, &[root], &[child, other]);
        assert!(
            found.contains(&child) && found.contains(&other),
            "{found:?}"
        );
    }
    // Not followed any more: only if it is named.
    assert!(sampled_as(&[root, child, other], &[], &[child]).contains(&child));
    assert!(!sampled_as(&[root, other], &[], &[child]).contains(&child));
    // Those that start then are nobody's.
    let second = spawn_child(&mut parent);
    assert!(!sampled_as(&[root, other], &[], &[second]).contains(&second));
    // Its root ends, and is followed still.
    sampled_as(&[root, other], &[root], &[other]);
    let third = spawn_child(&mut parent);
    drop(parent);
    assert!(sampled_as(&[other], &[root], &[third]).contains(&third));
    assert!(sampled_as(&[], &[root], &[third]).contains(&third));
    assert!(!sampled_as(&[other], &[], &[third]).contains(&third));
    for pid in [child, second, third] {
        let pid = rustix::process::Pid::from_raw(pid.cast_signed()).unwrap();
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    }
}

#[test]
fn kernel_stacks_are_walked_while_they_are_wanted() {
    if !privileged("kernel_stacks_are_walked_while_they_are_wanted") {
        return;
    }
    let workload = Workload::start(module_path!(), "syscalls");
    let mut probe = Probe::attach(options()).unwrap();
    for (hz, kernel_stacks) in [(4999, false), (4999, true), (4999, false), (1999, true)] {
        let wanted = Sampling {
            kernel_stacks,
            ..sampling(hz, &[workload.pid()])
        };
        probe.adjust(Some(&wanted)).unwrap();
        forget(&mut probe);
        let events = record_cpu_time(&mut probe, &[&workload], Duration::from_millis(200));
        let with_kernel =
            samples(&events).filter(|(_, sample)| sample.kernel.addresses().len() > 0);
        let (with_kernel, all) = (with_kernel.count(), samples(&events).count());
        eprintln!("{with_kernel} of {all} samples have a kernel stack");
        assert!(all > 0);
        assert_eq!(with_kernel > 0, kernel_stacks);
        assert!(samples(&events).all(|(_, sample)| sample.user.addresses().len() > 0));
    }
}

#[test]
fn quick_changes_lose_nothing() {
    if !privileged("quick_changes_lose_nothing") {
        return;
    }
    let workload = Workload::start(module_path!(), "busy");
    let mut probe = Probe::attach(options()).unwrap();
    let mut out = Vec::new();
    for (round, hz) in (0..50).zip([99, 4999, 499, 0, 1999, 4999].into_iter().cycle()) {
        let wanted = sampling(hz, &[workload.pid()]);
        probe.adjust((hz != 0).then_some(&wanted)).unwrap();
        std::thread::sleep(Duration::from_millis(5 + round % 7 * 7));
        probe.drain(&mut out);
        probe.losses(now(), &mut out);
    }
    probe.adjust(None).unwrap();
    probe.losses(now(), &mut out);
    probe.drain(&mut out);
    let (mut skipped, mut others) = (0, 0);
    for event in &out {
        if let RawBody::Lost(lost) = &event.body {
            match lost.reason {
                LostReason::Skipped => skipped += lost.count,
                _ => others += lost.count,
            }
        }
    }
    let ticks = sum(&probe, |cpu| cpu.ticks);
    let late = sum(&probe, |cpu| cpu.late);
    eprintln!("{ticks} ticks, {skipped} reported as skipped, {late} late");
    assert!(ticks > 1000 || emulated(), "{ticks}");
    assert_eq!(others, 0);
    // Where ticks are late, one is on time by chance now and then.
    assert!(skipped <= ticks / 500 + late / 4, "{skipped} of {ticks}");
}

/// The latest start of the events that a processor has ticked since.
fn latest_start(counters: &[Vec<Counters>]) -> u64 {
    counters[0].iter().map(|cpu| cpu.generation).max().unwrap()
}

#[test]
fn ticks_that_are_skipped_are_told_at_any_period() {
    if !privileged("ticks_that_are_skipped_are_told_at_any_period") {
        return;
    }
    let workload = Workload::start(module_path!(), "syscalls");
    // The other program: it runs on every system call, and samples none of them.
    let other = SourceSpec {
        event: "raw_syscalls:sys_enter".parse().unwrap(),
        rate: Rate::Period(u64::MAX),
    };
    let mut other = Probe::attach(ProbeOptions {
        sources: vec![other],
        adjustable: false,
        ..options()
    })
    .unwrap();
    let mut probe = Probe::attach(options()).unwrap();
    let mut out = Vec::new();
    for hz in [999, 9999, 4999] {
        let wanted = sampling(hz, &[workload.pid()]);
        let earlier = latest_start(&probe.counters());
        probe.adjust(Some(&wanted)).unwrap();
        let first = when_all(&mut probe, |cpu| cpu.generation > earlier);
        record_cpu_time(&mut probe, &[&workload], Duration::from_millis(700));
        let last = probe.counters();
        let period_ns = NS_PER_SECOND / hz;
        for (first, last) in first[0].iter().zip(&last[0]) {
            let count = |cpu: &Counters| cpu.ticks + cpu.skipped + cpu.late;
            let found = count(last) - count(first);
            let expected = (last.last_due_ns - first.last_due_ns) / period_ns;
            assert_near("ticks", found, expected, expected / 50 + 2);
        }
        other.drain(&mut Vec::new());
    }
    let skipped = sum(&probe, |cpu| cpu.skipped);
    probe.adjust(None).unwrap();
    probe.losses(now(), &mut out);
    let reported = told_skipped(&out);
    eprintln!("{skipped} ticks skipped, {reported} reported");
    assert!(skipped > 0 && reported <= skipped);
    // The account of idle time has steps of 10 ms: two of them for each period and processor.
    let cpus = probe.counters()[0].len() as u64;
    let uncertain = cpus * (999 + 9999 + 4999) * 20 / 1000;
    assert!(reported + uncertain + skipped / 10 >= skipped, "{reported}");
}

#[test]
fn many_tasks_are_adjusted_quickly() {
    if !privileged("many_tasks_are_adjusted_quickly") {
        return;
    }
    let workload = Workload::start(module_path!(), "many");
    let tids: BTreeSet<Tid> = threads_of(workload.pid()).into_iter().map(Tid).collect();
    assert!(tids.len() >= many());
    let mut probe = Probe::attach(options()).unwrap();
    let all = Sampling {
        threads: tids,
        ..sampling(99, &[])
    };
    let mut one_less = all.clone();
    one_less.threads.pop_last();
    let mut adjust = |what: &str, to: Option<&Sampling>| {
        let start = Instant::now();
        probe.adjust(to).unwrap();
        let time = start.elapsed();
        eprintln!("{} threads {what}: {time:?}", all.threads.len());
        time
    };
    let times = [
        adjust("added", Some(&all)),
        adjust("unchanged", Some(&all)),
        adjust("less one", Some(&one_less)),
        adjust("taken out", None),
    ];
    // A coarse limit: the machine may be busy.
    let most = Duration::from_secs(if emulated() { 20 } else { 2 });
    assert!(times.iter().all(|time| *time < most), "{times:?}");
}

#[test]
fn processors_that_come_back_sample_as_adjusted() {
    let switch = "/sys/devices/system/cpu/cpu1/online";
    if !emulated() || !std::path::Path::new(switch).exists() {
        skip(
            "processors_that_come_back_sample_as_adjusted",
            "takes a processor away, so it runs on emulated machines only (cargo xtask vm)",
        );
        return;
    }
    let both = [
        Workload::start(module_path!(), "busy"),
        Workload::start(module_path!(), "busy"),
    ];
    let pids = [both[0].pid(), both[1].pid()];
    let mut probe = Probe::attach(options()).unwrap();
    probe.adjust(Some(&sampling(99, &pids))).unwrap();
    fs::write(switch, "0").unwrap();
    assert!(probe.update_cpus().unwrap());
    // While it is away.
    probe.adjust(Some(&sampling(499, &pids))).unwrap();
    fs::write(switch, "1").unwrap();
    assert!(probe.update_cpus().unwrap());
    forget(&mut probe);
    let events = record_cpu_time(
        &mut probe,
        &[&both[0], &both[1]],
        Duration::from_millis(500),
    );
    let on_it = || samples(&events).filter(|(event, _)| event.cpu.0 == 1);
    assert!(on_it().count() > 0);
    assert!(on_it().all(|(_, sample)| sample.weight == NS_PER_SECOND / 499));

    // Nothing is sampled when it comes back, until it is asked for.
    probe.adjust(None).unwrap();
    fs::write(switch, "0").unwrap();
    assert!(probe.update_cpus().unwrap());
    fs::write(switch, "1").unwrap();
    assert!(probe.update_cpus().unwrap());
    assert!(!probe.update_cpus().unwrap());
    let before = sum(&probe, |cpu| cpu.ticks);
    record_cpu_time(&mut probe, &[&both[0]], Duration::from_millis(100));
    assert_eq!(sum(&probe, |cpu| cpu.ticks), before);
    probe.adjust(Some(&sampling(499, &pids))).unwrap();
    forget(&mut probe);
    let events = record_cpu_time(
        &mut probe,
        &[&both[0], &both[1]],
        Duration::from_millis(500),
    );
    assert!(samples(&events).any(|(event, _)| event.cpu.0 == 1));
}
