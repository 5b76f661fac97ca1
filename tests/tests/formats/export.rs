//! Exports of the canonical session against golden files, and properties that hold for any
//! recording. `UPDATE_GOLDEN=1` writes the golden files anew.
#![allow(clippy::unwrap_used)] // A test fails by it.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::process::{Command, Stdio};

use crate::calls_shared::{Builder, MS, START, US};
use crate::export_shared::*;
use crate::golden;
use profiler_model::*;
use profiler_report::derive::{ContainerNames, Filter, Target, stack_frames};
use profiler_report::export::{Only, Selection, difference};
use profiler_tests::canonical;
use proptest::prelude::*;

#[test]
fn folded_is_golden() {
    let session = canonical::session();
    golden::check("export/canonical.folded", &export("folded", &[], &session));
    let options = [("threads", "yes"), ("count", "weight")];
    golden::check(
        "export/threads.folded",
        &export("folded", &options, &session),
    );
}

#[test]
fn waits_are_leaves() {
    let session = canonical::session_with_waits();
    golden::check("export/wall.folded", &export("folded", &[], &session));
    let options = [("source", "off-cpu"), ("threads", "yes")];
    golden::check(
        "export/off-cpu.folded",
        &export("folded", &options, &session),
    );
    let options = [("source", "off-cpu"), ("count", "samples")];
    let counted = export("folded", &options, &session);
    assert_eq!(
        counted
            .lines()
            .filter(|line| line.contains(";[sleeping] "))
            .count(),
        4,
        "{counted}"
    );
    let running = export("folded", &[("source", "cpu-clock")], &session);
    let ended = running.lines().any(|line| line.contains("[sleeping]"));
    assert!(!ended && running.contains("Row.parse_[p] 10"), "{running}");
    let svg = export("svg", &[("width", "1200")], &session);
    xml_elements(std::slice::from_ref(&svg)).unwrap();
    golden::check("export/wall.svg", &svg);
    let error = try_export("folded", &[("source", "wall")], &canonical::session()).unwrap_err();
    assert!(
        error.to_string().contains("'wall'; there are: cpu-clock"),
        "{error}"
    );
}

#[test]
fn containers_are_the_roots_if_asked_for() {
    let session = canonical::session_in_containers();
    let options = [("containers", "yes"), ("threads", "yes")];
    let folded = export("folded", &options, &session);
    golden::check("export/containers.folded", &folded);
    // What means something in a folded stack is no part of a name.
    let roots: BTreeSet<&str> = folded.lines().filter_map(|l| l.split(';').next()).collect();
    let expected = [
        "[no container]",
        "shop/db-0/postgres",
        "ssh.service",
        "we:b \"ü\"_12",
    ];
    assert_eq!(roots, expected.into());
    // Without the option they are as ever.
    let plain = export("folded", &[], &session);
    assert!(plain.lines().any(|line| line.starts_with("sshd;")) && !plain.contains("ssh.service"));
    let svg = export("svg", &options, &session);
    xml_elements(std::slice::from_ref(&svg)).unwrap();
    assert!(svg.contains("we:b &quot;ü&quot;_12"), "{svg}");
}

fn within(format: &str, containers: ContainerNames) -> std::io::Result<Vec<u8>> {
    let target = Target {
        containers,
        ..Target::default()
    };
    try_export_of(format, &target, &canonical::session_in_containers())
}

/// Samples of what a target did.
fn samples_of(target: &Target, session: &Recording) -> u64 {
    let folded = String::from_utf8(try_export_of("folded", target, session).unwrap()).unwrap();
    let numbers = folded.lines().filter_map(|line| line.rsplit_once(' '));
    numbers
        .map(|(_, number)| number.parse::<u64>().unwrap())
        .sum()
}

#[test]
fn parts_of_a_recording_add_up_to_the_whole() {
    let session = canonical::session_in_containers();
    let tables = &session.0;
    let whole = samples_of(&Target::default(), &session);
    let by_pid = |pid| Target {
        pids: vec![pid],
        ..Target::default()
    };
    let by_tid = |tid| Target {
        tids: vec![tid],
        ..Target::default()
    };
    let pids: BTreeSet<Pid> = tables.processes().map(|(_, process)| process.pid).collect();
    let tids: BTreeSet<Tid> = tables.threads().map(|(_, thread)| thread.tid).collect();
    let sum = |targets: Vec<Target>| -> u64 {
        let samples = targets.iter().map(|target| samples_of(target, &session));
        samples.sum()
    };
    assert!(whole > 0 && pids.len() > 1 && tids.len() > pids.len());
    assert_eq!(sum(pids.iter().copied().map(by_pid).collect()), whole);
    assert_eq!(sum(tids.iter().copied().map(by_tid).collect()), whole);
    // Processes and threads are one kind, of which any may be.
    let all = Target {
        pids: pids.iter().copied().take(1).collect(),
        tids: tids.iter().copied().collect(),
        ..Target::default()
    };
    assert_eq!(samples_of(&all, &session), whole);
    // Kinds must all hold.
    let web = Target {
        comms: vec!["web".into()],
        ..by_pid(Pid(100))
    };
    assert_eq!(
        samples_of(&web, &session),
        samples_of(&by_pid(Pid(100)), &session)
    );
    let other = Target {
        comms: vec!["db".into()],
        ..by_pid(Pid(100))
    };
    assert_eq!(samples_of(&other, &session), 0);
    // The name is the whole one, or a pattern.
    let named = |name: &str| Target {
        comms: vec![name.into()],
        ..Target::default()
    };
    assert!(samples_of(&named("web"), &session) > 0);
    assert_eq!(samples_of(&named("we"), &session), 0);
    assert_eq!(
        samples_of(&named("we*"), &session),
        samples_of(&named("web"), &session)
    );
}

#[test]
fn users_and_cgroups_are_chosen_where_they_are_known() {
    let of_user = Target {
        uids: vec![7],
        ..Target::default()
    };
    let in_cgroup = |path: &str| Target {
        cgroups: vec![path.to_owned()],
        ..Target::default()
    };
    let unknown = session_of(&[(vec!["main"], 5)], "x");
    for target in [of_user.clone(), in_cgroup("/a")] {
        let error = try_export_of("folded", &target, &unknown)
            .unwrap_err()
            .to_string();
        assert!(error.contains("the recording does not say"), "{error}");
    }
    let (mut tables, events) = canonical::session();
    let (_, web) = tables.processes().next().unwrap();
    let web = web.clone();
    let below = tables.intern_string("/a/b").0;
    tables.intern_process(Process {
        uid: Some(7),
        cgroup: Some(below),
        ..web.clone()
    });
    let session = (tables, events);
    let by_pid = Target {
        pids: vec![web.pid],
        ..Target::default()
    };
    let expected = samples_of(&by_pid, &session);
    assert!(expected > 0);
    for target in [of_user, in_cgroup("/a"), in_cgroup("/a/b")] {
        assert_eq!(samples_of(&target, &session), expected);
    }
    let error = try_export_of("folded", &in_cgroup("/a/bc"), &session)
        .unwrap_err()
        .to_string();
    assert!(
        error.ends_with("no cgroup `/a/bc`; it has: /a/b"),
        "{error}"
    );
}

#[test]
fn only_what_ran_in_a_container() {
    let pods = ContainerNames {
        pods: vec!["shop/db-0".into()],
        ..ContainerNames::default()
    };
    let folded = String::from_utf8(within("folded", pods.clone()).unwrap()).unwrap();
    let samples = |text: &str| -> u64 {
        let numbers = text.lines().filter_map(|line| line.rsplit_once(' '));
        numbers
            .map(|(_, number)| number.parse::<u64>().unwrap())
            .sum()
    };
    assert_eq!(samples(&folded), 16);
    assert!(
        folded.lines().all(|line| line.starts_with("db;")),
        "{folded}"
    );
    let trace = String::from_utf8(within("go-trace", pods).unwrap()).unwrap();
    assert!(trace.contains("db (pid 200 in shop/db-0/postgres)"));
    assert!(!trace.contains("web (pid"), "others are left out");
    assert!(
        trace.contains("load started"),
        "what is of no process stays"
    );
    let unknown = ContainerNames {
        units: vec!["cron".into()],
        ..ContainerNames::default()
    };
    for format in profiler_report::export::formats() {
        let error = within(format.name, unknown.clone())
            .unwrap_err()
            .to_string();
        assert!(error.contains("it has: ssh.service"), "{error}");
    }
}

#[test]
fn svg_is_golden() {
    let session = canonical::session();
    let options = [("width", "1200")];
    golden::check("export/canonical.svg", &export("svg", &options, &session));
    let session = canonical::session_in_containers();
    let options = [("width", "1200"), ("containers", "yes")];
    golden::check("export/containers.svg", &export("svg", &options, &session));
}

/// Samples per function, as often as a stack holds it, from the events themselves.
fn functions_of_events((tables, events): &(Tables, Vec<Event>)) -> BTreeMap<String, u64> {
    let mut counts = BTreeMap::new();
    for event in events {
        if let Event::Sample(sample) = event {
            for frame in stack_frames(tables, sample.kernel, sample.user) {
                *counts.entry(frame.name.replace(';', ":")).or_default() += 1;
            }
        }
    }
    counts
}

fn functions_of_folded(folded: &str) -> BTreeMap<String, u64> {
    let mut counts = BTreeMap::new();
    for line in folded.lines() {
        let (stack, number) = line.rsplit_once(' ').unwrap();
        for frame in stack.split(';').skip(1) {
            let marks = ["_[k]", "_[j]", "_[i]"];
            let name = marks.iter().find_map(|mark| frame.strip_suffix(mark));
            *counts.entry(name.unwrap_or(frame).to_owned()).or_default() +=
                number.parse::<u64>().unwrap();
        }
    }
    counts
}

#[test]
fn folded_counts_are_those_of_the_events() {
    let session = canonical::session();
    let counts = functions_of_folded(&export("folded", &[], &session));
    assert_eq!(counts, functions_of_events(&session));
    assert_eq!(counts["copy_page_to_iter"], 18);
    assert_eq!(counts["main"], 84);
}

#[test]
fn reversed_graphs_merge_leaves() {
    let session = canonical::session();
    let svg = export("svg", &[("reverse", "yes"), ("count", "samples")], &session);
    // The leaf of two different callers' stacks is one frame at the bottom.
    assert!(svg.contains("copy_page_to_iter (18 samples, 18.00%)"));
}

#[test]
fn an_unknown_source_names_the_known_ones() {
    let session = canonical::session();
    let error = try_export("folded", &[("source", "cycles")], &session).unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("'cycles'") && text.contains("cpu-clock"),
        "{text}"
    );
}

/// Parses documents with Python's expat; says how many elements each has. None may hold a NUL, and
/// XML can't, so it separates them.
fn xml_elements(documents: &[String]) -> Result<Vec<usize>, String> {
    let code = "import sys, json, xml.parsers.expat as e\n\
                counts = []\n\
                def start(name, attributes): counts[-1] += 1\n\
                for i, document in enumerate(sys.stdin.buffer.read().split(b'\\0')):\n\
                \tcounts.append(0); p = e.ParserCreate(); p.StartElementHandler = start\n\
                \ttry: p.Parse(document, True)\n\
                \texcept e.ExpatError as x: sys.exit(f'document {i}: {x}')\n\
                print(json.dumps(counts))";
    let mut child = Command::new("python3")
        .args(["-c", code])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(documents.join("\0").as_bytes()).unwrap();
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    serde_json::from_slice(&output.stdout)
        .map_err(|_| String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn svg_is_well_formed_with_hostile_names() {
    let mut documents = Vec::new();
    for name in HOSTILE {
        let session = session_of(&[(vec![name, "main", name], 5), (vec!["a", name], 1)], name);
        documents.push(export("svg", &[], &session));
        documents.push(export("svg", &[("root", "bottom")], &session));
        let options = [("reverse", "yes"), ("threads", "yes"), ("title", name)];
        documents.push(export("svg", &options, &session));
        // And of what has changed.
        let before = session_of(&[(vec![name, "a"], 5), (vec!["b", name], 1)], name);
        let after = session_of(&[(vec![name, "a"], 1), (vec!["b", name], 9)], name);
        let svg_settings = settings("svg", &[]);
        let [before, after] = [before, after].map(|session| fold(&svg_settings, &session));
        let svg = difference(&svg_settings, [&before, &after], name);
        let svg = svg.unwrap().unwrap();
        documents.push(String::from_utf8(svg).unwrap());
    }
    let counts = xml_elements(&documents).unwrap();
    assert_eq!(counts.len(), documents.len());
}

#[test]
fn damaged_xml_would_be_noticed() {
    let error = xml_elements(&["<a/>".to_owned(), "<a>&</a>".to_owned()]).unwrap_err();
    assert!(error.contains("document 1"), "{error}");
}

#[test]
fn samples_without_weights_are_drawn() {
    let (tables, mut events) = canonical::session();
    for event in &mut events {
        if let Event::Sample(sample) = event {
            sample.weight = 0;
        }
    }
    let svg = export("svg", &[], &(tables, events));
    assert!(svg.contains("all (100 samples, 100%)"));
}

#[test]
fn huge_weights_do_not_overflow() {
    let (tables, mut events) = canonical::session();
    for event in &mut events {
        if let Event::Sample(sample) = event {
            sample.weight = u64::MAX;
        }
    }
    let session = (tables, events);
    assert!(export("svg", &[], &session).contains("walk"));
    assert!(export("folded", &[("count", "weight")], &session).contains("walk"));
}

#[test]
fn nothing_recorded_is_said() {
    let (tables, _) = canonical::session();
    let svg = export(
        "svg",
        &[("title", "a <b> & c")],
        &(tables.clone(), Vec::new()),
    );
    assert!(svg.contains("no samples") && svg.contains("a &lt;b&gt; &amp; c"));
    assert_eq!(xml_elements(&[svg]), Ok(vec![3]));
    assert_eq!(export("folded", &[], &(tables, Vec::new())), "");
}

/// A line of a process without any stack is its name and a number.
#[test]
fn no_name_makes_a_line_a_comment() {
    for (process, line) in [
        ("#", "#_ 3"),
        ("# x", "#_x 3"),
        ("#x", "#x 3"),
        ("12", "12 3"),
    ] {
        let session = session_of(&[(Vec::new(), 3)], process);
        assert_eq!(
            export("folded", &[], &session),
            format!("{line}\n"),
            "{process}"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn folded_parses_back_to_the_same_totals(
        process in ".{0,8}",
        stacks in prop::collection::vec(
            (prop::collection::vec(".{0,6}|[a-c;# 0-9.]{0,4}", 0..5), 1..4_u64), 0..8),
    ) {
        let stacks: Vec<(Vec<&str>, u64)> = stacks
            .iter()
            .map(|(names, count)| (names.iter().map(String::as_str).collect(), *count))
            .collect();
        let session = session_of(&stacks, &process);
        let folded = export("folded", &[], &session);
        let mut total = 0;
        let mut depths: BTreeMap<usize, u64> = BTreeMap::new();
        for line in folded.lines() {
            let (stack, number) = line.rsplit_once(' ').unwrap();
            let number: u64 = number.parse().unwrap();
            total += number;
            *depths.entry(stack.split(';').count() - 1).or_default() += number;
            // No tool may read a second number, or a comment.
            let last = stack.rsplit_once(' ').map_or("x", |(_, last)| last);
            prop_assert!(last.contains(|c: char| !c.is_ascii_digit() && c != '.'));
            prop_assert!(!line.starts_with("# "));
        }
        let mut expected: BTreeMap<usize, u64> = BTreeMap::new();
        for (names, count) in &stacks {
            *expected.entry(names.len()).or_default() += count;
        }
        prop_assert_eq!(total, stacks.iter().map(|(_, count)| count).sum::<u64>());
        prop_assert_eq!(depths, expected);
        // The drawing takes what folding made, whatever the names are.
        let svg = export("svg", &[("min-width", "0"), ("count", "samples")], &session);
        let all = format!("all ({total} samples, 100%)");
        prop_assert!(total == 0 || svg.contains(&all));
    }
}

/// Keeps what comes.
struct Kept(Vec<Event>);

impl Sink for Kept {
    fn event(&mut self, event: &Event, _: &Tables) -> std::io::Result<()> {
        self.0.push(event.clone());
        Ok(())
    }

    fn finish(&mut self, _: &Tables) -> std::io::Result<()> {
        Ok(())
    }
}

fn selected(selection: &Selection, (tables, events): &Recording) -> std::io::Result<Vec<Event>> {
    let mut kept = Kept(Vec::new());
    let mut only = Only::new(&mut kept, selection);
    for event in events {
        only.event(event, tables)?;
    }
    only.finish(tables)?;
    Ok(kept.0)
}

fn of_function(name: &str) -> Selection {
    Selection {
        filter: Filter {
            functions: vec![name.to_owned()],
            ..Filter::default()
        },
        ..Selection::default()
    }
}

#[test]
fn samples_of_a_function_are_those_with_it_in_their_stacks() {
    let session = canonical::session_with_everything();
    let (tables, events) = &session;
    let has = |sample: &Sample, part: &str| {
        let mut frames = stack_frames(tables, sample.kernel, sample.user);
        frames.any(|frame| frame.name.contains(part))
    };
    for part in ["parse", "sys_", "no such function"] {
        let kept = selected(&of_function(part), &session).unwrap();
        let ours = weights(&(tables.clone(), kept), |_| true);
        assert_eq!(
            ours,
            weights(&session, |sample| has(sample, part)),
            "{part}"
        );
        for format in profiler_report::export::formats() {
            let settings = settings(format.name, &[]);
            // Profiles for compilers have nothing to say of nothing.
            let exported = export_into(&settings, &of_function(part), &session);
            assert!(
                exported.is_ok() || format.name.starts_with("pgo"),
                "{}: {exported:?}",
                format.name
            );
        }
    }
    let samples = events
        .iter()
        .filter(|event| matches!(event, Event::Sample(_)));
    assert!(samples.count() > 0);
}

/// Formats that have a place for notes as text: all say of a recording what a report says of it.
#[test]
fn what_a_recording_lacks_is_said_in_every_format() {
    let mut b = Builder::default();
    let thread = b.thread("t", 10);
    let f = b.function("f", 0x100);
    let source = b.string("cpu-clock");
    let source = Source {
        name: source,
        unit: Unit::Nanoseconds,
        frequency_hz: Some(100),
        period: None,
    };
    let (source, _) = b.tables.sources.intern(source);
    let sample = Sample::new(Timestamp(START), thread, Cpu(0), source, 7);
    b.events.push(Event::Sample(sample));
    b.enter(thread, f, 0, START);
    b.exit_how(thread, f, 0, START, START + MS, 0, ExitKind::Unwatched);
    b.events.push(Event::Gap(Gap {
        from: Timestamp(START + MS),
        to: Timestamp(START + 194 * MS - 200 * US),
        function: Some(f),
        process: None,
        reason: GapReason::DutyCycle,
    }));
    b.tables.is_cut_off = true;
    let session = (b.tables, b.events);
    let formats = [
        "speedscope",
        "firefox",
        "chrome-trace",
        "cpuprofile",
        "callgrind",
        "perf-script",
        "go-trace",
        "tcf",
        "perfetto",
        "otlp",
        "js-self-profiling",
    ];
    for format in formats {
        let file = try_export(format, &[], &session).unwrap();
        let text = String::from_utf8_lossy(&file);
        for said in [
            "the recording was not finished, what came last may be missing",
            "gaps of calls: 1 of 193 ms together, over budget, watched a part of the time",
            "calls: at least those that are told, as gaps may hide more",
            "calls not watched to their end: 1",
        ] {
            // Some have them in two parts, of which OTLP writes the first one with other letters.
            let (first, second) = said.split_once(": ").unwrap_or(("", said));
            let parts = match format {
                "otlp" => ["", second],
                "firefox" => [first, second],
                _ => ["", said],
            };
            assert!(
                parts.iter().all(|part| text.contains(part)),
                "{format}: {said}: {text}"
            );
        }
    }
    let svg = export("svg", &[], &session);
    let said = "not finished, the end may be missing · calls missing in 1 gap · 1 call not watched to their end";
    assert!(svg.contains(said), "{svg}");
}

#[test]
fn samples_of_a_source_are_selected_in_any_format() {
    let session = canonical::session_with_everything();
    let selection = |source: &str| Selection {
        source: Some(source.to_owned()),
        ..Selection::default()
    };
    let kept = selected(&selection("off-cpu"), &session).unwrap();
    let waits = weights(&(session.0.clone(), kept), |_| true);
    assert_eq!(waits, weights(&session, |sample| sample.wait.is_some()));
    let error = selected(&selection("nothing"), &session).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("no samples of `nothing` in the recording; it has samples of: "),
        "{error}"
    );
}

/// Of calls the others enclose nothing: depths are those among the calls that are left.
#[test]
fn calls_of_a_function_are_calls_without_the_others() {
    let (tables, events) = canonical::session_with_everything();
    let name = |call: &Call| {
        let function = tables.functions.get(call.function).unwrap();
        tables.string(function.name).to_owned()
    };
    let calls = |events: &[Event]| -> Vec<Call> {
        let call = |event: &Event| match event {
            Event::Call(call) => Some(call.clone()),
            _ => None,
        };
        events.iter().filter_map(call).collect()
    };
    let deep = calls(&events)
        .into_iter()
        .find(|call| call.depth > 0)
        .unwrap();
    let wanted = name(&deep);
    let kept = calls(&selected(&of_function(&wanted), &(tables.clone(), events.clone())).unwrap());
    let all = calls(&events)
        .into_iter()
        .filter(|call| name(call).contains(&wanted));
    assert_eq!(kept.len(), all.count());
    let mut open: BTreeMap<ThreadId, u32> = BTreeMap::new();
    for call in &kept {
        let open = open.entry(call.thread).or_default();
        match &call.edge {
            CallEdge::Enter(_) => {
                assert_eq!(call.depth, *open);
                *open += 1;
            }
            CallEdge::Exit(_) => {
                *open = open.saturating_sub(1);
                assert_eq!(call.depth, *open);
            }
            CallEdge::Hit(_) => assert_eq!(call.depth, *open),
        }
    }
    assert!(kept.iter().any(|call| call.depth == 0));
}
