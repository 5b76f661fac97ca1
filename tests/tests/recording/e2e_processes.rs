//! Processes that come and go, and code that comes late: all of it with names.
//!
//! Oracles: the share of samples that have the function known to have run; for a fork storm the CPU
//! time of all children by getrusage.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use profiler_tests::Outcome;
use profiler_tests::process::Ended;
use profiler_tests::recording::{Recording, Sample, weight};
use profiler_tests::setting::{LIMIT, Setting};
use profiler_tests::skip::{self, skip};
use profiler_tests::statistics::{amount, at_least, share};
use profiler_tests::timer::judged;

/// Eleven children, one after the other, all with the same id: the kernel frees a task when its id is another
/// one's already. All of their CPU time is there, as that of eleven lives.
#[test]
fn an_id_that_is_used_again_at_once_is_watched_on() -> Outcome {
    const LIVES: usize = 11;
    let Some(setting) = Setting::new("e2e_processes::reused")? else {
        return Ok(());
    };
    let program = setting.workload("reused.c")?;
    let words = [&program.to_string_lossy(), "11", "20"].map(str::to_owned);
    let (ended, recording) =
        setting.record(&["-F", "4999", "--", &words[0], &words[1], &words[2]])?;
    let truth = ended.json()?;
    if truth["reused"] != true {
        skip("e2e_processes::reused", "ids can't be chosen here");
        return Ok(());
    }
    let used_ns = truth["cpu_ns"].as_u64().ok_or("no CPU time")?;
    let own = recording.samples.iter();
    let burnt: Vec<&Sample> = own.filter(|s| s.calls("burn_for")).collect();
    let lives = truth["lives"].as_array().ok_or("no lives")?;
    for life in lives {
        let (Some(began), Some(ended)) = (life[0].as_u64(), life[1].as_u64()) else {
            return Err("a life without its time".into());
        };
        if !burnt
            .iter()
            .any(|sample| (began..ended).contains(&sample.at_ns))
        {
            return Err(format!("nothing of the life {life} of {lives:?}").into());
        }
    }
    // What is missing of it is told.
    let seen_ns = weight(&burnt) + recording.missing_ns();
    if lives.len() != LIVES || seen_ns < used_ns * 3 / 4 {
        return Err(format!("{seen_ns} ns of {used_ns} in {} lives", lives.len()).into());
    }
    // Whoever has the id under another name has a row of its own.
    let report = setting.run(&["report", "--by", "process", "out.cap"])?;
    let text = report.success()?.stdout;
    let rows = |name: &str| text.lines().filter(|line| line.ends_with(name)).count();
    if rows("  reused") == 0 || rows("  last_life") != 1 {
        return Err(text.into());
    }
    Ok(())
}

/// 200 processes that live 5 ms each: at 4,999 Hz about 25 samples of each. Every process is seen,
/// and its samples have names, the first one too.
#[test]
fn short_lived_children_have_names() -> Outcome {
    let Some(setting) = Setting::new("e2e_processes::short_lived_children_have_names")? else {
        return Ok(());
    };
    let child = setting.workload("five_ms.c")?;
    let parent = setting.workload("short_lived.c")?;
    let (ended, recording) = setting.record(&[
        "-F",
        "4999",
        "--",
        &parent.to_string_lossy(),
        "200",
        &child.to_string_lossy(),
    ])?;
    let truth = ended.json()?;
    let pids = truth["pids"].as_array().ok_or("no pids")?;

    let mut by_pid: BTreeMap<u64, Vec<&Sample>> = BTreeMap::new();
    for sample in recording.of_process("five_ms") {
        by_pid.entry(sample.pid.into()).or_default().push(sample);
    }
    let pids: Vec<u64> = pids.iter().filter_map(serde_json::Value::as_u64).collect();
    let working = |pid: &&u64| {
        by_pid
            .get(pid)
            .is_some_and(|own| own.iter().any(|s| s.calls("five_ms_work")))
    };
    at_least(
        "children seen at work",
        pids.iter().filter(working).count(),
        pids.len(),
        0.99,
    )?;

    // A sample is good if its innermost user frame has a name. Within execve the user registers still
    // are those of the program that is being replaced: there is nothing to name.
    let in_user = |sample: &Sample| {
        !sample.user.is_empty()
            && !sample
                .kernel
                .iter()
                .any(|frame| frame.name.contains("execve"))
    };
    let with_user: Vec<&&Sample> = by_pid
        .values()
        .flatten()
        .filter(|sample| in_user(sample))
        .collect();
    let named = with_user
        .iter()
        .filter(|sample| sample.user[0].named)
        .count();
    at_least("samples with a name", named, with_user.len(), 0.99)?;
    let first: Vec<&&Sample> = by_pid
        .values()
        .filter_map(|own| own.iter().find(|sample| in_user(sample)))
        .collect();
    let named = first.iter().filter(|sample| sample.user[0].named).count();
    at_least("first samples with a name", named, first.len(), 0.99)?;
    Ok(())
}

/// A thousand forks a second: there is a sample for each tick that met one of the processes, but for two in a thousand, and
/// every sample in user mode is attributed to the program.
#[test]
fn fork_storm_adds_up() -> Outcome {
    let test = "e2e_processes::fork_storm_adds_up";
    let Some(setting) = Setting::new(test)? else {
        return Ok(());
    };
    if !skip::has(test, "perf") {
        return Ok(());
    }
    let storm = setting.workload("fork_storm.c")?;
    let program = storm.to_string_lossy().into_owned();
    let judged = judged(&setting, "4999", &[&program, "1000", "5", "500"])?;
    let (recording, ticks, samples) = (&judged.recording, judged.ticks, judged.samples());
    let truth = judged.ended.json()?;
    let cpu_ns = truth["cpu_ns"].as_u64().ok_or("no truth")?;
    let children = truth["children"].as_u64().ok_or("no truth")?;
    assert_eq!(children, 5_000);
    let told = format!("{} samples, perf counts {ticks} ticks", samples.len());
    eprintln!("{told}");
    let missing = recording.lost.values().sum::<u64>() + ticks / 500;
    let found = samples.len() as u64;
    assert!(
        found <= ticks + ticks / 500 && found + missing >= ticks,
        "{told}"
    );
    // Ten thousand switches, of what others used, are charged to them.
    let weight = weight(&samples);
    assert!(
        weight.abs_diff(cpu_ns) < cpu_ns / 10,
        "{weight} of {cpu_ns} ns"
    );

    let working: Vec<_> = samples.iter().filter(|s| s.calls("storm_child")).collect();
    let expected_ns = children * 500_000;
    let working_ns: u64 = working.iter().map(|sample| sample.weight).sum();
    // 500 us is what the steps took when calibrated; caches and clocks vary by more than statistics.
    amount(
        "children at work",
        working_ns,
        expected_ns,
        recording.missing_ns(),
        100,
        0.25,
    )?;
    let with_user: Vec<_> = samples
        .iter()
        .filter(|sample| !sample.user.is_empty())
        .collect();
    let named = with_user
        .iter()
        .filter(|sample| sample.user[0].named)
        .count();
    at_least("samples with a name", named, with_user.len(), 0.99)?;
    Ok(())
}

/// The workload with code made at run time, with these arguments; its map is gone.
fn recorded_jit(
    test: &str,
    arguments: &[&str],
) -> Result<Option<(Ended, Recording)>, Box<dyn std::error::Error>> {
    if !cfg!(target_arch = "x86_64") {
        skip(test, "the workload has machine code of x86-64 only");
        return Ok(None);
    }
    let Some(setting) = Setting::new(test)? else {
        return Ok(None);
    };
    let workload = setting.workload("jit.c")?;
    let command = ["-F", "999", "--", &workload.to_string_lossy()];
    let (ended, recording) = setting.record(&[&command[..], arguments].concat())?;
    if let Some(sample) = recording.of_process("jit").first() {
        let _ = fs::remove_file(format!("/tmp/perf-{}.map", sample.pid));
    }
    Ok(Some((ended, recording)))
}

/// Code made at run time, named by /tmp/perf-PID.map.
#[test]
fn jit_code_by_its_perf_map() -> Outcome {
    let test = "e2e_processes::jit_code_by_its_perf_map";
    let Some((ended, recording)) = recorded_jit(test, &["1500"])? else {
        return Ok(());
    };
    let samples = recording.of_process("jit");
    let truth = ended.json()?;
    let part = |key: &str| truth[key].as_u64().map(|ns| ns as f64).ok_or("no truth");
    let hits: Vec<_> = samples
        .iter()
        .filter(|sample| sample.leaf() == "jitted_spin")
        .collect();
    let elsewhere = samples.iter().filter(|it| it.leaf() != "jitted_spin");
    let elsewhere = elsewhere.map(|it| format!("{} ({:?})", it.chain().join(" <- "), it.user_end));
    share(
        "jitted_spin",
        hits.len(),
        samples.len(),
        part("jitted")? / part("total")?,
    )
    .map_err(|why| format!("{why}; elsewhere: {:#?}", elsewhere.collect::<Vec<_>>()))?;
    let expected = ["jitted_spin", "enter_jitted", "main"];
    let others = hits
        .iter()
        .filter(|sample| !sample.chain().starts_with(&expected))
        .map(|it| format!("{} ({:?})", it.chain().join(" <- "), it.user_end));
    let others: Vec<_> = others.collect();
    at_least("chain", hits.len() - others.len(), hits.len(), 0.999)
        .map_err(|why| format!("{why}; others: {others:#?}"))?;
    Ok(())
}

/// Other code made at run time where some had been: samples have the name of their time.
#[test]
fn jit_code_that_is_announced_anew() -> Outcome {
    let test = "e2e_processes::jit_code_that_is_announced_anew";
    let Some((ended, recording)) = recorded_jit(test, &["4000", "--again"])? else {
        return Ok(());
    };
    let samples = recording.of_process("jit");
    let again = ended.json()?["again"].as_u64().ok_or("no truth")?;
    let count = |name: &str, is_then: &dyn Fn(u64) -> bool| {
        let samples = samples.iter();
        let of_it = samples.filter(|it| it.leaf() == name && is_then(it.at_ns));
        of_it.count()
    };
    let before = |at: u64| at < again;
    // What is announced is read every 200 ms, and what was sampled meanwhile keeps the name that it had.
    let later = |at: u64| at > again + 1_000_000_000;
    for kind in ["old", "new"] {
        let then: &dyn Fn(u64) -> bool = match kind {
            "old" => &before,
            _ => &later,
        };
        let [one, three] = ["one", "three"].map(|name| count(&format!("{kind}_{name}"), then));
        assert!(one + three > 300, "{kind}: {one} and {three} samples");
        share(kind, one, one + three, 0.25)?;
    }
    for name in ["new_one", "new_three"] {
        assert_eq!(count(name, &|at| at + 300_000_000 < again), 0, "{name}");
    }
    for name in ["old_one", "old_three"] {
        assert_eq!(count(name, &later), 0, "{name}");
    }
    Ok(())
}

/// A shared object that is loaded in the middle of the recording.
#[test]
fn plugin_loaded_late() -> Outcome {
    let Some(setting) = Setting::new("e2e_processes::plugin_loaded_late")? else {
        return Ok(());
    };
    let workload = setting.workload("dlopen_late.c")?;
    let plugin = setting.workload("plugin.c")?;
    let (ended, recording) = setting.record(&[
        "-F",
        "999",
        "--",
        &workload.to_string_lossy(),
        "1000",
        &plugin.to_string_lossy(),
    ])?;
    let truth = ended.json()?;
    let samples = recording.of_process("dlopen_late");
    let known: Vec<_> = ["before_dlopen", "plugin_work"]
        .iter()
        .map(|name| {
            (
                samples.iter().filter(|s| s.leaf() == *name).count(),
                &truth[*name],
            )
        })
        .collect();
    let total: u64 = known.iter().filter_map(|(_, ns)| ns.as_u64()).sum();
    let all: usize = known.iter().map(|(hits, _)| hits).sum();
    at_least("samples in either", all, samples.len(), 0.95)?;
    for (hits, ns) in known {
        share(
            "half",
            hits,
            all,
            ns.as_u64().ok_or("no truth")? as f64 / total as f64,
        )?;
    }
    Ok(())
}

/// Whether at least 97 % of a chain's samples show its leaves (the rest is start and calibration).
fn has_names(recording: &profiler_tests::recording::Recording) -> Outcome {
    let samples = recording.of_process("chain");
    let named = samples
        .iter()
        .filter(|s| s.leaf().starts_with("leaf_") && s.calls("outer"))
        .count();
    at_least("samples with names", named, samples.len(), 0.97)?;
    Ok(())
}

/// A program that deletes its own file as soon as it runs.
#[test]
fn deleted_binary() -> Outcome {
    let Some(setting) = Setting::new("e2e_processes::deleted_binary")? else {
        return Ok(());
    };
    let workload = setting.workload("chain.c")?;
    let program = workload.to_string_lossy().into_owned();
    let (_, recording) = setting.record(&["-F", "999", "--", &program, "1500", "--unlink"])?;
    assert!(!workload.exists());
    has_names(&recording)
}

/// A program whose file was deleted before the recording began.
#[test]
fn binary_deleted_before() -> Outcome {
    let Some(setting) = Setting::new("e2e_processes::binary_deleted_before")? else {
        return Ok(());
    };
    let workload = setting.workload("chain.c")?;
    let mut chain = setting.start("chain", Command::new(&workload).args(["3000", "--unlink"]))?;
    chain.wait_until("deleting itself", LIMIT, |_| !workload.exists())?;
    let recorder = setting.start_recording(&["-F", "999", "-p", &chain.pid().to_string()])?;
    chain.end(LIMIT)?.success()?;
    recorder.end(LIMIT)?.success()?;
    has_names(&setting.recording()?)
}

/// A program in whose place another one is put while it runs: names are those of what runs.
#[test]
fn replaced_binary() -> Outcome {
    let Some(setting) = Setting::new("e2e_processes::replaced_binary")? else {
        return Ok(());
    };
    let workload = setting.workload("chain.c")?;
    let other = setting.workload("threads.c")?;
    let (_, recording) = setting.record(&[
        "-F",
        "999",
        "--",
        &workload.to_string_lossy(),
        "1500",
        "--replace-with",
        &other.to_string_lossy(),
    ])?;
    has_names(&recording)
}

/// A process in PID and mount namespaces of its own, with the binary on a file system that only it
/// sees.
#[test]
fn other_namespaces() -> Outcome {
    let Some(setting) = Setting::new("e2e_processes::other_namespaces")? else {
        return Ok(());
    };
    let workload = setting.workload("chain.c")?;
    fs::create_dir_all(setting.path("inside"))?;
    let script = format!(
        "mount -t tmpfs none {inside} && cp {program} {inside}/chain && exec {inside}/chain 1500",
        inside = setting.path("inside").display(),
        program = workload.display()
    );
    let (_, recording) = setting.record(&[
        "-F",
        "999",
        "--",
        "unshare",
        "--pid",
        "--mount",
        "--fork",
        "--mount-proc",
        "sh",
        "-c",
        &script,
    ])?;
    has_names(&recording)
}
