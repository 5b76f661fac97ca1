//! Containers of Docker, recorded by name: nothing of the neighbour, all of our own, in all its lives.
//!
//! In every test a neighbour runs a program at the same path that differs in the names of its functions
//! alone. The oracles are in `e2e_containers_shared`.

use std::time::Duration;

use crate::e2e_containers_shared::{
    RATE, all_of, begin, finish, listed, named, of_work, only, with_docker,
};
use profiler_tests::Outcome;
use profiler_tests::containers::{self, NOW_AND_THEN, PROGRAM, Root};
use profiler_tests::undisturbed::leave_undisturbed;

/// Two containers with the same path and different content. What is recorded of the one names its host
/// and its own process ids.
#[test]
fn the_same_path_in_two_containers() -> Outcome {
    let Some((setting, docker)) = with_docker("e2e_containers::the_same_path_in_two_containers")?
    else {
        return Ok(());
    };
    docker.run("profiler-neighbour", &[], "blue", &NOW_AND_THEN)?;
    let id = docker.run("profiler-web", &[], "red", &[PROGRAM, "--wait", "1500"])?;
    let pid = docker.pid("profiler-web")?;
    let recorder = setting.start_recording(&["-F", RATE, "--container", "profiler-web"])?;
    begin(&docker, "profiler-web")?;
    let said = docker.end("profiler-web")?;
    let recording = finish(&setting, recorder)?;

    only(&recording, "red", &["blue"])?;
    let samples = of_work(&recording);
    all_of(
        "profiler-web",
        &recording,
        &samples,
        containers::cpu_ns(&said)?,
    )?;
    named(&samples)?;
    recording.nothing_lost()?;
    for sample in &recording.samples {
        assert_eq!(sample.pid, pid, "{sample:?}");
        assert_eq!(sample.namespace_pids, [1], "{sample:?}");
        let container = sample.container.as_ref().ok_or("no container")?;
        assert_eq!(container.id.as_deref(), Some(&*id));
        assert_eq!(container.name.as_deref(), Some("profiler-web"));
        assert_eq!(container.image.as_deref(), Some("red"));
        assert_eq!(container.engine.as_deref(), Some("docker"));
    }
    Ok(())
}

/// Restarted under the same id, then removed and run again under the same name.
#[test]
fn one_that_restarts() -> Outcome {
    let Some((setting, docker)) = with_docker("e2e_containers::one_that_restarts")? else {
        return Ok(());
    };
    docker.run("profiler-neighbour", &[], "blue", &NOW_AND_THEN)?;
    docker.run("profiler-web", &[], "red", &[PROGRAM, "1500"])?;
    let mut pids = vec![docker.pid("profiler-web")?];
    let recorder = setting.start_recording(&["-F", RATE, "--container", "profiler-web"])?;
    docker.command(&["restart", "profiler-web"])?;
    pids.push(docker.pid("profiler-web")?);
    leave_undisturbed(pids[pids.len() - 1])?;
    docker.command(&["wait", "profiler-web"])?;
    let second = docker.logs("profiler-web")?;
    docker.command(&["rm", "profiler-web"])?;
    docker.run("profiler-web", &[], "red", &[PROGRAM, "1500"])?;
    pids.push(docker.pid("profiler-web")?);
    leave_undisturbed(pids[pids.len() - 1])?;
    let third = docker.end("profiler-web")?;
    let recording = finish(&setting, recorder)?;

    only(&recording, "red", &["blue"])?;
    named(&of_work(&recording))?;
    recording.nothing_lost()?;
    assert!(
        !recording.of_pid(pids[0]).is_empty(),
        "nothing of its first life"
    );
    for (pid, said) in [(pids[1], &second), (pids[2], &third)] {
        let samples: Vec<_> = of_work(&recording)
            .into_iter()
            .filter(|sample| sample.pid == pid)
            .collect();
        all_of(
            "a later life",
            &recording,
            &samples,
            containers::cpu_ns(said)?,
        )?;
    }
    let stranger = of_work(&recording)
        .into_iter()
        .find(|sample| !pids.contains(&sample.pid));
    assert!(stranger.is_none(), "a sample of another life: {stranger:?}");
    Ok(())
}

/// Twenty lives of 50 ms, each in a container of its own that is removed at its end.
#[test]
fn short_lives() -> Outcome {
    let Some((setting, docker)) = with_docker("e2e_containers::short_lives")? else {
        return Ok(());
    };
    docker.run("profiler-neighbour", &[], "blue", &NOW_AND_THEN)?;
    let recorder =
        setting.start_recording(&["-F", RATE, "--container", "profiler-short", "--wait"])?;
    let mut cpu_ns = 0;
    for _ in 0..20 {
        cpu_ns +=
            containers::cpu_ns(&docker.run_to_end("profiler-short", "red", &[PROGRAM, "50"])?)?;
    }
    let recording = finish(&setting, recorder)?;

    only(&recording, "red", &["blue"])?;
    let samples = of_work(&recording);
    all_of("short lives", &recording, &samples, cpu_ns)?;
    named(&samples)?;
    // Before its exec, a container's process is its runtime, whose frames may have no names.
    let frames = recording.samples.iter().flat_map(|sample| &sample.user);
    let unnamed = frames.filter(|frame| !frame.named).count();
    let mut lives: Vec<_> = samples.iter().map(|sample| sample.pid).collect();
    lives.sort_unstable();
    lives.dedup();
    assert_eq!(lives.len(), 20, "lives that have samples");
    // What has no name is said.
    let info = setting.run(&["info", "out.cap"])?.success()?;
    assert_eq!(
        info.stdout.contains("unnamed"),
        unnamed > 0,
        "{}",
        info.stdout
    );
    Ok(())
}

/// It does not exist yet when the recording begins; container and image are gone before it ends.
#[test]
fn waited_for_and_removed() -> Outcome {
    let Some((setting, docker)) = with_docker("e2e_containers::waited_for_and_removed")? else {
        return Ok(());
    };
    docker.image("late", &Root::new(&setting.path("late"), "late")?)?;
    docker.run("profiler-neighbour", &[], "blue", &NOW_AND_THEN)?;
    let recorder =
        setting.start_recording(&["-F", RATE, "--container", "profiler-later", "--wait"])?;
    docker.run("profiler-other", &[], "red", &[PROGRAM, "200"])?;
    docker.run("profiler-later", &[], "late", &[PROGRAM, "1000"])?;
    leave_undisturbed(docker.pid("profiler-later")?)?;
    let said = docker.end("profiler-later")?;
    docker.command(&["rm", "profiler-later"])?;
    docker.command(&["rmi", "late"])?;
    std::thread::sleep(Duration::from_millis(300));
    let recording = finish(&setting, recorder)?;

    only(&recording, "late", &["blue", "red"])?;
    let samples = of_work(&recording);
    all_of(
        "profiler-later",
        &recording,
        &samples,
        containers::cpu_ns(&said)?,
    )?;
    named(&samples)?;
    Ok(())
}

/// A container that makes cgroups of its own while it is recorded, and moves into them.
#[test]
fn nested_cgroups() -> Outcome {
    const MOVES: &str = "trap 'go=1' USR1; until [ \"$go\" ]; do sleep 0.05; done; \
        for c in /sys/fs/cgroup /sys/fs/cgroup/*; do mount -o remount,rw,bind $c; \
        mkdir -p $c/inner/deep && echo $$ >$c/inner/deep/cgroup.procs; done 2>/dev/null; \
        exec work 1500";
    let Some((setting, docker)) = with_docker("e2e_containers::nested_cgroups")? else {
        return Ok(());
    };
    let root = Root::new(&setting.path("nested"), "nested")?.with_shell()?;
    docker.image("nested", &root)?;
    docker.run("profiler-neighbour", &[], "blue", &NOW_AND_THEN)?;
    let shell = ["/bin/sh", "-c", MOVES];
    docker.run(
        "profiler-web",
        &["--cap-add", "SYS_ADMIN"],
        "nested",
        &shell,
    )?;
    let pid = docker.pid("profiler-web")?;
    let recorder = setting.start_recording(&["-F", RATE, "--container", "profiler-web"])?;
    begin(&docker, "profiler-web")?;
    std::thread::sleep(Duration::from_millis(500));
    let cgroups = containers::cgroups_of(pid)?;
    let said = docker.end("profiler-web")?;
    let recording = finish(&setting, recorder)?;

    assert!(
        cgroups.contains("/inner/deep"),
        "it did not move: {cgroups}"
    );
    only(&recording, "nested", &["blue"])?;
    let samples = of_work(&recording);
    all_of("nested", &recording, &samples, containers::cpu_ns(&said)?)?;
    for sample in &samples {
        let container = sample.container.as_ref().ok_or("no container")?;
        assert_eq!(container.name.as_deref(), Some("profiler-web"));
    }
    Ok(())
}

/// The whole machine: every process of a container says so, those of none do not.
#[test]
fn labels_in_a_recording_of_everything() -> Outcome {
    let Some((setting, docker)) =
        with_docker("e2e_containers::labels_in_a_recording_of_everything")?
    else {
        return Ok(());
    };
    let before = docker.run("profiler-first", &[], "blue", &NOW_AND_THEN)?;
    let recorder = setting.start_recording(&["-F", RATE])?;
    let during = docker.run("profiler-second", &[], "red", &[PROGRAM, "500"])?;
    docker.end("profiler-second")?;
    docker.command(&["rm", "profiler-second"])?;
    let recording = finish(&setting, recorder)?;

    for (leaf, name, image, id) in [
        ("blue_leaf", "profiler-first", "blue", &before),
        ("red_leaf", "profiler-second", "red", &during),
    ] {
        let samples: Vec<_> = recording
            .samples
            .iter()
            .filter(|sample| sample.leaf() == leaf)
            .collect();
        assert!(samples.len() > 100, "{leaf}: {} samples", samples.len());
        for sample in samples {
            let container = sample.container.as_ref().ok_or("no container")?;
            assert_eq!(container.name.as_deref(), Some(name));
            assert_eq!(container.image.as_deref(), Some(image));
            assert_eq!(container.id.as_ref(), Some(id));
        }
    }
    let own = recording
        .samples
        .iter()
        .filter(|sample| sample.process.starts_with("dockerd"))
        .find(|sample| sample.container.is_some());
    assert!(own.is_none(), "the engine is in no container: {own:?}");
    let info = setting.run(&["info", "out.cap"])?.success()?;
    for name in ["profiler-first", "profiler-second"] {
        assert!(info.stdout.contains(name), "{}", info.stdout);
    }
    Ok(())
}

/// Names that nothing has, and beginnings of ids that several have.
#[test]
fn names_that_do_not_decide() -> Outcome {
    let Some((setting, docker)) = with_docker("e2e_containers::names_that_do_not_decide")? else {
        return Ok(());
    };
    let name = |index| format!("profiler-test-{index}");
    let mut ids = vec![docker.run(&name(0), &[], "red", &[PROGRAM, "--wait", "1"])?];
    // Seventeen ids have sixteen beginnings at most.
    let shared = loop {
        let id = docker.run(&name(ids.len()), &[], "red", &[PROGRAM, "--wait", "1"])?;
        let digit = id[..1].to_owned();
        let same = ids.iter().any(|known| known.starts_with(&digit));
        ids.push(id);
        if same {
            break digit;
        }
    };
    // There may be many others on the machine: those that begin like it are named first.
    let nosuch = "profiler-test-nosuch";
    let unknown = setting
        .run(&["record", "-o", "no.cap", "-d", "1", "--container", nosuch])?
        .expect_status(1)?;
    for word in [nosuch, &name(0), &name(1)] {
        assert!(unknown.stderr.contains(word), "{}", unknown.stderr);
    }
    let ambiguous = setting
        .run(&["record", "-o", "no.cap", "-d", "1", "--container", &shared])?
        .expect_status(1)?;
    for id in ids.iter().filter(|id| id.starts_with(&shared)) {
        assert!(ambiguous.stderr.contains(&id[..12]), "{}", ambiguous.stderr);
    }
    assert!(!setting.path("no.cap").exists(), "nothing was recorded");

    // What is unique is enough, and what runs can be listed.
    let (_, recording) = setting.record(&["-d", "1", "--container", &ids[0][..12]])?;
    assert!(recording.samples.is_empty(), "it only waits");
    let listed = listed(&setting)?;
    for (index, id) in ids.iter().enumerate() {
        let one = listed.iter().find(|one| one["id"] == **id);
        let one = one.ok_or_else(|| format!("{id} is not listed: {listed:?}"))?;
        assert_eq!(one["name"], name(index), "{one}");
        assert_eq!(one["engine"], "docker", "{one}");
        assert_eq!(one["image"], "red", "{one}");
        assert_eq!(one["processes"], 1, "{one}");
    }
    Ok(())
}
