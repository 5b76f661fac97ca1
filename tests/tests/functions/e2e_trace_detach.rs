//! Probes go when the profiler goes, in whatever way; who is not traced never has any.

use std::error::Error;
use std::path::Path;
use std::time::{Duration, Instant};

use profiler_tests::Outcome;
use profiler_tests::kernel_objects::{held_by, wait_until_ended, wait_until_gone};
use profiler_tests::setting::{LIMIT, Setting};
use profiler_tests::tracing::{Build, Code, Edge, Session, Trace, Truth, prepared};
use rustix::process::Signal;

/// Calls that are in a capture, at least, before its recorder is ended.
const LEAST: u64 = 1000;

/// The kernel's list of probes that somebody has made by name, if it can be read.
fn probe_events() -> Option<String> {
    std::fs::read_to_string("/sys/kernel/tracing/uprobe_events").ok()
}

/// The process that waits for the kernel when the profiler has ended, as it has said.
fn waits_on(stderr: &str) -> Option<u32> {
    let (before, _) = stderr.split_once(" waits for that")?;
    before.rsplit_once("process ")?.1.parse().ok()
}

/// Starts a program that calls `compiled` and a profiler that traces it; ends the profiler with
/// `signal`, and checks that the program has its own code again, and goes on to its end.
fn ended_by(
    setting: &Setting,
    program: &Path,
    signal: Signal,
    returns: &str,
) -> Result<(), Box<dyn Error>> {
    let events = probe_events();
    let mut live = Session::of(setting, program)
        .arguments(&["compiled", "told", "50000", "120"])
        .record(&[
            "--trace",
            "compiled",
            "--trace",
            "kind_*",
            "--no-trace",
            "kind_refused",
        ])
        .record(&["--returns", returns, "--budget", "off"])
        .probed(&["compiled", "kind_push"])
        .start()?;
    live.resume()?;
    // One that is killed leaves what it has written; when that is depends on what runs beside it.
    let capture = setting.path("out.cap");
    let recorded = || Trace::read(&capture).map_or(0, |trace| trace.entries("compiled"));
    live.recorder
        .wait_until("calls in the capture", LIMIT, |_| recorded() > LEAST)?;
    let held = held_by(live.recorder.pid())?;
    assert!(
        !held.programs.is_empty() && !held.links.is_empty(),
        "{held:?}"
    );
    live.recorder.signal(signal)?;
    let pid = live.program.pid();
    let ended = live.recorder.end(LIMIT)?;
    let by_itself = ended.status.code().is_some();
    assert_eq!(
        probe_events(),
        events,
        "a probe event stays in the kernel's list"
    );
    if by_itself {
        let stderr = ended.success()?.stderr;
        // A kernel that is slow to let go of them is waited for by one that it has left behind, which it names.
        if let Some(keeper) = waits_on(&stderr) {
            wait_until_ended(keeper, LIMIT)?;
        }
    }
    // A profiler that ends in order leaves nothing for the kernel to clean up later.
    let limit = Duration::from_millis(if by_itself { 0 } else { 2000 });
    let from = Instant::now();
    for function in ["compiled", "kind_push", "kind_ret", "kind_nop5"] {
        while Code::of(pid, program, function)?.is_probed() {
            assert!(
                from.elapsed() <= limit,
                "{signal:?}: a probe stays on {function}"
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    drop(live.input);
    let calls = Truth::of(&live.program.end(LIMIT)?.success()?)?.all["calls"].as_u64();
    wait_until_gone(&held, Duration::from_secs(10))?;
    let recorded = recorded();
    assert!(recorded > LEAST, "the capture has lost calls");
    assert!(calls > Some(recorded), "{recorded} calls of {calls:?}");
    Ok(())
}

#[test]
fn probes_go_with_the_profiler() -> Outcome {
    let test = "e2e_trace_detach::probes_go_with_the_profiler";
    let Some((setting, program)) = prepared(test, "trace_caller.c", Build::Optimised)? else {
        return Ok(());
    };
    for returns in ["auto", "ret-insn"] {
        for signal in [Signal::INT, Signal::KILL] {
            ended_by(&setting, &program, signal, returns)
                .map_err(|error| format!("{signal:?}, --returns {returns}: {error}"))?;
        }
    }
    Ok(())
}

/// Another process that runs the same file has no probes, and pays nothing.
#[test]
fn others_pay_nothing() -> Outcome {
    let test = "e2e_trace_detach::others_pay_nothing";
    let Some((setting, program)) = prepared(test, "trace_caller.c", Build::Optimised)? else {
        return Ok(());
    };
    let call_ns = || -> Result<f64, Box<dyn Error>> {
        let mut best = f64::MAX;
        for _ in 0..5 {
            let mut command = std::process::Command::new(&program);
            command.args(["compiled", "calls", "2000000"]);
            let ended = setting
                .start("other", &mut command)?
                .end(LIMIT)?
                .success()?;
            let took = Truth::of(&ended)?.all["cpu_ns"].as_f64().ok_or("no time")?;
            best = best.min(took / 2e6);
        }
        Ok(best)
    };
    let alone = call_ns()?;
    // It waits, traced, while the others run.
    let live = Session::of(&setting, &program)
        .arguments(&["compiled", "calls", "1000"])
        .record(&["--trace", "compiled", "--no-samples", "--budget", "off"])
        .probed(&["compiled"])
        .start()?;
    let mut other = std::process::Command::new(&program);
    other.args(["compiled", "calls", "1000", "--wait"]);
    let other = setting.start("waiting", &mut other)?;
    std::thread::sleep(Duration::from_millis(300));
    assert!(!Code::of(other.pid(), &program, "compiled")?.is_probed());
    let beside = call_ns()?;
    // A probe would cost hundreds of nanoseconds.
    assert!(
        beside < alone * 1.5 + 2.0,
        "{beside} ns a call, {alone} ns without tracing"
    );
    drop(other);
    let run = live.finish(&setting)?;
    let entered = run
        .trace
        .calls
        .iter()
        .filter(|call| matches!(call.edge, Edge::Enter(_) | Edge::Hit(_)));
    assert_eq!(entered.count(), 1000);
    assert!(run.trace.calls.iter().all(|call| call.pid == run.pid));
    assert_eq!(
        run.trace.counts["compiled"].entries, 1000,
        "calls of others were counted"
    );
    Ok(())
}
