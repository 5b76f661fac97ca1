//! `profiler serve --tcf` with a client that behaves as real ones do: what is hot, by thread and by
//! process, at each client's own frequency, beside `profiler record` of the same.

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use crate::e2e_tcf_shared::capture::{self, Wish};
use crate::e2e_tcf_shared::profile::Profile;
use crate::e2e_tcf_shared::{Agent, Failure, Talking, own, with_clients};
use profiler_tests::Outcome;
use profiler_tests::process::run;
use profiler_tests::setting::{LIMIT, Setting};
use profiler_tests::statistics::share;
use serde_json::Value;

/// Kernel addresses begin here.
const KERNEL: u64 = 1 << 63;

/// A workload with shares that it measures itself. Each of its threads works for a part of the time: some hundred
/// samples a second are enough, and others have to work as well.
fn shares(setting: &Setting) -> Result<(Talking, Vec<String>), Failure> {
    let mut workload = Talking::workload(setting, "tcf_shares.c", &["3"])?;
    let first = workload.hear()?;
    let tids = first["tids"].as_array().ok_or("no tids")?;
    let id = workload.id();
    let threads = tids.iter().map(|tid| format!("{id}.{tid}")).collect();
    Ok((workload, threads))
}

/// What a thread of it used in a function between two of its answers.
fn used(from: &Value, to: &Value, thread: usize, function: &str) -> Result<u64, Failure> {
    let at = |answer: &Value| answer["threads"][thread][function].as_u64();
    Ok(at(to)
        .zip(at(from))
        .map(|(to, from)| to - from)
        .ok_or("no times")?)
}

/// Checks the leaves' shares of the samples that are in any of them.
fn check_shares(
    profile: &Profile,
    outer: &str,
    from: &Value,
    to: &Value,
    thread: usize,
) -> Outcome {
    let leaves = ["leaf_a", "leaf_b", "leaf_c"];
    let times: Vec<u64> = leaves
        .iter()
        .map(|leaf| used(from, to, thread, leaf))
        .collect::<Result<_, _>>()?;
    let total: u64 = times.iter().sum();
    let hits: Vec<u64> = leaves
        .iter()
        .map(|leaf| profile.with_chain(&[leaf, "middle", outer]))
        .collect();
    let all: u64 = hits.iter().sum();
    for ((leaf, hits), cpu_ns) in leaves.iter().zip(&hits).zip(&times) {
        let truth = *cpu_ns as f64 / total as f64;
        share(
            &format!("{leaf} of {outer}"),
            *hits as usize,
            all as usize,
            truth,
        )?;
    }
    Ok(())
}

/// Hello, tree, capabilities; then a profile whose functions, shares, files and lines are those of
/// `profiler record` and `profiler report` of the same time.
#[test]
fn what_is_hot_is_what_record_says() -> Outcome {
    let Some(setting) = with_clients("e2e_tcf::what_is_hot_is_what_record_says", true)? else {
        return Ok(());
    };
    let (mut workload, threads) = shares(&setting)?;
    let agent = Agent::start(&setting, &[])?;
    let walk = agent.client(&["walk", "--all"])?;
    let (id, pid) = (workload.id(), workload.pid());
    let process = &walk["contexts"][&id];
    assert_eq!(process["Name"], "tcf_shares", "{process}");
    for (thread, name) in threads.iter().zip(["burner-0", "burner-1", "reader"]) {
        let context = &walk["contexts"][thread];
        assert_eq!(context["Name"], name, "{context}");
        assert_eq!(context["ParentID"], id.as_str());
        assert!(walk["capabilities"][thread]["StackTraces"].is_object());
    }
    assert!(walk["capabilities"][&id]["StackTraces"].is_object());
    let file = walk["SysMonitor.getContext"][&id]["File"].as_str();
    assert!(
        file.is_some_and(|file| file.ends_with("tcf_shares")),
        "{file:?}"
    );
    assert_eq!(walk["SysMonitor.getContext"][&id]["PID"], pid);

    let recorder = setting.start_recording(&["-F", "499", "-p", &pid.to_string(), "-d", "8"])?;
    let from = workload.ask("from")?;
    let arguments = [
        "profile",
        &id,
        "--seconds",
        "5",
        "--frames",
        "64",
        "--frequency",
        "499",
        "--settle",
    ];
    let profile = Profile::of(&agent.client(&arguments)?)?;
    let to = workload.ask("to")?;
    recorder.end(LIMIT)?.success()?;
    workload.end()?;
    agent.end()?;

    profile.check_amount("process", 499)?;
    check_shares(&profile, "outer_0", &from, &to, 0)?;
    check_shares(&profile, "outer_1", &from, &to, 1)?;

    let wish = Wish {
        pid: Some(pid),
        frames: 64,
        ..Wish::default()
    };
    let recorded = capture::read(&setting.path("out.cap"), wish)?;
    // Beside a load threads get other shares of the processors before and behind.
    let range = Some(profile.window.ok_or("no window")?);
    let meanwhile = capture::read(&setting.path("out.cap"), Wish { range, ..wish })?;
    let report = setting
        .run(&["report", "--format", "json", "out.cap"])?
        .success()?
        .json()?;
    let rows = report["functions"].as_array().ok_or("no functions")?;
    for name in [
        "leaf_a",
        "leaf_b",
        "leaf_c",
        "middle",
        "outer_0",
        "outer_1",
        "burn",
        "read_zeros",
    ] {
        let theirs = recorded.functions.get(name).ok_or(name)?;
        let row = rows.iter().find(|row| row["name"] == name).ok_or(name)?;
        assert_eq!(
            row["total_samples"].as_u64(),
            Some(theirs.inclusive),
            "{name}"
        );
        let then = meanwhile.functions.get(name).ok_or(name)?;
        let truth = then.inclusive as f64 / meanwhile.samples as f64;
        share(
            name,
            profile.inclusive(name) as usize,
            profile.samples as usize,
            truth,
        )?;
        let module = profile.modules.get(name).ok_or(name)?;
        assert_eq!(row["module"], module.as_str());
        // Where it calls is the same each time; which of its other lines are met is a matter of chance.
        let ours = &profile.functions[name].lines;
        assert!(!ours.is_empty(), "no lines of {name}");
        let calls = ["middle", "outer_0", "outer_1"].contains(&name);
        let call = calls.then(|| line_of_call(name)).transpose()?;
        for lines in [ours, &theirs.lines] {
            let is_met = |&line: &u64| {
                let mut of_it = lines.iter().filter(|(_, one)| *one == line);
                of_it.any(|(file, _)| file.ends_with("/tcf_shares.c"))
            };
            assert!(
                call.as_ref().is_none_or(is_met),
                "no line {call:?} of {name}: {lines:?}"
            );
        }
        // A leaf's samples are in its own lines and in those that are inlined into it.
        let files: BTreeSet<&str> = ours.iter().map(|(file, _)| &**file).collect();
        let sources = ["/burn.h", "/tcf_shares.c"];
        let is_ours = |file: &&str| sources.iter().any(|source| file.ends_with(source));
        assert!(files.iter().all(is_ours), "files of {name}: {files:?}");
    }
    Ok(())
}

/// The line of the workload's source in which a function calls the next one.
fn line_of_call(function: &str) -> Result<u64, Box<dyn std::error::Error>> {
    let source = include_str!("../../workloads/tcf_shares.c");
    let begins = format!(" {function}(");
    let called = |line: &str| line.contains("[leaf](") || line.contains(" = middle(");
    let mut lines = source.lines().enumerate();
    lines.find(|(_, line)| line.starts_with("FUNCTION") && line.contains(&begins));
    let (at, _) = lines
        .find(|(_, line)| called(line))
        .ok_or_else(|| format!("{function} calls nothing"))?;
    Ok(at as u64 + 1)
}

/// A thread's profile is its own; a process's is that of all its threads. One frame is the leaf alone.
#[test]
fn threads_and_their_process() -> Outcome {
    let Some(setting) = with_clients("e2e_tcf::threads_and_their_process", true)? else {
        return Ok(());
    };
    let (mut workload, threads) = shares(&setting)?;
    let agent = Agent::start(&setting, &[])?;
    let id = workload.id();
    let mut arguments = vec!["profile", &id];
    arguments.extend(threads.iter().map(String::as_str));
    arguments.extend([
        "--seconds",
        "4",
        "--frames",
        "8",
        "--frequency",
        "499",
        "--settle",
    ]);
    let from = workload.ask("from")?;
    let said = agent.client(&arguments)?;
    let to = workload.ask("to")?;
    let profiles: Vec<Profile> = said["profiles"]
        .as_array()
        .ok_or("no profiles")?
        .iter()
        .map(Profile::of)
        .collect::<Result<_, _>>()?;
    let (process, threads) = profiles.split_first().ok_or("no profiles")?;
    for (index, (thread, outer)) in threads.iter().zip(["outer_0", "outer_1"]).enumerate() {
        check_shares(thread, outer, &from, &to, index)?;
        let others = ["outer_0", "outer_1", "read_zeros"];
        for other in others.iter().filter(|other| **other != outer) {
            assert_eq!(
                thread.inclusive(other),
                0,
                "{other} in the thread of {outer}"
            );
        }
        thread.check_amount(outer, 499)?;
    }
    assert_eq!(threads[2].inclusive("middle"), 0);
    let sum: u64 = threads.iter().map(|thread| thread.samples).sum();
    // They are read one after the other, between which time passes: how much of it, the CPU time tells that
    // was read along with each, within 30 ms. And what the agent has taken out of the kernel, each 100 ms,
    // may come in between: of the two that compute.
    let cpu_ns = |profile: &Profile| profile.cpu_ns.ok_or("no CPU time");
    let (mut least, mut most) = (0.0, 0.0);
    for thread in threads {
        let (at_least, at_most) = cpu_ns(thread)?;
        (least, most) = (least + at_least as f64, most + at_most as f64);
    }
    let (at_least, at_most) = cpu_ns(process)?;
    let samples_in = |ns: f64| ns / 1e9 * 499.0;
    let between = samples_in(least - at_most as f64)..=samples_in(most - at_least as f64);
    let slack = 0.01 * sum as f64 + (0.03 + 2.0 * 0.1) * 499.0;
    let more = sum as f64 - process.samples as f64;
    assert!(
        more >= between.start() - slack && more <= between.end() + slack,
        "{sum} of threads, {} of all, {between:?} of them between reads",
        process.samples
    );
    assert!(process.chains.iter().all(|(_, chain)| chain.len() <= 8));

    let arguments = [
        "profile",
        &id,
        "--seconds",
        "2",
        "--frames",
        "1",
        "--frequency",
        "499",
    ];
    let leaves = Profile::of(&agent.client(&arguments)?)?;
    assert!(leaves.samples > 0);
    assert!(leaves.chains.iter().all(|(_, chain)| chain.len() == 1));
    assert_eq!(leaves.inclusive("middle"), leaves.leaf("middle"));
    assert!(leaves.leaf("leaf_a") > 0);
    agent.end()?;
    workload.end()
}

/// Clients with frequencies of their own, at the same time: each gets as many samples as its own calls
/// for, with the same shares.
#[test]
fn each_client_has_its_own_frequency() -> Outcome {
    let Some(setting) = with_clients("e2e_tcf::each_client_has_its_own_frequency", true)? else {
        return Ok(());
    };
    let (workload, threads) = shares(&setting)?;
    let agent = Agent::start(&setting, &[])?;
    let id = workload.id();
    let wishes = serde_json::json!([
        {"id": id, "frames": 64, "frequency": 99},
        {"id": id, "frames": 8, "frequency": 999},
        {"id": threads[0], "frames": 8, "frequency": 250},
        {"id": threads[1], "frames": 64},
    ]);
    let said = agent.script("load.py", &["many", &wishes.to_string(), "--seconds", "6"])?;
    let found = said.as_array().ok_or("no profiles")?;
    for (one, hz) in found.iter().zip([99, 999, 250, 99]) {
        let profile = Profile::of(one)?;
        assert_eq!(profile.frequency_hz, hz);
        profile.check_amount(&format!("{} at {hz} Hz", one["id"]), hz)?;
        assert_eq!(profile.dropped, 0);
    }
    let (slow, fast) = (Profile::of(&found[0])?, Profile::of(&found[1])?);
    for name in ["leaf_a", "leaf_b", "leaf_c"] {
        let truth = fast.leaf(name) as f64 / fast.samples as f64;
        share(name, slow.leaf(name) as usize, slow.samples as usize, truth)?;
    }
    agent.end()?;
    workload.end()
}

/// Kernel frames come only when they are asked for, with the kernel's own names, above the user's.
#[test]
fn kernel_frames_on_request() -> Outcome {
    let Some(setting) = with_clients("e2e_tcf::kernel_frames_on_request", true)? else {
        return Ok(());
    };
    let (workload, threads) = shares(&setting)?;
    let agent = Agent::start(&setting, &[])?;
    let wishes = |kernel| serde_json::json!([{"id": threads[2], "frames": 64, "frequency": 499, "kernel": kernel}]);
    let profile = |kernel: bool| -> Result<Profile, Failure> {
        let arguments = [
            "profile",
            &threads[2],
            "--seconds",
            "3",
            "--frequency",
            "499",
        ];
        let more = ["--kernel"];
        let more = if kernel { &more[..] } else { &[] };
        Profile::of(&agent.client(&[&arguments[..], more].concat())?)
    };
    // In the first of its stacks callers may be missing on a busy machine: tables come first.
    let with = profile(true)?;
    let without = profile(false)?;
    assert!(without.samples > 20);
    assert!(without.addresses.iter().all(|&address| address < KERNEL));
    // It pauses between its calls, which takes more than a twentieth of its time on a busy machine.
    let whole = without.inclusive("reader");
    let called = without.inclusive("read_zeros") + without.inclusive("clock_nanosleep");
    let all = without.samples;
    assert!(
        whole * 20 >= all * 19 && called * 20 >= all * 19,
        "{called} and {whole} of {all}"
    );
    assert!(with.addresses.iter().any(|&address| address >= KERNEL));
    // Most of it is the kernel's copying, below the system call that read_zeros makes.
    let symbols = fs::read_to_string("/proc/kallsyms")?;
    let is_known = |name: &str| {
        symbols
            .lines()
            .any(|line| line.split(' ').nth(2) == Some(name))
    };
    let deepest: Vec<_> = with
        .modules
        .iter()
        .filter(|(_, module)| *module == "[kernel]")
        .map(|(name, _)| name.clone())
        .collect();
    let known = deepest.iter().filter(|name| is_known(name)).count();
    assert!(known * 10 >= deepest.len() * 8, "{deepest:?}");
    let through = with.with_chain(&["ksys_read", "read_zeros"]);
    assert!(
        through * 10 > with.samples * 7,
        "{through} of {}",
        with.samples
    );
    // The client beside it, which did not ask for them, gets none.
    let said = agent.script(
        "load.py",
        &[
            "many",
            &serde_json::json!([wishes(true)[0], wishes(false)[0]]).to_string(),
            "--seconds",
            "2",
        ],
    )?;
    let modules = |index: usize| -> Result<bool, Failure> {
        Ok(Profile::of(&said[index])?
            .modules
            .values()
            .any(|module| module == "[kernel]"))
    };
    assert!(modules(0)?);
    assert!(!modules(1)?);
    agent.end()?;
    workload.end()
}

/// What was sampled of a process that has ended is read once more, and its addresses still have names.
#[test]
fn what_has_ended() -> Outcome {
    let Some(setting) = with_clients("e2e_tcf::what_has_ended", true)? else {
        return Ok(());
    };
    let family = Talking::workload(&setting, "tcf_family.c", &[])?;
    let agent = Agent::start(&setting, &[])?;
    let id = family.id();
    // The period is longer than its life, so that all is in the read behind its end.
    let arguments = [
        "profile",
        &id,
        "--seconds",
        "60",
        "--period",
        "8",
        "--frequency",
        "499",
        "--until-exit",
    ];
    let profiling = agent.begin("client", "client.py", &arguments)?;
    std::thread::sleep(Duration::from_secs(4));
    family.end()?;
    let profile = Profile::of(&agent.result(profiling.end(LIMIT)?)?)?;
    eprintln!("reads: {:?}", profile.reads);
    // At once, behind its end; then it can't be read any more.
    assert_eq!(profile.reads.len(), 2);
    assert!(profile.reads[1] > 20);
    let work = profile.leaf("parent_work");
    assert!(
        work * 100 >= profile.samples * 95,
        "{work} of {}",
        profile.samples
    );
    assert!(!profile.functions["parent_work"].lines.is_empty());
    assert!(profile.modules["parent_work"].ends_with("/tcf_family"));
    agent.end()?;
    Ok(())
}

/// The examples of docs/formats/tcf.md do what they say.
#[test]
fn the_examples_of_the_documentation() -> Outcome {
    let Some(setting) = with_clients("e2e_tcf::the_examples_of_the_documentation", true)? else {
        return Ok(());
    };
    let (workload, _) = shares(&setting)?;
    let agent = Agent::start(&setting, &[])?;
    let text = fs::read_to_string(own("../docs/formats/tcf.md"))?;
    let examples: Vec<&str> = text
        .split("```python\n")
        .skip(1)
        .filter_map(|rest| Some(rest.split_once("```")?.0))
        .collect();
    assert_eq!(examples.len(), 2);
    for example in examples {
        fs::write(setting.path("example.py"), example)?;
        let mut command = std::process::Command::new("/usr/bin/python3");
        command
            .arg("-B")
            .arg(setting.path("example.py"))
            .args([agent.port.to_string(), workload.pid().to_string()])
            .current_dir(own(".."));
        let ended = run(&mut command, setting.folder(), "example", LIMIT)?.success()?;
        for leaf in ["leaf_a", "leaf_b", "leaf_c"] {
            assert!(
                ended.stdout.contains(leaf),
                "{leaf} is not in {}",
                ended.stdout
            );
        }
        assert_eq!(ended.stderr, "");
    }
    agent.end()?;
    workload.end()
}
