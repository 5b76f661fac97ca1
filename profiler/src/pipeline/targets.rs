//! What a recording waits for the end of: the processes and threads that were named.
//!
//! Process and thread ids -> descriptors and start times, so that an id that is given out again is not
//! taken for the target. What does not belong here: which events concern them (`scope`).

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::process::{PidfdFlags, pidfd_open};

use crate::error::Failure;
use profiler_model::{Pid, Tid};
use profiler_target::Filter;
use profiler_target::proc_fs::{self, Stat};

/// Opens what a filter names; an error if one is not there.
pub(super) fn open_targets(filter: &Filter) -> Result<Vec<Target>, Failure> {
    let open = |id: u32, what: &str| {
        let raw = i32::try_from(id)
            .ok()
            .and_then(rustix::process::Pid::from_raw);
        let exists = Path::new(&format!("/proc/{id}")).exists();
        match raw.filter(|_| exists) {
            Some(raw) => Ok(raw),
            None => Err(Failure::failed(format!("there is no {what} with id {id}"))),
        }
    };
    let mut targets = Vec::new();
    for pid in &filter.pids {
        let raw = open(pid.0, "process")?;
        let pidfd = pidfd_open(raw, PidfdFlags::empty()).map(Target::Process);
        let target = pidfd.or_else(|error| match error {
            // Some kernels have no descriptor of a process whose first thread has ended.
            rustix::io::Errno::SRCH if lives(*pid) => Ok(Target::Headless(*pid, start(*pid))),
            error => Err(error),
        });
        targets.push(target.map_err(|error| match error {
            // Kernels since 6.9 say that there is none.
            rustix::io::Errno::INVAL | rustix::io::Errno::NOENT
                if proc_fs::process_of(Tid(pid.0)).is_some_and(|owner| owner != *pid) =>
            {
                Failure::failed(format!("{pid} is a thread, not a process; use -t {pid}"))
            }
            error => Failure::because(format!("failed to watch process {pid}"), &error),
        })?);
    }
    for tid in &filter.tids {
        open(tid.0, "thread")?;
        targets.push(Target::Thread(*tid, thread_start(*tid)));
    }
    Ok(targets)
}

/// What a recording waits for the end of.
pub(super) enum Target {
    Process(OwnedFd),
    /// One whose first thread has ended: the id and its start time.
    Headless(Pid, Option<u64>),
    /// Kernels before 6.9 have no descriptors of threads: the id and its start time.
    Thread(Tid, Option<u64>),
}

impl Target {
    /// Whether it is gone.
    pub(super) fn has_ended(&self) -> bool {
        match self {
            Target::Process(pidfd) => {
                let fd = pidfd.as_fd();
                let mut polled = [rustix::event::PollFd::new(
                    &fd,
                    rustix::event::PollFlags::IN,
                )];
                let none = rustix::event::Timespec {
                    tv_sec: 0,
                    tv_nsec: 0,
                };
                matches!(rustix::event::poll(&mut polled, Some(&none)), Ok(1..))
            }
            Target::Headless(pid, started) => start(*pid) != *started || !lives(*pid),
            Target::Thread(tid, started) => {
                let now = thread_start(*tid);
                now.is_none() || now != *started
            }
        }
    }
}

/// When a living thread was started, in clock ticks since boot; none if there is no such thread.
fn thread_start(tid: Tid) -> Option<u64> {
    let text = proc_fs::thread_stat(Pid(tid.0), tid)?;
    let stat = Stat::parse(&text)?;
    // A zombie has ended.
    stat.started_ticks().filter(|_| !stat.is_over())
}

/// When a process was started, in clock ticks since boot, whether or not its first thread has ended.
fn start(pid: Pid) -> Option<u64> {
    Stat::parse(&proc_fs::thread_stat(pid, Tid(pid.0))?)?.started_ticks()
}

/// Whether a thread of the process has not ended.
fn lives(pid: Pid) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task"));
    let names = tasks.into_iter().flatten().flatten();
    let mut tids = names.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    tids.any(|tid| {
        let stat = proc_fs::thread_stat(pid, Tid(tid));
        stat.is_some_and(|text| Stat::parse(&text).is_some_and(|stat| !stat.is_over()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_goes_on_without_its_first_thread() {
        // This one's first thread runs on.
        let own = Pid(std::process::id());
        assert!(lives(own) && start(own).is_some());
        assert!(!Target::Headless(own, start(own)).has_ended());
        assert!(Target::Headless(own, Some(0)).has_ended());
        let none = Pid(i32::MAX as u32);
        assert!(Target::Headless(none, None).has_ended());
    }

    #[test]
    fn a_thread_is_no_process() {
        let (tell, told) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            tell.send(rustix::thread::gettid().as_raw_nonzero().get())
                .unwrap();
            ended.recv().ok();
        });
        let tid = told.recv().unwrap() as u32;
        let mut filter = Filter::default();
        filter.pids.push(Pid(tid));
        let error = open_targets(&filter).err().unwrap().to_string();
        drop(end);
        thread.join().unwrap();
        assert_eq!(
            error,
            format!("{tid} is a thread, not a process; use -t {tid}")
        );
    }
}
