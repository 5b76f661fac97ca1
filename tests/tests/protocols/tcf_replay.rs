//! `profiler serve --tcf --replay`: a capture, shown to clients without privileges: the same samples, at
//! once or in their own time.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use crate::e2e_tcf_shared::capture::{self, Wish};
use crate::e2e_tcf_shared::profile::{Function, Profile};
use crate::e2e_tcf_shared::{Agent, Failure, NOBODY, Talking, with_clients};
use profiler_tests::Outcome;
use profiler_tests::setting::{LIMIT, Setting};
use profiler_tests::statistics::share;
use profiler_tests::{announced, canonical};
use serde_json::{Value, json};

/// More than any recording was made with: nothing is thinned out.
const ALL_HZ: &str = "10000";

/// Starts an agent of a capture as nobody, who may not load anything.
fn as_nobody<'s>(setting: &'s Setting, arguments: &[&str]) -> Result<Agent<'s>, Failure> {
    let copy = setting.profiler_for_all()?;
    fs::set_permissions(setting.path("out.cap"), fs::Permissions::from_mode(0o644))?;
    let mut command = Command::new(copy);
    command.current_dir(setting.folder());
    if rustix::process::geteuid().is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    Agent::start_command(
        setting,
        command,
        &[&["--replay", "out.cap"][..], arguments].concat(),
    )
}

/// Profiles a context until all of a capture that is there at once has come.
fn profiled(agent: &Agent<'_>, id: &str, more: &[&str]) -> Result<Profile, Failure> {
    let arguments = ["profile", id, "--seconds", "1.5", "--period", "0.5"];
    Profile::of(&agent.client(&[&arguments[..], more].concat())?)
}

/// The functions that have a name, without their lines.
fn counts(
    functions: &BTreeMap<String, Function>,
    is_named: impl Fn(&str) -> bool,
) -> BTreeMap<String, (u64, u64)> {
    let named = functions.iter().filter(|(name, _)| is_named(name));
    named
        .map(|(name, one)| (name.clone(), (one.leaf, one.inclusive)))
        .collect()
}

/// Checks that a profile has the samples of a capture, each of them.
fn check_same(what: &str, profile: &Profile, recorded: &capture::Context) {
    assert_eq!(profile.samples, recorded.samples, "{what}");
    let theirs = counts(&recorded.functions, |name| recorded.named.contains(name));
    let ours = counts(&profile.functions, |name| !name.starts_with("0x"));
    assert_eq!(ours, theirs, "{what}");
    let without = |functions: &BTreeMap<String, Function>, named: &dyn Fn(&str) -> bool| -> u64 {
        let functions = functions.iter().filter(|(name, _)| !named(name));
        functions.map(|(_, one)| one.leaf).sum()
    };
    assert_eq!(
        without(&profile.functions, &|name| !name.starts_with("0x")),
        without(&recorded.functions, &|name| recorded.named.contains(name)),
        "{what}: without a name"
    );
    for name in theirs.keys() {
        assert_eq!(
            profile.functions[name].lines, recorded.functions[name].lines,
            "{what}: lines of {name}"
        );
    }
}

/// All at once, of the process and of each thread, with kernel frames and without: exactly what the
/// capture holds, and what `profiler report` says of it.
#[test]
fn the_same_samples_as_in_the_capture() -> Outcome {
    let Some(setting) = with_clients("tcf_replay::the_same_samples_as_in_the_capture", true)?
    else {
        return Ok(());
    };
    let mut workload = Talking::workload(&setting, "tcf_shares.c", &["3"])?;
    let tids = workload.hear()?;
    let (id, pid) = (workload.id(), workload.pid());
    setting.record(&["-F", "499", "-p", &pid.to_string(), "-d", "4"])?;
    let path = setting.path("out.cap");
    let agent = as_nobody(&setting, &["--speed", "max"])?;
    let mut contexts = vec![(id.clone(), None)];
    for tid in tids["tids"].as_array().ok_or("no tids")? {
        let tid = tid.as_u64().ok_or("no tid")? as u32;
        contexts.push((format!("{id}.{tid}"), Some(tid)));
    }
    let mut wishes = Vec::new();
    for (id, tid) in &contexts {
        for (kernel, frames) in [(false, 64), (true, 64), (false, 1), (true, 3)] {
            let wish = Wish {
                pid: Some(pid),
                tid: *tid,
                kernel,
                frames,
                range: None,
            };
            wishes.push((id, wish));
        }
    }
    let asked: Vec<Value> = wishes
        .iter()
        .map(|(id, wish)| {
            json!({"id": id, "frames": wish.frames, "kernel": wish.kernel, "frequency": 10_000})
        })
        .collect();
    // Each on a channel of its own, all at the same time.
    let asked = Value::from(asked).to_string();
    let said = agent.script("load.py", &["many", &asked, "--seconds", "3"])?;
    for (index, (id, wish)) in wishes.iter().enumerate() {
        let recorded = capture::read(&path, *wish)?;
        // Few where others keep the processors busy; each of them counts all the same.
        assert!(recorded.samples > 10);
        check_same(
            &format!("{id} {wish:?}"),
            &Profile::of(&said[index])?,
            &recorded,
        );
    }
    let profile = profiled(&agent, &id, &["--frequency", ALL_HZ, "--frames", "64"])?;
    let report = setting
        .run(&["report", "--format", "json", "out.cap"])?
        .success()?
        .json()?;
    let rows = report["functions"].as_array().ok_or("no functions")?;
    // The C library and the kernel's own object have functions of one name.
    let mut totals: BTreeMap<&str, u64> = BTreeMap::new();
    for row in rows.iter().filter(|row| row["kind"] == "native") {
        // Functions that were inlined everywhere are part of their callers here.
        let name = row["name"].as_str().ok_or("no name")?;
        if row["inlined"] == false && row["named"] == true {
            *totals.entry(name).or_default() += row["total_samples"].as_u64().ok_or("no total")?;
        }
    }
    for (name, total) in &totals {
        assert_eq!(profile.inclusive(name), *total, "{name}");
    }
    assert!(totals.len() >= 8, "{totals:?}");
    // A lower frequency thins it out without bias.
    let thin = profiled(&agent, &id, &["--frequency", "99", "--frames", "64"])?;
    let part = thin.samples as f64 / profile.samples as f64;
    assert!(
        (0.14..0.26).contains(&part),
        "{part} of the samples at a fifth of the frequency"
    );
    for name in ["leaf_a", "leaf_b", "leaf_c", "read_zeros"] {
        let truth = profile.inclusive(name) as f64 / profile.samples as f64;
        share(
            name,
            thin.inclusive(name) as usize,
            thin.samples as usize,
            truth,
        )?;
    }
    agent.end()?;
    workload.end()
}

/// The canonical session: addresses are those of the process's memory, the kernel's as its image is
/// linked; what has ended is there; code without a name has an address and no symbol.
#[test]
fn addresses_of_the_canonical_session() -> Outcome {
    let Some(setting) = with_clients("tcf_replay::addresses_of_the_canonical_session", false)?
    else {
        return Ok(());
    };
    announced::write(&setting.path("out.cap"), canonical::session())?;
    let agent = as_nobody(&setting, &["--speed", "max"])?;
    let walk = agent.client(&["walk"])?;
    let ids: Vec<&String> = walk["contexts"]
        .as_object()
        .ok_or("no contexts")?
        .keys()
        .collect();
    assert_eq!(ids, ["P100", "P100.100", "P100.101", "P200", "P200.200"]);
    assert_eq!(walk["contexts"]["P100.101"]["Name"], "worker 1");
    for (id, pid, tid) in [
        ("P100", 100, None),
        ("P100.101", 100, Some(101)),
        ("P200", 200, None),
    ] {
        for kernel in [false, true] {
            let mut more = vec!["--frequency", ALL_HZ];
            more.extend(kernel.then_some("--kernel"));
            let wish = Wish {
                pid: Some(pid),
                tid,
                kernel,
                frames: 64,
                range: None,
            };
            let recorded = capture::read(&setting.path("out.cap"), wish)?;
            check_same(id, &profiled(&agent, id, &more)?, &recorded);
        }
    }
    let said = agent.client(&[
        "profile",
        "P100",
        "--seconds",
        "1",
        "--frequency",
        ALL_HZ,
        "--kernel",
    ])?;
    let addresses = said["addresses"].as_object().ok_or("no addresses")?;
    let name = |address: &str| addresses.get(address).map(|one| one["name"].clone());
    for (address, expected) in [
        ("0x401105", "main"),
        ("0x401230", "handle_request(http::Request const&)"),
        ("0x401344", "parse_header"),
        ("0xffffffff81001000", "entry_SYSCALL_64_after_hwframe"),
        ("0xffffffff81003456", "copy_page_to_iter"),
    ] {
        assert_eq!(name(address), Some(expected.into()), "{address}");
    }
    assert_eq!(name("0x7f0000002222"), Some(Value::Null));
    // Where that code was nothing says: it has an address at which no code ever lies.
    let (place, _) = addresses
        .iter()
        .find(|(_, one)| one["name"] == "LazyCompile:~render app.js:3")
        .ok_or("no name of what was made at run time")?;
    let place = u64::from_str_radix(place.trim_start_matches("0x"), 16)?;
    assert_eq!(place >> 56, 0xf, "{place:#x}");
    // The line is that of the inlined function, the name that of the one it is in.
    assert_eq!(addresses["0x401344"]["line"], 9);
    agent.end()?;
    Ok(())
}

/// In its own time, five times as fast: a child comes and goes when it is due, and samples come as time
/// goes by.
#[test]
fn in_its_own_time() -> Outcome {
    let Some(setting) = with_clients("tcf_replay::in_its_own_time", true)? else {
        return Ok(());
    };
    let mut family = Talking::workload(&setting, "tcf_family.c", &[])?;
    let pid = family.pid().to_string();
    // Shown in 1.6 s from when the client is there; the child lives for half a second of it.
    let recorder = setting.start_recording(&["-F", "199", "-p", &pid, "-d", "8"])?;
    std::thread::sleep(Duration::from_millis(2500));
    let child = format!("P{}", family.ask("fork")?["pid"]);
    std::thread::sleep(Duration::from_millis(2500));
    family.ask("reap")?;
    recorder.end(LIMIT)?.success()?;
    let agent = as_nobody(&setting, &["--speed", "5"])?;
    let id = family.id();
    let arguments = [
        "profile",
        &id,
        "--seconds",
        "3",
        "--period",
        "0.2",
        "--frequency",
        ALL_HZ,
        "--scope",
        "Children",
        "--events",
    ];
    let said = agent.client(&arguments)?;
    let profile = Profile::of(&said)?;
    let mut times = BTreeMap::new();
    for event in said["events"].as_array().ok_or("no events")? {
        let arguments = event["arguments"][0]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let is_child = |one: &Value| *one == child.as_str() || one["ID"] == child.as_str();
        if let (Some(name), true) = (event["event"].as_str(), arguments.iter().any(is_child)) {
            times.insert(name.to_owned(), event["at"].as_f64().ok_or("no time")?);
        }
    }
    let lived = times
        .get("contextRemoved")
        .zip(times.get("contextAdded"))
        .map(|(to, from)| to - from)
        .ok_or_else(|| format!("{child}: {times:?}"))?;
    assert!(
        (0.25..0.8).contains(&lived),
        "2.5 s were shown in {lived} s"
    );
    // It profiles as soon as it is there.
    let wish = Wish {
        frames: 64,
        ..Wish::default()
    };
    let recorded = capture::read(&setting.path("out.cap"), wish)?;
    eprintln!("{} of {} samples", profile.samples, recorded.samples);
    assert!(profile.samples <= recorded.samples);
    assert!(profile.samples * 2 > recorded.samples);
    assert!(profile.leaf("child_work") > 0 && profile.leaf("parent_work") > 0);
    let with_samples = profile.reads.iter().filter(|&&samples| samples > 0).count();
    assert!(with_samples >= 3, "{:?}", profile.reads);
    agent.end()?;
    family.end()
}
