//! Limits: what may be recorded (depth, duration, rate), and what tracing may cost (the budget). What
//! a limit leaves out is counted, and said.

use std::error::Error;
use std::path::Path;
use std::time::Duration;

use profiler_model::GapReason;
use profiler_tests::Outcome;
use profiler_tests::setting::{LIMIT, Setting};
use profiler_tests::tracing::{Build, Edge, How, Run, Session, Trace, Truth, prepared};
use rustix::process::Signal;

/// Calls of one process whose beginning or whole is recorded.
fn recorded(trace: &Trace, function: &str) -> u64 {
    let first = |edge: &Edge| {
        matches!(
            edge,
            Edge::Enter(_) | Edge::Hit(_) | Edge::Exit { whole: Some(_), .. }
        )
    };
    trace.of(function).filter(|call| first(&call.edge)).count() as u64
}

/// Checks that all calls of `function` were counted, and that what is not recorded was left out.
fn rest_was_left_out(trace: &Trace, function: &str, calls: u64) {
    let counts = trace.counts.get(function).copied().unwrap_or_default();
    assert_eq!(counts.entries, calls, "{function}");
    assert_eq!(
        counts.left_out + counts.lost + recorded(trace, function),
        calls,
        "{function}: {counts:?}"
    );
}

fn walk(setting: &Setting, program: &Path, limit: &[&str]) -> Result<Run, Box<dyn Error>> {
    let run = Session::of(setting, program)
        .arguments(&["1"])
        .record(&["--trace", "walk_*", "--budget", "off", "--no-samples"])
        .record(limit)
        .probed(&["walk_outer", "walk_middle", "walk_leaf"])
        .run()?;
    run.unharmed()?;
    run.trace.complete()?;
    Ok(run)
}

/// walk_leaf lasts 0.2 and 0.4 ms, walk_middle 0.8, walk_outer 2.
#[test]
fn least_duration() -> Outcome {
    let test = "e2e_trace_limits::least_duration";
    let Some((setting, program)) = prepared(test, "trace_calls.c", Build::Optimised)? else {
        return Ok(());
    };
    let run = walk(&setting, &program, &["--min-duration", "600us"])?;
    for call in &run.trace.calls {
        let Edge::Exit { began_ns, .. } = call.edge else {
            continue;
        };
        assert!(call.at_ns - began_ns >= 600_000, "{call:?}");
    }
    for function in ["walk_outer", "walk_middle", "walk_leaf"] {
        let calls = run.truth.calls[function];
        rest_was_left_out(&run.trace, function, calls);
        // A busy machine makes short calls long, never long ones short.
        let least = if function == "walk_leaf" { 0 } else { calls };
        let seen = recorded(&run.trace, function);
        assert!(
            (least..=calls).contains(&seen),
            "{function}: {seen} of {calls}"
        );
        if function == "walk_leaf" {
            assert!(seen < calls / 2, "{seen} of {calls} short calls");
        }
    }
    Ok(())
}

/// Calls that a jump ends: with a least duration they are recorded by nobody, and that is said.
#[test]
fn calls_that_do_not_return_are_said_to_be_missing() -> Outcome {
    let test = "e2e_trace_limits::calls_that_do_not_return_are_said_to_be_missing";
    let Some((setting, program)) = prepared(test, "trace_slow_jumps.c", Build::Optimised)? else {
        return Ok(());
    };
    let program = program.to_string_lossy();
    let record = ["record", "--force", "-o", "out.cap", "--no-samples"];
    let calls = ["--budget", "off", "--trace", "trace_slow_jumps:slow_*"];
    let limit = ["--min-duration", "1ms", "--", &program];
    setting
        .run(&[&record[..], &calls, &limit].concat())?
        .success()?;
    let report = setting.run(&["report", "out.cap", "--calls"])?.success()?;
    let said = "7 that did not return, or not yet";
    assert!(report.stdout.contains(said), "{}", report.stdout);
    // Without one there is nothing to say: each has its time.
    setting
        .run(&[&record[..], &calls, &["--", &program]].concat())?
        .success()?;
    let report = setting.run(&["report", "out.cap", "--calls"])?.success()?;
    assert!(
        !report.stdout.contains("did not return"),
        "{}",
        report.stdout
    );
    Ok(())
}

#[test]
fn most_depth() -> Outcome {
    let test = "e2e_trace_limits::most_depth";
    let Some((setting, program)) = prepared(test, "trace_calls.c", Build::Optimised)? else {
        return Ok(());
    };
    let run = walk(&setting, &program, &["--max-depth", "2"])?;
    for (function, all) in [
        ("walk_outer", true),
        ("walk_middle", true),
        ("walk_leaf", false),
    ] {
        let calls = run.truth.calls[function];
        assert_eq!(
            recorded(&run.trace, function),
            if all { calls } else { 0 },
            "{function}"
        );
        rest_was_left_out(&run.trace, function, calls);
    }
    assert_eq!(run.trace.nested()?, 0);
    Ok(())
}

#[test]
fn most_calls_a_second() -> Outcome {
    let test = "e2e_trace_limits::most_calls_a_second";
    let Some((setting, program)) = prepared(test, "trace_caller.c", Build::Optimised)? else {
        return Ok(());
    };
    let run = Session::of(&setting, &program)
        .arguments(&["compiled", "paced", "50000", "3"])
        .record(&["--trace", "compiled", "--max-rate", "1000"])
        .record(&["--budget", "off", "--no-samples"])
        .probed(&["compiled"])
        .run()?;
    run.trace.complete()?;
    rest_was_left_out(&run.trace, "compiled", 150_000);
    let seen = recorded(&run.trace, "compiled");
    // The limit is for each processor, and in seconds of the clock's, of which it touches one more.
    let took_ns = run.truth.all["took_ns"].as_u64().ok_or("no time")?;
    let processors = std::thread::available_parallelism()?.get() as u64;
    let most = (took_ns / 1_000_000_000 + 2) * processors * 1_000;
    assert!(
        (took_ns / 1_000_000..=most).contains(&seen),
        "{seen} calls in {took_ns} ns at 1,000 a second"
    );
    run.trace.nested()?;
    Ok(())
}

/// What a part of the program's CPU time is lost to tracing in its second half, by what it does itself: calls
/// of the traced function, and of one that is the same, in turns of 5 ms, each for its own CPU time.
fn slowed_down(truth: &Truth) -> Result<f64, Box<dyn Error>> {
    let late = |name: &str| -> Result<f64, Box<dyn Error>> {
        let slots = truth.all[name].as_array().ok_or("no slots")?;
        let late = &slots[slots.len() / 2..];
        Ok(late.iter().filter_map(serde_json::Value::as_f64).sum())
    };
    let (calls, cpu_ns) = (late("slots")?, late("slots_cpu_ns")?);
    let (twins, twins_cpu_ns) = (late("twins")?, late("twins_cpu_ns")?);
    let undisturbed_ns = (calls + twins) * twins_cpu_ns / twins;
    Ok(1.0 - undisturbed_ns / (cpu_ns + twins_cpu_ns))
}

/// A function that is called tens of millions of times a second: tracing each call would slow the
/// program down a hundred times. Over budget it is dropped in steps, each of which is said.
#[test]
fn the_budget_holds() -> Outcome {
    let test = "e2e_trace_limits::the_budget_holds";
    let Some((setting, program)) = prepared(test, "trace_caller.c", Build::Optimised)? else {
        return Ok(());
    };
    for returns in ["auto", "ret-insn"] {
        let run = Session::of(&setting, &program)
            .arguments(&["compiled", "turns", "10"])
            .record(&["--trace", "compiled", "--returns", returns])
            .record(&["--budget", "5%", "--no-samples"])
            .probed(&["compiled"])
            .run()?;
        // 5 % is the budget, of what tracing is estimated to cost.
        let slowed_down = slowed_down(&run.truth)?;
        assert!(
            slowed_down < 0.12,
            "--returns {returns}: {slowed_down:.3} of the CPU time is lost; {}",
            run.truth.all
        );
        eprintln!("--returns {returns}: {slowed_down:.3}");
        let dropped = |reason: GapReason| {
            run.trace
                .gaps
                .iter()
                .filter(|gap| gap.reason == reason && gap.function.as_deref() == Some("compiled"))
                .count()
        };
        assert!(
            dropped(GapReason::DutyCycle) + dropped(GapReason::Detached) > 0,
            "nothing is said of what is missing: {:?}",
            run.trace.gaps
        );
        assert!(
            run.profiler.stderr.contains("compiled"),
            "{}",
            run.profiler.stderr
        );
        assert!(run.trace.entries("compiled") > 1000);
        // What was counted is what really happened while it was watched: never more.
        let calls = run.truth.all["calls"].as_u64().ok_or("no calls")?;
        let counts = run.trace.counts["compiled"];
        assert!(counts.entries <= calls && counts.entries >= run.trace.entries("compiled"));
        for gap in &run.trace.gaps {
            assert!(gap.from_ns < gap.to_ns, "{gap:?}");
            // A gap within which calls are recorded all the same would be none.
            if matches!(gap.reason, GapReason::DutyCycle | GapReason::Detached) {
                let inside = run
                    .trace
                    .of("compiled")
                    .filter(|call| matches!(call.edge, Edge::Enter(_) | Edge::Hit(_)))
                    .filter(|call| call.at_ns > gap.from_ns && call.at_ns < gap.to_ns)
                    .count();
                assert_eq!(inside, 0, "calls within {gap:?}");
            }
        }
        // An entry without a return is within a gap that says so, also while it is attached for a part of the time.
        for call in run.trace.of("compiled") {
            let is_hit = matches!(call.edge, Edge::Hit(_));
            let mut gaps = run.trace.gaps.iter().filter(|gap| {
                gap.reason == GapReason::NoReturns && gap.function.as_deref() == Some("compiled")
            });
            let holds = gaps.any(|gap| gap.from_ns <= call.at_ns && call.at_ns <= gap.to_ns);
            assert!(!is_hit || holds, "no gap says why {call:?} has no return");
        }
        run.trace.nested()?;
        let report = setting
            .run(&["report", "out.cap", "--calls"])?
            .success()?
            .stdout;
        assert!(
            report.contains("budget"),
            "the report says nothing of it: {report}"
        );
    }
    Ok(())
}

/// What is cheap stays whole beside what is over budget.
#[test]
fn only_the_hottest_is_dropped() -> Outcome {
    let test = "e2e_trace_limits::only_the_hottest_is_dropped";
    let Some((setting, program)) = prepared(test, "trace_caller.c", Build::Optimised)? else {
        return Ok(());
    };
    let run = Session::of(&setting, &program)
        .arguments(&["kind_call", "slots", "5"])
        .record(&[
            "--trace",
            "kind_call",
            "--trace",
            "kind_helper",
            "--budget",
            "5%",
        ])
        .record(&["--trace", "unpaced", "--no-samples"])
        .probed(&["kind_call", "kind_helper"])
        .run()?;
    for gap in &run.trace.gaps {
        assert_ne!(gap.function.as_deref(), Some("unpaced"), "{gap:?}");
    }
    assert!(
        run.trace
            .gaps
            .iter()
            .any(|gap| gap.function.as_deref() == Some("kind_helper")
                || gap.function.as_deref() == Some("kind_call"))
    );
    Ok(())
}

/// Without a budget every call is traced, and what the ring buffers can't take is counted.
#[test]
fn without_a_budget_all_is_accounted_for() -> Outcome {
    let test = "e2e_trace_limits::without_a_budget_all_is_accounted_for";
    let Some((setting, program)) = prepared(test, "trace_caller.c", Build::Optimised)? else {
        return Ok(());
    };
    let run = Session::of(&setting, &program)
        .arguments(&["kind_nop5", "calls", "1000000"])
        .record(&["--trace", "kind_nop5", "--budget", "off", "--no-samples"])
        .probed(&["kind_nop5"])
        .run()?;
    let counts = run.trace.counts["kind_nop5"];
    assert_eq!((counts.entries, counts.left_out), (1_000_000, 0));
    let entries = run.trace.entries("kind_nop5");
    assert!(
        entries <= counts.entries && entries + counts.lost >= counts.entries,
        "{entries}, {counts:?}"
    );
    if counts.lost == 0 {
        run.trace.complete()?;
        assert_eq!(entries, counts.entries);
    }
    run.trace.nested()?;
    Ok(())
}

/// The recorder stands still while the ring buffers overflow: no call is paired with the return of a later one at the
/// same place, and none is longer than the longest that the program itself has seen.
#[test]
fn no_call_goes_on_across_lost_records() -> Outcome {
    let test = "e2e_trace_limits::no_call_goes_on_across_lost_records";
    let Some((setting, program)) = prepared(test, "trace_caller.c", Build::Optimised)? else {
        return Ok(());
    };
    let mut live = Session::of(&setting, &program)
        .arguments(&["compiled", "paced", "20000", "5"])
        .record(&["--trace", "compiled", "--trace", "paced", "--budget", "off"])
        .record(&["--no-samples", "--buffer", "64K"])
        .probed(&["compiled", "paced"])
        .start()?;
    live.resume()?;
    std::thread::sleep(Duration::from_secs(1));
    live.recorder.signal(Signal::STOP)?;
    // Rings of 64 KiB take a small part of what is called meanwhile.
    std::thread::sleep(Duration::from_secs(2));
    live.recorder.signal(Signal::CONT)?;
    let program = live.program.end(LIMIT)?;
    let said = live.recorder.end(LIMIT)?.success()?.stderr;
    let truth = Truth::of(&program)?;
    let trace = Trace::read(&setting.path("out.cap"))?;
    let counts = trace.counts["compiled"];
    assert_eq!((counts.entries, counts.left_out), (100_000, 0));
    let kept = trace.entries("compiled");
    assert!(counts.lost > 0 && kept < counts.entries, "nothing was lost");
    assert!(kept + counts.lost >= counts.entries, "{kept}, {counts:?}");
    trace.nested()?;
    let longest_ns = truth.all["longest_ns"].as_u64().ok_or("no time")?;
    let mut ended = 0;
    for call in trace.of("compiled") {
        assert_eq!(call.depth.min(1), call.depth, "called by itself: {call:?}");
        if let Edge::Exit { began_ns, how, .. } = &call.edge
            && *how == How::Return
        {
            ended += 1;
            let took_ns = call.at_ns - began_ns;
            assert!(
                took_ns <= longest_ns,
                "{took_ns} ns of {longest_ns}: {call:?}"
            );
        }
    }
    assert!(ended > kept / 2, "{ended} of {kept} have ended");
    let returned = |call: &&_| {
        let call: &profiler_tests::tracing::Call = call;
        matches!(
            &call.edge,
            Edge::Exit {
                how: How::Return,
                ..
            }
        )
    };
    assert_eq!(trace.of("paced").filter(returned).count(), 0);
    let report = setting
        .run(&["report", "out.cap", "--calls"])?
        .success()?
        .stdout;
    // All who say it say the same.
    let info = setting.run(&["info", "out.cap"])?.success()?.stdout;
    for text in [said, report, info] {
        let why = "not watched to their end (records were lost while they were open)";
        assert!(text.contains(why), "{text}");
    }
    let json = |words: &[&str]| -> Result<serde_json::Value, Box<dyn std::error::Error>> {
        Ok(setting.run(words)?.success()?.json()?)
    };
    let report = json(&["report", "out.cap", "--calls", "--format", "json"])?;
    let info = json(&["info", "out.cap", "--format", "json"])?;
    let summary = &report["calls"]["summary"];
    let unwatched = summary["unwatched"].as_u64();
    assert!(unwatched > Some(0), "{summary}");
    assert_eq!(info["calls"]["unwatched"].as_u64(), unwatched);
    let unmatched = info["lost"]["unmatched"].as_u64();
    assert_eq!(summary["unmatched"].as_u64(), unmatched.or(Some(0)));
    Ok(())
}
