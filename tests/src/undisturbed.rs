//! A process -> one that others hardly take off its processor, whatever else runs beside the test.
//!
//! What it takes to be taken off the kernel charges to whoever comes next, samples are of who was on the processor. A process
//! that is taken off a thousand times in a second and a half has up to 5 % more samples than CPU time
//! (docs/performance.md, "What is noise"), one that is not has the right number within 0.2 %.
//!
//! For one thread that works: as many as there are processors would leave nothing for whoever records them.
//! Its groups get the largest share of processors that there is: that of a session of its own, and those of its cgroups,
//! of either version, that tests have made and take away. What belongs to the machine or to an engine stays as it is: all
//! that comes later in there would have it, too. It may be lent ([`lend_most`]): other tests' sessions have ninety
//! times the share of an engine's group.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::process::{Pid, setpriority_process};

/// Shares of a cgroup, files and largest values.
const SHARES: [(&str, &str); 2] = [("cpu.shares", "262144"), ("cpu.weight", "10000")];
/// Where the controller of processors may be mounted.
const MOUNTS: [&str; 3] = [
    "/sys/fs/cgroup/cpu",
    "/sys/fs/cgroup/cpu,cpuacct",
    "/sys/fs/cgroup",
];

/// What a command is put behind to be run so from its start, as far as its session goes: that of a test is whoever's who
/// runs it, and all that is in there would go before the kernel's own threads.
pub const UNDISTURBED: [&str; 3] = ["nice", "-n", "-20"];

/// Gives a process of a test, and the threads that it has, all that they can use of the processors.
pub fn leave_undisturbed(pid: u32) -> io::Result<()> {
    for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
        let id = thread?.file_name().to_string_lossy().parse().ok();
        setpriority_process(id.and_then(Pid::from_raw), -20)?;
    }
    if session(pid)? == pid {
        // There is none where sessions share as processes do.
        let _ = fs::write(format!("/proc/{pid}/autogroup"), "-20");
    }
    for group in groups(pid)? {
        let mut names = group.iter().map(|name| name.to_string_lossy());
        if names.any(|name| name.starts_with("profiler-test")) {
            for (file, most) in shares(&group) {
                fs::write(file, most)?;
            }
        }
    }
    Ok(())
}

/// What groups had before they were lent more, which they have again when this is dropped.
#[derive(Debug, Default)]
pub struct Lent(Vec<(PathBuf, String)>);

impl Drop for Lent {
    fn drop(&mut self) {
        for (file, before) in &self.0 {
            // It may be gone with its container.
            let _ = fs::write(file, before.trim());
        }
    }
}

/// Lends all groups of a process the largest share of processors that there is, also those of an engine.
pub fn lend_most(pid: u32) -> io::Result<Lent> {
    let mut lent = Lent::default();
    for group in groups(pid)? {
        for (file, most) in shares(&group) {
            let before = fs::read_to_string(&file)?;
            // Whoever has been lent it first gives it back.
            if before.trim() != most {
                fs::write(&file, most)?;
                lent.0.push((file, before));
            }
        }
    }
    Ok(lent)
}

/// The cgroups that share processors and that a process is in, below where they are mounted, the outer ones first.
fn groups(pid: u32) -> io::Result<Vec<PathBuf>> {
    let mut groups = Vec::new();
    for line in fs::read_to_string(format!("/proc/{pid}/cgroup"))?.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else {
            continue;
        };
        if !controllers.is_empty() && !controllers.split(',').any(|one| one == "cpu") {
            continue;
        }
        let mut below = PathBuf::new();
        for name in path.split('/').filter(|name| !name.is_empty()) {
            below.push(name);
            groups.push(below.clone());
        }
    }
    Ok(groups)
}

/// The session that a process belongs to; 0 if whoever leads it is in another namespace of processes.
fn session(pid: u32) -> io::Result<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // After the name, which may have any characters: state, parent, group, session.
    let after = stat.rsplit_once(')').map_or("", |(_, after)| after);
    let session = after.split_whitespace().nth(3);
    session
        .and_then(|id| id.parse().ok())
        .ok_or_else(|| io::Error::other(format!("no session in {stat}")))
}

/// The files that say how much of what the cgroup above has is a cgroup's, and the most that it can have.
fn shares(below: &Path) -> impl Iterator<Item = (PathBuf, &'static str)> {
    let files = MOUNTS.iter().flat_map(move |mount| {
        let group = Path::new(mount).join(below);
        SHARES.map(|(file, most)| (group.join(file), most))
    });
    files.filter(|(file, _)| file.exists())
}
