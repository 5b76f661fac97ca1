//! `profiler hq` as people run it: scripted agents in, captures and reports out.
#![allow(clippy::unwrap_used)] // A test fails by it.

use std::os::unix::fs::{PermissionsExt, symlink};

use crate::hq_shared::*;
use profiler_tests::Outcome;
use profiler_tests::setting::Setting;
use profiler_wire::bytefrog::{AgentMessage, HqMessage, Mode};

/// A program with a recursion, an exception and two threads, in the Java agent's words.
fn program() -> Vec<AgentMessage<'static>> {
    let call = |at_ms, sequence, method, thread| AgentMessage::MethodEntry {
        at_ms,
        sequence,
        method,
        thread,
    };
    let back = |at_ms, sequence, method, thread| AgentMessage::MethodExit {
        at_ms,
        sequence,
        method,
        line: 12,
        thread,
    };
    vec![
        name(1, "demo/Demo.main;9;([Ljava/lang/String;)V"),
        name(2, "work(int) [libdemo.so] src/demo.c:7"),
        AgentMessage::MapThreadName {
            thread: 0,
            at_ms: 0,
            name: "main".into(),
        },
        call(0, 0, 1, 0),
        call(10, 1, 2, 0),
        call(20, 2, 2, 0),
        call(20, 3, 2, 1),
        back(40, 4, 2, 0),
        AgentMessage::Exception {
            at_ms: 50,
            sequence: 5,
            method: 2,
            exception: 1,
            line: 9,
            thread: 0,
        },
        AgentMessage::MapException {
            exception: 1,
            name: "java/lang/Error".into(),
        },
        AgentMessage::ExceptionBubble {
            at_ms: 60,
            sequence: 6,
            method: 2,
            exception: 1,
            thread: 0,
        },
        back(80, 7, 2, 1),
        back(100, 8, 1, 0),
        marker(9, "recording ended"),
    ]
}

#[test]
fn a_run_becomes_a_capture_that_all_views_read() -> Outcome {
    let Some(setting) = Setting::unprivileged("hq_capture")? else {
        return Ok(());
    };
    let arguments = ["--runs", "2", "-o", "run.cap", "--wait"];
    let mut receiver = Receiving::start(&setting, &arguments);
    assert!(receiver.line().contains("wait for the order"));
    receiver.order("start");
    assert!(receiver.line().contains("an agent has to connect first"));
    receiver.order("stop 300");
    assert!(receiver.line().contains("there is no run 300"));
    receiver.order("walk");
    assert!(receiver.line().contains("'walk' is no order"));

    let (mut control, run) = agent(receiver.address);
    assert!(receiver.line().starts_with("run 0: the agent at 127.0.0.1"));
    receiver.order("pause");
    assert!(receiver.line().contains("start comes first"));
    receiver.order("start");
    control.expect(&[HqMessage::Start]);
    assert_eq!(receiver.line(), "run 0: start");
    let mut one = data(receiver.address, run);
    one.send(&program());
    control.send(&[heartbeat(Mode::Tracing)]);
    finish(control, vec![one]);
    let line = receiver.line();
    assert!(line.starts_with("run 0 is complete: 14 messages"), "{line}");
    assert!(line.ends_with("8 call records"), "{line}");
    assert!(receiver.line().starts_with("run 0: wrote run.cap"));

    // One that dies: what came is kept, in a capture of its own.
    let (control, run) = agent(receiver.address);
    receiver.line();
    let mut one = data(receiver.address, run);
    one.send(&[enter(0, 1, 0)]);
    drop((control, one));
    let line = receiver.line();
    let why = "profiler: run 1 failed: the agent went away without ending the run; kept: 1 message";
    assert!(line.starts_with(why), "{line}");
    assert!(receiver.end().contains("wrote run-1.cap"));
    assert_eq!(receiver.status(), Some(1));
    for name in ["run.cap", "run-1.cap"] {
        let mode = setting.path(name).metadata()?.permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    let calls = setting.run(&["report", "run.cap", "--calls"])?.success()?;
    for words in ["demo.Demo.main(String[])", "work(int)", "java/lang/Error"] {
        assert!(calls.stdout.contains(words), "{words}: {}", calls.stdout);
    }
    let tree = setting
        .run(&["report", "run.cap", "--calls-tree"])?
        .success()?;
    assert!(tree.stdout.contains("work(int)"), "{}", tree.stdout);
    let info = setting.run(&["info", "run.cap"])?.success()?;
    assert!(info.stdout.contains("Bytefrog"), "{}", info.stdout);
    let export = [
        "export",
        "run.cap",
        "--format",
        "go-trace",
        "-o",
        "run.trace",
    ];
    setting.run(&export)?.success()?;
    assert!(setting.path("run.trace").metadata()?.len() > 100);
    println!("{}\n{}\n{}", calls.stdout, tree.stdout, info.stdout);
    let failed = setting
        .run(&["report", "run-1.cap", "--calls"])?
        .success()?;
    assert!(failed.stdout.contains("method 1"), "{}", failed.stdout);

    // Nothing is written through a link, and the address of all is not opened by accident.
    symlink("run.cap", setting.path("link.cap"))?;
    let through = setting.run(&["hq", "-o", "link.cap"])?;
    assert_eq!(through.status.code(), Some(1));
    let open = setting.run(&["hq", "-o", "x.cap", "--listen", "0.0.0.0"])?;
    assert_eq!(open.status.code(), Some(2));
    assert!(open.stderr.contains("--allow-remote"), "{}", open.stderr);
    Ok(())
}
