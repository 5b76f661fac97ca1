//! Clients of the remote debugging protocol that others have made, at `profiler serve --rdp`.
//!
//! `cargo xtask conformance rdp` installs them and says where; elsewhere this is skipped. What does not belong here:
//! what our own client finds (`e2e_rdp`).

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::e2e_rdp_shared::Server;
use crate::e2e_tcf_shared::{Failure, Talking, own};
use profiler_tests::Outcome;
use profiler_tests::setting::Setting;
use profiler_tests::skip::skip;
use serde_json::{Value, json};

/// Calls that the program is asked for.
const CALLS: u64 = 500;

/// Where the clients are.
fn clients() -> Option<PathBuf> {
    std::env::var_os("PROFILER_CONFORMANCE_RDP").map(PathBuf::from)
}

/// Runs a client, and has the program call when the client is ready; what the client says at its end.
fn run(
    setting: &Setting,
    mut client: Command,
    script: &str,
    environment: Option<(&str, OsString)>,
) -> Result<Value, Failure> {
    let mut program = Talking::workload(setting, "rdp_calls.c", &[])?;
    program.hear()?;
    let server = Server::start(setting, &["--budget", "off"])?;
    client.arg(own("conformance/rdp").join(script)).args([
        server.port.to_string(),
        program.pid().to_string(),
        CALLS.to_string(),
    ]);
    if let Some((name, value)) = environment {
        client.env(name, value);
    }
    let mut client = Talking::start(&mut client)?;
    let asked = client.line()?;
    assert_eq!(asked.trim(), format!("run {CALLS}"), "{asked}");
    program.ask(&format!("0 {CALLS}"))?;
    client.say("done")?;
    let said = client.hear()?;
    client.end()?;
    server.end()?;
    program.end()?;
    Ok(said)
}

/// geckordp: what it asks first, all states and errors of a TraceActor, and exact counts.
#[test]
fn geckordp() -> Outcome {
    let test = "rdp_conformance::geckordp";
    let Some(clients) = clients() else {
        skip(test, "`cargo xtask conformance rdp` runs it");
        return Ok(());
    };
    let Some(setting) = Setting::new(test)? else {
        return Ok(());
    };
    let python = clients.join("venv/bin/python");
    let said = run(&setting, Command::new(python), "geckordp_client.py", None)?;
    for list in ["addons", "workers", "registrations"] {
        assert_eq!(said[list], json!([]), "{said}");
    }
    assert!(
        said["tabs"].as_u64() > Some(1) && said["selected"] == true,
        "{said}"
    );
    assert_eq!(said["traceTypes"].as_array().map(Vec::len), Some(12));
    let errors = json!([
        "wrongState",
        "wrongState",
        "unrecognizedPacketType",
        "wrongState",
        "wrongState",
        "noSuchTraceType",
        "wrongState",
        "noSuchTrace"
    ]);
    assert_eq!(said["errors"], errors);
    assert_eq!(said["started"], json!(["foo", "foo", "bar", "baz"]));
    assert_eq!(said["stopped"], json!(["bar", "baz", "foo"]));
    assert_eq!(
        (&said["lifo"], &said["whole"]),
        (&json!(true), &json!(true))
    );
    assert_eq!(
        (&said["entered"], &said["exited"]),
        (&json!(3 * CALLS), &json!(3 * CALLS))
    );
    Ok(())
}

/// firefox-client, which knows no events of a TraceActor.
#[test]
fn firefox_client() -> Outcome {
    let test = "rdp_conformance::firefox_client";
    let Some(clients) = clients() else {
        skip(test, "`cargo xtask conformance rdp` runs it");
        return Ok(());
    };
    let Some(setting) = Setting::new(test)? else {
        return Ok(());
    };
    if !Path::new(&clients).join("node_modules").exists() {
        skip(test, "no npm");
        return Ok(());
    }
    let modules = clients.join("node_modules").into_os_string();
    let mut node = Command::new("node");
    node.arg("--no-deprecation");
    let said = run(
        &setting,
        node,
        "firefox_client.js",
        Some(("NODE_PATH", modules)),
    )?;
    let expected = json!({
        "threadActor": true,
        "errors": ["wrongState"],
        "types": 12,
        "started": "startedTrace",
        "stopped": "stoppedTrace",
        "detached": "detached",
        "whole": true,
        "entered": 3 * CALLS,
        "exited": 3 * CALLS,
    });
    assert_eq!(said, expected);
    Ok(())
}
