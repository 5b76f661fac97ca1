//! Makes targets stand still, and lets them go on.
//!
//! Processes or a cgroup -> a [`Pause`]: from when [`Pause::begin`] returns until [`Pause::end`] (or
//! the drop) none of their threads runs. Nothing is lost on the way: what was not stopped before runs
//! on, what somebody else had stopped stays stopped. If this process dies meanwhile, by whatever
//! signal, a process of its own lets the targets go on (`guard`).
//!
//! Processes are stopped by SIGSTOP and named by pidfds, so no reused process id is ever hit. A parent
//! is stopped before its children and continued after them: it never sees one of them stopped.
//! Sources: signal(7), pidfd_open(2), Documentation/admin-guide/cgroup-v2.rst (cgroup.freeze),
//! cgroup-v1/freezer-subsystem.rst.
//!
//! What does not belong here: who may pause what (`pipeline`), finding containers (`resolve`).

mod cgroup;
mod guard;
mod processes;

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use cgroup::Frozen;
use guard::Guard;
use processes::Stopped;
use profiler_model::Pid;

/// How long all may take to stand still. What is in the kernel for longer (a dead file server, say)
/// won't stop at all.
const PATIENCE: Duration = Duration::from_secs(3);
/// The same of those that would stop, and get no processor to do it.
const STARVED: Duration = Duration::from_secs(15);
/// How long it is waited between two looks at who still runs.
const INTERVAL: Duration = Duration::from_micros(500);
/// How many of those that don't stop are named.
const NAMED: usize = 5;

/// What is to stand still.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PauseTargets {
    /// Processes, and all that descend from them. The caller and its other children are left out.
    Processes(Vec<Pid>),
    /// All processes of a cgroup and of those below it, by its directory (of version 2, or of the
    /// freezer of version 1).
    Cgroup(PathBuf),
}

/// Why targets can't be paused. Those that had been stopped by then run on.
#[derive(Debug, thiserror::Error)]
pub enum PauseError {
    /// We would stop ourselves.
    #[error("{0} can't be paused: the profiler itself is in it")]
    Own(String),
    /// The caller may not stop this process.
    #[error("not allowed to stop process {0}: run as its owner or as root")]
    Forbidden(Pid),
    /// Threads that run on. They may be in an uninterruptible state.
    #[error("{who} did not stop within {} s; all run on", waited.as_secs())]
    Restless {
        /// Some of them.
        who: String,
        /// How long it was waited for them.
        waited: Duration,
    },
    /// A cgroup can't be frozen.
    #[error("{} is no cgroup that can be frozen: name a directory with cgroup.freeze (version 2) or freezer.state (version 1) in it", .0.display())]
    NoFreezer(PathBuf),
    /// A system call failed.
    #[error("failed to {action}: {source}")]
    System {
        /// What was tried.
        action: String,
        /// Why it failed.
        source: io::Error,
    },
}

impl PauseError {
    fn system(action: impl Into<String>, source: impl Into<io::Error>) -> PauseError {
        PauseError::System {
            action: action.into(),
            source: source.into(),
        }
    }
}

/// Targets that stand still. Dropping it lets them go on.
#[derive(Debug)]
#[must_use = "the targets go on when this is dropped"]
pub struct Pause(Option<(Held, Guard)>);

#[derive(Debug)]
enum Held {
    Processes(Stopped),
    Cgroup(Frozen),
}

impl Pause {
    /// Returns when all of them stand still; if they don't, none is held.
    pub fn begin(targets: PauseTargets) -> Result<Pause, PauseError> {
        let mut guard =
            Guard::start().map_err(|error| PauseError::system("start a guard process", error))?;
        let held = match targets {
            PauseTargets::Processes(pids) => Stopped::stop(&pids, &mut guard).map(Held::Processes),
            PauseTargets::Cgroup(path) => Frozen::freeze(&path, &mut guard).map(Held::Cgroup),
        };
        match held {
            Ok(held) => Ok(Pause(Some((held, guard)))),
            // What had been stopped until then was let go when its holder was dropped.
            Err(error) => {
                guard.dismiss();
                Err(error)
            }
        }
    }

    /// Lets them go on. Those that have ended meanwhile (killed, for one) are no error.
    pub fn end(mut self) -> Result<(), PauseError> {
        self.release()
    }

    fn release(&mut self) -> Result<(), PauseError> {
        let Some((held, guard)) = self.0.take() else {
            return Ok(());
        };
        let resumed = match held {
            Held::Processes(mut stopped) => stopped.resume(),
            Held::Cgroup(mut frozen) => frozen.thaw(),
        };
        // Should that have failed, the guard may be luckier.
        if resumed.is_ok() {
            guard.dismiss();
        }
        resumed
    }
}

impl Drop for Pause {
    fn drop(&mut self) {
        if let Err(error) = self.release() {
            log::error!("{error}; continue it by hand");
        }
    }
}
