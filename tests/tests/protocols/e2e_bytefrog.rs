//! Programs that count their own calls, streamed by `profiler stream bytefrog` to `profiler hq`: what
//! the receiver's capture holds is what happened.

use std::collections::BTreeMap;

use profiler_tests::Outcome;
use profiler_tests::setting::Setting;
use profiler_tests::tracing::{Build, Edge, prepared};

use crate::e2e_bytefrog_shared::*;

/// What is the same for all traced programs.
const TRACE: &[&str] = &["--budget", "off", "--returns", "ret-insn"];

/// Calls, recursion, exceptions through several frames, on several threads that are renamed: counts
/// and the tree, over one connection and over four.
#[test]
fn threads_and_exceptions() -> Outcome {
    let test = "e2e_bytefrog::threads_and_exceptions";
    let Some((setting, program)) = prepared(test, "stream_threads.cpp", Build::Optimised)? else {
        return Ok(());
    };
    let program = program.to_string_lossy();
    for senders in ["1", "4"] {
        let arguments = ["--trace", "stream_threads:app::*"];
        let command = ["--", &program, "4", "250", "0"];
        let arguments = [&arguments[..], TRACE, &command].concat();
        let (ended, received) = whole_run(&setting, &["--senders", senders], &arguments)?;
        let truth = ended.json()?;
        received.is_what_happened(&truth)?;
        assert_eq!(received.pairs(), pairs_of(&truth));
        received.trace.complete()?;
        assert_eq!(received.trace.nested()?, 0);
        assert_eq!(
            Some(received.trace.throws.len() as u64),
            truth["throws"].as_u64()
        );
        for throw in &received.trace.throws {
            assert_eq!(throw.kind, "app::failure");
        }
        for thread in 0..4 {
            let name = format!("second-{thread}");
            let named = received.threads.iter().any(|known| known.contains(&name));
            assert!(named, "{name}: {:?}", received.threads);
        }
    }
    Ok(())
}

/// Where functions are, and who threw on which line, goes all the way: names of methods say file and
/// line, message 22 the line, and `report` shows the thrower.
#[test]
fn places_of_functions_and_throws() -> Outcome {
    let test = "e2e_bytefrog::places_of_functions_and_throws";
    let source = include_str!("../../workloads/stream_threads.cpp");
    let line_of = |text: &str| {
        let lines = (1..).zip(source.lines());
        let found = lines
            .filter(|(_, line)| line.contains(text))
            .map(|(number, _)| number);
        found.min().unwrap_or(0)
    };
    for build in [Build::Plain, Build::Optimised] {
        let Some((setting, program)) = prepared(test, "stream_threads.cpp", build)? else {
            return Ok(());
        };
        let program = program.to_string_lossy();
        let arguments = ["--trace", "stream_threads:app::*"];
        let command = ["--", &program, "2", "250", "0"];
        let arguments = [&arguments[..], TRACE, &command].concat();
        let (ended, received) = whole_run(&setting, &[], &arguments)?;
        let truth = ended.json()?;
        let throws = &received.trace.throws;
        assert_eq!(Some(throws.len() as u64), truth["throws"].as_u64());
        let thrown = line_of("throw failure{n}");
        for throw in throws {
            let (name, line) = throw.thrower.as_ref().ok_or("no thrower")?;
            assert!(name.starts_with("app::fails"), "{name}");
            assert_eq!(*line, thrown, "{build:?}");
        }
        let sources = &received.trace.sources;
        assert_eq!(sources.len(), 7, "{sources:?}");
        for (name, (file, line)) in sources {
            assert!(file.ends_with("stream_threads.cpp"), "{name}: {file}");
            let short = name
                .split('(')
                .next()
                .and_then(|name| name.rsplit(':').next());
            let short = short.ok_or("no name")?;
            assert_eq!(*line, line_of(&format!(" {short}(long")), "{name}");
        }
        let report = ["report", "hq.cap", "--exceptions"];
        let report = setting.run(&report)?.success()?;
        assert!(report.stdout.contains("app::fails"), "{}", report.stdout);
        assert!(!report.stdout.contains("[unknown]"), "{}", report.stdout);
    }
    Ok(())
}

/// Lines of exits go all the way.
#[test]
fn lines_of_exits() -> Outcome {
    let test = "e2e_bytefrog::lines_of_exits";
    let Some((setting, program)) = prepared(test, "trace_lines.cpp", Build::Optimised)? else {
        return Ok(());
    };
    let names = ["app::shape::kind", "app::shape::pick", "even", "odd"];
    let patterns: Vec<&str> = names.iter().flat_map(|name| ["--trace", name]).collect();
    let program = program.to_string_lossy();
    let arguments = [&patterns[..], TRACE, &["--", &program, "1000"]].concat();
    let (ended, received) = whole_run(&setting, &[], &arguments)?;
    let truth = ended.json()?;
    let mut lines: BTreeMap<(&str, u32), u64> = BTreeMap::new();
    for call in &received.trace.calls {
        if let Edge::Exit { line, .. } = call.edge {
            let name = call.function.rsplit("::").next().unwrap_or_default();
            *lines.entry((name, line)).or_default() += 1;
        }
    }
    let mut counted = BTreeMap::new();
    for (function, counts) in truth["lines"].as_object().ok_or("no lines")? {
        for (line, count) in counts.as_object().into_iter().flatten() {
            counted.insert((&**function, line.parse()?), count.as_u64().unwrap_or(0));
        }
    }
    assert_eq!(lines, counted);
    assert_eq!(lines.len(), 7);
    Ok(())
}

/// Panics of Rust, and goroutines whose stacks move.
#[test]
fn rust_and_go() -> Outcome {
    let test = "e2e_bytefrog::rust_and_go";
    for (source, pattern, rounds) in [
        ("trace_panic.rs", "trace_panic::*", "200"),
        ("trace_go/main.go", "trace_go:main.*", "10"),
    ] {
        let Some((setting, program)) = prepared(test, source, Build::Optimised)? else {
            continue;
        };
        let program = program.to_string_lossy();
        let command = ["--", &program, rounds];
        let arguments = [&["--trace", pattern][..], TRACE, &command].concat();
        let (ended, received) = whole_run(&setting, &["--senders", "2"], &arguments)?;
        let mut truth = ended.json()?;
        if source.ends_with(".go") {
            // Calls that a panic of Go leaves are found to be over, not how: the wire has them return.
            truth["returns"] = truth["calls"].clone();
        }
        received.is_what_happened(&truth)?;
        received.trace.complete()?;
    }
    Ok(())
}

/// Calls that are inferred from samples nest as the program's do, and last as long.
#[test]
fn calls_from_samples() -> Outcome {
    let Some(setting) = Setting::new("e2e_bytefrog::calls_from_samples")? else {
        return Ok(());
    };
    let program = setting.workload("chain.c")?;
    let program = program.to_string_lossy();
    let arguments = ["--from-samples", "-F", "499", "--", &program, "3000"];
    let (ended, received) = whole_run(&setting, &[], &arguments)?;
    let truth = ended.json()?;
    let callers = [
        ("outer", "main"),
        ("middle", "outer"),
        ("inner", "middle"),
        ("leaf_a", "inner"),
        ("leaf_b", "inner"),
        ("leaf_c", "inner"),
    ];
    let pairs = received.pairs();
    for (callee, caller) in callers {
        let all: u64 = pairs
            .iter()
            .filter(|(pair, _)| pair.ends_with(&format!(">{callee}")))
            .map(|(_, count)| count)
            .sum();
        let right = pairs.get(&format!("{caller}>{callee}")).copied();
        let right = right.unwrap_or(0);
        // A sample in a prologue can miss a caller where frame pointers are followed.
        assert!(right > 0 && right * 20 >= all * 19, "{callee}: {pairs:?}");
    }
    let took = |function: &str| -> f64 {
        let ended = received
            .trace
            .of(function)
            .filter_map(|call| match call.edge {
                Edge::Exit { began_ns, .. } => Some((call.at_ns - began_ns) as f64),
                _ => None,
            });
        ended.sum()
    };
    let leaves = ["leaf_a", "leaf_b", "leaf_c"];
    let inferred: f64 = leaves.iter().map(|leaf| took(leaf)).sum();
    let real: f64 = leaves.iter().filter_map(|leaf| truth[leaf].as_f64()).sum();
    for leaf in leaves {
        let share = took(leaf) / inferred;
        let expected = truth[leaf].as_f64().ok_or("no time")? / real;
        // About 1,500 samples: three standard deviations are less than 4 %, and the machine is busy.
        assert!(
            (share - expected).abs() < 0.07,
            "{leaf}: {share} of {expected}"
        );
    }
    Ok(())
}

/// What was recorded and is replayed into a receiver is what is reported of either capture.
#[test]
fn a_capture_replayed() -> Outcome {
    let test = "e2e_bytefrog::a_capture_replayed";
    let Some((setting, program)) = prepared(test, "stream_threads.cpp", Build::Optimised)? else {
        return Ok(());
    };
    let program = program.to_string_lossy();
    let arguments = ["--trace", "stream_threads:app::*", "--no-samples"];
    let command = ["--", &program, "3", "200", "0"];
    let (ended, _) = setting.record(&[&arguments[..], TRACE, &command].concat())?;
    let truth = ended.json()?;
    let (_, received) = whole_run(&setting, &[], &["--replay", "out.cap"])?;
    received.is_what_happened(&truth)?;
    assert_eq!(received.pairs(), pairs_of(&truth));
    let counts = |capture: &str| -> Result<BTreeMap<String, u64>, Box<dyn std::error::Error>> {
        let report = ["report", capture, "--calls", "--format", "json"];
        let report = setting.run(&report)?.success()?.json()?;
        let rows = report["calls"]["functions"].as_array().ok_or("no table")?;
        let row = |row: &serde_json::Value| {
            let name = row["name"].as_str()?.split('(').next()?.to_owned();
            Some((name, row["calls"].as_u64()?))
        };
        Ok(rows.iter().filter_map(row).collect())
    };
    let recorded = counts("out.cap")?;
    assert_eq!(recorded.len(), 7, "{recorded:?}");
    assert_eq!(recorded, counts("hq.cap")?);
    Ok(())
}
