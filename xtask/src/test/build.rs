//! The workspace -> its test executables and the profiler, built while packages are installed.
//!
//! One call of cargo for the tests, one for the program, of one profile. That is the release: end-to-end tests run the
//! program that users run, tests call what is in it, and what `cargo run --release` built is there already.
//! `--debug` has both of the profile that is built sooner after a change.
//!
//! What does not belong here: which packages tests need (`setup`), what the executables hold (`list`).

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;

use serde_json::Value;

/// An executable with tests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Executable {
    /// What the names of its tests begin with: that of the crate or of the folder in `tests/tests`.
    pub(super) name: String,
    /// Where it is.
    pub(super) path: PathBuf,
    /// The folder of its package, which its tests run in.
    pub(super) folder: PathBuf,
    /// Whether it has the tests of `tests/tests`, and not those of a crate itself.
    pub(super) integration: bool,
}

/// What was built, and what is there to test with.
pub(super) struct Built {
    pub(super) executables: Vec<Executable>,
    pub(super) profiler: PathBuf,
    /// Whether that is an unoptimised one.
    pub(super) debug: bool,
    /// The Go that checks traces.
    pub(super) go: Option<PathBuf>,
}

/// Builds all, and installs what tests need meanwhile; with `long` those that only `--long` runs, too.
pub(super) fn build(root: &Path, long: bool, debug: bool) -> io::Result<Built> {
    install_compilers()?;
    let (executables, profiler, go) = thread::scope(|scope| {
        let tools = scope.spawn(move || crate::setup::test_tools(long));
        let built = build_all(root, debug);
        let tools = tools
            .join()
            .unwrap_or_else(|_| Err(crate::process::Failure("a thread has panicked".to_owned())));
        let (executables, profiler) = built?;
        let go = tools.map_err(|failure| io::Error::other(failure.0))?;
        Ok::<_, io::Error>((executables, profiler, go))
    })?;
    Ok(Built {
        executables,
        profiler,
        debug,
        go,
    })
}

fn build_all(root: &Path, debug: bool) -> io::Result<(Vec<Executable>, PathBuf)> {
    let mut cargo = crate::process::cargo();
    cargo.args(["test", "--workspace", "--tests", "--no-run"]);
    if !debug {
        cargo.arg("--release");
        super::compiler::wrap(&mut cargo)?;
    }
    let tests = said(root, cargo)?;
    let mut executables = executables_in(&tests);
    executables.sort_by(|a, b| a.name.cmp(&b.name));
    let program: &[&str] = match debug {
        true => &["build", "--workspace", "--bin", "profiler"],
        false => crate::budgets::RELEASE,
    };
    let mut cargo = crate::process::cargo();
    cargo.args(program);
    let programs = said(root, cargo)?;
    let profiler = messages(&programs)
        .filter(|message| message["target"]["name"] == "profiler")
        .find_map(|message| message["executable"].as_str().map(PathBuf::from))
        .ok_or_else(|| io::Error::other("cargo named no program 'profiler'"))?;
    Ok((executables, profiler))
}

/// Runs cargo, which says on standard error what it does. Gives its messages.
fn said(root: &Path, mut cargo: Command) -> io::Result<String> {
    let text = crate::process::line(&cargo);
    let output = cargo
        .arg("--message-format=json-render-diagnostics")
        .current_dir(root)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()?;
    if !output.status.success() {
        return Err(io::Error::other(format!(
            "'{text}' failed: {}",
            output.status
        )));
    }
    String::from_utf8(output.stdout).map_err(io::Error::other)
}

fn messages(text: &str) -> impl Iterator<Item = Value> {
    text.lines()
        .filter_map(|line| serde_json::from_str(line).ok())
}

fn executables_in(text: &str) -> Vec<Executable> {
    messages(text)
        .filter(|message| message["profile"]["test"] == true)
        .filter_map(|message| {
            let manifest = Path::new(message["manifest_path"].as_str()?);
            Some(Executable {
                name: message["target"]["name"].as_str()?.replace('-', "_"),
                path: message["executable"].as_str()?.into(),
                folder: manifest.parent()?.to_path_buf(),
                integration: message["target"]["kind"][0] == "test",
            })
        })
        .collect()
}

/// The workloads are C and C++. Without root the tests say themselves what they lack.
fn install_compilers() -> io::Result<()> {
    let present = |name: &str| {
        let mut command = Command::new(name);
        command
            .arg("--version")
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    if (present("cc") && present("c++")) || !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    crate::setup::install_packages("compilers of the workloads", &["gcc", "g++", "libc6-dev"])
        .map_err(|failure| io::Error::other(failure.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_executables_are_found_among_messages() {
        let text = r#"
{"reason":"compiler-artifact","manifest_path":"/w/p/Cargo.toml","target":{"kind":["lib"],"name":"p"},"profile":{"test":false},"executable":null}
{"reason":"compiler-artifact","manifest_path":"/w/p/Cargo.toml","target":{"kind":["lib"],"name":"p-q"},"profile":{"test":true},"executable":"/t/p-1"}
{"reason":"compiler-artifact","manifest_path":"/w/tests/Cargo.toml","target":{"kind":["test"],"name":"probes"},"profile":{"test":true},"executable":"/t/probes-2"}
{"reason":"build-finished","success":true}
"#;
        let executable = |name: &str, path: &str, folder: &str, integration| Executable {
            name: name.to_owned(),
            path: path.into(),
            folder: folder.into(),
            integration,
        };
        let expected = [
            executable("p_q", "/t/p-1", "/w/p", false),
            executable("probes", "/t/probes-2", "/w/tests", true),
        ];
        assert_eq!(executables_in(text), expected);
    }
}
