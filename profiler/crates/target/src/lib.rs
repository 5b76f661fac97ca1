//! What to watch: conditions on processes and threads, which the kernel side filters by.
//!
//! What does not belong here: how the kernel filters (`probe`), flags (`cli`).
//!
//! An example, which `cargo xtask check` compiles:
#![doc = "```no_run"]
#![doc = include_str!("../examples/count_threads.rs")]
#![doc = "```"]

pub mod background;
pub mod cgroup;
pub mod command;
pub mod container;
pub mod debugger;
pub mod fate;
pub mod pause;
pub mod proc_fs;
pub mod schedule;
pub mod translator;
pub mod user;

use profiler_model::raw::Comm;
use profiler_model::{Pid, Tid};

use self::cgroup::CgroupFilter;

/// What the kernel keeps samples of.
///
/// Conditions of different kinds must all hold; within one kind any may. `pids` and `tids` are one
/// kind. Empty means no condition: the whole machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Processes and the children that they start from now on.
    pub pids: Vec<Pid>,
    /// Single threads.
    pub tids: Vec<Tid>,
    /// Names of threads.
    pub comms: Vec<Comm>,
    /// Real user ids.
    pub uids: Vec<u32>,
    /// Cgroups of the session's hierarchy.
    pub cgroups: Option<CgroupFilter>,
}

impl Filter {
    /// Whether nothing is filtered: the whole machine.
    pub fn is_empty(&self) -> bool {
        *self == Filter::default()
    }

    // Each of these looks at all kinds of conditions: a new kind does not compile until all have.

    /// Whether processes or threads are named by their ids: who they are is known before anything is
    /// attached, and whom they start is told.
    pub fn is_by_ids(&self) -> bool {
        let Filter {
            pids,
            tids,
            comms: _,
            uids: _,
            cgroups: _,
        } = self;
        !pids.is_empty() || !tids.is_empty()
    }

    /// Whether it asks for what the kernel side alone knows of a thread at each moment: who will be let in
    /// nobody can tell before.
    pub fn is_by_kernel_facts(&self) -> bool {
        let Filter {
            pids: _,
            tids: _,
            comms,
            uids,
            cgroups: _,
        } = self;
        !comms.is_empty() || !uids.is_empty()
    }
}

/// Shared with the end-to-end tests, so that every skip is said in the same way.
#[cfg(test)]
#[path = "../../../../tests/src/skip.rs"]
#[allow(unreachable_pub, dead_code)]
mod skip;
