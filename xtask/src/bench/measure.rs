//! Running a tool and measuring it: CPU time, anonymous memory, BPF maps.
//!
//! CPU time is what the kernel charges to the process and the children that it waited for
//! (`wait4`), and to those processes of the profiler that outlive it: they become ours, and are waited for
//! here. Anonymous memory is the highest `RssAnon` seen at steps of 20 ms, the peak is the kernel's own `VmHWM`
//! at the last of them; BPF maps are the sum of `memlock` of the maps that the process holds. All in
//! nanoseconds and bytes.

#![allow(unsafe_code)]

use std::fs;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// What a process used.
#[derive(Clone, Copy, Debug, Default, serde::Serialize)]
pub(crate) struct Usage {
    /// User and system time, children included.
    pub(crate) cpu_ns: u64,
    /// From start to end.
    pub(crate) wall_ns: u64,
    /// Highest anonymous memory.
    pub(crate) anon_bytes: u64,
    /// Highest memory, mapped files included.
    pub(crate) peak_bytes: u64,
    /// Highest memory of BPF maps.
    pub(crate) map_bytes: u64,
}

/// A process that is watched while it runs.
pub(crate) struct Watched {
    started: Instant,
    child: Child,
    watcher: Watcher,
}

struct Watcher {
    stop: Arc<AtomicBool>,
    anon_bytes: Arc<AtomicU64>,
    peak_bytes: Arc<AtomicU64>,
    map_bytes: Arc<AtomicU64>,
    thread: JoinHandle<()>,
}

impl Watched {
    /// Starts `command` with its standard output and error in `log`.
    pub(crate) fn start(command: &mut Command, log: &Path) -> io::Result<Watched> {
        let file = fs::File::create(log)?;
        let output = file.try_clone()?;
        Self::connected(command, Stdio::null(), output.into(), file.into())
    }

    /// Starts `command` with these for its standard input, output and error.
    pub(crate) fn connected(
        command: &mut Command,
        input: Stdio,
        output: Stdio,
        error: Stdio,
    ) -> io::Result<Watched> {
        command.stdin(input).stdout(output).stderr(error);
        rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
        let started = Instant::now();
        let child = command.spawn().map_err(|error| {
            io::Error::new(
                error.kind(),
                format!("failed to start {command:?}: {error}"),
            )
        })?;
        let watcher = Watcher::start(child.id());
        Ok(Watched {
            started,
            child,
            watcher,
        })
    }

    /// Pipes to its standard input and from its standard output, if there are any.
    pub(crate) fn pipes(&mut self) -> (Option<ChildStdin>, Option<ChildStdout>) {
        (self.child.stdin.take(), self.child.stdout.take())
    }

    /// Its process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Asks it to end, as Ctrl-C does.
    pub(crate) fn interrupt(&self) -> io::Result<()> {
        let pid = rustix::process::Pid::from_raw(self.pid().cast_signed())
            .ok_or_else(|| io::Error::other("process id 0"))?;
        Ok(rustix::process::kill_process(
            pid,
            rustix::process::Signal::INT,
        )?)
    }

    /// Waits for its end.
    pub(crate) fn end(self) -> io::Result<(ExitStatus, Usage)> {
        let (status, own_ns) = wait(self.pid())?;
        let wall = self.started.elapsed();
        let (anon_bytes, peak_bytes, map_bytes) = self.watcher.stop();
        let usage = Usage {
            cpu_ns: own_ns + left_behind_ns()?,
            wall_ns: wall.as_nanos() as u64,
            anon_bytes,
            peak_bytes,
            map_bytes,
        };
        Ok((status, usage))
    }
}

/// Waits for a child of ours, which nothing else waits for: how it ended, and its CPU time.
fn wait(pid: u32) -> io::Result<(ExitStatus, u64)> {
    let mut status = 0;
    // SAFETY: all zeros is a valid rusage.
    let mut rusage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers are to live, writable variables.
    let waited = unsafe { libc::wait4(pid.cast_signed(), &mut status, 0, &mut rusage) };
    if waited < 0 {
        return Err(io::Error::last_os_error());
    }
    let cpu_ns = time_ns(rusage.ru_utime) + time_ns(rusage.ru_stime);
    Ok((ExitStatus::from_raw(status), cpu_ns))
}

/// The CPU time of the profiler's processes that it has left behind, once they have ended.
fn left_behind_ns() -> io::Result<u64> {
    let mut cpu_ns = 0;
    for thread in fs::read_dir("/proc/self/task")?.flatten() {
        let children = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
        let pids = children.split_whitespace().flat_map(str::parse::<u32>);
        for pid in pids {
            let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            if name.starts_with("profiler-") {
                cpu_ns += wait(pid)?.1;
            }
        }
    }
    Ok(cpu_ns)
}

/// Runs `command` to its end; it must succeed.
pub(crate) fn run(command: &mut Command, log: &Path) -> io::Result<Usage> {
    let ended = Watched::start(command, log)?.end()?;
    succeeded(command, ended, log)
}

/// What was used by a command that must have succeeded.
pub(crate) fn succeeded(
    command: &Command,
    (status, usage): (ExitStatus, Usage),
    log: &Path,
) -> io::Result<Usage> {
    if status.success() {
        Ok(usage)
    } else {
        let said = fs::read_to_string(log).unwrap_or_default();
        let said: String = said.chars().take(2000).collect();
        Err(io::Error::other(format!(
            "{command:?} failed ({status}): {said}"
        )))
    }
}

fn time_ns(time: libc::timeval) -> u64 {
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_usec.cast_unsigned() * 1000
}

impl Watcher {
    fn start(pid: u32) -> Watcher {
        let stop = Arc::new(AtomicBool::new(false));
        let anon_bytes = Arc::new(AtomicU64::new(0));
        let peak_bytes = Arc::new(AtomicU64::new(0));
        let map_bytes = Arc::new(AtomicU64::new(0));
        let thread = thread::spawn({
            let (stop, anon, maps) = (stop.clone(), anon_bytes.clone(), map_bytes.clone());
            let peak = peak_bytes.clone();
            move || {
                let mut round = 0_u32;
                while !stop.load(Ordering::Relaxed) {
                    let (anon_now, peak_now) = memory(pid);
                    anon.fetch_max(anon_now, Ordering::Relaxed);
                    peak.fetch_max(peak_now, Ordering::Relaxed);
                    // Maps change rarely, and reading them is dearer.
                    if round.is_multiple_of(10) {
                        maps.fetch_max(map_memory(pid).unwrap_or(0), Ordering::Relaxed);
                    }
                    round += 1;
                    thread::sleep(Duration::from_millis(20));
                }
            }
        });
        Watcher {
            stop,
            anon_bytes,
            peak_bytes,
            map_bytes,
            thread,
        }
    }

    fn stop(self) -> (u64, u64, u64) {
        self.stop.store(true, Ordering::Relaxed);
        // It can't panic, and without it the figures so far still stand.
        let _ = self.thread.join();
        (
            self.anon_bytes.load(Ordering::Relaxed),
            self.peak_bytes.load(Ordering::Relaxed),
            self.map_bytes.load(Ordering::Relaxed),
        )
    }
}

/// Anonymous memory and the highest memory so far; 0 of a process that is gone.
fn memory(pid: u32) -> (u64, u64) {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let bytes = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
        Some(kib * 1024)
    };
    (bytes("RssAnon:").unwrap_or(0), bytes("VmHWM:").unwrap_or(0))
}

fn map_memory(pid: u32) -> Option<u64> {
    let mut seen = Vec::new();
    let mut bytes = 0;
    for entry in fs::read_dir(format!("/proc/{pid}/fdinfo")).ok()? {
        let Ok(text) = fs::read_to_string(entry.ok()?.path()) else {
            continue;
        };
        let field = |name: &str| {
            text.lines()
                .find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok())
        };
        if let (Some(id), Some(memory)) = (field("map_id:"), field("memlock:"))
            && !seen.contains(&id)
        {
            seen.push(id);
            bytes += memory;
        }
    }
    Some(bytes)
}
