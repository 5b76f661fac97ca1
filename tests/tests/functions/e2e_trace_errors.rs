//! What can't be traced is named, with a remedy; the rest is traced.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::process::CommandExt;
use std::process::Command;

use profiler_tests::Outcome;
use profiler_tests::process::run;
use profiler_tests::setting::LIMIT;
use profiler_tests::tracing::{Build, Session, Trace, Truth, prepared};

/// Patterns that match nothing are named, with what was perhaps meant; the others count.
#[test]
fn unknown_functions_and_objects() -> Outcome {
    let test = "e2e_trace_errors::unknown_functions_and_objects";
    let Some((setting, program)) = prepared(test, "trace_calls.c", Build::Optimised)? else {
        return Ok(());
    };
    for (unknown, named) in [
        ("kind_nop6", &["kind_nop6", "kind_nop5"][..]),
        ("nosuchlibrary:malloc", &["nosuchlibrary"]),
        ("trace_call:kind_push", &["trace_call", "trace_calls"]),
        ("usdt:nosuchprovider:nothing", &["nosuchprovider"]),
    ] {
        let record = |patterns: &[&str]| {
            let mut session = Session::of(&setting, &program).arguments(&["50"]).record(&[
                "--no-samples",
                "--budget",
                "off",
            ]);
            for pattern in patterns {
                session = session.record(&["--trace", pattern]);
            }
            session
        };
        let run = record(&[unknown, "kind_push"])
            .probed(&["kind_push"])
            .run()?;
        run.unharmed()?;
        run.trace.complete()?;
        run.trace.counted(&run.truth, &["kind_push"])?;
        for name in named {
            assert!(
                run.profiler.stderr.contains(name),
                "{unknown}: {}",
                run.profiler.stderr
            );
        }
    }
    // In a program that runs and loads nothing more, nothing is left to trace.
    let mut live = Session::of(&setting, &program)
        .arguments(&["50"])
        .record(&["--no-samples", "--trace", "trace_calls:kind_nop6"])
        .start()?;
    live.recorder.wait_until("naming it", LIMIT, |recorder| {
        recorder
            .stderr_so_far()
            .is_ok_and(|said| said.contains("kind_nop6"))
    })?;
    live.resume()?;
    live.program.end(LIMIT)?.success()?;
    Ok(())
}

/// Without symbols there are no names, which is said of the object.
#[test]
fn stripped_objects() -> Outcome {
    let test = "e2e_trace_errors::stripped_objects";
    let Some((setting, program)) = prepared(test, "trace_calls.c", Build::Stripped)? else {
        return Ok(());
    };
    let mut live = Session::of(&setting, &program)
        .arguments(&["10"])
        .record(&["--no-samples", "--trace", "trace_calls:kind_push"])
        .start()?;
    live.recorder.wait_until("naming it", LIMIT, |recorder| {
        recorder
            .stderr_so_far()
            .is_ok_and(|said| said.contains("trace_calls"))
    })?;
    let said = live.recorder.stderr_so_far()?;
    assert!(
        said.contains("strip") || said.contains("no symbols"),
        "{said}"
    );
    live.resume()?;
    live.program.end(LIMIT)?.success()?;
    Ok(())
}

/// An instruction that the kernel refuses is named; everything else is traced.
#[test]
fn refused_probes() -> Outcome {
    let test = "e2e_trace_errors::refused_probes";
    let Some((setting, program)) = prepared(test, "trace_calls.c", Build::Optimised)? else {
        return Ok(());
    };
    let run = Session::of(&setting, &program)
        .arguments(&["50"])
        .record(&["--trace", "kind_*", "--budget", "off", "--no-samples"])
        .probed(&["kind_push", "kind_ret"])
        .run()?;
    run.unharmed()?;
    run.trace.complete()?;
    assert!(
        run.profiler.stderr.contains("kind_refused"),
        "{}",
        run.profiler.stderr
    );
    assert_eq!(run.trace.entries("kind_refused"), 0);
    let others: Vec<&str> = run
        .truth
        .calls
        .keys()
        .map(String::as_str)
        .filter(|name| name.starts_with("kind_") && *name != "kind_refused")
        .collect();
    run.trace.counted(&run.truth, &others)?;

    // A command, whose code is not mapped when its probes are made, must not be counted as silent.
    let path = program.to_string_lossy();
    let arguments = [
        "record",
        "--force",
        "-o",
        "out.cap",
        "--no-samples",
        "--trace",
        "kind_refused",
        "--trace",
        "recurse",
    ];
    let ended = setting
        .run(&[&arguments[..], &["--", &path, "50"]].concat())?
        .success()?;
    assert!(ended.stderr.contains("kind_refused"), "{}", ended.stderr);
    assert!(Truth::of(&ended)?.calls["kind_refused"] == 50);
    assert!(
        !Trace::read(&setting.path("out.cap"))?
            .modes
            .contains_key("kind_refused")
    );
    Ok(())
}

/// A pattern that matches more than 100,000 functions is asked about, or needs `--yes`.
#[test]
fn very_many_functions() -> Outcome {
    const MANY: usize = 100_100;
    let test = "e2e_trace_errors::very_many_functions";
    let Some((setting, _)) = prepared(test, "trace_caller.c", Build::Optimised)? else {
        return Ok(());
    };
    let mut source =
        String::from(".text\n.globl main\n.type main,@function\nmain: xor %eax,%eax\n");
    source
        .push_str(" push %rax\n call many_7\n pop %rax\n xor %eax,%eax\n ret\n.size main,.-main\n");
    for index in 0..MANY {
        writeln!(
            source,
            ".type many_{index},@function\nmany_{index}: ret\n.size many_{index},1"
        )?;
    }
    source.push_str(".section .note.GNU-stack,\"\",@progbits\n");
    fs::write(setting.path("many.s"), source)?;
    let mut cc = Command::new("cc");
    cc.args(["-o", "many", "many.s"])
        .current_dir(setting.folder());
    run(&mut cc, setting.folder(), "cc", LIMIT)?.success()?;

    let arguments = [
        "record",
        "--no-samples",
        "--returns",
        "none",
        "--trace",
        "many_*",
        "-o",
        "out.cap",
    ];
    let refused = setting.run(&[&arguments[..], &["--", "./many"]].concat())?;
    assert!(!refused.status.success());
    for name in ["many_*", "--yes"] {
        assert!(refused.stderr.contains(name), "{}", refused.stderr);
    }
    assert!(
        refused.stderr.contains("100100") || refused.stderr.contains("100,100"),
        "{}",
        refused.stderr
    );
    assert!(!setting.path("out.cap").exists());
    setting
        .run(&[&arguments[..], &["--yes", "--", "./many"]].concat())?
        .success()?;
    let trace = Trace::read(&setting.path("out.cap"))?;
    assert_eq!(trace.entries("many_7"), 1);
    assert_eq!(trace.calls.len(), 1);
    Ok(())
}

/// Wrong usage is status 2 and names the flag.
#[test]
fn bad_usage() -> Outcome {
    let test = "e2e_trace_errors::bad_usage";
    let Some((setting, _)) = prepared(test, "trace_caller.c", Build::Optimised)? else {
        return Ok(());
    };
    for (wrong, named) in [
        (&["--returns", "sometimes"][..], "--returns"),
        (&["--probe-at", "exit"], "--probe-at"),
        (&["--budget", "lots"], "--budget"),
        (&["--budget", "0%"], "--budget"),
        (&["--min-duration", "soon"], "--min-duration"),
        (&["--max-depth", "0"], "--max-depth"),
        (&["--max-rate", "-1"], "--max-rate"),
        (&["--arg-len", "100000"], "--arg-len"),
    ] {
        let arguments = [
            &["record", "-o", "out.cap", "--trace", "main"],
            wrong,
            &["--", "true"],
        ]
        .concat();
        let ended = setting.run(&arguments)?.expect_status(2)?;
        assert!(ended.stderr.contains(named), "{wrong:?}: {}", ended.stderr);
        assert!(!setting.path("out.cap").exists());
    }
    // What only means something with --trace.
    let ended = setting
        .run(&["record", "-o", "out.cap", "--args", "--", "true"])?
        .expect_status(2)?;
    assert!(ended.stderr.contains("--trace"), "{}", ended.stderr);
    Ok(())
}

#[test]
fn without_privileges() -> Outcome {
    let test = "e2e_trace_errors::without_privileges";
    let Some((setting, program)) = prepared(test, "trace_caller.c", Build::Optimised)? else {
        return Ok(());
    };
    let copy = setting.profiler_for_all()?;
    let output = format!("/tmp/profiler-nobody-{}.cap", std::process::id());
    let mut command = Command::new(&copy);
    command
        .args(["record", "--trace", "compiled", "-o", &output, "--"])
        .arg(&program)
        .args(["compiled", "calls", "10"])
        .current_dir("/tmp")
        .uid(65_534)
        .gid(65_534);
    let ended = run(&mut command, setting.folder(), "nobody", LIMIT)?.expect_status(1)?;
    assert!(ended.stderr.contains("CAP_"), "{}", ended.stderr);
    assert!(!std::path::Path::new(&output).exists());
    Ok(())
}

/// What would be traced, where, at which price; and why not.
#[test]
fn list_functions() -> Outcome {
    let test = "e2e_trace_errors::list_functions";
    let Some((setting, program)) = prepared(test, "trace_calls.c", Build::Protected)? else {
        return Ok(());
    };
    let mut command = Command::new(&program);
    let mut waiting = setting.start("waiting", command.args(["1", "--wait"]))?;
    waiting.wait_until("its start", LIMIT, |program| {
        profiler_tests::tracing::met(program, "start", 1)
    })?;
    let pid = waiting.pid().to_string();
    let listed = setting
        .run(&["list", "functions", "-p", &pid, "kind_*", "--json"])?
        .success()?
        .json()?;
    let text = listed.to_string();
    for name in ["kind_nop5", "kind_endbr_push", "kind_ret", "kind_refused"] {
        assert!(text.contains(name), "{name} is not in {text}");
    }
    assert!(!text.contains("walk_outer"));
    let table = setting
        .run(&["list", "functions", "-p", &pid, "kind_*"])?
        .success()?
        .stdout;
    assert!(
        table.contains("kind_endbr_push") && table.contains("ns"),
        "{table}"
    );
    let nothing = setting.run(&["list", "functions", "-p", &pid, "nosuch*"])?;
    assert!(nothing.stderr.contains("nosuch"), "{}", nothing.stderr);
    Ok(())
}
