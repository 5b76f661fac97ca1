//! `profiler hq` as people run it: scripted agents in, captures and reports out.
#![allow(clippy::unwrap_used)] // A test fails by it.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::time::Duration;

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

/// One run into run.cap, which HQ has started.
fn begun(setting: &Setting) -> (Receiving, Connection, u8) {
    let receiver = Receiving::start(setting, &["--runs", "1", "-o", "run.cap"]);
    let (mut control, run) = agent(receiver.address);
    control.send(&[heartbeat(Mode::Initializing)]);
    control.expect(&[HqMessage::Start]);
    (receiver, control, run)
}

/// What an agent of ours tells of calls that it did not see is said by all that read the capture.
#[test]
fn what_an_agent_missed_is_said_by_all_views() -> Outcome {
    let Some(setting) = Setting::unprivileged("hq_missed")? else {
        return Ok(());
    };
    let (mut receiver, mut control, run) = begun(&setting);
    receiver.line();
    receiver.line();
    let mut one = data(receiver.address, run);
    let said = |at_ms, sequence, key: &'static str, value: &'static str| AgentMessage::Marker {
        at_ms,
        sequence,
        key: key.into(),
        value: value.into(),
    };
    let mut messages = vec![name(1, "work [app] src/a.c:7")];
    for round in 0..10 {
        messages.push(AgentMessage::MethodEntry {
            at_ms: round * 100,
            sequence: round * 2,
            method: 1,
            thread: 0,
        });
        messages.push(AgentMessage::MethodExit {
            at_ms: round * 100 + 1,
            sequence: round * 2 + 1,
            method: 1,
            line: 12,
            thread: 0,
        });
    }
    let early = "all functions in app [7]: not watched until probes were attached (40.0 ms)";
    let duty = "work [app] src/a.c:7: over budget, watched a part of the time (500.0 ms in 2 gaps)";
    messages.push(said(1000, 20, "not traced", early));
    messages.push(said(1000, 21, "not traced", duty));
    let lost = "records of calls without room in the kernel's buffer: 3";
    messages.push(said(1000, 22, "lost events", lost));
    one.send(&messages);
    control.send(&[heartbeat(Mode::Tracing)]);
    finish(control, vec![one]);
    let end = receiver.end();
    let missing = "missing: 3 records of calls without room in the kernel's buffer; \
                   1 gap of 40.0 ms: not watched until probes were attached; \
                   2 gaps in 250 ms of the time: over budget, watched a part of the time";
    assert!(end.contains(missing), "{end}");

    let report = setting
        .run(&["report", "--calls", "run.cap"])?
        .success()?
        .stdout;
    for said in [
        "1 gap of 40.0 ms: not watched until probes were attached",
        "2 gaps in 250 ms of the time: over budget, watched a part of the time",
        "3 records lost",
        "≥",
    ] {
        assert!(report.contains(said), "{said}: {report}");
    }
    let info = setting.run(&["info", "run.cap"])?.success()?.stdout;
    for said in [
        "lost        3 records of calls without room in the kernel's buffer",
        "gaps        calls are missing in 1 gap of 40.0 ms: not watched until probes were attached",
        "gaps        calls are missing in 2 gaps in 250 ms of the time: over budget, watched a part of the time",
    ] {
        assert!(info.contains(said), "{said}: {info}");
    }
    let json = setting
        .run(&["info", "--format", "json", "run.cap"])?
        .success()?
        .json()?;
    assert_eq!(json["gaps"]["not_yet_attached"]["ns"], 40_000_000);
    assert_eq!(json["gaps"]["duty_cycle"]["count"], 2);
    let json = { setting.run(&["report", "--calls", "--format", "json", "run.cap"])? }.success()?;
    let calls = &json.json()?["calls"];
    assert_eq!(calls["summary"]["lost_records"], 3);
    assert_eq!(calls["summary"]["gaps"][1]["ns"], 250_000_000);
    assert_eq!(calls["functions"][0]["not_estimable"], true);
    Ok(())
}

/// What an agent had no room for, what did not come and when it was suspended are told apart; a run with ids missing
/// is not called complete.
#[test]
fn why_data_are_missing_is_said() -> Outcome {
    let Some(setting) = Setting::unprivileged("hq_why")? else {
        return Ok(());
    };
    let (mut receiver, mut control, run) = begun(&setting);
    receiver.line();
    let mut one = data(receiver.address, run);
    control.send(&[heartbeat(Mode::Tracing)]);
    one.send(&[name(1, "work"), enter(0, 1, 0), exit(1, 1, 0)]);
    control.send(&[AgentMessage::DataBreak { sequence: 3 }]);
    one.send(&[marker(2, "no room"), enter(3, 1, 0), exit(4, 1, 0)]);
    receiver.order("suspend");
    control.expect(&[HqMessage::Suspend]);
    control.send(&[heartbeat(Mode::Suspended)]);
    receiver.order("unsuspend");
    control.expect(&[HqMessage::Unsuspend]);
    control.send(&[
        heartbeat(Mode::Tracing),
        AgentMessage::DataBreak { sequence: 6 },
    ]);
    one.send(&[marker(5, "resumed"), enter(6, 1, 0), exit(7, 1, 0)]);
    one.send(&[enter(9, 1, 0), exit(10, 1, 0)]);
    finish(control, vec![one]);
    let end = receiver.end();
    assert!(!end.contains("is complete"), "{end}");
    for said in [
        "run 0 has ended, but its data are not complete: 11 messages",
        "run 0: missing: 1 gap of 1.00 ms: tracing was suspended; \
         2 gaps in 3.00 ms of the time: events of the agent are missing",
    ] {
        assert!(end.contains(said), "{said}: {end}");
    }
    // Sent once more, which takes no breaks, they are told all the same.
    let mut again = Receiving::start(&setting, &["--runs", "1", "-o", "again.cap"]);
    let hq = again.address.to_string();
    { setting.run(&["stream", "bytefrog", &hq, "--replay", "run.cap"])? }.success()?;
    again.end();
    for capture in ["run.cap", "again.cap"] {
        let info = setting.run(&["info", capture])?.success()?.stdout;
        for said in [
            "complete    yes",
            "calls are missing in 1 gap of 1.00 ms: tracing was suspended",
            "calls are missing in 2 gaps in 3.00 ms of the time: events of the agent are missing",
        ] {
            assert!(info.contains(said), "{capture}: {said}: {info}");
        }
    }
    Ok(())
}

/// An HQ that stood still finds breaks and data at once, and takes what was said first first.
#[test]
fn breaks_that_waited_for_an_hq_come_before_their_data() -> Outcome {
    let Some(setting) = Setting::unprivileged("hq_stopped")? else {
        return Ok(());
    };
    let (mut receiver, mut control, run) = begun(&setting);
    let mut one = data(receiver.address, run);
    control.send(&[heartbeat(Mode::Tracing)]);
    one.send(&[name(1, "work")]);
    let rounds = 50;
    // The reader of control has something to do before it comes to the break.
    let class = AgentMessage::ClassIgnored("libfoo.so".into());
    let mut before = vec![class; 2000];
    before.push(AgentMessage::DataBreak { sequence: 0 });
    for sequence in (0..rounds).map(|round| round * 3) {
        receiver.stop()?;
        if let Some(last) = before.last_mut() {
            let sequence = sequence + 1;
            *last = AgentMessage::DataBreak { sequence };
        }
        control.send(&before);
        one.send(&[
            marker(sequence, "resumed"),
            enter(sequence + 1, 1, 0),
            exit(sequence + 2, 1, 0),
        ]);
        receiver.go_on()?;
        std::thread::sleep(Duration::from_millis(3));
    }
    finish(control, vec![one]);
    let end = receiver.end();
    assert_eq!(receiver.status(), Some(0), "{end}");
    assert!(
        end.contains(&format!("run 0 is complete: {} messages", rounds * 3 + 1)),
        "{end}"
    );
    assert!(!end.contains("a data break at"), "{end}");
    Ok(())
}

/// Who connects time and again, and sends nothing, fills no folder.
#[test]
fn runs_without_data_leave_no_files() -> Outcome {
    let Some(setting) = Setting::unprivileged("hq_empty")? else {
        return Ok(());
    };
    let mut receiver = Receiving::start(&setting, &["--runs", "6", "-o", "run.cap"]);
    for round in 0..6 {
        let (mut control, run) = agent(receiver.address);
        control.send(&[heartbeat(Mode::Initializing)]);
        control.expect(&[HqMessage::Start]);
        let mut one = data(receiver.address, run);
        if round == 3 {
            one.send(&[name(1, "work"), enter(0, 1, 0), exit(1, 1, 0)]);
        }
        match round % 2 {
            0 => drop((control, one)),
            _ => finish(control, vec![one]),
        }
    }
    let end = receiver.end();
    let mut files: Vec<_> = std::fs::read_dir(setting.path("."))?
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| name.starts_with("run"))
        .collect();
    files.sort();
    assert_eq!(files, ["run-3.cap", "run.cap"], "{end}");
    for run in [1, 2, 4, 5] {
        let said = format!("run {run}: nothing came: it has no capture");
        assert!(end.contains(&said), "{said}: {end}");
    }
    let info = setting.run(&["info", "run-3.cap"])?.success()?.stdout;
    assert!(info.contains("complete    yes"), "{info}");
    Ok(())
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
    receiver.order(&format!("{}stop 2", "walk".repeat(75_000)));
    let line = receiver.line();
    assert!(
        line.contains("…' is no order") && line.len() < 300,
        "{line}"
    );

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
    let info = setting.run(&["info", "run-1.cap"])?.success()?.stdout;
    for said in [
        "complete    no: the run was cut off before its end",
        "gaps        calls are missing in 1 gap of ",
        ": the run was cut off before its end",
    ] {
        assert!(info.contains(said), "{said}: {info}");
    }
    let json = { setting.run(&["info", "--format", "json", "run-1.cap"])? }.success()?;
    assert_eq!(json.json()?["complete"], false);
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
