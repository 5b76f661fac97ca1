//! `cargo xtask check`: what must hold for every commit and no test can see.
//!
//! Formatting, lints, the kernel-side object's sources, headers of files, what the compiler does not hold of
//! which room may use which, and what others wrote (`dependencies`). All checks run; the command fails if any does.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::{
    dependencies, ebpf,
    process::{self, Failure, Outcome, cargo, failed, workspace},
};

/// Rooms that share a crate, and those of their crate that each may use: what the compiler does not hold.
/// Exporters, views and what reads other tools' files do not see each other.
const ROOMS: &[(&str, &[&str])] = &[
    ("crates/report/src/derive", &[]),
    ("crates/report/src/export", &["derive"]),
    ("crates/report/src/import", &["derive"]),
    ("crates/report/src/view", &["derive"]),
    ("src/pipeline", &["error"]),
    ("src/cli", &["error", "pipeline"]),
];

/// Crates that only calculate, and what would be more than that.
const PURE: &[&str] = &["crates/model/src", "crates/wire/src"];
const IMPURE: &[&str] = &[
    "std::env",
    "std::fs",
    "std::net",
    "std::os",
    "std::process",
    "std::thread",
    "SystemTime",
    "Instant::now",
    "libc",
    "rustix",
    "tokio",
];

/// Folders with sources.
const CRATES: &[&str] = &[
    "profiler",
    "profiler-common",
    "profiler-ebpf",
    "xtask",
    "tests",
];

type Check = fn() -> Outcome;

/// Runs all checks.
pub(crate) fn run() -> Outcome {
    let checks: [(&str, Check); 10] = [
        ("formatting", formatting),
        ("kernel-side object", ebpf::check_fresh),
        ("headers", headers),
        ("nothing that is not run", nothing_unrun),
        ("rooms of one crate", rooms),
        ("no input, no output", pure),
        ("dependencies", dependencies::check),
        ("versions that fuzz targets are built with", fuzz_versions),
        ("lints", lints),
        ("lints without features", lints_bare),
    ];
    let mut bad = Vec::new();
    for (name, check) in checks {
        match check() {
            Ok(()) => println!("ok: {name}"),
            Err(failure) => {
                println!("FAILED: {name}: {failure}");
                bad.push(name);
            }
        }
    }
    if bad.is_empty() {
        return Ok(());
    }
    Err(Failure(format!("not in order: {}", bad.join(", "))))
}

fn formatting() -> Outcome {
    process::run(
        cargo()
            .current_dir(workspace())
            .args(["fmt", "--all", "--check"]),
    )
}

/// Fuzz targets are a workspace of their own, which nothing else builds.
fn fuzz_versions() -> Outcome {
    let manifest = workspace().join("tests/fuzz/Cargo.toml");
    let mut command = cargo();
    command
        .args(["update", "--quiet", "--workspace", "--locked"])
        .arg("--manifest-path")
        .arg(&manifest);
    let is_current = command
        .output()
        .map_err(|error| failed("run cargo", error))?;
    match is_current.status.success() {
        true => Ok(()),
        false => Err(Failure(format!(
            "its Cargo.lock is behind: cargo update --workspace --manifest-path {}",
            manifest.display()
        ))),
    }
}

fn lints() -> Outcome {
    process::run(cargo().current_dir(workspace()).args([
        "clippy",
        "--quiet",
        // Of what the release has built it needs what runs while others are built.
        "--release",
        "--workspace",
        "--all-targets",
        // What is built without them is a part of this, or of the program without any.
        "--all-features",
        "--",
        "-D",
        "warnings",
    ]))
}

/// The program without what only few need.
fn lints_bare() -> Outcome {
    process::run(cargo().current_dir(workspace()).args([
        "clippy",
        "--quiet",
        "--release",
        "--package=profiler",
        "--no-default-features",
        "--",
        "-D",
        "warnings",
    ]))
}

/// Nothing is built to run examples in documentation, nor tests of the program itself, so there may be none.
fn nothing_unrun() -> Outcome {
    let mut files = Vec::new();
    for name in CRATES {
        sources(&workspace().join(name), &mut files)?;
    }
    let mut bad = Vec::new();
    for file in &files {
        let text = read(file)?;
        let lines = examples(&text);
        bad.extend(lines.map(|line| format!("{}:{line}", relative(file))));
        if file.ends_with("profiler/src/main.rs") && text.contains("#[cfg(test)]") {
            bad.push(relative(file));
        }
    }
    report(
        bad,
        "with examples in documentation that are no `text`, or tests, which nothing would run",
    )
}

/// Lines that begin an example in documentation, numbered from 1.
fn examples(text: &str) -> impl Iterator<Item = usize> {
    let mut inside = false;
    let numbered = (1..).zip(text.lines());
    numbered.filter_map(move |(number, line)| {
        let line = line.trim_start();
        let comment = line
            .strip_prefix("//!")
            .or_else(|| line.strip_prefix("///"));
        let fence = comment.and_then(|comment| comment.trim_start().strip_prefix("```"));
        if comment.is_none() {
            inside = false;
        }
        let language = fence?;
        inside = !inside;
        (inside && language.trim() != "text").then_some(number)
    })
}

/// Every file of source opens with a comment that says what it is for.
fn headers() -> Outcome {
    let mut files = Vec::new();
    for name in CRATES {
        sources(&workspace().join(name), &mut files)?;
    }
    let mut bad = Vec::new();
    for file in &files {
        if !read(file)?.starts_with("//!") {
            bad.push(relative(file));
        }
    }
    report(bad, "without a //! header")
}

fn rooms() -> Outcome {
    let mut bad = Vec::new();
    for (room, allowed) in ROOMS {
        let folder = workspace().join("profiler").join(room);
        let own = room.rsplit('/').next().unwrap_or_default();
        let mut files = Vec::new();
        sources(&folder, &mut files)?;
        for file in files.iter().filter(|file| !of_tests(file)) {
            for used in used_modules(&read(file)?) {
                if used != own && !allowed.contains(&used.as_str()) {
                    bad.push(format!("{}: '{own}' may not use '{used}'", relative(file)));
                }
            }
        }
    }
    report(bad, "against the direction of dependencies")
}

/// A file of tests may use whatever makes its input, as a module of tests may.
fn of_tests(file: &Path) -> bool {
    file.components()
        .any(|part| part.as_os_str() == "tests" || part.as_os_str() == "tests.rs")
}

fn pure() -> Outcome {
    let mut bad = Vec::new();
    for room in PURE {
        let mut files = Vec::new();
        sources(&workspace().join("profiler").join(room), &mut files)?;
        for file in files.iter().filter(|file| !of_tests(file)) {
            let text = read(file)?;
            let code: Vec<&str> = code_of(&text).collect();
            let found = IMPURE
                .iter()
                .filter(|word| code.iter().any(|line| line.contains(**word)));
            bad.extend(found.map(|word| format!("{}: {word}", relative(file))));
        }
    }
    report(bad, "with input or output in crates that only calculate")
}

/// Lines of code, without comments and without the module of tests at the end. One that is declared and lies in
/// a file of its own ends nothing.
fn code_of(source: &str) -> impl Iterator<Item = &str> {
    let tests = source.match_indices("#[cfg(test)]\nmod ").find(|(at, _)| {
        let rest = source[*at..].lines().nth(1);
        rest.is_some_and(|line| line.trim_end().ends_with('{'))
    });
    let code = &source[..tests.map_or(source.len(), |(at, _)| at)];
    code.lines()
        .filter(|line| !line.trim_start().starts_with("//"))
}

/// Modules that code names as `crate::module`.
fn used_modules(source: &str) -> Vec<String> {
    let mut used: Vec<String> = code_of(source)
        .flat_map(|line| {
            line.match_indices("crate::")
                .map(|(at, found)| &line[at + found.len()..])
        })
        .map(|rest| {
            let end = rest.find(|letter: char| !letter.is_ascii_lowercase() && letter != '_');
            rest[..end.unwrap_or(rest.len())].to_owned()
        })
        .filter(|name| !name.is_empty())
        .collect();
    used.sort();
    used.dedup();
    used
}

fn report(mut bad: Vec<String>, what: &str) -> Outcome {
    if bad.is_empty() {
        return Ok(());
    }
    bad.sort();
    Err(Failure(format!(
        "{} {what}:\n  {}",
        bad.len(),
        bad.join("\n  ")
    )))
}

fn sources(dir: &Path, files: &mut Vec<PathBuf>) -> Outcome {
    let entries =
        fs::read_dir(dir).map_err(|error| failed(format!("list {}", relative(dir)), error))?;
    for entry in entries {
        let path = entry.map_err(|error| failed("list sources", error))?.path();
        if path.is_dir() && !path.ends_with("target") {
            sources(&path, files)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    Ok(())
}

fn read(path: &Path) -> Outcome<String> {
    fs::read_to_string(path).map_err(|error| failed(format!("read {}", relative(path)), error))
}

fn relative(path: &Path) -> String {
    path.strip_prefix(workspace())
        .unwrap_or(path)
        .display()
        .to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uses_are_found_in_code_only() {
        let source = "//! See crate::view.\nuse crate::model::Pid;\n// crate::export\n\
                      fn f() { crate::decode::x(); }\n\
                      #[cfg(test)]\nmod tests {\n use crate::resolve::y; }\n";
        assert_eq!(used_modules(source), ["decode", "model"]);
        let declared = "#[cfg(test)]\nmod tests;\nuse crate::probe::Ring;\n";
        assert_eq!(used_modules(declared), ["probe"]);
    }

    #[test]
    fn examples_are_found_that_would_not_be_run() {
        let text = "//! ```text\n//! a\n//! ```\n/// ```\n/// b\n/// ```\ncode\n    //! ```rust\n";
        assert_eq!(examples(text).collect::<Vec<_>>(), [4, 8]);
    }
}
