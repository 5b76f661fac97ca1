//! `cargo xtask check`: what must hold for every commit and no test can see.
//!
//! Formatting, lints, the kernel-side object's sources, headers of files, and which module may use
//! which. All checks run; the command fails if any does.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::{
    ebpf,
    process::{self, Failure, Outcome, cargo, failed, workspace},
};

/// Modules of the `profiler` crate, and those that each may use besides itself. Dependencies point
/// one way: exporters, servers and views do not see each other, nor what reads the kernel.
const MODULES: &[(&str, &[&str])] = &[
    ("model", &[]),
    ("error", &[]),
    ("privileges", &[]),
    ("wire", &[]),
    ("target", &["model"]),
    ("trace", &["model"]),
    ("decode", &["model"]),
    ("order", &["model"]),
    ("unwind", &["model", "trace"]),
    ("capture", &["model"]),
    ("derive", &["model"]),
    (
        "probe",
        &["model", "target", "trace", "unwind", "decode", "privileges"],
    ),
    ("resolve", &["model", "target", "trace", "unwind"]),
    ("import", &["model", "derive", "wire"]),
    ("export", &["model", "derive", "wire"]),
    ("serve", &["model", "derive", "wire"]),
    // `info` shows what a capture file is made of, `list` what can be traced.
    ("view", &["model", "derive", "wire", "capture", "trace"]),
    (
        "session",
        &[
            "model", "target", "decode", "order", "unwind", "capture", "derive", "probe",
            "resolve", "error",
        ],
    ),
    ("pipeline", EVERYTHING_BUT_CLI),
    ("cli", EVERYTHING),
    ("lib", EVERYTHING),
    ("main", EVERYTHING),
];

const EVERYTHING_BUT_CLI: &[&str] = &[
    "model",
    "error",
    "privileges",
    "wire",
    "target",
    "trace",
    "decode",
    "order",
    "unwind",
    "capture",
    "derive",
    "probe",
    "resolve",
    "import",
    "export",
    "serve",
    "view",
    "session",
];

const EVERYTHING: &[&str] = &[
    "model",
    "error",
    "privileges",
    "wire",
    "target",
    "trace",
    "decode",
    "order",
    "unwind",
    "capture",
    "derive",
    "probe",
    "resolve",
    "import",
    "export",
    "serve",
    "view",
    "session",
    "pipeline",
    "cli",
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
    let checks: [(&str, Check); 6] = [
        ("formatting", formatting),
        ("kernel-side object", ebpf::check_fresh),
        ("headers", headers),
        ("nothing that is not run", nothing_unrun),
        ("dependencies of modules", dependencies),
        ("lints", lints),
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

fn lints() -> Outcome {
    process::run(cargo().current_dir(workspace()).args([
        "clippy",
        "--quiet",
        "--workspace",
        "--all-targets",
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

fn dependencies() -> Outcome {
    let root = workspace().join("profiler/src");
    let mut files = Vec::new();
    sources(&root, &mut files)?;
    let mut bad = Vec::new();
    for file in &files {
        let path = file.strip_prefix(&root).unwrap_or(file);
        // A file of tests may use whatever makes its input, as a module of tests may.
        if path.components().any(|part| part.as_os_str() == "tests") {
            continue;
        }
        let module = module_of(path);
        let Some((_, allowed)) = MODULES.iter().find(|(name, _)| *name == module) else {
            bad.push(format!("{}: module '{module}' has no rule", relative(file)));
            continue;
        };
        for used in used_modules(&read(file)?) {
            if used != module && !allowed.contains(&used.as_str()) {
                bad.push(format!(
                    "{}: '{module}' may not use '{used}'",
                    relative(file)
                ));
            }
        }
    }
    report(bad, "against the direction of dependencies")
}

/// The module of the crate that a file belongs to, from its path below `src`.
fn module_of(path: &Path) -> String {
    let first = path.iter().next().unwrap_or_default().to_string_lossy();
    first.strip_suffix(".rs").unwrap_or(&first).to_owned()
}

/// Modules that code names as `crate::module`. Comments and tests don't count: tests may use
/// whatever makes their input.
fn used_modules(source: &str) -> Vec<String> {
    let code = source
        .split("#[cfg(test)]\nmod ")
        .next()
        .unwrap_or_default();
    let mut used: Vec<String> = code
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"))
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
                      #[cfg(test)]\nmod tests { use crate::resolve::y; }\n";
        assert_eq!(used_modules(source), ["decode", "model"]);
    }

    #[test]
    fn examples_are_found_that_would_not_be_run() {
        let text = "//! ```text\n//! a\n//! ```\n/// ```\n/// b\n/// ```\ncode\n    //! ```rust\n";
        assert_eq!(examples(text).collect::<Vec<_>>(), [4, 8]);
    }

    #[test]
    fn modules_are_named_by_folder_or_file() {
        assert_eq!(module_of(Path::new("probe/ring.rs")), "probe");
        assert_eq!(module_of(Path::new("cli.rs")), "cli");
    }

    #[test]
    fn rules_allow_no_cycles() {
        let allowed = |module: &str| {
            let rule = MODULES.iter().find(|(name, _)| *name == module);
            rule.map_or(&[][..], |(_, allowed)| allowed)
        };
        for (module, uses) in MODULES {
            for used in uses.iter().filter(|used| *used != module) {
                let back = allowed(used).contains(module);
                assert!(
                    !back || *module == "cli",
                    "{module} and {used} may use each other"
                );
            }
        }
    }
}
