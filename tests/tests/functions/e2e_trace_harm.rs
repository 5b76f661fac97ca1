//! A traced program is never harmed, and its calls are paired whatever it does to its stack. Each
//! program here is one that a return probe of the kernel breaks or miscounts (its source says how).

use std::collections::BTreeMap;
use std::error::Error;
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;

use profiler_model::ReturnMode;
use profiler_tests::Outcome;
use profiler_tests::process::Running;
use profiler_tests::setting::{LIMIT, Setting};
use profiler_tests::skip;
use profiler_tests::tracing::{Build, Code, Edge, How, Live, Run, Session, Trace, Truth, prepared};
use rustix::process::Signal;

/// Traces `globs` of a program in the way that is chosen by itself, and by instructions.
fn each_way(
    setting: &Setting,
    program: &Path,
    rounds: &str,
    globs: &[&str],
    probed: &[&str],
    check: impl Fn(&Run) -> Outcome,
) -> Outcome {
    for returns in ["auto", "ret-insn"] {
        let mut session = Session::of(setting, program)
            .arguments(&[rounds])
            .record(&["--returns", returns, "--budget", "off", "--no-samples"])
            .probed(probed);
        for glob in globs {
            session = session.record(&["--trace", glob]);
        }
        let run = session
            .run()
            .map_err(|error| format!("--returns {returns}: {error}"))?;
        let checked = || -> Outcome {
            run.trace.complete()?;
            check(&run)
        };
        checked().map_err(|error| format!("--returns {returns}: {error}"))?;
    }
    Ok(())
}

/// How often each function was left in a way that satisfies `which`.
fn left_by(trace: &Trace, function: &str, which: impl Fn(&How) -> bool) -> u64 {
    let exits = trace.exits(function);
    exits
        .iter()
        .filter(|(how, _)| which(how))
        .map(|(_, count)| count)
        .sum()
}

/// Checks that every function was called as often as the program says, and that what did not return
/// was left in a way that satisfies `which`.
fn left_otherwise(run: &Run, which: impl Fn(&How) -> bool) -> Result<(), String> {
    let functions: Vec<&str> = run.truth.calls.keys().map(String::as_str).collect();
    run.trace.counted(&run.truth, &functions)?;
    for function in functions {
        let otherwise = run.truth.calls[function] - run.truth.returns[function];
        let seen = left_by(&run.trace, function, &which);
        if seen != otherwise {
            return Err(format!(
                "{function}: {otherwise} did not return, recorded {:?}",
                run.trace.exits(function)
            ));
        }
    }
    Ok(())
}

/// A program that asks for its own stack sees all of it, also the first time.
#[test]
fn its_own_stack_is_whole() -> Outcome {
    let test = "e2e_trace_harm::its_own_stack_is_whole";
    let Some((setting, program)) = prepared(test, "trace_backtrace.c", Build::Optimised)? else {
        return Ok(());
    };
    let functions = ["serve", "handle", "parse", "report"];
    each_way(&setting, &program, "50", &functions, &functions, |run| {
        run.unharmed()?;
        Ok(left_otherwise(run, |_| false)?)
    })
}

/// A program that handles its own system calls, and one that traces those of its child, see none but these.
#[test]
fn no_system_call_is_seen_that_is_not_their_own() -> Outcome {
    let test = "e2e_trace_harm::no_system_call_is_seen_that_is_not_their_own";
    let Some((setting, program)) = prepared(test, "trace_watched.c", Build::Optimised)? else {
        return Ok(());
    };
    for what in ["dispatch", "traces"] {
        for returns in ["auto", "ret-insn"] {
            let run = Session::of(&setting, &program)
                .arguments(&[what, "200"])
                .record(&["--trace", "guarded", "--no-samples"])
                .record(&["--returns", returns, "--budget", "off"])
                .probed(&["guarded"])
                .run()
                .map_err(|error| format!("{what}, {returns}: {error}"))?;
            run.unharmed()
                .map_err(|error| format!("{what}, {returns}: {error}"))?;
            // The child is its parent's to trace.
            if what == "dispatch" {
                run.trace.complete()?;
                left_otherwise(&run, |_| false)?;
            }
        }
    }
    Ok(())
}

/// What runs copies of code would come to the copy of a probe: it has none.
#[test]
fn what_runs_copies_of_code_is_let_alone() -> Outcome {
    let test = "e2e_trace_harm::what_runs_copies_of_code_is_let_alone";
    let Some(setting) = Setting::new(test)? else {
        return Ok(());
    };
    if !skip::has(test, "valgrind") {
        return Ok(());
    }
    // Named, it is refused.
    let traced = [
        "record",
        "--no-samples",
        "--trace",
        "libc:getopt_long",
        "-o",
    ];
    let run = |capture: &str, more: &[&str]| {
        let capture = [capture];
        setting.run(&[&traced[..], &capture, more].concat())
    };
    let refused = run("a.cap", &["--", "valgrind", "-q", "ls"])?;
    let refused = refused.expect_status(1)?.stderr;
    assert!(
        refused.contains("valgrind runs copies") && refused.lines().count() == 1,
        "{refused}"
    );
    // Started by another, it loses its probes before it has read the code.
    let script = "valgrind -q ls -d /; echo status $?";
    let ended = run("b.cap", &["--", "sh", "-c", script])?.success()?;
    assert_eq!(ended.stdout, "/\nstatus 0\n", "{}", ended.stderr);
    assert!(
        ended.stderr.contains("runs is not traced"),
        "{}",
        ended.stderr
    );
    // One that runs, too.
    let mut command = Command::new("valgrind");
    let mut running = setting.start("valgrind", command.args(["-q", "sleep", "60"]))?;
    let pid = running.pid().to_string();
    running.wait_until("the program under valgrind", LIMIT, |_| {
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps"));
        maps.is_ok_and(|maps| maps.contains("/sleep") && maps.contains("/libc.so.6"))
    })?;
    let refused = run("c.cap", &["-d", "1", "-p", &pid])?
        .expect_status(1)?
        .stderr;
    assert!(refused.contains("nothing is left to trace"), "{refused}");
    running.signal(Signal::TERM)?;
    let ended = running.end(LIMIT)?;
    assert_eq!(ended.status.signal(), Some(15), "{}", ended.stderr);
    Ok(())
}

/// More than 10,000 C++ exceptions of three types.
#[test]
fn cxx_exceptions() -> Outcome {
    let test = "e2e_trace_harm::cxx_exceptions";
    for build in [Build::Optimised, Build::Plain] {
        let Some((setting, program)) = prepared(test, "trace_throw.cpp", build)? else {
            return Ok(());
        };
        let globs = ["here", "near_*", "far_*", "again_*", "inside_*", "cleanup*"];
        let probed = ["here", "far_inner", "cleanup_throw"];
        each_way(&setting, &program, "1800", &globs, &probed, |run| {
            run.unharmed()?;
            left_otherwise(run, |how| matches!(how, How::Exception(_)))?;
            assert_eq!(run.trace.nested()?, 0);
            // The types take turns, so that each passes through each function equally often.
            for function in run.truth.calls.keys() {
                let passed = run.truth.calls[function] - run.truth.returns[function];
                for kind in ["std::runtime_error", "app::parse_error", "int"] {
                    let of = left_by(
                        &run.trace,
                        function,
                        |how| matches!(how, How::Exception(Some(name)) if name == kind),
                    );
                    assert_eq!(of, passed / 3, "{function}: {kind}");
                }
            }
            let mut throws: BTreeMap<&str, u64> = BTreeMap::new();
            for throw in &run.trace.throws {
                *throws.entry(&throw.kind).or_default() += 1;
            }
            let truth = run.truth.all["throws"].as_object().ok_or("no throws")?;
            let rethrows = run.truth.all["rethrows"].as_u64().ok_or("no rethrows")?;
            let (mut thrown, mut seen) = (0, 0);
            for (kind, count) in truth {
                let count = count.as_u64().ok_or("no count")?;
                let of = throws.get(kind.as_str()).copied().unwrap_or(0);
                assert!(of >= count, "{of} throws of {kind}, {count} in truth");
                (thrown, seen) = (thrown + count, seen + of);
            }
            assert!(thrown >= 10_000);
            // What is thrown again may count again, nothing else.
            assert!(
                seen == thrown || seen == thrown + rethrows,
                "{throws:?}, {truth:?}"
            );
            Ok(())
        })?;
    }
    Ok(())
}

#[test]
fn rust_panics() -> Outcome {
    let Some((setting, program)) = prepared(
        "e2e_trace_harm::rust_panics",
        "trace_panic.rs",
        Build::Optimised,
    )?
    else {
        return Ok(());
    };
    let globs = ["trace_panic::*_*", "trace_panic::cleanup"];
    let probed = ["*near_panic17h", "*far_outer17h", "*again_catch17h"];
    each_way(&setting, &program, "2000", &globs, &probed, |run| {
        run.unharmed()?;
        left_otherwise(
            run,
            |how| matches!(how, How::Exception(Some(kind)) if kind == "Rust panic"),
        )?;
        assert_eq!(run.trace.nested()?, 0);
        let panics = run.truth.all["panics"].as_u64().ok_or("no panics")?;
        assert!(run.trace.throws.len() as u64 >= panics);
        assert!(
            run.trace
                .throws
                .iter()
                .all(|throw| throw.kind == "Rust panic")
        );
        Ok(())
    })
}

/// Stacks of goroutines grow, and move from thread to thread, while calls are pending.
#[test]
fn go_stacks() -> Outcome {
    let Some((setting, program)) = prepared(
        "e2e_trace_harm::go_stacks",
        "trace_go/main.go",
        Build::Optimised,
    )?
    else {
        return Ok(());
    };
    let globs = [
        "main.deep",
        "main.work",
        "main.leaf",
        "main.recovers",
        "main.panics",
        "main.swap",
    ];
    each_way(
        &setting,
        &program,
        "100",
        &globs,
        &["main.deep", "main.swap"],
        |run| {
            run.unharmed()?;
            left_otherwise(run, |how| *how != How::Return)?;
            assert_eq!(run.trace.paired()?, 0);
            for function in ["main.deep", "main.work"] {
                assert_eq!(run.trace.modes[function].0, ReturnMode::Instructions);
            }
            // The calls of one goroutine nest: a leaf is in its work, however many others run.
            assert!(run.trace.of("main.leaf").all(|leaf| leaf.depth == 1));
            let deepest = run.trace.of("main.deep").map(|call| call.depth).max();
            assert_eq!(deepest, Some(49));
            Ok(())
        },
    )
}

#[test]
fn longjmp() -> Outcome {
    let test = "e2e_trace_harm::longjmp";
    let Some((setting, program)) = prepared(test, "trace_longjmp.c", Build::Optimised)? else {
        return Ok(());
    };
    let probed = ["jump_1", "jump_3", "after_jump", "signal_inner"];
    each_way(
        &setting,
        &program,
        "500",
        &["jump_*", "after_jump", "signal_*"],
        &probed,
        |run| {
            run.unharmed()?;
            left_otherwise(run, |how| *how == How::Inferred)?;
            assert_eq!(run.trace.nested()?, 0);
            // What is called after the jump is where the jump has landed.
            assert!(run.trace.of("after_jump").all(|call| call.depth == 1));
            Ok(())
        },
    )
}

#[test]
fn coroutines() -> Outcome {
    let test = "e2e_trace_harm::coroutines";
    let Some((setting, program)) = prepared(test, "trace_coroutine.c", Build::Optimised)? else {
        return Ok(());
    };
    let probed = ["co_outer", "co_inner", "co_leaf"];
    each_way(&setting, &program, "500", &["co_*"], &probed, |run| {
        run.unharmed()?;
        run.trace.counted(&run.truth, &probed)?;
        assert_eq!(run.trace.paired()?, 0);
        for (function, depth) in [("co_outer", 0), ("co_inner", 1), ("co_leaf", 2)] {
            let mut depths = run.trace.of(function).map(|call| call.depth);
            assert!(
                depths.all(|of| of == depth),
                "{function} is not at depth {depth}"
            );
        }
        Ok(())
    })
}

#[test]
fn signal_handlers() -> Outcome {
    let test = "e2e_trace_harm::signal_handlers";
    let Some((setting, program)) = prepared(test, "trace_signal.c", Build::Optimised)? else {
        return Ok(());
    };
    let globs = [
        "interrupted",
        "handler_step",
        "nested_step",
        "tick_step",
        "busy",
    ];
    each_way(&setting, &program, "200", &globs, &globs, |run| {
        run.unharmed()?;
        run.trace.counted(&run.truth, &globs)?;
        // Calls nest on each stack of a thread by itself: on an alternate one a handler is outermost.
        assert_eq!(run.trace.paired()?, 0);
        let at = |function, depth| {
            let of = run.trace.of(function);
            of.filter(|call| call.depth == depth && matches!(call.edge, Edge::Enter(_)))
                .count() as u64
        };
        let rounds = 200;
        assert_eq!(at("interrupted", 0), 4 * rounds);
        assert_eq!(
            (at("handler_step", 1), at("handler_step", 0)),
            (rounds, 3 * rounds)
        );
        assert_eq!(at("nested_step", 1), rounds);
        assert_eq!(at("busy", 0), run.truth.calls["busy"]);
        assert_eq!(
            at("tick_step", 0) + at("tick_step", 1),
            run.truth.calls["tick_step"]
        );
        Ok(())
    })
}

/// Children by vfork, fork and exec. They are traced too, from their first call on if that is asked
/// for; what is missing otherwise is a known gap.
#[test]
fn children() -> Outcome {
    let test = "e2e_trace_harm::children";
    let Some((setting, program)) = prepared(test, "trace_vfork.c", Build::Optimised)? else {
        return Ok(());
    };
    let of_parent = ["parent_step", "around_vfork", "around_fork"];
    let all = [
        "parent_step",
        "around_vfork",
        "around_fork",
        "vfork_step",
        "exec_step",
        "fork_step",
        "last_step",
    ];
    let globs = ["*_step", "around_*"];
    each_way(&setting, &program, "20", &globs, &all, |run| {
        run.unharmed()?;
        run.trace.counted(&run.truth, &of_parent)?;
        for function in of_parent {
            assert!(run.trace.of(function).all(|call| call.pid == run.pid));
        }
        let mut missing = 0;
        for function in all {
            let (seen, calls) = (run.trace.entries(function), run.truth.calls[function]);
            assert!(seen <= calls, "{function}: {seen} of {calls}");
            missing += calls - seen;
        }
        let of_children = |gap: &&profiler_tests::tracing::Gap| gap.pid != Some(run.pid);
        let gaps = run.trace.gaps.iter().filter(of_children).count();
        assert!(
            missing == 0 || gaps > 0,
            "{missing} calls of children are missing in silence"
        );
        Ok(())
    })?;

    let run = Session::of(&setting, &program)
        .arguments(&["20"])
        .record(&["--trace", "*_step", "--trace", "around_*", "--follow-exact"])
        .record(&["--budget", "off", "--no-samples"])
        .probed(&all)
        .run()?;
    run.unharmed()?;
    run.trace.complete()?;
    run.trace.counted(&run.truth, &all)?;
    assert_eq!(
        left_by(&run.trace, "last_step", |how| *how == How::Terminated),
        20
    );
    for function in ["vfork_step", "exec_step", "fork_step"] {
        let pids: std::collections::BTreeSet<u32> =
            run.trace.of(function).map(|call| call.pid).collect();
        assert_eq!(pids.len(), 20, "{function}");
        assert!(!pids.contains(&run.pid), "{function}");
    }
    Ok(())
}

/// More pending returns than the kernel keeps.
#[test]
fn deep_recursion() -> Outcome {
    let test = "e2e_trace_harm::deep_recursion";
    let Some((setting, program)) = prepared(test, "trace_deep.c", Build::Optimised)? else {
        return Ok(());
    };
    let functions = ["deep", "bottom", "ladder_a", "ladder_b"];
    each_way(&setting, &program, "50", &functions, &functions, |run| {
        run.unharmed()?;
        run.trace.counted(&run.truth, &functions)?;
        assert_eq!(run.trace.nested()?, 0);
        assert!(run.trace.of("bottom").all(|call| call.depth == 100));
        Ok(())
    })?;
    // When told to use return probes, the exits that the kernel does not report are inferred.
    let run = Session::of(&setting, &program)
        .arguments(&["50"])
        .record(&[
            "--trace",
            "deep",
            "--trace",
            "bottom",
            "--returns",
            "uretprobe",
        ])
        .record(&["--budget", "off", "--no-samples"])
        .probed(&["deep", "bottom"])
        .run()?;
    run.unharmed()?;
    assert_eq!(run.trace.nested()?, 0);
    let exits = run.trace.exits("deep");
    assert_eq!(run.trace.entries("deep"), 5000);
    assert_eq!(exits[&How::Return], 50 * 64, "{exits:?}");
    assert_eq!(exits[&How::Inferred], 50 * 36, "{exits:?}");
    Ok(())
}

/// Threads that are cancelled, that exit, that just end; a process that exits within a call.
#[test]
fn threads_and_processes_that_end_within_calls() -> Outcome {
    let test = "e2e_trace_harm::threads_and_processes_that_end_within_calls";
    let Some((setting, program)) = prepared(test, "trace_cancel.c", Build::Optimised)? else {
        return Ok(());
    };
    let globs = [
        "cancel_*",
        "exit_outer",
        "exit_inner",
        "syscall_outer",
        "plain_outer",
        "finish",
    ];
    let probed = ["cancel_wait", "exit_inner", "syscall_outer", "finish"];
    each_way(&setting, &program, "50", &globs, &probed, |run| {
        assert_eq!(run.program.status.code(), Some(5), "{}", run.program.stderr);
        assert_eq!(
            run.truth.all["good"], true,
            "what was to be cleaned up was not"
        );
        left_otherwise(run, |how| *how == How::Terminated)?;
        assert_eq!(run.trace.nested()?, 0);
        Ok(())
    })
}

/// What a program answers to an order, as a number.
fn ordered(
    live: &mut Live,
    order: &str,
    answer: &str,
    times: usize,
) -> Result<u32, Box<dyn Error>> {
    live.input.write_all(format!("{order}\n").as_bytes())?;
    let begins = format!("{{\"{answer}\": ");
    let answers = |program: &Running| -> Vec<String> {
        let said = program.stdout_so_far().unwrap_or_default();
        let lines = said.lines().filter_map(|line| line.strip_prefix(&*begins));
        lines
            .map(|rest| rest.trim_end_matches('}').to_owned())
            .collect()
    };
    live.program
        .wait_until(order, LIMIT, |program| answers(program).len() == times)?;
    Ok(answers(&live.program)[times - 1].parse()?)
}

/// A process that dies of a fault while it is traced: it is said, with what it did last, and no other one of
/// its program has probes from then on.
#[test]
fn a_death_is_told_and_its_program_let_alone() -> Outcome {
    let test = "e2e_trace_harm::a_death_is_told_and_its_program_let_alone";
    let Some((setting, program)) = prepared(test, "trace_dies.c", Build::Plain)? else {
        return Ok(());
    };
    let mut session = Session::of(&setting, &program)
        .record(&["--budget", "off", "--no-samples"])
        .probed(&["step", "fatal"]);
    for function in ["step", "first", "second", "fatal"] {
        session = session.record(&["--trace", &format!("trace_dies:{function}")]);
    }
    let mut live = session.start()?;
    live.resume()?;
    ordered(&mut live, "call", "called", 1)?;
    let died = ordered(&mut live, "die", "died", 1)?;
    let pid = live.program.pid();
    live.recorder
        .wait_until("the program without probes", LIMIT, |_| {
            let is_free =
                |function| Code::of(pid, &program, function).is_ok_and(|code| !code.is_probed());
            ["step", "first", "second", "fatal"]
                .into_iter()
                .all(is_free)
        })?;
    ordered(&mut live, "call", "called", 2)?;
    let forked = ordered(&mut live, "fork", "forked", 1)?;
    let Live {
        program: running,
        input,
        recorder,
    } = live;
    drop(input);
    let truth = Truth::of(&running.end(LIMIT)?)?;
    assert_eq!(truth.all["good"], true);
    assert_eq!(truth.calls["step"], 300);
    let said = recorder.end(LIMIT)?.success()?.stderr;
    let deaths: Vec<&str> = said
        .lines()
        .filter(|line| line.contains("was ended by"))
        .collect();
    let [death] = deaths[..] else {
        return Err(format!("{} deaths: {said}", deaths.len()).into());
    };
    for words in [
        format!("process {died} ("),
        "was ended by SIGSEGV while it was traced".to_owned(),
        format!("thread {died} hit these probes last: fatal in "),
        "No probes are left in ".to_owned(),
    ] {
        assert!(death.contains(&words), "{words}: {death}");
    }
    let place = |function: &str| {
        death
            .find(&format!("{function} in "))
            .ok_or(death.to_owned())
    };
    assert!(place("fatal")? < place("second")? && place("second")? < place("first")?);
    let trace = Trace::read(&setting.path("out.cap"))?;
    assert_eq!(trace.entries("step"), 100);
    assert_eq!(trace.entries("fatal"), 1);
    let missing = |pid: u32| trace.gaps.iter().any(|gap| gap.pid == Some(pid));
    assert!(missing(pid) && missing(forked), "{:?}", trace.gaps);
    Ok(())
}
