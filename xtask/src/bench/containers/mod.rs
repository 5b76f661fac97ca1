//! What containers cost: resolving very many at the start, and events of those that are not wanted.
//!
//! Scenarios: `start`, the time to list 1,000 containers, and until the first sample of a recording with
//! and without them; `discard`, what the kernel-side program takes for an event that it drops, by what it
//! is dropped for. Times are nanoseconds of CLOCK_MONOTONIC; of kernel-side programs those of the kernel's
//! own statistics.

mod discard;
mod many_containers;
mod start;

use std::fs;
use std::io;
use std::path::PathBuf;

use super::Bench;

/// Names of the scenarios.
pub(crate) const SCENARIOS: [&str; 2] = ["start", "discard"];

/// Runs the scenarios that `wanted` says.
pub(crate) fn run(bench: &Bench, rounds: usize, wanted: impl Fn(&str) -> bool) -> io::Result<()> {
    if !rustix::process::geteuid().is_root() {
        return Err(io::Error::other("making cgroups needs root"));
    }
    if wanted("start") {
        start::run(bench, rounds)?;
    }
    if wanted("discard") {
        discard::run(bench, rounds)?;
    }
    Ok(())
}

/// Where hierarchies of cgroups are mounted, and whether they are of version 2.
fn hierarchies() -> io::Result<Vec<(PathBuf, bool)>> {
    let text = fs::read_to_string("/proc/self/mounts")?;
    Ok(text
        .lines()
        .filter_map(|line| {
            let mut fields = line.split(' ');
            let place = PathBuf::from(fields.nth(1)?);
            match fields.next()? {
                "cgroup" => Some((place, false)),
                "cgroup2" => Some((place, true)),
                _ => None,
            }
        })
        .collect())
}

/// A directory of a cgroup, gone when this is dropped.
struct Cgroup(PathBuf);

impl Cgroup {
    fn new(path: PathBuf) -> io::Result<Cgroup> {
        fs::create_dir_all(&path)?;
        Ok(Cgroup(path))
    }

    /// Moves a process here.
    fn add(&self, pid: u32) -> io::Result<()> {
        fs::write(self.0.join("cgroup.procs"), pid.to_string())
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // Its processes have just been reaped; the kernel may take a moment longer.
        for _ in 0..100 {
            match fs::remove_dir(&self.0) {
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                    std::thread::sleep(std::time::Duration::from_millis(10));
                }
                _ => break,
            }
        }
    }
}

/// Processes that end with this.
#[derive(Default)]
struct Processes(Vec<std::process::Child>);

impl Drop for Processes {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
        }
        for child in &mut self.0 {
            let _ = child.wait();
        }
    }
}
