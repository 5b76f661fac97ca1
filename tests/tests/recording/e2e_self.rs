//! The profiler in its own recordings: its threads have names, and it can be left out.
//!
//! Oracle: the process id of the profiler that records, known from outside. While it begins it works for
//! many ticks of 4,999 Hz, whatever else runs; beside it a chain burns CPU time, which is always there. The stacks of its
//! beginning have an end that is known as well: nothing calls `_start`.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use profiler_model::StackEnd;
use profiler_tests::Outcome;
use profiler_tests::recording::Recording;
use profiler_tests::setting::{LIMIT, Setting, profiler};
use profiler_tests::skip::skip;
use rustix::process::Signal;
use serde_json::Value;

/// Ticks a second.
const HZ: &str = "4999";

/// Samples of a process from its exec to its name, at most: 10 ms of CPU time at [`HZ`].
const UNNAMED: usize = 50;

/// What was recorded, and by whom.
struct Recorded {
    recording: Recording,
    /// Process id of the profiler.
    own: u32,
    /// Process id of the chain.
    chain: u32,
    /// The profiler's threads while it recorded: id and name.
    threads: Vec<(u32, String)>,
}

/// Threads of a process: id and name.
fn threads_of(pid: u32) -> Result<Vec<(u32, String)>, Box<dyn std::error::Error>> {
    let mut threads = Vec::new();
    for task in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let task = task?;
        // One may end meanwhile.
        let Ok(name) = std::fs::read_to_string(task.path().join("comm")) else {
            continue;
        };
        let tid = task.file_name().to_string_lossy().parse()?;
        threads.push((tid, name.trim_end().to_owned()));
    }
    Ok(threads)
}

/// Records the whole machine while a chain runs.
fn record(setting: &Setting, flags: &[&str]) -> Result<Recorded, Box<dyn std::error::Error>> {
    let mut arguments = vec!["-a", "-F", HZ];
    arguments.extend(flags);
    let program = setting.workload("chain.c")?;
    let recorder = setting.start_recording(&arguments)?;
    let own = recorder.pid();
    // One that begins just now is called as who started it.
    let before = threads_of(own)?;
    std::thread::sleep(Duration::from_millis(50));
    let mut threads = threads_of(own)?;
    threads.retain(|thread| before.contains(thread));
    let chain = setting.start("chain", Command::new(program).arg("300"))?;
    let chain_pid = chain.pid();
    chain.end(LIMIT)?.success()?;
    recorder.signal(Signal::INT)?;
    recorder.end(LIMIT)?.success()?;
    Ok(Recorded {
        recording: setting.recording()?,
        own,
        chain: chain_pid,
        threads,
    })
}

/// The processes in a report: id and name.
fn reported(
    setting: &Setting,
    flags: &[&str],
) -> Result<Vec<(u64, String)>, Box<dyn std::error::Error>> {
    let mut arguments = vec!["report", "out.cap", "--by", "process", "--format", "json"];
    arguments.extend(["--min-percent", "0", "-n", "100000"]);
    arguments.extend(flags);
    let report = setting.run(&arguments)?.success()?.json()?;
    let processes = report["processes"].as_array().ok_or("no processes")?;
    let of = |process: &Value| {
        Some((
            process["pid"].as_u64()?,
            process["process"].as_str()?.to_owned(),
        ))
    };
    processes
        .iter()
        .map(|process| of(process).ok_or_else(|| format!("no process: {process}").into()))
        .collect()
}

#[test]
fn it_is_there_by_name_unless_a_report_leaves_it_out() -> Outcome {
    let Some(setting) =
        Setting::new("e2e_self::it_is_there_by_name_unless_a_report_leaves_it_out")?
    else {
        return Ok(());
    };
    let Recorded {
        recording,
        own,
        chain,
        threads,
    } = record(&setting, &[])?;
    let name = setting.profiler_path().file_name().ok_or("no name")?;
    let process = name.to_string_lossy().into_owned();
    let of_own = recording.of_pid(own);
    assert!(
        !of_own.is_empty(),
        "no sample of the profiler, which began meanwhile"
    );
    // Each of its threads says what it is for, but for the moment before it does.
    for (tid, name) in &threads {
        let mut of_thread = of_own.iter().filter(|sample| sample.tid == *tid);
        assert_eq!(*tid == own, *name == process, "{threads:?}");
        let other = of_thread.find(|sample| ![name, &process].contains(&&sample.thread));
        assert!(other.is_none(), "{name}: {other:?}");
    }
    assert!(threads.len() > 3, "{threads:?}");

    let all = reported(&setting, &[])?;
    let others = reported(&setting, &["--no-self"])?;
    let has = |rows: &[(u64, String)], pid| rows.iter().any(|(of, _)| *of == u64::from(pid));
    assert!(has(&all, own) && has(&all, chain), "{all:?}");
    assert!(!has(&others, own) && has(&others, chain), "{others:?}");
    // So are the processes that it runs for itself, which are called so when they have been linked: that takes 2 ms. One that
    // ends by then has no name of its own.
    let left_out = all.iter().filter(|row| !others.contains(row));
    let (own, helpers): (Vec<_>, Vec<_>) = left_out.partition(|(pid, _)| *pid == u64::from(own));
    assert!(!own.is_empty());
    let is_named = |name: &str| name.starts_with("profiler-");
    assert!(
        helpers.iter().any(|(_, name)| is_named(name)),
        "{helpers:?}"
    );
    for (pid, _) in helpers.iter().filter(|(_, name)| !is_named(name)) {
        let mut samples = recording.of_pid(u32::try_from(*pid)?);
        samples.retain(|sample| !is_named(&sample.thread));
        assert!(samples.len() <= UNNAMED, "{} of {helpers:?}", samples.len());
    }
    Ok(())
}

#[test]
fn a_recording_leaves_it_out() -> Outcome {
    let Some(setting) = Setting::new("e2e_self::a_recording_leaves_it_out")? else {
        return Ok(());
    };
    let Recorded {
        recording,
        own,
        chain,
        ..
    } = record(&setting, &["--no-self"])?;
    assert_eq!(recording.of_pid(own).len(), 0);
    let all = reported(&setting, &[])?;
    assert_eq!(all, reported(&setting, &["--no-self"])?);
    assert!(
        !recording.of_pid(chain).is_empty(),
        "no sample of the chain"
    );
    Ok(())
}

/// While it begins its unwind tables are not in the kernel, and of each stack 16 KiB are copied: it does not stand
/// deeper. Large values on the stack of its first thread once left a third of these samples without a beginning.
#[test]
fn how_it_begins_is_recorded_with_whole_stacks() -> Outcome {
    let name = "e2e_self::how_it_begins_is_recorded_with_whole_stacks";
    let folder = profiler()?.parent().and_then(Path::file_name);
    if folder.is_some_and(|folder| folder == "debug") {
        skip(name, "the frames of code that is not optimised are larger");
        return Ok(());
    }
    let Some(setting) = Setting::new(name)? else {
        return Ok(());
    };
    let (mut stacks, mut early) = (0, Vec::new());
    while stacks < 300 {
        let recorder = setting.start_recording(&["-a", "-F", "799"])?;
        let own = recorder.pid();
        recorder.signal(Signal::INT)?;
        recorder.end(LIMIT)?.success()?;
        let recording = setting.recording()?;
        let mut of_first = recording.of_pid(own);
        // Where there was no room for a copy, the leaf alone is known.
        of_first.retain(|sample| sample.tid == own && sample.user.len() > 1);
        assert!(!of_first.is_empty(), "no stack of how it began");
        stacks += of_first.len();
        of_first.retain(|sample| sample.user_end != StackEnd::Complete);
        early.extend(of_first.iter().map(|sample| sample.chain().join(" <- ")));
    }
    // One in a hundred: the C library may be at its deepest.
    assert!(
        early.len() * 100 <= stacks,
        "{} of {stacks} end early:\n{}",
        early.len(),
        early.join("\n")
    );
    Ok(())
}
