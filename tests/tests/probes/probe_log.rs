//! The kernel side with its logs, which `-vv` asks for: it loads, and works, in each kind of session.
//!
//! The verifier sees more of a program that logs, and programs of calls are made in a way of their own,
//! with the same maps: so each kind is loaded here, on each kernel. Needs root; says what it skips without.

// Failing is what tests do.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::time::Duration;

use profiler_model::{Pid, Sampling};
use profiler_probe::{
    CallOptions, EventSpec, Probe, ProbeOptions, Rate, SourceSpec, UnwindOptions,
};
use profiler_target::{Filter, cgroup::CgroupFilter};
use profiler_tests::skip::privileged;

use crate::probe_shared::{
    Workload,
    cgroups::{Made, hierarchies},
    record, samples,
};

/// Runs as a workload: see `Workload::start`.
#[test]
#[ignore = "a workload of the other tests"]
fn role() {
    println!("role: ready");
    loop {
        let _ = rustix::process::getppid();
    }
}

fn source(event: &str, rate: Rate) -> SourceSpec {
    let event: EventSpec = event.parse().unwrap();
    SourceSpec { event, rate }
}

/// A clock, with logs and all walks.
fn logging() -> ProbeOptions {
    ProbeOptions {
        hierarchy: None,
        sources: vec![source("cpu-clock", Rate::FrequencyHz(999))],
        calls: None,
        filter: Filter::default(),
        buffer_bytes: 8 << 20,
        kernel_stacks: true,
        user_stacks: true,
        unwind: Some(UnwindOptions {
            memory_bytes: 16 << 20,
            copies_per_second: 10,
            deep_frames_per_second: u32::MAX,
        }),
        kernel_log: true,
        off_cpu: false,
        adjustable: false,
    }
}

fn only(pid: u32) -> Filter {
    Filter {
        pids: vec![Pid(pid)],
        ..Filter::default()
    }
}

/// What is recorded of the workload with these options.
fn samples_of(workload: &Workload, what: &str, options: ProbeOptions) -> usize {
    let mut probe = Probe::attach(options).unwrap_or_else(|error| panic!("{what}: {error}"));
    let events = record(&mut probe, Duration::from_millis(400));
    let of = samples(&events).filter(|(_, sample)| sample.pid.0 == workload.pid());
    of.count()
}

#[test]
fn every_kind_of_sampling_loads_with_logs() {
    if !privileged("every_kind_of_sampling_loads_with_logs") {
        return;
    }
    let workload = Workload::start(module_path!(), "busy");
    for (what, options) in [
        ("a clock", logging()),
        (
            "a process and its children",
            ProbeOptions {
                filter: only(workload.pid()),
                ..logging()
            },
        ),
        (
            "a tracepoint",
            ProbeOptions {
                sources: vec![source("raw_syscalls:sys_enter", Rate::Period(1000))],
                filter: only(workload.pid()),
                ..logging()
            },
        ),
        (
            "a clock and waits",
            ProbeOptions {
                off_cpu: true,
                ..logging()
            },
        ),
        (
            "frame pointers",
            ProbeOptions {
                unwind: None,
                ..logging()
            },
        ),
    ] {
        let found = samples_of(&workload, what, options);
        assert!(found > 0, "{what}: no samples");
    }
}

#[test]
fn cgroups_load_with_logs() {
    const TEST: &str = "cgroups_load_with_logs";
    if !privileged(TEST) {
        return;
    }
    let workload = Workload::start(module_path!(), "busy");
    for hierarchy in hierarchies(TEST) {
        let made = Made::new(&hierarchy);
        made.add(workload.pid());
        let options = ProbeOptions {
            filter: Filter {
                cgroups: Some(CgroupFilter {
                    wanted: vec![made.cgroup()],
                    undecided: true,
                    ..CgroupFilter::default()
                }),
                ..Filter::default()
            },
            hierarchy: Some(hierarchy),
            ..logging()
        };
        let found = samples_of(&workload, "cgroups", options);
        assert!(found > 0, "no samples");
    }
}

#[test]
fn what_is_adjusted_loads_with_logs() {
    if !privileged("what_is_adjusted_loads_with_logs") {
        return;
    }
    let workload = Workload::start(module_path!(), "busy");
    let mut probe = Probe::attach(ProbeOptions {
        adjustable: true,
        ..logging()
    })
    .unwrap();
    let sampling = Sampling {
        frequency_hz: 999,
        regular_hz: None,
        kernel_stacks: true,
        processes: vec![Pid(workload.pid())].into_iter().collect(),
        threads: Default::default(),
        followed: Default::default(),
    };
    probe.adjust(Some(&sampling)).unwrap();
    let events = record(&mut probe, Duration::from_millis(400));
    assert!(samples(&events).count() > 0);
}

#[test]
fn calls_load_with_logs() {
    if !privileged("calls_load_with_logs") {
        return;
    }
    let plain = CallOptions {
        max_probes: 16,
        buffer_bytes: 1 << 20,
        fetches: false,
        callers: false,
        per_process: true,
        min_duration_ns: 0,
        max_depth: 0,
        max_rate: 0,
    };
    let all = CallOptions {
        fetches: true,
        callers: true,
        per_process: false,
        min_duration_ns: 1000,
        max_depth: 5,
        max_rate: 100,
        ..plain
    };
    for (what, calls, sources) in [
        ("calls alone", plain, Vec::new()),
        ("calls with limits and values", all, Vec::new()),
        ("calls and a clock", all, logging().sources),
    ] {
        // Where places are attached one by one, the program is loaded with each: that is tested with
        // the same instructions in `calls`.
        let probe = Probe::attach(ProbeOptions {
            sources,
            calls: Some(calls),
            filter: only(std::process::id()),
            ..logging()
        });
        if let Err(error) = probe {
            panic!("{what}: {error}");
        }
    }
}
