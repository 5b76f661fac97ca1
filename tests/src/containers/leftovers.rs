//! What is left of containers that should be gone: processes, mounts, cgroups.
//!
//! Everything is told apart by a mark that only this test has: its scratch folder, or ids of its own
//! containers. Nothing is ended or removed that does not carry it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// What belongs to a test.
pub(super) struct Marks<'m> {
    /// Its folder, in command lines and mounts.
    pub(super) folder: &'m Path,
    /// Last parts of the paths of its cgroups, or beginnings of them.
    pub(super) cgroups: &'m [String],
}

/// Waits until nothing is left, at most so long; then ends and removes what is. Gives what there was to
/// end or remove.
pub(super) fn clear(marks: &Marks<'_>, limit: Duration) -> Vec<String> {
    let deadline = Instant::now() + limit;
    let mut left;
    loop {
        left = Left::find(marks);
        if left.is_empty() || Instant::now() > deadline {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let words = left.words();
    left.end();
    words
}

#[derive(Default)]
struct Left {
    processes: Vec<(Pid, String)>,
    mounts: Vec<PathBuf>,
    /// Deepest first.
    cgroups: Vec<PathBuf>,
}

impl Left {
    fn find(marks: &Marks<'_>) -> Left {
        let mut left = Left {
            cgroups: cgroups(marks.cgroups),
            mounts: mounts(marks.folder),
            processes: Vec::new(),
        };
        let folder = marks.folder.to_string_lossy().into_owned();
        let own = std::process::id();
        for pid in pids() {
            let text = command_line(pid);
            let contained = || {
                left.cgroups.iter().any(|cgroup| {
                    fs::read_to_string(cgroup.join("cgroup.procs"))
                        .is_ok_and(|text| text.lines().any(|line| line == pid.to_string()))
                })
            };
            if pid != own
                && (text.contains(&folder) || contained())
                && is_alive(pid)
                && let Some(id) = Pid::from_raw(pid.cast_signed())
            {
                left.processes.push((id, text));
            }
        }
        left
    }

    fn is_empty(&self) -> bool {
        self.processes.is_empty() && self.mounts.is_empty() && self.cgroups.is_empty()
    }

    fn words(&self) -> Vec<String> {
        let mut words = Vec::new();
        for (pid, text) in &self.processes {
            words.push(format!("process {}: {text}", pid.as_raw_nonzero()));
        }
        for path in self.mounts.iter().chain(&self.cgroups) {
            words.push(path.display().to_string());
        }
        words
    }

    fn end(self) {
        for (pid, _) in &self.processes {
            // It may have ended by itself.
            let _ = kill_process(*pid, Signal::KILL);
        }
        for mount in self.mounts.iter().rev() {
            let _ = Command::new("umount").arg("--lazy").arg(mount).status();
        }
        for cgroup in &self.cgroups {
            remove_cgroup(cgroup);
        }
    }
}

/// Removes a cgroup that has no running processes, if it is there: it is busy until its last one has been reaped.
pub(super) fn remove_cgroup(cgroup: &Path) {
    let deadline = Instant::now() + Duration::from_secs(2);
    while cgroup.exists() && fs::remove_dir(cgroup).is_err() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn pids() -> Vec<u32> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect()
}

fn command_line(pid: u32) -> String {
    let bytes = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&bytes)
        .replace('\0', " ")
        .trim()
        .to_owned()
}

/// Whether it still runs: a zombie only waits for whoever reaps it.
fn is_alive(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| {
        stat.rsplit_once(") ")
            .is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
    })
}

/// Mounts at or below a folder.
fn mounts(folder: &Path) -> Vec<PathBuf> {
    let Ok(text) = fs::read_to_string("/proc/self/mountinfo") else {
        return Vec::new();
    };
    text.lines()
        .filter_map(|line| line.split(' ').nth(4).map(PathBuf::from))
        .filter(|place| place.starts_with(folder))
        .collect()
}

/// Directories of all hierarchies whose names begin with one of these, and all below them, deepest
/// first.
fn cgroups(names: &[String]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    if !names.is_empty() {
        for hierarchy in hierarchies() {
            // Whatever can't be read has just gone.
            let _ = descend(&hierarchy, names, false, &mut found);
        }
    }
    found
}

/// Where hierarchies of cgroups are mounted.
pub(super) fn hierarchies() -> Vec<PathBuf> {
    let Ok(text) = fs::read_to_string("/proc/self/mounts") else {
        return Vec::new();
    };
    text.lines()
        .filter_map(|line| {
            let mut fields = line.split(' ');
            let place = fields.nth(1)?;
            matches!(fields.next()?, "cgroup" | "cgroup2").then(|| PathBuf::from(place))
        })
        .collect()
}

fn descend(
    folder: &Path,
    names: &[String],
    inside: bool,
    found: &mut Vec<PathBuf>,
) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if !entry.file_type()?.is_dir() {
            continue;
        }
        let name = entry.file_name();
        let ours = inside
            || names
                .iter()
                .any(|wanted| name.to_string_lossy().starts_with(wanted.as_str()));
        // One that has just gone hides none of the others.
        let _ = descend(&entry.path(), names, ours, found);
        if ours {
            found.push(entry.path());
        }
    }
    Ok(())
}
