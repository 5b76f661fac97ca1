//! Cgroups on the kernel side against the real kernel: filters, names that are waited for, decisions,
//! what is told of cgroups that come and go.
//!
//! The oracle is exact: a process enters cgroups one after the other and makes a known number of
//! system calls in each, and every system call is a sample. Needs root; says what it skips without.

// Failing is what tests do.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead, Write},
    os::fd::AsFd,
    path::Path,
    time::Duration,
};

use crate::probe_shared::cgroups::{Made, hierarchies, version_one, version_two};
use crate::probe_shared::statistics::{Statistics, run_times};
use crate::probe_shared::*;

use profiler_common::{
    call::{EDGE_HIT, ProbeControl},
    control::Counters,
};
use profiler_model::raw::{CgroupVerdict, RawBody, RawCgroup, RawEvent};
use profiler_probe::{
    CallOptions, CallSite, CallTarget, EventSpec, Probe, ProbeOptions, Rate, SourceSpec,
};
use profiler_target::{
    Filter,
    cgroup::{Cgroup, CgroupFilter, Hierarchy, Version},
};
use profiler_tests::skip::{emulated, privileged};

/// Every system call of what the filter wants, without stacks.
fn options(hierarchy: &Hierarchy, filter: CgroupFilter) -> ProbeOptions {
    ProbeOptions {
        sources: vec![SourceSpec {
            event: "raw_syscalls:sys_enter".parse::<EventSpec>().unwrap(),
            rate: Rate::Period(1),
        }],
        hierarchy: Some(hierarchy.clone()),
        filter: Filter {
            cgroups: Some(filter),
            ..Filter::default()
        },
        buffer_bytes: 8 << 20,
        kernel_stacks: false,
        user_stacks: false,
        unwind: None,
        kernel_log: false,
        off_cpu: false,
        adjustable: false,
        calls: None,
    }
}

fn wanted(cgroups: &[&Made]) -> CgroupFilter {
    CgroupFilter {
        wanted: cgroups.iter().map(|made| made.cgroup()).collect(),
        ..CgroupFilter::default()
    }
}

/// Runs as a workload: see `Workload::start`.
#[test]
#[ignore = "a workload of the other tests"]
fn role() {
    println!("role: {}", leaf::file_offset());
    if std::env::var("PROBE_ROLE").as_deref() == Ok("busy") {
        loop {
            let _ = rustix::process::getppid();
        }
    }
    assert_eq!(std::env::var("PROBE_ROLE").as_deref(), Ok("visitor"));
    for line in std::io::stdin().lines() {
        for visit in line.unwrap().split(' ') {
            let (calls, directory) = visit.split_once(':').unwrap();
            enter(Path::new(directory));
            for _ in 0..calls.parse::<u32>().unwrap() {
                leaf::call();
                let _ = rustix::process::getppid();
            }
        }
        println!("role: done");
    }
}

/// A function that the visitor calls as often as it makes system calls.
#[allow(unsafe_code)]
mod leaf {
    use std::fs;

    std::arch::global_asm!("probe_cgroups_leaf: push rbp; mov rbp, rsp; pop rbp; ret");

    unsafe extern "C" {
        fn probe_cgroups_leaf();
    }

    pub(super) fn call() {
        // SAFETY: it does nothing.
        unsafe { probe_cgroups_leaf() };
    }

    /// Where it is in the file of this program.
    pub(super) fn file_offset() -> u64 {
        let address = probe_cgroups_leaf as *const () as u64;
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
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
}

/// Makes this process a member of a cgroup.
fn enter(directory: &Path) {
    fs::write(directory.join("cgroup.procs"), "0").unwrap();
}

/// Besides those that are asked for, a visit has the system calls that close the file that it was begun
/// by, and open and write the one that ends it.
const AROUND: u64 = 3;

/// Has `workload` make so many system calls in each cgroup, and leave the last one.
fn visit(workload: &mut Workload, home: &Hierarchy, visits: &[(&Made, u32)]) {
    let mut line = String::new();
    for (made, calls) in visits {
        line += &format!("{calls}:{} ", made.directory.display());
    }
    line += &format!("0:{}\n", home.mount.display());
    let mut input = workload.child.stdin.as_ref().unwrap();
    input.write_all(line.as_bytes()).unwrap();
    let mut answer = String::new();
    workload.output.read_line(&mut answer).unwrap();
    assert_eq!(answer, "role: done\n");
}

fn drained(probe: &mut Probe) -> Vec<RawEvent> {
    let mut events = Vec::new();
    let stats = probe.drain(&mut events);
    assert_eq!((stats.bad, stats.unknown), (0, 0));
    let full: u64 = probe.counters()[0].iter().map(|cpu| cpu.ring_full).sum();
    assert_eq!(full, 0);
    events
}

/// Samples by cgroup and whether they are undecided.
fn counts(events: &[RawEvent]) -> BTreeMap<(u64, bool), u64> {
    let mut counts = BTreeMap::new();
    for (_, sample) in samples(events) {
        *counts.entry((sample.cgroup, sample.undecided)).or_insert(0) += 1;
    }
    counts
}

/// What `counts` is to be: cgroup, whether undecided, calls.
fn expected<const N: usize>(visits: [(&Made, bool, u64); N]) -> BTreeMap<(u64, bool), u64> {
    let mut counts = BTreeMap::new();
    for (made, undecided, calls) in visits {
        *counts.entry((made.id(), undecided)).or_insert(0) += calls + AROUND;
    }
    counts
}

/// What was told of a cgroup.
fn told(events: &[RawEvent], id: u64) -> Vec<&RawCgroup> {
    let cgroups = events.iter().filter_map(|event| match &event.body {
        RawBody::Cgroup(cgroup) if cgroup.id == id => Some(&**cgroup),
        _ => None,
    });
    cgroups.collect()
}

#[track_caller]
fn assert_made(events: &[RawEvent], made: &Made, verdict: CgroupVerdict) {
    let expected = RawCgroup {
        id: made.id(),
        path: made.path().into(),
        removed: false,
        verdict,
    };
    assert_eq!(told(events, made.id()), [&expected]);
}

#[test]
fn a_cgroup_s_samples_come_and_those_of_all_below_it() {
    const TEST: &str = "a_cgroup_s_samples_come_and_those_of_all_below_it";
    if !privileged(TEST) {
        return;
    }
    for hierarchy in hierarchies(TEST) {
        let (ours, other) = (Made::new(&hierarchy), Made::new(&hierarchy));
        let early = ours.below("early");
        let mut workload = Workload::start(module_path!(), "visitor");
        let mut probe = Probe::attach(options(&hierarchy, wanted(&[&ours]))).unwrap();
        let late = ours.below("late");
        let deep = late.below("deep");
        let elsewhere = other.below("late");
        let visits = [
            (&ours, 10),
            (&other, 20),
            (&early, 30),
            (&elsewhere, 40),
            (&late, 50),
            (&deep, 60),
            (&other, 70),
            (&ours, 80),
        ];
        visit(&mut workload, &hierarchy, &visits);
        let events = drained(&mut probe);
        let expected = expected([
            (&ours, false, 10),
            (&ours, false, 80),
            (&early, false, 30),
            (&late, false, 50),
            (&deep, false, 60),
        ]);
        assert_eq!(counts(&events), expected, "{hierarchy:?}");
        assert!(samples(&events).all(|(_, sample)| sample.pid.0 == workload.pid()));
        for made in [&late, &deep, &elsewhere] {
            assert_made(&events, made, CgroupVerdict::Inherited);
        }
        assert_eq!(told(&events, early.id()), [] as [&RawCgroup; 0]);

        let (id, path) = (deep.id(), deep.path());
        drop(deep);
        let removed = RawCgroup {
            id,
            path: path.into(),
            removed: true,
            verdict: CgroupVerdict::Inherited,
        };
        assert_eq!(told(&drained(&mut probe), id), [&removed]);
    }
}

#[test]
fn a_cgroup_that_is_waited_for_counts_from_its_first_sample() {
    const TEST: &str = "a_cgroup_that_is_waited_for_counts_from_its_first_sample";
    if !privileged(TEST) {
        return;
    }
    for hierarchy in hierarchies(TEST) {
        let top = Made::new(&hierarchy);
        let longest = "n".repeat(127);
        let filter = CgroupFilter {
            names: vec!["web".to_owned(), longest.clone()],
            ..CgroupFilter::default()
        };
        // It had the name before.
        let early = top.below("web");
        let mut workload = Workload::start(module_path!(), "visitor");
        let mut probe = Probe::attach(options(&hierarchy, filter)).unwrap();
        let middle = top.below("middle");
        let web = middle.below("web");
        let below = web.below("below");
        let long = top.below(&longest);
        let longer = top.below(&format!("{longest}n"));
        let other = top.below("web2");
        let visits = [
            (&early, 10),
            (&web, 20),
            (&middle, 30),
            (&below, 40),
            (&long, 50),
            (&longer, 60),
            (&other, 70),
        ];
        visit(&mut workload, &hierarchy, &visits);
        let events = drained(&mut probe);
        let expected = expected([(&web, false, 20), (&below, false, 40), (&long, false, 50)]);
        assert_eq!(counts(&events), expected, "{hierarchy:?}");
        for made in [&web, &long] {
            assert_made(&events, made, CgroupVerdict::Wanted);
        }
        for made in [&middle, &below, &longer, &other] {
            assert_made(&events, made, CgroupVerdict::Inherited);
        }
    }
}

#[test]
fn a_new_cgroup_is_undecided_until_it_is_decided() {
    const TEST: &str = "a_new_cgroup_is_undecided_until_it_is_decided";
    if !privileged(TEST) {
        return;
    }
    for hierarchy in hierarchies(TEST) {
        let (old, ours) = (Made::new(&hierarchy), Made::new(&hierarchy));
        let filter = CgroupFilter {
            undecided: true,
            ..wanted(&[&ours])
        };
        let mut workload = Workload::start(module_path!(), "visitor");
        let mut probe = Probe::attach(options(&hierarchy, filter)).unwrap();
        let child = ours.below("child");
        let (good, bad) = (old.below("good"), old.below("bad"));
        let below = bad.below("below");
        let visits = [
            (&old, 10),
            (&child, 20),
            (&good, 30),
            (&bad, 40),
            (&below, 50),
        ];
        visit(&mut workload, &hierarchy, &visits);
        let events = drained(&mut probe);
        let undecided = expected([
            (&child, false, 20),
            (&good, true, 30),
            (&bad, true, 40),
            (&below, true, 50),
        ]);
        assert_eq!(counts(&events), undecided, "{hierarchy:?}");
        assert_made(&events, &child, CgroupVerdict::Inherited);
        for made in [&good, &bad, &below] {
            assert_made(&events, made, CgroupVerdict::Undecided);
        }

        probe.decide(good.id(), true).unwrap();
        probe.decide(bad.id(), false).unwrap();
        let (in_good, in_bad) = (good.below("in"), bad.below("in"));
        let visits = [
            (&good, 10),
            (&in_good, 20),
            (&bad, 30),
            (&in_bad, 40),
            (&below, 50),
        ];
        visit(&mut workload, &hierarchy, &visits);
        let events = drained(&mut probe);
        // What is below one that is not wanted may be wanted for itself.
        let after = expected([
            (&good, false, 10),
            (&in_good, false, 20),
            (&in_bad, true, 40),
            (&below, true, 50),
        ]);
        assert_eq!(counts(&events), after, "{hierarchy:?}");

        // Also what was there before, with what is below it; and back.
        probe.decide(old.id(), true).unwrap();
        visit(&mut workload, &hierarchy, &[(&old, 1), (&bad, 2)]);
        assert_eq!(counts(&drained(&mut probe)), expected([(&old, false, 1)]));
        probe.decide(old.id(), false).unwrap();
        probe.decide(below.id(), true).unwrap();
        visit(&mut workload, &hierarchy, &[(&old, 1), (&below, 2)]);
        assert_eq!(counts(&drained(&mut probe)), expected([(&below, false, 2)]));
    }
}

#[test]
fn the_deepest_cgroups_are_left_to_user_space() {
    const TEST: &str = "the_deepest_cgroups_are_left_to_user_space";
    if !privileged(TEST) {
        return;
    }
    for hierarchy in hierarchies(TEST) {
        let top = Made::new(&hierarchy);
        let mut workload = Workload::start(module_path!(), "visitor");
        let mut probe = Probe::attach(options(&hierarchy, wanted(&[&top]))).unwrap();
        let mut nested: Vec<Made> = Vec::new();
        for _ in 0..70 {
            let next = nested.last().unwrap_or(&top).below("in");
            nested.push(next);
        }
        // The wanted one is the 64th from here, and the 65th.
        let (last, first, deepest) = (&nested[62], &nested[63], &nested[69]);
        let visits = [(last, 10), (first, 20), (deepest, 30)];
        visit(&mut workload, &hierarchy, &visits);
        let events = drained(&mut probe);
        let before = expected([(last, false, 10), (first, true, 20), (deepest, true, 30)]);
        assert_eq!(counts(&events), before, "{hierarchy:?}");
        assert_made(&events, deepest, CgroupVerdict::Inherited);

        probe.decide(first.id(), true).unwrap();
        probe.decide(deepest.id(), false).unwrap();
        visit(&mut workload, &hierarchy, &visits);
        let after = expected([(last, false, 10), (first, false, 20)]);
        assert_eq!(counts(&drained(&mut probe)), after, "{hierarchy:?}");
        while nested.pop().is_some() {}
    }
}

#[test]
fn cgroups_that_are_gone_leave_nothing_behind() {
    const TEST: &str = "cgroups_that_are_gone_leave_nothing_behind";
    if !privileged(TEST) {
        return;
    }
    // More than there is room for at a time.
    let many = if emulated() { 500 } else { 17_000 };
    for hierarchy in hierarchies(TEST) {
        let top = Made::new(&hierarchy);
        let filter = CgroupFilter {
            undecided: true,
            ..CgroupFilter::default()
        };
        let mut workload = Workload::start(module_path!(), "visitor");
        let mut probe = Probe::attach(options(&hierarchy, filter)).unwrap();
        let memory_bytes = probe.memory_bytes();
        let (mut made, mut removed) = (0, 0);
        let mut count = |events: &[RawEvent]| {
            for event in events {
                if let RawBody::Cgroup(cgroup) = &event.body
                    && cgroup.path.starts_with(&top.path())
                {
                    let undecided = cgroup.verdict == CgroupVerdict::Undecided;
                    assert_eq!(undecided, !cgroup.removed, "no room after {made}");
                    made += u32::from(!cgroup.removed);
                    removed += u32::from(cgroup.removed);
                }
            }
        };
        for number in 0..many {
            let one = top.below("one");
            let id = one.id();
            // Decided while it is there, when it has just been removed, when that is known.
            if number % 4 == 0 {
                probe.decide(id, number % 8 == 0).unwrap();
            }
            drop(one);
            if number % 4 == 1 {
                probe.decide(id, false).unwrap();
            }
            if number % 16 == 2 {
                count(&drained(&mut probe));
                probe.decide(id, true).unwrap();
            }
        }
        count(&drained(&mut probe));
        assert_eq!((made, removed), (many, many), "{hierarchy:?}");
        assert_eq!(probe.memory_bytes(), memory_bytes);
        let last = top.below("last");
        visit(&mut workload, &hierarchy, &[(&last, 10)]);
        let events = drained(&mut probe);
        assert_eq!(counts(&events), expected([(&last, true, 10)]));
    }
}

#[test]
fn ids_are_those_of_the_session_s_hierarchy() {
    const TEST: &str = "ids_are_those_of_the_session_s_hierarchy";
    if !privileged(TEST) {
        return;
    }
    let (Some(two), Some(one)) = (version_two(), version_one()) else {
        profiler_tests::skip::skip(TEST, "not both versions of cgroups are mounted");
        return;
    };
    for (own, foreign) in [(&two, &one), (&one, &two)] {
        let (ours, theirs) = (Made::new(own), Made::new(foreign));
        let mut workload = Workload::start(module_path!(), "visitor");
        // In the session's hierarchy, nobody has this id.
        let filter = wanted(&[&theirs]);
        let mut probe = Probe::attach(options(own, filter)).unwrap();
        visit(&mut workload, foreign, &[(&theirs, 10)]);
        visit(&mut workload, own, &[(&ours, 20)]);
        let below = theirs.below("below");
        let events = drained(&mut probe);
        assert_eq!(counts(&events), BTreeMap::new());
        assert_eq!(told(&events, below.id()), [] as [&RawCgroup; 0]);

        // In one of each at a time.
        let mut probe = Probe::attach(options(own, wanted(&[&ours]))).unwrap();
        theirs.add(workload.pid());
        visit(&mut workload, own, &[(&ours, 30)]);
        assert_eq!(counts(&drained(&mut probe)), expected([(&ours, false, 30)]));
    }
}

#[test]
fn samples_name_their_cgroup_without_a_filter() {
    const TEST: &str = "samples_name_their_cgroup_without_a_filter";
    if !privileged(TEST) {
        return;
    }
    for hierarchy in hierarchies(TEST) {
        let made = Made::new(&hierarchy);
        let mut workload = Workload::start(module_path!(), "visitor");
        let mut options = options(&hierarchy, CgroupFilter::default());
        options.filter.cgroups = None;
        options.filter.pids = vec![profiler_model::Pid(workload.pid())];
        let mut probe = Probe::attach(options.clone()).unwrap();
        let error = probe.decide(made.id(), true).unwrap_err().to_string();
        assert!(error.contains("does not filter by cgroups"), "{error}");
        let late = made.below("late");
        visit(&mut workload, &hierarchy, &[(&made, 10), (&late, 20)]);
        let events = drained(&mut probe);
        let counts_by_cgroup = counts(&events);
        for (made, calls) in [(&made, 10), (&late, 20)] {
            let count = counts_by_cgroup.get(&(made.id(), false));
            assert_eq!(count, Some(&(calls + AROUND)), "{hierarchy:?}");
        }
        assert!(!counts_by_cgroup.contains_key(&(0, false)));
        assert_made(&events, &late, CgroupVerdict::Inherited);

        // Without a hierarchy, they name none.
        options.hierarchy = None;
        let mut probe = Probe::attach(options).unwrap();
        visit(&mut workload, &hierarchy, &[(&made, 10)]);
        let events = drained(&mut probe);
        let ids = counts(&events);
        assert_eq!(ids.keys().collect::<Vec<_>>(), [&(0, false)]);
        assert_eq!(told(&events, late.id()), [] as [&RawCgroup; 0]);
    }
}

#[test]
fn an_address_that_is_used_again_has_no_verdict() {
    const TEST: &str = "an_address_that_is_used_again_has_no_verdict";
    if !privileged(TEST) {
        return;
    }
    let rounds = if emulated() { 30 } else { 600 };
    for hierarchy in hierarchies(TEST) {
        let top = Made::new(&hierarchy);
        let filter = CgroupFilter {
            names: vec!["web".to_owned()],
            ..CgroupFilter::default()
        };
        let mut workload = Workload::start(module_path!(), "visitor");
        let mut probe = Probe::attach(options(&hierarchy, filter)).unwrap();
        // The kernel frees what a cgroup had some time after it is removed.
        for round in 0..rounds {
            let other = top.below("other");
            visit(&mut workload, &hierarchy, &[(&other, 5)]);
            drop(other);
            let web = top.below("web");
            visit(&mut workload, &hierarchy, &[(&web, 5)]);
            let expected = expected([(&web, false, 5)]);
            let found = counts(&drained(&mut probe));
            assert_eq!(found, expected, "round {round} of {hierarchy:?}");
            drop(web);
        }
    }
}

#[test]
fn calls_are_recorded_where_they_are_wanted() {
    const TEST: &str = "calls_are_recorded_where_they_are_wanted";
    if !privileged(TEST) {
        return;
    }
    for hierarchy in hierarchies(TEST) {
        let (ours, other) = (Made::new(&hierarchy), Made::new(&hierarchy));
        let filter = CgroupFilter {
            undecided: true,
            ..wanted(&[&ours])
        };
        let mut workload = Workload::start(module_path!(), "visitor");
        let mut options = options(&hierarchy, filter);
        options.sources.clear();
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
        let control = ProbeControl {
            generation: 1,
            ..ProbeControl::default()
        };
        probe.set_probe(0, control, &[]).unwrap();
        let site = CallSite {
            offset: workload.line.parse().unwrap(),
            probe: 0,
            site: 0,
            edge: EDGE_HIT,
            generation: 1,
            return_probe: false,
            semaphore: None,
        };
        let file = fs::File::open(std::env::current_exe().unwrap()).unwrap();
        let target = CallTarget::Process(profiler_model::Pid(workload.pid()));
        let (link, refused) = probe.attach_calls(target, file.as_fd(), &[site]).unwrap();
        assert!(refused.is_empty());

        let new = other.below("new");
        visit(
            &mut workload,
            &hierarchy,
            &[(&ours, 10), (&other, 20), (&new, 40)],
        );
        probe.decide(new.id(), true).unwrap();
        visit(&mut workload, &hierarchy, &[(&new, 80), (&other, 160)]);
        let mut events = Vec::new();
        probe.drain(&mut events);
        let is_call = |event: &&RawEvent| matches!(event.body, RawBody::Call(_));
        assert_eq!(events.iter().filter(is_call).count(), 10 + 80);
        let mut counts = Vec::new();
        probe.call_counts(&mut counts);
        let [(0, counts)] = &counts[..] else {
            panic!("{counts:?}");
        };
        // Those that were undecided may have been wanted.
        assert_eq!((counts.entries, counts.lost), (10 + 40 + 80, 40));
        probe.detach_calls(link);
    }
}

#[test]
fn what_can_not_be_filtered_by_is_explained() {
    if !privileged("what_can_not_be_filtered_by_is_explained") {
        return;
    }
    let named = Hierarchy {
        version: Version::One {
            controllers: Vec::new(),
        },
        number: 9,
        mount: "/sys/fs/cgroup/systemd".into(),
        root: "/".to_owned(),
    };
    let filter = CgroupFilter {
        wanted: vec![Cgroup {
            path: "/".to_owned(),
            id: 1,
        }],
        ..CgroupFilter::default()
    };
    let mut options = options(&named, filter);
    let refused = |options: &ProbeOptions| match Probe::attach(options.clone()) {
        Ok(_) => panic!("attached"),
        Err(error) => error.to_string(),
    };
    let text = refused(&options);
    assert!(
        text.contains("/sys/fs/cgroup/systemd: the hierarchy has no controller"),
        "{text}"
    );
    options.hierarchy = None;
    let text = refused(&options);
    assert!(text.contains("mount -t cgroup2"), "{text}");
    // Without a filter, it is no reason to refuse.
    options.hierarchy = Some(named);
    options.filter.cgroups = None;
    let mut probe = Probe::attach(options).unwrap();
    let events = record(&mut probe, Duration::from_millis(100));
    assert!(samples(&events).all(|(_, sample)| sample.cgroup == 0));
}

/// What a discarded event costs, by the kernel's own statistics, against other filters and against an
/// event that is counted and passed over without a look at the thread.
#[test]
#[ignore = "a timing: cargo test -p profiler-tests --test probes probe_cgroups::timing_of -- --ignored --nocapture"]
fn timing_of_filters() {
    const TEST: &str = "timing_of_filters";
    if !privileged(TEST) {
        return;
    }
    let _statistics = Statistics::enable();
    let hierarchies = hierarchies(TEST);
    let made: Vec<Made> = hierarchies.iter().map(Made::new).collect();
    let busy = Workload::start(module_path!(), "busy");
    let nobody = Filter {
        uids: vec![54_321],
        ..Filter::default()
    };
    let no_process = Filter {
        pids: vec![profiler_model::Pid(1)],
        ..Filter::default()
    };
    let mut rounds: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for _ in 0..7 {
        let mut measure = |name, hierarchy: &Hierarchy, filter: Filter| {
            let mut options = options(hierarchy, CgroupFilter::default());
            if filter.is_empty() {
                options.sources[0].rate = Rate::Period(u64::MAX);
            }
            options.filter = filter;
            let probe = Probe::attach(options).unwrap();
            std::thread::sleep(Duration::from_millis(100));
            let (before_ns, before) = run_times();
            std::thread::sleep(Duration::from_millis(500));
            let (after_ns, after) = run_times();
            let discarded = |cpu: &Counters| cpu.filtered + cpu.passed_over;
            let discarded: u64 = probe.counters()[0].iter().map(discarded).sum();
            assert!(discarded > after - before && after > before + 10_000);
            let ns = (after_ns - before_ns) as f64 / (after - before) as f64;
            rounds.entry(name).or_default().push(ns);
        };
        measure("none, passed over", &hierarchies[0], Filter::default());
        measure("user id", &hierarchies[0], nobody.clone());
        measure("process", &hierarchies[0], no_process.clone());
        for (hierarchy, made) in hierarchies.iter().zip(&made) {
            let filter = Filter {
                cgroups: Some(wanted(&[made])),
                ..Filter::default()
            };
            let name = match hierarchy.version {
                Version::Two => "cgroup, version 2",
                Version::One { .. } => "cgroup, version 1",
            };
            measure(name, hierarchy, filter);
        }
    }
    drop(busy);
    for (name, mut ns) in rounds {
        ns.sort_by(f64::total_cmp);
        println!(
            "{name}: {:.0} ns (least {:.0}) a discarded event",
            ns[ns.len() / 2],
            ns[0]
        );
    }
}
