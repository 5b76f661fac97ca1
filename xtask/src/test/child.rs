//! A test -> how it ended, in a process group of its own that ends with it.
//!
//! What it says goes to a file, for no pipe to be kept open by what it leaves behind. CPU time is that of the
//! test and of all that it waited for, in clock ticks of the kernel.
//!
//! What does not belong here: which test runs (`schedule`), what is said of it (`progress`).

use std::fs::{self, File};
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

use crate::process::cpu_of;

/// How a test ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Passed,
    /// It said that it failed.
    Failed,
    /// It ended by itself without saying anything: by this signal, or otherwise.
    Crashed(Option<i32>),
    /// It did not end, and was killed.
    Hung,
    /// There is no such test.
    Missing,
}

/// A test that has ended.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) end: End,
    /// What it said.
    pub(super) output: String,
    pub(super) wall: Duration,
    pub(super) cpu: Duration,
}

/// A running test, for those who want it to end.
#[derive(Debug, Default)]
pub(super) struct Handle {
    /// The process group; 0 while there is none.
    group: AtomicU32,
    hung: AtomicBool,
}

impl Handle {
    /// Ends it and all that it has started: it hangs.
    pub(super) fn kill(&self) {
        self.hung.store(true, Ordering::Relaxed);
        kill(self.group.load(Ordering::Relaxed));
    }
}

fn kill(group: u32) {
    if let Some(group) = Pid::from_raw(group.cast_signed()) {
        // All of it may have ended.
        let _ = kill_process_group(group, Signal::KILL);
    }
}

/// Runs a command that runs one test, and says so in libtest's words; what it says goes to `log`.
pub(super) fn run(command: &mut Command, log: &Path, handle: &Handle) -> io::Result<Ended> {
    let output = Output::create(log)?;
    let started = Instant::now();
    let mut child = command
        .stdin(Stdio::null())
        .stdout(output.file.try_clone()?)
        .stderr(output.file.try_clone()?)
        .process_group(0)
        .spawn()?;
    handle.group.store(child.id(), Ordering::Relaxed);
    if handle.hung.load(Ordering::Relaxed) {
        // It was to end before it began.
        kill(child.id());
    }
    let mut cpu = Duration::ZERO;
    if let Some(pid) = Pid::from_raw(child.id().cast_signed()) {
        // Until it is waited for, its numbers are there, and nobody else's.
        let until_it_ends = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        while waitid(WaitId::Pid(pid), until_it_ends)
            .is_err_and(|error| error == rustix::io::Errno::INTR)
        {}
        let stat = fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap_or_default();
        cpu = cpu_of(&stat, rustix::param::clock_ticks_per_second());
        // What it left behind would disturb the next one.
        handle.group.store(0, Ordering::Relaxed);
        kill(child.id());
    }
    let status = child.wait()?;
    let wall = started.elapsed();
    let output = output.read()?;
    let end = if handle.hung.load(Ordering::Relaxed) {
        End::Hung
    } else {
        judge(status, &output)
    };
    Ok(Ended {
        end,
        output,
        wall,
        cpu,
    })
}

/// What libtest's status and last words mean.
fn judge(status: ExitStatus, output: &str) -> End {
    let result = output
        .lines()
        .rev()
        .find_map(|line| line.split_once("test result: "))
        .map(|(_, result)| result);
    match (status.code(), result) {
        (Some(0), Some(result)) if result.contains(" 1 passed; 0 failed") => End::Passed,
        (Some(0), Some(_)) => End::Missing,
        (Some(101), Some(_)) => End::Failed,
        _ => End::Crashed(status.signal()),
    }
}

/// The file that takes what a test says; it goes with this.
struct Output {
    path: PathBuf,
    file: File,
}

/// More of it is not kept.
const MOST_OUTPUT: usize = 1 << 20;

impl Output {
    fn create(path: &Path) -> io::Result<Output> {
        let file = File::options()
            .create(true)
            .truncate(false)
            .append(true)
            .read(true)
            .open(path)?;
        file.set_len(0)?;
        Ok(Output {
            path: path.to_owned(),
            file,
        })
    }

    fn read(&self) -> io::Result<String> {
        let bytes = fs::read(&self.path)?;
        let last = bytes.len().saturating_sub(MOST_OUTPUT);
        Ok(String::from_utf8_lossy(&bytes[last..]).into_owned())
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, handle: &Handle) -> Ended {
        let name = format!("xtask-child-{}-{:p}", std::process::id(), handle);
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        run(&mut command, &std::env::temp_dir().join(name), handle).unwrap()
    }

    fn end(script: &str) -> End {
        shell(script, &Handle::default()).end
    }

    #[test]
    fn ends_are_told_apart() {
        let passed = "echo 'test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured'";
        assert_eq!(end(passed), End::Passed);
        let none = "echo 'test result: ok. 0 passed; 0 failed; 0 ignored; 0 measured'";
        assert_eq!(end(none), End::Missing);
        let failed = "echo 'test result: FAILED. 0 passed; 1 failed'; exit 101";
        assert_eq!(end(failed), End::Failed);
        assert_eq!(end("true"), End::Crashed(None));
        assert_eq!(end("exit 101"), End::Crashed(None));
        assert_eq!(end("kill -SEGV $$"), End::Crashed(Some(11)));
    }

    #[test]
    fn what_is_said_is_kept_and_cpu_time_counted() {
        let work =
            "echo out; echo err >&2; i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done; exit 1";
        let ended = shell(&format!("({work}); wait; exit 1"), &Handle::default());
        assert_eq!(ended.output, "out\nerr\n");
        assert!(
            ended.cpu > Duration::ZERO && ended.cpu <= ended.wall * 2,
            "{ended:?}"
        );
    }

    #[test]
    fn what_hangs_is_killed_and_what_is_left_behind_too() {
        let handle = Handle::default();
        let ended = std::thread::scope(|scope| {
            let running = scope.spawn(|| shell("sleep 1000 & sleep 1000", &handle));
            while handle.group.load(Ordering::Relaxed) == 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
            handle.kill();
            running.join().unwrap()
        });
        assert_eq!(ended.end, End::Hung);
        assert!(ended.wall < Duration::from_secs(100));

        let ended = shell("sleep 1000 & echo $!", &Handle::default());
        let stat = format!("/proc/{}/stat", ended.output.trim());
        let until = Instant::now() + Duration::from_secs(10);
        // Whoever adopts it may take a while to bury it.
        while fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z ")) {
            assert!(Instant::now() < until, "{stat} is still there");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
