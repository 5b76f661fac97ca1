//! Objects that a target loads after tracing has begun: traced as soon as can be, and what was called
//! before that is a known gap.

use std::collections::BTreeMap;
use std::time::Duration;

use profiler_model::GapReason;
use profiler_tests::Outcome;
use profiler_tests::setting::LIMIT;
use profiler_tests::tracing::{
    Build, CallReport, Code, Edge, Session, Trace, Truth, met, prepared, program,
};

/// A plugin is loaded, called at once, called again when it has probes, unloaded; and all that again.
#[test]
fn plugins() -> Outcome {
    let test = "e2e_trace_late::plugins";
    const CALLS: usize = 2000;
    const ROUNDS: usize = 3;
    let Some((setting, host)) = prepared(test, "trace_dlopen.c", Build::Optimised)? else {
        return Ok(());
    };
    let Some(plugin) = program(&setting, test, "trace_plugin.c", Build::Optimised)? else {
        return Ok(());
    };
    for returns in ["auto", "ret-insn"] {
        let mut live = Session::of(&setting, &host)
            .arguments(&[
                &plugin.to_string_lossy(),
                &CALLS.to_string(),
                &ROUNDS.to_string(),
            ])
            .record(&[
                "--trace",
                "plugin_*",
                "--trace",
                "host_step",
                "--returns",
                returns,
            ])
            .record(&["--budget", "off", "--no-samples"])
            .probed(&["host_step"])
            .start()?;
        live.resume()?;
        let pid = live.program.pid();
        for round in 1..=ROUNDS {
            live.program
                .wait_until("loading the plugin", LIMIT, |program| {
                    met(program, "loaded", round)
                })?;
            for function in ["plugin_step", "plugin_leaf"] {
                live.program
                    .wait_until(&format!("a probe on {function}"), LIMIT, |_| {
                        Code::of(pid, &plugin, function).is_ok_and(|code| code.is_probed())
                    })?;
            }
            std::thread::sleep(Duration::from_millis(300));
            if round < ROUNDS {
                live.resume()?;
            }
        }
        let run = live.finish(&setting)?;
        run.unharmed()?;
        run.trace.complete()?;
        run.trace.counted(&run.truth, &["host_step"])?;
        run.trace.nested()?;
        for round in run.truth.all["rounds"].as_array().ok_or("no rounds")? {
            let clock = |index: usize| round[index].as_u64().ok_or("no clock");
            let (before, loaded, said) = (clock(0)?, clock(1)?, clock(2)?);
            let (resumed, ended) = (clock(3)?, clock(4)?);
            let begun = |function, from, to| {
                let entered = |edge: &Edge| matches!(edge, Edge::Enter(_) | Edge::Hit(_));
                run.trace
                    .of(function)
                    .filter(|call| entered(&call.edge) && (from..to).contains(&call.at_ns))
                    .count()
            };
            for function in ["plugin_step", "plugin_leaf"] {
                assert_eq!(
                    begun(function, resumed, ended),
                    CALLS,
                    "{function}, --returns {returns}"
                );
                let early = begun(function, before, said);
                assert!(early <= CALLS, "{function}: {early}");
                if early == CALLS {
                    continue;
                }
                // What is missing is within a gap that is no longer than it must be.
                let gap = run.trace.gaps.iter().find(|gap| {
                    gap.reason == GapReason::NotYetAttached
                        && gap.pid == Some(pid)
                        && gap.function.as_deref().is_none_or(|of| of == function)
                        && gap.from_ns <= loaded
                        && gap.from_ns + 1_000_000_000 >= before
                        && gap.to_ns <= resumed
                        && gap.to_ns > loaded
                });
                assert!(
                    gap.is_some(),
                    "no gap from {before} to {resumed}: {:?}",
                    run.trace.gaps
                );
            }
        }
        let report = CallReport::of(&setting)?;
        let row = report.row("plugin_step")?;
        assert!(
            row["gaps"].as_array().is_some_and(|gaps| !gaps.is_empty())
                || row["calls"] == 2 * CALLS * ROUNDS,
            "{row}"
        );
    }
    Ok(())
}

/// A shell that is traced executes the program: what it calls at once may be missing, never in
/// silence, and nothing is missing if that is asked for.
#[test]
fn executed_programs() -> Outcome {
    let test = "e2e_trace_late::executed_programs";
    let Some((setting, program)) = prepared(test, "trace_deep.c", Build::Optimised)? else {
        return Ok(());
    };
    // The second time it runs its file is known, if probes are attached for everybody.
    let script = format!("{0} 20; sleep 1; {0} 20; exec {0} 20", program.display());
    for more in [&["--follow-exact"][..], &[]] {
        let mut arguments = vec!["record", "--force", "-o", "out.cap", "--trace", "bottom"];
        arguments.extend(["--budget", "off", "--no-samples"]);
        arguments.extend(more);
        arguments.extend(["--", "sh", "-c", &script]);
        let ended = setting.run(&arguments)?.success()?;
        assert_eq!(Truth::of(&ended)?.calls["bottom"], 20);
        let trace = Trace::read(&setting.path("out.cap"))?;
        trace.complete()?;
        let mut seen: BTreeMap<u32, usize> = BTreeMap::new();
        for call in trace.of("bottom") {
            let begun = matches!(call.edge, Edge::Enter(_) | Edge::Hit(_));
            *seen.entry(call.pid).or_default() += usize::from(begun);
        }
        let all: usize = seen.values().sum();
        assert!(
            all <= 60 && seen.values().all(|calls| *calls <= 20),
            "{seen:?}"
        );
        let gaps = trace
            .gaps
            .iter()
            .filter(|gap| gap.reason == GapReason::NotYetAttached);
        let gaps = gaps.count();
        assert!(
            all == 60 || gaps > 0,
            "{} calls are missing in silence",
            60 - all
        );
        if !more.is_empty() {
            let whole = seen.values().filter(|calls| **calls == 20).count();
            assert!(
                whole >= 2,
                "with --follow-exact: {seen:?}, {:?}",
                trace.gaps
            );
        }
    }
    Ok(())
}

/// All calls of a command that is over at once are seen, since it is held until its probes are there: nothing says
/// that some are missing.
#[test]
fn a_short_command_is_not_late() -> Outcome {
    let test = "e2e_trace_late::a_short_command_is_not_late";
    let Some((setting, program)) = prepared(test, "trace_calls.c", Build::Optimised)? else {
        return Ok(());
    };
    let path = program.to_string_lossy();
    for more in [&[][..], &["--follow-exact"]] {
        let mut arguments = vec!["record", "--force", "-o", "out.cap", "--no-samples"];
        arguments.extend(more);
        arguments.extend(["--trace", "walk_*", "--budget", "off", "--", &path, "1"]);
        let ended = setting.run(&arguments)?.success()?;
        assert!(!ended.stderr.contains("missing in"), "{}", ended.stderr);
        let truth = Truth::of(&ended)?;
        let walks = truth.calls.keys().map(String::as_str);
        let walks: Vec<&str> = walks.filter(|name| name.starts_with("walk_")).collect();
        assert!(!walks.is_empty());
        let trace = Trace::read(&setting.path("out.cap"))?;
        trace.complete()?;
        trace.counted(&truth, &walks)?;
        assert!(trace.gaps.is_empty(), "{more:?}: {:?}", trace.gaps);
    }
    Ok(())
}
