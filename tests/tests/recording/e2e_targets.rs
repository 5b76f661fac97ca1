//! Filters: nothing of another process, and all of our own.
//!
//! Beside the target a bystander burns CPU time now and then. Oracle: no sample is another's, and
//! the weights add up to the target's own CPU time within four standard deviations, at most 5 %.

use std::fs;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use profiler_tests::Outcome;
use profiler_tests::process::Running;
use profiler_tests::recording::{Recording, weight};
use profiler_tests::setting::{LIMIT, Setting};
use profiler_tests::skip::skip;
use profiler_tests::statistics::{amount, at_least};
use profiler_tests::undisturbed::leave_undisturbed;

/// Somebody whose samples would be seen if they were taken: a fifth of the time, for others have to work as well.
fn busy_bystander(setting: &Setting) -> std::io::Result<Running> {
    let copy = setting.path("bystander");
    fs::copy(setting.workload("chain.c")?, &copy)?;
    setting.start(
        "bystander",
        Command::new(copy).args(["600000", "--now-and-then"]),
    )
}

/// Checks that `recording` holds all of a chain that ran inside it as process `pid`, and nothing
/// else.
fn only_chain(recording: &Recording, truth: &serde_json::Value, pid: u32) -> Outcome {
    let samples: Vec<_> = recording.samples.iter().collect();
    let foreign = samples.iter().find(|sample| sample.pid != pid);
    assert!(
        foreign.is_none(),
        "a sample of another process: {foreign:?}"
    );
    amount(
        "chain",
        weight(&samples),
        truth["total"].as_u64().ok_or("no truth")?,
        recording.missing_ns(),
        samples.len(),
        0.05,
    )?;
    let named = samples
        .iter()
        .filter(|sample| sample.leaf().starts_with("leaf_"))
        .count();
    at_least("samples with names", named, samples.len(), 0.97)?;
    Ok(())
}

/// Records with `filter` while a chain runs that was started by `command`, until it has ended.
fn record_around(setting: &Setting, filter: &[&str], command: &mut Command) -> Outcome {
    let bystander = busy_bystander(setting)?;
    let mut arguments = vec!["-F", "4999"];
    arguments.extend(filter);
    let recorder = setting.start_recording(&arguments)?;
    let chain = setting.start("chain", command)?;
    let pid = chain.pid();
    leave_undisturbed(pid)?;
    let chain = chain.end(LIMIT)?.success()?;
    recorder.signal(rustix::process::Signal::INT)?;
    recorder.end(LIMIT)?.success()?;
    drop(bystander);
    only_chain(&setting.recording()?, &chain.json()?, pid)
}

#[test]
fn by_command() -> Outcome {
    let Some(setting) = Setting::new("e2e_targets::by_command")? else {
        return Ok(());
    };
    let bystander = busy_bystander(&setting)?;
    let program = setting.workload("chain.c")?;
    let (ended, recording) =
        setting.record(&["-F", "4999", "--", &program.to_string_lossy(), "1000"])?;
    drop(bystander);
    let pid = recording.samples.first().ok_or("no samples")?.pid;
    only_chain(&recording, &ended.json()?, pid)
}

/// One process by its id, whose CPU time between start and end is known.
#[test]
fn by_pid_with_children() -> Outcome {
    let Some(setting) = Setting::new("e2e_targets::by_pid_with_children")? else {
        return Ok(());
    };
    let bystander = busy_bystander(&setting)?;
    let program = setting.workload("chain.c")?;
    // The shell waits for a line, then starts the chain as its child: children are followed.
    let script = format!("read line; {} 1000; true", program.display());
    let mut shell = setting.start("shell", Command::new("sh").args(["-c", &script]))?;
    let pid = shell.pid().to_string();
    let recorder = setting.start_recording(&["-F", "4999", "-p", &pid])?;
    let mut input = shell.stdin().ok_or("no pipe")?;
    input.write_all(b"go\n")?;
    let shell = shell.end(LIMIT)?.success()?;
    // The target has died: the recording ends by itself.
    recorder.end(LIMIT)?.success()?;
    drop(bystander);
    let recording = setting.recording()?;
    let others = recording
        .samples
        .iter()
        .find(|s| !matches!(s.process.as_str(), "sh" | "chain"));
    assert!(others.is_none(), "a sample of another process: {others:?}");
    let samples = recording.of_process("chain");
    let total = shell.json()?["total"].as_u64().ok_or("no truth")?;
    amount(
        "chain",
        weight(&samples),
        total,
        recording.missing_ns(),
        samples.len(),
        0.05,
    )?;
    Ok(())
}

/// One thread of four.
#[test]
fn by_tid() -> Outcome {
    let Some(setting) = Setting::new("e2e_targets::by_tid")? else {
        return Ok(());
    };
    let program = setting.workload("threads.c")?;
    let mut threads = setting.start("threads", Command::new(program).arg("2000"))?;
    threads.wait_until("naming threads", LIMIT, |run| {
        run.stdout_so_far().is_ok_and(|text| text.contains("tids"))
    })?;
    let first: serde_json::Value = serde_json::from_str(threads.stdout_so_far()?.trim())?;
    let tid = first["tids"][2].as_u64().ok_or("no tid")?;
    let recorder = setting.start_recording(&["-F", "4999", "-t", &tid.to_string()])?;
    threads.stdin().ok_or("no pipe")?.write_all(b"go\n")?;
    let threads = threads.end(LIMIT)?.success()?;
    recorder.end(LIMIT)?.success()?;

    let recording = setting.recording()?;
    let foreign = recording
        .samples
        .iter()
        .find(|sample| u64::from(sample.tid) != tid);
    assert!(foreign.is_none(), "a sample of another thread: {foreign:?}");
    let last = threads.stdout.lines().last().ok_or("no times")?;
    let times: serde_json::Value = serde_json::from_str(last)?;
    let samples: Vec<_> = recording.samples.iter().collect();
    let cpu_ns = times["cpu_ns"][2].as_u64().ok_or("no time")?;
    amount(
        "worker-2",
        weight(&samples),
        cpu_ns,
        recording.missing_ns(),
        samples.len(),
        0.05,
    )?;
    Ok(())
}

#[test]
fn by_name_of_command() -> Outcome {
    let Some(setting) = Setting::new("e2e_targets::by_name_of_command")? else {
        return Ok(());
    };
    // A name that no other process of the machine has.
    let name = format!("only{}", std::process::id());
    let program = setting.path(&name);
    fs::copy(setting.workload("chain.c")?, &program)?;
    record_around(
        &setting,
        &["--comm", &name],
        Command::new(program).arg("1000"),
    )
}

#[test]
fn by_user() -> Outcome {
    let Some(setting) = Setting::new("e2e_targets::by_user")? else {
        return Ok(());
    };
    let program = setting.workload("chain.c")?;
    // Not nobody: other tests, and services, run as that user.
    let uid = 1_000_000_000 + std::process::id();
    record_around(
        &setting,
        &["--uid", &uid.to_string()],
        Command::new(program).arg("1000").uid(uid),
    )
}

/// A cgroup v2 that is removed when the test ends.
struct Cgroup(PathBuf);

impl Cgroup {
    fn new(name: &str) -> std::io::Result<Option<Cgroup>> {
        let mounts = fs::read_to_string("/proc/mounts")?;
        let root = mounts.lines().find_map(|line| {
            let mut fields = line.split(' ');
            let place = fields.nth(1)?;
            (fields.next()? == "cgroup2").then(|| PathBuf::from(place))
        });
        let Some(root) = root else {
            return Ok(None);
        };
        let path = root.join(format!("{name}-{}", std::process::id()));
        match fs::create_dir(&path) {
            Ok(()) => Ok(Some(Cgroup(path))),
            Err(_) => Ok(None),
        }
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

#[test]
fn by_cgroup() -> Outcome {
    let test = "e2e_targets::by_cgroup";
    let Some(setting) = Setting::new(test)? else {
        return Ok(());
    };
    let Some(cgroup) = Cgroup::new("profiler-test")? else {
        skip(test, "no cgroup v2 that can be written");
        return Ok(());
    };
    let program = setting.workload("chain.c")?;
    let script = |path: &Path| {
        format!(
            "echo $$ > {}/cgroup.procs; exec {} 1000",
            path.display(),
            program.display()
        )
    };
    let path = cgroup.0.to_string_lossy().into_owned();
    let mut command = Command::new("sh");
    command.args(["-c", &script(&cgroup.0)]);
    record_around(&setting, &["--cgroup", &path], &mut command)
}

/// `-p NAME` is the process that alone has the name; of several none is taken.
#[test]
fn by_name_of_process() -> Outcome {
    let Some(setting) = Setting::new("e2e_targets::by_name_of_process")? else {
        return Ok(());
    };
    // Longer than the kernel keeps of a process's name: the file's is whole.
    let name = "a-program-of-a-long-name";
    let copy = setting.path(name);
    fs::copy(setting.workload("chain.c")?, &copy)?;
    let none = setting
        .run(&["record", "-d", "1", "-p", name])?
        .expect_status(1)?;
    assert!(
        none.stderr.contains(&format!("no process called '{name}'")),
        "{}",
        none.stderr
    );
    let first = setting.start("first", Command::new(&copy).arg("60000"))?;
    setting.record(&["-F", "499", "-d", "1", "-p", name])?;
    let recording = setting.recording()?;
    assert!(recording.samples.len() > 100);
    assert!(
        recording
            .samples
            .iter()
            .all(|sample| sample.pid == first.pid())
    );
    let second = setting.start("second", Command::new(&copy).arg("60000"))?;
    let several = setting
        .run(&["record", "-d", "1", "-p", name])?
        .expect_status(2)?;
    for part in [
        format!("2 processes are called '{name}'"),
        format!("{} (/", first.pid()),
        format!("{} (/", second.pid()),
        format!("--comm {name}"),
    ] {
        assert!(several.stderr.contains(&part), "{part}: {}", several.stderr);
    }
    for running in [first, second] {
        running.signal(rustix::process::Signal::KILL)?;
        running.end(LIMIT)?;
    }
    Ok(())
}
