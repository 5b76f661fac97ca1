//! `cargo xtask build-ebpf`: the canonical build of the kernel-side object.
//!
//! Sources of `profiler-ebpf` and `profiler-common`, pinned tools -> `profiler-ebpf/prebuilt`, byte
//! for byte the same in any folder. Beside the object lies `sources.sha256`: what it was built from
//! and with, so that a stale object is found without building. See
//! docs/adr/0002-prebuilt-kernel-object.md.

use std::{
    collections::BTreeMap,
    env, fs,
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use crate::process::{self, Failure, Outcome, cargo, failed, output, workspace};

/// The compiler: Debian's, because bpf-linker must be built against the LLVM that it uses.
const RUSTC: &str = "/usr/bin/rustc";
/// Where that LLVM is.
pub(crate) const LLVM: &str = "/usr/lib/llvm-22";
/// What the linker says of its version.
pub(crate) const LINKER: &str = "bpf-linker 0.13.0";

const TARGET: &str = "bpfel-unknown-none";
const OBJECT: &str = "profiler-ebpf/prebuilt/profiler-kernel.bpf.o";
const RECORD: &str = "profiler-ebpf/prebuilt/sources.sha256";
/// What the object is made of, besides packages of Cargo.lock.
const SOURCES: &[&str] = &[
    "profiler-ebpf/Cargo.toml",
    "profiler-ebpf/src",
    "profiler-common",
];
/// Settings of the build that would otherwise come from profiles.
const PROFILE: &[(&str, &str)] = &[
    ("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "1"),
    ("CARGO_PROFILE_RELEASE_DEBUG", "2"),
    ("CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS", "false"),
    ("CARGO_PROFILE_RELEASE_OPT_LEVEL", "3"),
    ("CARGO_PROFILE_RELEASE_OVERFLOW_CHECKS", "false"),
];

/// Flags of `cargo xtask build-ebpf`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Build anew, compare with the object that is checked in, and change nothing.
    #[arg(long)]
    check: bool,
}

/// Builds the object, or compares a fresh build with it.
pub(crate) fn run(arguments: &Arguments) -> Outcome {
    let tools = tools()?;
    if arguments.check {
        check_record(Some(&tools))?;
        let dir = workspace().join("target/ebpf-check");
        // A stale build must not stand in for a new one.
        if dir.exists() {
            fs::remove_dir_all(&dir).map_err(|error| failed("clear the build folder", error))?;
        }
        let built = build(&dir)?;
        if read(&built)? != read(&workspace().join(OBJECT))? {
            return Err(Failure(format!(
                "{OBJECT} is not what its sources give; the fresh build is {}",
                built.display()
            )));
        }
        println!("{OBJECT} is reproduced byte for byte");
        return Ok(());
    }
    let built = build(&workspace().join("target/ebpf"))?;
    let object = workspace().join(OBJECT);
    fs::copy(&built, &object).map_err(|error| failed(format!("write {OBJECT}"), error))?;
    let record = record(&tools)?;
    fs::write(workspace().join(RECORD), record)
        .map_err(|error| failed(format!("write {RECORD}"), error))?;
    println!("built {OBJECT}");
    Ok(())
}

/// Fails if the object checked in is not of the sources as they are. Needs no tools but sha256sum.
pub(crate) fn check_fresh() -> Outcome {
    check_record(None)
}

/// The linker, as `cargo install` puts it.
pub(crate) fn linker() -> PathBuf {
    let home = env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| env::home_dir().map(|home| home.join(".cargo")));
    home.unwrap_or_default().join("bin/bpf-linker")
}

/// Builds below `dir` and returns the object's path.
fn build(dir: &Path) -> Outcome<PathBuf> {
    let mut command = cargo();
    for (name, _) in env::vars_os() {
        // What a developer has set for other builds must not change this one.
        let text = name.to_string_lossy();
        let foreign = [
            "CARGO_PROFILE_",
            "CARGO_BUILD_",
            "CARGO_TARGET_",
            "RUSTC",
            "RUSTFLAGS",
        ];
        if foreign.iter().any(|prefix| text.starts_with(prefix)) {
            command.env_remove(&name);
        }
    }
    process::run(
        command
            .current_dir(workspace().join("profiler-ebpf"))
            .envs(PROFILE.iter().copied())
            .env("CARGO_TARGET_DIR", dir)
            .env("CARGO_ENCODED_RUSTFLAGS", flags()?.join("\u{1f}"))
            .env("RUSTC", RUSTC)
            // This rustc is a stable one; building core for BPF is not stable.
            .env("RUSTC_BOOTSTRAP", "1")
            .args(["build", "--release", "--locked", "-Z", "build-std=core"])
            .args(["--target", TARGET]),
    )?;
    let linked = dir.join(TARGET).join("release/profiler-kernel");
    let object = dir.join("profiler-kernel.bpf.o");
    // DWARF was needed to make BTF, which stays; nobody reads the DWARF.
    process::run(
        Command::new(format!("{LLVM}/bin/llvm-strip"))
            .arg("--strip-debug")
            .arg("-o")
            .arg(&object)
            .arg(linked),
    )?;
    Ok(object)
}

fn flags() -> Outcome<Vec<String>> {
    let mut flags = vec![
        format!("-Clinker={}", linker().display()),
        "-Clink-arg=--btf".to_owned(),
        "--cfg=bpf_target_arch=\"x86_64\"".to_owned(),
    ];
    // BTF holds paths of sources: they must not depend on where things lie here.
    let mut remap = |from: &Path, to: &str| {
        flags.push(format!("--remap-path-prefix={}={to}", from.display()));
    };
    remap(&workspace(), "");
    let sysroot = output(Command::new(RUSTC).args(["--print", "sysroot"]))?;
    let library = Path::new(sysroot.trim()).join("lib/rustlib/src/rust");
    let library = fs::canonicalize(&library)
        .map_err(|error| failed("find the library's sources; run 'cargo xtask setup'", error))?;
    remap(&library, "/rust");
    remap(
        &Path::new(sysroot.trim()).join("lib/rustlib/src/rust"),
        "/rust",
    );
    let home = linker();
    let registry = home
        .ancestors()
        .nth(2)
        .map(|home| home.join("registry/src"));
    for dir in registry
        .iter()
        .filter_map(|dir| fs::read_dir(dir).ok())
        .flatten()
    {
        let dir = dir.map_err(|error| failed("list the registry's sources", error))?;
        remap(&dir.path(), "/crates");
    }
    Ok(flags)
}

/// The tools that make the bytes, by name and version.
fn tools() -> Outcome<BTreeMap<&'static str, String>> {
    let hint = |failure: Failure| Failure(format!("{failure}; run 'cargo xtask setup'"));
    let verbose = output(Command::new(RUSTC).arg("-vV")).map_err(hint)?;
    let field = |name: &str| {
        let line = verbose.lines().find_map(|line| line.strip_prefix(name));
        line.map(|value| value.trim().to_owned())
            .ok_or_else(|| Failure(format!("{RUSTC} does not tell its '{name}'")))
    };
    let linker = output(Command::new(linker()).arg("--version")).map_err(hint)?;
    let llvm = output(Command::new(format!("{LLVM}/bin/llvm-config")).arg("--version"));
    Ok(BTreeMap::from([
        (
            "rustc",
            format!("{} {}", field("release:")?, field("commit-hash:")?),
        ),
        ("rustc-llvm", field("LLVM version:")?),
        ("linker", linker.trim().to_owned()),
        ("linker-llvm", llvm.map_err(hint)?.trim().to_owned()),
    ]))
}

/// Compares what the object was built from, and with if `tools` are given, with what is here.
fn check_record(tools: Option<&BTreeMap<&'static str, String>>) -> Outcome {
    let written = fs::read_to_string(workspace().join(RECORD))
        .map_err(|error| failed(format!("read {RECORD}"), error))?;
    let written = parse(&written);
    let here = parse(&record(&tools.cloned().unwrap_or_default())?);
    let mut differences = Vec::new();
    for (key, value) in &here {
        if written.get(key) != Some(value) {
            let before = written.get(key).map_or("absent", String::as_str);
            differences.push(format!("{key}: here {value}, built with {before}"));
        }
    }
    let gone = written
        .keys()
        .filter(|key| !here.contains_key(*key) && (tools.is_some() || !key.starts_with("tool ")));
    differences.extend(gone.map(|key| format!("{key}: no longer here")));
    if differences.is_empty() {
        return Ok(());
    }
    Err(Failure(format!(
        "{OBJECT} is stale (run 'cargo xtask build-ebpf') or the tools are others than it was built \
         with:\n  {}",
        differences.join("\n  ")
    )))
}

fn parse(record: &str) -> BTreeMap<String, String> {
    let lines = record.lines().filter(|line| !line.starts_with('#'));
    lines
        .filter_map(|line| line.split_once(" = "))
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect()
}

/// The text of the record: sources and object by their hashes, tools by their versions.
fn record(tools: &BTreeMap<&'static str, String>) -> Outcome<String> {
    let mut text = String::from(
        "# What profiler-kernel.bpf.o was built from and with. Written by 'cargo xtask build-ebpf'.\n",
    );
    for (tool, version) in tools {
        text.push_str(&format!("tool {tool} = {version}\n"));
    }
    text.push_str(&format!(
        "object = {}\n",
        sha256(&read(&workspace().join(OBJECT))?)?
    ));
    let lock = fs::read_to_string(workspace().join("Cargo.lock"))
        .map_err(|error| failed("read Cargo.lock", error))?;
    let packages = closure(&lock, "profiler-ebpf");
    text.push_str(&format!("packages = {}\n", sha256(packages.as_bytes())?));
    let manifest = fs::read_to_string(workspace().join("Cargo.toml"))
        .map_err(|error| failed("read Cargo.toml", error))?;
    let profile = release_profile(&manifest, &packages);
    text.push_str(&format!("profile = {}\n", sha256(profile.as_bytes())?));
    let mut files = Vec::new();
    for source in SOURCES {
        collect(&workspace().join(source), &mut files)?;
    }
    files.sort();
    for file in files {
        let path = file.strip_prefix(workspace()).unwrap_or(&file);
        text.push_str(&format!(
            "source {} = {}\n",
            path.display(),
            sha256(&read(&file)?)?
        ));
    }
    Ok(text)
}

/// The settings of the release profile, and of the `packages` (blocks of Cargo.lock) that the object is made of. Names
/// of functions hold a hash of them, so that the bytes of the object change with each, whatever [`PROFILE`] sets
/// over them.
fn release_profile(manifest: &str, packages: &str) -> String {
    let counts = |section: &str| match section.strip_prefix("[profile.release.package.") {
        Some(rest) => {
            let name = rest.trim_end_matches(']').trim_matches('"');
            name == "*" || packages.contains(&format!("name = \"{name}\"\n"))
        }
        None => section.starts_with("[profile.release"),
    };
    let mut text = String::new();
    let mut inside = false;
    for line in manifest.lines().map(str::trim) {
        if line.starts_with('[') {
            inside = counts(line);
        }
        if inside && !line.is_empty() && !line.starts_with('#') {
            text.push_str(line);
            text.push('\n');
        }
    }
    text
}

fn collect(path: &Path, files: &mut Vec<PathBuf>) -> Outcome {
    if path.is_file() {
        files.push(path.to_owned());
        return Ok(());
    }
    let entries = fs::read_dir(path).map_err(|error| failed(format!("list {path:?}"), error))?;
    for entry in entries {
        let entry = entry.map_err(|error| failed(format!("list {path:?}"), error))?;
        collect(&entry.path(), files)?;
    }
    Ok(())
}

/// The blocks of Cargo.lock that `root` depends on, its own included, in the file's order. The rest
/// of the lock changes without touching the object.
fn closure(lock: &str, root: &str) -> String {
    let blocks: Vec<&str> = lock
        .split("\n\n")
        .filter(|block| block.contains("[[package]]"))
        .collect();
    let name_of = |block: &str| value(block, "name").map(str::to_owned);
    let mut wanted = vec![root.to_owned()];
    let mut seen = 0;
    while let Some(name) = wanted.get(seen).cloned() {
        seen += 1;
        for block in blocks
            .iter()
            .filter(|block| name_of(block).as_deref() == Some(&name))
        {
            let lines = block
                .lines()
                .skip_while(|line| !line.starts_with("dependencies"));
            for line in lines.skip(1).take_while(|line| !line.starts_with(']')) {
                // `"name"` or `"name version"`.
                let dependency = line.trim().trim_matches([',', '"']);
                let dependency = dependency.split(' ').next().unwrap_or_default().to_owned();
                if !wanted.contains(&dependency) {
                    wanted.push(dependency);
                }
            }
        }
    }
    let kept = blocks
        .iter()
        .filter(|block| name_of(block).is_some_and(|name| wanted.contains(&name)));
    kept.map(|block| block.trim())
        .collect::<Vec<_>>()
        .join("\n\n")
}

fn value<'a>(block: &'a str, key: &str) -> Option<&'a str> {
    let prefix = format!("{key} = ");
    let line = block.lines().find_map(|line| line.strip_prefix(&prefix))?;
    Some(line.trim_matches('"'))
}

fn read(path: &Path) -> Outcome<Vec<u8>> {
    fs::read(path).map_err(|error| failed(format!("read {}", path.display()), error))
}

fn sha256(bytes: &[u8]) -> Outcome<String> {
    let action = "run sha256sum";
    let mut child = Command::new("sha256sum")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| failed(action, error))?;
    if let Some(mut input) = child.stdin.take() {
        input
            .write_all(bytes)
            .map_err(|error| failed(action, error))?;
    }
    let output = child
        .wait_with_output()
        .map_err(|error| failed(action, error))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    match text.split(' ').next() {
        Some(hash) if hash.len() == 64 => Ok(hash.to_owned()),
        _ => Err(failed(action, output.status)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCK: &str = "version = 4\n\n\
        [[package]]\nname = \"a\"\nversion = \"1\"\ndependencies = [\n \"b 2\",\n]\n\n\
        [[package]]\nname = \"b\"\nversion = \"2\"\ndependencies = [\n \"c\",\n]\n\n\
        [[package]]\nname = \"c\"\nversion = \"3\"\n\n\
        [[package]]\nname = \"unrelated\"\nversion = \"4\"\n";

    #[test]
    fn only_what_the_object_depends_on_counts() {
        let kept = closure(LOCK, "a");
        for name in ["a", "b", "c"] {
            assert!(kept.contains(&format!("name = \"{name}\"")));
        }
        assert!(!kept.contains("unrelated"));
        assert_eq!(kept, closure(&LOCK.replace("\"4\"", "\"5\""), "a"));
        assert_ne!(kept, closure(&LOCK.replace("\"3\"", "\"5\""), "a"));
    }

    #[test]
    fn only_settings_of_the_release_and_of_its_packages_count() {
        let manifest = "[workspace]\nresolver = \"3\"\n[profile.release]\n# why\ndebug = false\n\n\
            [profile.release.package.a]\nopt-level = 1\n[profile.release.package.ab]\nopt-level = 1\n\
            [profile.dev]\ndebug = 1\n";
        assert_eq!(
            release_profile(manifest, "[[package]]\nname = \"a\"\nversion = \"1\"\n"),
            "[profile.release]\ndebug = false\n[profile.release.package.a]\nopt-level = 1\n"
        );
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let parsed = parse("# comment\ntool rustc = 1.96.0 abc\nobject = ff\n");
        assert_eq!(parsed["tool rustc"], "1.96.0 abc");
        assert_eq!(parsed["object"], "ff");
        assert_eq!(parsed.len(), 2);
    }
}
