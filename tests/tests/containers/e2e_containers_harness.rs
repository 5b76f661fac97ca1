//! The containers that other tests profile: they run what they should, know what it used, and go.
//!
//! Oracle: what the workloads say, and what the kernel says of the processes; nothing that carries a
//! test's folder or ids is left behind, even if the test panics.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use profiler_tests::Outcome;
use profiler_tests::containers::{self, Bundle, Docker, PROGRAM, Root, Runtime};
use profiler_tests::process::burnt;
use profiler_tests::setting::Setting;

/// Processes whose command line holds this.
fn processes_with(mark: &str) -> std::io::Result<usize> {
    let mut count = 0;
    for entry in fs::read_dir("/proc")? {
        let path = entry?.path();
        // Whoever ends meanwhile has no command line.
        let line = fs::read(path.join("cmdline")).unwrap_or_default();
        count += usize::from(String::from_utf8_lossy(&line).contains(mark));
    }
    Ok(count)
}

#[test]
fn containers_of_docker() -> Outcome {
    let test = "e2e_containers_harness::containers_of_docker";
    let Some(setting) = Setting::new(test)? else {
        return Ok(());
    };
    let Some(docker) = Docker::start(&setting, test)? else {
        return Ok(());
    };
    let root = Root::new(&setting.path("red"), "red")?.with_shell()?;
    docker.image("red", &root)?;
    let id = docker.run("one", &[], "red", &[PROGRAM, "60000"])?;
    let pid = docker.pid("one")?;
    assert!(containers::cgroups_of(pid)?.contains(&format!("/docker/{id}")));
    assert!(fs::read_link(format!("/proc/{pid}/exe"))?.ends_with("bin/work"));

    docker.command(&["restart", "one"])?;
    assert_ne!(docker.pid("one")?, pid, "the same process after a restart");
    let (first, last) = containers::said(&docker.logs("one")?)?;
    assert_eq!((&first["name"], &first["pid"]), (&"red".into(), &1.into()));
    assert_eq!(last["name"], "red", "its second life says the same");

    let said = docker.run_to_end("short", "red", &["sh", "-c", "work 100"])?;
    let used = containers::cpu_ns(&said)?;
    assert!((100_000_000..200_000_000).contains(&used), "{used} ns");
    let mark = docker.folder().to_string_lossy().into_owned();
    assert!(processes_with(&mark)? > 0);
    drop(docker);
    assert_eq!(processes_with(&mark)?, 0);
    Ok(())
}

#[test]
fn containers_without_an_engine() -> Outcome {
    let test = "e2e_containers_harness::containers_without_an_engine";
    let Some(setting) = Setting::new(test)? else {
        return Ok(());
    };
    for program in ["runc", "crun"] {
        let Some(runtime) = Runtime::new(&setting, test, program)? else {
            return Ok(());
        };
        let root = Root::new(&setting.path("green"), "green")?;
        let bundle = Bundle {
            id: "first",
            root: &root,
            command: &[PROGRAM, "100"],
            proc: program == "runc",
        };
        let first = runtime.run(&bundle)?;
        let endless = Bundle {
            id: "second",
            command: &[PROGRAM, "60000"],
            ..bundle
        };
        let second = runtime.run(&endless)?;
        let cgroups = containers::cgroups_of(second.pid)?;
        assert!(cgroups.contains(&second.cgroup), "{cgroups}");
        let mounts = fs::read_to_string(format!("/proc/{}/mountinfo", second.pid))?;
        assert_eq!(mounts.contains(" /proc "), bundle.proc, "{mounts}");
        assert!(containers::cpu_ns(&first.end()?)? >= 100_000_000);
        // It listens for signals before it burns anything; what starts it uses less.
        burnt(second.pid, Duration::from_millis(50))?;
        second.terminate()?;
        assert!(containers::cpu_ns(&second.end()?)? < 60_000_000_000);
    }
    Ok(())
}

#[test]
fn a_test_that_panics_leaves_nothing() -> Outcome {
    let test = "e2e_containers_harness::a_test_that_panics_leaves_nothing";
    let Some(setting) = Setting::new(test)? else {
        return Ok(());
    };
    let Some(docker) = Docker::start(&setting, test)? else {
        return Ok(());
    };
    let Some(runtime) = Runtime::new(&setting, test, "runc")? else {
        return Ok(());
    };
    let root = Root::new(&setting.path("red"), "red")?;
    docker.image("red", &root)?;
    let id = docker.run("one", &[], "red", &[PROGRAM, "60000"])?;
    let one = docker.pid("one")?;
    let two = runtime.run(&Bundle {
        id: "two",
        root: &root,
        command: &[PROGRAM, "60000"],
        proc: true,
    })?;
    let engine = docker.folder().to_string_lossy().into_owned();
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let _ended = (docker, runtime);
        panic!("as a failed assertion does");
    }));
    assert!(panicked.is_err());
    for pid in [one, two.pid] {
        assert!(fs::read_link(format!("/proc/{pid}/exe")).is_err(), "{pid}");
    }
    let mounts = fs::read_to_string("/proc/self/mounts")?;
    for folder in [&engine, &*setting.folder().to_string_lossy()] {
        assert_eq!(processes_with(folder)?, 0);
        assert!(!mounts.contains(folder));
    }
    for cgroup in [format!("docker/{id}"), two.cgroup] {
        let path = format!("/sys/fs/cgroup/pids/{}", cgroup.trim_start_matches('/'));
        assert!(fs::metadata(&path).is_err(), "{path}");
    }
    Ok(())
}
