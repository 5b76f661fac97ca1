//! What one end-to-end test runs in: a scratch folder, the workloads, the `profiler` binary, and the
//! machine to itself, or with others that share it.
//!
//! [`Setting::new`] gives none where the test can't be run, and says so. While a setting lives, no
//! other test of any test binary has one: tests that measure must not compete for two processors. Whoever
//! knows which tests may run beside each other (`cargo xtask test`) says `PROFILER_MACHINE=shared` to
//! those; they wait only for one that has the machine to itself.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};

use crate::process::{self, Ended, Running};
use crate::recording::Recording;
use crate::skip::skip;
use crate::stolen;
use crate::workload::{self, Unbuilt};

/// How long any command may take.
pub const LIMIT: Duration = Duration::from_secs(120);

/// One test's surroundings.
pub struct Setting {
    folder: PathBuf,
    profiler: PathBuf,
    _machine: File,
}

impl Setting {
    /// A setting for `test`, if it can be run with the privileges at hand and there are compilers.
    pub fn new(test: &str) -> io::Result<Option<Setting>> {
        if let Some(reason) = missing_privilege() {
            skip(test, reason);
            return Ok(None);
        }
        Self::unprivileged(test)
    }

    /// A setting for a test that needs no privileges.
    pub fn unprivileged(test: &str) -> io::Result<Option<Setting>> {
        if let Err(unbuilt) = workload::built("chain.c") {
            let Unbuilt::NoCompiler(_) = unbuilt else {
                return Err(io::Error::other(unbuilt));
            };
            skip(test, &unbuilt.to_string());
            return Ok(None);
        }
        stolen::note_start();
        let machine = File::create(workload::folder().join(".machine"))?;
        let shared = std::env::var_os("PROFILER_MACHINE").is_some_and(|value| value == "shared");
        let lock = if shared {
            FlockOperation::LockShared
        } else {
            FlockOperation::LockExclusive
        };
        flock(&machine, lock)?;
        let name = test.replace("::", "-");
        // Not below the target folder, whose parents other users may not be able to enter.
        let folder = std::env::temp_dir().join(format!("profiler-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder)?;
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o755))?;
        Ok(Some(Setting {
            folder,
            profiler: profiler()?.to_owned(),
            _machine: machine,
        }))
    }

    /// The scratch folder; it goes with the setting.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// A path in the scratch folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// The workload built of `source` (`chain.c`, ...), copied into the scratch folder.
    pub fn workload(&self, source: &str) -> io::Result<PathBuf> {
        let built = workload::built(source).map_err(io::Error::other)?;
        let name = built
            .file_name()
            .ok_or_else(|| io::Error::other("a workload without name"))?;
        let copy = self.folder.join(name);
        if !copy.exists() {
            fs::copy(&built, &copy)?;
        }
        Ok(copy)
    }

    /// A command of the profiler, run in the scratch folder.
    pub fn profiler(&self) -> Command {
        let mut command = Command::new(&self.profiler);
        command
            .current_dir(&self.folder)
            .env("RUST_BACKTRACE", "1")
            .stdin(Stdio::null());
        command
    }

    /// Path of the profiler's binary.
    pub fn profiler_path(&self) -> &Path {
        &self.profiler
    }

    /// A copy of the profiler's binary in the scratch folder, for anybody to run. It is written once: who was run from it
    /// may still have helpers.
    pub fn profiler_for_all(&self) -> io::Result<PathBuf> {
        let copy = self.path("profiler");
        if !copy.exists() {
            fs::copy(&self.profiler, &copy)?;
            fs::set_permissions(&copy, fs::Permissions::from_mode(0o755))?;
        }
        Ok(copy)
    }

    /// Runs the profiler with these arguments to its end.
    pub fn run(&self, arguments: &[&str]) -> io::Result<Ended> {
        process::run(
            self.profiler().args(arguments),
            &self.folder,
            "profiler",
            LIMIT,
        )
    }

    /// Records with these arguments to the end; the status must be 0. Gives what was said, and what
    /// was recorded.
    pub fn record(
        &self,
        arguments: &[&str],
    ) -> Result<(Ended, Recording), Box<dyn std::error::Error>> {
        let capture = self.fresh("out.cap");
        let mut command = self.profiler();
        command
            .args(["record", "--wait-names", "60", "-o"])
            .arg(&capture)
            .args(arguments);
        let ended = process::run(&mut command, &self.folder, "record", LIMIT)?.success()?;
        let recording = Recording::read(&capture)?;
        if recording.damaged > 0 {
            return Err(format!("{} parts of the capture can't be read", recording.damaged).into());
        }
        Ok((ended, recording))
    }

    /// Starts recording into `out.cap` and waits until samples are being taken.
    pub fn start_recording(&self, arguments: &[&str]) -> io::Result<Running> {
        let capture = self.fresh("out.cap");
        let mut command = self.profiler();
        // It gets its name when all is attached and time counts.
        command
            .args(["record", "--force", "--wait-names", "60", "-o"])
            .arg(&capture)
            .args(arguments);
        let mut running = Running::start(&mut command, &self.folder, "record")?;
        running.wait_until("recording", LIMIT, |_| capture.exists())?;
        // Unwind tables of what runs already are built meanwhile.
        std::thread::sleep(Duration::from_millis(300));
        Ok(running)
    }

    /// What [`Setting::start_recording`] has recorded.
    pub fn recording(&self) -> io::Result<Recording> {
        Recording::read(&self.path("out.cap"))
    }

    /// Starts a command in the scratch folder with a pipe as standard input.
    pub fn start(&self, name: &str, command: &mut Command) -> io::Result<Running> {
        Running::start(
            command.current_dir(&self.folder).stdin(Stdio::piped()),
            &self.folder,
            name,
        )
    }

    /// A path in the scratch folder at which nothing is.
    pub(crate) fn fresh(&self, name: &str) -> PathBuf {
        let path = self.path(name);
        let _ = fs::remove_file(&path);
        path
    }
}

impl Drop for Setting {
    fn drop(&mut self) {
        // Kept for whoever looks into a failure.
        if !std::thread::panicking() {
            let _ = fs::remove_dir_all(&self.folder);
        }
    }
}

/// Whether this test was built with `--release`.
pub fn is_release() -> bool {
    std::env::current_exe().is_ok_and(|exe| exe.starts_with(workload::target().join("release")))
}

/// The folder of `target` that what this test was built with is in.
pub fn profile() -> &'static str {
    if is_release() { "release" } else { "debug" }
}

/// The profiler of the profile that this test was built with, up to date. `PROFILER_BIN` names
/// another one.
pub fn profiler() -> io::Result<&'static Path> {
    static BUILT: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let built = BUILT.get_or_init(|| {
        if let Some(path) = std::env::var_os("PROFILER_BIN") {
            return Ok(path.into());
        }
        let mut cargo = workload::cargo();
        // Together with the tests' own package: alone it would ask for fewer features of what it depends
        // on, and most of it would be built a second time.
        cargo
            .args(["build", "--quiet", "--bin", "profiler"])
            .args(["--package", "profiler", "--package", "profiler-tests"])
            .args(is_release().then_some("--release"))
            .arg("--target-dir")
            .arg(workload::target())
            .current_dir(env!("CARGO_MANIFEST_DIR"));
        match cargo.output() {
            Ok(run) if run.status.success() => {
                Ok(workload::target().join(profile()).join("profiler"))
            }
            Ok(run) => Err(String::from_utf8_lossy(&run.stderr).into_owned()),
            Err(error) => Err(format!("failed to run cargo: {error}")),
        }
    });
    match built {
        Ok(path) => Ok(path),
        Err(why) => Err(io::Error::other(why.as_str())),
    }
}

/// Why this process can't load and attach the profiler's programs, if it can't.
fn missing_privilege() -> Option<&'static str> {
    const CAP_SYS_ADMIN: u64 = 1 << 21;
    const CAP_PERFMON: u64 = 1 << 38;
    const CAP_BPF: u64 = 1 << 39;
    let effective = std::fs::read_to_string("/proc/self/status")
        .ok()
        .and_then(|status| {
            let line = status
                .lines()
                .find_map(|line| line.strip_prefix("CapEff:"))?;
            u64::from_str_radix(line.trim(), 16).ok()
        })
        .unwrap_or(0);
    if !rustix::process::geteuid().is_root() {
        Some("needs root")
    } else if effective & CAP_SYS_ADMIN == 0
        && effective & (CAP_BPF | CAP_PERFMON) != CAP_BPF | CAP_PERFMON
    {
        Some("needs CAP_BPF and CAP_PERFMON")
    } else {
        None
    }
}
