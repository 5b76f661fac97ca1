//! What must hold for the report of any recording: sums that agree with each other and with the
//! samples, whatever the stacks look like.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use profiler_model::*;
use profiler_report::view::report::{self, Collector, Format, Recording, ReportOptions};
use profiler_tests::canonical;
use proptest::prelude::*;
use serde_json::Value;

/// A sample in short: thread, user frames and kernel frames outermost first, weight.
type Short = (u8, Vec<u8>, Vec<u8>, u32);

fn short() -> impl Strategy<Value = Short> {
    let frames = |most| prop::collection::vec(0u8..12, 0..most);
    (0u8..4, frames(9), frames(4), 0u32..1000)
}

/// Frames 0-8 have one function each, of which 4 is a part of 3; 9 has another function inlined
/// into it, and that is function 0; 10 and 11 have no name.
fn record(samples: &[Short]) -> (Tables, Collector) {
    let mut tables = Tables::default();
    let path = tables.intern_string("/bin/random").0;
    let file = tables.intern_string("no/such/random.c").0;
    let module = Module {
        kind: ModuleKind::File,
        path,
        build_id: None,
        address_bias: 0,
    };
    let module = tables.modules.intern(module).0;
    let functions: Vec<FunctionId> = (0..10u64)
        .map(|index| {
            let name = if index == 4 { 3 } else { index };
            let part = (index == 4).then(|| tables.intern_string("f3.cold").0);
            let function = Function {
                name: tables.intern_string(&format!("f{name}")).0,
                linkage_name: part,
                module: Some(module),
                file: Some(file),
                line: 0,
                start: Some(index * 16),
                size: Some(16),
            };
            tables.functions.intern(function).0
        })
        .collect();
    let frames: Vec<FrameId> = (0..12usize)
        .map(|index| {
            let frame = Frame {
                kind: FrameKind::Native,
                module: (index != 11).then_some(module),
                address: index as u64 * 16,
            };
            let frame = tables.frames.intern(frame).0;
            let line = |index: usize| Line {
                function: functions[index],
                line: index as u32 + 1,
            };
            match index {
                0..9 => tables.set_symbol(frame, Symbol::Lines([line(index)].into())),
                9 => tables.set_symbol(frame, Symbol::Lines([line(0), line(9)].into())),
                _ => {}
            }
            frame
        })
        .collect();
    let source = Source {
        name: tables.intern_string("page-faults").0,
        unit: Unit::Events,
        frequency_hz: None,
        period: Some(1),
    };
    let source = tables.sources.intern(source).0;
    let mut collected = Collector::default();
    for (index, (thread, user, kernel, weight)) in samples.iter().enumerate() {
        let sample = Sample::new(
            Timestamp(index as u64 + 1),
            thread_of(&mut tables, *thread),
            Cpu(0),
            source,
            u64::from(*weight),
        )
        .with_stacks(
            stack(&mut tables, &frames, kernel),
            stack(&mut tables, &frames, user),
        );
        collected.add(&Event::Sample(sample), &tables);
    }
    (tables, collected)
}

/// Threads 0 and 1 are of one process, 2 and 3 of processes of their own.
fn thread_of(tables: &mut Tables, thread: u8) -> ThreadId {
    let pid = u32::from(thread.max(1));
    let name = tables.intern_string(&format!("p{pid}")).0;
    let process = Process {
        pid: Pid(pid),
        started: Timestamp(0),
        parent: None,
        name,
        executable: None,
        command: None,
        namespace_pids: Vec::new(),
        uid: None,
        cgroup: None,
        container: None,
    };
    let process = tables.intern_process(process).0;
    let thread = Thread {
        process,
        tid: Tid(u32::from(thread)),
        started: Timestamp(0),
        name,
    };
    tables.intern_thread(thread).0
}

fn stack(tables: &mut Tables, frames: &[FrameId], short: &[u8]) -> Option<StackId> {
    let mut parent = None;
    for &frame in short {
        let frame = frames[usize::from(frame)];
        parent = Some(tables.stacks.intern(Stack { parent, frame }).0);
    }
    parent
}

fn json(tables: &Tables, collected: &Collector, options: &ReportOptions) -> Value {
    let recording = Recording { tables, collected };
    let mut out = Vec::new();
    report::run(&recording, options, &mut out).unwrap();
    serde_json::from_slice(&out).unwrap()
}

fn all() -> ReportOptions {
    ReportOptions {
        format: Format::Json,
        min_percent: 0.0,
        ..ReportOptions::default()
    }
}

fn rows<'a>(report: &'a Value, table: &str) -> &'a [Value] {
    report[table].as_array().unwrap()
}

fn number(row: &Value, field: &str) -> u64 {
    row[field].as_u64().unwrap()
}

fn sum(rows: &[Value], field: &str) -> u64 {
    rows.iter().map(|row| number(row, field)).sum()
}

fn check(report: &Value) {
    let header = &report["header"];
    for (own, total, whole) in [
        ("self_weight", "total_weight", number(header, "weight")),
        ("self_samples", "total_samples", number(header, "samples")),
    ] {
        let functions = rows(report, "functions");
        assert_eq!(sum(functions, own), whole);
        let no_stack = functions.iter().filter(|row| row["name"] == "[no stack]");
        let no_stack: u64 = no_stack.map(|row| number(row, own)).sum();
        assert_eq!(sum(rows(report, "modules"), own), whole - no_stack);
        for row in functions.iter().chain(rows(report, "modules")) {
            assert!(number(row, own) <= number(row, total) && number(row, total) <= whole);
        }
        let tree = rows(report, "tree");
        assert_eq!(sum(tree, own), whole);
        let mut below = vec![0; tree.len()];
        for row in tree {
            if let Some(parent) = row["parent"].as_u64() {
                below[parent as usize] += number(row, total);
            } else {
                assert_eq!(number(row, total), whole);
            }
        }
        for (row, below) in tree.iter().zip(below) {
            assert_eq!(number(row, total), below + number(row, own));
        }
    }
    for table in ["processes", "threads"] {
        assert_eq!(sum(rows(report, table), "weight"), number(header, "weight"));
        assert_eq!(
            sum(rows(report, table), "samples"),
            number(header, "samples")
        );
    }
}

/// Names of a sample's functions, leaf first, worked out from the short form alone.
fn names(sample: &Short) -> Vec<String> {
    let frames = sample.2.iter().rev().chain(sample.1.iter().rev());
    let names = frames.flat_map(|&frame| match frame {
        4 => vec!["f3".to_owned()],
        9 => vec!["f0".to_owned(), "f9".to_owned()],
        10 => vec!["random+0xa0".to_owned()],
        11 => vec!["[unknown]+0xb0".to_owned()],
        frame => vec![format!("f{frame}")],
    });
    let names: Vec<String> = names.collect();
    match names.is_empty() {
        true => vec!["[no stack]".to_owned()],
        false => names,
    }
}

/// Threads that say by their name what they work at: a row each, with the names that weigh most.
#[test]
fn a_thread_of_many_names_is_one_row() {
    const NAMES: u64 = 200;
    let (mut tables, _) = record(&[]);
    let source = tables.sources.iter().next().unwrap().0;
    let threads = [0, 1].map(|thread| thread_of(&mut tables, thread));
    let mut collected = Collector::default();
    for job in 0..NAMES {
        let name = tables.intern_string(&format!("job {job}")).0;
        let from = Timestamp(job * 10);
        let thread = threads[0];
        tables.add_name(Named { thread, from, name });
    }
    for job in 0..NAMES {
        for thread in threads {
            let sample = Sample::new(Timestamp(job * 10 + 1), thread, Cpu(0), source, job + 1);
            collected.add(&Event::Sample(sample), &tables);
        }
    }
    let report = json(&tables, &collected, &all());
    let all_of = |rows: &[Value]| (sum(rows, "samples"), sum(rows, "weight"));
    let each = (NAMES, NAMES * (NAMES + 1) / 2);
    let threads = rows(&report, "threads");
    assert_eq!(threads.len(), 2, "{threads:#?}");
    let renamed = threads.iter().find(|row| row["tid"] == 0).unwrap();
    let names = rows(renamed, "names");
    assert_eq!((names.len(), all_of(names)), (16, each));
    assert_eq!(all_of(std::slice::from_ref(renamed)), each);
    let heaviest = names.iter().find(|row| row["thread"] == "job 199").unwrap();
    assert_eq!(number(heaviest, "weight"), 200);
    let other = threads.iter().find(|row| row["tid"] == 1).unwrap();
    assert!(other.get("names").is_none(), "{other}");
    // As text each name is for itself.
    let text = ReportOptions {
        format: Format::Text,
        ..all()
    };
    let mut out = Vec::new();
    let recording = Recording {
        tables: &tables,
        collected: &collected,
    };
    report::run(&recording, &text, &mut out).unwrap();
    let text = String::from_utf8(out).unwrap();
    assert!(text.contains("job 199  (tid 0 of p1)"), "{text}");
}

#[test]
fn the_canonical_session_adds_up() {
    let (tables, events) = canonical::session();
    let mut collected = Collector::default();
    for event in &events {
        collected.add(event, &tables);
    }
    let report = json(&tables, &collected, &all());
    assert_eq!(number(&report["header"], "weight"), 100 * 1_001_001);
    check(&report);
}

proptest! {
    #[test]
    fn any_recording_adds_up(samples in prop::collection::vec(short(), 0..60)) {
        let (tables, collected) = record(&samples);
        check(&json(&tables, &collected, &all()));
    }

    #[test]
    fn functions_have_the_samples_whose_stacks_they_are_in(
        samples in prop::collection::vec(short(), 1..40)
    ) {
        let (tables, collected) = record(&samples);
        let report = json(&tables, &collected, &all());
        for row in rows(&report, "functions") {
            let name = row["name"].as_str().unwrap();
            let of = |test: &dyn Fn(&[String]) -> bool| -> u64 {
                samples.iter().filter(|s| test(&names(s))).map(|s| u64::from(s.3)).sum()
            };
            let is_leaf = of(&|names| names[0] == name);
            let is_in = of(&|names| names.iter().any(|n| n == name));
            prop_assert_eq!(number(row, "self_weight"), is_leaf);
            prop_assert_eq!(number(row, "total_weight"), is_in);
        }
    }

    #[test]
    fn callers_cover_a_function_and_no_edge_exceeds_it(
        samples in prop::collection::vec(short(), 1..40)
    ) {
        let (tables, collected) = record(&samples);
        let options = ReportOptions { callers_of: Some("f0".into()), ..all() };
        if !samples.iter().any(|sample| names(sample).iter().any(|name| name == "f0")) {
            return Ok(());
        }
        let report = json(&tables, &collected, &options);
        for focus in rows(&report, "callers_of") {
            let total = number(&focus["function"], "total_weight");
            prop_assert!(sum(rows(focus, "callers"), "weight") >= total);
            for edge in rows(focus, "callers").iter().chain(rows(focus, "callees")) {
                prop_assert!(number(edge, "weight") <= total);
            }
            // Each sample with the function ends in it or goes on to a callee.
            let on = sum(rows(focus, "callees"), "weight");
            prop_assert!(on + number(&focus["function"], "self_weight") >= total);
        }
    }

    #[test]
    fn small_branches_are_summed_up_not_dropped(
        samples in prop::collection::vec(short(), 1..60),
        min_percent in 0.0f64..60.0,
    ) {
        let (tables, collected) = record(&samples);
        let report = json(&tables, &collected, &ReportOptions { min_percent, ..all() });
        let tree = rows(&report, "tree");
        let omitted = sum(tree, "omitted_weight");
        prop_assert_eq!(sum(tree, "self_weight") + omitted, number(&report["header"], "weight"));
    }

    #[test]
    fn text_is_never_wider_than_the_terminal(
        samples in prop::collection::vec(short(), 0..60),
        width in 60usize..160,
    ) {
        let (tables, collected) = record(&samples);
        let recording = Recording { tables: &tables, collected: &collected };
        let options = ReportOptions { width: Some(width), ..ReportOptions::default() };
        let mut out = Vec::new();
        report::run(&recording, &options, &mut out).unwrap();
        for line in String::from_utf8(out).unwrap().lines() {
            prop_assert!(line.chars().count() <= width, "{}", line);
        }
    }
}

proptest! {
    // Each case makes a report per function.
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn lines_and_instructions_add_up_to_their_function(
        samples in prop::collection::vec(short(), 1..40)
    ) {
        let (tables, collected) = record(&samples);
        let report = json(&tables, &collected, &all());
        for row in rows(&report, "functions").iter().filter(|row| row["named"] == true) {
            let name = row["name"].as_str().unwrap().to_owned();
            // Code of function 0 is also in function 9, inlined.
            let has_copies = name == "f0";
            let annotation = json(&tables, &collected, &ReportOptions {
                annotate: Some(name),
                ..all()
            });
            let lines: u64 = rows(&annotation, "files")
                .iter()
                .map(|file| sum(rows(file, "lines"), "self_weight"))
                .sum();
            prop_assert_eq!(lines, number(row, "self_weight"));
            for row in rows(&annotation, "instructions") {
                prop_assert!(number(row, "self_weight") <= number(row, "total_weight"));
            }
            let here = number(&annotation["function"], "total_weight");
            let at = sum(rows(&annotation, "instructions"), "total_weight");
            prop_assert_eq!(here, number(row, "total_weight"));
            // Functions 3 and 4 are two of one name: the instructions are those of one.
            prop_assert!(has_copies || row["name"] == "f3" || at == here);
        }
    }
}
