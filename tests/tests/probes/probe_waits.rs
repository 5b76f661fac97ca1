//! Waits of threads against the real kernel: how many, how long, why, where, and who ended them.
//!
//! Oracles are exact where the kernel is: switches as `/proc/TID/status` counts them, lengths that
//! were asked for, threads that are known to wake each other, run delay as `/proc/TID/schedstat` has it.
//! Workloads are this very binary, started again with a role. Times are nanoseconds of
//! CLOCK_MONOTONIC. Needs root and the kernel's types; says what it skips without.

// Failing is what tests do.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::{
    collections::BTreeMap,
    fs,
    io::{Read, Write},
    path::Path,
    sync::mpsc::channel,
    time::{Duration, Instant},
};

use crate::probe_shared::statistics::Statistics;
use crate::probe_shared::*;
use profiler_common::sched::{STATE_PREEMPTED, STATE_SLEEPING, WaitRecord};
use profiler_model::{
    LostReason, Pid, Tid,
    raw::{RawBody, RawEvent, RawWait, RawWaitStack, RawWaits},
};
use profiler_probe::{Probe, ProbeOptions, now};
use profiler_target::Filter;
use profiler_tests::process::status;
use profiler_tests::skip::{emulated, privileged};

fn attach(pid: u32) -> Box<Probe> {
    attach_to(Filter {
        pids: vec![Pid(pid)],
        ..Filter::default()
    })
}

fn attach_to(filter: Filter) -> Box<Probe> {
    Probe::attach(ProbeOptions {
        hierarchy: None,
        sources: Vec::new(),
        filter,
        buffer_bytes: 8 << 20,
        kernel_stacks: true,
        user_stacks: true,
        unwind: None,
        kernel_log: false,
        off_cpu: true,
        adjustable: false,
        calls: None,
    })
    .unwrap()
}

/// Whether these tests can run here.
fn can_run() -> bool {
    if !privileged("waits") {
        return false;
    }
    let there = Path::new("/sys/kernel/btf/vmlinux").exists();
    if !there {
        eprintln!("SKIPPED: the kernel does not describe its types");
    }
    there
}

fn waits(events: &[RawEvent]) -> impl Iterator<Item = &RawWait> {
    events.iter().filter_map(|event| match &event.body {
        RawBody::Wait(wait) => Some(&**wait),
        _ => None,
    })
}

fn stacks(events: &[RawEvent]) -> impl Iterator<Item = (u64, &RawWaitStack)> {
    events.iter().filter_map(|event| match &event.body {
        RawBody::WaitStack(stack) => Some((event.at.0, &**stack)),
        _ => None,
    })
}

/// Totals of each thread.
fn totals(events: &[RawEvent]) -> BTreeMap<u32, RawWaits> {
    let mut all: BTreeMap<u32, RawWaits> = BTreeMap::new();
    for event in events {
        let RawBody::Waits(waits) = &event.body else {
            continue;
        };
        match all.get_mut(&waits.tid.0) {
            Some(sum) => {
                for index in 0..4 {
                    sum.count[index] += waits.count[index];
                    sum.ns[index] += waits.ns[index];
                }
                sum.runnable_ns += waits.runnable_ns;
            }
            None => {
                all.insert(waits.tid.0, **waits);
            }
        }
    }
    all
}

fn no_losses(events: &[RawEvent]) {
    let lost: Vec<_> = events
        .iter()
        .filter(|event| {
            matches!(&event.body, RawBody::Lost(lost) if lost.reason != LostReason::WaitUnseen)
        })
        .collect();
    assert!(lost.is_empty(), "{lost:?}");
}

/// Waits whose end was not seen, and said to be so. There are kernels that tell no tracepoint while some
/// task is the current one, so that its switches to others are not seen.
fn unseen(events: &[RawEvent]) -> u64 {
    let counts = events.iter().map(|event| match &event.body {
        RawBody::Lost(lost) if lost.reason == LostReason::WaitUnseen => lost.count,
        _ => 0,
    });
    counts.sum()
}

/// Ends the recording of waits.
fn finish(mut probe: Box<Probe>, mut events: Vec<RawEvent>) -> Vec<RawEvent> {
    probe.finish_waits(&mut events);
    probe.drain(&mut events);
    probe.losses(now(), &mut events);
    events.sort_by_key(|event| event.at);
    events
}

/// Switches of a thread: when it waited for something, and when it was put off its processor.
fn switches(task: &str) -> (u64, u64) {
    let status = fs::read_to_string(format!("{task}/status")).unwrap();
    let value = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    };
    (
        value("voluntary_ctxt_switches"),
        value("nonvoluntary_ctxt_switches"),
    )
}

/// How long a thread was runnable without a processor.
fn run_delay_ns(task: &str) -> u64 {
    let text = fs::read_to_string(format!("{task}/schedstat")).unwrap();
    text.split(' ').nth(1).unwrap().parse().unwrap()
}

const SELF: &str = "/proc/thread-self";

/// A moment, and what the kernel had counted of this thread until then: its switches, and how long it was
/// runnable without a processor. It is not switched while it asks.
fn counted() -> (u64, (u64, u64), u64) {
    loop {
        let (before, delay) = (switches(SELF), run_delay_ns(SELF));
        let at = now();
        if switches(SELF) == before {
            return (at.0, before, delay);
        }
    }
}

/// Runs as a workload: see `Workload::start`.
#[test]
#[ignore = "a workload of the other tests"]
fn role() {
    match std::env::var("PROBE_ROLE").as_deref() {
        Ok("sleeps") => {
            println!("role: ready");
            wait_for_go();
            // The first one after a switch is in which this thread is known.
            std::thread::sleep(Duration::from_millis(1));
            let (from, before, delay) = counted();
            for _ in 0..100 {
                std::thread::sleep(Duration::from_millis(10));
            }
            let (until, after, delayed) = counted();
            println!(
                "{from} {until} {} {} {}",
                after.0 - before.0,
                after.1 - before.1,
                delayed - delay
            );
        }
        Ok("handoff") => handoff(),
        Ok("contend") => contend(),
        Ok("pipes") => pipes(),
        Ok("threads") => threads(),
        Ok("siblings") => siblings::run(),
        Ok("forever") => {
            println!("role: ready");
            wait_for_go();
            wait_forever();
        }
        other => panic!("no role {other:?}"),
    }
}

fn tid() -> i32 {
    rustix::thread::gettid().as_raw_nonzero().get()
}

/// Two threads that wake each other.
fn handoff() {
    // So few that all of them are recorded: of more the short ones are by chance.
    let work = || burn_thread(Duration::from_micros(200));
    let (to, from) = (channel::<()>(), channel::<()>());
    let (tell, told) = channel();
    let other = std::thread::spawn(move || {
        tell.send(tid().cast_unsigned()).unwrap();
        for () in to.1 {
            work();
            from.0.send(()).unwrap();
        }
    });
    let tids = [tid().cast_unsigned(), told.recv().unwrap()];
    println!("role: ready");
    wait_for_go();
    let waited = |tid: &u32| status(*tid, "voluntary_ctxt_switches").unwrap();
    let before = tids.each_ref().map(waited);
    // Who gets a processor late finds that there is something to receive, and does not wait.
    while (0..2).any(|at| waited(&tids[at]) - before[at] < 100) {
        for _ in 0..100 {
            work();
            to.0.send(()).unwrap();
            from.1.recv().unwrap();
        }
    }
    drop(to.0);
    other.join().unwrap();
}

/// Two threads that want one processor.
fn contend() {
    let mut only = rustix::thread::CpuSet::new();
    only.set(0);
    println!("role: ready");
    wait_for_go();
    let spin = move || {
        rustix::thread::sched_setaffinity(None, &only).unwrap();
        std::thread::sleep(Duration::from_millis(5));
        let before = run_delay_ns(SELF);
        let end = Instant::now() + Duration::from_secs(2);
        while Instant::now() < end {
            std::hint::spin_loop();
        }
        println!("{} {}", tid(), run_delay_ns(SELF) - before);
    };
    let other = std::thread::spawn(spin);
    spin();
    other.join().unwrap();
}

/// As many switches as there can be: a byte goes to and fro between two threads of each processor.
fn pipes() {
    println!("role: ready");
    wait_for_go();
    let cpus = std::thread::available_parallelism().unwrap().get();
    let ends = Instant::now() + Duration::from_secs(3);
    let mut all = Vec::new();
    for cpu in 0..cpus {
        let (mut to_reader, mut to_writer) = (std::io::pipe().unwrap(), std::io::pipe().unwrap());
        let mut only = rustix::thread::CpuSet::new();
        only.set(cpu);
        all.push(std::thread::spawn(move || {
            rustix::thread::sched_setaffinity(None, &only).unwrap();
            let mut byte = [0];
            while Instant::now() < ends {
                to_writer.1.write_all(&byte).unwrap();
                to_reader.0.read_exact(&mut byte).unwrap();
            }
            drop(to_writer.1);
        }));
        all.push(std::thread::spawn(move || {
            rustix::thread::sched_setaffinity(None, &only).unwrap();
            let mut byte = [0];
            while to_writer.0.read_exact(&mut byte).is_ok() {
                let _ = to_reader.1.write_all(&byte);
            }
        }));
    }
    all.into_iter().for_each(|thread| thread.join().unwrap());
}

const MANY: usize = 300;

/// Many threads that live for three waits each.
fn threads() {
    println!("role: ready");
    wait_for_go();
    let spawn = |_| {
        std::thread::spawn(|| {
            for _ in 0..3 {
                std::thread::sleep(Duration::from_millis(2));
            }
        })
    };
    let all: Vec<_> = (0..MANY).map(spawn).collect();
    all.into_iter().for_each(|thread| thread.join().unwrap());
}

/// Two callers of one function that waits, from frames of the same size.
#[allow(unsafe_code)]
mod siblings {
    std::arch::global_asm!(
        "waits_one: push rbp; mov rbp, rsp; call waits_nap",
        "waits_one_return: pop rbp; ret",
        "waits_two: push rbp; mov rbp, rsp; call waits_nap",
        "waits_two_return: pop rbp; ret",
        // nanosleep(2 ms, null)
        "waits_nap: push rbp; mov rbp, rsp; push 2000000; push 0",
        "mov eax, 35; mov rdi, rsp; xor esi, esi; syscall",
        "leave; ret",
    );
    unsafe extern "C" {
        fn waits_one();
        fn waits_two();
        static waits_one_return: u8;
        static waits_two_return: u8;
    }

    pub(super) fn run() {
        // SAFETY: only addresses are taken, and functions called that keep to the calling convention.
        unsafe {
            println!(
                "role: {} {}",
                (&raw const waits_one_return) as u64,
                (&raw const waits_two_return) as u64
            );
            super::wait_for_go();
            let task = format!("/proc/self/task/{}", super::tid());
            let (from, _) = super::switches(&task);
            for _ in 0..50 {
                waits_one();
                waits_two();
            }
            let (to, _) = super::switches(&task);
            println!("{}", to - from);
        }
    }
}

/// What a workload has printed after its first line, as numbers.
fn printed(workload: &mut Workload) -> Vec<Vec<u64>> {
    let mut text = String::new();
    workload.output.read_to_string(&mut text).unwrap();
    let numbers = |line: &str| {
        line.split(' ')
            .map(|word| word.parse().ok())
            .collect::<Option<Vec<u64>>>()
    };
    text.lines().filter_map(numbers).collect()
}

#[test]
fn each_sleep_is_a_wait_with_its_length_and_switches_are_counted_exactly() {
    if !can_run() {
        return;
    }
    let mut workload = Workload::start(module_path!(), "sleeps");
    let pid = workload.pid();
    let mut probe = attach(pid);
    workload.go();
    let events = record_to_the_end(&mut probe, &mut workload);
    let events = finish(probe, events);
    no_losses(&events);
    let [from, until, voluntary, involuntary, delay] = printed(&mut workload)[0][..] else {
        panic!("the role has not printed five numbers");
    };
    // The timer of a sleep is started before the thread leaves its processor, so its wait may be shorter.
    // The roles of the test harness run in a thread of their own.
    let inside: Vec<_> = waits(&events)
        .map(|wait| wait.record)
        .filter(|record| from < record.at_ns && record.at_ns <= until)
        .collect();
    let sleeps: Vec<_> = inside
        .iter()
        .filter(|record| {
            record.state == STATE_SLEEPING && record.at_ns - record.from_ns >= 8_000_000
        })
        .collect();
    let unseen = unseen(&events);
    // One that is preempted between the two for long has a short wait. What else is missing is said.
    assert!(
        (60..=100).contains(&sleeps.len()) && sleeps.len() as u64 + unseen >= 95,
        "{} of 100 sleeps, {unseen} waits unseen",
        sleeps.len()
    );
    assert!(inside.iter().all(|record| record.weight == 1));
    let tid = sleeps[0].tid;
    let own: Vec<_> = inside.iter().filter(|record| record.tid == tid).collect();
    let preempted = own
        .iter()
        .filter(|record| record.state == STATE_PREEMPTED)
        .count() as u64;
    let counted = &totals(&events)[&tid].count;
    let found = [own.len() as u64 - preempted, preempted];
    let missing = [voluntary, involuntary]
        .map(i128::from)
        .iter()
        .zip(found)
        .map(|(count, found)| count - i128::from(found))
        .collect::<Vec<_>>();
    assert!(
        missing.iter().all(|missing| *missing >= 0)
            && missing.iter().sum::<i128>() <= i128::from(unseen),
        "{found:?} of {voluntary} and {involuntary}, {unseen} unseen; all that were counted from its first to its last: {counted:?}; missing records are between {:?}",
        own.windows(2)
            .filter(|two| two[1].from_ns - two[0].at_ns > 5_000_000)
            .map(|two| (two[0].at_ns, two[1].from_ns))
            .collect::<Vec<_>>()
    );
    // A timer wakes them, which is nobody.
    let woken = sleeps.iter().filter(|record| record.waker_tid != 0).count();
    assert!(woken <= 2, "{woken} of 100 sleeps were ended by threads");
    let runnable: u64 = own
        .iter()
        .map(|record| match record.state {
            STATE_PREEMPTED => record.at_ns - record.from_ns,
            _ if record.woken_ns == 0 => 0,
            _ => record.at_ns - record.woken_ns,
        })
        .sum();
    let is_unwoken =
        |record: &&&WaitRecord| record.state != STATE_PREEMPTED && record.woken_ns == 0;
    let unwoken = own.iter().filter(is_unwoken).count();
    // What hides switches hides wake-ups on the same processor.
    assert!(
        unwoken as u64 <= 5 + unseen,
        "{unwoken} of 100 sleeps were ended unseen, {unseen} switches unseen"
    );
    // Emulated, the probes at a wake-up take as long as what they measure. A processor takes some time to
    // become busy (30 us on virtual machines), in which the clock of its run queue stands still.
    if unwoken == 0 && unseen == 0 && !emulated() {
        let idle_exits = 100_000 * sleeps.len() as u64;
        assert_near("run delay", runnable, delay, delay / 5 + idle_exits);
    }
    // All that is recorded has been counted, and has a stack that was sent before.
    let total = totals(&events)[&tid];
    let recorded = waits(&events).filter(|wait| wait.record.tid == tid);
    // The one that goes on at the end is told as a wait, and not counted as one that has ended.
    assert_near(
        "waits",
        total.count.iter().sum(),
        recorded.count() as u64,
        1,
    );
    for record in own {
        let (_, stack) = stacks(&events)
            .find(|(at, stack)| stack.key == record.key && *at <= record.from_ns)
            .expect("a wait without a stack");
        assert!(stack.kernel.addresses().len() > 2);
        assert!(stack.user.addresses().len() > 0);
    }
}

#[test]
fn threads_that_wake_each_other_are_named() {
    if !can_run() {
        return;
    }
    let mut workload = Workload::start(module_path!(), "handoff");
    let mut probe = attach(workload.pid());
    workload.go();
    let events = record_to_the_end(&mut probe, &mut workload);
    let events = finish(probe, events);
    let mut by: BTreeMap<(u32, u32), usize> = BTreeMap::new();
    for wait in waits(&events).filter(|wait| wait.record.state == STATE_SLEEPING) {
        *by.entry((wait.record.tid, wait.record.waker_tid))
            .or_default() += 1;
    }
    let mut pairs: Vec<_> = by.into_iter().collect();
    pairs.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let [((a, by_a), one), ((b, by_b), other), rest @ ..] = &pairs[..] else {
        panic!("{pairs:?}");
    };
    assert_eq!((a, b), (by_b, by_a), "{pairs:?}");
    let rest: usize = rest.iter().map(|(_, count)| count).sum();
    assert!(one + other > 20 * rest, "{pairs:?}");
    assert!(*one.min(other) >= 20, "{pairs:?}");
}

#[test]
fn who_shares_a_processor_is_runnable_for_the_time_that_the_kernel_says() {
    if !can_run() {
        return;
    }
    let mut workload = Workload::start(module_path!(), "contend");
    let mut probe = attach(workload.pid());
    workload.go();
    let events = record_to_the_end(&mut probe, &mut workload);
    let totals = totals(&finish(probe, events));
    let lines = printed(&mut workload);
    assert_eq!(lines.len(), 2, "{lines:?}");
    for line in lines {
        let (tid, delay) = (line[0] as u32, line[1]);
        let total = totals[&tid];
        assert!(
            delay > 500_000_000,
            "{delay} ns of two seconds without a processor"
        );
        assert_near("runnable", total.runnable_ns, delay, delay / 20);
        assert!(total.ns[STATE_PREEMPTED as usize] > delay * 9 / 10);
    }
}

#[test]
fn what_is_recorded_by_chance_adds_up_to_the_totals() {
    if !can_run() {
        return;
    }
    let mut workload = Workload::start(module_path!(), "pipes");
    let mut probe = attach(workload.pid());
    workload.go();
    let events = record_to_the_end(&mut probe, &mut workload);
    let counters = probe.wait_counters();
    let events = finish(probe, events);
    no_losses(&events);
    let totals = totals(&events);
    let ended: u64 = counters.iter().map(|cpu| cpu.ended).sum();
    let recorded: u64 = counters.iter().map(|cpu| cpu.recorded).sum();
    let walked: u64 = counters.iter().map(|cpu| cpu.walked).sum();
    println!("{ended} waits ended, {recorded} recorded, {walked} stacks walked");
    let counted: u64 = totals
        .values()
        .map(|total| total.count.iter().sum::<u64>())
        .sum();
    assert_eq!(counted, ended);
    if !emulated() {
        assert!(recorded * 2 < ended, "too few switches for this test");
        assert!(recorded < 3 * 20_000, "{recorded} in three seconds");
        assert!(walked < 3 * 8_000, "{walked} in three seconds");
    }
    let weights: Vec<u32> = waits(&events).map(|wait| wait.record.weight).collect();
    assert_eq!(weights.len() as u64, recorded);
    // With rounding by chance.
    let most = weights.iter().max().copied().unwrap_or_default();
    assert!(most <= 1025, "one stands for {most}");
    let (mut sum, mut variance) = ([0.0, 0.0], [0.0, 0.0]);
    for wait in waits(&events) {
        let record = &wait.record;
        let weight = f64::from(record.weight);
        let ns = (record.at_ns - record.from_ns) as f64;
        for (index, value) in [1.0, ns].into_iter().enumerate() {
            sum[index] += weight * value;
            variance[index] += weight * (weight - 1.0) * value * value;
        }
    }
    let all = |part: fn(&RawWaits) -> [u64; 4]| -> f64 {
        totals
            .values()
            .flat_map(part)
            .map(|value| value as f64)
            .sum()
    };
    for (index, exact) in [all(|waits| waits.count), all(|waits| waits.ns)]
        .into_iter()
        .enumerate()
    {
        let sigma = variance[index].sqrt();
        println!("{} of {exact}, sigma {sigma}", sum[index]);
        // Four of them, and what goes on at the end.
        assert!((sum[index] - exact).abs() < 4.0 * sigma + exact * 1e-4 + 10.0);
    }
}

#[test]
fn what_a_thread_has_waited_is_told_when_it_ends() {
    if !can_run() {
        return;
    }
    let mut workload = Workload::start(module_path!(), "threads");
    let pid = workload.pid();
    let mut probe = attach(pid);
    workload.go();
    let events = record_to_the_end(&mut probe, &mut workload);
    let events = finish(probe, events);
    no_losses(&events);
    let totals = totals(&events);
    let at_least = |sleeps: u64, ns: u64| {
        let state = STATE_SLEEPING as usize;
        let has = |total: &&RawWaits| total.count[state] >= sleeps && total.ns[state] >= ns;
        totals.values().filter(has).count()
    };
    let (told, slept) = (at_least(1, 0), at_least(3, 4_000_000));
    // On a slow or busy processor a timer may fire before its thread has gone to sleep.
    let wanted = MANY * if emulated() { 90 } else { 97 } / 100;
    assert!(
        told >= MANY && slept >= wanted,
        "{told} and {slept} of {MANY} threads"
    );
}

/// Waits of a thread that goes on waiting, told three times: each is whole, and totals are as if none had been.
#[test]
fn a_wait_that_goes_on_can_be_told_any_time() {
    if !can_run() {
        return;
    }
    let mut workload = Workload::start(module_path!(), "forever");
    let mut probe = attach(workload.pid());
    workload.go();
    let mut events = record(&mut probe, Duration::from_millis(300));
    let mut told = Vec::new();
    for _ in 0..3 {
        let (at, mut now_told) = (now(), Vec::new());
        probe.tell_waits(at, &mut now_told).unwrap();
        let longest = waits(&now_told).max_by_key(|wait| wait.record.at_ns - wait.record.from_ns);
        told.push((at.0, longest.unwrap().record));
        assert_eq!(waits(&now_told).count(), now_told.len());
        events.extend(record(&mut probe, Duration::from_millis(50)));
    }
    let from = told[0].1.from_ns;
    for (at, record) in &told {
        assert_eq!((record.at_ns, record.from_ns), (*at, from));
        assert_eq!((record.state, record.weight), (STATE_SLEEPING, 1));
    }
    let tid = told[0].1.tid;
    let is_it = |wait: &&RawWait| wait.record.tid == tid && wait.record.from_ns == from;
    assert_eq!(waits(&events).filter(is_it).count(), 0);
    let events = finish(probe, events);
    let last: Vec<u64> = waits(&events)
        .filter(is_it)
        .map(|wait| wait.record.at_ns - from)
        .collect();
    assert_eq!(last.len(), 1);
    assert!(totals(&events)[&tid].ns[STATE_SLEEPING as usize] >= last[0]);
}

#[test]
fn a_wait_that_goes_on_is_told_at_the_end() {
    if !can_run() {
        return;
    }
    let mut workload = Workload::start(module_path!(), "forever");
    let mut probe = attach(workload.pid());
    workload.go();
    let events = record(&mut probe, Duration::from_millis(800));
    let going_on = probe.forget_wait_stacks().unwrap();
    let ended = now().0;
    let events = finish(probe, events);
    let until = ended..=now().0;
    let long: Vec<_> = waits(&events)
        .map(|wait| wait.record)
        .filter(|record| record.at_ns - record.from_ns > 500_000_000)
        .collect();
    let [open] = long[..] else {
        panic!("{long:?}");
    };
    assert!(
        until.contains(&open.at_ns) && open.state == STATE_SLEEPING && open.weight == 1,
        "{open:?} {until:?}"
    );
    assert!(stacks(&events).any(|(_, stack)| stack.key == open.key));
    // Its stack is not sent again.
    assert!(going_on.contains(&open.key), "{going_on:x?}");
    let total = totals(&events)[&open.tid];
    let ns = open.at_ns - open.from_ns;
    assert!(total.ns[STATE_SLEEPING as usize] >= ns, "{total:?}");
}

/// Threads that wait before anything is attached: one is woken meanwhile, one goes on waiting. Both have their
/// kernel stacks, and count from the beginning.
#[test]
fn what_waits_already_counts_from_the_beginning() {
    if !can_run() {
        return;
    }
    let (told, ids) = channel();
    let (wake, woken) = channel::<()>();
    let (keep, kept) = channel::<()>();
    let sleepers = [woken, kept].map(|until| {
        let told = told.clone();
        std::thread::spawn(move || {
            told.send(tid()).unwrap();
            let _ = until.recv();
        })
    });
    let tids = [ids.recv().unwrap(), ids.recv().unwrap()].map(i32::cast_unsigned);
    let sleeps = |tid: &u32| {
        let stat = fs::read_to_string(format!("/proc/self/task/{tid}/stat")).unwrap();
        stat.rsplit(')')
            .next()
            .unwrap()
            .trim_start()
            .starts_with('S')
    };
    while !tids.iter().all(sleeps) {
        std::thread::sleep(Duration::from_millis(1));
    }
    let mut probe = attach(std::process::id());
    let mut events = Vec::new();
    let before = now();
    probe
        .begin_waits(None, &mut read_memory, &mut events)
        .unwrap();
    let begun = now();
    let found: Vec<_> = stacks(&events)
        .map(|(at, stack)| (at, stack.clone()))
        .collect();
    std::thread::sleep(Duration::from_millis(200));
    wake.send(()).unwrap();
    std::thread::sleep(Duration::from_millis(200));
    let events = finish(probe, events);
    drop(keep);
    for sleeper in sleepers {
        sleeper.join().unwrap();
    }
    no_losses(&events);

    let mut lengths = Vec::new();
    for tid in tids {
        let (at, stack) = found.iter().find(|(_, stack)| stack.tid.0 == tid).unwrap();
        assert!((before.0..=begun.0).contains(at));
        assert!(!stack.kernel.bytes.is_empty() && stack.user.bytes.len() == 8);
        let own = |wait: &&RawWait| wait.record.tid == tid && wait.record.key == stack.key;
        let wait = waits(&events).find(own).unwrap();
        assert_eq!(
            (wait.record.from_ns, wait.record.state),
            (*at, STATE_SLEEPING)
        );
        lengths.push(wait.record.at_ns - at);
        let totals = totals(&events)[&tid];
        assert!(totals.ns.iter().sum::<u64>() >= lengths[lengths.len() - 1]);
    }
    lengths.sort_unstable();
    assert!(
        lengths[0] >= 200_000_000 && lengths[1] >= 400_000_000,
        "{lengths:?}"
    );

    // Whoever waits for us does not wait.
    let mut probe = attach(std::process::id());
    let mut events = Vec::new();
    probe
        .begin_waits(Some(Pid(std::process::id())), &mut read_memory, &mut events)
        .unwrap();
    assert_eq!(stacks(&events).count(), 0);
}

#[test]
fn two_callers_from_frames_of_one_size_have_their_own_stacks() {
    if !can_run() {
        return;
    }
    let mut workload = Workload::start(module_path!(), "siblings");
    let places: Vec<u64> = workload
        .line
        .split(' ')
        .map(|word| word.parse().unwrap())
        .collect();
    let mut probe = attach(workload.pid());
    workload.go();
    let events = record_to_the_end(&mut probe, &mut workload);
    let events = finish(probe, events);
    let (mut found, mut slept) = ([0, 0], [0, 0]);
    let mut latest: BTreeMap<u64, &RawWaitStack> = BTreeMap::new();
    for event in &events {
        match &event.body {
            RawBody::WaitStack(stack) => {
                latest.insert(stack.key, stack);
            }
            RawBody::Wait(wait) => {
                let callers = latest.get(&wait.record.key);
                let caller = callers.and_then(|stack| stack.user.addresses().nth(1));
                if let Some(which) = places.iter().position(|place| Some(*place) == caller) {
                    found[which] += 1;
                    slept[which] += u64::from(wait.record.state == STATE_SLEEPING);
                }
            }
            _ => {}
        }
    }
    // Some are preempted on the way besides; if that takes longer than the sleep, there is none. Nor is there one where the
    // machine stood still until the timer had run out: then the thread did not leave its processor.
    let unseen = unseen(&events);
    let left = printed(&mut workload)[0][0];
    let stayed = 100_u64.saturating_sub(left);
    assert!(
        found.iter().all(|count| count + unseen + stayed >= 50)
            && slept.iter().all(|count| *count <= 50),
        "{found:?}, of these sleeps {slept:?}, {unseen} unseen, {stayed} ended at once"
    );
}

/// `cargo test --release -p profiler-tests --test probes probe_waits::timing_of -- --ignored --nocapture`
#[test]
#[ignore = "measures, on a quiet machine"]
fn timing_of_switches() {
    if !can_run() {
        return;
    }
    let _statistics = Statistics::enable();
    let mut workload = Workload::start(module_path!(), "pipes");
    let mut probe = attach_to(Filter::default());
    workload.go();
    let mut bytes = 0;
    let (began, used) = (Instant::now(), cpu_ns());
    let mut events = Vec::new();
    while workload.child.try_wait().unwrap().is_none() {
        std::thread::sleep(Duration::from_millis(50));
        events.clear();
        bytes += probe.drain(&mut events).ring_bytes;
    }
    let (elapsed, used) = (began.elapsed().as_secs_f64(), cpu_ns() - used);
    let counters = probe.wait_counters();
    let ended: u64 = counters.iter().map(|cpu| cpu.ended).sum();
    let recorded: u64 = counters.iter().map(|cpu| cpu.recorded).sum();
    let walked: u64 = counters.iter().map(|cpu| cpu.walked).sum();
    println!(
        "{:.0} waits/s, {:.0} recorded/s, {:.0} stacks/s, {:.0} bytes/s, {:.2} % of a processor in user space",
        ended as f64 / elapsed,
        recorded as f64 / elapsed,
        walked as f64 / elapsed,
        bytes as f64 / elapsed,
        used as f64 / 1e7 / elapsed,
    );
    let shown = std::process::Command::new("bpftool")
        .args(["prog", "show"])
        .output();
    if let Ok(shown) = shown {
        let text = String::from_utf8_lossy(&shown.stdout).into_owned();
        for line in text.lines().filter(|line| line.contains("name wait_")) {
            println!("{line}");
        }
    }
}

/// CPU time of this process.
fn cpu_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Memory of a thread, which is ours and answers.
fn read_memory(pid: Pid, tid: Tid, address: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    let file = fs::File::open(format!("/proc/{pid}/task/{tid}/mem")).unwrap();
    let read = std::os::unix::fs::FileExt::read_at(&file, &mut bytes, address);
    bytes.truncate(read.unwrap_or(0));
    bytes
}
