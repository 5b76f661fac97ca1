//! Recordings beside more busy threads than there are processors: they end when they should, and go before.
//!
//! Oracles: the times of the output's file, so that it does not matter when a test gets a processor; the scheduling
//! class of threads in /proc/PID/task/TID/stat (fields 19, nice, and 41, policy; proc(5)).

use std::fs;
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use profiler_tests::Outcome;
use profiler_tests::process::Running;
use profiler_tests::setting::{LIMIT, Setting};
use profiler_tests::skip::skip;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Two busy sessions with so many threads for each processor.
fn busy(setting: &Setting, threads: usize) -> std::io::Result<[Running; 2]> {
    let program = setting.workload("busy.c")?;
    let cpus = std::thread::available_parallelism()?.get();
    let start = |name: &str| {
        let mut command = Command::new(&program);
        command
            .arg((threads * cpus).to_string())
            .stdin(Stdio::piped());
        let mut running = setting.start(name, &mut command)?;
        let is_busy = |of: &Running| of.stdout_so_far().is_ok_and(|said| said.contains("busy"));
        running.wait_until("busy", LIMIT, is_busy)?;
        Ok::<_, std::io::Error>(running)
    };
    Ok([start("busy-1")?, start("busy-2")?])
}

fn may_raise() -> bool {
    let lacks = ["nice", "-n", "-1", "true"];
    let ended = Command::new(lacks[0]).args(&lacks[1..]).output();
    ended.is_ok_and(|ended| ended.status.success() && ended.stderr.is_empty())
}

/// The nice value and the policy in a line of /proc/PID/stat.
fn scheduled(stat: &str) -> Option<(i32, u32)> {
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    // The first of these is the third.
    Some((fields.get(16)?.parse().ok()?, fields.get(38)?.parse().ok()?))
}

/// The processes that find names for a recording.
fn helpers_of(pid: u32) -> Vec<u32> {
    // With its walls up: one that is stopped while it starts is waited for, as long as it may take.
    children_of(pid, |status| {
        status.starts_with("Name:\tprofiler-names\n") && status.contains("\nSeccomp:\t2\n")
    })
}

/// The children of a process that this is so of, in their status.
fn children_of(pid: u32, wanted: impl Fn(&str) -> bool) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task"));
    let tasks = tasks.into_iter().flatten().flatten();
    let lists = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    let children: Vec<u32> = lists
        .flat_map(|list| {
            list.split_whitespace()
                .flat_map(str::parse)
                .collect::<Vec<_>>()
        })
        .collect();
    let is_wanted = |child: &u32| {
        let status = fs::read_to_string(format!("/proc/{child}/status"));
        status.is_ok_and(|status| wanted(&status))
    };
    children.into_iter().filter(is_wanted).collect()
}

/// What is to be had of names and tables by then is in the capture, and no more is waited for: not even for who has
/// begun to look for names and does not come to an end.
#[test]
fn a_recording_ends_when_its_time_is_over() -> Outcome {
    let name = "e2e_busy::a_recording_ends_when_its_time_is_over";
    let Some(setting) = Setting::new(name)? else {
        return Ok(());
    };
    if !may_raise() {
        skip(name, "priorities take CAP_SYS_NICE");
        return Ok(());
    }
    let _busy = busy(&setting, 6)?;
    let capture = setting.path("out.cap");
    let mut command = setting.profiler();
    command
        .args(["record", "-a", "--wall", "-d", "2", "-o"])
        .arg(&capture);
    let mut recorder = Running::start(&mut command, setting.folder(), "record")?;
    recorder.wait_until("recording", LIMIT, |_| capture.exists())?;
    let began = SystemTime::now();
    let mut stopped = 0;
    while !recorder.has_ended()? {
        for helper in helpers_of(recorder.pid()) {
            let helper = Pid::from_raw(helper.cast_signed()).ok_or("no process")?;
            // It may be gone by now.
            stopped += u32::from(kill_process(helper, Signal::STOP).is_ok());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    recorder.end(LIMIT)?.success()?;
    assert!(stopped > 0, "nobody looked for names");
    let written = fs::metadata(&capture)?.modified()?;
    let took = written.duration_since(began).unwrap_or_default();
    assert!(took < Duration::from_millis(3500), "{took:?}");
    Ok(())
}

/// Whoever has all processors, at a nice value that others can't come up against, holds up neither the end nor what is done
/// behind it. How long a process takes to begin there is the kernel's.
#[test]
fn who_has_all_processors_does_not_hold_up_the_end() -> Outcome {
    let name = "e2e_busy::who_has_all_processors_does_not_hold_up_the_end";
    let Some(setting) = Setting::new(name)? else {
        return Ok(());
    };
    if !may_raise() {
        skip(name, "priorities take CAP_SYS_NICE");
        return Ok(());
    }
    let cpus = std::thread::available_parallelism()?.get();
    let capture = setting.path("out.cap");
    let mut session = Command::new(setting.workload("busy.c")?);
    session
        .args([(16 * cpus).to_string().as_str(), "-15"])
        .arg(setting.profiler_path())
        .args(["record", "-a", "-d", "2", "-o"])
        .arg(&capture);
    setting
        .start("session", &mut session)?
        .end(LIMIT)?
        .success()?;
    let written = fs::metadata(&capture)?.modified()?;
    let info = setting.run(&["info", "--format", "json", "out.cap"])?;
    let info: Value = serde_json::from_str(&info.success()?.stdout)?;
    let first = info["first_realtime_ns"].as_u64().ok_or("no time")?;
    let began = SystemTime::UNIX_EPOCH + Duration::from_nanos(first);
    let took = written.duration_since(began).unwrap_or_default();
    assert!(took < Duration::from_millis(3500), "{took:?}");
    let report = setting.run(&["report", "--format", "json", "out.cap"])?;
    let report: Value = serde_json::from_str(&report.success()?.stdout)?;
    let span_ns = report["header"]["to_ns"].as_u64().ok_or("no span")?;
    assert!(span_ns < 2_500_000_000, "{span_ns}");
    Ok(())
}

/// The threads of a recording are in another class than what it records, its command too.
#[test]
fn who_records_goes_before_what_is_recorded() -> Outcome {
    let name = "e2e_busy::who_records_goes_before_what_is_recorded";
    let Some(setting) = Setting::new(name)? else {
        return Ok(());
    };
    for nice in [0, 7] {
        let mut command = Command::new("nice");
        command
            .args(["-n", &nice.to_string()])
            .arg(setting.profiler_path())
            .args(["record", "-o", "command.cap", "--force", "--", "cat"])
            .arg("/proc/self/stat");
        let ended = setting.start("command", &mut command)?.end(LIMIT)?;
        let ended = ended.success()?;
        let scheduled = scheduled(&ended.stdout).ok_or("no status of the command")?;
        assert_eq!(scheduled, (nice, 0), "{}", ended.stdout);
    }
    if !may_raise() {
        skip(name, "priorities take CAP_SYS_NICE");
        return Ok(());
    }
    let mut recorder = setting.start_recording(&["-a"])?;
    let pid = recorder.pid();
    let mut seen = String::new();
    let went = |of: &str| {
        let stat = fs::read_to_string(of).unwrap_or_default();
        // Real time, or at least a nice value where a cgroup has none of that.
        scheduled(&stat).is_some_and(|(nice, policy)| policy == 2 || nice == -20)
    };
    recorder.wait_until("priority", LIMIT, |_| {
        let tasks = fs::read_dir(format!("/proc/{pid}/task"));
        let tasks = tasks.into_iter().flatten().flatten();
        let stats = tasks.map(|task| task.path().join("stat").display().to_string());
        let behind: Vec<String> = stats.filter(|of| !went(of)).collect();
        seen = behind.join(" ");
        behind.is_empty()
    })?;
    // What works for users, and is not watched, goes as others do.
    let of_users = children_of(pid, |status| status.starts_with("Name:\tprofiler-users\n"));
    for child in of_users {
        let stat = fs::read_to_string(format!("/proc/{child}/stat"))?;
        assert_eq!(scheduled(&stat), Some((0, 0)), "{stat}");
    }
    recorder.signal(Signal::INT)?;
    recorder.end(LIMIT)?.success()?;
    Ok(())
}
