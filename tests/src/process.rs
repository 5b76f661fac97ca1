//! Running commands with a deadline, their output in files.
//!
//! Input: a command. Output: its status, standard output and standard error. A command that does
//! not end in time is killed (it alone, by its id) and is an error that shows what it said.

use std::fs::{self, File};
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// This test executable again, to run the ignored test `name` of `module` (a `module_path!()`): what a test
/// has another process do.
pub fn own_test(module: &str, name: &str) -> io::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    let test = match module.split_once("::") {
        Some((_, module)) => format!("{module}::{name}"),
        None => name.to_owned(),
    };
    command.args(["--exact", &test, "--ignored", "--nocapture"]);
    Ok(command)
}

/// Even beside a load it takes no longer.
const BURNT_WITHIN: Duration = Duration::from_secs(60);

/// How long a process, or a thread by its id, has been on a processor. Of a process: its first thread.
pub fn ran_ns(id: u32) -> io::Result<u64> {
    let told = fs::read_to_string(format!("/proc/{id}/schedstat"))?;
    let ns = told.split(' ').next().unwrap_or_default();
    ns.parse().map_err(io::Error::other)
}

/// A number of `/proc/PID/status`: kilobytes or a count.
pub fn status(pid: u32, name: &str) -> io::Result<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let value = text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key == name).then(|| value.trim_end_matches(" kB").trim())
    });
    let value = value.ok_or_else(|| io::Error::other(format!("no {name} of process {pid}")))?;
    value.parse().map_err(io::Error::other)
}

/// Waits until a process has used so much more CPU time.
pub fn burnt(pid: u32, more: Duration) -> io::Result<()> {
    let (begin, until) = (Instant::now(), ran_ns(pid)? + more.as_nanos() as u64);
    while ran_ns(pid)? < until {
        if begin.elapsed() > BURNT_WITHIN {
            return Err(io::Error::other(format!("process {pid} hardly runs")));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Sends a process a signal.
pub fn send_signal(pid: u32, signal: Signal) -> io::Result<()> {
    let pid = Pid::from_raw(pid.cast_signed()).ok_or_else(|| io::Error::other("process id 0"))?;
    Ok(kill_process(pid, signal)?)
}

/// A command that runs.
pub struct Running {
    child: Child,
    name: String,
    stdout: PathBuf,
    stderr: PathBuf,
}

/// A command that has ended.
#[derive(Debug)]
pub struct Ended {
    /// Its exit status.
    pub status: ExitStatus,
    /// All that it wrote to standard output.
    pub stdout: String,
    /// All that it wrote to standard error.
    pub stderr: String,
}

impl Running {
    /// Starts `command`; its outputs go to files in `folder` whose names begin with `name`.
    pub fn start(command: &mut Command, folder: &Path, name: &str) -> io::Result<Running> {
        let stdout = folder.join(format!("{name}.stdout"));
        let stderr = folder.join(format!("{name}.stderr"));
        command
            .stdout(File::create(&stdout)?)
            .stderr(File::create(&stderr)?);
        let child = command.spawn().map_err(|error| {
            io::Error::new(
                error.kind(),
                format!("failed to start {command:?}: {error}"),
            )
        })?;
        Ok(Running {
            child,
            name: name.to_owned(),
            stdout,
            stderr,
        })
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its standard input, if that is a pipe.
    pub fn stdin(&mut self) -> Option<std::process::ChildStdin> {
        self.child.stdin.take()
    }

    /// What it has written to standard output so far.
    pub fn stdout_so_far(&self) -> io::Result<String> {
        fs::read_to_string(&self.stdout)
    }

    /// What it has written to standard error so far.
    pub fn stderr_so_far(&self) -> io::Result<String> {
        fs::read_to_string(&self.stderr)
    }

    /// Whether it has ended.
    pub fn has_ended(&mut self) -> io::Result<bool> {
        Ok(self.child.try_wait()?.is_some())
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        send_signal(self.pid(), signal)
    }

    /// Waits until a condition holds, while it runs.
    pub fn wait_until(
        &mut self,
        what: &str,
        limit: Duration,
        mut holds: impl FnMut(&Running) -> bool,
    ) -> io::Result<()> {
        let deadline = Instant::now() + limit;
        while !holds(self) {
            if self.has_ended()? || Instant::now() > deadline {
                return Err(io::Error::other(format!(
                    "{}: {what} did not happen; it said: {}",
                    self.name,
                    self.stderr_so_far()?
                )));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Waits for its end.
    pub fn end(mut self, limit: Duration) -> io::Result<Ended> {
        let deadline = Instant::now() + limit;
        let status = loop {
            if let Some(status) = self.child.try_wait()? {
                break status;
            }
            if Instant::now() > deadline {
                self.child.kill()?;
                self.child.wait()?;
                return Err(io::Error::other(format!(
                    "{} did not end within {limit:?}; it said: {}",
                    self.name,
                    self.stderr_so_far()?
                )));
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let read =
            |path| Ok::<_, io::Error>(String::from_utf8_lossy(&fs::read(path)?).into_owned());
        Ok(Ended {
            status,
            stdout: read(&self.stdout)?,
            stderr: read(&self.stderr)?,
        })
    }
}

impl Drop for Running {
    /// A test that fails leaves nothing running.
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

impl Ended {
    /// Itself if the status was 0 and nothing panicked, an error that shows its words otherwise.
    pub fn success(self) -> Result<Ended, String> {
        self.expect_status(0)
    }

    /// Itself if it ended with this status and without a panic.
    pub fn expect_status(self, wanted: i32) -> Result<Ended, String> {
        if self.stderr.contains("panicked at") {
            return Err(format!("it panicked: {}", self.stderr));
        }
        if self.status.code() == Some(wanted) {
            return Ok(self);
        }
        Err(format!(
            "status {:?}, signal {:?} instead of {wanted}: {}{}",
            self.status.code(),
            self.status.signal(),
            self.stderr,
            self.stdout
        ))
    }

    /// Its standard output as JSON.
    pub fn json(&self) -> Result<serde_json::Value, String> {
        serde_json::from_str(self.stdout.trim())
            .map_err(|error| format!("not JSON ({error}): {}", self.stdout))
    }
}

/// Runs `command` to its end, without standard input.
pub fn run(command: &mut Command, folder: &Path, name: &str, limit: Duration) -> io::Result<Ended> {
    Running::start(command.stdin(Stdio::null()), folder, name)?.end(limit)
}
