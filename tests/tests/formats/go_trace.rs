//! Go traces against Go's own packages: `internal/trace` to the end of the trace, with the
//! validator of Go's tests, and `go tool trace` itself.
//!
//! Needs a Go distribution with sources, 1.26 or newer: the `go` that `PROFILER_GO` names, or that
//! of `PATH`. Without one the tests say so and are skipped.
#![allow(clippy::unwrap_used)] // A test fails by it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::export_shared::*;
use crate::golden;
use profiler_model::*;
use profiler_report::derive::stack_frames;
use profiler_tests::skip::long;
use profiler_tests::{canonical, workload};
use profiler_wire::go_trace::{Kind, Version};

/// The checker, built once for all tests; none if there is no suitable Go.
fn checker() -> Option<&'static Path> {
    static BUILT: OnceLock<Option<PathBuf>> = OnceLock::new();
    BUILT.get_or_init(build).as_deref()
}

pub(crate) fn go() -> Command {
    let mut command = workload::go();
    command.envs([("GOPROXY", "off"), ("GOFLAGS", "-mod=mod")]);
    command
}

fn build() -> Option<PathBuf> {
    let skip = |why: &str| {
        let what = "put Go 1.26 or newer in PATH or name it in PROFILER_GO";
        profiler_tests::skip::skip("go_trace", &format!("{why}; {what}"));
        None
    };
    let Ok(root) = go().args(["env", "GOROOT"]).output() else {
        return skip("there is no Go");
    };
    let root = PathBuf::from(String::from_utf8(root.stdout).unwrap().trim());
    let versions = std::fs::read_to_string(root.join("src/internal/trace/version/version.go"));
    if !versions.is_ok_and(|source| source.contains("Go126")) {
        return skip("this Go is too old, or has no sources");
    }
    let (source, version) = (
        Path::new(env!("CARGO_MANIFEST_DIR")).join("conformance/go/main.go"),
        root.join("VERSION"),
    );
    let said = std::fs::read_to_string(&version).unwrap();
    // One for each Go, which is part of it.
    let name = format!("go-trace-check-{}", said.lines().next().unwrap());
    let inputs = [source.clone(), version];
    let built = workload::made(&name, &inputs, |fresh| {
        let place = root.join("src/cmd/profiler-trace-check/main.go");
        let overlay = serde_json::json!({ "Replace": { place.to_str().unwrap(): source } });
        let overlay_file = scratch("checker").join("overlay.json");
        std::fs::write(&overlay_file, overlay.to_string()).unwrap();
        let mut command = go();
        command.arg("build").arg("-overlay").arg(overlay_file);
        command.arg("-o").arg(fresh).arg("cmd/profiler-trace-check");
        ("go", command)
    });
    Some(built.unwrap())
}

fn scratch(name: &str) -> PathBuf {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join("go_trace")
        .join(name);
    std::fs::create_dir_all(&directory).unwrap();
    directory
}

/// Exports in both forms, has Go check them, and returns what it found.
pub(crate) fn check(
    name: &str,
    options: &[(&str, &str)],
    session: &Recording,
) -> Option<serde_json::Value> {
    let directory = scratch(name);
    let (text, wire) = (directory.join("text"), directory.join("wire"));
    std::fs::write(&text, try_export("go-trace", options, session).unwrap()).unwrap();
    std::fs::write(
        &wire,
        try_export("go-trace-wire", options, session).unwrap(),
    )
    .unwrap();
    let output = Command::new(checker()?)
        .arg(&text)
        .arg(&wire)
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name} {options:?}: {errors}");
    Some(serde_json::from_slice(&output.stdout).unwrap())
}

/// Whether there is a judge; then it finds all samples in their functions, in each version, however often
/// the trace is cut.
fn reads_as_counted(name: &str, seed: impl std::fmt::Display, session: &Recording) -> bool {
    let (functions, samples) = counts(session);
    for version in VERSIONS {
        for generation in ["3", "50", "100000"] {
            let options = [("version", version), ("generation", generation)];
            let Some(found) = check(name, &options, session) else {
                return false;
            };
            let seen: BTreeMap<String, u64> =
                serde_json::from_value(found["functions"].clone()).unwrap();
            assert_eq!(seen, functions, "seed {seed} {options:?}");
            assert_eq!(found["samples"], samples);
            assert_eq!(found["open_tasks"], 0);
        }
    }
    true
}

/// How many random recordings are made of a kind: each is checked in twelve forms.
fn seeds(usual: u64) -> u64 {
    if long() { 10 * usual } else { usual }
}

/// Samples per function, as often as a stack holds it, and samples: also those that come behind the end of their thread.
fn counts((tables, events): &Recording) -> (BTreeMap<String, u64>, u64) {
    let mut functions = BTreeMap::new();
    let mut samples = 0;
    for event in events {
        if let Event::Sample(sample) = event
            && sample.wait.is_none()
        {
            samples += 1;
            for frame in stack_frames(tables, sample.kernel, sample.user) {
                *functions.entry(frame.name.into_owned()).or_default() += 1;
            }
        }
    }
    (functions, samples)
}

const VERSIONS: [&str; 4] = ["22", "23", "25", "26"];

#[test]
fn text_is_golden() {
    let session = canonical::session();
    golden::check(
        "export/canonical.gotrace",
        &export("go-trace", &[], &session),
    );
}

#[test]
fn events_are_those_of_go() {
    let Some(checker) = checker() else {
        return;
    };
    let output = Command::new(checker).arg("-events").output().unwrap();
    let gos: BTreeMap<u32, Vec<String>> = serde_json::from_slice(&output.stdout).unwrap();
    for version in Version::ALL {
        let ours: Vec<String> = Kind::ALL
            .iter()
            .filter(|kind| kind.since() <= version)
            .map(|kind| format!("{} {} {}", *kind as u8, kind.name(), kind.args().join(" ")))
            .collect();
        assert_eq!(gos[&version.minor()], ours, "{version:?}");
    }
}

/// Go's own tool reads it, and finds every sample.
#[test]
fn go_tool_trace_opens_it() {
    if checker().is_none() {
        return;
    }
    let session = canonical::session();
    let file = scratch("tool").join("wire");
    std::fs::write(&file, try_export("go-trace-wire", &[], &session).unwrap()).unwrap();
    // Go builds the tool first, and its web server with it; what else is in it other tests need as well.
    let output = go()
        .env("GOFLAGS", "-mod=mod")
        .args(["tool", "trace", "-d=parsed"])
        .arg(&file)
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(
        text.matches(" StackSample ").count() as u64,
        counts(&session).1
    );
}

#[test]
fn hostile_names_reach_go() {
    for name in HOSTILE {
        let session = session_of(&[(vec![name, "main", name], 2)], name);
        let Some(found) = check("hostile", &[], &session) else {
            return;
        };
        assert_eq!(found["functions"]["main"], 2, "{name:?}");
    }
}

/// Names and stacks longer than a trace can hold, and tables of many batches.
#[test]
fn containers_are_told_of_tasks() {
    let session = canonical::session_in_containers();
    let text = export("go-trace", &[], &session);
    for part in [
        r#"web (pid 100 in we;b \"ü\" 12)"#,
        "db (pid 200 in shop/db-0/postgres)",
        "sshd (pid 300 in ssh.service)",
        "kworker/0:1 (pid 2)",
        "engine containerd, id 77aa, name postgres, image docker.io/library/postgres:16, pod db-0, \
         namespace shop, cgroup /kubepods.slice/kubepods-pod77.slice/cri-containerd-77aa.scope",
    ] {
        assert!(text.contains(part), "{part}");
    }
    for version in ["22", "23", "25", "26"] {
        if let Some(found) = check("containers", &[("version", version)], &session) {
            let logs = logs(&found);
            assert!(logs.contains("engine systemd, unit ssh.service"), "{logs}");
        }
    }
}

#[test]
fn what_is_too_long_is_cut() {
    let long = "é".repeat(2000);
    let names: Vec<String> = (0..3000).map(|i| format!("function {i} {long}")).collect();
    let mut stacks: Vec<(Vec<&str>, u64)> = names
        .iter()
        .map(|name| (vec!["main", name.as_str()], 3))
        .collect();
    let mut deep = vec!["root"; 400];
    deep.push("leaf");
    stacks.push((deep, 5));
    let session = session_of(&stacks, &long);
    for version in VERSIONS {
        let Some(found) = check("long", &[("version", version)], &session) else {
            return;
        };
        assert_eq!(found["samples"], 9005);
        assert_eq!(found["functions"]["main"], 9000);
        assert_eq!(found["functions"]["leaf"], 5);
        assert_eq!(found["functions"]["root"], 5 * 127);
        let cut = names[2999].get(..1023).unwrap_or(&names[2999][..1024]);
        assert_eq!(found["functions"][cut], 3);
        let logs = found["logs"].to_string();
        assert!(logs.contains("1 stacks cut"), "{logs}");
    }
}

#[test]
fn nothing_recorded_is_a_trace() {
    let (tables, _) = canonical::session();
    for session in [(tables, Vec::new()), (Tables::default(), Vec::new())] {
        for version in VERSIONS {
            let Some(found) = check("empty", &[("version", version)], &session) else {
                return;
            };
            assert_eq!(found["samples"], 0);
        }
    }
}

/// Threads that begin, rename, end and come back under the same ids, in any order and at equal
/// times, shortly after boot and after a year of uptime.
#[test]
fn any_order_of_lives_is_a_trace() {
    for (seed, boot) in (1..=seeds(6)).zip(
        [1_u64, 5_000_000_000, 31_536_000_000_000_000]
            .into_iter()
            .cycle(),
    ) {
        let session = lives(seed, boot);
        if !reads_as_counted("lives", seed, &session) {
            return;
        }
    }
}

/// Random lives of a few pids with a few threads each.
fn lives(seed: u64, boot: u64) -> Recording {
    let (mut tables, template) = session_of(&[(vec!["main", "a"], 1), (vec!["b"], 1)], "p");
    tables.session.started = Timestamp(boot);
    let samples: Vec<Sample> = template
        .into_iter()
        .filter_map(|event| match event {
            Event::Sample(sample) => Some(sample),
            _ => None,
        })
        .collect();
    let name = tables.intern_string("p").0;
    let mut state = seed;
    let mut random = move |below: u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let mut events = Vec::new();
    let mut now = boot;
    for _ in 0..300 {
        now += random(3) * random(2_000_000);
        let pid = random(3) as u32;
        let (process, _) = tables.intern_process(Process {
            pid: Pid(pid),
            started: Timestamp(random(2)),
            parent: None,
            name,
            executable: None,
            command: None,
            namespace_pids: Vec::new(),
            uid: None,
            cgroup: None,
            container: None,
        });
        let (thread, _) = tables.intern_thread(Thread {
            process,
            tid: Tid(pid + 10 * random(3) as u32),
            started: Timestamp(random(2)),
            name,
        });
        let at = Timestamp(now);
        let change = match random(8) {
            0 => Some(ProcessChange::Started),
            1 => Some(ProcessChange::Exited),
            2 => Some(ProcessChange::Renamed(name)),
            3 => Some(ProcessChange::Executed(name)),
            _ => None,
        };
        events.push(match change {
            Some(change) => Event::Process(ProcessEvent { at, thread, change }),
            None => Event::Sample(Sample {
                at,
                thread,
                ..samples[random(2) as usize].clone()
            }),
        });
    }
    (tables, events)
}

/// Waits are states of goroutines, as long as they were, unblocked by who woke them.
#[test]
fn waits_are_states() {
    let session = canonical::session_with_waits();
    golden::check("export/waits.gotrace", &export("go-trace", &[], &session));
    let (functions, samples) = counts(&session);
    for version in VERSIONS {
        for generation in ["200000", "40", "7", "1"] {
            let options = [("version", version), ("generation", generation)];
            let Some(found) = check("waits", &options, &session) else {
                return;
            };
            let seen: BTreeMap<String, u64> =
                serde_json::from_value(found["functions"].clone()).unwrap();
            assert_eq!(seen, functions, "{options:?}");
            assert_eq!(found["samples"], samples);
            assert_eq!(found["open_tasks"], 0);
            if generation != "200000" {
                continue;
            }
            let logs = logs(&found);
            let summary = "waits: 11 waits; 0 too short to be shown, 3 not recorded";
            assert!(logs.contains(summary), "{logs}");
            let us = |state: &str| {
                let ns = found["states"][state].as_f64().unwrap_or(0.0);
                (ns / 1000.0).round()
            };
            for (state, expected) in [
                ("web Waiting select", 10_800.0 + 23_180.0),
                ("worker 1 Waiting sync", 29_900.0 + 10_500.0),
                ("worker 1 Runnable preempted", 800.0),
                ("db Waiting disk", 83_850.0),
                ("python3 Waiting sleep", 1_990.0 + 1_970.0),
                ("python3 Runnable preempted", 400.0),
                ("kworker/0:1 Waiting stopped", 800.0),
            ] {
                assert_eq!(us(state), expected, "{state}: {}", found["states"]);
            }
            for (edge, times) in [
                ("worker 1 > web", 1),
                ("db > web", 1),
                ("web > worker 1", 2),
                ("web > kworker/0:1", 2),
            ] {
                assert_eq!(
                    found["unblocks"][edge], times,
                    "{edge}: {}",
                    found["unblocks"]
                );
            }
            assert_eq!(found["left_in"]["checksum"], 1, "{}", found["left_in"]);
        }
    }
}

/// A sample or a wait that comes after its thread has ended belongs to the life that ended: there is one goroutine of it, in
/// one task, and both end.
#[test]
fn late_events_begin_no_life() {
    let (tables, mut events) = session_of(&[(vec!["main"], 3)], "p");
    let thread = events.iter().find_map(|event| match event {
        Event::Sample(sample) => Some(sample.thread),
        _ => None,
    });
    let thread = thread.unwrap();
    let last = events.iter().map(Event::at).max().unwrap().0;
    let of = |after: u64| Timestamp(last + after * 1_000_000);
    events.push(Event::Process(ProcessEvent {
        at: of(1),
        thread,
        change: ProcessChange::Exited,
    }));
    let late = events.iter().find_map(|event| match event {
        Event::Sample(sample) => Some(sample.clone()),
        _ => None,
    });
    let late = late.unwrap();
    events.push(Event::Sample(Sample {
        at: of(2),
        ..late.clone()
    }));
    events.push(Event::Sample(Sample {
        at: of(9),
        wait: Some(Wait {
            ns: 6_000_000,
            runnable_ns: 0,
            state: WaitState::Sleeping,
            waker: None,
            count: 1,
            open: false,
        }),
        ..late
    }));
    let text = export("go-trace", &[], &(tables, events));
    let of = |kind: &str| text.lines().filter(|it| it.starts_with(kind)).count();
    // One of them is what creates the others.
    assert_eq!((of("GoCreate"), of("GoDestroy")), (2, 2), "{text}");
    assert_eq!((of("UserTaskBegin"), of("UserTaskEnd")), (1, 1), "{text}");
    // The sample is there, as one of the same goroutine.
    let samples = text.lines().filter(|it| it.starts_with("CPUSample "));
    let of_goroutine = |line: &str| {
        let words = line.split(' ').filter(|word| word.starts_with("g="));
        words.map(str::to_owned).collect::<Vec<_>>()
    };
    let of: BTreeSet<_> = samples.clone().map(of_goroutine).collect();
    assert_eq!((samples.count(), of.len()), (4, 1), "{text}");
    assert!(
        text.contains("4 samples; 0 lost, 0 of other sources left out, 0 of unknown"),
        "{text}"
    );
}

/// Go up to 1.25 leaves out of its profiles what unblocks without a stack.
#[test]
fn what_unblocks_has_a_stack() {
    let session = canonical::session_with_waits();
    let text = export("go-trace", &[], &session);
    let unblocks: Vec<&str> = text
        .lines()
        .filter(|line| line.starts_with("GoUnblock"))
        .collect();
    assert!(unblocks.len() > 5, "{text}");
    for line in unblocks {
        let (_, stack) = line.rsplit_once("stack=").unwrap();
        assert_ne!(stack, "0", "{line}");
    }
}

/// Waits in any order, of threads that come and go, woken by any: each is a valid trace.
#[test]
fn any_order_of_waits_is_a_trace() {
    for (seed, boot) in (1..=seeds(8)).zip(
        [1_u64, 5_000_000_000, 31_536_000_000_000_000]
            .into_iter()
            .cycle(),
    ) {
        let (mut tables, mut events) = lives(seed, boot);
        let name = tables.intern_string("off-cpu").0;
        let source = Source {
            name,
            unit: Unit::Nanoseconds,
            frequency_hz: None,
            period: None,
        };
        let source = tables.sources.intern(source).0;
        let threads: Vec<ThreadId> = tables.threads().map(|(id, _)| id).collect();
        let mut state = seed;
        let mut random = move |below: u64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        for event in &mut events {
            if let Event::Sample(sample) = event
                && random(3) > 0
            {
                let ns = random(4) * random(30_000_000) + random(9);
                sample.source = source;
                sample.wait = Some(Wait {
                    ns,
                    runnable_ns: [0, ns, random(ns + 1), u64::MAX][random(4) as usize],
                    state: WaitState::from_code(random(4) as u32).unwrap(),
                    waker: (random(3) > 0).then(|| threads[random(threads.len() as u64) as usize]),
                    count: random(3) as u32,
                    open: false,
                });
            }
        }
        let session = (tables, events);
        if !reads_as_counted("any-waits", seed, &session) {
            return;
        }
    }
}

#[test]
fn go_counts_the_same_samples() {
    let session = canonical::session();
    let (functions, samples) = counts(&session);
    for version in VERSIONS {
        let Some(found) = check("canonical", &[("version", version)], &session) else {
            return;
        };
        let seen: BTreeMap<String, u64> =
            serde_json::from_value(found["functions"].clone()).unwrap();
        assert_eq!(seen, functions, "version {version}");
        assert_eq!(found["samples"], samples);
        assert_eq!(found["samples_outside_goroutine"], 0);
        assert_eq!(found["version"].to_string(), version);
        assert_eq!(found["generations"], 1);
        let tasks: Vec<String> = serde_json::from_value(found["tasks"].clone()).unwrap();
        assert_eq!(tasks, ["web (pid 100)", "db (pid 200)"]);
        assert_eq!(found["open_tasks"], 0);
        for name in ["web", "worker 1", "db"] {
            assert_eq!(found["goroutines"][name], 1, "{name}");
        }
        let logs = found["logs"].to_string();
        for text in [
            "mark: load started",
            "target: system-wide",
            "renamed: thread 200 is now",
        ] {
            assert!(logs.contains(text), "{text}: {logs}");
        }
        assert!(
            logs.contains("lost: 4 on cpu 1 within the last 101 ms"),
            "{logs}"
        );
        if version >= "25" {
            assert_eq!(found["wall_ns"][0], 1_700_000_000_000_000_000_u64);
        }
    }
}

#[test]
fn generations_are_whole() {
    let session = canonical::session();
    let (functions, samples) = counts(&session);
    for version in VERSIONS {
        for generation in ["1", "7", "60"] {
            let options = [("version", version), ("generation", generation)];
            let Some(found) = check("generations", &options, &session) else {
                return;
            };
            let seen: BTreeMap<String, u64> =
                serde_json::from_value(found["functions"].clone()).unwrap();
            assert_eq!(seen, functions, "{options:?}");
            assert_eq!(found["samples"], samples);
            assert_eq!(found["samples_outside_goroutine"], 0, "{options:?}");
            assert_eq!(found["open_tasks"], 0);
            let generations = found["generations"].as_u64().unwrap();
            assert!(generations >= samples / generation.parse::<u64>().unwrap());
        }
    }
}

/// Calls and time per function, of the calls that ended.
fn ended((tables, events): &Recording) -> BTreeMap<String, (u64, u64)> {
    let mut sums: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    for event in events {
        if let Event::Call(call) = event
            && let CallEdge::Exit(exit) = &call.edge
        {
            let name = tables.functions.get(call.function).unwrap().name;
            let sum = sums.entry(tables.string(name).to_owned()).or_default();
            sum.0 += 1;
            sum.1 += call.at.since(exit.began);
        }
    }
    sums
}

fn logs(found: &serde_json::Value) -> String {
    let logs: Vec<String> = serde_json::from_value(found["logs"].clone()).unwrap();
    logs.join("\n")
}

fn regions(found: &serde_json::Value) -> BTreeMap<String, (u64, u64)> {
    let regions = found["regions"].as_object().unwrap().iter();
    regions
        .map(|(name, sum)| {
            let number = |key: &str| sum[key].as_u64().unwrap();
            (name.clone(), (number("count"), number("ns")))
        })
        .collect()
}

/// Readers move the later of two events at one time, by 1 ns.
fn close(seen: (u64, u64), expected: (u64, u64)) -> bool {
    seen.0 == expected.0 && seen.1.abs_diff(expected.1) <= expected.0
}

/// The calls with entries as they are recorded when only long ones are: whole, at their ends.
fn as_whole((tables, events): Recording) -> Recording {
    let mut arguments = BTreeMap::new();
    let mut whole = Vec::new();
    for mut event in events {
        if let Event::Call(call) = &mut event {
            match &mut call.edge {
                CallEdge::Enter(values) => {
                    arguments.insert((call.thread, call.function, call.at), values.take());
                    continue;
                }
                CallEdge::Exit(exit) => {
                    let values = arguments.remove(&(call.thread, call.function, exit.began));
                    let values: Option<Box<[Value]>> = values.flatten();
                    exit.whole = Some(values.unwrap_or_default());
                }
                CallEdge::Hit(_) => {}
            }
        }
        whole.push(event);
    }
    (tables, whole)
}

#[test]
fn calls_are_regions() {
    let session = crate::calls_shared::shop();
    golden::check("export/calls.gotrace", &export("go-trace", &[], &session));
    let expected = ended(&session);
    for version in VERSIONS {
        for generation in ["200000", "20", "1"] {
            let options = [("version", version), ("generation", generation)];
            let Some(found) = check("calls", &options, &session) else {
                return;
            };
            let mut seen = regions(&found);
            // Two calls are open at the end, and end there.
            for name in ["shop::handle(Request const&)", "db_query"] {
                let open = seen.get_mut(name).unwrap();
                assert_eq!(open.0, expected[name].0 + 1);
                open.0 -= 1;
            }
            for (name, (calls, ns)) in &expected {
                assert_eq!(seen[name].0, *calls, "{name} {options:?}");
                if generation == "200000" && !name.contains("handle") && name != "db_query" {
                    assert!(close(seen[name], (*calls, *ns)), "{name} {seen:?}");
                }
            }
            assert_eq!(found["open_regions"], 0);
            assert_eq!(found["deepest_region"], 6);
            let logs = logs(&found);
            for text in [
                "throw: db::busy_error, by db_query",
                "db_query: left by exception db::busy_error",
                "shop:request_done: hit",
                "wait_for_work: ended with its thread",
                "walk<Tree>: had ended by now",
                r#"shop::handle(Request const&): id=7, path="/cart/7?q=\"tea\""…"#,
                "shop::parse(char const*): returned true",
                "gap: all functions within the last 1000 us: not watched until probes were attached",
                "2 open at the end; 186 counted by the kernel; 24 records lost",
                "note: calls: at least those that are told, as gaps may hide more",
            ] {
                assert!(logs.contains(text), "{options:?} {text}: {logs}");
            }
        }
    }
}

/// A call that is recorded whole comes after those in it; its region still begins before theirs.
#[test]
fn whole_calls_are_regions_around_those_in_them() {
    let session = as_whole(crate::calls_shared::shop());
    let expected = ended(&session);
    for version in VERSIONS {
        let Some(found) = check("whole", &[("version", version)], &session) else {
            return;
        };
        for (name, seen) in regions(&found) {
            assert!(close(seen, expected[&name]), "{name} {seen:?} {expected:?}");
        }
        assert_eq!(found["deepest_region"], 6);
        let logs = logs(&found);
        assert!(
            logs.contains("0 ends without a begin, 0 regions begin later"),
            "{logs}"
        );
        // Cut where an outer call is not over: it begins behind those in it.
        let options = [("version", version), ("generation", "2")];
        let found = check("whole-cut", &options, &session).unwrap();
        let counts = |sums: BTreeMap<String, (u64, u64)>| -> BTreeMap<String, u64> {
            sums.into_iter()
                .map(|(name, (calls, _))| (name, calls))
                .collect()
        };
        assert_eq!(counts(regions(&found)), counts(expected.clone()));
        assert_eq!(found["open_regions"], 0);
    }
}

/// Events of calls in any order, as after losses or from a damaged capture.
#[test]
fn any_order_of_calls_is_a_trace() {
    for seed in 1..=4_u64 {
        let (tables, mut events) = lives(seed, 5_000_000_000);
        let (mut b, shop) = (
            crate::calls_shared::Builder::default(),
            crate::calls_shared::shop(),
        );
        b.tables = tables;
        let functions = ["f", "g", "h"].map(|name| b.function(name, name.len() as u64));
        let threads: Vec<ThreadId> = b.tables.threads().map(|(id, _)| id).collect();
        let template: Vec<Call> = (shop.1.into_iter())
            .filter_map(|event| match event {
                Event::Call(call) => Some(call),
                _ => None,
            })
            .collect();
        let mut state = seed;
        let mut random = move |below: usize| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(7);
            (state >> 33) as usize % below
        };
        for at in events.iter().map(Event::at).collect::<Vec<_>>() {
            let mut call = template[random(template.len())].clone();
            call.at = at;
            call.thread = threads[random(threads.len())];
            call.function = functions[random(3)];
            call.depth = random(4) as u32;
            if let CallEdge::Exit(exit) = &mut call.edge {
                exit.began = Timestamp(at.0.saturating_sub(random(50_000_000) as u64));
                exit.whole = (random(3) == 0).then(|| Box::from([Value::Bool(true)]));
                if let ExitKind::Exception(kind) = &mut exit.how {
                    *kind = None;
                }
            }
            events.push(Event::Call(call));
        }
        events.sort_by_key(Event::at);
        let session = (b.tables, events);
        for version in VERSIONS {
            for generation in ["3", "50", "100000"] {
                let options = [("version", version), ("generation", generation)];
                let Some(found) = check("any-calls", &options, &session) else {
                    return;
                };
                assert_eq!(found["open_regions"], 0, "seed {seed} {options:?}");
            }
        }
    }
}
