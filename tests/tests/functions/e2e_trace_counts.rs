//! Calls of functions of every kind: counted exactly and nested strictly, however their exits are
//! seen.

use std::collections::BTreeMap;
use std::io;
use std::process::Command;
use std::time::Duration;

use profiler_model::ReturnMode;
use profiler_tests::Outcome;
use profiler_tests::nests;
use profiler_tests::setting::{LIMIT, Setting};
use profiler_tests::skip::skip;
use profiler_tests::tracing::{Build, CallReport, Edge, How, Run, Session, Trace, Truth, prepared};
use rustix::process::Signal;

/// All that trace_calls calls but kind_refused, where the kernel allows no probe.
const ALL: &[&str] = &[
    "--trace",
    "kind_*",
    "--no-trace",
    "kind_refused",
    "--trace",
    "recurse",
    "--trace",
    "*_step",
    "--trace",
    "pick",
    "--trace",
    "rare",
    "--trace",
    "many_ways",
    "--trace",
    "variadic",
    "--trace",
    "big_frame",
    "--trace",
    "walk_*",
    "--trace",
    "thread_*",
    "--budget",
    "off",
    "--no-samples",
];

/// Every function of the program but one that can't be traced.
fn functions(truth: &Truth) -> Vec<&str> {
    let names = truth.calls.keys().map(String::as_str);
    names.filter(|name| *name != "kind_refused").collect()
}

fn all_is_right(run: &Run) -> Outcome {
    run.unharmed()?;
    run.trace.complete()?;
    run.trace.counted(&run.truth, &functions(&run.truth))?;
    assert_eq!(run.trace.nested()?, 0, "calls were left open");
    let pids: Vec<u32> = run.trace.calls.iter().map(|call| call.pid).collect();
    assert!(pids.iter().all(|pid| *pid == run.pid));
    Ok(())
}

fn traced_as(
    setting: &Setting,
    program: &std::path::Path,
    more: &[&str],
) -> Result<Run, Box<dyn std::error::Error>> {
    Session::of(setting, program)
        .arguments(&["200"])
        .record(ALL)
        .record(more)
        .probed(&["kind_nop5", "kind_ret", "walk_leaf", "thread_leaf"])
        .run()
}

#[test]
fn every_kind_optimised() -> Outcome {
    let Some((setting, program)) = prepared(
        "e2e_trace_counts::every_kind_optimised",
        "trace_calls.c",
        Build::Optimised,
    )?
    else {
        return Ok(());
    };
    all_is_right(&traced_as(&setting, &program, &[])?)
}

#[test]
fn every_kind_unoptimised() -> Outcome {
    let Some((setting, program)) = prepared(
        "e2e_trace_counts::every_kind_unoptimised",
        "trace_calls.c",
        Build::Plain,
    )?
    else {
        return Ok(());
    };
    all_is_right(&traced_as(&setting, &program, &[])?)
}

/// A distribution's program, whose symbols are packed into it, of somebody else: read behind the walls.
#[test]
fn packed_symbols_of_another_user() -> Outcome {
    let test = "e2e_trace_counts::packed_symbols_of_another_user";
    let Some((setting, program)) = prepared(test, "trace_calls.c", Build::Optimised)? else {
        return Ok(());
    };
    let packed = setting.path("packed");
    std::fs::copy(&program, &packed)?;
    let tools: [&[&str]; 5] = [
        &["objcopy", "--only-keep-debug", "packed", "mini"],
        &["objcopy", "--strip-debug", "mini"],
        &["xz", "mini"],
        &["strip", "packed"],
        &[
            "objcopy",
            "--add-section",
            ".gnu_debugdata=mini.xz",
            "packed",
        ],
    ];
    for tool in tools {
        let mut command = Command::new(tool[0]);
        let status = command
            .args(&tool[1..])
            .current_dir(setting.folder())
            .status();
        if status
            .as_ref()
            .is_err_and(|e| e.kind() == io::ErrorKind::NotFound)
        {
            skip(test, &format!("{} is not installed", tool[0]));
            return Ok(());
        }
        assert!(status?.success(), "{tool:?}");
    }
    std::os::unix::fs::chown(&packed, Some(65_534), None)?;
    let mut arguments = vec!["record", "--force", "-o", "out.cap"];
    arguments.extend(ALL);
    arguments.extend(["--", "./packed", "200"]);
    let ended = setting.run(&arguments)?.success()?;
    let truth = Truth::of(&ended)?;
    assert_eq!(truth.all["good"], true, "{}", ended.stdout);
    let trace = Trace::read(&setting.path("out.cap"))?;
    trace.complete()?;
    trace.counted(&truth, &functions(&truth))?;
    assert_eq!(trace.nested()?, 0, "calls were left open");
    Ok(())
}

/// Behind endbr64 probes move to where they are cheap; with `--probe-at entry` they don't.
#[test]
fn every_kind_protected() -> Outcome {
    let Some((setting, program)) = prepared(
        "e2e_trace_counts::every_kind_protected",
        "trace_calls.c",
        Build::Protected,
    )?
    else {
        return Ok(());
    };
    let run = traced_as(&setting, &program, &[])?;
    all_is_right(&run)?;
    // Pages that the kernel maps for probes are no reason to see returns in another way.
    let said = &run.profiler.stderr;
    assert!(!said.contains("mapped code"), "{said}");
    let offset = |run: &Run, function: &str| run.trace.modes.get(function).map(|mode| mode.1);
    for (function, wanted) in [
        ("kind_nop5", 0),
        ("kind_push", 0),
        ("kind_endbr_push", 4),
        ("kind_endbr_nop5", 4),
        ("kind_endbr_jump", 4),
        ("kind_endbr_sub", 0),
        ("kind_mov_push", 3),
        // Behind a moved stack pointer or a changed argument is no place for a probe.
        ("kind_sub_push", 0),
        ("kind_argument", 0),
    ] {
        assert_eq!(offset(&run, function), Some(wanted), "{function}");
    }
    let run = traced_as(&setting, &program, &["--probe-at", "entry"])?;
    all_is_right(&run)?;
    for (function, mode) in &run.trace.modes {
        assert_eq!(mode.1, 0, "{function} with --probe-at entry");
    }
    Ok(())
}

#[test]
fn every_kind_by_instructions() -> Outcome {
    let Some((setting, program)) = prepared(
        "e2e_trace_counts::every_kind_by_instructions",
        "trace_calls.c",
        Build::Optimised,
    )?
    else {
        return Ok(());
    };
    let run = traced_as(&setting, &program, &["--returns", "ret-insn"])?;
    all_is_right(&run)?;
    for (function, (mode, _)) in &run.trace.modes {
        assert_ne!(*mode, ReturnMode::Uretprobe, "{function}");
    }
    // A conditional jump that leaves a function is passed by those who stay as well: entries only.
    assert_eq!(run.trace.modes["kind_tail_branch"].0, ReturnMode::None);
    // What is computed of constants, or comes from a table of jumps, is known.
    for function in [
        "pick",
        "rare",
        "many_ways",
        "kind_tail",
        "kind_tail_computed",
        "kind_loop",
    ] {
        assert_eq!(
            run.trace.modes[function].0,
            ReturnMode::Instructions,
            "{function}"
        );
    }
    Ok(())
}

/// What the kernel's return probes can do: everything up to 64 pending returns.
#[test]
fn every_kind_by_return_probes() -> Outcome {
    let Some((setting, program)) = prepared(
        "e2e_trace_counts::every_kind_by_return_probes",
        "trace_calls.c",
        Build::Protected,
    )?
    else {
        return Ok(());
    };
    let run = traced_as(
        &setting,
        &program,
        &[
            "--returns",
            "uretprobe",
            "--unsafe",
            "--no-trace",
            "recurse",
            "--no-trace",
            "*_step",
        ],
    )?;
    run.unharmed()?;
    run.trace.complete()?;
    let functions: Vec<&str> = functions(&run.truth)
        .into_iter()
        .filter(|name| *name != "recurse" && !name.ends_with("_step"))
        .collect();
    run.trace.counted(&run.truth, &functions)?;
    assert_eq!(run.trace.nested()?, 0);
    assert!(
        run.profiler.stderr.contains("--unsafe"),
        "no warning: {}",
        run.profiler.stderr
    );
    Ok(())
}

#[test]
fn entries_only() -> Outcome {
    let Some((setting, program)) = prepared(
        "e2e_trace_counts::entries_only",
        "trace_calls.c",
        Build::Optimised,
    )?
    else {
        return Ok(());
    };
    let run = traced_as(&setting, &program, &["--returns", "none"])?;
    run.unharmed()?;
    run.trace.complete()?;
    run.trace.counted(&run.truth, &functions(&run.truth))?;
    assert!(
        run.trace
            .calls
            .iter()
            .all(|call| matches!(call.edge, Edge::Hit(_)))
    );
    assert!(
        run.trace
            .modes
            .values()
            .all(|mode| mode.0 == ReturnMode::None)
    );
    Ok(())
}

/// Calls are on the thread that made them.
#[test]
fn threads_are_kept_apart() -> Outcome {
    let Some((setting, program)) = prepared(
        "e2e_trace_counts::threads_are_kept_apart",
        "trace_calls.c",
        Build::Optimised,
    )?
    else {
        return Ok(());
    };
    let run = Session::of(&setting, &program)
        .arguments(&["20000"])
        .record(&["--trace", "thread_*", "--budget", "off", "--no-samples"])
        .probed(&["thread_outer", "thread_leaf"])
        .run()?;
    run.unharmed()?;
    run.trace.complete()?;
    run.trace
        .counted(&run.truth, &["thread_outer", "thread_leaf"])?;
    assert_eq!(run.trace.nested()?, 0);
    let threads = run.truth.all["threads"].as_object().ok_or("no threads")?;
    assert_eq!(threads.len(), 4);
    for (tid, calls) in threads {
        let tid: u32 = tid.parse()?;
        let calls = calls.as_u64().ok_or("no count")?;
        let begun = |function| {
            let of = run.trace.of(function);
            of.filter(|call| call.tid == tid && matches!(call.edge, Edge::Enter(_)))
                .count() as u64
        };
        assert_eq!(
            (begun("thread_outer"), begun("thread_leaf")),
            (calls, 2 * calls)
        );
    }
    for leaf in run.trace.of("thread_leaf") {
        assert_eq!(leaf.depth, 1);
    }
    Ok(())
}

/// A command is traced from its first instruction.
#[test]
fn a_command_from_its_beginning() -> Outcome {
    let Some((setting, program)) = prepared(
        "e2e_trace_counts::a_command_from_its_beginning",
        "trace_calls.c",
        Build::Optimised,
    )?
    else {
        return Ok(());
    };
    let path = program.to_string_lossy();
    let mut arguments = vec!["record", "--force", "-o", "out.cap", "--follow-exact"];
    arguments.extend(ALL);
    arguments.extend(["--", &path, "100"]);
    let ended = setting.run(&arguments)?.success()?;
    let truth = Truth::of(&ended)?;
    let trace = Trace::read(&setting.path("out.cap"))?;
    trace.complete()?;
    trace.counted(&truth, &functions(&truth))?;
    assert_eq!(trace.nested()?, 0);
    Ok(())
}

/// A call that is open when the recording ends is left open; one that began before it is no error.
#[test]
fn a_recording_begins_and_ends_in_the_middle() -> Outcome {
    let Some((setting, program)) = prepared(
        "e2e_trace_counts::a_recording_begins_and_ends_in_the_middle",
        "trace_caller.c",
        Build::Optimised,
    )?
    else {
        return Ok(());
    };
    let mut live = Session::of(&setting, &program)
        .arguments(&["compiled", "paced", "20000", "4"])
        .record(&[
            "--trace",
            "compiled",
            "--trace",
            "main",
            "-d",
            "2",
            "--budget",
            "off",
            "--no-samples",
        ])
        .probed(&["compiled"])
        .start()?;
    live.resume()?;
    live.recorder
        .end(profiler_tests::setting::LIMIT)?
        .success()?;
    let trace = Trace::read(&setting.path("out.cap"))?;
    trace.complete()?;
    let open = trace.nested()?;
    assert!(open <= 1, "{open} calls open");
    let returned = trace
        .exits("compiled")
        .get(&How::Return)
        .copied()
        .unwrap_or(0);
    assert!(returned > 10_000, "{returned} calls");
    assert_eq!(trace.counts["compiled"].entries, trace.entries("compiled"));
    let ended = live
        .program
        .end(profiler_tests::setting::LIMIT)?
        .success()?;
    assert_eq!(Truth::of(&ended)?.all["calls"], 80_000);
    Ok(())
}

/// What is written out while calls go on, and what a recorder that was killed leaves, lack no call: what is counted is what
/// is there.
#[test]
fn what_ends_while_calls_go_on_lacks_none() -> Outcome {
    let test = "e2e_trace_counts::what_ends_while_calls_go_on_lacks_none";
    let Some((setting, program)) = prepared(test, "trace_caller.c", Build::Optimised)? else {
        return Ok(());
    };
    let mut command = Command::new(&program);
    command.args(["compiled", "paced", "20000", "60"]);
    let program = setting.start("program", &mut command)?;
    let pid = program.pid().to_string();
    let mut command = setting.profiler();
    command.args(["record", "-p", &pid, "--trace", "compiled", "-o", "out.cap"]);
    command.args(["--ring", "10s", "--budget", "off", "--no-samples"]);
    let mut recorder = setting.start("record", &mut command)?;
    let folder = setting.path("out.cap.ring");
    let second = folder.join("part-000002.cap");
    recorder.wait_until("a part", LIMIT, |_| second.exists())?;
    for dump in ["out-dump1.cap", "out-dump2.cap"] {
        recorder.signal(Signal::USR2)?;
        let path = setting.path(dump);
        recorder.wait_until("what is written out", LIMIT, |_| path.exists())?;
    }
    // Counts are told each second.
    std::thread::sleep(Duration::from_millis(1700));
    recorder.signal(Signal::KILL)?;
    recorder.end(LIMIT)?;
    program.signal(Signal::KILL)?;
    let parts = std::fs::read_dir(&folder)?.map(|part| part.map(|part| part.path()));
    let mut parts = parts.collect::<io::Result<Vec<_>>>()?;
    // One that had just been begun.
    parts.retain(|part| part.extension().is_some_and(|ending| ending == "cap"));
    parts.extend(["out-dump1.cap", "out-dump2.cap"].map(|dump| setting.path(dump)));
    let mut all = 0;
    for part in parts {
        let path = part.to_string_lossy();
        let words = ["report", &path, "--calls", "--format", "json"];
        let report = setting.run(&words)?.success()?.json()?;
        let summary = &report["calls"]["summary"];
        let of = |what: &str| report["calls"]["functions"][0][what].as_u64();
        let Some(seen) = of("calls_seen") else {
            continue;
        };
        // None was told of a last part that is shorter than a second.
        let counted = of("calls_counted").unwrap_or(seen);
        // One may go on where it ends.
        assert!(
            (counted..=counted + 1).contains(&seen),
            "{path}: {counted} of {summary}"
        );
        assert_eq!(of("calls"), Some(seen), "{path}");
        assert_eq!(summary["lost_records"], 0, "{path}");
        all += seen;
    }
    assert!(all > 60_000, "{all}");
    Ok(())
}

/// Goroutines take their calls along to other threads, and share each of these: every call is counted once, and is in the
/// one that it was made in.
#[test]
fn goroutines_move_in_the_middle_of_their_calls() -> Outcome {
    let test = "e2e_trace_counts::goroutines_move_in_the_middle_of_their_calls";
    let Some((setting, program)) = prepared(test, "trace_go_moves/main.go", Build::Optimised)?
    else {
        return Ok(());
    };
    let program = program.to_string_lossy();
    let functions = ["main.outer", "main.inner"];
    let mut arguments = vec!["record", "-o", "out.cap", "--budget", "off"];
    for function in &functions {
        arguments.extend(["--trace", function]);
    }
    arguments.extend(["--", &program, "500"]);
    let ended = setting.run(&arguments)?.success()?;
    let truth = ended.json()?;
    let calls = |function: &str| truth["calls"][function].as_u64().ok_or("no truth");
    let report = CallReport::of(&setting)?;
    for function in functions {
        let row = report.row(function)?;
        for column in ["calls", "calls_seen", "calls_counted"] {
            let told = row[column].as_u64();
            assert_eq!(told, Some(calls(function)?), "{function} {column}: {row}");
        }
        assert_eq!(row["open"], 0, "{row}");
        assert_eq!(row["inferred"], 0, "{row}");
    }
    let within = |function: &str| -> Vec<(Option<&str>, u64)> {
        let rows = report.tree.iter();
        let rows = rows.filter(|row| row["name"] == function);
        rows.map(|row| {
            let parent = row["parent"].as_u64();
            let parent = report.tree.iter().find(|it| it["id"].as_u64() == parent);
            let caller = parent.and_then(|parent| parent["name"].as_str());
            (caller, row["calls"].as_u64().unwrap_or(0))
        })
        .collect()
    };
    assert_eq!(within("main.outer"), [(None, calls("main.outer")?)]);
    let inner = calls("main.inner")?;
    assert_eq!(within("main.inner"), [(Some("main.outer"), inner)]);
    // Formats of calls that nest have each of them once too, on rows of goroutines, as deep as it was made.
    for format in nests::FORMATS {
        setting
            .run(&["export", "out.cap", "--format", format, "-o", "nests"])?
            .success()?;
        let file = std::fs::read(setting.path("nests"))?;
        let nests = nests::read(format, &file).map_err(|why| format!("{format}: {why}"))?;
        let mut sums: BTreeMap<(&str, usize), u64> = BTreeMap::new();
        for ((row, function, depth), calls) in &nests {
            assert!(row.starts_with("goroutine "), "{format}: {row}");
            *sums.entry((function, *depth)).or_default() += calls;
        }
        let outer = calls("main.outer")?;
        let expected = [(("main.inner", 1), inner), (("main.outer", 0), outer)];
        assert_eq!(sums, expected.into(), "{format}");
    }
    Ok(())
}
