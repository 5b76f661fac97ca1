//! Processes and their descendants, stopped by SIGSTOP.
//!
//! Process ids -> [`Stopped`], which holds a pidfd of each process that we stopped. Processes that
//! are started meanwhile are found by looking again until nobody is new and every thread of all
//! stands still, as `/proc/PID/task/TID/stat` says. Source: proc_pid_stat(5), vfork(2).
//!
//! What does not belong here: the guard, cgroups.

use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use rustix::process::{PidfdFlags, Signal};

use super::guard::{Charge, Guard};
use super::{INTERVAL, NAMED, PATIENCE, PauseError, STARVED};
use crate::proc_fs::{self, Stat};
use profiler_model::{Pid, Tid};

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
            let starve = found_none
                && !restless.is_empty()
                && restless.iter().all(|(would_run, _)| *would_run);
            let waited = if starve { STARVED } else { PATIENCE };
            if began.elapsed() > waited {
                let more = restless.len().saturating_sub(NAMED);
                let names = restless.iter().take(NAMED).map(|(_, who)| &**who);
                let mut who = names.collect::<Vec<_>>().join(", ");
                if more > 0 {
                    who.push_str(&format!(" and {more} other threads"));
                } else if who.is_empty() {
                    who.push_str("new processes of the target, which start faster than they");
                }
                return Err(PauseError::Restless { who, waited });
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
        if !same || is_stopped(pid) {
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

    /// Threads that don't stand still: whether they want nothing but a processor, and a description.
    fn restless(&self) -> Vec<(bool, String)> {
        let mut restless = Vec::new();
        for (&pid, &started) in &self.members {
            if Process::read(pid).is_none_or(|now| now.started != started) {
                continue;
            }
            for thread in proc_fs::threads(Pid(pid)) {
                if let Some(who) = moving(Pid(pid), thread) {
                    restless.push(who);
                }
            }
        }
        restless
    }
}

/// A thread that does not stand still: whether it wants nothing but a processor, and a description.
fn moving(pid: Pid, thread: Tid) -> Option<(bool, String)> {
    let text = proc_fs::thread_stat(pid, thread)?;
    let stat = Stat::parse(&text)?;
    let state = stat.state()?;
    if stands_still(state) || (state == 'D' && waits_for_vfork(pid, thread)) {
        return None;
    }
    let name = String::from_utf8_lossy(stat.name);
    let who = format!("{name} (process {pid}, thread {thread}, state {state})");
    Some((state == 'R', who))
}

/// Stopped, traced and stopped, or over.
fn stands_still(state: char) -> bool {
    matches!(state, 'T' | 't' | 'Z' | 'X' | 'x')
}

/// Whether a thread stands in vfork until its child runs a program. Its child stands still, or will.
fn waits_for_vfork(pid: Pid, thread: Tid) -> bool {
    let path = format!("/proc/{pid}/task/{thread}/syscall");
    let call = proc_fs::read(&path, proc_fs::MAX_BYTES).unwrap_or_default();
    let call = String::from_utf8_lossy(&call);
    let number = call.split_ascii_whitespace().next();
    number
        .and_then(|number| number.parse().ok())
        .is_some_and(|number: i64| CLONES.contains(&number))
}

/// Whether a process was stopped as a whole, by a signal.
fn is_stopped(pid: Pid) -> bool {
    let mut any = false;
    proc_fs::threads(pid).into_iter().all(|thread| {
        let text = proc_fs::thread_stat(pid, thread);
        let state = text.and_then(|text| Stat::parse(&text)?.state());
        any |= state.is_some();
        state.is_none_or(|state| state == 'T')
    }) && any
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
        let pids = proc_fs::processes().into_iter();
        pids.filter_map(|pid| Some((pid.0, Process::read(pid.0)?)))
            .collect()
    }

    fn read(pid: u32) -> Option<Process> {
        let text = proc_fs::process_stat(Pid(pid))?;
        let stat = Stat::parse(&text)?;
        Some(Process {
            pid,
            parent: stat.parent()?.0,
            started: stat.started_ticks()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_stat_is_read() {
        let own = Process::read(std::process::id()).unwrap();
        assert_eq!(own.parent, std::os::unix::process::parent_id());
        assert!(own.started > 0);
        assert!(Process::all().contains_key(&own.pid));
    }
}
