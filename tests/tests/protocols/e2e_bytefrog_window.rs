//! A run ends when HQ stops it, and is suspended when HQ suspends it, whatever calls are open in the target.

use std::io::Write;
use std::process::Command;
use std::time::{Duration, Instant};

use profiler_tests::Outcome;
use profiler_tests::kernel_objects::{held_by, keepers_of, wait_until_ended, wait_until_gone};
use profiler_tests::setting::LIMIT;
use profiler_tests::tracing::{Build, Code, Truth, met, prepared};
use rustix::process::Signal;
use rustix::time::{ClockId, clock_gettime};

use crate::e2e_bytefrog_shared::*;

/// How long the agent may take to end when it is told to.
const SOON: Duration = Duration::from_secs(1);

fn now_ns() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// A call under a return probe, in which another one is hit all the time.
#[test]
fn a_stop_does_not_wait_for_an_open_call() -> Outcome {
    let test = "e2e_bytefrog_window::a_stop_does_not_wait_for_an_open_call";
    let Some((setting, path)) = prepared(test, "trace_long.c", Build::Optimised)? else {
        return Ok(());
    };
    let mut command = Command::new(&path);
    command.args(["60000", "--wait"]);
    let mut program = setting.start("program", &mut command)?;
    let mut input = program.stdin().ok_or("no pipe to the program")?;
    program.wait_until("its start", LIMIT, |program| met(program, "start", 1))?;
    let mut receiver = Receiver::start(&setting, &[])?;
    let pid = program.pid().to_string();
    let mut running = stream(
        &setting,
        &receiver.address,
        &[
            "--trace",
            "trace_long:inner",
            "--trace",
            "trace_long:outer",
            "--returns",
            "uretprobe",
            "--budget",
            "off",
            "-p",
            &pid,
        ],
    )?;
    running.wait_until("its links", LIMIT, |running| {
        held_by(running.pid()).is_ok_and(|held| held.links.len() >= 2)
    })?;
    std::thread::sleep(Duration::from_millis(300));
    input.write_all(b"go\n")?;
    std::thread::sleep(Duration::from_millis(1000));
    let held = held_by(running.pid())?;
    let [keeper] = keepers_of(running.pid())[..] else {
        return Err("no process holds the links".into());
    };
    // Nothing is recorded then, and tracing goes on after.
    receiver.order("suspend")?;
    receiver.wait_for_mode("suspended")?;
    let suspended_ns = now_ns();
    std::thread::sleep(Duration::from_millis(500));
    let resumed_ns = now_ns();
    receiver.order("unsuspend")?;
    receiver.wait_for_mode("tracing")?;
    std::thread::sleep(Duration::from_millis(500));

    let (asked, asked_ns) = (Instant::now(), now_ns());
    receiver.order("stop")?;
    let ended = running.end(LIMIT)?;
    let took = asked.elapsed();
    let ended = ended.success()?;
    assert!(
        took <= SOON,
        "{took:?} until it had ended: {}",
        ended.stderr
    );
    for function in ["inner", "outer"] {
        assert!(!Code::of(program.pid(), &path, function)?.is_probed());
    }
    wait_until_ended(keeper, Duration::from_secs(2))?;
    wait_until_gone(&held, Duration::from_secs(2))?;
    let received = receiver.end(&setting)?;
    assert!(!program.has_ended()?, "the call was not open any more");
    program.signal(Signal::USR1)?;
    let truth = Truth::of(&program.end(LIMIT)?.expect_status(7)?)?;
    assert_eq!(truth.all["good"], true);

    let times: Vec<u64> = received.trace.of("inner").map(|call| call.at_ns).collect();
    let last = *times.iter().max().ok_or("no calls")?;
    assert!(
        last <= asked_ns + 500_000_000,
        "{last} is long after {asked_ns}"
    );
    assert!(
        times.iter().any(|&at| at > resumed_ns),
        "tracing did not go on"
    );
    let meanwhile = times
        .iter()
        .filter(|&&at| at > suspended_ns && at < resumed_ns);
    assert_eq!(meanwhile.count(), 0);
    Ok(())
}
