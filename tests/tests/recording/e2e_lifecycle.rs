//! How a recording begins and ends: exit statuses, signals, a killed profiler, a dying target, and
//! nothing left behind in the kernel.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use profiler_tests::Outcome;
use profiler_tests::kernel_objects::{held_by, wait_until_gone};
use profiler_tests::process::{Running, burnt};
use profiler_tests::recording::{Recording, monotonic_ns, weight};
use profiler_tests::setting::{LIMIT, Setting};
use profiler_tests::statistics::at_least;
use rustix::process::Signal;

/// The status of the recorded command is the profiler's own, 128 + signal if it was killed.
#[test]
fn status_of_the_command() -> Outcome {
    let Some(setting) = Setting::new("e2e_lifecycle::status_of_the_command")? else {
        return Ok(());
    };
    for (script, status) in [
        ("exit 0", 0),
        ("exit 7", 7),
        ("exit 2", 2),
        ("kill -TERM $$", 128 + 15),
        ("kill -KILL $$", 128 + 9),
        ("kill -SEGV $$", 128 + 11),
    ] {
        let capture = setting.path(&format!("status{status}.cap"));
        let path = capture.to_string_lossy();
        setting
            .run(&["record", "-o", &path, "--", "sh", "-c", script])?
            .expect_status(status)?;
        Recording::read(&capture)?;
    }
    Ok(())
}

/// A command's own output is untouched: what it writes to standard output, and nothing else.
#[test]
fn output_of_the_command() -> Outcome {
    let Some(setting) = Setting::new("e2e_lifecycle::output_of_the_command")? else {
        return Ok(());
    };
    let (ended, _) = setting.record(&["--", "echo", "one two"])?;
    assert_eq!(ended.stdout, "one two\n");
    Ok(())
}

/// Arguments may hold any bytes, and whoever read our talk may have gone: neither is a failure.
#[test]
fn odd_arguments_and_a_closed_standard_error() -> Outcome {
    let name = "e2e_lifecycle::odd_arguments_and_a_closed_standard_error";
    let Some(setting) = Setting::new(name)? else {
        return Ok(());
    };
    let (reader, writer) = std::io::pipe()?;
    drop(reader);
    let odd = std::ffi::OsStr::from_bytes(b"\xff");
    let status = setting
        .profiler()
        .args(["record", "-o", "odd.cap", "--", "sh", "-c", "exit 3"])
        .arg(odd)
        .stderr(writer)
        .status()?;
    assert_eq!(status.code(), Some(3));
    let ended = setting.run(&["info", "odd.cap"])?.expect_status(0)?;
    assert!(ended.stdout.contains("exit 3 \u{fffd}"), "{}", ended.stdout);
    // Nor do they reach the terminal as they are.
    let ended = setting
        .run(&["info", "red\u{1b}[31m.cap"])?
        .expect_status(1)?;
    assert!(!ended.stderr.contains('\u{1b}'), "{}", ended.stderr);
    Ok(())
}

/// Ctrl-C goes to both; the command ends in its own way, and the capture is complete.
#[test]
fn interrupt_reaches_both() -> Outcome {
    let Some(setting) = Setting::new("e2e_lifecycle::interrupt_reaches_both")? else {
        return Ok(());
    };
    let chain = setting.workload("chain.c")?;
    let note = setting.path("caught");
    let script = format!(
        "trap 'kill $child; wait $child; times > {}; exit 3' INT; {} 60000 & child=$!; wait",
        note.display(),
        chain.display()
    );
    let capture = setting.path("out.cap");
    let mut command = setting.profiler();
    command
        .arg("record")
        .args(["-F", "999", "-o"])
        .arg(&capture)
        .args(["--", "sh", "-c", &script]);
    // A process group of its own, as a shell gives to each job: Ctrl-C signals all of the group.
    let mut running = Running::start(command.process_group(0), setting.folder(), "record")?;
    running.wait_until("creating the capture", LIMIT, |_| capture.exists())?;
    // Enough of it, however busy the machine is.
    wait_for_samples(&capture, |recording| {
        recording.of_process("chain").len() > 300
    })?;
    let group = rustix::process::Pid::from_raw(running.pid().cast_signed()).ok_or("no pid")?;
    rustix::process::kill_process_group(group, Signal::INT)?;
    running.end(LIMIT)?.expect_status(3)?;

    let recording = Recording::read(&capture)?;
    let samples = recording.of_process("chain");
    assert!(samples.len() > 300, "{} samples at 999 Hz", samples.len());
    // When it had a processor last is the machine's business; what it used until its end must be there.
    let used_ns = of_children_ns(&fs::read_to_string(note)?).ok_or("no times")?;
    let found_ns = weight(&samples) + recording.missing_ns();
    assert!(
        found_ns + 50_000_000 > used_ns,
        "{found_ns} of {used_ns} ns: the end of the capture is missing"
    );
    setting.run(&["info", "out.cap"])?.success()?;
    Ok(())
}

/// CPU time of a shell's children, as its `times` says in its second line: `0m1.230000s 0m0.010000s`.
fn of_children_ns(times: &str) -> Option<u64> {
    let of = |time: &str| {
        let (minutes, seconds) = time.strip_suffix('s')?.split_once('m')?;
        Some(minutes.parse::<f64>().ok()? * 60.0 + seconds.parse::<f64>().ok()?)
    };
    let (user, system) = times.lines().nth(1)?.split_once(' ')?;
    Some(((of(user)? + of(system)?) * 1e9) as u64)
}

/// Waits until a capture that is being written has what is wanted.
fn wait_for_samples(capture: &Path, has: impl Fn(&Recording) -> bool) -> Outcome {
    let deadline = Instant::now() + LIMIT;
    while !Recording::read(capture).is_ok_and(|recording| has(&recording)) {
        if Instant::now() > deadline {
            return Err(format!("{} does not get its samples", capture.display()).into());
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

/// Who stops and continues it (a terminal, a freezer, a debugger) makes the verifier give up what it has
/// before it: that is no failure.
#[test]
fn stopped_and_continued_while_it_begins() -> Outcome {
    let Some(setting) = Setting::new("e2e_lifecycle::stopped_and_continued_while_it_begins")?
    else {
        return Ok(());
    };
    for kind in ["--wall", "--off-cpu"] {
        let mut command = setting.profiler();
        command.args(["record", "--force", kind, "-o"]);
        command.arg(setting.path("out.cap")).args(["--", "true"]);
        let mut running = Running::start(&mut command, setting.folder(), "record")?;
        let began = Instant::now();
        let mut calm = Duration::from_millis(100);
        while !running.has_ended()? && began.elapsed() < LIMIT {
            for _ in 0..10 {
                running.signal(Signal::STOP)?;
                std::thread::sleep(Duration::from_millis(1));
                running.signal(Signal::CONT)?;
                std::thread::sleep(Duration::from_millis(3));
            }
            std::thread::sleep(calm);
            calm = (2 * calm).min(Duration::from_secs(2));
        }
        running.end(LIMIT)?.expect_status(0)?;
    }
    Ok(())
}

/// What the loader finds out of the kernel, once in a process, it finds out wrongly when it is disturbed at that: the program
/// is started anew, before anything else. Who is started by it does not see that.
#[test]
fn disturbed_at_its_first_loads() -> Outcome {
    let Some(setting) = Setting::new("e2e_lifecycle::disturbed_at_its_first_loads")? else {
        return Ok(());
    };
    let mut command = Command::new("strace");
    // What the kernel says when a signal has come.
    command.args(["-o", "bpf.txt", "-e", "trace=bpf,execve"]);
    command.args(["-e", "inject=bpf:error=EAGAIN:when=1..40"]);
    command.arg(setting.profiler_path());
    command.args(["record", "-o", "out.cap", "--", "sh", "-c", "env; exit 7"]);
    let ended = setting.start("strace", &mut command)?.end(LIMIT)?;
    let ended = ended.expect_status(7)?;
    assert!(ended.stdout.contains("PATH="), "{}", ended.stdout);
    assert!(!ended.stdout.contains("ANEW"), "{}", ended.stdout);
    let calls = fs::read_to_string(setting.path("bpf.txt"))?;
    let anew = calls.matches("execve(\"/proc/self/exe\", [").count();
    assert!(anew > 0, "it has not come to what it was to do");
    assert_eq!(setting.recording()?.damaged, 0);
    Ok(())
}

/// A signal to end that comes while all is made ready: the command is not started, nothing is written, and the status is that
/// of the signal.
#[test]
fn told_to_end_before_the_command_is_started() -> Outcome {
    let test = "e2e_lifecycle::told_to_end_before_the_command_is_started";
    let Some(setting) = Setting::new(test)? else {
        return Ok(());
    };
    for (signal, number) in [(Signal::INT, 2), (Signal::TERM, 15)] {
        for kind in [&["--off-cpu"][..], &["--trace", "*:main"]] {
            // As long as that takes on a slow machine: seconds. The tracer is its child here.
            let mut command = Command::new("strace");
            command.args(["-D", "-o", "/dev/null", "-e", "trace=bpf"]);
            command.args(["-e", "inject=bpf:delay_enter=30000"]);
            command.arg(setting.profiler_path());
            command
                .args(["record", "--force", "-o", "early.cap"])
                .args(kind);
            command.args(["--", "touch", "ran"]);
            let mut running = setting.start("record", &mut command)?;
            let status = format!("/proc/{}/status", running.pid());
            running.wait_until("listening to signals", LIMIT, |_| {
                let status = fs::read_to_string(&status).unwrap_or_default();
                let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
                let caught = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
                status.starts_with("Name:\tprofiler")
                    && caught.is_some_and(|mask| mask >> 14 & 1 == 1)
            })?;
            running.signal(signal)?;
            let ended = running.end(LIMIT)?.expect_status(128 + number)?;
            let said = "profiler: interrupted before anything was recorded\n";
            assert_eq!(ended.stderr, said, "{kind:?}");
            for name in ["ran", "early.cap"] {
                assert!(!setting.path(name).exists(), "{kind:?}: {name}");
            }
        }
    }
    Ok(())
}

/// `kill -9` loses at most the last second.
#[test]
fn killed_profiler_leaves_a_readable_capture() -> Outcome {
    let Some(setting) = Setting::new("e2e_lifecycle::killed_profiler_leaves_a_readable_capture")?
    else {
        return Ok(());
    };
    let chain = setting.start(
        "chain",
        Command::new(setting.workload("chain.c")?).arg("60000"),
    )?;
    let begin_ns = monotonic_ns();
    let recorder = setting.start_recording(&["-F", "999", "-p", &chain.pid().to_string()])?;
    std::thread::sleep(Duration::from_secs(4));
    let held = held_by(recorder.pid())?;
    recorder.signal(Signal::KILL)?;
    let killed_ns = monotonic_ns();
    let ended = recorder.end(LIMIT)?;
    assert_eq!(ended.status.code(), None);

    let recording = setting.recording()?;
    let last = recording.samples.last().ok_or("no samples")?.at_ns;
    assert!(last > begin_ns);
    let missing_ns = killed_ns.saturating_sub(last);
    assert!(
        missing_ns <= 1_050_000_000,
        "the last {missing_ns} ns are missing"
    );
    let named = recording
        .samples
        .iter()
        .filter(|s| s.leaf().starts_with("leaf_"))
        .count();
    at_least("samples with names", named, recording.samples.len(), 0.9)?;
    for command in ["info", "report"] {
        let ended = setting.run(&[command, "out.cap"])?.success()?;
        assert!(!ended.stdout.is_empty());
    }
    // The kernel takes back what a dead process held.
    assert!(!held.programs.is_empty());
    wait_until_gone(&held, Duration::from_secs(10))?;
    Ok(())
}

/// A target that is killed ends the recording, and that is no failure.
#[test]
fn target_that_dies() -> Outcome {
    let Some(setting) = Setting::new("e2e_lifecycle::target_that_dies")? else {
        return Ok(());
    };
    let chain = setting.start(
        "chain",
        Command::new(setting.workload("chain.c")?).arg("60000"),
    )?;
    let recorder = setting.start_recording(&["-p", &chain.pid().to_string()])?;
    // Beside others it may not have had a processor yet.
    burnt(chain.pid(), Duration::from_millis(100))?;
    chain.signal(Signal::KILL)?;
    let from = Instant::now();
    chain.end(LIMIT)?;
    recorder.end(LIMIT)?.success()?;
    assert!(
        from.elapsed() < Duration::from_secs(3),
        "the end was not noticed at once"
    );
    assert!(!setting.recording()?.samples.is_empty());
    Ok(())
}

/// `-d` ends a system-wide recording after that time; nothing of it stays in the kernel.
#[test]
fn nothing_is_left_in_the_kernel() -> Outcome {
    let Some(setting) = Setting::new("e2e_lifecycle::nothing_is_left_in_the_kernel")? else {
        return Ok(());
    };
    let recorder = setting.start_recording(&["-a", "-F", "999", "-d", "3"])?;
    let pid = recorder.pid();
    let held = held_by(pid)?;
    assert!(
        !held.programs.is_empty() && !held.maps.is_empty(),
        "nothing loaded: {held:?}"
    );
    let from = Instant::now();
    recorder.end(LIMIT)?.success()?;
    assert!(from.elapsed() < Duration::from_secs(8));
    wait_until_gone(&held, Duration::from_secs(10))?;
    // Some process always runs somewhere, if only this one's.
    assert!(!setting.recording()?.samples.is_empty());
    Ok(())
}

/// `--delay` begins later than the command.
#[test]
fn delay_skips_the_beginning() -> Outcome {
    let Some(setting) = Setting::new("e2e_lifecycle::delay_skips_the_beginning")? else {
        return Ok(());
    };
    let program = setting.workload("dlopen_late.c")?;
    let plugin = setting.workload("plugin.c")?;
    let program = program.to_string_lossy();
    let plugin = plugin.to_string_lossy();
    let from_ns = monotonic_ns();
    let (_, recording) =
        setting.record(&["-F", "999", "--delay", "1", "--", &program, "2000", &plugin])?;
    let count = |name: &str| {
        recording
            .samples
            .iter()
            .filter(|s| s.leaf() == name)
            .count()
    };
    // Two seconds of CPU time of each half, and at most one of the first was skipped: a busy machine lets it have less in that
    // time.
    assert!(
        count("plugin_work") > 1500,
        "{} samples of the second half",
        count("plugin_work")
    );
    let first = count("before_dlopen");
    assert!(first > 900, "{first} samples of the first half");
    let earliest = recording.samples.iter().map(|sample| sample.at_ns).min();
    assert!(earliest >= Some(from_ns + 1_000_000_000), "{earliest:?}");
    Ok(())
}

/// What `--delay` skips is no part of the time that a capture covers, nor are calls of that time counted in it.
#[test]
fn delay_is_no_part_of_the_time() -> Outcome {
    let Some(setting) = Setting::new("e2e_lifecycle::delay_is_no_part_of_the_time")? else {
        return Ok(());
    };
    let program = setting.workload("dlopen_late.c")?.display().to_string();
    let plugin = setting.workload("plugin.c")?.display().to_string();
    let from = Instant::now();
    let record = ["--trace", "dlopen_late:before_dlopen", "--delay", "1"];
    let command = ["--", &program, "2500", &plugin, "1"];
    setting.record(&[&record[..], &command[..]].concat())?;
    let took_ns = from.elapsed().as_nanos() as u64;
    let report = setting.run(&["report", "--format", "json", "out.cap"])?;
    let report = report.success()?.json()?;
    let info = setting.run(&["info", "--format", "json", "out.cap"])?;
    let info = info.success()?.json()?;
    let number = |value: &serde_json::Value| value.as_u64().unwrap_or_default();
    let span_ns = number(&report["header"]["to_ns"]);
    assert!(
        span_ns > 0 && span_ns + 1_000_000_000 <= took_ns,
        "{span_ns} of {took_ns} ns"
    );
    assert_eq!(
        span_ns,
        number(&info["last_ns"]) - number(&info["session"]["started_ns"])
    );
    let calls = &report["calls"]["functions"][0];
    let (seen, counted) = (&calls["calls_seen"], &calls["calls_counted"]);
    assert!(
        (1..=number(seen)).contains(&number(counted)),
        "{counted} calls are counted, {seen} recorded"
    );
    Ok(())
}

/// A marker set from outside while a recording runs.
#[test]
fn markers() -> Outcome {
    let Some(setting) = Setting::new("e2e_lifecycle::markers")? else {
        return Ok(());
    };
    // It ends when it has been marked, however long that takes.
    let recorder = setting.start_recording(&["-a"])?;
    setting.run(&["mark", "half way"])?.success()?;
    recorder.signal(Signal::INT)?;
    recorder.end(LIMIT)?.success()?;
    assert_eq!(setting.recording()?.marks, ["half way"]);
    Ok(())
}

/// A reader that closes the pipe early is no error.
#[test]
fn closed_pipe() -> Outcome {
    let Some(setting) = Setting::new("e2e_lifecycle::closed_pipe")? else {
        return Ok(());
    };
    setting.record(&["-a", "-F", "999", "-d", "1"])?;
    let profiler = setting.profiler_path().display().to_string();
    for command in [
        "report out.cap",
        "export out.cap --format folded -o -",
        "info out.cap",
    ] {
        let script =
            format!("{profiler} {command} 2>err | head -c 1 >/dev/null; echo ${{PIPESTATUS[0]}}");
        let mut shell = Command::new("bash");
        shell.args(["-c", &script]).current_dir(setting.folder());
        let ended = profiler_tests::process::run(&mut shell, setting.folder(), "shell", LIMIT)?;
        let said = fs::read_to_string(setting.path("err"))?;
        assert_eq!(ended.stdout.trim(), "0", "{command}: {said}");
        assert!(
            !said.contains("panicked") && !said.contains("roken pipe"),
            "{command}: {said}"
        );
    }
    Ok(())
}

/// SIGUSR2 writes a ring out, beside what earlier recordings wrote, and never ends a recording.
#[test]
fn a_ring_is_written_out_while_it_runs() -> Outcome {
    let Some(setting) = Setting::new("e2e_lifecycle::a_ring_is_written_out_while_it_runs")? else {
        return Ok(());
    };
    let earlier = setting.path("out-dump1.cap");
    fs::write(&earlier, "earlier")?;
    let mut command = setting.profiler();
    command.args(["record", "-F", "999", "--ring", "10m", "-o", "out.cap"]);
    let mut running = Running::start(&mut command, setting.folder(), "record")?;
    let part = setting.path("out.cap.ring/part-000001.cap");
    running.wait_until("creating the ring", LIMIT, |_| part.exists())?;
    wait_for_samples(&part, |recording| !recording.samples.is_empty())?;
    running.signal(Signal::USR2)?;
    let dump = setting.path("out-dump2.cap");
    running.wait_until("writing the ring out", LIMIT, |_| {
        Recording::read(&dump).is_ok_and(|dump| !dump.samples.is_empty())
    })?;
    assert_eq!(fs::read(&earlier)?, b"earlier");
    running.signal(Signal::INT)?;
    running.end(LIMIT)?.expect_status(0)?;
    assert!(Recording::read(&setting.path("out.cap"))?.samples.len() > 1);

    let running = setting.start_recording(&["-F", "999"])?;
    running.signal(Signal::USR2)?;
    std::thread::sleep(Duration::from_millis(500));
    running.signal(Signal::INT)?;
    let ended = running.end(LIMIT)?.expect_status(0)?;
    assert!(ended.stderr.contains("--ring"), "{}", ended.stderr);
    Ok(())
}

/// Under nohup, a hang-up ends neither the recording nor its command.
#[test]
fn a_hangup_that_is_ignored_stays_ignored() -> Outcome {
    let Some(setting) = Setting::new("e2e_lifecycle::a_hangup_that_is_ignored_stays_ignored")?
    else {
        return Ok(());
    };
    let profiler = setting.profiler_path().to_string_lossy().into_owned();
    let script =
        "trap '' HUP; exec \"$0\" record -o hup.cap -- sh -c 'kill -HUP $$ $PPID; sleep 1; exit 5'";
    let mut command = Command::new("sh");
    command
        .args(["-c", script, &profiler])
        .current_dir(setting.folder());
    profiler_tests::process::run(&mut command, setting.folder(), "nohup", LIMIT)?
        .expect_status(5)?;
    Ok(())
}
