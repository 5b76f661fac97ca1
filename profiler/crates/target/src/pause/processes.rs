//! Processes and their descendants, stopped by SIGSTOP.
//!
//! Process ids -> [`Stopped`], which holds a pidfd of each process that we stopped. Processes that
//! are started meanwhile are found by looking again until nobody is new and every thread of all
//! stands still, as `/proc/PID/task/TID/stat` says. Source: proc_pid_stat(5), vfork(2).
//!
//! What does not belong here: the guard, cgroups.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use rustix::process::{PidfdFlags, Signal};

use super::guard::{Charge, Guard};
use super::{INTERVAL, NAMED, PATIENCE, PauseError};
use profiler_model::Pid;

/// Numbers of the system calls in which a parent waits for a child that borrowed its memory (vfork).
const CLONES: [i64; 3] = [libc::SYS_vfork, libc::SYS_clone, libc::SYS_clone3];

/// Processes that stand still because of us. Dropping it lets them go on.
#[derive(Debug, Default)]
pub(super) struct Stopped {
    /// In the order in which they were stopped: parents before their children.
    processes: Vec<(Pid, OwnedFd)>,
}

impl Stopped {
    /// Returns when the processes and all that descend from them stand still.
    pub(super) fn stop(pids: &[Pid], guard: &mut Guard) -> Result<Stopped, PauseError> {
        let own = std::process::id();
        if pids.contains(&Pid(own)) {
            return Err(PauseError::Own(format!("process {own}")));
        }
        let mut stopped = Stopped::default();
        let mut known = Known {
            left_out: HashSet::from([own, guard.pid()]),
            members: HashMap::new(),
        };
        let began = Instant::now();
        let mut named = pids;
        let mut were_still = false;
        loop {
            let new = known.look(named);
            let found_none = new.is_empty();
            for process in new {
                known.members.insert(process.pid, process.started);
                stopped.add(process, guard)?;
            }
            // From now on the same id may be somebody else's.
            named = &[];
            let restless = known.restless();
            if found_none && were_still && restless.is_empty() {
                return Ok(stopped);
            }
            // While one of them still ran, it may have started another one behind our back.
            were_still = restless.is_empty();
            if began.elapsed() > PATIENCE {
                let more = restless.len().saturating_sub(NAMED);
                let mut who = restless[..restless.len().min(NAMED)].join(", ");
                if more > 0 {
                    who.push_str(&format!(" and {more} other threads"));
                } else if who.is_empty() {
                    who.push_str("new processes of the target, which start faster than they");
                }
                return Err(PauseError::Restless { who });
            }
            if !restless.is_empty() {
                std::thread::sleep(INTERVAL);
            }
        }
    }

    /// Stops a process, unless somebody else has.
    fn add(&mut self, process: Process, guard: &mut Guard) -> Result<(), PauseError> {
        let pid = Pid(process.pid);
        let raw = i32::try_from(process.pid).ok();
        let Some(raw) = raw.and_then(rustix::process::Pid::from_raw) else {
            return Ok(());
        };
        let fd = match rustix::process::pidfd_open(raw, PidfdFlags::empty()) {
            Ok(fd) => fd,
            Err(rustix::io::Errno::SRCH) => return Ok(()),
            Err(error) => {
                let action = format!("open process {pid}");
                return Err(PauseError::system(action, error));
            }
        };
        // The descriptor names who is meant, and not somebody who has got the same id since.
        let same = Process::read(process.pid).is_some_and(|now| now.started == process.started);
        if !same || is_stopped(process.pid) {
            return Ok(());
        }
        guard
            .charge(Charge::Process, fd.as_fd())
            .map_err(|error| PauseError::system("tell the guard process", error))?;
        match rustix::process::pidfd_send_signal(&fd, Signal::STOP) {
            Ok(()) => self.processes.push((pid, fd)),
            Err(rustix::io::Errno::SRCH) => {}
            Err(rustix::io::Errno::PERM) => return Err(PauseError::Forbidden(pid)),
            Err(error) => {
                return Err(PauseError::system(format!("stop process {pid}"), error));
            }
        }
        Ok(())
    }

    /// Lets them go on, children before their parents.
    pub(super) fn resume(&mut self) -> Result<(), PauseError> {
        let mut first = Ok(());
        while let Some((pid, fd)) = self.processes.pop() {
            match rustix::process::pidfd_send_signal(&fd, Signal::CONT) {
                Ok(()) | Err(rustix::io::Errno::SRCH) => {}
                Err(error) if first.is_ok() => {
                    first = Err(PauseError::system(format!("continue process {pid}"), error));
                }
                Err(_) => {}
            }
        }
        first
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        if let Err(error) = self.resume() {
            log::error!("{error}; continue it with 'kill -CONT'");
        }
    }
}

/// Who is to stand still.
struct Known {
    /// Those that must not, nor what descends from them.
    left_out: HashSet<u32>,
    /// Process ids, with when each was started.
    members: HashMap<u32, u64>,
}

impl Known {
    /// Those that are new, parents before their children.
    fn look(&self, named: &[Pid]) -> Vec<Process> {
        let all = Process::all();
        let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
        for process in all.values() {
            children
                .entry(process.parent)
                .or_default()
                .push(process.pid);
        }
        let mut queue: Vec<u32> = named.iter().map(|pid| pid.0).collect();
        // A process may outlive its parent: those that are known are roots as well.
        queue.extend(self.members.keys());
        let mut seen: HashSet<u32> = self.left_out.clone();
        let mut new = Vec::new();
        let mut next = 0;
        while let Some(&pid) = queue.get(next) {
            next += 1;
            if !seen.insert(pid) {
                continue;
            }
            let Some(process) = all.get(&pid) else {
                continue;
            };
            match self.members.get(&pid) {
                Some(started) if *started == process.started => {}
                // Its id was given to somebody else.
                Some(_) => continue,
                None => new.push(*process),
            }
            queue.extend(children.get(&pid).into_iter().flatten());
        }
        new
    }

    /// Threads that don't stand still, described.
    fn restless(&self) -> Vec<String> {
        let mut restless = Vec::new();
        for (&pid, &started) in &self.members {
            if Process::read(pid).is_none_or(|now| now.started != started) {
                continue;
            }
            for thread in threads(pid) {
                let folder = format!("/proc/{pid}/task/{thread}");
                match Stat::read(&format!("{folder}/stat")) {
                    None => {}
                    Some(stat) if stat.stands_still() => {}
                    Some(stat) if stat.state == 'D' && waits_for_vfork(&folder) => {}
                    Some(stat) => restless.push(format!(
                        "{} (process {pid}, thread {thread}, state {})",
                        stat.name, stat.state
                    )),
                }
            }
        }
        restless
    }
}

/// Whether a thread stands in vfork until its child runs a program. Its child stands still, or will.
fn waits_for_vfork(folder: &str) -> bool {
    let call = fs::read_to_string(format!("{folder}/syscall")).unwrap_or_default();
    let number = call.split_ascii_whitespace().next();
    number
        .and_then(|number| number.parse().ok())
        .is_some_and(|number: i64| CLONES.contains(&number))
}

/// Whether a process was stopped as a whole, by a signal.
fn is_stopped(pid: u32) -> bool {
    let mut any = false;
    threads(pid).into_iter().all(|thread| {
        let stat = Stat::read(&format!("/proc/{pid}/task/{thread}/stat"));
        any |= stat.is_some();
        stat.is_none_or(|stat| stat.state == 'T')
    }) && any
}

fn threads(pid: u32) -> Vec<u32> {
    numbers(&format!("/proc/{pid}/task"))
}

/// Names of entries of a folder that are numbers.
fn numbers(folder: &str) -> Vec<u32> {
    let Ok(entries) = fs::read_dir(folder) else {
        return Vec::new();
    };
    let names = entries.flatten().map(|entry| entry.file_name());
    names
        .filter_map(|name| name.to_str()?.parse().ok())
        .collect()
}

/// A process at one moment.
#[derive(Clone, Copy, Debug)]
struct Process {
    pid: u32,
    parent: u32,
    /// Clock ticks since boot.
    started: u64,
}

impl Process {
    fn all() -> HashMap<u32, Process> {
        let pids = numbers("/proc").into_iter();
        pids.filter_map(|pid| Some((pid, Process::read(pid)?)))
            .collect()
    }

    fn read(pid: u32) -> Option<Process> {
        let stat = Stat::read(&format!("/proc/{pid}/stat"))?;
        Some(Process {
            pid,
            parent: stat.parent,
            started: stat.started,
        })
    }
}

/// What a `stat` file says.
#[derive(Debug)]
struct Stat {
    name: String,
    state: char,
    parent: u32,
    started: u64,
}

impl Stat {
    fn read(path: &str) -> Option<Stat> {
        let bytes: io::Result<Vec<u8>> = fs::read(path);
        Stat::parse(&String::from_utf8_lossy(&bytes.ok()?))
    }

    fn parse(text: &str) -> Option<Stat> {
        // The name may hold anything, brackets too.
        let (start, end) = (text.find('(')?, text.rfind(')')?);
        let name = text.get(start + 1..end)?.to_owned();
        let mut fields = text.get(end + 1..)?.split_ascii_whitespace();
        Some(Stat {
            name,
            state: fields.next()?.chars().next()?,
            parent: fields.next()?.parse().ok()?,
            started: fields.nth(17)?.parse().ok()?,
        })
    }

    /// Stopped, traced and stopped, or over.
    fn stands_still(&self) -> bool {
        matches!(self.state, 'T' | 't' | 'Z' | 'X' | 'x')
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_brackets_don_t_confuse() {
        let mut text = String::from("77 (a) R 5 (b) T 12 ");
        text.push_str(&(5..=21).map(|n| format!("{n} ")).collect::<String>());
        text.push_str("4242 0 0\n");
        let stat = Stat::parse(&text).unwrap();
        assert_eq!(stat.name, "a) R 5 (b");
        assert_eq!((stat.state, stat.parent, stat.started), ('T', 12, 4242));
        assert!(Stat::parse("77 (cut").is_none());
        assert!(Stat::parse("77 (cut) T 1 2").is_none());
        assert!(Stat::parse("").is_none());
    }

    #[test]
    fn our_own_stat_is_read() {
        let own = Process::read(std::process::id()).unwrap();
        assert_eq!(own.parent, std::os::unix::process::parent_id());
        assert!(own.started > 0);
        assert!(Process::all().contains_key(&own.pid));
    }
}
