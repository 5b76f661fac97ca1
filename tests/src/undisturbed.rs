//! A process -> one that others hardly take off its processor, whatever else runs beside the test.
//!
//! What it takes to be taken off the kernel charges to whoever comes next, samples are of who was on the processor. A process
//! that is taken off a thousand times in a second and a half has up to 5 % more samples than CPU time
//! (docs/performance.md, "What is noise"), one that is not has the right number within 0.2 %.
//!
//! For one thread that works: as many as there are processors would leave nothing for whoever records them.
//! Its groups get the largest share of processors that there is: that of a session of its own, and those of its cgroups,
//! of either version, that tests have made and take away. What belongs to the machine or to an engine stays as it is: all
//! that comes later in there would have it, too.

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
    for line in fs::read_to_string(format!("/proc/{pid}/cgroup"))?.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else {
            continue;
        };
        if !controllers.is_empty() && !controllers.split(',').any(|one| one == "cpu") {
            continue;
        }
        let mut below = PathBuf::new();
        let mut is_ours = false;
        for name in path.split('/').filter(|name| !name.is_empty()) {
            below.push(name);
            is_ours |= name.starts_with("profiler-test");
            if is_ours {
                share_most(&below)?;
            }
        }
    }
    Ok(())
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

/// Gives a cgroup all that it can have of what the one above has.
fn share_most(below: &Path) -> io::Result<()> {
    for mount in MOUNTS {
        for (file, most) in SHARES {
            let file = Path::new(mount).join(below).join(file);
            if file.exists() {
                fs::write(file, most)?;
            }
        }
    }
    Ok(())
}
