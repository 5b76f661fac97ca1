//! `cargo xtask fuzz`: builds the fuzz targets of tests/fuzz and runs them with libFuzzer.
//!
//! On the machine's stable toolchain, with the flags of `cargo fuzz`, which wants a nightly one.
//! With the address sanitizer if the toolchain has its runtime, else without, said aloud. Corpora
//! and crashing inputs stay in tests/fuzz, out of version control; seeds are made anew.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::process::{
    Failure, Outcome, cargo, cpu_of, failed, output, run as run_command, workspace,
};

/// The binaries of tests/fuzz.
const TARGETS: &[&str] = &[
    "capture",
    "records",
    "side_band",
    "elf",
    "links",
    "answers",
    "containers",
    "calls",
    "object",
    "signature",
    "bytefrog_agent",
    "bytefrog_hq",
    "import",
    "http",
    "rdp",
    "tcf",
    "tcf_frames",
    "unwind",
];

/// Coverage that steers libFuzzer: edges, with counters, and the operands of comparisons.
const COVERAGE: &[&str] = &[
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "-Cllvm-args=-simplifycfg-branch-fold-threshold=0",
];

/// One input may take so long, on a machine that others use as well, and a run so much memory. What threads that are left alone still have is taken for leaks,
/// and of real ones the limit of memory tells.
const LIMITS: &[&str] = &["-timeout=60", "-rss_limit_mb=2048", "-detect_leaks=0"];

/// Seconds for each with `--long`, as long as `--seconds`; an hour for what stands between others' files and root.
const LONG: u64 = 600;
const LONGEST: u64 = 3600;
const BEFORE_ROOT: &[&str] = &["elf", "answers"];

/// What to fuzz, and how long.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Targets, one after the other; all if none is given
    #[arg(value_parser = clap::builder::PossibleValuesParser::new(TARGETS), value_name = "TARGET")]
    targets: Vec<String>,
    /// Seconds of processor time for each target, whatever else is running
    #[arg(long, default_value_t = 60, conflicts_with = "long")]
    seconds: u64,
    /// Ten minutes for each target, as before a release; an hour for those that stand between others' files and root
    #[arg(long)]
    long: bool,
    /// Run the target on this file only, to see a crash again
    #[arg(long, value_name = "FILE", requires = "targets")]
    input: Option<PathBuf>,
}

/// Builds the targets, and runs those asked for.
pub(crate) fn run(arguments: &Arguments) -> Outcome {
    let folder = workspace().join("tests/fuzz");
    let binaries = build(&folder)?;
    if let (Some(target), Some(input)) = (arguments.targets.first(), &arguments.input) {
        let binary = binaries.join(target);
        return run_command(Command::new(binary).args(LIMITS).arg(input));
    }
    let mut targets = arguments.targets.clone();
    if targets.is_empty() {
        targets = TARGETS.iter().map(|target| (*target).to_owned()).collect();
    }
    let mut crashed = Vec::new();
    for target in targets {
        let seconds = match (arguments.long, BEFORE_ROOT.contains(&target.as_str())) {
            (false, _) => arguments.seconds,
            (true, false) => LONG,
            (true, true) => LONGEST,
        };
        println!("== {target}, {seconds} s");
        if let Err(failure) = fuzz(&folder, &binaries, &target, seconds) {
            eprintln!("{failure}");
            crashed.push(target);
        }
    }
    if crashed.is_empty() {
        return Ok(());
    }
    Err(Failure(format!(
        "{} failed; the inputs are in {}/artifacts: fix, and see with --input FILE",
        crashed.join(", "),
        folder.display()
    )))
}

fn fuzz(folder: &Path, binaries: &Path, target: &str, seconds: u64) -> Outcome {
    let corpus = folder.join("corpus").join(target);
    let artifacts = folder.join("artifacts").join(target);
    let seeds = binaries.join("seeds").join(target);
    for path in [&corpus, &artifacts, &seeds] {
        fs::create_dir_all(path)
            .map_err(|error| failed(format!("create {}", path.display()), error))?;
    }
    let mut command = Command::new(binaries.join(target));
    command
        .args([&corpus, &seeds])
        .args(LIMITS)
        .arg(format!("-artifact_prefix={}/", artifacts.display()))
        .arg("-print_final_stats=1")
        .env("PROFILER_FUZZ_SEEDS", &seeds);
    run_for(&mut command, Duration::from_secs(seconds))
        .map_err(|error| failed(format!("run {target}"), error))?
}

/// What libFuzzer ends with when it is interrupted.
const INTERRUPTED: i32 = 72;

/// Runs a target until it has had that much processor time: what else is running then makes it longer, not less.
fn run_for(command: &mut Command, most: Duration) -> std::io::Result<Outcome> {
    let mut child = command.spawn()?;
    let id = Pid::from_child(&child);
    rustix::process::setpriority_process(Some(id), 10)?;
    let ticks = rustix::param::clock_ticks_per_second();
    let stat = PathBuf::from(format!("/proc/{}/stat", child.id()));
    let mut is_over = false;
    loop {
        if let Some(status) = child.try_wait()? {
            let as_asked = status.success() || is_over && status.code() == Some(INTERRUPTED);
            return Ok(match as_asked {
                true => Ok(()),
                false => Err(Failure(format!("it ended with {status}"))),
            });
        }
        if cpu_of(&fs::read_to_string(&stat)?, ticks) >= most {
            is_over = true;
            // Not waited for yet, so the number is still its own.
            kill_process(id, Signal::INT)?;
        }
        thread::sleep(Duration::from_millis(500));
    }
}

/// Builds all targets; where the binaries are.
fn build(folder: &Path) -> Outcome<PathBuf> {
    let host = host()?;
    let mut flags = COVERAGE.to_vec();
    if has_address_sanitizer(&host)? {
        flags.push("-Zsanitizer=address");
    } else {
        println!("this toolchain has no address sanitizer: fuzzing without");
    }
    flags.extend(["--cfg", "fuzzing", "-Cdebug-assertions"]);
    let target_dir = workspace().join("target/fuzz");
    // Named, so that the flags do not concern build scripts and macros.
    run_command(
        cargo()
            .args(["build", "--release", "--locked", "--target", &host])
            .current_dir(folder)
            .env("CARGO_TARGET_DIR", &target_dir)
            .env("RUSTFLAGS", flags.join(" "))
            .env("RUSTC_BOOTSTRAP", "1"),
    )?;
    Ok(target_dir.join(host).join("release"))
}

fn rustc() -> Command {
    Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()))
}

fn host() -> Outcome<String> {
    let version = output(rustc().arg("-vV"))?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned)
        .ok_or_else(|| Failure("'rustc -vV' names no host".to_owned()))
}

fn has_address_sanitizer(host: &str) -> Outcome<bool> {
    let sysroot = output(rustc().args(["--print", "sysroot"]))?;
    let libraries = Path::new(sysroot.trim())
        .join("lib/rustlib")
        .join(host)
        .join("lib");
    let entries = fs::read_dir(&libraries)
        .map_err(|error| failed(format!("read {}", libraries.display()), error))?;
    Ok(entries
        .flatten()
        .any(|entry| entry.file_name().to_string_lossy().ends_with("rt.asan.a")))
}
