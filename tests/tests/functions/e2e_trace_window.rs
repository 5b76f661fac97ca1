//! A recording ends when it should, whatever calls are open in what it traces: its events do at once, the
//! capture can be read within a second, and what the kernel can't let go of yet goes without us.
//!
//! The program (`trace_long.c`) keeps the times between which it made each call of a short function, inside
//! a call that lasts. Calls are recorded from the first on, so those that are in the capture must be
//! these, one by one, up to the end; and the kernel's counts must be theirs. What a return probe of another
//! tracer on the same thread does is known: as long as it is hit, the kernel waits.

use std::collections::BTreeSet;
use std::error::Error;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use profiler_tests::Outcome;
use profiler_tests::kernel_objects::{
    Held, held_by, keepers_of, wait_until_ended, wait_until_gone,
};
use profiler_tests::process::{Ended, Running, send_signal, status};
use profiler_tests::setting::{LIMIT, Setting};
use profiler_tests::tracing::{Build, Code, Edge, How, Live, Session, Trace, Truth, prepared};
use rustix::process::Signal;
use rustix::time::{ClockId, clock_gettime};

/// How long events may come after the end that was asked for.
const CLOSES: Duration = Duration::from_millis(500);
/// When the capture is whole, counted from there. The recorder has ended by then, unless it has something
/// to say of what stays behind.
const READABLE: Duration = Duration::from_secs(1);
/// How long it waits before it says that.
const PATIENCE: Duration = Duration::from_millis(500);
/// A recording of two seconds that has not ended by then does not end.
const FLOODED: Duration = Duration::from_secs(20);
/// What the program returns, traced or not.
const STATUS: i32 = 7;
const FUNCTIONS: [&str; 2] = ["inner", "outer"];

fn now_ns() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// A recorder of the program, which is not started yet; the call is open until it is ended, or long enough.
fn session<'a>(setting: &'a Setting, program: &'a Path, returns: &str) -> Session<'a> {
    Session::of(setting, program)
        .arguments(&["60000"])
        .record(&["--trace", "trace_long:inner", "--trace", "trace_long:outer"])
        .record(&["--returns", returns, "--budget", "off", "--no-samples"])
        .probed(&FUNCTIONS)
}

/// Starts the program and a recorder of it, and lets the program run.
fn start(setting: &Setting, program: &Path) -> Result<Live, Box<dyn Error>> {
    let mut live = session(setting, program, "uretprobe").start()?;
    live.resume()?;
    Ok(live)
}

/// Waits for the recorder, which is to end within a second; what it said.
fn ends_soon(recorder: Running, asked: Instant) -> Result<Ended, Box<dyn Error>> {
    let ended = recorder.end(LIMIT)?;
    let took = asked.elapsed();
    let waits = ended.stderr.contains("waits for that");
    assert!(
        took <= READABLE + PATIENCE * u32::from(waits),
        "{took:?} until it had ended: {}",
        ended.stderr
    );
    Ok(ended)
}

/// Ends the call of a program, which is open; fails unless it ran as it does without a tracer.
fn ended(mut program: Running) -> Result<Truth, Box<dyn Error>> {
    assert!(!program.has_ended()?, "the call was not open any more");
    program.signal(Signal::USR1)?;
    unharmed(program.end(LIMIT)?)
}

/// Fails unless the program ran as it does without a tracer.
fn unharmed(program: Ended) -> Result<Truth, Box<dyn Error>> {
    let program = program.expect_status(STATUS)?;
    let truth = Truth::of(&program)?;
    assert_eq!(truth.all["good"], true);
    assert_eq!(truth.calls["outer"], 1);
    assert_eq!(truth.returns["outer"], 1);
    Ok(truth)
}

/// Fails unless a capture has all calls from the first to one about `asked_ns`, none after that, each
/// once, and counts that are theirs.
fn holds_the_window(trace: &Trace, truth: &Truth, asked_ns: u64) -> Outcome {
    assert_eq!(trace.damaged, 0);
    assert_eq!(trace.lost, [].into());
    let times = truth.all["inner"].as_array().ok_or("no times")?;
    let begins = |edge: &Edge| matches!(edge, Edge::Enter(_) | Edge::Hit(_));
    let entries: Vec<u64> = trace
        .of("inner")
        .filter(|call| begins(&call.edge))
        .map(|call| call.at_ns)
        .collect();
    for (number, (at, time)) in entries.iter().zip(times).enumerate() {
        let (before, after) = (time[0].as_u64(), time[1].as_u64());
        assert!(
            before <= Some(*at) && Some(*at) <= after,
            "call {number}: {at} is not in {time}"
        );
    }
    let last = *entries.last().ok_or("no calls")?;
    assert!(
        entries.len() < times.len(),
        "the call was not open any more"
    );
    let late = last as i64 - asked_ns as i64;
    assert!(
        late <= CLOSES.as_nanos() as i64,
        "a record {late} ns after the end"
    );
    // Half a millisecond between two calls, and what else runs here.
    assert!(
        late >= -200_000_000,
        "the last record came {late} ns after the end"
    );
    let counts = trace.counts["inner"];
    let returned = trace.exits("inner").get(&How::Return).copied().unwrap_or(0);
    assert_eq!(counts.entries, entries.len() as u64);
    assert_eq!(counts.exits, returned);
    assert!((counts.entries - 1..=counts.entries).contains(&returned));
    assert_eq!((counts.lost, counts.left_out), (0, 0));
    assert_eq!(trace.counts["outer"].entries, 1);
    assert_eq!(trace.counts["outer"].exits, 0);
    assert_eq!(trace.exits("outer").get(&How::Return), None);
    Ok(())
}

/// Whether a place in the program has a probe.
fn is_probed(pid: u32, program: &Path) -> Result<bool, Box<dyn Error>> {
    for function in FUNCTIONS {
        if Code::of(pid, program, function)?.is_probed() {
            return Ok(true);
        }
    }
    Ok(false)
}

fn held(recorder: &Running) -> Result<(Held, u32), Box<dyn Error>> {
    let held = held_by(recorder.pid())?;
    assert!(
        !held.programs.is_empty() && held.links.len() >= 2,
        "{held:?}"
    );
    let [keeper] = keepers_of(recorder.pid())[..] else {
        return Err("no process holds the links".into());
    };
    Ok((held, keeper))
}

/// Ctrl-C in the middle of a call: nothing waits for its end, and nothing is left before it.
#[test]
fn an_open_call_holds_nobody_up() -> Outcome {
    let test = "e2e_trace_window::an_open_call_holds_nobody_up";
    let Some((setting, program)) = prepared(test, "trace_long.c", Build::Optimised)? else {
        return Ok(());
    };
    let live = start(&setting, &program)?;
    std::thread::sleep(Duration::from_millis(1500));
    let (held, keeper) = held(&live.recorder)?;
    let (asked, asked_ns) = (Instant::now(), now_ns());
    live.recorder.signal(Signal::INT)?;
    ends_soon(live.recorder, asked)?.success()?;
    let pid = live.program.pid();
    assert!(!is_probed(pid, &program)?, "a probe stays");
    wait_until_ended(keeper, Duration::from_secs(2))?;
    wait_until_gone(&held, Duration::from_secs(2))?;
    let truth = ended(live.program)?;
    holds_the_window(&Trace::read(&setting.path("out.cap"))?, &truth, asked_ns)
}

/// The same by `-d`, with probes on return instructions too.
#[test]
fn a_duration_ends_when_it_is_over() -> Outcome {
    let test = "e2e_trace_window::a_duration_ends_when_it_is_over";
    let Some((setting, program)) = prepared(test, "trace_long.c", Build::Optimised)? else {
        return Ok(());
    };
    for returns in ["uretprobe", "ret-insn"] {
        let before = now_ns();
        let mut live = session(&setting, &program, returns)
            .record(&["-d", "2"])
            .start()?;
        live.resume()?;
        let recorder = live.recorder.end(LIMIT)?.success()?;
        let after = now_ns();
        let truth = ended(live.program)?;
        // It closes when it has lasted that long, and all is done within a second of that. The summary
        // says how long it was, from when all was attached.
        let lasted = window(&recorder.stderr)?;
        let wanted = Duration::from_secs(2);
        assert!((wanted..=wanted + CLOSES).contains(&lasted), "{lasted:?}");
        let trace = Trace::read(&setting.path("out.cap"))?;
        let at = trace.of("inner").map(|call| call.at_ns);
        let last = at.max().ok_or("no calls")?;
        assert!(last >= before + 2_000_000_000 - 200_000_000);
        assert!(
            last + READABLE.as_nanos() as u64 >= after,
            "{}",
            recorder.stderr
        );
        holds_the_window(&trace, &truth, last)?;
    }
    Ok(())
}

/// Another tracer whose return probe is hit on the same thread keeps the kernel from letting go: that is
/// said, nobody waits, and it goes when the other one does.
#[test]
fn what_stays_behind_is_said_and_goes() -> Outcome {
    let test = "e2e_trace_window::what_stays_behind_is_said_and_goes";
    let Some((setting, program)) = prepared(test, "trace_long.c", Build::Optimised)? else {
        return Ok(());
    };
    let session = session(&setting, &program, "uretprobe").arguments(&["prompt"]);
    let mut live = session.start()?;
    live.resume()?;
    let pid = live.program.pid().to_string();
    let capture = setting.path("second.cap");
    for signal in [Signal::INT, Signal::KILL] {
        // What is read there is this recorder's.
        let _ = std::fs::remove_file(&capture);
        let mut second = setting.profiler();
        second
            .args([
                "record",
                "--force",
                "-o",
                "second.cap",
                "--budget",
                "off",
                "-p",
                &pid,
            ])
            .args([
                "--trace",
                "trace_long:inner",
                "--returns",
                "uretprobe",
                "--no-samples",
            ]);
        let mut second = Running::start(&mut second, setting.folder(), "second")?;
        second.wait_until("its links", LIMIT, |second| {
            held_by(second.pid()).is_ok_and(|held| held.links.len() >= 2)
        })?;
        // What SIGKILL leaves is what was written by then, which may be a second behind.
        second.wait_until("calls in the capture", LIMIT, |_| {
            Trace::read(&capture).is_ok_and(|trace| trace.entries("inner") > 0)
        })?;
        let (held, keeper) = held(&second)?;
        let asked = Instant::now();
        second.signal(signal)?;
        let ended = ends_soon(second, asked)?;
        let trace = Trace::read(&capture)?;
        assert!(trace.entries("inner") > 0);
        if signal == Signal::INT {
            let ended = ended.success()?;
            let said = format!("process {keeper} waits for that");
            let notes = ended.stderr.lines().filter(|line| {
                line.starts_with("note: probes of 1 function go when calls return")
                    && line.contains(&said)
            });
            assert_eq!(notes.count(), 1, "{}", ended.stderr);
            assert_eq!(trace.counts["inner"].entries, trace.entries("inner"));
        }
        // It waits, and holds nothing any more.
        assert!(wait_until_ended(keeper, Duration::from_millis(300)).is_err());
        let waiting = held_by(keeper)?;
        assert_eq!(
            (
                waiting.links.len(),
                waiting.programs.len(),
                waiting.maps.len()
            ),
            (0, 0, 0)
        );
        let other = self::held(&live.recorder)?;
        assert!(is_probed(live.program.pid(), &program)?);
        if signal == Signal::KILL {
            // Ends the first recorder, and with it all that the kernel waits for.
            live.recorder.signal(Signal::INT)?;
            wait_until_ended(keeper, Duration::from_secs(2))?;
            wait_until_gone(&held, Duration::from_secs(2))?;
            wait_until_gone(&other.0, Duration::from_secs(2))?;
        }
    }
    live.recorder.end(LIMIT)?.success()?;
    assert!(!is_probed(live.program.pid(), &program)?, "a probe stays");
    let truth = ended(live.program)?;
    let trace = Trace::read(&setting.path("out.cap"))?;
    let last = trace.of("inner").map(|call| call.at_ns).max();
    holds_the_window(&trace, &truth, last.ok_or("no calls")?)
}

/// SIGKILL in the middle of a call: nothing of the recorder is left that waits, in the kernel or in the
/// process table, while the call goes on.
#[test]
fn a_killed_recorder_leaves_nothing() -> Outcome {
    let test = "e2e_trace_window::a_killed_recorder_leaves_nothing";
    let Some((setting, program)) = prepared(test, "trace_long.c", Build::Optimised)? else {
        return Ok(());
    };
    let live = start(&setting, &program)?;
    std::thread::sleep(Duration::from_millis(1500));
    let (held, keeper) = held(&live.recorder)?;
    let asked = Instant::now();
    live.recorder.signal(Signal::KILL)?;
    let killed = ends_soon(live.recorder, asked)?;
    assert_eq!(killed.status.code(), None);
    wait_until_ended(keeper, Duration::from_secs(2))?;
    wait_until_gone(&held, Duration::from_secs(2))?;
    assert!(!is_probed(live.program.pid(), &program)?, "a probe stays");
    let truth = ended(live.program)?;
    // What was in the capture by then is right.
    let trace = Trace::read(&setting.path("out.cap"))?;
    assert!(trace.entries("inner") > 0);
    assert!(trace.entries("inner") < truth.calls["inner"]);
    Ok(())
}

/// The process that holds the links is not ended by what ends the recorder, and the recorder says it if
/// it is gone.
#[test]
fn the_process_that_holds_links_goes_last() -> Outcome {
    let test = "e2e_trace_window::the_process_that_holds_links_goes_last";
    let Some((setting, program)) = prepared(test, "trace_long.c", Build::Optimised)? else {
        return Ok(());
    };
    let live = start(&setting, &program)?;
    let (held, keeper) = held(&live.recorder)?;
    for signal in [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT] {
        send_signal(keeper, signal)?;
    }
    let status = std::fs::read_to_string(format!("/proc/{keeper}/status"))?;
    for line in [
        "CapPrm:\t0000000000000000",
        "CapEff:\t0000000000000000",
        "NoNewPrivs:\t1",
    ] {
        assert!(status.contains(line), "{status}");
    }
    std::thread::sleep(Duration::from_millis(300));
    assert!(is_probed(live.program.pid(), &program)?);
    send_signal(keeper, Signal::KILL)?;
    let asked = Instant::now();
    live.recorder.signal(Signal::INT)?;
    let recorder = ends_soon(live.recorder, asked)?.success()?;
    // The kernel closes one link after the other then, and may wait for the call.
    let said = [
        "is gone".to_owned(),
        format!("process {keeper} waits for that"),
    ];
    assert!(
        said.iter().any(|said| recorder.stderr.contains(said)),
        "{}",
        recorder.stderr
    );
    ended(live.program)?;
    wait_until_ended(keeper, Duration::from_secs(2))?;
    wait_until_gone(&held, Duration::from_secs(2))?;
    Ok(())
}

/// `-d` with a command: the recording is over then, the command runs on, and its status is told.
#[test]
fn a_command_runs_on_after_the_duration() -> Outcome {
    let test = "e2e_trace_window::a_command_runs_on_after_the_duration";
    let Some((setting, program)) = prepared(test, "trace_long.c", Build::Optimised)? else {
        return Ok(());
    };
    let began = Instant::now();
    let mut command = record_command(&setting, &program, &["-d", "1"], "4000");
    let recorder = Running::start(&mut command, setting.folder(), "record")?;
    let ended = recorder.end(LIMIT)?;
    assert!(
        began.elapsed() > Duration::from_secs(4),
        "it did not wait for the command"
    );
    let truth = unharmed(ended)?;
    let trace = Trace::read(&setting.path("out.cap"))?;
    let last = trace
        .of("inner")
        .map(|call| call.at_ns)
        .max()
        .ok_or("no calls")?;
    holds_the_window(&trace, &truth, last)?;
    let first = trace
        .of("inner")
        .map(|call| call.at_ns)
        .min()
        .ok_or("no calls")?;
    let lasted = Duration::from_nanos(last - first);
    assert!(lasted <= Duration::from_secs(1) + CLOSES, "{lasted:?}");
    Ok(())
}

/// A command that does not care: the second Ctrl-C ends the recording, whose capture can be read while
/// the command runs on.
#[test]
fn two_interrupts_end_the_recording() -> Outcome {
    let test = "e2e_trace_window::two_interrupts_end_the_recording";
    let Some((setting, program)) = prepared(test, "trace_long.c", Build::Optimised)? else {
        return Ok(());
    };
    let mut command = record_command(&setting, &program, &[], "6000");
    command.arg("stubborn");
    let mut recorder = Running::start(&mut command, setting.folder(), "record")?;
    recorder.wait_until("its links", LIMIT, |recorder| {
        held_by(recorder.pid()).is_ok_and(|held| held.links.len() >= 2)
    })?;
    std::thread::sleep(Duration::from_millis(1500));
    recorder.signal(Signal::INT)?;
    std::thread::sleep(Duration::from_millis(300));
    let (asked, asked_ns) = (Instant::now(), now_ns());
    recorder.signal(Signal::INT)?;
    let path = setting.path("out.cap");
    // Counts of the last second come when all has been taken out.
    let whole = |trace: &Trace| {
        let counts = trace.counts.get("inner");
        counts.is_some_and(|counts| counts.entries == trace.entries("inner"))
    };
    while !Trace::read(&path).is_ok_and(|trace| whole(&trace)) {
        assert!(asked.elapsed() <= READABLE, "the capture is not whole");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(!recorder.has_ended()?);
    let truth = unharmed(recorder.end(LIMIT)?)?;
    holds_the_window(&Trace::read(&path)?, &truth, asked_ns)
}

/// How long a recording says that its window was.
fn window(summary: &str) -> Result<Duration, Box<dyn Error>> {
    // Of none, if nothing happened in it.
    let said =
        (summary.split_once("1 process in ")).or_else(|| summary.split_once("0 processes in "));
    let (_, said) = said.ok_or_else(|| format!("no summary: {summary}"))?;
    let (said, _) = said.split_once(" s").ok_or("no time")?;
    Ok(Duration::from_secs_f64(said.parse()?))
}

/// A large program begins to run while it is traced: neither the window nor the end waits until its code has
/// been read. What was missed is told.
#[test]
fn a_large_file_that_is_mapped_late_holds_nobody_up() -> Outcome {
    let test = "e2e_trace_window::a_large_file_that_is_mapped_late_holds_nobody_up";
    let Some(setting) = Setting::new(test)? else {
        return Ok(());
    };
    let large = setting.profiler_path().display();
    let script = format!("read go; exec {large} hq --listen 127.0.0.1:0 -o hq.cap");
    let mut shell = Command::new("sh");
    shell.args(["-c", &script]).stdin(Stdio::piped());
    let mut target = setting.start("target", &mut shell)?;
    let pid = target.pid().to_string();
    let patterns = ["--trace", "profiler:*", "--yes", "--no-samples"];
    let arguments = [&["-p", &pid, "-d", "1"], &patterns[..]].concat();
    let recorder = setting.start_recording(&arguments)?;
    let began = Instant::now();
    // It reads orders from there, so it stays open.
    let mut orders = target.stdin().ok_or("no pipe to the target")?;
    orders.write_all(b"go\n")?;
    let ended = recorder.end(LIMIT)?.success()?;
    let wanted = Duration::from_secs(1);
    let lasted = window(&ended.stderr)?;
    assert!(lasted <= wanted + CLOSES, "{lasted:?}: {}", ended.stderr);
    let took = began.elapsed();
    assert!(took <= wanted + READABLE, "{took:?}: {}", ended.stderr);
    assert!(!target.has_ended()?);
    target.signal(Signal::KILL)?;
    target.end(LIMIT)?;
    Ok(())
}

/// All functions of a large program: reading its code and attaching to it take seconds. Ctrl-C meanwhile ends
/// it: nothing was recorded, the command never ran, and nothing is left; nor is after SIGKILL.
#[test]
fn a_start_is_given_up_at_once() -> Outcome {
    let Some(setting) = Setting::new("e2e_trace_window::a_start_is_given_up_at_once")? else {
        return Ok(());
    };
    for (links, signal) in [
        (0, Signal::INT),
        (1, Signal::INT),
        (0, Signal::KILL),
        (1, Signal::KILL),
    ] {
        let mut command = setting.profiler();
        command.args(["record", "--force", "--trace", "*", "--yes"]);
        command.args(["-o", "fresh.cap", "--"]);
        command.arg(setting.profiler_path()).arg("--version");
        let mut recorder = Running::start(&mut command, setting.folder(), "record")?;
        match links {
            0 => std::thread::sleep(Duration::from_millis(300)),
            _ => recorder.wait_until("a link", LIMIT, |recorder| {
                held_by(recorder.pid()).is_ok_and(|held| held.links.len() >= links)
            })?,
        }
        let held = held_by(recorder.pid())?;
        let asked = Instant::now();
        recorder.signal(signal)?;
        let ended = ends_soon(recorder, asked)?;
        assert_eq!(ended.stdout, "", "the command ran");
        if signal == Signal::INT {
            let ended = ended.expect_status(130)?;
            let said = "interrupted before anything was recorded";
            assert!(ended.stderr.contains(said), "{}", ended.stderr);
        }
        for entry in std::fs::read_dir(setting.folder())? {
            let name = entry?.file_name();
            assert!(
                !name.to_string_lossy().contains("fresh"),
                "{name:?} is left"
            );
        }
        wait_until_gone(&held, Duration::from_secs(10))?;
    }
    Ok(())
}

/// The recorder has the same C library as all, with the same probes. What it calls itself, to empty the buffers, to find
/// names and to write, is not recorded: else each record would make more of them, and there would be no end.
#[test]
fn what_a_recorder_calls_itself_is_not_recorded() -> Outcome {
    let test = "e2e_trace_window::what_a_recorder_calls_itself_is_not_recorded";
    let Some(setting) = Setting::new(test)? else {
        return Ok(());
    };
    // Enough that there is something to do.
    let calls =
        "while (1) { my @all = map { \"x$_\" } 1..100; select(undef, undef, undef, 0.001) }";
    let program = setting.start("perl", Command::new("perl").args(["-e", calls]))?;
    let mut command = setting.profiler();
    command.args(["record", "-a", "-d", "2", "-F", "99", "--args", "--yes"]);
    command.args(["--trace", "libc:malloc", "--trace", "libc:free"]);
    command.args(["--force", "-o", "out.cap"]);
    let mut recorder = Running::start(&mut command, setting.folder(), "record")?;
    let (pid, from) = (recorder.pid(), Instant::now());
    let mut helpers = BTreeSet::new();
    while !recorder.has_ended()? && from.elapsed() < LIMIT {
        for thread in std::fs::read_dir(format!("/proc/{pid}/task"))?.flatten() {
            let children = std::fs::read_to_string(thread.path().join("children"));
            let children = children.unwrap_or_default();
            helpers.extend(children.split_whitespace().flat_map(str::parse::<u32>));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    recorder.end(CLOSES)?.success()?;
    let trace = Trace::read(&setting.path("out.cap"))?;
    let of = |pid: u32| trace.calls.iter().filter(|call| call.pid == pid).count();
    assert!(of(program.pid()) > 100, "{} calls", of(program.pid()));
    assert_eq!(of(pid), 0, "calls of the recorder");
    assert!(!helpers.is_empty());
    for pid in helpers {
        // A few, before it is known that it is there.
        assert!(of(pid) < 100, "{} calls of helper {pid}", of(pid));
    }
    Ok(())
}

/// More calls than can be taken in, made by all processors without a pause: the recording ends when its time is over, and
/// what it holds of them is bounded. It looked at nothing else while more came in than went out, and never ended.
#[test]
fn calls_without_end_do_not_hold_up_the_end() -> Outcome {
    let test = "e2e_trace_window::calls_without_end_do_not_hold_up_the_end";
    let Some(setting) = Setting::new(test)? else {
        return Ok(());
    };
    let flood = "while (1) { my @all = map { \"x$_\" } 1..100 }";
    let begin = || setting.start("perl", Command::new("perl").args(["-e", flood]));
    let floods = [begin()?, begin()?];
    let mut command = setting.profiler();
    command.args(["record", "-a", "-d", "2", "-F", "99", "--args", "--yes"]);
    command.args(["--trace", "libc:malloc", "--trace", "libc:free"]);
    command.args(["--budget", "off", "--force", "-o", "out.cap"]);
    let mut recorder = Running::start(&mut command, setting.folder(), "record")?;
    let from = Instant::now();
    let mut peak_kib = 0;
    while !recorder.has_ended()? && from.elapsed() < FLOODED {
        // Of one that has just ended there is none.
        peak_kib = peak_kib.max(status(recorder.pid(), "VmHWM").unwrap_or(0));
        std::thread::sleep(Duration::from_millis(10));
    }
    let ended = recorder.end(Duration::ZERO)?.success()?;
    let trace = Trace::read(&setting.path("out.cap"))?;
    for flood in floods {
        let calls = trace.calls.iter();
        let calls = calls.filter(|call| call.pid == flood.pid()).count();
        assert!(calls > 10_000, "{calls} calls: {}", ended.stderr);
    }
    // 16 MiB of records, and what they become.
    assert!((1..400 << 10).contains(&peak_kib), "{peak_kib} KiB");
    Ok(())
}

fn record_command(setting: &Setting, program: &Path, more: &[&str], lasts_ms: &str) -> Command {
    let mut command = setting.profiler();
    command
        .args([
            "record",
            "--force",
            "-o",
            "out.cap",
            "--budget",
            "off",
            "--no-samples",
        ])
        .args(["--trace", "trace_long:inner", "--trace", "trace_long:outer"])
        .args(["--returns", "uretprobe"])
        .args(more)
        .arg("--")
        .arg(program)
        .arg(lasts_ms);
    command
}
