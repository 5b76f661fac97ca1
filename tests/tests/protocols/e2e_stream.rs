//! `profiler stream bytefrog`: runs at an HQ of these tests, which checks what every HQ checks, and
//! what is left of targets and commands when a run ends in whatever way.

use std::error::Error;
use std::fs;
use std::io;
use std::net::TcpListener;
use std::process::Command;
use std::time::Duration;

use profiler_tests::Outcome;
use profiler_tests::kernel_objects::{held_by, wait_until_gone};
use profiler_tests::process::Running;
use profiler_tests::setting::{LIMIT, Setting};
use profiler_tests::tracing::{Build, prepared};
use profiler_wire::bytefrog::{Configuration, HqMessage, Mode};
use rustix::process::Signal;

use crate::e2e_stream_shared::Hq;

/// Starts streaming to an HQ.
fn stream(setting: &Setting, hq: &Hq, arguments: &[&str]) -> Result<Running, Box<dyn Error>> {
    let mut command = setting.profiler();
    command.args(["stream", "bytefrog", &hq.address()]);
    command.args(arguments);
    Ok(Running::start(&mut command, setting.folder(), "stream")?)
}

/// Whether a process is stopped, by its state.
fn is_stopped(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ")
        .is_some_and(|(_, rest)| rest.starts_with('T'))
}

/// A command that counts its own calls: HQ gets each of them, strictly nested, exceptions included.
#[test]
fn every_call_of_a_command() -> Outcome {
    let test = "e2e_stream::every_call_of_a_command";
    let Some((setting, program)) = prepared(test, "trace_throw.cpp", Build::Optimised)? else {
        return Ok(());
    };
    let mut hq = Hq::listen(Configuration {
        data_senders: 3,
        ..Configuration::default()
    })?;
    let program = program.to_string_lossy().into_owned();
    let running = stream(
        &setting,
        &hq,
        &[
            "--trace",
            "trace_throw:*_*",
            "--budget",
            "off",
            "--",
            &program,
            "200",
        ],
    )?;
    hq.wait_for_mode(Mode::Initializing)?;
    // It does not run before it is told to.
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(running.stdout_so_far()?, "");
    hq.send(HqMessage::Start)?;
    hq.wait_for_mode(Mode::Tracing)?;
    let run = hq.end()?;
    let ended = running.end(LIMIT)?.success()?;
    let truth = ended.json()?;
    for (name, count) in truth["calls"].as_object().ok_or("no calls")? {
        if name.contains('_') {
            assert_eq!(Some(run.entries(name)), count.as_u64(), "{name}");
            assert_eq!(
                Some(run.exits(name)),
                truth["returns"][name].as_u64(),
                "{name}"
            );
            assert_eq!(run.entries(name), run.exits(name) + run.bubbles(name));
        }
    }
    assert!(run.entries("far_inner") > 0);
    assert_eq!(run.modes.last(), Some(&Mode::ShuttingDown));
    Ok(())
}

/// HQ's filter keeps functions from being probed, and recorded ones from being sent.
#[test]
fn filters_of_hq() -> Outcome {
    let test = "e2e_stream::filters_of_hq";
    let Some((setting, program)) = prepared(test, "trace_throw.cpp", Build::Optimised)? else {
        return Ok(());
    };
    let program = program.to_string_lossy();
    let traced = ["--trace", "trace_throw:*_*", "--budget", "off"];
    let live = [&traced[..], &["--", &program, "50"]].concat();
    setting.record(&live)?.0.success()?;
    for arguments in [&live[..], &["--replay", "out.cap"]] {
        let mut hq = Hq::listen(Configuration {
            exclusions: vec!["trace_throw/far_.*".to_owned()],
            inclusions: vec!["trace_throw/far_inner".to_owned()],
            ..Configuration::default()
        })?;
        let running = stream(&setting, &hq, arguments)?;
        hq.wait_for_mode(Mode::Initializing)?;
        hq.send(HqMessage::Start)?;
        let run = hq.end()?;
        running.end(LIMIT)?.success()?;
        assert_eq!(run.entries("far_inner"), 50);
        assert_eq!(run.entries("near_catch"), 50);
        for name in ["far_outer", "far_throw", "far_catch"] {
            assert_eq!(run.entries(name), 0, "{name}");
        }
    }
    Ok(())
}

/// A stop ends a command that was started here, and leaves it alone when it is told so.
#[test]
fn stop_ends_the_command() -> Outcome {
    let Some(setting) = Setting::new("e2e_stream::stop_ends_the_command")? else {
        return Ok(());
    };
    let script = "trap 'echo tidied; exit 5' TERM; echo runs; i=0; \
                  while [ $i -lt 20 ]; do sleep 0.1; i=$((i+1)); done; echo whole";
    let trace = ["--trace", "libc.so.6:malloc"];
    for (flags, said, status) in [(&[][..], "tidied", 0), (&["--stop-detaches"], "whole", 0)] {
        let mut hq = Hq::listen(Configuration::default())?;
        let arguments = [&trace[..], flags, &["--", "sh", "-c", script]].concat();
        let mut running = stream(&setting, &hq, &arguments)?;
        hq.wait_for_mode(Mode::Initializing)?;
        hq.send(HqMessage::Start)?;
        // It does not begin before HQ has answered on all data connections.
        hq.wait_for_mode(Mode::Tracing)?;
        running.wait_until("the command", LIMIT, |running| {
            running
                .stdout_so_far()
                .is_ok_and(|said| said.contains("runs"))
        })?;
        hq.send(HqMessage::Stop)?;
        hq.end()?;
        let ended = running.end(LIMIT)?.expect_status(status)?;
        assert!(ended.stdout.contains(said), "{}", ended.stdout);
    }
    Ok(())
}

/// HQ pauses and suspends a command; what it did not start it may not pause unless that is allowed.
#[test]
fn pauses_and_suspensions() -> Outcome {
    let Some(setting) = Setting::new("e2e_stream::pauses_and_suspensions")? else {
        return Ok(());
    };
    let mut target = sleeper(&setting)?;
    let pid = target.pid().to_string();
    for (flags, mode) in [
        (&[][..], Mode::Tracing),
        (&["--allow-control"], Mode::Paused),
    ] {
        let mut hq = Hq::listen(Configuration::default())?;
        let trace = ["--trace", "libc.so.6:malloc", "-p", &pid];
        let running = stream(&setting, &hq, &[&trace[..], flags].concat())?;
        hq.wait_for_mode(Mode::Initializing)?;
        hq.send(HqMessage::Start)?;
        hq.wait_for_mode(Mode::Tracing)?;
        hq.send(HqMessage::Pause)?;
        hq.wait_for_mode(mode)?;
        assert_eq!(is_stopped(target.pid()), mode == Mode::Paused);
        hq.send(HqMessage::Unpause)?;
        hq.wait_for_mode(Mode::Tracing)?;
        assert!(!is_stopped(target.pid()));
        hq.send(HqMessage::Suspend)?;
        hq.wait_for_mode(Mode::Suspended)?;
        hq.send(HqMessage::Unsuspend)?;
        hq.wait_for_mode(Mode::Tracing)?;
        hq.send(HqMessage::Stop)?;
        let run = hq.end()?;
        assert_eq!(run.breaks, 1);
        let ended = running.end(LIMIT)?.success()?;
        assert_eq!(
            ended.stderr.contains("--allow-control"),
            mode == Mode::Tracing,
            "{}",
            ended.stderr
        );
        assert!(!target.has_ended()?);
    }
    target.signal(Signal::KILL)?;
    Ok(())
}

/// An HQ that dies while the target stands still: the target goes on, nothing is left in it, and the
/// status says that something was wrong.
#[test]
fn an_hq_that_dies() -> Outcome {
    let Some(setting) = Setting::new("e2e_stream::an_hq_that_dies")? else {
        return Ok(());
    };
    let mut target = sleeper(&setting)?;
    let pid = target.pid().to_string();
    let mut hq = Hq::listen(Configuration::default())?;
    let trace = ["--trace", "libc.so.6:malloc", "--allow-control", "-p", &pid];
    let running = stream(&setting, &hq, &trace)?;
    hq.wait_for_mode(Mode::Initializing)?;
    hq.send(HqMessage::Start)?;
    hq.wait_for_mode(Mode::Tracing)?;
    hq.send(HqMessage::Pause)?;
    hq.wait_for_mode(Mode::Paused)?;
    assert!(is_stopped(target.pid()));
    let held = held_by(running.pid())?;
    drop(hq);
    let ended = running.end(LIMIT)?.expect_status(1)?;
    let lines: Vec<&str> = ended.stderr.lines().collect();
    assert!(
        matches!(lines[..], [line] if line.contains("lost") && line.contains("HQ")),
        "{}",
        ended.stderr
    );
    assert!(!is_stopped(target.pid()) && !target.has_ended()?);
    wait_until_gone(&held, LIMIT)?;
    target.signal(Signal::KILL)?;
    Ok(())
}

/// A process that has loaded the C library, and sleeps.
fn sleeper(setting: &Setting) -> io::Result<Running> {
    let mut sleeper = setting.start("target", Command::new("sleep").arg("60"))?;
    sleeper.wait_until("loading the C library", LIMIT, |run| {
        let maps = fs::read_to_string(format!("/proc/{}/maps", run.pid()));
        maps.is_ok_and(|maps| maps.contains("/libc.so.6"))
    })?;
    Ok(sleeper)
}

/// A command whose HQ dies goes on to its own end.
#[test]
fn a_command_without_hq_goes_on() -> Outcome {
    let Some(setting) = Setting::new("e2e_stream::a_command_without_hq_goes_on")? else {
        return Ok(());
    };
    let mut hq = Hq::listen(Configuration::default())?;
    let trace = ["--trace", "libc.so.6:malloc"];
    let command = ["--", "sh", "-c", "sleep 2; echo whole; exit 3"];
    let running = stream(&setting, &hq, &[&trace[..], &command].concat())?;
    hq.wait_for_mode(Mode::Initializing)?;
    hq.send(HqMessage::Start)?;
    hq.wait_for_mode(Mode::Tracing)?;
    drop(hq);
    let ended = running.end(LIMIT)?.expect_status(1)?;
    assert_eq!(ended.stdout, "whole\n");
    assert!(ended.stderr.contains("goes on"), "{}", ended.stderr);
    Ok(())
}

/// What can't begin leaves the command unrun: no HQ, a wrong pattern, a person who does not want to
/// wait.
#[test]
fn what_does_not_begin_runs_nothing() -> Outcome {
    let Some(setting) = Setting::new("e2e_stream::what_does_not_begin_runs_nothing")? else {
        return Ok(());
    };
    // Nobody listens at a port that was free a moment ago.
    let free = TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string();
    let ran = setting.path("ran").to_string_lossy().into_owned();
    let none = [
        "stream",
        "bytefrog",
        &free,
        "--connect-timeout",
        "1",
        "--trace",
    ];
    let ended = setting.run(&[&none[..], &["libc.so.6:malloc", "--", "touch", &ran]].concat())?;
    let ended = ended.expect_status(1)?;
    assert!(ended.stderr.contains("no HQ answered"), "{}", ended.stderr);
    let ended = setting.run(&[&none[..], &["libc.so.6:nosuch", "--", "touch", &ran]].concat())?;
    let ended = ended.expect_status(1)?;
    assert!(ended.stderr.contains("nosuch"), "{}", ended.stderr);
    assert!(!ended.stderr.contains("HQ"), "{}", ended.stderr);

    let mut hq = Hq::listen(Configuration::default())?;
    let trace = ["--trace", "libc.so.6:malloc", "--", "touch", &ran];
    let running = stream(&setting, &hq, &trace)?;
    hq.wait_for_mode(Mode::Initializing)?;
    running.signal(Signal::INT)?;
    running.end(LIMIT)?.expect_status(125)?;
    assert!(!setting.path("ran").exists());
    Ok(())
}

/// A capture is sent as what it was recorded of would have been.
#[test]
fn a_capture() -> Outcome {
    let test = "e2e_stream::a_capture";
    let Some((setting, program)) = prepared(test, "trace_throw.cpp", Build::Optimised)? else {
        return Ok(());
    };
    let program = program.to_string_lossy().into_owned();
    let (recorded, _) = setting.record(&[
        "--trace",
        "trace_throw:*_*",
        "--no-samples",
        "--budget",
        "off",
        "--",
        &program,
        "100",
    ])?;
    let truth = recorded.json()?;
    let hq_end = |arguments: &[&str]| -> Result<_, Box<dyn Error>> {
        let mut hq = Hq::listen(Configuration::default())?;
        let capture = ["--replay", "out.cap"];
        let running = stream(&setting, &hq, &[&capture[..], arguments].concat())?;
        hq.wait_for_mode(Mode::Initializing)?;
        hq.send(HqMessage::Start)?;
        let run = hq.end()?;
        let ended = running.end(LIMIT)?.success()?;
        // Of a capture without what was asked for it is said.
        let is_empty = arguments.contains(&"--from-samples");
        let says = ended.stderr.contains("holds no samples");
        assert_eq!(says, is_empty, "{}", ended.stderr);
        Ok(run)
    };
    assert_eq!(hq_end(&["--from-samples"])?.breaks, 0);
    // The event queue is smaller than the capture: all of it gets through all the same.
    for arguments in [&["--buffer", "256K"][..], &["--speed", "2"]] {
        let run = hq_end(arguments)?;
        assert_eq!(run.breaks, 0);
        for (name, count) in truth["calls"].as_object().ok_or("no calls")? {
            if name.contains('_') {
                assert_eq!(Some(run.entries(name)), count.as_u64(), "{name}");
            }
        }
    }
    Ok(())
}
