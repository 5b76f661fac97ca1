//! Settings of the kernel that a benchmark needs, and that are afterwards as they were before.
//!
//! Paths below /proc/sys and values -> [`Sysctls`], which sets them back when it is dropped. So does a
//! shell beside this process, in a process group of its own, when this process ends in any other way:
//! it waits for the end of a pipe that only this process holds. Ctrl-C, SIGTERM and SIGKILL are all
//! the same to it.

use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Where the kernel says whether it counts what BPF programs take.
pub(super) const BPF_STATISTICS: &str = "/proc/sys/kernel/bpf_stats_enabled";
/// Who may use perf events.
pub(super) const PERF_EVENT_PARANOID: &str = "/proc/sys/kernel/perf_event_paranoid";

/// Waits for the end of its input; then writes the second of each two arguments into the first.
const KEEPER: &str = r#"
trap '' INT TERM HUP
while read -r line; do :; done
while [ $# -ge 2 ]; do
    printf '%s\n' "$2" > "$1" || printf 'set %s back to %s by hand\n' "$1" "$2" >&2
    shift 2
done
"#;

/// Settings that are changed as long as this lives.
pub(super) struct Sysctls {
    keeper: Child,
}

impl Sysctls {
    /// Sets each path to a value.
    pub(super) fn set(values: &[(&str, &str)]) -> io::Result<Sysctls> {
        let mut before: Vec<PathBuf> = Vec::new();
        for (path, _) in values {
            before.push((*path).into());
            before.push(fs::read_to_string(path)?.trim().into());
        }
        // First who sets them back, then what is to be set back.
        let keeper = Command::new("sh")
            .args(["-c", KEEPER, "sysctls"])
            .args(&before)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .process_group(0)
            .spawn()?;
        let sysctls = Sysctls { keeper };
        for (path, value) in values {
            fs::write(path, value).map_err(|error| named(path.as_ref(), error))?;
        }
        Ok(sysctls)
    }
}

fn named(path: &Path, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

impl Drop for Sysctls {
    fn drop(&mut self) {
        drop(self.keeper.stdin.take());
        if let Err(error) = self.keeper.wait() {
            eprintln!("sysctls may not be as before: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::thread::sleep;
    use std::time::{Duration, Instant};

    use rustix::process::{Pid, Signal, kill_process};

    use super::*;

    /// Names the folder of files that stand for settings; only in the process that is ended.
    const FOLDER: &str = "PROFILER_TEST_SYSCTLS";

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("sysctls-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("a"), "4\n").unwrap();
        fs::write(folder.join("b"), "-1\n").unwrap();
        folder
    }

    fn set(folder: &Path) -> Sysctls {
        let path = |name| folder.join(name).to_str().unwrap().to_owned();
        Sysctls::set(&[(&path("a"), "1"), (&path("b"), "0")]).unwrap()
    }

    fn values(folder: &Path) -> [String; 2] {
        ["a", "b"].map(|name| {
            fs::read_to_string(folder.join(name))
                .unwrap()
                .trim()
                .to_owned()
        })
    }

    #[test]
    fn they_are_as_before_when_dropped() {
        let folder = folder("dropped");
        let sysctls = set(&folder);
        assert_eq!(values(&folder), ["1", "0"]);
        drop(sysctls);
        assert_eq!(values(&folder), ["4", "-1"]);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn one_that_is_not_there_changes_nothing() {
        let folder = folder("absent");
        let path = |name| folder.join(name).to_str().unwrap().to_owned();
        assert!(Sysctls::set(&[(&path("a"), "1"), (&path("c"), "0")]).is_err());
        assert_eq!(values(&folder), ["4", "-1"]);
        fs::remove_dir_all(folder).unwrap();
    }

    /// Is this test in another process: sets them and waits to be ended.
    #[test]
    fn holder() {
        let Some(folder) = std::env::var_os(FOLDER) else {
            return;
        };
        let _sysctls = set(folder.as_ref());
        sleep(Duration::from_secs(60));
    }

    #[test]
    fn they_are_as_before_when_the_process_is_ended() {
        for signal in [Signal::INT, Signal::TERM, Signal::KILL] {
            let folder = folder(&format!("{signal:?}"));
            let mut holder = Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "bench::sysctls::tests::holder"])
                .env(FOLDER, &folder)
                .stdout(Stdio::null())
                .spawn()
                .unwrap();
            let until = Instant::now() + Duration::from_secs(20);
            let wait_for = |expected: [&str; 2]| {
                while values(&folder) != expected {
                    assert!(Instant::now() < until, "{signal:?}: {:?}", values(&folder));
                    sleep(Duration::from_millis(10));
                }
            };
            wait_for(["1", "0"]);
            kill_process(Pid::from_child(&holder), signal).unwrap();
            holder.wait().unwrap();
            wait_for(["4", "-1"]);
            fs::remove_dir_all(&folder).unwrap();
        }
    }
}
