//! Durations of traced calls are what the program measures itself, the report says them, and samples
//! taken beside have whole stacks.

use std::collections::BTreeMap;

use profiler_tests::Outcome;
use profiler_tests::recording::Recording;
use profiler_tests::statistics;
use profiler_tests::tracing::{Build, CallReport, Edge, Session, prepared};

/// Each call of walk_* began between the clock that its caller read before it and the first that it
/// read itself, and ended between its last and its caller's next.
#[test]
fn durations_are_within_what_the_program_measures() -> Outcome {
    let Some((setting, program)) = prepared(
        "e2e_trace_times::durations_are_within_what_the_program_measures",
        "trace_calls.c",
        Build::Optimised,
    )?
    else {
        return Ok(());
    };
    for returns in ["auto", "ret-insn", "uretprobe"] {
        let run = Session::of(&setting, &program)
            .arguments(&["1"])
            .record(&["--trace", "walk_*", "--returns", returns])
            .record(&["--budget", "off", "--no-samples"])
            .probed(&["walk_outer", "walk_middle", "walk_leaf"])
            .run()?;
        run.unharmed()?;
        run.trace.complete()?;
        run.trace
            .counted(&run.truth, &["walk_outer", "walk_middle", "walk_leaf"])?;
        assert_eq!(run.trace.nested()?, 0);
        let mut truth: BTreeMap<String, Vec<[u64; 4]>> = BTreeMap::new();
        for walk in run.truth.all["walk"].as_array().ok_or("no walk")? {
            let clock = |index: usize| walk[index].as_u64().ok_or("no clock");
            let name = walk[0].as_str().ok_or("no function")?.to_owned();
            truth
                .entry(name)
                .or_default()
                .push([clock(1)?, clock(2)?, clock(3)?, clock(4)?]);
        }
        for (function, walks) in &truth {
            let mut exits: Vec<(u64, u64)> = run
                .trace
                .of(function)
                .filter_map(|call| match call.edge {
                    Edge::Exit { began_ns, .. } => Some((began_ns, call.at_ns)),
                    _ => None,
                })
                .collect();
            exits.sort_unstable();
            assert_eq!(exits.len(), walks.len());
            for ((began, ended), [before, first, last, after]) in exits.iter().zip(walks) {
                assert!(
                    before <= began && began <= first && last <= ended && ended <= after,
                    "{function} with --returns {returns}: {began}..{ended}, but the program read \
                     {before}, {first}, {last}, {after}"
                );
            }
        }
    }
    Ok(())
}

/// The report says what is in the capture.
#[test]
fn the_report_agrees() -> Outcome {
    let Some((setting, program)) = prepared(
        "e2e_trace_times::the_report_agrees",
        "trace_calls.c",
        Build::Optimised,
    )?
    else {
        return Ok(());
    };
    let run = Session::of(&setting, &program)
        .arguments(&["100"])
        .record(&["--trace", "walk_*", "--trace", "recurse", "--no-samples"])
        // The recursion is nothing but calls: for a while it is above the usual budget.
        .record(&["--budget", "off"])
        .probed(&["walk_leaf", "recurse"])
        .run()?;
    run.unharmed()?;
    let report = CallReport::of(&setting)?;
    for function in ["walk_outer", "walk_middle", "walk_leaf", "recurse"] {
        let row = report.row(function)?;
        let value = |key: &str| {
            row[key]
                .as_u64()
                .ok_or_else(|| format!("{function} has no {key}: {row}"))
        };
        let mut durations = Vec::new();
        let mut own = 0;
        for call in run.trace.of(function) {
            if let Edge::Exit {
                began_ns, self_ns, ..
            } = call.edge
            {
                durations.push(call.at_ns - began_ns);
                own += self_ns;
            }
        }
        durations.sort_unstable();
        assert_eq!(value("calls")?, run.truth.calls[function]);
        assert_eq!(value("calls_seen")?, run.truth.calls[function]);
        assert_eq!(value("self_ns")?, own);
        assert_eq!(Some(&value("max_ns")?), durations.last());
        for key in [
            "exceptions",
            "inferred",
            "terminated",
            "open",
            "lost_records",
            "left_out",
        ] {
            assert_eq!(value(key)?, 0, "{function}: {key}");
        }
        assert_eq!(row["gaps"], serde_json::json!([]), "{function}");
        // Time within a recursion counts once.
        let total = value("total_ns")?;
        if function == "recurse" {
            assert!(total >= own && total <= durations.iter().sum());
        } else {
            assert_eq!(total, durations.iter().sum::<u64>());
            assert_eq!(value("mean_ns")?, total / durations.len() as u64);
        }
        // Quantiles may be of a histogram, whose steps are narrow.
        for (key, share) in [("p50_ns", 0.5), ("p95_ns", 0.95), ("p99_ns", 0.99)] {
            let rank = ((durations.len() as f64 * share).ceil() as usize).clamp(1, durations.len());
            let (exact, said) = (durations[rank - 1] as f64, value(key)? as f64);
            let around = (
                durations[rank.saturating_sub(2)] as f64,
                durations[rank.min(durations.len() - 1)] as f64,
            );
            assert!(
                said >= around.0 * 0.9 && said <= around.1 * 1.1,
                "{function}: {key} is {said}, not {exact}"
            );
        }
    }
    let text = setting
        .run(&["report", "out.cap", "--calls"])?
        .success()?
        .stdout;
    assert!(text.contains("walk_middle"), "{text}");
    Ok(())
}

/// Stacks of samples are whole while returns are pending: no frame of the trampoline, and as many
/// chains that reach main as without tracing.
#[test]
fn samples_beside_calls() -> Outcome {
    let Some((setting, program)) = prepared(
        "e2e_trace_times::samples_beside_calls",
        "trace_calls.c",
        Build::Plain,
    )?
    else {
        return Ok(());
    };
    let path = program.to_string_lossy().into_owned();
    let share = |recording: &Recording| {
        // Not those in the vDSO, which has no frame pointers.
        let walking: Vec<_> = recording
            .samples
            .iter()
            .filter(|sample| {
                [
                    "now_ns",
                    "spin_ns",
                    "walk_leaf",
                    "walk_middle",
                    "walk_outer",
                ]
                .contains(&sample.leaf())
            })
            .collect();
        let whole = walking
            .iter()
            .filter(|sample| sample.calls("main") && sample.calls("walk_outer"))
            .count();
        (whole, walking.len())
    };
    let (_, plain) = setting.record(&["-F", "4999", "--", &path, "1"])?;
    let (whole, all) = share(&plain);
    assert!(whole > 50, "{whole} of {all} without tracing");
    let untraced = (whole, all);
    for returns in ["uretprobe", "auto", "ret-insn"] {
        let run = Session::of(&setting, &program)
            .arguments(&["1"])
            .record(&["--trace", "walk_*", "--returns", returns])
            .record(&["--budget", "off", "-F", "4999"])
            .probed(&["walk_outer", "walk_middle", "walk_leaf"])
            .run()?;
        run.unharmed()?;
        run.trace
            .counted(&run.truth, &["walk_outer", "walk_middle", "walk_leaf"])?;
        let recording = Recording::read(&setting.path("out.cap"))?;
        for sample in &recording.samples {
            for frame in &sample.user {
                let module = frame.module.as_deref().unwrap_or("");
                assert!(
                    !module.contains("uprobes"),
                    "{returns}: {:?}",
                    sample.chain()
                );
            }
        }
        let (whole, all) = share(&recording);
        assert!(whole > 50, "{whole} of {all} with --returns {returns}");
        let what = format!("whole chains with --returns {returns}");
        statistics::no_less(&what, (whole, all), untraced)?;
    }
    Ok(())
}

/// A tick most often comes where the kernel has just executed the instruction of a probe out of line: what holds there is
/// what is behind it.
#[test]
fn samples_where_an_instruction_was_executed_out_of_line() -> Outcome {
    let test = "e2e_trace_times::samples_where_an_instruction_was_executed_out_of_line";
    let Some((setting, program)) = prepared(test, "trace_stepped.c", Build::Optimised)? else {
        return Ok(());
    };
    let path = program.to_string_lossy().into_owned();
    for returns in ["uretprobe", "ret-insn"] {
        let words = [
            "-F",
            "997",
            "--budget",
            "off",
            "--trace",
            "stepped_*",
            "--returns",
            returns,
            "--",
            &path,
            "2",
        ];
        let (_, recording) = setting.record(&words)?;
        let samples = recording.samples.iter().filter(|sample| {
            let mut frames = sample.user.iter();
            frames.any(|frame| frame.name.starts_with("stepped_"))
        });
        let all: Vec<_> = samples.collect();
        let whole = all.iter().filter(|sample| sample.calls("main")).count();
        assert!(all.len() > 100, "{returns}: {} samples", all.len());
        assert!(
            whole * 100 >= all.len() * 97,
            "{returns}: {whole} of {}",
            all.len()
        );
    }
    Ok(())
}
