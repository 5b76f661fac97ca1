//! `cargo xtask vm`: the tests of the kernel side, and traced programs, on Debian's kernels, in QEMU.
//!
//! Kernel images come from the Debian archive that this machine uses already, by a configuration of
//! apt of our own; nothing is installed but QEMU, busybox and cpio. Each kernel boots with an initial
//! file system that holds the test binary, the profiler, what it traces (`programs.sh`) and the libraries
//! they need, and turns itself off. Emulated without KVM, so a kernel takes some minutes.

use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use crate::{
    process::{Failure, Outcome, cargo, failed, output, run, workspace},
    setup,
};

/// Versions that are booted, and the suites that have them.
const KERNELS: &[(&str, &str)] = &[
    ("5.10", "bullseye"),
    ("6.1", "bookworm"),
    ("6.12", "bookworm-backports"),
];

const PACKAGES: &[&str] = &["qemu-system-x86", "busybox-static", "cpio"];

/// The test executable that runs there; `INIT` starts it.
const TESTS: &str = "probes";

/// Programs of this machine that are traced there.
const PROGRAMS: &[&str] = &["ls", "sort", "gzip", "sed", "mawk", "dash"];
/// Programs of the tests that are traced there.
const WORKLOADS: &[&str] = &["trace_redzone", "trace_long"];
/// What traces them; `INIT` starts it.
const SCRIPT: &str = include_str!("vm/programs.sh");

/// A kernel that takes longer has hung.
const TIMEOUT: Duration = Duration::from_secs(1800);

const INIT: &str = "#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin PROFILER_EMULATED=1
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /sys/fs/cgroup /cgroup1
mount -t cgroup -o pids none /cgroup1
mount -t cgroup2 none /sys/fs/cgroup
echo \"kernel: $(uname -r)\"
/probes --test-threads=1 --skip pause:: --skip probe_unwind_files::
tests=$?
sh /programs.sh /
echo \"status: $tests $?\"
poweroff -f
";

/// Flags of `cargo xtask vm`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Only this version (5.10, 6.1, 6.12); may be given several times.
    #[arg(long)]
    kernel: Vec<String>,
    /// Only tests whose names contain this, and no traced programs; may be given several times.
    #[arg(long, value_name = "TEXT", value_parser = plain_name)]
    only: Vec<String>,
}

/// Part of a test's name: it becomes a word of a shell script.
fn plain_name(text: &str) -> Result<String, String> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b':');
    match !text.is_empty() && text.bytes().all(is_plain) {
        true => Ok(text.to_owned()),
        false => Err("letters, digits, '_' and ':' make up names of tests".to_owned()),
    }
}

/// The first program of the machine.
fn init(only: &[String]) -> String {
    let programs = "sh /programs.sh /\n";
    match only {
        [] => INIT.to_owned(),
        names => INIT
            .replace(
                "--test-threads=1",
                &format!("--test-threads=1 {}", names.join(" ")),
            )
            .replace(programs, "true\n"),
    }
}

/// Boots the kernels and runs the tests of the kernel side in each.
pub(crate) fn run_kernels(arguments: &Arguments) -> Outcome {
    setup::install_packages("running other kernels", PACKAGES)?;
    let dir = workspace().join("target/vm");
    make_dir(&dir)?;
    let kernels: Vec<_> = KERNELS
        .iter()
        .filter(|(version, _)| {
            arguments.kernel.is_empty() || arguments.kernel.iter().any(|k| k == version)
        })
        .collect();
    if kernels.is_empty() {
        return Err(Failure(format!("no such kernel; there are {KERNELS:?}")));
    }
    let profiler = executable(crate::budgets::RELEASE, "profiler")?;
    let tests = [
        "test",
        "--package",
        "profiler-tests",
        "--no-run",
        "--test",
        TESTS,
    ];
    let initrd = initrd(
        &dir,
        &executable(&tests, TESTS)?,
        &profiler,
        &arguments.only,
    )?;
    let mut bad = Vec::new();
    for (version, suite) in kernels {
        let image = image(&dir, version, suite)?;
        let log = dir.join(format!("{version}.log"));
        let passed = boot(&image, &initrd, &log)?;
        println!(
            "{}: Linux {version} (log: {})",
            if passed { "ok" } else { "FAILED" },
            log.display()
        );
        if !passed {
            bad.push(*version);
        }
    }
    if bad.is_empty() {
        return Ok(());
    }
    Err(Failure(format!("tests failed on Linux {}", bad.join(", "))))
}

/// Builds by these arguments of cargo; the executable of this name.
fn executable(arguments: &[&str], name: &str) -> Outcome<PathBuf> {
    let mut cargo = cargo();
    cargo.current_dir(workspace()).args(arguments);
    let messages = output(cargo.args(["--message-format", "json"]))?;
    messages
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .filter(|message| message["target"]["name"] == name)
        .find_map(|message| message["executable"].as_str().map(PathBuf::from))
        .ok_or_else(|| Failure(format!("cargo named no executable of {name}")))
}

/// The newest kernel image of a version, downloaded if it is not here yet.
fn image(dir: &Path, version: &str, suite: &str) -> Outcome<PathBuf> {
    let dir = dir.join(version);
    if let Some(image) = unpacked(&dir) {
        return Ok(image);
    }
    println!("downloading: Linux {version} from {suite}");
    for part in ["lists/partial", "cache/archives/partial", "empty", "boot"] {
        make_dir(&dir.join(part))?;
    }
    let repositories = output(Command::new("apt-get").args([
        "indextargets",
        "--format",
        "$(REPO_URI)",
        "Created-By: Packages",
    ]))?;
    // Not its security or other sibling archives.
    let archive = repositories
        .lines()
        .find(|uri| uri.trim_end_matches('/').ends_with("/debian"));
    let archive = archive.ok_or_else(|| Failure("apt knows no Debian archive".to_owned()))?;
    let keys = "/usr/share/keyrings/debian-archive-keyring.gpg";
    let list = dir.join("sources.list");
    fs::write(
        &list,
        format!("deb [signed-by={keys}] {archive} {suite} main\n"),
    )
    .map_err(|error| failed("write apt's sources", error))?;
    let apt = |program: &str| {
        let mut command = Command::new(program);
        for (option, path) in [
            ("Dir::Etc::sourcelist", "sources.list"),
            ("Dir::Etc::sourceparts", "empty"),
            ("Dir::Etc::preferencesparts", "empty"),
            ("Dir::State::lists", "lists"),
            ("Dir::Cache", "cache"),
        ] {
            command
                .arg("-o")
                .arg(format!("{option}={}", dir.join(path).display()));
        }
        command.current_dir(&dir);
        command
    };
    run(apt("apt-get").args(["--quiet", "update"]))?;
    let pattern = format!(
        "^linux-image-{}\\..*-cloud-amd64$",
        version.replace('.', "\\.")
    );
    let found = output(apt("apt-cache").args(["search", "--names-only", &pattern]))?;
    let mut names: Vec<&str> = found
        .lines()
        .filter_map(|line| line.split(' ').next())
        .collect();
    names.sort_by_key(|name| numbers(name));
    let name = names
        .last()
        .ok_or_else(|| Failure(format!("{suite} has no Linux {version}")))?;
    run(apt("apt-get").args(["--quiet", "download", name]))?;
    let package = fs::read_dir(&dir)
        .map_err(|error| failed("list the downloads", error))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.extension().is_some_and(|extension| extension == "deb"))
        .ok_or_else(|| Failure(format!("apt-get left no package of {name}")))?;
    run(Command::new("dpkg-deb")
        .arg("--extract")
        .arg(package)
        .arg(dir.join("package")))?;
    unpacked(&dir).ok_or_else(|| Failure(format!("{name} has no kernel image")))
}

fn unpacked(dir: &Path) -> Option<PathBuf> {
    let boot = fs::read_dir(dir.join("package/boot")).ok()?;
    boot.filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.to_string_lossy().contains("vmlinuz"))
}

/// The numbers in a package's name, to order versions.
fn numbers(name: &str) -> Vec<u64> {
    name.split(|letter: char| !letter.is_ascii_digit())
        .filter_map(|part| part.parse().ok())
        .collect()
}

/// Packs the initial file system.
fn initrd(dir: &Path, tests: &Path, profiler: &Path, only: &[String]) -> Outcome<PathBuf> {
    let root = dir.join("root");
    if root.exists() {
        fs::remove_dir_all(&root).map_err(|error| failed("clear the file system", error))?;
    }
    for part in ["bin", "proc", "sys", "dev", "tmp", "usr/bin"] {
        make_dir(&root.join(part))?;
    }
    copy(Path::new("/bin/busybox"), &root.join("bin/busybox"))?;
    let mut programs = vec![
        (tests.to_owned(), root.join(TESTS)),
        (profiler.to_owned(), root.join("bin/profiler")),
    ];
    for name in PROGRAMS {
        let path = Path::new("/usr/bin").join(name);
        programs.push((path, root.join("usr/bin").join(name)));
    }
    for name in WORKLOADS {
        programs.push((workload(dir, name)?, root.join(name)));
    }
    let mut libraries = BTreeSet::new();
    for (program, to) in &programs {
        copy(program, to)?;
        let named = output(Command::new("ldd").arg(program))?;
        let paths = named
            .split_whitespace()
            .filter(|word| word.starts_with('/'));
        libraries.extend(paths.map(PathBuf::from));
    }
    for library in &libraries {
        let to = root.join(library.strip_prefix("/").unwrap_or(library));
        make_dir(to.parent().unwrap_or(&root))?;
        copy(library, &to)?;
    }
    fs::write(root.join("programs.sh"), SCRIPT)
        .map_err(|error| failed("write programs.sh", error))?;
    let init = root.join("init");
    fs::write(&init, self::init(only))
        .and_then(|()| fs::set_permissions(&init, fs::Permissions::from_mode(0o755)))
        .map_err(|error| failed("write init", error))?;
    let packed = dir.join("initrd");
    run(Command::new("sh")
        .current_dir(&root)
        .args([
            "-c",
            "find . | cpio --create --format newc --quiet > \"$0\"",
        ])
        .arg(&packed))?;
    Ok(packed)
}

/// Compiles a workload of the tests.
fn workload(dir: &Path, name: &str) -> Outcome<PathBuf> {
    let program = dir.join(name);
    let source = workspace().join(format!("tests/workloads/{name}.c"));
    let mut compiler = Command::new("cc");
    run(compiler.args(["-O2", "-g", "-o"]).arg(&program).arg(source))?;
    Ok(program)
}

/// Boots a kernel; whether the tests passed, and the programs ran as they do untraced.
fn boot(image: &Path, initrd: &Path, log: &Path) -> Outcome<bool> {
    let action = || format!("run QEMU with {}", image.display());
    let file = fs::File::create(log).map_err(|error| failed(action(), error))?;
    let mut machine = Command::new("qemu-system-x86_64")
        .args([
            "-accel",
            "tcg",
            "-cpu",
            "max,cx16=off",
            "-smp",
            "2",
            "-m",
            "2048",
        ])
        .args(["-nographic", "-no-reboot", "-nic", "none"])
        .arg("-kernel")
        .arg(image)
        .arg("-initrd")
        .arg(initrd)
        // On a busy host the timer that the kernel tries out comes too late for it. A processor that comes
        // back finds its clock to be unstable; then the kernel changes code that others run, which the
        // emulator gets wrong.
        .args([
            "-append",
            "console=ttyS0 quiet panic=-1 no_timer_check tsc=reliable rdinit=/init",
        ])
        .stdin(Stdio::null())
        .stdout(file)
        .spawn()
        .map_err(|error| failed(action(), error))?;
    let end = Instant::now() + TIMEOUT;
    loop {
        match machine
            .try_wait()
            .map_err(|error| failed(action(), error))?
        {
            Some(_) => break,
            None if Instant::now() > end => {
                let _ = machine.kill();
                let _ = machine.wait();
                break;
            }
            None => std::thread::sleep(Duration::from_millis(200)),
        }
    }
    let text = fs::read(log).map_err(|error| failed(action(), error))?;
    let text = String::from_utf8_lossy(&text);
    Ok(text.lines().any(|line| line.trim() == "status: 0 0"))
}

fn make_dir(path: &Path) -> Outcome {
    fs::create_dir_all(path).map_err(|error| failed(format!("make {}", path.display()), error))
}

fn copy(from: &Path, to: &Path) -> Outcome {
    fs::copy(from, to)
        .map(drop)
        .map_err(|error| failed(format!("copy {}", from.display()), error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_ordered_by_number() {
        let newer = numbers("linux-image-6.12.100+deb12-cloud-amd64");
        assert!(newer > numbers("linux-image-6.12.95+deb12-cloud-amd64"));
    }
}
