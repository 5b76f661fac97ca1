//! `profiler serve --tcf` from its start to its end: what is in the kernel and when, how it ends, what it
//! says where it can't begin.

use std::fs;
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::e2e_tcf_shared::profile::Profile;
use crate::e2e_tcf_shared::{
    Agent, NOBODY, Talking, attached, descriptors, network_sockets, with_clients,
};
use profiler_tests::Outcome;
use profiler_tests::kernel_objects::{held_by, wait_until_gone};
use profiler_tests::process::{Ended, run};
use profiler_tests::setting::LIMIT;
use rustix::process::Signal;

/// How long what is in the kernel stays there behind the last client, and a second more.
const LINGER: Duration = Duration::from_secs(11);

/// Descriptors of what is in the kernel: programs, maps, links, events.
fn in_kernel(pid: u32) -> Result<Vec<String>, Box<dyn std::error::Error>> {
    let kinds = descriptors(pid)?.into_keys();
    Ok(kinds
        .filter(|kind| kind.contains("bpf") || kind.contains("perf_event"))
        .collect())
}

/// Behind its last client nothing is left in the kernel, and the target goes on as before. The next
/// client is served all the same.
#[test]
fn nothing_is_left_behind_the_last_client() -> Outcome {
    let test = "e2e_tcf_lifecycle::nothing_is_left_behind_the_last_client";
    let Some(setting) = with_clients(test, true)? else {
        return Ok(());
    };
    let mut workload = Talking::workload(&setting, "tcf_shares.c", &["3"])?;
    workload.hear()?;
    let agent = Agent::start(&setting, &[])?;
    let id = workload.id();
    for round in 0..2 {
        let arguments = [
            "profile",
            &id,
            "--seconds",
            "3",
            "--frequency",
            "499",
            "--settle",
        ];
        let profiling = agent.begin("client", "client.py", &arguments)?;
        let held = attached(&agent)?;
        assert!(!in_kernel(agent.pid())?.is_empty());
        let profile = Profile::of(&agent.result(profiling.end(LIMIT)?)?)?;
        profile.check_amount(&format!("round {round}"), 499)?;
        // The processors are for others meanwhile.
        workload.signal(Signal::STOP)?;
        std::thread::sleep(LINGER);
        wait_until_gone(&held, Duration::from_secs(1))?;
        workload.signal(Signal::CONT)?;
        assert_eq!(
            in_kernel(agent.pid())?,
            Vec::<String>::new(),
            "round {round}"
        );
        let (from, to) = (workload.ask("from")?, {
            std::thread::sleep(Duration::from_millis(200));
            workload.ask("to")?
        });
        assert_ne!(from, to, "the target stands still");
    }
    agent.end()?;
    workload.end()
}

/// Ctrl-C ends it with all that is in the kernel; a client that profiles gets the end of its stream.
/// After SIGKILL nothing is left either.
#[test]
fn its_end() -> Outcome {
    let Some(setting) = with_clients("e2e_tcf_lifecycle::its_end", true)? else {
        return Ok(());
    };
    let workload = Talking::workload(&setting, "tcf_shares.c", &["9"])?;
    for signal in [Signal::INT, Signal::TERM, Signal::KILL] {
        let agent = Agent::start(&setting, &[])?;
        let arguments = [
            "profile",
            &workload.id(),
            "--seconds",
            "60",
            "--frequency",
            "99",
        ];
        let before = network_sockets(agent.pid())?;
        let profiling = agent.begin("client", "client.py", &arguments)?;
        let begin = Instant::now();
        while network_sockets(agent.pid())? == before {
            assert!(begin.elapsed() < LIMIT, "the client does not come");
            std::thread::sleep(Duration::from_millis(50));
        }
        // It configures, and waits for its first samples.
        std::thread::sleep(Duration::from_secs(2));
        let held = held_by(agent.pid())?;
        assert!(!held.programs.is_empty());
        agent.running.signal(signal)?;
        let ended = agent.running.end(Duration::from_secs(10))?;
        let client = profiling.end(Duration::from_secs(10))?.expect_status(1)?;
        if signal == Signal::KILL {
            assert!(ended.status.code().is_none());
        } else {
            ended.success()?;
            let said = &client.stderr;
            assert!(said.contains("the agent ended the stream"), "{said}");
        }
        wait_until_gone(&held, Duration::from_secs(5))?;
    }
    workload.end()
}

/// One line that names the thing and the remedy, with this status.
fn one_line(what: &str, ended: Ended, status: i32, words: &[&str]) -> Result<(), String> {
    let ended = ended.expect_status(status)?;
    let said = ended.stderr.trim_end();
    // Usage errors are those of the command line's own parser.
    if status == 1 && said.lines().count() != 1 {
        return Err(format!("{what}: not one line: {said}"));
    }
    match words.iter().find(|word| !said.contains(**word)) {
        Some(word) => Err(format!("{what}: '{word}' is not in: {said}")),
        None if !ended.stdout.is_empty() => Err(format!("{what}: {}", ended.stdout)),
        None => Ok(()),
    }
}

#[test]
fn what_can_not_begin_says_why() -> Outcome {
    let Some(setting) = with_clients("e2e_tcf_lifecycle::what_can_not_begin_says_why", true)?
    else {
        return Ok(());
    };
    let taken = TcpListener::bind("127.0.0.1:0")?;
    let address = taken.local_addr()?.to_string();
    let port = taken.local_addr()?.port().to_string();
    let text = setting.path("text");
    fs::write(&text, "no capture, no certificate\n")?;
    let text = text.to_string_lossy();
    let any = "127.0.0.1:0";
    let cases: [(&str, &[&str], i32, &[&str]); 10] = [
        ("a port in use", &["--tcf", &address], 1, &[&port, "in use"]),
        (
            "other machines",
            &["--tcf", "0.0.0.0:0"],
            2,
            &["--allow-remote"],
        ),
        ("no address", &["--tcf", "nonsense:x"], 2, &["nonsense:x"]),
        (
            "no such user",
            &["--tcf", any, "--allow-user", "no-such-user"],
            2,
            &["no-such-user"],
        ),
        (
            "no such certificate",
            &[
                "--tcf",
                any,
                "--tls-cert",
                "/no/cert.pem",
                "--tls-key",
                "/no/key.pem",
            ],
            1,
            &["/no/cert.pem"],
        ),
        (
            "a certificate that is none",
            &["--tcf", any, "--tls-cert", &text, "--tls-key", &text],
            1,
            &[&text],
        ),
        (
            "a certificate without key",
            &["--tcf", any, "--tls-cert", &text],
            2,
            &["--tls-key"],
        ),
        (
            "no such capture",
            &["--tcf", any, "--replay", "/no/such.cap"],
            1,
            &["/no/such.cap"],
        ),
        (
            "no capture",
            &["--tcf", any, "--replay", &text],
            1,
            &[&text],
        ),
        (
            "a speed without a capture",
            &["--tcf", any, "--speed", "2"],
            2,
            &["--replay"],
        ),
    ];
    for (what, arguments, status, words) in cases {
        let ended = setting.run(&[&["serve"][..], arguments].concat())?;
        one_line(what, ended, status, words)?;
    }
    setting.run(&["serve"])?.expect_status(2)?;

    // Without privileges: what is missing.
    let copy = setting.profiler_for_all()?;
    let mut command = Command::new(&copy);
    command
        .args(["serve", "--tcf", any])
        .current_dir("/tmp")
        .uid(NOBODY)
        .gid(NOBODY);
    let ended = run(&mut command, setting.folder(), "nobody", LIMIT)?;
    one_line("as nobody", ended, 1, &["CAP_"])?;
    Ok(())
}
