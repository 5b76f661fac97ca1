//! Whose events somebody asks for, of a recording: what `target::Filter` and the selectors of containers are
//! of a machine, with the same words and the same meaning.
//!
//! A [`Target`] and the tables, which must hold all definitions -> [`Chosen`], which admits threads, or an error that
//! says what there is. What does not belong here: conditions on stacks (`view`), flags (`cli`).

use profiler_model::*;

use super::containers::{ContainerError, ContainerNames, ContainerSet};
use super::pattern::Pattern;

/// Bytes of a thread's name that the kernel keeps.
const COMM_BYTES: usize = 15;

/// Conditions of different kinds must all hold; within one kind any may. `pids` and `tids` are one kind, `cgroups` and
/// `containers` are one. Without any, everything is meant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Target {
    /// Processes.
    pub pids: Vec<Pid>,
    /// Single threads.
    pub tids: Vec<Tid>,
    /// Names of threads, or of processes with all of their threads: whole, or with `*` and `?`.
    pub comms: Vec<String>,
    /// User ids.
    pub uids: Vec<u32>,
    /// Paths of cgroups, as in /proc/PID/cgroup; what is below them belongs to them.
    pub cgroups: Vec<String>,
    /// Containers, pods and units.
    pub containers: ContainerNames,
}

/// A target that the recording can't tell.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TargetError {
    /// Of a container, a pod, a unit or a cgroup.
    #[error(transparent)]
    Container(#[from] ContainerError),
    /// It has none of these for any process.
    #[error("the recording does not say {0} of any process, so nothing can be chosen by that")]
    NotRecorded(&'static str),
}

/// Whose events are meant in one recording.
#[derive(Clone, Debug, Default)]
pub struct Chosen {
    target: Target,
    containers: ContainerSet,
    /// Nobody's, whatever else is said.
    nobody: bool,
}

impl Target {
    /// Whether everything is meant.
    pub fn is_all(&self) -> bool {
        *self == Target::default()
    }

    /// What is meant in a recording.
    pub fn find(&self, tables: &Tables) -> Result<Chosen, TargetError> {
        // All kinds are looked at here: a new one does not compile until it is.
        let Target {
            pids: _,
            tids: _,
            comms: _,
            uids,
            cgroups,
            containers,
        } = self;
        let known = |has: fn(&Process) -> bool| tables.processes().any(|(_, process)| has(process));
        if !uids.is_empty() && !known(|process| process.uid.is_some()) {
            return Err(TargetError::NotRecorded("the user"));
        }
        if !cgroups.is_empty() && !known(|process| process.cgroup.is_some()) {
            return Err(TargetError::NotRecorded("the cgroup"));
        }
        for path in cgroups {
            if !tables
                .processes()
                .any(|(_, process)| is_below(tables, process, path))
            {
                return Err(ContainerError::unknown_cgroup(path, tables).into());
            }
        }
        Ok(Chosen {
            containers: containers.find(tables)?,
            target: self.clone(),
            nobody: false,
        })
    }
}

impl Chosen {
    /// Nothing at all.
    pub fn nobody() -> Chosen {
        Chosen {
            nobody: true,
            ..Chosen::default()
        }
    }

    /// Whether everything is meant.
    pub fn is_all(&self) -> bool {
        !self.nobody && self.target.is_all()
    }

    /// Whether what a thread did is meant; of what is of no thread, its process decides.
    pub fn admits(
        &self,
        tables: &Tables,
        thread: Option<ThreadId>,
        process: Option<ProcessId>,
    ) -> bool {
        self.admits_then(tables, thread, process, NamesThen::default())
    }

    /// The same at a time when thread and process had other names.
    pub fn admits_then(
        &self,
        tables: &Tables,
        thread: Option<ThreadId>,
        process: Option<ProcessId>,
        then: NamesThen,
    ) -> bool {
        if self.is_all() {
            return true;
        }
        let thread = thread.and_then(|id| tables.thread(id));
        let process = thread.map(|thread| thread.process).or(process);
        let process = process.and_then(|id| tables.process(id));
        !self.nobody
            && self.admits_task(thread, process)
            && self.admits_name(tables, thread, process, then)
            && self.admits_user(process)
            && self.admits_place(tables, process)
    }

    fn admits_task(&self, thread: Option<&Thread>, process: Option<&Process>) -> bool {
        let Target { pids, tids, .. } = &self.target;
        pids.is_empty() && tids.is_empty()
            || process.is_some_and(|process| pids.contains(&process.pid))
            || thread.is_some_and(|thread| tids.contains(&thread.tid))
    }

    fn admits_name(
        &self,
        tables: &Tables,
        thread: Option<&Thread>,
        process: Option<&Process>,
        then: NamesThen,
    ) -> bool {
        let comms = &self.target.comms;
        let is_meant = |name: StringId| {
            let name = tables.string(name);
            comms.iter().any(|comm| is_called(name, comm))
        };
        comms.is_empty()
            || thread.is_some_and(|thread| is_meant(then.thread.unwrap_or(thread.name)))
            || process.is_some_and(|process| is_meant(then.process.unwrap_or(process.name)))
    }

    fn admits_user(&self, process: Option<&Process>) -> bool {
        let uids = &self.target.uids;
        let uid = process.and_then(|process| process.uid);
        uids.is_empty() || uid.is_some_and(|uid| uids.contains(&uid))
    }

    fn admits_place(&self, tables: &Tables, process: Option<&Process>) -> bool {
        let cgroups = &self.target.cgroups;
        if cgroups.is_empty() && self.containers.is_all() {
            return true;
        }
        process.is_some_and(|process| {
            !self.containers.is_all() && self.containers.admits(process)
                || cgroups.iter().any(|path| is_below(tables, process, path))
        })
    }
}

/// Whether a name is the one that is meant; of longer ones the kernel keeps the beginning.
fn is_called(name: &str, comm: &str) -> bool {
    match comm.contains(['*', '?']) {
        true => Pattern::new(comm).matches(name),
        false => {
            let mut end = comm.len().min(COMM_BYTES);
            while !comm.is_char_boundary(end) {
                end -= 1;
            }
            name == comm || name == &comm[..end]
        }
    }
}

/// Whether a process is in a cgroup, or in one below.
fn is_below(tables: &Tables, process: &Process, path: &str) -> bool {
    let Some(cgroup) = process.cgroup else {
        return false;
    };
    let rest = tables
        .string(cgroup)
        .strip_prefix(path.trim_end_matches('/'));
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}
