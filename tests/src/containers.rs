//! Real containers: an engine of our own, and runtimes without an engine.
//!
//! ```text
//! Root (files of a container) -> Docker: image, container    (a dockerd and a containerd of our own)
//!                             -> Runtime: bundle, container  (runc or crun alone)
//! ```
//! Nothing of the machine's own engines is touched: data, sockets and process ids are below scratch
//! folders, containers have no network. Whatever happens, all of it ends with the value that
//! stands for it; what is then still there (processes, mounts, cgroups) fails the test.
//!
//! What does not belong here: what the containers run (`tests/workloads/contained.c`), oracles.

mod docker;
mod leftovers;
mod root;
mod runtime;

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use object::{Object, ObjectSymbol};

use crate::process::{self, Ended};

pub use docker::Docker;
pub use root::Root;
pub use runtime::{Bundle, Contained, Runtime};

/// Where the workload is in every container.
pub const PROGRAM: &str = "/bin/work";
/// The workload of whoever is there all through a test and would be seen: it works for a fifth of the time, some hundred
/// samples a second, for others have to work as well.
pub const NOW_AND_THEN: [&str; 4] = [PROGRAM, "600000", "5000", "20000"];

/// How long one command of an engine or a runtime may take.
const COMMAND_LIMIT: Duration = Duration::from_secs(120);

/// Why containers can't be had here: one of these programs is missing, or privileges are.
fn missing(programs: &[&str]) -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("containers need root".to_owned());
    }
    let absent = programs.iter().find(|program| in_path(program).is_none())?;
    Some(format!("{absent} is not installed"))
}

/// Full path of a program.
pub fn in_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/sbin".into()])
        .map(|folder| folder.join(program))
        .find(|file| file.is_file())
}

/// Runs a command that must succeed.
fn run(command: &mut Command, folder: &Path, name: &str) -> io::Result<Ended> {
    let text = format!("{command:?}");
    process::run(command, folder, name, COMMAND_LIMIT)?
        .success()
        .map_err(|why| io::Error::other(format!("{text}: {why}")))
}

/// Names of all functions of a program, as its own table of symbols has them.
pub fn functions(program: &Path) -> io::Result<BTreeSet<String>> {
    let bytes = fs::read(program)?;
    let file = object::File::parse(&*bytes).map_err(io::Error::other)?;
    Ok(file
        .symbols()
        .filter(|symbol| symbol.kind() == object::SymbolKind::Text)
        .filter_map(|symbol| symbol.name().ok().map(str::to_owned))
        .collect())
}

/// The cgroups of a process, one line per hierarchy as in /proc/PID/cgroup.
pub fn cgroups_of(pid: u32) -> io::Result<String> {
    fs::read_to_string(format!("/proc/{pid}/cgroup"))
}

/// The last line of what a workload has said, and the first one, as JSON.
pub fn said(output: &str) -> io::Result<(serde_json::Value, serde_json::Value)> {
    let mut lines = output.lines().filter(|line| line.starts_with('{'));
    let first = lines.next();
    match (first, lines.next_back()) {
        (Some(first), Some(last)) => {
            Ok((serde_json::from_str(first)?, serde_json::from_str(last)?))
        }
        _ => Err(io::Error::other(format!(
            "a workload said '{output}' instead of two lines"
        ))),
    }
}

/// CPU time that a workload says that it used, by its output.
pub fn cpu_ns(output: &str) -> io::Result<u64> {
    said(output)?.1["cpu_ns"]
        .as_u64()
        .ok_or_else(|| io::Error::other(format!("no CPU time in '{output}'")))
}
