//! `profiler serve --tcf`: who is admitted, what they may do to processes, and encrypted channels.

use std::fs;
use std::net::Ipv4Addr;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use crate::e2e_tcf_shared::profile::Profile;
use crate::e2e_tcf_shared::{Agent, Failure, NOBODY, Talking, with_clients};
use crate::e2e_tls_shared::{can_be_made, certificates};
use profiler_tests::Outcome;
use profiler_tests::process::{Ended, Running, run};
use profiler_tests::setting::{LIMIT, Setting};
use profiler_tests::skip::skip;
use serde_json::Value;

/// Runs a client as nobody.
fn as_nobody(agent: &Agent<'_>, setting: &Setting, arguments: &[&str]) -> Result<Ended, Failure> {
    let mut command = agent.command("client.py", arguments);
    command.current_dir("/").uid(NOBODY).gid(NOBODY);
    Ok(run(&mut command, setting.folder(), "nobody", LIMIT)?)
}

/// A process that does nothing, of this user.
fn sleeping(uid: u32) -> Result<Talking, Failure> {
    let mut command = Command::new("sleep");
    Talking::start(command.arg("100").uid(uid).gid(uid))
}

/// The kernel's letter for the state of a process.
fn state(pid: u32) -> char {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let rest = stat.rsplit_once(") ").map(|(_, rest)| rest.chars().next());
    rest.flatten().unwrap_or('X')
}

/// Waits for a process to be in this state.
fn wait_for(pid: u32, wanted: &[char]) -> Result<(), Failure> {
    for _ in 0..300 {
        if wanted.contains(&state(pid)) {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Err(format!("process {pid} is {}, not {wanted:?}", state(pid)).into())
}

/// Another user is turned away, with the remedy in the log, and served if the flag says so.
#[test]
fn other_users() -> Outcome {
    let Some(setting) = with_clients("e2e_tcf_access::other_users", true)? else {
        return Ok(());
    };
    let agent = Agent::start(&setting, &[])?;
    let ended = as_nobody(&agent, &setting, &["walk"])?.expect_status(1)?;
    assert!(ended.stdout.is_empty(), "{}", ended.stdout);
    agent.client(&["walk"])?;
    agent.end()?;

    let agent = Agent::start(&setting, &["--allow-user", "nobody"])?;
    let walk = as_nobody(&agent, &setting, &["walk"])?.success()?.json()?;
    assert!(walk["contexts"]["P1"].is_object());
    agent.client(&["walk"])?;
    agent.end()?;
    Ok(())
}

/// Calls a command as this client; the code of the error, 0 if there is none.
fn code(said: &Value) -> i64 {
    said["error"]["Code"].as_i64().unwrap_or(0)
}

/// Nobody controls a process without the flag; with it those who own it do, and root.
#[test]
fn control_over_processes() -> Outcome {
    let Some(setting) = with_clients("e2e_tcf_access::control_over_processes", true)? else {
        return Ok(());
    };
    let target = sleeping(NOBODY)?;
    let id = format!("\"{}\"", target.id());
    let all = [
        ["RunControl", "suspend", &id],
        ["RunControl", "terminate", &id],
        ["Processes", "terminate", &id],
    ];
    let agent = Agent::start(&setting, &["--allow-user", "nobody"])?;
    for [service, command, id] in all {
        let said = agent.call(service, command, &[id])?;
        assert_eq!(code(&said), 23, "{service}.{command}: {said}");
        let words = said["error"]["Format"].as_str().unwrap_or_default();
        assert!(words.contains("--allow-control"), "{words}");
    }
    let said = agent.call("Processes", "attach", &[&id])?;
    assert_eq!(code(&said), 13, "{said}");
    assert_eq!(state(target.pid()), 'S');
    agent.end()?;

    let agent = Agent::start(&setting, &["--allow-user", "nobody", "--allow-control"])?;
    let call = |arguments: &[&str]| -> Result<Value, Failure> {
        let arguments = [&["call"][..], arguments].concat();
        Ok(as_nobody(&agent, &setting, &arguments)?.success()?.json()?)
    };
    // What belongs to another user nobody touches.
    let roots = sleeping(0)?;
    let other = format!("\"{}\"", roots.id());
    for [service, command, _] in all {
        let said = call(&[service, command, &other])?;
        assert_ne!(code(&said), 0, "{service}.{command}: {said}");
    }
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(state(roots.pid()), 'S');

    // What a channel has stopped goes on when it closes.
    let name = target.id();
    let thread = format!("{name}.{}", target.pid());
    let steps = serde_json::json!([
        ["RunControl", "suspend", name],
        1.5,
        ["RunControl", "getState", thread],
        ["RunControl", "resume", name, 0, 1],
        1.5,
        ["RunControl", "getState", thread],
        ["RunControl", "suspend", name],
        1.5,
    ]);
    let mut client = agent.command("client.py", &["calls", &steps.to_string()]);
    client.current_dir("/").uid(NOBODY).gid(NOBODY);
    let client = Running::start(&mut client, setting.folder(), "steps")?;
    for wanted in ['T', 'S', 'T', 'S'] {
        wait_for(target.pid(), &[wanted])?;
    }
    let said = client.end(LIMIT)?.success()?.json()?;
    let codes: Vec<i64> = said["results"]
        .as_array()
        .ok_or("no results")?
        .iter()
        .map(code)
        .collect();
    assert_eq!(codes, [0; 5], "{said}");
    assert_eq!(said["results"][1]["result"][0], true, "{said}");
    assert_eq!(said["results"][3]["result"][0], false, "{said}");
    let events = said["events"].as_array().ok_or("no events")?;
    let of_thread: Vec<&str> = events
        .iter()
        .filter(|event| event[2][0] == thread.as_str())
        .filter_map(|event| event[1].as_str())
        .collect();
    assert!(
        of_thread.starts_with(&["contextSuspended", "contextResumed"]),
        "{said}"
    );
    assert_eq!(code(&call(&["RunControl", "terminate", &id])?), 0);
    wait_for(target.pid(), &['Z', 'X'])?;

    // Root may end root's.
    assert_eq!(code(&agent.call("Processes", "terminate", &[&other])?), 0);
    wait_for(roots.pid(), &['Z', 'X'])?;
    agent.end()?;
    Ok(())
}

/// Environments are told only if the flag says so.
#[test]
fn environments() -> Outcome {
    let Some(setting) = with_clients("e2e_tcf_access::environments", true)? else {
        return Ok(());
    };
    let mut command = Command::new("sleep");
    let target = Talking::start(command.arg("100").env("TCF_SECRET", "value"))?;
    let id = format!("\"{}\"", target.id());
    for (flags, allowed) in [(&[][..], false), (&["--allow-env"], true)] {
        let agent = Agent::start(&setting, flags)?;
        let said = agent.call("SysMonitor", "getEnvironment", &[&id])?;
        assert_eq!(
            said.to_string().contains("TCF_SECRET=value"),
            allowed,
            "{said}"
        );
        assert_eq!(code(&said) != 0, !allowed, "{said}");
        let said = agent.call("SysMonitor", "getCommandLine", &[&id])?;
        assert_eq!(said["result"][0], serde_json::json!(["sleep", "100"]));
        agent.end()?;
    }
    Ok(())
}

/// Over TLS clients get the same; those without it, or without the certificate that is wanted, nothing.
#[test]
fn encrypted_channels() -> Outcome {
    let test = "e2e_tcf_access::encrypted_channels";
    let Some(setting) = with_clients(test, true)? else {
        return Ok(());
    };
    if !can_be_made() {
        skip(test, "no openssl");
        return Ok(());
    }
    certificates(&setting, "agent", Ipv4Addr::LOCALHOST.into())?;
    certificates(&setting, "clients", Ipv4Addr::LOCALHOST.into())?;
    let keys = [
        "--tls-cert",
        "agent-host.pem",
        "--tls-key",
        "agent-host.key",
    ];
    let mut workload = Talking::workload(&setting, "tcf_shares.c", &["3"])?;
    workload.hear()?;
    let profile = [
        "profile",
        &workload.id(),
        "--seconds",
        "3",
        "--frequency",
        "499",
        "--settle",
    ];
    let client = |agent: &Agent<'_>, tls: &[&str]| -> Result<Ended, Failure> {
        let mut command = agent.command("client.py", tls);
        command.args(profile);
        Ok(run(&mut command, setting.folder(), "tls", LIMIT)?)
    };
    let trust = ["--tls-ca", "agent.pem"];
    let shown = [
        "--tls-ca",
        "agent.pem",
        "--tls-cert",
        "clients-host.pem",
        "--tls-key",
        "clients-host.key",
    ];
    let wrong = [
        "--tls-ca",
        "agent.pem",
        "--tls-cert",
        "agent-host.pem",
        "--tls-key",
        "agent-host.key",
    ];

    let agent = Agent::start(&setting, &keys)?;
    let found = Profile::of(&client(&agent, &trust)?.success()?.json()?)?;
    found.check_amount("over TLS", 499)?;
    assert!(found.leaf("leaf_a") > 0);
    client(&agent, &["--tls-ca", "clients.pem"])?.expect_status(1)?;
    // Plain text at a port that is encrypted.
    client(&agent, &[])?.expect_status(1)?;
    client(&agent, &trust)?.success()?;
    agent.end()?;

    let both = [&keys[..], &["--tls-client-ca", "clients.pem"]].concat();
    let agent = Agent::start(&setting, &both)?;
    client(&agent, &shown)?.success()?;
    client(&agent, &trust)?.expect_status(1)?;
    client(&agent, &wrong)?.expect_status(1)?;
    agent.end()?;

    workload.end()
}
