//! `profiler serve --tcf` while processes come, change and go: events in time, children and containers
//! as scopes, code without a file, files that are elsewhere.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::e2e_tcf_shared::profile::Profile;
use crate::e2e_tcf_shared::{Agent, Failure, Talking, attached, now_s, with_clients};
use profiler_target::cgroup::Hierarchies;
use profiler_tests::Outcome;
use profiler_tests::process::{Running, burnt};
use profiler_tests::setting::LIMIT;
use profiler_tests::skip::skip;
use profiler_tests::statistics::at_least;
use profiler_tests::undisturbed::leave_undisturbed;
use profiler_tests::workload;
use serde_json::Value;

/// How long an event may take.
const SOON_S: f64 = 1.0;

/// Events that a client is told.
struct Watch {
    running: Running,
}

impl Watch {
    fn start(agent: &Agent<'_>) -> Result<Watch, Failure> {
        let running = agent.begin("watch", "client.py", &["watch", "--seconds", "60"])?;
        // How soon it tells is the agent's matter, and not that of whoever has the processors.
        leave_undisturbed(agent.pid())?;
        leave_undisturbed(running.pid())?;
        // A client that has just come is told of nothing that was there before.
        std::thread::sleep(Duration::from_secs(2));
        Ok(Watch { running })
    }

    /// The first event with this name for whose arguments `holds`; when it came.
    fn event(
        &mut self,
        name: &str,
        holds: impl Fn(&Value) -> bool,
    ) -> Result<(f64, Value), Failure> {
        let mut found = None;
        let find = |running: &Running| {
            let said = running.stdout_so_far().unwrap_or_default();
            found = said.lines().find_map(|line| {
                let line: Value = serde_json::from_str(line).ok()?;
                let argument = line["arguments"][0].as_array()?;
                let one = argument
                    .iter()
                    .find(|one| line["event"] == name && holds(one))?;
                Some((line["at"].as_f64()?, one.clone()))
            });
            found.is_some()
        };
        self.running
            .wait_until(name, Duration::from_secs(10), find)?;
        Ok(found.ok_or("no event")?)
    }

    /// The same; it must have come soon after `begin`.
    fn soon(
        &mut self,
        begin: f64,
        name: &str,
        holds: impl Fn(&Value) -> bool,
    ) -> Result<Value, Failure> {
        let (at, value) = self.event(name, holds)?;
        eprintln!("{name} after {:.0} ms", (at - begin) * 1e3);
        match at - begin <= SOON_S {
            true => Ok(value),
            false => Err(format!("{name} came {:.2} s late: {value}", at - begin).into()),
        }
    }
}

/// Forks, threads, names, programs and ends of all of them, each told within a second.
#[test]
fn contexts_come_change_and_go() -> Outcome {
    let Some(setting) = with_clients("e2e_tcf_processes::contexts_come_change_and_go", true)?
    else {
        return Ok(());
    };
    let mut family = Talking::workload(&setting, "tcf_family.c", &[])?;
    let agent = Agent::start(&setting, &[])?;
    let mut watch = Watch::start(&agent)?;
    let id = family.id();

    let begin = now_s();
    let child = format!("P{}", family.ask("fork")?["pid"]);
    let context = watch.soon(begin, "contextAdded", |one| one["ID"] == child.as_str())?;
    assert_eq!(context["ProcessID"], child.as_str());
    assert_eq!(context["IsContainer"], true);
    let thread = format!("{child}.{}", &child[1..]);
    let main = watch.soon(begin, "contextAdded", |one| one["ID"] == thread.as_str())?;
    assert_eq!(
        (&main["ParentID"], &main["HasState"]),
        (&child.clone().into(), &true.into())
    );
    let context = agent.call("RunControl", "getContext", &[&format!("\"{child}\"")])?;
    assert_eq!(context["result"][0]["ID"], child.as_str());
    let system = agent.call("SysMonitor", "getContext", &[&format!("\"{child}\"")])?;
    assert_eq!(system["result"][0]["PPID"], family.pid(), "{system}");

    let begin = now_s();
    let helper = format!("{id}.{}", family.ask("thread")?["tid"]);
    watch.soon(begin, "contextAdded", |one| one["ID"] == helper.as_str())?;

    let begin = now_s();
    family.ask("reap")?;
    watch.soon(begin, "contextRemoved", |one| one == child.as_str())?;
    watch.soon(begin, "contextRemoved", |one| one == thread.as_str())?;
    let gone = agent.call("RunControl", "getContext", &[&format!("\"{child}\"")])?;
    assert!(
        [11, 16].contains(&gone["error"]["Code"].as_i64().unwrap_or(0)),
        "{gone}"
    );

    let begin = now_s();
    family.ask("name other")?;
    let main = format!("{id}.{}", family.pid());
    watch.soon(begin, "contextChanged", |one| {
        one["ID"] == main.as_str() && one["Name"] == "other"
    })?;

    let chain = setting.workload("chain.c")?;
    let begin = now_s();
    family.say(&format!("exec {} 3000", chain.display()))?;
    watch.soon(begin, "contextChanged", |one| {
        one["ID"] == id.as_str() && one["Name"] == "chain"
    })?;
    // The helper ended with the program that had it.
    watch.soon(begin, "contextRemoved", |one| one == helper.as_str())?;
    let arguments = ["profile", &id, "--seconds", "2", "--frequency", "499"];
    let profile = Profile::of(&agent.client(&arguments)?)?;
    let leaves: u64 = ["leaf_a", "leaf_b", "leaf_c"]
        .iter()
        .map(|leaf| profile.leaf(leaf))
        .sum();
    at_least(
        "leaves of the new program",
        leaves as usize,
        profile.samples as usize,
        0.95,
    )?;
    assert_eq!(profile.inclusive("parent_work"), 0);

    while family.runs()? {
        std::thread::sleep(Duration::from_millis(5));
    }
    let begin = now_s();
    watch.soon(begin, "contextRemoved", |one| one == id.as_str())?;
    agent.end()?;
    Ok(())
}

/// A program that is executed while it is profiled: the frames of both have names.
#[test]
fn an_exec_while_it_is_profiled() -> Outcome {
    let Some(setting) = with_clients("e2e_tcf_processes::an_exec_while_it_is_profiled", true)?
    else {
        return Ok(());
    };
    let mut family = Talking::workload(&setting, "tcf_family.c", &[])?;
    let agent = Agent::start(&setting, &[])?;
    let id = family.id();
    let arguments = [
        "profile",
        &id,
        "--seconds",
        "120",
        "--period",
        "2",
        "--frequency",
        "499",
        "--until-exit",
    ];
    let profiling = agent.begin("client", "client.py", &arguments)?;
    attached(&agent)?;
    burnt(family.pid(), Duration::from_secs(1))?;
    let chain = setting.workload("chain.c")?;
    family.say(&format!("exec {} 1000", chain.display()))?;
    let profile = Profile::of(&agent.result(profiling.end(LIMIT)?)?)?;
    let before = profile.leaf("parent_work");
    let leaves: u64 = ["leaf_a", "leaf_b", "leaf_c"]
        .iter()
        .map(|leaf| profile.leaf(leaf))
        .sum();
    eprintln!(
        "{before} before, {leaves} behind it, {} in all",
        profile.samples
    );
    assert!(before > 20 && leaves > 20);
    at_least(
        "names",
        (before + leaves) as usize,
        profile.samples as usize,
        0.95,
    )?;
    agent.end()?;
    Ok(())
}

/// Children are profiled with their parent if that is asked for: those that are there, and those that
/// come later.
#[test]
fn children_as_a_scope() -> Outcome {
    let Some(setting) = with_clients("e2e_tcf_processes::children_as_a_scope", true)? else {
        return Ok(());
    };
    let mut family = Talking::workload(&setting, "tcf_family.c", &[])?;
    let agent = Agent::start(&setting, &[])?;
    let id = family.id();
    let first = format!("P{}", family.ask("fork")?["pid"]);
    let profile = |scope: &str, name: &str| {
        let arguments = [
            "profile",
            &id,
            "--seconds",
            "4",
            "--frequency",
            "499",
            "--scope",
            scope,
        ];
        agent.begin(name, "client.py", &arguments)
    };
    let alone = profile("Context", "alone")?;
    let together = profile("Children", "together")?;
    std::thread::sleep(Duration::from_secs(2));
    let second = format!("P{}", family.ask("fork")?["pid"]);
    let alone = Profile::of(&agent.result(alone.end(LIMIT)?)?)?;
    let together = Profile::of(&agent.result(together.end(LIMIT)?)?)?;
    assert_ne!(first, second);
    assert!(alone.leaf("parent_work") > 20);
    assert_eq!(alone.inclusive("child_work"), 0);
    let (parent, child) = (together.leaf("parent_work"), together.leaf("child_work"));
    eprintln!("parent {parent}, children {child}");
    // How many depends on what else runs.
    assert!(parent > 20 && child > 20, "{parent} {child}");
    let named = (parent + child) as usize;
    at_least("names of both", named, together.samples as usize, 0.95)?;
    agent.end()?;
    family.end()
}

/// A cgroup of the hierarchy that sessions look at, version 1 or 2; removed when the test ends.
struct Cgroup(PathBuf);

impl Cgroup {
    fn new(name: &str) -> Option<Cgroup> {
        let hierarchies = Hierarchies::read().ok()?;
        let path = hierarchies
            .primary()?
            .directory(&format!("/{name}-{}", std::process::id()));
        fs::create_dir(&path).ok().map(|()| Cgroup(path))
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

/// All processes of a container are profiled with one of them.
#[test]
fn a_container_as_a_scope() -> Outcome {
    let test = "e2e_tcf_processes::a_container_as_a_scope";
    let Some(setting) = with_clients(test, true)? else {
        return Ok(());
    };
    let Some(cgroup) = Cgroup::new("profiler-tcf") else {
        skip(test, "no cgroups that can be written");
        return Ok(());
    };
    let program = setting.workload("tcf_family.c")?;
    let chain = setting.workload("chain.c")?;
    let inside = format!("echo $$ > {}/cgroup.procs; ", cgroup.0.display());
    let start =
        |what: String| Talking::start(Command::new("sh").args(["-c", &(inside.clone() + &what)]));
    let mut family = start(format!("exec {}", program.display()))?;
    let other = start(format!("exec {} 20000 --now-and-then", chain.display()))?;
    family.ask("name inside")?;
    let agent = Agent::start(&setting, &[])?;
    let id = family.id();
    let profile = |scope: &str| -> Result<Profile, Failure> {
        let arguments = [
            "profile",
            &id,
            "--seconds",
            "2",
            "--frequency",
            "499",
            "--scope",
            scope,
        ];
        Profile::of(&agent.client(&arguments)?)
    };
    let alone = profile("Context")?;
    assert!(alone.leaf("parent_work") > 20);
    assert_eq!(alone.inclusive("leaf_a"), 0);
    let together = profile("Container")?;
    assert!(together.leaf("parent_work") > 20);
    assert!(together.leaf("leaf_a") > 20, "{:?}", together.functions);
    agent.end()?;
    drop(other);
    family.end()
}

/// Code that was made at run time has the names of its map.
#[test]
fn code_without_a_file() -> Outcome {
    let test = "e2e_tcf_processes::code_without_a_file";
    if !cfg!(target_arch = "x86_64") {
        skip(test, "the workload has machine code of x86-64 only");
        return Ok(());
    }
    let Some(setting) = with_clients(test, true)? else {
        return Ok(());
    };
    let program = setting.workload("jit.c")?;
    let agent = Agent::start(&setting, &[])?;
    let jit = Talking::start(Command::new(program).arg("10000"))?;
    std::thread::sleep(Duration::from_millis(500));
    let arguments = ["profile", &jit.id(), "--seconds", "1", "--frequency", "499"];
    let profile = Profile::of(&agent.client(&arguments)?)?;
    let _ = fs::remove_file(format!("/tmp/perf-{}.map", jit.pid()));
    let hits = profile.with_chain(&["jitted_spin", "enter_jitted", "main"]);
    at_least("jitted_spin", hits as usize, profile.samples as usize, 0.95)?;
    agent.end()?;
    Ok(())
}

/// A program of another mount and process namespace, under another root: names and files are those of
/// what runs there, ids those of this side.
#[test]
fn a_program_in_a_container() -> Outcome {
    let Some(setting) = with_clients("e2e_tcf_processes::a_program_in_a_container", true)? else {
        return Ok(());
    };
    let root = setting.path("root");
    fs::create_dir_all(root.join("app"))?;
    fs::create_dir_all(root.join("proc"))?;
    fs::copy(workload::static_chain()?, root.join("app/service"))?;
    let root = root.display();
    let script = format!("mount -t proc proc {root}/proc && exec chroot {root} /app/service 10000");
    let agent = Agent::start(&setting, &[])?;
    let mut container = Command::new("unshare");
    container.args([
        "--mount",
        "--pid",
        "--fork",
        "--kill-child",
        "sh",
        "-c",
        &script,
    ]);
    let container = Talking::start(&mut container)?;
    let begin = Instant::now();
    let id = loop {
        let walk = agent.client(&["walk"])?;
        let contexts = walk["contexts"].as_object().ok_or("no contexts")?;
        let services: Vec<&Value> = contexts
            .values()
            .filter(|one| one["Name"] == "service" && one["ID"] == one["ProcessID"])
            .collect();
        match services[..] {
            [service] => break service["ID"].as_str().ok_or("no id")?.to_owned(),
            // It has yet to begin.
            [] if begin.elapsed() < LIMIT => std::thread::sleep(Duration::from_millis(100)),
            _ => return Err(format!("in the tree: {services:?}").into()),
        }
    };
    let profile =
        Profile::of(&agent.client(&["profile", &id, "--seconds", "3", "--frequency", "499"])?)?;
    for leaf in ["leaf_a", "leaf_b", "leaf_c"] {
        assert!(
            profile.leaf(leaf) * 10 > profile.samples,
            "{leaf}: {}",
            profile.leaf(leaf)
        );
        let module = &profile.modules[leaf];
        assert!(module.ends_with("/app/service"), "{module}");
        assert!(!profile.functions[leaf].lines.is_empty());
    }
    agent.end()?;
    drop(container);
    Ok(())
}
