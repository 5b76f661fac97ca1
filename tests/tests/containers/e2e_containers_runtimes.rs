//! Containers of runc and crun without an engine: by id and by cgroup, without /proc, and very many.
//!
//! The oracles are in `e2e_containers_shared`.

#[allow(dead_code)]
use std::time::{Duration, Instant};

use crate::e2e_containers_shared::{RATE, all_of, finish, listed, named, of_work, only};
use profiler_tests::Outcome;
use profiler_tests::containers::{self, Bundle, Contained, NOW_AND_THEN, PROGRAM, Root, Runtime};
use profiler_tests::setting::Setting;

/// More CPU time than any test lasts.
const ENDLESS: &str = "100000";

const MANY: usize = 200;

/// Ids that no other container of the machine has.
fn id(name: &str) -> String {
    format!("{name}-{}", std::process::id())
}

/// Records a container of `program` that waits, named by `target`.
fn record_one(test: &str, program: &'static str, target: fn(&Contained) -> [String; 2]) -> Outcome {
    let Some(setting) = Setting::new(test)? else {
        return Ok(());
    };
    let Some(runtime) = Runtime::new(&setting, test, program)? else {
        return Ok(());
    };
    let red = Root::new(&setting.path("red"), "red")?;
    let blue = Root::new(&setting.path("blue"), "blue")?;
    // crun can do without; then nothing below the container's root says what its processes are.
    let proc = program != "crun";
    runtime.run(&Bundle {
        id: &id("neighbour"),
        root: &blue,
        command: &NOW_AND_THEN,
        proc,
    })?;
    let web = runtime.run(&Bundle {
        id: &id("web"),
        root: &red,
        command: &[PROGRAM, "--wait", "1500"],
        proc,
    })?;
    let target = target(&web);
    let recorder = setting.start_recording(&["-F", RATE, &target[0], &target[1]])?;
    web.begin()?;
    let said = web.end()?;
    runtime.remove(&web.id)?;
    let recording = finish(&setting, recorder)?;

    only(&recording, "red", &["blue"])?;
    let samples = of_work(&recording);
    all_of(&web.id, &recording, &samples, containers::cpu_ns(&said)?)?;
    named(&samples)?;
    recording.nothing_lost()?;
    for sample in &recording.samples {
        assert_eq!(sample.pid, web.pid, "{sample:?}");
        assert_eq!(sample.namespace_pids, [1], "{sample:?}");
        let container = sample.container.as_ref().ok_or("no container")?;
        assert_eq!(container.id.as_ref(), Some(&web.id));
    }
    Ok(())
}

#[test]
fn of_runc_by_id() -> Outcome {
    record_one("e2e_containers_runtimes::of_runc_by_id", "runc", |web| {
        ["--container".to_owned(), web.id.clone()]
    })
}

#[test]
fn of_runc_by_cgroup() -> Outcome {
    record_one(
        "e2e_containers_runtimes::of_runc_by_cgroup",
        "runc",
        |web| ["--cgroup".to_owned(), web.cgroup.clone()],
    )
}

#[test]
fn of_crun_without_proc_and_shell() -> Outcome {
    let test = "e2e_containers_runtimes::of_crun_without_proc_and_shell";
    record_one(test, "crun", |web| {
        ["--container".to_owned(), web.id.clone()]
    })
}

/// One of very many: none of the others' samples, and all of them can be listed.
#[test]
fn one_of_very_many() -> Outcome {
    let test = "e2e_containers_runtimes::one_of_very_many";
    let Some(setting) = Setting::new(test)? else {
        return Ok(());
    };
    let Some(runtime) = Runtime::new(&setting, test, "runc")? else {
        return Ok(());
    };
    let red = Root::new(&setting.path("red"), "red")?;
    let blue = Root::new(&setting.path("blue"), "blue")?;
    let web = runtime.run(&Bundle {
        id: &id("web"),
        root: &red,
        command: &[PROGRAM, "--wait", "1000"],
        proc: true,
    })?;
    let from = Instant::now();
    let mut ids = vec![web.id.clone()];
    for index in 1..MANY {
        let id = id(&format!("many-{index}"));
        // Each uses about a thousandth of a processor.
        runtime.run(&Bundle {
            id: &id,
            root: &blue,
            command: &[PROGRAM, ENDLESS, "100", "100000"],
            proc: true,
        })?;
        ids.push(id);
    }
    println!("{} containers in {:?}", ids.len(), from.elapsed());
    let listed = listed(&setting)?;
    let missing: Vec<_> = ids
        .iter()
        .filter(|id| {
            !listed
                .iter()
                .any(|one| one["id"] == **id && one["processes"] == 1)
        })
        .collect();
    assert!(missing.is_empty(), "not listed: {missing:?}");

    let recorder = setting.start_recording(&["-F", RATE, "--container", &web.id])?;
    web.begin()?;
    let said = web.end()?;
    std::thread::sleep(Duration::from_millis(200));
    let recording = finish(&setting, recorder)?;
    only(&recording, "red", &["blue"])?;
    let stranger = recording
        .samples
        .iter()
        .find(|sample| sample.pid != web.pid);
    assert!(
        stranger.is_none(),
        "a sample of another container: {stranger:?}"
    );
    all_of(
        "one of many",
        &recording,
        &of_work(&recording),
        containers::cpu_ns(&said)?,
    )?;
    named(&of_work(&recording))?;
    Ok(())
}
