//! Builds the workloads of `tests/workloads` into `target/workloads`.
//!
//! They are built by the compilers themselves and not by cargo, because each needs flags of its own:
//! optimised, yet with frame pointers and without tail calls, whatever the profile of the workspace.
//! A workload is built when it is asked for and older than its sources; a lock of each keeps test
//! binaries that run at the same time apart.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{FlockOperation, flock};

/// Why there is no workload.
#[derive(Debug)]
pub enum Unbuilt {
    /// The compiler is not installed.
    NoCompiler(&'static str),
    /// It did not build.
    Failed(String),
}

impl std::fmt::Display for Unbuilt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Unbuilt::NoCompiler(name) => write!(f, "the compiler {name} is not installed"),
            Unbuilt::Failed(what) => f.write_str(what),
        }
    }
}

impl std::error::Error for Unbuilt {}

impl From<io::Error> for Unbuilt {
    fn from(error: io::Error) -> Unbuilt {
        Unbuilt::Failed(error.to_string())
    }
}

/// Every source in `tests/workloads`; the name of the program is that of the source with `_` for
/// the dot of a second language (`chain_cpp`, `chain_rs`), and `plugin.so`.
pub const ALL: &[&str] = &[
    "chain.c",
    "chain.cpp",
    "chain.rs",
    "dlopen_late.c",
    "faults.c",
    "five_ms.c",
    "fork_storm.c",
    "jit.c",
    "leaderless.c",
    "map_file.c",
    "migrate.c",
    "pause.c",
    "plugin.c",
    "rdp_calls.c",
    "rdp_marks.c",
    "short_lived.c",
    "tcf_crowd.c",
    "tcf_family.c",
    "tcf_shares.c",
    "threads.c",
];

const C_FLAGS: &[&str] = &[
    "-O2",
    "-g",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-fno-omit-frame-pointer",
    "-fno-optimize-sibling-calls",
];

/// Folder that holds the built workloads.
pub fn folder() -> PathBuf {
    target().join("workloads")
}

/// Cargo's target folder: where the running test binary is in.
pub fn target() -> PathBuf {
    let found = std::env::current_exe().ok().and_then(|exe| {
        exe.ancestors()
            .find(|folder| folder.join("CACHEDIR.TAG").exists())
            .map(Path::to_path_buf)
    });
    found.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../target"))
}

/// Cargo, without what the one that runs this test says of the package it runs: build scripts that ask for
/// that would run anew each time, and all that depends on them would be built anew.
pub fn cargo() -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
    for (name, _) in std::env::vars_os() {
        let of_package = name.to_str().is_some_and(|name| {
            name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_")
        });
        if of_package {
            cargo.env_remove(name);
        }
    }
    cargo
}

/// A compiler of this name: the one that the environment names, or that in PATH.
pub fn compiler(name: &str) -> Command {
    match name {
        "go" => go(),
        "rustc" => Command::new(std::env::var_os("RUSTC").unwrap_or("rustc".into())),
        _ => Command::new(name),
    }
}

/// Go: the one that `PROFILER_GO` names, or that in PATH. What it compiles of its own library is kept in one place
/// for all tests.
pub fn go() -> Command {
    let mut go = Command::new(std::env::var_os("PROFILER_GO").unwrap_or("go".into()));
    go.env("GOCACHE", folder().join(".go-cache"));
    go.env("GOTOOLCHAIN", "local");
    // Its compiler takes a fifth less time where it cleans up less often.
    go.env("GOGC", "400");
    go
}

/// Path of the program built of `source`, one of [`ALL`].
pub fn built(source: &str) -> Result<PathBuf, Unbuilt> {
    let input = source_path(source);
    let (stem, language) = source.rsplit_once('.').unwrap_or((source, ""));
    let output = match (stem, language) {
        ("plugin", _) => "plugin.so".to_owned(),
        (_, "c") => stem.to_owned(),
        _ => format!("{stem}_{language}"),
    };
    let inputs = [input.clone(), source_path("burn.h"), sdk("profiler.h")];
    made(&output, &inputs, |fresh| {
        let (compiler, mut command) = compiler_of(language);
        if stem == "plugin" {
            command.args(["-shared", "-fPIC"]);
        }
        command.arg("-o").arg(fresh).arg(&input);
        if language == "c" {
            command.args(["-lpthread", "-ldl"]);
        }
        (compiler, command)
    })
}

/// Path of the program built of `source`, an example of `sdk`.
pub fn example(source: &str) -> Result<PathBuf, Unbuilt> {
    let input = sdk("examples").join(source);
    let (stem, language) = source.rsplit_once('.').unwrap_or((source, ""));
    let inputs = [input.clone(), sdk("profiler.h"), sdk("profiler.rs")];
    made(&format!("{stem}_example_{language}"), &inputs, |fresh| {
        let (compiler, mut command) = compiler_of(language);
        command.arg("-o").arg(fresh).arg(&input);
        (compiler, command)
    })
}

fn sdk(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../sdk")
        .join(name)
}

/// `chain` without shared libraries: it runs where there is nothing else, below a root of its own.
pub fn static_chain() -> Result<PathBuf, Unbuilt> {
    static_program("chain.c", "chain-static", &[])
}

/// `contained` without shared libraries, whose functions' names begin with `name`: `name_leaf`, ...
pub fn contained(name: &str) -> Result<PathBuf, Unbuilt> {
    let define = format!("-DNAME={name}");
    static_program("contained.c", &format!("contained-{name}"), &[&define])
}

fn static_program(source: &str, output: &str, flags: &[&str]) -> Result<PathBuf, Unbuilt> {
    let input = source_path(source);
    made(output, &[input.clone(), source_path("burn.h")], |fresh| {
        let (compiler, mut command) = compiler_of("c");
        command.args(flags).arg("-static");
        command.arg("-o").arg(fresh).arg(&input);
        (compiler, command)
    })
}

/// Path of the source of a workload.
pub fn source_path(source: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("workloads")
        .join(source)
}

/// The file `name` in the folder of the workloads, made anew if it is older than `inputs`: by the
/// compiler and command that `command` gives for the path that it gets.
pub fn made(
    name: &str,
    inputs: &[PathBuf],
    command: impl FnOnce(&Path) -> (&'static str, Command),
) -> Result<PathBuf, Unbuilt> {
    let folder = folder();
    fs::create_dir_all(&folder)?;
    let lock = File::create(folder.join(format!(".{name}.lock")))?;
    flock(&lock, FlockOperation::LockExclusive).map_err(io::Error::from)?;

    let output = folder.join(name);
    let newest = newest_of(inputs)?;
    if output
        .metadata()
        .and_then(|m| m.modified())
        .is_ok_and(|time| time > newest)
    {
        return Ok(output);
    }
    // Built aside and moved: a test must never run half a program.
    let fresh = folder.join(format!(".{name}.new"));
    let (compiler, mut command) = command(&fresh);
    let run = command.output().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => Unbuilt::NoCompiler(compiler),
        _ => Unbuilt::Failed(format!("failed to run {compiler}: {error}")),
    })?;
    if !run.status.success() {
        return Err(Unbuilt::Failed(format!(
            "{command:?} failed: {}",
            String::from_utf8_lossy(&run.stderr)
        )));
    }
    fs::rename(&fresh, &output)?;
    Ok(output)
}

fn compiler_of(language: &str) -> (&'static str, Command) {
    match language {
        "rs" => {
            let mut command = self::compiler("rustc");
            command.args([
                "--edition",
                "2024",
                "-O",
                "-g",
                "-C",
                "force-frame-pointers=yes",
            ]);
            ("rustc", command)
        }
        "cpp" => {
            let mut command = Command::new("c++");
            command.args(C_FLAGS);
            ("c++", command)
        }
        _ => {
            let mut command = Command::new("cc");
            command.args(C_FLAGS);
            ("cc", command)
        }
    }
}

fn newest_of(paths: &[PathBuf]) -> io::Result<std::time::SystemTime> {
    let mut newest = std::time::SystemTime::UNIX_EPOCH;
    for path in paths {
        newest = newest.max(path.metadata()?.modified()?);
    }
    Ok(newest)
}
