//! `cargo xtask conformance`: clients that others have made, at our servers.
//!
//! They are installed by their package managers below `target/conformance`, at the versions named here, and run by
//! tests that are skipped without them. What does not belong here: what they must find (the tests).

use std::path::Path;
use std::process::Command;

use crate::process::{Outcome, cargo, failed, run as run_command, workspace};

/// The client in Python, and its version.
const GECKORDP: &str = "geckordp==1.0.3";
/// The client in JavaScript, and its version.
const FIREFOX_CLIENT: &str = "@cliqz-oss/firefox-client@0.3.1";

/// Whose clients.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The protocol
    #[arg(value_parser = ["rdp"])]
    protocol: String,
}

/// Installs the clients that are not there, and runs them.
pub(crate) fn run(arguments: &Arguments) -> Outcome {
    let folder = workspace()
        .join("target/conformance")
        .join(&arguments.protocol);
    std::fs::create_dir_all(&folder).map_err(|error| failed("make a folder", error))?;
    python(&folder)?;
    node(&folder)?;
    run_command(
        cargo()
            .current_dir(workspace())
            .env("PROFILER_CONFORMANCE_RDP", &folder)
            .args(["test", "--package", "profiler-tests", "--test", "protocols"])
            .args(["rdp_conformance::", "--", "--nocapture"]),
    )
}

fn python(folder: &Path) -> Outcome {
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
            .arg(GECKORDP),
    )
}

fn node(folder: &Path) -> Outcome {
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
            .arg(FIREFOX_CLIENT),
    )
}
