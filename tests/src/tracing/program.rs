//! Building the programs that are traced, each in the ways that matter to a tracer.
//!
//! Input: a source in `tests/workloads` and a [`Build`]. Output: a path in a test's scratch folder.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::process::Command;

use crate::setting::Setting;
use crate::skip::skip;
use crate::workload::{self, Unbuilt};

/// How a program is built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Build {
    /// -O2.
    Optimised,
    /// -O0: frame pointers, all that can be is in memory.
    Plain,
    /// -O2 -fcf-protection=full: endbr64 at every entry.
    Protected,
    /// -O2, symbols, no debug information.
    NoDebug,
    /// -O2, and no symbols but what dynamic linking needs.
    Stripped,
}

impl Build {
    fn name(self) -> &'static str {
        match self {
            Build::Optimised => "o2",
            Build::Plain => "o0",
            Build::Protected => "cet",
            Build::NoDebug => "nodebug",
            Build::Stripped => "stripped",
        }
    }

    fn flags(self) -> &'static [&'static str] {
        match self {
            Build::Optimised => &["-O2", "-g", "-fcf-protection=none"],
            Build::Plain => &["-O0", "-g", "-fcf-protection=none"],
            Build::Protected => &["-O2", "-g", "-fcf-protection=full"],
            Build::NoDebug => &["-O2", "-fcf-protection=none"],
            Build::Stripped => &["-O2", "-s", "-fcf-protection=none"],
        }
    }
}

/// A setting for `test` with a program in it; none, and said so, if there can't be one.
pub fn prepared(test: &str, source: &str, build: Build) -> io::Result<Option<(Setting, PathBuf)>> {
    let Some(setting) = Setting::new(test)? else {
        return Ok(None);
    };
    Ok(program(&setting, test, source, build)?.map(|program| (setting, program)))
}

/// The program built of `source` (`trace_calls.c`, `trace_go/main.go`, ..), in the scratch folder
/// under the name of its source alone; `trace_plugin.c` is a shared object. None, and said so, without
/// its compiler.
pub fn program(
    setting: &Setting,
    test: &str,
    source: &str,
    build: Build,
) -> io::Result<Option<PathBuf>> {
    let built = match built(source, build) {
        Ok(built) => built,
        Err(missing @ Unbuilt::NoCompiler(_)) => {
            skip(test, &missing.to_string());
            return Ok(None);
        }
        Err(failed) => return Err(io::Error::other(failed)),
    };
    let name = source.split(['.', '/']).next().unwrap_or(source);
    let copy = setting.path(name);
    fs::copy(built, &copy)?;
    Ok(Some(copy))
}

fn built(source: &str, build: Build) -> Result<PathBuf, Unbuilt> {
    let input = workload::source_path(source);
    let (stem, language) = source.rsplit_once('.').unwrap_or((source, ""));
    let stem = stem.replace('/', "_");
    let mut inputs = vec![input.clone()];
    if matches!(language, "c" | "cpp") {
        inputs.extend(["trace.h", "trace_kinds.h"].map(workload::source_path));
    }
    let name = format!("{stem}-{}", build.name());
    workload::made(&name, &inputs, |output| match language {
        "go" => {
            let mut command = workload::go();
            command
                .env("GO111MODULE", "off")
                .args(["build", "-o"])
                .arg(output)
                .arg(&input);
            ("go", command)
        }
        "rs" => {
            let mut command = workload::compiler("rustc");
            command.args(["--edition", "2024", "-g"]);
            command.args((build != Build::Plain).then_some("-O"));
            command.arg("-o").arg(output).arg(&input);
            ("rustc", command)
        }
        _ => {
            let compiler = if language == "cpp" { "c++" } else { "cc" };
            let mut command = Command::new(compiler);
            command
                .args(build.flags())
                .args(["-Wall", "-Wextra", "-Werror", "-fexceptions"]);
            if stem == "trace_plugin" {
                command.args(["-shared", "-fPIC"]);
            }
            command.arg("-o").arg(output).arg(&input);
            command.args(["-lpthread", "-ldl"]);
            (compiler, command)
        }
    })
}
